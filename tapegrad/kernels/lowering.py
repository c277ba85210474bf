"""Straight from a typed subset of Python to LLVM, inside one Numba intrinsic.

The compiled sweep has several hundred statements. Numba's own front end takes about 2 ms for each, at
a user's first gradient; this translator takes a tenth of a millisecond, and Numba still links,
optimises, caches and calls the result. The subset (`tapegrad.kernels.dialect` runs it as plain Python):

* functions of 64-bit integers that return one; locals are integers, doubles or views;
* ``i64(address)``, ``i32``, ``u8``, ``f64``, ``f32`` are views: indexed, read and written, widened on
  reading and narrowed on writing; ``view.name`` is ``view[NAME]``, NAME a constant;
* ``obj(address).name`` is a field of a Python object: at ``NAME_AT`` bytes, or at as many as the shared word
  ``NAME_SLOT`` says;
* assignment, ``if``, ``while``, ``for ... in range``, ``break``, ``continue``, ``return``; arithmetic,
  comparison, short-circuit logic; ``min``, ``max``, ``float``; ``//`` of non-negative integers only;
* ``call(address, ...)``, ``invoke(address, ...)`` (no result), ``copy``, ``zero``; names of constants;
* ``stack(n)``, words for the duration of a call, n a literal or a constant; ``shared()``, SHARED_WORDS words
  for that of the program; ``address(function)``; ``share(words)``, in a program that borrows functions of
  another one, where the words of that are;
* ``within(address, count)``: bytes that the next call reads or writes.

With the constant BOUNDS every index and every ``within`` is checked against the memory that the address
lies in, as ``region`` finds it (`tapegrad.kernels.bounds`): an escape is noted, and all functions return.
"""

from __future__ import annotations

import ast
import functools

from llvmlite import ir

from tapegrad.kernels.dialect import HALF_WORDS
from tapegrad.kernels.instructions import (
    BIT,
    BYTE,
    F32,
    F64,
    I32,
    I64,
    ORDERED,
    UNORDERED,
    VOID,
    Body,
    Builder,
    Pointer,
    Value,
)

VIEWS = {"i64": I64, "i32": I32, "u8": BYTE, "f64": F64, "f32": F32}
INTEGER = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "sdiv", ast.Mod: "srem",
    ast.LShift: "shl", ast.RShift: "lshr", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
}  # fmt: skip
WIDENING = {F32: ("fpext", F64), I32: ("sext", I64), BYTE: ("zext", I64)}  # of what is read
SIZES = {I64: 8, F64: 8, BYTE: 1, I32: 4, F32: 4}
DOUBLE = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
VECTORISED = {
    "add", "add_rows", "add_scaled", "add_total", "spread", "stage", "suspect", "missing", "checksum",
    "equal_bytes", "count_up",
    "multiply_add", "combine", "divide_by", "choose", "add_tiles",
}  # fmt: skip
COMPARE = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


class Unsupported(SyntaxError):
    """A construct outside the subset."""


