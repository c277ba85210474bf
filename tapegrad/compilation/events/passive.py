"""Operations without a derivative: comparisons, steps, arrays of zeros, and what is computed of these."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.core.base import Handle
from tapegrad.core.functions import OF_VALUES, detached
from tapegrad.ops.primitive import Attributes, Primitive

SIMPLE = int, float, complex, str, type(None), type, np.dtype, np.generic  # what options are
OPERANDS = Handle, np.ndarray, np.generic, int, float  # of a ufunc


class Passive:
    """What computes an event without a derivative, as an op computes another one.

    Attributes
    ----------
    name, functions
        Its name, and the function of NumPy's that means it.
    forward
        Computes the value, as an op's does.
    is_ufunc
        Whether that is a ufunc.
    """

    by_itself = True

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = getattr(function, "__name__", "a step")
        self.functions, self.is_ufunc = (function,), isinstance(function, np.ufunc)
        self.forward = function if self.is_ufunc else self._called

    def _called(self, *operands: Any, rest: tuple[Any, ...] = (), **names: Any) -> Any:
        return self.functions[0](*operands, *rest, **names)


Operation = Primitive | Passive
passive = functools.cache(Passive)  # of the same function the same one
DETACH = passive(detached)
COMPARISONS = np.less, np.less_equal, np.equal, np.not_equal, np.greater, np.greater_equal
COMPARED = np.array([id(passive(f)) for f in COMPARISONS], np.int64)  # in the order in which CPython counts


def flat_operation(
    function: Callable[..., Any], args: Sequence[Any], names: Attributes
) -> tuple[Passive, Sequence[Any], Attributes] | None:
    """A call of a function of NumPy's as an operation: what computes it, its operands, and attributes.

    Of a ufunc all arguments are operands, of another function the first one, which is no Tensor where one is
    made of zeros or ones. None where that is not all.
    """
    if function is detached or function in OF_VALUES:
        return passive(function), args, names
    ufunc: Any = getattr(function, "__self__", function)
    if type(ufunc) is np.ufunc:
        if not (ufunc is function or function.__name__ == "__call__") or names or ufunc.nout > 1:
            return None
        known = getattr(np, ufunc.__name__, None) is ufunc  # others may do more than compute
        return (passive(ufunc), args, {}) if known and all(isinstance(x, OPERANDS) for x in args) else None
    if not args or not isinstance(args[0], (Handle, np.ndarray)):
        return None
    if getattr(function, "__module__", "").partition(".")[0] != np.__name__:
        return None
    if not all(map(_is_simple, (*args[1:], *names.values()))):
        return None
    return passive(function), args[:1], {"rest": tuple(args[1:]), **names} if args[1:] else names


def _is_simple(x: Any) -> bool:
    return all(map(_is_simple, x)) if type(x) is tuple else isinstance(x, SIMPLE)
