"""Factorisations and functions of matrices of active numbers, as loops that record themselves."""

from __future__ import annotations

import math

import numpy as np

from tapegrad.native.arrays.arrays import is_active_array
from tapegrad.native.library.functions import INSTEAD, _any_active, dtype_of, overload_recorded
from tapegrad.native.library.linear import ELIMINATED, FACTORED, determinant, triangular
from tapegrad.native.library.matrices import block_of
from tapegrad.native.numbers.operators import value_of, with_value
from tapegrad.native.numbers.scalar import order_of
from tapegrad.native.tapes.blocks import inner_njit


@inner_njit
def values(a):
    """The values of an array, without derivatives."""
    out = np.empty(a.shape, np.float64)
    flat = out.reshape(-1)
    for k, v in enumerate(a.flat):
        flat[k] = value_of(v)
    return out


@inner_njit
def symmetric(a):
    """A symmetric matrix whose derivative goes to both halves."""
    if a.shape[0] != a.shape[1]:
        raise np.linalg.LinAlgError("a square matrix is needed")
    out, scale = np.empty(a.shape, dtype_of(a)), np.abs(values(a)).max() if a.size else 0.0
    for i in range(a.shape[0]):
        out[i, i] = a[i, i]
        for j in range(i):
            if abs(a[i, j] - a[j, i]) > 1e-8 * scale:
                raise np.linalg.LinAlgError("of symmetric matrices only is this recorded; found another")
            out[i, j] = 0.5 * a[i, j] + 0.5 * a[j, i]
            out[j, i] = out[i, j]
    return out


@overload_recorded(np.linalg.cholesky)
def cholesky(a):
    if not is_active_array(a):
        return None
    block = block_of("cholesky", a)

    def impl(a):
        if block is not None and a.shape[0] == a.shape[1] > ELIMINATED:
            return block(a.shape, a)
        s = symmetric(a)
        out = np.zeros(a.shape, dtype_of(a))
        for j in range(a.shape[0]):
            d = s[j, j]
            for k in range(j):
                d = d - out[j, k] * out[j, k]
            if not d > 0.0:
                raise np.linalg.LinAlgError("the matrix is not positive definite")
            out[j, j] = np.sqrt(d)
            for i in range(j + 1, a.shape[0]):
                d = s[i, j]
                for k in range(j):
                    d = d - out[i, k] * out[j, k]
                out[i, j] = d / out[j, j]
        return out

    return impl


@overload_recorded(np.linalg.slogdet)
def slogdet(a):
    if not is_active_array(a):
        return None

    order, block = order_of(a.dtype.spec), block_of("slogdet", a)

    def impl(a):
        if block is not None and a.shape[0] == a.shape[1] > ELIMINATED:
            parts = block(3, a)
            if parts[1] != 0.0:
                return value_of(parts[1]), parts[0]
        lu, found = a.copy(), 0.0
        rank, sign = triangular(lu)
        if rank < a.shape[0]:  # the derivative is infinite, or none
            left = determinant(a, order) if a.shape[0] - rank <= order else a.sum() * np.nan
            return 0.0, np.log(with_value(left, 0.0))
        for k in range(rank):
            sign = sign * np.sign(lu[k, k])
            found = found + np.log(abs(lu[k, k]))
        return sign, found

    return impl


@inner_njit
def _scale_of(column):
    """A power of two by which a column is divided, so that squares neither overflow nor vanish; mostly 1."""
    largest = 0.0
    for x in column:
        largest = max(largest, abs(value_of(x)))
    if 1e-100 <= largest <= 1e100 or largest == 0.0 or not np.isfinite(largest):
        return 1.0
    return 2.0 ** min(max(math.frexp(largest)[1], -1000), 1000)  # its reciprocal is a number, too


@overload_recorded(np.linalg.qr)
def qr(a):
    if not is_active_array(a):
        return None
    block, dot = block_of("qr", a), INSTEAD[np.dot]

    def impl(a):
        m, n = a.shape
        count = min(m, n)
        if block is not None and count > FACTORED:
            both = block((m + count, count), a[:, :count])
            if n == count:
                return both[:m], both[m:]
            wide = np.empty((m, n), dtype_of(a))
            wide[:, :m] = both[m:]
            wide[:, m:] = dot(both[:m].T, a[:, m:])
            return both[:m], wide
        signs = np.sign(np.diag(np.linalg.qr(values(a))[1]))
        q, r = np.empty((m, count), dtype_of(a)), np.zeros((count, n), dtype_of(a))
        v = np.empty(m, dtype_of(a))
        for j in range(n):
            size, scale = 0.0, _scale_of(a[:, j])
            for i in range(m):
                v[i] = a[i, j]
                if scale != 1.0:
                    v[i] = v[i] * (1.0 / scale)
                size += value_of(v[i]) ** 2
            for _ in range(2):  # once more, for what rounding left
                for k in range(min(j, count)):
                    d = 0.0
                    for i in range(m):
                        d = d + q[i, k] * v[i]
                    r[k, j] = r[k, j] + d
                    for i in range(m):
                        v[i] = v[i] - d * q[i, k]
            if j < count:
                d = 0.0
                for i in range(m):
                    d = d + v[i] * v[i]
                if value_of(d) <= 1e-26 * size:
                    raise np.linalg.LinAlgError("qr: where columns are dependent there is no derivative")
                r[j, j] = signs[j] * np.sqrt(d)
                for i in range(m):
                    q[i, j] = v[i] / r[j, j]
            if scale != 1.0:
                for k in range(min(j + 1, count)):
                    r[k, j] = r[k, j] * scale
        return q, r

    return impl


@overload_recorded(np.linalg.matrix_power)
def matrix_power(a, n):
    if not is_active_array(a):
        return None
    inv, matmul = INSTEAD[np.linalg.inv], INSTEAD[np.dot]

    def impl(a, n):
        if a.shape[0] != a.shape[1]:
            raise np.linalg.LinAlgError("a square matrix is needed")
        out = np.zeros(a.shape, dtype_of(a))
        for i in range(a.shape[0]):
            out[i, i] = 1.0
        base = np.empty(a.shape, dtype_of(a))
        base[...] = inv(a) if n < 0 else a
        left = abs(n)
        while left:
            if left & 1:
                out = matmul(out, base)
            left >>= 1
            if left:
                base = matmul(base, base)
        return out

    return impl


@overload_recorded(np.kron)
def kron(a, b):
    if not _any_active(a, b) or a.ndim != b.ndim or a.ndim > 2:
        return None
    if a.ndim == 1:

        def vectors(a, b):
            out = np.empty(a.size * b.size, dtype_of(a, b))
            for i in range(out.size):
                out[i] = a[i // b.size] * b[i % b.size]
            return out

        return vectors

    def impl(a, b):
        p, q = b.shape
        out = np.empty((a.shape[0] * p, a.shape[1] * q), dtype_of(a, b))
        for i in range(a.shape[0]):
            for j in range(a.shape[1]):
                for k in range(p):
                    for m in range(q):
                        out[i * p + k, j * q + m] = a[i, j] * b[k, m]
        return out

    return impl
