"""Records of the native tape: the statements of a straight piece of code, and the code of their adjoints.

While straight code is emitted, its statements gather in one record. On the tape a record is what cannot be
known before the program runs: numbers of statements of other records, and partials. All else is in the
record's adjoint, a function emitted beside, which takes cotangents back through these statements: between
them in registers, from and to others through memory. Partials that are a few products and sums of values are
computed there, and the values lie on the tape, each once: of ``w * m * a`` three, however many statements
have them as factors. The last word of a record is the address of its kind: the adjoint, and how many bytes,
statements and leaves there are. Statements have dense numbers; inputs come first, from 1; 0 is what is on no
tape.
"""

from __future__ import annotations

import copy
import ctypes
import math
from collections import Counter
from typing import Any, TypeAlias

from llvmlite import ir
from llvmlite.ir import instructions
from numba.core import cgutils

from tapegrad.native.algebra import F64, I8, I32, I64, Emitter, Number, Spec, components
from tapegrad.native.annotations import Builder, Module, Type, Value
from tapegrad.native.tape import COUNT, SCRATCH, TOP, make_room, word

MOST = 1 << 12  # bytes of a record of several statements
FUNCTION, SIZE, STATEMENTS, LEAVES, TABLE = range(5)  # words of a kind; others follow where it has no size
KIND_WORDS = ctypes.c_int64 * 4
DEPTH = 3  # operations, one of another's result, that an adjoint computes for a partial
CHEAP = {"fadd", "fsub", "fmul", "fneg"}  # those that take less time than memory

ADJOINT = ir.FunctionType(ir.VoidType(), [I64, I64, I64])  # cotangents, number before the first, record
FALLIBLE = ir.FunctionType(I32, [I64, I64, I64])  # that of a record of arrays: not 0 with an exception set

_BYTES = I8.as_pointer()
_ZERO = ir.Constant(I64, 0)
NOTHING, NOTHING_BITS = ir.Constant(F64, -0.0), -(1 << 63)  # of a cotangent: as yet nothing came to it
_LEAVE = ir.FunctionType(ir.VoidType(), [I64, I64, I64, I64])  # tape, record, number before, bytes written
# What an adjoint knows a component of a partial by: its place in the record, a literal, or an operation.
Weight: TypeAlias = int | ir.Constant | tuple[str, list[Any]]


def _pointer(builder: Builder, address: Value, offset: int, kind: Type) -> Value:
    place = builder.add(address, ir.Constant(I64, offset)) if offset else address
    return builder.inttoptr(place, kind.as_pointer())


def scope(module: Module) -> ir.values.MDValue:
    """Return LLVM's metadata for the memory of tapes, in which nothing of the program's is."""
    domain = module.add_metadata(["tapegrad"])
    return module.add_metadata([module.add_metadata(["memory of tapes", domain])])


