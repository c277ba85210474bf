"""tg.func of compiled functions: from Python and from compiled code."""

import math
import sys
from itertools import product

import numba
import numpy as np
import pytest
from mpmath import mp
from scipy.optimize import rosen_hess, rosen_hess_prod

import tapegrad as tg
from tapegrad.errors import DTypeError, UnsupportedOpError
from tapegrad.native.derivatives import jacobian
from tapegrad.native.derivatives.derivative import LANES


@tg.njit
def rosenbrock(x):
    s = 0.0
    for i in range(x.size - 1):
        s += 100.0 * (x[i + 1] - x[i] ** 2) ** 2 + (1.0 - x[i]) ** 2
    return s


def gradient_by_hand(x):
    g = np.zeros_like(x)
    g[:-1] = -400 * x[:-1] * (x[1:] - x[:-1] ** 2) - 2 * (1 - x[:-1])
    g[1:] += 200 * (x[1:] - x[:-1] ** 2)
    return g


@pytest.mark.quick
def test_value_and_gradient():
    x = np.linspace(0.5, 1.5, 10)
    value, gradient = tg.func.value_and_grad(rosenbrock)(x)
    assert value == rosenbrock(x)
    np.testing.assert_allclose(gradient, gradient_by_hand(x), rtol=1e-12)
    np.testing.assert_array_equal(tg.func.grad(rosenbrock)(x), gradient)


def test_from_compiled_code():
    value_and_grad = tg.func.value_and_grad(rosenbrock)

    @numba.njit
    def descend(x, steps):
        for _ in range(steps):
            value, gradient = value_and_grad(x)
            x = x - 1e-3 * gradient
        return value, x

    x = np.linspace(0.5, 1.5, 4)
    value, found = descend(x, 50)
    for _ in range(50):
        expected = rosenbrock(x)
        x = x - 1e-3 * gradient_by_hand(x)
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(found, x, rtol=1e-12)


@tg.njit
def scaled(a, x, b):
    if b < 0:
        raise ValueError("below zero")
    return a * np.sum(x * x) * b


def test_several_arguments_and_kinds():
    both = tg.func.grad(scaled, (0, 1))
    ga, gx = both(2.0, np.ones((2, 3)), 3)
    assert ga == 18.0
    np.testing.assert_array_equal(gx, np.full((2, 3), 12.0))
    assert both(2, np.ones((2, 3)).T[::2], 1)[1].shape == (2, 2)
    assert tg.func.grad(scaled, 2)(2.0, np.ones(2), 5.0) == 4.0


def test_arguments_in_another_order():
    x = np.array([1.0, 2.0])
    b, a, gx = tg.func.grad(scaled, (2, 0, 1))(2.0, x, 3.0)
    assert (a, b) == (15.0, 10.0)
    np.testing.assert_array_equal(gx, 12.0 * x)
    _, a, gx = tg.func.hvp(scaled, (2, 0, 1))(2.0, x, 3.0, (1.0, 0.0, 0.0 * x))
    assert a == 5.0
    np.testing.assert_array_equal(gx, 4.0 * x)


def test_errors_give_the_tape_back():
    from tapegrad.native.tapes import runtime

    both = tg.func.value_and_grad(scaled, (0, 1))
    both(1.0, np.ones(2), 1.0)
    tape = runtime.tapes().acquire()
    runtime.tapes().release(tape)
    for _ in range(100):
        with pytest.raises(ValueError, match="below zero"):
            both(1.0, np.ones(2), -1.0)
    again = runtime.tapes().acquire()
    runtime.tapes().release(again)
    assert again == tape
    assert both(1.0, np.ones(2), 1.0)[0] == 2.0


def test_a_result_that_depends_on_nothing():
    @tg.njit
    def constant(x):
        return 3.0

    assert tg.func.value_and_grad(constant)(np.ones(2))[0] == 3.0
    np.testing.assert_array_equal(tg.func.grad(constant)(np.ones(2)), [0.0, 0.0])


@tg.njit
def several(x, k):
    out = np.zeros((2, 2))
    out[0, 0], out[0, 1], out[1, 0] = x[0] * x[1], np.sin(x[0]), k * x[1] ** 2
    return out.T, (x * k)[::-1], x[0] + x[1], k, np.ones(2)


