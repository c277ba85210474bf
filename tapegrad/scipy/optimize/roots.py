"""Roots and fixed points: `root`, `root_scalar` and their kin of `scipy.optimize`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.optimize as _scipy

from tapegrad import func
from tapegrad.core.base import value_of
from tapegrad.func.calls import on_tensors
from tapegrad.func.implicit import crossing
from tapegrad.scipy.optimize.adapters import (
    Bound,
    active,
    adapter,
    as_tuple,
    called,
    changed,
    named,
    solved,
)
from tapegrad.scipy.optimize.evaluations import Function, Residual, Values, as_array
from tapegrad.tensor import Operand, TensorOrArray

STEP = 1e-3  # of an unknown, or of 1: how far from a root Newton's method sees the next point at most


@adapter
def root(bound: Bound) -> _scipy.OptimizeResult:
    """Solve equations, with their Jacobian where the method takes it.

    Parameters
    ----------
    fun : callable
        ``fun(x, *args)`` is 0 at the solution, of the Tensor x; or compiled. With ``jac=True`` it is SciPy's
        function of two results, and called with arrays.
    x0, args, method, tol, callback, options : optional
        As of `scipy.optimize.root`.
    jac : optional
        As of SciPy; what is given is used. By default methods "hybr" and "lm" get the Jacobian found.

    Returns
    -------
    OptimizeResult
        As SciPy's. If a Tensor in `x0` or `args` requires grad, or one that `fun` uses from outside, its
        ``x`` is a Tensor, with derivatives by the implicit function theorem (`tapegrad.func.root`), of any
        order.

    Raises
    ------
    GradientError
        `fun` uses a Tensor that carries a tangent and is none of the arguments. Where a Tensor requires grad:
        the solver did not converge, or to no solution.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> def crossing(x, radius):
    ...     return [x[0] ** 2 + x[1] ** 2 - radius**2, x[0] - x[1]]
    >>> radius = tg.tensor(2.0, requires_grad=True)
    >>> x = ts.optimize.root(crossing, [1.0, 2.0], args=(radius,)).x
    >>> tg.grad(x[0], radius)
    (tensor(0.7071),)
    """
    given, name = bound.arguments, named("root")
    args, pair = as_tuple(given.get("args", ())), given.get("jac") is True
    if not active(given["x0"], args):
        return _root(bound)
    f = on_tensors(given["fun"], name)

    def residual(x: TensorOrArray, x0: Sequence[float], args: tuple[TensorOrArray, ...]) -> TensorOrArray:
        found = f(x, *args)
        return as_array(found[0] if pair else found)

    def solve(x0: Any, args: tuple[Any, ...]) -> tuple[Any, TensorOrArray, str | None]:
        result = _root(changed(bound, x0=x0, args=args))
        wrong = None if result.success else result.message
        if not wrong and given.get("method", "hybr").lower() == "lm":
            wrong = _off_a_root(functools.partial(residual, x0=x0, args=args), result)
        return result, result.x, wrong

    result, x = solved(func.root, residual, solve, (given["x0"], args), name)
    result.x = x
    return result


def _off_a_root(f: Callable[[TensorOrArray], TensorOrArray], result: _scipy.OptimizeResult) -> str | None:
    """What is wrong where a sum of squares is least and not 0, which "lm" takes for success."""
    slopes = np.reshape(value_of(func.jacrev(f)(result.x)), (np.size(result.fun), -1))
    try:
        step = np.linalg.solve(slopes, np.ravel(result.fun))
    except np.linalg.LinAlgError:
        return None  # so there is no derivative either
    if np.all(np.abs(step) <= STEP * np.maximum(1.0, np.abs(np.ravel(result.x)))):
        return None
    return f"equations are off by up to {np.max(np.abs(result.fun)):.3g} where their sum of squares is least"


def _root(bound: Bound) -> _scipy.OptimizeResult:
    given, name = bound.arguments, named("root")
    if given.get("jac") is not None or given.get("method", "hybr").lower() not in ("hybr", "lm"):
        return called("root", bound, fun=Values(name, given["fun"]))
    f = Residual(name, given["fun"])
    options = {**(given.get("options") or {}), "col_deriv": 0}
    return called("root", bound, fun=f.value, jac=f.jacobian, options=options)


@adapter
def fsolve(bound: Bound) -> Any:
    """Solve equations, as `root` with the method "hybr".

    Parameters
    ----------
    func : callable
        ``func(x, *args)`` is 0 at the solution, of the Tensor x; or compiled.
    x0, args, full_output, col_deriv, xtol, maxfev, band, epsfcn, factor, diag : optional
        As of `scipy.optimize.fsolve`.
    fprime : optional
        As of SciPy; by default the Jacobian is found.

    Returns
    -------
    x
        As SciPy's, with `full_output` more; a Tensor as of `root`.

    Raises
    ------
    GradientError
        As of `root`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor(2.0, requires_grad=True)
    >>> x = ts.optimize.fsolve(lambda x, a: x**2 - a, 1.0, args=(a,))
    >>> tg.grad(x[0], a)
    (tensor(0.3536),)
    """
    given, name = bound.arguments, named("fsolve")
    f, args = given["func"], as_tuple(given.get("args", ()))
    if not active(given["x0"], args):
        return _fsolve(bound)

    def solve(x0: Operand, args: tuple[Operand, ...]) -> tuple[Any, TensorOrArray, str | None]:
        result = _fsolve(changed(bound, x0=x0, args=args, full_output=True))
        return result, result[0], None if result[2] == 1 else result[3]

    of = on_tensors(f, name)
    result, x = solved(
        func.root, lambda x, x0, args: as_array(of(x, *args)), solve, (given["x0"], args), name
    )
    return (x, *result[1:]) if given.get("full_output") else x


def _fsolve(bound: Bound) -> Any:
    given, name = bound.arguments, named("fsolve")
    if given.get("fprime") is not None:
        return called("fsolve", bound, func=Values(name, given["func"]))
    f = Residual(name, given["func"])
    return called("fsolve", bound, func=f.value, fprime=f.jacobian, col_deriv=0)


@adapter
def root_scalar(bound: Bound) -> _scipy.RootResults:
    """Solve one equation, with its derivatives where the method takes them.

    Parameters
    ----------
    f : callable
        ``f(x, *args)`` is 0 at the solution.
    args, method, bracket, x0, x1, xtol, rtol, maxiter, options : optional
        As of `scipy.optimize.root_scalar`.
    fprime, fprime2 : optional
        As of SciPy; what is given is used. By default methods "newton" and "halley" get derivatives found.

    Returns
    -------
    RootResults
        As SciPy's. If a Tensor in `args`, `bracket`, `x0` or `x1` requires grad its ``root`` is a Tensor,
        with derivatives by the implicit function theorem; that by where the solver begins is 0.

    Raises
    ------
    GradientError
        As of `root`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> def kepler(E, M, e):
    ...     return E - e * np.sin(E) - M
    >>> M = tg.tensor(1.0, requires_grad=True)
    >>> E = ts.optimize.root_scalar(kepler, x0=1.0, args=(M, 0.5), method="halley").root
    >>> E, tg.grad(E, M)
    (tensor(1.4987, grad_fn=<RootBackward>), (tensor(1.0374),))
    """
    given, name = bound.arguments, named("root_scalar")
    f, args = given["f"], as_tuple(given.get("args", ()))
    places = {key: given.get(key) for key in ("bracket", "x0", "x1")}
    if not active(args, places):
        return _root_scalar(bound)
    pair, of = given.get("fprime") is True, on_tensors(f, name)

    def residual(
        x: TensorOrArray | float, args: tuple[TensorOrArray, ...], places: dict[str, Any]
    ) -> TensorOrArray:
        found = of(x, *args)
        return found[0] if pair else found

    def solve(args: tuple[Operand, ...], places: dict[str, Any]) -> tuple[Any, TensorOrArray, str | None]:
        result = _root_scalar(changed(bound, args=args, **places))
        return result, result.root, None if result.converged else result.flag

    rule = func.root if places["bracket"] is None else _crossing(given)
    result, x = solved(rule, residual, solve, (args, places), name)
    result.root = x
    return result


def _root_scalar(bound: Bound) -> _scipy.RootResults:
    given, name = bound.arguments, named("root_scalar")
    method = given.get("method")
    if not method and given.get("bracket") is None and given.get("x0") is not None:
        method = "newton" if given.get("x1") is None else "secant"
    second = method == "halley" and given.get("fprime2") is None
    first = method in ("newton", "halley") and given.get("fprime") is None
    if not (first or second) or isinstance(given.get("fprime"), bool):
        return called("root_scalar", bound, f=Values(name, given["f"]))
    f = Function(name, given["f"], second)
    others = {"f": f.value, "method": method}
    if first:
        others["fprime"] = f.gradient
    if second:
        others["fprime2"] = f.curvature
    return called("root_scalar", bound, **others)


@adapter
def newton(bound: Bound) -> Any:
    """Solve equations of one number each, with their derivatives.

    Parameters
    ----------
    func : callable
        ``func(x, *args)`` is 0 at the solution; of an array each element's equation is of that alone.
    x0, args, tol, maxiter, fprime2, rtol, full_output, disp : optional
        As of `scipy.optimize.newton`.
    fprime : callable, optional
        As of SciPy; by default it is found, unless `x1` is given.
    x1 : optional
        As of SciPy, where the secant method begins.

    Returns
    -------
    root
        As SciPy's, with `full_output` more; a Tensor as of `root_scalar`.

    Raises
    ------
    GradientError
        As of `root`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([2.0, 4.0], requires_grad=True)
    >>> x = ts.optimize.newton(lambda x, a: x**2 - a, np.ones(2), args=(a,))
    >>> tg.grad(np.sum(x), a)
    (tensor([0.3536, 0.2500]),)
    """
    given, name = bound.arguments, named("newton")
    f, args = given["func"], as_tuple(given.get("args", ()))
    places = {key: given.get(key) for key in ("x0", "x1")}
    if not active(args, places):
        return _newton(bound)

    def solve(args: tuple[Operand, ...], places: dict[str, Any]) -> tuple[Any, TensorOrArray, str | None]:
        result = _newton(changed(bound, args=args, full_output=True, **places))
        done = np.all(result[1] if np.ndim(result[0]) else result[1].converged)
        return result, result[0], None if done else "it did not converge"

    of = on_tensors(f, name)
    result, x = solved(func.root, lambda x, args, places: of(x, *args), solve, (args, places), name)
    return _with_root(result, x) if given.get("full_output") else x


def _with_root(result: Any, x: Operand) -> Any:
    """What SciPy returned with full_output, with another root."""
    if hasattr(result, "_fields"):
        return result._replace(root=x)
    result[1].root = x
    return x, result[1]


def _newton(bound: Bound) -> Any:
    given, name = bound.arguments, named("newton")
    if given.get("fprime") is not None or given.get("x1") is not None or np.iscomplexobj(given["x0"]):
        return called("newton", bound, func=Values(name, given["func"]))
    f = Function(name, given["func"], number=np.ndim(given["x0"]) == 0)
    return called("newton", bound, func=f.value, fprime=f.gradient)


def _crossing(given: dict[str, Any]) -> Callable[..., Any]:
    """How a root between two numbers is differentiated, of a solver that gets these arguments."""
    return functools.partial(crossing, reach=max(STEP, 10 * (given.get("xtol") or 0.0)))


def _bracketing(solver: str) -> Callable[..., Any]:
    """One of SciPy's functions that find a root between two numbers."""

    def between(bound: Bound) -> Any:
        given, name = bound.arguments, named(solver)
        f, args = given["f"], as_tuple(given.get("args", ()))
        if not active(given["a"], given["b"], args):
            return called(solver, bound, f=Values(name, f))

        def solve(a: Operand, b: Operand, args: tuple[Operand, ...]) -> tuple[Any, TensorOrArray, str | None]:
            result = called(solver, bound, f=Values(name, f), a=a, b=b, args=args, full_output=True)
            return result, result[0], None if result[1].converged else result[1].flag

        params = given["a"], given["b"], args
        of, rule = on_tensors(f, name), _crossing(given)
        result, x = solved(rule, lambda x, a, b, args: of(x, *args), solve, params, name)
        return _with_root(result, x) if given.get("full_output") else x

    between.__name__ = between.__qualname__ = solver
    between.__doc__ = f"""Find a root between two numbers, as `scipy.optimize.{solver}` does.

    Parameters
    ----------
    f : callable
        ``f(x, *args)`` is 0 at the solution, and of other signs at `a` and `b`.
    a, b, args, and others : optional
        As of SciPy.

    Returns
    -------
    root
        As SciPy's. If a Tensor in `args`, `a` or `b` requires grad it is a Tensor, with derivatives by the
        implicit function theorem (`tapegrad.func.root`); those by `a` and `b` are 0.

    Raises
    ------
    GradientError
        As of `root`, and where the function jumps across 0.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor(2.0, requires_grad=True)
    >>> tg.grad(ts.optimize.{solver}(lambda x, a: x**2 - a, 0.0, 2.0, args=(a,)), a)
    (tensor(0.3536),)
    """
    return adapter(between)


