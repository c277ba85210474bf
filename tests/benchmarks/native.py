"""Scalar programs recorded inside compiled code: recording and reverse sweep beside the program itself.

Six programs as users write them, timed in turns on one thread, best of several runs; gradients are compared
with central differences first. Beside them the first implementation (`prototype_recording`). Then orders,
calls of `tg.func.value_and_grad`, a second process, threads, and a hundred million leaves (``--big``).

    python -m tests.benchmarks.native
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numba import njit

import tapegrad as tg
from tapegrad.native.emission.algebra import components
from tapegrad.native.segment import Recording, entering, sweep
from tapegrad.native.tapes import runtime
from tapegrad.native.twin import twin_of

from .native_programs import cases, lotka_volterra, rosenbrock
from .prototype_recording import Prototype


class Ours:
    """Recording and sweep, apart."""

    def __init__(self, primal, x, args):
        self.twin, self.x, self.args = twin_of(primal, (), True), x, args
        self.tape = Recording(x.size)

    def record(self):
        runtime.tapes().reset(self.tape.address, self.x.size)
        self.out = self.twin(entering(self.x[:, None], (), self.tape.address, 1), *self.args)

    def reverse(self):
        number = self.out["tapegrad_statement"].reshape(1).copy()
        return sweep(self.tape, (), number, 1.0, self.x.size)

    @property
    def leaves(self):
        return self.tape.leaves

    @property
    def nbytes(self):
        return self.tape.nbytes


def timed(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--big", action="store_true")
    parser.add_argument("--only", nargs="*", help="programs by name")
    options = parser.parse_args()
    kinds = [Ours, Prototype]
    print("ms, best of", options.repeat, "in turns: record + reverse, together as multiples of the program")
    for name, (primal, x, args) in cases().items():
        if options.only and name not in options.only:
            continue
        primal(x, *args)
        sides = [kind(primal, x, args) for kind in kinds]
        direction = np.random.default_rng(1).normal(size=x.size)
        step = 1e-6 * x.std() + 1e-9
        expected = (primal(x + step * direction, *args) - primal(x - step * direction, *args)) / (2 * step)
        for side in sides:
            side.record()
            found = side.reverse() @ direction
            if abs(found - expected) > 2e-3 * max(abs(expected), 1e-3):
                raise AssertionError(f"{name}: {type(side).__name__} gives {found}, differences {expected}")
        rows = [[] for _ in range(1 + 2 * len(sides))]
        for _ in range(options.repeat):
            rows[0].append(timed(lambda: primal(x, *args)))
            for k, side in enumerate(sides):
                rows[1 + 2 * k].append(timed(side.record))
                rows[2 + 2 * k].append(timed(side.reverse))
        best = [1e3 * min(row) for row in rows]
        text = f"{name:15s} program {best[0]:6.2f}"
        for k, side in enumerate(sides):
            record, reverse = best[1 + 2 * k : 3 + 2 * k]
            many = (record + reverse) / best[0]
            text += (
                f" | {type(side).__name__.lower()} {record:5.2f} + {reverse:5.2f} ({many:4.1f}x)"
                f" {side.leaves:8d} leaves {1e6 * record / side.leaves:.2f}"
                f" + {1e6 * reverse / side.leaves:.2f} ns {side.nbytes / side.leaves:.1f} B"
            )
        print(f"{text} | ratio {(best[1] + best[2]) / (best[3] + best[4]):.2f}", flush=True)
    orders(options.repeat)
    helpers(options.repeat)
    loops()
    calls(options.repeat)
    processes(6)
    threads()
    if options.big:
        big()


def orders(repeat):
    """Derivatives of higher order along given directions: a run and a sweep of numbers nested so deep."""
    for name in ("lotka_volterra", "planets"):
        primal, x, args = cases()[name]
        for order in range(1, 6):
            spec = (1,) * (order - 1)
            values = np.zeros((x.size, components(spec)))
            values[:, 0] = x
            for k in range(order - 1):
                values[:, 1 << k] = np.random.default_rng(k).normal(size=x.size)
            tape, start = Recording(x.size), time.perf_counter()
            twin = twin_of(primal, spec, True)

            def record(twin=twin, values=values, spec=spec, tape=tape, args=args):
                runtime.tapes().reset(tape.address, values.shape[0])
                return twin(entering(values, spec, tape.address, 1), *args)

            number = record()["tapegrad_statement"].reshape(1).copy()
            compiled = time.perf_counter() - start

            def reverse(spec=spec, tape=tape, number=number, size=x.size):
                return sweep(tape, spec, number, 1.0, size)

            reverse()
            best = [1e3 * min(timed(part) for _ in range(repeat)) for part in (record, reverse)]
            print(
                f"{name:15s} order {order}: {best[0]:5.2f} + {best[1]:5.2f} ms, {tape.nbytes / 1e6:5.1f} MB, "
                f"compiled in {compiled:.1f} s",
                flush=True,
            )


def orbit(helper):
    """The helper is a step of Runge and Kutta's: six arguments, two results."""

    @njit
    def lotka_volterra_by_helper(p, n):
        a, b, c, d, x, y = p[0], p[1], p[2], p[3], p[4], p[5]
        for _ in range(n):
            x, y = helper(a, b, c, d, x, y, 1e-3)
        return x * x + y

    return lotka_volterra_by_helper


