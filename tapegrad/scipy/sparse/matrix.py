"""A sparse matrix whose values are a Tensor and whose pattern is a constant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias, overload

import numpy as np
import scipy.sparse as _scipy

from tapegrad.core.base import ndim_of, shape_of, value_of
from tapegrad.errors import ShapeError, UnsupportedOpError
from tapegrad.numpy_api.tables import tensor_of
from tapegrad.ops import sparse as sparse_ops
from tapegrad.tensor import Operand, Tensor, TensorOrArray

ops: Any = sparse_ops
Matrix: TypeAlias = "SparseTensor | _scipy.sparray | _scipy.spmatrix"


class SparseTensor:
    """A sparse matrix of values with derivatives at places that are constants.

    Made by `csr_array`, `csc_array`, `coo_array`, `diags` and `diags_array` of Tensors. It has products
    with vectors, matrices and sparse matrices, and products by elements, sums and differences with sparse
    matrices, products and quotients with numbers, a transpose, parts ``a[rows, columns]``, sums along axes
    and ``toarray()``.

    Attributes
    ----------
    data : Tensor
        The values, row by row; those of the transpose column by column.
    shape : tuple of int
    dtype : numpy.dtype
    nnz : int
        How many values there are; those of the same place count each.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> data = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> a = ts.sparse.coo_array((data, ([0, 1], [1, 0])), shape=(2, 2))
    >>> tg.grad(np.sum(a @ np.array([3.0, 4.0])), data)
    (tensor([4., 3.]),)
    """

    __array_ufunc__ = None  # operators of arrays leave it to those here
    __array_priority__ = 2000.0
    format = "csr"
    ndim = 2

    def __init__(self, data: TensorOrArray, pattern: sparse_ops.Pattern) -> None:
        self.data, self._pattern = data, pattern

    def __repr__(self) -> str:
        return f"<sparse matrix of shape {self.shape} whose {self.nnz} values are a Tensor of {self.dtype}>"

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        rows, columns = self._pattern.shape
        return int(rows), int(columns)

    @property
    def dtype(self) -> np.dtype:
        """That of the values."""
        return value_of(self.data).dtype

    @property
    def nnz(self) -> int:
        """How many values there are."""
        return int(shape_of(self.data)[0])

    @property
    def T(self) -> SparseTensor:
        """The transpose."""
        return SparseTensor(self.data, self._pattern.T)

    def transpose(self) -> SparseTensor:
        """The transpose."""
        return self.T

    def conj(self) -> SparseTensor:
        """The complex conjugate."""
        return self.with_data(np.conj(self.data))

    def toarray(self) -> Tensor:
        """All elements, a Tensor; values of the same place are added."""
        return ops.toarray(self.data, pattern=self._pattern)

    todense = toarray

    def asformat(self, format: str | None = None, copy: bool = False) -> SparseTensor:
        """The matrix itself, which has one format."""
        return self

    def tocsr(self, copy: bool = False) -> SparseTensor:
        """The matrix itself, which has one format, as `tocsc` and `tocoo`."""
        return self

    tocsc = tocoo = tocsr

    def copy(self) -> SparseTensor:
        """The matrix itself, which nothing writes to."""
        return self

    def with_data(self, data: TensorOrArray) -> SparseTensor:
        """Return the matrix with other values at the same places."""
        return SparseTensor(data, self._pattern)

    def value(self) -> _scipy.sparray:
        """Return SciPy's matrix of the values, without derivatives."""
        return self._pattern.matrix(value_of(self.data))

    def sum(self, axis: int | None = None) -> TensorOrArray:
        """Sum of all elements, or along an axis."""
        if axis is None:
            return np.sum(self.data)
        if axis not in (0, 1, -1, -2):
            raise ShapeError(f"sum of a sparse matrix along axis {axis}: it has two")
        matrix = self.T if axis in (0, -2) else self
        return matrix @ np.ones(matrix.shape[1], self.dtype)

    def diagonal(self) -> TensorOrArray:
        """The elements whose row is their column."""
        rows, columns = self._pattern.places
        kept = np.flatnonzero(rows == columns)
        return _totals(self.data[kept], rows[kept], min(self.shape))

    def trace(self) -> TensorOrArray:
        """The sum of the diagonal."""
        return np.sum(self.diagonal())

    def mean(self, axis: int | None = None) -> TensorOrArray:
        """Mean of all elements, or along an axis."""
        count = self.shape[0] * self.shape[1] if axis is None else self.shape[axis]
        return self.sum(axis) / count

    def power(self, n: float) -> SparseTensor:
        """The matrix of powers of the elements, of a positive exponent."""
        if not value_of(n) > 0:
            _refuse(f"power({n})", "a positive exponent leaves zeros what they are")
        found = self.summed()
        return SparseTensor(found.data**n, found._pattern)

    def summed(self) -> SparseTensor:
        """The same matrix with one value at each place."""
        rows, columns = self._pattern.places
        return _summed(self.data, rows, columns, self.shape)

    # ------------------------------------------------------------ operators

    @overload
    def __matmul__(self, x: SparseTensor) -> SparseTensor: ...
    @overload
    def __matmul__(self, x: Operand) -> Tensor: ...
    @overload
    def __matmul__(self, x: Any) -> Any: ...  # SciPy's matrices, which have no types
    def __matmul__(self, x: Any) -> Any:
        if _is_matrix(x):
            return _product(self, x)
        x = tensor_of(x)
        if ndim_of(x) not in (1, 2) or shape_of(x)[0] != self.shape[1]:
            raise ShapeError(
                f"a sparse matrix of shape {self.shape} has no product with an array of shape {shape_of(x)}"
            )
        return ops.product(self.data, x, pattern=self._pattern)

    def __rmatmul__(self, x: Any) -> Any:
        if _scipy.issparse(x):
            return _product(x, self)
        x = tensor_of(x)
        if ndim_of(x) not in (1, 2) or shape_of(x)[-1] != self.shape[0]:
            raise ShapeError(
                f"an array of shape {shape_of(x)} has no product with a sparse matrix of shape {self.shape}"
            )
        return np.transpose(self.T @ np.transpose(x))

    def dot(self, other: Any) -> Any:
        """Product with a vector, a matrix or a number."""
        return self * other if np.ndim(value_of(other)) == 0 else self @ other

    def multiply(self, other: Any) -> SparseTensor:
        """Product by elements with a sparse matrix, an array that broadcasts to its shape, or a number."""
        if _is_matrix(other):
            return _product_by_elements(self, sparse_of(other))
        other = tensor_of(other)
        if ndim_of(other):
            try:
                other = np.broadcast_to(other, self.shape)[self._pattern.places]
            except ValueError as error:
                raise ShapeError(
                    f"a sparse matrix of shape {self.shape} has no product by elements with an array of "
                    f"shape {shape_of(other)}"
                ) from error
        return self.with_data(self.data * other)

    __mul__ = __rmul__ = multiply

    def __truediv__(self, number: Operand) -> SparseTensor:
        if _is_matrix(number) or np.ndim(value_of(number)) != 0:
            _refuse("/ with anything but a number", "multiply by the reciprocal")
        return self.with_data(self.data / number)

    def __getitem__(self, index: Any) -> Any:
        """A part, as SciPy takes it: by slices, numbers, arrays of places or masks."""
        return rearranged(lambda matrix: matrix[index], self)

    def __abs__(self) -> SparseTensor:
        found = self.summed()
        return SparseTensor(np.abs(found.data), found._pattern)

    def __neg__(self) -> SparseTensor:
        return self.with_data(-self.data)

    @overload
    def __add__(self, other: SparseTensor) -> SparseTensor: ...
    @overload
    def __add__(self, other: Operand) -> Tensor: ...
    @overload
    def __add__(self, other: Any) -> Any: ...  # SciPy's matrices, which have no types
    def __add__(self, other: Any) -> Any:
        if not _is_matrix(other):
            if np.ndim(value_of(other)) == 0:
                _refuse("+ with a number", "use toarray()")
            return self.toarray() + other
        other = sparse_of(other)
        if other.shape != self.shape:
            raise ShapeError(f"+ of sparse matrices of shapes {self.shape} and {other.shape}")
        mine, its = self._pattern.places, other._pattern.places
        rows, columns = (np.concatenate(pair) for pair in zip(mine, its, strict=True))
        return of_places(np.concatenate([self.data, other.data]), rows, columns, self.shape)

    __radd__ = __add__

    @overload
    def __sub__(self, other: SparseTensor) -> SparseTensor: ...
    @overload
    def __sub__(self, other: Operand) -> Tensor: ...
    @overload
    def __sub__(self, other: Any) -> Any: ...
    def __sub__(self, other: Any) -> Any:
        return self + (-other if _is_matrix(other) else np.negative(other))

    @overload
    def __rsub__(self, other: Operand) -> Tensor: ...
    @overload
    def __rsub__(self, other: Any) -> Any: ...
    def __rsub__(self, other: Any) -> Any:
        return -self + other


