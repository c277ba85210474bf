"""Solutions of equations as functions of what is in them: `root`, `fixed_point`, `minimizer`.

A solver of the user's finds x on plain values. Where F(x, p) = 0, F_x dx + F_p dp = 0: forward mode solves
with F_x, reverse mode with its transpose. What a derivative is computed from, x among it, has a history, so
the derivative is differentiated like anything else.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.apply import as_tensor
from tapegrad.autograd.functional import _followed
from tapegrad.core.base import value_of
from tapegrad.core.grad_mode import is_grad_enabled, within
from tapegrad.errors import GradientError, ShapeError
from tapegrad.func.custom import PLAIN, Called, Point, Rule, call, is_recorded, outside, replaced
from tapegrad.func.linear_systems import LOOSE, LinearMap, System, jacobian_of, solve_dense
from tapegrad.func.signatures import Function
from tapegrad.func.trees import Structure, Tree, flatten
from tapegrad.func.vectors import copied, count_elements, floats, follow, pack, pull, push, shapes_of, unpack
from tapegrad.tensor import Operand, Tensor, TensorOrArray, is_tensor, without_history

__all__ = ["fixed_point", "minimizer", "root"]


class _Equations(Rule):
    """The solution of equations, as a function of what is in them.

    Parameters
    ----------
    function
        The user's: ``function(x, *params)``.
    solve
        The user's solver.
    linear_solver
        What solves with the derivative of the equations; None where that is a matrix for NumPy.
    tol
        What no equation may be off by; None where that is not looked at.
    """

    what = "root"
    symmetric = False
    kind = type("Root", (Called,), {})

    def __init__(
        self,
        function: Function,
        solve: Function,
        linear_solver: Function | None,
        tol: float | None,
    ) -> None:
        for f, place in ((function, "first"), (solve, "second")):
            if not callable(f):
                raise TypeError(f"{self.what}: the {place} argument is a function, found {type(f).__name__}")
        self.function, self.solve, self.linear_solver, self.tol = function, solve, linear_solver, tol
        self.name = f"{self.what} of {getattr(function, '__name__', type(function).__name__)}"

    def residual(self, x: Tree, params: Sequence[Tree]) -> list[TensorOrArray]:
        """Return what is 0 at the solution."""
        return flatten(self.function(x, *params))[0]

    def look(self, x: Tree, params: Sequence[Tree], asked: bool) -> None:
        """See that there are as many equations as unknowns, and nothing in them but x and the params."""
        found, leaves = self.residual(x, params), flatten(x)[0]
        outside(found, asked, self.name)
        if count_elements(found) != count_elements(leaves):
            raise ShapeError(
                f"{self.name}: as many equations as unknowns are needed; the residual has {shapes_of(found)} "
                f"for x of {shapes_of(leaves)}"
            )

    def run(self, args: Sequence[Any], asked: bool) -> Any:
        """Call the solver, and look at what it returned."""
        given = args if self.tol is None else copied(args)
        found = self.solve(*given)
        if found is None:
            raise TypeError(f"{self.name}: the solver returned None; does it lack its return?")
        leaves, structure = flatten(found)
        outside(leaves, asked, self.name)
        x = structure.build([self._unknown(y) for y in leaves])
        self.look(copied(x), args, asked)
        if self.tol is not None:
            self._check(copied(x), args, self.tol)
        return x

    def _unknown(self, y: Operand) -> Operand:
        """An element of what the solver returned, as floats."""
        value = value_of(y)
        kind = np.asarray(value).dtype.kind
        if kind not in "iufc":
            raise TypeError(
                f"{self.name}: the solver returned {type(y).__name__} {shapes_of([y])} in x; return floats, "
                "arrays of them, or a tree of those"
            )
        return value if kind in "fc" else floats(value)[()]

    def _check(self, x: Tree, args: Sequence[Tree], tol: float) -> None:
        sizes = [np.max(np.abs(value_of(y)), initial=0.0) for y in self.residual(x, args)]
        norm = float(max(sizes, default=0.0))
        if not norm <= tol:
            raise GradientError(
                f"{self.name}: what the solver returned is no solution: the largest residual is {norm:.3g}, "
                f"and tol is {tol:g}; let the solver go on, or pass another tol"
            )

    def vector(self, at: Point, xs: Sequence[TensorOrArray], tensors: Sequence[TensorOrArray]) -> Tensor:
        """Return the residual as one vector, of these Tensors."""
        leaves = self.residual(at.call.out(xs), at.call.args(tensors))
        vector: Tensor = as_tensor(pack([y if is_tensor(y) else floats(y) for y in leaves]))
        return vector

    def pull(self, at: Point, cts: Sequence[Any], needs: Sequence[bool]) -> Sequence[Any]:
        """Solve with the transpose of the derivative by x."""
        recorded = is_grad_enabled()
        return within(PLAIN, self._pull, at.kept(recorded), cts, needs, recorded)

    def _pull(
        self, at: Point, cts: Sequence[Operand], needs: Sequence[bool], recorded: bool
    ) -> Sequence[Operand | None]:
        xs = _followed(tuple(at.outs), recorded)
        spots, ps = follow(at.tensors, needs, recorded)
        wanted = [ps[k] for k in spots]
        r, ct = self.vector(at, xs, ps), pack(cts)
        if r.size == 1:  # one sweep will do
            parts = pull(r, [*xs, *wanted], np.ones(1, r.dtype), recorded)
            scale = -solve_dense(pack(parts[: len(xs)]).reshape((1, 1)), ct, self._matrix()).reshape(())
            found = [g * scale for g in parts[len(xs) :]]
        else:
            found = pull(r, wanted, -self._solved(at, r, xs, ct, True, recorded), recorded)
        return replaced([None] * len(ps), spots, found)

    def push(self, at: Point, tangents: Sequence[Any]) -> Sequence[Operand]:
        """Solve with the derivative by x."""
        recorded = is_recorded((*at.tensors, *tangents))
        if not recorded:
            tangents = [None if t is None else without_history(t) for t in tangents]
        return within(PLAIN, self._push, at.kept(recorded), tangents, recorded)

    def _push(self, at: Point, tangents: Sequence[Operand], recorded: bool) -> Sequence[Any]:
        xs = _followed(tuple(at.outs), recorded)
        r, moved = push(at.tensors, tangents, functools.partial(self.vector, at, xs))
        if moved is None:
            return [None] * len(at.outs)
        moved = moved if recorded else without_history(moved)  # xs are leaves
        return unpack(self._solved(at, r, xs, -moved, False, recorded), at.outs)

    def _matrix(self) -> str:
        return f"{self.name}: the derivative of the equations by x"

    def _solved(
        self, at: Point, r: Tensor, xs: Sequence[Tensor], b: Operand, transpose: bool, recorded: bool
    ) -> Any:
        """Solve with the derivative of the equations by x, or with its transpose."""
        if not r.size:
            return b
        if self.linear_solver is None or r.size == 1:
            matrix = jacobian_of(r, xs, recorded)
            return solve_dense(matrix.T if transpose else matrix, b, self._matrix())
        system = System(_Pullback(self, at), self.linear_solver, self.linear_solver, LOOSE)
        if self.symmetric:
            system.transpose = system
        elif not transpose:
            system = system.adjoint()
        return within({"recording": recorded}, call, system, (b, at.outs, at.tensors))


class _Pullback(LinearMap):
    """A vector times the derivative of equations by x, of x and of what else is in them."""

    def __init__(self, equations: _Equations, at: Point) -> None:
        super().__init__(self._product, equations.name, False)
        self.equations, self.point = equations, Point(at.call, (), ())

    def _product(self, u: Operand, *params: Sequence[TensorOrArray]) -> TensorOrArray:
        r, xs = self._residual(*params)
        return pack(pull(r, xs, u, True))

    def at(self, *params: Any) -> Any:
        """Record the equations once, for all products."""
        r, xs = self._residual(*params)
        return lambda u: pack(pull(r, xs, floats(u), False))._v

    def _residual(
        self, outs: Sequence[TensorOrArray], tensors: Sequence[Operand]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The equations as a vector, and the Tensors of x that they were computed from."""
        xs = _followed(tuple(map(as_tensor, outs)), True)
        return within(PLAIN, self.equations.vector, self.point, xs, tensors), xs


