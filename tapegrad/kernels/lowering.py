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
  for that of the program; ``address(function)``;
* ``within(address, count)``: bytes that the next call reads or writes.

With the constant BOUNDS every index and every ``within`` is checked against the memory that the address
lies in, as ``region`` finds it (`tapegrad.kernels.bounds`): an escape is noted, and all functions return.
"""

from __future__ import annotations

import ast
import functools

from llvmlite import ir

from tapegrad.kernels.dialect import HALF_WORDS

I64, F64, BIT, BYTE = ir.IntType(64), ir.DoubleType(), ir.IntType(1), ir.IntType(8)
VIEWS = {"i64": I64, "i32": ir.IntType(32), "u8": BYTE, "f64": F64, "f32": ir.FloatType()}
INTEGER = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "sdiv", ast.Mod: "srem",
    ast.LShift: "shl", ast.RShift: "lshr", ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor",
}  # fmt: skip
SIZES = {I64: 8, F64: 8, BYTE: 1, VIEWS["i32"]: 4, VIEWS["f32"]: 4}
DOUBLE = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
VECTORISED = {
    "add", "add_scaled", "add_total", "spread", "stage", "suspect", "missing", "checksum", "equal_bytes",
    "count_up",
    "multiply_add", "combine", "divide_by", "choose", "add_tiles",
}  # fmt: skip
COMPARE = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


class Unsupported(SyntaxError):
    """A construct outside the subset."""


class _Fields(ast.NodeTransformer):
    """Writes fields by name as places in views."""

    def __init__(self, constants):
        self.constants = constants

    def visit_Attribute(self, node):
        self.generic_visit(node)
        place, name = node.value, node.attr.upper()
        if isinstance(place, ast.Call) and ast.unparse(place.func) == "obj":
            slot = f"{name}_SLOT"
            at = f"i64(shared())[{slot}]" if slot in self.constants else f"{name}_AT"
            view = "i32" if node.attr in HALF_WORDS else "i64"
            text = f"{view}({ast.unparse(place.args[0])} + {at})[0]"
        else:
            text = f"{ast.unparse(place)}[{name}]"
        found = ast.parse(text, mode="eval").body
        found.ctx = node.ctx
        for part in ast.walk(found):
            ast.copy_location(part, node)
        return found


class Program:
    """All functions of some source texts, as internal functions of one LLVM module.

    Those of the first `trusted` texts are not checked where others are. Those of the first `quick` are
    compiled to be quick, the others to be small, as compiling takes a user's time too.
    """

    def __init__(self, texts: list[str], constants: dict[str, int], trusted: int = 0, quick: int = 0):
        self.constants = constants
        self.definitions: dict[str, ast.FunctionDef] = {}
        self.small: set[str] = set()
        self.checked: dict[str, int] = {}
        for place, text in enumerate(texts):
            for node in _Fields(constants).visit(ast.parse(text)).body:
                if isinstance(node, ast.FunctionDef):
                    if node.name in self.definitions:
                        raise Unsupported(f"line {node.lineno}: a second function {node.name!r}")
                    if place >= quick and node.name not in VECTORISED:
                        self.small.add(node.name)
                    if constants.get("BOUNDS") and place >= trusted:
                        self.checked[node.name] = len(self.definitions)
                    self.definitions[node.name] = node

    def build(self, module: ir.Module, entry: str) -> ir.Function:
        """Add every function to `module` and return the one named `entry`."""
        functions = {}
        for name, node in self.definitions.items():
            kind = ir.FunctionType(I64, [I64] * len(node.args.args))
            functions[name] = ir.Function(module, kind, f"tapegrad.{name}")
            functions[name].linkage = "internal"
            if (node.end_lineno or 0) - node.lineno > 24:  # inlined everywhere they would double compile time
                functions[name].attributes.add("noinline")
            if name in VECTORISED:
                functions[name].attributes.add("noinline")  # where it is inlined it would not be vectorised
            else:  # most loops run over a few axes or operands: as vectors they would take longer
                functions[name].attributes.add("noimplicitfloat")
            if name in self.small:
                functions[name].attributes.add("optsize")
        for name, node in self.definitions.items():
            number = self.checked.get(name)
            kind = _Function if number is None else functools.partial(_Checked, number)
            kind(self.constants, functions, functions[name], node).translate()
        return functions[entry]


class _Function:
    def __init__(self, constants, functions, function, node):
        self.constants, self.functions, self.function, self.node = constants, functions, function, node
        self.locals = {}
        self.loops = []
        self.entry = function.append_basic_block("entry")
        self.b = ir.IRBuilder(function.append_basic_block("body"))

    def translate(self):
        for argument, parameter in zip(self.node.args.args, self.function.args, strict=True):
            self.bind(argument.arg, parameter)
        self.block(self.node.body)
        if not self.b.block.is_terminated:
            self.b.ret(I64(0))
        ir.IRBuilder(self.entry).branch(self.function.blocks[1])

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
        if value.type == BIT:
            value = self.b.zext(value, I64)
        if name not in self.locals:
            self.locals[name] = ir.IRBuilder(self.entry).alloca(value.type, name=name)
        place = self.locals[name]
        if place.type.pointee != value.type:
            raise Unsupported(f"{self.node.name}: {name!r} changes its type")
        self.b.store(value, place)

    def store(self, target, value):
        if isinstance(target, ast.Name):
            self.bind(target.id, value)
            return
        place = self.place(target)
        kind = place.type.pointee
        if value.type == BIT:
            value = self.b.zext(value, I64)
        if kind == ir.FloatType():
            value = self.b.fptrunc(value, kind)
        elif kind != value.type:
            value = self.b.trunc(value, kind)
        self.b.store(value, place)

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
        return self.function.append_basic_block(name)

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
        counter = ir.IRBuilder(self.entry).alloca(I64)
        self.b.store(start, counter)
        head, body, following, after = (self.block_of(n) for n in ("head", "loop", "next", "after"))
        self.b.branch(head)
        self.b.position_at_end(head)
        sign = "<" if step.constant > 0 else ">"
        self.b.cbranch(self.b.icmp_signed(sign, self.b.load(counter), stop), body, after)
        self.b.position_at_end(body)
        self.bind(node.target.id, self.b.load(counter))
        self.loops.append((following, after))
        self.block(node.body)
        self.loops.pop()
        self.go(following)
        self.b.position_at_end(following)
        self.b.store(self.b.add(self.b.load(counter), step, flags=["nsw"]), counter)
        self.b.branch(head)
        self.b.position_at_end(after)

    def do_continue(self, node):
        self.b.branch(self.loops[-1][0])

    def do_break(self, node):
        self.b.branch(self.loops[-1][1])

    def do_return(self, node):
        value = self.value(node.value)
        if value.type not in (BIT, I64):
            self.refuse(node)
        self.b.ret(self.b.zext(value, I64) if value.type == BIT else value)

    # expressions

    def value(self, node):
        return getattr(self, "_" + type(node).__name__.lower(), self.refuse)(node)

    def truth(self, node):
        value = self.value(node)
        return value if value.type == BIT else self.b.icmp_signed("!=", value, I64(0))

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

    def place(self, node):
        return self.b.gep(self.value(node.value), [self.value(node.slice)], inbounds=True)

    def literal(self, node):
        """A number that the text says: a literal, or the name of a constant."""
        return node.value if isinstance(node, ast.Constant) else self.constants[node.id]

    def _subscript(self, node):
        loaded = self.b.load(self.place(node))
        if loaded.type == ir.FloatType():
            return self.b.fpext(loaded, F64)
        if loaded.type == ir.IntType(32):
            return self.b.sext(loaded, I64)
        return self.b.zext(loaded, I64) if loaded.type == BYTE else loaded

    def binary(self, op, a, b):
        a, b = (self.b.zext(x, I64) if x.type == BIT else x for x in (a, b))
        table = DOUBLE if a.type == F64 else INTEGER
        if a.type != b.type or type(op) not in table:
            raise Unsupported(f"{self.node.name}: {type(op).__name__} of {a.type} and {b.type}")
        return getattr(self.b, table[type(op)])(a, b)

    def _binop(self, node):
        return self.binary(node.op, self.value(node.left), self.value(node.right))

    def _unaryop(self, node):
        if isinstance(node.op, ast.Not):
            return self.b.not_(self.truth(node.operand))
        value = self.value(node.operand)
        if isinstance(node.op, ast.Invert):
            return self.b.not_(value)
        return self.b.fneg(value) if value.type == F64 else self.b.neg(value)

    def _compare(self, node):
        if len(node.ops) != 1 or type(node.ops[0]) not in COMPARE:
            self.refuse(node)
        a, b = self.value(node.left), self.value(node.comparators[0])
        a, b = (self.b.zext(x, I64) if x.type == BIT else x for x in (a, b))
        sign = COMPARE[type(node.ops[0])]
        if a.type != F64:
            return self.b.icmp_signed(sign, a, b)
        return self.b.fcmp_unordered(sign, a, b) if sign == "!=" else self.b.fcmp_ordered(sign, a, b)

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
        decided = self.b.phi(BIT)
        for incoming, block in come_from:
            decided.add_incoming(incoming, block)
        return decided

    def _ifexp(self, node):
        """Both sides are evaluated: they must not read through an address that may be wrong."""
        test, a, b = self.truth(node.test), self.value(node.body), self.value(node.orelse)
        a, b = (self.b.zext(x, I64) if x.type == BIT else x for x in (a, b))
        return self.b.select(test, a, b)

    def _call(self, node):
        name = node.func.id
        if name == "address":
            return self.b.ptrtoint(self.functions[node.args[0].id], I64)
        args = [self.value(a) for a in node.args]
        args = [self.b.zext(a, I64) if a.type == BIT else a for a in args]
        if name in VIEWS:
            return self.view(args[0], VIEWS[name].as_pointer())
        if name in self.functions:
            return self.function_call(name, args)
        if name == "within":
            self.within(*args, node.lineno)
            return I64(0)
        if name in ("call", "invoke"):
            back = I64 if name == "call" else ir.VoidType()
            kind = ir.FunctionType(back, [I64] * (len(args) - 1))
            done = self.b.call(self.b.inttoptr(args[0], kind.as_pointer()), args[1:])
            return done if name == "call" else I64(0)
        if name in ("min", "max"):
            sign = "<" if name == "min" else ">"
            return self.b.select(self.b.icmp_signed(sign, args[0], args[1]), args[0], args[1])
        if name == "stack":  # words that live as long as the function runs
            words = ir.IRBuilder(self.entry).alloca(I64, self.literal(node.args[0]))
            return self.b.ptrtoint(words, I64)
        if name == "shared":
            return self.b.ptrtoint(self.shared(), I64)
        if name == "float":
            return self.b.sitofp(args[0], F64)
        if name == "prefetch":
            return self.prefetch(args[0])
        if name in ("copy", "zero"):
            for moved in args[:-1]:
                self.within(moved, args[-1], node.lineno)
            return self.move(name, args)
        raise Unsupported(f"{self.node.name}, line {node.lineno}: unknown function {name!r}")

    def view(self, address, kind):
        return self.b.inttoptr(address, kind)

    def function_call(self, name, args):
        return self.b.call(self.functions[name], args)

    def within(self, address, count, line):
        pass

    def shared(self):
        """Words that all functions of the program share, zero at first."""
        module = self.b.module
        words = module.globals.get("tapegrad.shared")
        if words is None:
            kind = ir.ArrayType(I64, self.constants["SHARED_WORDS"])
            words = ir.GlobalVariable(module, kind, "tapegrad.shared")
            words.linkage = "internal"
            words.initializer = ir.Constant(kind, None)
        return words

    def move(self, name, args):
        byte = BYTE.as_pointer()
        target = self.b.inttoptr(args[0], byte)
        if name == "copy":
            kind = ir.FunctionType(ir.VoidType(), [byte, byte, I64, BIT])
            intrinsic = "llvm.memcpy.p0.p0.i64"
            rest = [self.b.inttoptr(args[1], byte), args[2]]
        else:
            kind = ir.FunctionType(ir.VoidType(), [byte, BYTE, I64, BIT])
            intrinsic = "llvm.memset.p0.i64"
            rest = [BYTE(0), args[1]]
        module = self.b.module
        function = module.globals.get(intrinsic) or ir.Function(module, kind, intrinsic)
        self.b.call(function, [target, *rest, BIT(0)])
        return I64(0)

    def prefetch(self, address):
        kind = ir.FunctionType(ir.VoidType(), [BYTE.as_pointer(), *3 * [VIEWS["i32"]]])
        module = self.b.module
        function = module.globals.get("llvm.prefetch.p0") or ir.Function(module, kind, "llvm.prefetch.p0")
        self.b.call(function, [self.b.inttoptr(address, BYTE.as_pointer()), *map(VIEWS["i32"], (0, 3, 1))])
        return I64(0)


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
        pair = self.b.inttoptr(self.b.call(self.functions["region"], [address]), I64.as_pointer())
        return self.bounded(found, [self.b.load(self.b.gep(pair, [I64(q)])) for q in range(2)])

    def bounded(self, view, bounds):
        self.bounds[id(view)] = (view, *bounds)
        return view

    def bind(self, name, value):
        super().bind(name, value)
        if value.type.is_pointer:
            if name not in self.places:
                self.places[name] = [ir.IRBuilder(self.entry).alloca(I64) for _ in range(2)]
            for place, bound in zip(self.places[name], self.bounds[id(value)][1:], strict=True):
                self.b.store(bound, place)

    def _name(self, node):
        found = super()._name(node)
        if found.type.is_pointer:
            self.bounded(found, [self.b.load(place) for place in self.places[node.id]])
        return found

    def place(self, node):
        view, low, high = self.bounds[id(self.value(node.value))]
        place = self.b.gep(view, [self.value(node.slice)])
        start = self.b.ptrtoint(place, I64)
        self.hold(start, low, high, SIZES[view.type.pointee], node.lineno)
        return place

    def within(self, address, count, line):
        pair = self.b.inttoptr(self.b.call(self.functions["region"], [address]), I64.as_pointer())
        low, high = (self.b.load(self.b.gep(pair, [I64(q)])) for q in range(2))
        self.hold(address, low, high, count, line)

    def hold(self, start, low, high, count, line):
        """Go on if these bytes lie between the bounds, or are none."""
        count = I64(count) if isinstance(count, int) else count
        inside = self.b.and_(
            self.b.icmp_signed(">=", start, low),
            self.b.icmp_signed("<=", count, self.b.sub(high, start)),
        )
        self.proceed(self.b.or_(inside, self.b.icmp_signed("==", count, I64(0))), self.escape(line))

    def proceed(self, good, otherwise):
        going_on = self.block_of("inside")
        self.b.cbranch(good, going_on, otherwise)
        self.b.position_at_end(going_on)

    def noted(self, builder):
        """Where the first escape is noted: the third word of the table."""
        shared = builder.ptrtoint(self.shared(), I64)
        place = builder.add(shared, I64(8 * self.constants["GUARD"]))
        table = builder.load(builder.inttoptr(place, I64.as_pointer()))
        return builder.inttoptr(builder.add(table, I64(16)), I64.as_pointer())

    def escape(self, line):
        """The block that notes an escape on a line and leaves the function."""
        if line not in self.escapes:
            self.escapes[line] = self.block_of("escape")
            builder = ir.IRBuilder(self.escapes[line])
            builder.store(I64(self.number << 32 | line), self.noted(builder))
            builder.ret(I64(0))
        return self.escapes[line]

    def function_call(self, name, args):
        """Of a function that left its memory the caller returns too."""
        found = super().function_call(name, args)
        if "left" not in self.escapes:
            self.escapes["left"] = self.block_of("left")
            ir.IRBuilder(self.escapes["left"]).ret(I64(0))
        good = self.b.icmp_signed("==", self.b.load(self.noted(self.b)), I64(0))
        self.proceed(good, self.escapes["left"])
        return found
