"""Derivatives of derivatives: recorded gradients, orders of a chain and of a network, Hessian products.

    python -m tests.benchmarks.higher

A call makes its leaves, records, sweeps and lets go. The chain is of 15 operations on a number; its
derivative of order n is n sweeps, all but the last recorded. A history that is kept, on one tape or on
several, has its gradient recorded again and again. Of the network u, 1-32-32-1, the n sweeps are all
recorded. A PINN's step is the gradient, by the weights, of the mean square of u_xx + u u_x - sin x at 256
points. A Hessian product is the gradient of a gradient along a direction, written so, or one call of
`tg.func.hvp`, beside that of torch written so, and over one of `tg.func.grad` in the same rounds. Of
Rosenbrock's function of 100 numbers there is the whole Hessian, too, beside `torch.func.hessian`. Results
are compared with torch's first, then each round calls both in turn. What is taken is the time of the one
thread on the processor. Printed are best times and the first over the second, as the median of the rounds'
ratios and in brackets that of the best times.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

from functools import partial
from time import thread_time

import numpy as np

import tapegrad as tg

from .gradbench import gmm
from .gradbench.tools import Eager, Torch
from .rounds import difference, in_turns, ratios, verdict
from .small import eleven

TOLERANCE = 1e-9
ROUNDS, TURN = 15, 2e-3  # seconds that a turn takes at least
ORDERS = (1, 2, 3, 4, 6)
RECORD = 3e-6  # seconds
RECORDED, CHAIN, GROWTH, NETWORK, PINN, PRODUCT, MIXTURE, HESSIAN, OVER_GRADIENT = (
    0.35, 0.4, 3.3, 0.7, 1.1, 1.25, 1.0, 1.0, 2.5,
)  # fmt: skip
random = np.random.default_rng(0)


def normal(*shape):
    return random.normal(size=shape) / np.sqrt(shape[0])


def chain(m, x):
    for _ in range(5):
        x = m.sin(x) * x + x
    return x


def recorded(tool, start):
    """The gradient of 11 operations, with a history."""
    m, ones = tool.namespace, tool.array(np.ones(start.shape))

    def call():
        x = tool.leaf(start)
        return tool.grad(eleven(m, x), x, ones, create_graph=True)

    return call


def order(tool, n):
    """The derivative of order n of a chain of 15 operations on a number."""

    def call():
        x = tool.leaf(0.5)
        y = chain(tool.namespace, x)
        for _ in range(n - 1):
            (y,) = tool.grad(y, x, create_graph=True)
        return tool.grad(y, x)

    return call


def kept(tool, n):
    """The recorded gradient of a history of so many operations, made before."""
    x = tool.leaf(0.5)
    y = x
    for _ in range(n // 3):
        y = y * 0.999 + x * 0.001
    return lambda: tool.grad(y, x, create_graph=True)


WEIGHTS = [normal(1, 32), normal(32, 32), normal(32, 1), 0.3 * normal(32), 0.3 * normal(32), normal(1)]


def network(m, x, P):
    h = m.tanh(x @ P[0] + P[3])
    h = m.tanh(h @ P[1] + P[4])
    return h @ P[2] + P[5]


def order_of_network(tool, n):
    """The derivative of order n of a network by its argument, recorded."""
    P = [tool.array(w) for w in WEIGHTS]

    def call():
        x = tool.leaf(np.array([0.3]))
        y = network(tool.namespace, x, P)[0]
        for _ in range(n):
            (g,) = tool.grad(y, x, create_graph=True)
            y = g[0]
        return (y.detach(),)

    return call


def residual(tool):
    """The gradient of a PINN's residual by the weights."""
    m, points = tool.namespace, np.linspace(-1, 1, 256)[:, None]

    def call():
        P, x = [tool.leaf(w) for w in WEIGHTS], tool.leaf(points)
        u = network(m, x, P)
        (slope,) = tool.grad(m.sum(u), x, create_graph=True)
        (curvature,) = tool.grad(m.sum(slope), x, create_graph=True)
        return tool.grad(m.mean((curvature + u * slope - m.sin(x)) ** 2), P)

    return call


def along(tool, loss, start, direction):
    """The product of a Hessian and a direction, and the gradient."""
    v = [tool.array(d) for d in direction]

    def call():
        P = [tool.leaf(w) for w in start]
        g = tool.grad(loss(tool.namespace, *P), P, create_graph=True)
        return tool.grad(g, P, v)

    def gradient():
        P = [tool.leaf(w) for w in start]
        return tool.grad(loss(tool.namespace, *P), P)

    return call, gradient


def by_func(loss, start, direction):
    """As `along`, of tapegrad, each a call of a function."""
    places, v = tuple(range(len(start))), tuple(direction)
    product, slope = (of(partial(loss, np), places) for of in (tg.func.hvp, tg.func.grad))
    return lambda: product(*start, v), lambda: slope(*start)


