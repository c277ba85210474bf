"""Solvers of `scipy.optimize` that find derivatives themselves; all its other names are its own.

A solver has SciPy's arguments and results. Where it takes derivatives that are not given, they are those of
the function, which is written in NumPy's functions and called with Tensors, or compiled by `tapegrad.njit`.
Where the point it begins at, or the function's other arguments, hold Tensors that require grad, the solution
is differentiated by these, by the equations that it solves.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import scipy.optimize as _scipy
from scipy.sparse.linalg import LinearOperator, cg

from tapegrad import func
from tapegrad.core.base import Operand, TensorOrArray, needs_derivative, value_of
from tapegrad.errors import GradientError
from tapegrad.func.calls import compiled, on_tensors
from tapegrad.func.trees import flatten
from tapegrad.scipy.constrained import GRADIENT, constraints_of, limits_of, plain_tree, solution
from tapegrad.scipy.evaluations import Function, Residual, Values, as_array, differentiating
from tapegrad.scipy.linalg import cholesky, solve_triangular
from tapegrad.tensor import Tensor

__all__ = [
    "bisect", "brenth", "brentq", "curve_fit", "fixed_point", "fsolve", "least_squares", "minimize",
    "minimize_scalar", "newton", "ridder", "root", "root_scalar", "toms748",
]  # fmt: skip

PRODUCTS = ("newton-cg", "trust-ncg", "trust-krylov", "trust-constr")  # methods that take the Hessian so
MATRICES = ("dogleg", "trust-exact")
GRADIENTS = ("cg", "bfgs", "l-bfgs-b", "tnc", "slsqp", *PRODUCTS, *MATRICES)
CUSTOM = "a function"
LARGE = 1000  # unknowns from which a derivative of a solution does without the matrix
RESIDUAL = 1e-10  # of the right-hand side, up to which it is solved for then
Bound = inspect.BoundArguments
R = TypeVar("R")


def __getattr__(name: str) -> Any:
    return getattr(_scipy, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})


def _adapter(function: Callable[[Bound], R]) -> Callable[..., R]:
    """Give a function of the arguments that were passed the signature of SciPy's."""
    signature = inspect.signature(getattr(_scipy, function.__name__))

    @functools.wraps(function)
    def adapted(*args: Any, **kwargs: Any) -> R:
        return function(signature.bind(*args, **kwargs))

    adapted.__signature__ = signature  # type: ignore[attr-defined]
    return adapted


def _named(what: str) -> str:
    return f"tapegrad.scipy.optimize.{what}"


def _tuple(args: Operand) -> tuple[Any, ...]:
    return args if isinstance(args, tuple) else (args,)


def _active(*trees: Any) -> bool:
    """Whether a derivative by a Tensor in these is asked for."""
    return any(needs_derivative(x) for x in flatten(trees)[0])


def _called(what: str, bound: Bound, **others: Any) -> Any:
    """Call SciPy's function, with some other arguments."""
    given = _changed(bound, **others)
    return getattr(_scipy, what)(*given.args, **given.kwargs)


def _changed(bound: Bound, **others: Any) -> Bound:
    return Bound(bound.signature, {**bound.arguments, **others})


def _solved(
    rule: Callable[..., Callable[..., Tensor]],
    function: Callable[..., TensorOrArray],
    solve: Callable[..., tuple[Any, TensorOrArray, str | None]],
    params: Sequence[Any],
    name: str,
) -> tuple[Any, Any]:
    """The result of a solver, and the solution in it, differentiable by the params.

    Parameters
    ----------
    rule
        One of `tapegrad.func.root` and its kin.
    function
        What is 0, or is minimal, of the solution and the params.
    solve
        Of the params: the result, the solution, and what is wrong with it.
    """
    results = []

    def solution(*plain: Operand) -> TensorOrArray | float:
        result, x, wrong = solve(*plain)
        if wrong:
            raise GradientError(
                f"{name}: what the solver found is no solution, and so has no derivative: {wrong}; let it go "
                "on or begin elsewhere, or detach() what requires grad for the value"
            )
        results.append(result)
        return x

    x = rule(function, solution)(*params)
    return results[-1], x


def _minimizer(x0: Operand) -> Callable[..., Callable[..., Tensor]]:
    """What differentiates minima of so many numbers: by the Hessian, or by products with it."""
    large = sum(map(np.size, flatten(x0)[0])) >= LARGE
    return functools.partial(func.minimizer, linear_solver=_conjugate_gradients if large else None)


