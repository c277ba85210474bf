"""Methods and keyword arguments of ufuncs on Tensors: NumPy's values, derivatives checked by differences."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import errors

VALUES = np.array([[1.1, 2.3, 0.7], [2.9, 1.7, 3.1]])
WHOLE = [np.add, np.multiply, np.maximum, np.minimum, np.fmax, np.fmin, np.logaddexp, np.logaddexp2]
STEPWISE = [np.subtract, np.divide, np.hypot, np.remainder, np.copysign, np.fmod]
BINARY = WHOLE + STEPWISE
FORMS = [
    {},
    {"axis": 1},
    {"axis": -1, "keepdims": True},
    {"initial": 2.5, "axis": 1},
    {"axis": 1, "initial": None},
    {"axis": 1, "initial": 2.6, "where": [[True, False, True]]},
    {"axis": 0, "initial": 0.4, "where": [[True], [False]], "keepdims": True},
]


def leaf(value=VALUES):
    return tg.tensor(value, requires_grad=True)


def right(function, inputs, wanted, twice=True):
    """Value, dtype and shape as wanted; first and second derivatives by differences."""
    found = function(*inputs)
    wanted = np.asarray(wanted)
    assert found.requires_grad
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-14)
    assert tg.gradcheck(function, inputs, atol=1e-6, rtol=1e-6)
    assert not twice or tg.gradgradcheck(function, inputs, atol=1e-5, rtol=1e-5)


def plain(function, inputs):
    return function(*(x.detach().numpy() for x in inputs))


# ---------------------------------------------------------------- reduce


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("ufunc", BINARY, ids=lambda f: f.__name__)
def test_reduce(ufunc, form):
    inputs = [leaf()]
    f = lambda x: ufunc.reduce(x, **form)
    right(f, inputs, plain(f, inputs), form == FORMS[-1])


@pytest.mark.parametrize("ufunc", BINARY, ids=lambda f: f.__name__)
def test_tangents_of_a_reduction_in_which_nothing_counts(ufunc):
    """The result is the initial value, whatever moves: in log space from exp(-inf) + exp(-inf) on."""
    f = lambda x: ufunc.reduce(x, axis=1, initial=2.6, where=[[True, False, True], [False] * 3])
    direction = np.cos(VALUES)
    wanted = tg.func.jacrev(f)(VALUES).reshape(2, -1) @ direction.ravel()
    assert wanted[1] == 0.0
    np.testing.assert_allclose(tg.func.jvp(f)(VALUES, direction)[1], wanted, rtol=1e-13)
    np.testing.assert_allclose(tg.func.taylor(f, 2)(VALUES, direction)[1], wanted, rtol=1e-13)


@pytest.mark.parametrize("axis", [None, (0, 1), ()])
@pytest.mark.parametrize("ufunc", [*WHOLE, np.hypot], ids=lambda f: f.__name__)
def test_reduce_over_axes(ufunc, axis):
    inputs = [leaf()]
    f = lambda x: ufunc.reduce(x, axis)
    right(f, inputs, plain(f, inputs), axis is None)


@pytest.mark.parametrize("ufunc", BINARY, ids=lambda f: f.__name__)
def test_reduce_in_another_dtype(ufunc):
    found = ufunc.reduce(leaf(), dtype=np.float32)
    wanted = ufunc.reduce(VALUES, dtype=np.float32)
    assert found.dtype == wanted.dtype == np.float32
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-6)
    single = ufunc.reduce(leaf(VALUES.astype("f")), initial=1.5)
    assert single.dtype == np.float32
    assert single.requires_grad


@pytest.mark.parametrize("ufunc", BINARY, ids=lambda f: f.__name__)
def test_the_initial_value_has_a_derivative(ufunc):
    x, start = leaf(VALUES[0]), leaf(2.45)
    right(
        lambda x, start: ufunc.reduce(x, initial=start),
        [x, start],
        ufunc.reduce(VALUES[0], initial=2.45),
        False,
    )


@pytest.mark.parametrize(
    ("ufunc", "by_hand"),
    [
        (np.power, lambda x: (x[0] ** x[1]) ** x[2]),
        (np.arctan2, lambda x: np.arctan2(np.arctan2(x[0], x[1]), x[2])),
    ],
)
def test_reduce_is_what_it_is_defined_as(ufunc, by_hand):
    """NumPy's own loops of these two are wrong on machines with AVX-512."""
    right(ufunc.reduce, [leaf(VALUES[0])], by_hand(VALUES[0]))


