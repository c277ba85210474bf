"""The reverse sweep by rules run in Python: on values that remember their history, or many sweeps in one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from tapegrad.engine.plan import Job, Key, Plan, Result
from tapegrad.engine.watched import BOTH, Leaves, after_rule
from tapegrad.kernels import abi, table
from tapegrad.kernels.replay import layout
from tapegrad.kernels.state import give
from tapegrad.ops.lanes import vjp
from tapegrad.ops.primitive import BY_OPCODE, Primitive, in_dtype
from tapegrad.tape.record import CONST, LEAF, LINK, Record
from tapegrad.tape.tape import Place, Tape

TensorOrArray: TypeAlias = Any  # what rules compute with; what a Tensor is nobody here knows
Recall = Callable[..., Any]
Known = Callable[[Tape, int], "tuple[TensorOrArray, list[TensorOrArray]] | None"]
Follow = Callable[[int, Tape, "list[Any]", "list[int]", "list[Any]"], "list[Any] | None"]


def rerecord(
    roots: Iterable[tuple[Tape, int, TensorOrArray]],
    sinks: Iterable[Key],
    every: bool,
    retain: bool,
    start: dict[Key, TensorOrArray],
    recall: Recall,
    finish: Callable[[Key, TensorOrArray], TensorOrArray],
    known: Known,
    check: Callable[[set[Key]], None] | None = None,
    lanes: int | None = None,
    inspect: Any = None,
    profile: Any = None,
    floor: int = 0,
    captured: Iterable[Result] = (),
    follow: Follow | None = None,
) -> dict[Key, TensorOrArray]:
    """As `sweep`, with results that can be differentiated again.

    Parameters
    ----------
    recall
        ``recall(value, source, exposed)`` makes a recorded value an operand again, whose history goes on
        from a leaf's `Cell` or from ``(tape, record)``; a source of None makes a constant, `exposed` if
        others can write to it.
    finish
        ``finish(key, ct)`` makes the cotangent of a record on the way into what the caller will get. The
        sweep goes on from that, so other results depend on it.
    known
        ``known(tape, k)`` gives the result and the operands of a record as they are known already, each
        None if it is not, or None.
    lanes
        How many cotangents of each root there are, along an axis in front of its own; so are the results.
    follow
        ``follow(state, tape, values, records, cotangents)`` runs the rules of a tape that nobody watches, in
        compiled code: what came to records that are not swept, each after its number, or None.
    """
    plan = Plan(roots, sinks, every, retain, start, inspect, profile, floor, captured)
    results = dict(start)
    with plan:
        if check is not None:
            check(plan.reaches())
        leaves = Leaves([], []) if floor else Leaves(plan.order, results)
        for job in plan.order:
            plan.enter(job)
            walk = _Walk(plan, job, recall, known, lanes)
            links = None if follow is None else walk.follow(follow, finish, results, leaves)
            for older, ct in walk.run(finish, results, leaves) if links is None else links:
                plan.jobs[older.tape.serial].seeds.setdefault(older.record, []).append(ct)
            if not retain:
                plan.free(job)
        leaves.rest(results)
        give(plan.state)
    return results


def _gather(found: dict[Any, TensorOrArray], key: Any, ct: TensorOrArray) -> None:
    before = found.get(key)
    found[key] = ct if before is None else before + ct


class _Walk:
    """One tape's part in a recorded sweep."""

    def __init__(self, plan: Plan, job: Job, recall: Recall, known: Known, lanes: int | None) -> None:
        self.plan, self.job, self.flags = plan, job, bytes(job.flags)
        self.recall, self.known, self.lanes = recall, known, lanes
        self.cotangents: dict[int, TensorOrArray] = {}
        for k, seeds in job.seeds.items():
            for seed in seeds:
                _gather(self.cotangents, k, seed)

    def run(
        self,
        finish: Callable[[Key, TensorOrArray], TensorOrArray],
        results: dict[Key, TensorOrArray],
        leaves: Leaves,
    ) -> list[tuple[Place, TensorOrArray]]:
        """Run the rules; returns what came to records of older tapes."""
        job, flags, cotangents = self.job, self.flags, self.cotangents
        columns, tape = job.columns, job.tape
        rows, _ = table.operations()
        ripe = leaves.of(job, flags) if leaves.cells else {}
        links: list[tuple[Place, TensorOrArray]] = []
        for k in range(columns.n - 1, -1, -1):
            ct = cotangents.pop(k, None)
            if ct is None or flags[k] & BOTH != BOTH:
                continue
            opcode = columns.opcode(k)
            if BY_OPCODE[opcode] is None:
                self._leave(k, ct, links, results)
                continue
            watch = tape.hooks.get(k)
            if watch is not None:
                ct = watch.before(ct)
            if flags[k] & layout.SINK:
                ct = results[tape, k] = finish((tape, k), ct)
            operands = columns.operands(k, int(rows[opcode, layout.FORM]))
            wanted = [slot for slot, j in enumerate(operands) if flags[j] & layout.NEED]
            if wanted:
                if watch is not None:
                    ct = watch.entering(ct)
                found = self._rule(k, ct, operands, wanted)
                if watch is not None:
                    found = after_rule(watch, found, ct, columns, operands)
                self._deposit(operands, found)
            if leaves.changed():
                ripe = leaves.late(job, flags, k)
            while ripe.get(k):
                whole = ripe[k].pop(0)
                for j in job.reached:
                    if tape.imports.get(j) in leaves.cells[whole] and j in cotangents:
                        _gather(results, tape.imports[j], cotangents.pop(j))
                leaves.call(whole, results)
                if leaves.changed():
                    ripe = leaves.late(job, flags, k, whole)
            ripe.pop(k, None)
        while ripe:
            for whole in ripe.pop(next(iter(ripe))):
                leaves.call(whole, results)
            if leaves.changed():
                ripe = leaves.late(job, flags, -1)
        return links

    def follow(
        self,
        follow: Follow,
        finish: Callable[[Key, TensorOrArray], TensorOrArray],
        results: dict[Key, TensorOrArray],
        leaves: Leaves,
    ) -> list[tuple[Place, TensorOrArray]] | None:
        """As `run`, in compiled code; None where somebody wants to see or change what comes on the way."""
        job, flags = self.job, self.flags
        tape, columns = job.tape, job.columns
        if tape.hooks or tape.packed or tape.calls or tape.guards or (leaves.cells and leaves.of(job, flags)):
            return None
        if any(flags[k] & layout.SINK and flags[k] & layout.ACTIVE for k in job.sinks):
            return None
        seeds, values = self.cotangents, columns.values_or_shapes()
        found = follow(self.plan.state.at, tape, values, list(seeds), list(seeds.values()))
        if found is None:
            return None
        links: list[tuple[Place, TensorOrArray]] = []
        for k, ct in zip(found[::2], found[1::2], strict=True):
            if BY_OPCODE[columns.opcode(k)] is None:
                self._leave(k, ct, links, results)
            elif flags[k] & layout.SINK:
                results[tape, k] = finish((tape, k), ct)
        return links

    def _leave(
        self,
        k: Record,
        ct: TensorOrArray,
        links: list[tuple[Place, TensorOrArray]],
        results: dict[Key, TensorOrArray],
    ) -> None:
        """Give the cotangent of an import to what it comes from: an older tape of the sweep, or a result."""
        source = self.job.tape.source(k)
        if self.plan.is_link(source):
            links.append((source, ct))
        else:
            _gather(results, source, ct)

    def _rule(
        self, k: Record, ct: TensorOrArray, operands: list[int], wanted: list[int]
    ) -> dict[int, TensorOrArray]:
        """Cotangents of a record's operands."""
        columns, tape = self.job.columns, self.job.tape
        op: Primitive = BY_OPCODE[columns.opcode(k)]
        value = columns.values[k]
        out, inputs = self.known(tape, k) or (None, [None] * len(operands))
        packed = {}
        if k in tape.packed:
            packed, value = tape.packed[k].values(len(operands))
        if out is None and (value is not None or op.kink):  # of a kink the record is asked for, not its value
            out = self.recall(value, (tape, k))
        inputs = [
            self._operand(j, packed.get(q)) if x is None else x
            for q, (x, j) in enumerate(zip(inputs, operands, strict=True))
        ]
        attrs = tape.attrs.get(k, {})

        def rule() -> dict[int, TensorOrArray]:
            if self.lanes is None:
                return op.vjp(ct, out, inputs, attrs, wanted)
            return vjp(op, self.lanes, ct, out, inputs, attrs, wanted)

        return self.plan.ruled(tape, k, op, rule)

    def _operand(self, j: Record, value: Any = None) -> Any:
        """An operand again; its value if the tape does not keep it."""
        columns, tape = self.job.columns, self.job.tape
        if value is None:
            value = columns.values[j]
        if value is None:
            return columns.value_or_shape(j)
        opcode = columns.opcode(j)
        if opcode == CONST:
            return self.recall(value, None, j in tape.guards)
        return self.recall(value, tape.source(j) if opcode in (LEAF, LINK) else (tape, j))

    def _deposit(self, operands: list[int], found: dict[int, TensorOrArray]) -> None:
        columns = self.job.columns
        for slot, part in found.items():
            j = operands[slot]
            _gather(self.cotangents, j, in_dtype(part, abi.DTYPES[columns.code(j)]))
