"""The steps of a program in an order in which those over as many elements stand together."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds

from tapegrad.compilation.memory.pages import zeros
from tapegrad.compilation.rows.fusing import TYPES, can_emit
from tapegrad.compilation.rows.loops import INITIAL
from tapegrad.compilation.rows.rows import Rows, is_dense, step_of
from tapegrad.compilation.rows.steps import Step
from tapegrad.compilation.rows.stretching import Stretch, cut, stretch
from tapegrad.compilation.rows.table import Block
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address

MOST_TASKS = 128  # of a group
MOST_PARTS = 16  # of an operand that is copied by parts
PAUSE = 8  # steps after which another thread may go on
BLOCK = layout.PROGRAM_BLOCK


class Operand(NamedTuple):
    """Memory that a step reads or writes.

    No array, as counts of references to arrays tell whether anybody has kept one.
    """

    at: Address
    low: int
    high: int
    owner: int  # the array that it is a part of
    size: int
    itemsize: int
    char: str
    is_number: bool
    is_dense: bool
    is_block: bool = False
    step: int = 0  # by how many bytes its elements lie apart, if not side by side
    stretch: Stretch | None = None  # to what a group has, if it has fewer elements

    def overlaps(self, other: Operand) -> bool:
        """Whether they have memory in common."""
        return self.owner == other.owner and self.low < other.high and other.low < self.high

    def covers(self, other: Operand) -> bool:
        """Whether each byte of another one is one of this."""
        return self.is_dense and self.low <= other.low and other.high <= self.high

    def is_each(self, extent: int) -> bool:
        """Whether it has an element for each of those of a group."""
        return self.is_block or (self.size == extent and (self.is_dense or self.step > 0))

    @property
    def is_constant(self) -> bool:
        """Whether it has one number for all elements of a group, or of each block."""
        return self.stretch is None or self.stretch.is_number

    def advance(self, extent: int) -> tuple[int, int, int]:
        """By how many bytes it advances for an element, and besides after how many elements, by how many."""
        if self.stretch is None:
            return self.place(extent)[1], 1, 0
        each, unit, more = self.stretch.advance
        return each * self.itemsize, unit, more * self.itemsize

    def place(self, extent: int) -> tuple[Address, int, int]:
        """Where it is, by how many bytes it advances for an element, and the stride of a loop."""
        if self.is_block:
            return self.at, 0, self.itemsize
        alone = self.is_number or self.size != extent
        each = self.step or self.itemsize
        return (self.at, 0, 0) if alone else (self.at, each, each)


def describe(x: Any) -> Operand:
    """Describe an array or a block."""
    array: np.ndarray = x.array if isinstance(x, Block) else x
    at, dense = abi.address(array), is_dense(array)
    low, high = (at, at + array.nbytes) if dense else byte_bounds(array) if array.size else (at, at)
    return Operand(
        at, low, high, id(abi.owner_of(array)), array.size, array.itemsize, array.dtype.char,
        array.ndim == 0, dense, isinstance(x, Block), 0 if dense else step_of(array),
    )  # fmt: skip


class Item:
    """A step by itself, or a group of steps over as many elements."""

    def __init__(self, place: int, extent: int = 0, char: str = "") -> None:
        self.place, self.extent, self.char = place, extent, char
        self.work: list[Work] = []
        self.blocks: list[int] | None = None  # where they begin, and the end, if some operand is stretched

    def takes(self, work: Work) -> bool:
        """Whether a step may be one of the group, by how many elements it has and how it reads them."""
        if self.extent != work.extent or len(self.work) >= MOST_TASKS:
            return False
        if work.char != self.char and "?" not in (work.char, self.char):
            return False
        if self.blocks is None and not any(work.stretches):
            return True
        every = [*self.work, work]
        if self.extent > BLOCK and any(w.is_sum for w in every):
            return False
        return cut(self.extent, (x for w in every for x in w.stretches)) is not None

    def add(self, work: Work) -> None:
        """Take a step."""
        self.work.append(work)
        self.char = work.char if self.char == "?" else self.char
        stretches = [x for w in self.work for x in w.stretches]
        self.blocks = cut(self.extent, stretches) if stretches else None


class Work(NamedTuple):
    """A step to be placed: which row of which rows, whether errors of numbers in it are told."""

    rows: Rows
    row: int
    reported: bool
    kind: int
    function: Any
    extent: int  # of its group; 0 where it has none
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    is_sum: bool = False  # of all elements
    exact: bool = False  # with the bits of NumPy's
    divisor: Address = 0  # of a mean
    adds: bool = False  # each element to one of those that it writes

    @property
    def char(self) -> str:
        """The dtype of its floating-point numbers; that of truth values if it has no others."""
        return next((x.char for x in (*self.writes, *self.reads) if x.char != "?"), "?")

    @property
    def stretches(self) -> list[Stretch]:
        """How operands are stretched, or the result, one number for a row."""
        return [x.stretch for x in (*self.reads, *self.writes) if x.stretch is not None]


class Access(NamedTuple):
    """What an item does to memory."""

    operand: Operand
    item: Item
    writes: bool
    each: bool  # an element at a time


class Schedule:
    """Steps in an order in which those over as many elements stand together.

    Parameters
    ----------
    outputs
        What is to be there in the end.

    Attributes
    ----------
    items
        Groups and single steps.
    scratch
        Arrays that only these know.
    """

    def __init__(self, outputs: Iterable[Operand]) -> None:
        self.items: list[Item] = []
        self._outputs = {x.owner for x in outputs}
        self.scratch: list[np.ndarray] = []
        self._copies = Rows()  # of parts of arrays
        self._log: dict[int, list[Access]] = {}  # by owner, as the steps come
        # Of those the ones that a step may have to wait for: what a later one has written over waited itself.
        self._reads: dict[int, list[Access]] = {}
        self._writes: dict[int, list[Access]] = {}
        self._known: dict[int, Operand] = {}  # by ids of arrays, which the steps have
        self._numbers: dict[Address, Operand] = {}  # by where a block is the number that is all its elements

    def add(self, rows: Rows, begin: int, end: int, reported: bool) -> Iterator[None]:
        """Place the steps of rows."""
        for k in range(begin, end):
            step = rows.steps[k]
            if step.kind == layout.BY_ROWS:
                yield from self.add(step.function, 0, len(step.function), reported)
                continue
            called = step.kind == layout.BY_CALL
            grouped = None
            if called:
                grouped = self._copied(rows, k, reported, step) or _stretched(rows, k, reported, step)
                grouped = grouped or _adding(rows, k, reported, step)
            if grouped is not None:
                self._place(grouped)
            elif step.kind == layout.BY_CALL and self._is_joined(step, reported):
                pass
            elif step.function is not None:
                reads = [self._describe(x) for x in step.reads]
                writes = tuple(self._describe(x) for x in step.writes)
                if _is_spread(step, reads, writes):
                    self._numbers[writes[0].at] = reads[0]
                else:
                    reads = [self._numbers.get(x.at, x) if x.is_block else x for x in reads]
                    self._place(_work(rows, k, reported, step, tuple(reads), writes))
            if k % PAUSE == 0:
                yield

    def _describe(self, x: Any) -> Operand:
        """Describe an array or a block of a step, once for all steps that know it."""
        found = self._known.get(id(x))
        if found is None:
            found = self._known[id(x)] = describe(x)
        return found

    def _copied(self, rows: Rows, row: int, reported: bool, step: Step) -> Work | None:
        """A call of a ufunc of operands that do not lie densely, as a step that reads copies of these.

        They are made by steps before it, by parts in which elements lie alike apart. None if there are none.
        """
        function, args = step.function
        if not isinstance(function, np.ufunc) or len(args) != function.nin + 1:
            return None
        copies = [(once, zeros(once.shape, once.dtype)) for once in map(_once, args[:-1]) if _is_of_few(once)]
        if not copies:
            return None
        left = iter(copies)
        given = [np.broadcast_to(next(left)[1], x.shape) if _is_of_few(_once(x)) else x for x in args[:-1]]
        grouped = _stretched(rows, row, reported, step._replace(function=(function, (*given, args[-1]))))
        for x, copied in copies if grouped is not None else ():
            self.scratch.append(copied)
            for part, window in zip(x, copied, strict=True):
                self._place_copy(part, window, reported)
        return grouped

    def _place_copy(self, part: np.ndarray, window: np.ndarray, reported: bool) -> None:
        """Place a step that copies an array to another one."""
        k = len(self._copies)
        self._copies.loop(np.positive, [part], window, part.size)
        given = (describe(part),), (describe(window),)
        self._place(Work(self._copies, k, reported, layout.BY_LOOP, np.positive, part.size, *given))

    def _is_joined(self, step: Step, reported: bool) -> bool:
        """Whether a step that joins arrays one behind the other has been placed as copies of these."""
        function, args = step.function
        if function is not np.concatenate:
            return False
        parts, axis, out = args
        if any(n != 1 for n in out.shape[:axis]) or not all(map(is_dense, (*parts, out))):
            return False
        begin, found = 0, out.reshape(-1)
        for part in parts:
            window = found[begin : begin + part.size]
            begin += part.size
            if part.size:
                self._place_copy(part, window, reported)
        return True

    def _place(self, work: Work) -> None:
        """Place a step behind all that it has to wait for."""
        extent = work.extent
        last, joinable = self._latest(work)
        item = None
        if extent:
            item = last if last is not None and joinable and last.takes(work) else None
            if item is None:
                behind = self.items[0 if last is None else last.place + 1 :]
                item = next((x for x in reversed(behind) if x.takes(work)), None)
        if item is None:
            early = extent <= 1 or (last is None and work.writes[0].owner in self._outputs)
            at = (0 if last is None else last.place + 1) if early else len(self.items)
            item = Item(at, extent, work.char)
            self.items.insert(at, item)
            for k in range(at, len(self.items)):
                self.items[k].place = k
        item.add(work)
        for x, writes in touched(work):
            access = Access(x, item, writes, x.is_each(extent))
            self._log.setdefault(x.owner, []).append(access)
            if writes:
                for known in (self._reads, self._writes):
                    known[x.owner] = [old for old in known.get(x.owner, ()) if not x.covers(old.operand)]
            (self._writes if writes else self._reads).setdefault(x.owner, []).append(access)

    def _latest(self, work: Work) -> tuple[Item | None, bool]:
        """The last item to wait for, and whether it may be joined."""
        last, joinable = None, True
        for x, writes in touched(work):
            found = self._writes.get(x.owner, [])
            for known in found + self._reads.get(x.owner, []) if writes else found:
                if not x.overlaps(known.operand):
                    continue
                same = (x.low, x.high) == (known.operand.low, known.operand.high)
                fits = same and known.each and x.is_each(work.extent)
                if last is None or known.item.place > last.place:
                    last, joinable = known.item, fits
                elif known.item is last:
                    joinable = joinable and fits
        return last, joinable

    def computed(self) -> Iterator[Operand]:
        """Where floating-point numbers are that the steps compute before they read any of them."""
        for log in self._log.values():
            if log[0].writes:
                yield from (known.operand for known in log if known.writes and known.operand.char in "dfDF")


def touched(work: Work) -> list[tuple[Operand, bool]]:
    """What a step touches, and whether it writes there."""
    return [(x, False) for x in work.reads] + [(x, True) for x in work.writes]


def _stretched(rows: Rows, row: int, reported: bool, step: Step) -> Work | None:
    """A call of a ufunc of which an operand is stretched, as a step of a group; None where it is none."""
    function, args = step.function
    out = args[-1]
    if not isinstance(function, np.ufunc) or len(args) != function.nin + 1 or function.nout != 1:
        return None
    given = [_once(x) for x in args[:-1]]
    kinds = {x.dtype.char for x in (*given, out)} - {"?"}
    if len(kinds) != 1 or not kinds.issubset(TYPES) or not all(map(is_dense, (*given, out))):
        return None
    alone = all(x.ndim == 0 for x in (*given, out))
    if not (alone or out.size > 1) or not can_emit(function, *kinds):
        return None
    reads = []
    for x in given:
        how = None if x.size in (1, out.size) else stretch(x, out.shape)
        if x.size not in (1, out.size) and (how is None or x.dtype.char == "?"):
            return None
        reads.append(describe(x)._replace(stretch=how))
    work = Work(rows, row, reported, layout.BY_LOOP, function, out.size, tuple(reads), (describe(out),))
    return work if Item(0, out.size, work.char).takes(work) else None


def _adding(rows: Rows, row: int, reported: bool, step: Step) -> Work | None:
    """Sums along axes, as a step of a group; None where the call is none, or NumPy's order is another."""
    function, args = step.function
    if function != np.add.reduce or len(args) != len(("x", "axis", "dtype", "out", "keepdims")):
        return None
    x, axes, out = args[0], args[1], args[3]
    if not isinstance(axes, tuple) or x.dtype != out.dtype or not (is_dense(x) and is_dense(out)):
        return None
    moved = sorted(d % x.ndim for d in axes if x.shape[d] != 1)
    if out.dtype.char not in TYPES or not moved or moved != [*range(moved[0], moved[-1] + 1)]:
        return None
    run, size = math.prod(x.shape[moved[-1] + 1 :]), x.size
    unit = run * math.prod(x.shape[d] for d in moved)
    if not 0 < unit <= size or (run > BLOCK and unit != size):
        return None
    if reported and (run == 1 or not adds_in_order(out.dtype.char)):
        return None
    rows_of = describe(out)._replace(stretch=Stretch(unit, run))
    work = Work(rows, row, reported, layout.BY_LOOP, np.add, size, (describe(x),), (rows_of,), adds=True)
    return work if Item(0, size, work.char).takes(work) else None


