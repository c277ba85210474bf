"""Arrays in compiled code: value and gradient of programs of whole arrays, in one call from Python.

Each is timed in turns with Tensors, with its value in NumPy, with jax.jit where jax is installed, and the
heat equation with its gradient written by hand for Numba; best of several runs on one thread. Gradients are
compared with those of Tensors first.

    python -m tests.benchmarks.native_arrays
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import os
from functools import partial
from itertools import pairwise

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import numpy as np
from numba import njit

import tapegrad as tg

from .rounds import in_turns


def expression(np, x, y):
    return np.sum(np.exp(x) * y + np.tanh(x) * 2.0)


def heat(np, u, c):
    u = u + 0.0
    for _ in range(500):
        u[1:-1] = u[1:-1] + c * (u[2:] - 2.0 * u[1:-1] + u[:-2])
    return np.sum(u * u)


def runge_kutta(np, x, a):
    h = 0.01
    for _ in range(1000):
        k1 = np.tanh(a @ x) + 0.1
        k2 = np.tanh(a @ (x + 0.5 * h * k1)) + 0.1
        k3 = np.tanh(a @ (x + 0.5 * h * k2)) + 0.1
        k4 = np.tanh(a @ (x + h * k3)) + 0.1
        x = x + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
    return np.sum(x)


def perceptron(np, x, w1, b1, w2, b2, w3, b3):
    """A step of training: 64-256-256-1, a batch of 100."""
    h = np.tanh(x @ w1 + b1)
    h = np.tanh(h @ w2 + b2)
    r = h @ w3 + b3
    return np.sum(r * r)


@njit
def heat_by_hand(u, c):
    """The value of `heat` and its derivatives; of each step's u the derivative by c is found."""
    n, steps = u.size, 500
    states = np.empty((steps + 1, n))
    states[0] = u
    for k in range(steps):
        u, new = states[k], states[k + 1]
        new[0], new[n - 1] = u[0], u[n - 1]
        for i in range(1, n - 1):
            new[i] = u[i] + c * (u[i + 1] - 2.0 * u[i] + u[i - 1])
    by_u, before, by_c, value = 2.0 * states[steps], np.empty(n), 0.0, 0.0
    for x in states[steps]:
        value += x * x
    for k in range(steps - 1, -1, -1):
        u = states[k]
        for i in range(1, n - 1):
            by_c += by_u[i] * (u[i + 1] - 2.0 * u[i] + u[i - 1])
        for i in range(2, n - 2):
            before[i] = by_u[i] + c * (by_u[i + 1] - 2.0 * by_u[i] + by_u[i - 1])
        before[0], before[n - 1] = by_u[0] + c * by_u[1], by_u[n - 1] + c * by_u[n - 2]
        before[1] = by_u[1] + c * (by_u[2] - 2.0 * by_u[1])
        before[n - 2] = by_u[n - 2] + c * (by_u[n - 3] - 2.0 * by_u[n - 2])
        by_u, before = before, by_u
    return value, (by_u, by_c)


def heat_of_jax(jax):
    def step(_, state):
        u, c = state
        inner = u[1:-1] + c * (u[2:] - 2.0 * u[1:-1] + u[:-2])
        return u.at[1:-1].set(inner), c

    def program(u, c):
        u, _ = jax.lax.fori_loop(0, 500, step, (u, c))
        return (u * u).sum()

    return program


def runge_kutta_of_jax(jax):
    tanh, h = jax.numpy.tanh, 0.01

    def step(_, state):
        x, a = state
        k1 = tanh(a @ x) + 0.1
        k2 = tanh(a @ (x + 0.5 * h * k1)) + 0.1
        k3 = tanh(a @ (x + 0.5 * h * k2)) + 0.1
        k4 = tanh(a @ (x + h * k3)) + 0.1
        return x + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4), a

    return lambda x, a: jax.lax.fori_loop(0, 1000, step, (x, a))[0].sum()


def cases():
    """Each program, its form for jax, its operands, and the places of those that have derivatives."""
    for n in (10, 1000, 100_000):
        x, y = np.linspace(-1, 1, n), np.linspace(0.5, 2, n)
        yield f"expression, n={n}", expression, lambda jax: partial(expression, jax.numpy), (x, y), (0, 1)
    for n in (10, 100, 10_000):
        yield f"heat, 500 steps, n={n}", heat, heat_of_jax, (np.sin(np.arange(n)), 0.1), (0, 1)
    random = np.random.default_rng(0)
    sizes = (64, 256, 256, 1)
    layers = [(random.normal(size=(m, n)) / m**0.5, random.normal(size=n)) for m, n in pairwise(sizes)]
    weights = [part for layer in layers for part in layer]
    batch = random.normal(size=(100, 64))
    yield "perceptron", perceptron, lambda jax: partial(perceptron, jax.numpy), (batch, *weights), range(1, 7)
    matrix = 0.3 * np.cos(np.arange(100.0)).reshape(10, 10)
    yield "runge_kutta, 1000 steps, n=10", runge_kutta, runge_kutta_of_jax, (np.ones(10), matrix), (0, 1)


def of_numpy(program):
    """The program compiled, its first argument a global as users have it."""
    space = {"np": np}
    lines = inspect.getsource(program).replace("(np, ", "(")
    exec(lines, space)
    return tg.njit(space[program.__name__])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--only", help="programs whose names begin so")
    args = parser.parse_args()
    jax = None
    if importlib.util.find_spec("jax"):
        import jax

        jax.config.update("jax_enable_x64", True)
    heads = f"{'us':>12}{'/ Tensors':>12}{'/ NumPy value':>15}{'/ jax.jit':>12}{'/ by hand':>12}"
    print(f"{'value and gradient':32}{heads}")
    for name, program, of_jax, operands, places in cases():
        if args.only and not name.startswith(args.only):
            continue
        call = tg.func.value_and_grad(of_numpy(program), tuple(places))
        ways = {"ours": lambda call=call, v=operands: call(*v)}
        tensors = [tg.tensor(v, requires_grad=k in places) for k, v in enumerate(operands)]
        leaves = [tensors[k] for k in places]
        ways["tensors"] = lambda p=program, t=tensors, x=leaves: tg.grad(p(np, *t), x)
        ways["numpy"] = lambda p=program, v=operands: p(np, *v)
        if jax:
            gradient = jax.jit(jax.value_and_grad(of_jax(jax), tuple(places)))
            given = [jax.numpy.asarray(v) for v in operands]
            ways["jax"] = lambda g=gradient, v=given: jax.block_until_ready(g(*v))
        if program is heat:
            ways["hand"] = lambda v=operands: heat_by_hand(*v)
        for way in ways.keys() & {"ours", "hand"}:
            for found, expected in zip(ways[way]()[1], ways["tensors"](), strict=True):
                np.testing.assert_allclose(found, expected.numpy(), rtol=1e-9, atol=1e-9)
        inner = max(1, int(0.002 / in_turns({"ours": ways["ours"]}, 2)["ours"].min()))
        times = in_turns(ways, args.repeat, {way: 1 if way == "tensors" else inner for way in ways})
        best = {way: rows.min() for way, rows in times.items()}
        ratios = [best["ours"] / best.get(way, np.nan) for way in ("tensors", "numpy", "jax", "hand")]
        text = f"{ratios[0]:12.3f}{ratios[1]:15.2f}{ratios[2]:12.2f}{ratios[3]:12.2f}"
        print(f"{name:32}{1e6 * best['ours']:12.1f}{text}")


if __name__ == "__main__":
    main()
