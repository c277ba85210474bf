"""A program: buffers for all that a call computes, and rows that compute it, forward and in reverse."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided

from tapegrad.compilation import background
from tapegrad.compilation.events.equality import is_same
from tapegrad.compilation.events.events import (
    ARGUMENT,
    FIXED,
    LIVE,
    OPERAND_KINDS,
    PARTS,
    POWER,
    PYTHON_S,
    RESULT,
    SHARED,
    WRITE,
    Event,
    Events,
    Source,
    activity,
    is_active,
    is_number_view,
)
from tapegrad.compilation.events.passive import DETACH, Operation, Passive
from tapegrad.compilation.events.stand_ins import StandIns, from_addresses
from tapegrad.compilation.events.varying import (
    COMPUTED,
    ELEMENT,
    REARRANGE,
    TAKE,
    Renewal,
    is_computed_anew,
    varying_of,
)
from tapegrad.compilation.memory.pages import KEPT, have_same_bytes
from tapegrad.compilation.memory.values import PACKED
from tapegrad.compilation.programs.copies import Copies
from tapegrad.compilation.programs.in_place import is_worth_it, matrix_of
from tapegrad.compilation.programs.row_forms import RowForms, is_placed
from tapegrad.compilation.rows.computing import BROADCAST, GETITEM, compute, forward_of
from tapegrad.compilation.rows.releases import Releases, forget_steps
from tapegrad.compilation.rows.rows import Rows
from tapegrad.kernels.replay import layout
from tapegrad.ops import forward
from tapegrad.ops.lapack import Kept
from tapegrad.ops.primitive import Attributes, Elementwise

IN_PLACE: Any = object()  # instead of what recording gave, where the buffer of the event has it


def _longest_beginning(events: Sequence[Event], others: Sequence[Program]) -> tuple[Program | None, int]:
    """Of some programs the one that begins as these events do for longest, and for how long."""
    found: tuple[Program | None, int] = (others[0] if others else None), 0
    for other in others:
        k = 0
        for x, y in zip(events, other.events, strict=False):
            if not is_same(x, y):
                break
            background.pause()
            k += 1
        if k > found[1]:
            found = other, k
    return found


def is_view(value: Any, of: np.ndarray) -> bool:
    """Whether an array is a view of another one's elements, each seen once."""
    if not isinstance(value, np.ndarray) or value.dtype != of.dtype or value.size == 0:
        return False
    repeated = any(n > 1 and s == 0 for n, s in zip(value.shape, value.strides, strict=True))
    return not repeated and np.may_share_memory(value, of)


def view_of(op: Operation, attrs: dict[str, Any], x: np.ndarray) -> np.ndarray | None:
    """Return what an op of one operand sees of it, where it is a view; an element is one without axes."""
    if op is ELEMENT:
        index = attrs["index"] if isinstance(attrs["index"], tuple) else (attrs["index"],)
        return x[index if any(part is ... for part in index) else (*index, ...)]
    if op is DETACH:
        return x.view()
    if isinstance(op, Elementwise) or x.ndim == 0:
        return None
    found = op.forward(x, **attrs)
    return found if is_view(found, x) else None


