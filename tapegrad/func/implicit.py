"""Solutions of equations as functions of what is in them: `root`, `fixed_point`, `minimizer`, `linear_solve`.

A solver of the user's finds x on plain values. Where F(x, p) = 0, F_x dx + F_p dp = 0: forward mode solves
with F_x, reverse mode with its transpose. What a derivative is computed from, x among it, has a history, so
the derivative is differentiated like anything else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.apply import as_tensor
from tapegrad.autograd.forward_ad import dual_level, make_dual, unpack_dual
from tapegrad.autograd.functional import _followed, grad_of_active
from tapegrad.core.base import is_tensor, requires_grad, value_of, wrap
from tapegrad.core.forward_mode import without_history
from tapegrad.core.grad_mode import is_grad_enabled, within
from tapegrad.errors import GradientError, ShapeError
from tapegrad.func.custom import PLAIN, Called, Point, Rule, call, is_recorded, outside, replaced, transposed
from tapegrad.func.trees import Structure, flatten, map_tree
from tapegrad.kernels import abi
from tapegrad.tensor import Tensor

__all__ = ["fixed_point", "linear_solve", "minimizer", "root"]

LOOSE = 1e-3  # to which part of the right-hand side a linear solver must be right


# ---------------------------------------------------------------- trees as vectors


def _pack(leaves: Sequence[Any], lanes: tuple[int, ...] = ()) -> Any:
    """One vector of all elements, real: imaginary parts come after the real ones of a leaf."""
    parts = [part for x in leaves for part in ((x.real, x.imag) if x.dtype.kind == "c" else (x,))]
    parts = [x if x.ndim == len(lanes) + 1 else x.reshape((*lanes, -1)) for x in parts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def _unpack(vector: Any, likes: Sequence[Any]) -> list[Any]:
    """Undo `_pack`."""
    found, at = [], 0
    for x in likes:
        parts = []
        for _ in range(1 + (x.dtype.kind == "c")):
            parts.append(vector[at : at + x.size].reshape(x.shape))
            at += x.size
        found.append((parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1]).astype(x.dtype))
    return found


def _floats(x: Any) -> np.ndarray:
    """Numbers as floats."""
    array = np.asarray(x)
    return array if array.dtype.kind in "fc" else array.astype(np.float64)


def _copied(tree: Any) -> Any:
    """A tree with arrays of its own, which may be written to."""
    return map_tree(lambda x: x.copy() if isinstance(x, np.ndarray) else x, tree)


def _elements(leaves: Sequence[Any]) -> int:
    """How many real numbers there are."""
    return sum(np.size(x) * (1 + (np.asarray(value_of(x)).dtype.kind == "c")) for x in leaves)


def _shapes(leaves: Sequence[Any]) -> str:
    """Shapes and dtypes, for an error."""
    return ", ".join(f"{np.shape(x)} {np.asarray(value_of(x)).dtype}" for x in leaves) or "nothing"


def _zeros(shape: tuple[int, ...], dtype: Any) -> Tensor:
    return wrap(np.zeros(shape, dtype) if shape else np.zeros(shape, dtype)[()])


# ---------------------------------------------------------------- both modes


def _pulled(r: Tensor, xs: Sequence[Tensor], ct: Any, recorded: bool, lanes: bool = False) -> list[Tensor]:
    """Cotangents of what a Tensor was computed from, zeros where it does not depend on it."""
    found = grad_of_active([r], tuple(xs), [ct], recorded, retain_graph=True, is_grads_batched=lanes)
    front = (len(ct),) if lanes else ()
    return [_zeros(front + x.shape, x.dtype) if g is None else g for x, g in zip(xs, found, strict=True)]


def _pushed(tensors: Sequence[Tensor], tangents: Sequence[Any], of: Callable[[Sequence[Tensor]], Any]) -> Any:
    """The value of a function, and its tangent, or None."""
    with dual_level():
        duals = [
            x if t is None or x.dtype.char not in abi.GRADIENT else make_dual(x, t)
            for x, t in zip(tensors, tangents, strict=True)
        ]
        return unpack_dual(as_tensor(of(duals)))


def _following(
    tensors: Sequence[Tensor], needs: Sequence[bool], recorded: bool
) -> tuple[list[int], list[Any]]:
    """Where Tensors are whose cotangents are needed; all, these such that they can be swept to."""
    spots = [k for k, need in enumerate(needs) if need]
    return spots, replaced(tensors, spots, _followed(tuple(tensors[k] for k in spots), recorded))


# ---------------------------------------------------------------- linear systems


def _jacobian(r: Tensor, xs: Sequence[Tensor], recorded: bool) -> Any:
    """The matrix of derivatives of a vector by others, all real."""
    units = np.eye(r.size, dtype=r.dtype)
    if r.size == 1:
        return _pack(_pulled(r, xs, units[0], recorded)).reshape((1, -1))
    return _pack(_pulled(r, xs, units, recorded, True), (r.size,))


def _solved(matrix: Any, b: Any, what: str) -> Any:
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


class _Map:
    """A linear function of a vector and of what else it is made of, by a function of the user's.

    Attributes
    ----------
    shown
        Whether solvers get what else it is made of.
    """

    def __init__(self, function: Callable[..., Any], name: str, shown: bool = True) -> None:
        self.function, self.name, self.shown = function, name, shown

    def __call__(self, v: Any, *params: Any) -> Any:
        """Return the product, differentiable by everything."""
        return self.function(v, *params)

    def at(self, *params: Any) -> Any:
        """Return what gives products of plain vectors, of these plain values."""
        return lambda v: self.function(v, *params)

    def adjoint(self) -> _Map:
        """Return the transpose; of complex numbers, its conjugate."""
        return _Adjoint(self)


class _Adjoint(_Map):
    """The transpose of a linear function, by sweeps."""

    def __init__(self, of: _Map) -> None:
        super().__init__(of, of.name, of.shown)
        self.of = of

    def __call__(self, u: Any, *params: Any) -> Any:
        recorded = is_grad_enabled()
        (found,) = transposed(lambda v: [self.of(v[0], *params)], [u], [u], recorded, self.name)
        return _zeros(u.shape, u.dtype) if found is None else found

    def at(self, *params: Any) -> Any:
        """Record the function once, for all products."""
        known: dict[Any, tuple[Tensor, Tensor]] = {}

        def product(u: Any) -> Any:
            u = _floats(u)
            if (u.shape, u.dtype) not in known:
                v = _zeros(u.shape, u.dtype).requires_grad_()
                known[u.shape, u.dtype] = v, as_tensor(self.of(v, *params))
            v, y = known[u.shape, u.dtype]
            return _pulled(y, [v], u, False)[0]._v

        return product

    def adjoint(self) -> _Map:
        """Return what this is the transpose of."""
        return self.of


class _Matrix(_Map):
    """A matrix, or the transpose of one: an array or a Tensor, or what else has a product."""

    def __init__(self, name: str, transpose: bool = False) -> None:
        super().__init__(lambda v, matrix: self.at(matrix) @ v, name, False)
        self.transpose = transpose

    def at(self, *params: Any) -> Any:
        """Return the matrix."""
        (matrix,) = params
        if not self.transpose:
            return matrix
        found = getattr(matrix, "H", None)
        return matrix.conj().T if found is None else found

    def adjoint(self) -> _Map:
        """Return the transpose; of complex numbers, its conjugate."""
        return _Matrix(self.name, not self.transpose)


class _System(Rule):
    """The solution of a linear system, as a function of the right-hand side and of what the matrix is of."""

    kind = type("LinearSolve", (Called,), {})

    def __init__(
        self,
        linear: _Map,
        solver: Callable[..., Any],
        transpose: Callable[..., Any] | _System | None,
        tol: float | None,
    ) -> None:
        self.linear, self.solver, self.transpose, self.tol = linear, solver, transpose, tol
        self.name = linear.name

    def run(self, args: Sequence[Any], asked: bool) -> Any:
        """Call the solver, and look at what it returned."""
        b, *params = args
        apply = self.linear.at(*params)
        given = _copied((apply, b, *(params if self.linear.shown else ())))
        x = self.solver(*given)
        outside(flatten(x)[0], asked, self.name)
        x = value_of(x)
        if isinstance(x, tuple) or np.shape(x) != np.shape(b) or np.asarray(x).dtype.kind not in "fc":
            found = type(x).__name__ + ("" if isinstance(x, tuple) else f" {_shapes([x])}")
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

    def adjoint(self) -> _System:
        """Return the system of the transpose."""
        if isinstance(self.transpose, _System):
            return self.transpose
        if self.transpose is None:
            raise GradientError(
                f"{self.name}: reverse mode solves with the transpose; pass symmetric=True where the matrix "
                "is symmetric, or transpose_solver=, which may be the solver where that uses its first two "
                "arguments alone"
            )
        return _System(self.linear.adjoint(), self.transpose, self, self.tol)

    def pull(self, at: Point, cts: Sequence[Any], needs: Sequence[bool]) -> Sequence[Any]:
        """Solve with the transpose."""
        recorded = is_grad_enabled()
        return within({**PLAIN, "recording": recorded}, self._pull, at.kept(recorded), cts, needs, recorded)

    def _pull(self, at: Point, cts: Sequence[Any], needs: Sequence[bool], recorded: bool) -> Sequence[Any]:
        u = call(self.adjoint(), (cts[0], *at.args[1:]))
        found = [u] if at.call.spots[0] == 0 else []  # the right-hand side's
        first = len(found)
        if any(needs[first:]):
            spots, ps = _following(
                at.tensors, [k >= first and need for k, need in enumerate(needs)], recorded
            )
            y = within(PLAIN, self._product, at, ps)
            return replaced(
                [*found, *[None] * (len(ps) - first)], spots, _pulled(y, [ps[k] for k in spots], -u, recorded)
            )
        return [*found, *[None] * (len(needs) - first)]

    def _product(self, at: Point, tensors: Sequence[Tensor]) -> Tensor:
        """The matrix, of these Tensors, times the solution."""
        product: Tensor = as_tensor(self.linear(at.outs[0], *at.call.args(tensors)[1:]))
        return product

    def push(self, at: Point, tangents: Sequence[Any]) -> Sequence[Any]:
        """Solve again, with what moves on the right-hand side."""
        return within({**PLAIN, "recording": is_grad_enabled()}, self._push, at, tangents)

    def _push(self, at: Point, tangents: Sequence[Any]) -> Sequence[Any]:
        right, rest = None, list(tangents)
        if at.call.spots[0] == 0:
            right, rest[0] = rest[0], None
        right = _zeros(at.outs[0].shape, at.outs[0].dtype) if right is None else right
        if any(t is not None for t in rest):
            moved = _pushed(at.tensors, rest, functools.partial(self._product, at)).tangent
            right = right if moved is None else right - moved
        return [call(self, (right, *at.args[1:]))]


# ---------------------------------------------------------------- equations


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
        function: Callable[..., Any],
        solve: Callable[..., Any],
        linear_solver: Callable[..., Any] | None,
        tol: float | None,
    ) -> None:
        for f, place in ((function, "first"), (solve, "second")):
            if not callable(f):
                raise TypeError(f"{self.what}: the {place} argument is a function, found {type(f).__name__}")
        self.function, self.solve, self.linear_solver, self.tol = function, solve, linear_solver, tol
        self.name = f"{self.what} of {getattr(function, '__name__', type(function).__name__)}"

    def residual(self, x: Any, params: Sequence[Any]) -> list[Any]:
        """Return what is 0 at the solution."""
        return flatten(self.function(x, *params))[0]

    def look(self, x: Any, params: Sequence[Any], asked: bool) -> None:
        """See that there are as many equations as unknowns, and nothing in them but x and the params."""
        found, leaves = self.residual(x, params), flatten(x)[0]
        outside(found, asked, self.name)
        if _elements(found) != _elements(leaves):
            raise ShapeError(
                f"{self.name}: as many equations as unknowns are needed; the residual has {_shapes(found)} "
                f"for x of {_shapes(leaves)}"
            )

    def run(self, args: Sequence[Any], asked: bool) -> Any:
        """Call the solver, and look at what it returned."""
        given = args if self.tol is None else _copied(args)
        leaves, structure = flatten(self.solve(*given))
        outside(leaves, asked, self.name)
        x = structure.build([self._unknown(y) for y in leaves])
        self.look(_copied(x), args, asked)
        if self.tol is not None:
            self._check(_copied(x), args, self.tol)
        return x

    def _unknown(self, y: Any) -> Any:
        """An element of what the solver returned, as floats."""
        value = value_of(y)
        kind = np.asarray(value).dtype.kind
        if kind not in "iufc":
            raise TypeError(
                f"{self.name}: the solver returned {type(y).__name__} {_shapes([y])} in x; return floats, "
                "arrays of them, or a tree of those"
            )
        return value if kind in "fc" else _floats(value)[()]

    def _check(self, x: Any, args: Sequence[Any], tol: float) -> None:
        sizes = [np.max(np.abs(value_of(y)), initial=0.0) for y in self.residual(x, args)]
        norm = float(max(sizes, default=0.0))
        if not norm <= tol:
            raise GradientError(
                f"{self.name}: what the solver returned is no solution: the largest residual is {norm:.3g}, "
                f"and tol is {tol:g}; let the solver go on, or pass another tol"
            )

    def vector(self, at: Point, xs: Sequence[Any], tensors: Sequence[Any]) -> Tensor:
        """Return the residual as one vector, of these Tensors."""
        leaves = self.residual(at.call.out(xs), at.call.args(tensors))
        vector: Tensor = as_tensor(_pack([y if is_tensor(y) else _floats(y) for y in leaves]))
        return vector

    def pull(self, at: Point, cts: Sequence[Any], needs: Sequence[bool]) -> Sequence[Any]:
        """Solve with the transpose of the derivative by x."""
        recorded = is_grad_enabled()
        return within(PLAIN, self._pull, at.kept(recorded), cts, needs, recorded)

    def _pull(self, at: Point, cts: Sequence[Any], needs: Sequence[bool], recorded: bool) -> Sequence[Any]:
        xs = _followed(tuple(at.outs), recorded)
        spots, ps = _following(at.tensors, needs, recorded)
        wanted = [ps[k] for k in spots]
        r, ct = self.vector(at, xs, ps), _pack(cts)
        if r.size == 1:  # one sweep will do
            parts = _pulled(r, [*xs, *wanted], np.ones(1, r.dtype), recorded)
            scale = -_solved(_pack(parts[: len(xs)]).reshape((1, 1)), ct, self._matrix()).reshape(())
            found = [g * scale for g in parts[len(xs) :]]
        else:
            found = _pulled(r, wanted, -self._solved(at, r, xs, ct, True, recorded), recorded)
        return replaced([None] * len(ps), spots, found)

    def push(self, at: Point, tangents: Sequence[Any]) -> Sequence[Any]:
        """Solve with the derivative by x."""
        recorded = is_recorded((*at.tensors, *tangents))
        if not recorded:
            tangents = [None if t is None else without_history(t) for t in tangents]
        return within(PLAIN, self._push, at.kept(recorded), tangents, recorded)

    def _push(self, at: Point, tangents: Sequence[Any], recorded: bool) -> Sequence[Any]:
        xs = _followed(tuple(at.outs), recorded)
        r, moved = _pushed(at.tensors, tangents, functools.partial(self.vector, at, xs))
        if moved is None:
            return [None] * len(at.outs)
        moved = moved if recorded else without_history(moved)  # xs are leaves
        return _unpack(self._solved(at, r, xs, -moved, False, recorded), at.outs)

    def _matrix(self) -> str:
        return f"{self.name}: the derivative of the equations by x"

    def _solved(
        self, at: Point, r: Tensor, xs: Sequence[Tensor], b: Any, transpose: bool, recorded: bool
    ) -> Any:
        """Solve with the derivative of the equations by x, or with its transpose."""
        if not r.size:
            return b
        if self.linear_solver is None or r.size == 1:
            matrix = _jacobian(r, xs, recorded)
            return _solved(matrix.T if transpose else matrix, b, self._matrix())
        system = _System(_Pullback(self, at), self.linear_solver, self.linear_solver, LOOSE)
        if self.symmetric:
            system.transpose = system
        elif not transpose:
            system = system.adjoint()
        return within({"recording": recorded}, call, system, (b, at.outs, at.tensors))


class _Pullback(_Map):
    """A vector times the derivative of equations by x, of x and of what else is in them."""

    def __init__(self, equations: _Equations, at: Point) -> None:
        super().__init__(self._product, equations.name, False)
        self.equations, self.point = equations, Point(at.call, (), ())

    def _product(self, u: Any, *params: Any) -> Any:
        r, xs = self._residual(*params)
        return _pack(_pulled(r, xs, u, True))

    def at(self, *params: Any) -> Any:
        """Record the equations once, for all products."""
        r, xs = self._residual(*params)
        return lambda u: _pack(_pulled(r, xs, _floats(u), False))._v

    def _residual(self, outs: Sequence[Any], tensors: Sequence[Any]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The equations as a vector, and the Tensors of x that they were computed from."""
        xs = _followed(tuple(map(as_tensor, outs)), True)
        return within(PLAIN, self.equations.vector, self.point, xs, tensors), xs


