"""Attributes that are others at each call: those that it brings, or that rows find."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tapegrad.compilation.events.events import Event
from tapegrad.ops import REGISTRY
from tapegrad.ops.primitive import Attributes, Primitive

ELEMENT = REGISTRY["element"]
TAKE = REGISTRY["take"]
REARRANGE = REGISTRY["rearrange"]
TAKING = ELEMENT, TAKE, REARRANGE  # ops whose elements may be others at each call
VARYING = "varying"  # the attribute that stands for all others
COMPUTED = "factors", "lu", "solution", "solver"  # attributes that are computed of an op's operands
ANEW = frozenset((*COMPUTED, VARYING))


class Varying:
    """Which elements an operation takes, where that is another at each call: instead of its attributes.

    Attributes
    ----------
    buffer
        Their numbers in C order.
    holes
        Whether there are some below 0, of no element.
    order
        What tells them of the operand, as rows do then; None where each call brings them.
    """

    def __init__(self, op: Primitive, shape: tuple[int, ...], attrs: Attributes, order: Any = None) -> None:
        self.order = order
        self._op, self._names = op, attrs.keys()
        self._every = None if op is REARRANGE else np.arange(math.prod(shape)).reshape(shape)
        self.holes = bool(attrs.get("holes"))
        self.buffer = np.array(self._numbers(attrs), np.intp)
        self._kind = _kind_of(attrs.get("index"))
        self._latest: Attributes = {}
        self.take(attrs)

    def _numbers(self, attrs: Attributes) -> Any:
        return attrs["places"] if self._every is None else self._every[attrs["index"]]

    def take(self, attrs: Attributes) -> bool:
        """Whether an operation takes as many elements in this way; they are those of the call from now on."""
        if self.order is not None:
            return bool(attrs.get("order") == self.order)
        if attrs.keys() != self._names or bool(attrs.get("holes")) is not self.holes:
            return False
        if _kind_of(attrs.get("index")) != self._kind:
            return False
        try:
            found = self._numbers(attrs)
        except IndexError:  # as it will be told
            return False
        if np.shape(found) != self.buffer.shape:
            return False
        self.buffer[...] = found
        self._latest = {name: _copied(x) for name, x in attrs.items()}
        return True

    def __eq__(self, other: object) -> bool:
        """Whether the other one takes as many, in the same way."""
        return (
            isinstance(other, Varying)
            and (self._op, self._names, self.holes) == (other._op, other._names, other.holes)
            and self.order == other.order
            and self.buffer.shape == other.buffer.shape
        )

    __hash__ = None  # type: ignore[assignment]

    def take_index(self, index: Any) -> bool:
        """As `take`, of a part of a Tensor by an index."""
        return self._every is not None and self.take({**self._latest, "index": index})

    def find(self, x: np.ndarray) -> None:
        """Find the elements that the order tells."""
        self.buffer[...] = self.order(x)

    def latest(self) -> Attributes:
        """The attributes of the call at hand."""
        if self.order is not None:
            return {"places": self.buffer.copy(), "holes": self.holes}
        found = dict(self._latest)
        return {**found, "place": int(self.buffer)} if "place" in found else found


def _copied(x: Any) -> Any:
    """An index that nobody else writes to."""
    return tuple(map(_copied, x)) if type(x) is tuple else np.array(x) if isinstance(x, np.ndarray) else x


def _kind_of(index: Any) -> Any:
    """What tells an index that takes elements in one way from those that do in another."""
    if type(index) is tuple:
        return tuple(map(_kind_of, index))
    if isinstance(index, np.ndarray):
        return index.dtype.kind, index.ndim
    return (
        int if isinstance(index, (int, np.integer)) and not isinstance(index, bool) else (type(index), index)
    )


class Renewal(NamedTuple):
    """What finds attributes of an operation that its operands tell.

    Attributes
    ----------
    run
        Does so.
    reads
        Results of other operations that have found them for this one too.
    writes
        Arrays that it finds.
    """

    run: Callable[[], None]
    reads: list[np.ndarray]
    writes: list[np.ndarray]


def varying_of(attrs: Attributes) -> Varying | None:
    """What is in the place of attributes, if it is that."""
    return attrs.get(VARYING)


def in_order(event: Event) -> Event:
    """An event that takes elements at places that its order tells."""
    return event._replace(attrs={VARYING: Varying(event.op, (), event.attrs, event.order)})


def is_computed_anew(event: Event) -> bool:
    """Whether an event has attributes that are others at each call."""
    return not ANEW.isdisjoint(event.attrs)
