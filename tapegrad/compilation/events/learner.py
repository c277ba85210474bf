"""What sees a call being recorded, so that a program can be made of it."""

from __future__ import annotations

import copy
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from sys import getrefcount
from typing import Any, cast

import numpy as np

from tapegrad.compilation.events.events import (
    FLAT,
    UNKNOWN,
    WRITE,
    Brought,
    Called,
    Flat,
    History,
    Several,
    is_by_shapes,
    means,
    record_of,
)
from tapegrad.compilation.events.listing import Listing
from tapegrad.compilation.events.methods import UPDATES
from tapegrad.compilation.events.passive import COMPARED, Operation, Passive, flat_operation
from tapegrad.compilation.events.traces import OUTSIDE, RETURNED, WRITTEN, Trace
from tapegrad.compilation.memory.pages import KEPT
from tapegrad.core import dispatch
from tapegrad.core.base import (
    Handle,
    call_on_values,
    is_array,
    is_constant,
    requires_grad,
    value_of,
    wrap,
)
from tapegrad.core.dispatch import COPIED, is_view_of
from tapegrad.core.functions import detached
from tapegrad.core.grad_mode import Mode, _enabled
from tapegrad.core.storage import Storage
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.ops.primitive import Attributes, Primitive
from tapegrad.tape.pool import shadow
from tapegrad.tensor import Operand, Tensor

SIMPLE = int, str, type(None)  # what arguments that are no operands are
PLAIN = *SIMPLE, float, type, np.dtype  # what they may be where they are the same at each call
MOST_EVENTS = 3 << 19  # operations of all ways, each of which takes 0.5 KB and the thread some 30 us
MOST_BYTES = 1 << 28  # of their results and the arguments; large results weigh a part of that
MOST_WRITTEN = 1 << 24  # bytes that writes give: each has an array of its own, in recording often none


