"""Discrete cosine and sine transforms along an axis: linear maps, each other's adjoints up to weights.

With `orthogonalize` each kind is a multiple of an orthogonal matrix: kinds 1 and 4 of a symmetric one, 2 and
3 of each other's transposes. Without, the first element (of sines the last; of cosines of kind 1 both ends)
of what is long on one side has another factor (documentation of `scipy.fft.dct`; Makhoul 1980, "A fast
cosine transform in one and two dimensions").
"""

import numpy as np
from scipy import fft

from tapegrad.ops.matrix_functions import declare

OTHER = {1: 1, 2: 3, 3: 2, 4: 4}


def weights(kind, sine, n, axis, ndim, dtype):
    """By what a result without `orthogonalize` has been divided, along an axis."""
    found = np.ones(n, dtype)
    if kind == 1 and not sine:
        found[[0, -1]] = np.sqrt(0.5)
    else:
        found[-1 if sine else 0] = np.sqrt(0.5)
    return found.reshape((-1,) + (1,) * (ndim - axis - 1))


def _transform(x, sine, kind, axis, norm, orthogonalize):
    function = fft.dst if sine else fft.dct
    if x.dtype.kind == "c":  # of which SciPy's functions forget `orthogonalize`
        parts = (_transform(part, sine, kind, axis, norm, orthogonalize) for part in (x.real, x.imag))
        found = np.empty(x.shape, x.dtype)
        found.real, found.imag = parts
        return found
    return function(x, kind, axis=axis, norm=norm, orthogonalize=orthogonalize)


@declare(_transform, 1, "fft")
class dct:
    """A cosine or sine transform of a kind from 1 to 4."""

    reads = (0,)

    def vjp(ct, out, inputs, wanted, sine, kind, axis, norm, orthogonalize):
        other = OTHER[kind]
        if orthogonalize or kind == 4 or (kind == 1 and sine):
            found = dct(ct, sine=sine, kind=other, axis=axis, norm=norm, orthogonalize=orthogonalize)
            return {0: found}
        weight = weights(kind, sine, out.shape[axis], axis, out.ndim, ct.dtype.char.lower())
        if kind != 3:
            ct = ct / weight
        found = dct(ct, sine=sine, kind=other, axis=axis, norm=norm, orthogonalize=True)
        return {0: found if kind == 2 else found * weight}

    def jvp(tangents, out, inputs, **attrs):
        return dct(tangents[0], **attrs)
