"""Sources of functions of matrices, compiled once for each kind of number (`matrices.compiled`).

A function is given where its operands lie and returns the components of its result, the number of the first
statement, and the tape. Components lie in planes, matrices in C order, of an array of three axes.

The formulas are those of `ops.linalg` and `ops.decompositions`. Rules there are calls of NumPy's functions on
arrays and Tensors, with attributes, stacks and complex numbers; Numba compiles none of that, and what is here
has tangents of any order besides, of which those rules have none: so each stands here a second time, and
`tests/native/test_matrices.py` compares the two.
"""

PLANES = '''"""{name} of matrices of numbers with tangents {spec}. {digest}"""
import numpy as np
from numba import njit
from tapegrad.native.blocks import addressed, drop_of, inner_njit, keep, loading, pushed, roomy
from tapegrad.native.matrices import array_at, fortran, look
from tapegrad.native.memory import get, put, read, write
from tapegrad.native.tape import BEFORE, COTANGENTS, KNOWN

# Of numbers: how many components there are, how many levels of tangents, and which components of two factors
# have their product in which component.
COMPONENTS, LEVELS, PRODUCTS = {components}, {levels}, np.array({products})
STEP = 8 * (COMPONENTS + 2)  # bytes of a number: its components, its statement and its tape
ROWS_FIRST = {rows_first}  # whether the planes of the result are it, or its transpose

# To Fortran a plane is its transpose
dgemm, dgetrf, dtrsm = fortran("dgemm"), fortran("dgetrf"), fortran("dtrsm")
PLAIN, TURNED, LEFT, LOWER, UPPER, UNIT = ord("N"), ord("T"), ord("L"), ord("L"), ord("U"), ord("U")


@inner_njit
def laid(x):
    """A matrix as its planes are to be: as it is, or its transpose, in the same place."""
    address, active, m, n, row, column = x
    return x if ROWS_FIRST else (address, active, n, m, column, row)


@inner_njit
def planes(k, m, n, where):
    """An array for so many components of a matrix, in the memory of a tape if one is given."""
    if where:
        return array_at(roomy(where, 8 * k * m * n), (k, m, n), np.float64)
    return np.empty((k, m, n))


@inner_njit
def home(x):
    """The tape of the first element of a matrix, 0 if that is on none: where there is memory for copies."""
    address, active, m, n, row, column = x
    return get(address + 8 * (COMPONENTS + 1), 0) if active and m * n else 0


@inner_njit
def apart(x, where):
    """Components of a matrix, one if it is not active; statements, none if it is on no tape; and the tape."""
    address, active, m, n, row, column = x
    out, tape = planes(COMPONENTS if active else 1, m, n, where), 0
    if not active:
        for i in range(m):
            for j in range(n):
                out[0, i, j] = read(address + i * row + j * column)
        return out, array_at(0, (0,), np.uint32), 0
    if where:
        statements = array_at(roomy(where, 4 * m * n), (m * n,), np.uint32)
    else:
        statements = np.empty(m * n, np.uint32)
    for i in range(m):
        for j in range(n):
            place = address + i * row + j * column
            for q in range(COMPONENTS):
                out[q, i, j] = read(place + 8 * q)
            statements[i * n + j] = get(place, COMPONENTS)
            tape |= get(place, COMPONENTS + 1)
    return out, statements if tape else statements[:0], tape


@inner_njit
def taken(tape, block, shape):
    """The cotangents of a block's results, which are then zero; and whether there is any."""
    out, moves = np.empty(shape), False
    place = get(tape, COTANGENTS) + 8 * COMPONENTS * (get(block, BEFORE) + 1)
    for i in range(shape[1]):
        for j in range(shape[2]):
            for q in range(COMPONENTS):
                out[q, i, j] = read(place)
                moves |= out[q, i, j] != 0.0
                write(place, 0.0)
                place += 8
    return out, moves


@inner_njit
def added(tape, statements, part):
    """Add to the cotangents of a matrix's elements."""
    cotangents, flat = get(tape, COTANGENTS), part.reshape((COMPONENTS, -1))
    for k in range(statements.size):
        if statements[k]:
            for q in range(COMPONENTS):
                place = cotangents + 8 * (COMPONENTS * statements[k] + q)
                write(place, read(place) + flat[q, k])


@njit("void(float64[:, :, ::1], int64, int64, int64)", cache=CACHE)
def assemble(x, first, tape, address):
    """Write a result, of statements from `first` on, to the memory of an array in C order."""
    m, n = x.shape[1], x.shape[2]
    for i in range(m):
        for j in range(n):
            place = address + STEP * (i * n + j if ROWS_FIRST else j * m + i)
            for q in range(COMPONENTS):
                write(place + 8 * q, x[q, i, j])
            put(place, COMPONENTS, first + i * n + j if tape else 0)
            put(place, COMPONENTS + 1, tape)


@inner_njit
def product(out, x, x_turned, y, y_turned, factor, first):
    """Add a multiple of x y, of either its transpose if it is turned; of y components from `first` on."""
    m, n, inner = out.shape[1], out.shape[2], x.shape[1 if x_turned else 2]
    if m * n * inner == 0:
        return
    for t in range(PRODUCTS.shape[0]):
        i, j, k = PRODUCTS[t, 0], PRODUCTS[t, 1], PRODUCTS[t, 2]
        if i < x.shape[0] and first <= j < y.shape[0]:
            dgemm(TURNED if y_turned else PLAIN, TURNED if x_turned else PLAIN, n, m, inner, factor,
                  y[j], y.shape[2], x[i], x.shape[2], 1.0, out[k], n)


@inner_njit
def times(x, x_turned, y, y_turned, factor):
    """A multiple of x y, of either its transpose if it is turned."""
    out = np.zeros((COMPONENTS, x.shape[2 if x_turned else 1], y.shape[1 if y_turned else 2]))
    product(out, x, x_turned, y, y_turned, factor, 0)
    return out


@inner_njit
def exchanged(x, pivots, back):
    """Exchange columns in the memory of a matrix."""
    n = pivots.size
    for q in range(x.shape[0]):
        for i in range(x.shape[1]):
            for step in range(n):
                k = n - 1 - step if back else step
                x[q, i, k], x[q, i, pivots[k]] = x[q, i, pivots[k]], x[q, i, k]


@inner_njit
def over(y, x, x_turned, factors, pivots):
    """y x**-1, of x the transpose if it is turned: with the values of x, then corrected by its tangents.

    Of the values there are LU factors; or, without pivots, x is a lower triangle. LAPACK's solution by LU
    factors waits for threads at any size, which takes 20 ms where other programs have the cores.
    """
    out, n, rows = y, x.shape[1], COMPONENTS * y.shape[1]
    how = TURNED if x_turned else PLAIN
    for level in range(LEVELS + 1 if x.shape[0] > 1 else 1):
        rest = y.copy()
        if level:
            product(rest, out, False, x, x_turned, -1.0, 1)
        if not x_turned:
            exchanged(rest, pivots, False)
        if pivots.size and not x_turned:
            dtrsm(LEFT, LOWER, how, UNIT, n, rows, 1.0, factors, n, rest, n)
        dtrsm(LEFT, UPPER, how, PLAIN, n, rows, 1.0, factors, n, rest, n)
        if pivots.size and x_turned:
            dtrsm(LEFT, LOWER, how, UNIT, n, rows, 1.0, factors, n, rest, n)
        if x_turned:
            exchanged(rest, pivots, True)
        out = rest
    return out


@inner_njit
def factored(x):
    """LU factors of the values of a matrix, the exchanges of rows, and what is not 0 if it is singular."""
    n = x.shape[1]
    factors, pivots, found = x[0].copy(), np.empty(n, np.int64), np.zeros(n, np.int64)
    singular = dgetrf(n, n, factors, n, found, 0)
    for k in range(n):  # of 32 bits, if the last one, which is n, is not where it is of 64
        pivots[k] = (found[k] if found[n - 1] else found[k // 2] >> 32 * (k % 2) & 0xFFFFFFFF) - 1
    return factors, pivots, singular


@inner_njit
def widened(x):
    """A matrix with all components, as a copy."""
    out = np.zeros((COMPONENTS, x.shape[1], x.shape[2]))
    flat, given = out.reshape(-1), x.reshape(-1)
    for k in range(given.size):
        flat[k] = given[k]
    return out


@inner_njit
def multiple_of_identity(x, n):
    """A number times the identity of n rows."""
    out = np.zeros((COMPONENTS, n, n))
    for q in range(COMPONENTS):
        for i in range(n):
            out[q, i, i] = x[q]
    return out


NO_PIVOTS = np.empty(0, np.int64)


@inner_njit
def halves(x):
    """Half of the sum of a matrix and its transpose."""
    out = np.empty(x.shape)
    for q in range(x.shape[0]):
        for i in range(x.shape[1]):
            for j in range(i + 1):
                out[q, i, j] = 0.5 * x[q, i, j] + 0.5 * x[q, j, i]
                out[q, j, i] = out[q, i, j]
    return out


@inner_njit
def turned(x):
    """The transpose of a square matrix."""
    out = np.empty(x.shape)
    for q in range(x.shape[0]):
        for i in range(x.shape[1]):
            for j in range(x.shape[2]):
                out[q, i, j] = x[q, j, i]
    return out


@inner_njit
def symmetric(x):
    """A symmetric matrix, both of whose halves have a part in derivatives."""
    scale, apart = 0.0, 0.0
    for i in range(x.shape[1]):
        for j in range(i + 1):
            scale, apart = max(scale, abs(x[0, i, j])), max(apart, abs(x[0, i, j] - x[0, j, i]))
    if apart > 1e-8 * scale:
        raise np.linalg.LinAlgError("of symmetric matrices only is this recorded; found another")
    return halves(x)
'''

