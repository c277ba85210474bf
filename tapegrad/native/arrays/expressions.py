"""Elementwise expressions of arrays of active numbers: one record, whatever they consist of.

Numba finds the expressions and gives them to us to lower. `expression_code` emits the function of a block of
elements, and all else is done by `array_records`. What Numba alone knows, and expressions of complex numbers,
series and integers, it computes itself, and each element is a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core import ir as numba_ir
from numba.core.imputils import impl_ret_new_ref
from numba.core.registry import cpu_target
from numba.core.typing.templates import signature
from numba.extending import intrinsic
from numba.np import arrayobj
from numba.np.ufunc.array_exprs import _lower_array_expr

from tapegrad.native.arrays.argument_arrays import (
    ArgumentArray,
    WrittenArray,
    argument,
    note_statements,
    written_array,
)
from tapegrad.native.arrays.array_layout import (
    AS_FLOATS,
    AS_NUMBERS,
    BEGIN,
    HOME,
    SHAPE,
    SINGLE,
    STORED,
    SUMS,
    UNEVEN,
)
from tapegrad.native.arrays.arrays import is_active_array
from tapegrad.native.arrays.expression_code import LOGIC, WHOLE, Operand, Row, Tree, compiled
from tapegrad.native.arrays.targets import Target, target_of
from tapegrad.native.emission.algebra import (
    COMPARISONS,
    I64,
    MARKED,
    OPS,
    WHERE,
)
from tapegrad.native.emission.annotations import (
    Builder,
    Context,
    Emission,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.emission.deferred import emit_address, emit_adjoint, emit_call
from tapegrad.native.numbers.scalar import PASSIVE, Active, is_active
from tapegrad.native.tapes.buffers import empty_array


def names_in(tree: Tree) -> list[str]:
    """Return the names of an expression's operands, each once."""
    if isinstance(tree, tuple):
        return list(dict.fromkeys(name for part in tree[1] for name in names_in(part)))
    return [tree.name] if isinstance(tree, numba_ir.Var) else []


def dense(kind: Type) -> bool:
    """Whether this is the type of an array of numbers that records of arrays know."""
    return is_active_array(kind) and MARKED not in kind.dtype.spec and min(kind.dtype.spec, default=0) >= 0


def recordable(result: Type, tree: Tree, kind_of: Callable[[str], Type]) -> bool:
    """Whether an expression is recorded as one."""
    if not dense(result):
        return False

    def whole(tree: Tree) -> bool:
        """Whether it is a whole number or a truth value; of those alone, arithmetic is not that of floats."""
        if isinstance(tree, tuple):
            return all(map(whole, tree[1]))
        if isinstance(tree, numba_ir.Const):
            return isinstance(tree.value, int)
        kind = kind_of(tree.name)
        return isinstance(kind.dtype if isinstance(kind, types.Array) else kind, WHOLE)

    def truth(tree: Tree) -> bool:
        if isinstance(tree, tuple):
            return tree[0] in COMPARISONS or (tree[0] in LOGIC and all(map(truth, tree[1])))
        kind = types.boolean if isinstance(tree, numba_ir.Const) else kind_of(tree.name)
        return (kind.dtype if isinstance(kind, types.Array) else kind) == types.boolean

    def known(tree: Tree) -> bool:
        if isinstance(tree, tuple):
            if tree[0] in LOGIC:
                return truth(tree) and all(map(known, tree[1]))
            there_is = tree[0] in OPS or tree[0] in COMPARISONS or tree[0] is WHERE
            return there_is and all(map(known, tree[1])) and not all(map(whole, tree[1]))
        if isinstance(tree, numba_ir.Const):
            return isinstance(tree.value, (int, float))
        kind = kind_of(tree.name)
        if isinstance(kind, types.Array):
            return is_active_array(kind) or kind.dtype == types.float64 or isinstance(kind.dtype, WHOLE)
        return isinstance(kind, PASSIVE)

    return known(tree)


def stored() -> None:
    """What stands in expressions for writing one: with it, an array, an index and words on that."""


def single(context: Context, builder: Builder, kind: Type, value: Value) -> Operand:
    """Return a number as an operand: one with derivatives is an array of no axes."""
    if not is_active(kind):
        return Operand(kind, value)
    active = Active(kind.spec)
    place = cgutils.alloca_once_value(builder, context.cast(builder, value, kind, active))
    array_kind = types.Array(active, 0, "C")
    array = arrayobj.make_array(array_kind)(context, builder)
    size = ir.Constant(I64, context.get_abi_sizeof(context.get_data_type(active)))
    arrayobj.populate_array(array, place, [], [], size, None)
    return Operand(array_kind, array._getvalue())


