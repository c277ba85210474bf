"""Loops as one record: the schedule, derivatives of any order, what steps may do, and memory."""

import functools
import subprocess
import sys
import weakref
from collections import namedtuple
from math import comb

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import forward_ad as fwd
from tapegrad.autograd.graph import saved_tensors_hooks
from tapegrad.autograd.loops import _left
from tapegrad.errors import GradientError, GraphFreedError

loop = tg.autograd.checkpoint_loop
Pair = namedtuple("Pair", "x v")


def leaf(*values):
    return tg.tensor(values, requires_grad=True, dtype=float)


def plainly(step, state, n, slots=0):
    for _ in range(n):
        state = step(state)
    return state


# ---------------------------------------------------------------- the schedule


@pytest.mark.parametrize("slots", [0, 1, 2, 5])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 30])
def test_a_checkpointed_loop_takes_the_fewest_steps_there_can_be(n, slots):
    """Steps of the schedule of Griewank and Walther, the recorded ones among them."""
    steps = []
    w = leaf(0.3, 0.4)

    def step(state):
        steps.append(1)
        x, v = state
        return x + 0.1 * v, v - 0.1 * np.sin(x * w)

    start = leaf(0.5, 0.2), leaf(0.0, 1.0)
    found = tg.autograd.checkpoint_loop(step, start, n, slots=slots)
    plain = start
    for _ in range(n):
        plain = step(plain)
    steps.clear()
    wanted = [*start, w]
    ours = tg.grad(found[0].sum() + found[1].sum(), wanted, allow_unused=True)
    repeated = len(steps)
    theirs = tg.grad(plain[0].sum() + plain[1].sum(), wanted, allow_unused=True)
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)
    repeats = 0
    while slots and comb(slots + repeats, slots) < n:
        repeats += 1
    fewest = repeats * n - comb(slots + repeats, slots + 1) if slots else n * (n - 1) // 2
    assert repeated == max(fewest, 0)


def test_the_schedule_is_the_best_for_all_small_loops():
    """Steps that a reversal repeats, followed through the splits, beside the binomial optimum."""

    @functools.cache
    def repeated(steps, slots):
        total = 0
        while steps > 1:
            left = _left(steps, slots)
            total, steps, slots = total + left + repeated(left, slots), steps - left, max(slots - 1, 0)
        return total

    for slots in range(1, 21):
        repeats = 0
        for n in range(1, 1001):
            repeats += comb(slots + repeats, slots) < n
            fewest = repeats * n - comb(slots + repeats, slots + 1)
            assert repeated(n, slots) == max(fewest, 0), (n, slots)


def test_a_loop_takes_one_state_and_refuses_negative_numbers():
    x = tg.tensor(0.5, requires_grad=True)
    y = tg.autograd.checkpoint_loop(lambda x: x * x, x, 3, slots=1)
    assert tg.grad(y, x)[0].item() == pytest.approx(8 * 0.5**7)
    for n, slots in ((-1, 1), (1, -1)):
        with pytest.raises(ValueError, match="0 or more"):
            tg.autograd.checkpoint_loop(np.sin, x, n, slots=slots)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_step_that_returns_nothing_is_refused(requires_grad):
    """It gave None, and with a second step an error of the step about None."""

    def step(x):
        x *= 2.0

    x = tg.tensor([0.5, 1.0], requires_grad=requires_grad)
    for n in (1, 2):
        with pytest.raises(TypeError, match=r"step that returns the next state, found None.*its return"):
            tg.autograd.checkpoint_loop(step, x, n, slots=1)
    assert tg.autograd.checkpoint_loop(step, x, 0, slots=1) is x


def test_a_checkpointed_loop_keeps_few_states():
    states, most = [], 0

    def step(x):
        nonlocal most
        x = x + 0.01 * np.sin(x)
        states.append(weakref.ref(x._v))
        most = max(most, sum(state() is not None for state in states))
        return x

    x = tg.tensor(np.full(5000, 0.1), requires_grad=True)
    y = tg.autograd.checkpoint_loop(step, x, 100, slots=4)
    y.sum().backward()
    assert most <= 4 + 4  # the slots; the state of a step, the next one, the one after that, the last


