"""Running products and sums on Tensors."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import errors
from tapegrad.core.dispatch import apply
from tapegrad.ops import REGISTRY

from .test_ufunc_forms import leaf, plain, right

CALLS = [
    lambda x: np.cumprod(x),
    lambda x: np.cumprod(x, 1),
    lambda x: x.cumprod(axis=0),
    lambda x: x.cumprod(),
    lambda x: np.cumprod(x, axis=-1, dtype=float),
    lambda x: np.cumulative_prod(x, axis=0),
    lambda x: np.cumulative_prod(x, axis=1, include_initial=True),
    lambda x: np.cumulative_sum(x, axis=-2),
    lambda x: np.cumulative_sum(x[0], include_initial=True),
    lambda x: np.cumulative_prod(x[0, 0]),
    lambda x: np.cumulative_sum(x, axis=0, include_initial=True, dtype=np.float64),
]


@pytest.mark.parametrize("values", [[[1.1, 2.3, 0.7], [2.9, -1.7, 3.1]], [[0.0, 2.0, 3.0], [1.5, 0.0, 0.0]]])
@pytest.mark.parametrize("call", CALLS)
def test_scan(call, values):
    right(call, [leaf(np.array(values))], plain(call, [leaf(np.array(values))]))


@pytest.mark.parametrize("record", [False, True])
def test_running_products_of_zeros(record):
    """The edge row: of [0, 2, 3] the gradient of the sum is [9, 0, 0]."""
    for values, wanted in (
        ([0, 2, 3], [9, 0, 0]),
        ([2, 0, 3], [1, 8, 0]),
        ([0, 0, 3], [1, 0, 0]),
        ([5], [1]),
    ):
        x = leaf(np.array(values, float))
        (g,) = tg.grad(np.sum(np.cumprod(x)), x, create_graph=record)
        np.testing.assert_array_equal(g.detach().numpy(), wanted)
    x = leaf(np.array([0.0, 2.0, 3.0]))
    (g,) = tg.grad(np.sum(np.cumprod(x)), x, create_graph=True)
    (h,) = tg.grad(np.sum(g), x)
    np.testing.assert_array_equal(h.numpy(), [6, 4, 2])


def test_a_long_running_product_stays_finite():
    """A recurrence by doubling would multiply factors past the largest number, and 0 by infinity."""
    x = np.full(2000, 1e3)
    x[0] = 0.0
    y = leaf(x)
    (g,) = tg.grad(np.cumprod(y)[5], y)
    np.testing.assert_allclose(g.numpy()[:7], [1e15, 0, 0, 0, 0, 0, 0])
    assert np.all(np.isfinite(g.numpy()))
    zeros = leaf(np.zeros(2000))
    found = apply(REGISTRY["recurrence"], (zeros, leaf(x)), {"axis": 0})
    np.testing.assert_array_equal(found.detach().numpy(), np.zeros(2000))


@pytest.mark.parametrize("shape", [(500, 3), (500, 40), (3, 500), (40, 500)])
@pytest.mark.parametrize("axis", [0, 1])
def test_few_lanes_and_many_give_the_same(shape, axis):
    random = np.random.default_rng(1)
    a, b = random.uniform(0.5, 1.2, shape), random.uniform(-1, 1, shape)
    x = leaf(a)
    (g,) = tg.grad(np.sum(np.cumprod(x, axis) * b), x)
    p, n = np.cumprod(a, axis), shape[axis]
    tail = np.flip(np.cumsum(np.flip(p * b, axis), axis), axis)
    np.testing.assert_allclose(g.numpy(), tail / a, rtol=1e-9, atol=1e-12)
    assert n in shape


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize("length", [1, 2, 17])
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 8, 11])
def test_rows_side_by_side_are_rows_alone(rows, length, dtype):
    random = np.random.default_rng(rows)
    a, u = random.uniform(-1.3, 1.3, (2, rows, length)).astype(dtype)
    weights = random.uniform(0.5, 1, (rows, length)).astype(dtype)
    for call in (
        lambda x, y: np.cumprod(x + y, 1),
        lambda x, y: apply(REGISTRY["recurrence"], (x, y), {"axis": 1}),
    ):
        x, y = leaf(a), leaf(u)
        found = tg.grad(np.sum(call(x, y) * weights), [x, y])
        for k in range(rows):
            one, other = leaf(a[k : k + 1]), leaf(u[k : k + 1])
            alone = tg.grad(np.sum(call(one, other) * weights[k : k + 1]), [one, other])
            for g, wanted in zip(found, alone, strict=True):
                np.testing.assert_allclose(g.numpy()[k], wanted.numpy()[0], 1e-5 if dtype == "f" else 1e-14)


def test_integers_and_single_precision():
    assert np.cumprod(tg.tensor([1, 2, 3])).tolist() == [1, 2, 6]
    assert np.cumulative_sum(tg.tensor([1, 2, 3]), include_initial=True).tolist() == [0, 1, 3, 6]
    x = leaf(np.array([1, 2, 3], "f"))
    out = np.cumprod(x)
    assert out.dtype == np.float32
    assert tg.grad(np.sum(out), x)[0].dtype == np.float32
    assert np.cumprod(x, dtype=float).dtype == np.float64
    with tg.no_grad():
        for f in (np.cumprod, np.cumulative_prod, np.cumulative_sum):
            out = np.zeros(3, "f")
            assert f(x, out=out) is out
            np.testing.assert_array_equal(out, f(np.array([1, 2, 3], "f")))


X = leaf(np.ones((2, 2)))
REFUSED = [
    ("axis of cumprod", lambda: np.cumprod(X, axis=2), errors.AxisError, "axis 2"),
    ("out of cumprod", lambda: np.cumprod(X, out=np.zeros(4)), errors.UnsupportedOpError, "out="),
    (
        "out of cumulative_prod",
        lambda: np.cumulative_prod(X, axis=0, out=np.ones((2, 2))),
        errors.UnsupportedOpError,
        "out=",
    ),
    ("no axis", lambda: np.cumulative_sum(X), errors.ShapeError, "axis"),
    ("no axis of cumulative_prod", lambda: np.cumulative_prod(X), errors.ShapeError, "axis"),
    ("axis of cumulative_sum", lambda: np.cumulative_sum(X, axis=2), errors.AxisError, "axis 2"),
    ("axis of another type", lambda: np.cumprod(X, axis=0.5), TypeError, "whole number"),
]


@pytest.mark.parametrize("char", "fdgFDG")
def test_running_sums_are_numpys_to_the_bit(char, random):
    """Of every layout, of zeros of both signs, and with NumPy's warnings where a sum is no finite number."""
    for shape in ((40, 30), (5, 300), (4, 300), (3, 400), (2, 1000), (9, 40, 3), (30, 9, 7), (1024,)):
        x = random.normal(size=shape).astype(char)
        if char in "FDG":
            x += (1j * random.normal(size=shape)).astype(char)
        x[..., :1] = -0.0
        for array in (x, x.T, x[::-1], np.asfortranarray(x)):
            for axis in range(x.ndim):
                found, wanted = np.cumsum(tg.tensor(array), axis).numpy(), np.cumsum(array, axis)
                np.testing.assert_array_equal(found, wanted)
                np.testing.assert_array_equal(np.signbit(found.real), np.signbit(wanted.real))
    one = np.lib.stride_tricks.as_strided(np.ones(2048, char), (1, 2048), (3, np.dtype(char).itemsize))
    np.testing.assert_array_equal(np.cumsum(tg.from_numpy(one), 0).numpy(), one)  # no step to be relied on
    for last in (np.inf, np.nan):
        x = np.full((40, 30), 1.0, char)
        x[7, 5:7] = last, -last
        with np.errstate(invalid="raise"):
            if last == np.inf:
                with pytest.raises(FloatingPointError):
                    np.cumsum(tg.tensor(x), 1)
            else:
                np.testing.assert_array_equal(np.cumsum(tg.tensor(x), 1).numpy(), np.cumsum(x, 1))
    with pytest.warns(RuntimeWarning, match="overflow"):
        np.cumsum(tg.tensor(np.full((40, 30), np.finfo(char).max / 8, char)), 0)


@pytest.mark.parametrize("scan", [np.cumsum, np.cumprod, np.nancumsum, np.nancumprod, np.cumulative_sum,
                                  np.add.accumulate])  # fmt: skip
def test_running_results_do_not_fit_into_a_number(scan):
    """NumPy crashes."""
    for out in (np.array(1.0), tg.tensor(1.0)):
        with pytest.raises(errors.ShapeError, match=r"shape \(\)"):
            scan(tg.tensor([1.0, 2.0]), out=out)


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_refusals(row):
    _, call, error, text = row
    with pytest.raises(error, match=text):
        call()
