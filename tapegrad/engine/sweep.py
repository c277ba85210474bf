"""A reverse sweep over tapes: what Python does for the compiled one, `kernels.replay.tapes`.

Knows tapes, records and arrays; neither ops by name nor Tensors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Container, Iterable
from math import prod
from typing import Any

import numpy as np

from tapegrad.engine.plan import WORDS, Array, Job, Key, Plan, Result, is_large
from tapegrad.engine.watched import BOTH, Leaves, after_rule
from tapegrad.errors import KernelError
from tapegrad.kernels import abi, table
from tapegrad.kernels.replay import layout
from tapegrad.kernels.state import NOGIL_WORK, give
from tapegrad.kernels.words import Address
from tapegrad.ops.primitive import BY_OPCODE
from tapegrad.tape import pool
from tapegrad.tape.columns import Columns
from tapegrad.tape.record import LINK, Record
from tapegrad.tape.tape import Tape


class Destination:
    """Where a gradient goes, and the oldest record of the sweep that contributes to it."""

    __slots__ = ("array", "job", "k", "key")

    def __init__(self, key: Key, array: Array, job: Job, k: Record) -> None:
        self.key, self.array, self.job, self.k = key, array, job, k

    def goes_on(self, job: Job, shape: tuple[int, ...], dtype: Any) -> bool:
        """Whether compiled code can add what comes to a record of an older tape, of this shape and dtype."""
        fits = self.array.shape == shape and self.array.dtype == dtype and dtype.char not in "gG"
        return fits and self.job is not job


class Sweep(Plan):
    """A planned sweep, run on arrays."""

    results: dict[Key, Array]
    leaves: Leaves
    destinations: list[Destination]

    def run(self) -> dict[Key, Array]:
        """Run all tapes; returns the gradients by key, arrays that nothing else holds."""
        state, view = self.state, self.state.view
        self.results = dict(self.start)
        self.leaves = Leaves([], []) if self.floor else Leaves(self.order, self.results)
        self._find_destinations()
        self._place_seeds()
        work = 0
        for job in self.order:
            if self.leaves.cells:
                job.ripe = self.leaves.of(job, job.flags)
            self._flag_rules(job)
            row = WORDS * job.row
            work += self.rows[row + layout.WORK]
            self.rows[row + layout.STOPS] = self._stops(job)
        run = state.run_nogil if work > NOGIL_WORK else state.run
        view[layout.CHECK] = self.inspect is not None and self.inspect.check_nan
        view[layout.AT_WORK] = view[layout.TOUCHED] = view[layout.STOP_EACH] = 0
        self._go_to_newest()
        try:
            self._run_tapes(run)
        finally:
            if not self.retain:
                self._free_swept()
        self._collect()
        self.leaves.rest(self.results)
        view[layout.CHECK] = 0
        give(state)
        return self.results

    def _run_tapes(self, run: Callable[[int], int]) -> None:
        """Go on until all is swept, doing in between what compiled code leaves to Python."""
        view = self.state.view
        while (status := run(layout.RUN_TAPES)) != layout.DONE:
            job, k = self.jobs[self._at_hand()], view[layout.POSITION]
            if status == layout.ENTERED:
                self._enter_tape(job)
            elif status == layout.LEFT_TAPE:
                self._leave_tape(job)
            elif status == layout.PYTHON:
                self._in_python(job, k)
            elif status == layout.ANOMALY:
                self._spoiled(job, k, view[layout.SPOILED])
            elif status == layout.MEMORY:
                raise MemoryError(f"no memory for the cotangents of {BY_OPCODE[job.columns.opcode(k)]}")
            elif status != layout.PAUSED:
                raise KernelError(f"the kernel of {BY_OPCODE[job.columns.opcode(k)]} failed")

    def _find_destinations(self) -> None:
        """Make the arrays of the gradients. That of a leaf goes on from each tape to the next older one."""
        self.destinations, used = [], 0
        known: dict[Key, Destination] = {}
        words = np.empty(3 * sum(len(job.reached) for job in self.order[1:]), np.int64)
        self.held.append(words)
        joins, at, rows = words.data, abi.address(words), self.rows
        for job in self.order:
            columns, row, begin = job.columns, WORDS * job.row, used
            for k in job.reached:
                key, value = job.key(k), columns.values[k]
                if value is None:
                    shape, dtype = columns.shape(k), abi.DTYPES[columns.code(k)]
                else:
                    shape, dtype = value.shape, value.dtype
                found = known.get(key)
                if found is not None and found.goes_on(job, shape, dtype):
                    newer = self._address_of(found.job.tape)
                    joins[used], joins[used + 1], joins[used + 2] = k, newer, found.k
                    found.job, found.k = job, k
                    used += 3
                else:
                    found = Destination(key, pool.empty(shape, dtype), job, k)
                    self.destinations.append(found)
                    known.setdefault(key, found)
                    job.destinations[k] = found.array
                    job.cotangents[k] = abi.address(found.array)
                    job.flags[k] |= layout.FRESH
            rows[row + layout.JOINS], rows[row + layout.JOIN_COUNT] = at + 8 * begin, (used - begin) // 3

    def _place_seeds(self) -> None:
        """Let the cotangents of roots come to them."""
        for job in self.order:
            if job.seeds:
                self.enter(job)
            for k, seeds in job.seeds.items():
                for seed in seeds:
                    seed = np.ascontiguousarray(seed)
                    self.held.append(seed)
                    self._add(layout.CONTRIBUTE, job, k, abi.address(seed))
            job.seeds.clear()

    def _flag_rules(self, job: Job) -> None:
        """Say which rules of a tape are Python's."""
        tape, flags = job.tape, job.flags
        for k in (*tape.packed, *job.ripe, *tape.hooks):
            if 0 <= k < job.columns.n and flags[k] & BOTH == BOTH and not flags[k] & layout.RULE:
                flags[k] |= layout.RULE
                if k in tape.hooks and k not in tape.packed and k not in job.ripe:
                    job.hooked.add(k)

    def _stops(self, job: Job) -> int:
        """Where Python has a turn at a tape, beside its rules."""
        before = after = self.profile is not None
        before |= self.rows[WORDS * job.row + layout.PENDING_COUNT] != 0
        after |= bool(job.ripe)
        if not self.retain:
            after |= bool(is_large(job.tape) or job.tape.calls or job.tape.packed)
        return layout.BEFORE * before | layout.AFTER * after

    def _enter_tape(self, job: Job) -> None:
        """Take in what was attached meanwhile, and describe what compiled rules have to know."""
        state = self.state
        self._flag_rules(job)
        for k in state.pending[: state.view[layout.PENDING_COUNT]]:
            state.descriptors[k] = descriptor(job.tape, job.columns, k)
        if self.profile is not None:
            self.stamps = self.profile.stamps(job.columns.n, state.view)

    def _leave_tape(self, job: Job) -> None:
        """Tell of a tape that was swept, and release what its records have read."""
        if self.profile is not None:
            self.state.view[layout.STAMPS] = 0
            n, words = job.columns.n, job.columns.words
            self.profile.swept(job.tape.serial, n, words, bytes(job.flags), self.stamps)
        while job.ripe:
            self.state.view[layout.STOP_EACH] = 1
            for watch in job.ripe.pop(next(iter(job.ripe))):
                self._call(watch)
            self._take_in(job, -1)
        if not self.retain:
            self.free(job)
            job.spent = True

    def _free_swept(self) -> None:
        """Release what was read on the tapes that were swept, where it was not released at once."""
        at = (self.state.view[layout.TAPE] - self.table) // (8 * WORDS)
        for job in self.order:
            if job.row > at and not job.spent:
                self.free(job)

    def _in_python(self, job: Job, k: Record) -> None:
        """Do what compiled code cannot at a record."""
        if job.columns.opcode(k) == LINK:
            return self._hand_over(job, k)
        hooked = k in job.hooked and self._by_hooks(job, k)
        if hooked:
            self._take_in(job, k)
        if not hooked or k in job.ripe:  # by its hooks, which have run
            job.flags[k] |= layout.RULE
            self._by_rule(job, k, None if hooked else job.tape.hooks.get(k))
            self.state.view[layout.FINISH] = 1
            self._take_in(job, k)
        while ripe := job.ripe.get(k):
            watch = ripe.pop(0)
            self._call(watch)
            self._take_in(job, k, watch)
        job.ripe.pop(k, None)
        self.state.view[layout.STOP_EACH] = 1  # it may have attached something to records of older tapes

    def _take_in(self, job: Job, k: Record, called: Any = None) -> None:
        """Take in what was attached at a record, before its rule had run or by a watch that was `called`."""
        if not self.leaves.changed():
            return
        flags = job.flags[k] if k >= 0 else 0  # of the record whose hooks have run
        job.ripe = self.leaves.late(job, job.flags, k, called)
        job.hooked -= job.ripe.keys()
        self._flag_rules(job)
        if k >= 0:
            job.flags[k] = flags
        for other in self.order:
            if other.row < job.row:
                other.ripe = self.leaves.of(other, other.flags)
            self.rows[WORDS * other.row + layout.STOPS] = self._stops(other)

    def _call(self, watch: Any) -> None:
        """Let a watch of a leaf see its gradient, which is whole."""
        self._collect(self.leaves.cells[watch])
        self.leaves.call(watch, self.results)

    def _collect(self, keys: Container[Key] | None = None) -> None:
        """Take the gradients, or some of them, into the results."""
        rest = []
        for found in self.destinations:
            if keys is not None and found.key not in keys:
                rest.append(found)
            elif not found.job.flags[found.k] & layout.FRESH:  # else no cotangent came this way
                before = self.results.get(found.key)
                self.results[found.key] = found.array if before is None else before + found.array
        self.destinations = rest

    def _hand_over(self, job: Job, k: Record) -> None:
        """As compiled `hand_over`, in extended precision."""
        _, number, place = job.columns.operation(k)
        older = self.jobs[job.tape.older[number - 1].serial]  # type: ignore[union-attr]
        at, j = job.cotangents[k], place - 1
        self._add_extended(older, j, at)
        if not job.flags[k] & layout.FOREIGN:
            self.state.run(layout.RELEASE, at)
        job.cotangents[k] = 0

    def _add(self, how: int, job: Job, j: Record, at: int) -> None:
        """Add what stands at an address to the cotangent of a record of the tape at hand."""
        columns = job.columns
        if abi.DTYPES[columns.code(j)].char in "gG":
            self._add_extended(job, j, at)
        elif self.state.run(how, j, at) != layout.DONE:
            raise MemoryError(f"no memory for a cotangent of shape {columns.shape(j)}")

    def _add_extended(self, job: Job, j: Record, at: int) -> None:
        """As `_add`, in extended precision, in which compiled code does not compute."""
        flags, cotangents, shape = job.flags, job.cotangents, job.columns.shape(j)
        dtype = abi.DTYPES[job.columns.code(j)]
        part = at_address(at, shape, dtype)
        if cotangents[j] and not flags[j] & layout.FOREIGN:
            total = at_address(cotangents[j], shape, dtype)
            total.flags.writeable = True
            total[...] = part if flags[j] & layout.FRESH else total + part
            flags[j] &= ~layout.FRESH & 0xFF
        else:
            total = part.copy()
            if cotangents[j]:
                total += at_address(cotangents[j], shape, dtype)  # in place, as `+` may make a scalar
            self.held.append(total)
            cotangents[j] = abi.address(total)
            flags[j] |= layout.FOREIGN

    def _by_hooks(self, job: Job, k: Record) -> bool:
        """Run a record's hooks, and let its compiled rule run next; False, with nothing done, if it cannot.

        As compiled `suspending.go_on_compiled`; nor can it where what it gives is inspected.
        """
        tape, flags = job.tape, job.flags
        watch, reached = tape.hooks.get(k), k in job.destinations
        if watch is None or watch.post or (reached and watch.pre) or self.inspect is not None:
            return False
        if flags[k] & (layout.ACTIVE | layout.FOREIGN) != layout.ACTIVE or self.state.descriptors[k] == -1:
            return False
        shape, dtype = job.columns.shape(k), abi.DTYPES[job.columns.code(k)]
        ct = watch.entering(watch.before(at_address(job.cotangents[k], shape, dtype)))
        place = at_address(job.cotangents[k], shape, dtype)
        place.flags.writeable = True
        place[...] = ct
        flags[k] &= ~layout.RULE & 0xFF
        return True

    def _by_rule(self, job: Job, k: Record, watch: Any) -> None:
        """Run a record's rule in Python, on arrays."""
        columns, flags = job.columns, job.flags
        op = BY_OPCODE[columns.opcode(k)]
        rows, _ = table.operations()
        operands = columns.operands(k, int(rows[op.opcode, layout.FORM]))
        wanted = [slot for slot, j in enumerate(operands) if flags[j] & layout.NEED]
        ct = at_address(job.cotangents[k], columns.shape(k), abi.DTYPES[columns.code(k)])
        if watch is not None:
            ct = watch.before(ct)
            if k in job.destinations:
                job.destinations[k][...] = ct
        if not wanted:
            return
        if watch is not None:
            ct = watch.entering(ct)
        found = self._parts(job, k, ct, operands, wanted)
        if watch is not None:
            found = after_rule(watch, found, ct, columns, operands)
        for slot, part in found.items():
            j = operands[slot]
            dtype, shape = abi.DTYPES[columns.code(j)], columns.shape(j)
            part = np.ascontiguousarray(part.real if dtype.kind == "f" else part, dtype).reshape(shape)
            self._add(layout.DEPOSIT, job, j, abi.address(part))

    def _parts(
        self, job: Job, k: Record, ct: np.ndarray, operands: list[int], wanted: list[int]
    ) -> dict[int, Any]:
        """What a record's rule makes of its cotangent."""
        columns, tape = job.columns, job.tape
        op, out = BY_OPCODE[columns.opcode(k)], columns.values[k]
        values = [columns.value_or_shape(j) for j in operands]
        if k in tape.packed:
            known, out = tape.packed[k].values(len(operands))
            values = [known.get(q, value) for q, value in enumerate(values)]
        return self.ruled(tape, k, op, lambda: op.vjp(ct, out, values, tape.attrs.get(k, {}), wanted))

    def _spoiled(self, job: Job, k: Record, q: int) -> None:
        """Find out what has become nan in compiled code: what record k gave operand q, or the sum with it."""
        columns = job.columns
        op = BY_OPCODE[columns.opcode(k)]
        operands = columns.operands(k, int(table.operations()[0][op.opcode, layout.FORM]))
        ct = at_address(job.cotangents[k], columns.shape(k), abi.DTYPES[columns.code(k)])
        self._parts(job, k, ct, operands, [q])
        self.inspect.added(job.tape, k, op, q)


