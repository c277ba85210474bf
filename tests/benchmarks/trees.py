"""Compiled programs in this tree and in another one, perhaps of an earlier version: gradients.

    python -m tests.benchmarks.trees OTHER [--rounds 30] [--only heat solve ...]

OTHER is the top of the other tree. Each tree has a process, which imports `tapegrad` of there; the programs
are those of this tree's `native`, `native_arrays`, `native_linalg` (3 x 3) and `gradbench`. Their gradients
are compared first, then the processes take turns of some 5 ms; printed are the best times in microseconds of
a call, their ratio, and the median of the ratios of turns. What a tree refuses is told.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

TURN = 0.005  # seconds
HERE = Path(__file__).parents[2]


def programs(tg, np):
    """By name a function that makes what is called, for the parts of a gradient, and its arguments."""
    from . import native_arrays, native_linalg, native_programs
    from .gradbench import problems, tools

    found = {}
    for name, (primal, x, args) in native_programs.cases().items():
        found[name] = lambda f=primal, v=(x, *args): (tg.func.grad(f), v)
    for name, program, _, operands, places in native_arrays.cases():
        found[name] = lambda f=program, v=operands, k=tuple(places): (
            tg.func.grad(native_arrays.of_numpy(f), k),
            v,
        )
    matrices, weights = native_linalg.programs(3)
    for f, a in matrices.items():
        found[f"{f.__name__}, 3 x 3"] = lambda f=f, v=(a, weights): (tg.func.grad(tg.njit(f)), v)
    for (name, problem), size in product(problems.PROBLEMS.items(), "SM"):
        given = partial(problem.inputs, *problem.sizes[size], seed=31337)
        found[f"{name} {size}"] = lambda p=problem, v=given: (tools.Njit().derivative(p), v())
    return found


def serve(tree):
    """Answer each line, a name and a count: with the gradient if that is 0, else with seconds a call."""
    sys.path.insert(0, tree)
    import numpy as np

    import tapegrad as tg

    if Path(tg.__file__).parents[1] != Path(tree):
        sys.exit(f"tapegrad is that of {tg.__file__}")
    known, made = programs(tg, np), {}
    print(json.dumps(list(known)), flush=True)
    for line in sys.stdin:
        name, count = json.loads(line)
        try:
            if count:
                (f, values), begin = made[name], time.perf_counter()
                for _ in range(count):
                    f(*values)
                answer = (time.perf_counter() - begin) / count
            else:
                f, values = made[name] = known[name]()
                found = f(*values)
                parts = [found] if isinstance(found, np.ndarray) else found
                answer = [float(v) for part in parts for v in np.ravel(part)]
        except Exception as error:
            answer = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        print(json.dumps(answer), flush=True)


class Tree:
    """A process that serves."""

    def __init__(self, place):
        environment = os.environ | {"PYTHONPATH": str(HERE)}
        command = [sys.executable, "-m", "tests.benchmarks.trees", str(place), "--serve"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, env=environment, text=True, cwd=HERE
        )
        self.names = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(self.process.wait() or 1)
        return json.loads(line)

    def ask(self, name, count):
        self.process.stdin.write(json.dumps((name, count)) + "\n")
        self.process.stdin.flush()
        return self.read()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="*", help="beginnings of names")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(str(args.other))
    import numpy as np

    trees = [Tree(HERE), Tree(args.other.resolve())]
    print(f"{'us, best':34}{'here':>12}{'there':>12}{'ratio':>8}{'median':>8}")
    for name in trees[0].names:
        if args.only and not name.startswith(tuple(args.only)):
            continue
        answers = [tree.ask(name, 0) for tree in trees]
        refused = [answer if isinstance(answer, str) else "" for answer in answers]
        if any(refused):
            print(f"{name:34}{'; '.join(filter(None, refused))[:110]}", flush=True)
            continue
        np.testing.assert_allclose(*answers, rtol=1e-8, atol=1e-8 * np.max(np.abs(answers[0])), err_msg=name)
        counts = [max(1, int(TURN / tree.ask(name, 3))) for tree in trees]
        turns = list(zip(trees, counts, strict=True))
        times = np.array([[tree.ask(name, count) for tree, count in turns] for _ in range(args.rounds)])
        here, there = 1e6 * times.min(axis=0)
        median = np.median(times[:, 0] / times[:, 1])
        print(f"{name:34}{here:12.1f}{there:12.1f}{here / there:8.2f}{median:8.2f}", flush=True)
    return None


if __name__ == "__main__":
    main()
