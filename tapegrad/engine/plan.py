"""Which tapes and records a reverse sweep goes through, found and validated before anything runs.

Knows tapes, records and arrays; neither ops by name nor Tensors. A *key* says what a gradient is of: a
leaf's `Cell`, or ``(tape, record)``.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np

from tapegrad.engine.watched import BOTH
from tapegrad.errors import GraphFreedError, MutationError, TapeBusyError
from tapegrad.kernels import abi, table
from tapegrad.kernels.replay import layout
from tapegrad.kernels.replay.reading import column
from tapegrad.kernels.state import State, take
from tapegrad.kernels.words import Address
from tapegrad.ops.primitive import BY_OPCODE
from tapegrad.tape.claims import Claim
from tapegrad.tape.columns import Columns
from tapegrad.tape.record import STRIDE, Record
from tapegrad.tape.tape import LEFT, Cell, Place, Tape, checksum, give_back, leave

Result: TypeAlias = tuple[Tape, Record]
Key: TypeAlias = Cell | Result  # what a sweep finds the cotangent of
Array = np.ndarray
SMALL, SMALL_BYTES = 256, 1 << 16  # a smaller tape is left to its next pruning
MOST = 1 << 16  # records of a tape
WORDS = layout.TAPE_WORDS


class _AtWork(threading.local):
    """Weak references to the sweeps at work in this thread; compiled ones are there too."""

    def __init__(self) -> None:
        self.sweeps: list[weakref.ref[AtWork]] = []


sweeps = _AtWork()


class Job(Claim):
    """One tape's part in a sweep, which claims the tape while the sweep is at work.

    `row` is its place in the table of tapes. In `words` are `cotangents` and `flags`, an entry for each
    record, and what else the row refers to. `seeds` are the cotangents of roots: arrays or, when recording,
    Tensors. `sinks` are records wanted, `reached` those of them that a root depends on.
    `destinations` are the gradients that begin here, by record; `ripe` are the watches to be called, see
    `Leaves.of`, `hooked` are records with hooks whose rules are compiled; `spent` tells that what was read
    has been released.
    """

    __slots__ = (
        "columns", "cotangents", "destinations", "hooked", "reached", "ripe", "row", "seeds", "sinks",
        "spent", "tape", "words",
    )  # fmt: skip

    def __init__(
        self, tape: Tape, columns: Columns, row: int, sinks: list[int], more: list[int], frees: bool
    ) -> None:
        n, end = columns.n, columns.n + (columns.n + 7) // 8
        self.words = np.empty(end + len(more), np.int64)
        self.words[end:] = more
        view = self.words.data
        super().__init__(view[n:end].cast("B")[:n], frees)
        self.tape, self.columns, self.row, self.sinks, self.cotangents = tape, columns, row, sinks, view[:n]
        self.seeds: dict[int, list[Any]] = {}
        self.reached: list[int] = []
        self.destinations: dict[int, Array] = {}
        self.ripe: dict[int, list[Any]] = {}
        self.hooked: set[int] = set()
        self.spent = False

    def key(self, k: Record) -> Key:
        """What the gradient of record k is of."""
        return self.tape.imports.get(k) or self.tape.source(k) or (self.tape, k)


class Plan:
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
        self.jobs: dict[int, Job] = {}  # those planned, by serial
        self.order: list[Job] = []
        self.held: list[Array] = []  # arrays that compiled code knows by address only
        self._sinks: dict[int, list[int]] = {}  # records wanted, by serial
        self._leaves: set[Cell] = set()
        self._below: dict[int, list[int]] = {}  # records wanted of tapes below the floor, by serial
        self._sort(sinks)
        seeds: dict[int, dict[int, list[Any]]] = {}
        for tape, k, seed in roots:
            seeds.setdefault(tape.serial, {})[k] = [seed]
        self._tapes = self._between([tape for tape, _, _ in roots])
        self._lay_table()
        for serial in sorted(seeds) if every else self._tapes:
            self._read(serial).seeds = seeds.get(serial, {})
        self.state.run(layout.FIND_NEEDS)
        self._capture(captured)
        self._mark()

    # ------------------------------------------------------------ which tapes

    def _sort(self, sinks: Iterable[Key]) -> None:
        """Sort what is wanted by where it is found."""
        for key in sinks:
            if isinstance(key, Cell):
                self._leaves.add(key)
            else:
                found = self._below if key[0].serial < self.floor else self._sinks
                found.setdefault(key[0].serial, []).append(key[1])

    def _between(self, roots: Iterable[Tape]) -> dict[int, Tape]:
        """The tapes from which a way leads to what is wanted, of those that roots depend on, ascending.

        A tape imports from older ones only, so those older than all that is wanted cannot depend on it.
        """
        known = [*self._sinks, *self._below, *(cell.since or self.floor for cell in self._leaves)]
        lowest = self.lowest = self.floor if self.every else max(min(known, default=0), self.floor)
        found = {tape.serial: tape for tape in roots}
        todo = list(found.values())
        while todo:
            for older in todo.pop().older.copy():  # another thread may be recording there
                if older is not None and older.serial >= lowest and older.serial not in found:
                    found[older.serial] = older
                    todo.append(older)
        leading: dict[int, Tape] = {}
        for serial in sorted(found):
            tape = found[serial]
            if not self.every:
                wanted = self._sinks.setdefault(serial, [])
                wanted += [k for k, cell in tape.imports.copy().items() if cell in self._leaves]
                if not wanted and not any(
                    older is None or older.serial in leading or older.serial in self._below
                    for older in tape.older.copy()
                ):
                    continue
            leading[serial] = tape
        return leading

    def is_link(self, source: Any) -> TypeGuard[Place]:
        """Whether an import leads to an older tape of the sweep's."""
        return type(source) is Place and source.tape.serial >= self.floor

    # ------------------------------------------------------------ which records

    def _lay_table(self) -> None:
        """Make the table of tapes, and a state at its end."""
        self.state: State = take()
        self.state.fit(0)
        rows = np.zeros(max(1, len(self._tapes)) * WORDS, np.int64)
        self.rows = rows.data
        self.table: Address = abi.address(rows)
        self._rows = {serial: q for q, serial in enumerate(self._tapes)}
        self._serials = list(self._tapes)
        view = self.state.view
        view[layout.EVERY], view[layout.TAPES], view[layout.AT_WORK] = self.every, self.table, 0
        self._go_to_newest()

    def _go_to_newest(self) -> None:
        self.state.view[layout.TAPE] = self.table + 8 * WORDS * (len(self._tapes) - 1)

    def _at_hand(self, place: int = layout.TAPE) -> int:
        """The serial of the tape of a row that compiled code tells."""
        return self._serials[(self.state.view[place] - self.table) // (8 * WORDS)]

    def enter(self, job: Job) -> None:
        """Let the state be at a tape."""
        self.state.view[:WORDS] = self.rows[WORDS * job.row : WORDS * (job.row + 1)]

    def _address_of(self, older: Tape | None) -> Address:
        """What a row has of an older tape; see `kernels.replay.links`."""
        if older is None:
            return layout.LOST
        row = self._rows.get(older.serial)
        return 0 if row is None else self.table + 8 * WORDS * row

    def _read(self, serial: int) -> Job:
        """Fill in a tape's row."""
        tape, state, row = self._tapes[serial], self.state, self._rows[serial]
        columns = tape.sealed()
        n, freed, older = columns.n, tape.freed_flags(columns.n), tape.older.copy()
        sinks = [k for k in self._sinks.get(serial, ()) if k < n]
        if self._below:
            sinks += self._links_below(columns, older)
        more = [self._address_of(found) for found in older]
        job = self.jobs[serial] = Job(tape, columns, row, sinks, more + sinks, not self.retain)
        if n > state.n:
            state.fit(n)
        words, at = self.rows[WORDS * row : WORDS * (row + 1)], abi.address(job.words)
        columns.place(words)
        words[layout.COTANGENTS], words[layout.FLAGS] = at, at + 8 * n
        # links of the oldest tape lead to nothing that is wanted, also where what they led to was freed
        lead = self.every or bool(self._below) or serial > self.lowest
        words[layout.OLDER], words[layout.OLDER_COUNT] = at + 8 * (n + (n + 7) // 8), lead and len(older)
        words[layout.SINKS], words[layout.SINK_COUNT] = words[layout.OLDER] + 8 * len(older), len(sinks)
        words[layout.FREED] = state.unfreed_at if freed is None else abi.address(freed)
        words[layout.GUARDED] = bool(tape.guards)
        self.held.append(state.unfreed if freed is None else freed)
        if layout.BOUNDS:
            state.look(*(known.columns.values for known in self.jobs.values()))
        return job

    def _links_below(self, columns: Columns, older: list[Tape | None]) -> list[int]:
        """The links to what is wanted of tapes below the floor."""
        records, numbers, places = columns.links()
        mine = np.zeros(records.size, bool)
        for number, found in enumerate(older, 1):
            if found is not None and found.serial in self._below:
                mine |= (numbers == number) & np.isin(places, self._below[found.serial])
        return list(map(int, records[mine]))

    def _capture(self, captured: Iterable[Result]) -> None:
        """Let results that depend on a sink be sinks too."""
        for tape, k in () if self.every else captured:
            job = self.jobs.get(tape.serial)
            if job is not None and k < job.columns.n and job.flags[k] & layout.NEED:
                job.sinks.append(k)
                job.flags[k] |= layout.SINK

    def _mark(self) -> None:
        """Follow the roots down through all tapes; nothing has run yet."""
        state = self.state
        view = state.view
        for job in self.jobs.values():
            for k in job.seeds:
                job.flags[k] |= layout.MARK
                self.rows[WORDS * job.row + layout.MARKED] = 1
        while (status := state.run(layout.MARK_TAPES)) != layout.DONE:
            if status == layout.NOT_READ:
                self._read(self._at_hand(layout.UNREAD))
                state.run(layout.FIND_NEEDS, view[layout.UNREAD])
                continue
            job, k = self.jobs[self._at_hand()], view[layout.POSITION]
            if status == layout.FREED_RECORD:
                raise GraphFreedError(_freed(job.columns, k))
            self._compile(job, k)
            table.place(view)
        for serial in reversed(self._serials):
            if serial not in self.jobs:
                continue
            job = self.jobs[serial]
            if self.rows[WORDS * job.row + layout.MARKED]:
                self.order.append(job)
                self._verify(job)
                wanted = job.sinks if not self.every else {**job.tape.imports, **dict.fromkeys(job.sinks)}
                flags, n = job.flags, job.columns.n
                job.reached = [k for k in dict.fromkeys(wanted) if k < n and flags[k] & BOTH == BOTH]

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

    def _verify(self, job: Job) -> None:
        """See that what rules will read is there, and what it was where others could write to it."""
        columns, flags, tape = job.columns, job.flags, job.tape
        for k, known in tape.guards.copy().items():
            if k < columns.n and flags[k] & layout.READ and checksum(columns.values[k]) != known:
                raise MutationError(_changed(tape, columns, k))
        for k, call in tape.calls.copy().items():
            if call.released and k < columns.n and flags[k] & layout.ACTIVE:
                raise GraphFreedError(call.freed())

    # ------------------------------------------------------------ what is planned

    def reaches(self) -> set[Key]:
        """Keys that the roots depend on."""
        return {*self.start, *(job.key(k) for job in self.order for k in job.reached)}

    def watched(self) -> set[Any]:
        """What is attached to leaves that the sweep computes the gradients of."""
        return {key.hooks for key in self.reaches() if isinstance(key, Cell)}

    def will_run(self, tape: Tape, k: Record) -> bool:
        """Whether the sweep computes the gradient of a record."""
        job = self.jobs.get(tape.serial)
        return job is not None and k < job.columns.n and job.flags[k] & BOTH == BOTH

    # ------------------------------------------------------------ at work

    def __enter__(self) -> Plan:
        """Claim the tapes. Two sweeps run side by side, except on records that one of them releases."""
        begin(self)
        try:
            for job in self.order:
                for other in job.tape.claim(job):
                    if (job.frees or other.frees) and _meet(job, other):
                        raise TapeBusyError(
                            "another sweep of the same graph is running in another thread or above on the "
                            "stack, and one of the two releases what the other reads; wait for it, call both "
                            "with retain_graph=True, or record the graph separately"
                        )
            for job in self.order:
                _refuse_freed(job)  # perhaps since it was planned, and unclaimed
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        """Give the tapes free, and let go of them."""
        end(self)
        for job in self.order:
            job.tape.release(job)
            if job.tape.freed is not None and job.tape.held is None:
                shrink(job.tape, job)  # somebody released values there while this sweep was at work
        count = len(self.jobs)
        self.jobs, self._tapes = {}, {}
        self.order.clear()  # which others know, too
        give_back(count)

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

    def free(self, job: Job) -> None:
        """Release what the records of a tape that were run have read."""
        tape, flags = job.tape, job.flags
        for k in [k for k in tape.packed.copy() if k < len(flags) and flags[k] & layout.ACTIVE]:
            del tape.packed[k]
        self.enter(job)
        if spend(tape, self.state, flags, job.columns.n):
            shrink(tape, job)


def spend(tape: Tape, state: State, flags: Any, n: int) -> bool:
    """Release what the records of a sweep just run have read, and mark them; whether there are such.

    `flags` are those of the plan.
    """
    for k, call in tape.calls.copy().items():
        if k < n and flags[k] & layout.ACTIVE:
            call.release()
    marks = known = tape.freed_flags(n)
    if marks is None:
        whole = tape.columns is not None and tape.columns.n == n
        marks = np.zeros(n if whole else MOST, np.uint8)
    state.view[layout.FREED] = abi.address(marks)
    found = bool(state.run(layout.SPEND))
    if found and known is None and tape.freed is not None:  # another sweep has marked its own meanwhile
        return spend(tape, state, flags, n)
    if found:  # nothing was called since, so no other thread has come between
        tape.freed, tape.held = marks, None
    return found


def is_large(tape: Tape) -> bool:
    """Whether what the records of a tape have read is to be let go of at once."""
    log, columns = tape.log, tape.columns  # in this order, as in `Tape.sealed`
    n = len(log) // STRIDE if columns is None else columns.n
    return n > SMALL or tape.weight > SMALL_BYTES


def shrink(tape: Tape, mine: Claim | None = None) -> None:
    """Let go of what was released on a tape, if that is worth the time; a claim that is `mine` may stay."""
    if is_large(tape):
        tape.prune(mine)


def end_sweep(tape: Tape) -> None:
    """Leave a tape of which values were released; one that was left before is not pruned again, but now."""
    if tape.limit == LEFT:
        shrink(tape)
    else:
        leave(tape)


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


class AtWork(Protocol):
    """What is asked of the sweep at work by hooks and calls that wait for several gradients.

    `seen` is theirs. `watched` is what is attached to leaves that the sweep computes the gradients of, and
    `will_run` whether it computes that of a record.
    """

    seen: dict[Any, Any]

    def watched(self) -> set[Any]: ...

    def will_run(self, tape: Tape, k: Record) -> bool: ...


def begin(sweep: AtWork) -> None:
    """Let a sweep be the one at work in this thread."""
    sweeps.sweeps.append(weakref.ref(sweep))


def end(sweep: AtWork) -> None:
    """Let the sweep before this one be at work again."""
    sweeps.sweeps[:] = [other for other in sweeps.sweeps if other() not in (None, sweep)]


def at_work() -> AtWork:
    """Return the sweep at work in this thread, the innermost of several."""
    return next(sweep for other in reversed(sweeps.sweeps) if (sweep := other()) is not None)


def _refuse_freed(job: Job) -> None:
    """Refuse to run rules on a tape that read what was released."""
    freed = job.tape.freed_flags(job.columns.n)
    if freed is not None:
        flags = np.frombuffer(job.flags, np.uint8)
        wanted = np.flatnonzero(flags & layout.ACTIVE & (freed[: flags.size] * 255))
        if wanted.size:
            raise GraphFreedError(_freed(job.columns, int(wanted[-1])))


def _freed(columns: Columns, k: Record) -> str:
    op = BY_OPCODE[columns.opcode(k)]
    name = "an older tape" if op is None else op.name
    return (
        f"a second sweep through {name} (result of shape {columns.shape(k)}) needs values that the "
        "first one released; call the first backward or grad with retain_graph=True"
    )


def _changed(tape: Tape, columns: Columns, k: Record) -> str:
    forms = table.operations()[0][:, layout.FORM]
    reader = next(j for j in range(k, columns.n) if k in columns.operands(j, int(forms[columns.opcode(j)])))
    op, value = BY_OPCODE[columns.opcode(reader)], columns.values[k]
    name = getattr(tape.attrs.get(reader, {}).get("call"), "name", op.name)  # that of a user's function
    return (
        f"an array of shape {value.shape}, dtype {value.dtype} was written to after {name} had used it, "
        'and the derivative needs the values of then; pass a copy, or record under tg.guard("copy")'
    )
