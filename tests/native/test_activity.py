"""Arrays that are made in compiled functions: floats where nothing active comes to them, wherever that is."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.native.analysis import activity
from tapegrad.native.analysis.activity import Activity

T = np.linspace(-1.0, 1.0, 5)
X = np.array([0.3, -0.7, 1.1])


def powers(x, t):
    p = np.ones((x.size, t.size))
    for j in range(1, x.size):
        for i in range(t.size):
            p[j, i] = p[j - 1, i] * t[i]
    r = t - x @ p
    return np.sum(r * r)


def power_in_place(x, t):
    p, r = np.ones(t.size), np.zeros(t.size)
    for j in range(x.size):
        r += x[j] * p
        p *= t
    return np.sum(r * r * r)


def weights(x, t):
    w = np.full(3, t[0])
    grid = np.linspace(0.0, 1.0, 3)
    v = np.zeros_like(t)
    v[1:4] = w + grid
    u = v.copy()
    u[0] = 5.0
    return np.sum(x * u[1:4]) * np.dot(x, w) + u[0] * x[0] * v[0]


def by_slice(x, t):
    w = np.zeros(4)
    v = w[1:]
    v[0] = x[0] * x[1]
    return np.sum(w * w) + np.sum(w) * x[2]


def by_row(x, t):
    w = np.ones((2, 3))
    for row in w:
        row[0] = x[0] * x[1]
    w.T[2, 1] = x[2]
    return np.sum(w * w * w)


def by_reshape(x, t):
    w = np.ones(4)
    q = w.reshape(2, 2)
    q[0] = x[:2]
    z = np.ravel(w)
    z[3] = x[2]
    return np.sum(w * w * x[0])


def by_tuple(x, t):
    pair = (np.zeros(2), np.ones(2))
    a, b = pair
    b[1] = x[0]
    return np.sum(pair[1] * x[1]) + np.sum(a) + np.sum(b * b)


def by_branch(x, t):
    w, v = np.ones(3), np.ones(3) * 2.0
    u = w if t[0] < 0 else v
    u[0] = x[0] * x[1]
    return np.sum(w * w) + np.sum(v * w)


def by_method(x, t):
    w, v = np.ones(3), np.zeros(3)
    w.fill(x[0] * x[1])
    v[:] = 2.0
    return np.sum(w * w * x) + np.sum(v * x)


def by_result(x, t):
    w, v = np.ones(3), np.zeros(3)
    np.multiply(x, x, w)
    np.add(x, 1.0, out=v)
    return np.sum(w * v)


def in_place(x, t):
    w = np.ones(3)
    v = w
    v *= x
    w += 1.0
    return np.sum(v * w * w)


def by_list(x, t):
    kept = [np.ones(3)]
    kept.append(x * 2.0)
    w = np.zeros(3)
    more = [w]
    more[0][1] = x[0] * x[1]
    return np.sum(kept[0] * kept[1]) + np.sum(w * w)


@tg.njit
def put(out, k, value):
    out[k] = value


@tg.njit
def made(n):
    return np.ones(n)


def by_function(x, t):
    w, v = np.ones(3), made(3)
    put(w, 1, x[0] * x[1])
    v[0] = x[2]
    return np.sum(w * w) + np.sum(v * v * x)


def by_a_name_of_others(x, t):
    """The name is that of something active before."""
    v, w = x * 2.0, np.ones(3)
    s = np.sum(v)
    v = w
    v[0] = x[0] * x[1]
    return np.sum(w * w) * s


def first_floats(x, t):
    w = np.zeros(3)
    for k in range(3):
        w = w * 0.5 + x * t[k]
    return np.sum(w * w)


def by_nested(x, t):
    def add(out, y):
        out += y

    w = np.zeros(3)
    add(w, x * x)
    return np.sum(w * x)


PROGRAMS = [
    powers, power_in_place, weights, by_slice, by_row, by_reshape, by_tuple, by_branch, by_method, by_result,
    in_place, by_list, by_function, by_a_name_of_others, first_floats, by_nested,
]  # fmt: skip


def along(function, x, v, h=1e-6):
    """The derivative of a function along a direction, by differences."""
    return (function(x + h * v) - function(x - h * v)) / (2 * h)


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_derivatives(f):
    """Beside differences of the function as it stands."""
    compiled = tg.njit(f)
    value, gradient = tg.func.value_and_grad(compiled)(X, T)
    assert value == pytest.approx(f(X, T.copy()), rel=1e-14)
    wanted = [along(lambda x: f(x, T.copy()), X, v) for v in np.eye(3)]
    np.testing.assert_allclose(gradient, wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("f", [power_in_place, by_slice, by_list], ids=lambda f: f.__name__)
def test_second_derivatives(f):
    """Beside differences of gradients."""
    compiled, direction = tg.njit(f), np.array([0.5, 1.0, -0.3])
    product = tg.func.hvp(compiled)(X, T, direction)
    wanted = along(lambda x: tg.func.grad(compiled)(x, T), X, direction)
    np.testing.assert_allclose(product, wanted, rtol=1e-7, atol=1e-8)


def test_a_name_that_was_active_is_followed(monkeypatch):
    """To what else has its memory, so that nothing is compiled twice."""
    monkeypatch.setattr(activity, "give_up", lambda function: False)
    test_derivatives(by_a_name_of_others)


@pytest.mark.quick
def test_what_depends_on_nothing_active_is_not_recorded(recordings):
    """Nor are its values other than those of the function by itself."""

    def f(x, t):
        p = np.ones((40, t.size))
        for j in range(1, 40):
            for i in range(t.size):
                p[j, i] = np.sin(p[j - 1, i]) * t[i]
        return x[0] * p[39, 0]

    f = tg.njit(f)
    x = tg.tensor(X, requires_grad=True)
    y = f(x, T)
    (gradient,) = tg.grad(y, x)
    assert gradient.numpy()[0] == f(np.array([1.0, 0.0, 0.0]), T)
    (recording,) = recordings
    assert recording.statements < 10


@pytest.mark.parametrize("f", [by_slice, by_row, by_method, by_result], ids=lambda f: f.__name__)
def test_numba_sees_what_was_not_found(f, monkeypatch):
    """No active number is written to an array of floats, whatever is said of its activity."""
    monkeypatch.setattr(Activity, "__contains__", lambda self, var: False)
    test_derivatives(f)
