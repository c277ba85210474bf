"""The operations of a gradient, as events: what a program of second derivatives is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.traced_rules import is_followed, steps_of_rule
from tapegrad.compilation import background
from tapegrad.compilation.events.equality import alike
from tapegrad.compilation.events.events import (
    ARGUMENT,
    FIXED,
    LIVE,
    POWER,
    PYTHON_S,
    RESULT,
    SHARED,
    Event,
    Source,
    activity,
    is_active,
)
from tapegrad.compilation.events.passive import Operation, Passive
from tapegrad.compilation.events.varying import is_computed_anew
from tapegrad.compilation.programs.program import Program
from tapegrad.compilation.rows.computing import number_of
from tapegrad.core.dispatch import is_view_of
from tapegrad.ops import MEANING
from tapegrad.ops.primitive import Attributes
from tapegrad.ops.programs import Program as Steps
from tapegrad.ops.programs import Ref

ADD, MULTIPLY = MEANING[np.add], MEANING[np.multiply]


class NoProgram(Exception):
    """Values decide what the gradient computes."""


class GradientEvents:
    """The events of a program, and after them those of its gradient.

    Each rule is run once on Tensors that note what it applies, and once more with other values, to see that
    this is the same (`autograd.traced_rules`); so of the call at hand nothing is taken but shapes and dtypes.

    Attributes
    ----------
    events
        All of them.
    gradients
        What each argument gets; None where the result does not depend on it.
    looked_at
        Events whose rules look at values, see `is_as_before`.
    """

    def __init__(self, program: Program, result: int) -> None:
        self.program, self.events = program, program.events.copy()
        self.values: list[Any] = [number_of(x) for x in program.values]
        self.looked_at: list[int] = []
        self._known: dict[Any, list[tuple[Attributes, Steps]]] = {}
        active = activity(program.events)
        one = np.ones_like(program.values[result], order="C")
        found = {Source(RESULT, result): Source(LIVE, number_of(one))}
        with np.errstate(all="ignore"):
            for j in range(result, -1, -1):
                background.pause()
                ct = found.pop(Source(RESULT, j), None)
                sources = program.events[j].operands
                wanted = [q for q, source in enumerate(sources) if is_active(source, active)]
                if ct is not None and wanted:
                    for q, part in self._pulled(j, ct, wanted).items():
                        before = found.get(sources[q])
                        found[sources[q]] = part if before is None else self._emit(ADD, [before, part])
        self.gradients = [found.get(Source(ARGUMENT, k)) for k in range(len(program.arguments))]

    def _pulled(self, j: int, ct: Source, wanted: list[int]) -> dict[int, Source]:
        """What the operands of an event get of its cotangent."""
        event = self.program.events[j]
        if is_computed_anew(event):
            raise NoProgram(f"{event.op.name} has factors, or takes elements, that are others at each call")
        inputs = [
            Source(SHARED, (j, q)) if source.kind == LIVE
            else Source(FIXED, np.asarray(source.value)[()]) if source.kind == FIXED
            else source
            for q, source in enumerate(event.operands)
        ]  # fmt: skip
        values = [self._value(source) for source in inputs]
        steps = self._steps(event, self._value(ct), self.values[j], values, wanted)
        if steps.nonzero or steps.branched:
            self.looked_at.append(j)
        return self._followed(steps, {"ct": [ct], "out": [Source(RESULT, j)], "input": inputs})

    def _steps(self, event: Event, ct: Any, out: Any, values: list[Any], wanted: list[int]) -> Steps:
        """What the rule of an event applies, which is known if it came with such operands before."""
        every = (ct, out, *values)
        key = (event.op, *wanted, *((np.shape(x), np.asarray(x).dtype) for x in every))
        known = self._known.setdefault(key, [])
        for attrs, steps in known:
            if alike(attrs, event.attrs) and is_followed(event.op, out, values, event.attrs):
                return steps
        constants = [q not in wanted for q in range(len(values))]
        found = steps_of_rule(event.op, ct, out, values, constants, event.attrs, wanted)
        if found is None:
            raise NoProgram(f"what the rule of {event.op.name} applies is not the same for all values")
        if all(np.asarray(x).dtype.kind in "fc" for x in every):  # of which it has seen others
            known.append((event.attrs, found))
        return found

    def _followed(self, steps: Steps, known: dict[str, list[Source]]) -> dict[int, Source]:
        """Emit the steps of a rule."""
        known["step"] = []

        def source(ref: Ref) -> Source:
            return Source(LIVE, ref.value) if ref.kind == "object" else known[ref.kind][ref.value]

        for step in steps.steps:
            op = Passive(step.function) if step.op is None else step.op
            operands = [source(ref) for ref in step.operands]
            known["step"].append(self._emit(op, operands, step.attrs, step.function))
        return {q: source(ref) for q, ref in steps.results.items()}

    def _emit(
        self, op: Operation, operands: Sequence[Source], attrs: Attributes | None = None,
        function: Callable[..., Any] | None = None,
    ) -> Source:  # fmt: skip
        """Add an event, unless all its operands are constants or it multiplies by ones; its result."""
        values = [self._value(source) for source in operands]
        value = np.asarray((function or op.forward)(*values, **(attrs or {})))[()]
        constant = [source.kind in (LIVE, FIXED) for source in operands]
        if all(constant):
            return Source(LIVE, value)
        if op is MULTIPLY:
            for one, other in ((0, 1), (1, 0)):
                x = values[other]
                if constant[one] and np.all(values[one] == 1) and _is_alike(x, value):
                    return operands[other]
        kind = np.result_type(*values)
        sources = [
            source if type(source.value) not in PYTHON_S or source.kind != LIVE
            else Source(FIXED, source.value) if op is POWER
            else Source(LIVE, np.asarray(source.value, kind)[()])
            for source in operands
        ]  # fmt: skip
        seen = len(values) == 1 and _is_array(value) and _is_array(values[0]) and is_view_of(value, values[0])
        self.events.append(Event(op, tuple(sources), attrs or {}, value, seen))
        self.values.append(value)
        return Source(RESULT, len(self.events) - 1)

    def _value(self, source: Source) -> Any:
        if source.kind == ARGUMENT:
            return number_of(self.program.arguments[source.value])
        if source.kind == RESULT:
            return self.values[source.value]
        if source.kind == SHARED:
            j, q = source.value
            return number_of(self.program.live(j)[q])
        return source.value


def is_as_before(program: Program, j: int) -> bool:
    """Whether an event's rule, which looks at values, does for those at hand what it did for others."""
    event, out = program.events[j], number_of(program.values[j])
    operands = [number_of(x) if isinstance(x, np.ndarray) else x for x in program.live(j)]
    return is_followed(event.op, out, operands, event.attrs)


def _is_array(x: Any) -> bool:
    return type(x) is np.ndarray


def _is_alike(x: Any, y: Any) -> bool:
    """Whether these have the same shape and dtype."""
    return bool(np.shape(x) == np.shape(y) and np.asarray(x).dtype == y.dtype)
