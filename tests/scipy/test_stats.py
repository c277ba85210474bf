"""Distributions of `scipy.stats`: values as SciPy's, derivatives by differences and in closed form."""

import copy

import mpmath
import numpy as np
import pytest
import scipy.special as sc
import scipy.stats

import tapegrad as tg
import tapegrad.scipy as ts
from tapegrad.autograd import forward_ad as fw
from tapegrad.errors import TapeError, UnsupportedOpError
from tapegrad.scipy.stats.univariate import ABOVE, Continuous, Whole
from tests.tensors import leaf
from tests.tiers import thinned

CONTINUOUS = {
    "norm": (), "t": (3.5,), "cauchy": (), "laplace": (), "logistic": (), "gumbel_r": (), "gumbel_l": (),
    "skewnorm": (1.7,), "vonmises": (2.3,), "truncnorm": (-0.7, 1.9), "expon": (), "gamma": (2.3,),
    "chi2": (3.7,), "invgamma": (2.5,), "beta": (2.2, 1.4), "f": (3.3, 5.1), "lognorm": (0.8,),
    "weibull_min": (1.7,), "weibull_max": (1.7,), "pareto": (2.2,), "rayleigh": (), "maxwell": (),
    "halfnorm": (), "halfcauchy": (), "uniform": (), "triang": (0.3,), "invgauss": (1.3,),
    "genextreme": (0.2,), "genpareto": (-0.2,), "gompertz": (0.7,), "fisk": (3.1,), "gennorm": (1.7,),
    "johnsonsu": (0.4, 1.3), "loguniform": (0.2, 3.0),
}  # fmt: skip
DISCRETE = {
    "bernoulli": (0.3,), "binom": (5, 0.3), "nbinom": (2.5, 0.4), "poisson": (2.3,), "geom": (0.3,),
    "betabinom": (5, 1.3, 2.2),
}  # fmt: skip
DISCRETE_METHODS = ("logpmf", "pmf", "logcdf", "cdf", "logsf", "sf")
METHODS = ("logpdf", "pdf", "logcdf", "cdf", "logsf", "sf", "ppf", "isf")
# Methods that a distribution has not, and parameters by which one has no derivative.
WITHOUT = {("vonmises", m) for m in ("ppf", "isf", "logcdf", "logsf")}
UNKNOWN = {("vonmises", "cdf"), ("vonmises", "sf")}
LOC, SCALE = 0.3, 1.7


def differences(f, values, k, step=1e-4):
    """The sum's derivative by argument k, or each one's by the first."""

    def at(shift):
        return f(*(v + shift if j == k else v for j, v in enumerate(values)))

    rows = [at(s * step) for s in (1, -1, 2, -2, 3, -3)]
    pairs = [rows[0] - rows[1], rows[2] - rows[3], rows[4] - rows[5]]
    found = (45 * pairs[0] - 9 * pairs[1] + pairs[2]) / (60 * step)
    return found if k == 0 else np.sum(found)


def compare(name, method, x, shapes, rest):
    """Value and derivatives by all arguments of a method; returns how many were compared."""
    mine, theirs = getattr(getattr(ts.stats, name), method), getattr(getattr(scipy.stats, name), method)
    values = [np.asarray(x, float), *map(float, shapes), *rest]
    wanted = theirs(*values)
    moving = [k for k in range(len(values)) if not (0 < k <= len(shapes) and (name, method) in UNKNOWN)]
    if name in DISCRETE:
        moving = [k for k in range(1, 1 + len(shapes)) if not isinstance(shapes[k - 1], int)]
    for k in moving:
        args = [leaf(v) if j == k else v for j, v in enumerate(values)]
        found = mine(*args)
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-11, atol=1e-300)
        (g,) = tg.grad(found.sum(), args[k])
        slopes = differences(theirs, values, k)
        np.testing.assert_allclose(g.numpy(), slopes, rtol=1e-7, atol=1e-8, err_msg=f"{name}.{method} {k}")
        with fw.dual_level():
            duals = [
                fw.make_dual(tg.tensor(a), tg.tensor(np.ones(np.shape(a)))) if j == k else a
                for j, a in enumerate(values)
            ]
            dual = mine(*duals)
            moved = np.sum(fw.unpack_dual(dual).tangent.detach().numpy())
        np.testing.assert_allclose(moved, np.sum(g.numpy()), rtol=1e-9, atol=1e-14)
    return len(moving)


@pytest.mark.parametrize("name", thinned(CONTINUOUS, lambda name: name == "pareto"))
def test_continuous(name):
    d, shapes = getattr(scipy.stats, name), CONTINUOUS[name]
    inner = d.ppf([0.02, 0.2, 0.47, 0.77, 0.98], *shapes, LOC, SCALE)
    for method in METHODS:
        if (name, method) not in WITHOUT:
            x = [0.02, 0.2, 0.47, 0.9, 0.97] if method in ("ppf", "isf") else inner
            assert compare(name, method, x, shapes, (LOC, SCALE))


@pytest.mark.parametrize("name", thinned(DISCRETE, lambda name: False))
def test_discrete(name):
    k = [1.0, 2.0, 3.0, 4.0] if name != "bernoulli" else [0.0, 1.0]
    for method in DISCRETE_METHODS:
        if name == "bernoulli":
            k = [0.0, 1.0] if "pmf" in method else [0.0]
        assert compare(name, method, np.array(k), DISCRETE[name], (0,))


