"""Tangents by sweeps over records: what forward mode gives, and forward mode where only that is right."""

import tracemalloc

import numpy as np
import pytest

import tapegrad as tg
import tapegrad.func as F
from tapegrad.autograd import forward_ad as fw
from tapegrad.func import tangents
from tapegrad.tape import tape as tapes
from tests.tiers import thinned

X = np.array([0.3, -0.7, 2.0, 1.1])
V = np.array([1.0, 0.5, -2.0, 0.1])
A = np.cos(np.arange(16.0)).reshape(4, 4)


def in_forward_mode(f, x, v):
    with fw.dual_level():
        y = f(fw.make_dual(tg.tensor(x), tg.tensor(v)))
        return fw.unpack_dual(y).tangent.numpy()


def written(x):
    y = np.exp(x)
    y[1:] = y[:-1] * x[1:]
    y[x > 1] *= 2.0
    return y


def branched(x):
    return np.sum(np.where(x > 0, x * x, np.sin(x))) if x[0] > 0 else x


FUNCTIONS = {
    "a chain": lambda x: np.sin(x) * x + np.exp(-x) / (1 + x * x),
    "a number": lambda x: np.sum(np.tanh(x)) * x[0],
    "products": lambda x: A @ np.tanh(A @ x),
    "a factorisation": lambda x: np.linalg.solve(4 * np.eye(4, dtype=x.dtype) + np.outer(x, x), x),
    "slices": lambda x: np.concatenate((x[:1], x[1:-1] + 0.1 * (x[2:] - x[:-2]), x[-1:])),
    "writes": written,
    "branches": branched,
    "reductions": lambda x: np.max(np.outer(x, x), axis=0) + np.prod(x),
    "kinks": lambda x: np.abs(x - X[0]) ** 2 + np.maximum(x, x[0]),
    "complex": lambda x: np.abs(np.exp(1j * x) + x),
    "itself": lambda x: x,
}


