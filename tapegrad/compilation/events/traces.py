"""What a recorded call has done, as the events that a program is made of."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.compilation import background
from tapegrad.compilation.events.events import (
    ARGUMENT,
    ELEMENT,
    FIXED,
    FLAT,
    LIVE,
    NO_ATTRIBUTES,
    NUMBERS,
    OPERAND_KINDS,
    POWER,
    PYTHON_S,
    RESULT,
    UNKNOWN,
    WRITE,
    Brought,
    Called,
    Event,
    Events,
    History,
    Several,
    Source,
    Unlearnable,
    is_without_errors,
)
from tapegrad.compilation.events.listing import Listed, Listing, listed
from tapegrad.compilation.events.passive import DETACH, Passive
from tapegrad.compilation.memory import pages as memory
from tapegrad.core.dispatch import COPIED
from tapegrad.core.functions import OF_VALUES
from tapegrad.kernels.replay.layout import (
    A_SHADOW,
    LISTED_HOW,
    LISTED_OP,
    LISTED_OPERANDS,
    LISTED_RESULT,
    OPERANDS_LISTED,
)
from tapegrad.ops.primitive import Primitive

OUTSIDE = "operand {} of {} is a Tensor from outside that requires grad, or was written to"
CALLED = "it calls {} (a Function, a solver of tapegrad.scipy or a function of tg.njit), which is recorded"
WRITTEN = "a Tensor was written to that is an argument, from outside, or shares its memory"
RETURNED = "it returned {}, which is no result of an operation on its arguments"
NOWHERE = -1  # instead of the number of an event
MANY = 1 << 14  # operations whose values are much, once others have copies of them
MOST_NUMBERS = 256  # of Python's, of which each is known once


class Trace(NamedTuple):
    """What a call has done, with nothing of the user's in it but values and copies.

    Attributes
    ----------
    listing
        The operations.
    calls
        How operations were called, by their number, with histories in the place of sources.
    writes
        What told the Tensors that operations have written to, by their number.
    several
        The numbers of those that are one of several views.
    orders, warnings
        What tells the places of elements that operations take, and words of warnings, by their number.
    arguments, histories
        Values of the arguments, and what tells their Tensors.
    held
        How many bytes all that has.
    originals
        Of copies of very large arrays that the call has brought, by their ids, whose memory was copied.
    kept
        What tells Tensors without a history that others hold at the end of the call.
    """

    listing: Listing
    calls: dict[int, Called]
    writes: dict[int, History]
    several: set[int]
    orders: dict[int, Callable[..., Any]]
    warnings: dict[int, str]
    arguments: list[np.ndarray]
    histories: list[History]
    held: int
    originals: dict[int, weakref.ref[np.ndarray]]
    kept: set[History]

    def events(self, found: History, looks: bool = True) -> tuple[Events, int]:
        """Return the operations, and the number of that which gave a Tensor; the listing is used up.

        With numbers that are but looked at, if Python `looks` at them at each call.
        """
        known = _Found(self.histories)
        owners: dict[Any, int] = {}  # the numbers of the events that gave the Tensors, before any write
        used = _used(self.listing, self.kept, looks) if FLAT in self.listing.serials() else set()
        events = Events((), memory.is_long(_number_of_events(self.listing, used)))
        numbers = array("q")  # of events, by those of the operations listed
        special = {*self.writes, *self.several, *self.orders, *self.warnings}
        for k, (objects, words) in enumerate(self.listing.taken()):
            background.pause()
            numbers.append(len(events))
            if not len(events) + 1 & MANY - 1:
                memory.trim()  # as what the listing had has gone
            history = handle, serial, at = words[LISTED_RESULT : LISTED_RESULT + 3]
            if serial == FLAT and tuple(history) not in used:
                numbers[k] = NOWHERE
                continue
            if not objects[LISTED_OP].by_itself:
                of = listed(objects, words)
                raise Unlearnable(CALLED.format(of.op.node_name(of.attrs).removesuffix("Backward")))
            writes = None
            if k in self.writes:
                writes = owners.get(self.writes[k].key)
                if writes is None:
                    raise Unlearnable(WRITTEN)
            if serial == FLAT or k in special or not _add_plain(events, objects, words, known):
                events.append(self._event(k, listed(objects, words), known, writes))
            if self.writes:
                owners[serial, at] = len(events) - 1 if writes is None else writes
            known.add(serial, at, len(events) - 1)
            events.addresses.append(handle)
        events.trim()
        for k in [*self.calls]:
            n, called = numbers[k], self.calls.pop(k)  # of which none is kept while a program is made
            if n == NOWHERE:
                continue
            events[n] = events[n]._replace(call=_with_sources(called, known))
            if not _is_one(events[n]):
                whole = list(numbers[k : k + called.events]) == [*range(n, n + called.events)]
                events[n] = events[n]._replace(call=_as_one(events, n) if whole else None)
        source = known.get(found)
        if source is None or source.kind != RESULT:
            raise Unlearnable(RETURNED.format("Tensor"))
        return events, source.value

    def _event(self, k: int, of: Listed, known: _Found, writes: int | None) -> Event:
        """An operation as an event."""
        value = of.value
        if of.is_shadow:
            value = known.like(value)
        sources = tuple([_source(of.op, q, x, known) for q, x in enumerate(of.operands)])
        compared = of.history.serial == FLAT and not of.by_python and k not in self.calls
        call = _compared(of.op, sources) if compared else None
        unrecorded = of.history.serial == FLAT and not isinstance(of.op, Passive)
        more = k in self.several, self.orders.get(k), self.warnings.get(k, ""), unrecorded
        return Event(of.op, sources, of.attrs, value, of.is_view, call, not of.is_shadow, writes, *more)


def _add_plain(events: Events, objects: Sequence[Any], words: Sequence[int], known: _Found) -> bool:
    """Add an operation of which there is nothing more to say, that compiled code has listed; else False."""
    count, is_shadow = words[LISTED_HOW] & ~A_SHADOW, words[LISTED_HOW] & A_SHADOW != 0
    if not 0 < count <= OPERANDS_LISTED:
        return False
    op, value, first, second = objects
    for q, x in ((0, first), (1, second))[:count]:
        history = words[LISTED_OPERANDS + 3 * q : LISTED_OPERANDS + 3 * q + 3]
        place = events.bring(_source(op, q, x, known)) if history[2] < 0 else known.place(*history)
        if place == NOWHERE:
            raise Unlearnable(OUTSIDE.format(q, op.name))
        events.add_operand(place)
    attrs = NO_ATTRIBUTES if count > 1 else second or NO_ATTRIBUTES
    events.add(op, attrs, known.like(value) if is_shadow else value, not is_shadow)
    return True


def _number_of_events(listing: Listing, used: Collection[History]) -> int:
    """Of how many operations a program is made."""
    flat = np.flatnonzero(listing.serials() == FLAT).tolist()
    return len(listing) - sum(listing.history(k) not in used for k in flat)


def _compared(op: Passive, sources: Sequence[Source]) -> Called:
    """The call of a comparison that compiled code has listed."""
    given = [source if source.kind < LIVE else Brought(q) for q, source in enumerate(sources)]
    return Called(op.functions[0], tuple(given), {})


def _used(listing: Listing, kept: Collection[History], looks: bool) -> set[History]:
    """What tells Tensors that operations with a derivative need, directly or not, or numbers looked at."""
    used: set[History] = set()
    looked_at = _looked_at(listing, kept) if looks else ()
    for k in range(len(listing) - 1, -1, -1):
        background.pause()
        listed = listing[k]
        history = listed.history
        seen = k in looked_at or OF_VALUES.intersection(listed.op.functions)
        if history.serial != FLAT or history in used or seen:
            used.update([history, *(x for x in listed.operands if type(x) is History)])
    return used


def _looked_at(listing: Listing, kept: Collection[History]) -> set[int]:
    """Which operations gave numbers without a derivative, to be looked at; one that is kept is no program's.

    Or arrays, by ufuncs, by `detach`, of such, or while nothing was recorded. Compiled code compares numbers
    at once, which takes less.
    """
    found = set[int]()
    for k in np.flatnonzero(listing.serials() == FLAT).tolist():
        op, listed = listing.op(k), listing[k]
        if not listed.by_python or listed.history in kept:
            continue
        if isinstance(op, Passive):
            is_one = listed.value.ndim == 0 or op is DETACH or op.is_ufunc
        else:
            flat = (x.at for x in listed.operands if type(x) is History and x.serial == FLAT)
            is_one = (listed.value.ndim == 0 and op is not ELEMENT) or all(j in found for j in flat)
        if is_one:
            found.add(k)
    return found


class _Found:
    """Sources by what tells Tensors: arguments by these, as two may have one record, results by records."""

    def __init__(self, arguments: Sequence[History]) -> None:
        self._arguments: dict[tuple[int, ...], int] = {tuple(x): k for k, x in enumerate(arguments)}
        self._results: dict[int, array[int]] = {}  # by serials of tapes, at places on these
        self._numbers: dict[tuple[int, type, str], Source] = {}
        self._likes: dict[tuple[tuple[int, ...], np.dtype], np.ndarray] = {}

    def add(self, serial: int, at: int, number: int) -> None:
        """Know the result of a number."""
        numbers = self._results.setdefault(serial, array("q"))
        numbers.extend([NOWHERE] * (at + 1 - len(numbers)))
        numbers[at] = number

    def number(self, kind: int, x: Any) -> Source:
        """The source of a number, one for all that are alike while there are few."""
        key = kind, type(x), repr(x)
        found = self._numbers.get(key)
        if found is None:
            found = Source(kind, x)
            if len(self._numbers) < MOST_NUMBERS:
                self._numbers[key] = found
        return found

    def like(self, x: np.ndarray) -> np.ndarray:
        """An array that lies as a result did of which nothing is kept; the same one for the same look."""
        key = x.shape, x.dtype
        found = self._likes.get(key)
        if found is None:
            found = self._likes[key] = np.empty(*key)
        return found

    def get(self, x: History) -> Source | None:
        """Return the source of what has a history."""
        place = self.place(*x)
        return None if place == NOWHERE else Source(place % OPERAND_KINDS, place // OPERAND_KINDS)

    def place(self, handle: int, serial: int, at: int) -> int:
        """Return where it is, as `Events` have it; NOWHERE for anything else."""
        argument = self._arguments.get((handle, serial, at))
        if argument is not None:
            return OPERAND_KINDS * argument + ARGUMENT
        numbers = self._results.get(serial, ())
        number = numbers[at] if 0 <= at < len(numbers) else NOWHERE
        return NOWHERE if number == NOWHERE else OPERAND_KINDS * number + RESULT


def _source(op: Primitive, q: int, x: Any, known: _Found) -> Source:
    if type(x) is History:
        found = known.get(x)
        if found is None:
            raise Unlearnable(OUTSIDE.format(q, op.name))
        return found
    if type(x) in PYTHON_S:
        return known.number(FIXED if op is POWER and q == 1 and isinstance(x, NUMBERS) else LIVE, x)
    return Source(FIXED if op is POWER and q == 1 and isinstance(x, NUMBERS) else LIVE, x)


def _with_sources(x: Any, known: _Found) -> Any:
    """What was given to a function, with sources in the place of histories."""
    if type(x) is History:
        return known.get(x) or UNKNOWN
    if type(x) is Several:
        parts = tuple(_with_sources(y, known) for y in x.parts)
        return UNKNOWN if _has_unknown(parts) else x._replace(parts=parts)
    if type(x) is Called:
        found = x.replaced(lambda y: _with_sources(y, known))
        return None if _has_unknown((*found.args, *found.kwargs.values())) else found
    return x


def _is_one(event: Event) -> bool:
    """Whether an event is not called, a write, or one operation of which the call brings all operands."""
    call = event.call
    if call is None or call.function is WRITE:
        return True
    return call.events == 1 and _has_all([event], call.brought())


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
