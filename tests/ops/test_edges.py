"""Derivatives at ties, at the ends of domains and at infinities: one row per case, both ways of a sweep."""

import itertools
import math

import numpy as np
import pytest
from scipy import special

import tapegrad as tg
from tapegrad.autograd import forward_ad as fw
from tapegrad.tape import tape as tapes
from tests.tiers import thinned

from .layouts import DTYPES

INF, NAN = math.inf, math.nan


def gradients(function, inputs, dtype, record):
    """Gradients of the sum of a function's elements; the sweep itself must not warn."""
    leaves = [tg.tensor(np.array(x, dtype), requires_grad=True) for x in inputs]
    with np.errstate(all="ignore"):
        out = np.sum(function(*leaves))
    found = tg.grad(out, leaves, create_graph=record)
    for g, x in zip(found, leaves, strict=True):
        assert g.dtype == x.dtype
        assert g.shape == x.shape
    return found, leaves


def seconds(function, inputs):
    """Row sums of the Hessian of the sum of a function's elements."""
    found, leaves = gradients(function, inputs, "float64", True)
    with np.errstate(all="ignore"):
        total = sum((np.sum(g) for g in found), 0.0)
    if not total.requires_grad:
        return [np.zeros(x.shape) for x in leaves]
    return [g.numpy() for g in tg.grad(total, leaves, materialize_grads=True)]


def same(found, wanted, dtype):
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(found, np.array(wanted, dtype), rtol=8 * eps, atol=0, equal_nan=True)


def double_where(x):
    safe = np.where(x > 0, x, 1)
    return np.where(x > 0, np.sqrt(safe), 0)


