"""Whole programs: gradients on Tensors are those of differences, and Hessian products those of gradients."""

from types import SimpleNamespace

import numpy as np
import pytest

import tapegrad as tg
import tapegrad.scipy as ts
from tests.tiers import every

from .scripts import SCRIPTS

OURS = SimpleNamespace(np=np, **{name: getattr(ts, name) for name in ts.__all__})


def slope(f, x, v):
    """The derivative along a direction, by differences of order 6."""
    h = 2e-3
    weights = {1: 3 / 4, 2: -3 / 20, 3: 1 / 60}
    return sum(w * (f(x + k * h * v) - f(x - k * h * v)) for k, w in weights.items()) / h


def test_how_many_there_are():
    assert len(SCRIPTS) >= 20


@pytest.mark.parametrize("name", every(SCRIPTS, 7))
def test_gradients_of_scripts(name):
    objective, start, _ = SCRIPTS[name]

    def value(p):
        return float(objective(OURS, p))

    def gradient(p):
        return tg.func.grad(lambda p: objective(OURS, p))(p)

    v = np.cos(np.arange(start.size))
    found, wanted = gradient(start), slope(value, start, v)
    assert found.shape == start.shape
    np.testing.assert_allclose(found @ v, wanted, rtol=2e-7, atol=1e-7)
    product = tg.func.hvp(lambda p: objective(OURS, p))(start, v)
    wanted = slope(gradient, start, v)
    np.testing.assert_allclose(product, wanted, rtol=1e-5, atol=1e-5 * np.abs(product).max())
