"""Filters of signals, one way and both ways, and what takes trends and negative frequencies out of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.signal as _scipy

from tapegrad.core.base import like_of, value_of
from tapegrad.errors import ShapeError
from tapegrad.ops import filters
from tapegrad.scipy import fft
from tapegrad.scipy.calls import derivative_wanted, derived_in, refuse
from tapegrad.scipy.ndimage import convolve1d
from tapegrad.scipy.signal.convolutions import CONVOLVE, floats
from tapegrad.tensor import Operand, TensorOrArray, apply

if TYPE_CHECKING:
    from tapegrad.tensor import Tensor

derived = derived_in(_scipy)
RECURSE: Any = filters.recursive_filter
FULL, VALID = ({"mode": mode, "method": "direct"} for mode in ("full", "valid"))


def _along_last(b: Operand, rank: int) -> TensorOrArray:
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
        raise ValueError("the first coefficient of a is 0")
    b, a = b / first, a / first
    n, states = np.shape(x)[-1], max(np.shape(a)[0], np.shape(b)[0]) - 1
    moved = _to_length(apply(CONVOLVE, (x, _along_last(b, np.ndim(x))), FULL), n + states)
    if zi is not None:
        moved = moved + _to_length(zi, n + states)
    y = moved[..., :n]
    if np.shape(a)[0] == 1:
        return y, moved[..., n:]
    y = apply(RECURSE, (y, a[1:]), {})
    if zi is None:
        return y, None
    again = apply(CONVOLVE, (y, _along_last(a, np.ndim(y))), FULL)
    return y, moved[..., n:] - _to_length(again, n + states)[..., n:]


def _alike(*xs: Operand | None) -> list[Any]:
    """Arguments in the precision of all."""
    found = [None if x is None else floats(x) for x in xs]
    dtype = np.result_type(*(like_of(x) for x in found if x is not None))
    return [x if x is None or like_of(x).dtype == dtype else x.astype(dtype) for x in found]


@derived
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
        raise ShapeError(f"x has shape {np.shape(x)}; let it be a signal that is not empty")
    states = max(np.shape(a)[0], np.shape(b)[0]) - 1
    x = np.moveaxis(x, axis, -1)
    if zi is not None:
        zi = np.moveaxis(zi, axis, -1)
        if np.shape(zi)[-1] != states:
            raise ShapeError(f"zi has {np.shape(zi)[-1]} states along axis {axis}, not {states}")
        zi = np.broadcast_to(zi, (*np.shape(x)[:-1], states))
    y, rest = _filtered(b, a, x, zi)
    y = np.moveaxis(y, -1, axis)
    return y if zi is None else (y, np.moveaxis(rest, -1, axis))


@derived
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


@derived
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


@derived
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


def _beyond(x: Tensor, axis: int, padtype: Any, padlen: int | None, ntaps: int) -> tuple[TensorOrArray, int]:
    """A signal along its last axis, continued at both ends, and by how much."""
    if padtype not in ("even", "odd", "constant", None):
        raise ValueError(f"padtype is {padtype!r}; give 'odd', 'even', 'constant' or None")
    x = np.moveaxis(floats(x), axis, -1)
    edge = 0 if padtype is None else 3 * ntaps if padlen is None else int(padlen)
    if np.shape(x)[-1] <= edge:
        raise ValueError(f"padlen {edge} is not below the {np.shape(x)[-1]} elements of the signal")
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


@derived
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
    x, edge = _beyond(x, axis, padtype, padlen, max(np.shape(a)[0], np.shape(b)[0]))
    zi = lfilter_zi(b, a)
    return _there_and_back(lambda x, first: lfilter(b, a, x, zi=zi * first), x, edge, axis)


@derived
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
    x, edge = _beyond(x, axis, padtype, padlen, ntaps)
    zi = sosfilt_zi(sos)
    zi = np.reshape(zi, (np.shape(zi)[0], *(1,) * (np.ndim(x) - 1), 2))
    return _there_and_back(lambda x, first: sosfilt(sos, x, zi=zi * first), x, edge, axis)


@derived
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
        raise ValueError(f"mode is {mode!r}; give 'interp', 'mirror', 'nearest', 'wrap' or 'constant'")
    if window_length > np.shape(x)[-1]:
        raise ValueError(
            f"a window of {window_length} of {np.shape(x)[-1]} elements; take a shorter one, or another mode"
        )
    if window_length % 2 == 0:
        raise refuse("scipy.signal.savgol_filter with mode='interp' and an even window_length")
    half = window_length // 2
    ends = _scipy.savgol_filter(np.eye(window_length), window_length, polyorder, deriv, delta, axis=0)
    ends = ends.astype(like_of(x).dtype)
    inner = apply(CONVOLVE, (x, _along_last(weights, np.ndim(x))), VALID)
    first, last = x[..., :window_length] @ ends[:half].T, x[..., -window_length:] @ ends[-half:].T
    whole: Any = np.concatenate([first, inner, last] if half else [inner], axis=-1)
    return np.moveaxis(whole, -1, axis)


@derived
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
        raise ValueError(f"type is {type!r}; give 'linear' or 'constant'")
    x = np.moveaxis(floats(data), axis, -1)
    if type in ("constant", "c"):
        return np.moveaxis(x - np.mean(x, axis=-1, keepdims=True), -1, axis)
    count = np.shape(x)[-1]
    ends = np.unique(np.concatenate([[0], np.atleast_1d(value_of(bp)), [count]])).astype(int)
    if np.any(ends > count):
        raise ValueError(f"bp {bp} lies beyond the {count} elements along axis {axis}")
    parts = []
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        line = np.ones((end - start, 2), like_of(x).dtype)
        line[:, 0] = np.arange(1, end - start + 1) / (end - start)
        part = x[..., start:end]
        parts.append(part - (part @ np.linalg.pinv(line).T) @ line.T)
    return np.moveaxis(np.concatenate(parts, axis=-1), -1, axis)


@derived
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
        raise ValueError(f"x has dtype {like_of(x).dtype}; it has to be real")
    count = np.shape(x)[axis] if N is None else N
    if count <= 0:
        raise ValueError(f"N must be positive, found {count}")
    transformed: Any = fft.fft(x, count, axis=axis)
    spectrum = np.moveaxis(transformed, axis, -1)
    half, middle = (count + 1) // 2, count // 2 + 1
    parts = [spectrum[..., :1], spectrum[..., 1:half] * 2.0, spectrum[..., half:middle]]
    parts.append(np.zeros((*np.shape(spectrum)[:-1], count - middle), like_of(spectrum).dtype))
    return fft.ifft(np.moveaxis(np.concatenate(parts, axis=-1), -1, axis), axis=axis)
