"""A path at work: Tensors that stand for values, the words that it is followed by, what it computes."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from sys import getrefcount, getsizeof
from typing import Any

import numpy as np

from tapegrad.compilation.events.events import ARGUMENT, RESULT, Source, is_active, is_number_view
from tapegrad.compilation.events.learner import Learner
from tapegrad.compilation.events.passive import COMPARED
from tapegrad.compilation.paths.path import EVENT_BYTES, Path
from tapegrad.compilation.programs.decisions import Decision
from tapegrad.compilation.rows.computing import number_of
from tapegrad.core import compiled_methods
from tapegrad.core.base import Handle, call_on_values, itself, value_of
from tapegrad.core.expected import Expected, expected
from tapegrad.core.grad_mode import Mode, _enabled
from tapegrad.kernels import abi, programs
from tapegrad.kernels.replay import layout
from tapegrad.kernels.replay.layout import NEXT_EVENT
from tapegrad.ops.forward import error_mode
from tapegrad.tensor import Tensor

APART = -(-getsizeof(Tensor()) // 16) * 16  # bytes from a Tensor to one that was made right behind it
OF_NUMBERS = "an operation met an error of numbers, of which NumPy tells"


class Follower:
    """The paths of calls of one signature, and the one that is followed.

    Parameters
    ----------
    count
        How many leaves the arguments have.
    sources
        Gives Tensors of them where the call leaves the paths.
    learns
        Whether such a call is learned from.

    Attributes
    ----------
    paths
        The ways through the function that are known, the latest first.
    arguments, results
        Tensors without values that stand for leaves of the arguments and for results of events.
    ready
        The path that the words say to follow, if nobody is to see values.
    telling
        Python's filters of warnings at the beginning of the call at work, and what shows warnings.
    handling, reported
        NumPy's handling of errors of floating-point numbers, and which of them it, or an operation, tells of.
    warns
        Whether some operation warns of invalid values in words of its own, whatever that handling is.
    learner
        What sees the operations once the call has left the paths, if it is learned from.
    why
        Why the latest call that has left the paths did so.
    serial
        How often buffers may have taken other numbers and arrays that calls bring.
    by_python
        The operations of the call at work that Python has computed, by number.
    see_value
        Who is to know what a function tells of values that are looked at.
    """

    def __init__(
        self, count: int, sources: Callable[[], Iterator[Tensor]], learns: Callable[[], bool]
    ) -> None:
        self._count, self._begin, self._learns = count, sources, learns
        self.paths: list[Path] = []
        self.arguments: list[Tensor] = []
        self.results: list[Tensor] = []
        self.left, self.why, self.serial = False, "", 0
        self.ready: Path | None = None
        self._stale = True
        me: Any = self  # a Matcher
        self._mark = Expected(me)

    def _prepare(self) -> None:
        """Make what calls need that follow a path, before there is one."""
        self.by_python: set[int] = set()
        self.see_value: Callable[[Callable[..., Any], Sequence[Any], Any], None] | None = None
        self.learner: Learner | None = None
        expected.add(self._mark)
        self._modes = Mode.pair_of(self._mark.matcher)
        self._modes_left = Mode.pair_of(self._mark.matcher)  # those of a call that has left
        self.mode, self.recording = self._modes[True], self._modes_left[True]
        state = np.zeros(layout.MATCHING_WORDS, np.int64)
        self.telling: list[Any] = [None, None]
        state[layout.MATCHING_OFF], state[layout.MATCHING_MODE] = map(id, self._modes)
        state[layout.TELLING] = id(self.telling)
        state[layout.WEAKLY_HELD_AT] = Tensor.__weakrefoffset__
        self._asked = self.compute_quietly, self.is_handled  # by compiled code
        state[layout.COMPUTING], state[layout.HANDLED] = map(id, self._asked)
        state[layout.COMPARISONS :] = COMPARED
        self.words, self.at, self.state = state, abi.address(state), state.data
        self.handling: Any = None
        self._raising: Any = None
        self._changes: list[tuple[int, Any]] = []  # of the handling in the call at work, by events
        self.reported, self.warns = 0, False
        self._missed: set[int] = set()  # events that the call at work has not had, if it says so
        self._ids, self._numbers = array("q"), array("q")  # of Tensors APART from none before, and which
        self._known = 0  # of the events recorded again
        self._apart = False  # whether each event has a Tensor of its own
        self._arrays: set[Source] = set()  # whose Tensors are known as arrays
        self._filled: list[Handle] = []
        self._shown: list[Handle] = []  # to the op at work, whose `_operands` may be looked at
        self._operands: set[int] = set()
        self._lent: dict[int, list[Any]] = {}  # arrays that have been looked at, how often they were known
        self._recorded: list[Tensor] = []
        self._pending: Tensor | None = None
        self._is_array = False  # whether what is recorded is known as an array
        self.arguments = [self._stand_in() for _ in range(self._count)]

    def _stand_in(self) -> Tensor:
        x = Tensor()
        x._at = self._mark
        return x

    def is_mine(self, x: Any) -> bool:
        """Whether this is a Tensor that stands for an argument or a result."""
        return isinstance(x, Handle) and x._at is self._mark

    def prefer(self) -> None:
        """Try the path at hand first at the next call."""
        if self.paths[0] is not self.path:
            self.paths.remove(self.path)
            self.paths.insert(0, self.path)

    def add(self, path: Path, first: bool = True) -> None:
        """Take in a path that has been made."""
        self.serial += 1
        if not self.arguments:
            self._prepare()
        if not self.paths:  # an interrupt may end a call that has followed none yet
            self.path, self.program = path, path.program
        self.paths.insert(0 if first else len(self.paths), path)
        self._outdate()

    def forget(self) -> None:
        """Expect nothing at any time."""
        for x in chain(self.arguments, self.results):
            if self.is_mine(x):
                x._at = None
        expected.discard(self._mark)
        self.clear()

    def clear(self) -> None:
        """Know no paths any more."""
        self.paths.clear()
        self._outdate()

    def _outdate(self) -> None:
        """Let the words be written anew before the next call."""
        self._stale, self.ready = True, None

    def describe(self) -> None:
        """Write the words of paths that have changed."""
        if not self._stale or not self.paths:
            return
        if self._apart:
            for path in self.paths:
                path.program.keep_apart()
        count = max(path.program.stand_ins.count for path in self.paths)
        self.results += [self._stand_in() for _ in range(count - len(self.results))]
        for path in self.paths:
            path.describe(self.arguments, self.results)
        ids = np.fromiter(map(id, chain(self.arguments, self.results)), np.int64)
        begins = np.flatnonzero(np.diff(ids, prepend=0) != APART)
        begins = begins[np.argsort(ids[begins])]
        self._ids, self._numbers = array("q", ids[begins].tobytes()), array("q", begins.tobytes())
        self.warns = any(path.program.warns for path in self.paths)
        self.handling = None  # as what is reported depends on that
        self.state[layout.RUN_FUNCTION] = programs.address()
        self._stale = False

    def _follow(self, path: Path, k: int) -> None:
        self.path, self.program, state = path, path.program, self.state
        state[NEXT_EVENT], state[layout.FIRST_EVENT] = path.begin + EVENT_BYTES * k, path.begin
        if self.see_value is not None:  # compiled code finds no numbers, not those computed already either
            state[layout.FIRST_EVENT] = path.end
        state[layout.RUN_WORDS_AT] = path.program.rows.at if self.see_value is None else 0
        self._raise_in_calls()
        state[layout.ARGUMENT_COUNT] = len(self.arguments) if self.see_value is None else 0
        values, arguments = path.program.values, path.program.arguments
        state[layout.VALUES_LIST] = id(values) if isinstance(values, list) else 0
        state[layout.ARGUMENTS_LIST] = id(arguments)
        result = path.comparison.handle(Source(RESULT, path.result))
        state[layout.LAST_EVENT], state[layout.RESULT_HANDLE] = path.end, id(result)
        self.ready = path if self.see_value is None else None

    def _raise_in_calls(self) -> None:
        """Let compiled code run rows that call functions where these raise errors of numbers."""
        self.state[layout.RAISING] = id(self._raising) if self.program.rows.calls else 0

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

    def _source(self, x: Handle) -> Source:
        """What a Tensor stands for here: the result that was last written to it."""
        p = bisect_right(self._ids, id(x)) - 1
        k = self._numbers[p] + (id(x) - self._ids[p]) // APART - len(self.arguments)
        if k < 0:
            return Source(ARGUMENT, k + len(self.arguments))
        came = self._known if self.left else self.position
        return Source(RESULT, self.program.stand_ins.latest(k, came))

    def tensor(self, k: int) -> Tensor:
        """Return the Tensor that stands for the result of an event, when it has come."""
        return self.results[self.program.stand_ins.numbers[k]]

    def _made_by(self, x: Handle) -> Source:
        """What a Tensor stands for before any write to it."""
        source = self._source(x)
        return source._replace(value=self.program.owners[source.value]) if source.kind == RESULT else source

    def note_array(self, x: Handle) -> None:
        """Know a Tensor of a number as an array."""
        self._arrays.add(self._made_by(x))

    def is_array(self, x: Handle) -> bool:
        """Whether a Tensor of a number is known as an array."""
        return self._made_by(x) in self._arrays

    def is_followed(self) -> bool:
        """Whether operations are compared in the mode in force."""
        return not self.left and _enabled.get() in self._modes

    def counts(self, k: int, count: int = 1, path: Path | None = None) -> bool:
        """Whether so many events from one on count in the mode in force, which is one of ours."""
        known = layout.EITHER, layout.RECORDED_ON if _enabled.get() else layout.RECORDED_OFF
        return all(recorded in known for recorded in (path or self.path).program.recorded[k : k + count])

    def sees_history(self, x: Handle) -> bool:
        """Whether a Tensor is, or is a view of, what depends on the arguments."""
        source, events = self._source(x), self.program.events
        while not is_active(source, self.program.active):
            if source.kind != RESULT or not events.is_view(source.value):
                return False
            source = events.source(source.value, 0)
        return True

    def is_active(self, x: Handle) -> bool:
        """Whether a Tensor that stands for an argument or a result depends on the arguments."""
        return is_active(self._source(x), self.program.active)

    def compute_to(self, k: int) -> bool:
        """Compute the values of the events before k; False where an error of numbers made the call leave."""
        if self._computed < k and not self.left:
            self._run(k)
            if self._warned:
                self.leave(OF_NUMBERS)
        return not self.left

    def compute_quietly(self, k: int) -> bool:
        """As `compute_to`, where an op may raise an error; see `matching.Matcher`."""
        raise NotImplementedError

    def is_handled(self) -> bool:
        """Whether operations are compared under the handling of errors here; see `matching.Matcher`."""
        raise NotImplementedError

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
        self._warned = self._warned or bool(raised & self.reported)

    def like(self, x: Handle) -> Any:
        """Return the buffer of a Tensor's value."""
        if self.left:
            return self.compute(x)
        return self.program.buffer(self._source(x))

    def is_number_view(self, x: Handle) -> bool:
        """Whether a Tensor without axes is computed as a view."""
        source = self._source(x)
        if self.left or source.kind != RESULT:
            return False
        event = self.program.events[source.value]
        known = event.operands[0].kind in (ARGUMENT, RESULT)
        return known and is_number_view(event, self.program.buffer(event.operands[0]))

    def compute(self, x: Handle) -> Any:
        """Fill in and return the value of a Tensor."""
        self.state[layout.SEEN] = 1
        source = self._source(x)
        if self.left or (source.kind == RESULT and not self.compute_to(source.value + 1)):
            self.leave(OF_NUMBERS)
            return object.__getattribute__(x, "_v")
        self._lend(source)
        x._v = number_of(self.program.buffer(source))
        (self._shown if id(x) in self._operands else self._filled).append(x)
        if self.see_value is not None and id(x) not in self._operands:
            self.see_value(itself, (source,), x._v)
        return x._v

    def decide(self, function: Callable[..., Any], operands: Sequence[Any], seen: list[Any] | None) -> Any:
        """Return what a function tells of values, which are not looked at otherwise."""
        before = self._operands
        self._operands = before | {id(x) for x in operands}
        sources = [self._source(x) if self.is_mine(x) else value_of(x) for x in operands]
        for source in sources:
            if type(source) is Source and not self.left and self.path.know_array(source):
                lent = self._lent.get(id(self.program.buffer(source)))
                if lent is not None:
                    lent[1] += 1
        try:
            found = call_on_values(function, operands, seen)
        finally:
            self._operands = before
            self._hide()
        if self.see_value is not None and not self.left:
            self.see_value(function, sources, found)
        return found

    def _hide(self) -> None:
        """Let nobody see the values that were shown to an operation."""
        while self._shown:
            x = self._shown.pop()
            if self.is_mine(x):
                del x._v

    def decides(self, decision: Decision) -> bool:
        """Whether values of the call at hand, computed up to there, tell what they have told before."""
        if self._computed < decision.needed:
            self._run(decision.needed)
        return not self._warned and decision.is_same(self.program)

    def _lend(self, source: Source) -> None:
        """Note how often an array, or the one that it is a view of, is known before somebody sees it."""
        for entry in ([self.program.buffer(source), 0], [self.program.buffer(source).base, 0]):
            if isinstance(entry[0], np.ndarray) and entry[0].ndim and id(entry[0]) not in self._lent:
                entry[1] = getrefcount(entry[0])
                self._lent[id(entry[0])] = entry

    def lent(self, k: int) -> np.ndarray | None:
        """Return the array of an argument, if somebody has seen it."""
        return self.program.arguments[k] if id(self.program.arguments[k]) in self._lent else None

    def is_by_python(self) -> bool:
        """Whether Python has computed most operations of the call, but for those that are to be at once."""
        return 2 * len(self.by_python - self.program.at_once) > len(self.program.events)

    def end(self) -> None:
        """Expect nothing more of this call."""
        self.state[layout.NEXT_EVENT] = self.path.end
        if compiled_methods.words[layout.MATCHING] == self.at:
            compiled_methods.words[layout.MATCHING] = 0

    def let_go(self) -> list[Path]:
        """End the call; the paths that need other arrays, if somebody may have kept one they write to."""
        self.learner, self.recording.tracing, self.mode.tracing = None, 0, 0
        self._arrays.clear()
        if not self._lent:
            return []
        lent, self._lent = self._lent, {}
        if not any(getrefcount(lent[k][0]) > lent[k][1] for k in lent):
            return []
        before, self.paths = self.paths, []
        self._outdate()
        return before

    def renew(self) -> None:
        """Let the Tensors go that now have histories, and have others in their places."""
        self._recorded, self._filled = [], []
        self._outdate()
        self.results[:] = [x if self.is_mine(x) else self._stand_in() for x in self.results]
        self.arguments[:] = [x if self.is_mine(x) else self._stand_in() for x in self.arguments]

    def leave(self, why: str) -> None:
        """Record the events so far; see `leaving.Leaver`."""
        raise NotImplementedError
