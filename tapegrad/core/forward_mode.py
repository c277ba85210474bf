"""Forward mode: a Tensor that carries a tangent, and what an operation does to it.

The handle of a dual Tensor stands on no tape but on `DUAL`, so every quick way to record leaves it alone
and it comes to `push`: the op is applied to the primals, and the op's rule to the tangents. Both are
Tensors, may require gradients, and may be duals of levels further out; so a derivative of any order is
right whichever way its parts are taken, and a tangent of one level is never taken for another's.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from tapegrad.core.base import (
    Handle,
    Operand,
    alias_of,
    extra,
    has_tangent,
    ndim_of,
    strip_tangents,
    value_of,
    wrap,
)
from tapegrad.core.conversion import astype
from tapegrad.core.dispatch import as_tape_value, origin, record
from tapegrad.core.storage import DUAL, OPEN
from tapegrad.ops import kinks
from tapegrad.ops.lanes import jvp
from tapegrad.ops.primitive import Attributes, Elementwise, Primitive
from tapegrad.tape.record import Record, slot
from tapegrad.tape.tape import Cell, Tape

_serials = count(1)
_reopening = threading.RLock()


class Level:
    """A perturbation: its tangents are nothing to another level.

    Attributes
    ----------
    lanes
        How many tangents a Tensor carries, along an axis in front of its own; None for one without an axis.
    serial
        Levels opened later are further in.
    notes
        What the records of primals were computed from, by serial of the tape, then number of the record: the
        result and the operands as duals. None when the level was closed.
    reopened
        How many run code again that ran while the level was open, since it was closed.
    """

    __slots__ = ("__weakref__", "_note", "lanes", "notes", "reopened", "serial")

    def __init__(self, lanes: int | None = None) -> None:
        self.lanes = lanes
        self.serial = next(_serials)
        self.notes: dict[int, Notes] | None = {}
        self.reopened = 0
        self._note = weakref.ref(self, OPEN.discard)
        hash(self._note)  # of what it refers to, and kept: `discard` is called when that is gone

    def open(self) -> None:
        """Let there be tangents of this level; who calls it has seen to it that `close` is called."""
        OPEN.add(self._note)

    def close(self) -> None:
        """Let there be no tangents of this level any more."""
        self.notes = None
        OPEN.discard(self._note)

    def reopen(self) -> bool:
        """Let there be tangents of this level once more, until `leave`; False if it is open still."""
        if self.notes is not None and not self.reopened:
            return False
        self.reopened += 1
        self.notes = {} if self.notes is None else self.notes
        self.open()
        return True

    def leave(self) -> None:
        """Undo `reopen`."""
        self.reopened -= 1
        if not self.reopened:
            self.close()

    def push(
        self, op: Primitive, value: Operand, operands: Sequence[Operand], attrs: Attributes | None,
        mine: Sequence[Dual | None],
    ) -> Handle:  # fmt: skip
        """Return the Tensor of a computed value with its tangent; `mine` are the operands as duals here."""
        primals = [x if d is None else d.primal for x, d in zip(operands, mine, strict=True)]
        tangents = [None if d is None else d.tangent for d in mine]
        out = record(op, value, primals, attrs)
        with np.errstate(
            all="ignore"
        ):  # as in a sweep: what a tangent overflows to is no error of the caller's
            tangent = _of_power(op, mine, operands)
            if tangent is not None:
                pass
            elif self.lanes is None:
                tangent = op.jvp(tangents, out, primals, attrs or {})
            else:
                tangent = jvp(op, self.lanes, tangents, out, primals, attrs or {})
        result: Dual | None = None
        if tangent is not None:
            if not isinstance(tangent, Handle):
                tangent = wrap(as_tape_value(tangent))
            if tangent._v.dtype != out._v.dtype:
                tangent = astype(tangent, out._v.dtype)
            d = mine[0] if op.kink and op.arity == 1 else None
            result = Dual(self, out, tangent, None if d is None else (op, attrs, d.primal, d.tangent))
        self.note(out, result, operands)
        return out if result is None else wrap(out._v, DUAL, result)

    def note(self, out: Handle, result: Dual | None, operands: Sequence[Any]) -> None:
        """Note what a primal was computed from, if it has a history."""
        base = strip_tangents(out)
        if base._tape is not None and self.notes is not None:
            duals = [x._at if has_tangent(x) else None for x in operands]
            self.notes.setdefault(base._tape.serial, {})[slot(base._at)] = result, duals


# what a result with a kink at 0 comes from: the op, its attributes, its operand and that one's tangent
Source: TypeAlias = "tuple[Primitive, Attributes | None, Handle, Handle]"
Notes: TypeAlias = "dict[int, tuple[Dual | None, list[Dual | None]]]"  # of a tape: by record


class Dual:
    """A primal with its tangent at a level: handles of our own, which nobody writes to.

    `source` is what a result with a kink at 0 comes from (`ops.kinks`): the op, its attributes, its operand
    and that one's tangent.
    """

    __slots__ = ("level", "primal", "source", "tangent")

    def __init__(self, level: Level, primal: Handle, tangent: Handle, source: Source | None = None) -> None:
        self.level, self.primal, self.tangent, self.source = level, primal, tangent, source

    def record(
        self, op: Primitive, value: Operand, operands: Sequence[Operand], attrs: Attributes | None
    ) -> Handle:
        """Return the Tensor of a value computed from this and others; `dispatch.record` calls this."""
        return push(op, value, operands, attrs)

    def origin(self, x: Handle) -> tuple[Primitive | None, list[Handle], Attributes | None]:
        """Return what a Tensor that stands on this was computed from; `dispatch.origin` calls this."""
        return origin_of(x)

    def rooted(self, cell: Cell, requires_grad: bool) -> Dual:
        """Return the same of a primal that is a leaf, or a constant."""
        return Dual(self.level, self.rooted_primal(cell, requires_grad), self.tangent)

    def rooted_primal(self, cell: Cell, requires_grad: bool) -> Handle:
        """Return the primal as a leaf, or a constant."""
        primal = self.primal
        if primal._tape is DUAL:
            primal = wrap(primal._v, DUAL, primal._at.rooted(cell, requires_grad))
        else:
            primal = wrap(primal._v, None, cell)
            extra(primal).requires_grad = requires_grad
        return primal

    @property
    def parts(self) -> list[Handle]:
        """The primal, and what else depends on arguments."""
        return [self.primal, self.tangent]

    def mapped(self, function: Callable[[Handle], Handle]) -> Dual:
        """Return the same with what a function makes of primal and tangent."""
        return Dual(self.level, function(self.primal), function(self.tangent))


def open_levels() -> list[Level]:
    """Return the levels that are open, in any thread."""
    return [level for r in tuple(OPEN) if (level := r()) is not None]


@contextmanager
def reopened(levels: Sequence[Level]) -> Iterator[None]:
    """Let Tensors carry tangents of levels that were closed meanwhile, as when code ran that is run again."""
    mine: list[Level] = []
    try:
        with _reopening:
            for level in levels:
                if level.reopen():
                    mine.append(level)
        yield
    finally:
        with _reopening:
            for level in mine:
                level.leave()


def dual(level: Level, primal: Handle, tangent: Handle) -> Handle:
    """Return a Tensor that carries a tangent."""
    return wrap(primal._v, DUAL, Dual(level, primal, tangent))


def at_level(x: Operand, level: Level) -> Dual | None:
    """Return the dual that a Tensor is at just this level, which no open one is further in than."""
    found: Dual | None = x._at if isinstance(x, Handle) and has_tangent(x) else None
    return found if found is not None and found.level is level else None


def push(op: Primitive, value: Operand, operands: Sequence[Any], attrs: Attributes | None) -> Handle:
    """Return the Tensor of a computed value, with its history, and with what its innermost level adds."""
    duals: list[Dual | None] = [x._at if has_tangent(x) else None for x in operands]
    found = [d.level for d in duals if d is not None]
    if not found:  # of levels closed meanwhile
        return record(op, value, operands, attrs)
    for x in operands:
        if isinstance(x, Handle) and x._extra is not None and x._extra.call is not None:
            raise x._extra.call.error()
    level = max(found, key=lambda one: one.serial)
    mine = [d if d is not None and d.level is level else None for d in duals]
    return level.push(op, value, operands, attrs, mine)


def _of_power(op: Primitive, duals: Sequence[Dual | None], operands: Sequence[Operand]) -> Any:
    """The tangent of a power of what has a kink at 0, or of its inner product with itself, which are smooth.

    None for anything else.
    """
    d = duals[0]
    if d is None or d.source is None or op.squares is None:
        return None
    exponent = 2.0
    if op.squares == kinks.POWER:
        exponent = value_of(operands[1])
        if duals[1] is not None or np.ndim(exponent) or not exponent >= 2:
            return None
    elif op.squares == kinks.PRODUCT and not _alike(d, duals[1]):
        return None
    kink, attrs, x, tangent = d.source
    product = kinks.product(kink, attrs, x, tangent, 0 if d.level.lanes is None else 1)
    if not isinstance(op, Elementwise):  # an inner product
        if ndim_of(d.primal) != 1:
            return None
        product = np.sum(product, axis=-1)
    primal: Any = d.primal
    return exponent * product if exponent == 2 else exponent * primal ** (exponent - 2) * product


def _alike(a: Dual, b: Dual | None) -> bool:
    """Whether two results with a kink are the same function of the same operand."""
    if a.source is None or b is None or b.source is None:
        return False
    (op, attrs, _, tangent), (other, others, _, theirs) = a.source, b.source
    return op is other and attrs == others and tangent is theirs


def known(tape: Tape, k: Record) -> tuple[Handle | None, list[Handle | None]] | None:
    """Return the result and the operands of a record where they carried tangents: Tensors, or None each."""
    if not OPEN:
        return None
    found = [(level, note) for level, notes in _noted() if (note := notes.get(tape.serial, {}).get(k))]
    if not found:
        return None
    _, (result, operands) = max(found, key=lambda one: one[0])
    return _handle(result), [_handle(d) for d in operands]


def _noted() -> list[tuple[int, dict[int, Notes]]]:
    """Serials and notes of the levels that are open."""
    return [(level.serial, level.notes) for level in open_levels() if level.notes]


def origin_of(x: Handle) -> tuple[Primitive | None, list[Handle], Attributes | None]:
    """As `dispatch.origin`, for a Tensor that carries a tangent; so do its operands."""
    base = strip_tangents(x)
    op, operands, attrs = origin(base)
    note = known(base._tape, slot(base._at)) if op is not None and base._tape is not None else None
    if note is not None:
        operands = [y if d is None else d for y, d in zip(operands, note[1], strict=True)]
    return op, operands, attrs


def _handle(d: Dual | None) -> Handle | None:
    if d is None:
        return None
    found = wrap(d.primal._v, DUAL, d)
    return found if has_tangent(found) else None  # of a level closed meanwhile: what the tape has is as good


def tangents_on(tape: Tape) -> list[Handle]:
    """The tangents, at levels that are open, of what the records of a tape were computed from, and gave."""
    found = []
    for _, notes in _noted() if OPEN else ():
        for result, operands in list(notes.get(tape.serial, {}).values()):
            found += [x for d in (result, *operands) if d is not None for x in d.parts[1:]]
    return found


def noting(roots: Sequence[Handle]) -> bool:
    """Whether a sweep from these Tensors may meet records whose operands carried tangents."""
    levels = _noted() if OPEN else []
    todo = [strip_tangents(x)._tape for x in roots if levels and (has_tangent(x) or isinstance(x, Handle))]
    seen: set[int] = set()
    while todo:
        tape = todo.pop()
        if tape is None or tape.serial in seen:
            continue
        seen.add(tape.serial)
        if any(tape.serial in notes for _, notes in levels):
            return True
        todo += tape.older.copy()
    return False


def without_history(x: Handle) -> Handle:
    """Return a Tensor's value with its tangents, none of them with a history."""
    if not has_tangent(x):
        return wrap(x._v)
    d = x._at.mapped(without_history)
    return wrap(d.primal._v, DUAL, d)


def attach(x: Handle, tangent: Handle, level: Level) -> Handle:
    """Return a Tensor of the same value that carries a tangent at a level."""
    if has_tangent(x) and x._at.level.serial > level.serial:
        d, inner = x._at, at_level(tangent, x._at.level)
        low, high = (tangent, None) if inner is None else (inner.primal, inner.tangent)
        high = wrap(as_tape_value(np.zeros_like(low._v))) if high is None else high
        return dual(d.level, attach(d.primal, low, level), attach(d.tangent, high, level))
    return dual(level, x, tangent)


def detach_level(x: Handle, level: Level) -> tuple[Any, Any]:
    """Return a Tensor's primal and tangent at a level; without a tangent there, itself and None."""
    if not has_tangent(x) or x._at.level.serial < level.serial:
        return alias_of(x), None
    d = x._at
    if d.level is level:
        return alias_of(d.primal), alias_of(d.tangent)
    (p, dp), (t, dt) = detach_level(d.primal, level), detach_level(d.tangent, level)
    if dp is None and dt is None:
        return alias_of(x), None
    zeros = wrap(as_tape_value(np.zeros_like(p._v)))
    return dual(d.level, p, t), dual(d.level, zeros if dp is None else dp, zeros if dt is None else dt)
