"""What a profile found: events, their averages, tables and traces."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tapegrad.ops.primitive import Primitive

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["EventList", "FunctionEvent", "FunctionEventAvg"]

COLUMNS = {  # of the table: heading, attribute
    "Name": "key",
    "Self CPU": "self_cpu_time_total_str",
    "CPU total": "cpu_time_total_str",
    "CPU time avg": "cpu_time_str",
    "# of Calls": "count",
}
ASKED = {"CPU Mem": "cpu_memory_usage", "Total FLOPs": "flops"}  # columns that only some profiles have
Shapes = Sequence[tuple[int, ...]]


def _text(us: float) -> str:
    """A time in words."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3f}{unit}"
    return f"{us:.3f}us"


def flops(op: Primitive, shapes: Shapes) -> int:
    """How many additions and multiplications an op takes, by the shapes of its operands.

    Counted are arithmetic and ``absolute`` (one per element of the result), ``sum`` and ``mean`` (one per
    element of the operand), ``norm`` (two), ``matmul`` and ``convolve`` (two per product). Others, such as
    ``exp``, count 0.
    """
    return op.count_flops(shapes)


def flops_of_rule(op: Primitive, shapes: Shapes, wanted: int) -> int:
    """As `flops`, of a record in a sweep: what the op takes for each operand that a gradient is wanted of.

    A derivative that only passes a cotangent on, as that of a sum, counts 0.
    """
    return 0 if op.passes_on else wanted * flops(op, shapes)


class FunctionEvent:
    """One thing that took time. Times are in microseconds.

    Attributes
    ----------
    name, key : str
        Of the operation; with "Backward" behind it in a sweep.
    start, end : float
        Since the profile began.
    cpu_children : list of FunctionEvent
        Events within this one.
    cpu_parent : FunctionEvent or None
        The event that this one lies within.
    thread : int
        Its identifier.
    is_backward : bool
        Whether it is of a sweep.
    input_shapes : list of tuple
        If asked for.
    stack : list of str
        Lines of the user's code, if asked for.
    cpu_memory_usage : int
        Bytes of the result, if asked for.
    flops : int
        Additions and multiplications, if asked for.
    sequence : tuple of int or None
        Tells which record a forward operation made, and a rule in a sweep is of.
    """

    count = 1

    def __init__(
        self,
        name: str,
        start: float = 0.0,
        end: float = 0.0,
        thread: int = 0,
        backward: bool = False,
        shapes: Shapes = (),
        stack: Sequence[str] = (),
        nbytes: int = 0,
        flops: int = 0,
        sequence: tuple[int, int] | None = None,
    ) -> None:
        self.name = self.key = name
        self.start, self.end = start, end
        self.thread, self.is_backward = thread, backward
        self.cpu_children: list[FunctionEvent] = []
        self.cpu_parent: FunctionEvent | None = None
        self.input_shapes, self.stack = list(shapes), list(stack)
        self.cpu_memory_usage, self.flops, self.sequence = nbytes, flops, sequence

    @property
    def cpu_time_total(self) -> float:
        """Microseconds from begin to end."""
        return self.end - self.start

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds without those of the events within."""
        return self.cpu_time_total - sum(child.cpu_time_total for child in self.cpu_children)

    @property
    def cpu_time(self) -> float:
        """Microseconds of a call."""
        return self.cpu_time_total / self.count

    @property
    def cpu_time_str(self) -> str:
        """`cpu_time` in words."""
        return _text(self.cpu_time)

    @property
    def cpu_time_total_str(self) -> str:
        """`cpu_time_total` in words."""
        return _text(self.cpu_time_total)

    @property
    def self_cpu_time_total_str(self) -> str:
        """`self_cpu_time_total` in words."""
        return _text(self.self_cpu_time_total)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.cpu_time_total_str}, {self.count} calls>"


class FunctionEventAvg(FunctionEvent):
    """Events of one name together."""

    count = 0
    _total = _own = 0.0

    @property
    def cpu_time_total(self) -> float:
        """Microseconds of all calls; one within another of the name counts once."""
        return self._total

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds of all calls without those of the events within."""
        return self._own

    @property
    def cpu_time(self) -> float:
        """Microseconds of a call."""
        return self._total / self.count if self.count else 0.0

    def add(self, event: FunctionEvent, within: bool) -> None:
        """Take in an event; its total is part of one already counted if it lies `within` that."""
        self.count += 1
        self._own += event.self_cpu_time_total
        self._total += 0.0 if within else event.cpu_time_total
        self.cpu_memory_usage += event.cpu_memory_usage
        self.flops += event.flops
        self.input_shapes = event.input_shapes


