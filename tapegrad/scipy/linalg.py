"""Functions of `scipy.linalg` on Tensors and arrays; all its other names are its own.

Of arrays, and where no derivative is asked for, results are SciPy's own. Derivatives are to any order, in
forward mode too. What is in one triangle of a Hermitian matrix has, as in `numpy.linalg`, half of its
derivative in each. ``overwrite_*`` changes nothing in Tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.linalg as _scipy

from tapegrad.core.base import Operand, TensorOrArray, ndim_of, shape_of, value_of
from tapegrad.core.dispatch import apply
from tapegrad.core.saved_values import save_arrays
from tapegrad.errors import ShapeError, UnsupportedOpError
from tapegrad.numpy_api.linalg import _parts as factors_recorded
from tapegrad.numpy_api.tables import tensor_of
from tapegrad.ops import REGISTRY, bands, matrix_functions, riccati
from tapegrad.ops.lapack import Kept
from tapegrad.scipy.batches import in_batches
from tapegrad.scipy.calls import constants, derived_in, plain_only

if TYPE_CHECKING:
    from tapegrad.tensor import Tensor

ops: Any = matrix_functions
of_bands: Any = bands
equations: Any = riccati

__all__ = [
    "block_diag", "cho_factor", "cho_solve", "cholesky", "circulant", "companion", "coshm", "cosm", "det",
    "eig", "eig_banded", "eigh", "eigvals", "eigvals_banded", "eigvalsh", "expm", "expm_frechet",
    "fractional_matrix_power", "hankel", "inv", "khatri_rao", "ldl", "logm",
    "lstsq", "lu", "lu_factor", "lu_solve", "matmul_toeplitz", "norm", "pinv", "polar",
    "qr", "sinhm", "sinm", "solve", "solve_banded", "solve_continuous_are", "solve_continuous_lyapunov",
    "solve_discrete_are", "solve_discrete_lyapunov",
    "solve_lyapunov", "solve_sylvester", "solve_toeplitz", "solve_triangular", "solveh_banded", "sqrtm",
    "svd", "svdvals", "tanhm", "tanm", "toeplitz",
]  # fmt: skip

REFUSED = {
    "null_space": "a basis of it is one of many; the projector 1 - pinv(A) @ A has a derivative",
    "orth": "a basis is one of many; the projector A @ pinv(A) has a derivative, and so have svd and qr",
    "matrix_balance": "its scales are powers of two, which jump; detach() the matrix",
    "funm": "at equal eigenvalues Parlett's recurrence has none; use expm, logm, sqrtm, cosm, ..., or "
            "w, v = eig(A); (v * f(w)) @ inv(v) of a matrix whose eigenvalues differ",
    "schur": "its basis is one of many; use eig or eigh",
    "hessenberg": "its basis is one of many; detach() the matrix",
    "signm": "use A @ inv(sqrtm(A @ A))",
    "pinvh": "use pinv",
    "subspace_angles": "use svdvals of the product of orthonormal bases by qr",
}  # fmt: skip
_refused = {
    name: plain_only(getattr(_scipy, name), f"scipy.linalg.{name}", f"has no derivative here: {why}")
    for name, why in REFUSED.items()
    if hasattr(_scipy, name)
}


def __getattr__(name: str) -> Any:
    return _refused.get(name) or getattr(_scipy, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})


_derived = derived_in(_scipy)


def _given(x: Operand, check_finite: bool = True, axes: int = 0) -> TensorOrArray:
    """An argument as a Tensor or array of floating-point numbers of at least so many axes."""
    x = tensor_of(x)
    value = value_of(x)
    if check_finite:
        np.asarray_chkfinite(value)
    if np.ndim(value) < axes:
        raise ShapeError(f"an array of at least {axes} axes is needed, found shape {np.shape(value)}")
    if value.dtype.kind not in "fc":
        x = x * 1.0
    return x


def _square(x: Operand, check_finite: bool = True) -> TensorOrArray:
    x = _given(x, check_finite, 2)
    shape = shape_of(x)
    if shape[-1] != shape[-2]:
        raise ShapeError(f"square matrices are needed, found shape {shape}")
    return x


def _adjoint(x: TensorOrArray) -> TensorOrArray:
    x = np.swapaxes(x, -1, -2)
    return np.conj(x) if value_of(x).dtype.kind == "c" else x


def _in_double(x: TensorOrArray) -> TensorOrArray:
    return x.astype(np.complex128 if _is_complex(x) else np.float64, copy=False)


def _is_complex(*xs: Operand) -> bool:
    return any(value_of(x).dtype.kind == "c" for x in xs)


# ---------------------------------------------------------------- equations

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
        raise ValueError(f"{assume_a} is not a recognized matrix structure")
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


@_derived
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
    a, b = _square(a, check_finite), _given(b, check_finite, 1)
    if transposed and _is_complex(a):
        raise NotImplementedError("scipy.linalg.solve can currently not solve a^T x = b for complex matrices")
    a = _structured(a, structure, lower)
    if transposed:
        a, structure = np.swapaxes(a, -1, -2), {UPPER: LOWER, LOWER: UPPER}.get(structure, structure)
    return _solved(a, b, structure)


@_derived
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
    a, b = _square(a, check_finite), _given(b, check_finite, 1)
    return _by_triangle(a, b, bool(lower), bool(unit_diagonal), trans)


def _by_triangle(a: Operand, b: Operand, lower: bool, unit: bool, trans: Any) -> TensorOrArray:
    """Solution with one triangle of a matrix, or with its transpose."""
    trans = {"N": 0, "T": 1, "C": 2}.get(trans, trans)
    if trans not in (0, 1, 2):
        raise ValueError(f"trans is one of 0, 1, 2, 'N', 'T', 'C', found {trans!r}")
    triangle = np.tril if lower else np.triu
    a = triangle(a, (-1 if lower else 1) if unit else 0)
    if unit:
        a = a + np.eye(shape_of(a)[-1], dtype=value_of(a).dtype)
    if trans:
        a, lower = (_adjoint(a) if trans == 2 else np.swapaxes(a, -1, -2)), not lower
    return _solved(a, b, LOWER if lower else UPPER)


@_derived
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
    return np.linalg.inv(_structured(_square(a, check_finite), structure, lower))


@_derived
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
    a = _square(a, check_finite)
    return np.linalg.det(_in_double(a))


@_derived
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
    a = _given(a, check_finite, 2)
    s = np.linalg.svd(value_of(a), compute_uv=False)
    eps = np.finfo(s.dtype).eps
    least, cut = 0.0 if atol is None else atol, max(shape_of(a)) * eps if rtol is None else rtol
    if least < 0 or cut < 0:
        raise ValueError("atol and rtol values must be positive.")
    largest = np.max(s, initial=0.0)
    limit = least + largest * cut
    found = np.linalg.pinv(a, limit / largest if largest else cut)
    return (found, np.sum(s > limit)) if return_rank else found


@_derived
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
    a, b = _given(a, check_finite, 2), _given(b, check_finite, 1)
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


@_derived
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
    return np.linalg.norm(_given(a, check_finite), ord, axis, keepdims)


# ---------------------------------------------------------------- factors


@_derived
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
    return np.linalg.cholesky(_square(a, check_finite), upper=not lower)


@_derived
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
    return np.linalg.cholesky(_square(a, check_finite), upper=not lower), bool(lower)


@_derived
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
    c, b = _square(c, check_finite), _given(b, check_finite, 1)
    found = _by_triangle(c, b, bool(lower), False, 0 if lower else 2)
    return _by_triangle(c, found, bool(lower), False, 2 if lower else 0)


def _packed(a: TensorOrArray, packed: np.ndarray, order: np.ndarray) -> TensorOrArray:
    """The record of triangular factors in one array, of a matrix with its rows in an order."""
    return ops.lu_factor(a[order], factors=Kept((packed,)))


@_derived
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
    a = _given(a, check_finite, 2)
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


@_derived
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
    a = _given(a, check_finite, 2)
    packed, pivots = _scipy.lu_factor(value_of(a))
    return _packed(a, packed, _order(pivots, shape_of(a)[0])), constants(pivots, like=a)


def _order(pivots: np.ndarray, n: int) -> np.ndarray:
    """The order of rows that their exchanges come to."""
    order = np.arange(n)
    for k, other in enumerate(pivots.tolist()):
        order[[k, other]] = order[[other, k]]
    return order


@_derived
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
    return _by_lu(_square(factors, False), value_of(tensor_of(pivots)), _given(b, check_finite, 1), trans)


@in_batches(factors=2, pivots=1, b="1|2")
def _by_lu(factors: TensorOrArray, pivots: np.ndarray, b: TensorOrArray, trans: int) -> TensorOrArray:
    order = _order(pivots, len(pivots))
    if trans == 0:
        return _by_triangle(factors, _by_triangle(factors, b[order], True, True, 0), False, False, 0)
    found = _by_triangle(factors, _by_triangle(factors, b, False, False, trans), True, True, trans)
    return found[np.argsort(order)]


@_derived
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
    a = _square(A, check_finite)
    conjugate = bool(hermitian) and _is_complex(a)
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


@_derived
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
        raise ValueError("Mode argument should be one of ['full', 'r', 'economic', 'raw']")
    a = _given(a, check_finite, 2)
    q, r, *order = _scipy.qr(
        value_of(a), mode="economic" if mode == "economic" else "full", pivoting=pivoting
    )
    found = factors_recorded("qr", a[:, order[0]] if order else a, (q, r), (1,) if mode == "r" else (0, 1))
    return (*found, *(constants(p, like=a) for p in order))


@_derived
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
    a = _given(a, check_finite, 2)
    factors = _scipy.svd(
        value_of(a), full_matrices=bool(full_matrices and compute_uv), lapack_driver=lapack_driver
    )
    return tuple(factors_recorded("svd", a, factors, (0, 1, 2))) if compute_uv else _one("svd", a, factors, 1)


def _one(name: str, a: TensorOrArray, factors: Sequence[TensorOrArray], part: int) -> Tensor:
    return factors_recorded(name, a, factors, (part,))[0]


@_derived
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


@_derived
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
        raise ValueError("`side` must be either 'right' or 'left'")
    a = _given(a, axes=2)
    tall = shape_of(a)[0] >= shape_of(a)[1]
    u = ops.polar(a) if tall else _adjoint(ops.polar(_adjoint(a)))
    return u, _adjoint(u) @ a if side == "right" else a @ _adjoint(u)


# ---------------------------------------------------------------- eigenvalues


@_derived
@in_batches(a=2, b=2)
def eigh(
    a: Operand, b: Operand | None = None, *, lower: bool = True, eigvals_only: bool = False,
    overwrite_a: bool = False, overwrite_b: bool = False, type: int = 1, check_finite: bool = True,
    subset_by_index: Sequence[int] | None = None, subset_by_value: tuple[float, float] | None = None,
    driver: str | None = None,
) -> TensorOrArray | tuple[TensorOrArray, ...]:  # fmt: skip
    """Eigenvalues and eigenvectors of a Hermitian matrix, or of two, as `scipy.linalg.eigh`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[2.0, 1.0], [1.0, 2.0]], requires_grad=True)
    >>> w, v = ts.linalg.eigh(a, 2 * np.eye(2))
    >>> tg.grad(w[1], a)
    (tensor([[0.25, 0.25],
            [0.25, 0.25]]),)
    """
    a = _square(a, check_finite)
    if b is not None:
        b = _square(b, check_finite)
        if shape_of(a) != shape_of(b):
            raise ShapeError(f"a and b have the same shape, found {shape_of(a)} and {shape_of(b)}")
    kept = slice(None)
    if subset_by_index is not None:
        kept = slice(int(subset_by_index[0]), int(subset_by_index[1]) + 1)
    whole = None if driver in ("evr", "evx", "gvx") else driver  # those that find a part of them
    values, vectors = _scipy.eigh(
        value_of(a), None if b is None else value_of(b), lower=lower, type=type, driver=whole,
    )  # fmt: skip
    if subset_by_value is not None:
        low, high = subset_by_value
        kept = slice(int(np.sum(values <= low)), int(np.sum(values <= high)))
    if b is None:
        found = factors_recorded("eigh", a, (values, vectors), (0,) if eigvals_only else (0, 1))
    else:
        found = _of_two(a, b, (values, vectors), lower, type, eigvals_only)
    w = found[0][kept]
    return w if eigvals_only else (w, found[1][:, kept])


def _of_two(
    a: Operand,
    b: TensorOrArray,
    factors: tuple[np.ndarray, np.ndarray],
    lower: bool,
    kind: int,
    values_only: bool,
) -> Any:
    """Eigenvalues and eigenvectors of a Hermitian matrix and a positive definite one, l l**H.

    They are those of l**-1 a l**-H (`kind` 1) or l**H a l (Golub and Van Loan 2013, section 8.7.2).
    """
    low: TensorOrArray = np.linalg.cholesky(b, upper=not lower)
    low, a = low if lower else _adjoint(low), ops.completed(a, lower=bool(lower), conjugate=True)
    turned = _scipy.solve_triangular(value_of(low), factors[1], lower=True) if kind == 3 else (
        np.conj(value_of(low).T) @ factors[1]
    )  # fmt: skip
    if kind == 1:
        inner = ops.by_triangle(low, _adjoint(ops.by_triangle(low, a, True)), True)
    else:
        inner = _adjoint(low) @ a @ low
    if values_only:
        return factors_recorded("eigh", inner, (factors[0], turned), (0,))
    w, v = factors_recorded("eigh", inner, (factors[0], turned), (0, 1))
    return w, low @ v if kind == 3 else ops.by_triangle(_adjoint(low), v, False)


@_derived
def eigvalsh(
    a: Operand, b: Operand | None = None, *, lower: bool = True, overwrite_a: bool = False,
    overwrite_b: bool = False, type: int = 1, check_finite: bool = True,
    subset_by_index: Sequence[int] | None = None, subset_by_value: tuple[float, float] | None = None,
    driver: str | None = None,
) -> TensorOrArray:  # fmt: skip
    """Eigenvalues of a Hermitian matrix, or of two, as `scipy.linalg.eigvalsh`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[2.0, 1.0], [1.0, 2.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.eigvalsh(a)[0], a)
    (tensor([[ 0.5, -0.5],
            [-0.5,  0.5]]),)
    """
    return eigh(
        a, b, lower=lower, eigvals_only=True, type=type, check_finite=check_finite,
        subset_by_index=subset_by_index, subset_by_value=subset_by_value, driver=driver,
    )  # fmt: skip


@_derived
@in_batches(a_band=2)
def eig_banded(
    a_band: Operand, lower: bool = False, eigvals_only: bool = False, overwrite_a_band: bool = False,
    select: str | int = "a", select_range: Any = None, max_ev: int = 0,
    check_finite: bool = True,
) -> Any:  # fmt: skip
    """Eigenvalues and eigenvectors of a Hermitian matrix that is a band, as `scipy.linalg.eig_banded`.

    Derivatives take all eigenvectors, and a matrix of all elements.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> band = tg.tensor([[2.0, 2.0], [1.0, 0.0]], requires_grad=True)
    >>> w, v = ts.linalg.eig_banded(band, lower=True)
    >>> tg.grad(w[1], band)
    (tensor([[0.5, 0.5],
            [1.0, 0.0]]),)
    """
    a = _given(a_band, check_finite, 2)
    values, vectors = _scipy.eig_banded(value_of(a), lower=lower)
    kept = slice(None)
    if select not in ("a", "all", 0):
        part, its = _scipy.eig_banded(
            value_of(a), lower=lower, select=select, select_range=select_range, max_ev=max_ev
        )
        by_value = select in ("v", "value", 1)
        first = int(np.sum(values <= select_range[0]) if by_value else select_range[0])
        kept = slice(first, first + len(part))
        values[kept], vectors[:, kept] = part, its
    whole = _of_band(a, bool(lower))
    found = factors_recorded("eigh", whole, (values, vectors), (0,) if eigvals_only else (0, 1))
    return found[0][kept] if eigvals_only else (found[0][kept], found[1][:, kept])


def _of_band(band: Any, lower: bool) -> TensorOrArray:
    """The Hermitian matrix of one half of its band, whose diagonal is taken as real."""
    width, n = shape_of(band)
    i, j = np.indices((n, n))
    row = i - j if lower else width - 1 + i - j
    half = band[np.clip(row, 0, width - 1), j]
    strict = half * ((row > 0) & (row < width) if lower else (row >= 0) & (row < width - 1))
    return strict + _adjoint(strict) + np.real(half) * np.eye(n)


@_derived
def eigvals_banded(
    a_band: Operand, lower: bool = False, overwrite_a_band: bool = False, select: str | int = "a",
    select_range: Operand | None = None, check_finite: bool = True,
) -> Any:  # fmt: skip
    """Eigenvalues of a Hermitian matrix that is a band, as `scipy.linalg.eigvals_banded`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> band = tg.tensor([[2.0, 2.0], [1.0, 0.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.eigvals_banded(band, lower=True)[0], band)
    (tensor([[ 0.5,  0.5],
            [-1.0,  0.0]]),)
    """
    return eig_banded(
        a_band, lower, True, select=select, select_range=select_range, check_finite=check_finite
    )


@_derived
@in_batches(a=2, b=2)
def eig(
    a: Any, b: Any = None, left: bool = False, right: bool = True, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, homogeneous_eigvals: bool = False,
) -> TensorOrArray | tuple[TensorOrArray, ...]:  # fmt: skip
    """Eigenvalues and eigenvectors of a matrix, or of two of which the second has an inverse.

    As `scipy.linalg.eig`; of two matrices there are no derivatives of left eigenvectors.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[2.0, 1.0], [1.0, 2.0]], requires_grad=True)
    >>> w, v = ts.linalg.eig(a)
    >>> tg.grad(np.real(w[0]), a)
    (tensor([[0.5, 0.5],
            [0.5, 0.5]]),)
    """
    if homogeneous_eigvals or (left and b is not None):
        what = "homogeneous_eigvals=True" if homogeneous_eigvals else "left=True of two matrices"
        raise UnsupportedOpError(
            f"scipy.linalg.eig: {what} has no derivative here; use eig(a, b) with neither"
        )
    a = _square(a, check_finite)
    values = value_of(a), None if b is None else value_of(_square(b, check_finite))
    w, *sides = _scipy.eig(*values, left=left, right=True)
    vr, vl = sides[-1], sides[0]
    narrow = w.real if value_of(a).dtype.kind != "c" and vr.dtype.kind != "c" else w
    of = a if b is None else np.linalg.solve(b, a)
    parts = factors_recorded("eig", of, (narrow, vr), (0, 1) if right else (0,))
    found = [parts[0] if narrow is w else parts[0] + np.zeros((), w.dtype)]
    if left:
        found.append(_one("eig", _adjoint(a), (np.conj(narrow), vl), 1))
    return (*found, *parts[1:]) if left or right else found[0]


@_derived
def eigvals(
    a: Operand, b: Operand | None = None, overwrite_a: bool = False, check_finite: bool = True,
    homogeneous_eigvals: bool = False,
) -> TensorOrArray:  # fmt: skip
    """Eigenvalues of a matrix, or of two, as `scipy.linalg.eigvals`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[2.0, 1.0], [1.0, 2.0]], requires_grad=True)
    >>> tg.grad(np.real(ts.linalg.eigvals(a)[1]), a)
    (tensor([[ 0.5, -0.5],
            [-0.5,  0.5]]),)
    """
    return eig(a, b, False, False, check_finite=check_finite, homogeneous_eigvals=homogeneous_eigvals)


# ---------------------------------------------------------------- functions of a matrix


def _function(x: Operand) -> TensorOrArray:
    return _square(x, False)


@_derived
@in_batches(A=2)
def expm(A: Operand) -> TensorOrArray:
    """Exponential of a matrix, as `scipy.linalg.expm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[0.0, 1.0], [0.0, 0.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.expm(a)[0, 1], a)
    (tensor([[0.5000, 1.0000],
            [0.1667, 0.5000]]),)
    """
    return ops.expm(_function(A))


@_derived
@in_batches(A=2, E=2)
def expm_frechet(
    A: Operand, E: Operand, method: str | None = None, compute_expm: bool = True, check_finite: bool = True
) -> tuple[TensorOrArray, TensorOrArray]:
    """Derivative of the exponential at A in direction E, as `scipy.linalg.expm_frechet`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> e = tg.tensor([[1.0]], requires_grad=True)
    >>> found = ts.linalg.expm_frechet([[0.0]], e, compute_expm=False)
    >>> tg.grad(np.trace(found), e)
    (tensor([[1.]]),)
    """
    if method not in (None, "SPS", "blockEnlarge"):
        raise ValueError(f"Unknown implementation {method}")
    A, E = (_in_double(_square(x, check_finite)) for x in (A, E))
    if shape_of(A) != shape_of(E):
        raise ShapeError(f"expected A and E to be the same shape, found {shape_of(A)} and {shape_of(E)}")
    n = shape_of(A)[-1]
    found = ops.expm(np.block([[A, E], [np.zeros((n, n), value_of(A).dtype), A]]))
    value = found[:n, :n] if _is_complex(A) else np.real(found[:n, :n])
    return (value, found[:n, n:]) if compute_expm else found[:n, n:]


def _without_disp(disp: bool | None, what: str) -> None:
    if disp is not None and disp is not True:
        raise UnsupportedOpError(
            f"scipy.linalg.{what}: the error that disp=False estimates has no derivative here; leave disp out"
        )


@_derived
@in_batches(A=2)
def logm(A: Operand, disp: bool | None = None) -> TensorOrArray:
    """Principal logarithm of a matrix, as `scipy.linalg.logm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[2.0]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.logm(a)), a)
    (tensor([[0.5]]),)
    """
    _without_disp(disp, "logm")
    return ops.logm(_function(A))


@_derived
@in_batches(A=2)
def sqrtm(A: Operand, disp: bool | None = None, blocksize: int | None = None) -> TensorOrArray:
    """Principal square root of a matrix, as `scipy.linalg.sqrtm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[4.0]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.sqrtm(a)), a)
    (tensor([[0.25]]),)
    """
    _without_disp(disp, "sqrtm")
    return ops.sqrtm(_function(A))


@_derived
@in_batches(A=2)
def fractional_matrix_power(A: Operand, t: float) -> TensorOrArray:
    """Principal power of a matrix by a number, as `scipy.linalg.fractional_matrix_power`.

    By the exponent too: then it is ``expm(t * logm(A))``.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[4.0]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.fractional_matrix_power(a, 1.5)), a)
    (tensor([[3.]]),)
    """
    if hasattr(t, "_apply"):
        return expm(t * logm(A))
    return ops.fractional_matrix_power(_function(A), t=t)


def _trigonometric(A: Operand) -> tuple[Tensor, Tensor]:
    """Cosine and sine of a matrix."""
    A = _function(A)
    if not _is_complex(A):
        both = ops.expm(1j * A)
        return np.real(both), np.imag(both)
    ahead, back = ops.expm(1j * A), ops.expm(-1j * A)
    return 0.5 * (ahead + back), -0.5j * (ahead - back)


@_derived
@in_batches(A=2)
def cosm(A: Operand) -> TensorOrArray:
    """Cosine of a matrix, as `scipy.linalg.cosm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[0.5]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.cosm(a)), a)
    (tensor([[-0.4794]]),)
    """
    return _trigonometric(A)[0]


@_derived
@in_batches(A=2)
def sinm(A: Operand) -> TensorOrArray:
    """Sine of a matrix, as `scipy.linalg.sinm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[0.5]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.sinm(a)), a)
    (tensor([[0.8776]]),)
    """
    return _trigonometric(A)[1]


@_derived
@in_batches(A=2)
def tanm(A: Operand) -> TensorOrArray:
    """Tangent of a matrix, as `scipy.linalg.tanm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[0.5]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.tanm(a)), a)
    (tensor([[1.2984]]),)
    """
    return np.linalg.solve(*_trigonometric(A))


def _hyperbolic(A: Operand) -> tuple[Tensor, Tensor]:
    """Hyperbolic cosine and sine of a matrix."""
    A = _function(A)
    ahead, back = ops.expm(A), ops.expm(-A)
    return 0.5 * (ahead + back), 0.5 * (ahead - back)


@_derived
@in_batches(A=2)
def coshm(A: Operand) -> TensorOrArray:
    """Hyperbolic cosine of a matrix, as `scipy.linalg.coshm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[0.5]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.coshm(a)), a)
    (tensor([[0.5211]]),)
    """
    return _hyperbolic(A)[0]


@_derived
@in_batches(A=2)
def sinhm(A: Operand) -> TensorOrArray:
    """Hyperbolic sine of a matrix, as `scipy.linalg.sinhm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[0.5]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.sinhm(a)), a)
    (tensor([[1.1276]]),)
    """
    return _hyperbolic(A)[1]


@_derived
@in_batches(A=2)
def tanhm(A: Operand) -> TensorOrArray:
    """Hyperbolic tangent of a matrix, as `scipy.linalg.tanhm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[0.5]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.tanhm(a)), a)
    (tensor([[0.7864]]),)
    """
    return np.linalg.solve(*_hyperbolic(A))


# ---------------------------------------------------------------- equations of matrices


@_derived
@in_batches(a=2, b=2, q=2)
def solve_sylvester(a: Operand, b: Operand, q: Operand) -> TensorOrArray:
    """Solution x of ``a @ x + x @ b = q``, as `scipy.linalg.solve_sylvester`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> q = tg.tensor([[3.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.solve_sylvester([[1.0]], [[2.0]], q)[0, 0], q)
    (tensor([[0.3333]]),)
    """
    a, b, q = _square(a, False), _square(b, False), _given(q, False, 2)
    if shape_of(q) != (shape_of(a)[0], shape_of(b)[0]):
        raise ShapeError(f"shapes {shape_of(a)}, {shape_of(b)} and {shape_of(q)} do not fit")
    return ops.solve_sylvester(a, b, q)


@_derived
@in_batches(a=2, q=2)
def solve_continuous_lyapunov(a: Operand, q: Operand) -> TensorOrArray:
    """Solution x of ``a @ x + x @ a**H = q``, as `scipy.linalg.solve_continuous_lyapunov`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> q = tg.tensor([[2.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.solve_continuous_lyapunov([[1.0]], q)[0, 0], q)
    (tensor([[0.5]]),)
    """
    a, q = _square(a, False), _square(q, False)
    if shape_of(a) != shape_of(q):
        raise ShapeError(f"matrices of the same shape are needed, found {shape_of(a)} and {shape_of(q)}")
    return ops.solve_sylvester(a, _adjoint(a), q)


@_derived
def solve_lyapunov(a: Operand, q: Operand) -> TensorOrArray:
    """The same as `solve_continuous_lyapunov`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> q = tg.tensor([[2.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.solve_lyapunov([[1.0]], q)[0, 0], q)
    (tensor([[0.5]]),)
    """
    return solve_continuous_lyapunov(a, q)


DIRECT = 10  # rows below which SciPy solves a discrete Lyapunov equation as one of all elements


@_derived
@in_batches(a=2, q=2)
def solve_discrete_lyapunov(a: Operand, q: Operand, method: str | None = None) -> TensorOrArray:
    """Solution x of ``a @ x @ a**H - x + q = 0``, as `scipy.linalg.solve_discrete_lyapunov`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> q = tg.tensor([[3.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.solve_discrete_lyapunov([[0.5]], q)[0, 0], q)
    (tensor([[1.3333]]),)
    """
    a, q = _square(a, False), _square(q, False)
    n = shape_of(a)[0]
    method = ("bilinear" if n >= DIRECT else "direct") if method is None else method.lower()
    if method not in ("direct", "bilinear"):
        raise ValueError(f"Unknown solver {method}")
    if method == "direct":
        left = np.eye(n * n) - np.kron(a, np.conj(a))
        return np.reshape(np.linalg.solve(left, np.reshape(q, -1)), (n, n))
    one, back = np.eye(n), _adjoint(a)
    inverse = np.linalg.inv(back + one)
    b = (back - one) @ inverse
    c = 2 * (np.linalg.inv(a + one) @ q @ inverse)
    return ops.solve_sylvester(_adjoint(b), b, -c)


def _riccati(
    op: Any, a: Operand, b: Operand, q: Operand, r: Operand, e: Operand | None, s: Operand | None
) -> Tensor:
    """Solution of a Riccati equation, brought to the form without `e` and `s`."""
    a, b, q, r = _square(a), _given(b, axes=2), _square(q), _square(r)
    n, m = shape_of(a)[0], shape_of(r)[0]
    if shape_of(b) != (n, m) or shape_of(q) != (n, n):
        raise ShapeError(f"shapes {shape_of(a)}, {shape_of(b)}, {shape_of(q)} and {shape_of(r)} do not fit")
    for name, x in (("q", value_of(q)), ("r", value_of(r))):
        if not np.allclose(x, x.conj().T, rtol=0.0, atol=100 * np.spacing(np.linalg.norm(x, 1))):
            raise ValueError(f"Matrix {name} should be symmetric/hermitian.")
    if s is not None:
        s = _given(s, axes=2)
    if e is not None:
        turned = np.linalg.inv(_square(e))
        a, q = a @ turned, _adjoint(turned) @ q @ turned
        s = None if s is None else _adjoint(turned) @ s
    if s is not None:
        back = np.linalg.solve(r, _adjoint(s))
        a, q = a - b @ back, q - s @ back
    a, b, q, r = (_in_double(x) for x in (a, b, (q + _adjoint(q)) / 2, (r + _adjoint(r)) / 2))
    return op(a, b, q, r)


@_derived
@in_batches(a=2, b=2, q=2, r=2, e=2, s=2)
def solve_continuous_are(
    a: Operand,
    b: Operand,
    q: Operand,
    r: Operand,
    e: Operand | None = None,
    s: Operand | None = None,
    balanced: bool = True,
) -> TensorOrArray:
    """Stabilising solution x of ``a**H x + x a - x b inv(r) b**H x + q = 0``.

    Parameters
    ----------
    a, b, q, r : Tensor or array_like
        The system, its inputs, and the Hermitian weights of states and inputs.
    e, s : Tensor or array_like, optional
        Of the general equation.
    balanced : bool, optional
        As SciPy has it; a balanced pencil is used where there is a derivative.

    Returns
    -------
    Tensor
        As `scipy.linalg.solve_continuous_are`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> q = tg.tensor([[3.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.solve_continuous_are([[1.0]], [[1.0]], q, [[1.0]])[0, 0], q)
    (tensor([[0.25]]),)
    """
    return _riccati(equations.solve_continuous_are, a, b, q, r, e, s)


@_derived
@in_batches(a=2, b=2, q=2, r=2, e=2, s=2)
def solve_discrete_are(
    a: Operand,
    b: Operand,
    q: Operand,
    r: Operand,
    e: Operand | None = None,
    s: Operand | None = None,
    balanced: bool = True,
) -> TensorOrArray:
    """Stabilising solution x of ``x = a**H x a - a**H x b inv(r + b**H x b) b**H x a + q``.

    Parameters
    ----------
    a, b, q, r : Tensor or array_like
        The system, its inputs, and the Hermitian weights of states and inputs.
    e, s : Tensor or array_like, optional
        Of the general equation.
    balanced : bool, optional
        As SciPy has it; a balanced pencil is used where there is a derivative.

    Returns
    -------
    Tensor
        As `scipy.linalg.solve_discrete_are`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> q = tg.tensor([[1.5]], requires_grad=True)
    >>> tg.grad(ts.linalg.solve_discrete_are([[1.0]], [[1.0]], q, [[1.0]])[0, 0], q)
    (tensor([[1.1093]]),)
    """
    return _riccati(equations.solve_discrete_are, a, b, q, r, e, s)


# ---------------------------------------------------------------- bands and constant diagonals


@_derived
def solve_banded(
    l_and_u: tuple[int, int], ab: Operand, b: Operand, overwrite_ab: bool = False, overwrite_b: bool = False,
    check_finite: bool = True,
) -> TensorOrArray:  # fmt: skip
    """Solution of equations with a matrix that is a band, as `scipy.linalg.solve_banded`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> ab = tg.tensor([[0.0, 1.0], [2.0, 4.0]], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.solve_banded((0, 1), ab, [4.0, 4.0])), ab)[0][1]
    tensor([-0.750, -0.125])
    """
    lower, upper = (int(k) for k in l_and_u)
    ab, b = _given(ab, check_finite, 2), _given(b, check_finite, 1)
    if shape_of(ab)[-2] != lower + upper + 1:
        raise ShapeError(
            "invalid values for the number of lower and upper diagonals: "
            f"l+u+1 ({lower + upper + 1}) does not equal ab.shape[0] ({shape_of(ab)[-2]})"
        )
    return _by_band(ab, b, lower, upper, False)


@in_batches(ab=2, b="1|2")
def _by_band(ab: Operand, b: Operand, lower: int, upper: int, positive: bool) -> Tensor:
    if shape_of(ab)[1] != shape_of(b)[0]:
        raise ShapeError(f"shapes of ab and b are not compatible: {shape_of(ab)} and {shape_of(b)}")
    return of_bands.solve_banded(ab, b, lower=lower, upper=upper, positive=positive)


@_derived
@in_batches(ab=2, b="1|2")
def solveh_banded(
    ab: Operand, b: Operand, overwrite_ab: bool = False, overwrite_b: bool = False, lower: bool = False,
    check_finite: bool = True,
) -> TensorOrArray:  # fmt: skip
    """Solution of equations with a positive definite band, as `scipy.linalg.solveh_banded`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> ab = tg.tensor([[2.0, 4.0]], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.solveh_banded(ab, [2.0, 4.0])), ab)
    (tensor([[-0.50, -0.25]]),)
    """
    ab, b = _given(ab, check_finite, 2), _given(b, check_finite, 1)
    k = shape_of(ab)[0] - 1
    main, rest = (ab[:1], ab[1:]) if lower else (ab[k:], ab[:k])
    if _is_complex(main):  # LAPACK takes the diagonal as real
        main = main.real + 0j
    other = of_bands.adjoint_of_band(np.concatenate([main, rest] if lower else [rest, main]), *(
        (k, 0) if lower else (0, k)
    ))  # fmt: skip
    halves = [other[:k], main, rest] if lower else [rest, main, other[1:]]
    return _by_band(np.concatenate(halves), b, k, k, True)


def _diagonals(
    c_or_cr: Operand | tuple[Operand, Operand | None], check_finite: bool
) -> tuple[TensorOrArray, TensorOrArray]:
    """First column and row of a matrix with constant diagonals."""
    c, r = c_or_cr if isinstance(c_or_cr, tuple) else (c_or_cr, None)
    c = _given(c, check_finite)
    return c, np.conj(c) if r is None else _given(r, check_finite)


@_derived
def solve_toeplitz(c_or_cr: Operand, b: Operand, check_finite: bool = True) -> TensorOrArray:
    """Solution of equations with constant diagonals, as `scipy.linalg.solve_toeplitz`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> c = tg.tensor([2.0, 0.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.solve_toeplitz(c, [2.0, 2.0])), c)
    (tensor([-1., -1.]),)
    """
    return _by_diagonals(*_diagonals(c_or_cr, check_finite), _given(b, check_finite, 1))


@in_batches(c=1, r=1, b="1|2")
def _by_diagonals(c: TensorOrArray, r: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
    n = shape_of(c)[0]
    if shape_of(r) != (n,) or shape_of(b)[0] != n or n == 0:
        raise ShapeError(
            f"shapes of the first column, {shape_of(c)}, of the first row, {shape_of(r)}, and of the right "
            f"side, {shape_of(b)}, do not fit"
        )
    return of_bands.solve_toeplitz(np.concatenate([r[:0:-1], c]), b)


@_derived
def matmul_toeplitz(
    c_or_cr: tuple[Operand, Operand], x: Operand, check_finite: bool = False, workers: int | None = None
) -> TensorOrArray:
    """Product with a matrix of constant diagonals by Fourier transforms, as `scipy.linalg.matmul_toeplitz`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> c = tg.tensor([2.0, 0.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.matmul_toeplitz(c, [1.0, 3.0])), c)
    (tensor([4., 4.]),)
    """
    return _times_diagonals(*_diagonals(c_or_cr, check_finite), _given(x, check_finite, 1))


@in_batches(c=1, r=1, x="1|2")
def _times_diagonals(c: TensorOrArray, r: TensorOrArray, x: Operand) -> Tensor:
    rows, columns = shape_of(c)[0], shape_of(r)[0]
    if shape_of(x)[0] != columns:
        raise ShapeError(f"a matrix of {rows} by {columns} elements, and x of shape {shape_of(x)}")
    vector = ndim_of(x) == 1
    x = _in_double(np.reshape(x, (columns, -1)))
    whole: Any = _in_double(np.concatenate([c, r[:0:-1]]))
    n = shape_of(whole)[0]
    ahead: Any = np.fft.rfft
    back: Any = np.fft.irfft
    if _is_complex(whole, x):
        ahead, back = np.fft.fft, np.fft.ifft
    found = back(ahead(whole)[:, None] * ahead(x, n, 0), n, 0)[:rows]
    return found[:, 0] if vector else found


# ---------------------------------------------------------------- matrices of vectors


@_derived
def toeplitz(c: Operand, r: Operand | None = None) -> TensorOrArray:
    """Matrix of constant diagonals, as `scipy.linalg.toeplitz`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> c = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.toeplitz(c)), c)
    (tensor([2., 2.]),)
    """
    return _toeplitz(*(np.atleast_1d(x) for x in _diagonals((c, r), False)))


@in_batches(c=1, r=1)
def _toeplitz(c: TensorOrArray, r: TensorOrArray) -> TensorOrArray:
    rows, columns = shape_of(c)[0], shape_of(r)[0]
    places = np.arange(rows)[:, None] - np.arange(columns) + max(columns - 1, 0)
    return np.concatenate([r[:0:-1], c])[places]


@_derived
def hankel(c: Operand, r: Operand | None = None) -> TensorOrArray:
    """Matrix of constant diagonals from below to above, as `scipy.linalg.hankel`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> c = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.hankel(c)), c)
    (tensor([1., 2.]),)
    """
    c = _given(c, False)
    r = np.zeros_like(value_of(c)) if r is None else _given(r, False)
    if ndim_of(c) != 1 or ndim_of(r) != 1:
        raise ShapeError(f"two vectors are needed, found shapes {shape_of(c)} and {shape_of(r)}")
    places = np.arange(shape_of(c)[0])[:, None] + np.arange(shape_of(r)[0])
    return np.concatenate([c, r[1:]])[places]


@_derived
def circulant(c: Operand) -> TensorOrArray:
    """Matrix of columns that are each rolled by one more, as `scipy.linalg.circulant`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> c = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.circulant(c)), c)
    (tensor([2., 2.]),)
    """
    c = np.atleast_1d(_given(c, False))
    n = shape_of(c)[-1]
    return c[..., (np.arange(n)[:, None] - np.arange(n)) % max(n, 1)]


@_derived
def companion(a: Operand) -> TensorOrArray:
    """Matrix whose eigenvalues are the roots of a polynomial, as `scipy.linalg.companion`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([1.0, -3.0, 2.0], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.companion(a)), a)
    (tensor([-3., -1.,  0.]),)
    """
    a = _given(a, False, 1)
    n = shape_of(a)[-1]
    if n < 2:
        raise ValueError(
            f"The length of `a` along the last axis must be at least 2, found shape {shape_of(a)}"
        )
    if not np.all(value_of(a)[..., 0]):
        raise ValueError("The first coefficient in `a` must not be zero.")
    first = -a[..., 1:] / (1.0 * a[..., :1])
    below = np.broadcast_to(
        np.eye(n - 2, n - 1, dtype=value_of(first).dtype), (*shape_of(a)[:-1], n - 2, n - 1)
    )
    return np.concatenate([first[..., None, :], below], axis=-2)


@_derived
def block_diag(*arrs: Operand) -> TensorOrArray:
    """Matrix of blocks along the diagonal, as `scipy.linalg.block_diag`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 2.0]], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.block_diag(x, 3.0, x)), x)
    (tensor([[2., 2.]]),)
    """
    blocks = [np.atleast_2d(tensor_of(x)) for x in arrs]
    kind = np.result_type(*(value_of(x).dtype for x in blocks))
    front = np.broadcast_shapes(*(shape_of(x)[:-2] for x in blocks))
    columns = [shape_of(x)[-1] for x in blocks]
    rows = []
    for k, x in enumerate(blocks):
        count = shape_of(x)[-2]
        x = np.broadcast_to(x, (*front, *shape_of(x)[-2:]))
        before, after = (
            np.zeros((*front, count, sum(part)), kind) for part in (columns[:k], columns[k + 1 :])
        )
        rows.append(np.concatenate([before, x, after], axis=-1))
    return np.concatenate(rows, axis=-2)


@_derived
@in_batches(a=2, b=2)
def khatri_rao(a: Operand, b: Operand) -> TensorOrArray:
    """Kronecker products of columns, as `scipy.linalg.khatri_rao`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[1.0, 2.0]], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.khatri_rao(a, [[1.0, 2.0], [3.0, 4.0]])), a)
    (tensor([[4., 6.]]),)
    """
    a, b = _given(a, False, 2), _given(b, False, 2)
    if shape_of(a)[1] != shape_of(b)[1]:
        raise ValueError("The number of columns for both arrays should be equal.")
    return np.reshape(a[:, None] * b[None], (shape_of(a)[0] * shape_of(b)[0], shape_of(a)[1]))
