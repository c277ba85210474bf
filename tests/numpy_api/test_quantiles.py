"""Medians and quantiles, by every method of NumPy's."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import errors
from tests.tiers import NEWEST_NUMPY

from .rows import check, holed, quietly

A, V, S, T3 = (2, 3), (5,), (), (2, 3, 2)
METHODS = [
    "inverted_cdf", "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf", "hazen",
     "weibull",
    "linear", "median_unbiased", "normal_unbiased", "lower", "higher", "midpoint", "nearest",
]  # fmt: skip
Q = np.array([0.0, 0.13, 0.5, 0.77, 1.0])

ROWS = [
    (f"{name} {form}", lambda x, f=f, form=form, name=name: f(holed(x) if "nan" in name else x, **form), [T3])
    for name, f in (("median", np.median), ("nanmedian", np.nanmedian))
    for form in ({}, {"axis": 1}, {"axis": (0, -1), "keepdims": True}, {"axis": 0}, {"keepdims": True})
] + [
    ("median of an odd number", lambda x: np.median(x) * np.nanmedian(x[1:]), [V]),
    ("median of one", lambda x: np.median(x), [(1,)]),
    ("quantile", lambda x: np.quantile(x, 0.3) * np.quantile(x, [0.1, 0.9], axis=0)[1, 0], [A]),
    ("quantile, axes", lambda x: np.quantile(x, Q.reshape(1, 5), axis=(2, 0), keepdims=True), [T3]),
    ("quantile, q", lambda x, q: np.quantile(x, 0.5 + q / 4, axis=1), [A, (2,)]),
    ("quantile, one q", lambda q: np.quantile(np.arange(5.0) ** 2, 0.5 + q / 4), [S]),
    ("percentile", lambda x, q: np.percentile(x, 50 + 20 * q) * np.percentile(x, [30, 60], 0)[0], [A, S]),
    ("nanpercentile", lambda x, q: np.nanpercentile(holed(x), 50 + 20 * q, axis=1), [A, S]),
    ("nanquantile, q", lambda x, q: np.nanquantile(holed(x), 0.5 + q / 4, axis=1, keepdims=True),
     [A, (2, 2)]),
    ("quantile of weights", lambda x: np.quantile(x, Q, weights=[1, 2, 0, 1, 3], method="inverted_cdf"), [V]),
    ("quantile of weights of an axis",
     lambda x: np.quantile(x, Q, 1, weights=np.arange(1, 4), method="inverted_cdf"),
     [A]),
    ("nanquantile of weights", lambda x: np.nanquantile(
        holed(x), Q, weights=np.arange(1, 7).reshape(2, 3), method="inverted_cdf"), [A]),
] + [  # older versions pair other weights with the elements
    ("quantile of weights of all", lambda x: np.quantile(
        x, 0.4, (0, 1), weights=np.arange(1, 7).reshape(2, 3), method="inverted_cdf"), [A]),
] * NEWEST_NUMPY + [
    (f"quantile {method}", lambda x, method=method: np.quantile(x, Q, method=method),
     [V]) for method in METHODS
] + [
    (f"nanquantile {method}", lambda x, m=method: np.nanquantile(holed(x), Q, axis=1, method=m), [A])
    for method in METHODS
] + [
    (f"q of {method}", lambda x, q, m=method: np.quantile(x, 0.5 + q / 3, method=m), [V, (4,)])
    for method in METHODS
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_call(row, random):
    check(*row[1:], random)


def slope(function, *values):
    x = tg.tensor(values, requires_grad=True)
    (g,) = tg.grad(function(x), x)
    return g.tolist()


def test_median_of_two_middle_elements():
    assert slope(np.median, 1.0, 2.0, 2.0, 3.0) == [0.0, 0.5, 0.5, 0.0]
    assert slope(np.median, 1.0, 2.0, 4.0, 3.0) == [0.0, 0.5, 0.0, 0.5]


def test_median_ties_share_evenly_over_all_and_by_position_along_an_axis():
    np.testing.assert_allclose(slope(np.median, 2.0, 2.0, 2.0), [1 / 3] * 3, rtol=1e-15)
    assert slope(lambda x: np.median(x, axis=0), 2.0, 2.0, 2.0) == [0.0, 1.0, 0.0]
    x = tg.tensor([0.1, 0.1, 0.1], requires_grad=True)
    assert np.median(x).item() == 0.1


def test_quantile_ties_are_positional():
    assert slope(lambda x: np.quantile(x, 0.5), 1.0, 1.0, 2.0) == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("beside", [[2.0, 7.0, 5.0, 3.0], [2.0, np.nan, 5.0, 3.0]], ids=["numbers", "nan"])
def test_quantile_ties_of_one_lane_alone(beside):
    values = np.array([[0.5, -0.0, 0.0, 4.0], beside, [1.0, 1.0, 1.0, 1.0]])
    x = tg.tensor(values, requires_grad=True)
    out = np.quantile(x, 0.25, axis=1, method="lower")
    (g,) = tg.grad(out.sum(), x)
    order = values.argsort(axis=1, kind="stable")
    places = np.where(np.isnan(values).any(axis=1), order[:, -1], order[:, 0])
    np.testing.assert_array_equal(g.numpy(), np.eye(4)[places])


@pytest.mark.parametrize(
    "function", [np.median, lambda x: np.quantile(x, 0.25), lambda x: np.percentile(x, 60)]
)
def test_nan_spreads(function):
    x = tg.tensor([1.0, np.nan, 3.0], requires_grad=True)
    out = function(x)
    assert np.isnan(out.item())
    (g,) = tg.grad(out, x)
    assert g.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("function", [np.nanmedian, lambda x, axis: np.nanquantile(x, 0.25, axis)])
def test_nothing_but_nan(function):
    values = np.array([[np.nan, np.nan], [1.0, 4.0]])
    x = tg.tensor(values, requires_grad=True)
    out = quietly(function)(x, axis=1)
    np.testing.assert_array_equal(out.detach().numpy(), quietly(function)(values, axis=1))
    (g,) = tg.grad(out[1], x)
    assert g.tolist()[0] == [0.0, 0.0]
    assert sum(g.tolist()[1]) == 1.0


def test_the_ends_are_exact():
    x = tg.tensor([1e300, -1e300, 0.1], requires_grad=True)
    assert np.quantile(x, [0.0, 0.5, 1.0]).tolist() == [-1e300, 0.1, 1e300]


REFUSED = [
    ("median, axis", lambda x: np.median(x, axis=2), errors.AxisError, "axis 2"),
    ("median of nothing", lambda x: np.median(x[:0]), ValueError, "no elements"),
    ("median, out", lambda x: np.median(x, out=np.zeros(())), errors.UnsupportedOpError, "out="),
    ("quantile, q", lambda x: np.quantile(x, 1.5), ValueError, "range"),
    ("quantile, method", lambda x: np.quantile(x, 0.5, method="other"), ValueError, "method"),
    ("quantile, axis", lambda x: np.quantile(x, 0.5, axis=2), errors.AxisError, "axis 2"),
    ("quantile, weights", lambda x: np.quantile(x, 0.5, weights=np.ones((2, 3))), ValueError,
     "inverted_cdf|weights"),
    ("quantile of complex numbers", lambda x: np.quantile(x * 1j, 0.5), TypeError, "orders real numbers"),
    ("percentile, q", lambda x: np.percentile(x, 101), ValueError, "range"),
    ("nanpercentile, q", lambda x: np.nanpercentile(x, -1), ValueError, "range"),
    ("nanquantile of nothing", lambda x: np.nanquantile(x[:0], 0.5), ValueError, "no elements"),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_refusals(row):
    with pytest.raises(row[2], match=row[3]):
        row[1](tg.tensor([[0.5, 2.0, 3.0], [-1.5, 1.0, 0.2]], requires_grad=True))
