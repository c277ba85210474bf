"""What a compiled function reads from outside, as it was when the first form of the function was compiled.

Numba takes the values of globals and of captured variables at compilation, with the contents of arrays. A
function has several forms, compiled when each is asked for: one for plain numbers, twins for each order of
derivatives. They are of one function only if they are compiled with the same values, so these are noted at
the first compilation, for the functions that it calls too, and arrays are copied.
"""

from __future__ import annotations

import contextlib
import inspect
import random
import sys
import types as python_types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numba.core import ir
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError, TypingError
from numba.core.registry import cpu_target
from numba.experimental.jitclass.base import JitClassType

from tapegrad.errors import UnsupportedOpError
from tapegrad.native.emission.annotations import Code, Compiled, Key, Namespace, Type

NUMBERS = (bool, int, float, complex, np.generic)
OTHERS = sys.stdlib_module_names | {"llvmlite", "numba", "numpy", "scipy", "tapegrad"}


def called(value: Any) -> list[Compiled]:
    """The compiled functions that a value of the user's program may call: itself, or a class's methods."""
    if isinstance(value, JitClassType):
        kind = value.class_type
        props = [method for both in kind.jit_props.values() for method in both.values()]
        return [*kind.jit_methods.values(), *kind.jit_static_methods.values(), *props]
    if isinstance(value, tuple):
        return [function for part in value for function in called(part)]
    if isinstance(value, python_types.ModuleType):
        found = [] if of_library(value.__name__) else vars(value).values()
        return [f for part in found if not isinstance(part, python_types.ModuleType) for f in called(part)]
    other = getattr(value, "_tapegrad_primal", value)
    return [other] if isinstance(other, Dispatcher) else []


def once(primal: Compiled, seen: set[int] | None = None) -> str:
    """Say what a function does that another run would not repeat; empty if it may, or nothing is known."""
    if getattr(primal, "_tapegrad_rerun", False):
        return ""
    seen = set() if seen is None else seen
    function = frozen(primal)
    code = function.__code__
    if id(code) in seen:
        return ""
    seen.add(id(code))
    space = inspect.getclosurevars(function)
    for value in (*space.globals.values(), *space.nonlocals.values()):
        for other in called(value):
            found = once(other, seen)
            if found:
                return found
        drawing = getattr(value, "__module__", None) in ("random", "numpy.random")
        if drawing or value is random or value is np.random:
            return "draws random numbers"
    names = set(code.co_names)
    for part in code.co_consts:
        if isinstance(part, python_types.CodeType):
            names |= set(part.co_names)
    uses_numpy = any(value is np for value in space.globals.values())
    return "draws random numbers" if uses_numpy and "random" in names else ""


def refuse_another_run(primal: Compiled, what: str) -> None:
    """Refuse what runs a function several times, where another run would not repeat what it does."""
    reason = once(primal)
    if reason:
        raise TypingError(f"tapegrad: {what} runs {primal.py_func.__name__} several times, and it {reason}")


def recursive(function: python_types.FunctionType) -> bool:
    """Whether what the held form of a function calls may call it again."""
    seen: set[int] = set()
    left = [function]
    while left:
        for value in _read(left.pop()).values():
            for other in called(value):
                found = frozen(other)
                if found is function:
                    return True
                if id(found) not in seen:
                    seen.add(id(found))
                    left.append(found)
    return False


def hold(primal: Compiled, form: Compiled | None = None) -> None:
    """See that the first compilation of a function notes what it reads, and that all are of the same.

    `form` is another dispatcher that compiles the function, by default its own.
    """
    known = weakref.ref(primal)

    def implementation(args: Sequence[Type], kws: Mapping[str, Type]) -> Code:
        found = frozen(known())
        changed = _changed(found)
        if changed:
            raise UnsupportedOpError(
                f"{found.__name__}: {changed}; Numba would take that for this form alone: make it an argument"
            )
        compiled.py_func = found  # by which Numba knows a function that calls itself
        return found

    compiled = form or primal
    compiled._compiler._get_implementation = implementation


def frozen(primal: Compiled) -> python_types.FunctionType:
    """Return the Python function of a dispatcher with the values that all of its forms are compiled with."""
    with global_compiler_lock:
        found = vars(primal).get("_tapegrad_frozen")
        if found is None:
            found = _freeze(primal)
        else:
            _complete(found, primal._tapegrad_source)
    return found


def conflict(function: Code) -> str:
    """Say which value a form was compiled with in place of the one that is held; empty if none is known."""
    return str(function._tapegrad_conflict or _changed(function))


def source_of(primal: Compiled) -> python_types.FunctionType:
    """Return the user's Python function of a dispatcher, which reads what is there when it is called."""
    return vars(primal).get("_tapegrad_source", primal.py_func)


def names_of(code: python_types.CodeType) -> set[str]:
    """The names of globals and attributes that code uses, that of functions in it too."""
    inner = [names_of(part) for part in code.co_consts if isinstance(part, python_types.CodeType)]
    return set(code.co_names).union(*inner)


