"""Interpolants of data on grids, which stand in `tapegrad.scipy.interpolate`.

They are sums of products of B-splines, of one along each axis, of which at a place few are not 0. Their
coefficients are linear functions of the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.interpolate as _scipy

from tapegrad.core.base import value_of
from tapegrad.func.signatures import Function
from tapegrad.numpy_api.tables import plain
from tapegrad.scipy.calls import Guarded, derivative_wanted, doubles, refuse, theirs
from tapegrad.scipy.interpolate.piecewise import PPoly, applied, basis_pieces, constant, interval_of
from tapegrad.tensor import Operand, TensorOrArray

__all__ = ["RectBivariateSpline", "RegularGridInterpolator", "coordinates", "interpn"]

DEGREES = {"linear": 1, "slinear": 1, "cubic": 3, "quintic": 5}


class _Axis:
    """The B-splines of an axis.

    Parameters
    ----------
    t : ndarray
        Knots.
    k : int
        Degree.
    """

    def __init__(self, t: np.ndarray, k: int) -> None:
        pieces, self.k = basis_pieces(t, k), k
        i = np.arange(pieces.shape[1])[:, None]
        self.ends = t[k : len(t) - k]
        self._there = PPoly(pieces[:, i, i + np.arange(k + 1)], self.ends)

    @classmethod
    def linear(cls, p: np.ndarray) -> _Axis:
        """Those of lines between places, of which there may be one."""
        return cls(np.append(p, p + 1), 0) if len(p) == 1 else cls(np.concatenate([p[:1], p, p[-1:]]), 1)

    def nonzero(self, x: TensorOrArray) -> np.ndarray:
        """Return the numbers of the splines that are not 0 at places, along one more axis than those have."""
        return interval_of(self.ends, value_of(x))[..., None] + np.arange(self.k + 1)

    def values(self, x: TensorOrArray, nu: int) -> TensorOrArray:
        """Return the values of these, or their derivatives of some order."""
        return self._there(x, nu)


def _combined(
    c: TensorOrArray, axes: Sequence[_Axis], x: Sequence[TensorOrArray], nu: Sequence[int]
) -> TensorOrArray:
    """Sums of products of splines at places, each with a coordinate along each axis."""
    n, rank = len(axes), np.ndim(x[0])
    rest = np.ndim(c) - n
    shape = np.shape(x[0])
    places = [
        np.reshape(axis.nonzero(at), (*shape, *(1,) * d, axis.k + 1, *(1,) * (n - 1 - d)))
        for d, (axis, at) in enumerate(zip(axes, x, strict=True))
    ]
    found = c[tuple(places)]
    for d in range(n - 1, -1, -1):
        weights = np.reshape(axes[d].values(x[d], nu[d]), (*shape, *(1,) * d, axes[d].k + 1, *(1,) * rest))
        found = np.sum(found * weights, axis=rank + d)
    return found


def _along(matrix: np.ndarray, values: Any, axis: int) -> Any:
    """A matrix times an array along an axis."""
    found: Any = applied(matrix, np.moveaxis(values, axis, 0))
    return np.moveaxis(found, 0, axis)


class RegularGridInterpolator(Guarded):
    """Interpolant of data on a regular grid.

    Parameters
    ----------
    points : tuple of array_like
        Places along each axis, constants.
    values : Tensor or array_like
        Data.
    method : str, optional
        Derivatives are there for "linear", "slinear", "cubic" and "quintic", and by the data for "nearest".
    bounds_error, fill_value, solver, solver_args : optional
        As SciPy has them. The derivatives of a cubic or quintic one are exact, its values those of `solver`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> values = tg.tensor([[0.0, 1.0], [2.0, 5.0]], requires_grad=True)
    >>> x = tg.tensor([0.5, 0.5], requires_grad=True)
    >>> grid = ts.interpolate.RegularGridInterpolator(([0.0, 1.0], [0.0, 1.0]), values)
    >>> tg.grad(grid(x)[0], [values, x])
    (tensor([[0.25, 0.25],
            [0.25, 0.25]]), tensor([3., 2.]))
    """

    constants = ("grid", "method", "bounds_error", "fill_value")

    def __init__(
        self, points: Any, values: Operand, method: str = "linear",
        bounds_error: bool = True, fill_value: float | None = np.nan, *, solver: Function | None = None,
        solver_args: Mapping[str, str | float] | None = None,
    ) -> None:  # fmt: skip
        name = "RegularGridInterpolator"
        points = tuple(constant(p, name, "points") for p in points)
        fill_value = constant(fill_value, name, "fill_value")
        options = {"solver": solver, "solver_args": solver_args}
        it = _scipy.RegularGridInterpolator(
            points, value_of(values), method, bounds_error, fill_value, **options
        )
        super().__init__(it, f"scipy.interpolate.{name}", (values,))
        self._values = doubles(values)
        for axis, p in enumerate(points):
            if len(p) > 1 and p[0] > p[-1]:
                self._values = np.flip(self._values, axis)
        self._splines: dict[int, tuple[list[_Axis], TensorOrArray]] = {}

    def __call__(self, xi: Operand, method: str | None = None, *, nu: Operand | None = None) -> TensorOrArray:
        """Evaluate it, as SciPy's."""
        if not derivative_wanted(xi, self._values):
            return theirs(self._it, (xi, method), {"nu": nu})
        kind = self._it.method if method is None else method
        if kind != "nearest" and kind not in DEGREES:
            raise refuse(
                f"{self.title} with method={kind!r}", f"has no derivative but for 'nearest' and {[*DEGREES]}"
            )
        if kind == "nearest" and derivative_wanted(xi):
            raise refuse(f"{self.title} with method='nearest'", "has no derivative by xi")
        outer = self._it(plain(xi), method, nu=nu)  # refuses what is out of bounds
        xi, grid = coordinates(xi), self._it.grid
        if np.ndim(xi) == 1:
            xi = np.reshape(xi, (1, -1)) if len(grid) > 1 or np.shape(xi)[0] == 1 else xi[:, None]
        at = value_of(xi)
        if np.any(np.isnan(at)):
            xi = np.where(np.isnan(at), 0.0, xi)
        bad = np.isnan(at).any(axis=-1)
        if self._it.fill_value is not None:
            bad = bad | np.any(
                [(at[..., d] < p[0]) | (at[..., d] > p[-1]) for d, p in enumerate(grid)], axis=0
            )
        bad = np.reshape(bad, (*np.shape(bad), *(1,) * (np.ndim(self._values) - len(grid))))
        if kind == "nearest":
            found = self._values[tuple(_nearest(p, at[..., d]) for d, p in enumerate(grid))]
        else:
            degree = DEGREES[kind]
            axes, c = self._splines_of(degree)
            orders = [0] * len(grid) if nu is None else [int(order) for order in plain(nu)]
            found = _combined(c, axes, [xi[..., d] for d in range(len(grid))], orders)
            if degree > 1:
                found = found + np.where(bad, 0.0, outer - value_of(found))
        return np.where(bad, outer, found) if np.any(bad) else found

    def _splines_of(self, k: int) -> tuple[list[_Axis], TensorOrArray]:
        """The splines of a degree, and their coefficients."""
        if k not in self._splines:
            axes, c = [], self._values
            for d, p in enumerate(self._it.grid):
                p = np.asarray(p, float)
                if k == 1:
                    axes.append(_Axis.linear(p))
                else:
                    whole = _scipy.make_interp_spline(p, np.eye(len(p)), k)
                    axes.append(_Axis(whole.t, k))
                    c = _along(whole.c, c, d)
            self._splines[k] = axes, c
        return self._splines[k]


