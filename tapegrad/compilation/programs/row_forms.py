"""Rows of operations that are as one before: the same op of operands that look the same, in other places.

Which form a row has its operands' shapes, strides and dtypes tell, and most operations have that of another
one. So what was decided for that one is known by them, and another row is but addresses.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from mmap import PAGESIZE
from sys import getrefcount
from typing import Any

import numpy as np

from tapegrad.compilation.events.events import ARGUMENT, LIVE, OPERAND_KINDS, RESULT, Event, Events
from tapegrad.compilation.events.passive import Passive
from tapegrad.compilation.memory.values import NUMBERS, Packed, Values
from tapegrad.compilation.rows.rows import Rows
from tapegrad.compilation.rows.steps import Step
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address

PYTHON_NUMBERS = (float, int)  # which take the dtype of the result
Look = tuple[tuple[int, ...], tuple[int, ...], np.dtype]  # shape, strides and dtype


class Places:
    """Where the arguments and the values of a program are, and how they look, by their numbers.

    How something looks is a number, below 0 that of a small array that is there while it is asked for, and 0
    what is no array. Values that have places in sheets are known, others are to be noted in order.

    Attributes
    ----------
    at, seen
        The addresses and looks of all kinds.
    arrays
        The arrays.
    looks
        What the numbers mean.
    """

    def __init__(
        self, arguments: Sequence[Any], values: Values | Packed, brought: Sequence[Any] = ()
    ) -> None:
        self._known: dict[Look, int] = {}
        self.looks: dict[int, Look] = {}
        self.arrays: dict[int, Any] = {ARGUMENT: arguments, RESULT: values, LIVE: brought}
        self.at = {kind: array("q") for kind in self.arrays}
        self.seen = {kind: array("i") for kind in self.arrays}
        for kind, known in ((ARGUMENT, arguments), (LIVE, brought)):
            for k in range(len(known)):
                self._note(kind, k, 1)
        if type(values) is Packed:
            forms, numbers, places = values.places()
            whole = [(shape, np.empty(shape, dtype).strides, dtype) for shape, dtype in forms]
            looks = [self._number(look, -1) for look in whole]
            self.at[RESULT].frombytes(places.tobytes())
            self.seen[RESULT].frombytes(np.array([*looks, 0], np.int32)[numbers].tobytes())

    def _number(self, look: Look, sign: int) -> int:
        number = sign * self._known.setdefault(look, len(self._known) + 1)
        self.looks[number] = look
        return number

    def note(self, k: int) -> None:
        """Know of the value of an event."""
        self._note(RESULT, k, -1 if self.arrays[RESULT].is_packed(k) else 1)

    def note_all(self) -> None:
        """Know of all values."""
        values, seen = self.arrays[RESULT], self.seen[RESULT]
        for k in range(len(values)):
            if k >= len(seen) or not seen[k]:
                self.note(k)

    def look(self, kind: int, k: int) -> Look:
        """How an argument or a value looks."""
        return self.looks[self.seen[kind][k]]

    def _note(self, kind: int, k: int, sign: int) -> None:
        x, at, seen = self.arrays[kind][k], self.at[kind], self.seen[kind]
        place, look = 0, 0
        if isinstance(x, np.ndarray):
            place, look = abi.address(x), self._number((x.shape, x.strides, x.dtype), sign)
        if k < len(at):
            at[k], seen[k] = place, look
        else:
            at.append(place)
            seen.append(look)


class Forms:
    """Forms of rows by what these are for: another row of one is but words."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._known: dict[tuple[Any, ...], tuple[Address, Step]] = {}

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return key in self._known

    def again(
        self, key: tuple[Any, ...], words: list[Address], reads: Sequence[Any], writes: Sequence[Any]
    ) -> None:
        """Add a row of a known form; its step has those arrays that are to be kept."""
        form, step = self._known[key]
        if reads or writes:
            step = Step(step.kind, step.function, tuple(reads), tuple(writes), step.extent)
        self._rows.again(form, words, step)

    def learn(self, key: tuple[Any, ...], words: list[Address]) -> None:
        """Know the form of the latest row, if that has these words alone, so that it touches nothing else."""
        rows = self._rows
        form, *found = rows.words[rows.starts[-1] :]
        if found == words:
            self._known[key] = form, rows.steps[len(rows) - 1]._replace(reads=(), writes=())