# ---------------------------------------------------------------- derivatives


def grow(run, x, w):
    return run(lambda s: s + 0.1 * np.sin(s * w), x, 7, slots=2)


def swing(run, x, w):
    def step(state):
        a, b = state
        return a + 0.1 * b, b - 0.1 * np.sin(a * w)

    a, b = run(step, (x, x * w), 6, slots=1)
    return a * b


def named(run, x, w):
    def step(state):
        return Pair(state.x * w, [state.v[0] + state.x, 0.5 + state.v[1]])

    found = run(step, Pair(x, [w, 0.0]), 5, slots=2)
    assert found.v[1] == 2.5
    return found.x + found.v[0]


def as_dict(run, x, w):
    return run(lambda s: {"t": s["t"] + 1, "x": s["x"] * np.cos(w * s["t"])}, {"t": 0, "x": x}, 5, slots=2)[
        "x"
    ]


def written_to(run, x, w):
    def step(s):
        s *= 0.9
        s[1] = s[0] * w[2]
        s += 0.1 * w * s
        return s

    return run(step, x * 1.0, 6, slots=2)


def with_what_was_computed(run, x, w):
    """A step uses a leaf and what was computed from it; the first state is used by all steps."""
    c = w * x
    return run(lambda s: s * 0.5 + np.tanh(c * s) * w + x, x, 6, slots=2)


def with_others_at_times(run, x, w):
    later = w * 3.0

    def step(state):
        k, s = state
        return k + 1, (s * later if k == 4 else s + 0.1 * s**2)

    return run(step, (0, x), 6, slots=2)[1]


def from_nothing(run, x, w):
    """Of what requires no grad, to begin with."""
    return run(lambda s: s * w + 0.1, tg.tensor([1.0, 2.0, 3.0]), 4, slots=1) * x


def by_forces(run, x, w):
    """A step differentiates."""

    def step(state):
        a, v = state
        (force,) = tg.grad(-np.sum(np.cos(a * w)), a, create_graph=True)
        return a + 0.1 * v, v - 0.1 * force

    return run(step, (x * 1.0, w), 4, slots=2)[0]


def within_others(run, x, w):
    def step(s):
        return s + 0.1 * tg.autograd.checkpoint(lambda t: np.sin(t * w), run(lambda t: t * w, s, 3, slots=1))

    return run(step, x, 4, slots=1)


def with_functions(run, x, w):
    class Cube(tg.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a**3 * b

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            return 3 * a**2 * b * g, a**3 * g

    return run(lambda s: s + 0.01 * Cube.apply(s, w), x, 5, slots=2)


def handing_on(run, x, w):
    """A part of the state is a parameter itself, another one there twice, or a view."""

    def step(state):
        a, b, c, d = state
        assert a is b
        return (s := a * c + d[0]), s, w, s[1:]

    found = run(step, (x, x, x * 2, x[::-1]), 4, slots=1)
    return found[0] + np.sum(found[3]) + found[2]


def of_pairs(run, x, w):
    return run(lambda s: s * np.exp(0.1j * w) + 0.1j * s**2, x * (1 + 0.5j), 5, slots=2).imag


def changing_shape(run, x, w):
    return run(lambda s: np.concatenate([s, s[-1:] * w[:1]]), x, 4, slots=1)[-3:]


def linear(run, x, w):
    return run(lambda s: s * 2.0, x, 4, slots=1) * w


PROGRAMS = [
    grow, swing, named, as_dict, written_to, with_what_was_computed, with_others_at_times, from_nothing,
    by_forces, within_others, with_functions, handing_on, of_pairs, changing_shape, linear,
]  # fmt: skip


def derivatives(f, run, orders):
    """A function's value, and derivatives in directions that depend on the operands."""
    x, w = leaf(0.7, 0.4, 0.9), leaf(0.6, 1.1, -0.5)
    found, y = [], f(run, x, w)
    for order in range(orders):
        grads = tg.grad(
            np.sum(y * np.cos(np.arange(3) + x)), [x, w], create_graph=order < orders - 1, allow_unused=True
        )
        found += [None if g is None else g.tolist() for g in grads]
        y = sum(np.sin(g + w) for g in grads if g is not None)
    return found


@pytest.mark.parametrize("f", PROGRAMS)
def test_I7_derivatives_of_a_loop_are_those_of_its_steps(f):
    for a, b in zip(derivatives(f, loop, 3), derivatives(f, plainly, 3), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.longdouble])
