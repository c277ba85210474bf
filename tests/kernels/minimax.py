"""The coefficients of tapegrad.kernels.vecmath: ``python -m tests.kernels.minimax`` writes its file anew.

Polynomials are minimax for the relative error of the function they belong to, by Remez' exchange algorithm
at 60 digits, then rounded to double precision; the rational approximation of tanh interpolates at Chebyshev
nodes. The error noted is the largest on 1,001 points, with the rounded coefficients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import mpmath
from mpmath import mp, mpf

TARGET = Path(__file__).parents[2] / "tapegrad" / "kernels" / "vecmath" / "coefficients.py"
DIGITS = 60
GRID = 1500
TINY = mpf("1e-15")  # here a quotient is its limit: its terms would cancel


@dataclasses.dataclass(frozen=True)
class Fit:
    """A polynomial in v on [low, high]; `weight` turns its error into the function's relative error."""

    formula: str
    variable: str
    low: Callable[[], mpf]
    high: Callable[[], mpf]
    degree: int
    target: Callable[[mpf], mpf]
    weight: Callable[[mpf], mpf]


def of_root(f, limit):
    """The function v -> (f(s)/s - 1)/v for s = sqrt(v), whose limit at 0 is known."""

    def target(v):
        s = mpmath.sqrt(v)
        return (f(s) / s - 1) / v if s else limit

    return target


def root_weight(f):
    """The weight that belongs to `of_root`."""
    return lambda v: v * mpmath.sqrt(v) / f(mpmath.sqrt(v)) if v else mpf(0)


def odd(formula: str, f, limit: float, bound: Callable[[], mpf], degree: int) -> Fit:
    """f(x)/x - 1 over x**2, for an odd function with f(x) ~ x."""
    return Fit(f"({formula}/x - 1)/x**2", "x**2", lambda: mpf(0), lambda: bound() ** 2, degree,
               of_root(f, limit), root_weight(f))  # fmt: skip


def half_log2(margin: str = "0.0002") -> mpf:
    """The largest remainder after n ln 2 is taken off."""
    return mpmath.log(2) / 2 + mpf(margin)


def _exp(degree: int) -> Fit:
    return Fit("(exp(x) - 1 - x)/x**2", "x", lambda: -half_log2(), half_log2, degree,
               lambda x: (mpmath.exp(x) - 1 - x) / x**2 if abs(x) > TINY else mpf(1) / 2,
               lambda x: x**2 / mpmath.exp(x))  # fmt: skip


def _exp2(degree: int) -> Fit:
    return Fit("(2**x - 1)/x", "x", lambda: mpf(-0.5), lambda: mpf(0.5), degree,
               lambda x: (mpf(2) ** x - 1) / x if abs(x) > TINY else mpmath.log(2),
               lambda x: x / mpf(2) ** x)  # fmt: skip


def _cosh(degree: int) -> Fit:
    return Fit("(cosh(x) - 1)/x**2", "x**2", lambda: mpf(0), lambda: half_log2() ** 2, degree,
               lambda v: (mpmath.cosh(mpmath.sqrt(v)) - 1) / v if v else mpf(1) / 2,
               lambda v: v / mpmath.cosh(mpmath.sqrt(v)))  # fmt: skip


def _cos(degree: int) -> Fit:
    def target(v):
        return (mpmath.cos(mpmath.sqrt(v)) - 1 + v / 2) / v**2 if v else mpf(1) / 24

    return Fit("(cos(x) - 1 + x**2/2)/x**4", "x**2", lambda: mpf(0), lambda: QUARTER() ** 2, degree, target,
               lambda v: v**2 / mpmath.cos(mpmath.sqrt(v)))  # fmt: skip


def _log(degree: int) -> Fit:
    return Fit("(log((1 + x)/(1 - x))/x - 2)/x**2", "x**2", lambda: mpf(0), lambda: ROOT2() ** 2, degree,
               lambda v: 2 * of_root(mpmath.atanh, mpf(1) / 3)(v), lambda v: v / 2)  # fmt: skip


