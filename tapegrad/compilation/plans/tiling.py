"""Products by parts, and what is computed of them, while the nearer caches have some rows or matrices.

Step by step, large arrays are read from memory and written there each time. Where products of stacks, or of
a large matrix with vectors, and groups over their elements need no more of each other's arrays than the
matrices, or rows, at work, they are computed for a few of these, then for others. What nobody else asks for
is not kept: all parts have it in one place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds

from tapegrad.compilation.plans.scheduling import Item, Operand, Work, splits, touched
from tapegrad.compilation.rows.rows import Rows, is_dense
from tapegrad.compilation.rows.stretching import Stretch
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout

TILE = 1 << 18  # bytes of an array that are a part
STACKED = 1 << 20  # bytes of an array from which on it leaves the nearer caches before it is read again
MOST_TILES, MOST_STEPS = 256, 8  # parts, and of how many such sizes one may be where sums need that
FEW = 8  # columns of what a matrix is multiplied with by parts: of more, products are not read but computed
FEWEST = 1 << 12  # elements of a group
CHECKED = 1 << 26  # bytes of a matrix at most, as another one is multiplied to see which bits rows have
AROUND = 64  # items before a product, and behind it, among which those are that go with it


class Part(Item):
    """A part of a group: with which element it begins, of how many, and what sums of all have in common."""

    def __init__(self, of: Item, begin: int, extent: int, rooms: dict[Any, Operand]) -> None:
        super().__init__(of.place, extent, of.char)
        self.begin, self.whole, self.rooms = begin, of.extent, rooms


class Stack:
    """Items of a schedule that are computed by parts, of so many matrices or rows.

    Attributes
    ----------
    items
        They, in order.
    local
        Owners of arrays that nobody else knows.
    ends
        Where parts begin, and the last one ends.
    """

    def __init__(
        self, items: Sequence[Item], count: int, local: Collection[int], ends: Sequence[int]
    ) -> None:
        self.items, self._count, self.local, self.ends = items, count, local, ends
        self._rows = Rows()  # of the products
        self._most = max(high - low for low, high in pairwise(ends))
        self._rooms = dict[Any, Operand]()
        self._added = dict[int, np.ndarray]()  # parts of products that are summed over all rows

    @property
    def place(self) -> int:
        """Where it stands: all arrays of its items are in use there."""
        return self.items[0].place

    def end(self, x: Operand) -> int:
        """Where an operand ends in memory, as far as it is used."""
        return x.low + (x.high - x.low) // self._count * self._most if x.owner in self.local else x.high

    def parts(self) -> Iterator[Item]:
        """Make the items for one part after the other."""
        for begin, end in pairwise(self.ends):
            for item in self.items:
                if item.extent:
                    found = self._group(item, begin, end)
                    assert found is not None
                    yield found
                else:
                    yield from self._product(item, begin, end)

    def fits(self) -> bool:
        """Whether groups go together as parts of all sizes, and rows by themselves are those of the whole."""
        sizes = {high - low for low, high in pairwise(self.ends)}
        groups = [item for item in self.items if item.extent]
        return all(self._group(item, 0, n) is not None for n in sizes for item in groups) and all(
            _have_bits(x.dtype.char, x.shape, y.shape, tuple(self.ends))
            for x, y, _ in (_arrays(item) for item in self.items if not item.extent and item.work[0].reported)
            if x.ndim < 3
        )

    def _group(self, item: Item, begin: int, end: int) -> Item | None:
        """A part of a group; None where its steps do not go together."""
        each = item.extent // self._count
        found = Part(item, each * begin, each * (end - begin), self._rooms)
        for w in item.work:
            w = self._work(w, begin, end)
            if not found.takes(w):
                return None
            found.add(w)
        return found

    def _product(self, item: Item, begin: int, end: int) -> Iterator[Item]:
        work, rows = item.work[0], self._rows
        axes = _axes(item, self._count)
        a, b, out = (self._matrices(x, d, begin, end) for x, d in zip(_arrays(item), axes, strict=True))
        scaled = work.rows.word(work.row, layout.SCALED_SIZE)
        ct = (a, b)[work.rows.word(work.row, layout.SCALED_OPERAND)] if scaled else None
        added = axes[-1] is None and begin > 0
        if added and id(out) not in self._added:
            self._added[id(out)] = rows.keep(np.empty_like(out))
        part = self._added[id(out)] if added else out
        rows.product(a, b, part, ct)
        if added:
            rows.loop(np.add, [out, part], out)
        for k in range(len(rows) - 1 - added, len(rows)):
            found = Item(item.place)
            found.add(work._replace(rows=rows, row=k))
            yield found

    def _matrices(self, x: np.ndarray, axis: int | None, begin: int, end: int) -> np.ndarray:
        if axis is None:
            return x
        first = 0 if id(abi.owner_of(x)) in self.local else begin
        return x[(slice(None),) * axis + (slice(first, first + end - begin),)]

    def _work(self, work: Work, begin: int, end: int) -> Work:
        extent = work.extent // self._count * (end - begin)
        reads = tuple(self._operand(x, work.extent, begin, end) for x in work.reads)
        writes = tuple(
            self._operand(x, work.extent, begin, end)._replace(stretch=_within(x.stretch, extent))
            for x in work.writes
        )
        return work._replace(extent=extent, reads=reads, writes=writes)

    def _operand(self, x: Operand, whole: int, begin: int, end: int) -> Operand:
        """What of an operand of a group over the `whole` is read or written for some matrices or rows."""
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


def _ends(items: Sequence[Item], count: int) -> list[int] | None:
    """Where parts begin, and the last one ends; None where there is but one, or sums are of other parts."""
    each = max(x.high - x.low for item in items for w in item.work for x, _ in touched(w)) // count
    step = max(1, TILE // max(1, each), -(-count // MOST_TILES))
    ends, last = [*range(0, count, step), count], 0
    for extent in {item.extent for item in items if any(w.is_sum for w in item.work)}:
        cut = {p // (extent // count) for p in splits(extent) if p % (extent // count) == 0}
        ends = sorted(cut if last == 0 else cut.intersection(ends))
        last = count
    if last:
        kept = [0]
        for end, following in pairwise([*ends[1:], math.inf]):
            if following - kept[-1] > step:
                kept.append(end)
        ends = kept
    most = max(high - low for low, high in pairwise(ends))
    return ends if len(ends) > 2 and most <= MOST_STEPS * step else None


@functools.cache
def _have_bits(char: str, shape: tuple[int, int], other: tuple[int, ...], ends: tuple[int, ...]) -> bool:
    """Whether rows of a product with a matrix have the bits that they have in the product of the whole."""
    size = math.prod(shape)
    if size * np.dtype(char).itemsize > CHECKED:
        return False
    a = np.resize(np.cos(np.arange(4099)).astype(char), shape)
    b = np.cos(np.arange(math.prod(other))).astype(char).reshape(other)
    whole = a @ b
    return all((a[low:high] @ b).tobytes() == whole[low:high].tobytes() for low, high in pairwise(ends))


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
            if product not in self.stacks and (count := _count(product)):
                self._count = count
                self._around(self.items.index(product))
        for k, item in enumerate(self.items):
            item.place = k

    def _around(self, at: int) -> None:
        """Let a product of stacks be computed by parts together with items around it, if there are such."""
        items, first = self.items, max(0, at - AROUND)
        mine, before, behind = [items[at]], list[Item](), list[Item]()
        self._touched.clear()
        for item in reversed(items[first:at]):
            if self._goes_with(item, mine, before):
                mine.insert(0, item)
            else:
                before.insert(0, item)
        for item in items[at + 1 : at + AROUND]:
            (mine if self._goes_with(item, mine, behind) else behind).append(item)
        (local, shared), ends = self._local(mine), _ends(mine, self._count)
        if len(mine) == 1 or shared or ends is None:
            return
        stack = Stack(mine, self._count, local, ends)
        if stack.fits():
            self.stacks |= dict.fromkeys(mine, stack)
            self.items = [*items[:first], *before, *mine, *behind, *items[at + AROUND :]]

    def _goes_with(self, item: Item, mine: Sequence[Item], passed: Sequence[Item]) -> bool:
        """Whether an item can be computed by parts with others, and need not stay behind some, or before."""
        if item in self.stacks or not _is_tiled(item, self._count):
            return False
        if any((x.writes or y.writes) for other in passed for x, y in self._both(item, other)):
            return False
        if any(w.is_sum for w in item.work) and _ends([*mine, item], self._count) is None:
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
            places = [*zip(_arrays(item), _axes(item, self._count), strict=False)]
            for k, (x, writes) in enumerate(operands):
                if item.extent:
                    has_parts = _is_cut(x, item.extent, self._count)
                else:
                    has_parts = k < len(places) and places[k][1] is not None and _are_apart(*places[k])
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


def _count(item: Item) -> int:
    """Of how many matrices, or rows, a product is that others may go with; 0 of anything else."""
    every = _arrays(item)
    count = len(every[0]) if every else 0
    return count if count > 1 and (_axes(item, count) or (None,))[-1] == 0 else 0


def _axes(item: Item, count: int) -> tuple[int | None, ...]:
    """Along which axes of its arrays a large product has matrices of a stack, or rows; nothing of others.

    Those are none of a matrix that is the same for all, and of a result that is a sum over rows.
    """
    every = _arrays(item)
    if not any(x.nbytes >= STACKED for x in every):
        return ()
    a, b, out = every
    found: tuple[int | None, ...] = ()
    if a.ndim == 3:
        found = (0, 0, 0)
    elif a.ndim == 2 and len(a) == count and b.size <= FEW * a.shape[1]:
        found = (0, None, 0)
    elif not item.work[0].reported and is_dense(out):
        if a.ndim == 2 and a.shape[1] == count and out.size <= FEW * len(a):
            found = (1, 0, None)
        elif a.ndim == 1 and b.ndim == 2 and len(b) == count:
            found = (0, 0, None)
    fits = all(x.shape[d] == count for x, d in zip(every, found, strict=False) if d is not None)
    return found if fits and (a.ndim == 3 or all(map(_are_apart, (a, b), found))) else ()


def _are_apart(x: np.ndarray, axis: int | None) -> bool:
    """Whether what an array has for each place of an axis lies together, behind that of the place before."""
    return axis is None or bool(
        x.strides[axis] * x.shape[axis] == x.nbytes == np.subtract(*byte_bounds(x)[::-1])
    )


def _is_tiled(item: Item, count: int) -> bool:
    """Whether an item can be computed by parts: a product, or a group."""
    if not item.extent:
        return bool(_axes(item, count))
    if item.extent % count or item.extent < FEWEST:
        return False
    each = item.extent // count
    for work in item.work:
        for x, writes in touched(work):
            how = x.stretch
            alone = how.unit == item.extent and each % how.run == 0 if how is not None else x.size == 1
            allowed = alone and (work.is_sum or not writes)
            if not (x.is_block or allowed or _is_cut(x, item.extent, count)):
                return False
    return True


def _is_cut(x: Operand, extent: int, count: int) -> bool:
    """Whether each matrix of a stack has as many elements of a group's operand for itself, side by side."""
    if x.is_block or not x.is_dense:
        return False
    return x.size == extent if x.stretch is None else extent // count % x.stretch.unit == 0