def test_a_length_of_one_element_is_none_below_zero():
    x = leaf([[-2.0, 3.0, -0.5]])
    for call, signs in (
        (lambda x: np.hypot.reduce(x, axis=0), [-1, 1, -1]),
        (lambda x: np.hypot.reduce(x[:, 0:1], axis=1, keepdims=True), [-1, 0, 0]),
        (lambda x: np.hypot.reduceat(x, [0, 1, 2], axis=1), [1, 1, 1]),  # NumPy takes these as they are
        (lambda x: np.hypot.accumulate(x, axis=0), [1, 1, 1]),
    ):
        found = call(x)
        np.testing.assert_array_equal(found.detach().numpy(), call(x.detach().numpy()))
        np.testing.assert_array_equal(tg.grad(found.sum(), x)[0].numpy(), [signs])


def test_reduce_splits_ties_and_skips_nan():
    x = leaf([2.0, np.nan, 2.0, 1.0, 2.0])
    for ufunc, wanted in ((np.fmax, [1 / 3, 0, 1 / 3, 0, 1 / 3]), (np.fmin, [0, 0, 0, 1, 0])):
        np.testing.assert_array_equal(tg.grad(ufunc.reduce(x), x)[0].numpy(), wanted)
    x = leaf([2.0, 1.0, 2.0])
    np.testing.assert_array_equal(tg.grad(np.maximum.reduce(x), x)[0].numpy(), [0.5, 0, 0.5])
    assert np.isnan(np.fmax.reduce(leaf([np.nan, np.nan])).item())
    x = leaf([0.0, 0.0, 0.0])
    np.testing.assert_array_equal(tg.grad(np.hypot.reduce(x), x)[0].numpy(), [0, 0, 0])
    x = leaf([0.0, 2.0, 3.0])
    np.testing.assert_array_equal(tg.grad(np.multiply.reduce(x), x)[0].numpy(), [6, 0, 0])


@pytest.mark.parametrize("ufunc", [np.add, np.multiply, np.maximum, np.hypot, np.subtract])
def test_reduce_of_no_elements(ufunc):
    x, start = leaf(np.zeros((0, 2))), leaf(3.0)
    found = ufunc.reduce(x, initial=start)
    np.testing.assert_array_equal(found.detach().numpy(), [3.0, 3.0])
    assert tg.grad(np.sum(found), start)[0].item() == 2.0
    long = ufunc.reduce(leaf(np.ones((2, 0))), axis=0, initial=1.0)
    assert long.shape == (0,)


@pytest.mark.parametrize("ufunc", [np.greater, np.logical_and, np.floor_divide])
def test_methods_of_steps_have_no_history(ufunc):
    x = leaf(np.array([3.0, 2.0, 1.0]))
    assert not np.asarray(ufunc.outer(x, [2.0, 0.5]).requires_grad)
    np.testing.assert_array_equal(
        ufunc.outer(x, [2.0, 0.5]).numpy(), ufunc.outer(x.detach().numpy(), [2.0, 0.5])
    )
    if ufunc is not np.greater:
        assert np.asarray(ufunc.reduce(x).numpy()) == ufunc.reduce(x.detach().numpy())


def test_methods_of_floor_divide_give_first_elements_as_they_are():
    """Which have a derivative, as all else is whole numbers."""
    x = leaf([[5.5, 1.5, 2.5], [3.5, 2.5, 1.5]])
    for f in (
        lambda x: np.floor_divide.accumulate(x, 1),
        lambda x: np.floor_divide.reduceat(x, [0, 2, 1], axis=1),
        lambda x: np.floor_divide.reduce(x[:, :1], axis=1),
    ):
        right(f, [x], plain(f, [x]), twice=False)


