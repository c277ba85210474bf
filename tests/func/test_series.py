"""Taylor coefficients of plain functions against mpmath, sympy, nested gradients and polynomials."""

import functools
import math

import mpmath
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import forward_ad as fw
from tests.tiers import every

ORDERS = 8


def number(x):
    return mpmath.mpf(x)


FUNCTIONS = {  # of NumPy, of mpmath, where
    "exp": (np.exp, mpmath.exp, 0.3),
    "expm1": (np.expm1, mpmath.expm1, 1e-3),
    "exp2": (np.exp2, lambda x: 2 ** x, 0.3),
    "log": (np.log, mpmath.log, 0.8),
    "log1p": (np.log1p, mpmath.log1p, -0.3),
    "log2": (np.log2, lambda x: mpmath.log(x, 2), 1.3),
    "log10": (np.log10, mpmath.log10, 0.7),
    "sqrt": (np.sqrt, mpmath.sqrt, 1.7),
    "cbrt": (np.cbrt, mpmath.cbrt, 0.8),
    "sin": (np.sin, mpmath.sin, 0.7),
    "cos": (np.cos, mpmath.cos, 2.7),
    "tan": (np.tan, mpmath.tan, 0.5),
    "arcsin": (np.arcsin, mpmath.asin, 0.7),
    "arcsin near 0": (np.arcsin, mpmath.asin, 0.1),
    "arccos": (np.arccos, mpmath.acos, -0.4),
    "arctan": (np.arctan, mpmath.atan, 0.6),
    "sinh": (np.sinh, mpmath.sinh, 0.7),
    "cosh": (np.cosh, mpmath.cosh, -0.7),
    "tanh": (np.tanh, mpmath.tanh, -0.4),
    "arcsinh": (np.arcsinh, mpmath.asinh, 0.6),
    "arccosh": (np.arccosh, mpmath.acosh, 1.8),
    "arctanh": (np.arctanh, mpmath.atanh, 0.3),
    "sinc": (np.sinc, mpmath.sincpi, 0.3),
    "sinc at 0": (np.sinc, mpmath.sincpi, 0.0),
    "sinc beyond": (np.sinc, mpmath.sincpi, 1.1),
    "i0": (np.i0, lambda x: mpmath.besseli(0, x), 0.9),
    "reciprocal": (np.reciprocal, lambda x: 1 / x, 0.7),
    "square": (np.square, lambda x: x * x, 0.7),
    "abs": (np.abs, abs, -0.7),
    "cube": (lambda x: x**3, lambda x: x**3, 0.4),
    "cube at 0": (lambda x: x**3, lambda x: x**3, 0.0),
    "power": (lambda x: x**2.5, lambda x: x ** number(2.5), 0.6),
    "negative power": (lambda x: x**-3, lambda x: x**-3, -0.6),
    "exponent": (lambda x: 1.5**x, lambda x: number(1.5) ** x, 0.6),
    "x**x": (lambda x: x**x, lambda x: x**x, 0.6),
    "hypot": (lambda x: np.hypot(x, 1.5), lambda x: mpmath.sqrt(x * x + number(1.5) ** 2), 0.3),
    "arctan2": (lambda x: np.arctan2(x, -1.5), lambda x: mpmath.atan2(x, -1.5), 0.3),
    "logaddexp": (lambda x: np.logaddexp(x, 1.5), lambda x: mpmath.log(mpmath.exp(x) + mpmath.exp(1.5)), 2.3),
    "logistic": (lambda x: 1 / (1 + np.exp(-x)), lambda x: 1 / (1 + mpmath.exp(-x)), 0.3),
    "gauss": (lambda x: np.exp(-x * x / 2), lambda x: mpmath.exp(-x * x / 2), 0.9),
    "rational": (lambda x: (x**2 + 1) / (x**3 - 2), lambda x: (x**2 + 1) / (x**3 - 2), 0.4),
    "root": (lambda x: np.sqrt(1 + np.sin(x) ** 2), lambda x: mpmath.sqrt(1 + mpmath.sin(x) ** 2), 0.4),
    "nested": (lambda x: np.sin(np.exp(np.cos(x))), lambda x: mpmath.sin(mpmath.exp(mpmath.cos(x))), 0.4),
    "square of a length": (lambda x: abs(x) ** 2, lambda x: x * x, 0.0),
    "fourth power of a length": (lambda x: abs(x) ** 4, lambda x: x**4, 0.0),
}  # fmt: skip


