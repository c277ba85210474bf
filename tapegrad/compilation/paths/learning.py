"""How ways through a function are made of what its calls do: by a thread, while calls are recorded."""

from __future__ import annotations

import functools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.compilation import background
from tapegrad.compilation.events.equality import loosened
from tapegrad.compilation.events.events import RESULT, History, Source, Unlearnable
from tapegrad.compilation.events.learner import Learner
from tapegrad.compilation.events.traces import Trace
from tapegrad.compilation.events.varying import in_order
from tapegrad.compilation.memory.pages import HUGE, give_back, is_long, trim
from tapegrad.compilation.paths.matching import Matcher
from tapegrad.compilation.paths.path import UNTRIED, Path, Product
from tapegrad.compilation.programs.program import Program
from tapegrad.errors import is_from_signal

MOST_PATHS = 8  # ways through a function that are learned, for arguments of one kind
SECONDS = 3e-5  # that learning an operation takes, as long as some ninety times recording it
PATIENCE = 0.05  # seconds that the thread waits for a call to end, before it does other work

_latest: list[weakref.ref[Learning]] = []  # of one function at most, whose large arguments are in memory


class Learning:
    """What makes the paths of a matcher, of which calls are recorded until there is nothing left to do.

    Attributes
    ----------
    tasks
        What is to be done; where no call waits for it, by the thread of `background`.
    attempts
        How many calls were learned from.
    known
        How many, of the latest, went a way that is known, as they had left it for another reason.
    reason
        Why the latest of them has given no path.
    runs_python
        Whether Python runs at each call: it looks at numbers, and large arrays may be read in place.
    gone
        Whether the function is gone.
    at_once
        Whether calls do it.
    lock
        Held by the call at work, or the thread at its tasks.
    is_emptied
        Whether large arguments of the latest call are gone.
    """

    def __init__(self, matcher: Matcher, wait: bool, at_once: bool, runs_python: bool = False) -> None:
        self.matcher, self.wait, self.at_once, self.runs_python = matcher, wait, at_once, runs_python
        self.tasks: deque[Callable[[], None]] = deque()
        self.attempts, self.reason, self.gone = 0, "", False
        self.known = 0
        self.lock = threading.Lock()
        self.is_emptied = False

    def begin(self) -> None:
        """Have memory for large arguments of a call; another function not at work gives back its own.

        So many functions take as much as one. A function that is called again and again keeps its pages.
        """
        before = _latest[0]() if _latest else None
        if before is self:
            return
        _latest[:], self.is_emptied = [weakref.ref(self)], False
        if before is not None:
            before.alone(before.empty)

    def empty(self) -> None:
        """Give back the memory of large arguments up to the next call."""
        self.is_emptied = True
        for program in [path.program for path in self.matcher.paths]:
            for x in program.arguments:
                if x.nbytes >= HUGE:
                    give_back(x)

    def is_free(self) -> bool:
        """Whether no call is at work, and the thread has nothing to do."""
        return not self.tasks and not self.lock.locked()

    def alone(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function while no other call is at work, nor the thread; if one is, do nothing."""
        lock = self.lock
        if lock.acquire(blocking=False):
            try:
                if not self.tasks:
                    function(*args)
            finally:
                try:
                    self.catch_up()
                finally:
                    lock.release()

    @property
    def learns(self) -> bool:
        """Whether a call that follows no path is learned from: not in vain, as listing it takes long too."""
        wanted = max(self.attempts, self.known) < MOST_PATHS and not self.tasks
        return wanted and (self.at_once or not background.is_full())

    # ------------------------------------------------------------ what a call asks for that has the lock

    def learn(self, learner: Learner) -> None:
        """Let a path be made of a call that has been recorded, when it has ended: see `catch_up`."""
        trace = learner.trace()
        if not learner.reason:
            seconds = SECONDS * len(trace.listing)
            task = functools.partial(self._make, trace, learner.found)
            if self.at_once:
                self.tasks.append(task)
            else:
                self._ask(task, trace.held, seconds)
            return
        self.reason = learner.reason
        self.attempts += 1
        if learner.is_too_large:
            self.attempts += MOST_PATHS // 2  # the next one is likely to have as many, and it takes long

    def catch_up(self) -> None:
        """Do what waits for the call to end, so that its tape is gone, where no thread does it."""
        if not self.at_once:
            return
        try:
            while self.tasks:
                self._do(self.tasks.popleft())
        finally:
            self.tasks.clear()

    def renew(self, paths: Sequence[Path]) -> None:
        """Let other arrays be given to paths that the matcher had."""
        self._ask(functools.partial(self._renew, paths))
        self.tasks.rotate()  # so that a call that is to be learned from is compared with them

    def product_of(self, path: Path, between: bool) -> Product | None:
        """What computes the Hessian times a direction, if it is there; `between` calls or in one."""
        if path.product is UNTRIED:
            self._ask(functools.partial(path.make_product, between or not self.at_once))
        found: Any = path.product
        return found if isinstance(found, Product) else None

    def give_up(self, why: str) -> None:
        """Learn nothing more, and know no paths."""
        self.tasks.clear()
        self.matcher.clear()
        self.attempts, self.reason = MOST_PATHS, self.reason or why

    def end(self) -> None:
        """The function is gone."""
        self.gone = True
        self.matcher.forget()

    def _ask(self, task: Callable[[], None], held: int = 0, seconds: float = 0.0) -> None:
        if self.at_once:
            self._do(task)
            return
        self.tasks.append(task)
        if len(self.tasks) == 1 and not background.submit(self, held, seconds):
            self.drop()

    # ------------------------------------------------------------ what is done

    def work(self) -> bool:
        """Do what was asked for, unless a call is at work for long."""
        lock = self.lock
        if not lock.acquire(timeout=PATIENCE):
            return False
        try:
            while self.tasks:
                self._do(self.tasks[0])
                self.tasks.popleft()
        finally:
            self.tasks.clear()
            if self.gone:
                self.matcher.forget()
            lock.release()
        return True

    def drop(self) -> None:
        """Ask for nothing any more; paths that were to be renewed may be learned again."""
        self.tasks.clear()
        self.attempts = min(self.attempts, len(self.matcher.paths))

    forget = drop  # where nobody does it

    def _do(self, task: Callable[[], None]) -> None:
        self.matcher.serial += 1  # programs that begin alike have buffers in common
        try:
            with np.errstate(all="ignore"):
                task()
            if not self.at_once:
                self.matcher.describe()
        except Unlearnable as error:
            self.reason = str(error)
        except Exception as error:  # of an op that cannot be computed by itself
            if self.at_once and is_from_signal(error):  # else it is the thread's, which has no handlers
                raise
            self.reason = f"{type(error).__name__}: {error}"

    def _make(self, trace: Trace, history: History) -> None:
        """Make a path, unless it is known."""
        paths, self.attempts = self.matcher.paths, self.attempts + 1
        if is_long(len(trace.listing)):
            trim()  # what recorded calls have left
        events, result = trace.events(history, self.runs_python)
        for k, event in events.unusual():
            if event.order is not None:
                events[k] = in_order(event)
        for path in paths:
            events = loosened(events, path.program.events, path.program.arguments)
        if any(path.is_of(events, Source(RESULT, result)) for path in paths):
            self.attempts, self.known = self.attempts - 1, self.known + 1
            return
        self.reason, self.known = "", 0
        large = is_long(len(events)) or not all(event.known for _, event in events.unusual())
        if large:
            trim()  # what the listing has left
        given = (trace.arguments.pop(0) for _ in trace.histories)  # each copied, and let go of
        passing = [at for at, x in trace.originals.items() if self.runs_python and x() is None]
        program = Program(events, given, [path.program for path in paths], passing=passing)
        if large:
            trim()
        self.matcher.add(Path(program, result, self.wait))
        if large:
            trim()

    def _renew(self, before: Sequence[Path]) -> None:
        for path in before:
            self.matcher.add(path.renewed([other.program for other in self.matcher.paths]), False)
