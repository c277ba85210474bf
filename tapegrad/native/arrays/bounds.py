"""Indices that lie outside of an array, in code that records: an error, where Numba goes on.

What lies there is no active number: its tape would be any address.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.np import arrayobj

from tapegrad.native.arrays.copied_arguments import elements
from tapegrad.native.emission.algebra import I8, I64
from tapegrad.native.emission.annotations import Builder, Context, Type, Value
from tapegrad.native.tapes import record

_FLAT = (
    "index %lld is out of bounds for size %lld (Numba counts none from the end of flat): "
    "{words} of shape {shape}"
)
_SIZED = "index %lld is out of bounds for axis {axis} with size %lld: {words} of shape {shape}"
_MASK = "a boolean index of size %lld does not fit axis {axis} of size %lld: {words} of shape {shape}"


def check_index(
    context: Context, builder: Builder, kind: Type, array: Value, index: tuple[Type, Value], words: str
) -> None:
    """Emit what leaves with an IndexError where an index lies outside; `words` say who does what to what."""
    index_kind, value = index
    if isinstance(kind, types.NumpyFlatType):
        array = arrayobj.make_array_flat_cls(kind)(context, builder, value=array).array
        size = arrayobj.make_array(kind.array_type)(context, builder, array).nitems
        value = context.cast(builder, value, index_kind, types.intp)
        leaves = _Leaving(context, builder, [size], words)
        leaves.where(builder.icmp_unsigned(">=", value, size), _FLAT, value, 0)
        return
    kinds, parts = [index_kind], [value]
    if isinstance(index_kind, types.BaseTuple):
        kinds, parts = list(index_kind), cgutils.unpack_tuple(builder, value, len(index_kind))
    kinds, parts = arrayobj.normalize_indices(context, builder, kinds, parts)
    shape = cgutils.unpack_tuple(builder, arrayobj.make_array(kind)(context, builder, array).shape, kind.ndim)
    leaves = _Leaving(context, builder, shape, words)
    axis = 0
    for k, (one, part) in enumerate(zip(kinds, parts, strict=True)):
        if one is types.ellipsis:
            axis = kind.ndim - sum(not isinstance(rest, types.NoneType) for rest in kinds[k + 1 :])
            continue
        if isinstance(one, types.NoneType):
            continue
        if isinstance(one, types.Integer):
            place = arrayobj.fix_integer_index(context, builder, one, part, shape[axis])
            outside = builder.icmp_unsigned(">=", place, shape[axis])
            leaves.where(outside, _SIZED, context.cast(builder, part, one, types.intp), axis)
        elif isinstance(one, types.Array) and isinstance(one.dtype, types.Boolean):
            size = arrayobj.make_array(one)(context, builder, part).nitems
            leaves.where(builder.icmp_signed("!=", size, shape[axis]), _MASK, size, axis)
        elif isinstance(one, types.Array):
            found, bad = _outside(context, builder, one, part, shape[axis])
            leaves.where(found, _SIZED, bad, axis)
        axis += 1


def _outside(
    context: Context, builder: Builder, kind: types.Array, value: Value, size: Value
) -> tuple[Value, Value]:
    """Whether one of an array of indices lies outside, and which."""
    found = cgutils.alloca_once_value(builder, cgutils.false_bit)
    bad = cgutils.alloca_once_value(builder, ir.Constant(I64, 0))
    with elements(context, builder, [kind], [arrayobj.make_array(kind)(context, builder, value)]) as (_, at):
        index = arrayobj.load_item(context, builder, kind, at[0])
        place = arrayobj.fix_integer_index(context, builder, kind.dtype, index, size)
        outside = builder.icmp_unsigned(">=", place, size)
        builder.store(builder.or_(builder.load(found), outside), found)
        index = context.cast(builder, index, kind.dtype, types.intp)
        builder.store(builder.select(outside, index, builder.load(bad)), bad)
    return builder.load(found), builder.load(bad)


class _Leaving:
    """Emits what leaves where an index of an array of a shape lies outside."""

    def __init__(self, context: Context, builder: Builder, shape: Sequence[Value], words: str) -> None:
        self.context, self.builder, self.shape, self.words = context, builder, shape, words

    def where(self, outside: Value, form: str, index: Value, axis: int) -> None:
        """Leave where this is so."""
        builder, shape = self.builder, ", ".join(["%lld"] * len(self.shape))
        shape = f"({shape},)" if len(self.shape) == 1 else f"({shape})"
        with builder.if_then(outside, likely=False):
            record.leave(builder)
            text = form.format(axis=axis, words=self.words, shape=shape)
            text = self.context.insert_const_string(builder.module, text)
            args = [index, self.shape[axis], *self.shape]
            builder.call(_raising(self.context, builder, len(args)), [text, *args])
            self.context.call_conv.return_exc(builder)


def _raising(context: Context, builder: Builder, count: int) -> ir.Function:
    """The function that sets the exception, of a text and so many numbers that are put into it."""
    name = f"tapegrad_out_of_bounds_{count}"
    function: Any = builder.module.globals.get(name)
    if function is None:
        form = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), *[I64] * count])
        function = ir.Function(builder.module, form, name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        function.attributes.add("cold")
        b = ir.IRBuilder(function.append_basic_block("raise"))
        python = context.get_python_api(b)
        lock = python.gil_ensure()
        python.err_format("PyExc_IndexError", *function.args)
        python.gil_release(lock)
        b.ret_void()
    return function
