"""Medians and quantiles: means of neighbours in sorted order, with weights that depend on q alone.

NumPy itself says where a quantile lies: asked for the quantile of the ranks 0, 1, ..., n - 1, it gives the
neighbours in sorted order and the way between them, for each of its methods and for weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tapegrad.core.base import Axis, DType, like_of, ndim_of, requires_grad, shape_of, value_of
from tapegrad.core.notes import is_compared, note_parts
from tapegrad.core.operators import constant_value
from tapegrad.errors import DTypeError
from tapegrad.numpy_api.rearranging import in_order, rearranged
from tapegrad.numpy_api.sorting import along
from tapegrad.numpy_api.tables import axes_of, composed, plain, tensor_of
from tapegrad.ops import REGISTRY
from tapegrad.tensor import Operand, Out, TensorOrArray, apply, is_tensor

MEAN = REGISTRY["mean"]

# How fast the place of a quantile moves with q, and where it is for q = 0: n - less and first. The methods
# that are not here jump from element to element.
METHODS = {
    "linear": (1.0, 0.0), "interpolated_inverted_cdf": (0.0, -1.0), "hazen": (0.0, -0.5),
    "weibull": (-1.0, -1.0), "median_unbiased": (-1 / 3, -2 / 3), "normal_unbiased": (-0.25, -0.625),
}  # fmt: skip


def _lanes(a: Any, axis: Axis, what: str) -> tuple[TensorOrArray, tuple[int, ...]]:
    """The array with the reduced axes as its last, and the shape of a result with them kept."""
    axes = axes_of(a, axis, what)
    if len(axes) == ndim_of(a) == 1:
        return a, (1,)
    rest = [d for d in range(a.ndim) if d not in axes]
    moved = np.transpose(a, (*rest, *axes))
    kept = tuple(1 if d in axes else n for d, n in enumerate(a.shape))
    return np.reshape(moved, (*(a.shape[d] for d in rest), -1)), kept


def _sorted(x: TensorOrArray) -> TensorOrArray:
    return along(x, np.argsort(value_of(x), axis=-1, kind="stable"), x.ndim - 1)


def _ranks(x: Operand, skip: bool) -> np.ndarray:
    """Each element's place in its sorted lane; nan where it is nan."""
    order = np.argsort(value_of(x), axis=-1, kind="stable")
    found = np.empty(order.shape)
    np.put_along_axis(found, order, np.broadcast_to(np.arange(order.shape[-1], dtype=float), order.shape), -1)
    if skip:
        found[np.isnan(value_of(x))] = np.nan
    return found


def _quantile(name: str, scale: float) -> Any:
    reference = getattr(np, name)
    skip = name.startswith("nan")

    def function(
        a: Any, q: Operand, axis: Axis = None, out: Out = None, overwrite_input: bool = False,
        method: Any = "linear", keepdims: bool = False, *, weights: Operand | None = None,
    ) -> TensorOrArray:  # fmt: skip
        a, given, q = tensor_of(a), plain(q), tensor_of(q)
        if np.iscomplexobj(like_of(a)):
            raise DTypeError(f"{name} orders real numbers, found dtype {like_of(a).dtype}")
        if like_of(a).dtype.kind != "f":
            a = np.astype(a, np.dtype(float))
        lanes, kept = _lanes(a, axis, name)
        if lanes.size == 0:
            raise ValueError(f"{name} of no elements")
        one = type(given) in (float, int, np.float64) and not is_tensor(q) and weights is None
        n = there = lanes.shape[-1]
        if skip:
            there -= int(np.count_nonzero(np.isnan(value_of(lanes))))  # in a single lane
        if one and (not skip or there == n or (there and lanes.ndim == 1)):
            beside = _neighbours(reference, given, scale, method, there, like_of(lanes).dtype)
            found = _one(lanes, skip, *beside)
            return np.reshape(found, kept) if keepdims not in (False, np._NoValue) else found
        note_parts()
        numbers, values = np.asarray(value_of(q)), value_of(lanes)
        missing = np.isnan(values)
        if weights is None and not skip:
            where_ = np.quantile(np.arange(float(n)), numbers / scale, method=method)
            where_ = np.broadcast_to(
                np.reshape(where_, (*numbers.shape, *(1,) * (lanes.ndim - 1))),
                numbers.shape + lanes.shape[:-1],
            )
        else:
            form = {} if weights is None else {"weights": _weights(name, a, plain(weights), axis)}
            where_ = reference(_ranks(lanes, True), numbers, axis=-1, method=method, **form)
        count = np.sum(~missing, axis=-1)
        bad = np.isnan(where_) | (count == 0 if skip else np.any(missing, axis=-1))
        where_ = np.where(bad, n - 1, where_)  # nan is sorted last
        below = np.floor(where_).astype(np.intp)
        above = np.minimum(below + 1, n - 1)
        way = where_ - below
        if requires_grad(q) and method in METHODS and weights is None:
            less, first = METHODS[method]
            speed = (count if skip else n) - less
            place = speed * np.reshape(numbers / scale, (*numbers.shape, *(1,) * (lanes.ndim - 1))) + first
            speed = np.where((place < 0) | (place > speed + less - 1) | bad, 0.0, speed / scale)
            wide = np.reshape(q, (*numbers.shape, *(1,) * (lanes.ndim - 1)))
            way = way + speed * (wide - value_of(wide))
        rows = _sorted(lanes)
        flat = (-1, *lanes.shape[:-1])
        low, high = (_picked(rows, np.reshape(k, flat), where_.shape) for k in (below, above))
        dtype = reference(np.zeros(2, values.dtype), given, method=method).dtype
        found = np.astype(_between(low, high, np.astype(way, dtype)), dtype, copy=False)
        return np.reshape(found, (*numbers.shape, *kept)) if keepdims not in (False, np._NoValue) else found

    return composed(reference, by_shapes=not skip)(function)


