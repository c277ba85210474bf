"""Convolutions and correlations, of which NumPy's own know one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.signal as _scipy
from scipy.fft import next_fast_len

from tapegrad.core.base import Axis, like_of, value_of
from tapegrad.errors import ShapeError
from tapegrad.numpy_api.tables import tensor_of
from tapegrad.ops import filters
from tapegrad.scipy.calls import derivative_wanted, derived_in, refuse
from tapegrad.tensor import Operand, TensorOrArray, apply

derived = derived_in(_scipy)
CONVOLVE: Any = filters.convolve_arrays
PADS: dict[str, Any] = {
    "fill": "constant", "pad": "constant", "wrap": "wrap", "circular": "wrap", "symm": "symmetric",
    "symmetric": "symmetric",
}  # fmt: skip


def floats(x: Operand) -> Any:
    """An argument as a Tensor or array of numbers that are no integers."""
    x = tensor_of(x)
    return x if like_of(x).dtype.kind in "fc" else x * 1.0


def _unknown_mode(mode: object) -> ValueError:
    return ValueError(f"mode is {mode!r}; give 'full', 'valid' or 'same'")


def _both(in1: Operand, in2: Operand) -> list[TensorOrArray]:
    a, v = floats(in1), floats(in2)
    if np.ndim(a) != np.ndim(v) or not all((*np.shape(a), *np.shape(v))):
        raise ShapeError(
            "two arrays of as many axes that are not empty are needed, found shapes "
            f"{np.shape(a)} and {np.shape(v)}"
        )
    dtype = np.result_type(like_of(a), like_of(v))
    return [x if like_of(x).dtype == dtype else x.astype(dtype) for x in (a, v)]


def _centre(x: TensorOrArray, shape: Sequence[int]) -> TensorOrArray:
    """The part of such a shape in the middle."""
    starts = [(n - m) // 2 for n, m in zip(np.shape(x), shape, strict=True)]
    return x[tuple(slice(s, s + m) for s, m in zip(starts, shape, strict=True))]


def _convolved(a: TensorOrArray, v: TensorOrArray, mode: str, method: str) -> TensorOrArray:
    if mode not in ("full", "valid", "same"):
        raise _unknown_mode(mode)
    if np.ndim(a) == 0:
        return a * v
    shape = np.shape(a)
    pairs = list(zip(shape, np.shape(v), strict=True))
    if mode == "valid" and not all(n >= m for n, m in pairs):
        if not all(n <= m for n, m in pairs):
            raise ValueError(
                f"mode 'valid' of shapes {shape} and {np.shape(v)}, of which neither holds the "
                "other; use 'full' or 'same'"
            )
        a, v = v, a
    if method == "auto":
        method = _scipy.choose_conv_method(like_of(a), like_of(v), mode)
    attrs = {"mode": "valid" if mode == "valid" else "full", "method": method}
    found = apply(CONVOLVE, (a, v), attrs)
    return _centre(found, shape) if mode == "same" else found


@derived
def convolve(in1: Operand, in2: Operand, mode: str = "full", method: str = "auto") -> TensorOrArray:
    """Convolution of two arrays.

    Parameters
    ----------
    in1, in2 : Tensor or array_like
    mode, method : str, optional
        As SciPy has them.

    Returns
    -------
    Tensor
        As `scipy.signal.convolve`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> tg.grad(ts.signal.convolve(a, [1.0, 2.0], mode="valid").sum(), a)
    (tensor([2., 3., 1.]),)
    """
    a, v = _both(in1, in2)
    return _convolved(a, v, mode, method)


def _reversed(v: Operand) -> TensorOrArray:
    return np.conj(np.flip(v)) if like_of(v).dtype.kind == "c" else np.flip(v)


@derived
def correlate(in1: Operand, in2: Operand, mode: str = "full", method: str = "auto") -> TensorOrArray:
    """Correlation of two arrays.

    Parameters
    ----------
    in1, in2 : Tensor or array_like
    mode, method : str, optional
        As SciPy has them.

    Returns
    -------
    Tensor
        As `scipy.signal.correlate`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> tg.grad(ts.signal.correlate(a, [1.0, 2.0], mode="valid").sum(), a)
    (tensor([1., 3., 2.]),)
    """
    a, v = _both(in1, in2)
    return _convolved(a, _reversed(v), mode, method)


@derived
def fftconvolve(in1: Operand, in2: Operand, mode: str = "full", axes: Axis = None) -> TensorOrArray:
    """Convolution of two arrays by Fourier transforms.

    Parameters
    ----------
    in1, in2 : Tensor or array_like
    mode : str, optional
    axes : int or tuple of int, optional
        Along which; others are broadcast.

    Returns
    -------
    Tensor
        As `scipy.signal.fftconvolve`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> tg.grad(ts.signal.fftconvolve(a, [1.0, 2.0], mode="valid").sum(), a)
    (tensor([2., 3., 1.]),)
    """
    a, v = _both(in1, in2)
    if axes is None or np.ndim(a) == 0:
        return _convolved(a, v, mode, "fft")
    axes = tuple(np.lib.array_utils.normalize_axis_tuple(axes, np.ndim(a)))
    one, two = np.shape(a), np.shape(v)
    whole = [one[d] + two[d] - 1 if d in axes else max(one[d], two[d]) for d in range(np.ndim(a))]
    fast = [next_fast_len(whole[d], True) for d in axes]
    real = like_of(a).dtype.kind == "f"
    forth, back = (np.fft.rfftn, np.fft.irfftn) if real else (np.fft.fftn, np.fft.ifftn)
    found = back(forth(a, fast, axes) * forth(v, fast, axes), fast, axes)
    found = found[tuple(slice(n) for n in whole)]
    if mode == "full":
        return found
    if mode == "same":
        return _centre(found, one)
    if mode != "valid":
        raise _unknown_mode(mode)
    return _centre(found, [abs(one[d] - two[d]) + 1 if d in axes else whole[d] for d in range(np.ndim(a))])


@derived
def oaconvolve(in1: Operand, in2: Operand, mode: str = "full", axes: Axis = None) -> TensorOrArray:
    """Convolution of two arrays, for one that is much longer; by one transform where differentiated.

    Parameters
    ----------
    in1, in2 : Tensor or array_like
    mode, axes : optional
        As for `fftconvolve`.

    Returns
    -------
    Tensor
        As `scipy.signal.oaconvolve`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> tg.grad(ts.signal.oaconvolve(a, [1.0, 2.0], mode="valid").sum(), a)
    (tensor([2., 3., 1.]),)
    """
    return fftconvolve(in1, in2, mode, axes)


def _plane(
    name: str, in1: Operand, in2: Operand, mode: str, boundary: str, fillvalue: Operand, turned: bool
) -> TensorOrArray:
    a, v = _both(in1, in2)
    if np.ndim(a) != 2:
        raise ValueError(f"matrices are needed, found shapes {np.shape(a)} and {np.shape(v)}")
    if derivative_wanted(fillvalue):
        raise refuse(f"scipy.signal.{name}", "has no derivative by fillvalue")
    v = _reversed(v) if turned else v
    if boundary not in PADS:
        raise ValueError(f"boundary is {boundary!r}; give 'fill', 'wrap' or 'symm'")
    if mode == "valid":
        return _convolved(a, v, mode, "direct")
    if mode not in ("full", "same"):
        raise _unknown_mode(mode)
    width = [(m - 1, m - 1) for m in np.shape(v)]
    values = {"constant_values": value_of(fillvalue)} if PADS[boundary] == "constant" else {}
    found = _convolved(np.pad(a, width, mode=PADS[boundary], **values), v, "valid", "direct")
    if mode == "full":
        return found
    starts = [m // 2 if turned else (m - 1) // 2 for m in np.shape(v)]  # correlate2d rounds up
    return found[tuple(slice(s, s + n) for s, n in zip(starts, np.shape(a), strict=True))]


@derived
def convolve2d(
    in1: Operand, in2: Operand, mode: str = "full", boundary: str = "fill", fillvalue: Operand = 0
) -> TensorOrArray:
    """Convolution of two matrices.

    Parameters
    ----------
    in1, in2 : Tensor or array_like
    mode, boundary, fillvalue : optional
        As SciPy has them.

    Returns
    -------
    Tensor
        As `scipy.signal.convolve2d`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> tg.grad(ts.signal.convolve2d(a, [[1.0, 2.0]], mode="valid").sum(), a)
    (tensor([[2., 1.],
            [2., 1.]]),)
    """
    return _plane("convolve2d", in1, in2, mode, boundary, fillvalue, False)


@derived
def correlate2d(
    in1: Operand, in2: Operand, mode: str = "full", boundary: str = "fill", fillvalue: float = 0
) -> TensorOrArray:
    """Correlation of two matrices.

    Parameters
    ----------
    in1, in2 : Tensor or array_like
    mode, boundary, fillvalue : optional
        As SciPy has them.

    Returns
    -------
    Tensor
        As `scipy.signal.correlate2d`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> tg.grad(ts.signal.correlate2d(a, [[1.0, 2.0]], mode="valid").sum(), a)
    (tensor([[1., 2.],
            [1., 2.]]),)
    """
    return _plane("correlate2d", in1, in2, mode, boundary, fillvalue, True)
