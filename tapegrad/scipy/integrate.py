"""Functions of `scipy.integrate` on Tensors and arrays; all its other names are its own.

Integrals of samples are differentiated by the samples and by where they were taken. `quad` looks after the
error on plain values, as SciPy does, and records the function on the panels that this led to: so derivatives,
to any order and in both modes, go by all that the function is computed from. `solve_ivp` does the like.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.integrate as _scipy
from scipy import LowLevelCallable
from scipy.special import roots_legendre

from tapegrad.core.base import needs_derivative, value_of
from tapegrad.errors import UnsupportedOpError
from tapegrad.numpy_api.tables import plain
from tapegrad.scipy.calls import derived, doubles, fall_through, follows, refuse, theirs
from tapegrad.scipy.initial_values import solve_ivp

__all__ = [
    "cumulative_simpson", "cumulative_trapezoid", "fixed_quad", "quad", "romb", "simpson", "solve_ivp",
    "trapezoid",
]  # fmt: skip


@functools.cache
def __getattr__(name: str) -> Any:
    return fall_through(_scipy, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})


# ---------------------------------------------------------------- of samples


def _last(x: Any, axis: int) -> Any:
    """With that axis last."""
    return np.moveaxis(x, axis, -1)


def _steps(y: Any, x: Any, dx: Any, axis: int, name: str) -> Any:
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


def _ratio(a: Any, b: Any) -> Any:
    """a/b, 0 where b is."""
    none = value_of(b) == 0
    return np.where(none, 0.0, a / np.where(none, 1.0, b)) if np.any(none) else a / b


@derived(_scipy.trapezoid)
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
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
def cumulative_trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1, initial: Any = None) -> Any:
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
        raise ValueError("`initial` must be `None` or `0`.")
    if np.shape(y)[axis] == 0:
        raise ValueError("At least one point is required along `axis`.")
    h, y = _steps(y, x, dx, axis, "scipy.integrate.cumulative_trapezoid"), _last(y, axis)
    return _running(h * (y[..., 1:] + y[..., :-1]) / 2.0, initial, axis)


def _running(parts: Any, initial: Any, axis: int) -> Any:
    found = np.cumsum(parts, axis=-1)
    if initial is not None:
        first = np.broadcast_to(doubles(initial), (*np.shape(found)[:-1], 1))
        found = np.concatenate([first, found + first], axis=-1)
    return np.moveaxis(found, -1, axis)


@derived(_scipy.simpson)
def simpson(y: Any, x: Any = None, *, dx: Any = 1.0, axis: int = -1) -> Any:
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


def _parabolas(y: Any, h: Any) -> Any:
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
def cumulative_simpson(y: Any, *, x: Any = None, dx: Any = 1.0, axis: int = -1, initial: Any = None) -> Any:
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
        raise ValueError("Input x must be strictly increasing.")
    y = _last(y, axis)
    h = np.broadcast_to(h, (*np.shape(y)[:-1], np.shape(y)[-1] - 1))
    forth, back = _first_parts(y, h), np.flip(_first_parts(np.flip(y, -1), np.flip(h, -1)), -1)
    odd = np.arange(np.shape(h)[-1]) % 2 == 1
    odd[-1] = True
    forth = np.concatenate([forth, back[..., -1:]], axis=-1)
    back = np.concatenate([forth[..., :1], back], axis=-1)
    return _running(np.where(odd, back, forth), initial, axis)


def _first_parts(y: Any, h: Any) -> Any:
    """Integrals of parabolas through three samples each, over the first of their two steps."""
    first, second = h[..., :-1], h[..., 1:]
    by_whole, ratio = first / (first + second), first / second
    both = by_whole * ratio
    terms = (3 - by_whole) * y[..., :-2] + (3 + both + by_whole) * y[..., 1:-1] - both * y[..., 2:]
    return first / 6 * terms


@derived(_scipy.romb)
def romb(y: Any, dx: Any = 1.0, axis: int = -1, show: bool = False) -> Any:
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


# ---------------------------------------------------------------- of functions

# Of 21 points after Kronrod and of the 10 of Gauss among them, those not below 0.
NODES = np.array([
    0.995657163025808080735527280689003, 0.973906528517171720077964012084452,
    0.930157491355708226001207180059508, 0.865063366688984510732096688423493,
    0.780817726586416897063717578345042, 0.679409568299024406234327365114874,
    0.562757134668604683339000099272694, 0.433395394129247190799265943165784,
    0.294392862701460198131126603103866, 0.148874338981631210884826001129720, 0.0,
])  # fmt: skip
KRONROD = np.array([
    0.011694638867371874278064396062192, 0.032558162307964727478818972459390,
    0.054755896574351996031381300244580, 0.075039674810919952767043140916190,
    0.093125454583697605535065465083366, 0.109387158802297641899210590325805,
    0.123491976262065851077958109831074, 0.134709217311473325928054001771707,
    0.142775938577060080797094273138717, 0.147739104901338491374841515972068,
    0.149445554002916905664936468389821,
])  # fmt: skip
GAUSS = np.array([
    0.066671344308688137593568809893332, 0.149451349150580593145776339657697,
    0.219086362515982043995534934228163, 0.269266719309996355091226921569469,
    0.295524224714752870173892994651338,
])  # fmt: skip
POINTS = np.concatenate([NODES, -NODES[-2::-1]])
WEIGHTS = np.concatenate([KRONROD, KRONROD[-2::-1]])
OF_GAUSS = np.zeros(21)
OF_GAUSS[1:10:2], OF_GAUSS[11::2] = GAUSS, GAUSS[::-1]
PANELS = 400  # that an integral is divided into at most
AT_LIMITS = 8  # points of Gauss's rule at a limit: right for derivatives of twice that order


class _Range:
    """What is integrated over, mapped to plain numbers t between two finite ones."""

    def __init__(self, low: float, high: float) -> None:
        self.below, self.above = np.isinf(low), np.isinf(high)
        self.finite = not (self.below or self.above)
        self.start = 0.0 if self.below and self.above else high if self.below else low
        self.ends = (low, high) if self.finite else (0.0, 1.0)

    def nodes(self, low: float, high: float) -> list[tuple[float, float]]:
        """Numbers with weights for the part between two t."""
        half = 0.5 * (high - low)
        ts, weights = 0.5 * (low + high) + half * POINTS, half * WEIGHTS
        if self.finite:
            return list(zip(ts.tolist(), weights.tolist(), strict=True))
        off, weights = (1 - ts) / ts, weights / (ts * ts)
        signs = [-1.0] * bool(self.below) + [1.0] * bool(self.above)
        return [
            (self.start + sign * x, w)
            for x, w in zip(off.tolist(), weights.tolist(), strict=True)
            for sign in signs
        ]

    def measured(self, f: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
        """The integral between two t, and an estimate of its error, as QUADPACK has it."""
        nodes = self.nodes(low, high)
        terms = np.array([f(x) * w for x, w in nodes]).reshape(len(POINTS), -1).sum(axis=1)
        total = float(terms.sum())
        error = abs(float((terms * (OF_GAUSS / WEIGHTS)).sum()) - total)
        spread = float(np.abs(terms - WEIGHTS / 2 * total).sum())
        if spread and error:
            error = spread * min(1.0, (200 * error / spread) ** 1.5)
        rounding = 50 * np.finfo(float).eps * float(np.abs(terms).sum())
        return total, 0.0 if error <= rounding else error

    def panels(self, f: Callable[[float], float], cuts: list[float], epsabs: float, epsrel: float) -> Any:
        """Divide it until the error is a tenth of what is allowed; returns pairs of t."""
        ends = sorted({*self.ends, *cuts})
        parts: list[Any] = []
        for low, high in itertools.pairwise(ends):
            total, error = self.measured(f, low, high)
            heapq.heappush(parts, (-error, low, high, total))
        for _ in range(PANELS - len(parts)):
            wanted = max(epsabs, epsrel * abs(sum(p[3] for p in parts)))
            if -sum(p[0] for p in parts) <= 0.1 * wanted or parts[0][0] == 0:
                break
            _, low, high, _ = heapq.heappop(parts)
            for a, b in ((low, 0.5 * (low + high)), (0.5 * (low + high), high)):
                total, error = self.measured(f, a, b)
                heapq.heappush(parts, (-error, a, b, total))
        return [(low, high) for _, low, high, _ in sorted(parts, key=lambda p: p[1])]


def quad(
    func: Any, a: Any, b: Any, args: Any = (), full_output: Any = 0, epsabs: float = 1.49e-8,
    epsrel: float = 1.49e-8, limit: int = 50, points: Any = None, weight: Any = None, wvar: Any = None,
    wopts: Any = None, maxp1: int = 50, limlst: int = 50, complex_func: bool = False,
) -> Any:  # fmt: skip
    """Integral of a function between two limits, finite or not.

    Its value and the estimate of its error are SciPy's. Derivatives are there by the limits, up to order 16,
    whether or not the function is smooth elsewhere; by args; and by Tensors that the function uses from
    outside. By the last two they are the integrals of the derivatives, over the panels that the function
    itself needs: where it jumps at a place that depends on them, the place is no part of it.

    Parameters
    ----------
    func : callable
        ``func(x, *args)`` returns a number, computed by NumPy's functions from Tensors.
    a, b : Tensor or float
        Limits; infinite ones are constants.
    args : tuple, optional
    full_output, epsabs, epsrel, limit, points, weight, wvar, wopts, maxp1, limlst, complex_func : optional
        As SciPy has them; derivatives are there without `weight` and `complex_func`.

    Returns
    -------
    tuple
        The integral, a Tensor where a derivative is asked for, and what else `scipy.integrate.quad` returns.

    Raises
    ------
    UnsupportedOpError
        A derivative is asked for, and panels do not come to SciPy's value: the function is too singular.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a, b = tg.tensor(2.0, requires_grad=True), tg.tensor(1.0, requires_grad=True)
    >>> integral, _ = ts.integrate.quad(lambda x: np.exp(-a * x), 0.0, b)
    >>> tg.grad(integral, [a, b])
    (tensor(-0.1485), tensor(0.1353))
    """
    given = args if isinstance(args, tuple) else (args,)
    options = (full_output, epsabs, epsrel, limit, points, weight, wvar, wopts, maxp1, limlst, complex_func)
    if isinstance(func, (LowLevelCallable, tuple)) or not callable(func):
        if follows(a, b, given):
            raise refuse("scipy.integrate.quad of a compiled function")
        return theirs(_scipy.quad, (func, a, b, args, *options), {})
    active, constants = follows(a, b, given), plain(given)

    def on_values(x: Any) -> Any:
        nonlocal active
        found = func(x, *constants)
        active = active or needs_derivative(found)
        return value_of(found)

    found = _scipy.quad(on_values, value_of(a), value_of(b), (), *options)
    if not active:
        return theirs(lambda *_: found, (a, b, given), {})
    if weight is not None or complex_func:
        raise refuse("scipy.integrate.quad with weight= or complex_func=")

    def number(x: Any) -> Any:
        y = func(x, *given)
        return y if np.ndim(y) == 0 else np.reshape(y, ())

    low, high = (float(value_of(x)) for x in (a, b))
    total = 0.0
    if low != high:
        total = _over_panels(number, on_values, min(low, high), max(low, high), points, (epsabs, epsrel))
        total = total if low < high else -total
        _compare(float(value_of(total)), found, max(epsabs, epsrel * abs(found[0])))
    for limit_, sign in ((a, -1.0), (b, 1.0)):
        if follows(limit_):
            total = total + sign * _at_limit(number, limit_)
    return (total + (found[0] - value_of(total)), *found[1:])


def _over_panels(f: Any, on_values: Any, low: float, high: float, points: Any, eps: Any) -> Any:
    """The integral as a sum that is recorded."""
    part = _Range(low, high)
    cuts = [] if points is None else [x for x in np.ravel(value_of(points)).tolist() if low < x < high]
    found: Any = 0.0
    for start, end in part.panels(lambda x: float(on_values(x)), cuts, *eps):
        for x, w in part.nodes(start, end):
            found = found + w * f(x)
    return found


def _compare(total: float, found: Any, allowed: float) -> None:
    allowed = 10 * max(allowed, found[1])
    if not abs(total - found[0]) <= allowed:
        raise UnsupportedOpError(
            f"scipy.integrate.quad: for derivatives the integral is divided into {PANELS} panels at most, "
            f"which come to {total:.10g}, while its value is {found[0]:.10g}: the function is singular; "
            "integrate after a substitution that makes it smooth"
        )


def _at_limit(f: Any, limit: Any) -> Any:
    """The integral from a limit's value to the limit: 0, with derivatives."""
    if not np.isfinite(value_of(limit)):
        raise refuse("scipy.integrate.quad", "has no derivative by a limit that is infinite")
    moved = limit - value_of(limit)
    nodes, weights = roots_legendre(AT_LIMITS)
    return moved * sum(
        0.5 * w * f(value_of(limit) + 0.5 * (1 + s) * moved)
        for s, w in zip(nodes.tolist(), weights.tolist(), strict=True)
    )


def fixed_quad(func: Any, a: Any, b: Any, args: Any = (), n: int = 5) -> Any:
    """Integral of a function of vectors by Gauss's rule of n points.

    Parameters
    ----------
    func : callable
        ``func(x, *args)`` of a vector, or more with that as the last axis.
    a, b : Tensor or float
    args : tuple, optional
    n : int, optional

    Returns
    -------
    tuple
        The integral, and None.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor(1.0, requires_grad=True)
    >>> tg.grad(ts.integrate.fixed_quad(np.cos, 0.0, b)[0], b)
    (tensor(0.5403),)
    """
    if np.any(np.isinf(value_of(a))) or np.any(np.isinf(value_of(b))):
        raise ValueError("Gaussian quadrature is only available for finite limits.")
    x, w = roots_legendre(n)
    y = (b - a) * (np.real(x) + 1) / 2.0 + a
    return (b - a) / 2.0 * np.sum(w * func(y, *args), axis=-1), None
