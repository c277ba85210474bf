"""Loops whose states are computed again, inside compiled code: the derivatives of the plain loop."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import njit

import tapegrad as tg
from tapegrad.autograd import loops
from tapegrad.errors import UnsupportedOpError
from tapegrad.native.library import loop
from tapegrad.native.tapes import tape

CALLS = [0, 1 << 60]  # how many there were, and at which one fails


@ctypes.CFUNCTYPE(ctypes.c_double)
def tick():
    CALLS[0] += 1
    return float(CALLS[0] >= CALLS[1])


@tg.njit
def step(x, rate, w):
    if tick() > 0.0:
        raise ValueError("tired")
    y = np.empty_like(x)
    for k in range(x.size):
        y[k] = x[k] + rate * np.sin(x[k] * w[k]) * x[k - 1]
    x[0] = 7.0  # the state is the step's own
    return y


@njit
def plain(x, n, rate, w):
    for _ in range(n):
        x = step(x.copy(), rate, w)
    return x


@tg.njit
def looped(x, n, slots, rate, w):
    return tg.func.checkpoint_loop(step, x * 1.0, n, slots, (rate, w))


X, W = np.array([0.5, 0.3, 0.9]), np.array([1.0, 2.0, 0.5])
C = np.array([1.0, -2.0, 3.0])


def leaves():
    return [tg.tensor(v, requires_grad=True) for v in (X, 0.1, W)]


every_step_kept = tg.njit(plain)


def gradients(function, n, *more):
    x, rate, w = leaves()
    return [g.numpy() for g in tg.grad((function(x, n, *more, rate, w) * C).sum(), [x, rate, w])]


@pytest.mark.parametrize(("n", "slots"), [(1, 0), (2, 3), (7, 0), (7, 1), (7, 2), (12, 3), (40, 2), (9, 50)])
def test_gradients(n, slots):
    expected = gradients(every_step_kept, n)
    for found, right in zip(gradients(looped, n, slots), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-13)


def test_no_step_at_all():
    gx, gr, gw = gradients(looped, 0, 2)
    np.testing.assert_array_equal(gx, C)
    assert gr == 0.0 and not gw.any()


def test_values_without_derivatives():
    before = X.copy()
    found = tg.func.checkpoint_loop(step, X, 11, 2, (0.1, W))
    np.testing.assert_array_equal(found, plain(X, 11, 0.1, W))
    np.testing.assert_array_equal(looped(X, 11, 2, 0.1, W), found)
    np.testing.assert_array_equal(X, before)


def test_the_schedule_is_that_of_tensors():
    for slots in (0, 1, 2, 3, 7, 100):
        for steps in (2, 3, 5, 17, 100, 12345):
            assert loop.left(steps, slots) == loops._left(steps, slots)


@pytest.mark.parametrize(("n", "slots"), [(12, 2), (30, 3)])
def test_how_often_steps_are_computed(n, slots):
    counts = []
    x, rate, w = leaves()

    def python_step(x):
        tick()
        return x + rate * np.sin(x * w)

    for run in (
        lambda: tg.autograd.checkpoint_loop(python_step, x, n, slots=slots),
        lambda: looped(x, n, slots, rate, w),
    ):
        CALLS[0] = 0
        tg.grad((run() * C).sum(), x)
        counts.append(CALLS[0])
    assert counts[1] == counts[0] + 1  # the last step is recorded by the sweep, not by the loop


def test_a_sweep_twice_and_the_memory():
    x, rate, w = leaves()
    y = looped(x, 5000, 6, rate, w)
    recording = [attrs["segment"] for attrs in y._tape.attrs.values() if "segment" in attrs][-1].recording
    assert recording.leaves == 3  # of x * 1.0
    assert recording.word(tape.BLOCKS)
    z = (y * C).sum()
    first = [g.numpy() for g in tg.grad(z, [x, rate, w], retain_graph=True)]
    for again, g in zip(tg.grad(z, [x, rate, w]), first, strict=True):
        np.testing.assert_array_equal(again, g)


def test_second_derivatives():
    results = []
    for function, more in ((looped, (2,)), (every_step_kept, ())):
        x, rate, w = leaves()
        found = tg.grad((function(x, 7, *more, rate, w) * C).sum(), [x, rate, w], create_graph=True)
        total = sum((g * (k + 1.0)).sum() for k, g in enumerate(found))
        results.append([g.numpy() for g in tg.grad(total, [x, rate, w])])
    for found, right in zip(*results, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-12)


@njit
def scaled(x, n, slots):
    rate, w = x[0] * 0.2, W * x[1]
    return tg.func.checkpoint_loop(step, x, n, slots, (rate, w)) * x[1]


@njit
def plain_scaled(x, n, slots):
    return plain(x, n, x[0] * 0.2, W * x[1]) * x[1]


@njit
def loss(x, n, slots):
    y = scaled(x, n, slots)
    return (y * y).sum()


@njit
def plain_loss(x, n, slots):
    y = plain_scaled(x, n, slots)
    return (y * y).sum()


@pytest.mark.slow
def test_inside_compiled_code():
    value, gradient = tg.func.value_and_grad(loss)(X, 20, 2)
    expected = tg.func.value_and_grad(plain_loss)(X, 20, 2)
    assert value == pytest.approx(expected[0], rel=1e-14)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-12)


@pytest.mark.slow
def test_power_series():
    found, expected = (tg.func.taylor(f, 3)(X, 20, 2, C) for f in (loss, plain_loss))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.slow
def test_hessian():
    found, expected = (tg.func.hessian(f)(X, 9, 2) for f in (loss, plain_loss))
    np.testing.assert_allclose(found, expected, rtol=1e-11)


@pytest.mark.slow
def test_third_derivatives():
    results = []
    for function in (loss, plain_loss):
        t = tg.tensor(X, requires_grad=True)
        y = tg.njit(function)(t, 6, 1)
        for _ in range(3):
            (g,) = tg.grad(y, t, create_graph=True)
            y = (g * C).sum()
        results.append(g.detach().numpy())
    np.testing.assert_allclose(*results, rtol=1e-11)


@pytest.mark.slow
def test_jacobian():
    found, expected = (tg.func.jacobian(f)(X, 9, 2) for f in (scaled, plain_scaled))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.slow
def test_a_loop_in_a_loop():
    @njit
    def outer(x, w):
        return tg.func.checkpoint_loop(step, x, 5, 1, (0.05, w)) * 0.9

    @tg.njit
    def nested(x, n, slots, rate, w):
        return tg.func.checkpoint_loop(outer, x, n, slots, (w,)) * rate

    @tg.njit
    def right(x, n, slots, rate, w):
        for _ in range(n):
            x = plain(x, 5, 0.05, w) * 0.9
        return x * rate

    for found, expected in zip(gradients(nested, 8, 2), gradients(right, 8, 2), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_step_that_fails_in_the_sweep():
    expected = gradients(looped, 12, 2)
    x, rate, w = leaves()
    y = (looped(x, 12, 2, rate, w) * C).sum()
    try:
        CALLS[:] = [0, 5]
        with pytest.raises(ValueError, match="tired"):
            tg.grad(y, [x, rate, w], retain_graph=True)
    finally:
        CALLS[:] = [0, 1 << 60]
    for found, right in zip(tg.grad(y, [x, rate, w]), expected, strict=True):
        np.testing.assert_array_equal(found, right)


@pytest.mark.slow
def test_a_step_that_fails_in_a_sweep_in_compiled_code():
    """More often than there are slots of tapes."""
    function = tg.func.value_and_grad(loss)
    value, gradient = function(X, 12, 2)
    try:
        for _ in range(80):
            CALLS[:] = [0, 20]  # eight after the forward
            with pytest.raises(ValueError, match="tired"):
                function(X, 12, 2)
    finally:
        CALLS[:] = [0, 1 << 60]
    again = function(X, 12, 2)
    assert again[0] == value
    np.testing.assert_array_equal(again[1], gradient)


def writing(x, w):
    w[0] = x[0]
    return x


def drawing(x, w):
    return x * np.random.random()  # noqa: NPY002


def growing(x, w):
    return np.concatenate((x, w))


def test_misuse():
    x, w = tg.tensor(X, requires_grad=True), W.copy()
    run = tg.func.checkpoint_loop
    with pytest.raises(UnsupportedOpError, match="writes to one of its args"):
        run(njit(writing), x, 3, 2, (w,))
    np.testing.assert_array_equal(w, W)
    with pytest.raises(UnsupportedOpError, match="draws random numbers"):
        run(njit(drawing), x, 3, 2, (w,))
    with pytest.raises(ValueError, match="another shape"):
        run(njit(growing), X, 3, 2, (w,))
    with pytest.raises(ValueError, match="0 or more"):
        run(step, X, -1, 2, (0.1, w))
    with pytest.raises(TypeError, match=r"compiled by tg\.njit"):
        run(lambda x: x, x, 3, 2)
    with pytest.raises(TypeError, match="args is a tuple"):
        run(step, x, 3, 2, w)


@pytest.mark.slow
def test_memory_is_that_of_the_states():
    """Where the plain loop finds no memory for its tape, this one does."""
    code = """if True:
        import resource, numpy as np, tapegrad as tg
        from tests.native.test_checkpoint_loop import C, leaves, looped, plain
        x, rate, w = leaves()
        run = tg.njit(plain)
        tg.grad((looped(x, 5, 2, rate, w) * C).sum(), x)
        tg.grad((run(x, 5, rate, w) * C).sum(), x)
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (100 << 20),) * 2)
        print(bool(np.isfinite(tg.grad((looped(x, 1_000_000, 20, 1e-6, w) * C).sum(), x)[0]).all()))
        try:
            run(x, 1_000_000, 1e-6, w)
        except MemoryError:
            print("MemoryError")
    """
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.split() == ["True", "MemoryError"], done.stderr[-2000:]


CACHED = """
import numpy as np, tapegrad as tg

