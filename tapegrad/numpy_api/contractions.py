"""Products of arrays that `matmul` and `einsum` are made of."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.core.base import like_of, ndim_of, shape_of
from tapegrad.core.functions import UFUNCS
from tapegrad.errors import ShapeError
from tapegrad.numpy_api.building import broadcast_arrays
from tapegrad.numpy_api.products import contract, dot
from tapegrad.numpy_api.shapes import laid, reshape, stack
from tapegrad.numpy_api.tables import axis_of, composed, plain, tensor_of
from tapegrad.tensor import Operand, Tensor, TensorOrArray


def conjugate(x: Operand) -> Any:
    """Complex conjugates; a real array is its own."""
    return np.conj(x) if like_of(x).dtype.kind == "c" else x


@composed(np.tensordot, by_shapes=True)
def tensordot(
    a: Operand, b: Operand, axes: int | tuple[int | Sequence[int], int | Sequence[int]] = 2
) -> TensorOrArray:
    """Products summed over pairs of axes."""
    a, b, axes = tensor_of(a), tensor_of(b), plain(axes)
    if not isinstance(axes, (list, tuple, np.ndarray)):
        count = operator.index(axes)
        first, second = list(range(a.ndim - count, a.ndim)), list(range(count))
    else:
        first, second = ([operator.index(d) for d in np.atleast_1d(part)] for part in (axes[0], axes[1]))
    if len(first) != len(second):
        raise ShapeError(f"tensordot: {len(first)} axes of the first array for {len(second)} of the second")
    one = [axis_of(a, d, "tensordot") for d in first]
    two = [axis_of(b, d, "tensordot") for d in second]
    if [a.shape[d] for d in one] != [b.shape[d] for d in two]:
        raise ShapeError(f"tensordot of shapes {a.shape} and {b.shape} over axes {first} and {second}")
    return contract(a, b, (one, two))


@composed(np.inner, by_shapes=True)
def inner(a: Operand, b: Operand, /) -> TensorOrArray:
    """Products summed over the last axes."""
    a, b = tensor_of(a), tensor_of(b)
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    if a.shape[-1] != b.shape[-1]:
        raise ShapeError(f"inner of shapes {a.shape} and {b.shape}: the last axes differ")
    if a.ndim == 1 or b.ndim == 1:
        return dot(b, a) if a.ndim == 1 else dot(a, b)
    return tensordot(a, b, ((-1,), (-1,)))


@composed(np.vdot, by_shapes=True)
def vdot(a: Operand, b: Operand, /) -> TensorOrArray:
    """Product of all elements, summed; the first are conjugated."""
    a, b = (x if x.ndim == 1 else reshape(x, (-1,)) for x in (tensor_of(a), tensor_of(b)))
    return dot(conjugate(a), b)


@composed(np.kron, by_shapes=True)
def kron(a: Operand, b: Operand) -> TensorOrArray:
    """Copies of the second array, each times an element of the first."""
    a, b = tensor_of(a), tensor_of(b)
    ndim = max(a.ndim, b.ndim)
    one, two = ((1,) * (ndim - x.ndim) + x.shape for x in (a, b))
    left = laid(a, tuple(n for size in one for n in (size, 1)))
    right = b if ndim == 1 else laid(b, tuple(n for size in two for n in (1, size)))
    return laid(left * right, tuple(p * q for p, q in zip(one, two, strict=True)))


@composed(np.cross, by_shapes=True)
def cross(
    a: TensorOrArray,
    b: TensorOrArray,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> TensorOrArray:
    """Vector product along an axis, of vectors of two components (as NumPy before 2.5) the third alone."""
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = (_last(tensor_of(x), k, "cross") for x, k in ((a, axisa), (b, axisb)))
    if a.shape[-1] == b.shape[-1] == 3:
        found = np.roll(a, -1, -1) * np.roll(b, 1, -1) - np.roll(a, 1, -1) * np.roll(b, -1, -1)
        at = axis_of(found, axisc, "cross")
        return found if at == found.ndim - 1 else np.moveaxis(found, -1, at)
    if a.shape[-1] == b.shape[-1] == 2:
        return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    if not {a.shape[-1], b.shape[-1]} <= {2, 3}:
        raise ShapeError(
            f"cross takes vectors of two or three components, found shapes {a.shape} and {b.shape}"
        )
    p, q = ([x[..., k] if k < x.shape[-1] else 0.0 * x[..., 0] for k in range(3)] for x in (a, b))
    parts = [p[1] * q[2] - p[2] * q[1], p[2] * q[0] - p[0] * q[2], p[0] * q[1] - p[1] * q[0]]
    found = stack(parts, axis=-1)
    return np.moveaxis(found, -1, axis_of(found, axisc, "cross"))


def _last(x: Any, axis: int, what: str) -> TensorOrArray:
    """An array with an axis moved behind all others."""
    axis = axis_of(x, axis, what)
    return x if axis == x.ndim - 1 else np.moveaxis(x, axis, -1)


def _vectors(x: TensorOrArray, y: TensorOrArray, axis: int, what: str) -> tuple[TensorOrArray, TensorOrArray]:
    for v in (x, y):
        if ndim_of(v) == 0:
            raise ShapeError(f"{what} needs a dimension, found shape ()")
    x, y = (_last(v, axis, what) for v in (x, y))
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(f"{what} of shapes {x.shape} and {y.shape}: vectors of different length")
    return x, y


def vecdot(x1: Operand, x2: Operand, axis: int = -1, keepdims: bool = False) -> TensorOrArray:
    """Products of vectors, summed; the first are conjugated."""
    x, y = _vectors(tensor_of(x1), tensor_of(x2), axis, "vecdot")
    if x.ndim == y.ndim == 1:
        found = np.matmul(conjugate(x), y)
    else:
        x = conjugate(x)
        if x.shape != y.shape:
            x, y = broadcast_arrays(x, y)
        found = np.matmul(x[..., None, :], y[..., None])[..., 0, 0]
    return np.expand_dims(found, axis) if keepdims else found


def matvec(x1: Operand, x2: Operand) -> Tensor:
    """Matrices times vectors."""
    x1, x2 = _matrix(x1, "matvec"), tensor_of(x2)
    return np.matmul(x1, x2[..., None])[..., 0]


def vecmat(x1: Operand, x2: Operand) -> Tensor:
    """Vectors, conjugated, times matrices."""
    x1, x2 = tensor_of(x1), _matrix(x2, "vecmat")
    return np.matmul(conjugate(x1)[..., None, :], x2)[..., 0, :]


def _matrix(x: Operand, what: str) -> TensorOrArray:
    x = tensor_of(x)
    if ndim_of(x) < 2:
        raise ShapeError(f"{what} needs a matrix, found shape {shape_of(x)}")
    return x


for _name, _function in (("vecdot", vecdot), ("matvec", matvec), ("vecmat", vecmat)):
    if hasattr(np, _name):  # NumPy 2.2 has the last two
        UFUNCS[getattr(np, _name)] = _function
