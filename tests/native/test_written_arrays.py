"""Arrays that are written to as a whole or at slices, and read by expressions: beside Tensors."""

import gc
import inspect

import numpy as np
import pytest
from numba.core.compiler import run_frontend
from numba.core.runtime import _nrt_python, rtsys

import tapegrad as tg
from tapegrad.native.arrays.array_layout import BLOCK
from tapegrad.native.arrays.reading import Reading
from tests.native.test_expressions import compare, once


def in_place(x, y):
    a = x * 2.0
    a[1:] += y[1:]
    a[:-1] = a[1:] * a[:-1]
    z = np.zeros(x.size)
    z += a
    z[:] = z * z + a
    b = a
    b[0] = 3.0
    b[1:] = b[:-1] * y[1:]
    return np.sum(b * z) + np.sum(a[2:])


def rows(x, y):
    c = np.zeros((3, x.size))
    c[:] = x * y
    c[1:] = c[:-1] * c[1:] + y
    d = np.empty((3, x.size))
    d[:] = 2.0
    d[2:] = x
    d[0] = y * 1.0
    return np.sum(c * c * d) + c.shape[1]


def heat(x, y):
    u = x * 1.0
    for _ in range(5):
        u[1:-1] = u[1:-1] + 0.1 * y[1:-1] * (u[2:] - 2.0 * u[1:-1] + u[:-2])
    return np.sum(u * u)


def far(x, y):
    """Windows that overlap by more than a block, and one number that is read by all."""
    u, m = x * y, x.size // 2
    u[m:] = u[:-m] * u[m:] + y[m:] if x.size % 2 == 0 else u[m:] * 2.0
    u[m:] += u[m:] * y[m:]
    u[1:] = u[:1] * u[1:]
    u[:] = u[1:2] * x
    return np.sum(u * u)


def shifted(x, y):
    """Windows that overlap by a block, and by one number more or less."""
    u = x * y
    for m in (255, 256, 257):
        u[m:] = u[:-m] * u[m:] + y[m:]
        u[:-m] = u[m:] * y[:-m] + u[:-m]
    return np.sum(u * u)


def made_again(x, y):
    u = np.zeros(x.size)
    for k in range(4):
        u = u * 0.5 + x
        u[1:] = u[:-1] * y[1:]
        if k == 2:
            u[2:] = 0.0
    return np.sum(u * u)


def numbers(x, y):
    u = np.zeros(x.size)
    s = np.sum(x) * 0.1
    u[0] = s
    u[1:] = s * 2.0
    u[2:] = 1
    u += s
    u *= 2
    u /= y
    return np.sum(u * y * y)


def constants_over(x, y):
    u = x * y
    v = u * 1.0
    v[1:] = 2.0
    v[:1] += 1.0
    return np.sum(v * u)


def compared(x, y):
    u = x * y
    u[1:] = u[1:] * 2.0
    m = u > 0.3
    u[:-1] = np.where(u[1:] > 0.2, u[:-1], y[1:])
    w = np.where(m, u, 1.0)
    u[1:] = w[1:] + np.maximum(u[:-1], 0.1)
    t = np.isnan(u + 0.0) * y + u
    u[:1] = 0.0
    return np.sum(w) + np.sum(u * t)


def in_products(x, y):
    """What a product has read is written to afterwards."""
    a = np.zeros((x.size, x.size))
    a[:] = x * y
    s = np.sum(a @ a)
    a[1:] = a[:-1] * 2.0
    return s + np.sum(a @ x)


def of_floats(x, y):
    """What is written to is floats, and whole numbers, and complex."""
    c = np.arange(x.size) * 2.0
    c[1:] = c[:-1] * 2.0
    c += 1.0
    k = np.arange(x.size) * 2
    k[:1] = 7
    k += k
    z = x * 1j
    z[1:] = y[1:] * 2.0
    return np.sum(c * x) + np.sum(k * y) + np.sum(z.imag * y + z.real)


