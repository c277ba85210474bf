"""Minima: `minimize` and `minimize_scalar` of `scipy.optimize`."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.optimize as _scipy

from tapegrad import func
from tapegrad.core.base import value_of
from tapegrad.errors import GradientError, UnsupportedOpError
from tapegrad.func.calls import on_tensors
from tapegrad.scipy.optimize.adapters import (
    Bound,
    active,
    adapter,
    as_tuple,
    called,
    changed,
    minimizer_for,
    named,
    solved,
)
from tapegrad.scipy.optimize.constrained import GRADIENT, constraints_of, limits_of, plain_tree, solution
from tapegrad.scipy.optimize.evaluations import Function, Residual, Values
from tapegrad.tensor import Operand, TensorOrArray

PRODUCTS = ("newton-cg", "trust-ncg", "trust-krylov", "trust-constr")  # methods that take the Hessian so
MATRICES = ("dogleg", "trust-exact")
GRADIENTS = ("cg", "bfgs", "l-bfgs-b", "tnc", "slsqp", *PRODUCTS, *MATRICES)
CUSTOM = "a function"
STEP = 0.05  # of an unknown, or of 1: how far methods without gradients stop from a minimum at most


@adapter
def minimize(bound: Bound) -> _scipy.OptimizeResult:
    """Minimize a function of several numbers, with its gradient, and its Hessian where the method takes it.

    Parameters
    ----------
    fun : callable
        ``fun(x, *args)`` is a number, of the Tensor x; or compiled by `tapegrad.njit` or `numba.njit`. With
        ``jac=True`` it is SciPy's function of two results, and called with arrays.
    x0, args, method, bounds, tol, callback, options : optional
        As of `scipy.optimize.minimize`.
    jac, hess, hessp : optional
        As of SciPy; what is given is used. By default derivatives are found: the gradient for each method
        that takes one, for Newton-CG, trust-ncg, trust-krylov and trust-constr products with the Hessian, for
        dogleg and trust-exact the matrix, for a method of one's own all of them.
    constraints : optional
        As of SciPy. Methods SLSQP and trust-constr get the Jacobian of a function that has none given, which
        is a dict without ``jac`` or a `NonlinearConstraint` whose ``jac`` is SciPy's default, "2-point";
        "3-point" and "cs" are left to SciPy. It is sparse where ``finite_diff_jac_sparsity`` is given. For
        trust-constr second derivatives are found where ``hess`` is SciPy's default.

    Returns
    -------
    OptimizeResult
        As SciPy's. If a Tensor in `x0`, `args`, pairs of `bounds` or args of constraints requires grad, or
        one that `fun` or constraints use from outside, its ``x`` and ``fun`` are Tensors, with derivatives by
        the implicit function theorem (`tapegrad.func.minimizer`), of any order; that by `x0` is 0. All else
        is numbers of the solver's.

    Raises
    ------
    GradientError
        `fun` uses a Tensor that carries a tangent and is none of the arguments. Where a Tensor requires grad:
        the solver did not converge, and the gradient is above 1e-5; the solution is at a bound or constraint
        that does not hold it there, with a multiplier below 1e-5 (no strict complementarity), or that depends
        on others.

    Notes
    -----
    Bounds and constraints that the solution is at are equations for its derivative; the others do not count.
    It is at those that are up to 1e-3 from their limits, in parts of these or of 1, and have a multiplier.

    The function is called once at each point, on a tape of its own: gradient and Hessian products are swept
    from that. Two points are kept where second derivatives are wanted, else one. The derivative of a solution
    solves with the Hessian as a matrix; from 1,000 unknowns on, without constraints, by conjugate gradients
    with its products, with `tapegrad.func.minimizer` by any other solver.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> def rosen(x):
    ...     return np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)
    >>> result = ts.optimize.minimize(rosen, np.zeros(5), method="trust-krylov", tol=1e-8)
    >>> result.x, result.nhev > result.njev
    (array([1., 1., 1., 1., 1.]), True)

    The solution by what is in the function:

    >>> def distance(x, a):
    ...     return np.sum((x - a**2) ** 2)
    >>> a = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> x = ts.optimize.minimize(distance, np.zeros(2), args=(a,)).x
    >>> tg.grad(np.sum(x), a)
    (tensor([2., 4.]),)

    At an upper bound of 3 of the second number:

    >>> x = ts.optimize.minimize(distance, np.zeros(2), args=(a,), bounds=[(0, 3), (0, 3)]).x
    >>> tg.grad(np.sum(x), a)
    (tensor([2., 0.]),)
    """
    given, name = bound.arguments, named("minimize")
    args, bounds = as_tuple(given.get("args", ())), given.get("bounds")
    constraints = constraints_of(given.get("constraints", ()), name)
    if not active(given["x0"], args, bounds, [c.args for c in constraints]):
        return _minimize(bound)
    pair = given.get("jac") is True
    f = on_tensors(given["fun"], name)

    def objective(
        x: TensorOrArray, x0: Operand | None, args: tuple[dict[str, TensorOrArray | str] | Operand, ...]
    ) -> TensorOrArray:
        found = f(x, *args)
        return found[0] if pair else found

    if constraints or bounds is not None:
        result = _minimize(_plain(bound))
        x, limits = np.ravel(result.x), limits_of(bounds, np.size(result.x), True)
        params = given["x0"], args
        result.x = solution(
            name,
            objective,
            x,
            params,
            limits,
            constraints,
            minimizer_for(x),
            bool(result.get("success", True)),
        )
        result.fun = objective(result.x, None, args)
        return result

    def solve(x0: Operand, args: tuple[Operand, ...]) -> tuple[Any, TensorOrArray, str | None]:
        result = _minimize(changed(bound, x0=x0, args=args))
        wrong = None if _is_minimum(result) else result.message
        if not wrong and _method(given).lower() not in (*GRADIENTS, CUSTOM):
            wrong = _off_a_minimum(functools.partial(objective, x0=x0, args=args), result.x)
        return result, result.x, wrong

    result, x = solved(minimizer_for(given["x0"]), objective, solve, (given["x0"], args), name)
    result.x, result.fun = x, objective(x, None, args)
    return result


def _plain(bound: Bound) -> Bound:
    """The arguments of `minimize` without Tensors."""
    given = bound.arguments
    others: dict[str, Any] = {key: plain_tree(given[key]) for key in ("x0", "args") if key in given}
    if not isinstance(given.get("bounds"), (type(None), _scipy.Bounds)):
        others["bounds"] = plain_tree(given["bounds"])
    if isinstance(given.get("constraints"), (list, tuple, dict)):
        several = (
            given["constraints"] if not isinstance(given["constraints"], dict) else [given["constraints"]]
        )
        others["constraints"] = [
            {**c, "args": plain_tree(as_tuple(c["args"]))} if isinstance(c, dict) and "args" in c else c
            for c in several
        ]
    return changed(bound, **others)


def _is_minimum(result: _scipy.OptimizeResult) -> bool:
    """Whether a solver has converged, or rounding stops it where the gradient is small by SciPy's default."""
    if result.get("success", True):
        return True
    gradient = result.get("grad", result.get("jac"))  # trust-constr calls Jacobians of constraints so
    return gradient is not None and bool(np.max(np.abs(gradient), initial=0.0) <= GRADIENT)


