"""Products and systems with triangular matrices, and systems with LU factors.

OpenBLAS takes for a triangular system three times what its product of matrices takes for as many
multiplications. Here a few rows are eliminated one by one, and all others by such products, NumPy's by
address: as many right sides as rows, 100 or 300, take 25 and 440 us in place of 63 and 1,250. Where no
product is to be found NumPy's functions do all.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np

from tapegrad.kernels import abi, cache
from tapegrad.kernels.blas import LETTERS, numpys, numpys_products
from tapegrad.ops import buffers
from tapegrad.tape import pool

BLOCK = 16  # rows that are eliminated one by one; a power of two
COLUMNS = 512  # right sides treated at once, so that such rows stay in the processor's cache
# What the kernel solves: a triangular system; one with LU factors, or with their transpose.
LOWER, UPPER, FACTORS, TRANSPOSED = range(4)
SYSTEMS = '''"""Systems with a triangular matrix, or with LU factors, of right sides in C order."""
from llvmlite import ir
from numba import carray, cfunc, {dtype}, njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

BLOCK, COLUMNS = {BLOCK}, {COLUMNS}


@intrinsic
def call(typing, address, *kinds):
    """Call a Fortran function: arrays are given by where they begin, numbers by where they are stored."""
    def code(context, builder, signature, args):
        places = []
        for kind, value in zip(kinds, cgutils.unpack_tuple(builder, args[1])):
            if isinstance(kind, types.Array):
                place = arrayobj.make_array(kind)(context, builder, value).data
            else:
                place = cgutils.alloca_once_value(builder, value)
            places.append(builder.bitcast(place, cgutils.voidptr_t))
        places += [ir.Constant(cgutils.intp_t, 1)] * 2  # lengths of letters
        form = ir.FunctionType(ir.VoidType(), [place.type for place in places])
        builder.call(builder.inttoptr(args[0], form.as_pointer()), places)
        return context.get_dummy_value()

    return types.void(types.int64, types.StarArgTuple(kinds)), code


@njit(boundscheck=BOUNDS, error_model="numpy")
def eliminate(gemm, t, row, column, upper, unit, x):
    """Overwrite x by t**-1 x; of t a row, and a column, begin so many elements after the one before."""
    n, m = x.shape
    one = {dtype}(1)
    for done in range(0, n, BLOCK):
        if done:  # what is known is put into as many rows more as make the products large
            known = done & -done
            rows = min(known, n - done)
            first, source = (n - done - rows, n - done) if upper else (done, done - known)
            call(gemm, ord("N"), ord("N") if column == 1 else ord("T"), m, rows, known, -one, x[source:], m,
                 t[first * row + source * column :], max(row, column), one, x[first:], m)
        size = min(BLOCK, n - done)
        top = n - done - size if upper else done
        for left in range(0, m, COLUMNS):
            right = min(left + COLUMNS, m)
            for k in range(size):
                i = top + size - 1 - k if upper else top + k
                out, at, begin = x[i, left:right], i * row, i + 1 if upper else top
                fours = begin + k // 4 * 4
                for j in range(begin, fours, 4):
                    a, b = x[j, left:right], x[j + 1, left:right]
                    c, d = x[j + 2, left:right], x[j + 3, left:right]
                    p, q = t[at + j * column], t[at + (j + 1) * column]
                    r, s = t[at + (j + 2) * column], t[at + (j + 3) * column]
                    for l in range(len(out)):
                        out[l] = out[l] - p * a[l] - q * b[l] - r * c[l] - s * d[l]
                for j in range(fours, begin + k):
                    p, a = t[at + j * column], x[j, left:right]
                    for l in range(len(out)):
                        out[l] -= p * a[l]
                if not unit:
                    p = t[at + i * column]
                    for l in range(len(out)):
                        out[l] /= p


@njit(boundscheck=BOUNDS)
def exchange(x, i, j):
    for l in range(x.shape[1]):
        x[i, l], x[j, l] = x[j, l], x[i, l]


@cfunc("void(int64, CPointer({dtype}), int64, int64, int64, CPointer({integer}), int64, CPointer({dtype}),"
       "int64)", cache=CACHE, boundscheck=BOUNDS, error_model="numpy")
def kernel(gemm, matrix, row, column, what, pivots, n, right, m):
    t, x = carray(matrix, (n - 1) * (row + column) + 1), carray(right, (n, m))
    if what == {FACTORS}:
        for i in range(n):
            exchange(x, i, pivots[i] - 1)
    for upper in range(2):
        if what > {UPPER} or what == upper:
            unit = what == ({TRANSPOSED} if upper else {FACTORS})
            eliminate(gemm, t, row, column, upper == 1, unit, x)
    if what == {TRANSPOSED}:
        for i in range(n - 1, -1, -1):
            exchange(x, i, pivots[i] - 1)
'''
Kernel = Callable[..., None]


@functools.cache
def _kernel(char: str) -> tuple[Kernel, int] | None:
    """Return the compiled function for a dtype and where NumPy's product is; None where that is not found."""
    known, products = numpys(char, {}), numpys_products()
    if known is None or not products:
        return None
    names = {k: x for k, x in globals().items() if k.isupper()}
    text = SYSTEMS.format(dtype=np.dtype(char).name, integer=known[0].name, **names)
    word, place = ctypes.c_int64, ctypes.c_void_p
    form = ctypes.CFUNCTYPE(None, word, place, word, word, word, place, word, place, word)
    return form(cache.load("systems", text).kernel.address), products[char].gemm


