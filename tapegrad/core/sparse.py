"""Products of Tensors with sparse matrices of SciPy's, by the operator."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tapegrad.core.base import Operand, ndim_of, shape_of
from tapegrad.errors import ShapeError


def is_sparse(x: Any) -> bool:
    """Whether something is one of SciPy's sparse matrices or arrays."""
    module = sys.modules.get("scipy.sparse")
    return module is not None and module.issparse(x)


def sparse_times(matrix: Any, x: Operand) -> Any:
    """Return ``matrix @ x``; NotImplemented where that is no sparse matrix."""
    if not is_sparse(matrix):
        return NotImplemented
    from tapegrad.ops import sparse  # which imports SciPy: it is there

    ops: Any = sparse

    if len(matrix.shape) != 2 or ndim_of(x) not in (1, 2) or shape_of(x)[0] != matrix.shape[1]:
        raise ShapeError(
            f"a sparse matrix of shape {matrix.shape} has no product with a Tensor of shape {shape_of(x)}"
        )
    data, pattern = ops.known(matrix)
    return ops.product(data, x, pattern=pattern)


def times_sparse(x: Any, matrix: Any) -> Any:
    """Return ``x @ matrix``; NotImplemented where that is no sparse matrix."""
    if not is_sparse(matrix):
        return NotImplemented
    if len(matrix.shape) != 2 or ndim_of(x) not in (1, 2) or shape_of(x)[-1] != matrix.shape[0]:
        raise ShapeError(
            f"a Tensor of shape {shape_of(x)} has no product with a sparse matrix of shape {matrix.shape}"
        )
    return np.transpose(sparse_times(matrix.T, np.transpose(x)))
