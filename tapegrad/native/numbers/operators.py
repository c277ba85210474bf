"""What operators and the functions of math and NumPy do to active numbers, as Numba types and lowers it.

Which functions have a derivative, and which, `algebra.OPS` knows; here they meet their keys.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import impl_ret_borrowed, lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic

from tapegrad.native.emission.adjoint import UNCHOSEN
from tapegrad.native.emission.algebra import (
    F64,
    I64,
    OPS,
    OTHERS,
    UNROLLED,
    WHERE,
    Emitter,
    Real,
    Spec,
    bit,
    compare,
    components,
    evaluate,
    partial,
    row,
    where,
)
from tapegrad.native.emission.annotations import (
    Builder,
    Context,
    Emission,
    Intrinsic,
    Key,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.numbers.scalar import (
    PASSIVE,
    ZERO,
    Active,
    Expression,
    Operand,
    is_active,
    join,
    pack,
    result_of,
    struct,
    unpack,
)
from tapegrad.native.tapes import record
from tapegrad.ops.primitive import Elementwise, Primitive

KINDS = (Active, Expression)
VALUE_ONLY = tuple(name for name, other in OTHERS.items() if not other.partials)  # without derivative


def _in_place(key: Key) -> Key | None:
    """The operator in place that belongs to an operator of Python, if there is one."""
    python = getattr(key, "__module__", "") == "_operator"
    return getattr(operator, f"i{key.__name__}", None) if python else None


KEYS = OPS | {key: name for f, name in OPS.items() if (key := _in_place(f)) is not None}
INLINE: set[Key] = set()  # what is lowered here, by code that neither loops nor records elsewhere
CHECKED = {operator.truediv, operator.itruediv, operator.mod, operator.imod}  # where Python raises at zero


def spec_of(kinds: Sequence[Type]) -> Spec:
    """Return what tangents the active ones among these types carry."""
    return next(k.spec for k in kinds if is_active(k))


def operands(emit: Emitter, kinds: Sequence[Type], args: Sequence[Value]) -> list[Operand]:
    """Take the arguments of an operation apart."""
    spec = spec_of(kinds)
    return [unpack(emit, kind, value, spec) for kind, value in zip(kinds, args, strict=True)]


def outcome(emit: Emitter, kind: Type, name: str | Primitive, found: Sequence[Operand]) -> Value:
    """Emit a function of operands: its value, and for each leaf the derivative."""
    numbers = [x.number for x in found]
    out = evaluate(name, *numbers)
    leaves = []
    for k, x in enumerate(found):
        if x.leaves:
            d = out.lift(partial(name, k, numbers, out))
            leaves += [(statement, weight * d) for statement, weight in x.leaves]
    return pack(emit, kind, Operand(out, join(emit, [x.tape for x in found]), leaves))


@functools.cache
def recording(op: Elementwise) -> Intrinsic:
    """Return the function of numbers that records an elementwise op."""

    @intrinsic
    def record(typingctx: TypingContext, *xs: Type) -> Emission:
        result = result_of(xs)

        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            emit = Emitter(context, builder)
            found = operands(emit, xs, cgutils.unpack_tuple(builder, args[0]))
            return outcome(emit, result, op, found)

        return result(types.StarArgTuple(xs)), code

    return record


def template(
    key: Key, generic: Callable[[Sequence[Type]], Signature | None], prefer_literal: bool = False
) -> None:
    """Tell Numba how a key is typed."""
    kind = type("ActiveTemplate", (AbstractTemplate,), {
        "key": key, "generic": lambda self, args, kws: None if kws else generic(args),
        "prefer_literal": prefer_literal,
    })  # fmt: skip
    infer_global(key, types.Function(kind))
    INLINE.add(key)


def lower(key: Key, count: int, code: Callable[..., Value]) -> None:
    """Tell Numba how a key is lowered for real operands of which some are active."""
    if count == 1:
        for kind in KINDS:
            lower_builtin(key, kind)(code)
        return
    if count == 3:  # of no function but ours
        lower_builtin(key, types.Any, types.Any, types.Any)(code)
        return
    for kind in KINDS:
        for other in (*KINDS, *PASSIVE):
            lower_builtin(key, kind, other)(code)
        for other in PASSIVE:
            lower_builtin(key, other, kind)(code)


def _register(key: Key, name: str) -> None:
    known = row(name)
    count, in_place = known.arity, key not in OPS

    def generic(args: Sequence[Type]) -> Signature | None:
        if len(args) != count:
            return None
        kinds = args
        if known.llvm == "pow":
            small = isinstance(args[1], types.IntegerLiteral) and abs(args[1].literal_value) <= UNROLLED
            kinds = (types.unliteral(args[0]), args[1] if small else types.unliteral(args[1]))
        result = result_of(kinds)
        if isinstance(result, Expression) and in_place:
            result = Active(result.spec)
        return None if result is None else signature(result, *kinds)

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        emit = Emitter(context, builder)
        found = operands(emit, sig.args, args)
        if key in CHECKED:
            divisor = found[1].number.real().value
            zero = builder.fcmp_ordered("==", divisor, ir.Constant(F64, 0.0))
            with builder.if_then(zero, likely=False):
                words = ("division by zero",) if known.llvm == "fdiv" else ("modulo by zero",)
                record.leave(builder)
                context.error_model.fp_zero_division(builder, words)
        return outcome(emit, sig.return_type, name, found)

    template(key, generic, known.llvm == "pow")
    lower(key, count, code)


for _key, _name in KEYS.items():
    if _name not in VALUE_ONLY:
        _register(_key, _name)


# ---------------------------------------------------------------- what only reads values


def _value_only(key: Key, count: int, result: Type, code: Callable[..., Value]) -> None:
    """A function of values whose result has no derivative."""

    def generic(args: Sequence[Type]) -> Signature | None:
        return signature(result, *args) if len(args) == count and result_of(args) is not None else None

    def emit_code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        emit = Emitter(context, builder)
        return code(emit, *(x.number.real() for x in operands(emit, sig.args, args)))

    template(key, generic)
    lower(key, count, emit_code)


def _whole(name: str) -> Callable[..., Value]:
    def code(emit: Emitter, x: Real) -> Value:
        return emit.builder.fptosi(evaluate(name, x).value, I64)

    return code


def _rounded(name: str) -> Callable[..., Value]:
    return lambda emit, x: evaluate(name, x).value


def _comparison(how: str) -> Callable[..., Value]:
    def code(emit: Emitter, a: Real, b: Real) -> Value:
        builder = emit.builder
        form = builder.fcmp_unordered if how == "!=" else builder.fcmp_ordered
        return form(how, a.value, b.value)

    return code


def _floor_divide(emit: Emitter, a: Real, b: Real) -> Value:
    builder = emit.builder
    zero = builder.fcmp_ordered("==", b.value, ir.Constant(F64, 0.0))
    with builder.if_then(zero, likely=False):
        record.leave(builder)
        emit.context.error_model.fp_zero_division(builder, ("integer division or modulo by zero",))
    return emit.compiled(lambda x, y: np.floor_divide(x, y), [a.value, b.value])


def _test(function: Callable[[float], bool]) -> Callable[..., Value]:
    def code(emit: Emitter, x: Real) -> Value:
        form = signature(types.boolean, types.float64)
        return emit.context.compile_internal(emit.builder, function, form, (x.value,))

    return code


f8, i8, b1 = types.float64, types.int64, types.boolean
for _f, _n in ((math.floor, "floor"), (math.ceil, "ceil"), (math.trunc, "trunc"), (int, "trunc")):
    _value_only(_f, 1, i8, _whole(_n))
for _n in VALUE_ONLY:
    _value_only(getattr(np, _n), 1, f8, _rounded(_n))
for _f, _how in ((operator.lt, "<"), (operator.le, "<="), (operator.gt, ">"), (operator.ge, ">="),
                 (operator.eq, "=="), (operator.ne, "!=")):  # fmt: skip
    _value_only(_f, 2, b1, _comparison(_how))
for _f in (operator.floordiv, operator.ifloordiv, np.floor_divide):
    _value_only(_f, 2, f8, _floor_divide)
_value_only(round, 1, i8, _whole("rint"))
for _f in (math.isnan, np.isnan):
    _value_only(_f, 1, b1, lambda emit, x: emit.builder.fcmp_unordered("uno", x.value, x.value))
for _f in (math.isinf, np.isinf):
    _value_only(_f, 1, b1, _test(lambda x: math.isinf(x)))
for _f in (math.isfinite, np.isfinite):
    _value_only(_f, 1, b1, _test(lambda x: math.isfinite(x)))
for _f in (bool, operator.truth):
    _value_only(_f, 1, b1, lambda emit, x: emit.builder.fcmp_unordered("!=", x.value, ir.Constant(F64, 0.0)))
_value_only(operator.not_, 1, b1,
            lambda emit, x: emit.builder.fcmp_ordered("==", x.value, ir.Constant(F64, 0.0)))  # fmt: skip


# ---------------------------------------------------------------- the same number; choices


def _same(key: Key) -> None:
    template(key, lambda args: signature(args[0], *args) if len(args) == 1 and is_active(args[0]) else None)
    lower(key, 1, lambda context, builder, sig, args: args[0])


for _f in (float, operator.pos, np.positive):
    _same(_f)


def _extreme(key: Key, how: str) -> None:
    """`min` and `max` of several numbers: as Python has it, the first of equal ones."""

    def generic(args: Sequence[Type]) -> Signature | None:
        result = result_of(args) if len(args) >= 2 else None
        return None if result is None else signature(result, *args)

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        emit = Emitter(context, builder)
        found = operands(emit, sig.args, args)
        best, chosen = found[0].number, [ir.Constant(ir.IntType(1), 1)]
        for x in found[1:]:
            better = builder.fcmp_ordered(how, x.number.real().value, best.real().value)
            best = x.number.choose(better, best)
            chosen = [builder.and_(c, builder.not_(better)) for c in chosen] + [better]
        leaves = [  # nothing comes to the others
            (builder.select(c, statement, ZERO), weight)
            for x, c in zip(found, chosen, strict=True)
            for statement, weight in x.leaves
        ]
        return pack(emit, sig.return_type, Operand(best, join(emit, [x.tape for x in found]), leaves))

    template(key, generic)
    lower_builtin(key, types.VarArg(types.Any))(code)


_extreme(min, "<")
_extreme(max, ">")


def _where(args: Sequence[Type]) -> Signature | None:
    result = result_of(args[1:]) if len(args) == 3 else None
    if result is None or not (isinstance(args[0], PASSIVE) or is_active(args[0])):
        return None
    active = Active(result.spec)
    return signature(active, args[0], *(k if isinstance(k, PASSIVE) else active for k in args[1:]))


def _lower_where(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
    """A choice of two numbers: 0 comes to the other, as it does where Tensors choose."""
    emit = Emitter(context, builder)
    condition, *found = operands(emit, sig.args, args)
    truth = compare("!=", condition.number, 0.0)
    out, leaves = where(truth, *(x.number for x in found)), []
    if any(x.leaves for x in found):
        a, b = (x.leaves[0][0] if x.leaves else ZERO for x in found)
        chosen, other = builder.select(bit(truth), a, b), builder.select(bit(truth), b, a)
        leaves = [(chosen, out.lift(1.0)), (other, out.lift(Real(emit, UNCHOSEN)))]
    return pack(emit, sig.return_type, Operand(out, join(emit, [x.tape for x in found]), leaves))


template(WHERE, _where)
lower(WHERE, 3, _lower_where)


# ---------------------------------------------------------------- what the twins' pass inserts


@intrinsic
def statement(typingctx: TypingContext, x: Type) -> Emission:
    """End a statement: an expression becomes an active number, anything else stays what it is."""
    if isinstance(x, Expression):
        return Active(x.spec)(x), lambda cx, b, sig, args: cx.cast(b, args[0], x, sig.return_type)
    return x(x), lambda cx, b, sig, args: impl_ret_borrowed(cx, b, sig.return_type, args[0])


@intrinsic
def promote(typingctx: TypingContext, kind: Type, x: Type) -> Emission:
    """Return a number as an active one of the type whose dtype is given."""
    active = kind.dtype
    return active(kind, x), lambda cx, b, sig, args: cx.cast(b, args[1], x, active)


@intrinsic
def value_of(typingctx: TypingContext, x: Type) -> Emission:
    """Return the value alone, without derivative; what is not active is itself."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        emit = Emitter(context, builder)
        return unpack(emit, x, args[0], x.spec).number.real().value

    if is_active(x):
        return f8(x), code
    return x(x), lambda cx, b, sig, args: impl_ret_borrowed(cx, b, x, args[0])