def test_every_distribution_is_compared():
    kinds = Continuous, Whole
    distributions = {name for name in ts.stats.__all__ if isinstance(getattr(ts.stats, name), kinds)}
    assert distributions == {*CONTINUOUS, *DISCRETE}
    assert len(distributions) >= 30


# ---------------------------------------------------------------- tails


def ncdf(x):
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


@pytest.mark.parametrize(
    ("name", "method", "x", "shapes", "exact"),
    [
        ("norm", "logcdf", -40.0, (), lambda x: mpmath.log(ncdf(x))),
        ("norm", "logsf", 300.0, (), lambda x: mpmath.log(ncdf(-x))),
        ("gumbel_r", "logcdf", -5.0, (), lambda x: -mpmath.exp(-x)),
        ("gumbel_l", "sf", -40.0, (), lambda x: mpmath.exp(-mpmath.exp(x))),
        ("logistic", "logcdf", -800.0, (), lambda x: -mpmath.log1p(mpmath.exp(-x))),
        ("cauchy", "cdf", -1e12, (), lambda x: mpmath.acot(-x) / mpmath.pi),
        ("cauchy", "logpdf", 1e200, (), lambda x: -mpmath.log(mpmath.pi * (1 + x * x))),
        ("halfnorm", "logsf", 50.0, (), lambda x: mpmath.log(2 * ncdf(-x))),
        ("t", "logpdf", 1.5, (1e9,), lambda x: -x * x / 2 - mpmath.log(2 * mpmath.pi) / 2
            - (x**4 / 4 - x * x / 2 - 0.25) / mpmath.mpf(-1e9)),
        ("t", "logpdf", 1e200, (3.0,),
            lambda x: mpmath.log(6 * mpmath.sqrt(3) / mpmath.pi) - 2 * mpmath.log(3 + x * x)),
        ("truncnorm", "logpdf", 41.0, (40.0, 42.0),
            lambda x: mpmath.log(mpmath.npdf(x) / (ncdf(-mpmath.mpf(40)) - ncdf(-mpmath.mpf(42))))),
        ("truncnorm", "cdf", 40.01, (40.0, 42.0),
            lambda x: (ncdf(-mpmath.mpf(40)) - ncdf(-x)) / (ncdf(-mpmath.mpf(40)) - ncdf(-mpmath.mpf(42)))),
        ("skewnorm", "cdf", -3.0, (4.0,), lambda x: mpmath.quad(
            lambda y: 2 * mpmath.npdf(y) * ncdf(4 * y), [-20, -8, -5, -4, x])),
        ("geom", "logsf", 3.0, (1e-10,), None),
    ],
)  # fmt: skip
@pytest.mark.full
def test_tails(name, method, x, shapes, exact):
    if exact is None:  # by its probability
        p = leaf(shapes[0])
        found = getattr(getattr(ts.stats, name), method)(x, p)
        np.testing.assert_allclose(tg.grad(found, p)[0].item(), -x / (1 - shapes[0]), rtol=1e-13)
        return
    at = leaf(x)
    found = getattr(getattr(ts.stats, name), method)(at, *shapes)
    with mpmath.workdps(60):
        value = exact(mpmath.mpf(x))
        step = mpmath.mpf(10) ** -20 * max(1, abs(x))
        slope = (exact(mpmath.mpf(x) + step) - exact(mpmath.mpf(x) - step)) / (2 * step)
    np.testing.assert_allclose(found.item(), float(value), rtol=2e-12)
    np.testing.assert_allclose(tg.grad(found, at)[0].item(), float(slope), rtol=1e-10)


# Quantiles in the tails: what lies below, or above.
FAR = (1e-8, 1e-4)  # below that SciPy's own have few digits


def tails(name):
    d, shapes = getattr(scipy.stats, name), CONTINUOUS[name]
    return np.array([*d.ppf(FAR, *shapes), *d.isf(FAR, *shapes)])


@pytest.mark.full
@pytest.mark.parametrize("name", CONTINUOUS)
def test_both_tails(name):
    """By a number, loc and scale: what follows from the density and its own derivative."""
    mine, d, shapes = getattr(ts.stats, name), getattr(scipy.stats, name), CONTINUOUS[name]
    z = tails(name)
    density, below, above = d.pdf(z, *shapes), d.cdf(z, *shapes), d.sf(z, *shapes)
    at = leaf(z)
    (by_z,) = tg.grad(mine.logpdf(at, *shapes).sum(), at)
    slopes = {
        "logpdf": by_z.numpy(), "pdf": by_z.numpy() * density, "cdf": density, "sf": -density,
        "logcdf": density / below, "logsf": -density / above,
    }  # fmt: skip
    for method, slope in slopes.items():
        if (name, method) in WITHOUT:
            continue
        args = [leaf(2 * z), leaf(0.0), leaf(2.0)]  # so z is found again to the last bit
        found = getattr(mine, method)(args[0], *shapes, *args[1:])
        wanted = getattr(d, method)(2 * z, *shapes, 0.0, 2.0)
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-7, err_msg=method)
        ct = 1 / np.where(slope == 0, 1.0, np.abs(slope) * (1 + np.abs(z)))  # each counts alike
        gx, gl, gs = tg.grad(found, args, ct)
        by_scale = -slope * z
        if "pdf" in method:
            slope = slope / (2.0 if method == "pdf" else 1.0)
            by_scale = -slope * z - (1.0 if method == "logpdf" else density / 2)
        near = {"rtol": 2e-6, "atol": 1e-9, "err_msg": method}
        np.testing.assert_allclose(gx.numpy(), ct * slope / 2, **near)
        np.testing.assert_allclose(gl.item(), -np.sum(ct * slope) / 2, **near)
        np.testing.assert_allclose(gs.item(), np.sum(ct * by_scale) / 2, **near)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in CONTINUOUS if CONTINUOUS[name]])
