"""Polygamma functions, the derivatives of the logarithm of the gamma function, as Numba compiles them."""

from __future__ import annotations

import math

BERNOULLI = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330
)  # fmt: skip


def polygamma(order: float, x: float) -> float:
    """Return the derivative of this order of digamma: steps upwards, then the asymptotic series.

    At poles, and below -1e6, where the steps would be too many, nan.
    """
    if x < -1e6 or (x <= 0.0 and x == math.floor(x)):
        return math.nan
    factorial, sign = 1.0, -1.0
    for k in range(int(order)):
        factorial *= k + 1.0
        sign = -sign
    total = 0.0
    while x < 15.0 + order:
        total += sign * factorial / x ** (order + 1.0)
        x += 1.0
    if order == 0.0:
        series, power = math.log(x) - 0.5 / x, 1.0
        for k in range(len(BERNOULLI)):
            power /= x * x
            series -= BERNOULLI[k] * power / (2.0 * k + 2.0)
        return total + series
    power = factorial / order / x**order
    series = power + power * order / (2.0 * x)
    for k in range(1, len(BERNOULLI) + 1):
        power *= (2.0 * k + order - 1.0) * (2.0 * k + order - 2.0) / (2.0 * k * (2.0 * k - 1.0) * x * x)
        series += BERNOULLI[k - 1] * power
    return total + sign * series