def test_tangents_of_arrays():
    x, v, k = np.array([0.5, 0.6]), np.array([1.0, -2.0]), 3
    along = tg.func.jvp(several)
    values, tangents = along(x, k, v)
    for found, expected in zip(values, several(x, k), strict=True):
        np.testing.assert_array_equal(found, expected)
    by_hand = [[-0.4, -7.2], [np.cos(0.5), 0.0]], [-6.0, 3.0], -1.0, 0.0, [0.0, 0.0]
    for found, expected in zip(tangents, by_hand, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-14)

    @numba.njit
    def use(x, v):
        return along(x, 3, v)[1][1]

    np.testing.assert_array_equal(use(x, v), [-6.0, 3.0])
    with pytest.raises(UnsupportedOpError, match="arrays are wanted"):
        tg.func.jvp(tg.njit(lambda x: ("a", x)))(1.0, 1.0)


@pytest.mark.quick
def test_misuse():
    with pytest.raises(TypeError, match="takes a function, found float"):
        tg.func.grad(3.0)
    with pytest.raises(ValueError, match="argnums"):
        tg.func.grad(rosenbrock, -1)
    with pytest.raises(UnsupportedOpError, match="derivative by argument 0"):
        tg.func.grad(rosenbrock)(3 + 1j)
    with pytest.raises(UnsupportedOpError, match="one number"):
        tg.func.grad(numba.njit(lambda x: x * 2.0))(np.ones(2))


@tg.njit
def mixed(x, y):
    s = math.exp(math.sin(x)) * np.tanh(y) / x + np.sqrt(x * y) + math.atan2(x, y) + x**2.5
    return s + x**y + max(x, y) * np.log(y) + x % 0.4 - math.erf(x * y)


def exact(x, y):
    s = mp.exp(mp.sin(x)) * mp.tanh(y) / x + mp.sqrt(x * y) + mp.atan2(x, y) + x ** mp.mpf(2.5)
    return s + x**y + x * mp.log(y) + x - mp.mpf(0.4) * 3 - mp.erf(x * y)


def test_taylor_series_beside_mpmath():
    found = tg.func.taylor(mixed, 4, (0, 1))(1.3, 0.75, (1.0, 0.5))
    with mp.workdps(40):
        expected = mp.taylor(lambda t: exact(mp.mpf(1.3) + t, mp.mpf(0.75) + t / 2), 0, 4)
    np.testing.assert_allclose(found, np.array(expected, float), rtol=1e-12, atol=1e-14)


def test_tangent_and_hessian_vector_product():
    value, tangent = tg.func.jvp(mixed, (0, 1))(1.3, 0.75, (1.0, 0.5))
    gx, gy = tg.func.grad(mixed, (0, 1))(1.3, 0.75)
    assert value == mixed(1.3, 0.75)
    assert tangent == pytest.approx(gx + 0.5 * gy, rel=1e-13)
    hx, hy = tg.func.hvp(mixed, (0, 1))(1.3, 0.75, (1.0, 0.5))
    series = tg.func.taylor(mixed, 2, (0, 1))(1.3, 0.75, (1.0, 0.5))
    assert hx + 0.5 * hy == pytest.approx(2 * series[2], rel=1e-12)
    x, v = np.linspace(0.5, 1.5, 7), np.linspace(-1.0, 1.0, 7)
    np.testing.assert_allclose(tg.func.hvp(rosenbrock)(x, v), rosen_hess_prod(x, v), rtol=1e-12)
    with pytest.raises(ValueError, match="order"):
        tg.func.taylor(mixed, 0)


def test_hessian():
    hessian = tg.func.hessian(rosenbrock)
    for n in (2, 4, 7):
        x = np.linspace(0.5, 1.5, n)
        np.testing.assert_allclose(hessian(x), rosen_hess(x), rtol=1e-12, atol=1e-12)


def test_one_derivative_is_compiled_once():
    assert tg.func.grad(rosenbrock) is tg.func.grad(rosenbrock)
    assert tg.func.grad(mixed, 0) is not tg.func.grad(mixed, 1)


@pytest.mark.slow
def test_newton_in_compiled_code():
    gradient, hessian = tg.func.grad(rosenbrock), tg.func.hessian(rosenbrock)

    @numba.njit
    def newton(x, steps):
        for _ in range(steps):
            x = x - np.linalg.solve(hessian(x), gradient(x))
        return x

    np.testing.assert_allclose(newton(np.array([0.9, 0.8, 0.7]), 20), np.ones(3), rtol=1e-12)