def test_both_tails_by_shapes(name):
    """Each quantile by itself, by differences of the logarithms."""
    mine, d, shapes = getattr(ts.stats, name), getattr(scipy.stats, name), CONTINUOUS[name]
    for z in tails(name)[[1, 3]]:
        for method in ("logpdf", "logcdf", "logsf"):
            if (name, method) in WITHOUT:
                continue
            args = [leaf(s) for s in shapes]
            found = getattr(mine, method)(z, *args)
            for k, g in enumerate(tg.grad(found, args)):

                def moved(s, k=k, method=method, z=z):
                    values = (v * (1 + s * 1e-5 * (j == k)) for j, v in enumerate(shapes))
                    return getattr(d, method)(z, *values)

                wanted = (8 * (moved(1) - moved(-1)) - (moved(2) - moved(-2))) / (12e-5 * shapes[k])
                np.testing.assert_allclose(g.item(), wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("name", DISCRETE)
def test_ends_and_tails_of_whole_numbers(name):
    """Below and at the first number, far above, at the last, between two: by parameters."""
    mine, d, shapes = getattr(ts.stats, name), getattr(scipy.stats, name), DISCRETE[name]
    low, high = d.support(*shapes)
    far = [high - 1, high, high + 1]
    if np.isinf(high):
        far = [float(d.isf(q, *shapes)) for q in (1e-4, 1e-9)]
    moving = [k for k, v in enumerate(shapes) if isinstance(v, float)]
    for method in DISCRETE_METHODS:
        for at in (low - 1, low, low + 0.5, *far):
            args = [leaf(v) if k in moving else v for k, v in enumerate(shapes)]
            found = getattr(mine, method)(at, *args)
            wanted = getattr(d, method)(at, *shapes)
            np.testing.assert_allclose(found.item(), wanted, rtol=1e-8, atol=1e-15)
            grads = tg.grad(found, [args[k] for k in moving])
            for k, g in zip(moving, grads, strict=True):

                def moved(s, k=k, method=method, at=at):
                    values = (v + s * 1e-4 * (j == k) for j, v in enumerate(shapes))
                    return getattr(d, method)(at, *values)

                if np.isinf(wanted):
                    assert g.item() == 0
                    continue
                slope = (8 * (moved(1) - moved(-1)) - (moved(2) - moved(-2))) / 12e-4
                size = max(1e-9, abs(found.item()))
                np.testing.assert_allclose(g.item(), slope, rtol=1e-5, atol=1e-7 * size + 1e-12)


@pytest.mark.full
@pytest.mark.parametrize("name", CONTINUOUS)
def test_inverses_in_both_tails(name):
    """By a probability 1/pdf; by shapes what keeps it, -(dF/da)/pdf."""
    mine, d, shapes = getattr(ts.stats, name), getattr(scipy.stats, name), CONTINUOUS[name]
    for method, tail, sign in (("ppf", "logcdf", 1.0), ("isf", "logsf", -1.0)):
        if (name, method) in WITHOUT:
            continue
        for p in (*FAR, 0.3, 0.9):
            q, args = leaf(p), [leaf(s) for s in shapes]
            x = getattr(mine, method)(q, *args)
            found = tg.grad(x, [q, *args])
            density = d.pdf(x.item(), *shapes)
            np.testing.assert_allclose(found[0].item(), sign / density, rtol=1e-6)
            for g, a in zip(found[1:], args, strict=True):
                (slope,) = tg.grad(getattr(mine, tail)(x.item(), *args), a)
                np.testing.assert_allclose(
                    g.item(), -sign * slope.item() * p / density, rtol=1e-5, atol=1e-9 * abs(x.item())
                )


@pytest.mark.full
def test_second_derivatives_of_inverses():
    """By the shape and the probability, by differences of the first; where those of cdf are known."""
    df = leaf(3.5)
    with pytest.raises(UnsupportedOpError, match="betainc by b"):
        tg.grad(ts.stats.t.ppf(0.2, df), df, create_graph=True)
    for name, values in (("skewnorm", (0.2, 1.7)), ("invgauss", (0.9, 1.3))):
        for method in ("ppf", "isf"):

            def slopes(*args, f=getattr(getattr(ts.stats, name), method)):
                return tg.grad(f(*args), args, create_graph=True)

            args = [leaf(v) for v in values]
            first = slopes(*args)
            total = first[0] + 2 * first[1]
            for k, g in enumerate(tg.grad(total, args)):

                def at(s, k=k, values=values):
                    found = slopes(*(leaf(v + s * (j == k)) for j, v in enumerate(values)))
                    return found[0].item() + 2 * found[1].item()

                np.testing.assert_allclose(g.item(), (at(1e-5) - at(-1e-5)) / 2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["invgauss", "skewnorm"])
def test_tangents_of_inverses_are_linear_also_at_zero(name):
    """Of a tangent of zeros there is a derivative; where all are zeros the tangent is."""
    ppf = getattr(ts.stats, name).ppf
    q, shape, ones = np.array([0.3, 0.55]), 1.5, np.ones(2)

    def along(dq, dshape):
        return np.sum(tg.func.jvp(ppf, (0, 1))(q, shape, (dq, dshape))[1])

    by_q, by_shape = along(ones, 0.0), along(0.0 * ones, 1.0)
    assert along(0.0 * ones, 0.0) == 0
    for other in (0.0, 1.0):
        np.testing.assert_allclose(tg.func.grad(lambda v, d=other: along(v * ones, d))(0.0), by_q)
        np.testing.assert_allclose(tg.func.grad(lambda v, d=other: along(d * ones, v))(0.0), by_shape)


@pytest.mark.parametrize("c", [0.0, 1e-9, -1e-9])
def test_shapes_of_extremes_at_their_limit(c):
    """First and second derivatives by c where it is 0, by the series of the logarithm."""
    x = np.array([-1.5, 0.3, 2.0])
    e, half, third = np.exp(-x), x**2 / 2, 2 * x**3 / 3
    first = x - half + e * half
    second = x**2 - third + e * (third - half**2)
    at = leaf(c)
    (g,) = tg.grad(np.sum(ts.stats.genextreme.logpdf(x, at)), at, create_graph=True)
    np.testing.assert_allclose(g.item(), np.sum(first), rtol=1e-8)
    np.testing.assert_allclose(tg.grad(g, at)[0].item(), np.sum(second), rtol=1e-7)
    (g,) = tg.grad(ts.stats.genpareto.logpdf(2.0, at), at)
    np.testing.assert_allclose(g.item(), 2.0**2 / 2 - 2.0, atol=2e-8)
    for name, slope in (("genextreme", -np.log(-np.log(0.9)) ** 2 / 2), ("genpareto", np.log(0.1) ** 2 / 2)):
        (g,) = tg.grad(getattr(ts.stats, name).ppf(0.9, at), at)
        np.testing.assert_allclose(g.item(), slope, rtol=1e-7)


# ---------------------------------------------------------------- ends, support, parameters

ENDS = [
    ("expon", (), 0.0, "pdf", -1.0), ("expon", (), 0.0, "cdf", 1.0), ("expon", (), 0.0, "logpdf", -1.0),
    ("gamma", (2.0,), 0.0, "pdf", 1.0), ("gamma", (1.0,), 0.0, "pdf", -1.0),
    ("gamma", (3.0,), 0.0, "pdf", 0.0),
    ("gamma", (1.0,), 0.0, "logpdf", -1.0), ("beta", (2.0, 3.0), 0.0, "pdf", 12.0),
    ("beta", (3.0, 2.0), 1.0, "pdf", -12.0), ("rayleigh", (), 0.0, "pdf", 1.0),
    ("maxwell", (), 0.0, "pdf", 0.0), ("uniform", (), 0.0, "cdf", 1.0), ("uniform", (), 1.0, "sf", -1.0),
    ("lognorm", (1.0,), 0.0, "pdf", 0.0), ("invgamma", (2.0,), 0.0, "pdf", 0.0),
    ("weibull_max", (2.0,), 0.0, "pdf", -2.0), ("triang", (0.5,), 0.0, "pdf", 4.0),
    ("truncnorm", (0.0, 1.0), 0.0, "cdf", 0.3989422804014327 / 0.3413447460685429),
    ("laplace", (), 0.0, "cdf", 0.5), ("t", (3.0,), 0.0, "cdf", 0.36755259694786135),
    ("uniform", (), 0.0, "ppf", 1.0),
    ("truncnorm", (0.0, 1.0), 0.0, "ppf", 0.3413447460685429 / 0.3989422804014327),
    ("genpareto", (0.0,), 0.0, "pdf", -1.0), ("genpareto", (-1.0,), 1.0, "sf", -1.0),
    ("genpareto", (-1.0,), 1.0, "cdf", 1.0), ("genextreme", (0.5,), 2.0, "cdf", 0.0),
    ("norm", (), 0.0, "ppf", np.inf), ("f", (4.0, 3.0), 0.0, "pdf", 160 / 9 * 0.75),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "shapes", "x", "method", "slope"), thinned(ENDS, lambda name, *_: name in ("expon", "rayleigh"))
)
def test_an_end_of_the_support_has_the_derivative_of_the_inner_side(name, shapes, x, method, slope):
    at = leaf(x)
    found = getattr(getattr(ts.stats, name), method)(at, *shapes)
    np.testing.assert_allclose(
        found.item(), getattr(getattr(scipy.stats, name), method)(x, *shapes), rtol=1e-14, atol=1e-15
    )
    if name == "f":
        slope = (scipy.stats.f.pdf(1e-9, *shapes) - scipy.stats.f.pdf(0, *shapes)) / 1e-9
        np.testing.assert_allclose(tg.grad(found, at)[0].item(), slope, rtol=1e-6)
        return
    np.testing.assert_allclose(tg.grad(found, at)[0].item(), slope, rtol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("name", CONTINUOUS)
def test_the_support(name):
    """At its ends and outside of it: values are SciPy's, outside all derivatives are 0."""
    mine, d, shapes = getattr(ts.stats, name), getattr(scipy.stats, name), CONTINUOUS[name]
    low, high = d.support(*shapes)
    ends = [x for x in (low, high) if np.isfinite(x)]
    outside = [x for x in (low - 1.0, high + 1.0) if np.isfinite(x)]
    if name == "vonmises":
        return  # which has none: it goes on around the circle
    for method in METHODS[:6]:
        for x in ends + outside:
            args = [leaf(x), *map(leaf, shapes), leaf(0.0), leaf(1.0)]
            found = getattr(mine, method)(*args)
            np.testing.assert_allclose(found.item(), getattr(d, method)(x, *shapes), rtol=1e-13, atol=1e-300)
            if x in outside:
                assert not any(g.item() for g in tg.grad(found, args))
        for x in (-np.inf, np.inf):
            found = getattr(mine, method)(leaf(x), *map(leaf, shapes))
            with np.errstate(all="ignore"):
                wanted = getattr(d, method)(x, *shapes)
            if np.isnan(wanted):  # SciPy has inf - inf there
                wanted = ABOVE[method]
            assert found.item() == wanted
    for end, inner in ((low, 1e-9), (high, -1e-9)):
        if np.isfinite(end):
            at = leaf(end)
            (g,) = tg.grad(mine.cdf(at, *shapes), at)
            np.testing.assert_allclose(g.item(), d.pdf(end + inner, *shapes), rtol=1e-5, atol=2e-3)


@pytest.mark.full
def test_inverses_at_the_ends_do_not_move():
    """The ends of the support are constants, as far as shapes go."""
    for name, method in (("t", "ppf"), ("skewnorm", "isf"), ("invgauss", "ppf")):
        q, shape = leaf([0.0, 0.5, 1.0]), leaf(CONTINUOUS[name][0])
        found = getattr(getattr(ts.stats, name), method)(q, shape)
        wanted = getattr(getattr(scipy.stats, name), method)([0.0, 0.5, 1.0], CONTINUOUS[name][0])
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-14)
        (whole,) = tg.grad(found, shape, np.ones(3), retain_graph=True)
        (middle,) = tg.grad(found[1], shape)
        assert whole.item() == middle.item()


