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
from tapegrad.errors import GradientError
from tapegrad.func.calls import on_tensors
from tapegrad.func.trees import Tree, flatten
from tapegrad.scipy.optimize.evaluations import as_array
from tapegrad.tensor import Operand, TensorOrArray

__all__ = ["GRADIENT", "Constraint", "Limits", "constraints_of", "limits_of", "plain_tree", "solution"]

GRADIENT = 1e-5  # SciPy's `gtol`, where none is passed: below that a gradient or a multiplier counts as 0
NEAR = 1e-3  # from a limit, in parts of it or of 1: up to there its multiplier says whether it is an equation
SLACK = 1e-6  # up to there it is one: methods that come from inside are farther off
OFF = 1e-3  # of the gradient that no multipliers account for, where the solver says that it has converged


class Limits(NamedTuple):
    """What x is between, numbers or Tensors."""

    low: TensorOrArray
    high: TensorOrArray


class Constraint(NamedTuple):
    """``fun(x, *args)`` is between `low` and `high`."""

    fun: Callable[..., Operand]
    low: TensorOrArray | float
    high: TensorOrArray | float
    args: tuple[Operand, ...] = ()


def plain_tree(x: Tree) -> Any:
    """A tree with values in place of its Tensors."""
    leaves, structure = flatten(x)
    return structure.build([value_of(leaf) for leaf in leaves])


def limits_of(bounds: Any, n: int, pairs: bool) -> Limits:
    """Limits of each of n unknowns, of pairs as `minimize` takes for bounds, or of two sides."""
    if bounds is None:
        return Limits(np.full(n, -np.inf), np.full(n, np.inf))
    if isinstance(bounds, _scipy.Bounds):
        bounds = bounds.lb, bounds.ub
    elif pairs:
        sides = zip(*bounds, strict=True)
        bounds = [
            [end if x is None else x for x in side]
            for side, end in zip(sides, (-np.inf, np.inf), strict=True)
        ]
    return Limits(*(as_array(side) + np.zeros(n) for side in bounds))


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


