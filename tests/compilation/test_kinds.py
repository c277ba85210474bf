"""Kinds of arguments of which `tg.compile` knows something: so many, the latest."""

import functools
import gc
import sys

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.kernels import abi

pytestmark = pytest.mark.skipif(not abi.native(), reason="there are no programs")
function = sys.modules["tapegrad.compilation.function"]


def energy(x):
    return np.sum(np.sin(x) * x)


def agree(compiled, x):
    value, gradient = compiled.value_and_grad(x)
    assert value == energy(x)
    np.testing.assert_allclose(gradient, np.cos(x) * x + np.sin(x), rtol=1e-14)


def shapes(compiled):
    return [kind.leaves[0][1][0] for kind in compiled._kinds.values()]


def test_kinds_used_longest_ago_are_forgotten(monkeypatch):
    monkeypatch.setattr(function, "MOST_KINDS", 3)
    compiled = tg.compile(energy, wait=True)
    for n in (1, 2, 3, 1, 4, 5):
        for _ in range(3):
            agree(compiled, np.linspace(0.1, 1.0, n))
    assert shapes(compiled) == [1, 4, 5]
    explained = compiled.explain()
    assert explained.forgotten == 2 and "2 kinds of arguments more, forgotten for later ones" in explained
    for n in (2, 1, 3):  # what was forgotten is learned again
        for _ in range(3):
            agree(compiled, np.linspace(0.1, 1.0, n))
    assert shapes(compiled) == [2, 1, 3]
    assert all(kind.ways for kind in compiled.explain().kinds)


def test_signatures_that_came_once_longest_ago_are_forgotten(monkeypatch):
    monkeypatch.setattr(function, "MOST_ONCE", 8)
    compiled = tg.compile(energy, wait=True)
    for n in range(1, 100):
        agree(compiled, np.ones(n))
        assert len(compiled._once) <= 8
    agree(compiled, np.ones(99))  # which is remembered
    assert shapes(compiled) == [99]
    agree(compiled, np.ones(1))  # and this one is not
    assert shapes(compiled) == [99]


def test_the_first_signature_is_known_among_later_ones():
    compiled = tg.compile(energy, wait=True)
    for n in (1, 2, 3):  # each once
        agree(compiled, np.ones(n))
    explained = compiled.explain().kinds
    assert [kind[:2] for kind in explained] == [(f"float64 ({n},)", 1) for n in (1, 2, 3)]
    agree(compiled, np.ones(1))
    assert shapes(compiled) == [1] and len(compiled.explain().kinds) == 3


def test_attributes_of_the_function_are_those_of_what_it_is_compiled_to():
    @functools.wraps(energy)
    def f(x):
        return energy(x)

    f.units = "J"
    compiled = tg.compile(f)
    assert (compiled.units, compiled.__name__, compiled.__wrapped__) == ("J", "energy", f)
    assert tg.compile(functools.partial(f)).__doc__ == functools.partial.__doc__


def test_layouts_of_a_first_call_are_told_apart():
    """Of the same shape and dtype, and a number: none of them is taken for another that has come once."""
    compiled, x = tg.compile(energy, wait=True), np.linspace(0.1, 1.0, 6)
    for given in (x[::2], x[:3].copy(), x[2::-1], x[:3].astype(np.float32)):
        compiled.value_and_grad(given)
    assert compiled.value_and_grad(0.5)[0] == energy(0.5) and not compiled._kinds
    agree(compiled, x[::2])
    assert shapes(compiled) == [3] and len(compiled.explain().kinds) == 5


def test_a_kind_at_work_is_not_forgotten(monkeypatch):
    """The function calls itself with arrays of other sizes, as often as there is room for kinds."""
    monkeypatch.setattr(function, "MOST_KINDS", 2)

    def halved(x):
        return np.sum(x * x) if len(x) == 1 else np.sum(x) * compiled(np.ones(len(x) // 2))

    compiled, x = tg.compile(halved, wait=True), np.ones(16)
    for _ in range(8):
        value, gradient = compiled.value_and_grad(x)
        assert value == 16 * 8 * 4 * 2
        np.testing.assert_array_equal(gradient, np.full(16, 64.0))
    assert len(compiled._kinds) <= 2 + 5


@pytest.mark.parametrize("replay", [False, True])
def test_a_call_that_has_found_a_kind_just_forgotten_is_recorded(replay):
    """As another thread forgets it at that moment; with replay=True the function was refused for good."""
    compiled, x = tg.compile(energy, wait=True, replay=replay), np.array([0.5, 1.0])
    for _ in range(3):
        agree(compiled, x)
    (kind,) = compiled._kinds.values()
    assert kind.matcher.paths and kind.is_let_go()
    for _ in range(3):
        agree(compiled, x)
    assert not kind.matcher.paths
    compiled._kinds.clear()
    for _ in range(3):
        agree(compiled, x)
    assert all(found.ways for found in compiled.explain().kinds)


@pytest.mark.full
@pytest.mark.parametrize("calls", [1, 2], ids=["each_once", "each_twice"])
def test_10_000_calls_of_changing_shapes_do_not_grow(calls):
    """Each shape was remembered for as long as the function lived."""
    compiled, found = tg.compile(energy), []
    for n in range(10_000):
        compiled.grad(np.ones(1 + n // calls % 1250))  # when one comes again it is forgotten
        if n % 2_500 == 2_499:
            gc.collect()
            found.append(len(gc.get_objects()))
    assert len(compiled._once) <= function.MOST_ONCE < 1250
    assert len(compiled._kinds) <= function.MOST_KINDS + 1  # of which one may be at work
    assert found[-1] < found[0] + 10_000


class Gone(list):
    """Paths that another thread lets go of as soon as somebody has looked whether there are some."""

    def __bool__(self):
        there = len(self) > 0
        self.clear()
        return there


def test_a_product_is_asked_for_while_another_thread_lets_go_of_the_ways():
    compiled, x = tg.compile(energy, wait=True), np.linspace(0.1, 1.0, 5)
    for _ in range(4):
        agree(compiled, x)
    (kind,) = compiled._kinds.values()
    kind.matcher.paths = Gone(kind.matcher.paths)
    wanted = sys.modules["tapegrad.compilation.wanted"].PRODUCT
    assert kind.serves(wanted) in (True, False)
