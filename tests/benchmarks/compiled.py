"""Functions by `tapegrad.compile` beside ordinary recording, torch and jax.jit: value and gradient of arrays.

    python -m tests.benchmarks.compiled

Results are compared first; then each round calls every way in turn, on other values at each call, all but
JAX with one thread; "replay" is `tg.compile(replay=True)`, which compares what a function reads and runs it
only if that has changed. Printed are best times in microseconds and those of each way over the first, as
the median of the rounds' ratios and in brackets that of the best times. Then Hessians times directions,
what NumPy's tanh alone takes of the five of 1e6, whose bits compiled programs have too, what an operation
takes beyond one on Python's floats, a loop over numbers, what the first calls take beside those of ordinary
recording, and how much memory a process has that calls a function ten times.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import importlib
import subprocess
import sys
from itertools import count
from time import perf_counter

import numpy as np

import tapegrad as tg

from .rounds import difference, in_turns, ratios

ROUNDS, TURN = 15, 2e-3
FUNCTIONS = 15  # whose first calls are timed
random = np.random.default_rng(0)
A, B = random.normal(size=(10, 10)) / 3, random.normal(size=10)
X, Y = random.normal(size=(10_000, 64)), (random.normal(size=10_000) > 0) * 1.0
DATA = random.normal(size=(100, 64)), random.normal(size=(100, 1))


def chain(m, x):
    for _ in range(5):
        x = m.sin(x) * x + x
    return x


def chain_of_arrays(m, x):
    return m.sum(chain(m, x))


def tanh_chain(m, x):
    for _ in range(5):
        x = m.tanh(x * 1.1 + 0.1)
    return m.sum(x * x)


def huber(m, x):
    size = m.abs(x)
    return m.sum(m.where(size < 0.4, 0.5 * x * x, 0.4 * (size - 0.2)) * (x < 0.9))


def lse(m, x):
    top = m.amax(x, 0)
    return top + m.log(m.sum(m.exp(x - top), 0))


def runge_kutta(m, y):
    a, b = given(m, A), given(m, B)

    def slope(y):
        return m.tanh(a @ y) + b

    for _ in range(10):
        k1 = slope(y)
        k2 = slope(y + 0.05 * k1)
        k3 = slope(y + 0.05 * k2)
        k4 = slope(y + 0.1 * k3)
        y = y + 0.1 / 6 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
    return m.sum(y * y)


def logistic(m, w):
    z = given(m, X) @ w
    return m.sum(m.log(1.0 + m.exp(-z)) + (1.0 - given(m, Y)) * z)


def perceptron(m, a, b, c):
    x, y = (given(m, d) for d in DATA)
    return m.mean((m.tanh(m.tanh(x @ a) @ b) @ c - y) ** 2)


def given(m, array):
    """An array of the namespace's."""
    return CONVERT(array)


def plain_array(array):
    return array


def array_of_torch(array):
    return TORCH_ARRAYS.setdefault(id(array), TORCH.from_numpy(array))


TORCH_ARRAYS = {}
TORCH, CONVERT = None, plain_array  # the latter is what `replay` sees, where TORCH is no module to it
CASES = {
    "15 operations, a number": (chain, [0.5]),
    "15 operations, 10": (chain_of_arrays, [np.linspace(0.1, 1, 10)]),
    "15 operations, 1,000": (chain_of_arrays, [np.linspace(0.1, 1, 1000)]),
    "15 operations, 1e5": (chain_of_arrays, [np.linspace(0.1, 1, 100_000)]),
    "tanh five times, 1e6": (tanh_chain, [np.linspace(-1, 1, 1_000_000)]),
    "a choice, 10": (huber, [np.linspace(-1, 1, 10)]),
    "a choice, 1e6": (huber, [np.linspace(-1, 1, 1_000_000)]),
    "log of a sum, 10": (lse, [np.linspace(0.1, 1, 10)]),
    "log of a sum, 1e5": (lse, [np.linspace(0.1, 1, 100_000)]),
    "Runge-Kutta, 10 steps of 10": (runge_kutta, [np.linspace(0.1, 1, 10)]),
    "logistic, 1e4 x 64": (logistic, [random.normal(size=64) * 0.1]),
    "network 64-256-256-1": (
        perceptron,
        [random.normal(size=n) / np.sqrt(n[0]) for n in ((64, 256), (256, 256), (256, 1))],
    ),
}


def ways(f, start):
    """By name a call from arrays to value and gradients."""
    argnums = tuple(range(len(start)))
    alone = len(start) == 1
    g, by = ((lambda x: f(np, x)), 0) if alone else ((lambda *x: f(np, *x)), argnums)
    compiled = tg.compile(g, by, wait=True)
    replayed = tg.compile(g, by, wait=True, replay=True)
    eager = tg.func.value_and_grad(g, by)
    jax = importlib.import_module("jax")
    jitted = jax.jit(jax.value_and_grad(lambda *x: f(jax.numpy, *x), argnums))

    def of_jax(*args):
        value, gradients = jitted(*args)
        return np.asarray(value), [np.asarray(g) for g in gradients]

    return {
        "compile": compiled.value_and_grad,
        "replay": replayed.value_and_grad,
        "eager": eager,
        "torch": by_torch(f),
        "jax": of_jax,
    }


