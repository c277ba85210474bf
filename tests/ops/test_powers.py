"""Partial derivatives of x**y by base and exponent, at whole exponents and at base 0 too, to order 4."""

import itertools
import math
import operator

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import forward_ad as fw

BASES, EXPONENTS = [-2.0, 0.0, 0.5, 1.0, 2.0], [-1.0, 0.0, 0.5, 1.0, 2.0, 3.0]
X, Y = (np.array(c) for c in zip(*itertools.product(BASES, EXPONENTS), strict=True))
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "complex128": 1e-12}


def partial(x, y, m, n):
    """The derivative, m times by x and n times by y; None where there is none."""
    falling = np.poly1d([1.0])
    for j in range(m):
        falling *= np.poly1d([1.0, -j])
    if x <= 0:
        if n == 0 and y == int(y) and (x < 0 or y >= 0):
            return falling(y) * (x ** (y - m) if x or y == m else 0.0)
        return 0.0 if x == 0 and y > m else None
    total = sum(math.comb(n, k) * falling.deriv(k)(y) * math.log(x) ** (n - k) for k in range(n + 1))
    return total * x ** (y - m) if total else 0.0


def paths(order):
    """All orders in which one may differentiate, by 0 the base and by 1 the exponent."""
    return [path for n in range(1, order + 1) for path in itertools.product((0, 1), repeat=n)]


def check(found, path, dtype="float64", exponents=Y, bases=X):
    wanted = [partial(x, y, path.count(0), path.count(1)) for x, y in zip(bases, exponents, strict=True)]
    at = np.array([w is not None for w in wanted])
    assert at.sum() >= 3
    wanted = np.array([w for w in wanted if w is not None])
    bound = TOLERANCE[dtype] * np.maximum(abs(wanted), 1)
    wrong = ~(abs(found[at] - wanted) <= bound)
    assert not wrong.any(), (path, bases[at][wrong], exponents[at][wrong], found[at][wrong], wanted[wrong])


def reverse(function, given, path):
    leaves = [tg.tensor(v, requires_grad=True) for v in given]
    with np.errstate(all="ignore"):
        d = function(*leaves)
    for k in path:
        if not d.requires_grad:
            return np.zeros(d.shape, d.dtype)
        seed = np.ones(d.shape, d.dtype)
        (d,) = tg.grad(d, leaves[k], seed, create_graph=True, materialize_grads=True)
    return d.detach().numpy()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_reverse(dtype):
    given = X.astype(dtype), Y.astype(dtype)
    for path in paths(4 if dtype == "float64" else 3):
        check(reverse(np.power, given, path), path, dtype)


@pytest.mark.parametrize("function", [np.float_power, lambda x, y: x**y])
def test_other_ways_to_write_it(function):
    for path in paths(2):
        check(reverse(function, [X, Y], path), path)
        for k in range(X.size):
            wanted = partial(X[k], Y[k], path.count(0), path.count(1))
            if wanted is not None:
                found = reverse(function, [X[k], Y[k]], path)
                np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_forward(dtype):
    def along(path, values):
        with fw.dual_level():
            ones = tg.tensor(np.ones(X.shape, dtype))
            moved = [fw.make_dual(v, ones) if k == path[0] else v for k, v in enumerate(values)]
            with np.errstate(all="ignore"):
                d = np.power(*moved) if len(path) == 1 else along(path[1:], moved)
            t = fw.unpack_dual(d).tangent
        return 0 * ones if t is None else t

    for path in paths(3):
        found = along(path, [tg.tensor(X.astype(dtype)), tg.tensor(Y.astype(dtype))])
        check(found.detach().numpy(), path[::-1], dtype)


@pytest.mark.parametrize("form", [int, float, np.float32, np.int64, np.array, lambda y: np.array([y])])
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_exponents_that_are_constants(form, exponent):
    """In the kernel and recorded; at numbers whose inverse powers overflow, too."""
    y = form(exponent)
    if y != exponent:
        return
    for m in range(1, 5):
        found = reverse(lambda x: x**y, [X], (0,) * m)
        check(found, (0,) * m, exponents=np.full(X.shape, exponent))
    if exponent in (0, 1, 2, 3):
        for x in (1e-320, 1e-160, 1e-90):
            for m in range(1, 5):
                found = reverse(lambda x: x**y, [np.array([x])], (0,) * m)
                np.testing.assert_allclose(found, [partial(x, exponent, m, 0)], rtol=1e-14)


def test_bases_that_are_constants():
    for n in range(1, 5):
        check(reverse(lambda y: np.power(X, y), [Y], (0,) * n), (1,) * n)


def test_reverse_over_forward_and_forward_over_reverse():
    for large in (1, 100):  # results above 4 KiB are kept only where a derivative reads them
        x, y = np.tile(X, large), np.tile(Y, large)
        with fw.dual_level(), np.errstate(all="ignore"):
            leaf = tg.tensor(x, requires_grad=True)
            total = np.sum(leaf ** fw.make_dual(tg.tensor(y), tg.tensor(np.ones(y.shape))))
            (g,) = tg.grad(total, leaf, create_graph=True)
            check(fw.unpack_dual(g).tangent.detach().numpy()[-X.size :], (0, 1))
            leaf = tg.tensor(y, requires_grad=True)
            d = fw.make_dual(tg.tensor(x), tg.tensor(np.ones(x.shape))) ** leaf
            (g,) = tg.grad(np.sum(fw.unpack_dual(d).tangent), leaf)
            check(g.detach().numpy()[-X.size :], (0, 1))


@tg.njit
def compiled(x, y):
    out = np.empty_like(x)
    for k in range(x.size):
        out[k] = x[k] ** y[k]
    return out


