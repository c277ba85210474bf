"""Graphs that span many tapes give what they give on one."""

import gc
import random as python_random
import threading

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.tape import tape as tape_module

LENGTHS = [1, 2, 7, 64, tape_module.MAX_RECORDS]


def leaf(data=(1.0, 2.0), dtype=float):
    return tg.tensor(data, dtype=dtype, requires_grad=True)


def tapes_of(y):
    """Serials of the tapes below a result."""
    todo, found = [y._tape], set()
    while todo:
        tape = todo.pop()
        if tape.serial not in found:
            found.add(tape.serial)
            todo += [older for older in tape.older if older is not None]
    return found


def test_short_tapes_are_really_many(tape_length):
    x = leaf(1.0)
    y = x
    for _ in range(40):
        y = y * 1.5
    count = len(tapes_of(y))
    if tape_length == 1:
        assert count >= 20
    elif tape_length == 8:
        assert count >= 5
    else:
        assert count == 1
    y.backward()
    assert x.grad.item() == 1.5**40


def program(seed, x, z, w):
    """A random graph of scalars and vectors; returns its loss and two results on the way."""
    choose = python_random.Random(seed)
    known = [x, z, x * z, np.sin(w)]
    binary = [np.add, np.subtract, np.multiply, np.maximum, np.arctan2, np.hypot]
    unary = [np.sin, np.tanh, np.negative, np.square, np.cos, lambda t: np.flip(t), lambda t: t * 0.5]
    middle = []
    for step in range(25):
        if choose.random() < 0.6:
            y = choose.choice(binary)(choose.choice(known), choose.choice(known))
        else:
            y = choose.choice(unary)(choose.choice(known))
        if np.ndim(y) == 0:
            y = y + x
        known.append(np.tanh(y) if step % 5 == 0 else y)
        if step in (8, 16):
            middle.append(known[-1])
    return (known[-1] * known[-2]).sum() + known[-3].mean(), middle


def derivatives(seed):
    x, z, w = leaf((0.3, -0.7, 1.1)), leaf((1.2, 0.4, -0.6)), leaf(0.5)
    loss, middle = program(seed, x, z, w)
    inputs = [x, z, w, *middle]
    first = tg.grad(loss, inputs, create_graph=True, materialize_grads=True)
    plain = tg.grad(loss, inputs, retain_graph=True, materialize_grads=True)
    loss.backward(retain_graph=True)
    grads = [t.grad for t in (x, z, w) if t.grad is not None]
    total = sum((g * g).sum() for g in first)
    second = tg.grad(total, [x, z, w], materialize_grads=True) if total.requires_grad else ()
    return [np.array(g.tolist()) for g in (*first, *plain, *second, *grads)]


@pytest.mark.parametrize("seed", range(24))
def test_random_graphs_agree_for_all_lengths(seed, monkeypatch):
    found = []
    for length in LENGTHS:
        monkeypatch.setattr(tape_module, "MAX_RECORDS", length)
        if tape_module.local.tape is not None:
            tape_module.close(tape_module.local.tape)
        found.append(derivatives(seed))
    assert any(np.any(g != 0) for g in found[-1])
    for other in found[:-1]:
        assert len(other) == len(found[-1])
        for a, b in zip(other, found[-1], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("seed", range(24))
def test_recorded_and_plain_sweeps_agree(seed, tape_length):
    x, z, w = leaf((0.3, -0.7, 1.1)), leaf((1.2, 0.4, -0.6)), leaf(0.5)
    loss, middle = program(seed, x, z, w)
    inputs = [x, z, w, *middle]
    plain = tg.grad(loss, inputs, retain_graph=True, materialize_grads=True)
    recorded = tg.grad(loss, inputs, create_graph=True, materialize_grads=True)
    for a, b in zip(plain, recorded, strict=True):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-12, atol=1e-13)


def test_results_of_long_ago(tape_length):
    x = leaf((1.0, 2.0))
    old = np.exp(x)
    y = x
    for _ in range(500 if tape_length == 1 else 10_000):
        y = y + 0.001
    loss = (old * y).sum()
    e, moved = np.exp([1.0, 2.0]), y.detach().numpy()
    (g, h) = tg.grad(loss, [x, old])
    np.testing.assert_allclose(g.numpy(), e * moved + e, rtol=1e-13)
    np.testing.assert_array_equal(h.numpy(), moved)


def test_handles_that_die_on_the_way(tape_length):
    """What a derivative needs stays; what nothing reaches is dropped without harm."""
    x, total = leaf(0.5), 0.0
    for k in range(300):
        dead = np.exp(x) * k
        for _ in range(3):
            dead = np.sin(dead)
        total = total + x * float(k)
        if k == 150:
            gc.collect()
    total.backward()
    assert x.grad.item() == sum(range(300))


def test_one_survivor_of_each_tape(tape_length):
    x = leaf(0.5)
    kept = []
    for k in range(200):
        y = x
        for _ in range(10):
            y = y * 1.01
        kept.append(y)
    found = tg.grad(sum(kept), [x, *kept[::37]])
    assert found[0].item() == pytest.approx(200 * 1.01**10, rel=1e-13)
    assert [g.item() for g in found[1:]] == [1.0] * len(kept[::37])


def test_retained_results_on_closed_tapes(tape_length):
    x = leaf(1.0)
    chain = [x * 2.0]
    for _ in range(60):
        chain.append(chain[-1] * 1.5)
    for k, y in enumerate(chain):
        if k % 7 == 0:
            y.retain_grad()
    del y
    for create_graph in (False, True):
        chain[-1].backward(retain_graph=True, create_graph=create_graph)
    for k in range(0, 61, 7):
        assert chain[k].grad.item() == pytest.approx(2 * 1.5 ** (60 - k), rel=1e-13)


