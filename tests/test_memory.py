"""Memory stays flat without the cyclic garbage collector, and a long chain costs little and is freed.

Each case runs in a process of its own: ``python tests/test_memory.py CASE COUNT`` prints the growth of
resident memory in MiB. The default run takes reduced counts; the full ones are marked slow and run by
``pytest -m slow tests/test_memory.py -s``.
"""

import contextlib
import gc
import os
import queue
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.kernels.abi import layout_in_use
from tapegrad.tape import tape as tapes
from tests.tiers import thinned

LIMIT = 5.0  # MiB
BYTES_PER_NODE = 96
# MiB; through public calls alone columns are built of small objects, which leave some arenas half empty
AFTER_FREE = 10.0 if layout_in_use() == "native" else 16.0
PEAK = {"MLP": 1.1 * 56.1, "ODE": 1.1 * 52.1}  # MiB: 1.1 times torch 2.13's; of ODE a 20th of the steps


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def leaf(value):
    return tg.tensor(value, requires_grad=True)


# ---------------------------------------------------------------- each returns a step and how much it counts


def no_backward(body):
    x, a = leaf(1.5), leaf(0.5)

    def step():
        y = x
        for _ in range(body // 2):
            y = y * a + a
        assert y.item() != 0.0

    return step, body


def no_backward_of_arrays(body):
    x, a = leaf(np.full(1000, 1.5)), leaf(np.full(1000, 0.5))

    def step():
        y = x
        for _ in range(body // 2):
            y = y * a + a

    return step, body


def long_lived_intermediate():
    w, v = leaf(np.linspace(1, 2, 1000)), [leaf(np.linspace(0, 1, 1000))]
    kept = np.sin(w) * w

    def step():
        loss = np.sum(kept * v[0] * v[0])
        (g,) = tg.grad(loss, v[0])
        v[0] = leaf((v[0] - 1e-3 * g).detach().numpy().copy())

    return step, 1


def kept_losses():
    x, kept = leaf(np.linspace(0.1, 1, 10_000)), []

    def step():
        y = x
        for _ in range(10):
            y = np.sin(y) * x
        loss = np.sum(y)
        loss.backward()
        x.grad = None
        kept.append(loss)

    return step, 1


def small_survivor():
    x, kept = leaf(1.5), []

    def step():
        h = leaf(np.ones(131_072))
        for _ in range(5):
            h = h * h
        kept.append(x * 0.5)

    return step, 1


def small_survivor_of_the_large():
    kept = []

    def step():
        h = leaf(np.ones(131_072))
        for _ in range(5):
            h = np.sin(h)
        kept.append(h[3].detach() * leaf(2.0))

    return step, 1


def create_graph_grad():
    x = leaf(np.linspace(0.1, 1, 100))

    def step():
        y = np.sum(np.sin(x) * np.exp(x))
        (g,) = tg.grad(y, x, create_graph=True)
        assert g.shape == (100,)

    return step, 1


def create_graph_backward():
    def step():
        x = leaf(np.linspace(0.1, 1, 1000))
        y = np.sum(np.sin(x) * np.exp(x))
        y.backward(create_graph=True)
        assert x.grad.requires_grad
        del x, y

    return step, 1


def create_graph_backward_on_one_leaf():
    x = leaf(np.linspace(0.1, 1, 1000))

    def step():
        y = np.sum(np.sin(x) * np.exp(x))
        y.backward(create_graph=True)
        x.grad = None

    return step, 1


def two_threads():
    """Tensors go both ways; both threads record on what they are given and one differentiates."""
    there, back = queue.Queue(), queue.Queue()
    a = leaf(3.0)

    def serve():
        while (q := there.get()) is not None:
            back.put(q * q)

    threading.Thread(target=serve, daemon=True).start()

    def step():
        p = a * a
        there.put(p)
        r = back.get() * p
        there.put(r)
        s = back.get()
        (g,) = tg.grad(s, a)
        assert g.item() == 12 * 3.0**11

    return step, 1


def functions(keep, differentiate):
    """Calls of a Function that keeps its input, its result or values on the way, in one of several ways."""

    def forward(ctx, x):
        y = np.exp(x)
        if keep == "input and result":
            ctx.save_for_backward(x, y)
        elif keep == "attributes":
            ctx.x, ctx.y, ctx.h, ctx.both = x, y, x * 2, [x, (x,)]
        else:
            h = x * 2
            ctx.save_for_backward(h)
        return y

    def backward(ctx, g):
        return g * (ctx.y if keep == "attributes" else ctx.saved_tensors[-1])

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    E, x = type("E", (tg.autograd.Function,), methods), leaf(np.linspace(0.1, 1, 100))

    def step():
        y = E.apply(x * 1.0)
        if differentiate:
            y.register_hook(lambda g: g * 2)
            y.grad_fn.register_hook(lambda gi, go: None)
            y.grad_fn.metadata["a"] = 1
            tg.grad(y.sum(), x, create_graph=differentiate == "create_graph")

    return step, 1


def errors_while_recording():
    x = leaf(np.ones((10, 10)))

    def step():
        y = np.sin(x) * x
        with contextlib.suppress(tg.errors.ShapeError):
            y + np.ones(7)
        with contextlib.suppress(tg.errors.ShapeError):
            y.backward()

    return step, 1


CASES = {
    **{f"no_backward_{body}": (lambda body=body: no_backward(body)) for body in (10, 100, 1000, 5000)},
    "no_backward_of_arrays_1000": lambda: no_backward_of_arrays(1000),
    "long_lived_intermediate": long_lived_intermediate,
    "kept_losses": kept_losses,
    "small_survivor": small_survivor,
    "small_survivor_of_the_large": small_survivor_of_the_large,
    "create_graph_grad": create_graph_grad,
    "create_graph_backward": create_graph_backward,
    "create_graph_backward_on_one_leaf": create_graph_backward_on_one_leaf,
    "two_threads": two_threads,
    "errors_while_recording": errors_while_recording,
    **{
        f"functions, {keep}, {differentiate}": (lambda keep=keep, d=differentiate: functions(keep, d))
        for keep, differentiate in (
            ("input and result", ""),
            ("input and result", "create_graph"),
            ("attributes", "grad"),
            ("intermediate", ""),
            ("intermediate", "create_graph"),
        )
    },
}
FULL = {
    **{f"no_backward_{body}": 1_000_000 for body in (10, 100, 1000, 5000)},
    "no_backward_of_arrays_1000": 100_000,
    "long_lived_intermediate": 20_000,
    "kept_losses": 1000,
    "small_survivor": 1000,
    "small_survivor_of_the_large": 1000,
    "create_graph_grad": 10_000,
    "create_graph_backward": 1000,
    "create_graph_backward_on_one_leaf": 1000,
    "two_threads": 10_000,
    "errors_while_recording": 10_000,
    **{name: 10_000 for name in CASES if name.startswith("functions")},
}
REDUCED = {
    **FULL,
    **{f"no_backward_{body}": 200_000 for body in (10, 100, 1000, 5000)},
    "no_backward_of_arrays_1000": 20_000,
    "long_lived_intermediate": 3000,
    "small_survivor": 300,
    "small_survivor_of_the_large": 300,
    "create_graph_grad": 2000,
    "two_threads": 2000,
    "errors_while_recording": 3000,
    **{name: 2000 for name in CASES if name.startswith("functions")},
}


def first_use():
    """Load, compile and close tapes, so that none of it is counted."""
    for x in (leaf(1.25), leaf(np.ones(100))):
        y = x
        for _ in range(9000):
            y = np.sin(y) * x
        np.sum(y).backward()


def growth(case, count):
    """MiB gained by `count` records or steps after a tenth as many, or what fills two tapes with calls."""
    gc.disable()
    first_use()
    step, records = CASES[case]()
    for _ in range(max(3, count // records // 10, 3000 if case.startswith("functions") else 0)):
        step()
    before = resident()
    for _ in range(count // records):
        step()
    return resident() - before


def chain(nodes):
    """Bytes per node of a chain of scalars, and MiB that stay when it is gone."""
    gc.disable()
    x, one = leaf(1.25), leaf(1.0)
    for _ in range(3):  # first use of everything
        y = x
        for _ in range(9000):
            y = y * one
        assert tg.grad(y, x)[0].item() == 1.0
        del y
    before = resident()
    y = x
    for _ in range(nodes):
        y = y * one
    per_node = (resident() - before) * 2**20 / nodes
    gx, gone = tg.grad(y, (x, one))
    assert gx.item() == 1.0
    assert gone.item() == 1.25 * nodes
    del y
    return per_node, resident() - before


def shallow(nodes):
    """As `chain`, recorded, swept and freed where neither stack nor recursion limit allow recursion."""
    found = []
    threading.stack_size(256 * 1024)
    sys.setrecursionlimit(200)

    def work():
        try:
            found.append(chain(nodes))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def ask(case, count):
    start = time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(Path(tg.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, __file__, case, str(count)],
        capture_output=True, text=True, timeout=600, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    figures = [float(word) for word in done.stdout.split()]
    print(f"{case} x {count}: {figures}, {time.perf_counter() - start:.1f} s")
    return figures


def check_growth(case, count):
    (gained,) = ask(case, count)
    assert gained < LIMIT, f"{case}: {gained:.1f} MiB more after {count}"


def check_chain(case, count):
    per_node, left = ask(case, count)
    assert per_node <= BYTES_PER_NODE
    assert left <= AFTER_FREE


@pytest.mark.parametrize("case", thinned(CASES, {"kept_losses"}.__contains__))
def test_flat(case):
    check_growth(case, REDUCED[case])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_flat_in_full(case):
    """``pytest -m slow tests/test_memory.py -k test_flat_in_full -s``."""
    check_growth(case, FULL[case])


@pytest.mark.full
@pytest.mark.parametrize("case", ["chain", "shallow"])
def test_chain(case):
    check_chain(case, 300_000)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["chain", "shallow"])
def test_chain_in_full(case):
    """``pytest -m slow tests/test_memory.py -k test_chain_in_full -s``."""
    check_chain(case, 1_000_000)


@pytest.mark.full
@pytest.mark.parametrize("program", PEAK)
def test_peak_of_a_backward(program):
    """What a gradient takes at its highest; `tests.benchmarks.memory` gives torch the same programs."""
    command = [sys.executable, "-m", "tests.benchmarks.memory", "--one", "tapegrad", program]
    command += ["--quick"] * (program == "ODE")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=Path(__file__).parents[1]
    )
    assert done.returncode == 0, done.stderr[-3000:]
    _, highest, _ = map(float, done.stdout.split())
    assert highest <= PEAK[program]


# ---------------------------------------------------------------- what nobody refers to


def function_keeping(keep, several=False):
    """Calls of a Function that keeps what `keep(ctx, x, result)` sets."""

    def forward(ctx, x):
        y = x * 1.5
        keep(ctx, x, y)
        return (y, x * 2.5) if several else y

    methods = {"forward": staticmethod(forward), "backward": staticmethod(lambda ctx, *g: g[0] * 1.5)}
    return type("E", (tg.autograd.Function,), methods)


def unused():
    """Steps of which nothing is referred to afterwards, each of which keeps some 400 kB."""
    n = 50_000
    x, s, A = leaf(np.linspace(0.5, 1.5, n)), leaf(0.5), leaf(np.eye(130) * 3.0)
    saves = function_keeping(lambda ctx, x, y: ctx.save_for_backward(x * 2.0))
    saves_two = function_keeping(lambda ctx, x, y: ctx.save_for_backward(x * 2.0), True)
    array = function_keeping(lambda ctx, x, y: setattr(ctx, "a", np.ones(n)))
    nested = function_keeping(lambda ctx, x, y: setattr(ctx, "a", {"a": [x * 2.0]}))
    results = function_keeping(lambda ctx, x, y: setattr(ctx, "a", {"a": [x, y]}))
    for_jvp = function_keeping(lambda ctx, x, y: ctx.save_for_forward(x, y))
    part = function_keeping(lambda ctx, x, y: setattr(ctx, "a", np.ones(n)[:1]))
    order = np.arange(n)[::-1]

    def write(index):
        y = x * 1.0
        y[index] = 2.0
        return y[0]

    def at(ufunc):
        y = s * np.ones(10)
        ufunc.at(y, np.zeros(n, int), 1.0)

    return {
        "saved": lambda: saves.apply(x),
        "saved, two in a row": lambda: saves.apply(saves.apply(x)),
        "saved, two results": lambda: saves_two.apply(x),
        "attribute": lambda: array.apply(s),
        "nested attribute": lambda: nested.apply(x),
        "nested result": lambda: results.apply(x * 1.0),
        "saved for forward mode": lambda: for_jvp.apply(x * 1.0),
        "part of an array": lambda: part.apply(s),
        "index": lambda: x[order.copy()][0],
        "np.take": lambda: np.take(x, order.copy()),
        "np.sort": lambda: np.sort(x)[0],
        "places written to": lambda: write(order.copy()),
        "np.add.at": lambda: at(np.add),
        "np.add.reduceat": lambda: np.add.reduceat(x, [0, 5]),
        "argument of a compiled function": lambda: dot(s * np.ones(3), np.ones(n)),
        "loop": lambda: tg.autograd.checkpoint_loop(np.sin, x * 1.0, 3, slots=1),
        "factors": lambda: np.linalg.svd(A)[1][0],
    }


def peak(step, count=80):
    """MiB in use at most during so many steps."""
    for _ in range(3):
        step()
    tapes.close(tapes.current())
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(count):
            step()
        return (tracemalloc.get_traced_memory()[1] - before) / 2**20
    finally:
        tracemalloc.stop()
        gc.enable()


@tg.njit
def dot(a, b):
    return a[0] * b[0] + a[1] * b[1]


@pytest.mark.parametrize("case", thinned(unused(), {"saved", "index"}.__contains__))
def test_what_nobody_refers_to_is_released_in_time(case):
    """80 steps keep 30 MiB and more where a tape does not know what its records keep besides values."""
    assert peak(unused()[case]) < 14.0


def test_an_array_that_many_calls_keep_ends_one_tape_only():
    table, x = np.ones(1_000_000), leaf(1.0)
    keeps = function_keeping(lambda ctx, x, y: setattr(ctx, "table", table))
    keeps.apply(x)
    assert len({keeps.apply(x)._tape.serial for _ in range(50)}) <= 2


@pytest.mark.parametrize("guard", ["checksum", "off", "copy"])
def test_arrays_that_only_a_tape_keeps_are_released_in_time(guard):
    x = leaf(np.linspace(0.5, 1.5, 50_000))
    with tg.guard(guard):
        assert peak(lambda: np.sum(x * np.ones(50_000)), 300) < 40.0


@pytest.mark.parametrize("guard", ["checksum", "off"])
def test_large_arrays_of_others_do_not_end_a_tape(guard):
    A, x, big = np.ones((100_000, 10)), leaf(np.ones(10)), leaf(np.ones(100_000))
    tapes.close(tapes.current())
    with tg.guard(guard):
        y = A @ x
        z = np.mean(y * y)
        assert z._tape is y._tape
        y = np.sum(big + A[:, 0])
        for _ in range(50):
            z = np.sum(big + A[:, 0])
        assert z._tape is y._tape


@pytest.mark.full
def test_what_is_packed_and_nobody_refers_to_is_released_in_time():
    saved = function_keeping(lambda ctx, x, y: ctx.save_for_backward(x))
    x = leaf(np.linspace(0.5, 1.5, 50_000))
    with tg.autograd.graph.saved_tensors_hooks(lambda x: x.numpy().copy(), tg.tensor):
        assert peak(lambda: np.sum(np.exp(x))) < 14.0
        assert peak(lambda: saved.apply(x)) < 14.0


if __name__ == "__main__":
    name, number = sys.argv[1], int(sys.argv[2])
    if name in CASES:
        print(growth(name, number))
    else:
        print(*{"chain": chain, "shallow": shallow}[name](number))
