"""Sweeps at work at the same time on one tape: in hooks, in a Function's backward, in several threads."""

import functools
import itertools
import sys
import threading
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.engine import plan as engine
from tapegrad.errors import GraphFreedError, TapeBusyError
from tapegrad.tape import tape as tapes


def leaf(value):
    return tg.tensor(value, requires_grad=True)


def graph(x, k):
    """One of many graphs of a leaf."""
    y = x
    for _ in range(5):
        y = np.sin(y) * x + k
    return np.sum(y)


def bits(g):
    return g.detach().numpy().tobytes()


AT = np.linspace(0.1, 1.0, 9)
WAYS = [{}, {"retain_graph": True}, {"create_graph": True}]


@functools.cache
def alone(k):
    """The gradient of graph k, its bits, when nothing else is at work."""
    x = leaf(AT)
    return bits(tg.grad(graph(x, k), x)[0])


@pytest.fixture
def hasty():
    """Switch between threads as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def together(*functions):
    """Run each in a thread of its own; raise what the first of them raised."""
    errors = []

    def run(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(f,), daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


# ---------------------------------------------------------------- on one stack


@pytest.mark.parametrize("inner", WAYS)
@pytest.mark.parametrize("outer", WAYS)
def test_a_hook_sweeps_another_graph_of_the_tape(outer, inner):
    x, found = leaf(AT), []
    u, v = graph(x, 1), graph(x, 2)
    assert u._tape is v._tape
    handle = u.register_hook(lambda g: found.append(tg.grad(v, x, **inner)[0]))
    found += tg.grad(u, x, **outer)
    handle.remove()
    assert [bits(g) for g in found] == [alone(2), alone(1)]
    for y, way in ((u, outer), (v, inner)):
        if way:
            tg.grad(y, x)
        with pytest.raises(GraphFreedError):
            tg.grad(y, x)


def test_hooks_sweep_graphs_of_the_tape_many_deep():
    x = leaf(AT)
    graphs = [graph(x, k) for k in range(8)]
    for y, after in itertools.pairwise(graphs):
        y.register_hook(lambda g, y=after: y.backward(inputs=[x]))
    graphs[0].backward()
    w = leaf(AT)
    for k in reversed(range(8)):
        graph(w, k).backward()
    assert bits(x.grad) == bits(w.grad)
    for y in graphs:
        with pytest.raises(GraphFreedError):
            y.backward()


def test_a_leaf_s_hook_sweeps_another_graph_of_the_tape():
    x, z, found = leaf(AT), leaf(AT), []
    u, v = graph(x, 1), graph(z, 2)
    x.register_hook(lambda g: found.append(tg.grad(v, z)[0]))
    u.backward()
    assert [bits(g) for g in (x.grad, *found)] == [alone(1), alone(2)]


class Inside(tg.autograd.Function):
    """The identity, whose backward sweeps graphs: those that `todo` has, the first of them."""

    @staticmethod
    def forward(ctx, x, todo):
        ctx.todo = todo
        return x * 1.0

    @staticmethod
    def backward(ctx, g):
        ctx.todo.pop(0)()
        return g, None


@pytest.mark.parametrize("inner", WAYS)
@pytest.mark.parametrize("outer", WAYS)
@pytest.mark.parametrize("hooked", [False, True])
def test_a_function_s_backward_sweeps_other_graphs_of_the_tape(outer, inner, hooked):
    x, found, todo = leaf(AT), [], []
    v = graph(x, 2)
    w = np.sum(Inside.apply(x, todo) * x)
    u = graph(Inside.apply(x, todo), 1)
    assert u._tape is v._tape is w._tape
    if hooked:  # then by the sweep in parts
        u.register_hook(lambda g: None)
    todo.append(lambda: found.extend(tg.grad(w, x, **inner)))
    todo.append(lambda: found.extend(tg.grad(v, x, **inner)))
    g = tg.grad(u, x, **outer)[0]
    assert todo == []
    assert bits(found[0]) == alone(2)
    np.testing.assert_array_equal(found[1].detach().numpy(), 2 * AT)
    z = leaf(AT)
    np.testing.assert_array_equal(g.detach().numpy(), tg.grad(graph(z * 1.0, 1), z)[0].numpy())
    todo += [lambda: None] * 2
    for y, way in ((u, outer), (v, inner)):
        if way:
            tg.grad(y, x)
        with pytest.raises(GraphFreedError):
            tg.grad(y, x)


@pytest.mark.parametrize("create", [False, True])
def test_a_checkpoint_inside(create):
    x, found = leaf(AT), []

    def twice(x):
        inner = leaf(AT)
        (g,) = tg.grad(graph(inner, 2), inner)
        found.append(g)
        return graph(x, 1)

    v = graph(x, 3)
    u = tg.autograd.checkpoint(twice, x)
    w = tg.autograd.checkpoint(graph, x, 4)
    u.register_hook(lambda g: found.extend(tg.grad(v, x)))
    u.register_hook(lambda g: found.extend(tg.grad(w, x, create_graph=create)))
    (g,) = tg.grad(u, x, create_graph=create)
    assert bits(g) == alone(1)
    assert [bits(g) for g in found] == [alone(2), alone(3), alone(4), *[alone(2)] * (len(found) - 3)]


# ---------------------------------------------------------------- sweeps that share records


def shared(x):
    """Two results with records in common that read values."""
    h = np.sin(x) * x
    return np.sum(h * h), np.sum(np.exp(h))


def derivatives():
    s, c = np.sin(AT), np.cos(AT)
    h, dh = s * AT, c * AT + s
    return 2 * h * dh, np.exp(h) * dh


def test_a_hook_may_sweep_what_is_being_swept_if_nothing_is_released():
    x, found = leaf(AT), []
    u, v = shared(x)
    u.register_hook(lambda g: found.extend(tg.grad(v, x, retain_graph=True)))
    found += tg.grad(u, x, retain_graph=True)
    for g, expected in zip(found[::-1], derivatives(), strict=True):
        np.testing.assert_allclose(g.numpy(), expected, rtol=1e-14)


@pytest.mark.parametrize("capacity", [4096, 4])
@pytest.mark.parametrize(("outer", "inner"), [(False, False), (False, True), (True, False)])
def test_a_hook_may_not_sweep_what_is_being_released(outer, inner, capacity, monkeypatch):
    """Whatever the tapes are: the error comes before anything ran, and the sweep at work goes on."""
    monkeypatch.setattr(tapes, "MAX_RECORDS", capacity)
    x, seen = leaf(AT), []
    u, v = shared(x)

    def hook(g):
        with pytest.raises(TapeBusyError, match="retain_graph=True"):
            tg.grad(v, x, retain_graph=inner)
        seen.append(g)

    u.register_hook(hook)
    (g,) = tg.grad(u, x, retain_graph=outer)
    assert len(seen) == 1
    np.testing.assert_allclose(g.numpy(), derivatives()[0], rtol=1e-14)
    if outer:
        np.testing.assert_allclose(tg.grad(v, x)[0].numpy(), derivatives()[1], rtol=1e-14)
    else:
        with pytest.raises(GraphFreedError):
            tg.grad(v, x)


def test_records_that_read_nothing_may_be_shared():
    """As one after the other: a sum's derivative needs no values, so nothing of it is released."""
    x, y, found = leaf(AT), leaf(2 * AT), []
    s = x + y
    u, v = np.sum(s), np.sum(-s)
    u.register_hook(lambda g: found.extend(tg.grad(v, [x, y])))
    found += tg.grad(u, [x, y])
    assert [set(g.tolist()) for g in found] == [{-1.0}, {-1.0}, {1.0}, {1.0}]


