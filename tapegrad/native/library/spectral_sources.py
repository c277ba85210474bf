"""Sources of eigenvalues, singular values and what is made of them, as those of `matrix_sources`.

What moves a vector is divided by the distances of its value from all others, if a cotangent asks for it.
Vectors of numbers with tangents are corrected by products of matrices once for each level (Ogita and Aishima,
2018 and 2020, "Iterative refinement for symmetric eigenvalue decomposition" and "for singular value
decomposition"): where values are close, what one pair divides by costs all others digits, so that `spectra`
asks how far they are apart.
"""

from __future__ import annotations

from tapegrad.native.library.matrix_sources import Source

SHARED = '''

@inner_njit
def turning(ct):
    """Which vectors have a cotangent: columns that are not zero."""
    found = np.zeros(ct.shape[2], np.bool_)
    for q in range(COMPONENTS):
        for i in range(ct.shape[1]):
            for j in range(ct.shape[2]):
                found[j] |= ct[q, i, j] != 0.0
    return found


@inner_njit
def across(x, m):
    """Numbers as m equal rows."""
    out = np.empty((COMPONENTS, m, x.shape[1]))
    for i in range(m):
        out[:, i] = x
    return out


@inner_njit
def elementwise(out, x, y, factor, first):
    """Add a multiple of products of elements; of y components from `first` on."""
    for t in range(PRODUCTS.shape[0]):
        i, j, k = PRODUCTS[t, 0], PRODUCTS[t, 1], PRODUCTS[t, 2]
        if j >= first:
            out[k] += factor * x[i] * y[j]
    return out


@inner_njit
def quotient(x, y, asked):
    """x / y of elements in columns that are asked for, in others 0; corrected once for each level."""
    out = np.zeros(x.shape)
    for level in range(LEVELS + 1):
        rest = elementwise(x.copy(), out, y, -1.0, 1) if level else x
        for q in range(COMPONENTS):
            for i in range(x.shape[1]):
                for j in range(x.shape[2]):
                    if asked[j]:
                        out[q, i, j] = np.divide(rest[q, i, j], y[0, i, j])
    return out


@inner_njit
def between(w):
    """w[j] - w[i]."""
    n = w.shape[1]
    out = across(w, n)
    for q in range(COMPONENTS):
        for i in range(n):
            out[q, i] -= w[q, i]
    return out


@inner_njit
def as_diagonal(x, w):
    """A matrix whose diagonal is replaced."""
    for q in range(COMPONENTS):
        for j in range(w.shape[1]):
            x[q, j, j] = w[q, j]
    return x
'''

