"""Derivatives of functions of one operand against mpmath: 99 of 100 points of each decade within 4 ulp.

A decade is one of the distance from an end of the domain, or from 0, on either side. Left out are points
where the derivative is no normal number.
"""

import math

import mpmath
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.ops import REGISTRY, loops
from tapegrad.ops.primitive import Elementwise

LINE, HALF = "the line", "the half line"
ONE = mpmath.mpf(1)

# op: domain, derivative
EXACT = {
    "negative": (LINE, lambda x: -ONE), "absolute": (LINE, mpmath.sign), "square": (LINE, lambda x: 2 * x),
    "reciprocal": (LINE, lambda x: -1 / x**2), "sqrt": (HALF, lambda x: 1 / (2 * mpmath.sqrt(x))),
    "cbrt": (HALF, lambda x: 1 / (3 * mpmath.cbrt(x) ** 2)), "exp": (LINE, mpmath.exp),
    "exp2": (LINE, lambda x: mpmath.mpf(2) ** x * mpmath.log(2)), "expm1": (LINE, mpmath.exp),
    "log": (HALF, lambda x: 1 / x), "log2": (HALF, lambda x: 1 / (x * mpmath.log(2))),
    "log10": (HALF, lambda x: 1 / (x * mpmath.log(10))), "log1p": ((-1, math.inf), lambda x: 1 / (1 + x)),
    "sin": (LINE, mpmath.cos), "cos": (LINE, lambda x: -mpmath.sin(x)),
    "tan": (LINE, lambda x: mpmath.sec(x) ** 2), "sinh": (LINE, mpmath.cosh), "cosh": (LINE, mpmath.sinh),
    "tanh": (LINE, lambda x: mpmath.sech(x) ** 2), "arctan": (LINE, lambda x: 1 / (1 + x**2)),
    "arcsin": ((-1, 1), lambda x: 1 / mpmath.sqrt(1 - x**2)),
    "arccos": ((-1, 1), lambda x: -1 / mpmath.sqrt(1 - x**2)),
    "arcsinh": (LINE, lambda x: 1 / mpmath.sqrt(1 + x**2)),
    "arccosh": ((1, math.inf), lambda x: 1 / mpmath.sqrt(x**2 - 1)),
    "arctanh": ((-1, 1), lambda x: 1 / (1 - x**2)), "deg2rad": (LINE, lambda x: mpmath.pi / 180),
    "rad2deg": (LINE, lambda x: 180 / mpmath.pi),
    "sinc": (LINE, lambda x: (mpmath.cospi(x) - mpmath.sincpi(x)) / x),
    "i0": (LINE, lambda x: mpmath.besseli(1, x)),
}  # fmt: skip
UNLIKE = {"astype", "broadcast_to", "conjugate", "real", "imag"}  # conversions
# Exceptions: SciPy's Bessel function is up to 8 ulp off; the derivative of sinc has zeros, beside which it
# is accurate on the scale of the oscillation.
LIMIT = {"i0": 10.0}
LAST = {"i0": 3}  # power of ten past which it overflows; mpmath's takes long there
SCALE = {"sinc": lambda x: 1 / np.abs(x)}


def distances(low, high, count):
    """Numbers of each decade between two powers of ten, one row per decade."""
    random = np.random.default_rng(5)
    decades = np.arange(low, high)
    return 10.0 ** (decades[:, None] + (np.arange(count) + random.uniform(size=count)) / count)


def points(domain, low, high, count):
    """Rows of points, one per decade and side."""
    if domain == LINE:
        return np.concatenate([distances(low, high, count), -distances(low, high, count)])
    if domain == HALF:
        return distances(low, high, count)
    first, last = domain
    if last == math.inf:
        return np.concatenate([first + distances(-15, high, count)])
    near = distances(max(low, -15), 0, count)
    inner = distances(low, 0, count)
    return np.concatenate([first + near, last - near, inner, -inner])


def derivative(name, x):
    """The compiled derivative and that of the rule run on Tensors."""
    leaf = tg.tensor(x, requires_grad=True)
    with np.errstate(all="ignore"):
        out = getattr(np, name)(leaf)
    found = [tg.grad(out, leaf, np.ones(x.shape), create_graph=record, retain_graph=True)[0]
             for record in (False, True)]  # fmt: skip
    return [g.detach().numpy() for g in found]


