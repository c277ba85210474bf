"""Arrays without elements, to second order: what compiled code records of them is what Tensors record."""

import numpy as np
import pytest

import tapegrad as tg

X = np.array([0.3, -1.2, 0.7, 2.0, -0.4, 1.1])
ALONG = np.array([1.0, -2.0, 0.5, 0.3, 0.7, -1.5])


def products(x):
    """Of no rows, and over no numbers."""
    a, none = x.reshape((2, 3)), x.reshape((3, 2))[0:0]
    p, q = none @ a, a[:, 1:1] @ none + x[:2] * a[0, :2]
    return np.sum(p[:, 1] ** 2) + np.sum(q * q * q)


def of_vectors(x):
    r = np.outer(x[:0], x)
    return np.sum(r.T @ r * x) + np.dot(x[:0], x[3:3]) * x[0] + np.sum(x ** 3)


def sums(x):
    a = x.reshape((2, 3))[0:0]
    s = np.sum(np.exp(a), axis=0) * x[:3] + np.sum(a * a) * x[0] + np.prod(x[2:2]) * x[:3] ** 2
    for row in a:
        s = s + row
    return np.sum(s * x[3:]) + np.sum(np.cumsum(x[:0] ** 2)) + np.sum(x[x > 100.0] ** 2)


def joined(x):
    a = np.concatenate((x[:0], x * x, x[6:]))
    b = np.stack((x[:0], x[:0] ** 2))
    return np.sum(np.hstack((a[3:3] * x[:0], a)) * x) + np.sum(np.vstack((b, b))) * x[0]


def written(x):
    u = x * 2.0
    u[3:3] = x[1:1] * x[4:4]
    u[6:] = x[:0]
    w = u.reshape((3, 2))
    w[:, 2:] = w[:, :0] ** 2
    w[1:1, :] = x[:2]
    return np.sum(w ** 3) + np.sum(u * x)


def columns(x):
    a = x.reshape((2, 3))[0:0]
    column, square = a[:, 1], np.linalg.norm(x[:0]) ** 2
    return np.sum(column * column) + column @ a[:, 2] + np.sum(a.T @ a * x[1]) + square + np.sum(x ** 3)


def decomposed(x):
    a = np.zeros((0, 0)) + x[0]
    return np.linalg.det(a) * x[1] ** 2 + np.sum(np.linalg.inv(a)) + np.sum(np.tanh(a @ a))


@pytest.mark.parametrize("program", [products, *(
    pytest.param(f, marks=pytest.mark.slow) for f in (of_vectors, sums, joined, written, columns, decomposed)
)])  # fmt: skip
def test_arrays_without_elements(program):
    native, x = tg.njit(program), tg.tensor(X, requires_grad=True)
    (g,) = tg.grad(program(x), x, create_graph=True)
    (h,) = tg.grad(g, x, ALONG)
    np.testing.assert_allclose(tg.func.grad(native)(X), g.detach(), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(tg.func.hvp(native)(X, ALONG), h, rtol=1e-13, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("program", [products, of_vectors, sums, joined, written, columns, decomposed])
def test_forward_and_recorded_derivatives(program):
    native, x = tg.njit(program), tg.tensor(X, requires_grad=True)
    y = program(x)
    (g,) = tg.grad(y, x, create_graph=True)
    wanted = np.array([tg.grad(g, x, row, retain_graph=True)[0].numpy() for row in np.eye(6)])
    np.testing.assert_allclose(tg.func.hessian(native)(X), wanted, rtol=1e-13, atol=1e-13)
    (found,) = tg.grad(native(x), x, create_graph=True)
    np.testing.assert_allclose(tg.grad(found, x, ALONG)[0], wanted @ ALONG, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(tg.func.jvp(native)(X, ALONG), (y.item(), g.detach() @ ALONG), rtol=1e-13)


@pytest.mark.parametrize("of", [tg.func.grad, tg.func.hessian])
def test_no_elements_have_no_greatest(of):
    greatest = of(tg.njit(lambda x: np.max(x[2:2] * x[0]) + x[0]))
    for _ in range(2):
        with pytest.raises(ValueError, match="max of no elements"):
            greatest(X)