def coefficients(f, x, order):
    with mpmath.workdps(60):
        return np.array([float(c) for c in mpmath.taylor(f, number(x), order)])


def test_there_are_forty_functions():
    assert len(FUNCTIONS) >= 40


@pytest.mark.parametrize("name", every(FUNCTIONS, 2))
def test_coefficients(name):
    f, reference, x = FUNCTIONS[name]
    wanted = coefficients(reference, x, ORDERS)
    for g in (f, lambda z: [f(z)]):  # by records, and by rules run on series
        for order in range(1, ORDERS + 1):
            found = np.ravel(tg.func.taylor(g, order)(x, 1.0))
            np.testing.assert_allclose(found, wanted[: order + 1], rtol=1e-9, atol=1e-12)


def chain(m, half=0.5):
    def f(z):
        for _ in range(5):
            z = m.sin(z) * half + half
        return z

    return f


def test_a_chain_to_order_20():
    wanted = coefficients(chain(mpmath, number(0.5)), 0.3, 20)
    np.testing.assert_allclose(tg.func.taylor(chain(np), 20)(0.3, 1.0), wanted, rtol=1e-8)


def test_a_direction():
    np.testing.assert_allclose(tg.func.taylor(np.exp, 4)(0.5, -2.0), math.exp(0.5) * np.array(
        [(-2.0) ** k / math.factorial(k) for k in range(5)]), rtol=1e-14)  # fmt: skip


def test_an_array():
    x, v = np.array([0.3, 1.2]), np.array([1.0, -0.5])
    found = tg.func.taylor(lambda x: np.sin(x) * x, 5)(x, v)
    assert type(found) is np.ndarray
    assert found.shape == (6, 2)
    for k in range(2):
        one = coefficients(lambda z: mpmath.sin(z) * z, x[k], 5)
        np.testing.assert_allclose(found[:, k], one * v[k] ** np.arange(6), rtol=1e-13)


def test_a_function_of_many_numbers():
    """Coefficients of x' A x along a line are those of a polynomial."""
    A, x, v = np.array([[2.0, 1.0], [0.0, 3.0]]), np.array([1.0, 2.0]), np.array([0.5, -1.0])
    found = tg.func.taylor(lambda x: x @ A @ x, 3)(x, v)
    np.testing.assert_allclose(found, [x @ A @ x, v @ A @ x + x @ A @ v, v @ A @ v, 0], rtol=1e-15)


def test_several_arguments_and_trees():
    def f(p, t, offset):
        return {"product": p["a"] * t + offset, "pair": (np.exp(p["b"]), 2.0)}

    p, t = {"a": np.array([1.0, 2.0]), "b": 0.5}, np.float64(3.0)
    found = tg.func.taylor(f, 2, (0, 1))(p, t, 10.0, ({"a": np.array([1.0, -1.0]), "b": 2.0}, 0.5))
    np.testing.assert_allclose(found["product"], [[13.0, 16.0], [3.5, -2.0], [0.5, -0.5]])
    np.testing.assert_allclose(found["pair"][0], math.exp(0.5) * np.array([1.0, 2.0, 2.0]))
    np.testing.assert_array_equal(found["pair"][1], [2.0, 0.0, 0.0])


def test_a_constant_result_and_the_argument_itself():
    np.testing.assert_array_equal(tg.func.taylor(lambda x: 3.0, 2)(1.0, 1.0), [3.0, 0.0, 0.0])
    np.testing.assert_array_equal(tg.func.taylor(lambda x: x, 2)(1.0, 0.5), [1.0, 0.5, 0.0])


def test_whole_numbers_are_numbers():
    np.testing.assert_array_equal(tg.func.taylor(lambda x: x**2, 2)(3, 1), [9.0, 6.0, 1.0])
    np.testing.assert_array_equal(tg.func.taylor(np.sum, 1)(np.array([1, 2]), np.array([1, 0])), [3.0, 1.0])


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_dtypes(dtype):
    x = np.array([0.5, 0.25], dtype)
    found = tg.func.taylor(np.exp, 3)(x, np.ones(2, dtype))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, np.exp(x) / np.array([[1], [1], [2], [6]]), rtol=1e-6)


