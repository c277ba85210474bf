"""Records read off tapes as they are now, from results back along operands."""

from __future__ import annotations

import linecache
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tapegrad.autograd.anomaly_mode import stack_of_record
from tapegrad.autograd.profiler_util import EventList
from tapegrad.core.base import refresh_history, strip_tangents
from tapegrad.core.storage import STALE
from tapegrad.diagnostics.flame import events_of
from tapegrad.kernels import abi
from tapegrad.ops.primitive import BY_OPCODE, Primitive
from tapegrad.tape.record import CONST, FIRST_OP, LEAF, LINK, STRIDE, Record, slot
from tapegrad.tape.tape import Cell, Place, Tape

if TYPE_CHECKING:
    from tapegrad.autograd.profiler import profile as Profile
    from tapegrad.tensor import Tensor

__all__ = ["EARLIER", "Entry", "Line", "Snapshot", "Times", "Walk", "line_of", "times_of"]

EARLIER = -1  # an operand among the records that are not looked at
SHOWN = 6  # characters of a number
Key = tuple[int, int]  # serial of a tape and number of a record there; of a leaf -1 and the id of its cell


class Line(NamedTuple):
    """Where in the user's code an operation was called."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        folder, file = os.path.split(self.file)
        cell = os.path.basename(folder).startswith("ipykernel_")  # whose files have numbers for names
        return f"{'cell' if cell else file}:{self.number}"

    @property
    def text(self) -> str:
        """The line itself, if it can be read."""
        return linecache.getline(self.file, self.number).strip()


class Entry(NamedTuple):
    """A record: an operation, a leaf, or a constant.

    Attributes
    ----------
    kind : str
        "operation", "call" (of a Function or a compiled function), "leaf" or "constant".
    name : str
        Of the operation; of a leaf as it was given; of a constant that is one number, the number.
    operands : tuple of int
        Places in `Graph.records`; -1 for one that is not listed.
    dtype : str
        Of the value.
    shape : tuple of int
        Of the value.
    nbytes : int
        Of the value.
    state : str
        "kept" for a derivative, "released" by a sweep, or "" where the tape does not hold the value.
    line : Line or None
        Where it was called: known of what was recorded in anomaly mode, or under a profile with lines.
    forward, backward : float or None
        Microseconds that the operation and its rules took, by the profile given.
    """

    kind: str
    name: str
    operands: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    state: str
    line: Line | None = None
    forward: float | None = None
    backward: float | None = None

    @property
    def described(self) -> str:
        """Dtype and shape."""
        return f"{self.dtype} {self.shape if self.shape else '()'}"

    @property
    def is_number(self) -> bool:
        """Whether it is a constant that is one number."""
        return self.kind == "constant" and not self.shape


class Times(NamedTuple):
    """What a profile knows of a record."""

    forward: float | None
    backward: float | None
    line: Line | None


class _Reader:
    """A tape as it is now, open or sealed."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.log, self.columns = tape.log, tape.columns  # in this order: sealing sets the columns first
        self.freed = tape.freed

    def value(self, k: Record) -> tuple[str, tuple[int, ...], int, str]:
        """Dtype, shape and bytes of a value, and what has become of it."""
        columns, freed = self.columns, self.freed
        released = freed is not None and k < freed.size and bool(freed[k])
        if columns is None:
            value = self.log[STRIDE * k + 3]  # or its shadow, of the same shape
            dtype, shape, nbytes = _dtype(value), value.shape, value.nbytes
            kept = STRIDE * (k + 1) not in self.tape.shadows
        else:
            code, shape = columns.code(k), columns.shape(k)
            dtype = abi.NAMES.get(code, "")
            nbytes = math.prod(shape) * np.dtype(dtype).itemsize if dtype else 0
            kept = columns.values[k] is not None
        return dtype, shape, nbytes, "released" if released else "kept" if kept else ""

    def opcodes(self) -> np.ndarray:
        """The opcodes of all records."""
        columns = self.columns
        return (
            np.array(self.log[::STRIDE], np.int64) if columns is None else columns.words[: columns.n] & 0xFFFF
        )


class Snapshot:
    """What a graph consists of; see `Graph`."""

    records: list[Entry]
    counts: dict[str, int]
    complete: bool
    outputs: list[int]

    @property
    def operations(self) -> int:
        """How many operations there are; where not all are listed, on all tapes that the graph reaches."""
        return sum(self.counts.values())


