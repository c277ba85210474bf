"""What a gradient of one operation costs beside torch: every call of `op_table`, recorded and swept back.

    python -m tests.benchmarks.ops [--n 10 100] [--dtypes float64 float32] [--only NAME ...] [--json FILE]
        [--profile]

Operands are ``x * 1.0`` of leaves, made anew in each call, so that the operation is recorded on a history;
then its gradients by the leaves are taken with a cotangent of the result's shape. The multiplications are
in the times of both. Results and gradients are compared with torch's first; where they differ the row says
so, and the exit status is 1. Then each round calls both in turn, on one thread. What is taken is the
thread's time on the processor, which a busy machine disturbs least. Printed are best times in microseconds
per call, ratios of ours to torch's, that of the best times and the median of the rounds'; and geometric
means of both, for elementwise operations apart from all others. Of rows that are slower, by best times, the
column `value` has what NumPy takes for the value of constants (of eigenvalues alone: with vectors, as both do
where derivatives are to be taken), whose bits ours has. Below they are named again with that of both
libraries, and what is left without: where NumPy's is the slower one and the rest is not, the row is so by the
library (OpenBLAS, LAPACK and pocketfft beside MKL; NumPy computes linear algebra and covariances of single
precision in double). The floor is NumPy's value and torch's rest, over all of torch's: where that is above
the limit no record and sweep as quick as torch's would be below. Both kinds are counted. The sweep of a
linear operation, as of a transform or a running sum, is such an operation again. With --profile also the
functions of ours that take most time in slower rows are printed.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import cProfile
import json
import pstats
import sys
import warnings
from functools import partial
from time import thread_time

import numpy as np

from .gradbench.tools import Eager, Torch
from .op_table import ELEMENTWISE, OTHERS, WITH_A_HISTORY
from .rounds import difference, in_turns, ratios

SLOWER = 1.1  # ours to torch's: rows above are named
TURN, LONGEST_TURN = 2e-3, 100  # seconds of a tool's turn in a round, and calls at most
ROUNDS = 15
TOLERANCE = {"float64": 1e-9, "float32": 2e-3}


class Differs(Exception):
    """Results that are not torch's."""


def calls_of(row, tool, arrays):
    """Functions that compute a row's result by a tool, and its gradients by a cotangent."""
    _, letters, *functions = row
    function = functions[tool.name == "torch" and len(functions) > 1]
    leaves = {k: tool.leaf(arrays[a.lower()]) for k, a in enumerate(letters) if a.isupper()}
    constants = [tool.array(np.array(arrays[a.lower()])) for a in letters]
    operands = [(k in leaves, leaves.get(k, constant)) for k, constant in enumerate(constants)]
    sinks, m, grad = list(leaves.values()), tool.namespace, tool.grad

    def value():
        return function(m, *[x * 1.0 if moves else x for moves, x in operands])

    def gradients(cotangent):
        return grad(function(m, *[x * 1.0 if moves else x for moves, x in operands]), sinks, cotangent)

    return value, gradients


def value_alone(row, tool, arrays):
    """A function that computes of constants what a row's result is computed by where it has a history."""
    name, letters, *functions = row
    function = WITH_A_HISTORY.get(name) or functions[tool.name == "torch" and len(functions) > 1]
    return partial(function, tool.namespace, *[tool.array(np.array(arrays[a.lower()])) for a in letters])


def operands(n, dtype):
    """Arrays by the letters of the table."""
    random = np.random.default_rng(0)
    basis = np.linalg.qr(random.normal(size=(n, n)))[0]

    def numbers(*shape):
        return random.uniform(0.2, 1.0, shape)

    found = {
        "v": numbers(n), "w": numbers(n), "u": 1 + numbers(n), "m": numbers(n, n), "n": numbers(n, n),
        "d": (basis * np.arange(1.0, n + 1)) @ basis.T, "r": numbers(2 * n, n), "p": numbers(n, 3),
        "q": numbers(n, 3),
        "t": numbers(n // 5, 5, 5) + 5 * np.eye(5), "s": numbers(), "h": numbers(n),
        "x": (np.eye(6) + numbers(6, 6) / 10).reshape(2, 3, 3, 2),
    }  # fmt: skip
    found["g"] = found["d"] + numbers(n, n) / n / 2
    found["h"][::3] = np.nan
    return {letter: a.astype(dtype) for letter, a in found.items()} | {
        "c": (numbers(n) + 1j * numbers(n)).astype(np.result_type(dtype, np.complex64)),
        "i": random.integers(0, n, n), "j": random.integers(0, 3, n), "k": random.permutation(n),
        "b": random.uniform(size=n) > 0.5,
    }  # fmt: skip


def array(result):
    """A Tensor's values."""
    return np.asarray(result.detach().resolve_conj() if hasattr(result, "resolve_conj") else result.detach())


def compared(row, tools, arrays, dtype):
    """Calls to be timed, by tool's name, after results and gradients were found to be the same."""
    calls = {tool.name: calls_of(row, tool, arrays) for tool in tools}
    results = {name: array(value()) for name, (value, _) in calls.items()}
    if len({result.shape for result in results.values()}) > 1:
        raise Differs("shape differs from torch's")
    random = np.random.default_rng(1)
    cotangent = random.uniform(0.5, 1.0, results["torch"].shape)
    if all(map(np.iscomplexobj, results.values())):
        cotangent = cotangent + 1j * random.uniform(0.5, 1.0, cotangent.shape)
    ready, found = {}, {}
    for tool in tools:
        result = results[tool.name]
        given = tool.leaf(cotangent.astype(result.dtype)).detach()
        ready[tool.name] = partial(calls[tool.name][1], given)
        found[tool.name] = [result, *map(array, ready[tool.name]())]
    for one, another in zip(*found.values(), strict=True):
        holes = np.isnan(another)
        if np.any(np.isnan(one) != holes):
            raise Differs("places of nan differ from torch's")
        one, another = one[~holes], another[~holes]
        apart = difference(one, another) if np.any(another) else np.max(np.abs(one), initial=0.0)
        if not apart <= TOLERANCE[dtype]:
            raise Differs(f"results differ from torch's by {apart:.1e}")
    return ready


def measured(calls):
    """Best seconds of both, and the ratios of ours to torch's: of the best and the median."""
    once = in_turns(calls, 2, clock=thread_time)
    inner = {name: int(np.clip(TURN / rows.min(), 1, LONGEST_TURN)) for name, rows in once.items()}
    ours, theirs = in_turns(calls, ROUNDS, inner, clock=thread_time).values()
    median, best = ratios(ours, theirs)[:, 0]
    return ours.min(), theirs.min(), best, median


def values_alone(row, tools, arrays):
    """Best seconds of both libraries for the value alone."""
    return measured({tool.name: value_alone(row, tool, arrays) for tool in tools})[:2]


def rest(ours, theirs, mine, other):
    """The ratio of what is left of both times without those of the value alone."""
    return (ours - mine) / (theirs - other) if other < theirs else np.inf


def profile(call, calls=300, most=6):
    """Print in which functions most of a call's time is spent, by cProfile."""
    profiler = cProfile.Profile(thread_time)
    profiler.runcall(lambda: [call() for _ in range(calls)])
    stats = pstats.Stats(profiler)
    rows = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:most]
    for (file, line, name), (_, count, own, cumulative, _) in rows:
        place = f"{'/'.join(file.split('/')[-2:])}:{line} {name}" if line else name
        shares = f"{own / stats.total_tt:6.0%} own, {cumulative / stats.total_tt:4.0%} with what it calls"
        print(f"    {shares}, {count / calls:5.1f} times  {place}")


