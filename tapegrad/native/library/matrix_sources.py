"""Sources of functions of matrices, compiled once for each kind of number (`matrices.compiled`).

A function is given where its operands lie and returns the components of its result, the number of the first
statement, and the tape. Components lie in planes, matrices in C order, of an array of three axes.

The formulas are those of `ops.linalg` and `ops.decompositions`. Rules there are calls of NumPy's functions on
arrays and Tensors, with attributes, stacks and complex numbers; Numba compiles none of that, and what is here
has tangents of any order besides, of which those rules have none: so each stands here a second time, and
`tests/native/test_matrices.py` compares the two.
"""

from __future__ import annotations

from typing import NamedTuple


class Source(NamedTuple):
    """A function of matrices.

    Attributes
    ----------
    operands
        Names of its operands.
    text
        Its own part of the module: `result` returns what the block of the function knows, its planes first,
        and `give` hands cotangents on.
    by_columns
        Whether planes are matrices as LAPACK has them, and NumPy gives them to it: the transposes.
    values_only
        Whether it is of numbers without tangents.
    """

    operands: str
    text: str
    by_columns: bool = False
    values_only: bool = False


PRODUCT = Source(
    "ab",
    """

@inner_njit
def result(x, y, where):
    out = planes(COMPONENTS, x.shape[1], y.shape[2], where)
    multiplied(out, x, False, y, False, 1.0)
    return out, x, y


@inner_njit
def give(tape, ct, known, given):
    (_, x, y), (of_x, of_y) = known, given
    if of_x.size:
        added(tape, of_x, times(ct, False, y, True, 1.0))
    if of_y.size:
        added(tape, of_y, times(x, True, ct, False, 1.0))
""",
)

SOLVE = Source(
    "ab",
    '''
from tapegrad.ops.lapack import SMALL
from tapegrad.ops.triangles import TRANSPOSED

substitute = by_products("systems") if COMPONENTS == 1 else None  # a third of the time of triangular systems


@inner_njit
def result(x, y, where):
    factors, pivots, singular = factored(x)
    if singular:
        raise np.linalg.LinAlgError("the matrix is singular: a pivot of its elimination is 0")
    return over(widened(y), x, False, factors, pivots), x, factors, pivots


@inner_njit
def transposed(y, x, factors, pivots):
    """y x**-T."""
    return over(y, x, True, factors, pivots)


@inner_njit
def transposed_by_products(y, x, factors, pivots):
    n, right = x.shape[1], turned(y)
    substitute(factors, n, 1, TRANSPOSED, pivots + 1, n, right, right.shape[2])
    return turned(right)


if substitute is not None:
    transposed = transposed_by_products


@inner_njit
def give(tape, ct, known, given):
    (out, x, factors, pivots), (of_a, of_b) = known, given
    if x.shape[1] <= SMALL:  # as Tensors do; the first factors lose digits where the matrix is badly scaled
        x = turned(x)
        factors, pivots, singular = factored(x)
        if singular:
            raise np.linalg.LinAlgError("the matrix is singular: a pivot of its elimination is 0")
        back = over(ct, x, False, factors, pivots)
    else:
        back = transposed(ct, x, factors, pivots)
    if of_b.size:
        added(tape, of_b, back)
    if of_a.size:
        added(tape, of_a, times(out, True, back, False, -1.0))
''',
    by_columns=True,
)

INV = Source(
    "a",
    """

@inner_njit
def result(x, where):
    factors, pivots, singular = factored(x)
    if singular:
        raise np.linalg.LinAlgError("the matrix is singular: a pivot of its elimination is 0")
    one = np.zeros(COMPONENTS)
    one[0] = 1.0
    return (over(multiple_of_identity(one, x.shape[1]), x, False, factors, pivots),)


@inner_njit
def give(tape, ct, known, given):
    out = known[0]
    added(tape, given[0], times(times(out, True, ct, False, -1.0), False, out, True, 1.0))
""",
    by_columns=True,
)

CHOLESKY = Source(
    "a",
    '''
dpotrf = fortran("dpotrf")
reverse = by_products("of_cholesky") if COMPONENTS == 1 else None  # less than a third of the work


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
        raise np.linalg.LinAlgError("the matrix is not positive definite")
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


@inner_njit
def give_by_products(tape, ct, known, given):
    upper, found = turned(known[0]), turned(ct)
    reverse(upper, 1, found, 1, upper.shape[1])
    added(tape, given[0], found)


if reverse is not None:
    give = give_by_products
''',
)

SLOGDET = Source(
    "a",
    '''
from tapegrad.ops.triangles import INVERSE

invert = by_products("systems") if COMPONENTS == 1 else None  # nothing is computed of the identity's zeros


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


@inner_njit
def give_by_products(tape, ct, known, given):
    _, x, factors, pivots = known
    n, inverse = x.shape[1], np.empty(x.shape)
    invert(factors, n, 1, INVERSE, pivots + 1, n, inverse, n)
    added(tape, given[0], turned(inverse) * ct[0, 0, 0])


if invert is not None:
    give = give_by_products
''',
    by_columns=True,
)

QR = Source(
    "a",
    '''
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
        largest = 0.0  # whose square might overflow
        for i in range(j + 1):
            low[0, j, i] = columns[j, i]
            largest = max(largest, abs(columns[j, i]))
        dependent |= abs(columns[j, j]) <= 1e-13 * largest
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
''',
)
