"""What one operation costs: chains of small bodies, beside torch, HIPS autograd and NumPy.

    python -m tests.benchmarks.micro [--quick] [--peers torch autograd]

A chain repeats one step on ``z``, with a constant of z's shape: a Tensor, the same plain array in every step,
or a new array in each; for scalars a NumPy scalar. Every round calls each tool, in turn, on new arrays
with other values. A call makes the leaf, records the chain, sweeps it back and lets go of it; record and
backward are timed inside that call, "both" is all of it. Where gradients would underflow chains are
shorter, and a turn has several calls, of which the first finds the other tool's code and data in the
processor's cache. What is taken is the time of the one thread on the processor, which a busy machine disturbs
least. autograd and NumPy take part where constants are one array.

Printed are medians over the rounds, in microseconds per operation of the chain, the best of "both", and
ratios: the peer's time over tapegrad's, once as the median of the rounds' ratios and once of the best times.
Bars are for the geometric mean over the chains of torch's ratios; one counts as met or missed if both ratios
say so; else the machine was too busy to tell.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import sys
from contextlib import nullcontext
from itertools import count
from operator import itemgetter
from time import thread_time

import numpy as np

import tapegrad as tg

from .gradbench.tools import Autograd, Eager, Torch
from .rounds import in_turns, ratios, verdict


def sines(m, z, constants):
    for A in constants:
        z = m.sin(z) * A + A
    return z


def exponentials(m, z, constants):
    for A in constants:
        z = m.exp(-z) * A + z
    return z


def products(m, z, constants):
    for A in constants:
        z = z * A + A
    return z


CHAINS = {  # chain, operations a step
    "sin(z)*A+A": (sines, 3),
    "exp(-z)*A+z": (exponentials, 4),
    "z*A+A": (products, 2),
}
SIZES = {  # elements (0: scalar): steps, rounds, bars with Tensors and with arrays
    0: (300, 40, 8.0, 8.0),
    10: (300, 40, 5.0, 5.0),
    1_000: (300, 24, 2.5, 2.0),
    10_000: (100, 15, 0.95, 0.85),
    100_000: (30, 9, 0.95, 0.85),
    1_000_000: (10, 5, 0.95, 0.85),
}
LARGE, UNGUARDED = 10_000, 0.95  # from so many elements on arrays are also timed without a guard; its bar
BACKWARD = {0: 15.0, 10: 15.0}  # bars for backward alone
DTYPES = {  # tolerance, cotangent, steps after which gradients underflow
    "float64": (1e-12, 1.0, 300),
    "float32": (1e-3, 1e30, 100),
}
CONSTANTS = "Tensor", "same array", "new arrays"


def inputs(tool, constants, n, dtype, steps):
    """A function that gives a start, a cotangent and the steps' constants; without a tool all are NumPy's."""
    random, numbers = np.random.default_rng(1), count(1)
    real, shape = np.dtype(dtype).type, n or ()
    start, factor = (np.asarray(random.uniform(*ends, shape), dtype)[()] for ends in ((0.1, 0.9), (0.4, 0.6)))
    seed = np.full(shape, DTYPES[dtype][1], dtype)[()]
    if tool is not None:
        seed = tool.leaf(seed).detach()

    def constant(k):
        array = np.asarray(factor * real(1 + 1e-4 * k))
        if constants == "Tensor":
            return tool.leaf(array).detach()
        array = array if tool is None else tool.array(array)
        return array if n else array[()]

    def given():
        k = next(numbers) % 100
        each = [constant(k + j) for j in range(steps)] if constants == "new arrays" else [constant(k)] * steps
        return start * real(1 - 1e-4 * k), seed, each

    return given


def recorded(tool, function):
    """A call that gives (value, gradient, seconds of recording, seconds of backward)."""
    m, leaf, grad = tool.namespace, tool.leaf, tool.grad

    def call(start, seed, constants):
        begin = thread_time()
        x = leaf(start)
        z = function(m, x, constants)
        middle = thread_time()
        (gradient,) = grad(z, x, seed)
        end = thread_time()
        return z.detach(), gradient, middle - begin, end - middle

    return call


def by_autograd(tool, function):
    """As `recorded`, by HIPS autograd."""
    m, make_vjp = tool.namespace, tool.make_vjp

    def call(start, seed, constants):
        begin = thread_time()
        sweep, value = make_vjp(lambda z: function(m, z, constants))(start)
        middle = thread_time()
        gradient = sweep(seed)
        end = thread_time()
        return value, gradient, middle - begin, end - middle

    return call


def bare(function):
    """As `recorded`, the value by NumPy, without a derivative."""

    def call(start, seed, constants):
        begin = thread_time()
        return function(np, start, constants), None, thread_time() - begin, 0.0

    return call


def agree(calls, given, tolerance, what):
    """Stop unless all tools give the same value and gradient; returns the worst relative difference."""
    results = {name: call(*given[name]()) for name, call in calls.items()}
    worst = 0.0
    for part, title in enumerate(("value", "gradient")):
        mine = np.asarray(results["tapegrad"][part])
        for name, result in results.items():
            if result[part] is None:
                continue
            other = np.asarray(result[part])
            with np.errstate(divide="ignore", invalid="ignore"):
                error = np.where(mine == other, 0.0, np.abs(mine - other) / np.abs(other))
            if mine.shape != other.shape or not np.all(error <= tolerance):
                sys.exit(f"{what}: the {title} by {name} differs from tapegrad's by {np.max(error):.1e}")
            worst = max(worst, float(np.max(error)))
    return worst


def table(n, dtype, kind, guard, peers, scale):
    """Print the times of the chains on one kind of operands; returns lines with the geometric means."""
    steps, rounds, *bars = SIZES[n]
    tolerance, _, most = DTYPES[dtype]
    turn, steps = steps, min(steps, most)
    rounds, plain = max(3, int(rounds * scale)), kind != "Tensor"
    tools = {"tapegrad": Eager(), **{name: tool for name, tool in peers.items() if name == "torch"}}
    title = f"{f'n = {n}' if n else 'scalars'}, {dtype}, {kind}{', no guard' if guard == 'off' else ''}"
    print(f"\n{title}: {steps} steps, {rounds} rounds; us per operation", flush=True)
    print(" " * 24 + f"{'record':>10s}{'backward':>10s}{'both':>10s}{'best':>10s}   ratio, of best")
    found = {}
    for name, (function, operations) in CHAINS.items():
        calls = {label: recorded(tool, function) for label, tool in tools.items()}
        given = {label: inputs(tool, kind, n, dtype, steps) for label, tool in tools.items()}
        if kind == "same array" and dtype == "float64" and guard is None:
            others = {"numpy": bare(function)}
            if "autograd" in peers:
                others["autograd"] = by_autograd(peers["autograd"], function)
            calls |= others
            given |= {label: inputs(None, kind, n, dtype, steps) for label in others}
        with tg.guard(guard) if guard else nullcontext():
            worst = agree(calls, given, tolerance, f"{name}, {title}")
            times = in_turns(
                calls, rounds, turn // steps, arguments=given, parts=itemgetter(2, 3), clock=thread_time
            )
        for label, rows in times.items():
            scaled = 1e6 / (steps * operations) * rows
            both, record, backward = np.median(scaled, axis=0)
            text = f"{name if label == 'tapegrad' else '':14s}{label:10s}{record:10.3f}"
            text += f"{'-':>10s}{'-':>10s}" if label == "numpy" else f"{backward:10.3f}{both:10.3f}"
            text += f"{scaled[:, 0].min():10.3f}"
            if label in peers:
                found.setdefault(label, []).append(ratios(rows, times["tapegrad"]))
                text += "{:10.2f}{:9.2f}".format(*found[label][-1][:, 0])
            print(text)
        print(f"{'':14s}largest relative difference {worst:.1e}", flush=True)
    lines = []
    for peer, of_chains in found.items():
        both, record, backward = np.exp(np.mean(np.log(of_chains), axis=0)).T
        text = "both {:.2f} ({:.2f}), record {:.2f} ({:.2f}), backward {:.2f} ({:.2f})"
        line = f"{title}: {peer} " + text.format(*both, *record, *backward)
        if peer == "torch":
            line += f"   {verdict(both, UNGUARDED if guard else bars[plain])}"
            line += f", backward alone {verdict(backward, BACKWARD[n])}" if n in BACKWARD else ""
        print(f"  geometric mean, {line}")
        lines.append(line)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="sizes up to 1000, a third of the rounds")
    parser.add_argument("--peers", nargs="*", default=["torch", "autograd"], choices=["torch", "autograd"])
    args = parser.parse_args()
    peers = {}
    for kind in (Torch, Autograd):
        if kind.name in args.peers:
            try:
                peers[kind.name] = kind()
            except ImportError:
                print(f"{kind.name} is not installed: left out")
    lines = []
    for n in SIZES:
        if args.quick and n > 1000:
            continue
        for dtype in DTYPES:
            for kind in CONSTANTS:
                for guard in (None, "off") if n >= LARGE and kind != "Tensor" else (None,):
                    lines += table(n, dtype, kind, guard, peers, 1 / 3 if args.quick else 1)
    print("\ngeometric means over the chains", *lines, sep="\n  ")


if __name__ == "__main__":
    main()
