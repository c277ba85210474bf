"""Distributions on the numbers above one."""

from __future__ import annotations

import numpy as np
import scipy.special as sc
import scipy.stats as _scipy

from tapegrad.core.base import decide
from tapegrad.scipy.stats.distributions.formulas import (
    LOG_2,
    LOG_PI,
    LOG_ROOT_2PI,
    ROOT_2,
    Formulas,
    Power,
    Powers,
    choose,
    exponential,
    inverted,
)
from tapegrad.scipy.stats.distributions.line import Cauchy, Norm
from tapegrad.tensor import TensorOrArray


class Expon(Formulas):
    """Exponential."""

    def logpdf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return -x

    def cdf(self, x: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return -np.expm1(-x)

    def sf(self, x: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return np.exp(-x)

    def logsf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the complement."""
        return -x

    def ppf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return -np.log1p(-q)

    def isf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return -np.log(q)


class Gamma(Powers):
    """Gamma."""

    at = (0.5, 1.5)

    def powers(self, x: TensorOrArray, a: TensorOrArray) -> list[Power]:
        """Power."""
        return [(a - 1, x, False)]

    def rest(self, x: TensorOrArray, a: TensorOrArray) -> TensorOrArray:
        """Logarithm of the rest."""
        return -x - sc.gammaln(a)

    def cdf(self, x: TensorOrArray, a: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return sc.gammainc(a, x)

    def sf(self, x: TensorOrArray, a: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return sc.gammaincc(a, x)

    def ppf(self, q: TensorOrArray, a: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return sc.gammaincinv(a, q)

    def isf(self, q: TensorOrArray, a: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return sc.gammainccinv(a, q)


class Chi2(Powers):
    """Chi squared."""

    at = (0.5, 3.0)

    def powers(self, x: TensorOrArray, df: TensorOrArray) -> list[Power]:
        """Power."""
        return [(0.5 * df - 1, x, False)]

    def rest(self, x: TensorOrArray, df: TensorOrArray) -> TensorOrArray:
        """Logarithm of the rest."""
        return -0.5 * x - sc.gammaln(0.5 * df) - 0.5 * LOG_2 * df

    def cdf(self, x: TensorOrArray, df: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return sc.chdtr(df, x)

    def sf(self, x: TensorOrArray, df: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return sc.chdtrc(df, x)

    def ppf(self, q: TensorOrArray, df: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return 2 * sc.gammaincinv(0.5 * df, q)

    def isf(self, q: TensorOrArray, df: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return sc.chdtri(df, q)


class InvGamma(Formulas):
    """Of the reciprocal of a gamma variable."""

    at, opened = (0.5, 1.5), True

    def logpdf(self, x: TensorOrArray, a: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return -(a + 1) * np.log(x) - sc.gammaln(a) - 1 / x

    def cdf(self, x: TensorOrArray, a: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return sc.gammaincc(a, 1 / x)

    def sf(self, x: TensorOrArray, a: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return sc.gammainc(a, 1 / x)

    def ppf(self, q: TensorOrArray, a: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return 1 / sc.gammainccinv(a, q)

    def isf(self, q: TensorOrArray, a: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return 1 / sc.gammaincinv(a, q)


class F(Powers):
    """Fisher's."""

    at = (0.5, 3.0, 4.0)

    def powers(self, x: TensorOrArray, n: TensorOrArray, m: TensorOrArray) -> list[Power]:
        """Power."""
        return [(0.5 * n - 1, x, False)]

    def rest(self, x: TensorOrArray, n: TensorOrArray, m: TensorOrArray) -> TensorOrArray:
        """Logarithm of the rest."""
        ratio = n / m
        return 0.5 * n * np.log(ratio) - 0.5 * (n + m) * np.log1p(ratio * x) - sc.betaln(0.5 * n, 0.5 * m)

    def cdf(self, x: TensorOrArray, n: TensorOrArray, m: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return sc.betainc(0.5 * n, 0.5 * m, n * x / (m + n * x))

    def sf(self, x: TensorOrArray, n: TensorOrArray, m: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return sc.betainc(0.5 * m, 0.5 * n, m / (m + n * x))

    def ppf(self, q: TensorOrArray, n: TensorOrArray, m: TensorOrArray) -> TensorOrArray:
        """Inverse, by the smaller of both parts."""
        below, above = sc.betaincinv(0.5 * n, 0.5 * m, q), sc.betainccinv(0.5 * m, 0.5 * n, q)
        return self._of_parts(below, above, n, m)

    def isf(self, q: TensorOrArray, n: TensorOrArray, m: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        below, above = sc.betainccinv(0.5 * n, 0.5 * m, q), sc.betaincinv(0.5 * m, 0.5 * n, q)
        return self._of_parts(below, above, n, m)

    def _of_parts(
        self, below: TensorOrArray, above: TensorOrArray, n: TensorOrArray, m: TensorOrArray
    ) -> TensorOrArray:
        low = decide(np.less, below, 0.5)
        small = np.where(low, below, 0.0)
        large = np.where(low, 0.5, above)
        return m / n * np.where(low, small / (1 - small), (1 - large) / large)


class LogNorm(Formulas):
    """Of the exponential of a normal variable."""

    at, opened = (0.5, 1.0), True

    def logpdf(self, x: TensorOrArray, s: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        log = np.log(x)
        return Norm().logpdf(log / s) - np.log(s) - log

    def cdf(self, x: TensorOrArray, s: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return sc.ndtr(np.log(x) / s)

    def sf(self, x: TensorOrArray, s: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return sc.ndtr(-np.log(x) / s)

    def logcdf(self, x: TensorOrArray, s: TensorOrArray) -> TensorOrArray:
        """Logarithm of the distribution function."""
        return sc.log_ndtr(np.log(x) / s)

    def logsf(self, x: TensorOrArray, s: TensorOrArray) -> TensorOrArray:
        """Logarithm of the complement."""
        return sc.log_ndtr(-np.log(x) / s)

    def ppf(self, q: TensorOrArray, s: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return np.exp(s * sc.ndtri(q))

    def isf(self, q: TensorOrArray, s: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return np.exp(-s * sc.ndtri(q))


class WeibullMin(Powers):
    """Weibull's."""

    at = (0.5, 1.5)

    def powers(self, x: TensorOrArray, c: TensorOrArray) -> list[Power]:
        """Power."""
        return [(c - 1, x, False)]

    def rest(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Logarithm of the rest."""
        return np.log(c) - np.power(x, c)

    def cdf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return -np.expm1(-np.power(x, c))

    def sf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return np.exp(-np.power(x, c))

    def logsf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Logarithm of the complement."""
        return -np.power(x, c)

    def ppf(self, q: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return np.power(-np.log1p(-q), 1 / c)

    def isf(self, q: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return np.power(-np.log(q), 1 / c)


class WeibullMax(Powers):
    """The mirror image."""

    at = (-0.5, 1.5)

    def powers(self, x: TensorOrArray, c: TensorOrArray) -> list[Power]:
        """Power."""
        return WeibullMin().powers(-x, c)

    def rest(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Logarithm of the rest."""
        return WeibullMin().rest(-x, c)

    def cdf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return WeibullMin().sf(-x, c)

    def sf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return WeibullMin().cdf(-x, c)

    def logcdf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Logarithm of the distribution function."""
        return WeibullMin().logsf(-x, c)

    def ppf(self, q: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return -WeibullMin().isf(q, c)

    def isf(self, q: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return -WeibullMin().ppf(q, c)


class Pareto(Formulas):
    """Pareto's."""

    at = (1.5, 1.5)

    def logpdf(self, x: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return np.log(b) - (b + 1) * np.log(x)

    def cdf(self, x: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return -np.expm1(-b * np.log(x))

    def sf(self, x: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return np.power(x, -b)

    def logsf(self, x: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Logarithm of the complement."""
        return -b * np.log(x)

    def ppf(self, q: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return np.exp(-np.log1p(-q) / b)

    def isf(self, q: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return np.power(q, -1 / b)


class Rayleigh(Powers):
    """Rayleigh's."""

    def powers(self, x: TensorOrArray) -> list[Power]:
        """Power."""
        return [(1.0, x, False)]

    def rest(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the rest."""
        return -0.5 * (x * x)

    def cdf(self, x: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return -np.expm1(-0.5 * (x * x))

    def sf(self, x: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return np.exp(-0.5 * (x * x))

    def logsf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the complement."""
        return -0.5 * (x * x)

    def ppf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return np.sqrt(-2 * np.log1p(-q))

    def isf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return np.sqrt(-2 * np.log(q))


class Maxwell(Powers):
    """Maxwell's."""

    def powers(self, x: TensorOrArray) -> list[Power]:
        """Power."""
        return [(2.0, x, False)]

    def rest(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the rest."""
        return 0.5 * (LOG_2 - LOG_PI) - 0.5 * (x * x)

    def cdf(self, x: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return sc.gammainc(1.5, 0.5 * (x * x))

    def sf(self, x: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return sc.gammaincc(1.5, 0.5 * (x * x))

    def ppf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return np.sqrt(2 * sc.gammaincinv(1.5, q))

    def isf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return np.sqrt(2 * sc.gammainccinv(1.5, q))


class HalfNorm(Formulas):
    """Of the size of a normal variable."""

    def logpdf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return 0.5 * (LOG_2 - LOG_PI) - 0.5 * (x * x)

    def cdf(self, x: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return sc.erf(x / ROOT_2)

    def sf(self, x: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return 2 * sc.ndtr(-x)

    def logsf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the complement."""
        return LOG_2 + sc.log_ndtr(-x)

    def ppf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return ROOT_2 * sc.erfinv(q)

    def isf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return ROOT_2 * sc.erfcinv(q)


class HalfCauchy(Formulas):
    """Of the size of a Cauchy variable."""

    def logpdf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return Cauchy().logpdf(x) + LOG_2

    def cdf(self, x: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return 2 / np.pi * np.arctan(x)

    def sf(self, x: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return 2 / np.pi * np.arctan2(1.0, x)

    def ppf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return choose(decide(np.less, q, 0.5), self._low, lambda p: 1 / self._low(1 - p), q, 0.5)

    def isf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return choose(decide(np.less, q, 0.5), lambda p: 1 / self._low(p), lambda p: self._low(1 - p), q, 0.5)

    def _low(self, q: TensorOrArray) -> TensorOrArray:
        return np.tan(0.5 * np.pi * q)


class InvGauss(Formulas):
    """Of the time at which a moving particle comes somewhere."""

    at, opened = (0.5, 1.0), True

    def logpdf(self, x: TensorOrArray, mu: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        off = x / mu - 1
        return -LOG_ROOT_2PI - 1.5 * np.log(x) - off * off / (2 * x)

    def _logs(self, x: TensorOrArray, mu: TensorOrArray, sign: int) -> tuple[TensorOrArray, TensorOrArray]:
        root = 1 / np.sqrt(x)
        return sc.log_ndtr(sign * root * (x / mu - 1)), 2 / mu + sc.log_ndtr(-root * (x / mu + 1))

    def logcdf(self, x: TensorOrArray, mu: TensorOrArray) -> TensorOrArray:
        """Logarithm of the distribution function."""
        a, b = self._logs(x, mu, 1)
        return a + np.log1p(np.exp(b - a))

    def logsf(self, x: TensorOrArray, mu: TensorOrArray) -> TensorOrArray:
        """Logarithm of the complement."""
        a, b = self._logs(x, mu, -1)
        return a + np.log1p(-np.exp(b - a))

    def cdf(self, x: TensorOrArray, mu: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return exponential(self.logcdf, (x, mu), self.at)

    def sf(self, x: TensorOrArray, mu: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return exponential(self.logsf, (x, mu), self.at)

    def ppf(self, q: TensorOrArray, mu: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return _invgauss_ppf(q, mu)

    def isf(self, q: TensorOrArray, mu: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return _invgauss_isf(q, mu)


_invgauss_ppf = inverted(InvGauss(), _scipy.invgauss.ppf)
_invgauss_isf = inverted(InvGauss(), _scipy.invgauss.isf, upper=True)
