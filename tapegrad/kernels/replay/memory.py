"""Compiled: memory handed out, and in a checked build what memory there is."""

from tapegrad.kernels.dialect import call, i64, invoke, obj, shared, u8, zero
from tapegrad.kernels.replay.layout import *


def region(at: int) -> int:
    """Where the bounds stand of the memory that an address lies in; two zeros if it is in none.

    The table (`tapegrad.kernels.bounds`): how many regions it has, the state, the first escape, a word
    unused, two zeros, and the regions in ascending order, each by its bounds.
    """
    table = i64(shared()).guard
    words = i64(table)
    low, high = 0, words[0]
    while low < high:
        middle = (low + high) // 2
        if words[6 + 2 * middle] <= at:
            low = middle + 1
        else:
            high = middle
    if low > 0 and at < words[5 + 2 * low]:
        return table + 8 * (4 + 2 * low)
    block = i64(words[1])[BLOCKS]
    while block != 0:
        if at >= block and at < i64(block - 24)[0]:
            return block - 32
        block = i64(block - 64)[0]
    return table + 32


def reset(state: int) -> int:
    """Give all memory of a sweep back."""
    s = i64(state)
    block = s.blocks
    while block != 0:
        following = i64(block - 64)[0]
        invoke(s.free, i64(block - 48)[0])
        block = following
    s.blocks = 0
    s.held_bytes = 0
    zero(s.free_lists, 8 * 256)
    return 0


def reset_idle() -> int:
    """Give all memory of the sweeps back that are over, of those in one compiled call."""
    state = i64(shared()).idle_state
    while state != 0:
        reset(state)
        state = i64(state).next_state
    return 0


def allocate(state: int, size: int) -> int:
    """A buffer from the free list of its size class, four classes to a doubling; 0 when memory is out.

    Words before it: the next buffer, the class, what to free, and for a checked build what may be touched.
    """
    s = i64(state)
    exponent = 6
    while (128 << (exponent - 6)) <= size:
        exponent += 1
    base, quarter, steps = 1 << exponent, 1 << (exponent - 2), 0
    if size > base:
        steps = (size - base + quarter - 1) // quarter
    place = i64(s.free_lists + 8 * (4 * exponent + steps))
    block = place[0]
    if block != 0:
        place[0] = i64(block)[0]
        i64(block - 24)[0] = block + size
        return block
    capacity = base + steps * quarter
    raw = call(s.allocate, capacity + 128)
    if raw == 0:
        return 0
    block = (raw + 127) & ~63
    i64(block - 64)[0] = s.blocks
    i64(block - 56)[0] = 4 * exponent + steps
    i64(block - 48)[0] = raw
    i64(block - 32)[0], i64(block - 24)[0] = block, block + size
    s.blocks = block
    s.held_bytes += capacity
    return block


def release(state: int, block: int) -> int:
    """Put a buffer on the free list of its class."""
    i64(block - 24)[0] = block
    place = i64(i64(state).free_lists + 8 * i64(block - 56)[0])
    i64(block)[0] = place[0]
    place[0] = block
    return 0


def drop_values(state: int, values: int) -> int:
    """Empty the places of values that do not stay, as `prune` has marked them; that may run finalizers."""
    g, s = i64(shared()), i64(state)
    live = u8(s.live)
    for k in range(s.records):
        if live[k] & 2 == 0:
            value = i64(obj(values).items)[k]
            if value != s.none_object:
                invoke(g.incref, s.none_object)
                i64(obj(values).items)[k] = s.none_object
                invoke(g.decref, value)
    return 0
