"""Arrays built of the elements of others: repeated, rolled, padded with zeros, put in or left out."""

from __future__ import annotations

import functools
import operator
import reprlib
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tapegrad.core.base import (
    Axis,
    DType,
    Shape,
    add_saved_bytes,
    is_still,
    join,
    like_of,
    ndim_of,
    requires_grad,
    shape_of,
    value_of,
)
from tapegrad.core.conversion import astype, copy
from tapegrad.core.dispatch import expect, is_externally_writable, is_view_of, timed
from tapegrad.core.functions import implements
from tapegrad.core.notes import call_compared
from tapegrad.errors import AxisError, ShapeError, UnsupportedOpError
from tapegrad.numpy_api.indexing import flip
from tapegrad.numpy_api.rearranging import REARRANGE, gathered, numbers_of, places_of, rearranged, rearranges
from tapegrad.numpy_api.reductions import sum_
from tapegrad.numpy_api.shapes import _at_least, _members, concatenate, laid, reshape, swapaxes
from tapegrad.numpy_api.shapes import broadcast_to as _broadcast_to
from tapegrad.numpy_api.shapes import transpose as _transpose
from tapegrad.numpy_api.tables import axis_of, composed, of_number, plain, plainly, tensor_of
from tapegrad.ops import REGISTRY, shapes
from tapegrad.tape import pool
from tapegrad.tensor import Operand, Out, Tensor, TensorOrArray, is_tensor, record, wrap, wrap_without_history

VIEW = REGISTRY["view"]


# ---------------------------------------------------------------- repeated and moved


@rearranges(np.repeat)
def repeat(a: Tensor, repeats: Any, axis: int | None = None) -> TensorOrArray:
    """Each element several times."""
    repeats, axis = plain(repeats), of_number(a, axis)
    count = np.repeat(np.int8(0), repeats).size if np.size(repeats) == 1 else 0  # NumPy refuses fractions
    if count and a.ndim:
        flat = reshape(a, (-1,)) if axis is None else a
        at = axis_of(flat, 0 if axis is None else axis, "repeat")
        shape, n = flat.shape, flat.shape[at]
        wide = _broadcast_to(np.expand_dims(flat, at + 1), (*shape[: at + 1], count, *shape[at + 1 :]))
        return reshape(copy(wide), (*shape[:at], n * count, *shape[at + 1 :]))
    if axis is None:
        return gathered([a], lambda n: np.repeat(n, repeats))
    at = axis_of(a, axis, "repeat")
    return a[(*(slice(None),) * at, np.repeat(np.arange(a.shape[at]), repeats))]


@rearranges(np.tile)
def tile(A: TensorOrArray, reps: int | Sequence[int]) -> TensorOrArray:
    """An array laid side by side with itself."""
    counts = tuple(operator.index(n) for n in np.atleast_1d(plain(reps)))
    ndim = max(len(counts), A.ndim)
    shape = (1,) * (ndim - A.ndim) + A.shape
    counts = (1,) * (ndim - len(counts)) + counts
    between = [n for size in shape for n in (1, size)]
    wide = [n for pair in zip(counts, shape, strict=True) for n in pair]
    wanted = tuple(c * n for c, n in zip(counts, shape, strict=True))
    spread = _broadcast_to(reshape(A, between), tuple(wide))
    return copy(A) if wanted == A.shape else reshape(copy(spread), wanted)


@rearranges(np.resize)
def resize(a: TensorOrArray, new_shape: Shape) -> TensorOrArray:
    """Elements repeated as often as a shape needs."""
    return gathered([a], lambda n: np.resize(n, new_shape))


@rearranges(np.roll)
def roll(a: TensorOrArray, shift: Operand | None, axis: Axis = None) -> TensorOrArray:
    """Elements moved along axes; what leaves at one end comes in at the other."""
    if axis is None:
        return reshape(roll(reshape(a, (-1,)), shift, 0), a.shape)
    shifts = np.broadcast(plain(shift), axis)
    if shifts.ndim > 1:
        raise ShapeError(f"roll: shift {shift} and axis {axis} are scalars or of one dimension")
    for places, where in shifts:
        a = _rolled(a, int(places), axis_of(a, where, "roll"))
    return a if shifts.size else copy(a)


