"""The text of a kernel that makes turns, rows over a few numbers again and again: a loop in LLVM's language.

A number that only its turn reads, or the next one, is in no memory; elements are in none where the steps that
read them, over as many, are in one loop with what gives them. What has the bits of NumPy's, or of a rule's
kernel, whatever computes it is emitted; all else is called as rows call it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from llvmlite import ir

from tapegrad.compilation.plans.repeats import SIZES, is_sum, strides_of
from tapegrad.compilation.rows.fusing import (
    BYTE,
    I64,
    TYPES,
    StepEmitter,
    Value,
    can_emit,
    counted,
    emit_step,
    forms_in,
)
from tapegrad.compilation.rows.table import Form
from tapegrad.kernels.assembly import ENTRY, text_of
from tapegrad.kernels.replay import layout
from tapegrad.native.emission.algebra import Real

DOUBLE, I32, WORD = TYPES["d"], ir.IntType(32), 8  # bytes of a word
WIDTHS = 8, 4, 2, 1  # elements of a vector, of which none is without an element: it might raise an error
# What a number is: one of this turn or of the turn before, the same in all turns, or somewhere in memory:
# so many bytes further in each turn, or at an address that is listed.
THIS_TURN, LAST_TURN, SAME, ADVANCING, LISTED = range(5)
# Words: how many turns, where the room, the list and what is written anew in each turn are, others.
TURNS, ROOM, LIST, SCRATCH, FIRST_WORD = range(5)


class Operand(NamedTuple):
    """A number that a step reads, or elements side by side if it is dense.

    One of this turn or the turn before is known by the step that gives it, the latter with the word of where
    it is before the first turn; one that is the same by that of where it is. One that advances has the word
    of where it begins, by how many bytes it does, and an offset; a listed one its column. A shared one may
    have memory in common with other elements than those of the same places.
    """

    kind: int
    at: int
    word: int = 0
    offset: int = 0
    is_truth: bool = False
    is_dense: bool = False
    is_shared: bool = False

    @property
    def is_there(self) -> bool:
        """Whether it is read where rows have it."""
        return self.kind != THIS_TURN and self.is_shared


class Called(NamedTuple):
    """A function that a step calls, a kernel's or a ufunc's loop: its word, behind it that of its data.

    A loop that `clears` flags of errors has theirs noted before. One that `sums` adds to its first operand.
    """

    is_kernel: bool
    word: int
    extent: int
    strides: tuple[int, ...]
    clears: bool
    sums: bool


class TurnStep(NamedTuple):
    """A step of a turn: what it does, over how many elements, reads, and where it writes what it gives.

    That is an offset in the room of the turn, a column of the list, or the word of where it is in the end, of
    which some may be nothing.
    """

    function: Any
    extent: int
    reads: tuple[Operand, ...]
    is_truth: bool = False
    called: Called | None = None
    room: int | None = None
    column: int | None = None
    last: int | None = None
    is_shared: bool = False

    @property
    def size(self) -> int:
        """How many bytes what it gives has, in words."""
        return -(-self.extent * SIZES["?" if self.is_truth else "d"] // WORD) * WORD


class Turns(NamedTuple):
    """What a kernel is made of: the steps, bytes of the room and columns of the list for each turn.

    Where flags are noted three words from `errors` on are: what tests them, which, where they are noted.
    """

    steps: tuple[TurnStep, ...]
    room: int
    columns: int
    errors: int


def is_emitted(function: Any) -> bool:
    """Whether a step has the same bits wherever it is compiled."""
    return can_emit(function, "d") and forms_in(function, "d") == 0


def scratch_of(steps: Sequence[TurnStep]) -> int:
    """How many bytes are written anew in each turn, at most: what a turn gives, and what the last one has."""
    return 2 * sum(step.size for step in steps if step.extent > 1)


def emit_turns(turns: Turns) -> str:
    """Return the text of a kernel: ``int64(int64 *words, int64)``, 0 where one that it calls gives 0."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(I64, [I64.as_pointer(), I64]), ENTRY)
    set.add(function.attributes, '"prefer-vector-width"="512"')
    _Turn(function, turns).emit()
    return text_of(module)


def runs_of(steps: Sequence[TurnStep]) -> list[list[int]]:
    """Steps, in order, in one loop over their elements each; one that calls a function is alone.

    So is what writes to memory of which others have other elements: in a loop they would come too early.
    """
    found: list[list[int]] = []
    reads = writes = False
    for k, step in enumerate(steps):
        reading = any(x.is_there for x in step.reads)
        writing = step.is_shared and step.column is not None
        before = steps[found[-1][0]] if found else step
        together = step.called is None and before.called is None and step.extent == before.extent
        if not found or not together or (writes and (reading or writing)) or (reads and writing):
            found.append([])
            reads = writes = False
        found[-1].append(k)
        reads, writes = reads or reading, writes or writing
    return found


