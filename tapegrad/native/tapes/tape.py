"""The memory of native tapes: records one after the other, in buffers that are used again."""

from __future__ import annotations

import ctypes
import mmap

import llvmlite.binding as binding
from llvmlite import ir
from numba.core import cgutils

from tapegrad.native.emission.algebra import I8, I32, I64, Emitter
from tapegrad.native.emission.annotations import Builder, Module, Value

# Words of a tape's state.
TOP, LIMIT, COUNT, BASE, END, COTANGENTS, ROOM, OWNED, BLOCKS, CHUNKS, IMPORTS, SWEPT = range(12)
# Words of a block, statements whose derivative is a function's: the block before it, how many bytes and
# statements there are below it, addresses of functions ``(tape, block)``, and what these know.
NEXT, PLACE, BEFORE, REVERSE, DROP, KNOWN = range(6)
# Words of a chunk of memory for blocks: the one before it, how many bytes it has, how many are taken.
OLDER, EXTENT, TAKEN = range(3)
WORDS = 16  # two cache lines each
STATE_WORDS = ctypes.c_int64 * WORDS
SLOTS = 64
NUMBERS = 1 << 31  # of statements
CHUNK = 1 << 27  # bytes recorded from one look for an interrupt to the next
STEP = 1 << 20  # bytes by which a tape grows at least
KEPT = 1 << 28  # bytes that the first slot keeps for the next recording; the others less and less, but some
LEAST = 1 << 24  # as much, or threads wait for each other in the system, which gives and takes memory


def _pages(size: int) -> mmap.mmap:
    """Zeros on a page boundary, never moved, of this process alone: by default a fork would share them."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return mmap.mmap(-1, size, **private)


_memory = _pages(8 * WORDS * SLOTS)
POOL = ctypes.addressof(ctypes.c_char.from_buffer(_memory))
binding.add_symbol("tapegrad_native_pool", POOL)
STOCK = "tapegrad_native_stock"  # of `buffers`
_stock = _pages(1 << 12)
binding.add_symbol(STOCK, ctypes.addressof(ctypes.c_char.from_buffer(_stock)))
SCRATCH = "tapegrad_native_scratch"  # what is on no tape is written there, which is quicker than to ask
_scratch = _pages(1 << 20)
binding.add_symbol(SCRATCH, ctypes.addressof(ctypes.c_char.from_buffer(_scratch)))

_BYTES = I8.as_pointer()
_STATE = I64.as_pointer()


def word(builder: Builder, tape: Value, k: int) -> Value:
    """Return a pointer to a word of a tape's state."""
    return builder.gep(builder.inttoptr(tape, _STATE), [ir.Constant(I64, k)], inbounds=True)


def _external(module: Module, name: str, result: ir.Type, *args: ir.Type) -> ir.Function:
    return cgutils.get_or_insert_function(module, ir.FunctionType(result, args), name)


def make_room(emit: Emitter, tape: Value, need: Value, memory: ir.values.MDValue | None = None) -> Value:
    """Emit what sees that so many bytes fit on a tape, and leaves where they do not; returns its top.

    `memory` is LLVM's metadata for that of tapes, where loads are to have it.
    """
    builder = emit.builder
    top, limit = (builder.load(word(builder, tape, k)) for k in (TOP, LIMIT))
    if memory is not None:
        for found in (top, limit):
            found.set_metadata("alias.scope", memory)
    before = builder.block
    full = builder.icmp_signed(">", builder.add(top, need), limit)  # a limit may be less than 0, see `look`
    with builder.if_then(full, likely=False):
        moved = builder.call(grow(emit), [tape, need])
        with builder.if_then(builder.icmp_signed("==", moved, ir.Constant(I64, 0)), likely=False):
            emit.context.call_conv.return_exc(builder)
        after = builder.block
    start = builder.phi(I64)
    start.add_incoming(top, before)
    start.add_incoming(moved, after)
    return start


def grow(emit: Emitter) -> ir.Function:
    """Return the function that makes room: ``grow(tape, bytes)``, the new top or 0 with an exception set."""
    module = emit.builder.module
    name = "tapegrad_native_grow"
    function = module.globals.get(name)
    if function is not None:
        return function
    function = ir.Function(module, ir.FunctionType(I64, [I64, I64]), name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    function.attributes.add("cold")
    tape, need = function.args
    b = ir.IRBuilder(function.append_basic_block("look"))
    python = emit.context.get_python_api(b)
    lock = python.gil_ensure()

    def leave(value: Value) -> None:
        python.gil_release(lock)
        b.ret(value)

    signal = b.call(_external(module, "PyErr_CheckSignals", I32), [])
    with b.if_then(b.icmp_signed("!=", signal, ir.Constant(I32, 0)), likely=False):
        leave(ir.Constant(I64, 0))
    top, base, end = (b.load(word(b, tape, k)) for k in (TOP, BASE, END))
    after = b.add(top, need)

    def limit(at: Value) -> None:
        soft = b.add(b.load(word(b, tape, TOP)), b.add(need, ir.Constant(I64, CHUNK)))
        b.store(b.select(b.icmp_unsigned("<", soft, at), soft, at), word(b, tape, LIMIT))

    with b.if_then(b.icmp_unsigned("<=", after, end), likely=False):
        limit(end)
        leave(top)
    used = b.sub(top, base)
    # a statement takes 4 bytes at least: so many more may be recorded before numbers run out
    free = b.mul(b.sub(ir.Constant(I64, NUMBERS - 1), b.load(word(b, tape, COUNT))), ir.Constant(I64, 4))
    fits = b.icmp_signed(">", free, need)
    with b.if_then(b.not_(fits), likely=False):
        words = "a native tape holds 2**31 statements at most; differentiate the program in parts"
        python.err_set_string("PyExc_MemoryError", emit.context.insert_const_string(module, words))
        leave(ir.Constant(I64, 0))
    realloc = _external(module, "realloc", _BYTES, _BYTES, I64)
    more = b.add(b.lshr(used, ir.Constant(I64, 1)), b.add(need, ir.Constant(I64, STEP)))
    for part in (more, b.add(need, ir.Constant(I64, STEP))):  # half as much again; else as little as will do
        room = b.add(used, b.select(b.icmp_signed("<", part, free), part, free))
        new = b.ptrtoint(b.call(realloc, [b.inttoptr(base, _BYTES), room]), I64)
        with b.if_then(b.icmp_signed("!=", new, ir.Constant(I64, 0))):
            b.store(new, word(b, tape, BASE))
            b.store(b.add(new, used), word(b, tape, TOP))
            b.store(b.add(new, room), word(b, tape, END))
            limit(b.add(new, room))
            leave(b.add(new, used))
    words = "no memory to record on: the native tape cannot grow; what was recorded before is as it was"
    python.err_set_string("PyExc_MemoryError", emit.context.insert_const_string(module, words))
    leave(ir.Constant(I64, 0))
    return function
