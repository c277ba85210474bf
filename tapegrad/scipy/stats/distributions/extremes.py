"""Distributions of extremes (largest values, what exceeds a threshold) and of lifetimes.

Those of extremes are exponentials of powers of ``1 - u``, with ``u`` the product of the shape c and the
number; where c is 0 that is a limit. Near it quotients by c are power series, so that derivatives by c are
those of the limit.
"""

from __future__ import annotations

import numpy as np

from tapegrad.core.base import decide
from tapegrad.scipy.stats.distributions.formulas import Formulas, Power, Powers, choose, exponential
from tapegrad.scipy.stats.distributions.line import GumbelR
from tapegrad.tensor import TensorOrArray

NEAR = 0.05  # to 0, where series are taken: their last term is 1e-19 of the first there
TERMS = np.arange(1.0, 16)
LOGARITHM, GROWTH = 1 / TERMS, 1 / np.cumprod(TERMS)


def _is_near(u: np.ndarray) -> np.ndarray:
    return np.abs(u) < NEAR


def _is_below_zero(c: np.ndarray) -> np.ndarray:
    return c < 0


def _is_far_above(u: np.ndarray) -> np.ndarray:
    return u > 0.5


def _series(u: TensorOrArray, factors: np.ndarray) -> TensorOrArray:
    found: TensorOrArray = factors[-1] + 0.0 * u
    for factor in factors[-2::-1].tolist():
        found = found * u + factor
    return found


def _log_ratio(u: TensorOrArray) -> TensorOrArray:
    """``-log(1 - u) / u``, which is 1 at 0."""
    return choose(decide(_is_near, u), lambda v: _series(v, LOGARITHM), lambda v: -np.log1p(-v) / v, u, NEAR)


def _growth(y: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
    """``(exp(c y) - 1) / c``, which is y where c is 0."""
    end = decide(np.isinf, y)
    if np.any(end):
        shrinks = decide(_is_below_zero, c * np.sign(y))
        limit = np.where(shrinks, -1 / np.where(shrinks, c, 1.0), y)
        return np.where(end, limit, _growth(np.where(end, 0.5, y), c))
    near = decide(_is_near, c * y)
    if np.all(near):
        return y * _series(c * y, GROWTH)
    far = np.expm1(c * y) / np.where(near, 1.0, c)
    return np.where(near, y * _series(np.where(near, c * y, 0.0), GROWTH), far)


def _power(x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
    """``(1 - c x)**(1 / c)``, which is ``exp(-x)`` where c is 0; at an end of the support with its slope."""
    u = c * x
    far = decide(_is_far_above, u)
    found = np.exp(-x * _log_ratio(np.where(far, 0.0, u)))
    if not np.any(far):
        return found
    return np.where(far, np.power(np.where(far, 1 - u, 1.0), 1 / np.where(far, c, 1.0)), found)


class GenExtreme(Formulas):
    """Of largest values; c has the sign that SciPy gives it."""

    at, opened = (0.5, 0.1), True

    def logpdf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return (c - 1) * (x * _log_ratio(c * x)) - _power(x, c)

    def cdf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return exponential(self.logcdf, (x, c), self.at)

    def sf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return exponential(self.logcdf, (x, c), self.at, complement=True)

    def logcdf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Logarithm of the distribution function."""
        return -_power(x, c)

    def ppf(self, q: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return _growth(GumbelR().ppf(q), -c)

    def isf(self, q: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return _growth(GumbelR().isf(q), -c)


class GenPareto(Formulas):
    """Of what exceeds a threshold."""

    at = (0.5, 0.1)

    def logpdf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return (c + 1) * self.logsf(x, c)

    def cdf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        far = decide(_is_far_above, -c * x)
        near = -np.expm1(self.logsf(*(np.where(far, at, y) for y, at in zip((x, c), self.at, strict=True))))
        return np.where(far, 1 - self.sf(x, c), near) if np.any(far) else near

    def sf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return _power(x, -c)

    def logsf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Logarithm of the complement."""
        return -x * _log_ratio(-c * x)

    def ppf(self, q: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return _growth(-np.log1p(-q), c)

    def isf(self, q: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return _growth(-np.log(q), c)


class Gompertz(Formulas):
    """Of lifetimes whose hazard grows exponentially."""

    at = (0.5, 1.0)

    def logpdf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return np.log(c) + x - c * np.expm1(x)

    def cdf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return exponential(self.logsf, (x, c), self.at, complement=True)

    def sf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return exponential(self.logsf, (x, c), self.at)

    def logsf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Logarithm of the complement."""
        return -c * np.expm1(x)

    def ppf(self, q: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return np.log1p(-np.log1p(-q) / c)

    def isf(self, q: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return np.log1p(-np.log(q) / c)


class Fisk(Powers):
    """Of the exponential of a logistic variable."""

    at = (0.5, 1.5)

    def powers(self, x: TensorOrArray, c: TensorOrArray) -> list[Power]:
        """Power."""
        return [(c - 1, x, False)]

    def rest(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Logarithm of the rest."""
        return np.log(c) - 2 * np.log1p(np.power(x, c))

    def cdf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        power = np.power(x, c)
        return power / (1 + power)

    def sf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return 1 / (1 + np.power(x, c))

    def logsf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Logarithm of the complement."""
        return -np.log1p(np.power(x, c))

    def ppf(self, q: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return np.power(q / (1 - q), 1 / c)

    def isf(self, q: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return np.power((1 - q) / q, 1 / c)
