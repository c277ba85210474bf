"""Functions of `scipy.integrate` on Tensors and arrays; all its other names are its own.

Integrals of samples are differentiated by the samples and by where they were taken. `quad` and `solve_ivp`
look after the error on plain values, as SciPy does, and record the function on the panels and steps that this
led to: so derivatives, to any order and in both modes, go by all that the function is computed from.
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

from tapegrad.autograd import checkpoint_loop
from tapegrad.core.base import needs_derivative, value_of
from tapegrad.errors import UnsupportedOpError
from tapegrad.numpy_api.tables import plain, tensor_of
from tapegrad.scipy.calls import derived, doubles, fall_through, follows, refuse, theirs

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


# ---------------------------------------------------------------- differential equations


class _Steps:
    """Steps of an explicit Runge-Kutta method of SciPy's, between times that are known.

    Parameters
    ----------
    fun : callable
        ``fun(t, y)`` returns a vector.
    method : class
        SciPy's solver.
    times : list of float
    """

    def __init__(self, fun: Callable[[Any, Any], Any], method: Any, times: list[float]) -> None:
        self.fun, self.method, self.times = fun, method, times
        self.extended = method is _scipy.DOP853

    def stages(self, i: int, y: Any, f: Any) -> tuple[Any, Any, list[Any]]:
        """Take step i; returns the next value, its slope, and the slopes on the way."""
        t, h, slopes = self.times[i], self.times[i + 1] - self.times[i], [f]
        for a, c in zip(self.method.A[1:], self.method.C[1:], strict=True):
            slopes.append(self.fun(t + c * h, y + h * _weighed(a, slopes)))
        after = y + h * _weighed(self.method.B, slopes)
        slopes.append(self.fun(t + h, after))
        return after, slopes[-1], slopes

    def step(self, state: Any) -> Any:
        """Take one step from (number, value, slope)."""
        i, y, f = state
        after, slope, _ = self.stages(i, y, f)
        return i + 1, after, slope

    def between(self, i: int, y: Any, after: Any, slopes: list[Any], ts: np.ndarray) -> list[Any]:
        """Values at times within step i, by SciPy's interpolant."""
        t, h = self.times[i], self.times[i + 1] - self.times[i]
        xs = (ts - t) / h
        if not self.extended:
            powers = xs[:, None] ** np.arange(1, self.method.P.shape[1] + 1)
            return [y + h * _weighed(row, slopes) for row in powers @ self.method.P.T]
        slopes = list(slopes)
        for a, c in zip(self.method.A_EXTRA, self.method.C_EXTRA, strict=True):
            slopes.append(self.fun(t + c * h, y + h * _weighed(a, slopes)))
        change, first, last = after - y, slopes[0], slopes[self.method.n_stages]
        parts = [change, h * first - change, 2 * change - h * (last + first)]
        parts += [h * _weighed(row, slopes) for row in self.method.D]
        found = []
        for x in xs.tolist():
            total: Any = 0.0
            for k, part in enumerate(reversed(parts)):
                total = (total + part) * (1 - x if k % 2 else x)
            found.append(y + total)
        return found


def _weighed(row: np.ndarray, slopes: list[Any]) -> Any:
    """A sum of slopes, those with weights of 0 left out."""
    kept = [(w, k) for w, k in zip(row.tolist(), slopes, strict=False) if w]
    found = kept[0][0] * kept[0][1] if kept else 0.0
    for w, k in kept[1:]:
        found = found + w * k
    return found


def _vector(y: Any) -> Any:
    """What a function returned, or a first value, as a vector."""
    if isinstance(y, (list, tuple)):
        return np.stack([np.reshape(tensor_of(x), ()) for x in y])
    return np.reshape(tensor_of(y), (-1,)) if np.ndim(y) != 1 else tensor_of(y)


