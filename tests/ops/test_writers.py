"""NumPy's functions that write to an argument: what they leave is NumPy's, derivatives are exact."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import errors

from .test_ufunc_forms import leaf, plain, right

VALUES = np.array([[1.1, 2.3, 0.7], [2.9, 1.7, 3.1]])
CUBE = np.linspace(0.5, 2.5, 27).reshape(3, 3, 3)
MASK = np.array([[True, False, True], [False, True, True]])
HALF = np.array([[2, 0, 2]])

# name, shape of what is written to, shape of the values, call
WRITES = [
    ("copyto", (2, 3), (2, 3), lambda x, v: np.copyto(x, v)),
    ("copyto, broadcast", (2, 3), (3,), lambda x, v: np.copyto(x, v)),
    ("copyto, a leading one", (2, 3), (1, 1, 3), lambda x, v: np.copyto(x, v, where=MASK)),
    ("copyto, where", (2, 3), (2, 1), lambda x, v: np.copyto(x, v, where=MASK)),
    ("copyto, where broadcast", (2, 3), (2, 3), lambda x, v: np.copyto(x, v, "safe", [True, False, True])),
    ("copyto, where nothing", (2, 3), (), lambda x, v: np.copyto(x, v, where=False)),
    ("copyto, where a scalar", (2, 3), (3,), lambda x, v: np.copyto(x, v, where=np.array(True))),
    ("copyto, 0-d", (), (), lambda x, v: np.copyto(x, v)),
    ("put", (2, 3), (3,), lambda x, v: np.put(x, [0, 4, -1], v)),
    ("put, values repeat", (2, 3), (2,), lambda x, v: np.put(x, [[0, 1], [4, 5]], v)),
    ("put, one value", (2, 3), (), lambda x, v: np.put(x, [5, 2], v)),
    ("put, too many values", (2, 3), (2, 3), lambda x, v: np.put(x, 3, v)),
    ("put, a place twice", (2, 3), (3,), lambda x, v: np.put(x, [1, 1, 1], v)),
    ("put, wrap", (2, 3), (4,), lambda x, v: np.put(x, [7, -8, 3, 12], v, mode="wrap")),
    ("put, clip", (2, 3), (3,), lambda x, v: np.put(x, [99, -99, 3], v, mode="clip")),
    ("put, nowhere", (2, 3), (2,), lambda x, v: np.put(x, [], v)),
    ("put, method", (2, 3), (2,), lambda x, v: x.put([0, 5], v)),
    ("put, 0-d", (), (1,), lambda x, v: np.put(x, [0], v)),
    ("place", (2, 3), (4,), lambda x, v: np.place(x, MASK, v)),
    ("place, values repeat", (2, 3), (3,), lambda x, v: np.place(x, MASK, v)),
    ("place, one value", (2, 3), (1,), lambda x, v: np.place(x, MASK.ravel(), v)),
    ("place, too many values", (2, 3), (6,), lambda x, v: np.place(x, MASK.astype(int), v)),
    ("place, nowhere", (2, 3), (2,), lambda x, v: np.place(x, MASK & False, v)),
    ("putmask", (2, 3), (2, 3), lambda x, v: np.putmask(x, MASK, v)),
    ("putmask, values repeat", (2, 3), (4,), lambda x, v: np.putmask(x, MASK, v)),
    ("putmask, one value", (2, 3), (), lambda x, v: np.putmask(x, MASK, v)),
    ("fill_diagonal", (3, 3), (), lambda x, v: np.fill_diagonal(x, v)),
    ("fill_diagonal, values", (3, 3), (3,), lambda x, v: np.fill_diagonal(x, v)),
    ("fill_diagonal, values repeat", (3, 3), (2,), lambda x, v: np.fill_diagonal(x, v)),
    ("fill_diagonal, wide", (2, 3), (2, 2), lambda x, v: np.fill_diagonal(x, v)),
    ("fill_diagonal, tall", (7, 2), (), lambda x, v: np.fill_diagonal(x, v)),
    ("fill_diagonal, tall, wrapped", (7, 2), (3,), lambda x, v: np.fill_diagonal(x, v, wrap=True)),
    ("fill_diagonal, wide, wrapped", (2, 3), (2,), lambda x, v: np.fill_diagonal(x, v, wrap=True)),
    ("fill_diagonal of a cube", (3, 3, 3), (3,), lambda x, v: np.fill_diagonal(x, v)),
    (
        "put_along_axis",
        (2, 3),
        (1, 3),
        lambda x, v: np.put_along_axis(x, np.array([[2, 0, 2], [1, 1, 0]]), v, 1),
    ),
    (
        "put_along_axis, a value for each row",
        (2, 3),
        (2, 1),
        lambda x, v: np.put_along_axis(x, np.array([[2, 0, 2], [1, 1, 0]]), v, 1),
    ),
    (
        "put_along_axis, first axis",
        (2, 3),
        (),
        lambda x, v: np.put_along_axis(x, np.array([[0, 1, -1]]), v, axis=0),
    ),
]


def written(write):
    def function(x, v):
        y = x * 1.0
        assert write(y, v) is None
        return y

    return function


def drawn(shape, offset=0.0):
    size = int(np.prod(shape))
    return (np.random.default_rng(size).permutation(np.linspace(0.5, 2.5, size)) + offset).reshape(shape)


@pytest.mark.parametrize("row", WRITES, ids=[row[0] for row in WRITES])
def test_write(row):
    _, shape, values, write = row
    x, v = leaf(drawn(shape)), leaf(drawn(values, 5.0))
    wanted = np.array(x.detach().numpy())
    write(wanted, v.detach().numpy())
    right(written(write), [x, v], wanted)
    plainly = lambda x: written(write)(x, v.detach().numpy())  # values that require no grad
    np.testing.assert_array_equal(plainly(x).detach().numpy(), wanted)
    (g,) = tg.grad(np.sum(plainly(x)), x)
    (both, *_) = tg.grad(np.sum(written(write)(x, v)), [x, v], materialize_grads=True)
    np.testing.assert_array_equal(g.numpy(), both.numpy())


@pytest.mark.parametrize("row", WRITES, ids=[row[0] for row in WRITES])
def test_write_without_derivatives(row):
    """Constants, also in single precision and through Tensors as values."""
    _, shape, values, write = row
    for dtype in "df":
        x, v = tg.tensor(drawn(shape).astype(dtype)), drawn(values, 5.0).astype(dtype)
        wanted = np.array(x.numpy())
        write(wanted, v)
        before = x.clone()
        write(x, tg.tensor(v))
        assert not x.requires_grad
        assert x.dtype == wanted.dtype
        np.testing.assert_array_equal(x.numpy(), wanted)
        write(before, v)
        np.testing.assert_array_equal(before.numpy(), wanted)
        array = np.array(drawn(shape).astype(dtype))
        if shape:
            write(array, tg.tensor(v))
            np.testing.assert_array_equal(array, wanted)


LAYOUTS = [
    lambda y: y, lambda y: y.T, lambda y: y[::-1], lambda y: y[1:, ::2], lambda y: y.T[1:3],
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("write", [
    lambda x: np.put(x, np.arange(x.size), x[::-1]), lambda x: np.putmask(x, x > 1.0, x[::-1]),
    lambda x: np.place(x, x > 1.0, x[:, ::-1]), lambda x: np.fill_diagonal(x, x[0]),
])  # fmt: skip
def test_values_that_are_elements_of_the_target(write, layout):
    """Read before any is written, whatever the layout; the derivative is a selection of elements."""
    base = drawn((4, 5))
    wanted = layout(base * 1.0)
    write(wanted)

    def function(x):
        y = layout(x * 1.0)
        write(y)
        return y

    right(function, [leaf(base)], wanted)


def test_put_along_axis_without_an_axis_writes_by_number():
    x, v = leaf(VALUES), leaf([5.0, 6.0, 7.0])
    y = x * 1.0
    np.put_along_axis(y, np.array([0, 5, -2]), v, axis=None)
    assert y.ravel().tolist() == [5.0, 2.3, 0.7, 2.9, 7.0, 6.0]
    gx, gv = tg.grad(np.sum(y * VALUES), [x, v])
    np.testing.assert_array_equal(gv.numpy(), VALUES.ravel()[[0, 5, 4]])
    np.testing.assert_array_equal(gx.numpy().ravel() != 0, [False, True, True, True, False, False])


def test_views_and_histories_follow():
    x, v = leaf(VALUES), leaf([7.0])
    y = x * x
    row, square = y[0], np.sum(y)
    np.place(y, MASK, v)
    np.testing.assert_array_equal(row.detach().numpy(), [7, VALUES[0, 1] ** 2, 7])
    gx, gv = tg.grad(np.sum(row) + np.sum(y) * 2 + square, [x, v])
    np.testing.assert_allclose(gx.numpy(), 2 * VALUES * (1 + np.where(MASK, 0, [[3], [2]])))
    assert gv.item() == 2 * 2 + 4 * 2 - 2
    np.fill_diagonal(c := tg.zeros((2, 2)), x[0, :1])
    assert c.requires_grad
    whole = tg.tensor([1, 2, 3])
    np.put(whole, [0], [9])
    assert whole.tolist() == [9, 2, 3]
    x.detach().fill(0.0)
    c = tg.zeros(3)
    c.fill(2.5)
    assert c.tolist() == [2.5, 2.5, 2.5]


def test_conversions_of_copyto():
    x = leaf([1.7, -2.7])
    whole = tg.tensor([0, 0])
    np.copyto(whole, x.detach(), casting="unsafe")
    assert whole.tolist() == [1, -2]
    single = tg.zeros(2, dtype="f")
    np.copyto(single, x)
    assert single.dtype == np.float32
    assert tg.grad(np.sum(single), x)[0].dtype == np.float64


@pytest.mark.parametrize("function", [np.putmask, np.place])
def test_dtypes_of_values_for_a_mask(function):
    """Of arrays NumPy takes those that convert without loss, wherever the mask holds; of numbers more."""
    mask = np.array([True, False, True])
    for dtype in "ilfdFDeB":
        for kind in "?bBilefdFDQ":
            values = np.ones(3, kind)
            for holds in (mask, mask & False):
                for given in (values, values[:1], values[:0], values[0, ...], tg.tensor(values)):
                    if not np.size(given) and function is np.place:
                        continue  # no values are refused where the mask holds
                    results = []
                    for target in (np.zeros(3, dtype), tg.zeros(3, dtype=dtype)):
                        try:
                            function(target, holds, given)
                        except TypeError:
                            results.append(None)
                        else:
                            results.append(target.tolist())
                    assert results[0] == results[1], (dtype, kind, given)
    for number in (2, 2.5, np.float64(2.5), np.int64(2), [2.5, 3], tg.tensor(2.5)):
        y, wanted = tg.ones(3, dtype="f"), np.ones(3, "f")
        function(y, mask, number)
        function(wanted, mask, number.item() if isinstance(number, tg.Tensor) else number)
        assert y.tolist() == wanted.tolist()


X, Y = leaf(VALUES), tg.ones((2, 3))
REFUSED = [
    ("a leaf", lambda: np.put(X, [0], 1.0), errors.GradientError, "leaf"),
    ("copyto a leaf", lambda: np.copyto(X, 1.0, where=MASK), errors.GradientError, "leaf"),
    ("an array", lambda: np.copyto(np.zeros((2, 3)), X), errors.BorderError, "np.copyto"),
    (
        "values for an array",
        lambda: np.put_along_axis(np.zeros((2, 3)), HALF, X[:1], 1),
        errors.BorderError,
        "Tensor",
    ),
    ("copyto, casting", lambda: np.copyto(Y, X, casting="no_such"), ValueError, "casting"),
    ("copyto into integers", lambda: np.copyto(tg.tensor([1, 2]), [1.5, 2.5]), errors.DTypeError, "int64"),
    ("copyto, safe", lambda: np.copyto(tg.ones(2, dtype="f"), np.ones(2), casting="safe"), TypeError, "safe"),
    ("copyto, shapes", lambda: np.copyto(Y, X[:, :2]), errors.ShapeError, "copyto"),
    ("copyto, shapes where", lambda: np.copyto(Y, X[:, :2], where=MASK), errors.ShapeError, "copyto"),
    ("copyto, where of numbers", lambda: np.copyto(Y, X, where=[1, 0, 1]), TypeError, "booleans"),
    (
        "copyto, where of another shape",
        lambda: np.copyto(Y, X, where=[True, False]),
        errors.ShapeError,
        "copyto",
    ),
    ("put, index", lambda: np.put(Y, [6], 1.0), IndexError, "index 6"),
    ("put, index of another type", lambda: np.put(Y, [0.5], 1.0), TypeError, "integers"),
    ("put, mode", lambda: np.put(Y, [0], 1.0, mode="no"), ValueError, "mode"),
    ("put into nothing", lambda: np.put(tg.zeros(0), [0], 1.0, mode="wrap"), IndexError, "no element"),
    ("place, mask", lambda: np.place(Y, MASK[0], 1.0), errors.ShapeError, "mask"),
    ("place, no values", lambda: np.place(Y, MASK, []), ValueError, "no values"),
    ("putmask, mask", lambda: np.putmask(Y, MASK[0], X), errors.ShapeError, "mask"),
    ("putmask, dtype", lambda: np.putmask(tg.tensor([1, 2]), [True, False], X[0]), TypeError, "dtype"),
    ("fill_diagonal of a vector", lambda: np.fill_diagonal(Y[0], 1.0), errors.ShapeError, "two axes"),
    (
        "fill_diagonal of lengths",
        lambda: np.fill_diagonal(tg.zeros((2, 2, 3)), 1.0),
        errors.ShapeError,
        "one length",
    ),
    ("fill_diagonal, no values", lambda: np.fill_diagonal(Y, []), ValueError, "no values"),
    ("put_along_axis, axis", lambda: np.put_along_axis(Y, HALF, 1.0, 2), errors.AxisError, "axis 2"),
    ("put_along_axis, index", lambda: np.put_along_axis(Y, HALF + 1, 1.0, 1), IndexError, "3"),
    ("put_along_axis, rank", lambda: np.put_along_axis(Y, HALF[0], 1.0, 1), errors.ShapeError, "indices"),
    ("put_along_axis, floats", lambda: np.put_along_axis(Y, HALF * 1.0, 1.0, 1), IndexError, "integers"),
    ("put_along_axis, no axis", lambda: np.put_along_axis(Y, HALF, 1.0, None), ValueError, "axis"),
    (
        "put_along_axis, no axis, index",
        lambda: np.put_along_axis(Y, np.array([7]), 1.0, None),
        IndexError,
        "index 7",
    ),
]


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_refusals(row):
    _, call, error, text = row
    before = plain(lambda x, y: (x.copy(), y.copy()), [X, Y])
    with pytest.raises(error, match=text):
        call()
    np.testing.assert_array_equal(X.detach().numpy(), before[0])
    np.testing.assert_array_equal(Y.numpy(), before[1])


@pytest.mark.parametrize(("name", "index"), [("assign", slice(1, 3)), ("scatter", [3, 0])])
def test_derivatives_of_what_is_written_to_a_constant(name, index):
    v, y = tg.tensor([1.5, -0.5], requires_grad=True), tg.tensor(np.ones(4))
    y[index] = v
    assert y.grad_fn.name().lower().startswith("copyslices" if name == "assign" else "indexput")
    (g,) = tg.grad(np.sum(y**3), v, create_graph=True)
    (h,) = tg.grad(np.sum(g * g), v)
    assert g.tolist() == [6.75, 0.75]
    assert h.tolist() == [121.5, -4.5]