@pytest.mark.full
def test_by_the_degrees_of_freedom_at_the_middle():
    df = leaf(3.0)
    found = ts.stats.t.cdf(np.array([0.0, 0.5]), df)
    np.testing.assert_allclose(found.detach().numpy(), scipy.stats.t.cdf([0.0, 0.5], 3.0), rtol=1e-15)
    assert abs(tg.grad(found[0], df, retain_graph=True)[0].item()) < 1e-100


def test_outside_of_the_support():
    x, scale = leaf([-1.0, 0.5, 2.0]), leaf(1.0)
    for method, outside in (("logpdf", -np.inf), ("pdf", 0.0)):
        y = getattr(ts.stats.uniform, method)(x, 0.0, scale)
        np.testing.assert_array_equal(y.detach().numpy()[[0, 2]], outside)
        gx, gs = tg.grad(y, [x, scale], np.ones(3))
        np.testing.assert_array_equal(gx.numpy(), 0.0)
        assert gs.item() == -1.0


def test_parameters_that_are_none():
    """As SciPy: nan, of which all derivatives are nan; the other elements are not touched."""
    x, loc, scale = leaf([0.5, 0.5]), leaf(0.0), leaf([1.0, -1.0])
    y = ts.stats.expon.logpdf(x, loc, scale)
    np.testing.assert_array_equal(y.detach().numpy(), scipy.stats.expon.logpdf([0.5, 0.5], 0.0, [1.0, -1.0]))
    gx, gl, gs = tg.grad(y, [x, loc, scale], np.ones(2))
    np.testing.assert_array_equal(gx.numpy(), [-1.0, np.nan])
    assert np.isnan(gl.item())
    np.testing.assert_array_equal(gs.numpy(), [-0.5, np.nan])


