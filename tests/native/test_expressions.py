"""Expressions of arrays in compiled code: values and derivatives beside those of Tensors."""

import functools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tapegrad as tg
from tapegrad.native.arrays.array_layout import BLOCK
from tapegrad.native.tapes.buffers import LARGE, LARGEST
from tests.native.memory import counted

once = functools.cache(tg.njit)  # compiled for all sizes of arrays that a function is called with
SIZES = (0, 1, 2, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5)


def smooth(x, y, c):
    return np.exp(x) * y + c * np.tanh(x - y) / (1.0 + x * x) - x**3


def kinks(x, y, c):
    return np.maximum(x, y) + np.abs(x) * np.minimum(y, c) + np.floor(x) * y - np.sign(y) * x


def scaled(x, y, c):
    return 2.0 * x - y / 4.0 + c


def total(f):
    compiled = tg.njit(f)
    return tg.njit(lambda x, y, c: np.sum(compiled(x, y, c) * np.cos(y)))


TOTALS = {f.__name__: (f, total(f)) for f in (smooth, kinks, scaled)}


def compare(f, args, order, rtol=1e-12, plain=None):
    """Gradients of a function beside those of Tensors; in second order along a direction."""
    f = f if hasattr(f, "primal") else once(f)
    moving = tuple(range(len(args)))
    found = tg.func.value_and_grad(f, moving)(*args)
    tensors = [tg.tensor(a, requires_grad=True) for a in args]
    value = (plain or f.__wrapped__)(*tensors)
    first = tg.grad(value, tensors, create_graph=order > 1)
    np.testing.assert_allclose(found[0], value.item(), rtol=rtol)
    for a, b in zip(found[1], first, strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=rtol, atol=1e-13)
    if order > 1:
        v = [np.cos(np.arange(np.size(a)) + k).reshape(np.shape(a))[()] for k, a in enumerate(args)]
        slope = sum(np.sum(g * d) for g, d in zip(first, v, strict=True))
        second = tg.grad(slope, tensors, allow_unused=True)
        along = tg.func.hvp(f, moving)(*args, tuple(v))
        for a, b in zip(along, second, strict=True):
            b = np.zeros(np.shape(a)) if b is None else b.detach().numpy()
            np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-11)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", TOTALS)
def test_every_size(name, n):
    x, y = np.linspace(-1.2, 2, n), np.cos(np.arange(n))
    plain, compiled = TOTALS[name]
    compare(compiled, (x, y, 0.3), 2, plain=lambda x, y, c: np.sum(plain(x, y, c) * np.cos(y)))


def shapes(x, y, c):
    a = x[:, None] * y + c
    b = a.T[::-1, 1:] - x[1:]
    return np.sum(a * a) + np.sum(np.sin(b)) + np.sum(a[::2, ::-3] / 3.0)


def test_shapes_and_strides():
    compare(shapes, (np.linspace(1, 2, 30), np.linspace(-1, 1, 31), 0.5), 2)


def along_axes(x, c):
    a = x.reshape((3, -1))
    s = np.sum(np.exp(a) * c + a, axis=1)
    t, m = a.sum(axis=0), np.mean(a * a, -1)
    return np.sum(np.sin(s)) + np.sum(t * t * c) + np.sum(m**3)


@pytest.mark.parametrize("n", [3, 6, 30, 3 * BLOCK - 3, 3 * BLOCK, 3 * BLOCK + 3])
def test_sums_along_axes(n):
    compare(along_axes, (np.linspace(-1, 1, n), 0.3), 2)


def along_one_of_three(x, c):
    a = x.reshape((4, 5, -1))
    rest = np.sum(a * c, axis=2)
    return np.sum(np.sum(a * a * c, axis=0) ** 2) + np.sum(np.sum(a.T, axis=1) ** 3) + np.sum(rest * rest)


@pytest.mark.parametrize("n", [20, 60, 20 * BLOCK + 20])
def test_sums_along_one_of_three_axes(n):
    compare(along_one_of_three, (np.linspace(-1, 1, n), 0.3), 2)