# `result` returns what the block of a function knows, its planes first, and `give` hands cotangents on
BLOCK = '''

def reversing(kind):
    load = loading(kind)

    def reverse(tape, block):
        known, given = load(get(block, KNOWN))
        ct, moves = taken(tape, block, known[0].shape)
        if moves:
            give(tape, ct, known, given)
        return 0

    return reverse


REVERSE, DROP = addressed(reversing), addressed(drop_of)


@njit("Tuple((float64[:, :, ::1], int64, int64))({signature})", cache=CACHE)
def {name}({operands}):
    """The result, the number of its first statement, and the tape."""
    {operands} = {laid}
    where = {homes}
    given = ({parts},)
    known = result({planes}, where)
    out, first, tape, size = known[0], 0, 0, known[0].size
    for _, statements, on in given:
        tape |= on
        size += statements.size
    if tape and out.size:
        look(tape, 16 * size)
        kept = known, ({statements},)
        first = pushed(tape, out.size // COMPONENTS, keep(kept), REVERSE(kept), DROP(kept)) + 1
    return out, first, tape
'''

PRODUCT = """

@inner_njit
def result(x, y, where):
    out = planes(COMPONENTS, x.shape[1], y.shape[2], where)
    out.fill(0.0)
    product(out, x, False, y, False, 1.0, 0)
    return out, x, y


@inner_njit
def give(tape, ct, known, given):
    (_, x, y), (of_x, of_y) = known, given
    if of_x.size:
        added(tape, of_x, times(ct, False, y, True, 1.0))
    if of_y.size:
        added(tape, of_y, times(x, True, ct, False, 1.0))
"""

