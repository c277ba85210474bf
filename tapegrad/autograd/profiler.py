"""Where the time goes: operations, sweeps and compilations, by name."""

from __future__ import annotations

import ctypes
import functools
import json
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np

from tapegrad.dispatch import Handle
from tapegrad.errors import TapeError
from tapegrad.grad_mode import change_mode, in_force, restore_mode
from tapegrad.kernels import abi, cache
from tapegrad.kernels.replay import layout
from tapegrad.ops.primitive import BY_OPCODE
from tapegrad.tape.tape import Columns, Tape

__all__ = ["EventList", "FunctionEvent", "FunctionEventAvg", "profile", "record_function"]

now = time.perf_counter_ns
COLUMNS = {  # of the table: heading, attribute
    "Name": "key",
    "Self CPU": "self_cpu_time_total_str",
    "CPU total": "cpu_time_total_str",
    "CPU time avg": "cpu_time_str",
    "# of Calls": "count",
}


def _text(us: float) -> str:
    """A time in words."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3f}{unit}"
    return f"{us:.3f}us"


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
    thread : int
        Its identifier.
    input_shapes : list of tuple
        If asked for.
    stack : list of str
        Lines of the user's code, if asked for.
    cpu_memory_usage : int
        Bytes of the result, if asked for.
    """

    count = 1

    def __init__(self, name: str, start: int, thread: int, backward: bool) -> None:
        self.name = self.key = name
        self._begin, self._end = start, start
        self.start = self.end = 0.0
        self.thread, self.is_backward = thread, backward
        self.cpu_children: list[FunctionEvent] = []
        self.input_shapes: list[tuple[int, ...]] = []
        self.stack: list[str] = []
        self.cpu_memory_usage = 0

    @property
    def cpu_time_total(self) -> float:
        """Microseconds from begin to end."""
        return (self._end - self._begin) / 1e3

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

    def __init__(self, key: str) -> None:
        super().__init__(key, 0, 0, False)

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
        self.input_shapes = event.input_shapes


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
        cells = [list(COLUMNS)]
        cells += [[str(getattr(event, name)) for name in COLUMNS.values()] for event in rows[:row_limit]]
        widths = [max(len(row[k]) for row in cells) for k in range(len(COLUMNS))]
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

        def walk(event: FunctionEvent, above: frozenset[str]) -> None:
            key = (event.key, str(event.input_shapes)) if group_by_input_shape else event.key
            found.setdefault(key, FunctionEventAvg(event.key)).add(event, event.key in above)
            for child in event.cpu_children:
                walk(child, above | {event.key})

        inner = {id(child) for event in self for child in event.cpu_children}
        for event in self:
            if id(event) not in inner:
                walk(event, frozenset())
        return EventList(found.values())

    def total_average(self) -> FunctionEventAvg:
        """Return all events together."""
        total = FunctionEventAvg("Total")
        inner = {id(child) for event in self for child in event.cpu_children}
        for event in self:
            total.add(event, id(event) in inner)
        return total

    def export_chrome_trace(self, path: Any) -> None:
        """Write the events to a file that chrome://tracing and Perfetto open.

        Parameters
        ----------
        path : path-like
        """
        events = [
            {
                "name": event.name, "ph": "X", "ts": event.start, "dur": event.end - event.start,
                "pid": "CPU", "tid": event.thread, "cat": "backward" if event.is_backward else "forward",
                "args": {"input shapes": [list(s) for s in event.input_shapes], "stack": event.stack},
            }
            for event in self
        ]  # fmt: skip
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}), encoding="utf-8")


class _Open:
    """An event while it lasts."""

    __slots__ = ("event", "operands", "record")

    def __init__(self, record: profile, event: FunctionEvent, operands: Any) -> None:
        self.record, self.event, self.operands = record, event, operands

    def __enter__(self) -> _Open:
        stack = self.record._stack(self.event.thread)
        if stack:
            stack[-1].cpu_children.append(self.event)
        stack.append(self.event)
        self.event._begin = now()
        return self

    def made(self, out: Any) -> None:
        """See the result of an operation."""
        if self.record.profile_memory:
            self.event.cpu_memory_usage = out._v.nbytes

    def __exit__(self, *exception: object) -> None:
        event = self.event
        event._end = now()
        self.record._stack(event.thread).pop()
        self.record._describe(event, self.operands)
        self.record._events.append(event)


@functools.cache
def _clock() -> tuple[int, int]:
    """Address of a function that tells the time, and its clock; zeros where there is none."""
    if not hasattr(time, "CLOCK_MONOTONIC"):
        return 0, 0
    function = ctypes.CDLL(None).clock_gettime
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0), time.CLOCK_MONOTONIC


