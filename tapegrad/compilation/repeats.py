"""Repeats: rows over numbers that do the same turn by turn, as those of a loop in the user's Python.

What a row reads is told by the row that has given it, as memory is used again: so two turns are alike if
their rows have the same forms, wherever the numbers of each lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds

from tapegrad.compilation import background
from tapegrad.compilation.rows import Block, Form, Rows
from tapegrad.kernels.replay import layout

FEWEST_TURNS = 8  # of rows that are a loop
NARROWEST, WIDER = 8, 4  # rows that are looked for again: so many, and so many times as many
LONGEST_TURN = 1024  # rows, as that is how long a text LLVM gets
MOST_TOUCHED = 8  # numbers that rows over arrays touch, for each row
COUNT = np.int32  # of rows and accesses, of which there may be many
OUTSIDE = -1  # no row: what was there before all of them
WIDTH, ITEMSIZE = 8, 16  # bytes of a number, and of an element at most


class Repeat(NamedTuple):
    """Rows from one on that are so many turns of a period."""

    begin: int
    period: int
    turns: int

    @property
    def end(self) -> int:
        """The row behind them."""
        return self.begin + self.period * self.turns


def find_repeats(tokens: np.ndarray) -> list[Repeat]:
    """Find repeats in rows that are alike if their tokens are, in order; what covers most is taken first."""
    free, found = np.ones(len(tokens), bool), []
    candidates = sorted(_repeats(tokens), key=lambda x: (x.begin - x.end, x.period, x.begin))
    for begin, period, turns in candidates:
        background.pause()
        edges = np.diff(free[begin : begin + period * turns].astype(np.int8), prepend=0, append=0)
        for low, high in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
            turns = int(high - low) // period
            if turns >= FEWEST_TURNS:
                found.append(Repeat(begin + int(low), period, turns))
                free[found[-1].begin : found[-1].end] = False
    return sorted(found)


def _repeats(tokens: np.ndarray) -> Iterator[Repeat]:
    """All that the latest place tells where rows before have begun alike, by hashes of windows."""
    n = len(tokens)
    draw = np.random.default_rng(0).integers
    base = 0x9E3779B97F4A7C15
    numbers = draw(0, 1 << 63, int(tokens.max(initial=0)) + 1).astype(np.uint64)[tokens]
    powers, inverses = (
        np.cumprod(np.full(n + 1, x, np.uint64)) for x in (base, pow(base, -1, 1 << 64))
    )  # which wrap
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(numbers * powers[:n])])
    width = NARROWEST
    while 2 * width <= n:
        background.pause()
        hashes = (sums[width:] - sums[:-width]) * inverses[: n - width + 1]
        order = np.argsort(hashes, kind="stable")
        same = hashes[order[1:]] == hashes[order[:-1]]
        back = np.zeros(len(hashes), np.int64)
        back[order[1:][same]] = np.diff(order)[same]
        edges = np.flatnonzero(np.diff(back, prepend=-1, append=-1))
        begins, periods, lengths = edges[:-1], back[edges[:-1]], np.diff(edges) + width - 1
        wanted = (periods > 0) & (periods <= LONGEST_TURN) & (lengths >= (FEWEST_TURNS - 1) * periods)
        for begin, period, length in zip(
            *(x[wanted].tolist() for x in (begins, periods, lengths)), strict=True
        ):
            repeat = Repeat(begin - period, period, length // period + 1)
            again = slice(repeat.begin + period, repeat.end)
            if np.array_equal(tokens[again], tokens[repeat.begin : repeat.end - period]):
                yield repeat
        width *= WIDER


class Part(NamedTuple):
    """Rows of a table from one to another; errors of numbers in them may be `reported`."""

    rows: Rows
    begin: int
    end: int
    reported: bool


class Reading:
    """Which values rows read and write.

    Attributes
    ----------
    parts
        The rows, which are counted from 0 on through all of them.
    tokens
        Those of two rows are equal if they do the same to numbers.
    forms
        Of tokens below their number.
    first
        The first access of each row, and behind the last row their number; a row over arrays has none.
    address
        Of each access.
    row
        Of which it is.
    is_write, is_truth
        Of each access; a truth value is a byte.
    source
        Of what is read the row that has given it, or OUTSIDE; of what is written the row itself.
    others
        What rows over arrays and outputs read, or write to, among the numbers: reader, source and address.
    computed
        Where doubles are written before they are read.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.count = sum(part.end - part.begin for part in parts)
        self.forms: list[Form] = []
        found, before = [], 0
        for part in parts:
            found.append(self._part(part, before))
            before += part.end - part.begin
            background.pause()
        self.tokens, counts, self.address, self.row, self.is_write, self.is_truth = map(
            np.concatenate, zip(*found, strict=True)
        )
        self._alone = np.flatnonzero(self.tokens < 0)
        self.tokens[self._alone] = len(self.forms) + np.arange(len(self._alone))
        self.first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    def find_sources(self, outputs: Sequence[tuple[int, int]]) -> bool:
        """Find what gives each number, and what outputs are; False where rows over arrays touch too many."""
        others = self._others(outputs)
        if others is not None:
            self._sort(others)
        return others is not None

    def _part(self, part: Part, before: int) -> tuple[np.ndarray, ...]:
        """Of rows the tokens and how many operands they have, and of these what is told of accesses."""
        rows, begin, end, _ = part
        starts = np.frombuffer(rows.starts, np.int32)[begin:end]
        at, which = np.unique(rows.table[starts + layout.ROW_FORM], return_inverse=True)
        forms = [rows.form_at(int(x)) for x in at]
        ours = np.array([is_of_numbers(form) for form in forms], bool)
        number = np.where(ours, len(self.forms) + np.cumsum(ours) - 1, -1)
        self.forms += [form for form in forms if is_of_numbers(form)]
        counted = np.where(ours, [form.key[layout.FORM_COUNT] for form in forms], 0)
        written = np.array([written_by(form) for form in forms])
        kinds = [form.kinds.ljust(layout.ROW_OPERANDS)[: layout.ROW_OPERANDS] for form in forms]
        truths = np.array([[kind == "?" for kind in each] for each in kinds])
        counts = counted[which]
        local = np.repeat(np.arange(end - begin, dtype=COUNT), counts)
        operand = np.arange(counts.sum(), dtype=COUNT)
        operand -= np.repeat((np.cumsum(counts) - counts).astype(COUNT), counts)
        address, form = rows.table[starts[local] + layout.ROW_PLACES + operand], which[local]
        return number[which], counts, address, local + before, operand == written[form], truths[form, operand]

    def _others(self, outputs: Sequence[tuple[int, int]]) -> list[tuple[np.ndarray, int, bool]] | None:
        """Which numbers are touched by other rows, and outputs, as read behind all: where, by which, whether
        it writes; None if that is too much.

        What they write to counts as read before, as they may leave some of it as it is.
        """
        numbers = np.unique(self.address)
        found: list[tuple[np.ndarray, int, bool]] = []
        left = MOST_TOUCHED * self.count
        for low, high, k, write in (*self._touched(), *((*x, self.count, False) for x in outputs)):
            background.pause()
            here = numbers[np.searchsorted(numbers, low - WIDTH + 1) : np.searchsorted(numbers, high)]
            left -= len(here)
            if left < 0:
                return None
            found += [(here, k, False), (here, k, True)] if write else [(here, k, False)]
        return found

    def _touched(self) -> Iterator[tuple[int, int, int, bool]]:
        """What rows over arrays touch: from where, to where, which of them, whether it writes."""
        for k in self._alone.tolist():
            part, row = self.locate(k)
            yield from ((low, high, k, write) for low, high, write in _ranges(part.rows, row))

    def locate(self, k: int) -> tuple[Part, int]:
        """Return which part a row is of, and its number in the table."""
        for part in self.parts:
            if k < part.end - part.begin:
                break
            k -= part.end - part.begin
        return part, part.begin + k

    def _sort(self, others: Sequence[tuple[np.ndarray, int, bool]]) -> None:
        """Find of each access which row has given the number."""
        address = np.concatenate([self.address, *(x for x, _, _ in others)])
        row = np.concatenate([self.row, *(np.full(len(x), k, COUNT) for x, k, _ in others)])
        write = np.concatenate([self.is_write, *(np.full(len(x), w) for x, _, w in others)])
        order = np.lexsort((2 * row + write, address)).astype(COUNT)
        background.pause()
        place = np.arange(len(order), dtype=COUNT)
        first = np.diff(address[order], prepend=-1) != 0
        begins = np.maximum.accumulate(np.where(first, place, 0))
        latest = np.maximum.accumulate(np.where(write[order], place, -1))
        source = np.empty(len(order), COUNT)
        source[order] = np.where(latest >= begins, row[order][latest], OUTSIDE)
        n = len(self.address)
        self.source, read = source[:n], ~write[n:]
        self.others = row[n:][read], source[n:][read], address[n:][read]
        begun = order[first & write[order]]
        begun = begun[begun < n]
        self.computed = address[begun[~self.is_truth[begun]]]


