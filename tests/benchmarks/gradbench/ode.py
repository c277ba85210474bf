"""A chain of ordinary differential equations by Runge and Kutta's method (GradBench's ``ode``).

    y_0' = x_0,  y_i' = x_i y_(i-1),  y(0) = 0,

from time 0 to 2 in equal steps of the fourth order; x are n uniform numbers.

GradBench differentiates the last component of y(2). So few steps do not reach it, or it underflows, so its
gradient is zero: nothing would be checked, and sweeps that stop at zeros would have nothing to do. Here it
is the sum of all components, so that all have cotangents.
"""

import numpy as np

import tapegrad as tg

from .problem import Problem

END = 2.0


def inputs(n, steps, seed):
    return (np.random.default_rng(seed).uniform(size=n),), (steps,)


def step(m, x, y, h):
    one = m.ones(1)

    def rate(y):
        return x * m.concatenate([one, y[:-1]])

    k1 = rate(y)
    k2 = rate(y + h / 2 * k1)
    k3 = rate(y + h / 2 * k2)
    k4 = rate(y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def value(m, x, steps):
    y = m.zeros(len(x))
    for _ in range(steps):
        y = step(m, x, y, END / steps)
    return m.sum(y)


def scanned(jax, x, steps):
    m = jax.numpy
    y, _ = jax.lax.scan(lambda y, _: (step(m, x, y, END / steps), None), m.zeros(len(x)), None, steps)
    return m.sum(y)


@tg.njit
def compiled(x, steps):
    n, h = x.size, END / steps
    y = np.zeros(n)
    k1, k2 = np.empty(n), np.empty(n)
    k3, k4 = np.empty(n), np.empty(n)
    k1[:1] = k2[:1] = k3[:1] = k4[:1] = x[:1]
    for _ in range(steps):
        k1[1:] = x[1:] * y[:-1]
        k2[1:] = x[1:] * (y[:-1] + h / 2 * k1[:-1])
        k3[1:] = x[1:] * (y[:-1] + h / 2 * k2[:-1])
        k4[1:] = x[1:] * (y[:-1] + h * k3[:-1])
        y += h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return np.sum(y)


PROBLEM = Problem(
    sizes={"tiny": (6, 3), "S": (1_000, 10), "M": (10_000, 10), "L": (100_000, 100)},
    inputs=inputs, value=value, compiled=compiled, scanned=scanned,
)  # fmt: skip