# name, function, inputs, gradients
FIRST = [
    ("max, two largest", np.max, [[1, 2, 2]], [[0, 0.5, 0.5]]),
    ("amax, three largest", np.amax, [[2, 2, 2]], [[1 / 3, 1 / 3, 1 / 3]]),
    ("min, two smallest", np.min, [[2, 1, 1]], [[0, 0.5, 0.5]]),
    ("amin", np.amin, [[1, 1, 2]], [[0.5, 0.5, 0]]),
    ("max of rows", lambda x: np.max(x, axis=1), [[[2, 2, 1], [0, 3, 1]]], [[[0.5, 0.5, 0], [0, 1, 0]]]),
    ("min kept", lambda x: np.min(x, 0, keepdims=True), [[[1, 2], [1, 3]]], [[[0.5, 1], [0.5, 0]]]),
    ("max of infinities", np.max, [[INF, INF, 1]], [[0.5, 0.5, 0]]),
    ("maximum, tie", np.maximum, [2, 2], [0.5, 0.5]),
    ("minimum, tie", np.minimum, [2, 2], [0.5, 0.5]),
    ("maximum with a constant, tie", lambda x: np.maximum(x, 0), [[0, -1, 1]], [[0.5, 0, 1]]),
    ("minimum with a constant, tie", lambda x: np.minimum(x, 0.0), [[0, -1, 1]], [[0.5, 1, 0]]),
    ("maximum of -0 and 0", lambda x: np.maximum(x, 0.0), [-0.0], [0.5]),
    ("maximum with nan", lambda x: np.maximum(x, NAN), [1], [1]),
    ("minimum with nan", lambda x: np.minimum(x, NAN), [1], [1]),
    ("maximum of nan", lambda x: np.maximum(x, 1.0), [NAN], [1]),
    ("abs(0)", np.abs, [[0, -0.0, -2, 3]], [[0, 0, -1, 1]]),
    ("abs(inf)", np.abs, [[INF, -INF]], [[1, -1]]),
    ("abs(nan)", np.abs, [NAN], [NAN]),
    ("clip from below at its end", lambda x: np.clip(x, 0, None), [[0, -1, 1]], [[1, 0, 1]]),
    ("clip at both ends", lambda x: np.clip(x, 0, 1), [[0, 1, 2, -1]], [[1, 1, 0, 0]]),
    ("clip from above at its end", lambda x: np.clip(x, None, 1), [[1, 2]], [[1, 0]]),
    ("clip(nan)", lambda x: np.clip(x, 0, 1), [NAN], [0]),
    ("clip at ends that are inputs", np.clip, [[0, 1, -1, 2], 0, 1], [[1, 1, 0, 0], 1, 1]),
    ("clip with crossed ends", np.clip, [[0.5], 1, 0], [[0], 0, 1]),
    ("sort, tie", lambda x: np.sort(x) * np.arange(3), [[1, 1, 0]], [[1, 2, 0]]),
    ("quantile, tie", lambda x: np.quantile(x, 0.25), [[1, 1, 1, 2]], [[0.25, 0.75, 0, 0]]),
    ("median, tie", np.median, [[1, 1, 1, 2]], [[1 / 3, 1 / 3, 1 / 3, 0]]),
    ("interp at knots and outside", lambda x: np.interp(x, [0.0, 1, 2], [0.0, 1, 5]), [[0, 1, 2, 3, -1]],
     [[1, 4, 4, 0, 0]]),
    ("sqrt(0)", np.sqrt, [[0, 4]], [[INF, 0.25]]),
    ("sqrt(-1)", np.sqrt, [-1], [NAN]),
    ("x**0.5 at 0", lambda x: x**0.5, [[0, 4]], [[INF, 0.25]]),
    ("1/sqrt(x) at 0", lambda x: 1 / np.sqrt(x), [0], [-INF]),
    ("log1p(-1)", np.log1p, [-1], [INF]),
    ("hypot(0, 0)", np.hypot, [0, 0], [0, 0]),
    ("hypot on an axis", np.hypot, [[0, -2], [3, 0]], [[0, -1], [1, 0]]),
    ("arctan2(x, 0) at 0", lambda x: np.arctan2(x, 0.0), [0], [0]),
    ("arctan2(0, x) at 0", lambda x: np.arctan2(0.0, x), [0], [0]),
    ("arctan2 of large numbers", np.arctan2, [1e30, 1e30], [5e-31, -5e-31]),
    ("x**0 at 0, exponent an integer", lambda x: x**0, [0], [0]),
    ("x**0 at 0, exponent a float", lambda x: x**0.0, [0], [0]),
    ("x**e at 0, exponent a Tensor", np.power, [0, 0], [0, 0]),
    ("x**1 at 0", lambda x: x**1, [0], [1]),
    ("x**2 at 0", lambda x: x**2, [0], [0]),
    ("x**-1 at 0", lambda x: x**-1, [0], [-INF]),
    ("0**e by e", lambda e: np.power(0.0, e), [[0, 1, 2]], [[0, 0, 0]]),
    ("0**e by a negative e", lambda e: np.power(0.0, e), [[-1, -0.5]], [[-INF, -INF]]),
    ("(-2)**e by e", lambda e: np.power(-2.0, e), [[1, 2]], [[NAN, NAN]]),
    ("(-2)**3 by the base", lambda x: x**3, [-2], [12]),
    ("x**x at 0", lambda x: x**x, [0], [0]),
    ("log(0)", np.log, [0], [INF]),
    ("log(-1)", np.log, [-1], [-1]),
    ("x log x at 0", lambda x: x * np.log(x), [0], [NAN]),
    ("where keeps IEEE's nan", lambda x: np.where(x > 0, np.sqrt(x), 0), [[0, -1, 4]], [[NAN, NAN, 0.25]]),
    ("where on both sides", double_where, [[0, -1, 4]], [[0, 0, 0.25]]),
    ("prod with one zero", np.prod, [[0, 2, 3]], [[6, 0, 0]]),
    ("prod with two zeros", np.prod, [[0, 0, 3]], [[0, 0, 0]]),
    ("prod of one element", np.prod, [[5]], [[1]]),
    ("prod of rows with zeros", lambda x: np.prod(x, 1), [[[0, 2], [3, 0]]], [[[2, 0], [0, 3]]]),
    ("var of one element, ddof=1", lambda x: np.var(x, ddof=1), [[3]], [[NAN]]),
    ("var of one element", np.var, [[3]], [[0]]),
    ("std of one element, ddof=1", lambda x: np.std(x, ddof=1), [[3]], [[NAN]]),
    ("std of one element", np.std, [[3]], [[0]]),
    ("std of equal elements", np.std, [[2, 2]], [[0, 0]]),
    ("logsumexp of -inf", tg.logsumexp, [[-INF, -INF]], [[NAN, NAN]]),
    ("logsumexp of inf", tg.logsumexp, [[INF, 1]], [[NAN, 0]]),
    ("logsumexp with one -inf", tg.logsumexp, [[-INF, 1]], [[0, 1]]),
    ("logsumexp of large numbers", tg.logsumexp, [[1e30, -1e30]], [[1, 0]]),
    ("1/x at 0", lambda x: 1 / x, [0], [-INF]),
    ("reciprocal at 0", np.reciprocal, [0], [-INF]),
    ("0/0", np.divide, [0, 0], [INF, NAN]),
    ("cumsum", np.cumsum, [[1, 2, 3]], [[3, 2, 1]]),
    ("x[[0, 0, 1]]", lambda x: x[[0, 0, 1]], [[3, 4]], [[2, 1]]),
    ("mask", lambda x: x[x > 3], [[3, 4, 5]], [[0, 1, 1]]),
    ("tanh(20)", np.tanh, [[20, -20]], [[4 * math.exp(-40), 4 * math.exp(-40)]]),
    ("tanh(1000)", np.tanh, [1000], [0]),
    ("expm1(-30)", np.expm1, [-30], [math.exp(-30)]),
    ("exp(-inf)", np.exp, [[-INF, INF]], [[0, INF]]),
    ("log1p near 0", np.log1p, [1e-20], [1]),
    ("arcsin at 1", np.arcsin, [[1, -1]], [[INF, INF]]),
    ("arccos at 1", np.arccos, [[1, -1]], [[-INF, -INF]]),
    ("arccosh(1)", np.arccosh, [1], [INF]),
    ("arctanh(1)", np.arctanh, [[1, -1]], [[INF, INF]]),
    ("arctan(inf)", np.arctan, [[INF, -INF]], [[0, 0]]),
    ("arcsinh of large numbers", np.arcsinh, [[1e30, -INF]], [[1e-30, 0]]),
    ("cbrt(0)", np.cbrt, [[0, -8]], [[INF, 1 / 12]]),
    ("log2(0)", np.log2, [0], [INF]),
    ("log10(0)", np.log10, [0], [INF]),
    ("fmax, tie", np.fmax, [2, 2], [0.5, 0.5]),
    ("fmin, tie", np.fmin, [2, 2], [0.5, 0.5]),
    ("fmax with nan", lambda x: np.fmax(x, NAN), [1], [1]),
    ("fmax of nan", np.fmax, [NAN, 1], [0, 1]),
    ("fmin of nan", np.fmin, [1, NAN], [1, 0]),
    ("fmax, nan last", np.fmax, [1, NAN], [1, 0]),
    ("fmin, nan first", np.fmin, [NAN, 1], [0, 1]),
    ("fmax of two nan", np.fmax, [NAN, NAN], [1, 0]),
    ("fmin of two nan", np.fmin, [NAN, NAN], [1, 0]),
    ("x % 2 at 4", lambda x: x % 2, [4], [1]),
    ("4 % x at 2", lambda x: 4 % x, [2], [-2]),
    ("-7 % x", lambda x: np.remainder(-7, x), [2], [4]),
    ("fmod of a quotient that rounds", lambda x: np.fmod(3, x), [0.8], [-3]),
    ("fmod(-7, x)", lambda x: np.fmod(-7, x), [2], [3]),
    ("remainder of a quotient that rounds up", lambda x: np.remainder(6, x), [0.1], [-59]),
    ("x % inf", np.remainder, [1, INF], [1, 0]),
    ("x % y at infinite y", np.remainder, [[-1, 1, -1, 0], [INF, -INF, -INF, INF]], [[1] * 4, [1, 1, 0, 0]]),
    ("fmod at infinite y", np.fmod, [[-1, 1, 0], [INF, -INF, INF]], [[1] * 3, [0, 0, 0]]),
    ("x % 0", np.remainder, [[1, -1, 0], [0, 0, 0]], [[1] * 3, [-INF, INF, NAN]]),
    ("inf % x", np.remainder, [[INF, -INF, INF], [2, 2, INF]], [[1] * 3, [-INF, INF, NAN]]),
    ("fmod(x, 0)", np.fmod, [[1, -1, INF], [0, 0, 2]], [[1] * 3, [-INF, INF, -INF]]),
    ("x % y where it rounds to y", np.remainder, [-1e-20, 1], [1, 1]),
    ("norm of order -1 at 0", lambda x: np.linalg.norm(x, -1), [[0, 1, 2]], [[0, 0, 0]]),
    ("norm of order -0.5 at 0", lambda x: np.linalg.norm(x, -0.5, 0), [[[0, 3], [0, 3]]],
     [[[0, 0.125], [0, 0.125]]]),
    ("norm of order -2 at 0", lambda x: np.linalg.vector_norm(x, ord=-2), [[0, 0]], [[0, 0]]),
    ("copysign(0, 1)", np.copysign, [[0, -0.0, 2], [1, -1, -3]], [[0, 0, -1], [0, 0, 0]]),
    ("heaviside", lambda x, h: np.heaviside(x, h) + 0 * x, [[0, 1, -1], [3, 3, 3]], [[0, 0, 0], [1, 0, 0]]),
    ("floor division and steps", lambda x: x // 2 + np.floor(x) + np.ceil(x) + np.round(x) + x, [[4, 0.5]],
     [[1, 1]]),
    ("sign(0)", lambda x: np.sign(x) + x, [[0, 2]], [[1, 1]]),
    ("maximum.accumulate, tie", np.maximum.accumulate, [[1, 2, 2]], [[1, 1, 1]]),
    ("minimum.accumulate, tie", np.minimum.accumulate, [[2, 1, 1, 3]], [[1, 1, 2, 0]]),
    ("logaddexp of -inf", np.logaddexp, [-INF, -INF], [NAN, NAN]),
    ("logaddexp of inf", np.logaddexp, [INF, 1], [1, 0]),
    ("logaddexp of large numbers", np.logaddexp, [[1e4, 1e4], [1e4, -1e4]], [[0.5, 1], [0.5, 0]]),
    ("logaddexp2 of large numbers", np.logaddexp2, [[1e4, 3], [1e4, 3]], [[0.5, 0.5], [0.5, 0.5]]),
    ("sinc(0)", np.sinc, [[0, 1, -1]], [[0, -1, 1]]),
    ("i0(0)", np.i0, [0], [0]),
    ("nan_to_num", np.nan_to_num, [[NAN, INF, -INF, 1]], [[0, 0, 0, 1]]),
    ("angle(0)", np.angle, [[0, -1]], [[0, 0]]),
    ("modf", lambda x: np.modf(x)[0], [[0, -2.5, INF]], [[1, 1, 1]]),
    ("frexp", lambda x: np.frexp(x)[0], [[0, 3, -0.125]], [[1, 0.25, 4]]),
    ("unwrap", np.unwrap, [[0, 7, 20]], [[1, 1, 1]]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "record"),
    thinned(
        itertools.product(DTYPES, [False, True]), lambda dtype, record: np.dtype(dtype) == float
    ),
    ids=lambda x: ["compiled", "recorded"][x] if isinstance(x, bool) else None,
)
@pytest.mark.parametrize("row", FIRST, ids=[row[0] for row in FIRST])
def test_first_order(row, dtype, record):
    _, function, inputs, wanted = row
    found, _ = gradients(function, inputs, dtype, record)
    for g, w in zip(found, wanted, strict=True):
        same(g.detach().numpy(), w, dtype)


