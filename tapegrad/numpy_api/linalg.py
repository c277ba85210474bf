"""numpy.linalg on Tensors: factorisations, inverses, equations, determinants."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.core.base import DType, like_of, ndim_of, needs_derivative, shape_of, undisturbed, value_of
from tapegrad.core.conversion import astype
from tapegrad.core.functions import implements, of_values
from tapegrad.core.indices import getitem
from tapegrad.core.notes import is_compared
from tapegrad.core.operators import constant_of, matmul
from tapegrad.core.saved_values import save_arrays
from tapegrad.errors import ShapeError, UnsupportedOpError
from tapegrad.numpy_api import contractions
from tapegrad.numpy_api.indexing import where
from tapegrad.numpy_api.products import apply_keeping_factors, contract, dot, solve
from tapegrad.numpy_api.reductions import sum_
from tapegrad.numpy_api.shapes import matrix_transpose, reshape, transpose
from tapegrad.numpy_api.tables import axis_of, into, plainly, tensor_of
from tapegrad.ops import REGISTRY, lapack
from tapegrad.ops.lapack import LU, Found, Kept
from tapegrad.tensor import Operand, Out, TensorOrArray, apply, record, wrap, wrap_without_history

LAPACK: Any = np.linalg  # whose stubs know literal arguments only
_ONE = np.eye(1)
EigResult, EighResult = type(np.linalg.eig(_ONE)), type(np.linalg.eigh(_ONE))
QRResult, SVDResult = type(np.linalg.qr(_ONE)), type(np.linalg.svd(_ONE))
SlogdetResult = type(np.linalg.slogdet(_ONE))


def recorded(x: Operand) -> bool:
    """Whether what is computed from an argument has a derivative here and now."""
    return needs_derivative(x)


class _NoMatrices(ShapeError, np.linalg.LinAlgError):
    """Shapes that NumPy refuses with its own class of errors."""


_NoMatrices.__name__ = _NoMatrices.__qualname__ = ShapeError.__name__  # as tracebacks show it
_NoMatrices.__module__ = ShapeError.__module__


def matrices(x: Operand, what: str, square: bool = False) -> TensorOrArray:
    """Return an argument as a Tensor or array of matrices."""
    x = tensor_of(x)
    shape = shape_of(x)
    if len(shape) < 2:
        raise _NoMatrices(f"{what} needs matrices, found an array of shape {shape}")
    if square and shape[-1] != shape[-2]:
        raise _NoMatrices(f"{what} needs square matrices, found shape {shape}")
    return x


def adjoint(x: Operand) -> Any:
    """Conjugate transpose of matrices."""
    return np.conj(matrix_transpose(x))


def _parts(name: str, a: Operand, first: Kept, parts: Sequence[int]) -> list[Any]:
    """Records of the factors of a matrix that share all of them."""
    op, operands = REGISTRY[name], (a,)
    kept: list[Kept] = []
    found = []
    for k in parts:
        kept.append(kept[0].twin() if kept else first)
        found.append(apply(op, operands, {"factors": kept[-1], "part": k}))
    save_arrays(found, kept)
    return found


def _wrapped(kind: Any, parts: Any, a: Operand) -> Any:
    return kind(
        *(
            wrap_without_history(x[()] if isinstance(x, np.ndarray) and x.ndim == 0 else x, (a,))
            for x in parts
        )
    )


# ---------------------------------------------------------------- factorisations


@implements(np.linalg.cholesky)
def cholesky(a: Operand, /, *, upper: bool = False) -> TensorOrArray:
    """Triangular factor of Hermitian positive definite matrices, of which one triangle is read."""
    return apply(REGISTRY["cholesky"], (_floating(matrices(a, "cholesky", True)),), {"upper": bool(upper)})


def _floating(x: Operand) -> Any:
    """Integers as NumPy's linear algebra takes them: as float64."""
    if like_of(x).dtype.kind in "fc":
        return x
    return astype(x, np.dtype(float))


@implements(np.linalg.eigh)
@undisturbed
def eigh(a: Operand, UPLO: str = "L") -> Any:
    """Eigenvalues and eigenvectors of Hermitian matrices, of which one triangle is read."""
    a = matrices(a, "eigh", True)
    return EighResult(*_parts("eigh", a, Found(functools.partial(lapack.eigh, uplo=UPLO)), (0, 1)))