def coordinates(xi: Any) -> TensorOrArray:
    """Places by their coordinates along the last axis; a tuple has arrays of each."""
    return doubles(np.stack(np.broadcast_arrays(*map(doubles, xi)), axis=-1) if isinstance(xi, tuple) else xi)


def _nearest(p: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Which of some places is the nearest one, of two as near that to the left."""
    if len(p) == 1:
        return np.zeros(at.shape, int)
    i = interval_of(p, at)
    return i + ((at - p[i]) / (p[i + 1] - p[i]) > 0.5)


def interpn(
    points: Any,
    values: Operand,
    xi: Operand,
    method: str = "linear",
    bounds_error: bool = True,
    fill_value: float | None = np.nan,
) -> TensorOrArray:
    """Interpolate data on a regular grid.

    Parameters
    ----------
    points : tuple of array_like
        Places along each axis, constants.
    values : Tensor or array_like
        Data.
    xi : Tensor or array_like, shape (..., n)
        Where.
    method : str, optional
        As of `RegularGridInterpolator`, or "splinef2d".
    bounds_error, fill_value : optional
        As SciPy has them.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x, xi = np.arange(4.0), tg.tensor([1.5, 2.0], requires_grad=True)
    >>> tg.grad(ts.interpolate.interpn((x, x), np.outer(x**2, x), xi, "cubic")[0], xi)
    (tensor([6.00, 2.25]),)
    """
    if not derivative_wanted(values, xi):
        return theirs(_scipy.interpn, (points, values, xi, method, bounds_error, fill_value), {})
    if method != "splinef2d":
        return RegularGridInterpolator(points, values, method, bounds_error, fill_value)(xi)
    given = plain(values), plain(xi)
    outer = _scipy.interpn(points, *given, method, bounds_error, fill_value)  # refuses what is out of bounds
    at, (x, y) = coordinates(xi), points
    inside = np.all([(at[..., d] >= min(p)) & (at[..., d] <= max(p)) for d, p in enumerate(points)], axis=0)
    found = RectBivariateSpline(x, y, values).ev(at[..., 0], at[..., 1])
    return np.where(np.reshape(inside, outer.shape), np.reshape(found, outer.shape), outer)


class RectBivariateSpline(Guarded):
    """Spline of two variables through data on a grid.

    Parameters
    ----------
    x, y : array_like
        Places along the axes, constants.
    z : Tensor or array_like, shape (len(x), len(y))
        Data.
    bbox, kx, ky, s, maxit : optional
        As the SciPy installed has them. With `s`, by which it need not go through the data, it has no
        derivative by these.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = np.arange(5.0)
    >>> spline = ts.interpolate.RectBivariateSpline(x, x, np.outer(x**2, x))
    >>> at = tg.tensor(1.5, requires_grad=True)
    >>> tg.grad(spline.ev(at, 2.0), at)
    (tensor(6.),)
    """

    def __init__(
        self, x: Operand, y: Operand, z: Operand, bbox: Sequence[float | None] = (None,) * 4,
        kx: int = 3, ky: int = 3, s: float = 0, **options: int,
    ) -> None:  # fmt: skip
        name = "RectBivariateSpline"
        x, y = constant(x, name, "x"), constant(y, name, "y")
        it = _scipy.RectBivariateSpline(x, y, value_of(z), list(bbox), kx, ky, s, **options)
        super().__init__(it, f"scipy.interpolate.{name}", (z,))
        knots = it.get_knots()
        self._axes = [_Axis(t, k) for t, k in zip(knots, (kx, ky), strict=True)]
        counts = [len(t) - k - 1 for t, k in zip(knots, (kx, ky), strict=True)]
        self._c: TensorOrArray = np.reshape(it.get_coeffs(), counts)
        if derivative_wanted(z):
            if s:
                raise refuse(f"scipy.interpolate.{name} with s={s}", "has no derivative by z")
            self._c = doubles(z)
            for d, (p, t, k) in enumerate(zip((x, y), knots, (kx, ky), strict=True)):
                at_places = _scipy.BSpline.design_matrix(np.asarray(p, float), t, k).toarray()
                self._c = _along(np.linalg.inv(at_places), self._c, d)

    def __call__(self, x: Operand, y: Operand, dx: int = 0, dy: int = 0, grid: bool = True) -> TensorOrArray:
        """Evaluate it, or a derivative; as SciPy's, at each of x with each of y, or at pairs of them."""
        if not derivative_wanted(x, y, self._c):
            return theirs(self._it, (x, y, dx, dy, grid), {})
        self._it(plain(x), plain(y), dx, dy, grid)  # refuses what is wrong
        x, y = (self._within(axis, doubles(at)) for axis, at in zip(self._axes, (x, y), strict=True))
        if not grid:
            return _combined(self._c, self._axes, np.broadcast_arrays(x, y), (dx, dy))
        x, y = np.reshape(x, (-1,)), np.reshape(y, (-1,))
        rows = _combined(self._c, self._axes[:1], [x], [dx])
        return np.transpose(_combined(np.transpose(rows), self._axes[1:], [y], [dy]))

    def ev(self, xi: Operand, yi: Operand, dx: int = 0, dy: int = 0) -> TensorOrArray:
        """Evaluate it at pairs, as SciPy's."""
        return self(xi, yi, dx, dy, grid=False)

    @staticmethod
    def _within(axis: _Axis, x: TensorOrArray) -> TensorOrArray:
        """Places, those outside moved to the nearest end."""
        low, high = axis.ends[[0, -1]]
        return np.where(x < low, low, np.where(x > high, high, x))
