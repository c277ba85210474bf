"""Differences, integrals, interpolation, convolution and equal steps."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import errors

from .rows import POSITIVE, check

A, V, S, T3 = (2, 3), (5,), (), (2, 3, 2)
UP = ("ascending", V)
GRID = np.array([-1.0, -0.4, 0.0, 0.5, 1.1])


def convolved(function, mode):
    return lambda x, y: function(x, y, mode) + 0 * function(y, x, mode).sum()


ROWS = [
    ("diff", lambda x: np.diff(x) * 2, [A]),
     ("diff, n", lambda x: np.diff(x, 2, axis=-1) * np.diff(x, 0)[:, :1], [A]),
    ("diff along an axis", lambda x: np.diff(x, axis=0), [T3]),
    ("diff, ends", lambda x, y: np.diff(x, prepend=y, append=[[1.0], [2.0]]), [A, S]),
    ("diff to nothing", lambda x: np.concatenate([np.diff(x, 4, prepend=1.0), x], axis=1), [A]),
    ("ediff1d", lambda x: np.ediff1d(x), [A]),
    ("ediff1d, ends", lambda x, y: np.ediff1d(x, to_end=y, to_begin=[1.0, 2.0]), [A, S]),
    ("gradient", lambda x: np.gradient(x), [V]),
     ("gradient, edge 2", lambda x: np.gradient(x, 0.3, edge_order=2), [V]),
    ("gradient of axes", lambda x: np.gradient(x), [A]),
    ("gradient of one axis", lambda x: np.gradient(x, 2.0, axis=1) * np.gradient(x, axis=-1), [A]),
    ("gradient of a tuple", lambda x: np.gradient(x, 1.0, 0.5, axis=(1, 0)), [A]),
    ("gradient, spacing", lambda x, h: np.gradient(x, h), [V, (POSITIVE, S)]),
    ("gradient, coordinates", lambda x, t: np.gradient(x, t), [V, UP]),
    ("gradient, coordinates, edge 2", lambda x, t: np.gradient(x, t, edge_order=2), [V, UP]),
    ("gradient, coordinates of axes", lambda x: np.gradient(x, [0.0, 1.5], [0.0, 1.0, 4.0]), [A]),
    ("gradient, equal coordinates", lambda x: np.gradient(x, np.arange(5.0)), [V]),
    ("trapezoid", lambda x: np.trapezoid(x) * np.trapezoid(x, dx=0.5), [A]),
    ("trapezoid along an axis", lambda x, d: np.trapezoid(x, axis=0, dx=d), [A, S]),
    ("trapezoid, x", lambda x, t: np.trapezoid(x, t) * np.trapezoid(x[0] * t, x[1]), [A, (3,)]),
    ("trapezoid, matrix x", lambda x, t: np.trapezoid(x, t, axis=0) * np.trapezoid(x, t)[0], [A, A]),
    ("interp", lambda x: np.interp(x, GRID, GRID**2), [(2, 2)]),
    ("interp, all", lambda x, t, y: np.interp(x / 2, t, y), [(4,), UP, V]),
    ("interp, ends", lambda x, y, e: np.interp(x * 2, GRID, y, e[0], right=e[1]), [(6,), V, (2,)]),
    ("interp of one point", lambda x, y: np.interp(x, [0.1], y), [(4,), (1,)]),
    ("interp of 0-d", lambda x: np.interp(x, GRID, GRID**2), [S]),
    ("interp, period", lambda x, y: np.interp(3 * x, GRID + 0.3, y, period=2.5), [(7,), V]),
    ("interp, moving period", lambda x, t, y, p: np.interp(3 * x, t, y, period=p + 3),
     [(4,), UP, V, (POSITIVE, S)]),
    ("interp of integers", lambda y: np.interp([0, 1], [-1, 0, 1, 2, 3], y), [V]),
    ("linspace", lambda a, b: np.linspace(a, b), [S, S]),
    ("linspace, few", lambda a, b: np.linspace(a, b, 4, endpoint=False) * np.linspace(a, 2.0, num=4), [S, S]),
    ("linspace of arrays", lambda a, b: np.linspace(a, b, 3, axis=-1) + np.linspace(0, b, 3).T, [(2,), (2,)]),
    ("linspace, step", lambda a, b: np.linspace(a, b, 5, retstep=True), [S, S]),
    ("linspace of one", lambda a, b: np.linspace(a, b, 1), [S, S]),
    ("linspace, dtype", lambda a: np.linspace(a, 1, 3, dtype=float), [S]),
    ("logspace", lambda a, b: np.logspace(a, b, 5), [S, S]),
    ("logspace, base", lambda a, c: np.logspace(a, 2.0, 4, base=c, endpoint=False), [S, (POSITIVE, S)]),
    ("logspace of arrays", lambda a, c: np.logspace(a, 1.0, 3, base=c, axis=-1), [(2,), (POSITIVE, (2,))]),
    ("geomspace", lambda a, b: np.geomspace(a, b, 5), [(POSITIVE, S), (POSITIVE, S)]),
    ("geomspace, negative", lambda a: np.geomspace(-a, -8.0, 4, endpoint=False), [(POSITIVE, S)]),
    ("geomspace of arrays", lambda a: np.geomspace(a, [1.0, 2.0], 3, axis=1), [(POSITIVE, (2,))]),
] + [
    (f"{f.__name__}, {mode}, {m} and {n}", lambda x, y, f=f, mode=mode: f(x, y, mode), [(m,), (n,)])
    for f in (np.convolve, np.correlate) for mode in ("full", "same", "valid")
    for m, n in ((5, 3), (5, 2), (4, 3), (4, 2), (2, 5), (3, 4), (4, 4), (3, 1))
] + [
    ("convolve, default", lambda x: np.convolve(x, [1, 2]) * np.convolve(2.0, x, "full")[0], [V]),
    ("convolve with itself", lambda x: np.convolve(x, x), [V]),
    ("correlate, default", lambda x: np.correlate(x, [1, 2]) * np.correlate([1.0, 2.0], x), [V]),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_call(row, random):
    check(*row[1:], random)


def test_diff_until_nothing_is_left():
    """NumPy goes on for ever."""
    x = tg.tensor(np.ones((2, 3)), requires_grad=True)
    assert np.diff(x, 10**30).shape == np.diff(x, 3).shape == (2, 0)
    assert np.diff(x, 10**30, axis=0, append=x).shape == (0, 3)


def test_interp_at_a_knot():
    """The right slope; at the last knot the left."""
    x = tg.tensor([0.0, 1.0, 2.0, 3.0], requires_grad=True)
    y = np.interp(x, [0.0, 1.0, 2.0], [0.0, 1.0, 4.0])
    assert y.tolist() == [0.0, 1.0, 4.0, 4.0]
    assert tg.grad(np.sum(y), x)[0].tolist() == [1.0, 3.0, 3.0, 0.0]


def test_interp_gives_the_bits_that_numpy_gives(random):
    """Beside knots without end too."""
    t = np.cumsum(random.uniform(0.1, 1.0, 9)) - 3.0
    x, y = random.uniform(-4.0, 4.0, 50), random.normal(size=9) + 0.1
    endless = np.array([-np.inf, *t[1:]])
    for knots, values in (
        (t, y), (t, y * (1 + 2j)), (endless, y), (t, np.array([1.0, -np.inf, *y[2:]])), (t[:2], y[:2]),
    ):  # fmt: skip
        f = lambda x, knots=knots, values=values: np.interp(x, knots, values)
        compiled = tg.compile(lambda x, f=f: f(x) * 1.0, wait=True)
        for call in (f, *[compiled] * 4):
            found = call(tg.tensor(x, requires_grad=True)).detach().numpy()
            np.testing.assert_array_equal(found, f(x))
    gradient = tg.func.grad(lambda x: np.sum(np.interp(x, [-np.inf, 0.0, 2.0], [3.0, 3.5, 4.0])))
    np.testing.assert_array_equal(gradient(np.array([-2.0, 1.0])), [0.0, 0.25])
    gradient = tg.func.grad(lambda x: np.sum(np.interp(x, [0.0, 1.0, 2.0], [np.nan, 3.5, np.nan])))
    np.testing.assert_array_equal(gradient(np.array([-2.0, 3.0])), [0.0, 0.0])  # beyond the ends


def test_interp_where_it_jumps():
    x, t, y = np.array([0.0, 1.0, 2.0, np.nan]), [0.0, 1.0, 1.0, 2.0, 2.0], [0.0, 1.0, 5.0, 6.0, 9.0]
    leaf = tg.tensor(x, requires_grad=True)
    found = np.interp(leaf, t, y)
    np.testing.assert_array_equal(found.detach().numpy(), np.interp(x, t, y))
    assert tg.grad(found[1], leaf)[0].tolist() == [0.0, 1.0, 0.0, 0.0]


def test_steps_of_tensors(random):
    """`tg.arange` and its kin keep the history of their ends."""
    a, b, s = (tg.tensor(v, requires_grad=True) for v in (0.5, 3.0, 0.4))
    out = tg.arange(a, b, s)
    np.testing.assert_array_equal(out.detach().numpy(), np.arange(0.5, 3.0, 0.4))
    found = tg.grad(np.sum(out), (a, s))
    assert [g.item() for g in found] == [7.0, 21.0]
    assert tg.gradcheck(lambda a, b: tg.linspace(a, b, 4), [a, b])
    assert tg.grad(np.sum(tg.full((2, 2), a)), a)[0].item() == 4.0
    assert tg.grad(np.sum(tg.full_like(tg.zeros(3), a)), a)[0].item() == 3.0
    assert tg.arange(b).tolist() == [0.0, 1.0, 2.0]


REFUSED = [
    ("diff", lambda x: np.diff(x, -1), ValueError, "negative"),
    ("diff, a fraction", lambda x: np.diff(x, 1.5), TypeError, "integer"),
    ("diff, axis", lambda x: np.diff(x, axis=2), errors.AxisError, "axis 2"),
    ("diff, ends", lambda x: np.diff(x, prepend=np.ones(4)), ValueError, "concatenate"),
    ("ediff1d", lambda x: np.ediff1d(x, to_end=1j), TypeError, "complex"),
    ("gradient", lambda x: np.gradient(x[:, :1]), errors.ShapeError, "needs 2"),
    ("gradient, edge", lambda x: np.gradient(x, edge_order=3), ValueError, "edge_order"),
    ("gradient, spacings", lambda x: np.gradient(x, 1, 2, 3), TypeError, "3 spacings"),
    ("gradient, coordinates", lambda x: np.gradient(x, np.ones(5), axis=0), errors.ShapeError, "coordinates"),
    ("gradient, one array", lambda x: np.gradient(x, np.ones(3)), TypeError, "each"),
    ("trapezoid", lambda x: np.trapezoid(x, axis=4), errors.AxisError, "axis 4"),
    ("trapezoid, x", lambda x: np.trapezoid(x, np.ones(7)), ValueError, "operands"),
    ("interp", lambda x: np.interp(x, [1.0, 2.0], [1.0]), errors.ShapeError, "xp and fp"),
    ("interp, nothing", lambda x: np.interp(x, [], []), errors.ShapeError, "xp and fp"),
    ("interp, period", lambda x: np.interp(x, [1.0], [1.0], period=0), ValueError, "period"),
    ("convolve", lambda x: np.convolve(x, [1.0]), errors.ShapeError, "two vectors"),
    ("convolve, empty", lambda x: np.convolve(x[0], []), errors.ShapeError, "empty"),
    ("convolve, mode", lambda x: np.convolve(x[0], [1.0], "other"), ValueError, "mode"),
    ("correlate", lambda x: np.correlate(x, x), errors.ShapeError, "two vectors"),
    ("linspace", lambda x: np.linspace(x, 1, -1), ValueError, "negative"),
    ("linspace, shapes", lambda x: np.linspace(x, np.ones(4)), ValueError, "linspace|subtract"),
    ("geomspace, zero", lambda x: np.geomspace(x, 0.0), ValueError, "zero"),
    ("geomspace, signs", lambda x: np.geomspace(x[0], -1.0), errors.UnsupportedOpError, "sign"),
    ("logspace", lambda x: np.logspace(x, 1, -2), ValueError, "negative"),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_refusals(row):
    with pytest.raises(row[2], match=row[3]):
        row[1](tg.tensor([[0.5, 2.0, 3.0], [-1.5, 1.0, 0.2]], requires_grad=True))
