"""Equations, inverses, determinants, least squares and norms of `scipy.linalg`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tapegrad.core.base import like_of, ndim_of, shape_of, value_of
from tapegrad.core.saved_values import save_arrays
from tapegrad.errors import ShapeError
from tapegrad.ops import REGISTRY, matrix_functions
from tapegrad.scipy.batches import in_batches
from tapegrad.scipy.calls import constants
from tapegrad.scipy.linalg.arguments import adjoint, derived, given, in_double, is_complex, square
from tapegrad.tensor import Operand, TensorOrArray, apply

if TYPE_CHECKING:
    from tapegrad.tensor import Tensor

ops: Any = matrix_functions

GENERAL, DIAGONAL, TRIDIAGONAL, UPPER, LOWER, SYMMETRIC, HERMITIAN, POSITIVE = range(8)
STRUCTURES = {
    None: GENERAL, "gen": GENERAL, "general": GENERAL, "banded": GENERAL, "diagonal": DIAGONAL,
    "tridiagonal": TRIDIAGONAL, "upper triangular": UPPER, "lower triangular": LOWER, "sym": SYMMETRIC,
    "symmetric": SYMMETRIC, "her": HERMITIAN, "hermitian": HERMITIAN, "pos": POSITIVE,
    "positive definite": POSITIVE,
}  # fmt: skip


def _structured(a: TensorOrArray, structure: int, lower: bool) -> TensorOrArray:
    """The matrix that SciPy means of one whose structure is told: of what it reads of it."""
    if structure == DIAGONAL:
        return np.triu(np.tril(a))
    if structure == TRIDIAGONAL:
        return np.triu(np.tril(a, 1), -1)
    if structure in (UPPER, LOWER):
        return np.triu(a) if structure == UPPER else np.tril(a)
    if structure in (SYMMETRIC, HERMITIAN, POSITIVE):
        return _completed(a, lower, structure != SYMMETRIC)
    return a


@in_batches(a=2)
def _completed(a: Operand, lower: bool, conjugate: bool) -> Tensor:
    return ops.completed(a, lower=bool(lower), conjugate=conjugate)


def _structure(assume_a: str | None) -> int:
    if assume_a not in STRUCTURES:
        raise ValueError(f"assume_a is {assume_a!r}; give one of {sorted(filter(None, STRUCTURES))}")
    return STRUCTURES[assume_a]


def _solved(a: Any, b: Any, structure: int) -> TensorOrArray:
    """Solution by what a matrix is known to be."""
    rows, right = shape_of(a)[-1], shape_of(b)
    if not right or right[-min(len(right), 2)] != rows:
        raise ShapeError(f"incompatible shapes: {shape_of(a)} and {right}")
    if structure == POSITIVE:
        kept = ops.Positive()
        found = apply(REGISTRY["solve"], (a, b), {"lu": kept})
        save_arrays([found], [kept])
        return found
    if structure in (UPPER, LOWER, DIAGONAL):
        return ops.by_triangle(a, b, structure == LOWER)
    return np.linalg.solve(a, b)


@derived
def solve(
    a: Operand, b: Operand, lower: bool = False, overwrite_a: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, assume_a: str | None = None, transposed: bool = False,
) -> TensorOrArray:  # fmt: skip
    """Solution of equations, as `scipy.linalg.solve`; without its warnings of ill-conditioned matrices.

    Symmetric and tridiagonal ones are solved as general ones are, with what SciPy reads of them.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.solve(np.diag([2.0, 4.0]), b, assume_a="pos")), b)
    (tensor([0.50, 0.25]),)
    """
    structure = _structure(assume_a)
    a, b = square(a, check_finite), given(b, check_finite, 1)
    if transposed and is_complex(a):
        raise NotImplementedError(
            "scipy.linalg.solve: transposed=True takes real matrices; give a.T of a complex one"
        )
    a = _structured(a, structure, lower)
    if transposed:
        a, structure = np.swapaxes(a, -1, -2), {UPPER: LOWER, LOWER: UPPER}.get(structure, structure)
    return _solved(a, b, structure)


@derived
def solve_triangular(
    a: Operand, b: Operand, trans: int | str = 0, lower: bool = False, unit_diagonal: bool = False,
    overwrite_b: bool = False, check_finite: bool = True,
) -> TensorOrArray:  # fmt: skip
    """Solution of equations with a triangular matrix, as `scipy.linalg.solve_triangular`.

    Its derivatives are solutions with the same matrix, found in the same way.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor([2.0, 5.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.solve_triangular([[2.0, 0.0], [1.0, 4.0]], b, lower=True)), b)
    (tensor([0.375, 0.250]),)
    """
    a, b = square(a, check_finite), given(b, check_finite, 1)
    return by_triangle(a, b, bool(lower), bool(unit_diagonal), trans)


def by_triangle(a: Operand, b: Operand, lower: bool, unit: bool, trans: Any) -> TensorOrArray:
    """Solution with one triangle of a matrix, or with its transpose."""
    trans = {"N": 0, "T": 1, "C": 2}.get(trans, trans)
    if trans not in (0, 1, 2):
        raise ValueError(f"trans is one of 0, 1, 2, 'N', 'T', 'C', found {trans!r}")
    triangle = np.tril if lower else np.triu
    a = triangle(a, (-1 if lower else 1) if unit else 0)
    if unit:
        a = a + np.eye(shape_of(a)[-1], dtype=like_of(a).dtype)
    if trans:
        a, lower = (adjoint(a) if trans == 2 else np.swapaxes(a, -1, -2)), not lower
    return _solved(a, b, LOWER if lower else UPPER)


@derived
def inv(
    a: Operand, overwrite_a: bool = False, check_finite: bool = True, *, assume_a: str | None = None,
    lower: bool = False,
) -> TensorOrArray:  # fmt: skip
    """Inverse, as `scipy.linalg.inv`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[2.0]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.inv(a)), a)
    (tensor([[-0.25]]),)
    """
    structure = _structure(assume_a)
    return np.linalg.inv(_structured(square(a, check_finite), structure, lower))


@derived
def det(a: Operand, overwrite_a: bool = False, check_finite: bool = True) -> TensorOrArray:
    """Determinant, in double precision, as `scipy.linalg.det`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.det(a), a)
    (tensor([[ 4., -3.],
            [-2.,  1.]]),)
    """
    a = square(a, check_finite)
    return np.linalg.det(in_double(a))


@derived
@in_batches(a=2)
def pinv(
    a: Operand, *, atol: float | None = None, rtol: float | None = None, return_rank: bool = False,
    check_finite: bool = True,
) -> TensorOrArray | tuple[TensorOrArray, ...]:  # fmt: skip
    """Pseudoinverse, as `scipy.linalg.pinv`, differentiated at constant rank.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[1.0], [2.0]], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.pinv(a)), a)
    (tensor([[-0.04],
            [-0.28]]),)
    """
    a = given(a, check_finite, 2)
    s = np.linalg.svd(value_of(a), compute_uv=False)
    eps = np.finfo(s.dtype).eps
    least, cut = 0.0 if atol is None else atol, max(shape_of(a)) * eps if rtol is None else rtol
    if least < 0 or cut < 0:
        raise ValueError(f"atol is {least} and rtol {cut}; give numbers from 0 on")
    largest = np.max(s, initial=0.0)
    limit = least + largest * cut
    found = np.linalg.pinv(a, limit / largest if largest else cut)
    return (found, np.sum(s > limit)) if return_rank else found


@derived
@in_batches(a=2, b="1|2")
def lstsq(
    a: Operand, b: Operand, cond: float | None = None, overwrite_a: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, lapack_driver: str | None = None,
) -> tuple[TensorOrArray, TensorOrArray, int | np.integer, TensorOrArray | None]:  # fmt: skip
    """Least squares solution, squared residuals, rank and singular values, as `scipy.linalg.lstsq`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.linalg.lstsq([[1.0], [1.0], [1.0]], b)[0][0], b)
    (tensor([0.3333, 0.3333, 0.3333]),)
    """
    a, b = given(a, check_finite, 2), given(b, check_finite, 1)
    if lapack_driver not in (None, "gelsd", "gelss", "gelsy"):
        raise ValueError(f'LAPACK driver "{lapack_driver}" is not found')
    kind = np.result_type(value_of(a), value_of(b))
    found, left, rank, s = np.linalg.lstsq(a, b, np.finfo(kind).eps if cond is None else cond)
    rows, columns = shape_of(a)
    if not rows > columns == rank or lapack_driver == "gelsy":
        left = constants(np.array([], kind), like=b)
    elif ndim_of(b) == 1:
        left = left[0]
    return found, left, rank, None if lapack_driver == "gelsy" else s


@derived
def norm(
    a: Operand,
    ord: float | Literal["fro", "nuc"] | None = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    check_finite: bool = True,
) -> TensorOrArray:
    """Norm of vectors or matrices, as `scipy.linalg.norm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([3.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.linalg.norm(a), a)
    (tensor([0.6, 0.8]),)
    """
    return np.linalg.norm(given(a, check_finite), ord, axis, keepdims)
