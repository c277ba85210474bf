"""Factors of a matrix, and solutions by them, of `scipy.linalg`."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import scipy.linalg as _scipy

from tapegrad.core.base import shape_of, value_of
from tapegrad.errors import UnsupportedOpError
from tapegrad.numpy_api.linalg import _parts as factors_recorded
from tapegrad.numpy_api.tables import tensor_of
from tapegrad.ops import matrix_functions
from tapegrad.ops.lapack import Found, Kept
from tapegrad.scipy.batches import in_batches
from tapegrad.scipy.calls import constants
from tapegrad.scipy.linalg.arguments import adjoint, derived, given, is_complex, square
from tapegrad.scipy.linalg.equations import by_triangle
from tapegrad.tensor import Operand, TensorOrArray

ops: Any = matrix_functions


@derived
def cholesky(
    a: Operand, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> TensorOrArray:
    """Triangular factor of a positive definite matrix, as `scipy.linalg.cholesky`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[4.0]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.cholesky(a)), a)
    (tensor([[0.25]]),)
    """
    return np.linalg.cholesky(square(a, check_finite), upper=not lower)


@derived
def cho_factor(
    a: Operand, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[TensorOrArray, bool]:
    """Cholesky factor for `cho_solve`, as `scipy.linalg.cho_factor`, with zeros in the other triangle.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[4.0]], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.cho_solve(ts.linalg.cho_factor(a), [4.0])), a)
    (tensor([[-0.25]]),)
    """
    return np.linalg.cholesky(square(a, check_finite), upper=not lower), bool(lower)


@derived
def cho_solve(
    c_and_lower: tuple[Operand, bool], b: Operand, overwrite_b: bool = False, check_finite: bool = True
) -> TensorOrArray:
    """Solution by a Cholesky factor, as `scipy.linalg.cho_solve`; nothing is factored again.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.cho_solve((np.diag([2.0, 1.0]), True), b)), b)
    (tensor([0.25, 1.00]),)
    """
    c, lower = c_and_lower
    c, b = square(c, check_finite), given(b, check_finite, 1)
    found = by_triangle(c, b, bool(lower), False, 0 if lower else 2)
    return by_triangle(c, found, bool(lower), False, 2 if lower else 0)


def _packed(a: TensorOrArray, packed: np.ndarray, order: np.ndarray) -> TensorOrArray:
    """The record of triangular factors in one array, of a matrix with its rows in an order."""
    return ops.lu_factor(a[order], factors=Kept((packed,)))


@derived
@in_batches(a=2)
def lu(
    a: Operand, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True,
    p_indices: bool = False,
) -> tuple[TensorOrArray, ...]:  # fmt: skip
    """Permutation, lower and upper triangular factor, as `scipy.linalg.lu`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[2.0, 1.0], [1.0, 3.0]], requires_grad=True)
    >>> p, l, u = ts.linalg.lu(a)
    >>> tg.grad(u[1, 1], a)
    (tensor([[ 0.25, -0.50],
            [-0.50,  1.00]]),)
    """
    a = given(a, check_finite, 2)
    rows, low, up = _scipy.lu(value_of(a), p_indices=True)
    m, n = shape_of(a)
    k = min(m, n)
    packed = np.zeros((m, n), low.dtype)
    packed[:, :k] += np.tril(low, -1)
    packed[:k] += up
    found = _packed(a, packed, np.argsort(rows))
    left = np.tril(found[:, :k], -1) + np.eye(m, k, dtype=packed.dtype)
    right = np.triu(found[:k])
    if permute_l:
        return left[rows], right
    if p_indices:
        return constants(rows, like=a), left, right
    return constants(np.eye(m, dtype=packed.real.dtype)[rows], like=a), left, right


@derived
@in_batches(a=2)
def lu_factor(
    a: Operand, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[TensorOrArray, TensorOrArray]:
    """Factors for `lu_solve` in one array, and pivots, as `scipy.linalg.lu_factor`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[2.0, 1.0], [1.0, 3.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.lu_factor(a)[0][1, 1], a)
    (tensor([[ 0.25, -0.50],
            [-0.50,  1.00]]),)
    """
    a = given(a, check_finite, 2)
    packed, pivots = _scipy.lu_factor(value_of(a))
    return _packed(a, packed, _order(pivots, shape_of(a)[0])), constants(pivots, like=a)


def _order(pivots: np.ndarray, n: int) -> np.ndarray:
    """The order of rows that their exchanges come to."""
    order = np.arange(n)
    for k, other in enumerate(pivots.tolist()):
        order[[k, other]] = order[[other, k]]
    return order


@derived
def lu_solve(
    lu_and_piv: tuple[Operand, Operand],
    b: Operand,
    trans: int = 0,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> TensorOrArray:
    """Solution by the factors of `lu_factor`, as `scipy.linalg.lu_solve`; nothing is factored again.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[2.0]], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.lu_solve(ts.linalg.lu_factor(a), [2.0])), a)
    (tensor([[-0.5]]),)
    """
    factors, pivots = lu_and_piv
    return _by_lu(square(factors, False), value_of(tensor_of(pivots)), given(b, check_finite, 1), trans)


@in_batches(factors=2, pivots=1, b="1|2")
def _by_lu(factors: TensorOrArray, pivots: np.ndarray, b: TensorOrArray, trans: int) -> TensorOrArray:
    order = _order(pivots, len(pivots))
    if trans == 0:
        return by_triangle(factors, by_triangle(factors, b[order], True, True, 0), False, False, 0)
    found = by_triangle(factors, by_triangle(factors, b, False, False, trans), True, True, trans)
    return found[np.argsort(order)]


@derived
@in_batches(A=2)
def ldl(
    A: Any, lower: bool = True, hermitian: bool = True, overwrite_a: bool = False, check_finite: bool = True
) -> Any:
    """Factors l d l**H of a Hermitian matrix, and the order of rows, as `scipy.linalg.ldl`.

    Where d has a block of two rows, derivatives are those of the block: which rows are taken together, and in
    which order, is a constant. Of a singular matrix there are none.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[2.0, 1.0], [1.0, -3.0]], requires_grad=True)
    >>> l, d, order = ts.linalg.ldl(a)
    >>> tg.grad(d[1, 1], a)
    (tensor([[ 0.25, -0.50],
            [-0.50,  1.00]]),)
    """
    a = square(A, check_finite)
    conjugate = bool(hermitian) and is_complex(a)
    low, d, order = _scipy.ldl(value_of(a), lower=lower, hermitian=hermitian)
    ordered = ops.completed(a, lower=bool(lower), conjugate=conjugate)[order[:, None], order]
    blocks, eye = _blocks(d), np.eye(len(d), dtype=d.dtype)
    found = ops.ldl(
        ordered, factors=Kept((low[order] + d - eye,)), blocks=blocks, lower=bool(lower), conjugate=conjugate
    )
    rest = (np.tril if lower else np.triu)(~blocks)
    return (found * rest + eye)[np.argsort(order)], found * blocks, constants(order, like=a)


def _blocks(d: np.ndarray) -> np.ndarray:
    """Where elements of a diagonal matrix of blocks of one and two rows may be other than 0."""
    beside = np.diagonal(d, -1) != 0
    return np.eye(len(d), dtype=bool) | np.diag(beside, -1) | np.diag(beside, 1)


@derived
@in_batches(a=2)
def qr(
    a: Operand, overwrite_a: bool = False, lwork: int | None = None, mode: str = "full",
    pivoting: bool = False, check_finite: bool = True,
) -> tuple[TensorOrArray, ...]:  # fmt: skip
    """Orthonormal and upper triangular factor, as `scipy.linalg.qr`; the order of pivots is a constant.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[3.0], [4.0]], requires_grad=True)
    >>> tg.grad(abs(ts.linalg.qr(a, mode="r")[0][0, 0]), a)
    (tensor([[0.6],
            [0.8]]),)
    """
    if mode == "raw":
        raise UnsupportedOpError(
            "scipy.linalg.qr: mode 'raw' gives Householder vectors, which have no derivative; use 'economic'"
        )
    if mode not in ("full", "r", "economic"):
        raise ValueError(f"mode is {mode!r}; give 'full', 'r' or 'economic'")
    a = given(a, check_finite, 2)
    q, r, *order = _scipy.qr(
        value_of(a), mode="economic" if mode == "economic" else "full", pivoting=pivoting
    )
    ordered, parts = a[:, order[0]] if order else a, (1,) if mode == "r" else (0, 1)
    found = factors_recorded("qr", ordered, Kept((q, r)), parts)
    return (*found, *(constants(p, like=a) for p in order))


@derived
@in_batches(a=2)
def svd(
    a: Operand, full_matrices: bool = True, compute_uv: bool = True, overwrite_a: bool = False,
    check_finite: bool = True, lapack_driver: str = "gesdd",
) -> TensorOrArray | tuple[TensorOrArray, ...]:  # fmt: skip
    """Singular value decomposition, as `scipy.linalg.svd`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[2.0, 1.0], [1.0, 2.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.svd(a, compute_uv=False)[0], a)
    (tensor([[0.5, 0.5],
            [0.5, 0.5]]),)
    """
    a = given(a, check_finite, 2)
    factorise = functools.partial(
        _scipy.svd, full_matrices=bool(full_matrices and compute_uv), lapack_driver=lapack_driver
    )
    found = factors_recorded("svd", a, Found(factorise), (0, 1, 2) if compute_uv else (1,))
    return tuple(found) if compute_uv else found[0]


@derived
def svdvals(a: Operand, overwrite_a: bool = False, check_finite: bool = True) -> TensorOrArray:
    """Singular values, largest first, as `scipy.linalg.svdvals`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[3.0], [4.0]], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.svdvals(a)), a)
    (tensor([[0.6],
            [0.8]]),)
    """
    return svd(a, compute_uv=False, check_finite=check_finite)


@derived
@in_batches(a=2)
def polar(a: Operand, side: str = "right") -> tuple[TensorOrArray, TensorOrArray]:
    """Unitary and positive semidefinite factor, as `scipy.linalg.polar`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[3.0], [4.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.polar(a)[1][0, 0], a)
    (tensor([[0.6],
            [0.8]]),)
    """
    if side not in ("right", "left"):
        raise ValueError(f"side is {side!r}; give 'right' or 'left'")
    a = given(a, axes=2)
    tall = shape_of(a)[0] >= shape_of(a)[1]
    u = ops.polar(a) if tall else adjoint(ops.polar(adjoint(a)))
    return u, adjoint(u) @ a if side == "right" else a @ adjoint(u)
