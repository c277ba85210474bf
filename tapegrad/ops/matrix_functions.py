"""Functions of square matrices, equations with them, and factors, by SciPy; declared when first asked for.

Each op is one of matrices, not of stacks. A rule calls the ops again, so it is differentiated to any order.
Functions f of a matrix are differentiated by ``f([[a, e], [0, a]]) = [[f(a), L(a, e)], [0, f(a)]]``, where L
is the derivative by a in direction e (Mathias 1996; Higham 2008, "Functions of Matrices", section 3.2). As
tr(x L(a, e)) is tr(L(a, x) e), the cotangent of a is the adjoint of L in the direction of an adjoint.
"""

import functools

import numpy as np
from scipy import linalg

from tapegrad.errors import UnsupportedOpError
from tapegrad.ops.decompositions import adjoint, half, mask, outside, real
from tapegrad.ops.lapack import Kept
from tapegrad.ops.linalg import solve
from tapegrad.ops.primitive import Irregular, conj, looked_at


class OfSciPy(Irregular):
    """An op of a function of SciPy's, which messages name; no NumPy function means it."""

    listed = False
    module = "linalg"

    @property
    def title(self):
        return f"scipy.{self.module}.{self.name}"


def declare(forward, arity, module="linalg"):
    """Declare an op by a class with `vjp`, `jvp` and `reads`, as `ops.primitive.primitive` does."""

    def value(*operands, **attrs):
        found = forward(*operands, **attrs)
        plain = np.dtype(found.dtype.char)  # some of SciPy's modules have objects of their own for dtypes
        return found if found.dtype is plain else found.view(plain)

    def declared(cls):
        op = OfSciPy(cls.__name__, (), value, arity, cls.__doc__, cls, OfSciPy.template)
        op.module = module
        return op

    return declared


def like(found, x):
    """A cotangent of x: its real part where x is real."""
    return found if x.dtype.kind == "c" else real(found)


# ---------------------------------------------------------------- solvers, for the op `solve`


def in_batches(function, a, b):
    """A function of a matrix and a vector or matrix, for stacks of them as `numpy.linalg.solve` has."""
    if a.ndim == 2 and b.ndim <= 2:
        return function(a, b)
    if a.ndim == 2:  # of one matrix all columns at once
        columns = np.moveaxis(b, -2, 0)
        found = function(a, columns.reshape(len(columns), -1))
        return np.moveaxis(found.reshape(columns.shape), 0, -2)
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = np.broadcast_to(a, (*lead, *a.shape[-2:]))
    b = np.broadcast_to(b, (*lead, *b.shape[-2:]))
    out = np.empty(b.shape, np.result_type(a, b))
    for k in np.ndindex(lead):
        out[k] = function(a[k], b[k])
    return out


class Triangle(Kept):
    """Solves with triangular matrices, which have zeros outside of their triangle."""

    def __init__(self, lower):
        super().__init__(())
        self.lower = lower

    def name(self):
        return Triangle, self.lower

    def solve(self, a, b, turned=False):
        """Return a**-1 b; if `turned`, a is the adjoint of the matrix that this is for."""
        lower = self.lower != turned
        call = functools.partial(linalg.solve_triangular, lower=lower, check_finite=False)
        return in_batches(call, a, b)


class Positive(Kept):
    """Solves with positive definite matrices by their Cholesky factors, found once."""

    def __init__(self):
        super().__init__(())

    def solve(self, a, b, turned=False):
        """Return a**-1 b; an adjoint is the matrix itself."""
        if not self._saved[0]:
            self._saved[:] = (np.linalg.cholesky(a),), None
        (low,) = (np.asarray(x) for x in self.arrays)
        call = functools.partial(linalg.solve_triangular, check_finite=False)
        found = in_batches(functools.partial(call, lower=True), low, b)
        return in_batches(functools.partial(call, lower=False), conj(low.mT), found)


def by_triangle(a, b, lower):
    """a**-1 b of a triangular matrix with zeros outside of its triangle."""
    return solve(a, b, lu=Triangle(lower))


# ---------------------------------------------------------------- halves of matrices


def _completed(a, lower, conjugate):
    part = np.tril(a, -1) if lower else np.triu(a, 1)
    other, diagonal = (adjoint(part), real(a)) if conjugate else (part.mT, a)
    return np.where(np.eye(len(a), dtype=bool), diagonal, part + other).astype(a.dtype, copy=False)


def _halved(x, conjugate):
    return half(x) if conjugate else (x + x.mT) * 0.5


@declare(_completed, 1)
class completed:
    """The Hermitian or symmetric matrix of which one triangle is given; both have half of its derivative."""

    reads = (0,)

    def vjp(ct, out, inputs, wanted, lower, conjugate):
        return {0: _halved(ct, conjugate)}

    def jvp(tangents, out, inputs, lower, conjugate):
        return _halved(tangents[0], conjugate)


# ---------------------------------------------------------------- functions of a matrix


