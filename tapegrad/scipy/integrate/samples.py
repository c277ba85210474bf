"""Integrals of samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.integrate as _scipy

from tapegrad.core.base import value_of
from tapegrad.scipy.calls import derived, doubles
from tapegrad.tensor import Operand, TensorOrArray

__all__ = ["cumulative_simpson", "cumulative_trapezoid", "romb", "simpson", "trapezoid"]


def _last(x: Any, axis: int) -> TensorOrArray:
    """With that axis last."""
    return np.moveaxis(x, axis, -1)


def _steps(y: TensorOrArray, x: Operand | None, dx: Operand, axis: int, name: str) -> Any:
    """Distances of samples, along the last axis."""
    if x is None:
        return dx
    x = doubles(x)
    count = np.shape(y)[axis]
    if np.ndim(x) == 1 and np.shape(x)[0] == count:
        return x[1:] - x[:-1]
    if np.shape(x) != np.shape(y):
        raise ValueError(
            f"{name}: x is of shape {np.shape(x)}, and y of {np.shape(y)}; let it be like y, or of "
            f"{count} numbers"
        )
    return np.diff(_last(x, axis))


def _ratio(a: TensorOrArray | float, b: TensorOrArray) -> TensorOrArray:
    """a/b, 0 where b is."""
    none = value_of(b) == 0
    return np.where(none, 0.0, a / np.where(none, 1.0, b)) if np.any(none) else a / b


@derived(_scipy.trapezoid)
def trapezoid(y: Operand, x: Operand | None = None, dx: Operand = 1.0, axis: int = -1) -> TensorOrArray:
    """Integral of samples by trapezoids.

    Parameters
    ----------
    y, x, dx : Tensor or array_like
        Samples; where they were taken, or at what distance.
    axis : int, optional

    Returns
    -------
    Tensor
        As `scipy.integrate.trapezoid`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> y = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.integrate.trapezoid(y, dx=0.5), y)
    (tensor([0.25, 0.50, 0.25]),)
    """
    y = doubles(y)
    if x is not None and np.ndim(x) != 1:
        x = np.broadcast_to(x, np.shape(y))
    h, y = _steps(y, x, dx, axis, "scipy.integrate.trapezoid"), _last(y, axis)
    return np.sum(h * (y[..., 1:] + y[..., :-1]) / 2.0, axis=-1)


@derived(_scipy.cumulative_trapezoid)
def cumulative_trapezoid(
    y: Operand, x: Operand | None = None, dx: Operand = 1.0, axis: int = -1, initial: Operand | None = None
) -> TensorOrArray:
    """Running integral of samples by trapezoids.

    Parameters
    ----------
    y, x, dx : Tensor or array_like
        As for `trapezoid`.
    axis : int, optional
    initial : 0, optional
        What comes before the first.

    Returns
    -------
    Tensor
        As `scipy.integrate.cumulative_trapezoid`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> y = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.integrate.cumulative_trapezoid(y)[0], y)
    (tensor([0.5, 0.5, 0.0]),)
    """
    y = doubles(y)
    if initial is not None and (not np.isscalar(initial) or initial != 0):
        raise ValueError(
            f"scipy.integrate.cumulative_trapezoid: initial is {initial!r}; give 0, or leave it out"
        )
    if np.shape(y)[axis] == 0:
        raise ValueError(
            f"scipy.integrate.cumulative_trapezoid: y has no points along axis {axis}; give one or more"
        )
    h, y = _steps(y, x, dx, axis, "scipy.integrate.cumulative_trapezoid"), _last(y, axis)
    return _running(h * (y[..., 1:] + y[..., :-1]) / 2.0, initial, axis)


def _running(parts: TensorOrArray, initial: Operand | None, axis: int) -> TensorOrArray:
    found = np.cumsum(parts, axis=-1)
    if initial is not None:
        first = np.broadcast_to(doubles(initial), (*np.shape(found)[:-1], 1))
        found = np.concatenate([first, found + first], axis=-1)
    return np.moveaxis(found, -1, axis)


@derived(_scipy.simpson)
def simpson(y: Operand, x: Operand | None = None, *, dx: Operand = 1.0, axis: int = -1) -> TensorOrArray:
    """Integral of samples by parabolas.

    Parameters
    ----------
    y, x, dx : Tensor or array_like
        As for `trapezoid`.
    axis : int, optional

    Returns
    -------
    Tensor
        As `scipy.integrate.simpson`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> y = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.integrate.simpson(y, dx=3.0), y)
    (tensor([1., 4., 1.]),)
    """
    y = doubles(y)
    h, y = _steps(y, x, dx, axis, "scipy.integrate.simpson"), _last(y, axis)
    count = np.shape(y)[-1]
    if x is None:
        h = h * np.ones(max(count - 1, 0))
    if count % 2:
        return _parabolas(y, h)
    if count == 2:
        return 0.5 * h[..., 0] * (y[..., 0] + y[..., 1])
    before, last = h[..., -2], h[..., -1]
    alpha = _ratio(2 * last**2 + 3 * before * last, 6 * (last + before))
    beta = _ratio(last**2 + 3.0 * before * last, 6 * before)
    eta = _ratio(last**3, 6 * before * (before + last))
    rest = alpha * y[..., -1] + beta * y[..., -2] - eta * y[..., -3]
    return _parabolas(y[..., :-1], h[..., :-1]) + rest


def _parabolas(y: TensorOrArray, h: TensorOrArray) -> TensorOrArray:
    """Of an odd number of samples at such distances, of three each."""
    first, second = h[..., :-1:2], h[..., 1::2]
    whole, ratio = first + second, _ratio(first, second)
    terms = (
        y[..., :-2:2] * (2.0 - _ratio(1.0, ratio))
        + y[..., 1:-1:2] * (whole * _ratio(whole, first * second))
        + y[..., 2::2] * (2.0 - ratio)
    )
    return np.sum(whole / 6.0 * terms, axis=-1)


@derived(_scipy.cumulative_simpson)
def cumulative_simpson(
    y: Operand, *, x: Operand | None = None, dx: Operand = 1.0, axis: int = -1, initial: Operand | None = None
) -> TensorOrArray:
    """Running integral of samples by parabolas.

    Parameters
    ----------
    y, x, dx : Tensor or array_like
        As for `trapezoid`.
    axis : int, optional
    initial : Tensor or array_like, optional
        What comes before the first and is added to all.

    Returns
    -------
    Tensor
        As `scipy.integrate.cumulative_simpson`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> y = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.integrate.cumulative_simpson(y, dx=12.0)[0], y)
    (tensor([ 5.,  8., -1.]),)
    """
    y = doubles(y)
    if initial is not None:
        initial = doubles(initial)
        initial = initial if np.ndim(initial) == 0 else _last(initial, axis)
    if np.shape(y)[axis] < 3:
        h, y = _steps(y, x, dx, axis, "scipy.integrate.cumulative_simpson"), _last(y, axis)
        return _running(h * (y[..., 1:] + y[..., :-1]) / 2.0, initial, axis)
    h = _steps(y, x, dx, axis, "scipy.integrate.cumulative_simpson")
    if x is None and np.ndim(dx):
        h = _last(doubles(dx), axis)
    elif np.any(value_of(h) <= 0) and x is not None:
        raise ValueError(
            "scipy.integrate.cumulative_simpson: x falls or stays; sort the points, each one once"
        )
    y = _last(y, axis)
    h = np.broadcast_to(h, (*np.shape(y)[:-1], np.shape(y)[-1] - 1))
    forth, back = _first_parts(y, h), np.flip(_first_parts(np.flip(y, -1), np.flip(h, -1)), -1)
    odd = np.arange(np.shape(h)[-1]) % 2 == 1
    odd[-1] = True
    forth = np.concatenate([forth, back[..., -1:]], axis=-1)
    back = np.concatenate([forth[..., :1], back], axis=-1)
    return _running(np.where(odd, back, forth), initial, axis)


def _first_parts(y: TensorOrArray, h: TensorOrArray) -> TensorOrArray:
    """Integrals of parabolas through three samples each, over the first of their two steps."""
    first, second = h[..., :-1], h[..., 1:]
    by_whole, ratio = first / (first + second), first / second
    both = by_whole * ratio
    terms = (3 - by_whole) * y[..., :-2] + (3 + both + by_whole) * y[..., 1:-1] - both * y[..., 2:]
    return first / 6 * terms


@derived(_scipy.romb)
def romb(y: Operand, dx: Operand = 1.0, axis: int = -1, show: bool = False) -> TensorOrArray:
    """Integral of 2**k + 1 samples by Romberg's rule.

    Parameters
    ----------
    y : Tensor or array_like
    dx : Tensor or float, optional
        Their distance.
    axis : int, optional
    show : bool, optional
        Whether to print the table of a plain array.

    Returns
    -------
    Tensor
        As `scipy.integrate.romb`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> y = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    >>> tg.grad(ts.integrate.romb(y, dx=3.0), y)
    (tensor([1., 4., 1.]),)
    """
    y = _last(doubles(y), axis)
    weights = _scipy.romb(np.eye(np.shape(y)[-1]), axis=0)
    return np.sum(y * weights, axis=-1) * dx
