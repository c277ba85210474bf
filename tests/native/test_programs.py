"""Programs of the benchmark, smaller: beside complex steps and, to the third order, the tape of Tensors."""

import numpy as np
import pytest

import tapegrad as tg
from tests.tiers import every

from ..benchmarks import native_programs as programs

RANDOM = np.random.default_rng(5)
CASES = {  # the program, where, its arguments, and whether Python runs it on complex numbers
    "lotka_volterra": (programs.lotka_volterra, np.array([1.1, 0.4, 0.4, 0.1, 10.0, 5.0]), (40,), True),
    "gauss_seidel": (None, 50.0 + np.arange(6.0), (6, 9), False),
    "volatility": (programs.volatility, np.array([0.1, 0.05, 0.1, 0.85]), (RANDOM.normal(size=50),), True),
    "rosenbrock": (programs.rosenbrock, np.linspace(0.5, 1.5, 6), (), True),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", every([name for name in CASES if CASES[name][3]], 3))
def test_gradients_beside_complex_steps(name, monkeypatch):
    program, x, args, _ = CASES[name]
    t = tg.tensor(x, requires_grad=True)
    (g,) = tg.grad(tg.njit(program)(t, *args), t)
    monkeypatch.setattr(programs.math, "log", np.log)  # math knows no complex numbers
    expected = [program.py_func(x + 1e-30j * e, *args).imag / 1e-30 for e in np.eye(x.size)]
    np.testing.assert_allclose(g.numpy(), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["lotka_volterra", "volatility"])
def test_derivatives_to_the_third_beside_tensors(name, monkeypatch):
    program, x, args, _ = CASES[name]
    u, v = np.linspace(0.1, 1.0, x.size), np.linspace(-1.0, 0.5, x.size) * 1e-2
    results = []
    for function in (tg.njit(program), program.py_func):
        t = tg.tensor(x, requires_grad=True)
        (g,) = tg.grad(function(t, *args), t, create_graph=True)
        (h,) = tg.grad((g * u).sum(), t, create_graph=True)
        (third,) = tg.grad((h * v).sum(), t)
        results.append((g.detach().numpy(), h.detach().numpy(), third.numpy()))
        monkeypatch.setattr(programs.math, "log", np.log)
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11 * abs(expected).max())


def test_gauss_seidel_beside_differences():
    _, x, args, _ = CASES["gauss_seidel"]
    t = tg.tensor(x, requires_grad=True)
    (g,) = tg.grad(tg.njit(programs.gauss_seidel)(t, *args), t)
    plain = programs.gauss_seidel.py_func
    expected = [(plain(x + 1e-4 * e, *args) - plain(x - 1e-4 * e, *args)) / 2e-4 for e in np.eye(6)]
    np.testing.assert_allclose(g.numpy(), expected, rtol=1e-6)
