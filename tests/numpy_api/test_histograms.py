"""Histograms: sums of weights, and edges that move with the data."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import errors

from .rows import POSITIVE, check

V, P = (5,), (POSITIVE, (5,))
X = np.array([0.1, 0.9, 0.5, 0.5, 3.0])
Y = np.array([1.0, -1.0, 2.0, 1.0, 0.0])

ROWS = [
    ("bincount", lambda w: np.bincount([0, 3, 3, 1, 0], w) * np.bincount([0, 3, 3, 1, 0], weights=w**2), [V]),
    ("bincount, minlength", lambda w: np.bincount([0, 3, 3, 1, 0], w, minlength=7), [V]),
    ("histogram", lambda w: np.histogram(X, 4, weights=w), [V]),
    ("histogram of bins", lambda w: np.histogram(X, [0.0, 0.5, 0.9], weights=w**2), [V]),
    ("histogram of a range", lambda w: np.histogram(X, 3, (0.2, 1.0), weights=w), [V]),
    ("histogram, density", lambda w: np.histogram(X, 3, density=True, weights=w), [P]),
    ("histogram of what moves", lambda x: np.histogram(x, 3), [V]),
    ("histogram of what moves, density", lambda x: np.histogram(x, 3, density=True), [V]),
    ("histogram of moving bins",
     lambda b: np.histogram(X, np.concatenate([[-1.0], b / 9, [4.0]]), density=True), [(POSITIVE, (1,))]),
    ("histogram of a moving range", lambda x, b: np.histogram(x, 3, range=(b[0] - 3, b[0] + 3)),
     [V, (POSITIVE, (1,))]),
    ("histogram by a rule", lambda x, w: np.histogram(x, "sturges"), [V, V]),
    ("histogram of equal elements", lambda x: np.histogram(x[0] + np.zeros(4), 2), [V]),
    ("edges", lambda x: np.histogram_bin_edges(x, 4) * 2, [V]),
    ("histogram2d", lambda w: np.histogram2d(X, Y, weights=w), [V]),
    ("histogram2d, bins", lambda w: np.histogram2d(X, Y, [2, 3], weights=w, density=True), [P]),
    ("histogram2d, edges", lambda w: np.histogram2d(X, Y, [[0.0, 0.5, 2.0], [-1.0, 1.0]], weights=w), [V]),
    ("histogram2d, one row of edges", lambda w: np.histogram2d(X, Y, [0.0, 0.5, 1.0, 2.0], weights=w), [V]),
    ("histogram2d of what moves", lambda x, y: np.histogram2d(x, y, 2, density=True), [V, V]),
    ("histogramdd", lambda w: np.histogramdd((X, Y, X * Y), 2, weights=w)[0], [V]),
    ("histogramdd of points", lambda x, w: np.histogramdd(x, [2, 3], range=[None, (-2, 2)], weights=w),
     [(5, 2), V]),
    ("histogramdd, edges", lambda x: np.histogramdd(x, 2, density=True)[1], [(5, 2)]),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_call(row, random):
    check(*row[1:], random)


@pytest.mark.parametrize("bins", [1, 3, 10, 37])
def test_bins_are_numpys(bins, random):
    """Also for elements at edges, and outside."""
    x = np.concatenate([random.standard_normal(300), np.linspace(-1, 1, 11)])
    w = random.standard_normal(x.size)
    for form in ({}, {"range": (-1, 1)}):
        found = np.histogram(x, bins, weights=tg.tensor(w, requires_grad=True), **form)
        for f, n in zip(found, np.histogram(x, bins, weights=w, **form), strict=True):
            np.testing.assert_allclose(f.detach().numpy(), n, atol=1e-12)


def test_counts_have_no_derivative():
    x = tg.tensor(X, requires_grad=True)
    counts, edges = np.histogram(x, 3)
    assert not counts.requires_grad
    assert counts.dtype.kind == "i"
    (g,) = tg.grad(edges[1], x)
    np.testing.assert_allclose(g.numpy(), [2 / 3, 0, 0, 0, 1 / 3])


REFUSED = [
    ("bincount of floats", lambda w: np.bincount(w), errors.DTypeError, "integers"),
    ("bincount, shapes", lambda w: np.bincount([0, 1], w), errors.ShapeError, "weights of shape"),
    ("bincount, negative", lambda w: np.bincount([0, -1, 2], w), ValueError, "bincount"),
    ("histogram, shapes", lambda w: np.histogram(X, 3, weights=w), errors.ShapeError, "weights"),
    ("histogram, bins", lambda w: np.histogram(w, 0), ValueError, "histogram"),
    ("histogram2d", lambda w: np.histogram2d(w, X), errors.ShapeError, "histogram2d"),
    ("histogramdd", lambda w: np.histogramdd((w, w), [1, 2, 3]), errors.ShapeError, "3 kinds"),
    ("histogramdd, weights", lambda w: np.histogramdd((X, Y), weights=w), errors.ShapeError,
     "weights of shape"),
    ("histogramdd, ranges", lambda w: np.histogramdd((w, w), 2, [(0, 1)]), errors.ShapeError, "1 ranges"),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_refusals(row):
    with pytest.raises(row[2], match=row[3]):
        row[1](tg.tensor([0.5, 2.0, 3.0], requires_grad=True))
