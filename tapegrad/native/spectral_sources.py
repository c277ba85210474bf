"""Sources of eigenvalues, singular values and what is made of them, as those of `matrix_sources`.

They are of numbers without tangents; matrices of others are recorded element by element (`spectra`). What
moves a vector is divided by the distances of its value from all others, if a cotangent asks for it.
"""

from __future__ import annotations

from tapegrad.native.matrix_sources import Source

SHARED = '''

@inner_njit
def turning(ct):
    """Which vectors have a cotangent: columns that are not zero."""
    found = np.zeros(ct.shape[2], np.bool_)
    for i in range(ct.shape[1]):
        for j in range(ct.shape[2]):
            found[j] |= ct[0, i, j] != 0.0
    return found
'''

EIGH = Source(
    "a",
    f'''{SHARED}

@inner_njit
def result(x, where):
    """Eigenvalues in the first row, and below them the vectors."""
    w, v = np.linalg.eigh(symmetric(x)[0])
    out = np.empty((1, w.size + 1, w.size))
    out[0, 0], out[0, 1:] = w, v
    return (out,)


@inner_njit
def give(tape, ct, known, given):
    """A vector with a cotangent turns to all others, infinitely to one of an equal value."""
    w, v, by_v = known[0][0, 0], known[0][:, 1:].copy(), ct[:, 1:].copy()
    turns = turning(by_v)
    inner = times(v, True, by_v, False, 1.0) if turns.any() else np.zeros(v.shape)
    for j in range(w.size):
        for i in range(w.size):
            if i == j:
                inner[0, i, j] = ct[0, 0, j]
            elif turns[j]:
                inner[0, i, j] = np.divide(inner[0, i, j], w[j] - w[i])
    added(tape, given[0], halves(times(times(v, False, inner, False, 1.0), False, v, True, 1.0)))
''',
    values_only=True,
)

EIG = EIGVALS = Source(
    "a",
    f'''{SHARED}
dgeev, VECTORS = fortran("dgeev"), ord("V")


@inner_njit
def result(x, where):
    """Eigenvalues in the first row, and below them the vectors, of length 1."""
    n = x.shape[1]
    if n != x.shape[2]:
        raise np.linalg.LinAlgError("Last 2 dimensions of the array must be square.")
    if not np.isfinite(x).all():
        raise np.linalg.LinAlgError("Array must not contain infs or NaNs.")
    columns, rows, out = turned(x), np.empty((1, n, n)), np.empty((1, n + 1, n))
    real, imaginary, work = np.empty(n), np.empty(n), np.empty(72 * n + 4200)
    if dgeev(PLAIN, VECTORS, n, columns, n, real, imaginary, rows, n, rows, n, work, work.size, 0):
        raise np.linalg.LinAlgError("Eigenvalues did not converge.")
    if imaginary.any():
        raise ValueError("{{name}}() argument must not cause a domain change.")
    v = turned(rows)
    out[0, 0], out[0, 1:] = real, v[0]
    factors, pivots, singular = factored(v)
    inverse = v if singular else over(multiple_of_identity(np.ones(1), n), v, False, factors, pivots)
    if singular or not np.linalg.norm(inverse.reshape(-1)) * n**1.5 * 2.220446049250313e-16 < 1.0:
        raise np.linalg.LinAlgError("eigenvectors of a defective matrix are dependent and have no derivative")
    return out, v, inverse


@inner_njit
def give(tape, ct, known, given):
    """As that of `eigh`, but that vectors which are not at right angles to others also get longer."""
    out, v, inverse = known
    w, by_v = out[0, 0], ct[:, 1:].copy()
    turns = turning(by_v)
    inner = times(v, True, by_v, False, 1.0) if turns.any() else np.zeros(v.shape)
    square = times(v, True, v, False, 1.0) if turns.any() else inner
    for j in range(w.size):
        length = inner[0, j, j]
        for i in range(w.size):
            if i == j:
                inner[0, i, j] = ct[0, 0, j]
            elif turns[j]:
                inner[0, i, j] = np.divide(inner[0, i, j] - length * square[0, i, j], w[j] - w[i])
    added(tape, given[0], times(inverse, True, times(inner, False, v, True, 1.0), False, 1.0))
''',
    values_only=True,
)

