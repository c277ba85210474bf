"""Singular values, eigenvalues and least squares as blocks of the tape: beside Tensors, in all shapes."""

import functools

import numpy as np
import pytest

import tapegrad as tg

compiled = functools.cache(tg.njit)

RANDOM = np.random.default_rng(11)
W = RANDOM.normal(size=(24, 24))


def with_values(m, n):
    """A matrix of which the singular values are apart."""
    k = min(m, n)
    u, v = (np.linalg.qr(RANDOM.normal(size=(size, k)))[0] for size in (m, n))
    return u @ np.diag(np.linspace(4.0, 1.0, k)) @ v.T


def with_eigenvalues(n):
    basis = np.eye(n) + 0.3 * RANDOM.normal(size=(n, n)) / n**0.5
    return basis @ np.diag(np.linspace(-2.0, 3.0, n)) @ np.linalg.inv(basis)


def svd(a, w):
    u, s, vt = np.linalg.svd(a, False)
    k = s.size
    total = np.sum(u * u * w[: u.shape[0], :k]) + np.sum(vt * vt * w[:k, : vt.shape[1]])
    return total + np.sum(s * w[0, :k]) + u[0, 1] * vt[1, 0]


def svd_of_full_matrices(a, w):
    u, s, vt = np.linalg.svd(a)
    rest, others = u[:, s.size :].copy(), vt[s.size :].copy()
    total = np.sum((rest @ rest.T) * w[: u.shape[0], : u.shape[0]]) + np.sum(s**3)
    return total + np.sum((others.T @ others) * w[: vt.shape[0], : vt.shape[0]]) + u[1, 0] * vt[0, 1]


def singular_values(a, w):
    s = np.linalg.svd(a)[1]
    return np.sum(s**3 * w[0, : s.size])


def pinv(a, w):
    return np.sum(np.linalg.pinv(a) ** 2 * w[: a.shape[1], : a.shape[0]])


def lstsq(a, w):
    """Of several right sides, and of one that is active; with all that it gives."""
    x, left, rank, s = np.linalg.lstsq(a, w[: a.shape[0], :3].copy(), -1.0)
    total = np.sum(x**2 * w[: x.shape[0], :3]) + np.sum(left * w[0, : left.size])
    y, least, _, _ = np.linalg.lstsq(a, a[:, 0] * a[:, 1] + w[: a.shape[0], 1], rcond=1e-9)
    return total + rank * y[0] * y[1] + np.sum(least) + np.sum(s**2 * w[1, : s.size])


def eig(a, w):
    values, vectors = np.linalg.eig(a)
    n = values.size
    total = np.sum(values**2 * w[0, :n]) + np.sum(vectors * vectors * w[:n, :n])
    return total + vectors[0, 1] * vectors[1, 1]


def eigvals(a, w):
    values = np.linalg.eigvals(a)
    return np.sum(values**3 * w[0, : values.size])


SHAPES = [(3, 3), (4, 2), (2, 4), (13, 13), (17, 12), (12, 17)]
CASES = [
    pytest.param(function, with_values(*shape), id=f"{function.__name__}-{shape[0]}x{shape[1]}")
    for function in (svd, svd_of_full_matrices, singular_values, pinv, lstsq)
    for shape in SHAPES
]
CASES += [
    pytest.param(function, with_eigenvalues(n), id=f"{function.__name__}-{n}")
    for function in (eig, eigvals)
    for n in (3, 13)
]
ORDERS = [1, pytest.param(3, marks=pytest.mark.slow)]


def derivatives(function, a, u, order):
    """The value and its derivatives: gradients of what those before are along a direction."""
    t = tg.tensor(a, requires_grad=True)
    y = function(t, W)
    found = [y.detach().numpy()]
    for _ in range(order):
        (g,) = tg.grad(y, t, create_graph=True)
        found.append(g.detach().numpy())
        y = (g * u).sum()
    return found


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("function", "a"), CASES)
def test_derivatives_are_those_of_tensors(function, a, order):
    u = RANDOM.normal(size=a.shape)
    pairs = [derivatives(f, a, u, order) for f in (compiled(function), function)]
    assert pairs[0][0] == pytest.approx(function(a, W), rel=1e-13)
    for found, expected in zip(*pairs, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * abs(expected).max())


@pytest.mark.parametrize("function", [eig, eigvals])
def test_complex_eigenvalues_raise_as_in_numba(function):
    with pytest.raises(ValueError, match=rf"{function.__name__}\(\) argument must not cause a domain change"):
        compiled(function)(tg.tensor([[0.0, 1.0], [-1.0, 0.0]], requires_grad=True), W)


def of_the_first(a, w):
    u, s, vt = np.linalg.svd(a, False)
    values, vectors = np.linalg.eigh(a @ a.T)
    return u[0, 0] * vt[0, 1] + s[0] ** 2 + values[-1] * vectors[0, -1] * vectors[1, -1]


@pytest.mark.parametrize("others", [np.ones(12), np.linspace(1.0, 1.0 + 1e-8, 12)])
@pytest.mark.parametrize("order", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_values_that_are_close_cost_others_no_digits(others, order):
    """By differences, which do not know of them."""
    basis, other = (np.linalg.qr(RANDOM.normal(size=(13, 13)))[0] for _ in range(2))
    a, u = basis @ np.diag([3.0, *others]) @ other, RANDOM.normal(size=(13, 13)) / 13
    run = compiled(of_the_first)

    def before(x):
        return derivatives(run, x, u, order - 1)[-1]

    found, h = derivatives(run, a, u, order)[-1], 1e-5
    expected = (before(a + h * u) - before(a - h * u)) / (2 * h)
    np.testing.assert_allclose(np.sum(found * u) if order == 1 else found, expected, rtol=1e-6, atol=1e-8)
