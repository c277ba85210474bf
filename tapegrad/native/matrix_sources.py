"""Sources of functions of matrices, compiled once for each kind of number (`matrices.compiled`).

A function returns the result's components, the number of its first statement, and the tape. What its
derivative reads is a block's of the tape. Components lie in planes: of a matrix in an array of three axes.
"""

COMMON = '''"""{name} of matrices of numbers with tangents {spec}. {digest}"""
import numpy as np
from numba import njit
from tapegrad.native.blocks import addressed, drop_of, keep, loading, pushed
from tapegrad.native.memory import get, put, read, write
from tapegrad.native.tape import BEFORE, COTANGENTS, KNOWN

# Of numbers: how many components there are, how many levels of tangents, and which components of two factors
# have their product in which component.
COMPONENTS, LEVELS, PRODUCTS = {components}, {levels}, np.array({products})


@njit
def values(x):
    """The components of a matrix; one that is not active has one."""
    address, active, m, n, row, column = x
    out = np.empty((COMPONENTS if active else 1, m, n))
    for q in range(out.shape[0]):
        for i in range(m):
            for j in range(n):
                out[q, i, j] = read(address + 8 * q + i * row + j * column)
    return out


@njit
def numbers(x):
    """The statements of a matrix's elements, none if it is on no tape; and the tape."""
    address, active, m, n, row, column = x
    tape = 0
    out = np.empty(m * n if active else 0, np.uint32)
    if active:
        for i in range(m):
            for j in range(n):
                place = address + 8 * COMPONENTS + i * row + j * column
                out[i * n + j] = get(place, 0)
                tape |= get(place, 1)
    return out if tape else out[:0], tape


@njit
def taken(tape, block, m, n):
    """The cotangents of a block's results, which are then zero; and whether there is any."""
    out, moves = np.empty((COMPONENTS, m, n)), False
    place = get(tape, COTANGENTS) + 8 * COMPONENTS * (get(block, BEFORE) + 1)
    for i in range(m):
        for j in range(n):
            for q in range(COMPONENTS):
                out[q, i, j] = read(place)
                moves |= out[q, i, j] != 0.0
                write(place, 0.0)
                place += 8
    return out, moves


@njit
def added(tape, statements, part, sign):
    """Add to the cotangents of a matrix's elements."""
    flat = part.reshape((COMPONENTS, -1))
    for k in range(statements.size):
        if statements[k]:
            for q in range(COMPONENTS):
                place = get(tape, COTANGENTS) + 8 * (COMPONENTS * statements[k] + q)
                write(place, read(place) + sign * flat[q, k])


@njit("void(float64[:, :, ::1], int64, int64, int64)", cache=CACHE)
def assemble(x, first, tape, address):
    """Write a matrix of numbers of statements from `first` on to the memory of an array."""
    flat = x.reshape((COMPONENTS, -1))
    for k in range(flat.shape[1]):
        for q in range(COMPONENTS):
            write(address + 8 * q, flat[q, k])
        put(address, COMPONENTS, first + k if tape else 0)
        put(address, COMPONENTS + 1, tape)
        address += 8 * (COMPONENTS + 2)


@njit
def plus(x, y, factor):
    """Add a multiple of a matrix to one that may have more components."""
    to, flat = x.reshape(-1), y.reshape(-1)
    for k in range(flat.size):
        to[k] += factor * flat[k]


@njit
def times(x, y):
    """The product of two matrices."""
    out, part = np.zeros((COMPONENTS, x.shape[1], y.shape[2])), np.empty((x.shape[1], y.shape[2]))
    for t in range(PRODUCTS.shape[0]):
        i, j, k = PRODUCTS[t, 0], PRODUCTS[t, 1], PRODUCTS[t, 2]
        if i < x.shape[0] and j < y.shape[0]:
            np.dot(x[i], y[j], part if COMPONENTS > 1 else out[k])
            if COMPONENTS > 1:
                plus(out[k], part, 1.0)
    return out


@njit
def turned(x):
    """The transpose of a matrix, in C order."""
    out = np.empty((x.shape[0], x.shape[2], x.shape[1]))
    for q in range(x.shape[0]):
        for i in range(x.shape[2]):
            for j in range(x.shape[1]):
                out[q, i, j] = x[q, j, i]
    return out


@njit
def moving(x):
    """A matrix without its values."""
    out = x.copy()
    for i in range(x.shape[1]):
        for j in range(x.shape[2]):
            out[0, i, j] = 0.0
    return out
'''

