"""Polynomials as vectors of coefficients, that of the highest power first."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tapegrad.core.base import like_of, ndim_of, shape_of, value_of
from tapegrad.errors import ShapeError
from tapegrad.numpy_api.products import solve
from tapegrad.numpy_api.shapes import concatenate, reshape
from tapegrad.numpy_api.tables import composed, tensor_of
from tapegrad.tensor import Operand, TensorOrArray


def _coefficients(what: str, p: Operand, number: bool = True) -> TensorOrArray:
    """A vector; one number counts as one, if allowed."""
    if isinstance(p, np.poly1d):
        p = p.coeffs
    p = tensor_of(p)
    p = reshape(p, (1,)) if number and ndim_of(p) == 0 else p
    if p.ndim != 1:
        raise ShapeError(f"{what}: coefficients are a vector, found shape {p.shape}")
    return p


@composed(np.polyval, by_shapes=True)
def polyval(p: Operand, x: Operand) -> TensorOrArray:
    """Value of a polynomial."""
    p, x = _coefficients("polyval", p), tensor_of(x)
    total = np.zeros_like(value_of(x))
    for k in range(p.shape[0]):
        total = total * x + p[k]
    return total


def _longer(a: TensorOrArray, n: int) -> TensorOrArray:
    return concatenate([np.zeros(n - a.shape[0], a.dtype), a]) if a.shape[0] < n else a


@composed(np.polyadd, by_shapes=True)
def polyadd(a1: Operand, a2: Operand) -> TensorOrArray:
    """Sum of polynomials."""
    a1, a2 = _coefficients("polyadd", a1), _coefficients("polyadd", a2)
    n = max(a1.shape[0], a2.shape[0])
    return _longer(a1, n) + _longer(a2, n)


@composed(np.polysub, by_shapes=True)
def polysub(a1: Operand, a2: Operand) -> TensorOrArray:
    """Difference of polynomials."""
    a1, a2 = _coefficients("polysub", a1), _coefficients("polysub", a2)
    n = max(a1.shape[0], a2.shape[0])
    return _longer(a1, n) - _longer(a2, n)


@composed(np.polymul, by_shapes=True)
def polymul(a1: Operand, a2: Operand) -> TensorOrArray:
    """Product of polynomials."""
    return np.convolve(_coefficients("polymul", a1), _coefficients("polymul", a2))


@composed(np.polydiv)
def polydiv(u: Any, v: Operand) -> tuple[TensorOrArray, TensorOrArray]:
    """Quotient and remainder of polynomials."""
    u, v = _coefficients("polydiv", u) + 0.0, _coefficients("polydiv", v) + 0.0
    m, n = u.shape[0], v.shape[0]
    kind = np.result_type(value_of(u), value_of(v))
    quotient, done, rest, scale = [], [], np.astype(u, kind), 1.0 / v[0]
    for _ in range(m - n + 1):
        factor = scale * rest[0]
        quotient.append(factor)
        less = rest[:n] - factor * v
        done.append(less[:1])  # rounding
        rest = concatenate([less[1:], rest[n:]])
    if m >= n:  # NumPy leaves out leading coefficients, all but the last, that are close to 0
        size = np.polydiv(value_of(u), value_of(v))[1].size
        rest = concatenate([*done, rest])[-size:]
    return (np.stack(quotient) if quotient else np.zeros(1, kind)), rest


@composed(np.polyder, by_shapes=True)
def polyder(p: Operand, m: int = 1) -> TensorOrArray:
    """Derivative of a polynomial."""
    if int(m) < 0:
        raise ValueError(f"polyder: the order of a derivative is not negative, found {m}")
    p = _coefficients("polyder", p, False)
    for _ in range(int(m)):
        n = p.shape[0] - 1
        p = p[:-1] * np.arange(n, 0, -1)
    return p


@composed(np.polyint, by_shapes=True)
def polyint(p: TensorOrArray, m: int = 1, k: Operand | None = None) -> TensorOrArray:
    """Integral of a polynomial."""
    m = int(m)
    if m < 0:
        raise ValueError(f"polyint: the number of integrations is not negative, found {m}")
    p = _coefficients("polyint", p, False)
    constants = _coefficients("polyint", np.zeros(max(m, 1)) if k is None else k)
    if constants.shape[0] == 1 and m > 1:
        constants = np.broadcast_to(constants, (m,))
    if constants.shape[0] < m:
        raise ShapeError(f"polyint: {constants.shape[0]} constants for {m} integrations")
    for j in range(m):
        n = p.shape[0]
        p = concatenate([p / np.arange(n, 0, -1), constants[j : j + 1]])
    return p


@composed(np.poly)
def poly(seq_of_zeros: Operand) -> TensorOrArray:
    """Coefficients of the polynomial with these zeros."""
    zeros = tensor_of(seq_of_zeros)
    if zeros.ndim == 2 and zeros.shape[0] == zeros.shape[1] and zeros.shape[0]:
        zeros = np.linalg.eigvals(zeros)
    if zeros.ndim != 1:
        raise ShapeError(f"poly takes a vector of zeros or a square matrix, found shape {zeros.shape}")
    found = np.ones(1, zeros.dtype)
    for k in range(zeros.shape[0]):
        found = np.convolve(found, concatenate([np.ones(1, zeros.dtype), -zeros[k : k + 1]]))
    if zeros.dtype.kind != "c":
        return found
    value = value_of(zeros)
    return np.real(found) if np.array_equal(np.sort(value), np.sort(np.conj(value))) else found


@composed(np.roots)
def roots(p: Operand) -> TensorOrArray:
    """Zeros of a polynomial: the eigenvalues of its companion matrix."""
    p = _coefficients("roots", p)
    kept = np.flatnonzero(value_of(p))
    if kept.size == 0:
        return np.zeros(0, p.dtype)
    first, last = int(kept[0]), int(kept[-1]) + 1
    count, at_zero = last - first - 1, p.shape[0] - last
    found = np.zeros(0, np.result_type(p.dtype, 1j))
    if count:
        row = -p[first + 1 : last] / p[first]
        rest = np.eye(count - 1, count, dtype=like_of(row).dtype)
        found = np.linalg.eigvals(concatenate([np.reshape(row, (1, count)), rest]))
    return concatenate([found, np.zeros(at_zero, like_of(found).dtype)])


# ---------------------------------------------------------------- least squares


def _shortest(matrix: TensorOrArray, right: TensorOrArray, rcond: float, full: bool, cov: bool | str) -> Any:
    """The shortest of many vectors of coefficients that fit as well, differentiated at constant rank."""
    points, order = shape_of(matrix)
    if cov and not full:
        raise np.linalg.LinAlgError(f"polyfit: {points} points do not determine {order} coefficients")
    if not full:
        text = f"polyfit: {points} points do not determine {order} coefficients (rcond={rcond:.1e})"
        warnings.warn(text, np.exceptions.RankWarning, stacklevel=5)
    scale = np.sqrt(np.sum(matrix * matrix, axis=0))
    found, left, rank, singular = np.linalg.lstsq(matrix / scale, right, rcond)
    found = found / (scale if ndim_of(found) == 1 else scale[:, None])
    return (found, left, rank, singular, rcond) if full else found


@composed(np.polyfit)
def polyfit(x: Operand, y: Operand, deg: int, rcond: float | None = None, full: bool = False, w: Any = None,
            cov: bool | str = False) -> Any:  # fmt: skip
    """Polynomial that fits points best in the sense of least squares."""
    x, y = tensor_of(x) + 0.0, tensor_of(y) + 0.0
    order = int(deg) + 1
    if order < 1:
        raise ValueError(f"polyfit: a degree that is not negative, found {deg}")
    if x.ndim != 1 or x.shape[0] == 0 or y.ndim not in (1, 2) or x.shape[0] != y.shape[0]:
        raise ShapeError(f"polyfit: points x of shape {x.shape} and y of shape {y.shape}")
    matrix, right = np.vander(x, order), y
    if w is not None:
        w = tensor_of(w)
        if shape_of(w) != (x.shape[0],):
            raise ShapeError(f"polyfit: weights of shape {shape_of(w)} for {x.shape[0]} points")
        matrix = np.astype(matrix * w[:, None], matrix.dtype, copy=False)  # in place, in NumPy
        right = np.astype(right * (w[:, None] if y.ndim == 2 else w), y.dtype, copy=False)
    values = value_of(matrix)
    rcond = x.shape[0] * np.finfo(values.dtype).eps if rcond is None else rcond
    if np.linalg.matrix_rank(values / np.sqrt(np.sum(values * values, axis=0)), rtol=rcond) < order:
        return _shortest(matrix, right, rcond, full, cov)
    # Least squares by normal equations of columns that the factor R of the values makes orthonormal: their
    # matrix is I up to rounding, so nothing is lost, and the expression holds around the values too.
    factor = np.linalg.qr(values, mode="r")
    back = np.linalg.solve(factor, np.eye(order, dtype=values.dtype))
    q = np.matmul(matrix, back)
    adjoint = np.conj(np.transpose(q)) if np.iscomplexobj(values) else np.transpose(q)
    gram = np.matmul(adjoint, q)
    found = np.matmul(back, solve(gram, np.matmul(adjoint, right)))
    rest = right - np.matmul(matrix, found)
    if full:
        rest = np.abs(rest) if np.iscomplexobj(value_of(rest)) else rest
        squares = np.sum(np.reshape(rest * rest, (x.shape[0], -1)), axis=0)
        singular = np.linalg.svdvals(matrix / np.sqrt(np.sum(matrix * matrix, axis=0)))
        return found, squares if x.shape[0] > order else squares[:0], order, singular, rcond
    if not cov:
        return found
    spread = np.matmul(back, solve(gram, back.T))
    if isinstance(cov, str) and cov == "unscaled":
        return found, spread
    free = x.shape[0] - order
    if free <= 0:
        raise ValueError(
            f"polyfit: {x.shape[0]} points for {order} coefficients leave nothing to estimate cov"
        )
    size = np.sum(rest * rest, axis=0) / free
    return found, (spread * size if y.ndim == 1 else spread[:, :, None] * size)
