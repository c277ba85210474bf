"""Indices as NumPy knows them: what they are made of, and what they take of a value."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.core.base import value_of
from tapegrad.core.dispatch import contains_tensor
from tapegrad.errors import BorderError

BASIC = int, np.integer, slice, type(None), type(Ellipsis)
PLAIN = {int, type(None), type(Ellipsis), np.ndarray}


def elements(value: np.ndarray, index: Any, what: str = "") -> Any:
    """Return what NumPy takes of a Tensor's value by an index; `what` begins the message of an error."""
    try:
        return value[index]
    except (IndexError, TypeError, ValueError) as error:
        kind = IndexError if isinstance(error, IndexError) else type(error)
        raise kind(f"{what}index {index!r} of a Tensor of shape {value.shape}: {error}") from error


def parts_of(index: Any) -> tuple[tuple[Any, ...], bool]:
    """Return the parts of an index, and whether it is a basic one: of integers, slices, None and Ellipsis."""
    parts = index if isinstance(index, tuple) else (index,)
    for i in parts:
        if not isinstance(i, BASIC) or type(i) is bool:
            return parts, False
    return parts, True


def plain_index(index: Any) -> Any:
    """Return an index with Tensors in it replaced by their values."""
    kind = type(index)
    if kind in PLAIN or (
        kind is slice
        and type(index.start) in PLAIN
        and type(index.stop) in PLAIN
        and type(index.step) in PLAIN
    ):
        return index
    contains_tensor(index)  # refuses endless nesting
    if isinstance(index, tuple):
        return tuple(plain_index(i) for i in index)
    if isinstance(index, slice):
        return slice(*(plain_index(i) for i in (index.start, index.stop, index.step)))
    if isinstance(index, list):
        if contains_tensor(index):
            raise BorderError("a list of Tensors is no index; use tg.array([...])")
        return np.asarray(index) if index else np.empty(0, np.intp)
    return value_of(index)
