"""Factorisations and functions of matrices of active numbers.

Most are loops that record themselves. Eigenvectors are NumPy's for the values, then refined by Newton's
method (Ogita and Aishima 2018) on active numbers: from constants, k steps are right to order 2**k - 1, so
as many are done as the derivatives asked for need.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba.core import types

from tapegrad.native.algebra import Spec
from tapegrad.native.arrays import is_active_array, is_complex_array
from tapegrad.native.blocks import inner_njit
from tapegrad.native.complexes import squared
from tapegrad.native.functions import INSTEAD, _any_active, _none, dtype_of, instead
from tapegrad.native.linear import ELIMINATE
from tapegrad.native.operators import value_of
from tapegrad.native.scalar import taped


def order_of(spec: Spec) -> int:
    """Return of which order the derivatives are that numbers of this kind carry, the sweep's among them."""
    return sum(1 if lanes > 0 else -lanes for lanes in spec) + taped(spec)


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
        raise np.linalg.LinAlgError("Last 2 dimensions of the array must be square.")
    out, scale = np.empty(a.shape, dtype_of(a)), np.abs(values(a)).max() if a.size else 0.0
    for i in range(a.shape[0]):
        out[i, i] = a[i, i]
        for j in range(i):
            if abs(a[i, j] - a[j, i]) > 1e-8 * scale:
                raise np.linalg.LinAlgError("of symmetric matrices only is this recorded; found another")
            out[i, j] = 0.5 * a[i, j] + 0.5 * a[j, i]
            out[j, i] = out[i, j]
    return out


@instead(np.linalg.cholesky)
def cholesky(a):
    if not is_active_array(a):
        return None

    def told(a):
        s = symmetric(a)
        out = np.zeros(a.shape, dtype_of(a))
        for j in range(a.shape[0]):
            d = s[j, j]
            for k in range(j):
                d = d - out[j, k] * out[j, k]
            if not d > 0.0:
                raise np.linalg.LinAlgError("Matrix is not positive definite.")
            out[j, j] = np.sqrt(d)
            for i in range(j + 1, a.shape[0]):
                d = s[i, j]
                for k in range(j):
                    d = d - out[i, k] * out[j, k]
                out[i, j] = d / out[j, j]
        return out

    return told


@instead(np.linalg.slogdet)
def slogdet(a):
    if not is_active_array(a):
        return None

    def told(a):
        lu = a.copy()
        sign = ELIMINATE(lu, np.zeros((a.shape[0], 0), dtype_of(a)))
        found = 0.0
        for k in range(a.shape[0]):
            sign = sign * np.sign(lu[k, k])
            found = found + np.log(abs(lu[k, k]))
        return sign, found

    return told


@instead(np.linalg.qr)
def qr(a):
    if not is_active_array(a):
        return None

    def told(a):
        m, n = a.shape
        count = min(m, n)
        signs = np.sign(np.diag(np.linalg.qr(values(a))[1]))
        q, r = np.empty((m, count), dtype_of(a)), np.zeros((count, n), dtype_of(a))
        v = np.empty(m, dtype_of(a))
        for j in range(n):
            size = 0.0
            for i in range(m):
                v[i] = a[i, j]
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
        return q, r

    return told


@inner_njit
def _refine(s, x):
    """One step of Newton's for the eigenvectors of a symmetric matrix."""
    n = s.shape[0]
    y, e = np.empty(s.shape, dtype_of(s)), np.empty(s.shape, dtype_of(s))
    w, r = np.empty(n, dtype_of(s)), np.empty(s.shape, dtype_of(s))
    for i in range(n):
        for j in range(n):
            d = 0.0
            for k in range(n):
                d = d + s[i, k] * x[k, j]
            y[i, j] = d
    for i in range(n):
        for j in range(n):
            d, g = 0.0, 0.0
            for k in range(n):
                d = d + x[k, i] * y[k, j]
                g = g - x[k, i] * x[k, j]
            e[i, j], r[i, j] = d, g
    for i in range(n):
        r[i, i] = r[i, i] + 1.0
        w[i] = e[i, i] / (1.0 - r[i, i])
    for i in range(n):
        for j in range(n):
            if i == j:
                e[i, i] = 0.5 * r[i, i]
            else:
                if w[i] == w[j]:
                    raise np.linalg.LinAlgError(
                        "eigenvectors of equal eigenvalues have no derivative; eigvalsh has one"
                    )
                e[i, j] = (e[i, j] + w[j] * r[i, j]) / (w[j] - w[i])
    for i in range(n):
        for j in range(n):
            y[i, j] = x[i, j]
    for i in range(n):
        for j in range(n):
            d = y[i, j]
            for k in range(n):
                d = d + y[i, k] * e[k, j]
            x[i, j] = d


@inner_njit
def _quotients(s, x):
    """Rayleigh's quotients of vectors: twice as many orders are right as in the vectors."""
    n = s.shape[0]
    w = np.empty(n, dtype_of(s))
    for j in range(n):
        d, g = 0.0, 0.0
        for i in range(n):
            y = 0.0
            for k in range(n):
                y = y + s[i, k] * x[k, j]
            d = d + x[i, j] * y
            g = g + x[i, j] * x[i, j]
        w[j] = d / g
    return w