def _conjugate_gradients(matvec: Callable[[np.ndarray], np.ndarray], b: np.ndarray) -> np.ndarray:
    operator = LinearOperator((b.size, b.size), matvec, dtype=b.dtype)
    x, failed = cg(operator, b, rtol=RESIDUAL)
    if failed:
        raise GradientError(
            f"tapegrad.scipy.optimize: conjugate gradients do not solve with the Hessian of {b.size} "
            "unknowns at the solution, which may be singular or no minimum; tapegrad.func.minimizer takes "
            "another linear_solver"
        )
    return x


def _refused(name: str, why: str) -> GradientError:
    return GradientError(
        f"{name}: x0 or args hold a Tensor that requires grad, and {why}; detach() it for the value, or "
        "write the equations of the solution for tapegrad.func.root"
    )


# ---------------------------------------------------------------- minima


@_adapter
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
        As SciPy's. If a Tensor in `x0`, `args`, pairs of `bounds` or args of constraints requires grad its
        ``x`` and ``fun`` are Tensors, with derivatives by the implicit function theorem
        (`tapegrad.func.minimizer`), of any order; that by `x0` is 0. All else is numbers of the solver's.

    Raises
    ------
    GradientError
        `fun` uses a Tensor that requires grad and is none of the arguments. Where one of these requires grad:
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
    given, name = bound.arguments, _named("minimize")
    args, bounds = _tuple(given.get("args", ())), given.get("bounds")
    constraints = constraints_of(given.get("constraints", ()), name)
    if not _active(given["x0"], args, bounds, [c.args for c in constraints]):
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
            name, objective, x, params, limits, constraints, _minimizer(x), bool(result.get("success", True))
        )
        result.fun = objective(result.x, None, args)
        return result

    def solve(x0: Operand, args: tuple[Operand, ...]) -> tuple[Any, TensorOrArray, str | None]:
        result = _minimize(_changed(bound, x0=x0, args=args))
        return result, result.x, None if _is_minimum(result) else result.message

    result, x = _solved(_minimizer(given["x0"]), objective, solve, (given["x0"], args), name)
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
            {**c, "args": plain_tree(_tuple(c["args"]))} if isinstance(c, dict) and "args" in c else c
            for c in several
        ]
    return _changed(bound, **others)


def _is_minimum(result: _scipy.OptimizeResult) -> bool:
    """Whether a solver has converged, or rounding stops it where the gradient is small by SciPy's default."""
    if result.get("success", True):
        return True
    gradient = result.get("grad", result.get("jac"))  # trust-constr calls Jacobians of constraints so
    return gradient is not None and bool(np.max(np.abs(gradient), initial=0.0) <= GRADIENT)


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
    method, name = _method(given), _named("minimize")
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
    return _called("minimize", bound, **others)


def _constraint(constraint: Any, method: str) -> Any:
    """A constraint with derivatives that are not given."""
    name, second = f"{_named('minimize')}, a constraint", method == "trust-constr"
    if isinstance(constraint, dict):
        if constraint.get("jac") is not None:
            return constraint
        args = _tuple(constraint.get("args", ()))
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


@_adapter
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
    given, name = bound.arguments, _named("minimize_scalar")
    fun, args = given["fun"], _tuple(given.get("args", ()))
    bounds = given.get("bounds")
    if not _active(args, bounds):
        return _called("minimize_scalar", bound, fun=Values(name, fun))
    if bounds is not None:
        return _between(bound, fun, args, bounds)

    def solve(args: tuple[Operand, ...]) -> tuple[Any, TensorOrArray, str | None]:
        result = _called("minimize_scalar", bound, fun=Values(name, fun), args=args)
        return result, result.x, None if result.success else result.get("message", "it did not converge")

    f = on_tensors(fun, name)
    result, x = _solved(func.minimizer, lambda x, args: f(x, *args), solve, (args,), name)
    result.x, result.fun = x, f(x, *args)
    return result