def test_E16_a_deep_chain_neither_recurses_in_the_sweep_nor_at_its_end(tape_length):
    x = leaf(1.0)
    y = x
    for _ in range({1: 5_000, 8: 20_000}.get(tape_length, 100_000)):
        y = y + 1.0
    y.backward(retain_graph=True)
    assert x.grad.item() == 1.0
    assert tg.grad(y, x)[0].item() == 1.0
    del y


def test_derivatives_to_order_six(tape_length):
    x = leaf(0.7)
    y = np.sin(x) * x
    wanted = [
        np.sin(0.7) + 0.7 * np.cos(0.7),
        2 * np.cos(0.7) - 0.7 * np.sin(0.7),
        -3 * np.sin(0.7) - 0.7 * np.cos(0.7),
        -4 * np.cos(0.7) + 0.7 * np.sin(0.7),
        5 * np.sin(0.7) + 0.7 * np.cos(0.7),
        6 * np.cos(0.7) - 0.7 * np.sin(0.7),
    ]
    for order in range(6):
        (y,) = tg.grad(y, x, create_graph=True)
        assert y.item() == pytest.approx(wanted[order], rel=1e-11)


def test_graph_of_several_threads(tape_length):
    """Each thread records on its own tape; the results meet in one graph."""
    x, parts = leaf((1.0, 2.0)), [None] * 4

    def work(k):
        y = x * float(k + 1)
        for _ in range(5):
            y = y + x
        parts[k] = y * y

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    loss = sum(p.sum() for p in parts)
    # part k is ((k + 6) x)^2
    wanted = sum(2 * (k + 6) ** 2 for k in range(4)) * np.array([1.0, 2.0])
    assert tg.grad(loss, x, create_graph=True)[0].tolist() == wanted.tolist()
    loss.backward()
    assert x.grad.tolist() == wanted.tolist()


def test_results_passed_back_and_forth_between_threads(tape_length):
    x = leaf(1.5)
    y = [x]

    def work():
        y[0] = np.sin(y[0]) + x

    for _ in range(10):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        y[0] = y[0] * x
    value, derivative = 1.5, 1.0
    for _ in range(10):
        derivative, value = np.cos(value) * derivative + 1.0, np.sin(value) + 1.5
        derivative, value = derivative * 1.5 + value, value * 1.5
    (g,) = tg.grad(y[0], x, create_graph=True)
    assert g.item() == pytest.approx(derivative, rel=1e-12)
    y[0].backward()
    assert x.grad.item() == pytest.approx(derivative, rel=1e-12)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_sweep_looks_at_no_tape_older_than_what_is_wanted(fresh, monkeypatch):
    """Of a growing history, whose results are as if all of it had been looked at."""
    from tapegrad.engine import plan

    jobs = []
    monkeypatch.setattr(plan, "Job", lambda *args, make=plan.Job: jobs.append(args) or make(*args))
    a = np.array([[0.3, -0.2], [0.1, 0.4]])

    def run(steps):
        theta = leaf([0.1, 0.2])
        w, counts = theta * 1.0, []
        for _ in range(steps):
            jobs.clear()
            v = leaf() if fresh else w
            loss = np.sum(np.tanh(a @ (w * v)) ** 2)
            (g,) = tg.grad(loss, v, create_graph=True)
            counts.append(len(jobs))
            w = w - 0.1 * g
        return theta, w, counts

    theta, w, counts = run(40)
    assert max(counts) <= 3
    (found,) = tg.grad(np.sum(w), theta)
    step = 1e-6

    def value(moved):
        with monkeypatch.context() as patch:
            patch.setattr(plan, "Job", plan.Job)
            w = tg.tensor(np.array([0.1, 0.2]) + moved)
            for _ in range(40):
                v = leaf() if fresh else leaf(w.detach().numpy())
                (g,) = tg.grad(np.sum(np.tanh(a @ (w * v if fresh else v * v)) ** 2), v)
                w = (w - 0.1 * g).detach()
            return w.numpy().sum()

    wanted = [(value(d) - value(-d)) / (2 * step) for d in step * np.eye(2)]
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)


def test_a_leaf_that_an_older_tape_imports_later():
    """The oldest tape that knows it counts, not the first that came to know it."""
    x, ready, go = leaf(3.0), threading.Event(), threading.Event()
    found = []

    def work():
        y = leaf(2.0) * 1.0  # begins a tape
        ready.set()
        assert go.wait(60)
        found.append(y * x)

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(60)
    z = x * x  # on a newer one
    go.set()
    thread.join()
    assert tg.grad(z + found[0], x)[0].item() == 8.0


@pytest.mark.parametrize("dtype", ["f", "d", "F", "D", "g", "G"])
@pytest.mark.parametrize("shape", [(), (3,), (70, 10)])
def test_two_newer_tapes_give_cotangents_to_one_record(dtype, shape):
    """Added up in the record's dtype, whether they were moved on as they came or computed."""
    value = np.random.default_rng(5).uniform(0.5, 1.5, shape).astype(dtype)
    x = leaf(value, dtype)
    z = x * x
    tape_module.close(tape_module.local.tape)
    first, moved = z * z, z + 0.0
    tape_module.close(tape_module.local.tape)
    second = first + z * 3.0 + moved
    tape_module.close(tape_module.local.tape)
    out = np.sum(second + z)
    (g,) = tg.grad(out if out.dtype.kind == "f" else np.real(out), x)
    assert g.dtype == np.dtype(dtype)
    expected = np.conj(4 * value**3 + 10 * value)
    np.testing.assert_allclose(g.numpy(), expected, rtol=20 * np.finfo(dtype).eps)
    assert len(tapes_of(out)) == 4
