"""Slices and numbers that an expression of arrays alone reads: they are read where it is computed.

As variables they took longer than the expression: each slice counts a reference to its array, twice by an
atomic instruction, and an array of no axes for a number is memory of its own.
"""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

from numba.core import ir, types
from numba.core.compiler_machinery import FunctionPass, register_pass

from tapegrad.native.arrays.arrays import as_array
from tapegrad.native.arrays.expressions import recordable, stored, summed_along
from tapegrad.native.arrays.storing import key_of
from tapegrad.native.emission.annotations import Block, CompilerState, RightSide, Statement, Type, Variable

PURE = ir.Global, ir.FreeVar, ir.Const, ir.Var
EXACT = operator.add, operator.sub, operator.mul  # of integers: they cannot raise


def _is_part(index: Type) -> bool:
    """Whether what is at an index of this type is a view, if it is an array."""
    if isinstance(index, types.BaseTuple):
        return all(map(_is_part, index))
    return isinstance(index, (types.SliceType, types.Integer, types.EllipsisType, types.NoneType))


@register_pass(mutates_CFG=False, analysis_only=False)
class Views(FunctionPass):
    """Makes one of an expression and what it alone reads, where nothing between may have changed that."""

    _name = "tapegrad_views"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: CompilerState) -> bool:
        """Rewrite a function in which Numba has found expressions."""
        self.kinds, self.uses = state.typemap, Counter[str]()
        for block in state.func_ir.blocks.values():
            for line in block.body:
                if not isinstance(line, ir.Del):
                    self.uses.update(var.name for var in line.list_vars())
        for block in state.func_ir.blocks.values():
            self._rewrite(block)
        return True

    def _rewrite(self, block: Block) -> None:
        body: list[Statement] = []
        made: dict[str, Statement] = {}  # views and numbers that could be read here as well
        for line in block.body:
            value: Any = line.value if isinstance(line, ir.Assign) else None
            is_expression = isinstance(value, ir.Expr) and value.op == "arrayexpr"
            if is_expression and made and self._records(value):
                read = self._join(value, made)
                body = [other for other in body if not _assigns(other, read)]
            if self._is_read_only(value):
                made[line.target.name] = line
                value.ty = self.kinds[line.target.name]
            elif not self._is_pure(value) or (is_expression and value.expr[0] is stored):
                made = {}
            else:
                made = {x: one for x, one in made.items() if not _reads(one, line.target)}
            body.append(line)
        block.body = body

    def _join(self, value: RightSide, made: dict[str, Statement]) -> dict[str, RightSide]:
        """Let an expression read what it alone reads; returns that by names."""
        wrapped = value.expr[0] in (stored, summed_along)
        tree = value.expr[1][0] if wrapped else value.expr
        names = Counter(_names(tree))
        read = {x: made[x].value for x, n in names.items() if x in made and self.uses[x] == n + 1}
        tree = _read(tree, read)
        value.expr = (value.expr[0], [tree, *value.expr[1][1:]]) if wrapped else tree
        return read

    def _records(self, value: RightSide) -> bool:
        """Whether an expression is recorded as one: one that is stored or added up is."""
        if value.expr[0] in (stored, summed_along) or not isinstance(value.ty, types.Array):
            return True
        return recordable(value.ty, value.expr, self.kinds.__getitem__)

    def _is_read_only(self, value: RightSide | None) -> bool:
        """Whether this is a part of an array that is a view, or a number as an array of no axes."""
        if not isinstance(value, ir.Expr):
            return False
        if value.op == "call":
            return key_of(value, self.kinds) is as_array
        if value.op not in ("getitem", "static_getitem"):
            return False
        index = value.index_var if value.op == "static_getitem" else value.index
        if index is None:
            return False
        array, index_kind = self.kinds[value.value.name], self.kinds[index.name]
        if not isinstance(array, types.Array) or not _is_part(index_kind):
            return False
        parts = list(index_kind) if isinstance(index_kind, types.BaseTuple) else [index_kind]
        return array.ndim > sum(isinstance(part, types.Integer) for part in parts)  # else it is a number

    def _is_pure(self, value: RightSide | None) -> bool:
        """Whether a line neither changes nor does anything."""
        if not isinstance(value, ir.Expr):
            return isinstance(value, PURE)
        if value.op == "binop":
            whole = [isinstance(self.kinds[x.name], types.Integer) for x in (value.lhs, value.rhs)]
            return value.fn in EXACT and all(whole)
        is_slice = value.op == "call" and key_of(value, self.kinds) is slice
        return is_slice or value.op == "arrayexpr"


def _read(tree: Any, values: dict[str, RightSide]) -> Any:
    """An expression, in which what is read stands in place of variables."""
    if isinstance(tree, tuple):
        return tree[0], [_read(part, values) for part in tree[1]]
    return values.get(tree.name, tree) if isinstance(tree, ir.Var) else tree


def _names(tree: Any) -> list[str]:
    """The names of an expression's operands, as often as they are read."""
    if isinstance(tree, tuple):
        return [name for part in tree[1] for name in _names(part)]
    return [tree.name] if isinstance(tree, ir.Var) else []


def _reads(line: Statement, var: Variable) -> bool:
    return any(x.name == var.name for x in line.value.list_vars())


def _assigns(line: Statement, names: dict[str, RightSide]) -> bool:
    return isinstance(line, ir.Assign) and line.target.name in names
