"""Determinants, with derivatives that hold at singular matrices too."""

import numpy as np

from tapegrad.ops.buffers import times
from tapegrad.ops.decompositions import adjoint, matmuls, over, real
from tapegrad.ops.linalg import inv
from tapegrad.ops.primitive import conj, looked_at, primitive


def cofactors(a, det=None, noise=0, lu=None):
    """The matrix of cofactors, det(a) a**-T; its derivatives of all orders hold where `a` is singular too.

    Up to 3 by 3 they are polynomials written out. Else a matrix far from singular is inverted; of another one
    constant orthogonal factors bring the large singular values to the front: their block is far from
    singular, and what is left of the determinant is that of its Schur complement, which is smaller and is
    treated in the same way, but for one no larger than rounding errors, `noise`, which has polynomials too.
    """
    n = np.shape(a)[-1]
    if 0 in np.shape(a):
        return a
    if n <= 3:
        return _written_out(a, n)
    value = looked_at(a)
    limit = n / _tolerance(a, hasattr(a, "_apply"))
    inverse = None if noise and np.abs(value).max() <= noise else _regular(value, limit, lu)
    if inverse is not None:
        det = np.linalg.det(a) if det is None else det
        return times(det, inverse if a is value else _transposed_inverse(a, lu))
    if np.ndim(value) == 2:
        return _singular(a, value, n, noise)
    flat = np.reshape(a, (-1, n, n))
    return np.reshape(np.stack([cofactors(flat[k]) for k in range(len(flat))]), np.shape(a))


def _written_out(a, n):
    if n == 1:
        return a * 0 + 1
    if n == 2:
        return a[..., ::-1, ::-1] * np.array([[1, -1], [-1, 1]], a.dtype)
    after, before = [1, 2, 0], [2, 0, 1]  # rows or columns, cyclically
    lower, upper = a[..., after, :], a[..., before, :]
    return lower[..., after] * upper[..., before] - lower[..., before] * upper[..., after]


def _tolerance(a, recorded):
    """Of singular values by the largest, to count as large.

    Three quarters of the digits stay right. Each further order of derivatives loses as many again as the
    first, so what is to be differentiated counts as singular earlier.
    """
    return max(np.finfo(a.dtype).eps ** 0.25, 0.01 if recorded else 0)


def _transposed_inverse(a, lu=None):
    """The inverse of the transpose, in memory as a derivative has to lie."""
    return np.linalg.inv(a.mT) if lu is None else inv(a, lu=lu).mT


def _regular(value, limit, lu):
    """As above, of a matrix far from singular, or not finite, which has no cofactors; else None."""
    try:
        inverse = _transposed_inverse(value, lu)
    except np.linalg.LinAlgError:
        return None
    if (_length(value) * _length(inverse) <= limit).all() or not np.isfinite(value).all():
        return inverse
    return None


def _length(x):
    """Of matrices as vectors."""
    if x.ndim == 2:
        flat = x.ravel(order="K")
        return np.sqrt(np.vdot(flat, flat).real)
    flat = np.reshape(x, (*x.shape[:-2], -1))
    return np.sqrt(np.vecdot(flat, flat).real)


def _singular(a, value, n, noise):
    u, s, vh = np.linalg.svd(value)
    if s[0] <= noise:
        return _polynomial(a, n)
    large = int(np.sum(s > _tolerance(a, hasattr(a, "_apply")) * s[0]))
    if large == n:
        return np.linalg.det(a) * np.linalg.inv(a).mT
    turned = matmuls(adjoint(u), a, adjoint(vh))
    front, side = turned[:large, :large], turned[:large, large:]
    below, corner = turned[large:, :large], turned[large:, large:]
    x, y = np.linalg.solve(front, side), over(below, front)
    left = corner - np.matmul(below, x)
    det, inner = np.linalg.det(front), cofactors(left, noise=n * np.finfo(value.dtype).eps * s[0])
    first = -np.matmul(inner, x.mT)
    whole = np.sum(inner[0] * left[0]) * np.linalg.inv(front).mT - np.matmul(y.mT, first)
    found = np.concatenate(
        [
            np.concatenate([whole, -np.matmul(y.mT, inner)], axis=1),
            np.concatenate([first, inner], axis=1),
        ]
    )
    det = det * (np.linalg.det(u) * np.linalg.det(vh)).astype(value.dtype)
    return det * matmuls(adjoint(u).mT, found, adjoint(vh).mT)


def _polynomial(a, n):
    """Cofactors without a division by an element (Faddeev and LeVerrier), exact at the zero matrix."""
    one = np.eye(n, dtype=a.dtype)
    power = one
    for k in range(1, n):
        product = np.matmul(a, power)
        power = product - one * (np.sum(product * one) / k)
    return power.mT * (-1) ** (n - 1)


def _is_regular(out, inputs, attrs):
    """Whether a matrix is small or far from singular, so that its cofactors are one formula."""
    (a,) = inputs
    n = np.shape(a)[-1]
    return True if n <= 3 or _regular(a, n / _tolerance(a, True), attrs.get("lu")) is not None else None


@primitive(np.linalg.det, forward=lambda a, lu=None: np.linalg.det(a) if lu is None else lu.det(a), arity=1,
           broadcasts=True, opaque=("lu",), branch=_is_regular)  # fmt: skip
class det:
    """Determinant; its derivative is the matrix of cofactors. `lu` keeps the factors of one large matrix."""

    reads = (0b1001,)

    def vjp(ct, out, inputs, wanted, lu=None):
        return {0: times(ct, conj(cofactors(inputs[0], out, lu=lu)))}

    def jvp(tangents, out, inputs, lu=None):
        return np.sum(cofactors(inputs[0], out, lu=lu) * tangents[0], axis=(-2, -1))


def _inverse(a, lu):
    """Transposed inverse; of singular matrices what dividing the cofactors by a determinant of 0 gives."""
    try:
        return _transposed_inverse(a, lu)
    except np.linalg.LinAlgError:
        return cofactors(a) / np.linalg.det(a)[..., None, None]


def _has_inverse(out, inputs, attrs):
    return True if np.all(np.abs(out) > 0 if attrs["part"] == 0 else out > -np.inf) else None


def _part(a, part, factors=None, lu=None):
    return (lu.slogdet(a) if factors is None else factors.arrays_of(a))[part]


@primitive(np.linalg.slogdet, forward=_part, arity=1, broadcasts=True, opaque=("factors", "lu"),
           branch=_has_inverse)  # fmt: skip
class slogdet:
    """Sign (part 0, complex only: that of a real matrix is constant) and logarithm (1) of a determinant.

    They come of `lu`, which keeps the factors of one large matrix, or of `factors` (`lapack.Found`). The
    derivative at a singular matrix is infinite.
    """

    reads = (0b1001,)

    def vjp(ct, out, inputs, wanted, part, factors=None, lu=None):
        if part == 0:
            ct = np.imag(np.conj(ct) * out) * -1j
        return {0: times(ct, conj(_inverse(inputs[0], lu)))}

    def jvp(tangents, out, inputs, part, factors=None, lu=None):
        moved = np.sum(_inverse(inputs[0], lu) * tangents[0], axis=(-2, -1))
        return real(moved) if part == 1 else 1j * out * np.imag(moved)
