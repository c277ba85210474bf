"""Recording inside compiled code: scalar programs on a tape of their own, at a nanosecond per operation.

Numba is imported with the first function that is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from tapegrad.native.loading import checkpoint_loop, load

if TYPE_CHECKING:
    from tapegrad.native.function import CompiledFunction

__all__ = ["checkpoint_loop", "njit"]


@overload
def njit(
    function: Callable[..., Any], *, rerun: bool = ..., preaccumulate: bool = ..., **options: Any
) -> CompiledFunction: ...


@overload
def njit(
    function: None = None, *, rerun: bool = ..., preaccumulate: bool = ..., **options: Any
) -> Callable[[Callable[..., Any]], CompiledFunction]: ...


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
        Second and higher derivatives run the function again, as do matrices of derivatives that take several
        runs, and derivatives inside of other compiled functions. One that draws random numbers is refused
        there unless this says that running it again is meant.
    preaccumulate : bool, optional
        For a helper of numbers and tuples of numbers that other compiled functions call: what they record of
        a call is its local Jacobian, a leaf for each result and argument, whatever it computes inside. Pays
        where the helper does more than that: loops over few numbers.
    **options
        Numba's: ``cache``, ``fastmath``, ``error_model``, ``boundscheck``, ``nogil``, ``parallel`` (the
        recording form runs on one thread).

    Returns
    -------
    callable
        Also callable from functions that `numba.njit` compiles.

    Notes
    -----
    Globals and captured variables, with the contents of arrays, are what they were when the function was
    first compiled, in all its derivatives. ``cache=True`` keeps it and its derivatives in the library's
    cache; it is compiled again if a function that it calls, or a value that it reads, is another one.
    What is compiled for a derivative is named before it begins, on a terminal and in notebooks, and by the
    logger ``"tapegrad"`` at level INFO; ``logging.getLogger("tapegrad").setLevel("ERROR")`` silences that.

    An in-place operation whose operand shares memory with its target (``w[1:] *= w[:-1]``, the `out` of a
    ufunc) is NumPy's, here and in what is called, with arrays and with Tensors: the operand is read before
    anything is written. `numba.njit` alone goes element by element, so it reads what it has just written.
    An index outside of an array is an IndexError where derivatives are recorded, and leaves the function past
    its handlers (``except Exception``); values are computed as Numba does, which looks for such indices with
    ``boundscheck=True`` alone. With it the error is raised in both, and handlers catch it, as in Python.

    Raises
    ------
    TypeError
        An option is none of these.
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
        if options:
            load("function").refuse_unknown(options)
        return lambda f: njit(f, rerun=rerun, preaccumulate=preaccumulate, **options)
    return load("function").compile_function(function, options, rerun, preaccumulate)
