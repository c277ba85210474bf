"""Distances of `scipy.spatial.distance` on Tensors and arrays; all its other names are its own.

Where two points coincide a distance that is a norm has the derivative 0, as a norm has at 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.spatial.distance as _scipy

from tapegrad.core.base import decide, value_of
from tapegrad.core.operators import constant_value
from tapegrad.errors import ShapeError
from tapegrad.scipy.calls import derivative_wanted, derived, doubles, fall_through, refuse
from tapegrad.tensor import Operand, TensorOrArray

if TYPE_CHECKING:
    from tapegrad.tensor import Tensor

__all__ = [
    "braycurtis", "canberra", "cdist", "chebyshev", "cityblock", "correlation", "cosine", "euclidean",
    "mahalanobis", "minkowski", "pdist", "seuclidean", "sqeuclidean", "squareform",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return fall_through(_scipy, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})


# ---------------------------------------------------------------- along the last axis


def _root(square: Operand) -> TensorOrArray:
    """A square root whose derivative is 0 at 0."""
    none = decide(np.equal, square, 0)
    return np.where(none, 0.0, np.sqrt(np.where(none, 1.0, square))) if np.any(none) else np.sqrt(square)


def _euclidean(u: TensorOrArray, v: TensorOrArray, w: TensorOrArray | float | None = None) -> TensorOrArray:
    return np.linalg.norm(u - v if w is None else np.sqrt(w) * (u - v), axis=-1)


def _sqeuclidean(u: TensorOrArray, v: TensorOrArray, w: TensorOrArray | float | None = None) -> TensorOrArray:
    off = u - v
    return np.sum(off * off if w is None else w * (off * off), axis=-1)


def _cityblock(u: TensorOrArray, v: TensorOrArray, w: TensorOrArray | float | None = None) -> Tensor:
    off = np.abs(u - v)
    return np.sum(off if w is None else w * off, axis=-1)


def _chebyshev(u: TensorOrArray, v: TensorOrArray, w: TensorOrArray | float | None = None) -> Tensor:
    off = np.abs(u - v)
    return np.max(off if w is None else np.where(value_of(w) > 0, off, 0.0), axis=-1)


def _minkowski(
    u: TensorOrArray, v: TensorOrArray, p: float = 2, w: TensorOrArray | None = None
) -> TensorOrArray:
    if derivative_wanted(p):
        raise refuse("scipy.spatial.distance.minkowski", "has no derivative by p")
    p = value_of(p)
    if p <= 0:
        raise ValueError(f"scipy.spatial.distance.minkowski: p is {p}; give a positive number")
    if p in (1, 2, np.inf):
        return {1: _cityblock, 2: _euclidean, np.inf: _chebyshev}[p](u, v, w)
    terms = np.power(np.abs(u - v), p)
    total = np.sum(terms if w is None else w * terms, axis=-1)
    none = decide(np.equal, total, 0)
    return np.where(none, 0.0, np.power(np.where(none, 1.0, total), 1 / p))


def _correlation(
    u: TensorOrArray | float,
    v: TensorOrArray | float,
    w: TensorOrArray | float | None = None,
    centered: bool = True,
) -> Tensor:
    w = 1.0 / np.shape(u)[-1] if w is None else w / np.sum(w)
    if centered:
        u = u - np.sum(u * w, axis=-1, keepdims=True)
        v = v - np.sum(v * w, axis=-1, keepdims=True)
    uv, uu, vv = (np.sum(a * b * w, axis=-1) for a, b in ((u, v), (u, u), (v, v)))
    found = 1.0 - uv / np.sqrt(uu * vv)
    at = constant_value(found)
    return found + (np.clip(at, 0.0, 2.0) - at)  # of rounding, which has no derivative


def _cosine(u: TensorOrArray, v: TensorOrArray, w: TensorOrArray | float | None = None) -> Tensor:
    return _correlation(u, v, w, False)


def _seuclidean(u: TensorOrArray, v: TensorOrArray, V: TensorOrArray) -> TensorOrArray:
    return _euclidean(u, v, 1 / V)


def _mahalanobis(u: TensorOrArray, v: TensorOrArray, VI: TensorOrArray) -> TensorOrArray:
    off = u - v
    return _root(np.sum((off @ VI) * off, axis=-1))


def _braycurtis(u: TensorOrArray, v: TensorOrArray, w: TensorOrArray | float | None = None) -> Tensor:
    off, whole = np.abs(u - v), np.abs(u + v)
    if w is not None:
        off, whole = w * off, w * whole
    return np.sum(off, axis=-1) / np.sum(whole, axis=-1)


def _canberra(u: TensorOrArray, v: TensorOrArray, w: TensorOrArray | float | None = None) -> Tensor:
    off, whole = np.abs(u - v), np.abs(u) + np.abs(v)
    none = decide(np.equal, whole, 0)
    terms = np.where(none, 0.0, off / np.where(none, 1.0, whole))
    return np.sum(terms if w is None else w * terms, axis=-1)


ROWS = {
    "euclidean": _euclidean, "sqeuclidean": _sqeuclidean, "cityblock": _cityblock, "chebyshev": _chebyshev,
    "minkowski": _minkowski, "cosine": _cosine, "correlation": _correlation, "seuclidean": _seuclidean,
    "mahalanobis": _mahalanobis, "braycurtis": _braycurtis, "canberra": _canberra,
}  # fmt: skip


# ---------------------------------------------------------------- of two vectors


def _vectors(name: str, u: Operand, v: Operand, *rest: Operand | None) -> Any:
    """Two vectors of as many numbers, and other arguments, in double precision."""
    u, v = doubles(u), doubles(v)
    if np.ndim(u) != 1 or np.shape(u) != np.shape(v):
        raise ShapeError(
            f"scipy.spatial.distance.{name}: two vectors of as many numbers are needed, found shapes "
            f"{np.shape(u)} and {np.shape(v)}"
        )
    others = [None if x is None else doubles(x) for x in rest]
    return [u, v, *others]


@derived(_scipy.euclidean)
def euclidean(u: Operand, v: Operand, w: Operand | None = None) -> TensorOrArray:
    """Length of the difference of two vectors.

    Parameters
    ----------
    u, v : Tensor or array_like
    w : Tensor or array_like, optional
        Weights.

    Returns
    -------
    Tensor
        As `scipy.spatial.distance.euclidean`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> u = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(ts.spatial.distance.euclidean(u, [4.0, 6.0]), u)
    (tensor([-0.6, -0.8]),)
    """
    return _euclidean(*_vectors("euclidean", u, v, w))


@derived(_scipy.sqeuclidean)
def sqeuclidean(u: Operand, v: Operand, w: Operand | None = None) -> TensorOrArray:
    """Its square.

    Parameters
    ----------
    u, v : Tensor or array_like
    w : Tensor or array_like, optional
        Weights.

    Returns
    -------
    Tensor
        As `scipy.spatial.distance.sqeuclidean`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> u = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(ts.spatial.distance.sqeuclidean(u, [4.0, 6.0]), u)
    (tensor([-6., -8.]),)
    """
    return _sqeuclidean(*_vectors("sqeuclidean", u, v, w))


@derived(_scipy.cityblock)
def cityblock(u: Operand, v: Operand, w: Operand | None = None) -> TensorOrArray:
    """Sum of distances along the axes.

    Parameters
    ----------
    u, v : Tensor or array_like
    w : Tensor or array_like, optional
        Weights.

    Returns
    -------
    Tensor
        As `scipy.spatial.distance.cityblock`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> u = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(ts.spatial.distance.cityblock(u, [4.0, 6.0]), u)
    (tensor([-1., -1.]),)
    """
    return _cityblock(*_vectors("cityblock", u, v, w))


@derived(_scipy.chebyshev)
def chebyshev(u: Operand, v: Operand, w: Operand | None = None) -> TensorOrArray:
    """Largest distance along an axis.

    Parameters
    ----------
    u, v : Tensor or array_like
    w : Tensor or array_like, optional
        Weights.

    Returns
    -------
    Tensor
        As `scipy.spatial.distance.chebyshev`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> u = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(ts.spatial.distance.chebyshev(u, [4.0, 6.0]), u)
    (tensor([-0., -1.]),)
    """
    return _chebyshev(*_vectors("chebyshev", u, v, w))


@derived(_scipy.cosine)
def cosine(u: Operand, v: Operand, w: Operand | None = None) -> TensorOrArray:
    """1 less the cosine of the angle between two vectors.

    Parameters
    ----------
    u, v : Tensor or array_like
    w : Tensor or array_like, optional
        Weights.

    Returns
    -------
    Tensor
        As `scipy.spatial.distance.cosine`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> u = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(ts.spatial.distance.cosine(u, [4.0, 6.0]), u)
    (tensor([-0.0496,  0.0248]),)
    """
    return _cosine(*_vectors("cosine", u, v, w))


@derived(_scipy.braycurtis)
def braycurtis(u: Operand, v: Operand, w: Operand | None = None) -> TensorOrArray:
    """Sum of distances along the axes, by that of sums.

    Parameters
    ----------
    u, v : Tensor or array_like
    w : Tensor or array_like, optional
        Weights.

    Returns
    -------
    Tensor
        As `scipy.spatial.distance.braycurtis`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> u = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(ts.spatial.distance.braycurtis(u, [4.0, 6.0]), u)
    (tensor([-0.1183, -0.1183]),)
    """
    return _braycurtis(*_vectors("braycurtis", u, v, w))


@derived(_scipy.canberra)
def canberra(u: Operand, v: Operand, w: Operand | None = None) -> TensorOrArray:
    """Sum of distances along the axes, each by the sum of sizes.

    Parameters
    ----------
    u, v : Tensor or array_like
    w : Tensor or array_like, optional
        Weights.

    Returns
    -------
    Tensor
        As `scipy.spatial.distance.canberra`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> u = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(ts.spatial.distance.canberra(u, [4.0, 6.0]), u)
    (tensor([-0.3200, -0.1875]),)
    """
    return _canberra(*_vectors("canberra", u, v, w))


@derived(_scipy.minkowski)
def minkowski(u: Operand, v: Operand, p: float = 2, w: Operand | None = None) -> TensorOrArray:
    """Norm of some order of the difference of two vectors.

    Parameters
    ----------
    u, v : Tensor or array_like
    p : float, optional
        The order, a constant.
    w : Tensor or array_like, optional
        Weights.

    Returns
    -------
    Tensor
        As `scipy.spatial.distance.minkowski`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> u = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(ts.spatial.distance.minkowski(u, [4.0, 6.0], p=3), u)
    (tensor([-0.4449, -0.7908]),)
    """
    first, second, weights = _vectors("minkowski", u, v, w)
    return _minkowski(first, second, p, weights)


@derived(_scipy.correlation)
def correlation(u: Operand, v: Operand, w: Operand | None = None, centered: bool = True) -> TensorOrArray:
    """1 less the correlation of two vectors.

    Parameters
    ----------
    u, v : Tensor or array_like
    w : Tensor or array_like, optional
        Weights.
    centered : bool, optional

    Returns
    -------
    Tensor
        As `scipy.spatial.distance.correlation`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> u = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(ts.spatial.distance.correlation(u, [4.0, 2.0], centered=False), u)
    (tensor([-0.24,  0.12]),)
    """
    first, second, weights = _vectors("correlation", u, v, w)
    return _correlation(first, second, weights, centered)


@derived(_scipy.seuclidean)
def seuclidean(u: Operand, v: Operand, V: Operand) -> TensorOrArray:
    """Length of the difference, each element by its deviation.

    Parameters
    ----------
    u, v : Tensor or array_like
    V : Tensor or array_like
        Variances.

    Returns
    -------
    Tensor
        As `scipy.spatial.distance.seuclidean`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> u = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(ts.spatial.distance.seuclidean(u, [4.0, 6.0], [1.0, 4.0]), u)
    (tensor([-0.8321, -0.2774]),)
    """
    return _seuclidean(*_vectors("seuclidean", u, v, V))


@derived(_scipy.mahalanobis)
def mahalanobis(u: Operand, v: Operand, VI: Operand) -> TensorOrArray:
    """Length of the difference by a covariance.

    Parameters
    ----------
    u, v : Tensor or array_like
    VI : Tensor or array_like
        Inverse of the covariance.

    Returns
    -------
    Tensor
        As `scipy.spatial.distance.mahalanobis`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> u = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(ts.spatial.distance.mahalanobis(u, [4.0, 6.0], [[1.0, 0.0], [0.0, 1.0]]), u)
    (tensor([-0.6, -0.8]),)
    """
    return _mahalanobis(*_vectors("mahalanobis", u, v, VI))


# ---------------------------------------------------------------- of many


def _metric(
    metric: str, function: str, points: Callable[..., TensorOrArray], kwargs: dict[str, Operand]
) -> Callable[..., TensorOrArray]:
    """A distance along the last axis, as SciPy names it, of all points."""
    names = _scipy._METRIC_ALIAS
    known = names.get(metric.lower() if isinstance(metric, str) else getattr(metric, "__name__", ""))
    row: Any = ROWS.get(known.canonical_name) if known is not None else None
    if row is None:
        raise refuse(f"scipy.spatial.distance.{function} with metric={metric!r}")
    if kwargs.get("out") is not None:
        raise refuse(f"scipy.spatial.distance.{function} with out=")
    others = {key: x if key == "p" else doubles(x) for key, x in kwargs.items() if x is not None}
    if row is _seuclidean and "V" not in others:
        others["V"] = np.var(points(), axis=0, ddof=1)
    if row is _mahalanobis and "VI" not in others:
        others["VI"] = np.linalg.inv(np.cov(points().T)).T
    return lambda u, v: row(u, v, **others)


def _matrix(x: Operand, name: str) -> TensorOrArray:
    x = doubles(x)
    if np.ndim(x) != 2:
        raise ValueError(f"{name} has shape {np.shape(x)}; give a matrix with a point in each row")
    return x


@derived(_scipy.cdist)
def cdist(XA: Operand, XB: Operand, metric: str = "euclidean", **kwargs: Operand) -> TensorOrArray:
    """Distances of each point of one set from each of another.

    Parameters
    ----------
    XA, XB : Tensor or array_like
        Matrices with a point in each row.
    metric : str or callable, optional
        One of those of this module.
    **kwargs
        Its arguments: w, p, V, VI.

    Returns
    -------
    Tensor
        As `scipy.spatial.distance.cdist`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[0.0, 0.0]], requires_grad=True)
    >>> tg.grad(np.sum(ts.spatial.distance.cdist(a, [[3.0, 4.0], [0.0, 1.0]])), a)
    (tensor([[-0.6, -1.8]]),)
    """
    a, b = _matrix(XA, "XA"), _matrix(XB, "XB")
    if np.shape(a)[1] != np.shape(b)[1]:
        raise ValueError(
            f"scipy.spatial.distance.cdist: points of {np.shape(a)[1]} coordinates and of {np.shape(b)[1]}; "
            "give as many in XA and XB"
        )
    of = _metric(metric, "cdist", lambda: np.concatenate([a, b]), kwargs)
    return of(a[:, None, :], b[None, :, :])


@derived(_scipy.pdist)
def pdist(X: Operand, metric: str = "euclidean", **kwargs: Operand) -> TensorOrArray:
    """Distances of each two points of a set.

    Parameters
    ----------
    X : Tensor or array_like
        A matrix with a point in each row.
    metric : str or callable, optional
        One of those of this module.
    **kwargs
        Its arguments: w, p, V, VI.

    Returns
    -------
    Tensor
        As `scipy.spatial.distance.pdist`: a vector, which `squareform` makes a matrix.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    >>> tg.grad(ts.spatial.distance.pdist(x)[0], x)
    (tensor([[-0.6, -0.8],
            [ 0.6,  0.8]]),)
    """
    x = _matrix(X, "X")
    first, second = np.triu_indices(np.shape(x)[0], 1)
    return _metric(metric, "pdist", lambda: x, kwargs)(x[first], x[second])


@derived(_scipy.squareform)
def squareform(X: Any, force: str = "no", checks: bool = True) -> TensorOrArray:
    """A vector of distances as a matrix, or back.

    Parameters
    ----------
    X : Tensor or array_like
    force, checks : optional
        As SciPy has them.

    Returns
    -------
    Tensor
        As `scipy.spatial.distance.squareform`; of a matrix the upper triangle is read.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> d = tg.tensor([3.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.spatial.distance.squareform(d)), d)
    (tensor([2.]),)
    """
    found = _scipy.squareform(value_of(X), force, checks)  # refuses what is neither
    if np.ndim(X) == 2:
        return X[np.triu_indices(np.shape(X)[0], 1)]
    size = len(found)
    places = np.zeros((size, size), int)
    places[np.triu_indices(size, 1)] = np.arange(np.shape(X)[0])
    return np.where(np.eye(size, dtype=bool), 0.0, X[places + places.T])
