"""Splines through data, and interpolants of one variable."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.interpolate as _scipy

from tapegrad.core.base import value_of
from tapegrad.numpy_api.tables import plain
from tapegrad.scipy.calls import Guarded, derivative_wanted, doubles, refuse, theirs
from tapegrad.scipy.interpolate.piecewise import Pieces, applied, basis_pieces, constant, first, placed
from tapegrad.tensor import Operand, TensorOrArray

__all__ = ["BSpline", "CubicSpline", "interp1d", "make_interp_spline"]


def _homogeneous(bc_type: str | tuple[tuple[int, np.ndarray], tuple[int, np.ndarray]], n: int) -> Any:
    """Conditions at the ends for n right sides at a time, with 0 for values."""
    if bc_type is None or isinstance(bc_type, str):
        return bc_type
    return tuple(_without_value(side, n) for side in bc_type)


def _without_value(side: Any, n: int) -> Any:
    if side is None or isinstance(side, str):
        return side
    if isinstance(side, tuple) and len(side) == 2 and np.ndim(side[0]) == 0:
        return (side[0], np.zeros(n))
    return [(order, np.zeros(n)) for order, _ in side]


def _values_of(
    bc_type: str | tuple[tuple[int, np.ndarray], tuple[int, np.ndarray]], name: str
) -> str | tuple[tuple[int, np.ndarray], tuple[int, np.ndarray]]:
    if derivative_wanted(bc_type if isinstance(bc_type, (tuple, list)) else ()):
        raise refuse(f"scipy.interpolate.{name}", "has no derivative by bc_type")
    return plain(bc_type)


class CubicSpline(Pieces):
    """Cubic spline through data.

    Parameters
    ----------
    x : array_like
        Places, constants.
    y : Tensor or array_like
        Data.
    axis, bc_type, extrapolate : optional
        As SciPy has them; of a periodic one the last of the data is the first.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> y = tg.tensor([0.0, 1.0, 0.0, 2.0], requires_grad=True)
    >>> spline = ts.interpolate.CubicSpline([0.0, 1.0, 2.0, 3.0], y)
    >>> tg.grad(spline(0.5), y)
    (tensor([ 0.3125,  0.9375, -0.3125,  0.0625]),)
    """

    def __init__(
        self,
        x: Operand,
        y: Any,
        axis: int = 0,
        bc_type: Any = "not-a-knot",
        extrapolate: bool | None = None,
    ):
        x, bc_type = constant(x, "CubicSpline", "x"), _values_of(bc_type, "CubicSpline")
        it = _scipy.CubicSpline(x, value_of(y), axis, bc_type, extrapolate)
        c = it.c
        if derivative_wanted(y):
            y, _ = first(y, axis)
            n = np.shape(y)[0]
            if bc_type == "periodic":
                basis = np.vstack([np.eye(n - 1), np.eye(1, n - 1)])
                c = applied(_scipy.CubicSpline(x, basis, bc_type=bc_type).c, y[:-1])
            else:
                still = _scipy.CubicSpline(x, np.zeros(np.shape(y)), bc_type=bc_type).c
                c = still + applied(_scipy.CubicSpline(x, np.eye(n), bc_type=_homogeneous(bc_type, n)).c, y)
        super().__init__(it, "scipy.interpolate.CubicSpline", c, it.x, it.axis, it.extrapolate)


class BSpline(Pieces):
    """Spline by the coefficients of B-splines.

    Parameters
    ----------
    t : array_like
        Knots, constants.
    c : Tensor or array_like
        Coefficients.
    k : int
        Degree.
    extrapolate, axis : optional
        As SciPy has them.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> c = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.interpolate.BSpline([0.0, 0.0, 0.0, 1.0, 1.0, 1.0], c, 2)(0.5), c)
    (tensor([0.25, 0.50, 0.25]),)
    """

    def __init__(self, t: Operand, c: Operand, k: int, extrapolate: bool = True, axis: int = 0) -> None:
        t = constant(t, "BSpline", "t")
        it = _scipy.BSpline(t, value_of(c), k, extrapolate, axis)
        count = len(it.t) - k - 1
        basis = basis_pieces(it.t, k)
        self._coefficients = first(c, axis)[0] if derivative_wanted(c) else it.c
        pieces = applied(basis, self._coefficients[:count])
        super().__init__(it, "scipy.interpolate.BSpline", pieces, it.t[k : count + 1], it.axis, extrapolate)

    @property
    def c(self) -> TensorOrArray:
        """The coefficients of B-splines."""
        return self._coefficients


def make_interp_spline(
    x: Operand,
    y: Operand,
    k: int = 3,
    t: Operand | None = None,
    bc_type: Any = None,
    axis: int = 0,
    check_finite: bool = True,
) -> BSpline:
    """Spline of a degree through data.

    Parameters
    ----------
    x : array_like
        Places, constants.
    y : Tensor or array_like
        Data.
    k, t, bc_type, axis, check_finite : optional
        As SciPy has them; a periodic one has no derivative by the data.

    Returns
    -------
    BSpline

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> y = tg.tensor([0.0, 1.0, 0.0, 2.0], requires_grad=True)
    >>> tg.grad(ts.interpolate.make_interp_spline([0.0, 1.0, 2.0, 3.0], y, k=1)(0.25), y)
    (tensor([0.75, 0.25, 0.00, 0.00]),)
    """
    name = "make_interp_spline"
    x, t, bc_type = constant(x, name, "x"), constant(t, name, "t"), _values_of(bc_type, name)
    it = _scipy.make_interp_spline(x, value_of(y), k, t, bc_type, axis, check_finite)
    if not derivative_wanted(y):
        return BSpline(it.t, np.moveaxis(it.c, 0, it.axis), k, it.extrapolate, it.axis)
    if bc_type == "periodic":
        raise refuse("scipy.interpolate.make_interp_spline with bc_type='periodic'", "has no derivative by y")
    y, axis = first(y, axis)
    n = np.shape(y)[0]
    still = _scipy.make_interp_spline(x, np.zeros(np.shape(y)), k, t, bc_type).c
    matrix = _scipy.make_interp_spline(x, np.eye(n), k, t, _homogeneous(bc_type, n)).c
    return BSpline(it.t, np.moveaxis(still + applied(matrix, y), 0, axis), k, it.extrapolate, axis)


class interp1d(Guarded):
    """Interpolant of some kind through data.

    Parameters
    ----------
    x : array_like
        Places, constants.
    y : Tensor or array_like
        Data.
    kind, axis, copy, bounds_error, fill_value, assume_sorted : optional
        As SciPy has them. Kinds that take one of the data (nearest, nearest-up, previous, next, zero) have no
        derivative by the places of evaluation, and `fill_value` is a constant.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> y = tg.tensor([0.0, 1.0, 4.0], requires_grad=True)
    >>> x = tg.tensor(1.5, requires_grad=True)
    >>> tg.grad(ts.interpolate.interp1d([0.0, 1.0, 2.0], y)(x), [y, x])
    (tensor([0.0, 0.5, 0.5]), tensor(3.))
    """

    constants = ("x", "fill_value", "bounds_error")
    STEPS = ("nearest", "nearest-up", "previous", "next", "zero", 0)

    def __init__(
        self, x: Operand, y: Operand, kind: Any = "linear", axis: int = -1, copy: bool = True,
        bounds_error: bool | None = None, fill_value: Operand = np.nan, assume_sorted: bool = False,
    ) -> None:  # fmt: skip
        x = constant(x, "interp1d", "x")
        fill_value = plain(constant(fill_value, "interp1d", "fill_value"))
        options = (kind, axis, copy, bounds_error, fill_value, assume_sorted)
        super().__init__(_scipy.interp1d(x, value_of(y), *options), "scipy.interpolate.interp1d", (y,))
        self._kind, self._options = kind, options
        order = np.arange(np.size(x)) if assume_sorted else np.argsort(x, kind="mergesort")
        self._y, self.axis = first(y, axis)
        self._x, self._y = np.asarray(x, float)[order], self._y[order]
        degrees = {"linear": 1, "slinear": 1, "quadratic": 2, "cubic": 3}
        self._degree = None if kind in self.STEPS else degrees.get(kind, kind)
        if self._degree is not None:
            self._spline = make_interp_spline(self._x, self._y, self._degree)

    def __call__(self, x: Operand) -> TensorOrArray:
        """Evaluate it, as SciPy's."""
        if not derivative_wanted(x, self._y):
            return theirs(self._it, (x,), {})
        outer = self._it(value_of(x))  # refuses what is out of bounds
        x = doubles(x)
        at = value_of(x)
        fill = self._options[4] if isinstance(self._options[4], str) else -1.0  # "extrapolate"
        if self._degree is None:
            if derivative_wanted(x):
                raise refuse(f"{self.title} of kind {self._kind!r}", "has no derivative by x")
            numbers = np.arange(len(self._x), dtype=float)
            i = _scipy.interp1d(self._x, numbers, self._kind, bounds_error=False, fill_value=fill)(at)
            inside = i >= 0
            found = placed(self._y[np.where(inside, i, 0).astype(int)], np.ndim(at), self.axis)
        else:
            inside = ~np.isnan(at) if isinstance(fill, str) else (at >= self._x[0]) & (at <= self._x[-1])
            found = placed(self._spline(x), np.ndim(at), self.axis)
        if np.all(inside):
            return found
        rest = np.ndim(found) - np.ndim(at) - self.axis
        inside = np.reshape(inside, (*(1,) * self.axis, *np.shape(at), *(1,) * rest))
        return np.where(inside, found, outer)