def of_rows(x):
    return np.sum(np.exp(np.sum(x * x, axis=1))) + x.sum(axis=0).size


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 3), (3, 1)])
def test_sums_of_few(shape):
    f = tg.func.value_and_grad(once(of_rows))
    x = np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape) / 3
    value, gradient = f(x)
    rows = np.exp(np.sum(x * x, axis=1))
    assert value == pytest.approx(rows.sum() + shape[1], rel=1e-14)
    np.testing.assert_allclose(gradient, 2 * x * rows[:, None], rtol=1e-14)


@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_that_is_not_there(axis):
    with pytest.raises(ValueError, match="2 axes"):
        tg.func.grad(tg.njit(lambda x, k: np.sum(np.sum(x * x, axis=k))))(np.ones((2, 3)), axis)


def chosen(x, y, c):
    a = (x > 0.0) * x * x + (y <= x) * np.exp(y) * c + (x == y) * 2.0
    k = np.arange(x.size)
    return np.sum(a * k * (c != 0.0)) + np.sum((k % 3) * (k > 1) * x) + np.sum((k % 2 == 0) * y)


def limited(x, y, c):
    a = np.clip(x, -0.5, 0.5) * y + np.clip(x, y, None) + np.clip(c, x, y) + np.clip(x, x[0], y)
    return np.sum(a * a) + np.sum(np.clip(x.reshape((1, -1)), None, y[:, None][:3]))


def either(x, y, c):
    m = x > y
    a = np.where(m, x * y, c) + np.where((x > 0.0) & ~m | (y < -0.5), np.exp(x), y)
    return np.sum(a * a) + np.sum(np.where(x.reshape((1, -1)) > y[:, None][:3], np.where(m, c, y), x) ** 2)


@pytest.mark.parametrize("n", [4, BLOCK + 1])
@pytest.mark.parametrize("f", [chosen, limited, either])
def test_comparisons_and_limits(f, n):
    x = np.linspace(-1, 1, n)
    y = np.where(np.arange(n) % 4 == 0, x, np.cos(np.arange(n)))
    compare(f, (x, y, 0.3), 2)


def planes(x, c):
    a = x.reshape((4, 5, 6))
    b = a[:, 2:3, :] * a + c * a[1]
    return np.sum(b[:, :, ::2] * b[:, ::-1, ::2]) + np.sum(a * 2.0)


def test_three_axes():
    compare(planes, (np.linspace(0.1, 1, 120), 0.7), 2)


def partly(x, c):
    """Numbers on the tape beside others, in any order."""
    a = np.zeros_like(x)
    for i in range(0, x.size, 3):
        a[i] = x[x.size - 1 - i]
    b = a * a + c * np.exp(a)
    a[::2] = b[::-2]
    return np.sum(a * b) + np.sum(b)


def test_arrays_that_are_partly_active():
    for n in (5, BLOCK + 3):
        n += 1 - n % 2
        compare(partly, (np.linspace(-1, 1, n), 0.2), 2)


def late(x, c):
    """The first element that is on the tape comes in a later block."""
    a = np.zeros_like(x)
    a[2 * BLOCK :] = x[2 * BLOCK :]
    return np.sum(np.exp(a) * c) + np.sum(a * a)


def test_the_first_active_element_comes_late():
    compare(late, (np.linspace(-1, 1, 3 * BLOCK + 1), 1.5), 2)


def constant(x, y):
    a = np.zeros(x.size)
    b = np.exp(a) + 1.0
    return np.sum(b * y) + x[0]


def test_what_is_on_no_tape_is_not_recorded():
    x = np.linspace(0, 1, BLOCK + 9)
    g = tg.func.grad(tg.njit(constant), (0, 1))(x, x)
    np.testing.assert_array_equal(g[0], np.eye(1, x.size)[0])
    np.testing.assert_array_equal(g[1], np.full(x.size, 2.0))


def stencil(u, c):
    u = u.copy()
    for _ in range(5):
        u[1:-1] = u[1:-1] + c * (u[2:] - 2.0 * u[1:-1] + u[:-2])
        u[:-1] *= u[1:]
        u += 0.1
    return np.sum(u * np.arange(u.size))


STENCIL = tg.njit(stencil)


@pytest.mark.parametrize("n", [3, 10, BLOCK, BLOCK + 2, 2 * BLOCK + 3])
def test_writes_to_what_is_read(n):
    compare(STENCIL, (np.linspace(0.5, 1, n), 0.1), 2)


def division(x, y):
    return np.sum(np.sqrt(x) * y) + np.sum(y / np.where(x > 0.0, x, 1.0))


