"""Which Tensors stand for the results of a program's events: one for many, where calls let go of it between.

A Tensor's address in the call that was learned from tells that: where another one has it, the first was gone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice

import numpy as np

from tapegrad.compilation import background


class StandIns:
    """Tensors of events, by their numbers.

    Parameters
    ----------
    numbers
        Of each event which Tensor stands for its result; of a write that of what is written to.

    Attributes
    ----------
    numbers
        The same.
    count
        How many Tensors there are.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        found = np.asarray(numbers, np.int32)
        self.numbers, self.count = array("i", found.tobytes()), int(found.max(initial=-1)) + 1
        self._events = array("i", np.argsort(found, kind="stable").astype(np.int32).tobytes())
        begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(found, minlength=self.count))])
        self._begins = array("i", begins.astype(np.int32).tobytes())  # of those of each Tensor

    def latest(self, number: int, k: int) -> int:
        """Return the last event before one that a Tensor stands for; -1 if there is none."""
        begin, end = self._begins[number : number + 2]
        at = bisect_left(self._events, k, begin, end)
        return self._events[at - 1] if at > begin else -1

    def is_latest(self, j: int, k: int, owners: Sequence[int]) -> bool:
        """Whether the Tensor of event j stands for it, or what was written to it since, before event k."""
        return owners[self.latest(self.numbers[j], k)] == owners[j]


def from_addresses(
    addresses: Sequence[int], owners: Sequence[int], before: StandIns | None, shared: int
) -> StandIns:
    """Return which Tensors stand for events whose results had these addresses, as far as they are known.

    So many events at the beginning have those that they have in another program.
    """
    begun = [] if before is None else before.numbers[:shared]
    numbers, first = array("i", begun), max(begun, default=-1) + 1
    if len(addresses) == len(owners):
        known: dict[int, int] = {}  # of few addresses, as others were gone
        for at in islice(addresses, shared, None):
            background.pause()
            numbers.append(known.setdefault(at, first + len(known)))
    else:
        numbers.extend(range(first, first + len(owners) - shared))
    if type(owners) is not range:
        for k, owner in enumerate(owners):
            if owner != k:
                numbers[k] = numbers[owner]
    return StandIns(numbers)
