"""Functions of arrays inside compiled code: values NumPy's, gradients beside differences."""

import contextlib

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import UnsupportedOpError
from tests.native.memory import counted

X = np.array([0.7, 0.31, 0.55, 0.9, 0.42])
W = np.array([2.0, -1.0, 3.0, 0.5, 1.5])


def selections(x):
    m = x[:4].copy().reshape(2, 2)
    s = np.triu(m)[0, 1] * np.tril(m)[1, 0] + np.triu(m, 1).sum() * np.tril(m, -1).sum()
    s += np.extract(x > 0.5, x)[1] * x[0] + np.append(x, x[0] * 2)[5] + (np.append(x, x[:2] * x[1]) ** 2)[6]
    return s + x.astype(np.float64)[1] * x[2] + np.searchsorted(W, x[0]) * x[3]


def order_statistics(x):
    s = np.median(x * x) * np.percentile(x, 30) + np.quantile(x[:4], 0.3) + np.quantile(x, 1.0) * x[0]
    return s + np.median(x[:4]) + np.percentile(x, 25)


def averages(x):
    y = np.where(x > 0.6, np.nan, x)
    return np.average(x * x) + np.average(x, weights=W * x) + np.nansum(y * y) * np.nanmean(y)


def products(x):
    s = (np.convolve(x, W[:3]) * np.convolve(W[:2], x[1:])[0]).sum() + np.correlate(x, x[:2])[1]
    s += np.cross(x[:3], x[2:] * x[0])[0] + np.cross(W[:3], x[:3])[2] + (np.kron(x[:2], x[3:]) ** 2)[3]
    return s + np.bincount(np.array([0, 2, 2, 1, 0]), x * x)[2] * x[4]


def without_nan(x):
    y = np.where(x > 0.6, np.nan, x)
    s = np.nanmax(y) * np.nanmin(y) + np.nanprod(y) * np.nanvar(y) + np.nanstd(y) * np.nanmedian(y)
    s += np.nancumsum(y)[3] * np.nancumprod(y)[4] + np.nanpercentile(y, 30) * np.nanquantile(y, 0.7)
    return s + np.nansum(y * np.nan) + np.nanprod(y * np.nan)


def tables(x):
    m = np.append(x, x[0] * x[1]).reshape(2, 3)
    s = np.corrcoef(m)[1, 0] * x[2] + (x[4] if np.isscalar(x[0]) else 0.0)
    for k in (-1, 1, 5):
        s += np.trace(m, k) ** 2 + np.diff(x, 2 + k).sum() ** 2 + np.vander(x, 6 + k, True)[2, 3]
    s += np.vander(x)[1, 2] + np.ediff1d(m)[2] * x[0]
    s += np.clip(x, None, x[2])[0] * np.clip(x, x * x, 0.8)[3]
    q = np.quantile(x, np.array([0.2, 0.6]))
    return s + q[0] * q[1] + np.percentile(x, 50.0 * x[3])


SLOW = [pytest.param(f, marks=pytest.mark.slow) for f in (without_nan, tables, order_statistics)]


@pytest.mark.parametrize("function", [selections, averages, products, *SLOW])
def test_value_and_gradient(function):
    compiled, t = tg.njit(function), tg.tensor(X, requires_grad=True)
    y = compiled(t)
    plain = compiled.primal
    assert y.item() == pytest.approx(plain(X), rel=1e-13)
    expected = [(plain(X + 1e-6 * e) - plain(X - 1e-6 * e)) / 2e-6 for e in np.eye(X.size)]
    np.testing.assert_allclose(tg.grad(y, t)[0], expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("text", ["x.astype(np.float32)[0]", "np.cov(x)", "np.unique(x)[1]"])
def test_others_are_refused(text):
    space = {"np": np}
    exec(f"def function(x):\n    return {text}", space)
    with pytest.raises(UnsupportedOpError, match="What to do"):
        tg.njit(space["function"])(tg.tensor(X, requires_grad=True))


@pytest.mark.quick
def test_misuse_raises():
    def outside(x):
        return np.quantile(x, 1.5)

    def short(x):
        return np.cross(x, x)[0]

    for function, words in ((outside, "quantiles"), (short, "three")):
        with pytest.raises(ValueError, match=words):
            tg.njit(function)(tg.tensor(X, requires_grad=True))


def of_nothing(x):
    y = np.where(x > 0.6, np.nan, x)
    return np.median(y), np.quantile(y, 0.2), np.nanmax(x * np.nan), np.nanmean(x * np.nan), np.median(x[:0])


def test_nan_stays_nan():
    assert np.isnan([y.item() for y in tg.njit(of_nothing)(tg.tensor(X, requires_grad=True))]).all()


def sorted_with_nan(x):
    w, y, m = np.array([1.0, 10.0, 100.0]), x.copy(), x.reshape((2, 2))
    y.sort()
    s = np.sum(np.sort(x)[:3] * w) + np.sum(y[:3] * w) * 2.0
    s += np.sum(x[np.argsort(x)][:3] * w) * 3.0 + np.sum(x[x.argsort(kind="mergesort")][:3] * w) * 5.0
    s += np.where(np.isnan(np.sort(m)), 0.0, np.sort(m))[0, 0] * 7.0
    return s + 1e3 * (np.argmax(x) + 2 * np.argmin(x) + 3 * x.argmax() + 5 * np.argmax(m, 0)[1])


@pytest.mark.parametrize("x", [[np.nan, 2.0, -1.0, 3.0], [2.0, np.nan, -1.0, 3.0], [3.0, 1.0, np.inf, 1.0]])
def test_nan_is_sorted_to_the_end_and_found_as_an_extreme(x):
    found, wanted = (
        tg.func.value_and_grad(f)(np.array(x)) for f in (tg.njit(sorted_with_nan), sorted_with_nan)
    )
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_array_equal(found[1], wanted[1])


def lists_and_plain_arrays_sorted(x):
    whole, numbers, plain = [3, 1, 2], [x[0], x[1], x[2]], np.array([3.0, 1.0, 2.0])
    whole.sort()
    numbers.sort(reverse=True)
    plain.sort()
    return x[whole[0]] + numbers[0] * 10.0 + numbers[2] * plain[2] + x[np.argmin(plain)]


def test_other_lists_and_arrays_are_sorted_as_ever():
    x = np.array([3.0, 1.0, 2.0])
    pairs = (
        tg.func.value_and_grad(f)(x)
        for f in (tg.njit(lists_and_plain_arrays_sorted), lists_and_plain_arrays_sorted)
    )
    for found, wanted in zip(*pairs, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_lists_of_numbers_and_arrays_are_given_back_in_ten_thousand_calls():
    @tg.njit
    def f(x):
        items, rows = [x[0] * 1.0], [x * 2.0]
        for k in range(3):
            items.append(items[-1] * x[k])
            rows.append(rows[-1] * x + np.sin(x))
        if x[0] < 0.0:
            raise ValueError("negative")
        return np.sum(rows[-1] * rows[1]) + items[-1] + np.sum(np.outer(x, x) @ x)

    gradient, x = tg.func.grad(f), np.array([0.3, 0.4, 0.5])

    def call():
        gradient(x)
        with contextlib.suppress(ValueError):
            gradient(-x)

    call()
    found = counted(call, 5000)
    assert found.alloc == found.free > 0 and found.mi_alloc == found.mi_free > 0
