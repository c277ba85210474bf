"""The text of a kernel that makes turns: rows over numbers, again and again, as one loop in LLVM's language.

A number that only its turn reads, or the next one, is in no memory. What has the bits of NumPy's, or of a
rule's kernel, whatever computes it is emitted; all else is called as rows call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir

from tapegrad.compilation.fusing import BYTE, I64, TYPES, StepEmitter, Value, can_emit, emit_step, forms_in
from tapegrad.kernels.assembly import ENTRY
from tapegrad.kernels.replay import layout
from tapegrad.native.algebra import Real

DOUBLE, I32, WORD = TYPES["d"], ir.IntType(32), 8  # bytes of a word
# What a number is: one of this turn or of the turn before, the same in all turns, or somewhere in memory:
# so many bytes further in each turn, or at an address that is listed.
THIS_TURN, LAST_TURN, SAME, ADVANCING, LISTED = range(5)
TURNS, ROOM, LIST, FIRST_WORD = range(4)  # words: how many turns, where the room and the list are, others


class Operand(NamedTuple):
    """A number that a step reads.

    One of this turn or the turn before is known by the step that gives it, the latter with the word of where
    it is before the first turn; one that is the same by that of where it is. One that advances has the word
    of where it begins, by how many bytes it does, and an offset; a listed one its column.
    """

    kind: int
    at: int
    word: int = 0
    offset: int = 0
    is_truth: bool = False


class Called(NamedTuple):
    """A function that a step calls, a kernel's or a ufunc's loop: its word, behind it that of its data.

    A loop that `clears` flags of errors has theirs noted before.
    """

    is_kernel: bool
    word: int
    strides: tuple[int, ...]
    clears: bool


class TurnStep(NamedTuple):
    """A step of a turn: what it does, reads, and where it writes what it gives, of which some may be nothing.

    That is an offset in the room of the turn, a column of the list, or the word of where it is in the end.
    """

    function: Any
    reads: tuple[Operand, ...]
    is_truth: bool = False
    called: Called | None = None
    room: int | None = None
    column: int | None = None
    last: int | None = None


class Turns(NamedTuple):
    """What a kernel is made of: bytes of the room and columns of the list for each turn, and the steps.

    Where flags are noted three words from `errors` on are: what tests them, which, where they are noted.
    """

    steps: tuple[TurnStep, ...]
    room: int
    columns: int
    errors: int


def is_emitted(function: Any) -> bool:
    """Whether a step has the same bits wherever it is compiled."""
    return can_emit(function, "d") and forms_in(function, "d") == 0


def emit_turns(turns: Turns) -> str:
    """Return the text of a kernel: ``int64(int64 *words, int64)``, 0 where one that it calls gives 0."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(I64, [I64.as_pointer(), I64]), ENTRY)
    _Turn(function, turns).emit()
    return str(module)