@tg.njit
def trajectory(x, n):
    out = np.zeros((n, 2))
    a, b = x[0], x[1]
    for k in range(n):
        a, b = a + 0.1 * b * x[2], b - 0.1 * math.sin(a)
        out[k, 0] = a
        out[k, 1] = b * b
    return out


@pytest.mark.parametrize("n", [1, 3, 4])
def test_jacobian_of_several_seeds_at_once(n):
    x = np.array([0.3, 0.7, 1.1])
    found = tg.func.jacobian(trajectory)(x, n)
    assert found.shape == (n, 2, 3)
    plain = trajectory.py_func
    expected = [(plain(x + 1e-6 * e, n) - plain(x - 1e-6 * e, n)) / 2e-6 for e in np.eye(3)]
    np.testing.assert_allclose(found, np.moveaxis(expected, 0, -1), atol=1e-9)
    t = tg.tensor(x, requires_grad=True)
    rows = [tg.grad(y, t, retain_graph=True)[0].numpy() for y in trajectory(t, n).reshape(-1)]
    np.testing.assert_allclose(found.reshape(-1, 3), rows, rtol=1e-14, atol=1e-15)


def test_jacobian_of_what_is_not_reached():
    @tg.njit
    def edge(x):
        root = math.sqrt(x[0])
        return np.array([x[1], root + x[1], 2.0])

    found = tg.func.jacobian(edge)(np.array([0.0, 1.0]))
    np.testing.assert_array_equal(found, [[0.0, 1.0], [np.inf, 1.0], [0.0, 0.0]])


def nested(x, a):
    y = np.sin(x) * a
    return y, (np.sum(x * x) * a, y), 3.0, np.outer(x, y), np.ones(2)


def test_jacobian_of_several_results(monkeypatch):
    """One recording and one sweep for four elements, whichever result they are of; built as the result is."""
    calls, x = [], np.linspace(0.2, 1.0, 3)
    monkeypatch.setattr(
        "tapegrad.native.derivatives.jacobian._rows",
        lambda *args, of=jacobian._rows: calls.append(1) or of(*args),
    )
    found, plain = (tg.func.jacobian(f)(x, 2.0) for f in (tg.njit(nested), nested))
    assert len(calls) == 1 and type(found) is tuple and type(found[1]) is tuple
    for a, b in zip([*found[:1], *found[1], *found[2:]], [*plain[:1], *plain[1], *plain[2:]], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)
        assert a.shape == b.shape
    assert tg.func.jacobian(tg.njit(lambda x: (x, 2.0 * x)))(1.0) == (1.0, 2.0)


columns = tg.func.jacfwd(tg.njit(nested))


@numba.njit
def columns_inside(x):
    found = columns(x, 2.0)
    return found[0].sum() + found[1][0].sum()


@pytest.mark.parametrize("n", [0, 1, LANES - 1, LANES, LANES + 1])
def test_jacobian_by_columns(n):
    """Four directions at a time, of results of any shape; from compiled code too."""
    x = np.linspace(0.2, 1.0, n)
    found, plain = columns(x, 2.0), tg.func.jacrev(nested)(x, 2.0)
    for a, b in zip([*found[:1], *found[1], *found[2:]], [*plain[:1], *plain[1], *plain[2:]], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)
        assert np.shape(a) == np.shape(b)
    assert columns_inside(x) == pytest.approx(np.sum(plain[0]) + np.sum(plain[1][0]))


def test_jacobian_by_columns_of_numbers_and_matrices():
    native = tg.func.jacfwd(tg.njit(lambda x: (x * x, np.ones(2) * x)))
    a, b = native(3.0)
    assert a == 6.0 and type(a) is float
    np.testing.assert_array_equal(b, [1.0, 1.0])
    x = np.arange(6.0).reshape(2, 3)
    found = tg.func.jacfwd(tg.njit(lambda x: x.T @ x))(x)
    np.testing.assert_allclose(found, tg.func.jacrev(lambda x: x.T @ x)(x))
    t = tg.tensor(x, requires_grad=True)
    assert tg.func.jacfwd(tg.njit(lambda x: np.sum(x * x)))(t).requires_grad


@pytest.mark.slow
def test_parallel_loops_around_derivatives():
    value_and_grad = tg.func.value_and_grad(rosenbrock)

    @numba.njit
    def serial(points, out):
        for i in range(len(points)):
            out[i] = value_and_grad(points[i])[1]

    @numba.njit(parallel=True)
    def parallel(points, out):
        for i in numba.prange(len(points)):
            out[i] = value_and_grad(points[i])[1]

    points = np.random.default_rng(0).normal(size=(1000, 20))
    expected, found = np.zeros((2, 1000, 20))
    serial(points, expected)
    for _ in range(20):
        parallel(points, found)
        np.testing.assert_array_equal(found, expected)


