"""Distributions on the whole line, and on the circle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.special as sc
import scipy.stats as _scipy

from tapegrad.core.base import decide
from tapegrad.func import custom_jvp
from tapegrad.numpy_api.tables import any_needs_derivative
from tapegrad.scipy.calls import refuse
from tapegrad.scipy.stats.distributions.formulas import (
    LOG_2,
    LOG_PI,
    LOG_ROOT_2PI,
    Formulas,
    choose,
    exponential,
    inverted,
)
from tapegrad.tensor import Operand, TensorOrArray

FAR = 1e9  # whose square adds nothing to 1


def _is_beyond(x: np.ndarray, large: float) -> Any:
    return np.abs(x) > large


def _is_far(x: np.ndarray, df: np.ndarray, large: float) -> Any:
    return np.abs(x) > large * np.sqrt(1 + df)


def _is_in_the_middle(q: np.ndarray) -> Any:
    return np.abs(q - 0.5) < 0.25


class Norm(Formulas):
    """Normal."""

    def logpdf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return -0.5 * (x * x) - LOG_ROOT_2PI

    def cdf(self, x: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return sc.ndtr(x)

    def sf(self, x: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return sc.ndtr(-x)

    def logcdf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the distribution function."""
        return sc.log_ndtr(x)

    def logsf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the complement."""
        return sc.log_ndtr(-x)

    def ppf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return sc.ndtri(q)

    def isf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return -sc.ndtri(q)


class T(Formulas):
    """Student's; by the degrees of freedom through the incomplete beta function."""

    at = (0.5, 3.0)

    def logpdf(self, x: TensorOrArray, df: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        normal = decide(np.isinf, df)
        v = np.where(normal, 1.0, df) if np.any(normal) else df
        far = decide(_is_far, x, v, FAR)
        ratio = choose(
            far, lambda y: 2 * np.log(np.abs(y)) - np.log(v), lambda y: np.log1p(y * y / v), x, 1.0
        )
        found = -sc.betaln(0.5, 0.5 * v) - 0.5 * np.log(v) - 0.5 * (v + 1) * ratio
        return np.where(normal, Norm().logpdf(x), found) if np.any(normal) else found

    def cdf(self, x: TensorOrArray, df: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        if not any_needs_derivative((df,)):
            return sc.stdtr(df, x)
        low = decide(np.less_equal, x, 0)
        tail = self._tail(np.where(low, -x, x), df)
        return np.where(low, tail, 1 - tail)

    def _tail(self, x: TensorOrArray, df: TensorOrArray) -> TensorOrArray:
        """What lies above a number that is not below 0, in one of both forms."""
        x = np.where(decide(np.less, x, 1e-150), x + 1e-150, x)  # at 0 the first form has a root
        square = x * x
        near = decide(np.less, square, df)
        part = np.where(near, square, df) / (df + square)
        by_near = 0.5 * sc.betaincc(0.5, 0.5 * df, np.where(near, part, 0.5))
        return np.where(near, by_near, 0.5 * sc.betainc(0.5 * df, 0.5, np.where(near, 0.5, part)))

    def sf(self, x: TensorOrArray, df: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return self.cdf(-x, df)

    def ppf(self, q: TensorOrArray, df: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        if any_needs_derivative((df,)):
            return _t_ppf(q, df)
        return np.where(decide(np.equal, q, 0), -1.0, 1.0) * sc.stdtrit(df, q)  # which gives inf for 0

    def isf(self, q: TensorOrArray, df: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return -self.ppf(q, df)


_t_ppf = inverted(T(), _scipy.t.ppf)


class Cauchy(Formulas):
    """Cauchy's."""

    def logpdf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        far = decide(_is_beyond, x, FAR)
        return choose(far, lambda y: -2 * np.log(np.abs(y)), lambda y: -np.log1p(y * y), x, FAR) - LOG_PI

    def cdf(self, x: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return np.arctan2(1.0, -x) / np.pi

    def sf(self, x: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return np.arctan2(1.0, x) / np.pi

    def ppf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        middle = decide(_is_in_the_middle, q)
        return choose(middle, lambda p: np.tan(np.pi * (p - 0.5)), self._far, q, 0.25)

    def _far(self, q: TensorOrArray) -> TensorOrArray:
        low = decide(np.less, q, 0.5)
        return np.where(low, -1.0, 1.0) / np.tan(np.pi * np.where(low, q, 1 - q))

    def isf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return -self.ppf(q)


class Laplace(Formulas):
    """Two exponential tails."""

    def logpdf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return -np.abs(x) - LOG_2

    def cdf(self, x: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        high = decide(np.greater, x, 0)
        tail = 0.5 * np.exp(np.where(high, -x, x))
        return np.where(high, 1 - tail, tail)

    def sf(self, x: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return self.cdf(-x)

    def logcdf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the distribution function."""
        return choose(
            decide(np.less_equal, x, 0), lambda y: y - LOG_2, lambda y: np.log1p(-0.5 * np.exp(-y)), x, 0.0
        )

    def logsf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the complement."""
        return self.logcdf(-x)

    def ppf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return choose(
            decide(np.less_equal, q, 0.5), lambda p: np.log(2 * p), lambda p: -np.log(2 * (1 - p)), q, 0.5
        )

    def isf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return -self.ppf(q)


class Logistic(Formulas):
    """Logistic."""

    def logpdf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return sc.log_expit(x) + sc.log_expit(-x)

    def cdf(self, x: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return sc.expit(x)

    def sf(self, x: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return sc.expit(-x)

    def logcdf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the distribution function."""
        return sc.log_expit(x)

    def logsf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the complement."""
        return sc.log_expit(-x)

    def ppf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return sc.logit(q)

    def isf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return -sc.logit(q)


class GumbelR(Formulas):
    """Of largest values."""

    def logpdf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return -x - np.exp(-x)

    def cdf(self, x: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return exponential(self.logcdf, (x,), self.at)

    def sf(self, x: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return exponential(self.logcdf, (x,), self.at, complement=True)

    def logcdf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the distribution function."""
        return -np.exp(-x)

    def ppf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return -np.log(-np.log(q))

    def isf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return -np.log(-np.log1p(-q))


class GumbelL(Formulas):
    """Of smallest values, the mirror image."""

    def logpdf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return GumbelR().logpdf(-x)

    def cdf(self, x: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return GumbelR().sf(-x)

    def sf(self, x: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return GumbelR().cdf(-x)

    def logsf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the complement."""
        return GumbelR().logcdf(-x)

    def ppf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return -GumbelR().isf(q)

    def isf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return -GumbelR().ppf(q)


def _skewnorm_cdf(x: TensorOrArray, a: TensorOrArray) -> TensorOrArray:
    return _scipy.skewnorm.cdf(x, a)


skewed = custom_jvp(_skewnorm_cdf)


@skewed.def_jvp
def _of_skewed(
    out: TensorOrArray, args: Sequence[TensorOrArray], tangents: Sequence[TensorOrArray | None]
) -> Operand:
    (x, a), (dx, da) = args, tangents
    by_a = -np.exp(-0.5 * (x * x) * (1 + a * a)) / (np.pi * (1 + a * a))
    found = 0.0 if dx is None else np.exp(SkewNorm().logpdf(x, a)) * dx
    return found if da is None else found + by_a * da


class SkewNorm(Formulas):
    """Skewed normal."""

    at = (0.5, 1.0)

    def logpdf(self, x: TensorOrArray, a: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return LOG_2 + Norm().logpdf(x) + sc.log_ndtr(a * x)

    def cdf(self, x: TensorOrArray, a: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return skewed(x, a)

    def sf(self, x: TensorOrArray, a: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return skewed(-x, -a)

    def ppf(self, q: TensorOrArray, a: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return _skewnorm_ppf(q, a)

    def isf(self, q: TensorOrArray, a: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return _skewnorm_isf(q, a)


_skewnorm_ppf = inverted(SkewNorm(), _scipy.skewnorm.ppf)
_skewnorm_isf = inverted(SkewNorm(), _scipy.skewnorm.isf, upper=True)


def _vonmises_cdf(x: TensorOrArray, kappa: TensorOrArray) -> TensorOrArray:
    return _scipy.vonmises.cdf(x, kappa)


turned = custom_jvp(_vonmises_cdf)


@turned.def_jvp
def _of_turned(
    out: TensorOrArray, args: Sequence[TensorOrArray], tangents: Sequence[TensorOrArray]
) -> TensorOrArray:
    return np.exp(VonMises().logpdf(*args)) * tangents[0]


class VonMises(Formulas):
    """On the circle."""

    at = (0.5, 1.0)

    def logpdf(self, x: TensorOrArray, kappa: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        half = np.sin(0.5 * x)
        return -2 * kappa * (half * half) - 2 * LOG_ROOT_2PI - np.log(sc.i0e(kappa))

    def cdf(self, x: TensorOrArray, kappa: TensorOrArray) -> TensorOrArray:
        """Distribution function; with no derivative by the concentration."""
        if any_needs_derivative((kappa,)):
            raise refuse("scipy.stats.vonmises.cdf", "has no derivative by kappa")
        return turned(x, kappa)

    def sf(self, x: TensorOrArray, kappa: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return 1 - self.cdf(x, kappa)


class GenNorm(Formulas):
    """Normal and Laplace's among others, by the power in the exponent."""

    at = (0.5, 1.5)

    def logpdf(self, x: TensorOrArray, beta: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return np.log(0.5 * beta) - sc.gammaln(1 / beta) - np.power(np.abs(x), beta)

    def cdf(self, x: TensorOrArray, beta: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        low = decide(np.less, x, 0)
        tail = 0.5 * sc.gammaincc(1 / beta, np.power(np.abs(x), beta))
        return np.where(low, tail, 1 - tail)

    def sf(self, x: TensorOrArray, beta: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return self.cdf(-x, beta)

    def ppf(self, q: TensorOrArray, beta: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        low = decide(np.less, q, 0.5)
        size = np.power(sc.gammainccinv(1 / beta, 2 * np.where(low, q, 1 - q)), 1 / beta)
        return np.where(low, -size, size)

    def isf(self, q: TensorOrArray, beta: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return -self.ppf(q, beta)


class JohnsonSU(Formulas):
    """Of the hyperbolic sine of a normal variable."""

    at = (0.5, 0.0, 1.0)

    def _normal(self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        return a + b * np.arcsinh(x)

    def logpdf(self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return np.log(b) - np.log(np.hypot(x, 1.0)) + Norm().logpdf(self._normal(x, a, b))

    def cdf(self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return sc.ndtr(self._normal(x, a, b))

    def sf(self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return sc.ndtr(-self._normal(x, a, b))

    def logcdf(self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Logarithm of the distribution function."""
        return sc.log_ndtr(self._normal(x, a, b))

    def logsf(self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Logarithm of the complement."""
        return sc.log_ndtr(-self._normal(x, a, b))

    def ppf(self, q: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return np.sinh((sc.ndtri(q) - a) / b)

    def isf(self, q: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return np.sinh((-sc.ndtri(q) - a) / b)
