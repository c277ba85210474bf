"""The code of an expression of arrays: a function of a block of its elements, and of what it is recorded as.

It is emitted: values, then the partials by operands of the expression as a whole, by the rules of
`tapegrad.ops` run backwards through it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import ir as numba_ir
from numba.core import types
from numba.np import arrayobj

from tapegrad.kernels import linked
from tapegrad.native.arrays.argument_arrays import ArgumentArray, parts_of
from tapegrad.native.arrays.array_layout import BLOCK, COUNTED, FACTOR, NUMBERED, PLAIN, UNCHOSEN
from tapegrad.native.arrays.arrays import is_active_array
from tapegrad.native.emission.algebra import (
    COMPARISONS,
    F64,
    I64,
    OPS,
    WHERE,
    Emitter,
    Number,
    Real,
    Spec,
    Truth,
    bit,
    choice,
    compare,
    components,
    evaluate,
    is_step,
    partial,
    where,
)
from tapegrad.native.emission.annotations import (
    Builder,
    Context,
    Module,
    Type,
    Value,
)
from tapegrad.native.emission.deferred import Deferred, emit_adjoint
from tapegrad.native.numbers.scalar import taped
from tapegrad.ops import MEANING

FLOATS, MINUS = ir.PointerType(F64), ir.Constant(F64, -1.0)
WHOLE = types.Integer, types.Boolean  # of arrays of these a copy is made, of floats
POWER = MEANING[np.power].name
ARITHMETIC = {"fadd", "fsub", "fmul", "fdiv", "fneg", "select", "or"}
LOGIC = {  # functions of truth values
    operator.and_: "and_", operator.or_: "or_", operator.xor: "xor", operator.invert: "not_",
    np.bitwise_and: "and_", np.bitwise_or: "or_", np.bitwise_xor: "xor", np.invert: "not_",
    np.logical_and: "and_", np.logical_or: "or_", np.logical_xor: "xor", np.logical_not: "not_",
}  # fmt: skip


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
        kind, value = self.kind, self.value
        if isinstance(kind, ArgumentArray):
            kind, value = kind.floats, parts_of(context, builder, kind, value)[0]
        return arrayobj.make_array(kind)(context, builder, value)

    def numbering(self, context: Context, builder: Builder) -> list[Any]:
        """How its elements are numbered, and what is counted: the first statement, and the tape."""
        if isinstance(self.kind, ArgumentArray):
            return [COUNTED, *parts_of(context, builder, self.kind, self.value)[1:]]
        return [NUMBERED if self.active else PLAIN, 0, 0]

    @property
    def whole(self) -> bool:
        """Whether it is an array of whole numbers or truth values."""
        return isinstance(self.kind, types.Array) and isinstance(self.kind.dtype, WHOLE)

    @property
    def single(self) -> bool:
        """Whether it is one number for all elements, for certain."""
        return not isinstance(self.kind, types.Array) or self.kind.ndim == 0


Tree = Any  # of Numba's: an operand's name, a constant, or a function and the trees of its arguments


def compiled(spec: Spec, name: str) -> Deferred:
    """Return what stands for a function of `array_records`."""
    return Deferred("tapegrad.native.library.array_records", spec, name)


class _Node:
    """A part of an expression: what it is of, its number, and the derivative of the whole by it.

    Of a choice its parts are the two, and `truth` says which one it is. Where it is said under which
    condition anything comes to a part (`came`), the derivative by it is 0 elsewhere, times its own partials.
    """

    def __init__(
        self,
        number: Number,
        active: bool,
        name: str = "",
        parts: Sequence[_Node] = (),
        truth: Value | None = None,
    ) -> None:
        self.number, self.active, self.name, self.parts, self.truth = number, active, name, parts, truth
        self.bar: Number | None = None
        self.came: Value | None = None

    def take(self, builder: Builder, bar: Number, came: Value | None) -> None:
        """Add a share of the derivative."""
        if self.bar is None:
            self.bar, self.came = bar, came
            return
        self.bar = self.bar + bar
        self.came = None if self.came is None or came is None else builder.or_(self.came, came)

    def shares(self, builder: Builder, k: int) -> tuple[Number, Value | None]:
        """Return what part k is given of the derivative, and where anything is."""
        assert self.bar is not None
        if self.truth is None:
            numbers = [part.number for part in self.parts]
            d = self.number.lift(partial(self.name, k, numbers, self.number))
            return self.bar * d, self.came
        here = builder.not_(self.truth) if k else self.truth
        share = choice(Truth(self.number.emit, here), self.bar, self.number.lift(0.0))
        return share, here if self.came is None else builder.and_(self.came, here)

    def partials(self, builder: Builder) -> list[Value]:
        """Return the components of the derivative by a leaf, `UNCHOSEN` where nothing comes to it."""
        first, *rest = self.number.lift(0.0 if self.bar is None else self.bar).flat()
        if self.came is not None:
            zero = builder.fcmp_ordered("==", first, ir.Constant(F64, 0.0))
            nothing = builder.and_(zero, builder.not_(self.came))
            first = builder.select(nothing, ir.Constant(I64, UNCHOSEN).bitcast(F64), first)
        return [first, *rest]


def _factor(product: Value, value: Value) -> Value | None:
    """What a value is multiplied by to give a product; None if it is no such product."""
    name, parts = getattr(product, "opname", ""), getattr(product, "operands", ())
    if name == "fneg":
        return MINUS if parts[0] is value else None
    if name != "fmul":
        return None
    a, b = parts
    return b if a is value else a if b is value else None


class Row:
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
        form: int,
    ) -> None:
        self.context, self.module, self.spec, self.operands = context, module, spec, operands
        self.form = form
        self.size = components(spec)
        # operands of which it is known whether they have a part in tangents
        self.known = sum(x.active for x in operands.values()) if len(spec) and taped(spec) else 0
        self.codes: list[int] = []  # of partials, for each operand that is a leaf
        bodies = [self._body(tree, near=True)]
        if self.emit.limited:
            found = self.codes, self.own, self.common
            bodies.append(self._body(tree, near=False))
            assert found == (self.codes, self.own, self.common), "forms of an expression have other partials"
        self.address = self._way_in(*bodies).ptrtoint(I64)

    def _function(self, name: str, kinds: Sequence[Type]) -> ir.Function:
        convention = self.context.call_conv
        form = convention.get_function_type(types.int64, kinds)
        function = ir.Function(self.module, form, self.module.get_unique_name(name))
        function.linkage = "internal"
        set.add(function.attributes, '"prefer-vector-width"="512"')  # LLVM's default is half of what there is
        convention.decorate_function(function, [f"a{k}" for k in range(len(kinds))], kinds, noalias=True)
        return function

    def _body(self, tree: Tree, near: bool) -> ir.Function:
        """The function of pointers, of which no two lead to the same memory that one writes to.

        Where operands are to be `near` 0, as some vector forms want, it returns whether one was not; else
        functions with such forms are called, an element at a time.
        """
        self.own = self.common = 0
        planes = [self.size if x.active else 1 for x in self.operands.values()]
        most = len(planes) * self.size if taped(self.spec) else 0
        pointer = types.CPointer(types.float64)
        kinds = [types.int64, *[pointer] * (self.size + 1 + most + sum(planes)), *[types.int64] * self.known]
        function = self._function("row_of_arrays", kinds)
        function.attributes.add("alwaysinline" if near else "noinline")
        count, *places = self.context.call_conv.get_arguments(function)
        results, common, own = places[: self.size], places[self.size], places[self.size + 1 :][:most]
        places, tapes = places[self.size + 1 + most :][: sum(planes)], places[len(places) - self.known :]
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        outside = builder.alloca(ir.IntType(1)) if near else None
        if near:
            builder.store(ir.Constant(ir.IntType(1), 0), outside)
        self.emit = Emitter(self.context, builder, in_loop=True, outside=outside)
        self.fixed: set[int] = set()  # ids of values that are the same for all elements
        self.leaves: dict[str, _Node] = {}
        self.activity = self._activity(builder, tapes)
        self.fixed.update(map(id, self.activity.values()))
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
            shared = self._store_partials(builder, at, own)
        following = builder.add(at, ir.Constant(I64, 1))
        at.add_incoming(following, builder.block)
        after = builder.append_basic_block("after")
        builder.cbranch(builder.icmp_signed("<", following, count), body, after)
        builder.position_at_end(after)
        for k, value in enumerate(shared):
            builder.store(value, builder.gep(common, [ir.Constant(I64, k)], inbounds=True))
        again = builder.zext(builder.load(outside), I64) if near else ir.Constant(I64, 0)
        self.context.call_conv.return_value(builder, again)
        return function

    def _store_partials(self, builder: Builder, at: Value, own: Sequence[Value]) -> list[Value]:
        """Write an element's own partials to memory; returns those that all elements share, and factors."""
        partials = {x: self.leaves[x].partials(builder) for x, given in self.operands.items() if given.active}
        scaled = {x: found for x in partials if (found := self._scaled(x, partials)) is not None}
        shared: list[Value] = []
        codes: dict[str, int] = {}
        for name, values in partials.items():
            if all(map(self._is_fixed, values)):
                self.common += 1
                codes[name] = -self.common
                shared += values
            elif name not in scaled or scaled[name][0] in scaled:
                places = own[self.own * self.size :][: self.size]
                for value, place in zip(values, places, strict=True):
                    builder.store(value, builder.gep(place, [at], inbounds=True))
                codes[name] = self.own
                self.own += 1
        for name, (base, factor) in scaled.items():
            if name in codes:
                continue
            codes[name] = codes[base]
            if factor is not None:
                self.common += 1
                codes[name] |= self.common << FACTOR
                shared += [factor] * self.size
        self.codes = [codes[name] for name in partials]
        return shared

    def _scaled(self, name: str, partials: dict[str, list[Value]]) -> tuple[str, Value | None] | None:
        """The operand whose partials are those of another one but for a factor, and that; None if none is.

        They are alike where choices have no part in them, and need not be kept twice.
        """
        if self.leaves[name].came is not None:
            return None
        earlier = True
        for other, base in partials.items():
            earlier = earlier and other != name
            if other == name or self.leaves[other].came is not None:
                continue
            if earlier and all(map(operator.is_, partials[name], base)):
                return other, None
            first, *rest = (_factor(*pair) for pair in zip(partials[name], base, strict=True))
            if first is not None and all(f is first for f in rest) and self._is_fixed(first):
                return other, first
        return None

    def _activity(self, builder: Builder, tapes: Sequence[Value]) -> dict[str, Value]:
        """Whether operands have a part in tangents, by the tapes that they are on."""
        names = [name for name, x in self.operands.items() if x.active] if self.known else []
        none = ir.Constant(I64, 0)
        return {name: builder.icmp_signed("!=", t, none) for name, t in zip(names, tapes, strict=True)}

    def _way_in(self, body: ir.Function, far: ir.Function | None = None) -> ir.Function:
        """The function of a block's size and of where addresses are; `far` follows where `body` says so."""
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
        kinds = [types.int64, *[pointer] * len(args), *[types.int64] * self.known]
        for k, x in enumerate(self.operands.values()) if self.known else ():
            if x.active:
                args.append(builder.load(builder.gep(table, [ir.Constant(I64, 3 + len(self.operands) + k)])))
        convention = self.context.call_conv
        status, again = convention.call_function(builder, body, types.int64, kinds, [count, *args])
        with builder.if_then(status.is_error, likely=False):
            convention.return_status_propagate(builder, status)
        if far is not None:
            with builder.if_then(builder.icmp_signed("!=", again, ir.Constant(I64, 0)), likely=False):
                convention.call_function(builder, far, types.int64, kinds, [count, *args])
        if self.emit.may_raise:
            linked.emit_raise(self.context, builder)
        convention.return_value(builder, ir.Constant(I64, 0))
        return function

    def _leaf(self, name: str, x: Operand, values: list[Value]) -> None:
        zero = self.emit.number(self.spec, [0.0] * self.size)
        number = zero.lift(Real(self.emit, values[0]))
        if x.active:
            number = self.emit.number(self.spec, values, self.activity.get(name, True))
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
        if function in COMPARISONS or function in LOGIC:
            zero, one = (Real(self.emit, ir.Constant(F64, v)) for v in (0.0, 1.0))
            number = choice(Truth(self.emit, self._truth(tree)), one, zero)
            return _Node(self.emit.number(self.spec, [0.0] * self.size).lift(number), False)
        if function is WHERE:
            truth, parts = self._truth(args[0]), [self._evaluate(part) for part in args[1:]]
            found = where(Truth(self.emit, truth), *(part.number for part in parts))
            return _Node(found, any(part.active for part in parts), "", parts, truth)
        name = OPS.get(function, function)
        parts = [self._evaluate(part, name != POWER) for part in args]
        found = evaluate(name, *(part.number for part in parts))
        return _Node(found, any(part.active for part in parts), name, parts)

    def _truth(self, tree: Tree) -> Value:
        """Whether something is so, or a number is not 0."""
        function, args = tree if isinstance(tree, tuple) else (None, [])
        if function in COMPARISONS:
            return bit(compare(COMPARISONS[function], *(self._evaluate(part).number for part in args)))
        if function in LOGIC:
            return getattr(self.emit.builder, LOGIC[function])(*map(self._truth, args))
        return bit(compare("!=", self._evaluate(tree).number, 0.0))

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
            for k, part in enumerate(one.parts):
                if part.active:
                    part.take(self.emit.builder, *one.shares(self.emit.builder, k))

    def _is_fixed(self, value: Value) -> bool:
        """Whether a value is the same for all elements."""
        if isinstance(value, ir.Constant) or id(value) in self.fixed:
            return True
        return getattr(value, "opname", "") in ARITHMETIC and all(map(self._is_fixed, value.operands))

    def kind(self) -> Value:
        """The kind of the record."""
        if not taped(self.spec):
            return ir.Constant(I64, 0)
        adjoint = emit_adjoint(self.context, self.module, compiled(self.spec, "reverse"))
        leaves = len(self.codes)
        words = [0, 0, leaves, leaves, self.own, self.common, self.form, *self.codes]
        value = ir.Constant.literal_struct([adjoint.ptrtoint(I64), *(ir.Constant(I64, w) for w in words)])
        found = ir.GlobalVariable(self.module, value.type, self.module.get_unique_name("kind_of_arrays"))
        found.linkage, found.global_constant, found.initializer = "internal", True, value
        return found.ptrtoint(I64)
