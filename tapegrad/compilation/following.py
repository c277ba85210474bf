"""A path at work: Tensors that stand for values, the words that it is followed by, what it computes."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from sys import getrefcount
from typing import Any, cast

import numpy as np

from tapegrad.compilation.computing import number_of
from tapegrad.compilation.events import ARGUMENT, RESULT, Source, is_active, is_number_view
from tapegrad.compilation.learner import Learner
from tapegrad.compilation.passive import COMPARED
from tapegrad.compilation.paths import EVENT_BYTES, Path
from tapegrad.core import compiled_methods
from tapegrad.core.base import Handle
from tapegrad.core.expected import expected
from tapegrad.core.grad_mode import Mode
from tapegrad.kernels import abi, programs
from tapegrad.kernels.replay import layout
from tapegrad.kernels.replay.layout import NEXT_EVENT
from tapegrad.ops.forward import error_mode
from tapegrad.tensor import Tensor

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
        Who is to know that a value is looked at.
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

    def _prepare(self) -> None:
        """Make what calls need that follow a path, before there is one."""
        self.by_python: set[int] = set()
        self.see_value: Callable[[], None] | None = None
        self.learner: Learner | None = None
        me: Any = self  # a Matcher
        self.mode = Mode(True)
        self.mode.plain, self.mode.matcher = True, me
        self.recording = Mode(True)  # that of a call that has left
        self.recording.plain, self.recording.matcher = True, me
        state = np.zeros(layout.MATCHING_WORDS, np.int64)
        self.telling: list[Any] = [None, None]
        state[layout.MATCHING_MODE], state[layout.TELLING] = id(self.mode), id(self.telling)
        state[layout.COMPARISONS :] = COMPARED
        self.words, self.at, self.state = state, abi.address(state), state.data
        self.handling: Any = None
        self._raising: Any = None
        self._changes: list[tuple[int, Any]] = []  # of the handling in the call at work, by events
        self.reported, self.warns = 0, False
        self._ids, self._numbers = array("q"), array("q")  # of Tensors, in order, and which these are
        self._known = 0  # of the events recorded again
        self.arrays: set[int] = set()
        self._filled: list[Handle] = []
        self._shown: list[Handle] = []  # to the op at work, whose `_operands` may be looked at
        self._operands: set[int] = set()
        self._function: Any = None  # of NumPy's, at work
        self._lent: dict[int, list[Any]] = {}  # arrays that have been looked at, how often they were known
        self._recorded: list[Tensor] = []
        self._pending: Tensor | None = None
        self.arguments = [self._stand_in() for _ in range(self._count)]

    def _stand_in(self) -> Tensor:
        x, me = Tensor(), cast(Any, self)
        expected[id(x)] = me
        return x

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
        for x in (*self.arguments, *self.results):
            expected.pop(id(x), None)
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
        count = max(len(path.program.events) for path in self.paths)
        self.results += [self._stand_in() for _ in range(count - len(self.results))]
        for path in self.paths:
            path.describe(self.arguments, self.results)
        ids = np.fromiter(map(id, (*self.arguments, *self.results)), np.int64)
        order = np.argsort(ids)
        self._ids, self._numbers = array("q", ids[order].tobytes()), array("q", order.tobytes())
        self.warns = any(path.program.warns for path in self.paths)
        self.handling = None  # as what is reported depends on that
        self.state[layout.RUN_FUNCTION] = programs.address()
        self._stale = False

    def _follow(self, path: Path, k: int) -> None:
        self.path, self.program, state = path, path.program, self.state
        state[NEXT_EVENT], state[layout.FIRST_EVENT] = path.begin + EVENT_BYTES * k, path.begin
        by_python = path.program.rows.calls or self.see_value is not None
        state[layout.RUN_WORDS_AT] = 0 if by_python else path.program.rows.at
        state[layout.ARGUMENT_COUNT] = len(self.arguments) if self.see_value is None else 0
        result = path.comparison.handle(Source(RESULT, path.result))
        state[layout.LAST_EVENT], state[layout.RESULT_HANDLE] = path.end, id(result)
        self.ready = path if self.see_value is None else None

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
        k = self._numbers[bisect_left(self._ids, id(x))] - len(self.arguments)
        source = Source(RESULT, k) if k >= 0 else Source(ARGUMENT, k + len(self.arguments))
        writes = self.program.writes
        if not writes or source.kind == ARGUMENT or source.value not in writes:
            return source
        numbers = writes[source.value]
        came = bisect_left(numbers, self.position)
        return Source(RESULT, numbers[came - 1]) if came else source

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
        if self.see_value is not None and id(x) not in self._operands:
            self.see_value()
        source = self._source(x)
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

    def lent(self, k: int) -> np.ndarray | None:
        """Return the array of an argument, if somebody has seen it."""
        return self.program.arguments[k] if id(self.program.arguments[k]) in self._lent else None

    def end(self) -> None:
        """Expect nothing more of this call."""
        self.state[layout.NEXT_EVENT] = self.path.end
        if compiled_methods.words[layout.MATCHING] == self.at:
            compiled_methods.words[layout.MATCHING] = 0

    def let_go(self) -> list[Path]:
        """End the call; the paths that need other arrays, if somebody may have kept one they write to."""
        self.learner, self.recording.tracing = None, 0
        self.arrays.clear()
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
        self.results[:] = [x if id(x) in expected else self._stand_in() for x in self.results]
        self.arguments[:] = [x if id(x) in expected else self._stand_in() for x in self.arguments]

    def leave(self, why: str) -> None:
        """Record the events so far; see `leaving.Leaver`."""
        raise NotImplementedError
