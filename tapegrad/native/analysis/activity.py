"""Which variables of a function may hold active numbers, found before types are known.

An array that is made for nothing active is Numba's own, without statements. That it holds enough is seen to
by Numba: where types do not fit, all arrays are made for active numbers, and the function is compiled anew.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
from numba import prange
from numba.core import ir

from tapegrad.native.analysis.promotion import Aliases, base, is_writing
from tapegrad.native.emission.annotations import Block, Key, RightSide, Variable

EXTENTS = ("shape", "size", "ndim", "strides", "nbytes", "itemsize", "dtype")  # have no derivative
COUNTING = (len, range, prange, isinstance, print)
COLLECTIONS = ("build_list", "build_set", "build_map")  # they may be given active numbers later
READING = ("getitem", "static_getitem")
PURE = ("numpy", "math", builtins.__name__)  # modules of functions that keep nothing
GIVEN_UP = "_tapegrad_all_active"  # an attribute of functions


def give_up(function: Any) -> bool:
    """Let all arrays that a function makes hold active numbers; whether some of them did not."""
    known = vars(function)
    found = bool(known.pop("_tapegrad_passive", False))
    known[GIVEN_UP] = known.get(GIVEN_UP, False) or found
    return found


class Activity:
    """The variables of a function that may hold active numbers, or may be asked to.

    So may memory that these are written to, and what is returned, kept in a collection, or given to functions
    that are not NumPy's.

    Parameters
    ----------
    blocks
        The function.
    arguments
        The positions of those of its arguments that hold active numbers.
    resolve
        Gives the Python object that a variable is for certain, or None.
    """

    def __init__(
        self, blocks: Iterable[Block], arguments: Collection[int], resolve: Callable[[Variable], Any]
    ) -> None:
        lines = [line for block in blocks for line in block.body]
        self._arguments, self._resolve = arguments, resolve
        self._links = Aliases(blocks, resolve).links
        self._methods = {
            line.target.name: line.value.attr
            for line in lines
            if isinstance(line, ir.Assign) and isinstance(line.value, ir.Expr) and line.value.op == "getattr"
        }
        self._names: set[str] = set()
        self._written: set[str] = set()  # of them those that share memory which is written to
        before = -1
        while len(self._names) > before:
            before = len(self._names)
            for line in lines:
                self._see(line)

    def __contains__(self, var: Variable) -> bool:
        return base(var.name) in self._names

    def _any(self, variables: Iterable[Variable]) -> bool:
        return any(var in self for var in variables)

    def _write(self, variables: Iterable[Variable]) -> None:
        """Know that active numbers may come to the memory of these."""
        left = [base(var.name) for var in variables]
        while left:
            name = left.pop()
            if name not in self._written:
                self._written.add(name)
                left += self._links.get(name, ())
        self._names |= self._written

    def _see(self, line: Any) -> None:
        if isinstance(line, ir.Assign):
            if self._is_active(line.value):
                self._names.add(base(line.target.name))
        elif isinstance(line, (ir.SetItem, ir.StaticSetItem)):
            if line.value in self:
                self._write([line.target])
        elif not isinstance(line, (ir.Del, ir.Print, ir.Branch)):
            self._write(line.list_vars())

    def _is_active(self, value: RightSide) -> bool:
        """Whether a value may hold active numbers; what gets some by that is noted."""
        if isinstance(value, ir.Arg):
            return value.index in self._arguments
        if isinstance(value, ir.Var):
            return value in self
        if isinstance(value, ir.Yield):
            self._write(value.list_vars())
        if not isinstance(value, ir.Expr):
            return False
        if value.op == "getattr":
            return value.attr not in EXTENTS and value.value in self
        if value.op in READING:
            return value.value in self
        if value.op == "call":
            return self._is_active_call(value)
        operands = value.list_vars()
        if value.op in COLLECTIONS:
            self._write(operands)
            return True
        found = self._any(operands)
        if found and value.op == "inplace_binop":
            self._write([value.lhs])
        return found

    def _is_active_call(self, call: RightSide) -> bool:
        function, given = self._resolve(call.func), [x for x in call.list_vars() if x.name != call.func.name]
        if function is None and self._methods.get(call.func.name, "") in dir(np.ndarray):
            if self._any(given):
                self._write([call.func])
            return call.func in self
        if not _is_pure(function):
            self._write(given)
            return True
        if function in COUNTING:
            return False
        found = self._any(given)
        if found and is_writing(function, call):
            self._write(given)
        return found


def _is_pure(function: Key | None) -> bool:
    """Whether a function gives nothing active for what is not, and keeps nothing."""
    if function is prange or isinstance(function, np.ufunc):
        return True
    module = getattr(function, "__module__", None) or ""
    return module.partition(".")[0] in PURE and not isinstance(function, tuple)