def _rolled(a: TensorOrArray, shift: int, axis: int) -> TensorOrArray:
    before, cut = (slice(None),) * axis, shift % max(a.shape[axis], 1)
    if not cut:
        return copy(a)
    return concatenate([a[(*before, slice(-cut, None))], a[(*before, slice(None, -cut))]], axis)


@implements(np.rot90, by_shapes=True)
def rot90(m: TensorOrArray, k: int = 1, axes: tuple[int, int] = (0, 1)) -> TensorOrArray:
    """Turned by right angles in the plane of two axes."""
    first, second = (axis_of(m, axis, "rot90") for axis in axes)
    if first == second:
        raise ShapeError(f"rot90: the axes {tuple(axes)} of an array of shape {m.shape} are one")
    k %= 4
    if k == 0:
        return m[...]
    if k == 2:
        return flip(m, (first, second))
    # rows are reversed, not the elements in them
    return flip(swapaxes(m, first, second), first) if k == 1 else swapaxes(flip(m, first), first, second)


@implements(np.fliplr, by_shapes=True)
def fliplr(m: TensorOrArray) -> TensorOrArray:
    """Columns in reverse order."""
    if m.ndim < 2:
        raise ShapeError(f"fliplr needs two dimensions, found shape {m.shape}")
    return flip(m, 1)


@implements(np.flipud, by_shapes=True)
def flipud(m: TensorOrArray) -> TensorOrArray:
    """Rows in reverse order."""
    if m.ndim < 1:
        raise ShapeError(f"flipud needs a dimension, found shape {m.shape}")
    return flip(m, 0)


@implements(np.rollaxis, by_shapes=True)
def rollaxis(a: TensorOrArray, axis: int, start: int = 0) -> TensorOrArray:
    """An axis moved to stand before another."""
    at, place = axis_of(a, axis, "rollaxis"), start + a.ndim if start < 0 else start
    if not 0 <= place <= a.ndim:
        raise AxisError(f"rollaxis: start {start} for an array of shape {a.shape}")
    place -= at < place
    order = [k for k in range(a.ndim) if k != at]
    return _transpose(a, (*order[:place], at, *order[place:]))


# ---------------------------------------------------------------- put in and left out


@composed(np.insert)
def insert(arr: TensorOrArray, obj: Any, values: Operand, axis: int | None = None) -> TensorOrArray:
    """Values put in before places along an axis."""
    kind = like_of(tensor_of(arr)).dtype
    if kind.kind not in "fc":  # NumPy converts the values to integers
        return plainly(np.insert, (arr, obj, values, axis), {})
    values = tensor_of(values)
    values = astype(values, kind) if requires_grad(values) else np.asarray(values, kind)
    obj = plain(obj)
    return gathered([arr, values], lambda n, new: np.insert(n, obj, new, axis))


@rearranges(np.delete)
def delete(arr: Tensor, obj: Any, axis: int | None = None) -> Tensor:
    """An array without some of its parts along an axis."""
    obj = plain(obj)
    if axis is None:
        arr, axis = reshape(arr, (-1,)), 0
    at = axis_of(arr, axis, "delete")
    return arr[(*(slice(None),) * at, np.delete(np.arange(arr.shape[at]), obj))]


@composed(np.append, by_shapes=True)
def append(arr: Operand, values: Operand, axis: int | None = None) -> TensorOrArray:
    """Values joined to the end."""
    arr, values = tensor_of(arr), tensor_of(values)
    if axis is None:
        return concatenate([arr, values], None)
    return concatenate([arr, values], axis)


@composed(np.trim_zeros)
def trim_zeros(filt: TensorOrArray, trim: Any = "fb", axis: Axis = None) -> TensorOrArray:
    """An array without the zeros at its ends."""
    form = {} if axis is None else {"axis": axis}
    filt = tensor_of(filt)
    whole = np.asarray(value_of(filt))
    marks = np.where(whole != 0, np.arange(1, whole.size + 1).reshape(whole.shape), 0)
    kept = np.trim_zeros(marks, trim, **form)
    if not kept.any():
        return filt[tuple(slice(0, n) for n in kept.shape)]
    first = np.unravel_index(int(kept[kept != 0][0]) - 1, whole.shape)
    inside = np.argwhere(kept)[0]
    starts = [int(p - q) for p, q in zip(first, inside, strict=True)]
    return filt[tuple(slice(s, s + n) for s, n in zip(starts, kept.shape, strict=True))]


