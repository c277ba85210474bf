"""Anomaly mode: where in the user's code a derivative went wrong."""

from __future__ import annotations

import linecache
import math
import os
import sys
import traceback
import warnings
from typing import Any

import numpy as np

from tapegrad.errors import AnomalyError
from tapegrad.grad_mode import change_mode, in_force, restore_mode
from tapegrad.ops.primitive import Primitive
from tapegrad.tape.tape import Tape

__all__ = ["detect_anomaly", "set_detect_anomaly"]

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
Stack = list[tuple[str, int, str]]
NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep


class Lines:
    """Notes for each record the line that made it, and checks what rules return.

    Attributes
    ----------
    check_nan
        Whether a gradient that is nan is an error.
    first
        Where the first value was made that is not finite, though the operands are; None so far.
    """

    def __init__(self, check_nan: bool) -> None:
        self.check_nan = check_nan
        self.first: str | None = None

    def note(self, tape: Tape, k: int, op: Primitive, value: Any, operands: Any) -> None:
        """See a record that has just been made."""
        tape.lines[k] = here = _caller()
        if self.first is None and not _finite(value) and all(_finite(x) for x in operands):
            self.first = f"{op.name} at {_place(here)} made the first value that is not finite"

    def failed(self, tape: Tape, k: int, op: Primitive) -> None:
        """See that a record's rule raised an exception."""
        warnings.warn(
            f"the derivative of {op.name} failed; {self._origin(tape, k)}", UserWarning, stacklevel=2
        )

    def returned(self, tape: Tape, k: int, op: Primitive, parts: dict[int, Any]) -> None:
        """See what a record's rule returned."""
        if not self.check_nan:
            return
        for q, part in parts.items():
            if np.any(np.isnan(getattr(part, "_v", part))):
                where = self._origin(tape, k)
                warnings.warn(
                    f"the derivative of {op.name} is nan; {where}\n{_trace(tape.lines.get(k))}",
                    UserWarning,
                    stacklevel=2,
                )
                first = "" if self.first is None else f"; {self.first}"
                name = op.node_name(tape.attrs.get(k, {}))  # type: ignore[no-untyped-call]
                raise AnomalyError(f"{name} returned nan as gradient {q}; {where}{first}")

    def _origin(self, tape: Tape, k: int) -> str:
        stack = tape.lines.get(k)
        if stack is None:
            return "its forward was not run in anomaly mode, so its line is not known"
        return f"its forward is at {_place(stack)}"


def _caller() -> Stack:
    """The stack of the user's code, the innermost frame last."""
    frame: Any = sys._getframe(2)
    found: Stack = []
    while frame is not None:
        code = frame.f_code
        if found or not code.co_filename.startswith((PACKAGE, NUMPY)):
            found.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    found.reverse()
    return found


def _finite(x: Any) -> bool:
    value = getattr(x, "_v", x)
    return math.isfinite(value) if isinstance(value, float) else bool(np.all(np.isfinite(value)))


def _place(stack: Stack) -> str:
    name, line, function = stack[-1]
    return f'File "{name}", line {line}, in {function}: {linecache.getline(name, line).strip()}'


def _trace(stack: Stack | None) -> str:
    if stack is None:
        return ""
    return "".join(traceback.StackSummary.from_list([traceback.FrameSummary(*f) for f in stack]).format())


class detect_anomaly:
    """Context manager: a gradient that is nan, or an exception in a derivative, tells where its forward was.

    Forward and backward both belong into the block. Each operation then takes a few microseconds more, and
    a sweep runs all rules in Python.

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
        self._lines = Lines(check_nan)
        self._before: list[Any] = []

    def __enter__(self) -> None:
        self._before.append(change_mode(lines=self._lines))

    def __exit__(self, *exception: object) -> None:
        restore_mode(self._before.pop())


class set_detect_anomaly:
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
        self._before = change_mode(lines=Lines(check_nan) if mode else None)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        restore_mode(self._before)


def is_anomaly_enabled() -> bool:
    """Return whether anomaly mode is on here.

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.autograd.is_anomaly_enabled()
    False
    """
    return in_force("lines") is not None
