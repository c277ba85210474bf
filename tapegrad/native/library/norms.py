"""Norms and condition numbers of arrays of active numbers."""

from __future__ import annotations

import numpy as np
from numba.core import types

from tapegrad.native.arrays.arrays import is_active_array, is_complex_array
from tapegrad.native.library.factors import values
from tapegrad.native.library.functions import INSTEAD, _none, overload_recorded
from tapegrad.native.library.linear import triangular
from tapegrad.native.library.spectra import moved, singular_value
from tapegrad.native.numbers.complexes import squared
from tapegrad.native.numbers.operators import value_of, with_value
from tapegrad.native.numbers.scalar import order_of
from tapegrad.native.tapes.blocks import inner_njit

INV = INSTEAD[np.linalg.inv]
SUM, MAX, MIN = INSTEAD[np.sum], INSTEAD[np.max], INSTEAD[np.min]


@inner_njit
def _extreme(a, u0, d, vt0, best, order):
    """The greatest or least singular value; of several equal ones each has an equal share."""
    total, count = 0.0, 0
    for j in range(d.size):
        if d[j] == best:
            total = total + singular_value(a, u0, d, vt0, j, order)
            count += 1
    return best + moved(total / count)


@overload_recorded(np.linalg.cond)
def cond(x, p=None):
    if not is_active_array(x):
        return None
    order, norm = order_of(x.dtype.spec), INSTEAD[np.linalg.norm]
    if not (_none(p) or isinstance(p, (types.Integer, types.Float))):
        return None
    two = _none(p)

    def impl(x, p=None):
        if two or p == 2 or p == -2:
            u0, d, vt0 = np.linalg.svd(values(x), False)
            top, bottom = _extreme(x, u0, d, vt0, d[0], order), _extreme(x, u0, d, vt0, d[-1], order)
            if not two and p == -2:
                top, bottom = bottom, top
            if d[0] == 0.0:
                return np.divide(1.0, bottom)
            return np.divide(top, bottom)
        if triangular(values(x))[0] < x.shape[0]:
            return np.inf
        return norm(x, p) * norm(INV(x), p)

    return impl


@overload_recorded(np.linalg.norm)
def norm(x, ord=None):
    if is_complex_array(x) and x.ndim <= 2:
        stub, order = INSTEAD[np.linalg.norm], order_of(x.dtype.spec)
        if _none(ord):
            return lambda x, ord=None: _complex_length(x, order)
        if x.ndim == 1:
            return lambda x, ord=None: _complex_length(x, order) if ord == 2 else stub(np.abs(x), ord)
        return lambda x, ord=None: stub(np.abs(x), entrywise(ord))
    if not is_active_array(x) or not (_none(ord) or isinstance(ord, (types.Integer, types.Float))):
        return None
    order = order_of(x.dtype.spec)
    if _none(ord):
        return (lambda x, ord=None: _length(x, order)) if x.ndim <= 2 else None
    if x.ndim == 1:
        return lambda x, ord=None: _length(x, order) if ord == 2 else _vector_norm(x, ord, order)
    return (lambda x, ord=None: _matrix_norm(x, ord, order)) if x.ndim == 2 else None


@inner_njit
def _complex_length(z, order):
    s = 0.0
    for v in z.flat:
        s = s + squared(v)
    return s if order == 1 and s == 0.0 else np.sqrt(s)


@inner_njit
def entrywise(ord):
    """The order of a norm of a complex matrix that is one of the absolute values."""
    if ord == 2 or ord == -2:
        raise ValueError("the norms 2 and -2 of complex matrices are not recorded")
    return ord


@inner_njit
def _length(x, order):
    """Root of the sum of squares; at the origin its first derivative is 0, as that of Tensors.

    Where squares overflow or vanish it is the length of the largest element and the others, one by one, whose
    derivatives have no squares either; of a largest one that is not 0, as of zeros there would be a kink.
    """
    s, size, largest = 0.0, 0.0, 0
    for k, v in enumerate(x.flat):
        s = s + v * v
        if abs(value_of(v)) > size:
            size, largest = abs(value_of(v)), k
    if 1e-280 < s < 1e300 or not np.isfinite(size):
        return np.sqrt(s)
    if size == 0.0:
        return s if order == 1 else np.sqrt(s)
    s = 0.0 + abs(x.flat[largest])
    for k, v in enumerate(x.flat):
        if k != largest:
            s = np.hypot(s, v)
    return s


@inner_njit
def _vector_norm(x, ord, order):
    s = 0.0
    if x.size == 0:
        return s
    if ord == np.inf:
        return MAX(np.abs(x))
    if ord == -np.inf:
        return MIN(np.abs(x))
    if ord == 0:
        for v in x.flat:
            s = s + (1.0 if v != 0.0 else 0.0)
        return s
    for v in x.flat:
        if ord == 1:
            s = s + abs(v)
        elif v != 0.0 or ord > 1:
            s = s + abs(v) ** ord
        elif ord < 0:
            return 0.0
    if ord == 1:
        return s
    if s == 0.0:  # the second derivative of such a power is infinite
        return with_value(s * np.nan, 0.0) if order > 1 and 1 < ord < 2 else value_of(s) ** (1.0 / ord)
    return s ** (1.0 / ord)


@inner_njit
def _matrix_norm(x, ord, order):
    best = 0.0
    if x.size == 0:
        return best
    if ord == 2 or ord == -2:
        u0, d, vt0 = np.linalg.svd(values(x), False)
        best = _extreme(x, u0, d, vt0, d[0] if ord == 2 else d[-1], order)
        return best
    if ord != 1 and ord != -1 and ord != np.inf and ord != -np.inf:
        raise ValueError("np.linalg.norm of a matrix: ord is 1, 2, inf, those negated, or a name")
    sums = SUM(np.abs(x), 0 if abs(ord) == 1 else 1)
    return MAX(sums) if ord > 0 else MIN(sums)
