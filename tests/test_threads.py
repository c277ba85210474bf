"""Threads, tasks and suspended generators: each gradient is what it would have been alone."""

import asyncio
import contextlib
import ctypes
import functools
import queue
import subprocess
import sys
import threading

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.core import compiled_methods
from tapegrad.errors import GraphFreedError, TapeBusyError
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.ops import REGISTRY
from tapegrad.ops.primitive import Primitive
from tapegrad.tape import tape as tapes


def leaf(value):
    return tg.tensor(value, requires_grad=True)


@pytest.fixture
def hasty():
    """Switch between threads as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def together(*functions, timeout=100):
    """Run each in a thread of its own; raise what the first of them raised, return their results."""
    results = [None] * len(functions)
    errors = []

    def run(k):
        try:
            results[k] = functions[k]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return results


def nested(k):
    """d/dx of x * d/dy (sin(x y) + x y**2) at points that depend on k; returns its bits."""
    x = leaf(0.5 + k / 997)
    y = leaf(1.0 + k / 1009)
    (inner,) = tg.grad(np.sin(x * y) + x * y * y, y, create_graph=True)
    (outer,) = tg.grad(x * inner, x)
    return outer.item()


def nested_of_arrays(k):
    x = leaf(np.linspace(0.1, 1.0, 2000) + k / 997)
    (inner,) = tg.grad(np.sum(np.sin(x) * np.exp(x)), x, create_graph=True)
    (outer,) = tg.grad(np.sum(inner * inner), x)
    return outer.detach().numpy().tobytes()


@pytest.mark.full
def test_nested_gradients_in_eight_threads_have_the_same_bits(hasty):
    serial = [nested(k) for k in range(1000)]
    found = together(*[lambda: [nested(k) for k in range(1000)]] * 8)
    assert all(mine == serial for mine in found)


def test_nested_gradients_are_right():
    for k in (0, 500, 999):
        x, y = 0.5 + k / 997, 1.0 + k / 1009
        c, s = np.cos(x * y), np.sin(x * y)
        # x * (x cos(xy) + 2 x y), differentiated by x
        assert nested(k) == pytest.approx(2 * x * c - x * x * y * s + 4 * x * y, rel=1e-13)


def test_nested_gradients_of_arrays_in_threads_have_the_same_bits(hasty):
    serial = [nested_of_arrays(k) for k in range(50)]
    found = together(*[lambda: [nested_of_arrays(k) for k in range(50)]] * 4)
    assert all(mine == serial for mine in found)


@pytest.mark.parametrize("function", ["sin", "cos", "tanh", "exp", "log"])
def test_a_value_has_the_same_bits_on_an_old_tape_and_on_a_new_one(function):
    x = leaf(np.linspace(0.1, 3.0, 2000))
    f = getattr(np, function)
    results = []

    def anew():
        results.append(f(x).detach().numpy().tobytes())

    together(anew)
    anew()
    x * 2.0
    anew()
    assert len(set(results)) == 1


def test_a_trace_left_open_elsewhere_does_not_disturb_a_nested_gradient():
    opened, done = threading.Event(), threading.Event()
    y = leaf(1.0)

    def other():
        z = leaf(2.0)
        w = z * z * y
        opened.set()
        assert done.wait(50)
        assert tg.grad(w, z)[0].item() == 4.0

    def mine():
        x = leaf(3.0)
        xy = x * y
        assert opened.wait(50)
        (inner,) = tg.grad(xy, y, create_graph=True)
        (outer,) = tg.grad(x * inner, x)
        done.set()
        return outer.item()

    assert together(other, mine)[1] == 6.0


def test_perturbations_of_different_levels_do_not_mix():
    def derivative(f, at):
        z = leaf(at)
        return tg.grad(f(z), z, create_graph=True)[0]

    # d/dx (x * d/dy (x + y)) is 1, d/dx (x * d/dy (x y)) is 2 x
    assert derivative(lambda x: x * derivative(lambda y: x + y, 1.0), 1.0).item() == 1.0
    assert derivative(lambda x: x * derivative(lambda y: x * y, 2.0), 3.0).item() == 6.0
    inner = derivative(
        lambda x: derivative(lambda y: derivative(lambda z: x * y * y * z * z * z, 2.0), 3.0), 5.0
    )
    assert inner.item() == 2 * 3 * 3 * 4


def test_orders_one_to_six_against_mpmath():
    mpmath = pytest.importorskip("mpmath")
    at = 0.7
    with mpmath.workdps(50):
        exact = [float(mpmath.diff(lambda t: mpmath.exp(mpmath.sin(t)), at, n)) for n in range(1, 7)]
    x = leaf(at)
    value = np.exp(np.sin(x))
    for n in range(6):
        (value,) = tg.grad(value, x, create_graph=True)
        assert value.item() == pytest.approx(exact[n], rel=1e-10)


def test_orders_by_nested_functions_against_a_power_series():
    """exp(sin x) as a truncated power series, multiplied out: no derivative rules involved."""

    def series(at, order):
        sine = [np.sin(at), np.cos(at), -np.sin(at), -np.cos(at)]
        s, fact = [], 1.0
        for n in range(order + 1):
            fact *= max(n, 1)
            s.append(sine[n % 4] / fact)
        e = [np.exp(s[0])]
        for n in range(1, order + 1):
            e.append(sum(j * s[j] * e[n - j] for j in range(1, n + 1)) / n)
        return [e[n] * float(np.prod(np.arange(1.0, n + 1))) for n in range(order + 1)]

    def differentiate(f):
        def derivative(x):
            z = x * 1.0
            return tg.grad(f(z), z, create_graph=True)[0]

        return derivative

    f = lambda x: np.exp(np.sin(x))
    exact = series(0.3, 6)
    for n in range(1, 7):
        f = differentiate(f)
        assert f(leaf(0.3)).item() == pytest.approx(exact[n], rel=1e-11)


# ---------------------------------------------------------------- tensors that cross threads


def test_tensors_cross_threads_both_ways(hasty):
    there, back = queue.Queue(), queue.Queue()
    a = leaf(1.25)

    def squares():
        for _ in range(300):
            p = there.get(timeout=50)
            back.put(p * p)

    def asks():
        found = []
        for _ in range(300):
            p = a * a
            there.put(p)
            r = back.get(timeout=50) * p  # a**6
            (g,) = tg.grad(r, a, create_graph=True)
            found.append((g.item(), tg.grad(g, a)[0].item()))
        return found

    _, found = together(squares, asks)
    assert set(found) == {(6 * 1.25**5, 30 * 1.25**4)}


def test_a_graph_recorded_by_many_threads_has_one_gradient(hasty):
    x = leaf(np.linspace(0.1, 1.0, 5))

    def part(k):
        y = x * (k + 1.0)
        for _ in range(50):
            y = np.sin(y)
        return np.sum(y)

    def all_of(parts):
        total = parts[0]
        for p in parts[1:]:
            total = total + p
        return tg.grad(total, x)[0].detach().numpy()

    expected = all_of([part(k) for k in range(8)])
    for _ in range(20):
        found = all_of(together(*[functools.partial(part, k) for k in range(8)]))
        np.testing.assert_allclose(found, expected, rtol=1e-14)  # tapes are swept by age, which differs


def test_sweeping_another_thread_s_open_tape_while_it_goes_on_recording(hasty):
    x = leaf(1.5)
    shown, stop = queue.Queue(1), threading.Event()

    def record():
        while not stop.is_set():
            y = x * 2.0
            for k in range(3000):
                y = y * 1.0
                if k == 50:
                    with contextlib.suppress(queue.Full):
                        shown.put_nowait(y)

    def sweep():
        try:
            for _ in range(400 if abi.native() else 80):
                y = shown.get(timeout=50)
                for _ in range(5):
                    assert tg.grad(y, x, retain_graph=True)[0].item() == 2.0
        finally:
            stop.set()

    together(record, sweep)


@pytest.mark.parametrize("records", [10, 600])
@pytest.mark.parametrize("retain", [False, True])
def test_recording_goes_on_after_another_thread_swept_the_open_tape(records, retain):
    x = leaf(np.linspace(0.1, 1.0, 50))
    for _ in range(3):
        y = x * 1.0
        for _ in range(records):
            y = np.sin(y)
        loss = np.sum(y)
        (there,) = together(lambda loss=loss: tg.grad(loss, x, retain_graph=retain)[0].numpy().copy())
        z = np.sum(x * x * x)
        np.testing.assert_allclose(tg.grad(z, x)[0].numpy(), 3 * x.detach().numpy() ** 2, rtol=1e-14)
        expected, v = np.ones(50), x.detach().numpy()
        for _ in range(records):
            expected, v = expected * np.cos(v), np.sin(v)
        np.testing.assert_allclose(there, expected, rtol=1e-12)


def test_the_recording_thread_may_prune_while_another_sweeps(hasty, monkeypatch):
    """The owner of older tapes closes many more while a sweep that began on a newer tape reaches them."""
    monkeypatch.setattr(tapes, "MAX_RECORDS", 64)
    x = leaf(np.linspace(1.0, 2.0, 300))
    given, stop = queue.Queue(2), threading.Event()

    def first(x):
        y = x
        for _ in range(100):
            y = np.sin(y) * 1.3
        return y

    def second(y):
        for _ in range(400):
            y = np.cos(y) + 0.1
        return np.sum(y * y)

    expected = tg.grad(second(first(x)), x)[0].detach().numpy().copy()

    def owner():
        while not stop.is_set():
            y = first(x)
            with contextlib.suppress(queue.Full):
                given.put(y, timeout=0.1)
            del y
            z = leaf(1.0)
            for _ in range(2000):
                z = z * 1.0

    def sweeper():
        try:
            for _ in range(150):
                y = given.get(timeout=50)
                loss = second(y)
                del y
                np.testing.assert_allclose(tg.grad(loss, x)[0].detach().numpy(), expected, rtol=1e-12)
        finally:
            stop.set()

    together(owner, sweeper)


@pytest.mark.parametrize("size", [1, 20_000, 300_000])
def test_two_sweeps_of_one_graph_never_give_a_wrong_number(hasty, size):
    x = leaf(np.linspace(1.0, 2.0, size))

    def build():
        y = x
        for _ in range(5):
            y = np.sin(y) * y
        return np.sum(y)

    expected = tg.grad(build(), x)[0].detach().numpy().copy()
    outcomes = {"right": 0, "GraphFreedError": 0, "TapeBusyError": 0}
    for _ in range(200 if size < 100_000 else 25):
        loss = build()
        gate = threading.Barrier(3)

        def sweep(loss=loss, gate=gate):
            gate.wait()
            try:
                (g,) = tg.grad(loss, x)
            except (GraphFreedError, TapeBusyError) as error:
                outcomes[type(error).__name__] += 1
                return
            np.testing.assert_allclose(g.detach().numpy(), expected, rtol=1e-12)
            outcomes["right"] += 1

        together(sweep, sweep, sweep)
    assert outcomes["right"] > 0


def test_retained_sweeps_of_one_graph_may_meet(hasty):
    x = leaf(np.linspace(1.0, 2.0, 1000))
    loss = np.sum(np.sin(x) * np.exp(x) * x)
    expected = tg.grad(loss, x, retain_graph=True)[0].detach().numpy().copy()

    def sweep():
        for _ in range(100):
            (g,) = tg.grad(loss, x, retain_graph=True)
            np.testing.assert_array_equal(g.detach().numpy(), expected)

    together(*[sweep] * 4)
    np.testing.assert_array_equal(tg.grad(loss, x)[0].detach().numpy(), expected)


def test_backward_in_many_threads_adds_up(hasty):
    """Each thread has its graph, the leaf is shared: no contribution is lost."""
    x = leaf(np.zeros(3))

    def work():
        for _ in range(500):
            np.sum(x * 2.0).backward()

    together(*[work] * 8)
    np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 8000.0))


# ---------------------------------------------------------------- asyncio and generators


def test_asyncio_to_thread():
    async def main():
        x = leaf(0.5)
        before = np.sin(x)
        found = await asyncio.gather(*[asyncio.to_thread(nested, k) for k in range(40)])
        assert tg.grad(before * before, x)[0].item() == pytest.approx(
            2 * np.sin(0.5) * np.cos(0.5), rel=1e-14
        )
        return found

    assert asyncio.run(main()) == [nested(k) for k in range(40)]


def test_asyncio_tasks_that_take_turns():
    async def task(k):
        x = leaf(1.0 + k / 10)
        y = x
        for _ in range(30):
            y = y * x
            await asyncio.sleep(0)
        with tg.no_grad():
            await asyncio.sleep(0)
            assert not (x * x).requires_grad
        (g,) = tg.grad(y, x, create_graph=True)
        await asyncio.sleep(0)
        assert (x * x).requires_grad
        (h,) = tg.grad(g, x)
        return g.item(), h.item()

    async def main():
        return await asyncio.gather(*[task(k) for k in range(20)])

    for k, (g, h) in enumerate(asyncio.run(main())):
        x = 1.0 + k / 10
        assert g == pytest.approx(31 * x**30, rel=1e-13)
        assert h == pytest.approx(31 * 30 * x**29, rel=1e-13)


LOADING = """
import threading, time
import numpy as np
import tapegrad as tg
from tapegrad.kernels import cache, extensions, machine, programs, series