def test_states_of_other_dtypes(dtype):
    def run(how):
        x = tg.tensor(np.array([0.5, 1.0], dtype), requires_grad=True)
        w = tg.tensor(np.array(0.3, dtype), requires_grad=True)
        y, z = how(lambda s: (s[0] + w * s[1], s[1] * dtype(0.5) + s[0]), (x, x * 2), 6, slots=2)
        return [g.numpy() for g in tg.grad(np.sum(y * z), [x, w])]

    for a, b in zip(run(loop), run(plainly), strict=True):
        assert a.dtype == dtype
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_gradcheck():
    x, w = leaf(0.7, 0.4), leaf(0.6, 1.1)

    def f(x, w):
        return loop(lambda s: (s[0] * w, s[1] + np.sin(s[0])), (x, w), 5, slots=1)

    assert tg.autograd.gradcheck(f, (x, w), check_forward_ad=True)
    assert tg.autograd.gradgradcheck(f, (x, w))


def test_a_derivative_by_some_and_to_the_accumulated_gradient():
    x, w, unused = leaf(0.7, 0.4), leaf(0.6, 1.1), leaf(1.0)
    y = loop(lambda s: s * w, x, 3, slots=1).sum()
    assert tg.grad(y, w, retain_graph=True)[0].tolist() == pytest.approx([3 * 0.7 * 0.36, 3 * 0.4 * 1.21])
    assert tg.grad(y, [x, unused], retain_graph=True, allow_unused=True)[1] is None
    y.backward(inputs=[x], retain_graph=True)
    assert w.grad is None
    y.backward()
    np.testing.assert_allclose(x.grad.tolist(), 2 * np.array([0.6, 1.1]) ** 3)
    np.testing.assert_allclose(w.grad.tolist(), [3 * 0.7 * 0.36, 3 * 0.4 * 1.21])


def test_batches_of_gradients():
    x, w = leaf(0.7, 0.4), leaf(0.6, 1.1)

    def rows(run):
        return tg.grad(grow(run, x, w), [x, w], np.eye(2), is_grads_batched=True)

    for a, b in zip(rows(loop), rows(plainly), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)


# ---------------------------------------------------------------- sweeps, more than one


def test_a_second_sweep_computes_states_again():
    steps = []

    def step(s):
        steps.append(1)
        return s * np.sin(s)

    x = leaf(0.7, 0.4)
    y = loop(step, x, 9, slots=2).sum()
    first = tg.grad(y, x, retain_graph=True)[0].tolist()
    once = len(steps) - 9
    steps.clear()
    assert tg.grad(y, x)[0].tolist() == first
    assert len(steps) == once + 9
    with pytest.raises(GraphFreedError):
        tg.grad(y, x)


@pytest.mark.parametrize("at", range(1, 14))
def test_an_exception_in_a_step_that_runs_again_leaves_all_usable(at):
    left = [10**6]

    def step(s):
        left[0] -= 1
        if not left[0]:
            raise KeyError("mine")
        return s * np.sin(s)

    x = leaf(0.7, 0.4)
    y = loop(step, x, 8, slots=2).sum()
    left[0] = at
    with pytest.raises(KeyError, match="mine"):
        tg.grad(y, x)
    left[0] = 10**6
    assert tg.grad(y, x)[0].tolist() == tg.grad(plainly(step, x, 8).sum(), x)[0].tolist()