def by_torch(f):
    def call(*args):
        global CONVERT
        leaves = [TORCH.tensor(x, requires_grad=True) for x in args]
        CONVERT = array_of_torch
        y = f(TORCH, *leaves)
        CONVERT = plain_array
        return y.item(), [g.numpy() for g in TORCH.autograd.grad(y, leaves)]

    return call


def flat(found):
    value, gradients = found
    parts = gradients if isinstance(gradients, (list, tuple)) else [gradients]
    return np.concatenate([np.ravel(part) for part in (value, *parts)])


def measure(what, f, start):
    calls = ways(f, start)
    wanted = flat(calls["eager"](*start))
    for name, call in calls.items():
        for _ in range(7):  # the fifth is the first by kernels
            found = flat(call(*start))
        assert difference(found, wanted) < 1e-9, f"{what}: {name} differs by {difference(found, wanted):.1e}"
    numbers = count(1)

    def arguments():
        factor = 1 + 1e-9 * next(numbers)
        return [x * factor for x in start]

    inner = {}
    for name, call in calls.items():
        begin = perf_counter()
        call(*start)
        inner[name] = int(np.clip(TURN / (perf_counter() - begin), 1, 200))
    times = {name: rows[:, 0] for name, rows in in_turns(calls, ROUNDS, inner, arguments).items()}
    line = f"{what:30s}" + "".join(f"{1e6 * t.min():10.1f}" for t in times.values())
    for name in ("replay", "eager", "torch", "jax"):
        middle, best = ratios(times["compile"], times[name])
        line += f"{middle:8.2f} ({best:.2f})"
    print(line, flush=True)


def of_second_derivatives(what, f, start):
    """Hessians times a direction, by programs and recorded."""
    argnums, alone = tuple(range(len(start))), len(start) == 1
    g = (lambda x: f(np, x)) if alone else (lambda *x: f(np, *x))
    calls = {
        "compile": tg.compile(g, 0 if alone else argnums, wait=True).hvp,
        "eager": tg.func.hvp(g, 0 if alone else argnums),
    }
    v = [np.cos(x) for x in start]
    args = (*start, v[0] if alone else tuple(v))
    wanted = flat((0.0, calls["eager"](*args)))
    for call in calls.values():
        for _ in range(7):
            found = flat((0.0, call(*args)))
        assert difference(found, wanted) < 1e-9, f"{what}: {difference(found, wanted):.1e}"
    inner = {}
    for name, call in calls.items():
        begin = perf_counter()
        call(*args)
        inner[name] = int(np.clip(TURN / (perf_counter() - begin), 1, 200))
    times = {name: rows[:, 0] for name, rows in in_turns(calls, ROUNDS, inner, lambda: args).items()}
    middle, least = ratios(times["compile"], times["eager"])
    shown = "".join(f"{1e6 * t.min():10.1f}" for t in times.values())
    print(f"{what:30s}{shown}{middle:8.2f} ({least:.2f})", flush=True)


def best(call, n=200, turns=200):
    times = []
    for _ in range(turns):
        begin = perf_counter()
        for _ in range(n):
            call()
        times.append((perf_counter() - begin) / n)
    return min(times)


def of_tanh_alone():
    """NumPy's tanh of as many numbers as the chain of 1e6 has, by parts that stay in the cache."""
    x = np.linspace(-1, 1, 8000)
    out = np.empty_like(x)
    print(f"NumPy's tanh alone, five times 1e6: {1e6 * 625 * best(lambda: np.tanh(x, out)):.1f} us")


def of_an_operation():
    """Nanoseconds of an operation beyond Python's, from chains of two lengths."""

    def long(m, x, n):
        for _ in range(n):
            x = m(x) * x + x
        return x

    def call(n):
        compiled = tg.compile(lambda x: long(np.negative, x, n), wait=True)
        for _ in range(3):
            compiled(0.5)
        return lambda: compiled(0.5)

    def operators(n):
        def f(x):
            y = x
            for _ in range(n):
                y = (y + x) * x - y
            return y

        compiled = tg.compile(f, wait=True)
        for _ in range(3):
            compiled(0.5)
        return (lambda: compiled(0.5)), lambda: f(0.5)

    (ours, plain), (more, longer) = operators(10), operators(210)
    beyond = ((best(more, 20) - best(longer, 20)) - (best(ours) - best(plain))) / 600
    print(f"an operator, beyond one on Python's floats: {1e9 * beyond:.0f} ns (lazy and computed)")
    short, long_call = call(10), call(210)
    per_turn = (best(long_call, 20) - best(short)) / 200
    print(f"np.negative, a product and a sum: {1e9 * per_turn:.0f} ns")


