"""Discrete Fourier transforms along axes: linear maps, each other's adjoints up to scale.

The scale that `norm` asks for one direction is by the name of `OPPOSITE` that of the other direction's
adjoint. Axes are different ones, each with its number of points; of transforms of real numbers the last has
the half of a spectrum, and the complex transforms of the others come after it, or before it on the way back.
"""

import functools

import numpy as np

from tapegrad.ops.primitive import linear
from tapegrad.tape.record import Template

OPPOSITE = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _lift(attrs, n, shapes):
    return {**attrs, "axis": tuple(k + 1 for k in attrs["axis"])}


def _resized(x, shape, axis):
    """Cut off or filled up with zeros at the end of axes: adjoint of filling up or cutting off."""
    for k in axis:
        extent, missing = shape[k], list(x.shape)
        if x.shape[k] > extent:
            x = x[(*(slice(None),) * k, slice(extent))]
        elif x.shape[k] < extent:
            missing[k] = extent - x.shape[k]
            x = np.concatenate([x, np.zeros(missing, x.dtype)], axis=k)
    return x


@functools.lru_cache(maxsize=64)
def _counts(dtype, n, after):
    """As `_halves`, for so many axes after that of the spectrum."""
    twice = np.full(n // 2 + 1, 2, np.finfo(dtype).dtype)
    twice[0] = 1
    if n % 2 == 0:
        twice[-1] = 1
    return twice.reshape((-1,) + (1,) * after)


def _halves(x, n, axis):
    """How often each of the n // 2 + 1 numbers stands in a spectrum that is Hermitian: once or twice."""
    return _counts(x.dtype, n, x.ndim - axis - 1)


def _over(function, x, n, axis, norm):
    for points, k in zip(n, axis, strict=True):
        x = function(x, points, k, norm)
    return x


def _fft(x, n, axis, norm, inverse):
    return _over(np.fft.ifft if inverse else np.fft.fft, x, n[::-1], axis[::-1], norm)


def _rfft(x, n, axis, norm):
    return _over(np.fft.fft, np.fft.rfft(x, n[-1], axis[-1], norm), n[-2::-1], axis[-2::-1], norm)


def _irfft(x, n, axis, norm):
    return np.fft.irfft(_over(np.fft.ifft, x, n[:-1], axis[:-1], norm), n[-1], axis[-1], norm)


def _adjoint(ct, shapes, n, axis, norm, inverse):
    """The adjoint of `fft`."""
    found = fft(ct, n=n, axis=axis, norm=OPPOSITE[norm], inverse=not inverse)
    return _resized(found, shapes[0], axis)


@linear(np.fft.fft, np.fft.ifft, forward=_fft, lift=_lift, template=Template.PYTHON)
def fft(ct, shapes, wanted, n, axis, norm, inverse):
    """Fourier transform of n complex numbers, or its inverse."""
    return {0: _adjoint(ct, shapes, n, axis, norm, inverse)}


@linear(np.fft.rfft, forward=_rfft, lift=_lift, template=Template.PYTHON)
def rfft(ct, shapes, wanted, n, axis, norm):
    """First half of the Fourier transform of n real numbers."""
    back = OPPOSITE[norm]
    if len(axis) > 1:
        ct = _adjoint(ct, shapes, n[:-1], axis[:-1], norm, False)
    found = irfft(ct / _halves(ct, n[-1], axis[-1]), n=n[-1:], axis=axis[-1:], norm=back)
    return {0: _resized(found, shapes[0], axis[-1:])}


@linear(np.fft.irfft, forward=_irfft, lift=_lift, template=Template.PYTHON)
def irfft(ct, shapes, wanted, n, axis, norm):
    """The n real numbers whose Fourier transform begins with these."""
    back = OPPOSITE[norm]
    found = rfft(ct, n=n[-1:], axis=axis[-1:], norm=back)
    found = _resized(found * _halves(found, n[-1], axis[-1]), shapes[0], axis[-1:])
    if len(axis) > 1:
        found = _adjoint(found, shapes, n[:-1], axis[:-1], norm, True)
    return {0: found}
