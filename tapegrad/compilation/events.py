"""What a function does to Tensors: its operations, in order, learned from a call that is recorded."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.core.base import Handle, requires_grad, value_of, wrap
from tapegrad.core.dispatch import is_view_of
from tapegrad.core.storage import DUAL, STALE
from tapegrad.ops import MEANING
from tapegrad.ops.lapack import Kept
from tapegrad.ops.primitive import Attributes, Elementwise, Linear, Primitive, Reduction
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
    """An operation: op, operands, attributes, what it gave, whether that is a view, how it was called."""

    op: Any  # a Primitive, or Passive
    operands: tuple[Source, ...]
    attrs: Attributes
    value: Any
    is_view: bool
    call: Called | None = None


class Learner:
    """What sees the operations of a call being recorded: a `Matcher` that expects nothing.

    Attributes
    ----------
    events
        The operations so far.
    reason
        Why they make no program; empty if they do.
    arguments, held
        Values of the arguments, and how many bytes these and the results have.
    is_too_large
        Whether there are too many operations or bytes; then none are kept.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.arguments: list[np.ndarray] = []
        self.held, self.reason, self.is_too_large = 0, "", False
        self.known: dict[int, tuple[weakref.ref[Tensor], Source, Any, Any]] = {}  # with their histories

    def add(self, x: Tensor, source: Source) -> None:
        """Know a Tensor from now on."""
        self.known[id(x)] = weakref.ref(x), source, x._tape, x._at
        if source.kind == ARGUMENT:
            self.arguments.append(np.array(x._v))
            self.held += self.arguments[-1].nbytes

    def call(
        self, function: Callable[..., Any], how: Callable[..., Any], args: Sequence[Any], kwargs: Any
    ) -> Any:
        """Return what a function of NumPy's gives, and note how it was called if it means an op."""
        before = len(self.events)
        out = how(*args, **kwargs)
        if len(self.events) == before + 1 and isinstance(out, Handle):
            event = self.events[-1]
            given = [self._given(x, event) for x in args]
            simple = all(isinstance(x, SIMPLE) for x in kwargs.values()) and UNKNOWN not in given
            means = function in event.op.functions and isinstance(event.op, WITHOUT_ERRORS)
            if simple and means and self.source_of(out) == Source(RESULT, before):
                self.events[-1] = event._replace(call=Called(function, tuple(given), dict(kwargs)))
        return out

    def _given(self, x: Any, event: Event) -> Any:
        """An argument as a later one is compared with it; UNKNOWN where it cannot be."""
        if isinstance(x, Handle):
            return self.source_of(x) or UNKNOWN
        if type(x) is np.ndarray:
            operands = enumerate(event.operands)
            return next((Brought(q) for q, s in operands if s.kind == LIVE and s.value is x), UNKNOWN)
        if type(x) in (list, tuple) and any(isinstance(part, Handle) for part in x):
            parts = tuple(self._given(part, event) for part in x)
            return UNKNOWN if UNKNOWN in parts else Several(type(x), parts)
        simple = isinstance(x, SIMPLE) or (type(x) is tuple and all(isinstance(part, SIMPLE) for part in x))
        return x if simple else UNKNOWN

    def expect(self, op: Primitive, operands: Sequence[Any], attrs: Attributes | None) -> None:
        """Expect nothing."""

    def part(self, x: Handle, index: Any) -> None:
        """Expect nothing."""

    def match(self, op: Primitive, value: Any, operands: Sequence[Any], attrs: Attributes | None) -> None:
        """Expect nothing."""

    def wrap(self, value: Any, tape: Any, at: int) -> Tensor:
        """Return the Tensor of a result."""
        return wrap(value, tape, at)

    def note(self, op: Primitive, operands: Sequence[Any], attrs: Attributes | None, out: Tensor) -> None:
        """Note an operation."""
        if self.reason:
            return
        try:
            sources = tuple(self._source(op, q, x) for q, x in enumerate(operands))
        except Unlearnable as error:
            self.reason = str(error)
            return
        if attrs and any(isinstance(x, Kept) for x in attrs.values()):
            self.reason = f"{op.name} has factors of its operand, which are others at each call"
            return
        view = len(operands) == 1 and is_view_of(out._v, value_of(operands[0]))
        self.held += out._v.nbytes
        if len(self.events) == MOST_EVENTS or self.held > MOST_BYTES:
            self.is_too_large = True
            self.reason = f"it has over {MOST_EVENTS:,} operations or {MOST_BYTES:,} bytes, too many to keep"
            self.events.clear()
            return
        self.events.append(Event(op, sources, attrs or {}, out._v, view))
        self.add(out, Source(RESULT, len(self.events) - 1))

    def lesson(self) -> list[Event]:
        """Return the operations with copies of the arrays that the call has brought."""
        copies: dict[int, np.ndarray] = {}

        def kept(source: Source) -> Source:
            x = source.value
            if source.kind != LIVE or not isinstance(x, np.ndarray):
                return source
            if id(x) not in copies:
                copies[id(x)] = np.array(x)
            return Source(LIVE, copies[id(x)])

        return [event._replace(operands=tuple(map(kept, event.operands))) for event in self.events]

    def source_of(self, x: Handle) -> Source | None:
        """What a Tensor is to the events, if it has the history that it was noted with."""
        reference, source, tape, at = self.known.get(id(x), (None, None, None, None))
        same = reference is not None and x._tape is tape and x._at == at and reference() is x
        return source if same else None

    def _source(self, op: Primitive, q: int, x: Any) -> Source:
        if isinstance(x, Handle):
            found = self.source_of(x)
            if found is not None:
                return found
            if x._tape is DUAL or x._tape is STALE or requires_grad(x):
                raise Unlearnable(
                    f"operand {q} of {op.name} is a Tensor from outside that requires grad, or was written to"
                )
        value = value_of(x)
        if op is POWER and q == 1 and isinstance(value, NUMBERS):
            return Source(FIXED, value)
        return Source(LIVE, value)

    def like(self, x: Handle) -> Any:
        """As `compute`."""
        return self.compute(x)

    def compute(self, x: Handle) -> Any:
        """As of a `Matcher`; it has given no Tensors without a value."""
        raise AttributeError("_v")

    def leave(self, why: str) -> None:
        """End nothing."""
