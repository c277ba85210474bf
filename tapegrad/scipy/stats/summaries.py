"""Means, scores and moments of `scipy.stats`, which stand in `tapegrad.scipy.stats`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.stats as _scipy

from tapegrad.core.base import Axis, DType, decide, like_of, value_of
from tapegrad.numpy_api.tables import tensor_of
from tapegrad.scipy.calls import derived_in, refuse
from tapegrad.tensor import Operand, TensorOrArray

if TYPE_CHECKING:
    from tapegrad.tensor import Tensor

__all__ = [
    "gmean", "hmean", "kurtosis", "moment", "pmean", "sem", "skew", "variation", "zmap", "zscore",
]  # fmt: skip


_derived = derived_in(_scipy)


def given(name: str, a: Operand, nan_policy: str, dtype: DType = None) -> TensorOrArray:
    """Data as floating-point numbers; nan in them is in the result."""
    if nan_policy not in ("propagate", "raise"):
        raise refuse(f"scipy.stats.{name} with nan_policy={nan_policy!r}")
    a = tensor_of(a)
    if like_of(a).dtype.kind not in "fc" or dtype is not None:
        a = a.astype(float if dtype is None else dtype)
    if nan_policy == "raise" and decide(_has_nan, a):
        raise ValueError("the input has nan values")
    return a


def _has_nan(a: np.ndarray) -> bool:
    return bool(np.isnan(a).any())


def _has_negative(a: np.ndarray) -> bool:
    return bool(np.any(a < 0))


def _mean(a: TensorOrArray, axis: Axis, weights: Operand | None, keepdims: bool) -> Tensor:
    if weights is None:
        return np.mean(a, axis=axis, keepdims=keepdims)
    weights = np.broadcast_to(weights, np.shape(a))
    return np.sum(a * weights, axis=axis, keepdims=keepdims) / np.sum(weights, axis=axis, keepdims=keepdims)


@_derived
def gmean(
    a: Operand, axis: Axis = 0, dtype: DType = None, weights: Operand | None = None, *,
    nan_policy: str = "propagate", keepdims: bool = False,
) -> TensorOrArray:  # fmt: skip
    """Geometric mean along an axis, as `scipy.stats.gmean`; differentiable by the data and the weights.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.stats.gmean(x), x)
    (tensor([1.00, 0.25]),)
    """
    a = given("gmean", a, nan_policy, dtype)
    with np.errstate(divide="ignore"):
        return np.exp(_mean(np.log(a), axis, weights, keepdims))


@_derived
def hmean(
    a: Operand, axis: Axis = 0, dtype: DType = None, *, weights: Operand | None = None,
    nan_policy: str = "propagate", keepdims: bool = False,
) -> TensorOrArray:  # fmt: skip
    """Harmonic mean along an axis, as `scipy.stats.hmean`; differentiable by the data and the weights.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 3.0], requires_grad=True)
    >>> tg.grad(ts.stats.hmean(x), x)
    (tensor([1.125, 0.125]),)
    """
    a = given("hmean", a, nan_policy, dtype)
    return _power_mean("hmean", a, -1.0, axis, weights, keepdims)


@_derived
def pmean(
    a: Operand, p: Operand, *, axis: Axis = 0, dtype: DType = None, weights: Operand | None = None,
    nan_policy: str = "propagate", keepdims: bool = False,
) -> TensorOrArray:  # fmt: skip
    """Power mean along an axis, as `scipy.stats.pmean`; differentiable by data, weights and exponent.

    By the exponent it is where that is not 0.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([3.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.stats.pmean(x, 2), x)
    (tensor([0.4243, 0.5657]),)
    """
    a = given("pmean", a, nan_policy, dtype)
    if value_of(p) == 0:
        if p is not value_of(p):
            raise refuse("scipy.stats.pmean", "has no derivative here by an exponent of 0")
        return gmean(a, axis, None, weights, keepdims=keepdims)
    return _power_mean("pmean", a, p, axis, weights, keepdims)


def _power_mean(
    name: str, a: TensorOrArray, p: Any, axis: Axis, weights: Operand | None, keepdims: bool
) -> TensorOrArray:
    if decide(_has_negative, a):
        raise refuse(f"scipy.stats.{name} of negative numbers, which is nan,")
    with np.errstate(divide="ignore"):
        return _mean(a**p, axis, weights, keepdims) ** (1 / p)


@_derived
def sem(
    a: Operand, axis: int = 0, ddof: int = 1, nan_policy: str = "propagate", *, keepdims: bool = False
) -> TensorOrArray:
    """Standard error of the mean, as `scipy.stats.sem`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 3.0], requires_grad=True)
    >>> tg.grad(ts.stats.sem(x), x)
    (tensor([-0.5,  0.5]),)
    """
    a = given("sem", a, nan_policy)
    a, axis = (np.reshape(a, -1), 0) if axis is None else (a, axis)
    return np.std(a, axis=axis, ddof=ddof, keepdims=keepdims) / np.shape(a)[axis] ** 0.5


@_derived
def variation(
    a: Operand, axis: Axis = 0, nan_policy: str = "propagate", ddof: int = 0, *, keepdims: bool = False
) -> TensorOrArray:
    """Standard deviation over the mean, as `scipy.stats.variation`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 3.0], requires_grad=True)
    >>> tg.grad(ts.stats.variation(x), x)
    (tensor([-0.375,  0.125]),)
    """
    a = given("variation", a, nan_policy)
    spread = np.std(a, axis=axis, ddof=ddof, keepdims=keepdims)
    return spread / np.mean(a, axis=axis, keepdims=keepdims)


@_derived
def zmap(
    scores: Operand, compare: Operand, axis: Axis = 0, ddof: int = 0, nan_policy: str = "propagate"
) -> TensorOrArray:
    """Scores less the mean of others, in their standard deviations, as `scipy.stats.zmap`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 3.0], requires_grad=True)
    >>> tg.grad(ts.stats.zmap([4.0], x)[0], x)
    (tensor([ 0.5, -1.5]),)
    """
    scores, compare = (given("zmap", x, nan_policy) for x in (scores, compare))
    mean, spread = (
        f(compare, axis=axis, keepdims=True) for f in (np.mean, lambda x, **k: np.std(x, ddof=ddof, **k))
    )
    return (scores - mean) / spread


@_derived
def zscore(a: Operand, axis: Axis = 0, ddof: int = 0, nan_policy: str = "propagate") -> TensorOrArray:
    """Data less their mean, in their standard deviations, as `scipy.stats.zscore`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.stats.zscore(x)[0], x)
    (tensor([ 0.2291, -0.3436,  0.1145]),)
    """
    return zmap(a, a, axis, ddof, nan_policy)


def _moments(a: TensorOrArray, axis: int, *orders: int) -> Iterator[TensorOrArray]:
    off = a - np.mean(a, axis=axis, keepdims=True)
    return (np.mean(off**order, axis=axis, keepdims=True) for order in orders)


def _let(found: TensorOrArray, axis: Axis, keepdims: bool) -> TensorOrArray:
    return found if keepdims else np.squeeze(found, axis)


@_derived
def moment(
    a: Operand, order: Any = 1, axis: Axis = 0, nan_policy: str = "propagate", *, center: float | None = None,
    keepdims: bool = False,
) -> TensorOrArray:  # fmt: skip
    """Mean of powers of what data are off their mean or `center`, as `scipy.stats.moment`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 6.0], requires_grad=True)
    >>> tg.grad(ts.stats.moment(x, 2), x)
    (tensor([-1.3333, -0.6667,  2.0000]),)
    """
    a = given("moment", a, nan_policy)
    if np.ndim(order):
        parts = [moment(a, int(k), axis, center=center, keepdims=keepdims) for k in np.ravel(order)]
        return np.reshape(np.stack(parts), (*np.shape(order), *np.shape(parts[0])))
    if order != int(order):
        raise ValueError(f"order is {order!r}; give a whole number")
    middle = np.mean(a, axis=axis, keepdims=True) if center is None else center
    return np.mean((a - middle) ** int(order), axis=axis, keepdims=keepdims)


@_derived
def skew(
    a: Operand,
    axis: int = 0,
    bias: bool = True,
    nan_policy: str = "propagate",
    *,
    keepdims: bool = False,
) -> TensorOrArray:
    """Skewness, as `scipy.stats.skew`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 6.0], requires_grad=True)
    >>> tg.grad(ts.stats.skew(x), x)
    (tensor([ 0.1889, -0.2362,  0.0472]),)
    """
    a = given("skew", a, nan_policy)
    a, axis = (np.reshape(a, -1), 0) if axis is None else (a, axis)
    second, third = _moments(a, axis, 2, 3)
    n = np.shape(a)[axis]
    factor = 1.0 if bias or n <= 2 else ((n - 1.0) * n) ** 0.5 / (n - 2.0)
    return _let(factor * third / second**1.5, axis, keepdims)


@_derived
def kurtosis(
    a: Operand, axis: int = 0, fisher: bool = True, bias: bool = True, nan_policy: str = "propagate", *,
    keepdims: bool = False,
) -> TensorOrArray:  # fmt: skip
    """Kurtosis, as `scipy.stats.kurtosis`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0, 9.0], requires_grad=True)
    >>> tg.grad(ts.stats.kurtosis(x), x)
    (tensor([ 0.0831,  0.0831, -0.2493,  0.0831]),)
    """
    a = given("kurtosis", a, nan_policy)
    a, axis = (np.reshape(a, -1), 0) if axis is None else (a, axis)
    second, fourth = _moments(a, axis, 2, 4)
    n, found = np.shape(a)[axis], fourth / second**2
    if not bias and n > 3:
        found = ((n * n - 1.0) * found - 3.0 * (n - 1.0) ** 2) / ((n - 2.0) * (n - 3.0)) + 3.0
    return _let(found - 3.0 if fisher else found, axis, keepdims)
