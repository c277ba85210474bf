"""Slices and numbers that an expression of arrays alone reads: beside Tensors, and what they cost."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.native.arrays.array_layout import BLOCK
from tests.native.memory import counted
from tests.native.test_expressions import compare


def heat(u, c):
    u = u + 0.0
    for _ in range(7):
        u[1:-1] = u[1:-1] + c * (u[2:] - 2.0 * u[1:-1] + u[:-2])
    return np.sum(u * u)


def twice(u, c):
    """One slice several times, and one number."""
    y = np.where(u[1:] > 0.0, u[1:] * c, u[1:] * u[:-1] + c) + c
    return np.sum(u[1:] * u[1:]) + np.sum(y * u[1:])


def of_what_is_made(u, c):
    """Of arrays that nothing else holds."""
    a = (u * c)[1:] + (u + c)[:-1]
    for _ in range(3):
        a = a[1:] * a[:-1] + (a * c)[1:]
    return np.sum(a)


@tg.njit
def doubled(v):
    v[1:] = v[:-1] * 2.0
    return v


def written_between(u, c):
    """What is read was written to after its slice was made."""
    v = u * c
    w = u * 1.0
    a = v[1:] * doubled(v)[1:] + v[1:]
    b = w[1:] * np.sum(w) + w[1:]
    w[:-1] = b * w[1:]
    return np.sum(a) + np.sum(w * v)


def of_rows(u, c):
    a = u[:, None] * u[None, :] + c * u
    for i in range(1, 3):
        a[i] = a[i] * a[i - 1] + a[:, i] * c + a[..., -1]
    return np.sum(a[1:, 2] * a[1:, 2]) + np.sum(a[0, ::-1] * u + a[0])


def named(u, c):
    """A slice of a variable of its own, and a slice of that."""
    v, k = u[1:], 1
    w = v[k:] * v[k:] + v[:-k] * c
    return np.sum(w) + np.sum(v[k:] * c)


ALL = heat, twice, of_what_is_made, written_between, of_rows, named


@pytest.mark.parametrize("f", ALL, ids=lambda f: f.__name__)
def test_as_tensors(f):
    compare(f, (np.linspace(-1.0, 1.3, 9), 0.4), 2)


def test_more_than_a_block():
    compare(heat, (np.cos(np.arange(2.0 * BLOCK + 3)), 0.1), 1)


def past_the_end(u, c):
    a = u * u[:, None]
    u = u + 0.0
    i = len(u)
    u[:] = a[i] * c + u
    return np.sum(u)


def test_an_index_past_the_end():
    with pytest.raises(IndexError, match=r"index 3 is out of bounds.*past_the_end reads a of"):
        tg.func.grad(tg.njit(past_the_end))(np.ones(3), 0.5)


def allocations(f, *args):
    f(*args)
    found = counted(lambda: f(*args))
    assert found.mi_alloc == found.mi_free
    return found.mi_alloc


def steps(u, c, many):
    u = u + 0.0
    for _ in range(many):
        u[1:] = u[1:] + c * u[:-1]
    return np.sum(u * u)


def test_a_number_takes_no_memory():
    f = tg.func.grad(tg.njit(steps), (0, 1))
    assert allocations(f, np.ones(5), 0.1, 50) == allocations(f, np.ones(5), 0.1, 1)


def test_memory_is_given_back():
    for f in (of_what_is_made, named):
        assert allocations(tg.func.grad(tg.njit(f), (0, 1)), np.linspace(-1, 1, 9), 0.3) > 0


def test_a_slice_read_twice_is_one_operand(recordings):
    """As is a variable: partials are recorded once."""
    n = 10 * BLOCK
    v = np.linspace(0.1, 1, n)
    x = tg.tensor(v, requires_grad=True)
    found = tg.njit(lambda x: np.exp(x[1:]) * x[1:])(x)
    (recording,) = recordings
    assert 8 * n < recording.nbytes < 9 * n
    (g,) = tg.grad(np.sum(found), [x])
    np.testing.assert_allclose(g.numpy()[1:], np.exp(v[1:]) * (1 + v[1:]))
