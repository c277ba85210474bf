"""The logarithm of a sum of exponentials (GradBench's ``lse``).

    f(x) = a + log sum_i exp(x_i - a),  a = max x,

of n uniform numbers; its gradient is ``exp(x - f(x))``. Written with elementary functions only.
"""

import math

import numpy as np

import tapegrad as tg

from .problem import Problem


def inputs(n, seed):
    return (np.random.default_rng(seed).uniform(size=n),), ()


def value(m, x):
    a = m.max(x)
    return a + m.log(m.sum(m.exp(x - a)))


@tg.njit
def compiled(x):
    a = np.max(x)
    return a + math.log(np.sum(np.exp(x - a)))


PROBLEM = Problem(
    sizes={"tiny": (7,), "S": (2_500,), "M": (160_000,), "L": (1_280_000,)},
    inputs=inputs, value=value, compiled=compiled,
    rtol=1e-6,  # the largest element's derivative is p of 1 - sum(p) + p, where p is 1 / n
)  # fmt: skip
