"""Systems, determinants and factors of badly scaled matrices: derivatives to many digits, and as Tensors."""

import mpmath
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.native.library.linear import FACTORED, SUBSTITUTED
from tapegrad.ops.lapack import SMALL
from tests.native.test_expressions import once

SCALES = (1.0, 1e6, 1e10, 1e16, 1e155, 1e200)


def solve(a, b, w):
    return np.sum(np.linalg.solve(a, b) * w)


def inv(a, b, w):
    return np.sum(np.linalg.inv(a) * w)


def exact(a, b, w, u, order):
    """Gradients by the matrix of the sum of a solution with weights, each of the one before along `u`."""
    with mpmath.workdps(700):
        a, b, w, u = (mpmath.matrix(x.reshape(len(x), -1).tolist()) for x in (a, b, w, u))
        inverse, found = a**-1, []
        x, z = [inverse * b], [inverse.T * w]
        for k in range(order):
            total = -z[0] * x[k].T
            for i in range(1, k + 1):
                total -= z[i] * x[k - i].T
            found.append(np.array((total * mpmath.factorial(k)).tolist(), float))
            x.append(-(inverse * u * x[k]))
            z.append(-(inverse.T * u.T * z[k]))
    return found


def gradients(f, a, b, w, u, order):
    x = tg.tensor(a, requires_grad=True)
    y, found = f(x, b, w), []
    for k in range(order):
        (g,) = tg.grad(y, x, create_graph=k + 1 < order)
        found.append(g.detach().numpy())
        y = (g * u).sum() if k + 1 < order else y
    return found


def badly_scaled(n, q):
    """A matrix whose elimination has terms that cancel, the more the larger q is."""
    a = 0.1 * np.random.default_rng(n).normal(size=(n, n)) + 3.0 * np.eye(n)
    if n == 1:
        return a * q
    a[:2, :2] = [[0.5, 2.0], [-1.0, q]]
    return a


def agree(f, a, b, w, order, close=1e-12):
    u = a * np.random.default_rng(3).uniform(0.5, 1.0, size=a.shape)
    wanted = exact(a, np.eye(len(a)) if f is inv else b, w, u, order)
    for run in (once(f), f):
        for one, other in zip(gradients(run, a, b, w, u, order), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=close, atol=0)


@pytest.mark.parametrize("q", SCALES)
def test_badly_scaled_systems(q):
    for n in (1, 2, 3):
        a, b = badly_scaled(n, q), np.ones(n)
        agree(solve, a, b, b, 1)
        agree(solve, a.T.copy(), b, b, 1)


@pytest.mark.parametrize("order", [1, 3])  # the third compares those below, too
def test_badly_scaled_systems_of_other_sizes(order):
    """As records, and as blocks; of one right side and of several; rows or columns scaled."""
    for n in (1, 2, 3, SUBSTITUTED, SUBSTITUTED + 1):
        random = np.random.default_rng(n)
        (b, w), weights = random.uniform(0.5, 1.0, (2, n, 2)), random.uniform(0.5, 1.0, (n, n))
        for q in SCALES[2::3] if n < 4 else SCALES[-1:]:
            a = badly_scaled(n, q)
            for sides in ((b[:, 0], w[:, 0]), (b, w)) if order == 1 else ((b, w),):  # each is compiled
                agree(solve, a, *(x.copy() for x in sides), order, 1e-10)
        s = 10.0 ** np.linspace(-40, 40, n)
        a = badly_scaled(n, 2.0)
        agree(solve, a * s[:, None], b * s[:, None], w, order, 1e-10)
        agree(solve, a * s, b, w * s[:, None], order, 1e-10)
        agree(inv, a * s[:, None], b, weights * s, order, 1e-9)
        agree(inv, a * s, b, weights * s[:, None], order, 1e-9)


@pytest.mark.parametrize("n", [SMALL, SMALL + 1, 3 * SMALL + 1])
def test_large_systems(n):
    """Of one right side, of fewer than rows, and of more."""
    random = np.random.default_rng(n)
    a = random.normal(size=(n, n)) + 2.0 * np.eye(n)
    for shape in ((n,), (n, 1), (n, 3), (n, n + 5)):
        b, w = random.normal(size=(2, *shape))
        (found,), (wanted,) = (gradients(f, a, b, w, None, 1) for f in (once(solve), solve))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10 * np.abs(wanted).max())
    with pytest.raises(np.linalg.LinAlgError):
        gradients(once(solve), np.zeros((n, n)), b, w, None, 1)


def det(a):
    return np.linalg.det(a)


def logarithm(a):
    return np.linalg.slogdet(a)[1]


@pytest.mark.parametrize("q", SCALES)
def test_determinants_of_badly_scaled_matrices(q):
    """Also where pivots are in other columns: cofactors, and the inverse."""
    for rows, columns in (((0, 1, 2), (0, 1, 2)), ((1, 2, 0), (2, 0, 1))):
        a = np.array([[0.5, 2.0, 0.0], [-1.0, q, 0.0], [0.0, 0.0, 1.0]])[np.ix_(rows, columns)]
        wanted = np.array([[q, 1.0, 0.0], [-2.0, 0.5, 0.0], [0.0, 0.0, 2.0 + 0.5 * q]])[np.ix_(rows, columns)]
        np.testing.assert_allclose(tg.func.grad(once(det))(a), wanted, rtol=1e-14, atol=0)
        found = tg.func.grad(once(logarithm))(a)
        np.testing.assert_allclose(found, wanted / (2.0 + 0.5 * q), rtol=1e-14, atol=0)


def factors(a, by_q, by_r):
    q, r = np.linalg.qr(a)
    return np.sum(q * by_q) + np.sum(r * by_r)


def test_factors_of_badly_scaled_matrices():
    """Where columns are scaled q is the same and columns of r are scaled; by powers of two, bit by bit."""
    for n in (2, FACTORED, FACTORED + 1):
        random = np.random.default_rng(n)
        a, u, by_q = random.normal(size=(3, n + 1, n))
        by_r = random.normal(size=(n, n))
        wanted = gradients(factors, a, by_q, by_r, u, 2)
        for powers in ([-600] * n, [600] * n, np.linspace(-600, 600, n).astype(int)):
            s = np.ldexp(1.0, powers)
            found = gradients(once(factors), a * s, by_q, by_r / s, u * s, 2)
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_allclose(one * s, other, rtol=0, atol=1e-11 * np.abs(other).max())
    for zeros in (np.zeros((3, 2)), np.array([[1.0, 2.0]] * 3), np.zeros((FACTORED + 3, FACTORED + 1))):
        with pytest.raises(np.linalg.LinAlgError, match="dependent"):
            gradients(once(factors), zeros, zeros, zeros[: zeros.shape[1]], zeros, 2)
