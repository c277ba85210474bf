"""Operands that broadcasting stretches to the shape of a group, and the blocks in which they are read.

Element i of a group takes element ``i // unit * run + i % run`` of such an operand: a column of m columns has
the unit m and the run 1, a row of c elements the run c and as many elements as the group for its unit. Blocks
are cut so that each begins where a run does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tapegrad.kernels.replay import layout

BLOCK = layout.PROGRAM_BLOCK
MOST_BLOCKS = 1 << 16  # of a group


class Stretch(NamedTuple):
    """How an operand is stretched."""

    unit: int
    run: int

    @property
    def is_number(self) -> bool:
        """Whether it is one number for each block."""
        return self.run == 1 and self.unit > BLOCK

    @property
    def is_plain(self) -> bool:
        """Whether its elements lie side by side as those of each block do."""
        return self.run > BLOCK

    @property
    def advance(self) -> tuple[int, int, int]:
        """By how many elements it advances for each element, and after so many, by how many."""
        return (1, self.run, -self.run) if self.is_plain else (0, self.unit, self.run)


def stretch(x: np.ndarray, shape: tuple[int, ...]) -> Stretch | None:
    """Return how an array without gaps is stretched to a shape; None where it is in another way."""
    extents, varies = [1], [False]
    for n, mine in zip(shape, (1,) * (len(shape) - x.ndim) + x.shape, strict=True):
        if n == 1:
            continue
        if len(extents) > 1 and varies[-1] == (mine == n):
            extents[-1] *= n
        else:
            extents.append(n)
            varies.append(mine == n)
    size, run = math.prod(shape), extents[-1] if varies[-1] else 1
    found = varies[1:]
    if found in ([False, True], [True, False], [True, False, True]):
        unit = size if not found[0] else math.prod(extents[2:])
        if run <= BLOCK or unit == size:
            return Stretch(unit, run)
    return None


def cut(size: int, stretches: Iterable[Stretch]) -> list[int] | None:
    """Return where blocks of a group begin, and its end; None where operands do not go together."""
    known = set(stretches)
    inside = [n for x in known for n in x if n <= BLOCK]
    across = [n for x in known for n in x if BLOCK < n < size]
    step, whole = math.lcm(*inside), math.gcd(size, *across)
    if step > BLOCK or whole % step or whole < min(size, BLOCK // 4):
        return None
    step *= BLOCK // step
    begins = [k for low in range(0, size, whole) for k in range(low, low + whole, step)]
    return [*begins, size] if len(begins) <= MOST_BLOCKS else None
