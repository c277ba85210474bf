"""Programs of many instances: the operations of a call, with an axis of lanes in front of each value."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.compilation import background
from tapegrad.compilation.events.events import ARGUMENT, FIXED, LIVE, RESULT, SHARED, Event, Events, Source
from tapegrad.compilation.events.passive import DETACH, Operation, Passive
from tapegrad.compilation.events.varying import ELEMENT
from tapegrad.compilation.paths.path import Computation, Path, is_moving
from tapegrad.compilation.plans.planning import WARM, Planning
from tapegrad.compilation.programs.program import Program
from tapegrad.compilation.programs.reverse import Reverse
from tapegrad.compilation.rows.computing import BROADCAST, CONSTANT, MATMUL, number_of
from tapegrad.core.dispatch import is_view_of
from tapegrad.kernels.locks import run_beside
from tapegrad.ops import MEANING, REGISTRY
from tapegrad.ops.lanes import along
from tapegrad.ops.primitive import Attributes, Elementwise, Reduction

LANES = 1 << 10  # instances of a block at most
MOST_BYTES = 1 << 23  # of what a block computes, unless it has few lanes
FEWEST = 1 << 4  # instances of a block
THREAD_BYTES = 1 << 22  # of what a thread computes: it takes twice as long as beginning and ending one
RESHAPE = REGISTRY["reshape"]
GETITEM = REGISTRY["getitem"]
MULTIPLY, SUM, PROD, CUMPROD = (MEANING[f] for f in (np.multiply, np.sum, np.prod, np.cumprod))


JACOBIAN, PRODUCTS = "jacobian", ("hvp", "vhp")


class NoLanes(Exception):
    """An operation has no form with lanes; the text names it."""


def size_of_block(path: Path, n: int, what: str) -> int:
    """How many of n instances are a block, each of one lane or one for each element of its result."""
    most = min(LANES, max(FEWEST, MOST_BYTES // _bytes_of_instance(path, what)))
    return int(min(most, 1 << max(FEWEST.bit_length() - 1, (n - 1).bit_length())))


def count_threads(path: Path, n: int, what: str, most: int) -> int:
    """How many threads, at most as given, have enough to do with n instances."""
    work = n * _bytes_of_instance(path, what) // THREAD_BYTES
    return max(1, min(most, work, -(-n // size_of_block(path, n, what))))


def _bytes_of_instance(path: Path, what: str) -> int:
    product = path.product if what in PRODUCTS else None
    values = (path if product is None else product).program.values
    rows: int = path.program.values[path.result].size if what == JACOBIAN else 1
    return (values.nbytes() + 1) * rows


class Taken(NamedTuple):
    """An operand that a call of the program has brought, and how it is seen here: as it is, or otherwise."""

    event: int
    operand: int
    seen: Callable[[np.ndarray], np.ndarray] | None = None


Operand = Source | Taken


class LaneEvents:
    """The events of a program up to one, with n lanes.

    Attributes
    ----------
    events
        The operations.
    found
        What stands for each event of the program.
    taken
        Operands that a call of the program has brought, by the event and the number of the operand here.
    """

    def __init__(self, program: Program, last: int, n: int) -> None:
        self._n, self._program = n, program
        self.events = Events()
        self.taken: list[tuple[int, int, Taken]] = []
        self.arguments = [np.repeat(x[None], n, 0) for x in program.arguments]
        self._values: list[Any] = []
        self.found: list[Source] = []
        unrecorded = {*program.events.unrecorded()}
        with np.errstate(all="ignore"):
            for k in range(last + 1):
                background.pause()
                self._unrecorded = k in unrecorded
                self.found.append(self._lifted(k))

    def _lifted(self, k: int) -> Source:
        event = self._program.events[k]
        op, live = event.op, self._program.live(k)
        if k in self._program.anew:
            raise NoLanes(op.name)
        if event.op is BROADCAST or (isinstance(op, Elementwise) and op.takes is None):
            return self._elementwise(k)
        if isinstance(op, Passive):
            if op is DETACH or (op.functions[0] in CONSTANT and not event.attrs):
                return self._emit(op, [self._with_lanes(k, 0)])
            if not isinstance(op.functions[0], np.ufunc):
                raise NoLanes(op.name)
            return self._elementwise(k)
        if op is CUMPROD:
            return self._emit(op, [self._operand(k, 0)], along(event.attrs, self._n, ()))
        if isinstance(op, Reduction) or op is PROD:
            axis = tuple(a + 1 for a in event.attrs["axis"])
            return self._emit(op, [self._operand(k, 0)], {**event.attrs, "axis": axis})
        if op is MATMUL:
            return self._product(k)
        lifted = op.lift and op.lift(event.attrs, self._n, [np.shape(x) for x in live])
        if not lifted:
            raise NoLanes(op.name)
        if op is ELEMENT:
            op, lifted = GETITEM, {"index": lifted["index"]}
        return self._emit(op, [self._with_lanes(k, q) for q in range(len(live))], lifted)

    def _elementwise(self, k: int) -> Source:
        """Operands of fewer axes get others behind the lanes."""
        event, live = self._program.events[k], self._program.live(k)
        ndim = self._program.values[k].ndim
        operands: list[Operand] = []
        for q, source in enumerate(event.operands):
            x = self._operand(k, q)
            if source.kind < LIVE and np.ndim(live[q]) < ndim:
                x = self._reshaped(x, (1,) * (ndim - np.ndim(live[q])) + np.shape(live[q]))
            operands.append(x)
        shape = {"shape": (self._n, *self._program.values[k].shape)} if event.op is BROADCAST else {}
        return self._emit(event.op, operands, event.attrs, shape)

    def _product(self, k: int) -> Source:
        """A product of matrices and vectors: of vectors with lanes they are columns or rows."""
        event, live = self._program.events[k], self._program.live(k)
        a, b = (self._operand(k, q) for q in range(2))
        laned = [source.kind < LIVE for source in event.operands]
        ranks = [np.ndim(x) for x in live]
        if max(ranks) > 2:
            raise NoLanes(event.op.name)
        if all(laned) and ranks == [1, 1]:
            return self._emit(SUM, [self._emit(MULTIPLY, [a, b])], {"axis": (1,), "keepdims": False})
        if laned[1] and ranks[1] == 1:
            if not laned[0]:  # every row is a vector
                return self._emit(MATMUL, [b, Taken(k, 0, np.transpose)])
            rows = np.shape(live[0])[0]
            column = self._emit(MATMUL, [a, self._reshaped(b, (np.shape(live[1])[0], 1))])
            return self._reshaped(column, (rows,))
        if laned[0] and laned[1] and ranks[0] == 1:
            row = self._emit(MATMUL, [self._reshaped(a, (1, np.shape(live[0])[0])), b])
            return self._reshaped(row, (np.shape(live[1])[1],))
        return self._emit(MATMUL, [a, b])

    def _operand(self, k: int, q: int) -> Operand:
        source = self._program.events[k].operands[q]
        if source.kind == RESULT:
            return self.lifted(source)
        return source if source.kind in (ARGUMENT, FIXED) else Taken(k, q)

    def lifted(self, source: Source) -> Source:
        """What stands for an argument or a result of the program."""
        return self.found[source.value] if source.kind == RESULT else source

    def _with_lanes(self, k: int, q: int) -> Operand:
        found = self._operand(k, q)
        if type(found) is not Taken:
            return found
        return Taken(k, q, lambda x: np.broadcast_to(x, (self._n, *x.shape)))

    def _reshaped(self, x: Operand, shape: tuple[int, ...]) -> Source:
        return self._emit(RESHAPE, [x], {"shape": (self._n, *shape)})

    def _emit(
        self, op: Operation, operands: Sequence[Operand], attrs: Attributes | None = None,
        more: Attributes | None = None,
    ) -> Source:  # fmt: skip
        """Add an event; `more` are attributes that it takes of its result."""
        sources = [self._source(x, q) for q, x in enumerate(operands)]
        values = [self._value(source) for source in sources]
        value = np.asarray(op.forward(*values, **(attrs or {}), **(more or {})))
        view = len(values) == 1 and isinstance(values[0], np.ndarray) and is_view_of(value, values[0])
        event = Event(op, tuple(sources), attrs or {}, value, view and op is not BROADCAST)
        self.events.append(event._replace(unrecorded=self._unrecorded))
        self._values.append(value)
        return Source(RESULT, len(self.events) - 1)

    def _source(self, x: Operand, q: int) -> Source:
        """What operand q of the next event is."""
        if isinstance(x, Source):
            return x
        self.taken.append((len(self.events), q, x))
        buffer = self._buffer(x)
        if buffer.ndim:
            return Source(LIVE, buffer.copy(order="C"))
        source = self._program.events[x.event].operands[x.operand]
        return Source(LIVE, number_of(buffer)) if source.kind == SHARED else source

    def _buffer(self, x: Taken) -> np.ndarray:
        buffer: np.ndarray = self._program.live(x.event)[x.operand]
        return buffer if x.seen is None else x.seen(buffer)

    def _value(self, source: Source) -> Any:
        if source.kind == ARGUMENT:
            return self.arguments[source.value]
        return self._values[source.value] if source.kind == RESULT else source.value

    def copies(self, program: Program) -> list[tuple[np.ndarray, np.ndarray]]:
        """Buffers of a program of these events, and in the program without lanes what they are to take."""
        return [(program.live(k)[q], self._buffer(x)) for k, q, x in self.taken]


class Lanes(Computation):
    """What computes a block of instances of a path, whose other operands are those of its latest call.

    Each instance has one lane; if Jacobians are wanted, one for each of their rows. Hessians are multiplied
    by directions, which come behind the leaves of the arguments.
    """

    def __init__(self, path: Path, n: int, what: str) -> None:
        shape, by_rows = path.program.values[path.result].shape, what == JACOBIAN
        product = path.product if what in PRODUCTS else None
        of = path.program if product is None else product.program
        last = path.result if product is None else len(of.events) - 1
        self._each = rows = math.prod(shape) if by_rows else 1  # lanes of an instance
        lifted = LaneEvents(of, last, n * rows)
        exact = [True] * len(lifted.events)
        program = Program(lifted.events, lifted.arguments, exact=exact)
        self.n, self.result = n, lifted.found[path.result].value
        out, self._rows = program.values[self.result], shape if by_rows else None
        seed = np.tile(np.eye(rows, dtype=out.dtype), (n, 1)) if by_rows else np.ones_like(out)
        pulls = path.is_number or (by_rows and out.dtype.kind == "f")
        roots = [(Source(RESULT, self.result), np.array(seed.reshape(out.shape), order="C"))]
        self._directions: list[np.ndarray] = []
        if product is not None:
            self._directions = [np.zeros_like(x, order="C") for x in program.arguments]
            pairs = zip(product.gradients, self._directions, strict=True)
            roots = [(lifted.lifted(g), v) for g, v in pairs if is_moving(g)]
            if any(program.buffer(g).shape != v.shape for g, v in roots):
                raise NoLanes("a gradient")
        super().__init__(program, Reverse(program, roots) if pulls else None, path.begin, 0)
        gradients = self.reverse.gradients if pulls else ()
        found = zip(gradients, program.arguments, strict=pulls)
        self._derivatives = [np.broadcast_to(0.0 if g is None else g, x.shape) for g, x in found]
        self._copies, self.plans = lifted.copies(program), {}
        self.compared = [False, False]
        for pull in (False, True)[: 1 + pulls]:
            reverse = self.reverse if pull else None
            self.plans[pull] = Planning(program, reverse, self.result, 0, path.wait, WARM)

    def is_settled(self, pull: bool) -> bool:
        """Whether nothing is to be planned any more."""
        return self.plans[pull].plan is not None or bool(self.plans[pull].reason)

    def room(self, n: int, pull: bool) -> list[np.ndarray]:
        """Arrays for what n instances give."""
        out, rows = self.program.values[self.result], self._rows or ()
        found = [np.empty((n, *out.shape[1:]), out.dtype)]
        if pull:
            found += [np.empty((n, *rows, *x.shape[1:]), x.dtype) for x in self._derivatives]
        return found

    def bring(self) -> None:
        """Take the numbers and arrays that the path's latest call has brought."""
        for to, known in self._copies:
            to[...] = known

    def block(self, leaves: Sequence[np.ndarray], pull: bool, reported: int) -> list[np.ndarray] | None:
        """The values of instances and, if asked for, their derivatives by leaves; None where errors are met.

        These arrays are the program's own. Lanes that are left over compute the last instance again.
        """
        each, count = self._each, len(leaves[0])
        for buffer, x in zip((*self.program.arguments, *self._directions), leaves, strict=True):
            lanes = buffer.reshape(self.n, each, *x.shape[1:])
            lanes[:count] = x[:, None]
            lanes[count:] = x[-1]
        planning, by_rows = self.plans[pull], functools.partial(super().compute, 0, pull, reported)
        try:
            if not self._planned(planning, reported, by_rows):
                return None
        except FloatingPointError:
            return None
        found = [self.program.values[self.result][: count * each : each]]
        for x in self._derivatives if pull else ():
            lanes = x[: count * each]
            found.append(lanes if self._rows is None else lanes.reshape(count, *self._rows, *x.shape[1:]))
        return found