SOLVE = """

@inner_njit
def result(x, y, where):
    factors, pivots, singular = factored(x)
    if singular:
        raise np.linalg.LinAlgError("Matrix is singular to machine precision.")
    return over(widened(y), x, False, factors, pivots), x, factors, pivots


@inner_njit
def give(tape, ct, known, given):
    (out, x, factors, pivots), (of_a, of_b) = known, given
    back = over(ct, x, True, factors, pivots)
    if of_b.size:
        added(tape, of_b, back)
    if of_a.size:
        added(tape, of_a, times(out, True, back, False, -1.0))
"""

INV = """

@inner_njit
def result(x, where):
    factors, pivots, singular = factored(x)
    if singular:
        raise np.linalg.LinAlgError("Matrix is singular to machine precision.")
    one = np.zeros(COMPONENTS)
    one[0] = 1.0
    return (over(multiple_of_identity(one, x.shape[1]), x, False, factors, pivots),)


@inner_njit
def give(tape, ct, known, given):
    out = known[0]
    added(tape, given[0], times(times(out, True, ct, False, -1.0), False, out, True, 1.0))
"""

CHOLESKY = '''
dpotrf = fortran("dpotrf")


@inner_njit
def lower(x):
    """The lower triangle with half of the diagonal, in the memory of a matrix."""
    for q in range(x.shape[0]):
        for i in range(x.shape[1]):
            x[q, i, i] *= 0.5
            for j in range(i + 1, x.shape[2]):
                x[q, i, j] = 0.0
    return x


@inner_njit
def between(x, low, turn):
    """What is symmetric of low**-T x low**-1, or of low**-1 x low**-T if `turn`."""
    part = over(x, low, turn, low[0], NO_PIVOTS)
    return over(turned(part), low, turn, low[0], NO_PIVOTS)


@inner_njit
def result(x, where):
    """The factor of a symmetric matrix: that of the values, corrected by the tangents."""
    s = symmetric(x)
    n = s.shape[1]
    first = np.zeros((1, n, n))
    for i in range(n):
        for j in range(i + 1):
            first[0, i, j] = s[0, i, j]
    if dpotrf(UPPER, n, first[0], n, 0):
        raise np.linalg.LinAlgError("Matrix is not positive definite.")
    out = widened(first)
    for _ in range(LEVELS):
        rest = s.copy()
        product(rest, out, False, out, True, -1.0, 0)
        product(out, first, False, lower(between(rest, first, True)), False, 1.0, 1)
    return (out,)


@inner_njit
def give(tape, ct, known, given):
    low = known[0]
    inner = lower(times(low, True, ct, False, 1.0))
    added(tape, given[0], halves(between(inner, low, False)))
'''