EIGH = Source(
    "a",
    f'''{SHARED}

@inner_njit
def result(x, where):
    """Eigenvalues in the first row, and below them the vectors."""
    a = symmetric(x)
    found, vectors = np.linalg.eigh(a[0])
    n = found.size
    first = np.ascontiguousarray(vectors).reshape((1, n, n))
    v, out = widened(first), np.zeros((COMPONENTS, n + 1, n))
    out[0, 0] = found
    for _ in range(LEVELS):
        moves = times(v, True, v, False, -1.0)
        inner = times(v, True, times(a, False, v, False, 1.0), False, 1.0)
        for q in range(1, COMPONENTS):
            for i in range(n):
                for j in range(n):
                    move = inner[q, i, j] + found[j] * moves[q, i, j]
                    if i == j:
                        out[q, 0, j], moves[q, i, j] = move, 0.5 * moves[q, i, j]
                    else:
                        moves[q, i, j] = np.divide(move, found[j] - found[i])
        product(v, first, False, moves, False, 1.0, 1)
    out[:, 1:] = v
    return (out,)


@inner_njit
def give(tape, ct, known, given):
    """A vector with a cotangent turns to all others, infinitely to one of an equal value."""
    w, v, by_v = known[0][:, 0].copy(), known[0][:, 1:].copy(), ct[:, 1:].copy()
    turns, inner = turning(by_v), np.zeros(v.shape)
    if turns.any():
        inner = quotient(times(v, True, by_v, False, 1.0), between(w), turns)
    inner = as_diagonal(inner, ct[:, 0])
    added(tape, given[0], halves(times(times(v, False, inner, False, 1.0), False, v, True, 1.0)))
''',
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
        raise np.linalg.LinAlgError("a square matrix is needed")
    if not np.isfinite(x[0]).all():
        raise np.linalg.LinAlgError("the matrix holds an infinity or nan")
    columns, rows = turned(x[:1]), np.empty((1, n, n))
    real, imaginary, work = np.empty(n), np.empty(n), np.empty(72 * n + 4200)
    if dgeev(PLAIN, VECTORS, n, columns, n, real, imaginary, rows, n, rows, n, work, work.size, 0):
        raise np.linalg.LinAlgError("Eigenvalues did not converge.")
    if imaginary.any():
        raise ValueError("{{name}}() argument must not cause a domain change.")
    first, one = turned(rows), np.zeros(COMPONENTS)
    factors, pivots, singular = factored(first)
    one[0] = 1.0
    identity = multiple_of_identity(one, n)
    inverse = first if singular else over(identity, first, False, factors, pivots)
    if singular or not np.linalg.norm(inverse.reshape(-1)) * n**1.5 * 2.220446049250313e-16 < 1.0:
        raise np.linalg.LinAlgError("eigenvectors of a defective matrix are dependent and have no derivative")
    v, out = widened(first), np.zeros((COMPONENTS, n + 1, n))
    out[0, 0] = real
    if LEVELS:
        refine(x, first, inverse, v, out)
        inverse = over(identity, v, False, factors, pivots)
    out[:, 1:] = v
    return out, inverse


@inner_njit
def refine(x, first, inverse, v, out):
    """Correct eigenvalues and eigenvectors by the tangents."""
    n = x.shape[1]
    shared = times(first, True, first, False, 1.0)[0]
    for _ in range(LEVELS):
        rest = times(x, False, v, False, 1.0)
        elementwise(rest, v, across(out[:, 0].copy(), n), -1.0, 0)
        moves, square = times(inverse, False, rest, False, 1.0), times(v, True, v, False, 1.0)
        for q in range(1, COMPONENTS):
            for j in range(n):
                out[q, 0, j] += moves[q, j, j]
                length = 0.5 * square[q, j, j]
                for i in range(n):
                    if i != j:
                        moves[q, i, j] = np.divide(moves[q, i, j], out[0, 0, j] - out[0, 0, i])
                        length += shared[i, j] * moves[q, i, j]
                moves[q, j, j] = -length
        product(v, first, False, moves, False, 1.0, 1)


@inner_njit
def give(tape, ct, known, given):
    """As that of `eigh`, but that vectors which are not at right angles to others also get longer."""
    out, inverse = known
    w, v, by_v = out[:, 0].copy(), out[:, 1:].copy(), ct[:, 1:].copy()
    turns, inner = turning(by_v), np.zeros(v.shape)
    if turns.any():
        inner, lengths = times(v, True, by_v, False, 1.0), np.empty(w.shape)
        for j in range(w.shape[1]):
            lengths[:, j] = inner[:, j, j]
        longer = across(lengths, w.shape[1])
        inner = elementwise(inner, times(v, True, v, False, 1.0), longer, -1.0, 0)
        inner = quotient(inner, between(w), turns)
    inner = as_diagonal(inner, ct[:, 0])
    added(tape, given[0], times(inverse, True, times(inner, False, v, True, 1.0), False, 1.0))
''',
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
    return flat[:, at : at + m * n].copy().reshape((COMPONENTS, m, n))


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
def refine(x, first_u, found, first_v, u, s, v):
    """Correct singular values and vectors by the tangents."""
    k = found.size
    for _ in range(LEVELS):
        turns, others = times(u, True, u, False, -1.0), times(v, True, v, False, -1.0)
        image = times(x, False, v, False, 1.0)
        left = times(u, True, image, False, 1.0)
        right = turned(left)
        for q in range(1, COMPONENTS):
            for i in range(k):
                for j in range(k):
                    left[q, i, j] += found[j] * turns[q, i, j]
                    right[q, i, j] += found[j] * others[q, i, j]
            for i in range(k):
                s[q, i] = 0.5 * left[q, i, i] + 0.5 * right[q, i, i]
                turns[q, i, i], others[q, i, i] = 0.5 * turns[q, i, i], 0.5 * others[q, i, i]
                for j in range(k):
                    if i != j:
                        gap = (found[j] - found[i]) * (found[j] + found[i])
                        by_u, by_v = left[q, i, j], right[q, i, j]
                        turns[q, i, j] = np.divide(by_u * found[j] + by_v * found[i], gap)
                        others[q, i, j] = np.divide(by_u * found[i] + by_v * found[j], gap)
        if u.shape[1] > k:
            leave(u, outside(image, u, left), found)
        if v.shape[1] > k:
            leave(v, outside(times(x, True, u, False, 1.0), v, right), found)
        product(u, first_u, False, turns, False, 1.0, 1)
        product(v, first_v, False, others, False, 1.0, 1)


@inner_njit
def leave(u, moved, s):
    """Move vectors out of the space that they span."""
    for q in range(1, COMPONENTS):
        for i in range(u.shape[1]):
            for j in range(s.size):
                u[q, i, j] += np.divide(moved[q, i, j], s[j])


@inner_njit
def completed(u, first):
    """Vectors, and beside them others, which turn as little as they can."""
    if first.shape[2] == 0:
        return u
    rest, k = widened(first), u.shape[2]
    for _ in range(LEVELS):
        inside, square = times(u, True, rest, False, -1.0), times(rest, True, rest, False, -0.5)
        product(rest, u, False, inside, False, 1.0, 1)
        product(rest, first, False, square, False, 1.0, 1)
    out = np.empty((COMPONENTS, u.shape[1], k + rest.shape[2]))
    out[:, :, :k], out[:, :, k:] = u, rest
    return out


@inner_njit
def result(x, where):
    """In a column: singular values, left vectors, right vectors."""
    all_u, found, all_v = decomposed(x, FULL)
    k = found.size
    first_u, first_v = all_u[:, :, :k].copy(), all_v[:, :, :k].copy()
    u, s, v = widened(first_u), np.zeros((COMPONENTS, k)), widened(first_v)
    s[0] = found
    refine(x, first_u, found, first_v, u, s, v)
    u, v = completed(u, all_u[:, :, k:].copy()), completed(v, all_v[:, :, k:].copy())
    middle = k + all_u.size
    out = np.empty((COMPONENTS, middle + all_v.size, 1))
    for q in range(COMPONENTS):
        out[q, :k, 0], out[q, k:middle, 0], out[q, middle:, 0] = s[q], u[q].reshape(-1), v[q].reshape(-1)
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
    return quotient(outside(by_u, u, inside), across(s, u.shape[1]), turns)


@inner_njit
def differences(x):
    """A matrix less its transpose."""
    return x - turned(x)


@inner_njit
def turned_by(x, y, s, asked):
    """(x[i, j] s[j] + y[i, j] s[i]) / (s[j]**2 - s[i]**2), if it is asked for by either vector."""
    k = s.shape[1]
    columns = across(s, k)
    rows = turned(columns)
    found = elementwise(np.zeros(x.shape), x, columns, 1.0, 0)
    elementwise(found, y, rows, 1.0, 0)
    gaps = elementwise(np.zeros(x.shape), columns - rows, columns + rows, 1.0, 0)
    for i in range(k):
        for j in range(k):
            if i == j or not (asked[i] or asked[j]):
                found[:, i, j], gaps[0, i, j] = 0.0, 1.0
    return quotient(found, gaps, np.ones(k, np.bool_))


@inner_njit
def give(tape, ct, known, given):
    """A vector with a cotangent turns to all others, infinitely to one of an equal value."""
    out, m, n = known
    k = min(m, n)
    p, q = (m, n) if FULL else (k, k)
    s, by_s = out[:, :k, 0].copy(), ct[:, :k, 0]
    u, by_u = first(part(out, k, m, p), part(ct, k, m, p), k)
    v, by_v = first(part(out, k + m * p, n, q), part(ct, k + m * p, n, q), k)
    left, right = turning(by_u), turning(by_v)
    of_u = of_v = inner = np.zeros((COMPONENTS, k, k))
    if left.any():
        of_u = times(u, True, by_u, False, 1.0)
    if right.any():
        of_v = times(v, True, by_v, False, 1.0)
    if left.any() or right.any():
        inner = turned_by(differences(of_u), differences(of_v), s, left | right)
    extra = beyond(v, by_v, of_v, right, s) if n > m else beyond(u, by_u, of_u, left, s)
    added(tape, given[0], around(u, as_diagonal(inner, by_s), v, extra))
'''

SVD = Source("a", f"{SINGULAR}\nFULL = False\n{FACTORS}")
SVD_FULL = Source("a", f"{SINGULAR}\nFULL = True\n{FACTORS}")

COUNTED = f'''{SINGULAR}
from tapegrad.native.library.spectra import see_that_it_counts

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
                less, more = s[j] - s[i], s[j] + s[i]
                inner[0, i, j] = (x * s[j] + y * s[i]) / more / less / s[j]
                inner[0, j, i] = (x * s[i] + y * s[j]) / more / less / s[j]
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
dgeqrf, RIGHT = fortran("dgeqrf"), ord("R")


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
def by_triangle(x, rest, solution, by_solution):
    """Cotangents of the right sides and of a matrix with independent columns, by its triangular factor."""
    m, n, p = x.shape[1], x.shape[2], by_solution.shape[2]
    columns, part = np.ascontiguousarray(x[0].T), by_solution.copy()
    scales, work = np.empty(n), np.empty(64 * n)
    dgeqrf(m, n, columns, m, scales, work, work.size, 0)
    for how in (PLAIN, TURNED):
        dtrsm(RIGHT, UPPER, how, PLAIN, p, n, 1.0, columns, m, part, p)
    by_y = times(x, False, part, False, 1.0)
    by_x = times(rest, False, part, True, 1.0)
    product(by_x, by_y, False, solution, True, -1.0, 0)
    return by_y, by_x


@inner_njit
def by_vectors(x, y, rank, by_solution, by_s):
    """The same by singular vectors, of which so many count, and by cotangents of the values."""
    u, s, v = decomposed(x, False)
    of_x, of_y = times(v, True, by_solution, False, 1.0), times(u, True, y, False, 1.0)
    scaled = of_x.copy()
    for i in range(s.size):
        for j in range(y.shape[2]):
            scaled[0, i, j] = of_x[0, i, j] / s[i] if i < rank else 0.0
    wide = v.shape[1] > u.shape[1]
    longer = times(by_solution, False, of_y, True, 1.0) if wide else times(y, False, of_x, True, 1.0)
    inside = times(of_y, False, of_x, True, 1.0)
    return times(u, False, scaled, False, 1.0), by_inverse(u, s, v, rank, inside, longer, by_s)


@inner_njit
def give(tape, ct, known, given):
    (out, x, y, rank), (of_a, of_b, _) = known, given
    n, p, k = x.shape[2], y.shape[2], min(x.shape[1], x.shape[2])
    solution, by_solution = part(out, 1 + k, n, p), part(ct, 1 + k, n, p)
    by_s, by_left = ct[0, 1 : 1 + k, 0], ct[0, 1 + k + n * p :, 0]
    rest = y.copy()
    product(rest, x, False, solution, False, -1.0, 0)
    if rank == n and not by_s.any():
        by_y, by_x = by_triangle(x, rest, solution, by_solution)
    else:
        by_y, by_x = by_vectors(x, y, rank, by_solution, by_s)
    if by_left.any():
        rest[0] *= 2.0 * by_left
        by_y += rest
        product(by_x, rest, False, solution, True, -1.0, 0)
    if of_b.size:
        added(tape, of_b, by_y)
    if of_a.size:
        added(tape, of_a, by_x)
''',
    values_only=True,
)