class _FixedPoint(_Equations):
    """Of x = function(x, *params)."""

    what = "fixed_point"
    kind = type("FixedPoint", (Called,), {})

    def residual(self, x: Any, params: Sequence[Any]) -> list[Any]:
        """Return the difference of both sides."""
        leaves, structure = flatten(x)
        found, theirs = flatten(self.function(x, *params))
        if theirs != structure or [np.shape(y) for y in found] != [np.shape(y) for y in leaves]:
            raise ShapeError(
                f"{self.name}: the function returned {_shapes(found)} for x of {_shapes(leaves)}; let it "
                "return what is like x"
            )
        return [a - b for a, b in zip(leaves, found, strict=True)]


class _Minimizer(_Equations):
    """Of a gradient that is 0."""

    what = "minimizer"
    symmetric = True
    kind = type("Minimizer", (Called,), {})

    def residual(self, x: Any, params: Sequence[Any]) -> list[Any]:
        """Return the gradient of the objective."""
        leaves, structure = flatten(x)
        xs = _followed(tuple(map(as_tensor, leaves)), True)
        return list(_pulled(as_tensor(self._objective(structure, xs, params)), xs, np.ones(()), True))

    def _objective(self, structure: Structure, xs: Sequence[Any], params: Sequence[Any]) -> Any:
        value = self.function(structure.build(xs), *params)
        if np.size(value) != 1 or np.asarray(value_of(value)).dtype.kind != "f":
            raise ShapeError(f"{self.name}: the objective is one real number, found {_shapes([value])}")
        return np.reshape(value, ())

    def look(self, x: Any, params: Sequence[Any], asked: bool) -> None:
        """See that the objective is a number, and nothing in it but x and the params."""
        leaves, structure = flatten(x)
        outside([self._objective(structure, leaves, params)], asked, self.name)