@implements(np.linalg.eigvalsh)
@undisturbed
def eigvalsh(a: Operand, UPLO: str = "L") -> TensorOrArray:
    """Eigenvalues of Hermitian matrices, of which one triangle is read."""
    a = matrices(a, "eigvalsh", True)
    if not recorded(a):
        return plainly(np.linalg.eigvalsh, (a, UPLO), {})
    return _parts("eigh", a, Found(functools.partial(lapack.eigh, uplo=UPLO)), (0,))[0]


@implements(np.linalg.eig)
@undisturbed
def eig(a: Operand) -> Any:
    """Eigenvalues and eigenvectors of square matrices; complex where an eigenvalue is."""
    a = matrices(a, "eig", True)
    return EigResult(*_parts("eig", a, Found(np.linalg.eig, False), (0, 1)))


@implements(np.linalg.eigvals)
@undisturbed
def eigvals(a: Operand) -> TensorOrArray:
    """Eigenvalues of square matrices; complex where one is."""
    a = matrices(a, "eigvals", True)
    if not recorded(a):
        return plainly(np.linalg.eigvals, (a,), {})
    return _parts("eig", a, Found(np.linalg.eig, False), (0,))[0]


@implements(np.linalg.svd)
@undisturbed
def svd(
    a: TensorOrArray, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> Any:
    """Singular value decomposition."""
    a = matrices(a, "svd", hermitian)
    if not recorded(a):
        found = LAPACK.svd(value_of(a), full_matrices, compute_uv, hermitian)
        return _wrapped(SVDResult, found, a) if compute_uv else wrap_without_history(found, (a,))
    if hermitian:
        return _svd_of_hermitian(a, compute_uv)
    factors = Found(functools.partial(np.linalg.svd, full_matrices=bool(full_matrices and compute_uv)))
    if not compute_uv:
        return _parts("svd", a, factors, (1,))[0]
    return SVDResult(*_parts("svd", a, factors, (0, 1, 2)))


def _svd_of_hermitian(a: Operand, compute_uv: bool) -> Any:
    """Singular values are absolute eigenvalues, largest first."""
    w, v = eigh(a)
    values = value_of(w)
    order = np.argsort(np.abs(values), axis=-1)[..., ::-1]
    rows = np.ogrid[tuple(slice(n) for n in values.shape)][:-1]
    w = getitem(w, (*rows, order))
    s = np.abs(w)
    if not compute_uv:
        return s
    v = matrix_transpose(getitem(matrix_transpose(v), (*rows, order)))
    signs = np.sign(value_of(w))
    return SVDResult(v, s, adjoint(v * signs[..., None, :]))


@implements(np.linalg.svdvals)
def svdvals(x: Operand, /) -> TensorOrArray:
    """Singular values, largest first."""
    return svd(x, compute_uv=False)


@implements(np.linalg.qr)
@undisturbed
def qr(a: TensorOrArray, mode: str = "reduced") -> Any:
    """Orthonormal times upper triangular factor."""
    a = matrices(a, "qr")
    if not recorded(a):
        found = LAPACK.qr(value_of(a), mode)
        kind = QRResult if mode != "raw" else _pair
        return wrap_without_history(found, (a,)) if mode == "r" else _wrapped(kind, found, a)
    if mode not in ("reduced", "complete", "r"):
        if mode == "raw":
            raise UnsupportedOpError(
                "qr: mode 'raw' gives Householder vectors, which have no derivative here; use 'reduced'"
            )
        raise ValueError(f"qr: mode {reprlib.repr(mode)} is none of 'reduced', 'complete', 'r', 'raw'")
    factors = Found(functools.partial(lapack.qr, mode="complete" if mode == "complete" else "reduced"))
    if mode == "r":
        return _parts("qr", a, factors, (1,))[0]
    return QRResult(*_parts("qr", a, factors, (0, 1)))


def _pair(*parts: Any) -> tuple[Any, ...]:
    return parts


# ---------------------------------------------------------------- determinants


@implements(np.linalg.det)
def det(a: Operand) -> TensorOrArray:
    """Determinant."""
    return apply_keeping_factors("det", _floating(matrices(a, "det", True)))


@implements(np.linalg.slogdet, by_shapes=True)
@undisturbed
def slogdet(a: Operand) -> Any:
    """Sign and natural logarithm of the absolute value of the determinant."""
    a = matrices(a, "slogdet", True)
    if not recorded(a):
        return _wrapped(SlogdetResult, np.linalg.slogdet(value_of(a)), a)
    like = like_of(a)
    lu, is_complex = LU.of(like), like.dtype.kind == "c"
    attrs: dict[str, Any] = {}
    if lu is None or is_complex:
        attrs["factors"] = Found(np.linalg.slogdet)
    kept: list[Kept] = []
    found = []
    for k in (0, 1) if is_complex else (1,):
        if lu is not None:
            kept.append(lu.twin() if kept else lu)
            attrs["lu"] = kept[-1]
        found.append(apply(REGISTRY["slogdet"], (a,), {**attrs, "part": k}))
    if lu is not None:
        save_arrays(found, kept)
    return SlogdetResult(*(found if is_complex else (_constant_sign(a, attrs), *found)))


def _constant_sign(a: Operand, attrs: dict[str, Any]) -> Any:
    """The sign of a real determinant, as what has found its logarithm tells where nothing is compared."""
    if is_compared():
        return constant_of(_sign, a)
    value = value_of(a)
    known = attrs["lu"].slogdet(value) if "lu" in attrs else attrs["factors"].arrays_of(value)
    return wrap(known[0])


@of_values
def _sign(a: np.ndarray) -> Any:
    return np.linalg.slogdet(a)[0]


# ---------------------------------------------------------------- inverses and equations


@implements(np.linalg.inv)
def inv(a: Operand) -> TensorOrArray:
    """Inverse."""
    return apply(REGISTRY["inv"], (_floating(matrices(a, "inv", True)),))


@implements(np.linalg.pinv)
def pinv(
    a: Operand, rcond: Operand | None = None, hermitian: bool = False, *, rtol: Any = np._NoValue
) -> TensorOrArray:
    """Pseudoinverse; singular values up to a fraction of the largest count as 0."""
    cut = {} if rcond is None else {"rcond": value_of(rcond)}
    if rtol is not np._NoValue:
        cut["rtol"] = value_of(rtol)
    attrs = {"hermitian": bool(hermitian), **cut}
    return apply(REGISTRY["pinv"], (_floating(matrices(a, "pinv", hermitian)),), attrs)


@implements(np.linalg.lstsq)
@undisturbed
def lstsq(a: Any, b: Any, rcond: float | None = None) -> Any:
    """Least squares solution of least length, sums of squared residuals, rank, singular values."""
    a, b = matrices(a, "lstsq"), tensor_of(b)
    x, y = value_of(a), value_of(b)
    rows, columns = np.shape(x)[-2:]
    if np.ndim(x) != 2 or np.ndim(y) not in (1, 2) or len(y) != rows:
        raise ShapeError(
            "lstsq takes one matrix and right sides of as many rows, found shapes "
            f"{x.shape} and {np.shape(y)}"
        )
    kind = np.result_type(*(v if v.dtype.kind in "fc" else np.float64 for v in (x, y)))
    a, b = np.astype(a, kind, copy=False), np.astype(b, kind, copy=False)
    solution, empty, rank, s = np.linalg.lstsq(x, y, rcond=rcond)
    if x.size == 0:  # nothing to solve
        values = svd(a, compute_uv=False) if recorded(a) else wrap_without_history(s, (a,))
        return _product(pinv(a), b), _residuals(a, b, 0) if columns == 0 < rows else wrap(empty), rank, values
    eps = np.finfo(s.dtype).eps
    cut = eps * max(rows, columns) if rcond is None else eps if rcond < 0 else rcond
    kept: list[Kept] = [Found(functools.partial(np.linalg.svd, full_matrices=False))]
    attrs = {"solution": solution, "factors": kept[0], "cut": cut, "rank": int(rank)}
    found = [apply(REGISTRY["lstsq"], (a, b), attrs)]
    if recorded(a):
        kept.append(kept[0].twin())
        found.append(record(REGISTRY["svd"], s, (a,), {"factors": kept[1], "part": 1}))
    save_arrays(found, kept)
    left = _residuals(a, b, found[0]) if rank == columns < rows else wrap(empty)
    return found[0], left, rank, found[1] if recorded(a) else wrap_without_history(s, (a,))


def _product(a: Operand, b: Operand) -> TensorOrArray:
    return matmul(a, b)


def _residuals(a: TensorOrArray, b: TensorOrArray, solution: Any) -> TensorOrArray:
    rest = b - matmul(a, solution) if ndim_of(solution) else b
    rest = np.abs(rest) if np.iscomplexobj(like_of(rest)) else rest
    return sum_(rest * rest, axis=0, keepdims=ndim_of(rest) == 1)


@implements(np.linalg.matrix_power)
def matrix_power(a: Operand, n: int) -> Any:
    """Power of square matrices by an integer; a negative one inverts them."""
    a = matrices(a, "matrix_power", True)
    try:
        n = operator.index(n)
    except TypeError as error:
        raise TypeError(f"matrix_power: the exponent is an integer, found {reprlib.repr(n)}") from error
    if n == 0:  # constant, but with a history: its derivative is 0
        one = np.broadcast_to(np.eye(shape_of(a)[-1], dtype=like_of(a).dtype), like_of(a).shape)
        return where(False, a, one)
    if n < 0:
        a, n = inv(a), -n
    found = None
    while n:
        if n & 1:
            found = a if found is None else matmul(found, a)
        n >>= 1
        if n:
            a = matmul(a, a)
    return found


@implements(np.linalg.multi_dot, by_shapes=True)
def multi_dot(arrays: Sequence[TensorOrArray], *, out: Out = None) -> TensorOrArray:
    """Product of matrices in the order that takes the fewest multiplications; the ends may be vectors."""
    if out is not None:
        return into(np.linalg.multi_dot, out, arrays)
    members = [tensor_of(x) for x in arrays]
    if len(members) < 2:
        raise ValueError(f"multi_dot takes at least two arrays, found {len(members)}")
    shapes = [shape_of(x) for x in members]
    ends = len(shapes[0]) == 1, len(shapes[-1]) == 1
    if ends[0]:
        members[0] = reshape(members[0], (1, -1))
    if ends[1]:
        members[-1] = reshape(members[-1], (-1, 1))
    shapes = [shape_of(x) for x in members]
    if any(len(s) != 2 for s in shapes) or any(a[1] != b[0] for a, b in itertools.pairwise(shapes)):
        raise ShapeError(f"multi_dot: shapes {', '.join(map(str, shapes))} do not form a product")
    sizes = [shapes[0][0], *(s[1] for s in shapes)]
    best: dict[tuple[int, int], tuple[int, int]] = {(k, k): (0, k) for k in range(len(members))}
    for width in range(1, len(members)):
        for i in range(len(members) - width):
            j = i + width
            best[i, j] = min(
                (best[i, k][0] + best[k + 1, j][0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            )

    found = _chain(members, best, 0, len(members) - 1)
    kept = tuple(n for n, end in zip(shape_of(found), ends, strict=True) if not end)
    return reshape(found, kept) if any(ends) else found


def _chain(
    members: list[TensorOrArray], best: dict[tuple[int, int], tuple[int, int]], i: int, j: int
) -> TensorOrArray:
    """The product of members i to j, split where that is best; a function of its own would be a cycle."""
    k = best[i, j][1]
    return members[i] if i == j else dot(_chain(members, best, i, k), _chain(members, best, k + 1, j))


@implements(np.linalg.tensorinv)
def tensorinv(a: Operand, ind: int = 2) -> TensorOrArray:
    """Inverse of an array as a map between its last and its first `ind` axes."""
    a = tensor_of(a)
    if ind <= 0:
        raise ValueError(f"tensorinv: ind is a positive number of axes, found {ind}")
    shape = shape_of(a)
    if not shape:
        raise ShapeError("tensorinv takes an array of at least one axis, found a number")
    size = math.prod(shape[ind:])
    _same_size(shape, size, math.prod(shape[:ind]), "tensorinv")
    return reshape(inv(reshape(a, (size, size))), shape[ind:] + shape[:ind])


@implements(np.linalg.tensorsolve)
def tensorsolve(a: TensorOrArray | float, b: Operand, axes: Any = None) -> TensorOrArray:
    """Solution of equations whose unknowns and right side have several axes."""
    a, b = tensor_of(a), tensor_of(b)
    if axes is not None:
        moved = [axis_of(a, k, "tensorsolve") for k in axes]
        a = transpose(a, [k for k in range(ndim_of(a)) if k not in moved] + moved)
    shape = shape_of(a)
    unknowns = shape[ndim_of(b) :]
    size = math.prod(unknowns)
    _same_size(shape, size, int(np.size(like_of(b))), "tensorsolve")
    if size * size != np.size(like_of(a)):
        raise ShapeError(f"tensorsolve: a of shape {shape} is no square map to {shape_of(b)}")
    return reshape(solve(reshape(a, (size, size)), reshape(b, (size,))), unknowns)


def _same_size(shape: tuple[int, ...], size: int, other: int, what: str) -> None:
    if size != other:
        raise ShapeError(f"{what}: an array of shape {shape} is no square map: {other} by {size} elements")


@implements(np.linalg.matrix_rank)
def matrix_rank(
    A: Operand, tol: Operand | None = None, hermitian: bool = False, *, rtol: Operand | None = None
) -> TensorOrArray:
    """Number of singular values that are not 0: a plain value."""
    return plainly(np.linalg.matrix_rank, (A, tol, hermitian), {"rtol": rtol})


# ---------------------------------------------------------------- diagonals and products


@implements(np.linalg.diagonal, by_shapes=True)
def diagonal(x: Operand, /, *, offset: int = 0) -> TensorOrArray:
    """Diagonals of matrices; a view, as that of `numpy.diagonal`."""
    return np.diagonal(matrices(x, "diagonal"), offset, -2, -1)


@implements(np.linalg.trace, by_shapes=True)
def trace(x: Operand, /, *, offset: int = 0, dtype: DType = None) -> TensorOrArray:
    """Sums of diagonals of matrices."""
    return sum_(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def _linalg_matmul(x1: Operand, x2: Operand, /) -> TensorOrArray:
    return matmul(x1, x2)


implements(np.linalg.matmul, by_shapes=True)(_linalg_matmul)


@implements(np.linalg.outer, by_shapes=True)
def outer(x1: Operand, x2: Operand, /) -> TensorOrArray:
    """All products of elements of two vectors."""
    x1, x2 = tensor_of(x1), tensor_of(x2)
    if ndim_of(x1) != 1 or ndim_of(x2) != 1:
        shapes = shape_of(x1), shape_of(x2)
        raise ShapeError(f"linalg.outer takes two vectors, found shapes {shapes[0]} and {shapes[1]}")
    return reshape(x1, (-1, 1)) * reshape(x2, (1, -1))


@implements(np.linalg.vecdot, by_shapes=True)
def vecdot(x1: Operand, x2: Operand, /, *, axis: int = -1) -> TensorOrArray:
    """Products along an axis of both, summed; the first is conjugated."""
    x1, x2 = tensor_of(x1), tensor_of(x2)
    n = [shape_of(x)[axis_of(x, axis, "vecdot")] for x in (x1, x2)]
    if n[0] != n[1]:
        raise ShapeError(f"vecdot along axis {axis}: {n[0]} and {n[1]} elements")
    return contractions.vecdot(x1, x2, axis)


@implements(np.linalg.cross, by_shapes=True)
def cross(x1: Operand, x2: Operand, /, *, axis: int = -1) -> TensorOrArray:
    """Vector product in three dimensions."""
    x1, x2 = tensor_of(x1), tensor_of(x2)
    for x in (x1, x2):
        if shape_of(x)[axis_of(x, axis, "cross")] != 3:
            raise ShapeError(
                f"linalg.cross: axis {axis} has 3 elements, found shapes {shape_of(x1)} and {shape_of(x2)}"
            )
    return np.cross(x1, x2, axis=axis)


@implements(np.linalg.tensordot, by_shapes=True)
def tensordot(x1: Operand, x2: Operand, /, *, axes: Any = 2) -> TensorOrArray:
    """Sum of products over axes of both: the last and the first `axes`, or those named."""
    x1, x2 = tensor_of(x1), tensor_of(x2)
    shapes = shape_of(x1), shape_of(x2)
    if np.ndim(axes) == 0:
        axes = range(len(shapes[0]) - axes, len(shapes[0])), range(axes)
    first, second = (
        [axis_of(x, k, "tensordot") for k in ([names] if np.ndim(names) == 0 else names)]
        for x, names in zip((x1, x2), axes, strict=True)
    )
    sizes = [shapes[0][k] for k in first], [shapes[1][k] for k in second]
    if sizes[0] != sizes[1]:
        raise ShapeError(f"tensordot of shapes {shapes[0]} and {shapes[1]} over axes {first} and {second}")
    return contract(x1, x2, (first, second))
