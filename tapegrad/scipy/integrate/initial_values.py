"""Initial value problems on Tensors: SciPy chooses the steps on plain values, and these are recorded.

Values between steps are those of SciPy's interpolants, polynomials that are recorded too. The time of an
event is a root of the event's function along such a polynomial, the stages of an implicit method are a root
of its equations: both are differentiated as `tapegrad.func.root` does it, at SciPy's values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import scipy.integrate as _scipy
from scipy.optimize import OptimizeResult

from tapegrad import func
from tapegrad.autograd import checkpoint_loop
from tapegrad.core.base import like_of, value_of
from tapegrad.core.dispatch import tensors_in
from tapegrad.func.signatures import Function
from tapegrad.numpy_api.tables import plain, tensor_of
from tapegrad.scipy.calls import derivative_wanted, doubles, refuse, theirs
from tapegrad.tensor import Operand, Tensor, TensorOrArray

__all__ = ["odeint", "solve_ivp"]

METHODS: dict[str | type[_scipy.OdeSolver], type[_scipy.OdeSolver]] = {
    "RK23": _scipy.RK23, "RK45": _scipy.RK45, "DOP853": _scipy.DOP853, "Radau": _scipy.Radau,
}  # fmt: skip
State: TypeAlias = tuple[int, TensorOrArray, Any]  # number, value, slope
NAME = "scipy.integrate.solve_ivp"
BDF, TOLERANCE = 2, 1.49012e-8  # of odeint: a method, and what rtol and atol are if not said
DONE = ("Integration successful.", "Nothing was done; the integration time was 0.")
# Radau IIA of order 5 (Hairer and Wanner, Solving Ordinary Differential Equations II, IV.8): stages at zeros
# of a Jacobi polynomial; weights and interpolant follow, as polynomials of degree 3 pass through the stages.
ENDS = np.array([(4 - 6**0.5) / 10, (4 + 6**0.5) / 10, 1.0])
DEGREES = np.arange(1, 4)
WITHIN = np.linalg.inv((ENDS[:, None] ** DEGREES).T)
RADAU = (ENDS[:, None] ** DEGREES / DEGREES) @ np.linalg.inv(ENDS[:, None] ** (DEGREES - 1))


class Interpolant:
    """Values within a step, by a polynomial in its part x that is over.

    It is y + x (p[0] + x (p[1] + ..)), or y + x (p[0] + (1 - x) (p[1] + x (..))) where these alternate.
    """

    def __init__(
        self, t: float, h: float, y: TensorOrArray, parts: Sequence[TensorOrArray], alternate: bool
    ) -> None:
        self.t, self.h, self.y, self.parts, self.alternate = t, h, y, parts, alternate

    def __call__(self, t: TensorOrArray) -> TensorOrArray:
        x = (t - self.t) / (self.h or 1.0)
        y, parts = self.y, list(self.parts)
        if np.ndim(x):
            y, parts = y[:, None], [part[:, None] for part in parts]
        total: TensorOrArray | float = 0.0
        for k in reversed(range(len(parts))):
            total = (total + parts[k]) * (1 - x if self.alternate and k % 2 else x)
        return y + total

    def root_of(self, event: Function, at: float, given: tuple[Operand, ...]) -> Tensor:
        """The time of an event, which is known, differentiable by what it is computed from."""

        @functools.wraps(event)
        def equation(
            t: TensorOrArray, y: TensorOrArray, parts: Sequence[TensorOrArray], given: tuple[Operand, ...]
        ) -> TensorOrArray:
            return event(t, Interpolant(self.t, self.h, y, parts, self.alternate)(t), *given)

        return func.root(equation, lambda *_: at)(self.y, list(self.parts), given)


class Solution(_scipy.OdeSolution):  # type: ignore[misc]
    """Values at any time, as SciPy's: ``sol(t)`` is recorded, t may be a Tensor."""

    def __call__(self, t: Operand) -> TensorOrArray:
        t = doubles(t)
        times = value_of(t)
        if times.ndim == 0:
            return self.interpolants[int(self._segments(times))](t)
        segments = self._segments(times)
        groups = [np.flatnonzero(segments == k) for k in np.unique(segments)]
        found = [self.interpolants[segments[places[0]]](t[places]) for places in groups]
        return np.concatenate(found, axis=1)[:, np.argsort(np.concatenate(groups))]

    def _segments(self, times: np.ndarray) -> np.ndarray:
        last = self.n_segments - 1
        found = np.clip(np.searchsorted(self.ts_sorted, times, side=self.side) - 1, 0, last)
        return found if self.ascending else last - found


