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
    given = {key: x.astype(np.float32) if x is W else x for key, x in given.items()}
    single = f(*(tg.tensor(x.astype(np.float32), requires_grad=True) for x in arrays))
    assert single.dtype == np.float32  # SciPy's own is double for some of them, in some versions
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


P, Q = RANDOM.uniform(0.1, 1.0, size=(2, 4, 3))
B = A + RANDOM.normal(size=(5, 3))
RELATIONS = [
    (lambda m, p, q: m.entropy(p), P, Q), (lambda m, p, q: m.entropy(p, axis=None, base=2), P, Q),
    (lambda m, p, q: m.entropy(p, q, axis=1, keepdims=True), P, Q),
    (lambda m, p, q: m.entropy(p, q[:, :1]), P, Q), (lambda m, x, y: m.pearsonr(x, y).statistic, A, B),
    (lambda m, x, y: m.pearsonr(x, y, axis=1).pvalue, A, B),
    (lambda m, x, y: m.pearsonr(x, y[:, :1])[0], A, B),
    (lambda m, x, y: m.pearsonr(x, y, axis=None)[0], A, B),
    (lambda m, x, y: m.pearsonr(x, y, alternative="less")[1], A[:, 0], B[:, 0]),
    *[(lambda m, x, y, k=k: m.linregress(x, y)[k], A[:, 0], B[:, 0]) for k in range(5)],
    (lambda m, x, y: m.linregress(x, y, "greater").pvalue, A[:, 0], B[:, 0]),
    (lambda m, x, y: m.linregress(x, y).intercept_stderr, A[:, 0], B[:, 0]),
    (lambda m, x, y: m.gaussian_kde(x)(y), A[:, 0], B[:2, 0]),
    (lambda m, x, y: m.gaussian_kde(x.T, "silverman").logpdf(y.T), A[:, :2], B[:3, :2]),
    (lambda m, x, w: m.gaussian_kde(x, 0.4, w).pdf([0.5, 1.0]), A[:, 0], W[:, 0]),
    (lambda m, x, w: m.gaussian_kde(x, weights=w)([0.5, 1.0]), A[:, 0], W[:, 0]),
]  # fmt: skip


@pytest.mark.parametrize("row", range(len(RELATIONS)))
def test_relations(row):
    f, *arrays = RELATIONS[row]
    inputs, theirs = [tg.tensor(x, requires_grad=True) for x in arrays], f(scipy.stats, *arrays)
    np.testing.assert_allclose(f(ts.stats, *inputs).detach().numpy(), theirs, rtol=1e-11)
    np.testing.assert_array_equal(f(ts.stats, *arrays), theirs)
    of = lambda *xs: f(ts.stats, *xs)
    assert gradcheck(of, inputs, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(of, inputs, fast_mode=True)


def test_the_ends_of_relations():
    """A probability of 0, a line through two points, results of SciPy's that are more than a tuple."""
    p = tg.tensor([0.0, 0.25, 0.75], requires_grad=True)
    (g,) = tg.grad(ts.stats.entropy(p), p)
    wanted = -np.log([0.25, 0.75]) - scipy.stats.entropy([0.25, 0.75])
    np.testing.assert_allclose(g.numpy()[1:], wanted, rtol=1e-13)
    assert g[0] == np.inf
    y = tg.tensor([1.0, 3.0], requires_grad=True)
    line = ts.stats.linregress([0.0, 1.0], y)
    assert tg.grad(line.slope, y)[0].tolist() == [-1, 1]
    np.testing.assert_array_equal(line.pvalue, scipy.stats.linregress([0.0, 1.0], [1.0, 3.0]).pvalue)
    assert ts.stats.pearsonr(y, [2.0, 5.0]).statistic == 1
    still = tg.tensor(A[:, 0])
    for name, other in (("pearsonr", B[:, 0]), ("linregress", B[:, 0]), ("ttest_1samp", 0.5)):
        found, theirs = (getattr(m, name)(x, other) for m, x in ((ts.stats, still), (scipy.stats, A[:, 0])))
        np.testing.assert_array_equal([x.item() for x in found], tuple(theirs))
        assert vars(found).keys() == vars(theirs).keys() and isinstance(found[0], tg.Tensor)
    found = ts.stats.pearsonr(tg.tensor(A[:, 0], requires_grad=True), B[:, 0]).confidence_interval()
    theirs = scipy.stats.pearsonr(A[:, 0], B[:, 0]).confidence_interval()
    assert found.low.item() == pytest.approx(theirs.low)
    for call, words in (
        (lambda: ts.stats.linregress(y, A[:, 0]), r"scipy\.stats\.linregress: two vectors of one length"),
        (lambda: ts.stats.entropy(y, base=-1), r"scipy\.stats\.entropy: base is -1"),
        (lambda: ts.stats.gaussian_kde(still)(tg.tensor(B.T, requires_grad=True)), "points have 3"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(UnsupportedOpError, match=r"gaussian_kde\.integrate_box_1d"):
        ts.stats.gaussian_kde(tg.tensor(A[:, 0], requires_grad=True)).integrate_box_1d(0, 1)
