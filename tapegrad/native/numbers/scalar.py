"""The types of what records inside compiled code: an active number, and an expression of active numbers.

An active number is its value, the number of the statement that computed it, and the address of the tape:
threads record on tapes of their own, and a constant, on no tape, records nothing. Operations give
expressions, which hold their leaves with a partial derivative each; becoming a number again, where it is
stored, named or joined with another, an expression is recorded as one statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

from llvmlite import ir
from llvmlite.ir import instructions
from numba.core import types
from numba.core.imputils import lower_cast, lower_constant
from numba.core.typeconv import Conversion
from numba.extending import models, register_model

from tapegrad.native.emission.algebra import F64, I64, Emitter, Number, Real, Spec, components
from tapegrad.native.emission.annotations import (
    Builder,
    Context,
    DataModelManager,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.tapes.record import origin, push

MAX_LEAVES = 16  # of an expression; a longer one is recorded in parts
PASSIVE = (types.Float, types.Integer, types.Boolean)


class Active(types.Type):
    """A float64 with a derivative; `spec` says what tangents it carries (`algebra.components`)."""

    mutable = True  # so Numba keeps `x += y` an update, whose result has the type of x

    def __init__(self, spec: Spec = ()) -> None:
        self.spec = spec
        super().__init__(f"active_float64{list(spec) if spec else ''}")

    def can_convert_from(self, typingctx: TypingContext, other: Type) -> Conversion | None:
        """As float64: from any real number; from an expression by recording it."""
        if isinstance(other, PASSIVE):
            return Conversion.safe
        return Conversion.promote if isinstance(other, Expression) and other.spec == self.spec else None

    def unify(self, typingctx: TypingContext, other: Type) -> Type | None:
        """Where paths of the program meet, all values become active numbers."""
        return self if isinstance(other, (*PASSIVE, Expression)) else None


class Expression(types.Type):
    """A value that is not recorded yet, with so many leaves."""

    mutable = True

    def __init__(self, spec: Spec, leaves: int) -> None:
        self.spec, self.leaves = spec, leaves
        super().__init__(f"active_expression{list(spec) if spec else ''}({leaves})")

    def unify(self, typingctx: TypingContext, other: Type) -> Type | None:
        """As an active number."""
        return Active(self.spec) if isinstance(other, (*PASSIVE, Expression)) else None


@register_model(Active)
class _ActiveModel(models.StructModel):
    def __init__(self, manager: DataModelManager, kind: Active) -> None:
        values = [(f"v{k}", types.float64) for k in range(components(kind.spec))]
        super().__init__(manager, kind, [*values, ("statement", types.int64), ("tape", types.int64)])


@register_model(Expression)
class _ExpressionModel(models.StructModel):
    def __init__(self, manager: DataModelManager, kind: Expression) -> None:
        count = components(kind.spec)
        members = [(f"v{k}", types.float64) for k in range(count)] + [("tape", types.int64)]
        for q in range(kind.leaves):
            members.append((f"s{q}", types.int64))
            members += [(f"p{q}_{k}", types.float64) for k in range(count)]
        super().__init__(manager, kind, members)


class Operand(NamedTuple):
    """A value while code is emitted: the number, the tape's address, and the leaves with their partials."""

    number: Number
    tape: Value
    leaves: list[tuple[Value, Number]]


ZERO = ir.Constant(I64, 0)


def is_active(kind: Type) -> TypeGuard[Active | Expression]:
    """Whether this is the type of an active number or expression."""
    return isinstance(kind, (Active, Expression))


def leaves_of(kind: Type) -> int:
    """Return how many leaves a value of this type has."""
    if isinstance(kind, Expression):
        return kind.leaves
    return int(isinstance(kind, Active) and taped(kind.spec))


def taped(spec: Spec) -> bool:
    """Whether numbers of this kind are recorded."""
    return spec[-1:] != (0,)


def order_of(spec: Spec) -> int:
    """Return of which order the derivatives are that numbers of this kind carry, the sweep's among them."""
    return sum(1 if lanes > 0 else -lanes for lanes in spec) + taped(spec)


