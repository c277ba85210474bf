"""What `saved_tensors_hooks` do: values that a derivative reads pass through two functions of the user's.

The tape then keeps no such value, only its shape; what the first function made of it is kept beside the
tape, and in a sweep the record's rule runs on what the second function makes of that.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.core.base import (
    Handle,
    Operand,
    alias_of,
    is_expected,
    requires_grad,
    strip_tangents,
    value_of,
    wrap,
)
from tapegrad.core.dispatch import as_tape_value
from tapegrad.core.grad_mode import Mode, _enabled
from tapegrad.kernels.replay import layout
from tapegrad.ops.lapack import Kept
from tapegrad.ops.primitive import OUT, Primitive
from tapegrad.tape import pool
from tapegrad.tape.record import slot
from tapegrad.tape.tape import Tape, close

RESULT = 1 << OUT


class Packing:
    """A pair of functions, and lists of what they and others note, which is forgotten with a record."""

    def __init__(
        self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any], notes: Sequence[list[Any]] = ()
    ) -> None:
        self.pack, self.unpack, self._notes = pack, unpack, notes
        self._local = threading.local()

    def mark(self) -> list[int]:
        """How much is noted: `forget` gets that where what is packed from here on is packed anew."""
        return [len(noted) for noted in self._notes]

    def forget(self, mark: list[int]) -> None:
        """Forget what has been noted since."""
        for noted, n in zip(self._notes, mark, strict=True):
            del noted[n:]

    def current(self) -> Tape:
        """Return this thread's tape of packed records, which no quick way of recording knows."""
        tape: Tape | None = getattr(self._local, "tape", None)
        if tape is None or len(tape.log) >= tape.limit:
            self.close()
            tape = self._local.tape = Tape()
        return tape

    def close(self) -> None:
        """End recording on that tape."""
        tape = getattr(self._local, "tape", None)
        if tape is not None:
            self._local.tape = None
            close(tape)

    def packed(self, value: np.ndarray | np.generic) -> Any:
        """What the user makes of a value."""
        if isinstance(value, np.ndarray):
            value = value.view()
            value.flags.writeable = False  # it may be that of a Tensor in use
        return self.pack(wrap(value))

    def unpacked(self, kept: Any) -> Any:
        """The value again."""
        found = self.unpack(kept)
        if not isinstance(found, Handle):
            raise TypeError(f"an unpack function returns a Tensor, found {type(found).__name__}")
        return found._v

    def load(self, tape: Tape, x: Any) -> int | None:
        """Import an operand by its shape; None for a leaf, and for what has no memory to be spared."""
        value = value_of(x)
        if not isinstance(value, np.ndarray) or value.ndim == 0:
            return None
        if not requires_grad(x):
            return tape.append(layout.CONST, 0, 0, pool.shadow(as_tape_value(value)))
        return None if x._tape is None else tape.link(x._tape, x._at, pool.shadow(value))

    def save(self, op: Primitive, operands: Sequence[Operand], value: Operand) -> Packed | None:
        """Pack what the derivative of a record will read, if it reads anything."""
        reads = 0
        for q, x in enumerate(operands):
            if requires_grad(x):
                reads |= op.masks[min(q, 2)]
        read: dict[int, Any] = {}
        for q, x in enumerate(operands):
            if reads >> min(q, 2) & 1 and isinstance(x, (Handle, np.ndarray)):
                read[q] = as_tape_value(value_of(x))
        if reads & RESULT:
            read[OUT if len(operands) <= OUT else -1] = value
        if not read:
            return None
        nbytes = sum(x.nbytes for x in read.values())  # what they are packed to may weigh as much
        return Packed(self, {q: self.packed(x) for q, x in read.items()}, nbytes)

    def commit(
        self,
        tape: Tape,
        op: Primitive,
        places: Sequence[int],
        second: int,
        value: Operand,
        packed: Packed | None,
    ) -> int:
        """As `Tape.commit`, of what `save` has packed."""
        kept = value if not isinstance(value, np.ndarray) else pool.shadow(value)
        at = tape.append(op.opcode, places[0], second, kept)
        if kept is not value:
            tape.shadows[at] = weakref.ref(value)
        if packed is not None:
            tape.packed[slot(at)] = packed
            tape.weigh(packed.nbytes)
        return at

    def keep(self, x: Handle) -> Callable[[], Any]:
        """Pack a Tensor with its history; what is returned gives it back."""
        saved, known = self.packed(x._v), alias_of(x)
        if isinstance(x._v, np.ndarray):
            known._v = pool.shadow(x._v)

        def again() -> Handle:
            out = alias_of(known)
            out._v = self.unpacked(saved)
            return out

        return again


def save_arrays(outs: Sequence[Any], kept: Sequence[Kept]) -> None:
    """Count what results just recorded keep for their rules: one, and twins of it for the others.

    Where hooks are at work it is packed. A sweep releases it with a record, if that is worth the time.
    """
    if is_expected(outs[0]):  # no tape has them
        return
    tape = strip_tangents(outs[0])._tape
    if tape is None:
        return
    nbytes = sum(x.nbytes for x in kept[0].arrays)
    tape.weigh(nbytes)
    if nbytes >= pool.MIN_BYTES or nbytes == 0:  # 0: not known yet
        for out, part in zip(outs, kept, strict=True):
            record = strip_tangents(out)
            record._tape.calls[slot(record._at)] = part
    mode = _enabled.get()
    if type(mode) is Mode and mode.packing is not None:
        kept[0].pack(mode.packing)


class Packed:
    """What was made of the values that a record's derivative reads, by operand."""

    __slots__ = ("nbytes", "packing", "saved")

    def __init__(self, packing: Packing, saved: dict[int, Any], nbytes: int) -> None:
        self.packing, self.saved, self.nbytes = packing, saved, nbytes

    def values(self, operands: int) -> tuple[dict[int, Any], Any]:
        """The values again: of operands, and of the result or None."""
        found = {q: self.packing.unpacked(kept) for q, kept in self.saved.items()}
        out = found.pop(OUT if operands <= OUT else -1, None)
        return found, out