@pytest.mark.parametrize("dtype", [float, np.float32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_in_forward_mode(name, dtype):
    f, x, v = FUNCTIONS[name], X.astype(dtype), V.astype(dtype)
    value, tangent = F.jvp(f)(x, v)
    assert type(value) is type(f(x)) or np.ndim(value) == 0
    np.testing.assert_allclose(value, f(x))
    rtol = 1e-13 if dtype is float else 1e-5
    np.testing.assert_allclose(tangent, in_forward_mode(f, x, v), rtol=rtol, atol=rtol)
    matrix = F.jacfwd(f, chunk_size=3)(x)
    assert matrix.shape == (*np.shape(value), 4)
    assert matrix.dtype == np.asarray(tangent).dtype
    np.testing.assert_allclose(matrix @ v, tangent, rtol=rtol, atol=rtol)


def test_complex_arguments():
    z, v = X + 1j * V, V - 0.3j * X
    for f in (lambda z: np.exp(z) * z, lambda z: np.abs(z) ** 2, lambda z: np.conj(z) * z[0]):
        np.testing.assert_allclose(F.jvp(f)(z, v)[1], in_forward_mode(f, z, v), rtol=1e-13)


def under_no_grad(x):
    with tg.no_grad():
        y = np.sin(x)
    return y * x


def gradient_without_graph(x):
    p = x * 2
    return tg.grad(np.sum(p * p * p), p)[0] * x


class Halved(tg.autograd.Function):
    """A rule whose tangent says that it was asked."""

    @staticmethod
    def forward(ctx, x):
        return x.detach() * 0.5

    @staticmethod
    def backward(ctx, ct):
        return ct * 0.5

    @staticmethod
    def jvp(ctx, t):
        return t * 5.0


def hooked(x):
    y = x * x
    if y.requires_grad:
        y.register_hook(lambda g: g * 100.0)
    return y * x


def changed(x, scratch=np.ones((1000, 4))):
    """Plain memory that is used anew: no sweep can read what it was."""
    y = x
    for k in range(3):
        scratch[:] = k
        y = np.mean(y * scratch, axis=0) + x
    return y


@tg.njit
def compiled(x):
    return np.sum(x * x) * x[0]


ONLY_FORWARD = {
    "no_grad": under_no_grad,
    "a user's rule": lambda x: Halved.apply(x * 1.0) * x,
    "a hook": hooked,
    "memory used anew": changed,
    "compiled code": lambda x: compiled(x) * x,
}


@pytest.mark.parametrize("name", thinned(ONLY_FORWARD, lambda name: name != "compiled code"))
def test_what_forward_mode_alone_is_right_for(name):
    f = ONLY_FORWARD[name]
    wanted = in_forward_mode(f, X, V)
    np.testing.assert_allclose(F.jvp(f)(X, V)[1], wanted, rtol=1e-13)
    np.testing.assert_allclose(F.jacfwd(f)(X) @ V, wanted, rtol=1e-12)
    np.testing.assert_allclose(F.jacobian(lambda x: np.concatenate((f(x), x)))(X)[:4] @ V, wanted, rtol=1e-12)


def test_a_gradient_without_its_graph_is_no_constant():
    with pytest.raises(tg.errors.GradientError, match="does not require grad"):
        F.jvp(gradient_without_graph)(X, V)


def repeated(count, swallow=()):
    """A function of so many operations, which goes on after exceptions of some kinds."""

    def f(x):
        for _ in range(count):
            try:
                x = x * 1.0001
            except swallow:
                x = x * 1.0001
        return x

    return f


@pytest.mark.parametrize("swallow", [(), BaseException], ids=["", "what swallows everything"])
@pytest.mark.parametrize("count", [tapes.MAX_RECORDS // 2, 2 * tapes.MAX_RECORDS])
def test_more_records_than_a_tape_takes(count, swallow):
    value, tangent = F.jvp(repeated(count, swallow))(2.0, 1.0)
    assert tangent == pytest.approx(1.0001**count, rel=1e-10)
    assert value == pytest.approx(2 * 1.0001**count, rel=1e-10)
    assert tapes.local.only is None


def test_memory_of_long_functions_does_not_grow():
    x, peaks = np.ones(4096), []
    for count in (1000, 4000):
        tracemalloc.start()
        F.jvp(repeated(count))(x, x)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 2 * tangents.LARGE_TAPE


def test_nested_in_each_other_and_in_levels():
    def f(x):
        return np.sum(np.sin(x) * x**3)

    inner = lambda x: F.jvp(f)(x, V)[1]
    hessian = F.hessian(f)(X)
    np.testing.assert_allclose(F.jvp(inner)(X, V)[1], V @ hessian @ V, rtol=1e-12)
    np.testing.assert_allclose(F.grad(inner)(X), hessian @ V, rtol=1e-12)
    np.testing.assert_allclose(F.jvp(F.grad(f))(X, V)[1], hessian @ V, rtol=1e-12)
    np.testing.assert_allclose(F.jacfwd(F.grad(f))(X), hessian, rtol=1e-12)
    np.testing.assert_allclose(in_forward_mode(inner, X, V), V @ hessian @ V, rtol=1e-12)
    x = tg.tensor(X, requires_grad=True)
    tangent = F.jvp(f)(x, V)[1]
    np.testing.assert_allclose(tg.grad(tangent, x)[0].numpy(), hessian @ V, rtol=1e-12)
    v = tg.tensor(V, requires_grad=True)
    np.testing.assert_allclose(tg.grad(F.jvp(f)(X, v)[1], v)[0].numpy(), F.grad(f)(X), rtol=1e-12)


def test_errors_are_those_of_the_function():
    def f(x):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        F.jvp(f)(X, V)
    with pytest.raises(tg.errors.ShapeError, match="direction"):
        F.jvp(np.sin)(X, V[:2])
    assert tapes.local.only is None
