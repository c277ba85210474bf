"""Lowering of twins: which instructions of Numba's are straight code, whose statements share a record.

An instruction is straight if nothing in it loops, branches, records by other functions or leaves, but where
it says so (`record.leave`). Before any other the open record is closed. Where code branches it goes on in
blocks that nothing else leads to; a way on that reads none of its numbers has no record of them.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from llvmlite.ir import instructions
from numba.core import ir, types
from numba.core.compiler_machinery import register_pass
from numba.core.errors import TypingError
from numba.core.funcdesc import default_mangler
from numba.core.lowering import Lower
from numba.core.postproc import VariableLifetime
from numba.core.typed_passes import NativeLowering

from tapegrad.native.arrays.argument_arrays import ArgumentArray, parts_of
from tapegrad.native.arrays.bounds import check_index
from tapegrad.native.emission.annotations import (
    Block,
    Key,
    RightSide,
    Signature,
    Statement,
    Type,
    Value,
    Variable,
)
from tapegrad.native.numbers.operators import INLINE
from tapegrad.native.numbers.scalar import PASSIVE, is_active
from tapegrad.native.tapes import record

SAFE = {  # operations of plain numbers that cannot raise
    operator.add, operator.sub, operator.mul, operator.neg, operator.iadd, operator.isub, operator.imul,
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne, bool,
}  # fmt: skip
DIVISIONS = {
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.itruediv,
    operator.ifloordiv,
    operator.imod,
}
MEMORY = (instructions.LoadInstr, instructions.StoreInstr)
PARTS = ("build_tuple", "cast", "pair_first", "pair_second")
ELEMENT = ("getitem", "static_getitem")
KEEPING = (types.Array, types.List)
FIELDS = ("shape", "strides", "size", "ndim", "itemsize", "nbytes", "real", "imag")  # of arrays and numbers
NAMES = (types.Module, types.Function, types.Dispatcher, types.NumberClass, types.DType)
ARRAYS = "$arrays"  # stands for what arrays hold, beside names of variables
CARRIED = 32  # statements of a record that goes on where code branches: each way on has an adjoint of all


_EXPECTED: dict[str, Type] = {}  # results of functions that are still compiled, where others call them


def _number(kind: Type) -> bool:
    return isinstance(kind, PASSIVE) or is_active(kind)


def _plain(kind: Type) -> bool:
    """Whether values of this type are numbers, or tuples of such."""
    return all(map(_plain, kind)) if isinstance(kind, types.BaseTuple) else _number(kind)


def _field(owner: Type, name: str) -> bool:
    """Whether to read an attribute runs no code, as properties and what users add to types do."""
    if isinstance(owner, (types.Record, types.NamedTuple, types.NamedUniTuple)):
        return name in owner.fields
    return isinstance(owner, types.Module) or (isinstance(owner, (types.Array, *PASSIVE)) and name in FIELDS)


def _index(kind: Type) -> bool:
    if isinstance(kind, types.BaseTuple):
        return all(map(_index, kind))
    return isinstance(kind, types.Integer)


def _literal(value: Any) -> tuple[type, Any]:
    return type(value), value


class BorrowingLower(Lower):
    """Numba's lowering, but a function holds no references to its arguments: whoever calls it does.

    Numba's own lets go of them at their last use, and never where the function, or one that it calls, raises.
    """

    def lower_function_body(self) -> Value:
        """Emit a function."""
        self._borrowed: set[str] = set()
        lines = [line for block in self.blocks.values() for line in block.body]
        self._assigned = Counter(line.target.name for line in lines if isinstance(line, ir.Assign))
        return super().lower_function_body()

    def lower_assign(self, ty: Type, inst: Statement) -> Value:
        """Emit what a variable is given."""
        value, name = inst.value, inst.target.name
        if isinstance(value, (ir.Arg, ir.Var)):
            self._fits(f"arg.{value.name}" if isinstance(value, ir.Arg) else value.name, ty)
        if not isinstance(value, ir.Arg) or self._assigned[name] > 1:
            return super().lower_assign(ty, inst)
        if self.typeof(f"arg.{value.name}") != ty or self.generator_info:
            return super().lower_assign(ty, inst)
        self._borrowed.add(name)
        return self.fnargs[value.index]

    def _cast_var(self, var: Any, ty: Type) -> Value:
        if isinstance(var, ir.Var):
            self._fits(var.name, ty)
        return super()._cast_var(var, ty)

    def _fits(self, name: str, wanted: Type) -> None:
        """Refuse to take memory for that of other elements, of which Numba has an assertion at most."""
        found = self.typeof(name)
        if isinstance(found, KEEPING) and isinstance(wanted, KEEPING) and found.dtype != wanted.dtype:
            kinds = f"{found.dtype} elements to {wanted.dtype} elements"
            raise TypingError(f"tapegrad: No conversion from {kinds}", self.loc)

    def delvar(self, name: str) -> None:
        """Delete a variable."""
        if name not in self._borrowed:
            super().delvar(name)

    def create_cfunc_wrapper(self) -> None:
        """Offer what functions that take functions call, which hardly any derivative is given to."""
        create, form = self.context.create_cfunc_wrapper, (self.fndesc, self.env, self.call_helper)
        self.library.offer(self.fndesc.llvm_cfunc_wrapper_name, lambda library: create(library, *form))


@register_pass(mutates_CFG=True, analysis_only=False)
class Borrowing(NativeLowering):
    """The pass that lowers functions that are compiled once."""

    _name = "tapegrad_borrowing"

    @property
    def lowering_class(self) -> type[Lower]:
        """The class that does it."""
        return BorrowingLower


class _Known(NamedTuple):
    """What is known at an instruction."""

    loaded: dict[str, Value]  # values of variables
    names: dict[str, Hashable]  # what is the same where two variables are the same for certain
    elements: dict[Hashable, Value]  # values of elements of arrays
    held: set[str]  # variables that may hold numbers of the open record, and `ARRAYS`


class TwinLower(BorrowingLower):
    """Numba's lowering, with records that go on from one instruction to the next."""

    def lower_function_body(self) -> Value:
        """Emit a function, and tell LLVM that the program's memory is not that of tapes."""
        self._labels = {id(block): label for label, block in self.blocks.items()}
        self._lifetime = VariableLifetime(self.blocks)
        self._carried: dict[int, tuple[record.Record | None, _Known]] = {}  # to blocks by their labels
        self.builder.tapegrad_closed = []
        entry = super().lower_function_body()
        record.complete(self.builder)
        tapes = record.scope(self.module)
        for block in self.function.blocks:
            for line in block.instructions:
                if isinstance(line, MEMORY) and "alias.scope" not in line.metadata:
                    line.set_metadata("noalias", tapes)
        return entry

    def pre_block(self, block: Block) -> None:
        """Begin a block."""
        super().pre_block(block)
        self._label = self._labels[id(block)]
        going_on, self._known = self._carried.pop(self._label, (None, _Known({}, {}, {}, set())))
        self.builder.tapegrad_record = going_on

    def lower_inst(self, inst: Statement) -> None:
        """Emit an instruction."""
        known = self._known
        if isinstance(inst, (ir.Jump, ir.Branch)) and not self.generator_info:
            self._carry(inst)
        straight = self._straight(inst)
        if not straight:
            record.finish(self.builder)
            known.elements.clear()
        self.builder.tapegrad_straight = straight
        super().lower_inst(inst)
        self.builder.tapegrad_straight = False
        if isinstance(inst, ir.Assign):
            known.names[inst.target.name] = self._meaning(inst.value) if straight else object()
            self._hold(inst.target.name, inst.value)
        elif straight and isinstance(inst, (ir.SetItem, ir.StaticSetItem)):
            known.elements.clear()  # arrays may share memory
            if self.typeof(inst.value.name) == self.typeof(inst.target.name).dtype:
                known.elements[self._place(inst.target, inst)] = self.loadvar(inst.value.name)
            if is_active(self.typeof(inst.value.name)):
                known.held.add(ARRAYS)

    def _hold(self, name: str, value: Any) -> None:
        """Note whether a variable may hold numbers of the open record, given what it was assigned."""
        held, kind = self._known.held, self.typeof(name)
        if not record.is_open(self.builder):
            held.clear()
        elif not isinstance(kind, (*PASSIVE, *NAMES, types.Array)):
            copied = isinstance(value, ir.Var) and self.typeof(value.name) == kind  # of one from before it
            if not copied or value.name in held:
                held.add(name)

    def _carry(self, inst: Statement) -> None:
        """Take what is known, and the open record, on to blocks that nothing but this jump leads to."""
        targets, cfg = inst.get_targets(), self._lifetime.cfg
        alone = [
            label
            for label in targets
            if label > self._label and len(list(cfg.predecessors(label))) == 1 == targets.count(label)
        ]
        ways: list[record.Record] = []
        wanted = [label for label in targets if self._is_held(label)]
        plain = isinstance(inst, ir.Jump) or isinstance(self.typeof(inst.cond.name), PASSIVE)
        if record.is_open(self.builder) and plain and set(wanted) <= set(alone):
            ways = record.part(self.builder, len(wanted), CARRIED)
        following = dict(zip(wanted, ways, strict=False))
        for label in alone:
            loaded, names, elements, held = (part.copy() for part in self._known)
            going_on = following.get(label)
            self._carried[label] = going_on, _Known(loaded, names, elements, held if going_on else set())

    def _is_held(self, label: int) -> bool:
        """Whether numbers of the open record may be read from a block on."""
        held = self._known.held
        return ARRAYS in held or not held.isdisjoint(self._lifetime.livemap[label])

    def lower_expr(self, resty: Type, expr: RightSide) -> Value:
        """Emit an expression; an element that is known is not read again."""
        if expr.op not in ELEMENT or not self.builder.tapegrad_straight or not is_active(resty):
            return super().lower_expr(resty, expr)
        place = self._place(expr.value, expr)
        elements = self._known.elements
        if place not in elements:
            elements[place] = super().lower_expr(resty, expr)
        return elements[place]

    def lower_getitem(
        self, resty: Type, expr: RightSide, value: Variable, index: Variable, signature: Signature
    ) -> Value:
        """Emit the reading of what is at an index."""
        self._check(value, index, "reads")
        return super().lower_getitem(resty, expr, value, index, signature)

    def lower_setitem(
        self, target_var: Variable, index_var: Variable, value_var: Variable, signature: Signature
    ) -> Value:
        """Emit the writing to what is at an index."""
        self._check(target_var, index_var, "writes to")
        return super().lower_setitem(target_var, index_var, value_var, signature)

    def _check(self, array: Variable, index: Variable, does: str) -> None:
        """See that an index lies in an array, where Numba is not asked to, whose error can be caught."""
        kind, index_kind = self.typeof(array.name), self.typeof(index.name)
        if isinstance(kind, (types.Array, types.NumpyFlatType)) and not self.context.enable_boundscheck:
            name = array.unversioned_name
            what = "an array" if name.startswith("$") else name
            words = f"{self.func_ir.func_id.func.__name__} {does} {what}"
            given, value = (index_kind, self.loadvar(index.name)), self.loadvar(array.name)
            if isinstance(kind, ArgumentArray):
                value, *_ = parts_of(self.context, self.builder, kind, value)
                kind = kind.floats
            check_index(self.context, self.builder, kind, value, given, words)

    def _name(self, var: Variable) -> Hashable:
        return self._known.names.setdefault(var.name, object())

    def _place(self, array: Variable, access: Statement) -> Hashable:
        """What names an element: its array and index."""
        if isinstance(access, ir.StaticSetItem) or getattr(access, "op", "") == "static_getitem":
            index = access.index
            index = tuple(map(_literal, index)) if isinstance(index, tuple) else _literal(index)
        else:
            index = self._name(access.index)
        return self._name(array), index

    def _meaning(self, value: Any) -> Hashable:
        """What names a value: equal for two only if they are the same."""
        if isinstance(value, ir.Var):
            return self._name(value)
        if isinstance(value, ir.Const):
            return _literal(value.value)
        if isinstance(value, ir.Expr):
            if value.op == "build_tuple":
                return tuple(map(self._name, value.items))
            if value.op == "binop" and value.fn in SAFE:
                kinds = [self.typeof(var.name) for var in (value.lhs, value.rhs)]
                if all(isinstance(kind, types.Integer) for kind in kinds):
                    return value.fn, self._name(value.lhs), self._name(value.rhs)
        return object()

    def _lower_call_RecursiveCall(self, kind: Type, call: RightSide, form: Signature) -> Value:
        found = kind.get_overloads(form.args)
        mangler = self.context.mangler or default_mangler
        name = mangler(found.qualname, form.args, abi_tags=self.fndesc.abi_tags, uid=found.uid)
        if not self.builder.function.name.startswith(name):
            _EXPECTED[name] = form.return_type
        return super()._lower_call_RecursiveCall(kind, call, form)

    def lower(self) -> None:
        """Emit the function; Numba does not look whether its result is what was expected elsewhere."""
        result, name = self.fndesc.restype, self.fndesc.mangled_name
        expected = _EXPECTED.pop(name, result)
        if expected != result:
            raise TypingError(
                f"tapegrad: a function that calls itself by way of another one returns {expected} there, "
                f"and {result} in the end; let all that it returns be of one type, floats not integers",
                self.func_ir.loc,
            )
        super().lower()

    def loadvar(self, name: str) -> Value:
        """Return a variable's value, the same as before where it is."""
        loaded = self._known.loaded
        if name not in loaded:
            value = super().loadvar(name)
            if not _number(self.typeof(name)) or self.generator_info:
                return value
            loaded[name] = value
        return loaded[name]

    def storevar(self, value: Value, name: str, argidx: int | None = None) -> None:
        """Assign to a variable."""
        super().storevar(value, name, argidx=argidx)
        if _number(self.typeof(name)) and not self.generator_info:
            self._known.loaded[name] = value

    def delvar(self, name: str) -> None:
        """Delete a variable."""
        super().delvar(name)
        self._known.loaded.pop(name, None)

    def _straight(self, inst: Statement) -> bool:
        if isinstance(inst, ir.Del):
            return True
        if isinstance(inst, (ir.SetItem, ir.StaticSetItem)):
            index = inst.index if isinstance(inst, ir.SetItem) else inst.index_var
            return (
                index is not None
                and self._element(inst.target, index)
                and _number(self.typeof(inst.value.name))
            )
        if not isinstance(inst, ir.Assign):
            return False
        if isinstance(inst.value, (ir.Const, ir.Global, ir.FreeVar, ir.Arg)):
            return True
        result = self.typeof(inst.target.name)
        if isinstance(inst.value, ir.Var):
            return _plain(result) or result == self.typeof(inst.value.name)
        return isinstance(inst.value, ir.Expr) and self._straight_expression(inst.value, result)

    def _straight_expression(self, value: RightSide, result: Type) -> bool:
        if value.op in ("binop", "inplace_binop", "unary"):
            return self._inline(value.fn, [value.value] if value.op == "unary" else [value.lhs, value.rhs])
        if value.op in ELEMENT:
            if isinstance(self.typeof(value.value.name), types.BaseTuple):
                return bool(value.op == "static_getitem")
            index = value.index if value.op == "getitem" else value.index_var
            return index is not None and self._element(value.value, index)
        if value.op == "getattr":
            return _field(self.typeof(value.value.name), value.attr) and (
                isinstance(result, NAMES) or _plain(result)
            )
        if value.op == "exhaust_iter":
            return isinstance(self.typeof(value.value.name), types.BaseTuple)
        if value.op in PARTS:
            return isinstance(result, types.BaseTuple) or _plain(result)
        if value.op != "call" or value.kws or value.vararg is not None:
            return False
        function = self.typeof(value.func.name)
        if not isinstance(function, types.Function):
            return False
        key = function.typing_key
        return self._inline(getattr(key, "operator", key), value.args)

    def _inline(self, key: Key, args: Sequence[Variable]) -> bool:
        """Whether a function of numbers is emitted in place, without a way out that is not ours."""
        kinds = [self.typeof(var.name) for var in args]
        if not all(map(_number, kinds)):
            return False
        if any(map(is_active, kinds)):
            return key in INLINE
        if key in DIVISIONS:  # by a literal they cannot raise
            divisor = self.func_ir._definitions.get(args[1].name, [None])
            return len(divisor) == 1 and isinstance(divisor[0], ir.Const) and divisor[0].value != 0
        # what users add to math may raise
        return key in SAFE or (key in INLINE and getattr(key, "__module__", "") == "math")

    def _element(self, array: Variable, index: Variable) -> bool:
        """Whether this is one number of an array."""
        kind, place = self.typeof(array.name), self.typeof(index.name)
        if not isinstance(kind, types.Array) or not _number(kind.dtype) or self.context.enable_boundscheck:
            return False
        return _index(place) and kind.ndim == (len(place) if isinstance(place, types.BaseTuple) else 1)


@register_pass(mutates_CFG=True, analysis_only=False)
class TwinLowering(NativeLowering):
    """The pass that lowers twins."""

    _name = "tapegrad_native_lowering"

    @property
    def lowering_class(self) -> type[Lower]:
        """The class that does it."""
        return TwinLower
