"""Calls of which the Python is skipped: what must be seen before, and what is compared at each of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from tapegrad.compilation.paths.lanes import JACOBIAN, PRODUCTS, Lanes, compute, count_threads, size_of_block
from tapegrad.compilation.paths.learning import Learning
from tapegrad.compilation.paths.matching import Matcher
from tapegrad.compilation.paths.path import Path, Product
from tapegrad.compilation.paths.recorded import jacobians
from tapegrad.compilation.plans.planning import agree
from tapegrad.compilation.programs.decisions import Decision
from tapegrad.compilation.replay.arguments import Others
from tapegrad.compilation.replay.comparing import VOUCHED, Check, Entry
from tapegrad.compilation.replay.observing import Observer, Violation
from tapegrad.compilation.replay.state import State
from tapegrad.errors import ReplayError, is_from_signal
from tapegrad.ops import forward
from tapegrad.ops.forward import error_mode
from tapegrad.tensor import Tensor

MOST_IN_VAIN = 16  # calls in a row that are watched, where what the function reads is never the same
MOST_LEARNED = 2  # calls that gave no program
MOST_NAMED = 4  # violations that an error names


def vouched_for(assume: Collection[str]) -> frozenset[str]:
    """Return what somebody vouches for, seen to be among what can be."""
    if type(assume) is tuple and not assume:
        return frozenset()
    offered = ", ".join(map(repr, VOUCHED))
    if isinstance(assume, str) or not isinstance(assume, Iterable):
        meant = f"; write assume=({assume!r},)" if isinstance(assume, str) and assume in VOUCHED else ""
        raise TypeError(f"tg.compile: assume is a sequence of some of {offered}; found {assume!r}{meant}")
    names = tuple(assume)
    for name in names:
        if name not in VOUCHED:
            raise ValueError(f"tg.compile: assume takes some of {offered}; found {name!r}")
    return frozenset(names)


class Replay:
    """What is known of the Python of calls of one kind.

    Their program may run alone if two calls in a row that were watched have followed it, and all that the
    code which ran can read was the same after the first, before the second, and after that: then what it
    does depends on nothing else, and it has no effects. From then on that is compared before each call.

    Attributes
    ----------
    replayed
        How many calls were computed without Python.
    changed
        What has kept the latest call from that.
    refused
        What keeps all calls of the function from that.
    laneless
        Why there is no program of many calls at once.
    """

    def __init__(
        self, f: Any, where: tuple[tuple[int, ...], bool], assume: Collection[str], refused: list[str]
    ) -> None:
        self._f, self._where, self._assume, self.refused = f, where, assume, refused
        self.replayed = self._in_vain = 0
        self.changed = ""
        self.laneless = ""
        self._teams: tuple[Path | None, dict[tuple[int, str], list[Lanes]]] = None, {}
        self._observer: Observer | None = None  # of the call at work
        self._state: State | None = None  # after the latest call that was watched
        self._codes: set[Any] = set()
        self._path: Path | None = None
        self._begun: Path | None = None  # by the call at work
        self._check: Check | None = None
        self._decisions: list[Decision] = []
        self._is_as_before = False  # what the call at work reads
        self._serial = 0

    def may_run(self, matcher: Matcher, others: Others) -> bool:
        """Whether a call may be computed by the path at hand, without Python."""
        return self.takes(others) and self.holds(matcher)

    def takes(self, others: Others) -> bool:
        """Whether a call with these arguments may do what those that were watched have done."""
        return self._state is not None and self._state.arguments.are(others.args, others.kwargs)

    def holds(self, matcher: Matcher) -> bool:
        """Whether all that the function reads besides arguments is as it was."""
        return matcher.serial == self._serial and self._check is not None and self._check.holds()

    def watch(self, matcher: Matcher, run: Callable[[list[Tensor]], Any], others: Others) -> Any:
        """Call the function while it is watched."""
        self._check = self._observer = None
        if self._in_vain >= MOST_IN_VAIN:
            return run(matcher.arguments)
        self._in_vain += 1
        changed = self._changed()
        if changed is not None:
            self._state, self.changed = None, changed.where
        self._is_as_before = self.takes(others)
        observer, self._begun = Observer(), matcher.path
        matcher.observe(observer.see_value)
        try:
            found = observer.watch(run, matcher.arguments)
        finally:
            matcher.see_value = None
            self._refuse(observer.violations)
        self._observer = observer if observer.was_alone else None
        return found

    def _changed(self) -> Entry | None:
        """Something that is not as it was after the latest call that was watched."""
        entries = () if self._state is None else self._state.entries
        return next((entry for entry in entries if not entry.is_same()), None)

    def note(self, matcher: Matcher, others: Others) -> bool:
        """Take the program, if the call that was watched, and followed it, shows that it may run alone."""
        observer, path = self._observer, matcher.path
        if observer is None or self.refused:
            return False
        if observer.looks:
            self._refuse(observer.looks if path is self._begun else ())
            return False
        known = path is self._path and self._codes >= observer.codes.keys() and self._is_as_before
        changed = self._changed()
        if changed is not None or (self._is_as_before and not self.takes(others)):
            where = "an argument" if changed is None else changed.where
            self._refuse([Violation("has an effect: the call has changed this", where)])
        elif self._state is not None and known:
            self._check, self._serial = Check(self._state.entries, self._assume), matcher.serial
            self._decisions = sorted(observer.decisions, key=lambda decision: decision.needed)
            if self._decisions:
                return False  # to a shortcut, which looks at nothing
            self._in_vain = 0
            return True
        else:
            self._state = State(self._f, observer, others, self._assume)
            self._codes, self._path = {*observer.codes}, path
            self._refuse(self._state.violations)
        return False

    def decides(self, matcher: Matcher) -> bool:
        """Whether values that Python would look at are those that it has seen, as far as that goes."""
        if self._decisions:
            with np.errstate(all="ignore"):  # of which Python was told at the calls that were watched
                for decision in self._decisions:
                    if not matcher.decides(decision):
                        self.changed = f"a value, {decision.where}"
                        return False
        return True

    def serve(self) -> None:
        """Count a call that was computed without Python."""
        self.replayed += 1
        self._in_vain = 0

    def see(self, learning: Learning) -> None:
        """Look whether there will be no program."""
        if learning.attempts >= MOST_LEARNED and not learning.matcher.paths and not learning.tasks:
            self._refuse([Violation(f"has no program: {learning.reason}", "a call that was learned from")])

    def _refuse(self, violations: Iterable[Violation]) -> None:
        self.refused += [str(violation) for violation in dict.fromkeys(violations)]

    def in_lanes(
        self, matcher: Matcher, leaves: Sequence[np.ndarray], what: str, threads: int
    ) -> list[np.ndarray] | None:
        """The values and derivatives of calls that the path at hand may compute; None if some met errors."""
        if self._decisions:
            self.laneless = f"each looks at a value, {self._decisions[0].where}"
            return None
        path, n, pull = matcher.path, len(leaves[0]), bool(what)
        if pull and what != JACOBIAN and not path.is_number:
            return None
        if what in PRODUCTS and (not isinstance(path.product, Product) or path.product.looked_at):
            return None
        what = PRODUCTS[0] if what in PRODUCTS else what
        team = self._team(path, n, what, threads)
        if not team:
            return None
        reported, *_ = forward.reported(error_mode.get(), matcher.warns)
        found = compute(team, leaves, pull, reported)
        if found is None:
            return None
        if not all(lanes.compared[pull] for lanes in team):
            if not self._agrees(matcher, leaves, found, what):
                self._teams[1][team[0].n, _form(what)] = []
                return None
            for lanes in team:
                lanes.compared[pull] = True
        self.replayed += n
        path.served += n
        return found

    def _team(self, path: Path, n: int, what: str, threads: int) -> list[Lanes]:
        """What computes n calls in blocks, one for each thread; none where there is no such thing."""
        if self._teams[0] is not path:
            self._teams = path, {}
        size = size_of_block(path, n, what)
        count = count_threads(path, n, what, threads)
        key = size, _form(what)
        try:
            team = self._teams[1].get(key)
            if team is None:
                team = self._teams[1][key] = [Lanes(path, size, what)]
            while 0 < len(team) < count:
                team.append(Lanes(path, size, what))
        except Exception as error:  # of an op that has no form with lanes, or is as no other
            if is_from_signal(error):
                raise
            team, self.laneless = [], f"{type(error).__name__}: {error}"
            self._teams[1][key] = team
        return team[:count]

    def _agrees(
        self, matcher: Matcher, leaves: Sequence[np.ndarray], found: list[np.ndarray], what: str
    ) -> bool:
        """Whether the first and the last of some calls have the results that they have by themselves."""
        pull, path = bool(what) and what != JACOBIAN, matcher.path
        product = path.product if what in PRODUCTS else None
        computation, count = path if product is None else product, len(path.program.arguments)
        for k in (0, -1):
            matcher.restart([x[k] for x in leaves[:count]])
            for buffer, v in zip([] if product is None else product.direction, leaves[count:], strict=True):
                buffer[...] = v[k]
            if not matcher.finish(computation, pull):
                return False
            wanted = [path.value(), *(part() for part in computation.parts if pull)]
            if what == JACOBIAN:
                wanted += jacobians(path.program, path.result)
            if not all(agree(np.asarray(x), np.asarray(y[k])) for x, y in zip(wanted, found, strict=True)):
                self.laneless = "with lanes it gave other results"
                return False
        return True

    def explain(self) -> str:
        """Tell how many calls were computed without Python, and what kept the others from that."""
        changed = f"; run again, as this had changed: {self.changed}" * bool(self.changed)
        laneless = f"; no lanes: {self.laneless}" * bool(self.laneless)
        return f"Python skipped at {self.replayed:,} calls{changed}{laneless}"


def _form(what: str) -> str:
    """What tells what lanes compute: values with gradients, or one of the others."""
    return what if what in (JACOBIAN, *PRODUCTS) else ""


def raise_refused(f: Any, refused: Sequence[str]) -> NoReturn:
    """Say what rules out that the Python of a function is skipped."""
    named = "\n  ".join(refused[:MOST_NAMED])
    more = f"\n  and {len(refused) - MOST_NAMED} more" if len(refused) > MOST_NAMED else ""
    raise ReplayError(
        f"tg.compile(replay=True) cannot skip the Python of {getattr(f, '__name__', f)!s}:\n  {named}{more}\n"
        "Move that out of the function, and pass what changes at each call (random numbers, times) as an "
        "argument that argnums names; or leave out replay=True: then Python runs at each call, and programs "
        "still compute its operations"
    )
