"""What a function does to Tensors: its operations, in order, learned from a call that is recorded."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from tapegrad.compilation import background
from tapegrad.compilation.methods import MEANT, UPDATES
from tapegrad.compilation.passive import Operation, Passive
from tapegrad.core.base import Handle
from tapegrad.core.dispatch import COPIED
from tapegrad.core.functions import BY_SHAPES, OF_VALUES
from tapegrad.kernels.replay import layout
from tapegrad.ops import MEANING, REGISTRY
from tapegrad.ops.primitive import Attributes, Elementwise, Linear, Primitive, Reduction
from tapegrad.tensor import Operand

POWER = MEANING[np.power]
PARTS = MEANING[np.real], MEANING[np.imag]  # copies, where NumPy has views
RESHAPE = REGISTRY["reshape"]
COPIES = {*PARTS, RESHAPE, REGISTRY["element"]}  # what may give such
WITHOUT_ERRORS = Elementwise, Reduction, Linear, Passive  # of operands of shapes that have been seen to fit
PRODUCTS = {op for op in REGISTRY.values() if op.multilinear}
PRODUCTS |= {MEANING[np.prod], MEANING[np.cumprod], MEANING[np.linalg.det]}  # which is a sum of some
UNKNOWN = object()
NO_ATTRIBUTES: Attributes = {}  # of the events that have none, of which there may be very many
PYTHON_S = (int, float, bool, complex)  # numbers that have the dtype of what they are combined with
NUMBERS = (float, int, np.floating, np.integer, np.complexfloating, complex)


class Unlearnable(Exception):
    """A call does what no program is made of; the text says what."""


def is_copied(event: Event, x: np.ndarray) -> bool:
    """Whether an event of `COPIES` gives a copy where NumPy has a view of its operand."""
    if event.op in PARTS:
        return event.writes is None and x.ndim > 0
    index = event.attrs.get("index")
    whole = any(i is ... for i in index) if type(index) is tuple else index is ...
    return x.ndim > 0 and event.value.ndim == 0 if event.op is RESHAPE else whole


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
    """A number or an array that a call brings, by the operand that it is of which of the call's events."""

    operand: int
    event: int = 0


