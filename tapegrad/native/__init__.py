"""Recording inside compiled code: scalar programs on a tape of their own, at a nanosecond per operation.

Numba is imported with the first function that is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["njit"]


def njit(
    function: Callable[..., Any] | None = None,
    *,
    rerun: bool = False,
    preaccumulate: bool = False,
    **options: Any,
) -> Any:
    """Compile a function with Numba so that Tensors can be differentiated through it.

    Called with numbers and arrays it is `numba.njit`. Called with Tensors that require grad it runs a second
    form of the same code that records what it does, loops and branches included, and the call is one record
    on the tape of Tensors.

    Parameters
    ----------
    function : function or numba dispatcher
        What to compile, or what Numba has compiled.
    rerun : bool, optional
        Second and higher derivatives run the function again. One that draws random numbers is refused
        unless this says that running it again is meant.
    preaccumulate : bool, optional
        For a helper of numbers and tuples of numbers that other compiled functions call: what they record of
        a call is its local Jacobian, an entry for each result and argument, whatever it computes inside. Pays
        where the helper does more than that: many operations of few numbers.
    **options
        Numba's: ``cache``, ``fastmath``, ``error_model``, ``boundscheck``, ``nogil``, ``parallel`` (the
        recording form runs on one thread).

    Returns
    -------
    callable
        Also callable from functions that `numba.njit` compiles.

    Raises
    ------
    UnsupportedOpError
        At a call with Tensors, where a line of the function cannot be recorded; names the line.

    Examples
    --------
    >>> import tapegrad as tg
    >>> @tg.njit
    ... def power(x, n):
    ...     y = 1.0
    ...     for _ in range(n):
    ...         y *= x
    ...     return y
    >>> power(2.0, 3)
    8.0
    >>> x = tg.tensor(2.0, requires_grad=True)
    >>> (g,) = tg.grad(power(x, 3), x, create_graph=True)
    >>> g.item()
    12.0
    >>> tg.grad(g, x)
    (tensor(12.),)
    """
    if function is None:
        return lambda f: njit(f, rerun=rerun, preaccumulate=preaccumulate, **options)
    from tapegrad.kernels import cache

    with cache.lock:
        from tapegrad.native.function import compile_function

    return compile_function(function, options, rerun, preaccumulate)
