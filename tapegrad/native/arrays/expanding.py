"""Arrays that are floats become what Numba knows, for expressions that are not one record."""

from __future__ import annotations

from typing import Any

from numba.core import ir
from numba.core.compiler_machinery import FunctionPass, register_pass

from tapegrad.native.arrays.argument_arrays import ArgumentArray, floats_of
from tapegrad.native.arrays.arrays import is_recorded_array
from tapegrad.native.arrays.copied_arguments import expanded
from tapegrad.native.arrays.expressions import names_in, recordable
from tapegrad.native.emission.annotations import Code, CompilerState, Statement, Variable


@register_pass(mutates_CFG=False, analysis_only=False)
class Expanding(FunctionPass):
    """Gives expressions that Numba lowers arrays of active numbers, those that only read values floats."""

    _name = "tapegrad_expanding"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: CompilerState) -> bool:
        """Rewrite a function in which Numba has found expressions."""
        kinds = state.typemap
        given = {  # what nobody writes to is copied where it comes in
            line.target.name
            for block in state.func_ir.blocks.values()
            for line in block.body
            if isinstance(line, ir.Assign) and isinstance(line.value, ir.Arg)
        }
        made: dict[tuple[str, Code], Variable] = {}
        for block in state.func_ir.blocks.values():
            body: list[Statement] = []
            for line in block.body:
                value = line.value if isinstance(line, ir.Assign) else None
                if isinstance(value, ir.Expr) and value.op == "arrayexpr":
                    exchanged: dict[str, Variable] = {}
                    for name in names_in(value.expr):
                        if not isinstance(kinds[name], ArgumentArray):
                            continue
                        if recordable(value.ty, value.expr, kinds.__getitem__):
                            break
                        function = expanded if is_recorded_array(value.ty) else floats_of
                        if name in given and (name, function) in made:
                            exchanged[name] = made[name, function]
                            continue
                        exchanged[name] = block.scope.redefine("$tape_argument", line.loc)
                        if name in given:
                            made[name, function] = exchanged[name]
                        else:
                            body += _made(
                                state, function, ir.Var(block.scope, name, line.loc), exchanged[name]
                            )
                    value.expr = _exchanged(value.expr, exchanged)
                body.append(line)
            block.body = body
        for block in state.func_ir.blocks.values():
            body = []
            for line in block.body:
                body.append(line)
                if isinstance(line, ir.Assign) and isinstance(line.value, ir.Arg):
                    for (name, function), var in made.items():
                        if name == line.target.name:
                            body += _made(state, function, line.target, var)
            block.body = body
        return True


def _made(state: CompilerState, function: Code, given: Variable, made: Variable) -> list[Statement]:
    """Lines that make of an array, where it is assigned, what a function returns."""
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