def _between(
    bound: Bound, fun: Callable[..., TensorOrArray], args: tuple[Operand, ...], bounds: Sequence[Operand]
) -> _scipy.OptimizeResult:
    """The minimum of a function of one number between two."""
    name, f = _named("minimize_scalar"), on_tensors(fun, _named("minimize_scalar"))
    others = {"args": plain_tree(args), "bounds": tuple(map(value_of, bounds))}
    result = _called("minimize_scalar", bound, fun=Values(name, fun), **others)
    x = solution(
        name, lambda x, args: f(x[0], *args), [result.x], (args,), limits_of([bounds], 1, True), (),
        func.minimizer, bool(result.success),
    )  # fmt: skip
    result.x = x[0]
    result.fun = f(result.x, *args)
    return result


# ---------------------------------------------------------------- least squares


@_adapter
def least_squares(bound: Bound) -> _scipy.OptimizeResult:
    """Minimize a sum of squares, with the Jacobian of the residuals.

    Parameters
    ----------
    fun : callable
        ``fun(x, *args, **kwargs)`` is a vector of residuals, of the Tensor x; or compiled.
    x0, bounds, method, ftol, xtol, gtol, x_scale, loss, f_scale, diff_step, tr_solver, tr_options, \
max_nfev, verbose, args, kwargs, callback, workers : optional
        As of `scipy.optimize.least_squares`, as far as the SciPy installed has them.
    jac : optional
        As of SciPy; what is passed is used, "2-point" too. By default the Jacobian is found.
    jac_sparsity : optional
        As of SciPy: where the Jacobian found may be other than 0.

    Returns
    -------
    OptimizeResult
        As SciPy's. If a Tensor in `x0`, `args` or `kwargs` requires grad, its ``x``, ``fun`` and ``cost`` are
        Tensors, with derivatives by the implicit function theorem.

    Raises
    ------
    GradientError
        `fun` uses a Tensor that requires grad and is none of the arguments; `jac_sparsity` leaves an element
        out. Where one of the arguments requires grad: there is a `loss` that is not linear; the solver did
        not converge; the solution is at a bound that does not hold it there, as of `minimize`.

    Notes
    -----
    The Jacobian is sparse, and solved with by LSMR, if `jac_sparsity` is given or ``tr_solver="lsmr"``; or
    else, without a `tr_solver` and with another method than "lm", if there are 100 unknowns or more and the
    pattern found has at most a tenth of all elements (`tapegrad.func.sparse_jacobian`). A dense one is
    computed by columns, in forward mode, where there are more residuals than unknowns, elsewhere by rows, in
    reverse mode. By rows the function is called once at each point; by columns, of a sparse one too, again
    for each Jacobian, with dual numbers, and at the first point for the pattern.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> t = np.linspace(0, 1, 20)
    >>> def residuals(p, y):
    ...     return p[0] * np.exp(-p[1] * t) - y
    >>> ts.optimize.least_squares(residuals, [1.0, 1.0], args=(3 * np.exp(-2 * t),)).x
    array([3., 2.])
    """
    given, name = bound.arguments, _named("least_squares")
    args, kwargs = _tuple(given.get("args", ())), given.get("kwargs") or {}
    if not _active(given["x0"], args, kwargs):
        return _least_squares(bound)
    if given.get("loss", "linear") != "linear":
        raise _refused(name, "no derivative of a solution with a loss is known here")
    f = on_tensors(given["fun"], name)

    def objective(
        x: TensorOrArray, x0: Sequence[float], args: tuple[TensorOrArray, ...], kwargs: dict[str, Any]
    ) -> TensorOrArray:
        return np.sum(as_array(f(x, *args, **kwargs)) ** 2) / 2

    params = given["x0"], args, kwargs
    plain = dict(zip(("x0", "args", "kwargs"), plain_tree(params), strict=True))
    result = _least_squares(_changed(bound, **plain))
    limits = limits_of(given.get("bounds"), result.x.size, False)
    found = solution(name, objective, result.x, params, limits, (), _minimizer(result.x), result.success)
    result.x, result.fun = found, as_array(f(found, *args, **kwargs))
    result.cost = np.sum(result.fun**2) / 2
    return result


def _least_squares(bound: Bound) -> _scipy.OptimizeResult:
    given, name = bound.arguments, _named("least_squares")
    if "jac" in given:
        return _called("least_squares", bound, fun=Values(name, given["fun"]))
    solver, pattern = given.get("tr_solver"), given.get("jac_sparsity")
    if pattern is None and given.get("method", "trf") != "lm":
        pattern = {"lsmr": True, None: "look"}.get(solver)
    f = Residual(name, given["fun"], pattern)
    return _called("least_squares", bound, fun=f.value, jac=f.jacobian, jac_sparsity=None)


