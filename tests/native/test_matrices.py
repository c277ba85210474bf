"""Products, systems and factors of matrices that are large enough to be blocks: beside Tensors."""

import numpy as np
import pytest

import tapegrad as tg

RANDOM = np.random.default_rng(5)
N = 13
SQUARE = RANDOM.normal(size=(N, N)) + 5 * np.eye(N)
SPD = SQUARE @ SQUARE.T / N
W = RANDOM.normal(size=(N, 40))


def products(a, w):
    b, c = w[:, :20] * a[0, 1], np.exp(0.1 * a) @ w[:, 0].copy()
    d = np.dot(w.T[:, ::2].copy(), a[::2])
    return np.sum((a @ b) * (a.T[::-1] @ w[:, 20:].copy())) + (c @ a) @ c + np.sum(d**2)


def written_to_later(a, w):
    b = w[:, :N] * 1.0
    c = a @ b
    b[0, 0] = 7.0
    d = a * 2.0
    e = d @ c
    d[...] = 0.0
    return np.sum(c * e) + np.sum(d @ b)


def recursive(a, w):
    x = a @ w[:, 0].copy()
    for _ in range(3):
        x = 0.1 * (a @ x) + np.sin(x)
    return np.sum(x * x)


def solve(a, w):
    x = np.linalg.solve(a, w[:, :3].copy())
    return np.sum(np.linalg.solve(a.T, a[1]) ** 2) + np.sum(x * x) + np.linalg.solve(SQUARE, a[:, 0])[1] ** 2


def inv(a, w):
    return np.sum(np.linalg.inv(a) ** 2 * w[:, :N])


def cholesky(a, w):
    return np.sum(np.linalg.cholesky(a) ** 2 * w[:, :N])


def eigh(a, w):
    values, vectors = np.linalg.eigh(a)
    return np.sum(values * w[0, :N]) + np.sum(vectors**2 * w[:, :N]) + np.linalg.eigvalsh(a)[3] ** 2


CASES = [(products, SQUARE), (written_to_later, SQUARE), (recursive, SQUARE), (solve, SQUARE), (inv, SQUARE)]
CASES += [(cholesky, SPD), (eigh, SPD)]


@pytest.mark.parametrize(("function", "a"), CASES, ids=lambda v: getattr(v, "__name__", ""))
@pytest.mark.parametrize("order", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_derivatives_are_those_of_tensors(function, a, order):
    """Tangents of tangents are corrected once for each level."""
    u, results = RANDOM.normal(size=a.shape), []
    u = u + u.T
    for run in (tg.njit(function), function):
        t = tg.tensor(a, requires_grad=True)
        y, found = run(t, W), []
        found.append(y.detach().numpy())
        for _ in range(order):
            (g,) = tg.grad(y, t, create_graph=True)
            found.append(g.detach().numpy())
            y = (g * u).sum()
        results.append(found)
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11 * abs(expected).max())


def values_and_a_vector(a):
    values, vectors = np.linalg.eigh(a)
    return np.sum(values) + vectors[0, N - 1]


def test_equal_eigenvalues_do_no_harm_to_others():
    """A vector beside equal values has a derivative, a vector of an equal value has none."""
    basis = np.linalg.qr(SQUARE)[0]
    a = basis @ np.diag([*[1.0] * (N - 1), 3.0]) @ basis.T
    run = tg.func.grad(tg.njit(values_and_a_vector))
    a = (a + a.T) / 2
    v = np.linalg.eigh(a)[1][:, -1]
    turned = np.outer(np.eye(N)[0] - v[0] * v, v) / 4.0
    np.testing.assert_allclose(run(a), np.eye(N) + turned + turned.T, atol=1e-12)
    assert not np.isfinite(run(np.eye(N))).all()


def shapes(a, b):
    return np.sum(a @ b)


@pytest.mark.quick
def test_sizes_at_which_products_change_ways():
    run = tg.func.value_and_grad(tg.njit(shapes), (0, 1))
    for m, k, n in ((6, 7, 7), (6, 7, 8), (1, 400, 1), (300, 1, 2), (0, 50, 50), (50, 0, 50)):
        a, b = RANDOM.normal(size=(m, k)), RANDOM.normal(size=(k, n))
        value, (of_a, of_b) = run(a, b)
        np.testing.assert_allclose(value, np.sum(a @ b), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(of_a, np.ones((m, n)) @ b.T, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(of_b, a.T @ np.ones((m, n)), rtol=1e-13, atol=1e-13)


def test_what_raises_leaves_the_tape_as_it_was():
    def singular(a):
        return np.sum(np.linalg.inv(a @ a))

    run = tg.func.grad(tg.njit(singular))
    for _ in range(20):
        with pytest.raises(np.linalg.LinAlgError):
            run(np.zeros((N, N)))
        with pytest.raises(ValueError, match="sizes do not fit"):
            tg.func.grad(tg.njit(lambda a: np.sum(a @ a[1:])))(SQUARE)
    t = tg.tensor(SQUARE, requires_grad=True)
    np.testing.assert_allclose(run(SQUARE), tg.grad(singular(t), t)[0], rtol=1e-10)
