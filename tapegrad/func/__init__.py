"""Derivatives as functions of compiled functions, callable from Python and from compiled code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tapegrad.func.custom import custom_jvp, custom_vjp
from tapegrad.func.implicit import fixed_point, linear_solve, minimizer, root
from tapegrad.func.series import derivative, jet, taylor
from tapegrad.func.sparse import sparse_hessian, sparse_jacobian
from tapegrad.native import checkpoint_loop, load

__all__ = [
    "checkpoint_loop", "custom_jvp", "custom_vjp", "derivative", "fixed_point", "grad", "hessian", "hvp",
    "jacobian", "jet", "jvp", "linear_solve", "minimizer", "root", "sparse_hessian", "sparse_jacobian",
    "taylor",
    "value_and_grad",
]  # fmt: skip


def __dir__() -> list[str]:
    """Show what is exported, not the modules that it comes from."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


def value_and_grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Return a compiled function of the value and the gradient of a compiled function.

    Nothing of it is Python: a Newton or Monte-Carlo loop around it can be compiled whole.

    Parameters
    ----------
    f : function compiled by `tapegrad.njit` or `numba.njit`
        Its result is a number.
    argnums : int or sequence of int, optional
        The arguments, floats or arrays of floats, that it is differentiated by.

    Returns
    -------
    callable
        Of the arguments of `f`: its value and the gradient, a tuple of gradients for several `argnums`.

    Raises
    ------
    TypeError
        What is given is not compiled, or called with Tensors.
    UnsupportedOpError
        At the first call, where a line of the function cannot be recorded.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> @tg.njit
    ... def loss(x):
    ...     s = 0.0
    ...     for v in x:
    ...         s += v * v
    ...     return s
    >>> tg.func.value_and_grad(loss)(np.array([1.0, 2.0]))
    (5.0, array([2., 4.]))
    """
    return load("derivative").value_and_grad(f, argnums)


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Return a compiled function of the gradient of a compiled function; see `value_and_grad`.

    Parameters
    ----------
    f : function compiled by `tapegrad.njit` or `numba.njit`
        Its result is a number.
    argnums : int or sequence of int, optional
        The arguments that it is differentiated by.

    Returns
    -------
    callable
        Of the arguments of `f`: the gradient, a tuple of gradients for several `argnums`.

    Examples
    --------
    >>> import tapegrad as tg
    >>> @tg.njit
    ... def cube(x):
    ...     return x**3
    >>> tg.func.grad(cube)(2.0)
    12.0
    """
    return load("derivative").grad(f, argnums)


def hvp(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Return a compiled function of the Hessian of a compiled function times a direction.

    Parameters
    ----------
    f : function compiled by `tapegrad.njit` or `numba.njit`
        Its result is a number.
    argnums : int or sequence of int, optional
        The arguments that it is differentiated by.

    Returns
    -------
    callable
        Of the arguments of `f` and, last, a direction shaped as the argument, or a tuple of them.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> @tg.njit
    ... def f(x):
    ...     return x[0] ** 2 * x[1]
    >>> tg.func.hvp(f)(np.array([1.0, 3.0]), np.array([1.0, 0.0]))
    array([6., 2.])
    """
    return load("derivative").hvp(f, argnums)


def jvp(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Return a compiled function of value and derivative along a direction, without a tape.

    Parameters
    ----------
    f : function compiled by `tapegrad.njit` or `numba.njit`
        Its result is a number.
    argnums : int or sequence of int, optional
        The arguments that move.

    Returns
    -------
    callable
        Of the arguments of `f` and, last, a direction shaped as the argument, or a tuple of them.

    Examples
    --------
    >>> import tapegrad as tg
    >>> @tg.njit
    ... def cube(x):
    ...     return x**3
    >>> tg.func.jvp(cube)(2.0, 1.0)
    (8.0, 12.0)
    """
    return load("derivative").jvp(f, argnums)


def hessian(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function of the matrix of second derivatives by the first argument.

    Four columns at a time: four directions of dual numbers, one sweep. By an argument that is a number it is
    the second derivative, a number.

    Parameters
    ----------
    f : function compiled by `tapegrad.njit` or `numba.njit`
        Its result is a number.

    Returns
    -------
    callable
        Of the arguments of `f`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> @tg.njit
    ... def f(x):
    ...     return x[0] ** 2 * x[1]
    >>> tg.func.hessian(f)(np.array([1.0, 3.0]))
    array([[6., 2.],
           [2., 0.]])
    """
    return load("derivative").hessian(f)


def jacobian(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of all derivatives of a compiled function's result by its first argument.

    It records once and sweeps for four results at a time. It is called from Python, not from compiled code.

    Parameters
    ----------
    f : function compiled by `tapegrad.njit` or `numba.njit`
        Its result is a number or an array.

    Returns
    -------
    callable
        Of the arguments of `f`: an array of the result's shape followed by the argument's.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> @tg.njit
    ... def f(x):
    ...     return x * x[0]
    >>> tg.func.jacobian(f)(np.array([2.0, 3.0]))
    array([[4., 0.],
           [3., 2.]])
    """
    return load("jacobian").Jacobian(load("derivative").compiled_function(f, "jacobian"))
