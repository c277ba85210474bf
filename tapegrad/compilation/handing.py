"""Derivatives that a plan writes where a call gives them away: they are not copied, and need no memory twice.

After each call the plan has other memory to write to. That is what all its rows know by one compiled call, so
that no interrupt leaves some of them with what is somebody else's now.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from tapegrad.compilation.memory import LARGE, give_back
from tapegrad.compilation.rows import Rows, is_dense
from tapegrad.kernels import abi, programs
from tapegrad.kernels.replay import layout
from tapegrad.tape import pool


class Target:
    """Where a plan writes a derivative, to begin with a buffer that words of rows lead to."""

    def __init__(self, words: Sequence[int], buffer: np.ndarray) -> None:
        self._words, self._shape, self._dtype = np.array(words, np.int64), buffer.shape, buffer.dtype
        self._first = ctypes.c_int64.from_address(words[0])
        self._offset = self._first.value - abi.address(buffer)
        self._known = {abi.address(buffer): buffer}
        self._buffer: np.ndarray | None = buffer  # which is not used while the plan computes

    @property
    def array(self) -> np.ndarray:
        """What is written to at present."""
        return self._known[self._first.value - self._offset]

    def take(self) -> np.ndarray:
        """What was written to at last; from now on something else is."""
        found, new = self.array, pool.empty(self._shape, self._dtype)
        self._known[abi.address(new)] = new
        move = abi.address(new) - abi.address(found)
        programs.load()(layout.MOVE_WORDS, abi.address(self._words), self._words.size, move)
        self._known = {abi.address(new): new}
        if self._buffer is not None and found is not self._buffer:
            give_back(self._buffer)
            self._buffer = None
        return found


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
        low, high = abi.address(x), abi.address(x) + x.nbytes
        mine = [word for word, at in words if low <= at < high]
        others = [*arrays, *(y for q, y in enumerate(buffers) if q != k and y is not None)]
        if mine and not any(np.may_share_memory(x, y) for y in others):
            found[k] = Target(mine, x)
    return found
