"""Arrays from outside that hold numbers with derivatives later: copies, and variables of loops."""

import numpy as np
import pytest
from numba import njit

import tapegrad as tg


def compare(f, *args, order=2):
    """Derivatives by the first argument, of f as it stands and compiled."""
    point = np.array([0.3, -0.7])
    direction = np.array([0.5, 1.0])
    found = []
    for way in (f, tg.njit(f)):
        x = tg.tensor(point, requires_grad=True)
        y, rows = way(x, *args), []
        for _ in range(order):
            rows.append(y.item())
            (g,) = tg.grad(y, x, create_graph=True)
            rows.append(g.detach().numpy())
            y = np.sum(g * direction)
        found.append(rows)
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12)


def copied(x, u):
    w = u.copy()
    for k in range(3):
        w = w * x[0] + np.copy(u) * x[1]
    return np.sum(w * w)


def plain_first(x, u):
    w = u
    for k in range(3):
        w = np.tanh(w * x[0] + x[1])
    return np.sum(w)


def rows(x, u):
    h, c = u[0], u[1]
    for k in range(3):
        c = c * x[0] + h
        h = np.tanh(c) * x[1]
    return np.sum(h) + np.sum(u)


def branches(x, u):
    w = u[0] * 2.0
    if u[0, 0] > 0.0:
        w = w * x[0]
    return np.sum(w * x[1] * x[1])


def matrices(x, u):
    w = u
    for k in range(2):
        w = w @ u * x[0]
    return np.sum(w) * x[1]


U = np.array([[1.0, 2.0], [0.5, -1.0]])


@pytest.mark.parametrize(
    ("f", "u"), [(copied, U[0]), (plain_first, U[1]), (rows, U), (branches, U), (branches, -U), (matrices, U)]
)
def test_as_tensors(f, u):
    before = u.copy()
    compare(f, u)
    np.testing.assert_array_equal(u, before)


WRITES = {
    "result": "np.add(w, 1.0, w)", "product": "np.dot(np.eye(3), np.ones(3), w)",
    "list": "[w][0][0] = 4.0", "row": "for row in w.reshape(1, 3): row[0] = 4.0",
}  # fmt: skip
LOOP = """
def f(x, u):
    w, total = u, 0.0
    for _ in range(2):
        {}
        total += np.sum(u * x)
        w = w * x
    return total + np.sum(w)
"""


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_before_an_array_becomes_active_are_refused(write):
    """Else `u` would not see them: what becomes active later has an array of its own from the start."""
    exec(LOOP.format(write), space := {"np": np})
    with pytest.raises(tg.errors.UnsupportedOpError, match="its memory may be written to"):
        tg.func.grad(tg.njit(space["f"]))(np.array([0.3, 0.5, 0.7]), np.array([0.2, 0.9, 0.4]))


@tg.njit
def written(x, u):
    w, v = u.copy(), np.copy(u)
    w[0] = x[0] * x[1]
    w[1:] *= x[0]
    for k in range(v.size):
        v[k] *= w[k]
    return np.sum(v)


@pytest.mark.parametrize("step", [1, -1, 2])
def test_a_copy_can_be_written_to(step):
    """Whatever the layout; of what came from outside nothing changes."""
    u = np.arange(1.0, 7.0)[::step][:3]
    before = u.copy()
    value, gradient = tg.func.value_and_grad(written)(np.array([0.3, 0.7]), u)
    assert value == pytest.approx(0.21 * u[0] + 0.3 * u[1] ** 2 + 0.3 * u[2] ** 2, rel=1e-14)
    np.testing.assert_allclose(gradient, [0.7 * u[0] + u[1] ** 2 + u[2] ** 2, 0.3 * u[0]], rtol=1e-14)
    np.testing.assert_array_equal(u, before)


def test_copies_of_other_arrays_are_what_they_are():
    @tg.njit
    def f(x, k, z, flags, none):
        places, pairs, chosen = k.copy(), z.copy(), flags.copy()
        places[0] = 1
        chosen[0] = True
        pairs[0] = 1j * x[0]
        numbers = [2.0, 3.0]
        more = numbers.copy()
        more[0] = x[0]
        return x[places[0]] * pairs[0].imag + (x[0] if chosen[0] else 0.0) + more[0] * none.copy()[()]

    x = tg.tensor([2.0, 3.0], requires_grad=True)
    y = f(x, np.array([0, 1]), np.array([1.0 + 2j]), np.array([False]), np.array(5.0))
    np.testing.assert_array_equal(tg.grad(y, x)[0], [9.0, 2.0])


@njit
def cell(h, w):
    return np.tanh(h * w[0] + w[1])


def test_a_copy_is_handed_to_others():
    def f(x, u):
        h = u[0].copy()
        for _ in range(3):
            h = cell(h, x)
        return np.sum(h)

    x = tg.tensor([0.3, 0.7], requires_grad=True)
    h = U[0]
    for _ in range(3):
        h = cell.py_func(h, x)
    (wanted,) = tg.grad(np.sum(h), x)
    np.testing.assert_allclose(tg.grad(tg.njit(f)(x, U), x)[0], wanted, rtol=1e-13)