@_adapter
def curve_fit(bound: Bound) -> tuple[Any, ...]:
    """Fit a function to data, with its derivatives by the parameters.

    Parameters
    ----------
    f : callable
        ``f(xdata, *params)``, of Tensors for the parameters; or compiled.
    xdata, ydata, p0, sigma, absolute_sigma, check_finite, bounds, method, full_output, nan_policy, kwargs
        As of `scipy.optimize.curve_fit`.
    jac : optional
        As of SciPy; what is given is used. By default the derivatives are found.

    Returns
    -------
    popt, pcov
        As SciPy's, with `full_output` more. If a Tensor in `xdata`, `ydata`, `sigma`, `p0` or `bounds`
        requires grad they are Tensors, with derivatives by the implicit function theorem as of `minimize`;
        that by `p0` is 0. All else is numbers of the solver's.

    Raises
    ------
    GradientError
        `f` uses a Tensor that requires grad. Where one of the data does: the fit did not converge, or as of
        `minimize`; data are left out by ``nan_policy="omit"``.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> def decay(t, a, b):
    ...     return a * np.exp(-b * t)
    >>> t = np.linspace(0, 1, 20)
    >>> popt, pcov = ts.optimize.curve_fit(decay, t, decay(t, 3.0, 2.0), p0=[1.0, 1.0])
    >>> popt
    array([3., 2.])

    What a measurement counts for a parameter:

    >>> y = tg.tensor([1.0, 3.0, 4.0], requires_grad=True)
    >>> popt, pcov = ts.optimize.curve_fit(lambda t, a, b: a + b * t, np.arange(3.0), y)
    >>> tg.grad(popt[0], y)
    (tensor([ 0.8333,  0.3333, -0.1667]),)
    """
    given = bound.arguments
    names = ("xdata", "ydata", "p0", "sigma", "bounds")
    data = {key: given[key] for key in names if given.get(key) is not None}
    if not _active(data):
        return _fit(bound)
    return _fit_of_tensors(bound, data)


def _fit(bound: Bound) -> tuple[Any, ...]:
    given, name = bound.arguments, _named("curve_fit")
    f = given["f"]
    others: dict[str, Any] = {"f": Values(name, f)}
    if given.get("jac") is None:
        of, matrix = on_tensors(f, name), func.jacrev if compiled(f, name) else func.jacfwd

        def jac(xdata: Operand, *params: Operand) -> np.ndarray:
            with differentiating(name):
                found = matrix(lambda p: as_array(of(xdata, *p)))(np.array(params))
            return found.reshape(-1, len(params))

        others["jac"] = jac
        if given.get("sigma") is not None and np.size(given["sigma"]) == 1:  # SciPy's takes no number then
            others["sigma"] = np.full(np.shape(given["ydata"]), given["sigma"])
    return _called("curve_fit", bound, **others)


def _fit_of_tensors(bound: Bound, data: dict[str, Any]) -> tuple[Any, ...]:
    """A fit as a function of the data."""
    given, name = bound.arguments, _named("curve_fit")
    f = on_tensors(given["f"], name)
    plain = {key: x if isinstance(x, _scipy.Bounds) else plain_tree(x) for key, x in data.items()}
    if given.get("nan_policy") == "omit" and any(np.isnan(np.sum(plain[k])) for k in ("xdata", "ydata")):
        raise _refused(name, "nan_policy='omit' leaves data out, which is not known here")
    popt, pcov, *others = _fit(_changed(bound, **plain))

    def residuals(p: TensorOrArray, data: dict[str, Operand]) -> TensorOrArray:
        off, sigma = (
            np.reshape(as_array(f(data["xdata"], *p)) - as_array(data["ydata"]), (-1,)),
            data.get("sigma"),
        )
        if sigma is None:
            return off
        sigma = as_array(sigma)
        return (
            off / sigma
            if np.ndim(sigma) < 2
            else solve_triangular(cholesky(sigma, lower=True), off, lower=True)
        )

    def objective(p: TensorOrArray, data: dict[str, Operand]) -> TensorOrArray:
        return np.sum(residuals(p, data) ** 2) / 2

    params = {key: x for key, x in data.items() if key != "bounds"}
    limits = limits_of(data.get("bounds"), popt.size, False)
    found = solution(name, objective, popt, (params,), limits, (), func.minimizer, True)
    if not np.isfinite(pcov).all():
        return found, pcov, *others
    matrix = func.jacfwd(lambda p: residuals(p, params))(found)
    cov = np.linalg.inv(matrix.T @ matrix)
    if not given.get("absolute_sigma", False):
        cov = cov * (2 * objective(found, params) / (np.shape(matrix)[0] - popt.size))
    return found, cov + (pcov - value_of(cov)), *others


