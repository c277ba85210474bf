"""Distributions between two numbers."""

from __future__ import annotations

import numpy as np
import scipy.special as sc

from tapegrad.core.base import decide
from tapegrad.scipy.stats.distributions.formulas import (
    Formulas,
    Power,
    Powers,
)
from tapegrad.scipy.stats.distributions.line import Norm
from tapegrad.tensor import TensorOrArray


class Beta(Powers):
    """Beta."""

    at = (0.5, 1.5, 1.5)

    def powers(self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> list[Power]:
        """Powers."""
        return [(a - 1, x, False), (b - 1, x, True)]

    def rest(self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Logarithm of the rest."""
        return -sc.betaln(a, b)

    def cdf(self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return sc.betainc(a, b, x)

    def sf(self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return sc.betaincc(a, b, x)

    def ppf(self, q: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return sc.betaincinv(a, b, q)

    def isf(self, q: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return sc.betainccinv(a, b, q)


class Uniform(Formulas):
    """Uniform."""

    def logpdf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return 0.0 * x

    def cdf(self, x: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return x

    def sf(self, x: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return 1 - x

    def ppf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return q

    def isf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return 1 - q


class Triang(Formulas):
    """Triangular; at its top the derivatives are those of the falling side, or of the only one."""

    at = (0.25, 0.5)

    def _sides(self, x: TensorOrArray, c: TensorOrArray) -> tuple[np.ndarray, TensorOrArray, TensorOrArray]:
        """Where it rises; distances from the end of that side, and its length."""
        low = decide(np.less, x, c) | decide(np.equal, c, 1)
        return low, np.where(low, x, 1 - x), np.where(low, c, 1 - c)

    def logpdf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return np.log(self.pdf(x, c))

    def pdf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Density."""
        _, distance, length = self._sides(x, c)
        return 2 * distance / length

    def cdf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        low, distance, length = self._sides(x, c)
        part = distance * distance / length
        return np.where(low, part, 1 - part)

    def sf(self, x: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Complement."""
        low, distance, length = self._sides(x, c)
        part = distance * distance / length
        return np.where(low, 1 - part, part)

    def ppf(self, q: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        low = decide(np.less, q, c) | decide(np.equal, c, 1)
        side = np.sqrt(np.where(low, c * q, (1 - c) * (1 - q)))
        return np.where(low, side, 1 - side)

    def isf(self, q: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return 1 - self.ppf(q, 1 - c)


class TruncNorm(Formulas):
    """Normal between two numbers; where both are above 0 by the mirror image, whose tail has digits."""

    at = (0.5, 0.0, 1.0)

    def _mirrored(
        self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray
    ) -> tuple[np.ndarray, TensorOrArray, TensorOrArray, TensorOrArray]:
        high = decide(np.greater, a, 0)
        if not np.any(high):
            return high, x, a, b
        return high, np.where(high, -x, x), np.where(high, -b, a), np.where(high, -a, b)

    def _mass(self, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Logarithm of what lies between, of an `a` that is not above 0."""
        top = sc.log_ndtr(b)
        return top + np.log(-np.expm1(sc.log_ndtr(a) - top))

    def logpdf(self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        _, x, a, b = self._mirrored(x, a, b)
        return Norm().logpdf(x) - self._mass(a, b)

    def _parts(
        self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray
    ) -> tuple[TensorOrArray, TensorOrArray]:
        """What lies below and above, of an `a` that is not above 0."""
        bottom, here, top = (sc.log_ndtr(y) for y in (a, x, b))
        whole = np.expm1(bottom - top)
        return np.exp(here - top) * np.expm1(bottom - here) / whole, np.expm1(here - top) / whole

    def cdf(self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        high, x, a, b = self._mirrored(x, a, b)
        below, above = self._parts(x, a, b)
        return np.where(high, above, below)

    def sf(self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Complement."""
        high, x, a, b = self._mirrored(x, a, b)
        below, above = self._parts(x, a, b)
        return np.where(high, below, above)

    def _inverse(
        self, q: TensorOrArray, rest: TensorOrArray, a: TensorOrArray, b: TensorOrArray
    ) -> TensorOrArray:
        """Of what lies below, of an `a` that is not above 0; `rest` is 1 - q."""
        top = sc.log_ndtr(b)
        below = sc.log_ndtr(a) - top
        low = decide(np.less, q, 0.5)
        near = np.log1p(np.where(low, 0.0, rest) * np.expm1(below))
        inner = np.log(np.exp(below) - np.where(low, q, 1.0) * np.expm1(below))
        return sc.ndtri_exp(top + np.where(low, inner, near))

    def ppf(self, q: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        high, _, a, b = self._mirrored(q, a, b)
        found = self._inverse(np.where(high, 1 - q, q), np.where(high, q, 1 - q), a, b)
        return np.where(high, -found, found)

    def isf(self, q: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return -self.ppf(q, -b, -a)


class LogUniform(Formulas):
    """Of a number whose logarithm is uniform."""

    at = (1.5, 1.0, 2.0)

    def logpdf(self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        return -np.log(x) - np.log(np.log(b) - np.log(a))

    def cdf(self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return (np.log(x) - np.log(a)) / (np.log(b) - np.log(a))

    def sf(self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return (np.log(b) - np.log(x)) / (np.log(b) - np.log(a))

    def ppf(self, q: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return np.exp((1 - q) * np.log(a) + q * np.log(b))

    def isf(self, q: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return np.exp((1 - q) * np.log(b) + q * np.log(a))
