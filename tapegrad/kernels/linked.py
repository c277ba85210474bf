"""SciPy's special functions in compiled code: the inner loops of its ufuncs, called for one element.

`kernels.symbols` knows where they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tapegrad.kernels.symbols import FUNCTIONS, can_link, symbols_of, ways_of

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.typing.templates import Signature

F64, I64, POINTER = ir.DoubleType(), ir.IntType(64), ir.IntType(8).as_pointer()
LOOP = ir.FunctionType(ir.VoidType(), [POINTER] * 4)


def emit_call(builder: ir.IRBuilder, name: str, values: Sequence[ir.Value]) -> ir.Value:
    """Emit a call of a function of numbers in double precision."""
    found = FUNCTIONS[name]
    ways = ways_of(found)
    if ways == [False]:
        return _emit(builder, name, False, values)
    first, out = values[0], cgutils.alloca_once(builder, F64)
    if ways == [True]:
        whole = builder.bitcast(builder.fptosi(first, I64), F64)
        return _emit(builder, name, True, [whole, *values[1:]])
    rounded = builder.call(builder.module.declare_intrinsic("llvm.rint", [F64]), [first])
    size = builder.call(builder.module.declare_intrinsic("llvm.fabs", [F64]), [first])
    small = builder.fcmp_ordered("<", size, ir.Constant(F64, 2.0**53))
    is_whole = builder.and_(builder.fcmp_ordered("==", first, rounded), small)
    with builder.if_else(is_whole) as (then, otherwise):
        with then:
            whole = builder.bitcast(builder.fptosi(first, I64), F64)
            builder.store(_emit(builder, name, True, [whole, *values[1:]]), out)
        with otherwise:
            builder.store(_emit(builder, name, False, values), out)
    return builder.load(out)


def _emit(builder: ir.IRBuilder, name: str, whole: bool, values: Sequence[ir.Value]) -> ir.Value:
    """Emit a call of a loop: operands and results have a slot each."""
    symbols = symbols_of(name, whole)
    assert symbols is not None
    ufunc, result, _ = FUNCTIONS[name]
    slots = cgutils.alloca_once(builder, F64, size=ufunc.nargs)
    places = cgutils.alloca_once(builder, POINTER, size=ufunc.nargs)
    words = cgutils.alloca_once(builder, I64, size=1 + ufunc.nargs)
    for k in range(ufunc.nargs):
        at = builder.gep(slots, [ir.Constant(I64, k)])
        if k < ufunc.nin:
            builder.store(values[k], at)
        builder.store(builder.bitcast(at, POINTER), builder.gep(places, [ir.Constant(I64, k)]))
    for k, word in enumerate((1, *[0] * ufunc.nargs)):  # one element; strides
        builder.store(ir.Constant(I64, word), builder.gep(words, [ir.Constant(I64, k)]))
    loop = cgutils.get_or_insert_function(builder.module, LOOP, symbols[0])
    data = builder.module.globals.get(symbols[1])
    if data is None:
        data = ir.GlobalVariable(builder.module, ir.IntType(8), symbols[1])
        data.linkage = "external"
    steps = builder.gep(words, [ir.Constant(I64, 1)])
    builder.call(loop, [builder.bitcast(x, POINTER) for x in (places, words, steps, data)])
    return builder.load(builder.gep(slots, [ir.Constant(I64, ufunc.nin + result)]))


def emit_raise(context: Any, builder: ir.IRBuilder) -> None:
    """Emit what leaves a function of Numba's where SciPy has set an exception, as users may ask of it.

    Where Python's lock is released, which a look would have to wait for, the exception stays set.
    """
    module = builder.module
    holds = cgutils.get_or_insert_function(module, ir.FunctionType(ir.IntType(32), []), "PyGILState_Check")
    locked = builder.icmp_signed("!=", builder.call(holds, []), ir.Constant(ir.IntType(32), 0))
    with builder.if_then(locked):
        raised = cgutils.is_not_null(builder, context.get_python_api(builder).err_occurred())
        with builder.if_then(raised, likely=False):
            context.call_conv.return_exc(builder)


@functools.cache
def function(name: str, dtype: types.Float, raises: bool = False) -> Callable[..., float]:
    """Return a function for a Numba dtype, to be called in compiled code; it computes in double precision.

    It `raises` exceptions that SciPy sets, or leaves them to who has called the code.
    """
    if not can_link(name):
        raise ValueError(f"no function {name} to link")
    count, narrow = FUNCTIONS[name].ufunc.nin, dtype == types.float32

    def emit(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]
    ) -> ir.Value:
        args = [builder.fpext(x, F64) if narrow else x for x in args]
        out = emit_call(builder, name, args)
        if raises:
            emit_raise(context, builder)
        return builder.fptrunc(out, ir.FloatType()) if narrow else out

    form = dtype(*[dtype] * count)
    names = ", ".join(f"x{k}" for k in range(count))
    space: dict[str, Any] = {"emit": emit, "form": form}
    exec(f"def call(typingctx, {names}):\n    return form, emit", space)
    return intrinsic(space["call"])