def _solve(what: int, matrix: np.ndarray, x: np.ndarray, pivots: np.ndarray | None = None) -> None:
    """Overwrite right sides in C order, of one axis or two, by solutions."""
    kernel, product = _kernel(matrix.dtype.char)  # type: ignore[misc]
    row, column = (step // matrix.itemsize for step in matrix.strides)
    n, at = len(matrix), abi.location
    pointer = None if pivots is None else at(pivots)
    kernel(product, at(matrix), row, column, what, pointer, n, at(x), x.size // n)


def _laid(x: np.ndarray) -> np.ndarray:
    """Copy an array into memory of its own, in C order."""
    if x.nbytes >= buffers.LARGE and not x.flags.c_contiguous:
        return buffers.copied(x)
    found = pool.empty(x.shape, x.dtype)
    found[...] = x
    return found


def _in_one_piece(r: np.ndarray) -> np.ndarray:
    return r if r.flags.forc else np.ascontiguousarray(r)


def _fits(r: np.ndarray, x: np.ndarray) -> bool:
    """Whether there may be functions for a matrix and what is on its right."""
    alike = type(x) is np.ndarray and r.dtype == x.dtype and r.dtype.char in LETTERS
    return alike and x.size > 0 and x.shape[-2] == len(r)


def solve_triangle(r: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return r**-1 x of an upper triangular matrix, with zeros below, and a matrix or a stack of them."""
    if not _fits(r, x) or _kernel(r.dtype.char) is None:
        return np.linalg.solve(r, x)
    found, r = _laid(x), _in_one_piece(r)
    for part in found.reshape(-1, *x.shape[-2:]):
        _solve(UPPER, r, part)
    return found


def solve_factors(factors: np.ndarray, pivots: np.ndarray, x: np.ndarray, transposed: bool) -> None:
    """Overwrite x by a**-1 x, or by that of the transpose of a, whose LU factors and pivots these are."""
    _solve(TRANSPOSED if transposed else FACTORS, factors.T if transposed else factors, x, pivots)


def multiply_triangle(r: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return r x of an upper triangular matrix, with zeros below, and a matrix or a stack of them."""
    known = _trmm(r.dtype.char) if _fits(r, x) else None
    if known is None:
        return np.matmul(r, x)
    (integer, trmm), r = known, _in_one_piece(r)
    found, (rows, columns), at = _laid(x), x.shape[-2:], abi.location
    numbers, one = np.array([columns, rows], integer), np.ones(1, r.dtype)
    m, n = at(numbers), at(numbers[1:])
    # In Fortran's order each lies there transposed, so that r is on its right, and transposed too.
    upper, turned = (b"U", b"T") if r.flags.f_contiguous else (b"L", b"N")
    for part in found.reshape(-1, rows, columns):
        trmm(b"R", upper, turned, b"N", m, n, at(one), at(r), n, at(part), m, 1, 1, 1, 1)
    return found


@functools.cache
def _trmm(char: str) -> tuple[np.dtype, Callable[..., None]] | None:
    known = numpys(char, {"trmm": (11, 4)})
    return known and (known[0], known[1]["trmm"])
