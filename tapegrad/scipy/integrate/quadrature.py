"""Integrals of a function of one variable, as `scipy.integrate.quad` and `fixed_quad`.

`quad` looks after the error on plain values, as SciPy does, and records the function on the panels that this
led to: so derivatives, to any order and in both modes, go by all that the function is computed from.
"""

from __future__ import annotations

import heapq
import itertools
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import scipy.integrate as _scipy
from scipy import LowLevelCallable
from scipy.special import roots_legendre

from tapegrad.autograd.steps import leave_tape, sources_of
from tapegrad.autograd.sweeps import run
from tapegrad.core.base import has_tangent, needs_derivative, requires_grad, value_of
from tapegrad.errors import ShapeError, UnsupportedOpError
from tapegrad.func.signatures import Function
from tapegrad.numpy_api.tables import plain, tensor_of
from tapegrad.scipy.calls import derivative_wanted, refuse, theirs
from tapegrad.tape.tape import current
from tapegrad.tensor import Operand, TensorOrArray, is_tensor

__all__ = ["fixed_quad", "quad"]

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

    def measured(
        self, f: Callable[[float], TensorOrArray], low: float, high: float
    ) -> dict[Hashable, np.ndarray]:
        """Terms of the integral between two t, and of its derivatives, by key: a row a node."""
        xs, weights = zip(*self.nodes(low, high), strict=True)
        return {
            key: (rows * np.reshape(weights, (-1, 1))).reshape(len(POINTS), -1, rows.shape[1]).sum(axis=1)
            for key, rows in _with_slopes(f, xs).items()
        }

    def panels(
        self, f: Callable[[float], TensorOrArray], cuts: list[float], epsabs: float, epsrel: float
    ) -> list[tuple[float, float]]:
        """Divide it until errors are a tenth of what is allowed; returns pairs of t."""
        totals: tuple[dict[Hashable, np.ndarray | float], dict[Hashable, np.ndarray | float]] = {}, {}
        heap: list[tuple[float, float, _Panel]] = []
        least: list[_Panel] = []
        todo = list(itertools.pairwise(sorted({*self.ends, *cuts})))
        while True:
            new = [_Panel(*ends, self.measured(f, *ends)) for ends in todo]
            for panel in new:
                panel.add_to(totals, 1.0)
            allowed = {key: np.maximum(epsabs, epsrel * np.abs(x)) for key, x in totals[0].items()}
            for panel in new:
                if panel.least:
                    least.append(panel)
                else:
                    heapq.heappush(heap, (-panel.excess(allowed), panel.low, panel))
            enough = all(np.all(totals[1][key] <= 0.1 * x) for key, x in allowed.items())
            if not heap or (enough and not heap[0][2].odd) or len(heap) + len(least) >= PANELS:
                break
            worst = heapq.heappop(heap)[2]
            worst.add_to(totals, -1.0)
            middle = 0.5 * (worst.low + worst.high)
            todo = [(worst.low, middle), (middle, worst.high)]
        parts = [*least, *(panel for _, _, panel in heap)]
        _look_at(parts, allowed)
        return sorted((panel.low, panel.high) for panel in parts)


def _look_at(parts: list[_Panel], allowed: dict[Hashable, np.ndarray]) -> None:
    """Warn where a derivative is not found, but the integral is."""
    wrong = {
        key
        for key, x in allowed.items()
        if np.any(sum(panel.sums[key][1] for panel in parts if key in panel.sums) > 10 * x)
    }
    if wrong - {None} and None not in wrong:
        warnings.warn(
            "scipy.integrate.quad: a derivative of the integral is not found to the tolerances by "
            f"{len(parts)} panels; integrate after a substitution that makes the function smooth",
            _scipy.IntegrationWarning,
            stacklevel=5,
        )