def _pow_log(degree: int) -> Fit:
    def target(v):
        s = mpmath.sqrt(v)
        return (2 * mpmath.atanh(s / 2) / s - 1 - v / 12) / v**2 if s else mpf(1) / 80

    return Fit("(log(m)/s - 1 - s**2/12)/s**4 for s = 2*(m - 1)/(m + 1)", "s**2", lambda: mpf(0),
               lambda: (2 * ROOT2()) ** 2, degree, target, lambda v: v**2)  # fmt: skip


def _cbrt(degree: int) -> Fit:
    return Fit("x**(-1/3)", "x", lambda: mpf(1), lambda: mpf(2), degree, lambda x: x ** (-mpf(1) / 3),
               lambda x: x ** (mpf(1) / 3))  # fmt: skip


def QUARTER() -> mpf:
    """A little more than pi/4."""
    return mpmath.pi / 4 + mpf("0.0006")


def ROOT2() -> mpf:
    """(sqrt(2) - 1)/(sqrt(2) + 1), the largest |x| after the reduction of log."""
    return 3 - 2 * mpmath.sqrt(2)


def TAN_EIGHTH() -> mpf:
    """A little more than tan(pi/8)."""
    return mpmath.tan(mpmath.pi / 8) + mpf("1e-9")


THIRD, SIXTH = 1 / 3, 1 / 6  # limits at 0, where the weight is 0
FITS = {
    "EXP": _exp(10),
    "EXP2": _exp2(11),
    "SINH": odd("sinh(x)", mpmath.sinh, SIXTH, lambda: mpf("1.2"), 6),
    "SINH_SHORT": odd("sinh(x)", mpmath.sinh, SIXTH, half_log2, 4),
    "COSH": _cosh(4),
    "LOG": _log(6),
    "POW_LOG": _pow_log(6),
    "ARCTANH": odd("arctanh(x)", mpmath.atanh, THIRD, lambda: mpf("0.2005"), 7),
    "SIN": odd("sin(x)", mpmath.sin, -SIXTH, QUARTER, 5),
    "COS": _cos(5),
    "TAN": odd("tan(x)", mpmath.tan, THIRD, QUARTER, 13),
    "ARCSIN": odd("arcsin(x)", mpmath.asin, SIXTH, lambda: mpf("0.5"), 12),
    "ARCTAN": odd("arctan(x)", mpmath.atan, -THIRD, TAN_EIGHTH, 11),
    "CBRT": _cbrt(5),
    "EXP_SINGLE": _exp(5),
    "EXP2_SINGLE": _exp2(6),
    "LOG_SINGLE": _log(3),
    "POW_LOG_SINGLE": _log(4),
    "SIN_SINGLE": odd("sin(x)", mpmath.sin, -SIXTH, QUARTER, 3),
    "COS_SINGLE": _cos(2),
    "TAN_SINGLE": odd("tan(x)", mpmath.tan, THIRD, QUARTER, 7),
    "ARCSIN_SINGLE": odd("arcsin(x)", mpmath.asin, SIXTH, lambda: mpf("0.5"), 6),
    "ARCTAN_SINGLE": odd("arctan(x)", mpmath.atan, -THIRD, TAN_EIGHTH, 5),
}
TANH_BOUND = mpf("0.8")


def grid(fit: Fit, count: int) -> list[mpf]:
    """Points that are denser near the ends, where the extrema are."""
    low, high = fit.low(), fit.high()
    return [low + (high - low) * (1 - mpmath.cos(mpmath.pi * k / (count - 1))) / 2 for k in range(count)]


