"""Whole steps of programs, as their users write them, beside torch: from fresh leaves to their gradients.

    python -m tests.benchmarks.steps [--only NAME ...]

Data are plain arrays (torch has tensors of them); parameters are other numbers in each call, and making the
leaves and letting the graph go is in the times. A logistic regression of 10,000 rows and 64 columns, also
with the guard of arrays off, and without the two more times that the guard reads the data; 20 leapfrog steps
of Hamiltonian Monte Carlo for 1,000 rows and 10 columns; a convolution as a gather and einsum; a perceptron
64-64-64-1 at 10,000 rows, also beside its gradient written by hand with the same calls of NumPy; the
likelihood of a Gaussian process at 300 points, through cholesky. Values and gradients are compared with
torch's first, then each round calls all in turn, on one thread whose time on the processor is taken. Printed
are best times in milliseconds and ratios of ours to theirs, as the median of the rounds' ratios and in
brackets that of the best times.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
from functools import partial
from itertools import count, pairwise
from time import thread_time

import numpy as np

import tapegrad as tg

from .gradbench.tools import Eager, Torch
from .rounds import difference, in_turns, ratios, verdict

TOLERANCE = 1e-9
SECONDS = 6  # of one program's rounds, about
BY_HAND = 1.25  # bar for a gradient's time over that of the same calls of NumPy


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def logistic(m, w, X, y):
    z = X @ w
    return m.mean(m.logaddexp(z * 0.0, z) - y * z) + 0.01 * m.sum(w * w)


def energy(m, q, X, y):
    z = X @ q
    return m.sum(m.logaddexp(z * 0.0, z) - y * z) + 0.5 * m.sum(q * q)


def leapfrog(tool, start, X, y, p, steps=20, size=0.01):
    """The position at the end, and its energy; a gradient in each step."""
    m, q = tool.namespace, start
    for k in range(steps + 1):
        at = tool.leaf(q)
        value = energy(m, at, X, y)
        (g,) = tool.grad(value, [at])
        g = np.asarray(g.detach())
        p = p - (size if 0 < k < steps else size / 2) * g
        if k < steps:
            q = q + size * p
    return np.asarray(value.detach()), q, p


def convolution(m, kernel, images, places):
    patches = images[:, places]  # images, places of the result, places of the kernel
    return m.mean(m.tanh(m.einsum("npk,kc->npc", patches, kernel)) ** 2)


def perceptron(m, W1, b1, W2, b2, W3, b3, X, y):
    h = m.tanh(m.tanh(X @ W1 + b1) @ W2 + b2)
    return m.mean((h @ W3 + b3 - y) ** 2)


def perceptron_by_hand(W1, b1, W2, b2, W3, b3, X, y):
    """Value and gradients, with the calls that the derivatives need."""
    h1 = np.tanh(X @ W1 + b1)
    h2 = np.tanh(h1 @ W2 + b2)
    r = h2 @ W3 + b3 - y
    g3 = r * (2 / r.size)
    g2 = (g3 @ W3.T) * (1 - h2 * h2)
    g1 = (g2 @ W2.T) * (1 - h1 * h1)
    return np.mean(r**2), X.T @ g1, g1.sum(0), h1.T @ g2, g2.sum(0), h2.T @ g3, g3.sum(0)


def likelihood(m, theta, squares, y, eye):
    scale, length, noise = m.exp(theta[0]), m.exp(theta[1]), m.exp(theta[2])
    K = scale * m.exp(-0.5 * squares / length**2) + noise * eye
    L = m.linalg.cholesky(K)
    alpha = m.linalg.solve(K, y)
    return 0.5 * (y * alpha).sum() + m.log(m.diagonal(L)).sum()


def places_of(width, size):
    """For each place of the result the flat places of the image under the kernel."""
    rows, columns = np.divmod(np.arange((width - size + 1) ** 2), width - size + 1)
    inner = np.arange(size)
    under = (inner[:, None] * width + inner).ravel()
    return (rows * width + columns)[:, None] + under


def gaussian_process(n=300):
    x = np.sort(numbers(n))
    return [np.array([0.1, -0.3, -2.0])], [(x[:, None] - x) ** 2, np.sin(3 * x), np.eye(n)]


def labels(n):
    return (numbers(n, seed=9) > 0).astype(float)


def layers(*sizes):
    pairs = enumerate(pairwise(sizes))
    return [a for k, (i, j) in pairs for a in (numbers(i, j, seed=k) / np.sqrt(i), 0.1 * numbers(j, seed=k))]


STEPS = {  # function, parameters, data, bar for our time over torch's
    "logistic": (logistic, [0.1 * numbers(64)], [numbers(10_000, 64), labels(10_000)], 1.2),
    "leapfrog": (leapfrog, [0.1 * numbers(10)], [numbers(1000, 10), labels(1000), numbers(10, seed=3)], 1.0),
    "convolution": (convolution, [numbers(25, 8) / 5], [numbers(64, 28 * 28), places_of(28, 5)], 1.0),
    "perceptron": (
        perceptron, layers(64, 64, 64, 1), [numbers(10_000, 64), numbers(10_000, 1, seed=5)], 1.4,
    ),
    "Gaussian process": (likelihood, *gaussian_process(), 1.5),
}  # fmt: skip


def step(tool, function, data):
    """A call that gives value and gradients at parameters."""
    data = [tool.array(a) for a in data]
    if function is leapfrog:
        return lambda start: leapfrog(tool, start, *data[:2], np.asarray(data[2]))

    def call(*parameters):
        leaves = [tool.leaf(p) for p in parameters]
        value = function(tool.namespace, *leaves, *data)
        return value.detach(), *tool.grad(value, leaves)

    return call


def unguarded(call):
    def guardless(*parameters):
        with tg.guard("off"):
            return call(*parameters)

    return guardless


def calls_of(name, tools):
    """Calls by their titles; and which is compared with which other, with the bar."""
    function, _, data, bar = STEPS[name]
    calls = {tool.name: step(tool, function, data) for tool in tools}
    bars = [("eager", "torch", bar)]
    if function is logistic:
        calls["guard off"] = unguarded(calls["eager"])
        bars.append(("guard off", "torch", 1.0))
    if function is perceptron:
        calls["by hand"] = partial(by_hand, data)
        bars.append(("eager", "by hand", BY_HAND))
    return calls, bars


def by_hand(data, *parameters):
    return perceptron_by_hand(*parameters, *data)


def measure(name, tools):
    parameters = STEPS[name][1]
    calls, bars = calls_of(name, tools)
    expected = [np.asarray(a) for a in calls["torch"](*parameters)]
    for title, call in calls.items():
        for one, another in zip(call(*parameters), expected, strict=True):
            apart = difference(np.asarray(one).reshape(another.shape), another)
            assert apart <= TOLERANCE, f"{name}, {title}: {apart:.1e} from torch's"
    if "guard off" in calls:
        data = STEPS[name][2][0]
        calls["reading the data twice"] = lambda *_: (data.max(), data.max())
    begin, turn = thread_time(), count(1)
    for call in calls.values():
        call(*parameters)
    rounds = max(5, int(SECONDS / (thread_time() - begin)))
    fresh = lambda: tuple(p * (1 + 1e-8 * next(turn)) for p in parameters)
    times = in_turns(calls, rounds, 1, fresh, clock=thread_time)
    print(name, *(f"{title} {1e3 * rows.min():.2f}" for title, rows in times.items()), sep="   ")
    for ours, theirs, bar in bars:
        pair = ratios(times[ours], times[theirs])[:, 0]
        text = verdict(pair, bar, most=True)
        print(f"    {ours} over {theirs:10s}{pair[0]:6.2f} ({pair[1]:.2f})   {text}", flush=True)
    if "guard off" in calls:
        rest = np.median((times["eager"] - times["reading the data twice"]) / times["torch"])
        print(f"    eager without that reading over torch {rest:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS))
    tools = [Eager(), Torch()]
    for name in parser.parse_args().only:
        measure(name, tools)


if __name__ == "__main__":
    main()
