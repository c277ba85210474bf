"""The recording twin of a compiled function: the same code, compiled once more for active numbers.

Numba's own pipeline does it (`tapegrad.native.twins.compiler`), with two passes of ours. Before types are
inferred, calls go to twins, arrays that are made hold active numbers, and what is assigned to a variable ends
a statement. After, operations on arrays that Numba cannot lower for active numbers go to functions of
`tapegrad.native.arrays.arrays`.
"""

from __future__ import annotations

import types as python_types
from collections.abc import Iterable
from typing import Any

import numpy as np
from numba.core import ir, types
from numba.core.compiler_machinery import FunctionPass
from numba.core.errors import NumbaError, TypingError
from numba.core.ir_utils import build_definitions
from numba.experimental.jitclass.base import JitClassType
from numba.np.numpy_support import from_dtype

from tapegrad.native import border
from tapegrad.native.analysis import activity
from tapegrad.native.analysis.captured import conflict, recursive
from tapegrad.native.analysis.promotion import Aliases, base
from tapegrad.native.arrays import arrays
from tapegrad.native.arrays.argument_arrays import ArgumentArray
from tapegrad.native.arrays.counting import counted, written, zeros
from tapegrad.native.arrays.reading import Reading, is_expression, makes_zeros, whole_of
from tapegrad.native.arrays.storing import store
from tapegrad.native.emission.algebra import Spec
from tapegrad.native.emission.annotations import (
    Block,
    Code,
    CompilerState,
    Key,
    Location,
    RightSide,
    Signature,
    Statement,
    Type,
    Variable,
)
from tapegrad.native.library import complex_arrays as _complex_arrays  # noqa: F401  (they add to functions)
from tapegrad.native.library import factors as _factors  # noqa: F401
from tapegrad.native.library import functions
from tapegrad.native.library import linear as _linear  # noqa: F401
from tapegrad.native.library import loop as _loop  # noqa: F401
from tapegrad.native.library import norms as _norms  # noqa: F401
from tapegrad.native.library import rows as _rows  # noqa: F401
from tapegrad.native.library import sequences as _sequences  # noqa: F401
from tapegrad.native.library.squares import (
    Square,
    inner_since,
    inner_with,
    product_since,
    product_with,
    square_of,
    squares_in,
    where_zero,
    zeros_of,
)
from tapegrad.native.loading import checkpoint_loop
from tapegrad.native.numbers.operators import promote, statement, value_of
from tapegrad.native.numbers.scalar import PASSIVE, is_active
from tapegrad.native.twins import forms
from tapegrad.native.twins.compiler import PASSES
from tapegrad.native.twins.compiler import primal_of as primal_of  # from here they come with their passes
from tapegrad.native.twins.compiler import token as token
from tapegrad.native.twins.compiler import twin_of as twin_of
from tapegrad.native.twins.preaccumulate import twins_of as twins_of

MADE = (np.zeros, np.empty, np.ones)  # functions that make arrays; their dtype is argument 1
PLACE = {np.zeros_like: 1, np.empty_like: 1, np.ones_like: 1, np.identity: 1, np.full_like: 2, np.full: 2}
EMPTY = ("empty_list", "empty")  # classmethods of typed containers
KEEPING = ("append", "insert")  # methods of containers, which keep what they are given
ENDS = ("binop", "inplace_binop", "unary", "call", "static_getitem")
SILENT = (range, len, enumerate, zip, print, isinstance, statement, promote)


def _untyped(spec: Spec, entry: bool) -> type[FunctionPass]:
    border.enter(spec)  # made now: what Numba is to know is looked for before it compiles
    name = f"tapegrad_{spec}_{entry}_untyped"
    return type("Untyped", (_Untyped,), {"_name": name, "spec": spec, "entry": entry})


def _typed(spec: Spec, entry: bool) -> type[FunctionPass]:
    return type("Typed", (_Typed,), {"_name": f"tapegrad_{spec}_{entry}_typed"})


PASSES.extend((_untyped, _typed))


