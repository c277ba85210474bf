"""Arguments that stayed floats become what Numba knows, for expressions that are not one record."""

from __future__ import annotations

from typing import Any

from numba.core import ir
from numba.core.compiler_machinery import FunctionPass, register_pass

from tapegrad.native.annotations import Code, CompilerState, Statement, Variable
from tapegrad.native.argument_arrays import ArgumentArray, floats_of
from tapegrad.native.arrays import is_recorded_array
from tapegrad.native.copied_arguments import expanded
from tapegrad.native.expressions import names_in, recordable


@register_pass(mutates_CFG=False, analysis_only=False)
class Expanding(FunctionPass):
    """Gives expressions that Numba lowers arrays of active numbers, those that only read values floats."""

    _name = "tapegrad_expanding"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: CompilerState) -> bool:
        """Rewrite a function in which Numba has found expressions."""
        kinds, made = state.typemap, {}
        for block in state.func_ir.blocks.values():
            for line in block.body:
                value = getattr(line, "value", None)
                if not isinstance(value, ir.Expr) or value.op != "arrayexpr":
                    continue
                given = [name for name in names_in(value.expr) if isinstance(kinds[name], ArgumentArray)]
                if given and not recordable(value.ty, value.expr, kinds.__getitem__):
                    function = expanded if is_recorded_array(value.ty) else floats_of
                    for name in given:
                        if (name, function) not in made:
                            made[name, function] = block.scope.redefine("$tape_argument", line.loc)
                    value.expr = _exchanged(value.expr, {name: made[name, function] for name in given})
        for block in state.func_ir.blocks.values():
            body: list[Statement] = []
            for line in block.body:
                body.append(line)
                if isinstance(line, ir.Assign) and isinstance(line.value, ir.Arg):
                    for (name, function), var in made.items():
                        if name == line.target.name:
                            body += _made(state, function, line.target, var)
            block.body = body
        return True


def _made(state: CompilerState, function: Code, given: Variable, made: Variable) -> list[Statement]:
    """Lines that make of an argument, where it comes in, what a function returns."""
    context, kinds = state.typingctx, state.typemap
    assert made.scope is not None
    var = made.scope.redefine("$tape_function", made.loc)
    kinds[var.name] = context.resolve_value_type(function)
    call = ir.Expr.call(var, [given], (), made.loc)
    form = kinds[var.name].get_call_type(context, (kinds[given.name],), {})
    state.calltypes[call], kinds[made.name] = form, form.return_type
    known = ir.Global(function.__name__, function, made.loc)
    return [ir.Assign(known, var, made.loc), ir.Assign(call, made, made.loc)]


def _exchanged(tree: Any, made: dict[str, Variable]) -> Any:
    """An expression with other operands."""
    if isinstance(tree, tuple):
        return tree[0], [_exchanged(part, made) for part in tree[1]]
    return made.get(tree.name, tree) if isinstance(tree, ir.Var) else tree
