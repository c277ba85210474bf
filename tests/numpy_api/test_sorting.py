"""Elements in order, different ones, and those chosen by numbers or conditions."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import errors
from tests.tiers import NUMPY_2_5

from .rows import check

A, V, S, T3 = (2, 3), (3,), (), (2, 3, 2)
B = np.array([[True, False, True], [False, True, True]])


def lowest(x):
    """What np.partition promises: the element in its place, and which are before it."""
    found = np.partition(x, 2, axis=1)
    return np.concatenate(
        [found[:, 2:3], np.sort(found[:, :2], axis=1), np.sort(found[:, 3:], axis=1)], axis=1
    )


ROWS = [
    ("sort", lambda x: np.sort(x), [A]), ("sort along an axis", lambda x: np.sort(x, axis=0) * x, [T3]),
    ("sort, flat", lambda x: np.sort(x, axis=None, kind="heapsort"), [A]),
    ("sort, stable", lambda x: np.sort(x, 1, stable=True) * np.sort(x, -2, "mergesort"), [T3]),
    ("partition", lowest, [(2, 5)]),
    ("partition, flat", lambda x: np.partition(x, 3, axis=None)[3], [A]),
    ("partition, several", lambda x: np.partition(x, [1, 3], axis=-1)[:, [1, 3]], [(2, 5)]),
    ("take_along_axis", lambda x: np.take_along_axis(x, np.array([[0, 2, 1, -1]]), axis=1), [A]),
    ("take_along_axis, 0", lambda x: np.take_along_axis(x, np.array([[1, 0, 1]]), 0), [A]),
    ("take_along_axis, flat", lambda x: np.take_along_axis(x, np.array([4, 0, 0]), None), [A]),
    ("unique", lambda x: np.unique(np.stack([x, x])), [A]),
    ("unique, all", lambda x: np.unique(np.tile(x, 2), True, True, True), [V]),
    ("unique, inverse", lambda x: np.unique(np.tile(x, 2), return_inverse=True), [A]),
    ("unique, counts", lambda x: np.unique(np.tile(x, 2), return_counts=True), [A]),
    ("unique rows", lambda x: np.unique(np.concatenate([x, x]), axis=0), [A]),
    ("unique columns", lambda x: np.unique(x[:, [0, 0, 1]], axis=1, return_index=True), [A]),
    ("unique_all", lambda x: list(np.unique_all(np.tile(x, 2))), [V]),
    ("unique_counts", lambda x: np.unique_counts(np.tile(x, 2)).values, [V]),
    ("unique_inverse", lambda x: np.unique_inverse(np.tile(x, 2)).values, [V]),
    ("unique_values", lambda x: np.sort(np.unique_values(np.tile(x, 2))), [V]),
    ("union1d", lambda x, y: np.union1d(x, y), [A, V]),
    ("intersect1d", lambda x: np.intersect1d(x, np.asarray([1.0, 2.0]) if False else x[0]), [A]),
    ("intersect1d, places", lambda x: np.intersect1d(x, x[1:], return_indices=True), [V]),
    ("setdiff1d", lambda x: np.setdiff1d(x, x[0]) * np.setdiff1d(x, x[0], assume_unique=True).sum(), [A]),
    ("setxor1d", lambda x: np.setxor1d(x[:2], x[1:]) * np.setxor1d(x[:2], x[1:], True), [V]),
    ("choose", lambda x, y: np.choose([0, 1, 2], [x, y, 3.0 * x]), [V, V]),
    ("choose, wrap", lambda x, y: np.choose(np.array([[3], [-1]]), (x, y), mode="wrap"), [V, S]),
    ("choose, clip", lambda x: np.choose(np.array([[5], [-1]]), x, mode="clip"), [A]),
    ("select", lambda x: np.select([x > 0.5, x > -0.5], [x * x, 2 * x], 7.0), [A]),
    ("select, broadcast", lambda x, y: np.select([B, ~B], [x, y], default=x), [V, A]),
    ("piecewise", lambda x: np.piecewise(x, [x < 0, x >= 0], [lambda v: v * v, lambda v: 3 * v]), [A]),
    ("piecewise, else", lambda x: np.piecewise(x, [x < -0.5, x > 0.5], [1.0, lambda v: v * v, lambda v: -v]),
     [A]),
    ("piecewise, overlap",
     lambda x: np.piecewise(x, [x < 2, x > 0], [lambda v, k, p=1: k * v * p, lambda v, k, p: v**2],
                                                  3.0, p=2.0), [A]),
    ("piecewise of 0-d", lambda x: np.piecewise(x, [x < 2], [lambda v: v * v]), [S]),
    ("compress", lambda x: np.compress([True, False, True], x, axis=1) * x.compress([0, 1], axis=0)[:, :2],
     [A]),
    ("compress, flat", lambda x: np.compress([False, True, True], x), [A]),
    ("extract", lambda x: np.extract(B, x) * np.extract(x < 9, x)[:4], [A]),
    ("apply_along_axis", lambda x: np.apply_along_axis(lambda v: v * v[0], 1, x), [A]),
    ("apply_along_axis, to a number",
     lambda x: np.apply_along_axis(lambda v, k: np.sum(v * v) * k, 0, x, 2.0), [T3]),
    ("apply_along_axis, to a matrix", lambda x: np.apply_along_axis(lambda v: np.outer(v, v), 1, x), [T3]),
    ("apply_over_axes", lambda x: np.apply_over_axes(np.sum, x * x, [0, 2]), [T3]),
    ("apply_over_axes, one", lambda x: np.apply_over_axes(np.sum, x * x, -2), [T3]),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_call(row, random):
    check(*row[1:], random)


def leaf(*values):
    return tg.tensor(values, requires_grad=True)


def test_sort_ties_are_stable():
    x = leaf(2.0, 1.0, 2.0, 1.0)
    (g,) = tg.grad(np.sum(np.sort(x) * np.array([1.0, 2.0, 3.0, 4.0])), x)
    assert g.tolist() == [3.0, 1.0, 4.0, 2.0]


@pytest.mark.skipif(not NUMPY_2_5, reason="NumPy sorts in ascending order only")
def test_descending_order(random):
    check(lambda x: np.sort(x, axis=0, descending=True) * np.sort(x, None, descending=False)[0], [A], random)
    values = np.array([2.0, np.nan, 1.0, 2.0, -0.0, 0.0])
    x = tg.tensor(values, requires_grad=True)
    (g,) = tg.grad(np.sum(np.sort(x, descending=True)[:4] * np.arange(1.0, 5.0)), x)
    assert g.tolist() == [1.0, 0.0, 3.0, 2.0, 4.0, 0.0]  # equal ones keep their order, nan is last
    y = x * 1.0
    y.sort(descending=True)
    np.testing.assert_array_equal(y.detach().numpy(), np.sort(values, descending=True))
    assert x.argsort(descending=True, stable=True).tolist() == [0, 3, 2, 4, 5, 1]


def test_nan_is_sorted_last():
    x = leaf(np.nan, 1.0, 0.0)
    y = np.sort(x)
    np.testing.assert_array_equal(y.detach().numpy(), [0.0, 1.0, np.nan])
    (g,) = tg.grad(y[1], x)
    assert g.tolist() == [0.0, 1.0, 0.0]


def test_unique_takes_the_first_of_equals():
    (g,) = tg.grad(np.sum(np.unique(x := leaf(3.0, 1.0, 3.0))), x)
    assert g.tolist() == [1.0, 1.0, 0.0]


def test_unique_counts_nan_as_numpy_does():
    x = leaf(np.nan, 1.0, np.nan)
    for form in ({}, {"equal_nan": False}):
        assert np.unique(x, **form).shape == np.unique(x.detach().numpy(), **form).shape
    assert np.unique_values(x).shape == (3,)


def test_sorting_in_place():
    x = leaf(3.0, 1.0, 2.0)
    y = x * 2.0
    v = y[:2]
    y.sort()
    assert y.tolist() == [2.0, 4.0, 6.0]
    (g,) = tg.grad(np.sum(v * np.array([1.0, 10.0])), x)
    assert g.tolist() == [0.0, 2.0, 20.0]
    z = x * 2.0
    z.partition(1)
    assert z.tolist()[1] == 4.0
    with pytest.raises(errors.GradientError, match="leaf"):
        x.sort()


def test_a_vectorized_function_does_not_drop_derivatives():
    x = leaf(1.0, 2.0)
    double = np.vectorize(lambda v: 2 * v)
    with pytest.raises(errors.BorderError, match=r"detach\(\)"):
        double(x)
    assert double(x.detach()).tolist() == [2.0, 4.0]


PLAIN = [
    ("argsort", lambda x: x.argsort(0)), ("argpartition", lambda x: np.sort(x.argpartition(1)[:, :1])),
    ("np.argpartition", lambda x: np.argpartition(x, 0)[:, 0]),
     ("lexsort", lambda x: np.lexsort((x[0], x[1]))),
    ("searchsorted", lambda x: np.sort(x[0]).searchsorted([0.1, 2.0], side="right")),
    ("argwhere", lambda x: np.argwhere(x > 0)), ("flatnonzero", lambda x: np.flatnonzero(x > 0)),
    ("nonzero", lambda x: x.nonzero()), ("isin", lambda x: np.isin(x, [2.0, 0.5])),
    ("nanargmax", lambda x: np.nanargmax(x, axis=0)), ("nanargmin", lambda x: np.nanargmin(x)),
    ("array_equiv", lambda x: np.array_equiv(x, x[0])),
     ("einsum_path", lambda x: str(np.einsum_path("ij,kj", x, x))),
    ("unravel_index", lambda x: np.unravel_index(x.argmax(), x.shape)),
     ("ix_", lambda x: np.ix_(x[0] > 0, x[1] > 0)),
    ("ravel_multi_index", lambda x: np.ravel_multi_index((np.argmax(x, 0), np.argmin(x, 0)), x.shape)),
    ("tril_indices_from", np.tril_indices_from), ("triu_indices_from", np.triu_indices_from),
    ("diag_indices_from", lambda x: np.diag_indices_from(x[:, :2])), ("iscomplex", np.iscomplex),
     ("isreal", np.isreal),
    ("packbits", lambda x: np.packbits(x > 0)), ("unpackbits", lambda x: np.unpackbits(np.packbits(x > 0))),
    ("min_scalar_type", lambda x: str(np.min_scalar_type(x[0]))),
     ("common_type", lambda x: str(np.common_type(x))),
    ("digitize", lambda x: np.digitize(x, [0.0, 1.0])), ("bytes", lambda x: x.tobytes()),
]  # fmt: skip


@pytest.mark.parametrize("row", PLAIN, ids=[row[0] for row in PLAIN])
@pytest.mark.parametrize("grad", [False, True])
def test_plain_answers(row, grad):
    array = np.array([[0.5, 2.0, -0.1], [-1.5, 2.5, 0.7]])
    found, wanted = row[1](tg.tensor(array, requires_grad=grad)), row[1](array)
    for f, w in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, wanted)), strict=True):
        assert not getattr(f, "requires_grad", False)
        f = f.numpy() if isinstance(f, tg.Tensor) else f
        np.testing.assert_array_equal(f, w)


REFUSED = [
    ("sort, axis", lambda x: np.sort(x, 2), errors.AxisError, "axis 2"),
    ("sort, order", lambda x: np.sort(x, order="a"), ValueError, "fields"),
    ("partition, axis", lambda x: np.partition(x, 1, 2), errors.AxisError, "axis 2"),
    ("partition, kth", lambda x: np.partition(x, 9), ValueError, "partition"),
    ("take_along_axis", lambda x: np.take_along_axis(x, np.array([0]), 0), errors.ShapeError, "indices"),
    ("take_along_axis, kind", lambda x: np.take_along_axis(x, x, 0), TypeError, "integers"),
    ("take_along_axis, range", lambda x: np.take_along_axis(x, np.array([[7]]), 0), IndexError, "7"),
    ("unique, axis", lambda x: np.unique(x, axis=2), errors.AxisError, "axis 2"),
    ("choose", lambda x: np.choose([0, 5], [x[:, 0]]), ValueError, "choose"),
    ("choose by floats", lambda x: np.choose(x, [x, x]), TypeError, "integers"),
    ("select", lambda x: np.select([x > 0], [x, x]), errors.ShapeError, "1 conditions for 2"),
    ("select by floats", lambda x: np.select([x], [x]), TypeError, "boolean"),
    ("select nothing", lambda x: np.select([], [], x), ValueError, "condition"),
    ("piecewise", lambda x: np.piecewise(x, [x > 0], [1, 2, 3]), errors.ShapeError, "3 functions"),
    ("compress", lambda x: np.compress([[True]], x), errors.ShapeError, "one dimension"),
    ("compress, long", lambda x: np.compress([True] * 4, x, axis=1), IndexError, "index 3"),
    ("extract", lambda x: np.extract([True] * 9, x), IndexError, "index"),
    ("apply_along_axis", lambda x: np.apply_along_axis(np.sum, 3, x), errors.AxisError, "axis 3"),
    ("apply_along_axis, empty", lambda x: np.apply_along_axis(np.sum, 1, x[:0]), ValueError, "no vector"),
    ("apply_over_axes", lambda x: np.apply_over_axes(lambda v, k: np.sum(v), x, [0]), ValueError, "one axis"),
    ("digitize", lambda x: np.digitize(x, [0.0, 2.0, 1.0]), ValueError, "monoton"),
    ("out", lambda x: np.compress([True], x, axis=0, out=np.zeros((1, 3))), errors.UnsupportedOpError,
     "out="),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_refusals(row):
    with pytest.raises(row[2], match=row[3]):
        row[1](tg.tensor([[0.5, 2.0, 3.0], [-1.5, 1.0, 0.2]], requires_grad=True))