@intrinsic
def with_value(typingctx: TypingContext, x: Type, value: Type) -> Emission:
    """Return a number with another value and the same derivatives."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        emit = Emitter(context, builder)
        found = unpack(emit, x, args[0], x.spec)
        return pack(emit, x, Operand(found.number.with_value(args[1]), found.tape, found.leaves))

    return (x(x, f8), code) if is_active(x) else (f8(x, f8), lambda cx, b, sig, args: args[1])


INLINE |= {statement, promote, value_of, with_value}

# ---------------------------------------------------------------- numbers and their statements


@intrinsic
def on_tape(typingctx: TypingContext, dtype: Type, values: Type, number: Type, tape: Type) -> Emission:
    """Return an active number: its components, its statement, its tape."""
    active = dtype.dtype

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        emit = Emitter(context, builder)
        parts = cgutils.unpack_tuple(builder, args[1])
        return struct(emit, active, [*parts, args[2], args[3]])

    return active(dtype, values, types.int64, types.int64), code


@intrinsic
def statement_of(typingctx: TypingContext, x: Type) -> Emission:
    """Return the number of the statement that computed a number; 0 where it is on no tape."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        if not isinstance(x, Active):
            return ir.Constant(I64, 0)
        return builder.extract_value(args[0], components(x.spec))

    return types.int64(x), code
