"""A program at work: a function runs, and its operations are compared with what the program expects."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any
from weakref import getweakrefcount

import numpy as np

from tapegrad.compilation.events.equality import alike
from tapegrad.compilation.events.events import POWER, RESULT, Source, is_without_errors
from tapegrad.compilation.events.passive import Operation, Passive, flat_operation
from tapegrad.compilation.events.varying import varying_of
from tapegrad.compilation.paths.leaving import SHOW, Leaver, warning_filters
from tapegrad.compilation.paths.path import EVENT_BYTES, Computation, Path, Product
from tapegrad.compilation.programs.program import view_of
from tapegrad.compilation.rows.computing import RESHAPE
from tapegrad.core import base, compiled_methods, dispatch
from tapegrad.core.base import Handle, Operand, is_constant
from tapegrad.core.expected import matcher_of
from tapegrad.core.grad_mode import _enabled
from tapegrad.core.storage import is_same_part
from tapegrad.errors import is_from_signal
from tapegrad.kernels.replay import layout
from tapegrad.kernels.replay.layout import FILTERS, MATCHING, NEXT_EVENT
from tapegrad.ops import forward
from tapegrad.ops.forward import error_mode
from tapegrad.ops.primitive import Attributes, Primitive
from tapegrad.tensor import Tensor

QUICK = 4  # operands of an op that is compared before it is computed
VALUE: Any = Handle.__dict__["_v"]  # the slot, which may be empty


class Matcher(Leaver):
    """What calls of one signature expect, and the call at work; see `core.expected.Matcher`."""

    def start(self, given: Sequence[Any]) -> None:
        """Expect the first event of the latest path, of these arguments."""
        self._known, self._pending = -1, None
        self.serial += 1
        if self._stale:
            self.describe()
        if self.paths[0] is self.ready:
            self.state[NEXT_EVENT] = self.ready.begin
        else:
            self._follow(self.paths[0], 0)
        self.restart(given)
        compiled_methods.words[MATCHING] = self.at

    def restart(self, given: Sequence[Any]) -> None:
        """Take other arguments for the path at hand; what else the latest call has brought is still there."""
        self.left = self._warned = False
        self.state[layout.COMPUTED] = self.state[layout.SEEN] = self.state[layout.MISSED] = 0
        places = self.program.places
        for k, x in enumerate(given):
            places[k][...] = x._v if isinstance(x, Handle) else x
        handling = error_mode.get()
        if handling is not self.handling:
            self.handling = handling
            self.reported, self._raising, _ = forward.reported(handling, self.warns)
            self.state[layout.ERRORS_AT_FIRST] = id(handling)
            self.state[layout.ERRORS_REPORTED] = self.reported
            self._raise_in_calls()
        self.state[layout.MATCHING_ERRORS], self.state[layout.CHANGES] = id(handling), 0
        self.state[FILTERS], self.state[FILTERS + 1], self.state[FILTERS + 2] = warning_filters()
        self.telling[:] = warnings.filters, getattr(warnings, SHOW, None)

    def observe(self, see_value: Callable[[Callable[..., Any], Sequence[Any], Any], None]) -> None:
        """Let somebody know of each value that is looked at in the call that begins."""
        self.see_value = see_value
        self._follow(self.path, 0)

    def expect(
        self, op: Operation, operands: Sequence[Operand], attrs: Attributes | None, placed: str = ""
    ) -> Handle | None:
        """Return the Tensor of a result that comes next, if the program computes it as Python would."""
        if not self.is_followed():
            return None
        k = self._position_of(op)
        if op is POWER or k >= len(self.program.events) or self.program.events.ops[k] is not op:
            return None
        if not self.program.exact[k] or len(operands) > QUICK or not (self.counts(k) and self.is_handled()):
            return None
        if not (isinstance(op, Passive) or any(map(self.is_mine, operands))):
            return None
        if not self.path.comparison.expects(k, op, None, operands, attrs or {}):
            return None
        if not self._is_placed(k, placed):
            return None
        if not is_without_errors(op) and not self._is_done(k, op):
            return None  # it may raise an error, which belongs where it is applied
        return self._pass(k) if self._are_free(k) else None

    def _is_done(self, k: int, op: Operation) -> bool:
        """Whether rows have computed an op that comes next, and all before it, and no error was met."""
        return self._is_computed_by_rows(k, op) and self.compute_to(k) and self.compute_quietly(k + 1)

    def compute_quietly(self, k: int) -> bool:
        """As `compute_to`; False too where an op raises an error, in other words than where it is applied."""
        try:
            return self.compute_to(k)
        except Exception as error:
            if is_from_signal(error):
                raise
            self.program.rows.state[layout.ERRORS_MET] = 0
            return False

    def _pass(self, k: int) -> Tensor:
        """The Tensor of the event that has come."""
        self._go_behind(k)
        return self.tensor(k)

    def _go_behind(self, k: int, count: int = 1) -> None:
        """Expect what comes behind so many events from one on, which have come."""
        missed = range(self.position, k)
        if missed:
            if not self.state[layout.MISSED]:
                self._missed.clear()
            self._missed.update(missed)
            self.state[layout.MISSED] = 1
        self.state[NEXT_EVENT] = self.path.begin + EVENT_BYTES * (k + count)

    def _position_of(self, op: Operation | None) -> int:
        """Where an op is expected: at the next event, or behind some that are but looked at."""
        k, looks, ops = self.position, self.path.looks, self.program.events.ops
        while k in looks and ops[k] is not op:
            k += 1
        return k

    def _are_free(self, k: int, count: int = 1) -> bool:
        """Whether nobody has the Tensors that stand for so many events from one on; else the call leaves.

        They were for others before: from now on each event has its own.
        """
        for j in range(k, k + count):
            x = self.tensor(j)
            if _has_value(x):
                self._forget(x)
            if getrefcount(x) > 3 or getweakrefcount(x):  # in the list, here, and as asked for
                self._apart = True
                self.leave("a Tensor was kept for longer than before")
                return False
        return True

    def is_handled(self) -> bool:
        """Whether the handling of errors of numbers is that at hand, or from now on another one.

        It tells of no error that is not told at first, so that what meets none may be computed at the end of
        the call; where one is met the call leaves, and each operation has its own handling.
        """
        handling, state = error_mode.get(), self.state
        if warning_filters() != (*state[FILTERS : FILTERS + 3],):
            return False  # of a warning that is an error, or is not told, or is noted
        if id(handling) == state[layout.MATCHING_ERRORS]:
            return True
        reported, loud = forward.reported_here()
        if handling is not self.handling and (reported & ~self.reported or loud):
            return False
        if not state[layout.CHANGES]:
            self._changes.clear()
        self._changes.append((self.position, handling))  # which keeps it, as it is known by its address
        state[layout.CHANGES] += 1
        state[layout.MATCHING_ERRORS] = id(handling)
        return True

    def applying(self, op: Primitive, operands: Sequence[Operand]) -> None:
        """Let nobody be told that the operands of an op are looked at while it is computed, if rows could."""
        if self.see_value is None or not self.is_followed():
            return
        if self._is_computed_by_rows(self._position_of(op), op):
            self._operands = {id(x) for x in operands}

    def _is_computed_by_rows(self, k: int, op: Operation) -> bool:
        """Whether an op comes next that rows can compute as Python does."""
        program = self.program
        known = k < len(program.events) and (k not in program.anew or k in program.renewals)
        return known and program.events.ops[k] is op and program.exact[k] != 0

    def applied(self) -> None:
        """Let nobody see the operands of an op that has been computed."""
        self._operands = set()
        self._hide()

    def _is_placed(self, k: int, placed: str) -> bool:
        """Whether a result lies where it is to: see `core.dispatch.expect`."""
        if (k in self.program.read_only) is not (placed == "read-only"):
            return False
        events = self.program.events
        if events.ops[k] is not RESHAPE or events[k].is_view:
            return placed != "copied"
        event = events[k]
        return placed == "copied" or view_of(event.op, event.attrs, self.program.live(k)[0]) is None

    def call(
        self, function: Callable[..., Any], how: Callable[..., Any], args: Sequence[Any], kwargs: Any
    ) -> Any:
        """Return what a function of NumPy's gives: the Tensor that comes next, or what computes it does."""
        if self.left:
            return (
                how(*args, **kwargs)
                if self.learner is None
                else self.learner.call(function, how, args, kwargs)
            )
        k = self.position
        while k in self.path.looks and self.program.events.function(k) is not function:
            k += 1
        if self.program.events.function(k) is function and self.is_followed():
            known = self.path.comparison.known_call(k)
            if (
                known is not None
                and not known.writes
                and self.counts(k, known.events)
                and known.kwargs.keys() == kwargs.keys()
                and self.is_handled()
                and self.path.comparison.are_given(k, known.args, args)
                and self.path.comparison.are_given(
                    k, [*known.kwargs.values()], [kwargs[name] for name in known.kwargs]
                )
            ):
                op = self.program.events.ops[k]
                if not is_without_errors(op) and not self._is_done(k, op):
                    return how(*args, **kwargs)
                if not self._are_free(k, known.events):
                    return self.call(function, how, args, kwargs)
                self.path.comparison.restore(k, known)
                self._go_behind(k, known.events)
                return self.path.comparison.results(k, known)
        return how(*args, **kwargs)

    def part(self, x: Handle, index: Any) -> Handle | None:
        """Return the Tensor of a part by an index that has been seen to fit, if it is what comes next."""
        k = self._position_of(None)
        if not self.is_followed() or k >= len(self.program.events) or not self.counts(k):
            return None
        event = self.program.events[k]
        if event.several:
            return None
        varying = varying_of(event.attrs)
        if not self.program.views[k]:
            taken = varying is not None or self.program.is_part(k)
            if not (taken and self.program.exact[k] and self.is_handled()):
                return None
        if varying is None and ("index" not in event.attrs or not alike(event.attrs["index"], index)):
            return None
        if varying is not None and not varying.take_index(index):
            return None
        if not self.path.comparison.takes(k, 0, x, True):
            return None
        return self._pass(k) if self._are_free(k) else None

    def match(
        self, op: Primitive, value: Any, operands: Sequence[Any], attrs: Attributes | None
    ) -> Handle | None:
        """Return the Tensor of a result that Python has computed, if it is what comes next."""
        if self.left and self.learner is not None and self._pending is None:
            return self.learner.match(op, value, operands, attrs)
        if self.left or not any(map(self.is_mine, operands)):
            return None
        k = self._position_of(op)
        found = None
        if self.is_followed():
            found = self._expects(self.path, k, op, value, operands, attrs or {}) or self._other(
                k, op, value, operands, attrs or {}
            )
        if found and type(value) is np.ndarray:
            found = value.flags.writeable is self.program.values[k].flags.writeable
            if op is RESHAPE:
                found = found and self.program.events[k].is_view is dispatch.is_view_of(value, operands[0]._v)
        if not found and self._is_flat(value, operands):
            return base.wrap(dispatch.as_tape_value(value))
        if not found or not self.compute_to(k):
            self.leave(f"operation {k} was {op.name}, which is not known there with these operands")
            return None
        if not self._are_free(k):
            return None
        if k in self.program.anew and varying_of(self.program.attrs[k]) is None:
            self.program.attrs[k].update(attrs or {})
        self.by_python.add(k)
        target = self.program.target(k)
        if target is not None:
            target[...] = value
        self._computed = k + 1
        return self._pass(k)

    def _is_flat(self, value: Operand, operands: Sequence[Operand]) -> bool:
        """Whether a value that was computed has no derivative, nor is it a view of an operand."""
        for x in operands:
            if isinstance(x, Handle):
                known = matcher_of(x)
                moving = not is_constant(x) if known is None else known.is_active(x)
                if (moving and _enabled.get()) or dispatch.is_view_of(value, x._v):
                    return False
        return True

    def write(self, x: Handle, index: Any, new: Any, update: bool) -> bool:
        """Let a Tensor be what was written to it, if that comes next and no other view of it is there."""
        k = self._position_of(None)
        if not self.is_followed() or not self.counts(k) or not self.is_handled():
            return False
        found = self.program.written.get(k)
        if found is None:
            return k - 1 in self.program.seen and self._is_there(k - 1, x, index, new)
        event, owner, known, _, count = found
        if x is not self.tensor(owner) or not alike(known, index) or (event.op is RESHAPE and not update):
            return False
        if not self.path.comparison.takes(k, 0, new, True):
            return False
        for number in self.program.must_be_gone(k):
            if getrefcount(self.results[number]) > 2:
                return False
        if self._filled:
            self._forget(x, self.tensor(k))
        self._go_behind(k, count)
        return True

    def _is_there(self, k: int, x: Handle, index: Any, new: Any) -> bool:
        """Whether a Tensor is the part of another, at this index, that was written to as a view just now."""
        values = self.program.values
        if new is not self.tensor(k) or x is not self.tensor(k - 1):
            return False
        try:
            part: Any = values[k - 1][index]
        except (IndexError, TypeError):
            return False
        return bool(part.size) and is_same_part(part, values[k])

    def _forget(self, *handles: Handle) -> None:
        """Let Tensors have no values any more, as they are to have others."""
        for q in range(len(self._filled) - 1, -1, -1):
            if any(x is self._filled[q] for x in handles):
                del self._filled.pop(q)._v

    def is_flat(self, x: Any) -> bool:
        """Whether this is a Tensor without a derivative that is known to be computed by the call."""
        if self.left:
            return self.learner is not None and self.learner.is_flat(x)
        return self.is_mine(x) and not self.is_active(x)

    def expect_flat(
        self, function: Callable[..., Any], args: Sequence[Any], names: Attributes
    ) -> Handle | None:
        """As `expect`, for a call of a function without a derivative."""
        if self.left:
            return None
        known = flat_operation(function, args, names)
        return None if known is None else self.expect(*known)

    def _other(
        self, k: int, op: Primitive, value: Operand, operands: Sequence[Operand], attrs: Attributes
    ) -> bool:
        """Go on with another path that begins as this one does, if there is one that expects this event."""
        for path in self.paths:
            if path is self.path or not self._has_begun(path, k):
                continue
            if self._expects(path, k, op, value, operands, attrs):
                self._follow(path, k)
                return True
        return False

    def _expects(
        self,
        path: Path,
        k: int,
        op: Primitive,
        value: Operand,
        operands: Sequence[Operand],
        attrs: Attributes,
    ) -> bool:
        """Whether an event of a path is this one, in the mode in force."""
        return self.counts(k, path=path) and path.comparison.expects(k, op, value, operands, attrs)

    def _has_begun(self, path: Path, k: int) -> bool:
        """Whether the first k events of another path are those of this one, in the same buffers."""
        values = path.program.values
        return len(values) >= k and (k == 0 or values.is_shared(k - 1, self.program.values))

    def is_complete(self, found: Any) -> bool:
        """Whether a call that has returned this has followed a path to its end."""
        if self.left:
            return False
        k = self._position_of(None)
        if k == len(self.program.events) and self._is_result(self.path, found):
            return True
        for path in self.paths:  # one that ends here
            if len(path.program.events) == k and self._is_result(path, found) and self._has_begun(path, k):
                self._follow(path, k)
                return True
        return False

    @staticmethod
    def _is_result(path: Path, found: Any) -> bool:
        """Whether this is the Tensor of a path's result."""
        return found is path.comparison.handle(Source(RESULT, path.result))

    def finish(self, what: Computation, pull: bool) -> bool:
        """Compute what a call asks for that has followed its path; False where it is to be recorded."""
        while self._filled:
            del self._filled.pop()._v
        path = self.path
        if pull and not path.is_number:
            return False
        for x in self.arguments:
            if getrefcount(x) > 3 or getweakrefcount(x):  # in the list, here, and as asked for
                return False
        if isinstance(what, Product):  # it computes more, of which nobody is told errors
            with np.errstate(all="ignore"):
                computed = self.compute_to(len(self.program.events))
                return computed and what.compute(self._computed, pull, 0) and what.holds()
        before = error_mode.set(self._raising) if what.calls[pull] else None
        try:
            found = what.compute(self._computed, pull, self.reported)
            if not found:  # by the rows, which give all values; a plan does not
                self._computed = len(self.program.events)
        except FloatingPointError:
            found, self._warned = False, True
        finally:
            if before is not None:
                error_mode.reset(before)
        return found


def _has_value(x: Tensor) -> bool:
    """Whether somebody has looked at a Tensor that stands for a result."""
    try:
        VALUE.__get__(x)
    except AttributeError:
        return False
    return True
