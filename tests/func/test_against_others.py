"""tg.func against torch.func and jax: values, trees, nests of modes, dtypes, and perturbations kept apart."""

import numpy as np
import pytest

import tapegrad as tg

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr:UserWarning"),
]
F = tg.func
X = np.array([0.5, -1.0, 2.0, 0.3])
V = np.array([1.0, 0.2, -0.7, 2.0])
WEIGHTS = np.random.default_rng(1).normal(size=(4, 4)) / 2


class Torch:
    """torch.func by the signatures of tg.func."""

    def __init__(self):
        self.torch = pytest.importorskip("torch")
        self.np, self.func = self.torch, self.torch.func

    def array(self, x):
        return self.torch.as_tensor(x)

    def jvp(self, f):
        return lambda x, v: self.func.jvp(f, (x,), (v,))

    def vjp(self, f):
        def derivative(x):
            value, pullback = self.func.vjp(f, x)
            return value, lambda ct: pullback(ct)[0]

        return derivative

    def linearize(self, f):
        return lambda x: self.func.linearize(f, x)

    def __getattr__(self, name):
        return getattr(self.func, name)


class Jax(Torch):
    """As much of jax."""

    def __init__(self):
        self.func = pytest.importorskip("jax")
        self.func.config.update("jax_enable_x64", True)
        self.np = self.func.numpy

    def array(self, x):
        return self.np.asarray(x)


class Ours(Torch):
    """The same written with NumPy."""

    def __init__(self):
        self.np, self.func = np, F

    def array(self, x):
        return x

    def jvp(self, f):
        return F.jvp(f)

    def vjp(self, f):
        return F.vjp(f)

    def linearize(self, f):
        return F.linearize(f)


@pytest.fixture(params=[Torch, Jax])
def theirs(request):
    return request.param()


OURS = Ours()


def rosen(lib):
    return lambda x: lib.np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def layer(lib, dtype):
    weights = lib.array(WEIGHTS.astype(dtype))
    return lambda x: lib.np.tanh(weights @ lib.np.tanh(weights @ x)) * x[0]


def wave(lib):
    return lambda x: lib.np.sin(x) * x + lib.np.exp(-x * x)


PROGRAMS = {
    "grad": lambda lib, x, v, d: lib.grad(rosen(lib))(x),
    "jvp": lambda lib, x, v, d: lib.jvp(layer(lib, d))(x, v)[1],
    "vjp": lambda lib, x, v, d: lib.vjp(layer(lib, d))(x)[1](v),
    "linearize": lambda lib, x, v, d: lib.linearize(layer(lib, d))(x)[1](v),
    "jacrev": lambda lib, x, v, d: lib.jacrev(layer(lib, d))(x),
    "jacfwd": lambda lib, x, v, d: lib.jacfwd(layer(lib, d))(x),
    "hessian": lambda lib, x, v, d: lib.hessian(rosen(lib))(x),
    "hessian of several": lambda lib, x, v, d: lib.hessian(layer(lib, d))(x),
    "hvp": lambda lib, x, v, d: lib.jvp(lib.grad(rosen(lib)))(x, v)[1],
    "vhp": lambda lib, x, v, d: lib.vjp(lib.grad(rosen(lib)))(x)[1](v),
    "third": lambda lib, x, v, d: lib.jacfwd(lib.jacrev(lib.grad(rosen(lib))))(x),
    "vmap": lambda lib, x, v, d: lib.vmap(lib.grad(lambda a: lib.np.sum(a**3) * x[0]))(lib.np.outer(x, v)),
    "through a Jacobian": lambda lib, x, v, d: lib.grad(
        lambda x: lib.np.sum(lib.jacfwd(layer(lib, d))(x) ** 2)
    )(x),
    "through a Hessian": lambda lib, x, v, d: lib.jvp(lib.hessian(rosen(lib)))(x, v)[1],
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(theirs, name, dtype):
    x, v = X.astype(dtype), V.astype(dtype)
    found = PROGRAMS[name](OURS, x, v, dtype)
    expected = np.asarray(PROGRAMS[name](theirs, theirs.array(x), theirs.array(v), dtype))
    assert found.dtype == expected.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=1e-10 if dtype == "f8" else 1e-4, atol=1e-10)


