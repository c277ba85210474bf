"""What a function does to Tensors: its operations, in order, learned from a call that is recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.compilation import background
from tapegrad.compilation.memory import LARGE
from tapegrad.compilation.passive import Operation, Passive, flat_operation
from tapegrad.core import dispatch
from tapegrad.core.base import Handle, requires_grad, value_of, wrap
from tapegrad.core.dispatch import is_view_of
from tapegrad.core.grad_mode import Mode, _enabled
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.ops import MEANING
from tapegrad.ops.primitive import Attributes, Elementwise, Linear, Primitive, Reduction
from tapegrad.tape.pool import shadow
from tapegrad.tensor import Tensor

POWER = MEANING[np.power]
WITHOUT_ERRORS = Elementwise, Reduction, Linear  # of operands of shapes that have been seen to fit
SIMPLE = int, str, type(None)  # what arguments that are no operands are
UNKNOWN = object()
PYTHON_S = (int, float, bool, complex)  # numbers that have the dtype of what they are combined with
NUMBERS = (float, int, np.floating, np.integer, np.complexfloating, complex)
MOST_EVENTS = 1 << 16  # operations of a program
MOST_BYTES = 1 << 28  # of their results and the arguments


class Unlearnable(Exception):
    """A call does what no program is made of; the text says what."""


class Source(NamedTuple):
    """An operand: the `ARGUMENT` or `RESULT` of a number, or a value without history.

    Of those a `LIVE` one may be another number or array at each call; a `FIXED` one, such as an exponent, is
    not. An operand of another event, of both numbers, is `SHARED`.
    """

    kind: int
    value: Any


ARGUMENT, RESULT, LIVE, FIXED, SHARED = range(5)


class Several(NamedTuple):
    """Operands in a list or a tuple."""

    kind: type
    parts: tuple[Any, ...]


class Brought(NamedTuple):
    """A number or an array that a call brings, by the number of the operand that it is."""

    operand: int


class Called(NamedTuple):
    """A call of a function of NumPy's that means an op: operands as sources, all else as it was given."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Event(NamedTuple):
    """An operation: op, operands, attributes, what it gave, whether that is a view, how it was called.

    Is it not `known` what it gave, as that is large, `value` has but the shape and dtype.
    """

    op: Any  # a Primitive, or Passive
    operands: tuple[Source, ...]
    attrs: Attributes
    value: Any
    is_view: bool
    call: Called | None = None
    known: bool = True


def activity(events: Sequence[Event]) -> list[bool]:
    """Of which events the results depend on the arguments."""
    active: list[bool] = []
    for event in events:
        passive = isinstance(event.op, Passive)
        active.append(not passive and any(moves(source, active) for source in event.operands))
    return active


def moves(source: Source, active: Sequence[bool]) -> bool:
    """Whether an operand depends on the arguments."""
    return source.kind == ARGUMENT or (source.kind == RESULT and active[source.value])


class History(NamedTuple):
    """What tells a Tensor with a history, if it is not written to: address, serial of the tape, position.

    Of one without a history, that a call has computed, the serial is `FLAT` and it is known by its number.
    """

    handle: int
    serial: int
    at: int


class Flat(NamedTuple):
    """A Tensor without a history that a call has computed, the value it was given, what tells it."""

    handle: Handle
    value: Any
    told: History

    def is_as_made(self) -> bool:
        """Whether nobody has written to it, or seen it otherwise."""
        return self.handle._v is self.value and self.handle._extra is None


