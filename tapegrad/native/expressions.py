"""Elementwise expressions of arrays of active numbers: one record, whatever they consist of.

Numba finds the expressions and gives them to us to lower. The function of a block of elements is emitted
here: values, then the partials by operands of the expression as a whole, by the rules of `tapegrad.ops` run
backwards through it. All else is done by `array_records`. What Numba alone knows, and expressions of complex
numbers, series and integers, it computes itself, and each element is a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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

from tapegrad.native.algebra import (
    COMPARISONS,
    F64,
    I64,
    MARKED,
    OPS,
    Emitter,
    Number,
    Real,
    Spec,
    choice,
    compare,
    components,
    evaluate,
    is_step,
    partial,
)
from tapegrad.native.annotations import (
    Builder,
    Context,
    Emission,
    Module,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.array_records import BLOCK, SHAPE, SINGLE, UNEVEN
from tapegrad.native.arrays import is_active_array
from tapegrad.native.buffers import empty_array
from tapegrad.native.deferred import Deferred, emit_address, emit_adjoint, emit_call
from tapegrad.native.scalar import PASSIVE, Active, taped
from tapegrad.ops import MEANING

FLOATS = ir.PointerType(F64)
WHOLE = types.Integer, types.Boolean  # of arrays of these a copy is made, of floats
POWER = MEANING[np.power].name
ARITHMETIC = {"fadd", "fsub", "fmul", "fdiv", "fneg"}


class Operand(NamedTuple):
    """An operand of an expression: an array, active or plain, or a number."""

    kind: Type
    value: Value

    @property
    def active(self) -> bool:
        """Whether it carries derivatives."""
        return is_active_array(self.kind)

    def array(self, context: Context, builder: Builder) -> Any:
        """The parts of an array; None of a number."""
        if not isinstance(self.kind, types.Array):
            return None
        return arrayobj.make_array(self.kind)(context, builder, self.value)

    @property
    def whole(self) -> bool:
        """Whether it is an array of whole numbers or truth values."""
        return isinstance(self.kind, types.Array) and isinstance(self.kind.dtype, WHOLE)

    @property
    def single(self) -> bool:
        """Whether it is one number for all elements, for certain."""
        return not isinstance(self.kind, types.Array) or self.kind.ndim == 0


Tree = Any  # of Numba's: an operand's name, a constant, or a function and the trees of its arguments


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

    def known(tree: Tree) -> bool:
        if isinstance(tree, tuple):
            there_is = tree[0] in OPS or tree[0] in COMPARISONS
            return there_is and all(map(known, tree[1])) and not all(map(whole, tree[1]))
        if isinstance(tree, numba_ir.Const):
            return isinstance(tree.value, (int, float))
        kind = kind_of(tree.name)
        if isinstance(kind, types.Array):
            return is_active_array(kind) or kind.dtype == types.float64 or isinstance(kind.dtype, WHOLE)
        return isinstance(kind, PASSIVE)

    return known(tree)


def lower(lowerer: Any, expr: Any) -> Value:
    """Lower an expression that Numba has found."""
    tree, axis = expr.expr, None
    if tree[0] is summed_along:
        tree, axis = tree[1]
        given = lowerer.loadvar(axis.name), lowerer.typeof(axis.name), types.int64
        axis = lowerer.context.cast(lowerer.builder, *given)
    elif not isinstance(expr.ty, Active) and not recordable(expr.ty, tree, lowerer.typeof):
        return _lower_array_expr(lowerer, expr)
    operands = {name: Operand(lowerer.typeof(name), lowerer.loadvar(name)) for name in names_in(tree)}
    return record(lowerer.context, lowerer.builder, expr.ty, tree, operands, axis)


cpu_target.target_context.special_ops["arrayexpr"] = lower


def record(
    context: Context,
    builder: Builder,
    result: Type,
    tree: Tree,
    operands: dict[str, Operand],
    axis: Value | None = None,
) -> Value:
    """Emit an expression and its record; returns the array of its values.

    Or their sum, if a number is wanted, or their sums along an axis that is given.
    """
    summed = isinstance(result, Active)
    spec = result.spec if summed else result.dtype.spec
    shape = _shape(context, builder, operands)
    total = _product(builder, shape)
    out, array, length, inner = _target(context, builder, result, shape, axis)
    copies = {name: _floats(context, builder, x) for name, x in operands.items() if x.whole}
    operands = operands | copies
    body = _Row(context, builder.module, tree, operands, spec, summed or axis is not None)
    shape = shape or [ir.Constant(I64, 1)]
    words = [
        body.address, builder.ptrtoint(out, I64), body.kind(), len(operands),
        sum(x.active for x in operands.values()), body.own, body.common, total if summed else length, inner,
        total, len(shape), *shape,
    ]  # fmt: skip
    assert len(words) == SHAPE + len(shape)
    for x in operands.values():
        given = x.array(context, builder)
        if given is None:
            number = context.cast(builder, x.value, x.kind, types.float64)
            address, steps = cgutils.alloca_once_value(builder, number), []
        else:
            address, steps = given.data, _steps(builder, x, given)
        steps = [ir.Constant(I64, 0)] * (len(shape) - len(steps)) + steps
        even = SINGLE if x.single else _even(builder, shape, steps)
        words += [x.active, even, builder.ptrtoint(address, I64), *steps]
    place = cgutils.alloca_once(builder, I64, len(words))
    for k, value in enumerate(words):
        value = value if isinstance(value, ir.Value) else ir.Constant(I64, int(value))
        builder.store(value, builder.gep(place, [ir.Constant(I64, k)], inbounds=True))
    emit_address(context, builder, _compiled(spec, "reverse"))
    form = signature(types.none, types.int64)
    emit_call(context, builder, _compiled(spec, "record"), form, [builder.ptrtoint(place, I64)])
    for x in copies.values():
        context.nrt.decref(builder, x.kind, x.value)
    return builder.load(out) if summed else impl_ret_new_ref(context, builder, result, array._getvalue())


def _target(
    context: Context, builder: Builder, result: Type, shape: Sequence[Value], axis: Value | None
) -> tuple[Value, Any, Value | int, Value | int]:
    """Where results go, the array if it is one, and of sums along an axis which: they are added to zeros."""
    if isinstance(result, Active):
        kind = context.get_value_type(result)
        out = cgutils.alloca_once(builder, kind)
        builder.store(ir.Constant(kind, None), out)
        return out, None, 0, 1
    if axis is None:
        array = empty_array(context, builder, result, shape)
        return array.data, array, 0, 1
    left, length, inner = _without(context, builder, shape, axis)
    array = empty_array(context, builder, result, left)
    cgutils.memset(builder, array.data, builder.mul(array.nitems, array.itemsize), 0)
    return array.data, array, length, inner


@intrinsic
def summed(typingctx: TypingContext, x: Type) -> Emission:
    """Return the sum of all elements of an array of active numbers."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        tree = numba_ir.Var(None, "x", numba_ir.unknown_loc)
        return record(context, builder, sig.return_type, tree, {"x": Operand(x, args[0])})

    return Active(x.dtype.spec)(x), code