def runge_kutta(a, b, c, d, x, y, h):
    kx = a * x - b * x * y
    ky = d * x * y - c * y
    xm = x + 0.5 * h * kx
    ym = y + 0.5 * h * ky
    lx = a * xm - b * xm * ym
    ly = d * xm * ym - c * ym
    xn = x + 0.5 * h * lx
    yn = y + 0.5 * h * ly
    mx = a * xn - b * xn * yn
    my = d * xn * yn - c * yn
    xe = x + h * mx
    ye = y + h * my
    nx = a * xe - b * xe * ye
    ny = d * xe * ye - c * ye
    return x + h / 6.0 * (kx + 2.0 * lx + 2.0 * mx + nx), y + h / 6.0 * (ky + 2.0 * ly + 2.0 * my + ny)


def kepler(helper):
    """The helper solves an equation by iteration: two arguments, one result."""

    @njit
    def anomalies(p, n):
        s = 0.0
        for k in range(n):
            s += math.cos(helper(p[0] + 1e-3 * k * p[1], p[2]))
        return s

    return anomalies


def anomaly(mean, eccentricity):
    e = mean
    for _ in range(6):
        e = e - (e - eccentricity * math.sin(e) - mean) / (1.0 - eccentricity * math.cos(e))
    return e


def helpers(repeat):
    """Programs whose helper is recorded as it computes, and by its local Jacobian."""
    both = (
        (orbit, runge_kutta, cases()["lotka_volterra"][1], (20000,)),
        (kepler, anomaly, np.array([0.3, 1.1, 0.4]), (20000,)),
    )
    for program, helper, x, args in both:
        primals = [program(njit(helper)), program(tg.njit(preaccumulate=True)(helper))]
        sides = [Ours(primal, x, args) for primal in primals]
        gradients = [(side.record(), side.reverse())[1] for side in sides]
        np.testing.assert_allclose(*gradients, rtol=1e-9)
        rows = [[] for _ in range(1 + 2 * len(sides))]
        for _ in range(repeat):
            rows[0].append(timed(lambda: primals[0](x, *args)))
            for k, side in enumerate(sides):
                rows[1 + 2 * k].append(timed(side.record))
                rows[2 + 2 * k].append(timed(side.reverse))
        best = [1e3 * min(row) for row in rows]
        text = f"{helper.__name__:15s} program {best[0]:6.2f}"
        for k, (name, side) in enumerate(zip(("recorded", "preaccumulated"), sides, strict=True)):
            record, reverse = best[1 + 2 * k : 3 + 2 * k]
            text += f" | {name} {record:5.2f} + {reverse:5.2f} ({(record + reverse) / best[0]:4.1f}x)"
            text += f" {side.leaves:8d} leaves"
        print(f"{text} | gain {(best[1] + best[2]) / (best[3] + best[4]):.2f}", flush=True)


@njit
def heat_step(u, rate):
    new = np.empty_like(u)
    new[0], new[-1] = u[0], u[-1]
    for k in range(1, u.size - 1):
        new[k] = u[k] + rate * (u[k - 1] - 2.0 * u[k] + u[k + 1])
    return new


@njit
def heat(u, rate, n, slots):
    for _ in range(n):
        u = heat_step(u, rate)
    return (u * u).sum()


@njit
def heat_checkpointed(u, rate, n, slots):
    u = tg.func.checkpoint_loop(heat_step, u, n, slots, (rate,))
    return (u * u).sum()