class Program:
    """What is called of some source texts, as internal functions of one LLVM module.

    Those of the first `trusted` texts are not checked where others are. Those of the first `quick` are
    compiled to be quick, the others to be small, as compiling takes a user's time too. Functions that one
    program has `offered` another one calls that has `borrowed` them: their addresses follow its shared words.
    """

    def __init__(
        self, texts: list[str], constants: dict[str, int], trusted: int = 0, quick: int = 0,
        offered: tuple[str, ...] = (), borrowed: tuple[str, ...] = (),
    ):  # fmt: skip
        self.constants, self.offered = constants, offered
        self.definitions: dict[str, ast.FunctionDef] = {}
        self.small: set[str] = set()
        self.checked: dict[str, int] = {}
        for place, text in enumerate(texts):
            for node in ast.parse(text).body:
                if isinstance(node, ast.FunctionDef):
                    if node.name in self.definitions:
                        raise Unsupported(f"line {node.lineno}: a second function {node.name!r}")
                    if place >= quick and node.name not in VECTORISED:
                        self.small.add(node.name)
                    if constants.get("BOUNDS") and place >= trusted:
                        self.checked[node.name] = len(self.definitions)
                    self.definitions[node.name] = node
        places = enumerate(borrowed, constants.get("SHARED_WORDS", 0))
        self.borrowed = {name: place for place, name in places if name not in self.definitions}

    def build(self, module: ir.Module, entry: str) -> ir.Function:
        """Add the function named `entry`, and all that it calls, to `module` and return it."""
        self.module = module
        self.functions: dict[str, ir.Function] = {}
        self.waiting: list[str] = []
        found = self.function(entry)
        self.share_words()
        while self.waiting:
            name = self.waiting.pop()
            number = self.checked.get(name)
            kind = _Function if number is None else functools.partial(_Checked, number)
            kind(self, Body(self.functions[name]), self.definitions[name]).translate()
        return found

    def function(self, name: str) -> ir.Function:
        """Return a function by its name; it is translated once anything has asked for it."""
        if name not in self.functions:
            node = self.definitions[name]
            kind = ir.FunctionType(I64.known, [I64.known] * len(node.args.args))
            function = self.functions[name] = ir.Function(self.module, kind, f"tapegrad.{name}")
            function.linkage = "internal"
            if (node.end_lineno or 0) - node.lineno > 24:  # inlined everywhere they would double compile time
                function.attributes.add("noinline")
            if name in VECTORISED:
                function.attributes.add("noinline")  # where it is inlined it would not be vectorised
            else:  # most loops run over a few axes or operands: as vectors they would take longer
                function.attributes.add("noimplicitfloat")
            if name in self.small:
                function.attributes.add("optsize")
            self.waiting.append(name)
        return self.functions[name]

    def share_words(self) -> None:
        """Add the words that all functions share, zero at first, or where those of another program are."""
        values = [0] * (1 if self.borrowed else self.constants.get("SHARED_WORDS", 0))
        values += [self.function(name).ptrtoint(I64.known) for name in self.offered]
        kind = ir.ArrayType(I64.known, len(values))
        words = ir.GlobalVariable(self.module, kind, "tapegrad.shared")
        words.linkage = "internal"
        words.initializer = ir.Constant(kind, values)