def test_probabilities_at_the_ends():
    """The pmf is a polynomial of p, whose derivative is finite where its logarithm's is not."""
    p = leaf([0.0, 1.0])
    for k, slopes in ((0.0, [-2.0, 0.0]), (1.0, [2.0, -2.0]), (2.0, [0.0, 2.0])):
        y = ts.stats.binom.pmf(k, 2, p)
        np.testing.assert_array_equal(y.detach().numpy(), scipy.stats.binom.pmf(k, 2, [0.0, 1.0]))
        np.testing.assert_allclose(tg.grad(y, p, np.ones(2))[0].numpy(), slopes, atol=1e-15)
    mu = leaf(0.0)
    assert tg.grad(ts.stats.poisson.pmf(1.0, mu), mu)[0].item() == 1.0
    assert tg.grad(ts.stats.poisson.logpmf(0.0, mu), mu)[0].item() == -1.0


@pytest.mark.full
@pytest.mark.parametrize("name", CONTINUOUS)
def test_inverses_at_the_ends(name):
    shapes = CONTINUOUS[name]
    for method in ("ppf", "isf"):
        if (name, method) not in WITHOUT:
            q = np.array([0.0, 1.0, -0.1, 1.1, np.nan])
            found = getattr(getattr(ts.stats, name), method)(leaf(q), *shapes, LOC, SCALE)
            wanted = getattr(getattr(scipy.stats, name), method)(q, *shapes, LOC, SCALE)
            np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-14, atol=1e-15)


