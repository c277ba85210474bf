"""Distributions by their densities, distribution functions and inverses, of standardised numbers.


Numbers lie in the support. Each is stated in functions that Tensors differentiate. What is left out follows
from the rest: a density is the exponential of its logarithm, and a logarithm that of the smaller tail.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import scipy.special as sc
import scipy.stats as _scipy

from tapegrad.core.base import Operand, TensorOrArray, value_of
from tapegrad.func import custom_jvp, jvp
from tapegrad.numpy_api.tables import any_follows
from tapegrad.scipy.calls import refuse

LOG_2, LOG_PI, ROOT_2 = np.log(2.0), np.log(np.pi), np.sqrt(2.0)
LOG_ROOT_2PI = 0.5 * np.log(2 * np.pi)

Smooth: TypeAlias = Callable[[TensorOrArray], TensorOrArray]
Power: TypeAlias = tuple[Operand, TensorOrArray, bool]  # exponent, y, whether it is of 1 - y


def choose(low: np.ndarray, first: Smooth, second: Smooth, x: TensorOrArray, between: float) -> TensorOrArray:
    """``first(x)`` where `low` holds, else ``second(x)``, neither evaluated beyond `between`."""
    if np.all(low):
        return first(x)
    if not np.any(low):
        return second(x)
    return np.where(low, first(np.where(low, x, between)), second(np.where(low, between, x)))


def without(
    places: np.ndarray, operands: Sequence[Operand], others: Sequence[Operand]
) -> list[TensorOrArray]:
    """Operands, with others at places that do not count, so that no infinite slope comes from there."""
    return [np.where(places, other, x) for x, other in zip(operands, others, strict=True)]


def exponential(
    log: Callable[..., TensorOrArray],
    operands: Sequence[TensorOrArray],
    at: Sequence[Operand],
    complement: bool = False,
) -> TensorOrArray:
    """The exponential of a function, or 1 less that; its derivative is 0 where that is 0."""
    found = log(*operands)
    none = value_of(found) == -np.inf
    if np.any(none):
        found = log(*without(none, operands, at))
    found = -np.expm1(found) if complement else np.exp(found)
    return np.where(none, float(complement), found) if np.any(none) else found


def log_of_tail(part: TensorOrArray, rest: TensorOrArray) -> TensorOrArray:
    """The logarithm of a part, by itself or by the rest, whichever is smaller."""
    low = value_of(part) < 0.5
    near = np.log1p(-np.where(low, 0.0, rest))
    return np.where(low, np.log(np.where(low, part, 1.0)), near)


class Formulas:
    """What a distribution is; the arguments of all methods are a number and the shape parameters.

    Attributes
    ----------
    at
        A number and shape parameters for places that do not count.
    opened
        Whether the density is 0 to any order at the lower end.
    """

    at: tuple[float, ...] = (0.5,)
    opened = False

    def pdf(self, x: TensorOrArray, *shapes: Any) -> TensorOrArray:
        """Density."""
        return exponential(self.logpdf, (x, *shapes), self.at)  # type: ignore[attr-defined]

    def logcdf(self, x: TensorOrArray, *shapes: Any) -> TensorOrArray:
        """Logarithm of the distribution function."""
        return log_of_tail(self.cdf(x, *shapes), self.sf(x, *shapes))  # type: ignore[attr-defined]

    def logsf(self, x: TensorOrArray, *shapes: Any) -> TensorOrArray:
        """Logarithm of the complement."""
        return log_of_tail(self.sf(x, *shapes), self.cdf(x, *shapes))  # type: ignore[attr-defined]


class Powers(Formulas):
    """A density with factors that are powers of what is 0 at an end of the support, or of a probability.

    ``powers(x, *shapes)`` gives triples: exponent, y, and whether it is a power of 1 - y; ``rest`` the
    logarithm of the other factors.
    """

    def logpdf(self, x: TensorOrArray, *shapes: Any) -> TensorOrArray:
        """Logarithm of the density."""
        found = self.rest(x, *shapes)  # type: ignore[attr-defined]
        for exponent, y, other in self.powers(x, *shapes):  # type: ignore[attr-defined]
            found = found + (sc.xlog1py(exponent, -y) if other else sc.xlogy(exponent, y))
        return found

    def pdf(self, x: TensorOrArray, *shapes: Any) -> TensorOrArray:
        """Density, at the ends by the powers, whose derivatives its logarithm has not."""
        operands = (x, *shapes)
        powers = self.powers(*operands)  # type: ignore[attr-defined]
        end = functools.reduce(np.logical_or, (value_of(y) == other for _, y, other in powers))
        if not np.any(end):
            return exponential(self.logpdf, operands, self.at)
        inner = exponential(self.logpdf, without(end, operands, self.at), self.at)
        here = without(~end, operands, self.at)
        found = np.exp(self.rest(*here))  # type: ignore[attr-defined]
        for exponent, y, other in self.powers(*here):  # type: ignore[attr-defined]
            found = found * np.power(1 - y if other else y, exponent)
        return np.where(end, found, inner)


def inverted(formulas: Any, inverse: Any, upper: bool = False) -> Any:
    """SciPy's inverse of a distribution function, or of its complement, with the derivative that this has.

    With F(x, a) = q it is dx = (dq - F_a da) / f (the implicit function theorem). Both are taken of the
    logarithm of the smaller tail, so that small ones have digits; ends of the support are constants.
    """
    function = custom_jvp(inverse)

    @function.def_jvp
    def rule(out: Any, args: Any, tangents: Any) -> Any:
        (q, *shapes), (dq, *moved) = args, tangents
        at, sign = value_of(q), -1.0 if upper else 1.0
        end = (at <= 0) | (at >= 1)
        x = np.where(end, formulas.at[0], out)
        low = (at < 0.5) != upper

        def tail(*shapes: TensorOrArray) -> TensorOrArray:
            return np.where(low, formulas.logcdf(x, *shapes), formulas.logsf(x, *shapes))

        found: Any = 0.0
        if np.any(value_of(dq)):
            found = sign * dq * np.where(end, np.inf, np.exp(-formulas.logpdf(x, *shapes)))
        if any(np.any(value_of(d)) for d in moved):
            log, by_shapes = jvp(tail, tuple(range(len(shapes))))(*shapes, tuple(moved))
            ratio = np.where(low, -1.0, 1.0) * np.exp(log - formulas.logpdf(x, *shapes))
            found = found + np.where(end, 0.0, ratio * by_shapes)
        return found

    return function


# ---------------------------------------------------------------- on the line


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
        normal = np.isinf(value_of(df))
        v = np.where(normal, 1.0, df) if np.any(normal) else df
        found = -sc.betaln(0.5, 0.5 * v) - 0.5 * np.log(v) - 0.5 * (v + 1) * np.log1p(x * x / v)
        return np.where(normal, Norm().logpdf(x), found) if np.any(normal) else found

    def cdf(self, x: TensorOrArray, df: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        if not any_follows((df,)):
            return sc.stdtr(df, x)
        low = value_of(x) <= 0
        tail = self._tail(np.where(low, -x, x), df)
        return np.where(low, tail, 1 - tail)

    def _tail(self, x: TensorOrArray, df: TensorOrArray) -> TensorOrArray:
        """What lies above a number that is not below 0, in one of both forms."""
        x = np.where(value_of(x) < 1e-150, x + 1e-150, x)  # at 0 the first form has a root
        square = x * x
        near = value_of(square) < value_of(df)
        part = np.where(near, square, df) / (df + square)
        by_near = 0.5 * sc.betaincc(0.5, 0.5 * df, np.where(near, part, 0.5))
        return np.where(near, by_near, 0.5 * sc.betainc(0.5 * df, 0.5, np.where(near, 0.5, part)))

    def sf(self, x: TensorOrArray, df: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return self.cdf(-x, df)

    def ppf(self, q: TensorOrArray, df: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        if any_follows((df,)):
            return _t_ppf(q, df)
        return np.where(value_of(q) == 0, -1.0, 1.0) * sc.stdtrit(df, q)  # which gives inf for 0

    def isf(self, q: TensorOrArray, df: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return -self.ppf(q, df)


_t_ppf = inverted(T(), _scipy.t.ppf)


class Cauchy(Formulas):
    """Cauchy's."""

    def logpdf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the density."""
        large = 1e9  # whose square adds nothing to 1
        far = np.abs(value_of(x)) > large
        return choose(far, lambda y: -2 * np.log(np.abs(y)), lambda y: -np.log1p(y * y), x, large) - LOG_PI

    def cdf(self, x: TensorOrArray) -> TensorOrArray:
        """Distribution function."""
        return np.arctan2(1.0, -x) / np.pi

    def sf(self, x: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return np.arctan2(1.0, x) / np.pi

    def ppf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        middle = np.abs(value_of(q) - 0.5) < 0.25
        return choose(middle, lambda p: np.tan(np.pi * (p - 0.5)), self._far, q, 0.25)

    def _far(self, q: TensorOrArray) -> TensorOrArray:
        low = value_of(q) < 0.5
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
        high = value_of(x) > 0
        tail = 0.5 * np.exp(np.where(high, -x, x))
        return np.where(high, 1 - tail, tail)

    def sf(self, x: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return self.cdf(-x)

    def logcdf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the distribution function."""
        return choose(value_of(x) <= 0, lambda y: y - LOG_2, lambda y: np.log1p(-0.5 * np.exp(-y)), x, 0.0)

    def logsf(self, x: TensorOrArray) -> TensorOrArray:
        """Logarithm of the complement."""
        return self.logcdf(-x)

    def ppf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse."""
        return choose(value_of(q) <= 0.5, lambda p: np.log(2 * p), lambda p: -np.log(2 * (1 - p)), q, 0.5)

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

    def ppf(self, q: TensorOrArray, a: TensorOrArray) -> Any:
        """Inverse."""
        return _skewnorm_ppf(q, a)

    def isf(self, q: TensorOrArray, a: TensorOrArray) -> Any:
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
        if any_follows((kappa,)):
            raise refuse("scipy.stats.vonmises.cdf", "has no derivative by kappa")
        return turned(x, kappa)

    def sf(self, x: TensorOrArray, kappa: TensorOrArray) -> TensorOrArray:
        """Complement."""
        return 1 - self.cdf(x, kappa)


class TruncNorm(Formulas):
    """Normal between two numbers; where both are above 0 by the mirror image, whose tail has digits."""

    at = (0.5, 0.0, 1.0)

    def _mirrored(
        self, x: TensorOrArray, a: TensorOrArray, b: TensorOrArray
    ) -> tuple[np.ndarray, TensorOrArray, TensorOrArray, TensorOrArray]:
        high = value_of(a) > 0
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
        low = value_of(q) < 0.5
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


# ---------------------------------------------------------------- above 0


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
        low = value_of(below) < 0.5
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
        return choose(value_of(q) < 0.5, self._low, lambda p: 1 / self._low(1 - p), q, 0.5)

    def isf(self, q: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return choose(value_of(q) < 0.5, lambda p: 1 / self._low(p), lambda p: self._low(1 - p), q, 0.5)

    def _low(self, q: TensorOrArray) -> TensorOrArray:
        return np.tan(0.5 * np.pi * q)


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
        low = (value_of(x) < value_of(c)) | (value_of(c) == 1)
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
        low = (value_of(q) < value_of(c)) | (value_of(c) == 1)
        side = np.sqrt(np.where(low, c * q, (1 - c) * (1 - q)))
        return np.where(low, side, 1 - side)

    def isf(self, q: TensorOrArray, c: TensorOrArray) -> TensorOrArray:
        """Inverse of the complement."""
        return 1 - self.ppf(q, 1 - c)


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

    def ppf(self, q: TensorOrArray, mu: TensorOrArray) -> Any:
        """Inverse."""
        return _invgauss_ppf(q, mu)

    def isf(self, q: TensorOrArray, mu: TensorOrArray) -> Any:
        """Inverse of the complement."""
        return _invgauss_isf(q, mu)


_invgauss_ppf = inverted(InvGauss(), _scipy.invgauss.ppf)
_invgauss_isf = inverted(InvGauss(), _scipy.invgauss.isf, upper=True)


# ---------------------------------------------------------------- whole numbers


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
            value_of(p) < 0.5, lambda y: -np.expm1(np.log1p(-y) * k), lambda y: 1 - np.power(1 - y, k), p, 0.5
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


OF: dict[str, Formulas] = {
    "bernoulli": Bernoulli(), "beta": Beta(), "betabinom": BetaBinom(), "binom": Binom(), "cauchy": Cauchy(),
    "chi2": Chi2(), "expon": Expon(), "f": F(), "gamma": Gamma(), "geom": Geom(), "gumbel_l": GumbelL(),
    "gumbel_r": GumbelR(), "halfcauchy": HalfCauchy(), "halfnorm": HalfNorm(), "invgamma": InvGamma(),
    "invgauss": InvGauss(), "laplace": Laplace(), "logistic": Logistic(), "lognorm": LogNorm(),
    "maxwell": Maxwell(), "nbinom": NBinom(), "norm": Norm(), "pareto": Pareto(), "poisson": Poisson(),
    "rayleigh": Rayleigh(), "skewnorm": SkewNorm(), "t": T(), "triang": Triang(), "truncnorm": TruncNorm(),
    "uniform": Uniform(), "vonmises": VonMises(), "weibull_max": WeibullMax(), "weibull_min": WeibullMin(),
}  # fmt: skip
