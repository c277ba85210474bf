"""A tape as text: one record a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tapegrad.kernels import abi, table
from tapegrad.kernels.replay import layout
from tapegrad.tape.record import CONS, CONST, LEAF, LINK, Record

NAMES = {CONST: "constant", LEAF: "leaf", LINK: "link", CONS: "operands"}


class Shown(Protocol):
    """What is looked at of a tape."""

    serial: int
    columns: Any

    def view(self) -> Any:
        """Return its columns."""

    def freed_flags(self, n: int) -> Any:
        """Tell which of its first records a sweep has released."""

    def source(self, k: Record) -> Any:
        """Tell what a record imports, a pair of a tape and a record if that is one of an older tape."""


def show(tape: Shown, name: Callable[[int], str], limit: int = 100) -> str:
    """Describe a tape's records: number, op, operands, dtype and shape, whether the value is kept.

    Parameters
    ----------
    tape
        Open or sealed; stays as it is.
    name
        Gives an op's name by its opcode.
    limit
        The number of records shown; the last ones.
    """
    columns = tape.view()
    rows, _ = table.operations()
    freed = tape.freed_flags(columns.n)
    lines = [f"tape {tape.serial}, {columns.n} records, {'open' if tape.columns is None else 'sealed'}"]
    for k in range(max(0, columns.n - limit), columns.n):
        opcode = columns.opcode(k)
        operands = columns.operands(k, int(rows[opcode, layout.FORM]))
        text = f"{NAMES.get(opcode) or name(opcode)}({', '.join(f'%{j}' for j in operands)})"
        source = tape.source(k)
        if isinstance(source, tuple):
            text += f" of %{source[1]} on tape {source[0].serial}"
        kind = abi.NAMES.get(columns.code(k), "-")
        state = "freed" if freed is not None and freed[k] else "" if columns.values[k] is None else "kept"
        lines.append(f"%{k:<5d} {text:40s} {kind} {columns.shape(k)} {state}".rstrip())
    return "\n".join(lines)
