"""Arrays that calls bring are copied into buffers of a program; large ones only where they are others."""

from __future__ import annotations

from typing import Any

import numpy as np

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
