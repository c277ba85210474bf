"""The pseudoinverse, differentiated on the spaces of the singular values that count."""

import numpy as np

from tapegrad.ops.buffers import add, matmul, negative, subtract
from tapegrad.ops.decompositions import adjoint, half, mask, matmuls
from tapegrad.ops.lapack import triangular_factor
from tapegrad.ops.primitive import looked_at, primitive
from tapegrad.ops.triangles import solve_triangle


def _filled(a):
    """The Hermitian matrix whose lower triangle is given, as one that moves by the Hermitian part of `a`."""
    value = looked_at(a)
    whole = value * mask(a, np.tril) + adjoint(value) * mask(a, np.triu, 1)
    return half(a) + (whole - half(value))


def _left_out(a, rcond=None, rtol=None):
    """Where singular values are left out, and not for rounding alone, the shape of the series in their ratio.

    That is a square between theirs and the others', and how many doublings make its terms vanish. Else None.
    """
    limit, value = rtol if rcond is None else rcond, looked_at(a)
    eps = np.finfo(value.dtype).eps
    if limit is None or np.all(np.asarray(limit) <= eps * max(value.shape[-2:])):
        return None
    s = np.linalg.svd(value, compute_uv=False)
    small = s <= np.asarray(limit)[..., None] * s[..., :1]
    if not np.any(small) or np.all(small):  # of all the pseudoinverse is 0
        return None
    out = np.max(np.where(small, s, 0.0), axis=-1)
    least = np.min(np.where(small, np.inf, s), axis=-1)
    least = np.where(np.isinf(least), 1.0, least)
    ratio = np.clip(np.max(out / least), 1e-8, 1 - eps)
    doublings = int(np.ceil(np.log2(np.log(eps) / np.log(ratio * ratio)))) + 1
    between = least * np.where(out > 1e-8 * least, out, least)
    # values that are 0 now have derivatives: terms of order 2 k in them, k up to 7
    return between[..., None, None].astype(s.dtype), max(doublings, 3)


def _series(left, x, right, doublings):
    """Sum of left**k x right**k."""
    for _ in range(doublings):
        x = x + matmuls(left, x, right)
        left, right = np.matmul(left, left), np.matmul(right, right)
    return x


class _Cut:
    """Derivatives of a pseudoinverse that leaves out singular values.

    With out = p, the parts of dp that turn the spaces of the singular values that count solve Sylvester
    equations, z a a^H - a^H a z = c, whose solution is a series in the ratios of those left out to those
    that count.
    """

    def __init__(self, a, p, between, doublings):
        self.a, self.p, self.doublings = a, p, doublings
        rest = a - matmuls(a, p, a)
        self.rows, self.columns = np.matmul(adjoint(p), p), np.matmul(p, adjoint(p))
        self.wide = np.matmul(adjoint(rest), rest) / between, self.rows * between
        self.tall = self.columns * between, np.matmul(rest, adjoint(rest)) / between

    def _below(self, c):
        left, right = self.wide
        return _series(left, np.matmul(c, self.rows), right, self.doublings)

    def _beside(self, c):
        left, right = self.tall
        return _series(left, np.matmul(self.columns, c), right, self.doublings)

    def tangent(self, moved):
        """Tangent of p by that of a."""
        a, p, back = self.a, self.p, adjoint(moved)
        c = matmuls(back, a, p) + matmuls(adjoint(a), moved, p)
        d = matmuls(p, a, back) + matmuls(p, moved, adjoint(a))
        below = self._below(c - matmuls(p, a, c))
        beside = self._beside(d - matmuls(d, a, p))
        return below + beside - matmuls(p, moved, p)

    def cotangent(self, ct):
        """Cotangent of a by that of p."""
        a, p, q = self.a, self.p, adjoint(self.p)
        x, y = self._below(ct), self._beside(ct)
        x, y = x - matmuls(p, a, x), y - matmuls(y, a, p)
        found = matmuls(a, p, adjoint(x)) + matmuls(a, x, q)
        return found + matmuls(adjoint(y), p, a) + matmuls(q, y, a) - matmuls(q, ct, q)


def _independent(a, p):
    """Whether the rows of matrices, and whether their columns are independent, where these are arrays.

    Their rank is the trace of the projection p a. Then what a rule has of the space beyond them is 0.
    """
    if type(a) is not np.ndarray:
        return False, False
    rank = np.min(np.real(np.einsum("...ij,...ji->...", p, a)), initial=np.inf)
    return rank > a.shape[-2] - 0.5, rank > a.shape[-1] - 0.5


def _leaves_nothing_out(out, inputs, attrs):
    cut = {name: x for name, x in attrs.items() if name != "hermitian"}
    return True if not attrs["hermitian"] and _left_out(inputs[0], **cut) is None else None


@primitive(np.linalg.pinv, forward=lambda a, hermitian, **cut: np.linalg.pinv(a, hermitian=hermitian, **cut),
           arity=1, branch=_leaves_nothing_out)  # fmt: skip