class Record:
    """A record while its code is emitted."""

    def __init__(self, emit: Emitter, spec: Spec, tape: Value, room: int) -> None:
        self.emit, self.spec, self.room = emit, spec, room
        # leaves: where the number stands, and the weight
        self.statements: list[list[tuple[int, list[Weight]]]] = []
        self.numbers: dict[Value, int] = {}  # of the statements here, by their LLVM values
        self.results: set[Value] = set()  # their values
        # partials, and values that they are computed of: offsets, and how often a tape was met before
        self.written: dict[Value, tuple[int, Value, int]] = {}
        self.met: list[tuple[ir.Block, Value]] = []  # where a record began late: the block, and its start
        self.places: dict[Value, int] = {}  # offsets of numbers of statements elsewhere
        self.uses: Counter[int] = Counter()  # how often each of these is a leaf
        self.size, self.hole = 0, 0
        self.memory = scope(emit.builder.module)
        self.left: Any = None  # the function for code that leaves before the end
        builder = emit.builder
        before = builder.block
        with builder.if_then(builder.icmp_signed("!=", tape, _ZERO), likely=True):
            start, count = self._room(tape)
            opened = builder.block
        self.tape = tape
        self.start = _phi(builder, (_scratch(emit), before), (start, opened))
        self.count = _phi(builder, (_ZERO, before), (count, opened))
        self.mask = _phi(builder, (_ZERO, before), (ir.Constant(I64, -1), opened))
        self.known = {tape}

    def _room(self, tape: Value) -> tuple[Value, Value]:
        """Where a record starts on a tape, and how many statements are before it."""
        builder = self.emit.builder
        start = make_room(self.emit, tape, ir.Constant(I64, self.room), self.memory)
        return start, self._load(builder, word(builder, tape, COUNT))

    def _load(self, builder: Builder, place: Value) -> Value:
        found = builder.load(place)
        found.set_metadata("alias.scope", self.memory)
        return found

    def _store(self, builder: Builder, value: Value, place: Value) -> None:
        builder.store(value, place).set_metadata("alias.scope", self.memory)

    def add(
        self, tape: Value, leaves: list[tuple[Value, Number]], values: list[Value]
    ) -> tuple[Value, Value]:
        """Record a statement with these values; returns its number and its tape."""
        builder = self.emit.builder
        if not self._knows(tape):
            self._meet(tape)
        rows = []
        weights = self._weights([partial.flat() for _, partial in leaves])
        for (statement, _), weight in zip(leaves, weights, strict=True):
            inner = self.numbers.get(statement)
            place = -1 - inner if inner is not None else self._number(statement)
            self.uses[place] += 1
            rows.append((place, weight))
        self.statements.append(rows)
        self.results.update(map(origin, values))
        number = builder.add(self.count, ir.Constant(I64, len(self.statements)))
        number = builder.and_(number, self.mask)
        self.numbers[number] = len(self.statements) - 1
        return number, self.tape

    def _knows(self, tape: Value) -> bool:
        """Whether operands on this tape are on the record's for certain, or on none."""
        if tape in self.known or tape is _ZERO:
            return True
        return getattr(tape, "opname", None) == "or" and all(map(self._knows, tape.operands))

    def _meet(self, tape: Value) -> None:
        """Operands may be on a tape where all before were on none: then the record is on it from here."""
        builder = self.emit.builder
        before = builder.block
        fresh = builder.and_(tape, builder.not_(self.tape))
        with builder.if_then(builder.icmp_signed("!=", fresh, _ZERO), likely=False):
            start, count = self._room(tape)
            cgutils.memset(builder, builder.inttoptr(start, _BYTES), ir.Constant(I64, self.size), 0)
            late = builder.block
        self.start = _phi(builder, (self.start, before), (start, late))
        self.count = _phi(builder, (self.count, before), (count, late))
        self.mask = _phi(builder, (self.mask, before), (ir.Constant(I64, -1), late))
        self.tape = _phi(builder, (self.tape, before), (tape, late))
        self.known |= {tape, self.tape}
        self.met.append((late, start))

    def _number(self, statement: Value) -> int:
        """Write the number of a statement elsewhere; returns its offset."""
        builder = self.emit.builder
        key = origin(statement)
        if key in self.places:
            return self.places[key]
        at, self.hole = self.hole, 0
        if not at:
            at, self.hole, self.size = self.size, self.size + 4, self.size + 8
        self._store(builder, builder.trunc(statement, I32), _pointer(builder, self.start, at, I32))
        self.places[key] = at
        return at

    def _weights(self, partials: list[list[Value]]) -> list[list[Weight]]:
        """Write what the adjoint needs of the partials of a statement; returns what it knows them by."""
        roots = {origin(x): x for partial in partials for x in partial}
        parts = {key: needed for key, x in roots.items() if (needed := self._parts(x))}
        together: dict[Value, Value] = {}
        alone: dict[Value, Value] = {}
        for key, needed in parts.items():
            together |= needed
            alone |= needed if len(needed.keys() - alone.keys()) <= 1 else {key: roots[key]}
        self._write(min(together, alone, key=len))
        return [list(map(self._weight, partial)) for partial in partials]

    def _parts(self, value: Value, depth: int = DEPTH) -> dict[Value, Value]:
        """Of what values, not yet on the tape, an adjoint may compute one; of itself, if that is too much."""
        if isinstance(value, ir.Constant) or origin(value) in self.written:
            return {}
        inside = depth > 0 and origin(value) not in self.results and _is_cheap(value)
        if not inside:
            return {origin(value): value}
        return {key: x for part in value.operands for key, x in self._parts(part, depth - 1).items()}

    def _write(self, values: dict[Value, Value]) -> None:
        for key, value in values.items():
            if key not in self.written:
                place = _pointer(self.emit.builder, self.start, self.size, F64)
                self._store(self.emit.builder, value, place)
                self.written[key] = self.size, value, len(self.met)
                self.size += 8

    def _weight(self, value: Value) -> Weight:
        if isinstance(value, ir.Constant):
            return value
        key = origin(value)
        if key not in self.written:
            return value.opname, list(map(self._weight, value.operands))
        at, value, met = self.written[key]
        for block, start in self.met[met:]:  # it is written there too, where the record began later
            builder = ir.IRBuilder(block)
            builder.position_before(block.terminator)
            self._store(builder, value, _pointer(builder, start, at, F64))
        self.written[key] = at, value, len(self.met)
        return at

    def leave(self) -> None:
        """Emit, where the code is about to leave, what ends the record: later statements have no effect."""
        builder = self.emit.builder
        if self.left is None:
            self.left = ir.Function(builder.module, _LEAVE, builder.module.get_unique_name("leave_record"))
            self.left.linkage = "internal"
            self.left.attributes.add("noinline")
            self.left.attributes.add("cold")
        if self.hole:
            self._store(builder, ir.Constant(I32, 0), _pointer(builder, self.start, self.hole, I32))
        builder.call(self.left, [self.tape, self.start, self.count, ir.Constant(I64, self.size)])

    def part(self, ways: int) -> list[Record]:
        """Return what goes on from here on each of so many ways; with none nothing is on the tape."""
        if ways == 0 and self.left is not None:
            ir.IRBuilder(self.left.append_basic_block("left")).ret_void()
        found = [copy.copy(self) for _ in range(ways)]
        for one in found:
            for name in ("statements", "numbers", "results", "written", "met", "places", "uses", "known"):
                setattr(one, name, getattr(self, name).copy())
        for one in found[1:]:
            one.left = None  # what has left before is seen to by the first
        return found

    def close(self) -> None:
        """Emit the record's end, and its adjoint."""
        builder = self.emit.builder
        kind = self._kind()
        with builder.if_then(builder.icmp_signed("!=", self.tape, _ZERO), likely=True):
            self._end(builder, kind, self.tape, self.start, self.count)
        if self.left is not None:
            b = ir.IRBuilder(self.left.append_basic_block("left"))
            tape, start, count, done = self.left.args
            with b.if_then(b.icmp_signed("!=", tape, _ZERO)):
                rest = b.sub(ir.Constant(I64, self.size), done)
                cgutils.memset(b, b.inttoptr(b.add(start, done), _BYTES), rest, 0)
                self._end(b, kind, tape, start, count)
            b.ret_void()

    def _end(self, builder: Builder, kind: Type, tape: Value, start: Value, count: Value) -> None:
        after = builder.add(start, ir.Constant(I64, self.size))
        many = builder.add(count, ir.Constant(I64, len(self.statements)))
        self._store(builder, kind, _pointer(builder, start, self.size - 8, I64))
        self._store(builder, after, word(builder, tape, TOP))
        self._store(builder, many, word(builder, tape, COUNT))

    def _kind(self) -> ir.GlobalVariable:
        module = self.emit.builder.module
        many = len(self.statements)
        self.size = max(self.size, -(-4 * many // 8) * 8) + 8  # 4 bytes a statement at least: see `grow`
        words = (_Adjoint(self).function.ptrtoint(I64), self.size, many, sum(map(len, self.statements)))
        value = ir.Constant.literal_struct(
            [w if isinstance(w, ir.Value) else ir.Constant(I64, w) for w in words]
        )
        kind = ir.GlobalVariable(module, value.type, module.get_unique_name("kind_of_record"))
        kind.linkage, kind.global_constant, kind.initializer = "internal", True, value
        return kind.ptrtoint(I64)


class _Adjoint:
    """The adjoint of a record while its code is emitted: takes cotangents of statements to their leaves'.

    Attributes
    ----------
    gathered
        Cotangents in registers, by leaf: of statements here, and elsewhere of what is a leaf several times.
    left
        How often each leaf is still to come.
    """

    def __init__(self, record: Record) -> None:
        module = record.emit.builder.module
        self.function = ir.Function(module, ADJOINT, module.get_unique_name("adjoint_of_record"))
        self.function.linkage = "internal"
        self.builder = ir.IRBuilder(self.function.append_basic_block("adjoint"))
        self.emit = Emitter(record.emit.context, self.builder)
        self.spec, self.size, self.uses = record.spec, components(record.spec), record.uses
        self.cotangents, self.count, self.record = self.function.args
        self.gathered: dict[int, Number] = {}
        self.left = record.uses.copy()
        for k, leaves in reversed(list(enumerate(record.statements))):
            self._reverse(k, leaves)
        self.builder.ret_void()

    def _reverse(self, k: int, leaves: list[tuple[int, list[Weight]]]) -> None:
        """Emit what takes the cotangent of statement k, which is then nothing, to those of its leaves."""
        at = self._place(self.builder.add(self.count, ir.Constant(I64, k + 1)))
        ct = self._load(at)
        self._store([NOTHING] * self.size, at)
        if -1 - k in self.gathered:
            ct = ct + self.gathered.pop(-1 - k)
        literals = [_literals(weight) for _, weight in leaves]
        if all(found and 1.0 <= found[0] < math.inf for found in literals):
            self._give(ct, leaves)  # of nothing that is nothing
        else:
            self._give_what_came(ct, leaves)
        for leaf, _ in leaves:
            self.left[leaf] -= 1
            if leaf >= 0 and not self.left[leaf] and leaf in self.gathered:
                self._add(self.gathered.pop(leaf), leaf)

    def _give(self, ct: Number, leaves: list[tuple[int, list[Weight]]]) -> None:
        """Give each leaf its part of a cotangent."""
        for leaf, weight in reversed(leaves):
            values = _literals(weight) or list(map(self._value, weight))
            part = self._part(ct, self.emit.number(self.spec, values))
            if leaf >= 0 and self.uses[leaf] == 1:
                self._add(part, leaf)
            else:
                self.gathered[leaf] = self.gathered[leaf] + part if leaf in self.gathered else part

    def _value(self, weight: Weight) -> Value:
        """A component of a partial."""
        if isinstance(weight, int):
            return self.builder.load(_pointer(self.builder, self.record, weight, F64), align=8)
        if isinstance(weight, ir.Constant):
            return weight
        name, parts = weight
        return getattr(self.builder, name)(*map(self._value, parts))

    def _part(self, ct: Number, weight: Number) -> Number:
        """A cotangent times a partial; its zero is positive, as the negative one says that nothing came."""
        part, builder = ct * weight, self.builder
        c, w = ct.real(), weight.real()
        if w.literal is not None and w.literal >= 1.0:
            return part
        zero = ir.Constant(F64, 0.0)
        if part.real().literal is not None:  # zero
            return part.with_value(zero)
        if w.literal == -1.0:
            return part.with_value(builder.fsub(zero, c.value))
        form = ir.FunctionType(F64, [F64] * 3)
        multiply_add = builder.module.declare_intrinsic("llvm.fmuladd", [F64], form)
        return part.with_value(builder.call(multiply_add, [c.value, w.value, zero]))

    def _give_what_came(self, ct: Number, leaves: list[tuple[int, list[Weight]]]) -> None:
        """As `_give`, of what something came to; tangents that are zero move nothing."""
        builder = self.builder
        first, *rest = ct.flat()
        came = builder.icmp_signed("!=", builder.bitcast(first, I64), ir.Constant(I64, NOTHING_BITS))
        if rest:
            tangents = _any_nonzero(builder, rest)
            self._give_where(tangents, ct, leaves)
            came = builder.and_(came, builder.not_(tangents))
            ct = self.emit.number(self.spec, [first] + [0.0] * len(rest))
        self._give_where(came, ct, leaves)

    def _give_where(self, condition: Value, ct: Number, leaves: list[tuple[int, list[Weight]]]) -> None:
        """As `_give`, where a condition holds."""
        builder = self.builder
        before, known = builder.block, dict(self.gathered)
        nothing = self.emit.number(self.spec, [-0.0] + [0.0] * (self.size - 1))
        with builder.if_then(condition, likely=True):
            self._give(ct, leaves)
            after = builder.block
        for leaf, total in self.gathered.items():
            if total is not known.get(leaf):
                pairs = zip(known.get(leaf, nothing).flat(), total.flat(), strict=True)
                parts = [_phi(builder, (a, before), (b, after)) for a, b in pairs]
                self.gathered[leaf] = self.emit.number(self.spec, parts)

    def _add(self, part: Number, offset: int) -> None:
        """Add to the cotangent of the statement elsewhere whose number is at this offset of the record."""
        number = self.builder.load(_pointer(self.builder, self.record, offset, I32), align=4)
        at = self._place(self.builder.zext(number, I64))
        self._store((self._load(at) + part).flat(), at)

    def _place(self, number: Value) -> list[Value]:
        """Where the cotangent of a statement is in memory, component by component."""
        offset = self.builder.mul(number, ir.Constant(I64, 8 * self.size))
        return self._words(self.builder.add(self.cotangents, offset), 0)

    def _words(self, address: Value, offset: int) -> list[Value]:
        """Where a number's components are that begins at an offset from an address."""
        return [_pointer(self.builder, address, offset + 8 * q, F64) for q in range(self.size)]

    def _load(self, at: list[Value]) -> Number:
        return self.emit.number(self.spec, [self.builder.load(p, align=8) for p in at])

    def _store(self, values: list[Value], at: list[Value]) -> None:
        for value, p in zip(values, at, strict=True):
            self.builder.store(value, p, align=8)


def origin(value: Value) -> Value:
    """Return what two values have in common if they are the same for certain."""
    if isinstance(value, instructions.ExtractValue):
        return id(value.operands[0]), *value.indices
    return id(value)


def _is_cheap(value: Value) -> bool:
    """Whether a value is a product or a sum, or a quotient of literals."""
    if not isinstance(value, instructions.Instruction) or value.flags:
        return False
    literals = all(isinstance(x, ir.Constant) for x in value.operands)
    return value.opname in CHEAP or (value.opname == "fdiv" and literals)


def _literals(weight: list[Weight]) -> list[float]:
    """The components of a partial if they are literals, else none."""
    found = [w.constant for w in weight if isinstance(w, ir.Constant)]
    return found if len(found) == len(weight) else []


def _any_nonzero(builder: Builder, values: list[Value]) -> Value:
    found = None
    for value in values:
        one = builder.fcmp_unordered("!=", value, ir.Constant(F64, 0.0))
        found = one if found is None else builder.or_(found, one)
    return found


def _phi(builder: Builder, *incoming: tuple[Value, ir.Block]) -> Value:
    found = builder.phi(incoming[0][0].type)
    for value, block in incoming:
        found.add_incoming(value, block)
    return found


def _scratch(emit: Emitter) -> Value:
    """The address of memory that is written to in place of a tape, and never read."""
    module = emit.builder.module
    found = module.globals.get(SCRATCH)
    if found is None:
        found = ir.GlobalVariable(module, I8, SCRATCH)
        found.linkage = "external"
    return found.ptrtoint(I64)


# ---------------------------------------------------------------- where code is emitted


def push(
    emit: Emitter, spec: Spec, tape: Value, leaves: list[tuple[Value, Number]], values: list[Value]
) -> tuple[Value, Value]:
    """Record a statement with these values: returns its number and its tape.

    What is on no tape is not recorded.
    """
    leaves = [leaf for leaf in leaves if not isinstance(leaf[0], ir.Constant)]  # of a literal, surely
    if not leaves:
        return _ZERO, _ZERO
    builder = emit.builder
    most = (8 + 8 * components(spec)) * len(leaves) + 16
    record = getattr(builder, "tapegrad_record", None)
    if record is not None and max(record.size, 4 * len(record.statements)) + most > record.room:
        finish(builder)
        record = None
    straight = getattr(builder, "tapegrad_straight", False)
    if record is None:
        record = Record(emit, spec, tape, max(most, MOST) if straight else most)
        builder.tapegrad_record = record
    found = record.add(tape, leaves, values)
    if not straight:
        finish(builder)
    return found


def is_open(builder: Builder) -> bool:
    """Whether a record is open."""
    return getattr(builder, "tapegrad_record", None) is not None


def part(builder: Builder, ways: int, most: int) -> list[Record]:
    """Take the open record away, to go on in so many ways; none if it has more statements than `most`."""
    found: Record = builder.tapegrad_record
    if len(found.statements) > most:
        return []
    builder.tapegrad_record = None
    return found.part(ways)


def finish(builder: Builder) -> None:
    """Close the record that is open, if one is."""
    record = getattr(builder, "tapegrad_record", None)
    if record is not None:
        builder.tapegrad_record = None
        record.close()


def leave(builder: Builder) -> None:
    """Emit what the open record needs where the code leaves; it stays open for the code that does not."""
    record = getattr(builder, "tapegrad_record", None)
    if record is not None:
        record.leave()
