"""Compiled: a sweep over tapes, from the newest to the oldest.

Tapes that nothing marks are passed over. What needs Python ends the call with a status; the next call goes on
from there.
"""

from tapegrad.kernels.dialect import i64, obj, u8, zero
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.links import contribute, deposit, enter
from tapegrad.kernels.replay.memory import drop_values, release
from tapegrad.kernels.replay.reading import has_lost, prune, seal
from tapegrad.kernels.replay.sweep import begin_marks, find_marks, find_needs, list_pending, run, spend


def serve(what: int, state: int, extra: int, more: int) -> int:
    """What is done on a state."""
    if what == RUN_TAPES:
        return run_tapes(state)
    if what == MARK_TAPES:
        return mark_tapes(state)
    if what == FIND_NEEDS:
        if extra == 0:
            return find_all_needs(state)
        return find_needs_of(state, extra)
    if what == SEAL or what == PRUNE or what == HAS_LOST:
        # a list's items move when it grows: they are looked up in the call that reads them
        if extra != 0:
            i64(state).items = obj(extra).items
        if what == SEAL:
            return seal(state)
        if what == PRUNE:
            return prune(state)
        return has_lost(state)
    if what == DROP:
        return drop_values(state, extra)
    if what == CONTRIBUTE:
        return contribute(state, extra, more)
    if what == DEPOSIT:
        return deposit(state, extra, more)
    if what == SPEND:
        return spend(state)
    return release(state, extra)


def find_all_needs(state: int) -> int:
    """Flag the records that depend on a sink, of all tapes read, from the oldest on."""
    s, row = i64(state), i64(state).tapes
    while row <= s.tape:
        if i64(row).records != 0:
            enter(state, row)
            find_needs(state)
        row += 8 * TAPE_WORDS
    return DONE


def find_needs_of(state: int, row: int) -> int:
    """As `find_all_needs`, of the tape of one row, read while the marks of another one are being found."""
    leave(state)
    enter(state, row)
    find_needs(state)
    enter(state, i64(state).tape)
    return DONE


def leave(state: int) -> int:
    """Note in the row at hand what was found out of its tape."""
    s = i64(state)
    i64(s.tape).pending_count, i64(s.tape).work = s.pending_count, s.work
    return 0


def mark_tapes(state: int) -> int:
    """Flag what roots depend on, from the tape at hand on: as `find_marks`, of all tapes."""
    s = i64(state)
    while s.tape >= s.tapes:
        if i64(s.tape).marked:
            if s.at_work == 0:
                enter(state, s.tape)
                begin_marks(state)
                s.at_work = 1
            status = find_marks(state)
            if status != DONE:
                return status
            leave(state)
            s.at_work = 0
        s.tape -= 8 * TAPE_WORDS
    return DONE


def run_tapes(state: int) -> int:
    """Sweep what is planned, from the tape at hand on: as `run`; and ENTERED and LEFT_TAPE where it STOPS."""
    s = i64(state)
    while s.tape >= s.tapes:
        if i64(s.tape).marked:
            if s.at_work == 0:
                begin(state)
                s.at_work = 1
                if i64(s.tape).stops & BEFORE or s.stop_each:
                    return ENTERED
            if s.at_work == 1:
                status = run(state)
                if status != DONE:
                    return status
                s.at_work = 2
                if i64(s.tape).stops & AFTER:
                    return LEFT_TAPE
            s.at_work = 0
        s.tape -= 8 * TAPE_WORDS
    return DONE


def begin(state: int) -> int:
    """Enter the tape at hand, and go on with the gradients of leaves that newer tapes have contributed to."""
    s = i64(state)
    enter(state, s.tape)
    zero(s.descriptors, 8 * s.records)
    if s.pending_count != 0:
        list_pending(state)
    flags, cotangents, join = u8(s.flags), i64(s.cotangents), i64(s.joins)
    for q in range(s.join_count):
        k, newer, j = join[3 * q], i64(join[3 * q + 1]), join[3 * q + 2]
        linked, foreign = cotangents[k], flags[k] & FOREIGN
        cotangents[k] = i64(newer.cotangents)[j]
        flags[k] = flags[k] & ~FOREIGN | u8(newer.flags)[j] & FRESH
        if linked != 0:  # by links that lead to this record of the leaf
            deposit(state, k, linked)  # to memory that is there
            if foreign == 0:
                release(state, linked)
    s.position, s.finish = s.records - 1, 0
    return 0
