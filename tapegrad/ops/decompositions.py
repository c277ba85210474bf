"""Factorisations of matrices. Each factor is a record of its own that shares what was computed once.

The attribute `factors` keeps all factors (`lapack.Kept`), `part` says which of them a record stands for. On
arrays a rule reads the factors from there; on Tensors it has them recorded anew from the operand
(`factors_of`), with the very same values: a second factorisation could choose other signs.

Formulas: Giles (2008), "Collected matrix derivative results"; Seeger et al. (2017), "Auto-differentiating
linear algebra"; Townsend (2016), "Differentiating the singular value decomposition". Where factors are
determined up to a phase or a rotation only, a function of them has a derivative if it does not depend on
that choice, and it is this derivative that the rules give.
"""

import functools

import numpy as np

from tapegrad.ops.buffers import add, matmul, multiply, subtract
from tapegrad.ops.lapack import solve_square
from tapegrad.ops.primitive import conj, primitive
from tapegrad.ops.triangles import through_cholesky, through_eigh, through_qr, through_svd

BLOCK = 64  # rows of the largest constants that are kept


def adjoint(x):
    """Conjugate transpose of matrices."""
    return conj(x.mT)


def half(x):
    """Hermitian part: of a matrix of which NumPy reads one triangle both halves share the derivative."""
    found = add(x, adjoint(x))
    if type(found) is not np.ndarray:
        return found * 0.5
    found *= 0.5
    return found


def scaled(x, row):
    """Columns of a matrix, each times a number."""
    return multiply(x, row if row.ndim == 1 else row[..., None, :])


def over(x, r):
    """x r**-1."""
    return np.swapaxes(np.linalg.solve(np.swapaxes(r, -1, -2), np.swapaxes(x, -1, -2)), -1, -2)


def diagonal(x):
    n = np.arange(np.shape(x)[-1])
    return x[..., n, n]


def real(x):
    return np.real(x) if x.dtype.kind == "c" else x


def mask(x, function, k=0):
    """Ones in a triangle of a square matrix like x; `function` is np.tril or np.triu."""
    return _constant(_triangle, x, function, k)


def identity(x):
    return _constant(np.eye, x)


def _constant(make, x, *args):
    """A constant matrix of the size and precision of x."""
    n, dtype = x.shape[-1], real_dtype(x)
    return _kept(make, n, dtype, *args) if n <= BLOCK else make(n, *args, dtype=dtype)


@functools.lru_cache(maxsize=64)
def _kept(make, n, dtype, *args):
    found = make(n, *args, dtype=dtype)
    found.flags.writeable = False
    return found


def _triangle(n, function, k, dtype):
    return np.tri(n, k=k, dtype=dtype) if function is np.tril else np.tri(n, k=-k, dtype=dtype).T


def _halved(n, dtype):
    """A lower triangle of ones with half of the diagonal."""
    found = np.tri(n, dtype=dtype)
    found.flat[:: n + 1] = 0.5
    return found


def real_dtype(x):
    return np.dtype(x.dtype.char.lower())


def gaps(w):
    """1 / (w[j] - w[i]) off the diagonal: infinite where two are equal."""
    if type(w) is not np.ndarray:
        one = identity(w)
        return (1 - one) / (w[..., None, :] - w[..., :, None] + one)
    found = subtract(w[..., None, :], w[..., :, None])
    np.einsum("...ii->...i", found)[...] = np.inf
    return np.divide(1, found, out=found)


def outside(q, x):
    """x without its projection on the columns of q."""
    return subtract(x, matmul(q, matmul(adjoint(q), x)))


def matmuls(a, b, c):
    """A product of three matrices, in the order that takes fewer multiplications."""
    (rows, left), (right, columns) = np.shape(a)[-2:], np.shape(c)[-2:]
    if left * columns * (right + rows) < rows * right * (left + columns):
        return matmul(a, matmul(b, c))
    return matmul(matmul(a, b), c)


def factors_of(op, a, factors):
    """The factors of `a`: the arrays where it is one, else recorded as results from it."""
    if not hasattr(a, "_apply"):
        return factors.arrays_of(a)
    arrays = factors.arrays_of(a._v)
    return [a._apply(op, (a,), {"factors": factors.twin(), "part": k}) for k in range(len(arrays))]


def part_of(a, factors, part):
    return factors.arrays_of(a)[part]


@primitive(np.linalg.cholesky, forward=lambda a, upper: np.linalg.cholesky(a, upper=upper), arity=1,
           broadcasts=True)  # fmt: skip
class cholesky:
    """Triangular factor of a Hermitian positive definite matrix."""

    reads = (0b1000,)

    def vjp(ct, out, inputs, wanted, upper):
        found = through_cholesky(out, ct, upper)
        if found is not None:
            return {0: found}
        up, ct = (out, adjoint(ct)) if upper else (adjoint(out), ct)
        inner = _lower(matmul(up, ct))
        return {0: half(np.linalg.solve(up, adjoint(np.linalg.solve(up, inner))))}

    def jvp(tangents, out, inputs, upper):
        low = adjoint(out) if upper else out
        inner = np.linalg.solve(low, adjoint(np.linalg.solve(low, half(tangents[0]))))
        moved = matmul(low, _lower(inner))
        return adjoint(moved) if upper else moved