class _FixedPoint(_Equations):
    """Of x = function(x, *params)."""

    what = "fixed_point"
    kind = type("FixedPoint", (Called,), {})

    def residual(self, x: Tree, params: Sequence[Tree]) -> list[TensorOrArray]:
        """Return the difference of both sides."""
        leaves, structure = flatten(x)
        found, theirs = flatten(self.function(x, *params))
        if theirs != structure or [np.shape(y) for y in found] != [np.shape(y) for y in leaves]:
            raise ShapeError(
                f"{self.name}: the function returned {shapes_of(found)} for x of {shapes_of(leaves)}; let it "
                "return what is like x"
            )
        return [a - b for a, b in zip(leaves, found, strict=True)]


class _Minimizer(_Equations):
    """Of a gradient that is 0."""

    what = "minimizer"
    symmetric = True
    kind = type("Minimizer", (Called,), {})

    def residual(self, x: Tree, params: Sequence[Any]) -> list[Any]:
        """Return the gradient of the objective."""
        leaves, structure = flatten(x)
        xs = _followed(tuple(map(as_tensor, leaves)), True)
        return list(pull(as_tensor(self._objective(structure, xs, params)), xs, np.ones(()), True))

    def _objective(
        self, structure: Structure, xs: Sequence[Operand], params: Sequence[Tree]
    ) -> TensorOrArray:
        value = self.function(structure.build(xs), *params)
        if np.size(value) != 1 or np.asarray(value_of(value)).dtype.kind != "f":
            raise ShapeError(f"{self.name}: the objective is one real number, found {shapes_of([value])}")
        return np.reshape(value, ())

    def look(self, x: Tree, params: Sequence[Tree], asked: bool) -> None:
        """See that the objective is a number, and nothing in it but x and the params."""
        leaves, structure = flatten(x)
        outside([self._objective(structure, leaves, params)], asked, self.name)