def test_densities_that_underflow():
    """What is 0 in the numbers that there are has the derivative 0, also where its logarithm is -inf."""
    x = leaf([-800.0, 0.5])
    for method in ("pdf", "cdf", "sf"):
        (g,) = tg.grad(getattr(ts.stats.gumbel_r, method)(x).sum(), x)
        assert g[0].item() == 0 and g[1].item() != 0


# ---------------------------------------------------------------- how they are called


def test_plain_arguments_are_scipys():
    x = np.linspace(-1.0, 3.0, 5)
    assert type(ts.stats.norm.logpdf(x)) is np.ndarray
    np.testing.assert_array_equal(ts.stats.norm.logpdf(x), scipy.stats.norm.logpdf(x))
    assert isinstance(ts.stats.norm.logpdf(tg.tensor(x)), tg.Tensor)
    assert ts.stats.norm.stats(1.0, 2.0) == scipy.stats.norm.stats(1.0, 2.0)
    assert ts.stats.norm(1.0, 2.0).mean() == 1.0
    assert ts.stats.norm(1.0, 2.0).rvs(3, random_state=0).shape == (3,)
    assert ts.stats.sem([1.0, 2.0]) == scipy.stats.sem([1.0, 2.0])
    assert ts.stats.burr.cdf(0.5, 1.0, 2.0) == scipy.stats.burr.cdf(0.5, 1.0, 2.0)
    assert "norm" in dir(ts.stats) and "ttest_ind" in dir(ts.stats)