def result_of(kinds: Sequence[Type]) -> Type | None:
    """Return the type of an operation on such values; None unless some are active and the rest real."""
    spec = next((k.spec for k in kinds if is_active(k)), None)
    if spec is None or not all(isinstance(k, PASSIVE) or (is_active(k) and k.spec == spec) for k in kinds):
        return None
    leaves = sum(map(leaves_of, kinds))
    return Expression(spec, leaves) if 0 < leaves <= MAX_LEAVES else Active(spec)


def unpack(emit: Emitter, kind: Type, value: Value, spec: Spec) -> Operand:
    """Take a value of Numba's apart."""
    builder = emit.builder
    if isinstance(kind, PASSIVE):
        literal = getattr(kind, "literal_value", None)
        if literal is None:
            literal = emit.context.cast(builder, value, kind, types.float64)
        zero = emit.number(spec, [0.0] * components(spec))
        return Operand(zero.lift(Real(emit, literal)), ZERO, [])
    count = components(spec)
    member = [_member(builder, value, k) for k in range(len(value.type.elements))]
    tape = member[count + isinstance(kind, Active)]
    active = builder.icmp_signed("!=", tape, ZERO) if len(spec) and taped(spec) else True
    number = emit.number(spec, member[:count], active)
    if isinstance(kind, Active):
        if not taped(spec):
            return Operand(number, ZERO, [])
        return Operand(number, tape, [(member[count], number.lift(1.0))])
    leaves = []
    for q in range(kind.leaves):
        at = count + 1 + q * (1 + count)
        leaves.append((member[at], emit.number(spec, member[at + 1 : at + 1 + count])))
    return Operand(number, tape, leaves)


def _member(builder: Builder, value: Value, k: int) -> Value:
    """Member k of a struct; where the struct was put together here, what was put in."""
    while isinstance(value, instructions.InsertValue):
        if value.indices == [k]:
            return value.operands[1]
        value = value.operands[0]
    return builder.extract_value(value, k)


def merged(leaves: list[tuple[Value, Number]]) -> list[tuple[Value, Number]]:
    """Return leaves with those that are surely one number, as both in x * x, one entry each."""
    found: dict[Value, tuple[Value, Number]] = {}
    for statement, weight in leaves:
        key = origin(statement)
        before = found.get(key)
        found[key] = (statement, weight if before is None else before[1] + weight)
    return list(found.values())


def pack(emit: Emitter, kind: Type, found: Operand) -> Value:
    """Make a value of Numba's; for an active number what has leaves is recorded."""
    values = found.number.flat()
    if isinstance(kind, Active):
        statement, tape = push(emit, kind.spec, found.tape, merged(found.leaves), values)
        return struct(emit, kind, [*values, statement, tape])
    members = [*values, found.tape]
    for statement, partial in found.leaves:
        members += [statement, *partial.flat()]
    return struct(emit, kind, members)


def struct(emit: Emitter, kind: Type, members: list[Value]) -> Value:
    """Make a value of Numba's of its members."""
    value = ir.Constant(emit.context.get_value_type(kind), ir.Undefined)
    for k, member in enumerate(members):
        value = emit.builder.insert_value(value, member, k)
    return value


def constant(emit: Emitter, kind: Active, number: Number) -> Value:
    """Make an active number that is on no tape."""
    return struct(emit, kind, [*number.flat(), ZERO, ZERO])


def join(emit: Emitter, tapes: list[Value]) -> Value:
    """Return the one tape of several operands, each of them on it or on none."""
    found = ZERO
    for tape in tapes:
        if tape is not ZERO:
            found = tape if found is ZERO else emit.builder.or_(found, tape)
    return found


def _cast_passive(context: Context, builder: Builder, source: Type, target: Type, value: Value) -> Value:
    emit = Emitter(context, builder)
    return constant(emit, target, unpack(emit, source, value, target.spec).number)


for _kind in PASSIVE:
    lower_cast(_kind, Active)(_cast_passive)


@lower_cast(Expression, Active)
def _cast_expression(context: Context, builder: Builder, source: Type, target: Type, value: Value) -> Value:
    emit = Emitter(context, builder)
    return pack(emit, target, unpack(emit, source, value, target.spec))


@lower_constant(Active)
def _constant(context: Context, builder: Builder, kind: Type, value: Value) -> Value:
    numbers = [float(value)] + [0.0] * (components(kind.spec) - 1)
    return ir.Constant.literal_struct([ir.Constant(F64, v) for v in numbers] + [ZERO, ZERO])