def _solution(system: _Equations) -> Function:
    @functools.wraps(system.solve)
    def solved(*params: Any) -> Tree:
        return call(system, params)

    return solved


def root(
    residual: Function,
    solve: Function,
    *,
    linear_solver: Function | None = None,
    tol: float | None = None,
) -> Function:
    """Return a function that solves equations, differentiable by what is in them.

    The derivative is that of the solution, by the implicit function theorem, whatever the solver did to find
    it; in both modes, to any order.

    Parameters
    ----------
    residual : callable
        ``residual(x, *params)`` is 0 at the solution; written in NumPy's functions, differentiable. It
        returns as many numbers as there are in x, an array or a tree of them.
    solve : callable
        ``solve(*params)`` returns x, a number, an array or a tree of them. It gets plain numbers and arrays,
        so a loop until convergence will do, or anything of SciPy's.
    linear_solver : callable, optional
        ``linear_solver(matvec, b)`` returns the vector that `matvec`, a function of plain vectors, makes `b`
        of. By default, and for one unknown, the matrix of derivatives by x is computed and given to
        `numpy.linalg.solve`; for many use an iterative solver, such as one of `scipy.sparse.linalg`.
    tol : float, optional
        What no element of the residual may exceed. By default the solver is trusted.

    Returns
    -------
    callable
        Of params, numbers and arrays, Tensors, or trees of them: what `solve` returns, Tensors if there are
        any among the params.

    Raises
    ------
    GradientError
        The function called: `residual` or `solve` uses a Tensor that requires grad and is none of the params;
        the residual is larger than `tol`. In a derivative: the derivative by x is singular.
    ShapeError
        There are more equations than unknowns, or fewer.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> from scipy.optimize import brentq
    >>> def kepler(E, M, e):
    ...     return E - e * np.sin(E) - M
    >>> def solve(M, e):
    ...     return brentq(kepler, M - e, M + e, args=(M, e), xtol=1e-14)
    >>> anomaly = tg.func.root(kepler, solve)
    >>> M, e = tg.tensor(1.0, requires_grad=True), 0.5
    >>> E = anomaly(M, e)
    >>> slope = 1 / (1 - e * np.cos(E.item()))
    >>> E, abs(tg.grad(E, M)[0].item() - slope) < 1e-14
    (tensor(1.4987, grad_fn=<RootBackward>), np.True_)
    """
    return _solution(_Equations(residual, solve, linear_solver, tol))


def fixed_point(
    function: Function,
    solve: Function,
    *,
    linear_solver: Function | None = None,
    tol: float | None = None,
) -> Function:
    """Return a function that finds fixed points, differentiable by what they depend on.

    Parameters
    ----------
    function : callable
        ``function(x, *params)`` is x at the solution; written in NumPy's functions, differentiable.
    solve, linear_solver, tol
        As for `root`, of the residual ``x - function(x, *params)``.

    Returns
    -------
    callable
        As for `root`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> def step(x, a):
    ...     return (x + a / x) / 2
    >>> def solve(a):
    ...     x = a
    ...     for _ in range(50):
    ...         x = step(x, a)
    ...     return x
    >>> root = tg.func.fixed_point(step, solve)
    >>> a = tg.tensor([4.0, 9.0], requires_grad=True)
    >>> root(a), tg.grad(np.sum(root(a)), a)
    (tensor([2., 3.], grad_fn=<FixedPointBackward>), (tensor([0.2500, 0.1667]),))
    """
    return _solution(_FixedPoint(function, solve, linear_solver, tol))


def minimizer(
    objective: Function,
    solve: Function,
    *,
    linear_solver: Function | None = None,
    tol: float | None = None,
) -> Function:
    """Return a function that minimizes, differentiable by what the objective depends on.

    At the solution the gradient of the objective is 0; so it may be a maximum or a saddle, too.

    Parameters
    ----------
    objective : callable
        ``objective(x, *params)`` is a number; written in NumPy's functions, twice differentiable.
    solve, linear_solver, tol
        As for `root`, of the gradient. The matrix is the Hessian, which is symmetric.

    Returns
    -------
    callable
        As for `root`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> from scipy.optimize import minimize
    >>> A, y = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]]), np.array([1.0, 0.0, 2.0])
    >>> def ridge(w, weight):
    ...     return np.sum((A @ w - y) ** 2) + weight * np.sum(w**2)
    >>> def solve(weight):
    ...     return minimize(ridge, np.zeros(2), args=(weight,), tol=1e-10).x
    >>> weight = tg.tensor(0.5, requires_grad=True)
    >>> w = tg.func.minimizer(ridge, solve)(weight)
    >>> tg.grad(np.sum((A @ w - y) ** 2), weight)
    (tensor(0.3842),)
    """
    return _solution(_Minimizer(objective, solve, linear_solver, tol))
