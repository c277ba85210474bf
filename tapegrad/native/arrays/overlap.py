"""In-place operations whose operands share memory with their target, as NumPy has them: as if none did.

Numba computes element by element, so in ``v *= w[:3]`` a later element may be multiplied by what an earlier
one has written. Functions of `tapegrad.njit`, and what they call, are compiled with a pass that copies such
operands, so that values are NumPy's, and those that the recording twin computes.
"""

from __future__ import annotations

import types as python_types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit
from numba.core import cgutils, ir, types
from numba.core.caching import NullCache
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.dispatcher import Dispatcher
from numba.core.imputils import impl_ret_borrowed, impl_ret_new_ref
from numba.core.ir_utils import build_definitions
from numba.core.typed_passes import NopythonTypeInference
from numba.core.untyped_passes import InlineInlinables
from numba.extending import intrinsic
from numba.np import arrayobj

from tapegrad.native.analysis.captured import hold, source_of
from tapegrad.native.analysis.masks import Masks
from tapegrad.native.emission.annotations import (
    Builder,
    Code,
    Compiled,
    CompilerState,
    Context,
    Emission,
    Key,
    Location,
    RightSide,
    Signature,
    Type,
    TypingContext,
    Value,
    Variable,
)
from tapegrad.native.tapes.stored import Stored

if TYPE_CHECKING:
    from numba.core.compiler_machinery import PassManager

OUT = {np.clip: 3, np.round: 2, np.around: 2}  # the place of `out`, besides ufuncs


def copying(primal: Compiled) -> Compiled:
    """Return the dispatcher that computes what a dispatcher of Numba's does, in-place operations as NumPy."""
    found = vars(primal).get("_tapegrad_values")
    if found is None:
        options = {k: v for k, v in primal.targetoptions.items() if k != "nopython"}
        found = njit(pipeline_class=_Compiler, **options)(source_of(primal))
        if not isinstance(primal._cache, NullCache):
            found._cache = Stored(primal, "values")
        hold(primal, found)
        found = vars(primal).setdefault("_tapegrad_values", found)
    return found


class _Compiler(CompilerBase):
    """Numba's compiler, with the pass."""

    def define_pipelines(self) -> list[PassManager]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_Apart, InlineInlinables)
        passes.add_pass_after(Masks, NopythonTypeInference)
        passes.finalize()
        return [passes]


@register_pass(mutates_CFG=False, analysis_only=False)
class _Apart(FunctionPass):
    """Puts a call of `apart` around operands of in-place operations, here and in what is called."""

    _name = "tapegrad_apart"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: CompilerState) -> bool:
        """Rewrite a function."""
        self.ir = state.func_ir
        for block in self.ir.blocks.values():
            self.scope, self.body = block.scope, []
            for line in block.body:
                if isinstance(line, ir.Assign):
                    line.value = self._value(line.value, line.loc)
                self.body.append(line)
            block.body = self.body
        self.ir._definitions = build_definitions(self.ir.blocks)
        return True

    def _value(self, value: RightSide, loc: Location) -> RightSide:
        called = self._constant(value)
        called = getattr(called, "_tapegrad_primal", called)
        if isinstance(called, Dispatcher):
            return ir.Global(called.py_func.__name__, copying(called), loc)
        if not isinstance(value, ir.Expr):
            return value
        if value.op == "inplace_binop":
            value.rhs = self._apart(value.rhs, value.lhs, loc)
        elif value.op == "call" and not value.vararg:
            function, named = self._constant(value.func), dict(value.kws)
            place = function.nin if isinstance(function, np.ufunc) else OUT.get(_hashed(function))
            out = named.get("out") if place is None or len(value.args) <= place else value.args[place]
            if place is not None and out is not None:
                args = [self._apart(x, out, loc) for x in value.args[:place]]
                return ir.Expr.call(value.func, [*args, *value.args[place:]], value.kws, value.loc)
        return value

    def _constant(self, value: RightSide) -> Any:
        """The Python object that a value is for certain; None if that is not known."""
        if isinstance(value, ir.Var):
            try:
                value = self.ir.get_definition(value)
            except KeyError:
                return None
        if isinstance(value, (ir.Global, ir.FreeVar)):
            return value.value
        if isinstance(value, ir.Expr) and value.op == "getattr":
            owner = self._constant(value.value)
            return getattr(owner, value.attr, None) if isinstance(owner, python_types.ModuleType) else None
        return None

    def _apart(self, x: Variable, target: Variable, loc: Location) -> Variable:
        return self._assigned(
            ir.Expr.call(self._assigned(ir.Global("apart", apart, loc), loc), [x, target], (), loc), loc
        )

    def _assigned(self, value: RightSide, loc: Location) -> Variable:
        var = self.scope.redefine("$apart", loc)
        self.body.append(ir.Assign(value, var, loc))
        return var


def _hashed(function: Key | None) -> Code | None:
    return function if isinstance(function, python_types.FunctionType) else None


@intrinsic
def apart(typingctx: TypingContext, x: Type, target: Type) -> Emission:
    """Return x; if it is an array that shares memory with a target in another way, a copy."""
    if not isinstance(x, types.Array) or not isinstance(target, types.Array):
        return x(x, target), lambda cx, b, sig, args: impl_ret_borrowed(cx, b, x, args[0])

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        copy = types.Array(x.dtype, x.ndim, "F" if x.layout == "F" and x.ndim > 1 else "C")
        found = cgutils.alloca_once_value(builder, args[0])
        context.nrt.incref(builder, x, args[0])
        with builder.if_then(_shared(context, builder, sig, args), likely=False):
            other = context.compile_internal(builder, lambda a: a.copy(), copy(x), args[:1])
            context.nrt.decref(builder, x, args[0])
            builder.store(other, found)  # arrays of any layout are the same words
        return impl_ret_new_ref(context, builder, x, builder.load(found))

    return x(x, target), code


def _shared(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
    """Whether two arrays may have memory in common, but where they are one and the same."""
    extents, arrays = [], []
    for kind, value in zip(sig.args, args, strict=True):
        array = arrayobj.make_array(kind)(context, builder, value)
        shape, strides = (cgutils.unpack_tuple(builder, part) for part in (array.shape, array.strides))
        where = context, builder, kind, array, shape, strides, array.data
        extents += arrayobj.get_array_memory_extents(*where)
        arrays.append([builder.ptrtoint(array.data, cgutils.intp_t), *shape, *strides])
    overlap = arrayobj.extents_may_overlap(context, builder, *extents)
    if len(arrays[0]) != len(arrays[1]):
        return overlap
    same = cgutils.true_bit
    for a, b in zip(*arrays, strict=True):
        same = builder.and_(same, builder.icmp_signed("==", a, b))
    return builder.and_(overlap, builder.not_(same))
