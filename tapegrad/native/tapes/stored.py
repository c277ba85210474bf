"""Compiled forms of functions on disk, each known by all that is compiled into it.

That is the code of a function and of all that it calls, in whatever files, and the values that they read. So
what was compiled of other sources or values is never run; `kernels.cache` tells what is damaged.
"""

from __future__ import annotations

import enum
import hashlib
import pickle
import types as python_types
import weakref
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
from numba.core import serialize, sigutils, types
from numba.core.caching import NullCache, _Cache
from numba.core.codegen import RuntimeLinker
from numba.core.compiler import Compiler, CompileResult
from numba.core.dispatcher import Dispatcher
from numba.experimental.jitclass.base import JitClassType
from numba.extending import register_jitable
from numba.np.ufunc.dufunc import DUFunc

from tapegrad.kernels import cache
from tapegrad.kernels.symbols import PREFIX
from tapegrad.native.analysis.captured import NUMBERS, frozen, names_of, of_library, overloads_of
from tapegrad.native.emission.algebra import known_to_numba
from tapegrad.native.emission.annotations import Code, Compiled, Context, Signature, Type
from tapegrad.native.tapes.runtime import digest
from tapegrad.ops import MEANING
from tapegrad.ops.primitive import Primitive

LEAVES = (types.Number, types.Boolean, types.UnicodeType, types.NoneType, types.CharSeq, types.UnicodeCharSeq)

IN_PLACE = 1_000_000  # bytes of a captured array beyond which Numba reads it at its address
CONTAINERS = (types.Array, types.List, types.ListType, types.DictType, types.Set, types.Optional)


class Unknown(Exception):
    """Something that is compiled in cannot be told from others of its kind."""


def _is_declared(value: Any) -> bool:
    """Whether a value is a ufunc that Numba does not know, and an op means that is not this library's."""
    if not isinstance(value, np.ufunc) or value not in MEANING or known_to_numba(value):
        return False
    return not getattr(MEANING[value], "linked", "")