SINGULAR = f'''{SHARED}

@inner_njit
def decomposed(x, full):
    """Left vectors, singular values and right vectors, these as columns too."""
    u, s, vt = np.linalg.svd(x[0], full)
    left, right = np.ascontiguousarray(u), np.ascontiguousarray(vt.T)
    return left.reshape((1, *left.shape)), s, right.reshape((1, *right.shape))


@inner_njit
def part(flat, at, m, n):
    """A matrix out of a column of numbers."""
    return flat[:, at : at + m * n].copy().reshape((1, m, n))


@inner_njit
def outside(x, u, inside):
    """x without its part in the space of u, which is u times `inside`; in the memory of x."""
    product(x, u, False, inside, False, -1.0, 0)
    return x


@inner_njit
def around(u, inner, v, extra):
    """u inner v^T + extra v^T; or, if the right vectors are longer, + u extra^T."""
    if u.shape[1] >= v.shape[1]:
        product(extra, u, False, inner, False, 1.0, 0)
        return times(extra, False, v, True, 1.0)
    product(extra, v, False, inner, True, 1.0, 0)
    return times(u, False, extra, True, 1.0)
'''

FACTORS = '''

@inner_njit
def result(x, where):
    """In a column: singular values, left vectors, right vectors."""
    u, s, v = decomposed(x, FULL)
    out = np.empty((1, s.size + u.size + v.size, 1))
    flat = out.reshape(-1)
    flat[: s.size], flat[s.size : s.size + u.size] = s, u.reshape(-1)
    flat[s.size + u.size :] = v.reshape(-1)
    return out, x.shape[1], x.shape[2]


@inner_njit
def first(x, by_x, k):
    """k vectors and their cotangents: others turn as these do, so as little as they can."""
    if x.shape[2] == k:
        return x, by_x
    own, by_own = x[:, :, :k].copy(), by_x[:, :, :k].copy()
    rest, by_rest = x[:, :, k:].copy(), by_x[:, :, k:].copy()
    product(by_own, rest, False, times(by_rest, True, own, False, 1.0), False, -1.0, 0)
    return own, by_own


@inner_njit
def beyond(u, by_u, inside, turns, s):
    """What turns vectors out of the space that they span; zeros if that is all there is."""
    if u.shape[1] == u.shape[2] or not turns.any():
        return np.zeros(u.shape)
    found = outside(by_u, u, inside)
    for i in range(u.shape[1]):
        for j in range(s.size):
            found[0, i, j] = np.divide(found[0, i, j], s[j]) if turns[j] else 0.0
    return found


@inner_njit
def give(tape, ct, known, given):
    """A vector with a cotangent turns to all others, infinitely to one of an equal value."""
    out, m, n = known
    k = min(m, n)
    p, q = (m, n) if FULL else (k, k)
    s, by_s = out[0, :k, 0], ct[0, :k, 0]
    u, by_u = first(part(out, k, m, p), part(ct, k, m, p), k)
    v, by_v = first(part(out, k + m * p, n, q), part(ct, k + m * p, n, q), k)
    left, right = turning(by_u), turning(by_v)
    of_u, of_v = np.zeros((1, k, k)), np.zeros((1, k, k))
    if left.any():
        of_u = times(u, True, by_u, False, 1.0)
    if right.any():
        of_v = times(v, True, by_v, False, 1.0)
    inner = np.zeros((1, k, k))
    for i in range(k):
        inner[0, i, i] = by_s[i]
        for j in range(i):
            if left[i] or left[j] or right[i] or right[j]:
                gap = (s[j] - s[i]) * (s[j] + s[i])
                x, y = of_u[0, i, j] - of_u[0, j, i], of_v[0, i, j] - of_v[0, j, i]
                inner[0, i, j] = np.divide(x * s[j] + y * s[i], gap)
                inner[0, j, i] = np.divide(x * s[i] + y * s[j], gap)
    extra = beyond(v, by_v, of_v, right, s) if n > m else beyond(u, by_u, of_u, left, s)
    added(tape, given[0], around(u, inner, v, extra))
'''

SVD = Source("a", f"{SINGULAR}\nFULL = False\n{FACTORS}", values_only=True)
SVD_FULL = Source("a", f"{SINGULAR}\nFULL = True\n{FACTORS}", values_only=True)