class Explicit:
    """Steps of an explicit Runge-Kutta method of SciPy's, between times that are known.

    Parameters
    ----------
    fun : callable
        ``fun(t, y, *given)`` returns a vector.
    given : tuple
    method : class
        SciPy's solver.
    times : list of float
    notes : list
        What else SciPy found in each step.
    """

    def __init__(
        self,
        fun: Callable[..., TensorOrArray],
        given: tuple[Operand, ...],
        method: type[_scipy.OdeSolver],
        times: list[float],
        notes: list[np.ndarray],
    ) -> None:
        self.fun, self.given, self.method, self.times, self.notes = fun, given, method, times, notes

    def slope(self, t: float, y: TensorOrArray) -> TensorOrArray:
        """What y changes by."""
        return self.fun(t, y, *self.given)

    def first(self, y: TensorOrArray) -> State:
        """The state to begin with: number, value, slope."""
        return 0, y, self.slope(self.times[0], y)

    def span(self, i: int) -> tuple[float, float]:
        """Start and length of step i."""
        return self.times[i], self.times[i + 1] - self.times[i]

    def take(self, i: int, y: TensorOrArray, f: Any) -> tuple[TensorOrArray, Any, Any]:
        """Take step i; returns the next value, its slope, and what is found on the way, slopes."""
        (t, h), slopes = self.span(i), [f]
        for a, c in zip(self.method.A[1:], self.method.C[1:], strict=True):
            slopes.append(self.slope(t + c * h, y + h * _weighed(a, slopes)))
        after = y + h * _weighed(self.method.B, slopes)
        slopes.append(self.slope(t + h, after))
        return after, slopes[-1], slopes

    def step(self, state: State) -> State:
        """Take one step from (number, value, slope)."""
        i, y, f = state
        after, slope, _ = self.take(i, y, f)
        return i + 1, after, slope

    def interpolant(self, i: int, y: TensorOrArray, after: TensorOrArray, slopes: Any) -> Interpolant:
        """Return SciPy's interpolant of step i."""
        t, h = self.span(i)
        if self.method is not _scipy.DOP853:
            return Interpolant(t, h, y, [h * _weighed(row, slopes) for row in self.method.P.T], False)
        slopes = list(slopes)
        for a, c in zip(self.method.A_EXTRA, self.method.C_EXTRA, strict=True):
            slopes.append(self.slope(t + c * h, y + h * _weighed(a, slopes)))
        change, first, last = after - y, slopes[0], slopes[self.method.n_stages]
        parts = [change, h * first - change, 2 * change - h * (last + first)]
        return Interpolant(t, h, y, [*parts, *(h * _weighed(row, slopes) for row in self.method.D)], True)


class Radau(Explicit):
    """Steps of Radau IIA, whose stages solve equations: as SciPy found them, less y, they are noted."""

    def first(self, y: TensorOrArray) -> State:
        """The state to begin with: number, value, and no slope."""
        return 0, y, None

    def take(self, i: int, y: TensorOrArray, f: Any) -> tuple[TensorOrArray, Any, Any]:
        """Take step i; returns the next value, no slope, and the stages less y."""
        (t, h), known = self.span(i), self.notes[i]

        def stages(z: TensorOrArray, y: TensorOrArray, given: tuple[Operand, ...]) -> TensorOrArray:
            slopes = [self.fun(t + c * h, y + z[k], *given) for k, c in enumerate(ENDS.tolist())]
            return z - h * (RADAU @ np.stack(slopes))

        z = func.root(stages, lambda *_: known)(y, self.given)
        return y + z[-1], None, z

    def interpolant(self, i: int, y: TensorOrArray, after: TensorOrArray, z: Any) -> Interpolant:
        """Return SciPy's interpolant of step i."""
        return Interpolant(*self.span(i), y, list(WITHIN.T @ z), False)


