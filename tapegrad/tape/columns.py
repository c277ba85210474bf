"""A sealed tape: its records as columns of machine words, read from the log of an open one and validated."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.errors import KernelError
from tapegrad.kernels import abi, table
from tapegrad.kernels.replay import layout
from tapegrad.kernels.state import give, take
from tapegrad.tape import pool
from tapegrad.tape.record import LINK, STRIDE, Position, Record, Value, slot

DOUBLE = np.dtype(float)


class Columns:
    """A sealed tape's records as words (see `kernels.replay.reading`) and its values."""

    __slots__ = ("_shapes", "at", "kept", "n", "values", "words")

    def __init__(self, words: np.ndarray, n: int, values: list[Any], kept: Any = None) -> None:
        self.words, self.n, self.values, self.kept = words, n, values, kept
        self.at = abi.address(words)
        self._shapes: list[Value] | None = None

    def values_or_shapes(self) -> list[Value]:
        """All values; for those that no rule reads, and nothing keeps, something of their shape and dtype."""
        if all(value is not None for value in self.values):
            return self.values
        if self._shapes is None:
            self._shapes = list(map(self._shadow, range(self.n)))
        both = zip(self.values, self._shapes, strict=True)
        return [shape if value is None else value for value, shape in both]

    def value_or_shape(self, k: Record) -> Value:
        """The value of record k; where nothing keeps it something of its shape and dtype."""
        value: Value | None = self.values[k]
        return self._shadow(k) if value is None else value

    def _shadow(self, k: Record) -> Value:
        shape, dtype = self.shape(k), abi.DTYPES.get(self.code(k), DOUBLE)
        return pool.shadow_of(shape, dtype) if shape else dtype.type(0)

    def opcode(self, k: Record) -> int:
        return int(self.words[k]) & 0xFFFF

    def code(self, k: Record) -> int:
        return int(self.words[self.n + k]) & 0xFF

    def shape(self, k: Record) -> tuple[int, ...]:
        meta = int(self.words[self.n + k])
        place = 3 * self.n + (meta >> 32)
        return tuple(self.words[place : place + ((meta >> 16) & 0xFF)].tolist())

    def strides(self, k: Record) -> tuple[int, ...]:
        """Strides in bytes of value k."""
        meta = int(self.words[self.n + k])
        ndim, place = (meta >> 16) & 0xFF, 3 * self.n + (meta >> 32)
        if meta & 0x100:
            steps, step = [], (meta >> 9) & 0x7F
            for extent in self.shape(k)[::-1]:
                steps.append(step)
                step *= extent
            return tuple(steps[::-1])
        return tuple(self.words[place + ndim : place + 2 * ndim].tolist())

    def operation(self, k: Record) -> tuple[int, int, int]:
        """The opcode of record k, and its two operands as record numbers from 1."""
        word = int(self.words[k])
        return word & 0xFFFF, (word >> 16) & 0xFFFF, word >> 32

    def operands(self, k: Record, form: int) -> list[Record]:
        """Record numbers of k's operands."""
        return operands_of(self.operation, k, form)

    def links(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Records that link to older tapes, those tapes' numbers (0: freed), the records there."""
        words = self.words[: self.n]
        records = np.flatnonzero(words & 0xFFFF == LINK)
        found = words[records]
        return records, found >> 16 & 0xFFFF, (found >> 32) - 1

    def place(self, view: memoryview) -> None:
        """Point a state's words at these columns."""
        view[layout.WORD] = at = self.at
        view[layout.META] = at + 8 * self.n
        view[layout.ADDRESS] = at + 16 * self.n
        view[layout.SHAPES] = at + 24 * self.n
        view[layout.RECORDS] = self.n


def operands_of(operation: Callable[[int], tuple[int, int, int]], k: Record, form: int) -> list[Record]:
    """Record numbers of k's operands, from what an operation is by its record's number."""
    _, first, second = operation(k)
    found = [first - 1] if first and form != layout.NONE else []
    if form == layout.TWO:
        found.append(second - 1)
    while form == layout.CHAIN and second:
        _, first, second = operation(second - 1)
        found.append(first - 1)
    return found


def read(log: list[Any], shadows: dict[Position, weakref.ref[np.ndarray]]) -> Columns:
    """The columns of an open tape's records, each validated."""
    n = len(log) // STRIDE
    if not abi.native():
        return _read_portably(log, n, shadows)
    state = take()
    state.fit(n)
    state.look(log)
    view = state.view
    words, at = state.buffers[layout.SEALING], view[layout.SEALING]
    while True:
        room = words.size - 3 * n
        view[layout.WORD], view[layout.META] = at, at + 8 * n
        view[layout.ADDRESS], view[layout.SHAPES] = at + 16 * n, at + 24 * n
        view[layout.RECORDS], view[layout.CAPACITY] = n, room
        view[layout.KNOWN] = abi.address(abi.known())
        view[layout.NONE_OBJECT], view[layout.ARRAY_TYPE] = id(None), id(np.ndarray)
        used = state.run(layout.SEAL, id(log))
        if used < 0:
            raise KernelError(_malformed(log, -1 - used))
        if used <= room:
            break
        words = np.empty(3 * n + used, np.int64)
        at = abi.address(words)
    words = words[: 3 * n + used].copy()  # of the state's own
    give(state)
    return Columns(words, n, _values(log, n, shadows))


def _read_portably(log: list[Any], n: int, shadows: dict[Position, weakref.ref[np.ndarray]]) -> Columns:
    """As the compiled `seal`, through public calls only."""
    operations, opcodes = table.operations()
    words: list[list[int]] = [[], [], []]
    shapes: list[int] = []
    values = log[3 : STRIDE * n : STRIDE]
    scalars: dict[Any, list[int]] = {}
    for k in range(n):
        op, first, second = log[STRIDE * k : STRIDE * k + 3]
        if not 0 <= op < opcodes:
            raise KernelError(_malformed(log, k))
        form = int(operations[op, layout.FORM])
        a, b = (0, 0) if form == layout.NONE else (first >> 2, second >> 2)
        if form == layout.NUMBER:
            b = second
        wrong = form != layout.NONE and not 1 <= a <= k
        if wrong or (form not in (layout.NUMBER, layout.NONE) and b > k) or (form == layout.TWO and b < 1):
            raise KernelError(_malformed(log, k))
        if op == LINK:
            a, b = first, second >> 2
        words[0].append(op | a << 16 | b << 32)
        value = values[k]
        if value is None:
            words[1].append(0)
            words[2].append(0)
            continue
        array = np.asarray(value)
        code = abi.CODES.get(array.dtype.char, 0)
        if code == 0 or not array.dtype.isnative:
            raise KernelError(_malformed(log, k))
        if not isinstance(value, np.ndarray):
            scalars.setdefault(array.dtype, []).append(k)
        dense = array.flags.c_contiguous
        meta = code | dense << 8 | array.itemsize << 9 | array.ndim << 16 | len(shapes) << 32
        words[1].append(meta)
        words[2].append(abi.address(array))
        shapes += array.shape if dense else (*array.shape, *array.strides)
    kept = []
    for dtype, places in scalars.items():  # copied: nothing but ndarrays tells its address
        array = np.array([values[k] for k in places], dtype)
        kept.append(array)
        for q, k in enumerate(places):
            words[2][k] = abi.address(array) + q * array.itemsize
    flat = np.array(words[0] + words[1] + words[2] + shapes, np.int64)
    return Columns(flat, n, _values(log, n, shadows), kept)


def _values(log: list[Any], n: int, shadows: dict[Position, weakref.ref[np.ndarray]]) -> list[Any]:
    """The values of the first n records, None for shadows."""
    values = log[3 : STRIDE * n : STRIDE]
    for at, value in shadows.copy().items():
        k = slot(at)
        if k < n and values[k] is not value():
            values[k] = None
    return values


def _malformed(log: list[Any], k: Record) -> str:
    op, first, second, value = log[STRIDE * k : STRIDE * (k + 1)]
    found = f"{type(value).__name__} of dtype {getattr(value, 'dtype', None)}"
    return f"record {k} of a tape is malformed: op {op}, operands {first} and {second}, value {found}"
