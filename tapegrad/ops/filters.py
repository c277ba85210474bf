"""Convolutions of arrays and recursive filters, of SciPy; declared when a module of `tapegrad.scipy` asks."""

import numpy as np
from scipy import ndimage, signal

from tapegrad.ops.matrix_functions import declare
from tapegrad.ops.primitive import conj


def _convolve(a, v, mode, method):
    axes = [axis for axis, n in enumerate(v.shape) if n != 1]
    real = a.dtype == v.dtype and a.dtype.char in "fd"
    if method == "direct" and real and a.ndim > 1 and len(axes) == 1:
        return _along(a, v.ravel(), axes[0], mode)
    return signal.convolve(a, v, mode, method)


def _along(a, v, axis, mode):
    """A convolution with a kernel of one axis, for which SciPy has a quicker function."""
    if mode == "full":
        width = [(v.size - 1,) * 2 if k == axis else (0, 0) for k in range(a.ndim)]
        a = np.pad(a, width)
    start = v.size // 2
    found = ndimage.correlate1d(a, v[::-1], axis, mode="constant")
    inner = slice(start, start + a.shape[axis] - v.size + 1)
    return np.ascontiguousarray(found[(slice(None),) * axis + (inner,)])


@declare(_convolve, 2, "signal")
class convolve_arrays:
    """All places of one array against another, or ("valid") those where the second lies within the first."""

    reads = (0b10, 0b1)

    def vjp(ct, out, inputs, wanted, mode, method):
        a, v = inputs
        found = {}
        if 0 in wanted:
            other = "valid" if mode == "full" else "full"
            found[0] = convolve_arrays(ct, conj(np.flip(v)), mode=other, method=method)
        if 1 in wanted and mode == "full":
            found[1] = convolve_arrays(ct, conj(np.flip(a)), mode="valid", method=method)
        elif 1 in wanted:
            found[1] = np.flip(convolve_arrays(conj(a), np.flip(ct), mode="valid", method=method))
        return found

    def jvp(tangents, out, inputs, mode, method):
        pairs = zip(tangents, ((tangents[0], inputs[1]), (inputs[0], tangents[1])), strict=True)
        terms = [convolve_arrays(*pair, mode=mode, method=method) for t, pair in pairs if t is not None]
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]


def _recursive(v, a):
    return signal.lfilter(np.ones(1, a.dtype), np.concatenate([np.ones(1, a.dtype), a]), v)


@declare(_recursive, 2, "signal")
class recursive_filter:
    """y[n] = v[n] - a[0] y[n-1] - a[1] y[n-2] - ... along the last axis; in reverse the same from the end."""

    reads = (0b10, 0b1010)

    def vjp(ct, out, inputs, wanted):
        a = inputs[1]
        moved = np.flip(recursive_filter(np.flip(ct, -1), conj(a)), -1)
        found = {0: moved} if 0 in wanted else {}
        if 1 in wanted:
            n = out.shape[-1]
            lags = [np.sum(moved[..., k:] * conj(out[..., : n - k])) for k in range(1, min(n, len(a) + 1))]
            lags += [np.zeros((), out.dtype)] * (len(a) - len(lags))
            found[1] = -np.stack(lags)
        return found

    def jvp(tangents, out, inputs):
        dv, da = tangents
        total = dv
        if da is not None:
            n = out.shape[-1]
            kernel = np.reshape(np.concatenate([np.zeros(1, da.dtype), da]), (1,) * (out.ndim - 1) + (-1,))
            part = convolve_arrays(out, kernel, mode="full", method="direct")[..., :n]
            total = -part if dv is None else dv - part
        return recursive_filter(total, inputs[1])
