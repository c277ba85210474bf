"""Memory of large arrays of active numbers, used again as soon as nothing refers to them.

Fresh pages cost more than what is computed in them: the C library returns large memory to the system.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing.templates import signature
from numba.extending import intrinsic
from numba.np import arrayobj

from tapegrad.kernels import cache
from tapegrad.native.emission.algebra import I64
from tapegrad.native.emission.annotations import (
    Builder,
    Compiled,
    Context,
    Emission,
    Intrinsic,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.emission.deferred import Deferred, emit_call
from tapegrad.native.tapes.memory import BYTES
from tapegrad.native.tapes.runtime import digest

LARGE, LARGEST = 1 << 16, 1 << 24  # bytes of what is kept
HELD = 16  # how many are kept at most
MANAGE = 2  # the place of NRT_manage_memory in Numba's table of functions

SOURCE = '''"""Memory of large arrays. {digest}"""
from numba import njit
from tapegrad.native.tapes.buffers import HELD, LARGE, LARGEST, aligned, managing
from tapegrad.native.tapes.memory import claim, disclaim, free, get, malloc, put, stock

LOCK, ADDRESS, EXTENT, WORDS = range(4)  # words of a place in the stock; the first of a buffer is its extent


@njit("void(int64)", cache=CACHE)
def give_back(data):
    """Keep a buffer for others, if there is a place."""
    buffer = data - 64
    if get(buffer, 0) <= LARGEST:
        for k in range(HELD):
            place = stock() + 64 * k
            if get(place, ADDRESS) == 0 and claim(place, LOCK):
                kept = get(place, ADDRESS) == 0
                if kept:
                    put(place, EXTENT, get(buffer, 0))
                    put(place, ADDRESS, buffer)
                disclaim(place, LOCK)
                if kept:
                    return
    free(buffer)


MANAGE = managing(give_back)


@njit("int64(int64)", cache=CACHE)
def meminfo(size):
    """What Numba counts references in, for new memory of so many bytes; 0 if there is none."""
    if size < LARGE:
        return aligned(size)
    buffer = 0
    if size <= LARGEST:
        for k in range(HELD):
            place = stock() + 64 * k
            extent = get(place, EXTENT)
            if get(place, ADDRESS) and size <= extent <= 2 * size and claim(place, LOCK):
                extent = get(place, EXTENT)
                if get(place, ADDRESS) and size <= extent <= 2 * size:
                    buffer = get(place, ADDRESS)
                    put(place, ADDRESS, 0)
                disclaim(place, LOCK)
                if buffer:
                    break
    if buffer == 0:
        buffer = malloc(size + 64)
        if buffer == 0:
            return 0
        put(buffer, 0, size)
    return MANAGE(buffer + 64)
'''


@functools.cache
def compiled() -> ModuleType:
    """Return `meminfo`, compiled."""
    return cache.load("native_buffers", SOURCE.format(digest=digest()))


@intrinsic
def aligned(typingctx: TypingContext, size: Type) -> Emission:
    """Return the address of Numba's own reference count of new memory; 0 if there is none."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        found = context.nrt.meminfo_alloc_aligned_unchecked(builder, args[0], ir.Constant(ir.IntType(32), 32))
        return builder.ptrtoint(found, I64)

    return types.int64(types.int64), code


def managing(give_back: Compiled) -> Intrinsic:
    """Return ``manage(data)``: the address of a reference count, at whose end memory is given back."""

    @intrinsic
    def manage(typingctx: TypingContext, data: Type) -> Emission:
        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            module = builder.module
            end = ir.Function(module, ir.FunctionType(ir.VoidType(), [BYTES]), "tapegrad_give_back")
            end.linkage = "internal"
            b = ir.IRBuilder(end.append_basic_block("end"))
            overload = next(iter(give_back.overloads.values()))
            context.add_linking_libs([overload.library])
            called, data = context.declare_function(module, overload.fndesc), b.ptrtoint(end.args[0], I64)
            context.call_conv.call_function(b, called, types.none, (types.int64,), [data])
            b.ret_void()
            made = ir.FunctionType(BYTES, [BYTES, end.type])
            table = cgutils.get_or_insert_function(
                module, ir.FunctionType(made.as_pointer().as_pointer(), []), "NRT_get_api"
            )
            place = builder.gep(builder.call(table, []), [ir.Constant(I64, MANAGE)])
            return builder.ptrtoint(
                builder.call(builder.load(place), [builder.inttoptr(args[0], BYTES), end]), I64
            )

        return types.int64(types.int64), code

    return manage


def empty_array(
    context: Context, builder: Builder, kind: types.Array, shape: Sequence[Value], before: int = 0
) -> Any:
    """Emit a new array in C order, of this shape, with so many bytes before its elements."""
    step = ir.Constant(I64, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    strides: list[Value] = []
    size = step
    for extent in reversed(shape):
        strides.insert(0, size)
        size = builder.mul(size, extent)
    form = signature(types.int64, types.int64)
    size = builder.add(size, ir.Constant(I64, before))
    found = emit_call(context, builder, Deferred(__name__, (), "meminfo"), form, [size])
    with builder.if_then(builder.icmp_signed("==", found, ir.Constant(I64, 0)), likely=False):
        context.call_conv.return_user_exc(builder, MemoryError, ("no memory for an array",))
    meminfo = builder.inttoptr(found, BYTES)
    memory = builder.gep(context.nrt.meminfo_data(builder, meminfo), [ir.Constant(I64, before)])
    data = builder.bitcast(memory, context.get_data_type(kind.dtype).as_pointer())
    array = arrayobj.make_array(kind)(context, builder)
    arrayobj.populate_array(array, data=data, shape=shape, strides=strides, itemsize=step, meminfo=meminfo)
    return array