def compute(
    team: Sequence[Lanes], leaves: Sequence[np.ndarray], pull: bool, reported: int
) -> list[np.ndarray] | None:
    """The values of instances and, if asked for, their derivatives by leaves; None where errors are met.

    All of a team compute blocks by turns: each in a thread of its own, when nothing is left to plan. Blocks
    are the same whatever their number, and so are results.
    """
    size, n, found = team[0].n, len(leaves[0]), team[0].room(len(leaves[0]), pull)
    stop = threading.Event()  # an error, or numbers that meet one: nobody goes on

    def work(lanes: Lanes, begins: Iterable[int]) -> None:
        for begin in begins:
            if stop.is_set():
                return
            try:
                block = lanes.block([x[begin : begin + size] for x in leaves], pull, reported)
            except BaseException:
                stop.set()
                raise
            if block is None:
                stop.set()
                return
            for out, x in zip(found, block, strict=True):
                out[begin : begin + size] = x

    for lanes in team:
        lanes.bring()
    count = len(team)
    if count > 1 and all(lanes.is_settled(pull) for lanes in team):
        shares = [functools.partial(work, x, range(k * size, n, count * size)) for k, x in enumerate(team)]
        run_beside(shares[1:], shares[0])
    else:
        for k, begin in enumerate(range(0, n, size)):
            work(team[k % count], [begin])
    return None if stop.is_set() else found