# ---------------------------------------------------------------- roots


@_adapter
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
        As SciPy's. If a Tensor in `x0` or `args` requires grad its ``x`` is a Tensor, with derivatives by the
        implicit function theorem (`tapegrad.func.root`), of any order.

    Raises
    ------
    GradientError
        `fun` uses a Tensor that requires grad and is none of the arguments; where one of these does: the
        solver did not converge.

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
    given, name = bound.arguments, _named("root")
    args, pair = _tuple(given.get("args", ())), given.get("jac") is True
    if not _active(given["x0"], args):
        return _root(bound)
    f = on_tensors(given["fun"], name)

    def residual(x: TensorOrArray, x0: Sequence[float], args: tuple[TensorOrArray, ...]) -> TensorOrArray:
        found = f(x, *args)
        return as_array(found[0] if pair else found)

    def solve(x0: Operand, args: tuple[Operand, ...]) -> tuple[Any, TensorOrArray, str | None]:
        result = _root(_changed(bound, x0=x0, args=args))
        return result, result.x, None if result.success else result.message

    result, x = _solved(func.root, residual, solve, (given["x0"], args), name)
    result.x = x
    return result


def _root(bound: Bound) -> _scipy.OptimizeResult:
    given, name = bound.arguments, _named("root")
    if given.get("jac") is not None or given.get("method", "hybr").lower() not in ("hybr", "lm"):
        return _called("root", bound, fun=Values(name, given["fun"]))
    f = Residual(name, given["fun"])
    options = {**(given.get("options") or {}), "col_deriv": 0}
    return _called("root", bound, fun=f.value, jac=f.jacobian, options=options)


@_adapter
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
    given, name = bound.arguments, _named("fsolve")
    f, args = given["func"], _tuple(given.get("args", ()))
    if not _active(given["x0"], args):
        return _fsolve(bound)

    def solve(x0: Operand, args: tuple[Operand, ...]) -> tuple[Any, TensorOrArray, str | None]:
        result = _fsolve(_changed(bound, x0=x0, args=args, full_output=True))
        return result, result[0], None if result[2] == 1 else result[3]

    of = on_tensors(f, name)
    result, x = _solved(
        func.root, lambda x, x0, args: as_array(of(x, *args)), solve, (given["x0"], args), name
    )
    return (x, *result[1:]) if given.get("full_output") else x


def _fsolve(bound: Bound) -> Any:
    given, name = bound.arguments, _named("fsolve")
    if given.get("fprime") is not None:
        return _called("fsolve", bound, func=Values(name, given["func"]))
    f = Residual(name, given["func"])
    return _called("fsolve", bound, func=f.value, fprime=f.jacobian, col_deriv=0)


@_adapter
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
    given, name = bound.arguments, _named("root_scalar")
    f, args = given["f"], _tuple(given.get("args", ()))
    places = {key: given.get(key) for key in ("bracket", "x0", "x1")}
    if not _active(args, places):
        return _root_scalar(bound)
    pair, of = given.get("fprime") is True, on_tensors(f, name)

    def residual(
        x: TensorOrArray | float, args: tuple[TensorOrArray, ...], places: dict[str, Any]
    ) -> TensorOrArray:
        found = of(x, *args)
        return found[0] if pair else found

    def solve(args: tuple[Operand, ...], places: dict[str, Any]) -> tuple[Any, TensorOrArray, str | None]:
        result = _root_scalar(_changed(bound, args=args, **places))
        return result, result.root, None if result.converged else result.flag

    result, x = _solved(func.root, residual, solve, (args, places), name)
    result.root = x
    return result


