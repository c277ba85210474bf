"""Arguments of compiled derivatives: into recording code as active numbers, and their cotangents out of it.

Emitted as LLVM's code: as functions that Numba compiles for each type they took half the time of a gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numba.np import arrayobj

from tapegrad.native.arrays.argument_arrays import ArgumentArray, argument, fits
from tapegrad.native.arrays.copied_arguments import active_array, active_number, elements
from tapegrad.native.emission.adjoint import NOTHING
from tapegrad.native.emission.algebra import F64, I64, Spec, components
from tapegrad.native.emission.annotations import (
    Builder,
    Context,
    Emission,
    Intrinsic,
    Signature,
    TupleType,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.numbers.scalar import Active
from tapegrad.native.twins import forms

REAL = (types.Float, types.Integer)
PASSIVE = (*REAL, types.Boolean)


def _moving(kind: Type) -> bool:
    """Whether an argument of this type can be differentiated by."""
    return isinstance(kind, REAL) or (isinstance(kind, types.Array) and isinstance(kind.dtype, types.Float))


def _fits(kind: Type, tangent: Type, flat: bool) -> bool:
    """Whether values of a type are tangents of an argument."""
    if isinstance(kind, types.Array):
        found = isinstance(tangent, types.Array) and isinstance(tangent.dtype, PASSIVE)
        return found and tangent.ndim == (1 if flat else kind.ndim)
    return isinstance(tangent, PASSIVE)


def _count(context: Context, builder: Builder, kind: Type, value: Value) -> Value:
    """How many numbers an argument has."""
    if isinstance(kind, types.Array):
        return arrayobj.make_array(kind)(context, builder, value).nitems
    return ir.Constant(I64, 1)


@functools.cache
def sizing(moving: tuple[int, ...], flat: bool = False) -> Intrinsic:
    """Return ``size(args, tangents)``: how many numbers move; raises where tangents are of another shape.

    They may be flat where that is said, arrays of one dimension.
    """

    @intrinsic
    def size(typingctx: TypingContext, args: TupleType, tangents: TupleType) -> Emission:
        for q, k in enumerate(moving):
            if k >= len(args) or not _moving(args[k]):
                found = args[k] if k < len(args) else "nothing"
                raise TypingError(
                    f"tapegrad: derivative by argument {k}: a float or an array of floats "
                    f"is wanted, found {found}"
                )
            for tangent in tangents[q]:
                if not _fits(args[k], tangent, flat):
                    raise TypingError(
                        f"tapegrad: a direction of argument {k} is of its shape, {args[k]}; found {tangent}"
                    )

        def code(context: Context, builder: Builder, sig: Signature, values: Sequence[Value]) -> Value:
            parts, total = cgutils.unpack_tuple(builder, values[0]), ir.Constant(I64, 0)
            lanes = cgutils.unpack_tuple(builder, values[1])
            for q, k in enumerate(moving):
                total = builder.add(total, _count(context, builder, args[k], parts[k]))
                rows = cgutils.unpack_tuple(builder, lanes[q]) if len(tangents[q]) else ()
                for kind, row in zip(tangents[q], rows, strict=True):
                    _see_that_it_fits(context, builder, (args[k], kind), (parts[k], row))
            return total

        return types.int64(args, tangents), code

    return size


def _see_that_it_fits(
    context: Context, builder: Builder, kinds: Sequence[Type], values: Sequence[Value]
) -> None:
    """Emit the comparison of the shapes of an argument and a tangent, which may be flat."""
    if not isinstance(kinds[0], types.Array):
        return
    pair = [arrayobj.make_array(k)(context, builder, v) for k, v in zip(kinds, values, strict=True)]
    sizes = [
        cgutils.unpack_tuple(builder, array.shape, kinds[0].ndim)
        if kinds[0].ndim == kinds[1].ndim
        else [array.nitems]
        for array in pair
    ]
    for one, other in zip(*sizes, strict=True):
        with cgutils.if_unlikely(builder, builder.icmp_signed("!=", one, other)):
            words = "a direction has another shape than the argument that it is a direction of"
            context.call_conv.return_user_exc(builder, ValueError, (words,))


def entering(moving: tuple[int, ...], spec: Spec, read: Callable[[], dict[int, int]] = dict) -> Intrinsic:
    """Return ``enter(args, tangents, tape)``: the arguments, those that move as active numbers on a tape.

    `tangents` has a tuple for each that moves, of what is alike in shape, or flat, for each lane. Those that
    expressions alone `read`, which is asked for when it is compiled, stay arrays of floats if they have as
    many axes.
    """

    @intrinsic
    def enter(typingctx: TypingContext, args: TupleType, tangents: TupleType, tape: Type) -> Emission:
        active = Active(spec)
        kinds = [forms.recorded(kind, spec, floats=False) for kind in args]
        for k in moving:
            array = isinstance(kinds[k], types.Array)
            least = read().get(k) if spec == () else None
            if least is not None and fits(args[k]) and args[k].ndim >= least:
                kinds[k] = ArgumentArray(args[k].ndim)
            else:
                kinds[k] = types.Array(active, kinds[k].ndim, "C") if array else active
        out = types.Tuple(kinds)

        def code(context: Context, builder: Builder, sig: Signature, values: Sequence[Value]) -> Value:
            parts = cgutils.unpack_tuple(builder, values[0])
            lanes = cgutils.unpack_tuple(builder, values[1])
            numbers, number = {}, ir.Constant(I64, 1)  # in the order in which cotangents leave
            for k in moving:
                numbers[k] = number
                number = builder.add(number, _count(context, builder, args[k], parts[k]))
            done = []
            for k, (kind, value) in enumerate(zip(args, parts, strict=True)):
                if k not in moving:
                    context.nrt.incref(builder, kind, value)
                    done.append(value)
                    continue
                of = tangents[moving.index(k)]
                rows = cgutils.unpack_tuple(builder, lanes[moving.index(k)]) if len(of) else []
                sources, given = [kind, *of], [value, *rows]
                if isinstance(kinds[k], ArgumentArray):
                    words = value, numbers[k], values[2]
                    context.nrt.incref(builder, kind, value)
                    done.append(argument(context, builder, kinds[k], *words))
                elif isinstance(kind, types.Array):
                    done.append(
                        active_array(context, builder, kinds[k], sources, given, numbers[k], values[2])
                    )
                else:
                    done.append(
                        active_number(context, builder, active, sources, given, numbers[k], values[2])
                    )
            return context.make_tuple(builder, out, done)

        return out(args, tangents, types.int64), code

    return enter


@functools.cache
def leaving(moving: tuple[int, ...], spec: Spec, lanes: tuple[int, ...]) -> Intrinsic:
    """Return ``leave(args, cotangents)``: of those lanes the cotangents of the arguments that move.

    Where they have one component alone they are taken, so that nothing came to them after.
    """
    count = components(spec)
    read = _take if count == 1 else _read

    @intrinsic
    def leave(typingctx: TypingContext, args: TupleType, cotangents: Type) -> Emission:
        kinds = [
            types.Array(types.float64, args[k].ndim, "C")
            if isinstance(args[k], types.Array)
            else types.float64
            for k in moving
        ]
        each = kinds[0] if len(kinds) == 1 else types.Tuple(kinds)
        out = types.Tuple([each] * len(lanes))

        def code(context: Context, builder: Builder, sig: Signature, values: Sequence[Value]) -> Value:
            parts = cgutils.unpack_tuple(builder, values[0])
            memory = builder.inttoptr(values[1], F64.as_pointer())
            rows = []
            for lane in lanes:
                number, found = ir.Constant(I64, 1), []
                for kind, k in zip(kinds, moving, strict=True):
                    start = builder.add(builder.mul(number, ir.Constant(I64, count)), ir.Constant(I64, lane))
                    source = builder.gep(memory, [start])
                    if isinstance(kind, types.Array):
                        array = arrayobj.make_array(args[k])(context, builder, parts[k])
                        shape = cgutils.unpack_tuple(builder, array.shape, kind.ndim)
                        made = arrayobj._empty_nd_impl(context, builder, kind, shape)
                        _copy(builder, source, count, made.data, made.nitems, read)
                        found.append(made._getvalue())
                    else:
                        found.append(read(builder, source))
                    number = builder.add(number, _count(context, builder, args[k], parts[k]))
                rows.append(found[0] if len(kinds) == 1 else context.make_tuple(builder, each, found))
            return context.make_tuple(builder, out, rows)

        return out(args, types.int64), code

    return leave


def _copy(
    builder: Builder,
    source: Value,
    step: int,
    target: Value,
    n: Value,
    read: Callable[[Builder, Value], Value],
) -> None:
    """Emit the copying of n numbers, each so many after the one before, to memory in a row."""
    with cgutils.for_range(builder, n) as loop:
        at = builder.gep(source, [builder.mul(loop.index, ir.Constant(I64, step))])
        builder.store(read(builder, at), builder.gep(target, [loop.index]), align=8)


def _read(builder: Builder, place: Value) -> Value:
    """Emit the reading of a cotangent; where nothing came to it, it is 0."""
    return builder.fadd(builder.load(place, align=8), ir.Constant(F64, 0.0))


def _take(builder: Builder, place: Value) -> Value:
    """Emit the reading of a cotangent, to which nothing came then."""
    found = _read(builder, place)
    builder.store(NOTHING, place, align=8)
    return found


def mapped(
    context: Context,
    builder: Builder,
    kind: types.Array,
    value: Value,
    take: Callable[[Type, Value], Value],
) -> Value:
    """Emit a new array of floats, in the order of C: what is taken of each element of an array."""
    source, out_kind = (
        arrayobj.make_array(kind)(context, builder, value),
        types.Array(types.float64, kind.ndim, "C"),
    )
    shape = cgutils.unpack_tuple(builder, source.shape, kind.ndim)
    out = arrayobj._empty_nd_impl(context, builder, out_kind, shape)
    with elements(context, builder, [kind], [source]) as (place, pointers):
        found = take(kind.dtype, arrayobj.load_item(context, builder, kind, pointers[0]))
        builder.store(found, builder.gep(out.data, [place]))
    return out._getvalue()


@intrinsic
def put_row(typingctx: TypingContext, matrix: Type, k: Type, row: Type) -> Emission:
    """Write an array or a number as row k of a matrix, both in the order of C."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        out = arrayobj.make_array(matrix)(context, builder, args[0])
        source = arrayobj.make_array(row)(context, builder, args[2])
        start = builder.gep(out.data, [builder.mul(args[1], source.nitems)])
        _copy(builder, source.data, 1, start, source.nitems, _read)
        return context.get_dummy_value()

    return types.void(matrix, k, row), code


@intrinsic
def new_matrix(typingctx: TypingContext, rows: Type, columns: Type) -> Emission:
    """Return a matrix that nothing was written to."""
    kind = types.Array(types.float64, 2, "C")

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        return arrayobj._empty_nd_impl(context, builder, kind, args)._getvalue()

    return kind(types.int64, types.int64), code
