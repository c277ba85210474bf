"""Compiled: a record whose rule is a user's compiled function (`tapegrad.autograd.compiled`)."""

from tapegrad.kernels.dialect import call, i64, u8
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.memory import allocate, release
from tapegrad.kernels.replay.reading import following, operands
from tapegrad.kernels.replay.records import count_of, target
from tapegrad.kernels.replay.stream import add


def rule_of(state: int, k: int) -> int:
    """The address of record k's rule, which its first operand tells; 0: to be compiled."""
    s = i64(state)
    return i64(i64(s.address)[((i64(s.word)[k] >> 16) & 0xFFFF) - 1])[0]


def known_layouts(state: int, k: int) -> int:
    """Whether record k's value and operands are dense, of float64, as its rule knows them."""
    metas, word = i64(i64(state).meta), i64(state).word
    found, at = metas[k] & 0x1FF == 0x101, following(word, operands(i64(word)[k], CHAIN), CHAIN)
    while at != 0:
        found = found & (metas[(at & 0xFFFF) - 1] & 0x1FF == 0x101)
        at = following(word, at, CHAIN)
    return found


def function(state: int, k: int) -> int:
    """Call the rule with addresses: cotangent, value and shape; then value, gradient (0: none) and shape of
    each operand. PYTHON where it fails.
    """
    s = i64(state)
    metas, addresses, flags, p = i64(s.meta), i64(s.address), u8(s.flags), i64(s.scratch)
    first = operands(i64(s.word)[k], CHAIN)
    p[0], p[1], p[2], n, status = (
        i64(s.cotangents)[k],
        addresses[k],
        s.shapes + 8 * (metas[k] >> 32),
        3,
        DONE,
    )
    at = following(s.word, first, CHAIN)
    while at != 0:
        j = (at & 0xFFFF) - 1
        m = metas[j]
        p[n], p[n + 1], p[n + 2] = addresses[j], 0, s.shapes + 8 * (m >> 32)
        if flags[j] & NEED and status == DONE:
            p[n + 1] = allocate(state, 8 * count_of(s.shapes, m))
            if p[n + 1] == 0:
                status = MEMORY
        n += 3
        at = following(s.word, at, CHAIN)
    if status == DONE:
        if call(rule_of(state, k), s.scratch) != 1:
            status = PYTHON
    at, n = following(s.word, first, CHAIN), 3
    while at != 0:
        j, block = (at & 0xFFFF) - 1, p[n + 1]
        if block != 0 and status == DONE:
            out = target(state, j, 0)
            if out == 0:
                status = MEMORY
            else:
                add(1, out, block, count_of(s.shapes, metas[j]), s.store)
        if block != 0:
            release(state, block)
        n += 3
        at = following(s.word, at, CHAIN)
    return status
