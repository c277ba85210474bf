"""Operations of a call that is learned from, as they come: by compiled code, or by Python."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.compilation.events.events import NO_ATTRIBUTES, History
from tapegrad.compilation.memory.pages import give_back, is_long, zeros
from tapegrad.kernels import abi
from tapegrad.kernels.replay.layout import (
    A_SHADOW,
    A_VIEW,
    LISTED_FIRST,
    LISTED_HOW,
    LISTED_NUMBERS,
    LISTED_OBJECTS,
    LISTED_OP,
    LISTED_OPERANDS,
    LISTED_RESULT,
    LISTED_VALUE,
    OPERANDS_LISTED,
    TRACE_GROW,
    TRACE_LEAST,
    TRACE_NUMBERS,
    TRACE_OBJECTS,
    TRACE_ROOM,
)
from tapegrad.ops.primitive import Attributes

FEW = 64  # operations for which there is room at first
SOME = 1 << 10  # whose numbers are Python's at once


class Listed(NamedTuple):
    """An operation: its op, what tells its result, the value, operands, attributes, whether that is a view.

    A value that `is_shadow` has but the shape and dtype. Operands with a history are told by it. Python may
    have listed it.
    """

    op: Any
    history: History
    value: Any
    operands: list[Any]
    attrs: Attributes
    is_view: bool
    is_shadow: bool
    by_python: bool


class Listing:
    """Operations: objects, and numbers, as these take a fifth of what they do as Python's.

    Parameters
    ----------
    words
        By which compiled code adds to them (`kernels.replay.watching`).
    """

    def __init__(self, words: np.ndarray) -> None:
        self._objects: list[Any] = []
        self._numbers = [np.zeros((0, LISTED_NUMBERS), np.int64)]
        self._grow = functools.partial(_grow, words, self._numbers)
        self._grow()
        words[TRACE_OBJECTS], words[TRACE_GROW] = id(self._objects), id(self._grow)

    def __len__(self) -> int:
        return len(self._objects) // LISTED_OBJECTS

    def __getitem__(self, k: int) -> Listed:
        objects = self._objects[LISTED_OBJECTS * k : LISTED_OBJECTS * (k + 1)]
        return listed(objects, self._numbers[0][k].tolist())

    def op(self, k: int) -> Any:
        """The op of an operation."""
        return self._objects[LISTED_OBJECTS * k + LISTED_OP]

    def value(self, k: int) -> Any:
        """What an operation has given."""
        return self._objects[LISTED_OBJECTS * k + LISTED_VALUE]

    def history(self, k: int) -> History:
        """What tells the Tensor of a result."""
        return _history_at(self._numbers[0][k].tolist(), LISTED_RESULT)

    def serials(self) -> np.ndarray:
        """Serials of the tapes of all results."""
        return self._numbers[0][: len(self), LISTED_RESULT + 1]

    def add(
        self, op: Any, history: History, value: Any, operands: list[Any], attrs: Attributes | None,
        is_view: bool, is_shadow: bool,
    ) -> int:  # fmt: skip
        """List an operation, beside what other threads may; return the place of its operands."""
        self._objects += (op, value, operands, attrs or NO_ATTRIBUTES)
        k = len(self) - 1
        while self._objects[LISTED_OBJECTS * k + LISTED_FIRST] is not operands:
            k -= 1
        while k >= len(self._numbers[0]):
            self._grow()
        numbers = self._numbers[0][k]
        numbers[LISTED_HOW] = A_VIEW * is_view + A_SHADOW * is_shadow
        numbers[LISTED_RESULT : LISTED_RESULT + 3] = history
        return LISTED_OBJECTS * k + LISTED_FIRST

    def keep(self, place: int, kept: Callable[[Any, int, int, int], Any]) -> None:
        """Let operands at a place be what a function makes of them, or what tells one.

        Given are also the address of the Tensor whose value it is, or 0, the operation, and its number there.
        """
        (k, q), x = divmod(place, LISTED_OBJECTS), self._objects[place]
        if type(x) is list:
            found: Any = [y if type(y) is History else kept(y, 0, k, j) for j, y in enumerate(x)]
        else:
            q -= LISTED_FIRST
            at, numbers = LISTED_OPERANDS + 3 * q, self._numbers[0][k]
            found = kept(x, int(numbers[at]), k, q)
            if type(found) is History:
                numbers[at : at + 3], found = found, None
        self._objects[place] = found

    def taken(self) -> Iterator[tuple[list[Any], list[int]]]:
        """Give objects and numbers of the operations in order, and let go of each."""
        objects, count = self._objects, len(self)
        objects.reverse()  # as the last ones are taken off in no time
        for begin in range(0, count, SOME):
            known = self._numbers[0][begin : min(begin + SOME, count)]
            rows = known.tolist()
            give_back(known)
            for numbers in rows:
                found = objects[: -LISTED_OBJECTS - 1 : -1]
                del objects[-LISTED_OBJECTS:]
                yield found, numbers
                found.clear()  # so that a value is its event's alone
        self._numbers.clear()


def _grow(words: np.ndarray, held: list[np.ndarray]) -> None:
    """Have room for twice as many operations; of very many no values are kept."""
    known = held[0]
    larger = zeros((max(2 * len(known), FEW), LISTED_NUMBERS), np.dtype(np.int64))
    larger[: len(known)] = known
    at, room, least = abi.address(larger), len(larger), 1 if is_long(len(larger)) else words[TRACE_LEAST]
    if held[0] is known:  # else another thread has made room; without calls none comes in between
        held[0], words[TRACE_NUMBERS], words[TRACE_ROOM], words[TRACE_LEAST] = larger, at, room, least


def listed(objects: Sequence[Any], numbers: Sequence[int]) -> Listed:
    """The operation of these objects and numbers."""
    how, (op, value, first, second) = numbers[LISTED_HOW], objects
    count = how & OPERANDS_LISTED
    if count == 0:
        operands, attrs = first, second
    else:
        operands, attrs = [_operand(first, numbers, LISTED_OPERANDS)], NO_ATTRIBUTES
        if count == 1:
            attrs = second or NO_ATTRIBUTES
        else:
            operands.append(_operand(second, numbers, LISTED_OPERANDS + 3))
    is_view, is_shadow = how & A_VIEW != 0, how & A_SHADOW != 0
    return Listed(
        op, _history_at(numbers, LISTED_RESULT), value, operands, attrs, is_view, is_shadow, count == 0
    )


def _operand(x: Any, numbers: Sequence[int], at: int) -> Any:
    return x if numbers[at + 2] < 0 else _history_at(numbers, at)


def _history_at(numbers: Sequence[int], at: int) -> History:
    return History(*numbers[at : at + 3])