def test_a_zero_between_two_records_is_a_factor():
    def f(x, y):
        s = np.sqrt(x)
        t = s * y
        return np.sum(t)

    x, y = np.array([0.0, 4.0]), np.array([0.0, 1.0])
    np.testing.assert_array_equal(tg.func.grad(tg.njit(f))(x, y), [np.nan, 0.25])
    x[0] = 1e-300
    compare(division, (x, y), 1)


@pytest.mark.parametrize("zero", ["0.0", "0", "-0.0"])
def test_zero_times_infinity(zero):
    """A literal too; an exponent of 0 gives 1."""
    f = tg.njit(eval(f"lambda x: np.sum(x * {zero}) + np.sum(x ** 0)"))
    for value, expected in ((np.inf, np.nan), (np.nan, np.nan), (2.0, 1.0)):
        x = tg.tensor([value], requires_grad=True)
        np.testing.assert_array_equal(f(x).detach().numpy(), expected)
        np.testing.assert_array_equal(tg.grad(f(x), x)[0], [0.0])


def sines(x):
    y = x + 0.0
    y[:] = np.sin(y) + 2.0 * np.cos(y)
    return np.sum(y)


FAR = [1e16, -1e19, 1e300, np.inf]


@pytest.mark.parametrize(("far", "order"), [
    *((far, 1) for far in FAR),
    *(pytest.param(far, 2, marks=pytest.mark.slow) for far in FAR),
])  # fmt: skip
def test_sines_of_far_numbers(far, order):
    """Vector forms are right only near 0; blocks with other numbers are computed without."""
    f = once(sines)
    x = np.cos(np.arange(2.0 * BLOCK))
    x[BLOCK + 3] = far
    with np.errstate(invalid="ignore"):
        value, gradient = tg.func.value_and_grad(f)(x)
        expected = np.cos(x) - np.sin(x) * 2.0
        total = np.sum(np.sin(x) + 2.0 * np.cos(x))
        np.testing.assert_allclose(value, total, rtol=1e-12)
        np.testing.assert_allclose(gradient, expected, rtol=1e-13)
        if order == 2:
            along = tg.func.hvp(f)(x, np.ones(x.size))
            np.testing.assert_allclose(along, -np.sin(x) - 2.0 * np.cos(x), rtol=1e-13)


def test_operands_that_do_not_fit():
    f = tg.func.grad(tg.njit(lambda x, y: np.sum(x * y)))
    with pytest.raises(ValueError, match="broadcast"):
        f(np.ones(3), np.ones(4))
    assert f(np.ones(3), np.ones(3)).tolist() == [1.0, 1.0, 1.0]


def sum_of_products(x):
    return np.sum(np.exp(x) * x)


def squares_and_one(x):
    return x * x + 1.0


