"""Records of the native tape: the statements of a straight piece of code, and the code of their adjoints.

While straight code is emitted, its statements gather in one record. On the tape a record is what cannot be
known before the program runs: numbers of statements of other records, and values. All else is in the
record's adjoint, a function emitted beside, which takes cotangents back through these statements and computes
partials of the values: these are as few as will do (`cut`), of ``w * m * a`` three, however many statements
have them as factors. So what is stored for a statement is known only when the piece of code ends or branches;
the code that stores it is then put in behind the statement, as other code may leave before the end. The last
word of a record is the address of its kind: the adjoint, and how many bytes, statements and leaves there are.
Statements that are read outside their record have dense numbers, which are known when all code of a function
is emitted (`outside`); inputs come first, from 1; 0 is what is on no tape.
"""

from __future__ import annotations

import copy
import ctypes
from typing import Any, NamedTuple

from llvmlite import ir
from llvmlite.ir import instructions
from numba.core import cgutils

from tapegrad.native.emission.adjoint import Adjoint, Computed, Weight, phi, pointer
from tapegrad.native.emission.algebra import I8, I32, I64, Emitter, Number, Spec, components
from tapegrad.native.emission.annotations import Builder, Module, Value
from tapegrad.native.emission.cut import fewest
from tapegrad.native.emission.outside import Uses
from tapegrad.native.tapes.tape import COUNT, SCRATCH, TOP, make_room, word

MOST = 1 << 12  # bytes of a record of several statements
FUNCTION, SIZE, STATEMENTS, LEAVES, TABLE = range(5)  # words of a kind; others follow where it has no size
KIND_WORDS = ctypes.c_int64 * 4
DEPTH = 3  # operations, one of another's result, from a partial to what an adjoint computes it of
COPIED = ("statements", "numbers", "waiting", "wanted", "written", "met", "places", "known")
CHEAP = {"fadd", "fsub", "fmul", "fneg", "fdiv"}  # those that take no more time than memory


_BYTES = I8.as_pointer()
_ZERO = ir.Constant(I64, 0)
_LEAVE = ir.FunctionType(ir.VoidType(), [I64, I64, I64, I64])  # tape, record, number before, bytes written


class _Statement(NamedTuple):
    """A statement that stores nothing as yet.

    Attributes
    ----------
    number
        Its number, after which stores go.
    start
        Where the record starts, as known there.
    leaves
        Numbers of statements, and components of the partials by them.
    """

    number: Value
    start: Value
    leaves: list[tuple[Value, list[Value]]]

    def partials(self) -> list[Value]:
        """All components of partials but literals."""
        return [x for _, partial in self.leaves for x in partial if not isinstance(x, ir.Constant)]


class _Late(NamedTuple):
    """Where a record began late: the block, and its start."""

    block: ir.Block
    start: Value


def _add_constant(line: Value, number: int) -> None:
    """Let a sum that is emitted already be with another constant."""
    line.operands = (line.operands[0], ir.Constant(I64, number))


