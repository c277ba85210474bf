"""Integrals and differential equations of `scipy.integrate`: SciPy's values, derivatives in closed form."""

import numpy as np
import pytest
import scipy.integrate

import tapegrad as tg
import tapegrad.scipy as ts
from tapegrad.autograd import forward_ad as fw
from tapegrad.autograd import gradcheck
from tapegrad.errors import UnsupportedOpError
from tests.tensors import leaf
from tests.tiers import every, thinned

# ---------------------------------------------------------------- of samples

Y = np.random.default_rng(3).normal(size=(3, 9))
X = np.cumsum(np.random.default_rng(4).uniform(0.5, 1.5, size=9))
SAMPLES = [
    (name, count, kind)
    for name in ("trapezoid", "cumulative_trapezoid", "simpson", "cumulative_simpson", "romb")
    for count in ((9, 8, 2, 3) if name != "romb" else (9, 3, 2))
    for kind in (("dx", "x", "X") if name != "romb" else ("dx",))
]


@pytest.mark.parametrize(("name", "count", "kind"), thinned(SAMPLES, lambda *row: row == ("simpson", 8, "x")))
def test_samples(name, count, kind):
    y = Y[:, :count]
    more = {
        "dx": {"dx": 0.7},
        "x": {"x": X[:count]},
        "X": {"x": np.broadcast_to(X[:count], y.shape) + 0.1 * y},
    }
    for axis in (1, 0):
        values = {"y": y if axis else y.T, **more[kind]}
        if kind == "X" and not axis:
            values["x"] = values["x"].T
        if kind == "X" and name.startswith("cum") and np.any(np.diff(values["x"], axis=axis) <= 0):
            values["x"] = np.sort(values["x"], axis=axis)
        wanted = getattr(scipy.integrate, name)(**values, axis=axis)
        function = getattr(ts.integrate, name)
        np.testing.assert_array_equal(function(**values, axis=axis), wanted)
        inputs = {key: leaf(v) for key, v in values.items()}
        np.testing.assert_allclose(function(**inputs, axis=axis).detach().numpy(), wanted, rtol=1e-13)
        keys = list(inputs)
        assert gradcheck(
            lambda *xs, axis=axis, keys=keys, f=function: f(**dict(zip(keys, xs, strict=True)), axis=axis),
            list(inputs.values()), check_forward_ad=axis == 1,
        )  # fmt: skip


@pytest.mark.full
def test_what_comes_first():
    y, first = leaf(Y), leaf(0.5)
    for name, initial in (("cumulative_trapezoid", 0), ("cumulative_simpson", 0.5)):
        found = getattr(ts.integrate, name)(y, initial=initial)
        wanted = getattr(scipy.integrate, name)(Y, initial=initial)
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-13)
    assert tg.grad(ts.integrate.cumulative_simpson(y, initial=first).sum(), first)[0].item() == 27.0


# ---------------------------------------------------------------- quad


def gaussian(x, a):
    return np.exp(-a * x * x)


def test_by_limits_args_and_closures():
    a, b, k = leaf(0.3), leaf(1.7), leaf(0.8)
    for f, args in ((lambda x: gaussian(x, k), ()), (gaussian, (k,))):
        found, error = ts.integrate.quad(f, a, b, args=args)
        wanted = scipy.integrate.quad(gaussian, 0.3, 1.7, args=(0.8,))
        assert (found.item(), error) == wanted
        ga, gb, gk = tg.grad(found, [a, b, k])
        exact, _ = scipy.integrate.quad(lambda x: -x * x * np.exp(-0.8 * x * x), 0.3, 1.7)
        slopes = (-np.exp(-0.8 * 0.09), np.exp(-0.8 * 1.7**2), exact)
        np.testing.assert_allclose([ga.item(), gb.item(), gk.item()], slopes, rtol=1e-12)


@pytest.mark.full
def test_second_derivatives_from_both_sides():
    """By a limit and an argument: the integrand's derivative there, whichever comes first."""
    values = [0.3, 1.7, 0.8]
    a, b, k = map(leaf, values)
    found = ts.integrate.quad(gaussian, a, b, args=(k,))[0]
    first = tg.grad(found, [a, b, k], create_graph=True)
    hessian = [
        [g.item() for g in tg.grad(f, [a, b, k], retain_graph=True, materialize_grads=True)] for f in first
    ]
    edge = [np.exp(-0.8 * t * t) for t in (0.3, 1.7)]
    fourth, _ = scipy.integrate.quad(lambda x: x**4 * np.exp(-0.8 * x * x), 0.3, 1.7)
    wanted = [
        [2 * 0.8 * 0.3 * edge[0], 0.0, 0.09 * edge[0]],
        [0.0, -2 * 0.8 * 1.7 * edge[1], -(1.7**2) * edge[1]],
        [0.09 * edge[0], -(1.7**2) * edge[1], fourth],
    ]
    np.testing.assert_allclose(hessian, wanted, rtol=1e-10, atol=1e-14)


