"""Steps of a loop, each on a state that is cut off from what it was computed from: values without history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tapegrad.core.base import Handle, extra, has_tangent, refresh_history, requires_grad
from tapegrad.core.dispatch import is_externally_writable
from tapegrad.core.storage import OPEN, STALE
from tapegrad.engine.plan import Key
from tapegrad.errors import GradientError
from tapegrad.ops import REGISTRY, custom
from tapegrad.tape import pool
from tapegrad.tape.record import Record, slot
from tapegrad.tape.tape import Place, Tape, current, leave, local
from tapegrad.tensor import Operand, Tensor, alias_of, recall, record, wrap

if TYPE_CHECKING:
    from tapegrad.core.saved_values import Packing

__all__ = [
    "Moved",
    "Ran",
    "State",
    "Steps",
    "apart",
    "bare",
    "import_of",
    "key_of",
    "leave_tape",
    "next_state",
    "random_state",
    "sources_of",
    "together",
]

RECORDS, BYTES = 4 * 100, 1 << 14  # up to which steps that are not to be reversed share a tape
RESHAPE = REGISTRY["reshape"]


class Moved(Exception):
    """A step used a Tensor that carries a tangent."""


def random_state() -> Any:
    """The state of NumPy's global random numbers."""
    return np.random.get_state()  # noqa: NPY002


def leave_tape() -> None:
    """Let what is recorded next be on a tape of its own."""
    if local.tape is not None:
        leave(local.tape)


def key_of(x: Tensor) -> Key:
    """What tapes know a Tensor by."""
    return x._at if x._tape is None else Place(x._tape, slot(x._at))


T = TypeVar("T")


class _Part(int):
    """Where a Tensor stood in a state: its number."""


def apart(x: Any, parts: list[Any], numbers: dict[int, _Part]) -> Any:
    """Take the Tensors out of nested tuples, lists and dicts, each once; returns what is left."""
    if isinstance(x, Handle):
        number = numbers.get(id(x))
        if number is None:
            number = numbers[id(x)] = _Part(len(parts))
            parts.append(x)
        return number
    if isinstance(x, tuple):
        found = [apart(y, parts, numbers) for y in x]
        return type(x)(*found) if hasattr(x, "_fields") else tuple(found)
    if type(x) is list:
        return [apart(y, parts, numbers) for y in x]
    if type(x) is dict:
        return {key: apart(y, parts, numbers) for key, y in x.items()}
    return x.copy() if isinstance(x, np.ndarray) else x


def together(tree: Any, parts: Sequence[Tensor]) -> Any:
    """Undo `apart`."""
    if type(tree) is _Part:
        return parts[tree]
    if isinstance(tree, tuple):
        found = [together(y, parts) for y in tree]
        return type(tree)(*found) if hasattr(tree, "_fields") else tuple(found)
    if type(tree) is list:
        return [together(y, parts) for y in tree]
    if type(tree) is dict:
        return {key: together(y, parts) for key, y in tree.items()}
    return tree.copy() if isinstance(tree, np.ndarray) else tree


def next_state(step: Callable[[Any], Any], state: Any) -> Any:
    """Return what a step makes of a state, and refuse one that returns nothing."""
    found = step(state)
    if found is None:
        raise TypeError(
            "checkpoint_loop takes a step that returns the next state, found None; does it lack its return? "
            "A step that writes to its state returns that"
        )
    return found


def bare(x: Tensor) -> Tensor:
    """A Tensor's value, which nobody will write to, without its history."""
    if x._tape is STALE:
        refresh_history(x)
    out = wrap(x._v.copy() if is_externally_writable(x) or (x._v.ndim and not x._v.flags.writeable) else x._v)
    if x._extra is not None and x._extra.call is not None:
        extra(out).call = x._extra.call
    return out