def lower(lowerer: Any, expr: Any) -> Value:
    """Lower an expression that Numba has found."""
    tree, axis, target = expr.expr, None, None
    operands: dict[str, Operand] = {}
    wrapped = tree[0] if tree[0] in (stored, summed_along) else None
    tree, *given = tree[1] if wrapped is not None else [tree]
    tree = _loaded(lowerer, tree, operands)
    if wrapped is stored:
        written, index, words = given
        array, at = ((lowerer.typeof(x.name), lowerer.loadvar(x.name)) for x in (written, index))
        target = target_of(lowerer.context, lowerer.builder, array, at, words.value)
    elif wrapped is summed_along:
        axis = lowerer.loadvar(given[0].name), lowerer.typeof(given[0].name), types.int64
        axis = lowerer.context.cast(lowerer.builder, *axis)
    elif not isinstance(expr.ty, Active) and not recordable(expr.ty, tree, lambda x: operands[x].kind):
        return _lower_array_expr(lowerer, expr)
    return record(lowerer.context, lowerer.builder, expr.ty, tree, operands, axis, target)


def _loaded(lowerer: Any, tree: Tree, operands: dict[str, Operand]) -> Tree:
    """Emit what is read; returns the expression by names of operands. A slice that is read twice is one."""
    if isinstance(tree, tuple):
        return tree[0], [_loaded(lowerer, part, operands) for part in tree[1]]
    if isinstance(tree, numba_ir.Const):
        return tree
    name = tree.name if isinstance(tree, numba_ir.Var) else _meaning(tree)
    if name not in operands:
        operands[name] = _operand(lowerer, tree)
    return numba_ir.Var(None, name, numba_ir.unknown_loc)


def _meaning(read: numba_ir.Expr) -> str:
    """What names a slice, or a number: equal for two only if they are the same."""
    if read.op == "call":
        return f"({read.args[0].name})"
    index = repr(read.index) if read.op == "static_getitem" else read.index.name
    return f"{read.value.name}[{index}]"


def _operand(lowerer: Any, read: numba_ir.Var | numba_ir.Expr) -> Operand:
    """Emit what is read, whose reference is that of the variable that it is, or is a part of."""
    context, builder = lowerer.context, lowerer.builder
    if isinstance(read, numba_ir.Var):
        return Operand(lowerer.typeof(read.name), lowerer.loadvar(read.name))
    if read.op == "call":
        name = read.args[0].name
        return single(context, builder, lowerer.typeof(name), lowerer.loadvar(name))
    value = lowerer.lower_expr(read.ty, read)
    context.nrt.decref(builder, read.ty, value)
    return Operand(read.ty, value)


cpu_target.target_context.special_ops["arrayexpr"] = lower


def record(
    context: Context,
    builder: Builder,
    result: Type,
    tree: Tree,
    operands: dict[str, Operand],
    axis: Value | None = None,
    target: Target | None = None,
) -> Value:
    """Emit an expression and its record; returns the array of its values.

    Or their sum, if a number is wanted, or their sums along an axis that is given; nothing where they are
    written to a target.
    """
    summed = isinstance(result, Active)
    spec = () if target is not None else result.spec if summed else result.dtype.spec
    places = [] if target is None else [Operand(target.kind, target.floats)]
    shape = _shape(context, builder, [*operands.values(), *places])
    total = _product(builder, shape)
    form, begin, home = AS_NUMBERS, ir.Constant(I64, 0), ir.Constant(I64, 0)
    value, length, inner = None, 0, 1
    if target is not None:
        array = _whole(context, builder, target, shape)
        form, home, begin = STORED, target.header, _kind_of_places(context, builder)
        out = array.data
    elif isinstance(result, WrittenArray):
        (value, array), form = written_array(context, builder, result, shape), AS_FLOATS
        out = array.data
    else:
        out, array, length, inner = _target(context, builder, result, shape, axis)
        form = AS_FLOATS if isinstance(result, ArgumentArray) else AS_NUMBERS
    copies = {name: _floats(context, builder, x) for name, x in operands.items() if x.whole}
    operands = operands | copies
    sums = SUMS if summed or axis is not None else STORED if target is not None else 0
    body = Row(context, builder.module, tree, operands, spec, sums)
    shape = shape or [ir.Constant(I64, 1)]
    words = [
        body.address, builder.ptrtoint(out, I64), body.kind(), len(operands),
        sum(x.active for x in operands.values()), body.own, body.common, total if summed else length, inner,
        total, form, begin, home, len(shape), *shape,
    ]  # fmt: skip
    assert len(words) == SHAPE + len(shape)
    for x in operands.values():
        words += _described(context, builder, x, shape)
    place = cgutils.alloca_once(builder, I64, len(words))
    for k, word in enumerate(words):
        word = word if isinstance(word, ir.Value) else ir.Constant(I64, int(word))
        builder.store(word, builder.gep(place, [ir.Constant(I64, k)], inbounds=True))
    emit_address(context, builder, compiled(spec, "reverse"))
    call = signature(types.none, types.int64)
    emit_call(context, builder, compiled(spec, "record"), call, [builder.ptrtoint(place, I64)])
    for x in copies.values():
        context.nrt.decref(builder, x.kind, x.value)
    if summed or target is not None:
        return builder.load(out) if summed else context.get_dummy_value()
    previous = [builder.load(builder.gep(place, [ir.Constant(I64, k)], inbounds=True)) for k in (BEGIN, HOME)]
    if value is not None:
        note_statements(context, builder, result, value, *previous)
        return value
    if isinstance(result, ArgumentArray):
        return argument(context, builder, result, array._getvalue(), *previous)
    return impl_ret_new_ref(context, builder, result, array._getvalue())


