"""Indices as NumPy knows them: what they are made of, and what they take of a value."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tapegrad.core.base import value_of
from tapegrad.core.dispatch import contains_tensor
from tapegrad.errors import BorderError

BASIC = int, np.integer, slice, type(None), type(Ellipsis)
PLAIN = {int, type(None), type(Ellipsis), np.ndarray}
BOUNDS = {int, type(None)}  # of slices


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
    """Return an index with Tensors replaced by their values, and what stands for an integer by that."""
    kind = type(index)
    if kind in PLAIN or (
        kind is slice
        and type(index.start) in BOUNDS
        and type(index.stop) in BOUNDS
        and type(index.step) in BOUNDS
    ):
        return index
    contains_tensor(index)  # refuses endless nesting
    if isinstance(index, tuple):
        return tuple(plain_index(i) for i in index)
    if isinstance(index, slice):
        return slice(*(_integer(value_of(i)) for i in (index.start, index.stop, index.step)))
    if isinstance(index, list):
        if contains_tensor(index):
            raise BorderError("a list of Tensors is no index; use tg.array([...])")
        return np.asarray(index) if index else np.empty(0, np.intp)
    found = value_of(index)
    return found if isinstance(found, np.ndarray) else _integer(found)


def _integer(x: Any) -> Any:
    """The integer that something is as an index; what is none, and what cannot change, as it is."""
    if isinstance(x, (int, np.generic, type(None), type(Ellipsis))) or not hasattr(x, "__index__"):
        return x
    try:
        return operator.index(x)
    except TypeError:  # an array of several elements, which NumPy refuses
        return x
