"""What a function recorded, without values: whether it did the same as before."""

from __future__ import annotations

import functools
import hashlib
import textwrap
from typing import Any, NamedTuple

import numpy as np

from tapegrad.func.elements import leading_to
from tapegrad.func.patterns import tapes_of
from tapegrad.kernels import table
from tapegrad.kernels.replay import layout
from tapegrad.ops.primitive import BY_OPCODE
from tapegrad.tape.record import CONST, LEAF, LINK, Record, slot
from tapegrad.tape.tape import Tape
from tapegrad.tensor import Operand, Tensor

PLAIN = (int, float, complex, str, bytes, slice, np.dtype, np.generic, type(None), type(Ellipsis))


@functools.cache
def _opcodes() -> str:
    """A hash of what the opcodes mean in this process."""
    names = ",".join("" if op is None else op.name for op in BY_OPCODE)
    return hashlib.sha256(names.encode()).hexdigest()


class Part(NamedTuple):
    """One tape's records as they stand there.

    Attributes
    ----------
    words, shapes
        Of its columns: operations, dtypes and places of shapes; these.
    leaves
        Records that import the input.
    links
        By what number each older tape counts from the call's first one, from 1; 0 for any older than that.
    named
        Records with attributes that count, and their numbers in the program.
    """

    words: np.ndarray
    shapes: np.ndarray
    leaves: list[Record]
    links: list[int]
    named: list[tuple[Record, int]]


class Program:
    """The records that lead to a result: ops, operands, shapes, dtypes, attributes.

    Constants are left out, and so is what stands on tapes older than the call's: their values are nothing to
    a pattern. Where all records stand in the same places they are compared as they stand, which is quick.

    Attributes
    ----------
    operations
        Opcode, two operands as numbers of records from 1, 0 for a constant, and dtype and axes of each.
    extents
        All shapes, one after the other.
    attributes
        Those of each record that has some beside its operands, by its number.
    parts
        The same by tapes.
    itself
        Whether the result is the input.
    """

    def __init__(self, result: Any, x: Tensor, since: int) -> None:
        self.attributes: dict[int, Any] = {}
        tapes = tapes_of(result, since) if isinstance(result, Tensor) else []
        read = _Reading(tapes, x, since)
        # tapes may be pruned, and what they have of links is written to then
        self.parts = [part._replace(words=part.words.copy()) for part in read.parts]
        self.itself = result is x
        if not tapes:
            self.operations, self.extents = np.zeros((0, 4), np.int64), np.zeros(0, np.int64)
            return
        operations, shapes = read.operations()
        last = read.numbers[result._tape.serial][slot(result._at) + 1]
        is_number = _forms()[operations[:, 0]] == layout.NUMBER
        operands = np.where(np.stack([is_number & False, is_number], axis=1), 0, operations[:, 1:3])
        mark = leading_to(int(last), operands)
        number = np.concatenate([[0], np.cumsum(mark)])
        self.operations = operations[mark]
        self.operations[:, 1] = number[self.operations[:, 1]]
        is_number = _forms()[self.operations[:, 0]] == layout.NUMBER
        second = self.operations[:, 2]
        self.operations[:, 2] = np.where(is_number, second, number[np.where(is_number, 0, second)])
        self.extents = shapes[np.repeat(mark, operations[:, 3] >> 8)]
        for tape, part in zip(tapes, self.parts, strict=True):
            for k, attrs in tape.attrs.items():
                at = read.numbers[tape.serial][k + 1] if k < len(part.words) // 2 else 0
                form = _forms()[tape.operation(k)[0]] if at else layout.NUMBER
                if form != layout.NUMBER and mark[at - 1]:
                    self.attributes[int(number[at])] = _frozen(attrs)
                    part.named.append((k, int(number[at])))

    def is_same(self, result: Operand, x: Tensor, since: int) -> bool:
        """Whether a call recorded the same in the same places."""
        tapes = tapes_of(result, since) if isinstance(result, Tensor) else []
        if len(tapes) != len(self.parts) or self.itself != (result is x):
            return False
        for tape, mine, found in zip(tapes, self.parts, _Reading(tapes, x, since).parts, strict=True):
            if mine.leaves != found.leaves or mine.links != found.links:
                return False
            if not (np.array_equal(mine.words, found.words) and np.array_equal(mine.shapes, found.shapes)):
                return False
            for k, number in mine.named:
                if not _alike(self.attributes[number], tape.attrs.get(k)):
                    return False
        return True

    def difference(self, result: Operand, x: Tensor, since: int) -> str | None:
        """Say where what a call recorded differs; None if it does not."""
        if self.is_same(result, x, since):
            return None
        other = Program(result, x, since)
        if self.itself != other.itself:
            return "the result is the argument itself" if other.itself else "it was the argument itself"
        mine, theirs = self.operations, other.operations
        n = min(len(mine), len(theirs))
        unlike = np.flatnonzero((mine[:n] != theirs[:n]).any(axis=1))
        if unlike.size:
            k = int(unlike[0])
            return f"operation {k} is {_name(theirs, k)}, and was {_name(mine, k)}"
        if len(mine) != len(theirs):
            return f"{len(theirs)} operations lead to the result, and did {len(mine)}"
        for k, attrs in self.attributes.items():
            if not _alike(attrs, other.attributes.get(k)):
                found, before = (_short(program.attributes.get(k)) for program in (other, self))
                return f"operation {k - 1} is {_name(mine, k - 1)} with {found}, and was with {before}"
        return None if np.array_equal(self.extents, other.extents) else "arrays have other shapes"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "opcodes": _opcodes()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        known = state.pop("opcodes")
        self.__dict__.update(state)
        if known != _opcodes():  # written by another version, which counts its ops otherwise
            self.operations = self.operations - 1
            self.parts = []


