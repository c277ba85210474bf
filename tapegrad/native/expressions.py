"""Elementwise expressions of arrays of active numbers: one record, whatever they consist of.

Numba finds the expressions and gives them to us to lower. The function of a block of elements is emitted
here: values, then the partials by operands of the expression as a whole, by the rules of `tapegrad.ops` run
backwards through it. All else is done by `array_records`. What Numba alone knows, and expressions of complex
numbers, series and integers, it computes itself, and each element is a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
    F64,
    I64,
    MARKED,
    OPS,
    Emitter,
    Number,
    Real,
    Spec,
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

FLOATS = ir.PointerType(F64)
ARITHMETIC = {"fadd", "fsub", "fmul", "fdiv", "fneg"}


class Operand(NamedTuple):
    """An operand of an expression: an array, active or plain, or a number."""

    kind: Type
    value: Value

    @property
    def active(self) -> bool:
        """Whether it carries derivatives."""
        return is_active_array(self.kind)

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

    def known(tree: Tree) -> bool:
        if isinstance(tree, tuple):
            return tree[0] in OPS and all(map(known, tree[1]))
        if isinstance(tree, numba_ir.Const):
            return isinstance(tree.value, (int, float))
        kind = kind_of(tree.name)
        if isinstance(kind, types.Array):
            return is_active_array(kind) or kind.dtype == types.float64
        return isinstance(kind, PASSIVE)

    return known(tree)


def lower(lowerer: Any, expr: Any) -> Value:
    """Lower an expression that Numba has found."""
    if not isinstance(expr.ty, Active) and not recordable(expr.ty, expr.expr, lowerer.typeof):
        return _lower_array_expr(lowerer, expr)
    operands = {name: Operand(lowerer.typeof(name), lowerer.loadvar(name)) for name in names_in(expr.expr)}
    return record(lowerer.context, lowerer.builder, expr.ty, expr.expr, operands)


cpu_target.target_context.special_ops["arrayexpr"] = lower


def record(
    context: Context, builder: Builder, result: Type, tree: Tree, operands: dict[str, Operand]
) -> Value:
    """Emit an expression and its record; returns the array of its values, or their sum if that is wanted."""
    summed = isinstance(result, Active)
    spec = result.spec if summed else result.dtype.spec
    arrays = [
        arrayobj.make_array(x.kind)(context, builder, x.value) if isinstance(x.kind, types.Array) else None
        for x in operands.values()
    ]
    shape = _shape(context, builder, operands, arrays)
    if summed:
        kind = context.get_value_type(result)
        out = cgutils.alloca_once(builder, kind)
        builder.store(ir.Constant(kind, None), out)
    else:
        array = empty_array(context, builder, result, shape)
        out = array.data
    body = _Row(context, builder.module, tree, operands, spec, summed)
    shape, total = shape or [ir.Constant(I64, 1)], ir.Constant(I64, 1)
    for extent in shape:
        total = builder.mul(total, extent)
    words = [
        body.address, builder.ptrtoint(out, I64), body.kind(), len(operands),
        sum(x.active for x in operands.values()), body.own, body.common, summed, total, len(shape), *shape,
    ]  # fmt: skip
    assert len(words) == SHAPE + len(shape)
    for x, given in zip(operands.values(), arrays, strict=True):
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
    return builder.load(out) if summed else impl_ret_new_ref(context, builder, result, array._getvalue())


@intrinsic
def summed(typingctx: TypingContext, x: Type) -> Emission:
    """Return the sum of all elements of an array of active numbers."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        tree = numba_ir.Var(None, "x", numba_ir.unknown_loc)
        return record(context, builder, sig.return_type, tree, {"x": Operand(x, args[0])})

    return Active(x.dtype.spec)(x), code


def _compiled(spec: Spec, name: str) -> Deferred:
    return Deferred("array_records", spec, name)


def _shape(
    context: Context, builder: Builder, operands: dict[str, Operand], arrays: Sequence[Any]
) -> list[Value]:
    """The shape of operands beside each other; where they do not fit the code leaves."""
    ndim = max(x.kind.ndim for x in operands.values() if isinstance(x.kind, types.Array))
    one, found, all_of = ir.Constant(I64, 1), [], []
    for x, array in zip(operands.values(), arrays, strict=True):
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
        name = OPS[function]
        parts = [self._evaluate(part, name != "power") for part in args]
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
