"""Sums of expressions of arrays, along an axis too, in which the array itself is not made."""

from __future__ import annotations

from collections import Counter

from numba.core import ir, types
from numba.core.compiler_machinery import FunctionPass, register_pass

from tapegrad.native.arrays.expressions import recordable, summed_along
from tapegrad.native.emission.annotations import CompilerState, Key, RightSide, Statement, Type

SUMS: set[Key] = set()  # functions that are sums of the elements of their argument, all or along an axis


@register_pass(mutates_CFG=False, analysis_only=False)
class FusedSums(FunctionPass):
    """Makes one of an expression and its sum, where that is all that is asked of it."""

    _name = "tapegrad_fused_sums"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: CompilerState) -> bool:
        """Rewrite a function in which Numba has found expressions."""
        kinds, uses = state.typemap, Counter[str]()
        for block in state.func_ir.blocks.values():
            for line in block.body:
                if not isinstance(line, ir.Del):
                    uses.update(var.name for var in line.list_vars())
        for block in state.func_ir.blocks.values():
            body: list[Statement] = []
            known: dict[str, int] = {}  # where expressions are that nothing may have changed since
            gone: set[str] = set()
            for line in block.body:
                value = line.value if isinstance(line, ir.Assign) else None
                if isinstance(line, ir.Del):
                    if line.value not in gone:
                        body.append(line)
                    continue
                if isinstance(value, ir.Expr) and value.op == "arrayexpr":
                    once = uses[line.target.name] == 2  # where it is made, and there
                    if once and recordable(value.ty, value.expr, kinds.__getitem__):
                        known[line.target.name] = len(body)
                elif isinstance(value, ir.Expr) and value.op == "call" and self._sums(value, kinds):
                    name = value.args[0].name
                    if name in known and self._fuse(line, body, known[name], kinds):
                        gone.add(name)
                        known = {}  # places may be others
                        continue
                elif not isinstance(value, (ir.Global, ir.FreeVar, ir.Const)):
                    known.clear()
                body.append(line)
            block.body = body
        return True

    def _sums(self, call: RightSide, kinds: dict[str, Type]) -> bool:
        """Whether a call is the sum of the elements of an array, all or along an axis."""
        kind = kinds[call.func.name]
        alone = 1 <= len(call.args) + len(call.kws) <= 2 and call.args and call.vararg is None
        return bool(alone) and isinstance(kind, types.Function) and kind.typing_key in SUMS

    def _fuse(self, line: Statement, body: list[Statement], at: int, kinds: dict[str, Type]) -> bool:
        """Let an expression be its sum, or its sums along an axis, where that is known there."""
        call, tree = line.value, body[at].value
        axes = [*call.args[1:], *dict(call.kws).values()]
        kind, of = kinds[line.target.name], kinds[body[at].target.name]
        if axes and of.ndim > 1:
            if not isinstance(kind, types.Array) or not isinstance(kinds[axes[0].name], types.Integer):
                return False
            for place in range(at + 1, len(body)):
                made = body[place]
                if isinstance(made, ir.Assign) and made.target.name == axes[0].name:
                    if not isinstance(made.value, ir.Const):
                        return False
                    body.insert(at, body.pop(place))
                    at += 1
                    break
            tree.expr = summed_along, [tree.expr, axes[0]]
        tree.ty = kind
        body[at] = ir.Assign(tree, line.target, line.loc)
        return True
