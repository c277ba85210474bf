"""Solutions of equations as functions of what is in them: `root`, `fixed_point`, `minimizer`.

A solver of the user's finds x on plain values. Where F(x, p) = 0, F_x dx + F_p dp = 0: forward mode solves
with F_x, reverse mode with its transpose. What a derivative is computed from, x among it, has a history, so
the derivative is differentiated like anything else.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.apply import as_tensor
from tapegrad.autograd.functional import _followed
from tapegrad.autograd.steps import import_of, key_of, leave_tape, sources_of
from tapegrad.autograd.sweeps import partials
from tapegrad.core.base import has_tangent, requires_grad, value_of
from tapegrad.core.grad_mode import is_grad_enabled, within
from tapegrad.engine.plan import Key
from tapegrad.errors import GradientError, ShapeError
from tapegrad.func.custom import PLAIN, Called, Point, Rule, call, is_recorded, outside, replaced
from tapegrad.func.linear_systems import (
    LOOSE,
    LinearMap,
    System,
    changed,
    jacobian_of,
    probe,
    see_again,
    solve_dense,
)
from tapegrad.func.signatures import Function
from tapegrad.func.trees import Structure, Tree, flatten
from tapegrad.func.vectors import copied, count_elements, floats, follow, pack, pull, push, shapes_of, unpack
from tapegrad.tape.tape import current
from tapegrad.tensor import Operand, Tensor, TensorOrArray, alias_of, is_tensor, without_history

__all__ = ["crossing", "fixed_point", "minimizer", "root"]


class _Uses(Exception):
    """Equations use Tensors that are none of the params: the solution, and these, by their keys on tapes."""

    def __init__(self, x: Tree, others: dict[Key, Tensor]) -> None:
        self.x, self.others = x, others


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

    Attributes
    ----------
    reach
        How long Newton's step from the root of one equation may be; None where that is not looked at.
    others
        Tensors that the equations use from outside: such a system is called with the params and a list of
        these, which are operands of the record as any; equations that are evaluated again find them where
        they were found first.
    """

    what = "root"
    symmetric = False
    kind = type("Root", (Called,), {})
    others: dict[Key, Tensor] = {}  # noqa: RUF012
    reach: float | None = None

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

    def look(self, x: Tree, params: Sequence[Tree]) -> Sequence[TensorOrArray]:
        """See that there are as many equations as unknowns; returns what is computed of x and the params."""
        found, leaves = self.residual(x, params), flatten(x)[0]
        if count_elements(found) != count_elements(leaves):
            raise ShapeError(
                f"{self.name}: as many equations as unknowns are needed; the residual has {shapes_of(found)} "
                f"for x of {shapes_of(leaves)}"
            )
        return found

    def using(self, x: Tree, others: dict[Key, Tensor]) -> _Equations:
        """Return the same equations, whose solution is known, with Tensors that they use from outside."""
        found = copy.copy(self)
        found.solve, found.others = lambda *_: x, others
        return found

    def _see_others(self, outs: Sequence[Any], begin: int, known: list[Key], x: Tree) -> None:
        """See whether there is more in what was recorded than is known: raises `_Uses` then."""
        if any(map(has_tangent, outs)):
            outside(outs, True, self.name)
        others = _sources([y for y in outs if requires_grad(y)], begin, known)
        if others and self.linear_solver is not None:
            outside(list(others.values()), True, self.name)
        if others:
            raise _Uses(x, others)

    def _look(self, x: Tree, params: Sequence[Tree], asked: bool) -> None:
        """Evaluate the equations at the solution, where no param is a Tensor."""
        leave_tape()
        begin = current().serial
        try:
            found = self.look(copied(x), params)
            outside(found, False, self.name)
            if asked:
                self._see_others(found, begin, [], x)
        finally:
            leave_tape()

    def run(self, args: Sequence[Any], asked: bool, noting: bool) -> Any:
        """Call the solver, and look at what it returned."""
        if self.others:
            return self.solve()
        given = args if self.tol is None else copied(args)
        found = self.solve(*given)
        if found is None:
            raise TypeError(f"{self.name}: the solver returned None; does it lack its return?")
        leaves, structure = flatten(found)
        outside(leaves, asked, self.name)
        x = structure.build([self._unknown(y) for y in leaves])
        if self.tol is not None:
            self._check(copied(x), args, self.tol)
        if not noting:
            self._look(x, args, asked)
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
        args = at.call.args(tensors)
        leaves = self.residual(at.call.out(xs), args[0] if self.others else args)
        vector: Tensor = as_tensor(pack([y if is_tensor(y) else floats(y) for y in leaves]))
        return vector

    def pull(self, at: Point, cts: Sequence[Any], needs: Sequence[bool]) -> Sequence[Any]:
        """Solve with the transpose of the derivative by x."""
        recorded = is_grad_enabled()
        pull = self._pull_to_others if self.others else self._pull
        return within(PLAIN, pull, at.kept(recorded), cts, needs, recorded)

    def _pull_to_others(
        self, at: Point, cts: Sequence[Operand], needs: Sequence[bool], recorded: bool
    ) -> Sequence[Operand | None]:
        """As `_pull`, also to Tensors from outside: each with all others held fixed."""
        n = len(at.tensors) - len(self.others)
        xs = _followed(tuple(at.outs), recorded)
        spots, ps = follow(at.tensors[:n], needs[:n], recorded)
        leave_tape()
        begin = current().serial
        try:
            r = self.vector(at, xs, [*ps, *at.tensors[n:]])
            mine = [key_of(x) for x in (*xs, *ps) if requires_grad(x)]
            if _sources([r], begin, [*mine, *self.others]):
                raise changed(self.name)
            keys = [*(key_of(ps[k]) for k in spots), *self.others]
            places = [*spots, *range(n, len(at.tensors))]
            slopes = partials([(r, probe(r))], [*map(key_of, xs), *keys], begin, retain=True)
            self._compare(at, xs, places, [slopes.get(key) for key in (*map(key_of, xs), *keys)])
            v = -self._solved(at, r, xs, pack(cts), True, recorded)
            found = partials([(r, v if recorded else value_of(v))], keys, begin, recorded)
        finally:
            leave_tape()
        parts: list[Any] = [found.get(key) for key in keys]
        return replaced([None] * len(at.tensors), places, parts)

    def note(self, at: Point) -> list[np.ndarray | None]:
        """Derivatives of the equations along a probe, by x and by the Tensors: equations are called again."""
        n = len(at.tensors) - len(self.others)
        tensors = at.tensors[:n]
        xs = _followed(tuple(at.outs), False)
        _, ps = follow(tensors, [x.dtype.kind in "fc" for x in tensors], False)
        leave_tape()
        begin = current().serial
        try:
            r, plain = self.vector(at, xs, [*ps, *at.tensors[n:]]), at.call.out([x._v for x in at.outs])
            if r.size != count_elements(at.outs):
                self.look(plain, at.call.args([x._v for x in tensors]))  # refuses
            mine = [key_of(x) if requires_grad(x) else None for x in (*xs, *ps)]
            if not self.others:
                self._see_others([r], begin, [key for key in mine if key is not None], plain)
            if not requires_grad(r):
                return [None] * (len(xs) + len(at.tensors))
            keys = [*mine, *self.others]
            slopes = partials([(r, probe(r))], [key for key in keys if key is not None], begin)
            found = [None if key is None else value_of(slopes.get(key)) for key in keys]
            if self.reach is not None and found[0] is not None:
                self._see_step(value_of(r) * probe(r), value_of(pack(xs)), found[0], self.reach)
            return found
        finally:
            leave_tape()

    def _see_step(self, off: np.ndarray, x: np.ndarray, slope: np.ndarray, reach: float) -> None:
        """See that Newton's step from the root of one equation is short: from a jump across 0 it is long."""
        if np.all(np.abs(off) > reach * np.maximum(1.0, np.abs(x)) * np.abs(slope)):
            raise GradientError(
                f"{self.name}: the function changes its sign at {x[0]:.6g} without being 0, as at a jump, "
                "whose place its derivatives do not tell; write that as a function of what it depends on, or "
                "detach() what requires grad for the value"
            )

    def _compare(
        self, at: Point, xs: Sequence[Tensor], places: Sequence[int], slopes: Sequence[Operand | None]
    ) -> None:
        """See that derivatives along the probe, by x and some of the Tensors, are those that were noted."""
        known: list[Any] = at.call.noted
        wanted = [*known[: len(xs)], *(known[len(xs) + k] for k in places)]
        see_again(slopes, wanted, self.name)

    def _pull(
        self, at: Point, cts: Sequence[Operand], needs: Sequence[bool], recorded: bool
    ) -> Sequence[Operand | None]:
        xs = _followed(tuple(at.outs), recorded)
        spots, ps = follow(at.tensors, needs, recorded)
        wanted = [ps[k] for k in spots]
        r, ct = self.vector(at, xs, ps), pack(cts)
        is_one = r.size == 1  # then one sweep will do
        parts = pull(r, [*xs, *wanted], probe(r), recorded and is_one)
        self._compare(at, xs, spots, parts)
        if is_one:
            scale = -solve_dense(pack(parts[: len(xs)]).reshape((1, 1)), ct, self._matrix()).reshape(())
            found = [g * scale for g in parts[len(xs) :]]
        else:
            found = pull(r, wanted, -self._solved(at, r, xs, ct, True, recorded), recorded)
        return replaced([None] * len(ps), spots, found)

    def push(self, at: Point, tangents: Sequence[Any]) -> Sequence[Operand]:
        """Solve with the derivative by x."""
        if self.others:
            raise GradientError(
                f"{self.name}: forward mode has no derivative by Tensors that the equations use from "
                "outside; pass them as arguments"
            )
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
        self._compare(at, xs, (), pull(r, xs, probe(r), False))
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