@functools.cache
def _vectors(steps: int) -> Any:
    refine = _refine

    @inner_njit
    def vectors(s):
        x0 = np.linalg.eigh(values(s))[1]
        x = np.zeros(s.shape, dtype_of(s))
        for i in range(s.shape[0]):
            for j in range(s.shape[0]):
                x[i, j] = x0[i, j]
        for _ in range(steps):
            refine(s, x)
        return x

    return vectors


@instead(np.linalg.eigh)
def eigh(a):
    if not is_active_array(a):
        return None
    vectors, quotients = _vectors(order_of(a.dtype.spec).bit_length()), _quotients

    def told(a):
        s = symmetric(a)
        x = vectors(s)
        return quotients(s, x), x

    return told


@instead(np.linalg.eigvalsh)
def eigvalsh(a):
    if not is_active_array(a):
        return None
    vectors, quotients = _vectors((order_of(a.dtype.spec) // 2).bit_length()), _quotients

    def told(a):
        s = symmetric(a)
        return quotients(s, vectors(s))

    return told


@instead(np.linalg.pinv)
def pinv(a):
    if not is_active_array(a):
        return None

    def told(a):
        m, n = a.shape
        tall = m >= n
        b = a if tall else a.T
        count, other = b.shape[1], b.shape[0]
        first = np.linalg.pinv(values(b))
        if np.linalg.matrix_rank(values(b)) < count:
            raise np.linalg.LinAlgError("pinv: where the rank is not full there is no derivative")
        gram, rhs = np.empty((count, count), dtype_of(a)), np.empty((count, other), dtype_of(a))
        for i in range(count):
            for j in range(count):
                d = 0.0
                for k in range(other):
                    d = d + b[k, i] * b[k, j]
                gram[i, j] = d
        for i in range(count):  # what NumPy's leaves of b.T, so that rounding stays small
            for j in range(other):
                d = b[j, i] + 0.0
                for k in range(count):
                    d = d - gram[i, k] * first[k, j]
                rhs[i, j] = d
        ELIMINATE(gram, rhs)
        out = np.empty((n, m), dtype_of(a))
        for i in range(count):
            for j in range(other):
                if tall:
                    out[i, j] = rhs[i, j] + first[i, j]
                else:
                    out[j, i] = rhs[i, j] + first[i, j]
        return out

    return told


@instead(np.linalg.matrix_rank)
def matrix_rank(a):
    return (lambda a: np.linalg.matrix_rank(values(a))) if is_active_array(a) else None


@instead(np.linalg.matrix_power)
def matrix_power(a, n):
    if not is_active_array(a):
        return None
    inv, matmul = INSTEAD[np.linalg.inv], INSTEAD[np.dot]

    def told(a, n):
        if a.shape[0] != a.shape[1]:
            raise np.linalg.LinAlgError("Last 2 dimensions of the array must be square.")
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

    return told


@instead(np.kron)
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

    def told(a, b):
        p, q = b.shape
        out = np.empty((a.shape[0] * p, a.shape[1] * q), dtype_of(a, b))
        for i in range(a.shape[0]):
            for j in range(a.shape[1]):
                for k in range(p):
                    for m in range(q):
                        out[i * p + k, j * q + m] = a[i, j] * b[k, m]
        return out

    return told


@instead(np.linalg.norm)
def norm(x, ord=None):
    if is_complex_array(x) and x.ndim <= 2:
        whole, stub = inner_njit(_size), INSTEAD[np.linalg.norm]
        if _none(ord):
            return lambda x, ord=None: whole(x)
        if x.ndim == 2:
            return lambda x, ord=None: stub(np.abs(x), ord)
        return lambda x, ord=None: whole(x) if ord == 2 else stub(np.abs(x), ord)
    if not is_active_array(x):
        return None
    if _none(ord) and x.ndim <= 2:
        return _frobenius
    if isinstance(ord, (types.Integer, types.Float)):
        return _vector_norm if x.ndim == 1 else _matrix_norm if x.ndim == 2 else None
    return None


def _size(z):
    s = 0.0
    for v in z.flat:
        s = s + squared(v)
    return np.sqrt(s)


def _frobenius(x, ord=None):
    s = 0.0
    for v in x.flat:
        s = s + v * v
    return np.sqrt(s)


def _vector_norm(x, ord=None):
    s = 0.0
    if ord == np.inf or ord == -np.inf:
        s = abs(x[0])
        for v in x.flat:
            s = np.maximum(s, abs(v)) if ord > 0 else np.minimum(s, abs(v))
        return s
    if ord == 0:
        for v in x.flat:
            s = s + (1.0 if v != 0.0 else 0.0)
        return s
    if ord == 2:
        for v in x.flat:
            s = s + v * v
        return np.sqrt(s)
    for v in x.flat:
        s = s + abs(v) if ord == 1 else s + abs(v) ** ord
    return s if ord == 1 else s ** (1.0 / ord)


def _matrix_norm(x, ord=None):
    if ord != 1 and ord != -1 and ord != np.inf and ord != -np.inf:
        raise ValueError("of matrices the norms 1, -1, inf, -inf and Frobenius' are recorded")
    a = x if abs(ord) == 1 else x.T
    best = 0.0
    for j in range(a.shape[1]):
        s = 0.0
        for i in range(a.shape[0]):
            s = s + abs(a[i, j])
        best = s if j == 0 else np.maximum(best, s) if ord > 0 else np.minimum(best, s)
    return best