def fits(*kinds: Type) -> bool:
    """Whether these are operands of a record, an array of active numbers among them."""
    arrays = [kind for kind in kinds if isinstance(kind, types.Array)]
    known = all(dense(kind) or kind.dtype == types.float64 for kind in arrays)
    others = all(isinstance(kind, (*PASSIVE, types.Array)) for kind in kinds)
    return known and others and any(map(dense, arrays))


@intrinsic
def clipped(typingctx: TypingContext, x: Type, low: Type, high: Type) -> Emission:
    """Return the numbers of an array limited to intervals."""
    kinds = [types.unliteral(kind) for kind in (x, low, high)]
    arrays = [kind for kind in kinds if isinstance(kind, types.Array)]
    active = next(kind.dtype for kind in arrays if dense(kind))
    result = types.Array(active, max(kind.ndim for kind in arrays), "C")

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        operands = {f"x{k}": Operand(*pair) for k, pair in enumerate(zip(kinds, args, strict=True))}
        names = [numba_ir.Var(None, name, numba_ir.unknown_loc) for name in operands]
        return record(context, builder, result, ("clip", names), operands)

    return result(*kinds), code


@intrinsic
def summed_along(typingctx: TypingContext, x: Type, axis: Type) -> Emission:
    """Return the sums of an array of active numbers along an axis."""
    result = types.Array(x.dtype, x.ndim - 1, "C")

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        tree, axis = numba_ir.Var(None, "x", numba_ir.unknown_loc), args[1]
        axis = context.cast(builder, axis, sig.args[1], types.int64)
        return record(context, builder, result, tree, {"x": Operand(x, args[0])}, axis)

    return result(x, axis), code


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


def _compiled(spec: Spec, name: str) -> Deferred:
    return Deferred("array_records", spec, name)


