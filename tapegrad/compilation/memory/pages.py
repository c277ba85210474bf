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
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from tapegrad.kernels import abi, state
from tapegrad.tape import pool

LARGE = 1 << 16  # bytes of an array from which on it is given back
KEPT = mmap.PAGESIZE  # bytes of a result of a call that is learned from, from which on none is kept
MOST_STEPS = 1 << 14  # rows of a program that is planned
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
