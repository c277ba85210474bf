"""Arguments that expressions alone read stay arrays of floats, and have the gradients of Tensors."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.native.arrays.argument_arrays import ArgumentArray
from tapegrad.native.arrays.array_layout import BLOCK
from tapegrad.native.arrays.reading import read_by_expressions
from tests.native.memory import counted
from tests.native.test_expressions import compare

KEPT, MADE = [], []  # functions in which x stays what it is, and others


def kept(f):
    KEPT.append(f)
    return f


def made(f):
    MADE.append(f)
    return f


@kept
def expression(x, y):
    return np.sum(np.exp(x) * y + np.tanh(x) * 2.0) + x.size * np.sum(x)


@kept
def several(x, y):
    a = x * y
    b = np.where(x > y, x, a) - np.clip(x, -0.2, y)
    return np.sum(a * b) / x.shape[0] + np.sum(x * x)


@kept
def values_read(x, y):
    m = x > 0.1
    s = 0.0
    for k in range(3):
        s += np.sum(np.where(m, x * y, y) * k) + np.sum(np.floor(x * 3.0) * y)
    return s + m.sum()


@kept
def not_one_record(x, y):
    z = x * 1j + y
    return np.sum(np.isnan(x + 0.0) * y) + np.sum(z.imag * z.real) + np.sum(np.where(x > 0.0, x, 1j).real)


@made
def elements(x, y):
    return np.sum(x * y) + x[0] * x[-1]


@made
def alias(x, y):
    z = x
    return np.sum(z * y) + np.sum(z[1:])


@kept
def results(x, y):
    """Expressions that expressions read, assigned twice, in a loop, and slices and elements of such."""
    a = x * y
    b = np.exp(a[1:]) - a[:-1]
    c = b
    for k in range(3):
        c = c * 0.5 + b - k
    d = np.where(c > 0.1, c, b)
    return np.sum(c * b) + a.shape[0] * np.sum(d) + np.sum(a[-3:-1] * 2.0) * np.sum(x[:2]) + np.sum(np.sin(d))


@kept
def on_no_tape(x, y):
    """Expressions of arrays that may have derivatives, and have none."""
    u = np.zeros(x.size) * 2.0
    v = u + 1.0
    w = v * x * y
    return np.sum(w * v) + np.sum(u) + np.sum(u[1:] * v[1:])


@kept
def of_matrices(x, y):
    """Products and rows."""
    a = np.outer(y, y) * 1.0
    b = (x * a) @ (a * 2.0)
    total = np.sum(b * b)
    for k in range(x.size):
        row = a[k] * x * y[k]
        total += np.sum(row * (a[k] + y)) + np.sum(a[k])
    return total


@made
def assigned_again(x, y):
    for _ in range(2):
        x = x * y + 1.0
    return np.sum(x)


@made
def written_to(x, y):
    a = np.sum(x * y)
    x += y
    x[0] = 2.0
    return a * np.sum(x * x)


@made
def given_on(x, y):
    return helper(x, y) + np.sum(x)


@made
def mean(x, y):
    return x.mean() + np.mean(x * y)


@tg.njit
def helper(x, y):
    return np.sum(np.sin(x) * y) + y[0]


@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.slow), BLOCK - 1, BLOCK, BLOCK + 1])
@pytest.mark.parametrize("f", KEPT + MADE, ids=lambda f: f.__name__)
def test_gradients(f, n):
    x, y = np.cos(np.arange(n) * 0.7) + 0.01, np.linspace(0.3, 2.0, n)
    before = x.copy(), y.copy()
    compare(f, (x, y), 2 if n == 2 else 1, plain=lambda x, y: f(x * 1.0, y))  # Tensors that may be written to
    np.testing.assert_array_equal((x, y), before)


def test_which_arguments_stay():
    """It is known from the function how its argument is read."""
    for f in KEPT + MADE:
        assert (0 in read_by_expressions(f)) == (f in KEPT), f.__name__
    assert ArgumentArray(1) == ArgumentArray(1) != ArgumentArray(2)


@pytest.mark.parametrize("k", [3, -4])
def test_indices_outside(k):
    """Of arguments and of results."""

    def of_argument(x):
        s = 0.0
        for i in range(k, k + 1):
            s += np.sum(x * x[i])
        return s

    def row(x):
        a, s = np.outer(x, x) * 1.0, 0.0
        for i in range(k, k + 1):
            s += np.sum(a[i] * x)
        return s

    for f in (of_argument, row):  # of one axis it is an array of numbers
        with pytest.raises(IndexError, match=f"index {k} is out of bounds for axis 0 with size 3"):
            tg.func.grad(tg.njit(f))(np.ones(3))


def table(x, y):
    return np.sum(x * y + np.exp(y) * x * x) + np.sum(x * 2.0)


SHAPES = [((3, 1), (4,)), ((5, 4), (4,)), ((1,), (BLOCK + 3,)), ((0,), (1,)), ((2, 3, 4), (3, 1)),
          ((40, 1), (1, 30)), ((), (3,))]  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES)
def test_shapes(shapes):
    x, y = (np.cos(np.arange(np.prod(s, dtype=int)) + k).reshape(s) for k, s in enumerate(shapes))
    compare(table, (x, y), 1)


def test_arguments_that_are_copied():
    """Other layouts and dtypes; and the same array twice."""
    f = tg.njit(table)
    x = np.arange(12.0).reshape(3, 4)
    wanted = tg.func.grad(f, (0, 1))(x, 0.1 * x)
    for one, other in (
        (np.asfortranarray(x), 0.1 * x),
        (x.astype(np.float32), 0.1 * x),
        (np.repeat(x, 2, 0)[::2], 0.1 * x),
    ):
        for a, b in zip(tg.func.grad(f, (0, 1))(one, other), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    same = tg.func.grad(f, (0, 1))(x[0], x[0]), tg.func.grad(f, (0, 1))(x[0], x[0].copy())
    np.testing.assert_array_equal(*same)


def test_from_compiled_code_and_within_what_is_recorded():
    gradient = tg.func.grad(tg.njit(table), (0, 1))

    @tg.njit
    def outer(x, y):
        a, b = gradient(x, y)
        return np.sum(a * a) + np.sum(b * x)

    x, y = np.linspace(0.1, 1.0, 5), np.linspace(1.0, 2.0, 5)

    def plain(x, y):
        return np.sum((y + 2.0 * np.exp(y) * x + 2.0) ** 2) + np.sum((x + np.exp(y) * x * x) * x)

    assert outer(x, y) == pytest.approx(plain(x, y))
    compare(outer, (x, y), 1, plain=plain)


def checked(s):
    if s > 1e9:
        raise ValueError("large")
    return s


def failing(x, y):
    s = CHECK(np.sum(x * y))
    return s + np.sum(np.isnan(x) * y) + y[0]


CHECK = tg.njit(checked)


fails = tg.njit(failing)  # compiled once for all that is made of it
gradient, product = tg.func.grad(fails, (0, 1)), tg.func.hvp(fails, (0, 1))
inner_product = tg.func.hvp(fails)
gradients = tg.njit(lambda x, y: np.sum(gradient(x, y)[0]))
products = tg.njit(lambda x, y: np.sum(inner_product(x, y, y)))
value_and_gradient, rows = tg.func.value_and_grad(fails), tg.func.hessian(fails)
values_and_gradients = tg.njit(lambda x, y: value_and_gradient(x, y)[0])
hessians = tg.njit(lambda x, y: np.sum(rows(x, y)))


@pytest.mark.parametrize(
    ("call", "directions"),
    [
        (gradient, 0),
        (tg.func.value_and_grad(fails, (0, 1)), 0),
        (product, 2),
        (tg.func.jvp(fails), 1),
        (tg.func.taylor(fails, 2), 1),
        (rows, 0),
        (tg.func.jacfwd(fails), 0),
        (tg.func.grad(gradients), 0),
        (tg.func.hvp(gradients), 1),
        (tg.func.grad(products), 0),
        (tg.func.grad(values_and_gradients), 0),
        (tg.func.grad(hessians), 0),
    ],
    ids=str,
)
def test_arguments_are_given_back(call, directions):
    """References to them, and to what is made of them, are as before, where the function raises too."""
    x, y = np.ones(7), np.ones(7)
    v = () if not directions else (x,) if directions == 1 else ((x, y),)

    def fail():
        with pytest.raises(ValueError, match="large"):
            call(x, y * 1e10, *v)

    def wrong():
        with pytest.raises(ValueError, match="direction"):
            call(x, y, x[:3] if directions == 1 else (x, y[:3]))

    for one in (lambda: call(x, y, *v), fail, wrong) if directions else (lambda: call(x, y, *v), fail):
        one()
        found = counted(one, 100)
        assert found.mi_alloc == found.mi_free
