"""What compiled code does to a tape's memory, as intrinsics: its state, its records, its cotangents."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from tapegrad.native.emission.adjoint import ADJOINT, FALLIBLE, NOTHING
from tapegrad.native.emission.algebra import F64, I8, I64, Emitter, Spec, components
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
from tapegrad.native.tapes.tape import COTANGENTS, ROOM, STOCK, make_room, word

i8, f8 = types.int64, types.float64
BYTES = I8.as_pointer()


def _symbol(name: str) -> Intrinsic:
    """A function that returns the address of memory of a name."""

    @intrinsic
    def address(typingctx: TypingContext) -> Emission:
        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            found = builder.module.globals.get(name)
            if found is None:
                found = ir.GlobalVariable(builder.module, I8, name)
                found.linkage = "external"
            return builder.ptrtoint(found, I64)

        return i8(), code

    return address


pool = _symbol("tapegrad_native_pool")  # the slots of tapes
stock = _symbol(STOCK)


@intrinsic
def get(typingctx: TypingContext, tape: Type, k: Type) -> Emission:
    """Read a word of a tape's state."""
    return i8(i8, i8), lambda cx, b, sig, args: b.load(_word(b, *args))


@intrinsic
def put(typingctx: TypingContext, tape: Type, k: Type, value: Type) -> Emission:
    """Write a word of a tape's state."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        builder.store(args[2], _word(builder, args[0], args[1]))
        return context.get_dummy_value()

    return types.void(i8, i8, i8), code


@intrinsic
def room(typingctx: TypingContext, tape: Type, size: Type) -> Emission:
    """Return where a record of so many bytes starts on a tape."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        return make_room(Emitter(context, builder), *args)

    return types.int64(types.int64, types.int64), code


@intrinsic
def claim(typingctx: TypingContext, tape: Type, k: Type) -> Emission:
    """Set a word from 0 to 1 in one step; returns whether it was 0."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        zero, one = ir.Constant(I64, 0), ir.Constant(I64, 1)
        found = builder.cmpxchg(_word(builder, *args), zero, one, "acq_rel", "monotonic")
        return builder.extract_value(found, 1)

    return types.boolean(i8, i8), code


@intrinsic
def disclaim(typingctx: TypingContext, tape: Type, k: Type) -> Emission:
    """Set a word to 0, after all that was written before."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        builder.store_atomic(ir.Constant(I64, 0), _word(builder, *args), "release", 8)
        return context.get_dummy_value()

    return types.void(i8, i8), code


def _word(builder: Builder, tape: Value, k: Value) -> Value:
    return builder.gep(word(builder, tape, 0), [k])


def _function(name: str, result: ir.Type, *kinds: Type) -> Intrinsic:
    """A function of the C library as an intrinsic of integers."""

    @intrinsic
    def call(typingctx: TypingContext, *args: Type) -> Emission:
        def code(context: Context, builder: Builder, sig: Signature, values: Sequence[Value]) -> Value:
            parts = cgutils.unpack_tuple(builder, values[0])
            values = [
                builder.inttoptr(v, k) if isinstance(k, ir.PointerType) else v
                for v, k in zip(parts, kinds, strict=True)
            ]
            function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, kinds), name)
            found = builder.call(function, values)
            if isinstance(result, ir.VoidType):
                return context.get_dummy_value()
            return builder.ptrtoint(found, I64)

        kind = types.StarArgTuple([i8] * len(kinds))
        return (types.void if isinstance(result, ir.VoidType) else i8)(kind), code

    return call


calloc = _function("calloc", BYTES, I64, I64)
free = _function("free", ir.VoidType(), BYTES)
malloc = _function("malloc", BYTES, I64)


def _drop_cotangents(builder: Builder, tape: Value) -> None:
    """Emit the release of what a sweep that fails has left."""
    release = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), [BYTES]), "free")
    builder.call(release, [builder.inttoptr(builder.load(word(builder, tape, COTANGENTS)), BYTES)])
    for k in (COTANGENTS, ROOM):
        builder.store(ir.Constant(I64, 0), word(builder, tape, k))


@intrinsic
def call_block(typingctx: TypingContext, function: Type, tape: Type, block: Type) -> Emission:
    """Call a function of a block by its address; where it fails, what is left of the cotangents is let go."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        convention = context.call_conv
        kind = convention.get_function_type(i8, (i8, i8))
        called = builder.inttoptr(args[0], kind.as_pointer())
        status, _ = convention.call_function(builder, called, i8, (i8, i8), args[1:])
        with cgutils.if_unlikely(builder, status.is_error):
            _drop_cotangents(builder, args[1])
            convention.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.void(i8, i8, i8), code


@intrinsic
def call_adjoint(
    typingctx: TypingContext, function: Type, cotangents: Type, number: Type, record: Type
) -> Emission:
    """Call the adjoint of a record by its address."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        builder.call(builder.inttoptr(args[0], ADJOINT.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(i8, i8, i8, i8), code


@intrinsic
def call_fallible(
    typingctx: TypingContext, function: Type, tape: Type, cotangents: Type, number: Type, record: Type
) -> Emission:
    """Call the adjoint of a record of arrays by its address; where it fails, as `call_block` does."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        failed = builder.call(builder.inttoptr(args[0], FALLIBLE.as_pointer()), args[2:])
        with cgutils.if_unlikely(builder, builder.icmp_signed("!=", failed, failed.type(0))):
            _drop_cotangents(builder, args[1])
            context.call_conv.return_exc(builder)
        return context.get_dummy_value()

    return types.void(i8, i8, i8, i8, i8), code


@intrinsic
def read(typingctx: TypingContext, address: Type) -> Emission:
    """Read a float64."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        return builder.load(builder.inttoptr(args[0], F64.as_pointer()), align=8)

    return f8(i8), code


@intrinsic
def write(typingctx: TypingContext, address: Type, value: Type) -> Emission:
    """Write a float64."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        builder.store(args[1], builder.inttoptr(args[0], F64.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(i8, f8), code


@functools.cache
def taking(spec: Spec) -> Intrinsic:
    """Return ``take(cotangents, statement)``, after which nothing came to it."""
    count = components(spec)
    kind = types.UniTuple(f8, count)

    @intrinsic
    def take(typingctx: TypingContext, base: Type, number: Type) -> Emission:
        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            place = builder.add(args[0], builder.mul(args[1], ir.Constant(I64, 8 * count)))
            pointer, values = builder.inttoptr(place, F64.as_pointer()), []
            for k in range(count):
                at = builder.gep(pointer, [ir.Constant(I64, k)], inbounds=True)
                values.append(builder.load(at, align=8))
                builder.store(NOTHING, at, align=8)
            return context.make_tuple(builder, kind, values)

        return kind(i8, i8), code

    return take
