"""Arithmetic on large arrays into memory that is used again, for rules whose values are gone soon.

Fresh pages cost more than the arithmetic (`tapegrad.tape.pool`). On Tensors, and small arrays, NumPy itself.
"""

from math import prod

import numpy as np

from tapegrad.tape import pool

LARGE = pool.MIN_BYTES
# Elements, and bytes, copied at once where they are gathered from lines of the cache that others share:
# so many of these stay there, also where they are a power of two apart, until they have been used up.
LINES, PART_BYTES = 128, 1 << 14
ndarray = np.ndarray


def matmul(a, b):
    """Product of matrices, or of stacks of them; not of vectors."""
    if not type(a) is type(b) is np.ndarray:
        return np.matmul(a, b)
    single = a.ndim == b.ndim == 2
    if a.nbytes < LARGE and b.nbytes < LARGE:
        return a.dot(b) if single else np.matmul(a, b)  # the former is quicker
    dtype, stack = a.dtype if a.dtype is b.dtype else np.result_type(a, b), a.shape[:-2]
    if not single and stack != b.shape[:-2]:
        stack = np.broadcast_shapes(stack, b.shape[:-2])
    return np.matmul(a, b, out=pool.empty((*stack, a.shape[-2], b.shape[-1]), dtype))


def product(a, b):
    """As `np.matmul`, of any operands."""
    large = type(a) is type(b) is np.ndarray and max(a.nbytes, b.nbytes) >= LARGE
    matrices = large and a.ndim > 1 and b.ndim > 1 and a.dtype is b.dtype and a.dtype.char in "fdFD"
    return matmul(a, b) if matrices and a.shape[-1] == b.shape[-2] else np.matmul(a, b)


def reshape(x, shape: tuple[int, ...]):
    """As `np.reshape` to a shape that fits; where a large array has to be copied, by `copied`."""
    if type(x) is not ndarray:
        return np.reshape(x, shape)
    if x.nbytes < LARGE or x.flags.c_contiguous:
        return x.reshape(shape)
    try:
        return x.reshape(shape, copy=False)
    except ValueError:
        return copied(x).reshape(shape)


def copied(x):
    """A copy of a large array in C order; NumPy's of a transpose reads lines of memory again and again."""
    out = pool.empty(x.shape, x.dtype)
    nearest = min(range(x.ndim), key=lambda axis: abs(x.strides[axis]) if x.shape[axis] > 1 else np.inf)
    behind = range(nearest + 1, x.ndim)
    axis = max(behind, key=lambda axis: x.shape[axis], default=0)
    n = x.shape[axis]
    count = max(1, LINES * n // prod(x.shape[nearest + 1 :]), PART_BYTES * n // x.nbytes)
    for k in range(0, n, count if behind else n):
        part = (*(slice(None),) * axis, slice(k, k + count if behind else n))
        out[part] = x[part]
    return out


def negative(x):
    """What nothing else reads, negated in its own memory."""
    return -x if type(x) is not np.ndarray else np.negative(x, out=x)


def outer(a, b):
    """All products of elements of two vectors."""
    if not type(a) is type(b) is np.ndarray or a.dtype is not b.dtype or a.size * b.nbytes < LARGE:
        return a[:, None] * b
    return np.multiply(a[:, None], b, out=pool.empty((a.size, b.size), a.dtype))


def times(number, x):
    """Matrices that nothing else reads, each times a number, in their own memory."""
    number = number[..., None, None]
    if type(x) is not np.ndarray or hasattr(number, "_apply") or number.ndim > x.ndim:
        return number * x
    return np.multiply(x, number, out=x)


def _into_memory(ufunc):
    """The ufunc of two operands."""

    def call(a, b):
        if not type(a) is type(b) is ndarray or a.nbytes * b.size < LARGE:
            return ufunc(a, b)
        alike = a.shape == b.shape
        if alike and a.nbytes < LARGE and b.nbytes < LARGE:
            return ufunc(a, b)
        shape = a.shape if alike else np.broadcast_shapes(a.shape, b.shape)
        return ufunc(a, b, out=pool.empty(shape, a.dtype if a.dtype is b.dtype else np.result_type(a, b)))

    return call


add, subtract, multiply = map(_into_memory, (np.add, np.subtract, np.multiply))