SECOND = [
    ("prod with one zero", np.prod, [[0, 2, 3]], [[5, 3, 2]]),
    ("prod with two zeros", np.prod, [[0, 0, 3]], [[3, 3, 0]]),
    ("prod with three zeros", np.prod, [[0, 0, 0]], [[0, 0, 0]]),
    ("abs at 0", np.abs, [[0, 1]], [[0, 0]]),
    ("x |x| at 0", lambda x: x * np.abs(x), [0], [0]),
    ("|x| |x| at 0, computed twice", lambda x: np.abs(x) * np.abs(x), [[0, -2]], [[2, 2]]),
    ("|x|**2 + |x| at 0", lambda x: np.abs(x) ** 2 + np.abs(x), [[0, -2]], [[2, 2]]),
    ("|x|**3 at 0", lambda x: np.abs(x) ** 3, [[0, -2]], [[0, 12]]),
    ("dot(|x|, |x|) at 0", lambda x: np.dot(np.abs(x), np.abs(x)), [[0, -2]], [[2, 2]]),
    ("|x| @ |x| at 0, half of it, as vdot", lambda x: np.vdot(abs(x), abs(x)) / 2, [[0, -2]], [[1, 1]]),
    ("exp(|x|**2) at 0", lambda x: np.exp(np.abs(x) ** 2), [0], [2]),
    ("hypot(x, y)**2 at 0", lambda x, y: np.hypot(x, y) ** 2, [[0, 3], [0, 4]], [[2, 2], [2, 2]]),
    ("hypot(x, 2) hypot(x, 0) at 0", lambda x: np.hypot(x, 2.0) * np.hypot(x, 0.0), [0], [0]),
    ("x |x| beside 0", lambda x: x * np.abs(x), [[-1, 1]], [[-2, 2]]),
    ("square at 0", np.square, [0], [2]),
    ("x**2 at 0", lambda x: x**2, [0], [2]),
    ("x**2.0 at 0, exponent an array", lambda x: x ** np.array([2.0]), [[0]], [[2]]),
    ("x**3 at 0", lambda x: x**3, [0], [0]),
    ("x**1 at 0", lambda x: x**1, [0], [0]),
    ("x**0 at 0", lambda x: x**0, [0], [0]),
    ("x x at 0", lambda x: x * x, [0], [2]),
    ("max of ties", np.max, [[1, 2, 2]], [[0, 0, 0]]),
    ("maximum at a tie", lambda x: np.maximum(x, 1.0), [1], [0]),
    ("clip at its ends", lambda x: np.clip(x, 0, 1), [[0, 1]], [[0, 0]]),
    ("where on both sides", double_where, [[0, -1, 4]], [[0, 0, -1 / 32]]),
    ("sqrt(0)", np.sqrt, [0], [-INF]),
    ("log(0)", np.log, [0], [-INF]),
    ("tanh at 0", np.tanh, [0], [0]),
    ("tanh(20)", np.tanh, [20], [-8 * math.exp(-40)]),
    ("expm1(-30)", np.expm1, [-30], [math.exp(-30)]),
    ("logsumexp with one -inf", tg.logsumexp, [[-INF, 1]], [[0, 0]]),
    ("sinc(0)", np.sinc, [0], [-math.pi**2 / 3]),
    ("i0(0)", np.i0, [0], [0.5]),
    ("arcsin(0)", np.arcsin, [0], [0]),
    ("logaddexp, tie", lambda x: np.logaddexp(x, 3.0), [3], [0.25]),
    ("logaddexp of large numbers", lambda x: np.logaddexp(x, 0.0), [[1e4, -1e4]], [[0, 0]]),
    ("x % y, y moving", lambda x: np.remainder(7.5, x), [2], [0]),
    ("x[[0, 0, 1]]**2", lambda x: x[[0, 0, 1]] ** 2, [[3, 4]], [[4, 2]]),
]  # fmt: skip