class _Panel:
    """A part of what is integrated over.

    Attributes
    ----------
    sums
        Integrals, and estimates of their errors as QUADPACK has them, by key: of the function by None, of its
        derivatives by what tapes know Tensors by.
    """

    def __init__(self, low: float, high: float, terms: dict[Hashable, np.ndarray]) -> None:
        self.low, self.high = low, high
        with np.errstate(invalid="ignore", over="ignore"):
            self.sums = {key: _estimated(rows) for key, rows in terms.items()}
        self.odd = not all(
            np.isfinite(x).all() for x in self.sums.values()
        )  # at a node, which others are not
        nearest = np.finfo(float).eps * max(abs(low), abs(high))
        self.least = high - low <= (50 if self.odd else 1000) * nearest

    def add_to(
        self,
        totals: tuple[dict[Hashable, np.ndarray | float], dict[Hashable, np.ndarray | float]],
        sign: float,
    ) -> None:
        """Add integrals to those of others, or take them away, and errors that smaller panels make less."""
        for key, (total, error) in self.sums.items():
            for known, x, counts in ((totals[0], total, True), (totals[1], error, not self.least)):
                known[key] = known.get(key, 0.0) + (sign * x if counts and not self.odd else 0.0 * sign)

    def excess(self, allowed: dict[Hashable, np.ndarray]) -> float:
        """The largest error in parts of what is allowed."""
        if self.odd:
            return np.inf
        return max(float(np.max(x[1] / allowed[key], initial=0.0)) for key, x in self.sums.items())


