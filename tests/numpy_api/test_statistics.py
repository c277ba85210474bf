"""Averages, covariances, and reductions over some of the elements."""

import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import errors

from .rows import POSITIVE, check, holed, quietly

A, V, S, T3 = (2, 3), (3,), (), (2, 3, 2)
B = np.array([[True, False, True], [False, True, True]])
NAN = {
    "nansum": np.nansum, "nanprod": np.nanprod, "nanmean": np.nanmean, "nanvar": np.nanvar,
     "nanstd": np.nanstd,
    "nanmax": np.nanmax, "nanmin": np.nanmin,
}  # fmt: skip
FULL = {
    "sum": np.sum,
    "prod": np.prod,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "var": np.var,
    "std": np.std,
}


def initial(name):
    return {"initial": 0.3} if "max" in name or "min" in name else {}


ROWS = [
    (f"{name} {form}", quietly(lambda x, f=f, form=form: f(holed(x), **form)), [T3])
    for name, f in NAN.items()
    for form in ({}, {"axis": 1}, {"axis": (0, -1), "keepdims": True}, {"axis": -2, "dtype": float})
    if "dtype" not in form or not ("max" in name or "min" in name)
] + [
    (f"{name} where",
     quietly(lambda x, f=f, name=name: f(holed(x) if "nan" in name else x, where=B, **initial(name)) *
                              f(x, axis=1, where=B[:1], **initial(name))), [A])
    for name, f in {**NAN, **FULL}.items()
] + [
    (f"{name} of some", lambda x,
     name=name: getattr(x, name)(where=B, axis=0, keepdims=True, **initial(name)), [A])
    for name in FULL if name not in ("var", "std")
] + [
    (f"{name} with initial", lambda x, f=f: f(x, initial=0.4) * f(x, axis=0, initial=0.2), [A])
    for name, f in {**NAN, **FULL}.items() if name[-3:] not in ("ean", "var", "std")
] + [
    (f"{name} with initial Tensor", lambda x, y, f=f: f(x, axis=0, initial=y), [A, S])
    for name, f in FULL.items() if name in ("sum", "prod")
] + [
    (f"{name}, correction", lambda x,
     f=f: f(x, correction=1, axis=1) * f(x, axis=1, mean=np.mean(x, 1, keepdims=True)),
     [A])
    for name, f in {**FULL, **NAN}.items() if name[-3:] in ("var", "std")
] + [
    ("var, ddof and where",
     lambda x: np.var(x, ddof=1, where=B, axis=1) + x.var(1, where=B, ddof=0.5,
     mean=x.mean(1, keepdims=True)), [A]),
    ("nancumsum", lambda x: np.nancumsum(holed(x)) * np.nancumsum(x, 1, dtype=float).sum(), [A]),
    ("nancumprod", lambda x: np.nancumprod(holed(x)) * np.nancumprod(x, 1, dtype=float).sum(), [A]),
    ("ptp", lambda x: np.ptp(x) * np.ptp(x, axis=0) + np.ptp(x, (0, 1), keepdims=True)[0], [A]),
    ("average", lambda x: np.average(x) * np.average(x, 0) + np.average(x, axis=(0, 1), keepdims=True)[0],
     [A]),
    ("average, weights", lambda x, w: np.average(x, weights=w), [A, (POSITIVE, A)]),
    ("average, weights of an axis", lambda x,
     w: np.average(x, 1, w) * np.average(x, -1, weights=w, keepdims=True)[0],
     [A, (POSITIVE, V)]),
    ("average, weights of axes", lambda x, w: np.average(x, (2, 0), w), [T3, (POSITIVE, (2, 2))]),
    ("average, returned", lambda x, w: np.average(x, 0, w, returned=True), [A, (POSITIVE, A)]),
    ("average, returned without weights", lambda x: np.average(x, 0, returned=True), [A]),
    ("average of integers", lambda w: np.average(np.arange(3), weights=w), [(POSITIVE, V)]),
    ("cov", lambda x: np.cov(x), [(2, 4)]), ("cov of columns", lambda x: np.cov(x, rowvar=False), [(4, 2)]),
    ("cov of a vector", lambda x: np.cov(x), [(5,)]),
    ("cov of two", lambda x, y: np.cov(x, y), [(4,), (4,)]),
    ("cov of two matrices", lambda x, y: np.cov(x, y, rowvar=False, bias=True), [(4, 2), (4, 1)]),
    ("cov, ddof", lambda x: np.cov(x, ddof=0) * np.cov(x, ddof=2) + np.cov(x, bias=True, dtype=np.float64),
     [(2, 4)]),
    ("cov, fweights", lambda x: np.cov(x, fweights=[1, 2, 0, 3]), [(2, 4)]),
    ("cov, aweights", lambda x, w: np.cov(x, aweights=w), [(2, 4), (POSITIVE, (4,))]),
    ("cov, both", lambda x, w: np.cov(x, aweights=w, fweights=[1, 2, 1, 3]) + np.cov(x, aweights=w, ddof=0),
     [(2, 4), (POSITIVE, (4,))]),
    ("corrcoef", lambda x: np.corrcoef(x), [(3, 5)]),
    ("corrcoef of two", lambda x, y: np.corrcoef(x, y)[0, 1], [(5,), (5,)]),
    ("corrcoef of columns", lambda x: np.corrcoef(x, rowvar=False), [(5, 2)]),
    ("corrcoef of a vector", lambda x: np.corrcoef(x) + np.sum(x), [(5,)]),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_call(row, random):
    check(*row[1:], random)


def leaf(*values):
    return tg.tensor(values, requires_grad=True)


def slope(function, *values):
    x = leaf(*values)
    (g,) = tg.grad(quietly(function)(x), x)
    return g.tolist()


def test_nansum_of_nan():
    assert slope(np.nansum, np.nan, 1.0) == [0.0, 1.0]


def test_nanmax_ties_share_evenly():
    assert slope(np.nanmax, 2.0, np.nan, 2.0, 1.0) == [0.5, 0.0, 0.5, 0.0]
    assert slope(np.nanmin, 1.0, np.nan, 1.0, 2.0) == [0.5, 0.0, 0.5, 0.0]


def test_max_with_initial_ties_share_evenly():
    assert slope(lambda x: np.max(x, initial=2.0), 2.0, 1.0) == [0.5, 0.0]


def test_std_of_equal_elements():
    assert slope(np.nanstd, 2.0, 2.0, np.nan) == [0.0, 0.0, 0.0]
    assert slope(lambda x: np.std(x, where=[True, True, False]), 2.0, 2.0, 9.0) == [0.0, 0.0, 0.0]


def test_corrcoef_of_what_is_perfectly_correlated():
    """Rounding beyond 1 is taken back in the value; the derivative is 0 up to rounding, and never nan."""
    x = tg.tensor([[1.0, 2.0, 4.0], [2.0, 4.0, 8.0]], requires_grad=True)
    out = np.corrcoef(x)
    assert np.all(np.abs(out.detach().numpy()) <= 1)
    (g,) = tg.grad(np.sum(out), x)
    np.testing.assert_allclose(g.numpy(), 0, atol=1e-15)


@pytest.mark.parametrize("name", sorted(NAN))
def test_nothing_but_nan(name):
    values = np.array([[np.nan, np.nan], [1.0, 2.0]])
    x = tg.tensor(values, requires_grad=True)
    empty = name not in ("nansum", "nanprod")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        out = NAN[name](x, axis=1)
    assert bool([w for w in found if w.category is RuntimeWarning]) == empty
    np.testing.assert_array_equal(out.detach().numpy(), quietly(NAN[name])(values, axis=1))
    (g,) = tg.grad(out[1], x)
    assert np.all(np.isfinite(g.numpy()))
    np.testing.assert_array_equal(g.numpy()[0], 0)


REFUSED = [
    ("where of max", lambda x: np.max(x, where=x > 0), ValueError, "initial"),
    ("var, both names", lambda x: np.var(x, ddof=1, correction=1), ValueError, "ddof"),
    ("nanvar, both names", lambda x: np.nanvar(x, ddof=1, correction=1), ValueError, "ddof"),
    ("var, axis", lambda x: np.var(x, axis=3), errors.AxisError, "axis 3"),
    ("ptp", lambda x: np.ptp(x, axis=3), errors.AxisError, "axis 3"),
    ("nansum", lambda x: np.nansum(x, axis=3), errors.AxisError, "axis 3"),
    ("nansum, out", lambda x: np.nansum(x, out=np.zeros(())), errors.UnsupportedOpError, "out="),
    ("nanmean, axis", lambda x: np.nanmean(x, axis=3), errors.AxisError, "axis"),
    ("nanmax, axis", lambda x: np.nanmax(x, axis=3), errors.AxisError, "axis"),
    ("average", lambda x: np.average(x, weights=np.ones(3)), TypeError, "need an axis"),
    ("average, weights", lambda x: np.average(x, 0, weights=np.ones(5)), errors.ShapeError, "weights"),
    ("average, zero", lambda x: np.average(x, 1, weights=np.zeros(3)), ZeroDivisionError, "divided, is 0"),
    ("cov, dimensions", lambda x: np.cov(x[None]), errors.ShapeError, "two dimensions"),
    ("cov, ddof", lambda x: np.cov(x, ddof=0.5), ValueError, "integer"),
    ("cov, fweights", lambda x: np.cov(x, fweights=[1, 2]), errors.ShapeError, "fweights"),
    ("cov, fractions", lambda x: np.cov(x, fweights=[1, 2.5, 1]), TypeError, "integers"),
    ("cov, negative", lambda x: np.cov(x, fweights=[1, -2, 1]), ValueError, "negative"),
    ("cov, aweights", lambda x: np.cov(x, aweights=[1.0]), errors.ShapeError, "aweights"),
    ("cov, negative aweights", lambda x: np.cov(x, aweights=[1.0, -1, 1]), ValueError, "negative"),
    ("corrcoef", lambda x: np.corrcoef(x, np.ones(2)), errors.ShapeError, "concatenate"),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_refusals(row):
    with pytest.raises(row[2], match=row[3]):
        row[1](tg.tensor([[0.5, 2.0, 3.0], [-1.5, 1.0, 0.2]], requires_grad=True))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool", "float32"])
@pytest.mark.parametrize("function", [np.sum, np.prod, np.mean], ids=lambda f: f.__name__)
def test_a_dtype_asked_for_is_that_of_the_result(function, dtype):
    a = np.array([[200, 100, 7], [1, 2, 3]], np.uint8)
    for given in ({}, {"axis": 0}, {"where": np.array([True, False, True])}):
        found, expected = (function(x, dtype=dtype, **given) for x in (tg.tensor(a), a))
        assert found.dtype == expected.dtype == dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, complex])
@pytest.mark.parametrize("name", ["var", "std", "nanvar", "nanstd"])
def test_spread_in_a_dtype_is_of_that_dtype(name, dtype):
    values = np.array([[0.3, 1.9, np.nan], [1.4, 0.2, 0.6]])[:, : None if "nan" in name else 2]
    f = lambda x: getattr(np, name)(x, axis=1, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        wanted = f(values)  # NumPy takes a complex mean off real numbers
    x = tg.tensor(values, requires_grad=True)
    found = f(x)
    assert found.dtype == wanted.dtype == dtype
    np.testing.assert_allclose(found.detach(), wanted, rtol=1e-6)
    (g,) = tg.grad(np.sum(found).real, x)
    (plain,) = tg.grad(np.sum(getattr(np, name)(x, axis=1)), x)
    np.testing.assert_allclose(g, plain, rtol=1e-6)