@pytest.mark.parametrize("row", SECOND, ids=[row[0] for row in SECOND])
def test_second_order(row):
    _, function, inputs, wanted = row
    for g, w in zip(seconds(function, inputs), wanted, strict=True):
        same(g, w, "float64")


@pytest.mark.parametrize("function", [np.hypot, np.arctan2])
def test_second_derivatives_at_the_origin_are_0(function):
    """They have no value there; a nan would spread to all other elements."""
    assert all(g[0] == 0 and np.isfinite(g[1]) for g in seconds(function, [[0, 1], [0, 2]]))


def smooth(x):
    return special.pseudo_huber(2.0, x)


def smooth_by_scale(x):
    return special.pseudo_huber(x, 1.0)


# function, derivatives of the orders 1, 2, ... at a point: limits, from inside of the domain
HIGHER = [
    (np.arcsin, 1.0, [INF] * 4), (np.arcsin, -1.0, [INF, -INF, INF, -INF]), (np.arccos, 1.0, [-INF] * 4),
    (np.arccos, -1.0, [-INF, INF, -INF, INF]), (np.arcsin, 1e-300, [1, 1e-300, 1, 9e-300]),
    (np.arcsin, 1e-9, [1, 1e-9, 1, 9e-9]), (np.arccos, 1e-9, [-1, -1e-9, -1, -9e-9]),
    (np.arccosh, 1.0, [INF, -INF, INF, -INF]), (np.arccosh, 1e200, [1e-200]),
    (np.arctanh, 1.0, [INF] * 4), (np.arctanh, -1.0, [INF, -INF, INF, -INF]),
    (np.arctanh, 1e-9, [1, 2e-9, 2, 24e-9]), (np.cbrt, 0.0, [INF, -INF, INF, -INF]),
    (np.cbrt, -0.0, [INF] * 4), (np.cbrt, INF, [0] * 4), (np.cbrt, -INF, [0] * 4),
    (np.cbrt, 1e-300, [1e200 / 3, -INF, INF, -INF]), (np.sinc, 0.0, [0, -math.pi**2 / 3, 0, math.pi**4 / 5]),
    (np.sqrt, INF, [0] * 4), (np.sqrt, 0.0, [INF, -INF, INF, -INF]), (np.log, 0.0, [INF, -INF, INF, -INF]),
    (np.arctan, 1e70, [1e-140, -2e-210, 6e-280]), (np.arctan, -1e100, [1e-200, 2e-300]),
    (np.arctan, INF, [0] * 4), (np.arctan, 1e308, [0] * 4), (np.i0, 1e-310, [5e-311, 0.5, 3.75e-311, 0.375]),
    (special.ber, 0.0, [0, 0, 0, -0.375]), (special.ber, 1e-60, [-6.25e-182, -1.875e-121, -3.75e-61, -0.375]),
    (special.logit, 1e-300, [1e300, -INF, INF]), (special.exprel, -1e100, [1e-200, 2e-300]),
    (special.cotdg, 1e-100, [-5.729577951308232e201, 1.1459155902616465e302]),
    (special.erfcx, 11.0, [-0.004606082417566812, 0.0008273763297070173, -0.0002220504167128677]),
    (special.erfcx, 1e100, [-5.641895835477563e-201, 1.1283791670955126e-300]),
    (special.dawsn, 19.0, [-0.0013908368175481758, 0.0001470181816965606, -2.3343634276600345e-05]),
    (smooth, 1e10, [2, 8e-30, -2.4e-39]), (smooth_by_scale, 1e-30, [1, -2, 3]),
    (special.i1, 1e-310, [0.5, 3.75e-311, 0.375]),
    (special.i0e, -1e20, [1.9947114020071635e-31, 2.9920671030107454e-51, 7.480167757526862e-71]),
    (special.i1e, -1e20, [-1.9947114020071635e-31, -2.9920671030107454e-51, -7.480167757526862e-71]),
]  # fmt: skip