def test_a_frozen_distribution():
    loc, x = leaf(0.5), leaf([1.0, 2.0])
    assert ts.stats.norm.ppf(q=0.5, loc=loc).item() == 0.5
    frozen = ts.stats.norm(loc=loc, scale=2.0)
    np.testing.assert_array_equal(frozen.logpdf(x).detach(), scipy.stats.norm(0.5, 2.0).logpdf([1.0, 2.0]))
    (g,) = tg.grad(frozen.logpdf(x).sum(), loc)
    np.testing.assert_allclose(g.item(), (0.5 + 1.5) / 4)
    (g,) = tg.grad(ts.stats.expon(scale=2.0).sf(x).sum(), x)
    np.testing.assert_allclose(g.numpy(), -0.5 * np.exp(-x.detach().numpy() / 2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: ts.stats.norm.fit(x), "scipy.stats.norm.fit"),
        (lambda x: ts.stats.norm.rvs(x), "scipy.stats.norm.rvs"),
        (lambda x: ts.stats.norm(x).rvs(), "scipy.stats.norm.rvs"),
        (lambda x: ts.stats.norm(x).mean(), "scipy.stats.norm.mean"),
        (lambda x: ts.stats.burr.cdf(x, 1.0, 2.0), "scipy.stats.burr.cdf"),
        (lambda x: ts.stats.vonmises.ppf(x, 1.0), "scipy.stats.vonmises.ppf"),
        (lambda x: ts.stats.poisson.pmf(x, 1.0), "scipy.stats.poisson.pmf has no derivative by k"),
        (lambda x: ts.stats.binom.pmf(1.0, x, 0.5), "scipy.stats.binom.pmf has no derivative by n"),
        (lambda x: ts.stats.betabinom.cdf(1, x, 2.0, 1.0), "betabinom.cdf has no derivative by n"),
        (lambda x: ts.stats.vonmises.cdf(0.5, x), "scipy.stats.vonmises.cdf has no derivative by kappa"),
        (lambda x: ts.stats.ttest_1samp(x, 0.0), "scipy.stats.ttest_1samp"),
        (lambda x: ts.stats.wishart.entropy(x, 1.0), "scipy.stats.wishart.entropy"),
        (lambda x: ts.stats.hypergeom.logpmf(x, 20, 7, 12), "hypergeom.logpmf has no derivative: all its"),
        (lambda x: ts.stats.hypergeom(20, 7, 12).pmf(x), "hypergeom.pmf has no derivative: all its arg"),
        (lambda x: ts.stats.multivariate_hypergeom.logpmf([x, 1], [3, 2], 2), "are whole numbers"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused(call, words):
    x = tg.tensor(0.5, requires_grad=True)
    with pytest.raises(UnsupportedOpError, match=words):
        call(x)


def test_a_distribution_with_arguments_has_no_special_methods_of_scipy_s():
    frozen = ts.stats.norm(0.0, 1.0)
    assert not hasattr(frozen, "__array__") and copy.copy(frozen).args == frozen.args


def test_second_derivatives():
    """Of the normal distribution by loc and scale, in closed form; the mixed one from both sides."""
    x, loc, scale = 1.3, leaf(0.4), leaf(0.8)
    z = (x - 0.4) / 0.8
    by_loc, by_scale = tg.grad(ts.stats.norm.logpdf(x, loc, scale), [loc, scale], create_graph=True)
    np.testing.assert_allclose(tg.grad(by_loc, loc, retain_graph=True)[0].item(), -1 / 0.64, rtol=1e-14)
    (mixed, twice) = tg.grad(by_scale, [loc, scale])
    np.testing.assert_allclose(mixed.item(), -2 * z / 0.64, rtol=1e-13)
    np.testing.assert_allclose(twice.item(), (1 - 3 * z * z) / 0.64, rtol=1e-13)


@pytest.mark.full
@pytest.mark.parametrize("name", CONTINUOUS)
def test_second_derivatives_of_logarithms_of_densities(name):
    """By differences of the first."""
    shapes = CONTINUOUS[name]
    values = [float(getattr(scipy.stats, name).ppf(0.37, *shapes, LOC, SCALE)), *shapes, LOC, SCALE]

    def slopes(*args):
        return tg.grad(getattr(ts.stats, name).logpdf(*args), args, create_graph=True)

    args = [leaf(v) for v in values]
    total = sum((k + 1) * g for k, g in enumerate(slopes(*args)))
    found = tg.grad(total, args)
    for k, g in enumerate(found):

        def of(shift, k=k):
            moved = [leaf(v + shift * (j == k)) for j, v in enumerate(values)]
            return sum((j + 1) * s.item() for j, s in enumerate(slopes(*moved)))

        wanted = (8 * (of(1e-4) - of(-1e-4)) - (of(2e-4) - of(-2e-4))) / 12e-4
        np.testing.assert_allclose(g.item(), wanted, rtol=1e-7, atol=1e-7)


# ---------------------------------------------------------------- of vectors

X = np.array([[0.3, -0.5], [1.2, 0.4], [-0.2, 0.9]])
COV = np.array([[2.0, 0.3], [0.3, 1.1]])


def test_multivariate_normal():
    x, mean, cov = leaf(X), leaf([0.1, 0.2]), leaf(COV)
    found = ts.stats.multivariate_normal.logpdf(x, mean, cov)
    np.testing.assert_allclose(
        found.detach().numpy(), scipy.stats.multivariate_normal.logpdf(X, [0.1, 0.2], COV), rtol=1e-13
    )
    gx, gm, gc = tg.grad(found.sum(), [x, mean, cov])
    inverse = np.linalg.inv(COV)
    off = X - [0.1, 0.2]
    np.testing.assert_allclose(gx.numpy(), -off @ inverse, rtol=1e-12)
    np.testing.assert_allclose(gm.numpy(), (off @ inverse).sum(0), rtol=1e-12)
    outer = inverse @ off.T @ off @ inverse
    np.testing.assert_allclose(gc.numpy(), 0.5 * (outer - len(X) * inverse), rtol=1e-12)
    frozen = ts.stats.multivariate_normal(mean, cov)
    np.testing.assert_allclose(frozen.pdf(X[0]).item(), np.exp(found.detach().numpy()[0]), rtol=1e-13)


@pytest.mark.full
def test_multivariate_normal_of_a_number_or_a_diagonal():
    for given in (1.7, [2.0, 0.5]):
        cov = leaf(given)
        found = ts.stats.multivariate_normal.logpdf(X, np.zeros(2), cov)
        wanted = scipy.stats.multivariate_normal.logpdf(X, np.zeros(2), given)
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-13)
        variance = np.broadcast_to(given, 2)
        slopes = 0.5 * (X**2 / variance**2 - 1 / variance).sum(0)
        (g,) = tg.grad(found.sum(), cov)
        np.testing.assert_allclose(g.numpy(), slopes if np.ndim(given) else slopes.sum(), rtol=1e-12)
    with pytest.raises(np.linalg.LinAlgError):
        ts.stats.multivariate_normal.logpdf(X, np.zeros(2), leaf([[1.0, 1.0], [1.0, 1.0]]))


@pytest.mark.full
def test_multivariate_t_and_dirichlet():
    x, loc, shape, df = leaf(X), leaf([0.1, 0.2]), leaf(COV), leaf(3.5)
    found = ts.stats.multivariate_t.logpdf(x, loc, shape, df)
    theirs = scipy.stats.multivariate_t.logpdf
    np.testing.assert_allclose(found.detach().numpy(), theirs(X, [0.1, 0.2], COV, 3.5), rtol=1e-13)
    gx, gl, gs, gd = tg.grad(found.sum(), [x, loc, shape, df])
    wanted = (theirs(X, [0.1, 0.2], COV, 3.5 + 1e-5) - theirs(X, [0.1, 0.2], COV, 3.5 - 1e-5)).sum() / 2e-5
    np.testing.assert_allclose(gd.item(), wanted, rtol=1e-7)
    np.testing.assert_allclose(gl.numpy(), -gx.numpy().sum(0), rtol=1e-12)
    for i, j in ((0, 0), (1, 0)):
        step = np.zeros((2, 2))
        step[i, j] = step[j, i] = 1e-5
        wanted = (
            theirs(X, [0.1, 0.2], COV + step, 3.5) - theirs(X, [0.1, 0.2], COV - step, 3.5)
        ).sum() / 2e-5
        np.testing.assert_allclose(np.sum(gs.numpy() * step) / 1e-5, wanted, rtol=1e-7)
    alpha, p = leaf([1.3, 2.0, 0.7]), leaf([0.2, 0.5, 0.3])
    found = ts.stats.dirichlet.logpdf(p, alpha)
    np.testing.assert_allclose(
        found.item(), scipy.stats.dirichlet.logpdf(p.detach().numpy(), alpha.detach().numpy())
    )
    ga, gp = tg.grad(found, [alpha, p], retain_graph=True)
    a, q = alpha.detach().numpy(), p.detach().numpy()
    np.testing.assert_allclose(ga.numpy(), np.log(q) + sc.psi(a.sum()) - sc.psi(a), rtol=1e-12)
    np.testing.assert_allclose(gp.numpy(), (a - 1) / q, rtol=1e-12)
    with pytest.raises(ValueError, match="simplex"):
        ts.stats.dirichlet.logpdf(leaf([0.5, 0.6, 0.3]), alpha)


def test_multinomial():
    """By the probabilities, of which the last is what the others leave."""
    counts, p = np.array([[1, 2, 3], [6, 0, 0], [2, 2, 2]]), np.array([0.2, 0.3, 0.5])
    at = leaf(p)
    for method in ("logpmf", "pmf"):
        found = getattr(ts.stats.multinomial, method)(counts, 6, at)
        wanted = getattr(scipy.stats.multinomial, method)(counts, 6, p)
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-12)
        (g,) = tg.grad(found[0], at)
        slope = np.array([1 / 0.2 - 3 / 0.5, 2 / 0.3 - 3 / 0.5, 0.0])
        scale = 1.0 if method == "logpmf" else found[0].item()
        np.testing.assert_allclose(g.numpy(), slope * scale, rtol=1e-12)
    assert ts.stats.multinomial(6, at).logpmf([1, 2, 3]).item() == pytest.approx(np.log(0.135))
    assert ts.stats.multinomial.logpmf([1, 2, 2], 6, at).item() == -np.inf
    with pytest.raises(UnsupportedOpError, match="whole numbers"):
        ts.stats.multinomial.logpmf(leaf(counts * 1.0), 6, p)


