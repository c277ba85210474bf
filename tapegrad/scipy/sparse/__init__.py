"""Sparse matrices whose values are Tensors, by the names of `scipy.sparse`; all its other names are its own.

Of arrays the functions are SciPy's. Products of SciPy's matrices, which are constants, with Tensors need
nothing of this: ``S @ x``, ``x @ S`` and ``S.dot(x)`` have derivatives by x.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as _scipy

from tapegrad.core.base import DType, ndim_of, shape_of, value_of
from tapegrad.errors import ShapeError, UnsupportedOpError
from tapegrad.numpy_api.tables import tensor_of
from tapegrad.ops import sparse as ops
from tapegrad.scipy.sparse import linalg
from tapegrad.scipy.sparse.blocks import block_array, block_diag, bmat, hstack, kron, tril, triu, vstack
from tapegrad.scipy.sparse.matrix import Matrix, SparseTensor, has_tensor, of_places
from tapegrad.tensor import Operand

_pattern: Any = ops.Pattern

__all__ = [
    "SparseTensor", "block_array", "block_diag", "bmat", "coo_array", "csc_array", "csr_array", "diags",
    "diags_array", "hstack", "kron", "linalg", "tril", "triu", "vstack",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return getattr(_scipy, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})


def _made(name: str, arg1: Any, shape: Any, dtype: DType, copy: bool) -> Any:
    if not has_tensor(arg1):
        return getattr(_scipy, name)(arg1, shape=shape, dtype=dtype, copy=copy)
    title = f"scipy.sparse.{name}"
    if isinstance(arg1, SparseTensor):
        return arg1
    if not isinstance(arg1, tuple) or len(arg1) not in (2, 3):
        raise UnsupportedOpError(
            f"{title} of a Tensor of all elements: which of them stand in the matrix is to be a constant; "
            "give (data, (row, col)) with shape="
        )
    data, *places = tensor_of(arg1[0]), *arg1[1:]
    if dtype is not None:
        data = data.astype(dtype)
    if has_tensor(places) and any(value_of(tensor_of(p)).dtype.kind not in "iu" for p in places):
        raise ShapeError(f"{title}: places are integers")
    if len(places) == 1:
        rows, columns = (np.array(value_of(tensor_of(p)), np.intp) for p in places[0])
    else:
        indices, indptr = (np.array(value_of(tensor_of(p)), np.intp) for p in places)
        lines = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        rows, columns = (indices, lines) if name == "csc_array" else (lines, indices)
    if shape is None:
        shape = tuple(int(np.max(p, initial=-1)) + 1 for p in (rows, columns))
        if len(places) == 2:
            whole = len(indptr) - 1
            shape = (shape[0], whole) if name == "csc_array" else (whole, shape[1])
    if ndim_of(data) != 1 or not shape_of(data) == rows.shape == columns.shape or len(shape) != 2:
        raise ShapeError(
            f"{title}: {shape_of(data)} values, rows and columns of shapes {rows.shape} and {columns.shape}, "
            f"and a matrix of shape {tuple(shape)} do not fit"
        )
    for k, places_of in enumerate((rows, columns)):
        if places_of.size and not 0 <= places_of.min() <= places_of.max() < shape[k]:
            raise ShapeError(f"{title}: places up to {places_of.max()} along an axis of {shape[k]} elements")
    if len(places) == 2 and name == "csr_array":
        return SparseTensor(data, _pattern(indices, indptr, tuple(shape)))
    return of_places(data, rows, columns, tuple(shape))


def csr_array(
    arg1: Matrix | Operand | tuple[Operand, ...],
    shape: Sequence[int] | None = None,
    dtype: DType = None,
    copy: bool = False,
) -> Any:
    """Sparse matrix of rows, as `scipy.sparse.csr_array`; of a Tensor as values a `SparseTensor`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> data = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> a = ts.sparse.csr_array((data, [0, 1, 1], [0, 2, 3]), shape=(2, 2))
    >>> tg.grad(np.sum(a @ np.array([3.0, 4.0])), data)
    (tensor([3., 4., 4.]),)
    """
    return _made("csr_array", arg1, shape, dtype, copy)


def csc_array(
    arg1: Matrix | Operand | tuple[Operand, ...],
    shape: Sequence[int] | None = None,
    dtype: DType = None,
    copy: bool = False,
) -> Any:
    """Sparse matrix of columns, as `scipy.sparse.csc_array`; of a Tensor as values a `SparseTensor`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> data = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> a = ts.sparse.csc_array((data, [0, 1, 1], [0, 2, 3]), shape=(2, 2))
    >>> tg.grad(np.sum(a @ np.array([3.0, 4.0])), data)
    (tensor([3., 3., 4.]),)
    """
    return _made("csc_array", arg1, shape, dtype, copy)


def coo_array(
    arg1: Matrix | Operand | tuple[Operand, ...],
    shape: Sequence[int] | None = None,
    dtype: DType = None,
    copy: bool = False,
) -> Any:
    """Sparse matrix of places, as `scipy.sparse.coo_array`; of a Tensor as values a `SparseTensor`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> data = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> a = ts.sparse.coo_array((data, ([0, 0], [1, 1])), shape=(1, 2))
    >>> a.toarray().detach()
    tensor([[0., 3.]])
    """
    return _made("coo_array", arg1, shape, dtype, copy)


def _of_diagonals(title: str, diagonals: Any, offsets: Any, shape: Any, dtype: DType) -> SparseTensor:
    if np.ndim(offsets) == 0:  # one diagonal, perhaps as it is
        whole = (
            isinstance(diagonals, (list, tuple)) and len(diagonals) and np.ndim(value_of(diagonals[0])) > 0
        )
        if not whole and np.ndim(value_of(tensor_of(diagonals))) < 2:
            diagonals = [diagonals]
        offsets = [offsets]
    diagonals = [np.atleast_1d(tensor_of(d)) for d in diagonals]
    offsets = [int(k) for k in offsets]
    if len(diagonals) != len(offsets):
        raise ShapeError(f"{title}: {len(diagonals)} diagonals and {len(offsets)} offsets")
    if shape is None:
        n = shape_of(diagonals[0])[0] + abs(offsets[0])
        shape = (n, n)
    values, rows, columns = [], [], []
    for d, k in zip(diagonals, offsets, strict=True):
        length = min(shape[0] + min(k, 0), shape[1] - max(k, 0))
        if length <= 0 or shape_of(d)[0] not in (1, length):
            raise ShapeError(
                f"{title}: {shape_of(d)[0]} elements at offset {k} of a matrix of shape {tuple(shape)}"
            )
        values.append(np.broadcast_to(d, (length,)))
        rows.append(np.arange(length) + max(-k, 0))
        columns.append(np.arange(length) + max(k, 0))
    data = np.concatenate(values)
    if dtype is not None:
        data = np.astype(data, dtype)
    return of_places(data, np.concatenate(rows), np.concatenate(columns), tuple(shape))


def diags_array(
    diagonals: Any, /, *, offsets: Operand = 0, shape: Sequence[int] | None = None,
    format: str | None = None, dtype: DType = None,
) -> Any:  # fmt: skip
    """Sparse matrix of diagonals, as `scipy.sparse.diags_array`; of Tensors a `SparseTensor`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> d = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.sparse.diags_array(d) @ np.array([3.0, 4.0])), d)
    (tensor([3., 4.]),)
    """
    if not has_tensor(diagonals):
        return _scipy.diags_array(diagonals, offsets=offsets, shape=shape, format=format, dtype=dtype)
    return _of_diagonals("scipy.sparse.diags_array", diagonals, offsets, shape, dtype)


def diags(
    diagonals: Any, offsets: Operand = 0, shape: Sequence[int] | None = None,
    format: str | None = None, dtype: DType = None,
) -> Any:  # fmt: skip
    """Sparse matrix of diagonals, as `scipy.sparse.diags`; of Tensors a `SparseTensor`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> d = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.sparse.diags([d, -1.0], [0, 1]) @ np.array([3.0, 4.0])), d)
    (tensor([3., 4.]),)
    """
    if not has_tensor(diagonals):
        return _scipy.diags(diagonals, offsets, shape, format, dtype)
    return _of_diagonals("scipy.sparse.diags", diagonals, offsets, shape, dtype)
