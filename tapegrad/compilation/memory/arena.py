"""Memory of a plan: what only its rows know takes the place of what they do not need any more.

So it stays in the caches; in buffers of its own each value would come from memory, and go there.
"""

from __future__ import annotations

import functools
from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds

from tapegrad.kernels import abi
from tapegrad.kernels.words import Address

SMALLEST = 4096  # bytes of what is moved: anything less stays in the caches where it is
LINE = 64  # bytes of a line of the caches


class Use(NamedTuple):
    """Memory that a step touches: where the step stands, and whether it writes all of that memory."""

    place: int
    low: Address
    high: Address
    writes: bool


class _Life:
    """An array from its first use to its last."""

    __slots__ = "first", "high", "is_ours", "last", "low", "offset"

    def __init__(self, uses: Sequence[Use]) -> None:
        self.low, self.high = min(use.low for use in uses), max(use.high for use in uses)
        self.first, self.last = uses[0].place, uses[-1].place
        self.offset = -1  # in the arena, if it is moved
        self.is_ours = self.high - self.low >= SMALLEST and _are_known(uses)

    @property
    def room(self) -> int:
        """How many bytes it takes of the arena, in which it begins with a line."""
        return -(-(self.high - self.low) // LINE) * LINE


def _are_known(uses: Iterable[Use]) -> bool:
    """Whether what each use reads has been written before."""
    written: list[tuple[Address, Address]] = []
    for use in uses:
        reached = use.low
        for low, high in written:
            reached = max(reached, high) if low <= reached else reached
        if use.writes and reached < use.high:
            written = sorted([*written, (use.low, use.high)])
        if not use.writes and reached < use.high:
            return False
    return True


def _fit(spans: Sequence[tuple[int, int, int]]) -> tuple[int, list[int]]:
    """How much room there has to be for what is there from one time to another, and where each is."""
    offsets, size = [0] * len(spans), 0
    here: list[tuple[int, int, int]] = []  # from where, to where and up to what time, in order
    for k in sorted(range(len(spans)), key=lambda k: spans[k][0]):
        begin, end, room = spans[k]
        here = [x for x in here if x[2] >= begin]
        at = 0
        for x in here:
            if x[0] >= at + room:
                break
            at = x[1]
        insort(here, (at, at + room, end))
        offsets[k], size = at, max(size, at + room)
    return size, offsets


class Arena:
    """One array that takes what others hold, each from its first use to its last.

    Parameters
    ----------
    uses
        By array, in order. An array of which something is read that was not written before stays where it is.

    Attributes
    ----------
    memory
        The array, of bytes.
    is_fixed
        Whether anything else knows it than addresses.
    """

    def __init__(self, uses: Iterable[Sequence[Use]]) -> None:
        self._lives = sorted((x for x in map(_Life, uses) if x.is_ours), key=lambda x: x.low)
        self._lows = [x.low for x in self._lives]
        self.memory, self.is_fixed = np.zeros(0, np.uint8), False

    def allocate(self, addresses: Iterable[Address]) -> None:
        """Find places for what these addresses lie in."""
        lives = [*{id(x): x for at in addresses if (x := self._life(at)) is not None}.values()]
        forward = _fit([(x.first, x.last, x.room) for x in lives])
        backward = _fit([(-x.last, -x.first, x.room) for x in lives])
        size, offsets = min(forward, backward)
        for life, offset in zip(lives, offsets, strict=True):
            life.offset = offset
        memory = np.empty(size + LINE, np.uint8)
        begin = -abi.address(memory) % LINE
        self.memory = memory[begin : begin + size]
        self._at = abi.address(self.memory)

    def forget(self) -> None:
        """Know no arrays any more: nothing is to be moved."""
        self._lives.clear()
        self._lows.clear()

    def _life(self, at: Address) -> _Life | None:
        """Which array an address lies in."""
        k = bisect_right(self._lows, at) - 1
        return self._lives[k] if k >= 0 and at < self._lives[k].high else None

    def place(self, at: Address) -> Address:
        """Where what an address has is now."""
        life = self._life(at)
        return at if life is None or life.offset < 0 else self._at + life.offset + at - life.low

    def moved(self, x: Any) -> Any:
        """Return an argument of a function, or the function, with arrays that are where they are now."""
        if isinstance(x, np.ndarray):
            if x.size == 0 or self.place(byte_bounds(x)[0]) == byte_bounds(x)[0]:
                return x
            self.is_fixed = True
            offset = self.place(abi.address(x)) - self._at
            return np.ndarray(x.shape, x.dtype, self.memory.data, offset, x.strides)
        if isinstance(x, tuple):
            found = tuple(map(self.moved, x))
            return x if all(a is b for a, b in zip(x, found, strict=True)) else found
        if isinstance(x, functools.partial):
            out = self.moved(x.keywords["out"])
            return x if out is x.keywords["out"] else functools.partial(x.func, out=out)
        owner = getattr(x, "__self__", None)
        if isinstance(owner, np.ndarray):
            now = self.moved(owner)
            return x if now is owner else getattr(now, x.__name__)
        return x
