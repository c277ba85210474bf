"""Arrays that are arguments and that expressions and products alone read: floats as they were given.

As active numbers they would be written, and read again, with 24 bytes an element. Their statements follow
each other, so the number of the first one and the tape are all that a record has to know.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from llvmlite import ir as llvm
from numba.core import cgutils, ir, types
from numba.core.compiler import run_frontend
from numba.core.errors import NumbaError
from numba.core.imputils import impl_ret_borrowed, lower_builtin
from numba.core.ir_utils import get_definition, guard
from numba.extending import intrinsic, models, register_model
from numba.np import arrayobj

from tapegrad.native.algebra import I64, OPS, Emitter
from tapegrad.native.annotations import (
    Builder,
    Code,
    Context,
    DataModelManager,
    Emission,
    RightSide,
    Signature,
    Type,
    TypingContext,
    Value,
    Variable,
)
from tapegrad.native.arrays import is_elementwise
from tapegrad.native.scalar import Active, struct

ATTRIBUTES = ("ndim", "shape", "size")
COUNTS = {
    np.dot: 2,
    np.where: 3,
    np.clip: 3,
    np.sum: 1,
}  # arguments of functions that records know


class ArgumentArray(types.Array):
    """An array of active numbers whose values are an array of floats, in the order of C."""

    is_internal = True  # Numba looks for expressions among operands of such types alone

    def __init__(self, ndim: int) -> None:
        super().__init__(Active(), ndim, "C", name=f"array({Active()}, {ndim}d, C, argument)")

    @property
    def floats(self) -> types.Array:
        """The type of the array of values."""
        return types.Array(types.float64, self.ndim, "C")


@register_model(ArgumentArray)
class _Model(models.StructModel):
    def __init__(self, manager: DataModelManager, kind: ArgumentArray) -> None:
        members = [("floats", kind.floats), ("first", types.int64), ("tape", types.int64)]
        super().__init__(manager, kind, members)


def fits(kind: Type) -> bool:
    """Whether an argument of this type can be such an array."""
    plain = isinstance(kind, types.Array) and kind.dtype == types.float64
    return plain and kind.layout == "C" and kind.ndim > 0 and kind.aligned


def argument(
    context: Context, builder: Builder, kind: ArgumentArray, floats: Value, first: Value, tape: Value
) -> Value:
    """Emit such an array."""
    made = context.make_helper(builder, kind)
    made.floats, made.first, made.tape = floats, first, tape
    context.nrt.incref(builder, kind.floats, floats)
    return made._getvalue()


def parts_of(
    context: Context, builder: Builder, kind: ArgumentArray, value: Value
) -> tuple[Value, Value, Value]:
    """Emit the array of floats, the number of the first statement, and the tape."""
    found = context.make_helper(builder, kind, value=value)
    return found.floats, found.first, found.tape


@intrinsic
def floats_of(typingctx: TypingContext, x: Type) -> Emission:
    """Return the values; any other array is itself."""
    if not isinstance(x, ArgumentArray):
        return x(x), lambda cx, b, sig, args: impl_ret_borrowed(cx, b, x, args[0])

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> llvm.Value:
        floats, *_ = parts_of(context, builder, x, args[0])
        return impl_ret_borrowed(context, builder, sig.return_type, floats)

    return x.floats(x), code


@lower_builtin(operator.getitem, ArgumentArray, types.BaseTuple)
@lower_builtin(operator.getitem, ArgumentArray, types.Integer)
def _element(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> llvm.Value:
    """One number, as small products read them."""
    kind, index = sig.args
    if not isinstance(sig.return_type, Active):
        raise NotImplementedError("tapegrad: elements alone are read of arguments that stay as they are")
    floats, first, tape = parts_of(context, builder, kind, args[0])
    array = arrayobj.make_array(kind.floats)(context, builder, floats)
    kinds, parts = (
        (list(index), cgutils.unpack_tuple(builder, args[1])) if kind.ndim > 1 else ([index], [args[1]])
    )
    kinds, parts = arrayobj.normalize_indices(context, builder, kinds, parts)
    shape, at = cgutils.unpack_tuple(builder, array.shape), llvm.Constant(I64, 0)
    for one, part, extent in zip(kinds, parts, shape, strict=True):
        place = arrayobj.fix_integer_index(context, builder, one, part, extent)
        at = builder.add(builder.mul(at, extent), place)
    value = builder.load(builder.gep(array.data, [at]))
    return struct(Emitter(context, builder), sig.return_type, [value, builder.add(first, at), tape])


def read_by_expressions(function: Code) -> frozenset[int]:
    """Return the positions of arguments that are assigned once and are operands of these alone."""
    try:
        code = run_frontend(function)
    except NumbaError:  # which the twin will raise, too
        return frozenset()
    lines = [line for block in code.blocks.values() for line in block.body if not isinstance(line, ir.Del)]
    given = [line for line in lines if isinstance(line, ir.Assign) and isinstance(line.value, ir.Arg)]
    named = function.__code__.co_argcount  # behind them may stand a tuple of all others
    found = {line.target.name: line.value.index for line in given if line.value.index < named}
    for line in lines:
        used: list[Variable] = []
        if not isinstance(line, ir.Assign):
            used = line.list_vars()
        elif not isinstance(line.value, ir.Arg):
            used = [line.target] if _is_part(code, line.value) else line.list_vars()
        for var in used:
            found.pop(var.name, None)
    return frozenset(found.values())


def _resolved(code: ir.FunctionIR, var: Variable) -> Any:
    """The Python object that a variable is for certain; None if that is not known."""
    found = guard(get_definition, code, var)
    if isinstance(found, (ir.Global, ir.FreeVar)):
        return found.value
    if isinstance(found, ir.Expr) and found.op == "getattr":
        owner = _resolved(code, found.value)
        return getattr(owner, found.attr, None) if isinstance(owner, ModuleType) else None
    return None


def _is_part(code: ir.FunctionIR, value: RightSide) -> bool:
    """Whether a line is a part of an expression of arrays, or reads how large they are."""
    if not isinstance(value, ir.Expr):
        return False
    if value.op in ("binop", "unary"):
        return is_elementwise(value.fn) or value.fn is operator.matmul
    if value.op == "getattr":
        return value.attr in ATTRIBUTES
    if value.op != "call" or value.kws or value.vararg:
        return False
    function = _resolved(code, value.func)
    if isinstance(function, np.ufunc):
        return function in OPS and len(value.args) == function.nin
    return any(function is known and len(value.args) == n for known, n in COUNTS.items())