def _lower(x):
    """The lower triangle of x, a value that nothing else reads, with half of the diagonal."""
    n = x.shape[-1]
    if n <= BLOCK or type(x) is not np.ndarray:
        return x * _constant(_halved, x)
    for k in range(0, n, BLOCK):
        corner = x[..., k : k + BLOCK, k : k + BLOCK]
        corner *= _constant(_halved, corner)
        x[..., k : k + BLOCK, k + BLOCK :] = 0
    return x


@primitive(np.linalg.eigh, forward=part_of, arity=1, broadcasts=True, opaque=("factors",))
class eigh:
    """Eigenvalues (part 0) and eigenvectors (part 1) of a Hermitian matrix.

    First derivatives of eigenvalues exist in the basis found even where some are equal; those of
    eigenvectors, and with them second derivatives, are infinite or nan there.
    """

    reads = (0b1,)

    def vjp(ct, out, inputs, wanted, factors, part):
        w, v = factors_of(eigh, inputs[0], factors)
        found = through_eigh(w, v, ct, part)
        if found is not None:
            return {0: found}
        if part == 0:
            return {0: matmul(scaled(v, ct), adjoint(v))}
        inner = gaps(w) * matmul(adjoint(v), ct)
        return {0: half(matmuls(v, inner, adjoint(v)))}

    def jvp(tangents, out, inputs, factors, part):
        w, v = factors_of(eigh, inputs[0], factors)
        moved = matmuls(adjoint(v), half(tangents[0]), v)
        return real(diagonal(moved)) if part == 0 else matmul(v, gaps(w) * moved)


@primitive(np.linalg.svd, forward=part_of, arity=1, broadcasts=True, opaque=("factors",))
class svd:
    """Left singular vectors (part 0), singular values (1) and adjoint right singular vectors (2).

    Vectors of full matrices beyond the singular values turn as little as they can: what depends on the
    space they span has the derivative that it has.
    """

    reads = (0b1,)

    def vjp(ct, out, inputs, wanted, factors, part):
        (a,) = inputs
        u, s, vh = factors_of(svd, a, factors)
        if part == 2:  # the left vectors of the adjoint, of which the phases are what is held fixed
            return {0: adjoint(_by_left(adjoint(ct), adjoint(vh), s, adjoint(u), False))}
        if part == 0:
            return {0: _by_left(ct, u, s, vh, True)}
        k = np.shape(s)[-1]
        return {0: matmul(scaled(u[..., :k], ct), vh[..., :k, :])}

    def jvp(tangents, out, inputs, factors, part):
        u, s, vh = factors_of(svd, inputs[0], factors)
        if part == 2:
            return adjoint(_left(adjoint(tangents[0]), adjoint(vh), s, adjoint(u), False))
        if part == 0:
            return _left(tangents[0], u, s, vh, True)
        k = np.shape(s)[-1]
        return real(diagonal(matmuls(adjoint(u[..., :k]), tangents[0], adjoint(vh[..., :k, :]))))


def _by_left(ct, u, s, vh, phases):
    """Cotangent of u s vh by that of u."""
    k = np.shape(s)[-1]
    full, u, vh = u, u[..., :k], vh[..., :k, :]
    if np.shape(full)[-1] > k:
        rest, outer = full[..., k:], ct[..., k:]
        ct = ct[..., :k] - matmul(rest, matmul(adjoint(outer), u))
    found = through_svd(u, s, vh, ct, phases)
    if found is None:
        inner = matmul(adjoint(u), ct)
        turned = scaled(gaps(s * s) * (inner - adjoint(inner)), s)
        if phases and inner.dtype.kind == "c":
            turned = turned + 1j * np.imag(inner) * identity(s) / s[..., None, :]
        found = matmuls(u, turned, vh)
    if np.shape(u)[-2] > k:
        found = found + matmul(outside(u, ct) / s[..., None, :], vh)
    return found


def _left(tangent, u, s, vh, phases):
    """Tangent of u by that of u s vh."""
    k = np.shape(s)[-1]
    full, u, v = u, u[..., :k], adjoint(vh[..., :k, :])
    inner = matmuls(adjoint(u), tangent, v)
    both = scaled(inner, s)
    turned = gaps(s * s) * (both + adjoint(both))
    if phases and inner.dtype.kind == "c":
        turned = turned + 1j * np.imag(inner) * identity(s) / s[..., None, :]
    moved = matmul(u, turned)
    if np.shape(u)[-2] > k:
        moved = moved + outside(u, matmul(tangent, v)) / s[..., None, :]
    if np.shape(full)[-1] == k:
        return moved
    rest = full[..., k:]
    return np.concatenate([moved, -matmul(u, matmul(adjoint(moved), rest))], axis=-1)