def _shape(context: Context, builder: Builder, operands: dict[str, Operand]) -> list[Value]:
    """The shape of operands beside each other; where they do not fit the code leaves."""
    ndim = max(x.kind.ndim for x in operands.values() if isinstance(x.kind, types.Array))
    one, found, all_of = ir.Constant(I64, 1), [], []
    for x in operands.values():
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
                message = "operands could not be broadcast together"
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
        follows = builder.icmp_signed("==", step, builder.mul(found, span))
        fits = builder.and_(fits, builder.or_(alone, builder.or_(first, follows)))
        found = builder.select(builder.and_(first, builder.not_(alone)), step, found)
        span = builder.mul(span, extent)
    return builder.select(fits, found, ir.Constant(I64, UNEVEN))


class _Node:
    """A part of an expression: what it is of, its number, and the derivative of the whole by it."""

    def __init__(self, number: Number, active: bool, name: str = "", parts: Sequence[_Node] = ()) -> None:
        self.number, self.active, self.name, self.parts = number, active, name, parts
        self.bar: Number | None = None


class _Row:
    """The function of a block of elements.

    Attributes
    ----------
    address
        Of the function.
    own, common
        How many partials are each element's own, and how many are the same for all.
    """

    def __init__(
        self,
        context: Context,
        module: Module,
        tree: Tree,
        operands: dict[str, Operand],
        spec: Spec,
        summed: bool,
    ) -> None:
        self.context, self.module, self.spec, self.operands = context, module, spec, operands
        self.summed = summed
        self.size = components(spec)
        self.codes: list[int] = []  # of partials, for each operand that is a leaf
        self.own = self.common = 0
        self.address = self._way_in(self._body(tree)).ptrtoint(I64)

    def _function(self, name: str, kinds: Sequence[Type]) -> ir.Function:
        convention = self.context.call_conv
        form = convention.get_function_type(types.int64, kinds)
        function = ir.Function(self.module, form, self.module.get_unique_name(name))
        function.linkage = "internal"
        convention.decorate_function(function, [f"a{k}" for k in range(len(kinds))], kinds, noalias=True)
        return function

    def _body(self, tree: Tree) -> ir.Function:
        """The function of pointers, of which no two lead to the same memory that one writes to."""
        planes = [self.size if x.active else 1 for x in self.operands.values()]
        most = len(planes) * self.size if taped(self.spec) else 0
        pointer = types.CPointer(types.float64)
        kinds = [types.int64, *[pointer] * (self.size + 1 + most + sum(planes))]
        function = self._function("row_of_arrays", kinds)
        function.attributes.add("alwaysinline")
        count, *places = self.context.call_conv.get_arguments(function)
        results, common, own = places[: self.size], places[self.size], places[self.size + 1 :][:most]
        places = places[self.size + 1 + most :]
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.emit = Emitter(self.context, builder, in_loop=True)
        self.fixed: set[int] = set()  # ids of values that are the same for all elements
        self.leaves: dict[str, _Node] = {}
        pending = []
        for (name, x), many in zip(self.operands.items(), planes, strict=True):
            mine, places = places[:many], places[many:]
            if x.single:
                values = [builder.load(p) for p in mine]
                self.fixed.update(map(id, values))
                self._leaf(name, x, values)
            else:
                pending.append((name, x, mine))
        entry, body = builder.block, builder.append_basic_block("element")
        builder.branch(body)
        builder.position_at_end(body)
        at = builder.phi(I64)
        at.add_incoming(ir.Constant(I64, 0), entry)
        for name, x, mine in pending:
            self._leaf(name, x, [builder.load(builder.gep(p, [at], inbounds=True)) for p in mine])
        root = self._evaluate(tree)
        for value, place in zip(root.number.flat(), results, strict=True):
            builder.store(value, builder.gep(place, [at], inbounds=True))
        shared = []
        if taped(self.spec):
            root.bar = root.number.lift(1.0)
            self._reverse(root)
            for name, x in self.operands.items():
                if x.active:
                    bar = self.leaves[name].bar
                    values = (root.number.lift(0.0) if bar is None else root.number.lift(bar)).flat()
                    if all(map(self._is_fixed, values)):
                        self.common += 1
                        self.codes.append(-self.common)
                        shared += values
                    else:
                        places = own[self.own * self.size :][: self.size]
                        for value, place in zip(values, places, strict=True):
                            builder.store(value, builder.gep(place, [at], inbounds=True))
                        self.codes.append(self.own)
                        self.own += 1
        following = builder.add(at, ir.Constant(I64, 1))
        at.add_incoming(following, builder.block)
        after = builder.append_basic_block("after")
        builder.cbranch(builder.icmp_signed("<", following, count), body, after)
        builder.position_at_end(after)
        for k, value in enumerate(shared):
            builder.store(value, builder.gep(common, [ir.Constant(I64, k)], inbounds=True))
        self.context.call_conv.return_value(builder, ir.Constant(I64, 0))
        return function

    def _way_in(self, body: ir.Function) -> ir.Function:
        """The function of a block's size and of where addresses are."""
        kinds = types.int64, types.int64
        function = self._function("block_of_arrays", kinds)
        count, words = self.context.call_conv.get_arguments(function)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        table = builder.inttoptr(words, I64.as_pointer())

        def planes(k: int, many: int, bytes_each: Value) -> list[Value]:
            first = builder.load(builder.gep(table, [ir.Constant(I64, k)]))
            return [
                builder.inttoptr(builder.add(first, builder.mul(bytes_each, ir.Constant(I64, q))), FLOATS)
                for q in range(many)
            ]

        wide = ir.Constant(I64, 8 * BLOCK)
        narrow = builder.mul(count, ir.Constant(I64, 8))
        most = len(self.operands) * self.size if taped(self.spec) else 0
        args = [*planes(0, self.size, wide), *planes(2, 1, wide), *planes(1, most, narrow)]
        for k, x in enumerate(self.operands.values()):
            args += planes(3 + k, self.size if x.active else 1, wide)
        pointer = types.CPointer(types.float64)
        kinds = [types.int64, *[pointer] * len(args)]
        convention = self.context.call_conv
        status, _ = convention.call_function(builder, body, types.int64, kinds, [count, *args])
        with builder.if_then(status.is_error, likely=False):
            convention.return_status_propagate(builder, status)
        convention.return_value(builder, ir.Constant(I64, 0))
        return function

    def _leaf(self, name: str, x: Operand, values: list[Value]) -> None:
        zero = self.emit.number(self.spec, [0.0] * self.size)
        number = self.emit.number(self.spec, values) if x.active else zero.lift(Real(self.emit, values[0]))
        self.leaves[name] = _Node(number, x.active, name)

    def _evaluate(self, tree: Tree, factor: bool = True) -> _Node:
        if isinstance(tree, numba_ir.Var):
            return self.leaves[tree.name]
        if isinstance(tree, numba_ir.Const):
            zero, value = self.emit.number(self.spec, [0.0] * self.size), float(tree.value)
            if factor and value == 0.0:  # of a literal zero times infinity nothing would be computed
                return _Node(zero.lift(Real(self.emit, ir.Constant(F64, value))), False)
            return _Node(zero.lift(value), False)
        function, args = tree
        if function in COMPARISONS:
            a, b = (self._evaluate(part).number for part in args)
            truth = compare(COMPARISONS[function], a, b)
            return _Node(a.lift(choice(truth, a.real().lift(1.0), a.real().lift(0.0))), False)
        name = OPS.get(function, function)
        parts = [self._evaluate(part, name != POWER) for part in args]
        found = evaluate(name, *(part.number for part in parts))
        return _Node(found, any(part.active for part in parts), name, parts)

    def _reverse(self, node: _Node) -> None:
        """Give the parts of a node their share of its derivative, the last first."""
        order: list[_Node] = []

        def visit(node: _Node) -> None:
            for part in node.parts:
                if part.active:
                    visit(part)
            order.append(node)

        visit(node)
        for one in reversed(order):
            if not one.parts or one.bar is None or is_step(one.name):
                continue
            numbers = [part.number for part in one.parts]
            for k, part in enumerate(one.parts):
                if part.active:
                    share = one.bar * one.number.lift(partial(one.name, k, numbers, one.number))
                    part.bar = share if part.bar is None else part.bar + share

    def _is_fixed(self, value: Value) -> bool:
        """Whether a value is the same for all elements."""
        if isinstance(value, ir.Constant) or id(value) in self.fixed:
            return True
        return getattr(value, "opname", "") in ARITHMETIC and all(map(self._is_fixed, value.operands))

    def kind(self) -> Value:
        """The kind of the record."""
        if not taped(self.spec):
            return ir.Constant(I64, 0)
        adjoint = emit_adjoint(self.context, self.module, _compiled(self.spec, "reverse"))
        leaves = len(self.codes)
        words = [0, 0, leaves, leaves, self.own, self.common, int(self.summed), *self.codes]
        value = ir.Constant.literal_struct([adjoint.ptrtoint(I64), *(ir.Constant(I64, w) for w in words)])
        found = ir.GlobalVariable(self.module, value.type, self.module.get_unique_name("kind_of_arrays"))
        found.linkage, found.global_constant, found.initializer = "internal", True, value
        return found.ptrtoint(I64)