@tg.njit
def stirling(x):
    return math.lgamma(x) + math.gamma(x) * 1e-3


@pytest.mark.quick
@pytest.mark.parametrize("x", [0.3, 1.4616321449683622, 4.0, 25.0, -2.3])
def test_power_series_of_the_gamma_function_beside_mpmath(x):
    found = tg.func.taylor(stirling, 4)(x, 1.0)
    with mp.workdps(40):
        expected = mp.taylor(lambda t: mp.re(mp.loggamma(t)) + mp.gamma(t) * mp.mpf(1e-3), mp.mpf(x), 4)
    np.testing.assert_allclose(found, np.array(expected, float), rtol=2e-13, atol=1e-15)


def test_polygamma_beside_scipy():
    from scipy.special import polygamma as expected

    from tapegrad.native.emission.gammas import polygamma

    for order in range(6):
        x = np.concatenate([np.geomspace(1e-3, 1e4, 200), [5.5, 60.25]])
        found = [polygamma(float(order), v) for v in x]
        np.testing.assert_allclose(found, expected(order, x), rtol=3e-15, atol=2e-15)
    assert math.isnan(polygamma(0.0, -3.0)) and math.isnan(polygamma(2.0, 0.0))


def test_hessian_by_a_number_is_a_number():
    @tg.njit
    def f(x, a):
        return a * x**3

    assert tg.func.hessian(f)(2.0, 5.0) == 60.0
    assert tg.func.hessian(f)(2, 5.0) == 60.0


def test_a_hessian_by_a_number_that_raises_lets_go_of_other_arguments():
    @tg.njit
    def f(x, a):
        if x < 0.0:
            raise ValueError("below zero")
        return np.sum(a) * x**3

    hessian, a = tg.func.hessian(f), np.ones(2)
    assert hessian(2.0, a) == 24.0
    held = sys.getrefcount(a)
    for _ in range(10):
        with pytest.raises(ValueError, match="below zero"):
            hessian(-2.0, a)
    assert sys.getrefcount(a) == held


@pytest.mark.full
@pytest.mark.parametrize("make", [tg.func.grad, tg.func.value_and_grad, tg.func.hvp, tg.func.jvp])
def test_derivatives_that_raise_let_go_of_arguments(make):
    for given, read in ("x, a", "a[0]"), ("x, a=None", "a[0]"), ("x, *more", "more[0][0]"):
        space = {}
        text = f"def f({given}):\n    if {read} < 0.0:\n        raise ValueError('below zero')\n"
        exec(f"{text}    return x * {read}", space)
        derivative, a = make(tg.njit(space["f"])), np.ones(2)
        more = (3.0,) if make in (tg.func.hvp, tg.func.jvp) else ()
        derivative(2.0, a, *more)
        a[0], held = -1.0, sys.getrefcount(a)
        for _ in range(10):
            with pytest.raises(ValueError, match="below zero"):
                derivative(2.0, a, *more)
        assert sys.getrefcount(a) == held, given


def test_an_argument_left_out_has_its_default():
    cubed = tg.njit(lambda x, scale=2.0, n=3: scale * x**n)
    assert tg.func.grad(cubed)(2.0) == 24.0
    assert tg.func.grad(cubed)(2.0, 1.0) == 12.0
    assert tg.func.jvp(cubed)(2.0, 0.5) == (16.0, 12.0)
    assert tg.func.hvp(cubed)(2.0, 1.0) == 24.0


@pytest.mark.parametrize("name", ["hvp", "jvp", "taylor"])
def test_a_direction_has_the_shape_of_its_argument(name):
    """What is shorter would be read beyond its end."""
    cubes = tg.njit(lambda x: np.sum(x * x * x))
    along = tg.func.taylor(cubes, 2) if name == "taylor" else getattr(tg.func, name)(cubes)
    along(np.ones(4), np.ones(4))
    for n in (3, 5, 0):
        with pytest.raises(ValueError, match="has another shape than the argument"):
            along(np.ones(4), np.ones(n))
    for direction in (np.ones((2, 2)), 1.0):
        with pytest.raises(tg.errors.UnsupportedOpError, match="a direction of argument 0"):
            along(np.ones(4), direction)


