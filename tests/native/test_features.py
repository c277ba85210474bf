"""Every feature of the language that compiled functions may use, by name: values and derivatives."""

import numpy as np
import pytest

import tapegrad as tg
from tests.tiers import thinned

from .programs import FEATURES

NAMES = list(FEATURES)
QUICK = {"array_expression", "lists", "while_loop", "tuples", "closure", "comprehension", "math_functions"}


def recorded(name):
    primal, n, x = FEATURES[name]
    function = tg.njit(primal, rerun=True)
    return function, n, tg.tensor(x, requires_grad=True)


def central(function, x, h=1e-6):
    """Central differences of a function of a vector."""
    return np.array([(function(x + h * e) - function(x - h * e)) / (2 * h) for e in np.eye(x.size)])


@pytest.mark.quick
@pytest.mark.parametrize("name", thinned(NAMES, QUICK.__contains__))
def test_value_and_gradient(name):
    function, n, x = recorded(name)
    y = function(x, n)
    plain = function.primal if name == "random_numbers" else function.py_func
    assert y.item() == pytest.approx(plain(x.detach().numpy(), n), rel=1e-13)
    (g,) = tg.grad(y, x)
    expected = central(lambda v: plain(v, n), x.detach().numpy())
    np.testing.assert_allclose(g.numpy(), expected, rtol=1e-7, atol=2e-8)


SOME = ["tuples", "powers", "math_functions"]  # the others are slow


def check_second(name):
    function, n, x = recorded(name)
    u = np.linspace(0.3, 1.0, x.size)
    (g,) = tg.grad(function(x, n), x, create_graph=True)
    (hv,) = tg.grad((g * u).sum(), x)

    def gradient(v):
        v = tg.tensor(v, requires_grad=True)
        return tg.grad(function(v, n), v)[0].numpy()

    at = x.detach().numpy()
    expected = (gradient(at + 1e-6 * u) - gradient(at - 1e-6 * u)) / 2e-6
    np.testing.assert_allclose(hv.numpy(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", SOME)
def test_hessian_vector_product(name):
    check_second(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in SOME])
def test_hessian_vector_product_of_the_others(name):
    check_second(name)
