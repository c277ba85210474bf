"""Systems with triangular matrices and LU factors, inverses by these, and cotangents through factorisations.

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

BLOCK = 8  # rows that are eliminated one by one; a power of two
AT_ONCE = 1_000_000  # multiplications of a product that OpenBLAS computes without copies
FEWEST = 16  # rows that are worth such a product of their own
ROWS = 64  # of the upper triangle of a product, that are computed at once
COLUMNS = 512  # right sides treated at once, so that such rows stay in the processor's cache
# What the kernel solves: a triangular system; one with LU factors, with their transpose, and that with the
# identity on its right.
LOWER, UPPER, FACTORS, TRANSPOSED, INVERSE = range(5)
ELIMINATION = '''"""Elimination of unknowns of triangular systems, by products of matrices."""
import numpy as np
from llvmlite import ir
from numba import carray, cfunc, {dtype}, njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

BLOCK, COLUMNS, AT_ONCE, FEWEST, ROWS, LINES = {BLOCK}, {COLUMNS}, {AT_ONCE}, {FEWEST}, {ROWS}, {LINES}
TINY = 4 * np.finfo(np.{dtype}).tiny


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


@njit(boundscheck=BOUNDS, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def eliminate(gemm, t, row, column, upper, unit, identity, x, begin, end):
    """Overwrite some columns of x by t**-1 x; of t a row, and a column, begin so many elements after another.

    If x is the `identity` and t a lower triangle, nothing is computed of the zeros above.
    """
    n, one = len(x), {dtype}(1)
    for done in range(0, n, BLOCK):
        if done:  # what is known is put into as many rows more as make the products large
            known = done & -done
            rows = min(known, n - done)
            first, source = (n - done - rows, n - done) if upper else (done, done - known)
            stop = done if identity else end
            call(gemm, ord("N"), ord("N") if column == 1 else ord("T"), stop - begin, rows, known, -one,
                 x[source:, begin:], x.shape[1], t[first * row + source * column :], max(row, column), one,
                 x[first:, begin:], x.shape[1])
        size = min(BLOCK, n - done)
        top = n - done - size if upper else done
        stop = top + size if identity else end
        for left in range(begin, stop, COLUMNS):
            right = min(left + COLUMNS, stop)
            for k in range(size):
                i = top + size - 1 - k if upper else top + k
                out, at, near = x[i, left:right], i * row, i + 1 if upper else top
                fours = near + k // 4 * 4
                for j in range(near, fours, 4):
                    a, b = x[j, left:right], x[j + 1, left:right]
                    c, d = x[j + 2, left:right], x[j + 3, left:right]
                    p, q = t[at + j * column], t[at + (j + 1) * column]
                    r, s = t[at + (j + 2) * column], t[at + (j + 3) * column]
                    for l in range(len(out)):
                        out[l] = out[l] - p * a[l] - q * b[l] - r * c[l] - s * d[l]
                for j in range(fours, near + k):
                    p, a = t[at + j * column], x[j, left:right]
                    for l in range(len(out)):
                        out[l] -= p * a[l]
                if not unit:
                    p = t[at + i * column]
                    if TINY <= abs(p) <= 1 / TINY:  # else its reciprocal is none, or has fewer digits
                        p = one / p
                        for l in range(len(out)):
                            out[l] *= p
                    else:
                        for l in range(len(out)):
                            out[l] /= p


'''
SYSTEMS = """@njit(boundscheck=BOUNDS, no_cpython_wrapper=True, no_cfunc_wrapper=True)
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
    if what == {INVERSE}:
        x[:] = 0
        for i in range(n):
            x[i, i] = 1
    for upper in range(2):
        if what > {UPPER} or what == upper:
            unit, identity = (what == {FACTORS}) != (upper == 1), what == {INVERSE} and not upper
            eliminate(gemm, t, row, column, upper == 1, unit and what > {UPPER}, identity, x, 0, m)
    if what >= {TRANSPOSED}:
        for i in range(n - 1, -1, -1):
            exchange(x, i, pivots[i] - 1)
