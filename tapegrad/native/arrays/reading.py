"""Which arrays of a function expressions and products alone read, so that floats will do for their values."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Container
from types import ModuleType
from typing import Any

import numpy as np
from numba.core import ir
from numba.core.compiler import run_frontend
from numba.core.errors import NumbaError
from numba.core.ir_utils import get_definition, guard

from tapegrad.native.analysis.promotion import base
from tapegrad.native.arrays.argument_arrays import ATTRIBUTES
from tapegrad.native.arrays.arrays import UPDATE, is_elementwise
from tapegrad.native.emission.algebra import OPS
from tapegrad.native.emission.annotations import Code, Key, RightSide, Statement, Variable


def read_by_expressions(function: Code) -> dict[int, int]:
    """Return the positions of arguments that are operands of these alone, and how many axes these have then.

    At least that is: of one axis, what a loop reads is numbers.
    """
    try:
        code = run_frontend(function)
    except NumbaError:  # which the twin will raise, too
        return {}
    named = function.__code__.co_argcount  # behind them may stand a tuple of all others
    known = Reading(code, lambda index: index < named)
    lines = [line for block in code.blocks.values() for line in block.body if isinstance(line, ir.Assign)]
    return {
        line.value.index: 2 if line.target.name in known.rows else 1
        for line in lines
        if isinstance(line.value, ir.Arg) and line.target.name in known.found
    }


class Reading:
    """Which variables of a function are arrays that expressions and products alone read.

    They are arguments, of those that `stays` is true of, or expressions, products and sums along an axis, if
    these are arrays at all, or slices and rows of such; or arrays that are made, or written to at slices or,
    where they have rows, at these. What is `apart` is not.

    Attributes
    ----------
    found
        Their names.
    ends
        Of them those that are expressions, and not parts of another one alone, products and sums.
    written
        Of them those that are written to, or made empty or of zeros.
    """

    def __init__(self, code: ir.FunctionIR, stays: Callable[[int], bool], apart: Container[str] = ()) -> None:
        self.code = code
        self.found: set[str] = set()
        self.ends: set[str] = set()
        self.others: set[str] = set()  # read or assigned by other code
        self.arguments: set[str] = set()
        self.copied: set[str] = set()  # what other variables are, too: a plain array may be one of them
        self.rows: set[str] = set()  # what is read at the index of a loop: rows, or element by element
        self.places: set[str] = set()  # what is written to, or made
        self.updated: set[str] = set()  # operands and results of operators in place
        self.many: Counter[str] = Counter()  # how often each is assigned
        self.once: set[str] = set()  # those that are assigned no more than once
        self.links: list[tuple[str, str]] = []  # of each pair one is such a variable only if the other is
        self.stored: list[tuple[str, str]] = []  # the second only if the first
        for line in (line for block in code.blocks.values() for line in block.body):
            if isinstance(line, ir.Assign):
                self._assign(line, stays)
            elif isinstance(line, (ir.SetItem, ir.StaticSetItem)) and _is_place(code, line):
                self.places.add(line.target.name)
                self.stored.append((line.target.name, line.value.name))
            elif not isinstance(line, ir.Del):
                self.others.update(var.name for var in line.list_vars())
        self.others.update(name for name in self.found if base(name) in apart)
        self.others |= (self.arguments & self.copied) | (self.rows - self.arguments)
        self.found -= self.others | {name for name in self.once if self.many[name] > 1}
        self._drop(set())
        self.written = self._linked(self.places & self.found)
        self._drop(self.written & self.arguments | (self.updated - self.written))
        self.written &= self.found
        self.ends &= self.found

    def _assign(self, line: Statement, stays: Callable[[int], bool]) -> None:
        code, target, value = self.code, line.target.name, line.value
        if isinstance(value, ir.Arg) and stays(value.index):
            self.once.add(target)
            self.arguments.add(target)
        elif isinstance(value, ir.Var):
            self.links.append((target, value.name))
            self.ends.add(value.name)
            self.copied.add(value.name)
        elif _is_view(code, value):
            self.links.append((target, value.value.name))
            self.ends.add(value.value.name)
            self.others.add(_index(value).name)
            if not _has_rows(code, value.value):
                self.once.add(target)
                if not _is_slice(code, _index(value)):
                    self.rows.add(value.value.name)
        elif is_expression(code, value):
            if not target.startswith("$"):
                self.ends.add(target)
        elif (function := whole_of(code, value)) is not None:
            named = [x for _, x in value.kws] if value.op == "call" else []
            operands = [value.lhs, value.rhs] if value.op == "binop" else [*value.args, *named]
            if function is np.sum:
                self.others.add(operands[1].name)  # the axis
            else:
                self.ends.update(x.name for x in operands)
            self.ends.add(target)
        elif _is_part(code, value):
            self.others.add(target)
        elif _is_update(value):
            self.links.append((target, value.lhs.name))
            self.updated.add(target)
            self.ends.add(value.lhs.name)
        elif makes_zeros(code, value):
            self.places.add(target)
            self.others.update(var.name for var in value.args)
        else:
            self.others.update(var.name for var in line.list_vars())
            return
        self.found.add(target)
        self.many[target] += 1

    def _drop(self, names: set[str]) -> None:
        """Leave out variables, and what is linked with any that are left out."""
        self.found -= names
        before = -1
        while len(self.found) != before:
            before = len(self.found)
            for pair in self.links:
                if not self.found.issuperset(pair):
                    self.found.difference_update(pair)
            for target, value in self.stored:
                if target not in self.found:
                    self.found.discard(value)

    def _linked(self, names: set[str]) -> set[str]:
        """What is linked with any of these."""
        before = -1
        while len(names) > before:
            before = len(names)
            for pair in self.links:
                if self.found.issuperset(pair) and not names.isdisjoint(pair):
                    names = names.union(pair)
        return names


def _index(access: Any) -> Variable:
    """The variable that is the index of a reading or writing."""
    return access.index if isinstance(access.index, ir.Var) else access.index_var


def is_expression(code: ir.FunctionIR, value: RightSide | None) -> bool:
    """Whether this is a part of an expression that acts on each element of arrays."""
    if not isinstance(value, ir.Expr) or value.op in ("binop", "unary"):
        return isinstance(value, ir.Expr) and is_elementwise(value.fn)
    if value.op != "call" or value.kws or value.vararg:
        return False
    function = _resolved(code, value.func)
    if isinstance(function, np.ufunc):
        return function in OPS and len(value.args) == function.nin
    return function in (np.where, np.clip) and len(value.args) == 3


def _is_view(code: ir.FunctionIR, value: RightSide | None) -> bool:
    """Whether this is a slice of the first axis without a step, or what is at the index of a loop.

    Or, where there are rows for certain, one at a literal index.
    """
    if not isinstance(value, ir.Expr) or value.op not in ("getitem", "static_getitem"):
        return False
    index = _index(value)
    if index is None:
        return False
    is_row = _is_literal(code, index) and _has_rows(code, value.value)
    return is_row or _is_slice(code, index) or _counts(code, index)


def _is_literal(code: ir.FunctionIR, index: Variable) -> bool:
    found = guard(get_definition, code, index)
    return isinstance(found, ir.Const) and type(found.value) is int


def _has_rows(code: ir.FunctionIR, array: Variable) -> bool:
    """Whether this is an array that is made with two axes or more, for certain."""
    made = guard(get_definition, code, array)
    if not makes_zeros(code, made):
        return False
    shape = guard(get_definition, code, made.args[0])
    if isinstance(shape, ir.Const):
        return isinstance(shape.value, tuple) and len(shape.value) > 1
    return isinstance(shape, ir.Expr) and shape.op == "build_tuple" and len(shape.items) > 1


def _is_slice(code: ir.FunctionIR, index: Variable) -> bool:
    found = guard(get_definition, code, index)
    if isinstance(found, ir.Const):
        return isinstance(found.value, slice) and found.value.step is None
    is_call = isinstance(found, ir.Expr) and found.op == "call"
    return is_call and _resolved(code, found.func) is slice and len(found.args) == 2


def _is_place(code: ir.FunctionIR, line: Statement) -> bool:
    """Whether what is written to is such a slice, or at a literal; loops write rows, or number by number."""
    index = _index(line)
    if index is None:
        return False
    is_row = _counts(code, index) and _has_rows(code, line.target)
    return is_row or _is_literal(code, index) or _is_slice(code, index)


def _is_update(value: RightSide | None) -> bool:
    """Whether this is an operator in place that arrays have, and expressions of them."""
    if not isinstance(value, ir.Expr) or value.op != "inplace_binop":
        return False
    return value.fn in UPDATE and is_elementwise(value.immutable_fn)


def makes_zeros(code: ir.FunctionIR, value: RightSide | None) -> bool:
    """Whether this makes an array of floats of a shape, of zeros or anything."""
    if not isinstance(value, ir.Expr) or value.op != "call" or value.kws or len(value.args) != 1:
        return False
    shape, function = guard(get_definition, code, value.args[0]), _resolved(code, value.func)
    if value.vararg or (isinstance(shape, ir.Expr) and shape.op == "build_tuple" and not shape.items):
        return False
    return function is np.zeros or function is np.empty


def _counts(code: ir.FunctionIR, var: Variable) -> bool:
    """Whether a variable is nothing but what loops over ranges give."""
    values = code._definitions.get(var.name, [])
    for value in values:
        if isinstance(value, ir.Var):
            if not _counts(code, value):
                return False
            continue
        for op in ("pair_first", "iternext", "getiter"):
            if not isinstance(value, ir.Expr) or value.op != op:
                return False
            value = guard(get_definition, code, value.value)
        if not isinstance(value, ir.Expr) or value.op != "call" or _resolved(code, value.func) is not range:
            return False
    return bool(values)


def _resolved(code: ir.FunctionIR, var: Variable) -> Any:
    """The Python object that a variable is for certain; None if that is not known."""
    found = guard(get_definition, code, var)
    if isinstance(found, (ir.Global, ir.FreeVar)):
        return found.value
    if isinstance(found, ir.Expr) and found.op == "getattr":
        owner = _resolved(code, found.value)
        return getattr(owner, found.attr, None) if isinstance(owner, ModuleType) else None
    return None


def whole_of(code: ir.FunctionIR, value: RightSide | None) -> Key | None:
    """The function of a product, or of sums along an axis: what gives an array of arrays as a whole."""
    if not isinstance(value, ir.Expr) or value.op not in ("binop", "call"):
        return None
    if value.op == "binop":
        return operator.matmul if value.fn is operator.matmul else None
    function, named = _resolved(code, value.func), [name for name, _ in value.kws]
    many = None if value.vararg else (len(value.args), *named)
    if function is np.dot:
        return function if many == (2,) else None
    return function if function is np.sum and many in ((2,), (1, "axis")) else None


def _is_part(code: ir.FunctionIR, value: RightSide | None) -> bool:
    """Whether this is the sum of all elements, or reads how large an array is."""
    if not isinstance(value, ir.Expr):
        return False
    if value.op == "getattr":
        return value.attr in ATTRIBUTES
    if value.op != "call" or value.kws or value.vararg:
        return False
    return _resolved(code, value.func) is np.sum and len(value.args) == 1
