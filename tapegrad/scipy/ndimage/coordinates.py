"""Images at other coordinates: interpolation by splines, and maps of the plane."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.ndimage as _scipy
from scipy.interpolate import BSpline

from tapegrad.core.base import DType, value_of
from tapegrad.scipy.calls import derivative_wanted, derived, doubles, refuse
from tapegrad.scipy.ndimage.filters import PADS, image_of
from tapegrad.tensor import Operand, TensorOrArray

__all__ = ["affine_transform", "map_coordinates", "shift", "zoom"]


PREPAD = 12  # elements that SciPy adds at each end before it fits a spline to what goes on as its ends are


def _mapped(at: np.ndarray, n: int, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates within an axis of n elements, and the slope of that; below -1 where it is none.

    "nearest" leaves them beyond the ends, where the elements that the spline takes are those at the ends.
    """
    at = at.copy()
    slope = np.ones(at.shape)
    out = (at < 0) | (at > n - 1)
    if mode == "constant":
        at[out], slope[out] = -2.0, 0.0
    elif mode in ("mirror", "reflect", "grid-mirror"):
        if mode == "mirror" and n == 1:
            return np.zeros(at.shape), np.zeros(at.shape)
        shift, period = (0.0, 2 * n - 2) if mode == "mirror" else (0.5, 2 * n)
        turned = np.mod(at + shift, period)
        back = turned > period / 2
        folded = np.where(back, period - turned, turned) - shift
        at, slope = np.where(out, folded, at), np.where(out & back, -1.0, 1.0)
    elif mode == "wrap":
        at = np.where(out, np.mod(at, n - 1) if n > 1 else 0.0, at)
    elif mode == "grid-wrap":
        at = np.where(out, np.mod(at, n), at)
    return at, slope


def _places(index: np.ndarray, n: int, mode: str) -> np.ndarray:
    """Elements that a spline takes for those beyond the ends."""
    if mode in ("reflect", "grid-mirror"):
        turned = np.mod(index, 2 * n)
        return np.where(turned >= n, 2 * n - 1 - turned, turned)
    if mode == "grid-wrap":
        return np.mod(index, n)
    if mode in ("nearest", "grid-constant"):
        return np.clip(index, 0, n - 1)
    if n == 1:
        return np.zeros(index.shape, int)
    turned = np.mod(index, 2 * n - 2)
    return np.where(turned >= n, 2 * n - 2 - turned, turned)


@functools.cache
def _basis(order: int) -> np.ndarray:
    """Coefficients of the B-spline's pieces, by powers of the distance from the start of a piece."""
    if order == 0:
        return np.ones((1, 1))
    spline = BSpline(np.arange(-order, 2 * order + 2.0), np.eye(2 * order + 1)[order], order)
    starts = np.arange(order + 1.0)
    return np.stack([spline(starts, p) / math.factorial(p) for p in range(order, -1, -1)])


def _splined(x: TensorOrArray, order: int, mode: str, cval: float) -> tuple[TensorOrArray, int]:
    """Coefficients of the spline through an image, and how many were added at each end."""
    pad = 0
    if mode in ("nearest", "grid-constant"):
        pad = PREPAD
        values = {} if mode == "nearest" else {"constant_values": value_of(cval)}
        x = np.pad(x, pad, mode=PADS[mode], **values)
    for axis in range(np.ndim(x)):
        n = np.shape(x)[axis]
        matrix = _scipy.spline_filter1d(np.eye(n), order, axis=0, mode=mode)
        x = np.moveaxis(np.tensordot(matrix, x, axes=(1, axis)), 0, axis)
    return x, pad