class Walk:
    """From results back along operands, each record once, the newest first."""

    def __init__(self, names: Mapping[str, Tensor], times: Mapping[Key, Times]) -> None:
        self._names = {id(strip_tangents(x)._at): name for name, x in names.items()}
        self._times = times
        self._leaves: dict[Key, Entry] = {}
        self._constants: dict[Key, Entry] = {}
        self._readers: dict[int, _Reader] = {}
        self._operations: dict[Key, tuple[Primitive, tuple[Key, ...]]] = {}

    def root(self, x: Tensor) -> Key:
        """Where a Tensor's history begins."""
        x = strip_tangents(x)
        if x._tape is STALE:
            refresh_history(x)
        if x._tape is not None:
            return self._resolved(x._tape, slot(x._at))
        if x.requires_grad:
            return self._leaf(x._at, x._v)
        key = -2, id(x)
        self._constants[key] = _constant(x._v)
        return key

    def _leaf(self, cell: Cell, value: np.ndarray) -> Key:
        key = -1, id(cell)
        if key not in self._leaves:
            name = self._names.get(id(cell), "")
            self._leaves[key] = Entry(
                "leaf", name, (), _dtype(value), np.shape(value), int(value.nbytes), "kept"
            )
        return key

    def _reader(self, tape: Tape) -> _Reader:
        found = self._readers.get(tape.serial)
        if found is None:
            found = self._readers[tape.serial] = _Reader(tape)
        return found

    def _resolved(self, tape: Tape, k: Record) -> Key:
        """The record that one stands for: that of an older tape for a link; of imports their entries."""
        while True:
            opcode = tape.operation(k)[0]
            if opcode >= FIRST_OP:
                self._reader(tape)
                return tape.serial, k
            source = tape.source(k)
            if isinstance(source, Place):
                tape, k = source
                continue
            key = tape.serial, k
            dtype, shape, nbytes, state = self._reader(tape).value(k)
            if isinstance(source, Cell):
                key = -1, id(source)
                if key not in self._leaves:
                    name = self._names.get(id(source), "")
                    self._leaves[key] = Entry("leaf", name, (), dtype, shape, nbytes, state)
            elif opcode in (LEAF, LINK):
                self._leaves[key] = Entry("leaf", "released", (), dtype, shape, nbytes, "released")
            elif key not in self._constants:
                value = tape.value(k) if opcode == CONST else None
                self._constants[key] = (
                    Entry("constant", "" if shape else "…", (), dtype, shape, nbytes, state)
                    if value is None
                    else _constant(value)
                )
            return key

    def back_from(self, roots: Iterable[Key], limit: int) -> bool:
        """Look at operations, the newest first; returns whether there are no more than the limit."""
        heap: list[Key] = []
        seen: set[Key] = set()

        def push(key: Key) -> None:
            if key[0] >= 0 and key not in seen and key not in self._constants and key not in self._leaves:
                seen.add(key)
                heappush(heap, (-key[0], -key[1]))

        for key in roots:
            push(key)
        while heap:
            if len(self._operations) == limit:
                return False
            serial, k = heappop(heap)
            tape = self._readers[-serial].tape
            op = BY_OPCODE[tape.operation(-k)[0]]
            operands = tuple(self._resolved(tape, j) for j in tape.operands(-k, op.recorded_form))
            self._operations[-serial, -k] = op, operands
            for key in operands:
                push(key)
        return True

    def counts(self, complete: bool) -> dict[str, int]:
        """How many operations there are of each name."""
        if complete:
            found = Counter(op.name for op, _ in self._operations.values())
        else:
            opcodes = []
            todo = [reader.tape for reader in self._readers.values()]
            seen: set[int] = set()
            while todo:
                tape = todo.pop()
                if tape.serial not in seen:
                    seen.add(tape.serial)
                    opcodes.append(_Reader(tape).opcodes())
                    todo += [older for older in tape.older if older is not None]
            numbers = np.bincount(np.concatenate(opcodes)).tolist()
            found = Counter({BY_OPCODE[k].name: n for k, n in enumerate(numbers) if k >= FIRST_OP and n})
        return dict(found.most_common())

    def listed(self) -> tuple[list[Entry], dict[Key, int]]:
        """The list of records, and where each is."""
        leaves, constants = [*self._leaves][::-1], [*self._constants][::-1]  # as they were first used
        keys = [*leaves, *constants, *sorted(self._operations)]
        places = {key: k for k, key in enumerate(keys)}
        found = [*map(self._leaves.__getitem__, leaves), *map(self._constants.__getitem__, constants)]
        for key in sorted(self._operations):
            op, operands = self._operations[key]
            reader = self._readers[key[0]]
            attrs = reader.tape.attrs.get(key[1], {})
            times = self._times.get((key[0], STRIDE * (key[1] + 1)), Times(None, None, None))
            stack = stack_of_record(reader.tape, key[1])
            name, kind = _named(op, attrs)
            read = tuple(places.get(q, EARLIER) for q in operands)
            line = Line(*stack[-1]) if stack else times.line
            value = reader.value(key[1])
            found.append(Entry(kind, name, read, *value, line, times.forward, times.backward))
        return found, places


def _named(op: Primitive, attrs: Mapping[str, Any]) -> tuple[str, str]:
    """The name of an operation, and its kind: what is the user's bears the name of that."""
    if "segment" in attrs:  # of a function of `tg.njit`
        return f"{op.name} {attrs['segment'].function.__name__}", "call"
    if op.listed:
        return op.name, "operation"
    if "call" in attrs or "rule" in attrs:
        return op.node_name(attrs).removesuffix("Backward"), "call"
    return op.name, "operation"


def _dtype(value: np.ndarray) -> str:
    return abi.NAMES.get(abi.CODES.get(value.dtype.char, 0)) or str(value.dtype)


def _constant(value: np.ndarray) -> Entry:
    shape = np.shape(value)
    name = "" if shape else f"{np.asarray(value)[()]:.{SHOWN}g}"
    return Entry("constant", name, (), _dtype(value), shape, int(value.nbytes), "kept")


def times_of(profile: Profile | EventList) -> dict[Key, Times]:
    """What events tell of records, by their sequence."""
    found: dict[Key, Times] = {}
    for event in events_of(profile):
        if event.sequence is None:
            continue
        before = found.get(event.sequence, Times(None, None, None))
        took = event.cpu_time_total
        if event.is_backward:
            found[event.sequence] = before._replace(backward=took + (before.backward or 0.0))
        else:
            line = line_of(event.stack[-1]) if event.stack else before.line
            found[event.sequence] = before._replace(forward=took + (before.forward or 0.0), line=line)
    return found


def line_of(text: str) -> Line:
    """The line that an event's stack names: ``file(number): function``."""
    place, _, function = text.rpartition("): ")
    file, _, number = place.rpartition("(")
    return Line(file, int(number), function)
