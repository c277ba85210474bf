"""What a function does to Tensors: its operations, in order, learned from a call that is recorded."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from tapegrad.compilation.events.methods import MEANT, UPDATES
from tapegrad.compilation.events.passive import Operation, Passive
from tapegrad.compilation.memory.values import Packed, Values, is_packable
from tapegrad.core.base import Handle
from tapegrad.core.functions import BY_SHAPES
from tapegrad.kernels.replay import layout
from tapegrad.ops import MEANING, REGISTRY
from tapegrad.ops.primitive import Attributes, Elementwise, Linear, Reduction
from tapegrad.tensor import Operand

POWER = MEANING[np.power]
PARTS = MEANING[np.real], MEANING[np.imag]  # copies, where NumPy has views
RESHAPE = REGISTRY["reshape"]
ELEMENT = REGISTRY["element"]
VIEWING = ("part", "whole")  # windows of ops that give views
SEEING: set[Operation] = {RESHAPE, ELEMENT, REGISTRY["broadcast_to"]}  # what gives views, 0-d or of 0-d
SEEING |= {op for op in REGISTRY.values() if isinstance(op, Linear) and op.window in VIEWING}
WITHOUT_ERRORS = Elementwise, Reduction, Linear, Passive  # of operands of shapes that have been seen to fit
PRODUCTS = {op for op in REGISTRY.values() if op.multilinear}
PRODUCTS |= {MEANING[np.prod], MEANING[np.cumprod]}
PRODUCTS |= {MEANING[np.linalg.det], MEANING[np.linalg.slogdet]}  # which are sums of some
NARROW = 1 << 16  # objects whose numbers two bytes have
UNKNOWN = object()
NO_ATTRIBUTES: Attributes = {}  # of the events that have none, of which there may be very many
PYTHON_S = (int, float, bool, complex)  # numbers that have the dtype of what they are combined with
NUMBERS = (float, int, np.floating, np.integer, np.complexfloating, complex)


class Unlearnable(Exception):
    """A call does what no program is made of; the text says what."""


def is_number_view(event: Event, x: np.ndarray) -> bool:
    """Whether an event gives a view of its operand, if that is an array to NumPy, one of which is 0-d."""
    if event.op not in SEEING or event.writes is not None or (x.ndim and event.value.ndim):
        return False
    if event.op is RESHAPE:
        return bool(x.ndim or event.value.ndim)  # else it is a copy
    index = event.attrs.get("index")
    return event.op is not ELEMENT or (any(i is ... for i in index) if type(index) is tuple else index is ...)


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


class Taken(NamedTuple):
    """An argument or a result, by the operand that it is of which of the call's events."""

    operand: int
    event: int