@implements(np.lib.stride_tricks.sliding_window_view)
def sliding_window_view(x: Operand, window_shape: Shape, axis: Axis = None, *, subok: bool = False,
                        writeable: bool = False) -> TensorOrArray:  # fmt: skip
    """Windows that slide along axes: a read-only view, as an element is in several of them."""
    if writeable:
        raise UnsupportedOpError(
            "sliding_window_view with writeable=True: an element is in several windows; write to the array "
            "that they are a view of"
        )
    x, window, axes = tensor_of(x), plain(window_shape), plain(axis)
    shape, of = shape_of(x), value_of(x)

    def windows(a: Operand) -> np.ndarray:
        return np.lib.stride_tricks.sliding_window_view(a, window, axes)

    try:
        seen = windows(of)
    except ValueError as error:
        raise ShapeError(
            f"sliding_window_view of shape {shape}, windows {reprlib.repr(window)}: {error}"
        ) from error
    if not is_tensor(x) or not seen.ndim:
        return x if is_tensor(x) else wrap(seen)
    if not requires_grad(x):
        return join(x, wrap_without_history(seen, (x,)), of)
    apart = is_externally_writable(x)  # others may write to the memory
    try:
        attrs = places_of(np.lib.stride_tricks.sliding_window_view, shape, window, axes)
    except TypeError:  # a list, which has no hash
        attrs = None
    kept = attrs is not None
    attrs = attrs or {"places": windows(numbers_of(x)).copy(), "holes": False}
    out = record(REARRANGE, seen.copy() if apart else seen, (x,), attrs)
    if not kept:
        add_saved_bytes(out, attrs)
    return out if apart else join(x, out, of)


# ---------------------------------------------------------------- diagonals and triangles


@functools.lru_cache(maxsize=256)
def _diagonal_of(shape: tuple[int, ...], offset: int, axis1: int, axis2: int) -> tuple[Any, Any, Any]:
    """The square part with a diagonal, how `np.einsum` sees it in there, and the record's attributes."""
    if len(shape) < 2:
        raise ShapeError(f"diagonal needs two dimensions, found shape {shape}")
    like = np.broadcast_to(np.int8(0), shape)
    first, second = axis_of(like, axis1, "diagonal"), axis_of(like, axis2, "diagonal")
    if first == second:
        raise ShapeError(f"diagonal: axis1 and axis2 are both {first}, of an array of shape {shape}")
    row, column = max(-offset, 0), max(offset, 0)
    count = max(min(shape[first] - row, shape[second] - column), 0)
    part = [slice(None)] * len(shape)
    part[first], part[second] = slice(row, row + count), slice(column, column + count)
    rest = [d for d in range(len(shape)) if d not in (first, second)]
    labels = [first if d == second else d for d in range(len(shape))]
    strides = shapes.steps(shape)
    start = (row * strides[first] + column * strides[second]) * (count > 0)
    extents = (*(shape[d] for d in rest), count)
    window = (start, extents, (*(strides[d] for d in rest), strides[first] + strides[second]))
    return tuple(part), (labels, [*rest, first]), {"window": window}


@timed("diagonal")
def _diagonal(
    a: Any, offset: int, axis1: int, axis2: int, writeable: bool = False
) -> tuple[Tensor, np.ndarray | None]:
    """The view that `diagonal` is, of which nothing sees yet that it is one, and the value that it views.

    That is None where a program computes it.
    """
    part, labels, attrs = _diagonal_of(shape_of(a), operator.index(offset), axis1, axis2)
    known: Any = expect(VIEW, (a,), attrs, "" if writeable else "read-only")
    if known is not None:
        return known, None
    of = a._v
    value = np.einsum(of[part], *labels) if writeable else of.diagonal(offset, axis1, axis2)
    return record(VIEW, value, (a,), attrs), of