class Description:
    """Hashes of what is compiled: of all of it, and of names and values alone, which edits leave alike."""

    def __init__(self) -> None:
        self.all, self.named = hashlib.sha256(), hashlib.sha256()
        self.seen: dict[int, int] = {}
        self.sure = True  # whether the function at hand is compiled with the values that are found

    def put(self, *parts: Any, named: bool = True) -> None:
        """Add texts and bytes."""
        for part in parts:
            data = part if isinstance(part, bytes) else repr(part).encode()
            data = len(data).to_bytes(8, "little") + data
            self.all.update(data)
            if named:
                self.named.update(data)

    def function(self, primal: Compiled) -> None:
        """Add a compiled function."""
        if id(primal) in self.seen:
            self.put("again", self.seen[id(primal)])
            return
        self.seen[id(primal)] = len(self.seen)
        if primal._compiler.pipeline_class is not Compiler:
            raise Unknown
        self.put("compiled", getattr(primal, "_tapegrad_preaccumulate", False), sorted(primal.locals.items()))
        for name, option in sorted(primal.targetoptions.items()):
            self.put(name, sorted(option) if isinstance(option, set) else option)
        function: Code = frozen(primal)
        self.python(function, isinstance(primal._cache, (NullCache, Stored)) and not function._tapegrad_late)

    def python(self, function: python_types.FunctionType, sure: bool) -> None:
        """Add a Python function: its code, and what it reads."""
        before, self.sure = self.sure, True
        names, space = names_of(function.__code__), function.__globals__
        if any(f.__name__ in names for f in MEANING if _is_declared(f)):
            raise Unknown
        self.put("function", function.__module__, function.__qualname__)
        self.code(function.__code__)
        self.values((function.__defaults__, tuple((function.__kwdefaults__ or {}).items())), names)
        self.sure = sure
        for cell in function.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned
                raise Unknown from None
            self.values(value, names)
        for name in sorted(names & space.keys()):
            self.put(name)
            self.values(space[name], names)
        self.sure = before

    def code(self, code: python_types.CodeType) -> None:
        """Add bytecode, wherever in a file it stands."""
        self.put(code.co_code, getattr(code, "co_exceptiontable", b""), code.co_flags, named=False)
        self.put(code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, named=False)
        for value in code.co_consts:
            if isinstance(value, python_types.CodeType):
                self.code(value)
            else:
                kind = sorted(map(repr, value)) if isinstance(value, frozenset) else value
                self.put(type(value).__name__, kind, named=False)

    def values(self, value: Any, names: set[str]) -> None:
        """Add a value that is compiled in."""
        if isinstance(value, Primitive) or _is_declared(value):  # whose rule is compiled in
            raise Unknown
        primal = getattr(value, "_tapegrad_primal", value)
        made_of = getattr(value, "_tapegrad_made_of", None)
        if not self.sure and isinstance(value, (*NUMBERS, str, bytes, np.ndarray)):
            raise Unknown
        if value is None or value is Ellipsis or isinstance(value, (*NUMBERS, str, bytes)):
            data = value.tobytes() if isinstance(value, np.generic) else repr(value)
            self.put(type(value).__name__, getattr(value, "dtype", None), data)
        elif isinstance(value, np.ndarray):
            if value.dtype.hasobject or value.nbytes > IN_PLACE:
                raise Unknown
            self.put("array", value.dtype, value.shape, value.strides, value.tobytes())
        elif isinstance(value, tuple):
            self.put("tuple", type(value).__qualname__, getattr(value, "_fields", len(value)))
            for part in value:
                self.values(part, names)
        elif isinstance(primal, Dispatcher):
            self.function(primal)
        elif isinstance(made_of, tuple):
            self.values(made_of, names)
        elif isinstance(value, python_types.ModuleType):
            self.module(value, names)
        elif isinstance(value, JitClassType):
            self.class_of(value.class_type)
        elif isinstance(value, (np.dtype, types.Type)):
            self.kind(value)
        elif isinstance(value, enum.EnumMeta):
            self.put("enum", value.__module__, value.__qualname__, *map(repr, value))
        elif isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            self.put("named tuple", value.__module__, value.__qualname__, value._fields)
        elif of_library(getattr(value, "__module__", None) or type(value).__module__):
            self.put(type(value).__name__, getattr(value, "__module__", ""), _name(value))
        elif isinstance(value, python_types.FunctionType):
            self.called(value)
        elif isinstance(value, DUFunc):
            self.put("ufunc", sorted(value.targetoptions.items()))
            self.python(value._dispatcher.py_func, False)
        else:
            raise Unknown

    def called(self, function: python_types.FunctionType) -> None:
        """Add a function of Python's: all of it if Numba compiles it for itself, else its name."""
        if id(function) in self.seen:
            self.put("again", self.seen[id(function)])
            return
        self.seen[id(function)] = len(self.seen)
        overloads = overloads_of(function)
        if any(getattr(one, "__module__", "") != register_jitable.__module__ for one in overloads):
            raise Unknown
        if overloads:
            self.python(function, False)
        else:
            self.put("Python's", function.__module__, function.__qualname__)

    def module(self, module: python_types.ModuleType, names: set[str]) -> None:
        """Add a module: of the user's what is read of it."""
        self.put("module", module.__name__, getattr(module, "__version__", ""))
        if not of_library(module.__name__):
            for name in sorted(names & vars(module).keys()):
                self.put(name)
                self.values(vars(module)[name], names)

    def class_of(self, kind: types.ClassType) -> None:
        """Add a class: its members, and what it does."""
        if id(kind) in self.seen:
            self.put("again", self.seen[id(kind)])
            return
        self.seen[id(kind)] = len(self.seen)
        self.put("class", kind.class_name)
        for name, member in kind.struct.items():
            self.put(name)
            self.kind(member, True)
        properties = [(name, how, f) for name, both in kind.jit_props.items() for how, f in both.items()]
        methods = [(name, "", f) for name, f in (*kind.jit_methods.items(), *kind.jit_static_methods.items())]
        for *words, function in sorted(properties + methods, key=lambda row: row[:2]):
            self.put(*words)
            self.function(function)

    def kind(self, kind: Type, member: bool = False) -> None:
        """Add a type, that of a member of a class or of what crosses the border between processes."""
        if isinstance(kind, (np.dtype, *LEAVES)):
            self.put("type", str(kind))
        elif isinstance(kind, types.Omitted):
            self.put("omitted")
            self.values(kind.value, set())
        elif isinstance(kind, types.Record):
            self.put("record", str(kind))
            for field in kind.fields.values():
                self.kind(field.type, member)
        elif isinstance(kind, types.BaseTuple):
            like = getattr(kind, "instance_class", tuple)
            self.put("tuple", type(kind).__name__, like.__module__, like.__qualname__, len(kind))
            for part in kind:
                self.kind(part, member)
        elif isinstance(kind, CONTAINERS):
            self.put("container", type(kind).__name__)
            if isinstance(kind, types.Array):
                self.put(kind.ndim, kind.layout, kind.mutable, kind.aligned)
            for name in ("dtype", "item_type", "key_type", "value_type", "type"):
                if hasattr(kind, name):
                    self.kind(getattr(kind, name), member)
        elif member and isinstance(kind, types.DeferredType):
            self.kind(kind.get(), member)
        elif member and isinstance(kind, types.ClassInstanceType):
            self.class_of(kind.class_type)
        else:
            raise Unknown


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if name is None or "<" in name:
        raise Unknown
    return name


