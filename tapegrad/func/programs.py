"""What a function recorded, without values: whether it did the same as before."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import numpy as np

from tapegrad.func.patterns import tapes_of
from tapegrad.kernels import table
from tapegrad.kernels.replay import layout
from tapegrad.ops.primitive import BY_OPCODE
from tapegrad.tape.record import LEAF, LINK, slot
from tapegrad.tape.tape import Tape
from tapegrad.tensor import Tensor

PLAIN = (int, float, complex, str, bytes, slice, np.dtype, np.generic, type(None), type(Ellipsis))


@functools.cache
def _opcodes() -> str:
    """A hash of what the opcodes mean in this process."""
    names = ",".join("" if op is None else op.name for op in BY_OPCODE)
    return hashlib.sha256(names.encode()).hexdigest()


class Program:
    """The records that one call left on tapes: ops, operands, shapes, dtypes, attributes.

    Constants are left out, and so is what stands on tapes older than the call's: their values are nothing to
    a pattern.

    Attributes
    ----------
    operations
        Opcode, two operands as numbers of records from 1, 0 for a constant, and dtype and axes of each record.
    extents
        All shapes, one after the other.
    attributes
        Those of each record that has some, by its number.
    result
        The record of the result; 0 for a constant.
    """

    def __init__(self, result: Any, x: Tensor, since: int) -> None:
        self.attributes: dict[int, Any] = {}
        numbers: dict[int, np.ndarray] = {}
        operations: list[np.ndarray] = [np.zeros((0, 4), np.int64)]
        extents: list[np.ndarray] = [np.zeros(0, np.int64)]
        count = 0
        tapes = tapes_of(result, since) if isinstance(result, Tensor) else []
        for tape in tapes:
            found = self._read(tape, x, numbers, count)
            operations.append(found[0])
            extents.append(found[1])
            count += len(found[0])
        self.operations = np.concatenate(operations)
        self.extents = np.concatenate(extents)
        self.result = int(numbers[result._tape.serial][slot(result._at) + 1]) if tapes else 0

    def _read(
        self, tape: Tape, x: Tensor, numbers: dict[int, np.ndarray], count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        columns = tape.view()
        n = columns.n
        words, meta = columns.words[:n], columns.words[n : 2 * n]
        opcodes, first, second = words & 0xFFFF, words >> 16 & 0xFFFF, words >> 32
        own = opcodes > LINK
        for k, cell in tape.imports.items():
            if k < n and cell is x._at:
                own[k] = True
        number = numbers[tape.serial] = np.zeros(n + 1, np.int64)
        number[1:] = np.where(own, count + np.cumsum(own), 0)
        for k in np.flatnonzero(opcodes == LINK).tolist():
            older = tape.older[first[k] - 1] if first[k] else None
            if older is not None and older.serial in numbers:
                number[k + 1] = numbers[older.serial][second[k]]
        for k, attrs in tape.attrs.items():
            if k < n and attrs and number[k + 1]:
                self.attributes[int(number[k + 1])] = _frozen(attrs)
        kept = np.flatnonzero(own)
        opcodes, first, second, meta = opcodes[kept], first[kept], second[kept], meta[kept]
        is_number = table.operations()[0][opcodes, layout.FORM] == layout.NUMBER
        first = np.where(opcodes == LEAF, 0, number[first])
        second = np.where(is_number, second, number[np.where(is_number, 0, second)])
        ndims = meta >> 16 & 0xFF
        operations = np.stack([opcodes, first, second, meta & 0xFF | ndims << 8], axis=1)
        ends = np.cumsum(ndims)
        at = np.repeat(3 * n + (meta >> 32) - (ends - ndims), ndims)
        return operations, columns.words[at + np.arange(at.size)]

    def difference(self, other: Program) -> str | None:
        """Say where another program differs from this one; None if it does not."""
        mine, theirs = self.operations, other.operations
        if (
            self.result == other.result
            and np.array_equal(mine, theirs)
            and np.array_equal(self.extents, other.extents)
            and _alike(self.attributes, other.attributes)
        ):
            return None
        n = min(len(mine), len(theirs))
        unlike = np.flatnonzero((mine[:n] != theirs[:n]).any(axis=1))
        if unlike.size == 0 and len(mine) != len(theirs):
            return f"{len(theirs)} operations on the input were recorded, {len(mine)} when it was made"
        if unlike.size:
            k = int(unlike[0])
            return f"operation {k} is {_name(theirs[k])}, and was {_name(mine[k])}"
        for k, attrs in self.attributes.items():
            if not _alike(attrs, other.attributes.get(k)):
                found, before = (_short(program.attributes.get(k)) for program in (other, self))
                return f"operation {k - 1} is {_name(mine[k - 1])} with {found}, and was with {before}"
        return "shapes of what was recorded are others"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "opcodes": _opcodes()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        known = state.pop("opcodes")
        self.__dict__.update(state)
        if known != _opcodes():  # written by another version, which counts its ops otherwise
            self.result = -1


def _name(operation: np.ndarray) -> str:
    op = BY_OPCODE[int(operation[0])]
    name = "an import" if op is None else op.name
    first, second = operation[1:3].tolist()
    operands = [f"record {k - 1}" if k else "a constant" for k in (first, second)[: getattr(op, "arity", 2) or 2]]
    return f"{name} of {' and '.join(operands)}" if op is not None else name


def _short(attrs: Any) -> str:
    text = "nothing" if attrs is None else ", ".join(f"{key}={value!r}" for key, value in attrs.items())
    return text if len(text) < 80 else text[:77] + "..."


def _frozen(value: Any) -> Any:
    """What tells attributes from others; of an object, which may be another one at each call, its type."""
    if isinstance(value, PLAIN) or (isinstance(value, np.ndarray) and value.dtype.kind != "O"):
        return value
    if isinstance(value, dict):
        return {key: _frozen(found) for key, found in value.items() if key != "words"}
    if isinstance(value, (tuple, list)):
        return tuple(map(_frozen, value))
    return type(value).__qualname__


def _alike(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_alike(value, b[key]) for key, value in a.items())
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, np.ndarray):
        return a.shape == b.shape and np.array_equal(a, b)
    return bool(a == b)
