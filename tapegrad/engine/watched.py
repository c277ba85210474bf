"""When what a user attached to records and leaves is called in a sweep.

A *watch* is such an attachment: ``before(ct)`` sees the cotangent of what it is attached to and returns it or
another. What it returns is the gradient; then, at a record whose rule runs, ``entering(ct)`` may change what
the rule gets, and ``after(parts, ct, operands)`` sees what the rule made of it for some of so many operands.
That of a record stands in its tape's `hooks` and is called when the sweep comes to the record. That of a
leaf stands in its `Cell` and is called with the whole gradient, as soon as the last record that contributes
to it has run.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, Protocol

from tapegrad.kernels import abi, table
from tapegrad.kernels.replay import layout
from tapegrad.ops.primitive import BY_OPCODE, in_dtype
from tapegrad.tape.columns import Columns
from tapegrad.tape.record import Record
from tapegrad.tape.tape import Cell, Tape

BOTH = layout.NEED | layout.MARK
_numbers = count(1)
attached = array("q", [0])  # the number of what was attached last, anywhere; compiled code looks at it


def number_attached() -> int:
    """Return a number for what is attached now: a sweep at work is to look where it has not come yet."""
    attached[0] = found = next(_numbers)
    return found


def after_rule(
    watch: Any, found: dict[int, Any], ct: Any, columns: Columns, operands: list[Record]
) -> dict[int, Any]:
    """What a record's rule gave its operands, in their dtypes, as a watch leaves it."""
    given = {q: in_dtype(part, abi.DTYPES[columns.code(operands[q])]) for q, part in found.items()}
    return watch.after(given, ct, len(operands))  # type: ignore[no-any-return]


class Part(Protocol):
    """A tape's part in a sweep (`plan.Job`), as watches see it."""

    tape: Tape
    columns: Columns
    reached: list[Record]


class Leaves:
    """The watched leaves of a sweep: after which record the gradient of each is whole.

    Parameters
    ----------
    jobs
        The tapes of the sweep, in its order.
    start
        Gradients that are there before it begins, by key.
    """

    def __init__(self, jobs: Sequence[Part], start: Iterable[Any]) -> None:
        self.cells: dict[Any, set[Cell]] = {}  # by watch: a leaf has a cell for each value it had
        self._jobs, self._start = jobs, [key for key in start if isinstance(key, Cell)]  # the plan's own list
        self._last: dict[Any, int] = {}  # by watch: the serial of the tape that contributes last
        self._passed: set[Any] = set()  # watches that were called, or came when the gradient had been whole
        self._find()

    def _find(self) -> None:
        """Find the watches that there are."""
        self._seen = attached[0]
        for key in self._start:
            self._note(key)
        for job in self._jobs:
            for k in job.reached:
                cell = job.tape.imports.get(k)
                if cell is not None and self._note(cell):
                    self._last[cell.hooks] = job.tape.serial

    def _note(self, cell: Cell) -> bool:
        watch = cell.hooks
        if watch is not None and watch not in self._passed:
            self.cells.setdefault(watch, set()).add(cell)
        return watch is not None

    def changed(self) -> bool:
        """Whether anything has been attached since the watches were found."""
        return attached[0] != self._seen

    def of(self, job: Part, flags: Any) -> dict[int, list[Any]]:
        """The watches to be called in a job, by the record after whose rule; -1 for the end of the job."""
        found: dict[int, list[Any]] = {}
        for watch, (k, _) in self._places(job, flags).items():
            if watch not in self._passed:
                found.setdefault(k, []).append(watch)
        return found

    def late(self, job: Part, flags: Any, k: Record, called: Any = None) -> dict[int, list[Any]]:
        """As `of`, once something was attached at record k, before its rule had run or by the watch `called`.

        What is whole by then has passed: what comes after later rules, or after this one for one of the first
        operands.
        """
        self._find()
        places = self._places(job, flags)
        now = k, -places[called][1] if called in places else 1
        passed = {watch for watch, (j, slot) in places.items() if (j, -slot) >= now}
        newer = {other.tape.serial for other in self._jobs if other.tape.serial > job.tape.serial}
        self._passed |= passed | {watch for watch, serial in self._last.items() if serial in newer}
        for watch in self._passed:
            self.cells.pop(watch, None)
        return self.of(job, flags)

    def _places(self, job: Part, flags: Any) -> dict[Any, tuple[Record, int]]:
        """After which record's rule, and for which of its operands, gradients are whole that watches see."""
        mine = [watch for watch, serial in self._last.items() if serial == job.tape.serial]
        found: dict[Any, tuple[Record, int]] = {}
        if not mine:
            return found
        imports, columns = job.tape.imports, job.columns
        watches = {k: imports[k].hooks for k in job.reached if k in imports}
        rows, _ = table.operations()
        for k in range(columns.n):
            opcode = columns.opcode(k)
            if len(found) == len(mine) or flags[k] & BOTH != BOTH or BY_OPCODE[opcode] is None:
                continue
            for slot, j in enumerate(columns.operands(k, int(rows[opcode, layout.FORM]))):
                watch = watches.get(j)
                if watch in mine:
                    found.setdefault(watch, (k, slot))
        for q, watch in enumerate([watch for watch in mine if watch not in found]):
            found[watch] = -1, q
        return found

    def call(self, watch: Any, results: dict[Any, Any]) -> None:
        """Let a watch see, and change, the gradient of its leaf."""
        self._passed.add(watch)
        keys = [cell for cell in self.cells.pop(watch) if cell in results]
        if keys:
            total = results.pop(keys[0])
            for key in keys[1:]:
                total = total + results.pop(key)
            results[keys[0]] = watch.before(total)

    def rest(self, results: dict[Any, Any]) -> None:
        """Call what is left at the end of the sweep: the leaves that are roots themselves."""
        for watch in list(self.cells):
            self.call(watch, results)
