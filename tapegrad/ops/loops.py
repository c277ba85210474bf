"""Values that NumPy computes in many steps, by compiled loops with the same operations in the same order.

Its running sums are additions of which each waits for the one before: 2.2 ns an element. Here several sums
run side by side. Its `i0` is a polynomial by 90 calls of ufuncs.
"""

import ctypes
import functools
import math

import numpy as np

from tapegrad.kernels import abi, cache
from tapegrad.tape import pool

MANY = 1024  # elements of an array from which its running sums are computed here
BESIDE = 4  # sums at once, among which additions alternate
NEAR = 8  # up to where `i0` is one polynomial
RUNNING_SUMS = '''"""Running sums along the middle one of three axes."""
from numba import carray, cfunc, types


@cfunc("int64(CPointer({dtype}), int64, int64, int64, CPointer({dtype}))", cache=CACHE, boundscheck=BOUNDS)
def kernel(values, outer, n, inner, out):
    x, y, finite = carray(values, (outer, n, inner)), carray(out, (outer, n, inner)), True
    beside = outer - outer % {BESIDE} if inner < {BESIDE} else 0
    for o in range(0, beside, {BESIDE}):
        for i in range(inner):
            a, b, c, d = x[o, 0, i], x[o + 1, 0, i], x[o + 2, 0, i], x[o + 3, 0, i]
            y[o, 0, i], y[o + 1, 0, i], y[o + 2, 0, i], y[o + 3, 0, i] = a, b, c, d
            for k in range(1, n):
                a, b, c, d = a + x[o, k, i], b + x[o + 1, k, i], c + x[o + 2, k, i], d + x[o + 3, k, i]
                y[o, k, i], y[o + 1, k, i], y[o + 2, k, i], y[o + 3, k, i] = a, b, c, d
    for o in range(beside, outer):
        for i in range(inner):
            y[o, 0, i] = x[o, 0, i]
        for k in range(1, n):
            for i in range(inner):
                y[o, k, i] = y[o, k - 1, i] + x[o, k, i]
    for o in range(outer):
        for i in range(inner):
            finite = finite and y[o, n - 1, i] - y[o, n - 1, i] == 0
    return finite
'''
I0 = '''"""NumPy's polynomial for exp(-x) I0(x)."""
from numba import carray, cfunc, types


@cfunc("void(CPointer({dtype}), int64)", cache=CACHE, boundscheck=BOUNDS)
def kernel(numbers, n):
    values, real = carray(numbers, n), types.{dtype}
    for k in range(n):
        x = values[k] / real(2) - real(2)
        a, b = real({first!r}), real(0)
        {steps}
        values[k] = real(0.5) * (a - c)
'''


@functools.cache
def _running_sums(char):
    text = RUNNING_SUMS.format(dtype=np.dtype(char).name, BESIDE=BESIDE)
    form = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p)
    return form(cache.load("running_sums", text).kernel.address)


def running_sums(x, axis):
    """Return what `np.cumsum` does; where a sum is no finite number NumPy does it, and warns."""
    n, char = x.shape[axis], x.dtype.char
    if x.size < max(MANY, BESIDE * n) or char not in "fdFD" or not x.flags.c_contiguous:
        return np.cumsum(x, axis=axis)
    out, at, inner = pool.empty(x.shape, x.dtype), abi.location, math.prod(x.shape[axis:][1:])
    parts = 2 if char in "FD" else 1
    finite = _running_sums(char.lower())(at(x), x.size // (n * inner), n, inner * parts, at(out))
    return out if finite else np.cumsum(x, axis=axis)


@functools.cache
def _polynomial(char):
    """Return the compiled polynomial of `i0`; None where its values are not NumPy's."""
    try:
        from numpy.lib._function_base_impl import _i0A
    except ImportError:
        return None
    dtype, (first, *others) = np.dtype(char), map(float, _i0A)
    steps = "\n        ".join(f"a, b, c = x * a - b + real({number!r}), a, b" for number in others)
    text = I0.format(dtype=dtype.name, first=first, steps=steps)
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(cache.load("i0", text).kernel.address)
    x = np.linspace(0.0, NEAR, 1001, dtype=dtype)
    return kernel if np.array_equal(_by_polynomial(kernel, x), np.i0(x)) else None


def _by_polynomial(kernel, distance):
    out = np.array(distance)
    kernel(abi.location(out), out.size)
    out *= np.exp(distance)
    return out


def i0(x):
    """Return what `np.i0` does."""
    if x.dtype.char in "fd":
        distance = np.abs(x)
        if (distance <= NEAR).all() and (kernel := _polynomial(x.dtype.char)) is not None:
            return _by_polynomial(kernel, distance)
    return np.i0(x)
