"""Which function answers for which of NumPy's: `numpy_api` fills the tables that Tensor's methods look in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Function: TypeAlias = Callable[..., Any]
UFUNCS: dict[Any, Function] = {}
FUNCTIONS: dict[Any, Function] = {}
PLAIN: set[Any] = set()  # those that have no derivative, or a derivative of zero: plain values answer
ANSWERED: dict[Any, None] = {}  # those of these to which plain values are all that there is
OF_VALUES: set[Any] = set()  # those of this package without a derivative; all arguments are operands
BY_SHAPES: set[Any] = set()  # those that apply the same ops to all values of the same shapes and dtypes


def implements(*functions: Any, by_shapes: bool = False) -> Callable[[Any], Any]:
    """Register a function as what these NumPy functions do on Tensors; see `BY_SHAPES`."""

    def register(function: Any) -> Any:
        BY_SHAPES.update(functions * by_shapes)
        for f in functions:
            (UFUNCS if isinstance(f, np.ufunc) else FUNCTIONS)[f] = function
        return function

    return register


def detached(x: Any) -> Any:
    """Return what a detached Tensor has of a value: its memory, of a number a copy."""
    return x.view() if isinstance(x, np.ndarray) else x


def of_values(function: Function) -> Function:
    """Register a function of values without a derivative, which programs may compute."""
    OF_VALUES.add(function)
    return function
