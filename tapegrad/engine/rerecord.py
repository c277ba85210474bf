"""The reverse sweep that is itself recorded: the same rules, run on values that remember their history."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tapegrad.engine.sweep import Job, Key, Sweep, value_or_shape
from tapegrad.engine.watched import BOTH, Leaves
from tapegrad.kernels import abi, table
from tapegrad.kernels.replay import layout
from tapegrad.kernels.state import give
from tapegrad.ops.primitive import BY_OPCODE
from tapegrad.tape.record import CONST, LEAF, LINK
from tapegrad.tape.tape import Tape

Recall = Callable[..., Any]


def rerecord(
    roots: Iterable[tuple[Tape, int, Any]],
    sinks: Iterable[Key],
    every: bool,
    retain: bool,
    start: dict[Key, Any],
    recall: Recall,
    settle: Callable[[Key, Any], Any],
    check: Callable[[set[Key]], None] | None = None,
) -> dict[Key, Any]:
    """As `sweep`, with results that can be differentiated again.

    Parameters
    ----------
    recall
        ``recall(value, source, exposed)`` makes a recorded value an operand again, whose history goes on
        from a leaf's `Cell` or from ``(tape, record)``; a source of None makes a constant, `exposed` if
        others can write to it.
    settle
        ``settle(key, ct)`` makes the cotangent of a record on the way into what the caller will get. The
        sweep goes on from that, so other results depend on it.
    """
    plan = Sweep(roots, sinks, every, start)
    results: dict[Key, Any] = dict(start)
    with plan:
        if check is not None:
            check(plan.reaches())
        leaves = Leaves(plan.order, results)
        for job in plan.order:
            plan._plan(job, 3)
            flags = bytes(plan.state.flags[: job.columns.n])
            for k, ct in _walk(job, flags, recall, settle, results, leaves).items():
                older, place = job.tape.imports[k]
                plan.jobs[older.serial].seeds.setdefault(place, []).append(ct)
            if not retain:
                plan._free(job)
        leaves.rest(results)
        give(plan.state)
    return results


def _gather(found: dict[Any, Any], key: Any, ct: Any) -> None:
    before = found.get(key)
    found[key] = ct if before is None else before + ct


def _walk(
    job: Job,
    flags: bytes,
    recall: Recall,
    settle: Callable[[Key, Any], Any],
    results: dict[Key, Any],
    leaves: Leaves,
) -> dict[int, Any]:
    """Run a job's rules; returns what came to the records that link to older tapes."""
    columns, tape, values = job.columns, job.tape, job.columns.values
    rows, _ = table.operations()
    cotangents: dict[int, Any] = {}
    for k, seeds in job.seeds.items():
        for seed in seeds:
            _gather(cotangents, k, seed)
    ripe = leaves.of(job, flags) if leaves.cells else {}
    links: dict[int, Any] = {}

    def operand(j: int) -> Any:
        if values[j] is None:
            return value_or_shape(columns, j)
        opcode = columns.opcode(j)
        if opcode == CONST:
            return recall(values[j], None, j in tape.guards)
        return recall(values[j], tape.imports[j] if opcode in (LEAF, LINK) else (tape, j))

    def collect(watch: Any) -> None:
        for j in job.reached:
            if tape.imports.get(j) in leaves.cells[watch] and j in cotangents:
                _gather(results, tape.imports[j], cotangents.pop(j))

    for k in range(columns.n - 1, -1, -1):
        ct = cotangents.pop(k, None)
        if ct is None or flags[k] & BOTH != BOTH:
            continue
        opcode = columns.opcode(k)
        op = BY_OPCODE[opcode]
        if op is None:
            if opcode == LINK:
                links[k] = ct
            else:
                _gather(results, tape.imports[k], ct)
            continue
        watch = tape.watches.get(k)
        if watch is not None:
            ct = watch.before(ct)
        if flags[k] & layout.SINK:
            ct = results[tape, k] = settle((tape, k), ct)
        operands = columns.operands(k, int(rows[opcode, layout.FORM]))
        wanted = [slot for slot, j in enumerate(operands) if flags[j] & layout.NEED]
        if wanted:
            if watch is not None:
                ct = watch.entering(ct)
            out = None if values[k] is None else recall(values[k], (tape, k))
            found = op.vjp(ct, out, [operand(j) for j in operands], tape.attrs.get(k, {}), wanted)
            if watch is not None:
                found = watch.after(found, ct, len(operands))
            for slot, part in found.items():
                j = operands[slot]
                dtype = abi.DTYPES[columns.code(j)]
                if dtype.kind == "f":
                    part = np.real(part)
                if part.dtype != dtype:
                    part = part.astype(dtype)
                _gather(cotangents, j, part)
        for whole in ripe.pop(k, ()):
            collect(whole)
            leaves.call(whole, results)
    for watches in ripe.values():
        for whole in watches:
            leaves.call(whole, results)
    return links