@pytest.mark.parametrize("nbytes", [LARGE - 24, LARGE, LARGE + 24, LARGEST, LARGEST + 24])
def test_memory_of_large_arrays_is_used_again_and_returned(nbytes):
    x = np.linspace(0, 1, nbytes // 24)
    f, g = once(sum_of_products), once(squares_and_one)
    t = tg.tensor(x, requires_grad=True)
    for _ in range(2):
        np.testing.assert_allclose(tg.func.grad(f)(x), np.exp(x) * (1 + x), rtol=1e-14)
        (found,) = tg.grad(np.sum(g(t)), t)
        np.testing.assert_allclose(found.numpy(), 2 * x)
    found = counted(lambda: tg.func.grad(f)(x), 3)
    assert found.alloc == found.free
    assert found.mi_alloc == found.mi_free


def test_memory_of_copies_is_returned():
    """Of operands that are no floats copies are made."""
    f = tg.njit(lambda x, mask, k, axis: np.sum(np.sum((x * mask + k * x) * (x > 0.0), axis=axis)))
    x, mask, k = np.linspace(-1, 1, 12).reshape((3, 4)), np.arange(12).reshape((3, 4)) > 4, np.arange(4)
    gradient = tg.func.grad(f)
    np.testing.assert_allclose(gradient(x, mask, k, 1), (mask + k) * (x > 0))
    found = counted(lambda: gradient(x, mask, k, 0), 100)
    assert found.alloc == found.free
    assert found.mi_alloc == found.mi_free


def test_an_expression_is_one_record(recordings):
    """Partials that differ take 8 bytes an element, and nothing else more than some words a block."""
    f = tg.njit(lambda x, y: x * y + 2.0 * x)
    n = 100 * BLOCK
    x, y = (tg.tensor(np.ones(n), requires_grad=True) for _ in range(2))
    found = f(x, y)
    (recording,) = recordings
    assert 16 * n < recording.nbytes < 17 * n
    assert tg.grad(np.sum(found), [x, y])[0].tolist()[:2] == [3.0, 3.0]


def alike(z, x, y, c):
    return np.sum(np.sin(x * (y + c * z) - z))


def test_partials_alike_but_for_a_factor_are_kept_once(recordings):
    """A number of the function's may be the factor; derivatives have the bits of partials of their own."""
    f, n = tg.njit(lambda x, y, z, w, c: x * (y + c * z - w)), 100 * BLOCK
    x = np.resize([0.3, -2.0, np.inf, np.nan, 1e-310, 0.0], n)
    for c in (0.1, 0.0, 1e-300, np.inf):
        given = [tg.tensor(a, requires_grad=True) for a in (x, np.ones(n), np.ones(n), x + 1.0)]
        found = f(*given, c)
        assert 16 * n < recordings[-1].nbytes < 17 * n
        gradients = tg.grad(np.sum(found * 0.7), given)
        with np.errstate(all="ignore"):
            expected = 1.0 + c - (x + 1.0), x, x * c, -x
        for one, partial in zip(gradients, expected, strict=True):
            np.testing.assert_array_equal(one.numpy(), 0.7 * partial)
        recordings.clear()
    compare(alike, (*(np.cos(np.arange(BLOCK + 3.0) + k) for k in range(3)), 0.3), 2)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_random_layouts(data):
    """Products of slices of two arrays: any start, any step, any axes."""
    rows, columns = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 20))
    steps = st.sampled_from([-3, -2, -1, 1, 2, 3])
    r, c, s, d = (data.draw(steps) for _ in range(4))
    x = np.cos(np.arange(rows * columns, dtype=float)).reshape(rows, columns)
    y = np.sin(np.arange(rows * columns, dtype=float)).reshape(rows, columns)
    args = x, y, r, c, s, d
    found = LAYOUTS(*args)
    a, b = (tg.tensor(v, requires_grad=True) for v in (x, y))
    value = layouts(a, b, r, c, s, d)
    first = tg.grad(value, [a, b])
    np.testing.assert_allclose(found[0], value.item(), rtol=1e-13)
    for v, w in zip(found[1], first, strict=True):
        np.testing.assert_allclose(v, w.numpy(), rtol=1e-13, atol=1e-14)


def layouts(x, y, r, c, s, d):
    a, b = x[::r, ::c], y[::s, ::d]
    m, n = min(a.shape[0], b.shape[0]), min(a.shape[1], b.shape[1])
    z = a[:m, :n] * b[:m, :n] + x[:m, :n]
    return np.sum(z * z) + np.sum(a[:m, 0] * b[0, 0])


LAYOUTS = tg.func.value_and_grad(tg.njit(layouts), (0, 1))


def test_the_slope_of_tanh_by_the_parts_of_its_value():
    """Beside the exact one, 4 / (e**x + e**-x)**2 in extended precision; the next one by the rule."""
    x = np.concatenate([np.linspace(-25.0, 25.0, 2_001), np.linspace(-380.0, 380.0, 999),
                        10.0 ** np.linspace(-300, 0, 301),
                        [0.0, -0.0, 0.8, -0.8, 350.0, -1e300]])  # fmt: skip
    function = tg.njit(lambda x: np.sum(np.tanh(x)))
    wide = x.astype(np.longdouble)
    with np.errstate(over="ignore"):
        exact = 4 / np.square(np.exp(wide) + np.exp(-wide))
    slope = tg.func.grad(function)(x)
    assert np.max(np.abs(slope - exact) / np.spacing(exact.astype(float))) < 4
    second = tg.func.hvp(function)(x, np.ones_like(x))
    np.testing.assert_allclose(second, -2 * np.tanh(x) * slope, rtol=1e-13, atol=1e-15)
    assert np.isnan(tg.func.grad(function)(np.array([np.nan, 1.0]))[0])
