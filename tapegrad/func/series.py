"""Power series of functions of numbers and arrays: Taylor coefficients, derivatives of any order, jets."""

from __future__ import annotations

import functools
import math
import operator
import weakref
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from tapegrad.core.base import has_tangent, requires_grad
from tapegrad.core.dispatch import as_tape_value
from tapegrad.core.series import Expansion, Series
from tapegrad.errors import DTypeError, ShapeError
from tapegrad.func import recorded_series
from tapegrad.func.calls import on_tensors
from tapegrad.func.signatures import Function
from tapegrad.func.trees import Tree, flatten, map_tree
from tapegrad.native.loading import load
from tapegrad.numpy_api.shapes import stack
from tapegrad.tensor import Operand, TensorOrArray, alias_of, is_tensor, wrap

if TYPE_CHECKING:
    from tapegrad.tensor import Tensor

__all__ = ["derivative", "jet", "taylor"]


def taylor(f: Function, order: int, argnums: int | Sequence[int] = 0) -> Function:
    """Return a function of the power series of ``t -> f(x + t v)`` at 0.

    Parameters
    ----------
    f : callable
        In NumPy's functions, of numbers, arrays, Tensors and trees of those, with such a result; or a
        function compiled by `tapegrad.njit` or `numba.njit`, whose result is a number.
    order : int
        The highest power; from 1 on.
    argnums : int or sequence of int, optional
        The arguments that move.

    Returns
    -------
    callable
        Of the arguments of `f` and, last, a direction `v` shaped as the argument, or a tuple of them for
        several `argnums`: the coefficients from power 0 to `order`, along a new first axis of each result;
        the derivative of order k is k! times that of power k. Of a compiled function it is compiled. Results
        are arrays, or Tensors where an argument is one or the function reads others that have a history:
        those can be differentiated further.

    Raises
    ------
    GradientError
        The function applies one with rules of its own (`tapegrad.autograd.Function`).

    Notes
    -----
    `f` may be called twice: it is recorded, and where its records cannot be followed in compiled code, run on
    power series. Where it steps or branches, the series is that of the piece at t = 0. What it computes under
    `tapegrad.no_grad` moves, as tangents do; what it detaches is constant.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> tg.func.taylor(lambda x: x**3, 4)(2.0, 1.0)
    array([ 8., 12.,  6.,  1.,  0.])
    >>> @tg.njit
    ... def cube(x):
    ...     return x**3
    >>> tg.func.taylor(cube, 4)(2.0, 1.0)
    array([ 8., 12.,  6.,  1.,  0.])
    """
    if is_compiled(f):
        found = load("derivatives.derivative").taylor(f, order, argnums)
        of_tensors = taylor(functools.partial(on_tensors(f, "taylor")), order, argnums)
        return found.beside(of_tensors)
    highest = _whole(order, "taylor: order", 1)
    places = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if not places or any(not isinstance(k, int) or k < 0 for k in places) or len({*places}) != len(places):
        raise ValueError(f"argnums is a position, or several different ones, from 0; found {argnums!r}")

    least = max(places) + 1

    @functools.wraps(f)
    def series(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= least:
            raise TypeError(
                f"taylor: {least} or more arguments and a direction are wanted, found {len(args)} arguments"
            )
        *given, v = args
        if isinstance(argnums, int) and not kwargs:
            found = recorded_series.expand(f, given, argnums, v, highest)
            if found is not None:
                return found
        directions = (v,) if isinstance(argnums, int) else v
        if len(directions) != len(places):
            raise ValueError(f"taylor: {len(places)} arguments move, found {len(directions)} directions")
        terms = {k: [w] for k, w in zip(places, directions, strict=True)}
        return map_tree(_joined, _expand(f, given, kwargs, terms, highest, "taylor"))

    return series


_orders: weakref.WeakKeyDictionary[Function, int] = weakref.WeakKeyDictionary()  # of derivatives


def derivative(f: Function, n: int = 1) -> Function:
    """Return the n-th derivative of a function of a number, by one power series.

    Parameters
    ----------
    f : callable
        Of a number and perhaps further arguments, which do not move.
    n : int, optional
        The order; 0 is the function.

    Returns
    -------
    callable
        Of the arguments of `f`: the derivative by the first. Of an array it is that of ``t -> f(x + t)``:
        where f takes each element for itself, the derivative at each.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> tg.func.derivative(lambda x: x**4, 3)(2.0)
    48.0
    """
    order = _whole(n, "derivative: n", 0)
    if type(f) is FunctionType and f in _orders:  # one series of higher order, not series of series
        return derivative(f.__wrapped__, order + _orders[f])  # type: ignore[attr-defined]
    if is_compiled(f):
        if not order:
            return f
        series = taylor(f, order)

        def of_compiled(*args: Any) -> Any:
            return _plain(series(*args, 1.0)[order], math.factorial(order))

        _orders[of_compiled] = order
        return functools.wraps(f)(of_compiled)

    @functools.wraps(f)
    def function(x: Operand, *args: Any, **kwargs: Any) -> Operand:
        if order and not kwargs:
            one = np.ones(x.shape) if type(x) is np.ndarray else 1.0
            quick = recorded_series.expand(f, [x, *args], 0, one, order)
            if quick is not None:
                return _plain(quick[order], math.factorial(order))
        ones = map_tree(lambda leaf: np.ones(np.shape(leaf)), x)
        found = _expand(f, [x, *args], kwargs, {0: [ones]}, max(order, 1), "derivative")
        return map_tree(lambda terms: _plain(terms.at(order), math.factorial(order)), found)

    _orders[function] = order
    return function


def jet(
    f: Callable[..., Any], primals: Sequence[Operand], series: Sequence[Sequence[Any]]
) -> tuple[Tree, list[Tree]]:
    """Push derivatives of a curve through a function, as ``jax.experimental.jet.jet`` does.

    Parameters
    ----------
    f : callable
        A function in NumPy's functions.
    primals : sequence
        Its arguments: where the curve ``x(t)`` is at 0.
    series : sequence of sequences
        For each argument the derivatives of the curve, of order 1, 2, ... (not divided by factorials);
        as many for each.

    Returns
    -------
    tuple
        ``f(x(0))``, and the derivatives of ``f(x(t))`` at 0, of order 1, 2, ...

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> tg.func.jet(np.exp, (0.0,), ((1.0, 0.0, 0.0),))
    (1.0, [1.0, 1.0, 1.0])
    """
    primals = list(primals)
    try:
        orders = {len(terms) for terms in series}
    except TypeError:
        raise TypeError(
            "jet takes a tuple of arguments and a list of derivatives for each: jet(f, (x,), ([v, w],))"
        ) from None
    if len(series) != len(primals) or len(orders) != 1 or 0 in orders:
        raise ValueError(
            f"jet: {len(primals)} arguments and derivatives of as many orders for each are wanted, "
            f"found those of orders {[len(terms) for terms in series]}"
        )
    (order,) = orders
    given = {
        k: [map_tree(_over(math.factorial(j)), c) for j, c in enumerate(terms, 1)]
        for k, terms in enumerate(series)
    }
    found = _expand(f, primals, {}, given, order, "jet")
    value, *others = (
        map_tree(lambda terms, k=k: _plain(terms.at(k), math.factorial(k)), found) for k in range(order + 1)
    )
    return value, others


def is_compiled(f: Any) -> bool:
    """Whether a function is one of Numba's, or of `tapegrad.njit`."""
    return hasattr(type(f), "_numba_type_")


def _whole(n: int, what: str, least: int) -> int:
    try:
        found = operator.index(n)
    except TypeError:
        found = least - 1
    if found < least or isinstance(n, bool):
        raise ValueError(f"{what} is a whole number from {least}, found {n!r}")
    return found


def _over(number: int) -> Callable[[Any], Any]:
    return lambda c: c / number if is_tensor(c) else np.asarray(c) / number


class _Terms:
    """The coefficients of a number or an array of a result.

    Attributes
    ----------
    y
        What the function gave.
    level
        The level of its series.
    plain
        Whether no argument was a Tensor.
    """

    def __init__(self, y: Any, level: Expansion, plain: bool) -> None:
        varies = is_tensor(y) and has_tangent(y) and y._at.level is level
        value = y._v if is_tensor(y) else np.asarray(y)
        zeros = np.zeros(np.shape(value), np.result_type(value, np.float32))
        if varies:
            self.terms = [y._at.at(k) for k in range(level.order + 1)]
        else:
            self.terms = [y, *[None] * level.order]
        self.terms = [zeros if c is None else c for c in self.terms]
        if plain and not any(is_tensor(c) and requires_grad(c) for c in self.terms):
            self.terms = [c._v if is_tensor(c) else c for c in self.terms]

    def at(self, k: int) -> TensorOrArray:
        return self.terms[k]


def _joined(terms: _Terms) -> TensorOrArray:
    """All coefficients along a new axis."""
    if any(is_tensor(c) for c in terms.terms):
        return stack(terms.terms)
    return np.array(terms.terms)


def _plain(term: TensorOrArray, factor: int) -> TensorOrArray | complex:
    """A coefficient times a number; a number of Python's if it has no axes."""
    found = term * float(factor)
    return found.item() if not is_tensor(found) and np.ndim(found) == 0 else found


def _expand(
    f: Function, args: Sequence[Tree], kwargs: dict[str, Any], series: dict[int, Any], order: int,
    what: str,
) -> Tree:  # fmt: skip
    """Return a tree of coefficients of what a function makes of arguments that are series.

    `series` has the coefficients from power 1 on for each argument that moves, by place: trees as it is.
    """
    plain = not any(is_tensor(x) for x in flatten([args, kwargs, list(series.values())])[0])
    level, given = Expansion(order), list(args)
    try:
        level.open()
        for k, terms in series.items():
            given[k] = map_tree(functools.partial(_series, level, f"{what}: argument {k}"), args[k], *terms)
        return map_tree(lambda y: _Terms(y, level, plain), f(*given, **kwargs))
    finally:
        level.close()


def _series(level: Expansion, what: str, x: Operand, *terms: Operand) -> Tensor:
    """A Tensor that carries a series, of a number or an array and its coefficients from power 1 on."""
    primal = _operand(x, what)
    dtype, known = primal.dtype, []
    for term in terms:
        c = _operand(term, what)
        if c.shape != primal.shape:
            raise ShapeError(
                f"{what}: a direction of shape {c.shape} for an argument of shape {primal.shape}"
            )
        if c.dtype.kind == "c" and dtype.kind != "c":
            raise DTypeError(f"{what} of dtype {dtype}: a direction of dtype {c.dtype}")
        known.append(c if c.dtype == dtype else c.astype(dtype))
    found: Any = Series(level, primal, known).handle()
    return found


def _operand(x: Operand, what: str) -> Tensor:
    """A Tensor of its own memory, of floating-point or complex numbers."""
    if is_tensor(x):
        if x.dtype.kind not in "fc":
            raise DTypeError(f"{what} has dtype {x.dtype}; use floating-point or complex numbers")
        return alias_of(x)
    value = np.array(x)
    if value.dtype.kind in "iu":
        value = value.astype(np.float64)
    if value.dtype.kind not in "fc":
        raise DTypeError(f"{what} is {type(x).__name__} of dtype {value.dtype}; numbers or arrays are wanted")
    return wrap(as_tape_value(value))
