"""`tg.func.jvp` and `jacfwd` of any results in compiled code: several directions in one pass."""

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import ShapeError, UnsupportedOpError
from tapegrad.native.derivatives.derivative import LANES

from .memory import assert_given_back


def results(x, a):
    y = np.sin(x) * a
    return y, (np.sum(x * x) * a, np.outer(y, x)), 2.0


def number(x):
    return x * x * x


def parts(found):
    """The numbers and arrays in nested tuples."""
    return [leaf for part in found for leaf in parts(part)] if isinstance(found, tuple) else [found]


def assert_alike(found, expected, rtol=1e-13):
    found, expected = parts(found), parts(expected)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert np.shape(one) == np.shape(other)
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-14)


of_results, of_number = tg.njit(results), tg.njit(number)
batch = tg.func.jvp(of_results, (0, 1), batched=True)
outer = tg.func.jvp(tg.njit(lambda x: np.outer(x, x)), batched=True)
AT, BY, STEP = np.array([0.5, 0.6, 0.7]), np.array([1.0, -2.0, 0.3]), 1e-5
V, W = np.linspace(-1.0, 2.0, 3 * (2 * LANES + 1)).reshape(-1, 3), np.linspace(1.0, 2.0, 2 * LANES + 1)


@pytest.mark.parametrize("n", [0, 1, LANES - 1, LANES, LANES + 1, 2 * LANES + 1])
def test_several_directions_in_one_pass(n):
    """As those of Tensors, recorded and in forward mode, and one after the other."""
    found = batch(AT, 2.0, (V[:n], W[:n]))
    plain = tg.func.jvp(results, (0, 1), batched=True)
    assert_alike(found, plain(AT, 2.0, (V[:n], W[:n])))
    assert_alike(found[0], results(AT, 2.0))
    one = tg.func.jvp(results, (0, 1))
    for k in range(n):
        assert_alike(tuple(part[k] for part in parts(found[1])), one(AT, 2.0, (V[k], W[k]))[1])

    def forward(x):
        with tg.no_grad():
            return np.outer(x, x)

    assert_alike(tg.func.jvp(forward, batched=True)(AT, V[:n]), outer(AT, V[:n]))


def test_directions_from_compiled_code_and_of_numbers():
    along = tg.func.jvp(of_number, batched=True)

    @numba.njit
    def use(x, v):
        return along(x, v), batch(v, x, (V.copy(), v[0] * W))[1][1][0]

    (value, tangents), sums = use(2.0, AT)
    assert value == 8.0
    np.testing.assert_array_equal(tangents, 12.0 * AT)
    np.testing.assert_allclose(sums, 2 * (V @ AT) * 2.0 + AT @ AT * AT[0] * W, rtol=1e-14)


def test_other_directions_are_refused():
    plain = tg.func.jvp(results, (0, 1), batched=True)
    with pytest.raises(ValueError, match="as many directions of one argument"):
        batch(AT, 2.0, (V, W[:2]))
    with pytest.raises(ShapeError, match=r"shape \(lanes,\) is wanted.*found \(2,\)"):
        plain(AT, 2.0, (V, W[:2]))
    with pytest.raises(ValueError, match="another shape than the argument"):
        batch(AT, 2.0, (V[:, :2].copy(), W))  # as the one above is compiled
    with pytest.raises(ShapeError, match=r"shape \(lanes, 3\) is wanted.*found \(9, 2\)"):
        plain(AT, 2.0, (V[:, :2], W))
    with pytest.raises(UnsupportedOpError, match="a direction of argument 0"):
        batch(AT, 2.0, (AT, W))
    with pytest.raises(ShapeError, match="found"):
        plain(AT, 2.0, (AT, W[:3]))
    with pytest.raises(UnsupportedOpError, match="an axis in front"):
        tg.func.grad(tg.njit(lambda x: batch(AT, x, (V, x))[1][1][0][0]))(1.0)