class Called(NamedTuple):
    """A call of a function of NumPy's, or a method, that means an op: operands as sources, all else as given.

    The op of an operator in place is followed by the one that `writes` its result to the first argument.
    Any other call may be of several `events`, one after the other, of which one gives the result, or some
    those that it gives in a list or tuple of a `kind`; `results` are their numbers. Operands that are none of
    its arguments, by event and number, are `constants`. A result without axes may be one of NumPy's arrays.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    writes: bool = False
    events: int = 1
    results: tuple[int, ...] = (0,)
    kind: type | None = None
    constants: tuple[tuple[int, int, Any], ...] = ()
    is_array: bool = False

    def arguments(self) -> list[Any]:
        """Return its arguments one by one."""
        return [*_single((*self.args, *self.kwargs.values()))]

    def brought(self) -> set[tuple[int, int]]:
        """Which operands its arguments are, by event and number."""
        return {(x.event, x.operand) for x in self.arguments() if type(x) is Brought}

    def gathered(self, found: Sequence[Any]) -> Any:
        """What it gives, of results."""
        if self.kind is None:
            return found[0]
        return list(found) if self.kind is list else tuple.__new__(self.kind, found)  # which runs no Python

    def replaced(self, function: Callable[[Any], Any]) -> Called:
        """Return the call with what a function makes of its arguments."""
        kwargs = {name: function(x) for name, x in self.kwargs.items()}
        return Called(self.function, tuple(map(function, self.args)), kwargs, *self[3:])


def _single(arguments: Iterable[Any]) -> Iterator[Any]:
    """Give arguments, and those in lists and tuples."""
    for x in arguments:
        if type(x) is Several:
            yield from _single(x.parts)
        else:
            yield x


def WRITE() -> None:
    """Stands for the function that is called where an operation writes to a Tensor."""


class Event(NamedTuple):
    """An operation: op, operands, attributes, what it gave, whether that is a view, how it was called.

    Is it not `known` what it gave, as that is large, `value` has but the shape and dtype. A write (its
    call's function is `WRITE`) gives its result to the Tensor of an earlier one, that of the number `writes`.
    A view may be one of `several` that one call made. What was computed while nothing was recorded is
    `unrecorded`. Places of elements may be told by a function of the operand, their `order`. Of an invalid
    value the operation warns in the words `warning`, if there are some.
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
    warning: str = ""
    unrecorded: bool = False


class Column:
    """Objects of which many are one of a few: a table of these, and numbers of them."""

    def __init__(self) -> None:
        self._table: list[Any] = []
        self._numbers = array("H")
        self._known: dict[int, int] = {}  # numbers of those in the table, by ids

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Any]:
        return map(self._table.__getitem__, self._numbers)

    def __getitem__(self, k: int) -> Any:
        return self._table[self._numbers[k]]

    def __setitem__(self, k: int, x: Any) -> None:
        if self[k] is not x:
            number = self._number(x)
            self._numbers[k] = number

    def __copy__(self) -> Column:
        out = Column()
        out._table, out._numbers, out._known = self._table[:], self._numbers[:], self._known.copy()
        return out

    def append(self, x: Any) -> None:
        """Add an object."""
        number = self._number(x)
        self._numbers.append(number)

    def unlike(self, x: Any) -> Iterator[int]:
        """Give the numbers of those that are another object."""
        return self.numbers_of(lambda y: y is not x)

    def numbers_of(self, is_one: Callable[[Any], bool]) -> Iterator[int]:
        """Give the numbers of those of which a function says so."""
        found = np.array([*map(is_one, self._table)], bool)
        return map(int, np.flatnonzero(found[np.asarray(self._numbers)]))

    def trim(self) -> None:
        """Know no more which objects there are, so that those that come have places of their own."""
        self._known = {}
        self._numbers = self._numbers[:]  # without room for more

    def _number(self, x: Any) -> int:
        number = self._known.setdefault(id(x), len(self._table))
        if number == len(self._table):
            self._table.append(x)
            if number == NARROW and self._numbers.typecode == "H":
                self._numbers = array("i", self._numbers)
        return number


class Sources:
    """Operands that are neither arguments nor results; small arrays are packed where there are very many."""

    def __init__(self, are_many: bool = False) -> None:
        self._places = array("i")  # of each its number among those packed, or from -1 down among the others
        self._others: list[Any] = []  # of an array that is live it alone
        self._packed = Packed() if are_many else None

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Source]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, k: int) -> Source:
        place = self._places[k]
        if place >= 0:
            assert self._packed is not None
            return Source(LIVE, self._packed[place])
        found = self._others[~place]
        return found if type(found) is Source else Source(LIVE, found)

    def __setitem__(self, k: int, source: Source) -> None:
        place, is_array = self._places[k], source.kind == LIVE and type(source.value) is np.ndarray
        if place < 0:
            self._others[~place] = source.value if is_array else source
        elif is_array and self._packed is not None:
            self._packed[place] = source.value
        else:
            self._add(source)
            self._places[k] = self._places.pop()

    def __copy__(self) -> Sources:
        out = Sources()
        out._places = array("i", range(-1, -len(self) - 1, -1))
        out._others = [
            self[k].value if place >= 0 else self._others[~place] for k, place in enumerate(self._places)
        ]
        return out

    def append(self, source: Source) -> None:
        """Add an operand."""
        kind, x = source
        packed = self._packed
        if packed is not None and kind == LIVE and type(x) is np.ndarray and x.ndim and is_packable(x):
            self._places.append(len(packed))
            packed.append(x)
        else:
            self._add(source)

    def _add(self, source: Source) -> None:
        self._places.append(~len(self._others))
        self._others.append(source)

    def has_packed(self, x: Any) -> bool:
        """Whether this is an array that was packed, of which the memory is that operand's alone."""
        return self._packed is not None and self._packed.has(x)