# ---------------------------------------------------------------- accumulate, outer, reduceat


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("ufunc", [*BINARY, np.power], ids=lambda f: f.__name__)
def test_accumulate(ufunc, axis):
    inputs = [leaf()]
    right(lambda x: ufunc.accumulate(x, axis), inputs, ufunc.accumulate(VALUES, axis), axis == 1)
    assert ufunc.accumulate(leaf(), axis, dtype="f").dtype == np.float32
    assert ufunc.accumulate(leaf(np.zeros((0, 2)))).shape == (0, 2)


def test_running_extremes_follow_the_last_of_equal_elements():
    """As torch's cummax; nan is an extreme, except to fmax and fmin."""
    rows = [
        (np.maximum, [1, 2, 2, 1], [1, 1, 2, 0]),
        (np.minimum, [2, 1, 1, 2], [1, 1, 2, 0]),
        (np.maximum, [1, np.nan, 3], [1, 2, 0]),
        (np.fmax, [np.nan, 1, np.nan, 0], [1, 3, 0, 0]),
        (np.fmin, [3, np.nan, 2], [2, 0, 1]),
    ]
    for ufunc, values, wanted in rows:
        x = leaf(np.array(values, float))
        out = ufunc.accumulate(x)
        np.testing.assert_array_equal(out.detach().numpy(), ufunc.accumulate(np.array(values, float)))
        np.testing.assert_array_equal(tg.grad(out, x, np.ones(out.shape))[0].numpy(), wanted)


@pytest.mark.parametrize("ufunc", [*BINARY, np.power, np.arctan2], ids=lambda f: f.__name__)
def test_outer(ufunc):
    a, b = leaf(), leaf([0.6, 1.9])
    right(ufunc.outer, [a, b], ufunc.outer(VALUES, [0.6, 1.9]))
    assert ufunc.outer([1.0, 2.0], b).shape == (2, 2)
    assert ufunc.outer(b, 2.0, dtype="f").dtype == np.float32


@pytest.mark.parametrize("indices", [[0, 2], [0, 2, 1], [1], [2, 0, 0, 1]], ids=str)
@pytest.mark.parametrize("ufunc", [*WHOLE, np.subtract, np.hypot], ids=lambda f: f.__name__)
def test_reduceat(ufunc, indices):
    wanted = ufunc.reduceat(VALUES, indices, axis=1)
    right(lambda x: ufunc.reduceat(x, indices, axis=-1), [leaf()], wanted, len(indices) == 4)
    assert ufunc.reduceat(leaf(), [0, 1], dtype="f").dtype == np.float32


# ---------------------------------------------------------------- at

