"""Eigenvalues and singular values of matrices of active numbers, and what is made of them.

Values are LAPACK's. Derivatives come from the series of perturbation theory: LAPACK's vectors are constants,
and each step from them is right to one order more, so as many are done as the derivatives asked for need.
What moves a vector is divided by the distances of its value from all others: where one is 0 the derivatives
of the vector are infinite or nan, and those of other vectors are what they are.
"""

from __future__ import annotations

import numpy as np
from numba.core.errors import TypingError
from numba.np.numpy_support import numpy_version

from tapegrad.native.arrays.arrays import is_active_array
from tapegrad.native.library.factors import symmetric, values
from tapegrad.native.library.functions import INSTEAD, _any_active, _none, dtype_of, overload_recorded
from tapegrad.native.library.linear import ELIMINATED
from tapegrad.native.library.matrices import block_of
from tapegrad.native.numbers.operators import value_of
from tapegrad.native.numbers.scalar import order_of
from tapegrad.native.tapes.blocks import inner_njit

DOT, SOLVE = INSTEAD[np.dot], INSTEAD[np.linalg.solve]


@inner_njit
def moved(x):
    """A number less its value."""
    return x - value_of(x)


@inner_njit
def _endless(a, here):
    """0; if it is to be, with a derivative by each element of a matrix that is infinite or nan."""
    s = 0.0
    if here:
        for x in a.flat:
            s = s + x
        s = np.sqrt(moved(s))
    return s


@inner_njit
def _tied(d, j):
    """Whether a value is not the only one of its size."""
    return (d == d[j]).sum() > 1


@inner_njit
def _space(a, d, x0, y0, lo, hi, steps, squared):
    """Basis of the space of some eigenvalues d of a matrix; if `squared`, of those d**2 of a.T @ a.

    All eigenvectors are x0, y0 their inverse. Within the space no vector moves towards another.
    """
    n, count = d.size, hi - lo
    x, z = np.empty((n, count), dtype_of(a)), np.zeros((n, count), dtype_of(a))
    for i in range(n):
        for j in range(count):
            x[i, j] = x0[i, lo + j]
    for step in range(steps):
        ax = DOT(a, x)
        if squared:
            ax = DOT(a.T, ax)
        c, zc = DOT(y0, ax), z
        if step:
            inside = c[lo:hi].copy()
            for i in range(count):
                for j in range(count):
                    inside[i, j] = moved(inside[i, j])
            zc = DOT(z, inside)
        for i in range(n):
            for j in range(count):
                if (lo <= i < hi) or d[i] == d[lo + j]:
                    continue
                distance, own = d[lo + j] - d[i], d[i]
                if squared:
                    distance, own = distance * (d[lo + j] + d[i]), own * own
                z[i, j] = moved(c[i, j] - own * z[i, j] - zc[i, j]) / distance
        moves = DOT(x0, z)
        for i in range(n):
            for j in range(count):
                x[i, j] = x0[i, lo + j] + moves[i, j]
    return x


@inner_njit
def _put(out, a, j, x, endless):
    """Column j of eigenvectors: of length 1, its values as they are."""
    s, nothing = 0.0, _endless(a, endless)
    for i in range(x.shape[0]):
        s = s + x[i, 0] * x[i, 0]
    length = np.sqrt(s)
    length = length / value_of(length)
    for i in range(x.shape[0]):
        out[i, j] = x[i, 0] / length + nothing


@inner_njit
def _apart(w, order, zero):
    """Whether values are so far from each other, and perhaps from 0, that no vector costs others digits."""
    if order == 1:
        return True
    least, most = np.inf, 0.0
    for i in range(w.size):
        x = value_of(w[i])
        most = max(most, abs(x))
        least = min(least, abs(x)) if zero else least
        for j in range(i):
            least = min(least, abs(x - value_of(w[j])))
    return least ** (order - 1) > 1e-5 * most ** (order - 1)


# ---------------------------------------------------------------- eigenvalues


