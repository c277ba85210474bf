"""Helpers whose local Jacobian is computed at once: a statement per result, whatever they compute inside.

The helper runs on dual numbers that are on no tape, with a tangent for each active number among its
arguments; a result is an expression whose leaves are these arguments, and their partials the tangents.
"""

from __future__ import annotations

import functools
import inspect
import types as python_types
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload

from tapegrad.native.arrays.arrays import carries
from tapegrad.native.emission.algebra import F64, Emitter, Spec, components
from tapegrad.native.emission.annotations import (
    Builder,
    Code,
    Compiled,
    Context,
    Emission,
    Intrinsic,
    Key,
    Namespace,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.numbers.operators import statement
from tapegrad.native.numbers.scalar import (
    MAX_LEAVES,
    PASSIVE,
    ZERO,
    Active,
    Expression,
    Operand,
    is_active,
    join,
    pack,
    struct,
    taped,
)
from tapegrad.native.twins.compiler import primal_of, twin_of
from tapegrad.native.twins.forms import holds_active

_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


def mark(primal: Compiled) -> None:
    """Let calls of a helper by recording code be preaccumulated."""
    function = primal.py_func
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    if not kinds or any(kind is not _POSITIONAL for kind in kinds):
        raise TypeError(
            f"tg.njit(preaccumulate=True): {function.__name__} takes no arguments, or some that are no "
            "plain positional ones; local Jacobians are by numbers, given by position"
        )
    primal._tapegrad_preaccumulate = True


def lanes_of(kind: Type) -> int:
    """Return how many active numbers a value of this type has."""
    if isinstance(kind, types.BaseTuple):
        return sum(map(lanes_of, kind))
    if isinstance(kind, (types.Array, types.List)) and carries(getattr(kind, "dtype", None)):
        raise TypingError(
            "tapegrad: a helper that is preaccumulated takes numbers and tuples of numbers, found "
            f"{kind}; pass the elements that it uses, or leave preaccumulate out"
        )
    return int(is_active(kind))


def _others(kind: Type) -> bool:
    """Whether a type holds active numbers that have no lanes: those of complex numbers and of instances."""
    if isinstance(kind, types.BaseTuple):
        return any(map(_others, kind))
    return holds_active(kind) and not is_active(kind)


@functools.cache
def _seeded(spec: Spec, lanes: int, first: int) -> Intrinsic:
    """Return ``seed(x)``: active numbers as dual ones with unit vectors, from `first` on, as tangents."""
    dual = Active((lanes, *spec, 0))
    size = components(spec)

    def kind_of(kind: Type) -> Type:
        if isinstance(kind, types.BaseTuple):
            return types.Tuple([kind_of(part) for part in kind])
        return dual if is_active(kind) else kind

    @intrinsic
    def seed(typingctx: TypingContext, x: Type) -> Emission:
        out = kind_of(x)

        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            emit, lane = Emitter(context, builder), iter(range(first, lanes))

            def move(kind: Type, value: Value) -> Value:
                if isinstance(kind, types.BaseTuple):
                    pairs = zip(kind, cgutils.unpack_tuple(builder, value), strict=True)
                    return context.make_tuple(builder, kind_of(kind), [move(k, v) for k, v in pairs])
                if not isinstance(kind, Active):
                    context.nrt.incref(builder, kind, value)
                    return value
                members = [builder.extract_value(value, k) for k in range(size)]
                members += [ir.Constant(F64, 0.0)] * (size * lanes)
                members[size * (1 + next(lane))] = ir.Constant(F64, 1.0)
                return struct(emit, dual, [*members, ZERO, ZERO])

            return move(x, args[0])

        return out(x), code

    return seed


@functools.cache
def _gathered(name: str, spec: Spec, lanes: int) -> Intrinsic:
    """Return ``gather(result, arguments)``: the dual numbers of a result as expressions of the arguments."""
    dual = Active((lanes, *spec, 0))
    kind = Expression(spec, lanes) if lanes <= MAX_LEAVES else Active(spec)

    def kind_of(found: Type) -> Type:
        if isinstance(found, types.BaseTuple):
            return types.Tuple([kind_of(part) for part in found])
        if found == dual:
            return kind
        if not isinstance(found, (*PASSIVE, types.NoneType)):
            raise TypingError(
                f"tapegrad: {name}, a helper that is preaccumulated, returns {found}, where numbers and "
                "tuples of numbers are possible; leave preaccumulate out"
            )
        return types.unliteral(found)

    @intrinsic
    def gather(typingctx: TypingContext, result: Type, arguments: Type) -> Emission:
        out = kind_of(result)

        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            emit = Emitter(context, builder)
            size = components(spec)
            statements, tapes = [], []

            def note(k: Type, value: Value) -> None:
                if isinstance(k, types.BaseTuple):
                    for part, v in zip(k, cgutils.unpack_tuple(builder, value), strict=True):
                        note(part, v)
                elif isinstance(k, Active):
                    statements.append(builder.extract_value(value, size))
                    tapes.append(builder.extract_value(value, size + 1))

            def move(found: Type, value: Value) -> Value:
                if isinstance(found, types.BaseTuple):
                    pairs = zip(found, cgutils.unpack_tuple(builder, value), strict=True)
                    return context.make_tuple(builder, kind_of(found), [move(k, v) for k, v in pairs])
                if found != dual:
                    return context.cast(builder, value, found, types.unliteral(found))
                members = [builder.extract_value(value, k) for k in range(components(dual.spec))]
                number = emit.number((lanes, *spec), members)
                leaves = list(zip(statements, number.tangents, strict=True))
                return pack(emit, kind, Operand(number.primal, join(emit, tapes), leaves))

            note(arguments, args[1])
            return move(result, args[0])

        return out(result, arguments), code

    return gather


def preaccumulated(primal: Compiled, spec: Spec) -> Key:
    """Return the dispatcher that recording code calls in place of a helper's twin."""
    known = vars(primal).setdefault("_tapegrad_preaccumulated", {})
    if spec not in known:
        known[spec] = _compiled(primal, spec)
    return known[spec]


def _compiled(primal: Compiled, spec: Spec) -> Key:
    source = primal.py_func
    names = list(inspect.signature(source).parameters)
    row = ", ".join(names)

    def choose(*kinds: Type) -> Code:
        lanes = [lanes_of(kind) for kind in kinds]
        total = sum(lanes)
        if any(map(_others, kinds)):  # these are recorded as they come
            return _code(f"def impl({row}):\n    return twin({row})", twin=twin_of(primal, spec))
        if not total:
            return _code(f"def impl({row}):\n    return primal({row})", primal=primal)
        space: Namespace = {"inner": twin_of(primal, (total, *spec, 0)), "statement": statement}
        space["gather"] = _gathered(source.__name__, spec, total)
        lines, given, first = [], [], 0
        for name, kind, count in zip(names, kinds, lanes, strict=True):
            if not count:
                given.append(name)
                continue
            if is_active(kind):
                lines.append(f"    {name}_ = statement({name})")
            else:
                parts = "".join(f"statement({name}[{k}]), " for k in range(len(kind)))
                lines.append(f"    {name}_ = ({parts})")
            space[f"seed_{name}"] = _seeded(spec, total, first)
            given.append(f"seed_{name}({name}_)")
            first += count
        moved = "".join(f"{name}_, " for name, count in zip(names, lanes, strict=True) if count)
        body = "\n".join(lines)
        text = f"def impl({row}):\n{body}\n    return gather(inner({', '.join(given)}), ({moved}))"
        return _code(text, **space)

    def stub() -> None:
        """Stands for the helper."""

    space = {"choose": choose, "stub": stub}
    overload(stub)(_code(f"def impl({row}):\n    return choose({row})", **space))
    called = _code(f"def impl({row}):\n    return stub({row})", **space)
    called.__defaults__, called.__module__ = source.__defaults__, source.__module__
    called.__name__ = called.__qualname__ = f"{source.__name__}__preaccumulated"
    found = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)(called)
    found._tapegrad_twin = True
    return found


def _code(text: str, **space: Any) -> python_types.FunctionType:
    exec(text, space)
    return space["impl"]


def asked_for(primal: Compiled, spec: Spec) -> bool:
    """Whether calls of a helper by recording code of this kind are preaccumulated."""
    return taped(spec) and getattr(primal, "_tapegrad_preaccumulate", False)


def twins_of(value: Any, spec: Spec) -> Any:
    """Return the twin of a compiled function; anything else is itself."""
    primal = primal_of(value)
    if primal is None:
        return getattr(value, "_tapegrad_recorded", value)
    return preaccumulated(primal, spec) if asked_for(primal, spec) else twin_of(primal, spec)