def count_of_numbers(part: Part) -> int:
    """How many rows of a table compute numbers of some."""
    rows, begin, end, _ = part
    starts = np.frombuffer(rows.starts, np.int32)[begin:end]
    at, counts = np.unique(rows.table[starts + layout.ROW_FORM], return_counts=True)
    return sum(n for x, n in zip(at.tolist(), counts.tolist(), strict=True) if is_of_numbers(rows.form_at(x)))


def is_of_numbers(form: Form) -> bool:
    """Whether rows of a form compute a double, or a truth value, of some, or do nothing at all."""
    kind, function, _, extent = form.key[:4]
    if kind == layout.BY_LOOP and not function:
        return True
    doubles = bool(form.kinds) and set(form.kinds) <= {"d", "?"}
    return kind in (layout.BY_LOOP, layout.BY_KERNEL) and extent == 1 and doubles


def written_by(form: Form) -> int:
    """Which operand rows of a form write: a kernel the first one, a loop the last one."""
    return 0 if form.key[0] == layout.BY_KERNEL else form.key[layout.FORM_COUNT] - 1


def _ranges(rows: Rows, k: int) -> Iterator[tuple[int, int, bool]]:
    """Where a row reads and writes: from where, to where, and whether it writes there."""
    step, form = rows.steps[k], rows.form(k)
    if step.kind not in (layout.BY_LOOP, layout.BY_KERNEL):
        for arrays, write in ((step.reads, False), (step.writes, True)):
            for x in arrays:
                array = x.array if isinstance(x, Block) else x
                if array.size:
                    yield *byte_bounds(array), write
        return
    count, extent = form[layout.FORM_COUNT], form[layout.FORM_EXTENT]
    strides = form[layout.FORM_STRIDES :]
    out = written_by(rows.form_at(rows.word(k, layout.ROW_FORM)))
    for q in range(count):
        low = rows.word(k, layout.ROW_PLACES + q)
        yield low, low + (extent - 1) * max(strides[q], strides[count + q]) + ITEMSIZE, q == out