SLOGDET = '''

@inner_njit
def result(x, where):
    """Logarithm of the absolute value; sign, 0 if it is singular; least pivot over greatest."""
    factors, pivots, singular = factored(x)
    out = np.zeros((COMPONENTS, 3, 1))
    if singular:
        return out, x, factors, pivots
    sign, least, greatest = 1.0, np.inf, 0.0
    for k in range(x.shape[1]):
        size = abs(factors[k, k])
        out[0, 0, 0] += np.log(size)
        least, greatest = min(size, least), max(size, greatest)
        if (factors[k, k] < 0.0) != (pivots[k] != k):
            sign = -sign
    out[0, 1, 0], out[0, 2, 0] = sign, least / greatest
    if LEVELS:  # of 1 + p it is tr p - tr p**2 / 2 + tr p**3 / 3 ..., and p has no values
        moved = widened(x)
        moved[0].fill(0.0)
        part = over(moved, x[:1], False, factors, pivots)
        power = part
        for level in range(1, LEVELS + 1):
            for q in range(COMPONENTS):
                for k in range(x.shape[1]):
                    out[q, 0, 0] += power[q, k, k] / (level if level % 2 else -level)
            power = times(power, False, part, False, 1.0)
    return out, x, factors, pivots


@inner_njit
def give(tape, ct, known, given):
    _, x, factors, pivots = known
    part = over(multiple_of_identity(ct[:, 0, 0], x.shape[1]), x, True, factors, pivots)
    added(tape, given[0], part)
'''

