"""Freed value buffers, used again for the results of large operations.

Fresh pages cost more than the arithmetic; a bounded stock of arrays by shape and dtype avoids them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

MIN_BYTES = 1 << 16
MAX_BYTES = 64 << 20

_stock: dict[tuple[tuple[int, ...], str], list[Any]] = {}
_held = [0]
_ALONE = sys.getrefcount(object())  # what `sys.getrefcount` says of a local that nothing else holds


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """As `numpy.empty`, from the stock if it has one."""
    arrays = _stock.get((shape, dtype.char))
    if arrays:
        try:
            array = arrays.pop()
        except IndexError:
            return np.empty(shape, dtype)
        _held[0] -= array.nbytes
        return array
    return np.empty(shape, dtype)


def recycle(values: list[Any], places: Iterable[int]) -> None:
    """Empty these places of a list, keeping large arrays that nothing else holds."""
    for k in places:
        value = values[k]
        values[k] = None
        if type(value) is np.ndarray and value.nbytes >= MIN_BYTES:
            keep(value, _ALONE + 2)


def keep(array: Any, references: int) -> None:
    """Stock an array if `references` is all there are."""
    if (
        sys.getrefcount(array) <= references
        and array.base is None
        and array.flags.c_contiguous
        and array.dtype.char in "df"
        and array.flags.writeable
    ):
        if _held[0] + array.nbytes > MAX_BYTES:
            _stock.clear()
            _held[0] = 0
        _held[0] += array.nbytes
        _stock.setdefault((array.shape, array.dtype.char), []).append(array)