def windows_of(x: np.ndarray, attrs: Attributes, like: np.ndarray) -> np.ndarray | None:
    """Return what sees the elements at places as another array does that sees some more than once.

    So windows lie that slide: products and sums of them have the bits of arrays with such strides.
    """
    low, high = byte_bounds(like)
    if not like.size or like.nbytes <= high - low or 0 in like.strides or not x.flags.c_contiguous:
        return None
    places, steps = attrs["places"], [s // like.itemsize for s in like.strides]
    first = int(places.flat[0])
    along = np.ogrid[tuple(slice(n) for n in like.shape)]
    if attrs["holes"] or not np.array_equal(places, first + sum(map(np.multiply, along, steps))):
        return None
    return as_strided(x.reshape(-1)[first:], like.shape, like.strides, writeable=False)


class Write(NamedTuple):
    """A write to the Tensor of an event.

    Attributes
    ----------
    event
        What it is.
    by
        The number of the event whose Tensor is written to: that one, or a view of it.
    place
        The index.
    others
        The numbers of events whose Tensors nobody may have then, as they see the same memory, or would.
    events
        Of how many events it consists: a view has to see the result.
    """

    event: Event
    by: int
    place: Any
    others: list[int]
    events: int


class Program:
    """What a call computes.

    Parameters
    ----------
    events, arguments
        The operations of a call that was learned from, and its leaves.
    others
        Programs of which one may have buffers in common.
    exact
        As the attribute, where it is known: of a program with other buffers.
    unused
        Events that nobody reads.
    passing
        Of large arrays that calls bring, by their ids, those that nobody has behind a call.

    Attributes
    ----------
    events
        Its operations: those that it is given, which then keep no arrays but the program's.
    arguments
        A buffer for each leaf of the arguments.
    places
        What writes to these; for a double a memoryview, which is quicker.
    values
        A buffer for the result of each event; that of a view is the view.
    read_only
        Events whose values could be written to, but are read-only, as those of `np.diag`.
    copies
        What takes large arrays.
    at_once
        Events that Python computes when they come, so that large arrays are read in place.
    attrs
        The attributes of each event, of which some may be those of the call at hand.
    anew
        Which events have such attributes.
    renewals
        What finds the attributes of those of these whose operands tell them, as their rows do.
    active
        Of which events the results depend on the arguments, as far as derivatives go.
    recorded
        Of each event whether it counts only while operations are recorded, or are not: see `layout.EITHER`.
    owners
        Of each event the number of that which gave the Tensor of its result: a write's is an earlier one.
    stand_ins
        Which Tensors stand for the results, while a call follows the program.
    warns
        Whether some operation warns of invalid values in words of its own.
    written, seen
        The writes, by their numbers; and the events by which a view written to sees the result.
    exact
        Of which events the rows give the bits of recording; of others Python computes the value.
    shared
        How many events at the beginning have their buffers in common with another program.
    rows
        What computes the values, a row for each event; nothing for those that are `unused`.
    """

    def __init__(
        self, events: Events, arguments: Iterable[Any], others: Sequence[Program] = (),
        exact: Sequence[int] | None = None, unused: Collection[int] = (),
        passing: Collection[int] = (),
    ) -> None:  # fmt: skip
        before, self.shared = _longest_beginning(events, others)
        self.at_once = set[int]()
        self._passing, self._is_learned = passing, exact is None
        self._ahead = 0  # bytes of results since the latest event that is computed at once
        if before is None:
            self.arguments: list[np.ndarray] = list(map(np.array, arguments))
            self.places: list[Any] = [x if x.ndim or x.dtype.char != "d" else x.data for x in self.arguments]
            self.copies = Copies()
        else:
            self.arguments, self.places, self.copies = before.arguments, before.places, before.copies
            for buffer, x in zip(self.arguments, arguments, strict=True):
                if buffer is not x:  # as another thread may be writing to it
                    buffer[...] = x
        self.values = events.values  # up to the event at hand
        self.read_only: set[int] = (
            set() if before is None else {k for k in before.read_only if k < self.shared}
        )
        self._brought = type(self.values)()  # buffers of the operands that are `sources` of the events
        self.attrs = events.attrs
        self.views = bytearray()
        self.rows = Rows()
        self.renewals: dict[int, Callable[[], None]] = {}
        self._first_of: dict[tuple[str, object], int] = {}  # the event that finds factors, by their origin
        self.events, given = events, list[Any]()  # values that recording gave, where they are known
        self._take(given, before, unused)
        self.values.trim()
        self._brought.trim()
        self.rows.seal()
        self.active = activity(events)
        self.recorded = self._modes()
        self._find_owners(None if before is None else before.stand_ins)
        self._find_writes()
        self.warns = any(event.warning for _, event in events.unusual())
        self.anew = [k for k, attrs in enumerate(self.attrs) if attrs and is_computed_anew(events[k])]
        known = b"" if before is None else before.exact[: self.shared]
        self.exact: Sequence[int] = self._verified(given, known) if exact is None else exact
        if exact is None:
            self.copies.release()

    def _take(self, given: list[Any], before: Program | None, unused: Collection[int]) -> None:
        """Have buffers and rows for the events, and what recording gave where that is known."""
        events, learned, forms = self.events, self._is_learned, None
        if learned and not self._passing:
            forms = RowForms(self.arguments, events, self.rows, self._bring)
        for k in range(len(events)):
            background.pause()
            ours = k >= self.shared and learned and is_placed(events, k)
            if ours and forms is not None and events.is_plain(k) and forms.add(k):
                self.views.append(False)
                given.append(IN_PLACE if events.know(k) else None)
                forget_steps(self.rows)
                continue
            event, first, bringing = events[k], len(self.rows), len(self._brought)
            if before is not None and k < self.shared:
                if k in before.at_once:
                    self.at_once.add(k)
                self._share(before, k, event, learned)
            else:
                self._add(event, k, k in unused, ours)
            if learned:
                is_there = ours and not self.views[k] and event.op is not BROADCAST
                value = IN_PLACE if is_there else np.asarray(event.value)
                given.append(value if event.known else None)
            self._ahead += 0 if self.views[k] else self.values[k].nbytes
            if k in self.at_once:
                self._ahead = 0
            events[k] = self._own(event, k)
            if forms is not None:
                forms.learn(k, first, [self._brought[q] for q in range(bringing, len(self._brought))])
            forget_steps(self.rows)
        forget_steps(self.rows, True)

    def _add(self, event: Event, k: int, unused: bool, ours: bool) -> None:
        """Add buffers and a row for an event, whose value is one if it is `ours`."""
        attrs, value = self._attributes(event) if event.attrs else event.attrs, np.asarray(event.value)
        if attrs is not event.attrs:
            self.attrs[k], event = attrs, event._replace(attrs=attrs)
        matrix = matrix_of(event) if self._passing else None
        if matrix is not None and id(matrix) in self._passing and is_worth_it(matrix, value, self._ahead):
            self.at_once.add(k)
        operands = [self._operand(source, event, k) for source in event.operands]
        seen = (event.is_view or event.op in (ELEMENT, DETACH)) and varying_of(event.attrs) is None
        view = view_of(event.op, event.attrs, operands[0]) if seen else None
        if event.op is REARRANGE and event.order is None:
            view = windows_of(operands[0], event.attrs, value)
        self.views.append(view is not None)
        target = None
        if event.op is BROADCAST:
            view = np.broadcast_to(operands[0], value.shape)  # each element seen more than once
        elif view is None and ours:
            view = target = value
        elif view is None:
            view = target = self.values.room(k, value)
            if event.known:
                view[...] = event.value
        if not value.flags.writeable and view.flags.writeable:
            self.read_only.add(k)
            view = view.view()
            view.flags.writeable = False
        if view is not target:
            self.values[k] = view
        self._compute(event, k, operands, view if target is None else target, target is None or unused)

    def _modes(self) -> Sequence[int]:
        found = bytearray(layout.RECORDED_ON if active else layout.EITHER for active in self.active)
        for k in self.events.unrecorded():
            if any(is_active(source, self.active) for source in self.events[k].operands):
                found[k] = layout.RECORDED_OFF
        return found

    def _verified(self, given: list[Any], shared_exact: Sequence[int]) -> Sequence[int]:
        """Of which events the rows give the bits that recording gave for the same operands.

        Of events in shared buffers that is known. The call that is learned from may have those that Python
        has computed there, which rows would change.
        """
        for k in range(self.shared):  # where it may be in the very buffers
            given[k] = None if given[k] is None else given[k].copy()
        shared = self.values.alone(self.shared)  # of which the call that is learned from may have some
        releases = Releases(self.rows, self.values.alone(), kept=[*self.arguments, *self.brought(), *shared])
        exact = bytearray()
        with np.errstate(all="ignore"):
            for k, x in enumerate(self.values):
                y, given[k] = given[k], None
                if y is IN_PLACE and k not in self.at_once:  # a small array
                    before = x.tobytes()
                    self.rows.run(k, k + 1)
                    exact.append(x.tobytes() == before)
                    releases.give_back_after(k)
                    background.pause()
                    continue
                op = self.events.ops[k]
                y = x.copy() if y is IN_PLACE else y
                shared_as_given = k < self.shared and not shared_exact[k] and op is not POWER
                if shared_as_given or k in self.at_once:
                    target = self.target(k)
                    if y is None and k in self.at_once:
                        y = self._recorded(k, [self.copies.value_of(x) for x in self.live(k)])
                    if target is not None and y is not None:
                        target[...] = y
                    exact.append(False)
                    continue
                self.rows.run(k, k + 1)
                exact.append(_is_same_bits(x, self._recorded(k, self.live(k)) if y is None else y))
                releases.give_back_after(k)
                background.pause()
        releases.end()
        self.rows.state[layout.ERRORS_MET] = 0
        return exact

    def _recorded(self, k: int, operands: list[np.ndarray]) -> np.ndarray:
        """What recording gives for these operands of an event."""
        op = self.events.ops[k]
        given = [x[()] if type(x) is np.ndarray and not x.ndim else x for x in operands]
        if isinstance(op, Elementwise) and op is not POWER and op.takes is None and self.values[k].ndim:
            return np.asarray(forward.value(op, given, self.attrs[k]))
        event = self.events[k]
        if isinstance(op, Passive):
            return np.asarray(op.forward(*given, **event.attrs))
        if op is POWER and event.operands[1].kind == LIVE and type(event.operands[1].value) is float:
            given[1] = given[1].item()  # NumPy has ways of its own for some
        return np.asarray(forward_of(event, given))

    def _find_owners(self, begun: StandIns | None) -> None:
        """Find what gave the Tensors of results, and which of these stand for several."""
        events = self.events
        self.owners: Sequence[int] = range(len(events))
        written = {k: event.writes for k, event in events.unusual() if event.writes is not None}
        if written:
            self.owners = [written.get(k, k) for k in range(len(events))]
        self.stand_ins = from_addresses(events.addresses, self.owners, begun, self.shared)
        events.addresses = self.stand_ins.numbers  # of which those are alike that were

    def _find_writes(self) -> None:
        """Find what writes to which Tensor, and the views of it made since the write before."""
        self.written: dict[int, Write] = {}
        self.seen: set[int] = set()
        if type(self.owners) is range:
            return
        sees: list[int] = []  # of each event the Tensor whose memory it sees
        views: dict[int, list[int]] = {}
        for k, event in enumerate(self.events):
            background.pause()
            source, of = event.operands[0], self.owners[k]
            how = None if event.call is None or event.call.function is not WRITE else event.call.args
            if how:
                known, by = how
                owner = of if by is None else self.owners[by.value]
                others = [self.owners[v] for v in views.pop(of, ()) if self.owners[v] != owner]
                made = self.events[of]
                if made.op in PARTS and made.operands[0].kind == RESULT:
                    others.append(self.owners[made.operands[0].value])
                self.written[k] = Write(event, owner, known, others, 1 if by is None else 2)
            elif source.kind == RESULT and (
                event.is_view or event.op is BROADCAST or is_number_view(event, self.values[source.value])
            ):
                of = sees[source.value]
                views.setdefault(of, []).append(k)
                if how is not None:
                    self.seen.add(k)
            sees.append(of)

    def keep_apart(self) -> None:
        """Have a Tensor of its own for each event, but writes."""
        self.stand_ins = StandIns(self.owners)

    def must_be_gone(self, k: int) -> list[int]:
        """Return the Tensors, by numbers, that nobody may have where an event writes to what they see."""
        stand_ins = self.stand_ins
        others = (v for v in self.written[k].others if stand_ins.is_latest(v, k, self.owners))
        return [stand_ins.numbers[v] for v in others]

    def live(self, k: int) -> list[Any]:
        """Return buffers of an event's operands: those of numbers and arrays take what a call brings."""
        of_kind, kinds = (self.arguments, self.values, self._brought), OPERAND_KINDS
        return [of_kind[place % kinds][place // kinds] for place in self.events.places(k)]

    def target(self, k: int) -> np.ndarray | None:
        """Return what takes the value of an event; nothing for views."""
        if self.views[k] or self.events.ops[k] is BROADCAST:
            return None
        value: np.ndarray = self.values[k]
        return value.base if k in self.read_only else value

    @property
    def operands_at_hand(self) -> Any:
        """Buffers of the operands that are no arguments or results, and those that are fixed, in order."""
        return self._brought

    @property
    def operands_brought(self) -> Iterator[tuple[Source, Any]]:
        """Sources and buffers of the operands that calls bring, and of those that are fixed, in order."""
        return zip(self.events.sources, self._brought, strict=True)

    def brought(self) -> list[np.ndarray]:
        """Return what takes the numbers and arrays that calls bring."""
        return [x for source, x in self.operands_brought if source.kind == LIVE]

    def _own(self, event: Event, k: int) -> Event:
        """An event that keeps no arrays but those of the program."""
        operands, attrs, value = event.operands, self.attrs[k], self.values[k]
        for q, source in enumerate(operands):
            if source.kind == LIVE and isinstance(source.value, np.ndarray) and source.value.ndim:
                operands = (*operands[:q], Source(LIVE, self.live(k)[q]), *operands[q + 1 :])
        return event._replace(operands=operands, attrs=attrs, value=value, known=value.nbytes < KEPT)

    def _share(self, before: Program, k: int, event: Event, filled: bool) -> None:
        """Take buffers from another program that begins so; `filled`: with what the event brings."""
        operands = before.live(k)
        for source, to in zip(event.operands, operands, strict=True):
            if source.kind >= LIVE:
                self._brought.keep(None)
                self._brought.share(len(self._brought) - 1, before._brought)
            if filled and source.kind == LIVE:
                self.copies.bring(to, source.value)
        mine, theirs = varying_of(event.attrs), varying_of(before.attrs[k])
        if filled and mine is not None and theirs is not None:
            theirs.take(mine.latest())
        event = event._replace(attrs=before.attrs[k])
        self.attrs[k] = before.attrs[k]
        self.values.share(k, before.values)
        self.views.append(before.views[k])
        target = before.target(k)
        self._compute(event, k, operands, self.values[k] if target is None else target, target is None)

    def _attributes(self, event: Event) -> Attributes:
        """The attributes of an event: its own, where calls bring others."""
        return dict(event.attrs) if is_computed_anew(event) else event.attrs

    def event_of_call(self, k: int) -> Event:
        """An event with the attributes that the call at hand has brought, for what outlives it."""
        event = self.events[k]
        varying = varying_of(event.attrs)
        if varying is not None:
            return event._replace(attrs=varying.latest())
        return event._replace(attrs=dict(event.attrs)) if k in self.anew else event

    def renewed(self, others: Sequence[Program]) -> Program:
        """Return the same program with other buffers, or those of the others."""
        passing = [id(x.buffer) for x in self.copies.in_place()]
        return Program(self.events.copy(), self.arguments, others, self.exact, passing=passing)

    def is_part(self, k: int) -> bool:
        """Whether an event is what an index takes: a view, elements, or a number with axes, in a copy."""
        op = self.events.ops[k]
        return bool(self.views[k]) or op is TAKE or (op is GETITEM and self.live(k)[0].ndim == 0)

    def buffer(self, source: Source) -> Any:
        """Return where the value of an argument or a result is, the same array to all who keep it."""
        return self.arguments[source.value] if source.kind == ARGUMENT else self.values.seen(source.value)

    def at_hand(self, source: Source) -> Any:
        """As `buffer`, an array that nobody keeps for longer than the program."""
        return (self.arguments if source.kind == ARGUMENT else self.values)[source.value]

    def _operand(self, source: Source, event: Event, k: int) -> Any:
        """Return the buffer of an operand, and keep one that is of no argument or result."""
        if source.kind < LIVE:
            return self.at_hand(source)
        value = source.value
        if source.kind == FIXED:
            return self._brought.keep(value)
        if source.kind == SHARED:
            return self._brought.keep(self.live(value[0])[value[1]])
        if k in self.at_once:
            buffer = self.copies.buffer_in_place(value)
            if self._is_learned:
                self.copies.bring(buffer, value)
            return self._brought.keep(buffer)
        if self.events.sources.has_packed(value):
            return self._brought.keep(value)
        if type(value) not in PYTHON_S:
            return self._brought.beside(np.array(value))
        if not isinstance(event.op, Passive):
            return self._bring(value, np.asarray(event.value).dtype)
        others = [x if x.kind >= LIVE else self.at_hand(x) for x in event.operands]
        kinds = [x.value if isinstance(x, Source) else x.dtype for x in others]
        return self._bring(value, np.result_type(*kinds))  # which it is compared in

    def _bring(self, x: Any, dtype: np.dtype) -> np.ndarray:
        """A buffer for a number of Python's, which is kept."""
        return self._brought.beside(np.array(x, dtype))

    def _compute(self, event: Event, k: int, operands: list[Any], out: np.ndarray, known: bool) -> None:
        if known or event.op is BROADCAST:
            self.rows.nothing()
            return
        first = len(self.rows), len(self.rows.kept)
        compute(self.rows, event, operands, out, renewal=self._renewal(k) if event.attrs else None)
        self.rows.fold(*first)

    def _renewal(self, k: int) -> Renewal | None:
        """What lets the factors that an event keeps, or places, be those of other operands that tell them.

        The first of the events that share factors finds them, the others take these.
        """
        attrs, operands = self.attrs[k], self.live(k)
        if not attrs:
            return None
        varying = varying_of(attrs)
        if varying is not None and varying.order is not None:
            self.renewals[k] = lambda: varying.find(operands[0])
            return Renewal(self.renewals[k], [], [varying.buffer])
        kept = {name: attrs[name] for name in COMPUTED if name in attrs}
        if not kept or any(not isinstance(x, Kept) or x.fresh() is None for x in kept.values()):
            return None
        first = {name: self._first_of.setdefault((name, x.origin), k) for name, x in kept.items()}

        def renew() -> None:
            for name, j in first.items():
                attrs[name] = attrs[name].fresh() if j == k else self.attrs[j][name].twin()

        self.renewals[k] = renew
        return Renewal(renew, [self.values[j] for j in first.values() if j != k], [])


def _is_same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether two arrays have the same elements, which may be none that are equal to themselves."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if x.nbytes <= PACKED or not (x.flags.c_contiguous and y.flags.c_contiguous):
        return x.tobytes() == y.tobytes()
    return have_same_bytes(x, y)
