"""Jacobians, Hessians and traces of plain functions: by rows and columns, in chunks, of trees, nested."""


import numpy as np
import pytest
from scipy.optimize import rosen_hess

import tapegrad as tg
from tapegrad.errors import GradientError, ShapeError
from tapegrad.func import matrices

F = tg.func
X = np.array([0.5, -1.0, 2.0])


def rosen(x):
    return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def field(x):
    return np.array([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0], [2.0, 0.5, 1.0]]) @ np.sin(x) * x[0]


def numerically(f, x, step=1e-6):
    columns = [(f(x + step * e) - f(x - step * e)) / (2 * step) for e in np.eye(x.size)]
    return np.stack(columns, -1)


@pytest.mark.parametrize("name", ["jacrev", "jacfwd", "jacobian"])
@pytest.mark.parametrize("chunk_size", [None, 1, 2, 5])
def test_jacobians(name, chunk_size):
    found = getattr(F, name)(field, chunk_size=chunk_size)(X)
    assert type(found) is np.ndarray
    np.testing.assert_allclose(found, numerically(field, X), atol=1e-8)
    found = getattr(F, name)(lambda x: np.outer(x, x[:2]), chunk_size=chunk_size)(X)
    assert found.shape == (3, 2, 3)
    np.testing.assert_allclose(found, numerically(lambda x: np.outer(x, x[:2]), X), atol=1e-8)


@pytest.mark.parametrize("name", ["jacrev", "jacfwd", "jacobian"])
def test_shapes_and_kinds(name):
    derive = getattr(F, name)
    assert derive(lambda x: x**3)(2.0) == 12.0
    assert type(derive(lambda x: x**3)(2.0)) is float
    assert derive(lambda x: x**3)(np.float32(2.0)).dtype == np.float32
    assert derive(lambda x: np.sum(x**3))(X).shape == (3,)
    assert derive(lambda x: x * np.ones((2, 1)))(3.0).shape == (2, 1)
    assert derive(lambda x: x[:0])(X).shape == (0, 3)
    assert derive(lambda x: x)(np.zeros((0, 2))).shape == (0, 2, 0, 2)
    assert derive(lambda x: 1.0)(X).tolist() == [0.0, 0.0, 0.0]
    assert derive(lambda x: (x > 0.0, x)[0])(X).tolist() == np.zeros((3, 3)).tolist()
    assert derive(np.sin)(X.astype("f4")).dtype == np.float32
    assert isinstance(derive(np.sin)(tg.tensor(X)), tg.Tensor)
    found, aux = derive(lambda x: (x * x, {"n": x.sum()}), has_aux=True)(X)
    np.testing.assert_allclose(np.diag(found), 2 * X)
    assert aux == {"n": 1.5}


@pytest.mark.parametrize("name", ["jacrev", "jacfwd", "jacobian"])
def test_trees_of_arguments_and_values(name):
    def f(p, x):
        return {"y": p["a"] * x + p["b"], "z": (p["b"] ** 2, np.sum(x))}

    found = getattr(F, name)(f, (0, 1))({"a": X, "b": 3.0}, X)
    np.testing.assert_allclose(found["y"][0]["a"], np.diag(X))
    np.testing.assert_allclose(found["y"][0]["b"], np.ones(3))
    np.testing.assert_allclose(found["y"][1], np.diag(X))
    assert found["z"][0][0]["b"] == 6.0
    assert type(found["z"][0][0]["b"]) is float
    assert found["z"][1][0]["a"].tolist() == [0.0, 0.0, 0.0]
    assert found["z"][1][1].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["jacfwd", "jacrev", "jacobian"])
def test_functions_are_called_once(name):
    """However many rows or columns there are, and however few are computed together."""
    calls = []

    def f(x):
        calls.append(1)
        return np.concatenate([x, x[::2] * x[0]])

    found = getattr(F, name)(f, chunk_size=3)(np.arange(1.0, 9.0))
    assert found.shape == (12, 8)
    assert len(calls) == 1


def test_complex_values_and_arguments():
    z = np.array([1.0 + 2.0j, 0.5j])
    found = F.jacobian(lambda x: x * z)(np.array([1.0, 2.0]))
    np.testing.assert_array_equal(found, np.diag(z))
    found = F.jacobian(lambda z: np.real(z * z))(z)
    np.testing.assert_allclose(found, np.diag(2 * z.conjugate()))  # as of tg.grad
    with pytest.raises(GradientError, match="value is complex"):
        F.jacrev(lambda z: z * z)(z)
    with pytest.raises(GradientError, match="argument is complex"):
        F.jacfwd(lambda z: z * z)(z)