class _Turn:
    """The loop of a kernel under construction."""

    def __init__(self, function: Any, turns: Turns) -> None:
        self.function, self.turns = function, turns
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self.emitter = StepEmitter(self.b, "d")
        self.same: dict[Operand, Value] = {}
        self.before: dict[Operand, Any] = {}  # what begins a turn, by the step of the last one
        self.found: dict[int, Value] = {}  # numbers
        self.places: dict[int, Value] = {}  # where elements are
        self.bases: dict[int, Value] = {}
        self.good = self._variable(I64)
        self.runs = runs_of(turns.steps)
        self.scratch = self._scratch()

    def _scratch(self) -> dict[int, tuple[int, bool]]:
        """Where elements are that have no room: offsets, and whether the turn before has its own."""
        steps, found, end = self.turns.steps, dict[int, tuple[int, bool]](), 0
        run = {k: q for q, run in enumerate(self.runs) for k in run}
        asked = {k for k, step in enumerate(steps) if step.called or step.last is not None}
        asked |= {x.at for k, step in enumerate(steps) for x in step.reads
                  if x.kind == THIS_TURN and (step.called or run[x.at] != run[k])}  # fmt: skip
        kept = {x.at for step in steps for x in step.reads if x.kind == LAST_TURN}
        for k in sorted(asked | kept):
            if steps[k].extent > 1 and steps[k].room is None:
                found[k] = end, k in kept
                end += steps[k].size * (1 + (k in kept))
        return found

    def emit(self) -> None:
        """Emit it."""
        b, turns = self.b, self.turns
        b.store(I64(1), self.good)
        count, room, list_of, scratch = (self._word(k) for k in (TURNS, ROOM, LIST, SCRATCH))
        reads = dict.fromkeys(x for step in turns.steps for x in step.reads)
        first = {
            x: self._word(x.word) if x.is_dense else self._load(self._word(x.word), x.is_truth)
            for x in reads if x.kind in (SAME, LAST_TURN)
        }  # fmt: skip
        self.same = {x: value for x, value in first.items() if x.kind == SAME}
        self.bases = {x.word: self._word(x.word) for x in reads if x.kind == ADVANCING}
        entry, loop = b.block, self.function.append_basic_block("turn")
        b.branch(loop)
        b.position_at_end(loop)
        turn = b.phi(I64)
        turn.add_incoming(I64(0), entry)
        for x, value in first.items():
            if x.kind == LAST_TURN:
                self.before[x] = b.phi(value.type)
                self.before[x].add_incoming(value, entry)
        self.turn = turn
        self.room = b.add(room, b.mul(turn, I64(turns.room)))
        self.row = b.add(list_of, b.mul(turn, I64(WORD * turns.columns)))
        for k, step in enumerate(turns.steps):
            if step.extent > 1 and step.room is not None:
                self.places[k] = b.add(self.room, I64(step.room))
            elif k in self.scratch:
                offset, kept = self.scratch[k]
                self.places[k] = b.add(scratch, I64(offset))
                if kept:
                    odd = b.and_(turn, I64(1))
                    self.places[k] = b.add(self.places[k], b.mul(odd, I64(step.size)))
        for run in self.runs:
            if turns.steps[run[0]].called is not None:
                self._call(run[0])
            elif turns.steps[run[0]].extent > 1:
                self._elements(run)
            else:
                for k in run:
                    self._number(k)
        following = b.add(turn, I64(1), flags=["nuw", "nsw"])
        turn.add_incoming(following, b.block)
        for x, phi in self.before.items():
            phi.add_incoming((self.places if x.is_dense else self.found)[x.at], b.block)
        done = self.function.append_basic_block("done")
        b.cbranch(b.icmp_unsigned("<", following, count), loop, done)
        b.position_at_end(done)
        for k, step in enumerate(turns.steps):
            if step.last is not None:
                self._write(k, self._word(step.last))
        b.ret(b.load(self.good))

    def _number(self, k: int) -> None:
        """Emit a step that gives a number."""
        step = self.turns.steps[k]
        values = [Real(self.emitter, self._value(x)) for x in step.reads]
        self.found[k] = emit_step(self.emitter, step.function, values).value
        self._hand_out(k)

    def _hand_out(self, k: int) -> None:
        """Write what a step gives where others find it."""
        step = self.turns.steps[k]
        if step.room is not None and step.extent == 1:
            self._write(k, self.b.add(self.room, I64(step.room)))
        if step.column is not None:
            self._write(k, self._listed(step.column))

    def _write(self, k: int, at: Value) -> None:
        """Write what a step has given."""
        step, b = self.turns.steps[k], self.b
        if step.extent == 1:
            self._store(self.found[k], at, step.is_truth)
            return
        size = step.extent * SIZES["?" if step.is_truth else "d"]
        byte = BYTE.as_pointer()
        copy = self.function.module.declare_intrinsic("llvm.memcpy", [byte, byte, I64])
        to, source = b.inttoptr(at, byte), b.inttoptr(self.places[k], byte)
        b.call(copy, [to, source, I64(size), ir.IntType(1)(0)])

    def _elements(self, run: Sequence[int]) -> None:
        """Emit steps as a loop over their elements, of which none waits for another."""
        steps = [self.turns.steps[k] for k in run]
        asked = [x for step in steps for x in step.reads if x.kind != THIS_TURN or x.at not in run]
        given = {x: self._place(x) if x.is_dense else self._value(x) for x in dict.fromkeys(asked)}
        targets = [
            ([self.places[k]] if k in self.places else [])
            + ([] if step.column is None else [self._listed(step.column)])
            for k, step in zip(run, steps, strict=True)
        ]
        left, done = steps[0].extent, 0
        for lanes in WIDTHS:
            count, left = divmod(left, lanes)
            if count > 1:
                with counted(self.b, I64(count)) as k:
                    self._vectors(run, lanes, self.b.mul(k, I64(lanes)), given, targets)
            elif count:
                self._vectors(run, lanes, I64(done), given, targets)
            done += count * lanes

    def _vectors(
        self, run: Sequence[int], lanes: int, begin: Value, given: Mapping[Operand, Value],
        targets: Sequence[Sequence[Value]],
    ) -> None:  # fmt: skip
        """Emit steps for as many elements, from one on."""
        emit = StepEmitter(self.b, "d", lanes)
        known: dict[int, Value] = {}
        loaded: dict[Operand, Value] = {}
        for k, to in zip(run, targets, strict=True):
            step = self.turns.steps[k]
            for x in step.reads:
                if x.kind == LISTED or x not in loaded:
                    loaded[x] = self._lanes(x, given.get(x), begin, lanes, known)
            values = [Real(emit, loaded[x]) for x in step.reads]
            known[k] = emit_step(emit, step.function, values).value
            for at in to:
                self._store(known[k], self._element(at, begin, step.is_truth), step.is_truth, lanes)

    def _lanes(
        self, x: Operand, given: Value | None, begin: Value, lanes: int, known: Mapping[int, Value]
    ) -> Value:
        """Elements of what a step reads, from one on."""
        if given is None:
            return known[x.at]
        if x.is_dense:
            return self._load(self._element(given, begin, x.is_truth), x.is_truth, lanes)
        return self._spread(given, lanes)

    def _element(self, at: Value, k: Value, is_truth: bool) -> Value:
        """Where an element is."""
        return self.b.add(at, self.b.mul(k, I64(SIZES["?" if is_truth else "d"])))

    def _spread(self, value: Value, lanes: int) -> Value:
        """A vector of one number."""
        if lanes == 1:
            return value
        wide, index = ir.VectorType(DOUBLE, lanes), ir.VectorType(I32, lanes)
        one = self.b.insert_element(ir.Constant(wide, ir.Undefined), value, I32(0))
        return self.b.shuffle_vector(one, ir.Constant(wide, ir.Undefined), index([0] * lanes))

    def _value(self, x: Operand) -> Value:
        """The number that a step reads."""
        if x.kind == THIS_TURN:
            return self.found[x.at]
        if x.kind == LAST_TURN:
            return self.before[x]
        return self.same[x] if x.kind == SAME else self._load(self._place(x), x.is_truth)

    def _place(self, x: Operand) -> Value:
        """Where what a step reads is."""
        b = self.b
        if x.kind == THIS_TURN:
            return self.places[x.at]
        if x.kind == LAST_TURN:
            return self.before[x]
        if x.kind == SAME:
            return self.same[x]
        if x.kind == LISTED:
            return self._listed(x.at)
        return b.add(b.add(self.bases[x.word], b.mul(self.turn, I64(x.at))), I64(x.offset))

    def _call(self, k: int) -> None:
        """Emit a call of a function, as rows call it; numbers are in memory of the kernel's own."""
        b, step = self.b, self.turns.steps[k]
        called = step.called
        assert called is not None
        operands = step.reads[:2] if called.sums else step.reads
        places = [self._place(x) if x.is_dense else self._kept(self._value(x), x.is_truth) for x in operands]
        if called.sums:
            out = places[0]
        else:
            out = self.places[k] if step.extent > 1 else self._room_of_number()
        places.insert(0 if called.is_kernel else len(places), out)
        strides = self._words([I64(x) for x in called.strides])
        given, extent, words = self._words(places), self._words([I64(called.extent)]), I64.as_pointer()
        at = self._word(called.word)
        if called.is_kernel:
            kernel = b.inttoptr(at, ir.FunctionType(I64, [words, I64]).as_pointer())
            b.store(b.and_(b.load(self.good), b.call(kernel, [given, I64(called.extent)])), self.good)
        else:
            data = self._word(called.word + 1)
            if called.clears:
                self._note_errors()  # with nothing between that could meet one
            loop = b.inttoptr(at, ir.FunctionType(ir.VoidType(), [words, words, words, I64]).as_pointer())
            b.call(loop, [given, extent, strides, data])
        if step.extent == 1:
            self.found[k] = self._load(out, step.is_truth)
            if called.sums and len(step.reads) > 2:  # a mean
                self.found[k] = b.fdiv(self.found[k], self._value(step.reads[2]))
        self._hand_out(k)

    def _kept(self, value: Value, is_truth: bool) -> Value:
        """Where a number is, which a function is to read."""
        at = self._room_of_number()
        self._store(value, at, is_truth)
        return at

    def _room_of_number(self) -> Value:
        return self.b.ptrtoint(self._variable(DOUBLE), I64)

    def _note_errors(self) -> None:
        """Note which flags of errors are set."""
        b, at = self.b, self.turns.errors
        test, which, where = (self._word(at + k) for k in range(3))
        test = b.inttoptr(test, ir.FunctionType(I32, [I32]).as_pointer())
        noted = b.inttoptr(where, I64.as_pointer())
        met = b.call(test, [b.trunc(which, I32)])
        b.store(b.or_(b.load(noted), b.zext(met, I64)), noted)

    def _word(self, k: int) -> Value:
        """A word that the kernel is given."""
        return self.b.load(self.b.gep(self.function.args[0], [I64(k)], inbounds=True))

    def _words(self, values: Sequence[Value]) -> Value:
        """Where words are that have these values."""
        with self.b.goto_entry_block():
            out = self.b.alloca(I64, len(values))
        for k, value in enumerate(values):
            self.b.store(value, self.b.gep(out, [I64(k)], inbounds=True))
        return out

    def _variable(self, kind: Any) -> Value:
        with self.b.goto_entry_block():
            return self.b.alloca(kind)

    def _listed(self, column: int) -> Value:
        """An address of the turn that is listed."""
        at = self.b.inttoptr(self.b.add(self.row, I64(WORD * column)), I64.as_pointer())
        return self.b.load(at)

    def _load(self, at: Value, is_truth: bool, lanes: int = 1) -> Value:
        """Load a number, of a truth value 0 or 1, or as many side by side."""
        found = self.b.load(self._pointer(at, is_truth, lanes), align=SIZES["?" if is_truth else "d"])
        return self.b.uitofp(found, _vector(DOUBLE, lanes)) if is_truth else found

    def _store(self, value: Value, at: Value, is_truth: bool, lanes: int = 1) -> None:
        """Store a number, or whether it is not 0, or as many side by side."""
        if is_truth:
            zeros = StepEmitter(self.b, "d", lanes).constant(0.0)
            value = self.b.zext(self.b.fcmp_unordered("!=", value, zeros), _vector(BYTE, lanes))
        self.b.store(value, self._pointer(at, is_truth, lanes), align=SIZES["?" if is_truth else "d"])

    def _pointer(self, at: Value, is_truth: bool, lanes: int) -> Value:
        return self.b.inttoptr(at, _vector(BYTE if is_truth else DOUBLE, lanes).as_pointer())


def _vector(kind: Any, lanes: int) -> Any:
    """The type of as many side by side."""
    return kind if lanes == 1 else ir.VectorType(kind, lanes)


def called_by(form: Form, word: int) -> Called:
    """What a row of a form calls."""
    key, strides = form.key, strides_of(form)
    sums = is_sum(form)
    strides = strides[:3] if sums else strides
    is_kernel, extent = key[0] == layout.BY_KERNEL, key[layout.FORM_EXTENT]
    return Called(is_kernel, word, extent, strides, bool(key[layout.FORM_CLEARS]), sums)
