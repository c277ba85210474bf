"""Equations with matrices of bands and of constant diagonals, by SciPy's solvers, in the rules too."""

import numpy as np
from scipy import linalg

from tapegrad.ops.decompositions import real_dtype
from tapegrad.ops.matrix_functions import declare, like
from tapegrad.ops.primitive import conj


def _places(lower, upper, n):
    """Of each element of a band the row that it is in, those within the matrix, and the same of its adjoint.

    Element r, j of a band is that of row j + r - upper and column j.
    """
    r = np.arange(lower + upper + 1)[:, None]
    row = np.arange(n) + r - upper
    return np.clip(row, 0, max(n - 1, 0)), (row >= 0) & (row < n)


def adjoint_of_band(band, lower, upper):
    """The band of the adjoint matrix, of which `upper` diagonals are below and `lower` above."""
    n = band.shape[1]
    row, inside = _places(upper, lower, n)
    return conj(band[np.arange(lower + upper, -1, -1)[:, None], row]) * inside.astype(real_dtype(band))


def band_times(band, x, lower, upper):
    """The product of a matrix that is a band with a vector or a matrix."""
    n = band.shape[1]
    column, inside = _places(upper, lower, n)
    terms = band[np.arange(lower + upper, -1, -1)[:, None], column] * inside.astype(real_dtype(band))
    return np.sum((terms if np.ndim(x) == 1 else terms[..., None]) * x[column], axis=0)


def _by_band(w, x, lower, upper):
    """The cotangent of a band, of which that of the whole matrix is the outer product of two vectors."""
    row, inside = _places(lower, upper, len(w))
    terms = w[row] * conj(x)[None]
    found = terms if np.ndim(w) == 1 else np.sum(terms, axis=-1)
    return found * inside.astype(real_dtype(found))


def _solve_banded(band, b, lower, upper, positive):
    if positive:
        return linalg.solveh_banded(band[: upper + 1], b, check_finite=False)
    return linalg.solve_banded((lower, upper), band, b, check_finite=False)


@declare(_solve_banded, 2)
class solve_banded:
    """Solution x of a x = b of a matrix that is a band; by those of the whole matrix (Giles 2008, 2.3.1).

    A `positive` one is Hermitian, and the band has both its halves.
    """

    reads = (0b1001, 0b0001)

    def vjp(ct, out, inputs, wanted, lower, upper, positive):
        band, b = inputs
        back = band if positive else adjoint_of_band(band, lower, upper)
        w = solve_banded(back, ct, lower=upper, upper=lower, positive=positive)
        found = {}
        if 0 in wanted:
            found[0] = like(-_by_band(w, out, lower, upper), band)
        if 1 in wanted:
            found[1] = like(w, b)
        return found

    def jvp(tangents, out, inputs, lower, upper, positive):
        dband, db = tangents
        right = 0 if db is None else db
        if dband is not None:
            right = right - band_times(dband, out, lower, upper)
        return solve_banded(inputs[0], right, lower=lower, upper=upper, positive=positive)


def _solve_toeplitz(t, b):
    n = (len(t) + 1) // 2
    return linalg.solve_toeplitz((t[n - 1 :], t[n - 1 :: -1]), b, check_finite=False)


def _columns(function, x):
    """A function of vectors, of each column of a matrix; another of both columns of two."""
    if np.ndim(x[0]) == 1:
        return function(*x)
    return np.stack([function(*(part[:, k] for part in x)) for k in range(x[0].shape[1])], axis=-1)


@declare(_solve_toeplitz, 2)
class solve_toeplitz:
    """Solution x of a x = b, where a has the diagonals t, the last one of the first row first.

    By those of the whole matrix (Giles 2008, 2.3.1), summed along diagonals: a convolution.
    """

    reads = (0b1001, 0b0001)

    def vjp(ct, out, inputs, wanted):
        t, b = inputs
        w = solve_toeplitz(conj(t[::-1]), ct)
        found = {}
        if 0 in wanted:
            back = conj(out[::-1])
            parts = _columns(lambda p, q: np.convolve(p, q), (w, back))
            found[0] = like(-(parts if parts.ndim == 1 else np.sum(parts, axis=-1)), t)
        if 1 in wanted:
            found[1] = like(w, b)
        return found

    def jvp(tangents, out, inputs):
        dt, db = tangents
        n = len(out)
        right = 0 if db is None else db
        if dt is not None:
            right = right - _columns(lambda x: np.convolve(dt, x)[n - 1 : 2 * n - 1], (out,))
        return solve_toeplitz(inputs[0], right)
