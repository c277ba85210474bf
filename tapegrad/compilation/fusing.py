"""The text of a fused kernel: elementwise steps over a block of elements as one loop, in LLVM's language.

Values are what recording gives: arithmetic as it stands, and the vector forms where recording takes these;
steps of other functions are for NumPy's loops. Derivatives are the rules of ops, run on numbers that emit
code (`tapegrad.native.algebra`), with the forms that kernels of rules have.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core.errors import TypingError

from tapegrad.compilation.rows import Kernel
from tapegrad.compilation.stretching import BLOCK, Stretch
from tapegrad.kernels.assembly import ENTRY
from tapegrad.kernels.vecmath import definition, number
from tapegrad.native.algebra import Emitter, Number, Real, evaluate
from tapegrad.ops import REGISTRY, forward
from tapegrad.ops.rules import STEPS

I64, BIT = ir.IntType(64), ir.IntType(1)
TYPES = {"d": ir.DoubleType(), "f": ir.FloatType()}
NAMES = {"d": "float64", "f": "float32"}
SIDE_BY_SIDE = 4  # vectors
LANES = 8  # numbers written at once where one is repeated
UNROLLED = 256  # elements from which on that pays
EXACT = {  # what a ufunc of NumPy's computes alike whatever computes it
    np.add, np.subtract, np.multiply, np.divide, np.negative, np.absolute, np.square, np.reciprocal, np.sqrt,
}  # fmt: skip
Value = Any  # of LLVM


@functools.cache
def is_form(name: str, char: str) -> bool:
    """Whether there is a form of this name."""
    try:
        definition(name, NAMES[char])
    except StopIteration:
        return False
    return True


class Unfused(Exception):
    """A step that has no code here."""


class Task(NamedTuple):
    """A step of a kernel: a ufunc or the kernel of a rule, names of what it reads, and of what it gives."""

    function: Any
    reads: tuple[int, ...]
    writes: int
    is_sum: bool = False  # of what it reads, for the block


class Parameters(NamedTuple):
    """Names of what a kernel is given, in order: numbers, arrays it reads and writes, places of sums.

    Those in `cleared` are places of sums that others add to. Of the arrays it reads some are `stretched`.
    """

    stretched: tuple[tuple[int, Stretch], ...]
    numbers: tuple[int, ...]
    read: tuple[int, ...]
    written: tuple[int, ...]
    sums: tuple[int, ...]
    cleared: tuple[int, ...]

    @property
    def names(self) -> list[int]:
        """All of them, each once."""
        return list(dict.fromkeys([*self.numbers, *self.read, *self.written, *self.sums, *self.cleared]))


class _Emitter(Emitter):
    """Numbers of one precision; functions are the vector forms of kernels, whose limits are `checks`."""

    def __init__(self, builder: Any, char: str) -> None:
        super().__init__(None, builder, True)  # type: ignore[arg-type]  # Numba is not asked
        self.real, self.char = TYPES[char], char
        self.checks: list[Value] = []
        self.forms = 0

    def form(self, name: str, values: Sequence[Value]) -> Value:
        """Emit a vector form, and look whether it may be taken."""
        self.forms += 1
        narrow = self.char == "f"
        wide = [self.builder.fpext(v, number.DOUBLE) if narrow else v for v in values]
        given = [number.Number(self.builder, v) for v in wide]
        found = definition(name, NAMES[self.char])(*given).value
        if is_form(f"{name}_ok", self.char):
            self.checks.append(definition(f"{name}_ok", NAMES[self.char])(*given).value)
        return self.builder.fptrunc(found, self.real) if narrow else found

    def call(self, function: Callable[..., float], values: Sequence[Value]) -> Value:
        """Emit the square root; nothing else is called."""
        if function is not math.sqrt:
            raise Unfused(function)
        return self.intrinsic("sqrt", values[0])

    def compiled(self, function: Callable[..., float], values: Sequence[Value]) -> Value:
        """Call nothing."""
        raise Unfused(function)


def _result(emit: _Emitter, function: Any, values: Sequence[Real]) -> Real:
    """What a step gives."""
    if isinstance(function, Kernel):
        return _product(emit, function, values)
    if function is np.positive:
        return values[0]
    found = evaluate(function.__name__, *values)
    return found.real()


def _product(emit: _Emitter, kernel: Kernel, values: Sequence[Real]) -> Real:
    """What the kernel of a rule gives."""
    given: dict[str, Number] = dict(zip(kernel.names, values, strict=True))
    code, space = kernel.recorded.function.__code__, dict(kernel.recorded.function.__globals__)
    for name in STEPS:
        if is_form(name, emit.char):  # the parts of a value may be those of its slope
            space[name] = lambda x, name=name: Real(emit, emit.form(name, [x.value]))
    names = code.co_varnames[: code.co_argcount]
    found = FunctionType(code, space)(*(given.get(name) for name in names))
    found = found if isinstance(found, Number) else Real(emit, float(found))
    return (given["ct"] * found if kernel.cotangent else found).real()


@functools.cache
def can_emit(function: Any, char: str) -> bool:
    """Whether a step has code here that gives what recording gives."""
    if function is np.positive or function in EXACT:
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
    scratch = ir.Function(
        ir.Module(), ir.FunctionType(ir.VoidType(), [TYPES[char]] * len(function.names)), "f"
    )
    emit = _Emitter(ir.IRBuilder(scratch.append_basic_block()), char)
    try:
        _product(emit, function, [Real(emit, x) for x in scratch.args])
    except (Unfused, TypingError):
        return False
    return True


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
    return str(module)


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
        self.size = np.dtype(char).itemsize
        self.tasks, self.given = tasks, given
        self.pointers = {name: function.args[k] for name, k in places.items()}
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self.emit_numbers = _Emitter(self.b, char)
        self.known: dict[int, Real] = {}

    def emit(self) -> None:
        """Emit it."""
        b, given = self.b, self.given
        for name in given.cleared:
            b.store(self.kind(-0.0), self.pointers[name])
        for name in given.numbers:
            self.known[name] = Real(self.emit_numbers, b.load(self.pointers[name]))
        if self.extent == 1:
            self._element(I64(0), {})
            b.ret(self._good(None))
            return
        for name, how in given.stretched:
            self._stretch(name, how)
        before, loop, after = b.block, *(self.function.append_basic_block(n) for n in ("loop", "after"))
        b.branch(loop)
        b.position_at_end(loop)
        i = b.phi(I64)
        i.add_incoming(I64(0), before)
        sums = {name: b.phi(self.kind) for name in given.sums}
        bad = b.phi(I64)
        totals = self._element(i, dict(sums))
        for name, phi in sums.items():
            phi.add_incoming(self.kind(-0.0), before)
            phi.add_incoming(totals[name], b.block)
        bad.add_incoming(I64(0), before)
        now = self._good(bad)
        bad.add_incoming(now, b.block)
        following = b.add(i, I64(1), flags=["nuw", "nsw"])
        i.add_incoming(following, b.block)
        branch = b.cbranch(b.icmp_unsigned("<", following, self.function.args[-1]), loop, after)
        if self.emit_numbers.forms and self.extent >= UNROLLED:
            branch.set_metadata("llvm.loop", _several_vectors(self.function.module))
        b.position_at_end(after)
        for name in given.sums:
            b.store(totals[name], self.pointers[name])
        b.ret(b.zext(b.icmp_unsigned("==", now, I64(0)), I64))

    def _stretch(self, name: int, how: Stretch) -> None:
        """Write what an operand is stretched to where the loop finds an element for each of the block."""
        b, source = self.b, self.pointers[name]
        room = BLOCK + (LANES if how.run == 1 else 0)
        with b.goto_entry_block():
            out = b.alloca(ir.ArrayType(self.kind, room))
            out.align = 64
        out = b.bitcast(out, self.kind.as_pointer())
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

    def _copy(self, source: Value, target: Value, count: int) -> None:
        """Copy so many elements."""
        b, byte = self.b, ir.IntType(8).as_pointer()
        copy = self.function.module.declare_intrinsic("llvm.memcpy", [byte, byte, I64])
        b.call(copy, [b.bitcast(target, byte), b.bitcast(source, byte), I64(count * self.size), BIT(0)])

    @contextmanager
    def _counted(self, count: Value) -> Iterator[Value]:
        """A loop of so many steps, at least one; the number of the step."""
        b, before = self.b, self.b.block
        loop, after = (self.function.append_basic_block(n) for n in ("each", "done"))
        b.branch(loop)
        b.position_at_end(loop)
        k = b.phi(I64)
        k.add_incoming(I64(0), before)
        yield k
        following = b.add(k, I64(1), flags=["nuw", "nsw"])
        k.add_incoming(following, b.block)
        b.cbranch(b.icmp_unsigned("<", following, count), loop, after)
        b.position_at_end(after)

    def _good(self, bad: Value) -> Value:
        """Whether forms reach this element, as 1 or 0; of several, 0 if they reach it and all before."""
        b, outside = self.b, I64(0)
        for check in self.emit_numbers.checks:
            outside = b.or_(outside, b.zext(b.not_(check), I64))
        return b.or_(bad, outside) if bad is not None else b.sub(I64(1), b.and_(outside, I64(1)))

    def _element(self, i: Value, sums: dict[int, Value]) -> dict[int, Value]:
        """Emit the steps for an element; what the sums become."""
        b = self.b
        for name in self.given.read:
            self.known[name] = Real(self.emit_numbers, b.load(self._at(name, i)))
        for task in self.tasks:
            values = [self.known[name] for name in task.reads]
            if task.is_sum:
                sums[task.writes] = b.fadd(sums[task.writes], values[0].value, flags=["reassoc"])
            else:
                self.known[task.writes] = _result(self.emit_numbers, task.function, values)
        for name in self.given.written:
            b.store(self.known[name].value, self._at(name, i))
        return sums

    def _at(self, name: int, i: Value) -> Value:
        return self.b.gep(self.pointers[name], [i], inbounds=True)
