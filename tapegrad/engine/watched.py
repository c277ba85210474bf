"""When what a user attached to records and leaves is called in a sweep.

A *watch* is such an attachment: ``before(ct)`` sees the cotangent of what it is attached to and returns it or
another. What it returns is the gradient; then, at a record whose rule runs, ``entering(ct)`` may change what
the rule gets, and ``after(parts, ct, operands)`` sees what the rule made of it for some of so many operands.
That of a record stands in its tape's `hooks` and is called when the sweep comes to the record. That of a
leaf stands in its `Cell` and is called with the whole gradient, as soon as the last record that contributes
to it has run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tapegrad.kernels import abi, table
from tapegrad.kernels.replay import layout
from tapegrad.ops.primitive import BY_OPCODE, in_dtype
from tapegrad.tape.record import Record
from tapegrad.tape.tape import Cell, Columns

if TYPE_CHECKING:
    from tapegrad.engine.plan import Job

BOTH = layout.NEED | layout.MARK


def after_rule(
    watch: Any, found: dict[int, Any], ct: Any, columns: Columns, operands: list[Record]
) -> dict[int, Any]:
    """What a record's rule gave its operands, in their dtypes, as a watch leaves it."""
    given = {q: in_dtype(part, abi.DTYPES[columns.code(operands[q])]) for q, part in found.items()}  # type: ignore[no-untyped-call]
    return watch.after(given, ct, len(operands))  # type: ignore[no-any-return]


class Leaves:
    """The watched leaves of a sweep: after which record the gradient of each is whole.

    Parameters
    ----------
    jobs
        The tapes of the sweep, in its order.
    start
        Gradients that are there before it begins, by key.
    """

    def __init__(self, jobs: Iterable[Job], start: Iterable[Any]) -> None:
        self.cells: dict[Any, set[Cell]] = {}  # by watch: a leaf has a cell for each value it had
        self._last: dict[Any, int] = {}  # by watch: the serial of the tape that contributes last
        for key in start:
            if isinstance(key, Cell) and key.hooks is not None:
                self.cells.setdefault(key.hooks, set()).add(key)
        for job in jobs:
            for k in job.reached:
                cell = job.tape.imports.get(k)
                if cell is not None and cell.hooks is not None:
                    self.cells.setdefault(cell.hooks, set()).add(cell)
                    self._last[cell.hooks] = job.tape.serial

    def of(self, job: Job, flags: Any) -> dict[int, list[Any]]:
        """The watches to be called in a job, by the record after whose rule; -1 for the end of the job."""
        mine = [watch for watch, serial in self._last.items() if serial == job.tape.serial]
        if not mine:
            return {}
        imports, columns = job.tape.imports, job.columns
        places = {k: imports[k].hooks for k in job.reached if k in imports}
        rows, _ = table.operations()
        found: dict[int, list[Any]] = {}
        for k in range(columns.n):
            opcode = columns.opcode(k)
            if not mine or flags[k] & BOTH != BOTH or BY_OPCODE[opcode] is None:
                continue
            for j in columns.operands(k, int(rows[opcode, layout.FORM])):
                watch = places.get(j)
                if watch in mine:
                    mine.remove(watch)
                    found.setdefault(k, []).append(watch)
        if mine:
            found[-1] = mine
        return found

    def call(self, watch: Any, results: dict[Any, Any]) -> None:
        """Let a watch see, and change, the gradient of its leaf."""
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