MODES = {
    "g": lambda lib, f: lib.grad(f),
    "j": lambda lib, f: lambda x: lib.jvp(f)(x, lib.np.ones_like(x))[1],
    "v": lambda lib, f: lambda x: lib.vjp(f)(x)[1](lib.np.ones_like(x)),
    "f": lambda lib, f: lib.jacfwd(f),
    "r": lambda lib, f: lib.jacrev(f),
}


@pytest.mark.parametrize("modes", ["gjvfrg", "rfvjgj", "jjgggj", "fffggg", "rrrjjj", "vfvfvf"])
def test_nests_of_depth_six(theirs, modes):
    def nested(lib):
        f = wave(lib)
        for mode in modes:
            f = MODES[mode](lib, f)
        return f

    expected = float(nested(theirs)(theirs.array(np.float64(0.7))))
    assert float(nested(OURS)(0.7)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("modes", [a + b for a in "gjv" for b in "gjv"])
def test_perturbations_are_kept_apart(theirs, modes):
    def confusing(lib):
        outer, inner = (MODES[mode] for mode in modes)
        one = lib.array(np.float64(1.0))
        return outer(
            lib,
            lambda x: (
                x * inner(lib, lambda y: x * y * y + inner(lib, lambda z: x * y * z * z)(x))(one * x * x)
            ),
        )

    expected = float(confusing(theirs)(theirs.array(np.float64(1.3))))
    assert float(confusing(OURS)(np.float64(1.3))) == pytest.approx(expected, rel=1e-12)


def test_trees_and_aux(theirs):
    def loss(lib):
        def f(p, x):
            y = lib.np.tanh(p["layers"][0] @ x) * p["scale"][0]
            return lib.np.sum(y * y), {"y": y}

        return f

    def params(lib):
        return {"layers": [lib.array(WEIGHTS)], "scale": (lib.array(np.float64(1.5)),)}

    expected, aux = theirs.grad(loss(theirs), has_aux=True)(params(theirs), theirs.array(X))
    found, ours = F.grad(loss(OURS), has_aux=True)(params(OURS), X)
    np.testing.assert_allclose(found["layers"][0], np.asarray(expected["layers"][0]), rtol=1e-12)
    assert found["scale"][0] == pytest.approx(float(expected["scale"][0]), rel=1e-12)
    np.testing.assert_allclose(ours["y"], np.asarray(aux["y"]), rtol=1e-12)
    expected = theirs.jacrev(lambda p, x: loss(theirs)(p, x)[1], (0, 1))(params(theirs), theirs.array(X))
    found = F.jacrev(lambda p, x: loss(OURS)(p, x)[1], (0, 1))(params(OURS), X)
    np.testing.assert_allclose(
        found["y"][0]["layers"][0], np.asarray(expected["y"][0]["layers"][0]), atol=1e-12
    )
    np.testing.assert_allclose(found["y"][1], np.asarray(expected["y"][1]), atol=1e-12)


def test_complex_gradients_are_torch_s():
    theirs = Torch()
    z = np.array([1.0 + 2.0j, 0.5 - 1.0j])

    def f(lib):
        return lambda z: lib.np.sum(lib.np.abs(z * z + 1.0) ** 2)

    np.testing.assert_allclose(
        F.grad(f(OURS))(z), theirs.grad(f(theirs))(theirs.array(z)).numpy(), rtol=1e-12
    )
    back = F.vjp(lambda z: np.exp(z) * z)(z)[1](z)
    expected = theirs.vjp(lambda z: theirs.np.exp(z) * z)(theirs.array(z))[1](theirs.array(z))
    np.testing.assert_allclose(back, expected.numpy(), rtol=1e-12)
    push = F.jvp(lambda z: np.exp(z) * z)(z, z * 1j)[1]
    expected = theirs.jvp(lambda z: theirs.np.exp(z) * z)(theirs.array(z), theirs.array(z * 1j))[1]
    np.testing.assert_allclose(push, expected.numpy(), rtol=1e-12)
    np.testing.assert_allclose(F.linearize(lambda z: np.exp(z) * z)(z)[1](z * 1j), push, rtol=1e-12)


def test_names():
    """What torch.func has that derives; the rest of it is about modules."""
    torch = pytest.importorskip("torch")
    modules = {"functional_call", "stack_module_state", "functionalize", "debug_unwrap", "rearrange"}
    names = {n for n in torch.func.__all__ if "batch_norm" not in n} - modules
    assert {"value_and_grad" if n == "grad_and_value" else n for n in names} <= set(F.__all__)
