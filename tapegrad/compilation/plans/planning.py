"""From rows to a plan that is used: when it is made, by whom, and whether it gives what the rows give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from tapegrad.compilation import background
from tapegrad.compilation.memory import pages as memory
from tapegrad.compilation.plans.repeats import Part
from tapegrad.config import compiling_setting
from tapegrad.errors import is_from_signal
from tapegrad.kernels.locks import load_module

if TYPE_CHECKING:
    from tapegrad.compilation.plans.handing import Target
    from tapegrad.compilation.plans.prepared import Prepared
    from tapegrad.compilation.programs.program import Program
    from tapegrad.compilation.programs.reverse import Reverse

WARM = 2  # calls computed alike, after which a plan is made for such calls
PART = 1 << 13  # elements that are compared at once
MOST_IN_VAIN = 16  # calls in a row that a plan could not compute, after which it is not asked any more


class Planning:
    """A plan for calls of a path that compute all from one row on, with or without the gradient.

    If it `hands_over` derivatives, some are the plan's targets and not in the buffers of the rows in reverse.

    Attributes
    ----------
    plan
        The plan in use.
    reason
        Why there is none, and will be none.
    in_vain
        How many calls in a row it could not compute.
    gone
        Never; see `background.Owner`.
    """

    gone = False

    def __init__(
        self, program: Program, reverse: Reverse | None, result: int, begin: int, wait: bool, warm: int,
        hands_over: bool = False,
    ) -> None:  # fmt: skip
        self._hands_over = hands_over
        self._program, self._reverse, self._result, self._begin = program, reverse, result, begin
        self.plan: Prepared | None = None
        self.reason = "" if compiling_setting() != "off" else "TAPEGRAD_COMPILE=off"
        self._warm, self._wait = warm, wait or compiling_setting() == "wait"
        self._made: Prepared | None = None  # not yet compared with the rows
        self._calls = self.in_vain = 0
        self._asked = False  # for a plan

    def _outputs(self, targets: Mapping[int, Target] = MappingProxyType({})) -> list[np.ndarray]:
        """The value and the derivatives; not kept, as counts of references tell who has seen an array."""
        gradients = enumerate([] if self._reverse is None else self._reverse.gradients)
        found = [targets[k].array if k in targets else x for k, x in gradients]
        return [self._program.values[self._result], *(x for x in found if x is not None)]

    def run(self, reported: int) -> bool:
        """Compute a call by the plan; False where there is none, or it cannot."""
        plan = self.plan
        if plan is None:
            return False
        if plan.run(reported):
            self.in_vain = 0
            return True
        self.miss()
        return False

    def miss(self) -> None:
        """Count a call that the plan could not compute."""
        self.in_vain += 1
        if self.in_vain == MOST_IN_VAIN:
            self.plan = self._made = None
            self.reason = f"{MOST_IN_VAIN} calls in a row met errors of numbers, or values beyond a form"

    def see(self, events: Sequence[int], reported: int) -> bool:
        """Look, after the rows have computed a call, whether a plan is to be made, or gives the same.

        False where it has not, and the rows have to compute the call again.
        """
        if self._made is not None:
            return self._compare(events, reported)
        if not self.reason and not self._asked:
            self._calls += 1
            if self._calls >= self._warm:
                self._ask()
        return True

    def _ask(self) -> None:
        self._asked = self._wait or background.submit(self)
        if self._wait:
            self.work()

    def forget(self) -> None:
        """Ask for no plan until another call is computed."""
        self._asked = False

    def work(self) -> bool:
        """Make the plan."""
        is_long = memory.is_long(len(self._program.events))
        if is_long:
            self._let_go()
            memory.trim()  # what making the program has left, and calls since
        try:
            return self._made_one()
        finally:
            if is_long:
                memory.trim()

    def _let_go(self) -> None:
        """Give back what a call has computed that waits for the plan, and nobody has seen, but the result."""
        program = self._program
        if self._wait and self._begin == 0 and all(program.exact):
            result = program.values[self._result]
            kept = result.copy()
            program.values.give_back()
            result[...] = kept

    def _made_one(self) -> bool:
        """Make the plan, or know why there is none."""
        try:
            rows, reverse = self._program.rows, self._reverse
            self._made = self._rolled()
            if self._made is not None:
                self._made.read_in_place(self._program.copies.in_place())
                return True
            steps = len(rows) + (0 if reverse is None else len(reverse.rows))
            if steps > memory.MOST_STEPS:
                self.reason = f"its {steps:,} steps are more than {memory.MOST_STEPS:,}; arrays take fewer"
                return True
            forward = rows, self._begin, len(self._program.events)
            backward = None if reverse is None else (reverse.rows, len(reverse.pools))
            plans = load_module("tapegrad.compilation.plans.plan")
            plan = plans.Plan()
            for _ in plan.build(forward, backward, [plans.describe(x) for x in self._outputs()]):
                background.pause()
            if self._hands_over and self._reverse is not None:
                plan.hand_over(self._reverse.gradients)
            plan.read_in_place(self._program.copies.in_place())
            self._made = plan
        except Exception as error:  # of LLVM, or of a step that is as no other
            if is_from_signal(error):
                raise
            self.reason = f"{type(error).__name__}: {error}"
        return True

    def _rolled(self) -> Prepared | None:
        """Loops, if the rows are such for most."""
        part = Part(self._program.rows, self._begin, len(self._program.events), True)
        reverse = None if self._reverse is None else self._reverse.rows
        roll = load_module("tapegrad.compilation.plans.rolling").roll
        found: Prepared | None = roll(part, reverse, self._outputs())
        return found

    def _compare(self, events: Sequence[int], reported: int) -> bool:
        """Compute a call again, by the plan, and use it from now on if it gives the same."""
        plan = self._made
        assert plan is not None
        try:
            plan.begin()
            outputs = self._outputs(plan.targets)
            known = [
                x.copy() if np.may_share_memory(x, y) else x
                for x, y in zip(self._outputs(), outputs, strict=True)
            ]
            plan.watch(events)
            plan.spoil()
            done = plan.run(reported)
        finally:
            plan.end()
        if not done:
            self.miss()
        elif known[0].tobytes() != outputs[0].tobytes():
            self.reason = "its value has other bits"
        elif not all(map(are_same if plan.is_exact else agree, known[1:], outputs[1:])):
            self.reason = "its derivatives are others"
        else:
            self.plan, self._made, self.in_vain = plan, None, 0
            plan.end_comparing()
            del known
            for target in plan.targets.values():
                target.release()
            program = self._program
            if memory.is_long(len(program.events)) or any(map(memory.has_pages, program.values.alone())):
                memory.trim()
            return True
        if self.reason:
            self._made = None
        return False

    @property
    def is_pending(self) -> bool:
        """Whether a plan is being made, or is to be compared."""
        return self._asked and self.plan is None and not self.reason

    @property
    def is_awaited(self) -> bool:
        """Whether there is none that is to be compared."""
        return self.is_pending and self._made is None

    def explain(self) -> str:
        """Tell what computes such calls."""
        if self.plan is not None:
            return self.plan.describe()
        if self.reason:
            return f"not fused: {self.reason}"
        return "fused soon" if self.is_pending else ""


def are_same(known: np.ndarray, found: np.ndarray) -> bool:
    """Whether derivatives have the same bits."""
    return known.tobytes() == found.tobytes()


def agree(known: np.ndarray, found: np.ndarray) -> bool:
    """Whether derivatives are the same but for rounding, as sums have another order, to half the digits."""
    if known.shape != found.shape:
        return False
    x, y = known.reshape(-1), found.reshape(-1)
    parts = [slice(k, k + PART) for k in range(0, x.size, PART)]  # so that little is made beside them
    most = max((np.abs(x[part][np.isfinite(x[part])]).max(initial=0.0) for part in parts), default=0.0)
    error = np.sqrt(np.finfo(known.dtype).eps) * most
    return all(_agree(x[part], y[part], error) for part in parts)


def _agree(known: np.ndarray, found: np.ndarray, error: float) -> bool:
    """Whether all numbers are within an error, and what is no finite number is the same."""
    finite = np.isfinite(known)
    if not np.array_equal(known[~finite], found[~finite], equal_nan=True):
        return False
    return bool(np.all(np.abs(known[finite] - found[finite]) <= error))