class _Turn:
    """The loop of a kernel under construction."""

    def __init__(self, function: Any, turns: Turns) -> None:
        self.function, self.turns = function, turns
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self.emitter = StepEmitter(self.b, "d")
        self.same: dict[Operand, Value] = {}
        self.before: dict[Operand, Any] = {}  # what begins a turn, by the step of the last one
        self.found: list[Real] = []
        self.bases: dict[int, Value] = {}
        self.good = self._variable(I64)

    def emit(self) -> None:
        """Emit it."""
        b, turns = self.b, self.turns
        b.store(I64(1), self.good)
        count, room, list_of = (self._word(k) for k in (TURNS, ROOM, LIST))
        reads = dict.fromkeys(x for step in turns.steps for x in step.reads)
        first = {x: self._load(self._word(x.word), x.is_truth) for x in reads if x.kind in (SAME, LAST_TURN)}
        self.same = {x: value for x, value in first.items() if x.kind == SAME}
        self.bases = {x.word: self._word(x.word) for x in reads if x.kind == ADVANCING}
        entry, loop = b.block, self.function.append_basic_block("turn")
        b.branch(loop)
        b.position_at_end(loop)
        turn = b.phi(I64)
        turn.add_incoming(I64(0), entry)
        for x, value in first.items():
            if x.kind == LAST_TURN:
                self.before[x] = b.phi(DOUBLE)
                self.before[x].add_incoming(value, entry)
        self.turn, self.known = turn, dict[Operand, Value]()
        self.room = b.add(room, b.mul(turn, I64(turns.room)))
        self.row = b.add(list_of, b.mul(turn, I64(WORD * turns.columns)))
        for step in turns.steps:
            self._step(step)
        following = b.add(turn, I64(1), flags=["nuw", "nsw"])
        turn.add_incoming(following, b.block)
        for x, phi in self.before.items():
            phi.add_incoming(self.found[x.at].value, b.block)
        done = self.function.append_basic_block("done")
        b.cbranch(b.icmp_unsigned("<", following, count), loop, done)
        b.position_at_end(done)
        for step, value in zip(turns.steps, self.found, strict=True):
            if step.last is not None:
                self._store(value.value, self._word(step.last), step.is_truth)
        b.ret(b.load(self.good))

    def _step(self, step: TurnStep) -> None:
        """Emit a step."""
        values = [Real(self.emitter, self._value(x)) for x in step.reads]
        found = self._call(step, values) if step.called else emit_step(self.emitter, step.function, values)
        self.found.append(found)
        if step.room is not None:
            self._store(found.value, self.b.add(self.room, I64(step.room)), step.is_truth)
        if step.column is not None:
            self._store(found.value, self._listed(step.column), step.is_truth)

    def _value(self, x: Operand) -> Value:
        """What a step reads."""
        if x.kind == THIS_TURN:
            return self.found[x.at].value
        if x.kind == LAST_TURN:
            return self.before[x]
        if x.kind == SAME:
            return self.same[x]
        b = self.b
        if x.kind == LISTED:
            return self._load(self._listed(x.at), x.is_truth)
        moved = b.add(self.bases[x.word], b.mul(self.turn, I64(x.at)))
        return self._load(b.add(moved, I64(x.offset)), x.is_truth)

    def _call(self, step: TurnStep, values: Sequence[Real]) -> Real:
        """Emit a call of a function, as rows call it, of numbers in memory of the kernel's own."""
        b, called = self.b, step.called
        assert called is not None
        kinds = [x.is_truth for x in step.reads]
        kinds = [step.is_truth, *kinds] if called.is_kernel else [*kinds, step.is_truth]
        rooms = [b.ptrtoint(self._variable(DOUBLE), I64) for _ in kinds]
        out = 0 if called.is_kernel else len(values)
        for value, at in zip(values, rooms[:out] + rooms[out + 1 :], strict=True):
            self._store(value.value, at, kinds[rooms.index(at)])
        places, extent, words = self._words(rooms), self._words([I64(1)]), I64.as_pointer()
        strides, at = self._words([I64(x) for x in called.strides]), self._word(called.word)
        if called.is_kernel:
            kernel = b.inttoptr(at, ir.FunctionType(I64, [words, I64]).as_pointer())
            b.store(b.and_(b.load(self.good), b.call(kernel, [places, I64(1)])), self.good)
        else:
            data = self._word(called.word + 1)
            if called.clears:
                self._note_errors()  # with nothing between that could meet one
            loop = b.inttoptr(at, ir.FunctionType(ir.VoidType(), [words, words, words, I64]).as_pointer())
            b.call(loop, [places, extent, strides, data])
        return Real(self.emitter, self._load(rooms[out], step.is_truth))

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

    def _load(self, at: Value, is_truth: bool) -> Value:
        """Load a number, of a truth value 0 or 1."""
        if is_truth:
            return self.b.uitofp(self.b.load(self.b.inttoptr(at, BYTE.as_pointer())), DOUBLE)
        return self.b.load(self.b.inttoptr(at, DOUBLE.as_pointer()))

    def _store(self, value: Value, at: Value, is_truth: bool) -> None:
        """Store a number, or whether it is not 0."""
        if is_truth:
            value = self.b.zext(self.b.fcmp_unordered("!=", value, DOUBLE(0.0)), BYTE)
            self.b.store(value, self.b.inttoptr(at, BYTE.as_pointer()))
        else:
            self.b.store(value, self.b.inttoptr(at, DOUBLE.as_pointer()))


def called_by(key: Sequence[int], word: int) -> Called:
    """What a row of a form calls, by the form's words."""
    count = key[layout.FORM_COUNT]
    strides = tuple(key[layout.FORM_STRIDES + count : layout.FORM_STRIDES + 2 * count])
    return Called(key[0] == layout.BY_KERNEL, word, strides, bool(key[layout.FORM_CLEARS]))
