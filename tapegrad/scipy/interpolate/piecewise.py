"""Interpolants that are a polynomial in each interval, which stand in `tapegrad.scipy.interpolate`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.interpolate as _scipy

from tapegrad.core.base import value_of
from tapegrad.scipy.calls import Guarded, derivative_wanted, doubles, refuse, theirs
from tapegrad.tensor import Operand, TensorOrArray

__all__ = [
    "Akima1DInterpolator", "CubicHermiteSpline", "PPoly", "PchipInterpolator", "Pieces", "applied",
    "basis_pieces", "constant", "first", "interval_of", "placed",
]  # fmt: skip


def constant(x: Operand | None, name: str, what: str) -> Any:
    """An argument by which there is no derivative, as an array."""
    if derivative_wanted(x):
        raise refuse(f"scipy.interpolate.{name}", f"has no derivative by {what}")
    return value_of(x)


class Pieces(Guarded):
    """A polynomial in each interval.

    Parameters
    ----------
    it : object
        SciPy's interpolant of the same values.
    name : str
        What it is called.
    c : Tensor or ndarray, shape (k, m, ...)
        Coefficients of powers of the distance from the start of an interval, the highest first.
    ends : ndarray, shape (m + 1,)
    axis : int
        Where in a result the places are.
    extrapolate : bool or "periodic"
    """

    constants = ("x", "t", "k")

    def __init__(
        self, it: Any, name: str, c: TensorOrArray, ends: np.ndarray, axis: int, extrapolate: bool
    ) -> None:
        super().__init__(it, name, (c,))
        self._pieces, self._ends, self.axis, self.extrapolate = c, ends, axis, extrapolate

    def __call__(self, x: Operand, nu: int = 0, extrapolate: bool | str | None = None) -> TensorOrArray:
        """Evaluate it, or its derivative of order `nu`; as SciPy's."""
        if not derivative_wanted(x, self._pieces):
            return theirs(self._it, (x, nu, extrapolate), {})
        extrapolate = self.extrapolate if extrapolate is None else extrapolate
        x = doubles(x)
        at, ends = value_of(x), self._ends
        if extrapolate == "periodic":
            turned = ends[0] + (at - ends[0]) % (ends[-1] - ends[0])
            x, at = x + (turned - at), turned
        bad = np.isnan(at) if extrapolate else np.isnan(at) | (at < ends[0]) | (at > ends[-1])
        if np.any(bad):
            x = np.where(bad, ends[0], x)
        i = interval_of(ends, at)
        c, rest = self._pieces, np.ndim(self._pieces) - 2
        off = np.reshape(x - ends[i], (*np.shape(at), *(1,) * rest))
        found = np.zeros((*np.shape(at), *np.shape(c)[2:]))
        count = np.shape(c)[0]
        for k in range(count - nu):
            power = count - 1 - k
            factor = float(np.prod(np.arange(power - nu + 1, power + 1)))
            found = found * off + factor * c[k][i]
        if np.any(bad):
            found = np.where(np.reshape(bad, (*np.shape(at), *(1,) * rest)), np.nan, found)
        return placed(found, np.ndim(at), self.axis)

    @property
    def c(self) -> TensorOrArray:
        """The coefficients."""
        return self._pieces

    def derivative(self, nu: int = 1) -> Pieces:
        """Return the derivative, an interpolant."""
        if nu < 0:
            return self.antiderivative(-nu)
        count = np.shape(self._pieces)[0]
        if count <= nu:
            c = self._pieces[-1:] * 0.0
        else:
            powers = np.arange(count - 1, nu - 1, -1)
            factors = np.prod([powers - k for k in range(nu)], axis=0) if nu else np.ones(len(powers))
            c = self._pieces[: count - nu] * _column(factors, np.ndim(self._pieces))
        return self._like(self._it.derivative(nu), c)

    def antiderivative(self, nu: int = 1) -> Pieces:
        """Return the antiderivative that is 0 at the start, an interpolant."""
        found = self
        for _ in range(nu):
            count, rank = np.shape(found._pieces)[0], np.ndim(found._pieces)
            c = found._pieces / _column(np.arange(count, 0, -1), rank)
            lengths = np.reshape(np.diff(found._ends), (-1, *(1,) * (rank - 2)))
            whole: TensorOrArray | float = 0.0
            for k in range(count):
                whole = (whole + c[k]) * lengths
            starts = np.concatenate([np.zeros((1, *np.shape(c)[2:])), np.cumsum(whole, axis=0)[:-1]])
            it = found._it.antiderivative(1)
            found = found._like(it, np.concatenate([c, starts[None]], axis=0))
        return found

    def integrate(self, a: float, b: Operand, extrapolate: bool | str | None = None) -> TensorOrArray:
        """Return the integral between two limits."""
        if not derivative_wanted(a, b, self._pieces):
            return theirs(self._it.integrate, (a, b, extrapolate), {})
        extrapolate = self.extrapolate if extrapolate is None else extrapolate
        if extrapolate == "periodic":
            raise refuse(f"{self.title}.integrate of a periodic one")
        whole = self.antiderivative()
        return whole(b, 0, extrapolate) - whole(a, 0, extrapolate)

    def _like(self, it: Any, c: TensorOrArray) -> Pieces:
        return Pieces(it, self.title, c, self._ends, self.axis, it.extrapolate)


