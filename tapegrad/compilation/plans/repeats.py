"""Repeats: rows over a few numbers that do the same turn by turn, as those of a loop in the user's Python.

What a row reads is told by the row that has given it, as memory is used again: so two turns are alike if
their rows have the same forms, wherever the numbers of each lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds

from tapegrad.compilation import background
from tapegrad.compilation.rows.rows import Rows
from tapegrad.compilation.rows.steps import FORGOTTEN
from tapegrad.compilation.rows.table import Block, Form
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address

FEWEST_TURNS = 8  # of rows that are a loop
NARROWEST, WIDER = 8, 4  # rows that are looked for again: so many, and so many times as many
LONGEST_TURN = 1024  # rows, as that is how long a text LLVM gets
MOST_ELEMENTS = 64  # of rows that may be in a loop; others are not slow by themselves
MOST_PIECES = 8  # that memory falls into where rows share some of it, for each row
COUNT = np.int32  # of rows and accesses, of which there may be many
SPAN = np.int16  # of bytes of a few elements
OUTSIDE = -1  # no row: what was there before all of them
SIZES = {"?": 1, "d": 8}  # bytes of an element, by dtype
LARGEST = 16  # bytes of an element of any
SOME_ROWS, SOME_ACCESSES = 1 << 13, 1 << 15  # looked at at once, as that takes memory
SAMPLES = 64  # addresses of so many accesses that tell which these are


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
    numbers = draw(0, 1 << 63, int(tokens.max(initial=0)) + 1).astype(np.uint64)
    sums = np.zeros(n + 1, np.uint64)
    np.cumprod(np.full(n, base, np.uint64), out=sums[1:])  # of powers, which wrap
    sums[1:] *= numbers[tokens]
    np.cumsum(sums, out=sums)
    inverses = np.cumprod(np.full(n + 1, pow(base, -1, 1 << 64), np.uint64))
    width = NARROWEST
    while 2 * width <= n:
        background.pause()
        hashes = sums[width:] - sums[:-width]
        hashes *= inverses[: n - width + 1]
        order = np.argsort(hashes, kind="stable").astype(COUNT)
        same = hashes[order[1:]] == hashes[order[:-1]]
        back = np.zeros(len(hashes), COUNT)
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
        Those of two rows are equal if they do the same to as many elements.
    forms
        Of tokens below their number.
    first
        The first access of each row, and behind the last row their number; a row of no form has none.
    address
        Of each access: this and what follows are there once sources are found.
    source
        Of what is read the row that has given it, as a whole, or OUTSIDE; of what is written the row itself.
        Where others have given parts of it the latest row.
    is_shared
        Whether some access has another part of the same memory.
    others
        What other rows and outputs read as rows have given it: by which, and where; in parts, as these two:
    pieces
        Of what is read of more than one row, or of part of what one has given: the access, of rows of no form
        the number of all, and a row that has given some of it.
    computed
        Where doubles are written before they are read, and how many bytes.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.count = sum(part.end - part.begin for part in parts)
        self.forms: list[Form] = []
        tokens, counts = zip(*map(self._forms, parts), strict=True)
        self.tokens = np.concatenate(tokens).astype(COUNT)
        self._written = np.array([written_by(form) for form in self.forms], np.int8)
        self._spans = np.zeros((len(self.forms), layout.ROW_OPERANDS), SPAN)
        self._truths = np.zeros(self._spans.shape, bool)
        for k, form in enumerate(self.forms):
            self._spans[k, : len(form.kinds)] = spans_of(form)
            self._truths[k, : len(form.kinds)] = [kind == "?" for kind in form.kinds]
        self._alone = np.flatnonzero(self.tokens < 0)
        self.tokens[self._alone] = len(self.forms) + np.arange(len(self._alone), dtype=COUNT)
        self.first = np.zeros(self.count + 1, COUNT)
        np.cumsum(np.concatenate(counts), dtype=COUNT, out=self.first[1:])

    def _forms(self, part: Part) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of rows, and how many accesses each has."""
        rows, begin, end, _ = part
        starts = np.frombuffer(rows.starts, np.int32)[begin:end]
        at, which = np.unique(rows.table[starts + layout.ROW_FORM], return_inverse=True)
        forms = [rows.form_at(int(x)) for x in at]
        ours = np.array([is_small(form) for form in forms], bool)
        number = np.where(ours, len(self.forms) + np.cumsum(ours) - 1, -1)
        self.forms += [form for form in forms if is_small(form)]
        counted = np.where(ours, [form.key[layout.FORM_COUNT] for form in forms], 0)
        tokens, counts = number[which], counted[which]
        for k in np.flatnonzero([known and is_sum(form) for form, known in zip(forms, ours, strict=True)]):
            if forms[k].key[0] == layout.BY_LOOP:  # which is a sum if it adds to what it reads
                mine = np.flatnonzero(which == k)
                places = starts[mine] + layout.ROW_PLACES
                mine = mine[rows.table[places] != rows.table[places + written_by(forms[k])]]
                tokens[mine], counts[mine] = -1, 0
        background.pause()
        return tokens, counts

    def _read_addresses(self) -> None:
        """Note where each row reads and writes, of some rows at a time."""
        self.address = np.empty(int(self.first[-1]), np.int64)
        before = 0
        for rows, begin, end, _ in self.parts:
            starts = np.frombuffer(rows.starts, np.int32)
            for k in range(begin, end, SOME_ROWS):
                background.pause()
                some = np.arange(k, min(k + SOME_ROWS, end), dtype=COUNT)
                first = self.first[before + some[0] - begin : before + some[-1] - begin + 2]
                local = np.repeat(some, np.diff(first))
                mine = slice(int(first[0]), int(first[-1]))
                operand = np.arange(mine.start, mine.stop) - self.first[local + (before - begin)]
                self.address[mine] = rows.table[starts[local] + layout.ROW_PLACES + operand]
            before += end - begin

    def _rows(self, accesses: np.ndarray) -> np.ndarray:
        """The rows of accesses."""
        return np.searchsorted(self.first, accesses, "right") - 1

    def looks(
        self, accesses: np.ndarray, rows: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """How many bytes accesses, of such rows, have, which of them write, and which are of truth values."""
        rows = self._rows(accesses) if rows is None else rows
        token, operand = self.tokens[rows], accesses - self.first[rows]
        return self._spans[token, operand], self._written[token] == operand, self._truths[token, operand]

    def find_sources(self, outputs: Sequence[tuple[int, int]]) -> bool:
        """Find what gives each number, and what outputs are; False where rows share too much memory.

        What other rows write to counts as read before, as they may leave some of it as it is. Outputs are
        read behind all.
        """
        self._read_addresses()
        others = [(*x, self.count, False) for x in outputs if x[0] < x[1]]
        for low, high, k, writes in self._touched():
            others += [(low, high, k, write) for write in ((False, True) if writes else (False,))]
        n = len(self.address)
        self.source, self.is_shared = np.empty(n, COUNT), np.zeros(n, bool)
        self.computed: list[tuple[np.ndarray, np.ndarray]] = []
        self.others: list[tuple[np.ndarray, np.ndarray]] = []
        self.pieces: list[tuple[np.ndarray, np.ndarray]] = []
        lows, highs, by, writing = (np.array(x) for x in zip(*others, strict=True))
        edges = self._edges(lows, highs)
        for low, high in pairwise(edges):
            background.pause()
            mine = np.flatnonzero((self.address >= low) & (self.address < high)).astype(COUNT)
            theirs = (lows >= low) & (lows < high)
            if not self._find(mine, *(x[theirs] for x in (lows, highs, by, writing))):
                return False
        return True

    def _edges(self, lows: np.ndarray, highs: np.ndarray) -> list[int]:
        """Addresses between which so few accesses are that they may be looked at at once.

        No access, nor what is between lows and highs, is on both sides of one.
        """
        most, every = int(self._spans.max(initial=0)), max(SOME_ACCESSES // SAMPLES, 1)
        sampled = np.sort(self.address[::every])[:: SOME_ACCESSES // every]
        found = [0]
        for edge in sampled[1:].tolist():
            before = -1
            while edge > before:
                before = edge
                near = np.flatnonzero((self.address < edge) & (self.address > edge - most))
                spans, *_ = self.looks(near)
                ends = self.address[near] + spans, highs[lows < edge]
                edge = max(int(x.max(initial=edge)) for x in ends)
            found += [edge] if edge > found[-1] else []
        return [*found, np.iinfo(np.int64).max]

    def _find(
        self, mine: np.ndarray, lows: np.ndarray, highs: np.ndarray, by: np.ndarray, writing: np.ndarray
    ) -> bool:
        """Find what gives the numbers of such accesses; what others access besides is told as well."""
        n = len(mine)
        if not n + len(lows):
            return True
        rows = self._rows(mine)
        spans, written, truths = self.looks(mine, rows)
        at = np.concatenate([self.address[mine], lows])
        end = np.concatenate([self.address[mine] + spans, highs])
        row = np.concatenate([rows, by]).astype(COUNT)
        is_write = np.concatenate([written, writing])
        order = np.lexsort((2 * row + is_write, at)).astype(COUNT)
        reach = np.maximum.accumulate(end[order])
        first = np.concatenate([np.ones(1, bool), at[order[1:]] >= reach[:-1]])
        begins = np.flatnonzero(first)
        alike = (at[order[begins]] == np.maximum.reduceat(at[order], begins)) & (
            np.minimum.reduceat(end[order], begins) == np.maximum.reduceat(end[order], begins)
        )
        shared = ~np.repeat(alike, np.diff(begins, append=len(order)))
        source = np.empty(len(order), COUNT)
        latest = _latest(first, is_write[order])
        source[order] = np.where(latest >= 0, row[order[latest]], OUTSIDE)
        begun = order[first & is_write[order] & ~shared]
        begun = begun[begun < n]
        self._note_computed(self.address[mine[begun]], spans[begun], truths[begun])
        partly = np.zeros(len(order), bool)
        mixed = order[shared]
        if len(mixed):
            self.is_shared[mine[mixed[mixed < n]]] = True
            known = np.append(mine, np.full(len(lows), len(self.address)))
            if not self._split(known, mixed, at, end, row, is_write, source, partly):
                return False
        read = ~is_write[n:] & ~partly[n:]
        self.source[mine] = source[:n]
        self.others.append((source[n:][read], lows[read]))
        return True

    def _note_computed(self, address: np.ndarray, span: np.ndarray, is_truth: np.ndarray) -> None:
        """Know where doubles are written before they are read."""
        self.computed.append((address[~is_truth], span[~is_truth].astype(SPAN)))

    def _split(
        self, known: np.ndarray, mixed: np.ndarray, low: np.ndarray, high: np.ndarray, row: np.ndarray,
        write: np.ndarray, source: np.ndarray, partly: np.ndarray,
    ) -> bool:  # fmt: skip
        """Find sources of accesses that share memory, by the pieces of it between where some begin or end.

        These are `known` by their numbers. False where the pieces are too many.
        """
        low, high, row, write = (x[mixed] for x in (low, high, row, write))
        edges = np.unique(np.concatenate([low, high]))
        piece = np.searchsorted(edges, low)
        counts = np.searchsorted(edges, high) - piece
        if counts.sum() > MOST_PIECES * self.count:
            return False
        begins = np.cumsum(counts) - counts
        which = np.repeat(np.arange(len(mixed), dtype=COUNT), counts)
        piece = np.repeat(piece - begins, counts) + np.arange(len(which))
        order = np.lexsort(((2 * row + write)[which], piece))
        background.pause()
        first = np.diff(piece[order], prepend=-1) != 0
        latest = _latest(first, write[which[order]])
        giver = np.empty(len(which), COUNT)
        giver[order] = np.where(latest >= 0, which[order[latest]], -1)
        given = np.where(giver >= 0, row[giver], OUTSIDE)
        one = giver[begins]
        whole = np.minimum.reduceat(giver, begins) == np.maximum.reduceat(giver, begins)
        whole &= (one < 0) | ((low[one] == low) & (high[one] == high))
        source[mixed] = np.where(write, row, np.maximum.reduceat(given, begins))
        partly[mixed] = ~whole & ~write
        of_part = partly[mixed][which] & (giver >= 0)
        access = known[mixed[which]]
        self.pieces.append((access[of_part], given[of_part]))
        begun = order[first & write[which[order]]]
        begun = begun[access[begun] < len(self.address)]
        *_, truths = self.looks(access[begun])
        self._note_computed(edges[piece[begun]], np.diff(edges)[piece[begun]], truths)
        return True

    def _touched(self) -> Iterator[tuple[Address, Address, int, bool]]:
        """What rows of no form touch: from where, to where, which of them, whether it writes."""
        for k in self._alone.tolist():
            background.pause()
            part, row = self.locate(k)
            yield from ((low, high, k, write) for low, high, write in _ranges(part.rows, row))

    def forget(self) -> None:
        """Keep of accesses but where they are and what gives them."""
        del self.is_shared, self.others, self.pieces, self.tokens

    def locate(self, k: int) -> tuple[Part, int]:
        """Return which part a row is of, and its number in the table."""
        for part in self.parts:
            if k < part.end - part.begin:
                break
            k -= part.end - part.begin
        return part, part.begin + k


def _latest(first: np.ndarray, write: np.ndarray) -> np.ndarray:
    """Of accesses in order the latest write before each, or itself, of the same memory; -1 where none is."""
    place = np.arange(len(first), dtype=COUNT)
    begins = np.maximum.accumulate(np.where(first, place, 0))
    latest = np.maximum.accumulate(np.where(write, place, -1))
    return np.where(latest >= begins, latest, -1)


def count_alone(part: Part) -> int:
    """How many rows no repeat has, as they are not over a few elements."""
    rows = part.rows
    starts = np.frombuffer(rows.starts, np.int32)[part.begin : part.end]
    at, counts = np.unique(rows.table[starts + layout.ROW_FORM], return_counts=True)
    return sum(int(n) for x, n in zip(at, counts, strict=True) if not is_small(rows.form_at(int(x))))


def strides_of(form: Form) -> tuple[int, ...]:
    """By how many bytes a loop advances for an element of each operand."""
    count = form.key[layout.FORM_COUNT]
    return form.key[layout.FORM_STRIDES + count : layout.FORM_STRIDES + 2 * count]


def spans_of(form: Form) -> list[int]:
    """How many bytes each operand of a form of a few elements has."""
    extent = form.key[layout.FORM_EXTENT]
    return [
        SIZES[kind] * (extent if stride else 1)
        for kind, stride in zip(form.kinds, strides_of(form), strict=True)
    ]


def is_small(form: Form) -> bool:
    """Whether rows of a form compute a few doubles, or truth values, side by side, or do nothing at all."""
    kind, function, _, extent = form.key[:4]
    if kind == layout.BY_LOOP and not function:
        return True
    strides = strides_of(form)
    if not form.kinds or not set(form.kinds) <= set(SIZES) or not 0 < extent <= MOST_ELEMENTS:
        return False
    if extent == 1 and kind in (layout.BY_LOOP, layout.BY_KERNEL):
        return True
    if any(stride not in (0, SIZES[x]) for x, stride in zip(form.kinds, strides, strict=True)):
        return False
    if kind == layout.BY_KERNEL:
        return all(strides)
    return is_sum(form) or (kind == layout.BY_LOOP and strides[-1] != 0)


def is_sum(form: Form) -> bool:
    """Whether rows of a form add elements to a number, or reduce them in another way."""
    kind, extent = form.key[0], form.key[layout.FORM_EXTENT]
    if kind != layout.BY_LOOP:
        return kind == layout.BY_REDUCTION
    strides = strides_of(form)
    return extent > 1 and len(strides) == 3 and strides[0] == strides[2] == 0 != strides[1]


def written_by(form: Form) -> int:
    """Which operand rows of a form write: a kernel the first one, others the last one, but for a divisor."""
    kind, count = form.key[0], form.key[layout.FORM_COUNT]
    return {layout.BY_KERNEL: 0, layout.BY_REDUCTION: 2}.get(kind, count - 1)


def _ranges(rows: Rows, k: int) -> Iterator[tuple[int, int, bool]]:
    """Where a row reads and writes: from where, to where, and whether it writes there."""
    step, form = rows.steps[k], rows.form(k)
    if step.kind not in FORGOTTEN:
        for arrays, write in ((step.reads, False), (step.writes, True)):
            for x in arrays:
                array = x.array if isinstance(x, Block) else x
                if array.size:
                    yield *byte_bounds(array), write
        return
    count, extent = form[layout.FORM_COUNT], form[layout.FORM_EXTENT]
    strides, known = form[layout.FORM_STRIDES :], rows.form_at(rows.word(k, layout.ROW_FORM))
    sizes = [np.dtype(kind).itemsize for kind in known.kinds] or [LARGEST] * count
    for q in range(count):
        low = rows.word(k, layout.ROW_PLACES + q)
        yield low, low + (extent - 1) * max(strides[q], strides[count + q]) + sizes[q], q == written_by(known)