def reverse(function, x, order):
    leaf = tg.tensor(x, requires_grad=True)
    with np.errstate(all="ignore"):
        d = function(leaf)
    for _ in range(order):
        (d,) = tg.grad(d, leaf, np.ones(np.shape(x)), create_graph=True)
    return d.item()


def forward(function, x, order):
    def along(x, order):
        with fw.dual_level(), np.errstate(all="ignore"):
            d = fw.make_dual(x, tg.tensor(1.0))
            return fw.unpack_dual(function(d) if order == 1 else along(d, order - 1)).tangent

    return along(tg.tensor(x), order).item()


@pytest.mark.parametrize("way", [reverse, forward])
@pytest.mark.parametrize("function", dict.fromkeys(row[0] for row in HIGHER))
def test_higher_order(function, way):
    for x, wanted in [row[1:] for row in HIGHER if row[0] is function]:
        for order, w in enumerate(wanted, 1):
            found = way(function, x, order)
            np.testing.assert_allclose(found, w, rtol=1e-13, err_msg=f"{function.__name__} {x} {order}")


@pytest.mark.parametrize("inner", [tg.func.jacrev, tg.func.jacfwd])
@pytest.mark.parametrize("outer", [tg.func.jacrev, tg.func.jacfwd])
def test_second_derivatives_of_polar_coordinates_far_along_an_axis(outer, inner):
    """Small beside the terms that formulas have, as 1/r - x**2/r**3 for y**2/r**3."""
    for x, y in ((1e8, 1.0), (1.0, 1e-9), (1e155, 1e100), (1e-150, 1e-170), (1e-100, 1e-260)):
        s, c, r = y / math.hypot(x, y), x / math.hypot(x, y), math.hypot(x, y)
        found = outer(inner(lambda p: np.hypot(p[0], p[1])))(np.array([x, y]))
        np.testing.assert_allclose(found, [[s * (s / r), -s * c / r], [-s * c / r, c * c / r]], rtol=1e-14)
        found = outer(inner(lambda p: np.arctan2(p[1], p[0])))(np.array([x, y]))
        mixed, square = (s * s - c * c) / r / r, 2 * s * c / r / r
        np.testing.assert_allclose(found, [[square, mixed], [mixed, -square]], rtol=1e-14)


