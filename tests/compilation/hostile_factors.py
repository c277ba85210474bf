"""More functions of the kind of `hostile`: factors of matrices, and places that values decide."""

import numpy as np

import tapegrad as tg

from .hostile import hostile, simple

EYE = np.eye(4)


def matrix(x):
    return np.outer(x, np.cos(x)) + np.diag(np.array([2.0, 3.0, 4.0, 5.0]))


@simple
def singular_values(x, k):
    u, s, vt = np.linalg.svd(matrix(x) + k * EYE)
    return np.sum(s[:2]) + np.sum((u[:, :2] * s[:2] @ vt[:2]) ** 2)


@simple
def singular_values_in_two_ways(x, k):
    u, s, _ = np.linalg.svd(matrix(x))
    return (
        np.sum(s * s) + np.sum(x)
        if k % 3
        else np.sum((u * s) ** 2) * np.linalg.svd(np.outer(x, x) + EYE)[1][0]
    )


@simple
def determinants(x, k):
    a = matrix(x)
    return np.linalg.det(a) * 0.01 + np.linalg.slogdet(a - k * 0.1 * EYE)[1] + np.log(np.linalg.det(a.T @ a))


@simple
def factorisations(x, k):
    a = matrix(x)
    s = a @ a.T + EYE
    q, r = np.linalg.qr(a)
    w, v = np.linalg.eigh(s)
    found = np.sum(np.linalg.cholesky(s)) + np.sum(np.abs(np.diag(r))) + np.sum((q @ r) ** 2)
    return found + np.log(w[0] + w[-1]) + np.sum((v * w) @ v.T) + np.sum(np.linalg.eigvalsh(s))


@simple
def systems(x, k):
    a = matrix(x)
    found = np.sum(np.linalg.solve(a, x) * np.linalg.inv(a)[0]) + np.linalg.norm(a) + np.linalg.cond(a) * 0.1
    return found + np.sum(np.linalg.lstsq(a[:, :2], x, rcond=None)[0]) + np.sum(np.linalg.pinv(a[:, :3]))


@simple
def large_systems(x, k):
    a = np.kron(np.eye(9), matrix(x)) + 0.01
    b = np.tile(x, 9)
    return np.sum(np.linalg.solve(a, b)) + np.linalg.slogdet(a)[1] + np.sum(np.linalg.solve(a.T, a[:, :2]))


@simple
def complex_factors(x, k):
    a = matrix(x) + 1j * np.outer(x, x[::-1])
    h = a @ a.conj().T + EYE
    return np.sum(np.linalg.eigh(h)[0] ** 2) + np.real(np.linalg.slogdet(h)[1]) + np.abs(np.linalg.det(a))


@simple
def a_matrix_that_is_singular(x, k):
    a = matrix(x) * (1.0 if k % 6 != 5 else 0.0)
    return np.sum(np.linalg.solve(a, x))


@hostile
def factors_that_somebody_keeps():
    kept = []

    def f(x, k):
        s = np.linalg.svd(matrix(x))[1]
        kept.append(s.detach().numpy() if isinstance(s, tg.Tensor) and k % 5 == 3 else k)
        return np.sum(s**2)

    return f, kept


@simple
def sorted_numbers(x, k):
    s = np.sort(x)[::-1]
    return np.sum(s * np.arange(4.0)) + np.sum(np.sort(np.outer(x, x), axis=0)[1]) * np.ptp(x)


@simple
def largest_number(x, k):
    i = np.argmax(np.abs(x.detach().numpy() if isinstance(x, tg.Tensor) else x))
    return x[i] ** 2 * x[np.argmin(x)] + (x * x)[np.argmax(x)]


@simple
def numbers_in_an_order(x, k):
    order = np.argsort(x) if k % 4 else np.arange(4)
    y = (x * np.arange(1.0, 5.0))[order]
    return np.sum(y[1:] * y[:-1]) + np.take_along_axis(x, np.argsort(-x), 0)[2]


@simple
def medians(x, k):
    m, windows = np.outer(x, x + k), np.lib.stride_tricks.sliding_window_view(x, 3)
    found = np.median(x) * np.percentile(x, 30) + np.sum(np.median(m, axis=1))
    return found + np.sum(np.quantile(m, [0.2, 0.7])) + np.sum(np.median(windows, axis=1))


@simple
def as_many_as_are_positive(x, k):
    return np.sum(x[x > 0] ** 2) + np.sum((x * x)[np.flatnonzero(x > -0.1)])


@simple
def partly_sorted(x, k):
    return np.sum(np.partition(x * 2.0, 2)[:2]) + np.sum(np.sort(x[: 3 + k % 2]))


@simple
def taken_more_than_once(x, k):
    i = np.array([k % 4, (k + 1) % 4, k % 4])
    return np.sum((x * x)[i] * np.arange(3.0)) + np.sum(np.outer(x, x)[i, [0, 1, 2]]) + np.sum(np.take(x, i))


@hostile
def signs_and_logarithms():
    """Of determinants, by names, in pairs or alone; some are looked at, kept or of a singular matrix."""
    kept = []

    def f(x, k):
        a = x.reshape(2, 2) * (0.0 if k == 13 else 1.0) + 0.1 * k * np.eye(2)
        found = np.linalg.slogdet(a @ a if k % 7 == 6 else a)
        sign, log = found
        if k % 5 == 3:
            kept.append((type(found).__name__, float(found.sign)))
        if k % 8 == 7 and sign < 0.0:
            return log * 2.0 + np.sum(x)
        if k == 16:
            kept.append(found)
        return found[0] * found.logabsdet * x[0] + np.sum(x * sign)

    return f, kept


@simple
def logarithms_of_large_and_complex_determinants(x, k):
    n = 33 if k < 15 else 34
    a = np.eye(n) * (x[0] + 2.0) + np.outer(np.arange(n) * 0.01, np.ones(n) * x[1])
    sign, log = np.linalg.slogdet(a)
    z, w = np.linalg.slogdet(x.reshape(2, 2) * (1.0 + 0.1j * k) + 1j * np.eye(2))
    return sign * log * 0.1 + np.real(z * w) + np.linalg.slogdet(x[:1, None])[1]
