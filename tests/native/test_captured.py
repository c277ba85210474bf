"""Globals and captured values: all forms of a function are of those that its first form was compiled with."""

import types

import numba
import numpy as np
import pytest
from numba.extending import register_jitable

import tapegrad as tg
from tapegrad.errors import UnsupportedOpError
from tests.tiers import every

rate, table, settings = 2.0, np.array([1.0, 2.0]), types.ModuleType("settings")


def orders(f, at=1.0):
    """The derivatives of a function at a number, of orders 0 to 3, by Tensors."""
    found = [tg.tensor(at, requires_grad=True)]
    y = f(found[0])
    row = [y.item()]
    for _ in range(3):
        (y,) = tg.grad(y, found[0], create_graph=True)
        row.append(y.item())
    return row


@pytest.mark.quick
@pytest.mark.parametrize("first", every(["plain", "recorded"], 2))
def test_a_global_number_is_what_it_was_first(first, monkeypatch):
    @tg.njit
    def f(x):
        return rate * x * x

    if first == "plain":
        assert f(1.0) == 2.0
    else:
        x = tg.tensor(1.0, requires_grad=True)
        f(x).backward()
        assert x.grad.item() == 4.0
    monkeypatch.setitem(globals(), "rate", 3.0)
    assert orders(f) == [2.0, 4.0, 4.0, 0.0]
    assert f(1.0) == 2.0
    assert f.py_func(1.0) == 3.0


def test_derivatives_as_functions_are_of_the_same_values(monkeypatch):
    @tg.njit
    def f(x):
        return rate * x * x

    assert tg.func.jvp(f)(1.0, 1.0) == (2.0, 4.0)
    monkeypatch.setitem(globals(), "rate", 3.0)
    assert tg.func.taylor(f, 2)(1.0, 1.0).tolist() == [2.0, 4.0, 2.0]
    assert tg.func.hvp(f)(1.0, 1.0) == 4.0
    assert f(1.0) == 2.0


def test_a_captured_array_is_what_it_was_first():
    known = np.array([1.0, 2.0])

    @tg.njit
    def f(x):
        return known[1] * x * x

    x = tg.tensor(1.0, requires_grad=True)
    (g,) = tg.grad(f(x), x, create_graph=True)
    known[1] = 9.0
    (h,) = tg.grad(g, x)
    assert (g.item(), h.item(), f(1.0)) == (4.0, 4.0, 2.0)
    assert tg.func.jvp(f)(1.0, 1.0) == (2.0, 4.0)


def test_arrays_that_numba_reads_in_place_are_what_they_were_first():
    """Large ones, and those of which every other element is there; also in a tuple."""
    large, sparse = np.ones(200_000), np.arange(4.0)[::2]
    known = (large, sparse)

    @tg.njit
    def f(x):
        return known[0][-1] * known[1][1] * x * x

    x = tg.tensor(1.0, requires_grad=True)
    (g,) = tg.grad(f(x), x, create_graph=True)
    large[-1], sparse[1] = 5.0, 7.0
    (h,) = tg.grad(g, x)
    assert (g.item(), h.item(), f(1.0)) == (4.0, 4.0, 2.0)


def test_what_helpers_read_is_what_it_was_first(monkeypatch):
    monkeypatch.setattr(settings, "rate", 2.0, raising=False)

    @numba.njit
    def scaled(x):
        return settings.rate * x

    @tg.njit
    def f(x):
        return scaled(x) * helper(x)  # noqa: F821

    monkeypatch.setitem(globals(), "helper", numba.njit(lambda x: x * table[0]))
    x = tg.tensor(1.0, requires_grad=True)
    (g,) = tg.grad(f(x), x, create_graph=True)
    monkeypatch.setattr(settings, "rate", 3.0)
    monkeypatch.setitem(globals(), "table", np.array([5.0, 5.0]))
    monkeypatch.setitem(globals(), "helper", numba.njit(lambda x: 7.0 * x))
    (h,) = tg.grad(g, x)
    assert (g.item(), h.item(), f(1.0)) == (4.0, 4.0, 2.0)


def test_a_function_that_is_called_by_its_module_is_what_it_was_first(monkeypatch):
    monkeypatch.setattr(settings, "helper", numba.njit(lambda x: 2.0 * x), raising=False)

    @tg.njit
    def f(x):
        return settings.helper(x) * x

    x = tg.tensor(1.0, requires_grad=True)
    (g,) = tg.grad(f(x), x, create_graph=True)
    monkeypatch.setattr(settings, "helper", numba.njit(lambda x: 7.0 * x))
    (h,) = tg.grad(g, x)
    assert (g.item(), h.item(), f(1.0)) == (4.0, 4.0, 2.0)


