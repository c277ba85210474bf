"""What a call of a recording twin is on the tape of Tensors: one record, whose derivatives are records again.

With X all differentiated inputs as one vector, c the cotangent of all results and u1 ... um directions, there
are two ops, and by these rules each has derivatives of every order:

    tangent(X, u1 ... um)     = the m-th derivative of the results along u1 ... um
    gradient(X, c, u1 ... um) = the derivative by X of c . tangent(X, u1 ... um)

A direction is -0.0 where it has no part by an input: where a sum has a term, even 0.0, it is not that.

The first derivative is a sweep of the tape that the call has left. Beyond it the function runs again, its
numbers dual, one level for each direction: each order costs several times the one before, and a function that
does not do the same again has no second derivative.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tapegrad.core.base import TensorOrArray
from tapegrad.errors import GraphFreedError, MutationError, UnsupportedOpError
from tapegrad.kernels import abi
from tapegrad.kernels.words import Address
from tapegrad.native import border, explain
from tapegrad.native.emission.algebra import MARKED, Spec, components
from tapegrad.native.emission.annotations import Differentiable
from tapegrad.native.tapes import runtime
from tapegrad.native.tapes.record import KIND_WORDS, LEAVES, SIZE
from tapegrad.native.tapes.tape import BASE, COUNT, END, STATE_WORDS, TOP
from tapegrad.native.twin import primal_of, twin_of, twins_of
from tapegrad.ops.primitive import Attributes, Primitive
from tapegrad.tape.tape import checksum

Values: TypeAlias = Sequence[TensorOrArray]  # of an op's operands
Tangents: TypeAlias = Sequence["TensorOrArray | None"]
READS_ALL = 0b0111
PLAIN = (int, float, complex, bool, str, bytes, type(None), np.generic, tuple, list)
COPIED = 1 << 14  # bytes up to which a passive array is copied


def _word(address: Address) -> int:
    return ctypes.c_int64.from_address(address).value


class Recording:
    """A native tape, returned when nothing refers to it."""

    __slots__ = ("__weakref__", "address", "release")

    def __init__(self, inputs: int) -> None:
        module = runtime.tapes()
        self.release = module.release
        self.address = module.acquire()
        if not self.address:
            raise MemoryError("no memory for another native tape")
        module.reset(self.address, inputs)

    def word(self, k: int) -> int:
        """Return a word of the tape's state."""
        return int(STATE_WORDS.from_address(self.address)[k])

    @property
    def nbytes(self) -> int:
        """Memory that the records fill."""
        return self.word(TOP) - self.word(BASE)

    @property
    def leaves(self) -> int:
        """How many leaves the statements have."""
        at, base, count = self.word(TOP), self.word(BASE), 0
        while at > base:
            kind = KIND_WORDS.from_address(_word(at - 8))
            at -= kind[SIZE] or _word(at - 16)
            count += kind[LEAVES] * (1 if kind[SIZE] else _word(at + 8))  # of arrays: for each element
        return count

    @property
    def statements(self) -> int:
        """How many there are, inputs among them."""
        return self.word(COUNT)

    @property
    def room(self) -> int:
        """Memory there is for records."""
        return self.word(END) - self.word(BASE)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "address", 0) and not ending():  # at the end the pool may be gone before this
            self.release(self.address)
            self.address = 0


class Passive:
    """An argument that is not differentiated, as it was at the call."""

    __slots__ = ("guard", "value")

    def __init__(self, value: Any, guard: str) -> None:
        self.guard = 0
        if isinstance(value, list):
            value = list(value)
        elif isinstance(value, np.ndarray) and guard != "off":
            if value.nbytes <= COPIED or guard == "copy" or not value.flags.forc:
                value = value.copy(order="K")
            else:
                self.guard = checksum(value)
        self.value = value

    def again(self, function: Differentiable) -> Any:
        """Return the argument for another run."""
        value, name = self.value, function.__name__
        known = isinstance(value, (*PLAIN, np.ndarray)) or primal_of(value) is not None
        if not known and not function.rerun:
            raise UnsupportedOpError(
                f"a second derivative runs {name} again, and an argument of type {type(value).__name__} may "
                "not be what it was; pass numbers, arrays and tuples, or say tg.njit(rerun=True)"
            )
        if self.guard and checksum(value) != self.guard:
            raise MutationError(
                f"the second derivative of {name} runs it again, and an argument of shape {value.shape}, "
                f"dtype {value.dtype} is not what it was (perhaps {name} writes to it); pass a copy, "
                'or call it under tg.guard("copy")'
            )
        return value.copy(order="K") if isinstance(value, np.ndarray) and not self.guard else value


