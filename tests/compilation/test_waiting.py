"""What rows need waits while plans compute the calls of a long program; each call gets the same bits."""

import contextlib
import functools
import os
import threading

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.compilation.memory import pages as memory
from tapegrad.compilation.paths.waiting import Waiting
from tapegrad.compilation.rows import table
from tapegrad.compilation.rows.packing import SOME_ROWS, pack, unpack
from tapegrad.kernels import abi

pytestmark = pytest.mark.skipif(not abi.native(), reason="nothing is learned from calls")
TURNS, LONG = 120, 512
AT = 0, 1, 50, TURNS - 1


def steps(x, factors, how="", at=0, kept=None):
    y, total = x * 0.5, 0.0
    for k in range(TURNS):
        y = np.tanh(y * factors[k] + x * 0.1)
        total = total + np.sum(y * y)
        if k == at and how:
            if how == "look":
                total.item()
            elif how == "raise":
                raise LookupError
            elif how == "keep":
                kept.append(y)
            elif how == "keep an array":
                kept.append(y.detach().numpy())
            elif how == "leave":
                y = np.exp(-y)
            elif how == "return":
                return total
    return total


def path_of(compiled):
    return next(iter(compiled._kinds.values())).matcher.paths[0]


def tables_of(compiled):
    path = path_of(compiled)
    return [path.program.rows, path.reverse.rows]


def inputs(k):
    return np.linspace(-1.0, 1.0, 5) + 0.01 * k, [1.1 + 0.001 * (k + j) for j in range(TURNS)]


def settle(compiled, k=0):
    """Call until rows wait, as plans compute the calls."""
    for j in range(40):
        compiled.value_and_grad(*inputs(k + j))
        if all(table.are_waiting for table in tables_of(compiled)):
            return
    raise AssertionError


def same(found, wanted):
    return [np.asarray(x).tobytes() for x in found] == [np.asarray(x).tobytes() for x in wanted]


@pytest.fixture
def twins(monkeypatch):
    """The function compiled twice, of which one has rows that wait."""
    monkeypatch.setattr(memory, "MOST_STEPS", LONG)
    monkeypatch.setenv("TAPEGRAD_COMPILE", "wait")
    waiting, other = tg.compile(steps), tg.compile(steps)
    expect = Waiting.expect
    for k in range(8):
        waiting.value_and_grad(*inputs(k))
        with monkeypatch.context() as patch:
            patch.setattr(Waiting, "expect", lambda self: None)
            other.value_and_grad(*inputs(k))
    assert Waiting.expect is expect
    settle(waiting)
    assert not any(table.are_waiting for table in tables_of(other))
    return waiting, other


def check(twins, call):
    """That a call of both has the same bits, and the next one."""
    waiting, other = twins
    settle(waiting)
    assert same(call(waiting), call(other))
    assert same(waiting.value_and_grad(*inputs(7)), other.value_and_grad(*inputs(7)))


@pytest.mark.full
@pytest.mark.parametrize("at", AT)
def test_a_call_may_leave_at_any_time(at, twins):
    """By what it does, or as it looks; arrays that are kept stay as they were seen."""
    seen = []
    for how in ("look", "raise", "keep", "keep an array", "leave", "return", "look"):

        def call(compiled, how=how):
            kept, found = [], ()
            with contextlib.suppress(LookupError):
                found = compiled.value_and_grad(*inputs(3), how, at, kept)
            kept = [x.detach().numpy() if isinstance(x, tg.Tensor) else x for x in kept]
            seen.extend((x, x.copy()) for x in kept)
            return [*found, *kept]

        check(twins, call)
    assert len(seen) == 4 and all(x.any() and same([x], [y]) for x, y in seen)


@pytest.mark.full
def test_whatever_is_asked_for(twins):
    x, factors = inputs(2)
    check(twins, lambda f: [f(x, factors)])
    check(twins, lambda f: [f.hvp(x, factors, np.ones(5))])
    check(twins, lambda f: [*f.value_and_grad(x, factors), f.hvp(x, factors, np.ones(5))])

    def of_tensors(f):
        t = tg.tensor(x, requires_grad=True)
        y = f(t, factors)
        (g,) = tg.grad(y, [t], create_graph=True)
        return [y.detach(), g.detach(), *(h.detach() for h in tg.grad(np.sum(g * g), [t]))]

    check(twins, of_tensors)
    assert isinstance(twins[0].explain(), str)


