"""Entropy, correlation and regression of `scipy.stats`, which stand in `tapegrad.scipy.stats`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.special as sc
import scipy.stats as _scipy

from tapegrad.core.base import Axis, value_of
from tapegrad.errors import ShapeError
from tapegrad.numpy_api.tables import named_like
from tapegrad.scipy.calls import derived, doubles, refuse
from tapegrad.scipy.stats.summaries import given
from tapegrad.tensor import Operand, TensorOrArray

__all__ = ["entropy", "linregress", "pearsonr"]

TINY = 1e-20  # of SciPy's, for a correlation of 1


@derived(_scipy.entropy, "scipy.stats.entropy")
def entropy(
    pk: Operand, qk: Operand | None = None, base: float | None = None, axis: Axis = 0, *,
    nan_policy: str = "propagate", keepdims: bool = False,
) -> TensorOrArray:  # fmt: skip
    """Entropy, or relative entropy, as `scipy.stats.entropy`; differentiable by both distributions.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> p = tg.tensor([0.2, 0.3, 0.5], requires_grad=True)
    >>> tg.grad(ts.stats.entropy(p), p)
    (tensor([ 0.5798,  0.1743, -0.3365]),)
    """
    if base is not None and base <= 0:
        raise ValueError(f"base is {base!r}; give a positive number")
    parts: list[Any] = [given("entropy", pk, nan_policy)]
    if qk is not None:
        parts = list(np.broadcast_arrays(*parts, given("entropy", qk, nan_policy)))
    # by a constant, which changes nothing; so what is infinite at a 0 is the derivative by that one alone
    parts = [x / np.sum(value_of(x), axis=axis, keepdims=True) for x in parts]
    whole: dict[str, Any] = {"axis": axis, "keepdims": keepdims}
    totals = [np.sum(x, **whole) for x in parts]
    terms = np.sum(sc.entr(*parts) if qk is None else sc.rel_entr(*parts), **whole) / totals[0]
    found = terms + np.log(totals[0]) if qk is None else terms - np.log(totals[0] / totals[1])
    return found if base is None else found / math.log(base)


def _chance(found: TensorOrArray, alternative: str, below: Any) -> TensorOrArray:
    """The p-value of a number whose distribution is symmetric: below(x) is the chance of less than x."""
    if alternative == "two-sided":
        return 2 * below(-np.abs(found))
    if alternative not in ("less", "greater"):
        raise ValueError(f"alternative is {alternative!r}; give 'two-sided', 'less' or 'greater'")
    return below(found if alternative == "less" else -found)


@derived(_scipy.pearsonr, "scipy.stats.pearsonr")
def pearsonr(
    x: Operand, y: Operand, *, alternative: str = "two-sided", method: Any = None, axis: Any = 0
) -> Any:
    """Pearson's correlation, as `scipy.stats.pearsonr`; the coefficient and the p-value are Tensors.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.stats.pearsonr(x, [1.0, 2.0, 3.0]).statistic, x)
    (tensor([-0.0468,  0.0701, -0.0234]),)
    """
    if method is not None:
        raise refuse("scipy.stats.pearsonr with a method")
    plain = _scipy.pearsonr(value_of(x), value_of(y), alternative=alternative, axis=axis)
    x, y = (given("pearsonr", a, "propagate") for a in (x, y))
    if axis is None:
        x, y, axis = np.reshape(x, -1), np.reshape(y, -1), 0
    x, y = (np.reshape(a, (1,) * (max(np.ndim(x), np.ndim(y)) - np.ndim(a)) + np.shape(a)) for a in (x, y))
    n = np.shape(x)[axis]
    parts = []
    for a in (x, y):
        off = a - np.mean(a, axis=axis, keepdims=True)
        size = np.max(np.abs(value_of(off)), axis=axis, keepdims=True)
        off = off / np.where(size > 0, size, 1.0)
        parts.append(off / np.sqrt(np.sum(off * off, axis=axis, keepdims=True)))
    with np.errstate(invalid="ignore", divide="ignore"):
        r = np.clip(np.sum(parts[0] * parts[1], axis=axis), -1.0, 1.0)
    if n == 2:
        return named_like(plain, r - value_of(r) + plain[0], plain[1])
    chance = _chance(r, alternative, lambda r: sc.betainc(n / 2 - 1, n / 2 - 1, (1 + r) / 2))
    return named_like(plain, r, chance)


@derived(_scipy.linregress, "scipy.stats.linregress")
def linregress(
    x: Operand, y: Operand, alternative: str = "two-sided", *, axis: int = 0, nan_policy: str = "propagate",
    keepdims: bool = False,
) -> Any:  # fmt: skip
    """Line of least squares, as `scipy.stats.linregress`; all that it finds are Tensors.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> y = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.stats.linregress([0.0, 1.0, 2.0], y).slope, y)
    (tensor([-0.5,  0.0,  0.5]),)
    """
    x, y = (doubles(given("linregress", a, nan_policy)) for a in (x, y))
    if np.ndim(x) != 1 or np.shape(x) != np.shape(y) or keepdims:
        raise ShapeError(
            f"two vectors of one length are needed, found shapes {np.shape(x)} and {np.shape(y)}"
        )
    plain = _scipy.linregress(value_of(x), value_of(y), alternative)
    n, mean = np.shape(x)[0], np.mean(x)
    dx, dy = x - mean, y - np.mean(y)
    xx, xy, yy = np.mean(dx * dx), np.mean(dx * dy), np.mean(dy * dy)
    slope, intercept = xy / xx, np.mean(y) - xy / xx * mean
    r = xy / np.sqrt(xx * yy)
    if n == 2:
        return named_like(plain, slope, intercept, r, *plain[3:])
    r = np.clip(r, -1.0, 1.0)
    t = r * np.sqrt((n - 2) / ((1 - r + TINY) * (1 + r + TINY)))
    error = np.sqrt((1 - r * r) * yy / xx / (n - 2))
    found = named_like(
        plain, slope, intercept, r, _chance(t, alternative, lambda t: sc.stdtr(n - 2, t)), error
    )
    found.__dict__["intercept_stderr"] = error * np.sqrt(xx + mean * mean)
    return found
