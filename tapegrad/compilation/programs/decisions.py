"""What Python has seen of values that a program computes: where that is the same it does the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.compilation.events.events import RESULT, Source
from tapegrad.compilation.programs.program import Program
from tapegrad.compilation.rows.computing import number_of
from tapegrad.core.dispatch import contains_tensor
from tapegrad.errors import is_from_signal

DISCRETE = "biu"  # kinds of dtypes of which a value may well be the same at another call


class Decision(NamedTuple):
    """Truth values or whole numbers that Python has seen.

    Attributes
    ----------
    function
        What tells them.
    operands
        Of what it does: sources of the program, and what is no part of it.
    value
        What it has told.
    where
        The line.
    needed
        How many events are computed before.
    """

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    value: np.ndarray
    where: str
    needed: int

    def is_same(self, program: Program) -> bool:
        """Whether the values that the program has computed tell the same; an error is Python's to raise."""
        values = [number_of(program.buffer(x)) if type(x) is Source else x for x in self.operands]
        try:
            found = np.asarray(self.function(*values))
        except Exception as error:
            if is_from_signal(error):
                raise
            return False
        value = self.value
        return (
            found.dtype is value.dtype and found.shape == value.shape and found.tobytes() == value.tobytes()
        )


def decision_on(
    function: Callable[..., Any], operands: Sequence[Any], found: Any, where: str
) -> Decision | None:
    """What can be compared with another call's; None where that would be another one at each call."""
    try:
        value = np.array(found)
    except ValueError:  # of several arrays
        return None
    if value.dtype.kind not in DISCRETE:
        return None
    if any(isinstance(x, (list, tuple)) and contains_tensor(x) for x in operands):
        return None
    kept = [copy.deepcopy(x) if isinstance(x, (list, tuple, np.ndarray)) else x for x in operands]
    events = [x.value + 1 for x in operands if type(x) is Source and x.kind == RESULT]
    return Decision(function, tuple(kept), value, where, max(events, default=0))