_known: dict[tuple[str, str], weakref.WeakSet[Compiled]] = {}  # functions of derivatives, by their names


class Sources:
    """Says in what is cached of which sources and values a derivative is that was compiled in.

    Numba keeps a user's function until its own file changes. Where what is differentiated is another one when
    the function is loaded, this fails as a file does that cannot be read, so that Numba compiles it again.
    """

    def __init__(self, primal: Compiled) -> None:
        self._primal = weakref.ref(primal)
        _known.setdefault(_names(primal), weakref.WeakSet()).add(primal)

    def __call__(self) -> None:
        """Do nothing: Numba calls it when code was loaded."""

    def __reduce__(self) -> Any:
        primal = self._primal()
        return _unchanged, (*_names(primal), _digest_of(primal))


def _names(primal: Compiled) -> tuple[str, str]:
    return primal.py_func.__module__, primal.py_func.__qualname__


def _digest_of(primal: Compiled) -> bytes | None:
    """The hash of all that is compiled into derivatives of a function; None if that cannot be told."""
    found = Description()
    try:
        found.function(primal)
    except Unknown:
        return None
    found.put(digest())
    return found.all.digest()


def _unchanged(module: str, name: str, sources: bytes | None) -> Sources:
    """Return what is to be called when code is loaded; functions that share a name are to be alike."""
    functions = list(_known.get((module, name), ()))
    if sources is None or not functions or any(_digest_of(one) != sources for one in functions):
        raise OSError(f"{module}.{name} is another function than the one that was compiled in")
    return Sources(functions[0])


class Stored(_Cache):
    """What Numba asks for a form of a function before it compiles, and gives what it has compiled."""

    def __init__(self, primal: Compiled, *form: Hashable) -> None:
        self._primal, self._form = weakref.ref(primal), form

    @property
    def cache_path(self) -> Path | None:
        """The directory."""
        return cache.directory()

    def enable(self) -> None:
        """It is."""

    def disable(self) -> None:
        """Only by the setting of the directory."""

    def flush(self) -> None:
        """Nothing is kept back."""

    def _key(self, sig: Signature) -> tuple[str, bytes] | None:
        """The name of the entry for a signature, and what tells whether it is what is wanted."""
        found = Description()
        args, result = sigutils.normalize_signature(sig)
        try:
            found.put(*self._form)
            for kind in (*args, *([] if result is None else [result])):
                found.kind(kind)
            found.function(self._primal())
        except Unknown:
            return None
        found.put(digest(), named=False)
        return f"function_{found.named.hexdigest()[:32]}", found.all.digest()

    def load_overload(self, sig: Signature, target_context: Context) -> CompileResult | None:
        """Return what is kept, if it is whole and of these sources and values."""
        key = self._key(sig)
        data = None if key is None else cache.fetch(*key)
        if data is None:
            return None
        target_context.refresh()
        try:
            found = CompileResult._rebuild(target_context, *pickle.loads(data))
        except (ImportError, AttributeError, OSError):  # of a module that is no more there; see `Sources`
            return None
        found.library._reload_init.update(found.reload_init)  # for what Numba compiles it into
        return found

    def save_overload(self, sig: Signature, data: CompileResult) -> None:
        """Keep what was compiled; not what has addresses of this process in it."""
        if data.library.has_dynamic_globals or any(not one.can_cache for one in data.lifted):
            return
        code = data.library._final_module
        if any(f.name.startswith(PREFIX) for f in code.functions):
            return  # code of functions of SciPy's, whose symbols another process does not have yet
        if any(one.name.startswith(RuntimeLinker.PREFIX) for one in code.global_variables):
            return  # functions that call one another, by addresses looked for where they are compiled
        try:
            result = data.signature.return_type
            Description().kind(getattr(result, "outside", result))
        except Unknown:
            return
        key = self._key(sig)
        if key is not None:
            cache.keep(*key, serialize.dumps(data._reduce()))
