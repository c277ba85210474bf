"""Helpers whose local Jacobian is recorded at once: the same derivatives of all orders, fewer leaves."""

import math
import pickle

import numpy as np
import pytest
from numba import float64, njit
from numba.experimental import jitclass

import tapegrad as tg
from tapegrad.errors import UnsupportedOpError
from tapegrad.native.segment import Recording, entering
from tapegrad.native.twin import twin_of


def step(a, b, x, y, h):
    """Loops, branches, calls; two results."""
    for k in range(3):
        u = a * x - b * math.sin(x * y) if k % 2 else a * y * h
        x = x + h * u
        y = y - h * math.exp(-y) / (1.0 + x * x)
        if y < 0.3:
            y = y + 0.5 * x
    return x, y


def program(helper):
    @njit
    def run(p):
        x, y = p[0], p[1]
        for _ in range(4):
            x, y = helper(p[2], p[3], x, y * 1.5 - p[2], 0.1)
        return x * y + x

    return run


PLAIN, SHORT = program(njit(step)), program(tg.njit(preaccumulate=True)(step))
X = np.array([0.4, 0.9, 1.3, 0.6])


def derivatives(primal, x):
    function, t = tg.njit(primal), tg.tensor(x, requires_grad=True)
    u = np.linspace(-1.0, 0.7, x.size)
    out = [function(t)]
    for _ in range(3):
        out += tg.grad(out[-1] if len(out) == 1 else (out[-1] * u).sum(), t, create_graph=True)
    return [part.detach().numpy() for part in out]