def descriptor(tape: Tape, columns: Columns, k: Record) -> Address:
    """The address of words that tell compiled code what record k does; -1 if only its rule can."""
    words: Any = tape.described.get(k)
    if words is None:
        op = BY_OPCODE[columns.opcode(k)]
        operands = columns.operands(k, op.recorded_form)
        found = op.lower(columns, k, operands, tape.attrs.get(k, {}))
        words = tape.described[k] = False if found is None else np.asarray(found, np.int64)
    elif type(words) is bytes:
        words = tape.described[k] = np.frombuffer(words, np.int64)
    return -1 if words is False else abi.address(words)


def at_address(address: Address, shape: tuple[int, ...], dtype: Any) -> Array:
    """An array in memory of the sweep, to be read before the sweep goes on."""
    size = prod(shape) * dtype.itemsize
    if size == 0:
        return np.empty(shape, dtype)
    array: Array = np.ndarray(shape, dtype, (ctypes.c_char * size).from_address(address))
    array.flags.writeable = False
    return array


def sweep(
    roots: Iterable[tuple[Tape, int, Any]],
    sinks: Iterable[Key],
    every: bool,
    retain: bool,
    start: dict[Key, Any],
    check: Callable[[set[Key]], None] | None = None,
    inspect: Any = None,
    profile: Any = None,
    floor: int = 0,
    captured: Iterable[Result] = (),
) -> dict[Key, Array]:
    """Return the gradients by key; `check` sees which keys the roots reach before anything runs."""
    plan = Sweep(roots, sinks, every, retain, start, inspect, profile, floor, captured)
    with plan:
        if check is not None:
            check(plan.reaches())
        return plan.run()