def summary(title, rows, values):
    """Geometric means, and the rows that are slower, with both libraries' times of their values alone."""
    logs = np.log([row[-2:] for row in rows])
    slower = sorted((row for row in rows if row[3] > SLOWER), key=lambda row: -row[3])
    best, median = np.exp(logs.mean(axis=0))
    print(f"{title}: geometric mean of {len(rows)} rows {best:.2f}, of medians {median:.2f}; ", end="")
    left = {name: rest(ours, theirs, *values[name]) for name, ours, theirs, *_ in slower}
    floor = {name: 1 + (values[name][0] - values[name][1]) / theirs for name, _, theirs, *_ in slower}
    out_of_reach = sum(ratio > SLOWER for ratio in floor.values())
    without = sum(x > SLOWER for x in left.values())
    print(f"{len(slower)} above {SLOWER}", f", {without} without the value too; the floor of "
          f"{out_of_reach} is" if slower else "", sep="")  # fmt: skip
    for name, _, _, ratio, _ in slower:
        text = "values alone {:.1f} and {:.1f}".format(*(1e6 * x for x in values[name]))
        text += f", ratio of the rest {left[name]:.2f}, floor {floor[name]:.2f}"
        print(f"    {ratio:5.2f}  {name:28s}{text}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[10, 100], help="elements of vectors")
    parser.add_argument("--dtypes", nargs="+", default=list(TOLERANCE), choices=list(TOLERANCE))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of rows, or up to the comma")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    parser.add_argument("--profile", action="store_true", help=f"where the time goes in rows above {SLOWER}")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # torch's, of names that will change
    tools, kept, wrong = [Eager(), Torch()], [], 0
    for n in args.n:
        for dtype in args.dtypes:
            arrays, torch = operands(n, dtype), tools[1].namespace
            torch.set_default_dtype(getattr(torch, dtype))  # else its `det` fails in single precision
            heads = "".join(f"{head:>10s}" for head in ("ours", "torch"))
            print(f"\nn = {n}, {dtype}\n{'':32s}{heads}   best, median   value", flush=True)
            for title, table in (("elementwise", ELEMENTWISE), ("others", OTHERS)):
                rows, values = [], {}
                for row in table:
                    if args.only and not {row[0], row[0].split(",")[0]} & set(args.only):
                        continue
                    try:
                        calls = compared(row, tools, arrays, dtype)
                    except Differs as error:
                        wrong += 1
                        print(f"{row[0]:32s}{error}", flush=True)
                        continue
                    ours, theirs, best, median = figures = measured(calls)
                    rows.append((row[0], *figures))
                    times, value = f"{1e6 * ours:10.1f}{1e6 * theirs:10.1f}", ""
                    if best > SLOWER:
                        values[row[0]] = values_alone(row, tools, arrays)
                        value = f"{1e6 * values[row[0]][0]:10.1f}"
                    print(f"{row[0]:32s}{times}{best:7.2f}{median:8.2f}{value}", flush=True)
                    if best > SLOWER and args.profile:
                        profile(calls[tools[0].name])
                if rows:
                    summary(title, rows, values)
                names = "name", "ours", "torch", "best", "median"
                of_all = {"n": n, "dtype": dtype, "kind": title}
                for row in rows:
                    alone = dict(zip(("value", "value of torch"), values.get(row[0], ()), strict=False))
                    kept.append(of_all | dict(zip(names, row, strict=True)) | alone)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(kept, file, indent=1)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
