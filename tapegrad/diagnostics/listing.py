"""A graph as text, and as HTML that opens and closes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tapegrad.diagnostics.drawing import runs_of
from tapegrad.diagnostics.page import (
    bytes_text,
    details,
    escape,
    several,
    shortened,
    table,
    time_text,
)

if TYPE_CHECKING:
    from tapegrad.diagnostics.records import Entry, Snapshot

__all__ = ["html", "summary", "text"]

ROWS = 100  # of a listing
NAMED = 6  # operands
LENGTH = 80  # of a line of code
Item = int | str  # the place of a record, or a note between records


def _items(graph: Snapshot) -> list[Item]:
    """What a listing has, line by line; what repeats once."""
    first = sum(entry.kind in ("leaf", "constant") for entry in graph.records)
    inputs: list[Item] = [k for k in range(first) if not graph.records[k].is_number]
    operations: list[Item] = []
    at = first
    for start, period, times in runs_of(graph):
        operations += range(at, first + start + period)
        operations.append(f"the last {several(period, 'operation')} another {several(times - 1, 'time')}")
        at = first + start + period * times
    operations += range(at, len(graph.records))
    left_out = graph.operations - (len(graph.records) - first) + max(len(operations) - ROWS, 0)
    about = "" if graph.complete else "at most "
    return [
        *inputs[:ROWS],
        *[f"{len(inputs) - ROWS:,} more leaves and constants"] * (len(inputs) > ROWS),
        *[f"{about}{several(left_out, 'earlier operation')}"] * (left_out > 0),
        *operations[-ROWS:],
    ]


def _names(graph: Snapshot) -> list[str]:
    """What records are called in a listing: numbers as they are, others by their place."""
    found, number = [], 0
    for entry in graph.records:
        found.append(entry.name if entry.is_number else f"%{number}")
        number += not entry.is_number
    return found


def _operands(entry: Entry, names: list[str]) -> str:
    found = ["…" if j < 0 else names[j] for j in entry.operands[:NAMED]]
    return ", ".join(found + ["…"] * (len(entry.operands) > NAMED))


def _name(entry: Entry) -> str:
    return f"{entry.kind} {entry.name}".strip() if entry.kind in ("leaf", "constant") else entry.name


def _time(us: float | None) -> str:
    return "" if us is None else time_text(us)


def summary(graph: Snapshot) -> str:
    """How much there is, in words."""
    kinds = [entry.kind for entry in graph.records]
    leaves, constants = kinds.count("leaf"), kinds.count("constant")
    about = "" if graph.complete else "at most "
    return (
        f"{about}{several(graph.operations, 'operation')}, {leaves} {'leaf' if leaves == 1 else 'leaves'}, "
        f"{several(constants, 'constant')}"
    )


def text(graph: Snapshot) -> str:
    """The records as text, one a line."""
    names = _names(graph)
    rows = []
    for item in _items(graph):
        if isinstance(item, str):
            rows.append([f"... {item}"])
            continue
        entry = graph.records[item]
        line = f"{entry.line} {entry.line.text}".strip() if entry.line else ""
        took = "/".join(map(_time, (entry.forward, entry.backward))).strip("/")
        call = f"{_name(entry)}({_operands(entry, names)})" if entry.operands else _name(entry)
        rows.append([names[item], shortened(call, LENGTH), entry.described, entry.state, took, line])
    width = [max((len(row[q]) for row in rows if len(row) > 1), default=0) for q in range(6)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, width, strict=False)).rstrip() for row in rows]
    return "\n".join([summary(graph), *lines])


def html(graph: Snapshot, shown: bool = True) -> str:
    """The records as HTML that can be opened and closed."""
    names, records = _names(graph), graph.records
    columns = {
        "forward": any(entry.forward is not None for entry in records),
        "backward": any(entry.backward is not None for entry in records),
        "line": any(entry.line for entry in records),
    }
    rows: list[list[str] | str] = []
    for item in _items(graph):
        if isinstance(item, str):
            rows.append(escape(f"… {item}"))
            continue
        entry = records[item]
        line = entry.line
        code = f"<code>{escape(shortened(line.text, LENGTH))}</code>" if line else ""
        cells = {
            "line": f"<span class=soft title='{escape(line.file)}'>{escape(line)}</span> {code}"
            if line
            else "",
            "forward": _time(entry.forward),
            "backward": _time(entry.backward),
        }
        name = escape(shortened(_name(entry), LENGTH))
        rows.append([
            names[item], f"<b>{name}</b>" if item in graph.outputs else name, escape(_operands(entry, names)),
            escape(entry.described), bytes_text(entry.nbytes), entry.state,
            *(cells[key] for key, there in columns.items() if there),
        ])  # fmt: skip
    head = ["", "operation", "operands", "dtype, shape", "size", "value"]
    head += [key for key, there in columns.items() if there]
    times = [q for q, key in enumerate(head) if key in ("size", "forward", "backward")]
    by_name = table(["operation", "how many"], [[escape(k), f"{n:,}"] for k, n in graph.counts.items()], [1])
    body = table(head, rows, times) + details("<span class=soft>how many of each operation</span>", by_name)
    return details(f"<b>graph</b> <span class=soft>{escape(summary(graph))}</span>", body, shown)