class Called(NamedTuple):
    """A call of a function of NumPy's, or a method, that means an op: operands as sources, all else as given.

    The op of an operator in place is followed by the one that `writes` its result to the first argument.
    Any other call may be of several `events`, one after the other, of which one gives the result, or some
    those that it gives in a list or tuple, its `kind`; `results` are their numbers. Operands that are none of
    its arguments, by event and number, are `constants`.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    writes: bool = False
    events: int = 1
    results: tuple[int, ...] = (0,)
    kind: type | None = None
    constants: tuple[tuple[int, int, Any], ...] = ()

    def arguments(self) -> list[Any]:
        """Return its arguments one by one."""
        every = (*self.args, *self.kwargs.values())
        return [y for x in every for y in (x.parts if type(x) is Several else (x,))]

    def brought(self) -> set[tuple[int, int]]:
        """Which operands its arguments are, by event and number."""
        return {(x.event, x.operand) for x in self.arguments() if type(x) is Brought}

    def replaced(self, function: Callable[[Any], Any]) -> Called:
        """Return the call with what a function makes of its arguments."""
        kwargs = {name: function(x) for name, x in self.kwargs.items()}
        return self._replace(args=tuple(map(function, self.args)), kwargs=kwargs)


def WRITE() -> None:
    """Stands for the function that is called where an operation writes to a Tensor."""


class Event(NamedTuple):
    """An operation: op, operands, attributes, what it gave, whether that is a view, how it was called.

    Is it not `known` what it gave, as that is large, `value` has but the shape and dtype. A write (its
    call's function is `WRITE`) gives its result to the Tensor of an earlier one, that of the number `writes`.
    A view may be one of `several` that one call made. Places of elements may be told by a function of the
    operand, their `order`. Of an invalid value the operation warns in the words `told`, if there are some.
    """

    op: Any  # a Primitive, or Passive
    operands: tuple[Source, ...]
    attrs: Attributes
    value: Any
    is_view: bool
    call: Called | None = None
    known: bool = True
    writes: int | None = None
    several: bool = False
    order: Callable[..., Any] | None = None
    told: str = ""


class Events(Sequence[Event]):
    """Operations in columns, as there may be very many: each is an `Event` while it is asked for.

    Attributes
    ----------
    ops, attrs, values
        What they are, and gave.
    sources
        Their operands that are neither arguments nor results, in order.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.ops: list[Any] = []
        self.attrs: list[Attributes] = []
        self.values: list[Any] = []
        self.sources: list[Source] = []
        self._starts, self._operands = array("q", [0]), array("q")  # see `places`
        self._more: dict[int, tuple[Any, ...]] = {}  # what there is to say besides, of some
        self._latest: tuple[int, tuple[Source, ...]] = -1, ()  # operands that were asked for
        for event in events:
            self.append(event)

    def __len__(self) -> int:
        return len(self.ops)

    def __iter__(self) -> Iterator[Event]:
        return map(self._event, range(len(self)))

    @overload
    def __getitem__(self, k: int) -> Event: ...
    @overload
    def __getitem__(self, k: slice) -> list[Event]: ...
    def __getitem__(self, k: Any) -> Any:
        found = range(len(self))[k]
        return self._event(found) if type(found) is int else [*map(self._event, found)]

    def _event(self, k: int) -> Event:
        at, operands = self._latest
        if at != k:
            sources, made = self.sources, Source._make
            found = [
                sources[x // KINDS] if x % KINDS == LIVE else made((x % KINDS, x // KINDS))
                for x in self.places(k)
            ]
            operands = tuple(found)
            self._latest = k, operands
        more = self._more.get(k, NO_MORE)
        return Event._make((self.ops[k], operands, self.attrs[k], self.values[k], *more))

    def places(self, k: int) -> Iterable[int]:
        """Return where operands are: `KINDS` times the number, or place among the `sources`, and the kind."""
        return self._operands[self._starts[k] : self._starts[k + 1]]

    def unusual(self) -> Iterator[tuple[int, Event]]:
        """Give the operations of which there is more to say, with their numbers."""
        return ((k, self._event(k)) for k in sorted(self._more))

    def append(self, event: Event) -> None:
        """Add an operation."""
        for source in event.operands:
            if source.kind < LIVE:
                self._operands.append(KINDS * source.value + source.kind)
            else:
                self._operands.append(KINDS * len(self.sources) + LIVE)
                self.sources.append(source)
        self._starts.append(len(self._operands))
        self.ops.append(event.op)
        self.attrs.append(event.attrs)
        self.values.append(event.value)
        if event[4:] != NO_MORE:
            self._more[len(self) - 1] = event[4:]

    def __setitem__(self, k: int, event: Event) -> None:
        """Say what an operation is, of as many operands, which are sources again where they were."""
        for source, place in zip(event.operands, self.places(k), strict=True):
            if place % KINDS == LIVE:
                self.sources[place // KINDS] = source
        self.attrs[k], self.values[k], self._latest = event.attrs, event.value, (-1, ())
        self._more[k] = event[4:]
        if event[4:] == NO_MORE:
            del self._more[k]

    def copy(self) -> Events:
        """Return the same operations, of which others may be said."""
        out = Events()
        for name, column in vars(self).items():
            setattr(out, name, copy.copy(column))
        return out


NO_MORE = Event(None, (), NO_ATTRIBUTES, None, False)[4:]
KINDS = 3  # of operands, of which all but arguments and results are one here


def means(function: Callable[..., Any], op: Operation) -> bool:
    """Whether a call of a function, or of a method, that was one op is that op whatever the values are."""
    meant: Any = MEANT.get(function, function)
    known = meant in op.functions or meant in BY_SHAPES or meant in UPDATES
    return known and is_without_errors(op)


def is_by_shapes(function: Callable[..., Any]) -> bool:
    """Whether a function, or a method, applies the same ops to all values of the same shapes and dtypes."""
    return MEANT.get(function, function) in BY_SHAPES


def is_without_errors(op: Operation) -> bool:
    """Whether an op raises no error for operands of shapes that it has been applied to."""
    return isinstance(op, WITHOUT_ERRORS) or op in PRODUCTS


def activity(events: Sequence[Event]) -> Sequence[int]:
    """Of which events the results depend on the arguments."""
    active = bytearray()
    for event in events:
        passive = isinstance(event.op, Passive)
        active.append(not passive and any(is_active(source, active) for source in event.operands))
    return active


def is_active(source: Source, active: Sequence[int]) -> bool:
    """Whether an operand depends on the arguments."""
    return source.kind == ARGUMENT or (source.kind == RESULT and active[source.value] != 0)


class History(NamedTuple):
    """What tells a Tensor with a history, if it is not written to: address, serial of the tape, position.

    Of one without a history, that a call has computed, the serial is `FLAT` and it is known by its number.
    """

    handle: int
    serial: int
    at: int

    @property
    def key(self) -> tuple[int, int]:
        """What tells the record, of whatever Tensor it is the history."""
        return self.serial, self.at


class Flat:
    """A Tensor without a history that a call has computed, the value it was given, what tells it.

    Attributes
    ----------
    became_another
        Whether a write that is listed has given it a history since.
    """

    def __init__(self, handle: Handle, value: Operand, history: History) -> None:
        self.handle, self.value, self.history, self.became_another = handle, value, history, False

    def is_as_made(self) -> bool:
        """Whether nobody has written to it, or seen it otherwise than by copies."""
        state = self.handle._extra
        return self.handle._v is self.value and (state is None or vars(state).keys() <= {"several"})


class Trace(NamedTuple):
    """What a call has done, with nothing of the user's in it but values and copies.

    Attributes
    ----------
    entries
        The operations: `WIDTH` entries each (`kernels.replay.layout`). Those that Python has listed have in
        the place of the operands a list of these, attributes, and whether the result is a view.
    calls
        How operations were called, by their number, with histories in the place of sources.
    writes
        What told the Tensors that operations have written to, by their number.
    several
        The numbers of those that are one of several views.
    orders, told
        What tells the places of elements that operations take, and words of warnings, by their number.
    arguments, histories
        Values of the arguments, and what tells their Tensors.
    held
        How many bytes all that has.
    """

    entries: list[Any]
    calls: dict[int, Called]
    writes: dict[int, History]
    several: set[int]
    orders: dict[int, Callable[..., Any]]
    told: dict[int, str]
    arguments: list[np.ndarray]
    histories: list[History]
    held: int

    def events(self, found: History) -> tuple[Events, int]:
        """Return the operations, and the number of that which gave a Tensor; the entries are used up."""
        known: dict[Any, Source] = {x: Source(ARGUMENT, k) for k, x in enumerate(self.histories)}
        owners: dict[Any, int] = {}  # the numbers of the events that gave the Tensors, before any write
        events = Events()
        entries, count = self.entries, len(self.entries) // WIDTH
        used = _used(entries) if FLAT in entries[2::WIDTH] else set()
        entries.reverse()  # as the last ones are taken off in no time
        numbers: dict[int, int] = {}  # of events, by those of their entries
        for k in range(count):
            background.pause()
            entry = entries[: -WIDTH - 1 : -1]
            del entries[-WIDTH:]
            op, handle, serial, at, value, given = entry[:6]
            if serial == FLAT and (handle, serial, at) not in used:
                continue
            if entry[-1]:
                value = np.empty(value.shape, value.dtype)  # of which no page is used
            attrs, view = entry[6:8] if type(given) is list else _told_of(entry)
            sources = tuple([_source(op, q, x, known) for q, x in enumerate(operands_of(entry))])
            if k in self.calls:
                call = _with_sources(self.calls[k], known)
            else:
                call = _compared(op, sources) if serial == FLAT and type(given) is not list else None
            writes = None
            if k in self.writes:
                writes = owners.get(self.writes[k].key)
                if writes is None:
                    raise Unlearnable(WRITTEN)
            if self.writes:
                owners[serial, at] = len(events) if writes is None else writes
            known[serial, at] = Source(RESULT, len(events))
            numbers[k] = len(events)
            more = k in self.several, self.orders.get(k), self.told.get(k, "")
            events.append(Event(op, sources, attrs, value, view, call, not entry[-1], writes, *more))
        for k, call in self.calls.items():
            if call.events > 1 and k in numbers:
                n = numbers[k]
                whole = all(numbers.get(k + j) == n + j for j in range(call.events))
                events[n] = events[n]._replace(call=_as_one(events, n) if whole else None)
        source = _found(found, known)
        if source is None or source.kind != RESULT:
            raise Unlearnable(RETURNED.format("Tensor"))
        return events, source.value


def operands_of(entry: Sequence[Any]) -> list[Any]:
    """Operands of an operation that is listed."""
    if type(entry[5]) is list:
        return entry[5]
    i, j, x, k, m, y = entry[5:11]
    first = x if j is None else History(i, j, x)
    return [first] if y is None else [first, y if m is None else History(k, m, y)]


def _told_of(entry: Sequence[Any]) -> tuple[Attributes, bool]:
    """Attributes of an operation that compiled code has listed, and whether its result is a view."""
    return (NO_ATTRIBUTES, False) if entry[10] is not None else (entry[8] or NO_ATTRIBUTES, entry[9] is True)


def _compared(op: Passive, sources: Sequence[Source]) -> Called:
    """The call of a comparison that compiled code has listed."""
    given = [source if source.kind < LIVE else Brought(q) for q, source in enumerate(sources)]
    return Called(op.functions[0], tuple(given), {})


def _used(entries: Sequence[Any]) -> set[History]:
    """What tells Tensors that operations with a derivative need, directly or not, or give beside them."""
    used: set[History] = set()
    for at in range(len(entries) - WIDTH, -1, -WIDTH):
        background.pause()
        entry = entries[at : at + WIDTH]
        history = History(*entry[1:4])
        if history.serial != FLAT or history in used or OF_VALUES.intersection(entry[0].functions):
            used.update([history, *(x for x in operands_of(entry) if type(x) is History)])
    return used


def _found(x: History, known: dict[Any, Source]) -> Source | None:
    """The source of what has a history: arguments are known by Tensors, of which two may have one record."""
    return known.get(x) or known.get(x[1:])


def _source(op: Primitive, q: int, x: Any, known: dict[Any, Source]) -> Source:
    if type(x) is History:
        found = _found(x, known)
        if found is None:
            raise Unlearnable(OUTSIDE.format(q, op.name))
        return found
    return Source(FIXED if op is POWER and q == 1 and isinstance(x, NUMBERS) else LIVE, x)


def _with_sources(x: Any, known: dict[Any, Source]) -> Any:
    """What was given to a function, with sources in the place of histories."""
    if type(x) is History:
        return _found(x, known) or UNKNOWN
    if type(x) is Several:
        parts = tuple(_with_sources(y, known) for y in x.parts)
        return UNKNOWN if _has_unknown(parts) else x._replace(parts=parts)
    if type(x) is Called:
        found = x.replaced(lambda y: _with_sources(y, known))
        return None if _has_unknown((*found.args, *found.kwargs.values())) else found
    return x


def _as_one(events: Sequence[Event], n: int) -> Called | None:
    """The call of several events from one on, if all that these are of are its arguments and constants.

    A constant may have been computed of a number or an array that the call brings: then these are arguments
    as they are, which another call has to have too.
    """
    call = events[n].call
    if call is None:
        return None
    events = events[n : n + call.events]
    if not _has_all(events, call.brought()):
        call = call.replaced(lambda x: _by_value(events, x))
    brought, constants = call.brought(), []
    given = {x for x in call.arguments() if type(x) is Source}
    for j, event in enumerate(events):
        if event.writes is not None or not is_without_errors(event.op):
            return None
        for q, source in enumerate(event.operands):
            if source.kind < LIVE:
                inside = source.kind == RESULT and source.value >= n
                if not (inside or source in given):
                    return None
            elif source.kind == LIVE and (j, q) not in brought:
                constants.append((j, q, source.value))
    by_value = [x for x in call.arguments() if isinstance(x, np.ndarray)]
    if any(np.asarray(x).nbytes > COPIED for x in (*by_value, *(x for _, _, x in constants))):
        return None
    return call._replace(constants=tuple(constants))


def _has_all(events: Sequence[Event], brought: set[tuple[int, int]]) -> bool:
    """Whether all operands of the events of a call that are no Tensors are its arguments."""
    return all(
        source.kind != LIVE or (j, q) in brought
        for j, event in enumerate(events)
        for q, source in enumerate(event.operands)
    )


def _by_value(events: Sequence[Event], x: Any) -> Any:
    """An argument of a call of these events that is to be as it is, instead of an operand."""
    if type(x) is Several:
        return x._replace(parts=tuple(_by_value(events, y) for y in x.parts))
    return events[x.event].operands[x.operand].value if type(x) is Brought else x


def _has_unknown(parts: Sequence[Any]) -> bool:
    return any(part is UNKNOWN for part in parts)


def record_of(x: Handle) -> History:
    """What tells a Tensor that has a history."""
    tape: Any = x._tape
    return History(id(x), tape.serial, x._at)


OUTSIDE = "operand {} of {} is a Tensor from outside that requires grad, or was written to"
WRITTEN = "a Tensor was written to that is an argument, from outside, or shares its memory"
RETURNED = "it returned {}, which is no result of an operation on its arguments"
WIDTH, FLAT = layout.TRACE_ENTRIES, layout.FLAT
