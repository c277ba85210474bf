"""Expressions of arrays that expressions and products alone read: their results are arrays of floats."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir as llvm
from numba.core import cgutils, ir, types
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.extending import intrinsic

from tapegrad.native.arrays.argument_arrays import ArgumentArray, WrittenArray, written_array
from tapegrad.native.arrays.expression_code import Operand
from tapegrad.native.arrays.expressions import dense, record, recordable
from tapegrad.native.emission.algebra import I64
from tapegrad.native.emission.annotations import (
    Builder,
    CompilerState,
    Context,
    Emission,
    Intrinsic,
    Signature,
    Statement,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.numbers.operators import INLINE, statement


def _ending(name: str, result: type[ArgumentArray]) -> Intrinsic:
    """A function that ends an expression; of arrays it gives one of floats."""

    def end(typingctx: TypingContext, x: Type) -> Emission:
        if not dense(x) or isinstance(x, result) or x.dtype.spec != () or x.ndim == 0:
            return statement._defn(typingctx, x)

        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            tree = ir.Var(None, "x", ir.unknown_loc)
            return record(context, builder, sig.return_type, tree, {"x": Operand(x, args[0])})

        return result(x.ndim)(x), code

    end.__name__ = end.__qualname__ = name
    return intrinsic(end)


counted, written = _ending("counted", ArgumentArray), _ending("written", WrittenArray)
INLINE.update((counted, written))  # of numbers they are straight code


@intrinsic
def zeros(typingctx: TypingContext, shape: Type) -> Emission:
    """Return an array of zeros that is written to."""
    kinds = list(shape) if isinstance(shape, types.BaseTuple) else [shape]
    if not kinds or not all(isinstance(kind, types.Integer) for kind in kinds):
        return None
    result = WrittenArray(len(kinds))

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        parts = cgutils.unpack_tuple(builder, args[0]) if isinstance(shape, types.BaseTuple) else [args[0]]
        extents = [context.cast(builder, v, k, types.int64) for v, k in zip(parts, kinds, strict=True)]
        for extent in extents:
            negative = builder.icmp_signed("<", extent, llvm.Constant(I64, 0))
            with builder.if_then(negative, likely=False):
                context.call_conv.return_user_exc(builder, ValueError, ("a negative number of elements",))
        value, array = written_array(context, builder, result, extents)
        cgutils.memset(builder, array.data, builder.mul(array.nitems, array.itemsize), 0)
        return value

    return result(shape), code


@register_pass(mutates_CFG=False, analysis_only=False)
class Counting(FunctionPass):
    """Lets what Numba has found be such results where they are made."""

    _name = "tapegrad_counting"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: CompilerState) -> bool:
        """Rewrite a function in which Numba has found expressions."""
        kinds = state.typemap
        for block in state.func_ir.blocks.values():
            body: list[Statement] = []
            made: dict[str, int] = {}  # where expressions are that are not yet arrays of floats
            for line in block.body:
                value = line.value if isinstance(line, ir.Assign) else None
                if isinstance(value, ir.Expr) and value.op == "arrayexpr":
                    if recordable(value.ty, value.expr, kinds.__getitem__):
                        made[line.target.name] = len(body)
                elif isinstance(value, ir.Expr) and value.op == "call" and self._counts(value, kinds):
                    at = made.pop(value.args[0].name, None)
                    if at is not None:
                        kinds.pop(body[at].target.name)
                        kinds[body[at].target.name] = body[at].value.ty = kinds[line.target.name]
                        line.value = value.args[0]
                body.append(line)
            block.body = body
        return True

    def _counts(self, call: ir.Expr, kinds: dict[str, Type]) -> bool:
        """Whether a call makes an array of floats of an expression."""
        kind = kinds[call.func.name]
        return isinstance(kind, types.Function) and kind.typing_key in (counted, written)