@functools.cache
def adds_in_order(char: str) -> bool:
    """Whether sums of NumPy's along an axis that is not the last add what is summed one after the other."""
    x = np.random.default_rng(0).normal(size=(3, 391, 37)).astype(char)
    x[0] = -0.0
    for part in (x, x[:, :, :2].copy()):
        total = np.full((3, part.shape[2]), INITIAL, char)
        for k in range(x.shape[1]):
            total = total + part[:, k]
        if np.add.reduce(part, (1,)).tobytes() != total.tobytes():
            return False
    return True


def _once(x: np.ndarray) -> np.ndarray:
    """What an array shows, each element once."""
    if x.ndim == 0 or x.size == 0:
        return x
    return x[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.strides)]


def _is_of_few(x: np.ndarray) -> bool:
    """Whether an array consists of a few parts in which elements lie alike apart, but not side by side."""
    if x.dtype.char not in TYPES or x.ndim < 2 or len(x) > MOST_PARTS or not x.size:
        return False
    return not step_of(x) and all(map(step_of, x))


def _is_spread(step: Step, reads: Sequence[Operand], writes: Sequence[Operand]) -> bool:
    """Whether a step makes a block of a number."""
    loop = step.kind == layout.BY_LOOP and step.function is np.positive and step.extent > 1
    return loop and writes[0].is_block and reads[0].is_number