def _estimated(terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums of columns of terms at Kronrod's nodes, and estimates of their errors."""
    total = terms.sum(axis=0)
    error = np.abs((OF_GAUSS / WEIGHTS) @ terms - total)
    spread = np.abs(terms - WEIGHTS[:, None] / 2 * total).sum(axis=0)
    ratio = 200 * error / np.where(spread == 0, 1.0, spread)
    error = np.where((spread == 0) | (error == 0), error, spread * np.minimum(1.0, ratio) ** 1.5)
    rounding = 50 * np.finfo(float).eps * np.abs(terms).sum(axis=0)
    return total, np.where(error <= rounding, 0.0, error)


def _with_slopes(f: Callable[[float], TensorOrArray], xs: Sequence[float]) -> dict[Hashable, np.ndarray]:
    """By key rows of values at places, and of derivatives by all that they are computed from."""
    leave_tape()
    begin, n = current().serial, len(xs)
    ys: Any = np.stack([np.reshape(tensor_of(f(x)), ()) for x in xs])
    found: dict[Hashable, np.ndarray] = {None: np.asarray(value_of(ys), float).reshape(n, 1)}
    if has_tangent(ys):
        for k, part in enumerate(ys._at.parts[1:]):  # a tangent, lanes of it, or a series
            found["tangent", k] = np.asarray(value_of(part), float).reshape(-1, n).T
    elif is_tensor(ys) and requires_grad(ys):
        keys = [key for key, _, _ in sources_of([ys], begin, [])]
        swept = run([(ys, np.eye(n))], keys, False, False, False, None, None, n, begin)
        found |= {key: np.real(value_of(rows)).reshape(n, -1) for key, rows in swept.items()}
    leave_tape()
    return found


def quad(
    func: Function, a: Operand, b: Operand, args: tuple[Any, ...] = (), full_output: int = 0,
    epsabs: float = 1.49e-8, epsrel: float = 1.49e-8, limit: int = 50, points: Operand | None = None,
    weight: str | None = None, wvar: Operand | None = None, wopts: tuple[int, Operand] | None = None,
    maxp1: int = 50, limlst: int = 50, complex_func: bool = False,
) -> Any:  # fmt: skip
    """Integral of a function between two limits, finite or not.

    Its value and the estimate of its error are SciPy's. Derivatives are there by the limits, up to order 16,
    whether or not the function is smooth elsewhere; by args; and by Tensors that the function uses from
    outside. By the last two they are the integrals of the derivatives, over panels that those of first order
    need as the function does, to be found to the same tolerances; higher orders are not looked at. Where the
    function jumps at a place that depends on them, the place is no part of it.

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
    ShapeError
        The function returns several numbers.
    UnsupportedOpError
        A derivative is asked for, and panels do not come to SciPy's value: the function is too singular.

    Warns
    -----
    scipy.integrate.IntegrationWarning
        Panels do not come to a derivative by what the function is computed from: that is too singular.

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
        if derivative_wanted(a, b, given):
            raise refuse("scipy.integrate.quad of a compiled function")
        return theirs(_scipy.quad, (func, a, b, args, *options), {})
    active, constants = derivative_wanted(a, b, given), plain(given)

    def on_values(x: float) -> float:
        nonlocal active
        found = func(x, *constants)
        active = active or needs_derivative(found)
        value: float = value_of(found)
        if getattr(value, "size", 1) != 1:
            raise ShapeError(
                f"quad: the function is to return one number, found shape {np.shape(value)}; integrate each "
                "element, or use fixed_quad"
            )
        return value

    found = _scipy.quad(on_values, value_of(a), value_of(b), (), *options)
    if not active:
        return theirs(lambda *_: found, (a, b, given), {})
    if weight is not None or complex_func:
        raise refuse("scipy.integrate.quad with weight= or complex_func=")

    def number(x: TensorOrArray | float) -> TensorOrArray:
        y = func(x, *given)
        return y if np.ndim(y) == 0 else np.reshape(y, ())

    low, high = (float(value_of(x)) for x in (a, b))
    total: TensorOrArray | float = 0.0
    if low != high:
        total = _over_panels(number, min(low, high), max(low, high), points, (epsabs, epsrel))
        total = total if low < high else -total
        _compare(float(value_of(total)), found, max(epsabs, epsrel * abs(found[0])))
    for limit_, sign in ((a, -1.0), (b, 1.0)):
        if derivative_wanted(limit_):
            total = total + sign * _at_limit(number, limit_)
    return (total + (found[0] - value_of(total)), *found[1:])


def _over_panels(
    f: Callable[[float], TensorOrArray],
    low: float,
    high: float,
    points: Operand | None,
    eps: tuple[float, float],
) -> TensorOrArray | float:
    """The integral as a sum that is recorded."""
    part = _Range(low, high)
    cuts = [] if points is None else [x for x in np.ravel(value_of(points)).tolist() if low < x < high]
    found: TensorOrArray | float = 0.0
    for ends in part.panels(f, cuts, *eps):
        for x, w in part.nodes(*ends):
            found = found + w * f(x)
    return found


def _compare(total: float, found: Sequence[float], allowed: float) -> None:
    allowed = 10 * max(allowed, found[1])
    if not abs(total - found[0]) <= allowed:
        raise UnsupportedOpError(
            f"scipy.integrate.quad: for derivatives the integral is divided into {PANELS} panels at most, "
            f"which come to {total:.10g}, while its value is {found[0]:.10g}: the function is singular; "
            "integrate after a substitution that makes it smooth"
        )


def _at_limit(f: Callable[[float], TensorOrArray], limit: Any) -> TensorOrArray:
    """The integral from a limit's value to the limit: 0, with derivatives."""
    if not np.isfinite(value_of(limit)):
        raise refuse("scipy.integrate.quad", "has no derivative by a limit that is infinite")
    moved = limit - value_of(limit)
    nodes, weights = roots_legendre(AT_LIMITS)
    return moved * sum(
        0.5 * w * f(value_of(limit) + 0.5 * (1 + s) * moved)
        for s, w in zip(nodes.tolist(), weights.tolist(), strict=True)
    )


def fixed_quad(
    func: Function, a: Any, b: Any, args: tuple[Any, ...] = (), n: int = 5
) -> tuple[TensorOrArray, None]:
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
        raise ValueError(
            f"scipy.integrate.fixed_quad: limits {value_of(a)} and {value_of(b)}; quad takes infinite ones"
        )
    x, w = roots_legendre(n)
    y = (b - a) * (np.real(x) + 1) / 2.0 + a
    return (b - a) / 2.0 * np.sum(w * func(y, *args), axis=-1), None
