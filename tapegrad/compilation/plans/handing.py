"""Memory that a plan has for a call: derivatives that the call gives away, and the place of its arena.

So derivatives are not copied, and nothing is there for them between calls; and plans, of which mostly one
computes at a time, have the memory of their arenas in common. All rows know of other memory by one compiled
call, so that no interrupt leaves some of them with what is somebody else's now.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterable, Sequence

import numpy as np

from tapegrad.compilation.memory.arena import LINE, Arena
from tapegrad.compilation.memory.pages import LARGE, give_back
from tapegrad.compilation.programs.in_place import InPlace
from tapegrad.compilation.rows.rows import Rows, is_dense
from tapegrad.kernels import abi, programs
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address
from tapegrad.tape import pool


class Words:
    """Words of rows that lead to elements of an array."""

    def __init__(self, words: Sequence[Address], at: Address) -> None:
        self._words, self._first = np.array(words, np.int64), ctypes.c_int64.from_address(words[0])
        self._offset, self._move = self._first.value - at, programs.load()
        self._where = abi.address(self._words), self._words.size

    @property
    def at(self) -> Address:
        """Where the array is to which they lead."""
        return self._first.value - self._offset

    def move(self, at: Address) -> None:
        """Let them lead to another one."""
        by = at - self.at
        if by:
            self._move(layout.MOVE_WORDS, *self._where, by)


class Target:
    """Where a plan writes a derivative: for a call that gives it away to memory of its own."""

    def __init__(self, words: Sequence[Address], buffer: np.ndarray) -> None:
        self._buffer, self._home = buffer, abi.address(buffer)  # which is not used while the plan computes
        self._words, self._known = Words(words, self._home), {self._home: buffer}

    @property
    def array(self) -> np.ndarray:
        """What is written to at present."""
        return self._known[self._words.at]

    def begin(self) -> None:
        """Write to memory that is to be given away."""
        if self._words.at == self._home:
            new = pool.empty(self._buffer.shape, self._buffer.dtype)
            at = abi.address(new)
            self._known[at] = new
            self._words.move(at)

    def take(self) -> np.ndarray:
        """What was written to since `begin`."""
        found = self.array
        self._words.move(self._home)
        self._known = {self._home: self._buffer}
        return found.copy() if found is self._buffer else found

    def release(self) -> None:
        """Give back what rows have written."""
        give_back(self._buffer)


class _Room:
    """Memory for an arena, which one plan has at a time."""

    def __init__(self, size: int) -> None:
        self.size, self.lock = size, threading.Lock()
        self._memory = np.empty(size + LINE, np.uint8)
        self.at = abi.address(self._memory) + -abi.address(self._memory) % LINE

    def clear(self) -> None:
        """Give back its pages, if nobody computes there."""
        if self.lock.acquire(blocking=False):
            try:
                give_back(self._memory)
            finally:
                self.lock.release()


_common: list[_Room] = []  # that which all plans use: one at most


class Place:
    """The place of a plan's arena, in memory that plans have in common unless another one computes there."""

    def __init__(self, words: Sequence[Address], arena: np.ndarray) -> None:
        self._words, self._size = Words(words, abi.address(arena)), arena.nbytes
        self._own: _Room | None = None
        self._held: _Room | None = None
        weakref.finalize(self, _clear).atexit = False  # as others may need less

    def begin(self) -> None:
        """Have memory, up to `end`."""
        if self._held is None:
            room = _common[0] if _common else None
            if room is None or room.size < self._size:
                _common[:] = [room := _Room(self._size)]
            if not room.lock.acquire(blocking=False):
                room = self._own = self._own or _Room(self._size)
                room.lock.acquire()
            self._held = room
        self._words.move(self._held.at)

    def end(self) -> None:
        """Leave it to others."""
        room, self._held = self._held, None
        if room is not None:
            room.lock.release()

    def fill(self, byte: int) -> None:
        """Write to all of it."""
        ctypes.memset(self._words.at, byte, self._size)


def _clear() -> None:
    for room in _common:
        room.clear()


def place_of(rows: Rows, arena: Arena) -> Place | None:
    """The place of the arena of sealed rows; None where it is small, or functions of Python's know it."""
    if arena.memory.nbytes < LARGE or arena.is_fixed:
        return None
    return Place(_leading_to(arena.memory, rows.places()), arena.memory)


def _leading_to(x: np.ndarray, places: Iterable[tuple[Address, Address]]) -> list[Address]:
    """Words that have the address of an element of a dense array; places are words with what they have."""
    low, high = abi.address(x), abi.address(x) + x.nbytes
    return [word for word, at in places if low <= at < high]


def sources_of(rows: Rows, arrays: Iterable[InPlace]) -> tuple[list[tuple[InPlace, Words]], list[InPlace]]:
    """Arrays that sealed rows read, with the words that lead there; and those that functions know too."""
    places, known = [*rows.places()], [*rows.arrays()]
    sources, others = [], []
    for x in arrays:
        if any(np.may_share_memory(x.buffer, y) for y in known):
            others.append(x)
        elif words := _leading_to(x.buffer, places):
            sources.append((x, Words(words, abi.address(x.buffer))))
    return sources, others


def targets_of(rows: Rows, buffers: Sequence[np.ndarray | None]) -> dict[int, Target]:
    """Targets for large buffers of sealed rows, by number: of those that only addresses in rows lead to.

    Parameters
    ----------
    rows
        The rows of a plan.
    buffers
        What they give, in which nothing is looked for before it is written.
    """
    found = {}
    words = [(word, address) for word, address in rows.places() if address]
    arrays = [*rows.arrays()]
    for k, x in enumerate(buffers):
        if x is None or x.nbytes < LARGE or not is_dense(x) or abi.owner_of(x).nbytes != x.nbytes:
            continue
        mine = _leading_to(x, words)
        others = [*arrays, *(y for q, y in enumerate(buffers) if q != k and y is not None)]
        if mine and not any(np.may_share_memory(x, y) for y in others):
            found[k] = Target(mine, x)
    return found