def remez(fit: Fit) -> list[mpf]:
    """Exact coefficients of the minimax polynomial, in ascending order of degree."""
    points = grid(fit, GRID)
    targets, weights = [fit.target(v) for v in points], [fit.weight(v) for v in points]
    count = fit.degree + 2
    chosen = [int((k + 0.5) * GRID / count) for k in range(count)]
    for _ in range(20):
        system = mpmath.matrix(count, count)
        right = mpmath.matrix(count, 1)
        for row, at in enumerate(chosen):
            for power in range(fit.degree + 1):
                system[row, power] = weights[at] * points[at] ** power
            system[row, count - 1] = (-1) ** row
            right[row] = weights[at] * targets[at]
        solved = mpmath.lu_solve(system, right)
        polynomial = [solved[k] for k in range(count - 1)]
        errors = [w * (mpmath.polyval(polynomial[::-1], v) - g)
                  for v, w, g in zip(points, weights, targets, strict=True)]  # fmt: skip
        extrema: list[int] = []
        for at, error in enumerate(errors):
            if not error:
                continue
            if extrema and errors[extrema[-1]] * error > 0:
                if abs(error) > abs(errors[extrema[-1]]):
                    extrema[-1] = at
            else:
                extrema.append(at)
        while len(extrema) > count:
            del extrema[0 if abs(errors[extrema[0]]) < abs(errors[extrema[-1]]) else -1]
        assert len(extrema) == count, (fit.formula, len(extrema), count)
        chosen = extrema
        sizes = [abs(errors[at]) for at in chosen]
        if max(sizes) < 1.01 * min(sizes):
            break
    return polynomial


def polynomial(fit: Fit) -> tuple[float, ...]:
    """The rounded coefficients."""
    with mp.workdps(DIGITS):
        return tuple(float(c) for c in remez(fit))


def error(fit: Fit, coefficients: tuple[float, ...]) -> mpf:
    """The largest relative error of the function that belongs to a fit."""
    with mp.workdps(DIGITS):
        exact = [mpf(c) for c in coefficients][::-1]
        return max(abs(fit.weight(v) * (mpmath.polyval(exact, v) - fit.target(v))) for v in grid(fit, 1001))


TANH = odd("tanh(x)", mpmath.tanh, -THIRD, lambda: TANH_BOUND, 0)


def tanh_quotient() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """P and Q of degree 3, Q(0) = 1, for (tanh(x)/x - 1)/x**2 = P(v)/Q(v) at seven Chebyshev nodes."""
    with mp.workdps(DIGITS):
        nodes = [TANH_BOUND**2 * (1 - mpmath.cos(mpmath.pi * (2 * k + 1) / 14)) / 2 for k in range(7)]
        system, right = mpmath.matrix(7, 7), mpmath.matrix(7, 1)
        for row, v in enumerate(nodes):
            g = TANH.target(v)
            for power in range(4):
                system[row, power] = v**power
            for power in range(1, 4):
                system[row, 3 + power] = -g * v**power
            right[row] = g
        solved = mpmath.lu_solve(system, right)
        return tuple(float(solved[k]) for k in range(4)), (1.0, *(float(solved[k]) for k in range(4, 7)))


def tanh_error(p: tuple[float, ...], q: tuple[float, ...]) -> mpf:
    """The largest relative error of tanh by its quotient."""
    with mp.workdps(DIGITS):
        top, below = ([mpf(c) for c in reversed(x)] for x in (p, q))
        return max(abs(TANH.weight(v) * (mpmath.polyval(top, v) / mpmath.polyval(below, v) - TANH.target(v)))
                   for v in grid(TANH, 1001))  # fmt: skip


def _tuple(values: tuple[float, ...]) -> str:
    return "(\n" + "".join(f"    {value!r},\n" for value in values) + ")\n"


def bits(size: mpf) -> str:
    """A relative error as a power of two."""
    return f"2**{float(mpmath.log(size, 2)):.1f}"


def text() -> str:
    """The file of coefficients."""
    parts = ['"""Coefficients in ascending order of degree, by ``python -m tests.kernels.minimax``."""\n\n']
    for name, fit in FITS.items():
        found = polynomial(fit)
        with mp.workdps(DIGITS):
            span = f"{float(fit.low()):.4g} to {float(fit.high()):.4g}"
        parts.append(f"# {fit.formula} in {fit.variable} from {span}; {bits(error(fit, found))}\n")
        parts.append(f"{name} = {_tuple(found)}")
    p, q = tanh_quotient()
    parts.append(f"# (tanh(x)/x - 1)/x**2 = P/Q in x**2 from 0 to 0.64; {bits(tanh_error(p, q))}\n")
    parts.append(f"TANH_P = {_tuple(p)}TANH_Q = {_tuple(q)}")
    return "".join(parts)


if __name__ == "__main__":
    TARGET.write_text(text(), "utf-8")
