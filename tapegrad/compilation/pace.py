"""Whether calls that follow a program take less time than recorded ones, where Python has a part in them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tapegrad.compilation.wanted import Wanted

BEFORE = 32  # calls that follow a program, and are not compiled code's alone, before times are taken
TRIALS = 16  # calls of which times are taken, of each way, in turns


Outcome = TypeVar("Outcome")


class Pace:
    """Times of calls, recorded and not, in turns; taken once, of calls that want the same.

    A call that a plan computes, and whose operations compiled code compares, is always quicker: its time is
    not taken.

    Attributes
    ----------
    is_taken
        Whether times are to be taken of the calls that come.
    """

    def __init__(self) -> None:
        self.is_taken, self._seen = False, 0
        self._wanted: Wanted | None = None
        self._recorded: list[float] = []
        self._followed: list[float] = []

    def see(self) -> None:
        """Count a call that has followed a program, with a part in it that Python had."""
        self._seen += 1
        self.is_taken = self._seen >= BEFORE and len(self._followed) < TRIALS

    def take(self, wanted: Wanted, record: Callable[[], Outcome], follow: Callable[[], Outcome]) -> Outcome:
        """Return what a call gives, made in the one way or the other."""
        self._wanted = self._wanted or wanted
        if wanted is not self._wanted:
            return follow()
        recorded = len(self._recorded) == len(self._followed)
        begin = time.perf_counter()
        found = record() if recorded else follow()
        (self._recorded if recorded else self._followed).append(time.perf_counter() - begin)
        self.is_taken = self.is_taken and len(self._followed) < TRIALS
        return found

    def is_lost(self) -> bool:
        """Whether times were taken, and recorded calls take less."""
        return len(self._followed) == TRIALS and min(self._followed) > min(self._recorded)