def _described(context: Context, builder: Builder, x: Operand, shape: Sequence[Value]) -> list[Any]:
    """The words of an operand."""
    given = x.array(context, builder)
    if given is None:
        number = context.cast(builder, x.value, x.kind, types.float64)
        address, steps = cgutils.alloca_once_value(builder, number), []
    else:
        address, steps = given.data, _steps(builder, x, given)
    steps = [ir.Constant(I64, 0)] * (len(shape) - len(steps)) + steps
    even = SINGLE if x.single else _even(builder, shape, steps)
    return [*x.numbering(context, builder), even, builder.ptrtoint(address, I64), *steps]


def _whole(context: Context, builder: Builder, target: Target, shape: Sequence[Value]) -> Any:
    """The parts of a target, whose shape is that of what is written for certain."""
    array = arrayobj.make_array(target.kind)(context, builder, target.floats)
    for extent, wanted in zip(shape, cgutils.unpack_tuple(builder, array.shape), strict=True):
        with builder.if_then(builder.icmp_signed("!=", extent, wanted), likely=False):
            words = "what is written to a part of an array has another shape than that"
            context.call_conv.return_user_exc(builder, ValueError, (words,))
    return array


def _kind_of_places(context: Context, builder: Builder) -> Value:
    """The address of the kind of a record that has statements and nothing else."""
    name, module = "kind_of_places", builder.module
    found = module.globals.get(name)
    if found is None:
        adjoint = emit_adjoint(context, module, compiled((), "reverse")).ptrtoint(I64)
        value = ir.Constant.literal_struct([adjoint, *[ir.Constant(I64, 0)] * 7])
        found = ir.GlobalVariable(module, value.type, name)
        found.linkage, found.global_constant, found.initializer = "internal", True, value
    return found.ptrtoint(I64)


def _target(
    context: Context, builder: Builder, result: Type, shape: Sequence[Value], axis: Value | None
) -> tuple[Value, Any, Value | int, Value | int]:
    """Where results go, the array if it is one, and of sums along an axis which: they are added to zeros."""
    if isinstance(result, Active):
        kind = context.get_value_type(result)
        out = cgutils.alloca_once(builder, kind)
        builder.store(ir.Constant(kind, None), out)
        return out, None, 0, 1
    kind = result.floats if isinstance(result, ArgumentArray) else result
    if axis is None:
        array = empty_array(context, builder, kind, shape)
        return array.data, array, 0, 1
    left, length, inner = _without(context, builder, shape, axis)
    array = empty_array(context, builder, kind, left)
    cgutils.memset(builder, array.data, builder.mul(array.nitems, array.itemsize), 0)
    return array.data, array, length, inner


@intrinsic
def summed(typingctx: TypingContext, x: Type) -> Emission:
    """Return the sum of all elements of an array of active numbers."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        tree = numba_ir.Var(None, "x", numba_ir.unknown_loc)
        return record(context, builder, sig.return_type, tree, {"x": Operand(x, args[0])})

    return Active(x.dtype.spec)(x), code


def _summing_along(x: Type, axis: Type, result: types.Array) -> Emission:
    """Sums of an array along an axis."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        tree, axis = numba_ir.Var(None, "x", numba_ir.unknown_loc), args[1]
        axis = context.cast(builder, axis, sig.args[1], types.int64)
        return record(context, builder, result, tree, {"x": Operand(x, args[0])}, axis)

    return result(x, axis), code


@intrinsic
def summed_along(typingctx: TypingContext, x: Type, axis: Type) -> Emission:
    """Return the sums of an array of active numbers along an axis."""
    return _summing_along(x, axis, types.Array(x.dtype, x.ndim - 1, "C"))