OF_TWO = '''

def reversing(kind):
    load = loading(kind)

    def reverse(tape, block):
        (a, b, out), of_a, of_b = load(get(block, KNOWN))
        ct, moves = taken(tape, block, out.shape[1], out.shape[2])
        if moves:
            give(tape, ct, a, b, out, of_a, of_b)
        return 0

    return reverse


REVERSE, DROP = addressed(reversing), addressed(drop_of)


@njit("Tuple((float64[:, :, ::1], int64, int64))(UniTuple(int64, 6), UniTuple(int64, 6))", cache=CACHE)
def {name}(a, b):
    """The result, the number of its first statement, and the tape."""
    x, y = values(a), values(b)
    (of_a, one), (of_b, other) = numbers(a), numbers(b)
    out, first, tape = result(x, y), 0, one | other
    if tape and out.size:
        known = ((x, y, out), of_a, of_b)
        first = pushed(tape, out.size // COMPONENTS, keep(known), REVERSE(known), DROP(known)) + 1
    return out, first, tape
'''

OF_ONE = '''

def reversing(kind):
    load = loading(kind)

    def reverse(tape, block):
        out, of_a = load(get(block, KNOWN))
        ct, moves = taken(tape, block, out.shape[1], out.shape[2])
        if moves:
            give(tape, ct, out, of_a)
        return 0

    return reverse


REVERSE, DROP = addressed(reversing), addressed(drop_of)


@njit("Tuple((float64[:, :, ::1], int64, int64))(UniTuple(int64, 6))", cache=CACHE)
def {name}(a):
    """The result, the number of its first statement, and the tape."""
    of_a, tape = numbers(a)
    out, first = result(values(a)), 0
    if tape and out.size:
        known = (out, of_a)
        first = pushed(tape, out.size // COMPONENTS, keep(known), REVERSE(known), DROP(known)) + 1
    return out, first, tape
'''

PRODUCT = (
    COMMON
    + """

@njit
def result(x, y):
    return times(x, y)


@njit
def give(tape, ct, x, y, out, of_x, of_y):
    if of_x.size:
        added(tape, of_x, times(ct, turned(y)), 1.0)
    if of_y.size:
        added(tape, of_y, times(turned(x), ct), 1.0)
"""
    + OF_TWO
)

SOLVE = (
    COMMON
    + '''

@njit
def result(a, b):
    """The solution of a system: that of the values, corrected by the tangents of the matrix."""
    n, k = b.shape[1], b.shape[2]
    out, beside = np.zeros((COMPONENTS, n, k)), np.empty((n, COMPONENTS * k))
    for step in range(LEVELS + 1 if a.shape[0] > 1 else 1):
        right = np.zeros(out.shape)
        plus(right, b, 1.0)
        if step:
            plus(right, times(moving(a), out), -1.0)
        for q in range(COMPONENTS):
            for i in range(n):
                for j in range(k):
                    beside[i, q * k + j] = right[q, i, j]
        found = np.linalg.solve(a[0], beside)
        for q in range(COMPONENTS):
            for i in range(n):
                for j in range(k):
                    out[q, i, j] = found[i, q * k + j]
    return out


@njit
def give(tape, ct, a, b, out, of_a, of_b):
    right = result(turned(a), ct)
    added(tape, of_b, right, 1.0)
    if of_a.size:
        added(tape, of_a, times(right, turned(out)), -1.0)
'''
    + OF_TWO
)