def test_steps_and_branches_are_those_of_the_value():
    def f(x):
        return np.where(x > 1, x**3, -x) + np.floor(x) + (x if x.sum() > 0 else 0)

    found = tg.func.taylor(f, 3)(np.array([2.0, 0.5]), np.ones(2))
    np.testing.assert_allclose(found, [[12.0, 0.0], [13.0, 0.0], [6.0, 0.0], [1.0, 0.0]])


def test_writes():
    def f(x):
        y = x * 1.0
        y[0] = y[1] ** 2
        y += x
        return y

    found = tg.func.taylor(f, 2)(np.array([1.0, 3.0]), np.array([0.0, 1.0]))
    np.testing.assert_allclose(found, [[10.0, 6.0], [6.0, 2.0], [1.0, 0.0]])


# ---------------------------------------------------------------- what has a history, or a series


def test_a_tensor_read_by_the_function():
    a = tg.tensor(1.3, requires_grad=True)
    found = tg.func.taylor(lambda x: np.sin(a * x), 4)(0.5, 1.0)
    (slope,) = tg.grad(found[3], a)  # -a**3 cos(a x)/6
    wanted = -3 * 1.3**2 * math.cos(0.65) / 6 + 0.5 * 1.3**3 * math.sin(0.65) / 6
    assert float(slope) == pytest.approx(wanted, rel=1e-14)


def test_a_tensor_on_the_tape_before():
    a = tg.tensor(2.0, requires_grad=True) * 3.0
    found = tg.func.taylor(lambda x: a * x * x, 2)(1.0, 1.0)
    assert found.requires_grad
    np.testing.assert_array_equal(found.detach(), [6.0, 12.0, 6.0])


def test_a_result_from_before():
    a = tg.tensor(2.0, requires_grad=True) * 3.0
    found = tg.func.taylor(lambda x: (x * 2.0, a)[1], 2)(1.0, 1.0)
    np.testing.assert_array_equal(found.detach(), [6.0, 0.0, 0.0])
    np.testing.assert_array_equal(tg.func.taylor(lambda x: x * a.detach(), 1)(1.0, 1.0), [6.0, 6.0])


def test_a_tensor_as_argument():
    x = tg.tensor(0.7, requires_grad=True)
    found = tg.func.taylor(np.sin, 3)(x, tg.tensor(1.0))
    (slope,) = tg.grad(found[2], x)
    assert float(slope) == pytest.approx(-math.cos(0.7) / 2, rel=1e-15)


def test_series_of_series():
    """The mixed coefficients of sin(x y) at s and t."""

    def inner(x):
        return tg.func.taylor(lambda y: np.sin(x * y), 2)(0.3, 1.0)[2]  # -x**2 sin(0.3 x)/2

    found = tg.func.taylor(inner, 3)(0.8, 1.0)
    wanted = coefficients(lambda x: -(x**2) * mpmath.sin(number(0.3) * x) / 2, 0.8, 3)
    np.testing.assert_allclose(found, wanted, rtol=1e-13)


def test_tangents_inside_and_outside():
    with fw.dual_level():
        x = fw.make_dual(tg.tensor(0.5), tg.tensor(1.0))
        found = fw.unpack_dual(tg.func.taylor(lambda z: np.exp(2 * z), 2)(x, 1.0)).tangent
    np.testing.assert_allclose(found.detach(), math.e * np.array([2.0, 4.0, 4.0]), rtol=1e-14)

    def slope(x):
        with fw.dual_level():
            return fw.unpack_dual(fw.make_dual(x, tg.tensor(1.0)) ** 3).tangent

    np.testing.assert_allclose(tg.func.taylor(slope, 2)(2.0, 1.0), [12.0, 12.0, 3.0], rtol=1e-15)


def test_gradients_inside():
    """The gradient within depends on the argument, though nothing records that."""

    def slope(x):
        x = x * 1.0
        x.requires_grad_()
        (g,) = tg.grad(x**3, x, create_graph=True)
        return g

    np.testing.assert_allclose(tg.func.taylor(slope, 2)(tg.tensor(2.0), 1.0).detach(), [12.0, 12.0, 3.0])