def _weighed(row: np.ndarray, slopes: list[TensorOrArray]) -> TensorOrArray:
    """A sum of slopes, those with weights of 0 left out."""
    kept = [(w, k) for w, k in zip(row.tolist(), slopes, strict=False) if w]
    found = kept[0][0] * kept[0][1] if kept else 0.0 * slopes[0]
    for w, k in kept[1:]:
        found = found + w * k
    return found


def _vector(y: Operand) -> TensorOrArray:
    """What a function returned, or a first value, as a vector."""
    if isinstance(y, (list, tuple)):
        return np.stack([np.reshape(tensor_of(x), ()) for x in y])
    return np.reshape(tensor_of(y), (-1,)) if np.ndim(y) != 1 else tensor_of(y)


def solve_ivp(
    fun: Function, t_span: Any, y0: Any, method: Any = "RK45", t_eval: Operand | None = None,
    dense_output: bool = False, events: Function | Sequence[Function] | None = None, vectorized: bool = False,
    args: Sequence[Any] | None = None, **options: Any,
) -> OptimizeResult:  # fmt: skip
    """Solve an initial value problem of ordinary differential equations.

    The derivative is that of the steps taken, whose lengths are constants: by the first value, by args and by
    Tensors that the function uses from outside. Between times at which results are asked for, steps are kept
    as `tapegrad.autograd.checkpoint_loop` keeps them; with `dense_output` all of them are.

    The time of an event moves with the solution, by -(dg/dp) / (dg/dt) along it (the implicit function
    theorem), and so does the value there.

    Parameters
    ----------
    fun : callable
        ``fun(t, y, *args)`` returns the slope, an array, a Tensor or a list of numbers.
    t_span : tuple of float
    y0 : Tensor or array_like
    method : str or OdeSolver, optional
        Derivatives are there for RK23, RK45 and DOP853, and for stiff problems for Radau: there of real
        numbers. The Jacobian that Radau needs is found, unless `jac` is passed.
    t_eval : Tensor or array_like, optional
    events : callable or list of callables, optional
        ``event(t, y, *args)`` is 0 at the event; derivatives of its time are there by y0, args, and what
        `fun` and the event use. `terminal` and `direction` are SciPy's.
    dense_output, vectorized, args : optional
        As SciPy has them; ``sol(t)`` is differentiable by t too.
    **options
        Those of the solver, as rtol and atol.

    Returns
    -------
    OdeResult
        As `scipy.integrate.solve_ivp`. Where a derivative is asked for `y` is a Tensor, and so are values of
        `sol`, times and values of events, and `t` where it ends with an event.

    Raises
    ------
    UnsupportedOpError
        A derivative is asked for by t_span, or with BDF or LSODA.
    GradientError
        In a derivative: the event's function only touches 0, or is another function by now.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> k = tg.tensor(0.5, requires_grad=True)
    >>> found = ts.integrate.solve_ivp(lambda t, y: -k * y, (0.0, 2.0), [1.0], t_eval=[2.0], rtol=1e-8)
    >>> tg.grad(found.y[0, 0], k), -2 * np.exp(-1.0)
    ((tensor(-0.7358),), np.float64(-0.7357588823428847))

    The time when half is left, log(2)/k:

    >>> half = lambda t, y: y[0] - 0.5
    >>> found = ts.integrate.solve_ivp(lambda t, y: -k * y, (0.0, 2.0), [1.0], events=half, rtol=1e-8)
    >>> tg.grad(found.t_events[0][0], k), -np.log(2) / 0.25
    ((tensor(-2.7726),), np.float64(-2.772588722239781))
    """
    given = () if args is None else tuple(args)
    asked = (fun, t_span, y0, method, t_eval, dense_output, events, vectorized, args)
    first, constants = doubles(_vector(y0)), plain(given)
    slope = _of_columns(fun) if vectorized else fun
    start = float(value_of(t_span[0])), np.array(value_of(first))
    marks = () if events is None else (events,) if callable(events) else tuple(events)
    if derivative_wanted(tuple(t_span)):
        raise refuse(NAME, "has no derivative by t_span (use t_eval=, or sol(t) of dense_output=True)")
    inside, outside = (first, given, t_eval), _at_start(slope, start, constants)
    if not derivative_wanted(*inside, outside, *(_at_start(event, start, constants) for event in marks)):
        return theirs(_scipy.solve_ivp, asked, options)
    kind = METHODS.get(method, method)
    if kind not in METHODS.values():
        raise refuse(f"{NAME} with method={method!r}", "has no derivative (use RK45, RK23, DOP853 or Radau)")
    implicit = kind is _scipy.Radau
    if implicit and like_of(first).dtype.kind == "c":
        raise refuse(f"{NAME} with method='Radau'", "has no derivative of complex numbers")
    times: list[float] = [start[0]]
    notes: list[np.ndarray] = []
    options = _with_jacobian(slope, constants, options) if implicit else options
    found = _scipy.solve_ivp(
        lambda t, y: plain(slope(t, y, *constants)), tuple(map(float, t_span)), start[1],
        _noting(kind, times, notes), value_of(t_eval), dense_output,
        None if events is None else [_OfValues(event, constants) for event in marks], **options,
    )  # fmt: skip
    form = Radau if implicit else Explicit
    steps = form(lambda t, y, *p: _vector(slope(t, y, *p)), given, kind, times, notes)
    return _recorded(found, steps, first, t_eval, marks)


