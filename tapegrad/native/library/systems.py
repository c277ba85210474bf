"""Small systems of equations, and inverses, of active numbers: a record each.

The derivative is by LU factors, as that of a large one: in that of an elimination terms would cancel.
Components of numbers are solved for one after the other, as each is known from those before it.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numba.core import types

from tapegrad.kernels import cache
from tapegrad.native.arrays.array_layout import PLAIN
from tapegrad.native.arrays.arrays import Token
from tapegrad.native.emission.algebra import Spec, components, products
from tapegrad.native.emission.annotations import Compiled, Type
from tapegrad.native.emission.deferred import Deferred, caller
from tapegrad.native.library import matrix_planes
from tapegrad.native.library.matrices import DESCRIBED, address_of, as_column, spec_of
from tapegrad.native.library.products import kind_of
from tapegrad.native.numbers.scalar import Active
from tapegrad.native.tapes.blocks import inner_njit
from tapegrad.native.tapes.runtime import digest

SOURCE = '''
from tapegrad.native.tapes.blocks import FULL
from tapegrad.native.library.elimination import factor, solve_by_factors
from tapegrad.native.tapes.memory import free, malloc, room
from tapegrad.native.tapes.tape import COUNT, NUMBERS, TOP

# Words of a record: its kind, how many leaves it has, rows, right sides, planes of the matrix, and where the
# right sides are; then memory for LU factors and which rows they are of, the solution, the matrix, and the
# right sides, in whose place the adjoint computes.
KIND, LEAVES, ROWS, SIDES, PLANES, RIGHT, FACTORS = range(7)
CORRECTED = PRODUCTS[PRODUCTS[:, 0] > 0]  # those by tangents of the matrix


@inner_njit
def factors_at(start, n):
    """LU factors of a record, their rows, and where what follows begins."""
    at = start + 8 * FACTORS
    lu, rows = array_at(at, (n, n), np.float64), array_at(at + 8 * n * n, (n,), np.int64)
    return lu, rows, at + 8 * (n * n + n)


@inner_njit
def factored(lu, rows, x, turn):
    """Write the factors of a matrix, or its transpose if it is turned; returns whether there are any."""
    for i in range(rows.size):
        for j in range(rows.size):
            lu[i, j] = x[j, i] if turn else x[i, j]
    return factor(lu, rows)


@inner_njit
def correct(y, k, a, x, turn):
    """Subtract from component k of y what the components of x before it give with tangents of a matrix."""
    n, m = y.shape[1], y.shape[2]
    if a.shape[0] == 1:
        return
    for t in range(CORRECTED.shape[0]):
        if CORRECTED[t, 2] == k:
            p, q = CORRECTED[t, 0], CORRECTED[t, 1]
            for i in range(n):
                for l in range(n):
                    factor = a[p, l, i] if turn else a[p, i, l]
                    for j in range(m):
                        y[k, i, j] -= factor * x[q, l, j]


@inner_njit
def filled_right(to, b, n, m):
    """Copy right sides, with all planes, or those of an inverse if there are none.

    Returns how many bytes that takes.
    """
    count, known = n * m, 0
    if b[0]:
        size, known = filled(to, b), n * m
        if b[1] == NUMBERED or COMPONENTS == 1:
            return size
    else:
        put(to, 0, 0)
    rest = array_at(to + 8 + 8 * known, (COMPONENTS * count - known,), np.float64)
    rest[:] = 0.0
    if b[0] == 0:
        for i in range(n):
            rest[i * n + i] = 1.0
    return 8 + 8 * COMPONENTS * count


@njit("void(UniTuple(int64, 8), UniTuple(int64, 8), int64, int64)", cache=CACHE)
def record(a, b, target, kind):
    """Write the solution of a system to the memory of an array of active numbers, and record it."""
    n, m = a[2], b[3]
    count, tape, planes_of_a = n * m, tape_of(a), COMPONENTS if a[1] == NUMBERED else 1
    if tape == 0:
        tape = tape_of(b)
    if count == 0:
        tape = 0
    if tape and get(tape, COUNT) + count >= NUMBERS - 1:
        raise MemoryError(FULL)
    size = 8 * (FACTORS + n * n + n + COMPONENTS * (2 * count + n * n) + n * n + count + 8)
    start = room(tape, size) if tape else malloc(size)
    if start == 0:
        raise MemoryError("no memory for the operands of a system")
    lu, rows, x_at = factors_at(start, n)
    a_at = x_at + 8 * COMPONENTS * count
    b_at = a_at + filled(a_at, a)
    to = b_at + filled_right(b_at, b, n, m)
    given = array_at(a_at + 8, (planes_of_a, n, n), np.float64)
    if not factored(lu, rows, given[0], False):
        if tape == 0:
            free(start)
        raise np.linalg.LinAlgError("the matrix is singular: a pivot of its elimination is 0")
    y, x = array_at(b_at + 8, (COMPONENTS, n, m), np.float64), array_at(x_at, (COMPONENTS, n, m), np.float64)
    for k in range(COMPONENTS):
        correct(y, k, given, x, False)
        solve_by_factors(lu, rows, y[k], x[k])
    before = get(tape, COUNT) if tape else 0
    assemble(x, before + 1, tape, target)
    if tape == 0:
        free(start)
        return
    put(start, KIND, kind)
    put(start, LEAVES, n * n + count)
    put(start, ROWS, n)
    put(start, SIDES, m)
    put(start, PLANES, planes_of_a)
    put(start, RIGHT, b_at - start)
    put(to, 0, count)
    put(to, 1, to + 24 - start)
    put(to, 2, kind)
    put(tape, TOP, to + 24)
    put(tape, COUNT, before + count)


@njit("void(int64, int64, int64)", cache=CACHE, nogil=True)
def reverse(cotangents, number, at):
    """The adjoint of a record: take the cotangents of its statements to those of its leaves."""
    n, m, any_came = get(at, ROWS), get(at, SIDES), False
    count, ct_at = n * m, cotangents + 8 * COMPONENTS * (number + 1)
    bits = array_at(ct_at, (count, COMPONENTS), np.int64)
    ct = array_at(ct_at, (count, COMPONENTS), np.float64)
    for e in range(count):
        any_came |= bits[e, 0] != NOTHING_BITS
    if any_came:
        lu, rows, x_at = factors_at(at, n)
        a_at, b_at = x_at + 8 * COMPONENTS * count, at + get(at, RIGHT)
        a = array_at(a_at + 8, (get(at, PLANES), n, n), np.float64)
        x = array_at(x_at, (COMPONENTS, n, m), np.float64)
        y = array_at(b_at + 8, (COMPONENTS, n, m), np.float64)
        given = y.reshape((COMPONENTS, count))
        for e in range(count):
            for k in range(COMPONENTS):
                given[k, e] = ct[e, k] + 0.0
        if not factored(lu, rows, a[0], True):  # those of the matrix lose digits where it is badly scaled
            raise np.linalg.LinAlgError("the matrix is singular: a pivot of its elimination is 0")
        z = array_at(ct_at, (COMPONENTS, n, m), np.float64)  # in the place of what has been read
        for k in range(COMPONENTS):
            correct(y, k, a, z, True)
            solve_by_factors(lu, rows, y[k], z[k])
        if get(b_at, 0):
            for k in range(COMPONENTS):
                for e in range(count):
                    add(cotangents, b_at, count, e, k, z[k, e // m, e % m])
        if get(a_at, 0):
            for t in range(PRODUCTS.shape[0]):
                p, q, k = PRODUCTS[t, 0], PRODUCTS[t, 1], PRODUCTS[t, 2]
                for i in range(n):
                    for j in range(n):
                        s = 0.0
                        for l in range(m):
                            s -= z[p, i, l] * x[q, j, l]
                        add(cotangents, a_at, n * n, i * n + j, k, s)
    for e in range(count):
        for k in range(COMPONENTS):
            ct[e, k] = -0.0
'''


@functools.cache
def compiled(*spec: int) -> ModuleType:
    """Return `record` and `reverse` for such numbers, compiled."""
    text = f"{matrix_planes.PLANES}{SOURCE}".format(
        name="systems", spec=spec, components=components(spec), levels=0, products=products(spec),
        rows_first=True, digest=digest(),
    )  # fmt: skip
    return cache.load("native_systems", text)


IDENTITY = 0  # where its right sides are, of an inverse


class System(NamedTuple):
    """How systems and inverses of such numbers are recorded."""

    solve: Compiled
    inv: Compiled


@functools.cache
def _compiled(spec: Spec) -> System:
    record = caller(
        Deferred(__name__, spec, "record"), types.void(DESCRIBED, DESCRIBED, types.int64, types.int64)
    )
    kind, dtype = kind_of(Deferred(__name__, spec, "reverse")), Token(Active(spec))

    @inner_njit
    def solve(a, b):
        out = np.empty(b.shape, dtype)
        record(as_column(a), as_column(b), address_of(out), kind())
        return out

    @inner_njit
    def inv(a):
        out, n = np.empty(a.shape, dtype), a.shape[0]
        record(as_column(a), (IDENTITY, PLAIN, n, n, 0, 0, 0, 0), address_of(out), kind())
        return out

    return System(solve, inv)


def system_of(*kinds: Type) -> System | None:
    """Return how a system of operands of these types is recorded; None where it is by statements."""
    spec = spec_of(*kinds)
    return None if spec is None else _compiled(spec)
