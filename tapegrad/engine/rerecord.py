"""The reverse sweep by rules run in Python: on values that remember their history, or many sweeps in one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tapegrad.engine.sweep import Job, Key, Sweep, value_or_shape
from tapegrad.kernels import abi, table
from tapegrad.kernels.replay import layout
from tapegrad.kernels.state import give
from tapegrad.ops.lanes import vjp
from tapegrad.ops.primitive import BY_OPCODE
from tapegrad.tape.record import CONST, LEAF, LINK
from tapegrad.tape.tape import Tape

Recall = Callable[..., Any]
Noted = Callable[[Tape, int], "tuple[Any, list[Any]] | None"]


def rerecord(
    roots: Iterable[tuple[Tape, int, Any]],
    sinks: Iterable[Key],
    every: bool,
    retain: bool,
    recall: Recall,
    noted: Noted,
    check: Callable[[set[Key]], None] | None = None,
    lanes: int | None = None,
) -> dict[Key, Any]:
    """As `sweep`, with results that can be differentiated again.

    Parameters
    ----------
    recall
        ``recall(value, source, exposed)`` makes a recorded value an operand again, whose history goes on
        from a leaf's `Cell` or from ``(tape, record)``; a source of None makes a constant, `exposed` if
        others can write to it.
    noted
        ``noted(tape, k)`` gives the result and the operands of a record as they are known already, each
        None if it is not, or None.
    lanes
        How many cotangents of each root there are, along an axis in front of its own; so are the results.
    """
    plan = Sweep(roots, sinks, every)
    results: dict[Key, Any] = {}
    with plan:
        if check is not None:
            check(plan.reaches())
        for job in plan.order:
            plan._plan(job, 3)
            flags = bytes(plan.state.flags[: job.columns.n])
            for key, ct in _walk(job, flags, recall, noted, lanes).items():
                if type(key) is tuple and job.columns.opcode(key[1]) == LINK:
                    older, place = job.tape.imports[key[1]]
                    plan.jobs[older.serial].seeds.setdefault(place, []).append(ct)
                else:
                    _gather(results, key, ct)
            if not retain:
                plan._free(job)
        give(plan.state)
    return results


def _gather(found: dict[Any, Any], key: Any, ct: Any) -> None:
    before = found.get(key)
    found[key] = ct if before is None else before + ct


def _walk(job: Job, flags: bytes, recall: Recall, noted: Noted, lanes: int | None) -> dict[Key, Any]:
    columns, tape, values = job.columns, job.tape, job.columns.values
    rows, _ = table.operations()
    cotangents: dict[int, Any] = {}
    for k, seeds in job.seeds.items():
        for seed in seeds:
            _gather(cotangents, k, seed)
    results: dict[Key, Any] = {}
    both = layout.NEED | layout.MARK

    def operand(j: int) -> Any:
        if values[j] is None:
            return value_or_shape(columns, j)
        opcode = columns.opcode(j)
        if opcode == CONST:
            return recall(values[j], None, j in tape.guards)
        return recall(values[j], tape.imports[j] if opcode in (LEAF, LINK) else (tape, j))

    for k in range(columns.n - 1, -1, -1):
        if flags[k] & both != both:
            continue
        ct = cotangents.pop(k, None)
        if ct is None:
            continue
        opcode = columns.opcode(k)
        if flags[k] & layout.SINK:
            _gather(results, tape.imports[k] if opcode == LEAF else (tape, k), ct)
        op = BY_OPCODE[opcode]
        if op is None:
            continue
        operands = columns.operands(k, int(rows[opcode, layout.FORM]))
        wanted = [slot for slot, j in enumerate(operands) if flags[j] & layout.NEED]
        out, inputs = noted(tape, k) or (None, [None] * len(operands))
        if out is None and values[k] is not None:
            out = recall(values[k], (tape, k))
        inputs = [operand(j) if x is None else x for x, j in zip(inputs, operands, strict=True)]
        attrs = tape.attrs.get(k, {})
        if lanes is None:
            found = op.vjp(ct, out, inputs, attrs, wanted)
        else:
            found = vjp(op, lanes, ct, out, inputs, attrs, wanted)  # type: ignore[no-untyped-call]
        for slot, part in found.items():
            j = operands[slot]
            dtype = abi.DTYPES[columns.code(j)]
            if dtype.kind == "f":
                part = np.real(part)
            if part.dtype != dtype:
                part = part.astype(dtype)
            _gather(cotangents, j, part)
    return results
