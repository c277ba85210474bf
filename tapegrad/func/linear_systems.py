"""Linear systems that a user's solver solves, differentiable by what is in them: `linear_solve`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.apply import as_tensor
from tapegrad.core.base import requires_grad, value_of
from tapegrad.core.grad_mode import is_grad_enabled, within
from tapegrad.errors import GradientError, ShapeError
from tapegrad.func.custom import PLAIN, Called, Point, Rule, call, outside, replaced, transposed
from tapegrad.func.signatures import Function
from tapegrad.func.trees import flatten
from tapegrad.func.vectors import copied, floats, follow, pack, pull, push, shapes_of, unpack, zeros
from tapegrad.tensor import Operand, Tensor, TensorOrArray, is_tensor, wrap

__all__ = ["linear_solve"]

LOOSE = 1e-3  # to which part of the right-hand side a linear solver must be right


def jacobian_of(r: Tensor, xs: Sequence[Tensor], recorded: bool) -> TensorOrArray:
    """The matrix of derivatives of a vector by others, all real."""
    units = np.eye(r.size, dtype=r.dtype)
    if r.size == 1:
        return pack(pull(r, xs, units[0], recorded)).reshape((1, -1))
    return pack(pull(r, xs, units, recorded, True), (r.size,))


def solve_dense(matrix: Any, b: Any, what: str) -> Any:
    """Solve with a matrix, or refuse to."""
    if len(matrix) == 1 and value_of(matrix)[0, 0] != 0:
        return b / matrix[0]
    try:
        x = np.linalg.solve(matrix, b)
        regular = _is_regular(*map(value_of, (matrix, x, b)))
    except np.linalg.LinAlgError:
        regular = False
    if not regular:
        n = len(matrix)
        raise GradientError(
            f"{what}, {n} x {n}, is singular at the solution, so that has no derivative: a root may be a "
            "double one, an equation follow from others or not depend on x, or the solver not have converged"
        )
    return x


def _is_regular(matrix: np.ndarray, x: np.ndarray, b: np.ndarray) -> bool:
    """Whether a solution is one to a digit at least.

    If it is not, it is large in units in which rows and columns are of size 1. So may be others, which come
    out again from a matrix that is rounded otherwise.
    """
    eps = np.finfo(matrix.dtype).eps
    with np.errstate(all="ignore"):
        rows = np.max(np.abs(matrix), axis=1)
        columns = np.max(np.abs(matrix) / rows[:, None], axis=0)
        grown, given = np.max(np.abs(x) * columns), np.max(np.abs(b) / rows)
        if not 16 * len(b) * grown * eps > given:
            return True
        rounded = matrix * (1 + 4 * eps * np.random.default_rng(0).standard_normal(matrix.shape))
        gap = np.abs(np.linalg.solve(rounded, b) - x)
        return bool(np.max(gap * columns) < 0.1 * grown)


def probe(like: Any) -> np.ndarray:
    """An array whose elements have nothing in common; of one element it is 1."""
    found: np.ndarray = np.cos(np.arange(like.size)).astype(like.dtype).reshape(like.shape)
    return found


def changed(name: str) -> GradientError:
    """Return the error for equations that are called again and are others."""
    return GradientError(
        f"{name}: the equations are others than when they were solved: a variable that the function uses has "
        "another value by now (as that of a loop in its later turns), or was written to; pass it as an "
        "argument, or bind its value, as in lambda x, k=k: ..."
    )


def see_again(found: Sequence[Any], known: Sequence[Any], name: str) -> None:
    """See that numbers along a probe are those that were noted when equations were solved."""
    for now, then in zip(map(value_of, found), known, strict=True):
        if now is None or then is None:
            same = not np.any(0.0 if now is None else now) and not np.any(0.0 if then is None else then)
        elif not (same := np.array_equal(now, then)):  # mostly they are
            near = float(np.finfo(then.dtype).eps) ** 0.5
            finite = np.abs(then[np.isfinite(then)])
            same = np.allclose(now, then, near, near * float(np.max(finite, initial=0.0)), equal_nan=True)
        if not same:
            raise changed(name)


class LinearMap:
    """A linear function of a vector and of what else it is made of, by a function of the user's.

    Attributes
    ----------
    shown
        Whether solvers get what else it is made of.
    """

    def __init__(self, function: Function, name: str, shown: bool = True) -> None:
        self.function, self.name, self.shown = function, name, shown

    def __call__(self, v: Operand, *params: Operand) -> Tensor:
        """Return the product, differentiable by everything."""
        return self.function(v, *params)

    def at(self, *params: Operand) -> Any:
        """Return what gives products of plain vectors, of these plain values."""
        return lambda v: self.function(v, *params)

    def adjoint(self) -> LinearMap:
        """Return the transpose; of complex numbers, its conjugate."""
        return _Adjoint(self)


class _Adjoint(LinearMap):
    """The transpose of a linear function, by sweeps."""

    def __init__(self, of: LinearMap) -> None:
        super().__init__(of, of.name, of.shown)
        self.of = of

    def __call__(self, u: Any, *params: Operand) -> Tensor:
        recorded = is_grad_enabled()
        (found,) = transposed(lambda v: [self.of(v[0], *params)], [u], [u], recorded, self.name)
        return zeros(u.shape, u.dtype) if found is None else found

    def at(self, *params: Operand) -> Any:
        """Record the function once, for all products."""
        known = {}

        def product(u: Operand) -> np.ndarray:
            u = floats(u)
            if (u.shape, u.dtype) not in known:
                v = zeros(u.shape, u.dtype).requires_grad_()
                known[u.shape, u.dtype] = v, as_tensor(self.of(v, *params))
            v, y = known[u.shape, u.dtype]
            return pull(y, [v], u, False)[0]._v

        return product

    def adjoint(self) -> LinearMap:
        """Return what this is the transpose of."""
        return self.of


class _Matrix(LinearMap):
    """A matrix, or the transpose of one: an array or a Tensor, or what else has a product."""

    def __init__(self, name: str, transpose: bool = False) -> None:
        super().__init__(lambda v, matrix: self.at(matrix) @ v, name, False)
        self.transpose = transpose

    def at(self, *params: Any) -> Any:
        """Return the matrix."""
        (matrix,) = params
        if not self.transpose:
            return matrix
        return matrix.conj().T if hasattr(matrix, "conj") else matrix.H  # SciPy's operators have that alone

    def adjoint(self) -> LinearMap:
        """Return the transpose; of complex numbers, its conjugate."""
        return _Matrix(self.name, not self.transpose)


class System(Rule):
    """The solution of a linear system, as a function of the right-hand side and of what the matrix is of."""

    kind = type("LinearSolve", (Called,), {})

    def __init__(
        self,
        linear: LinearMap,
        solver: Function,
        transpose: Function | System | None,
        tol: float | None,
    ) -> None:
        self.linear, self.solver, self.transpose, self.tol = linear, solver, transpose, tol
        self.name = linear.name

    def run(self, args: Sequence[Operand], asked: bool, noting: bool) -> TensorOrArray:
        """Call the solver, and look at what it returned."""
        b, *params = args
        apply = self.linear.at(*params)
        given = copied((apply, b, *(params if self.linear.shown else ())))
        x = self.solver(*given)
        outside(flatten(x)[0], asked, self.name)
        x = value_of(x)
        if isinstance(x, tuple) or np.shape(x) != np.shape(b) or np.asarray(x).dtype.kind not in "fc":
            found = type(x).__name__ + ("" if isinstance(x, tuple) else f" {shapes_of([x])}")
            raise ShapeError(
                f"{self.name}: the linear solver returned {found} for a right-hand side of shape "
                f"{np.shape(b)}; return the solution alone, floats of that shape"
            )
        x = np.asarray(x)
        found = apply @ x if isinstance(self.linear, _Matrix) else apply(x)
        outside([found], asked, self.name)
        self._check(np.asarray(value_of(found)), np.asarray(b))
        return x[()]

    def _check(self, found: np.ndarray, b: np.ndarray) -> None:
        if found.shape != b.shape:
            raise ShapeError(
                f"{self.name}: the product with a vector of shape {b.shape} has shape {found.shape}; return "
                "one of the same shape"
            )
        with np.errstate(all="ignore"):
            gap, size = np.linalg.norm((found - b).ravel()), np.linalg.norm(b.ravel())
        if self.tol is not None and gap > self.tol * size:
            raise GradientError(
                f"{self.name}: what the linear solver returned is no solution: the residual has norm "
                f"{gap:.3g}, the right-hand side {size:.3g}, and tol is {self.tol:g} of that; let it solve "
                "the system that it is given, to that accuracy at least"
            )

    def adjoint(self) -> System:
        """Return the system of the transpose."""
        if isinstance(self.transpose, System):
            return self.transpose
        if self.transpose is None:
            raise GradientError(
                f"{self.name}: reverse mode solves with the transpose; pass symmetric=True where the matrix "
                "is symmetric, or transpose_solver=, which may be the solver where that uses its first two "
                "arguments alone"
            )
        return System(self.linear.adjoint(), self.transpose, self, self.tol)

    def note(self, at: Point) -> Any:
        """The product with a probe, and derivatives by what the matrix is of, of a user's function."""
        if type(self.linear) is not LinearMap or not self.linear.shown:
            return None
        tensors = [wrap(value_of(x)) for x in at.tensors]
        spots, ps = follow(tensors, [x.dtype.kind in "fc" for x in tensors], False)
        y = as_tensor(self.linear(wrap(probe(at.outs[0])), *at.call.args(ps)[1:]))
        slopes = pull(y, [ps[k] for k in spots], probe(y), False) if requires_grad(y) else []
        return [value_of(x) for x in (y, *slopes)]

    def _see_again(self, at: Point) -> None:
        if at.call.noted is not None:
            see_again(within(PLAIN, self.note, at), at.call.noted, self.name)

    def pull(self, at: Point, cts: Sequence[Any], needs: Sequence[bool]) -> Sequence[Any]:
        """Solve with the transpose."""
        self._see_again(at)
        recorded = is_grad_enabled()
        return within({**PLAIN, "recording": recorded}, self._pull, at.kept(recorded), cts, needs, recorded)

    def _pull(
        self, at: Point, cts: Sequence[Operand], needs: Sequence[bool], recorded: bool
    ) -> Sequence[Operand | None]:
        u = call(self.adjoint(), (cts[0], *at.args[1:]))
        found = [u] if at.call.spots[0] == 0 else []  # the right-hand side's
        first = len(found)
        if any(needs[first:]):
            spots, ps = follow(at.tensors, [k >= first and need for k, need in enumerate(needs)], recorded)
            y = within(PLAIN, self._product, at, ps)
            return replaced(
                [*found, *[None] * (len(ps) - first)], spots, pull(y, [ps[k] for k in spots], -u, recorded)
            )
        return [*found, *[None] * (len(needs) - first)]

    def _product(self, at: Point, tensors: Sequence[Tensor]) -> Tensor:
        """The matrix, of these Tensors, times the solution."""
        product: Tensor = as_tensor(self.linear(at.outs[0], *at.call.args(tensors)[1:]))
        return product

    def push(self, at: Point, tangents: Sequence[Any]) -> Sequence[Operand]:
        """Solve again, with what moves on the right-hand side."""
        self._see_again(at)
        return within({**PLAIN, "recording": is_grad_enabled()}, self._push, at, tangents)

    def _push(self, at: Point, tangents: Sequence[Any]) -> Sequence[Any]:
        right, rest = None, list(tangents)
        if at.call.spots[0] == 0:
            right, rest[0] = rest[0], None
        right = zeros(at.outs[0].shape, at.outs[0].dtype) if right is None else right
        if any(t is not None for t in rest):
            moved = push(at.tensors, rest, functools.partial(self._product, at)).tangent
            right = right if moved is None else right - moved
        return [call(self, (right, *at.args[1:]))]


