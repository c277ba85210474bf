"""What one operation costs: chains of small bodies and small graphs, beside torch, HIPS autograd and NumPy.

    python -m tests.benchmarks.micro [--quick] [--peers torch autograd]

A chain repeats one step on ``z``; ``A`` is a constant of z's shape. Every round calls each
tool once, in turn, so that a disturbance of the machine meets all of them. A call records the chain,
sweeps it back and lets go of it; record and backward are timed inside that call, "both" is all of it.
Printed are medians over the rounds, in microseconds per operation of the chain, and ratios: the peer's
time over tapegrad's, once as the median of the rounds' ratios and once of the best times. A bar counts as
met or missed if both ratios say so; else the machine was too busy to tell.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import importlib
import sys
from functools import partial
from time import perf_counter

import numpy as np

import tapegrad as tg

from .rounds import in_turns, ratios

RTOL = 1e-12


def sines(m, z, A, steps):
    for _ in range(steps):
        z = m.sin(z) * A + A
    return z


def exponentials(m, z, A, steps):
    for _ in range(steps):
        z = m.exp(-z) * A + z
    return z


def products(m, z, A, steps):
    for _ in range(steps):
        z = z * A + A
    return z


CHAINS = {  # chain, operations a step
    "sin(z)*A+A": (sines, 3),
    "exp(-z)*A+z": (exponentials, 4),
    "z*A+A": (products, 2),
}
SIZES = {  # elements (0: scalar): steps, rounds, bar for both, bar for backward alone
    0: (300, 60, 4.0, 15.0),
    10: (300, 60, 3.0, 15.0),
    1_000: (300, 40, 2.0, None),
    100_000: (100, 12, 1.0, None),
    1_000_000: (30, 6, 1.0, None),
}


def eleven(m, x):
    return m.sin(x) * x + m.exp(-x) * x - m.tanh(x) * x + x * 0.5


GRAPHS = {  # function of the tool's namespace and x, elements, bar
    "x*x": (lambda m, x: x * x, 0, 2.5),
    "11 operations": (eleven, 0, 3.5),
    "11 operations, summed": (lambda m, x: m.sum(eleven(m, x)), 10, 3.0),
}


def operand(n, low, high, seed):
    """Random numbers of an interval: a float for n = 0, else an array."""
    values = np.random.default_rng(seed).uniform(low, high, max(n, 1))
    return values if n else float(values[0])


class Tapegrad:
    """tapegrad, on plain NumPy code."""

    name = "tapegrad"

    def __init__(self):
        self.namespace = np
        self.constant = tg.tensor
        self.leaf = partial(tg.tensor, requires_grad=True)
        self.grad = tg.grad

    def chain(self, function, steps, start, factor):
        """Return a call that gives (value, gradient, seconds of recording, seconds of backward)."""
        m, grad = self.namespace, self.grad
        x, A, seed = self.leaf(start), self.constant(factor), self.constant(np.ones(np.shape(start)))

        def call():
            begin = perf_counter()
            z = function(m, x, A, steps)
            recorded = perf_counter()
            (gradient,) = grad(z, x, seed)
            end = perf_counter()
            return z.detach(), gradient, recorded - begin, end - recorded

        return call

    def gradient(self, function, start):
        """Return a call that gives the gradient of a small graph."""
        m, grad, x = self.namespace, self.grad, self.leaf(start)
        return lambda: grad(function(m, x), x)[0]


class Torch(Tapegrad):
    """torch, with the same bodies on its own namespace."""

    name = "torch"

    def __init__(self):
        torch = importlib.import_module("torch")
        torch.set_num_threads(1)
        self.namespace = torch
        self.constant = partial(torch.tensor, dtype=torch.float64)
        self.leaf = partial(torch.tensor, dtype=torch.float64, requires_grad=True)
        self.grad = torch.autograd.grad


class Autograd:
    """HIPS autograd, on its wrapped NumPy."""

    name = "autograd"

    def __init__(self):
        autograd = importlib.import_module("autograd")
        self.namespace = importlib.import_module("autograd.numpy")
        self.make_vjp, self.grad = autograd.make_vjp, autograd.grad

    def chain(self, function, steps, start, factor):
        m, A, seed = self.namespace, np.asarray(factor)[()], np.ones(np.shape(start))[()]
        transform = self.make_vjp(lambda z: function(m, z, A, steps))

        def call():
            begin = perf_counter()
            sweep, value = transform(start)
            recorded = perf_counter()
            gradient = sweep(seed)
            end = perf_counter()
            return value, gradient, recorded - begin, end - recorded

        return call

    def gradient(self, function, start):
        grad = self.grad(partial(function, self.namespace))
        return lambda: grad(start)


class Bare:
    """NumPy itself: the chain's value, without a derivative."""

    name = "numpy"

    def chain(self, function, steps, start, factor):
        x, A = np.asarray(start)[()], np.asarray(factor)[()]

        def call():
            begin = perf_counter()
            z = function(np, x, A, steps)
            return z, None, perf_counter() - begin, 0.0

        return call