names, load = [], cache.load

def slow(name, *args):
    names.append(name)
    time.sleep(0.2)  # so that the others wait for the lock
    return load(name, *args)

cache.load = slow
wrong = []

def work(number):
    for loading in (machine.load, programs.load, series.load, extensions.rerecording, extensions.writing):
        loading()
    for k in range(1, 20):
        x = np.linspace(0.1, 1.0, 5) + 0.01 * number
        if not np.allclose(tg.func.grad(lambda x: np.sum(np.sin(x) * k))(x), np.cos(x) * k, rtol=1e-12):
            wrong.append((number, k))

threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(name for name in names if name != "enter" and "kernel" not in name), len(wrong))
"""


def test_what_threads_load_at_once_is_loaded_once():
    found = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True, check=True)
    assert found.stdout.split("\n")[0] == "['program', 'rerecording', 'series', 'sweep', 'writing'] 0"


def test_what_an_op_is_to_compiled_code_does_not_hang_on_other_threads(monkeypatch):
    """Another thread may keep something while the sheet of an op is made."""
    op, masks = REGISTRY["sum"], Primitive.masks.fget

    def slow(self):
        compiled_methods._kept.append((1, 2))  # as another thread does
        return masks(self)

    monkeypatch.setattr(Primitive, "masks", property(slow))
    sheet = compiled_methods._sheet(op, 0, (None, None))
    assert ctypes.cast(sheet[layout.KEY], ctypes.py_object).value == op.key


def test_no_grad_in_one_thread_leaves_another_alone():
    inside, checked = threading.Event(), threading.Event()

    def quiet():
        with tg.no_grad():
            inside.set()
            assert checked.wait(50)
            assert not tg.is_grad_enabled()

    def loud():
        assert inside.wait(50)
        x = leaf(2.0)
        assert tg.grad(x * x, x)[0].item() == 4.0
        checked.set()

    together(quiet, loud)


def test_a_generator_suspended_across_a_backward():
    x = leaf(1.1)

    def powers():
        y = x
        while True:
            y = y * x
            yield y

    generators = [powers() for _ in range(3)]
    for n in range(2, 40):
        for g in generators:
            y = next(g)
            assert tg.grad(y, x, retain_graph=True)[0].item() == pytest.approx(n * 1.1 ** (n - 1), rel=1e-13)


def test_a_generator_suspended_across_a_backward_in_another_thread():
    x = leaf(1.1)

    def powers():
        y = x
        while True:
            y = y * x
            yield y

    g = powers()
    for n in range(2, 40):
        (y,) = together(lambda: next(g))
        (gradient,) = together(lambda y=y: tg.grad(y, x, retain_graph=True)[0].item())
        assert gradient == pytest.approx(n * 1.1 ** (n - 1), rel=1e-13)