def test_chunks_from_a_budget(monkeypatch):
    lanes = []
    level = tg.autograd.forward_ad.dual_level
    monkeypatch.setattr("tapegrad.func.matrices.dual_level", lambda n: lanes.append(n) or level(n))
    x = np.linspace(0.1, 1.0, 100)

    def sine(x):
        with tg.enable_grad():  # which only forward mode takes
            return np.sin(x)

    whole = F.jacfwd(sine)(x)
    assert lanes == [100]
    np.testing.assert_array_equal(F.jacfwd(np.sin)(x), whole)
    monkeypatch.setenv("TAPEGRAD_CHUNK_BYTES", str(100_000))
    lanes.clear()
    np.testing.assert_array_equal(F.jacfwd(np.sin)(x), whole)
    np.testing.assert_array_equal(F.jacfwd(sine)(x), whole)
    assert 1 < len(lanes) < 100
    assert sum(lanes) == 100
    np.testing.assert_allclose(F.jacrev(np.sin)(x), whole)
    np.testing.assert_allclose(F.hessian(lambda x: np.sum(x**3))(x), np.diag(6 * x))
    monkeypatch.setenv("TAPEGRAD_CHUNK_BYTES", "1 GiB")
    with pytest.raises(ValueError, match="TAPEGRAD_CHUNK_BYTES is a whole number of bytes, found '1 GiB'"):
        F.jacrev(np.sin)(x)
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match="chunk_size"):
            F.jacrev(np.sin, chunk_size=wrong)


def test_progress(monkeypatch):
    shown = []
    monkeypatch.setattr(matrices, "progress", lambda items, *how: shown.append((len(items), *how)) or items)
    for name in ("jacrev", "jacfwd"):
        getattr(F, name)(np.sin, chunk_size=2, progress=True)(X)
    F.laplacian(rosen, chunk_size=1, progress=True)(X)
    F.hessian(rosen)(X)
    assert shown == [
        (2, "jacrev", True), (2, "jacfwd", True), (3, "laplacian", True), (1, "hessian", False)
    ]  # fmt: skip


# ---------------------------------------------------------------- Hessians


@pytest.mark.parametrize("chunk_size", [None, 1, 4])
def test_hessian(chunk_size):
    x = np.linspace(-1.0, 1.5, 10)
    calls = []
    found = F.hessian(lambda x: calls.append(1) or rosen(x), chunk_size=chunk_size)(x)
    np.testing.assert_allclose(found, rosen_hess(x), rtol=1e-12, atol=1e-12)
    assert len(calls) == 1


def test_hessian_of_a_number_is_a_number():
    found = F.hessian(lambda x: x**4)(2.0)
    assert type(found) is float
    assert found == 48.0
    assert F.hessian(lambda x: 3.0 * x)(2.0) == 0.0
    assert F.hessian(lambda x: 3.0)(2.0) == 0.0
    assert F.hessian(np.sum)(X).tolist() == np.zeros((3, 3)).tolist()
    assert F.hessian(lambda x: x**4)(np.float32(2.0)).dtype == np.float32
    assert F.hessian(lambda x: np.sum(x**4))(np.ones((2, 2))).shape == (2, 2, 2, 2)


def test_hessian_of_trees_with_aux():
    def f(p, scale):
        return scale * np.sum(p["a"] ** 2) * p["b"] ** 3, "aux"

    found, aux = F.hessian(f, has_aux=True)({"a": X, "b": 2.0}, 10.0)
    assert aux == "aux"
    np.testing.assert_allclose(found["a"]["a"], 160.0 * np.eye(3))
    np.testing.assert_allclose(found["a"]["b"], 240.0 * X)
    np.testing.assert_allclose(found["b"]["a"], 240.0 * X)
    assert found["b"]["b"] == pytest.approx(120.0 * np.sum(X**2))
    found = F.hessian(lambda a, b: a * a * b, (0, 1))(2.0, 3.0)
    assert found == ((6.0, 4.0), (4.0, 0.0))


def test_hessian_of_several_results():
    found = F.hessian(lambda x: x**3)(X)
    expected = np.zeros((3, 3, 3))
    expected[np.arange(3), np.arange(3), np.arange(3)] = 6 * X
    np.testing.assert_allclose(found, expected)
    found = F.hessian(lambda x: {"a": x[0] * x, "b": x[0] * x[1]})(X)
    assert found["a"].shape == (3, 3, 3)
    np.testing.assert_allclose(found["b"], [[0, 1, 0], [1, 0, 0], [0, 0, 0]])


NESTED = {
    "jacfwd of jacrev": lambda f: F.jacfwd(F.jacrev(f)),
    "jacrev of jacfwd": lambda f: F.jacrev(F.jacfwd(f)),
    "jacfwd of jacfwd": lambda f: F.jacfwd(F.jacfwd(f)),
    "jacrev of jacrev": lambda f: F.jacrev(F.jacrev(f)),
    "jacobian of grad": lambda f: F.jacobian(F.grad(f)),
    "jacfwd of grad": lambda f: F.jacfwd(F.grad(f)),
    "vmap of hvp": lambda f: lambda x: F.vmap(F.hvp(f), (None, 0))(x, np.eye(x.size)),
}


