"""Gradients of twenty programs that call NumPy and SciPy, beside HIPS autograd's where it has what they call.

    python -m tests.benchmarks.scripts

The programs are `tests/scipy/scripts.py`. Gradients are compared with HIPS autograd's first (with differences
in `tests/scipy/test_scripts.py`), then each round calls both in turn. Printed are best times in microseconds
of the one thread, the value alone by NumPy and SciPy, and ours over HIPS's.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

from time import thread_time
from types import SimpleNamespace

import autograd
import autograd.builtins
import autograd.numpy
import autograd.scipy.integrate
import autograd.scipy.linalg
import autograd.scipy.special
import autograd.scipy.stats
import numpy as np

import tapegrad as tg
import tapegrad.scipy as ts
from tests.scipy.scripts import SCRIPTS

from .rounds import difference, in_turns, ratios, verdict

ROUNDS, TURN, BAR = 15, 5e-3, 1.2
SAME, SOLVED = 1e-9, 1e-5  # differences, of the same arithmetic and of solvers within their tolerances
OURS = SimpleNamespace(np=np, **{name: getattr(ts, name) for name in ts.__all__})
HIPS = SimpleNamespace(np=autograd.numpy, linalg=autograd.scipy.linalg, special=autograd.scipy.special,
                       stats=autograd.scipy.stats, integrate=autograd.scipy.integrate,
                       tuple=autograd.builtins.tuple)  # fmt: skip


def main():
    print(f"{'us':40s}{'value':>10s}{'ours':>10s}{'HIPS':>10s}")
    for name, (objective, start, hips) in SCRIPTS.items():
        calls = {
            "value": lambda objective=objective, start=start: objective(OURS, start),
            "ours": lambda f=tg.func.grad(lambda p, g=objective: g(OURS, p)), start=start: f(start),
        }
        if hips:
            calls["HIPS"] = lambda f=autograd.grad(lambda p, g=hips: g(HIPS, p)), start=start: f(start)
            found, most = difference(calls["ours"](), calls["HIPS"]()), SAME if hips is objective else SOLVED
            assert found <= most, f"{name}: {found:.1e} from HIPS autograd's"
        inner = {}
        for key, call in calls.items():
            call()
            begin = thread_time()
            call()
            inner[key] = max(1, int(TURN / max(thread_time() - begin, 1e-6)))
        times = {key: rows[:, 0] for key, rows in in_turns(calls, ROUNDS, inner, clock=thread_time).items()}
        shown = "".join(f"{1e6 * column.min():10.1f}" for column in times.values())
        told = ""
        if hips:
            pair = ratios(times["ours"], times["HIPS"])
            told = f"   {pair[0]:.2f} ({pair[1]:.2f})   {verdict(pair, BAR, most=True)}"
        print(f"{name:40s}{shown}{told}", flush=True)


if __name__ == "__main__":
    main()
