"""Least squares: `least_squares` and `curve_fit` of `scipy.optimize`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.optimize as _scipy

from tapegrad import func
from tapegrad.core.base import value_of
from tapegrad.func.calls import compiled, on_tensors
from tapegrad.scipy.linalg import cholesky, solve_triangular
from tapegrad.scipy.optimize.adapters import (
    Bound,
    active,
    adapter,
    as_tuple,
    called,
    changed,
    minimizer_for,
    named,
    refused,
)
from tapegrad.scipy.optimize.constrained import limits_of, plain_tree, solution
from tapegrad.scipy.optimize.evaluations import Residual, Values, as_array, differentiating
from tapegrad.tensor import Operand, TensorOrArray


@adapter
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
        `fun` uses a Tensor that carries a tangent and is none of the arguments; `jac_sparsity` leaves an
        element out. Where a Tensor requires grad: there is a `loss` that is not linear; the solver did not
        converge; the solution is at a bound that does not hold it there, as of `minimize`.

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
    given, name = bound.arguments, named("least_squares")
    args, kwargs = as_tuple(given.get("args", ())), given.get("kwargs") or {}
    if not active(given["x0"], args, kwargs):
        return _least_squares(bound)
    if given.get("loss", "linear") != "linear":
        raise refused(name, "no derivative of a solution with a loss is known here")
    f = on_tensors(given["fun"], name)

    def objective(
        x: TensorOrArray, x0: Sequence[float], args: tuple[TensorOrArray, ...], kwargs: dict[str, Any]
    ) -> TensorOrArray:
        return np.sum(as_array(f(x, *args, **kwargs)) ** 2) / 2

    params = given["x0"], args, kwargs
    plain = dict(zip(("x0", "args", "kwargs"), plain_tree(params), strict=True))
    result = _least_squares(changed(bound, **plain))
    limits = limits_of(given.get("bounds"), result.x.size, False)
    found = solution(name, objective, result.x, params, limits, (), minimizer_for(result.x), result.success)
    result.x, result.fun = found, as_array(f(found, *args, **kwargs))
    result.cost = np.sum(result.fun**2) / 2
    return result


def _least_squares(bound: Bound) -> _scipy.OptimizeResult:
    given, name = bound.arguments, named("least_squares")
    if "jac" in given:
        return called("least_squares", bound, fun=Values(name, given["fun"]))
    solver, pattern = given.get("tr_solver"), given.get("jac_sparsity")
    if pattern is None and given.get("method", "trf") != "lm":
        pattern = {"lsmr": True, None: "look"}.get(solver)
    f = Residual(name, given["fun"], pattern)
    return called("least_squares", bound, fun=f.value, jac=f.jacobian, jac_sparsity=None)


@adapter
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
        `f` uses a Tensor that carries a tangent. Where a Tensor requires grad: the fit did not converge, or
        as of `minimize`; data are left out by ``nan_policy="omit"``.

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
    if not active(data):
        return _fit(bound)
    return _fit_of_tensors(bound, data)


def _fit(bound: Bound) -> tuple[Any, ...]:
    given, name = bound.arguments, named("curve_fit")
    f = given["f"]
    others: dict[str, Any] = {"f": Values(name, f)}
    if given.get("jac") is None:
        of, matrix = on_tensors(f, name), func.jacrev if compiled(f, name) else func.jacfwd

        def jac(xdata: Operand, *params: Operand) -> np.ndarray:
            with differentiating(name):
                found = matrix(lambda p: as_array(of(xdata, *p)))(np.array(params))
            return value_of(found).reshape(-1, len(params))

        others["jac"] = jac
        if given.get("sigma") is not None and np.size(given["sigma"]) == 1:  # SciPy's takes no number then
            others["sigma"] = np.full(np.shape(given["ydata"]), given["sigma"])
    return called("curve_fit", bound, **others)


def _fit_of_tensors(bound: Bound, data: dict[str, Any]) -> tuple[Any, ...]:
    """A fit as a function of the data."""
    given, name = bound.arguments, named("curve_fit")
    f = on_tensors(given["f"], name)
    plain = {key: x if isinstance(x, _scipy.Bounds) else plain_tree(x) for key, x in data.items()}
    if given.get("nan_policy") == "omit" and any(np.isnan(np.sum(plain[k])) for k in ("xdata", "ydata")):
        raise refused(name, "nan_policy='omit' leaves data out, which is not known here")
    popt, pcov, *others = _fit(changed(bound, **plain))

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
