"""What of a long path only rows need, while plans compute its calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tapegrad.compilation.memory.pages import trim
from tapegrad.compilation.plans.planning import Planning
from tapegrad.compilation.programs.program import Program

if TYPE_CHECKING:
    from tapegrad.compilation.programs.reverse import Reverse


MOST_CALLS = 256  # that rows stay for, so that their return takes little of the time of these


class Waiting:
    """The words of rows, which wait in few bytes, and the memory of values, which is given back.

    A call that leaves the path, looks at a value or asks for what no plan gives has the words again as soon
    as it runs rows, which compute all values that it needs. They stay for some calls that plans compute, of
    which there are twice as many each time.

    Parameters
    ----------
    program, reverse
        Those of the path.
    plans
        The same, of calls that have computed as much before they end.
    """

    def __init__(self, program: Program, reverse: Reverse | None, plans: Mapping[Any, Planning]) -> None:
        self._program, self._plans = program, plans
        self._rows = [program.rows, *([] if reverse is None else [reverse.rows])]
        self._calls, self._patience = 0, 1

    def expect(self) -> None:
        """Let all wait from some call on that a plan computes from the first row on."""
        self._calls = 0
        self._before_calls(self._count)

    def _count(self) -> None:
        """Count a call that begins, of which nobody has seen a value."""
        self._calls += 1
        if self._calls < self._patience or any(planning.is_pending for planning in self._plans.values()):
            return
        self._patience = min(2 * self._patience, MOST_CALLS)
        self._before_calls(None)
        if all(self._program.exact):  # else Python computes some, of which a later call may compute none
            self._program.values.give_back()
        for rows in self._rows:
            rows.wait(self.expect)
        trim()

    def _before_calls(self, function: Any) -> None:
        for (begin, _), planning in self._plans.items():
            if begin == 0 and planning.plan is not None:
                planning.plan.call_before(function)
