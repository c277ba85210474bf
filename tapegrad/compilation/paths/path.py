"""Ways through a function: a program with rows in reverse, and the words that calls are compared with."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from tapegrad.compilation import background
from tapegrad.compilation.events.equality import is_same
from tapegrad.compilation.events.events import ARGUMENT, LIVE, OPERAND_KINDS, RESULT, Event, Events, Source
from tapegrad.compilation.events.passive import DETACH, Passive
from tapegrad.compilation.explanation import Way
from tapegrad.compilation.memory.pages import LARGE, is_long, trim
from tapegrad.compilation.paths.comparison import Comparison
from tapegrad.compilation.paths.waiting import Waiting
from tapegrad.compilation.plans.planning import WARM, Planning
from tapegrad.compilation.programs.program import Program
from tapegrad.compilation.programs.reverse import Reverse, read_in_reverse
from tapegrad.compilation.programs.row_forms import Look, Places
from tapegrad.compilation.programs.second import GradientEvents, is_as_before
from tapegrad.compilation.rows.computing import number_of
from tapegrad.compilation.rows.releases import Releases
from tapegrad.errors import is_from_signal
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address
from tapegrad.tensor import Tensor

if TYPE_CHECKING:
    from tapegrad.compilation.plans.prepared import Prepared

EVENT_BYTES, ALIKE_BYTES = 8 * layout.EVENT_SIZE, 8 * layout.ALIKE_WORDS
MOST_PLANS = 8  # of a path, for calls that have computed as much before they end; others are left to rows
SOME_WORDS = 1024 * layout.EVENT_SIZE
Alike = tuple[int, ...]  # words that events share
Compared = tuple[tuple[Address, int, int], tuple[Address, Address]]
NOTHING: Alike = (0,) * layout.ALIKE_WORDS
LOOKED_AT = {np.dtype(c) for c in "dfq?"}  # dtypes of numbers that compiled code looks at
NO_OP = 1  # no address of one: compiled code leaves the event to Python
UNTRIED: Any = object()


class Computation:
    """Rows of a program and rows in reverse, at the end of a call that has followed a path.

    Attributes
    ----------
    parts
        Functions that give derivatives by leaves of the arguments, as the caller is to have them.
    calls
        Whether rows call functions of Python's; and if those in reverse run too.
    computed_by
        The plan that has computed the latest call; None where rows have.
    """

    def __init__(self, program: Program, reverse: Reverse | None, begin: Address, count: int) -> None:
        self.program, self._reverse, self.parts = program, reverse, []
        if reverse is not None:
            pairs = zip(reverse.gradients, program.arguments, strict=True)
            self.parts = [_giving_like(ct, x) for ct, x in pairs]
            for k, x in enumerate(reverse.gradients):
                if x is not None and x.nbytes >= LARGE:
                    self.parts[k] = functools.partial(self._part, k, self.parts[k])
        self.computed_by: Prepared | None = None
        self._pulls: bool | None = None  # whether the latest call ran the rows in reverse
        self.watched = begin, count, Tensor.__weakrefoffset__  # events whose Tensors nobody may have
        calls = program.rows.calls
        self.calls = calls, calls or (reverse is not None and reverse.rows.calls)
        state = program.rows.state
        state[layout.EVENTS_AT], state[layout.EVENT_COUNT] = begin, count
        state[layout.WEAK_REFERENCES_AT] = Tensor.__weakrefoffset__

    @property
    def reverse(self) -> Reverse:
        """Rows for the derivatives."""
        assert self._reverse is not None
        return self._reverse

    def compute(self, begin: int, pull: bool, reported: int) -> bool:
        """Run the rows from `begin` on and, if `pull`, those in reverse.

        False where somebody has kept a Tensor that stands for a result, and a FloatingPointError where an
        error was met that NumPy is to tell of; then nothing was run in reverse.
        """
        rows, n = self.program.rows, len(self.program.events)
        if pull:
            self.program.copies.fill()
        apart = pull and self.reverse.rows.calls
        state, m = rows.state, len(self.reverse.rows) if pull and not apart else 0
        if pull is not self._pulls:
            state[layout.REVERSE_AT] = self.reverse.rows.at if m else 0
            state[layout.REVERSE_COUNT], self._pulls = m, pull
        while True:
            came = rows.serve(layout.RUN_ALL, rows.at, begin, n)
            if came < n:
                begin = rows.step(came)
                continue
            raised, state[layout.ERRORS_MET] = state[layout.ERRORS_MET], 0
            if not raised:
                break
            if raised & reported:
                raise FloatingPointError
            begin = n
        if state[layout.HELD]:
            return False
        if apart or came < n + m:  # as those in reverse call Python, or wait
            self.reverse.rows.run(0, len(self.reverse.rows))
        return True

    def _planned(self, planning: Planning, reported: int, by_rows: Callable[[], bool]) -> bool:
        """Compute by a plan where there is one; by rows what none has computed."""
        self.computed_by, before = None, planning.plan
        if planning.run(reported):
            self.computed_by = before
            return True
        found = by_rows() and (planning.see(self.watched, reported) or by_rows())
        if before is None:  # one that has given the same is used from now on
            self.computed_by = planning.plan
        return found

    def _part(self, k: int, copied: Callable[[], Any]) -> Any:
        """A derivative of the latest call, which is asked for once."""
        target = None if self.computed_by is None else self.computed_by.targets.get(k)
        return copied() if target is None else target.take()


class Path(Computation):
    """A way through a function: its program, the number of the result, and words of its events.

    Attributes
    ----------
    words
        What compiled code compares with (`kernels.replay.layout`); the last event is none.
    value
        A function that gives the value as the caller is to have it.
    wait
        Whether a call waits for its plan.
    looks
        The events that a call need not have: see `only_looked_at`.
    warm
        After how many calls a plan is made.
    compared
        How many events compiled code knows.
    has_others
        Whether there are others, which Python compares.
    served
        How many calls have followed it to its end.
    product
        What computes the Hessian times a direction; None where values decide what that takes, UNTRIED before
        it is made.
    """

    def __init__(self, program: Program, result: int, wait: bool = False, warm: int = WARM) -> None:
        self.result, self.wait, self.warm = result, wait, warm
        self._arrays_known: dict[int, np.ndarray] = {}  # by rows of the words
        self.looks = only_looked_at(program.events)
        n = len(program.events)
        self._rows = np.zeros((1 + len(program.arguments) + n + 1, layout.EVENT_SIZE), np.int64)
        self.words = self._rows[1 + len(program.arguments) :]
        self._alike: np.ndarray  # words that events share
        self.compared, self.has_others = 0, False
        self.begin: Address = abi.address(self.words)
        self.end: Address = self.begin + n * EVENT_BYTES
        value = program.values[result]
        self.is_number = value.size == 1 and value.dtype.kind == "f"
        seed = Source(RESULT, result), np.ones_like(value, order="C")
        super().__init__(program, Reverse(program, [seed], True) if self.is_number else None, self.begin, n)
        self._releases = self._releases_of(program, self._reverse)
        shared = [*program.values.alone(program.shared)]  # of which the call at work may have some
        self._releases_of(program, self._reverse, shared).end()
        self.value, self.product = _giving(value), UNTRIED
        self.plans: dict[tuple[int, bool], Planning] = {}
        self._waiting = Waiting(program, self._reverse, self.plans)
        self.from_first: list[Planning | None] = [None, None]  # of calls that compute all in the end
        self.comparison: Comparison  # of which the words know
        self.reason = ""  # why there is no product
        self.served = 0

    def is_of(self, events: Sequence[Event], result: Source) -> bool:
        """Whether a call with these events, of which one is the result, has gone this way."""
        mine, same = self.program.events, result == Source(RESULT, self.result)
        if not same or len(mine) != len(events):
            return False
        for x, y in zip(mine, events, strict=True):
            background.pause()
            if not is_same(x, y):
                return False
        return True

    def renewed(self, others: Sequence[Program]) -> Path:
        """Return the same path with other buffers, or those of the others."""
        out = Path(self.program.renewed(others), self.result, self.wait, 2 * self.warm)
        out.served = self.served
        return out

    def make_product(self, between: bool) -> None:
        """Find the product; `between` calls values are computed once more, as rules look at them."""
        self.product = None
        try:
            given_back = self._releases or is_long(len(self.program.events))
            if between and given_back and all(self.program.exact):
                self.program.rows.run(0, len(self.program.events))
            if self.is_number:
                self.product = Product(self)
        except Exception as error:  # of a rule that cannot be run by itself
            if is_from_signal(error):
                raise
            self.reason = str(error) or type(error).__name__

    def compute(self, begin: int, pull: bool, reported: int) -> bool:
        """As by rows; by a plan where there is one for such a call."""
        planning = self.plans.get((begin, pull)) or self._planning(begin, pull)
        by_rows, is_new = functools.partial(super().compute, begin, pull, reported), planning.plan is None
        if self._releases.are_due and begin == 0 and not planning.reason:
            by_rows = functools.partial(self._sparingly, pull, reported)
        found = self._planned(planning, reported, by_rows)
        if is_new and planning.plan is not None:  # nobody has looked into what rows gave from there on
            self._releases.end(kept=self.program.values.alone(begin) if begin else ())
            if is_long(len(self.program.events)):
                self._waiting.expect()
        return found

    def _releases_of(
        self, program: Program, reverse: Reverse | None, more: Sequence[np.ndarray] = ()
    ) -> Releases:
        """What a call need not keep that nobody has looked into; `more` is kept."""
        kept = [*more, *program.arguments, program.values[self.result], *program.brought()]
        if reverse is None:
            return Releases(program.rows, program.values.alone(), None, kept)
        kept += [x for x in reverse.gradients if x is not None]
        arrays = [*program.values.alone(), *reverse.buffers, *reverse.blocks]
        return Releases(program.rows, arrays, reverse.rows, kept)

    def _sparingly(self, pull: bool, reported: int) -> bool:
        """As `compute` from the first row on, with as little memory as recording takes.

        So it is until there is a plan, which has values in blocks. Should the call leave after all, its
        values are computed again.
        """
        rows, n = self.program.rows, len(self.program.events)
        state, self._pulls = rows.state, None
        state[layout.REVERSE_AT] = 0
        rows.serve(layout.RUN_ALL, rows.at, n, n)
        if state[layout.HELD]:
            return super().compute(0, pull, reported)
        if self.served <= self.warm:
            trim()  # of what recorded calls, and those before a plan is made, have left
        self._releases.run(rows)
        raised, state[layout.ERRORS_MET] = state[layout.ERRORS_MET], 0
        if raised & reported:
            raise FloatingPointError
        if pull:
            self._releases.run(self.reverse.rows, True)
        self._releases.end()
        return True

    def _planning(self, begin: int, pull: bool) -> Planning:
        reverse = self.reverse if pull else None
        found = Planning(self.program, reverse, self.result, begin, self.wait, self.warm, True)
        if len(self.plans) < MOST_PLANS:
            self.plans[begin, pull] = found
            if begin == 0:
                self.from_first[pull] = found
        return found

    @property
    def is_pending(self) -> bool:
        """Whether a plan for some of its calls is being made."""
        return any(planning.is_pending for planning in self.plans.values())

    @property
    def is_awaited(self) -> bool:
        """Whether calls are recorded until there is a plan, as rows would keep all values until then."""
        return self._releases.are_due and any(planning.is_awaited for planning in self.plans.values())

    def explain(self) -> Way:
        """Tell how the program computes."""
        events = self.program.events
        names = [events[k].op.name for k in self.program.rows.functions]
        if self._reverse is not None:
            names += [f"the rule of {name}" for name in self._reverse.by_python]
        second = f"second derivatives are recorded: {self.reason}" if self.reason else ""
        if isinstance(self.product, Product):
            second = f"{len(self.product.program.events)} for second derivatives"
            how = self.product.planning.explain()
            second += how and f" {how}"
        by_python = tuple(dict.fromkeys(names))
        fused = tuple(dict.fromkeys(filter(None, (x.explain() for x in self.plans.values()))))
        return Way(self.served, len(events), self.compared, by_python, self.result, second, fused)

    def describe(self, arguments: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Write the words, for Tensors that stand for arguments and results."""
        self.comparison = Comparison(self.program, arguments, results)
        numbers: dict[Alike, int] = {NOTHING: 0}
        stands = self.program.stand_ins.numbers
        alike, words = array("q", NOTHING), array("q", bytes(EVENT_BYTES))  # there is a row before any event
        compared = end = 0
        program, places = self.program, Places(self.program.arguments, self.program.values)
        places.note_all()
        for x, buffer in zip(arguments, self.program.arguments, strict=False):
            number, code = _number(buffer)
            words.extend(
                (_noted(alike, numbers, (0, 0, 0, code, layout.RECORDED_ON, 0, 0, 0)), id(x), 0, 0, number)
            )
        codes = {look: _code(x) for look, x in places.looks.items()}
        for k in range(len(program.events)):
            background.pause()
            if len(words) >= SOME_WORDS:  # as all of them would take as much once more
                self._write_words(k, words)
            code = codes[places.seen[RESULT][k]]
            number = places.at[RESULT][k] if code else 0
            (op, first, second), operands = self._plainly_compared(k, arguments, results) or self._compared(k)
            call, writes = 0, (0, 0)
            if program.written or program.seen:
                writes = self.comparison.write(k), self.comparison.in_vain(k)
            called = program.events.call(k)
            if called is not None:
                call = self.comparison.call(k)
                end = max(end, k + called.events if call else 0)
            compared += op > NO_OP or k < end
            at = _noted(alike, numbers, (op, first, second, code, program.recorded[k], call, *writes))
            words.extend((at, id(results[stands[k]]), *operands, number))
        words.extend((0,) * layout.EVENT_SIZE)
        self._write_words(len(self.program.events) + 1, words)
        self._alike = np.frombuffer(alike, np.int64).reshape(-1, layout.ALIKE_WORDS)
        self._rows[:, layout.EVENT_ALIKE] *= ALIKE_BYTES
        self._rows[:, layout.EVENT_ALIKE] += abi.address(self._alike)
        self.compared, self.has_others = compared, compared < len(program.events)

    def _plainly_compared(
        self, k: int, arguments: Sequence[Tensor], results: Sequence[Tensor]
    ) -> Compared | None:
        """As `_compared`, of an event that has but one or two Tensors as operands; None of others."""
        program, found = self.program, [0, 0]
        events, stands = program.events, program.stand_ins.numbers
        places = events.places(k)
        if not events.is_plain(k) or len(places) > 2:
            return None
        for q, place in enumerate(places):
            kind, number = place % OPERAND_KINDS, place // OPERAND_KINDS
            if kind == LIVE:
                return None
            found[q] = id(arguments[number] if kind == ARGUMENT else results[stands[number]])
        second = layout.THIS_OBJECT if len(places) > 1 else 0
        op = id(events.ops[k]) if program.exact[k] else NO_OP
        return (op, layout.THIS_OBJECT if len(places) else 0, second), (found[0], found[1])

    def _compared(self, k: int) -> Compared:
        """The op of an event and what its operands are; and their addresses."""
        program, found, event = self.program, [(0, 0), (0, 0)], self.program.events[k]
        part = "index" in event.attrs and not event.several and program.is_part(k)
        usable = len(event.operands) <= 2 and (part or not event.attrs) and program.exact[k]
        usable = usable and event.writes is None
        if part:
            found[1] = layout.AN_INDEX, id(event.attrs["index"])
        for q in range(min(len(event.operands), 2)):
            found[q] = self.comparison.operand_of(event, k, q)
            usable = usable and found[q][1] != 0
        kinds, addresses = zip(*found, strict=True)
        return (id(event.op) if usable else NO_OP, *kinds), addresses

    def know_array(self, source: Source) -> bool:
        """Let compiled code know the array of an argument or a result, of which functions without a
        derivative are asked; whether that holds it from now on.
        """
        k = source.value + (1 if source.kind == ARGUMENT else 1 + len(self.program.arguments))
        if self._rows[k, layout.EVENT_NUMBER]:
            return False
        known = self._arrays_known[k] = self.program.buffer(source)
        self._rows[k, layout.EVENT_NUMBER] = id(known)
        return True

    def _write_words(self, end: int, words: array[int]) -> None:
        """Write the words of arguments, and of events before one, and let go of them."""
        rows = np.array(words, np.int64).reshape(-1, layout.EVENT_SIZE)
        end += 1 + len(self.program.arguments)
        self._rows[end - len(rows) : end] = rows
        del words[:]