EIGH = '''

@inner_njit
def result(x, where):
    """Eigenvalues in the first row, and below them the vectors; of matrices without tangents."""
    w, v = np.linalg.eigh(symmetric(x)[0])
    out = np.empty((1, w.size + 1, w.size))
    for j in range(w.size):
        out[0, 0, j] = w[j]
        for i in range(w.size):
            out[0, i + 1, j] = v[i, j]
    return (out,)


@inner_njit
def give(tape, ct, known, given):
    """A vector with a cotangent turns to all others, infinitely to one of an equal value."""
    w, v = known[0][0, 0], known[0][:, 1:].copy()
    inner = times(v, True, ct[:, 1:].copy(), False, 1.0)
    for j in range(w.size):
        turns = False
        for i in range(w.size):
            turns |= ct[0, i + 1, j] != 0.0
        for i in range(w.size):
            if i == j:
                inner[0, i, j] = ct[0, 0, j]
            elif turns:
                inner[0, i, j] = np.divide(inner[0, i, j], w[j] - w[i])
    added(tape, given[0], halves(times(times(v, False, inner, False, 1.0), False, v, True, 1.0)))
'''

QR = '''
dgeqrf, dorgqr = fortran("dgeqrf"), fortran("dorgqr")


@inner_njit
def found(x):
    """Of the values of a matrix, with at least as many rows as columns, q and the transpose of r."""
    m, n = x.shape[1], x.shape[2]
    columns, q, low = np.empty((n, m)), np.empty((1, m, n)), np.zeros((1, n, n))
    for j in range(n):
        for i in range(m):
            columns[j, i] = x[0, i, j]
    scales, work = np.empty(n), np.empty(64 * n)
    dgeqrf(m, n, columns, m, scales, work, work.size, 0)
    dependent = False
    for j in range(n):
        size = 0.0
        for i in range(j + 1):
            low[0, j, i] = columns[j, i]
            size += columns[j, i] ** 2
        dependent |= columns[j, j] ** 2 <= 1e-26 * size
    if dependent:
        raise np.linalg.LinAlgError("qr: where columns are dependent there is no derivative")
    dorgqr(m, n, n, columns, m, scales, work, work.size, 0)
    for j in range(n):
        for i in range(m):
            q[0, i, j] = columns[j, i]
    return q, low


@inner_njit
def result(x, where):
    """First q, then r below it: those of the values, corrected by the tangents."""
    first, low_first = found(x)
    q, low, n = widened(first), widened(low_first), x.shape[2]
    for _ in range(LEVELS):
        ratio = widened(x)
        product(ratio, q, False, low, True, -1.0, 0)
        ratio = over(ratio, low_first, True, low_first[0], NO_PIVOTS)
        square, upper = times(q, True, q, False, -1.0), times(first, True, ratio, False, 1.0)
        for k in range(1, COMPONENTS):
            for j in range(n):
                upper[k, j, j] -= 0.5 * square[k, j, j]
                for i in range(j + 1, n):
                    upper[k, j, i] += upper[k, i, j] - square[k, i, j]
                    upper[k, i, j] = 0.0
        to, by = q.reshape(-1), ratio.reshape(-1)
        for k in range(first.size, to.size):
            to[k] += by[k]
        product(q, first, False, upper, False, -1.0, 1)
        product(low, low_first, False, upper, True, 1.0, 1)
    return joined(q, turned(low)), low


@inner_njit
def joined(x, y):
    """Two matrices, one below the other."""
    m = x.shape[1]
    out = np.empty((COMPONENTS, m + y.shape[1], x.shape[2]))
    for k in range(COMPONENTS):
        for j in range(x.shape[2]):
            for i in range(m):
                out[k, i, j] = x[k, i, j]
            for i in range(y.shape[1]):
                out[k, m + i, j] = y[k, i, j]
    return out


@inner_njit
def give(tape, ct, known, given):
    out, low = known
    n = low.shape[1]
    m = out.shape[1] - n
    q, total = out[:, :m].copy(), ct[:, :m].copy()
    inner, own = times(ct[:, m:].copy(), False, low, False, 1.0), times(q, True, total, False, 1.0)
    for k in range(COMPONENTS):
        for j in range(n):
            inner[k, j, j] -= own[k, j, j]
            for i in range(j):
                both = inner[k, i, j]
                inner[k, j, i] = both - own[k, i, j]
                inner[k, i, j] = both - own[k, i, j]
    product(total, q, False, inner, False, 1.0, 0)
    added(tape, given[0], over(total, low, False, low[0], NO_PIVOTS))
'''
