"""Compiled: the way in."""

from tapegrad.kernels.dialect import address, i64, shared
from tapegrad.kernels.replay.any_op import record_op
from tapegrad.kernels.replay.gradients import backward_from, gradients_of
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.looking import number_expected
from tapegrad.kernels.replay.loops import checksum, loop
from tapegrad.kernels.replay.matching import follow, like_expected, match_call
from tapegrad.kernels.replay.memory import reset, reset_idle
from tapegrad.kernels.replay.recording import methods
from tapegrad.kernels.replay.tapes import serve
from tapegrad.kernels.replay.unchanged import is_unchanged


def entry(what: int, state: int, extra: int, more: int) -> int:
    """All of the compiled sweep behind one address."""
    if what == METHODS:
        return methods(extra)
    if what == RECORD_OP:
        return address(record_op)
    if what == GRADIENTS:
        return address(gradients_of)
    if what == BACKWARD:
        return address(backward_from)
    if what == FOLLOW:
        return address(follow)
    if what == MATCH_CALL:
        return address(match_call)
    if what == LIKE_EXPECTED:
        return address(like_expected)
    if what == NUMBER_EXPECTED:
        return address(number_expected)
    if what == IS_UNCHANGED:
        return address(is_unchanged)
    if what == LOOP:
        return address(loop)
    if what == CHECKSUM:
        return checksum(extra, more)
    if what == RESET:
        return reset(state)
    if what == RESET_IDLE:
        return reset_idle()
    if BOUNDS:
        i64(shared()).guard = i64(state).regions
    return serve(what, state, extra, more)
