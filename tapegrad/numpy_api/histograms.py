"""Histograms. Counts have no derivative; sums of weights and the edges of bins do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.core.base import decide, like_of, ndim_of, requires_grad, shape_of, value_of
from tapegrad.errors import DTypeError, ShapeError
from tapegrad.numpy_api.tables import composed, plain, tensor_of
from tapegrad.ops import indexing
from tapegrad.tensor import Operand, TensorOrArray, is_tensor, wrap

add_at = indexing.add_at


@composed(np.bincount)
def bincount(x: Operand, /, weights: Any = None, minlength: int = 0) -> TensorOrArray:
    """Sums of the weights of equal numbers."""
    x = np.asarray(plain(x))
    if weights is None or x.dtype.kind not in "iub":
        raise DTypeError(f"bincount counts integers, found dtype {x.dtype}; only weights have a derivative")
    if np.iscomplexobj(like_of(tensor_of(weights))):
        raise DTypeError(f"bincount adds real weights, found dtype {weights.dtype}")
    if x.shape != weights.shape or x.ndim != 1:
        raise ShapeError(f"bincount of shape {x.shape}: weights of shape {weights.shape}, both one dimension")
    size = np.bincount(x, minlength=plain(minlength)).size
    return add_at(np.astype(weights, np.dtype(float)), shape=(size,), index=x)


@composed(np.digitize)
def digitize(x: Operand, bins: Operand, right: bool = False) -> TensorOrArray:
    """The number of the bin of each element; has no derivative."""
    return wrap(np.asarray(decide(_digitized, x, bins, right))[()])


def _digitized(x: Any, bins: Any, right: bool) -> Any:
    return np.digitize(plain(x), plain(bins), right)


def _edges(a: Operand, bins: Operand, range: Any, values: np.ndarray) -> TensorOrArray:
    """Edges of bins whose values are known: those given, or equal steps from the smallest element up."""
    if np.ndim(plain(bins)) == 1:
        return bins if is_tensor(bins) else values
    moving = requires_grad(a) if range is None else any(requires_grad(end) for end in range)
    if not moving or like_of(a).size == 0:
        return values
    low, high = (np.min(a), np.max(a)) if range is None else range
    if plain(low) == plain(high):
        low, high = low - 0.5, high + 0.5
    dtype = values.dtype
    return np.astype(np.linspace(low, high, values.size), dtype)


def _bins(a: Operand, edges: np.ndarray) -> tuple[TensorOrArray, TensorOrArray]:
    """The bin of each element, and which elements lie in one; the last bin has both its ends."""
    found = np.searchsorted(edges, a, "right") - 1
    found[a == edges[-1]] = edges.size - 2
    return found, (a >= edges[0]) & (a <= edges[-1])


@composed(np.histogram_bin_edges)
def histogram_bin_edges(
    a: Operand,
    bins: Operand = 10,
    range: tuple[Operand, Operand] | None = None,
    weights: Operand | None = None,
) -> TensorOrArray:
    """Edges of the bins of a histogram."""
    values = np.histogram_bin_edges(plain(a), plain(bins), plain(range), plain(weights))
    return _edges(tensor_of(a), bins, range, values)


@composed(np.histogram)
def histogram(
    a: Operand,
    bins: Operand = 10,
    range: tuple[Operand, Operand] | None = None,
    density: bool | None = None,
    weights: Any = None,
) -> tuple[TensorOrArray, TensorOrArray]:
    """Sums of weights, or counts, in bins; as a density they are divided by the bins' widths."""
    a = tensor_of(a)
    edges = histogram_bin_edges(a, bins, range, weights)
    if requires_grad(weights):
        if shape_of(a) != weights.shape:
            raise ShapeError(f"histogram of shape {shape_of(a)}: weights of shape {weights.shape}")
        values = np.ravel(value_of(a))
        numbers, inside = _bins(values, value_of(edges))
        taken = np.ravel(weights)[np.flatnonzero(inside)]
        wide = np.astype(taken, np.result_type(taken.dtype, float), copy=False)  # as np.bincount adds
        counts = add_at(wide, shape=(like_of(edges).size - 1,), index=numbers[inside])
        counts = np.astype(counts, weights.dtype, copy=False)
    else:
        counts = np.histogram(value_of(a), plain(bins), plain(range), weights=plain(weights))[0]
    if density:
        counts = counts / np.astype(np.diff(edges), np.dtype(float), copy=False) / np.sum(counts)
    return counts, edges


def _one(bins: Operand) -> bool:
    """Whether bins are told by one number, for all dimensions."""
    return not isinstance(bins, (list, tuple)) and ndim_of(bins) == 0


@composed(np.histogramdd)
def histogramdd(
    sample: Any, bins: Any = 10, range: Sequence[tuple[int, int]] | None = None, density: bool | None = None,
    weights: Any = None,
) -> tuple[TensorOrArray, tuple[TensorOrArray, ...]]:  # fmt: skip
    """Sums of weights, or counts, in boxes."""
    if is_tensor(sample) or isinstance(sample, np.ndarray):
        columns = [sample] if ndim_of(sample) == 1 else list(np.transpose(sample))
    else:
        given = [tensor_of(x) for x in sample]
        kind = np.result_type(*(value_of(x) for x in given))
        columns = [x.astype(kind, copy=False) for x in given]
    count = len(columns)
    each = [bins] * count if _one(bins) else list(bins)
    if len(each) != count:
        raise ShapeError(f"histogramdd: {len(each)} kinds of bins for {count} dimensions")
    ranges = [None] * count if range is None else list(range)
    if len(ranges) != count:
        raise ShapeError(f"histogramdd: {len(ranges)} ranges for {count} dimensions")
    values = np.histogramdd(plain(sample), plain(each), plain(ranges))[1]
    edges = [_edges(*given) for given in zip(columns, each, ranges, values, strict=True)]
    shape = tuple(like_of(e).size - 1 for e in edges)
    found = [_bins(np.asarray(value_of(x)), value_of(e)) for x, e in zip(columns, edges, strict=True)]
    inside = np.logical_and.reduce([ok for _, ok in found])
    index = tuple(numbers[inside] for numbers, _ in found)
    if requires_grad(weights):
        if weights.shape != inside.shape:
            raise ShapeError(f"histogramdd of {inside.size} points: weights of shape {weights.shape}")
        counts = add_at(np.astype(weights, np.dtype(float))[np.flatnonzero(inside)], shape=shape, index=index)
    else:
        counts = np.zeros(shape)
        np.add.at(counts, index, 1.0 if weights is None else np.asarray(plain(weights))[inside])
    if density:
        counts = counts / np.sum(counts)
        for axis, e in enumerate(edges):
            widths = np.diff(e)
            counts = counts / np.reshape(widths, tuple(-1 if d == axis else 1 for d in np.arange(count)))
    return counts, tuple(edges)


@composed(np.histogram2d)
def histogram2d(
    x: Operand, y: Operand, bins: Any = 10, range: Operand | None = None, density: bool | None = None,
    weights: Operand | None = None,
) -> tuple[TensorOrArray, TensorOrArray, TensorOrArray]:  # fmt: skip
    """Sums of weights, or counts, in rectangles."""
    x, y = tensor_of(x), tensor_of(y)
    if shape_of(x) != shape_of(y):
        raise ShapeError(f"histogram2d of shapes {shape_of(x)} and {shape_of(y)}")
    both = not _one(bins) and len(bins) not in (1, 2)
    found, edges = histogramdd([x, y], [bins, bins] if both else bins, range, density, weights)
    return found, edges[0], edges[1]