def derivative(op, a, moved, **attrs):
    """The derivative of a function of a matrix in a direction, which is taken to be of the size of one."""
    n = a.shape[-1]
    if op is expm and type(a) is type(moved) is np.ndarray and n:  # in half of the time, and more exact
        found = linalg.expm_frechet(a, moved, compute_expm=False, check_finite=False)
        return found.astype(np.result_type(a, moved), copy=False)
    largest = np.max(np.abs(looked_at(moved)), initial=0.0)
    size = 2.0 ** np.round(np.log2(largest)) if 0 < largest < np.inf else 1.0
    zero = np.zeros((n, n), a.dtype)
    both = np.block([[a, moved * (1 / size)], [zero, a]])
    found = op(both, **attrs)[:n, n:] * size
    return found if found.dtype.itemsize <= moved.dtype.itemsize else _narrowed(found, moved.dtype)


def _narrowed(found, dtype):
    kind = np.result_type(dtype, np.complex64) if found.dtype.kind == "c" else dtype
    return found.astype(kind)


def _off_the_cut(op, a, t=None):
    """Refuse a matrix with an eigenvalue where a logarithm jumps, as real powers t do but whole ones."""
    if op is expm or (t is not None and t == int(t)):
        return
    w = np.linalg.eigvals(looked_at(a))
    size = np.abs(w)
    near = np.sqrt(np.finfo(w.dtype).eps) * np.max(size, initial=0.0)
    if np.any((w.real < 0) & (np.abs(w.imag) <= near)):
        raise UnsupportedOpError(
            f"{op.title} of a matrix with a negative eigenvalue ({w[np.argmin(w.real)]:.3g}) has no "
            "derivative: the principal value jumps there"
        )


def _function(forward):
    """Declare a function of a matrix."""

    def declared(name, doc):
        class rules:
            reads = (0b1,)

            def vjp(ct, out, inputs, wanted, **attrs):
                (a,) = inputs
                _off_the_cut(op, a, **attrs)
                return {0: like(adjoint(derivative(op, a, adjoint(ct), **attrs)), a)}

            def jvp(tangents, out, inputs, **attrs):
                _off_the_cut(op, inputs[0], **attrs)
                return derivative(op, inputs[0], tangents[0], **attrs)

        rules.__name__, rules.__doc__ = name, doc
        op = declare(forward, 1)(rules)
        return op

    return declared


expm = _function(linalg.expm)("expm", "Exponential of a matrix.")
logm = _function(linalg.logm)("logm", "Principal logarithm of a matrix.")
fractional_matrix_power = _function(linalg.fractional_matrix_power)(
    "fractional_matrix_power", "Principal power of a matrix, by a constant exponent t."
)


@declare(linalg.sqrtm, 1)
class sqrtm:
    """Principal square root x, of which x dx + dx x = da (Higham 2008, section 6.1)."""

    reads = (0b1000,)

    def vjp(ct, out, inputs, wanted):
        back = adjoint(out)
        return {0: like(solve_sylvester(back, back, ct), inputs[0])}

    def jvp(tangents, out, inputs):
        return solve_sylvester(out, out, tangents[0])


@declare(linalg.solve_sylvester, 3)
class solve_sylvester:
    """x of a x + x b = q: a dx + dx b = dq - da x - x db (Giles 2008 for a solve; by the same steps)."""

    reads = (0b1011, 0b1011, 0b0011)

    def vjp(ct, out, inputs, wanted):
        a, b, q = inputs
        w = solve_sylvester(adjoint(a), adjoint(b), ct)
        found = {}
        if 0 in wanted:
            found[0] = like(-np.matmul(w, adjoint(out)), a)
        if 1 in wanted:
            found[1] = like(-np.matmul(adjoint(out), w), b)
        if 2 in wanted:
            found[2] = like(w, q)
        return found

    def jvp(tangents, out, inputs):
        da, db, dq = tangents
        right = np.zeros_like(np.asarray(getattr(out, "_v", out))) if dq is None else dq
        if da is not None:
            right = right - np.matmul(da, out)
        if db is not None:
            right = right - np.matmul(out, db)
        return solve_sylvester(inputs[0], inputs[1], right)


# ---------------------------------------------------------------- factors


def _unitary(a):
    w, _, vh = linalg.svd(a, full_matrices=False, check_finite=False)
    return w @ vh


@declare(_unitary, 1)
class polar:
    """The factor u with orthonormal columns of a = u p, p Hermitian and positive semidefinite.

    For what turns u, u**H du = z with p z + z p = u**H da - da**H u (Higham 2008, section 8.1); the rest of
    du, orthogonal to u, is that of da p**-1.
    """

    reads = (0b1001,)

    def vjp(ct, out, inputs, wanted):
        p = half(np.matmul(adjoint(out), inputs[0]))
        inner = np.matmul(adjoint(out), ct)
        found = np.matmul(out, solve_sylvester(p, p, inner - adjoint(inner)))
        if out.shape[-2] > out.shape[-1]:
            found = found + adjoint(np.linalg.solve(p, adjoint(outside(out, ct))))
        return {0: found}

    def jvp(tangents, out, inputs):
        p = half(np.matmul(adjoint(out), inputs[0]))
        inner = np.matmul(adjoint(out), tangents[0])
        moved = np.matmul(out, solve_sylvester(p, p, inner - adjoint(inner)))
        if out.shape[-2] > out.shape[-1]:
            moved = moved + adjoint(np.linalg.solve(p, adjoint(outside(out, tangents[0]))))
        return moved


