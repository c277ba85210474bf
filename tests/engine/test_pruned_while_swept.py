"""Tapes may be pruned while they are swept: by the thread that owns them, or by what the sweep records."""

import threading
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.engine import plan as engine
from tapegrad.errors import GraphFreedError, TapeBusyError
from tapegrad.kernels.state import State
from tapegrad.tape import pruning
from tapegrad.tape import tape as tapes


def chain(x, n, y=None):
    y = x if y is None else y
    for _ in range(n):
        y = np.sin(y) * x + 0.5
    return y


def graph(x, n=60):
    """A loss over many tapes, of which only the newest has a live handle; and a list of all tapes."""
    seen = []
    y = x
    for _ in range(n):
        y = np.sin(y) * x + 0.5
        seen.append(weakref.ref(y._tape))
    return np.sum(y), seen


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(tapes, "MAX_RECORDS", 16)


def expected(at, n=60):
    """The gradient of the sum of `chain`: it acts on each element alone, so one complex step gives all."""
    return chain(at + 1e-30j, n).imag / 1e-30


AT = np.linspace(0.1, 1.0, 2000)


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("step", [(engine.Plan, "_read"), (engine.Plan, "free"), (State, "run")])
def test_owners_that_prune_during_the_sweep(short, monkeypatch, create, retain, step):
    x = tg.tensor(AT, requires_grad=True)
    loss, seen = graph(x)
    original, running = getattr(*step), []

    def and_prune(self, *arguments):
        found = original(self, *arguments)
        if running:  # which runs compiled code as well
            return found
        running.append(True)
        for reference in seen:
            tape = reference()
            if tape is not None and tape is not tapes.local.tape:
                tape.prune()
        running.clear()
        return found

    monkeypatch.setattr(*step, and_prune)
    (g,) = tg.grad([loss], [x], [1.0], retain_graph=retain, create_graph=create)
    np.testing.assert_allclose(g.detach().numpy(), expected(AT), rtol=1e-11)


@pytest.mark.parametrize("n", [60, 300])
def test_a_recorded_sweep_that_frees_its_graph(short, n):
    """Recording closes tapes, which prunes older ones: those of the graph that is being swept."""
    x = tg.tensor(AT, requires_grad=True)
    (g,) = tg.grad(graph(x, n)[0], x, retain_graph=False, create_graph=True)
    np.testing.assert_allclose(g.detach().numpy(), expected(AT, n), rtol=1e-10)
    y = tg.tensor(AT, requires_grad=True)
    (again,) = tg.grad(graph(y, n)[0], y)
    np.testing.assert_allclose(again.numpy(), g.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("records", [16, 4096])
@pytest.mark.parametrize("first", [{}, {"create_graph": True, "retain_graph": False}])
@pytest.mark.parametrize("second", ["grad", "grad of what may be unused", "backward", "recorded"])
def test_a_sweep_that_comes_between_plan_and_run(monkeypatch, records, first, second):
    """Another thread frees the graph after this sweep was planned and before it claims the tapes."""
    monkeypatch.setattr(tapes, "MAX_RECORDS", records)
    x = tg.tensor(AT, requires_grad=True)
    loss, _ = graph(x)
    enter, came = engine.Plan.__enter__, []

    def intrude(self):
        if not came:
            came.append(True)
            with np.errstate(all="raise"):
                came.append(tg.grad([loss], [x], [1.0], **first))
                came.append([np.full(2000, np.nan) for _ in range(500)])  # over what was released
        return enter(self)

    monkeypatch.setattr(engine.Plan, "__enter__", intrude)
    try:
        if second == "backward":
            loss.backward()
            g = x.grad
        else:
            more = {"allow_unused": True} if "unused" in second else {"create_graph": second == "recorded"}
            (g,) = tg.grad([loss], [x], [1.0], **more)
    except (GraphFreedError, TapeBusyError):
        return
    np.testing.assert_allclose(g.detach().numpy(), expected(AT), rtol=1e-11)


@pytest.mark.parametrize("n", range(1, 12))
@pytest.mark.parametrize("second", [{}, {"create_graph": True}])
def test_a_sweep_that_comes_while_another_is_planned(short, monkeypatch, n, second):
    """Another thread frees the graph after so many steps of the plan."""
    x = tg.tensor(AT, requires_grad=True)
    monkeypatch.setattr(engine, "SMALL", 0)  # whatever is freed is pruned at once
    y = x
    for _ in range(12):
        y = np.sin(y) * y + 0.5  # of all tapes only the first knows x
    loss = np.sum(y)
    read, calls = engine.Plan._read, []

    def intrude(self, serial):
        job = read(self, serial)
        calls.append(serial)
        if len(calls) == n:
            tg.grad([loss], [x], [1.0])
        return job

    monkeypatch.setattr(engine.Plan, "_read", intrude)
    try:
        (g,) = tg.grad([loss], [x], [1.0], **second)
    except (GraphFreedError, TapeBusyError):
        return
    at = AT + 1e-30j
    for _ in range(12):
        at = np.sin(at) * at + 0.5
    np.testing.assert_allclose(g.detach().numpy(), at.imag / 1e-30, rtol=1e-11)


def test_a_sweep_that_comes_between_two_steps_of_a_pruning(monkeypatch):
    """It has let go of a link to the tape, so that nothing there looks needed, and is still to read it."""
    monkeypatch.setattr(engine, "SMALL", 0)  # whatever is freed is pruned at once
    x = tg.tensor(AT, requires_grad=True)
    y = chain(x, 6)
    older, begun, swept = y._tape, threading.Event(), threading.Event()
    tapes.close(older)

    def take():
        if threading.current_thread() is pruner:
            begun.set()
            assert swept.wait(60)
        return original()

    def hook(g):
        assert older.claims
        swept.set()
        pruner.join(60)
        held = [np.full(2000, np.nan) for _ in range(500)]  # over what was let go of
        assert len(held) == 500 and not pruner.is_alive()

    y.register_hook(hook)
    y = chain(x, 6, y)
    loss = np.sum(y)
    del y
    original = pruning.take
    monkeypatch.setattr(pruning, "take", take)
    pruner = threading.Thread(target=older.prune, daemon=True)
    pruner.start()
    assert begun.wait(60)
    (g,) = tg.grad([loss], [x], [1.0])
    np.testing.assert_allclose(g.numpy(), expected(AT, 12), rtol=1e-11)
    assert all(value is None for value in older.columns.values[1:])  # once the sweep has ended
