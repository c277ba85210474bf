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
    if x.shape == shape:
        return x
    for k in axis:
        extent, missing = shape[k], list(x.shape)
        if x.shape[k] > extent:
            x = x[(*(slice(None),) * k, slice(extent))]
        elif x.shape[k] < extent:
            missing[k] = extent - x.shape[k]
            x = np.concatenate([x, np.zeros(missing, x.dtype)], axis=k)
    return x


@functools.lru_cache(maxsize=64)
def _counts(dtype, n, after, each):
    """As `_weighed`, what to multiply by, for so many axes after that of the spectrum."""
    counts = np.full(n // 2 + 1, each, dtype)  # complex, as NumPy would make them in every product
    counts[0] = 1
    if n % 2 == 0:
        counts[-1] = 1
    return counts.reshape((-1,) + (1,) * after)


def _weighed(x, n, axis, each):
    """Half a spectrum of n numbers, those times `each` that stand twice in the whole, as it is Hermitian."""
    return x * _counts(x.dtype, n, x.ndim - axis - 1, each)


def _direct(function, dtype, n, axis, norm, own=False):
    """Return np.fft's function of one axis as a call of the gufunc by which it computes, and little else.

    The factor of no scale is a number of Python's there, by which single precision is computed in double;
    if `own`, it has the precision of the array, which takes half the time.
    """
    from numpy.fft import _pocketfft_umath as gufuncs

    real, extent = np.finfo(dtype).dtype, n
    given = np.result_type(real, 1j)
    if function is np.fft.rfft:
        gufunc, extent = (gufuncs.rfft_n_odd if n % 2 else gufuncs.rfft_n_even), n // 2 + 1
    else:
        gufunc = getattr(gufuncs, function.__name__)
        if function is np.fft.irfft:
            given = real
    factor = 1
    scale = OPPOSITE[norm] if function in (np.fft.ifft, np.fft.irfft) else norm
    if scale != "backward":
        factor = np.reciprocal(np.sqrt(n, dtype=real) if scale == "ortho" else n, dtype=real)
    number = int if scale == "backward" and not own else real
    taken, scaled, computed = gufunc.resolve_dtypes((dtype, number, given))
    factor = np.array(factor, scaled)  # this and casts made here are quicker than those that a gufunc makes
    axes, casts, back, empty_like = [(axis,), (), (axis,)], taken != dtype, computed != given, np.empty_like

    def transform(x):
        shape = x.shape
        if shape[axis] != extent:
            shape = (*shape[:axis], extent, *shape[axis + 1 :])
        if casts:
            x = x.astype(taken)
        found = gufunc(x, factor, empty_like(x, computed, "K", True, shape), axes=axes)
        return found.astype(given) if back else found

    return transform


@functools.cache
def _proved(function, dtype):
    """Whether `_direct` gives what np.fft gives, of points that are cut off, as many or filled up."""
    if dtype.kind not in "fc":
        return False
    x = np.array([[0.7, -1.3, 2.9, 0.1], [5.3, 0.3, -0.9, 1.7], [-2.1, 1.1, 0.6, 3.7]], dtype)
    if dtype.kind == "c":
        x += 1j * x[::-1, ::-1]
    try:
        for n, axis, norm in ((3, 1, "ortho"), (4, 1, "backward"), (5, 0, "forward"), (2, 0, "backward")):
            found, wanted = _direct(function, dtype, n, axis, norm)(x), function(x, n, axis, norm)
            if found.dtype != wanted.dtype or not np.array_equal(found, wanted):
                return False
    except (ImportError, AttributeError, TypeError, ValueError):
        return False
    return True


@functools.lru_cache(maxsize=256)
def _transform(function, dtype, n, axis, norm, own):
    """Return what computes np.fft's function of one axis for arrays of a dtype."""
    if _proved(function, dtype):
        return _direct(function, dtype, n, axis, norm, own)
    return functools.partial(function, n=n, axis=axis, norm=norm)


def _over(function, x, n, axis, norm, own):
    for points, k in zip(n, axis, strict=True):
        x = _transform(function, x.dtype, points, k, norm, own)(x)
    return x


def _fft(x, n, axis, norm, inverse, own=False):
    return _over(np.fft.ifft if inverse else np.fft.fft, x, n[::-1], axis[::-1], norm, own)


def _rfft(x, n, axis, norm, own=False):
    x = _over(np.fft.rfft, x, n[-1:], axis[-1:], norm, own)
    return _over(np.fft.fft, x, n[-2::-1], axis[-2::-1], norm, own)


def _irfft(x, n, axis, norm, own=False):
    x = _over(np.fft.ifft, x, n[:-1], axis[:-1], norm, own)
    return _over(np.fft.irfft, x, n[-1:], axis[-1:], norm, own)


def _back(op, ct, **attrs):
    """The op at a cotangent: of an array in its own precision, as no value has to have NumPy's bits there."""
    return op.forward(ct, **attrs, own=True) if type(ct) is np.ndarray else op(ct, **attrs)


@linear(np.fft.fft, np.fft.ifft, forward=_fft, lift=_lift, template=Template.PYTHON)
def fft(ct, shapes, wanted, n, axis, norm, inverse):
    """Fourier transform of n complex numbers, or its inverse."""
    found = _back(fft, ct, n=n, axis=axis, norm=OPPOSITE[norm], inverse=not inverse)
    return {0: _resized(found, shapes[0], axis)}


@linear(np.fft.rfft, forward=_rfft, lift=_lift, template=Template.PYTHON)
def rfft(ct, shapes, wanted, n, axis, norm):
    """First half of the Fourier transform of n real numbers."""
    found = _back(irfft, _weighed(ct, n[-1], axis[-1], 0.5), n=n, axis=axis, norm=OPPOSITE[norm])
    return {0: _resized(found, shapes[0], axis)}


@linear(np.fft.irfft, forward=_irfft, lift=_lift, template=Template.PYTHON)
def irfft(ct, shapes, wanted, n, axis, norm):
    """The n real numbers whose Fourier transform begins with these."""
    found = _back(rfft, ct, n=n, axis=axis, norm=OPPOSITE[norm])
    return {0: _resized(_weighed(found, n[-1], axis[-1], 2), shapes[0], axis)}
