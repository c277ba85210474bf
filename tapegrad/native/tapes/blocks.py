"""Blocks of a native tape: results whose derivative is a compiled function's, called by the sweep.

Results of a block have statement numbers but no record. What its function needs to know is a tuple, which
the block owns until its tape begins anew.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.core.compiler import CompileResult
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

from tapegrad.native.emission.algebra import I64
from tapegrad.native.emission.annotations import (
    Builder,
    Code,
    Context,
    Emission,
    Intrinsic,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.tapes.memory import BYTES, calloc, free, get, put
from tapegrad.native.tapes.tape import (
    BASE,
    BEFORE,
    BLOCKS,
    CHUNKS,
    COUNT,
    DROP,
    EXTENT,
    KNOWN,
    NEXT,
    NUMBERS,
    OLDER,
    PLACE,
    REVERSE,
    STEP,
    TAKEN,
    TOP,
)

FULL = "a native tape holds 2**31 statements at most; differentiate the program in parts"
inner_njit = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)  # active numbers do not go to Python


def loading(kind: Type) -> Intrinsic:
    """Return ``load(address)``: the tuple that is kept there."""

    @intrinsic
    def load(typingctx: TypingContext, address: Type) -> Emission:
        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            place = builder.inttoptr(args[0], context.get_value_type(kind).as_pointer())
            return impl_ret_borrowed(context, builder, kind, builder.load(place, align=8))

        return kind(types.int64), code

    return load


def _dropping(kind: Type) -> Intrinsic:
    """Return ``drop(address)``, which lets go of the tuple that is kept there."""

    @intrinsic
    def drop(typingctx: TypingContext, address: Type) -> Emission:
        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            place = builder.inttoptr(args[0], context.get_value_type(kind).as_pointer())
            context.nrt.decref(builder, kind, builder.load(place, align=8))
            return context.get_dummy_value()

        return types.void(types.int64), code

    return drop


@intrinsic
def keep(typingctx: TypingContext, value: Type) -> Emission:
    """Return the address of a copy of a tuple, which refers to what is in it; 0 where there is no memory."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        size = context.get_abi_sizeof(args[0].type)
        malloc = cgutils.get_or_insert_function(builder.module, ir.FunctionType(BYTES, [I64]), "malloc")
        place = builder.call(malloc, [ir.Constant(I64, size)])
        address = builder.ptrtoint(place, I64)
        with builder.if_then(builder.icmp_signed("!=", address, ir.Constant(I64, 0)), likely=True):
            context.nrt.incref(builder, value, args[0])
            builder.store(args[0], builder.bitcast(place, args[0].type.as_pointer()), align=8)
        return address

    return types.int64(value), code


def addressed(make: Callable[[Type], Code]) -> Intrinsic:
    """Return ``address(known)`` of a function ``(tape, block)``, made for the type of what is known."""

    @functools.cache
    def compiled(known: Type) -> CompileResult:
        function = inner_njit(make(known))
        function.compile((types.int64, types.int64))
        return next(iter(function.overloads.values()))

    @intrinsic
    def address(typingctx: TypingContext, known: Type) -> Emission:
        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            found = compiled(known)
            context.add_linking_libs([found.library])
            return builder.ptrtoint(context.declare_function(builder.module, found.fndesc), I64)

        return types.int64(known), code

    return address


def drop_of(kind: Type) -> Code:
    """Return the function ``(tape, block)`` that lets go of what a block knows."""
    drop = _dropping(kind)

    def dropped(tape, block):
        drop(get(block, KNOWN))
        free(get(block, KNOWN))
        return 0

    return dropped


@inner_njit
def came(ct):
    """Whether anything came to a cotangent, of whose components this is the first."""
    return ct != 0.0 or not np.signbit(ct)


@inner_njit
def roomy(tape, size):
    """Return the address of memory that is a tape's until it begins anew; fresh pages would cost more."""
    chunk, size = get(tape, CHUNKS), (size + 64) // 64 * 64
    taken, extent = (get(chunk, TAKEN), get(chunk, EXTENT)) if chunk else (0, 0)
    if taken + size > extent:
        older, taken, extent = chunk, 0, max(size, 2 * extent, STEP)
        chunk = calloc(extent + 64, 1)
        if chunk == 0:
            raise MemoryError("no memory for what a native tape's block knows")
        put(chunk, OLDER, older)
        put(chunk, EXTENT, extent)
        put(tape, CHUNKS, chunk)
    put(chunk, TAKEN, taken + size)
    return chunk + 64 + taken


@inner_njit
def pushed(tape, count, known, reverse, drop):
    """Put a block with so many results on a tape; returns the number before the first."""
    before = get(tape, COUNT)
    block = calloc(8 * 6, 1) if known else 0
    if block == 0:
        raise MemoryError("no memory for what a native tape's block knows")
    if before + count >= NUMBERS - 1:
        raise MemoryError(FULL)
    put(block, NEXT, get(tape, BLOCKS))
    put(block, PLACE, get(tape, TOP) - get(tape, BASE))
    put(block, BEFORE, before)
    put(block, REVERSE, reverse)
    put(block, DROP, drop)
    put(block, KNOWN, known)
    put(tape, BLOCKS, block)
    put(tape, COUNT, before + count)
    return before