class RowForms:
    """Rows of operations without attributes that are one loop of NumPy's.

    Parameters
    ----------
    arguments, events, rows
        Those of a program.
    bring
        Gives and keeps a buffer for a number of Python's that a call brings, by its dtype.
    """

    def __init__(
        self, arguments: Sequence[np.ndarray], events: Events, rows: Rows,
        bring: Callable[[Any, np.dtype], np.ndarray],
    ) -> None:  # fmt: skip
        self._places, self._events, self._rows = Places(arguments, events.values), events, rows
        self._bring, self._forms = bring, Forms(rows)
        self._asked: tuple[tuple[Any, ...], list[Address]] | None = None  # where there was none

    def add(self, k: int) -> bool:
        """Whether an event is as one before, and has its row now; its value has got its place."""
        events, places = self._events, self._places
        if k == len(places.at[RESULT]):
            places.note(k)
        op, mine = events.ops[k], places.seen[RESULT][k]
        key: list[Any] = [id(op), mine]
        at: list[Address] = []
        reads: list[Any] = []
        numbers: list[tuple[int, int, Any]] = []  # of Python's: their places in these, and what they are
        for place in events.places(k):
            kind, number = place % OPERAND_KINDS, place // OPERAND_KINDS
            if kind == LIVE:
                kind, x = events.sources[number]
                if kind != LIVE or type(x) not in PYTHON_NUMBERS or isinstance(op, Passive):
                    return False
                numbers.append((len(at), len(reads), x))
                key.append(type(x))
                at.append(0)
                reads.append(x)
                continue
            look = places.seen[kind][number]
            key.append(look)
            at.append(places.at[kind][number])
            if look > 0:
                reads.append(places.arrays[kind][number])
        at.append(places.at[RESULT][k])
        if tuple(key) not in self._forms:
            self._asked = tuple(key), at
            return False
        for place, q, x in numbers:
            reads[q] = self._bring(x, places.looks[mine][2])
            at[place] = abi.address(reads[q])
        self._forms.again(tuple(key), at, reads, (places.arrays[RESULT][k],) if mine > 0 else ())
        return True

    def learn(self, k: int, first: int, brought: Sequence[Any]) -> None:
        """Know the row that an event has got, the one from the first on, and where its value is."""
        rows, asked, self._asked = self._rows, self._asked, None
        self._places.note(k)
        if asked is None or len(rows) != first + 1 or rows.steps[first].kind != layout.BY_LOOP:
            return
        key, at = asked
        buffers = iter(brought)
        self._forms.learn(key, [x or abi.address(next(buffers)) for x in at])


def _references(events: Events, k: int) -> int:
    x = events.values[k]
    return getrefcount(x)


REFERENCES = _references(Events([Event(None, (), {}, np.empty(1), False)]), 0)  # to an event's alone


def is_placed(events: Events, k: int) -> bool:
    """Whether the value of an event is an array that nobody else has, so that it can be a buffer."""
    if events.values.is_packed(k) or not events.is_known(k):
        return events.values.is_packed(k)
    x = events.values[k]
    if isinstance(x, NUMBERS):
        events.values[k] = np.array(x)
        return True
    if type(x) is not np.ndarray or x.nbytes >= PAGESIZE:  # whose pages are not its own
        return False
    has_memory = bool(x.flags.carray and x.flags.owndata)
    del x
    return has_memory and _references(events, k) == REFERENCES