INDICES = [
    ([0, 0, 1, 0], [1, 1, 2, 1]),
    (slice(None), [0, 2, 2]),
    1,
    [1, 1],
    np.array([[True, False, True], [False] * 3]),
    (Ellipsis, 0),
    (0, 1),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize(
    "ufunc",
    [np.add, np.subtract, np.multiply, np.divide, np.maximum, np.hypot, np.power],
    ids=lambda f: f.__name__,
)
def test_at(ufunc, index):
    shape = VALUES[index].shape
    operand = np.random.default_rng(4).uniform(0.5, 1.5, shape)

    def call(x, v):
        y = x * 1.0
        assert ufunc.at(y, index, v) is None
        return y

    wanted = VALUES.copy()
    ufunc.at(wanted, index, operand)
    x, v = leaf(), leaf(operand)
    found = call(x, v)
    np.testing.assert_array_equal(found.detach().numpy(), wanted)
    right(call, [x, v], wanted, index is INDICES[0])
    right(lambda x: call(x, 0.75), [x], plain(lambda x: call(x, 0.75), [x]), False)


def test_at_with_zeros_and_views():
    x, v = leaf([2.0, 3.0]), leaf([0.0, 5.0, 7.0])
    y = x * 1.0
    part = y[:1]
    np.multiply.at(y, [0, 0, 1], v)
    np.testing.assert_array_equal(y.detach().numpy(), [0, 21])
    assert part.tolist() == [0.0]
    gx, gv = tg.grad(np.sum(part) + np.sum(y), [x, v])
    np.testing.assert_array_equal(gx.numpy(), [0, 7])
    np.testing.assert_array_equal(gv.numpy(), [20, 0, 3])


def test_at_of_one_operand_and_of_constants():
    x = leaf([2.0, 3.0])
    y = x * 1.0
    np.square.at(y, [0, 0])
    np.testing.assert_array_equal(y.detach().numpy(), [16, 3])
    np.testing.assert_array_equal(tg.grad(np.sum(y), x)[0].numpy(), [32, 1])
    c = tg.zeros(3)
    np.add.at(c, [0, 0, 2], [1.0, 2.0, 3.0])
    assert c.tolist() == [3.0, 0.0, 3.0]
    assert not c.requires_grad
    np.add.at(c, [1], x[:1])
    assert c.requires_grad
    array = np.zeros(2)
    np.add.at(array, tg.tensor([1, 1]), tg.ones(2))
    assert array.tolist() == [0.0, 2.0]
    single = leaf(np.ones(3, "f")) * np.float32(1)
    np.multiply.at(single, [0, 0], leaf([2.0, 3.0]))
    assert single.dtype == np.float32
    assert single.tolist() == [6.0, 1.0, 1.0]


# ---------------------------------------------------------------- keyword arguments of calls

HOLDS = np.array([True, False, True])


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y, out: np.divide(x, y, out=out, where=HOLDS),
        lambda x, y, out: np.sqrt(x * y, out=out, where=HOLDS),
        lambda x, y, out: np.multiply(x, 2, out=out, where=tg.tensor(HOLDS)),
        lambda x, y, out: np.subtract(y[0], x, out=out, where=[[True, True, False], [False] * 3]),
        lambda x, y, out: np.power(x, y, out=out, where=False),
        lambda x, y, out: np.add(x, y, out=out, where=HOLDS, dtype=float, casting="safe"),
    ],
)
def test_where_writes_into_out(call):
    def function(x, y, start):
        out = start * 1.0
        assert call(x, y, out) is out
        return out

    inputs = [leaf(), leaf([0.5, 1.5, 2.5]), leaf(VALUES + 5)]
    right(function, inputs, plain(function, inputs))


def test_where_keeps_away_from_what_is_not_selected():
    """The quotient by zero is never computed, so its derivative is no nan."""
    a, b = leaf([1.0, 2.0]), leaf([0.0, 4.0])
    out = np.divide(a, b, out=np.zeros_like(a), where=b != 0)
    assert out.tolist() == [0.0, 0.5]
    ga, gb = tg.grad(np.sum(out), [a, b])
    np.testing.assert_array_equal(ga.numpy(), [0, 0.25])
    np.testing.assert_array_equal(gb.numpy(), [0, -0.125])
    x = leaf(3.0)
    out = tg.tensor(0.0)
    np.log(x, out=out, where=np.array(False))
    assert out.item() == 0.0
    with tg.no_grad():
        out = np.full(2, 9.0)
        np.sin(a, out=out, where=[False, True])
    np.testing.assert_array_equal(out, [9.0, np.sin(2.0)])


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.add(x, 1, dtype="f"),
        lambda x: np.exp(x, dtype=np.float32),
        lambda x: np.multiply(x, np.arange(3), casting="same_kind", order="C"),
        lambda x: np.hypot(x, 2.0, signature="ff->f"),
        lambda x: np.divide(3, x, dtype=float, subok=False),
        lambda x: np.maximum(x, [1, 2, 3], signature=(None, None, "d")),
        lambda x: np.modf(x, dtype="f")[0],
    ],
)
def test_dtypes(call):
    for dtype in "df":
        x = leaf(VALUES.astype(dtype))
        found, wanted = call(x), call(VALUES.astype(dtype))
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-6)
        (g,) = tg.grad(np.sum(found), x)
        assert g.dtype == x.dtype
        wide = leaf(VALUES)
        np.testing.assert_allclose(g.numpy(), tg.grad(np.sum(call(wide)), wide)[0].numpy(), rtol=1e-5)


