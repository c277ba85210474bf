"""Values and derivatives of GradBench's problems: tapegrad in four ways, torch, JAX and HIPS autograd.

    python -m tests.benchmarks.gradbench [--cases lse ...] [--sizes S M L] [--peers torch jax autograd]
        [--seconds N] [--limit N] [--json FILE] [--chart FILE.png]

Before anything is timed results are compared with each other, to 1e-9 of each element (lse: 1e-6), and with
central differences. Then each way is warmed, as `tapegrad.compile` learns from its second call and makes
kernels at its fourth, and each round calls every way in turn, short ones several times in a row, each time
on new arrays with other values. A call goes from arrays to arrays: making leaves and freeing what was
recorded are part of it, and the garbage collector is on. All have one thread but JAX, which may use all
cores. The first call, which compiles, is told apart.

Printed are medians over the rounds in milliseconds per call, and ratios: the peer's time over tapegrad's, as
the median of the rounds' ratios and, in brackets, of the best times. The value by "eager" is NumPy's own.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
import platform
from contextlib import suppress
from itertools import count
from time import perf_counter

import numpy as np

from tapegrad.errors import ReplayError

from ..rounds import in_turns, ratios
from .problem import compare
from .problems import PROBLEMS
from .tools import OURS, PEERS

WARM = 6  # calls before the rounds; how many calls a turn has is told by the quickest
BLOCK, LONGEST_BLOCK = 2e-3, 50  # a way's seconds in a round, where its calls are short, and calls at most
ROUNDS = 3, 100  # at least, at most


def fresh(variables, data):
    """A function that gives new arrays at each call, the variables with other values."""
    numbers = count(1)

    def arguments():
        factor = 1 + 1e-8 * next(numbers)
        return [v * factor for v in variables], [d.copy() if isinstance(d, np.ndarray) else d for d in data]

    return arguments


def once(call, *given):
    """What a call gives, and its seconds."""
    begin = perf_counter()
    return call(*given), perf_counter() - begin


def warm(ways, arguments):
    """The seconds of each way's quickest call, without those that refuse a problem as too large."""
    took = {}
    for name, call in ways.items():
        with suppress(ReplayError):
            took[name] = min(once(call, *arguments())[1] for _ in range(WARM))
    return took


def measure(problem, size, tools, seconds, limit):
    """By what is computed, by tool, seconds of the first call and of each round; the largest difference."""
    variables, data = problem.inputs(*problem.sizes[size], seed=31337)
    arguments = fresh(variables, data)
    calls = {"value": {t.name: t.value(problem) for t in tools}}
    calls["derivative"] = {t.name: t.derivative(problem) for t in tools}
    results, firsts, times = {}, {}, {}
    for what, ways in calls.items():
        ways = {name: call for name, call in ways.items() if call}
        pairs = {name: once(call, variables, data) for name, call in ways.items()}
        results[what] = {name: result for name, (result, _) in pairs.items()}
        firsts[what] = {name: took for name, (_, took) in pairs.items()}
    worst = compare(problem, results, calls["value"][tools[0].name], variables, data)
    for what, ways in calls.items():
        ways = {name: ways[name] for name, first in firsts[what].items() if first <= limit}
        took = warm(ways, arguments)
        ways = {name: ways[name] for name in took}
        inner = {name: int(np.clip(BLOCK / took[name], 1, LONGEST_BLOCK)) for name in ways}
        round_takes = sum(inner[name] * took[name] for name in ways)
        rounds = int(np.clip(seconds / max(round_takes, 1e-9), *ROUNDS))
        times[what] = {name: rows[:, 0] for name, rows in in_turns(ways, rounds, inner, arguments).items()}
    return firsts, times, worst


def row(case, size, what, firsts, times, peers):
    """What is known of a problem's value or derivative, for the table, the file and the chart."""
    beside = {}
    for peer in peers:
        for ours in (tool.name for tool in OURS):
            if peer in times and ours in times:
                median, best = ratios(times[peer], times[ours])
                beside[f"{peer}/{ours}"] = {"median": float(median), "of best": float(best)}
    tools = {
        name: {
            "first": first,
            "median": float(np.median(times[name])) if name in times else None,
            "best": float(times[name].min()) if name in times else None,
            "rounds": len(times.get(name, ())),
        }
        for name, first in firsts.items()
    }
    return {"case": case, "size": size, "what": what, "seconds": tools, "ratios": beside}


def text(found, names, pairs):
    """A line of the table."""
    line = f"{found['case'] + ' ' + found['size']:10s}{found['what']:11s}"
    for name in names:
        seconds = found["seconds"].get(name)
        if seconds is None:
            line += f"{'-':>11s}"
        else:
            middle = seconds["median"]
            line += f"{1e3 * middle:11.4g}" if middle else f"{1e3 * seconds['first']:10.4g}*"
    for pair in pairs:
        ratio = found["ratios"].get(pair)
        both = ("{median:.3g}", " ({of best:.3g})") if ratio else ("-", "")
        line += "{:>9s}{:10s}".format(*(part.format(**ratio or {}) for part in both))
    return line


def draw(rows, path):
    """Times of the derivatives by problem, a mark for each tool."""
    from matplotlib.figure import Figure

    rows = [r for r in rows if r["what"] == "derivative"]
    figure = Figure(figsize=(8, 1.2 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    names = dict.fromkeys(name for r in rows for name in r["seconds"])
    for name, mark in zip(names, "osXDv^P", strict=False):
        known = [r["seconds"].get(name, {"median": np.nan}) for r in rows]
        times = [1e3 * (found["median"] or found["first"]) for found in known]
        axes.plot(times, range(len(rows)), mark, label=name)
    axes.set(xscale="log", xlabel="derivative, ms per call", ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), [f"{r['case']} {r['size']}" for r in rows])
    axes.grid(alpha=0.3)
    axes.legend(ncols=7, loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--sizes", nargs="+", default=["S", "M"], choices=["tiny", "S", "M", "L"])
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS)
    parser.add_argument("--seconds", type=float, default=10, help="for the rounds of a value or derivative")
    parser.add_argument("--limit", type=float, default=30, help="seconds; what takes longer runs once")
    parser.add_argument("--json", help="where figures go")
    parser.add_argument("--chart", help="where a picture goes")
    args = parser.parse_args()
    tools = [kind() for kind in OURS]
    for peer in args.peers:
        try:
            tools.append(PEERS[peer]())
        except ImportError:
            print(f"{peer} is not installed: left out")
    names = [tool.name for tool in tools]
    peers = names[len(OURS) :]
    pairs = [f"{peer}/{tool.name}" for peer in peers for tool in OURS]
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    titles = [f"{name:>11s}" for name in names] + [f"{pair:>19s}" for pair in pairs]
    print(f"{'ms, ratio (of best)':21s}" + "".join(titles))
    rows = []
    for case in args.cases:
        for size in args.sizes:
            firsts, times, worst = measure(PROBLEMS[case], size, tools, args.seconds, args.limit)
            for what in times:
                rows.append(row(case, size, what, firsts[what], times[what], peers))
                print(text(rows[-1], names, pairs), flush=True)
            took = ", ".join(f"{name} {seconds:.2g} s" for name, seconds in firsts["derivative"].items())
            print(f"{'':10s}first derivatives: {took}; largest relative difference {worst:.1e}", flush=True)
    if any(middle["median"] is None for r in rows for middle in r["seconds"].values()):
        print("* the first call; no more were made")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)
    if args.chart:
        draw(rows, args.chart)


if __name__ == "__main__":
    main()
