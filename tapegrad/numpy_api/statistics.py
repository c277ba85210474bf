"""Averages, covariances, and reductions that leave nan out."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.core.base import (
    Axis,
    DType,
    NotGiven,
    decide,
    like_of,
    ndim_of,
    requires_grad,
    shape_of,
    value_of,
)
from tapegrad.core.conversion import astype
from tapegrad.core.notes import is_compared, note_parts
from tapegrad.core.operators import constant_of, constant_value
from tapegrad.errors import DTypeError, ShapeError
from tapegrad.numpy_api.contractions import conjugate
from tapegrad.numpy_api.indexing import where
from tapegrad.numpy_api.reductions import degrees, root
from tapegrad.numpy_api.shapes import reshape
from tapegrad.numpy_api.tables import composed, plain, tensor_of
from tapegrad.tensor import Operand, Out, Tensor, TensorOrArray, is_tensor

NOT_GIVEN = np._NoValue


@composed(np.ptp, by_shapes=True)
def ptp(
    a: Operand, axis: Axis = None, out: Out = None, keepdims: bool | NotGiven = NOT_GIVEN
) -> TensorOrArray:
    """Difference of the largest and the smallest element over axes."""
    keep = keepdims is not NOT_GIVEN and bool(keepdims)
    return np.max(a, axis=axis, keepdims=keep) - np.min(a, axis=axis, keepdims=keep)


@composed(np.average, by_shapes=True)
def average(
    a: Operand, axis: Axis = None, weights: Operand | None = None, returned: bool = False, *,
    keepdims: bool | NotGiven = NOT_GIVEN,
) -> TensorOrArray | tuple[Tensor, TensorOrArray]:  # fmt: skip
    """Weighted mean over axes."""
    a = tensor_of(a)
    keep = keepdims is not NOT_GIVEN and bool(keepdims)
    if weights is None:
        mean = np.mean(a, axis=axis, keepdims=keep)
        total = np.asarray(np.size(like_of(a)) / max(np.size(like_of(mean)), 1), mean.dtype)
    else:
        weights = _weights_of(a, tensor_of(weights), axis)
        dtype = np.result_type(like_of(a), like_of(weights))
        dtype = np.result_type(dtype, "f8") if like_of(a).dtype.kind in "iub" else dtype
        total = np.sum(weights, axis=axis, keepdims=keep, dtype=dtype)
        if is_tensor(total):  # else arguments tell
            note_parts()
        if np.any(decide(np.equal, total, 0)):
            raise ZeroDivisionError("average: the sum of weights, by which the mean is divided, is 0")
        mean = np.sum(np.multiply(a, weights, dtype=dtype), axis=axis, keepdims=keep) / total
    if not returned:
        return mean
    return mean, np.copy(np.broadcast_to(total, shape_of(mean)))


def _weights_of(a: Operand, weights: Operand, axis: Axis) -> Any:
    """Weights in the shape of what they weigh, or that broadcasts to it."""
    shape, given = shape_of(a), shape_of(weights)
    if shape == given:
        return weights
    if axis is None:
        raise TypeError(f"average: weights of shape {given} for an array of shape {shape} need an axis")
    where_ = np.lib.array_utils.normalize_axis_tuple(axis, len(shape))
    if given != tuple(shape[d] for d in where_):
        raise ShapeError(f"average: weights of shape {given} for axis {axis} of an array of shape {shape}")
    weights = np.transpose(weights, np.argsort(where_).tolist())
    return np.reshape(weights, tuple(n if d in where_ else 1 for d, n in enumerate(shape)))


@composed(np.cov, by_shapes=True)
def cov(
    m: Operand, y: Operand | None = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None,
    fweights: Any = None, aweights: Any = None, *, dtype: DType = None,
) -> TensorOrArray:  # fmt: skip
    """Covariances of variables, by default the rows."""
    x = _observations("cov", m, rowvar)
    if y is not None:
        x = np.concatenate([x, _observations("cov", y, rowvar, like_of(m))], axis=0)
    dtype = np.result_type(*(like_of(tensor_of(v)) for v in (m, y) if v is not None), np.float64) \
        if dtype is None else np.dtype(dtype)  # fmt: skip
    x = astype(x, dtype) if is_tensor(x) else np.asarray(x, dtype)
    count = x.shape[1]
    ddof = ddof if ddof is not None else 0 if bias else 1
    if int(ddof) != ddof:
        raise ValueError(f"cov: ddof is an integer, found {ddof}")
    if fweights is not None or aweights is not None:
        note_parts()
    weights = _frequencies(fweights, count)
    if aweights is not None:
        aweights = tensor_of(aweights)
        if np.iscomplexobj(like_of(aweights)):
            raise DTypeError(f"cov: aweights are real, found dtype {like_of(aweights).dtype}")
        aweights = np.astype(aweights, np.dtype(float), copy=False)
        if shape_of(aweights) != (count,):
            raise ShapeError(f"cov: aweights of shape {shape_of(aweights)} for {count} observations")
        if np.any(value_of(aweights) < 0):
            raise ValueError("cov: aweights are not negative")
        weights = aweights if weights is None else weights * aweights
    if weights is None:
        total = count
        mean = np.mean(x, axis=1, keepdims=True)
    else:
        total = np.sum(weights)
        mean = np.sum(x * weights, axis=1, keepdims=True) / total
    if weights is None or ddof == 0:
        divisor = total - ddof if ddof else total
    elif aweights is None:
        divisor = total - ddof
    else:
        divisor = total - ddof * np.sum(weights * aweights) / total
    handling: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if float(plain(divisor)) <= 0:
        note_parts()
        handling = np.errstate(divide="ignore", invalid="ignore")
        warnings.warn(f"cov: {divisor} degrees of freedom", RuntimeWarning, stacklevel=4)
        divisor = 0.0
    x = np.astype(x - mean, dtype, copy=False)
    other = x if weights is None else x * weights
    found = np.matmul(x, conjugate(np.transpose(other)))
    with handling:
        found = np.astype(found * np.divide(1.0, divisor), found.dtype, copy=False)
    return np.squeeze(found) if 1 in found.shape else found


def _observations(what: str, m: Operand, rowvar: bool, beside: Operand | None = None) -> TensorOrArray:
    """Variables as rows."""
    m = tensor_of(m)
    ndim = ndim_of(m)
    if ndim > 2:
        raise ShapeError(f"{what} takes up to two dimensions, found shape {shape_of(m)}")
    x = m if ndim == 2 else reshape(m, (1, -1))
    return x if rowvar or ndim < 2 or (beside is None and x.shape[0] == 1) else np.transpose(x)


def _frequencies(fweights: Operand, count: int) -> np.ndarray:
    if fweights is None:
        return None
    found = np.asarray(plain(fweights), float)
    if found.shape != (count,):
        raise ShapeError(f"cov: fweights of shape {found.shape} for {count} observations")
    if requires_grad(fweights) or np.any(found != np.around(found)):
        raise TypeError("cov: fweights count repetitions: integers, which have no derivative")
    if np.any(found < 0):
        raise ValueError("cov: fweights are not negative")
    return found


@composed(np.corrcoef, by_shapes=True)
def corrcoef(
    x: Operand, y: Operand | None = None, rowvar: bool = True, *, dtype: DType = None
) -> TensorOrArray:
    """Correlations of variables, by default the rows."""
    c = cov(x, y, rowvar, dtype=dtype)
    if c.ndim == 0:
        return c / c
    deviation = np.sqrt(np.diag(c))
    found = c / deviation[:, None] / deviation[None, :]
    value = constant_value(found)
    excess = value - np.clip(value, -1, 1)  # rounding; no reason to lose a derivative
    return found - excess if is_tensor(excess) or np.any(excess) else found


# ---------------------------------------------------------------- without nan


def _filled(a: Operand, fill: float) -> tuple[Tensor, np.ndarray]:
    """An array with another number for nan, and where there was one."""
    a = tensor_of(a)
    missing = np.isnan(a if is_compared() else value_of(a))
    return where(missing, like_of(a).dtype.type(fill), a), missing


def _without(function: Callable[..., Any], fill: float) -> Callable[..., Any]:
    def reduced(
        a: Operand, axis: Axis = None, dtype: DType = None, out: Out = None,
        keepdims: bool | NotGiven = NOT_GIVEN, initial: Operand | NotGiven = NOT_GIVEN,
        where: Operand | NotGiven = NOT_GIVEN,
    ) -> Tensor:  # fmt: skip
        rest = {} if initial is NOT_GIVEN else {"initial": initial}
        if where is not NOT_GIVEN:
            rest["where"] = where
        keep = keepdims is not NOT_GIVEN and bool(keepdims)
        return function(_filled(a, fill)[0], axis=axis, dtype=dtype, keepdims=keep, **rest)

    return reduced


composed(np.nansum, by_shapes=True)(_without(np.sum, 0.0))
composed(np.nanprod, by_shapes=True)(_without(np.prod, 1.0))


@composed(np.nancumsum, by_shapes=True)
def nancumsum(a: Operand, axis: int | None = None, dtype: DType = None, out: Out = None) -> TensorOrArray:
    """Running sum without nan."""
    return np.cumsum(_filled(a, 0.0)[0], axis=axis, dtype=dtype)


@composed(np.nancumprod, by_shapes=True)
def nancumprod(a: Operand, axis: int | None = None, dtype: DType = None, out: Out = None) -> TensorOrArray:
    """Running product without nan."""
    return np.cumprod(_filled(a, 1.0)[0], axis=axis, dtype=dtype)


def _present(axis: Axis, missing: np.ndarray, where: Operand | NotGiven, keepdims: bool) -> np.ndarray:
    """The number of elements that count."""
    mask = ~missing if where is NOT_GIVEN else ~missing & np.asarray(plain(where), bool)
    return np.sum(mask, axis=axis, keepdims=keepdims, dtype=float)


def _ones(count: np.ndarray, words: str) -> np.ndarray:
    """1 for each number of elements that count, nan for none, of which it warns.

    In a program it is a quotient, whose error of numbers tells of that.
    """
    return constant_of(np.divide, count, count, warning=words)


def _over(total: Tensor, count: np.ndarray, words: str) -> TensorOrArray:
    """A sum over the number of elements that count; nan for none, of which it warns."""
    ones = _ones(count, words)
    if like_of(total).dtype.kind != "c":
        return total / _divisor(count * ones, total.dtype)
    found = total / _divisor(np.maximum(count, 1.0), total.dtype)  # as complex nan is an error of numbers
    return np.where(np.isnan(ones), found.dtype.type(complex(np.nan, np.nan)), found)


def _divisor(count: np.ndarray, dtype: DType) -> Any:
    """Numbers to divide by in a dtype."""
    return astype(count, np.dtype(dtype)) if is_tensor(count) else np.asarray(count, dtype)[()]


@composed(np.nanmean, by_shapes=True)
def nanmean(
    a: Operand, axis: Axis = None, dtype: DType = None, out: Out = None,
    keepdims: bool | NotGiven = NOT_GIVEN, *, where: Any = NOT_GIVEN,
) -> TensorOrArray:  # fmt: skip
    """Mean without nan."""
    keep = keepdims is not NOT_GIVEN and bool(keepdims)
    a, missing = _filled(a, 0.0)
    count = _present(axis, missing, where, keep)
    rest = {} if where is NOT_GIVEN else {"where": where}
    total = np.sum(a, axis=axis, dtype=dtype, keepdims=keep, **rest)
    return _over(total, count, "nanmean: nothing but nan in a slice")


@composed(np.nanvar, by_shapes=True)
def nanvar(
    a: Operand, axis: Axis = None, dtype: DType = None, out: Out = None, ddof: float = 0,
    keepdims: bool | NotGiven = NOT_GIVEN, *, where: Operand | NotGiven = NOT_GIVEN,
    mean: Operand | NotGiven = NOT_GIVEN, correction: float | NotGiven = NOT_GIVEN,
) -> TensorOrArray:  # fmt: skip
    """Variance without nan."""
    ddof = degrees("nanvar", ddof, correction)
    keep = keepdims is not NOT_GIVEN and bool(keepdims)
    filled, missing = _filled(a, 0.0)
    mask = ~missing if where is NOT_GIVEN else ~missing & np.asarray(plain(where), bool)
    count = _present(axis, missing, where, True)
    if mean is NOT_GIVEN:
        rest: Any = {} if where is NOT_GIVEN else {"where": where}
        total = np.sum(filled, axis=axis, dtype=dtype, keepdims=True, **rest)
        mean = total / _divisor(np.maximum(count, 1.0), total.dtype)
    off = np.where(mask, filled - mean, like_of(filled).dtype.type(0))
    squares = np.real(off * np.conj(off)) if np.iscomplexobj(like_of(off)) else off * off
    total = np.sum(squares, axis=axis, dtype=dtype, keepdims=keep)
    freedom = np.maximum((count if keep else _present(axis, missing, where, False)) - ddof, 0.0)
    return _over(total, freedom, "nanvar: no degrees of freedom in a slice")


@composed(np.nanstd, by_shapes=True)
def nanstd(
    a: Operand, axis: Axis = None, dtype: DType = None, out: Out = None, ddof: float = 0,
    keepdims: bool | NotGiven = NOT_GIVEN, *, where: Operand | NotGiven = NOT_GIVEN,
    mean: Operand | NotGiven = NOT_GIVEN, correction: float | NotGiven = NOT_GIVEN,
) -> TensorOrArray:  # fmt: skip
    """Standard deviation without nan."""
    return root(nanvar(a, axis, dtype, None, ddof, keepdims, where=where, mean=mean, correction=correction))


def _extreme(function: Callable[..., Any], fill: float, name: str) -> Callable[..., Any]:
    def reduced(
        a: Operand, axis: int | None = None, out: Out = None, keepdims: bool | NotGiven = NOT_GIVEN,
        initial: Operand | NotGiven = NOT_GIVEN, where: Operand | NotGiven = NOT_GIVEN,
    ) -> Tensor:  # fmt: skip
        keep = keepdims is not NOT_GIVEN and bool(keepdims)
        rest = {} if initial is NOT_GIVEN else {"initial": initial}
        if where is not NOT_GIVEN:
            rest["where"] = where
        filled, missing = _filled(a, fill)
        found = function(filled, axis=axis, keepdims=keep, **rest)
        if initial is not NOT_GIVEN or not missing.size:
            return found
        count = _present(axis, missing, where, keep)
        if not is_tensor(count) and np.all(count):
            return found
        ones = _ones(count, f"{name}: nothing but nan in a slice")
        return np.where(np.isnan(ones), like_of(found).dtype.type(np.nan), found)

    return reduced


composed(np.nanmax, by_shapes=True)(_extreme(np.max, -np.inf, "nanmax"))
composed(np.nanmin, by_shapes=True)(_extreme(np.min, np.inf, "nanmin"))