class Input:
    """A differentiated argument: which part of X it is, and its shape, with a last axis for complex parts."""

    __slots__ = ("changed", "paired", "shape", "start", "stop")

    def __init__(self, start: int, shape: tuple[int, ...], paired: bool) -> None:
        self.changed = False  # whether the function writes to it
        self.start, self.shape, self.paired = start, shape, paired
        self.stop = start + int(np.prod(shape, dtype=np.int64))


class Segment:
    """What a call was: the function, its arguments, its tape, and where its results stand on it."""

    def __init__(
        self, function: Differentiable, inputs: list[Input], args: list[Any], recording: Recording
    ) -> None:
        self.function, self.inputs, self.args = function, inputs, args
        self.recording: Recording | None = recording
        self.size = inputs[-1].stop
        self.statements: np.ndarray = None  # of the results, one after the other

    def __repr__(self) -> str:
        size = "released" if self.recording is None else f"{self.recording.statements} statements"
        return f"<call of {self.function.__name__}, {size}>"

    @property
    def released(self) -> bool:
        """Whether a sweep has let go of the tape."""
        return self.recording is None

    def release(self) -> None:
        """Let the tape be the next call's."""
        self.recording = None

    def freed(self) -> str:
        """Say that the tape is gone."""
        return f"the tape of a call of {self.function.__name__} is released already"

    def first(self, ct: np.ndarray) -> np.ndarray:
        """Return the derivative by X, from the tape of the call."""
        if self.recording is None:
            raise GraphFreedError(self.freed())
        return sweep(self.recording, (), self.statements, ct, self.size)

    def along(self, x: np.ndarray, directions: Sequence[np.ndarray], ct: np.ndarray = None) -> np.ndarray:
        """Return the derivative of the results along directions; with `ct`, that of ``ct . results`` by X.

        A tangent of 0 times an infinite partial is nan. That may come of an input which a direction has no
        part by, of directions, which do not move along one another, or of a constant in an array: so it runs
        once more on numbers that know whether they move.
        """
        found = self._along(x, directions, ct, 1)
        wrong = np.isnan(found)
        if wrong.any():
            found[wrong] = self._along(x, directions, ct, MARKED)[wrong]
        return found

    def _along(
        self, x: np.ndarray, directions: Sequence[np.ndarray], ct: np.ndarray, lanes: int
    ) -> np.ndarray:
        spec = (lanes,) * len(directions)
        values, statements, recording = self.run(x, directions, spec)
        place = sum(places_of(spec))
        if ct is None:
            return values[:, place].copy()
        return sweep(recording, spec, statements, ct, self.size, place)

    def run(
        self, x: np.ndarray, directions: Sequence[np.ndarray], spec: Spec
    ) -> tuple[np.ndarray, np.ndarray, Recording]:
        """Run the function again on dual numbers: its results' components and statements, and the tape.

        There is one also where it is not swept: what is on no tape is not active.
        """
        function = self.function
        if function.once:
            raise UnsupportedOpError(
                f"a second derivative runs {function.__name__} again, and it {function.once}, so it would "
                "not do the same; pass what it draws as an argument, or say tg.njit(rerun=True)"
            )
        values = np.zeros((self.size, components(spec)))
        values[:, 0] = x
        for lanes, place, direction in zip(spec, places_of(spec), directions, strict=True):
            values[:, place] = direction
            if lanes == MARKED:
                values[:, 2 * place] = parts_by(direction)
        recording = Recording(self.size)
        known: dict[int, np.ndarray] = {}
        args = [self._again(arg, spec, values, recording.address, known) for arg in self.args]
        result = explain.call(twin_of(function.primal, spec, True), function, args)
        found: list[np.ndarray] = []
        outputs_of(result, spec, found)
        changed: dict[int, np.ndarray] = {}
        for arg, kept in zip(args, self.args, strict=True):
            written_of(arg, kept, changed)
        found += changed.values()
        rows = [
            np.stack([part[f"tapegrad_v{k}"].ravel() for k in range(components(spec))], 1) for part in found
        ]
        numbers = [part[border.STATEMENT].ravel() for part in found]
        return np.concatenate(rows), np.concatenate(numbers), recording

    def _again(
        self, arg: Any, spec: Spec, values: np.ndarray, address: Address, known: dict[int, np.ndarray]
    ) -> Any:
        if isinstance(arg, tuple):
            return rebuilt(arg, [self._again(part, spec, values, address, known) for part in arg])
        if isinstance(arg, Passive):
            return twins_of(arg.again(self.function), spec)
        if id(arg) not in known:
            if isinstance(arg, Input):
                part = values[arg.start : arg.stop].reshape((*arg.shape, values.shape[1]))
                known[id(arg)] = entering(part, spec, address, arg.start + 1)
            else:
                part = np.zeros((*arg.value.shape, components(spec)))
                part[..., 0] = arg.value
                known[id(arg)] = entering(part, spec, 0, 0)
            if arg.paired:
                known[id(arg)] = border.paired(known[id(arg)])
        return known[id(arg)]


