"""Indices as NumPy knows them: what they are made of, and what they take of a value or a Tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.core.base import (
    Operand,
    add_saved_bytes,
    array_of,
    is_still,
    join,
    note_copied,
    requires_grad,
    seen_by,
    value_of,
)
from tapegrad.core.dispatch import contains_tensor, is_view_of, join_number, record, wrap_without_history
from tapegrad.core.expected import expected, matcher_of
from tapegrad.core.notes import comparing
from tapegrad.errors import BorderError
from tapegrad.ops import REGISTRY
from tapegrad.tape.tape import LARGE

ndarray = np.ndarray
TAKE = REGISTRY["take"]
GETITEM = REGISTRY["getitem"]
ELEMENT = REGISTRY["element"]
INTEGER = np.dtype(np.int64)
BASIC = int, np.integer, slice, type(None), type(Ellipsis)
PLAIN = {int, type(None), type(Ellipsis), np.ndarray}
BOUNDS = {int, type(None)}  # of slices
EVERYTHING = Ellipsis


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


def getitem(x: Any, index: Any) -> Any:
    """Elements of a Tensor, by any index NumPy knows."""
    if expected and (matcher := matcher_of(x)) is not None:
        found = matcher.part(x, plain_index(index))
        if found is not None:
            return found
    value = x._v
    if type(value) is not ndarray:
        return _part_of_number(x, index)
    if type(index) is ndarray and index.dtype is INTEGER and index.ndim and requires_grad(x):
        attrs = {"index": index.copy()}
        out = record(TAKE, elements(value, index), (x,), attrs)
        if index.nbytes > LARGE:
            add_saved_bytes(out, attrs)
        return out if _is_still(x, value) else getitem(x, index)
    index = plain_index(index)
    part = elements(value, index)
    if type(part) is ndarray and part.ndim == 0:
        out = _recorded(x, index, value, part[()])
        return join_number(x, out, value, part) if is_view_of(part, value) else out
    return _recorded(x, index, value, part)


def _part_of_number(x: Any, index: Any) -> Any:
    """As `getitem`, of a Tensor without axes: what NumPy has views for are copies if it is no array."""
    number, index, value = x._v, plain_index(index), seen_by(x)
    part = elements(value, index)  # also before x becomes an array: an element or an error leaves it a number
    if type(part) is not ndarray:
        return _recorded(x, index, value, part)
    if parts_of(index)[1] and (of := array_of(x)) is not value:
        value, part = of, elements(of, index)
    out = _recorded(x, index, value, part if part.ndim else part[()])
    if not is_still(x, number):  # as when a program ended
        return getitem(x, index)
    if part.ndim == 0 and is_view_of(part, value):
        return join_number(x, out, value, part)
    return note_copied(out, x) if type(value) is not ndarray and parts_of(index)[1] else out


def _recorded(x: Any, index: Any, value: np.ndarray, part: Any) -> Any:
    """Elements that were taken of a value of a Tensor, with their history."""
    op, attrs = _basic_op(index, value, part)
    if not requires_grad(x):
        out = wrap_without_history(part, (x,))
        joined = out._extra is not None and out._extra.storage is not None
        out = out if joined or not is_view_of(part, value) else join(x, out, value)
        matcher = comparing() if op is not None else None
        if matcher is not None:
            matcher.note_plain(op, (x,), attrs, out)
        return out
    if op is None:
        attrs = {"index": _snapshot(index)}
        out = record(TAKE, part, (x,), attrs)
        add_saved_bytes(out, attrs["index"])
    else:
        out = record(op, part, (x,), attrs)
    if op is GETITEM:
        return join(x, out, value) if is_view_of(out._v, value) else out
    return out if _is_still(x, value) else getitem(x, index)


def _basic_op(index: Any, value: np.ndarray, part: Any) -> tuple[Any, dict[str, Any]]:
    """The op, and its attributes, that takes a part by a basic index; None for any other index."""
    parts, basic = parts_of(index)
    if not basic:
        return None, {}
    if isinstance(part, np.ndarray):
        return GETITEM, {"index": index}
    numbers = [i for i in parts if i is not None and i is not Ellipsis]
    place = 0
    for i, n in zip(numbers, value.shape, strict=True):
        place = place * n + (int(i) if i >= 0 else int(i) + n)
    return (ELEMENT, {"index": index, "place": place}) if place < 2**29 else (None, {})


def _is_still(x: Any, seen: np.ndarray) -> bool:
    """Whether a Tensor sees what it saw, as no finalizer has written to it."""
    return is_still(x, seen) or seen_by(x) is seen


def _snapshot(index: Any) -> Any:
    """An index that later writes to its arrays do not change."""
    if isinstance(index, tuple):
        return tuple(_snapshot(i) for i in index)
    return np.array(index) if isinstance(index, np.ndarray) else index


class Flat:
    """An index of elements by their numbers in C order, an array that nobody else writes to."""

    __slots__ = ("places",)

    def __init__(self, places: Operand) -> None:
        self.places = np.asarray(places, np.int64)


class Part:
    """An index of the elements that a function takes a view of."""

    __slots__ = ("take",)

    def __init__(self, take: Callable[[np.ndarray], np.ndarray]) -> None:
        self.take = take


def shape_at(value: np.ndarray, index: Any, what: str) -> tuple[int, ...]:
    """The shape of the elements that an index takes."""
    part: Any = value
    if type(index) is Flat:
        part = index.places
    elif type(index) is Part:
        part = index.take(value)
    elif index is not EVERYTHING:
        part = elements(value, index, f"{what}: ")  # which would be one more view
    shape: tuple[int, ...] = part.shape
    return shape