@tg.njit(cache=True, preaccumulate=True)
def force(a, b):
    return np.sin(a * b) * a

@tg.njit(cache=True)
def step(x, rate):
    y = np.empty_like(x)
    for k in range(x.size):
        y[k] = x[k] + rate * force(x[k], x[k - 1])
    return y

@tg.njit(cache=True)
def looped(x, n, slots, rate):
    return tg.func.checkpoint_loop(step, x, n, slots, (rate,))
"""


@pytest.mark.slow
def test_the_cache_of_another_process(tmp_path):
    (tmp_path / "cached_loop.py").write_text(CACHED, "utf-8")
    code = """if True:
        import tapegrad as tg
        from cached_loop import looped
        from tapegrad.native.twin import twin_of
        x = tg.tensor([0.5, 0.3, 0.9], requires_grad=True)
        (g,) = tg.grad(looped(x, 50, 4, 0.1).sum(), x, create_graph=True)
        (h,) = tg.grad(g.sum(), x)
        stats = [twin_of(looped.primal, spec, True).stats.cache_hits for spec in ((), (1,))]
        print(*(sum(hits.values()) for hits in stats), *g.tolist(), *h.tolist())
    """
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{tmp_path}"}
    rows = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True,
        ).stdout.split()
        for _ in range(2)
    ]  # fmt: skip
    assert [row[:2] for row in rows] == [["0", "0"], ["1", "1"]]
    assert len(rows[0]) == 8 and rows[0][2:] == rows[1][2:]
