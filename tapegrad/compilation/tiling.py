"""Stacks of matrices by parts: products, and what is computed of them, while the nearer caches have a few.

Step by step, large arrays are read from memory and written there each time. Where products of stacks, and
groups over their elements, need no more of each other's arrays than the matrices at work, they are computed
for a few matrices, then for others. What nobody else asks for is not kept: all parts have it in one place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tapegrad.compilation.rows import Rows
from tapegrad.compilation.scheduling import Item, Operand, Work, touched
from tapegrad.compilation.stretching import Stretch
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout

TILE = 1 << 18  # bytes of an array that are a part
STACKED = 1 << 20  # bytes of an array from which on it leaves the nearer caches before it is read again
MOST_TILES = 256
AROUND = 64  # items before a product, and behind it, among which those are that go with it


class Stack:
    """Items of a schedule that are computed by parts.

    Attributes
    ----------
    items
        They, in order.
    local
        Owners of arrays that nobody else knows.
    """

    def __init__(self, items: Sequence[Item], count: int, local: Collection[int]) -> None:
        self.items, self._count, self.local = items, count, local
        self._rows = Rows()  # of the products
        each = max(x.high - x.low for item in items for w in item.work for x, _ in touched(w)) // count
        self._step = min(count, max(1, TILE // each, -(-count // MOST_TILES)))

    @property
    def place(self) -> int:
        """Where it stands: all arrays of its items are in use there."""
        return self.items[0].place

    def end(self, x: Operand) -> int:
        """Where an operand ends in memory, as far as it is used."""
        return x.low + (x.high - x.low) // self._count * self._step if x.owner in self.local else x.high

    def parts(self) -> Iterator[Item]:
        """Make the items for one part after the other."""
        for begin in range(0, self._count, self._step):
            for item in self.items:
                yield self._part(item, begin, min(begin + self._step, self._count))

    def fits(self) -> bool:
        """Whether there are several parts, and groups go together as those of the first and the last size."""
        rest = self._count % self._step or self._step
        return self._step < self._count and all(
            _grouped(item, [self._work(w, 0, n) for w in item.work]) is not None
            for n in {self._step, rest}
            for item in self.items
            if item.extent
        )

    def _part(self, item: Item, begin: int, end: int) -> Item:
        if item.extent:
            found = _grouped(item, [self._work(w, begin, end) for w in item.work])
            assert found is not None
            return found
        found, work, k = Item(item.place), item.work[0], len(self._rows)
        a, b, out = (self._matrices(x, begin, end) for x in _arrays(item))
        scaled = work.rows.word(work.row, layout.SCALED_SIZE)
        ct = (a, b)[work.rows.word(work.row, layout.SCALED_OPERAND)] if scaled else None
        self._rows.product(a, b, out, ct)
        found.add(work._replace(rows=self._rows, row=k))
        return found

    def _matrices(self, x: np.ndarray, begin: int, end: int) -> np.ndarray:
        return x[: end - begin] if id(abi.owner_of(x)) in self.local else x[begin:end]

    def _work(self, work: Work, begin: int, end: int) -> Work:
        extent = work.extent // self._count * (end - begin)
        reads = tuple(self._operand(x, work.extent, begin, end) for x in work.reads)
        writes = tuple(
            self._operand(x, work.extent, begin, end)._replace(stretch=_within(x.stretch, extent))
            for x in work.writes
        )
        return work._replace(extent=extent, reads=reads, writes=writes)

    def _operand(self, x: Operand, whole: int, begin: int, end: int) -> Operand:
        """What of an operand of a group over the `whole` stack is read or written for some matrices."""
        extent, size = whole // self._count * (end - begin), x.size
        if _is_cut(x, whole, self._count):
            each = x.size // self._count
            size, first = each * (end - begin), 0 if x.owner in self.local else each * begin
            low = x.low + first * x.itemsize
            x = x._replace(at=x.at + low - x.low, low=low, high=low + size * x.itemsize, size=size)
        return x._replace(stretch=None if size in (1, extent) else _within(x.stretch, extent))


def _within(how: Stretch | None, extent: int) -> Stretch | None:
    """How an operand is stretched to so many elements of those that it was stretched to."""
    return None if how is None else Stretch(min(how.unit, extent), how.run)


def _grouped(item: Item, work: Sequence[Work]) -> Item | None:
    """A group in the place of another one; None where its steps do not go together."""
    found = Item(item.place, work[0].extent, item.char)
    for w in work:
        if not found.takes(w):
            return None
        found.add(w)
    return found


class Known(NamedTuple):
    """What an item does to an array: by which operand, whether each matrix has a part, whether it writes."""

    operand: Operand
    has_parts: bool
    writes: bool


class Tiling:
    """What in a schedule is computed by parts.

    Parameters
    ----------
    items
        The schedule.
    known
        Arrays of which nothing is left out, as others know them.

    Attributes
    ----------
    items
        The schedule in an order in which those stand together that are computed by parts.
    stacks
        By item, with which others it is.
    """

    def __init__(self, items: Sequence[Item], known: Collection[int]) -> None:
        self.items, self.stacks = list(items), dict[Item, Stack]()
        self._known, self._touched = known, dict[Item, dict[int, list[Known]]]()
        for product in items:
            if _is_stack(product) and product not in self.stacks:
                self._around(self.items.index(product))
        for k, item in enumerate(self.items):
            item.place = k

    def _around(self, at: int) -> None:
        """Let a product of stacks be computed by parts together with items around it, if there are such."""
        items, first = self.items, max(0, at - AROUND)
        mine, before, behind = [items[at]], list[Item](), list[Item]()
        self._count = len(_arrays(items[at])[-1])
        self._touched.clear()
        for item in reversed(items[first:at]):
            if self._goes_with(item, mine, before):
                mine.insert(0, item)
            else:
                before.insert(0, item)
        for item in items[at + 1 : at + AROUND]:
            (mine if self._goes_with(item, mine, behind) else behind).append(item)
        local, shared = self._local(mine)
        stack = Stack(mine, self._count, local)
        if len(mine) > 1 and not shared and stack.fits():
            self.stacks |= dict.fromkeys(mine, stack)
            self.items = [*items[:first], *before, *mine, *behind, *items[at + AROUND :]]

    def _goes_with(self, item: Item, mine: Sequence[Item], passed: Sequence[Item]) -> bool:
        """Whether an item can be computed by parts with others, and need not stay behind some, or before."""
        if item in self.stacks or not _is_tiled(item, self._count):
            return False
        if any((x.writes or y.writes) for other in passed for x, y in self._both(item, other)):
            return False
        pairs = [pair for other in mine for pair in self._both(item, other)]
        return any(x.has_parts and y.has_parts for x, y in pairs) and not any(
            (x.writes or y.writes) and not (x.has_parts and y.has_parts and _is_same(x.operand, y.operand))
            for x, y in pairs
        )

    def _both(self, one: Item, other: Item) -> Iterator[tuple[Known, Known]]:
        """What two items do to the same memory."""
        mine, theirs = self._known_to(one), self._known_to(other)
        for owner in mine.keys() & theirs.keys():
            for x in mine[owner]:
                yield from ((x, y) for y in theirs[owner] if x.operand.overlaps(y.operand))

    def _known_to(self, item: Item) -> dict[int, list[Known]]:
        """What an item does to arrays, by owner, in order."""
        known = self._touched.get(item)
        if known is None:
            known = self._touched[item] = {}
            operands = [found for work in item.work for found in touched(work)]
            arrays = () if item.extent else _arrays(item)
            for k, (x, writes) in enumerate(operands):
                if item.extent:
                    has_parts = _is_cut(x, item.extent, self._count)
                else:
                    has_parts = bool(arrays) and _are_stacked(arrays[k], x, self._count)
                known.setdefault(x.owner, []).append(Known(x, has_parts, writes))
        return known

    def _local(self, mine: Sequence[Item]) -> tuple[set[int], bool]:
        """Arrays that some items write before they read them, as a whole, and nobody else knows.

        And whether somebody else knows of a block.
        """
        outside = {owner for item in self.items if item not in mine for owner in _owners(item)}
        others, written, first = outside | set(self._known), set[int](), dict[int, Operand]()
        for item in mine:
            for owner, uses in self._known_to(item).items():
                for x in uses:
                    same = _is_same(first.setdefault(owner, x.operand), x.operand)
                    if not (same and x.has_parts and (x.writes or owner in written)):
                        others.add(owner)
                    if x.writes:
                        written.add(owner)
        blocks = {x.owner for item in mine for work in item.work for x, _ in touched(work) if x.is_block}
        return written - others, bool(blocks & outside)


def _owners(item: Item) -> Iterator[int]:
    return (x.owner for work in item.work for x, _ in touched(work))


def _is_same(x: Operand, y: Operand) -> bool:
    return (x.low, x.high) == (y.low, y.high)


def _arrays(item: Item) -> list[np.ndarray]:
    """Operands and result of a product; nothing of another row."""
    work = item.work[0]
    if work.kind != layout.BY_PRODUCT:
        return []
    step = work.rows.steps[work.row]
    return [*step.reads, *step.writes]


def _is_stack(item: Item) -> bool:
    """Whether an item is a product of large stacks of matrices."""
    every = _arrays(item)
    large = any(x.nbytes >= STACKED for x in every)
    return large and all(x.ndim == 3 and len(x) > 1 for x in every)


def _is_tiled(item: Item, count: int) -> bool:
    """Whether an item can be computed by parts: a product, or a group, without sums of all elements."""
    if not item.extent:
        return _is_stack(item) and len(_arrays(item)[-1]) == count
    if item.extent % count or item.extent * item.work[0].writes[0].itemsize < STACKED:
        return False
    each = item.extent // count
    for work in item.work:
        for x, writes in touched(work):
            how = x.stretch
            alone = how.unit == item.extent and each % how.run == 0 if how is not None else x.size == 1
            if not (x.is_block or _is_cut(x, item.extent, count) or (alone and not writes)):
                return False
    return not any(work.is_sum for work in item.work)


def _is_cut(x: Operand, extent: int, count: int) -> bool:
    """Whether each matrix of a stack has as many elements of a group's operand for itself, side by side."""
    if x.is_block or not x.is_dense:
        return False
    return x.size == extent if x.stretch is None else extent // count % x.stretch.unit == 0


def _are_stacked(array: np.ndarray, x: Operand, count: int) -> bool:
    """Whether the matrices of a stack lie behind each other."""
    return bool(array.strides[0] * count == array.nbytes == x.high - x.low)
