"""Compiled: from tape to tape of a sweep, by links to older ones.

A row of the table of tapes has the first words of a state, those of one tape (`layout`): a tape is entered by
copying them. OLDER has for each number of an older tape the address of that tape's row; 0 where it is none of
the sweep or no way from there to a sink is, LOST where it was freed.
"""

from tapegrad.kernels.dialect import copy, i64, u8
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.memory import release
from tapegrad.kernels.replay.records import count_of, target
from tapegrad.kernels.replay.stream import add


def enter(state: int, row: int) -> int:
    """Let a state be at the tape of a row."""
    copy(state, row, 8 * TAPE_WORDS)
    return 0


def linked(state: int, k: int) -> int:
    """The row of the tape that record k links to, 0 or LOST."""
    s, number = i64(state), (i64(i64(state).word)[k] >> 16) & 0xFFFF
    if number == 0:
        return LOST
    if number > s.older_count:
        return 0
    return i64(s.older)[number - 1]


def place_of_link(state: int, k: int) -> int:
    """The record that record k links to, of the other tape."""
    return (i64(i64(state).word)[k] >> 32) - 1


def needs_link(state: int, k: int) -> int:
    """NEED if what record k links to depends on a sink, or was freed, which must not be overlooked."""
    row = linked(state, k)
    if row == LOST:
        return NEED
    if row == 0:
        return 0
    return u8(i64(row).flags)[place_of_link(state, k)] & NEED


def mark_link(state: int, k: int) -> int:
    """Mark what record k links to: DONE; FREED_RECORD; NOT_READ, where that tape (UNREAD) has no flags."""
    row = linked(state, k)
    if row == LOST:
        return FREED_RECORD
    if row != 0:
        if i64(row).records == 0:
            i64(state).unread = row
            return NOT_READ
        flags, j = u8(i64(row).flags), place_of_link(state, k)
        flags[j] = flags[j] | MARK
        i64(row).marked = 1
    return DONE


def hand_over(state: int, k: int) -> int:
    """Add the cotangent of record k, a link, to that of the record it leads to, and let go of it.

    DONE, MEMORY, or PYTHON: extended precision, in which compiled code does not compute.
    """
    s, row, status = i64(state), linked(state, k), DONE
    if row == 0:
        return DONE
    source, foreign, j = i64(s.cotangents)[k], u8(s.flags)[k] & FOREIGN, place_of_link(state, k)
    older, m = i64(row), i64(i64(row).meta)[j]
    if i64(older.cotangents)[j] == 0:
        i64(older.cotangents)[j] = source
        u8(older.flags)[j] = u8(older.flags)[j] | foreign
    elif m & 0xFF > SWEPT:
        return PYTHON
    else:
        enter(state, row)
        status = deposit(state, j, source)
        enter(state, s.tape)
        if foreign == 0 and status == DONE:
            release(state, source)
    if status == DONE:
        i64(s.cotangents)[k] = 0
    return status


def contribute(state: int, j: int, source: int) -> int:
    """Add a dense cotangent that somebody else keeps while the sweep runs to record j's."""
    s = i64(state)
    cotangents, flags = i64(s.cotangents), u8(s.flags)
    if cotangents[j] == 0:
        cotangents[j] = source
        flags[j] = flags[j] | FOREIGN
        return DONE
    return deposit(state, j, source)


def deposit(state: int, j: int, source: int) -> int:
    """Add a dense cotangent to record j's; nothing refers to it afterwards."""
    s = i64(state)
    m = i64(s.meta)[j]
    out = target(state, j, 0)
    if out == 0:
        return MEMORY
    add(m & 0xFF, out, source, count_of(s.shapes, m), s.store)
    return DONE
