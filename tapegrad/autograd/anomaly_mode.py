"""Anomaly mode: where in the user's code a derivative went wrong."""

from __future__ import annotations

import linecache
import math
import os
import sys
import traceback
import warnings
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial
from types import CodeType, FrameType
from typing import Any, NoReturn

import numpy as np

from tapegrad.core.context_manager import Block
from tapegrad.core.grad_mode import Mode, _enabled, change_mode, in_force
from tapegrad.errors import AnomalyError
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.ops.primitive import Primitive
from tapegrad.tape.record import STRIDE, Position, Record, slot
from tapegrad.tape.tape import Tape
from tapegrad.tensor import Operand, TensorOrArray

__all__ = ["detect_anomaly", "set_detect_anomaly"]

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep
OURS = PACKAGE, NUMPY
Stack = list[tuple[str, int, str]]
OFFSET = (1 << 32) - 1


class Lines:
    """Notes for each record the line that made it, and checks what rules return.

    What is noted are code objects and offsets, in a list of the tape (see `kernels.replay.watching.note`,
    which does it where the op is computed by compiled code): no frame is kept, and no line looked up.

    Parameters
    ----------
    check_nan
        Whether a gradient that is nan is an error.
    base
        A frame at work for as long as the mode is on; those that it was called from are looked up once.

    Attributes
    ----------
    first
        Where the first value was made that is not finite, though the operands are; None so far.
    address
        Of what compiled code is told: the words of `layout`.
    """

    def __init__(self, check_nan: bool, base: FrameType | None = None) -> None:
        self.check_nan, self.base = check_nan, base
        self.outside = [] if base is None else stack_of(base.f_back)
        self.first: str | None = None
        self._words = np.array([1, 0 if base is None else id(base), id(self.outside)], np.int64)
        self.address = abi.address(self._words)

    def close(self) -> None:
        """Let go of the frame."""
        self.base = None
        self._words[layout.BASE] = 0

    def note(
        self, tape: Tape, at: Position, op: Primitive, value: TensorOrArray, operands: Sequence[Operand]
    ) -> None:
        """See a record that has just been made."""
        here = sys._getframe(2)
        while here.f_back is not None and here.f_code.co_filename.startswith(OURS):
            here = here.f_back
        frame: FrameType | None = here
        found: list[tuple[CodeType | list[tuple[str, int, str]], int]] = []
        while frame is not None and len(found) < layout.DEPTH:
            found.append((frame.f_code, frame.f_lasti))
            if frame is self.base:
                found.append((self.outside, 0))
                break
            frame = frame.f_back
        notes, before = tape.lines, []
        place = len(notes) - 2
        while place > 0:
            before.append(place)
            place = notes[place + 1] >> 32
        inner, caller = len(found) - 1, 0
        for place in reversed(before):
            code, offset = found[inner]
            if inner == 0 or notes[place] is not code or notes[place + 1] & OFFSET != offset:
                break
            inner, caller = inner - 1, place
        for code, offset in found[inner::-1]:
            notes += (at, code, offset | caller << 32)
            caller = len(notes) - 2
        self.look(tape, slot(at), op, value, operands)

    def look(
        self, tape: Tape, k: Record, op: Primitive, value: TensorOrArray, operands: Sequence[Any]
    ) -> None:
        """See whether a record's value is the first that is not finite."""
        if self.first is None and not _finite(value) and all(_finite(x) for x in operands):
            place = _place(stack_of_record(tape, k) or [])
            self.first = f"{op.name} at {place} made the first value that is not finite"
            self._words[layout.LOOKING] = 0

    def failed(self, tape: Tape, k: Record, op: Primitive) -> None:
        """See that a record's rule raised an exception."""
        warnings.warn(
            f"the derivative of {op.name} failed; {self._origin(tape, k)}", UserWarning, stacklevel=2
        )

    def returned(self, tape: Tape, k: Record, op: Primitive, parts: Mapping[int, TensorOrArray]) -> None:
        """See what a record's rule returned."""
        if not self.check_nan:
            return
        for q, part in parts.items():
            if np.any(np.isnan(getattr(part, "_v", part))):
                self._fail(
                    tape, k, op, f"the derivative of {op.name} is nan", f"returned nan as gradient {q}"
                )

    def added(self, tape: Tape, k: Record, op: Primitive, q: int) -> None:
        """See that a gradient became nan when what a record's rule gave was added to what was there."""
        self._fail(
            tape, k, op, f"a gradient is nan when that of {op.name} is added",
            f"returned gradient {q}, which with what others returned adds up to nan",
        )  # fmt: skip

    def _fail(self, tape: Tape, k: Record, op: Primitive, warning: str, error: str) -> NoReturn:
        where, first = self._origin(tape, k), "" if self.first is None else f"; {self.first}"
        warnings.warn(f"{warning}; {where}\n{_trace(stack_of_record(tape, k))}", UserWarning, stacklevel=3)
        name = op.node_name(tape.attrs.get(k, {}))
        raise AnomalyError(f"{name} {error}; {where}{first}")

    def _origin(self, tape: Tape, k: Record) -> str:
        stack = stack_of_record(tape, k)
        if stack is None:
            return "its forward was not run in anomaly mode, so its line is not known"
        return f"its forward is at {_place(stack)}"


