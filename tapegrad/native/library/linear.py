"""Linear algebra of arrays of active numbers, as loops that record themselves."""

from __future__ import annotations

import operator

import numpy as np

from tapegrad.native.arrays.argument_arrays import ArgumentArray, floats_of
from tapegrad.native.arrays.arrays import Token, is_complex, is_recorded_array
from tapegrad.native.arrays.copied_arguments import expanded
from tapegrad.native.arrays.counting import counted
from tapegrad.native.emission.annotations import Code, Compiled, Type
from tapegrad.native.library.elimination import factor, solve_by_factors
from tapegrad.native.library.functions import (
    INSTEAD,
    _any_active,
    dtype_of,
    overload_counted,
    overload_recorded,
)
from tapegrad.native.library.matrices import block_of, spec_of
from tapegrad.native.library.products import BY_LOOPS, product_of
from tapegrad.native.library.systems import system_of
from tapegrad.native.numbers.complexes import im, re
from tapegrad.native.numbers.operators import statement, value_of, with_value
from tapegrad.native.numbers.scalar import Active, order_of
from tapegrad.native.tapes.blocks import inner_njit
from tapegrad.native.twins.compiler import twin_of


def _inner(a, b):
    """The product of two vectors."""
    if a.size != b.size:
        raise ValueError("product of vectors of different sizes")
    s = 0.0
    for i in range(a.size):
        s = s + a[i] * b[i]
    return s


def _of_vector(a, b):
    """The product of a matrix and a vector."""
    if a.shape[1] != b.size:
        raise ValueError("product of a matrix and a vector whose sizes do not fit")
    out = np.empty(a.shape[0], dtype_of(a, b))
    for i in range(a.shape[0]):
        s = 0.0
        for k in range(b.size):
            s = s + a[i, k] * b[k]
        out[i] = s
    return out


def _to_vector(a, b):
    """The product of a vector and a matrix."""
    if a.size != b.shape[0]:
        raise ValueError("product of a vector and a matrix whose sizes do not fit")
    out = np.empty(b.shape[1], dtype_of(a, b))
    for j in range(b.shape[1]):
        s = 0.0
        for k in range(a.size):
            s = s + a[k] * b[k, j]
        out[j] = s
    return out


def _of_matrices(a, b):
    """The product of two matrices."""
    if a.shape[1] != b.shape[0]:
        raise ValueError("product of matrices whose sizes do not fit")
    out = np.empty((a.shape[0], b.shape[1]), dtype_of(a, b))
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            s = 0.0
            for k in range(a.shape[1]):
                s = s + a[i, k] * b[k, j]
            out[i, j] = s
    return out


@inner_njit
def _few_to_vector(a, b):
    """The product of a vector and a matrix of two or three rows and as many columns."""
    out = np.empty(a.size)
    if a.size == 2:
        out[0] = a[0] * b[0, 0] + a[1] * b[1, 0]
        out[1] = a[0] * b[0, 1] + a[1] * b[1, 1]
    else:
        out[0] = a[0] * b[0, 0] + a[1] * b[1, 0] + a[2] * b[2, 0]
        out[1] = a[0] * b[0, 1] + a[1] * b[1, 1] + a[2] * b[2, 1]
        out[2] = a[0] * b[0, 2] + a[1] * b[1, 2] + a[2] * b[2, 2]
    return out


@inner_njit
def _few_of_vector(a, b):
    """The product of a matrix of two or three rows and as many columns and a vector."""
    out = np.empty(b.size)
    if b.size == 2:
        out[0] = a[0, 0] * b[0] + a[0, 1] * b[1]
        out[1] = a[1, 0] * b[0] + a[1, 1] * b[1]
    else:
        out[0] = a[0, 0] * b[0] + a[0, 1] * b[1] + a[0, 2] * b[2]
        out[1] = a[1, 0] * b[0] + a[1, 1] * b[1] + a[1, 2] * b[2]
        out[2] = a[2, 0] * b[0] + a[2, 1] * b[1] + a[2, 2] * b[2]
    return out


