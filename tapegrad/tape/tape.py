"""The tape: an append-only list of records, sealed into columns, pruned of what nobody can reach.

A handle owns its tape, a tape owns what it reads from older tapes, nothing else owns anything: so
reference counting frees all of it. The current tape belongs to its thread. A tape imports from lower
serials only, which makes serial order topological.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, NamedTuple, Protocol

import numpy as np

from tapegrad.kernels import abi, machine, table
from tapegrad.kernels.replay import layout
from tapegrad.tape import links, pool, pruning
from tapegrad.tape.claims import Claim
from tapegrad.tape.columns import Columns, operands_of, read
from tapegrad.tape.record import CONST, LEAF, LINK, STRIDE, Position, Record, Value, slot
from tapegrad.tape.show import show

MAX_RECORDS = 4096
MAX_BYTES = 1 << 22
LARGE = 1 << 12  # bytes, above which a value is kept only if a derivative reads it, and then has weight
LEFT = -1  # the limit of a tape that takes no more records
FEW = 64
SERIAL_BITS = 48
SERIAL = (1 << SERIAL_BITS) - 1
SEVERAL = 50  # tapes released at once, after which the memory they leave is worth giving back
MANY = 100  # and that of large buffers, too


class Place(NamedTuple):
    """A record of a tape. No plain tuple: CPython keeps dead ones for reuse, and with them their arenas."""

    tape: Tape
    record: Record


class Op(Protocol):
    """What a tape knows of an op."""

    opcode: int

    @property
    def masks(self) -> Sequence[int]:
        """Which values its derivative reads, for each operand."""


next_serial = count(1).__next__


class Cell:
    """What tapes know a leaf or a constant by: refers weakly to the handle, owns no gradient."""

    __slots__ = ("__weakref__", "handle", "hooks", "shared", "since")

    def __init__(self, handle: Any) -> None:
        self.handle = weakref.ref(handle)
        self.since: int | None = None  # serial of the oldest tape that has imported it
        self.shared = False  # the handle's buffer belongs to somebody else: each use is an import
        self.hooks: Any = None  # what the user attached; see `tapegrad.engine.watched`


class TapeClosed(Exception):
    """A finalizer or a handler closed the tape while a record was on its way to it: record anew.

    So it is where another thread gave out what is to be imported.
    """


class Outgrown(BaseException):
    """What is recorded does not fit on one tape, as was asked for. Handlers of exceptions let it through."""


class Anchor:
    """Keeps a record that is needed, though its value is not."""

    __slots__ = ("__weakref__",)


class _Drain:
    """One call that releases tapes; stands for it in `local.draining`."""


class _Local(threading.local):
    tape: Tape | None = None

    def __init__(self) -> None:
        self.seals = 0
        self.newest: Any = lambda: None  # refers weakly to the tape closed last
        self.due: list[int] = []  # a heap: by which seal a tape is pruned, with its serial
        self.young: dict[int, weakref.ref[Tape]] = {}  # those tapes by serial
        self.unlinking: list[Any] = []
        self.draining: weakref.ref[Any] | None = None  # to the call that unlinks; dies with it
        self.only: Tape | None = None  # to which another tape must not follow


local = _Local()
newest: list[Tape | None] = [
    None
]  # of all threads the open tape last asked for; compiled code looks here first


class Tape:
    """Records of one thread, until sealed open at the end."""

    __slots__ = (
        "__weakref__",
        "anchored",
        "anchors",
        "attrs",
        "calls",
        "claims",
        "columns",
        "constants",
        "count",
        "described",
        "freed",
        "guards",
        "held",
        "hooks",
        "imports",
        "latest",
        "leaves",
        "limit",
        "lines",
        "links",
        "log",
        "numbers",
        "older",
        "owner",
        "packed",
        "placeholder",
        "retained",
        "secured",
        "serial",
        "shadows",
        "wait",
        "weight",
    )

    def __init__(self) -> None:
        self.serial = next_serial()
        self.owner = float(threading.get_ident())  # as compiled code compares it
        self.log: list[Any] = []
        self.limit = STRIDE * MAX_RECORDS
        self.weight = 0
        self.wait = 1  # seals from one pruning to the next
        self.leaves: dict[Cell, Position] = {}  # positions of what is imported, by what it is
        self.constants: dict[Cell, Position] = {}
        self.numbers: dict[float, Position] = {}
        self.links: bytearray | None = None  # see `tapegrad.tape.links`
        self.imports: dict[Record, Cell] = {}  # leaves, by record
        self.older: list[Tape | None] = []  # tapes that records link to, which have their numbers, from 1
        # where Python imported what is guarded, by what and where it is
        self.secured: dict[Hashable, int] = {}
        self.guards: dict[Record, int] = {}  # record -> checksum of its value
        self.attrs: dict[Record, dict[str, Any]] = {}
        self.described: dict[Record, Any] = {}
        self.retained: dict[Record, weakref.ref[Any]] = {}
        self.calls: dict[Record, Any] = {}  # what calls of users' functions keep until a sweep, by record
        self.anchors: list[Anchor] = []  # of records of older tapes
        self.anchored: dict[Position, weakref.ref[Anchor]] = {}  # this tape's anchors, by position
        # what stands for values that were not kept; see `core.saved_values`
        self.packed: dict[Record, Any] = {}
        self.lines: list[Any] = []  # where the user's code made records, in anomaly mode; see `Lines`
        self.hooks: dict[Record, Any] = {}  # what the user attached to records
        self.shadows: dict[Position, weakref.ref[Any]] = {}  # large values that are not kept, by position
        self.placeholder: np.ndarray | None = None  # what stood last for such a value
        self.latest = pool.latest()
        self.columns: Columns | None = None
        self.freed: np.ndarray | None = None
        self.held: np.ndarray | None = None  # records whose handles lived at the last pruning
        self.count = 0  # of references to this tape when it was last seen that no handle is lost
        self.claims: dict[weakref.ref[Claim], None] = {}  # of sweeps at work, in the order they came

    # ------------------------------------------------------------ recording

    def append(
        self, op: int, first: Position, second: int, value: Any, source: Cell | None = None
    ) -> Position:
        """Commit one record and return its position; `source` is the leaf that is imported.

        Raises `TapeClosed` where the tape takes no more. Where objects are made or functions called, garbage
        may be collected, and finalizers record, sweep and close tapes. So nothing of that stands between the
        look at the limit and the log's new length, under which is noted what a record has beside the log.
        """
        entry = op, first, second, value
        log = self.log
        if self.limit == LEFT:
            raise TapeClosed
        log += entry
        at = len(log)
        if source is not None:
            self.imports[slot(at)] = source
            if source.since is None or source.since > self.serial:
                source.since = self.serial
        return at

    def commit(
        self, op: Op, places: Sequence[int], operands: Sequence[Any], second: int, value: Any
    ) -> Position:
        """As `append`, for any op: of large values only those that its derivative reads are kept.

        Another result is logged as its shadow until a later op reads it, and dies with its handle.
        """
        if not self.shadows and value.nbytes <= LARGE:
            return self.append(op.opcode, places[0], second, value)
        log, masks = self.log, op.masks
        if self.limit == LEFT:
            raise TapeClosed
        reads = 0
        for q, at in enumerate(places):
            if log[at - STRIDE] != CONST:
                reads |= masks[q if q < 2 else 2]
        for q, at in enumerate(places):
            if reads >> (q if q < 2 else 2) & 1:
                self._keep(at, operands[q])
        if reads & 8 or value.nbytes <= LARGE:
            self.weigh(value.nbytes)
            return self.append(op.opcode, places[0], second, value)
        placeholder, alive = self.placeholder, weakref.ref(value)
        if placeholder is None or placeholder.shape != value.shape or placeholder.dtype is not value.dtype:
            placeholder = self.placeholder = pool.shadow(value)
        at = self.append(op.opcode, places[0], second, placeholder)
        self.shadows[at] = alive
        return at

    def _keep(self, at: Position, value: Any) -> None:
        """Log a value that a derivative reads where its shadow stands."""
        if self.limit == LEFT:
            raise TapeClosed  # its log was read
        if at in self.shadows:
            self.log[at - 1] = value
            del self.shadows[at]
            if not self._is_of_leaf(at, value):
                self.weigh(value.nbytes)

    def _is_of_leaf(self, at: Position, value: np.ndarray) -> bool:
        """Whether a value lies in the memory of a leaf, its record's first operand, which has it anyway."""
        log, base = self.log, value.base
        first = log[at - STRIDE + 1]
        if base is None or not first or log[first - STRIDE] != LEAF:
            return False
        known = log[first - 1]
        return base is known or base is getattr(known, "base", None)

    def keep_late(self, at: Position, value: np.ndarray) -> None:
        """Log a value that was computed after its record was committed; refer to it if the tape is left."""
        if self.limit == LEFT:
            self.shadows[at] = weakref.ref(value)
        else:
            self._keep(at, value)

    def weigh(self, nbytes: int) -> None:
        """Close soon when the values that only this tape keeps grow large: a closed tape can be pruned."""
        self.weight += nbytes
        if self.weight > MAX_BYTES and self.limit > 0:
            self.limit = 0

    def leaf(self, cell: Cell, value: Value) -> Position:
        at = self.leaves.get(cell)
        if at is None:
            at = self.leaves[cell] = self.append(LEAF, 0, 0, value, cell)
        return at

    def link(self, tape: Tape, at: Position, value: Value) -> Position:
        """Import a record of an older tape, which keeps it: by its value, or else by an anchor."""
        key = links.key_of(tape.serial, at)
        mine = links.find(self.links, key)
        if mine is None:
            if tape.value(slot(at)) is not value:
                self.anchors.append(tape.anchor(at))
            mine = self.append(LINK, self._number_of(tape), at, value)
            self.links = links.with_link(self.links, key, mine)
        return mine

    def _number_of(self, tape: Tape) -> int:
        """By what number links know an older tape."""
        older = self.older
        for number in range(len(older), 0, -1):
            if older[number - 1] is tape:
                return number
        older.append(tape)
        return len(older)

    def source(self, k: Record) -> Cell | Place | None:
        """What record k imports; None where it imports nothing, or what it led to has been freed."""
        found = self.imports.get(k)
        if found is not None:
            return found
        opcode, number, record = self.operation(k)
        older = self.older[number - 1] if opcode == LINK and number else None
        return None if older is None else Place(older, record - 1)

    def sources(self) -> Iterator[tuple[Record, Cell | Place]]:
        """All records that import leaves or results of older tapes, and what they import."""
        known, columns = self.links, self.columns  # in this order, as in `operation`
        records = map(slot, links.positions(known)) if columns is None else columns.links()[0].tolist()
        yield from list(self.imports.items())
        for k in records:
            source = self.source(k)
            if source is not None:
                yield k, source

    def anchor(self, at: Position) -> Anchor:
        """Return what keeps a record while somebody holds it, though nobody holds the value."""
        known = self.anchored.get(at)
        found = None if known is None else known()
        if found is None:
            found = Anchor()
            self.anchored[at] = weakref.ref(found)
        return found

    def constant(self, cell: Cell | None, value: Value) -> Position:
        at = self.constants.get(cell) if cell is not None else None
        if at is None:
            at = self.append(CONST, 0, 0, value)
            if cell is not None:
                self.constants[cell] = at
            elif value.nbytes > LARGE:
                self.weigh(value.nbytes)
        return at

    def guard(self, cell: Cell | None, value: np.ndarray) -> Position:
        """Import memory that others can write to, a leaf's or a constant's; unchanged it is one record."""
        key = abi.address(value) if cell is None else (cell, abi.address(value))
        found = checksum(value)
        at = self.secured.get(key)
        if at is None or self.guards.get(slot(at)) != found or not _same_layout(self.log[at - 1], value):
            self.weigh(value.nbytes // layout.LENT)
            at = self.append(CONST if cell is None else LEAF, 0, 0, value.view(), cell)
            self.secured[key] = at
            self.guards[slot(at)] = found
        return at

    def number(self, value: float) -> Position:
        """A Python number; zeros are not shared, as 0.0 == -0.0."""
        at = self.numbers.get(value)
        if at is None:
            at = self.append(CONST, 0, 0, np.float64(value))
            if value:
                self.numbers[value] = at
        return at

    def value(self, k: Record) -> Any:
        """Return the value of record k; None if it is gone."""
        shadow = self.shadows.get(STRIDE * (k + 1))
        if shadow is not None:
            return shadow()
        log = self.log
        return self.columns.values[k] if self.columns is not None else log[STRIDE * k + 3]

    def operation(self, k: Record) -> tuple[int, int, int]:
        """As `Columns.operation`, of a record that may be in an open tape's log."""
        log, columns = self.log, self.columns  # in this order: sealing sets the columns, then empties the log
        if columns is not None:
            return columns.operation(k)
        opcode, first, second = log[STRIDE * k : STRIDE * k + 3]
        return opcode, first if opcode == LINK else first >> 2, second >> 2

    def operands(self, k: Record, form: int) -> list[Record]:
        """As `Columns.operands`, of a record that may be in an open tape's log."""
        return operands_of(self.operation, k, form)

    # ------------------------------------------------------------ sealing

    def sealed(self) -> Columns:
        """Return the tape's columns, closing it if it is this thread's current one.

        Another thread may still be recording here: then these are the columns of what is there now.
        """
        log = self.log  # before the columns are looked for: sealing sets them, then empties the log
        columns = self.columns
        if columns is not None:
            return columns
        if self is local.tape:
            return close(self)
        return self.seal() if self.limit == LEFT else read(log, self.shadows)

    def view(self) -> Columns:
        """Return the columns of what is recorded so far; an open tape stays open."""
        log = self.log
        return self.columns or read(log, self.shadows)

    def show(self, limit: int = 100) -> str:
        """Describe the last records as text, one a line; see `tapegrad.tape.show`."""
        return show(self, table.name_of, limit)

    def seal(self) -> Columns:
        """Replace the log of a tape nobody appends to by columns."""
        log = self.log
        columns = self.columns
        if columns is not None:
            return columns
        columns = read(log, self.shadows)
        if self.columns is not None:  # another thread was faster
            return self.columns
        self.columns = columns
        self.log = []
        self.constants = {}
        self.numbers = {}
        self.links = None
        self.secured = {}
        return columns

    def claim(self, mine: Claim) -> list[Claim]:
        """Note that a sweep is at work here; returns the claims before it, so of two one sees the other."""
        claims, found = self.claims, []
        claims[weakref.ref(mine)] = None
        for note in list(claims):
            other = note()
            if other is mine:
                break
            if other is None or not other.at_work():  # cut off by an interrupt or a fork
                claims.pop(note, None)
            else:
                found.append(other)
        return found

    def release(self, mine: Claim) -> None:
        """End a claim."""
        self.claims.pop(weakref.ref(mine), None)

    def freed_flags(self, n: int) -> Any:
        """One byte per record: whether its values were released; None if none were."""
        freed = self.freed
        if freed is not None and freed.size < n:
            freed = np.concatenate([freed, np.zeros(n - freed.size, np.uint8)])
        return freed

    def prune(self, mine: Claim | None = None) -> None:
        """Drop what no live handle reaches, and values that nobody will read.

        A tape that another sweep than the one given is at work on is left alone.
        """
        if self._at_work_beside(mine):
            return
        columns = self.columns
        if columns is None:
            if self.limit != LEFT:
                return  # its thread is still recording
            columns = self.seal()
        if columns.n == 0:
            return
        self.held, self.count = None, 0  # until it is known again
        references = self.shadows, self.anchored
        live, lost, held, needed = pruning.find_live(
            columns, references, self.freed_flags(columns.n), len(self.older)
        )
        if self._at_work_beside(mine):  # by now: links that led to what it is still to read may be gone
            return
        self.held = held
        if lost:
            pruning.drop(columns.values, live, recycled=self.weight > pool.MIN_BYTES)
        if needed:
            self._cut_links(columns, live, needed)
        self._forget_all_but(live)

    def _at_work_beside(self, mine: Claim | None) -> bool:
        """Whether a sweep is at work here that is not the one given."""
        for note in list(self.claims):
            other = note()
            if other is not None and other is not mine and other.at_work():
                return True
        return False

    def _cut_links(self, columns: Columns, live: np.ndarray, needed: list[int]) -> None:
        """Let links that nothing reaches lead nowhere, and let go of tapes to which none is left."""
        records, _, _ = columns.links()
        columns.words[records[live[records] == 0]] = LINK
        for q, is_needed in enumerate(needed):
            if not is_needed:
                self.older[q] = None

    def _forget_all_but(self, live: np.ndarray) -> None:
        """Drop what is kept beside the records, of those that nothing reaches."""
        for table_ in (
            self.attrs,
            self.described,
            self.retained,
            self.guards,
            self.calls,
            self.packed,
            self.hooks,
        ):
            if table_:
                for k in [k for k in table_ if not live[k]]:
                    del table_[k]

    def lost_a_handle(self) -> bool:
        """Whether a handle that was alive at the last pruning is not any more.

        Handles refer to their tape. To look at each of many takes long; where as much refers to it as before
        that is left out every other time, as a newer tape may have come instead.
        """
        held, columns = self.held, self.columns
        if held is None or columns is None:
            return True
        if len(held) <= FEW:
            return pruning.lost_any(columns.values, held.tolist(), self.shadows)
        count, before = sys.getrefcount(self), self.count
        self.count = 0
        if count == before:
            return False
        if not abi.native() or pruning.lost_any_of_many(columns.values, held):
            return True
        self.count = count
        return False

    def __del__(
        self,
        local: _Local = local,
        pool: Any = pool,
        heavy: int = MAX_BYTES,
        _Drain: Any = _Drain,
        ref: Any = weakref.ref,
        exiting: Any = sys.is_finalizing,
    ) -> None:
        """Older tapes are released one after the other, not one inside the other.

        The defaults are there when the module is not any more, at interpreter exit.
        """
        try:
            older, columns = self.older, self.columns
            if columns is not None and self.weight > heavy and not exiting():
                pool.recycle(columns.values, range(columns.n))
            if not older:
                return
            unlinking = local.unlinking
        except AttributeError:  # interrupted while it was made, or its thread has ended
            return
        unlinking.append(older)
        if local.draining is None or local.draining() is None:
            drain = _Drain()
            local.draining = ref(drain)
            count = 0
            try:
                while unlinking:
                    unlinking.pop()
                    count += 1
            finally:
                local.draining = None
            if not exiting():
                give_back(count)


def checksum(array: np.ndarray) -> int:
    """A number that tells whether an array without gaps has changed."""
    return machine.load()[0](layout.CHECKSUM, 0, abi.address(array), array.nbytes)


def _same_layout(x: np.ndarray, y: np.ndarray) -> bool:
    return x.shape == y.shape and x.strides == y.strides and x.dtype is y.dtype


def current() -> Tape:
    """Return this thread's open tape with room for a few records more.

    Raises `Outgrown` once where there is none on what is to be the `only` tape.
    """
    tape = local.tape
    if tape is None or len(tape.log) >= tape.limit:
        only = local.only
        if only is not None and (tape is only or only.limit == LEFT):
            local.only = None
            raise Outgrown
        if tape is not None:
            close(tape)
        tape = local.tape = Tape()
    newest[0] = tape
    return tape


def outgrow() -> None:
    """Raise `Outgrown` where one tape is to have all that is recorded, before what its sweeps do not do."""
    if local.only is not None and local.tape is local.only:
        local.only = None
        raise Outgrown


def close(tape: Tape) -> Columns:
    """End recording on a tape of this thread and seal it."""
    leave(tape)  # first: a tape left and not yet sealed is sealed when it is asked for
    columns = tape.seal()
    if tape.weight > pool.MIN_BYTES * columns.n:
        tape.prune()  # at once: the buffers it frees are the next results', still in the processor's cache
    return columns


def leave(tape: Tape) -> None:
    """End recording on this thread's current tape; unless it dies before, it is sealed and pruned later."""
    if newest[0] is tape:
        newest[0] = None
    if local.tape is tape:
        local.tape = None
    tape.limit = LEFT
    age(tape)


def set_aside() -> Tape | None:
    """Let what is recorded next stand on another tape; returns the open one, to `resume` it."""
    tape = local.tape
    if newest[0] is tape:
        newest[0] = None
    local.tape = None
    return tape


def resume(tape: Tape | None) -> None:
    """Leave the open tape, and go on with one that was set aside, unless it was closed meanwhile."""
    if local.tape is not None:
        leave(local.tape)
    if tape is not None and tape.limit != LEFT:
        local.tape = tape


def recorded_bytes(tape: Tape | None) -> int:
    """How many bytes all values take that are recorded on a tape, and on those that it reads."""
    todo, seen, found = [tape], set(), 0
    while todo:
        one = todo.pop()
        if one is not None and one.serial not in seen:
            seen.add(one.serial)
            todo += one.older.copy()
            log, columns = one.log, one.columns  # in this order, as in `sealed`
            values = log[3::STRIDE] if columns is None else columns.values
            found += sum(value.nbytes for value in values if value is not None)
    return found


def age(tape: Tape) -> None:
    """Note a tape just closed, and prune older ones whose time has come: handles die later than tapes."""
    local.seals = seals = local.seals + 1
    before, local.newest = local.newest(), weakref.ref(tape)
    due, young = local.due, local.young
    if before is not None and before is not tape:  # most tapes die before the next one is closed
        if before.lost_a_handle():
            before.prune()
        young[before.serial] = weakref.ref(before)
        heappush(due, seals + before.wait << SERIAL_BITS | before.serial)
    while due and due[0] >> SERIAL_BITS <= seals:
        serial = heappop(due) & SERIAL
        note = young.get(serial)
        older = note() if note is not None else None
        if older is None:
            young.pop(serial, None)
            continue
        if older.lost_a_handle():
            older.prune()
        heappush(due, seals + older.wait << SERIAL_BITS | serial)
        older.wait *= 2


def give_back(count: int) -> None:
    """Return memory to the system after so many tapes of this thread have died."""
    if count <= MANY:
        if count > SEVERAL:
            pool.trim()
        return
    young, due = local.young, local.due
    for serial in [serial for serial, note in young.items() if note() is None]:
        del young[serial]
    due[:] = [entry for entry in due if entry & SERIAL in young]
    heapify(due)
    pool.give_back()