class Trace(NamedTuple):
    """What a call has done, with nothing of the user's in it but values and copies.

    Attributes
    ----------
    entries
        The operations: `WIDTH` entries each (`kernels.replay.layout`). Those that Python has listed have in
        the place of the operands a list of these, attributes, and whether the result is a view.
    calls
        How operations were called, by their number, with histories in the place of sources.
    arguments, histories
        Values of the arguments, and what tells their Tensors.
    held
        How many bytes all that has.
    """

    entries: list[Any]
    calls: dict[int, Called]
    arguments: list[np.ndarray]
    histories: list[History]
    held: int

    def events(self, found: History) -> tuple[list[Event], int]:
        """Return the operations, and the number of that which gave a Tensor."""
        known = {x: Source(ARGUMENT, k) for k, x in enumerate(self.histories)}
        events: list[Event] = []
        entries = list(zip(*(self.entries[q::WIDTH] for q in range(WIDTH)), strict=True))
        used = _used(entries)
        for k, entry in enumerate(entries):
            background.pause()
            op, value, told = entry[0], entry[4], History(*entry[1:4])
            if told.serial == FLAT and told not in used:
                continue
            if entry[-1]:
                value = np.empty(value.shape, value.dtype)  # of which no page is used
            attrs, view = entry[6:8] if type(entry[5]) is list else ({}, False)
            sources = tuple(_source(op, q, x, known) for q, x in enumerate(_operands(entry)))
            call = _with_sources(self.calls.get(k), known)
            known[told] = Source(RESULT, len(events))
            events.append(Event(op, sources, attrs, value, view, call, not entry[-1]))
        source = known.get(found)
        if source is None or source.kind != RESULT:
            raise Unlearnable(RETURNED.format("Tensor"))
        return events, source.value


def _operands(entry: Sequence[Any]) -> list[Any]:
    """Operands of an operation that is listed."""
    if type(entry[5]) is list:
        return entry[5]
    found = [x if j is None else History(i, j, x) for i, j, x in (entry[5:8], entry[8:11])]
    return found[: entry[0].arity]


def _used(entries: Sequence[Sequence[Any]]) -> set[History]:
    """What tells Tensors that operations with a derivative need, directly or not."""
    used: set[History] = set()
    for entry in reversed(entries):
        background.pause()
        told = History(*entry[1:4])
        if told.serial != FLAT or told in used:
            used |= {x for x in _operands(entry) if type(x) is History}
    return used


def _source(op: Primitive, q: int, x: Any, known: dict[History, Source]) -> Source:
    if type(x) is History:
        if x not in known:
            raise Unlearnable(OUTSIDE.format(q, op.name))
        return known[x]
    return Source(FIXED if op is POWER and q == 1 and isinstance(x, NUMBERS) else LIVE, x)


def _with_sources(x: Any, known: dict[History, Source]) -> Any:
    """What was given to a function, with sources in the place of histories."""
    if type(x) is History:
        return known.get(x, UNKNOWN)
    if type(x) is Several:
        parts = tuple(_with_sources(y, known) for y in x.parts)
        return UNKNOWN if UNKNOWN in parts else x._replace(parts=parts)
    if type(x) is Called:
        args = tuple(_with_sources(y, known) for y in x.args)
        return None if UNKNOWN in args else x._replace(args=args)
    return x


def _history(x: Handle) -> History:
    tape: Any = x._tape
    return History(id(x), tape.serial, x._at)


OUTSIDE = "operand {} of {} is a Tensor from outside that requires grad, or was written to"
RETURNED = "it returned {}, which is no result of an operation on its arguments"
WIDTH = layout.TRACE_ENTRIES
FLAT = -1  # no serial of a tape