@pytest.mark.parametrize("inner", [tg.func.jacrev, tg.func.jacfwd])
@pytest.mark.parametrize("outer", [tg.func.jacrev, tg.func.jacfwd])
@np.errstate(all="ignore")
def test_a_power_that_is_its_base_at_small_bases(outer, inner):
    """x**y at y = 1: derivatives by x have a factor of 0 beside inverse powers of x, which overflow."""

    def power(p):
        return p[0] ** p[1]

    x, log = 1e-310, math.log(1e-310)
    found = outer(inner(power))(np.array([x, 1.0]))
    np.testing.assert_allclose(found, [[0, 1 + log], [1 + log, x * log**2]], rtol=1e-13)
    x, log = 1e-160, math.log(1e-160)
    found = inner(outer(inner(power)))(np.array([x, 1.0]))
    mixed, last = [1 / x, log**2 + 2 * log], x * log**3
    np.testing.assert_allclose(found, [[[0, mixed[0]], mixed], [mixed, [mixed[1], last]]], rtol=1e-13)


@tg.njit
def inverse_functions(x):
    return np.arcsin(x) + np.arccos(2 * x) + np.arctanh(4 * x)


def test_second_derivatives_near_0_compiled():
    """Relative to the derivative, which is the distance from 0 there."""
    for x in (1e-300, 1e-9):
        np.testing.assert_allclose(reverse(inverse_functions, x, 2), (1 - 8 + 128) * x, rtol=1e-13)