def stack_of(frame: FrameType | None) -> Stack:
    """Where the user's code is, seen from a frame, the innermost last."""
    found = []
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return found[::-1]


def stack_of_record(tape: Tape, k: Record) -> Stack | None:
    """Where the user's code made a record, the innermost frame last; None if that is not known."""
    notes, at = tape.lines, STRIDE * (k + 1)
    place = 3 * bisect_right(range(len(notes) // 3), at, key=lambda row: notes[3 * row]) - 2
    if place < 0 or notes[place - 1] != at:
        return None
    found: Stack = []
    while place > 0:
        code, word = notes[place : place + 2]
        found += (
            code[::-1] if isinstance(code, list) else [(code.co_filename, _line(code, word), code.co_name)]
        )
        place = word >> 32
    inner = next((i for i, frame in enumerate(found) if not frame[0].startswith(OURS)), 0)
    return found[inner:][::-1]


def _line(code: CodeType, word: int) -> int:
    """The line of an instruction."""
    for start, end, line in code.co_lines():
        if start <= word & OFFSET < end and line is not None:
            return int(line)
    return int(code.co_firstlineno)


def _finite(x: TensorOrArray) -> bool:
    value = getattr(x, "_v", x)
    return math.isfinite(value) if isinstance(value, float) else bool(np.all(np.isfinite(value)))


def _place(stack: Stack) -> str:
    name, line, function = stack[-1]
    return f'File "{name}", line {line}, in {function}: {linecache.getline(name, line).strip()}'


def _trace(stack: Stack | None) -> str:
    if stack is None:
        return ""
    return "".join(traceback.StackSummary.from_list([traceback.FrameSummary(*f) for f in stack]).format())


class detect_anomaly(Block):
    """Context manager: a gradient that is nan, or an exception in a derivative, tells where its forward was.

    Forward and backward both belong into the block. Both then take up to three times as long, and what is
    recorded 100 bytes more for each operation.

    Parameters
    ----------
    check_nan : bool, optional
        Whether a gradient that is nan is an error.

    Raises
    ------
    AnomalyError
        In a sweep: a derivative is nan. The message names the line of the operation, and the first line that
        made a value which is not finite.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np, tapegrad as tg
    >>> warnings.simplefilter("ignore")
    >>> x = tg.tensor(0.0, requires_grad=True)
    >>> with tg.autograd.detect_anomaly():
    ...     y = np.sqrt(x) * 0
    ...     y.backward()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    tapegrad.errors.AnomalyError: SqrtBackward returned nan as gradient 0; its forward is at File ...
    """

    def __init__(self, check_nan: bool = True) -> None:
        warnings.warn(
            "anomaly mode is on: operations and sweeps take longer; use it to look for an error",
            UserWarning,
            stacklevel=2,
        )
        self._check_nan = check_nan

    def __enter__(self) -> None:
        lines = Lines(self._check_nan, sys._getframe(1))
        self.at_end(partial(_restore, lines, _enabled.get()))
        change_mode(lines=lines)


def _restore(lines: Lines, before: bool | Mode) -> None:
    _enabled.set(before)
    lines.close()


class set_detect_anomaly(Block):
    """Turn anomaly mode on or off, from here on or for a ``with`` block; see `detect_anomaly`.

    Parameters
    ----------
    mode : bool
    check_nan : bool, optional

    Examples
    --------
    >>> import tapegrad as tg
    >>> with tg.autograd.set_detect_anomaly(False):
    ...     tg.autograd.is_anomaly_enabled()
    False
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self.at_end(partial(_enabled.set, _enabled.get()))
        change_mode(lines=Lines(check_nan) if mode else None)

    def __enter__(self) -> None:
        self.at_end(self._entered[0])


def is_anomaly_enabled() -> bool:
    """Return whether anomaly mode is on here.

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.autograd.is_anomaly_enabled()
    False
    """
    return in_force("lines") is not None