def predators(p, n=1000):
    """Lotka and Volterra's equations by the classical method of Runge and Kutta."""
    a, b, c, d = p[0], p[1], p[2], p[3]

    def slope(x, y):
        return x * (a - b * y), y * (c * x - d)

    x, y, h = 1.0, 0.5, 0.01
    for _ in range(n):
        dx1, dy1 = slope(x, y)
        dx2, dy2 = slope(x + h / 2 * dx1, y + h / 2 * dy1)
        dx3, dy3 = slope(x + h / 2 * dx2, y + h / 2 * dy2)
        dx4, dy4 = slope(x + h * dx3, y + h * dy3)
        x, y = x + h / 6 * (dx1 + 2 * dx2 + 2 * dx3 + dx4), y + h / 6 * (dy1 + 2 * dy2 + 2 * dy3 + dy4)
    return x * x + y


def of_numbers():
    """A loop over numbers: by the program, replayed, recorded and by torch, and the value by Python's floats.

    XLA, to which JAX would give it as 50,000 operations, takes minutes to compile that.
    """
    p = np.array([1.1, 0.4, 0.1, 0.4])
    calls = {
        "compile": tg.compile(predators, wait=True).value_and_grad,
        "replay": tg.compile(predators, wait=True, replay=True).value_and_grad,
        "eager": tg.func.value_and_grad(predators),
        "torch": by_torch(lambda _, p: predators(p)),
    }
    wanted = flat(calls["eager"](p))
    for call in calls.values():
        for _ in range(2 if call is calls["torch"] else 7):
            found = flat(call(p))
        assert difference(found, wanted) < 1e-9
    calls["floats"] = lambda p: predators(p.tolist())
    times = {
        name: best(lambda call=call: call(p), 1, 3 if name == "torch" else 15) for name, call in calls.items()
    }
    print(
        "Lotka-Volterra, 1,000 steps, ms: ", ", ".join(f"{name} {1e3 * t:.3f}" for name, t in times.items())
    )


def of_first_calls():
    """How long the first ten calls of a function take, beside those of another one that is recorded."""
    x, kept, waited = np.linspace(0.1, 1, 10), [], []
    took = {"recorded": [], "compile": []}
    for _ in range(FUNCTIONS):
        compiled = tg.compile(lambda x: runge_kutta(np, x))
        kept.append(compiled)  # as what is gone is not compiled
        calls = {
            "recorded": tg.func.value_and_grad(lambda x: runge_kutta(np, x)),
            "compile": compiled.value_and_grad,
        }
        for name in random.permutation(list(calls)):
            times = [perf_counter()]
            for _ in range(10):
                calls[name](x)
                times.append(perf_counter())
            took[name].append(np.diff(times))
        begin, more = perf_counter(), 0
        while "computed by" not in str(compiled.explain()):
            for _ in range(10):
                compiled.value_and_grad(x)
            more += 10
        waited.append((more, perf_counter() - begin))
    recorded, over = (np.median(rows, axis=0) for rows in took.values())
    print("first ten calls of Runge-Kutta, over ten recorded:", *(f"{t:.2f}" for t in over / recorded))
    more, seconds = np.median(waited, axis=0)
    each = seconds / more / np.median(recorded)
    print(f"then {more:.0f} calls until kernels are there, {seconds:.2f} s, each {each:.2f} of one recorded")


def memory(what, way):
    """Print how much memory a process has at most, and at the end, beyond what it had before its calls."""
    f, start = CASES[what]
    if way == "torch":
        begin_torch()
        call = by_torch(f)
    else:
        argnums = tuple(range(len(start)))
        call = tg.func.value_and_grad(lambda *x: f(np, *x), argnums)
        if way == "compile":
            call = tg.compile(lambda *x: f(np, *x), argnums, wait=True).value_and_grad
    for _ in range(10):
        call(*(x.ravel()[:2] if x.ndim == 1 and x.size > 64 else x for x in start))

    def known(name):
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))

    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # so that the peak begins here
    begin = known("VmRSS")
    for _ in range(10):
        call(*start)
    print(known("VmHWM") - begin, known("VmRSS") - begin)


def of_memory():
    """Memory of processes with one way each."""
    print("MiB at most (and after ten calls), beyond those before")
    for what in [name for name in CASES if "1e" in name or "network" in name]:
        line = f"{what:30s}"
        for way in ("compile", "eager", "torch"):
            command = [sys.executable, "-m", "tests.benchmarks.compiled", what, way]
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            line += "{:10.1f} ({:.1f})".format(*map(float, told))
        print(line, flush=True)


def begin_torch():
    global TORCH
    TORCH = importlib.import_module("torch")
    TORCH.set_num_threads(1)
    TORCH.set_default_dtype(TORCH.float64)


def main():
    if sys.argv[1:]:
        memory(*sys.argv[1:])
        return
    begin_torch()
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    head = "".join(f"{name:>10s}" for name in ("compile", "replay", "eager", "torch", "jax"))
    print(f"{'us a call':30s}{head}   over replay     over eager      over torch      over jax")
    for what, (f, start) in CASES.items():
        measure(what, f, start)
    print("Hessian times a direction")
    for what, (f, start) in CASES.items():
        of_second_derivatives(what, f, start)
    of_tanh_alone()
    of_an_operation()
    of_numbers()
    of_first_calls()
    of_memory()


if __name__ == "__main__":
    main()