def test_an_exception_in_the_first_run_leaves_all_usable():
    x = leaf(0.7, 0.4)

    def step(s):
        raise KeyError("mine")

    z = x * 2
    with pytest.raises(KeyError, match="mine"):
        loop(step, z, 8, slots=2)
    assert tg.grad(np.sum(z * z), x)[0].tolist() == [8 * 0.7, 8 * 0.4]


# ---------------------------------------------------------------- what a step may do, and may not


def test_the_first_state_remains_what_it_was():
    x = leaf(1.0, 2.0)
    start, array = x * 1.0, np.zeros(2)

    def step(state):
        s, a = state
        s *= 2.0
        a += 1.0
        return s, a

    found, counted = loop(step, (start, array), 4, slots=1)
    assert start.tolist() == [1.0, 2.0]
    assert array.tolist() == [0.0, 0.0]
    assert counted.tolist() == [4.0, 4.0]
    start *= 5.0
    assert tg.grad(found.sum(), x)[0].tolist() == [16.0, 16.0]


def test_a_step_does_not_write_to_what_shares_memory():
    x = leaf(1.0, 2.0)

    def step(state):
        s, _ = state
        s *= 0.5
        return s, s[:1]

    start = x * 1.0
    with pytest.raises(GradientError, match="clone"):
        loop(step, (start, start[:1]), 4, slots=1)[1].sum().backward()
    _, part = loop(lambda state: (state[0] * 0.5, state[0][:1]), (start, start[:1]), 4, slots=1)
    assert tg.grad(part.sum(), x)[0].tolist() == [0.125, 0.0]


def test_random_numbers_in_a_loop_are_those_of_its_first_run():
    def step(s):
        return s + 0.1 * s * np.random.standard_normal()  # noqa: NPY002

    def derivative(run, **more):
        x = leaf(0.1, 0.2)
        np.random.seed(7)  # noqa: NPY002
        y = run(step, x, 9, slots=2, **more)
        after = np.random.get_state()[2]  # noqa: NPY002
        first = tg.grad(np.sum(y * y), x, create_graph=True)[0]
        second = tg.grad(first.sum(), x)[0]
        assert np.random.get_state()[2] == after or not more  # noqa: NPY002
        return [first.tolist(), second.tolist()]

    np.testing.assert_allclose(derivative(loop, preserve_rng_state=True), derivative(plainly), rtol=1e-12)
    with pytest.raises(GradientError, match="preserve_rng_state"):
        derivative(loop)


def test_a_step_that_counts_its_calls_is_an_error():
    calls = []

    def step(s):
        calls.append(1)
        return s * (1 + 0.01 * len(calls))

    x = leaf(1.0, 2.0)
    y = loop(step, x, 6, slots=2).sum()
    with pytest.raises(GradientError, match="another state"):
        y.backward()
    assert x.grad is None


def test_a_step_that_uses_something_else_the_second_time_is_an_error():
    x, w, other = leaf(1.0, 2.0), leaf(0.5, 0.5), leaf(0.5, 0.5)
    calls = []

    def step(s):
        calls.append(1)
        return s * (w if len(calls) <= 4 else other)

    y = loop(step, x, 4, slots=1).sum()
    with pytest.raises(GradientError, match="no step had used"):
        y.backward()


def test_what_a_step_leaves_elsewhere_has_no_derivative_and_says_so():
    x, w, kept = leaf(1.0, 2.0), leaf(0.5, 0.6), []

    def step(s):
        kept.append(s * s)
        return s * w

    y = loop(step, x, 9, slots=2)
    with pytest.raises(GradientError, match="with the state"):
        tg.grad(np.sum(kept[2]) + y.sum(), x, retain_graph=True)
    with pytest.raises(GradientError, match="with the state"):
        tg.grad(np.sum(kept[-1]) + y.sum(), w, retain_graph=True)
    with pytest.raises(GradientError, match="with the state"):
        sum(np.sum(k) for k in kept).backward()
    hidden = []

    def reaching_back(s):
        hidden.append(s * 1.0)
        return s * w + hidden[0]

    with pytest.raises(GradientError):
        loop(reaching_back, x, 4, slots=1).sum().backward()


