"""Compiled: what a step of a sweep asks of its records: operands, shapes, where a cotangent goes."""

from tapegrad.kernels.dialect import copy, i64, u8, zero
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.memory import allocate


def count_of(shapes: int, m: int) -> int:
    """Elements of a value of this meta word."""
    n = 1
    for d in range(m >> 32, (m >> 32) + ((m >> 16) & 0xFF)):
        n *= i64(shapes)[d]
    return n


def same_shape(shapes: int, m: int, other: int) -> int:
    """Whether two meta words tell of one shape."""
    ndim = (m >> 16) & 0xFF
    if ndim != (other >> 16) & 0xFF:
        return 0
    a, b = m >> 32, other >> 32
    if a != b:
        for d in range(ndim):
            if i64(shapes)[a + d] != i64(shapes)[b + d]:
                return 0
    return 1


def operand(word: int, k: int, slot: int) -> int:
    """Record number of operand `slot` of record k; 3 is k itself."""
    words = i64(word)
    w = words[k]
    if slot == 0:
        return ((w >> 16) & 0xFFFF) - 1
    if slot == 3:
        return k
    found = (w >> 32) - 1
    if words[found] & 0xFFFF == CONS:
        if slot == 2:
            found = (words[found] >> 32) - 1
        found = ((words[found] >> 16) & 0xFFFF) - 1
    return found


def target(state: int, j: int, zeros: int) -> int:
    """Where record j's cotangent is written, 0 when memory is out; STORE says nothing is there yet.

    With `zeros` it then holds zeros, to be added to.
    """
    s = i64(state)
    flags, cotangents = u8(s.flags), i64(s.cotangents)
    block = cotangents[j]
    s.store = 0
    if block != 0 and flags[j] & (FRESH | FOREIGN) == 0:
        return block
    m = i64(s.meta)[j]
    size = ((m >> 9) & 0x7F) * count_of(s.shapes, m)
    if flags[j] & FRESH:
        flags[j] = flags[j] & ~FRESH
        s.store = 1
    else:
        block = allocate(state, size)
        if block == 0:
            return 0
        if cotangents[j] != 0:  # somebody else's array: copied before the first addition
            copy(block, cotangents[j], size)
            flags[j] = flags[j] & ~FOREIGN
        else:
            s.store = 1
        cotangents[j] = block
    if s.store == 1 and zeros:
        zero(block, size)
        s.store = 0
    return block
