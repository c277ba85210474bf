"""`tg.func.checkpoint_loop` called from Python."""

from __future__ import annotations

from typing import Any

from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError

from tapegrad.errors import UnsupportedOpError
from tapegrad.native import explain
from tapegrad.native.function import compile_function
from tapegrad.native.loading import checkpoint_loop
from tapegrad.native.twins.compiler import primal_of


def call(step: Any, state: Any, n: int, slots: int, args: Any) -> Any:
    """The loop called from Python, with Tensors or without."""
    primal = primal_of(step)
    if not isinstance(primal, Dispatcher):
        raise TypeError(
            f"tg.func.checkpoint_loop takes a step compiled by tg.njit, found {type(step).__name__}; "
            "tg.autograd.checkpoint_loop takes any function of Tensors"
        )
    if not isinstance(args, tuple):
        raise TypeError(f"tg.func.checkpoint_loop: args is a tuple, found {type(args).__name__}")
    if "_tapegrad_loop" not in vars(primal):

        def checkpointed(state, n, slots, args):
            return checkpoint_loop(primal, state, n, slots, args)

        found = compile_function(checkpointed, {"cache": getattr(primal, "_tapegrad_cached", False)}, False)
        found.py_func, found.__name__ = primal.py_func, primal.py_func.__name__  # what errors are about
        primal._tapegrad_loop = found
    try:
        return primal._tapegrad_loop(state, n, slots, args)
    except NumbaError as error:
        words = str(error)
        if "readonly" in words:
            words = (
                f"{primal.__name__} writes to one of its args, and a step is computed several times; let it "
                "write to the state, or to a copy"
            )
        elif "tapegrad: " in words:
            words = explain.reason(words)
        else:
            raise
        raise UnsupportedOpError(f"tg.func.checkpoint_loop: {words}") from error
