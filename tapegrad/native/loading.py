"""Calls of modules that import Numba, which come with the first one."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from tapegrad.kernels.locks import importing

__all__ = ["checkpoint_loop", "load"]


@functools.cache
def load(name: str) -> Any:
    """Return a module of this package; they import Numba."""
    with importing():
        return importlib.import_module(f"{__package__}.{name}")


def checkpoint_loop(step: Any, state: Any, n: int, slots: int, args: tuple[Any, ...] = ()) -> Any:
    """Apply a compiled step n times, keeping few of the states on the way: a sweep computes the others again.

    What `tapegrad.autograd.checkpoint_loop` does for Tensors, with its schedule, inside compiled code: the
    memory for derivatives is that of `slots` states and of one step's tape. It can be called from Python,
    with Tensors or without, and from functions that `tapegrad.njit` compiles; derivatives are of any order.

    Parameters
    ----------
    step : function compiled by `tapegrad.njit` or `numba.njit`
        ``step(state, *args)`` returns the next state; does the same each time.
    state : Tensor or array of float64
        It is copied, so the step may write to it.
    n : int
        Number of steps, 0 or more.
    slots : int
        States that may be kept at a time besides the first, 0 or more.
    args : tuple, optional
        Numbers, arrays and Tensors that all steps read, and derivatives are taken by.

    Returns
    -------
    Tensor or array
        The last state.

    Raises
    ------
    UnsupportedOpError
        The step cannot be recorded, draws random numbers, or writes to one of `args`.
    ValueError
        The step returns an array of another shape.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> @tg.njit
    ... def step(x, rate):
    ...     return x + rate * np.sin(x)
    >>> x = tg.tensor([0.5], requires_grad=True)
    >>> y = tg.func.checkpoint_loop(step, x, 100, 3, (0.01,))
    >>> tg.grad(y, x)
    (tensor([1.9569]),)
    """
    return load("derivatives.checkpoint").call(step, state, n, slots, args)