class Learner:
    """What sees the operations of a call being recorded: a `Matcher` that expects nothing.

    Compiled code lists operators and ufuncs as it records them.

    Attributes
    ----------
    entries
        The operations so far, see `Trace`.
    tracing
        The address of the words by which compiled code lists operations.
    found
        What tells the Tensor that the function has returned.
    """

    found: History

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self._arguments: list[np.ndarray] = []
        self._histories: list[History] = []
        self._calls: dict[int, Called] = {}
        self._brought: list[int] = []  # places of what is no number of Python's, nor a Tensor with a history
        self._flat: dict[int, Flat] = {}  # by ids: Tensors without a history that were computed
        self._reason = ""
        words = np.zeros(layout.TRACE_WORDS, np.int64)
        words[layout.TRACE_LIST], words[layout.TRACE_BYTES] = id(self.entries), MOST_BYTES
        words[layout.TRACE_BROUGHT], words[layout.TRACE_LENGTH] = id(self._brought), WIDTH * MOST_EVENTS
        words[layout.TRACE_SHADOWED] = LARGE
        self._words, self.tracing = words.data, abi.address(words)

    @property
    def is_too_large(self) -> bool:
        """Whether there are too many operations or bytes."""
        return bool(self._words[layout.TRACE_BYTES] < 0)

    @property
    def reason(self) -> str:
        """Why there is no program of it; empty if there is one."""
        if self._reason or not self.is_too_large:
            return self._reason
        return f"it has over {MOST_EVENTS:,} operations or {MOST_BYTES:,} bytes, too many to keep"

    def mode(self) -> Mode:
        """Return a mode in which operations are listed."""
        mode = Mode(True)
        mode.matcher, mode.plain, mode.tracing = self, True, self.tracing
        return mode

    def add(self, x: Tensor, ours: bool = False) -> None:
        """Know the Tensor of the next argument; its array is `ours` if nobody has it who may write to it."""
        self._histories.append(_history(x))
        self._arguments.append(np.asarray(x._v) if ours else np.array(x._v))
        self._words[layout.TRACE_BYTES] -= self._arguments[-1].nbytes

    def trace(self) -> Trace:
        """Return what has come, which is ended by that."""
        copies: dict[int, np.ndarray] = {}

        def kept(x: Any, k: int, q: int) -> Any:
            if type(x) is Flat:
                if x.is_as_made():
                    return x.told
                x = x.value
            if isinstance(x, Handle):
                if requires_grad(x):
                    self._reason = self._reason or OUTSIDE.format(q, entries[WIDTH * k].name)
                x = x._v
            if not isinstance(x, np.ndarray):
                return x
            if id(x) not in copies:
                copies[id(x)] = np.array(x)
            return copies[id(x)]

        entries, words = self.entries, self._words
        held, words[layout.TRACE_LENGTH] = MOST_BYTES - words[layout.TRACE_BYTES], 0
        for at in self._brought:
            k, x = at // WIDTH, entries[at]
            if type(x) is list:
                entries[at] = [y if type(y) is History else kept(y, k, q) for q, y in enumerate(x)]
                continue
            flat, entries[at - 2] = self._flat.get(entries[at - 2]), None
            found = kept(x if flat is None or flat.value is not x else flat, k, at % WIDTH // 10)
            if type(found) is History:
                entries[at - 2 : at + 1] = found
            else:
                entries[at] = found
        return Trace(entries, self._calls, self._arguments, self._histories, held)

    def call(
        self, function: Callable[..., Any], how: Callable[..., Any], args: Sequence[Any], kwargs: Any
    ) -> Any:
        """Return what a function of NumPy's gives, and note how it was called if it means an op."""
        before = len(self.entries)
        out = how(*args, **kwargs)
        if len(self.entries) == before + WIDTH and isinstance(out, Handle):
            op, *told = self.entries[before : before + 4]
            means = function in op.functions and isinstance(op, (*WITHOUT_ERRORS, Passive))
            listed = self.entries[before + 5]
            same = means and type(listed) is list and self._told(out) == History(*told)
            if same and all(isinstance(x, SIMPLE) for x in kwargs.values()):
                brought = deque((q, x) for q, x in enumerate(listed) if type(x) not in (History, Flat))
                given = tuple(self._given(x, brought) for x in args)
                if UNKNOWN not in given and not brought:
                    self._calls[before // WIDTH] = Called(function, given, dict(kwargs))
        return out

    def _given(self, x: Any, brought: deque[tuple[int, Any]]) -> Any:
        """An argument as a later one is compared with it; UNKNOWN where it cannot be.

        Operands that are no Tensors are `brought` by arguments in their order, each by one.
        """
        if brought and brought[0][1] is x:
            return Brought(brought.popleft()[0])
        if isinstance(x, Handle):
            return self._told(x) or UNKNOWN
        if type(x) in (list, tuple) and any(isinstance(part, Handle) for part in x):
            parts = tuple(self._given(part, brought) for part in x)
            return UNKNOWN if UNKNOWN in parts else Several(type(x), parts)
        simple = isinstance(x, SIMPLE) or (type(x) is tuple and all(isinstance(part, SIMPLE) for part in x))
        return x if simple else UNKNOWN

    def _told(self, x: Handle) -> History | None:
        """What tells a Tensor that was computed in the call; None for any other."""
        if x._tape is not None:
            return _history(x)
        return self._flat[id(x)].told if self.follows(x) else None

    def follows(self, x: Any) -> bool:
        """Whether this is a Tensor without a history that was computed in the call."""
        found = self._flat.get(id(x))
        return found is not None and found.is_as_made()

    def expect(self, op: Primitive, operands: Sequence[Any], attrs: Attributes | None) -> None:
        """Expect nothing."""

    def applied(self) -> None:
        """Know that an op has been computed."""

    def expect_flat(self, function: Callable[..., Any], args: Sequence[Any], names: Attributes) -> None:
        """Expect nothing."""

    def part(self, x: Handle, index: Any) -> None:
        """Expect nothing."""

    def match(
        self, op: Primitive, value: Any, operands: Sequence[Any], attrs: Attributes | None
    ) -> Tensor | None:
        """Let compiled code record what is not expected, if it can."""
        before: Any = _enabled.get()
        if not before.plain or before.noting or before.timing:
            return None
        try:
            try:
                _enabled.set(True)
                out = dispatch.record_natively(op, value, operands, attrs)
            finally:
                _enabled.set(before)
        finally:
            _enabled.set(before)  # an interrupt may have come as the other was about to be called
        if out is not None:
            self.note(op, operands, attrs, out)
        return out

    def wrap(self, value: Any, tape: Any, at: int) -> Tensor:
        """Return the Tensor of a result."""
        return wrap(value, tape, at)

    def note(self, op: Primitive, operands: Sequence[Any], attrs: Attributes | None, out: Tensor) -> None:
        """List an operation."""
        for q, x in enumerate(operands):
            if isinstance(x, Handle) and x._tape is None and requires_grad(x):
                self._reason = self._reason or OUTSIDE.format(q, op.name)
        self._list(op, operands, attrs, out, _history(out))

    def note_flat(
        self, function: Callable[..., Any], args: Sequence[Any], names: Attributes, out: Handle
    ) -> None:
        """List what a function without a derivative has computed, if it may be computed again."""
        known = flat_operation(function, args, names)
        if known is not None:
            self.note_plain(*known, out)

    def note_plain(
        self, op: Operation, operands: Sequence[Any], attrs: Attributes | None, out: Handle
    ) -> None:
        """List an operation whose result has no history, if it is of Tensors that the call has computed."""
        followed = [x for x in operands if isinstance(x, Handle) and self._told(x) is not None]
        outside = any(requires_grad(x) and self._told(x) is None for x in operands if isinstance(x, Handle))
        if followed and not outside and out._tape is None and out._extra is None:
            told = History(id(out), FLAT, len(self._flat))
            self._list(op, operands, attrs, out, told)
            self._flat[id(out)] = Flat(out, out._v, told)

    def _list(
        self, op: Any, operands: Sequence[Any], attrs: Attributes | None, out: Handle, told: History
    ) -> None:
        words = self._words
        words[layout.TRACE_BYTES] -= out._v.nbytes
        if len(self.entries) >= words[layout.TRACE_LENGTH]:
            words[layout.TRACE_BYTES] = -1
        if self.reason:
            return
        given = []
        for x in operands:
            history = isinstance(x, Handle) and x._tape is not None
            given.append(_history(x) if history else self._flat[id(x)] if self.follows(x) else value_of(x))
        if not all(type(x) is History for x in given):
            self._brought.append(len(self.entries) + 5)
        value, x = out._v, value_of(operands[0])
        view = len(operands) == 1 and is_view_of(value, x)
        shadowed = value.nbytes >= LARGE and not view and value.flags.c_contiguous
        value = shadow(value) if shadowed else value
        self.entries += (op, *told, value, given, attrs or {}, view, None, None, None, shadowed)

    def end(self, found: Any) -> None:
        """Know what the function has returned, if it may be a result of these operations."""
        if isinstance(found, Handle) and found._tape is not None:
            self.found = _history(found)
        else:
            self._reason = self._reason or RETURNED.format(type(found).__name__)

    def moves(self, x: Handle) -> bool:
        """As `compute`."""
        raise AttributeError("_v")

    def like(self, x: Handle) -> Any:
        """As `compute`."""
        return self.compute(x)

    def compute(self, x: Handle) -> Any:
        """As of a `Matcher`; it has given no Tensors without a value."""
        raise AttributeError("_v")

    def leave(self, why: str) -> None:
        """End nothing."""