@derived(_scipy.map_coordinates)
def map_coordinates(
    input: Operand, coordinates: Operand, output: np.ndarray | DType | None = None, order: int = 3,
    mode: str = "constant", cval: float = 0.0, prefilter: bool = True,
) -> TensorOrArray:  # fmt: skip
    """Values of an image between its elements, by splines.

    Parameters
    ----------
    input : Tensor or array_like
        The image.
    coordinates : Tensor or array_like
        One for each axis of the image, along the first axis.
    output, order, mode, cval, prefilter : optional
        As SciPy has them, without `output`. Of order 0 there is no derivative by the coordinates, and of
        the modes "grid-constant" has none.

    Returns
    -------
    Tensor
        As `scipy.ndimage.map_coordinates`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> at = tg.tensor([[0.25, 1.5]], requires_grad=True)
    >>> tg.grad(ts.ndimage.map_coordinates(x, at, order=1).sum(), [x, at])
    (tensor([0.75, 0.75, 0.50]), tensor([[1., 2.]]))
    """
    x, at = doubles(image_of("map_coordinates", input, output, cval)), doubles(coordinates)
    if order < 0 or order > 5:
        raise RuntimeError(f"scipy.ndimage.map_coordinates: order is {order}; give 0 to 5")
    if np.ndim(x) < 1 or np.ndim(at) < 2 or np.shape(at)[0] != np.ndim(x):
        raise RuntimeError(
            f"scipy.ndimage.map_coordinates: coordinates of shape {np.shape(at)} for an image of shape "
            f"{np.shape(x)}; give a row for each of its axes"
        )
    if mode not in PADS or mode == "grid-constant":
        raise refuse(f"scipy.ndimage.map_coordinates with mode={mode!r}")
    if order == 0 and derivative_wanted(at):
        raise refuse("scipy.ndimage.map_coordinates of order 0", "has no derivative by the coordinates")
    c, pad = _splined(x, order, mode, cval) if prefilter and order > 1 else (x, 0)
    outside: Any = False
    flat: Any = 0  # of the coefficients around each place, of which the corners' axes come first
    weights = []
    for axis in range(np.ndim(x)):
        n = np.shape(c)[axis]
        value = value_of(at)[axis] + pad
        found, slope = _mapped(value, n, mode)
        if mode == "constant":
            outside = outside | (found <= -1)
        moved = slope * (at[axis] + (pad - value)) if derivative_wanted(at) else 0.0
        places, weight = _weights(found, moved, n, order, mode)
        flat = np.expand_dims(np.asarray(flat) * n, axis) + np.reshape(
            places, (*(1,) * axis, order + 1, *np.shape(value))
        )
        weights.append(weight)
    total = np.take(np.reshape(c, -1), flat)
    for weight in reversed(weights):
        total = np.sum(total * weight, axis=np.ndim(total) - np.ndim(weight))
    return np.where(outside, value_of(cval), total) if np.any(outside) else total


