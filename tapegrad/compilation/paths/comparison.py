"""What operations and calls are compared with: words for `kernels.replay.matching`, and in Python."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.compilation.events.equality import alike
from tapegrad.compilation.events.events import (
    ARGUMENT,
    FIXED,
    LIVE,
    POWER,
    PYTHON_S,
    RESULT,
    WRITE,
    Brought,
    Called,
    Event,
    Several,
    Source,
    is_without_errors,
)
from tapegrad.compilation.events.passive import Operation
from tapegrad.compilation.events.varying import is_computed_anew, varying_of
from tapegrad.compilation.programs.program import Program
from tapegrad.compilation.rows.computing import RESHAPE
from tapegrad.core.base import Handle, is_constant, value_of
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address
from tapegrad.ops.primitive import Attributes, Elementwise
from tapegrad.tensor import Tensor

KINDS = {"d": layout.A_NUMBER, "f": layout.A_SINGLE}
BLOCK = 256  # words at least that are kept together
MOST_KEPT = 4096  # events of which Python compares one at each call
Expected = tuple[int, int]  # of an operand: what it is, and where or which


class Comparison:
    """What operands of a program's events are, by the Tensors that stand for arguments and results."""

    def __init__(self, program: Program, arguments: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        self._program, self._arguments, self._results = program, arguments, results
        self._constants: list[np.ndarray] = []
        self._makers: list[Any] = []
        self._blocks: list[np.ndarray] = []  # of words that others know by address
        self._room = 0  # for more of them
        self._called: dict[int, Called | None] = {}  # see `known_call`
        self._events: dict[int, Event] = {}  # see `_event`

    def operand(self, k: int, q: int) -> Expected:
        """What an operand of an event is; no address where Python is to compare it."""
        return self.operand_of(self._program.events[k], k, q)

    def operand_of(self, event: Event, k: int, q: int) -> Expected:
        """As `operand`, of an event that is at hand."""
        source = event.operands[q]
        if source.kind == LIVE:
            live = self._program.live(k)[q]
            usable = is_same_for_numbers(self._program, k, q)
            usable = usable and not (q and event.op is POWER and np.ndim(live) == 0)
            found = _live(live, event, source.value) if usable else (layout.THIS_OBJECT, 0)
            exact = not found[1] and not (q and event.op is POWER) and _is_of_dtype(source.value, live)
            return (layout.OF_TYPE, self._number(type(source.value), live)) if exact else found
        if source.kind == FIXED:
            return layout.THIS_OBJECT, id(source.value)
        return layout.THIS_OBJECT, id(self.handle(source))

    def _number(self, kind: type, buffer: np.ndarray) -> Address:
        """Where words of a number are that is to be of a type."""
        return self._kept([id(kind), abi.address(buffer), buffer.nbytes])

    def called(self, k: int) -> Called | None:
        """The call that begins with an event, if all its events give what Python would, of what it brings."""
        call, program = self._program.events[k].call, self._program
        if call is None or call.function is WRITE:
            return None
        if call.events == 1:
            return call if program.exact[k] else None
        known = call.brought() | {(j, q) for j, q, _ in call.constants}
        for j, event in enumerate(program.events[k : k + call.events]):
            if not program.exact[k + j] or (is_computed_anew(event) and k + j not in program.renewals):
                return None
            for q, source in enumerate(event.operands):
                if source.kind == LIVE and (j, q) not in known:
                    return None  # an exponent that is another one in another call
        return call

    def known_call(self, k: int) -> Called | None:
        """As `called`, but of an op that Python is to compute at each call: of few that is known."""
        if is_without_errors(self._program.events.ops[k]):
            return self.called(k)
        if k not in self._called:
            self._called[k] = self.called(k)
        return self._called[k]

    def restore(self, k: int, call: Called) -> None:
        """Let operands of a call be those that it makes of shapes, as an event by itself may have others."""
        for j, q, value in call.constants:
            self._program.live(k + j)[q][...] = value

    def call(self, k: int) -> Address:
        """Where words of the call are that an event was; 0 without one, or if Python is to compute it."""
        call, program = self.called(k), self._program
        raises = not is_without_errors(program.events.ops[k])
        if call is None or (raises and k in program.anew and k not in program.renewals):
            return 0
        named = [word for name, x in call.kwargs.items() for word in (id(name), *self._argument(k, x))]
        given = [self._argument(k, x) for x in call.args]
        write = self._write(k + 1) if call.writes else 0
        handles = [id(self.handle(Source(RESULT, k + j))) for j in call.results]
        kind, several = (0, ()) if call.kind is None else (self._maker(call.kind), handles)
        constants = []
        for j, q, value in call.constants:
            buffer = program.live(k + j)[q]
            constant = np.empty_like(buffer)
            constant[...] = value
            self._constants.append(constant)
            constants += [abi.address(buffer), abi.address(constant), buffer.nbytes]
        head = write, call.events, handles[0], len(call.constants), kind, len(several), raises
        return self._words(call.function, len(call.kwargs), given, [*named, *constants, *several], head)

    def _maker(self, kind: type) -> Address:
        """Where a list or tuple type is, or what makes a tuple with names of another one."""
        if kind in (list, tuple):
            return id(kind)
        self._makers.append(functools.partial(tuple.__new__, kind))
        return id(self._makers[-1])

    def _words(
        self,
        of: Any,
        names: int,
        arguments: Sequence[Expected],
        behind: Sequence[int] = (),
        head: tuple[int, ...] = (0, 1, 0, 0, 0, 0, 0),
    ) -> Address:
        given = [word for pair in arguments for word in pair]
        return self._kept([id(of), len(arguments), names, *head, *given, *behind])

    def _kept(self, words: Sequence[int]) -> Address:
        if self._room < len(words):
            self._room = max(BLOCK, len(words))
            self._blocks.append(np.empty(self._room, np.int64))
        block = self._blocks[-1][-self._room :]
        block[: len(words)] = words
        self._room -= len(words)
        return abi.address(block)

    def write(self, k: int) -> Address:
        """Where words of the write are that an event is; 0 where it is none by an index."""
        found = self._program.written.get(k)
        if found is None or found.event.op is RESHAPE:  # of all by an operator in place
            return 0
        return self._write(k)

    def _write(self, k: int) -> Address:
        _, by, place, _, events = self._program.written[k]
        views = [id(self._results[v]) for v in self._program.must_be_gone(k)]
        to = id(self._result(by))
        return self._kept([to, id(place), *self.operand(k, 0), events, len(views), *views])

    def in_vain(self, k: int) -> Address:
        """Where words of the write are that changes nothing behind an event: of a view to where it lies."""
        program = self._program
        if k not in program.seen or not program.values[k].size:
            return 0
        view = program.owners[k]
        event = program.events[view]
        to = self._result(k - 1)
        if "index" not in event.attrs or self.handle(event.operands[0]) is not to:
            return 0
        return self._kept(
            [id(to), id(event.attrs["index"]), layout.THIS_OBJECT, id(self._result(view)), 0, 0]
        )

    def _argument(self, k: int, x: Any) -> Expected:
        if type(x) is Source:
            return layout.THIS_OBJECT, id(self.handle(x))
        if type(x) is Brought:
            return self.operand(k + x.event, x.operand)
        if type(x) is Several:
            return layout.SEVERAL, self._words(x.kind, 0, [self._argument(k, y) for y in x.parts])
        kinds = {tuple: layout.AN_INDEX, np.ndarray: layout.SAME_ELEMENTS}
        return kinds.get(type(x), layout.THIS_OBJECT), id(x)

    def handle(self, source: Source) -> Tensor:
        """Return the Tensor that stands for an argument or a result."""
        number: int = source.value
        if source.kind == ARGUMENT:
            return self._arguments[number]
        return self._result(number)

    def _result(self, k: int) -> Tensor:
        return self._results[self._program.stand_ins.numbers[k]]

    # ------------------------------------------------------------ in Python

    def _event(self, k: int) -> Event:
        """An event without what it gave: some are kept, as Python compares the same ones at each call."""
        found = self._events.get(k)
        if found is None:
            if len(self._events) == MOST_KEPT:
                self._events.clear()
            found = self._events[k] = self._program.events[k]._replace(value=None)
        return found

    def expects(
        self,
        k: int,
        op: Operation,
        value: Any,
        operands: Sequence[Any],
        attrs: Attributes,
    ) -> bool:
        """Whether an event is this op of these operands; without a value it is to be computed."""
        if k >= len(self._program.events):
            return False
        events, buffer = self._program.events, self._program.values[k]
        if events.ops[k] is not op:
            return False
        event = self._event(k)
        return (
            event.writes is None
            and not event.several
            and len(operands) == len(event.operands)
            and (value is None or _is_alike(value, buffer))
            and _are_matched(event.attrs, attrs)
            and all(
                x is self.handle(source) if source.kind < LIVE else self.takes(k, q, x, value is None)
                for q, (x, source) in enumerate(zip(operands, event.operands, strict=True))
            )
        )

    def takes(self, k: int, q: int, x: Any, to_compute: bool) -> bool:
        """Whether an operand of an event is this one; numbers and arrays that the call brings are copied."""
        event = self._event(k)
        source = event.operands[q]
        if source.kind < LIVE:
            return x is self.handle(source)
        buffer = self._program.live(k)[q]
        if (
            source.kind == LIVE
            and type(x) is np.ndarray
            and x.ndim
            and (x.shape, x.strides) == (buffer.shape, buffer.strides)
            and x.dtype is buffer.dtype
        ):
            self._program.copies.bring(buffer, x)
            return True
        if isinstance(x, Handle) and not is_constant(x):
            return False
        value = value_of(x)
        if source.kind == FIXED:
            return type(value) is type(source.value) and bool(value == source.value)
        weak = type(value) in PYTHON_S
        if event.op is POWER and q == 1 and type(value) is not type(source.value):
            return False
        if np.shape(value) != buffer.shape:
            return False
        if isinstance(value, np.ndarray) and type(value) is not np.ndarray:
            return False  # a class of its own, which may be refused
        known = type(source.value)
        if weak and known in PYTHON_S and type(value) is not known:
            kinds = "c" if complex in (type(value), known) else "fc"
            if not self._has_others(k, kinds):
                return False  # of no other operand it has its dtype
        changed = weak is not (known in PYTHON_S)
        if changed and (type(value) is complex or buffer.dtype.char != "d"):
            return False
        if changed and not is_same_for_numbers(self._program, k, q):
            return False
        if not weak and np.asarray(value).dtype != buffer.dtype:
            return False
        by_element = not buffer.ndim or (buffer.ndim < 2 and isinstance(event.op, Elementwise))
        if to_compute and not (by_element or _lies_as(value, buffer)):
            elementwise = isinstance(event.op, Elementwise)
            if not (elementwise and _is_alike(value, buffer)):
                return False  # sums in another order
        self._program.copies.take(buffer, value)
        return True

    def _has_others(self, k: int, kinds: str) -> bool:
        """Whether an operand that is no number of Python's is of such numbers."""
        pairs = zip(self._event(k).operands, self._program.live(k), strict=True)
        return any(
            (source.kind < LIVE or type(source.value) not in PYTHON_S) and x.dtype.kind in kinds
            for source, x in pairs
            if source.kind != FIXED
        )

    def are_given(self, k: int, known: Sequence[Any], found: Sequence[Any]) -> bool:
        """Whether arguments of a function, or parts of one, are those that are expected."""
        if len(known) != len(found):
            return False
        for wanted, x in zip(known, found, strict=True):
            kind = type(wanted)
            if is_constant(x):
                x = value_of(x)
            if kind is Source:
                if x is not self.handle(wanted):
                    return False
            elif kind is Several:
                if type(x) is not wanted.kind or not self.are_given(k, wanted.parts, x):
                    return False
            elif kind is Brought:
                plain = type(x) is np.ndarray or isinstance(x, (*PYTHON_S, np.generic))
                if not plain or not self.takes(k + wanted.event, wanted.operand, x, True):
                    return False
            elif not alike(wanted, x) or (kind is np.ndarray and wanted.strides != x.strides):
                return False
        return True

    def results(self, k: int, call: Called) -> Any:
        """Return what a call gives that begins with an event."""
        return call.gathered([self.handle(Source(RESULT, k + j)) for j in call.results])


def _is_alike(value: Any, buffer: np.ndarray) -> bool:
    """Whether a buffer can take a value; one in another order is another way, as sums add it up otherwise."""
    if value.shape != buffer.shape or value.dtype != buffer.dtype:
        return False
    return not value.ndim or value.strides == buffer.strides or _order(value) == _order(buffer)


def _are_matched(known: Attributes, found: Attributes) -> bool:
    """Whether attributes are those of an event, or have told it which elements it takes."""
    varying = varying_of(known)
    return alike(known, found) if varying is None else varying.take(found)


def _lies_as(value: Any, buffer: np.ndarray) -> bool:
    """Whether an array has the strides of a buffer, but for axes of one element."""
    steps = zip(value.shape, value.strides, buffer.strides, strict=True)
    return all(mine == theirs for n, mine, theirs in steps if n > 1)


def _order(x: np.ndarray) -> list[int]:
    """The axes as they lie in memory."""
    longer = [d for d, n in enumerate(x.shape) if n > 1 and x.size]
    return sorted(longer, key=lambda d: -abs(x.strides[d]))


def is_same_for_numbers(program: Program, k: int, q: int) -> bool:
    """Whether a number of NumPy's gives, as an operand, the dtype that a float of Python's does."""
    live, operands = program.live(k), program.events[k].operands
    char = live[q].dtype.char
    if live[q].ndim or char not in "df":
        return True
    others = [x.dtype for source, x in zip(operands, live, strict=True) if source.kind < LIVE]
    if char == "d":
        return any(x.char in "dD" for x in others)
    return bool(others) and np.result_type(*others).char in "fF"  # else the float is a double


def _is_of_dtype(value: Any, buffer: np.ndarray) -> bool:
    """Whether a number of NumPy's, or a complex one of Python's, lies in memory as an element of a buffer."""
    if buffer.ndim or buffer.dtype.kind not in "iufc" or not isinstance(value, (np.number, complex)):
        return False
    return type(value) in (complex, buffer.dtype.type) and buffer.dtype == np.asarray(value).dtype


def _live(buffer: np.ndarray, event: Event, value: Any) -> Expected:
    """What takes a number or an array at each call, as this value; nothing where Python is to do it."""
    if buffer.ndim:
        if event.writes is not None and buffer.dtype.char == "d" and buffer.flags.c_contiguous:
            return layout.WRITTEN_FROM, id(buffer)
        return layout.ELEMENTS if isinstance(event.op, Elementwise) else layout.AN_ARRAY, id(buffer)
    kind = layout.A_WHOLE if type(value) is int and buffer.dtype == np.int64 else KINDS.get(buffer.dtype.char)
    return (layout.THIS_OBJECT, 0) if kind is None else (kind, abi.address(buffer))
