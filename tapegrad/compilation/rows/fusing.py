"""The text of a fused kernel: elementwise steps over a block of elements as one loop, in LLVM's language.

Values are what recording gives: arithmetic as it stands, and the vector forms where recording takes these;
steps of other functions are for NumPy's loops. Derivatives are the rules of ops, run on numbers that emit
code (`tapegrad.native.emission.algebra`), with the forms that kernels of rules have.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core.errors import TypingError

from tapegrad.compilation.rows.rows import Kernel
from tapegrad.compilation.rows.staging import Parameters, Stage, Stages, Task
from tapegrad.compilation.rows.stretching import BLOCK, Stretch
from tapegrad.kernels import assembly
from tapegrad.kernels.assembly import ENTRY, text_of
from tapegrad.kernels.emit import VECTOR
from tapegrad.kernels.vecmath import definition, is_defined, number
from tapegrad.native.emission.algebra import STEPS as ROUNDING
from tapegrad.native.emission.algebra import Emitter, Number, Real, Truth, choice, evaluate
from tapegrad.ops import MEANING, REGISTRY, forward
from tapegrad.ops.rules import STEPS, Partial

I64, BYTE, BIT = ir.IntType(64), ir.IntType(8), ir.IntType(1)
TYPES = {"d": ir.DoubleType(), "f": ir.FloatType()}
NAMES = {"d": "float64", "f": "float32"}
SIDE_BY_SIDE = 4  # vectors
LANES = 8  # numbers written at once where one is repeated
CHUNK = 128  # elements of which all stages are computed
UNROLLED = 256  # elements from which on that pays
EXACT = {  # what a ufunc of NumPy's computes alike whatever computes it
    np.add, np.subtract, np.multiply, np.divide, np.negative, np.absolute, np.square, np.reciprocal, np.sqrt,
    np.positive,
}  # fmt: skip
TRUTHS: dict[Any, Callable[..., Any]] = {  # what gives a truth value
    **dict(zip(
        (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal),
        (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne), strict=True,
    )),
    np.isnan: lambda x: x != x,
    np.isinf: lambda x: np.abs(x) == math.inf,
    np.isfinite: lambda x: x - x == 0,
    np.logical_not: lambda x: x == 0,
    np.logical_and: lambda x, y: np.where(x != 0, np.where(y != 0, 1.0, 0.0), 0.0),
    np.logical_or: lambda x, y: np.where(x != 0, 1.0, np.where(y != 0, 1.0, 0.0)),
    np.logical_xor: lambda x, y: np.where(x != 0, np.where(y != 0, 0.0, 1.0), np.where(y != 0, 1.0, 0.0)),
}  # fmt: skip
TRUTHS |= {  # of truth values, as there are no bits of floating-point numbers
    np.bitwise_and: TRUTHS[np.logical_and], np.bitwise_or: TRUTHS[np.logical_or],
    np.bitwise_xor: TRUTHS[np.logical_xor], np.invert: TRUTHS[np.logical_not],
}  # fmt: skip
PASSIVE = {*TRUTHS, *ROUNDING, np.sign}
WHERE = MEANING[np.where]
Value = Any  # of LLVM


class Unfused(Exception):
    """A step that has no code here."""


class StepEmitter(Emitter):
    """Numbers of one precision; functions are the vector forms of kernels, whose limits are `checks`.

    With `lanes` each is a vector of so many, of which no function with such a form is computed.
    """

    def __init__(self, builder: Any, char: str, lanes: int = 1) -> None:
        super().__init__(None, builder, True)  # type: ignore[arg-type]  # Numba is not asked
        self.real = TYPES[char] if lanes == 1 else ir.VectorType(TYPES[char], lanes)
        self.char, self.lanes = char, lanes
        self.checks: list[Value] = []
        self.forms = 0

    def constant(self, literal: float) -> Value:
        """A literal as a value of LLVM's."""
        return ir.Constant(
            self.real, literal if self.lanes == 1 else [TYPES[self.char](literal)] * self.lanes
        )

    def has_form(self, name: str) -> bool:
        """Whether a function has a vector form."""
        return name in VECTOR

    def form(self, name: str, values: Sequence[Value]) -> Value:
        """Emit a vector form, and look whether it may be taken."""
        self.forms += 1
        narrow = self.char == "f"
        wide = [self.builder.fpext(v, number.DOUBLE) if narrow else v for v in values]
        given = [number.Number(self.builder, v) for v in wide]
        found = definition(name, NAMES[self.char])(*given).value
        if is_defined(f"{name}_ok", NAMES[self.char]):
            self.checks.append(definition(f"{name}_ok", NAMES[self.char])(*given).value)
        return self.builder.fptrunc(found, self.real) if narrow else found

    def intrinsic(self, name: str, value: Value) -> Value:
        """Emit a function of LLVM's, whose name for vectors llvmlite does not know."""
        if self.lanes == 1:
            return super().intrinsic(name, value)
        module, full = self.builder.module, f"llvm.{name}.v{self.lanes}{TYPES[self.char].intrinsic_name}"
        if full not in module.globals:
            ir.Function(module, ir.FunctionType(self.real, [self.real]), full)
        return self.builder.call(module.globals[full], [value])

    def call(self, function: Callable[..., float], values: Sequence[Value]) -> Value:
        """Emit the square root; nothing else is called."""
        if function is not math.sqrt:
            raise Unfused(function)
        return self.intrinsic("sqrt", values[0])

    def compiled(self, function: Callable[..., float], values: Sequence[Value]) -> Value:
        """Call nothing."""
        raise Unfused(function)


