"""How a solver of `scipy.optimize` is called, and its solution differentiated."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import scipy.optimize as _scipy
from scipy.sparse.linalg import LinearOperator, cg

from tapegrad import func
from tapegrad.core.base import needs_derivative
from tapegrad.errors import GradientError
from tapegrad.func.trees import flatten
from tapegrad.scipy.optimize.evaluations import USING, Outside
from tapegrad.tensor import Operand, Tensor, TensorOrArray

LARGE = 1000  # unknowns from which a derivative of a solution does without the matrix
RESIDUAL = 1e-10  # of the right-hand side, up to which it is solved for then
Bound = inspect.BoundArguments
R = TypeVar("R")


def adapter(function: Callable[[Bound], R]) -> Callable[..., R]:
    """Give a function of the arguments that were passed the signature of SciPy's."""
    signature = inspect.signature(getattr(_scipy, function.__name__))

    @functools.wraps(function)
    def adapted(*args: Any, **kwargs: Any) -> R:
        bound = signature.bind(*args, **kwargs)
        before = USING.set(False)
        try:
            return function(bound)
        except Outside:  # mostly at the first call of the user's function
            USING.set(True)
            return function(bound)
        finally:
            USING.reset(before)

    adapted.__signature__ = signature  # type: ignore[attr-defined]
    return adapted


def named(what: str) -> str:
    """A solver's name in messages."""
    return f"tapegrad.scipy.optimize.{what}"


def as_tuple(args: Operand) -> tuple[Any, ...]:
    """Further arguments, of which SciPy takes one by itself."""
    return args if isinstance(args, tuple) else (args,)


def active(*trees: Any) -> bool:
    """Whether a derivative by a Tensor in these is asked for, or by one that the function uses."""
    return USING.get() or any(needs_derivative(x) for x in flatten(trees)[0])


def called(what: str, bound: Bound, **others: Any) -> Any:
    """Call SciPy's function, with some other arguments."""
    given = changed(bound, **others)
    return getattr(_scipy, what)(*given.args, **given.kwargs)


def changed(bound: Bound, **others: Any) -> Bound:
    """The arguments that were passed, with some others."""
    return Bound(bound.signature, {**bound.arguments, **others})


def solved(
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


def minimizer_for(x0: Operand) -> Callable[..., Callable[..., Tensor]]:
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


def refused(name: str, why: str) -> GradientError:
    """Return the error for a solution without a derivative."""
    return GradientError(
        f"{name}: x0 or args hold a Tensor that requires grad, and {why}; detach() it for the value, or "
        "write the equations of the solution for tapegrad.func.root"
    )