def only_looked_at(events: Events) -> set[int]:
    """Which events have no derivative and are read by no other: a call need not have them.

    But for what is detached: a call that has it leaves a path without it, so it makes a path of its own.
    """
    found, read = set[int](), set[int]()
    if not any(isinstance(op, Passive) for op in events.ops):
        return found
    for k in range(len(events) - 1, -1, -1):
        background.pause()
        op = events.ops[k]
        if isinstance(op, Passive) and op is not DETACH and k not in read:
            found.add(k)
        else:
            read.update(x // OPERAND_KINDS for x in events.places(k) if x % OPERAND_KINDS == RESULT)
    return found


class Product(Computation):
    """What computes the Hessian of a number times a direction, in whose buffers that is laid.

    Attributes
    ----------
    direction
        A buffer for each leaf of the arguments.
    gradients
        What each gets of the gradient, as events of the program.
    looked_at
        Events whose rules look at values.
    """

    def __init__(self, path: Path) -> None:
        of, n = GradientEvents(path.program, path.result), len(path.program.events)
        self.direction = [np.zeros_like(x, order="C") for x in path.program.arguments]
        self.gradients, self.looked_at = of.gradients, of.looked_at
        moving = [(g, v) for g, v in zip(of.gradients, self.direction, strict=True) if is_moving(g)]
        read = read_in_reverse(of.events, [g for g, _ in moving])
        for k in range(len(of.events) - 1, n - 1, -1):  # what is computed of what is read is read too
            if k in read:
                read |= {source.value for source in of.events[k].operands if source.kind == RESULT}
        unused = {k for k in range(n, len(of.events)) if k not in read}
        exact = [True] * len(of.events)
        program = Program(of.events, path.program.arguments, [path.program], exact, unused)
        if program.shared < n:
            raise ValueError("an operand is not equal to itself")
        for k in unused:  # nobody reads them; if somebody did, it were to be seen
            target = program.target(k)
            if target is not None and target.dtype.kind in "fc":
                target.fill(np.nan)
        super().__init__(program, Reverse(program, moving), path.begin, n)
        self.planning = Planning(program, self.reverse, path.result, n, path.wait, path.warm, True)

    def compute(self, begin: int, pull: bool, reported: int) -> bool:
        """As by rows, or by a plan behind those of the path."""
        by_rows = functools.partial(super().compute, begin, pull, reported)
        if begin == self.program.shared and not self.looked_at:
            return self._planned(self.planning, reported, by_rows)
        self.computed_by = None
        return by_rows()

    def holds(self) -> bool:
        """Whether it is right for the values that there are, once they are computed."""
        return all(is_as_before(self.program, j) for j in self.looked_at)


def is_moving(gradient: Source | None) -> TypeGuard[Source]:
    """Whether a gradient by an argument is another one for other arguments."""
    return gradient is not None and gradient.kind in (ARGUMENT, RESULT)


def _noted(alike: array[int], numbers: dict[Alike, int], words: Alike) -> int:
    """Which of the words that events share these are; those of a call or a write are shared by none."""
    found = numbers.get(words)
    if found is None:
        found = len(alike) // layout.ALIKE_WORDS
        alike.extend(words)
        if not any(words[layout.ALIKE_CALL :]):
            numbers[words] = found
    return found


def _number(buffer: np.ndarray) -> tuple[Address, int]:
    """Where compiled code finds a number, and its dtype's code; zeros where Python is to look at it."""
    code = _code((buffer.shape, buffer.strides, buffer.dtype))
    return abi.address(buffer) if code else 0, code


def _code(look: Look) -> int:
    """The code of the dtype of a number; 0 where Python is to look at it."""
    shape, _, dtype = look
    return 0 if shape or dtype not in LOOKED_AT else abi.code_of(dtype.char)


def _giving(buffer: np.ndarray) -> Callable[[], Any]:
    """A function that gives a copy of a buffer, of a double a float, of two a complex number of Python's."""
    if buffer.ndim:
        return buffer.copy
    return buffer.item if buffer.dtype.char in "dD" else functools.partial(number_of, buffer)


def _giving_like(ct: np.ndarray | None, x: np.ndarray) -> Callable[[], Any]:
    """A function that gives a derivative by x; a cotangent without axes stands for all elements."""
    if ct is None:
        return _giving(np.zeros_like(x))
    return _giving(ct) if ct.ndim == x.ndim else functools.partial(np.full_like, x, ct)