def _weights(
    found: np.ndarray, moved: TensorOrArray | float, n: int, order: int, mode: str
) -> tuple[np.ndarray, TensorOrArray]:
    """Elements that a coordinate is between, and their weights; `moved` is 0, with the derivative."""
    start = np.floor(found if order % 2 else found + 0.5)
    off = found - start + (0.0 if order % 2 else 0.5) + moved
    pieces = _basis(order)
    places, weights = [], []
    for k in range(order + 1):
        places.append(_places((start - order // 2 + k).astype(int), n, mode))
        weight = 0.0
        for factor in pieces[:, order - k].tolist():
            weight = weight * off + factor
        weights.append(weight if order else np.ones(np.shape(found)))
    return np.stack(places), np.stack(weights)


# ---------------------------------------------------------------- images moved


@derived(_scipy.affine_transform)
def affine_transform(
    input: Operand, matrix: Operand, offset: Operand = 0.0, output_shape: Sequence[int] | None = None,
    output: np.ndarray | DType | None = None, order: int = 3, mode: str = "constant", cval: float = 0.0,
    prefilter: bool = True,
) -> TensorOrArray:  # fmt: skip
    """An image at the places ``matrix @ index + offset``.

    Parameters
    ----------
    input : Tensor or array_like
        The image.
    matrix : Tensor or array_like
        Of the map from places in the result to places in the image: a square one, its diagonal, or one of
        homogeneous coordinates.
    offset : Tensor or array_like, optional
    output_shape, output, order, mode, cval, prefilter : optional
        As SciPy has them, without `output`.

    Returns
    -------
    Tensor
        As `scipy.ndimage.affine_transform`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> offset = tg.tensor([0.25], requires_grad=True)
    >>> tg.grad(ts.ndimage.affine_transform([1.0, 2.0, 4.0], [1.0], offset, order=1)[1], offset)
    (tensor([2.]),)
    """
    x = image_of("affine_transform", input, output, cval)
    ndim, matrix, offset = np.ndim(x), doubles(matrix), doubles(offset)
    if np.ndim(matrix) == 2 and np.shape(matrix)[1] == ndim + 1:
        below = value_of(matrix)[ndim:]
        if below.size and not np.array_equal(below, [[0.0] * ndim + [1.0]]):
            raise ValueError(f"expected homogeneous coordinates, found {below.tolist()} as the last row")
        matrix, offset = matrix[:ndim, :ndim], matrix[:ndim, ndim]
    if np.shape(matrix) not in ((ndim,), (ndim, ndim)):
        raise RuntimeError(f"a matrix for an image of {ndim} axes is needed, found shape {np.shape(matrix)}")
    if np.shape(offset) not in ((), (1,), (ndim,)):
        raise RuntimeError(f"an offset for {ndim} axes is needed, found shape {np.shape(offset)}")
    shape = np.shape(x) if output_shape is None else tuple(output_shape)
    index = np.indices(shape, float)
    places = (
        matrix @ index.reshape(ndim, -1)
        if np.ndim(matrix) == 2
        else matrix[:, None] * index.reshape(ndim, -1)
    )
    at = np.reshape(places + np.reshape(offset, (-1, 1)), (ndim, *shape))
    return map_coordinates(x, at, None, order, mode, cval, prefilter)


@derived(_scipy.shift)
def shift(
    input: Operand, shift: Operand, output: np.ndarray | DType | None = None, order: int = 3,
    mode: str = "constant", cval: float = 0.0, prefilter: bool = True,
) -> TensorOrArray:  # fmt: skip
    """An image moved along its axes.

    Parameters
    ----------
    input : Tensor or array_like
        The image.
    shift : Tensor or array_like
        A number, or one for each axis.
    output, order, mode, cval, prefilter : optional
        As SciPy has them, without `output`.

    Returns
    -------
    Tensor
        As `scipy.ndimage.shift`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> by = tg.tensor(-0.25, requires_grad=True)
    >>> tg.grad(ts.ndimage.shift([1.0, 2.0, 4.0], by, order=1)[1], by)
    (tensor(-2.),)
    """
    x = image_of("shift", input, output, cval)
    return affine_transform(x, np.ones(np.ndim(x)), -doubles(shift), None, None, order, mode, cval, prefilter)


@derived(_scipy.zoom)
def zoom(
    input: Operand, zoom: Operand, output: np.ndarray | DType | None = None, order: int = 3,
    mode: str = "constant", cval: float = 0.0, prefilter: bool = True, *, grid_mode: bool = False,
) -> TensorOrArray:  # fmt: skip
    """An image of another size; it has a derivative by the image, none by the factors.

    Parameters
    ----------
    input : Tensor or array_like
        The image.
    zoom : array_like
        A number, or one for each axis.
    output, order, mode, cval, prefilter, grid_mode : optional
        As SciPy has them, without `output`.

    Returns
    -------
    Tensor
        As `scipy.ndimage.zoom`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.ndimage.zoom(x, 5 / 3, order=1)[1], x)
    (tensor([0.5, 0.5, 0.0]),)
    """
    if derivative_wanted(zoom):
        raise refuse("scipy.ndimage.zoom", "has no derivative by the factors, which are sizes")
    x = image_of("zoom", input, output, cval)
    old = np.array(np.shape(x))
    new = np.round(old * np.broadcast_to(np.asarray(zoom, float), old.shape)).astype(int)
    if grid_mode:
        scale = old / new
        return affine_transform(x, scale, 0.5 * (scale - 1), new, None, order, mode, cval, prefilter)
    scale = np.where(new > 1, (old - 1) / np.where(new > 1, new - 1, 1), 1.0)
    return affine_transform(x, scale, 0.0, new, None, order, mode, cval, prefilter)
