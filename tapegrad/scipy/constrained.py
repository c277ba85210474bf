"""Solutions of minimization under bounds and constraints as functions of what is in the problem.

Some bounds and constraints hold as equations c(x) = 0 at a solution. These, and those that the gradient of
f - v c by x is 0, with multipliers v, have the solution's derivative by the implicit function theorem (Fiacco
1983, Introduction to Sensitivity and Stability Analysis in Nonlinear Programming, section 3.2): as long as
the same ones hold, which is so if no multiplier of an inequality is 0 (strict complementarity).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import scipy.optimize as _scipy

from tapegrad import func
from tapegrad.core.base import value_of
from tapegrad.creation import array
from tapegrad.errors import GradientError
from tapegrad.func.calls import on_tensors
from tapegrad.func.trees import flatten
from tapegrad.scipy.evaluations import as_array

__all__ = ["GRADIENT", "Constraint", "Limits", "constraints_of", "limits_of", "plain_tree", "solution"]

GRADIENT = 1e-5  # SciPy's `gtol`, where none is passed: below that a gradient or a multiplier counts as 0
NEAR = 1e-3  # from a limit, in parts of it or of 1: up to there its multiplier says whether it is an equation
SLACK = 1e-6  # up to there it is one: methods that come from inside are farther off
OFF = 1e-3  # of the gradient that no multipliers account for, where the solver says that it has converged


class Limits(NamedTuple):
    """What x is between, numbers or Tensors."""

    low: Any
    high: Any


class Constraint(NamedTuple):
    """``fun(x, *args)`` is between `low` and `high`."""

    fun: Callable[..., Any]
    low: Any
    high: Any
    args: tuple[Any, ...] = ()


def plain_tree(x: Any) -> Any:
    """A tree with values in place of its Tensors."""
    leaves, structure = flatten(x)
    return structure.build([value_of(leaf) for leaf in leaves])


def limits_of(bounds: Any, n: int, pairs: bool) -> Limits:
    """Limits of each of n unknowns, of pairs as `minimize` takes for bounds, or of two sides."""
    if bounds is None:
        return Limits([-np.inf] * n, [np.inf] * n)
    if isinstance(bounds, _scipy.Bounds):
        bounds = bounds.lb, bounds.ub
    elif pairs:
        both = [(-np.inf if a is None else a, np.inf if b is None else b) for a, b in bounds]
        return Limits(*map(list, zip(*both, strict=True)))
    return Limits(*(list(as_array(side) + np.zeros(n)) for side in bounds))


def constraints_of(constraints: Any, name: str) -> list[Constraint]:
    """What SciPy takes for constraints."""
    found = []
    for c in constraints if isinstance(constraints, (list, tuple)) else [constraints]:
        if isinstance(c, dict):
            args = c.get("args", ())
            high = 0.0 if c["type"].lower() == "eq" else np.inf
            args = args if isinstance(args, tuple) else (args,)
            found.append(Constraint(on_tensors(c["fun"], name), 0.0, high, args))
        elif isinstance(c, _scipy.LinearConstraint):
            found.append(Constraint(lambda x, A=c.A: A @ x, c.lb, c.ub))
        elif isinstance(c, _scipy.NonlinearConstraint):
            found.append(Constraint(on_tensors(c.fun, name), c.lb, c.ub))
        else:
            raise TypeError(
                f"{name}: a constraint is a dict or one of SciPy's objects, found {type(c).__name__}"
            )
    return found


class _Candidates:
    """Elements near a limit: of x, and of constraints.

    Attributes
    ----------
    owners, places
        Number of the constraint, -1 for x, and of the element in it.
    ends
        The limits.
    signs
        1 at the lower one, -1 at the upper one, 0 where they are the same.
    slack
        How far off it is.
    rows
        Derivatives by x.
    """

    def __init__(self, x: np.ndarray, limits: Limits, constraints: Sequence[Constraint]) -> None:
        parts = [self._near(-1, x, limits.low, limits.high, lambda: np.eye(x.size))]
        for k, c in enumerate(constraints):
            of = functools.partial(_of_constraint, c)
            parts.append(self._near(k, value_of(of(x)), c.low, c.high, functools.partial(func.jacrev(of), x)))
        self.owners, self.places, self.ends, self.signs, self.slack = (
            np.concatenate([part[i] for part in parts]) for i in range(5)
        )
        self.rows = np.concatenate([part[5].reshape(-1, x.size) for part in parts])

    @staticmethod
    def _near(owner: int, at: Any, low: Any, high: Any, matrix: Callable[[], Any]) -> tuple[Any, ...]:
        at = np.asarray(at, float)
        ends = [np.broadcast_to(np.asarray(side, float), at.shape) for side in (low, high)]
        with np.errstate(invalid="ignore"):
            off = [np.abs(at - end) / np.maximum(1.0, np.abs(end)) for end in ends]
        off = [np.where(np.isfinite(end), gap, np.inf) for end, gap in zip(ends, off, strict=True)]
        lower = off[0] <= off[1]
        slack = np.where(lower, *off)
        kept = np.flatnonzero(slack <= NEAR)
        signs = np.where(ends[0] == ends[1], 0, np.where(lower, 1, -1))
        rows = matrix()[kept] if kept.size else np.zeros(0)
        return np.full(kept.size, owner), kept, np.where(lower, *ends)[kept], signs[kept], slack[kept], rows

    def without(self, dropped: np.ndarray) -> None:
        """Leave some out."""
        for name in ("owners", "places", "ends", "signs", "slack", "rows"):
            setattr(self, name, getattr(self, name)[~dropped])


class _Conditions:
    """What holds at a solution of values.

    Attributes
    ----------
    fixed
        Which elements of x are at a limit, and `upper` those at the upper one.
    rows
        Of each constraint the elements that hold as equations, and the limits that they are at.
    multipliers
        Of all these.
    """

    def __init__(
        self, name: str, objective: Callable[..., Any], x: np.ndarray, limits: Limits,
        constraints: Sequence[Constraint], trusted: bool,
    ) -> None:  # fmt: skip
        self.name = name
        slope = np.asarray(func.grad(objective)(x), float)
        size = max(1.0, float(np.max(np.abs(slope), initial=0.0)))
        held = _Candidates(x, limits, constraints)
        while True:
            multipliers = np.linalg.lstsq(held.rows.T, slope, rcond=None)[0]
            weak = (held.signs != 0) & ~(multipliers * held.signs > GRADIENT * size)
            dropped = weak & (held.slack > SLACK)
            if not dropped.any():
                break
            held.without(dropped)
        if constraints or np.isfinite(np.concatenate(limits)).any() or not trusted:
            off = float(np.max(np.abs(slope - held.rows.T @ multipliers), initial=0.0))
            self._check(off, size, trusted, held.owners[weak], (multipliers * held.signs)[weak])
        of_x = held.owners < 0
        self.fixed, self.upper = np.zeros(x.size, bool), np.zeros(x.size, bool)
        self.fixed[held.places[of_x]], self.upper[held.places[of_x]] = True, held.signs[of_x] < 0
        mine = [held.owners == k for k in range(len(constraints))]
        self.rows = [(held.places[k], held.ends[k]) for k in mine]
        self.multipliers = multipliers[~of_x]

    def _check(self, off: float, size: float, trusted: bool, weak: np.ndarray, pulled: np.ndarray) -> None:
        """See that the gradient is accounted for, and that what is at its limit is pulled there."""
        if not off <= (OFF if trusted else GRADIENT) * size:
            self._refuse(
                f"of the gradient {off:.3g} is left, for which no bound or constraint that it is at "
                "accounts, so it is no solution; let the solver go on, by a smaller tol"
            )
        if weak.size:
            what = "bound" if weak[0] < 0 else "constraint"
            self._refuse(
                f"it is at a {what} with the multiplier {pulled[0] + 0.0:.3g}, which does not hold it there, "
                "so its derivatives on both sides differ (no strict complementarity); move the "
                f"{what}, leave it out"
            )

    def _refuse(self, why: str) -> NoReturn:
        raise GradientError(
            f"{self.name}: the solution has no derivative by what requires grad: {why}, or detach() that for "
            "the value"
        )

    def whole(self, free: Any, limits: Limits) -> Any:
        """All of x, of the elements that are free."""
        places = np.flatnonzero(self.fixed).tolist()
        if not places:
            return free
        ends = array([(limits.high if self.upper[k] else limits.low)[k] for k in places])
        order = np.argsort(np.concatenate([np.flatnonzero(~self.fixed), places]))
        return np.concatenate([free, ends])[order]

    def equations(self, x: Any, constraints: Sequence[Constraint], args: Sequence[Any]) -> Any:
        """The constraints that hold as equations: what is 0."""
        found = [
            _vector(c.fun(x, *given))[rows] - ends
            for c, given, (rows, ends) in zip(constraints, args, self.rows, strict=True)
            if rows.size
        ]
        return np.concatenate(found)


def _of_constraint(c: Constraint, x: Any) -> Any:
    return _vector(c.fun(x, *c.args))


def _vector(found: Any) -> Any:
    return np.reshape(as_array(found), (-1,))


def solution(
    name: str, objective: Callable[..., Any], x: Any, params: tuple[Any, ...], limits: Limits,
    constraints: Sequence[Constraint], minimizer: Callable[..., Any], trusted: bool,
) -> Any:  # fmt: skip
    """Return a solution that is known as a Tensor, with its derivatives.

    Parameters
    ----------
    name
        For errors.
    objective
        ``objective(x, *params)`` is minimal.
    x
        Where it is.
    params, limits, constraints
        What it depends on.
    minimizer
        What differentiates minima without constraints.
    trusted
        Whether the solver says that it has converged.
    """
    x, plain = np.array(x, float), plain_tree(params)
    held = _Conditions(
        name, lambda x: objective(x, *plain), x, plain_tree(limits),
        [c._replace(args=plain_tree(c.args)) for c in constraints], trusted,
    )  # fmt: skip
    given, known, multipliers = [c.args for c in constraints], x[~held.fixed], held.multipliers

    def least(free: Any, params: Any, limits: Any, given: Any) -> Any:
        return objective(held.whole(free, limits), *params)

    def conditions(unknown: Any, params: Any, limits: Any, given: Any) -> Any:
        free, v = unknown

        def lagrangian(free: Any) -> Any:
            x = held.whole(free, limits)
            return objective(x, *params) - np.sum(v * held.equations(x, constraints, given))

        return func.grad(lagrangian)(free), held.equations(held.whole(free, limits), constraints, given)

    if multipliers.size:
        conditions.__name__ = name
        free, _ = func.root(conditions, lambda *_: (known, multipliers))(params, limits, given)
    elif known.size:
        free = minimizer(least, lambda *_: known)(params, limits, given)
    else:
        free = known
    found = held.whole(free, limits)
    return found + (x - value_of(found))