class _Reading:
    """The columns of tapes, and numbers of the records there that are not constants."""

    def __init__(self, tapes: list[Tape], x: Tensor, since: int) -> None:
        self.columns = [tape.view() for tape in tapes]
        self.tapes = tapes
        self.numbers: dict[int, np.ndarray] = {}  # by tape, of each record from 1
        self.parts: list[Part] = []
        for tape, columns in zip(tapes, self.columns, strict=True):
            n, leaf = columns.n, x._at
            leaves = [k for k, cell in tape.imports.items() if cell is leaf and k < n]
            links = [0 if t is None or t.serial < since else t.serial - since + 1 for t in tape.older]
            self.parts.append(Part(columns.words[: 2 * n], columns.words[3 * n :], leaves, links, []))

    def operations(self) -> tuple[np.ndarray, np.ndarray]:
        """The operations of all tapes, and their shapes."""
        found, shapes, count = [], [], 0
        for tape, columns, part in zip(self.tapes, self.columns, self.parts, strict=True):
            n = columns.n
            words, meta = part.words[:n], part.words[n:]
            opcodes, first, second = words & 0xFFFF, words >> 16 & 0xFFFF, words >> 32
            own = (opcodes != CONST) & (opcodes != LEAF) & (opcodes != LINK)
            own[part.leaves] = True
            number = self.numbers[tape.serial] = np.zeros(n + 1, np.int64)
            number[1:] = np.where(own, count + np.cumsum(own), 0)
            for k in np.flatnonzero(opcodes == LINK).tolist():
                older = tape.older[first[k] - 1] if first[k] else None
                if older is not None and older.serial in self.numbers:
                    number[k + 1] = self.numbers[older.serial][second[k]]
            count += int(own.sum())
            opcodes, first, second, meta = opcodes[own], first[own], second[own], meta[own]
            is_number = _forms()[opcodes] == layout.NUMBER
            first = np.where(opcodes == LEAF, 0, number[first])
            second = np.where(is_number, second, number[np.where(is_number, 0, second)])
            ndims = meta >> 16 & 0xFF
            found.append(np.stack([opcodes, first, second, meta & 0xFF | ndims << 8], axis=1))
            at = np.repeat(3 * n + (meta >> 32) - (np.cumsum(ndims) - ndims), ndims)
            shapes.append(columns.words[at + np.arange(at.size)])
        return np.concatenate(found), np.concatenate(shapes)


def _forms() -> np.ndarray:
    """Which operands a record holds, by opcode."""
    return table.operations()[0][:, layout.FORM]


def _name(operations: np.ndarray, k: int) -> str:
    """An operation in words."""
    op = BY_OPCODE[int(operations[k, 0])]
    if op is None:
        return "an import"
    form = op.recorded_form
    operands = operations[k, 1 : 2 if form in (layout.ONE, layout.NUMBER) else 3].tolist()
    if form == layout.CHAIN:
        return f"{op.name} of several"
    return f"{op.name} of {' and '.join(_operand(operations, at) for at in operands)}"


def _operand(operations: np.ndarray, number: int) -> str:
    if number == 0:
        return "a constant"
    return "the argument" if operations[number - 1, 0] == LEAF else f"operation {number - 1}"


def _short(attrs: Any) -> str:
    text = "nothing" if attrs is None else ", ".join(f"{key}={value!r}" for key, value in attrs.items())
    return textwrap.shorten(text, 80, placeholder="...")


def _frozen(value: Any) -> Any:
    """What tells attributes from others; of an object, which may be another one at each call, its type."""
    if isinstance(value, PLAIN) or (isinstance(value, np.ndarray) and value.dtype.kind != "O"):
        return value
    if isinstance(value, dict):
        return {key: _frozen(found) for key, found in value.items() if key != "words"}
    if isinstance(value, (tuple, list)):
        return tuple(map(_frozen, value))
    return _Kind(type(value).__qualname__)


class _Kind(str):
    """The name of a type."""


def _alike(frozen: Any, value: Any) -> bool:
    """Whether attributes, frozen or not, are those that were frozen."""
    if isinstance(frozen, dict):
        if not isinstance(value, dict) or len(frozen) != len(value) - ("words" in value):
            return False
        return all(key in value and _alike(found, value[key]) for key, found in frozen.items())
    if isinstance(frozen, tuple):
        if not isinstance(value, (tuple, list)) or len(frozen) != len(value):
            return False
        return all(map(_alike, frozen, value))
    if isinstance(frozen, _Kind):
        return frozen == (value if isinstance(value, _Kind) else type(value).__qualname__)
    if type(frozen) is not type(value):
        return False
    if isinstance(frozen, np.ndarray):
        return frozen.shape == value.shape and np.array_equal(frozen, value)
    return bool(frozen == value)
