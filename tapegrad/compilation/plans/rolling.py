"""Rows of a program as loops, where they are repeats: what is left is run as it is.

A turn has room for what others than itself and the next one read; what rows by themselves read, and results,
are written where the rows of the program would write them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from tapegrad.compilation import background
from tapegrad.compilation.explanation import several
from tapegrad.compilation.memory.pages import is_long, trim
from tapegrad.compilation.plans.prepared import Prepared
from tapegrad.compilation.plans.repeats import (
    COUNT,
    OUTSIDE,
    Part,
    Reading,
    Repeat,
    count_alone,
    find_repeats,
    is_sum,
    strides_of,
    written_by,
)
from tapegrad.compilation.plans.turning import (
    ADVANCING,
    FIRST_WORD,
    LAST_TURN,
    LISTED,
    SAME,
    THIS_TURN,
    WORD,
    Operand,
    Turns,
    TurnStep,
    called_by,
    emit_turns,
    is_emitted,
    scratch_of,
)
from tapegrad.compilation.rows.rows import Rows
from tapegrad.kernels import abi, assembly, programs
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address
from tapegrad.ops import forward

FEWEST_ROWS, MOST_ROWS = 512, 1 << 22  # that a loop pays for, and that are looked through
MOST_LEFT = 4  # of so many rows one is left at most
MOST_TOLD = 4  # loops
MOST_ENDS = 4  # turns at an end of a loop of which other rows read, that are left to rows
THERE = -2  # instead of a row that has given what is read: it is read where it lies, whoever has given it
AT_ONCE = 1 << 12  # places where a few numbers each are spoiled
ANOTHER = 0x7FF8_1234_5678_9ABC  # added to the words of numbers it makes others of them


class Loop:
    """A repeat of which a kernel is made.

    Attributes
    ----------
    sources, addresses
        Of each turn, of each access.
    spans, is_shared
        Of each access of a turn how many bytes it has, and whether some access has another part of them.
    stored, width
        Where the room of a turn has what a step gives, for the steps of which anybody asks there, and how
        many bytes it has.
    outside
        Steps that write, in each turn, where the rows do.
    last
        Steps that do so in the last turn, after it.
    """

    def __init__(self, reading: Reading, repeat: Repeat) -> None:
        begin, period, turns = repeat
        first, end = reading.first[[begin, begin + period]].tolist()
        count = end - first
        found = (x[first : first + turns * count].reshape(turns, count) for x in
                 (reading.source, reading.address))  # fmt: skip
        self.sources, self.addresses = found
        self.repeat, self.steps = repeat, reading.first[begin : begin + period + 1] - first
        self.spans, _, self.is_truth = reading.looks(np.arange(first, end))
        shared = reading.is_shared[first : first + turns * count].reshape(turns, count)
        self.is_shared = np.logical_or.reduce(shared)
        self.forms = [reading.forms[k] for k in reading.tokens[begin : begin + period]]
        self.stored: dict[int, int] = {}
        self.width = 0
        self.outside: set[int] = set()
        self.last: dict[int, Address] = {}
        self.room = np.zeros(0)
        self.columns: dict[bytes, int] = {}
        self.lists: list[np.ndarray] = []
        self.words: list[int] = []
        self._known: dict[Any, int] = {}

    def ask(self, rows: np.ndarray, addresses: np.ndarray) -> None:
        """Give numbers of such rows to somebody outside of all loops."""
        turns, steps = self.place(rows)
        for k in np.unique(steps).tolist():
            mine = steps == k
            if (turns[mine] == self.repeat.turns - 1).all():
                self.last[k] = int(addresses[mine][0])
            else:
                self.outside.add(k)

    def place(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The turns and steps of rows."""
        return np.divmod(rows.astype(np.int64) - self.repeat.begin, self.repeat.period)

    def store(self, steps: Iterable[int]) -> None:
        """Have room for what steps give, where it is not elsewhere."""
        for k in steps:
            if k not in self.outside and k not in self.stored:
                self.stored[k] = self.width
                self.width += -(-int(self.spans[self.out(k)]) // WORD) * WORD

    def out(self, k: int) -> int:
        """Which access of a turn a step writes."""
        return int(self.steps[k]) + written_by(self.forms[k])

    def word(self, key: Any, values: Sequence[int]) -> int:
        """The first of words that the kernel is given, once for each key."""
        if key not in self._known:
            self._known[key] = FIRST_WORD + len(self.words)
            self.words += values
        return self._known[key]

    def listed(self, addresses: np.ndarray) -> int:
        """The column of a list that has these addresses, one for each turn."""
        key = hashlib.blake2b(addresses.tobytes()).digest()  # as all of them take much memory
        if key not in self.columns:
            self.columns[key] = len(self.lists)
            self.lists.append(addresses)
        return self.columns[key]


class Rolled(Prepared):
    """Rows of which most are loops.

    Attributes
    ----------
    left
        How many rows are run one by one.
    """

    is_exact = True

    def __init__(self, reading: Reading, repeats: Sequence[Repeat]) -> None:
        super().__init__()
        self._reading = reading
        self.loops = [Loop(reading, repeat) for repeat in repeats]
        self._inside = _find_loops(reading, repeats)
        self.left = reading.count - sum(x.period * x.turns for x in repeats)
        self._ask()
        reading.forget()
        operands = [self._look(loop) for loop in self.loops]
        for loop in self.loops:
            loop.room = np.zeros(loop.repeat.turns * loop.width // WORD)
        at = 0
        for loop, given in zip(self.loops, operands, strict=True):
            background.pause()
            self._rows(at, loop.repeat.begin)
            self._loop(loop, given)
            at = loop.repeat.end
        self._rows(at, reading.count)
        self.rows.seal()
        self._computed = reading.computed
        self._rooms = [loop.room for loop in self.loops]
        self._told = ", ".join(f"{x.period:,} steps x {x.turns:,} turns" for x in repeats[:MOST_TOLD])
        del self._reading, self._inside, self.loops

    def describe(self) -> str:
        """Tell what computes."""
        more = ", ..." if len(self._rooms) > MOST_TOLD else ""
        return f"rolled: body of {self._told}{more}; {several(self.left, 'step')} alone"

    def spoil(self) -> None:
        """Make other numbers of all that the rows compute."""
        for room in self._rooms:
            room.view(np.uint8).fill(0xFF)
        for address, span in self._computed:
            for k in range(0, len(address), AT_ONCE):
                count = span[k : k + AT_ONCE] // WORD
                words = np.repeat(address[k : k + AT_ONCE] - WORD * (np.cumsum(count) - count), count)
                words += WORD * np.arange(len(words))
                programs.load()(layout.MOVE_WORDS, abi.address(words), len(words), ANOTHER)

    def _ask(self) -> None:
        """Find what rows by themselves read that loops compute."""
        reading = self._reading
        for accesses, givers in reading.pieces:
            by = self._inside[givers]
            for k in np.unique(by[by != OUTSIDE]).tolist():
                self.loops[k].outside.update(np.unique(self.loops[k].place(givers[by == k])[1]).tolist())
            accesses = accesses[by != OUTSIDE]
            reading.source[accesses[accesses < len(reading.source)]] = THERE
        for sources, addresses in _asked(reading, self._inside):
            by = self._inside[sources]
            for k in np.unique(by[by != OUTSIDE]).tolist():
                self.loops[k].ask(sources[by == k], addresses[by == k])

    def _look(self, loop: Loop) -> list[Any]:
        """How each access of a turn reads, as `_how` has it; None for those that write.

        A result that its turn does not ask for is stored, as it may meet an error that somebody is told of:
        LLVM would leave it out, or compute it in the last turn alone.
        """
        found: list[Any] = []
        for k in range(len(loop.forms)):
            begin, end = loop.steps[k : k + 2].tolist()
            out = loop.out(k)
            found += [None if q == out else self._how(loop, k, q) for q in range(begin, end)]
        read = {how[1] for how in found if how is not None and how[0] == THIS_TURN}
        if self._reading.locate(loop.repeat.begin)[0].reported:
            loop.store(k for k, form in enumerate(loop.forms) if form.kinds and k not in read)
        return found

    def _how(self, loop: Loop, step: int, q: int) -> tuple[Any, ...]:
        """How an access of a step reads: its kind, and what tells where."""
        begin, period, turns = loop.repeat
        sources, addresses = loop.sources[:, q], loop.addresses[:, q]
        if (sources == THERE).any():
            self._store(sources)
            return LISTED, (sources, addresses)
        behind = sources - (begin + period * np.arange(turns))
        if 0 <= behind[0] < step and (behind == behind[0]).all():
            return THIS_TURN, int(behind[0])
        by = self._inside[sources]
        if by[0] != self._inside[begin]:  # the first one is there before the loop
            if -period <= behind[1] < 0 and (behind[1:] == behind[1]).all():
                self._store(sources[:1])
                return LAST_TURN, int(behind[1]) + period, (sources[:1], addresses[:1])
            if (sources == sources[0]).all() and (addresses == addresses[0]).all():
                self._store(sources[:1])
                return SAME, (sources[:1], addresses[:1])
        self._store(sources)
        if by[0] != OUTSIDE and (by == by[0]).all():
            other = self.loops[by[0]]
            turn, steps = other.place(sources)
            further = np.diff(turn)
            if (steps == steps[0]).all() and (further == further[0]).all() and int(steps[0]) in other.stored:
                return ADVANCING, other, int(turn[0]), int(further[0]), int(steps[0])
        return LISTED, (sources, addresses)

    def _store(self, sources: np.ndarray) -> None:
        """Have room for numbers, of those that loops compute."""
        by = self._inside[sources]
        for k in np.unique(by[by != OUTSIDE]).tolist():
            self.loops[k].store(np.unique(self.loops[k].place(sources[by == k])[1]).tolist())

    def _places(self, sources: np.ndarray, addresses: np.ndarray) -> np.ndarray:
        """Where numbers are that rows have given, for readers in loops."""
        places, by = addresses.copy(), self._inside[sources]
        for k in np.unique(by[by != OUTSIDE]).tolist():
            loop, mine = self.loops[k], np.flatnonzero(by == k)
            turns, steps = loop.place(sources[mine])
            offsets = np.full(loop.repeat.period, OUTSIDE)
            offsets[list(loop.stored)] = list(loop.stored.values())
            inside = offsets[steps] != OUTSIDE
            at = abi.address(loop.room) + loop.width * turns + offsets[steps]
            places[mine[inside]] = at[inside]
        return places

    def _loop(self, loop: Loop, reads: Sequence[Any]) -> None:
        """Add a row for a loop."""
        given = {k: q for q, k in enumerate(k for k, form in enumerate(loop.forms) if form.kinds)}
        steps = [self._step(loop, given, k, reads) for k in given]
        errors = 0
        if any(step.called is not None and step.called.clears for step in steps):
            note = abi.address(self.rows.memory) + WORD * layout.ERRORS_MET
            errors = loop.word("errors", [*forward.error_test(), note])
        turns = Turns(tuple(steps), loop.width, len(loop.lists), errors)
        address = assembly.load(emit_turns(turns))
        if not address:
            raise MemoryError(f"a process has {assembly.MOST_KERNELS} kernels at most")
        lists, loop.columns = np.zeros((loop.repeat.turns, len(loop.lists)), np.int64), {}
        while loop.lists:
            column = loop.lists.pop()
            lists[:, len(loop.lists)] = column
        kept = (self.rows.keep(x) for x in (loop.room, lists, np.zeros(scratch_of(steps) // WORD)))
        words = [loop.repeat.turns, *map(abi.address, kept), *loop.words]
        self.rows.fused(address, [(word, 0, 1, 0) for word in words], 1)

    def _step(self, loop: Loop, given: Mapping[int, int], k: int, reads: Sequence[Any]) -> TurnStep:
        """A step of a turn."""
        form, begin, out = loop.forms[k], int(loop.steps[k]), loop.out(k)
        strides, extent = strides_of(form), form.key[layout.FORM_EXTENT]
        called = None
        if is_sum(form) or not is_emitted(form.function):
            _, function, data, *_ = form.key
            called = called_by(form, loop.word(("call", function, data), [function, data]))
        operands = [
            self._operand(loop, given, reads[q], bool(loop.is_truth[q]))._replace(
                is_dense=extent > 1 and strides[q - begin] != 0, is_shared=bool(loop.is_shared[q])
            )
            for q in range(begin, begin + len(form.kinds)) if q != out
        ]  # fmt: skip
        return TurnStep(
            form.function, 1 if is_sum(form) else extent, tuple(operands), bool(loop.is_truth[out]), called,
            loop.stored.get(k), loop.listed(loop.addresses[:, out]) if k in loop.outside else None,
            loop.word(("in", loop.last[k]), [loop.last[k]]) if k in loop.last else None,
            bool(loop.is_shared[out]),
        )  # fmt: skip

    def _operand(self, loop: Loop, given: Mapping[int, int], how: Any, is_truth: bool) -> Operand:
        """What a step reads."""
        kind, *where = how
        if kind == THIS_TURN:
            return Operand(kind, given[where[0]], is_truth=is_truth)
        if kind == ADVANCING:
            other, turn, further, step = where
            at = abi.address(other.room) + turn * other.width
            word = loop.word(("at", at), [at])
            return Operand(kind, further * other.width, word, other.stored[step], is_truth)
        places = self._places(*where[-1])
        if kind == LISTED:
            return Operand(kind, loop.listed(places), is_truth=is_truth)
        at, step = int(places[0]), given[where[0]] if kind == LAST_TURN else 0
        return Operand(kind, step, loop.word(("at", at), [at]), is_truth=is_truth)

    def _rows(self, begin: int, end: int) -> None:
        """Add rows as they are, in the groups in which they are."""
        for k in range(begin, end):
            background.pause()
            part, row = self._reading.locate(k)
            rows = part.rows
            if rows.begins_group(row):
                self.rows.divide()
            self.rows.repeat(rows, row, not part.reported)


def _find_loops(reading: Reading, repeats: Sequence[Repeat]) -> np.ndarray:
    """The loop of each row; those from behind, which stand for no row, are in none."""
    inside = np.full(reading.count - THERE, OUTSIDE, COUNT)
    for k, repeat in enumerate(repeats):
        inside[repeat.begin : repeat.end] = k
    return inside


def _asked(reading: Reading, inside: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """What rows by themselves and outputs read: which rows have given it, and where."""
    alone = np.flatnonzero(np.repeat(inside[: reading.count] == OUTSIDE, np.diff(reading.first)))
    _, written, _ = reading.looks(alone)
    alone = alone[~written]
    return [*reading.others, (reading.source[alone], reading.address[alone])]


def _shorten(reading: Reading, repeats: Sequence[Repeat]) -> list[Repeat]:
    """Leave to rows by themselves the turns at both ends of which such rows read, as a sweep's ends do.

    Else all turns would write where the rows do, which lies further apart than the room of turns.
    """
    found = list(repeats)
    for _ in range(MOST_ENDS):
        inside = _find_loops(reading, found)
        sources = np.concatenate([sources for sources, _ in _asked(reading, inside)])
        before = found[:]
        for k, (begin, period, turns) in enumerate(before):
            asked = np.unique((sources[inside[sources] == k].astype(np.int64) - begin) // period)
            early, late = asked[asked < MOST_ENDS], asked[asked >= turns - MOST_ENDS]
            if len(early) + len(late) != len(asked):
                continue
            first, last = early.max(initial=-1) + 1, late.min(initial=turns - 1)
            shorter = Repeat(begin + int(first) * period, period, int(last - first) + 1)
            if shorter.turns > MOST_ENDS and period * shorter.turns >= FEWEST_ROWS:
                found[k] = shorter
        if found == before:
            break
    return found


def roll(forward: Part, reverse: Rows | None, outputs: Iterable[np.ndarray]) -> Rolled | None:
    """Make loops of the rows of a program, and those in reverse; None where they are no repeats for most."""
    parts = [forward, *([] if reverse is None else [Part(reverse, 0, len(reverse), False)])]
    parts = [part for part in parts if part.begin < part.end]
    count = sum(part.end - part.begin for part in parts)
    if not FEWEST_ROWS <= count <= MOST_ROWS:
        return None
    if MOST_LEFT * sum(map(count_alone, parts)) > count:
        return None
    reading = Reading(parts)
    found = [x for x in find_repeats(reading.tokens) if x.period * x.turns >= FEWEST_ROWS]
    if is_long(count):
        trim()  # of what was looked through
    if MOST_LEFT * (count - sum(x.period * x.turns for x in found)) > count:
        return None
    if not reading.find_sources([byte_bounds(x) for x in outputs]):
        return None
    return Rolled(reading, _shorten(reading, found))
