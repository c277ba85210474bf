"""What it costs to be watched: anomaly mode and the profiler, beside the same programs without.

    python -m tests.benchmarks.watched [--quick]

Anomaly mode runs random programs of 10,000 operations (`tests.faults`), forward and backward, and chains of
scalars; bar: 3 times the time without. The profiler runs chains; bars: 10 % more time on arrays of 10,000
elements, 60 ns more for a record in a sweep and 200 ns for an operation recorded on small values. Values and
gradients are compared first, to the bit. Then each round runs every variant once, so that a disturbance of
the machine meets all of them; printed are medians over the rounds' ratios or differences, and those of the
best.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import gc
import sys
import tempfile
import warnings
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter

import numpy as np

import tapegrad as tg
from tapegrad.autograd.profiler import profile
from tests.faults import Program, arguments

ASKED = {
    "profile": {},
    "shapes, memory, flops": {"record_shapes": True, "profile_memory": True, "with_flops": True},
    "stack": {"with_stack": True},
}


def program(seed, arrays, folder):
    """A call that runs a random program and sweeps it back; returns result, gradients and the two times."""
    rng = np.random.default_rng(seed)
    run = Program(rng, 10_000, arrays=arrays).compiled(Path(folder) / f"program{seed}.py")
    x, y, mask = arguments(rng)

    def call():
        leaves = [tg.tensor(x, requires_grad=True), tg.tensor(y, requires_grad=True)]
        begin = perf_counter()
        out = run(np, *leaves, mask)
        recorded = perf_counter()
        gradients = tg.grad(out, leaves, allow_unused=True)
        end = perf_counter()
        return (out, *gradients), recorded - begin, end - recorded

    return call


def chain(n, steps):
    """As `program`, of ``z * A + A`` on n elements (0: scalars)."""
    start, factor = (np.linspace(0.5, 1, n), np.linspace(0.1, 0.9, n)) if n else (0.7, 0.9)
    x, A = tg.tensor(start, requires_grad=True), tg.tensor(factor)
    seed = tg.tensor(np.ones(n) if n else 1.0)

    def call():
        begin, z = perf_counter(), x
        for _ in range(steps):
            z = z * A + A
        recorded = perf_counter()
        (gradient,) = tg.grad(z, x, seed)
        end = perf_counter()
        return (z, gradient), recorded - begin, end - recorded

    return call


def measure(call, variants, rounds):
    """Seconds of (forward, backward, both) by variant, a row for each round; all give the same."""
    results = {}
    for name, context in variants.items():
        with context():
            results[name] = [None if x is None else x.detach().numpy().tobytes() for x in call()[0]]
    if any(found != results["off"] for found in results.values()):
        sys.exit("the results differ from those without")
    times = {name: [] for name in variants}
    gc.disable()
    for _ in range(rounds):
        for name, context in variants.items():
            with context():
                forward, backward = call()[1:]  # without a result kept, all work in the same memory
            times[name].append((forward, backward, forward + backward))
    gc.enable()
    return {name: np.array(rows) for name, rows in times.items()}


def both(value, best):
    return f"{value:9.2f} (of best {best:.2f})"


def verdict(values, bar):
    reached = [value <= bar for value in values]
    return f"   bar {bar:g} {'met' if all(reached) else 'unclear' if any(reached) else 'missed'}"


def anomaly(rounds, folder):
    variants = {"off": nullcontext, "on": lambda: tg.autograd.set_detect_anomaly(True)}
    variants["in a block"] = lambda: tg.autograd.detect_anomaly()
    print("\nanomaly mode, time over that without: forward, backward, both")
    calls = {"scalars": program(1, 0.0, folder), "scalars and arrays": program(2, 0.5, folder)}
    calls |= {"scalar chain": chain(0, 5000), "chain, 10 elements": chain(10, 5000)}
    for title, call in calls.items():
        times = measure(call, variants, rounds)
        for name in ("on", "in a block"):
            ratios = np.median(times[name] / times["off"], axis=0)
            best = times[name].min(axis=0) / times["off"].min(axis=0)
            text = f"{title:20s}{name:12s}" + "".join(both(*pair) for pair in zip(ratios, best, strict=True))
            print(text + verdict((ratios[2], best[2]), 3), flush=True)


def profiler(rounds):
    variants = {"off": nullcontext}
    for title, more in ASKED.items():
        variants[title] = lambda more=more: profile(**more)
    print("\nprofiler, what is asked for: ns more for an operation recorded, for a record in a sweep")
    for title, n, steps in (("scalars", 0, 1500), ("10 elements", 10, 1500), ("scalars, 4 tapes", 0, 6000)):
        times = measure(chain(n, steps), variants, rounds)
        for name in ASKED:
            more = (times[name] - times["off"]) / (2 * steps) * 1e9
            best = (times[name].min(axis=0) - times["off"].min(axis=0)) / (2 * steps) * 1e9
            middle = np.median(more, axis=0)
            text = f"{title:20s}{name:24s}{both(middle[0], best[0])}"
            plain = name == "profile"
            text += verdict((middle[0], best[0]), 200) if plain else ""
            text += both(middle[1], best[1]) + (verdict((middle[1], best[1]), 60) if plain else "")
            print(text, flush=True)
    print("\nprofiler on 10,000 elements, time over that without: forward, backward, both")
    times = measure(chain(10_000, 300), variants, rounds)
    for name in ASKED:
        ratios = np.median(times[name] / times["off"], axis=0)
        best = times[name].min(axis=0) / times["off"].min(axis=0)
        text = f"{name:24s}" + "".join(both(*pair) for pair in zip(ratios, best, strict=True))
        print(text + (verdict((ratios[2], best[2]), 1.1) if name == "profile" else ""), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a third of the rounds")
    rounds = 7 if parser.parse_args().quick else 21
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        anomaly(rounds, folder)
    profiler(rounds)


if __name__ == "__main__":
    main()
