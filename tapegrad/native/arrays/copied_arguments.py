"""Arguments of compiled derivatives as arrays of active numbers, which are copies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np import arrayobj

from tapegrad.native.arrays.argument_arrays import parts_of
from tapegrad.native.emission.algebra import F64, I64, Emitter, components
from tapegrad.native.emission.annotations import (
    Builder,
    Context,
    Emission,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.numbers.scalar import Active, struct
from tapegrad.native.tapes.buffers import empty_array


@contextlib.contextmanager
def elements(
    context: Context, builder: Builder, kinds: Sequence[types.Array], arrays: Sequence[Any]
) -> Iterator[tuple[Value, list[Value]]]:
    """Emit a loop over the elements of arrays: how many were before, and pointers to those of each.

    They are alike in shape to the first, or flat.
    """
    first, kind = arrays[0], kinds[0]
    if all(one.layout == "C" for one in kinds):
        with cgutils.for_range(builder, first.nitems) as loop:
            yield loop.index, [builder.gep(array.data, [loop.index]) for array in arrays]
        return
    shape = cgutils.unpack_tuple(builder, first.shape, kind.ndim)
    with cgutils.loop_nest(builder, shape, I64) as indices:
        place = ir.Constant(I64, 0)
        for n, i in zip(shape, indices, strict=True):
            place = builder.add(builder.mul(place, n), i)
        pointers = []
        for one, array in zip(kinds, arrays, strict=True):
            at = indices if one.ndim == kind.ndim else (place,)
            pointers.append(cgutils.get_item_pointer(context, builder, one, array, at))
        yield place, pointers


def active_number(
    context: Context,
    builder: Builder,
    active: Active,
    kinds: Sequence[Type],
    values: Sequence[Value],
    statement: Value,
    tape: Value,
) -> Value:
    """Emit an active number of its value and tangents; those left out are 0."""
    parts = [context.cast(builder, v, k, types.float64) for k, v in zip(kinds, values, strict=True)]
    parts += [ir.Constant(F64, 0.0)] * (components(active.spec) - len(parts))
    return struct(Emitter(context, builder), active, [*parts, statement, tape])


def active_array(
    context: Context,
    builder: Builder,
    kind: types.Array,
    kinds: Sequence[types.Array],
    values: Sequence[Value],
    first: Value,
    tape: Value,
) -> Value:
    """Emit a new array of active numbers, in the order of C; without a tape they have no statements."""
    mask = builder.sext(builder.icmp_signed("!=", tape, ir.Constant(I64, 0)), I64)
    sources = [arrayobj.make_array(k)(context, builder, v) for k, v in zip(kinds, values, strict=True)]
    shape = cgutils.unpack_tuple(builder, sources[0].shape, kind.ndim)
    out = empty_array(context, builder, kind, shape)
    with elements(context, builder, kinds, sources) as (place, pointers):
        loaded = [arrayobj.load_item(context, builder, k, p) for k, p in zip(kinds, pointers, strict=True)]
        dtypes = [k.dtype for k in kinds]
        statement = builder.and_(builder.add(first, place), mask)
        number = active_number(context, builder, kind.dtype, dtypes, loaded, statement, tape)
        arrayobj.store_item(context, builder, kind, number, builder.gep(out.data, [place]))
    return out._getvalue()


@intrinsic
def expanded(typingctx: TypingContext, x: Type) -> Emission:
    """Return an array that is an argument as an array of active numbers."""
    kind = types.Array(x.dtype, x.ndim, "C")

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        floats, first, tape = parts_of(context, builder, x, args[0])
        return active_array(context, builder, kind, [x.floats], [floats], first, tape)

    return kind(x), code
