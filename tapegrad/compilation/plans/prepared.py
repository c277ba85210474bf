"""Rows that compute calls in another way than those of their program, from some row on to the end.

They are for calls that nobody has looked into since; where they meet anything unusual the rows of the program
compute the call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tapegrad.compilation.plans.handing import Place, Target, Words
from tapegrad.compilation.programs.in_place import InPlace
from tapegrad.compilation.rows.rows import Rows
from tapegrad.core.compiled_methods import METH_O, builtin
from tapegrad.kernels import abi
from tapegrad.kernels.programs import load
from tapegrad.kernels.replay import layout
from tapegrad.kernels.replay.layout import REPORTED, SKIPS_PYTHON


class Prepared:
    """Such rows.

    Attributes
    ----------
    rows
        What is run.
    targets
        By number of an argument, where a derivative is that a call gives away.
    place
        Where the rows have their arena; None where that is always the same.
    sources, filled
        Large arrays that calls bring: those that rows can be led to, and by which words; all others.
    borrows
        Whether a call begins by `begin` and ends by `end`, between which they may run.
    is_exact
        Whether derivatives have the bits of those of the program's rows.
    """

    is_exact = False

    def __init__(self) -> None:
        self.rows = Rows()
        self.targets: dict[int, Target] = {}
        self.place: Place | None = None
        self.sources: list[tuple[InPlace, Words]] = []
        self.filled: list[InPlace] = []
        self.borrows = False
        self._before: tuple[Callable[[], None] | None, bool] = None, False
        self._computed: list[Any] = []  # what tells where they write, for `spoil`

    def describe(self) -> str:
        """Tell what computes."""
        raise NotImplementedError

    def spoil(self) -> None:
        """Make other numbers of all that the rows compute, so that it shows where one is read before."""
        raise NotImplementedError

    def end_comparing(self) -> None:
        """Keep nothing that only `spoil` needs."""
        self._computed = []

    def read_in_place(self, arrays: Iterable[InPlace]) -> None:
        """Say which arrays calls bring that are read in place where that can be."""
        self.filled = [*arrays]
        self.borrows = self.borrows or bool(self.filled)

    def hand_over(self, gradients: Sequence[np.ndarray | None]) -> None:
        """Write derivatives to memory of their own, which a call gives away, where that can be."""

    def watch(self, events: Sequence[int]) -> None:
        """Say where events are whose Tensors nobody may have, how many, and where one has weak references."""
        state = self.rows.state
        state[layout.EVENTS_AT], state[layout.EVENT_COUNT], state[layout.WEAK_REFERENCES_AT] = events
        self._words, self._state, self._run = self.rows.memory, state, run_words()

    def run(self, reported: int, skips_python: bool = False) -> bool:
        """Run the rows; False where the call is to be computed by those of the program.

        Where the call `skips_python` nobody can have a Tensor that stands for a result of it.
        """
        self._state[REPORTED], self._state[SKIPS_PYTHON] = reported, skips_python
        if not self.borrows:
            return self._run(self._words) or self._go_on()
        try:
            self.begin()
            return self._run(self._words) or self._go_on()
        finally:
            self.end()

    def call_before(self, function: Callable[[], None] | None) -> None:
        """Call a function before each call, or none any more."""
        known, borrows = self._before
        if known is not function:
            self._before = function, self.borrows if known is None else borrows
            self.borrows = function is not None or borrows

    def begin(self) -> None:
        """Have memory for a call."""
        if self._before[0] is not None:
            self._before[0]()
        for target in self.targets.values():
            target.begin()
        for x, words in self.sources:
            words.move(x.at)
        for x in self.filled:
            x.fill()
        if self.place is not None:
            self.place.begin()

    def end(self) -> None:
        """Leave to others what memory of the call is not given away."""
        if self.place is not None:
            self.place.end()
        for x, words in self.sources:
            words.move(abi.address(x.buffer))

    def _go_on(self) -> bool:
        """Do what Python has to do, if that is why the rows were left."""
        state, functions = self._state, self.rows.functions
        try:
            while state[layout.CAME_TO] in functions:
                functions[state[layout.CAME_TO]]()
                state[layout.FIRST_ROW] = state[layout.CAME_TO] + 1
                if self._run(self._words):
                    return True
        except FloatingPointError:
            pass
        finally:
            state[layout.FIRST_ROW] = 0
        return False


@functools.cache
def run_words() -> Callable[[np.ndarray], bool]:
    """Return the function of Python's that runs rows, of the words that tell which."""
    made: Callable[[np.ndarray], bool] = builtin("run_words", METH_O, load()(layout.GIVE_FUNCTION, 0, 0, 0))
    return made
