"""Interpolants of data at scattered places, which stand in `tapegrad.scipy.interpolate`."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.interpolate as _scipy

from tapegrad.core.base import value_of
from tapegrad.numpy_api.tables import plain
from tapegrad.scipy.calls import Guarded, derivative_wanted, doubles, refuse, theirs
from tapegrad.scipy.interpolate.grids import coordinates
from tapegrad.scipy.interpolate.piecewise import constant
from tapegrad.scipy.interpolate.splines import interp1d
from tapegrad.tensor import Operand, TensorOrArray

__all__ = ["LinearNDInterpolator", "NearestNDInterpolator", "griddata"]


class LinearNDInterpolator(Guarded):
    """Interpolant that is linear in each simplex of a triangulation of the places of the data.

    Parameters
    ----------
    points : array_like, shape (m, n)
        Places of the data, or a `scipy.spatial.Delaunay`; constants.
    values : Tensor or array_like, shape (m, ...)
        Data.
    fill_value, rescale : optional
        As SciPy has them; outside of the convex hull the derivative is 0.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> values = tg.tensor([0.0, 1.0, 2.0], requires_grad=True)
    >>> at = tg.tensor([0.25, 0.5], requires_grad=True)
    >>> f = ts.interpolate.LinearNDInterpolator([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], values)
    >>> tg.grad(f(at)[0], [values, at])
    (tensor([0.25, 0.25, 0.50]), tensor([1., 2.]))
    """

    constants = ("points", "tri", "fill_value")

    def __init__(
        self, points: Any, values: Operand, fill_value: float = np.nan, rescale: bool = False
    ) -> None:
        name = "LinearNDInterpolator"
        points, fill_value = constant(points, name, "points"), constant(fill_value, name, "fill_value")
        it = _scipy.LinearNDInterpolator(points, value_of(values), fill_value, rescale)
        super().__init__(it, f"scipy.interpolate.{name}", (values,))
        self._values = doubles(values)

    def __call__(self, *args: Operand) -> TensorOrArray:
        """Evaluate it, as SciPy's: at places of an array, or of an array for each coordinate."""
        if not derivative_wanted(args, self._values):
            return theirs(self._it, args, {})
        it, xi = self._it, coordinates(args if len(args) > 1 else args[0])
        outer = it(value_of(xi))
        if np.ndim(xi) == 1:
            xi = np.reshape(xi, (-1, it.points.shape[1]))
        if it.scale is not None:
            xi = (xi - it.offset) / it.scale
        simplex = it.tri.find_simplex(value_of(xi))
        affine = it.tri.transform[simplex]
        parts = np.sum(affine[..., :-1, :] * (xi - affine[..., -1, :])[..., None, :], axis=-1)
        weights = np.concatenate([parts, 1 - np.sum(parts, axis=-1, keepdims=True)], axis=-1)
        corners = self._values[it.tri.simplices[simplex]]
        weights = np.reshape(weights, (*np.shape(weights), *(1,) * (np.ndim(self._values) - 1)))
        found = np.sum(corners * weights, axis=simplex.ndim)
        outside = np.reshape(simplex < 0, (*simplex.shape, *(1,) * (np.ndim(self._values) - 1)))
        return np.where(outside, np.reshape(outer, np.shape(found)), found) if np.any(outside) else found


class NearestNDInterpolator(Guarded):
    """Interpolant that takes the nearest of the data.

    Parameters
    ----------
    x : array_like, shape (m, n)
        Places of the data, constants.
    y : Tensor or array_like, shape (m, ...)
        Data.
    rescale, tree_options : optional
        As SciPy has them.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> values = tg.tensor([0.0, 1.0, 2.0], requires_grad=True)
    >>> f = ts.interpolate.NearestNDInterpolator([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], values)
    >>> tg.grad(f(0.9, 0.2), values)
    (tensor([0., 1., 0.]),)
    """

    constants = ("points", "tree")

    def __init__(
        self, x: Operand, y: Operand, rescale: bool = False, tree_options: dict[str, Any] | None = None
    ) -> None:
        name = "NearestNDInterpolator"
        x = constant(x, name, "x")
        it = _scipy.NearestNDInterpolator(x, value_of(y), rescale, tree_options)
        super().__init__(it, f"scipy.interpolate.{name}", (y,))
        self._values = y
        self._numbers = _scipy.NearestNDInterpolator(x, np.arange(len(it.points)), rescale, tree_options)

    def __call__(self, *args: Operand, **query_options: Any) -> TensorOrArray:
        """Evaluate it, as SciPy's."""
        if derivative_wanted(args):
            raise refuse(self.title, "has no derivative by the places")
        if not derivative_wanted(self._values):
            return theirs(self._it, args, query_options)
        places = self._numbers(*map(plain, args), **query_options)
        found: TensorOrArray = doubles(self._values)[np.nan_to_num(places).astype(int)]
        return found


def griddata(
    points: Any,
    values: Any,
    xi: Operand,
    method: str = "linear",
    fill_value: float = np.nan,
    rescale: bool = False,
) -> TensorOrArray:
    """Interpolate data at scattered places.

    Parameters
    ----------
    points : array_like, shape (m, n), or tuple of n arrays
        Places of the data, constants.
    values : Tensor or array_like, shape (m,)
        Data.
    xi : Tensor or array_like, shape (..., n), or tuple of n arrays
        Where.
    method : str, optional
        "linear", or "nearest", of which there is no derivative by `xi`; in one dimension "cubic" too.
    fill_value, rescale : optional
        As SciPy has them.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> at = tg.tensor([0.25, 0.5], requires_grad=True)
    >>> tg.grad(ts.interpolate.griddata([[0, 0], [1, 0], [0, 1]], [0.0, 1.0, 2.0], at)[0], at)
    (tensor([1., 2.]),)
    """
    if not derivative_wanted(values, xi):
        return theirs(_scipy.griddata, (points, values, xi, method, fill_value, rescale), {})
    points = constant(coordinates(points), "griddata", "points")
    if np.ndim(points) < 2 or np.shape(points)[1] == 1:
        order = np.argsort(np.ravel(points))
        fill = "extrapolate" if method == "nearest" else fill_value
        xi = xi[0] if isinstance(xi, tuple) else xi
        return interp1d(
            np.ravel(points)[order],
            doubles(values)[order],
            method,
            axis=0,
            bounds_error=False,
            fill_value=fill,
        )(xi)
    if method == "nearest":
        return NearestNDInterpolator(points, values, rescale)(xi)
    if method != "linear":
        raise refuse(f"scipy.interpolate.griddata with method={method!r}")
    return LinearNDInterpolator(points, values, fill_value, rescale)(xi)