@tg.njit
def of_any(x, *rest):
    s = np.sum(x * x)
    return s * rest[0] * rest[1][0] if len(rest) > 1 else s * x[0]


def test_functions_of_any_number_of_arguments():
    x, y = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    for way in (tg.func.grad, lambda f: lambda *args: tg.func.value_and_grad(f)(*args)[1]):
        np.testing.assert_array_equal(way(of_any)(x, 2.0, y), 12.0 * x)
        np.testing.assert_array_equal(way(of_any)(x), [7.0, 4.0])
    found = tg.func.grad(of_any, (2, 0, 1))(x, 2.0, y)
    for one, expected in zip(found, ([10.0, 0.0], 12.0 * x, 15.0), strict=True):
        np.testing.assert_array_equal(one, expected)
    np.testing.assert_array_equal(tg.func.hvp(of_any)(x, 2.0, y, y), 12.0 * y)
    np.testing.assert_array_equal(tg.func.jacfwd(of_any)(x, 2.0, y), 12.0 * x)
    np.testing.assert_array_equal(tg.func.hessian(of_any)(x, 2.0, y), 12.0 * np.eye(2))
    gradient = tg.func.grad(of_any)
    nested = tg.njit(lambda *args: np.sum(gradient(args[0], args[1], args[2])))
    np.testing.assert_array_equal(tg.func.grad(nested)(x, 2.0, y), [12.0, 12.0])


def test_any_number_of_arguments_before_one_by_name():
    f = tg.njit(lambda x, *rest, scale=2.0: x * rest[0] * scale)
    assert tg.func.value_and_grad(f, (0, 2))(2.0, 3.0, 5.0) == (30.0, (15.0, 6.0))


def test_jacobians_and_series_of_compiled_functions_take_tensors():
    """As gradients, Hessians and `jacfwd` do: so they nest."""

    def f(x):
        return np.sin(x) * x[0] + x * x

    def g(t):
        return np.sin(t) * t * t

    of, series = tg.njit(f), tg.njit(g)
    x, W, F = np.array([0.3, 0.7, 1.1]), np.arange(9.0).reshape(3, 3), tg.func

    def total(f):
        return lambda x: np.sum(F.jacobian(f)(x) * W)

    np.testing.assert_allclose(F.grad(total(of))(x), F.grad(total(f))(x), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(F.hvp(total(of))(x, x), F.hvp(total(f))(x, x), rtol=1e-12, atol=1e-12)
    slope = F.grad(lambda t: F.taylor(series, 3)(t, t)[2])(0.7)
    np.testing.assert_allclose(slope, F.grad(lambda t: F.taylor(g, 3)(t, t)[2])(0.7), rtol=1e-12)
    third = F.derivative(g, 3)(0.7)
    np.testing.assert_allclose(F.grad(F.derivative(series, 2))(0.7), third, rtol=1e-12)


def test_arrays_of_the_other_byte_order_are_refused():
    """Numba takes them for native ones where a function of `*args` was compiled for these."""
    x, swapped = np.array([0.5, 1.5]), np.array([0.5, 1.5], ">f8")
    by_default = tg.njit(lambda x, more=1.0: x[0] * x[1] * more)
    of_many = tg.njit(lambda *xs: xs[0][0] * xs[0][1])
    for make, f in product(
        (tg.func.grad, tg.func.value_and_grad, tg.func.hessian), (rosenbrock, by_default, of_many)
    ):
        of = make(f)
        before = of(x)
        with pytest.raises(DTypeError, match="byte order, >f8"):
            of(swapped)
        np.testing.assert_equal(of(x), before)
    for make, more in (tg.func.hvp, ()), (tg.func.jvp, ()), (tg.func.taylor, (3,)):
        along = make(rosenbrock, *more)
        along(x, x)
        for args in ((swapped, x), (x, swapped)):
            with pytest.raises(DTypeError, match="byte order"):
                along(*args)


def test_hessian_by_a_matrix_has_its_axes_twice():
    def f(m):
        s = 0.0
        for i in range(m.shape[0]):
            for j in range(m.shape[1]):
                s += m[i, j] ** 2 * m[0, 0] * (i + 2 * j + 1)
        return s

    m = np.arange(6.0).reshape(2, 3) + 0.5
    found = tg.func.hessian(tg.njit(f))(m)
    assert found.shape == (2, 3, 2, 3)
    np.testing.assert_allclose(found, tg.func.hessian(f)(m), rtol=1e-12)