class Learner:
    """What sees the operations of a call being recorded: a `Matcher` that expects nothing.

    Compiled code lists operators and ufuncs as it records them.

    Parameters
    ----------
    known
        How many operations the ways have that are known.

    Attributes
    ----------
    listing
        The operations so far.
    tracing
        The address of the words by which compiled code lists operations.
    found
        What tells the Tensor that the function has returned.
    """

    found: History

    def __init__(self, known: int = 0) -> None:
        self._arguments: list[np.ndarray] = []
        self._histories: list[History] = []
        self._calls: dict[int, Called] = {}
        self._writes: dict[int, History] = {}
        self._several: set[int] = set()
        self._orders: dict[int, Callable[..., Any]] = {}
        self._warnings: dict[int, str] = {}
        self._written = 0  # bytes that writes have given
        self._brought: list[int] = []  # places of what is no number of Python's, nor a Tensor with a history
        self._flat: dict[int, Flat] = {}  # by ids: Tensors without a history that were computed
        self._compared: list[Any] = []  # such Tensors, by compiled code, each with the number of its entry
        self._reason = ""
        self.ours: Callable[[], Iterable[Handle]] = tuple  # Tensors that whoever leaves a path for this holds
        self._parts = 0  # how often a function of NumPy's was more than its operations
        self._given_at = -1  # where an operation is listed whose value is not what its op gives
        words = np.zeros(layout.TRACE_WORDS, np.int64)
        words[layout.TRACE_LARGE] = words[layout.TRACE_LEAST] = KEPT
        self.listing = Listing(words)
        words[layout.TRACE_BYTES], words[layout.TRACE_MOST] = MOST_BYTES, MOST_EVENTS - known
        words[layout.TRACE_BROUGHT] = id(self._brought)
        words[layout.TRACE_FLAT] = id(self._compared)
        words[layout.TRACE_COMPARISONS :] = COMPARED
        self._words, self.tracing = words.data, abi.address(words)

    @property
    def is_too_large(self) -> bool:
        """Whether there are too many operations or bytes."""
        return bool(self._words[layout.TRACE_BYTES] < 0)

    @property
    def reason(self) -> str:
        """Why there is no program of it; empty if there is one."""
        if self._reason or not self.is_too_large:
            return self._reason
        many = f"over {MOST_EVENTS:,} operations with those of other ways, or {MOST_BYTES:,} bytes"
        return f"it has {many}, too many to keep"

    def mode(self) -> Mode:
        """Return a mode in which operations are listed."""
        mode = Mode.pair_of(cast(Any, self))[True]
        mode.tracing = self.tracing
        return mode

    def add(self, x: Tensor, ours: bool = False) -> None:
        """Know the Tensor of the next argument; its array is `ours` if nobody has it who may write to it."""
        self._histories.append(record_of(x))
        self._arguments.append(np.asarray(x._v) if ours else np.array(x._v))
        self._words[layout.TRACE_BYTES] -= self._arguments[-1].nbytes

    def trace(self) -> Trace:
        """Return what has come, which is ended by that."""
        copies: dict[int, np.ndarray] = {}
        originals: dict[int, weakref.ref[np.ndarray]] = {}

        def kept(x: Any, address: int, k: int, q: int) -> Any:
            flat = self._flat_of(address or id(x))
            if flat is not None and (flat.value if address else flat.handle) is x:
                x = flat
            if type(x) is Flat:
                if x.became_another or x.is_as_made():
                    return x.history
                x = x.value
            if isinstance(x, Handle):
                if requires_grad(x):
                    self._reason = self._reason or OUTSIDE.format(q, listing.op(k).name)
                x = x._v
            return copied(x) if isinstance(x, np.ndarray) else x

        def copied(x: np.ndarray) -> np.ndarray:
            known = copies.get(id(x))
            if known is None:
                known = copies[id(x)] = np.array(x)
                if x.nbytes >= layout.SUMMED:
                    originals[id(known)] = weakref.ref(abi.owner_of(x))
            return known

        listing, words = self.listing, self._words
        held, words[layout.TRACE_MOST] = MOST_BYTES - words[layout.TRACE_BYTES], 0
        for place in self._brought:
            listing.keep(place, kept)
        self._brought.clear()
        return Trace(
            listing,
            self._calls,
            self._writes,
            self._several,
            self._orders,
            self._warnings,
            self._arguments,
            self._histories,
            held,
            originals,
            self._kept(),
        )

    def _kept(self) -> set[History]:
        """What tells Tensors without a history that others hold when the call has ended, or their arrays."""
        self._take_compared()
        ours = Counter(map(id, self.ours()))
        return {x.history for x in self._flat.values() if not x.is_as_made() or self._is_held(x, ours)}

    def _is_held(self, x: Flat, ours: Counter[int]) -> bool:
        """Whether others hold a Tensor than this and those that hold it so often, or the array of it."""
        is_held = getrefcount(x.handle) - 2 > ours[id(x.handle)]
        if is_held or self.ours is not tuple:  # a program that was left knows arrays too
            return is_held
        state = x.handle._extra
        known = 3 + (self.listing.value(x.history.at) is x.value)  # here, in the Tensor, and as asked for
        known += 0 if state is None or state.storage is None else 2  # in the storage's whole, and its memory
        return isinstance(x.value, np.ndarray) and getrefcount(x.value) > known

    def call(
        self, function: Callable[..., Any], how: Callable[..., Any], args: Sequence[Any], kwargs: Any
    ) -> Any:
        """Return what a function of NumPy's gives, and note how it was called if it means an op."""
        k, sources, parts = len(self.listing), None, self._parts
        if function in UPDATES:
            sources = [self._found(x) for x in args]  # as it may become another
        out = how(*args, **kwargs)
        args, kwargs = self._plain(args), {name: self._plain(x) for name, x in kwargs.items()}
        writes = sources is not None and k + 1 in self._writes and out is args[0]
        count = 2 + (k + 2 in self._writes) if writes else 1
        results = out if isinstance(out, (list, tuple)) else [out]
        if not results or not all(isinstance(x, Handle) for x in results):
            return out
        if len(self.listing) == k + count and out is results[0]:
            listed = self.listing[k]
            same = writes or self.history_of(out) == listed.history
            if same and parts == self._parts and means(function, listed.op, listed.attrs):
                operands = listed.operands
                brought = deque(
                    (Brought(q), self._plain(x))
                    for q, x in enumerate(operands)
                    if type(x) not in (History, Flat)
                )
                if function in listed.op.functions:  # whose arguments are the operands in their order
                    brought = _as_lists(brought, [*args, *kwargs.values()])
                known = {x.history if type(x) is Flat else x for x in operands if type(x) in (History, Flat)}
                call = self._called(function, sources or args, kwargs, known, brought)
                if call is not None:
                    self._calls[k] = call._replace(writes=True) if writes else call
                elif not writes and is_by_shapes(function):  # which has made operands of what it was given
                    self._note_composed(function, args, kwargs, k, out)
        elif sources is None and parts == self._parts and is_by_shapes(function):
            self._note_composed(function, args, kwargs, k, out)
        if k in self._calls and is_array(out):
            self._calls[k] = self._calls[k]._replace(is_array=True)
        return out

    def _called(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any],
        known: set[History] | None, brought: deque[tuple[Brought, Any]],
    ) -> Called | None:  # fmt: skip
        """A call as a later one is compared with it, if it can be; see `_given`."""
        given = tuple(self._given(x, known, brought) for x in args)
        named = {name: self._given(x, known, brought) for name, x in kwargs.items()}
        if brought or any(x is UNKNOWN for x in (*given, *named.values())):
            return None
        return Called(function, given, named)

    def _note_composed(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Any, k: int, out: Any
    ) -> None:
        """Note a call that the operations from one on make up, of which some give its results."""
        plain = [x for x in _leaves((*args, *kwargs.values())) if type(x) not in SIMPLE]
        brought, numbers = deque[tuple[Brought, Any]](), dict[History, int]()
        known = set[History]()
        count = len(self.listing) - k
        for j in range(count):
            listed = self.listing[k + j]
            numbers[listed.history] = j
            for q, x in enumerate(map(self._plain, listed.operands)):
                if type(x) in (History, Flat):
                    known.add(x.history if type(x) is Flat else x)
                elif any(x is y for y in plain) and all(x is not y for _, y in brought):
                    brought.append((Brought(q, j), x))
        call, one = self._called(function, args, kwargs, known, brought), isinstance(out, Handle)
        results = [numbers.get(self.history_of(x)) for x in ([out] if one else out)]  # type: ignore[arg-type]
        if call is not None and None not in results:
            kind, found = None if one else type(out), tuple(j for j in results if j is not None)
            self._calls[k] = call._replace(events=count, results=found, kind=kind)

    def note_parts(self) -> None:
        """Know that the function of NumPy's at work is more than the operations that it applies."""
        self._parts += 1

    def note_several(self, x: Handle) -> None:
        """Know that a Tensor, which the latest operation gave, is one of several views."""
        if self._is_latest(x):
            self._several.add(len(self.listing) - 1)

    def note_order(self, x: Handle, order: Callable[..., Any]) -> None:
        """Know what tells the places of elements that the latest operation took, by their values."""
        if self._is_latest(x):
            self._orders[len(self.listing) - 1] = order

    def note_warning(self, x: Handle, words: str) -> None:
        """Know in which words the latest operation warns of invalid values."""
        if self._is_latest(x):
            self._warnings[len(self.listing) - 1] = words

    def _is_latest(self, x: Handle) -> bool:
        """Whether the operation listed last gave a Tensor."""
        k = len(self.listing) - 1
        return k >= 0 and self.history_of(x) == self.listing.history(k)

    def note_value(self) -> None:
        """Know that the value of the next operation is not what its op gives, so that it is kept."""
        self._given_at = len(self.listing)

    def _given(self, x: Any, known: set[History] | None, brought: deque[tuple[Brought, Any]]) -> Any:
        """An argument as a later one is compared with it; UNKNOWN where it cannot be.

        A Tensor is one of the operands, where these are `known`, as the value of another may tell what is
        done. Operands that are no Tensors are `brought` by arguments in their order, each by one. Numbers and
        small arrays that are none are to be the same.
        """
        if brought and brought[0][1] is x:
            return brought.popleft()[0]
        if isinstance(x, Handle):
            x = self.history_of(x) or UNKNOWN
        if type(x) is History:
            return x if known is None or x in known else UNKNOWN
        if type(x) is list or (type(x) is tuple and any(isinstance(part, Handle) for part in x)):
            parts = tuple(self._given(part, known, brought) for part in x)
            return UNKNOWN if any(part is UNKNOWN for part in parts) else Several(type(x), parts)
        if type(x) is np.ndarray and x.dtype.kind in "biufc" and x.nbytes <= COPIED:
            return np.array(x)
        simple = isinstance(x, PLAIN) or (type(x) is tuple and all(isinstance(part, PLAIN) for part in x))
        return x if simple else UNKNOWN

    def _found(self, x: Any) -> Any:
        """What tells a Tensor that was computed in the call; anything else as `_plain` has it."""
        return (self.history_of(x) if isinstance(x, Handle) else None) or self._plain(x)

    def _plain(self, x: Any) -> Any:
        """An argument of a function, with values in the place of constants from outside."""
        if type(x) in (list, tuple):
            return type(x)(map(self._plain, x))
        return x._v if is_constant(x) and self.history_of(x) is None else x

    def history_of(self, x: Handle) -> History | None:
        """What tells a Tensor that was computed in the call; None for any other."""
        if x._tape is not None:
            return record_of(x)
        found = self._flat_of(id(x))
        return found.history if found is not None and found.is_as_made() else None

    def is_flat(self, x: Any) -> bool:
        """Whether this is a Tensor without a history that was computed in the call."""
        found = self._flat_of(id(x)) if isinstance(x, Handle) else None
        return found is not None and found.is_as_made()

    def _flat_of(self, x: int) -> Flat | None:
        """What is known of the Tensor of an id, if it has no history and was computed in the call."""
        self._take_compared()
        return self._flat.get(x)

    def _take_compared(self) -> None:
        """Know those Tensors too that compiled code has listed."""
        made = self._compared
        while made:
            k, out = made.pop(), made.pop()
            value = self.listing.value(k)
            self._flat[id(out)] = Flat(out, value, History(id(out), FLAT, k))

    def flat(self) -> Iterator[Handle]:
        """Give those Tensors, which are held here."""
        self._take_compared()
        return (found.handle for found in self._flat.values())

    def sees_history(self, x: Handle) -> bool:
        """As of a `Matcher`; it has given no Tensors without a value."""
        raise AttributeError("_v")

    def held(self, seen: weakref.ref[Any], but: Handle | None = None) -> Handle | None:
        """Return a Tensor that others hold, of those that see the memory of a Tensor or storage, but one."""
        return held(seen, self.flat(), but)

    def expect(
        self, op: Primitive, operands: Sequence[Operand], attrs: Attributes | None, placed: str
    ) -> None:
        """Expect nothing."""

    def applying(self, op: Primitive, operands: Sequence[Operand]) -> None:
        """Know that an op is computed."""

    def applied(self) -> None:
        """Know that an op has been computed."""

    def expect_flat(self, function: Callable[..., Any], args: Sequence[Any], names: Attributes) -> None:
        """Expect nothing."""

    def part(self, x: Handle, index: Any) -> None:
        """Expect nothing."""

    def write(self, x: Handle, index: Any, new: Any, update: bool) -> bool:
        """Expect nothing."""
        return False

    def match(
        self, op: Primitive, value: Any, operands: Sequence[Any], attrs: Attributes | None
    ) -> Handle | None:
        """Let compiled code record what is not expected, if it can."""
        before: Any = _enabled.get()
        if not before.plain or before.noting or before.timing:
            return None
        try:
            try:
                _enabled.set(True)
                out = dispatch.record_natively(op, value, operands, attrs)
            finally:
                _enabled.set(before)
        finally:
            _enabled.set(before)  # an interrupt may have come as the other was about to be called
        if out is not None:
            self.note(op, operands, attrs, out)
        return out

    def wrap(self, value: Operand, tape: Any, at: int) -> Handle:
        """Return the Tensor of a result."""
        return wrap(value, tape, at)

    def note(self, op: Primitive, operands: Sequence[Operand], attrs: Attributes | None, out: Handle) -> None:
        """List an operation."""
        for q, x in enumerate(operands):
            if isinstance(x, Handle) and x._tape is None and requires_grad(x):
                self._reason = self._reason or OUTSIDE.format(q, op.name)
        self._list(op, operands, attrs, out, record_of(out))

    def note_flat(
        self, function: Callable[..., Any], args: Sequence[Any], names: Attributes, out: Handle
    ) -> None:
        """List what a function without a derivative has computed, if it may be computed again."""
        known, k = flat_operation(function, args, names), len(self.listing)
        if known is None:
            return
        self.note_plain(*known, out)
        ufunc = known[0].functions[0]
        if (type(ufunc) is np.ufunc or ufunc is detached) and len(self.listing) != k:
            given = [*map(self._found, args)]
            if not any(isinstance(x, Handle) for x in given):
                given = [x if type(x) is History else Brought(q) for q, x in enumerate(given)]
                self._calls[k] = Called(ufunc, tuple(given), {})

    def note_plain(
        self, op: Operation, operands: Sequence[Operand], attrs: Attributes | None, out: Handle
    ) -> None:
        """List an operation whose result has no history, if it is of Tensors that the call has computed.

        Or of none, where a Tensor of zeros or ones is made.
        """
        handles = [x for x in operands if isinstance(x, Handle)]
        histories = [self.history_of(x) for x in handles]
        followed = any(known is not None for known in histories)
        outside = None in histories and any(
            requires_grad(x) for x, known in zip(handles, histories, strict=True) if known is None
        )
        ours = (followed and not outside) or (not handles and isinstance(op, Passive))
        found = Flat(out, out._v, History(id(out), FLAT, len(self.listing)))
        if ours and out._tape is None and found.is_as_made():
            self._list(op, operands, attrs, out, found.history)
            self._flat[id(out)] = found

    def written(self, x: Handle, new: Any, by: Handle) -> History | None:
        """What tells a Tensor that is to be written to by itself or a view, if the write is to be listed.

        That is one of an array that the call has computed, and that nothing else sees, to which what has a
        derivative is written, or that has one. Any other write to what the call has computed, or of it, is
        not learned from.
        """
        history = self.history_of(x)
        if history is None and not requires_grad(new):
            return None
        if not _enabled.get():
            if history is not None or requires_grad(x):
                self._reason = self._reason or WRITTEN
            return None
        if history is None or not _is_apart(x, by) or history in self._histories:
            self._reason = self._reason or WRITTEN
            return None
        if history.serial == FLAT and not requires_grad(new):
            return None
        return history

    def note_write(self, history: History, how: tuple[Any, ...], out: Handle) -> None:
        """Know that the operation listed last was a write to what was told so.

        It was at an index and by the view that is told, or None; without these it is a view's of the result.
        """
        self._written += out._v.nbytes
        if self._written > MOST_WRITTEN:
            self._reason = self._reason or f"writes have given {self._written:,} bytes, too many to keep"
            return
        self._writes[len(self.listing) - 1] = history
        self._calls[len(self.listing) - 1] = Called(WRITE, copy.deepcopy(how), {})
        flat = self._flat_of(id(out))
        if flat is not None and flat.history == history:
            flat.became_another = True

    def _list(
        self, op: Any, operands: Sequence[Any], attrs: Attributes | None, out: Handle, history: History
    ) -> None:
        words, value = self._words, out._v
        shadowed = type(value) is np.ndarray and value.nbytes >= words[layout.TRACE_LEAST]
        shadowed = shadowed and value.flags.carray and self._given_at != len(self.listing)
        large = shadowed and value.nbytes >= KEPT
        words[layout.TRACE_BYTES] -= value.nbytes // layout.SHADOWED if large else value.nbytes
        if len(self.listing) >= words[layout.TRACE_MOST]:
            words[layout.TRACE_BYTES] = -1
        if self.reason:
            return
        given = []
        for x in operands:
            recorded = isinstance(x, Handle) and x._tape is not None
            given.append(record_of(x) if recorded else self._flat[id(x)] if self.is_flat(x) else value_of(x))
        view = len(operands) == 1 and is_view_of(value, value_of(operands[0]))
        value = shadow(value) if shadowed else value
        place = self.listing.add(op, history, value, given, attrs, view, shadowed)
        if not all(type(x) is History for x in given):
            self._brought.append(place)

    def end(self, found: Any) -> None:
        """Know what the function has returned, if it may be a result of these operations."""
        if isinstance(found, Handle) and found._tape is not None:
            self.found = record_of(found)
        else:
            self._reason = self._reason or RETURNED.format(type(found).__name__)

    def is_active(self, x: Handle) -> bool:
        """As `compute`."""
        raise AttributeError("_v")

    def is_number_view(self, x: Handle) -> bool:
        """As `compute`."""
        raise AttributeError("_v")

    def like(self, x: Handle) -> Any:
        """As `compute`."""
        return self.compute(x)

    def compute(self, x: Handle) -> Any:
        """As of a `Matcher`; it has given no Tensors without a value."""
        raise AttributeError("_v")

    def decide(self, function: Callable[..., Any], operands: Sequence[Any], seen: list[Any] | None) -> Any:
        """As of a `Matcher`, of values that are there."""
        return call_on_values(function, operands, seen)

    def leave(self, why: str) -> None:
        """End nothing."""