def emit_step(emit: StepEmitter, function: Any, values: Sequence[Real]) -> Real:
    """What a step gives."""
    if isinstance(function, Kernel):
        return _product(emit, function, values)
    if function is np.positive:
        return values[0]
    if function in TRUTHS:
        found = TRUTHS[function](*values)
        return Real(emit, 1.0).lift(choice(found, 1.0, 0.0) if isinstance(found, Truth) else found).real()
    found = evaluate(function.__name__, *values)
    return found.real()


def _product(emit: StepEmitter, kernel: Kernel, values: Sequence[Real]) -> Real:
    """What the kernel of a rule gives."""
    given: dict[str, Number] = dict(zip(kernel.names, values, strict=True))
    code, space = kernel.recorded.function.__code__, dict(kernel.recorded.function.__globals__)
    for name in STEPS:
        if is_defined(name, NAMES[emit.char]):  # the parts of a value may be those of its slope
            space[name] = lambda x, name=name: Real(emit, emit.form(name, [x.value]))
    names = code.co_varnames[: code.co_argcount]
    found = FunctionType(code, space)(*(given.get(name) for name in names))
    found = found if isinstance(found, Number) else Real(emit, float(found))
    return (given["ct"] * found if kernel.cotangent else found).real()


@functools.cache
def can_emit(function: Any, char: str) -> bool:
    """Whether a step has code here that gives what recording gives."""
    if char not in TYPES:
        return False
    if function in EXACT or function in PASSIVE or function is forward.choosing(WHERE):
        return True
    if isinstance(function, np.ufunc):
        op = REGISTRY.get(function.__name__)
        return (
            op is not None
            and op.vector is not None
            and op.vector.real
            and forward.has_vector_form(op, char)
            and forward.vector_form(op, char) is function
        )
    if "special." in _text(function):
        return False
    try:
        forms_in(function, char)
    except (Unfused, TypingError):
        return False
    return True


@functools.cache
def forms_in(function: Any, char: str) -> int:
    """How many vector forms a step has."""
    count = len(function.names) if isinstance(function, Kernel) else function.nin
    scratch = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), [TYPES[char]] * count), "f")
    emit = StepEmitter(ir.IRBuilder(scratch.append_basic_block()), char)
    emit_step(emit, function, [Real(emit, x) for x in scratch.args])
    return emit.forms