@intrinsic
def counted_along(typingctx: TypingContext, x: Type, axis: Type) -> Emission:
    """Return the same as floats whose statements follow each other."""
    return _summing_along(x, axis, ArgumentArray(x.ndim - 1))


def _floats(context: Context, builder: Builder, x: Operand) -> Operand:
    """An operand as an array of floats."""
    kind = types.Array(types.float64, x.kind.ndim, "C")
    form = signature(kind, x.kind)
    return Operand(kind, context.compile_internal(builder, _as_floats, form, [x.value]))


def _as_floats(x: Any) -> Any:
    out = np.empty(x.shape)
    out[...] = x
    return out


def _product(builder: Builder, extents: Sequence[Value]) -> Value:
    found = ir.Constant(I64, 1)
    for extent in extents:
        found = builder.mul(found, extent)
    return found


def _without(
    context: Context, builder: Builder, shape: Sequence[Value], axis: Value
) -> tuple[list[Value], Value, Value]:
    """A shape without an axis, how long that is, and how many elements a step along it is."""
    ndim, zero, one = ir.Constant(I64, len(shape)), ir.Constant(I64, 0), ir.Constant(I64, 1)
    negative = builder.icmp_signed("<", axis, zero)
    axis = builder.select(negative, builder.add(axis, ndim), axis)
    with builder.if_then(builder.icmp_unsigned(">=", axis, ndim), likely=False):
        words = f"axis is out of bounds for an array of {len(shape)} axes"
        context.call_conv.return_user_exc(builder, ValueError, (words,))
    length, inner, left = one, one, []
    for d, extent in enumerate(shape):
        here, place = builder.icmp_signed("==", axis, ir.Constant(I64, d)), ir.Constant(I64, d)
        length = builder.select(here, extent, length)
        behind = builder.icmp_signed(">", place, axis)
        inner = builder.mul(inner, builder.select(behind, extent, one))
        if d + 1 < len(shape):
            left.append(builder.select(builder.icmp_signed(">=", place, axis), shape[d + 1], extent))
    return left, length, inner


def _shape(context: Context, builder: Builder, operands: Sequence[Operand]) -> list[Value]:
    """The shape of operands beside each other; where they do not fit the code leaves."""
    ndim = max(x.kind.ndim for x in operands if isinstance(x.kind, types.Array))
    one, found, all_of = ir.Constant(I64, 1), [], []
    for x in operands:
        array = x.array(context, builder)
        if array is not None and x.kind.ndim:
            extents = cgutils.unpack_tuple(builder, array.shape, x.kind.ndim)
            all_of.append([None] * (ndim - x.kind.ndim) + extents)
    for axis in range(ndim):
        extents = [one_of[axis] for one_of in all_of if one_of[axis] is not None]
        whole = extents[0]
        for extent in extents[1:]:
            whole = builder.select(builder.icmp_signed("==", whole, one), extent, whole)
        for extent in extents if len(extents) > 1 else ():
            wrong = builder.and_(
                builder.icmp_signed("!=", extent, one), builder.icmp_signed("!=", extent, whole)
            )
            with builder.if_then(wrong, likely=False):
                message = "arrays do not broadcast: on each axis their sizes are equal, or one is 1"
                context.call_conv.return_user_exc(builder, ValueError, (message,))
        found.append(whole)
    return found


def _steps(builder: Builder, x: Operand, array: Any) -> list[Value]:
    """Bytes from an element to the next on each axis; 0 where there is one for all."""
    shape = cgutils.unpack_tuple(builder, array.shape, x.kind.ndim)
    strides = cgutils.unpack_tuple(builder, array.strides, x.kind.ndim)
    one, none = ir.Constant(I64, 1), ir.Constant(I64, 0)
    return [
        builder.select(builder.icmp_signed("==", extent, one), none, stride)
        for extent, stride in zip(shape, strides, strict=True)
    ]


def _even(builder: Builder, shape: Sequence[Value], steps: Sequence[Value]) -> Value:
    """The bytes from each element to the next one of all, in C order; UNEVEN if they differ."""
    if len(shape) == 1:
        return steps[0]
    one = span = ir.Constant(I64, 1)
    found, fits = ir.Constant(I64, 0), ir.Constant(ir.IntType(1), 1)
    for extent, step in zip(reversed(shape), reversed(steps), strict=True):
        alone = builder.icmp_signed("==", extent, one)
        first = builder.icmp_signed("==", span, one)
        contiguous = builder.icmp_signed("==", step, builder.mul(found, span))
        fits = builder.and_(fits, builder.or_(alone, builder.or_(first, contiguous)))
        found = builder.select(builder.and_(first, builder.not_(alone)), step, found)
        span = builder.mul(span, extent)
    return builder.select(fits, found, ir.Constant(I64, UNEVEN))