bisect, brenth, brentq, ridder, toms748 = map(
    _bracketing, ("bisect", "brenth", "brentq", "ridder", "toms748")
)


@adapter
def fixed_point(bound: Bound) -> TensorOrArray:
    """Find where a function gives its argument, as SciPy does.

    Parameters
    ----------
    func : callable
        ``func(x, *args)`` is x at the solution.
    x0, args, xtol, maxiter, method : optional
        As of `scipy.optimize.fixed_point`.

    Returns
    -------
    x
        As SciPy's. If a Tensor in `x0` or `args` requires grad it is a Tensor, with derivatives by the
        implicit function theorem (`tapegrad.func.fixed_point`).

    Raises
    ------
    GradientError
        As of `root`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor(2.0, requires_grad=True)
    >>> x = ts.optimize.fixed_point(lambda x, a: np.cos(a * x) / 4, 0.2, args=(a,))
    >>> tg.grad(x, a)
    (tensor(-0.0201),)
    """
    given, name = bound.arguments, named("fixed_point")
    f, args = given["func"], as_tuple(given.get("args", ()))
    if not active(given["x0"], args):
        return called("fixed_point", bound, func=Values(name, f))

    def solve(x0: Operand, args: tuple[Operand, ...]) -> tuple[Any, TensorOrArray, str | None]:
        x = called("fixed_point", bound, func=Values(name, f), x0=x0, args=args)
        return None, x, None

    of = on_tensors(f, name)
    return solved(func.fixed_point, lambda x, x0, args: of(x, *args), solve, (given["x0"], args), name)[1]
