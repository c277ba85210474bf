"""Pages of large arrays that are given back while the arrays stay, as rows know them by address.

Between calls nobody reads what a program has computed, but what users have. Where the system cannot be told
so (it is Linux's ``madvise``) nothing happens.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from tapegrad.compilation import background
from tapegrad.compilation.rows.rows import Block, Rows
from tapegrad.compilation.rows.steps import Step
from tapegrad.kernels import abi, state
from tapegrad.tape import pool

LARGE = 1 << 16  # bytes of an array from which on it is given back, and none is kept of a call learned from
MOST_STEPS = 1 << 14  # rows of a program that is planned
SOME_STEPS = 1 << 10  # rows that are forgotten at once, where there are more
FRESH = 1 << 18  # bytes of one from which on fresh pages take little of the time of what is done in them
HUGE = 1 << 22  # bytes of one that has huge pages where there are any, as NumPy's arrays have
DONT_NEED = 4  # MADV_DONTNEED
CHUNK = 64  # pages that are asked for at once


@functools.cache
def _advise() -> Callable[[int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    function = ctypes.CDLL(None, use_errno=True).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


def give_back(x: np.ndarray) -> None:
    """Give back the pages that an array has to itself: it is zeros there when it is next read."""
    if not has_pages(x):
        return
    advise = _advise()
    if advise is not None:
        begin = -(-abi.address(x) // mmap.PAGESIZE) * mmap.PAGESIZE
        end = abi.address(x) + x.nbytes
        if not _is_in_pages(x):
            end = end // mmap.PAGESIZE * mmap.PAGESIZE
        advise(begin, end - begin, DONT_NEED)


def has_pages(x: np.ndarray) -> bool:
    """Whether an array is given back: a large one, or one that has its pages from `Pages`."""
    return x.nbytes >= LARGE or _is_in_pages(x)


def _is_in_pages(x: np.ndarray) -> bool:
    base: Any = x.base
    return type(base) is mmap.mmap


class Pages:
    """Memory of smaller arrays, at least a page long, that have theirs to themselves as large ones have."""

    def __init__(self) -> None:
        self._chunk: Any = None
        self._free = CHUNK  # which of its pages is the next one

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """As `numpy.zeros`."""
        return self._array(shape, dtype, None) if self._takes(shape, dtype) else zeros(shape, dtype)

    def empty_like(self, x: np.ndarray) -> np.ndarray:
        """As `numpy.empty_like`."""
        if not self._takes(x.shape, x.dtype):
            return empty_like(x)
        return self._array(x.shape, x.dtype, np.empty_like(x, subok=False).strides)

    def _takes(self, shape: tuple[int, ...], dtype: np.dtype) -> bool:
        return mmap.PAGESIZE <= math.prod(shape) * dtype.itemsize < LARGE and _advise() is not None

    def _array(self, shape: tuple[int, ...], dtype: np.dtype, strides: tuple[int, ...] | None) -> np.ndarray:
        count = -(-math.prod(shape) * dtype.itemsize // mmap.PAGESIZE)
        if self._free + count > CHUNK:
            self._chunk, self._free = _map(CHUNK * mmap.PAGESIZE), 0
        self._free, begin = self._free + count, self._free
        return np.ndarray(shape, dtype, self._chunk, begin * mmap.PAGESIZE, strides)


def zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """As `numpy.zeros`; a large array has pages of its own, so that it can be given back as a whole."""
    if math.prod(shape) * dtype.itemsize < LARGE or _advise() is None:
        return np.zeros(shape, dtype)
    return _in_pages(shape, dtype)


def empty_like(x: np.ndarray) -> np.ndarray:
    """As `numpy.empty_like`; a large array has pages of its own, as that of `zeros`."""
    out = np.empty_like(x, subok=False)
    return out if out.nbytes < LARGE or _advise() is None else _in_pages(out.shape, out.dtype, out.strides)


def _map(nbytes: int, kind: type[mmap.mmap] = mmap.mmap) -> mmap.mmap:
    """Pages that nobody else has, on systems that can be told of them."""
    return kind(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class _Shared(mmap.mmap):
    """Pages in which small arrays lie, of which none is given back by itself."""


def shared_pages(nbytes: int) -> Any:
    """Return memory for many arrays, of which no page is used before it is touched."""
    return bytearray(nbytes) if _advise() is None else _map(nbytes, _Shared)


def _in_pages(shape: tuple[int, ...], dtype: np.dtype, strides: tuple[int, ...] | None = None) -> np.ndarray:
    nbytes = math.prod(shape) * dtype.itemsize
    pages = _map(nbytes)
    if nbytes >= HUGE:
        with suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.ndarray(shape, dtype, pages, 0, strides)


def have_same_bytes(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether two arrays of one size, each without gaps, have the same bytes in memory."""
    return bool(_compare(abi.location(x), abi.location(y), x.nbytes) == 0)