def test_what_a_step_computes_once_from_parameters_may_be_kept():
    x, w = leaf(1.0, 2.0), leaf(0.5, 0.6)

    def run(how):
        known = functools.cache(lambda: np.exp(w))
        return tg.grad(how(lambda s: s * known() + w, x, 4, slots=1).sum(), [x, w])

    for a, b in zip(run(loop), run(plainly), strict=True):
        np.testing.assert_allclose(a.tolist(), b.tolist(), rtol=1e-14)


def test_a_parameter_written_to_since_is_an_error():
    x, w = leaf(1.0, 2.0), leaf(0.5, 0.6)
    y = loop(lambda s: s * w, x, 4, slots=1).sum()
    with tg.no_grad():
        w *= 2.0
    with pytest.raises(GradientError, match="must do the same"):
        y.backward()


# ---------------------------------------------------------------- hooks, modes, tangents


def test_hooks_run_as_often_as_in_steps():
    def counts(run):
        seen = []
        x, w = leaf(0.7, 0.4), leaf(0.6, 1.1)
        w.register_hook(lambda g: seen.append("w"))
        x.register_hook(lambda g: seen.append("x"))
        c = w * 2
        c.register_hook(lambda g: seen.append("c") or 2 * g)

        def step(s):
            if s.requires_grad:
                s.register_hook(lambda g: seen.append("s") or 0.5 * g)
            t = np.sin(s)
            t.register_hook(lambda g: seen.append("t") or 3 * g)
            return t * c + w

        y = run(step, x * 1.0, 5, slots=1)
        y.register_hook(lambda g: seen.append("y"))
        seen.clear()
        grads = tg.grad(y.sum(), [x, w])
        return sorted(seen), [g.tolist() for g in grads]

    (a, ours), (b, theirs) = counts(loop), counts(plainly)
    assert a == b
    np.testing.assert_allclose(ours, theirs, rtol=1e-13)


def test_nothing_is_recorded_where_nothing_requires_grad():
    x, w = tg.tensor([1.0, 2.0]), leaf(0.5, 0.6)
    seen = []

    def step(s):
        seen.append(s.requires_grad)
        return s * 2.0

    assert not loop(step, x, 3, slots=1).requires_grad
    assert seen == [False] * 3
    with tg.no_grad():
        assert not loop(lambda s: s * w, leaf(1.0, 2.0), 3, slots=1).requires_grad
    y = loop(lambda s: s * w, leaf(1.0, 2.0), 3, slots=1).sum()
    with tg.no_grad():
        (g,) = tg.grad(y, w)
    np.testing.assert_allclose(g.tolist(), [0.75, 2 * 3 * 0.36])


def test_in_anomaly_mode_and_under_the_profiler():
    x, w = leaf(0.7, 0.4, 0.9), leaf(0.6, 1.1, -0.5)
    expected = tg.grad(grow(plainly, x, w).sum(), [x, w])
    with pytest.warns(UserWarning, match="anomaly"), tg.autograd.detect_anomaly():
        found = tg.grad(grow(loop, x, w).sum(), [x, w])
    with tg.autograd.profiler.profile():
        again = tg.grad(grow(loop, x, w).sum(), [x, w])
    for a, b, c in zip(found, again, expected, strict=True):
        np.testing.assert_allclose(a.tolist(), c.tolist(), rtol=1e-14)
        np.testing.assert_allclose(b.tolist(), c.tolist(), rtol=1e-14)