@inner_njit
def _eigenvalues(a, d, x0, y0, order):
    w, n = np.empty(d.size, dtype_of(a)), d.size
    for j in range(n):
        ax = DOT(a, _space(a, d, x0, y0, j, j + 1, order - 1, False))
        s = 0.0
        for i in range(n):
            s = s + y0[j, i] * ax[i, 0]
        w[j] = d[j] + moved(s) + _endless(a, order > 1 and _tied(d, j))
    return w


@inner_njit
def _eigenvectors(a, d, x0, y0, order):
    out = np.empty(a.shape, dtype_of(a))
    for j in range(d.size):
        _put(out, a, j, _space(a, d, x0, y0, j, j + 1, int(order), False), _tied(d, j))
    return out


@overload_recorded(np.linalg.eigh)
def eigh(a):
    if not is_active_array(a):
        return None
    order, block = order_of(a.dtype.spec), block_of("eigh", a)
    least = 0 if order == 1 else ELIMINATED

    def impl(a):
        if block is not None and a.shape[0] == a.shape[1] > least:
            found = block((a.shape[0] + 1, a.shape[0]), a)
            if _apart(found[0], order, False):
                return found[0], found[1:]
        s, (d, x) = symmetric(a), np.linalg.eigh(values(a))
        return _eigenvalues(s, d, x, x.T, order), _eigenvectors(s, d, x, x.T, order)

    return impl


@overload_recorded(np.linalg.eigvalsh)
def eigvalsh(a):
    if not is_active_array(a):
        return None
    order, block = order_of(a.dtype.spec), block_of("eigh", a)
    least = 0 if order == 1 else ELIMINATED

    def impl(a):
        if block is not None and a.shape[0] == a.shape[1] > least:
            w = block((a.shape[0] + 1, a.shape[0]), a)[0]
            if _apart(w, order, False):
                return w
        d, x = np.linalg.eigh(values(a))
        return _eigenvalues(symmetric(a), d, x, x.T, order)

    return impl


@inner_njit
def _inverse(x):
    """Inverse of eigenvectors."""
    if np.linalg.matrix_rank(x) < x.shape[0]:
        raise np.linalg.LinAlgError("eigenvectors of a defective matrix are dependent and have no derivative")
    return np.linalg.inv(x)


def _see_that_they_are_real() -> None:
    if numpy_version >= (2, 5):
        raise TypingError("tapegrad: eigenvalues of a general matrix are complex numbers in an array")


@overload_recorded(np.linalg.eig)
def eig(a):
    if not is_active_array(a):
        return None
    _see_that_they_are_real()
    order, block = order_of(a.dtype.spec), block_of("eig", a)
    least = 0 if order == 1 else ELIMINATED

    def impl(a):
        if block is not None and a.shape[0] == a.shape[1] > least:
            found = block((a.shape[0] + 1, a.shape[0]), a)
            if _apart(found[0], order, False):
                return found[0], found[1:]
        d, x = np.linalg.eig(values(a))
        y = _inverse(x)
        return _eigenvalues(a, d, x, y, order), _eigenvectors(a, d, x, y, order)

    return impl


@overload_recorded(np.linalg.eigvals)
def eigvals(a):
    if not is_active_array(a):
        return None
    _see_that_they_are_real()
    order, block = order_of(a.dtype.spec), block_of("eigvals", a)
    least = 0 if order == 1 else ELIMINATED

    def impl(a):
        if block is not None and a.shape[0] == a.shape[1] > least:
            w = block((a.shape[0] + 1, a.shape[0]), a)[0]
            if _apart(w, order, False):
                return w
        np.linalg.eigvals(values(a))  # which raises, in its own words, where one is complex
        d, x = np.linalg.eig(values(a))
        return _eigenvalues(a, d, x, _inverse(x), order)

    return impl


# ---------------------------------------------------------------- singular values