def odeint(
    func: Function, y0: Any, t: Operand, args: Any = (), Dfun: Function | None = None,
    col_deriv: bool = False, full_output: bool = False, ml: int | None = None, mu: int | None = None,
    rtol: Any = None, atol: Any = None, tcrit: Any = None, h0: float = 0.0, hmax: float = 0.0,
    hmin: float = 0.0, ixpr: bool = False, mxstep: int = 0, mxhnil: int = 0, mxordn: int = 12,
    mxords: int = 5, printmessg: bool = False, tfirst: bool = False,
) -> Any:  # fmt: skip
    """Solve an initial value problem at given times, by LSODA.

    Values are SciPy's. Derivatives are those of another solution with the same `rtol` and `atol`: of the
    steps of `solve_ivp` by DOP853, or by Radau where LSODA found the problem stiff for some time.

    Parameters
    ----------
    func : callable
        ``func(y, t, *args)``, or ``func(t, y, *args)`` with `tfirst`, returns the slope.
    y0 : Tensor or array_like
    t : Tensor or array_like
        Times, the first that of y0; derivatives are there by all of them.
    args : tuple, optional
    Dfun, col_deriv, full_output, ml, mu, rtol, atol, tcrit, h0, hmax, hmin, ixpr, mxstep : optional
        As SciPy has them, and so are mxhnil, mxordn, mxords, printmessg and tfirst.

    Returns
    -------
    Tensor or ndarray, or a tuple of that and a dict
        A row for each time, as `scipy.integrate.odeint`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> k = tg.tensor(0.5, requires_grad=True)
    >>> y = ts.integrate.odeint(lambda y, t, k: -k * y, 1.0, [0.0, 2.0], args=(k,))
    >>> tg.grad(y[1, 0], k), -2 * np.exp(-1.0)
    ((tensor(-0.7358),), np.float64(-0.7357588823428847))
    """
    given = args if isinstance(args, tuple) else (args,)
    options = (
        Dfun, col_deriv, full_output, ml, mu, rtol, atol, tcrit, h0, hmax, hmin, ixpr, mxstep, mxhnil, mxordn,
        mxords, printmessg, tfirst,
    )  # fmt: skip

    def since(s: float, y: TensorOrArray, start: Any, *given: Operand) -> TensorOrArray:
        at = start + s
        return _vector(func(at, y, *given) if tfirst else func(y, at, *given))

    first, times, constants = doubles(_vector(y0)), doubles(_vector(t)), plain(given)
    begin = 0.0, np.array(value_of(first))
    outside = _at_start(since, begin, (value_of(times)[0], *constants))
    if not derivative_wanted(first, times, given, outside):
        return theirs(_scipy.odeint, (func, y0, t, args, *options), {})
    found, notes = _scipy.odeint(
        lambda *where: plain(func(*where, *constants)), begin[1], value_of(times), (),
        Dfun and (lambda *where: plain(Dfun(*where, *constants))), col_deriv, True, *options[3:],
    )  # fmt: skip
    if notes["message"] not in DONE:
        raise refuse("scipy.integrate.odeint", f"has no derivative where it stopped ({notes['message']})")
    stiff = int(np.count_nonzero(notes["mused"] == BDF))
    least = 100 * np.finfo(float).eps  # that solve_ivp takes
    limits = [np.maximum(TOLERANCE if limit is None else limit, least) for limit in (rtol, atol)]
    passed, by_time = times - times[0], derivative_wanted(times)
    distinct, places = np.unique(np.abs(value_of(passed)), return_inverse=True)
    end = float(value_of(passed)[-1]) or 1e-3  # a short step where times are one: it moves with them
    steps = solve_ivp(
        since, (0.0, end), first, "Radau" if stiff else "DOP853",
        None if by_time else np.copysign(distinct, end), by_time, args=(times[0], *given),
        max_step=hmax or np.inf, rtol=limits[0], atol=limits[1],
    )  # fmt: skip
    rows = (steps.sol(passed) if by_time else steps.y[:, places]).T
    found = found + (rows - value_of(rows))
    return (found, notes) if full_output else found