@pytest.mark.full
def test_high_orders_by_a_limit():
    b = leaf(0.7)
    y = ts.integrate.quad(np.exp, 0.0, b)[0]
    for _ in range(8):
        (y,) = tg.grad(y, b, create_graph=True)
        np.testing.assert_allclose(y.item(), np.exp(0.7), rtol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize(
    ("f", "limits", "exact"),
    [
        (lambda x, k: np.exp(-k * x), (0.0, np.inf), lambda k: -1 / k**2),
        (lambda x, k: np.exp(k * x), (-np.inf, 0.0), lambda k: -1 / k**2),
        (lambda x, k: np.exp(-k * x * x), (-np.inf, np.inf), lambda k: -0.5 * np.sqrt(np.pi) * k**-1.5),
        (lambda x, k: np.log(x) * k, (0.0, 1.0), lambda k: -1.0),
        (lambda x, k: k / np.sqrt(x), (0.0, 1.0), lambda k: 2.0),
        (lambda x, k: np.cos(k * x), (0.0, 30.0),
            lambda k: (30 * k * np.cos(30 * k) - np.sin(30 * k)) / k**2),
        (lambda x, k: np.abs(x - 0.3) ** k, (1.0, 0.0), lambda k: sum(
            c ** (k + 1) * (1 / (k + 1) ** 2 - np.log(c) / (k + 1)) for c in (0.3, 0.7))),
    ],
)  # fmt: skip
def test_functions(f, limits, exact):
    k = leaf(1.3)
    found, _ = ts.integrate.quad(f, *limits, args=(k,))
    assert found.item() == scipy.integrate.quad(f, *limits, args=(1.3,))[0]
    np.testing.assert_allclose(tg.grad(found, k)[0].item(), exact(1.3), rtol=1e-7)


def test_a_step_in_the_middle_does_not_matter_to_the_limits():
    b = leaf(1.0)
    found, _ = ts.integrate.quad(lambda x: np.where(x < 0.5, 0.0, 2.0), 0.0, b, points=[0.5])
    np.testing.assert_allclose(tg.grad(found, b)[0].item(), 2.0, rtol=1e-14)


# Functions of a place a that are smoother than their derivatives by it, and these; 0.5 is at a node.
ROUGH = [
    (lambda x, a: np.maximum(x - a, 0.0), lambda a: a - 1),
    (lambda x, a: np.abs(x - a) ** 1.5, lambda a: a**1.5 - (1 - a) ** 1.5),
    (lambda x, a: np.where(x < a, 0.0, (x - a) ** 2) + np.exp(x), lambda a: -((1 - a) ** 2)),
    (lambda x, a: x**a * (1 + 0 * a), lambda a: -((1 + a) ** -2)),
    (lambda x, a: 1e3 + np.arctan((x - a) * 1e3), lambda a: np.arctan(-a * 1e3) - np.arctan((1 - a) * 1e3)),
]


@pytest.mark.parametrize("a", every([0.3, 0.5], 2))
def test_a_derivative_is_found_to_the_tolerances(a):
    """Also where the function itself needs fewer panels."""
    for f, slope in ROUGH:
        place = leaf(a)
        found, _ = ts.integrate.quad(f, 0.0, 1.0, args=(place,))
        np.testing.assert_allclose(tg.grad(found, place)[0].item(), slope(a), rtol=1.5e-8, atol=1.5e-8)
        found, _ = ts.integrate.quad(f, 0.0, 1.0, (place,), epsabs=1e-4, epsrel=1e-4)
        np.testing.assert_allclose(tg.grad(found, place)[0].item(), slope(a), rtol=1e-4, atol=1e-4)
        with fw.dual_level():
            dual = ts.integrate.quad(f, 0.0, 1.0, args=(fw.make_dual(tg.tensor(a), tg.tensor(1.0)),))[0]
            moved = fw.unpack_dual(dual).tangent.item()
        np.testing.assert_allclose(moved, slope(a), rtol=1.5e-8, atol=1.5e-8)


@pytest.mark.full
def test_each_element_of_what_the_function_uses_counts():
    """A vector of exponents, of which one makes the derivative large at an end."""
    p, unused = leaf([2.0, 0.1, 1.0]), leaf(1.0)
    found, _ = ts.integrate.quad(lambda x: np.sum(x**p) + (unused if x < 0 else 0.0), 0.0, 1.0)
    g, none = tg.grad(found, [p, unused], allow_unused=True)
    np.testing.assert_allclose(g.numpy(), -((1 + p.detach().numpy()) ** -2.0), rtol=1.5e-8)
    assert none is None


@pytest.mark.full
def test_a_derivative_that_is_not_found_is_told():
    a = leaf(0.3)
    with pytest.warns(scipy.integrate.IntegrationWarning, match="derivative of the integral"):
        found, _ = ts.integrate.quad(lambda x: np.sign(x - a) * np.abs(x - a) ** 0.1, 0.0, 1.0)
    assert np.isfinite(found.item())


@pytest.mark.full
def test_forward_mode_of_quad():
    with fw.dual_level():
        k = fw.make_dual(tg.tensor(0.8), tg.tensor(1.0))
        b = fw.make_dual(tg.tensor(1.7), tg.tensor(2.0))
        moved = fw.unpack_dual(ts.integrate.quad(gaussian, 0.3, b, args=(k,))[0]).tangent.item()
    by_k, _ = scipy.integrate.quad(lambda x: -x * x * np.exp(-0.8 * x * x), 0.3, 1.7)
    np.testing.assert_allclose(moved, by_k + 2 * np.exp(-0.8 * 1.7**2), rtol=1e-12)


def test_quad_of_plain_numbers_is_scipys():
    assert ts.integrate.quad(gaussian, 0, 1, args=(2.0,)) == scipy.integrate.quad(gaussian, 0, 1, args=(2.0,))
    full = ts.integrate.quad(gaussian, 0, 1, args=2.0, full_output=1)
    assert len(full) == 3


@pytest.mark.full
def test_what_quad_refuses():
    k = leaf(1.0)
    with pytest.raises(UnsupportedOpError, match="quad with weight="):
        ts.integrate.quad(lambda x: k * x, 0, 1, weight="cos", wvar=2.0)
    with pytest.raises(UnsupportedOpError, match="infinite"):
        ts.integrate.quad(lambda x: np.exp(-x), 0, leaf(np.inf))
    with pytest.raises(UnsupportedOpError, match="singular"):
        ts.integrate.quad(lambda x: k * x**-0.97, 0, 1)


def test_fixed_quad():
    a, b, k = leaf(0.2), leaf(1.4), leaf(0.7)
    found, none = ts.integrate.fixed_quad(gaussian, a, b, args=(k,), n=12)
    wanted, _ = scipy.integrate.fixed_quad(gaussian, 0.2, 1.4, args=(0.7,), n=12)
    assert none is None
    np.testing.assert_allclose(found.item(), wanted, rtol=1e-15)
    ga, gb, _ = tg.grad(found, [a, b, k])
    np.testing.assert_allclose([ga.item(), gb.item()], [-gaussian(0.2, 0.7), gaussian(1.4, 0.7)], rtol=1e-11)


@pytest.mark.full
def test_others_of_integrate():
    with pytest.raises(UnsupportedOpError, match="quad_vec"):
        ts.integrate.quad_vec(lambda x: x, leaf(0.0), 1.0)
    assert ts.integrate.newton_cotes(2)[0].tolist() == scipy.integrate.newton_cotes(2)[0].tolist()


def test_quad_with_several_tangents_and_with_series():
    """Nodes are placed for all columns of a Jacobian, and for all coefficients."""

    def f(p):
        return ts.integrate.quad(lambda t, a, b: b * np.exp(-a * t), 0.0, 1.0, args=(p[0], p[1]))[0]

    p, v = np.array([0.3, 0.7]), np.array([1.0, 2.0])
    np.testing.assert_allclose(tg.func.jacfwd(f)(p), tg.func.grad(f)(p), rtol=1e-12)
    second = tg.func.hessian(f)(p)
    np.testing.assert_allclose(tg.func.jacfwd(tg.func.jacfwd(f))(p), second, rtol=1e-12)
    series = tg.func.taylor(f, 2)(p, v)
    np.testing.assert_allclose(series, [f(p), tg.func.grad(f)(p) @ v, v @ second @ v / 2], rtol=1e-12)


@pytest.mark.full
def test_nested_integrals():
    """By limits, args and closures, with SciPy's values and errors."""

    def double(a, b, c, integrate):
        return integrate.dblquad(lambda y, x, c: np.exp(-a * x * y) * c, 0, b, 0.1, lambda x: x, args=(c,))

    def several(a, b, c, integrate):
        ranges = [lambda y, c: (0.0, y * c), (a, b)]
        options = [{"epsabs": 1e-10}, lambda c: {"points": [0.5, 7.0]}]
        return integrate.nquad(lambda x, y, c: np.cos(x * y) * c, ranges, (c,), options)

    values = np.array([0.7, 1.3, 2.0])
    for f in (double, several):
        args = [leaf(v) for v in values]
        found, error = f(*args, ts.integrate)
        np.testing.assert_allclose((found.item(), error), f(*values, scipy.integrate), rtol=0.1)
        np.testing.assert_allclose(found.item(), f(*values, scipy.integrate)[0], rtol=1e-14)
        for k, g in enumerate(tg.grad(found, args)):
            up, down = values + 1e-4 * np.eye(3)[k], values - 1e-4 * np.eye(3)[k]
            wanted = (f(*up, scipy.integrate)[0] - f(*down, scipy.integrate)[0]) / 2e-4
            np.testing.assert_allclose(g.item(), wanted, rtol=1e-6)
    assert ts.integrate.dblquad(lambda y, x: x * y, 0, 1, 0, 1) == scipy.integrate.dblquad(
        lambda y, x: x * y, 0, 1, 0, 1
    )
