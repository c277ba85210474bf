"""Compiled: what a rule in Python gave becomes a gradient as it stands, where nothing else has it."""

from tapegrad.kernels.dialect import i64, invoke, obj, shared, u8
from tapegrad.kernels.replay.admitting import is_own_memory, same_kind
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.links import deposit
from tapegrad.kernels.replay.operands import size_of


def take_part(state: int, tape: int, j: int, part: int) -> int:
    """Add what a rule gave, an array or a number in a list, to record j's cotangent; DONE or MEMORY."""
    source = part + SCALAR_AT
    if obj(part).type == i64(shared()).ndarray_type:
        if u8(i64(state).flags)[j] & FRESH and adopt(state, tape, j, part):
            return DONE
        source = obj(part).data
    return deposit(state, j, source)


def adopt(state: int, tape: int, j: int, part: int) -> int:
    """Let an array be the gradient that the sweep is to find for record j, if it can be; whether it is.

    Nothing has come to that yet.
    """
    g, s, q, needed = i64(shared()), i64(state), 0, C_CONTIGUOUS | ALIGNED | WRITEABLE
    while i64(s.sinks)[q] != j:
        q += 1
    made = i64(s.result_arrays)[q]
    if made == 0 or obj(part).flags & needed != needed:
        return 0
    if same_kind(part, made) == 0 or is_held_once(tape, part) == 0:
        return 0
    invoke(g.incref, part)
    i64(s.result_arrays)[q], i64(s.cotangents)[j] = part, obj(part).data
    u8(s.flags)[j] = u8(s.flags)[j] - FRESH
    invoke(g.decref, made)
    return 1


def is_held_once(tape: int, x: int) -> int:
    """Whether one holder alone can reach an array and its memory: of its own, or a buffer of the stock."""
    base, owner = obj(x).base, x
    if base != 0:
        owner = base
    if obj(x).refcount != 1 or obj(x).weak_list != 0 or is_own_memory(tape, x, 0) == 0:
        return 0
    if obj(owner).flags & OWNER == 0 or obj(owner).weak_list != 0:
        return 0
    if base == 0:
        return 1
    return obj(base).ndim == 1 and i64(obj(base).dims)[0] == size_of(x) + i64(shared()).alignment
