"""Elements in order, the different ones, and those chosen by numbers or conditions.

The order is of the values and has no derivative; each result is an element, equal ones by position.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapegrad.core.base import Axis, like_of, ndim_of, shape_of, undisturbed, value_of
from tapegrad.core.dispatch import as_tape_value
from tapegrad.errors import ShapeError
from tapegrad.numpy_api.indexing import where
from tapegrad.numpy_api.rearranging import gathered, in_order, numbers_in, numbers_of, rearranged
from tapegrad.numpy_api.shapes import concatenate, reshape
from tapegrad.numpy_api.tables import axis_of, composed, plain, tensor_of
from tapegrad.tensor import Operand, Out, Tensor, TensorOrArray, is_tensor, wrap

SMALL = 1000  # elements: below, stable sorting is as fast


def along(x: TensorOrArray, places: np.ndarray, axis: int) -> TensorOrArray:
    """Elements by number along an axis, others in each lane."""
    return rearranged(x, np.take_along_axis(numbers_of(x), places, axis))


def _order(value: np.ndarray, axis: int) -> TensorOrArray:
    """Places in ascending order along an axis, equal elements by position.

    NumPy's order that leaves those open takes half the time, and is the same where there are none.
    """
    if value.size >= SMALL:
        order = value.argsort(axis)
        found = np.moveaxis(np.take_along_axis(value, order, axis), axis, 0)
        if np.all(found[1:] > found[:-1]):  # not so with nan either
            return order
    return value.argsort(axis, "stable")


@dataclass(frozen=True)
class Sorted:
    """Places of elements in ascending or descending order along an axis."""

    axis: int
    descending: bool

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return them, of values."""
        if self.descending:  # which NumPy knows from 2.5 on
            how: Any = {"descending": True}
            order: Any = np.argsort(x, self.axis, stable=True, **how)
        else:
            order = _order(x, self.axis)
        return _along(x.shape, order, self.axis)