def agree(calls, what):
    """Stop unless all tools give the same value and gradient; returns the worst relative difference."""
    results = {name: call() for name, call in calls.items()}
    worst = 0.0
    for part, title in enumerate(("value", "gradient")):
        mine = np.asarray(results["tapegrad"][part])
        for name, result in results.items():
            if result[part] is None:
                continue
            other = np.asarray(result[part])
            with np.errstate(divide="ignore", invalid="ignore"):
                error = np.where(mine == other, 0.0, np.abs(mine - other) / np.abs(other))
            if mine.shape != other.shape or not np.all(error <= RTOL):
                sys.exit(f"{what}: the {title} by {name} differs from tapegrad's by {np.max(error):.1e}")
            worst = max(worst, float(np.max(error)))
    return worst


def parts(result):
    """Seconds of recording and of backward, where a call tells them."""
    return result[2:] if type(result) is tuple else (0.0, 0.0)


def verdict(pair, bar):
    reached = [ratio >= bar for ratio in pair]
    return f"bar {bar:g}x {'met' if all(reached) else 'unclear' if any(reached) else 'missed'}"


def chains(tools, sizes, scale):
    peers = [tool.name for tool in tools if tool.name in ("torch", "autograd")]
    for n in sizes:
        steps, rounds, bar, bar_backward = SIZES[n]
        rounds = max(3, int(rounds * scale))
        found = {peer: [] for peer in peers}
        print(f"\nn = {n or 'scalar'}: {steps} steps, {rounds} rounds; us per operation", flush=True)
        print(" " * 24 + f"{'record':>10s}{'backward':>10s}{'both':>10s}{'best':>10s}   ratio, of best")
        for name, (function, operations) in CHAINS.items():
            start, factor = operand(n, 0.1, 0.9, 1), operand(n, 0.4, 0.6, 2)
            calls = {tool.name: tool.chain(function, steps, start, factor) for tool in tools}
            worst = agree(calls, f"{name}, n = {n}")
            times = in_turns(calls, rounds, parts=parts)
            for tool, rows in times.items():
                scaled = 1e6 / (steps * operations) * rows
                both, record, backward = np.median(scaled, axis=0)
                text = f"{name if tool == 'tapegrad' else '':14s}{tool:10s}{record:10.3f}"
                text += f"{'-':>10s}{'-':>10s}" if tool == "numpy" else f"{backward:10.3f}{both:10.3f}"
                text += f"{scaled[:, 0].min():10.3f}"
                if tool in peers:
                    found[tool].append(ratios(rows, times["tapegrad"]))
                    text += "{:10.2f}{:9.2f}".format(*found[tool][-1][:, 0])
                print(text)
            print(f"{'':14s}largest relative difference {worst:.1e}", flush=True)
        for peer in peers:
            both, record, backward = np.exp(np.mean(np.log(found[peer]), axis=0)).T
            text = "record {:.2f} ({:.2f}), backward {:.2f} ({:.2f}), both {:.2f} ({:.2f})"
            text = text.format(*record, *backward, *both)
            print(f"  geometric mean, {peer}, ratio (of best): {text}")
            if peer == "torch":
                print(f"    both: {verdict(both, bar)}", end="")
                print(f"; backward alone: {verdict(backward, bar_backward)}" if bar_backward else "")


def graphs(tools, scale):
    """Small graphs: record and sweep together, as one call of grad."""
    tools = [tool for tool in tools if tool.name != "numpy"]
    inner, rounds = 200, max(5, int(40 * scale))
    print(f"\nsmall graphs, gradient in one call: us per call, {rounds} rounds of {inner}")
    print(f"{'':40s}{'median':>10s}{'best':>10s}   ratio, of best")
    for name, (function, n, bar) in GRAPHS.items():
        start = operand(n, 0.1, 0.9, 3)
        calls = {tool.name: tool.gradient(function, start) for tool in tools}
        agree({tool: lambda call=call: (0.0, call()) for tool, call in calls.items()}, name)
        times = in_turns(calls, rounds, inner)
        for tool, rows in times.items():
            scaled = 1e6 * rows
            label = f"{name}, {f'n = {n}' if n else 'scalar'}" if tool == "tapegrad" else ""
            text = f"{label:30s}{tool:10s}{np.median(scaled):10.2f}{scaled.min():10.2f}"
            if tool != "tapegrad":
                pair = ratios(rows, times["tapegrad"])[:, 0]
                text += "{:10.2f}{:9.2f}".format(*pair)
                text += f"   {verdict(pair, bar)}" if tool == "torch" else ""
            print(text, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="sizes up to 1000, a third of the rounds")
    parser.add_argument("--peers", nargs="*", default=["torch", "autograd"], choices=["torch", "autograd"])
    args = parser.parse_args()
    tools = [Tapegrad()]
    for kind in (Torch, Autograd):
        if kind.name in args.peers:
            try:
                tools.append(kind())
            except ImportError:
                print(f"{kind.name} is not installed: left out")
    tools.append(Bare())
    scale = 1 / 3 if args.quick else 1
    chains(tools, [n for n in SIZES if n <= 1000] if args.quick else SIZES, scale)
    graphs(tools, scale)


if __name__ == "__main__":
    main()