@pytest.mark.parametrize("order", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_compiled(order):
    for path in paths(order):
        check(reverse(compiled, [X, Y], path), path)
    for m in range(1, order + 1):
        check(reverse(lambda x: compiled(x, Y), [X], (0,) * m), (0,) * m)


@pytest.mark.parametrize(
    ("x", "y", "wanted"),
    [
        (0.0, 0.0, (0.0, 0.0)), (0.0, 0.5, (math.inf, 0.0)), (0.0, 1.0, (1.0, 0.0)), (0.0, 2.0, (0.0, 0.0)),
        (0.0, -1.0, (-math.inf, -math.inf)), (-2.0, 3.0, (12.0, math.nan)),
    ],
)  # fmt: skip
def test_first_derivatives_at_the_ends_of_the_domain(x, y, wanted):
    """As torch has them."""
    for given in ((x, y), ([x], [y])):
        for function in (np.power, compiled)[: 1 + isinstance(given[0], list)]:
            leaves = [tg.tensor(np.array(v, float), requires_grad=True) for v in given]
            with np.errstate(all="ignore"):
                out = np.sum(function(*leaves))
            for create in (False, True):
                found = tg.grad(out, leaves, create_graph=create, retain_graph=True)
                np.testing.assert_array_equal([g.item() for g in found], wanted)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.full)])
def test_mixed_derivatives_where_the_reciprocal_of_the_base_is_infinite(compiled):
    function = tg.njit(lambda x: x[0] ** x[1]) if compiled else lambda x: x[0] ** x[1]
    x = tg.tensor([1e-310, 1.0], requires_grad=True)
    with np.errstate(all="ignore"):
        (g,) = tg.grad(function(x), x, create_graph=True)
        found = [tg.grad(part, x, retain_graph=True)[0].numpy() for part in g]
    log = math.log(1e-310)
    assert found[0][1] == pytest.approx(1 + log, rel=1e-13)
    assert found[1] == pytest.approx([1 + log, 1e-310 * log**2], rel=1e-13)
    x = tg.tensor([1e-310, 2.0], requires_grad=True)
    with np.errstate(all="ignore"):
        (g,) = tg.grad(function(x), x, create_graph=True)
        (found,) = tg.grad(g, x, np.array([0.5, -0.25]))
    np.testing.assert_allclose(found, [1.0, 0.0], rtol=1e-13, atol=1e-300)


@np.errstate(all="ignore")
def test_mixed_derivatives_where_the_power_under_or_overflows():
    """The derivatives do not: they are made of other powers than that of the value."""
    x = np.array([1e-155, 1e-140, 1e-310, 1e-310, 1e-310, 1e160, 1e100, 1e-100, 0.5])
    y = np.array([2.5, 2.3, 1.5, 2.0, 3.0, 2.0, 3.125, -3.0625, 2.0])
    for function, order in ((np.power, 3), (compiled, 2)):
        for path in paths(order):
            wanted = np.array([partial(*at, path.count(0), path.count(1)) for at in zip(x, y, strict=True)])
            normal = (np.abs(wanted) > 1e-300) & np.isfinite(wanted)
            assert normal.sum() >= 1
            found = reverse(function, [x, y], path)
            np.testing.assert_allclose(found[normal], wanted[normal], rtol=1e-12)


FORMS = [float, np.float64, np.array, tg.tensor, lambda v: tg.tensor(v, requires_grad=True)]
AT_RANDOM = np.random.default_rng(0).lognormal(0.0, 2.0, 120), np.random.default_rng(1).normal(0.0, 3.0, 120)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e300, -1e300, 1e-310, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("ufunc", [np.power, np.float_power], ids=lambda f: f.__name__)
@np.errstate(all="ignore")
def test_values_of_numbers_are_those_of_arrays(ufunc, dtype):
    """NumPy's numbers have another power, in the last bit, where its arrays have loops for AVX-512."""
    tg.tensor(1.0, requires_grad=True).backward()  # with compiled recording
    pairs = [*zip(*(v.astype(dtype) for v in AT_RANDOM), strict=True), *itertools.product(SPECIAL, SPECIAL)]
    ways = [ufunc, lambda x, y: x**y, lambda x, y: x.__ipow__(y)][: 1 + 2 * (ufunc is np.power)]
    for x, y in pairs:
        x, y = (np.array(v, dtype) for v in (x, y))
        known = np.asarray(ufunc(x, y)).tobytes()
        leaf = tg.tensor(x, requires_grad=True)
        for form in FORMS if dtype == "float64" else FORMS[2:]:
            for way in ways:
                assert np.asarray(way(leaf * 1.0, form(y)).detach()).tobytes() == known, (x, y, form)
        with tg.no_grad():
            assert np.asarray(ufunc(leaf, y)).tobytes() == known
        for form in FORMS[2:]:
            assert np.asarray(ufunc(form(x), leaf * 0.0 + y).detach()).tobytes() == known or np.isnan(x - x)
            if ufunc is np.power:
                assert np.asarray((form(x) ** tg.tensor(y, requires_grad=True)).detach()).tobytes() == known


@pytest.mark.parametrize("wait", [{"wait": True}, {"wait": True, "replay": True}])
@pytest.mark.parametrize("function", [np.power, np.float_power, operator.pow, lambda x, y: (x * y) ** 0.3])
def test_values_in_programs_are_those_of_arrays(function, wait):
    program = tg.compile(lambda p: function(p[0], p[1]), **wait)
    for point in np.abs(AT_RANDOM).T:
        value = function(*point[:, np.newaxis])  # of numbers NumPy's operator is another function
        assert np.asarray(program.value_and_grad(point)[0]).tobytes() == value.tobytes()
