"""Derivatives of images by their places, as `scipy.ndimage` has them, on Tensors and arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import scipy.ndimage as _scipy
from numpy.lib.array_utils import normalize_axis_index

from tapegrad.core.base import Axis, DType
from tapegrad.scipy.calls import derived
from tapegrad.scipy.ndimage.filters import correlate1d, filtered_axes, gaussian_filter, image_of, sequence_of
from tapegrad.tensor import Operand, TensorOrArray

__all__ = ["gaussian_gradient_magnitude", "gaussian_laplace", "laplace", "prewitt", "sobel"]

Output: TypeAlias = "np.ndarray | DType | None"


def _smoothed_slope(
    name: str, x: Operand, across: list[int], axis: int, output: Output, mode: Any, cval: Operand
) -> TensorOrArray:
    """Differences along an axis, with weighted sums along all others."""
    image = image_of(name, x, output, cval)
    ndim = np.ndim(image)
    axis, modes = normalize_axis_index(axis, ndim), sequence_of(mode, ndim)
    found = correlate1d(image, [-1, 0, 1], axis, None, modes[axis], cval, 0)
    for other in range(ndim):
        if other != axis:
            found = correlate1d(found, across, other, None, modes[other], cval, 0)
    return found


@derived(_scipy.sobel)
def sobel(
    input: Operand, axis: int = -1, output: Output = None, mode: Any = "reflect", cval: Operand = 0.0
) -> TensorOrArray:
    """Sobel's filter: slopes along an axis.

    Parameters
    ----------
    input : Tensor or array_like
    axis, output, mode, cval : optional
        As SciPy has them, without `output`.

    Returns
    -------
    Tensor
        As `scipy.ndimage.sobel`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.ndimage.sobel(x)[1], x)
    (tensor([-1.,  0.,  1.]),)
    """
    return _smoothed_slope("sobel", input, [1, 2, 1], axis, output, mode, cval)


@derived(_scipy.prewitt)
def prewitt(
    input: Operand, axis: int = -1, output: Output = None, mode: Any = "reflect", cval: Operand = 0.0
) -> TensorOrArray:
    """Prewitt's filter: slopes along an axis.

    Parameters
    ----------
    input : Tensor or array_like
    axis, output, mode, cval : optional
        As SciPy has them, without `output`.

    Returns
    -------
    Tensor
        As `scipy.ndimage.prewitt`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.ndimage.prewitt(x)[1], x)
    (tensor([-1.,  0.,  1.]),)
    """
    return _smoothed_slope("prewitt", input, [1, 1, 1], axis, output, mode, cval)


@derived(_scipy.laplace)
def laplace(
    input: Operand, output: Output = None, mode: Any = "reflect", cval: Operand = 0.0, *, axes: Axis = None
) -> TensorOrArray:
    """Second differences, summed over axes.

    Parameters
    ----------
    input : Tensor or array_like
    output, mode, cval, axes : optional
        As SciPy has them, without `output`.

    Returns
    -------
    Tensor
        As `scipy.ndimage.laplace`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.ndimage.laplace(x)[1], x)
    (tensor([ 1., -2.,  1.]),)
    """
    image = image_of("laplace", input, output, cval)
    rows = _axes_and_modes(axes, mode, np.ndim(image))
    parts = [correlate1d(image, [1, -2, 1], axis, None, m, cval, 0) for axis, m in rows]
    return sum(parts[1:], parts[0]) if parts else image


@derived(_scipy.gaussian_laplace)
def gaussian_laplace(
    input: Operand, sigma: Any, output: Output = None, mode: Any = "reflect", cval: Operand = 0.0, *,
    axes: Axis = None, **kwargs: Any,
) -> TensorOrArray:  # fmt: skip
    """Second derivatives of a smoothed image, summed over axes.

    Parameters
    ----------
    input : Tensor or array_like
    sigma : float or sequence of float
        A constant.
    output, mode, cval, axes, **kwargs : optional
        As SciPy has them, without `output`.

    Returns
    -------
    Tensor
        As `scipy.ndimage.gaussian_laplace`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.ndimage.gaussian_laplace(x, 0.5, radius=1)[1], x)
    (tensor([ 1.2781, -3.1479,  1.2781]),)
    """
    image = image_of("gaussian_laplace", input, output, cval)
    which = _axes_and_modes(axes, mode, np.ndim(image))
    widths: list[Any] = [0] * np.ndim(image)  # along other axes it is not smoothed
    for (axis, _), width in zip(which, sequence_of(sigma, len(which)), strict=True):
        widths[axis] = width
    parts = _smoothed(image, 2, widths, mode, cval, axes, kwargs)
    return sum(parts[1:], parts[0]) if parts else image


@derived(_scipy.gaussian_gradient_magnitude)
def gaussian_gradient_magnitude(
    input: Operand, sigma: Any, output: Output = None, mode: Any = "reflect", cval: Operand = 0.0, *,
    axes: Axis = None, **kwargs: Any,
) -> TensorOrArray:  # fmt: skip
    """How steep a smoothed image is; where it is flat the derivative is 0, as that of a norm.

    Parameters
    ----------
    input : Tensor or array_like
    sigma : float or sequence of float
        A constant.
    output, mode, cval, axes, **kwargs : optional
        As SciPy has them, without `output`.

    Returns
    -------
    Tensor
        As `scipy.ndimage.gaussian_gradient_magnitude`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.ndimage.gaussian_gradient_magnitude(x, 1.0, radius=1)[1], x)
    (tensor([-0.2741,  0.0000,  0.2741]),)
    """
    image = image_of("gaussian_gradient_magnitude", input, output, cval)
    parts = _smoothed(image, 1, sigma, mode, cval, axes, kwargs)
    return np.linalg.norm(np.stack(parts), axis=0) if parts else image


def _smoothed(
    image: TensorOrArray, order: int, sigma: Any, mode: Any, cval: Operand, axes: Axis, more: dict[str, Any]
) -> list[TensorOrArray]:
    """Derivatives of a smoothed image along each of the axes."""
    ndim = np.ndim(image)
    return [
        gaussian_filter(image, sigma, [order * (k == axis) for k in range(ndim)], None, m, cval, **more)
        for axis, m in _axes_and_modes(axes, mode, ndim)
    ]


def _axes_and_modes(axes: Axis, mode: Any, ndim: int) -> list[tuple[int, Any]]:
    which = filtered_axes(axes, ndim)
    return list(zip(which, sequence_of(mode, len(which)), strict=True))
