"""A call that leaves its paths: what it has done is recorded, in the Tensors that were given out."""

from __future__ import annotations

import warnings
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from tapegrad.compilation.events.events import ARGUMENT, PARTS, RESULT, Event, Source, is_number_view
from tapegrad.compilation.events.learner import Learner, held
from tapegrad.compilation.events.passive import DETACH
from tapegrad.compilation.paths.following import Follower
from tapegrad.compilation.paths.recorded import apply_event, operand_value
from tapegrad.compilation.rows.computing import BROADCAST, are_real_numbers, forward_of, number_of
from tapegrad.config import setting_of_guard
from tapegrad.core import base, dispatch
from tapegrad.core.base import Handle, Operand, value_of
from tapegrad.core.dispatch import record
from tapegrad.core.grad_mode import _enabled
from tapegrad.core.operators import computed_with_warning
from tapegrad.kernels.replay import layout
from tapegrad.ops.forward import error_mode
from tapegrad.tensor import Tensor

SHOW = "_showwarnmsg_impl"  # by this name `warnings` knows what shows warnings, or notes them


def warning_filters() -> tuple[int, int, int]:
    """What tells Python's filters of warnings: the list, how many, and the first of them."""
    filters = warnings.filters
    return id(filters), len(filters), id(filters[0]) if filters else 0


def _handed_on(name: str) -> Callable[..., Any]:
    """A method of the learner's, which does nothing without one."""

    def method(self: Leaver, *args: Any) -> Any:
        return None if self.learner is None else getattr(self.learner, name)(*args)

    return method