@inner_njit
def _spaces(a, u0, d, vt0, lo, hi, steps):
    """Bases of the left and right spaces of some singular values; vectors are not of length 1."""
    tall = a.shape[0] >= a.shape[1]
    b, left, right = (a, u0[:, : d.size], vt0.T) if tall else (a.T, vt0.T[:, : d.size], u0)
    v = _space(b, d, right, right.T, lo, hi, steps, True)
    if b.shape[0] == b.shape[1]:
        u = _space(b.T, d, left, left.T, lo, hi, steps, True)
    else:
        u = DOT(b, v)
        for i in range(u.shape[0]):
            for j in range(u.shape[1]):
                size = d[lo + j]
                u[i, j] = left[i, lo + j] + moved(u[i, j] / size if size > 0.0 else u[i, j])
    return (u, v) if tall else (v, u)


@inner_njit
def singular_value(a, u0, d, vt0, j, order):
    """One singular value: Rayleigh's quotient, of twice the order of its vectors."""
    u, v = _spaces(a, u0, d, vt0, j, j + 1, order // 2)
    av = DOT(a, v)
    s, x, y = 0.0, 0.0, 0.0
    for i in range(u.shape[0]):
        s = s + u[i, 0] * av[i, 0]
        x = x + u[i, 0] * u[i, 0]
    for i in range(v.shape[0]):
        y = y + v[i, 0] * v[i, 0]
    rough = _tied(d, j) or (d[j] == 0.0 and a.shape[0] != a.shape[1])
    return d[j] + moved(s / np.sqrt(x * y)) + _endless(a, order > 1 and rough)


@inner_njit
def _singular_values(a, u0, d, vt0, order):
    s = np.empty(d.size, dtype_of(a))
    for j in range(d.size):
        s[j] = singular_value(a, u0, d, vt0, j, order)
    return s


@inner_njit
def _completed(out, start, steps):
    """Columns beyond the singular values, which turn as little as they can."""
    m, k = start.shape[0], out.shape[1] - start.shape[1]
    u, x = out[:, :k], out[:, k:]
    inside = DOT(u, DOT(u.T, start))
    for i in range(m):
        for j in range(x.shape[1]):
            x[i, j] = start[i, j] - moved(inside[i, j])
    for _ in range(steps):
        square = DOT(x.T, x)
        y = DOT(x, square)
        for i in range(m):
            for j in range(x.shape[1]):
                x[i, j] = x[i, j] + moved(0.5 * (x[i, j] - y[i, j]))


@overload_recorded(np.linalg.svd)
def svd(a, full_matrices=1):
    if not is_active_array(a):
        return None
    order, block, full_block = order_of(a.dtype.spec), block_of("svd", a), block_of("svd_full", a)
    steps = (order // 2).bit_length()  # as each doubles the order, which is 1 before the first
    least = 0 if order == 1 else ELIMINATED

    def impl(a, full_matrices=1):
        m, n = a.shape
        k = min(m, n)
        if block is not None and full_block is not None and k > least:
            p, q = (m, n) if full_matrices else (k, k)
            size = k + m * p + n * q
            found = full_block(size, a) if full_matrices and m != n else block(size, a)
            if _apart(found[:k], order, m != n):
                return found[k : k + m * p].reshape(m, p), found[:k], found[k + m * p :].reshape(n, q).T
        u0, d, vt0 = np.linalg.svd(values(a), full_matrices)
        u, v = np.empty(u0.shape, dtype_of(a)), np.empty(vt0.T.shape, dtype_of(a))
        for j in range(k):
            left, right = _spaces(a, u0, d, vt0, j, j + 1, int(order))
            tied = _tied(d, j)
            _put(u, a, j, left, tied or (d[j] == 0.0 and a.shape[0] > a.shape[1]))
            _put(v, a, j, right, tied or (d[j] == 0.0 and a.shape[0] < a.shape[1]))
        _completed(u, u0[:, k:], steps)
        _completed(v, vt0.T[:, k:], steps)
        return u, _singular_values(a, u0, d, vt0, order), v.T

    return impl


# ---------------------------------------------------------------- least squares


@inner_njit
def _alone(x):
    """A number as an array."""
    out = np.empty(1)
    out[0] = value_of(x)
    return out


@inner_njit
def see_that_it_counts(d, shape, rank):
    """Raise where a singular value is counted that is rounding of a zero."""
    if rank and d[rank - 1] <= d[0] * max(shape) * 2.220446049250313e-16:
        raise np.linalg.LinAlgError(
            "a singular value that is rounding's is counted, so there is no derivative: give a greater rcond"
        )


@overload_recorded(np.linalg.pinv)
def pinv(a, rcond=1e-15):
    if not is_active_array(a):
        return None
    order, block = order_of(a.dtype.spec), block_of("pinv", a)
    if block is not None:

        def by_block(a, rcond=1e-15):
            if a.size == 0:
                return np.zeros(a.T.shape, dtype_of(a))
            return block(a.T.shape, a, _alone(rcond))

        return by_block

    def impl(a, rcond=1e-15):
        out = np.zeros(a.T.shape, dtype_of(a))
        if a.size == 0:
            return out
        first, (u0, d, vt0) = np.linalg.pinv(values(a), rcond), np.linalg.svd(values(a), False)
        rank = (d > rcond * d[0]).sum()
        see_that_it_counts(d, a.shape, rank)
        u, v = _spaces(a, u0, d, vt0, 0, rank, int(order))
        found = DOT(v, SOLVE(DOT(u.T, DOT(a, v)), u.T.copy()))
        for k in np.ndindex(out.shape):
            out[k] = first[k] + moved(found[k])
        return out

    return impl


@overload_recorded(np.linalg.lstsq)
def lstsq(a, b, rcond=-1.0):
    if not _any_active(a, b) or b.ndim > 2:
        return None
    order = order_of(next(x.dtype.spec for x in (a, b) if is_active_array(x)))
    block, decomposed = block_of("lstsq", a, b), block_of("svd", a, b)
    if block is not None:

        def by_block(a, b, rcond=-1.0):
            (m, n), p = a.shape, b.size // max(b.shape[0], 1)
            k = min(m, n)
            found = block(1 + k + n * p + p, a, b, _alone(rcond))
            rank, size = int(value_of(found[0])), 1 + k + n * p
            left = found[size:] if rank == n < m else found[size:size]
            return found[1 + k : size].reshape((n, *b.shape[1:])), left, rank, found[1 : 1 + k]

        return by_block

    def impl(a, b, rcond=-1.0):
        first, squares, rank, d = np.linalg.lstsq(values(a), values(b), rcond)
        u0, _, vt0 = np.linalg.svd(values(a), False)
        see_that_it_counts(d, a.shape, rank)
        m, n = a.shape
        c, y = np.empty(a.shape, dtype_of(a, b)), np.empty((m, b.size // m), dtype_of(a, b))
        for i in range(m):
            for j in range(n):
                c[i, j] = a[i, j]
        flat = y.reshape(-1)
        for i, t in enumerate(b.flat):
            flat[i] = t
        u, v = _spaces(c, u0, d, vt0, 0, int(rank), int(order))
        x = DOT(v, SOLVE(DOT(u.T, DOT(c, v)), DOT(u.T, y)))
        for i in range(n):
            for j in range(y.shape[1]):
                x[i, j] = first.reshape(x.shape)[i, j] + moved(x[i, j])
        left = np.empty(squares.size, dtype_of(a, b))
        for j in range(squares.size):
            s = 0.0
            for i in range(m):
                t = y[i, j]
                for k in range(n):
                    t = t - c[i, k] * x[k, j]
                s = s + t * t
            left[j] = squares[j] + moved(s)
        if decomposed is not None and d.size > ELIMINATED:
            s = decomposed(d.size * (1 + m + n), c)[: d.size]
            if _apart(s, order, m != n):
                return x.reshape(first.shape), left, rank, s
        return x.reshape(first.shape), left, rank, _singular_values(c, u0, d, vt0, order)

    return impl


@overload_recorded(np.linalg.matrix_rank)
def matrix_rank(A, tol=None):
    if not is_active_array(A):
        return None
    if _none(tol):
        return lambda A, tol=None: np.linalg.matrix_rank(values(A))
    return lambda A, tol=None: np.linalg.matrix_rank(values(A), value_of(tol))