def solve_ivp(
    fun: Any, t_span: Any, y0: Any, method: Any = "RK45", t_eval: Any = None, dense_output: bool = False,
    events: Any = None, vectorized: bool = False, args: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """Solve an initial value problem of ordinary differential equations.

    The derivative is that of the steps taken, whose lengths are constants: by the first value, by args and by
    Tensors that the function uses from outside. Between times at which results are asked for, steps are kept
    as `tapegrad.autograd.checkpoint_loop` keeps them.

    Parameters
    ----------
    fun : callable
        ``fun(t, y, *args)`` returns the slope, an array, a Tensor or a list of numbers.
    t_span : tuple of float
    y0 : Tensor or array_like
    method : str or OdeSolver, optional
        Derivatives are there for RK23, RK45 and DOP853.
    t_eval, vectorized, args : optional
        As SciPy has them.
    dense_output, events : optional
        As SciPy has them, where no derivative is asked for.
    **options
        Those of the solver, as rtol and atol.

    Returns
    -------
    OdeResult
        As `scipy.integrate.solve_ivp`; `y` is a Tensor where a derivative is asked for.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> k = tg.tensor(0.5, requires_grad=True)
    >>> found = ts.integrate.solve_ivp(lambda t, y: -k * y, (0.0, 2.0), [1.0], t_eval=[2.0], rtol=1e-8)
    >>> tg.grad(found.y[0, 0], k), -2 * np.exp(-1.0)
    ((tensor(-0.7358),), np.float64(-0.7357588823428847))
    """
    given = () if args is None else tuple(args)
    asked = (fun, t_span, y0, method, t_eval, dense_output, events, vectorized, args)
    first, constants = doubles(_vector(y0)), plain(given)
    slope = _of_columns(fun) if vectorized else fun
    start = slope(float(value_of(t_span[0])), np.array(value_of(first)), *constants)
    if follows(tuple(t_span), t_eval):
        raise refuse("scipy.integrate.solve_ivp", "has no derivative by t_span and t_eval")
    if not follows(first, given, start):
        return theirs(_scipy.solve_ivp, asked, options)
    explicit = {"RK23": _scipy.RK23, "RK45": _scipy.RK45, "DOP853": _scipy.DOP853}
    kind = explicit.get(method, method)
    if kind not in explicit.values() or dense_output or events is not None:
        what = f"with method={method!r}" if kind not in explicit.values() else "with events= or dense_output="
        raise refuse(
            f"scipy.integrate.solve_ivp {what}",
            "has no derivative (use RK45, RK23 or DOP853, and t_eval= for times between steps)",
        )
    return _solved(kind, slope, given, first, tuple(map(float, t_span)), t_eval, options)


def _of_columns(fun: Any) -> Any:
    """A function that takes several values at a time, in columns, as one of vectors."""
    return lambda t, y, *args: _vector(fun(t, y[:, None], *args))


def _solved(kind: Any, fun: Any, given: Any, first: Any, span: Any, t_eval: Any, options: Any) -> Any:
    """Let SciPy choose the steps, then record them."""
    wanted = None if t_eval is None else np.asarray(value_of(t_eval), float)
    if wanted is not None:
        _check_times(wanted, *span)
    constants = plain(given)
    solver = kind(
        lambda t, y: plain(fun(t, y, *constants)), span[0], np.array(value_of(first)), span[1], **options
    )
    times, message = [float(solver.t)], None
    while solver.status == "running":
        message = solver.step()
        if solver.status != "failed":
            times.append(float(solver.t))
    steps = _Steps(lambda t, y: _vector(fun(t, y, *given)), kind, times)
    ts, columns = _results(steps, first, wanted, solver.direction)
    failed = solver.status == "failed"
    return _scipy._ivp.ivp.OdeResult(
        t=ts, y=np.stack(columns, axis=1) if columns else np.zeros((len(value_of(first)), 0)), sol=None,
        t_events=None, y_events=None, nfev=solver.nfev, njev=solver.njev, nlu=solver.nlu,
        status=-1 if failed else 0, success=not failed,
        message=message if failed else "The solver successfully reached the end of the integration interval.",
    )  # fmt: skip


def _check_times(wanted: np.ndarray, start: float, end: float) -> None:
    if wanted.ndim != 1:
        raise ValueError("`t_eval` must be 1-dimensional.")
    if np.any(wanted < min(start, end)) or np.any(wanted > max(start, end)):
        raise ValueError("Values in `t_eval` are not within `t_span`.")
    if np.any(np.diff(wanted) * np.sign(end - start) <= 0):
        raise ValueError("Values in `t_eval` are not properly sorted.")


def _results(steps: _Steps, first: Any, wanted: np.ndarray | None, direction: float) -> tuple[Any, list[Any]]:
    """Times and values that are asked for: by default those of all steps."""
    times, columns, found = steps.times, [] if wanted is not None else [first], []
    state: Any = (0, first, steps.fun(times[0], first))
    counts = [1] * (len(times) - 1)
    if wanted is not None:  # how many of them each step comes to, those at its end among them
        ends = np.searchsorted(direction * wanted, direction * np.array(times[1:]), side="right")
        counts = np.diff(ends, prepend=0).tolist()
    i = at = 0
    while i < len(counts):
        if not counts[i]:
            n = next((k for k, count in enumerate(counts[i:]) if count), 0)
            if not n:
                break
            state = checkpoint_loop(steps.step, state, n, slots=n.bit_length())
            i += n
            continue
        _, y, f = state
        after, slope, slopes = steps.stages(i, y, f)
        if wanted is None:
            columns.append(after)
        else:
            inner = wanted[at : at + counts[i]]
            columns += steps.between(i, y, after, slopes, inner)
            found.append(inner)
            at += counts[i]
        i, state = i + 1, (i + 1, after, slope)
    ts = np.array(times) if wanted is None else np.hstack(found) if found else np.zeros(0)
    return ts, columns