@pytest.mark.parametrize("name", NESTED)
def test_hessians_by_nesting(name):
    found = NESTED[name](rosen)(X)
    assert type(found) is np.ndarray
    np.testing.assert_allclose(found, rosen_hess(X), rtol=1e-12, atol=1e-12)


def test_derivatives_of_matrices():
    third = F.jacfwd(F.hessian(lambda x: np.sum(x**3) * x[0]))(X)
    np.testing.assert_allclose(third, F.jacrev(F.hessian(lambda x: np.sum(x**3) * x[0]))(X), atol=1e-12)
    np.testing.assert_allclose(third, numerically(F.hessian(lambda x: np.sum(x**3) * x[0]), X), atol=1e-6)
    for name in ("jacrev", "jacfwd", "hessian"):
        found = F.grad(lambda w, name=name: np.sum(getattr(F, name)(lambda x: np.sum(w * x**3))(X)))(2.0)
        assert found == pytest.approx(np.sum(3 * X**2) if name != "hessian" else np.sum(6 * X))
    w = tg.tensor(2.0, requires_grad=True)
    found = F.jacfwd(lambda x: w * x**2)(X)
    np.testing.assert_allclose(tg.grad(found.sum(), w)[0].item(), 2 * X.sum())


# ---------------------------------------------------------------- traces


@pytest.mark.parametrize("chunk_size", [None, 1, 2])
def test_laplacian_and_divergence(chunk_size):
    found = F.laplacian(rosen, chunk_size=chunk_size)(X)
    assert type(found) is float
    assert found == pytest.approx(np.trace(rosen_hess(X)), rel=1e-13)
    found = F.divergence(field, chunk_size=chunk_size)(X)
    assert type(found) is float
    assert found == pytest.approx(np.trace(numerically(field, X)), rel=1e-8)
    tree = {"a": X, "b": 2.0}
    flow = lambda p: {"a": p["a"] ** 2 * p["b"], "b": p["b"] ** 2 + p["a"][0]}
    assert F.divergence(flow, chunk_size=chunk_size)(tree) == pytest.approx(2 * 2.0 * X.sum() + 4.0)
    f = lambda p: np.sum(p["a"] ** 3) * p["b"] ** 2
    expected = 6 * X.sum() * 4.0 + 2 * np.sum(X**3)
    assert F.laplacian(f, chunk_size=chunk_size)(tree) == pytest.approx(expected)


def test_traces_are_differentiable_and_checked():
    assert F.grad(lambda x: F.laplacian(lambda y: np.sum(y**4))(x))(X).tolist() == (24 * X).tolist()
    assert F.grad(lambda x: F.divergence(lambda y: y**3)(x))(X).tolist() == (6 * X).tolist()
    assert F.jvp(lambda x: F.divergence(lambda y: y**3)(x))(X, np.ones(3))[1] == 6 * X.sum()
    assert F.laplacian(lambda x: np.sum(x))(X) == 0.0
    assert F.divergence(lambda x: np.ones(3))(X) == 0.0
    with pytest.raises(ShapeError, match="divergence"):
        F.divergence(np.sum)(X)


@pytest.mark.full
def test_compiled_functions():
    @tg.njit
    def f(x):
        return x * x[0]

    x = np.array([2.0, 3.0])
    np.testing.assert_allclose(F.jacobian(f)(x), [[4.0, 0.0], [3.0, 2.0]])
    for name in ("jacrev", "jacfwd"):
        np.testing.assert_allclose(getattr(F, name)(f)(x), [[4.0, 0.0], [3.0, 2.0]])
    assert F.divergence(f)(x) == 6.0

    @tg.njit
    def product(a, x):
        return a * x

    np.testing.assert_allclose(F.jacobian(product, 1)(3.0, x), 3.0 * np.eye(2))
    assert F.hessian(product, (0, 1))(3.0, 2.0) == ((0.0, 1.0), (1.0, 0.0))


@pytest.mark.parametrize("matrix", [tg.func.jacrev, tg.func.jacfwd, tg.func.jacobian])
def test_second_derivatives_of_a_jacobian_of_elements(matrix):
    """Elements of all lanes are no elements: `E[i] @ x` is the same number."""
    E, x, v = np.eye(3), np.array([0.3, 0.5, 0.9]), np.array([1.0, 2.0, 3.0])

    def product(part):
        def f(x):
            a, b, c = (part(x, i) for i in range(3))
            return np.stack([a * b, np.sqrt(1 + c * c), np.cos(a - c)])

        return tg.func.hvp(lambda x: np.sum(matrix(f)(x).T @ x))(x, v)

    np.testing.assert_allclose(product(lambda x, i: x[i]), product(lambda x, i: E[i] @ x), rtol=1e-12)
