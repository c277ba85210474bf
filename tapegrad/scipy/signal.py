"""Convolutions and filters of `scipy.signal` on Tensors and arrays; all its other names are its own.

They are differentiated by the signal, by the other signal or the coefficients of the filter, and by the
state that it begins with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.signal as _scipy
from scipy.fft import next_fast_len

from tapegrad.core.base import Axis, like_of, value_of
from tapegrad.errors import ShapeError
from tapegrad.numpy_api.tables import tensor_of
from tapegrad.ops import filters
from tapegrad.scipy import fft
from tapegrad.scipy.calls import derivative_wanted, derived, fall_through, refuse
from tapegrad.scipy.ndimage import convolve1d
from tapegrad.tensor import Operand, TensorOrArray, apply

if TYPE_CHECKING:
    from tapegrad.tensor import Tensor

__all__ = [
    "convolve", "convolve2d", "correlate", "correlate2d", "detrend", "fftconvolve", "filtfilt", "hilbert",
    "lfilter", "lfilter_zi", "oaconvolve", "savgol_filter", "sosfilt", "sosfilt_zi", "sosfiltfilt",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return fall_through(_scipy, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})


CONVOLVE: Any = filters.convolve_arrays
RECURSE: Any = filters.recursive_filter
PADS: dict[str, Any] = {
    "fill": "constant", "pad": "constant", "wrap": "wrap", "circular": "wrap", "symm": "symmetric",
    "symmetric": "symmetric",
}  # fmt: skip


def floats(x: Operand) -> Any:
    """An argument as a Tensor or array of numbers that are no integers."""
    x = tensor_of(x)
    return x if like_of(x).dtype.kind in "fc" else x * 1.0


# ---------------------------------------------------------------- convolutions


def _both(name: str, in1: Operand, in2: Operand) -> list[TensorOrArray]:
    a, v = floats(in1), floats(in2)
    if np.ndim(a) != np.ndim(v) or not all((*np.shape(a), *np.shape(v))):
        raise ShapeError(
            f"scipy.signal.{name}: two arrays of as many axes that are not empty are needed, found shapes "
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
        raise ValueError("acceptable mode flags are 'valid', 'same', or 'full'")
    if np.ndim(a) == 0:
        return a * v
    shape = np.shape(a)
    pairs = list(zip(shape, np.shape(v), strict=True))
    if mode == "valid" and not all(n >= m for n, m in pairs):
        if not all(n <= m for n, m in pairs):
            raise ValueError(
                "For 'valid' mode, one must be at least as large as the other in every dimension"
            )
        a, v = v, a
    if method == "auto":
        method = _scipy.choose_conv_method(like_of(a), like_of(v), mode)
    attrs = {"mode": "valid" if mode == "valid" else "full", "method": method}
    found = apply(CONVOLVE, (a, v), attrs)
    return _centre(found, shape) if mode == "same" else found


@derived(_scipy.convolve)
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
    a, v = _both("convolve", in1, in2)
    return _convolved(a, v, mode, method)


def _reversed(v: Operand) -> TensorOrArray:
    return np.conj(np.flip(v)) if like_of(v).dtype.kind == "c" else np.flip(v)


@derived(_scipy.correlate)
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
    a, v = _both("correlate", in1, in2)
    return _convolved(a, _reversed(v), mode, method)


@derived(_scipy.fftconvolve)
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
    a, v = _both("fftconvolve", in1, in2)
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
        raise ValueError("acceptable mode flags are 'valid', 'same', or 'full'")
    return _centre(found, [abs(one[d] - two[d]) + 1 if d in axes else whole[d] for d in range(np.ndim(a))])


@derived(_scipy.oaconvolve)
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
    a, v = _both(name, in1, in2)
    if np.ndim(a) != 2:
        raise ValueError(f"{name} inputs must both be 2-D arrays")
    if derivative_wanted(fillvalue):
        raise refuse(f"scipy.signal.{name}", "has no derivative by fillvalue")
    v = _reversed(v) if turned else v
    if boundary not in PADS:
        raise ValueError("Acceptable boundary flags are 'fill', 'circular' (or 'wrap'), and 'symmetric'.")
    if mode == "valid":
        return _convolved(a, v, mode, "direct")
    if mode not in ("full", "same"):
        raise ValueError("acceptable mode flags are 'valid', 'same', or 'full'")
    width = [(m - 1, m - 1) for m in np.shape(v)]
    values = {"constant_values": value_of(fillvalue)} if PADS[boundary] == "constant" else {}
    found = _convolved(np.pad(a, width, mode=PADS[boundary], **values), v, "valid", "direct")
    if mode == "full":
        return found
    starts = [m // 2 if turned else (m - 1) // 2 for m in np.shape(v)]  # correlate2d rounds up
    return found[tuple(slice(s, s + n) for s, n in zip(starts, np.shape(a), strict=True))]


@derived(_scipy.convolve2d)
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


@derived(_scipy.correlate2d)
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


# ---------------------------------------------------------------- filters


def _kernel(b: Operand, rank: int) -> TensorOrArray:
    return np.reshape(b, (*(1,) * (rank - 1), -1))


def _to_length(x: Any, n: int) -> TensorOrArray:
    """Along the last axis so long, cut off or with zeros."""
    missing = n - np.shape(x)[-1]
    if missing <= 0:
        return x[..., :n]
    return np.concatenate([x, np.zeros((*np.shape(x)[:-1], missing), like_of(x).dtype)], axis=-1)


def _filtered(b: TensorOrArray, a: TensorOrArray, x: TensorOrArray, zi: Operand | None) -> tuple[Any, Any]:
    """A signal along the last axis, filtered, and the state after it."""
    first = a[0]
    if not value_of(first):
        raise ValueError("scipy.signal.lfilter: the first coefficient of a is 0")
    b, a = b / first, a / first
    n, states = np.shape(x)[-1], max(np.shape(a)[0], np.shape(b)[0]) - 1
    moved = _to_length(apply(CONVOLVE, (x, _kernel(b, np.ndim(x))), FULL), n + states)
    if zi is not None:
        moved = moved + _to_length(zi, n + states)
    y = moved[..., :n]
    if np.shape(a)[0] == 1:
        return y, moved[..., n:]
    y = apply(RECURSE, (y, a[1:]), {})
    if zi is None:
        return y, None
    again = apply(CONVOLVE, (y, _kernel(a, np.ndim(y))), FULL)
    return y, moved[..., n:] - _to_length(again, n + states)[..., n:]


FULL = {"mode": "full", "method": "direct"}


def _alike(*xs: Operand | None) -> list[Any]:
    """Arguments in the precision of all."""
    found = [None if x is None else floats(x) for x in xs]
    dtype = np.result_type(*(like_of(x) for x in found if x is not None))
    return [x if x is None or like_of(x).dtype == dtype else x.astype(dtype) for x in found]


@derived(_scipy.lfilter)
def lfilter(
    b: Any, a: Any, x: Any, axis: int = -1, zi: Any = None
) -> TensorOrArray | tuple[TensorOrArray, ...]:
    """Filter a signal by a rational transfer function.

    Parameters
    ----------
    b, a : Tensor or array_like
        Coefficients of the numerator and the denominator.
    x : Tensor or array_like
        The signal.
    axis : int, optional
    zi : Tensor or array_like, optional
        The state that it begins with.

    Returns
    -------
    Tensor, or a tuple of two
        As `scipy.signal.lfilter`: the filtered signal, and with `zi` the state after it.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([1.0, -0.5], requires_grad=True)
    >>> y = ts.signal.lfilter([1.0], a, [1.0, 0.0, 0.0])
    >>> tg.grad(y[2], a)
    (tensor([-0.75, -1.00]),)
    """
    b, a, x, zi = _alike(np.reshape(b, (-1,)), np.reshape(a, (-1,)), x, zi)
    if np.ndim(x) == 0 or not like_of(x).size:
        raise ShapeError(
            f"scipy.signal.lfilter: x has shape {np.shape(x)}; let it be a signal that is not empty"
        )
    states = max(np.shape(a)[0], np.shape(b)[0]) - 1
    x = np.moveaxis(x, axis, -1)
    if zi is not None:
        zi = np.moveaxis(zi, axis, -1)
        if np.shape(zi)[-1] != states:
            raise ShapeError(
                f"scipy.signal.lfilter: zi has {np.shape(zi)[-1]} states along axis {axis}, not {states}"
            )
        zi = np.broadcast_to(zi, (*np.shape(x)[:-1], states))
    y, rest = _filtered(b, a, x, zi)
    y = np.moveaxis(y, -1, axis)
    return y if zi is None else (y, np.moveaxis(rest, -1, axis))


@derived(_scipy.sosfilt)
def sosfilt(sos: Any, x: Any, axis: int = -1, zi: Any = None) -> TensorOrArray | tuple[TensorOrArray, ...]:
    """Filter a signal by sections of second order, one after the other.

    Parameters
    ----------
    sos : Tensor or array_like
        Six coefficients of each.
    x : Tensor or array_like
        The signal.
    axis : int, optional
    zi : Tensor or array_like, optional
        The states that they begin with.

    Returns
    -------
    Tensor, or a tuple of two
        As `scipy.signal.sosfilt`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> sos = tg.tensor([[1.0, 0.0, 0.0, 1.0, -0.5, 0.0]], requires_grad=True)
    >>> tg.grad(ts.signal.sosfilt(sos, [1.0, 0.0])[1], sos)
    (tensor([[ 0.5,  1.0,  0.0, -1.0, -1.0,  0.0]]),)
    """
    _scipy._signaltools._validate_sos(value_of(sos))
    sos, x, zi = _alike(sos, x, zi)
    states = []
    for k in range(np.shape(sos)[0]):
        own = None if zi is None else zi[k]
        found = lfilter(sos[k, :3], sos[k, 3:], x, axis, own)
        x = found if zi is None else found[0]
        if zi is not None:
            states.append(found[1])
    return x if zi is None else (x, np.stack(states))


# ---------------------------------------------------------------- filters in both directions


@derived(_scipy.lfilter_zi, "scipy.signal.lfilter_zi")
def lfilter_zi(b: Any, a: Any) -> TensorOrArray:
    """State of `lfilter` that a constant signal of ones leaves as it is.

    Parameters
    ----------
    b, a : Tensor or array_like
        Coefficients of the numerator and the denominator.

    Returns
    -------
    Tensor
        As `scipy.signal.lfilter_zi`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([1.0, -0.5], requires_grad=True)
    >>> tg.grad(ts.signal.lfilter_zi([1.0], a).sum(), a)
    (tensor([-3., -4.]),)
    """
    b, a = _alike(np.reshape(b, (-1,)), np.reshape(a, (-1,)))
    if not value_of(a)[0]:
        raise ValueError("the first coefficient of a is 0")
    n = max(np.shape(a)[0], np.shape(b)[0])
    b, a = _to_length(b / a[0], n), _to_length(a / a[0], n)
    rest = b[1:] - a[1:] * b[0]
    gain = np.sum(rest) / np.sum(a)  # by which the state's first equation is solved; the others follow
    return np.cumsum(a)[:-1] * gain - np.cumsum(np.concatenate([0.0 * b[:1], rest]))[:-1]


@derived(_scipy.sosfilt_zi, "scipy.signal.sosfilt_zi")
def sosfilt_zi(sos: Any) -> TensorOrArray:
    """States of `sosfilt` that a constant signal of ones leaves as they are.

    Parameters
    ----------
    sos : Tensor or array_like
        Six coefficients of each section.

    Returns
    -------
    Tensor
        As `scipy.signal.sosfilt_zi`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> sos = tg.tensor([[1.0, 0.0, 0.0, 1.0, -0.5, 0.0]], requires_grad=True)
    >>> tg.grad(ts.signal.sosfilt_zi(sos)[0, 0], sos)
    (tensor([[ 1.,  2.,  2., -3., -4., -4.]]),)
    """
    _scipy._signaltools._validate_sos(value_of(sos))
    sos = floats(sos)
    gain = 1.0
    states = []
    for k in range(np.shape(sos)[0]):
        b, a = sos[k, :3], sos[k, 3:]
        states.append(gain * lfilter_zi(b, a))
        gain = gain * np.sum(b) / np.sum(a)
    return np.stack(states)


def _beyond(
    name: str, x: Tensor, axis: int, padtype: Any, padlen: int | None, ntaps: int
) -> tuple[TensorOrArray, int]:
    """A signal along its last axis, continued at both ends, and by how much."""
    if padtype not in ("even", "odd", "constant", None):
        raise ValueError(f"unknown value {padtype!r} of padtype: 'even', 'odd', 'constant' or None")
    x = np.moveaxis(floats(x), axis, -1)
    edge = 0 if padtype is None else 3 * ntaps if padlen is None else int(padlen)
    if np.shape(x)[-1] <= edge:
        raise ValueError(f"the signal has {np.shape(x)[-1]} elements, padlen is {edge}, which must be less")
    if not edge:
        return x, 0
    before, after = x[..., edge:0:-1], x[..., -2 : -edge - 2 : -1]
    if padtype == "odd":
        before, after = 2 * x[..., :1] - before, 2 * x[..., -1:] - after
    elif padtype == "constant":
        before, after = (0.0 * y + end for y, end in ((before, x[..., :1]), (after, x[..., -1:])))
    return np.concatenate([before, x, after], axis=-1), edge


def _there_and_back(
    run: Callable[[TensorOrArray, TensorOrArray], tuple[TensorOrArray, TensorOrArray]],
    x: Any,
    edge: int,
    axis: int,
) -> Any:
    """A signal filtered forward and then backward, each time from the state of its first value."""
    for _ in range(2):
        x = np.flip(run(x, x[..., :1])[0], -1)
    return np.moveaxis(x[..., edge : np.shape(x)[-1] - edge], -1, axis)


@derived(_scipy.filtfilt, "scipy.signal.filtfilt")
def filtfilt(
    b: Operand, a: Operand, x: Any, axis: int = -1, padtype: str | None = "odd",
    padlen: int | None = None, method: str = "pad", irlen: int | None = None,
) -> TensorOrArray:  # fmt: skip
    """Filter a signal forward and backward, so that its phase stays.

    Parameters
    ----------
    b, a : Tensor or array_like
        Coefficients of the numerator and the denominator.
    x : Tensor or array_like
        The signal.
    axis, padtype, padlen, method, irlen : optional
        As SciPy has them; `method` is ``"pad"``.

    Returns
    -------
    Tensor
        As `scipy.signal.filtfilt`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.signal.filtfilt([0.5, 0.5], [1.0], x, padlen=1)[1], x)
    (tensor([0.25, 0.50, 0.25]),)
    """
    if method != "pad":
        raise refuse(f"scipy.signal.filtfilt with method={method!r}")
    b, a, x = _alike(np.reshape(b, (-1,)), np.reshape(a, (-1,)), x)
    x, edge = _beyond("filtfilt", x, axis, padtype, padlen, max(np.shape(a)[0], np.shape(b)[0]))
    zi = lfilter_zi(b, a)
    return _there_and_back(lambda x, first: lfilter(b, a, x, zi=zi * first), x, edge, axis)


@derived(_scipy.sosfiltfilt, "scipy.signal.sosfiltfilt")
def sosfiltfilt(
    sos: Operand, x: Any, axis: int = -1, padtype: str | None = "odd", padlen: int | None = None
) -> TensorOrArray:
    """Filter a signal by sections of second order, forward and backward.

    Parameters
    ----------
    sos : Tensor or array_like
        Six coefficients of each section.
    x : Tensor or array_like
        The signal.
    axis, padtype, padlen : optional
        As SciPy has them.

    Returns
    -------
    Tensor
        As `scipy.signal.sosfiltfilt`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.signal.sosfiltfilt([[0.5, 0.5, 0.0, 1.0, 0.0, 0.0]], x, padlen=1)[1], x)
    (tensor([0.25, 0.50, 0.25]),)
    """
    sos, x = _alike(sos, x)
    values = value_of(sos)
    ntaps = 2 * len(values) + 1 - min(int(np.sum(values[:, 2] == 0)), int(np.sum(values[:, 5] == 0)))
    x, edge = _beyond("sosfiltfilt", x, axis, padtype, padlen, ntaps)
    zi = sosfilt_zi(sos)
    zi = np.reshape(zi, (np.shape(zi)[0], *(1,) * (np.ndim(x) - 1), 2))
    return _there_and_back(lambda x, first: sosfilt(sos, x, zi=zi * first), x, edge, axis)


@derived(_scipy.savgol_filter)
def savgol_filter(
    x: Any, window_length: int, polyorder: int, deriv: int = 0, delta: float = 1.0, axis: int = -1,
    mode: str = "interp", cval: float = 0.0,
) -> TensorOrArray:  # fmt: skip
    """Filter a signal by polynomials fitted to windows of it.

    Parameters
    ----------
    x : Tensor or array_like
        The signal.
    window_length, polyorder, deriv, delta, axis, mode, cval : optional
        As SciPy has them, constants.

    Returns
    -------
    Tensor
        As `scipy.signal.savgol_filter`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.signal.savgol_filter(x, 3, 1)[1], x)
    (tensor([0.3333, 0.3333, 0.3333]),)
    """
    if derivative_wanted(delta, cval):
        raise refuse("scipy.signal.savgol_filter", "has no derivative by delta and cval")
    x = np.moveaxis(floats(x), axis, -1)
    weights = _scipy.savgol_coeffs(window_length, polyorder, deriv, delta).astype(like_of(x).dtype)
    if mode in ("mirror", "constant", "nearest", "wrap"):
        return np.moveaxis(convolve1d(x, weights, mode=mode, cval=cval), -1, axis)
    if mode != "interp":
        raise ValueError("mode must be 'mirror', 'constant', 'nearest' 'wrap' or 'interp'.")
    if window_length > np.shape(x)[-1]:
        raise ValueError("If mode is 'interp', window_length must be less than or equal to the size of x.")
    if window_length % 2 == 0:
        raise refuse("scipy.signal.savgol_filter with mode='interp' and an even window_length")
    half = window_length // 2
    ends = _scipy.savgol_filter(np.eye(window_length), window_length, polyorder, deriv, delta, axis=0)
    ends = ends.astype(like_of(x).dtype)
    inner = apply(CONVOLVE, (x, _kernel(weights, np.ndim(x))), {"mode": "valid", "method": "direct"})
    first, last = x[..., :window_length] @ ends[:half].T, x[..., -window_length:] @ ends[-half:].T
    whole: Any = np.concatenate([first, inner, last] if half else [inner], axis=-1)
    return np.moveaxis(whole, -1, axis)


@derived(_scipy.detrend)
def detrend(
    data: Operand,
    axis: int = -1,
    type: str = "linear",
    bp: int | Sequence[int] = 0,
    overwrite_data: bool = False,
) -> TensorOrArray:
    """Take a constant or linear trend out of a signal.

    Parameters
    ----------
    data : Tensor or array_like
    axis, type, bp : optional
        As SciPy has them.
    overwrite_data : bool, optional
        Nothing is overwritten where a derivative is asked for.

    Returns
    -------
    Tensor
        As `scipy.signal.detrend`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.signal.detrend(x, type="constant")[0], x)
    (tensor([ 0.6667, -0.3333, -0.3333]),)
    """
    if type not in ("linear", "l", "constant", "c"):
        raise ValueError("Trend type must be 'linear' or 'constant'.")
    x = np.moveaxis(floats(data), axis, -1)
    if type in ("constant", "c"):
        return np.moveaxis(x - np.mean(x, axis=-1, keepdims=True), -1, axis)
    count = np.shape(x)[-1]
    ends = np.unique(np.concatenate([[0], np.atleast_1d(value_of(bp)), [count]])).astype(int)
    if np.any(ends > count):
        raise ValueError("Breakpoints must be less than length of data along given axis.")
    parts = []
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        line = np.ones((end - start, 2), like_of(x).dtype)
        line[:, 0] = np.arange(1, end - start + 1) / (end - start)
        part = x[..., start:end]
        parts.append(part - (part @ np.linalg.pinv(line).T) @ line.T)
    return np.moveaxis(np.concatenate(parts, axis=-1), -1, axis)


@derived(_scipy.hilbert)
def hilbert(x: Operand, N: int | None = None, axis: int = -1) -> TensorOrArray:
    """Compute the analytic signal, whose absolute value is the envelope.

    Parameters
    ----------
    x : Tensor or array_like
        Real numbers.
    N : int, optional
        How many of them, with zeros behind, are transformed.
    axis : int, optional

    Returns
    -------
    Tensor
        As `scipy.signal.hilbert`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 0.0, -1.0, 0.0], requires_grad=True)
    >>> tg.grad(ts.signal.hilbert(x)[1].imag, x)
    (tensor([ 0.5,  0.0, -0.5,  0.0]),)
    """
    x = floats(x)
    if like_of(x).dtype.kind == "c":
        raise ValueError(f"scipy.signal.hilbert: x has dtype {like_of(x).dtype}; it has to be real")
    count = np.shape(x)[axis] if N is None else N
    if count <= 0:
        raise ValueError(f"scipy.signal.hilbert: N must be positive, found {count}")
    transformed: Any = fft.fft(x, count, axis=axis)
    spectrum = np.moveaxis(transformed, axis, -1)
    half, middle = (count + 1) // 2, count // 2 + 1
    parts = [spectrum[..., :1], spectrum[..., 1:half] * 2.0, spectrum[..., half:middle]]
    parts.append(np.zeros((*np.shape(spectrum)[:-1], count - middle), like_of(spectrum).dtype))
    return fft.ifft(np.moveaxis(np.concatenate(parts, axis=-1), -1, axis), axis=axis)
