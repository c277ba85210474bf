"""What compiled code does to a tape's memory, as intrinsics: its state, its records, its cotangents."""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from tapegrad.native.algebra import F64, I8, I64, Spec, components
from tapegrad.native.record import ADJOINT
from tapegrad.native.tape import COTANGENTS, ROOM, word

i8, f8 = types.int64, types.float64
BYTES = I8.as_pointer()


@intrinsic
def pool(typingctx: Any) -> Any:
    """Return the address of the slots of tapes."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        name = "tapegrad_native_pool"
        found = builder.module.globals.get(name)
        if found is None:
            found = ir.GlobalVariable(builder.module, I8, name)
            found.linkage = "external"
        return builder.ptrtoint(found, I64)

    return i8(), code


@intrinsic
def get(typingctx: Any, tape: Any, k: Any) -> Any:
    """Read a word of a tape's state."""
    return i8(i8, i8), lambda cx, b, sig, args: b.load(_word(b, *args))


@intrinsic
def put(typingctx: Any, tape: Any, k: Any, value: Any) -> Any:
    """Write a word of a tape's state."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[2], _word(builder, args[0], args[1]))
        return context.get_dummy_value()

    return types.void(i8, i8, i8), code


@intrinsic
def claim(typingctx: Any, tape: Any, k: Any) -> Any:
    """Set a word from 0 to 1 in one step; returns whether it was 0."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        zero, one = ir.Constant(I64, 0), ir.Constant(I64, 1)
        found = builder.cmpxchg(_word(builder, *args), zero, one, "acq_rel", "monotonic")
        return builder.extract_value(found, 1)

    return types.boolean(i8, i8), code


def _word(builder: Any, tape: Any, k: Any) -> Any:
    return builder.gep(word(builder, tape, 0), [k])


def _function(name: str, result: Any, *kinds: Any) -> Any:
    """A function of the C library as an intrinsic of integers."""

    @intrinsic
    def call(typingctx: Any, *args: Any) -> Any:
        def code(context: Any, builder: Any, sig: Any, values: Any) -> Any:
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


@intrinsic
def call_block(typingctx: Any, function: Any, tape: Any, block: Any) -> Any:
    """Call a function of a block by its address; where it fails, what is left of the cotangents is let go."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        convention = context.call_conv
        kind = convention.get_function_type(i8, (i8, i8))
        called = builder.inttoptr(args[0], kind.as_pointer())
        status, _ = convention.call_function(builder, called, i8, (i8, i8), args[1:])
        with cgutils.if_unlikely(builder, status.is_error):
            release = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(ir.VoidType(), [BYTES]), "free"
            )
            builder.call(release, [builder.inttoptr(builder.load(word(builder, args[1], COTANGENTS)), BYTES)])
            for k in (COTANGENTS, ROOM):
                builder.store(ir.Constant(I64, 0), word(builder, args[1], k))
            convention.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.void(i8, i8, i8), code


@intrinsic
def call_adjoint(typingctx: Any, function: Any, cotangents: Any, number: Any, record: Any) -> Any:
    """Call the adjoint of a record by its address."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.call(builder.inttoptr(args[0], ADJOINT.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(i8, i8, i8, i8), code


@intrinsic
def read(typingctx: Any, address: Any) -> Any:
    """Read a float64."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], F64.as_pointer()), align=8)

    return f8(i8), code


@intrinsic
def write(typingctx: Any, address: Any, value: Any) -> Any:
    """Write a float64."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], F64.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(i8, f8), code


@functools.cache
def taking(spec: Spec) -> Any:
    """Return ``take(cotangents, statement)``, which clears what it reads."""
    count = components(spec)
    kind = types.UniTuple(f8, count)

    @intrinsic
    def take(typingctx: Any, base: Any, number: Any) -> Any:
        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            place = builder.add(args[0], builder.mul(args[1], ir.Constant(I64, 8 * count)))
            pointer, values = builder.inttoptr(place, F64.as_pointer()), []
            for k in range(count):
                at = builder.gep(pointer, [ir.Constant(I64, k)], inbounds=True)
                values.append(builder.load(at, align=8))
                builder.store(ir.Constant(F64, 0.0), at, align=8)
            return context.make_tuple(builder, kind, values)

        return kind(i8, i8), code

    return take