@inner_njit
def _few_of_matrix(a, b):
    """The product of a matrix and one of two or three rows and as many columns."""
    out = np.empty(a.shape)
    if b.shape[0] == 2:
        for i in range(a.shape[0]):
            out[i, 0] = a[i, 0] * b[0, 0] + a[i, 1] * b[1, 0]
            out[i, 1] = a[i, 0] * b[0, 1] + a[i, 1] * b[1, 1]
    else:
        for i in range(a.shape[0]):
            out[i, 0] = a[i, 0] * b[0, 0] + a[i, 1] * b[1, 0] + a[i, 2] * b[2, 0]
            out[i, 1] = a[i, 0] * b[0, 1] + a[i, 1] * b[1, 1] + a[i, 2] * b[2, 1]
            out[i, 2] = a[i, 0] * b[0, 2] + a[i, 1] * b[1, 2] + a[i, 2] * b[2, 2]
    return out


FEW = 3  # rows and columns of the largest matrix whose products are straight code
STRAIGHT = {(2, 1): _few_of_vector, (1, 2): _few_to_vector, (2, 2): _few_of_matrix}
ELIMINATED = 10  # rows of the largest matrix whose elimination is recorded statement by statement
SUBSTITUTED = 10  # of the largest system that is a record of its own
FACTORED = 5  # of the largest whose QR factors are, which have more statements
LOOPED = 90  # products of numbers in a product of matrices that is recorded statement by statement
PRODUCTS: dict[tuple[int, int], Code] = {  # by how many axes the operands have
    (1, 1): _inner, (2, 1): _of_vector, (1, 2): _to_vector, (2, 2): _of_matrices,
}  # fmt: skip


def _product(a: Type, b: Type, as_floats: bool = False) -> Code | None:
    """Code for a product: a record of its own, or a block of the tape where it is large."""
    axes = a.ndim, b.ndim
    as_floats = as_floats and spec_of(a, b) == ()
    known = axes in PRODUCTS and axes != (1, 1)
    block = block_of("product", a, b, counted=as_floats) if known else None
    record = None if block is None else product_of(a, b)
    if block is None and _is_argument(a, b):
        first, second = _copying(a), _copying(b)
        return lambda a, b: DOT(first(a), second(b))
    if block is None:
        return PRODUCTS.get(axes)
    first, second = _copying(a), _copying(b)
    end = counted if as_floats else statement
    if record is not None:
        return _product_with_vector(twin_of(STRAIGHT[axes], ()), record, block, as_floats)
    loops, single = inner_njit(PRODUCTS[axes]), spec_of(a, b) == ()
    straight = twin_of(STRAIGHT[axes], ()) if single else loops  # with tangents it is long to compile

    def impl(a, b):
        x, y = floats_of(a), floats_of(b)
        n, size = y.shape[0], x.size * y.size
        if single and 2 <= n <= FEW and x.shape[-1] == y.shape[-1] == n and size <= LOOPED * n:
            return end(straight(a, b))
        if x.shape[-1] != n or size <= LOOPED * n:
            return end(loops(first(a), second(b)))
        return block(x.shape[:-1] + y.shape[1:], a, b)

    return impl


def _product_with_vector(straight: Compiled, record: Compiled, block: Compiled, as_floats: bool) -> Code:
    """Code for a product of a matrix and a vector: statements of straight code, a record or a block."""
    end, whole = (counted, statement) if as_floats else (statement, expanded)

    def impl(a, b):
        x, y = floats_of(a), floats_of(b)
        n, size = y.shape[0], x.size * y.size
        if x.shape[-1] != n:
            raise ValueError("product of arrays whose sizes do not fit")
        if 2 <= n <= FEW and size == n * n * n:
            return end(straight(a, b))
        if size <= BY_LOOPS * n:
            return whole(record(a, b))
        return block(x.shape[:-1] + y.shape[1:], a, b)

    return impl


def _is_argument(*kinds: Type) -> bool:
    return any(isinstance(kind, ArgumentArray) for kind in kinds)


def _copying(kind: Type) -> Code:
    """What makes an array of Numba's of an argument that was left as it is."""
    return expanded if _is_argument(kind) else floats_of


@overload_recorded(np.dot, method="dot")
def dot(a, b):
    if not _any_active(a, b):
        return None
    if not hasattr(a, "ndim") or not hasattr(b, "ndim"):
        first, second = _copying(a), _copying(b)
        return lambda a, b: first(a) * second(b)
    return _product(a, b)