INVERSE = '''

@njit
def constant(x):
    """A matrix without tangents."""
    out = np.zeros((COMPONENTS, x.shape[0], x.shape[1]))
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[0, i, j] = x[i, j]
    return out


@njit
def inverted(a):
    """The inverse of a matrix: that of the values, corrected by the tangents."""
    out = constant(np.linalg.inv(a[0]))
    if LEVELS and a.shape[0] > 1:
        first = out.copy()
        for _ in range(LEVELS):
            out = -times(first, times(moving(a), out))
            plus(out, first, 1.0)
    return out
'''

INV = (
    COMMON
    + INVERSE
    + """

@njit
def result(a):
    return inverted(a)


@njit
def give(tape, ct, out, of_a):
    across = turned(out)
    added(tape, of_a, times(times(across, ct), across), -1.0)
"""
    + OF_ONE
)

SYMMETRIC = '''

@njit
def halves(x):
    """Half of the sum of a matrix and its transpose."""
    out = np.empty(x.shape)
    for q in range(x.shape[0]):
        for i in range(x.shape[1]):
            for j in range(x.shape[2]):
                out[q, i, j] = 0.5 * x[q, i, j] + 0.5 * x[q, j, i]
    return out


@njit
def symmetric(a):
    """A symmetric matrix, both of whose halves have a part in derivatives."""
    scale, apart = 0.0, 0.0
    for i in range(a.shape[1]):
        for j in range(i + 1):
            scale, apart = max(scale, abs(a[0, i, j])), max(apart, abs(a[0, i, j] - a[0, j, i]))
    if apart > 1e-8 * scale:
        raise np.linalg.LinAlgError("of symmetric matrices only is this recorded; found another")
    return halves(a)
'''

CHOLESKY = (
    COMMON
    + INVERSE
    + SYMMETRIC
    + '''

@njit
def lower(x):
    """The lower triangle with half of the diagonal, in the memory of a matrix."""
    for q in range(x.shape[0]):
        for i in range(x.shape[1]):
            x[q, i, i] *= 0.5
            for j in range(i + 1, x.shape[2]):
                x[q, i, j] = 0.0
    return x


@njit
def result(a):
    """The factor of a symmetric matrix: that of the values, corrected by the tangents."""
    s = symmetric(a)
    first = constant(np.linalg.cholesky(s[0]))
    out = first.copy()
    if LEVELS:
        back = inverted(first)
        for _ in range(LEVELS):
            rest = s.copy()
            plus(rest, times(out, turned(out)), -1.0)
            plus(out, times(first, lower(times(times(back, rest), turned(back)))), 1.0)
    return out


@njit
def give(tape, ct, out, of_a):
    back = inverted(out)
    inner = lower(times(turned(out), ct))
    added(tape, of_a, halves(times(times(turned(back), inner), back)), 1.0)
'''
    + OF_ONE
)

EIGH = (
    COMMON
    + SYMMETRIC
    + '''

@njit
def result(a):
    """Eigenvalues in the first row, and below them the vectors; of matrices without tangents."""
    w, v = np.linalg.eigh(symmetric(a)[0])
    out = np.empty((1, w.size + 1, w.size))
    for j in range(w.size):
        out[0, 0, j] = w[j]
        for i in range(w.size):
            out[0, i + 1, j] = v[i, j]
    return out


@njit
def give(tape, ct, out, of_a):
    """A vector with a cotangent turns to all others, infinitely to one of an equal value."""
    w, v = out[0, 0], out[:, 1:].copy()
    inner = times(turned(v), ct[:, 1:].copy())
    for j in range(w.size):
        turns = False
        for i in range(w.size):
            turns |= ct[0, i + 1, j] != 0.0
        for i in range(w.size):
            if i == j:
                inner[0, i, j] = ct[0, 0, j]
            elif turns:
                inner[0, i, j] = np.divide(inner[0, i, j], w[j] - w[i])
    added(tape, of_a, halves(times(times(v, inner), turned(v))), 1.0)
'''
    + OF_ONE
)
