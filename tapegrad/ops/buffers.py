"""Arithmetic on large arrays into memory that is used again, for rules whose values are gone soon.

Fresh pages cost more than the arithmetic (`tapegrad.tape.pool`). On Tensors, and small arrays, NumPy itself.
"""

import numpy as np

from tapegrad.tape import pool


def matmul(a, b):
    """Product of matrices, or of stacks of them."""
    if _large(a, b) and a.ndim > 1 and b.ndim > 1:
        shape = a.shape[-2], b.shape[-1]
        if a.ndim > 2 or b.ndim > 2:
            shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *shape)
        return np.matmul(a, b, out=pool.empty(shape, np.result_type(a, b)))
    return np.matmul(a, b)


def negative(x):
    if _large(x, x):
        return np.negative(x, out=pool.empty(x.shape, x.dtype))
    return -x


def add(a, b):
    return _broadcast(np.add, a, b)


def subtract(a, b):
    return _broadcast(np.subtract, a, b)


def multiply(a, b):
    return _broadcast(np.multiply, a, b)


def _broadcast(ufunc, a, b):
    if _large(a, b):
        shape = a.shape if a.shape == b.shape else np.broadcast_shapes(a.shape, b.shape)
        return ufunc(a, b, out=pool.empty(shape, np.result_type(a, b)))
    return ufunc(a, b)


def _large(a, b):
    return type(a) is type(b) is np.ndarray and max(a.nbytes, b.nbytes) >= pool.MIN_BYTES