@implements(np.diagonal, by_shapes=True)
def diagonal(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Diagonals of the matrices that two axes span; a view."""
    out, of = _diagonal(a, offset, axis1, axis2, True)
    return join(a, out, of) if of is not None and is_view_of(out._v, of) else out


@composed(np.trace, by_shapes=True)
def trace(
    a: Operand, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: DType = None, out: Out = None
) -> Tensor:
    """Sum of a diagonal."""
    found, _ = _diagonal(a, offset, axis1, axis2)
    return sum_(found, None if ndim_of(found) == 1 else -1, dtype)


@rearranges(np.diag, when=lambda v, *k: v.ndim == 1)
def diag(v: Tensor, k: int = 0) -> Tensor:
    """The diagonal of a matrix, a read-only view, or a matrix of a diagonal."""
    if v.ndim == 2:
        found, of = _diagonal(v, k, 0, 1)
        if of is None:
            return found
        out = join(v, found, of) if is_view_of(found._v, of) else found
        out._v.flags.writeable = False
        return out
    if v.ndim != 1:
        raise ShapeError(f"diag takes one or two dimensions, found shape {v.shape}")
    return diagflat(v, k)


@rearranges(np.diagflat)
def diagflat(v: Operand, k: int = 0) -> TensorOrArray:
    """A matrix with the elements of an array on a diagonal."""
    v = tensor_of(v)
    return rearranged(v, np.diagflat(numbers_of(v) + 1, k) - 1, True)


@rearranges(np.tril)
def tril(m: Operand, k: int = 0) -> TensorOrArray:
    """A matrix with zeros above a diagonal."""
    m = _square(m)
    return np.where(np.tri(m.shape[-2], m.shape[-1], k, bool), m, m.dtype.type(0))


@rearranges(np.triu)
def triu(m: Operand, k: int = 0) -> TensorOrArray:
    """A matrix with zeros below a diagonal."""
    m = _square(m)
    return np.where(np.tri(m.shape[-2], m.shape[-1], k - 1, bool), m.dtype.type(0), m)


def _square(m: Operand) -> TensorOrArray:
    """A vector as the equal rows of a matrix, as NumPy reads it here."""
    m = tensor_of(m)
    if m.ndim == 0:
        raise ShapeError("a triangle of a matrix needs a dimension, found shape ()")
    return _broadcast_to(m, m.shape * 2) if m.ndim == 1 else m


@composed(np.vander, by_shapes=True)
def vander(x: TensorOrArray, N: int | None = None, increasing: bool = False) -> TensorOrArray:
    """Powers of a vector, as columns."""
    if x.ndim != 1:
        raise ShapeError(f"vander takes one dimension, found shape {x.shape}")
    count = x.shape[0] if N is None else N
    if count <= 0:
        return plainly(np.vander, (x, N, increasing), {})
    x = astype(x, np.promote_types(x.dtype, int))  # as NumPy does
    columns = [np.ones(x.shape, x.dtype)]
    for _ in range(count - 1):
        columns.append(columns[-1] * x)
    return np.stack(columns if increasing else columns[::-1], axis=1)


# ---------------------------------------------------------------- joined


def _at_least_of(ndim: int) -> Callable[..., Any]:
    def function(*arys: Operand) -> Any:
        found = tuple(_raised(tensor_of(x), ndim) for x in arys)
        return found[0] if len(found) == 1 else found

    return function


def _raised(x: Operand, ndim: int) -> Any:
    shape = shape_of(x)
    if len(shape) >= ndim:
        return x
    if ndim == 3 and shape:
        return reshape(x, (*shape, 1) if len(shape) == 2 else (1, *shape, 1))
    return _at_least(x, ndim)


for _n, _f in ((1, np.atleast_1d), (2, np.atleast_2d), (3, np.atleast_3d)):
    implements(_f, by_shapes=True)(_at_least_of(_n))


@implements(np.dstack, by_shapes=True)
def dstack(tup: Sequence[Operand]) -> TensorOrArray:
    """Arrays joined along a third axis."""
    return concatenate([_raised(x, 3) for x in _members(tup, "dstack")], 2)


@composed(np.block, by_shapes=True)
def block(arrays: Operand) -> TensorOrArray:
    """Arrays joined as nested lists say: the innermost along the last axis."""
    depths: set[int] = set()
    ndim = _look(arrays, 0, depths)
    if len(depths) > 1:
        raise ShapeError(f"block: lists nested to different depths {sorted(depths)}")
    depth = depths.pop()
    joined = _joined(arrays, depth, max(ndim, depth))
    return joined if depth else copy(joined)


def _look(arrays: Operand, level: int, depths: set[int]) -> int:
    """The largest number of dimensions in nested lists; notes their depths."""
    if isinstance(arrays, tuple):
        raise TypeError("block: nested lists, found a tuple")
    if isinstance(arrays, list):
        if not arrays:
            raise ShapeError("block: a list is empty")
        return max(_look(part, level + 1, depths) for part in arrays)
    depths.add(level)
    return int(ndim_of(arrays))


def _joined(arrays: Any, depth: int, ndim: int) -> TensorOrArray:
    if depth:
        return concatenate([_joined(part, depth - 1, ndim) for part in arrays], -depth)
    x = tensor_of(arrays)
    shape = shape_of(x)
    return x if len(shape) == ndim else reshape(x, (1,) * (ndim - len(shape)) + shape)


@implements(np.broadcast_arrays)
def broadcast_arrays(*args: Operand, subok: bool = False) -> tuple[TensorOrArray, ...]:
    """Arrays in the one shape that fits them all."""
    members = [tensor_of(x) for x in args]
    shape = _common_shape("broadcast_arrays", members)
    return tuple(x if shape_of(x) == shape else _spread(x, shape) for x in members)


def _spread(x: TensorOrArray, shape: tuple[int, ...]) -> Any:
    """As `np.broadcast_to`, which a program may compare."""
    return call_compared(np.broadcast_to, _broadcast_to, (x, shape), {})


def _common_shape(what: str, members: list[TensorOrArray]) -> tuple[int, ...]:
    shapes = [shape_of(x) for x in members]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise ShapeError(f"{what} of shapes {', '.join(map(str, shapes))}: {error}") from error


@implements(np.meshgrid)
def meshgrid(
    *xi: Operand, copy: bool = True, sparse: bool = False, indexing: str = "xy"
) -> tuple[TensorOrArray, ...]:
    """Coordinates of the points of a grid."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing is 'xy' or 'ij', found {reprlib.repr(indexing)}")
    members, ndim = [tensor_of(x) for x in xi], len(xi)
    axes = [1 - k if indexing == "xy" and ndim > 1 and k < 2 else k for k in range(ndim)]
    if copy and not sparse:  # nobody sees what is only repeated
        ones = [(1,) * (ndim - 1 - axis) for axis in axes]
        lines = [laid(x, (prod(shape_of(x)), *rest)) for x, rest in zip(members, ones, strict=True)]
        shape = _common_shape("meshgrid", lines)
        return tuple(_repeated(x, shape) for x in lines)
    grid = [
        reshape(x, tuple(-1 if d == axis else 1 for d in range(ndim)))
        for x, axis in zip(members, axes, strict=True)
    ]
    if not sparse:
        shape = _common_shape("meshgrid", grid)
        grid = [_spread(x, shape) for x in grid]
    return tuple(np.copy(x) for x in grid) if copy else tuple(grid)