def perceptron(tool):
    """The loss of a network 64-256-256-1 at 100 points, its weights, a direction."""
    x, y = (tool.array(random.normal(size=(100, n))) for n in (64, 1))
    weights = [normal(64, 256), normal(256, 256), normal(256, 1)]

    def loss(m, a, b, c):
        return m.mean((m.tanh(m.tanh(x @ a) @ b) @ c - y) ** 2)

    return loss, weights, [random.normal(size=w.shape) for w in weights]


def mixture(tool):
    """GradBench's mixture of Gaussians of size M, its variables, a direction."""
    variables, data = gmm.inputs(*gmm.PROBLEM.sizes["M"], seed=0)
    given = [tool.given(d) for d in data]
    return (
        lambda m, *P: gmm.value(m, *P, *given),
        variables,
        [random.normal(size=v.shape) for v in variables],
    )


def rosenbrock(tool):
    """Rosenbrock's function of 100 numbers, where they are, a direction."""
    return (
        lambda m, x: m.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2),
        [random.uniform(0.5, 1.5, 100)],
        [random.normal(size=100)],
    )


def matrix(start, loss):
    """Its Hessian, ours and torch's."""
    torch = Torch().namespace
    ours, theirs = tg.func.hessian(partial(loss, np)), torch.func.hessian(partial(loss, torch))
    (x,) = start
    given = torch.from_numpy(x)
    return lambda: [ours(x)], lambda: [theirs(given)]


def plain(part):
    return np.asarray(part.detach() if hasattr(part, "detach") else part)


def compare(what, calls, bar, alike=True):
    """Time two calls in turn, the first over the second, which gives the same; the first one's best time."""
    ours, theirs = ([plain(part) for part in call()] for call in calls)
    for mine, other in zip(ours, theirs, strict=True) if alike else ():
        assert mine.shape == other.shape, f"{what}: shape {mine.shape}, torch's {other.shape}"
        assert difference(mine, other) <= TOLERANCE, f"{what}: {difference(mine, other):.1e} from torch's"
    inner = {}
    for k, call in enumerate(calls):
        begin = thread_time()
        call()
        inner[k] = max(1, int(TURN / max(thread_time() - begin, 1e-6)))
    ours, theirs = (
        rows[:, 0] for rows in in_turns(dict(enumerate(calls)), ROUNDS, inner, clock=thread_time).values()
    )
    pair = ratios(ours, theirs)
    told = "" if bar is None else verdict(pair, bar, most=True)
    best = f"{1e6 * ours.min():10.1f}{1e6 * theirs.min():10.1f}"
    print(f"{what:38s}{best}{pair[0]:7.2f} ({pair[1]:.2f})   {told}", flush=True)
    return ours.min()


def main():
    tools = Eager(), Torch()
    print(f"us per call, ours over torch's\n{'':38s}{'ours':>10s}{'torch':>10s}")
    start = np.linspace(0.1, 1, 10)
    time = compare("11 operations, recorded", [recorded(tool, start) for tool in tools], RECORDED)
    records = len(tg.diagnostics.Graph(recorded(tools[0], start)()).records)
    told = "met" if time <= RECORD * records else "missed"
    print(
        f"    us a record, of {records}{1e6 * time / records:28.2f}             bar {1e6 * RECORD:g} {told}"
    )
    times = {
        n: compare(f"chain, order {n}", [order(tool, n) for tool in tools], CHAIN if n > 1 else None)
        for n in ORDERS
    }
    growth = [times[2] / times[1], times[3] / times[2], times[4] / times[3], np.sqrt(times[6] / times[4])]
    told = "met" if max(growth) <= GROWTH else "missed"
    print(f"growth per order {' '.join(f'{g:.2f}' for g in growth)}   bar {GROWTH:g}x {told}")
    for n in (3_000, 30_000):
        time = compare(f"kept history of {n}, recorded", [kept(tool, n) for tool in tools], CHAIN)
        print(f"    us an operation{1e6 * time / n:29.2f}")
    for n in range(1, 7):
        compare(f"network, order {n}", [order_of_network(tool, n) for tool in tools], NETWORK)
    compare("PINN's step", [residual(tool) for tool in tools], PINN)
    for what, make, bar in (
        ("network 64-256-256-1", perceptron, PRODUCT),
        ("mixture of Gaussians, M", mixture, MIXTURE),
        ("Rosenbrock-100", rosenbrock, None),
    ):
        state = random.bit_generator.state
        made = []
        for tool in tools:
            random.bit_generator.state = state
            made.append(make(tool))
        ours, theirs = (along(tool, *each) for tool, each in zip(tools, made, strict=True))
        func = by_func(*made[0])
        compare(f"Hessian product, {what}", [ours[0], theirs[0]], bar)
        compare(f"gradient, {what}", [ours[1], theirs[1]], None)
        compare("    by func.hvp", [func[0], theirs[0]], bar)
        compare("    func.hvp over func.grad", func, OVER_GRADIENT, alike=False)
    loss, start, _ = rosenbrock(tools[0])
    compare("Hessian, Rosenbrock-100", matrix(start, loss), HESSIAN)


if __name__ == "__main__":
    main()
