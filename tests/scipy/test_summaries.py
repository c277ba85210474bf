"""Means, scores and moments of `scipy.stats`: values as SciPy's, derivatives by differences."""

import numpy as np
import pytest
import scipy.stats

import tapegrad as tg
import tapegrad.scipy as ts
from tapegrad.autograd import gradcheck, gradgradcheck
from tapegrad.errors import UnsupportedOpError

RANDOM = np.random.default_rng(5)
A, W = RANDOM.uniform(0.5, 3.0, size=(5, 3)), RANDOM.uniform(0.2, 1.0, size=(5, 3))
CASES = [
    ("gmean", (A,), {}), ("gmean", (A,), {"axis": None}), ("gmean", (A,), {"axis": 1, "keepdims": True}),
    ("gmean", (A, W), {"weights": W}), ("hmean", (A,), {}), ("hmean", (A, W), {"axis": 1, "weights": W}),
    ("pmean", (A, W), {"p": 1.7, "axis": 1, "weights": W}), ("pmean", (A,), {"p": -2}),
    ("pmean", (A,), {"p": 0}),
    ("zscore", (A,), {}), ("zscore", (A,), {"axis": None, "ddof": 1}), ("zmap", (A, W), {"compare": W}),
    ("sem", (A,), {}), ("sem", (A,), {"axis": None, "ddof": 0}), ("variation", (A,), {"axis": 1, "ddof": 1}),
    ("skew", (A,), {}), ("skew", (A,), {"axis": None, "bias": False}), ("kurtosis", (A,), {"axis": 1}),
    ("kurtosis", (A,), {"bias": False, "fisher": False}), ("moment", (A,), {"order": 3}),
    ("moment", (A,), {"order": [2, 4], "axis": 1}),
    ("moment", (A,), {"order": 2, "axis": None, "center": 0.3}),
]  # fmt: skip


@pytest.mark.parametrize("row", range(len(CASES)))
def test_summaries(row):
    name, arrays, given = CASES[row]
    second = next((key for key, x in given.items() if x is W), None)

    def f(x, *more):
        return getattr(ts.stats, name)(x, **{**given, **({second: more[0]} if more else {})})

    inputs = [tg.tensor(x, requires_grad=True) for x in arrays]
    theirs = getattr(scipy.stats, name)(A, **given)
    np.testing.assert_allclose(f(*inputs).detach().numpy(), theirs, rtol=1e-14, atol=1e-15)
    np.testing.assert_array_equal(f(*arrays), theirs)
    assert gradcheck(f, inputs, check_forward_ad=True)
    assert gradgradcheck(f, inputs, fast_mode=True)


def test_the_exponent_of_a_power_mean():
    p = tg.tensor(1.7, requires_grad=True)
    assert gradcheck(lambda x, p: ts.stats.pmean(x, p), [tg.tensor(A[:, 0], requires_grad=True), p])
    with pytest.raises(UnsupportedOpError, match="exponent of 0"):
        ts.stats.pmean(A, tg.tensor(0.0, requires_grad=True))


def test_the_ends_of_means():
    """Numbers far apart, 0 and negative ones."""
    x = tg.tensor([1e-300, 1e300], requires_grad=True)
    found = ts.stats.gmean(x)
    np.testing.assert_allclose(found.item(), scipy.stats.gmean(x.detach().numpy()), rtol=1e-12)
    np.testing.assert_allclose((tg.grad(found, x)[0] * x.detach()).numpy(), 0.5 * found.item(), rtol=1e-12)
    zero = tg.tensor([0.0, 2.0], requires_grad=True)
    assert ts.stats.gmean(zero).item() == ts.stats.hmean(zero).item() == 0
    with pytest.raises(UnsupportedOpError, match="negative"):
        ts.stats.hmean(tg.tensor([-1.0, 2.0], requires_grad=True))
    with pytest.raises(UnsupportedOpError, match="nan_policy='omit'"):
        ts.stats.zscore(zero, nan_policy="omit")
    assert ts.stats.skew(tg.tensor(np.array([1, 2, 6]))) == scipy.stats.skew([1, 2, 6])