def _above(event: FunctionEvent, among: set[int]) -> Iterator[FunctionEvent]:
    """The events that one lies within, of those with these ids."""
    above = event.cpu_parent
    while above is not None:
        if id(above) in among:
            yield above
        above = above.cpu_parent


class EventList(list[Any]):
    """Events or their averages, which print as a table."""

    def table(self, sort_by: str | None = None, row_limit: int = 100) -> str:
        """Return the events as text, a line each.

        Parameters
        ----------
        sort_by : str, optional
            An attribute, such as "cpu_time_total", "self_cpu_time_total", "count"; the largest comes first.
        row_limit : int, optional

        Returns
        -------
        str
        """
        rows = list(self)
        if sort_by is not None:
            try:
                rows.sort(key=lambda event: getattr(event, sort_by), reverse=True)
            except (AttributeError, TypeError) as error:
                raise ValueError(f"sort_by takes an attribute of events, found {sort_by!r}") from error
        asked = {head: name for head, name in ASKED.items() if any(getattr(event, name) for event in rows)}
        columns = COLUMNS | asked
        cells = [list(columns)]
        cells += [[str(getattr(event, name)) for name in columns.values()] for event in rows[:row_limit]]
        widths = [max(len(row[k]) for row in cells) for k in range(len(columns))]
        line = "  ".join("-" * width for width in widths)
        text = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in cells]
        total = sum(event.self_cpu_time_total for event in rows)
        return "\n".join([line, text[0], line, *text[1:], line, f"Self CPU time total: {_text(total)}", ""])

    __str__ = table

    def key_averages(self, group_by_input_shape: bool = False) -> EventList:
        """Return the events of each name together.

        Parameters
        ----------
        group_by_input_shape : bool, optional
            Tell apart those of other shapes.

        Returns
        -------
        EventList
            Of `FunctionEventAvg`.
        """
        found: dict[Any, FunctionEventAvg] = {}
        mine = {id(event) for event in self}
        for event in self:
            key = (event.key, str(event.input_shapes)) if group_by_input_shape else event.key
            within = any(above.key == event.key for above in _above(event, mine))
            found.setdefault(key, FunctionEventAvg(event.key)).add(event, within)
        return EventList(found.values())

    def total_average(self) -> FunctionEventAvg:
        """Return all events together."""
        total = FunctionEventAvg("Total")
        mine = {id(event) for event in self}
        for event in self:
            total.add(event, any(_above(event, mine)))
        return total

    def export_chrome_trace(self, path: str | PathLike[str]) -> None:
        """Write the events to a file that chrome://tracing and Perfetto open.

        Arrows lead from operations to their rules in a sweep.

        Parameters
        ----------
        path : path-like
        """
        process = os.getpid()
        threads = {thread: k for k, thread in enumerate(dict.fromkeys(event.thread for event in self), 1)}
        entries = [
            {"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": {"name": "tapegrad"}}
        ]
        for thread, tid in threads.items():
            name = {"name": f"thread {thread}"}
            entries.append({"name": "thread_name", "ph": "M", "pid": process, "tid": tid, "args": name})
        origins = {event.sequence: event for event in self if event.sequence and not event.is_backward}
        for k, event in enumerate(self):
            args = {
                "input shapes": [list(s) for s in event.input_shapes],
                "stack": event.stack,
            }
            args |= {"bytes": event.cpu_memory_usage, "flops": event.flops}
            where = {"pid": process, "tid": threads[event.thread]}
            kind = "backward" if event.is_backward else "forward"
            begin, length = round(event.start, 3), round(event.end - event.start, 3)
            entries.append(
                {"name": event.name, "ph": "X", "ts": begin, "dur": length, "cat": kind, "args": args} | where
            )
            origin = origins.get(event.sequence) if event.is_backward and event.sequence else None
            if origin is not None:
                arrow = {"name": "derivative", "cat": "derivative", "id": k, "pid": process}
                start = {"ph": "s", "ts": round(origin.start, 3), "tid": threads[origin.thread]}
                entries += [arrow | start, arrow | {"ph": "f", "bp": "e", "ts": begin, "tid": where["tid"]}]
        text = json.dumps({"traceEvents": entries, "displayTimeUnit": "ns"}, allow_nan=False)
        Path(path).write_text(text, encoding="utf-8")


def nested(events: list[FunctionEvent]) -> EventList:
    """Say of events, given as they ended, which lie within which; returns them as they began."""
    open_: dict[int, list[FunctionEvent]] = {}
    for event in events:
        before = open_.setdefault(event.thread, [])
        while before and before[-1].start >= event.start and event.end > event.start:
            child = before.pop()
            child.cpu_parent = event
            event.cpu_children.append(child)
        event.cpu_children.reverse()
        before.append(event)
    return EventList(sorted(events, key=lambda event: (event.start, -event.end)))