class _Function:
    def __init__(self, program, body, node):
        self.program, self.constants, self.borrowed = program, program.constants, program.borrowed
        self.body, self.start, self.node = body, body.block("body"), node
        self.locals = {}
        self.loops = []
        self.b = Builder(body, self.start)

    def translate(self):
        for argument, parameter in zip(self.node.args.args, self.body.parameters, strict=True):
            self.bind(argument.arg, parameter)
        self.block(self.node.body)
        if not self.b.block.is_terminated:
            self.b.ret(I64(0))
        Builder(self.body, self.body.entry).branch(self.start)

    def refuse(self, node):
        line = getattr(node, "lineno", 0)
        raise Unsupported(f"{self.node.name}, line {line}: {type(node).__name__} is outside the subset")

    # statements

    def block(self, statements):
        for statement in statements:
            getattr(self, "do_" + type(statement).__name__.lower(), self.refuse)(statement)
            if self.b.block.is_terminated:
                break

    def bind(self, name, value):
        value = self.widened(value)
        if name not in self.locals:
            self.locals[name] = self.body.alloca(value.type)
        place = self.locals[name]
        if place.type.pointee is not value.type:
            raise Unsupported(f"{self.node.name}: {name!r} changes its type")
        self.b.store(value, place)

    def store(self, target, value):
        if isinstance(target, ast.Name):
            self.bind(target.id, value)
            return
        place = self.place(target)
        kind, value = place.type.pointee, self.widened(value)
        if kind is not value.type:
            value = self.b.cast("fptrunc" if kind is F32 else "trunc", value, kind)
        self.b.store(value, place)

    def widened(self, value):
        """A value, as an integer if it is a bit."""
        return self.b.cast("zext", value, I64) if value.type is BIT else value

    def do_expr(self, node):
        if not isinstance(node.value, ast.Constant):
            self.value(node.value)

    def do_assign(self, node):
        value = node.value
        for target in node.targets:
            if isinstance(target, ast.Tuple):
                values = [self.value(v) for v in value.elts]
                for part, computed in zip(target.elts, values, strict=True):
                    self.store(part, computed)
            else:
                self.store(target, self.value(value))

    def do_augassign(self, node):
        self.store(node.target, self.binary(node.op, self.value(node.target), self.value(node.value)))

    def block_of(self, name):
        return self.body.block(name)

    def go(self, block):
        if not self.b.block.is_terminated:
            self.b.branch(block)

    def do_if(self, node):
        then, other, after = self.block_of("then"), self.block_of("else"), self.block_of("after")
        self.b.cbranch(self.truth(node.test), then, other)
        for start, body in ((then, node.body), (other, node.orelse)):
            self.b.position_at_end(start)
            self.block(body)
            self.go(after)
        self.b.position_at_end(after)

    def do_while(self, node):
        head, body, after = self.block_of("head"), self.block_of("loop"), self.block_of("after")
        self.b.branch(head)
        self.b.position_at_end(head)
        self.b.cbranch(self.truth(node.test), body, after)
        self.b.position_at_end(body)
        self.loops.append((head, after))
        self.block(node.body)
        self.loops.pop()
        self.go(head)
        self.b.position_at_end(after)

    def do_for(self, node):
        if not (isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) == "range"):
            self.refuse(node)
        bounds = [self.value(a) for a in node.iter.args]
        start, stop = (I64(0), bounds[0]) if len(bounds) == 1 else bounds[:2]
        step = I64(1)
        if len(bounds) == 3:
            given = ast.unparse(node.iter.args[2])
            step = I64(self.constants[given] if given in self.constants else int(given))
        counter = self.body.alloca(I64)
        self.b.store(start, counter)
        head, body, following, after = (self.block_of(n) for n in ("head", "loop", "next", "after"))
        self.b.branch(head)
        self.b.position_at_end(head)
        sign = "<" if step.constant > 0 else ">"
        self.b.cbranch(self.b.icmp(sign, self.b.load(counter), stop), body, after)
        self.b.position_at_end(body)
        self.bind(node.target.id, self.b.load(counter))
        self.loops.append((following, after))
        self.block(node.body)
        self.loops.pop()
        self.go(following)
        self.b.position_at_end(following)
        self.b.store(self.b.binary("add nsw", self.b.load(counter), step), counter)
        self.b.branch(head)
        self.b.position_at_end(after)

    def do_continue(self, node):
        self.b.branch(self.loops[-1][0])

    def do_break(self, node):
        self.b.branch(self.loops[-1][1])

    def do_return(self, node):
        value = self.widened(self.value(node.value))
        if value.type is not I64:
            self.refuse(node)
        self.b.ret(value)

    # expressions

    def value(self, node):
        return getattr(self, "_" + type(node).__name__.lower(), self.refuse)(node)

    def truth(self, node):
        value = self.value(node)
        return value if value.type is BIT else self.b.icmp("!=", value, I64(0))

    def _constant(self, node):
        if not isinstance(node.value, (bool, int, float)):
            self.refuse(node)
        if isinstance(node.value, bool):
            return BIT(node.value)
        return F64(node.value) if isinstance(node.value, float) else I64(node.value)

    def _name(self, node):
        if node.id in self.locals:
            return self.b.load(self.locals[node.id])
        if node.id in self.constants:
            return I64(self.constants[node.id])
        raise Unsupported(f"{self.node.name}, line {node.lineno}: unknown name {node.id!r}")

    def field(self, node):
        """A field by name as an element of a view."""
        place, name = node.value, node.attr.upper()
        if not (isinstance(place, ast.Call) and isinstance(place.func, ast.Name) and place.func.id == "obj"):
            return ast.Subscript(place, ast.Name(name, lineno=node.lineno), lineno=node.lineno)
        at = ast.Name(f"{name}_AT", lineno=node.lineno)
        if f"{name}_SLOT" in self.constants:
            words = ast.Call(ast.Name("i64"), [ast.Call(ast.Name("shared"), [], [])], [], lineno=node.lineno)
            at = ast.Subscript(words, ast.Name(f"{name}_SLOT"), lineno=node.lineno)
        view = ast.Name("i32" if node.attr in HALF_WORDS else "i64")
        place = ast.Call(view, [ast.BinOp(place.args[0], ast.Add(), at)], [])
        return ast.Subscript(place, ast.Constant(0), lineno=node.lineno)

    def _attribute(self, node):
        return self._subscript(self.field(node))

    def place(self, node):
        return self.element(self.field(node) if isinstance(node, ast.Attribute) else node)

    def element(self, node):
        return self.b.gep(self.value(node.value), self.value(node.slice), inbounds=True)

    def literal(self, node):
        """A number that the text says: a literal, or the name of a constant."""
        return node.value if isinstance(node, ast.Constant) else self.constants[node.id]

    def _subscript(self, node):
        loaded = self.b.load(self.place(node))
        name, kind = WIDENING.get(loaded.type, (None, None))
        return loaded if name is None else self.b.cast(name, loaded, kind)

    def binary(self, op, a, b):
        a, b = self.widened(a), self.widened(b)
        table = DOUBLE if a.type is F64 else INTEGER
        if a.type is not b.type or type(op) not in table:
            raise Unsupported(f"{self.node.name}: {type(op).__name__} of {a.type.text} and {b.type.text}")
        return self.b.binary(table[type(op)], a, b)

    def _binop(self, node):
        return self.binary(node.op, self.value(node.left), self.value(node.right))

    def _unaryop(self, node):
        if isinstance(node.op, ast.Not):
            return self.b.not_(self.truth(node.operand))
        value = self.value(node.operand)
        if isinstance(node.op, ast.Invert):
            return self.b.not_(value)
        return self.b.fneg(value) if value.type is F64 else self.b.neg(value)

    def _compare(self, node):
        if len(node.ops) != 1 or type(node.ops[0]) not in COMPARE:
            self.refuse(node)
        a, b = self.value(node.left), self.value(node.comparators[0])
        a, b = self.widened(a), self.widened(b)
        sign = COMPARE[type(node.ops[0])]
        if a.type is not F64:
            return self.b.icmp(sign, a, b)
        return self.b.fcmp(sign, a, b, UNORDERED if sign == "!=" else ORDERED)

    def _boolop(self, node):
        after = self.block_of("decided")
        come_from = []
        for part in node.values[:-1]:
            value = self.truth(part)
            come_from.append((value, self.b.block))
            following = self.block_of("more")
            if isinstance(node.op, ast.And):
                self.b.cbranch(value, following, after)
            else:
                self.b.cbranch(value, after, following)
            self.b.position_at_end(following)
        value = self.truth(node.values[-1])
        come_from.append((value, self.b.block))
        self.b.branch(after)
        self.b.position_at_end(after)
        return self.b.phi(BIT, come_from)

    def _ifexp(self, node):
        """Both sides are evaluated: they must not read through an address that may be wrong."""
        test, a, b = self.truth(node.test), self.value(node.body), self.value(node.orelse)
        return self.b.select(test, self.widened(a), self.widened(b))

    def _call(self, node):
        name = node.func.id
        if name == "address":
            return self.address(node.args[0].id)
        args = [self.widened(self.value(a)) for a in node.args]
        if name in VIEWS:
            return self.view(args[0], VIEWS[name].pointer)
        if name in self.program.definitions or name in self.borrowed:
            return self.function_call(name, args)
        if name == "within":
            self.within(*args, node.lineno)
            return I64(0)
        if name in ("call", "invoke"):
            return self.call_at(args[0], args[1:], I64 if name == "call" else VOID)
        if name in ("min", "max"):
            sign = "<" if name == "min" else ">"
            return self.b.select(self.b.icmp(sign, args[0], args[1]), args[0], args[1])
        if name == "stack":  # words that live as long as the function runs
            return self.b.cast("ptrtoint", self.body.alloca(I64, self.literal(node.args[0])), I64)
        if name == "shared":
            return self.shared()
        if name == "share" and self.borrowed:
            self.b.store(args[0], self.words())
            return I64(0)
        if name == "float":
            return self.b.cast("sitofp", args[0], F64)
        if name == "prefetch":
            return self.prefetch(args[0])
        if name in ("copy", "zero"):
            for moved in args[:-1]:
                self.within(moved, args[-1], node.lineno)
            return self.move(name, args)
        raise Unsupported(f"{self.node.name}, line {node.lineno}: unknown function {name!r}")

    def view(self, address, kind):
        return self.b.cast("inttoptr", address, kind)

    def function_call(self, name, args):
        if name in self.borrowed:
            return self.call_at(self.address(name), args, I64)
        return self.b.call(I64, self.program.function(name).get_reference(), args)

    def address(self, name):
        """The address of a function."""
        if name in self.borrowed:
            place = self.b.binary("add", self.shared(), I64(8 * self.borrowed[name]))
            return self.b.load(self.b.cast("inttoptr", place, I64.pointer))
        function = self.program.function(name)
        return Value(I64, f"ptrtoint ({function.type} {function.get_reference()} to i64)")

    def call_at(self, address, args, back):
        """Call the function at an address, for a result of this type."""
        kind = ir.FunctionType(back.known, [I64.known] * len(args)).as_pointer()
        return self.b.call(back, self.b.line(None, f"inttoptr i64 {address.text} to {kind}").text, args)

    def within(self, address, count, line):
        pass

    def shared(self):
        """The address of words that all functions of the program share."""
        words = self.words()
        return self.b.load(words) if self.borrowed else self.b.cast("ptrtoint", words, I64)

    def words(self):
        """Where these words are, or their address."""
        words = self.program.module.globals["tapegrad.shared"]
        return Value(I64.pointer, f"bitcast ({words.type} {words.get_reference()} to {I64.pointer.text})")

    def move(self, name, args):
        bytes_ = [self.b.cast("inttoptr", x, BYTE.pointer) for x in args[:-1]]
        if name == "copy":
            return self.intrinsic("llvm.memcpy.p0.p0.i64", *bytes_, args[-1], BIT(0))
        return self.intrinsic("llvm.memset.p0.i64", *bytes_, BYTE(0), args[-1], BIT(0))

    def prefetch(self, address):
        byte = self.b.cast("inttoptr", address, BYTE.pointer)
        return self.intrinsic("llvm.prefetch.p0", byte, *map(I32, (0, 3, 1)))

    def intrinsic(self, name, *args):
        """Call a function of LLVM's that gives nothing."""
        function = self.program.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(VOID.known, [x.type.known for x in args])
            function = ir.Function(self.program.module, kind, name)
        return self.b.call(VOID, function.get_reference(), args)


