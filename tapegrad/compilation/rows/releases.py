"""What rows leave that nobody reads any more: large arrays, and of many rows which one reads what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tapegrad.compilation import background
from tapegrad.compilation.memory import pages
from tapegrad.compilation.memory.pages import LARGE, give_back, has_pages
from tapegrad.compilation.rows.rows import Rows
from tapegrad.compilation.rows.steps import Step
from tapegrad.compilation.rows.table import Block
from tapegrad.kernels import abi

MUCH = 1 << 20  # bytes of all that rows leave, less than which they keep until there is a plan
SOME_STEPS = 1 << 10  # rows that are forgotten at once, where there are more


def forget_steps(rows: Rows, are_all: bool = False, pools: Iterable[np.ndarray] = ()) -> None:
    """Of rows that are too many to be planned keep small arrays, but not which row reads or writes which.

    That is called while rows are added, and does something now and then, once there are so many, and where
    they `are_all` there. What lies in pools is small, too.
    """
    begin = rows.grouped_count
    if len(rows) - begin <= ((0 if are_all else SOME_STEPS) if begin else pages.MOST_STEPS):
        return
    rows.find_groups()
    found: dict[int, Any] = {}

    def is_small(step: Step) -> bool:
        background.pause()
        memories = {}
        for x in (*step.reads, *step.writes):
            array = x.array if type(x) is Block else x
            owner = array if array.base is None else abi.owner_of(array)
            if owner.nbytes >= LARGE and not any(owner is pool for pool in pools):
                return False
            memory = owner if owner.base is None else owner.base
            memories[id(memory)] = memory
        found.update(memories)
        return True

    rows.steps.forget(is_small)
    rows.kept += found.values()


class Releases:
    """Which large arrays no row reads any more, after each row.

    Attributes
    ----------
    after
        By the number of the row, in order; nothing for most.
    later
        The same of the rows in reverse, where these are groups behind the last row of one.
    last
        Those that no row touches.
    """

    def __init__(
        self, rows: Rows, arrays: Iterable[np.ndarray], reverse: Rows | None = None,
        kept: Iterable[np.ndarray] = (),
    ) -> None:  # fmt: skip
        self.after: dict[int, list[np.ndarray]] = {}
        self.later: dict[int, list[np.ndarray]] = {}
        self.last: list[np.ndarray] = []
        self._nbytes = 0
        large = {id(x): x for x in map(abi.owner_of, arrays) if has_pages(x)}
        if not large:
            return
        for x in kept:
            large.pop(id(abi.owner_of(x)), None)
        self._nbytes = sum(x.nbytes for x in large.values())
        touched = {at: k for k, step in enumerate(rows.steps) for at in _owners(step)}
        if reverse is None:
            late: dict[int, int] = {}
        else:
            late, begin = {}, 0
            for end in reverse.group_ends():
                late |= {at: end - 1 for step in reverse.steps[begin:end] for at in _owners(step)}
                begin = end
        for at, x in large.items():
            if at in late:
                self.later.setdefault(late[at], []).append(x)
            elif at in touched:
                self.after.setdefault(touched[at], []).append(x)
            else:
                self.last.append(x)
        self.after, self.later = dict(sorted(self.after.items())), dict(sorted(self.later.items()))

    def __bool__(self) -> bool:
        return bool(self.after or self.later or self.last)

    @property
    def are_due(self) -> bool:
        """Whether rows leave something that is to be given back while they run."""
        return self._nbytes >= MUCH and bool(self.after or self.later)

    def run(self, rows: Rows, reverse: bool = False) -> None:
        """Run rows, or those in reverse, and give back what is read no more."""
        begin, releases = 0, self.later if reverse else self.after
        for k, arrays in releases.items():
            rows.run(begin, k + 1)
            begin = k + 1
            for x in arrays:
                give_back(x)
        rows.run(begin, len(rows))

    def give_back_after(self, k: int) -> None:
        """Give back what is read no more after a row."""
        for x in self.after.get(k, ()):
            give_back(x)

    def end(self, kept: Iterable[np.ndarray] = ()) -> None:
        """Give back all of them, but for those that are kept."""
        others = {id(abi.owner_of(x)) for x in kept}
        for arrays in (*self.after.values(), *self.later.values(), self.last):
            for x in arrays:
                if id(x) not in others:
                    give_back(x)


def _owners(step: Step) -> Iterator[int]:
    """Which arrays a row touches."""
    arrays = (x.array if type(x) is Block else x for x in (*step.reads, *step.writes))
    return (id(abi.owner_of(x)) for x in arrays if isinstance(x, np.ndarray))
