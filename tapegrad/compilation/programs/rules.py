"""What rules apply, as steps that rows compute, where shapes, dtypes and attributes alone decide that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.traced_rules import MOST_TRACED, steps_of_rule
from tapegrad.compilation.events.equality import alike
from tapegrad.compilation.events.events import FIXED, LIVE, POWER, PYTHON_S, Event, Source
from tapegrad.compilation.events.passive import Passive
from tapegrad.compilation.events.varying import COMPUTED, VARYING
from tapegrad.compilation.programs.program import view_of
from tapegrad.compilation.rows.computing import BROADCAST, compute
from tapegrad.compilation.rows.rows import Rows
from tapegrad.ops import MEANING
from tapegrad.ops.primitive import Attributes, Primitive
from tapegrad.ops.programs import Program as Steps
from tapegrad.ops.programs import Ref, Step

ABSOLUTE = MEANING[np.absolute]
OF_LENGTH = Steps(
    (
        Step(np.sign, None, (Ref("input", 0),)),
        Step(np.multiply, MEANING[np.multiply], (Ref("ct", 0), Ref("step", 0))),
    ),
    {0: Ref("step", 1)},
    (),
)  # of complex numbers, which is told apart at 0 by the sign alone
Known = dict[Any, list[tuple[Attributes, Steps | None]]]  # steps of rules, by operands


def steps_of(
    op: Primitive, ct: np.ndarray, out: np.ndarray, operands: Sequence[np.ndarray], attrs: Attributes,
    wanted: Sequence[int], known: Known,
) -> Steps | None:  # fmt: skip
    """Return the steps of a rule for any values of such shapes and dtypes; None where values decide them.

    Those that have been found are `known`.
    """
    values = [np.asarray(x)[()] for x in (ct, out, *operands)]
    if any(name in attrs for name in (*COMPUTED, VARYING)):
        return None
    if op is ABSOLUTE and wanted:
        return OF_LENGTH
    if max(x.size for x in values) > MOST_TRACED or op.kink or op.branch is not None:
        return None
    found = known.setdefault((op, *wanted, *((x.shape, x.dtype) for x in values)), [])
    for others, steps in found:
        if alike(others, attrs):
            return steps
    constants = [q not in wanted for q in range(len(operands))]
    found.append((attrs, steps_of_rule(op, values[0], values[1], values[2:], constants, attrs, wanted)))
    return found[-1][1]


class Applied:
    """The rows of a rule's steps.

    Parameters
    ----------
    rows
        Where they come.
    room
        Gives buffers, by shape and dtype.

    Attributes
    ----------
    buffers
        Those in use.
    """

    def __init__(self, rows: Rows, room: Any) -> None:
        self._rows, self._room = rows, room
        self.buffers: list[np.ndarray] = []

    def run(
        self, steps: Steps, ct: np.ndarray, out: np.ndarray, operands: Sequence[np.ndarray]
    ) -> dict[int, np.ndarray]:
        """Add the rows of a rule; where what the operands get is, by their number."""
        inputs = [x if isinstance(x, np.ndarray) else np.asarray(x)[()] for x in operands]
        known: dict[str, list[Any]] = {"ct": [ct], "out": [out], "input": inputs, "step": []}

        def source(ref: Ref) -> Any:
            return ref.value if ref.kind == "object" else known[ref.kind][ref.value]

        for step in steps.steps:
            op = Passive(step.function) if step.op is None else step.op
            given = [source(ref) for ref in step.operands]
            known["step"].append(self._step(op, step.function, given, step.attrs or {}))
        return {q: np.asarray(source(ref)) for q, ref in steps.results.items()}

    def _step(self, op: Any, function: Any, given: list[Any], attrs: Attributes) -> Any:
        """Add the row of a step; where its result is, or a number where it is one of numbers."""
        values = [x[()] if isinstance(x, np.ndarray) else x for x in given]
        value = np.asarray(function(*values, **attrs))
        if not any(isinstance(x, np.ndarray) for x in given):
            return value[()]
        if len(given) == 1 and isinstance(op, Primitive):
            seen = np.broadcast_to(given[0], value.shape) if op is BROADCAST else view_of(op, attrs, given[0])
            if seen is None and np.may_share_memory(value, given[0]):  # which nobody writes to
                seen = value
            if seen is not None:
                return seen
        buffer = self._room(value.shape, value.dtype)
        self.buffers.append(buffer)
        kind = np.result_type(*values)
        live: list[Any] = []
        sources = []
        for q, x in enumerate(given):
            number = not isinstance(x, np.ndarray)
            fixed = number and op is POWER and q == 1 and values[0].dtype == value.dtype
            x = np.asarray(x).item() if fixed else x
            sources.append(Source(FIXED if fixed else LIVE, x))
            live.append(np.array(x, kind if type(x) in PYTHON_S else None) if number and not fixed else x)
        compute(self._rows, Event(op, tuple(sources), attrs, buffer, False), live, buffer, False)
        return buffer
