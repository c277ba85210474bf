"""What a function does to Tensors: its operations, in order, learned from a call that is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.compilation import background
from tapegrad.compilation.memory import LARGE
from tapegrad.core import dispatch
from tapegrad.core.base import Handle, requires_grad, value_of, wrap
from tapegrad.core.dispatch import is_view_of
from tapegrad.core.grad_mode import Mode, _enabled
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.ops import MEANING
from tapegrad.ops.lapack import Kept
from tapegrad.ops.primitive import Attributes, Elementwise, Linear, Primitive, Reduction
from tapegrad.tape.pool import shadow
from tapegrad.tensor import Tensor

POWER = MEANING[np.power]
WITHOUT_ERRORS = Elementwise, Reduction, Linear  # of operands of shapes that have been seen to fit
SIMPLE = int, str, type(None)  # what arguments that are no operands are
UNKNOWN = object()
PYTHON_S = (int, float, bool)  # numbers that have the dtype of what they are combined with
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
    """An array that a call brings, by the number of the operand that it is."""

    operand: int


class Called(NamedTuple):
    """A call of a function of NumPy's that means an op: operands as sources, all else as it was given."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Passive:
    """What computes an event without a derivative, as an op computes another one."""

    name = "passive"

    def __init__(self, function: Callable[..., Any]) -> None:
        self.forward = function


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


class History(NamedTuple):
    """What tells a Tensor with a history, if it is not written to: address, serial of the tape, position."""

    handle: int
    serial: int
    at: int


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
        for k, entry in enumerate(zip(*(self.entries[q::WIDTH] for q in range(WIDTH)), strict=True)):
            background.pause()
            op, value, operands = entry[0], entry[4], entry[5]
            if entry[-1]:
                value = np.empty(value.shape, value.dtype)  # of which no page is used
            attrs, view = entry[6:8] if type(operands) is list else ({}, False)
            if type(operands) is not list:
                operands = [x if i is None else History(i, j, x) for i, j, x in (entry[5:8], entry[8:11])]
                operands = operands[: op.arity]
            sources = tuple(_source(op, q, x, known) for q, x in enumerate(operands))
            call = _with_sources(self.calls.get(k), known)
            events.append(Event(op, sources, attrs, value, view, call, not entry[-1]))
            known[History(*entry[1:4])] = Source(RESULT, k)
        source = known.get(found)
        if source is None or source.kind != RESULT:
            raise Unlearnable(RETURNED.format("Tensor"))
        return events, source.value


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
            else:
                entries[at] = kept(x, k, at % WIDTH // 10)
        return Trace(entries, self._calls, self._arguments, self._histories, held)

    def call(
        self, function: Callable[..., Any], how: Callable[..., Any], args: Sequence[Any], kwargs: Any
    ) -> Any:
        """Return what a function of NumPy's gives, and note how it was called if it means an op."""
        before = len(self.entries)
        out = how(*args, **kwargs)
        if len(self.entries) == before + WIDTH and isinstance(out, Handle) and out._tape is not None:
            op, *told = self.entries[before : before + 4]
            means = function in op.functions and isinstance(op, WITHOUT_ERRORS)
            if means and _history(out) == tuple(told) and all(isinstance(x, SIMPLE) for x in kwargs.values()):
                given = [self._given(x, before) for x in args]
                if UNKNOWN not in given:
                    self._calls[before // WIDTH] = Called(function, tuple(given), dict(kwargs))
        return out

    def _given(self, x: Any, place: int) -> Any:
        """An argument as a later one is compared with it; UNKNOWN where it cannot be."""
        if isinstance(x, Handle):
            return UNKNOWN if x._tape is None else _history(x)
        if type(x) is np.ndarray:
            listed = self.entries[place + 5]
            operands = listed if type(listed) is list else self.entries[place + 7 : place + 11 : 3]
            return next((Brought(q) for q, y in enumerate(operands) if y is x), UNKNOWN)
        if type(x) in (list, tuple) and any(isinstance(part, Handle) for part in x):
            parts = tuple(self._given(part, place) for part in x)
            return UNKNOWN if UNKNOWN in parts else Several(type(x), parts)
        simple = isinstance(x, SIMPLE) or (type(x) is tuple and all(isinstance(part, SIMPLE) for part in x))
        return x if simple else UNKNOWN

    def expect(self, op: Primitive, operands: Sequence[Any], attrs: Attributes | None) -> None:
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
        words = self._words
        words[layout.TRACE_BYTES] -= out._v.nbytes
        if len(self.entries) >= words[layout.TRACE_LENGTH]:
            words[layout.TRACE_BYTES] = -1
        if self.reason:
            return
        given = []
        for q, x in enumerate(operands):
            if isinstance(x, Handle) and x._tape is None and requires_grad(x):
                self._reason = OUTSIDE.format(q, op.name)
            given.append(_history(x) if isinstance(x, Handle) and x._tape is not None else value_of(x))
        if not all(type(x) is History for x in given):
            self._brought.append(len(self.entries) + 5)
        if attrs and any(isinstance(x, Kept) for x in attrs.values()):
            self._reason = f"{op.name} has factors of its operand, which are others at each call"
        value, x = out._v, value_of(operands[0])
        view = len(operands) == 1 and is_view_of(value, x)
        shadowed = value.nbytes >= LARGE and not view and value.flags.c_contiguous
        value = shadow(value) if shadowed else value
        self.entries += (op, *_history(out), value, given, attrs or {}, view, None, None, None, shadowed)

    def end(self, found: Any) -> None:
        """Know what the function has returned, if it may be a result of these operations."""
        if isinstance(found, Handle) and found._tape is not None:
            self.found = _history(found)
        else:
            self._reason = self._reason or RETURNED.format(type(found).__name__)

    def like(self, x: Handle) -> Any:
        """As `compute`."""
        return self.compute(x)

    def compute(self, x: Handle) -> Any:
        """As of a `Matcher`; it has given no Tensors without a value."""
        raise AttributeError("_v")

    def leave(self, why: str) -> None:
        """End nothing."""
