"""Squares of absolute values and norms, which are smooth where those have a kink.

Second derivatives of ``norm(x)**2`` at 0 cannot be had from those of the norm. So beside an absolute value or
a norm whose square is asked for somewhere, its square is computed from the operands themselves.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import ir
from numba.extending import overload

from tapegrad.native.arrays import is_active_array, is_complex_array
from tapegrad.native.blocks import inner_njit
from tapegrad.native.complexes import ActiveComplex, squared

OPERANDS = {abs: 1, np.absolute: 1, np.hypot: 2, np.linalg.norm: 1}  # what has a kink at 0


def squares_in(
    blocks: Any, definition: Callable[[Any], Any], resolve: Callable[[Any], Any]
) -> dict[int, Any]:
    """Return what has a kink and is squared, by the ids of the squares: calls of functions in `OPERANDS`."""
    found = {}
    for block in blocks.values():
        for line in block.find_insts(ir.Assign):
            root = _root(line.value, definition, resolve)
            call = None if root is None else definition(root)
            if isinstance(call, ir.Expr) and call.op == "call" and not (call.kws or call.vararg):
                function = resolve(call.func)
                kink = callable(function) and any(function is f for f in OPERANDS)
                if kink and len(call.args) == OPERANDS[function]:
                    found[id(line.value)] = call
    return found


def _root(value: Any, definition: Any, resolve: Any) -> Any:
    """The variable whose square a value is; None for any other value."""
    if not isinstance(value, ir.Expr):
        return None
    if value.op == "call" and resolve(value.func) is np.square and len(value.args) == 1 and not value.kws:
        return value.args[0]
    if value.op != "binop":
        return None
    if value.fn is operator.pow:
        two = definition(value.rhs)
        return value.lhs if isinstance(two, ir.Const) and two.value == 2 else None
    return value.lhs if value.fn is operator.mul and definition(value.lhs) is definition(value.rhs) else None


def square_of(function: Any) -> Any:
    """Return what computes the square of a function in `OPERANDS` from its operands."""
    return {np.hypot: square_of_hypot, np.linalg.norm: square_of_norm}.get(function, square_of_absolute)


def square_of_absolute(x: Any) -> Any:
    """``abs(x)**2``."""


def square_of_hypot(x: Any, y: Any) -> Any:
    """``hypot(x, y)**2``."""


def square_of_norm(x: Any) -> Any:
    """``norm(x)**2``."""


@overload(square_of_absolute)
def _square_of_absolute(x):
    if isinstance(x, ActiveComplex):
        return lambda x: squared(x)
    return (lambda x: np.absolute(x) * np.absolute(x)) if is_complex_array(x) else (lambda x: x * x)


@overload(square_of_hypot)
def _square_of_hypot(x, y):
    return lambda x, y: x * x + y * y


@overload(square_of_norm)
def _square_of_norm(x):
    if is_complex_array(x):
        return lambda x: _sum_of_complex(x)
    return (lambda x: _sum(x)) if is_active_array(x) else (lambda x: np.linalg.norm(x) ** 2)


@inner_njit
def _sum(x):
    s = 0.0
    for v in x.flat:
        s = s + v * v
    return s


@inner_njit
def _sum_of_complex(x):
    s = 0.0
    for v in x.flat:
        s = s + squared(v)
    return s