@overload_recorded(operator.matmul)
def matmul(a, b):
    return _product(a, b) if _any_active(a, b) else None


@overload_counted(operator.matmul)
def counted_matmul(a, b):
    return _product(a, b, True) if _any_active(a, b) else None


@overload_counted(np.dot)
def counted_dot(a, b):
    if not _any_active(a, b) or not hasattr(a, "ndim") or not hasattr(b, "ndim"):
        return dot(a, b)
    return _product(a, b, True)


@overload_recorded(np.vdot)
def vdot(a, b):
    if not _any_active(a, b) or not a.ndim == b.ndim == 1:
        return None
    stub = INSTEAD[np.dot]
    return (lambda a, b: stub(np.conj(a), b)) if is_complex(a.dtype) else PRODUCTS.get((a.ndim, b.ndim))


@overload_recorded(np.outer)
def outer(a, b):
    if not _any_active(a, b):
        return None

    def impl(a, b):
        out = np.empty((a.size, b.size), dtype_of(a, b))
        for i in range(a.size):
            for j in range(b.size):
                out[i, j] = a[i] * b[j]
        return out

    return impl


@overload_recorded(np.trace)
def trace(a, offset=0):
    if not is_recorded_array(a):
        return None

    def impl(a, offset=0):
        row, column = max(-offset, 0), max(offset, 0)
        s = 0.0
        for i in range(min(a.shape[0] - row, a.shape[1] - column)):
            s = s + a[row + i, column + i]
        return s

    return impl


DOT = INSTEAD[np.dot]


@inner_njit
def _factored(a):
    """LU factors of the values of a matrix, and which of its rows they are of."""
    n, lu = a.shape[0], np.empty(a.shape)
    rows = np.empty(n, np.int64)
    for i in range(n):
        for j in range(n):
            lu[i, j] = value_of(a[i, j])
    if not factor(lu, rows):
        raise np.linalg.LinAlgError("the matrix is singular: a pivot of its elimination is 0")
    return lu, rows


@inner_njit
def _by_factors(lu, rows, y):
    x = np.empty_like(y)
    solve_by_factors(lu, rows, y, x)
    return x


@inner_njit
def _by_statements(a, b, order):
    """The solution of a system: by the values of its matrix, corrected once for each order of derivatives."""
    lu, rows = _factored(a)
    moving = np.empty(a.shape, dtype_of(a, b))
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            moving[i, j] = with_value(a[i, j], 0.0)
    x = _by_factors(lu, rows, b)
    for _ in range(order):
        x = _by_factors(lu, rows, b - DOT(moving, x))
    return x