@primitive(np.linalg.qr, forward=part_of, arity=1, opaque=("factors",))
class qr:
    """Orthonormal factor (part 0) and triangular factor with real diagonal (1).

    The columns that mode "complete" adds turn as little as they can.
    """

    reads = (0b1,)

    def vjp(ct, out, inputs, wanted, factors, part):
        (a,) = inputs
        q, r = factors_of(qr, a, factors)
        rows, columns = np.shape(a)[-2:]
        k = min(rows, columns)
        basis, r = q[..., :k], r[..., :k, :]
        if part == 0:
            by_basis, by_r = ct[..., :k], None
            if np.shape(q)[-1] > k:
                by_basis = by_basis - matmul(q[..., k:], matmul(adjoint(ct[..., k:]), basis))
        else:
            by_basis, by_r = None, ct[..., :k, :k]
        rest = None
        if columns > k:
            if part == 1:
                beyond = ct[..., k:]
                by_basis, rest = matmul(a[..., k:], adjoint(beyond)), matmul(basis, beyond)
            else:
                rest = np.zeros((*np.shape(a)[:-1], columns - k), a.dtype)
        found = _by_qr(by_basis, by_r, basis, r[..., :k])
        return {0: found if rest is None else np.concatenate([found, rest], axis=-1)}

    def jvp(tangents, out, inputs, factors, part):
        (a,), (tangent,) = inputs, tangents
        q, r = factors_of(qr, a, factors)
        rows, columns = np.shape(a)[-2:]
        k = min(rows, columns)
        basis, square = q[..., :k], r[..., :k, :k]
        ratio = over(tangent[..., :k], square)
        inner = matmul(adjoint(basis), ratio)
        turned = _turned(inner)
        moved = matmul(basis, turned)
        if rows > k:
            moved = moved + outside(basis, ratio)
        if part == 0:
            if np.shape(q)[-1] > k:
                rest = q[..., k:]
                moved = np.concatenate([moved, -matmul(basis, matmul(adjoint(moved), rest))], axis=-1)
            return moved
        upper = matmul(inner - turned, square)
        if columns > k:
            beyond = matmul(adjoint(moved), a[..., k:]) + matmul(adjoint(basis), tangent[..., k:])
            upper = np.concatenate([upper, beyond], axis=-1)
        below = np.shape(r)[-2] - k
        if below:
            upper = np.concatenate([upper, np.zeros((*np.shape(r)[:-2], below, columns), r.dtype)], axis=-2)
        return upper


def _turned(inner):
    """The antihermitian part of what moves q: strictly lower elements and imaginary diagonals tell it."""
    low = inner * mask(inner, np.tril, -1)
    turned = low - adjoint(low)
    return turned + 1j * np.imag(inner) * identity(inner) if inner.dtype.kind == "c" else turned


def _by_qr(by_q, by_r, q, r):
    """Cotangent of q r by those of q and r, of which one may be None; r is square."""
    found = through_qr(q, r, by_q, by_r)
    if found is not None:
        return found
    moved = 0
    if by_r is not None:
        upper = matmul(by_r, adjoint(r)) * adjoint(_constant(_halved, r))
        moved = matmul(q, upper + adjoint(upper))
    if by_q is not None:
        own = matmul(adjoint(q), by_q)
        moved = by_q + matmul(q, _by_turned(own) - own) + moved
    return over(moved, adjoint(r))


def _by_turned(ct):
    """Transpose of `_turned`."""
    found = (ct - adjoint(ct)) * mask(ct, np.tril, -1)
    return found + 1j * np.imag(ct) * identity(ct) if ct.dtype.kind == "c" else found


@primitive(np.linalg.eig, forward=part_of, arity=1, broadcasts=True, opaque=("factors",))
class eig:
    """Eigenvalues (part 0) and eigenvectors of length 1 (part 1) of a square matrix."""

    reads = (0b1,)

    def vjp(ct, out, inputs, wanted, factors, part):
        (a,) = inputs
        w, v = factors_of(eig, a, factors)
        if part == 0:
            inner = ct[..., None] * identity(v)
        else:
            own = matmul(adjoint(v), ct)
            lengths = real(diagonal(own))
            inner = conj(gaps(w)) * (own - scaled(matmul(adjoint(v), v), lengths))
        found = solve_square(adjoint(v), matmul(inner, adjoint(v)))
        return {0: found if a.dtype.kind == "c" else real(found)}

    def jvp(tangents, out, inputs, factors, part):
        w, v = factors_of(eig, inputs[0], factors)
        inner = np.linalg.solve(v, matmul(tangents[0], v))
        if part == 0:
            return diagonal(inner)
        moved = matmul(v, gaps(w) * inner)
        return moved - scaled(v, real(diagonal(matmul(adjoint(v), moved))))
