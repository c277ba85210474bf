"""vmap of plain functions: slices in, stacks out, differentiated and nested."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import AxisError, ShapeError

F = tg.func
X = np.arange(6.0).reshape(2, 3)


def test_axes():
    f = lambda x, y: np.sum(x) * y
    np.testing.assert_array_equal(F.vmap(f)(X, np.array([1.0, 2.0])), [3.0, 24.0])
    np.testing.assert_array_equal(F.vmap(f, (1, None))(X, 2.0), [6.0, 10.0, 14.0])
    np.testing.assert_array_equal(F.vmap(f, (-1, None))(X, 2.0), [6.0, 10.0, 14.0])
    np.testing.assert_array_equal(F.vmap(lambda x: x, 1, 1)(X), X)
    np.testing.assert_array_equal(F.vmap(lambda x: x, 0, -1)(X), X.T)
    np.testing.assert_array_equal(
        F.vmap(lambda x, *, y: x + y)(X, y=np.array([1.0, 2.0])), [[1, 2, 3], [5, 6, 7]]
    )
    assert type(F.vmap(lambda x: x * 2)(X)) is np.ndarray
    f = lambda p: {"sum": np.sum(p["x"]) + p["y"], "y": p["y"]}
    found = F.vmap(f, ({"x": 1, "y": None},), {"sum": 0, "y": None})
    assert found({"x": X, "y": 1.0})["sum"].tolist() == [4.0, 6.0, 8.0]
    assert found({"x": X, "y": 1.0})["y"] == 1.0


def test_kinds():
    assert F.vmap(lambda x: x.astype("f4"))(X).dtype == np.float32
    assert F.vmap(np.argmax)(X).tolist() == [2, 2]
    seen = []
    F.vmap(lambda x: seen.append(type(x)) or x)(X[0])
    assert seen == [np.float64] * 3
    assert isinstance(F.vmap(np.sin)(tg.tensor(X)), tg.Tensor)


def test_misuse():
    with pytest.raises(ShapeError, match=r"as many slices.* 2 \(of shape \(2, 3\)\) and 3"):
        F.vmap(lambda x, y: x)(X, X.T)
    with pytest.raises(AxisError, match=r"axis 2 of an argument of shape \(2, 3\)"):
        F.vmap(np.sum, 2)(X)
    with pytest.raises(AxisError, match="axis 0"):
        F.vmap(np.sum)(1.0)
    with pytest.raises(ShapeError, match="none to slice"):
        F.vmap(np.sum, None)(X)
    with pytest.raises(ShapeError, match="no slices"):
        F.vmap(np.sum)(X[:0])
    with pytest.raises(TypeError, match="in_axes"):
        F.vmap(np.add, (0,))(X, X)
    with pytest.raises(TypeError, match="in_axes"):
        F.vmap(np.add, "0")(X, X)
    with pytest.raises(TypeError, match="takes a function"):
        F.vmap(X)
    count = iter(range(2))
    with pytest.raises(TypeError, match="differently built"):
        F.vmap(lambda x: x if next(count) else (x,))(X)


def test_differentiated():
    np.testing.assert_allclose(F.vmap(F.grad(lambda x: np.sum(x**3)))(X), 3 * X**2)
    np.testing.assert_allclose(F.grad(lambda x: np.sum(F.vmap(lambda r: r[0] * r)(x)))(X),
                               [[3.0 + 0, 0, 0], [3 + 12.0, 3, 3]])  # fmt: skip
    _value, tangent = F.jvp(F.vmap(np.sin))(X, np.ones((2, 3)))
    np.testing.assert_allclose(tangent, np.cos(X))
    np.testing.assert_allclose(F.jacfwd(F.vmap(np.sum))(X), np.repeat(np.eye(2)[..., None], 3, -1))
    w = tg.tensor(2.0, requires_grad=True)
    found = F.vmap(F.grad(lambda x: np.sum(w * x**2)))(X)
    assert tg.grad(found.sum(), w)[0].item() == 2 * X.sum()
    mixed = F.vmap(lambda x: w * x if x > 1 else x)(X[0])
    assert tg.grad(mixed.sum(), w)[0].item() == 2.0


def test_nested():
    np.testing.assert_array_equal(F.vmap(F.vmap(lambda x: x * x))(X), X * X)
    table = F.vmap(F.vmap(lambda x, y: x * y, (None, 0)), (0, None))
    np.testing.assert_array_equal(table(X[0], X[1]), np.outer(X[0], X[1]))
    pairs = F.grad(lambda x: np.sum(F.vmap(lambda r: F.grad(lambda s: np.sum(s**3) * r[0])(r))(x)))(X)
    assert pairs.shape == (2, 3)
    np.testing.assert_allclose(pairs[1, 1:], 6 * X[1, 1:] * X[1, 0])
