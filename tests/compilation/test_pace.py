"""Programs that take longer than recording are followed no more."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.compilation import pace
from tapegrad.compilation.pace import BEFORE, TRIALS, Pace
from tapegrad.kernels import abi

pytestmark = pytest.mark.skipif(not abi.native(), reason="there are no programs")


class Clock:
    """A clock by which calls that follow a program take so much, and recorded ones 1."""

    def __init__(self, followed):
        self.now, self.followed, self.recorded = 0.0, followed, False

    def __call__(self):
        return self.now


def looking(x, clock):
    """A function that looks at a value, in a program or not, and takes its time."""
    y = np.sin(x) * 2.0
    clock.now += clock.followed if tg.core.base.is_expected(y) else 1.0
    return np.sum(y * y) if float(y[0].detach()) < 5.0 else np.sum(y)


def compared(x, clock):
    """A function that a plan computes, of which Python compares an operation."""
    y = np.sin(x)[[True] * len(x)] * 2.0
    clock.now += clock.followed if tg.core.base.is_expected(y) else 1.0
    return np.sum(y * y)


def calls(monkeypatch, followed, count=BEFORE + 4 * TRIALS, function=looking):
    """How many calls followed a program, and whether it is given up, with the right values all the way."""
    clock = Clock(followed)
    monkeypatch.setattr(pace, "time", SimpleNamespace(perf_counter=clock))
    compiled, recorded = tg.compile(function, wait=True), tg.func.value_and_grad(function)
    for k in range(count):
        x = np.linspace(0.1, 0.5, 6) * (k + 1)
        found, wanted = compiled.value_and_grad(x, clock), recorded(x, clock)
        assert found[0] == wanted[0]
        np.testing.assert_allclose(found[1], wanted[1], rtol=1e-13)
    (kind,) = compiled.explain().kinds
    return sum(way.calls for way in kind.ways), kind.not_learned


@pytest.mark.parametrize("function", [looking, compared])
def test_a_program_that_takes_longer_is_given_up(monkeypatch, function):
    followed, why = calls(monkeypatch, 1.5, function=function)
    assert followed == 0
    assert "took longer than recorded" in why


@pytest.mark.parametrize("function", [looking, compared])
@pytest.mark.parametrize("time", [0.1, 1.0])
def test_a_program_that_takes_less_is_kept(monkeypatch, time, function):
    followed, why = calls(monkeypatch, time, function=function)
    assert followed >= BEFORE + 2 * TRIALS
    assert not why


def test_calls_that_a_plan_computes_are_not_timed(monkeypatch):
    monkeypatch.setattr(Pace, "take", lambda *args: pytest.fail("a time was taken"))
    compiled = tg.compile(lambda x: np.sum(np.sin(x) ** 2), wait=True)
    for k in range(BEFORE + 4 * TRIALS):
        compiled.value_and_grad(np.ones(5) * k)


def test_a_program_with_a_plan_that_is_given_up(monkeypatch):
    """Calls that do not look at a value are computed by it before, and recorded afterwards."""

    def f(x, look):
        y = np.sin(x)
        if look:
            clock.now += 2.0 if tg.core.base.is_expected(y) else 1.0
            float(y[0].detach())
        return np.sum(y * y)

    clock = Clock(2.0)
    monkeypatch.setattr(pace, "time", SimpleNamespace(perf_counter=clock))
    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for k in range(8 + BEFORE + 4 * TRIALS + 4):
        look = 8 <= k < 8 + BEFORE + 4 * TRIALS
        found, wanted = compiled.value_and_grad(np.ones(5) * k, look), recorded(np.ones(5) * k, look)
        assert found[0] == wanted[0]
    assert "took longer than recorded" in compiled.explain()


def test_times_are_of_calls_that_want_the_same():
    """Values alone take less than gradients: they are no measure of these."""
    timed, began = Pace(), time.perf_counter()
    value, gradient = object(), object()
    for _ in range(2 * TRIALS):
        assert timed.take(gradient, lambda: "recorded", lambda: "followed") in ("recorded", "followed")
        assert timed.take(value, lambda: pytest.fail("recorded"), lambda: "followed") == "followed"
    assert not timed.is_taken
    assert time.perf_counter() > began


def test_an_error_takes_no_time():
    timed = Pace()
    with pytest.raises(ValueError, match="of the function"):
        timed.take(None, lambda: (_ for _ in ()).throw(ValueError("of the function")), None)
    assert timed.take(None, lambda: "recorded", lambda: "followed") == "recorded"