def of_all(of, number):
    """A number of derivatives of all kinds, and of what was written to meanwhile."""
    along, batch, matrix = (
        tg.func.jvp(of, (0, 1)),
        tg.func.jvp(of, (0, 1), batched=True),
        tg.func.jacfwd(of),
    )
    slope, rate = tg.func.jvp(number), tg.func.jacfwd(number)

    def use(z):
        x, a = np.exp(z), z[0] * z[1]
        value, t = along(x, a, (z * z, x[0]))
        _, several = batch(x, a, (np.outer(z, x), z))
        rows = matrix(x, a)
        x = x * 0.0
        w = several[0][1] * t[0]
        total = np.sum(w) * t[1][0] + value[1][0] + np.sum(several[1][0] * z) + several[1][1][2, 0, 1]
        return total + np.sum(rows[0] * rows[0]) + rows[1][1][0, 1, 2] * slope(a, z[0])[1] + rate(a)

    return use


def scaled(x, a):
    return x * x * a, np.sum(x) * a


def of_rows(of, number):
    """Of arguments that carry no derivative, along directions that do; and the other way round."""
    batch, matrix = tg.func.jvp(of, (0, 1), batched=True), tg.func.jacfwd(of)

    def use(z):
        several = batch(AT, 2.0, (np.outer(BY, z), z))[1]
        return np.sum(several[0] * several[0]) * z[0] + np.sum(matrix(z, 2.0)[0]) * several[1][0]

    return use


@pytest.mark.parametrize(("make", "of", "order"), [
    pytest.param(of_rows, scaled, 1, id="rows"),
    pytest.param(of_rows, scaled, 2, marks=pytest.mark.slow, id="rows twice"),
    pytest.param(of_all, results, 2, marks=pytest.mark.slow, id="all"),
])  # fmt: skip
def test_derivatives_of_what_calls_them(make, of, order):
    """Orders one and two, beside Tensors and differences."""
    native, plain = tg.njit(make(tg.njit(of), of_number)), make(of, number)
    gradient = tg.func.grad(native)
    assert native(AT) == pytest.approx(plain(AT), rel=1e-13)
    found = gradient(AT)
    np.testing.assert_allclose(found, tg.func.grad(plain)(AT), rtol=1e-11)
    differences = [(native(AT + e) - native(AT - e)) / (2 * STEP) for e in STEP * np.eye(3)]
    np.testing.assert_allclose(found, differences, rtol=1e-6, atol=1e-8)
    if order == 1:
        return
    product = tg.func.hvp(native)(AT, BY)
    np.testing.assert_allclose(product, tg.func.hvp(plain)(AT, BY), rtol=1e-10)
    ahead, behind = (gradient(AT + d * BY) for d in (STEP, -STEP))
    np.testing.assert_allclose(product, (ahead - behind) / (2 * STEP), rtol=1e-5, atol=1e-7)


def test_the_function_runs_once_for_four_directions():
    @tg.njit
    def counted(x, calls):
        calls[0] += 1
        return x * x

    along, calls = tg.func.jvp(counted, batched=True), np.zeros(1, np.int64)
    np.testing.assert_array_equal(along(AT, calls, V[:LANES])[1], 2 * AT * V[:LANES])
    assert calls[0] == 1


def test_memory_is_given_back():
    """Of what is computed and what raises in the function, differentiated or not."""

    @tg.njit
    def f(x):
        if x[0] < 0.0:
            raise ValueError("below zero")
        return np.exp(x), np.sum(x)

    along, matrix = tg.func.jvp(f, batched=True), tg.func.jacfwd(f)

    @tg.njit
    def use(x):
        value, found = along(x, np.outer(x, x))
        return np.sum(found[0] * value[0]) + np.sum(matrix(x)[0])

    gradient = tg.func.grad(use)
    for call in (use, gradient):
        assert_given_back(lambda call=call: call(AT), lambda call=call: call(-AT), "below zero")