def _root_scalar(bound: Bound) -> _scipy.RootResults:
    given, name = bound.arguments, _named("root_scalar")
    method = given.get("method")
    if not method and given.get("bracket") is None and given.get("x0") is not None:
        method = "newton" if given.get("x1") is None else "secant"
    second = method == "halley" and given.get("fprime2") is None
    first = method in ("newton", "halley") and given.get("fprime") is None
    if not (first or second) or isinstance(given.get("fprime"), bool):
        return _called("root_scalar", bound, f=Values(name, given["f"]))
    f = Function(name, given["f"], second)
    others = {"f": f.value, "method": method}
    if first:
        others["fprime"] = f.gradient
    if second:
        others["fprime2"] = f.curvature
    return _called("root_scalar", bound, **others)


@_adapter
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
    given, name = bound.arguments, _named("newton")
    f, args = given["func"], _tuple(given.get("args", ()))
    places = {key: given.get(key) for key in ("x0", "x1")}
    if not _active(args, places):
        return _newton(bound)

    def solve(args: tuple[Operand, ...], places: dict[str, Any]) -> tuple[Any, TensorOrArray, str | None]:
        result = _newton(_changed(bound, args=args, full_output=True, **places))
        done = np.all(result[1] if np.ndim(result[0]) else result[1].converged)
        return result, result[0], None if done else "it did not converge"

    of = on_tensors(f, name)
    result, x = _solved(func.root, lambda x, args, places: of(x, *args), solve, (args, places), name)
    return _with_root(result, x) if given.get("full_output") else x


def _with_root(result: Any, x: Operand) -> Any:
    """What SciPy returned with full_output, with another root."""
    if hasattr(result, "_fields"):
        return result._replace(root=x)
    result[1].root = x
    return x, result[1]


def _newton(bound: Bound) -> Any:
    given, name = bound.arguments, _named("newton")
    if given.get("fprime") is not None or given.get("x1") is not None or np.iscomplexobj(given["x0"]):
        return _called("newton", bound, func=Values(name, given["func"]))
    f = Function(name, given["func"])
    return _called("newton", bound, func=f.value, fprime=f.gradient)


def _bracketing(solver: str) -> Callable[..., Any]:
    """One of SciPy's functions that find a root between two numbers."""

    def between(bound: Bound) -> Any:
        given, name = bound.arguments, _named(solver)
        f, args = given["f"], _tuple(given.get("args", ()))
        if not _active(given["a"], given["b"], args):
            return _called(solver, bound, f=Values(name, f))

        def solve(a: Operand, b: Operand, args: tuple[Operand, ...]) -> tuple[Any, TensorOrArray, str | None]:
            result = _called(solver, bound, f=Values(name, f), a=a, b=b, args=args, full_output=True)
            return result, result[0], None if result[1].converged else result[1].flag

        params = given["a"], given["b"], args
        of = on_tensors(f, name)
        result, x = _solved(func.root, lambda x, a, b, args: of(x, *args), solve, params, name)
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
        `f` uses a Tensor that requires grad and is none of the arguments.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor(2.0, requires_grad=True)
    >>> tg.grad(ts.optimize.{solver}(lambda x, a: x**2 - a, 0.0, 2.0, args=(a,)), a)
    (tensor(0.3536),)
    """
    return _adapter(between)


bisect, brenth, brentq, ridder, toms748 = map(
    _bracketing, ("bisect", "brenth", "brentq", "ridder", "toms748")
)


@_adapter
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
        `func` uses a Tensor that requires grad and is none of the arguments.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor(2.0, requires_grad=True)
    >>> x = ts.optimize.fixed_point(lambda x, a: np.cos(a * x) / 4, 0.2, args=(a,))
    >>> tg.grad(x, a)
    (tensor(-0.0201),)
    """
    given, name = bound.arguments, _named("fixed_point")
    f, args = given["func"], _tuple(given.get("args", ()))
    if not _active(given["x0"], args):
        return _called("fixed_point", bound, func=Values(name, f))

    def solve(x0: Operand, args: tuple[Operand, ...]) -> tuple[Any, TensorOrArray, str | None]:
        x = _called("fixed_point", bound, func=Values(name, f), x0=x0, args=args)
        return None, x, None

    of = on_tensors(f, name)
    return _solved(func.fixed_point, lambda x, x0, args: of(x, *args), solve, (given["x0"], args), name)[1]