def test_a_function_defined_after_the_first_compilation_failed_is_found(monkeypatch):
    @tg.njit
    def f(x):
        return later(x) * x  # noqa: F821

    with pytest.raises(numba.TypingError, match="later"):
        f(1.0)
    monkeypatch.setitem(globals(), "later", numba.njit(lambda x: 2.0 * x))
    assert f(1) == 2.0
    assert orders(f) == [2.0, 4.0, 4.0, 0.0]


def test_recursion_is_of_the_same_values(monkeypatch):
    @tg.njit
    def power(x, n):
        return rate if n == 0 else x * power(x, n - 1)

    x = tg.tensor(0.5, requires_grad=True)
    (g,) = tg.grad(power(x, 2), x, create_graph=True)
    monkeypatch.setitem(globals(), "rate", 3.0)
    (h,) = tg.grad(g, x)
    assert (g.item(), h.item(), power(0.5, 2)) == (2.0, 4.0, 0.5)
    assert tg.func.grad(power)(0.5, 2) == 2.0


@pytest.mark.slow
def test_local_jacobians_and_loops_are_of_the_same_values(monkeypatch):
    @tg.njit(preaccumulate=True)
    def helper(x):
        return rate * np.sin(x) * table[0]

    @tg.njit
    def step(x, a):
        return x * a * rate

    @tg.njit
    def f(x, start):
        return rate * x * x * (1.0 + helper(x)) + tg.func.checkpoint_loop(step, start * x, 2, 1, (x,))[0]

    start = np.array([1.0])
    x = tg.tensor(0.5, requires_grad=True)
    y = f(x, start)
    expected = orders_of_f(0.5)
    assert y.item() == pytest.approx(expected[0], rel=1e-14)
    monkeypatch.setitem(globals(), "rate", 3.0)
    (g,) = tg.grad(y, x, create_graph=True)
    (h,) = tg.grad(g, x)
    np.testing.assert_allclose([g.item(), h.item(), f(0.5, start)], [*expected[1:], expected[0]], rtol=1e-13)


def orders_of_f(x):
    """2 x^2 (1 + 2 sin x) + 4 x^3, and its derivatives."""
    s, c = np.sin(x), np.cos(x)
    return (
        2 * x**2 * (1 + 2 * s) + 4 * x**3,
        4 * x * (1 + 2 * s) + 4 * x**2 * c + 12 * x**2,
        4 * (1 + 2 * s) + 16 * x * c - 4 * x**2 * s + 24 * x,
    )


def test_methods_of_a_class_are_of_the_same_values(monkeypatch):
    @numba.experimental.jitclass([("a", numba.float64)])
    class Scale:
        def __init__(self, a):
            self.a = a

        def of(self, x):
            return self.a * rate * x

    @tg.njit
    def f(x):
        return Scale(x).of(x)

    x = tg.tensor(1.0, requires_grad=True)
    (g,) = tg.grad(f(x), x, create_graph=True)
    monkeypatch.setitem(globals(), "rate", 3.0)
    (h,) = tg.grad(g, x)
    assert (g.item(), h.item(), f(1.0)) == (4.0, 4.0, 2.0)


def test_a_function_that_numba_compiled_with_another_value_is_refused(monkeypatch):
    @numba.njit
    def helper(x):
        return rate * x

    @tg.njit
    def f(x):
        return helper(x) * x

    assert helper(1.0) == 2.0
    monkeypatch.setitem(globals(), "rate", 3.0)
    x = tg.tensor(1.0, requires_grad=True)
    with pytest.raises(UnsupportedOpError, match=r"helper.*rate.*2\.0.*3\.0"):
        f(x)


def count(x):
    global rate
    rate += 1.0
    return x


def test_what_runs_as_python_may_read_what_changes(monkeypatch):
    @tg.njit
    def f(x):
        with numba.objmode(y="float64"):
            y = count(1.0)
        return x * y

    monkeypatch.setitem(globals(), "rate", 0.0)
    assert (f(2.0), f(2), rate) == (2.0, 2.0, 2.0)


def test_a_function_that_numba_compiles_for_itself_is_refused_with_another_value(monkeypatch):
    @register_jitable
    def helper(x):
        return rate * x * x

    @tg.njit
    def f(x):
        return helper(x)

    x = tg.tensor(1.0, requires_grad=True)
    (g,) = tg.grad(f(x), x, create_graph=True)
    assert g.item() == 4.0
    monkeypatch.setitem(globals(), "rate", 3.0)
    with pytest.raises(UnsupportedOpError, match=r"helper.*rate.*2\.0.*3\.0"):
        tg.grad(g, x, retain_graph=True)
    with pytest.raises(UnsupportedOpError, match=r"helper.*rate.*2\.0.*3\.0"):
        f(1.0)
    monkeypatch.setitem(globals(), "rate", 2.0)
    assert f(1.0) == 2.0
    assert tg.func.jvp(f)(1.0, 1.0) == (2.0, 4.0)
