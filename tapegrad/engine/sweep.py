"""A reverse sweep over tapes: validate everything, then run, tape by tape from the newest.

Knows tapes, records and arrays; neither ops by name nor Tensors. A *key* says what a gradient is of: a
leaf's `Cell`, or ``(tape, record)``.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Container, Iterable
from heapq import heappop, heappush
from math import prod
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from tapegrad.engine.watched import BOTH, Leaves
from tapegrad.errors import GraphFreedError, KernelError, MutationError, TapeBusyError
from tapegrad.kernels import abi, table
from tapegrad.kernels.replay import layout
from tapegrad.kernels.replay.reading import column
from tapegrad.kernels.state import NOGIL_WORK, State, give, take
from tapegrad.kernels.words import Address
from tapegrad.ops.primitive import BY_OPCODE
from tapegrad.tape import pool
from tapegrad.tape.record import LINK, STRIDE, Place, Record
from tapegrad.tape.tape import Cell, Claim, Columns, Tape, checksum, give_back

_stack = threading.local()  # sweeps at work in this thread
Result: TypeAlias = tuple[Tape, Record]
Key: TypeAlias = Cell | Result  # what a sweep finds the cotangent of
Array = np.ndarray
SMALL, SMALL_BYTES = 256, 1 << 16  # a smaller tape is left to its next pruning
MOST = 1 << 16  # records of a tape


class Job(Claim):
    """One tape's part in a sweep, which claims the tape while the sweep is at work.

    `marks` tells the records that cotangents come to from outside, `seeds` are those cotangents: arrays or,
    when recording, Tensors; `passed` those of newer tapes, in buffers of the sweep: rows of record, address,
    whether somebody else keeps it. `links` are the records reached that lead to older tapes of the sweep: the
    older one's serial, records here, records there; `reached` all others reached that import something or
    are wanted. `destinations` are the gradients of sinks, by record.
    """

    __slots__ = ("columns", "destinations", "links", "marks", "passed", "reached", "seeds", "sinks", "tape")

    def __init__(self, tape: Tape, columns: Columns, frees: bool) -> None:
        super().__init__(b"", frees)
        self.tape, self.columns = tape, columns
        self.marks = np.zeros(columns.n, np.uint8)
        self.seeds: dict[int, list[Any]] = {}
        self.passed: list[Array] = []
        self.links: list[tuple[int, Array, Array]] = []
        self.sinks: list[int] = []
        self.reached: list[int] = []
        self.destinations: dict[int, Array] = {}


class Sweep:
    """The tapes of a sweep, planned and validated.

    Parameters
    ----------
    roots
        ``(tape, record, cotangent)``; cotangents of one record must have been added up.
    sinks
        Keys whose gradients are wanted.
    every
        Whether all leaves are wanted besides.
    retain
        Whether what is read is kept for another sweep.
    start
        Gradients that are there before the sweep begins: those of roots that are leaves.
    inspect
        Sees what a rule in Python returns, or that it failed, and what in compiled code is nan.
    profile
        Takes the time of each record's rule.
    floor
        Serial of the oldest tape to go to: what is imported from older ones is as leaves are, without hooks.
    captured
        Results whose gradients are wanted where the way to a sink leads through them.
    """

    def __init__(
        self,
        roots: Iterable[tuple[Tape, int, Any]],
        sinks: Iterable[Key],
        every: bool,
        retain: bool,
        start: dict[Key, Any],
        inspect: Any = None,
        profile: Any = None,
        floor: int = 0,
        captured: Iterable[Result] = (),
    ) -> None:
        self.profile, self.floor, self.retain = profile, floor, retain
        self.every, self.start, self.inspect = every, start, inspect
        self.seen: dict[Any, Any] = {}  # what hooks and calls that wait for several gradients have seen
        self.jobs: dict[int, Job] = {}
        self.leaves = {key for key in sinks if isinstance(key, Cell) or key[0].serial < floor}
        for tape, k, seed in roots:
            job = self.job(tape)
            job.marks[k] = 1
            job.seeds[k] = [seed]
        self.state: State = take()
        self.held: list[Array] = []
        wanted = [key for key in sinks if isinstance(key, tuple) and key not in self.leaves]
        if not every:
            self._follow(wanted)
            self._capture(captured)
        else:
            for tape, k in wanted:
                self.job(tape).sinks.append(k)
        self.order = self._mark()

    def follows(self, source: Any) -> TypeGuard[Place]:
        """Whether an import leads to an older tape of the sweep's."""
        return type(source) is Place and source.tape.serial >= self.floor

    def job(self, tape: Tape) -> Job:
        job = self.jobs.get(tape.serial)
        if job is None:
            job = self.jobs[tape.serial] = Job(tape, tape.sealed(), not self.retain)
        return job

    def _follow(self, wanted: list[tuple[Tape, int]]) -> None:
        """Find the older tapes, and from the oldest on which records depend on a sink.

        Those older than all that is wanted cannot depend on it: a tape imports from older ones only.
        """
        todo = list(self.jobs.values())
        linked = False
        known = [tape.serial for tape, _ in wanted]
        for key in self.leaves:
            known.append(key[0].serial if isinstance(key, tuple) else key.since or self.floor)
        lowest = max(min(known, default=0), self.floor)
        while todo:
            for older in todo.pop().tape.older.copy():  # another thread may be recording there
                if older is not None and older.serial >= lowest:
                    linked = True
                    if older.serial not in self.jobs:
                        todo.append(self.job(older))
        for tape, k in wanted:
            if tape.serial in self.jobs:
                self.jobs[tape.serial].sinks.append(k)
        below: dict[int, list[int]] = {}  # records wanted of tapes below the floor, by serial
        for key in self.leaves:
            if isinstance(key, tuple):
                below.setdefault(key[0].serial, []).append(key[1])
        for serial in sorted(self.jobs):
            job = self.jobs[serial]
            job.sinks += [k for k, cell in job.tape.imports.copy().items() if cell in self.leaves]
            if job.tape.older:
                self._follow_links(job, below)
            if linked:
                self._find_needs(job)

    def _find_needs(self, job: Job) -> None:
        """Flag the records of a tape that depend on its sinks."""
        self._plan(job, 1)
        job.flags = bytes(self.state.flags[: job.columns.n])

    def _capture(self, captured: Iterable[Result]) -> None:
        """Let results that depend on a sink be sinks too."""
        for tape, k in captured:
            job = self.jobs.get(tape.serial)
            if job is not None and k < job.columns.n:
                if not job.flags:
                    self._find_needs(job)
                if job.flags[k] & layout.NEED:
                    job.sinks.append(k)

    def _follow_links(self, job: Job, below: dict[int, list[int]]) -> None:
        """Find the links of a tape that depend on a sink, where those of older ones are known."""
        records, numbers, places = job.columns.links()
        for number in _different(numbers):
            mine = numbers == number
            older = job.tape.older[number - 1] if number else None
            if older is not None:  # else freed: a way there must not be overlooked
                if older.serial in self.jobs:
                    known = np.frombuffer(self.jobs[older.serial].flags, np.uint8)
                    mine[mine] = known.size and known[places[mine]] & layout.NEED != 0
                else:
                    mine[mine] = np.isin(places[mine], below.get(older.serial, []))
            job.sinks += records[mine].tolist()

    def _plan(self, job: Job, phase: int) -> int:
        state, columns = self.state, job.columns
        n, view = columns.n, self.state.view
        state.fit(n)
        columns.place(view)
        state.look(columns.values)
        freed = job.tape.freed_flags(n)
        view[layout.FREED] = abi.address(state.unfreed if freed is None else freed)
        view[layout.EVERY], view[layout.PHASE] = self.every, phase
        view[layout.GUARDED] = bool(job.tape.guards)
        marked = np.flatnonzero(job.marks)
        state.buffers[layout.SEEDS][: marked.size] = marked
        view[layout.SEED_COUNT] = marked.size
        sinks = [k for k in job.sinks if k < n]
        state.buffers[layout.SINKS][: len(sinks)] = sinks
        view[layout.SINK_COUNT] = len(sinks)
        while True:
            status = state.run(layout.PLAN)
            if status == layout.DONE:
                return status
            if status == layout.KERNEL:
                self._compile(job, view[layout.POSITION])
                table.place(view)
            else:
                raise GraphFreedError(_freed(columns, view[layout.POSITION]))

    def _compile(self, job: Job, k: Record) -> None:
        """Compile all that record k can need."""
        columns = job.columns
        rows, _ = table.operations()
        opcode = columns.opcode(k)
        row, code = rows[opcode], columns.code(k)
        if row[layout.TEMPLATE] == layout.MATMUL:
            table.blas()
        if row[layout.TEMPLATE] == layout.COMPILED:
            job.tape.attrs[k]["rule"].compile()
        if row[layout.TOTAL] >= 0:
            table.kernel(int(row[layout.TOTAL]), code)
        for slot, j in enumerate(columns.operands(k, int(row[layout.FORM]))):
            partial, given, compute = int(row[layout.PARTIAL + min(slot, 2)]), columns.code(j), code
            if partial >= 0 and columns.opcode(j) != layout.CONST:
                table.kernel(partial, column(code, given))
            if column(code, given) > layout.OF_COMPLEX:
                compute += layout.PAIRS
            for source in {given, code} - {0, compute}:
                table.cast(source, compute)

    def _mark(self) -> list[Job]:
        """Follow the seeds down through all tapes; fills `reached`; nothing has run yet."""
        heap = [-serial for serial, job in self.jobs.items() if job.marks.any()]
        heap.sort()
        order = []
        while heap:
            job = self.jobs[-heappop(heap)]
            self._plan(job, 3)
            reached = self.state.buffers[layout.REACHED][: self.state.view[layout.REACHED_COUNT]]
            job.flags = bytes(self.state.flags[: job.columns.n])
            order.append(job)
            if job.tape.guards:
                self._verify(job)
            for k, call in job.tape.calls.copy().items():
                if call.released and k < job.columns.n and job.flags[k] & layout.ACTIVE:
                    raise GraphFreedError(call.freed())
            if job.tape.older:
                reached = self._mark_older(job, reached, heap)
            job.reached = reached.tolist()
        return order

    def _mark_older(self, job: Job, reached: Array, heap: list[int]) -> Array:
        """Mark what the links reached on a tape lead to; the others reached."""
        words = job.columns.words
        found = words[reached]
        numbers = np.where(found & 0xFFFF == LINK, found >> 16 & 0xFFFF, -1)
        apart = numbers == -1
        for number in _different(numbers[~apart]):
            here = reached[numbers == number]
            older = job.tape.older[number - 1] if number else None
            if older is None:  # freed since the plan, by another sweep
                raise GraphFreedError(_freed(job.columns, int(here[0])))
            if older.serial < self.floor:
                apart |= numbers == number
                continue
            places = (words[here] >> 32) - 1
            marks = self.job(older).marks
            if not marks.any():
                heappush(heap, -older.serial)
            marks[places] = 1
            job.links.append((older.serial, here, places))
        own: Array = reached[apart]
        return own

    def _verify(self, job: Job) -> None:
        """See that what others could write to, and rules will read, is what it was."""
        columns, flags = job.columns, self.state.flags
        for k, known in job.tape.guards.copy().items():
            if k < columns.n and flags[k] & layout.READ and checksum(columns.values[k]) != known:
                raise MutationError(_changed(columns, k))

    def reaches(self) -> set[Key]:
        """Keys that the roots depend on."""
        found: set[Key] = set(self.start)
        for job in self.order:
            found.update(job.tape.source(k) or (job.tape, k) for k in job.reached)
        return found

    def watched(self) -> set[Any]:
        """What is attached to leaves that the sweep computes the gradients of."""
        return {key.hooks for key in self.reaches() if isinstance(key, Cell)}

    def will_run(self, tape: Tape, k: Record) -> bool:
        """Whether the sweep computes the gradient of a record."""
        job = self.jobs.get(tape.serial)
        if job is None or k >= job.columns.n or not job.marks.any():
            return False
        mine, self.state = self.state, take()  # the plan at work is not to be touched
        try:
            self._plan(job, 3)
            return bool(self.state.flags[k] & BOTH == BOTH)
        finally:
            give(self.state)
            self.state = mine

    def __enter__(self) -> Sweep:
        """Claim the tapes. Two sweeps run side by side, except on records that one of them releases."""
        _sweeps().append(weakref.ref(self))
        try:
            for job in self.order:
                for other in job.tape.claim(job):
                    if (job.frees or other.frees) and _meet(job, other):
                        raise TapeBusyError(
                            "another sweep of the same graph is running in another thread or above on the "
                            "stack, and one of the two releases what the other reads; wait for it, call both "
                            "with retain_graph=True, or record the graph separately"
                        )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        """Give the tapes free, and let go of them."""
        _sweeps()[:] = [other for other in _sweeps() if other() not in (None, self)]
        for job in self.order:
            job.tape.release(job)
            if job.tape.freed is not None and job.tape.held is None:
                _shrink(job)  # somebody released values there while this sweep was at work
        count = len(self.jobs)
        self.jobs, self.order = {}, []
        give_back(count)

    def run(self) -> dict[Key, Array]:
        """Run all tapes; returns the gradients by key, arrays that nothing else holds."""
        results: dict[Key, Array] = dict(self.start)
        leaves = Leaves([], []) if self.floor else Leaves(self.order, results)
        single = len(self.order) == 1
        for job in self.order:
            if not single or job.tape.freed is not None:  # freed perhaps since it was planned, and unclaimed
                self._plan(job, 3)
            self._run(job, results, leaves)
            if not self.retain:
                self._free(job)
        leaves.rest(results)
        self.state.view[layout.CHECK] = 0
        give(self.state)
        return results

    def _run(self, job: Job, results: dict[Key, Array], leaves: Leaves) -> None:
        state, columns, tape = self.state, job.columns, job.tape
        view, flags, cotangents = state.view, state.flags, state.cotangents
        held = self.held  # arrays that compiled code knows by address only
        destinations = job.destinations
        ripe = leaves.of(job, flags) if leaves.cells else {}
        by_rule: Iterable[int] = (*tape.hooks, *tape.packed, *ripe)
        for k in by_rule:
            if 0 <= k < columns.n and flags[k] & BOTH == BOTH:
                flags[k] |= layout.RULE
        for k in job.reached:
            out = pool.empty(columns.shape(k), abi.DTYPES[columns.code(k)])
            destinations[k] = out
            cotangents[k] = abi.address(out)
            flags[k] |= layout.FRESH
        for k, seeds in job.seeds.items():
            for seed in seeds:
                seed = np.ascontiguousarray(seed)
                held.append(seed)
                self._add(layout.CONTRIBUTE, columns, k, abi.address(seed))
        job.seeds.clear()
        for rows in job.passed:
            self._take(columns, rows)
        job.passed.clear()
        for q in range(view[layout.PENDING_COUNT]):
            k = state.pending[q]
            state.descriptors[k] = descriptor(tape, columns, k)
        run = state.run_nogil if view[layout.WORK] > NOGIL_WORK else state.run
        stamps = None if self.profile is None else self.profile.stamps(columns.n, view)
        view[layout.CHECK] = self.inspect is not None and self.inspect.check_nan
        while True:
            status = run(layout.RUN)
            if status == layout.DONE:
                break
            k = view[layout.POSITION]
            if status == layout.PYTHON:
                flags[k] |= layout.RULE
                self._by_rule(job, k)
                view[layout.FINISH] = 1
                for watch in ripe.pop(k, ()):
                    self._collect(job, results, leaves.cells[watch])
                    leaves.call(watch, results)
            elif status == layout.ANOMALY:
                self._spoiled(job, k, view[layout.SPOILED])
            elif status == layout.MEMORY:
                raise MemoryError(f"no memory for the cotangents of {BY_OPCODE[columns.opcode(k)]}")
            elif status != layout.PAUSED:
                raise KernelError(f"the kernel of {BY_OPCODE[columns.opcode(k)]} failed")
        if stamps is not None:
            view[layout.STAMPS] = 0
            self.profile.swept(tape.serial, columns.n, columns.words, bytes(flags[: columns.n]), stamps)
        self._collect(job, results)
        for watches in ripe.values():
            for watch in watches:
                leaves.call(watch, results)
        for serial, here, places in job.links:
            at = state.buffers[layout.COTANGENTS][here]
            foreign = np.asarray(flags)[here] & layout.FOREIGN
            self.jobs[serial].passed.append(np.stack([places, at, foreign], axis=1)[at != 0])

    def _collect(self, job: Job, results: dict[Key, Array], keys: Container[Key] | None = None) -> None:
        """Take what came to a job's sinks, or to some of them, into the results."""
        for k, found in list(job.destinations.items()):
            key = job.tape.source(k) or (job.tape, k)
            if keys is None or key in keys:
                del job.destinations[k]
                if not self.state.flags[k] & layout.FRESH:  # else no cotangent came this way
                    before = results.get(key)
                    results[key] = found if before is None else before + found

    def _take(self, columns: Columns, rows: Array) -> None:
        """Take cotangents of a newer tape that stand in buffers of the sweep."""
        state, view, first, status = self.state, self.state.view, 0, layout.PYTHON
        begin = view[layout.POSITION]  # of the sweep that was planned
        while status == layout.PYTHON:
            status = state.run(layout.TAKE, abi.address(rows) + rows.strides[0] * first, len(rows) - first)
            first += view[layout.POSITION]
            if status == layout.MEMORY:
                raise MemoryError(f"no memory for a cotangent of shape {columns.shape(int(rows[first, 0]))}")
            if status == layout.PYTHON:
                k, at, foreign = rows[first].tolist()
                self._add(layout.CONTRIBUTE, columns, k, at)
                if not foreign:
                    state.run(layout.RELEASE, at)
                first += 1
        view[layout.POSITION] = begin

    def _add(self, how: int, columns: Columns, j: Record, at: int) -> None:
        dtype = abi.DTYPES[columns.code(j)]
        if dtype.char in "gG":
            self._add_extended(j, at, columns.shape(j), dtype)
        elif self.state.run(how, j, at) != layout.DONE:
            raise MemoryError(f"no memory for a cotangent of shape {columns.shape(j)}")

    def _add_extended(self, j: Record, at: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """As `_add`, in extended precision, in which compiled code does not compute."""
        flags, cotangents = self.state.flags, self.state.cotangents
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

    def _by_rule(self, job: Job, k: Record) -> None:
        """Run a record's rule in Python, on arrays."""
        state, columns, tape = self.state, job.columns, job.tape
        op = BY_OPCODE[columns.opcode(k)]
        rows, _ = table.operations()
        operands = columns.operands(k, int(rows[op.opcode, layout.FORM]))
        wanted = [slot for slot, j in enumerate(operands) if state.flags[j] & layout.NEED]
        ct = at_address(state.cotangents[k], columns.shape(k), abi.DTYPES[columns.code(k)])
        watch = tape.hooks.get(k)
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
            found = watch.after(found, ct, len(operands))
        for slot, part in found.items():
            j = operands[slot]
            dtype, shape = abi.DTYPES[columns.code(j)], columns.shape(j)
            part = np.ascontiguousarray(part.real if dtype.kind == "f" else part, dtype).reshape(shape)
            self._add(layout.DEPOSIT, columns, j, abi.address(part))

    def _parts(
        self, job: Job, k: Record, ct: np.ndarray, operands: list[int], wanted: list[int]
    ) -> dict[int, Any]:
        """What a record's rule makes of its cotangent."""
        columns, tape = job.columns, job.tape
        op, out = BY_OPCODE[columns.opcode(k)], columns.values[k]
        values = [value_or_shape(columns, j) for j in operands]
        if k in tape.packed:
            known, out = tape.packed[k].values(len(operands))
            values = [known.get(q, value) for q, value in enumerate(values)]
        return self.ruled(tape, k, op, lambda: op.vjp(ct, out, values, tape.attrs.get(k, {}), wanted))

    def _spoiled(self, job: Job, k: Record, q: int) -> None:
        """Find out what has become nan in compiled code: what record k gave operand q, or the sum with it."""
        columns = job.columns
        op = BY_OPCODE[columns.opcode(k)]
        operands = columns.operands(k, int(table.operations()[0][op.opcode, layout.FORM]))
        ct = at_address(self.state.cotangents[k], columns.shape(k), abi.DTYPES[columns.code(k)])
        self._parts(job, k, ct, operands, [q])
        self.inspect.added(job.tape, k, op, q)

    def ruled(self, tape: Tape, k: Record, op: Any, rule: Callable[[], dict[int, Any]]) -> dict[int, Any]:
        """Run a record's rule; tells who takes its time, and who inspects the sweep."""
        if self.profile is None:
            return self._inspected(tape, k, op, rule)
        with self.profile.event(
            op.node_name(tape.attrs.get(k, {})), (), True, (tape.serial, STRIDE * (k + 1))
        ):
            return self._inspected(tape, k, op, rule)

    def _inspected(
        self, tape: Tape, k: Record, op: Any, rule: Callable[[], dict[int, Any]]
    ) -> dict[int, Any]:
        if self.inspect is None:
            return rule()
        try:
            found = rule()
        except Exception:
            self.inspect.failed(tape, k, op)
            raise
        self.inspect.returned(tape, k, op, found)
        return found

    def _free(self, job: Job) -> None:
        """Release what the records just run have read."""
        tape, flags = job.tape, job.flags
        for k in [k for k in tape.packed.copy() if k < len(flags) and flags[k] & layout.ACTIVE]:
            del tape.packed[k]
        if spend(tape, self.state, job.columns.n):
            _shrink(job)


def spend(tape: Tape, state: State, n: int, marks: Any = None) -> bool:
    """Release what the records of a sweep just run have read, and mark them; whether there are such.

    `marks` has a byte for each record that the tape will have.
    """
    flags = state.flags
    for k, call in tape.calls.copy().items():
        if k < n and flags[k] & layout.ACTIVE:
            call.release()
    known = tape.freed_flags(n)
    if known is not None:
        marks = known
    elif marks is None:
        whole = tape.columns is not None and tape.columns.n == n
        marks = np.zeros(n if whole else MOST, np.uint8)
    state.view[layout.FREED] = abi.address(marks)
    found = bool(state.run(layout.SPEND))
    if found and known is None and tape.freed is not None:  # another sweep has marked its own meanwhile
        return spend(tape, state, n)
    if found:  # nothing was called since, so no other thread has come between
        tape.freed, tape.held = marks, None
    return found


def _different(numbers: Array) -> list[int]:
    """The numbers there are. `np.unique`, in C++, aborts a process that ends while a thread is in it."""
    found: list[int] = np.flatnonzero(np.bincount(numbers)).tolist()
    return found


def _shrink(job: Job) -> None:
    """Let go of what was released on a tape, where that is worth the time."""
    if job.columns.n > SMALL or job.tape.weight > SMALL_BYTES:
        job.tape.prune(job)


def _meet(mine: Job, other: Claim) -> bool:
    """Whether two sweeps of one tape run the rule of one record, and that reads what could be released."""
    n = min(len(mine.flags), len(other.flags))
    first, second = (np.frombuffer(claim.flags, np.uint8)[:n] for claim in (mine, other))
    both = np.flatnonzero(first & second & layout.ACTIVE)
    opcodes = mine.columns.words[both] & 0xFFFF
    if table.operations()[0][opcodes, layout.READS : layout.READS + 3].any():
        return True
    tape = mine.tape
    return any(k in tape.calls or k in tape.packed for k in both.tolist())


def _sweeps() -> list[weakref.ref[Sweep]]:
    try:
        return _stack.sweeps  # type: ignore[no-any-return]
    except AttributeError:
        _stack.sweeps = []
        return _stack.sweeps  # type: ignore[no-any-return]


def at_work() -> Sweep:
    """Return the sweep at work in this thread, the innermost of several."""
    return next(sweep for other in reversed(_sweeps()) if (sweep := other()) is not None)


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


def value_or_shape(columns: Columns, j: Record) -> np.ndarray:
    """A record's value, or where no rule reads it something of its shape."""
    value: np.ndarray | None = columns.values[j]
    if value is None:
        code = columns.code(j)
        return np.broadcast_to(np.empty((), abi.DTYPES.get(code, np.float64)), columns.shape(j))
    return value


def _freed(columns: Columns, k: Record) -> str:
    op = BY_OPCODE[columns.opcode(k)]
    name = "an older tape" if op is None else op.name
    return (
        f"a second sweep through {name} (result of shape {columns.shape(k)}) needs values that the "
        "first one released; call the first backward or grad with retain_graph=True"
    )


def _changed(columns: Columns, k: Record) -> str:
    forms = table.operations()[0][:, layout.FORM]
    reader = next(j for j in range(k, columns.n) if k in columns.operands(j, int(forms[columns.opcode(j)])))
    op, value = BY_OPCODE[columns.opcode(reader)], columns.values[k]
    return (
        f"an array of shape {value.shape}, dtype {value.dtype} was written to after {op.name} had used it, "
        'and the derivative needs the values of then; pass a copy, or record under tg.guard("copy")'
    )


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
