"""What formulas of distributions have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import scipy.special as sc

from tapegrad.core.base import decide, needs_derivative, value_of
from tapegrad.func import custom_jvp, jvp
from tapegrad.tensor import Operand, TensorOrArray

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
    none = decide(np.equal, found, -np.inf)
    if np.any(none):
        found = log(*without(none, operands, at))
    found = -np.expm1(found) if complement else np.exp(found)
    return np.where(none, float(complement), found) if np.any(none) else found


def log_of_tail(part: TensorOrArray, rest: TensorOrArray) -> TensorOrArray:
    """The logarithm of a part, by itself or by the rest, whichever is smaller."""
    low = decide(np.less, part, 0.5)
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
    logpdf: Callable[..., TensorOrArray]
    cdf: Callable[..., TensorOrArray]
    sf: Callable[..., TensorOrArray]

    def pdf(self, x: TensorOrArray, *shapes: Any) -> TensorOrArray:
        """Density."""
        return exponential(self.logpdf, (x, *shapes), self.at)

    def logcdf(self, x: TensorOrArray, *shapes: Any) -> TensorOrArray:
        """Logarithm of the distribution function."""
        return log_of_tail(self.cdf(x, *shapes), self.sf(x, *shapes))

    def logsf(self, x: TensorOrArray, *shapes: Any) -> TensorOrArray:
        """Logarithm of the complement."""
        return log_of_tail(self.sf(x, *shapes), self.cdf(x, *shapes))


class Powers(Formulas):
    """A density with factors that are powers of what is 0 at an end of the support, or of a probability.

    ``powers(x, *shapes)`` gives triples: exponent, y, and whether it is a power of 1 - y; ``rest`` the
    logarithm of the other factors.
    """

    powers: Callable[..., list[Power]]
    rest: Callable[..., Any]

    def logpdf(self, x: TensorOrArray, *shapes: Any) -> TensorOrArray:
        """Logarithm of the density."""
        found = self.rest(x, *shapes)
        for exponent, y, other in self.powers(x, *shapes):
            found = found + (sc.xlog1py(exponent, -y) if other else sc.xlogy(exponent, y))
        return found

    def pdf(self, x: TensorOrArray, *shapes: Any) -> TensorOrArray:
        """Density, at the ends by the powers, whose derivatives its logarithm has not."""
        operands = (x, *shapes)
        powers = self.powers(*operands)
        end = functools.reduce(np.logical_or, (decide(np.equal, y, other) for _, y, other in powers))
        if not np.any(end):
            return exponential(self.logpdf, operands, self.at)
        inner = exponential(self.logpdf, without(end, operands, self.at), self.at)
        here = without(~end, operands, self.at)
        found = np.exp(self.rest(*here))
        for exponent, y, other in self.powers(*here):
            found = found * np.power(1 - y if other else y, exponent)
        return np.where(end, found, inner)


def _counts(tangent: Operand) -> bool:
    """Whether a tangent is more than zeros that stay zeros."""
    return needs_derivative(tangent) or bool(np.any(value_of(tangent)))


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

        found: Any = np.zeros_like(value_of(out))
        if _counts(dq):
            found = sign * dq * np.where(end, np.inf, np.exp(-formulas.logpdf(x, *shapes)))
        if any(map(_counts, moved)):
            log, by_shapes = jvp(tail, tuple(range(len(shapes))))(*shapes, tuple(moved))
            ratio = np.where(low, -1.0, 1.0) * np.exp(log - formulas.logpdf(x, *shapes))
            found = found + np.where(end, 0.0, ratio * by_shapes)
        return found

    return function