SQUARED = [
    lambda a: a**2, lambda a: a**2.0, np.square, lambda a: np.power(a, 2), lambda a: a.__pow__(2),
    lambda a: a * a, lambda a: a * (1.0 * a), lambda a: 2 * a * (a / 2), lambda a: -a * -a,
    lambda a: a ** np.array(2.0), lambda a: np.float_power(a, 2), lambda a: (a + 1) * a - a,
]  # fmt: skip


@pytest.mark.parametrize("square", SQUARED)
@pytest.mark.parametrize("sweep", [False, True], ids=["open tape", "older tape"])
@pytest.mark.parametrize("absolute", [abs, np.abs, np.fabs])
def test_second_derivative_of_a_squared_absolute_value_at_0(absolute, square, sweep):
    x = tg.tensor([0.0, -0.0, 3.0, -2.0], requires_grad=True)
    a = absolute(x)
    if sweep:
        np.sum(x * x).backward()
    total = np.sum(square(a))
    (g,) = tg.grad(total, x, create_graph=True)
    np.testing.assert_array_equal(g.detach().numpy(), [0, 0, 6, -4])
    (h,) = tg.grad(np.sum(g), x, create_graph=True)
    np.testing.assert_array_equal(h.detach().numpy(), [2, 2, 2, 2])
    assert not h.requires_grad or not np.any(tg.grad(np.sum(h), x, materialize_grads=True)[0].numpy())


@pytest.mark.parametrize("square", SQUARED)
def test_a_squared_absolute_value_has_a_derivative_by_it(square):
    x = tg.tensor([0.0, -2.0], requires_grad=True)
    a = np.abs(x * 1.0)
    a.retain_grad()
    y = square(a)
    (g,) = tg.grad(np.sum(y), a, create_graph=True)
    same(g.detach().numpy(), [0, 4], "float64")
    same(tg.grad(np.sum(g), a, retain_graph=True)[0].numpy(), [2, 2], "float64")
    np.sum(y + a).backward()
    same(a.grad.numpy(), [1, 5], "float64")
    same(x.grad.numpy(), [0, -5], "float64")


def test_the_square_of_an_absolute_value_computed_elsewhere():
    """Without a record that could be asked: a constant, a result whose values are gone, no grad mode."""
    c = np.abs(tg.array([-2.0]))
    assert (c**2).tolist() == [4.0]
    x = tg.tensor([-2.0], requires_grad=True)
    a = np.abs(x * 1.0)
    with tg.no_grad():
        assert not (a**2).requires_grad
    np.sum(a).backward()
    same(tg.grad(np.sum(a**2), a)[0].numpy(), [4], "float64")


STEPS = [
    np.sign, np.floor, np.ceil, np.rint, np.trunc, np.round, lambda x: x // 2, lambda x: 2 // x,
    lambda x: x > 1, lambda x: x == x, np.isnan, np.signbit, np.argmax, np.argsort,
    lambda x: x.astype(int), lambda x: np.where(x > 0)[0],
]  # fmt: skip


@pytest.mark.parametrize("function", STEPS)
def test_step_functions_have_no_history(function):
    """Derivative 0 wherever there is one: a constant, which adds nothing to a gradient."""
    x = tg.tensor([0.5, 2.0], requires_grad=True)
    out = function(x)
    assert not out.requires_grad
    np.testing.assert_array_equal(out.numpy(), function(np.array([0.5, 2.0])))
    (g,) = tg.grad(np.sum(out * x), x)
    np.testing.assert_array_equal(g.numpy(), np.asarray(function(np.array([0.5, 2.0])), float) * np.ones(2))


@pytest.mark.parametrize("exponent", range(-3, 6))
def test_integer_powers_of_negative_numbers(exponent):
    x = tg.tensor([-1.5, 2.0], requires_grad=True)
    y = x**exponent
    (g,) = tg.grad(np.sum(y), x, create_graph=True)
    n = float(exponent)
    same(g.detach().numpy(), n * x.detach().numpy() ** (n - 1), "float64")
    (h,) = tg.grad(np.sum(g), x, materialize_grads=True)
    np.testing.assert_allclose(h.numpy(), n * (n - 1) * x.detach().numpy() ** (n - 2), rtol=1e-14)


