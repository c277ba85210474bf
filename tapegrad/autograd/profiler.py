"""Where the time goes: operations, sweeps and compilations, by name."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from tapegrad.autograd.anomaly_mode import stack_of
from tapegrad.autograd.profiler_util import (
    EventList,
    FunctionEvent,
    FunctionEventAvg,
    flops,
    flops_of_rule,
    nested,
)
from tapegrad.core.base import Handle
from tapegrad.core.context_manager import Block, nothing
from tapegrad.core.grad_mode import Mode, _enabled, change_mode, in_force
from tapegrad.errors import TapeError
from tapegrad.kernels import abi, cache
from tapegrad.kernels.replay import layout
from tapegrad.ops.primitive import BY_OPCODE, Primitive
from tapegrad.tape.columns import Columns
from tapegrad.tape.record import STRIDE
from tapegrad.tensor import Operand, Tensor, TensorOrArray

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["EventList", "FunctionEvent", "FunctionEventAvg", "profile", "record_function"]

now = time.perf_counter_ns
ROOM = 1 << 16  # words for events of compiled code, before Python takes them


P = ParamSpec("P")
R = TypeVar("R")


class _Open:
    """An event while it lasts."""

    __slots__ = ("begin", "record", "what")

    def __init__(self, record: profile, *what: Any) -> None:
        self.record, self.what = record, what

    def __enter__(self) -> None:
        self.begin = now()

    def __exit__(self, *exception: object) -> None:
        self.record.note_ended(self.begin, *self.what)


@functools.cache
def _clock() -> tuple[int, int]:
    """Address of a function that tells the time, and its clock; zeros where it is not that of `now`."""
    if "CLOCK_MONOTONIC" not in time.get_clock_info("perf_counter").implementation:
        return 0, 0
    function = ctypes.CDLL(None).clock_gettime
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0), time.CLOCK_MONOTONIC


class profile(Block):
    """Context manager: takes the time of operations, of each record in a sweep, and of compilations.

    Recording and sweeps stay compiled: compiled code notes the time. That takes some 0.1 us more for an
    operation and 0.04 for a record in a sweep; operations that are computed in Python take 1 us more. Shapes,
    bytes and flops cost as good as nothing; lines take 4 us for an operation, and 0.2 for each function that
    has called the one at work: in a notebook some 10.

    Parameters
    ----------
    enabled : bool, optional
        False: nothing is done.
    record_shapes, profile_memory, with_stack, with_flops : bool, optional
        Note the shapes of operands, the bytes of results, the lines of the user's code, and how many
        additions and multiplications there are: of arithmetic, ``sum``, ``mean``, ``norm``, ``convolve`` and
        ``matmul``; in a sweep as many for each operand that a gradient is wanted of, none where a cotangent
        is only passed on. Flops take the shapes along.

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

    now = staticmethod(now)

    def __init__(
        self,
        enabled: bool = True,
        *,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
    ) -> None:
        self.enabled = enabled
        self.record_shapes, self.profile_memory = record_shapes, profile_memory
        self.with_stack, self.with_flops = with_stack, with_flops
        self.with_shapes = record_shapes or with_flops
        self._words = np.zeros(8, np.int64)
        self.address = abi.address(self._words)
        self._clear()

    def _clear(self) -> None:
        self._ended_events: list[tuple[Any, ...]] = []  # as they ended, but those of compiled code
        self._buffers: list[tuple[Any, int]] = []
        self._sweeps: list[tuple[Any, ...]] = []
        self._found: EventList | None = None
        self._known = 0, 0, 0
        self._origin = now()

    def __enter__(self) -> profile:
        if self.enabled:
            if in_force("profile") is not None:
                raise TapeError("a profile is at work here already; they do not nest")
            self._clear()
            words, (words[layout.EVENT_CLOCK], words[layout.EVENT_CLOCK_KIND]) = self._words, _clock()
            words[layout.EVENT_SHAPES] = self.with_shapes
            self._make_room()
            self.at_end(functools.partial(self._restore, _enabled.get()))
            change_mode(profile=self)
            cache.observers.append(self._loaded)
        else:
            self.at_end(nothing)
        return self

    def _restore(self, before: bool | Mode) -> None:
        _enabled.set(before)
        with contextlib.suppress(ValueError):  # after an interrupt
            cache.observers.remove(self._loaded)

    # ------------------------------------------------------------ events

    def event(
        self,
        name: str,
        operands: Iterable[Operand] = (),
        backward: bool = False,
        sequence: tuple[int, int] | None = None,
    ) -> _Open:
        """Return a context manager that takes the time of what is in it."""
        return _Open(self, name, operands, backward, sequence)

    def note_ended(
        self,
        begin: int,
        name: str,
        operands: Iterable[Operand] = (),
        backward: bool = False,
        sequence: tuple[int, int] | None = None,
    ) -> None:
        """Note an event that ends now."""
        end, described = now(), self._described(operands)
        self._ended_events.append((end, begin, name, get_ident(), backward, *described, 0, 0, sequence))

    def note_operation(self, op: Primitive, operands: Iterable[Operand], out: Tensor, begin: int) -> None:
        """Note an operation that ends now."""
        end = now()
        shapes, stack = self._described(operands)
        nbytes, count, sequence = 0, 0, None
        if isinstance(out, Handle):
            nbytes = out._v.nbytes if self.profile_memory else 0
            count = flops(op, shapes) if self.with_flops else 0
            if out._tape is not None:
                sequence = out._tape.serial, out._at
        self._ended_events.append(
            (end, begin, op.name, get_ident(), False, shapes, stack, nbytes, count, sequence)
        )
        words = self._words
        if words[layout.EVENT] > words[layout.EVENT_END] and self._buffers:
            self._note_used()
            self._make_room()

    def _described(self, operands: Iterable[Operand]) -> tuple[list[tuple[int, ...]], Sequence[str]]:
        shapes: Any = ()
        stack: Any = ()
        if self.with_shapes:
            shapes = [np.shape(getattr(x, "_v", x)) for x in operands if _has_shape(x)]
        if self.with_stack:
            stack = stack_of(sys._getframe(2))
        return shapes, stack

    def stamps(self, records: int, view: memoryview) -> tuple[np.ndarray, int]:
        """Let a compiled sweep note times: where they go, and when it begins."""
        stamps = np.zeros((records, 2), np.int64)
        address, kind = _clock()
        if address:
            view[layout.STAMPS] = abi.address(stamps)
            view[layout.CLOCK], view[layout.CLOCK_KIND] = address, kind
        return stamps, now()

    def swept(
        self, serial: int, n: int, words: np.ndarray, flags: bytes, stamps: tuple[TensorOrArray, int]
    ) -> None:
        """Take in the times of a sweep's records; `words` are the columns of the tape."""
        self._sweeps.append((serial, n, words, flags, *stamps, get_ident()))

    def _loaded(self, name: str, begin: int, end: int) -> None:
        begin = max(begin, self._origin)  # another thread's may have begun before
        self._ended_events.append((end, begin, f"compile {name}", get_ident(), False, (), (), 0, 0, None))

    def _make_room(self) -> None:
        """Let compiled code write events; without room, or where lines are wanted, Python does."""
        words = self._words
        if not words[layout.EVENT_CLOCK] or self.with_stack:
            words[layout.EVENT] = 1
            return
        buffer = np.empty(ROOM, np.int64)
        self._buffers.append((buffer, 0))
        words[layout.EVENT] = at = abi.address(buffer)
        words[layout.EVENT_END] = at + 8 * (ROOM - 8 * layout.EVENT_ROOM)

    def _note_used(self) -> None:
        """Note how many words compiled code has written."""
        if self._buffers:
            buffer, _ = self._buffers[-1]
            self._buffers[-1] = buffer, (int(self._words[layout.EVENT]) - abi.address(buffer)) // 8

    # ------------------------------------------------------------ what was found

    def _of_compiled_code(self) -> Iterable[tuple[Any, ...]]:
        """The operations that compiled code has written."""
        for buffer, used in self._buffers:
            words, place = buffer[:used].tolist(), 0
            while place < used:
                head, begin, end, thread, nbytes, serial, at = words[place : place + layout.EVENT_WORDS]
                place += layout.EVENT_WORDS
                shapes = []
                for ndim in (head >> 16 & 0xFF, head >> 24 & 0xFF):
                    if ndim != layout.NO_SHAPE:
                        shapes.append(tuple(words[place : place + ndim]))
                        place += ndim
                op = BY_OPCODE[head & 0xFFFF]
                count = flops(op, shapes) if self.with_flops else 0
                nbytes = nbytes if self.profile_memory else 0
                sequence = (serial, at) if serial else None
                yield end, begin, op.name, thread, False, shapes, (), nbytes, count, sequence

    def _of_sweeps(self) -> Iterable[tuple[Any, ...]]:
        """The records of sweeps: those that compiled code ran, and the events of rules run in Python."""
        rules = {}
        for serial, n, words, flags, stamps, before, thread in self._sweeps:
            times = (stamps[:, 0] * 10**9 + stamps[:, 1]).tolist()
            columns = Columns(words, n, [])
            for k in range(n - 1, -1, -1):
                end = times[k]
                if not end:
                    continue
                op = BY_OPCODE[columns.opcode(k)]
                sequence, count = (serial, STRIDE * (k + 1)), 0
                shapes = [columns.shape(k)] if self.record_shapes else ()
                if self.with_flops:
                    operands = columns.operands(k, op.recorded_form)
                    wanted = sum(1 for j in operands if flags[j] & layout.NEED)
                    count = flops_of_rule(op, [columns.shape(j) for j in operands], wanted)
                if flags[k] & layout.RULE:
                    rules[sequence] = shapes, count
                else:
                    yield end, before, op.node_name({}), thread, True, shapes, (), 0, count, sequence
                before = end
        for event in self._ended_events:
            *when, backward, shapes, frames, nbytes, count, sequence = event
            stack = [f"{name}({line}): {function}" for name, line, function in frames]
            if backward and sequence in rules:
                shapes, count = rules[sequence]
            yield *when, backward, shapes, stack, nbytes, count, sequence

    @property
    def function_events(self) -> EventList:
        """The events, in order of their begin."""
        self._note_used()
        known = len(self._ended_events), len(self._sweeps), int(self._words[layout.EVENT])
        if self._found is None or self._known != known:
            self._known = known
            events = [*self._of_compiled_code(), *self._of_sweeps()]
            events.sort(key=_ended)
            origin = self._origin
            self._found = nested(
                [
                    FunctionEvent(name, (begin - origin) / 1e3, (end - origin) / 1e3, *rest)
                    for end, begin, name, *rest in events
                ]
            )
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

    def export_chrome_trace(self, path: str | PathLike[str]) -> None:
        """Write the events to a file that chrome://tracing and Perfetto open."""
        self.function_events.export_chrome_trace(path)

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds of all events."""
        return float(sum(event.self_cpu_time_total for event in self.function_events))

    def __str__(self) -> str:
        return self.table()


def _ended(event: tuple[Any, ...]) -> int:
    return int(event[0])


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

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function, each call of it an event."""

        @functools.wraps(function)
        def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
            with record_function(self.name):
                return function(*args, **kwargs)

        return recorded