class State:
    """A state between two steps, without history: which of its Tensors require grad is known."""

    __slots__ = ("needs", "parts", "random", "shared", "tree")

    def __init__(
        self,
        tree: _Part | Sequence[_Part | Operand],
        parts: list[Tensor],
        needs: list[bool],
        random: Any,
        shared: bool = False,
    ) -> None:
        self.tree, self.parts, self.needs, self.random = tree, parts, needs, random
        self.shared = shared  # whether some share memory, which they will not when a step runs on them

    @classmethod
    def of(cls, tree: Any, tensors: list[Tensor], random: Any) -> State:
        """Return the state that Tensors with a history are."""
        known = [id(x._extra.storage.memory) for x in tensors if x._extra is not None and x._extra.storage]
        shared = len(set(known)) < len(known)
        return cls(tree, [bare(x) for x in tensors], [requires_grad(x) for x in tensors], random, shared)

    def kept(self, packing: Packing | None) -> Callable[[], State]:
        """Return what gives this back; what an outer checkpoint can compute again is not kept."""
        if packing is None:
            return lambda: self
        kept = [packing.keep(x) for x in self.parts]
        bare_of = self.using(())
        return lambda: bare_of.using([again() for again in kept])

    def using(self, tensors: Sequence[Tensor]) -> State:
        """Return this with other Tensors, of the same kind, in it."""
        return State(self.tree, [bare(x) for x in tensors], self.needs, self.random, self.shared)

    def wanting(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Those that belong to Tensors which require grad."""
        return [x for x, need in zip(parts, self.needs, strict=True) if need]

    def like(self, other: State) -> bool:
        """Whether the same has been computed; linear algebra may round otherwise from time to time."""
        if self.needs != other.needs:
            return False
        return all(_like(x._v, y._v) for x, y in zip(self.parts, other.parts, strict=True))


def _like(a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.ndim == 0 and a == b:
        return True
    if np.array_equal(a, b):
        return True
    near = float(np.finfo(a.dtype).eps) ** 0.5 if a.dtype.kind in "fc" else 0.0
    finite = np.abs(b[np.isfinite(b)])
    scale = near * float(finite.max()) if finite.size else 0.0
    return bool(np.allclose(a, b, rtol=near, atol=scale, equal_nan=True))


class Ran:
    """Steps that have run: the states before and after, the Tensors they returned, with their history.

    Attributes
    ----------
    begin
        Serial of the first tape that these are on.
    roots
        What the Tensors of the state before had in place of a history.
    count
        How many steps.
    """

    __slots__ = ("after", "before", "begin", "count", "outs", "roots")

    def __init__(
        self,
        before: State,
        after: State,
        outs: list[Tensor],
        begin: int,
        roots: list[Tensor | None],
        count: int,
    ) -> None:
        self.before, self.after, self.outs, self.begin = before, after, outs, begin
        self.roots, self.count = roots, count

    def keys(self) -> list[Key]:
        """What a sweep knows the roots by."""
        return [key_of(root) for root in self.roots if root is not None]

    def sources(self) -> Iterator[tuple[Key, Any, int]]:
        """What they came from besides the state: its key, and a Tensor, or a tape and its record there."""
        return sources_of(self.outs, self.begin, self.keys())


def sources_of(outs: Sequence[Tensor], begin: int, known: Sequence[Key]) -> Iterator[tuple[Key, Any, int]]:
    """What Tensors on tapes from a serial on came from: its key, a Tensor, or a tape and its record there."""
    todo, seen = [], set()
    for x in outs:
        if x._tape is not None and x._tape.serial >= begin:
            todo.append(x._tape)
        elif requires_grad(x):
            yield key_of(x), x, -1
    while todo:
        tape = todo.pop()
        if tape.serial in seen:
            continue
        seen.add(tape.serial)
        for k, source in tape.sources():
            if isinstance(source, Place) and source.tape.serial >= begin:
                todo.append(source.tape)
            elif source not in known:
                yield source, tape, k


class Steps:
    """A step, and what it uses besides the state that can be differentiated by.

    Parameters
    ----------
    step
        The user's.
    outer
        What the first state depends on.
    random
        Whether steps get the same random numbers each time.

    Attributes
    ----------
    operands
        Tensors that steps use, by what tapes know them by.
    complete
        Whether all steps have run, so that no operand is missing.
    """

    def __init__(self, step: Callable[[Any], Any], outer: list[Tensor], random: bool) -> None:
        self.step, self.outer, self.random = step, outer, random
        self.operands: dict[Key, Tensor] = {}
        self.complete = False
        self._roots: list[Tensor | None] = []
        self._like: Any = None

    def run(self, state: State, count: int = 1, roots: list[Tensor | None] | None = None) -> Ran:
        """Run the step, or some of so many, on a state that is cut off from its history.

        With `roots`, Tensors that the state's go on from instead, all of the steps.
        """
        leave_tape()
        short = roots is None
        if roots is None:
            roots = self._roots_of(state)
        begin = current().serial
        given = [
            bare(x) if root is None else record(RESHAPE, x._v, (_with_value(x, root),), {"shape": x._v.shape})
            for x, root in zip(state.parts, roots, strict=True)
        ]
        found, tape, rest = together(state.tree, given), current(), count
        while rest:
            found, rest = next_state(self.step, found), rest - 1
            if short and (local.tape is not tape or len(tape.log) > RECORDS or tape.weight > BYTES):
                break
        if state.shared and any(x._extra is not None and x._extra.version for x in given):
            raise GradientError(
                "a step of checkpoint_loop wrote to a Tensor of its state that shares memory with another of "
                "them; let the step before return copies, made by clone()"
            )
        outs: list[Tensor] = []
        tree = apart(found, outs, {})
        if OPEN and any(has_tangent(x) for x in outs):
            raise Moved
        after = State.of(tree, outs, self.rng())
        ran = Ran(state, after, outs, begin, roots, count - rest)
        if not self.complete:
            for source, where, k in ran.sources():
                if source not in self.operands:
                    self.operands[source] = alias_of(where) if k < 0 else import_of(where, k, source)
        return ran

    def used(self, ran: Ran) -> set[Key]:
        """What a step used that runs again, by what tapes know it by."""
        found = {source for source, _, _ in ran.sources()}
        if not found <= self.operands.keys():
            raise GradientError(
                "a step of checkpoint_loop used a Tensor that requires grad, which no step had used in the "
                "first run; it must do the same each time"
            )
        return found

    def rng(self) -> Any:
        """The random numbers' state, where it is to be kept."""
        return random_state() if self.random else None

    def _roots_of(self, state: State) -> list[Tensor | None]:
        """What stands for the history of a state's Tensors: records that refuse to be differentiated."""
        known = len(self.operands), [(x._v.shape, x._v.dtype) for x in state.parts], state.needs
        if known != self._like:
            sources = [*self.outer, *self.operands.values()]
            values = [pool.shadow(x._v) if x._v.ndim else x._v for x in state.parts]
            self._roots = [
                record(custom.refusal, value, sources, {"why": _left_behind}) if need else None
                for value, need in zip(values, state.needs, strict=True)
            ]
            self._like = known
            leave_tape()
        return self._roots


def import_of(tape: Tape, k: Record, source: Key) -> Tensor:
    """A Tensor of what a tape imported; its value may be gone where no derivative reads it."""
    value = tape.value(k)
    return recall(tape.view().value_or_shape(k) if value is None else value, source)


def _with_value(x: Tensor, root: Tensor) -> Tensor:
    """A state's Tensor on the record that stands for its history."""
    out = alias_of(root)
    out._v = x._v
    if x._extra is not None:
        extra(out).call = x._extra.call
    return out


def _left_behind() -> GradientError:
    return GradientError(
        "a Tensor that a step of checkpoint_loop computed is used elsewhere than in the state, and has no "
        "derivative there; let the step return it with the state, or add it up there"
    )
