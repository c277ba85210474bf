"""Arrays that calls bring are copied into buffers of a program; large ones only where they are others.

Some are not copied at all, but read in place: see `in_place`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tapegrad.compilation.programs.in_place import InPlace
from tapegrad.config import guard_setting
from tapegrad.kernels.replay.layout import SUMMED
from tapegrad.tape.tape import checksum

MOST_RESTS = 64  # copies in a row at most without a checksum, where the latest ones were in vain


class _Content:
    """What a buffer holds."""

    def __init__(self, buffer: np.ndarray) -> None:
        self.buffer = buffer  # whose address is nobody else's while this lives
        self.sum: int | None = None
        self.pause = 1  # copies up to the next checksum, which double with each that was in vain
        self.rests = 0


class Copies:
    """What buffers hold that take arrays: those of programs that have buffers in common are known by one."""

    def __init__(self) -> None:
        self._contents: dict[int, _Content] = {}
        self._in_place: dict[int, InPlace] = {}  # by the ids of buffers
        self._held: list[InPlace] = []  # of the call at work

    def buffer_in_place(self, like: np.ndarray) -> np.ndarray:
        """Return a buffer by which arrays like this one are known that are read in place."""
        made = InPlace(like)
        self._in_place[id(made.buffer)] = made
        return made.buffer

    def in_place(self) -> Iterable[InPlace]:
        """What may be read in place."""
        return [*self._in_place.values()]

    def held_for(self, buffer: Any) -> InPlace | None:
        """What is read in place at present that rows know by a buffer."""
        found = self._in_place.get(id(buffer))
        return None if found is None or found.array is None else found

    def value_of(self, buffer: Any) -> Any:
        """Return what a buffer stands for in the call at work."""
        found = self.held_for(buffer)
        return buffer if found is None else found.array

    def bring(self, buffer: np.ndarray, x: Any) -> None:
        """As `take`, of a plain array; some are held, and read in place."""
        found = self._in_place.get(id(buffer))
        if found is None or type(x) is not np.ndarray:
            self.take(buffer, x)
            return
        self._contents.pop(id(buffer), None)
        self._held.append(found)
        guard = guard_setting()
        if guard == "copy" or x.strides != buffer.strides or not x.flags.aligned:
            found.array, found.is_filled, buffer[...] = None, True, x
        else:
            found.sum = checksum(x) if guard == "checksum" else None
            found.array = x.view()  # whose shape is nobody else's

    def fill(self) -> None:
        """Have copies of all that is held."""
        for held in self._held:
            held.fill()

    def are_written(self) -> bool:
        """Whether some array that is held was written to since the call has brought it."""
        return any(held.written() is not None for held in self._held)

    def release(self) -> None:
        """Hold no arrays, as the call has ended."""
        while self._held:
            self._held.pop().release()

    def take(self, buffer: np.ndarray, x: Any) -> None:
        """Let a buffer hold a number, or the elements of an array of its shape and dtype.

        They are there already if the array has the checksum that the buffer's elements had after the latest
        copy: it is what a tape guards such arrays by.
        """
        if buffer.nbytes < SUMMED:
            buffer[...] = x
            return
        content = self._contents.get(id(buffer))
        if content is None:
            content = self._contents[id(buffer)] = _Content(buffer)
        dense = x.flags.forc and x.strides == buffer.strides
        known, content.sum = content.sum, None  # nothing is known while it is written to
        if known is not None and dense and guard_setting() != "copy":
            if checksum(x) == known:
                content.sum, content.pause = known, 1
                return
            content.pause = min(2 * content.pause, MOST_RESTS)
            content.rests = content.pause
        buffer[...] = x
        if content.rests:
            content.rests -= 1
        elif dense:
            content.sum = checksum(buffer)  # not of the array, to which another thread may be writing
