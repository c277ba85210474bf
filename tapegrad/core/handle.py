"""The slots of a Tensor, which everything here reads."""

from __future__ import annotations

from typing import Any

from tapegrad.tape.tape import Tape


class Handle:
    """What a Tensor is to the tape: a value, and where its history stands.

    Attributes
    ----------
    _v
        The value: an ndarray of one or more dimensions, or a NumPy scalar.
    _tape, _at
        Tape and position of the record; without history None, and the `Cell` tapes know it by; with a
        tangent `DUAL`, and the `Dual`; of one that a program is to compute nothing, and `Expected`.
    _extra
        State that few have: gradient, requires_grad of a leaf, what shares its buffer.
    """

    __slots__ = ("__weakref__", "_at", "_extra", "_tape", "_v")

    _v: Any
    _tape: Tape | None
    _at: Any
    _extra: Any
