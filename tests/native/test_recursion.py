"""Functions that call themselves, at once and by way of others."""

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import UnsupportedOpError


@numba.njit
def odd(x, n):
    if n == 0:
        return 0.5
    return np.sin(x) * even(x, n - 1)


@numba.njit
def even(x, n):
    if n == 0:
        return 1.0 * x
    return np.cos(x) * odd(x, n - 1)


@numba.njit
def first(x, n):
    if n == 0:
        return 1, (0.5, x)
    k, (a, b) = second(x, n - 1)
    return k + 1, (a * x, b)


@numba.njit
def second(x, n):
    if n == 0:
        return 0, (x, 2.0)
    k, (a, b) = first(x, n - 1)
    return k, (np.sin(b), a * x)


@tg.njit
def power(x, n):
    return 2.0 if n == 0 else x * power(x, n - 1)


@tg.njit
def of_a_literal(x):
    return power(x, 3) * x


@tg.njit
def in_turns(x):
    return odd(x, 3) + even(x, 4) * x


@tg.njit
def of_tuples(x):
    k, (a, b) = first(x, 5)
    return k * a * b


@pytest.mark.parametrize("f", [of_a_literal, in_turns, of_tuples], ids=lambda f: f.__name__)
def test_derivatives_of_functions_that_call_themselves(f):
    at, step = 0.7, 1e-5
    assert f(at) == pytest.approx(f.py_func(at), rel=1e-14)
    value, slope = tg.func.value_and_grad(f)(at)
    assert value == pytest.approx(f(at), rel=1e-14)
    assert slope == pytest.approx((f(at + step) - f(at - step)) / (2 * step), rel=1e-8)
    ahead, behind = (tg.func.grad(f)(at + d) for d in (step, -step))
    assert tg.func.hvp(f)(at, 1.0) == pytest.approx((ahead - behind) / (2 * step), rel=1e-8)


def test_recursion_on_tensors_and_in_compiled_code():
    x = tg.tensor(0.7, requires_grad=True)
    (g,) = tg.grad(power(x, 3), x, create_graph=True)
    (h,) = tg.grad(g, x)
    np.testing.assert_allclose([g.item(), h.item()], [6.0 * 0.49, 12.0 * 0.7], rtol=1e-14)
    slope = tg.func.grad(power)

    @numba.njit
    def use(x):
        return slope(x, 2) + power(x, 2)

    assert use(0.5) == pytest.approx(2.5, rel=1e-15)


@numba.njit
def counts(x, n):
    if n == 0:
        return 0
    return np.sin(x) * sums(x, n - 1)


@numba.njit
def sums(x, n):
    if n == 0:
        return x
    return np.cos(x) * counts(x, n - 1)


@tg.njit
def of_an_integer(x, n):
    return counts(x, n)


def test_a_result_that_is_an_integer_before_it_is_active_is_refused():
    """Numba gives a number that is none in such a case."""
    with pytest.raises(UnsupportedOpError, match=r"(?s)counts.*by way of another.*int64.*floats"):
        tg.func.grad(of_an_integer)(0.5, 3)