def _off_a_minimum(f: Callable[[TensorOrArray], TensorOrArray], x: Any) -> str | None:
    """What is wrong where a solver that knows no gradient stops and that is not 0, as at a kink."""
    try:
        slope = func.grad(f)(x)
        bend = np.abs(np.sum(value_of(slope) * value_of(func.hvp(f)(x, slope))))
    except (GradientError, UnsupportedOpError):
        return None  # so there is no derivative either
    slope = value_of(slope)
    if np.all(np.abs(slope) * np.sum(slope * slope) <= STEP * bend * np.maximum(1.0, np.abs(x))):
        return None
    return f"the gradient is {np.max(np.abs(slope)):.3g}, as at a kink"


def _method(given: dict[str, Any]) -> str:
    """The method that SciPy takes."""
    method = given.get("method")
    if callable(method):
        return CUSTOM
    if method is not None:
        return str(method).lower()
    if given.get("constraints", ()):
        return "slsqp"
    return "l-bfgs-b" if given.get("bounds") is not None else "bfgs"


def _minimize(bound: Bound) -> _scipy.OptimizeResult:
    """Minimize with derivatives of what is not given."""
    given = bound.arguments
    method, name = _method(given), named("minimize")
    jac, fun = given.get("jac"), given["fun"]
    others: dict[str, Any] = {}
    second = given.get("hess") is None and given.get("hessp") is None
    second = second and method in (*PRODUCTS, *MATRICES, CUSTOM)
    if method in (*GRADIENTS, CUSTOM) and (jac is None or (callable(jac) and second)):
        f = Function(name, fun, second)
        others["fun"] = f.value
        if jac is None:
            others["jac"] = f.gradient
        if second and method not in MATRICES:
            others["hessp"] = f.product
        if second and method not in PRODUCTS:
            others["hess"] = f.hessian
    else:
        others["fun"] = Values(name, fun)
    if method in ("slsqp", "trust-constr", CUSTOM) and "constraints" in given:
        found = given["constraints"]
        if isinstance(found, (list, tuple)):
            others["constraints"] = [_constraint(c, method) for c in found]
        else:
            others["constraints"] = _constraint(found, method)
    return called("minimize", bound, **others)