def _at_start(function: Function, start: tuple[float, np.ndarray], constants: tuple[Operand, ...]) -> Operand:
    """What a function returns at the start, of plain values: Tensors by which it has a derivative."""
    return function(start[0], start[1].copy(), *constants)


def _of_columns(fun: Function) -> Callable[..., TensorOrArray]:
    """A function that takes several values at a time, in columns, as one of vectors."""
    return lambda t, y, *args: _vector(fun(t, y[:, None], *args))


class _OfValues:
    """An event of plain values, with SciPy's attributes."""

    def __init__(self, event: Function, constants: tuple[Operand, ...]) -> None:
        self.event, self.constants = event, constants
        self.terminal, self.direction = getattr(event, "terminal", None), getattr(event, "direction", 0)

    def __call__(self, t: float, y: np.ndarray) -> Operand:
        return plain(self.event(t, y, *self.constants))


def _with_jacobian(
    slope: Function, constants: tuple[Operand, ...], options: dict[str, Any]
) -> dict[str, Any]:
    """Options of Radau with the Jacobian: what is passed is used."""
    jac = options.get("jac")
    if callable(jac):
        return {**options, "jac": lambda t, y: plain(jac(t, y, *constants))}
    if jac is not None or options.get("jac_sparsity") is not None:
        return options
    return {**options, "jac": lambda t, y: plain(func.jacrev(lambda y: _vector(slope(t, y, *constants)))(y))}


def _noting(
    kind: type[_scipy.OdeSolver], times: list[float], notes: list[np.ndarray]
) -> type[_scipy.OdeSolver]:
    """SciPy's solver, which notes when steps end, and what Radau's stages are."""

    class Noting(kind):  # type: ignore[misc]
        def step(self) -> str | None:
            message = super().step()
            if self.status != "failed":
                times.append(float(self.t))
                z = getattr(self, "Z", None)
                notes.append(np.zeros((3, self.n)) if z is None else z)
            return message

    return Noting


