"""Where results of older tapes stand on a tape: a hash table of words, which compiled code fills as well.

It begins with how many entries it has, and the binary logarithm of how many there is room for. An entry is
two words: a key, of the older tape's serial and the record there, 0 for none, and the link's position.
"""

from __future__ import annotations

from tapegrad.kernels.replay.layout import (
    FEWEST_LINKS,
    LINK_COUNT,
    LINK_ENTRIES,
    LINK_KEY_BITS,
    LINK_ROOM,
    SPREAD,
)
from tapegrad.tape.record import Position

WORD = (1 << 64) - 1


def key_of(serial: int, at: Position) -> int:
    """By what a table knows a record of an older tape; serials have the 44 bits that are left."""
    return serial << LINK_KEY_BITS | at >> 2


def find(table: bytearray | None, key: int) -> Position | None:
    """The position of a link, or None."""
    if table is None:
        return None
    words = memoryview(table).cast("q")
    place = _place(words, key)
    return words[place + 1] if words[place] else None


def positions(table: bytearray | None) -> list[Position]:
    """The positions of all links, in the order they came."""
    return sorted(at for _, at in _entries(table))


def with_link(table: bytearray | None, key: int, at: Position) -> bytearray:
    """Note a link; returns the table, another one where it has no room."""
    count, bits = (0, FEWEST_LINKS - 1) if table is None else memoryview(table).cast("q")[:LINK_ENTRIES]
    if table is None or 2 * count >= 1 << bits:
        entries = _entries(table)
        table = bytearray(8 * (LINK_ENTRIES + (4 << bits)))
        memoryview(table).cast("q")[LINK_ROOM] = bits + 1
        for entry in entries:
            _set(table, *entry)
    _set(table, key, at)
    return table


def _place(words: memoryview, key: int) -> int:
    """Where the entry of a key begins, or where it would."""
    bits = words[LINK_ROOM]
    k = (key * SPREAD & WORD) >> 64 - bits
    while words[LINK_ENTRIES + 2 * k] not in (0, key):
        k = (k + 1) % (1 << bits)
    return LINK_ENTRIES + 2 * k


def _entries(table: bytearray | None) -> list[tuple[int, Position]]:
    words = [] if table is None else memoryview(table).cast("q").tolist()[LINK_ENTRIES:]
    return [(key, at) for key, at in zip(words[::2], words[1::2], strict=True) if key]


def _set(table: bytearray, key: int, at: Position) -> None:
    words = memoryview(table).cast("q")
    place = _place(words, key)
    words[place + 1] = at
    words[place] = key  # last: until then an entry that is cut off by an interrupt is none
    words[LINK_COUNT] += 1
