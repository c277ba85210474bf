"""Calls of one kind: what is known of them, and the call at work."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from tapegrad.compilation.events.events import RESULT, Source
from tapegrad.compilation.events.learner import Learner
from tapegrad.compilation.explanation import Calls
from tapegrad.compilation.memory.pages import HUGE
from tapegrad.compilation.pace import Pace
from tapegrad.compilation.paths.learning import Learning
from tapegrad.compilation.paths.matching import Matcher
from tapegrad.compilation.paths.path import UNTRIED, Computation, Path, Product
from tapegrad.compilation.paths.recorded import record_run
from tapegrad.compilation.replay.arguments import NO_OTHERS, Others
from tapegrad.compilation.replay.replaying import Replay
from tapegrad.compilation.shortcuts import Shortcut
from tapegrad.compilation.wanted import Wanted, direction_of
from tapegrad.core.base import Handle, alias_of, is_expected, value_of, wrap
from tapegrad.core.grad_mode import _enabled
from tapegrad.core.storage import DUAL, OPEN, STALE
from tapegrad.func.calls import DOUBLE, LAYOUT, Call
from tapegrad.ops import forward
from tapegrad.tape.tape import resume, set_aside
from tapegrad.tensor import Tensor

MOST_REASONS = 8  # why calls leave their ways, told apart
MOST_IN_VAIN = 16  # calls in a row that leave their paths, after which none is followed any more


class Kind:
    """Calls with arguments of one kind: as many leaves, of the same shapes, dtypes and layouts.

    Attributes
    ----------
    calls
        How many there were.
    left
        How many left their ways, by the reason.
    learning
        What makes the ways.
    work
        The call at work.
    replay
        What lets calls be computed without Python, where that is asked for.
    shortcut
        What computes most calls, if their arguments are leaves.
    alone
        The layout or type of the first argument, if that is the only leaf, and no Tensor; else None.
    pending
        Not empty while paths are being made, and calls are recorded with no more ado.
    is_large
        Whether there is a very large array among the leaves.
    pace
        Whether that saves time, of calls that plans do not compute.
    """

    def __init__(
        self,
        given: Sequence[Any],
        wait: bool,
        at_once: bool = True,
        replay: Replay | None = None,
        places: Sequence[int] = (),
    ) -> None:
        self.work, self.replay = _Work(self, any(isinstance(x, Handle) for x in given)), replay
        self.matcher = Matcher(len(given), self.work.sources, lambda: self.learning.learns)
        self.learning = Learning(self.matcher, wait, at_once, replay is None)
        self.calls = self.in_vain = 0
        self.left: dict[str, int] = {}
        self.shortcut: Callable[[Wanted, tuple[Any, ...]], tuple[Any, Any] | None] | None = None
        self.pace = Pace()
        values = [value_of(x) for x in given]
        self.is_large = any(getattr(x, "nbytes", 0) >= HUGE for x in values)
        self.leaves = [(type(x), getattr(x, "shape", ()), getattr(x, "dtype", DOUBLE)) for x in values]
        self._flat = [
            (k, type(x), type(value), LAYOUT(value) if isinstance(value, np.ndarray) else None)
            for k, x, value in zip(places, given, values, strict=False)
        ]
        self.alone: Any = None
        if tuple(places) == (0,) and not self.work.of_tensors:
            self.alone = self._flat[0][3] or self._flat[0][1]
        self._least = max(places, default=sys.maxsize - 1) + 1  # arguments; never as many without `_flat`
        self.pending: Collection[object] = self.learning.tasks if replay is None else ()

    def takes(self, args: Sequence[Any]) -> bool:
        """Whether these are such arguments, and each that is differentiated by is a leaf."""
        if len(args) < self._least:
            return False
        for k, kind, inner, layout in self._flat:
            x = args[k]
            if type(x) is not kind:
                return False
            if inner is not kind:  # a Tensor
                if is_expected(x) or x._tape is STALE or x._tape is DUAL or type(x._v) is not inner:
                    return False
                x = x._v
            if layout is not None and LAYOUT(x) != layout:
                return False
        return True

    def is_ready(self) -> bool:
        """Whether a call may follow a path."""
        return bool(self.matcher.paths) and is_ordinary()

    def is_recorded(self) -> bool:
        """Whether calls are recorded with no more ado, as there will be no paths."""
        return self.replay is None and not (self.matcher.paths or self.learning.learns)

    def serves(self, wanted: Wanted) -> bool:
        """Whether a call that asks for this may follow a path, or be learned from."""
        if not wanted.directed:
            return True
        path = next(iter(self.matcher.paths), None)  # at once, as another thread may let go of them
        if self.work.of_tensors or path is None:
            return not self.work.of_tensors
        if path.product is UNTRIED:
            if self.learning.is_emptied:
                return True  # it is made in the call
            self.learning.alone(self.learning.product_of, path, True)
        return isinstance(path.product, Product)

    def in_lanes(
        self, leaves: Sequence[np.ndarray], others: Others, what: str, threads: int
    ) -> list[np.ndarray] | None:
        """Compute calls at once, if Python may be skipped; None where it may not, or some meet errors."""
        replay, lock = self.replay, self.learning.lock
        if replay is None or not self.is_ready() or not lock.acquire(blocking=False):
            return None
        try:
            if self.learning.tasks or not replay.may_run(self.matcher, others):
                return None
            found = replay.in_lanes(self.matcher, leaves, what, threads)
            self.calls += len(leaves[0]) if found is not None else 0
            return found
        finally:
            lock.release()

    def make_shortcut(self, call: Call) -> None:
        """Compute calls like this one, which a path has served, by a shortcut, if they allow for that."""
        others, kwargs, trees = call.others()
        if not kwargs and call.is_flat and all(type(x) in (float, np.ndarray) for x in trees):
            self.shortcut = Shortcut(self, call.f, call.where, trees, len(others)).compute

    def count_in_vain(self, what: str) -> None:
        """Count a call that a program was in vain for, and give up when there are many in a row."""
        self.in_vain += 1
        if self.in_vain == MOST_IN_VAIN:
            self.learning.give_up(f"{MOST_IN_VAIN} calls in a row {what}")

    def is_timed(self) -> bool:
        """Whether times are to be taken, as all is there that makes calls quicker."""
        return self.pace.is_taken and not any(path.is_pending for path in self.matcher.paths)

    def is_let_go(self) -> bool:
        """Know no paths any more, and learn none, unless a call is at work, or the thread.

        A call of another thread that has found this kind before is recorded.
        """
        learning = self.learning
        if not learning.lock.acquire(blocking=False):
            return False
        try:
            learning.tasks.clear()
            learning.end()
        finally:
            learning.lock.release()
        return True

    def learn(self, learner: Learner) -> None:
        """Learn from a call, while nothing else is at work."""
        if not self.learning.gone:
            self.learning.learn(learner)

    def note_leaving(self, why: str) -> None:
        """Count a call that has left its way."""
        known = why in self.left or len(self.left) < MOST_REASONS
        why = why if known else "other reasons"
        self.left[why] = self.left.get(why, 0) + 1

    def explain(self) -> Calls:
        """Tell what is known of these calls."""
        leaves = _in_words((dtype, shape) for _, shape, dtype in self.leaves)
        learning = self.learning
        learning.alone(self.matcher.describe)
        ways = tuple(path.explain() for path in self.matcher.paths)
        replayed = "" if self.replay is None else self.replay.explain()
        return Calls(
            leaves, self.calls, ways, dict(self.left), learning.reason, bool(learning.tasks), replayed
        )


def called_once(signature: Sequence[Any]) -> Calls:
    """Tell of calls of a signature (see `func.calls.Call`) of which one has come."""
    leaves = [
        (x[1], x[0]) if isinstance(x, tuple) else (np.dtype(x), ())
        for x in signature
        if isinstance(x, (tuple, type)) and x is not Handle
    ]
    return Calls(_in_words(leaves), 1, (), {}, "", False)


def _in_words(leaves: Iterable[tuple[np.dtype, tuple[int, ...]]]) -> str:
    """Dtypes and shapes of leaves."""
    return ", ".join(f"{dtype} {shape}" if shape else str(dtype) for dtype, shape in leaves)


def is_ordinary() -> bool:
    """Whether operations are recorded as usual here, and NumPy raises no errors of numbers."""
    return _enabled.get() is True and not OPEN and not forward.reported(forward.error_mode.get())[2]


def finished(call: Call, wanted: Wanted) -> tuple[Any, Any]:
    """What a call gives whose operations are recorded."""
    found = call.outputs(False)[0]
    parts = wanted.recorded(call, found)
    return call.given_back(found, call.outside), parts


def _given(call: Call, found: Any, wanted: Wanted) -> tuple[Any, Any]:
    """The value, and what else is wanted, of a call whose operations are recorded."""
    parts = wanted.recorded(call, found)
    return call.given_back(found, call.outside), parts


def learned(call: Call, wanted: Wanted, learner: Learner) -> tuple[Any, Any]:
    """As `finished`, while somebody learns from it."""
    handles = list(call.sources())
    for x, given in zip(handles, call.given, strict=True):
        learner.add(x, not isinstance(given, Handle))
    mode, before = learner.mode(), _enabled.get()
    try:
        try:
            _enabled.set(mode)
            found, _ = call.apply(handles, False)
        finally:
            _enabled.set(before)
    finally:
        _enabled.set(before)  # an interrupt may have come as the other was about to be called
        mode.separate()
    learner.end(found)
    call.look_outside(found)
    return _given(call, found, wanted)


def matched(
    kind: Kind,
    given: Sequence[Any],
    wanted: Wanted,
    run: Callable[[list[Tensor]], Any],
    begin: Callable[[], Call],
    others: Others,
    direction: Sequence[Any] = (),
) -> tuple[Any, Any]:
    """Call a function while a program computes; the value, and derivatives by each leaf of the arguments.

    `run` calls it on Tensors for these leaves, `begin` gives the call where it is to be recorded after all,
    `others` are its other arguments, `direction` is known to be one for these leaves.
    """

    def record() -> tuple[Any, Any]:
        return begin().recorded(finished, wanted)

    learning = kind.learning
    lock = learning.lock
    if lock.acquire(False):
        try:
            if kind.matcher.paths and not (learning.tasks or kind.matcher.paths[0].is_awaited):
                work = kind.work
                if kind.is_large:
                    learning.begin()
                if kind.replay is not None and kind.replay.may_run(kind.matcher, others):
                    found = work.replayed(given, wanted, begin, direction)
                    if found is not None:
                        return found
                follow = functools.partial(work.result, given, wanted, run, begin, others, direction)
                if kind.replay is not None or not kind.is_timed():
                    return follow()
                found = kind.pace.take(wanted, record, follow)
                if kind.pace.is_lost():
                    learning.give_up("calls that followed a program took longer than recorded ones")
                return found
        finally:
            lock.release()
    return record()


class _Work:
    """A call at work."""

    def __init__(self, kind: Kind, of_tensors: bool) -> None:
        self.kind, self.of_tensors = kind, of_tensors
        self.begin: Callable[[], Call] | None = None
        self.call: Call | None = None  # where it is recorded after all
        self.aside: list[Any] = []  # the tape that was open then, if it was set aside

    def sources(self) -> Any:
        """Tensors of the arguments, as the call is recorded after all."""
        assert self.begin is not None
        self.call = call = self.begin()
        call.see_outside()
        if not call.outside:
            self.aside.append(set_aside())
        for k, x in enumerate(call.given):
            lent = self.kind.matcher.lent(k)
            if lent is not None:  # with the history that a Tensor has
                call.given[k] = alias_of(x) if isinstance(x, Handle) else wrap(lent)
                call.given[k]._v = lent
        return call.sources()

    def result(
        self,
        given: Sequence[Any],
        wanted: Wanted,
        run: Callable[[list[Tensor]], Any],
        begin: Callable[[], Call],
        others: Others,
        direction: Sequence[Any],
    ) -> tuple[Any, Any]:
        """What the call gives."""
        matcher, self.begin = self.kind.matcher, begin
        try:
            matcher.start(given)
            try:
                return self.completed(self._called(run, others), given, wanted, others, direction)
            except BaseException as error:
                matcher.leave(f"{type(error).__name__} was raised")
                raise
        finally:
            self.end()

    def end(self) -> None:
        """End the call."""
        matcher = self.kind.matcher
        matcher.end()
        if matcher.left:
            matcher.renew()
            self.kind.note_leaving(matcher.why)
        for path in matcher.paths:
            path.program.copies.release()
        kept = matcher.let_go()
        if kept:
            self.kind.learning.renew(kept)
        if kept or matcher.left:
            self.kind.count_in_vain("did what a program cannot do, or kept arrays")
        elif self.kind.replay is None and matcher.is_by_python():
            self.kind.count_in_vain("had Python compute most operations, as it looked at their values")
        else:
            self.kind.in_vain = 0
            self.kind.pace.see()
        matcher.by_python.clear()
        self.begin = self.call = None
        try:
            if self.aside:
                resume(self.aside.pop())
        finally:
            self.kind.learning.catch_up()

    def completed(
        self,
        found: Any,
        given: Sequence[Any],
        wanted: Wanted,
        others: Others = NO_OTHERS,
        direction: Sequence[Any] = (),
    ) -> tuple[Any, Any]:
        """What a call gives whose function has returned this."""
        matcher, why = self.kind.matcher, "it returned something else, or ended elsewhere"
        if found is None:
            assert self.begin is not None
            self.begin().check_returned(found)
        if matcher.is_complete(found):
            del found
            path = matcher.path
            what = self._product(path, direction) if wanted.directed else path
            pull = self._pulls(path, wanted)
            why = "a Tensor of it was kept, or an operation met an error of numbers"
            reads = wanted.directed or wanted.pull or self.of_tensors
            if reads and path.program.copies.are_written():
                what, why = None, "an array was written to that a derivative reads"
            if what is not None and matcher.finish(what, pull):
                matcher.prefer()
                if self.kind.replay is None or self.kind.replay.note(matcher, others):
                    self._shorten(wanted)
                return self._computed(what, pull, wanted, given)
            found = path.comparison.handle(Source(RESULT, path.result))
        matcher.leave(why)
        call = self.call
        assert call is not None
        if matcher.learner is not None:
            matcher.learner.end(found)
            self.kind.learning.learn(matcher.learner)
        call.look_outside(found)
        return _given(call, found, wanted)

    def _shorten(self, wanted: Wanted) -> None:
        """Let calls like this one be computed in fewer steps, if they are not already."""
        assert self.begin is not None
        if self.kind.shortcut is None and not (self.of_tensors or wanted.directed):
            self.kind.make_shortcut(self.begin())

    def replayed(
        self, given: Sequence[Any], wanted: Wanted, begin: Callable[[], Call], direction: Sequence[Any]
    ) -> tuple[Any, Any] | None:
        """What a call gives that does what the latest one did; None where that is to be looked at again."""
        matcher, replay = self.kind.matcher, self.kind.replay
        assert replay is not None
        matcher.restart(given)
        path = matcher.path
        what: Computation | None = path
        pull = self._pulls(path, wanted)
        try:
            if not replay.decides(matcher):
                return None
            if wanted.directed:
                self.begin = begin
                what = self._product(path, direction)
                self.begin = None
            if what is None or not matcher.finish(what, pull):
                return None
        except np.linalg.LinAlgError:  # which is to come where the function may catch it
            return None
        replay.serve()
        return self._computed(what, pull, wanted, given)

    def _pulls(self, path: Path, wanted: Wanted) -> bool:
        return wanted.pull or (self.of_tensors and path.is_number)

    def _computed(
        self, what: Computation, pull: bool, wanted: Wanted, given: Sequence[Any]
    ) -> tuple[Any, Any]:
        """The value and the derivatives that are computed."""
        path = self.kind.matcher.path
        path.served += 1
        value = path.value()
        parts = [part() for part in what.parts] if pull else None
        if self.of_tensors:
            return record_run(path.program, path.result, value, parts, given, wanted.pull)
        return value, parts

    def _product(self, path: Path, direction: Sequence[Any]) -> Product | None:
        """What computes the Hessian times the direction of the call, which is in its buffers."""
        assert self.begin is not None
        if path.product is UNTRIED and not self.kind.matcher.compute_to(len(path.program.events)):
            return None
        product = self.kind.learning.product_of(path, False)
        if product is not None:
            for buffer, v in zip(product.direction, direction or direction_of(self.begin()), strict=True):
                buffer[...] = v
        return product

    def _called(self, run: Callable[[list[Tensor]], Any], others: Others) -> Any:
        matcher = self.kind.matcher
        try:
            try:
                _enabled.set(matcher.mode)
                replay = self.kind.replay
                if replay is None:
                    return run(matcher.arguments)
                self.kind.shortcut = None
                return replay.watch(matcher, run, others)
            finally:
                _enabled.set(True)
        except BaseException:
            _enabled.set(True)  # an interrupt may have come as the other was about to be called
            raise