def test_a_claim_ends_with_a_sweep_that_fails():
    x = leaf(AT)
    u, v = shared(x)

    def fail(g):
        raise OSError

    handle = u.register_hook(fail)
    with pytest.raises(OSError):
        u.backward()
    handle.remove()
    v.backward()
    np.testing.assert_allclose(x.grad.numpy(), derivatives()[1], rtol=1e-14)


# ---------------------------------------------------------------- threads


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [None, 30_000])  # the larger ones run without Python's lock
def test_threads_sweep_the_graphs_of_one_tape(hasty, way, size):
    for _ in range(10 if size is None else 2):
        x = leaf(AT if size is None else np.full(size, 0.5))
        if tapes.local.tape is not None:
            tapes.close(tapes.local.tape)
        graphs = [graph(x, k) for k in range(24)]
        if size is None:
            assert len({y._tape.serial for y in graphs}) == 1

        expected = [bits(tg.grad(y, x, **way | {"retain_graph": True})[0]) for y in graphs]

        def work(n, x=x, graphs=graphs, expected=expected):
            for k in range(n, 24, 8):
                assert bits(tg.grad(graphs[k], x, **way)[0]) == expected[k]

        together(*[functools.partial(work, n) for n in range(8)])
        if not way:
            for y in graphs:
                with pytest.raises(GraphFreedError):
                    tg.grad(y, x)


