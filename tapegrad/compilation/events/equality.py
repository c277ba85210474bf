"""Whether two calls do the same, but for the numbers and arrays that a call brings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.compilation import background
from tapegrad.compilation.events.events import ARGUMENT, FIXED, LIVE, POWER, PYTHON_S, Event, Events, Source
from tapegrad.compilation.events.varying import COMPUTED, TAKING, VARYING, Varying, varying_of


def loosened(events: Events, known: Events, arguments: Sequence[np.ndarray]) -> Events:
    """Return events with exponents, or elements, that calls bring, where those of known events are others.

    Where the events differ in anything else they are returned as they are.
    """
    if len(events) != len(known):
        return events
    found = events.copy()
    for k, (event, y) in enumerate(zip(events, known, strict=True)):
        background.pause()
        x = event
        if x.op is y.op and x.op in TAKING and x.writes is None and not alike(x.attrs, y.attrs):
            source = x.operands[0]
            if source.kind < LIVE:
                of = arguments if source.kind == ARGUMENT else events.values
                shape = np.shape(of[source.value])
                x, y = _varied(x, shape), _varied(y, shape)
        if x.op is POWER and y.op is POWER and _is_loose(x.operands[1], y.operands[1]):
            x = x._replace(operands=(x.operands[0], Source(LIVE, x.operands[1].value)))
            y = y._replace(operands=(y.operands[0], x.operands[1]))
        if not is_same(x, y):
            return events
        if x is not event:
            found[k] = x
    return found


def _varied(event: Event, shape: tuple[int, ...]) -> Event:
    """An event that takes other elements at each call, unless the places are known for good."""
    if varying_of(event.attrs) is not None or "words" in event.attrs:
        return event
    return event._replace(attrs={VARYING: Varying(event.op, shape, event.attrs)}, call=None)


def _is_loose(mine: Source, theirs: Source) -> bool:
    """Whether an exponent is a float of Python's, and the other one another, or any."""
    if mine.kind != FIXED or type(mine.value) is not float or type(theirs.value) is not float:
        return False
    return theirs.kind == LIVE or bool(theirs.value != mine.value)


def is_same(x: Event, y: Event) -> bool:
    """Whether two events are the same, but for the numbers and arrays that a call brings."""
    if x.op is not y.op or len(x.operands) != len(y.operands) or not alike(x.attrs, y.attrs):
        return False
    if (x.writes, x.is_view, x.several, x.warning) != (y.writes, y.is_view, y.several, y.warning):
        return False
    if x.unrecorded is not y.unrecorded:
        return False
    if np.shape(x.value) != np.shape(y.value) or x.value.dtype != y.value.dtype:
        return False
    if np.ndim(x.value) and x.value.strides != y.value.strides:
        return False
    if np.ndim(x.value) and x.value.flags.writeable != y.value.flags.writeable:
        return False
    return all(_is_same_source(mine, theirs) for mine, theirs in zip(x.operands, y.operands, strict=True))


def _is_same_source(mine: Source, theirs: Source) -> bool:
    if mine.kind != theirs.kind:
        return False
    if mine.kind == FIXED:
        return type(mine.value) is type(theirs.value) and bool(mine.value == theirs.value)
    if mine.kind != LIVE:
        return bool(mine.value == theirs.value)
    x, y = np.asarray(mine.value), np.asarray(theirs.value)
    weak = type(mine.value) in PYTHON_S, type(theirs.value) in PYTHON_S
    return (
        weak[0] == weak[1]
        and x.shape == y.shape
        and (weak[0] or x.dtype == y.dtype)
        and x.strides == y.strides
    )


def alike(known: Any, found: Any) -> bool:
    """Whether attributes are the same, but for what is computed of operands: it is that of each call."""
    if known is found:
        return True
    if type(known) is not type(found):
        return False
    if isinstance(known, dict):
        return known.keys() == found.keys() and all(
            name in COMPUTED or alike(x, found[name]) for name, x in known.items()
        )
    if isinstance(known, (tuple, list)):
        return len(known) == len(found) and all(map(alike, known, found))
    if isinstance(known, slice):
        return alike((known.start, known.stop, known.step), (found.start, found.stop, found.step))
    if isinstance(known, np.ndarray):
        same = known.dtype == found.dtype and known.shape == found.shape and not known.dtype.hasobject
        return same and known.tobytes() == found.tobytes()
    if isinstance(known, (float, np.floating)) and known == 0.0:  # of two signs
        return bool(found == 0.0 and np.signbit(known) == np.signbit(found))
    return bool(known == found)
