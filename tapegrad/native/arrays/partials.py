"""Cotangents times partials, emitted for numbers with any tangents that lie in memory.

Told Numba as text, these products took it three quarters of the time to compile a module for numbers with
eight components, and minutes for numbers with twenty-five.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from tapegrad.native.arrays.array_layout import UNCHOSEN
from tapegrad.native.emission.adjoint import NOTHING, NOTHING_BITS
from tapegrad.native.emission.algebra import F64, I64, Spec, components, products
from tapegrad.native.emission.annotations import (
    Builder,
    Context,
    Emission,
    Intrinsic,
    Signature,
    Type,
    TypingContext,
    Value,
)

_ZERO = ir.Constant(F64, 0.0)


def _place(builder: Builder, address: Value, index: Value, kind: Type = F64) -> Value:
    return builder.gep(builder.inttoptr(address, kind.as_pointer()), [index], inbounds=True)


def _places(builder: Builder, address: Value, first: Value, step: Value, size: int) -> list[Value]:
    """Where components are, the first so many numbers from an address, others a step apart each."""
    offsets = [builder.mul(step, ir.Constant(I64, q)) for q in range(size)]
    return [_place(builder, address, builder.add(first, offset)) for offset in offsets]


def _has_bits(builder: Builder, address: Value, index: Value, bits: int) -> Value:
    word = builder.load(_place(builder, address, index, I64))
    return builder.icmp_signed("==", word, ir.Constant(I64, bits))


def _side_by_side(builder: Builder, address: Value, i: Value, size: int) -> tuple[Value, list[Value]]:
    """Where number i begins of those that lie side by side, and its components."""
    first = builder.mul(i, ir.Constant(I64, size))
    return first, _places(builder, address, first, ir.Constant(I64, 1), size)


@intrinsic
def at_full_width(typingctx: TypingContext) -> Emission:
    """Let loops of the function that calls this use the widest vectors, of which LLVM's default is half."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), code


@functools.cache
def times(spec: Spec, own: bool) -> Intrinsic:
    """Return ``part(cotangents, i, partials, k, step, factor)``: what a leaf is given of cotangent i.

    Cotangents lie side by side; component q of the partial is at `k` and q steps, and is multiplied by the
    factor if it is not shared. Where nothing came it is nothing that is given; of partials of their own, not
    shared, some may be `UNCHOSEN`.
    """
    size = components(spec)
    result = types.UniTuple(types.float64, size)

    @intrinsic
    def part(
        typingctx: TypingContext, cotangents: Type, i: Type, partials: Type, k: Type, step: Type, factor: Type
    ) -> Emission:
        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            address, i, partials, k, step, factor = args
            first, places = _side_by_side(builder, address, i, size)
            c = [builder.load(place) for place in places]
            p = [builder.load(place) for place in _places(builder, partials, k, step, size)]
            p = [builder.fmul(x, factor) for x in p] if own else p
            nothing = _has_bits(builder, address, first, NOTHING_BITS)
            found, nothing = _product(builder, spec, c, p, nothing)
            if own:
                unchosen = _has_bits(builder, partials, k, UNCHOSEN)
                zeros = [_ZERO, *(builder.fadd(x, _ZERO) for x in p[1:])]
                zeros = [builder.select(nothing, NOTHING, zero) for zero in zeros]
                found = [builder.select(unchosen, *pair) for pair in zip(zeros, found, strict=True)]
            return context.make_tuple(builder, result, found)

        return result(*[types.int64] * 5, types.float64), code

    return part


def _product(
    builder: Builder, spec: Spec, c: list[Value], p: list[Value], nothing: Value
) -> tuple[list[Value], Value]:
    """Emit a cotangent times a partial, and whether nothing came; tangents of 0 add nothing, not even nan."""

    def alone() -> list[Value]:
        parts = [builder.fadd(builder.fmul(c[0], x), _ZERO) for x in p]
        return [builder.select(nothing, NOTHING, part) for part in parts]

    if len(c) == 1:
        return alone(), nothing
    varies = functools.reduce(builder.or_, [builder.fcmp_unordered("!=", x, _ZERO) for x in c[1:]])
    with builder.if_else(varies) as (then, otherwise):
        with then:
            terms: list[list[Value]] = [[] for _ in p]
            for i, j, k in products(spec):
                terms[k].append(builder.fmul(c[i], p[j]))
            whole = [builder.fadd(functools.reduce(builder.fadd, each), _ZERO) for each in terms]
            moving = builder.block
        with otherwise:
            other, still = alone(), builder.block
    found = []
    for x, y in zip(whole, other, strict=True):
        found.append(builder.phi(F64))
        found[-1].add_incoming(x, moving)
        found[-1].add_incoming(y, still)
    return found, builder.and_(nothing, builder.not_(varies))


@intrinsic
def add(typingctx: TypingContext, address: Type, i: Type, parts: Type) -> Emission:
    """Add to the components of number i of those that lie side by side."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        address, i, parts = args
        values = cgutils.unpack_tuple(builder, parts)
        for place, value in zip(_side_by_side(builder, address, i, len(values))[1], values, strict=True):
            builder.store(builder.fadd(builder.load(place), value), place)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, parts), code


@intrinsic
def plus(typingctx: TypingContext, total: Type, parts: Type) -> Emission:
    """Return the sums of the components of two numbers."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        pairs = zip(*(cgutils.unpack_tuple(builder, x) for x in args), strict=True)
        return context.make_tuple(builder, parts, [builder.fadd(a, b) for a, b in pairs])

    return parts(parts, parts), code


GIVE = '''
part_{whose} = times({spec}, {own})


@inner_njit
def give_{many}_{whose}(cotangents, to, how, count, c, p, factor):
    """Add to the cotangents of a block's leaves those of its results, {many}, times partials, {whose}."""
    at_full_width()
    first = cotangents + 8 * COMPONENTS * (how >> 2)
    if how & 3 == ONE_BY_ONE:
        for i in range(count):
            add(first, i, part_{whose}(c, {at}, p, {of}, {step}, factor))
    elif how & 3 == REPEATED:
        many, begin, end = get(to, 1), get(to, 2), 0
        while end < count:
            start, end = end, min(end + many - begin, count)
            for i in range(start, end):
                add(first, begin + i - start, part_{whose}(c, {at}, p, {of}, {step}, factor))
            begin = 0
    elif how & 3 == SINGLY:
        total = NONE
        for i in range(count):
            total = plus(total, part_{whose}(c, {at}, p, {of}, {step}, factor))
        add(first, 0, total)
    else:
        numbers = array_at(to + 8, (count,), np.uint32)
        for i in range(count):
            add(cotangents, np.int64(numbers[i]), part_{whose}(c, {at}, p, {of}, {step}, factor))
'''


def giving(spec: Spec) -> str:
    """Return the text of functions that give cotangents to the leaves of a record of arrays.

    Where nothing came to one, it is nothing that is given.
    """
    found = ["NONE = (-0.0,) * COMPONENTS"]
    for many, at in (("each", "i"), ("one", "0")):
        for whose, of, step in (("own", "i", "count"), ("common", "0", "1")):
            found.append(
                GIVE.format(spec=spec, many=many, whose=whose, own=whose == "own", at=at, of=of, step=step)
            )
    return "\n".join(found)
