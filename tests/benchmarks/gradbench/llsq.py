"""A polynomial fitted to the sign function by least squares (GradBench's ``llsq``).

    f(x) = 1/2 sum_i (s_i - sum_j x_j t_i^j)^2,  s_i = sign t_i,

with n points t_i, evenly spaced from -1 to 1, and m coefficients x_j. The powers are part of what is timed.
"""

import numpy as np

import tapegrad as tg

from .problem import Problem


def inputs(n, m, seed):
    t = np.linspace(-1, 1, n)
    return (np.random.default_rng(seed).normal(size=m),), (t, np.sign(t))


def value(m, x, t, s):
    r = s - m.vander(t, len(x), increasing=True) @ x
    return 0.5 * m.sum(r * r)


@tg.njit
def compiled(x, t, s):
    powers = np.empty((x.size, t.size))
    powers[0] = 1.0
    for j in range(1, x.size):
        for i in range(t.size):
            powers[j, i] = powers[j - 1, i] * t[i]
    r = s - x @ powers
    return 0.5 * np.sum(r * r)


PROBLEM = Problem(
    sizes={"tiny": (5, 4), "S": (16, 128), "M": (1_024, 128), "L": (16_392, 128)},
    inputs=inputs, value=value, compiled=compiled,
)  # fmt: skip