# ---------------------------------------------------------------- what is public


def _solution(system: _Equations) -> Callable[..., Any]:
    @functools.wraps(system.solve)
    def solved(*params: Any) -> Any:
        return call(system, params)

    return solved


def root(
    residual: Callable[..., Any],
    solve: Callable[..., Any],
    *,
    linear_solver: Callable[..., Any] | None = None,
    tol: float | None = None,
) -> Callable[..., Any]:
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
    function: Callable[..., Any],
    solve: Callable[..., Any],
    *,
    linear_solver: Callable[..., Any] | None = None,
    tol: float | None = None,
) -> Callable[..., Any]:
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
    objective: Callable[..., Any],
    solve: Callable[..., Any],
    *,
    linear_solver: Callable[..., Any] | None = None,
    tol: float | None = None,
) -> Callable[..., Any]:
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


def linear_solve(
    matrix: Any,
    b: Any,
    *params: Any,
    solver: Callable[..., Any] | None = None,
    transpose_solver: Callable[..., Any] | None = None,
    symmetric: bool = False,
    tol: float | None = LOOSE,
) -> Any:
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
        system = _System(_Matrix("linear_solve"), solver, solver, tol)
        params = (matrix,)
    elif solver is None:
        return _by_units(matrix, b, params)
    else:
        name = f"linear_solve of {getattr(matrix, '__name__', type(matrix).__name__)}"
        system = _System(_Map(matrix, name), solver, transpose_solver, tol)
    if symmetric:
        system.transpose = system
    return call(system, (b, *params))


def _by_units(matvec: Callable[..., Any], b: Any, params: Sequence[Any]) -> Any:
    """Solve with the matrix of a linear function."""
    like = _floats(value_of(b))
    v = _zeros(like.shape, like.dtype).requires_grad_()
    r = _pack([as_tensor(matvec(v, *params))])
    right = _pack([b if is_tensor(b) else as_tensor(like)])
    x = _unpack(_solved(_jacobian(r, [v], True), right, "linear_solve: the matrix"), [v])[0]
    plain = not requires_grad(x) and not any(is_tensor(y) for y in flatten([b, *params])[0])
    return x._v if plain else x