def test_derivatives_to_the_third():
    for found, expected in zip(derivatives(SHORT, X), derivatives(PLAIN, X), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_second_derivatives_where_another_argument_has_none():
    helper = tg.njit(preaccumulate=True)(lambda x, z: z * math.sin(x))
    x, y, z = (tg.tensor(v, requires_grad=True) for v in (-2.0, 3.0, 0.5))
    (g,) = tg.grad(tg.njit(lambda x, y, z: x**y + helper(x, z))(x, y, z), x, create_graph=True)
    with np.errstate(all="ignore"):
        found = tg.grad(g, (x, z))
    np.testing.assert_allclose(found, [-12.0 - 0.5 * math.sin(-2.0), math.cos(-2.0)], rtol=1e-12)


@pytest.mark.parametrize("make", ["jvp", "hvp", "taylor", pytest.param("hessian", marks=pytest.mark.slow)])
def test_other_sweeps(make):
    args = (X,) if make == "hessian" else (X, np.array([1.0, -0.5, 0.2, 0.7]))
    more = (4,) if make == "taylor" else ()
    found, expected = (getattr(tg.func, make)(f, *more)(*args) for f in (SHORT, PLAIN))
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def leaves(primal, x):
    recording = Recording(x.size)
    twin_of(primal, (), True)(entering(x[:, None], (), recording.address, 1))
    return recording.leaves


@pytest.mark.quick
def test_a_result_is_one_statement():
    """Four arguments and two results, the end of an argument that is an expression, and the last line."""
    assert leaves(SHORT, X) == 4 * (4 * 2 + 2) + 2
    assert leaves(PLAIN, X) > 3 * leaves(SHORT, X)


def gradient(function, *x):
    x = tg.tensor(x, requires_grad=True)
    return tg.grad(function(x), x)[0].numpy()


def test_kinds_of_arguments():
    @tg.njit(preaccumulate=True)
    def norm(u, scale, table, power=2.0):
        return scale * (u[0] ** power + u[1][0] * u[1][1] * table[1])

    @tg.njit
    def run(x):
        table = np.arange(3)
        a = norm((x[0], (x[1], 3.0)), 2.0, table)
        b = norm((x[1], (x[1], x[0])), x[2], table, power=3.0)
        return a * b + norm((1.0, (2.0, 3.0)), 2, table)

    x = [1.5, 0.5, 2.0]

    def plain(x):
        return 2 * (x[0] ** 2 + 3 * x[1]) * (x[2] * (x[1] ** 3 + x[1] * x[0])) + 14

    expected = [(plain(x + 1e-30j * e)).imag / 1e-30 for e in np.eye(3)]
    np.testing.assert_allclose(gradient(run, *x), expected, rtol=1e-14)
    assert run(np.array(x)) == pytest.approx(plain(x))


def test_one_number_given_twice_and_results_without_derivative():
    @tg.njit(preaccumulate=True)
    def several(a, b):
        return a * b, 3, (a - b, 1.5)

    @tg.njit
    def run(x):
        p, n, (q, r) = several(x[0], x[0])
        return p * n + q * r

    np.testing.assert_array_equal(gradient(run, 5.0), [30.0])


def test_more_arguments_than_an_expression_has_leaves():
    names = [f"x{k}" for k in range(20)]
    space = {}
    exec(f"def helper({', '.join(names)}):\n    return {' * '.join(names)}", space)
    exec(f"def run(x):\n    return helper({', '.join(f'x[{k}]' for k in range(20))})", space)
    space["helper"] = tg.njit(preaccumulate=True)(space["helper"])
    x = np.linspace(0.5, 1.5, 20)
    np.testing.assert_allclose(gradient(tg.njit(space["run"]), *x), np.prod(x) / x, rtol=1e-13)


def test_helpers_of_helpers():
    @tg.njit(preaccumulate=True)
    def inner(a, b):
        return a * math.log(b)

    @tg.njit(preaccumulate=True)
    def outer(a, b):
        table = np.zeros(3)
        table[1] = inner(a, b)
        return inner(table[1], b) + table.sum()

    @tg.njit
    def run(x):
        return outer(x[0], x[1])

    log = math.log(3.0)
    np.testing.assert_allclose(gradient(run, 2.0, 3.0), [log * log + log, 2 * (2 * log / 3) + 2 / 3])


def test_an_existing_function_and_pickling():
    helper = tg.njit(njit(step), preaccumulate=True)
    assert helper.preaccumulate and not tg.njit(step).preaccumulate
    again = pickle.loads(pickle.dumps(helper))
    assert again.preaccumulate and again(*X, 0.1) == helper(*X, 0.1)
    t = tg.tensor(0.7, requires_grad=True)
    by_itself = tg.grad(helper(t, 0.6, 0.4, 0.9, 0.1)[0], t)[0]
    assert by_itself == tg.grad(tg.njit(step)(t, 0.6, 0.4, 0.9, 0.1)[0], t)[0]


def total(v):
    return v.sum()


def doubled(a):
    return np.array([a, a])


@pytest.mark.parametrize(("helper", "argument"), [(total, "x"), (doubled, "x[0]")])
def test_arrays_are_refused(helper, argument):
    space = {"helper": tg.njit(preaccumulate=True)(helper)}
    exec(f"def run(x):\n    return helper({argument})", space)
    with pytest.raises(UnsupportedOpError, match="leave preaccumulate out"):
        tg.njit(space["run"])(tg.tensor([1.0, 2.0], requires_grad=True))


def test_signatures_are_refused():
    with pytest.raises(TypeError, match="positional"):
        tg.njit(preaccumulate=True)(lambda *a: a[0])
    with pytest.raises(TypeError, match="positional"):
        tg.njit(preaccumulate=True)(lambda: 1.0)


@tg.njit(preaccumulate=True)
def size(z, w):
    return abs(z * z + w)


@jitclass([("a", float64)])
class Scale:
    def __init__(self, a):
        self.a = a


@tg.njit(preaccumulate=True)
def of_tuple(pair, scale):
    return abs(pair[0]) * pair[1] * scale.a


def test_complex_numbers_and_instances_are_recorded_as_they_come():
    @tg.njit
    def program(x):
        z = complex(x[0], x[1])
        return size(z, x[0]) + size(z, 2.0) + of_tuple((z, x[1]), Scale(x[0]))

    x = tg.tensor([0.5, 1.5], requires_grad=True)
    z = x[0] + 1j * x[1]
    expected = np.abs(z * z + x[0]) + np.abs(z * z + 2.0) + np.abs(z) * x[1] * x[0]
    np.testing.assert_allclose(tg.grad(program(x), x)[0], tg.grad(expected, x)[0], rtol=1e-14)