@functools.lru_cache(maxsize=256, typed=True)
def _neighbours(
    reference: Callable[..., np.ndarray], q: float, scale: float, method: Any, n: int, dtype: DType
) -> tuple[int, int, np.ndarray]:
    """The numbers in sorted order of a quantile's two neighbours among n, and the way between them."""
    place = np.quantile(np.arange(float(n)), q / scale, method=method)
    below = int(place)
    way = reference(np.zeros(2, dtype), q, method=method).dtype.type(place - below)
    return below, min(below + 1, n - 1), way


def _one(lanes: Any, skip: bool, below: int, above: int, way: Any) -> TensorOrArray:
    """The point on the way from one element in sorted order to another, of each lane."""
    low = np.astype(in_order(lanes, Ranked((below,), skip)), way.dtype, copy=False)
    if not way:
        return low
    high = np.astype(in_order(lanes, Ranked((above,), skip)), way.dtype, copy=False)
    return _between(low, high, way)


@dataclass(frozen=True)
class Ranked:
    """Places of the elements of each lane that have ranks; nan is last, and all if it is not left out."""

    ranks: tuple[int, ...]
    skip: bool

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return them, of values: of several ranks one after the other."""
        ranks, missing = list[Any](self.ranks), np.isnan(x)
        if not np.count_nonzero(missing):
            found = _of_ranks(x, ranks)
        else:
            if not self.skip:
                gone = np.any(missing, axis=-1)
                ranks = [np.where(gone, x.shape[-1] - 1, rank) for rank in ranks]
            order = x.argsort(-1, "stable")
            found = [_nth(order, rank) for rank in ranks]
        return np.asarray(found[0] if len(found) == 1 else found)


def _of_ranks(x: np.ndarray, ranks: list[int]) -> list[np.ndarray]:
    """Places of the elements of each lane that have ranks, equal ones by position; none is nan.

    To sort values and look for one takes a sixth of what a stable order takes, which only ties need.
    """
    ordered, lanes = np.sort(x, axis=-1), x.shape[:-1]
    found = []
    for rank in ranks:
        at = (x == ordered[..., rank, None]).ravel().nonzero()[0]
        if at.size != prod(lanes):
            order = x.argsort(-1, "stable")
            return [_nth(order, rank) for rank in ranks]
        found.append(at.reshape(lanes))
    return found


def _picked(rows: TensorOrArray, numbers: np.ndarray, shape: tuple[int, ...]) -> TensorOrArray:
    """Elements of each lane by number, for the numbers along the first axis."""
    return np.reshape(along(rows, np.moveaxis(numbers, 0, -1), rows.ndim - 1).transpose(
        (rows.ndim - 1, *range(rows.ndim - 1))), shape)  # fmt: skip


def _between(low: TensorOrArray, high: TensorOrArray, way: TensorOrArray) -> Any:
    """A point on the way from one number to another, at either end exactly that."""
    whole = value_of(way) == 0
    if not is_tensor(way) and np.all(whole):
        return low
    step = high - low
    if not ndim_of(way) and not is_tensor(way):
        return high - step * (1 - way) if way >= 0.5 else low + step * way
    found = np.where(value_of(way) >= 0.5, high - step * (1 - way), low + step * way)
    return found if is_tensor(way) else np.where(whole, low, found)


def _weights(name: str, a: TensorOrArray, weights: Operand, axis: Axis) -> TensorOrArray:
    """Weights along the last axis, as the lanes are laid."""
    weights = np.asarray(weights)
    if weights.shape != a.shape:
        return weights
    return _lanes(weights, axis, name)[0]


quantile, nanquantile = _quantile("quantile", 1.0), _quantile("nanquantile", 1.0)
percentile, nanpercentile = _quantile("percentile", 100.0), _quantile("nanpercentile", 100.0)


def _median(name: str) -> Any:
    skip = name.startswith("nan")

    def function(a: Operand, axis: Axis = None, out: Out = None, overwrite_input: bool = False,
                 keepdims: bool = False) -> TensorOrArray:  # fmt: skip
        lanes, kept = _lanes(a, axis, name)
        n = shape_of(lanes)[-1]
        if n == 0:
            raise ValueError(f"{name} of no elements")
        if not skip and (axis is not None or is_compared()):
            found = _middle(lanes, (n - 1) // 2, n // 2, axis is None)
            return np.reshape(found, kept) if keepdims not in (False, np._NoValue) else found
        note_parts()
        values = value_of(lanes)
        missing = np.isnan(values)
        low: Any = (n - 1) // 2
        high: Any = n // 2
        whole = not np.count_nonzero(missing)
        if not whole:
            count = np.sum(~missing, axis=-1) if skip else np.where(np.any(missing, axis=-1), 0, n)
            low = np.where(count == 0, n - 1, (count - 1) // 2)  # nan is sorted last
            high = np.where(count == 0, n - 1, count // 2)
        order = values.argsort(-1, "stable")
        one, two = _nth(order, low), _nth(order, high)
        odd, ties = np.array_equal(one, two) if not whole else low == high, False
        if axis is None:  # of equal elements, which are neighbours in order
            near = values[order[max(int(low) - 1, 0) : int(high) + 2]].tolist()
            ties = len(set(near)) < len(near)
        if odd or ties or not whole:
            parts = [rearranged(lanes, at) for at in ((one,) if odd else (one, two))]
            if ties:
                parts = [_shared(lanes, part) for part in parts]
            found = parts[0] if odd else parts[0] * 0.5 + parts[1] * 0.5
        else:
            found = apply(MEAN, (rearranged(lanes, np.array([one, two])),), {"axis": (0,), "keepdims": False})
        return np.reshape(found, kept) if keepdims not in (False, np._NoValue) else found

    return composed(getattr(np, name), by_shapes=not skip)(function)


def _middle(lanes: TensorOrArray, low: int, high: int, shared: bool) -> TensorOrArray:
    """The mean of the elements of two ranks, of each lane; in the only one equal elements have shares."""
    if shared:
        parts = [_shared_if_equal(lanes, in_order(lanes, Ranked((k,), False))) for k in {low, high}]
        return parts[0] if low == high else apply(MEAN, (np.stack(parts),), {"axis": (0,), "keepdims": False})
    if low == high:
        return in_order(lanes, Ranked((low,), False))
    both = in_order(lanes, Ranked((low, high), False))
    return apply(MEAN, (both,), {"axis": (0,), "keepdims": False})


def _nth(order: np.ndarray, k: Any) -> np.ndarray:
    """The place of the k-th element of each lane, lanes being rows."""
    lanes = order.shape[:-1]
    found = order[..., k] if type(k) is int else np.take_along_axis(order, k[..., None], -1)[..., 0]
    return found + order.shape[-1] * np.arange(prod(lanes)).reshape(lanes) if lanes else np.array(found)


def _shared(x: TensorOrArray, found: Operand) -> Any:
    """An element of x whose derivative all elements equal to it share evenly."""
    value = value_of(found)
    ties = value_of(x) == value
    if np.sum(ties) < 2 or not np.isfinite(value):
        return found
    return value + np.sum(np.where(ties, x - value, x.dtype.type(0))) / int(np.sum(ties))


def _shared_if_equal(x: Any, found: Any) -> Any:
    """As `_shared`, without a look at values."""
    value, zero, one = constant_value(found), x.dtype.type(0), x.dtype.type(1)
    finite, equal = np.isfinite(value), np.equal(x, value)
    count = np.sum(np.where(equal, one, zero))
    near = np.where(finite, value, zero)
    shared = near + np.sum(np.where(equal, x - near, zero)) / np.maximum(count, one)
    return np.where(np.logical_and(finite, count > 1), shared, found)


median, nanmedian = _median("median"), _median("nanmedian")