@dataclass(frozen=True)
class Partitioned:
    """Places of elements in the order of `np.partition`."""

    kth: Any
    axis: int
    kind: Any

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return them, of values."""
        return _along(x.shape, np.argpartition(x, self.kth, axis=self.axis, kind=self.kind), self.axis)


def _along(shape: tuple[int, ...], order: Any, axis: int) -> np.ndarray:
    """Places of numbers along an axis."""
    return order if len(shape) == 1 else np.take_along_axis(numbers_in(shape), order, axis)


@composed(np.sort, by_shapes=True)
@undisturbed
def sort(
    a: Tensor,
    axis: int | None = -1,
    kind: str | None = None,
    order: Any = None,
    *,
    stable: bool | None = None,
    descending: bool | None = False,
) -> TensorOrArray:
    """Elements in ascending or descending order along an axis; equal ones keep their order."""
    if order is not None:
        raise ValueError(f"sort: order={reprlib.repr(order)} names fields, and a Tensor has none")
    if axis is None:
        a, axis = reshape(a, (-1,)), 0
    at = axis_of(a, axis, "sort")
    return in_order(a, Sorted(at, bool(descending)))


@composed(np.partition, by_shapes=True)
@undisturbed
def partition(
    a: Tensor,
    kth: int | Sequence[int],
    axis: int | None = -1,
    kind: Any = "introselect",
    order: str | None = None,
) -> TensorOrArray:
    """Elements such that the k-th is where it would be sorted, smaller ones before it."""
    if order is not None:
        raise ValueError(f"partition: order={reprlib.repr(order)} names fields, and a Tensor has none")
    if axis is None:
        a, axis = reshape(a, (-1,)), 0
    at = axis_of(a, axis, "partition")
    numbers = plain(kth)
    return in_order(a, Partitioned(tuple(numbers) if np.ndim(numbers) else numbers, at, kind))


@composed(np.take_along_axis)
def take_along_axis(arr: TensorOrArray, indices: TensorOrArray, axis: int | None = -1) -> TensorOrArray:
    """Elements by number along an axis, others in each lane."""
    indices = np.asarray(plain(indices))
    if indices.dtype.kind not in "iu":
        raise TypeError(f"take_along_axis: indices are integers, found dtype {indices.dtype}")
    if axis is None:
        arr, axis = reshape(arr, (-1,)), 0
    if indices.ndim != arr.ndim:
        raise ShapeError(f"take_along_axis of shape {arr.shape}: indices of shape {indices.shape}")
    at = axis_of(arr, axis, "take_along_axis")
    return along(arr, indices, at)


# ---------------------------------------------------------------- different elements


@composed(np.unique)
def unique(
    ar: Tensor, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False,
    axis: int | None = None, *, equal_nan: bool = True, sorted: bool = True,
) -> Any:  # fmt: skip
    """The different elements in ascending order, each where it comes first."""
    _, first, inverse, counts = np.unique(
        ar._v, return_index=True, return_inverse=True, return_counts=True, axis=axis, equal_nan=equal_nan
    )
    values = reshape(ar, (-1,))[first] if axis is None else np.take(ar, first, axis=axis)
    asked = ((return_index, first), (return_inverse, inverse), (return_counts, counts))
    rest = tuple(wrap(as_tape_value(found)) for wanted, found in asked if wanted)
    return (values, *rest) if rest else values


def _named(function: Callable[..., Any], **wanted: bool) -> None:
    def answer(x: Operand) -> Any:
        kind = type(function(np.zeros(1)))
        found = unique(x, equal_nan=False, **wanted)
        return kind(*found) if wanted else found

    composed(function)(answer)


_named(np.unique_all, return_index=True, return_inverse=True, return_counts=True)
_named(np.unique_counts, return_counts=True)
_named(np.unique_inverse, return_inverse=True)
_named(np.unique_values)


def _first(x: Operand, numbers: Operand) -> Tensor:
    return reshape(tensor_of(x), (-1,))[numbers]


@composed(np.union1d)
def union1d(ar1: Operand, ar2: Operand) -> Tensor:
    """The different elements of two arrays."""
    both = concatenate([tensor_of(ar1), tensor_of(ar2)], None)
    return _first(both, np.unique(both._v, return_index=True)[1])


@composed(np.intersect1d)
def intersect1d(
    ar1: Operand, ar2: Operand, assume_unique: bool = False, return_indices: bool = False
) -> TensorOrArray | tuple[Tensor, Tensor, Tensor]:
    """The elements of the first array that the second has too."""
    _, one, two = np.intersect1d(value_of(ar1), value_of(ar2), assume_unique, return_indices=True)
    values = _first(ar1, one)
    return (values, wrap(one), wrap(two)) if return_indices else values


@composed(np.setdiff1d)
def setdiff1d(ar1: Operand, ar2: Operand, assume_unique: bool = False) -> TensorOrArray:
    """The elements of the first array that the second has not."""
    x = np.ravel(value_of(ar1))
    numbers = np.arange(x.size) if assume_unique else np.unique(x, return_index=True)[1]
    return _first(ar1, numbers[np.isin(x[numbers], value_of(ar2), invert=True)])


@composed(np.setxor1d)
def setxor1d(ar1: Operand, ar2: Operand, assume_unique: bool = False) -> TensorOrArray:
    """The elements that one of two arrays has."""
    if not assume_unique:
        ar1, ar2 = unique(ar1) if is_tensor(ar1) else np.unique(ar1), (
            unique(ar2) if is_tensor(ar2) else np.unique(ar2)
        )  # fmt: skip
    both = concatenate([tensor_of(ar1), tensor_of(ar2)], None)
    _, first, counts = np.unique(both._v, return_index=True, return_counts=True)
    return _first(both, first[counts == 1])


# ---------------------------------------------------------------- choices


@composed(np.choose)
def choose(a: Operand, choices: Any, out: Out = None, mode: Any = "raise") -> TensorOrArray:
    """Each element out of the array that a number names."""
    numbers = np.asarray(plain(a))
    if numbers.dtype.kind not in "iub":
        raise TypeError(f"choose: integers name the choices, found dtype {numbers.dtype}")
    members = list(choices) if isinstance(choices, (list, tuple)) else list(iter(choices))
    return gathered(members, lambda *places: np.choose(numbers, places, mode=mode))


@composed(np.select, by_shapes=True)
def select(
    condlist: Sequence[Operand], choicelist: Sequence[TensorOrArray], default: Operand = 0
) -> TensorOrArray:
    """Each element out of the choice whose condition is the first to hold."""
    conditions = [np.asarray(c) if not is_tensor(c) else c for c in condlist]
    if len(conditions) != len(choicelist):
        raise ShapeError(f"select: {len(conditions)} conditions for {len(choicelist)} choices")
    if not conditions:
        raise ValueError("select: at least one condition is needed")
    for k, condition in enumerate(conditions):
        dtype = like_of(condition).dtype
        if dtype.kind != "b":
            raise TypeError(f"select: condition {k} has dtype {dtype}; it has to be boolean")
    choices = [tensor_of(x) for x in (*choicelist, default)]
    dtype = np.result_type(
        *(x if type(x) in (int, float, bool) else like_of(x) for x in (*choicelist, default))
    )
    shape = np.broadcast_shapes(*(shape_of(x) for x in (*conditions, *choices)))
    found = np.broadcast_to(choices[-1], shape)
    for condition, choice in zip(conditions[::-1], choices[-2::-1], strict=True):
        found = where(condition, choice, found)
    return np.astype(found, dtype)


@composed(np.piecewise)
def piecewise(
    x: TensorOrArray, condlist: Sequence[Tensor], funclist: Any, *args: float, **kw: Any
) -> TensorOrArray:
    """Functions each of the elements where a condition holds; the last of one too many, elsewhere."""
    values = shape_of(x)
    given = plain(condlist)
    single = np.isscalar(given) or (np.ndim(given[0]) == 0 and len(values) != 0)
    conditions = np.asarray([given] if single else given, bool)
    if len(funclist) == len(conditions) + 1:
        conditions = np.concatenate([conditions, ~np.any(conditions, axis=0, keepdims=True)])
    elif len(funclist) != len(conditions):
        raise ShapeError(f"piecewise: {len(conditions)} conditions for {len(funclist)} functions")
    dtype = like_of(x).dtype
    pieces, places = [np.zeros(1, dtype)], np.zeros(values, int)
    start = 1
    for condition, function in zip(conditions, funclist, strict=True):
        if not np.any(condition):
            continue
        taken = x[condition]
        piece = function(taken, *args, **kw) if callable(function) else function
        piece = np.astype(np.broadcast_to(tensor_of(piece), taken.shape), dtype)
        pieces.append(reshape(piece, (-1,)))
        places[condition] = start + np.arange(taken.size)
        start += taken.size
    return concatenate(pieces)[places]


@composed(np.compress)
def compress(condition: Operand, a: Operand, axis: int | None = None, out: Out = None) -> TensorOrArray:
    """The parts along an axis where a condition holds."""
    condition = np.asarray(plain(condition))
    if condition.ndim != 1:
        raise ShapeError(f"compress: a condition of one dimension, found shape {condition.shape}")
    return np.take(a, np.flatnonzero(condition), axis=axis)


@composed(np.extract)
def extract(condition: Operand, arr: Operand) -> TensorOrArray:
    """The elements where a condition holds."""
    return reshape(arr, (-1,))[np.flatnonzero(plain(condition))]


@composed(np.apply_along_axis)
def apply_along_axis(func1d: Any, axis: int, arr: Any, *args: Any, **kwargs: Any) -> TensorOrArray:
    """A function of vectors, for each along an axis."""
    at = axis_of(arr, axis, "apply_along_axis")
    lanes = np.moveaxis(arr, at, -1)
    outer = lanes.shape[:-1]
    if 0 in outer:
        raise ShapeError(f"apply_along_axis: there is no vector along axis {axis} of shape {arr.shape}")
    found = [tensor_of(func1d(lanes[k], *args, **kwargs)) for k in np.ndindex(outer)]
    inner = shape_of(found[0])
    joined = reshape(np.stack(found), (*outer, *inner))
    ends = range(joined.ndim - len(inner), joined.ndim)
    return np.moveaxis(joined, list(ends), list(range(at, at + len(inner))))


@composed(np.apply_over_axes)
def apply_over_axes(func: Callable[..., TensorOrArray], a: TensorOrArray, axes: Axis) -> TensorOrArray:
    """A function that takes an axis, for one axis after the other."""
    for axis in np.atleast_1d(plain(axes)):
        at = axis_of(a, int(axis), "apply_over_axes")
        found = func(a, at)
        lost = a.ndim - ndim_of(found)
        if lost not in (0, 1):
            raise ShapeError(
                f"apply_over_axes: shape {a.shape} became {found.shape}; one axis is to go, or none"
            )
        a = np.expand_dims(found, at) if lost else found
    return a