@pytest.mark.full
def test_errors_of_numbers_are_told(twins):
    def warned(f):
        factors = inputs(1)[1]
        factors[60] = np.inf
        with pytest.warns(RuntimeWarning, match="invalid value"):
            found = f.value_and_grad(np.zeros(5), factors)
        with np.errstate(all="raise"), pytest.raises(FloatingPointError):
            f.value_and_grad(np.zeros(5), factors)
        return found

    check(twins, warned)


def test_an_interrupt_while_rows_return(twins, monkeypatch):
    waiting, _ = twins
    for before in (True, False):
        settle(waiting)

        def interrupted(packed, before=before):
            if not before:
                unpack(packed)
            raise KeyboardInterrupt

        monkeypatch.setattr(table, "unpack", interrupted)
        with pytest.raises(KeyboardInterrupt):
            waiting.value_and_grad(*inputs(3), "look", 50)
        monkeypatch.setattr(table, "unpack", unpack)
        assert same(*(f.value_and_grad(*inputs(3), "look", 60) for f in twins))
        assert same(*(f.value_and_grad(*inputs(4)) for f in twins))


@pytest.mark.full
def test_rows_stay_longer_the_more_often_they_are_needed(twins, monkeypatch):
    waiting, _ = twins
    found = []
    monkeypatch.setattr(table, "unpack", lambda packed: found.append(1) or unpack(packed))
    for k in range(64):
        waiting.value_and_grad(*inputs(k), "look" if k % 2 else "", 50)
    assert 2 <= len(found) <= 14  # twice for each time that they return, as there are rows in reverse


@pytest.mark.full
def test_threads(twins):
    waiting, other = twins
    wanted = [other.value_and_grad(*inputs(k)) for k in range(12)]
    found = {}

    def work(first):
        for k in range(first, 12, 3):
            found[k] = waiting.value_and_grad(*inputs(k), "look" if k % 4 else "", 5 * k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, y in enumerate(wanted):
        np.testing.assert_allclose(found[k][1], y[1], rtol=1e-12)  # of recorded calls too
        assert found[k][0] == y[0]


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_process(twins):
    waiting, other = twins
    wanted = other.value_and_grad(*inputs(3), "look", 50)
    child = os.fork()
    if child == 0:
        os._exit(0 if same(waiting.value_and_grad(*inputs(3), "look", 50), wanted) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert same(waiting.value_and_grad(*inputs(3), "look", 50), wanted)


@pytest.mark.full
def test_python_may_be_skipped(monkeypatch):
    monkeypatch.setattr(memory, "MOST_STEPS", LONG)
    monkeypatch.setenv("TAPEGRAD_COMPILE", "wait")
    factors = inputs(0)[1]
    f = functools.partial(steps, factors=factors)
    replayed, compiled = tg.compile(f, replay=True), tg.compile(f)
    for k in range(12):
        x = inputs(k)[0]
        assert same(replayed.value_and_grad(x), compiled.value_and_grad(x))
    assert all(table.are_waiting for f in (replayed, compiled) for table in tables_of(f))
    assert same([replayed(x)], [compiled(x)])
    xs = np.stack([inputs(k)[0] for k in range(3)])
    found = tg.func.vmap(replayed)(xs)
    np.testing.assert_allclose(found, [compiled(x) for x in xs], rtol=1e-14)


def test_words_are_packed_and_unpacked():
    draw = np.random.default_rng(0)
    for count in (1, 2, 300, SOME_ROWS + 1):
        lengths = draw.choice([1, 3, 4, 12], count)
        starts = np.cumsum(lengths) - lengths
        words = draw.integers(-(1 << 62), 1 << 62, lengths.sum())
        words[starts] = draw.choice([1 << 20, (1 << 47) - 8, 4096], count)
        found = unpack(pack(words, starts))
        assert [list(x) for x in found] == [words.tolist(), starts.tolist()]