def products(x, y):
    """Results of products, of every way in which these are computed, which expressions read."""
    n = x.size
    a, few, g = np.zeros((n, n)), np.zeros((3, n)), x * y
    a[:] = x * y
    a[1:] += 0.5 * a[:-1]
    few[1:] = y * 0.25
    few[0] = x * 1.0
    b = few @ a
    c = np.dot(b * 2.0, a) - b
    d = a @ (x - y)
    e = x @ a + np.dot(a, d)
    f = (few @ few[0]) * (x[:3] @ few[:, :3] if n < 4 else 1.0 + np.sum(d) * np.ones(3))
    b = c * b
    for _ in range(3):
        g = np.tanh(0.1 * (a @ g)) + 0.1 * g
    return np.sum(b * c) + np.sum(np.sin(e)) + np.sum(f) + np.sum(g * g)


def products_over(x, y):
    """What is written to after it was read by a product, or is a product itself."""
    a = np.zeros((x.size, x.size))
    a[:] = x * 0.5
    p = a @ y
    p[1:] = p[:-1] * 2.0
    a[1:] = y * 0.5
    q = a @ a
    q[0] = p * 1.0
    q += a
    return np.sum(q * q) + np.sum(p)


def sums_along(x, y):
    a = np.zeros((4, x.size))
    for k in range(4):
        a[k] = x * y + k * x
    s, t = np.sum(a * a, axis=1), np.sum(np.sin(a), 0)
    u = np.sum(a, axis=0)
    u[1:] = u[:-1] * t[1:]
    for k in range(3):
        u = np.maximum(a[k] * x, u)
    v = a[0]
    for k in range(1, 4):
        v = v + a[k] * u
    a[-1] = np.sum(x * y, axis=0)
    return np.sum(s * np.exp(-s)) + np.sum(t * u * v) + np.sum(np.sum(a, axis=1) * s)


def sums_between(x, y):
    """Sums along the middle of three axes, read twice."""
    a, s = np.zeros((2, 3, x.size)), np.zeros((2, x.size))
    a[:] = x * y
    a[1:] = a[:-1] * x
    for k in range(2):
        s = s * y + np.sum(a * np.cos(a) + k, axis=1)
    return np.sum(s * np.sin(s)) + np.sum(s[1:] * x)


def repeated(x, y):
    """Rows that meet each row of a matrix, floats and active ones, and columns."""
    a, ones = np.zeros((5, x.size)), np.ones((5, x.size))
    a[:] = ones * x + y
    b = a - 0.5 * y
    c = np.sum(b * b * np.arange(x.size) * 0.01 + x, axis=1)
    z = np.zeros(x.size)
    return np.sum(c * c) + np.sum(a * np.maximum(x, z) * b)


def columns(x, y):
    """A column that meets each column of a matrix, whose rows differ."""
    a, c = np.zeros((3, x.size)), np.zeros((3, 1))
    a[:] = x + y
    a[1:] = a[:-1] * y
    c[:] = x[:1] * y[:1]
    c[1] = x[1:2] * y[2:3]
    b = a * c
    return np.sum(b * b * np.sin(c))


ALL = [
    of_floats,
    in_place,
    rows,
    heat,
    far,
    made_again,
    numbers,
    constants_over,
    compared,
    in_products,
    products,
    products_over,
    sums_along,
    sums_between,
    repeated,
    columns,
]


def as_tensors(f):
    """The function for Tensors, whose arrays of zeros are theirs."""
    space = dict(f.__globals__)
    exec(inspect.getsource(f).replace("np.zeros(", "tg.zeros(").replace("np.empty(", "tg.zeros("), space)
    return lambda x, y: space[f.__name__](x * 1.0, y)


def points(n):
    return np.cos(np.arange(n) * 0.7) + 0.01, np.linspace(0.5, 1.2, n)


TWICE = [in_place, numbers, compared, products_over, sums_along, columns]  # each way to write, and to read