class Leaver(Follower):
    """What is recorded once a call has left its paths."""

    def leave(self, why: str) -> None:
        """Record the events so far: the Tensors given out for them get values and histories.

        What was cut off by an interrupt goes on at the next call.
        """
        if not self.left:
            self.why = why
            self._known = self.position
            known = sum(len(path.program.events) for path in self.paths)
            self.learner = Learner(known) if self._learns() else None
            if self.learner is not None:
                self.learner.ours = self._ours
            self.end()
            self.left = True
            self._outdate()
            if self._computed < self._known and not self._warned:
                self._run(self._known)
        elif len(self._recorded) >= self._known:
            return
        before, handling = _enabled.get(), error_mode.set(self.handling)
        try:
            _enabled.set(self.recording)
            with self._telling():
                self._record()
            if self.learner is not None:  # compiled code makes Tensors of its own
                self.recording.tracing = self.mode.tracing = self.learner.tracing
        finally:
            _enabled.set(before)
            error_mode.reset(handling)
        if before in self._modes:
            recorded = bool(before)
            _enabled.set(recorded if self.learner is None else self._modes_left[recorded])

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Let warnings be told as when the call began: no operation since is pending under others."""
        filters, show = self.telling
        if filters is warnings.filters:
            yield
            return
        with warnings.catch_warnings():
            warnings.filters = filters
            if show is not None:
                setattr(warnings, SHOW, show)
            yield

    def _record(self) -> None:
        learner, self.learner = self.learner, None
        if not self._recorded:
            handles = self._begin()
            for k, argument in enumerate(self.arguments):
                self._pending, self._is_array = argument, Source(ARGUMENT, k) in self._arrays
                next(handles)
                if learner is not None:
                    learner.add(argument)
        self.learner, owners = learner, self.program.owners
        missed = self._missed if self.state[layout.MISSED] else ()
        for j in range(len(self._recorded), self._known):
            if j in missed:
                self._recorded.append(Tensor())
                continue
            event = self.program.events[j]
            operands = [self._real(j, q, source) for q, source in enumerate(event.operands)]
            error_mode.set(self._handling_of(j))
            if self._warned:
                self._tell_errors(j, operands)
            self._is_array = Source(RESULT, owners[j]) in self._arrays
            if event.writes is None:
                is_given = self.program.stand_ins.is_latest(j, self._known, owners)
                x = self._pending = self.tensor(j) if is_given else Tensor()  # nobody has it any more
                if j in self.program.at_once:
                    self._record_guarded(j, operands, x)
                else:
                    self._record_value(j, operands)
            else:
                x = self._pending = self._recorded[owners[j]]
                self._record_write(j, operands, x)
            if event.several:
                base.extra(x).several = True
            if event.order is not None:
                self.note_order(x, event.order)
            if event.warning:
                self.note_warning(x, event.warning)
            self._recorded.append(x)

    def _record_guarded(self, j: int, operands: list[Any], x: Handle) -> None:
        """As `_record_value`, of an event that has read an array in place, which is refused if written to."""
        before = setting_of_guard.set("checksum")
        try:
            self._record_value(j, operands)
        finally:
            setting_of_guard.reset(before)
        found = map(self.program.copies.held_for, self.program.live(j))
        for now, known in filter(None, (array.written() for array in found if array is not None)):
            if x._tape is not None:
                guards = x._tape.guards
                guards |= {k: known for k, checksum in guards.items() if checksum == now}

    def held(self, seen: weakref.ref[Any], but: Handle | None = None) -> Handle | None:
        """Return a Tensor that others hold, of those that see the memory of a Tensor or storage, but one."""
        flat = () if self.learner is None else self.learner.flat()
        ours = self.results, self.arguments, self._recorded, (self._pending,), self._filled, self._shown
        return held(seen, chain(*ours, flat), but)

    def _ours(self) -> Iterator[Handle]:
        """Tensors that are held here of what was recorded."""
        return chain(self.results, self._recorded, self._filled)

    def _handling_of(self, j: int) -> Any:
        """NumPy's handling of errors when an event came."""
        came = bisect_right(self._changes, j, key=itemgetter(0)) if self.state[layout.CHANGES] else 0
        return self._changes[came - 1][1] if came else self.handling

    def _tell_errors(self, j: int, operands: list[Operand]) -> None:
        """Compute an event once more, so that NumPy tells of an error of numbers where it was.

        Of one that Python has computed NumPy has told.
        """
        if j >= self._computed and j in self.program.renewals:
            self.program.renewals[j]()
        event, before, given = self.program.event_of_call(j), _enabled.get(), [value_of(x) for x in operands]
        try:
            _enabled.set(True)
            flat = not self.program.active[j]
            known = flat or are_real_numbers(given)
            if event.warning and j not in self.by_python:
                value = computed_with_warning(event.warning, event.op.forward, given)
            else:
                with np.errstate(all="ignore") if j in self.by_python else nullcontext():
                    value = forward_of(event, given) if known else apply_event(event, given)._v
        finally:
            _enabled.set(before)
        target = self.program.target(j)
        if j >= self._computed and target is not None:  # nobody has seen it
            target[...] = value

    def _record_value(self, j: int, operands: list[Any]) -> None:
        """Record an event with the value that there is."""
        event, value = self.program.event_of_call(j), number_of(self.program.values[j])
        of = self._seen(event, operands[0])
        seen = type(of) is np.ndarray
        part: Any = forward_of(event, [of]) if seen else None
        place = part if seen and part.ndim == 0 else None
        if place is not None:
            value = place[()]
        elif seen:
            value = part
        elif type(value) is np.ndarray and id(value) not in self._lent:
            one = event.op is BROADCAST  # in memory, of several elements
            value = forward_of(event, [value_of(operands[0])]) if one else value.copy(order="K")
        if not self.program.active[j]:
            out = self.wrap(value)
            if seen:
                base.join(operands[0], out, of, event.op is DETACH, place)
            self.note_plain(event.op, operands, event.attrs, out)
        else:
            if j in self.program.read_only:
                value.flags.writeable = False
            recorded = self._record_natively(event, value, operands)
            out = record(event.op, value, operands, event.attrs) if recorded is None else recorded
        if event.call is not None and event.call.is_array and event.call.events == 1:
            base.as_array(out)
        if seen:
            base.join(operands[0], out, of, place=place)
        else:
            self._note_copied(out, event, operands)

    def _seen(self, event: Event, x: Operand) -> Any:
        """What an event gives a view of, an array; anything else where it gives none."""
        if not isinstance(x, Handle):
            return None
        number = not (x._v.ndim and event.value.ndim)
        seen = is_number_view(event, x._v) if number else event.is_view
        return base.array_of(x) if seen else None

    def _note_copied(self, x: Handle, event: Event, operands: list[Any]) -> None:
        """Let writes to a copy of a part of what the call has computed be refused while others hold that."""
        of = operands[0] if event.op in PARTS and event.writes is None else None
        if isinstance(of, Handle) and of._v.ndim:
            base.refuse_while(x, of, partial(self.held, weakref.ref(of)))
        number = event.operands[0].kind in (ARGUMENT, RESULT) and event.op is not BROADCAST  # which is a copy
        if number and isinstance(operands[0], Handle) and is_number_view(event, operands[0]._v):
            base.note_copied(x, operands[0])

    def _record_write(self, j: int, operands: list[Operand], x: Handle) -> None:
        """Record an event that writes to a Tensor, which has been recorded before."""
        history = self.history_of(x)
        version = 0 if x._extra is None else x._extra.version
        self._record_value(j, operands)
        base.extra(x).version = version + 1
        call = self.program.events[j].call
        if history is not None and call is not None:
            how = call.args
            if how and how[1] is not None:
                how = how[0], self.history_of(self._stood_for(how[1]))
            self.note_write(history, how, x)

    def _record_natively(self, event: Event, value: Operand, operands: list[Operand]) -> Handle | None:
        """Record an event in compiled code, if that can, for the Tensor that was given out for it."""
        before, x = _enabled.get(), self._pending
        try:
            _enabled.set(True)
            out = dispatch.record_natively(event.op, value, operands, event.attrs)
        finally:
            _enabled.set(before)
        if out is None or x is None:
            return None
        self._pending = None
        if self._is_array:
            base.as_array(out)
        if event.writes is not None:  # x is an operand, as it was
            self.note(event.op, operands, event.attrs, out)
        x._v, x._tape, x._extra, x._at = out._v, out._tape, out._extra, out._at
        if event.writes is None:
            self.note(event.op, operands, event.attrs, x)
        return x

    def _stood_for(self, source: Source) -> Tensor:
        """The Tensor that has been recorded for an argument or a result."""
        k: int = source.value
        return self.arguments[k] if source.kind == ARGUMENT else self._recorded[k]

    def _real(self, j: int, q: int, source: Source) -> Any:
        if source.kind in (ARGUMENT, RESULT):
            return self._stood_for(source)
        buffer = self.program.live(j)[q]
        held = self.program.copies.held_for(buffer)
        return operand_value(source, buffer) if held is None else held.array

    def wrap(self, value: Operand, tape: Any = None, at: int | None = None) -> Handle:
        """Return the Tensor of a result just recorded: the one that was given out for it, or another."""
        x, self._pending = self._pending, None
        if x is None:
            return base.wrap(value, tape, at)
        x._v, x._tape, x._extra, x._at = value, tape, base.ARRAY if self._is_array else None, at
        return x

    history_of = _handed_on("history_of")
    written = _handed_on("written")
    note_write = _handed_on("note_write")
    note = _handed_on("note")
    note_flat = _handed_on("note_flat")
    note_plain = _handed_on("note_plain")
    note_parts = _handed_on("note_parts")
    note_value = _handed_on("note_value")
    note_several = _handed_on("note_several")
    note_order = _handed_on("note_order")
    note_warning = _handed_on("note_warning")
