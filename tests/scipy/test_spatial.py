"""Distances of `scipy.spatial`: values as SciPy's, derivatives by differences and in closed form."""

import numpy as np
import pytest
import scipy.spatial.distance

import tapegrad as tg
import tapegrad.scipy as ts
from tapegrad.autograd import gradcheck, gradgradcheck
from tapegrad.errors import UnsupportedOpError
from tests.tensors import leaf
from tests.tiers import thinned

A = np.random.default_rng(3).normal(size=(3, 4))
B = np.random.default_rng(4).normal(size=(2, 4))
W = np.array([0.5, 1.0, 2.0, 0.7])
VI = np.linalg.inv(np.cov(np.random.default_rng(5).normal(size=(9, 4)).T))
ROWS = [
    ("euclidean", {}), ("euclidean", {"w": W}), ("sqeuclidean", {}), ("sqeuclidean", {"w": W}),
    ("cityblock", {}), ("cityblock", {"w": W}), ("chebyshev", {}), ("chebyshev", {"w": W}),
    ("minkowski", {"p": 3}), ("minkowski", {"p": 1.5, "w": W}), ("cosine", {}), ("cosine", {"w": W}),
    ("correlation", {}), ("seuclidean", {}), ("seuclidean", {"V": W}), ("mahalanobis", {}),
    ("mahalanobis", {"VI": VI}), ("canberra", {}), ("canberra", {"w": W}), ("braycurtis", {}),
    ("braycurtis", {"w": W}),
]  # fmt: skip
ids = [f"{name}{''.join(more)}" for name, more in ROWS]


@pytest.mark.parametrize(
    ("metric", "more"), thinned(ROWS, lambda metric, more: metric == "sqeuclidean" and not more)
)
def test_many_points(metric, more):
    if metric in ("seuclidean", "mahalanobis") and not more:
        a, b = np.vstack([A, A[:1] + A[1:2]]) * 1.3, np.random.default_rng(7).normal(size=(6, 4))
    else:
        a, b = A, B
    distance, theirs = ts.spatial.distance, scipy.spatial.distance
    found = distance.cdist(leaf(a), leaf(b), metric, **more)
    np.testing.assert_allclose(
        found.detach().numpy(), theirs.cdist(a, b, metric, **more), rtol=1e-10, atol=1e-14
    )
    assert gradcheck(lambda x, y: distance.cdist(x, y, metric, **more), [leaf(a), leaf(b)])
    found = distance.pdist(leaf(b), metric, **more)
    np.testing.assert_allclose(
        found.detach().numpy(), theirs.pdist(b, metric, **more), rtol=1e-10, atol=1e-14
    )
    assert gradcheck(lambda x: distance.pdist(x, metric, **more), [leaf(b)], check_forward_ad=True)


@pytest.mark.parametrize(
    ("metric", "more"), thinned(ROWS, lambda metric, more: metric == "canberra" and not more)
)
def test_two_points(metric, more):
    if metric in ("seuclidean", "mahalanobis") and not more:
        pytest.skip("two points have no variance")
    mine, theirs = getattr(ts.spatial.distance, metric), getattr(scipy.spatial.distance, metric)
    u, v = leaf(A[0]), leaf(A[1])
    np.testing.assert_allclose(mine(u, v, **more).item(), theirs(A[0], A[1], **more), rtol=1e-13)
    np.testing.assert_array_equal(mine(A[0], A[1], **more), theirs(A[0], A[1], **more))
    given = {key: leaf(x) for key, x in more.items() if key != "p"}
    keys, fixed = list(given), {key: x for key, x in more.items() if key == "p"}

    def f(u, v, *rest):
        return mine(u, v, **fixed, **dict(zip(keys, rest, strict=True)))

    inputs = [u, v, *given.values()]
    assert gradcheck(f, inputs)
    if metric not in ("cityblock", "chebyshev", "canberra", "braycurtis"):
        assert gradgradcheck(f, inputs)


@pytest.mark.full
def test_points_that_coincide():
    """A norm has the derivative 0 at 0; so have 0/0 of canberra, and the distance of a point from itself."""
    for metric in ("euclidean", "minkowski", "cityblock", "chebyshev", "canberra"):
        x = leaf([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0], [0.0, 0.0]])
        more = {"p": 3} if metric == "minkowski" else {}
        found = ts.spatial.distance.cdist(x, x, metric, **more)
        (g,) = tg.grad(np.diagonal(found).sum() + found[0, 1] + found[2, 3], x)
        np.testing.assert_array_equal(g.numpy(), 0.0)
    x = leaf([1.0, 2.0])
    (g,) = tg.grad(ts.spatial.distance.mahalanobis(x, [1.0, 2.0], np.eye(2)), x)
    np.testing.assert_array_equal(g.numpy(), 0.0)


def test_squareform():
    d = leaf([1.0, 2.0, 3.0])
    square = ts.spatial.distance.squareform(d)
    np.testing.assert_array_equal(square.detach().numpy(), scipy.spatial.distance.squareform([1.0, 2.0, 3.0]))
    (g,) = tg.grad(square, d, np.arange(9.0).reshape(3, 3), retain_graph=True)
    np.testing.assert_array_equal(g.numpy(), [1 + 3, 2 + 6, 5 + 7])
    (g,) = tg.grad(ts.spatial.distance.squareform(square), d, np.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(g.numpy(), [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="binomial"):
        ts.spatial.distance.squareform(leaf([1.0, 2.0]))


def test_what_is_not_there_is_refused():
    x = leaf(A)
    for call, words in (
        (lambda: ts.spatial.distance.cdist(x, B, "jensenshannon"), "cdist with metric='jensenshannon'"),
        (lambda: ts.spatial.distance.jaccard(x[0], x[1]), "scipy.spatial.distance.jaccard"),
        (lambda: ts.spatial.distance.minkowski(A[0], A[1], p=x[0, 0]), "no derivative by p"),
        (lambda: ts.spatial.procrustes(x, A), "scipy.spatial.procrustes"),
    ):
        with pytest.raises(UnsupportedOpError, match=words):
            call()
    assert ts.spatial.distance.jaccard([1, 0], [1, 1]) == scipy.spatial.distance.jaccard([1, 0], [1, 1])
    assert ts.spatial.KDTree is scipy.spatial.KDTree
