"""`tg.func.vjp` in compiled code: one recording, several cotangents, differentiated or not."""

import threading

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import UnsupportedOpError

from .memory import assert_given_back


def results(x, a):
    y = np.sin(x) * a
    return y, (np.sum(x * x) * a, x[0] * 3.0)


def matrix(x):
    return np.outer(x, x) * x[1]


def number(x):
    return x * x * x


pull, of_matrix, of_number = (
    tg.func.vjp(tg.njit(results), (0, 1)),
    tg.func.vjp(tg.njit(matrix)),
    tg.func.vjp(tg.njit(number)),
)
AT, BY, STEP = np.array([0.5, 0.6, 0.7]), np.array([1.0, -2.0, 0.3]), 1e-5


@pytest.mark.quick
def test_several_results_and_cotangents_of_one_recording():
    @numba.njit
    def use(x, a, c):
        value, pullback = pull(x, a)
        return value, pullback((c, (1.0, 0.5))), pullback((c[::-1], (0, a)))

    value, one, other = use(AT, 2.0, BY)
    expected, pullback = tg.func.vjp(results, (0, 1))(AT, 2.0)
    np.testing.assert_allclose(value[0], expected[0], rtol=1e-15)
    np.testing.assert_allclose(value[1], expected[1], rtol=1e-15)
    for found, ct in ((one, (BY, (1.0, 0.5))), (other, (BY[::-1], (0.0, 2.0)))):
        for part, wanted in zip(found, pullback(ct), strict=True):
            np.testing.assert_allclose(part, wanted, rtol=1e-14)


def test_the_function_runs_once():
    """It writes to an array how often it was called."""

    @tg.njit
    def counted(x, calls):
        calls[0] += 1
        return x * x, np.sum(x)

    once = tg.func.vjp(counted)

    @numba.njit
    def rows(x, calls):
        found = np.zeros((x.size, x.size))
        _, pullback = once(x, calls)
        for k in range(x.size):
            unit = np.zeros(x.size)
            unit[k] = 1.0
            found[k] = pullback((unit, 0.0))
        return found

    calls = np.zeros(1, np.int64)
    np.testing.assert_array_equal(rows(AT, calls), np.diag(2 * AT))
    assert calls[0] == 1


def of_all(pull, of_matrix, of_number):
    """A number of pullbacks of all kinds, and of what was written to meanwhile."""

    def use(z):
        x, a = np.exp(z), z[0] * z[1]
        value, pullback = pull(x, a)
        px, pa = pullback((z * z, (1.0, a)))
        y = x * 1.0
        square, second = of_matrix(y)
        y = y * 0.0
        w = second(square)
        cube, third = of_number(a)
        qx, qa = pullback((value[0], (0.0, 0.0)))
        return np.sum(px * qx * w) * pa + qa + value[1][0] + third(cube) * third(1.0)

    return use


def given_arguments(pull):
    """Of arguments that carry no derivative, along cotangents that do."""

    def use(z):
        value, pullback = pull(AT, 2.0)
        p, q = pullback((z * z, (z[0], 0.5)))
        return np.sum(p * p) * q + value[1][1]

    return use


PLAIN = [tg.func.vjp(f, by) for f, by in ((results, (0, 1)), (matrix, 0), (number, 0))]


@pytest.mark.parametrize(("make", "both"), [
    pytest.param(given_arguments, ((pull,), PLAIN[:1]), id="given"),
    pytest.param(of_all, ((pull, of_matrix, of_number), PLAIN), marks=pytest.mark.slow, id="all"),
])  # fmt: skip
def test_derivatives_of_what_calls_pullbacks(make, both):
    """Orders one and two, beside Tensors and differences."""
    native, plain = tg.njit(make(*both[0])), make(*both[1])
    gradient = tg.func.grad(native)
    assert native(AT) == pytest.approx(plain(AT), rel=1e-13)
    found, expected = gradient(AT), tg.func.grad(plain)(AT)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    differences = [(native(AT + e) - native(AT - e)) / (2 * STEP) for e in STEP * np.eye(3)]
    np.testing.assert_allclose(found, differences, rtol=1e-6)
    product = tg.func.hvp(native)(AT, BY)
    np.testing.assert_allclose(product, tg.func.hvp(plain)(AT, BY), rtol=1e-11)
    ahead, behind = (gradient(AT + d * BY) for d in (STEP, -STEP))
    np.testing.assert_allclose(product, (ahead - behind) / (2 * STEP), rtol=1e-5)
    x = tg.tensor(AT, requires_grad=True)
    (g,) = tg.grad(native(x), x)
    np.testing.assert_allclose(g.numpy(), found, rtol=1e-13)


@pytest.mark.quick
def test_an_infinite_slope_and_what_nothing_comes_to():
    """A cotangent of 0 times an infinite partial is nan, as for Tensors; what depends on nothing has 0."""

    def f(x):
        return np.sqrt(x), 2.0

    native, plain = tg.func.vjp(tg.njit(f)), tg.func.vjp(f)

    @numba.njit
    def use(x, c):
        return native(x)[1]((c, 1.0))

    x = np.array([0.0, 4.0])
    for c in (np.array([0.0, 1.0]), np.ones(2)):
        np.testing.assert_array_equal(use(x, c), plain(x)[1]((c, 1.0)))


def test_what_is_no_cotangent_is_refused():
    @numba.njit
    def shape(x, c):
        return of_matrix(x)[1](c)

    with pytest.raises(ValueError, match="shape of the result"):
        shape(AT, np.ones((3, 2)))
    for c in (1.0, AT, (AT, AT)):
        with pytest.raises(numba.core.errors.TypingError, match="built as the result, an array of 2 dim"):
            shape(AT, c)

    @tg.njit
    def parts(x):
        _, pullback = pull(x, x[0])
        return pullback((x, 1.0))[1]

    with pytest.raises(UnsupportedOpError, match=r"built as the result, \(an array of 1 dimension, \(a num"):
        tg.func.grad(parts)(AT)


def test_tapes_and_memory_are_given_back():
    """Of what is computed and what raises in the function, differentiated or not."""

    @tg.njit
    def f(x):
        if x[0] < 0.0:
            raise ValueError("below zero")
        return np.exp(x), np.sum(x)

    both = tg.func.vjp(f)

    @tg.njit
    def use(x, n):
        total = 0.0
        for k in range(n):
            value, pullback = both(x * (2 - k))
            total += np.sum(pullback(value)) + np.sum(pullback((x, 2.0)))
        return total

    gradient = tg.func.value_and_grad(use)
    for call in (use, gradient):
        assert_given_back(lambda call=call: call(AT, 2), lambda call=call: call(AT, 4), "below zero")


def test_threads_have_recordings_of_their_own():
    @numba.njit(nogil=True)
    def sums(x, n):
        total = 0.0
        for k in range(n):
            value, pullback = of_matrix(x + k)
            total += np.sum(pullback(value))
        return total

    expected, found = [sums(AT * k, 300) for k in range(4)], [0.0] * 4

    def run(k):
        found[k] = sums(AT * k, 300)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == expected


@pytest.mark.quick
def test_from_python_a_pullback_is_pythons():
    x, ones = tg.tensor(AT, requires_grad=True), np.ones((3, 3))
    value, pullback = of_matrix(x)
    assert value.requires_grad and pullback(ones).requires_grad
    np.testing.assert_allclose(pullback(ones).detach().numpy(), PLAIN[1](AT)[1](ones), rtol=1e-14)
    value, pullback = of_matrix(AT)
    np.testing.assert_allclose(pullback(value), PLAIN[1](AT)[1](matrix(AT)), rtol=1e-14)