def _text(kernel: Kernel) -> str:
    return "; ".join(ast.unparse(node) for node in (*kernel.partial.statements, kernel.partial.expression))


def emit_kernel(char: str, extent: int, tasks: Sequence[Task], given: Parameters) -> str:
    """Return the text of a kernel: ``int64(T **p, int64 n)``, 0 where a form does not reach an element.

    It is for a group of so many elements, which decides how the loop is unrolled.
    """
    module, kind = ir.Module(), TYPES[char]
    places = {name: k for k, name in enumerate(given.names)}
    body = ir.Function(module, ir.FunctionType(I64, [kind.as_pointer()] * len(places) + [I64]), "body")
    body.linkage = "internal"
    body.attributes.add("noinline")
    set.add(body.attributes, '"prefer-vector-width"="512"')
    for argument in body.args[:-1]:
        argument.attributes.add("noalias")
        argument.attributes.add("nonnull")
    _Loop(body, char, extent, tasks, given, places).emit()
    _enter(module, body, kind, len(places))
    return text_of(module)


@functools.cache
def truth_kernel(function: Any, kinds: str) -> Kernel | None:
    """Return what computes a ufunc of numbers and truth values, for which NumPy has no loop, or None."""
    is_choice = function is forward.choosing(WHERE)
    if not is_choice and function not in EXACT:
        return None
    out, *reads = range(len(kinds) + 1)
    truths = frozenset(k for k, kind in zip(reads, kinds, strict=True) if kind == "?")
    given = Parameters((), truths, (), (out, *reads), (out,), (), ())
    address = assembly.load(emit_kernel("d", BLOCK, [Task(function, tuple(reads), out)], given))
    names = tuple("xyz"[: len(reads)])
    text = "np.where(x != 0, y, z)" if is_choice else f"np.{function.__name__}({', '.join(names)})"
    text = "x" if function is np.positive else text
    partial = Partial(truth_kernel.__wrapped__, [], names, ast.parse(text, mode="eval").body)
    return Kernel(partial, partial, names, False, address) if address else None


def _enter(module: ir.Module, body: ir.Function, kind: Any, count: int) -> None:
    """The function that is called, which takes the addresses from words."""
    words = kind.as_pointer().as_pointer()
    entry = ir.Function(module, ir.FunctionType(I64, [words, I64]), ENTRY)
    builder = ir.IRBuilder(entry.append_basic_block())
    args = [builder.load(builder.gep(entry.args[0], [I64(k)], inbounds=True)) for k in range(count)]
    builder.ret(builder.call(body, [*args, entry.args[1]]))


def _several_vectors(module: ir.Module) -> Any:
    """What tells LLVM to compute vectors side by side: in one alone each instruction waits for another."""
    count = module.add_metadata(["llvm.loop.interleave.count", ir.IntType(32)(SIDE_BY_SIDE)])
    node = module.add_metadata([count])
    node.operands = (node, count)
    return node


