"""Norms of vectors and matrices, and condition numbers."""

from __future__ import annotations

import math
import reprlib
from typing import Any

import numpy as np

from tapegrad.core.base import Axis, decide, like_of, ndim_of, requires_grad, shape_of, value_of
from tapegrad.core.conversion import astype
from tapegrad.core.functions import implements
from tapegrad.core.notes import is_compared
from tapegrad.errors import ShapeError
from tapegrad.numpy_api.indexing import where
from tapegrad.numpy_api.linalg import inv, matrices, recorded, svdvals
from tapegrad.numpy_api.reductions import max_, min_, over, sum_
from tapegrad.numpy_api.shapes import reshape, stack
from tapegrad.numpy_api.tables import axes_of, axis_of, plainly, tensor_of
from tapegrad.ops import REGISTRY
from tapegrad.ops.norms import rescaled_norm
from tapegrad.tensor import Operand, Tensor, TensorOrArray

LEAST = {  # of dtypes, the least length of which no square that counts has lost bits
    kind: float(np.sqrt(np.finfo(kind).tiny / np.finfo(kind).eps)) for kind in "efdg"
}


def _euclidean(x: Operand, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    if np.iscomplexobj(like_of(x)):
        x, axes = stack([np.real(x), np.imag(x)], 0), (0, *(a + 1 for a in axes))
        found = _euclidean(x, axes, keepdims)
        return reshape(found, shape_of(found)[1:]) if keepdims else found
    found = over(REGISTRY["norm"], x, axes, keepdims)
    if is_compared() or _in_range(value_of(x), value_of(found), axes) or not requires_grad(x):
        return found
    return over(rescaled_norm, x, axes, keepdims)


def _in_range(x: np.ndarray, length: np.ndarray, axes: tuple[int, ...]) -> bool:
    """Whether no squares of finite numbers have overflowed, and none of others than 0 lost bits."""
    least = LEAST[length.dtype.char]
    if length.ndim == 0:
        if least < length < math.inf:
            return True
    elif length.size == 0 or (least < np.min(length) and np.max(length) < math.inf):
        return True
    size = np.max(np.abs(x), axis=axes, keepdims=length.ndim == x.ndim, initial=0)
    return not np.any(((length <= least) & (size > 0)) | ((length == math.inf) & (size < math.inf)))


def _of_vectors(x: Operand, order: float | str | None, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    if order is None or order == 2:
        return _euclidean(x, axes, keepdims)
    if isinstance(order, str):
        raise ValueError(f"norm: order {reprlib.repr(order)} is one of matrices, not of vectors")
    size = np.abs(x)
    if order == math.inf:
        return max_(size, axes, None, keepdims)
    if order == -math.inf:
        return min_(size, axes, None, keepdims)
    if order == 1:
        return sum_(size, axes, None, None, keepdims)
    if order == 0:  # a step: no derivative but 0
        ones = (value_of(size) != 0).astype(like_of(size).dtype)
        return sum_(where(np.zeros(ones.shape, bool), size, ones), axes, None, None, keepdims)
    order = float(order)
    if order < 1:  # infinitely steep at 0, or a kink where the norm is 0, too: derivative 0, as torch
        zero = value_of(size) == 0
        powers = where(zero, 0.0 if order > 0 else math.inf, where(zero, 1.0, size) ** order)
    else:
        powers = size**order
    total = sum_(powers, axes, None, None, keepdims)
    flat = np.equal(total if is_compared() else value_of(total), np.inf if order < 0 else 0)
    if not is_compared() and not np.any(flat):
        return total ** (1 / order)
    return where(flat, like_of(total).dtype.type(0), where(flat, 1.0, total) ** (1 / order))


def _of_matrices(x: Any, order: Any, row: int, column: int, keepdims: bool) -> TensorOrArray:
    if row == column:
        raise ValueError(f"norm: axes of a matrix differ, found {row} twice")
    both = tuple(sorted((row, column)))
    if order is None or order in ("fro", "f"):
        return _euclidean(x, both, keepdims)
    if order in (1, -1, math.inf, -math.inf):
        summed, chosen = (row, column) if abs(order) == 1 else (column, row)
        sums = sum_(np.abs(x), (summed,), None, None, True)
        found = (max_ if order > 0 else min_)(sums, (chosen,), None, True)
    elif order in (2, -2, "nuc"):
        ndim = ndim_of(x)
        last = (row, column) == (ndim - 2, ndim - 1)
        s = svdvals(x if last else np.moveaxis(x, (row, column), (-2, -1)))
        found = sum_(s, -1) if order == "nuc" else (max_ if order > 0 else min_)(s, -1)
    else:
        raise ValueError(f"norm: order {reprlib.repr(order)} is none of those of matrices")
    shape = list(shape_of(x))
    for axis in sorted(both, reverse=True):
        if keepdims:
            shape[axis] = 1
        else:
            del shape[axis]
    return found if shape_of(found) == (*shape,) else reshape(found, (*shape,))


@implements(np.linalg.norm, by_shapes=True)
def norm(
    x: Operand, ord: float | str | None = None, axis: Any = None, keepdims: bool = False
) -> TensorOrArray:
    """Norm of a vector, of a matrix, or without an order of all elements.

    At the origin, where they have none, norms are given the derivative 0; an equal share goes to each of
    several largest or smallest elements.
    """
    x = tensor_of(x)
    if like_of(x).dtype.kind in "iub":
        x = astype(x, np.dtype(float))
    ndim, keepdims = ndim_of(x), bool(keepdims)
    if axis is None:
        if ord is None or (ord in ("fro", "f") and ndim == 2) or (ord == 2 and ndim == 1):
            return _euclidean(x, tuple(range(ndim)), keepdims)
        if ndim not in (1, 2):
            shape = shape_of(x)
            raise ShapeError(f"norm: order {reprlib.repr(ord)} of an array of shape {shape} needs axis=")
        axis = tuple(range(ndim))
    elif not isinstance(axis, tuple):
        axis = (axis,) if np.ndim(axis) == 0 else tuple(axis)
    axes = tuple(axis_of(x, a, "norm") for a in axis)
    if len(axes) == 1:
        return _of_vectors(x, ord, axes, keepdims)
    if len(axes) == 2:
        return _of_matrices(x, ord, *axes, keepdims)
    raise ShapeError(f"norm: one axis or two, found {axis}")


@implements(np.linalg.vector_norm, by_shapes=True)
def vector_norm(x: Operand, /, *, axis: Axis = None, keepdims: bool = False, ord: int = 2) -> TensorOrArray:
    """Norm of the elements along axes, taken as one vector."""
    x = tensor_of(x)
    if like_of(x).dtype.kind in "iub":
        x = astype(x, np.dtype(float))
    return _of_vectors(x, ord, axes_of(x, axis, "vector_norm"), bool(keepdims))


@implements(np.linalg.matrix_norm, by_shapes=True)
def matrix_norm(x: Operand, /, *, keepdims: bool = False, ord: float | str = "fro") -> TensorOrArray:
    """Norm of matrices in the last two axes."""
    return norm(matrices(x, "matrix_norm"), ord, (-2, -1), keepdims)


@implements(np.linalg.cond)
def cond(x: Operand, p: Operand | None = None) -> TensorOrArray:
    """Condition number: the norm of matrices times that of their inverses, infinite where they have none."""
    x = matrices(x, "cond", p not in (None, 2, -2))
    like = like_of(x)
    if 0 in like.shape[-2:]:
        raise np.linalg.LinAlgError(f"cond of empty matrices, shape {like.shape}")
    if not recorded(x):
        return plainly(np.linalg.cond, (x, p), {})
    if p in (None, 2, -2):
        s = svdvals(x)
        with np.errstate(all="ignore"):
            top, bottom = max_(s, -1), min_(s, -1)  # equal ones share
            found = bottom / top if p == -2 else top / bottom
    else:
        singular = decide(_singular, x)
        if np.any(singular):
            x = where(singular[..., None, None], np.eye(like.shape[-1], dtype=like.dtype), x)
        found = norm(x, p, (-2, -1)) * norm(inv(x), p, (-2, -1))
        if np.any(singular):
            found = where(singular, found.dtype.type(np.inf), found)
    missing = decide(_is_missing, found, x)
    return where(missing, found.dtype.type(np.inf), found) if np.any(missing) else found


def _is_missing(found: Any, value: np.ndarray) -> Any:
    """Where numbers are nan that matrices without nan have given."""
    return np.isnan(found) & ~np.isnan(value).any(axis=(-2, -1))


def _singular(value: np.ndarray) -> TensorOrArray:
    """Which matrices have no inverse."""
    found = np.zeros(value.shape[:-2], bool)
    for at in np.ndindex(found.shape):
        try:
            np.linalg.inv(value[at])
        except np.linalg.LinAlgError:
            found[at] = True
    return found