def _triangles(packed):
    """Both factors, as far as they are square, of the two in one array."""
    k = min(packed.shape)
    if not np.all(np.diagonal(looked_at(packed))):
        raise np.linalg.LinAlgError("scipy.linalg.lu: the factors of a singular matrix have no derivative")
    square = packed[:k, :k]
    eye = np.eye(k, dtype=packed.dtype)
    return square * mask(square, np.tril, -1) + eye, square * mask(square, np.triu)


@declare(lambda a, factors: factors.arrays[0], 1)
class lu_factor:
    """Factors l u of a matrix whose rows need not be exchanged, in one array; `factors` has it.

    With f = l**-1 da u**-1, dl = l tril(f, -1) and du = triu(f) u, where they are square (de Hoog, Anderssen
    and Lukas 2011, "Differentiation of matrix functionals using triangular factorization"); the rest of
    one of them is a product with the inverse of the other.
    """

    reads = (0b1000,)

    def vjp(ct, out, inputs, wanted, factors):
        k = min(out.shape)
        low, up = _triangles(out)
        by_low, by_up = ct[:k, :k] * mask(low, np.tril, -1), ct[:k, :k] * mask(low, np.triu)
        rest = None
        if out.shape[0] > k:  # below: a u**-1
            rest = adjoint(by_triangle(up, adjoint(ct[k:]), False))
            by_up = by_up - np.matmul(adjoint(out[k:]), rest) * mask(low, np.triu)
        elif out.shape[1] > k:  # beside: l**-1 a
            rest = by_triangle(adjoint(low), ct[:, k:], False)
            by_low = by_low - np.matmul(rest, adjoint(out[:, k:])) * mask(low, np.tril, -1)
        inner = np.matmul(adjoint(low), by_low) * mask(low, np.tril, -1)
        inner = inner + np.matmul(by_up, adjoint(up)) * mask(low, np.triu)
        found = by_triangle(adjoint(low), adjoint(by_triangle(up, adjoint(inner), False)), False)
        if rest is not None:
            found = np.concatenate([found, rest], axis=0 if out.shape[0] > k else 1)
        return {0: found}

    def jvp(tangents, out, inputs, factors):
        moved, k = tangents[0], min(out.shape)
        low, up = _triangles(out)
        inner = by_triangle(low, moved[:k, :k], True)
        inner = adjoint(by_triangle(adjoint(up), adjoint(inner), True))
        dlow = np.matmul(low, inner * mask(low, np.tril, -1))
        dup = np.matmul(inner * mask(low, np.triu), up)
        found = dlow + dup
        if out.shape[0] > k:
            rest = moved[k:] - np.matmul(out[k:], dup)
            rest = adjoint(by_triangle(adjoint(up), adjoint(rest), True))
            return np.concatenate([found, rest], axis=0)
        if out.shape[1] > k:
            rest = by_triangle(low, moved[:, k:] - np.matmul(dlow, out[:, k:]), True)
            return np.concatenate([found, rest], axis=1)
        return found


@declare(lambda a, factors, blocks, lower, conjugate: factors.arrays[0], 1)
class ldl:
    """Factors l d l**H, or l d l**T, of a matrix whose rows need not be exchanged; `factors` has l + d - 1.

    Where `blocks` is true that is d. With x = l**-1 da l**-H, dd is x in these blocks, and dl = l x d**-1 of
    x outside of them, in the triangle of l: as l**-1 dl is there and zero in the blocks.
    """

    reads = (0b10,)

    def vjp(ct, out, inputs, wanted, factors, blocks, lower, conjugate):
        low, beside, inside, inverse = _ldl(out, blocks, lower)
        x = ct * inside + np.matmul(adjoint(low), ct * beside) @ adjoint(inverse) * beside
        other = low if conjugate else conj(low)  # whose inverse is on the right of x
        x = by_triangle(adjoint(low), x, not lower)
        return {0: like(adjoint(by_triangle(adjoint(other), adjoint(x), not lower)), inputs[0])}

    def jvp(tangents, out, inputs, factors, blocks, lower, conjugate):
        low, beside, inside, inverse = _ldl(out, blocks, lower)
        x = by_triangle(low, tangents[0], lower)
        x = x.mT if not conjugate else adjoint(x)
        x = by_triangle(low, x, lower)
        x = x.mT if not conjugate else adjoint(x)
        return x * inside + np.matmul(low, np.matmul(x * beside, inverse) * beside)


def _ldl(packed, blocks, lower):
    """The factor l; where it, and where d, is not 0 or 1 for all matrices; the inverse of d."""
    eye = np.eye(len(blocks), dtype=packed.dtype)
    beside = (np.tril if lower else np.triu)(~blocks).astype(packed.real.dtype)
    inside = blocks.astype(packed.real.dtype)
    return packed * beside + eye, beside, inside, np.linalg.inv(packed * inside)