def test_third_derivatives_at_0():
    x = tg.tensor([0.0], requires_grad=True)
    for function, wanted in ((np.tanh, -2.0), (lambda x: x**3, 6.0), (np.sinh, 1.0), (np.expm1, 1.0)):
        d = function(x)
        for _ in range(3):
            (d,) = tg.grad(np.sum(d), x, create_graph=True)
        np.testing.assert_allclose(d.detach().numpy(), [wanted], rtol=1e-14)


KINKS = {
    "|x|**2": lambda x: np.abs(x) ** 2,
    "|x| |x|": lambda x: np.abs(x) * np.abs(x),
    "(|x| + x)**2": lambda x: (np.abs(x) + x) ** 2,
    "u u, u = sin(x) + |x|": lambda x: np.square(np.sin(x) + np.abs(x)),
    "hypot(x, 0)**2": lambda x: np.hypot(x, 0.0) ** 2,
    "hypot(0, x) hypot(0, x)": lambda x: np.hypot(0.0, x) * np.hypot(0.0, x),
    "hypot(x, y)**2, one moving": lambda x: np.hypot(x, x.detach()) ** 2,
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", [512, 513, 1025, 8193, 20000])  # about 4, 8, 64 KiB
@pytest.mark.parametrize("name", KINKS)
def test_squares_of_kinks_at_every_size(name, n, dtype):
    """As for few points: a large result whose value no rule reads is not kept, and tells no 0."""

    def both(x):
        (g,) = tg.grad(np.sum(KINKS[name](x)), x, create_graph=True)
        return g.detach().numpy(), tg.grad(np.sum(g), x)[0].numpy()

    for points in ([0.0, 1.0, -0.5], [2.0, 1.0, -0.5]):
        wanted = both(tg.tensor(np.array(points, dtype), requires_grad=True))
        found = both(tg.tensor(np.resize(np.array(points, dtype), n), requires_grad=True))
        for f, w in zip(found, wanted, strict=True):
            np.testing.assert_allclose(f, np.resize(w, n), rtol=8 * np.finfo(dtype).eps)


@pytest.mark.parametrize("capacity", [*range(1, 9), 4096])
@pytest.mark.parametrize("behind", [False, True])
def test_squares_of_kinks_whatever_the_tapes_are(capacity, behind, monkeypatch):
    """The search for such a square also meets results that no tape keeps, by pruning or in a checkpoint."""
    monkeypatch.setattr(tapes, "MAX_RECORDS", capacity)
    at = np.array([0.0, 1.0, -0.5])
    x = tg.tensor(at, requires_grad=True)
    u = np.abs(x * 2.0) ** 2
    y = tg.autograd.checkpoint(np.sin, u) if behind else u
    (g,) = tg.grad(np.sum(y * np.abs(x) ** 2), x, create_graph=True)
    (h,) = tg.grad(np.sum(g), x, create_graph=True)
    (third,) = tg.grad(np.sum(h), x)
    s, c, square = np.sin(4 * at**2), np.cos(4 * at**2), at**2
    if behind:
        first = 8 * at * c * square + 2 * at * s
        second = (40 * c - 64 * square * s) * square + 2 * s
        last = -512 * at**5 * c - 576 * at**3 * s + 96 * at * c
    else:
        first, second, last = 16 * at**3, 48 * square, 96 * at
    for found, exact in ((g, first), (h, second), (third, last)):
        np.testing.assert_allclose(found.detach().numpy(), exact, rtol=1e-12, atol=1e-13)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of a mean of nothing
@pytest.mark.parametrize("reduce", [np.mean, np.var, np.std, np.prod, np.sum])
@pytest.mark.parametrize(("shape", "axis"), [((3, 0), -1), ((3, 0), None), ((0, 3), 0), ((0, 3), 1)])
def test_reductions_of_nothing(shape, axis, reduce):
    for _ in range(3):  # the third time by what the first two left
        x = tg.tensor(np.zeros(shape), requires_grad=True)
        (g,) = tg.grad(np.sum(reduce(x, axis=axis) ** 3), x, create_graph=True)
        (h,) = tg.grad(np.sum(g * g), x, materialize_grads=True)
        assert g.shape == h.shape == shape
    tangent = tg.func.jvp(lambda x: reduce(x, axis=axis))(np.zeros(shape), np.zeros(shape))[1]
    assert np.shape(tangent) == reduce(np.zeros(shape), axis=axis).shape
