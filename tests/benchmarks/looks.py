"""Functions that look at a value in each step, compiled by `tapegrad.compile` and recorded.

    python -m tests.benchmarks.looks [WORD ...]

Twenty steps on five numbers with a look in each, and loops that end, or go on, by what they look at. Shown
are medians of value and gradient, in turns, of calls that follow a program however long that takes; what
a look adds to the recorded call, and what a step takes compiled. Of words, rows with one of them alone.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import sys

import numpy as np

import tapegrad as tg
from tapegrad.compilation import pace
from tests.benchmarks.rounds import in_turns

STEPS, WARM, ROUNDS = 20, 40, 100
LOOKS = {
    "nothing": lambda y: None,
    "y[0].item()": lambda y: y[0].item(),
    "float(y[0].detach())": lambda y: float(y[0].detach()),
    "np.max(y).item()": lambda y: np.max(y).item(),
    "if y[0] > 3": lambda y: bool(y[0] > 3),
    "if np.linalg.norm(y) < tol": lambda y: bool(np.linalg.norm(y) < 1e-9),
    "np.any(y > 3)": lambda y: bool(np.any(y > 3)),
    "(y > 0).all()": lambda y: bool((y > 0).all()),
    "np.isfinite(y).all()": lambda y: bool(np.isfinite(y).all()),
    "np.isnan(np.sum(y))": lambda y: bool(np.isnan(np.sum(y))),
    "int(np.argmax(y))": lambda y: int(np.argmax(y)),
    "y[np.argmax(y)]": lambda y: y[np.argmax(y)],
    "np.count_nonzero(y > 0)": lambda y: int(np.count_nonzero(y > 0)),
    "np.argsort(y)": np.argsort,
    "np.allclose(y, 0)": lambda y: np.allclose(y, 0),
    "y.detach().numpy()": lambda y: y.detach().numpy(),
}


def steps(look):
    def f(x):
        y = x
        for _ in range(STEPS):
            y = np.sin(y) * x + 0.1
            look(y)
        return np.sum(y)

    return f


def newton(x):
    y = 0.0 * x + 1.0
    for _ in range(30):
        step = (y * y * y - x) / (3.0 * y * y)
        y = y - step
        if np.all(np.abs(step) < 1e-12):
            break
    return np.sum(y)


def line_search(x):
    y = x
    for _ in range(5):
        slope, t, before = 4.0 * y**3 - 2.0 * y, 1.0, np.sum(y**4 - y**2).item()
        while np.sum((y - t * slope) ** 4 - (y - t * slope) ** 2).item() > before:
            t *= 0.5
        y = y - t * slope
    return np.sum(y * y)


def adaptive_steps(x):
    y, t, h = x, 0.0, 0.1
    while t < 2.0:
        one = y + h * np.cos(y)
        two = y + 0.5 * h * (np.cos(y) + np.cos(one))
        if float(np.max(np.abs(one - two)).detach()) > 0.01:
            h *= 0.5
        else:
            y, t, h = two, t + h, min(1.2 * h, 0.3)
    return np.sum(y)


def pivoting(x):
    a, found, places = np.outer(x, x) + np.eye(5) * (1.0 + x), 1.0, np.arange(5)
    for j in range(4):
        i = j + int(np.argmax(np.abs(a[j:, j])))
        if i != j:
            rows = places.copy()
            rows[[i, j]] = j, i
            a, found = a[rows], -found
        found = found * a[j, j]
        a = a - np.outer(a[:, j] * (places > j) / a[j, j], a[j])
    return found * a[4, 4]


def measure(name, f, x, without):
    """Print a row."""
    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for _ in range(WARM):
        found = compiled.value_and_grad(x)
    wanted = recorded(x)
    assert found[0] == wanted[0] and np.allclose(found[1], wanted[1], rtol=1e-10, atol=0)
    calls = {"mine": compiled.value_and_grad, "theirs": recorded, "without": without}
    times = in_turns(calls, ROUNDS, arguments=lambda: (x,))
    mine, theirs, plain = (1e6 * np.median(times[key]) for key in calls)
    each = f"{(theirs - plain) / STEPS:10.2f}{mine / STEPS:10.2f}" if f.__name__ == "f" else ""
    print(f"{name:28s}{theirs:10.0f}{mine:10.0f}{mine / theirs:8.2f}{each}", flush=True)


def main():
    pace.BEFORE = sys.maxsize
    x, words = np.linspace(0.5, 1.5, 5), sys.argv[1:]
    rows = {name: steps(look) for name, look in LOOKS.items()}
    rows |= {f.__name__: f for f in (newton, line_search, adaptive_steps, pivoting)}
    without = tg.func.value_and_grad(rows["nothing"])
    print(f"{'us':28s}{'recorded':>10s}{'compiled':>10s}{'ratio':>8s}{'a look':>10s}{'a step':>10s}")
    for name, f in rows.items():
        if not words or any(word in name for word in words):
            measure(name, f, x, without)


if __name__ == "__main__":
    main()