def _before(line: Value) -> Builder:
    builder = ir.IRBuilder(line.parent)
    builder.position_before(line)
    return builder


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
        self.waiting: list[_Statement | _Late | ir.CallInstr] = []  # that `emit_stores` has not yet seen
        self.wanted: set[Value] = set()  # all numbers and partials of those statements
        # values that partials are computed of: offsets, and how often a tape was met before
        self.written: dict[Value, tuple[int, Value, int]] = {}
        self.met: list[_Late] = []
        self.places: dict[Value, int] = {}  # offsets of numbers of statements elsewhere
        self.size, self.hole = 0, 0
        self.memory = scope(emit.builder.module)
        self.left: Any = None  # the function for code that leaves before the end
        builder = emit.builder
        before = builder.block
        with builder.if_then(builder.icmp_signed("!=", tape, _ZERO), likely=True):
            start, count = self._room(tape)
            opened = builder.block
        self.tape = tape
        self.start = phi(builder, (_scratch(emit), before), (start, opened))
        self.count = phi(builder, (_ZERO, before), (count, opened))
        self.mask = phi(builder, (_ZERO, before), (ir.Constant(I64, -1), opened))
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
        if not self._is_on_known_tape(tape):
            self._begin_late(tape)
        number = builder.add(self.count, ir.Constant(I64, len(self.numbers) + 1))
        number = builder.and_(number, self.mask)
        one = _Statement(number, self.start, [(statement, partial.flat()) for statement, partial in leaves])
        self.waiting.append(one)
        self.wanted |= {origin(x) for x in one.partials()} | {origin(statement) for statement, _ in leaves}
        self.numbers[number] = len(self.numbers)
        return number, self.tape

    def most(self) -> int:
        """How many bytes it may have as yet."""
        return max(self.size + 8 * len(self.wanted), 4 * len(self.numbers))

    def _is_on_known_tape(self, tape: Value) -> bool:
        """Whether operands on this tape are on the record's for certain, or on none."""
        if tape in self.known or tape is _ZERO:
            return True
        return getattr(tape, "opname", None) == "or" and all(map(self._is_on_known_tape, tape.operands))

    def _begin_late(self, tape: Value) -> None:
        """Operands may be on a tape where all before were on none: then the record is on it from here."""
        builder = self.emit.builder
        before = builder.block
        fresh = builder.and_(tape, builder.not_(self.tape))
        with builder.if_then(builder.icmp_signed("!=", fresh, _ZERO), likely=False):
            start, count = self._room(tape)
            late = builder.block
        self.start = phi(builder, (self.start, before), (start, late))
        self.count = phi(builder, (self.count, before), (count, late))
        self.mask = phi(builder, (self.mask, before), (ir.Constant(I64, -1), late))
        self.tape = phi(builder, (self.tape, before), (tape, late))
        self.known |= {tape, self.tape}
        self.waiting.append(_Late(late, start))

    def emit_stores(self) -> None:
        """Emit, where they belong, the stores of all that adjoints need of the statements until here."""
        _Stores(self)
        self.waiting.clear()
        self.wanted.clear()
        self.emit.builder.position_at_end(self.emit.builder.block)

    def leave(self) -> None:
        """Emit, where the code is about to leave, what ends the record: later statements have no effect."""
        builder = self.emit.builder
        if self.left is None:
            self.left = ir.Function(builder.module, _LEAVE, builder.module.get_unique_name("leave_record"))
            self.left.linkage = "internal"
            self.left.attributes.add("noinline")
            self.left.attributes.add("cold")
        self.waiting.append(builder.call(self.left, [self.tape, self.start, self.count, _ZERO]))

    def part(self, ways: int) -> list[Record]:
        """Return what goes on from here on each of so many ways; with none nothing is on the tape."""
        if ways == 0 and self.left is not None:
            ir.IRBuilder(self.left.append_basic_block("left")).ret_void()
        if ways:
            self.emit_stores()
        found = [copy.copy(self) for _ in range(ways)]
        for one in found:
            for name in COPIED:
                setattr(one, name, getattr(self, name).copy())
        for one in found[1:]:
            one.left = None  # what has left before is seen to by the first
        return found

    def close(self) -> None:
        """Emit the record's end."""
        self.emit_stores()
        self.size = max(self.size, -(-4 * len(self.numbers) // 8) * 8) + 8  # see `grow`
        builder = self.emit.builder
        kind = ir.LiteralStructType([I64] * (LEAVES + 1))
        name = builder.module.get_unique_name("kind_of_record")
        self.kind = ir.GlobalVariable(builder.module, kind, name)
        self.ends: list[Value] = []  # numbers of the last statement
        self.kind.linkage, self.kind.global_constant = "internal", True
        with builder.if_then(builder.icmp_signed("!=", self.tape, _ZERO), likely=True):
            self._end(builder, self.tape, self.start, self.count)
        if self.left is not None:
            b = ir.IRBuilder(self.left.append_basic_block("left"))
            tape, start, count, done = self.left.args
            with b.if_then(b.icmp_signed("!=", tape, _ZERO)):
                rest = b.sub(ir.Constant(I64, self.size), done)
                cgutils.memset(b, b.inttoptr(b.add(start, done), _BYTES), rest, 0)
                self._end(b, tape, start, count)
            b.ret_void()

    def _end(self, builder: Builder, tape: Value, start: Value, count: Value) -> None:
        after = builder.add(start, ir.Constant(I64, self.size))
        many = builder.add(count, _ZERO)
        self.ends.append(many)
        self._store(builder, self.kind.ptrtoint(I64), pointer(builder, start, self.size - 8, I64))
        self._store(builder, after, word(builder, tape, TOP))
        self._store(builder, many, word(builder, tape, COUNT))

    def complete(self, uses: Uses | None) -> None:
        """Give numbers to statements that are read outside, without `uses` to all, and emit the adjoint."""
        outside: list[int] = []
        for number, k in self.numbers.items():
            if uses is None or uses.leaves(number):
                outside.append(k)
                _add_constant(number.operands[0], len(outside))
        for many in self.ends:
            _add_constant(many, len(outside))
        adjoint = Adjoint(self.emit, self.spec, self.statements, outside)
        words = [self.size, len(outside), sum(map(len, self.statements))]
        words = [adjoint.function.ptrtoint(I64), *(ir.Constant(I64, word) for word in words)]
        self.kind.initializer = ir.Constant.literal_struct(words)


class _Stores:
    """The stores of statements that wait for them, while they are emitted.

    Attributes
    ----------
    kept
        Values that are on the tape in the end, besides what is there.
    known
        What an adjoint computes of these.
    builder, start
        Where stores go, and where the record starts there.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        partials = [x for one in record.waiting if isinstance(one, _Statement) for x in one.partials()]
        parts = self._parts(partials)
        self.kept = fewest([key for key in dict.fromkeys(map(origin, partials)) if key in parts], parts)
        self.known: dict[Value, Weight] = {}
        self.builder: Builder = None
        self.start: Value = None
        for one in record.waiting:
            if isinstance(one, _Statement):
                self._write(one)
            elif isinstance(one, _Late):
                b = _before(one.block.terminator)
                cgutils.memset(b, b.inttoptr(one.start, _BYTES), ir.Constant(I64, record.size), 0)
                record.met.append(one)
                self.known.clear()
            else:
                _, _, start, *_ = one.operands
                if record.hole:
                    self._store(_before(one), ir.Constant(I32, 0), start, record.hole)
                one.operands[-1] = ir.Constant(I64, record.size)

    def _parts(self, values: list[Value]) -> dict[Value, list[Value] | None]:
        """What is not on the tape, and what of that it is computed of; None where no adjoint computes it."""
        found: dict[Value, list[Value] | None] = {}
        for depth in range(DEPTH + 1):
            new = {key: x for x in values if (key := origin(x)) not in found and self._is_missing(x)}
            values = []
            for key, value in new.items():
                found[key] = None
                if depth < DEPTH and _is_cheap(value):
                    missing = list(filter(self._is_missing, value.operands))
                    found[key] = list(map(origin, missing))
                    values += missing
        return found

    def _is_missing(self, value: Value) -> bool:
        return not isinstance(value, ir.Constant) and origin(value) not in self.record.written

    def _store(self, builder: Builder, value: Value, start: Value, at: int) -> None:
        place = pointer(builder, start, at, value.type)
        builder.store(value, place).set_metadata("alias.scope", self.record.memory)

    def _write(self, one: _Statement) -> None:
        """Emit the stores that a statement needs; notes its leaves, and what an adjoint knows partials by."""
        record, rows = self.record, []
        self.start, self.builder = one.start, ir.IRBuilder(one.number.parent)
        self.builder.position_after(one.number)
        for statement, partial in one.leaves:
            inner = record.numbers.get(statement)
            place = -1 - inner if inner is not None else self._number(statement)
            rows.append((place, list(map(self._weight, partial))))
        record.statements.append(rows)

    def _number(self, statement: Value) -> int:
        """Write the number of a statement elsewhere; returns its offset."""
        record, key = self.record, origin(statement)
        if key in record.places:
            return record.places[key]
        at, record.hole = record.hole, 0
        if not at:
            at, record.hole, record.size = record.size, record.size + 4, record.size + 8
        self._store(self.builder, self.builder.trunc(statement, I32), self.start, at)
        record.places[key] = at
        return at

    def _weight(self, value: Value) -> Weight:
        """Write what the adjoint needs of a component of a partial; returns what it knows it by."""
        if isinstance(value, ir.Constant):
            return value
        record, key = self.record, origin(value)
        if key not in record.written and key not in self.kept:
            if key not in self.known:
                self.known[key] = Computed(value.opname, list(map(self._weight, value.operands)))
            return self.known[key]
        if key not in record.written:
            self._store(self.builder, value, self.start, record.size)
            record.written[key] = record.size, value, len(record.met)
            record.size += 8
        at, value, met = record.written[key]
        for late in record.met[met:]:  # it is written there too, where the record began later
            self._store(_before(late.block.terminator), value, late.start, at)
        record.written[key] = at, value, len(record.met)
        return at


def origin(value: Value) -> Value:
    """Return what two values have in common if they are the same for certain."""
    if isinstance(value, instructions.ExtractValue):
        return id(value.operands[0]), *value.indices
    return id(value)


def _is_cheap(value: Value) -> bool:
    """Whether an adjoint may compute a value."""
    return isinstance(value, instructions.Instruction) and not value.flags and value.opname in CHEAP


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
    if record is not None and record.most() + most > record.room:
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
    if len(found.numbers) > most:
        return []
    builder.tapegrad_record = None
    return found.part(ways)


def finish(builder: Builder) -> None:
    """Close the record that is open, if one is."""
    record = getattr(builder, "tapegrad_record", None)
    if record is not None:
        builder.tapegrad_record = None
        record.close()
        closed = getattr(builder, "tapegrad_closed", None)
        if closed is None:
            record.complete(None)
        else:
            closed.append(record)


def complete(builder: Builder) -> None:
    """Complete the records of a function all of whose code is emitted, which `tapegrad_closed` lists."""
    uses = Uses(builder.function.blocks) if builder.tapegrad_closed else None
    for record in builder.tapegrad_closed:
        record.complete(uses)


def leave(builder: Builder) -> None:
    """Emit what the open record needs where the code leaves; it stays open for the code that does not."""
    record = getattr(builder, "tapegrad_record", None)
    if record is not None:
        record.leave()