@pytest.mark.parametrize("n", [5, 6, BLOCK, BLOCK + 1, BLOCK + 2, 2 * BLOCK + 3])
@pytest.mark.parametrize("f", ALL, ids=lambda f: f.__name__)
def test_as_tensors(f, n):
    if f in (in_products, products, products_over) and n > 6:
        pytest.skip("the same at any size")
    compare(f, points(n), 2 if n == 5 and f in TWICE else 1, plain=as_tensors(f), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("f", [f for f in ALL if f not in TWICE], ids=lambda f: f.__name__)
def test_second_derivatives_as_tensors(f):
    compare(f, points(5), 2, plain=as_tensors(f), rtol=1e-10)


@pytest.mark.parametrize("n", [3 * BLOCK, 4 * BLOCK + 1])
def test_overlap_by_a_block(n):
    compare(shifted, points(n), 1, plain=as_tensors(shifted), rtol=1e-9)


def test_which_are_written():
    """The arrays of these programs are floats with a header, as is known from the function."""
    known = {f.__name__: Reading(run_frontend(f), lambda k: True).written for f in ALL}
    for name, wanted in {"in_place": "azb", "rows": "cd", "heat": "u", "made_again": "u", "numbers": "u",
                         "compared": "u", "in_products": "a", "constants_over": "v", "products": "a",
                         "products_over": "apq", "sums_along": "auv", "columns": "ac"}.items():  # fmt: skip
        assert set(wanted) <= {one.partition(".")[0] for one in known[name]}, name
    counted = {one.partition(".")[0] for one in Reading(run_frontend(products), lambda k: True).found}
    assert set("abcdefg") <= counted


def by_elements(x, y):
    u = x * y
    u[1:] = 2.0 * u[1:]
    return np.sum(u) + u[0]


def given_on(x, y):
    u = np.zeros(x.size)
    u[1:] = x[1:] * y[1:]
    return np.sum(u) + summed(u)


def given_back(x, y):
    u = np.zeros(x.size)
    u += x * y
    return u


summed = tg.njit(lambda u: np.sum(u * u) * u[1])
whole = tg.njit(given_back)


def from_another(x, y):
    u = whole(x, y)
    u[1:] = u[:-1] * x[1:]
    return np.sum(u * u)


def written_from(x, y):
    """What is written to such an array was not read by other code."""
    u, v, m = x * 0.7, x * y, np.outer(x, y)
    u[1:] = v[1:]
    u[:2] = m[:2] @ y
    m[0] = v
    return np.sum(u) + u[0] + np.sum(m @ v)


@pytest.mark.parametrize("f", [by_elements, given_on, from_another, written_from], ids=lambda f: f.__name__)
def test_read_by_other_code(f):
    """Arrays that other code knows hold numbers."""
    plain = as_tensors(from_tensors if f is from_another else f)
    compare(f, points(6), 2, plain=plain)


def from_tensors(x, y):
    u = x * y
    u[1:] = u[:-1] * x[1:]
    return np.sum(u * u)


def wrong_size(x):
    u = x * 1.0
    u[1:] = x
    return np.sum(u)


def negative(x):
    u = np.zeros(x.size - 7)
    u[:] = np.sum(x)
    return np.sum(u)


def outside(x):
    u = x * 1.0
    u[5] = 1.0
    return np.sum(u)


@pytest.mark.parametrize(
    ("f", "error", "words"),
    [
        (wrong_size, ValueError, "arrays do not broadcast"),
        (negative, ValueError, "negative number of elements"),
        (outside, IndexError, "index 5 is out of bounds for axis 0 with size 5: outside writes to u"),
    ],
)
def test_errors(f, error, words):
    with pytest.raises(error, match=words):
        tg.func.grad(tg.njit(f))(np.ones(5))


def unassigned(x, n):
    if n > 3:
        u = x * 2.0
        u[1:] = 3.0
    return np.sum(u) + np.sum(x)


def test_not_assigned():
    """A variable that was not assigned is an array without elements, as in Numba."""
    gradient = tg.func.grad(tg.njit(unassigned))
    np.testing.assert_array_equal(gradient(np.ones(3), 5), [3.0, 1.0, 1.0])
    np.testing.assert_array_equal(gradient(np.ones(3), 2), np.ones(3))


@pytest.mark.parametrize("f", [in_place, products, sums_along], ids=lambda f: f.__name__)
def test_memory_is_given_back(f):
    """References to arrays and their parts are as before."""
    gradient, (x, y) = tg.func.value_and_grad(once(f), (0, 1)), points(9)
    gradient(x, y)
    gc.collect()
    _nrt_python.memsys_enable_stats()
    try:
        before = rtsys.get_allocation_stats()
        for _ in range(100):
            gradient(x, y)
        after = rtsys.get_allocation_stats()
    finally:
        _nrt_python.memsys_disable_stats()
    assert after.mi_alloc - before.mi_alloc == after.mi_free - before.mi_free
