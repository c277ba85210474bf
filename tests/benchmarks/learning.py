"""Calls of `tapegrad.compile` that follow one another without a pause, until their program is known and used.

    python -m tests.benchmarks.learning [OPERATIONS ...]
    taskset -c 0 python -m tests.benchmarks.learning

Each row is a process of its own: a chain of so many operations on numbers, or "pendulum", of 10,402, with
branches. Printed are how many calls came, and how many seconds passed, until the program was known, and until
a plan was there for it or it was said to be too long; what processor time the thread took until then; and
times of calls over the median of recorded ones before and behind: the first, second, tenth and hundredth, the
mean of all until the program was known, and the last ones.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import subprocess
import sys
from time import perf_counter, sleep

import numpy as np

import tapegrad as tg
from tapegrad.compilation import background

SIZES = "15", "300", "3000", "pendulum", "60000"
SECONDS, SOME = 40.0, 30  # at most; recorded calls, and calls behind the last step
GROUPS = ("known after", 19), ("planned after", 18), ("thread", 9), ("over recorded", 15)
HEAD = "us", "calls", "s", "calls", "s", "cpu s", "1st", "2nd", "10th", "100th", "all", "last"


def chain(operations):
    def f(x):
        y, z = x[0], x[1]
        for _ in range((operations - 2) // 3):
            y = np.sin(y) * z + 0.1
        return y

    return f


def pendulum(x):
    """The angle after 200 steps of Runge and Kutta, with a friction that has a branch."""
    angle, speed, h = x[0], x[1], 0.02

    def force(angle, speed):
        drag = 0.1 * speed if abs(speed) < 1.0 else 0.2 * speed - 0.1
        return -np.sin(angle) - drag

    for _ in range(200):
        k1, l1 = speed, force(angle, speed)
        k2, l2 = speed + h / 2 * l1, force(angle + h / 2 * k1, speed + h / 2 * l1)
        k3, l3 = speed + h / 2 * l2, force(angle + h / 2 * k2, speed + h / 2 * l2)
        k4, l4 = speed + h * l3, force(angle + h * k3, speed + h * l3)
        angle, speed = (
            angle + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4),
            speed + h / 6 * (l1 + 2 * l2 + 2 * l3 + l4),
        )
    return angle


def one(name):
    """Print the row of a function."""
    f, x = pendulum if name == "pendulum" else chain(int(name)), np.array([1.0, 0.1])
    other, recorded, compiled = tg.compile(chain(15)), tg.func.value_and_grad(f), tg.compile(f)
    while "way" not in other.explain() or background.waiting():  # code of the library's own is loaded
        other.value_and_grad(x)
    usual, before = timed(recorded, x, SOME)[5:], background.statistics["seconds"]
    mine, steps, behind, begin, spent = [], [], 0, perf_counter(), np.nan
    while behind < SOME and perf_counter() - begin < SECONDS:
        mine += timed(compiled.value_and_grad, x, 1)
        behind += len(steps) == 2
        kinds = compiled._kinds.values() if len(steps) < 2 else ()  # there is none after one call
        paths = [path for kind in kinds for path in kind.matcher.paths]
        plans = paths[0].plans.values() if paths else ()
        if paths and (not steps or any(p.plan is not None or p.reason for p in plans)):
            steps.append((len(mine), perf_counter() - begin))
            spent = background.statistics["seconds"] - before
    while background.waiting() and perf_counter() - begin < SECONDS:
        sleep(0.01)
    usual = np.median(usual + timed(recorded, x, SOME))
    known = steps[0][0] if steps else len(mine)
    words = [f"{value:{'8d' if q == 0 else '8.2f'}}" for step in steps for q, value in enumerate(step)]
    words += [f"{'-':>8s}"] * (4 - len(words))
    ratios = [mine[k] / usual if k < len(mine) else np.nan for k in (0, 1, 9, 99)]
    ratios += [np.mean(mine[:known]) / usual, np.median(mine[-SOME // 2 :]) / usual]
    numbers = (f"{value:8.2f}" for value in (spent, *ratios))
    print(f"{name:10s}{1e6 * usual:8.0f}", *words, *numbers, flush=True)


def timed(f, x, count, pause=0.0):
    """Seconds of calls, each with a pause behind it."""
    found = []
    for _ in range(count):
        begin = perf_counter()
        f(x)
        found.append(perf_counter() - begin)
        if pause:
            sleep(pause)
    return found


def main():
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2])
        return
    print(f"{'recorded':>18s}", *(f"{word:>{width - 1}s}" for word, width in GROUPS))
    print(" " * 9, *(f"{word:>8s}" for word in HEAD), flush=True)
    for name in sys.argv[1:] or SIZES:
        subprocess.run([sys.executable, "-m", __spec__.name, "--one", name], check=True)


if __name__ == "__main__":
    main()