def _constraint(constraint: Any, method: str) -> Any:
    """A constraint with derivatives that are not given."""
    name, second = f"{named('minimize')}, a constraint", method == "trust-constr"
    if isinstance(constraint, dict):
        if constraint.get("jac") is not None:
            return constraint
        args = as_tuple(constraint.get("args", ()))
        f = Residual(name, constraint["fun"], second=second)
        if not second or constraint.get("type", "").lower() not in ("eq", "ineq"):
            return {**constraint, "fun": f.value, "jac": f.jacobian}
        return _scipy.NonlinearConstraint(
            lambda x: f.value(x, *args), 0, 0 if constraint["type"].lower() == "eq" else np.inf,
            lambda x: f.jacobian(x, *args), lambda x, v: f.lagrangian(x, v, *args),
        )  # fmt: skip
    if not isinstance(constraint, _scipy.NonlinearConstraint) or not _is_text(constraint.jac, "2-point"):
        return constraint
    second = second and type(constraint.hess) is _scipy.BFGS and constraint.finite_diff_jac_sparsity is None
    f = Residual(name, constraint.fun, constraint.finite_diff_jac_sparsity, second)
    found = copy.copy(constraint)
    found.fun, found.jac = f.value, f.jacobian
    if second:
        found.hess = f.lagrangian
    return found


def _is_text(x: Operand | None, text: str) -> bool:
    return isinstance(x, str) and x == text


@adapter
def minimize_scalar(bound: Bound) -> _scipy.OptimizeResult:
    """Minimize a function of one number, as SciPy does, without derivatives.

    Parameters
    ----------
    fun : callable
        ``fun(x, *args)`` is a number.
    bracket, bounds, args, method, tol, options : optional
        As of `scipy.optimize.minimize_scalar`.

    Returns
    -------
    OptimizeResult
        As SciPy's. If a Tensor in `args` or `bounds` requires grad its ``x`` and ``fun`` are Tensors, as of
        `minimize`.

    Raises
    ------
    GradientError
        Where a Tensor requires grad: the solver did not converge, or as of `minimize`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor(2.0, requires_grad=True)
    >>> x = ts.optimize.minimize_scalar(lambda x, a: np.cosh(x - a**2), args=(a,)).x
    >>> tg.grad(x, a)
    (tensor(4.),)
    """
    given, name = bound.arguments, named("minimize_scalar")
    fun, args = given["fun"], as_tuple(given.get("args", ()))
    bounds = given.get("bounds")
    if not active(args, bounds):
        return called("minimize_scalar", bound, fun=Values(name, fun))
    if bounds is not None:
        return _between(bound, fun, args, bounds)

    def solve(args: tuple[Operand, ...]) -> tuple[Any, TensorOrArray, str | None]:
        result = called("minimize_scalar", bound, fun=Values(name, fun), args=args)
        wrong = None if result.success else result.get("message", "it did not converge")
        return result, result.x, wrong or _off_a_minimum(lambda x: f(x, *args), float(result.x))

    f = on_tensors(fun, name)
    result, x = solved(func.minimizer, lambda x, args: f(x, *args), solve, (args,), name)
    result.x, result.fun = x, f(x, *args)
    return result


def _between(
    bound: Bound, fun: Callable[..., TensorOrArray], args: tuple[Operand, ...], bounds: Sequence[Operand]
) -> _scipy.OptimizeResult:
    """The minimum of a function of one number between two."""
    name, f = named("minimize_scalar"), on_tensors(fun, named("minimize_scalar"))
    others = {"args": plain_tree(args), "bounds": tuple(map(value_of, bounds))}
    result = called("minimize_scalar", bound, fun=Values(name, fun), **others)
    x = solution(
        name, lambda x, args: f(x[0], *args), [result.x], (args,), limits_of([bounds], 1, True), (),
        func.minimizer, bool(result.success),
    )  # fmt: skip
    result.x = x[0]
    result.fun = f(result.x, *args)
    return result