@pytest.mark.full
def test_wishart():
    random = np.random.default_rng(5)
    stack = np.stack([a @ a.T + np.eye(3) for a in random.normal(size=(2, 3, 3))], axis=-1)
    scale = stack[..., 0] + np.diag([0.3, 0.2, 0.1])
    theirs = scipy.stats.wishart.logpdf
    for x in (stack, stack[..., 0], stack[..., :1]):
        args = [leaf(x), leaf(4.5), leaf(scale)]
        found = ts.stats.wishart.logpdf(*args)
        np.testing.assert_allclose(found.detach().numpy(), theirs(x, 4.5, scale), rtol=1e-12)
        gx, gv, gs = tg.grad(found.sum(), args)
        wanted = (theirs(x, 4.5 + 1e-5, scale) - theirs(x, 4.5 - 1e-5, scale)).sum() / 2e-5
        np.testing.assert_allclose(gv.item(), wanted, rtol=1e-8)
        for i, j in ((0, 0), (2, 1)):
            step = np.zeros((3, 3))
            step[i, j] = step[j, i] = 1e-5
            wanted = (theirs(x, 4.5, scale + step) - theirs(x, 4.5, scale - step)).sum() / 2e-5
            np.testing.assert_allclose(np.sum(gs.numpy() * step) / 1e-5, wanted, rtol=1e-7)
            step = step if x.ndim == 2 else step[..., None]
            wanted = (theirs(x + step, 4.5, scale) - theirs(x - step, 4.5, scale)).sum() / 2e-5
            np.testing.assert_allclose(np.sum(gx.numpy() * step) / 1e-5, wanted, rtol=1e-7)
    for x, scale in ((0.7, 1.3), ([0.7, 0.4], 1.3), ([0.7, 0.4], [1.3, 0.5]), (0.7, [1.3, 0.5])):
        args = [leaf(x), leaf(4.5), leaf(scale)]
        found = ts.stats.wishart(args[1], args[2]).logpdf(args[0])
        np.testing.assert_allclose(found.detach().numpy(), theirs(x, 4.5, scale), rtol=1e-12)
        for k, g in enumerate(tg.grad(found.sum(), args)):
            values = [np.asarray(a.detach().numpy()) for a in args]
            moved = [[v + s * 1e-5 * (j == k) for j, v in enumerate(values)] for s in (1, -1)]
            up, down = (np.sum(theirs(m[0], float(m[1]), m[2])) for m in moved)
            np.testing.assert_allclose(np.sum(g.numpy()), (up - down) / 2e-5, rtol=1e-7)
    # of one number it is a gamma distribution
    pdf = ts.stats.wishart.pdf(leaf(0.7), leaf(4.5), 1.3).item()
    np.testing.assert_allclose(pdf, scipy.stats.gamma.pdf(0.7, 2.25, scale=2.6), rtol=1e-12)
    with pytest.raises(np.linalg.LinAlgError):
        ts.stats.wishart.logpdf(leaf(-np.eye(2)), 3.0, np.eye(2))
    for df, words in ((0.5, "greater than the dimension"), ([3.0], "scalar")):
        with pytest.raises(ValueError, match=words):
            ts.stats.wishart.logpdf(leaf(np.eye(2)), df, np.eye(2))


def test_errors_are_the_librarys():
    with pytest.raises((TypeError, TapeError)):
        ts.stats.norm.logpdf(leaf(1.0), 0.0, 1.0, 2.0)
