"""Methods of Tensors and operators in place as calls that programs compare, as they do NumPy's functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.core.array_methods import ArrayMethods
from tapegrad.core.functions import ANSWERED, BY_SHAPES
from tapegrad.core.grad_mode import _enabled
from tapegrad.core.notes import call_compared
from tapegrad.ops import REGISTRY
from tapegrad.tensor import Tensor

OTHER_NAMES = {  # of functions of NumPy's that do the same, or as much
    "T": np.transpose, "mT": np.matrix_transpose, "flatten": np.ravel, "astype": np.copy, "clone": np.copy,
}  # fmt: skip
OPERATORS = {"__mod__": np.remainder, "__rmod__": np.remainder}  # that have no compiled method
IN_PLACE = "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__", "__imatmul__"
MEANT: dict[Any, Callable[..., Any]] = {}  # the function of NumPy's that a method means
UPDATES: set[Any] = set()  # the methods of operators in place


def install() -> None:
    """Let programs see calls of the methods, from the first `tapegrad.compile` on: it takes a little time."""
    if MEANT:
        return
    one_op = BY_SHAPES.union(ANSWERED, *(op.functions for op in REGISTRY.values()))
    for name, found in [*vars(ArrayMethods).items(), *vars(Tensor).items()]:
        meant: Any = OTHER_NAMES.get(name, getattr(np, name, None))
        if name.startswith("_") or meant not in one_op:
            continue
        if isinstance(found, property):
            get: Any = found.fget
            setattr(Tensor, name, property(_compared(get), found.fset))
            MEANT[get] = meant
        elif name in vars(ArrayMethods) or meant is np.copy:
            MEANT[_replace(name)] = meant
    MEANT.update((_replace(name), meant) for name, meant in OPERATORS.items())
    UPDATES.update(map(_replace, IN_PLACE))


def _replace(name: str) -> Callable[..., Any]:
    """Replace a method by one that is compared; the method."""
    method: Callable[..., Any] = getattr(Tensor, name)
    setattr(Tensor, name, _compared(method))
    return method


def _compared(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that a program at work may know the result of."""
    mode_in_force = _enabled.get

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        if mode_in_force() is True:  # no program is at work
            return method(*args, **kwargs)
        return call_compared(method, method, args, kwargs)

    return called
