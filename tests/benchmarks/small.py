"""Small gradients from a fresh leaf to its ``.grad``, sweeps to several leaves, long histories, many values.

    python -m tests.benchmarks.small [--full]

Small functions: a call makes the leaf of an array that is another one each time, records, sweeps and lets go;
constants are plain arrays. Sweeps: ``backward`` alone, to so many leaves of ten elements, some with a hook
that returns None; "again" is to gradients that are there. A growing history: every step moves the parameters
by a gradient that is recorded itself; compared are steps 396 to 405 with steps 6 to 15. Values kept: so many
products of a leaf, all alive until they are summed and swept back; compared is the time per record, also
where Python does not look for cycles, which takes longer the more Tensors there are. A value that is read on
another tape than its own is one record more, so of many there are half as many again. Results
are compared with torch's first, then each round calls both in turn. What is taken is the time of the one
thread on the processor, which a busy machine disturbs least. Printed are best times and ratios, as the median
of the rounds' ratios and in brackets that of the best times; a bar counts as met or missed if both say so.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import gc
from itertools import count
from operator import itemgetter
from time import thread_time

import numpy as np

from .gradbench.tools import Eager, Torch
from .rounds import difference, in_turns, ratios, verdict

TOLERANCE = 1e-12
N, ROUNDS, CALLS = 10, 40, 50
SWEEPS = {  # how many leaves, what has a hook, whether gradients are there already
    "3 leaves": (3, None, False), "3 leaves, a result's hook": (3, "result", False),
    "3 leaves, a leaf's hook": (3, "leaf", False), "20 leaves": (20, None, False),
    "20 leaves again": (20, None, True), "100 leaves": (100, None, False),
}  # fmt: skip
OVERALL, EACH = 2.0, 1.5  # torch's times over ours: bars for the geometric mean, and where there is no other
GROWTH = 1.3  # bar for a late step over an early one
FEW, MANY, MOST = 4_000, 100_000, 1_000_000  # records, of which a tape has 4,096
CLIFF, OF_TORCH = 1.6, 0.25  # bars for a record among many: over one among few, over one of torch's


def eleven(m, x):
    return m.sin(x) * x + m.exp(-x) * x - m.tanh(x) * x + x * 0.5


def rosenbrock(m, x):
    return m.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def runge_kutta(m, y, A, b, h=0.1):
    def rate(y):
        return m.tanh(A @ y) + b

    k1 = rate(y)
    k2 = rate(y + h / 2 * k1)
    k3 = rate(y + h / 2 * k2)
    k4 = rate(y + h * k3)
    return (y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)).sum()


FUNCTIONS = {  # of the namespace, the leaf and constants: shape of the leaf, shapes of the constants, bar
    "x * x": (lambda m, x: x * x, (), [], 3.0),
    "11 operations": (eleven, (), [], 6.0),
    "11 operations, summed": (lambda m, x: m.sum(eleven(m, x)), (N,), [], 3.0),
    "x @ X @ x": (lambda m, x, X: x @ X @ x, (N,), [(N, N)], EACH),
    "x[1:] * x[:-1], summed": (lambda m, x: (x[1:] * x[:-1]).sum(), (N,), [], EACH),
    "(X @ Y).sum()": (lambda m, X, Y: (X @ Y).sum(), (N, N), [(N, N)], EACH),
    "stack of 10 scalars": (lambda m, x: m.stack([x * k for k in range(N)]).sum(), (), [], EACH),
    "Rosenbrock, 10": (rosenbrock, (N,), [], EACH),
    "Runge-Kutta step": (runge_kutta, (N,), [(N, N), (N,)], EACH),
}


def numbers(*shape):
    return np.random.default_rng(len(shape)).uniform(0.1, 0.9, shape)


def gradient(tool, function, shapes):
    """A call that gives the gradient at an array."""
    m, leaf, constants = tool.namespace, tool.leaf, [tool.array(numbers(*shape)) for shape in shapes]

    def call(start):
        x = leaf(start)
        function(m, x, *constants).backward()
        return x.grad

    return call


def swept(tool, count, hooked, again):
    """A call that gives the gradient of the last of so many leaves, and seconds of backward."""
    leaves = [tool.leaf(numbers(N)) for _ in range(count)]
    if hooked == "leaf":
        leaves[0].register_hook(lambda g: None)

    def call():
        for x in leaves:
            x.grad = None
        for _ in range(1 + again):
            y = leaves[0] * 2.0
            if hooked == "result":
                y.register_hook(lambda g: None)
            for x in leaves[1:]:
                y = y + x * y
            total = y.sum()
            begin = thread_time()
            total.backward()
            end = thread_time()
        return leaves[-1].grad, end - begin

    return call


def grown(tool, steps=405):
    """A call that gives parameters after the steps, and seconds of ten early ones and of the last ten."""
    m, leaf, grad, A = tool.namespace, tool.leaf, tool.grad, tool.array(numbers(N))

    def call():
        w, times = leaf(numbers(N) / 2), []
        for _ in range(steps):
            times.append(thread_time())
            (g,) = grad(m.sum(m.sin(w) * w * A), w, create_graph=True)
            w = w - 0.01 * g
        times.append(thread_time())
        return w.detach(), times[15] - times[5], times[-1] - times[-11]

    return call


def kept(tool, records):
    """A call that gives the gradient of a sum of products, all of which are alive until they are summed."""
    leaf = tool.leaf

    def call():
        x = leaf(0.5)
        values = [x * x for _ in range(records // 2)]  # a constant would be one more entry of the tape
        total = values[0]
        for value in values:
            total = total + value
        total.backward()
        return x.grad

    return call


def agree(calls, what, *arguments):
    ours, theirs = (np.asarray(first(call(*arguments)).detach()) for call in calls.values())
    assert ours.shape == theirs.shape, f"{what}: shape {ours.shape}, torch's {theirs.shape}"
    assert difference(ours, theirs) <= TOLERANCE, f"{what}: {difference(ours, theirs):.1e} from torch's"


def first(result):
    return result[0] if type(result) is tuple else result


def both(pair):
    return "{:6.2f} ({:.2f})".format(*pair)


def functions(tools):
    print(f"small gradients: us per call, torch's over ours\n{'':26s}{'ours':>8s}{'torch':>8s}")
    found = []
    for name, (function, shape, constants, bar) in FUNCTIONS.items():
        calls = {tool.name: gradient(tool, function, constants) for tool in tools}
        turn, start = count(1), numbers(*shape)
        agree(calls, name, start)
        fresh = lambda start=start, turn=turn: (start * (1 + 1e-8 * next(turn)),)
        ours, theirs = in_turns(calls, ROUNDS, CALLS, fresh, clock=thread_time).values()
        found.append(ratios(theirs, ours)[:, 0])
        times = f"{1e6 * ours.min():8.1f}{1e6 * theirs.min():8.1f}"
        print(f"{name:26s}{times}{both(found[-1])}   {verdict(found[-1], bar)}", flush=True)
    mean = np.exp(np.mean(np.log(found), axis=0))
    print(f"{'geometric mean':42s}{both(mean)}   {verdict(mean, OVERALL)}", flush=True)


def sweeps(tools):
    print(f"\nbackward: us per sweep, torch's over ours\n{'':26s}{'ours':>8s}{'torch':>8s}")
    for name, kind in SWEEPS.items():
        calls = {tool.name: swept(tool, *kind) for tool in tools}
        agree(calls, name)
        times = in_turns(calls, ROUNDS * CALLS // kind[0], parts=itemgetter(slice(1, 2)), clock=thread_time)
        ours, theirs = (rows[:, 1] for rows in times.values())
        text = f"{name:26s}{1e6 * ours.min():8.1f}{1e6 * theirs.min():8.1f}"
        print(text + both(ratios(theirs, ours)), flush=True)


def history(tools):
    print("\na recorded gradient in each step: ms per step, early and late, late over early")
    calls = {tool.name: grown(tool) for tool in tools}
    agree(calls, "growing history")
    for name, rows in in_turns(calls, 7, parts=itemgetter(1, 2), clock=thread_time).items():
        early, late = rows[:, 1], rows[:, 2]
        pair = ratios(late, early)
        text = f"{name:26s}{100 * early.min():8.3f}{100 * late.min():8.3f}{both(pair)}"
        print(f"{text}   {verdict(pair, GROWTH, most=True)}" if name == tools[0].name else text, flush=True)


def values(tools, full):
    for records in (MANY, MOST) if full else (MANY,):
        calls = {tool.name: kept(tool, records) for tool in tools}
        agree(calls, f"{records:,} records")
        calls["few"] = kept(tools[0], FEW)
        inner = dict.fromkeys(calls, 1) | {"few": MANY // FEW}
        rounds = 5 if records == MANY else 2
        of = per_record(calls, rounds, inner, records)
        gc.disable()
        alone = {name: calls[name] for name in (tools[0].name, "few")}
        uncollected = per_record(alone, rounds, inner, records)
        gc.enable()
        ours, theirs = (of[tool.name] for tool in tools)
        print(f"\nvalues kept, {records:,} records: us per record {1e6 * ours.min():.2f}, ", end="")
        print(f"of {FEW:,} {1e6 * of['few'].min():.2f}, torch's {1e6 * theirs.min():.2f}")
        for title, others, bar in ((f"over {FEW:,}", of["few"], CLIFF), ("over torch's", theirs, OF_TORCH)):
            pair = ratios(ours, others)
            print(f"{title:42s}{both(pair)}   {verdict(pair, bar, most=True)}", flush=True)
        pair = ratios(uncollected[tools[0].name], uncollected["few"])
        print(f"{f'over {FEW:,}, both without looks for cycles':42s}{both(pair)}", flush=True)


def per_record(calls, rounds, inner, records):
    """Seconds per record of each call, by rounds."""
    times = in_turns(calls, rounds, inner, clock=thread_time)
    return {name: rows[:, 0] / (FEW if name == "few" else records) for name, rows in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help=f"also {MOST:,} records")
    full, tools = parser.parse_args().full, [Eager(), Torch()]
    functions(tools)
    sweeps(tools)
    history(tools)
    values(tools, full)


if __name__ == "__main__":
    main()