class pinv:
    """Pseudoinverse, differentiated at constant rank (Golub and Pereyra, 1973).

    Where singular values are left out on request, the spaces of the others turn as well (`_Cut`).
    """

    reads = (0b1001,)

    def vjp(ct, out, inputs, wanted, hermitian, **cut):
        a = _filled(inputs[0]) if hermitian else inputs[0]
        left_out = _left_out(a, **cut)
        if left_out is not None:
            found = _Cut(a, out, *left_out).cotangent(ct)
            return {0: half(found) if hermitian else found}
        p, back = adjoint(out), adjoint(ct)
        rows_are_independent, columns_are_independent = _independent(a, out)
        found = negative(matmuls(p, ct, p))
        if not rows_are_independent:
            left = matmuls(back, out, p)
            found = add(found, subtract(left, matmuls(a, out, left)))
        if not columns_are_independent:
            right = matmuls(p, out, back)
            found = add(found, subtract(right, matmuls(right, out, a)))
        return {0: half(found) if hermitian else found}

    def jvp(tangents, out, inputs, hermitian, **cut):
        a, moved = (_filled(inputs[0]), half(tangents[0])) if hermitian else (inputs[0], tangents[0])
        left_out = _left_out(a, **cut)
        if left_out is not None:
            return _Cut(a, out, *left_out).tangent(moved)
        p, back = adjoint(out), adjoint(moved)
        left = matmuls(out, p, back)
        right = matmuls(back, p, out)
        return left - matmuls(left, a, out) + right - matmuls(out, a, right) - matmuls(out, moved, out)


def _known_pinv(a, dtype, factors, cut, rank):
    """The pseudoinverse: recorded from a Tensor; of an array of full rank by QR, else by singular vectors."""
    if type(a) is not np.ndarray:
        return np.linalg.pinv(a, rcond=cut)
    a = a.astype(dtype, copy=False)
    tall = a if a.shape[0] >= a.shape[1] else adjoint(a)
    if rank < tall.shape[1] or cut < np.finfo(float).eps:  # in which NumPy factorises
        u, s, vh = factors.arrays_of(a)
        return matmul(adjoint(vh[:rank]) / s[:rank], adjoint(u[:, :rank]))
    q, r = np.linalg.qr(tall)
    p = matmul(np.linalg.inv(r), adjoint(q))
    return p if tall is a else adjoint(p)


def _triangle(a, dtype, cut, rank):
    """The triangular factor of an array whose columns are independent; else None."""
    if type(a) is not np.ndarray or rank < a.shape[1] or cut < np.finfo(float).eps:
        return None
    return triangular_factor(a.astype(dtype, copy=False))


def _moving_spaces(a, cut):
    """As `_left_out`, of one matrix."""
    return _left_out(a, rcond=cut) if cut > np.finfo(a.dtype).eps * max(a.shape) else None


def _moves_no_spaces(out, inputs, attrs):
    return True if _moving_spaces(inputs[0], attrs["cut"]) is None else None


@primitive(np.linalg.lstsq, forward=lambda a, b, solution, **known: solution, arity=2,
           opaque=("solution", "factors"), branch=_moves_no_spaces)  # fmt: skip
class lstsq:
    """Least squares solution of least length, differentiated at constant rank as the pseudoinverse p is.

    The `solution` and its `rank` come with the record. `factors` are those of the singular value
    decomposition of the matrix a (`lapack.Found`), whose values up to `cut` times the largest count as 0.
    With residuals r the solution moves by p (db - da x) + p p^H da^H r + (1 - p a) da^H p^H x.
    """

    reads = (0b1011, 0b0001)

    def vjp(ct, out, inputs, wanted, solution, factors, cut, rank):
        (a, b), shape = inputs, inputs[1].shape
        if b.ndim == 1:
            ct, out, b = (np.reshape(v, (-1, 1)) for v in (ct, out, b))
        left_out = _moving_spaces(a, cut) if 0 in wanted else None
        r = _triangle(a, solution.dtype, cut, rank) if left_out is None else None
        if r is None:
            p = _known_pinv(a, solution.dtype, factors, cut, rank)
            w = matmul(adjoint(p), ct)
        else:  # p p^H = (a^H a)**-1, and p^H = a p p^H
            turned = solve_triangle(r, solve_triangle(r, ct, adjoint=True))
            w = matmul(a, turned)
        found = {1: np.reshape(w, shape)} if 1 in wanted else {}
        if 0 not in wanted:
            return found
        if left_out is not None:
            return {0: _Cut(a, p, *left_out).cotangent(matmul(ct, adjoint(b))), **found}
        if r is None:
            turned = matmul(p, w)
        rest = subtract(b, matmul(a, out))
        by_a = subtract(matmul(rest, adjoint(turned)), matmul(w, adjoint(out)))
        if rank < a.shape[1]:
            unseen = ct - matmul(p, matmul(a, ct))
            by_a = by_a + matmul(matmul(adjoint(p), out), adjoint(unseen))
        return {0: by_a, **found}

    def jvp(tangents, out, inputs, solution, factors, cut, rank):
        (a, b), (da, db) = inputs, tangents
        p = _known_pinv(a, solution.dtype, factors, cut, rank)
        if da is None:
            return p @ db
        left_out = _moving_spaces(a, cut)
        if left_out is not None:
            moved = _Cut(a, p, *left_out).tangent(da) @ b
            return moved if db is None else moved + p @ db
        back = adjoint(da)
        moved = p @ (adjoint(p) @ (back @ (b - a @ out))) - p @ (da @ out)
        if rank < a.shape[1]:
            turned = back @ (adjoint(p) @ out)
            moved = moved + turned - p @ (a @ turned)
        return moved if db is None else moved + p @ db
