"""What is written to arrays of floats that keep their statements, expressions without an array between."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

from numba.core import ir, types
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.errors import TypingError
from numba.extending import intrinsic

from tapegrad.native.arrays.argument_arrays import WrittenArray
from tapegrad.native.arrays.bounds import check_index
from tapegrad.native.arrays.expression_code import WHOLE, Operand
from tapegrad.native.arrays.expressions import record, recordable, single, stored
from tapegrad.native.arrays.targets import target_of
from tapegrad.native.emission.annotations import (
    Builder,
    CompilerState,
    Context,
    Emission,
    RightSide,
    Signature,
    Statement,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.numbers.operators import KINDS
from tapegrad.native.numbers.scalar import PASSIVE, Active, Expression, is_active


def _fits(kind: WrittenArray, x: Type) -> bool:
    """Whether values of this type can be written."""
    if isinstance(x, types.Array):
        number = x.dtype
        known = is_active(number) or number == types.float64 or isinstance(number, WHOLE)
        return known and x.ndim <= kind.ndim and getattr(number, "spec", ()) == ()
    return isinstance(x, (*PASSIVE, *KINDS))


def _plain_store(typingctx: TypingContext, array: Type, index: Type, x: Type, words: Type) -> Emission:
    """As Numba writes to an array of any other type."""
    given = Active(x.spec) if isinstance(x, Expression) else x
    known = typingctx.resolve_value_type(operator.setitem)
    place = types.ellipsis if isinstance(index, types.NoneType) else index
    if place is not index and getattr(given, "dtype", None) != array.dtype:
        raise TypingError(f"tapegrad: No conversion from {given} to {array} in place")
    form = known.get_call_type(typingctx, (array, place, given), {})

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        if isinstance(array, types.Array):
            check_index(context, builder, array, args[0], (place, args[1]), words.literal_value)
        kinds = array, place, x
        cast = [context.cast(builder, *row) for row in zip(args, kinds, form.args, strict=False)]
        context.get_function(known, form)(builder, cast)
        return context.get_dummy_value()

    return types.none(array, index, x, words), code


@intrinsic(prefer_literal=True)
def store(typingctx: TypingContext, array: Type, index: Type, x: Type, words: Type) -> Emission:
    """Write to an array at an index; `words` say who does what to what."""
    index, x = types.unliteral(index), types.unliteral(x)
    if not isinstance(array, WrittenArray):
        return _plain_store(typingctx, array, index, x, words)
    if not _fits(array, x):
        raise TypingError(f"tapegrad: No conversion from {x} to {array} in setitem")

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        target = target_of(context, builder, (array, args[0]), (index, args[1]), words.literal_value)
        given = Operand(x, args[2])
        if not isinstance(x, types.Array):
            given = single(context, builder, x, args[2])
        tree = ir.Var(None, "x", ir.unknown_loc)
        record(context, builder, types.none, tree, {"x": given}, target=target)
        return context.get_dummy_value()

    return types.none(array, index, x, words), code


PURE = ir.Global, ir.FreeVar, ir.Const  # what may stand between an expression and what writes it


@register_pass(mutates_CFG=False, analysis_only=False)
class Storing(FunctionPass):
    """Makes one of an expression and what writes it, where that is all that is asked of it."""

    _name = "tapegrad_storing"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: CompilerState) -> bool:
        """Rewrite a function in which Numba has found expressions."""
        kinds, uses = state.typemap, Counter[str]()
        lines = [line for block in state.func_ir.blocks.values() for line in block.body]
        for line in lines:
            if not isinstance(line, ir.Del):
                uses.update(var.name for var in line.list_vars())
        for block in state.func_ir.blocks.values():
            body: list[Statement] = []
            made: dict[str, int] = {}  # where expressions are that nothing may have changed since
            for line in block.body:
                value = line.value if isinstance(line, ir.Assign) else None
                if isinstance(value, ir.Expr) and value.op == "arrayexpr":
                    if uses[line.target.name] == 2 and recordable(value.ty, value.expr, kinds.__getitem__):
                        made[line.target.name] = len(body)
                elif isinstance(value, ir.Expr) and value.op == "call" and key_of(value, kinds) is store:
                    array, _, x, _ = value.args
                    at = made.get(x.name)
                    if at is not None and isinstance(kinds[array.name], WrittenArray):
                        self._join(body, at, line, kinds)
                    made = {}
                elif not self._pure(value, kinds):
                    made = {}
                body.append(line)
            block.body = body
        return True

    def _pure(self, value: RightSide | None, kinds: dict[str, Type]) -> bool:
        """Whether a line changes nothing that an expression reads."""
        if isinstance(value, ir.Expr) and value.op == "call":
            return key_of(value, kinds) is slice
        return isinstance(value, PURE) or (isinstance(value, ir.Expr) and value.op == "arrayexpr")

    def _join(self, body: list[Statement], at: int, line: Statement, kinds: dict[str, Type]) -> None:
        """Let an expression be computed where it is written."""
        array, index, _, words = line.value.args
        made = body[at].value
        if made.ty.ndim > kinds[array.name].ndim:
            return
        made.expr = stored, [made.expr, array, index, ir.Const(kinds[words.name].literal_value, line.loc)]
        made.ty = kinds[line.target.name]
        del body[at]
        line.value = made


def key_of(call: RightSide, kinds: dict[str, Type]) -> Any:
    """Return the function that is called; None if that is no function of Numba's."""
    kind = kinds[call.func.name]
    return kind.typing_key if isinstance(kind, types.Function) else None
