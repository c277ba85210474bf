"""Density estimates of `scipy.stats`, which stand in `tapegrad.scipy.stats`."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.stats as _scipy

from tapegrad.core.base import value_of
from tapegrad.errors import ShapeError
from tapegrad.scipy.calls import Guarded, derivative_wanted, doubles, theirs
from tapegrad.scipy.special import logsumexp
from tapegrad.tensor import Operand, TensorOrArray

__all__ = ["gaussian_kde"]


class gaussian_kde(Guarded):
    """Density estimate by a normal distribution at each point of data.

    ``evaluate``, ``pdf``, ``logpdf`` and calls of it are differentiated by data, weights and places, also
    through the bandwidth; all else is SciPy's.

    Parameters
    ----------
    dataset : Tensor or array_like, shape (n,) or (d, n)
    bw_method, weights : optional
        As SciPy has them; `weights` may be a Tensor.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> data = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.stats.gaussian_kde(data)(3.0)[0], data)
    (tensor([ 0.0394,  0.0520, -0.0533]),)
    """

    constants = ("d", "n")

    def __init__(self, dataset: Operand, bw_method: Any = None, weights: Operand | None = None) -> None:
        it = _scipy.gaussian_kde(value_of(dataset), value_of(bw_method), value_of(weights))
        super().__init__(it, "scipy.stats.gaussian_kde", (dataset, bw_method, weights))
        self._given = derivative_wanted(dataset, bw_method, weights)
        self._points = np.atleast_2d(doubles(dataset))
        self._method = bw_method
        if weights is None:
            self._weights: Any = np.full(it.n, 1 / it.n)
        else:
            whole = np.atleast_1d(doubles(weights))
            self._weights = whole / np.sum(whole)

    def _factor(self) -> Any:
        """What the spread of the data is multiplied by."""
        method, it = self._method, self._it
        if method is None or isinstance(method, str):
            count = 1 / np.sum(self._weights * self._weights)
            scale = count if method != "silverman" else count * (it.d + 2) / 4
            return scale ** (-1 / (it.d + 4))
        return it.factor if callable(method) else method

    def logpdf(self, x: Operand) -> TensorOrArray:
        """The logarithm of the density at points, in columns."""
        if not self._given and not derivative_wanted(x):
            return theirs(self._it.logpdf, (x,), {})
        x, d = np.atleast_2d(doubles(x)), self._it.d
        if np.shape(x)[0] != d:
            if np.shape(x) != (1, d):
                raise ShapeError(f"{self.title}: points have {np.shape(x)[0]} coordinates, data {d}")
            x = np.reshape(x, (d, 1))
        w, points = self._weights, self._points
        off = points - np.sum(points * w, axis=1, keepdims=True)
        cov = (off * w) @ off.T / (1 - np.sum(w * w)) * self._factor() ** 2
        low = np.linalg.cholesky(cov)
        whole = np.linalg.solve(low, np.concatenate([x, points], axis=1))
        apart = whole[:, : np.shape(x)[1], None] - whole[:, None, np.shape(x)[1] :]
        scale = np.sum(np.log(np.diagonal(low))) + d / 2 * np.log(2 * np.pi)
        return logsumexp(-0.5 * np.sum(apart * apart, axis=0), axis=1, b=w) - scale

    def evaluate(self, points: Operand) -> TensorOrArray:
        """The density at points, in columns."""
        if not self._given and not derivative_wanted(points):
            return theirs(self._it.evaluate, (points,), {})
        return np.exp(self.logpdf(points))

    __call__ = pdf = evaluate
