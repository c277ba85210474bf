"""Filters of `scipy.ndimage` that weigh neighbours, on Tensors and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.ndimage as _scipy
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple
from scipy.ndimage._filters import _gaussian_kernel1d

from tapegrad.core.base import Axis, DType, like_of, value_of
from tapegrad.numpy_api.tables import tensor_of
from tapegrad.ops import filters
from tapegrad.scipy.calls import derivative_wanted, derived, doubles, refuse
from tapegrad.tensor import Operand, TensorOrArray, apply

if TYPE_CHECKING:
    from tapegrad.tensor import Tensor

__all__ = [
    "convolve", "convolve1d", "correlate", "correlate1d", "filtered_axes", "gaussian_filter",
    "gaussian_filter1d", "image_of", "sequence_of", "uniform_filter", "uniform_filter1d",
]  # fmt: skip

PADS: dict[str, Any] = {
    "reflect": "symmetric", "grid-mirror": "symmetric", "mirror": "reflect", "nearest": "edge",
    "wrap": "wrap", "grid-wrap": "wrap", "constant": "constant", "grid-constant": "constant",
}  # fmt: skip


def image_of(name: str, x: Operand, output: np.ndarray | DType, cval: Operand) -> TensorOrArray:
    """The image that a filter of that name is given, of floats."""
    if output is not None:
        raise refuse(f"scipy.ndimage.{name} with output=")
    if derivative_wanted(cval):
        raise refuse(f"scipy.ndimage.{name}", "has no derivative by cval")
    x = tensor_of(x)
    return x if like_of(x).dtype.kind in "fc" else x * 1.0


def filtered_axes(axes: Axis, ndim: int) -> tuple[int, ...]:
    """The axes that are filtered along: all where none are said."""
    return tuple(range(ndim)) if axes is None else normalize_axis_tuple(axes, ndim)


def _in_order(axes: Axis, origin: Any, ndim: int) -> tuple[list[int], Any]:
    """Axes in the order in which SciPy takes those of the weights for them, and the origins along these."""
    which = filtered_axes(axes, ndim)
    if np.ndim(origin) and len(which) < ndim:  # else SciPy takes origins in that order, too
        origin = [shift for _, shift in sorted(zip(which, origin, strict=True))]
    return sorted(which), origin


def _correlated(
    name: str, x: Any, weights: Operand, axes: Any, mode: str, cval: Operand, origin: Any
) -> Tensor:
    """An image with its weighted neighbours summed up, along axes that the weights have all of."""
    if not np.size(value_of(weights)) or np.ndim(weights) != len(axes):
        raise RuntimeError(
            f"scipy.ndimage.{name}: weights of shape {np.shape(weights)} for {len(axes)} axes; give as many"
        )
    width, shape = [(0, 0)] * np.ndim(x), [1] * np.ndim(x)
    origins = [origin] * len(axes) if np.ndim(origin) == 0 else list(origin)
    for axis, count, shift in zip(axes, np.shape(weights), origins, strict=True):
        before = count // 2 + shift
        if not 0 <= before < count:
            raise ValueError(
                f"scipy.ndimage.{name}: origin {shift} lies outside the {count} weights; "
                f"give {-(count // 2)} to {(count - 1) // 2}"
            )
        width[axis], shape[axis] = (before, count - 1 - before), count
    if not isinstance(mode, str) or mode not in PADS:
        raise RuntimeError(f"scipy.ndimage.{name}: mode is {mode!r}; give one of {sorted(PADS)}")
    kernel = np.reshape(np.flip(weights), shape)
    values: dict[str, Any] = {"constant_values": value_of(cval)} if PADS[mode] == "constant" else {}
    wide = np.pad(x, width, mode=PADS[mode], **values)
    dtype = np.result_type(value_of(x), value_of(kernel)) if like_of(kernel).dtype.kind == "c" else x.dtype
    kernel, wide = (y if like_of(y).dtype == dtype else y.astype(dtype) for y in (kernel, wide))
    op: Any = filters.convolve_arrays
    return apply(op, (wide, kernel), {"mode": "valid", "method": "direct"})


def _turned(weights: Operand, origin: Any) -> tuple[TensorOrArray, list[int]]:
    """Weights and origins of the correlation that a convolution is."""
    shape = np.shape(weights)
    origins = [origin] * len(shape) if np.ndim(origin) == 0 else list(origin)
    return np.flip(weights), [-o - (n % 2 == 0) for o, n in zip(origins, shape, strict=True)]


def _real(weights: Operand, name: str) -> TensorOrArray:
    weights = tensor_of(weights)
    if like_of(weights).dtype.kind == "c":
        raise refuse(f"scipy.ndimage.{name} with complex weights")
    return doubles(weights)


@derived(_scipy.correlate1d)
def correlate1d(
    input: Operand, weights: Operand, axis: int = -1, output: np.ndarray | DType | None = None,
    mode: str = "reflect", cval: Operand = 0.0, origin: int = 0,
) -> TensorOrArray:  # fmt: skip
    """Correlation along an axis.

    Parameters
    ----------
    input : Tensor or array_like
    weights : Tensor or array_like
    axis, output, mode, cval, origin : optional
        As SciPy has them, without `output`.

    Returns
    -------
    Tensor
        As `scipy.ndimage.correlate1d`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.ndimage.correlate1d(x, [1.0, 2.0, 3.0])[0], x)
    (tensor([3., 3., 0.]),)
    """
    x = image_of("correlate1d", input, output, cval)
    axes = (normalize_axis_index(axis, np.ndim(x)),)
    return _correlated("correlate1d", x, _real(weights, "correlate1d"), axes, mode, cval, origin)


@derived(_scipy.convolve1d)
def convolve1d(
    input: Operand, weights: Operand, axis: int = -1, output: np.ndarray | DType | None = None,
    mode: str = "reflect", cval: Operand = 0.0, origin: int = 0,
) -> TensorOrArray:  # fmt: skip
    """Convolution along an axis.

    Parameters
    ----------
    input : Tensor or array_like
    weights : Tensor or array_like
    axis, output, mode, cval, origin : optional
        As SciPy has them, without `output`.

    Returns
    -------
    Tensor
        As `scipy.ndimage.convolve1d`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.ndimage.convolve1d(x, [1.0, 2.0, 3.0])[0], x)
    (tensor([5., 1., 0.]),)
    """
    x = image_of("convolve1d", input, output, cval)
    weights, origins = _turned(_real(weights, "convolve1d"), origin)
    axes = (normalize_axis_index(axis, np.ndim(x)),)
    return _correlated("convolve1d", x, weights, axes, mode, cval, origins)


@derived(_scipy.correlate)
def correlate(
    input: Operand, weights: Operand, output: np.ndarray | DType | None = None, mode: str = "reflect",
    cval: Operand = 0.0, origin: int | Sequence[int] = 0, *, axes: Axis = None,
) -> TensorOrArray:  # fmt: skip
    """Correlation along several axes.

    Parameters
    ----------
    input : Tensor or array_like
    weights : Tensor or array_like
    output, mode, cval, origin, axes : optional
        As SciPy has them, without `output`.

    Returns
    -------
    Tensor
        As `scipy.ndimage.correlate`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 2.0, 4.0]], requires_grad=True)
    >>> tg.grad(ts.ndimage.correlate(x, [[1.0, 2.0, 3.0]])[0, 0], x)
    (tensor([[3., 3., 0.]]),)
    """
    x = image_of("correlate", input, output, cval)
    which, origins = _in_order(axes, origin, np.ndim(x))
    return _correlated("correlate", x, _real(weights, "correlate"), which, mode, cval, origins)


@derived(_scipy.convolve)
def convolve(
    input: Operand, weights: Operand, output: np.ndarray | DType | None = None, mode: str = "reflect",
    cval: Operand = 0.0, origin: int | Sequence[int] = 0, *, axes: Axis = None,
) -> TensorOrArray:  # fmt: skip
    """Convolution along several axes.

    Parameters
    ----------
    input : Tensor or array_like
    weights : Tensor or array_like
    output, mode, cval, origin, axes : optional
        As SciPy has them, without `output`.

    Returns
    -------
    Tensor
        As `scipy.ndimage.convolve`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 2.0, 4.0]], requires_grad=True)
    >>> tg.grad(ts.ndimage.convolve(x, [[1.0, 2.0, 3.0]])[0, 0], x)
    (tensor([[5., 1., 0.]]),)
    """
    x = image_of("convolve", input, output, cval)
    which, origins = _in_order(axes, origin, np.ndim(x))
    weights, origins = _turned(_real(weights, "convolve"), origins)
    return _correlated("convolve", x, weights, which, mode, cval, origins)


@derived(_scipy.gaussian_filter1d)
def gaussian_filter1d(
    input: Operand, sigma: float, axis: int = -1, order: int = 0, output: np.ndarray | DType | None = None,
    mode: str = "reflect", cval: Operand = 0.0, truncate: float = 4.0, *,
    radius: int | Sequence[int] | None = None,
) -> TensorOrArray:  # fmt: skip
    """Smooth an image along an axis.

    Parameters
    ----------
    input : Tensor or array_like
    sigma : float
        A constant.
    axis, order, output, mode, cval, truncate, radius : optional
        As SciPy has them, without `output`.

    Returns
    -------
    Tensor
        As `scipy.ndimage.gaussian_filter1d`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.ndimage.gaussian_filter1d(x, 1.0, radius=1)[1], x)
    (tensor([0.2741, 0.4519, 0.2741]),)
    """
    if derivative_wanted(sigma, truncate):
        raise refuse("scipy.ndimage.gaussian_filter1d", "has no derivative by sigma")
    deviation = float(value_of(sigma))
    around = int(truncate * deviation + 0.5) if radius is None else radius
    if not isinstance(around, (int, np.integer)) or around < 0:
        raise ValueError(
            f"scipy.ndimage.gaussian_filter1d: radius is {around!r}; give a whole number from 0 on"
        )
    weights = _gaussian_kernel1d(deviation, order, around)[::-1]
    return correlate1d(input, weights, axis, output, mode, cval, 0)


def sequence_of(x: TensorOrArray, count: int) -> list[TensorOrArray]:
    """An argument for each of so many axes."""
    found = [x] * count if isinstance(x, str) or np.ndim(value_of(x)) == 0 else list(x)
    if len(found) != count:
        raise RuntimeError(
            f"an argument has {len(found)} entries for {count} axes; give one, or one for each axis"
        )
    return found


@derived(_scipy.gaussian_filter)
def gaussian_filter(
    input: Operand, sigma: Any, order: Any = 0, output: np.ndarray | DType | None = None,
    mode: Any = "reflect", cval: Operand = 0.0, truncate: float = 4.0, *, radius: Any = None,
    axes: Axis = None,
) -> TensorOrArray:  # fmt: skip
    """Smooth an image along axes.

    Parameters
    ----------
    input : Tensor or array_like
    sigma : float or sequence of float
        A constant.
    order, output, mode, cval, truncate, radius, axes : optional
        As SciPy has them, without `output`.

    Returns
    -------
    Tensor
        As `scipy.ndimage.gaussian_filter`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.ndimage.gaussian_filter(x, 1.0, radius=1)[1], x)
    (tensor([0.2741, 0.4519, 0.2741]),)
    """
    if derivative_wanted(sigma, truncate):
        raise refuse("scipy.ndimage.gaussian_filter", "has no derivative by sigma")
    x = image_of("gaussian_filter", input, output, cval)
    which = filtered_axes(axes, np.ndim(x))
    rows = [sequence_of(y, len(which)) for y in (sigma, order, mode, radius)]
    for axis, s, o, m, r in zip(which, *rows, strict=True):
        if s > 1e-15:
            x = gaussian_filter1d(x, s, axis, o, None, m, cval, truncate, radius=r)
    return x


@derived(_scipy.uniform_filter1d)
def uniform_filter1d(
    input: Operand, size: int, axis: int = -1, output: np.ndarray | DType | None = None,
    mode: str = "reflect", cval: Operand = 0.0, origin: int = 0,
) -> TensorOrArray:  # fmt: skip
    """Means of neighbours along an axis.

    Parameters
    ----------
    input : Tensor or array_like
    size : int
    axis, output, mode, cval, origin : optional
        As SciPy has them, without `output`.

    Returns
    -------
    Tensor
        As `scipy.ndimage.uniform_filter1d`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.ndimage.uniform_filter1d(x, 3)[0], x)
    (tensor([0.6667, 0.3333, 0.0000]),)
    """
    if size < 1:
        raise RuntimeError("incorrect filter size")
    return correlate1d(input, np.full(size, 1 / size), axis, output, mode, cval, origin)


@derived(_scipy.uniform_filter)
def uniform_filter(
    input: Operand, size: Any = 3, output: np.ndarray | DType | None = None, mode: Any = "reflect",
    cval: Operand = 0.0, origin: Any = 0, *, axes: Axis = None,
) -> TensorOrArray:  # fmt: skip
    """Means of neighbours along axes.

    Parameters
    ----------
    input : Tensor or array_like
    size, output, mode, cval, origin, axes : optional
        As SciPy has them, without `output`.

    Returns
    -------
    Tensor
        As `scipy.ndimage.uniform_filter`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.ndimage.uniform_filter(x, 3)[0], x)
    (tensor([0.6667, 0.3333, 0.0000]),)
    """
    x = image_of("uniform_filter", input, output, cval)
    which = filtered_axes(axes, np.ndim(x))
    for axis, s, m, o in zip(which, *(sequence_of(y, len(which)) for y in (size, mode, origin)), strict=True):
        if s > 1:
            x = uniform_filter1d(x, int(s), axis, None, m, cval, o)
    return x