def _is_matrix(x: Matrix | Operand | None) -> bool:
    return isinstance(x, SparseTensor) or bool(_scipy.issparse(x))


def _refuse(what: str, instead: str) -> NoReturn:
    raise UnsupportedOpError(f"a sparse matrix whose values are a Tensor: {what} is not there; {instead}")


def _totals(data: TensorOrArray, groups: np.ndarray, count: int) -> TensorOrArray:
    """Sums of values by the group, of so many, that each belongs to."""
    pattern, _ = ops.Pattern.of_places(groups, np.arange(len(groups)), (count, len(groups)))
    return ops.product(np.ones(len(groups), value_of(data).dtype), data, pattern=pattern)


def _at_sorted(data: TensorOrArray, places: np.ndarray, shape: tuple[int, int]) -> SparseTensor:
    """The matrix of values at places that are counted row by row, and ascend."""
    pattern, _ = ops.Pattern.of_places(*np.divmod(places, max(shape[1], 1)), shape)
    return SparseTensor(data, pattern)


def _summed(
    data: TensorOrArray, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]
) -> SparseTensor:
    """The matrix of the sums of values at the same places."""
    places, at = np.unique(rows * shape[1] + columns, return_inverse=True)
    return _at_sorted(_totals(data, at, len(places)), places, shape)