class _Near:
    """Elements of x, or of a constraint, that are near a limit.

    Attributes
    ----------
    places, ends
        Which elements, and the limits.
    signs
        1 at the lower one, -1 at the upper one, 0 where they are the same.
    slack
        How far off they are.
    """

    def __init__(self, at: np.ndarray, low: Operand, high: Operand) -> None:
        ends = [np.broadcast_to(np.asarray(side, float), at.shape) for side in (low, high)]
        with np.errstate(invalid="ignore"):
            off = [np.abs(at - end) / np.maximum(1.0, np.abs(end)) for end in ends]
        off = [np.where(np.isfinite(end), gap, np.inf) for end, gap in zip(ends, off, strict=True)]
        lower = off[0] <= off[1]
        slack = np.where(lower, *off)
        self.places = np.flatnonzero(slack <= NEAR)
        self.ends, self.slack = np.where(lower, *ends)[self.places], slack[self.places]
        self.signs = np.where(ends[0] == ends[1], 0, np.where(lower, 1, -1))[self.places]

    def weak(self, multipliers: np.ndarray, least: float) -> np.ndarray:
        """Which inequalities are not pulled to their limits."""
        pulled: np.ndarray = (self.signs != 0) & ~(multipliers * self.signs > least)
        return pulled

    def without(self, weak: np.ndarray) -> np.ndarray:
        """Leave out what is weak and not at its limit; returns what is kept."""
        kept: np.ndarray = ~(weak & (self.slack > SLACK))
        for name in ("places", "ends", "signs", "slack"):
            setattr(self, name, getattr(self, name)[kept])
        return kept


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
        self, name: str, objective: Callable[..., TensorOrArray], x: np.ndarray, limits: Limits,
        constraints: Sequence[Constraint], trusted: bool,
    ) -> None:  # fmt: skip
        self.name = name
        slope = np.asarray(value_of(func.grad(objective)(x)), float)
        size = max(1.0, float(np.max(np.abs(slope), initial=0.0)))
        of_x = _Near(x, *limits)
        near, matrices = [of_x], [np.zeros((0, x.size))]
        for c in constraints:
            near.append(_Near(np.asarray(value_of(_of_constraint(c, None, x)), float), c.low, c.high))
            some = functools.partial(_of_constraint, c, near[-1].places)
            matrices.append(value_of(func.jacrev(some)(x)) if near[-1].places.size else matrices[0])
        while True:
            free = np.ones(x.size, bool)
            free[of_x.places] = False
            matrix = np.concatenate(matrices)
            self.multipliers = np.linalg.lstsq(matrix[:, free].T, slope[free], rcond=None)[0]
            rest = slope - self.multipliers @ matrix
            parts = np.split(self.multipliers, np.cumsum([len(m) for m in matrices])[:-1])
            parts[0] = rest[of_x.places]
            weak = [g.weak(v, GRADIENT * size) for g, v in zip(near, parts, strict=True)]
            kept = [g.without(w) for g, w in zip(near, weak, strict=True)]
            if all(map(np.all, kept)):
                break
            matrices[1:] = [m[k] for m, k in zip(matrices[1:], kept[1:], strict=True)]
        if constraints or np.isfinite(np.concatenate(limits)).any() or not trusted:
            self._check_gradient(float(np.max(np.abs(rest[free]), initial=0.0)), size, trusted)
            for g, v, w in zip(near, parts, weak, strict=True):
                self._check_signs("bound" if g is of_x else "constraint", (v * g.signs)[w])
        self.fixed, self.upper = ~free, np.zeros(x.size, bool)
        self.upper[of_x.places] = of_x.signs < 0
        self.rows = [(g.places, g.ends) for g in near[1:]]

    def _check_gradient(self, off: float, size: float, trusted: bool) -> None:
        if not off <= (OFF if trusted else GRADIENT) * size:
            self._refuse(
                f"of the gradient {off:.3g} is left, for which no bound or constraint that it is at "
                "accounts, so it is no solution; let the solver go on, by a smaller tol"
            )

    def _check_signs(self, what: str, weak: np.ndarray) -> None:
        if weak.size:
            self._refuse(
                f"it is at a {what} with the multiplier {weak[0] + 0.0:.3g}, which does not hold it there, "
                "so its derivatives on both sides differ (no strict complementarity); move the "
                f"{what}, leave it out"
            )

    def _refuse(self, why: str) -> NoReturn:
        raise GradientError(
            f"{self.name}: the solution has no derivative by what requires grad: {why}, or detach() that for "
            "the value"
        )

    def whole(self, free: TensorOrArray, limits: Limits) -> TensorOrArray:
        """All of x, of the elements that are free."""
        places = np.flatnonzero(self.fixed)
        if not places.size:
            return free
        ends = np.where(self.upper[places], limits.high[places], limits.low[places])
        order = np.argsort(np.concatenate([np.flatnonzero(~self.fixed), places]))
        return np.concatenate([free, ends])[order]

    def equations(
        self, x: TensorOrArray, constraints: Sequence[Constraint], args: Sequence[tuple[Operand, ...]]
    ) -> TensorOrArray:
        """The constraints that hold as equations: what is 0."""
        found = [
            _of_constraint(c._replace(args=given), rows, x) - ends
            for c, given, (rows, ends) in zip(constraints, args, self.rows, strict=True)
            if rows.size
        ]
        return np.concatenate(found)


def _of_constraint(c: Constraint, rows: np.ndarray | None, x: TensorOrArray) -> TensorOrArray:
    """Elements of a constraint, or all."""
    found = np.reshape(as_array(c.fun(x, *c.args)), (-1,))
    return found if rows is None else found[rows]


def solution(
    name: str, objective: Callable[..., TensorOrArray], x: Operand, params: tuple[Any, ...], limits: Limits,
    constraints: Sequence[Constraint], minimizer: Callable[..., Callable[..., TensorOrArray]], trusted: bool,
) -> TensorOrArray:  # fmt: skip
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

    def least(
        free: TensorOrArray, params: tuple[Tree, ...], limits: Limits, given: Sequence[tuple[Operand, ...]]
    ) -> TensorOrArray:
        return objective(held.whole(free, limits), *params)

    def conditions(
        unknown: tuple[TensorOrArray, TensorOrArray],
        params: tuple[Tree, ...],
        limits: Limits,
        given: Sequence[tuple[Operand, ...]],
    ) -> tuple[TensorOrArray, TensorOrArray]:
        free, v = unknown

        def lagrangian(free: TensorOrArray) -> TensorOrArray:
            x = held.whole(free, limits)
            return objective(x, *params) - np.sum(v * held.equations(x, constraints, given))

        return func.grad(lagrangian)(free), held.equations(held.whole(free, limits), constraints, given)

    if multipliers.size:
        conditions.__name__ = name
        free, _ = func.root(conditions, lambda *_: (known, multipliers))(params, limits, given)
    else:  # also of no unknowns, which depend on the params as any do
        free = minimizer(least, lambda *_: known)(params, limits, given)
    found = held.whole(free, limits)
    return found + (x - value_of(found))