def interval_of(ends: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Which interval numbers lie in; those outside are in the first or the last one."""
    return np.clip(np.searchsorted(ends, at, side="right") - 1, 0, len(ends) - 2)


def basis_pieces(t: np.ndarray, k: int) -> np.ndarray:
    """Coefficients of all B-splines of knots and a degree in each interval, as of `Pieces`."""
    count = len(t) - k - 1
    splines, starts = _scipy.BSpline(t, np.eye(count), k), t[k:count]
    return np.stack([splines(starts, p) / math.factorial(p) for p in range(k, -1, -1)])


def _column(numbers: np.ndarray, rank: int) -> np.ndarray:
    return np.reshape(numbers, (-1, *(1,) * (rank - 1)))


def placed(found: Any, count: int, axis: int) -> TensorOrArray:
    """Move the first axes, of places, to where the axis of the data was."""
    if axis == 0:
        return found
    return np.moveaxis(found, tuple(range(count)), tuple(range(axis, axis + count)))


def first(y: Any, axis: int) -> tuple[Any, int]:
    """Data with their axis first, and that axis."""
    y = doubles(y)
    return np.moveaxis(y, axis, 0), axis % np.ndim(y)


def applied(matrix: np.ndarray, y: Any) -> TensorOrArray:
    """A constant array times data along their first axis."""
    return np.tensordot(matrix, y, axes=(-1, 0))


class PchipInterpolator(Pieces):
    """Cubic through data that has no more maxima than they have.

    Parameters
    ----------
    x : array_like
        Places, constants.
    y : Tensor or array_like
        Data.
    axis, extrapolate : optional
        As SciPy has them.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> y = tg.tensor([0.0, 1.0, 3.0], requires_grad=True)
    >>> tg.grad(ts.interpolate.PchipInterpolator([0.0, 1.0, 2.0], y)(1.5), y)
    (tensor([-0.1736,  0.8333,  0.3403]),)
    """

    def __init__(self, x: Operand, y: Any, axis: int = 0, extrapolate: bool | str | None = None) -> None:
        x = constant(x, "PchipInterpolator", "x")
        it = _scipy.PchipInterpolator(x, value_of(y), axis, extrapolate)
        c = it.c
        if derivative_wanted(y):
            c = _cubics(x, y, axis, _slopes)
        super().__init__(it, "scipy.interpolate.PchipInterpolator", c, it.x, it.axis, it.extrapolate)


def _slopes(h: np.ndarray, m: TensorOrArray) -> TensorOrArray:
    """Slopes at the places, from distances and slopes between them."""
    if len(h) == 1:
        return np.concatenate([m, m])
    at = value_of(m)
    flat = (np.sign(at[1:]) != np.sign(at[:-1])) | (at[1:] == 0)
    one, two = 2 * h[1:] + h[:-1], h[1:] + 2 * h[:-1]
    left, right = np.where(flat, 1.0, m[:-1]), np.where(flat, 1.0, m[1:])
    inner = np.where(flat, 0.0, (one + two) / (one / left + two / right))
    first, last = _slope_at_end(h[:2], m[:2]), _slope_at_end(h[:-3:-1], m[:-3:-1])
    return np.concatenate([first[None], inner, last[None]])


def _slope_at_end(h: np.ndarray, m: TensorOrArray) -> TensorOrArray:
    d = ((2 * h[0] + h[1]) * m[0] - h[0] * m[1]) / (h[0] + h[1])
    at, first, second = value_of(d), value_of(m[0]), value_of(m[1])
    turned = np.sign(at) != np.sign(first)
    steep = (np.sign(first) != np.sign(second)) & (np.abs(at) > 3.0 * np.abs(first))
    return np.where(turned, 0.0, np.where(steep, 3.0 * m[0], d))


def _cubics(x: Any, y: Any, axis: int, slopes: Callable[[np.ndarray, Any], TensorOrArray]) -> TensorOrArray:
    """Coefficients of cubics through data, whose slopes are those of distances and slopes between places."""
    y, _ = first(y, axis)
    h = np.reshape(np.diff(np.asarray(x, float)), (-1, *(1,) * (np.ndim(y) - 1)))
    m = (y[1:] - y[:-1]) / h
    d = slopes(h, m)
    both = (d[:-1] + d[1:] - 2 * m) / h
    return np.stack([both / h, (m - d[:-1]) / h - both, d[:-1], y[:-1]])


class CubicHermiteSpline(Pieces):
    """Cubic through data with given slopes.

    Parameters
    ----------
    x : array_like
        Places, constants.
    y, dydx : Tensor or array_like
        Data and slopes.
    axis, extrapolate : optional
        As SciPy has them.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> slopes = tg.tensor([0.0, 1.0], requires_grad=True)
    >>> tg.grad(ts.interpolate.CubicHermiteSpline([0.0, 1.0], [0.0, 1.0], slopes)(0.5), slopes)
    (tensor([ 0.125, -0.125]),)
    """

    def __init__(
        self, x: Operand, y: Any, dydx: Any, axis: int = 0, extrapolate: bool | str | None = None
    ) -> None:
        x = constant(x, "CubicHermiteSpline", "x")
        it = _scipy.CubicHermiteSpline(x, value_of(y), value_of(dydx), axis, extrapolate)
        c = it.c
        if derivative_wanted(y, dydx):
            c = _cubics(x, y, axis, lambda h, m: first(dydx, axis)[0])
        super().__init__(it, "scipy.interpolate.CubicHermiteSpline", c, it.x, it.axis, it.extrapolate)


class Akima1DInterpolator(Pieces):
    """Cubic through data whose slopes are those of few neighbours.

    Parameters
    ----------
    x : array_like
        Places, constants.
    y : Tensor or array_like
        Data.
    axis, method, extrapolate : optional
        As SciPy has them.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> y = tg.tensor([0.0, 1.0, 3.0, 2.0], requires_grad=True)
    >>> tg.grad(ts.interpolate.Akima1DInterpolator([0.0, 1.0, 2.0, 3.0], y)(1.5), y)
    (tensor([0.0, 0.5, 0.5, 0.0]),)
    """

    def __init__(
        self,
        x: Operand,
        y: Any,
        axis: int = 0,
        *,
        method: str = "akima",
        extrapolate: bool | str | None = None,
    ) -> None:
        x = constant(x, "Akima1DInterpolator", "x")
        it = _scipy.Akima1DInterpolator(x, value_of(y), axis, method=method, extrapolate=extrapolate)
        c = it.c
        if derivative_wanted(y):
            c = _cubics(x, y, axis, lambda h, m: _slopes_of_neighbours(m, method == "makima"))
        super().__init__(it, "scipy.interpolate.Akima1DInterpolator", c, it.x, it.axis, it.extrapolate)


def _slopes_of_neighbours(m: TensorOrArray, modified: bool) -> TensorOrArray:
    """Akima's slopes at the places, from those between them."""
    if len(m) == 1:
        return np.concatenate([m, m])
    before, after = 2 * m[0] - m[1], 2 * m[-1] - m[-2]
    m = np.concatenate([np.stack([2 * before - m[0], before]), m, np.stack([after, 2 * after - m[-1]])])
    turns = np.abs(m[1:] - m[:-1])
    if modified:
        turns = turns + 0.5 * np.abs(m[1:] + m[:-1])
    left, right = turns[:-2], turns[2:]
    both = left + right
    at = value_of(both)
    known = at > 1e-9 * np.max(at, initial=-np.inf)  # SciPy's limit; else the mean of the outer ones
    part = np.where(known, left, 0.5) / np.where(known, both, 1.0)
    return np.where(known, m[1:-2] + part * (m[2:-1] - m[1:-2]), 0.5 * (m[3:] + m[:-3]))


class PPoly(Pieces):
    """A polynomial in each interval, by its coefficients.

    Parameters
    ----------
    c : Tensor or array_like
        Coefficients of powers of the distance from the start of an interval, the highest first.
    x : array_like
        Where intervals meet, constants.
    extrapolate, axis : optional
        As SciPy has them.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> c = tg.tensor([[1.0, 2.0], [0.0, 3.0]], requires_grad=True)
    >>> tg.grad(ts.interpolate.PPoly(c, [0.0, 1.0, 2.0])(1.5), c)
    (tensor([[0.0, 0.5],
            [0.0, 1.0]]),)
    """

    def __init__(self, c: Any, x: Operand, extrapolate: bool | str | None = None, axis: int = 0) -> None:
        x = constant(x, "PPoly", "x")
        it = _scipy.PPoly(value_of(c), x, extrapolate, axis)
        found = it.c
        if derivative_wanted(c):
            if it.x[0] > it.x[-1]:
                raise refuse("scipy.interpolate.PPoly of descending x")
            found = np.moveaxis(doubles(c), (axis, axis + 1), (0, 1))
        super().__init__(it, "scipy.interpolate.PPoly", found, it.x, axis, it.extrapolate)