def _sources(outs: Sequence[Any], begin: int, known: list[Key]) -> dict[Key, Tensor]:
    """What Tensors on tapes from a serial on depend on besides what is known."""
    found = {key: (where, k) for key, where, k in sources_of(outs, begin, known)}
    if not found:  # mostly; else something on these tapes depends on them, as what a solver recorded
        return {}
    met = partials([(y, probe(y)) for y in outs], [*found], begin, retain=True)
    return {
        key: alias_of(where) if k < 0 else import_of(where, k, key)
        for key, (where, k) in found.items()
        if met.get(key) is not None
    }


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

    def look(self, x: Tree, params: Sequence[Tree]) -> Sequence[TensorOrArray]:
        """See that the objective is a number; returns it."""
        leaves, structure = flatten(x)
        return [self._objective(structure, leaves, params)]


def _solution(system: _Equations) -> Function:
    @functools.wraps(system.solve)
    def solved(*params: Any) -> Tree:
        try:
            return call(system, params)
        except _Uses as found:
            return call(system.using(found.x, found.others), (params, list(found.others.values())))

    return solved


def root(
    residual: Function,
    solve: Function,
    *,
    linear_solver: Function | None = None,
    tol: float | None = None,
) -> Function:
    """Return a function that solves equations, differentiable by what is in them.

    That is params and, in reverse mode without a `linear_solver`, Tensors that `residual` uses from outside.

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
        The function called: `solve` uses a Tensor that requires grad, or `residual` one that carries a
        tangent, and is none of the params; the residual is larger than `tol`. In a derivative: the derivative
        by x is singular; `residual`, which is called again, is another function by now.
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


def crossing(residual: Function, solve: Function, reach: float) -> Function:
    """As `root`, of one equation, whose solver looks for a change of sign: jumps across 0 are refused."""
    system = _Equations(residual, solve, None, None)
    system.reach = reach
    return _solution(system)


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
