"""Linear least squares under bounds: `nnls` and `lsq_linear` of `scipy.optimize`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize as _scipy
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator

from tapegrad.errors import GradientError
from tapegrad.scipy.optimize.adapters import Bound, active, adapter, called, changed, minimizer_for, named
from tapegrad.scipy.optimize.constrained import Limits, limits_of, plain_tree, solution
from tapegrad.scipy.optimize.evaluations import as_array
from tapegrad.scipy.sparse.matrix import SparseTensor
from tapegrad.tensor import Operand, TensorOrArray


@adapter
def nnls(bound: Bound) -> tuple[Any, Any]:
    """Minimize the norm of ``A @ x - b`` where no element of x is negative.

    Parameters
    ----------
    A : Tensor or array_like, shape (m, n)
    b : Tensor or array_like, shape (m,)
    maxiter, atol : optional
        As of `scipy.optimize.nnls`.

    Returns
    -------
    x, rnorm
        As SciPy's. If `A` or `b` requires grad they are Tensors, with derivatives by the implicit function
        theorem: of an element of x that is 0, and held there, they are 0.

    Raises
    ------
    GradientError
        Where a Tensor requires grad: an element is 0 and nothing holds it there; the columns of those that
        are not 0 depend on each other.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor([2.0, -1.0, 1.0], requires_grad=True)
    >>> x, rnorm = ts.optimize.nnls([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], b)
    >>> x
    tensor([1.5, 0.0], grad_fn=<AddBackward>)
    >>> tg.grad(x[0], b)
    (tensor([0.5, 0.0, 0.5]),)
    """
    A, b = bound.arguments["A"], bound.arguments["b"]
    plain = dict(zip("Ab", plain_tree((A, b)), strict=True))
    x, rnorm = called("nnls", changed(bound, **plain))
    if not active(A, b):
        return x, rnorm
    x = _differentiated("nnls", A, b, x, Limits(np.zeros(x.size), np.full(x.size, np.inf)))
    return x, np.linalg.norm(as_array(A) @ x - as_array(b))


@adapter
def lsq_linear(bound: Bound) -> _scipy.OptimizeResult:
    """Minimize the sum of squares of ``A @ x - b``, x between bounds.

    Parameters
    ----------
    A : Tensor or array_like, shape (m, n)
        Or a sparse matrix, also of Tensors, or a LinearOperator where no derivative is asked for.
    b : Tensor or array_like, shape (m,)
    bounds : optional
        Pair of array_like or Tensors, or `scipy.optimize.Bounds`.
    method, tol, lsq_solver, lsmr_tol, max_iter, verbose, lsmr_maxiter : optional
        As of `scipy.optimize.lsq_linear`.

    Returns
    -------
    OptimizeResult
        As SciPy's. If a Tensor in `A`, `b` or `bounds` requires grad, its ``x``, ``fun`` and ``cost`` are
        Tensors, with derivatives by the implicit function theorem.

    Raises
    ------
    GradientError
        Where a Tensor requires grad: A is a LinearOperator; the solver did not converge; an element is at a
        bound that does not hold it there; the columns of those between their bounds depend on each other.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor([2.0, 3.0], requires_grad=True)
    >>> x = ts.optimize.lsq_linear([[1.0, 0.0], [1.0, 2.0]], b, bounds=(0, [1.0, 5.0])).x
    >>> tg.grad(x[1], b)
    (tensor([0.0, 0.5]),)
    """
    given, name = bound.arguments, named("lsq_linear")
    A, b, bounds = given["A"], given["b"], given.get("bounds", (-np.inf, np.inf))
    if isinstance(bounds, _scipy.Bounds):
        bounds = bounds.lb, bounds.ub
    entries, product = _parts(A)
    plain_b, plain_bounds = plain_tree((b, bounds))
    plain = A.value() if isinstance(A, SparseTensor) else plain_tree(A)
    result = called("lsq_linear", changed(bound, A=plain, b=plain_b, bounds=plain_bounds))
    if not active(entries, b, bounds):
        return result
    if isinstance(A, LinearOperator):
        raise GradientError(
            f"{name}: b or bounds hold a Tensor that requires grad, and A is a LinearOperator, of which no "
            "derivative of products is known; pass an array or a sparse matrix, or detach() what requires "
            "grad for the value"
        )
    limits = limits_of(bounds, result.x.size, False)
    result.x = _differentiated("lsq_linear", A, b, result.x, limits, result.success)
    result.fun = product(entries, result.x) - as_array(b)
    result.cost = np.sum(result.fun**2) / 2
    return result


def _parts(A: Any) -> tuple[Any, Callable[[Any, TensorOrArray], TensorOrArray]]:
    """What of a matrix there are derivatives by, and the product of that with a vector."""
    if isinstance(A, SparseTensor):
        return A.data, lambda data, x: A.with_data(data) @ x
    if isinstance(A, LinearOperator) or issparse(A):
        return None, lambda _, x: A @ x
    return A, lambda A, x: as_array(A) @ x


def _differentiated(
    what: str, A: Any, b: Operand, x: np.ndarray, limits: Limits, converged: bool = True
) -> TensorOrArray:
    """The solution that was found, as a function of the matrix, the right side and the limits."""
    entries, product = _parts(A)

    def objective(x: TensorOrArray, entries: Any, b: Operand) -> TensorOrArray:
        return np.sum((product(entries, x) - as_array(b)) ** 2) / 2

    params = entries, b
    return solution(named(what), objective, x, params, limits, (), minimizer_for(x), converged)