@timed("meshgrid")
def _repeated(x: Operand, shape: tuple[int, ...]) -> Tensor:
    """As `broadcast_to`, in memory of its own."""
    value = value_of(x)
    out = pool.empty(shape, value.dtype)
    out[...] = value
    found = record(REGISTRY["broadcast_to"], out, (x,))
    return found if is_still(x, value) else _repeated(x, shape)


@implements(np.ix_)
def ix_(*args: Operand) -> tuple[Any, ...]:
    """Indices, or coordinates, along an axis each; of a mask where it is True."""
    found = zip(args, plainly(np.ix_, args, {}), strict=True)
    return tuple(reshape(x, i.shape) if is_tensor(x) and i.dtype.kind in "fc" else i for x, i in found)


def full(shape: int | Sequence[int], fill_value: Operand, dtype: DType = None, order: str = "C") -> Tensor:
    """An array of one value, or of values broadcast."""
    filled = copy(np.broadcast_to(fill_value, shape))
    return filled if dtype is None else astype(filled, dtype)


@implements(np.full_like)
def full_like(a: Operand, fill_value: Operand, dtype: DType = None, order: str = "K", subok: bool = True,
              shape: Shape | None = None, device: str | None = None) -> TensorOrArray:  # fmt: skip
    """An array of the shape and dtype of another, of one value."""
    like = np.asarray(like_of(a))
    return full(like.shape if shape is None else shape, fill_value, like.dtype if dtype is None else dtype)
