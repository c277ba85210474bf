"""The stages of a kernel: loops one after the other over some elements, one vector form in each.

A loop of several forms, each of what the one before gives, waits for one after the other, as more than one
element of it is too long for the processor to look at; loops of one form keep it busy. What goes from stage
to stage lies in the nearest cache. A slope that is computed beside its value shares its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.compilation.rows.rows import Kernel
from tapegrad.compilation.rows.stretching import Stretch


class Task(NamedTuple):
    """A step of a kernel: a ufunc or the kernel of a rule, names of what it reads, and of what it gives."""

    function: Any
    reads: tuple[int, ...]
    writes: int
    is_sum: bool = False  # of what it reads, for the block
    adds: bool = False  # what it reads to elements of what it writes


class Parameters(NamedTuple):
    """Names of what a kernel is given, in order: numbers, arrays it reads and writes, places of sums.

    Those in `cleared` are places of sums that others add to, those in `added` arrays with fewer elements that
    steps add to. Of the arrays it reads, and adds to, some are `stretched`; the `truths` have truth values,
    which are 0 and 1 to the steps.
    """

    stretched: tuple[tuple[int, Stretch], ...]
    truths: frozenset[int]
    numbers: tuple[int, ...]
    read: tuple[int, ...]
    written: tuple[int, ...]
    sums: tuple[int, ...]
    cleared: tuple[int, ...]
    added: tuple[int, ...] = ()

    @property
    def names(self) -> list[int]:
        """All of them, each once."""
        names = *self.numbers, *self.read, *self.written, *self.sums, *self.cleared, *self.added
        return list(dict.fromkeys(names))


class Stage:
    """A loop: its tasks, and as pairs of an array and a value what it loads before and stores behind them."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.loads: list[tuple[int, int]] = []
        self.stores: list[tuple[int, int]] = []


class Stages:
    """The stages of a kernel under construction.

    Attributes
    ----------
    found
        They, in order.
    passed
        Values that go from one to a later one.
    """

    def __init__(self, tasks: Sequence[Task], given: Parameters, has_form: Callable[[Any], bool]) -> None:
        self.given, self._has_form = given, has_form
        self._at = dict.fromkeys((*given.read, *given.numbers), 0)  # by value, the stage that gives it
        self._forms: dict[tuple[int, ...], int] = {}  # by what they are of, where forms are
        self.found: list[Stage] = []
        self.passed: list[int] = []
        latest = {name: name for name in self._at}
        names = [name for task in tasks for name in (*task.reads, task.writes)]
        self._next = max((*names, *given.names), default=0) + 1
        for task in tasks:
            reads = tuple(latest[name] for name in task.reads)
            if task.is_sum or task.adds:
                self._add(task._replace(reads=reads), False)
            else:
                latest[task.writes] = self._of(task.function, reads)
        self._load_and_store({name: latest[name] for name in given.written})

    def _of(self, function: Any, reads: tuple[int, ...]) -> int:
        """Add a task; the value that it gives. A factor of a cotangent is computed as soon as it can be."""
        form = self._has_form(function)
        if form and isinstance(function, Kernel) and function.cotangent:
            q = function.names.index("ct")
            factor = function._replace(names=function.names[:q] + function.names[q + 1 :], cotangent=False)
            return self._of(np.multiply, (reads[q], self._of(factor, reads[:q] + reads[q + 1 :])))
        self._next += 1
        self._add(Task(function, reads, self._next), form)
        return self._next

    def _add(self, task: Task, form: bool) -> None:
        at = max((self._at[x] for x in task.reads), default=0)
        if form:
            while at in self._forms.values() and self._forms.get(task.reads) != at:
                at += 1
            self._forms[task.reads] = at
        while len(self.found) <= at:
            self.found.append(Stage())
        self.found[at].tasks.append(task)
        if not (task.is_sum or task.adds):
            self._at[task.writes] = at

    def _load_and_store(self, results: dict[int, int]) -> None:
        """Say what stages load and store; an array that is overwritten is so once nobody reads it."""
        readers: dict[int, set[int]] = {}
        for k, stage in enumerate(self.found):
            for task in stage.tasks:
                for x in task.reads:
                    readers.setdefault(x, set()).add(k)
        for name, value in results.items():
            at = max(self._at[value], *readers.get(name, {0}))
            self.found[at].stores.append((name, value))
            readers.setdefault(value, set()).add(at)
        for x, stages in readers.items():
            if x not in self.given.numbers:
                mine = x not in self.given.read
                later = sorted(k for k in stages if not mine or k > self._at[x])
                for k in later:
                    self.found[k].loads.append((x, x))
                if mine and later:
                    self.passed.append(x)
                    self.found[self._at[x]].stores.append((x, x))
