"""Buffers of large results, used again as soon as nothing refers to them.

Fresh pages cost more than the arithmetic. Each thread keeps a bounded stock: what it handed out last, found
free by its reference count while it is still in the processor's cache, and what pruned tapes left. Buffers
start at a multiple of 64 bytes, which the widest vector instructions read 20 % faster.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from sys import getrefcount
from typing import Any

import numpy as np

from tapegrad.kernels import abi

MIN_BYTES = 1 << 16
MAX_BYTES = 1 << 24  # of one buffer
STOCK_BYTES = 1 << 28
LATEST = 8  # buffers handed out last that are looked at
ALIGNMENT = 64
MAX_SHADOWS = 1024

_shadows: dict[tuple[tuple[int, ...], str], np.ndarray] = {}
ndarray, BYTE = np.ndarray, np.dtype(np.uint8)


class _Stock(threading.local):
    def __init__(self) -> None:
        self.latest: list[Any] = []  # at most LATEST, the newest last; open tapes refer to it
        self.free: dict[int, list[np.ndarray]] = {}  # by size
        self.held = 0  # bytes of those


_stock = _Stock()


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """As `numpy.empty`, in memory of the stock where that pays."""
    nbytes = math.prod(shape) * dtype.itemsize
    if not MIN_BYTES <= nbytes <= MAX_BYTES:
        return np.empty(shape, dtype)
    size, latest = nbytes + ALIGNMENT, _stock.latest
    memory = _used_again(latest, size)
    if memory is None:
        memory = np.empty(size, np.uint8)
    latest.append(memory)
    if len(latest) > LATEST:
        del latest[0]
    return ndarray(shape, dtype, memory, -abi.location(memory) % ALIGNMENT)


def latest() -> list[np.ndarray]:
    """The buffers handed out last in this thread, in which compiled code looks for one that is free."""
    return _stock.latest


def empty_like(array: np.ndarray) -> np.ndarray:
    """As `empty`, of the shape and dtype of an array."""
    return empty(array.shape, array.dtype)


def _used_again(latest: list[Any], size: int) -> Any:
    """A buffer of the stock that nothing else refers to, or None."""
    try:
        for q in range(len(latest) - 1, -1, -1):
            memory = latest[q]
            if memory.nbytes == size and getrefcount(memory) == abi.IN_A_LIST:
                del latest[q]
                return memory
        memory = _stock.free[size].pop()
        _stock.held -= size
        return memory
    except (IndexError, KeyError):  # none is free; or a finalizer gave the stock back meanwhile
        return None


def alone(values: list[Any], holders: list[int]) -> bool:
    """Whether nothing refers to these arrays and their memory but so many holders of each, and the arrays.

    Parameters
    ----------
    values
        Distinct arrays. The caller has no variable that is one of them.
    holders
        How many places besides the list refer to each.
    """
    owners: dict[int, list[Any]] = {}
    for q, count in enumerate(holders):
        value = values[q]
        views = 0
        for other in values:
            views += other.base is value
        other = None
        if getrefcount(value) != count + views + abi.IN_A_LIST:
            return False
        base = value.base
        if base is not None and not any(base is v for v in values):
            if type(base) is not ndarray:
                return False
            owners.setdefault(id(base), [base, 0])[1] += 1
        value = base = None
    for row in owners.values():
        base = row[0]
        known = any(base is memory for memory in _stock.latest)
        if getrefcount(base) != row[1] + known + abi.IN_A_LIST:
            return False
    return True


def recycle(values: list[np.ndarray | None], places: Iterable[int]) -> None:
    """Empty these places of a list; buffers from here that nothing else holds, views included, are free."""
    stock = _stock
    for k in places:
        value = values[k]
        values[k] = None
        if type(value) is not ndarray or not MIN_BYTES <= value.nbytes <= MAX_BYTES:
            continue
        memory, size = value.base, value.nbytes + ALIGNMENT
        value = None
        if type(memory) is not ndarray or memory.dtype is not BYTE or memory.nbytes != size:
            continue
        if getrefcount(memory) == abi.IN_A_LIST - 1:  # no list has it
            if stock.held + size > STOCK_BYTES:
                if stock.free.get(size):
                    continue
                stock.free.clear()  # full of other sizes
                stock.held = 0
            stock.held += size
            stock.free.setdefault(size, []).append(memory)


def shadow(array: np.ndarray) -> np.ndarray:
    """Return an array of the same shape and dtype, of one element in memory; the same one for the same."""
    return shadow_of(array.shape, array.dtype)


def shadow_of(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array of a shape and dtype, of one element in memory; the same one for the same."""
    key = shape, dtype.char
    found = _shadows.get(key)
    if found is None:
        if len(_shadows) >= MAX_SHADOWS:
            _shadows.clear()
        found = _shadows[key] = np.broadcast_to(np.zeros((), dtype), shape)
    return found


def give_back() -> None:
    """Return free memory to the system, that of the stock too."""
    _stock.latest.clear()
    _stock.free.clear()
    _stock.held = 0
    trim()


def trim() -> None:
    """Let the C library return what it has free to the system, where it can be told to (glibc)."""
    try:
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        pass