def _freeze(primal: Compiled) -> python_types.FunctionType:
    source = primal.py_func
    names, copies = names_of(source.__code__), dict[int, Any]()
    read = _read(source)
    kept = {name: _kept(value, names, copies) for name, value in read.items()}
    cells = [
        python_types.CellType(kept[name]) if name in kept else cell  # else not assigned yet
        for name, cell in zip(source.__code__.co_freevars, source.__closure__ or (), strict=True)
    ]
    space = {name: value for name, value in kept.items() if name not in source.__code__.co_freevars}
    found = python_types.FunctionType(
        source.__code__, space, source.__name__, source.__defaults__, tuple(cells) or None
    )
    for name in ("__kwdefaults__", "__module__", "__qualname__", "__doc__"):
        setattr(found, name, getattr(source, name))
    found._tapegrad_late = bool(primal.overloads)  # values that Numba has compiled it with may be others
    found._tapegrad_conflict = _conflict(primal, read)
    found._tapegrad_others = _others(kept, {})
    primal._tapegrad_source = source
    primal._tapegrad_frozen = primal.py_func = primal._compiler.py_func = found
    for value in kept.values():
        for other in called(value):
            frozen(other)
    return found


def _read(function: python_types.FunctionType) -> Namespace:
    """The values of the globals and captured variables of a function, by their names."""
    names, space = names_of(function.__code__), function.__globals__
    found = {name: space[name] for name in sorted(names & space.keys())}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            found[name] = cell.cell_contents
    return found


def _others(values: Namespace, known: dict[Code, Namespace]) -> dict[Code, Namespace]:
    """What functions read that Numba compiles for itself, with `register_jitable` for one, so reads again."""
    for value in values.values():
        users = isinstance(value, python_types.FunctionType) and not of_library(value.__module__)
        if users and value not in known and overloads_of(value):
            names, read = names_of(value.__code__), _read(value)
            known[value] = {name: _kept(part, names, {}) for name, part in read.items()}
            _others(known[value], known)
    return known


def overloads_of(function: Key) -> list[Code | None]:
    """What Numba compiles in the place of a Python function; nothing for one that objmode calls."""
    context = cpu_target.typing_context
    context.refresh()
    try:
        kind = context.resolve_value_type(function)
    except (NumbaError, ValueError):
        return []
    return [getattr(template, "_overload_func", None) for template in kind.templates]


def _changed(found: Any) -> str:
    """Say which value has changed that Numba reads again; empty if none."""
    for function, values in found._tapegrad_others.items():
        now = _read(function)
        for name, before in values.items():
            if name in now and not _same(now[name], before):
                words = f"{name} was {before!r}, and it is {now[name]!r} now"
                return f"{function.__name__} was compiled when {words}"
    return ""


def _complete(function: Code, source: Code) -> None:
    """Add the globals that were not there yet; no form that could be compiled has read them."""
    space, live = function.__globals__, source.__globals__
    names = names_of(function.__code__)
    for name in sorted((names & live.keys()) - space.keys()):
        space[name] = _kept(live[name], names, {})
        for other in called(space[name]):
            frozen(other)


def _kept(value: Any, names: set[str], copies: dict[int, Any]) -> Any:
    """A value as it is now, whatever is written to it later."""
    if isinstance(value, (np.ndarray, np.void)):
        if id(value) not in copies:
            copies[id(value)] = value.copy("K") if isinstance(value, np.ndarray) else value.copy()
        return copies[id(value)]
    if isinstance(value, tuple):
        parts = [_kept(part, names, copies) for part in value]
        if all(a is b for a, b in zip(parts, value, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, python_types.ModuleType) and not of_library(value.__name__):
        if id(value) not in copies:
            copies[id(value)] = found = python_types.ModuleType(value.__name__)
            read = {name: getattr(value, name) for name in sorted(names) if hasattr(value, name)}
            vars(found).update({name: _kept(part, names, copies) for name, part in read.items()})
        return copies[id(value)]
    return value


def of_library(module: str | None) -> bool:
    """Whether a module is of those that Numba knows, whose values are constants."""
    return module is not None and module.partition(".")[0] in OTHERS


def _conflict(primal: Compiled, values: Namespace) -> str:
    """Say which value a form that Numba has compiled already was compiled with instead; empty if none."""
    for name, before in _compiled_with(primal):
        now = values.get(name, before)
        if not _same(now, before):
            return f"{primal.py_func.__name__} was compiled when {name} was {before!r}, and it is {now!r} now"
    return ""


def _same(a: Any, b: Any) -> bool:
    if a is b or type(a) is not type(b):
        return a is b
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, python_types.ModuleType):
        return all(_same(getattr(a, name, None), part) for name, part in vars(b).items())
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    return isinstance(a, (*NUMBERS, str)) and (a == b or a != a)


def _compiled_with(primal: Compiled) -> Iterator[tuple[str, Any]]:
    for one in primal.overloads.values():
        for block in getattr(one.type_annotation, "blocks", {}).values():
            for line in block.find_insts(ir.Assign):
                if isinstance(line.value, (ir.Global, ir.FreeVar)):
                    yield line.value.name, line.value.value