class _Untyped(FunctionPass):
    """Before types are known."""

    spec: Spec
    entry: bool

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: CompilerState) -> bool:
        """Rewrite a function."""
        self._read(state)
        blocks = self.ir.blocks if self.spec else {}
        squares = squares_in(blocks, self._definition, self._resolve, self.args)
        kinks = {id(square.call): square.exposed for square in squares.values()}
        self.squares: dict[int, Variable] = {}  # of what has a kink, by its call
        self.zeros: dict[int, Variable] = {}  # which statements it had where it was 0, by the call
        # Numba takes a temporary of an array expression to be used once: what is used again gets a name
        again = {x.name for square in squares.values() for x in square.variables()}
        self.named: dict[str, Variable] = {}
        first = min(self.ir.blocks)
        for label, block in self.ir.blocks.items():
            self.body: list[Statement] = []
            self.scope = block.scope
            for line in block.body:
                if isinstance(line, ir.Assign):
                    call = line.value if id(line.value) in kinks else None
                    square = squares.get(id(line.value))
                    # a block that comes before that of the length multiplies as it stands
                    if square is not None and id(square.call) in self.squares:
                        line.value = self._squared(square, line.value, line.loc)
                    function, args = (
                        (None, []) if call is None else (self._resolve(call.func), list(call.args))
                    )
                    target = line.target
                    if target.name in again and target.name.startswith("$"):
                        line.target = self.named[target.name] = self._var("factor", line.loc)
                    self._assign(line)
                    if line.target is not target:
                        self.body.append(ir.Assign(line.target, target, line.loc))
                    if call is not None:
                        self.squares[id(call)] = self._call(
                            square_of(function), map(self._again, args), line.loc
                        )
                        if kinks[id(call)]:
                            self.zeros[id(call)] = self._call(zeros_of, [line.target], line.loc)
                    continue
                if isinstance(line, ir.Print):
                    line.args = [self._shown(x, line.loc) for x in line.args]
                elif isinstance(line, ir.Return) and (self.entry or self.again):
                    whole = self._call(statement, [line.value], line.loc)
                    if self.again:
                        whole = self._call(forms.promoted, [self._token(line.loc), whole], line.loc)
                    if self.entry:
                        whole = self._call(border.leave, [whole], line.loc)
                    line = ir.Return(whole, line.loc)
                elif isinstance(line, (ir.SetItem, ir.StaticSetItem)) and self._stores(line):
                    continue
                self.body.append(line)
            block.body = self.body
            assert label >= first
        self.ir._definitions = build_definitions(self.ir.blocks)
        return True

    def _read(self, state: CompilerState) -> None:
        """Find what is to be known of variables before anything is rewritten."""
        self.ir, self.args = state.func_ir, state.args
        held = state.func_id.func._tapegrad_held
        found = conflict(held)
        if found:
            raise TypingError(f"tapegrad: {found}", self.ir.loc)
        # the first result that Numba comes to, maybe a constant, is the type of those it calls in between
        self.again = any(map(forms.holds_active, state.args)) and recursive(held)
        self.promoted = self._active_later(state.func_id.func)
        self.passive = self._passive(state.func_id.func)
        self.counted, self.written = self._floats()

    def _passive(self, function: Any) -> set[str]:
        """Variables of arrays that are made, and need not hold active numbers."""
        if vars(function).get(activity.GIVEN_UP):
            return set()
        kinds = enumerate(self.args)
        active = {k for k, x in kinds if forms.holds_active(x) or (self.entry and border.crosses(x))}
        known = activity.Activity([*self.ir.blocks.values()], active, self._resolve)
        lines = (line for block in self.ir.blocks.values() for line in block.body)
        assigned = [line for line in lines if isinstance(line, ir.Assign) and line.target not in known]
        found = {base(line.target.name) for line in assigned if self._makes(line.value)}
        function._tapegrad_passive = bool(found)
        return found

    def _makes(self, value: RightSide) -> bool:
        """Whether this is a call of a function that makes an array, of numbers that are active by default."""
        if not isinstance(value, ir.Expr) or value.op != "call" or value.vararg:
            return False
        function = self._resolve(value.func)
        try:
            return function in MADE or function in functions.LIKE or self._copied(function, value) is not None
        except TypeError:  # of ctypes, for one
            return False

    def _is_passive(self, line: Statement) -> bool:
        """Whether a line makes an array that need not hold active numbers."""
        return base(line.target.name) in self.passive and self._makes(line.value)

    def _floats(self) -> tuple[set[str], set[str]]:
        """Expressions whose results are arrays of floats, if they are arrays; and what is written to."""
        if self.spec:
            return set(), set()
        stays = [isinstance(kind, ArgumentArray) for kind in self.args]
        known = Reading(self.ir, stays.__getitem__, self.promoted | self.passive)
        return known.ends, known.written

    def _active_later(self, function: Any) -> set[str]:
        """The variables whose arrays are to hold active numbers from the start."""
        found: set[str] = getattr(function, "_tapegrad_promoted", set())
        if found:
            aliases = Aliases(self.ir.blocks.values(), self._resolve)
            for name in found:
                aliases.check(name)
        return found

    def _squared(self, square: Square, product: RightSide, loc: Location) -> RightSide | Variable:
        """A product that has the square of what has a kink in it."""
        found = self.squares[id(square.call)]
        if square.others:
            found = self._call(where_zero, [self._again(square.root), found], loc)
        for how, other in square.others:
            if other is None:
                found = self._new(ir.Expr.unary(how, found, loc), loc)
            else:
                found = self._new(ir.Expr.binop(how, found, self._again(other), loc), loc)
        args = [self._again(square.root), self._new(self._expression(product, loc), loc), found]
        if square.exposed:
            args.insert(1, self.zeros[id(square.call)])
        functions = (inner_with, inner_since) if square.inner else (product_with, product_since)
        function = functions[square.exposed]
        return ir.Expr.call(*self._parts(function, args, loc))

    def _again(self, var: Variable) -> Variable:
        """A variable under the name by which it may be used again."""
        return self.named.get(var.name, var)

    def _var(self, name: str, loc: Location) -> Variable:
        known = name in self.scope.localvars._con
        return self.scope.redefine(name, loc) if known else self.scope.define(name, loc)

    def _new(self, value: RightSide, loc: Location, name: str = "$tape") -> Variable:
        var = self._var(name, loc)
        self.body.append(ir.Assign(value, var, loc))
        return var

    def _call(self, function: Key, args: Iterable[Variable], loc: Location) -> Variable:
        var = self._new(ir.Global(function.__name__, function, loc), loc)
        return self._new(ir.Expr.call(var, list(args), (), loc), loc)

    def _token(self, loc: Location, kind: Type = types.float64) -> Variable:
        return self._new(ir.Global("dtype", arrays.Token(forms.recorded(kind, self.spec)), loc), loc)

    def _dtype(self, var: Variable) -> Type | None:
        """The type of an array's elements, where that is known and to hold active numbers; else None."""
        found = self._definition(var)
        found = found.value if isinstance(found, ir.Const) else self._resolve(var)
        if found is None:
            return None
        try:
            kind = found if isinstance(found, types.Type) else from_dtype(np.dtype(found))
        except (TypeError, NumbaError):
            return None
        return None if forms.recorded(kind, self.spec) == kind else kind

    def _assign(self, line: Statement) -> None:
        value, loc = line.value, line.loc
        if isinstance(value, (ir.Global, ir.FreeVar)):
            line.value = self._callee(value, value.value, loc)
        elif isinstance(value, ir.Arg) and self.entry and border.crosses(self.args[value.index]):
            line.value = ir.Expr.call(*self._parts(border.enter(self.spec), [self._new(value, loc)], loc))
        elif isinstance(value, ir.Expr) and (self._is_passive(line) or self._writes(line)):
            pass
        elif isinstance(value, ir.Expr):
            counts = line.target.name in self.counted
            made = whole_of(self.ir, value) if counts else None  # by which function
            line.value = self._counted(made, value, loc) if made else self._expression(value, loc)
            called = self._resolve(value.func) if value.op == "call" else None
            silent = isinstance(called, type) or called in SILENT
            ends = counts and (made is not None or is_expression(self.ir, value))
            if ends or (not line.target.name.startswith("$") and value.op in ENDS and not silent):
                whole = self._new(line.value, loc)
                end = statement if not ends else written if line.target.name in self.written else counted
                line.value = ir.Expr.call(*self._parts(end, [whole], loc))
        if base(line.target.name) in self.promoted:
            given = [self._token(loc), self._new(line.value, loc)]
            line.value = ir.Expr.call(*self._parts(functions.own_array, given, loc))
        self.body.append(line)

    def _counted(self, function: Key, value: RightSide, loc: Location) -> RightSide:
        """A product, or sums along an axis, as an array of floats."""
        binary = value.op == "binop"
        args, named = [value.lhs, value.rhs] if binary else list(value.args), () if binary else value.kws
        stub = functions.COUNTED[function]
        return ir.Expr.call(self._new(ir.Global(stub.__name__, stub, loc), loc), args, named, loc)

    def _writes(self, line: Statement) -> bool:
        """Rewrite a line that makes an array to be written to, or is an operator in place on one."""
        value, loc = line.value, line.loc
        if line.target.name not in self.written:
            return False
        if makes_zeros(self.ir, value):
            line.value = ir.Expr.call(*self._parts(zeros, value.args, loc))
        elif value.op == "inplace_binop":
            plain = ir.Expr.binop(value.immutable_fn, value.lhs, value.rhs, value.loc)
            whole = self._new(ir.Const(None, loc), loc)
            self._store(value.lhs, whole, self._new(self._expression(plain, loc), loc), loc)
            line.value = value.lhs
        else:
            return False
        return True

    def _stores(self, line: Statement) -> bool:
        """Rewrite a line that writes to an element or part; whether it is another one then."""
        if line.target.name in self.written:
            index = line.index if isinstance(line, ir.SetItem) else line.index_var
            self._store(line.target, index, line.value, line.loc)
            return True
        found = self._definition(line.value)
        if isinstance(found, ir.Expr) and found.op in ENDS:
            line.value = self._call(statement, [line.value], line.loc)
        return False

    def _store(self, array: Variable, index: Variable, x: Variable, loc: Location) -> None:
        """Write to an array."""
        what = "an array" if array.unversioned_name.startswith("$") else array.unversioned_name
        words = ir.Const(f"{self.ir.func_id.func.__name__} writes to {what}", loc)
        self._call(store, [array, index, x, self._new(words, loc)], loc)

    def _parts(
        self, function: Key, args: Iterable[Variable], loc: Location
    ) -> tuple[Variable, list[Variable], tuple[()], Location]:
        return self._new(ir.Global(function.__name__, function, loc), loc), list(args), (), loc

    def _callee(self, value: RightSide, found: Any, loc: Location) -> RightSide:
        if isinstance(found, tuple) and any(primal_of(part) is not None for part in found):
            raise TypingError("tapegrad: functions in a tuple are not recorded; call each by its name", loc)
        twin = (
            forms.Class(found, self.spec) if isinstance(found, JitClassType) else twins_of(found, self.spec)
        )
        name = value.attr if isinstance(value, ir.Expr) else value.name
        return value if twin is found else ir.Global(name, twin, loc)

    def _resolve(self, var: Variable) -> Any:
        """The Python object that a variable is for certain; None if that is not known."""
        found = self._definition(var)
        if isinstance(found, (ir.Global, ir.FreeVar)):
            return found.value
        if isinstance(found, ir.Expr) and found.op == "getattr":
            owner = self._resolve(found.value)
            return getattr(owner, found.attr, None) if isinstance(owner, python_types.ModuleType) else None
        return None

    def _expression(self, value: RightSide, loc: Location) -> RightSide:
        if value.op == "getattr":
            owner = self._resolve(value.value)
            if isinstance(owner, python_types.ModuleType):
                return self._callee(value, getattr(owner, value.attr, None), loc)
            if value.attr in functions.ATTRIBUTES:
                return ir.Expr.call(*self._parts(functions.ATTRIBUTES[value.attr], [value.value], loc))
        if (value.op == "getiter" and not self._counts(value.value)) or (
            value.op == "getitem" and self._is_tuple(value.value)
        ):
            value.value = self._call(forms.evened, [value.value], loc)
            return value
        if value.op == "build_list":
            items = [self._promoted(item, loc) for item in value.items]
            return ir.Expr.build_list(items, value.loc)
        if value.op == "build_map":
            items = [(key, self._promoted(item, loc)) for key, item in value.items]
            return ir.Expr.build_map(items, value.size, value.literal_value, value.value_indexes, value.loc)
        if value.op == "call":
            return self._of_call(value, loc)
        if value.op == "inplace_binop" and value.fn in arrays.UPDATE:
            return ir.Expr.call(*self._parts(arrays.UPDATE[value.fn], [value.lhs, value.rhs], value.loc))
        if value.op in ("binop", "inplace_binop") and value.fn in functions.OPERATORS:
            function = functions.OPERATORS[value.fn]
            return ir.Expr.call(*self._parts(function, [value.lhs, value.rhs], value.loc))
        return value

    def _counts(self, var: Variable) -> bool:
        found = self._definition(var)
        return isinstance(found, ir.Expr) and found.op == "call" and self._resolve(found.func) in SILENT

    def _is_tuple(self, var: Variable) -> bool:
        found = self._definition(var)
        return isinstance(found, ir.Expr) and found.op == "build_tuple"

    def _shown(self, x: Variable, loc: Location) -> Variable:
        return x if isinstance(self._definition(x), ir.Const) else self._call(value_of, [x], loc)

    def _definition(self, var: Variable) -> RightSide | None:
        try:
            return self.ir.get_definition(var)
        except KeyError:
            return None

    def _promoted(self, item: Variable, loc: Location) -> Variable:
        """An item of a list: a float literal becomes active, as others may be put there; a statement ends."""
        found = self._definition(item)
        if isinstance(found, ir.Const) and isinstance(found.value, (float, complex)):
            kind = types.complex128 if isinstance(found.value, complex) else types.float64
            return self._call(promote, [self._token(loc, kind), item], loc)
        return item if isinstance(found, ir.Const) else self._call(statement, [item], loc)

    def _of_call(self, value: RightSide, loc: Location) -> RightSide:
        function = self._resolve(value.func)
        try:
            hash(function)
        except TypeError:  # of ctypes, for one
            function = None
        count = 2 if function is np.dot else function.nin if isinstance(function, np.ufunc) else 0
        if count and not value.vararg and (len(value.args) == count + 1 or dict(value.kws).keys() == {"out"}):
            args = [*value.args, *dict(value.kws).values()]
            plain = ir.Expr.call(value.func, args[:count], (), value.loc)
            result = self._new(self._of_call(plain, loc), loc)
            return ir.Expr.call(*self._parts(functions.stored, [args[count], result], value.loc))
        if isinstance(function, type) and issubclass(function, tuple) and hasattr(function, "_fields"):
            args = [self._call(statement, [x], loc) for x in value.args]  # named tuples of one type can meet
            kws = tuple((name, self._call(statement, [x], loc)) for name, x in value.kws)
            return ir.Expr.call(value.func, args, kws, value.loc, vararg=value.vararg)
        if function in MADE and not value.vararg:
            args, named = list(value.args), dict(value.kws)
            dtype = named.get("dtype", args[1] if len(args) > 1 else None)
            kind = types.float64 if dtype is None else self._dtype(dtype)
            if kind is not None:
                named["dtype"] = self._token(loc, kind)
                if len(args) > 1:
                    args[1] = named.pop("dtype")
            maker = value.func
            if function is np.empty:  # memory that nothing was written to would be no numbers of ours
                maker = self._new(ir.Global("zeros", np.zeros, loc), loc)
            return ir.Expr.call(maker, args, tuple(named.items()), value.loc)
        if function in functions.LIKE and not value.vararg:
            return self._of_making(function, value, loc)
        copied = self._copied(function, value)
        if copied is not None:
            return ir.Expr.call(*self._parts(functions.own_copy, [self._token(loc), copied], value.loc))
        other = functions.INSTEAD.get(function)
        if other is not None:
            var, args = self._new(ir.Global(other.__name__, other, loc), loc), value.args
            if function is checkpoint_loop and args:
                args = [self._named(args[0], loc), *args[1:]]
            return ir.Expr.call(var, args, value.kws, value.loc, vararg=value.vararg)
        definition = self._definition(value.func)
        if isinstance(definition, ir.Expr) and definition.op == "getattr" and definition.attr in KEEPING:
            args = [self._call(statement, [x], loc) for x in value.args]
            return ir.Expr.call(value.func, args, value.kws, value.loc, vararg=value.vararg)
        if isinstance(definition, ir.Expr) and definition.op == "getattr" and definition.attr in EMPTY:
            kept = 1 if definition.attr == "empty" else 0  # keys have no derivative
            args = [x if k < kept else self._item_type(x, loc) for k, x in enumerate(value.args)]
            named = [(name, x if name == "key_type" else self._item_type(x, loc)) for name, x in value.kws]
            return ir.Expr.call(value.func, args, tuple(named), value.loc, vararg=value.vararg)
        method = self._method(value)
        if method is not None and not value.vararg:
            other, owner = method
            var = self._new(ir.Global(other.__name__, other, loc), loc)
            return ir.Expr.call(var, [owner, *value.args], value.kws, value.loc)
        return value

    def _of_making(self, function: Key, value: RightSide, loc: Location) -> RightSide:
        """A call of a function that makes an array as its arguments are, or of a dtype that is given."""
        args, named = list(value.args), dict(value.kws)
        dtype = named.pop("dtype", None)
        if dtype is None and len(args) == PLACE.get(function, -1) + 1:
            dtype = args.pop()
        kind = types.float64 if dtype is None else self._dtype(dtype)
        if kind is None:
            return value
        other = (functions.LIKE if dtype is None else functions.GIVEN)[function]
        var = self._new(ir.Global(other.__name__, other, loc), loc)
        return ir.Expr.call(var, [self._token(loc, kind), *args], tuple(named.items()), loc)

    def _named(self, x: Variable, loc: Location) -> Variable:
        """A function as an argument, by its type: its address would be in what is cached."""
        primal = primal_of(self._resolve(x))
        if primal is None:
            return x
        kind = types.Dispatcher(twin_of(primal, self.spec))
        return self._new(ir.Global("step", arrays.Token(kind), loc), loc)

    def _item_type(self, x: Variable, loc: Location) -> Variable:
        """What a typed container is told to hold."""
        found = self._resolve(x)
        kind = forms.recorded(found, self.spec) if isinstance(found, types.Type) else found
        return x if kind is found or kind == found else self._new(ir.Global("item", kind, loc), loc)

    def _copied(self, function: Key | None, value: RightSide) -> Variable | None:
        """What a call makes a copy of, if it does that alone."""
        if value.kws or value.vararg:
            return None
        if function is np.copy:
            return value.args[0] if len(value.args) == 1 else None
        found = self._definition(value.func)
        if value.args or not isinstance(found, ir.Expr) or found.op != "getattr" or found.attr != "copy":
            return None
        return found.value if self._resolve(found.value) is None else None

    def _method(self, value: RightSide) -> tuple[Code, Variable] | None:
        found = self._definition(value.func)
        if not isinstance(found, ir.Expr) or found.op != "getattr" or found.attr not in functions.METHODS:
            return None
        if self._resolve(found.value) is not None:
            return None
        return functions.METHODS[found.attr], found.value