# ---------------------------------------------------------------- what SciPy found, recorded


def _recorded(
    found: OptimizeResult,
    steps: Explicit,
    first: TensorOrArray,
    t_eval: Any,
    marks: Sequence[Function],
) -> OptimizeResult:
    """Put Tensors in place of SciPy's values."""
    dense, every = found.sol is not None, t_eval is None
    times = t_eval if tensors_in((t_eval,)) else np.asarray(found.t)
    within, events = _by_step(found, steps)
    columns, pieces, at = [first[:, None]] if every else [], [], 0
    roots: dict[tuple[int, int], tuple[TensorOrArray, TensorOrArray]] = {}
    needed = [every or dense or bool(n or k) for n, k in zip(within, events, strict=True)]
    for i, after, interpolant in _walk(steps, first, needed):
        count = 0 if every else within[i]
        inside: Any = interpolant() if dense or count or events[i] else None
        pieces.append(inside)
        for e, k, t in events[i]:
            time = inside.root_of(marks[e], t, steps.given)
            roots[e, k] = time, inside(time)
        if every:
            columns.append(after[:, None])
        elif count:
            columns.append(inside(times[at : at + count]))
            at += count
    if every and found.status == 1:
        time, y = roots[_last_event(found, marks)]
        columns = [*columns[: len(found.t) - 1], y[:, None]]
        found.t = np.concatenate([found.t[:-1], np.reshape(time, (1,))])
    elif at:
        found.t = times[:at]
    found.y = np.concatenate(columns, axis=1) if columns else found.y
    found.sol = Solution(found.sol.ts, pieces[: found.sol.n_segments]) if dense else None
    for e, ts in enumerate(found.t_events or ()):
        if len(ts):
            found.t_events[e] = np.stack([roots[e, k][0] for k in range(len(ts))])
            found.y_events[e] = np.stack([roots[e, k][1] for k in range(len(ts))])
    return found


def _by_step(found: OptimizeResult, steps: Explicit) -> tuple[list[int], list[list[tuple[int, int, float]]]]:
    """How many times that are asked for each step comes to, and which events: those at its end among them."""
    direction = 1.0 if steps.times[-1] >= steps.times[0] else -1.0
    ends = direction * np.array(steps.times[1:])
    last = np.searchsorted(direction * np.asarray(found.t), ends, side="right")
    events: list[list[tuple[int, int, float]]] = [[] for _ in ends]
    for e, times in enumerate(found.t_events or ()):
        for k, t in enumerate(times.tolist()):
            events[int(np.searchsorted(ends, direction * t))].append((e, k, t))
    return np.diff(last, prepend=0).tolist(), events


def _last_event(found: OptimizeResult, marks: Sequence[Function]) -> tuple[int, int]:
    """The event that ended it: its number, and how often it had been before."""
    for e, times in enumerate(found.t_events):
        if getattr(marks[e], "terminal", None) and len(times) and times[-1] == found.t[-1]:
            return e, len(times) - 1
    raise AssertionError("a terminal event is one of the events")


def _walk(
    steps: Explicit, first: TensorOrArray, needed: list[bool]
) -> Iterator[tuple[int, TensorOrArray, Callable[[], Interpolant]]]:
    """Steps that are needed, with the value at the end of each and what gives the interpolant."""
    state, i = steps.first(first), 0
    while any(needed[i:]):
        skipped = needed[i:].index(True)
        if skipped:
            state = checkpoint_loop(steps.step, state, skipped, slots=skipped.bit_length())
            i += skipped
        _, y, f = state
        after, slope, inner = steps.take(i, y, f)
        yield i, after, functools.partial(steps.interpolant, i, y, after, inner)
        i, state = i + 1, (i + 1, after, slope)
