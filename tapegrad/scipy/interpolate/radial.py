"""Interpolation by radial functions, which stands in `tapegrad.scipy.interpolate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.interpolate as _scipy

from tapegrad.core.base import value_of
from tapegrad.errors import ShapeError
from tapegrad.scipy.calls import Guarded, derivative_wanted, doubles, refuse, theirs
from tapegrad.scipy.interpolate.piecewise import constant
from tapegrad.tensor import Operand, TensorOrArray

__all__ = ["RBFInterpolator"]

NAME = "scipy.interpolate.RBFInterpolator"
SMOOTH: dict[str, Callable[[Any], Any]] = {  # of the square of a distance
    "multiquadric": lambda s: -np.sqrt(s + 1), "inverse_multiquadric": lambda s: 1 / np.sqrt(s + 1),
    "inverse_quadratic": lambda s: 1 / (s + 1), "gaussian": lambda s: np.exp(-s),
}  # fmt: skip
ROOTED: dict[str, Callable[[Any], Any]] = {  # which are 0 at 0, where the root has no derivative
    "linear": lambda s: -np.sqrt(s), "thin_plate_spline": lambda s: 0.5 * s * np.log(s),
    "cubic": lambda s: s * np.sqrt(s), "quintic": lambda s: -s * s * np.sqrt(s),
}  # fmt: skip


class RBFInterpolator(Guarded):
    """Interpolant by a function of the distance from each of the places, and a polynomial.

    Parameters
    ----------
    y : array_like, shape (n, d)
        Places, constants.
    d : Tensor or array_like, shape (n, ...)
        Data.
    neighbors, smoothing, kernel, epsilon, degree : optional
        As SciPy has them; `smoothing` and `epsilon` may be Tensors. With `neighbors` there is no derivative.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> data = tg.tensor([0.0, 1.0, 3.0], requires_grad=True)
    >>> f = ts.interpolate.RBFInterpolator([[0.0], [1.0], [3.0]], data)
    >>> tg.grad(f([[1.0]])[0], data)[0].numpy().round(12) + 0.0
    array([0., 1., 0.])
    """

    def __init__(
        self, y: Operand, d: Any, neighbors: int | None = None, smoothing: Any = 0.0,
        kernel: str = "thin_plate_spline", epsilon: Any = None, degree: int | None = None,
    ) -> None:  # fmt: skip
        self._places = np.asarray(constant(y, "RBFInterpolator", "y"), float)
        values, given = value_of(d), (d, smoothing, epsilon)
        it = _scipy.RBFInterpolator(
            self._places, values, neighbors, value_of(smoothing), kernel, value_of(epsilon), degree
        )
        super().__init__(it, NAME, given, "has no derivative" + " with neighbors" * (neighbors is not None))
        self._given, self._whole = derivative_wanted(*given), neighbors is None
        self._kernel, self._epsilon = kernel.lower(), it.epsilon if epsilon is None else epsilon
        low, high = np.min(self._places, axis=0), np.max(self._places, axis=0)
        self._shift, self._scale = (low + high) / 2, np.where(high > low, (high - low) / 2, 1.0)
        self._data, self._smoothing = d, smoothing
        self._coefficients: Any = None

    def _solved(self) -> Any:
        """Coefficients of the functions and of the polynomial, for each number in the data."""
        if self._coefficients is None:
            n, data = len(self._places), doubles(self._data)
            terms = self._terms(self._places)
            lower = np.concatenate([terms[:, n:].T, np.zeros((np.shape(terms)[1] - n,) * 2)], axis=1)
            weights = np.broadcast_to(doubles(self._smoothing), (n,))
            upper = terms + np.concatenate([np.diag(weights), np.zeros(np.shape(terms[:, n:]))], axis=1)
            matrix = np.concatenate([upper, lower])
            right = np.reshape(data, (n, -1))
            rest = np.zeros((len(lower), np.shape(right)[1]))
            self._coefficients = np.linalg.solve(matrix, np.concatenate([right, rest]))
        return self._coefficients

    def _terms(self, x: TensorOrArray) -> Any:
        """The functions and the monomials at places, in rows."""
        apart = (x[:, None] - self._places) * self._epsilon
        squares = np.sum(apart * apart, axis=-1)
        if self._kernel in SMOOTH:
            found = SMOOTH[self._kernel](squares)
        else:
            at = value_of(squares) == 0
            found = np.where(at, 0.0, ROOTED[self._kernel](np.where(at, 1.0, squares)))
        off = (x - self._shift) / self._scale
        monomials = [np.prod(off**powers, axis=-1) for powers in np.asarray(self._it.powers)]
        return np.concatenate([found, np.stack(monomials, axis=-1)], axis=1) if monomials else found

    def __call__(self, x: Operand) -> TensorOrArray:
        """Evaluate it, at places in rows."""
        if not (self._given or derivative_wanted(x)):
            return theirs(self._it, (x,), {})
        if not self._whole:
            raise refuse(NAME, self._why)
        x = doubles(x)
        if np.ndim(x) != 2 or np.shape(x)[1] != self._places.shape[1]:
            raise ShapeError(
                f"{NAME}: places have shape (m, {self._places.shape[1]}), found shape {np.shape(x)}"
            )
        found = self._terms(x) @ self._solved()
        return np.reshape(found, (np.shape(x)[0], *np.shape(self._data)[1:]))
