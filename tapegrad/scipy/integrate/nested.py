"""Integrals over several variables of `scipy.integrate`, one within the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import scipy.integrate as _scipy
from scipy import LowLevelCallable

from tapegrad.core.base import value_of
from tapegrad.scipy.calls import theirs
from tapegrad.scipy.integrate.quadrature import quad
from tapegrad.tensor import Operand

__all__ = ["dblquad", "nquad", "tplquad"]


def nquad(
    func: Callable[..., Operand], ranges: Sequence[Any], args: Sequence[Any] | None = None,
    opts: Any = None, full_output: bool = False,
) -> Any:  # fmt: skip
    """Integral of a function of several variables, one within the other.

    Derivatives are those of `quad`: by limits, by args, and by Tensors that the function uses from outside.

    Parameters
    ----------
    func : callable
        ``func(x0, ..., xn, *args)`` returns a number, computed by NumPy's functions from Tensors.
    ranges : sequence
        Pairs of limits, that of x0 first; or functions that return them, of the variables that come after it
        and of args.
    args : sequence, optional
    opts : dict, callable or sequence of those, optional
        Keywords of `quad`, of all integrals or of each.
    full_output : bool, optional
        As SciPy has it; derivatives are there without.

    Returns
    -------
    tuple
        The integral, a Tensor where a derivative is asked for, and the largest estimate of an error.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor(2.0, requires_grad=True)
    >>> integral, _ = ts.integrate.nquad(lambda x, y: a * x * y, [(0.0, 1.0), (0.0, 1.0)])
    >>> tg.grad(integral, a)
    (tensor(0.25),)
    """
    more = () if args is None else tuple(args) if isinstance(args, (tuple, list)) else (args,)
    if full_output or isinstance(func, LowLevelCallable):
        return theirs(_scipy.nquad, (func, ranges, more, opts, full_output), {})
    alike = opts is None or isinstance(opts, dict) or callable(opts)
    each = [opts or {}] * len(ranges) if alike else opts
    errors: list[float] = []

    def integral(depth: int, outer: tuple[Any, ...]) -> Any:
        """Over the variable before `outer`, which are the later ones and args."""
        limits, options = (x(*outer) if callable(x) else x for x in (ranges[-1 - depth], each[-1 - depth]))
        low, high = limits
        if "points" in options:
            inside = [x for x in options["points"] if value_of(low) <= x <= value_of(high)]
            options = {**options, "points": inside}

        def inner(x: Any, *outer: Any) -> Any:
            return func(x, *outer) if depth + 1 == len(ranges) else integral(depth + 1, (x, *outer))

        found, error = quad(inner, low, high, outer, **options)
        errors.append(error)
        return found

    return integral(0, more), max(errors)


def dblquad(
    func: Callable[..., Operand], a: Operand, b: Operand, gfun: Any, hfun: Any, args: Sequence[Any] = (),
    epsabs: float = 1.49e-8, epsrel: float = 1.49e-8,
) -> Any:  # fmt: skip
    """Integral of a function of two variables; derivatives as those of `nquad`.

    Parameters
    ----------
    func : callable
        ``func(y, x, *args)`` returns a number, computed by NumPy's functions from Tensors.
    a, b : Tensor or float
        Limits of x.
    gfun, hfun : callable or Tensor or float
        Limits of y, or functions of x that return them.
    args : sequence, optional
    epsabs, epsrel : float, optional

    Returns
    -------
    tuple
        The integral, a Tensor where a derivative is asked for, and the largest estimate of an error.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor(2.0, requires_grad=True)
    >>> integral, _ = ts.integrate.dblquad(lambda y, x: x * y, 0.0, b, 0.0, lambda x: x)
    >>> tg.grad(integral, b)
    (tensor(4.),)
    """
    ranges = [lambda x, *_: _limits((gfun, hfun), x), (a, b)]
    return nquad(func, ranges, args, {"epsabs": epsabs, "epsrel": epsrel})


def tplquad(
    func: Callable[..., Operand], a: Operand, b: Operand, gfun: Any, hfun: Any, qfun: Any, rfun: Any,
    args: Sequence[Any] = (), epsabs: float = 1.49e-8, epsrel: float = 1.49e-8,
) -> Any:  # fmt: skip
    """Integral of a function of three variables; derivatives as those of `nquad`.

    Parameters
    ----------
    func : callable
        ``func(z, y, x, *args)`` returns a number, computed by NumPy's functions from Tensors.
    a, b : Tensor or float
        Limits of x.
    gfun, hfun : callable or Tensor or float
        Limits of y, or functions of x that return them.
    qfun, rfun : callable or Tensor or float
        Limits of z, or functions of x and y that return them.
    args : sequence, optional
    epsabs, epsrel : float, optional

    Returns
    -------
    tuple
        The integral, a Tensor where a derivative is asked for, and the largest estimate of an error.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor(2.0, requires_grad=True)
    >>> integral, _ = ts.integrate.tplquad(lambda z, y, x: 1.0, 0.0, b, 0.0, lambda x: x, 0.0, 3.0)
    >>> tg.grad(integral, b)
    (tensor(6.),)
    """
    ranges = [
        lambda y, x, *_: _limits((qfun, rfun), x, y), lambda x, *_: _limits((gfun, hfun), x), (a, b)
    ]  # fmt: skip
    return nquad(func, ranges, args, {"epsabs": epsabs, "epsrel": epsrel})


def _limits(limits: tuple[Any, Any], *at: Any) -> list[Any]:
    return [limit(*at) if callable(limit) else limit for limit in limits]