@inner_njit
def _columns(a, dtype):
    """A matrix of active numbers as a copy; a vector is a column."""
    out = np.empty((a.shape[0], a.size // max(a.shape[0], 1)), dtype)
    flat = out.reshape(-1)
    for k, v in enumerate(a.flat):
        flat[k] = v
    return out


@inner_njit
def _of_parts(a, b, dtype):
    """The solution of a complex system: real and imaginary parts are unknowns of a real one."""
    n, columns = a.shape[0], _columns(b, dtype_of(a, b))
    m = columns.shape[1]
    both, sides = np.empty((2 * n, 2 * n), dtype), np.empty((2 * n, m), dtype)
    for i in range(n):
        for j in range(n):
            x, y = re(a[i, j]), im(a[i, j])
            both[i, j], both[n + i, n + j], both[i, n + j], both[n + i, j] = x, x, -y, y
        for j in range(m):
            sides[i, j], sides[n + i, j] = re(columns[i, j]), im(columns[i, j])
    x = SOLVE(both, sides)
    for i in range(n):
        for j in range(m):
            columns[i, j] = complex(x[i, j], x[n + i, j])
    return columns


@inner_njit
def _see_that_it_fits(a, b):
    if a.shape[0] != a.shape[1] or a.shape[0] != b.shape[0]:
        raise ValueError("solve takes a square matrix and as many rows")


@overload_recorded(np.linalg.solve)
def solve(a, b):
    if not _any_active(a, b):
        return None
    block, system = block_of("solve", a, b), system_of(a, b)
    if system is not None:
        small = system.solve

        def impl(a, b):
            _see_that_it_fits(a, b)
            return block(b.shape, a, b) if a.shape[0] > SUBSTITUTED else small(a, b)

        return impl
    spec = next(kind.dtype.spec for kind in (a, b) if is_recorded_array(kind))
    order, dtype, in_parts = order_of(spec), Token(Active(spec)), is_complex(a.dtype) or is_complex(b.dtype)

    def by_statements(a, b):
        _see_that_it_fits(a, b)
        if in_parts:
            return _of_parts(a, b, dtype).reshape(b.shape)
        return _by_statements(a, _columns(b, dtype), order).reshape(b.shape)

    return by_statements


SOLVE = INSTEAD[np.linalg.solve]


@inner_njit
def _inverse(a):
    return SOLVE(a, np.eye(a.shape[0]))


@overload_recorded(np.linalg.inv)
def inv(a):
    if not is_recorded_array(a):
        return None
    block, system = block_of("inv", a), system_of(a)
    small = _inverse if system is None else system.inv

    def impl(a):
        if a.shape[0] != a.shape[1]:
            raise np.linalg.LinAlgError("a square matrix is needed")
        if block is not None and a.shape[0] > SUBSTITUTED:
            return block(a.shape, a)
        return small(a)

    return impl


@inner_njit
def triangular(lu):
    """Eliminate in place as far as there are pivots; returns their number and the sign of the exchanges.

    A pivot is the largest element that is left. What is left in the end is a matrix of zeros, which have
    derivatives.
    """
    n, sign, size, row, column = lu.shape[0], 1.0, 0.0, 0, 0
    if n != lu.shape[1]:
        raise np.linalg.LinAlgError("a square matrix is needed")
    for i in range(n):
        for j in range(n):
            size, row, column = _larger(lu, i, j, size, row, column)
    for k in range(n):
        if lu[row, column] == 0.0:
            return k, sign
        if row != k:
            for j in range(n):
                lu[k, j], lu[row, j] = lu[row, j], lu[k, j]
            sign = -sign
        if column != k:
            for i in range(n):
                lu[i, k], lu[i, column] = lu[i, column], lu[i, k]
            sign = -sign
        size, row, column = 0.0, k + 1, k + 1
        for i in range(k + 1, n):
            lu[i, k] = lu[i, k] / lu[k, k]
            for j in range(k + 1, n):
                lu[i, j] = lu[i, j] - lu[i, k] * lu[k, j]
                size, row, column = _larger(lu, i, j, size, row, column)
    return n, sign


@inner_njit
def _larger(lu, i, j, size, row, column):
    """The size and place of an element, if it is the largest so far, or those of the latter."""
    found = abs(value_of(lu[i, j]))
    return (size, row, column) if found <= size else (found, i, j)


@inner_njit
def determinant(a, order):
    """The determinant and its derivatives up to an order.

    Of zeros it is a product of as many factors as they have rows, so that more than the order are nothing.
    """
    lu = a.copy()
    rank, sign = triangular(lu)
    found = 1.0 * sign
    for k in range(rank):
        found = found * lu[k, k]
    left = lu.shape[0] - rank
    if left > order:
        return 0.0 * found
    return found * _without_division(lu[rank:, rank:].copy()) if left else found


@inner_njit
def _without_division(a):
    """The determinant by products and sums alone (Bird)."""
    n = a.shape[0]
    power = a.copy()
    for _ in range(n - 1):
        upper = power.copy()
        s = 0.0 * a[0, 0]
        for q in range(n):
            i = n - 1 - q
            upper[i, i] = s
            s = s - power[i, i]
            for j in range(i):
                upper[i, j] = 0.0
        power = DOT(upper, a)
    return power[0, 0] if n % 2 else -power[0, 0]


@overload_recorded(np.linalg.det)
def det(a):
    if not is_recorded_array(a):
        return None
    order, block = order_of(a.dtype.spec), block_of("slogdet", a)

    def impl(a):
        if block is not None and a.shape[0] == a.shape[1] > ELIMINATED:
            parts = block(3, a)
            if parts[2] > 1e-4:  # beside a small pivot second derivatives by the inverse lose digits
                return value_of(parts[1]) * np.exp(parts[0])
        return determinant(a, order)

    return impl