def linear_solve(
    matrix: Any,
    b: TensorOrArray | float,
    *params: Operand,
    solver: Callable[..., Any] | None = None,
    transpose_solver: Callable[..., Any] | None = None,
    symmetric: bool = False,
    tol: float | None = LOOSE,
) -> TensorOrArray:
    """Solve a linear system with a solver of the user's, differentiable by both sides.

    Parameters
    ----------
    matrix : array_like, Tensor, sparse matrix, operator or callable
        An array or a Tensor; one of SciPy's sparse matrices and linear operators, which are constants; or
        ``matvec(v, *params)``, the product with a vector, written in NumPy's functions.
    b : array_like or Tensor
        The right-hand side.
    *params
        What the product depends on: numbers and arrays, Tensors, or trees of them.
    solver : callable, optional
        ``solver(matrix, b)``, or ``solver(matvec, b, *params)``, returns the solution; all it gets is plain,
        and `matvec` takes a vector alone. Reverse mode calls it with the transpose of a matrix, too. By
        default `numpy.linalg.solve`, for a function with the matrix of what it makes of unit vectors.
    transpose_solver : callable, optional
        ``transpose_solver(vecmat, b, *params)`` solves with the transpose of `matvec`; reverse mode
        needs it, or `symmetric`. A solver that uses the function only, no params, can be both.
    symmetric : bool, optional
        The matrix is symmetric; if complex, Hermitian.
    tol : float, optional
        The norm of the residual, relative to that of the right-hand side, above which a solution is none;
        None for no check.

    Returns
    -------
    ndarray or Tensor
        The solution, a Tensor if there are any among the arguments.

    Raises
    ------
    GradientError
        A solver returned what is no solution; reverse mode has no solver; `matvec` or a solver uses a Tensor
        that requires grad and is none of the params.
    ShapeError
        A solver or `matvec` returned another shape than that of the right-hand side.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> from scipy.linalg import solveh_banded
    >>> def product(v, diagonal, off):
    ...     above = np.concatenate([off * v[1:], np.zeros(1)])
    ...     return diagonal * v + above + np.concatenate([np.zeros(1), off * v[:-1]])
    >>> def solver(matvec, b, diagonal, off):
    ...     return solveh_banded(np.array([np.append(0.0, off), diagonal]), b)
    >>> d = tg.tensor([2.0, 3.0, 4.0], requires_grad=True)
    >>> x = tg.func.linear_solve(product, np.ones(3), d, np.ones(2), solver=solver, symmetric=True)
    >>> tg.grad(np.sum(x), d)
    (tensor([-0.1975, -0.0123, -0.0494]),)
    """
    if not callable(matrix) or hasattr(matrix, "shape"):  # as SciPy's operators have
        if params:
            raise TypeError(
                f"linear_solve: a matrix has no params, found {len(params)}; pass them to a function"
            )
        if solver is None:
            return np.linalg.solve(matrix, b)
        system = System(_Matrix("linear_solve"), solver, solver, tol)
        params = (matrix,)
    elif solver is None:
        return _by_units(matrix, b, params)
    else:
        name = f"linear_solve of {getattr(matrix, '__name__', type(matrix).__name__)}"
        system = System(LinearMap(matrix, name), solver, transpose_solver, tol)
    if symmetric:
        system.transpose = system
    return call(system, (b, *params))


def _by_units(matvec: Function, b: Operand, params: Sequence[Operand]) -> Any:
    """Solve with the matrix of a linear function."""
    like = floats(value_of(b))
    v = zeros(like.shape, like.dtype).requires_grad_()
    r = pack([as_tensor(matvec(v, *params))])
    right = pack([b if is_tensor(b) else as_tensor(like)])
    x = unpack(solve_dense(jacobian_of(r, [v], True), right, "linear_solve: the matrix"), [v])[0]
    plain = not requires_grad(x) and not any(is_tensor(y) for y in flatten([b, *params])[0])
    return x._v if plain else x