def _product(left: Matrix, right: Matrix) -> SparseTensor:
    """The product of two sparse matrices: of values of one it is linear, by the other's as weights."""
    if len(left.shape) != 2 or len(right.shape) != 2 or left.shape[1] != right.shape[0]:
        raise ShapeError(f"sparse matrices of shapes {left.shape} and {right.shape} have no product")
    a, b = sparse_of(left), sparse_of(right)
    i, j, rows, columns = ops.meeting(a._pattern, b._pattern)
    shape = a.shape[0], b.shape[1]
    if isinstance(a.data, Tensor) and isinstance(b.data, Tensor):
        return _summed(a.data[i] * b.data[j], rows, columns, shape)
    places, at = np.unique(rows * shape[1] + columns, return_inverse=True)
    x, spots, weights = (a.data, i, b.data[j]) if isinstance(a.data, Tensor) else (b.data, j, a.data[i])
    pattern, order = ops.Pattern.of_places(at, spots, (len(places), shape_of(x)[0]))
    return _at_sorted(ops.product(weights[order], x, pattern=pattern), places, shape)


def _product_by_elements(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    if a.shape != b.shape:
        raise ShapeError(f"sparse matrices of shapes {a.shape} and {b.shape} have no product by elements")
    a, b = a.summed(), b.summed()
    mine, its = (rows * a.shape[1] + columns for rows, columns in (a._pattern.places, b._pattern.places))
    places, i, j = np.intersect1d(mine, its, assume_unique=True, return_indices=True)
    return _at_sorted(a.data[i] * b.data[j], places, a.shape)


def rearranged(function: Callable[..., Any], *matrices: Matrix) -> Any:
    """What a function of SciPy's makes of matrices by placing their elements elsewhere, or nowhere.

    It is called with matrices of numbers that say which value is where.
    """
    known = [sparse_of(matrix).summed() for matrix in matrices]
    starts = np.cumsum([1, *(matrix.nnz for matrix in known)])
    numbered = [
        matrix._pattern.matrix(np.arange(start, start + matrix.nnz, dtype=float))
        for matrix, start in zip(known, starts[:-1], strict=True)
    ]
    found, data = function(*numbered), np.concatenate([matrix.data for matrix in known])
    if not _scipy.issparse(found):
        return np.concatenate([np.zeros(1, value_of(data).dtype), data])[np.asarray(found).astype(int)[()]]
    if len(found.shape) != 2:
        _refuse("a single row or column", "ask for a matrix of one, as in a[[0]] or a[:, [0]]")
    found = found.tocoo()
    rows, columns = found.coords
    return of_places(data[found.data.astype(int) - 1], rows, columns, found.shape)


def sparse_of(matrix: Matrix | Operand) -> SparseTensor:
    """Return a sparse matrix, with values of SciPy's as constants."""
    return matrix if isinstance(matrix, SparseTensor) else SparseTensor(*ops.known(matrix))


def of_places(
    data: TensorOrArray, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]
) -> SparseTensor:
    """Return the matrix of values at places; those of the same place are added."""
    pattern, order = ops.Pattern.of_places(rows, columns, shape)
    return SparseTensor(data[order], pattern)


def has_tensor(x: Matrix | Operand | None) -> bool:
    """Whether an argument is or contains a Tensor or a matrix of one."""
    if isinstance(x, (list, tuple)):
        return any(map(has_tensor, x))
    return isinstance(x, (Tensor, SparseTensor))