class _Loop:
    """The loop of a kernel under construction."""

    def __init__(
        self, function: Any, char: str, extent: int, tasks: Sequence[Task], given: Parameters,
        places: dict[int, int],
    ) -> None:  # fmt: skip
        self.function, self.kind, self.extent = function, TYPES[char], extent
        self.size, self.given = np.dtype(char).itemsize, given
        self.stages = Stages(tasks, given, lambda function: forms_in(function, char) > 0)
        self.pointers = {name: function.args[k] for name, k in places.items()}
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        for name in given.truths:
            self.pointers[name] = self.b.bitcast(self.pointers[name], BYTE.as_pointer())
        self.emit_numbers = StepEmitter(self.b, char)
        self.numbers: dict[int, Real] = {}
        self.rooms: dict[int, Value] = {}  # for what is added to fewer elements

    def emit(self) -> None:
        """Emit it."""
        b, given, n = self.b, self.given, self.function.args[-1]
        for name in given.cleared:
            b.store(self.kind(-0.0), self.pointers[name])
        for name in given.numbers:
            self.numbers[name] = Real(self.emit_numbers, self._load(name, self.pointers[name]))
        self.totals = {name: self._variable(self.kind(-0.0)) for name in given.sums}
        self.bad = self._variable(I64(0))
        if self.extent == 1:
            for value in self.stages.passed:
                self.pointers[value] = self._variable(self.kind(0))
            for stage in self.stages.found:
                self._element(stage, I64(0), I64(0))
        else:
            for name, how in given.stretched:
                if name in given.added:
                    self.rooms[name] = self._room(BLOCK)
                else:
                    self._stretch(name, how)
            for value in self.stages.passed:
                self.pointers[value] = self._room(CHUNK)
            if len(self.stages.found) == 1:
                self._loop(self.stages.found[0], I64(0), n)
            else:
                with self._counted(b.udiv(b.add(n, I64(CHUNK - 1)), I64(CHUNK))) as k:
                    begin = b.mul(k, I64(CHUNK))
                    left = b.sub(n, begin)
                    count = b.select(b.icmp_unsigned("<", left, I64(CHUNK)), left, I64(CHUNK))
                    for stage in self.stages.found:
                        self._loop(stage, begin, count)
        for name, how in given.stretched:
            if name in given.added:
                self._add_rows(name, how)
        for name in given.sums:
            b.store(b.load(self.totals[name]), self.pointers[name])
        b.ret(b.zext(b.icmp_unsigned("==", b.load(self.bad), I64(0)), I64))

    def _loop(self, stage: Stage, begin: Value, count: Value) -> None:
        """Emit the loop of a stage."""
        before = self.emit_numbers.forms
        with self._counted(count) as k:
            self._element(stage, begin, k)
        if self.emit_numbers.forms > before and self.extent >= UNROLLED:
            self.latest.set_metadata("llvm.loop", _several_vectors(self.function.module))

    def _element(self, stage: Stage, begin: Value, k: Value) -> None:
        """Emit the steps of a stage for an element."""
        b, emit, known = self.b, self.emit_numbers, dict(self.numbers)
        for place, value in stage.loads:
            known[value] = Real(emit, self._load(place, self._at(place, begin, k)))
        for task in stage.tasks:
            values = [known[x] for x in task.reads]
            if task.is_sum:
                total = self.totals[task.writes]
                b.store(b.fadd(b.load(total), values[0].value, flags=["reassoc"]), total)
            elif task.adds and task.writes in self.rooms:
                b.store(values[0].value, b.gep(self.rooms[task.writes], [b.add(begin, k)], inbounds=True))
            elif task.adds:
                place = self._at(task.writes, begin, k)
                b.store(b.fadd(b.load(place), values[0].value), place)
            else:
                known[task.writes] = emit_step(emit, task.function, values)
        for place, value in stage.stores:
            self._store(place, known[value].value, self._at(place, begin, k))
        for check in emit.checks:
            b.store(b.or_(b.load(self.bad), b.zext(b.not_(check), I64)), self.bad)
        emit.checks.clear()

    def _load(self, name: int, pointer: Value) -> Value:
        """Load a number, of a truth value 0 or 1."""
        found = self.b.load(pointer)
        return self.b.uitofp(found, self.kind) if name in self.given.truths else found

    def _store(self, name: int, value: Value, pointer: Value) -> None:
        """Store a number, or whether it is not 0."""
        if name in self.given.truths:
            value = self.b.zext(self.b.fcmp_unordered("!=", value, self.kind(0.0)), BYTE)
        self.b.store(value, pointer)

    def _at(self, place: int, begin: Value, k: Value) -> Value:
        i = k if place in self.stages.passed else self.b.add(begin, k)
        return self.b.gep(self.pointers[place], [i], inbounds=True)

    def _variable(self, value: Value) -> Value:
        """What holds a number, to begin with this one."""
        with self.b.goto_entry_block():
            out = self.b.alloca(value.type)
        self.b.store(value, out)
        return out

    def _room(self, count: int) -> Value:
        """Memory for so many elements."""
        with self.b.goto_entry_block():
            out = self.b.alloca(ir.ArrayType(self.kind, count))
            out.align = 64
            return self.b.bitcast(out, self.kind.as_pointer())

    def _stretch(self, name: int, how: Stretch) -> None:
        """Write what an operand is stretched to where the loop finds an element for each of the block."""
        b, source = self.b, self.pointers[name]
        out = self._room(BLOCK + (LANES if how.run == 1 else 0))
        count = b.udiv(b.add(self.function.args[-1], I64(how.unit - 1)), I64(how.unit))
        with self._counted(count) as j:
            part = b.gep(source, [b.mul(j, I64(how.run))])
            begin, end = b.mul(j, I64(how.unit)), self.function.args[-1]
            inside = b.sub(end, begin)
            inside = b.select(b.icmp_unsigned("<", inside, I64(how.unit)), inside, I64(how.unit))
            step = LANES if how.run == 1 else how.run
            with self._counted(b.udiv(b.add(inside, I64(step - 1)), I64(step))) as k:
                to = b.gep(out, [b.add(begin, b.mul(k, I64(step)))])
                if how.run == 1:
                    wide = ir.VectorType(self.kind, LANES)
                    one = b.insert_element(ir.Constant(wide, ir.Undefined), b.load(part), ir.IntType(32)(0))
                    lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
                    every = b.shuffle_vector(one, ir.Constant(wide, ir.Undefined), lanes)
                    b.store(every, b.bitcast(to, wide.as_pointer()), align=self.size)
                else:
                    self._copy(part, to, how.run)
        self.pointers[name] = out

    def _add_rows(self, name: int, how: Stretch) -> None:
        """Add rows of the block, one after the other, to what they are summed to."""
        b, room, out, end = self.b, self.rooms[name], self.pointers[name], self.function.args[-1]
        with self._counted(b.udiv(b.add(end, I64(how.unit - 1)), I64(how.unit))) as j:
            begin, to = b.mul(j, I64(how.unit)), b.gep(out, [b.mul(j, I64(how.run))])
            inside = b.sub(end, begin)
            inside = b.select(b.icmp_unsigned("<", inside, I64(how.unit)), inside, I64(how.unit))
            with self._counted(b.udiv(inside, I64(how.run))) as r:
                row = b.gep(room, [b.add(begin, b.mul(r, I64(how.run)))], inbounds=True)
                with self._counted(I64(how.run)) as k:
                    place = b.gep(to, [k], inbounds=True)
                    flags = ["reassoc"] if how.run == 1 else []
                    found = b.fadd(b.load(place), b.load(b.gep(row, [k], inbounds=True)), flags=flags)
                    b.store(found, place)

    def _copy(self, source: Value, target: Value, count: int) -> None:
        """Copy so many elements."""
        b, byte = self.b, ir.IntType(8).as_pointer()
        copy = self.function.module.declare_intrinsic("llvm.memcpy", [byte, byte, I64])
        b.call(copy, [b.bitcast(target, byte), b.bitcast(source, byte), I64(count * self.size), BIT(0)])

    @contextmanager
    def _counted(self, count: Value) -> Iterator[Value]:
        """A loop as of `counted`, whose end is kept."""
        with counted(self.b, count) as k:
            yield k
            loop = self.b.block
        self.latest = loop.terminator


@contextmanager
def counted(b: Any, count: Value) -> Iterator[Value]:
    """A loop of so many steps, at least one; the number of the step."""
    before = b.block
    loop, after = (b.function.append_basic_block(n) for n in ("each", "done"))
    b.branch(loop)
    b.position_at_end(loop)
    k = b.phi(I64)
    k.add_incoming(I64(0), before)
    yield k
    following = b.add(k, I64(1), flags=["nuw", "nsw"])
    k.add_incoming(following, b.block)
    b.cbranch(b.icmp_unsigned("<", following, count), loop, after)
    b.position_at_end(after)