class _Checked(_Function):
    """A function whose every access is checked. A view carries the bounds of the memory it was made in."""

    def __init__(self, number, *rest):
        super().__init__(*rest)
        self.number = number
        self.bounds = {}  # of each view in use: the view itself, so that its id stays its own, and two words
        self.places = {}  # by name of a local view: where its bounds are kept
        self.escapes = {}

    def view(self, address, kind):
        found = super().view(address, kind)
        return self.bounded(found, self.region(address))

    def region(self, address):
        """Where the memory begins and ends that an address lies in."""
        pair = self.b.cast("inttoptr", super().function_call("region", [address]), I64.pointer)
        return [self.b.load(self.b.gep(pair, I64(q))) for q in range(2)]

    def bounded(self, view, bounds):
        self.bounds[id(view)] = (view, *bounds)
        return view

    def bind(self, name, value):
        super().bind(name, value)
        if isinstance(value.type, Pointer):
            if name not in self.places:
                self.places[name] = [self.body.alloca(I64) for _ in range(2)]
            for place, bound in zip(self.places[name], self.bounds[id(value)][1:], strict=True):
                self.b.store(bound, place)

    def _name(self, node):
        found = super()._name(node)
        if isinstance(found.type, Pointer):
            self.bounded(found, [self.b.load(place) for place in self.places[node.id]])
        return found

    def element(self, node):
        view, low, high = self.bounds[id(self.value(node.value))]
        place = self.b.gep(view, self.value(node.slice))
        start = self.b.cast("ptrtoint", place, I64)
        self.hold(start, low, high, SIZES[view.type.pointee], node.lineno)
        return place

    def within(self, address, count, line):
        self.hold(address, *self.region(address), count, line)

    def hold(self, start, low, high, count, line):
        """Go on if these bytes lie between the bounds, or are none."""
        count = I64(count) if isinstance(count, int) else count
        inside = self.b.binary(
            "and",
            self.b.icmp(">=", start, low),
            self.b.icmp("<=", count, self.b.binary("sub", high, start)),
        )
        self.proceed(self.b.binary("or", inside, self.b.icmp("==", count, I64(0))), self.escape(line))

    def proceed(self, good, otherwise):
        going_on = self.block_of("inside")
        self.b.cbranch(good, going_on, otherwise)
        self.b.position_at_end(going_on)

    def error_place(self, builder):
        """Where the first escape is noted: the third word of the table."""
        place = builder.binary("add", self.shared(), I64(8 * self.constants["GUARD"]))
        table = builder.load(builder.cast("inttoptr", place, I64.pointer))
        return builder.cast("inttoptr", builder.binary("add", table, I64(16)), I64.pointer)

    def escape(self, line):
        """The block that notes an escape on a line and leaves the function."""
        if line not in self.escapes:
            self.escapes[line] = self.block_of("escape")
            builder = Builder(self.body, self.escapes[line])
            builder.store(I64(self.number << 32 | line), self.error_place(builder))
            builder.ret(I64(0))
        return self.escapes[line]

    def function_call(self, name, args):
        """Of a function that left its memory the caller returns too."""
        found = super().function_call(name, args)
        if "left" not in self.escapes:
            self.escapes["left"] = self.block_of("left")
            Builder(self.body, self.escapes["left"]).ret(I64(0))
        good = self.b.icmp("==", self.b.load(self.error_place(self.b)), I64(0))
        self.proceed(good, self.escapes["left"])
        return found