class _Typed(FunctionPass):
    """After types are known."""

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: CompilerState) -> bool:
        """Rewrite a function."""
        self.state = state
        kinds = state.typemap
        for block in state.func_ir.blocks.values():
            body: list[Statement] = []
            for line in block.body:
                if isinstance(line, ir.SetAttr):
                    self._fits(line)
                value = line.value if isinstance(line, ir.Assign) else None
                if isinstance(value, ir.Expr) and value.op == "call":
                    self._choice(block, body, line)
                known = isinstance(value, ir.Expr) and value.op in ("binop", "call")
                if known and isinstance(kinds.get(line.target.name), types.Array):
                    self._spread(block, body, line)
                body.append(line)
            block.body = body
        return True

    def _fits(self, line: Statement) -> None:
        """Refuse an array where one of other elements is wanted; Numba takes its memory as it is."""
        found, wanted = self.state.typemap[line.value.name], self.state.calltypes[line].args[1]
        if isinstance(found, types.Array) and isinstance(wanted, types.Array) and found.dtype != wanted.dtype:
            kinds = f"{found.dtype} elements to {wanted.dtype} elements"
            raise TypingError(f"tapegrad: No conversion from {kinds}", line.loc)

    def _define(
        self, block: Block, body: list[Statement], value: RightSide, kind: Type, loc: Location
    ) -> Variable:
        var = block.scope.redefine("$tape_typed", loc)
        self.state.typemap[var.name] = kind
        body.append(ir.Assign(value, var, loc))
        return var

    def _called(
        self, block: Block, body: list[Statement], function: Key, args: list[Variable], loc: Location
    ) -> tuple[RightSide, Signature]:
        """A call of a function whose overload is found now."""
        context, kinds = self.state.typingctx, self.state.typemap
        kind = context.resolve_value_type(function)
        var = self._define(block, body, ir.Global(function.__name__, function, loc), kind, loc)
        call = ir.Expr.call(var, args, (), loc)
        sig = kind.get_call_type(context, tuple(kinds[a.name] for a in args), {})
        self.state.calltypes[call] = sig
        return call, sig

    def _choice(self, block: Block, body: list[Statement], line: Statement) -> None:
        """A choice among active numbers is a ufunc, as in expressions of arrays; it is straight code."""
        call, kinds = line.value, self.state.typemap
        kind = kinds[call.func.name]
        ufunc = functions.UFUNCS.get(kind.typing_key) if isinstance(kind, types.Function) else None
        numbers = [getattr(kinds[x.name], "dtype", kinds[x.name]) for x in call.args]
        known = all(isinstance(number, PASSIVE) or is_active(number) for number in numbers)
        result = kinds[line.target.name]
        if (
            ufunc is None or call.kws or call.vararg or len(numbers) != 3 or not known
            or not is_active(getattr(result, "dtype", result))
        ):  # fmt: skip
            return
        line.value, sig = self._called(block, body, ufunc, list(call.args), call.loc)
        assert sig.return_type == result

    def _spread(self, block: Block, body: list[Statement], line: Statement) -> None:
        """An active number beside an array becomes an array of no dimension, which Numba broadcasts."""
        value, kinds = line.value, self.state.typemap
        operands = [value.lhs, value.rhs] if value.op == "binop" else list(value.args)
        if not any(arrays.carries(kinds[x.name]) for x in operands if isinstance(x, ir.Var)):
            return
        known = arrays.is_elementwise(value.fn if value.op == "binop" else kinds[value.func.name])
        if not known:
            return
        new = []
        for x in operands:
            if arrays.carries(kinds[x.name]):
                call, sig = self._called(block, body, arrays.as_array, [x], line.loc)
                x = self._define(block, body, call, sig.return_type, line.loc)
            new.append(x)
        context = self.state.typingctx
        function = context.resolve_value_type(value.fn) if value.op == "binop" else kinds[value.func.name]
        sig = function.get_call_type(context, tuple(kinds[x.name] for x in new), {})
        if value.op == "binop":
            line.value = ir.Expr.binop(value.fn, new[0], new[1], value.loc)
        else:
            line.value = ir.Expr.call(value.func, new, (), value.loc)
        self.state.calltypes[line.value] = sig