def _work(
    rows: Rows, row: int, reported: bool, step: Step, reads: tuple[Operand, ...], writes: tuple[Operand, ...]
) -> Work:
    """A step as it is to be placed; sums of all elements as such: one of NumPy's, or what is added to."""
    known = Work(rows, row, reported, step.kind, step.function, step.extent, reads, writes)
    out = writes[0]
    if step.kind == layout.BY_REDUCTION:
        ufunc, divisor = step.function
        if ufunc is not np.add:
            return known._replace(extent=0)
        at = 0 if divisor is None else abi.address(divisor)
        return known._replace(function=np.add, extent=reads[0].size, is_sum=True, exact=True, divisor=at)
    if step.kind == layout.BY_SUMS:
        column = out._replace(stretch=Stretch(reads[0].size // out.size, 1))
        grouped = known._replace(extent=reads[0].size, writes=(column,))
        fits = out.size < grouped.extent and Item(0, grouped.extent, out.char).takes(grouped)
        return grouped if fits else known._replace(extent=0)
    if step.extent > 1 and out.is_number:
        if step.function is not np.add or reads[0] != out:
            raise ValueError(f"row {row} gives one number for all elements")
        return known._replace(reads=reads[1:], is_sum=True)
    return known


def splits(n: int) -> list[int]:
    """Where blocks of n elements begin, and the end: halves as NumPy's sums have them, of 8 each."""
    if n <= BLOCK:
        return [0, n]
    half = n // 2 - n // 2 % 8
    return splits(half)[:-1] + [half + k for k in splits(n - half)]
