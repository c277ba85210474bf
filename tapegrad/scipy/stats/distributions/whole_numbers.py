"""Distributions of whole numbers."""

from __future__ import annotations

import numpy as np
import scipy.special as sc

from tapegrad.core.base import decide
from tapegrad.scipy.stats.distributions.formulas import (
    Power,
    Powers,
    choose,
)
from tapegrad.tensor import TensorOrArray


class Discrete(Powers):
    """Of whole numbers; `logpdf` and `pdf` are of probabilities, `whole` parameters are constants."""

    whole: tuple[str, ...] = ()


class Bernoulli(Discrete):
    """Of 0 and 1."""

    at = (0.0, 0.5)

    def powers(self, k: TensorOrArray, p: TensorOrArray) -> list[Power]:
        """Powers."""
        return [(k, p, False), (1 - k, p, True)]

    def rest(self, k: TensorOrArray, p: TensorOrArray) -> float:
        """Logarithm of the rest."""
        return 0.0

    def cdf(self, k: TensorOrArray, p: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return np.where(k < 1, 1 - p, 1.0)

    def sf(self, k: TensorOrArray, p: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return np.where(k < 1, p, 0.0)


class Binom(Discrete):
    """Binomial."""

    at, whole = (0.0, 1.0, 0.5), ("n",)

    def powers(self, k: TensorOrArray, n: TensorOrArray, p: TensorOrArray) -> list[Power]:
        """Powers."""
        return [(k, p, False), (n - k, p, True)]

    def rest(self, k: TensorOrArray, n: TensorOrArray, p: TensorOrArray) -> TensorOrArray:
        """Logarithm of the rest."""
        return -sc.betaln(k + 1, n - k + 1) - np.log(n + 1)

    def cdf(self, k: TensorOrArray, n: TensorOrArray, p: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return sc.betaincc(k + 1, n - k, p)

    def sf(self, k: TensorOrArray, n: TensorOrArray, p: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return sc.betainc(k + 1, n - k, p)


class NBinom(Discrete):
    """Negative binomial."""

    at = (0.0, 1.0, 0.5)

    def powers(self, k: TensorOrArray, n: TensorOrArray, p: TensorOrArray) -> list[Power]:
        """Powers."""
        return [(n, p, False), (k, p, True)]

    def rest(self, k: TensorOrArray, n: TensorOrArray, p: TensorOrArray) -> TensorOrArray:
        """Logarithm of the rest."""
        return -sc.betaln(n, k + 1) - np.log(n + k)

    def cdf(self, k: TensorOrArray, n: TensorOrArray, p: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return sc.betainc(n, k + 1, p)

    def sf(self, k: TensorOrArray, n: TensorOrArray, p: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return sc.betaincc(n, k + 1, p)


class Poisson(Discrete):
    """Poisson's."""

    at = (0.0, 1.0)

    def powers(self, k: TensorOrArray, mu: TensorOrArray) -> list[Power]:
        """Power."""
        return [(k, mu, False)]

    def rest(self, k: TensorOrArray, mu: TensorOrArray) -> TensorOrArray:
        """Logarithm of the rest."""
        return -mu - sc.gammaln(k + 1)

    def cdf(self, k: TensorOrArray, mu: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return sc.pdtr(k, mu)

    def sf(self, k: TensorOrArray, mu: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return sc.pdtrc(k, mu)


class Geom(Discrete):
    """Geometric."""

    at = (1.0, 0.5)

    def powers(self, k: TensorOrArray, p: TensorOrArray) -> list[Power]:
        """Powers."""
        return [(1.0, p, False), (k - 1, p, True)]

    def rest(self, k: TensorOrArray, p: TensorOrArray) -> float:
        """Logarithm of the rest."""
        return 0.0

    def cdf(self, k: TensorOrArray, p: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return choose(
            decide(np.less, p, 0.5),
            lambda y: -np.expm1(np.log1p(-y) * k),
            lambda y: 1 - np.power(1 - y, k),
            p,
            0.5,
        )

    def sf(self, k: TensorOrArray, p: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return np.power(1 - p, k)

    def logsf(self, k: TensorOrArray, p: TensorOrArray) -> TensorOrArray:
        """Logarithm of the complement."""
        return k * np.log1p(-p)


class BetaBinom(Discrete):
    """Binomial, of a probability that is a beta variable."""

    at, whole = (0.0, 1.0, 1.0, 1.0), ("n",)

    def powers(self, k: TensorOrArray, n: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> list[Power]:
        """No powers."""
        return []

    def rest(self, k: TensorOrArray, n: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Logarithm of the probability."""
        return -np.log(n + 1) - sc.betaln(n - k + 1, k + 1) + sc.betaln(k + a, n - k + b) - sc.betaln(a, b)

    def pdf(self, k: TensorOrArray, n: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Probability."""
        return np.exp(self.rest(k, n, a, b))

    def cdf(self, k: TensorOrArray, n: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return self._sum(k, n, a, b, False)

    def sf(self, k: TensorOrArray, n: TensorOrArray, a: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return self._sum(k, n, a, b, True)

    def _sum(
        self, k: TensorOrArray, n: TensorOrArray, a: TensorOrArray, b: TensorOrArray, above: bool
    ) -> TensorOrArray:
        """The sum of the probabilities up to a number, or of those above."""
        total: TensorOrArray = np.zeros(())
        for j in range(int(np.max(n)) + 1):
            counts = (j <= n) & ((j > k) == above)
            if np.any(counts):
                total = total + np.where(counts, self.pdf(np.minimum(j, n), n, a, b), 0.0)
        return total
