"""Small systems of equations by LU factors, in loops; right sides may be active numbers."""

from tapegrad.native.tapes.blocks import inner_njit


@inner_njit
def factor(lu, rows):
    """Exchange a matrix for its LU factors, and write which rows they are of; False if it is singular."""
    n = rows.size
    for i in range(n):
        rows[i] = i
    for k in range(n):
        best = k
        for i in range(k + 1, n):
            if abs(lu[i, k]) > abs(lu[best, k]):
                best = i
        if lu[best, k] == 0.0:
            return False
        if best != k:
            rows[k], rows[best] = rows[best], rows[k]
            for j in range(n):
                lu[k, j], lu[best, j] = lu[best, j], lu[k, j]
        for i in range(k + 1, n):
            lu[i, k] /= lu[k, k]
            for j in range(k + 1, n):
                lu[i, j] -= lu[i, k] * lu[k, j]
    return True


@inner_njit
def solve_by_factors(lu, rows, y, x):
    """Write the solution of a system to x."""
    n, m = y.shape
    for i in range(n):
        for j in range(m):
            s = y[rows[i], j]
            for k in range(i):
                s = s - lu[i, k] * x[k, j]
            x[i, j] = s
    for q in range(n):
        i = n - 1 - q
        for j in range(m):
            s = x[i, j]
            for k in range(i + 1, n):
                s = s - lu[i, k] * x[k, j]
            x[i, j] = s / lu[i, i]