COUNTED = f'''{SINGULAR}
from tapegrad.native.spectra import see_that_it_counts

@inner_njit
def by_inverse(u, s, v, rank, inside, longer, by_s):
    """The cotangent of a matrix by that of its pseudoinverse, and of its singular values.

    Of the transposed cotangent g of the pseudoinverse, in which so many singular values count, it is given
    u^T g v; and g v, or g^T u if the right vectors are longer. The spaces of those values turn to what is
    beside them.
    """
    inner, extra = np.zeros(inside.shape), np.zeros(u.shape if u.shape[1] >= v.shape[1] else v.shape)
    for j in range(rank):
        for i in range(s.size):
            x, y = inside[0, i, j], inside[0, j, i]
            if i < rank:
                inner[0, i, j] = -y / s[i] / s[j]
            else:
                gap = s[j] * (s[j] - s[i]) * (s[j] + s[i])
                inner[0, i, j] = (x * s[j] + y * s[i]) / gap
                inner[0, j, i] = (x * s[i] + y * s[j]) / gap
    for j in range(s.size):
        inner[0, j, j] += by_s[j]
    if u.shape[1] != v.shape[1]:
        extra = outside(longer, u, inside) if u.shape[1] > v.shape[1] else outside(longer, v, turned(inside))
        for i in range(extra.shape[1]):
            for j in range(s.size):
                extra[0, i, j] = extra[0, i, j] / s[j] / s[j] if j < rank else 0.0
    return around(u, inner, v, extra)
'''

PINV = Source(
    "ac",
    f'''{COUNTED}

@inner_njit
def result(x, limit, where):
    """The pseudoinverse that counts singular values above so many times the greatest."""
    u, s, v = decomposed(x, False)
    rank = (s > limit[0, 0, 0] * s[0]).sum()
    see_that_it_counts(s, x.shape[1:], rank)
    scaled = v.copy()
    for i in range(v.shape[1]):
        for j in range(s.size):
            scaled[0, i, j] = v[0, i, j] / s[j] if j < rank else 0.0
    return times(scaled, False, u, True, 1.0), u, s, v, rank


@inner_njit
def give(tape, ct, known, given):
    _, u, s, v, rank = known
    wide = v.shape[1] > u.shape[1]
    longer = times(ct, False, u, False, 1.0) if wide else times(ct, True, v, False, 1.0)
    inside = times(longer, True, v, False, 1.0) if wide else times(u, True, longer, False, 1.0)
    added(tape, given[0], by_inverse(u, s, v, rank, inside, longer, np.zeros(s.size)))
''',
    values_only=True,
)

LSTSQ = Source(
    "abc",
    f'''{COUNTED}

@inner_njit
def result(x, y, limit, where):
    """In a column: the rank, singular values, the solution, sums of squares of what is left."""
    found, squares, rank, s = np.linalg.lstsq(x[0], y[0], limit[0, 0, 0])
    see_that_it_counts(s, x.shape[1:], rank)
    solution = np.ascontiguousarray(found).reshape(-1)
    size = 1 + s.size + solution.size
    out = np.zeros((1, size + y.shape[2], 1))
    flat = out.reshape(-1)
    flat[0], flat[1 : 1 + s.size], flat[1 + s.size : size] = rank, s, solution
    flat[size : size + squares.size] = squares
    return out, x, y, rank


@inner_njit
def give(tape, ct, known, given):
    (out, x, y, rank), (of_a, of_b, _) = known, given
    u, s, v = decomposed(x, False)
    n, p, k = x.shape[2], y.shape[2], s.size
    solution, by_solution = part(out, 1 + k, n, p), part(ct, 1 + k, n, p)
    of_x, left = times(v, True, by_solution, False, 1.0), np.zeros(y.shape)
    by_s, by_left = ct[0, 1 : 1 + k, 0], ct[0, 1 + k + n * p :, 0]
    if by_left.any():
        left += y
        product(left, x, False, solution, False, -1.0, 0)
        for i in range(left.shape[1]):
            for j in range(p):
                left[0, i, j] *= 2.0 * by_left[j]
    if of_b.size:
        scaled = of_x.copy()
        for i in range(k):
            for j in range(p):
                scaled[0, i, j] = of_x[0, i, j] / s[i] if i < rank else 0.0
        by_b = left.copy()
        product(by_b, u, False, scaled, False, 1.0, 0)
        added(tape, of_b, by_b)
    if of_a.size:
        of_y = times(u, True, y, False, 1.0)
        wide = v.shape[1] > u.shape[1]
        longer = times(by_solution, False, of_y, True, 1.0) if wide else times(y, False, of_x, True, 1.0)
        found = by_inverse(u, s, v, rank, times(of_y, False, of_x, True, 1.0), longer, by_s)
        product(found, left, False, solution, True, -1.0, 0)
        added(tape, of_a, found)
''',
    values_only=True,
)