SLOPES = {
    "grad": tg.func.grad,
    "value_and_grad": lambda f: lambda x: tg.func.value_and_grad(f)(x)[1],
    "vjp": lambda f: lambda x: tg.func.vjp(f)(x)[1](1.0),
    "jacrev": tg.func.jacrev,
    "hvp": lambda f: lambda x: tg.func.hvp(lambda z: f(x) * z * z / 2)(1.0, 1.0) * 0 + tg.func.grad(f)(x),
    "vmap": lambda f: lambda x: tg.func.vmap(tg.func.grad(f))(x * np.ones(1))[0],
    "compile": lambda f: lambda x: tg.func.grad(tg.compile(f))(x * 1.0),
    "a gradient of a series": lambda f: tg.func.grad(lambda x: tg.func.taylor(f, 1)(x, 1.0)[0]),
}


@pytest.mark.parametrize("slope", SLOPES)
def test_derivatives_of_tg_func_inside(slope):
    """Of x^4: a series of its slope, the derivative of that, and a gradient of it all."""
    g = SLOPES[slope](lambda x: x**4)
    np.testing.assert_allclose(tg.func.taylor(g, 3)(2.0, 1.0), [32.0, 48.0, 24.0, 4.0], rtol=1e-14)
    np.testing.assert_allclose(tg.func.derivative(g)(2.0), 48.0, rtol=1e-14)
    np.testing.assert_allclose(tg.func.derivative(tg.func.derivative(g))(2.0), 48.0, rtol=1e-14)
    np.testing.assert_allclose(tg.func.grad(lambda x: tg.func.taylor(g, 2)(x, 1.0)[2])(2.0), 12.0, rtol=1e-14)
    value, terms = tg.func.jet(g, (2.0,), ((1.0, 0.0),))
    np.testing.assert_allclose([value, *terms], [32.0, 48.0, 48.0], rtol=1e-14)


def test_a_gradient_that_is_not_recorded_is_refused():
    def f(x):
        (g,) = tg.grad(x**3, x)
        return g * x

    with pytest.raises(RuntimeError, match="require"):
        tg.func.taylor(f, 2)(2.0, 1.0)


def within_no_grad(x):
    with tg.no_grad():
        y = x * x
    return y * x


@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: lambda x: [f(x)]])
def test_what_is_not_recorded_moves_and_what_is_detached_does_not(wrap):
    def found(f):
        return np.ravel(tg.func.taylor(wrap(f), 2)(1.5, 1.0))

    np.testing.assert_allclose(found(within_no_grad), [3.375, 6.75, 4.5])
    np.testing.assert_allclose(found(lambda x: x.detach() ** 2 * x), [3.375, 2.25, 0.0])
    with tg.no_grad():
        np.testing.assert_allclose(found(np.square), [2.25, 3.0, 1.0])


def test_functions_of_the_library_inside():
    functional = tg.autograd.functional
    found = tg.func.taylor(lambda x: functional.jvp(lambda z: z**3, x, tg.tensor(1.0))[1], 2)(2.0, 1.0)
    np.testing.assert_allclose(found, [12.0, 12.0, 3.0])
    x = np.array([1.0, 2.0])
    found = tg.func.taylor(lambda x: functional.hessian(lambda z: (z**3).sum(), x).sum(), 2)(x, np.ones(2))
    np.testing.assert_allclose(found, [18.0, 12.0, 0.0])


@pytest.mark.filterwarnings("ignore:.*encountered")
@pytest.mark.parametrize("f", [np.log, np.sqrt, lambda x: 1 / x, lambda x: x**0.5, lambda x: np.log(x - 1)])
def test_at_singularities_both_ways_agree(f):
    found = tg.func.taylor(f, 3)(0.0, 1.0)
    assert not np.isfinite(found).all()
    np.testing.assert_array_equal(found, tg.func.taylor(lambda x: [f(x)], 3)(0.0, 1.0)[0])


@pytest.mark.full
def test_a_compiled_function_within_a_plain_one():
    @tg.njit
    def wave(x):
        return math.sin(x) * math.exp(x)

    found = tg.func.taylor(lambda x: np.cos(wave(x)), 5)(0.5, 1.0)
    np.testing.assert_allclose(
        found, tg.func.taylor(lambda x: np.cos(np.sin(x) * np.exp(x)), 5)(0.5, 1.0), rtol=1e-12
    )


