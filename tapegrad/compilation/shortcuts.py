"""Calls that plans compute, in as few steps as there can be."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tapegrad.compilation.replay.arguments import Others
from tapegrad.compilation.wanted import Wanted
from tapegrad.core.compiled_methods import METH_FASTCALL, builtin
from tapegrad.core.grad_mode import _enabled
from tapegrad.core.storage import OPEN
from tapegrad.func.calls import Call
from tapegrad.kernels import machine
from tapegrad.kernels.replay import layout
from tapegrad.ops.forward import error_mode

if TYPE_CHECKING:
    from tapegrad.compilation.pace import Pace
    from tapegrad.compilation.paths.learning import Learning
    from tapegrad.compilation.paths.matching import Matcher
    from tapegrad.compilation.plans.prepared import Prepared
    from tapegrad.compilation.replay.replaying import Replay

Where = tuple[tuple[int, ...], bool]  # positions of arguments, and whether derivatives are given in a tuple


@functools.cache
def _follow() -> Callable[..., Any]:
    """Return ``follow(matching, plan, f, *args)`` of `kernels.replay.matching`."""
    made: Callable[..., Any] = builtin("follow", METH_FASTCALL, machine.load()[0](layout.FOLLOW, 0, 0, 0))
    return made


class Work(Protocol):
    """The call at work, as `kinds` has it."""

    begin: Callable[[], Call] | None

    def completed(self, found: object, given: Sequence[object], wanted: Wanted) -> tuple[Any, Any]:
        """Return what the call gives."""

    def end(self) -> None:
        """End it."""


class Kind(Protocol):
    """What is known of calls of one kind, as `kinds` has it."""

    calls: int
    in_vain: int
    is_large: bool
    matcher: Matcher
    pace: Pace
    learning: Learning
    replay: Replay | None

    @property
    def work(self) -> Work:
        """The call at work."""


class Shortcut:
    """Calls whose arguments are single leaves, which a plan computes: one function, as nothing takes less.

    Parameters
    ----------
    kind
        What is known of these calls.
    f, where
        The function, and what it is differentiated by.
    given, others
        The leaves of such a call, and how many other arguments it has.
    """

    def __init__(self, kind: Kind, f: Any, where: Where, given: Sequence[Any], others: int) -> None:
        self._kind, self._work, self._matcher, self._replay = kind, kind.work, kind.matcher, kind.replay
        self._pace, self._learning, lock = kind.pace, kind.learning, kind.learning.lock
        self._acquire, self._release = lock.acquire, lock.release
        self._f, (places, self._several), self._where = f, where, where
        self._takes = [
            (q, k, type(x), getattr(x, "shape", ()), getattr(x, "strides", ()), getattr(x, "dtype", None))
            for q, (k, x) in enumerate(zip(places, given, strict=True))
        ]
        self._least, self._count = max(places) + 1, len(given) + others
        self._others = [k for k in range(self._count) if k not in places]
        self._alone = 1 if self._count == 1 else None  # how many arguments there are, if no others
        self._follow, self._begin_again = _follow(), self._begin
        self._asked: tuple[Wanted, tuple[Any, ...]] | None = None  # by the call at work

    def compute(self, wanted: Wanted, args: tuple[Any, ...]) -> tuple[Any, Any] | None:
        """Return the value and derivatives; None where more is to be done, or looked at."""
        matcher, replay = self._matcher, self._replay
        path = matcher.ready if replay is None else matcher.path
        if (
            path is None
            or (planning := path.from_first[wanted.pull]) is None
            or (plan := planning.plan) is None
            or wanted.directed
            or plan.rows.calls
            or self._pace.is_taken
            or len(args) < self._least
            or error_mode.get() is not matcher.handling
            or _enabled.get() is not True
            or OPEN
        ):
            return None
        if not self._acquire(False):
            return None
        try:
            if self._learning.tasks:
                return None
            if self._kind.is_large:
                self._learning.begin()
            if replay is None:
                if path is not matcher.ready or path is not matcher.paths[0]:
                    return None
            elif not (len(args) == self._alone or self._is_known(args, replay)) or not replay.holds(matcher):
                return None
            places = path.program.places
            for q, k, kind, shape, strides, dtype in self._takes:
                x = args[k]
                if type(x) is not kind:
                    return None
                if kind is not float and (x.shape != shape or x.strides != strides or x.dtype is not dtype):
                    return None
                places[q][...] = x
            if replay is None:
                called = self._borrowing if plan.borrows else self._called
                found = called(plan, wanted, args)
                if found is not None:
                    return found
            elif plan.run(matcher.reported, True):
                replay.replayed += 1
            else:
                return None
            path.served += 1
            if path.has_others and replay is None:
                self._pace.see()
            planning.in_vain, path.computed_by = 0, plan
            value = path.value()
            if not wanted.pull:
                return value, None
            return value, tuple([part() for part in path.parts]) if self._several else path.parts[0]()
        finally:
            self._release()

    def _is_known(self, args: tuple[Any, ...], replay: Replay) -> bool:
        """Whether all other arguments are as those of calls that were watched."""
        return len(args) == self._count and replay.takes(Others(tuple([args[k] for k in self._others])))

    def _borrowing(self, plan: Prepared, wanted: Wanted, args: tuple[Any, ...]) -> tuple[Any, Any] | None:
        """As `_called`, of a plan that has memory for a call."""
        try:
            plan.begin()
            return self._called(plan, wanted, args)
        finally:
            plan.end()

    def _called(self, plan: Prepared, wanted: Wanted, args: tuple[Any, ...]) -> tuple[Any, Any] | None:
        """Call the function while operations are compared; None if the plan has computed what it does."""
        matcher, work, words, known = self._matcher, self._work, plan.rows.memory, False
        try:
            try:
                self._kind.calls += 1
                self._asked, work.begin = (wanted, args), self._begin_again
                if len(args) == 1:
                    found = self._follow(matcher.words, words, self._f, matcher.arguments[0])
                else:
                    given = list(args)
                    for q, k, *_ in self._takes:
                        given[k] = matcher.arguments[q]
                    found = self._follow(matcher.words, words, self._f, *given)
                    del given
                known = found is words
                if known:
                    return None
                outcome = [found]
                del found  # as nobody else is to have it
                value, parts = work.completed(outcome.pop(), [args[k] for k in self._where[0]], wanted)
                return value, parts and (tuple(parts) if self._several else parts[0])
            except BaseException as error:
                matcher.leave(f"{type(error).__name__} was raised")
                raise
        finally:
            if known:
                self._kind.in_vain, work.begin = 0, None
            else:
                work.end()
            self._asked = None

    def _begin(self) -> Call:
        """The call at work, as it is recorded after all."""
        assert self._asked is not None
        wanted, args = self._asked
        return Call(wanted.what, self._f, self._where, args, {})
