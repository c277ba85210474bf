"""The adjoint of a record: the function that takes the cotangents of its statements to those of their leaves.

Between its statements cotangents go in registers, from and to others through memory. Where nothing came to a
statement it gives nothing, also where a partial is infinite.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, TypeAlias

from llvmlite import ir

from tapegrad.native.emission.algebra import F64, I32, I64, Emitter, Number, Spec, components
from tapegrad.native.emission.annotations import Builder, Type, Value

ADJOINT = ir.FunctionType(ir.VoidType(), [I64, I64, I64])  # cotangents, number before the first, record
FALLIBLE = ir.FunctionType(I32, [I64, I64, I64])  # that of a record of arrays: not 0 with an exception set
NOTHING, NOTHING_BITS = ir.Constant(F64, -0.0), -(1 << 63)  # of a cotangent: as yet nothing came to it
UNCHOSEN = ir.Constant(F64, 0.0)  # this one as a partial: 0 comes to the leaf, whatever came
# What an adjoint knows a component of a partial by: its place in the record, a literal, or an operation.
Weight: TypeAlias = "int | ir.Constant | Computed"
# Its leaves: the place in the record where a statement's number is, or -1 - k for statement k here; weights.
Statement: TypeAlias = "list[tuple[int, list[Weight]]]"


@dataclass(eq=False)
class Computed:
    """What an adjoint computes: the operation, and its operands."""

    name: str
    parts: list[Weight]


class Adjoint:
    """The adjoint of a record while its code is emitted: takes cotangents of statements to their leaves'.

    Attributes
    ----------
    uses
        How often each leaf comes.
    values
        What weights are, as emitted.
    gathered
        Cotangents in registers, by leaf: of statements here, and elsewhere of what is a leaf several times.
    left
        How often each leaf is still to come.
    """

    def __init__(self, emit: Emitter, spec: Spec, statements: list[Statement], outside: list[int]) -> None:
        module = emit.builder.module
        self.function = ir.Function(module, ADJOINT, module.get_unique_name("adjoint_of_record"))
        self.function.linkage = "internal"
        self.builder = ir.IRBuilder(self.function.append_basic_block("adjoint"))
        self.emit = Emitter(emit.context, self.builder)
        self.spec, self.size = spec, components(spec)
        self.uses = Counter(leaf for leaves in statements for leaf, _ in leaves)
        self.cotangents, self.count, self.record = self.function.args
        self.gathered: dict[int, Number] = {}
        self.values: dict[Weight, Value] = {}
        self.left = self.uses.copy()
        numbers = {k: number for number, k in enumerate(outside, 1)}
        for k, leaves in reversed(list(enumerate(statements))):
            self._reverse(self._cotangent(k, numbers.get(k, 0)), leaves)
            self._pass(leaves)
        self.builder.ret_void()

    def _cotangent(self, k: int, number: int) -> Number | None:
        """The cotangent of statement k, if anything can come to it; that in memory is then nothing."""
        gathered = self.gathered.pop(-1 - k, None)
        if not number:
            return gathered
        at = self._place(self.builder.add(self.count, ir.Constant(I64, number)))
        found = self._load(at)
        self._store([NOTHING] * self.size, at)
        return found if gathered is None else found + gathered

    def _reverse(self, ct: Number | None, leaves: Statement) -> None:
        """Emit what takes the cotangent of a statement to those of its leaves."""
        if ct is None:
            return
        given = [(leaf, list(map(self._value, weight))) for leaf, weight in leaves]
        literals = [_literals(weight) for _, weight in given]
        if all(found and 1.0 <= found[0] < math.inf for found in literals):
            self._give(ct, given)  # of nothing that is nothing
        else:
            self._give_what_came(ct, given)

    def _pass(self, leaves: Statement) -> None:
        """Add to memory what was gathered for those leaves elsewhere that are leaves no more."""
        for leaf, _ in leaves:
            self.left[leaf] -= 1
            if leaf >= 0 and not self.left[leaf] and leaf in self.gathered:
                self._add(self.gathered.pop(leaf), leaf)

    def _give(self, ct: Number, leaves: list[tuple[int, list[Value]]]) -> None:
        """Give each leaf its part of a cotangent."""
        for leaf, weight in reversed(leaves):
            part = self._part(ct, weight)
            if leaf >= 0 and self.uses[leaf] == 1:
                self._add(part, leaf)
            else:
                self.gathered[leaf] = self.gathered[leaf] + part if leaf in self.gathered else part

    def _value(self, weight: Weight) -> Value:
        """A component of a partial, emitted once, where it stands for all that follows."""
        if isinstance(weight, ir.Constant):
            return weight
        if weight not in self.values:
            if isinstance(weight, int):
                found = self.builder.load(pointer(self.builder, self.record, weight, F64), align=8)
            else:
                found = getattr(self.builder, weight.name)(*map(self._value, weight.parts))
            self.values[weight] = found
        return self.values[weight]

    def _part(self, ct: Number, partial: list[Value]) -> Number:
        """A cotangent times a partial; its zero is positive, as the negative one says that nothing came."""
        zero, literals = ir.Constant(F64, 0.0), _literals(partial)
        if partial[0] is UNCHOSEN:
            return ct.lift(0.0).with_value(zero)
        if literals and literals[0] == 0.0:  # a factor, whose product with infinity is to be computed
            literals[0] = partial[0]
        weight = self.emit.number(self.spec, literals or partial)
        part, builder = ct * weight, self.builder
        c, w = ct.real(), weight.real()
        if w.literal is not None and w.literal >= 1.0:
            return part
        if w.literal == -1.0:
            return part.with_value(builder.fsub(zero, c.value))
        form = ir.FunctionType(F64, [F64] * 3)
        multiply_add = builder.module.declare_intrinsic("llvm.fmuladd", [F64], form)
        return part.with_value(builder.call(multiply_add, [c.value, w.value, zero]))

    def _give_what_came(self, ct: Number, leaves: list[tuple[int, list[Value]]]) -> None:
        """As `_give`, of what something came to; tangents that are zero move nothing."""
        builder = self.builder
        first, *rest = ct.flat()
        came = builder.icmp_signed("!=", builder.bitcast(first, I64), ir.Constant(I64, NOTHING_BITS))
        if rest:
            tangents = _any_nonzero(builder, rest)
            self._give_where(tangents, ct, leaves)
            came = builder.and_(came, builder.not_(tangents))
            ct = self.emit.number(self.spec, [first] + [0.0] * len(rest))
        self._give_where(came, ct, leaves)

    def _give_where(self, condition: Value, ct: Number, leaves: list[tuple[int, list[Value]]]) -> None:
        """As `_give`, where a condition holds."""
        builder = self.builder
        before, known = builder.block, dict(self.gathered)
        nothing = self.emit.number(self.spec, [-0.0] + [0.0] * (self.size - 1))
        with builder.if_then(condition, likely=True):
            self._give(ct, leaves)
            after = builder.block
        for leaf, total in self.gathered.items():
            if total is not known.get(leaf):
                pairs = zip(known.get(leaf, nothing).flat(), total.flat(), strict=True)
                parts = [phi(builder, (a, before), (b, after)) for a, b in pairs]
                self.gathered[leaf] = self.emit.number(self.spec, parts)

    def _add(self, part: Number, offset: int) -> None:
        """Add to the cotangent of the statement elsewhere whose number is at this offset of the record."""
        number = self.builder.load(pointer(self.builder, self.record, offset, I32), align=4)
        at = self._place(self.builder.zext(number, I64))
        self._store((self._load(at) + part).flat(), at)

    def _place(self, number: Value) -> list[Value]:
        """Where the cotangent of a statement is in memory, component by component."""
        offset = self.builder.mul(number, ir.Constant(I64, 8 * self.size))
        return self._words(self.builder.add(self.cotangents, offset), 0)

    def _words(self, address: Value, offset: int) -> list[Value]:
        """Where a number's components are that begins at an offset from an address."""
        return [pointer(self.builder, address, offset + 8 * q, F64) for q in range(self.size)]

    def _load(self, at: list[Value]) -> Number:
        return self.emit.number(self.spec, [self.builder.load(p, align=8) for p in at])

    def _store(self, values: list[Value], at: list[Value]) -> None:
        for value, p in zip(values, at, strict=True):
            self.builder.store(value, p, align=8)


def _literals(weight: list[Value]) -> list[Any]:
    """The components of a partial if they are literals, else none."""
    found = [w.constant for w in weight if isinstance(w, ir.Constant)]
    return found if len(found) == len(weight) else []


def _any_nonzero(builder: Builder, values: list[Value]) -> Value:
    found = None
    for value in values:
        one = builder.fcmp_unordered("!=", value, ir.Constant(F64, 0.0))
        found = one if found is None else builder.or_(found, one)
    return found


def phi(builder: Builder, *incoming: tuple[Value, ir.Block]) -> Value:
    found = builder.phi(incoming[0][0].type)
    for value, block in incoming:
        found.add_incoming(value, block)
    return found


def pointer(builder: Builder, address: Value, offset: int, kind: Type) -> Value:
    place = builder.add(address, ir.Constant(I64, offset)) if offset else address
    return builder.inttoptr(place, kind.as_pointer())