def test_a_function_with_rules_of_its_own_is_named():
    class Twice(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

        @staticmethod
        def jvp(ctx, t):
            return t * 2

    with pytest.raises(RuntimeError, match="Twice has no power series"):
        tg.func.taylor(lambda x: Twice.apply(x), 2)(2.0, 1.0)


# ---------------------------------------------------------------- the other ways to ask


def test_derivatives():
    for n in range(7):
        found = tg.func.derivative(np.sin, n)(0.4)
        assert type(found) is float
        assert found == pytest.approx(math.sin(0.4 + n * math.pi / 2), rel=1e-13)
    x = np.array([0.4, 2.0])
    np.testing.assert_allclose(tg.func.derivative(np.log, 3)(x), 2 / x**3, rtol=1e-14)
    assert tg.func.derivative(lambda x, n: x**n, 2)(3.0, 4) == pytest.approx(108.0)


def test_derivatives_of_derivatives():
    second = tg.func.derivative(tg.func.derivative(lambda x: x**5))
    assert second(2.0) == pytest.approx(160.0, rel=1e-15)
    f, fourth = np.sin, np.sin
    for _ in range(4):
        f = tg.func.derivative(f)
    x = np.linspace(-1.0, 2.0, 7)
    assert np.array_equal(f(x), tg.func.derivative(fourth, 4)(x))  # one series of order 4

    @functools.wraps(second)
    def halved(x):
        return second(x) / 2

    assert tg.func.derivative(halved, 2)(2.0) == pytest.approx(120.0, rel=1e-14)
    assert tg.func.derivative(tg.func.derivative(lambda x, n: x**n, 2))(3.0, n=4) == pytest.approx(72.0)


def test_derivatives_of_derivatives_of_what_cannot_be_hashed():
    class Cube:
        __hash__ = None

        def __call__(self, x):
            return x**3

    assert tg.func.derivative(Cube(), 2)(2.0) == 12.0


@pytest.mark.full
def test_derivatives_of_a_compiled_function():
    @tg.njit
    def cube(x):
        return x**3

    assert tg.func.derivative(cube, 2)(2.0) == 12.0
    assert tg.func.derivative(cube, 0)(2.0) == 8.0
    assert tg.func.derivative(tg.func.derivative(cube))(2.0) == 12.0
    np.testing.assert_array_equal(tg.func.taylor(cube, 4)(2.0, 1.0), [8.0, 12.0, 6.0, 1.0, 0.0])


def test_jet():
    """Of the product of two curves: Leibniz; derivatives are not divided by factorials."""
    x, dx = 2.0, (1.0, 3.0, 0.0)
    y, dy = 5.0, (-1.0, 0.5, 2.0)
    value, found = tg.func.jet(lambda x, y: x * y, (x, y), (dx, dy))
    a, b = (x, *dx), (y, *dy)
    wanted = [sum(math.comb(n, k) * a[k] * b[n - k] for k in range(n + 1)) for n in range(4)]
    np.testing.assert_allclose([value, *found], wanted, rtol=1e-15)
    value, found = tg.func.jet(np.sin, (np.array([0.3]),), ((np.array([1.0]), np.zeros(1)),))
    np.testing.assert_allclose(found, [np.cos([0.3]), -np.sin([0.3])], rtol=1e-15)


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda: tg.func.taylor(np.sin, 0), ValueError, "order is a whole number from 1, found 0"),
    (lambda: tg.func.taylor(np.sin, 2.5), ValueError, "found 2.5"),
    (lambda: tg.func.taylor(np.sin, 2, -1), ValueError, "argnums"),
    (lambda: tg.func.taylor(np.sin, 2)(1.0), TypeError, "a direction"),
    (lambda: tg.func.taylor(np.sin, 2)(np.ones(2), np.ones(3)), ValueError, r"shape \(3,\)"),
    (lambda: tg.func.taylor(np.sin, 2)("x", 1.0), TypeError, "argument 0"),
    (lambda: tg.func.taylor(np.sin, 2)(1.0, 1j), TypeError, "complex128"),
    (lambda: tg.func.derivative(np.sin, -1), ValueError, "from 0, found -1"),
    (lambda: tg.func.jet(np.sin, (1.0,), ((1.0,), (1.0,))), ValueError, "1 arguments"),
])  # fmt: skip
def test_what_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
