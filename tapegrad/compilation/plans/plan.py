"""A plan: the rows of a program, forward and in reverse, in another order, in which groups are fused kernels.

What only a group knows is not written to memory.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tapegrad.compilation.explanation import several
from tapegrad.compilation.memory.arena import Arena, Use
from tapegrad.compilation.memory.pages import give_back, zeros
from tapegrad.compilation.plans.handing import place_of, sources_of, targets_of
from tapegrad.compilation.plans.prepared import Prepared
from tapegrad.compilation.plans.scheduling import (
    BLOCK,
    Access,
    Item,
    Operand,
    Schedule,
    Work,
    describe,
    splits,
    touched,
)
from tapegrad.compilation.plans.tiling import Part, Tiling
from tapegrad.compilation.programs.in_place import InPlace
from tapegrad.compilation.rows.fusing import can_emit, emit_kernel
from tapegrad.compilation.rows.loops import INITIAL, signature
from tapegrad.compilation.rows.rows import Rows
from tapegrad.compilation.rows.staging import Parameters, Task
from tapegrad.compilation.rows.stretching import Stretch
from tapegrad.compilation.rows.subnormals import Scaling, scaling
from tapegrad.compilation.rows.table import Block
from tapegrad.kernels import abi, assembly
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address


class Plan(Prepared):
    """Rows in another order.

    Attributes
    ----------
    kernels
        How many of its rows are fused kernels.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels = 0
        self.wholes: dict[Address, Operand] = {}  # by where a block is the array of all its elements
        self._blocks: dict[tuple[str, int], list[Operand]] = {}  # by what they hold, which groups share
        self._touched: dict[int, list[Access]] = {}  # by owner, in order
        self._loaded: dict[Any, Address] = {}  # kernels by what they are made of
        self._scaled: dict[str, Scaling] = {}  # by dtype

    def describe(self) -> str:
        """Tell what computes."""
        return f"computed by {several(self.kernels, 'fused kernel')}"

    def build(
        self, forward: tuple[Rows, int, int], reverse: tuple[Rows, int] | None, outputs: Sequence[Operand]
    ) -> Iterator[None]:
        """Make the rows, of those from one to another, and of those in reverse.

        Of these so many come before all others. Yields wherever somebody else may go on.
        """
        self.outputs = outputs
        cleared: set[int] = set()
        if reverse is not None:
            backward, ready = reverse
            for k in range(ready):
                self._repeat(backward, k, True)
                cleared |= {id(abi.owner_of(x)) for x in backward.steps[k].writes}
        tiling, computed = yield from self._scheduled(forward, reverse, cleared)
        yield from self._add_rows(tiling)
        self.arena = Arena(self._uses(tiling, cleared))
        del tiling
        yield
        self.rows.move(self.arena)
        self.rows.seal()
        self.place = place_of(self.rows, self.arena)
        self.borrows = self.place is not None
        give_back(self.arena.memory)  # up to the first run
        yield
        places = sorted(self.rows.addresses())  # of what is left where it was
        self._computed = [x for x in computed if bisect_left(places, x.low) < bisect_left(places, x.high)]
        self.arena.forget()
        self.wholes.clear()

    def _scheduled(
        self, forward: tuple[Rows, int, int], reverse: tuple[Rows, int] | None, cleared: set[int]
    ) -> Generator[None, None, tuple[Tiling, list[Operand]]]:
        """The steps in order, and where they write; what tells one from the other is let go of."""
        schedule = Schedule(self.outputs)
        yield from schedule.add(*forward, True)
        if reverse is not None:
            backward, ready = reverse
            yield from schedule.add(backward, ready, len(backward), False)
        self.rows.kept += schedule.scratch
        tiling = Tiling(schedule.items, {x.owner for x in self.outputs} | cleared)
        return tiling, [x for x in schedule.computed() if x.is_dense]

    def _add_rows(self, tiling: Tiling) -> Iterator[None]:
        """Add the rows of all items."""
        for item in tiling.items:
            for work in item.work:
                for x, writes in touched(work):
                    self._touched.setdefault(x.owner, []).append(Access(x, item, writes, False))
        for item in tiling.items:
            stack = tiling.stacks.get(item)
            for part in [item] if stack is None else stack.parts() if item is stack.items[0] else ():
                if part.extent:
                    yield from _Fused(self, part).build()
                else:
                    work = part.work[0]
                    self._repeat(work.rows, work.row, not work.reported)
                yield
        for known in (self._blocks, self._touched, self._loaded):
            known.clear()  # of which only a plan that is being made has need

    def _repeat(self, rows: Rows, k: int, silent: bool) -> None:
        """Add a row as it is; a product of a cotangent that may be scaled is."""
        self.rows.repeat(rows, k, silent)
        if rows.steps[k].kind == layout.BY_PRODUCT and rows.word(k, layout.SCALED_SIZE):
            char = rows.steps[k].writes[0].dtype.char
            if char not in self._scaled:
                self._scaled[char] = self.rows.keep(scaling(char))
            self.rows.write(layout.SCALED_BY, abi.address(self._scaled[char].words))

    def _uses(self, tiling: Tiling, cleared: set[int]) -> Iterator[list[Use]]:
        """What steps do to memory that nobody else knows, of one array after the other.

        An array that is `cleared` as a whole before all steps is none of these: it is written where it is.
        """
        uses: dict[int, list[Use]] = {}
        known = {x.owner for x in self.outputs} | cleared
        for item in tiling.items:
            stack = tiling.stacks.get(item)
            place = item.place if stack is None else stack.place
            for work in item.work:
                for x, writes in touched(work):
                    x = self.wholes.get(x.at, x) if x.is_block else x
                    if work.kind == layout.BY_PYTHON:
                        known.add(x.owner)
                    elif x.is_dense or not writes:
                        uses.setdefault(x.owner, []).append(
                            Use(place, x.low, x.high if stack is None else stack.end(x), writes)
                        )
        while uses:  # of which none is kept
            owner, found = uses.popitem()
            if owner not in known:
                yield found

    def is_wanted(self, x: Operand, item: Item) -> bool:
        """Whether anything but its group asks for what a step gives."""
        for known in self._touched.get(x.owner, ()):
            if known.item.place > item.place and x.overlaps(known.operand):
                if not known.writes:
                    return True
                if known.operand.covers(x):
                    return False
        return any(map(x.overlaps, self.outputs))

    def whole(self, block: Operand, extent: int) -> Operand:
        """An array for what other groups are to know of a block too."""
        if block.at not in self.wholes:
            whole = self.rows.keep(zeros((extent,), np.dtype(block.char)))  # of which the arena has the pages
            self.wholes[block.at] = describe(whole)
        return self.wholes[block.at]

    def block(self, char: str, n: int, k: int) -> Operand:
        """Block number k of a group of so many elements."""
        known = self._blocks.setdefault((char, min(n, BLOCK)), [])
        if k == len(known):
            known.append(describe(self.rows.keep(Block(np.dtype(char), n))))
        return known[k]

    def load(self, char: str, n: int, tasks: Sequence[Task], parameters: Parameters) -> Address:
        """Return where a kernel is, which equal groups have in common."""
        key = char, n, tuple(tasks), parameters
        if key not in self._loaded:
            address = assembly.load(emit_kernel(char, n, tasks, parameters))
            if not address:
                raise MemoryError(f"a process has {assembly.MOST_KERNELS} kernels at most")
            self._loaded[key] = address
        return self._loaded[key]

    def read_in_place(self, arrays: Iterable[InPlace]) -> None:
        """As of `Prepared`; most rows can be led to them."""
        self.sources, self.filled = sources_of(self.rows, arrays)
        self.borrows = self.borrows or bool(self.sources or self.filled)

    def hand_over(self, gradients: Sequence[np.ndarray | None]) -> None:
        """Write derivatives to memory of their own, which a call gives away, where that can be."""
        self.targets = targets_of(self.rows, gradients)
        self.borrows = self.borrows or bool(self.targets)
        given = [target.array for target in self.targets.values()]
        ranges = [(abi.address(x), abi.address(x) + x.nbytes) for x in given]
        self._computed = [
            x for x in self._computed if not any(low <= x.low < high for low, high in ranges)
        ]  # parts of them neither, as rows have computed these for the call at hand

    def spoil(self) -> None:
        """Make nan of all that the rows compute, so that it shows where one does not wait for another."""
        if self.place is None:
            self.arena.memory.fill(0xFF)
        else:
            self.place.fill(0xFF)
        for target in self.targets.values():
            target.array.view(np.uint8).fill(0xFF)
        for x in self._computed:
            ctypes.memset(x.low, 0xFF, x.high - x.low)