def test_out_with_where_keeps_the_derivative_of_what_stays():
    """Also where only that has one: by itself `out=` replaces everything, and is refused instead."""
    x = leaf()
    y = x * 2.0
    out = np.sin(VALUES, out=y, where=VALUES > 0)
    assert out is y
    (g,) = tg.grad(np.sum(out), x)
    np.testing.assert_array_equal(g.numpy(), np.where(VALUES > 0, 0.0, 2.0))
    zeros = VALUES * 0
    for operands, given in (((VALUES,), x * 2.0), ((x,), tg.tensor(zeros)), ((x,), zeros)):
        before = given.tolist()
        with pytest.raises(errors.UnsupportedOpError, match="out= has no derivative"):
            np.sin(*operands, out=given)
        assert given.tolist() == before


# ---------------------------------------------------------------- errors

X = leaf()
REFUSED = [
    ("where= without out=", lambda: np.sin(X, where=X > 0), errors.UnsupportedOpError, "out="),
    (
        "where= into an array",
        lambda: np.sin(X, out=np.zeros((2, 3)), where=X > 0),
        errors.UnsupportedOpError,
        "out=",
    ),
    (
        "where= of another shape",
        lambda: np.sin(X, out=tg.zeros((2, 3)), where=[True, False]),
        errors.ShapeError,
        "where=",
    ),
    ("where= into a leaf", lambda: np.sin(X, out=X, where=X > 0), errors.GradientError, "leaf"),
    ("out= of another shape", lambda: np.sin(X, out=tg.zeros(3), where=X > 0), errors.ShapeError, "where="),
    ("casting", lambda: np.add(X, 1, dtype="f", casting="safe"), TypeError, "cast"),
    ("dtype", lambda: np.add(X, 1, dtype=int), TypeError, "cast"),
    ("reduce with where=", lambda: np.maximum.reduce(X, where=X > 0), ValueError, "initial"),
    ("reduce of nothing", lambda: np.maximum.reduce(leaf(np.zeros((0, 2)))), errors.ShapeError, "identity"),
    ("reduce over axes", lambda: np.subtract.reduce(X, axis=(0, 1)), errors.ShapeError, "reorderable"),
    ("axis of reduce", lambda: np.logaddexp.reduce(X, axis=2), errors.AxisError, "axis 2"),
    ("axis of accumulate", lambda: np.hypot.accumulate(X, axis=2), errors.AxisError, "axis 2"),
    ("axis of a running maximum", lambda: np.maximum.accumulate(X, axis=-3), errors.AxisError, "axis -3"),
    ("axis of a running product", lambda: np.multiply.accumulate(X, axis=2), errors.AxisError, "axis 2"),
    ("index of reduceat", lambda: np.add.reduceat(X, [0, 2]), IndexError, "2"),
    ("index of at", lambda: np.add.at(X * 1.0, [2], 1.0), IndexError, "2"),
    ("shape of at", lambda: np.add.at(X * 1.0, [1], np.ones(2)), ValueError, "broadcast"),
    ("at of a leaf", lambda: np.add.at(X, [1], 1.0), errors.GradientError, "leaf"),
    ("at of a leaf, one by one", lambda: np.multiply.at(X, [1], 1.0), errors.GradientError, "leaf"),
    ("at of an array", lambda: np.add.at(np.zeros((2, 3)), [1], X[0]), errors.BorderError, "Tensor"),
    ("at of integers", lambda: np.add.at(tg.tensor([1, 2]), [1], X[0, :1]), TypeError, "cast|dtype"),
    (
        "at without derivative",
        lambda: np.nextafter.outer(X, X).sum() and np.floor.at(X * 1.0, [1]),
        errors.UnsupportedOpError,
        "floor.at",
    ),
    ("outer with where=", lambda: np.add.outer(X, X, where=True), errors.UnsupportedOpError, "outer, where="),
    ("reduce without derivative", lambda: np.bitwise_and.reduce(X), TypeError, "bitwise|derivative"),
]


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_refusals(row):
    _, call, error, text = row
    with pytest.raises(error, match=text):
        call()
