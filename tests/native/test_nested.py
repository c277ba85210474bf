"""Derivatives called inside of functions that are recorded, and differentiated themselves."""

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import UnsupportedOpError


@tg.njit
def energy(x, a):
    return np.sum(np.sin(x) * a) * x[0] + a * a * x[1]


@tg.njit
def wave(x, a):
    return np.sin(x * a) * x


slope, force, force_and_rate = tg.func.grad(wave), tg.func.grad(energy), tg.func.grad(energy, (1, 0))
curved, both, along = tg.func.hvp(energy), tg.func.value_and_grad(energy), tg.func.jvp(energy, (0, 1))
matrix, curvature, towards = tg.func.hessian(energy), tg.func.hessian(wave), tg.func.hvp(energy, (1, 0))


@tg.njit
def penalty(x):
    """The gradient of a number, in a loop."""
    total = 0.0
    for k in range(x.size):
        total += slope(x[k], x[0]) ** 2 + slope(2.0, x[k])
    return total


@tg.njit
def gradients(x):
    rate, direction = force_and_rate(np.exp(x), x[0] * x[1])
    return np.sum(curved(x, 2.0, direction)) * rate + np.sum(force(np.ones(2), x[1]))


@tg.njit
def steps(x):
    """Ten steps of descent: what learns to learn does so."""
    y = x.copy()
    for _ in range(10):
        y = y - 0.01 * force(y, 2.0)
    return energy(y, 2.0)


@tg.njit
def values(x):
    value, found = both(x, x[0])
    other, tangent = along(x, x[1], (x * x, x[0]))
    return value * np.sum(found) + other * tangent


@tg.njit
def matrices(x):
    rate, rest = towards(x, x[0], (x[1], np.cos(x)))
    return np.sum(matrix(x, 2.0) ** 2) + curvature(x[1], x[0]) * rate + np.sum(rest)


twice = tg.func.grad(gradients)


@tg.njit
def deeper(x):
    return np.sum(twice(x) ** 2)


LONG = (gradients, values, matrices, deeper, steps)
SLOW = [pytest.param(f, marks=pytest.mark.slow, id=f.__name__) for f in LONG]
AT, BY, STEP = np.array([0.5, 0.6]), np.array([0.7, -0.3]), 1e-5


@pytest.mark.parametrize("f", [pytest.param(penalty, id="penalty"), *SLOW])
def test_derivatives_of_what_calls_derivatives(f):
    gradient = tg.func.value_and_grad(f)
    value, found = gradient(AT)
    assert value == pytest.approx(f(AT), rel=1e-14)
    expected = [(f(AT + e) - f(AT - e)) / (2 * STEP) for e in STEP * np.eye(2)]
    np.testing.assert_allclose(found, expected, rtol=1e-7)
    ahead, behind = (gradient(AT + d * BY)[1] for d in (STEP, -STEP))
    product = tg.func.hvp(f)(AT, BY)
    np.testing.assert_allclose(product, (ahead - behind) / (2 * STEP), rtol=1e-6)
    x = tg.tensor(AT, requires_grad=True)
    (g,) = tg.grad(f(x), x, create_graph=True)
    (h,) = tg.grad(g, x, tg.tensor(BY))
    np.testing.assert_allclose(g.detach().numpy(), found, rtol=1e-12)
    np.testing.assert_allclose(h.numpy(), product, rtol=1e-12)


def test_a_step_of_newtons_method():
    @tg.njit
    def cube(x):
        return x**3

    slope = tg.func.grad(cube)

    @tg.njit
    def newton(x):
        return x - cube(x) / slope(x)

    assert newton(2.0) == pytest.approx(4 / 3, rel=1e-15)
    x = tg.tensor(2.0, requires_grad=True)
    newton(x).backward()
    assert x.grad.item() == pytest.approx(2 / 3, rel=1e-14)


def test_of_tensors_and_of_what_is_called_in_plain_code():
    @tg.njit
    def f(x, y):
        return slope(x, 2.0) * slope(y, y)

    def tangent(x):
        return np.sin(2.0 * x) + 2.0 * x * np.cos(2.0 * x)

    x = tg.tensor(0.5, requires_grad=True)
    f(x, 1.0).backward()
    rate = 4.0 * np.cos(1.0) - 2.0 * np.sin(1.0)
    assert x.grad.item() == pytest.approx(rate * (np.sin(1.0) + np.cos(1.0)), rel=1e-13)
    assert f(0.5, 1.0) == pytest.approx(tangent(0.5) * (np.sin(1.0) + np.cos(1.0)), rel=1e-14)


@pytest.mark.slow
def test_series_and_loops_with_checkpoints():
    @tg.njit
    def f(x):
        return slope(x, 1.0) * x

    s, c = np.sin(0.5), np.cos(0.5)
    expected = [s * 0.5 + 0.25 * c, s + 1.5 * c - 0.25 * s, 2.0 * c - 1.25 * s - 0.125 * c]
    np.testing.assert_allclose(tg.func.taylor(f, 2)(0.5, 1.0), expected, rtol=1e-13)

    @tg.njit
    def step(y):
        return y - 0.01 * force(y, 2.0)

    @tg.njit
    def g(x):
        return energy(tg.func.checkpoint_loop(step, x, 10, 2), 2.0)

    np.testing.assert_allclose(tg.func.grad(g)(AT), tg.func.grad(steps)(AT), rtol=1e-13)
    np.testing.assert_allclose(tg.func.hvp(g)(AT, BY), tg.func.hvp(steps)(AT, BY), rtol=1e-12)


def test_what_a_derivative_read_may_be_written_to_and_tapes_are_given_back():
    from tapegrad.native.tapes import runtime

    @tg.njit
    def f(x, weights):
        w = weights * x[0]
        y = x.copy()
        found = np.sum(force(y, w[0]) * weights)
        y[:] = 0.0
        weights[:] = 7.0
        if x[0] < 0.0:
            raise ValueError("below zero")
        return found + y[0]

    @tg.njit
    def expected(x, weights):
        return np.sum(force(x, x[0] * weights[0]) * weights)

    one, other = tg.func.value_and_grad(f), tg.func.value_and_grad(expected)
    found, wanted = one(AT, np.ones(2)), other(AT, np.ones(2))
    np.testing.assert_array_equal(found[1], wanted[1])
    tape = runtime.tapes().acquire()
    runtime.tapes().release(tape)
    for _ in range(100):
        with pytest.raises(ValueError, match="below zero"):
            one(-AT, np.ones(2))
    again = runtime.tapes().acquire()
    runtime.tapes().release(again)
    assert again == tape


def test_what_is_not_recorded_is_refused_by_name():
    series = tg.func.taylor(wave, 3)

    @tg.njit
    def f(x):
        return series(x, 1.0, 1.0)[2]

    with pytest.raises(UnsupportedOpError, match=r"taylor.*not recorded.*hvp"):
        tg.func.grad(f)(0.5)
    sums = tg.func.grad(numba.njit(lambda pair: pair[0] * pair[1]))

    @tg.njit
    def g(x):
        return sums((x, x))

    with pytest.raises(UnsupportedOpError, match=r"real numbers and arrays"):
        tg.func.grad(g)(0.5)
