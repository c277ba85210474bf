"""Code that is only compiled into other code: it has no machine code of its own, and is optimised there.

Numba makes a library of each function, optimises it with all that it calls, and makes machine code of it: so
what stands below n functions goes n times through LLVM. What we compile calls many small functions that
nobody but compiled code can call. Their libraries wait here until somebody asks for an address; what they
are linked into is optimised as a whole.

What all of them call, and is too large to be inlined, has machine code already, and is called there. Numba's
own functions, which it may put on disk, and what goes there from here have it linked in.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from llvmlite.binding import Linkage, ModuleRef, parse_bitcode
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen, RuntimeLinker
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment
from numba.core.registry import cpu_target

ENVIRONMENT = "_ZN08NumbaEnv"  # names of variables that hold the objects which a function uses
_WAITING: weakref.WeakSet[Library] = weakref.WeakSet()
_APART: weakref.WeakSet[JITCodeLibrary] = weakref.WeakSet()


def set_apart(*functions: Any) -> None:
    """Let these compiled functions be called where their machine code is, and not linked in."""
    _APART.update(overload.library for one in functions for overload in one.overloads.values())


class Library(JITCodeLibrary):
    """A library that is optimised and made machine code of when an address in it is asked for."""

    _codegen: JITCPUCodegen
    _waiting = True

    def __init__(self, codegen: JITCPUCodegen, name: str) -> None:
        super().__init__(codegen, name)
        self._apart: list[JITCodeLibrary] = []  # what is called and not linked in
        self._before = b""  # the module as it was before it was optimised without that
        self._complete: JITCodeLibrary | None = None  # with all that
        self._offered: tuple[str, Callable[[JITCodeLibrary], Any]] = "", lambda library: None
        self._of_offered: JITCodeLibrary | None = None

    def offer(self, name: str, emit: Callable[[JITCodeLibrary], Any]) -> None:
        """Tell of a function that few ask for, and how its code is emitted."""
        self._offered = name, emit

    def _library_of_offered(self) -> JITCodeLibrary:
        if self._of_offered is None:
            name, emit = self._offered
            self._of_offered = JITCodeLibrary(self._codegen, name)
            emit(self._of_offered)
            self._of_offered.finalize()
        return self._of_offered

    def finalize(self) -> None:
        """Link what is called, but for what is apart."""
        linked = self._linking_libraries
        self._linking_libraries = [one for one in linked if one not in _APART]
        self._apart = [one for one in linked if one in _APART]
        self._apart += [one for library in linked for one in getattr(library, "_apart", ())]
        super().finalize()

    def _link_apart(self, module: ModuleRef) -> None:
        for one in dict.fromkeys(self._apart):
            module.link_in(one._get_module_for_linking(), preserve=True)

    def _library_of_all(self) -> JITCodeLibrary:
        if self._complete is None:
            self._complete = JITCodeLibrary(self._codegen, self.name)
            self._complete._final_module.link_in(parse_bitcode(self._before))
            self._link_apart(self._complete._final_module)
            if self._offered[0]:
                self._offered[1](self._complete)
            self._complete._optimize_final_module()
            self._complete._finalized, self._before = True, b""
        return self._complete

    @classmethod
    def _unserialize(cls, codegen: JITCPUCodegen, state: Any) -> Library:
        with _making(codegen, JITCodeLibrary):
            return JITCodeLibrary._unserialize(codegen, state)

    @property
    def codegen(self) -> Library | JITCPUCodegen:
        """What sets the environment of a function that was compiled: this, as long as there is no code."""
        return self if self._waiting else self._codegen

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing: it is set when there is code."""

    def _optimize_functions(self, module: ModuleRef) -> None:
        """What Numba does for each function, but not for those that are only declared: they are the most."""
        module.data_layout = self._codegen._data_layout
        passes, builder = self._codegen._function_pass_manager()
        for function in module.functions:
            if not function.is_declaration:
                passes.run(function, builder)

    def _optimize_final_module(self) -> None:
        if not self._waiting:
            super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        if not self._waiting:
            super()._finalize_final_module()
            return
        self._finalize_dynamic_globals()
        self._finalized = True
        _WAITING.add(self)
        # functions that call one another do so by address: each has machine code as soon as it is compiled
        called = list(self._codegen._rtlinker._unresolved)
        if self._called_by_address() or any(map(self._is_home_of, called)):
            self._build()

    def _called_by_address(self) -> list[str]:
        """Functions whose addresses are looked for when this gets machine code, by their names."""
        prefix, engine = RuntimeLinker.PREFIX, self._codegen._engine
        names = [one.name for one in self._final_module.global_variables if one.name.startswith(prefix)]
        return [name.removeprefix(prefix) for name in names if not engine.is_symbol_defined(name)]

    def _is_home_of(self, name: str) -> bool:
        """Whether a function was compiled here; those linked in are copies, which may be optimised away."""
        try:
            function = self._final_module.get_function(name)
        except NameError:
            return False
        return not function.is_declaration and function.linkage == Linkage.external

    def _build(self) -> None:
        with global_compiler_lock:
            if self._waiting:
                self._waiting, self._shared_module = False, None
                _WAITING.discard(self)
                for name in self._called_by_address():
                    for home in [one for one in _WAITING if one._is_home_of(name)]:
                        home._build()
                self._dynamic_globals.clear()
                if self._apart or self._offered[0]:
                    self._before = self._final_module.as_bitcode()
                self._optimize_final_module()
                self._finalize_final_module()
                for one in list(self._final_module.global_variables):
                    found = lookup_environment(one.name) if one.name.startswith(ENVIRONMENT) else None
                    if found is not None:
                        self._codegen.set_env(one.name, found)

    def get_pointer_to_function(self, name: str) -> int:
        """Return the address of a function, 0 if there is none of this name."""
        self._ensure_finalized()
        if name == self._offered[0]:
            with global_compiler_lock:
                self._build()
                return self._library_of_offered().get_pointer_to_function(name)
        if self._waiting:
            try:
                if self._final_module.get_function(name).is_declaration:
                    return 0
            except NameError:
                return 0
            self._build()
        return super().get_pointer_to_function(name)

    def _get_module_for_linking(self) -> ModuleRef:
        self._ensure_finalized()
        if self._codegen._library_class is JITCodeLibrary:  # what Numba compiles is to be as it ever was
            self._build()
            if self._apart or self._offered[0]:
                return self._library_of_all()._get_module_for_linking()
        return super()._get_module_for_linking()

    def serialize_using_bitcode(self) -> Any:
        """Return the library for a cache."""
        self._ensure_finalized()
        self._build()
        return super().serialize_using_bitcode()

    def serialize_using_object_code(self) -> Any:
        """Return the library for a cache."""
        self._ensure_finalized()
        self._build()
        return super().serialize_using_object_code()


class Kept(Library):
    """A library that goes to disk, so what it calls is in it."""

    def offer(self, name: str, emit: Callable[[JITCodeLibrary], Any]) -> None:
        """Emit the function."""
        emit(self)

    def _build(self) -> None:
        with global_compiler_lock:
            if self._waiting:
                self._link_apart(self._final_module)
                self._apart = []
            super()._build()


@contextlib.contextmanager
def _making(codegen: JITCPUCodegen, kind: type[JITCodeLibrary]) -> Iterator[None]:
    before = codegen._library_class
    codegen._library_class = kind
    try:
        yield
    finally:
        codegen._library_class = before


@contextlib.contextmanager
def waiting(kept: bool = False) -> Iterator[None]:
    """Let what is compiled inside wait until it is asked for; it may go to disk where it is `kept`."""
    with global_compiler_lock, _making(cpu_target.target_context.codegen(), Kept if kept else Library):
        yield