"""
CHOLESKY = '''@njit(boundscheck=BOUNDS, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def block(u, x, top, end):
    """The same of a few rows, one by one."""
    for j in range(end - 1, top - 1, -1):
        d, moved = u[j, j].real, x[j, j].real
        for k in range(j + 1, end):
            x[j, k] /= d
            moved -= (x[j, k] * np.conj(u[j, k])).real
        for i in range(top, j):
            total = u[i, j] * (moved / d)
            for k in range(j + 1, end):
                total += np.conj(x[j, k]) * u[i, k]
                x[i, k] -= x[j, k] * u[i, j]
            x[i, j] -= total
        x[j, j] = moved / (2 * d)
    mirror(x, top, end, top, end)


@njit(boundscheck=BOUNDS, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def mirror(x, top, end, left, right):
    """Halve a part of the upper triangle, and give the lower one the other halves."""
    for i in range(top, end):
        for j in range(max(left, i + 1), right):
            x[i, j] *= 0.5
    for j in range(left, right):
        for i in range(top, min(end, j)):
            x[j, i] = np.conj(x[i, j])


@njit(boundscheck=BOUNDS, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def reverse(gemm, u, x):
    """Overwrite an upper triangle, the cotangent of u, by that of u**H u: a Hermitian matrix."""
    n, one, flat = len(u), {dtype}(1), u.reshape(-1)
    for top in range((n - 1) // BLOCK * BLOCK, -1, -BLOCK):
        block(u, x, top, min(top + BLOCK, n))
        if top:  # rows from here to `end` are done; of as many before, what lies to their right
            size = top & -top
            first, end = top - size, min(top + size, n)
            side, corner = x[first:, top:], x[first:, first:]
            call(gemm, ord("N"), ord("N"), end - top, size, end - top, -one - one, x[top:, top:], n,
                 u[first:, top:], n, one, side, n)
            eliminate(gemm, flat[first * (n + 1) :], n, 1, True, False, False, x[first:top], top, end)
            call(gemm, ord("C"), ord("N"), size, size, end - top, -one, side, n, u[first:, top:], n, one,
                 corner, n)
            mirror(x, first, top, top, end)


@cfunc("void(int64, CPointer({dtype}), int64, CPointer({dtype}), int64, int64)", cache=CACHE,
       boundscheck=BOUNDS, error_model="numpy")
def kernel(gemm, factors, stack, cotangents, count, n):
    u, x = carray(factors, (stack, n, n)), carray(cotangents, (count, n, n))
    for k in range(count):
        reverse(gemm, u[k % stack], x[k])
'''
PRODUCTS = '''@njit(boundscheck=BOUNDS, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def product(gemm, scale, a, b, kept, out):
    """Overwrite `out` by scale a b + kept out, of so many rows at once that OpenBLAS copies nothing."""
    (m, depth), n = a.shape, b.shape[1]
    rows = AT_ONCE // (depth * n) if AT_ONCE >= FEWEST * depth * n else m
    for top in range(0, m, rows):
        call(gemm, ord("N"), ord("N"), n, min(rows, m - top), depth, scale, b, n, a[top:], depth, kept,
             out[top:], n)


@njit(boundscheck=BOUNDS, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def upper(gemm, scale, a, b, kept, out):
    """The same of the upper triangle of a square alone, some rows from the diagonal on at once."""
    depth, n = b.shape
    for top in range(0, n, ROWS):
        call(gemm, ord("N"), ord("N"), n - top, min(ROWS, n - top), depth, scale, b[:, top:], n, a[top:],
             depth, kept, out[top:, top:], n)


@njit(boundscheck=BOUNDS, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def adjoint(x, out):
    """Conjugate transpose, of so many rows at once that lines of the processor's cache stay there."""
    for top in range(0, len(x), LINES):
        for j in range(len(out)):
            row, column = out[j, top : top + LINES], x[top : top + LINES, j]
            for i in range(len(row)):
                row[i] = np.conj(column[i])