def places_of(spec: Spec) -> list[int]:
    """Return at which component of a number the tangent of each level is, the outermost first."""
    return [components(spec[k + 1 :]) for k in range(len(spec))]


def parts_by(direction: np.ndarray) -> np.ndarray:
    """Where a direction has a part."""
    return (direction != 0) | ~np.signbit(direction)


class Written:
    """A Tensor without history among the arguments: the function may write to it."""

    __slots__ = ("changed", "paired", "value")

    def __init__(self, value: np.ndarray, paired: bool) -> None:
        self.value, self.changed, self.paired = value, False, paired


def rebuilt(like: Any, parts: list[Any]) -> Any:
    """Return a tuple of the kind of another."""
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


def entering(values: np.ndarray, spec: Spec, address: Address, first: int) -> np.ndarray:
    """Return numbers, their components along the last axis, as records that enter a twin."""
    values = np.require(values, np.float64, "CA")
    out = np.empty(values.shape[:-1], border.record(spec))
    count = values.shape[-1]
    runtime.entrance().enter(abi.address(values), abi.address(out), out.size, count, first, address)
    return out


def outputs_of(result: Any, spec: Spec, found: list[np.ndarray]) -> None:
    """Append the active results, in order."""
    if isinstance(result, tuple):
        for part in result:
            outputs_of(part, spec, found)
    elif isinstance(result, np.ndarray) and result.dtype == border.record(spec):
        found.append(result)


def written_of(arg: Any, kept: Any, found: dict[int, np.ndarray]) -> None:
    """Gather the arguments that the first call had written to, as another has left them."""
    if isinstance(kept, tuple):
        for part, k in zip(arg, kept, strict=True):
            written_of(part, k, found)
    elif getattr(kept, "changed", False):
        found[id(kept)] = border.unpaired(arg)


def sweep(
    recording: Recording, spec: Spec, statements: np.ndarray, ct: np.ndarray, size: int, place: int = 0
) -> np.ndarray:
    """Return one component of the derivative by X of ``ct . results``."""
    count = components(spec)
    if not runtime.tapes().prepare(recording.address, count):
        raise MemoryError(f"no memory for the cotangents of {recording.statements} statements")
    seeds = np.zeros((statements.size, count))
    seeds[:, 0] = np.reshape(ct, -1) + 0.0  # -0.0 would say that nothing came
    gradient = np.empty((size, count))
    runtime.sweeps(spec).pull(recording.address, statements, seeds, gradient)
    return gradient[:, place].copy()


# ---------------------------------------------------------------- the ops


class _Op(Primitive):
    listed = False

    def __init__(self, name: str, doc: str) -> None:
        super().__init__(name, (), self.compute, 0, doc)

    def reads(self, k: int) -> int:
        """All operands: the function may have to run again."""
        return READS_ALL

    def compute(self, *operands: Any, **attrs: Any) -> np.ndarray:
        """The value from arrays."""
        raise NotImplementedError


class Call(_Op):
    """A call of a compiled function, its operands the differentiated arguments."""

    by_itself = False

    def vjp(
        self, ct: TensorOrArray, out: TensorOrArray, inputs: Values, attrs: Attributes, wanted: Sequence[int]
    ) -> dict[int, TensorOrArray]:
        segment = attrs["segment"]
        if hasattr(ct, "_apply"):
            x = JOIN(*inputs, segment=segment)
            found = GRADIENT(x, np.reshape(ct, (-1,)), segment=segment)
        else:
            found = segment.first(ct)
        return {k: PART(found, segment=segment, k=k) for k in wanted}

    def jvp(
        self, tangents: Tangents, out: TensorOrArray | None, inputs: Values, attrs: Attributes
    ) -> TensorOrArray:
        """The tangent of the results."""
        found = TANGENT(JOIN(*inputs, **attrs), JOIN.jvp(tangents, None, inputs, attrs), **attrs)
        return np.reshape(found, np.shape(out))


class Gradient(_Op):
    """gradient(X, c, u1 ... um)."""

    def compute(self, *operands: np.ndarray, segment: Segment) -> np.ndarray:
        x, ct, *directions = operands
        if not directions:
            return segment.first(ct)
        return segment.along(x, directions, ct)

    def vjp(
        self, ct: TensorOrArray, out: TensorOrArray, inputs: Values, attrs: Attributes, wanted: Sequence[int]
    ) -> dict[int, TensorOrArray]:
        x, c, *u = inputs
        found = {}
        for k in wanted:
            if k == 0:
                found[k] = self(x, c, *u, ct, **attrs)
            elif k == 1:
                found[k] = TANGENT(x, *u, ct, **attrs)
            else:
                others = [ct if q == k - 2 else v for q, v in enumerate(u)]
                found[k] = self(x, c, *others, **attrs)
        return found

    def jvp(
        self, tangents: Tangents, out: TensorOrArray | None, inputs: Values, attrs: Attributes
    ) -> TensorOrArray:
        """The tangent: it is linear in all but X."""
        return _moved(self, tangents, inputs, attrs)