@pytest.mark.parametrize("f", [grow, swing, with_what_was_computed, from_nothing])
@pytest.mark.parametrize("of", [(1, 0), (0, 1), (1, 1)])
def test_tangents_of_states_and_of_parameters(f, of):
    def tangent(run):
        x, w = leaf(0.7, 0.4, 0.9), leaf(0.6, 1.1, -0.5)
        with fwd.dual_level():
            a = fwd.make_dual(x, tg.tensor([1.0, 0.5, 0.2])) if of[0] else x
            b = fwd.make_dual(w, tg.tensor([0.3, 0.1, -1.0])) if of[1] else w
            y = f(run, a, b)
            (g,) = tg.grad(y.sum(), x, create_graph=True)
            d = fwd.unpack_dual(y).tangent
            t = fwd.unpack_dual(g).tangent
            found = [d.tolist(), None if t is None else t.tolist()]
        return [*found, tg.grad(d.sum(), w)[0].tolist()]

    for a, b in zip(tangent(loop), tangent(plainly), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_tangents_of_the_cotangent():
    def product(run, recorded):
        x, w = leaf(0.7, 0.4, 0.9), leaf(0.6, 1.1, -0.5)
        y = grow(run, x, w)
        with fwd.dual_level():
            v = fwd.make_dual(tg.tensor([1.0, 0.5, 0.2]), tg.tensor([0.3, 0.1, -1.0]))
            found = tg.grad(y, [x, w], v, create_graph=recorded)
            moved = [fwd.unpack_dual(g).tangent for g in found]
        if recorded:
            moved += tg.grad(sum(m.sum() for m in moved), [x, w])
        return [m.tolist() for m in moved]

    for recorded in (False, True):
        np.testing.assert_allclose(product(loop, recorded), product(plainly, recorded), rtol=1e-12)


def test_functional_derivatives():
    x, w = leaf(0.7, 0.4, 0.9), leaf(0.6, 1.1, -0.5)
    for name in ("hvp", "vhp"):
        product = getattr(tg.autograd.functional, name)
        ours, theirs = (
            product(lambda x, run=run: grow(run, x, w).sum(), x, w.detach()) for run in (loop, plainly)
        )
        np.testing.assert_allclose(ours[1].tolist(), theirs[1].tolist(), rtol=1e-12)


@pytest.mark.parametrize("f", [grow, swing, written_to, with_what_was_computed])
def test_what_is_kept_passes_through_hooks(f):
    x, w, packed = leaf(0.7, 0.4, 0.9), leaf(0.6, 1.1, -0.5), []

    def derivative(run):
        first = tg.grad(f(run, x, w).sum(), [x, w], create_graph=True)
        return [g.tolist() for g in (*first, *tg.grad(sum(g.sum() for g in first), [x, w]))]

    expected = derivative(plainly)
    with saved_tensors_hooks(lambda v: packed.append(v.shape) or v, lambda v: v):
        found = derivative(loop)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert packed
    checkpointed = derivative(lambda *a, **k: tg.autograd.checkpoint(loop, *a, **k))
    np.testing.assert_allclose(checkpointed, expected, rtol=1e-12)


# ---------------------------------------------------------------- memory

MEASURE = """
import sys, tracemalloc
import numpy as np, tapegrad as tg
w = tg.tensor(0.01, requires_grad=True)

def step(state):
    x, v = state
    return x + w * v, v - w * np.sin(x)

def peak(n):
    x, v = tg.tensor(0.5, requires_grad=True), tg.tensor(0.0, requires_grad=True)
    tracemalloc.start()
    a, b = tg.autograd.checkpoint_loop(step, (x, v), n, slots=20)
    g = tg.grad(a + b, [x, w])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most

peak(50)
print(*[peak(int(n)) for n in sys.argv[1:]])
"""


def measured(*counts):
    command = [sys.executable, "-c", MEASURE, *map(str, counts)]
    return [
        int(w) for w in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    ]


@pytest.mark.full
def test_memory_does_not_grow_with_the_number_of_steps():
    few, many = measured(300, 1500)
    assert many - few < 200_000  # the records of the steps more would take megabytes


@pytest.mark.slow
def test_memory_of_a_hundred_thousand_steps():
    few, many = measured(1000, 100_000)
    print(f"checkpoint_loop of 1e3 and 1e5 steps: peaks of {few / 2**20:.2f} and {many / 2**20:.2f} MiB")
    assert many - few < 1 << 20