def _leaves(x: Any) -> Iterator[Any]:
    """Give what is in lists and tuples."""
    for y in x:
        if type(y) in (list, tuple):
            yield from _leaves(y)
        else:
            yield y


def _as_lists(brought: deque[tuple[Brought, Any]], given: Iterable[Any]) -> deque[tuple[Brought, Any]]:
    """What a call has brought, with lists of numbers in the place of the arrays that were made of them."""
    every = [y for x in given if type(x) in (list, tuple) for y in (x, *x) if type(y) in (list, tuple)]
    found = deque[tuple[Brought, Any]]()
    for operand, x in brought:
        k = next((k for k, y in enumerate(every) if type(x) is np.ndarray and _makes(y, x)), -1)
        found.append((operand, x if k < 0 else every.pop(k)))
    return found


def _makes(given: Any, x: Any) -> bool:
    """Whether an array, or a number in it, is one of numbers of Python's in lists."""
    if type(x) is not np.ndarray or not x.ndim:
        return type(given) in (float, int) and bool(given == x)
    return type(given) in (list, tuple) and len(given) == len(x) and all(map(_makes, given, x))


def held(seen: weakref.ref[Any], known: Iterable[Any], but: Handle | None = None) -> Handle | None:
    """Return a Tensor that sees the memory of a Tensor or storage, and that others hold than who knows it.

    Another one than `but`.
    """
    x = seen()
    if x is None:
        return None
    storage = x if isinstance(x, Storage) else None if x._extra is None else x._extra.storage
    storages = [] if storage is None else [storage, *storage.memory.others(storage)]
    seeing = [x] if storage is None else [y for s in storages for y in s.alive()]
    ours = Counter(map(id, chain(known, (s.whole for s in storages), seeing, (x,))))
    return next((y for y in seeing if y is not but and getrefcount(y) - 2 > ours[id(y)]), None)


def _is_apart(x: Handle, by: Handle) -> bool:
    """Whether nothing else than one Tensor, which has axes, sees the memory of an array to write to."""
    value, state = x._v, x._extra
    if type(value) is not np.ndarray or not (value.flags.c_contiguous and value.flags.writeable):
        return False
    if by is not x and by._v.ndim == 0:  # what it is to a program tells no views
        return False
    if state is None:
        return True
    storage = state.storage
    if state.shown is not None or state.several or state.inference or state.retains_grad or state.volatile:
        return False
    if storage is None:
        return True
    memory = storage.memory
    if storage.detached or memory.root is not value or memory.others(storage):
        return False
    return all(handle is x or handle is by for handle in storage.alive())