class Tangent(_Op):
    """tangent(X, u1 ... um)."""

    def compute(self, *operands: np.ndarray, segment: Segment) -> np.ndarray:
        x, *directions = operands
        return segment.along(x, directions)

    def vjp(
        self, ct: TensorOrArray, out: TensorOrArray, inputs: Values, attrs: Attributes, wanted: Sequence[int]
    ) -> dict[int, TensorOrArray]:
        x, *u = inputs
        found = {}
        for k in wanted:
            others = u if k == 0 else u[: k - 1] + u[k:]
            found[k] = GRADIENT(x, ct, *others, **attrs)
        return found

    def jvp(
        self, tangents: Tangents, out: TensorOrArray | None, inputs: Values, attrs: Attributes
    ) -> TensorOrArray:
        """The tangent: it is linear in all but X."""
        return _moved(self, tangents, inputs, attrs)


def _moved(op: _Op, tangents: Tangents, inputs: Values, attrs: Attributes) -> TensorOrArray:
    """The tangent of a derivative of a call: one direction more where X moves, its own where another does."""
    parts = []
    for k, t in enumerate(tangents):
        if t is not None:
            operands = [*inputs, t] if k == 0 else [t if q == k else x for q, x in enumerate(inputs)]
            parts.append(op(*operands, **attrs))
    return functools.reduce(operator.add, parts)


class _Linear(_Op):
    def reads(self, k: int) -> int:
        """Nothing."""
        return 0


class Join(_Linear):
    """X of the inputs."""

    def compute(self, *operands: np.ndarray, segment: Segment) -> np.ndarray:
        return np.concatenate([np.reshape(x, -1) for x in operands])

    def vjp(
        self, ct: TensorOrArray, out: TensorOrArray, inputs: Values, attrs: Attributes, wanted: Sequence[int]
    ) -> dict[int, TensorOrArray]:
        return {k: PART(ct, **attrs, k=k) for k in wanted}

    def jvp(
        self, tangents: Tangents, out: TensorOrArray | None, inputs: Values, attrs: Attributes
    ) -> TensorOrArray:
        """The direction of the inputs that move."""
        moved = [EMBED(t, **attrs, k=k) for k, t in enumerate(tangents) if t is not None]
        return functools.reduce(operator.add, moved)


class Part(_Linear):
    """One of the inputs of X."""

    def compute(self, x: np.ndarray, *, segment: Segment, k: int) -> np.ndarray:
        place = segment.inputs[k]
        return np.reshape(x[place.start : place.stop], place.shape)

    def vjp(
        self, ct: TensorOrArray, out: TensorOrArray, inputs: Values, attrs: Attributes, wanted: Sequence[int]
    ) -> dict[int, TensorOrArray]:
        return {0: EMBED(ct, **attrs)}

    def jvp(
        self, tangents: Tangents, out: TensorOrArray | None, inputs: Values, attrs: Attributes
    ) -> TensorOrArray:
        """The part of the direction."""
        return self(*tangents, **attrs)


class Embed(_Linear):
    """A direction that has a part by one input only."""

    def compute(self, part: np.ndarray, *, segment: Segment, k: int) -> np.ndarray:
        place, found = segment.inputs[k], np.full(segment.size, -0.0)
        found[place.start : place.stop] = np.reshape(part, -1) + 0.0
        return found

    def vjp(
        self, ct: TensorOrArray, out: TensorOrArray, inputs: Values, attrs: Attributes, wanted: Sequence[int]
    ) -> dict[int, TensorOrArray]:
        return {0: PART(ct, **attrs)}

    def jvp(
        self, tangents: Tangents, out: TensorOrArray | None, inputs: Values, attrs: Attributes
    ) -> TensorOrArray:
        """The direction by the part's."""
        return self(*tangents, **attrs)


CALL = Call("compiled_call", "A call of a function compiled by tg.njit.")
EMBED = Embed("compiled_embed", "A direction by one input of such a call.")
GRADIENT = Gradient("compiled_gradient", "Derivative of such a call, its results weighted.")
JOIN = Join("compiled_join", "The inputs of such a call as one vector.")
PART = Part("compiled_part", "One input's part of such a vector.")
TANGENT = Tangent("compiled_tangent", "Derivative of such a call along directions.")