class Events(Sequence[Event]):
    """Operations in columns, as there may be very many: each is an `Event` while it is asked for.

    Parameters
    ----------
    events
        The first ones.
    are_many
        Whether there will be so many that small values are to be packed.

    Attributes
    ----------
    ops, attrs, values
        What they are, and gave.
    sources
        Their operands that are neither arguments nor results, in order.
    addresses
        Where the Tensors of their results were in the call that was learned from, if there was one.
    """

    def __init__(self, events: Iterable[Event] = (), are_many: bool = False) -> None:
        self.ops, self.attrs = Column(), Column()
        self.values: Values | Packed = Packed() if are_many else Values()
        self.sources = Sources(are_many)
        self.addresses = array("q")
        self._starts, self._operands = array("i", [0]), array("i")  # see `places`
        self._more = Column()  # what there is to say besides
        self._alike: dict[Any, tuple[Any, ...]] = {}  # those of these that several have, by what tells them
        self._latest: tuple[int, tuple[Source, ...]] = -1, ()  # operands that were asked for
        self.add_operand = self._operands.append  # of the next operation, by its place
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
                sources[x // OPERAND_KINDS]
                if x % OPERAND_KINDS == LIVE
                else made((x % OPERAND_KINDS, x // OPERAND_KINDS))
                for x in self.places(k)
            ]
            operands = tuple(found)
            self._latest = k, operands
        more = self._more[k]
        if more[1] is not None:
            more = more[0], self._with_sources(k, more[1]), *more[2:]
        return Event._make((self.ops[k], operands, self.attrs[k], self.values[k], *more))

    def places(self, k: int) -> Sequence[int]:
        """Return where operands are: `OPERAND_KINDS` times a number, or place in `sources`, and the kind."""
        return self._operands[self._starts[k] : self._starts[k + 1]]

    def is_plain(self, k: int) -> bool:
        """Whether an operation has no attributes, and there is but how it was called to say of it besides."""
        more = self._more[k]
        return not self.attrs[k] and (more is NO_MORE or (more[0], *more[3:]) == PLAIN)

    def call(self, k: int) -> Called | None:
        """How an operation was called."""
        call = self._more[k][1]
        return None if call is None else self._with_sources(k, call)

    def function(self, k: int) -> Callable[..., Any] | None:
        """The function that was called for an operation, if there is one; behind the last one none is."""
        call: Called | None = self._more[k][1] if k < len(self) else None
        return None if call is None else call.function

    def source(self, k: int, q: int) -> Source:
        """An operand of an operation; a value is told by its kind alone."""
        place = self.places(k)[q]
        return Source(place % OPERAND_KINDS, place // OPERAND_KINDS)

    def is_view(self, k: int) -> bool:
        """Whether an operation gave a view."""
        return bool(self._more[k][0])

    def is_known(self, k: int) -> bool:
        """Whether it is known what an operation gave."""
        return bool(self._more[k][2])

    def unusual(self) -> Iterator[tuple[int, Event]]:
        """Give the operations of which there is more to say, with their numbers."""
        return ((k, self._event(k)) for k in self._more.unlike(NO_MORE))

    def unrecorded(self) -> Iterator[int]:
        """Give the numbers of the operations that were computed while nothing was recorded."""
        return self._more.numbers_of(lambda more: more[-1])

    def append(self, event: Event) -> None:
        """Add an operation."""
        for source in event.operands:
            known = source.kind < LIVE
            self.add_operand(OPERAND_KINDS * source.value + source.kind if known else self.bring(source))
        self.add(event.op, event.attrs, event.value, event.known, event.is_view)
        self._note_more(len(self) - 1, event)

    def add(self, op: Any, attrs: Attributes, value: Any, known: bool = True, is_view: bool = False) -> None:
        """Add an operation of which there is no more to say, behind its operands."""
        self._starts.append(len(self._operands))
        self.ops.append(op)
        self.attrs.append(attrs)
        if known:
            self.values.append(value)
        elif is_view:
            self.values.keep(value)
        else:
            self.values.await_like(value)
        self._more.append(NO_MORE if known else NOT_KNOWN)

    def know(self, k: int) -> bool:
        """Know that what an operation gives is there; whether that was known."""
        more = self._more[k]
        if more is NOT_KNOWN:
            self._more[k] = NO_MORE
        elif not more[2]:
            self._share_more(k, (*more[:2], True, *more[3:]))
        return bool(more[2])

    def bring(self, source: Source) -> int:
        """The place of an operand that is neither argument nor result."""
        self.sources.append(source)
        return OPERAND_KINDS * (len(self.sources) - 1) + LIVE

    def __setitem__(self, k: int, event: Event) -> None:
        """Say what an operation is, of as many operands, which are sources again where they were."""
        for source, place in zip(event.operands, self.places(k), strict=True):
            if place % OPERAND_KINDS == LIVE:
                self.sources[place // OPERAND_KINDS] = source
        self.attrs[k], self.values[k], self._latest = event.attrs, event.value, (-1, ())
        self._note_more(k, event)

    def _note_more(self, k: int, event: Event) -> None:
        """Keep what there is to say besides."""
        more, call = event[4:], event.call
        if call is not None:
            more = more[0], call.replaced(lambda x: self._taken(k, call.events, x)), *more[2:]
        elif more in (NO_MORE, NOT_KNOWN):
            self._more[k] = NO_MORE if event.known else NOT_KNOWN
            return
        self._share_more(k, more)

    def _share_more(self, k: int, more: tuple[Any, ...]) -> None:
        """Keep this of an operation, once for all of which it is alike."""
        key = _key_of(more)
        self._more[k] = more if key is None else self._alike.setdefault(key, more)

    def _taken(self, k: int, count: int, x: Any) -> Any:
        """An argument of a call of so many events from one on: an operand of these as such."""
        if type(x) is Several:
            return x._replace(parts=tuple(self._taken(k, count, y) for y in x.parts))
        if type(x) is Source and x.kind < LIVE:
            for j in range(min(count, len(self) - k)):
                for q, place in enumerate(self.places(k + j)):
                    if place == OPERAND_KINDS * x.value + x.kind:
                        return Taken(q, j)
        return x

    def _with_sources(self, k: int, call: Called) -> Called:
        """The call that an event is, as it was told."""

        def source(x: Any) -> Any:
            if type(x) is Several:
                return x._replace(parts=tuple(map(source, x.parts)))
            if type(x) is not Taken:
                return x
            return self.source(k + x.event, x.operand)

        return call.replaced(source)

    def trim(self) -> None:
        """Have no room for more operations."""
        self.ops.trim()
        self.attrs.trim()
        self._more.trim()

    def copy(self) -> Events:
        """Return the same operations, of which others may be said."""
        out = Events()
        for name, column in vars(self).items():
            setattr(out, name, copy.copy(column))
        out.add_operand = out._operands.append
        return out


def _key_of(x: Any) -> Any:
    """What only what is the same has as its key; None where that is not looked into."""
    kind = type(x)
    if kind in (Taken, Brought, int, bool, str, type, type(None)):
        return kind, x
    if kind is Called:
        x = id(x.function), x.args, tuple(x.kwargs.items()), *x[3:]
    elif kind is not tuple:
        return None
    keys = tuple(map(_key_of, x))
    return None if None in keys else keys


NO_MORE = Event(None, (), NO_ATTRIBUTES, None, False)[4:]
NOT_KNOWN = (*NO_MORE[:2], False, *NO_MORE[3:])
PLAIN = NO_MORE[0], *NO_MORE[3:]  # but for the call, and whether it is known what it gave
OPERAND_KINDS = 3  # of operands, of which all but arguments and results are one here


def means(function: Callable[..., Any], op: Operation, attrs: Attributes) -> bool:
    """Whether a call of a function, or of a method, that was one op is that op whatever the values are.

    An op that may raise an error has at most switches as attributes: others might be found from values.
    """
    meant: Any = MEANT.get(function, function)
    known = meant in op.functions or meant in BY_SHAPES or meant in UPDATES
    return known and (
        is_without_errors(op) or (meant in op.functions and all(type(x) is bool for x in attrs.values()))
    )


def is_by_shapes(function: Callable[..., Any]) -> bool:
    """Whether a function, or a method, applies the same ops to all values of the same shapes and dtypes."""
    return MEANT.get(function, function) in BY_SHAPES


def is_without_errors(op: Operation) -> bool:
    """Whether an op raises no error for operands of shapes that it has been applied to."""
    return isinstance(op, WITHOUT_ERRORS) or op in PRODUCTS


def activity(events: Events) -> Sequence[int]:
    """Of which events the results depend on the arguments."""
    active, unrecorded = bytearray(), {*events.unrecorded()}
    for k, op in enumerate(events.ops):
        depends = False
        for x in events.places(k):
            kind = x % OPERAND_KINDS
            depends = depends or kind == ARGUMENT or (kind == RESULT and active[x // OPERAND_KINDS] != 0)
        active.append(depends and not isinstance(op, Passive) and k not in unrecorded)
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
        self._writes = self._count_writes()

    def _count_writes(self) -> int:
        """How often what it shares memory with was written to."""
        state = self.handle._extra
        return 0 if state is None or state.storage is None else state.storage.memory.writes

    def is_as_made(self) -> bool:
        """Whether nobody has written to it, or seen it otherwise than by copies and known views."""
        state = self.handle._extra
        if self.handle._v is not self.value or state is None:
            return self.handle._v is self.value
        known = vars(state).keys() <= {"several", "array", "storage", "place"} and state.place is None
        return known and self._count_writes() == self._writes


def record_of(x: Handle) -> History:
    """What tells a Tensor that has a history."""
    tape: Any = x._tape
    return History(id(x), tape.serial, x._at)


FLAT = layout.FLAT
