"""Which function answers for which of NumPy's, and how arguments are read."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from tapegrad.dispatch import contains_tensor, is_tensor, normal, sequence, share, value_of
from tapegrad.errors import AxisError, UnsupportedOpError

UFUNCS: dict[Any, Callable[..., Any]] = {}
FUNCTIONS: dict[Any, Callable[..., Any]] = {}
Axis = int | Sequence[int] | None


def implements(*functions: Any) -> Callable[[Any], Any]:
    """Register a function as what these NumPy functions do on Tensors."""

    def register(function: Any) -> Any:
        for f in functions:
            FUNCTIONS[f] = function
        return function

    return register


def tensor_of(x: Any) -> Any:
    """Return an argument as a Tensor or a plain array."""
    if is_tensor(x):
        return x
    return normal(sequence(x))


def axes_of(x: Any, axis: Axis, what: str) -> tuple[int, ...]:
    """Return the axes meant, ascending."""
    ndim = np.ndim(value_of(x))
    if axis is None:
        return tuple(range(ndim))
    try:
        found = normalize_axis_tuple(axis, ndim)
    except np.exceptions.AxisError as error:
        raise AxisError(f"{what}: axis {axis} of an array of shape {np.shape(value_of(x))}") from error
    except (ValueError, TypeError) as error:
        raise type(error)(f"{what}: axis {reprlib.repr(axis)}: {error}") from error
    return tuple(sorted(found))


def axis_of(x: Any, axis: int, what: str, extra: int = 0) -> int:
    """Return the axis meant, counted from the first."""
    ndim = np.ndim(value_of(x)) + extra
    try:
        return int(normalize_axis_index(operator.index(axis), ndim))
    except np.exceptions.AxisError as error:
        raise AxisError(f"{what}: axis {axis} of an array of shape {np.shape(value_of(x))}") from error


def no_out(what: str, out: Any) -> None:
    """Refuse an `out` argument."""
    if out is not None and out is not np._NoValue:
        raise UnsupportedOpError(f"{what}: out= is not supported on Tensors; use the result it returns")


def plainly(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Call NumPy on plain values; arrays come back as Tensors."""

    def plain(x: Any) -> Any:
        if contains_tensor(x) and not is_tensor(x):
            return type(x)(plain(item) for item in x)
        return value_of(x)

    try:
        result = function(*plain(tuple(args)), **{k: plain(v) for k, v in kwargs.items()})
    except np.exceptions.AxisError as error:
        raise AxisError(str(error)) from error
    if isinstance(result, (np.ndarray, np.generic)):
        return share(result[()] if isinstance(result, np.ndarray) and result.ndim == 0 else result, args)
    if isinstance(result, tuple) and all(isinstance(part, np.ndarray) for part in result):
        return tuple(share(part, args) for part in result)
    return result