def misses(name, low, high, count):
    """Of each decade, the share of points that are more than 4 ulp off."""
    domain, exact = EXACT[name]
    rows = points(domain, low, min(high, LAST.get(name, high)), count)
    with mpmath.workprec(120):
        wanted = np.array([_pair(exact(mpmath.mpf(float(v)))) for v in rows.ravel()])
    high, rest = wanted.T.reshape(2, *rows.shape)
    normal = np.isfinite(high) & (np.abs(high) >= np.finfo(float).smallest_normal)
    found = []
    for g in derivative(name, rows):
        with np.errstate(all="ignore"):
            unit = np.spacing(np.maximum(np.abs(high), SCALE[name](rows) if name in SCALE else 0))
            error = np.where(normal, np.abs((g - high) - rest) / unit, 0)
        found.append(error)
    error = np.maximum(*found)
    assert not np.any(np.isnan(error))
    return (error > LIMIT.get(name, 4.0)).mean(axis=1)


def _pair(x):
    """A number as the nearest double and what that leaves."""
    nearest = float(x)
    return nearest, float(x - nearest) if math.isfinite(nearest) else 0.0


def test_every_function_of_one_operand_is_measured():
    unary = {n for n, op in REGISTRY.items() if isinstance(op, Elementwise) and op.arity == 1}
    assert unary - set(EXACT) == UNLIKE


@pytest.mark.parametrize("name", EXACT)
def test_derivative(name):
    share = misses(name, -6, 6, 100)
    assert share.max() <= 0.01, f"{name}: {share}"


@pytest.mark.full
@pytest.mark.parametrize("name", EXACT)
def test_derivative_at_more_points(name):
    share = misses(name, -6, 6, 300)
    assert share.max() <= 0.01, f"{name}: {share}"


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_derivative_densely(name):
    share = misses(name, -300, 300, 500)
    assert share.max() <= 0.01, f"{name}: {np.flatnonzero(share > 0.01)}"


def i0_derivative(x, n):
    """The derivative of order n, from the power series."""
    terms = []
    for k in range((n + 1) // 2, 200):
        factor = mpmath.factorial(2 * k) / mpmath.factorial(2 * k - n)
        terms.append(factor * mpmath.mpf(x) ** (2 * k - n) / (4**k * mpmath.factorial(k) ** 2))
    return mpmath.fsum(terms)


@pytest.mark.parametrize("proved", [True, False])
@pytest.mark.parametrize("char", "dfegbQ?")
def test_values_of_a_bessel_function(char, proved, monkeypatch):
    """NumPy's to the bit: by its polynomial up to 8, if that is what is known, and beyond."""
    if not proved:
        monkeypatch.setattr(loops, "I0", loops.I0.replace("real(2)", "real(3)"))
    loops._polynomial.cache_clear()
    assert all((loops._polynomial(char) is not None) == proved for char in "fd")
    real = char in "dfeg"
    x = np.linspace(-8 * real, 8, 1000).astype(char)
    ends = [8, 9, 30, *([np.nextafter(x[-1], x[-1] + 1), -30, 1e3, np.inf, -np.inf, np.nan] if real else [])]
    ends = [np.array([0, 1, end], char) for end in ends]
    try:
        for values in (x, x[:0], x[3:4], x[::-3], x.reshape(50, 20).T, x[9], *ends, np.append(x, ends)):
            with np.errstate(all="ignore"):
                found, wanted = np.i0(tg.tensor(values)).numpy(), np.i0(values)
            assert found.dtype == wanted.dtype
            assert found.shape == wanted.shape
            np.testing.assert_array_equal(found, wanted)
    finally:
        loops._polynomial.cache_clear()


@pytest.mark.parametrize("x", [0.0, 1e-300, -1e-8, 1e-3, 0.1, 1.0, -10.0, 30.0])
def test_derivatives_of_a_bessel_function(x):
    """At 0 and near it the recurrence for I1' is a difference of nearly equal numbers."""
    leaf = tg.tensor(x, requires_grad=True)
    d = np.i0(leaf)
    for n in range(1, 9):
        (d,) = tg.grad(d, leaf, create_graph=True)
        with mpmath.workprec(200):
            wanted = float(i0_derivative(x, n))
        np.testing.assert_allclose(d.item(), wanted, rtol=1e-13)