_compare: Any = ctypes.CDLL(None).memcmp
_compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def trim() -> None:
    """Give back what recorded calls have left that no program needs."""
    state.trim()
    pool.give_back()


def is_long(count: int) -> bool:
    """Whether so many operations have more rows than are planned."""
    return count > MOST_STEPS


def forget_steps(rows: Rows, are_all: bool = False, pools: Iterable[np.ndarray] = ()) -> None:
    """Of rows that are too many to be planned keep small arrays, but not which row reads or writes which.

    That is called while rows are added, and does something now and then, once there are so many, and where
    they `are_all` there. What lies in pools is small, too.
    """
    begin = rows.settled
    if len(rows) - begin <= ((0 if are_all else SOME_STEPS) if begin else MOST_STEPS):
        return
    rows.settle()
    found: dict[int, Any] = {}

    def is_small(step: Step) -> bool:
        background.pause()
        if not (step.reads or step.writes):
            return True
        memories = {}
        for x in (*step.reads, *step.writes):
            array = x.array if type(x) is Block else x
            owner = array if array.base is None else abi.owner_of(array)
            if owner.nbytes >= LARGE and not any(owner is pool for pool in pools):
                return False
            memory = owner if owner.base is None else owner.base
            memories[id(memory)] = memory
        found.update(memories)
        return True

    rows.steps.forget(is_small)
    rows.kept += found.values()


class Releases:
    """Which large arrays no row reads any more, after each row.

    Attributes
    ----------
    after
        By the number of the row, in order; nothing for most.
    later
        The same of the rows in reverse, where these are groups behind the last row of one.
    last
        Those that no row touches, or that are smaller than what is given back after rows.
    """

    def __init__(
        self, rows: Rows, arrays: Iterable[np.ndarray], reverse: Rows | None = None,
        kept: Iterable[np.ndarray] = (), smallest: int = LARGE,
    ) -> None:  # fmt: skip
        self.after: dict[int, list[np.ndarray]] = {}
        self.later: dict[int, list[np.ndarray]] = {}
        self.last: list[np.ndarray] = []
        large = {id(x): x for x in map(abi.owner_of, arrays) if has_pages(x)}
        if not large:
            return
        for x in kept:
            large.pop(id(abi.owner_of(x)), None)
        touched = {at: k for k, step in enumerate(rows.steps) for at in _owners(step)}
        if reverse is None:
            late: dict[int, int] = {}
        else:
            late, begin = {}, 0
            for end in reverse.group_ends():
                late |= {at: end - 1 for step in reverse.steps[begin:end] for at in _owners(step)}
                begin = end
        for at, x in large.items():
            if x.nbytes < smallest:
                self.last.append(x)
            elif at in late:
                self.later.setdefault(late[at], []).append(x)
            elif at in touched:
                self.after.setdefault(touched[at], []).append(x)
            else:
                self.last.append(x)
        self.after, self.later = dict(sorted(self.after.items())), dict(sorted(self.later.items()))

    def __bool__(self) -> bool:
        return bool(self.after or self.later or self.last)

    @property
    def are_due(self) -> bool:
        """Whether rows leave something to be given back."""
        return bool(self.after or self.later)

    def run(self, rows: Rows, reverse: bool = False) -> None:
        """Run rows, or those in reverse, and give back what is read no more."""
        begin, releases = 0, self.later if reverse else self.after
        for k, arrays in releases.items():
            rows.run(begin, k + 1)
            begin = k + 1
            for x in arrays:
                give_back(x)
        rows.run(begin, len(rows))

    def give_back_after(self, k: int) -> None:
        """Give back what is read no more after a row."""
        for x in self.after.get(k, ()):
            give_back(x)

    def end(self, every: bool = True, kept: Iterable[np.ndarray] = ()) -> None:
        """Give back all of them, `every` one or those that rows leave, but for those that are kept."""
        others = {id(abi.owner_of(x)) for x in kept}
        for arrays in (*self.after.values(), *self.later.values(), self.last if every else ()):
            for x in arrays:
                if id(x) not in others:
                    give_back(x)


def _owners(step: Step) -> Iterator[int]:
    """Which arrays a row touches."""
    return (id(abi.owner_of(x)) for x in (*step.reads, *step.writes) if isinstance(x, np.ndarray))
