"""A call of a Function, as its record knows it: what was saved, and the user's derivative."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tapegrad.autograd.hooks import from_array, replaced
from tapegrad.autograd.provenance import Provenance, escape_error, nobody, once_error, once_only
from tapegrad.core.base import Handle, has_tangent, requires_grad
from tapegrad.core.dispatch import alias_apart, is_externally_writable
from tapegrad.core.forward_mode import Level
from tapegrad.core.grad_mode import is_grad_enabled, within
from tapegrad.core.nodes import Hook
from tapegrad.engine.plan import at_work
from tapegrad.errors import DTypeError, GradientError, GraphFreedError, MutationError, ShapeError
from tapegrad.ops import custom
from tapegrad.ops.primitive import sum_to
from tapegrad.tape.tape import Tape, checksum
from tapegrad.tensor import Operand, Tensor, TensorOrArray, alias_of, recall, record, wrap

__all__ = ["NESTED", "Call", "FunctionCtx", "Kept", "mapped"]


Known: TypeAlias = tuple[tuple[int, ...], np.dtype]  # a Tensor's shape and dtype
NESTED = 4  # to which depth lists, tuples and dicts on ctx are looked into


class Kept:
    """A saved Tensor: itself while it is what it was, else what it was."""

    __slots__ = ("checksum", "index", "moving", "original", "place", "snapshot")

    def __init__(
        self,
        x: Tensor,
        place: tuple[weakref.ref[Tape], int] | None,
        known: Tensor | None = None,
        index: int = -1,
    ) -> None:
        self.index = index  # of the call's results the number that it is
        self.moving: Tensor | None = None  # itself with its tangents
        self.place = place  # of what is on the call's own tape: a weak reference to it, and the record
        self.original: Any = weakref.ref(x)
        self.snapshot: Any = None if place is not None else alias_of(x) if known is None else known
        if place is None and x._extra is not None and x._extra.call is not None:
            self.snapshot, self.original = x, lambda: x
        self.checksum: int | None = None
        if place is None and is_externally_writable(x):
            self.snapshot, self.checksum = alias_apart(self.snapshot)

    def verify(self, name: str) -> None:
        """See that what was saved is what it was."""
        if self.checksum is not None and checksum(self.snapshot._v) != self.checksum:
            raise MutationError(
                f"a Tensor of shape {self.snapshot.shape}, dtype {self.snapshot.dtype} was written to after "
                f"{name} had saved it, and backward needs the values of then; save a copy of it, or record "
                'under tg.guard("copy")'
            )


def mapped(function: Callable[[Tensor, int], Any], x: Any, depth: int) -> Any:
    """A list, tuple or dict with ``function(part, depth + 1)`` for each part; anything else itself."""
    if type(x) in (list, tuple) and depth < NESTED:
        return type(x)([function(part, depth + 1) for part in x])
    if type(x) is dict and depth < NESTED:
        return {key: function(part, depth + 1) for key, part in x.items()}
    return x


class FunctionCtx:
    """What a Function's forward and backward know of one call; any attribute may be set on it.

    Attributes
    ----------
    needs_input_grad : tuple of bool
        For each argument of forward, whether it is a Tensor that requires grad.
    """

    needs_input_grad: tuple[bool, ...] = ()
    _materialize = True
    _promised = False
    _saved: Sequence[Tensor | None] = ()
    _dirty: Sequence[Tensor] = ()
    _plain: Sequence[Tensor] = ()
    _call: weakref.ref[Call] | None = None  # weak: the call owns this

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep Tensors (or None) for backward; a second call replaces the first."""
        _check_tensors("save_for_backward", tensors, True)
        self._saved = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keep Tensors (or None) for jvp."""
        _check_tensors("save_for_forward", tensors, True)
        self._saved_forward = tensors

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:  # as torch has it; None where that was given
        """What save_for_backward kept; an input or result is the same object if it is still what it was."""
        call = None if self._call is None else self._call()
        return tuple(self._saved) if call is None else call.unpack()  # type: ignore[return-value, arg-type]

    def __getattr__(self, name: str) -> Any:
        """Return a result that forward set as an attribute."""
        call = None if name.startswith("__") or self._call is None else self._call()
        if call is None or name not in call.attributes:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return call.attribute(name)

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        """The older name of `saved_tensors`."""
        warnings.warn("saved_variables is called saved_tensors", DeprecationWarning, stacklevel=2)
        return self.saved_tensors

    @property
    def saved_for_forward(self) -> tuple[Any, ...]:
        """What save_for_forward kept."""
        return tuple(getattr(self, "_saved_forward", ()))

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Say which inputs forward has written to; it must return them."""
        _check_tensors("mark_dirty", tensors)
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Say which results have no derivative."""
        _check_tensors("mark_non_differentiable", tensors)
        self._plain = tensors

    def mark_shared_storage(self, *pairs: tuple[Tensor, Tensor]) -> None:
        """Do nothing: results that share memory with an input are found without being named."""
        warnings.warn("mark_shared_storage is not needed", FutureWarning, stacklevel=2)

    def set_materialize_grads(self, value: bool) -> None:
        """Say whether backward gets zeros (the default) or None for a result that no gradient came to."""
        self._materialize = bool(value)

    def mark_twice_differentiable(self) -> None:
        """Promise that no gradient depends on what forward or backward took out of a Tensor.

        Values may be taken out, by ``.numpy()`` or ``.item()``; as they could take part in a gradient
        without their history, a second derivative is refused then, unless this has been called.
        """
        self._promised = True


def _check_tensors(what: str, given: Sequence[Operand | None], or_none: bool = False) -> None:
    for k, x in enumerate(given):
        if not isinstance(x, Tensor) and not (or_none and x is None):
            raise TypeError(
                f"{what} takes Tensors{' and None' * or_none}, found {type(x).__name__} at {k}; anything "
                "else can be an attribute of ctx"
            )


class Call:
    """One call of a Function.

    Parameters
    ----------
    function
        The user's backward: ``function(ctx, *grads)``.
    ctx
        What forward left for it.
    name
        Of the node.
    args
        Arguments of forward.
    slots
        Which of them the operands of the record are.
    provenance
        What is known of the forward.
    once
        Whether the derivative cannot be differentiated.
    raw
        Whether backward gets Tensors without history: the older kind of Function.
    """

    __slots__ = (
        "__weakref__",
        "attributes",
        "ctx",
        "function",
        "kept",
        "known",
        "levels",
        "metadata",
        "name",
        "once",
        "place",
        "post",
        "pre",
        "provenance",
        "raw",
        "released",
        "results",
        "slots",
        "spares",
    )  # fmt: skip

    def __init__(
        self, function: Callable[..., Any], ctx: FunctionCtx, name: str, args: Sequence[Any],
        slots: list[int],
        provenance: Provenance, once: bool, raw: bool,
    ) -> None:  # fmt: skip
        self.function, self.ctx, self.name, self.slots = function, ctx, name, slots
        self.provenance, self.once, self.raw = provenance, once or raw, raw
        self.known = [(a._v.shape, a._v.dtype) if isinstance(a, Handle) else None for a in args]
        self.place: Any = nobody, 0  # of the record: a weak reference to the tape, and position
        self.kept: list[Kept | Callable[[], Tensor] | None] = []
        self.attributes: dict[str, Any] = {}  # what forward set on ctx with results in it: not owned
        # shape and dtype of each; None for what is no Tensor or gets no zeros
        self.results: list[Known | None] = []
        self.released = False
        # values of saved results, by number, whose records nothing but this call may lead to
        self.spares: dict[int, Any] = {}
        self.levels: list[Level] = []  # of the tangents that arguments carry
        self.pre: dict[int, Hook] = {}
        self.post: dict[int, Hook] = {}
        self.metadata: dict[Any, Any] = {}

    # ------------------------------------------------------------ what is saved

    def unpack(self) -> tuple[Tensor | None, ...]:
        """Return what save_for_backward kept."""
        if self.released:
            raise GraphFreedError(self.freed())
        return tuple(None if kept is None else self._unpacked(kept) for kept in self.kept)

    def attribute(self, name: str) -> Any:
        """Return what forward set on ctx with results in it."""
        return self._restored(self.attributes[name])

    def _restored(self, x: Any, depth: int = 0) -> Any:
        return self._unpacked(x) if isinstance(x, Kept) else mapped(self._restored, x, depth)

    def _unpacked(self, kept: Kept | Callable[[], Tensor]) -> Tensor:
        if not isinstance(kept, Kept):
            return kept()  # packed
        if kept.moving is not None and has_tangent(kept.moving):
            return wrap(kept.moving._v) if self.raw else kept.moving
        original = kept.original()
        if kept.place is None:
            kept.verify(self.name)
            snapshot = kept.snapshot
            unchanged = original is not None and original._v is snapshot._v and original._at == snapshot._at
            found = original if unchanged and original._tape is snapshot._tape else snapshot
        else:
            reference, k = kept.place
            tape = reference()
            value = None if tape is None else tape.value(k)
            if tape is not None and value is not None:
                unchanged = original is not None and original._tape is tape and original._at == 4 * (k + 1)
                found = original if unchanged else recall(value, (tape, k))
            elif kept.index in self.spares:  # its record was pruned
                attrs = {"call": self, "index": kept.index}
                found = record(custom.result, self.spares[kept.index], (self.handle(),), attrs)
            else:
                raise GraphFreedError(self.freed())
        return wrap(found._v) if self.raw else found

    def handle(self) -> Tensor:
        """Return a Tensor with the history of the call."""
        tape, k = self.place[0](), self.place[1]
        value = tape.value(k)
        return recall(tape.view().value_or_shape(k) if value is None else value, (tape, k))

    def freed(self) -> str:
        """Say that what was saved is gone."""
        return (
            f"{self.name} needs what forward saved, and a first backward has released it; call that with "
            "retain_graph=True"
        )

    def release(self) -> None:
        """Let go of what was saved."""
        self.spares.clear()
        if self.kept:
            self.released, self.kept = True, []

    # ------------------------------------------------------------ the derivative

    def receive(self, index: int, ct: TensorOrArray) -> Tensor | np.generic:
        """Keep the cotangent of a result for `vjp_of_results`; returns that of the call's own value."""
        at_work().seen.setdefault(self, {})[index] = ct if isinstance(ct, Handle) else from_array(ct)
        return wrap(np.float64(0.0)) if isinstance(ct, Handle) else np.float64(0.0)

    def vjp(
        self, wanted: list[int], ct: TensorOrArray, pending: Mapping[int, Tensor]
    ) -> dict[int, TensorOrArray]:
        """Cotangents of the operands named, by the user's backward; `pending` are those of the results."""
        recording = isinstance(ct, Handle) and is_grad_enabled()
        if isinstance(ct, Handle) and self._moves():
            self._refuse_tangents()
        grads = self._gradients(pending)
        if recording or self.pre or self.post:
            found = within({"recording": recording}, self._hooked, grads, recording)
        else:
            found = self._backward(grads, False)
        picked = {q: found[self.slots[q]] for q in wanted}
        as_tensors = isinstance(ct, Handle)
        return {q: g if as_tensors else g._v for q, g in picked.items() if g is not None}

    def vjp_of_results(self, wanted: list[int], ct: TensorOrArray) -> dict[int, TensorOrArray]:
        """As `vjp`, of what the sweep at work has received."""
        return self.vjp(wanted, ct, at_work().seen.pop(self, {}))

    def vjp_of_result(self, wanted: list[int], ct: TensorOrArray) -> dict[int, TensorOrArray]:
        """As `vjp`, of a call with one result, by that one's cotangent."""
        return self.vjp(wanted, ct, {0: ct if isinstance(ct, Handle) else from_array(ct)})

    def vjp_of_lanes(self, n: int, wanted: list[int], ct: TensorOrArray) -> dict[int, TensorOrArray]:
        """As `vjp_of_results`, of n cotangents one after the other."""
        pending = at_work().seen.pop(self, {})
        found = [self.vjp(wanted, ct[lane], {k: g[lane] for k, g in pending.items()}) for lane in range(n)]
        shapes: Any = {q: self.known[self.slots[q]] for part in found for q in part}
        return {
            q: np.stack([part[q] if q in part else np.zeros(*known) for part in found])
            for q, known in shapes.items()
        }

    def _moves(self) -> bool:
        """Whether an argument carries a tangent."""
        return any(level.notes is not None for level in self.levels)

    def _refuse_tangents(self) -> None:
        """Refuse a backward of what carries tangents where these could be lost."""
        if self.once:
            raise once_error(self.provenance.name)
        if self.provenance.took and not self.ctx._promised:
            raise escape_error(self.provenance.name)

    def _hooked(
        self, grads: list[Tensor | None], recording: bool
    ) -> Mapping[int, Tensor | None] | list[Tensor | None]:
        """The gradients of the arguments, as hooks of the node leave them."""
        for hook in list(self.pre.values()):
            grads = replaced(hook(tuple(grads)), grads, "a pre-hook")
        found = self._backward(grads, recording)
        if not self.post:
            return found
        tensors = [k for k, known in enumerate(self.known) if known is not None]
        inputs = [found[k] for k in tensors]
        for hook in list(self.post.values()):
            inputs = replaced(hook(tuple(inputs), tuple(grads)), inputs, "a hook")
        return dict(zip(tensors, inputs, strict=True))

    def _gradients(self, pending: Mapping[int, Tensor]) -> list[Tensor | None]:
        """The gradients of the results, zeros or None for those that none came to."""
        grads: list[Tensor | None] = []
        for k, known in enumerate(self.results):
            g = pending.get(k)
            if g is None and known is not None and self.ctx._materialize:
                g = from_array(np.zeros(*known))
            grads.append(g)
        return grads

    def _backward(self, grads: list[Tensor | None], recording: bool) -> list[Tensor | None]:
        """The gradients of the arguments; those that cannot be differentiated refuse to be."""
        forward = self.provenance
        seen = forward.backward([g for g in grads if g is not None and requires_grad(g)])
        moving = self._moves() or any(has_tangent(g) for g in grads)
        if moving:
            seen.bases, seen.tangents = forward.bases, not recording
        changes = {"recording": recording and not self.once, "forward": seen}
        found = within(changes, self.function, self.ctx, *grads)
        forward.took = forward.took or seen.took  # what backward took it may have kept for the next one
        given = list(found) if isinstance(found, tuple) else [found]
        checked = self._checked(given)
        if not (moving or recording):
            return checked
        origins = [seen.of(g) if isinstance(g, Handle) else None for g in given]
        if moving:
            if seen.took and not self.ctx._promised:
                raise escape_error(forward.name)
            for origin in origins:
                if origin is not None:
                    raise origin.error()
        if not recording:
            return checked
        for k, g in enumerate(checked):
            if g is None:
                continue
            if self.once or not isinstance(given[k], Handle):
                checked[k] = once_only(g, forward.name, seen.sources())
            elif forward.took and not self.ctx._promised:
                checked[k] = (seen if seen.took else forward).refusing(g)
            elif origins[k] is not None:
                checked[k] = seen.refusing(g, origins[k])
        return checked

    def _checked(self, given: list[Tensor | None]) -> list[Tensor | None]:
        """What backward returned, one for each argument of forward."""
        count = len(self.known)
        if len(given) < count or any(g is not None for g in given[count:]):
            raise GradientError(
                f"{self.name} returned {len(given)} gradients for {count} arguments of forward; return one "
                "for each, None where there is none"
            )
        return [self._fitting(k, g) for k, g in enumerate(given[:count])]

    def _fitting(self, k: int, g: Any) -> Any:
        if g is None:
            return None
        if type(g) is Tensor and self.ctx.needs_input_grad[k] and (g._v.shape, g._v.dtype) == self.known[k]:
            return g
        what, known = f"{self.name} returned for argument {k}", self.known[k]
        if known is None:
            raise GradientError(f"{what}, which is no Tensor, a gradient; it takes None")
        if isinstance(g, (np.ndarray, np.generic)):
            g = from_array(g)
        if not isinstance(g, Tensor):
            raise GradientError(f"{what} a {type(g).__name__}; it takes a Tensor, an ndarray or None")
        if not self.ctx.needs_input_grad[k]:
            return None
        shape, dtype = known
        if g.shape != shape:
            try:
                fits = np.broadcast_shapes(g.shape, shape) == g.shape
            except ValueError:
                fits = False
            if not fits:
                raise ShapeError(f"{what} a gradient of shape {g.shape}, and the argument has shape {shape}")
            g = sum_to(g, shape)
        if g.dtype != dtype:
            if g.dtype.kind not in "fiubc":
                raise DTypeError(f"{what} a gradient of dtype {g.dtype}, and the argument has dtype {dtype}")
            g = (g.real if g.dtype.kind == "c" and dtype.kind != "c" else g).astype(dtype)
        return g
