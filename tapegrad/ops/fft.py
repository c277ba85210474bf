"""Discrete Fourier transforms along one axis: linear maps, each other's adjoints up to scale.

The scale that `norm` asks for one direction is by the name of `OPPOSITE` that of the other direction's
adjoint.
"""

import numpy as np

from tapegrad.ops.lanes import along
from tapegrad.ops.primitive import linear
from tapegrad.tape.record import Template

OPPOSITE = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _resized(x, extent, axis):
    """Cut off or filled up with zeros at the end of an axis: adjoint of filling up or cutting off."""
    shape = np.shape(x)
    if shape[axis] >= extent:
        return x[(*(slice(None),) * axis, slice(extent))]
    missing = (*shape[:axis], extent - shape[axis], *shape[axis + 1 :])
    return np.concatenate([x, np.zeros(missing, x.dtype)], axis=axis)


def _halves(dtype, n, shape, axis):
    """How often each of the n // 2 + 1 numbers stands in a spectrum that is Hermitian: once or twice."""
    twice = np.full(shape[axis], 2, np.finfo(dtype).dtype)
    twice[0] = 1
    if n % 2 == 0:
        twice[-1] = 1
    return np.reshape(twice, (-1,) + (1,) * (len(shape) - axis - 1))


def _fft(x, n, axis, norm, inverse):
    return (np.fft.ifft if inverse else np.fft.fft)(x, n, axis, norm)


@linear(np.fft.fft, np.fft.ifft, forward=_fft, lift=along, template=Template.PYTHON)
def fft(ct, shapes, wanted, n, axis, norm, inverse):
    """Fourier transform of n complex numbers, or its inverse."""
    found = fft(ct, n=n, axis=axis, norm=OPPOSITE[norm], inverse=not inverse)
    return {0: _resized(found, shapes[0][axis], axis)}


@linear(
    np.fft.rfft, forward=lambda x, n, axis, norm: np.fft.rfft(x, n, axis, norm), lift=along,
    template=Template.PYTHON,
)  # fmt: skip
def rfft(ct, shapes, wanted, n, axis, norm):
    """First half of the Fourier transform of n real numbers."""
    found = irfft(ct / _halves(ct.dtype, n, np.shape(ct), axis), n=n, axis=axis, norm=OPPOSITE[norm])
    return {0: _resized(found, shapes[0][axis], axis)}


@linear(
    np.fft.irfft, forward=lambda x, n, axis, norm: np.fft.irfft(x, n, axis, norm), lift=along,
    template=Template.PYTHON,
)  # fmt: skip
def irfft(ct, shapes, wanted, n, axis, norm):
    """The n real numbers whose Fourier transform begins with these."""
    found = rfft(ct, n=n, axis=axis, norm=OPPOSITE[norm])
    return {0: _resized(found * _halves(ct.dtype, n, np.shape(found), axis), shapes[0][axis], axis)}
