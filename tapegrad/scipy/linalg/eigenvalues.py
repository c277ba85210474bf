"""Eigenvalues and eigenvectors of `scipy.linalg`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.linalg as _scipy

from tapegrad.core.base import like_of, ndim_of, shape_of, value_of
from tapegrad.errors import ShapeError, UnsupportedOpError
from tapegrad.numpy_api.linalg import _parts as factors_recorded
from tapegrad.ops import matrix_functions
from tapegrad.ops.lapack import Kept
from tapegrad.scipy.batches import in_batches
from tapegrad.scipy.linalg.arguments import adjoint, derived, given, square
from tapegrad.tensor import Operand, TensorOrArray

ops: Any = matrix_functions


@derived
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
    a = square(a, check_finite)
    if b is not None:
        b = square(b, check_finite)
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
        found = factors_recorded("eigh", a, Kept((values, vectors)), (0,) if eigvals_only else (0, 1))
    else:
        found = _of_two(a, b, (values, vectors), lower, type, eigvals_only)
    w = found[0][kept]
    return w if eigvals_only else (w, found[1][:, kept])


@derived
def eigh_tridiagonal(
    d: Operand, e: Operand, eigvals_only: bool = False, select: str = "a", select_range: Any = None,
    check_finite: bool = True, tol: float = 0.0, lapack_driver: str = "auto",
) -> TensorOrArray | tuple[TensorOrArray, ...]:  # fmt: skip
    """Eigenvalues and vectors of a symmetric matrix of three diagonals, as `scipy.linalg.eigh_tridiagonal`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> e = tg.tensor([1.0], requires_grad=True)
    >>> tg.grad(ts.linalg.eigh_tridiagonal([2.0, 2.0], e, eigvals_only=True)[1], e)
    (tensor([1.]),)
    """
    d, e = given(d, check_finite, 1), given(e, check_finite, 1)
    if ndim_of(d) != 1 or ndim_of(e) != 1 or shape_of(d)[0] != shape_of(e)[0] + 1:
        raise ShapeError(f"d is a vector and e one of one number less, found {shape_of(d)} and {shape_of(e)}")
    values, vectors = _scipy.eigh_tridiagonal(value_of(d), value_of(e), tol=tol)
    matrix = np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
    found = factors_recorded("eigh", matrix, Kept((values, vectors)), (0,) if eigvals_only else (0, 1))
    kept = slice(None)
    if select in ("i", "index"):
        kept = slice(int(select_range[0]), int(select_range[1]) + 1)
    elif select in ("v", "value"):
        kept = slice(*(int(np.sum(values <= end)) for end in select_range))
    elif select not in ("a", "all"):
        raise ValueError(f"select is {select!r}; give 'a', 'v' or 'i'")
    return found[0][kept] if eigvals_only else (found[0][kept], found[1][:, kept])


@derived
def eigvalsh_tridiagonal(
    d: Operand, e: Operand, select: str = "a", select_range: Any = None, check_finite: bool = True,
    tol: float = 0.0, lapack_driver: str = "auto",
) -> Any:  # fmt: skip
    """Eigenvalues of a symmetric matrix of three diagonals, as `scipy.linalg.eigvalsh_tridiagonal`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> d = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(ts.linalg.eigvalsh_tridiagonal(d, [0.0])[0], d)
    (tensor([1., 0.]),)
    """
    return eigh_tridiagonal(d, e, True, select, select_range, check_finite, tol, lapack_driver)


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
    low, a = low if lower else adjoint(low), ops.completed(a, lower=bool(lower), conjugate=True)
    turned = _scipy.solve_triangular(value_of(low), factors[1], lower=True) if kind == 3 else (
        np.conj(value_of(low).T) @ factors[1]
    )  # fmt: skip
    if kind == 1:
        inner = ops.by_triangle(low, adjoint(ops.by_triangle(low, a, True)), True)
    else:
        inner = adjoint(low) @ a @ low
    if values_only:
        return factors_recorded("eigh", inner, Kept((factors[0], turned)), (0,))
    w, v = factors_recorded("eigh", inner, Kept((factors[0], turned)), (0, 1))
    return w, low @ v if kind == 3 else ops.by_triangle(adjoint(low), v, False)


@derived
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


@derived
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
    a = given(a_band, check_finite, 2)
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
    found = factors_recorded("eigh", whole, Kept((values, vectors)), (0,) if eigvals_only else (0, 1))
    return found[0][kept] if eigvals_only else (found[0][kept], found[1][:, kept])


def _of_band(band: Any, lower: bool) -> TensorOrArray:
    """The Hermitian matrix of one half of its band, whose diagonal is taken as real."""
    width, n = shape_of(band)
    i, j = np.indices((n, n))
    row = i - j if lower else width - 1 + i - j
    half = band[np.clip(row, 0, width - 1), j]
    strict = half * ((row > 0) & (row < width) if lower else (row >= 0) & (row < width - 1))
    return strict + adjoint(strict) + np.real(half) * np.eye(n)


@derived
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


@derived
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
    a = square(a, check_finite)
    values = value_of(a), None if b is None else value_of(square(b, check_finite))
    w, *sides = _scipy.eig(*values, left=left, right=True)
    vr, vl = sides[-1], sides[0]
    narrow = w.real if like_of(a).dtype.kind != "c" and vr.dtype.kind != "c" else w
    of = a if b is None else np.linalg.solve(b, a)
    parts = factors_recorded("eig", of, Kept((narrow, vr)), (0, 1) if right else (0,))
    found = [parts[0] if narrow is w else parts[0] + np.zeros((), w.dtype)]
    if left:
        found += factors_recorded("eig", adjoint(a), Kept((np.conj(narrow), vl)), (1,))
    return (*found, *parts[1:]) if left or right else found[0]


@derived
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