def loops():
    """A long loop with and without checkpoints, each in a process of its own for its memory."""
    for n, name, slots in (
        (20_000, "heat", 0),
        (20_000, "heat_checkpointed", 30),
        (1_000_000, "heat_checkpointed", 30),
    ):
        code = (
            "import time, numpy as np, tapegrad as tg\n"
            f"from tests.benchmarks.native import {name} as program\n"
            "gradient, u = tg.func.value_and_grad(program, (0, 1)), np.sin(np.linspace(0, 3, 100))\n"
            "gradient(u, 0.2, 10, 2)\n"
            "def memory(what):\n"
            "    return int(next(x for x in open('/proc/self/status') if what in x).split()[1]) / 1024\n"
            "open('/proc/self/clear_refs', 'w').write('5')\n"
            "before = memory('VmRSS')\n"
            "start = time.perf_counter()\n"
            f"value, (_, slope) = gradient(u, 0.2, {n}, {slots})\n"
            "taken = time.perf_counter() - start\n"
            "more = memory('VmHWM') - before\n"
            "print(f'{taken:.2f} s, {more:.1f} MiB more, d/drate {slope:.12g}')\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        print(f"{name}, {n} steps of 100 numbers: {done.stdout.strip()}", flush=True)


def calls(repeat):
    """The gradient of ten variables, from Python and from compiled code."""
    value_and_grad, x = tg.func.value_and_grad(rosenbrock), np.linspace(0.5, 1.5, 10)

    @njit
    def inside(x, n):
        s = 0.0
        for _ in range(n):
            value, gradient = value_and_grad(x)
            s += value + gradient[0]
        return s

    def outside(n):
        for _ in range(n):
            value_and_grad(x)

    inside(x, 1)
    outside(1)
    n = 20_000
    ways = (lambda: outside(n), lambda: inside(x, n))
    best = [1e6 * min(timed(way) for _ in range(repeat)) / n for way in ways]
    print(f"value_and_grad of rosenbrock(10): {best[0]:.2f} us from Python, {best[1]:.2f} from njit")


FIRST_CALL = """
import time
import numpy as np, {imports}
from numba import njit
begin = time.perf_counter()

@{compile}(cache=True)
def f(x, n):
    s = x[0]
    for _ in range(n):
        s = x[1] * s * (1.0 - s)
    return s

f({leaf}, 10)
print(1e3 * (time.perf_counter() - begin))
"""


def processes(runs):
    """The first call in another process, everything in the cache, beside a function of Numba's own."""
    ways = {
        "numba": ("numba", "njit", "np.array([0.3, 3.1])"),
        "tg.njit": ("tapegrad as tg", "tg.njit", "tg.tensor([0.3, 3.1], requires_grad=True)"),
    }
    found = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as place:
        for way, words in ways.items():
            text = FIRST_CALL.format(**dict(zip(("imports", "compile", "leaf"), words, strict=True)))
            Path(place, f"{way[0]}.py").write_text(text)
        environment = {**os.environ, "NUMBA_CACHE_DIR": place, "TAPEGRAD_CACHE": f"{place}/cache"}
        environment |= {"PYTHONPYCACHEPREFIX": f"{place}/pyc", "PYTHONDONTWRITEBYTECODE": ""}
        for k in range(runs + 1):
            for way in ways:
                done = subprocess.run(
                    [sys.executable, f"{place}/{way[0]}.py"], env=environment, capture_output=True, text=True,
                    check=True,
                )  # fmt: skip
                if k:
                    found[way].append(float(done.stdout))
    own, ours = (min(times) for times in found.values())
    print(f"first call in a second process: {ours:.0f} ms, of a function of Numba's {own:.0f} ms")


def threads():
    """Eight threads at once beside one after the other; and the same of the program, without derivatives."""
    function = tg.njit(nogil=True)(lotka_volterra.py_func)
    x = cases()["lotka_volterra"][1]

    def gradients(_=None):
        p = tg.tensor(x, requires_grad=True)
        return [tg.grad(function(p, 20_000), p)[0].numpy() for _ in range(40)]

    value_and_grad = tg.func.value_and_grad(lotka_volterra)

    @njit(nogil=True)
    def many(x, n, repeat):
        total = np.zeros(x.size)
        for _ in range(repeat):
            total += value_and_grad(x, n)[1]
        return total

    def small(_=None):
        return many(x, 2_000, 400)

    def program(_=None):
        return [function(x, 100_000) for _ in range(40)]

    expected, gains = [gradients() for _ in range(8)], []
    with ThreadPoolExecutor(8) as pool:
        same = np.array_equal(list(pool.map(gradients, range(8))), expected)
        for one in (gradients, small, program):
            one()
            rows = [
                (timed(lambda: [one() for _ in range(8)]), timed(lambda: list(pool.map(one, range(8)))))
                for _ in range(5)
            ]
            serial, together = (min(times) for times in zip(*rows, strict=True))
            gains.append(serial / together)
    print(
        f"8 threads, {os.cpu_count()} cores: {gains[0]:.2f} times the throughput with tapes of 11 MB, same "
        f"bits: {same}; {gains[1]:.2f} in compiled code with tapes of 1.1 MB; the program {gains[2]:.2f}"
    )


def big():
    """A hundred million leaves."""
    steps = 100_000_000 // 54
    side = Ours(lotka_volterra, cases()["lotka_volterra"][1], (steps,))
    side.record()
    side.reverse()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    used = side.tape.nbytes + 8 * side.tape.statements
    print(f"{side.leaves} leaves: {used / side.leaves:.1f} bytes each, peak {peak / 1e9:.2f} GB")
    again = [1e9 * timed(part) / side.leaves for part in (side.record, side.reverse)]
    print(f"again: {again[0]:.2f} + {again[1]:.2f} ns")


if __name__ == "__main__":
    main()