@njit(boundscheck=BOUNDS, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def mirror(x):
    """Make a matrix Hermitian by its upper triangle."""
    for top in range(0, len(x), LINES):
        for i in range(top, len(x)):
            row, column = x[i, top : min(top + LINES, i)], x[top : min(top + LINES, i), i]
            for j in range(len(row)):
                row[j] = np.conj(column[j])
    for i in range(len(x)):
        x[i, i] = x[i, i].real


'''
QR = '''@cfunc("void(int64, CPointer({dtype}), CPointer({dtype}), int64, CPointer({dtype}),"
       "CPointer({dtype}), int64, CPointer({dtype}), CPointer({dtype}), int64, int64, int64)", cache=CACHE,
       boundscheck=BOUNDS, error_model="numpy")
def kernel(gemm, orthonormal, triangular, stack, cotangents, others, given, squares, turned, count, m, n):
    """Of q, r or both are `given` cotangents, 1, 2 or 3; those of q r take the place of those of q."""
    one, zero = {dtype}(1), {dtype}(0)
    qs, rs = carray(orthonormal, (stack, m, n)), carray(triangular, (stack, n, n))
    room, moved = carray(squares, (2, n, n)), carray(turned, (n, m))
    found, by_rs = carray(cotangents, (count, m, n)), carray(others, (count, n, n))
    inner, back = room[0], room[1]
    for k in range(count):
        q, r, x, kept = qs[k % stack], rs[k % stack], found[k], {dtype}(given & 1)
        if given & 1:
            adjoint(q, moved)
            upper(gemm, one, moved, x, zero, inner)
        if given & 2:
            adjoint(r, back)
            upper(gemm, -one, by_rs[k], back, kept, inner)
        mirror(inner)
        product(gemm, -one, q, inner, kept, x)
        adjoint(x, moved)
        eliminate(gemm, r.reshape(-1), n, 1, True, False, False, moved, 0, m)
        adjoint(moved, x)
'''
EIGH = '''@cfunc("void(int64, CPointer({dtype}), CPointer({dtype}), int64, int64, CPointer({dtype}),"
       "CPointer({dtype}), CPointer({dtype}), int64, int64)", cache=CACHE, boundscheck=BOUNDS,
       error_model="numpy")
def kernel(gemm, eigenvectors, eigenvalues, stack, part, cotangents, squares, results, count, n):
    """Of cotangents of eigenvalues (part 0), or of eigenvectors."""
    one, zero, half = {dtype}(1), {dtype}(0), {dtype}(0.5).real
    vs, ws = carray(eigenvectors, (stack, n, n)), carray(eigenvalues, (stack, n))
    by_vs, by_ws = carray(cotangents, (count, n, n)), carray(cotangents, (count, n))
    room, found = carray(squares, (3, n, n)), carray(results, (count, n, n))
    back, inner, moved = room[0], room[1], room[2]
    for k in range(count):
        v, w, x = vs[k % stack], ws[k % stack], found[k]
        adjoint(v, back)
        if part == 0:
            for i in range(n):
                for j in range(n):
                    moved[i, j] = v[i, j] * by_ws[k, j]
        else:
            product(gemm, one, back, by_vs[k], zero, inner)
            for i in range(n):
                for j in range(i):
                    gap = half / (w[i].real - w[j].real)
                    inner[j, i] = gap * (inner[j, i] - np.conj(inner[i, j]))
                inner[i, i] *= zero
            mirror(inner)
            product(gemm, one, v, inner, zero, moved)
        upper(gemm, one, moved, back, zero, x)
        mirror(x)
'''
SVD = '''@cfunc("void(int64, CPointer({dtype}), CPointer({dtype}), CPointer({dtype}), int64,"
       "CPointer({dtype}), int64, int64, CPointer({dtype}), CPointer({dtype}), CPointer({dtype}), int64,"
       "int64, int64, int64)", cache=CACHE, boundscheck=BOUNDS, error_model="numpy")
def kernel(gemm, vectors, numbers, adjoints, stack, cotangents, phases, transposed, square, turned, results,
           count, m, n, size):
    """Of cotangents of left singular vectors, of which the phases may turn.

    If `transposed`, all is: the first are transposed right vectors, and results lie as the transpose.
    """
    one, zero, whole = {dtype}(1), {dtype}(0), {dtype}(1).real  # complex numbers over 0 would raise
    us, ss = carray(vectors, (stack, m, size)), carray(numbers, (stack, size))
    vhs, cts = carray(adjoints, (stack, size, n)), carray(cotangents, (count, m, size))
    inner, found = carray(square, (size, size)), carray(results, (count, m, n))
    back, moved = carray(turned, (size, m)), carray(turned, (m, size))
    other_cts, other_back = carray(cotangents, (count, size, n)), carray(turned, (n, size))
    for k in range(count):
        u, s, vh = us[k % stack], ss[k % stack], vhs[k % stack]
        if transposed:
            adjoint(vh, other_back)
            product(gemm, one, other_cts[k], other_back, zero, inner)
        else:
            adjoint(u, back)
            product(gemm, one, back, cts[k], zero, inner)
        for i in range(size):
            high = s[i].real
            for j in range(i):
                low = s[j].real
                share = whole / (high + low)  # squares might be no numbers
                p, q = (i, j) if transposed else (j, i)
                part = whole / (high - low) * (inner[p, q] - np.conj(inner[q, p]))
                inner[p, q], inner[q, p] = part * (share * high), np.conj(part) * (share * low)
            if phases:
                inner[i, i] = whole / high * (inner[i, i] - inner[i, i].real)
            else:
                inner[i, i] *= zero
        product(gemm, one, u, inner, zero, moved)
        product(gemm, one, moved, vh, zero, found[k])
'''
# Kernels, and which of their arguments are integers and which places.
KERNELS = {
    "systems": (SYSTEMS, "ipiiipipi"),
    "of_cholesky": (CHOLESKY, "ipipii"),
    "of_qr": (PRODUCTS + QR, "ippippippiii"),
    "of_eigh": (PRODUCTS + EIGH, "ippiipppii"),
    "of_svd": (PRODUCTS + SVD, "ipppipiipppiiii"),
}
Kernel = Callable[..., None]


@functools.cache
def kernel_of(char: str, name: str = "systems", integer: str = "") -> tuple[Kernel, int] | None:
    """Return a compiled function for a dtype and where NumPy's product is; None where that is not found.

    Pivots are integers as LAPACK has them, or of the type that is named.
    """
    known, products = numpys(char, {}), numpys_products()
    if known is None or not products:
        return None
    source, arguments = KERNELS[name]
    names = {k: x for k, x in globals().items() if k.isupper()} | {"LINES": buffers.LINES}
    text = (ELIMINATION + source).format(dtype=np.dtype(char).name, integer=integer or known[0].name, **names)
    form = ctypes.CFUNCTYPE(None, *({"i": ctypes.c_int64, "p": ctypes.c_void_p}[x] for x in arguments))
    return form(cache.load(name, text).kernel.address), products[char].gemm


def _solve(what: int, matrix: np.ndarray, x: np.ndarray, pivots: np.ndarray | None = None) -> None:
    """Overwrite right sides in C order, of one axis or two, by solutions."""
    kernel, product = kernel_of(matrix.dtype.char)  # type: ignore[misc]
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


def solve_triangle(r: np.ndarray, x: np.ndarray, adjoint: bool = False) -> np.ndarray:
    """Return r**-1 x, or r**-H x, of an upper triangular r, with zeros below, and a matrix x or a stack."""
    if adjoint:
        r = np.conj(r.T)
    if not _fits(r, x) or kernel_of(r.dtype.char) is None:
        return np.linalg.solve(r, x)
    found, r = _laid(x), _in_one_piece(r)
    for part in found.reshape(-1, *x.shape[-2:]):
        _solve(LOWER if adjoint else UPPER, r, part)
    return found


def solve_factors(factors: np.ndarray, pivots: np.ndarray, x: np.ndarray, transposed: bool) -> None:
    """Overwrite x by a**-1 x, or by that of the transpose of a, whose LU factors and pivots these are."""
    _solve(TRANSPOSED if transposed else FACTORS, factors.T if transposed else factors, x, pivots)


def inverse_of_factors(factors: np.ndarray, pivots: np.ndarray) -> np.ndarray:
    """Return the transposed inverse of a matrix whose LU factors and pivots these are."""
    found = pool.empty(factors.shape, factors.dtype)
    _solve(INVERSE, factors.T, found, pivots)
    return found


def through_cholesky(out: np.ndarray, ct: np.ndarray, upper: bool) -> np.ndarray | None:
    """Return the cotangent of matrices by that of their Cholesky factors; None where there is no function.

    The factorisation itself in reverse (Murray 2016, "Differentiation of the Cholesky decomposition"), which
    takes less than a third of the multiplications of two triangular systems and a product. There may be
    stacks of cotangents for the same factors.
    """
    alike = type(out) is type(ct) is np.ndarray and out.dtype is ct.dtype and out.dtype.char in LETTERS
    if not alike or not ct.size or (known := kernel_of(out.dtype.char, "of_cholesky")) is None:
        return None
    (kernel, product), n, at = known, out.shape[-1], abi.location
    factors, found = (x if upper else x.mT for x in (out, ct))
    factors, found = factors if factors.flags.c_contiguous else _laid(factors), _laid(found)
    if not upper and out.dtype.kind == "c":
        factors, found = np.conjugate(factors), np.conjugate(found, out=found)
    kernel(product, at(factors), out.size // n**2, at(found), ct.size // n**2, n)
    return found


def through_qr(
    q: np.ndarray, r: np.ndarray, by_q: np.ndarray | None, by_r: np.ndarray | None
) -> np.ndarray | None:
    """Return the cotangent of q r by those of q, r or both; None where there is no function.

    That is (by_q - q h) r**-H, with the Hermitian matrix h that has the upper triangle of
    q**H by_q - by_r r**H. There may be stacks of cotangents for the same factors.
    """
    given = [x for x in (q, r, by_q, by_r) if x is not None]
    alike = all(type(x) is np.ndarray and x.dtype is q.dtype for x in given) and q.dtype.char in LETTERS
    if not alike or not q.size or not given[2].size or (known := kernel_of(q.dtype.char, "of_qr")) is None:
        return None
    if not r.diagonal(0, -2, -1).all():
        raise np.linalg.LinAlgError("Singular matrix")
    (kernel, product), (m, n), at = known, q.shape[-2:], abi.location
    found = pool.empty((*given[2].shape[:-2], m, n), q.dtype) if by_q is None else _laid(by_q)
    q, r = np.ascontiguousarray(q), np.ascontiguousarray(r)
    squares, moved = (pool.empty(shape, q.dtype) for shape in ((2, n, n), (n, m)))
    others, which = (None, 1) if by_r is None else (np.ascontiguousarray(by_r), 2 + (by_q is not None))
    place = None if others is None else at(others)
    counts = q.size // (m * n), found.size // (m * n)
    kernel(product, at(q), at(r), counts[0], at(found), place, which, at(squares), at(moved), counts[1], m, n)
    return found


def through_eigh(w: np.ndarray, v: np.ndarray, ct: np.ndarray, part: int) -> np.ndarray | None:
    """Return the cotangent of Hermitian matrices by that of their eigenvalues (part 0) or eigenvectors.

    That is v diag(ct) v**H, or the Hermitian part of v (f * (v**H ct)) v**H with f[i, j] = 1 / (w[j] - w[i])
    and a diagonal of zeros; None where there is no function. There may be stacks of cotangents.
    """
    alike = type(v) is type(ct) is np.ndarray and ct.dtype is (v if part else w).dtype and ct.size
    if not alike or v.dtype.char not in LETTERS or (known := kernel_of(v.dtype.char, "of_eigh")) is None:
        return None
    (kernel, product), n, at, dtype = known, v.shape[-1], abi.location, v.dtype
    v, w, ct = np.ascontiguousarray(v), np.ascontiguousarray(w, dtype), np.ascontiguousarray(ct, dtype)
    count = ct.size // (n if part == 0 else n * n)
    found = pool.empty((*ct.shape[: ct.ndim - 1 - (part > 0)], n, n), dtype)
    squares = pool.empty((3, n, n), dtype)
    kernel(product, at(v), at(w), w.size // n, part, at(ct), at(squares), at(found), count, n)
    return found


def through_svd(
    u: np.ndarray, s: np.ndarray, vh: np.ndarray, ct: np.ndarray, phases: bool
) -> np.ndarray | None:
    """Return the cotangent of u s vh by that of u, in the space that the columns of u span.

    That is u (g * (x - x**H) s) vh with x = u**H ct, g[i, j] = 1 / (s[j]**2 - s[i]**2) and a diagonal of
    zeros, or of x's imaginary parts over s for the `phases` of complex vectors; None where there is no
    function. There may be stacks of cotangents for the same factors.
    """
    dtype = u.dtype
    alike = all(type(x) is np.ndarray and x.dtype is dtype for x in (u, vh, ct)) and ct.size and vh.size
    if not alike or dtype.char not in LETTERS or (known := kernel_of(dtype.char, "of_svd")) is None:
        return None
    (kernel, product), at = known, abi.location
    transposed = all(x.mT.flags.c_contiguous for x in (u, vh))  # adjoints of right vectors and left ones
    if transposed:
        u, vh, ct = vh.mT, u.mT, ct.mT
    (m, size), n = u.shape[-2:], vh.shape[-1]
    u, vh, ct = (x if x.flags.c_contiguous else _laid(x) for x in (u, vh, ct))
    s = np.ascontiguousarray(s, dtype)
    found = pool.empty((*ct.shape[:-2], m, n), dtype)
    square, turned = pool.empty((size, size), dtype), pool.empty((max(m, n), size), dtype)
    phases = phases and dtype.kind == "c"
    counts = u.size // (m * size), ct.size // (n * size if transposed else m * size)
    kernel(product, at(u), at(s), at(vh), counts[0], at(ct), phases, transposed, at(square), at(turned),
           at(found), counts[1], m, n, size)  # fmt: skip
    return found.mT if transposed else found
