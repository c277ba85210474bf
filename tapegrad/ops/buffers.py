"""Arithmetic on large arrays into memory that is used again, for rules whose values are gone soon.

Fresh pages cost more than the arithmetic (`tapegrad.tape.pool`). On Tensors, and small arrays, NumPy itself.
"""

import numpy as np

from tapegrad.tape import pool

LARGE = pool.MIN_BYTES


def matmul(a, b):
    """Product of matrices, or of stacks of them; not of vectors."""
    if not type(a) is type(b) is np.ndarray or (a.nbytes < LARGE and b.nbytes < LARGE):
        return np.matmul(a, b)
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return np.matmul(a, b, out=pool.empty((*stack, a.shape[-2], b.shape[-1]), np.result_type(a, b)))


def negative(x):
    if type(x) is not np.ndarray or x.nbytes < LARGE:
        return -x
    return np.negative(x, out=pool.empty(x.shape, x.dtype))


def times(number, x):
    """Matrices that nothing else reads, each times a number, in their own memory."""
    number = number[..., None, None]
    if type(x) is not np.ndarray or hasattr(number, "_apply") or number.ndim > x.ndim:
        return number * x
    return np.multiply(x, number, out=x)


def _into_memory(ufunc):
    """The ufunc of two operands."""

    def call(a, b):
        if not type(a) is type(b) is np.ndarray:
            return ufunc(a, b)
        if a.nbytes < LARGE and b.nbytes < LARGE and (a.shape == b.shape or a.nbytes * b.size < LARGE):
            return ufunc(a, b)
        return ufunc(a, b, out=pool.empty(np.broadcast_shapes(a.shape, b.shape), np.result_type(a, b)))

    return call


add, subtract, multiply = map(_into_memory, (np.add, np.subtract, np.multiply))
