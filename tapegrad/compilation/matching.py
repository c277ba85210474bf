"""A program at work: a function runs, and its operations are compared with what the program expects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from sys import getrefcount
from typing import Any
from weakref import getweakrefcount

import numpy as np

from tapegrad.compilation.calls import is_same_for_numbers
from tapegrad.compilation.computing import TAKE, are_real_numbers, forward_of, number_of, varying_of
from tapegrad.compilation.events import (
    ARGUMENT,
    FIXED,
    LIVE,
    POWER,
    PYTHON_S,
    RESULT,
    WITHOUT_ERRORS,
    Brought,
    Event,
    Learner,
    Several,
    Source,
    moves,
)
from tapegrad.compilation.passive import Operation, Passive, flat_operation, passive
from tapegrad.compilation.paths import EVENT_BYTES, Computation, Path, Product
from tapegrad.compilation.program import alike
from tapegrad.compilation.recorded import apply_event, operand_value
from tapegrad.core import base, compiled_methods, dispatch
from tapegrad.core.base import Handle, value_of
from tapegrad.core.dispatch import record
from tapegrad.core.expected import expected
from tapegrad.core.grad_mode import Mode, _enabled
from tapegrad.kernels import abi, programs
from tapegrad.kernels.replay import layout
from tapegrad.kernels.replay.layout import MATCHING, NEXT_EVENT
from tapegrad.kernels.words import Address
from tapegrad.ops import MEANING, REGISTRY, forward
from tapegrad.ops.forward import error_mode
from tapegrad.ops.primitive import Attributes, Elementwise, Primitive
from tapegrad.tensor import Tensor

PRODUCTS = {op for op in REGISTRY.values() if op.multilinear} | {MEANING[np.prod], MEANING[np.cumprod]}
# In the order in which CPython counts them.
COMPARISONS = np.less, np.less_equal, np.equal, np.not_equal, np.greater, np.greater_equal
QUICK = 4  # operands of an op that is compared before it is computed
OF_NUMBERS = "an operation met an error of numbers, of which NumPy tells"


def _is_alike(value: Any, buffer: np.ndarray) -> bool:
    """Whether a buffer can take a value; one in another order is another way, as sums add it up otherwise."""
    if value.shape != buffer.shape or value.dtype != buffer.dtype:
        return False
    return not value.ndim or value.strides == buffer.strides or _order(value) == _order(buffer)


def _are_taken(known: Attributes, found: Attributes) -> bool:
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


def _is_constant(x: Handle) -> bool:
    """Whether a Tensor is to what is recorded what its value is."""
    if id(x) in expected or base.requires_grad(x) or base.has_tangent(x):
        return False
    state = x._extra
    return state is None or not (state.volatile or state.inference)


class Matcher:
    """What calls of one signature expect, and the call at work; see `core.expected.Matcher`.

    Attributes
    ----------
    paths
        The ways through the function that are known, the latest first.
    arguments, results
        Tensors without values that stand for leaves of the arguments and for results of events.
    learner
        What sees the operations once the call has left the paths, if it is learned from.
    why
        Why the latest call that has left the paths did so.
    serial
        How often buffers may have taken other numbers and arrays that calls bring.
    by_python
        How many operations of the call at work Python has computed.
    see_value
        Who is to know that a value is looked at.
    """

    def __init__(self, count: int) -> None:
        self.paths: list[Path] = []
        self.arguments = [self._stand_in() for _ in range(count)]
        self.results: list[Tensor] = []
        self.left, self.why, self.serial, self.by_python = False, "", 0, 0
        self.see_value: Callable[[], None] | None = None
        self.learner: Learner | None = None
        self.mode = Mode(True)
        self.mode.plain, self.mode.matcher = True, self
        self.recording = Mode(True)  # that of a call that has left
        self.recording.plain, self.recording.matcher = True, self
        state = np.zeros(layout.MATCHING_WORDS, np.int64)
        self.state = state.data
        self.state[layout.MATCHING_MODE] = id(self.mode)
        for k, ufunc in enumerate(COMPARISONS):
            self.state[layout.COMPARISONS + k] = id(passive(ufunc))
        self.at: Address = abi.address(state)
        self._handling: Any = None  # of errors of floating-point numbers
        self._begin: Callable[[], Iterator[Tensor]] | None = None
        self._ready: Path | None = None  # that the words say to follow, if nobody is to see values
        self._sources: dict[int, Source] = {}
        self._known = 0  # of the events recorded again
        self._stale = True
        self._filled: list[Handle] = []
        self._shown: list[Handle] = []  # to the op at work, whose `_operands` may be looked at
        self._operands: set[int] = set()
        self._lent: dict[int, list[Any]] = {}  # arrays that have been looked at, how often they were known
        self._recorded: list[Tensor] = []
        self._pending: Tensor | None = None

    def _stand_in(self) -> Tensor:
        x = Tensor()
        expected[id(x)] = self
        return x

    def prefer(self) -> None:
        """Try the path at hand first at the next call."""
        if self.paths[0] is not self.path:
            self.paths.remove(self.path)
            self.paths.insert(0, self.path)

    def add(self, path: Path, first: bool = True) -> None:
        """Take in a path that has been made."""
        self.serial += 1
        self.paths.insert(0 if first else len(self.paths), path)
        self._stale = True

    def forget(self) -> None:
        """Expect nothing at any time."""
        for x in (*self.arguments, *self.results):
            expected.pop(id(x), None)
        self.paths.clear()

    # ------------------------------------------------------------ expecting

    def start(
        self, given: Sequence[Any], sources: Callable[[], Iterator[Tensor]], learns: Callable[[], bool]
    ) -> None:
        """Expect the first event of the latest path, of these arguments.

        `sources` gives Tensors of them where the call leaves the paths, and is learned from if it `learns`.
        """
        self._begin, self._learns = sources, learns
        self._known, self._pending = -1, None
        self.by_python = 0
        self.serial += 1
        if self._stale:
            self.describe()
        if self.paths[0] is self._ready:
            self.state[NEXT_EVENT] = self._ready.begin
        else:
            self._follow(self.paths[0], 0)
        self.restart(given)
        compiled_methods.words[MATCHING] = self.at

    def restart(self, given: Sequence[Any]) -> None:
        """Take other arguments for the path at hand; what else the latest call has brought is still there."""
        self.left = self._warned = False
        self.state[layout.COMPUTED] = 0
        places = self.program.places
        for k, x in enumerate(given):
            places[k][...] = x._v if isinstance(x, Handle) else x
        handling = error_mode.get()
        if handling is not self._handling:
            self._handling = handling
            self._told, self._raising, _ = forward.reported(handling)
            self.state[layout.MATCHING_ERRORS] = id(handling)

    def observe(self, see_value: Callable[[], None] | None) -> None:
        """Let somebody know of each value that is looked at in the call that begins."""
        self.see_value = see_value
        self._follow(self.path, 0)

    def describe(self) -> None:
        """Write the words of paths that have changed."""
        if not self._stale:
            return
        count = max((len(path.program.events) for path in self.paths), default=0)
        self.results += [self._stand_in() for _ in range(count - len(self.results))]
        for path in self.paths:
            path.describe(self.arguments, self.results)
        self._sources = {id(x): Source(ARGUMENT, k) for k, x in enumerate(self.arguments)}
        self._sources |= {id(x): Source(RESULT, k) for k, x in enumerate(self.results)}
        self.state[layout.RUN_FUNCTION] = programs.address()
        self._stale = False

    def _follow(self, path: Path, k: int) -> None:
        self.path, self.program, state = path, path.program, self.state
        state[NEXT_EVENT], state[layout.FIRST_EVENT] = path.begin + EVENT_BYTES * k, path.begin
        by_python = path.program.rows.calls or self.see_value is not None
        state[layout.RUN_WORDS_AT] = 0 if by_python else path.program.rows.at
        state[layout.ARGUMENT_COUNT] = len(self.arguments) if self.see_value is None else 0
        self._ready = path if self.see_value is None else None

    @property
    def _computed(self) -> int:
        """Of how many events the results are computed."""
        return self.state[layout.COMPUTED]

    @_computed.setter
    def _computed(self, count: int) -> None:
        self.state[layout.COMPUTED] = count

    @property
    def position(self) -> int:
        """How many events have come."""
        return (self.state[layout.NEXT_EVENT] - self.path.begin) // EVENT_BYTES

    def expect(self, op: Operation, operands: Sequence[Any], attrs: Attributes | None) -> Tensor | None:
        """Return the Tensor of a result that comes next, if the program computes it as Python would."""
        if self.left or _enabled.get() is not self.mode:
            return None
        k = self.position
        if self.see_value is not None and self._is_computed_by_rows(k, op):
            self._operands = {id(x) for x in operands}
        if op is POWER or error_mode.get() is not self._handling:
            return None
        if k >= len(self.program.events) or not self.program.exact[k] or len(operands) > QUICK:
            return None
        if not isinstance(op, (*WITHOUT_ERRORS, Passive)) and op not in PRODUCTS:
            return None  # it may raise an error, which belongs where it is applied
        if not any(expected.get(id(x)) is self for x in operands):
            return None
        if not self._expects(self.path, k, op, None, operands, attrs or {}):
            return None
        self.state[layout.NEXT_EVENT] += EVENT_BYTES
        return self.results[k]

    def _is_computed_by_rows(self, k: int, op: Operation) -> bool:
        """Whether an op comes next that rows can compute as Python does."""
        program = self.program
        known = k < len(program.events) and k not in program.anew
        return known and program.events[k].op is op and program.exact[k]

    def applied(self) -> None:
        """Let nobody see the operands of an op that has been computed."""
        self._operands = set()
        while self._shown:
            x = self._shown.pop()
            if id(x) in expected:
                del x._v

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
        if k < len(self.program.events) and self.program.exact[k] and _enabled.get() is self.mode:
            known = self.program.events[k].call
            if (
                known is not None
                and known.function is function
                and alike(known.kwargs, kwargs)
                and error_mode.get() is self._handling
                and self._are_given(k, known.args, args)
            ):
                self.state[layout.NEXT_EVENT] += EVENT_BYTES
                return self.results[k]
        return how(*args, **kwargs)

    def _are_given(self, k: int, known: Sequence[Any], found: Sequence[Any]) -> bool:
        """Whether arguments of a function, or parts of one, are those that are expected."""
        if len(known) != len(found):
            return False
        for wanted, x in zip(known, found, strict=True):
            kind = type(wanted)
            if kind is Source:
                if x is not (self.arguments if wanted.kind == ARGUMENT else self.results)[wanted.value]:
                    return False
            elif kind is Several:
                if type(x) is not wanted.kind or not self._are_given(k, wanted.parts, x):
                    return False
            elif kind is Brought:
                plain = type(x) is np.ndarray or isinstance(x, (*PYTHON_S, np.generic))
                if not plain or not self._takes(self.path, k, wanted.operand, x, True):
                    return False
            elif not alike(wanted, x):
                return False
        return True

    def part(self, x: Handle, index: Any) -> Tensor | None:
        """Return the Tensor of a part by an index that has been seen to fit, if it is what comes next."""
        k = self.position
        if self.left or _enabled.get() is not self.mode or k >= len(self.program.events):
            return None
        event = self.program.events[k]
        varying = varying_of(event.attrs)
        taken = event.op is TAKE or varying is not None
        taken = taken and self.program.exact[k] and error_mode.get() is self._handling
        if not taken and (varying is not None or not self.program.views[k]):
            return None
        if varying is None and ("index" not in event.attrs or not alike(event.attrs["index"], index)):
            return None
        if varying is not None and not varying.take_index(index):
            return None
        if not self._takes(self.path, k, 0, x, True):
            return None
        self.state[layout.NEXT_EVENT] += EVENT_BYTES
        return self.results[k]

    def match(
        self, op: Primitive, value: Any, operands: Sequence[Any], attrs: Attributes | None
    ) -> Tensor | None:
        """Return the Tensor of a result that Python has computed, if it is what comes next."""
        if self.left and self.learner is not None and self._pending is None:
            return self.learner.match(op, value, operands, attrs)
        if self.left or not any(expected.get(id(x)) is self for x in operands):
            return None
        k = self.position
        found = None
        if _enabled.get() is self.mode:
            found = self._expects(self.path, k, op, value, operands, attrs or {}) or self._other(
                k, op, value, operands, attrs or {}
            )
        if not found and self._is_flat(value, operands):
            return base.wrap(dispatch.as_tape_value(value))
        if not found or not self.compute_to(k):
            self.leave(f"operation {k} was {op.name}, which is not known there with these operands")
            return None
        if k in self.program.anew and varying_of(self.program.attrs[k]) is None:
            self.program.attrs[k].update(attrs or {})
        self.by_python += 1
        if op is not POWER:  # of which the operator and NumPy's function differ in the last bits
            if not self.program.views[k] and self.program.values[k].flags.writeable:
                self.program.values[k][...] = value
            self._computed = k + 1
        self.state[layout.NEXT_EVENT] += EVENT_BYTES
        return self.results[k]

    def _is_flat(self, value: Any, operands: Sequence[Any]) -> bool:
        """Whether a value that was computed has no derivative, nor is it a view of an operand."""
        for x in operands:
            if isinstance(x, Handle):
                known = expected.get(id(x))
                moving = not _is_constant(x) if known is None else known.moves(x)
                if moving or dispatch.is_view_of(value, x._v):
                    return False
        return True

    def moves(self, x: Handle) -> bool:
        """Whether a Tensor that stands for an argument or a result depends on the arguments."""
        return moves(self._sources[id(x)], self.program.active)

    def follows(self, x: Any) -> bool:
        """Whether this is a Tensor without a derivative that is known to be computed by the call."""
        if self.left:
            return self.learner is not None and self.learner.follows(x)
        return expected.get(id(x)) is self and not self.moves(x)

    def expect_flat(
        self, function: Callable[..., Any], args: Sequence[Any], names: Attributes
    ) -> Tensor | None:
        """As `expect`, for a call of a function without a derivative."""
        if self.left:
            return None
        known = flat_operation(function, args, names)
        return None if known is None else self.expect(*known)

    def _expects(
        self,
        path: Path,
        k: int,
        op: Operation,
        value: Any,
        operands: Sequence[Any],
        attrs: Attributes,
    ) -> bool:
        if k >= len(path.program.events):
            return False
        event, buffer = path.program.events[k], path.program.values[k]
        return (
            event.op is op
            and len(operands) == len(event.operands)
            and (value is None or _is_alike(value, buffer))
            and _are_taken(event.attrs, attrs)
            and all(self._takes(path, k, q, x, value is None) for q, x in enumerate(operands))
        )

    def _takes(self, path: Path, k: int, q: int, x: Any, to_compute: bool) -> bool:
        source = path.program.events[k].operands[q]
        if source.kind < LIVE:
            return x is (self.arguments if source.kind == ARGUMENT else self.results)[source.value]
        buffer = path.program.live[k][q]
        if (
            source.kind == LIVE
            and type(x) is np.ndarray
            and x.ndim
            and (x.shape, x.strides) == (buffer.shape, buffer.strides)
            and x.dtype is buffer.dtype
        ):
            path.program.copies.take(buffer, x)
            return True
        if isinstance(x, Handle) and not _is_constant(x):
            return False
        value = value_of(x)
        if source.kind == FIXED:
            return type(value) is type(source.value) and bool(value == source.value)
        weak = type(value) in PYTHON_S
        if path.program.events[k].op is POWER and q == 1 and type(value) is not type(source.value):
            return False
        if np.shape(value) != buffer.shape:
            return False
        if isinstance(value, np.ndarray) and type(value) is not np.ndarray:
            return False  # a class of its own, which may be refused
        known = type(source.value)
        if weak and known in PYTHON_S and type(value) is not known:
            kinds = "c" if complex in (type(value), known) else "fc"
            if not self._has_others(path, k, kinds):
                return False  # of no other operand it has its dtype
        changed = weak is not (known in PYTHON_S)
        if changed and (buffer.dtype.char != "d" or not is_same_for_numbers(path.program, k, q)):
            return False
        if not weak and np.asarray(value).dtype != buffer.dtype:
            return False
        by_element = not buffer.ndim or (
            buffer.ndim < 2 and isinstance(path.program.events[k].op, Elementwise)
        )
        if to_compute and not (by_element or _lies_as(value, buffer)):
            elementwise = isinstance(path.program.events[k].op, Elementwise)
            if not (elementwise and _is_alike(value, buffer)):
                return False  # sums in another order
        path.program.copies.take(buffer, value)
        return True

    def _has_others(self, path: Path, k: int, kinds: str) -> bool:
        """Whether an operand that is no number of Python's is of such numbers."""
        pairs = zip(path.program.events[k].operands, path.program.live[k], strict=True)
        return any(
            (source.kind < LIVE or type(source.value) not in PYTHON_S) and x.dtype.kind in kinds
            for source, x in pairs
            if source.kind != FIXED
        )

    def _other(self, k: int, op: Primitive, value: Any, operands: Sequence[Any], attrs: Attributes) -> bool:
        """Go on with another path that begins as this one does, if there is one that expects this event."""
        for path in self.paths:
            if path is self.path or not self._has_begun(path, k):
                continue
            if self._expects(path, k, op, value, operands, attrs):
                self._follow(path, k)
                return True
        return False

    def _has_begun(self, path: Path, k: int) -> bool:
        """Whether the first k events of another path are those of this one, in the same buffers."""
        values = path.program.values
        return len(values) >= k and (k == 0 or values[k - 1] is self.program.values[k - 1])

    # ------------------------------------------------------------ computing

    def compute_to(self, k: int) -> bool:
        """Compute the values of the events before k; False where an error of numbers made the call leave."""
        if self._computed < k and not self.left:
            self._run(k)
            if self._warned:
                self.leave(OF_NUMBERS)
        return not self.left

    def _run(self, k: int) -> None:
        rows = self.program.rows
        before = error_mode.set(self._raising) if rows.calls else None
        try:
            rows.run(self._computed, k)
            self._computed = k
        except FloatingPointError:
            self._warned = True
        finally:
            if before is not None:
                error_mode.reset(before)
        raised, rows.state[layout.ERRORS_MET] = rows.state[layout.ERRORS_MET], 0
        self._warned = self._warned or bool(raised & self._told)

    def like(self, x: Handle) -> Any:
        """Return the buffer of a Tensor's value."""
        if self.left:
            return self.compute(x)
        return self.program.buffer(self._sources[id(x)])

    def compute(self, x: Handle) -> Any:
        """Fill in and return the value of a Tensor."""
        if self.see_value is not None and id(x) not in self._operands:
            self.see_value()
        source = self._sources[id(x)]
        if self.left or (source.kind == RESULT and not self.compute_to(source.value + 1)):
            self.leave(OF_NUMBERS)
            return object.__getattribute__(x, "_v")
        self._lend(source)
        x._v = number_of(self.program.buffer(source))
        (self._shown if id(x) in self._operands else self._filled).append(x)
        return x._v

    def _lend(self, source: Source) -> None:
        """Note how often an array, or the one that it is a view of, is known before somebody sees it."""
        for entry in ([self.program.buffer(source), 0], [self.program.buffer(source).base, 0]):
            if isinstance(entry[0], np.ndarray) and entry[0].ndim and id(entry[0]) not in self._lent:
                entry[1] = getrefcount(entry[0])
                self._lent[id(entry[0])] = entry

    # ------------------------------------------------------------ leaving

    def leave(self, why: str) -> None:
        """Record the events so far: the Tensors given out for them get values and histories.

        What was cut off by an interrupt goes on at the next call.
        """
        if not self.left:
            self.why = why
            self._known = self.position
            self.learner = Learner() if self._learns() else None
            self.recording.tracing = self.learner.tracing if self.learner is not None else 0
            self.end()
            self.left = self._stale = True
            if self._computed < self._known and not self._warned:
                self._run(self._known)
        elif len(self._recorded) >= self._known:
            return
        before, handling = _enabled.get(), error_mode.set(self._handling)
        try:
            _enabled.set(self.recording)
            self._record()
        finally:
            _enabled.set(before)
            error_mode.reset(handling)
        if before is self.mode:
            _enabled.set(True if self.learner is None else self.recording)

    def _record(self) -> None:
        learner, self.learner = self.learner, None
        if not self._recorded:
            assert self._begin is not None
            handles = self._begin()
            for x in self.arguments:
                self._pending = x
                next(handles)
                if learner is not None:
                    learner.add(x)
        self.learner = learner
        for j in range(len(self._recorded), self._known):
            event = self.program.events[j]
            operands = [self._real(j, q, source) for q, source in enumerate(event.operands)]
            if self._warned:
                self._tell_errors(j, operands)
            self._pending = self.results[j]
            self._record_value(j, operands)
            self._recorded.append(self.results[j])

    def _tell_errors(self, j: int, operands: list[Any]) -> None:
        """Compute an event once more, so that NumPy tells of an error of numbers where it was."""
        event, before, given = self.program.event_of_call(j), _enabled.get(), [value_of(x) for x in operands]
        try:
            _enabled.set(True)
            flat = not self.program.active[j]
            known = flat or are_real_numbers(given)
            value = forward_of(event, given) if known else apply_event(event, given)._v
        finally:
            _enabled.set(before)
        if j >= self._computed and self.program.values[j].flags.writeable:  # nobody has seen it
            self.program.values[j][...] = value

    def _record_value(self, j: int, operands: list[Any]) -> None:
        """Record an event with the value that there is."""
        event, value = self.program.event_of_call(j), number_of(self.program.values[j])
        if not self.program.active[j]:
            self._give_value(event, value, operands)
            return
        seen = event.is_view and type(value) is np.ndarray
        if seen:
            value = forward_of(event, [operands[0]._v])
            if not self.program.values[j].flags.writeable:  # as of np.diag
                value.flags.writeable = False
        elif type(value) is np.ndarray and id(value) not in self._lent:
            value = value.copy(order="K")
        out = self._record_natively(event, value, operands)
        if out is None:
            out = record(event.op, value, operands, event.attrs)
        if seen:
            base.join(operands[0], out)

    def _give_value(self, event: Event, value: Any, operands: list[Any]) -> None:
        """Give a Tensor that has no history its value."""
        if type(value) is np.ndarray and id(value) not in self._lent:
            value = value.copy(order="K")
        out = self.wrap(value)
        self.note_plain(event.op, operands, event.attrs, out)

    def _record_natively(self, event: Event, value: Any, operands: list[Any]) -> Tensor | None:
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
        x._v, x._tape, x._at, x._extra = out._v, out._tape, out._at, out._extra
        expected.pop(id(x), None)
        self.note(event.op, operands, event.attrs, x)
        return x

    def _real(self, j: int, q: int, source: Source) -> Any:
        if source.kind == ARGUMENT:
            return self.arguments[source.value]
        if source.kind == RESULT:
            return self._recorded[source.value]
        return operand_value(source, self.program.live[j][q])

    def wrap(self, value: Any, tape: Any = None, at: int | None = None) -> Tensor:
        """Return the Tensor of a result just recorded: the one that was given out for it, or another."""
        x, self._pending = self._pending, None
        if x is None:
            return base.wrap(value, tape, at)
        x._v, x._tape, x._at, x._extra = value, tape, at, None
        expected.pop(id(x), None)
        return x

    def note(self, op: Primitive, operands: Sequence[Any], attrs: Attributes | None, out: Tensor) -> None:
        """Let the learner know of a result just recorded."""
        if self.learner is not None:
            self.learner.note(op, operands, attrs, out)

    def note_flat(
        self, function: Callable[..., Any], args: Sequence[Any], names: Attributes, out: Handle
    ) -> None:
        """Let the learner know of what a function without a derivative has computed."""
        if self.learner is not None:
            self.learner.note_flat(function, args, names, out)

    def note_plain(
        self, op: Operation, operands: Sequence[Any], attrs: Attributes | None, out: Tensor
    ) -> None:
        """Let the learner know of a result without a history."""
        if self.learner is not None:
            self.learner.note_plain(op, operands, attrs, out)

    def end(self) -> None:
        """Expect nothing more of this call."""
        self.state[layout.NEXT_EVENT] = self.path.end
        if compiled_methods.words[layout.MATCHING] == self.at:
            compiled_methods.words[layout.MATCHING] = 0

    def is_complete(self, found: Any) -> bool:
        """Whether a call that has returned this has followed a path to its end."""
        if self.left:
            return False
        if self.state[layout.NEXT_EVENT] == self.path.end and found is self.results[self.path.result]:
            return True
        k = self.position
        for path in self.paths:  # one that ends here
            if (
                len(path.program.events) == k
                and found is self.results[path.result]
                and self._has_begun(path, k)
            ):
                self._follow(path, k)
                return True
        return False

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
            found = what.compute(self._computed, pull, self._told)
            if not found:  # by the rows, which give all values; a plan does not
                self._computed = len(self.program.events)
        except FloatingPointError:
            found, self._warned = False, True
        finally:
            if before is not None:
                error_mode.reset(before)
        return found

    def lent(self, k: int) -> np.ndarray | None:
        """Return the array of an argument, if somebody has seen it."""
        return self.program.arguments[k] if id(self.program.arguments[k]) in self._lent else None

    def let_go(self) -> list[Path]:
        """End the call; the paths that need other arrays, if somebody may have kept one they write to."""
        self._begin, self.learner, self.recording.tracing = None, None, 0
        if not self._lent:
            return []
        lent, self._lent = self._lent, {}
        if not any(getrefcount(lent[k][0]) > lent[k][1] for k in lent):
            return []
        before, self.paths, self._stale = self.paths, [], True
        return before

    def renew(self) -> None:
        """Let the Tensors go that now have histories, and have others in their places."""
        self._recorded, self._filled, self._stale = [], [], True
        self.results[:] = [x if id(x) in expected else self._stand_in() for x in self.results]
        self.arguments[:] = [x if id(x) in expected else self._stand_in() for x in self.arguments]