def test_a_thread_sweeps_what_another_goes_on_recording(hasty):
    """Each sweeps graphs of the one's open tape, in turn with the other; the one imports new leaves."""
    x, shown, ready = leaf(AT), [], threading.Condition()

    def record():
        for k in range(60):
            mine, theirs = graph(x, k), graph(x, k)
            np.sum(leaf(AT) * x)
            with ready:
                shown.append(theirs)
                ready.notify()
            assert bits(tg.grad([mine], [x], [1.0])[0]) == alone(k)

    def sweep():
        for k in range(60):
            with ready:
                assert ready.wait_for(lambda k=k: len(shown) > k, 50)
            assert bits(tg.grad(shown[k], x)[0]) == alone(k)

    together(record, sweep)


def test_threads_sweep_one_graph_that_is_retained(hasty):
    class Two(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x, x * 3.0

        @staticmethod
        def backward(ctx, g, h):
            (x,) = ctx.saved_tensors
            return 2 * x * g + 3 * h

    x = leaf(AT)
    a, b = Two.apply(x)
    y = tg.autograd.checkpoint(lambda x: np.sin(x) * np.exp(x), x)
    roots = [np.sum((a * k) * (b + k) * y) for k in (1.0, 2.0)]
    expected = [bits(tg.grad(u, x, retain_graph=True)[0]) for u in roots]

    def work(k):
        for _ in range(50):
            assert bits(tg.grad(roots[k % 2], x, retain_graph=True)[0]) == expected[k % 2]

    together(*[functools.partial(work, k) for k in range(4)])


def test_functions_of_one_result_swept_by_threads(hasty):
    x = leaf(AT)
    y = Inside.apply(x, [lambda: None] * 1000)
    roots = [np.sum(y * (k + 1.0)) for k in range(4)]

    def work(k):
        for _ in range(50):
            (g,) = tg.grad(roots[k], x, retain_graph=True)
            assert set(g.tolist()) == {k + 1.0}

    together(*[functools.partial(work, k) for k in range(4)])


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("retain", [False, True])
def test_what_is_released_while_another_sweep_is_at_work_goes_when_that_ends(monkeypatch, retain):
    monkeypatch.setattr(engine, "SMALL", 0)
    x = leaf(np.linspace(0.1, 1.0, 400))
    u, v = graph(x, 1), graph(x, 2)
    tapes.close(u._tape)
    alive = [weakref.ref(value) for value in u._tape.columns.values if isinstance(value, np.ndarray)]

    def count():
        return sum(r() is not None for r in alive)

    before = count()
    seen = []
    u.register_hook(lambda g: seen.append((tg.grad(v, x), count())))
    tg.grad(u, x, retain_graph=retain)
    ((_, during),) = seen
    assert during == before
    assert count() < (0.6 if retain else 0.2) * before