class profile:
    """Context manager: takes the time of operations, of each record in a sweep, and of compilations.

    Sweeps stay compiled: compiled code notes the time after each record. What is measured takes a few
    microseconds more per operation, as the compiled ways of recording are not used.

    Parameters
    ----------
    enabled : bool, optional
        False: nothing is done.
    record_shapes, profile_memory, with_stack : bool, optional
        Note the shapes of operands, the bytes of results, and the lines of the user's code.

    Attributes
    ----------
    function_events : EventList
        The events, in order of their begin.

    Raises
    ------
    TapeError
        Another profile is at work in this context.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> x = tg.tensor(np.ones(3), requires_grad=True)
    >>> with tg.autograd.profiler.profile() as prof:
    ...     np.sum(np.sin(x) * x).backward()
    >>> sorted({event.name for event in prof.function_events if "mul" in event.name.lower()})
    ['MulBackward', 'multiply']
    >>> print(prof.key_averages().table(sort_by="cpu_time_total"))  # doctest: +SKIP
    """

    def __init__(
        self,
        enabled: bool = True,
        *,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
    ) -> None:
        self.enabled = enabled
        self.record_shapes, self.profile_memory, self.with_stack = record_shapes, profile_memory, with_stack
        self._events: list[FunctionEvent] = []
        self._stacks: dict[int, list[FunctionEvent]] = {}
        self._before: Any = None
        self._found: EventList | None = None
        self._origin = 0

    def __enter__(self) -> profile:
        if self.enabled:
            if in_force("profile") is not None:
                raise TapeError("a profile is at work here already; they do not nest")
            self._events, self._found = [], None
            self._before = change_mode(profile=self)
            cache.observers.append(self._loaded)
            self._origin = now()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.enabled:
            cache.observers.remove(self._loaded)
            restore_mode(self._before)

    # ------------------------------------------------------------ what is told of

    def event(self, name: str, operands: Iterable[Any] = (), backward: bool = False) -> _Open:
        """Return a context manager that takes the time of what is in it."""
        return _Open(self, FunctionEvent(name, 0, get_ident(), backward), operands)

    def stamps(self, records: int, view: Any) -> Any:
        """Let a compiled sweep note times: where they go; the last is that of its begin."""
        address, kind = _clock()
        stamps = np.zeros((records + 1, 2), np.int64)
        if address:
            view[layout.STAMPS], view[layout.CLOCK], view[layout.CLOCK_KIND] = (
                abi.address(stamps),
                address,
                kind,
            )
        stamps[-1] = divmod(time.clock_gettime_ns(kind) if address else 0, 10**9)
        return stamps

    def swept(self, tape: Tape, columns: Columns, records: list[int], stamps: Any) -> None:
        """Take in the times of records that compiled code has run."""
        times = stamps[:, 0] * 10**9 + stamps[:, 1]
        ran = [k for k in range(columns.n - 1, -1, -1) if stamps[k, 0]]
        native = set(records)
        before = int(times[-1])
        offset = now() - time.clock_gettime_ns(time.CLOCK_MONOTONIC) if ran else 0
        stack = self._stack(get_ident())
        for k in ran:
            at = int(times[k])
            if k in native:
                op = BY_OPCODE[columns.opcode(k)]
                event = FunctionEvent(op.node_name(tape.attrs.get(k, {})), before + offset, get_ident(), True)
                event._end = at + offset
                if self.record_shapes:
                    event.input_shapes = [columns.shape(k)]
                if stack:
                    stack[-1].cpu_children.append(event)
                self._events.append(event)
            before = at

    def _loaded(self, name: str, begin: int, end: int) -> None:
        event = FunctionEvent(f"compile {name}", begin, get_ident(), False)
        event._end = end
        stack = self._stack(get_ident())
        if stack:
            stack[-1].cpu_children.append(event)
        self._events.append(event)

    def _stack(self, thread: int) -> list[FunctionEvent]:
        return self._stacks.setdefault(thread, [])

    def _describe(self, event: FunctionEvent, operands: Any) -> None:
        if self.record_shapes:
            event.input_shapes = [np.shape(getattr(x, "_v", x)) for x in operands if _has_shape(x)]
        if self.with_stack:
            event.stack = [f"{f.filename}({f.lineno}): {f.name}" for f in traceback.extract_stack()[:-3]]

    # ------------------------------------------------------------ what was found

    @property
    def function_events(self) -> EventList:
        """The events, in order of their begin."""
        if self._found is None or len(self._found) != len(self._events):
            for event in self._events:
                event.start, event.end = (
                    (event._begin - self._origin) / 1e3,
                    (event._end - self._origin) / 1e3,
                )
            self._found = EventList(sorted(self._events, key=lambda event: (event._begin, -event._end)))
        return self._found

    def table(self, sort_by: str | None = None, row_limit: int = 100) -> str:
        """Return the events as text; see `EventList.table`."""
        return self.function_events.table(sort_by, row_limit)

    def key_averages(self, group_by_input_shape: bool = False) -> EventList:
        """Return the events of each name together; see `EventList.key_averages`."""
        return self.function_events.key_averages(group_by_input_shape)

    def total_average(self) -> FunctionEventAvg:
        """Return all events together."""
        return self.function_events.total_average()

    def export_chrome_trace(self, path: Any) -> None:
        """Write the events to a file that chrome://tracing and Perfetto open."""
        self.function_events.export_chrome_trace(path)

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds of all events."""
        return sum(event.self_cpu_time_total for event in self._events)

    def __str__(self) -> str:
        return self.table()


def _has_shape(x: Any) -> bool:
    return isinstance(x, (Handle, np.ndarray, np.generic))


class record_function:
    """Context manager or decorator: an event of one's own in a profile, if one is at work.

    Parameters
    ----------
    name : str

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor(2.0, requires_grad=True)
    >>> with tg.autograd.profiler.profile() as prof:
    ...     with tg.autograd.profiler.record_function("my step"):
    ...         y = x * x
    >>> [event.name for event in prof.function_events]
    ['my step', 'multiply']
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._open: list[_Open | None] = []

    def __enter__(self) -> None:
        profile = in_force("profile")
        opened = None if profile is None else profile.event(self.name)
        self._open.append(opened)
        if opened is not None:
            opened.__enter__()

    def __exit__(self, *exception: object) -> None:
        opened = self._open.pop()
        if opened is not None:
            opened.__exit__(*exception)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, each call of it an event."""

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with record_function(self.name):
                return function(*args, **kwargs)

        return recorded
