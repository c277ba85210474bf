"""Freed value buffers, used again for the results of large operations.

Fresh pages cost more than the arithmetic. A bounded stock of arrays by shape and dtype avoids them; its
arrays start at a multiple of 64 bytes, which the widest vector instructions read 20 % faster.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from tapegrad.kernels import abi

MIN_BYTES = 1 << 16
MAX_BYTES = 256 << 20
ALIGNMENT = 64

_stock: dict[tuple[tuple[int, ...], str], list[Any]] = {}
_held = [0]
ndarray = np.ndarray


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """As `numpy.empty`, large arrays from the stock if it has one."""
    arrays = _stock.get((shape, dtype.char))
    if arrays:
        try:
            array = arrays.pop()
        except IndexError:  # another thread was faster
            pass
        else:
            _held[0] -= array.nbytes
            return array
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < MIN_BYTES:
        return np.empty(shape, dtype)
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -abi.address(memory) % ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def give_back() -> None:
    """Return free memory to the system, where the C library can be told to (glibc)."""
    _stock.clear()
    _held[0] = 0
    try:
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        pass


def _alone() -> tuple[int, int]:
    """What `sys.getrefcount` says of an array that only a local variable holds, and of its memory."""
    value = np.empty(8, np.uint8)[:4].view(np.int32)
    memory = value.base
    return sys.getrefcount(value), sys.getrefcount(memory)


_ALONE = _alone()


def recycle(values: list[Any], places: Iterable[int]) -> None:
    """Empty these places of a list, keeping arrays from here that nothing else holds, views included."""
    for k in places:
        value = values[k]
        values[k] = None
        if type(value) is not ndarray or value.nbytes < MIN_BYTES:
            continue
        memory = value.base
        if (
            type(memory) is ndarray
            and memory.nbytes == value.nbytes + ALIGNMENT
            and (sys.getrefcount(value), sys.getrefcount(memory)) == _ALONE
            and value.flags.c_contiguous
        ):
            if _held[0] + value.nbytes > MAX_BYTES:
                _stock.clear()
                _held[0] = 0
            _held[0] += value.nbytes
            _stock.setdefault((value.shape, value.dtype.char), []).append(value)