# Of an operand: where it is, how many elements it has, their dtype, and how it is stretched; of a block none.
Name = tuple[Address, int, str, Stretch | None]


class _Fused:
    """A group under construction: kernels, and between them the loops that are not fused."""

    def __init__(self, plan: Plan, item: Item) -> None:
        self.plan, self.item = plan, item
        self.n, self.char = item.extent, "d" if item.char == "?" else item.char
        self.blocks: Counter[str] = Counter()  # in use, by dtype
        self.levels: list[tuple[int, Work]] = []
        self.places: dict[Name, Operand] = {}  # where operands are, if not where they were
        self.stored: set[tuple[int, Name]] = set()  # what kernels, by their levels, write
        self.parts: dict[Name, Operand] = {}  # of sums
        self.part = item if isinstance(item, Part) else Part(item, 0, item.extent, {})

    def build(self) -> Iterator[None]:
        """Add the rows."""
        rows, exact = self.plan.rows, [w for w in self.item.work if w.exact]
        self._order()
        self._decide()
        for w in self.item.work:
            if w.adds:
                out, begin = w.writes[0], abi.address(rows.keep(np.array(INITIAL, self.char)))
                rows.divide()
                rows.loop_at(np.positive, self.char, [(begin, 0, 0), out.place(out.size)], out.size)
        rows.divide()
        first = len(rows)
        levels = {level for level, _ in self.levels} | ({0} if exact else set())
        for level in sorted(levels):
            work = [w for found, w in self.levels if found == level]
            if level % 2 == 0:
                self._kernel(level, work, exact if level == 0 else [])
                yield
            else:
                for w in work:
                    self._row(w)
        if self.item.blocks is not None:
            rows.in_blocks(first, self.item.blocks)
        elif self.parts and self.part.whole > BLOCK:
            begin = self.part.begin
            ends = [k - begin for k in splits(self.part.whole) if begin <= k <= begin + self.n]
            rows.in_blocks(first, ends)
        for w in self.item.work if self.part.begin + self.n == self.part.whole else ():
            if w.is_sum:
                out, room = w.writes[0], self.part.rooms[_name(w.writes[0])]
                begin = abi.address(rows.keep(np.array(INITIAL, self.char))) if w.exact else out.at
                rows.total([room.at, begin, out.at, w.divisor], out.itemsize, self.part.whole)

    def _order(self) -> None:
        """Levels: of kernels even, of other rows behind them odd."""
        written: dict[Name, int] = {}
        read: dict[Name, int] = {}
        for w in self.item.work:
            emitted = w.is_sum or w.adds or can_emit(w.function, self.char)
            plain = all(x.char in (self.char, "?") and not x.step for x in (*w.reads, *w.writes))
            fused = emitted and plain and not (w.exact or w.kind == layout.BY_SUMS)
            reads, writes = [_name(x) for x in w.reads], [_name(x) for x in w.writes]
            before = [written.get(x, 0) for x in (*reads, *writes)] + [read.get(x, 0) for x in writes]
            level = max(before)
            level += level % 2 != (not fused)
            self.levels.append((level, w))
            written |= dict.fromkeys(writes, level)
            read |= {x: max(read.get(x, 0), level) for x in reads}
            if w.is_sum:
                rooms, size = self.part.rooms, self.part.whole // w.writes[0].itemsize + 1
                if writes[0] not in rooms:  # a byte for an element
                    rooms[writes[0]] = describe(self.plan.rows.keep(np.zeros(size, self.char)))
                room = rooms[writes[0]]
                self.parts[writes[0]] = room._replace(at=room.at + self.part.begin)

    def _decide(self) -> None:
        """Say where results are: where they belong if anybody else wants them, else in a block."""
        read_at: dict[Name, set[int]] = {}
        inputs: set[Name] = set()
        seen: set[Name] = set()
        for level, w in self.levels:
            for read in map(_name, w.reads):
                read_at.setdefault(read, set()).add(level)
                inputs |= {read} - seen
            seen |= set(map(_name, w.writes))
        for level, w in self.levels:
            if w.is_sum or w.adds or w.kind == layout.BY_SUMS:
                continue
            x, name = w.writes[0], _name(w.writes[0])
            wanted = self.plan.is_wanted(x, self.item)
            if wanted and x.is_block:
                self.places[name] = self.plan.whole(x, self.n)
            elif not (wanted or x.is_block or name in inputs or name in self.places) and self.n > 1:
                self.places[name] = self._block(x.char)
            elsewhere = read_at.get(name, set()) - {level}
            if wanted or elsewhere or (w.reported and name not in read_at):
                self.stored.add((level, name))

    def _block(self, char: str) -> Operand:
        self.blocks[char] += 1
        return self.plan.block(char, self.n, self.blocks[char] - 1)

    def _place(self, x: Operand) -> Operand:
        return self.places.get(_name(x), self.plan.wholes.get(x.at, x) if x.is_block else x)

    def _kernel(self, level: int, work: Sequence[Work], cleared: Sequence[Work]) -> None:
        """Add a kernel of some steps; it clears the parts of sums that follow."""
        known: dict[Name, Operand] = {}
        numbers: list[Name] = []
        read: list[Name] = []
        written: list[Name] = []
        for w in work:
            for x in w.reads:
                if _name(x) not in known:
                    known[_name(x)] = x
                    alone = self.n > 1 and not x.is_each(self.n) and x.is_constant
                    (numbers if alone else read).append(_name(x))
            out = _name(w.writes[0])
            if w.adds:
                known[out] = w.writes[0]
            elif not w.is_sum:
                known[out] = w.writes[0]
                if (level, out) in self.stored and out not in written:
                    written.append(out)
        sums, added = (
            [_name(w.writes[0]) for w in work if getattr(w, which)] for which in ("is_sum", "adds")
        )
        parts = (numbers, read, written, sums, [_name(w.writes[0]) for w in cleared], added)
        given = list(dict.fromkeys(name for part in parts for name in part))
        if not given:
            return
        order = {name: k for k, name in enumerate([*given, *(x for x in known if x not in given)])}
        tasks = [
            Task(
                w.function,
                tuple(order[_name(x)] for x in w.reads),
                order[_name(w.writes[0])],
                w.is_sum,
                w.adds,
            )
            for w in work
        ]
        hows = ((order[x], known[x].stretch) for x in (*read, *added))
        stretched = tuple((k, how) for k, how in hows if how is not None and not how.is_plain)
        names = (tuple(order[name] for name in part) for part in parts)
        truths = frozenset(order[name] for name in given if name in known and known[name].char == "?")
        parameters = Parameters(stretched, truths, *names)
        address = self.plan.load(self.char, self.n, tasks, parameters)
        places = [
            (self.parts[name].at, 1, 1, 0)
            if name in self.parts
            else (self._place(known[name]).at, *self._place(known[name]).advance(self.n))
            for name in given
        ]
        self.plan.rows.fused(address, places, self.n)
        self.plan.kernels += 1

    def _row(self, w: Work) -> None:
        """Add a row as it is."""
        rows, reads, out = self.plan.rows, [self._place(x) for x in w.reads], w.writes[0]
        if w.exact:
            part = self.parts[_name(out)].at, 1, 0
            rows.loop_at(np.add, self.char, [part, reads[0].place(self.n), part], self.n)
            return
        if w.kind == layout.BY_SUMS:
            rows.sums_at(reads[0].place(self.n), out.at, self.n // out.size, self.n)
            return
        if w.kind == layout.BY_KERNEL:
            reads = [self._spread(x) for x in reads]
        places = [x.place(self.n) for x in (*reads, self._place(out))]
        if w.kind == layout.BY_KERNEL:
            rows.kernel_at(w.function.address, [places[-1], *places[:-1]], self.n)
        else:
            rows.loop_at(w.function, signature([x.char for x in (*w.reads, out)]), places, self.n)

    def _spread(self, x: Operand) -> Operand:
        """An operand with an element for each of the group's."""
        if self.n == 1 or x.is_each(self.n):
            return x
        block = self._block(self.char)
        self.plan.rows.loop_at(np.positive, self.char, [x.place(self.n), block.place(self.n)], self.n)
        return block


def _name(x: Operand) -> Name:
    return x.at, 0 if x.is_block else x.size, x.char, x.stretch
