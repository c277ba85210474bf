"""Sums of expressions of arrays, in which the array itself is not made."""

from __future__ import annotations

from collections import Counter

from numba.core import ir, types
from numba.core.compiler_machinery import FunctionPass, register_pass

from tapegrad.native.annotations import CompilerState, Key, RightSide, Statement, Type
from tapegrad.native.expressions import recordable

SUMS: set[Key] = set()  # functions that are sums of all elements of their one argument


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
                    if name in known:
                        at = known[name]
                        tree = body[at].value
                        tree.ty = kinds[line.target.name]
                        body[at] = ir.Assign(tree, line.target, line.loc)
                        gone.add(name)
                        continue
                elif not isinstance(value, (ir.Global, ir.FreeVar, ir.Const)):
                    known.clear()
                body.append(line)
            block.body = body
        return True

    def _sums(self, call: RightSide, kinds: dict[str, Type]) -> bool:
        """Whether a call is the sum of all elements of its one argument."""
        kind = kinds[call.func.name]
        alone = len(call.args) == 1 and not call.kws and call.vararg is None
        return alone and isinstance(kind, types.Function) and kind.typing_key in SUMS
