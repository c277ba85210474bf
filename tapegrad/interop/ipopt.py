"""Nonlinear programs for Ipopt."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad import func
from tapegrad.errors import ShapeError
from tapegrad.interop.bridge import Function, plain, title_of
from tapegrad.tensor import Operand


class IpoptProblem:
    """What `cyipopt.Problem` calls of a nonlinear program: values and sparse derivatives.

    Minimize f(x) where g(x) lies between bounds. The patterns of the Jacobian of g, and of the Hessian of the
    Lagrangian sigma f(x) + lambda' g(x), are found at a first point; they are those of the program run there,
    and one that branches otherwise later raises.

    Parameters
    ----------
    f : callable
        Of a vector, returns a number.
    constraints : callable, optional
        Of a vector, returns a vector.
    x0 : array_like
        The first point: a vector.

    Attributes
    ----------
    n, m
        The numbers of unknowns and of constraints.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> problem = tg.interop.IpoptProblem(lambda x: np.sum(x**4), lambda x: x[1:] * x[:-1], x0=np.ones(3))
    >>> x = np.array([1.0, 2.0, 3.0])
    >>> rows, columns = problem.jacobianstructure()
    >>> rows.tolist(), columns.tolist(), problem.jacobian(x)
    ([0, 0, 1, 1], [0, 1, 1, 2], array([2., 1., 3., 2.]))
    >>> rows, columns = problem.hessianstructure()
    >>> rows.tolist(), columns.tolist(), problem.hessian(x, np.array([10.0, 20.0]), 1.0)
    ([0, 1, 1, 2, 2], [0, 0, 1, 1, 2], array([ 12., 10., 48., 20., 108.]))

    With cyipopt installed:

    >>> cyipopt.Problem(problem.n, problem.m, problem, cl=[1, 1], cu=[1, 1])  # doctest: +SKIP
    """

    def __init__(self, f: Function, constraints: Function | None = None, *, x0: Operand) -> None:
        title_of("IpoptProblem", f)
        x = np.array(x0, float)
        if x.ndim != 1:
            raise ShapeError(f"IpoptProblem: x0 is a vector, found shape {x.shape}")
        self._constraints = constraints or (lambda x: np.zeros(0))
        self._objective = func.value_and_grad(f)
        self.n, self.m = x.size, np.size(self.constraints(x))
        self._jacobian = func.sparse_jacobian(self._constraints) if self.m else None
        if constraints is None:
            self._hessian = func.sparse_hessian(lambda x, lagrange, factor: factor * f(x))
        else:
            self._hessian = func.sparse_hessian(
                lambda x, lagrange, factor: factor * f(x) + np.sum(lagrange * constraints(x))
            )
        if self._jacobian is not None:
            self._jacobian(x)
        self._hessian(x, np.ones(self.m), 1.0)
        rows, columns = self._hessian.pattern.tocoo().coords
        self._lower = rows >= columns

    def objective(self, x: Operand) -> float:
        """Return f(x)."""
        return float(self._objective(np.asarray(x))[0])

    def gradient(self, x: Operand) -> np.ndarray:
        """Return the gradient of f."""
        return self._objective(np.asarray(x))[1]

    def constraints(self, x: Operand) -> np.ndarray:
        """Return g(x)."""
        return plain("IpoptProblem: the constraints", self._constraints(np.asarray(x)))

    def jacobianstructure(self) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and columns of the elements of the Jacobian of g."""
        if self._jacobian is None:
            return np.zeros(0, np.int32), np.zeros(0, np.int32)
        rows, columns = self._jacobian.pattern.tocoo().coords
        return rows, columns

    def jacobian(self, x: Operand) -> np.ndarray:
        """Return these elements."""
        return np.zeros(0) if self._jacobian is None else self._jacobian(np.asarray(x)).data

    def hessianstructure(self) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and columns of the elements of the lower triangle of the Lagrangian's Hessian."""
        rows, columns = self._hessian.pattern.tocoo().coords
        return rows[self._lower], columns[self._lower]

    def hessian(self, x: Any, lagrange: Any, obj_factor: float) -> Any:
        """Return these elements, with the multipliers of the constraints and the factor of f."""
        return self._hessian(np.asarray(x), np.asarray(lagrange), obj_factor).data[self._lower]
