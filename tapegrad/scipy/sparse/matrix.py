"""A sparse matrix whose values are a Tensor and whose pattern is a constant."""

from __future__ import annotations

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
    with vectors and matrices, sums and differences with other sparse matrices, products and quotients with
    numbers, a transpose, sums along axes and ``toarray()``.

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
        return SparseTensor(np.conj(self.data), self._pattern)

    def toarray(self) -> Tensor:
        """All elements, a Tensor; values of the same place are added."""
        return ops.toarray(self.data, pattern=self._pattern)

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
        data, places = self.data[kept], rows[kept]
        pattern, order = ops.Pattern.of_places(places, np.zeros_like(places), (min(self.shape), 1))
        return ops.product(data[order], np.ones(1, self.dtype), pattern=pattern)

    # ------------------------------------------------------------ operators

    def __matmul__(self, x: Operand) -> Tensor:
        if isinstance(x, SparseTensor) or _scipy.issparse(x):
            _refuse("the product of two sparse matrices", "take toarray() of one of them")
        x = tensor_of(x)
        if ndim_of(x) not in (1, 2) or shape_of(x)[0] != self.shape[1]:
            raise ShapeError(
                f"a sparse matrix of shape {self.shape} has no product with an array of shape {shape_of(x)}"
            )
        return ops.product(self.data, x, pattern=self._pattern)

    def __rmatmul__(self, x: Operand) -> TensorOrArray:
        if _scipy.issparse(x):
            return self @ x  # refuses
        x = tensor_of(x)
        if ndim_of(x) not in (1, 2) or shape_of(x)[-1] != self.shape[0]:
            raise ShapeError(
                f"an array of shape {shape_of(x)} has no product with a sparse matrix of shape {self.shape}"
            )
        return np.transpose(self.T @ np.transpose(x))

    def dot(self, other: Any) -> Any:
        """Product with a vector, a matrix or a number."""
        return self * other if np.ndim(value_of(other)) == 0 else self @ other

    def __mul__(self, number: Operand) -> SparseTensor:
        if _is_matrix(number) or np.ndim(value_of(number)) != 0:
            _refuse("* with anything but a number", "use @ for products of matrices, or scale the values")
        return SparseTensor(self.data * number, self._pattern)

    __rmul__ = __mul__

    def __truediv__(self, number: Operand) -> SparseTensor:
        if _is_matrix(number) or np.ndim(value_of(number)) != 0:
            _refuse("/ with anything but a number", "scale the values before the matrix is made")
        return SparseTensor(self.data / number, self._pattern)

    def __neg__(self) -> SparseTensor:
        return SparseTensor(-self.data, self._pattern)

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
