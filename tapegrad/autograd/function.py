"""`Function`: an operation whose derivative is the user's."""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.hooks import replaced
from tapegrad.dispatch import (
    Handle,
    extra,
    moves,
    noted,
    recall,
    record,
    requires_grad,
    same,
    settle,
    shares,
    under,
    wrap,
)
from tapegrad.duals import Level, at_level, dual
from tapegrad.engine.sweep import at_work
from tapegrad.errors import DTypeError, GradientError, GraphFreedError, ShapeError
from tapegrad.grad_mode import change_mode, current_mode, is_grad_enabled, restore_mode, set_recording
from tapegrad.kernels import abi
from tapegrad.ops import custom
from tapegrad.ops.primitive import sum_to
from tapegrad.tape.record import slot
from tapegrad.tape.tape import close, local
from tapegrad.tensor import Tensor
from tapegrad.views import STALE
from tapegrad.writes import write

__all__ = ["Function", "FunctionCtx", "once_differentiable"]


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
    _saved: Sequence[Any] = ()
    _saved_forward: Sequence[Any] = ()
    _dirty: Sequence[Any] = ()
    _plain: Sequence[Any] = ()
    _call: Any = None  # weak: the call owns this

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep Tensors (or None) for backward; a second call replaces the first."""
        for k, x in enumerate(tensors):
            if x is not None and not isinstance(x, Tensor):
                raise TypeError(f"save_for_backward takes Tensors and None, found {type(x).__name__} at {k}")
        self._saved = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Keep Tensors (or None) for jvp."""
        self._saved_forward = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What save_for_backward kept; an input or result is the same object if it is still what it was."""
        call = None if self._call is None else self._call()
        return tuple(self._saved) if call is None else call.unpack()

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        """The older name of `saved_tensors`."""
        warnings.warn("saved_variables is called saved_tensors", DeprecationWarning, stacklevel=2)
        return self.saved_tensors

    @property
    def saved_for_forward(self) -> tuple[Any, ...]:
        """What save_for_forward kept."""
        return tuple(self._saved_forward)

    def mark_dirty(self, *tensors: Any) -> None:
        """Say which inputs forward has written to; it must return them."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Say which results have no derivative."""
        self._plain = tensors

    def mark_shared_storage(self, *pairs: Any) -> None:
        """Do nothing: results that share memory with an input are found without being named."""
        warnings.warn("mark_shared_storage is not needed", FutureWarning, stacklevel=2)

    def set_materialize_grads(self, value: bool) -> None:
        """Say whether backward gets zeros (the default) or None for a result that no gradient came to."""
        self._materialize = bool(value)

    def mark_twice_differentiable(self) -> None:
        """Promise that backward uses no number that forward took out of its Tensors.

        Forward may take values out, by ``.numpy()`` or ``.item()``; as they could come back in
        backward without their history, a second derivative is refused then, unless this has been called.
        """
        self._promised = True


class _Forward:
    """A forward at work: knows which Tensors it computed from the inputs, and whether values left them."""

    def __init__(self, name: str, inputs: list[Any], befores: list[Any]) -> None:
        self.name = name
        self.known = {id(x) for x in inputs}
        self.befores = befores
        self.took = False

    def knows(self, x: Any) -> bool:
        if not isinstance(x, Handle):
            return False
        return id(x) in self.known or (x._extra is not None and x._extra.call is self)

    def note(self, out: Any, operands: Sequence[Any]) -> None:
        """See a Tensor computed in forward."""
        if any(self.knows(x) for x in operands):
            extra(out).call = self

    def take(self, x: Any) -> None:
        """See a value leave a Tensor."""
        self.took = self.took or self.knows(x)

    def enter(self, x: Any) -> Any:
        """Return a Tensor computed in forward as an operand: its value, with a history that refuses."""
        return record(custom.refusal, x._v, self.befores, {"why": self.error})

    def error(self) -> GradientError:
        """What a derivative of a Tensor computed in forward gives."""
        return _out_of_sight(self.name)


def _out_of_sight(name: str) -> GradientError:
    return GradientError(
        f"the derivative of {name}.backward needs that of a value which forward computed while nothing was "
        "recorded; save inputs or results with ctx.save_for_backward and compute it from them in backward"
    )


def _taken_out(name: str) -> GradientError:
    return GradientError(
        f"{name}.forward took values out of its Tensors (.numpy(), .item(), float(), requires_grad_()), and "
        "its backward may use them without their history: there is no second derivative; if backward only "
        "uses what ctx.save_for_backward kept, say so with ctx.mark_twice_differentiable()"
    )


def _once(name: str) -> GradientError:
    return GradientError(f"{name}.backward is once_differentiable: it has no second derivative")


class _Kept:
    """A saved Tensor: itself while it is what it was, else what it was."""

    __slots__ = ("index", "moving", "original", "snapshot")

    def __init__(self, x: Any, index: int) -> None:
        self.index = index  # among the results; -1 for anything else
        self.moving: Any = None  # itself with its tangent
        self.original: Any = weakref.ref(x)
        self.snapshot: Any = None if index >= 0 else same(x)
        if index < 0 and x._extra is not None and x._extra.call is not None:
            self.snapshot, self.original = x, lambda: x


class _Call:
    """One call of a Function, as its record knows it."""

    def __init__(self, function: Any, ctx: Any, name: str, args: Sequence[Any], inputs: list[int]) -> None:
        self.function, self.ctx, self.name = function, ctx, name
        self.is_tensor = [isinstance(a, Handle) for a in args]
        self.shapes = [(a._v.shape, a._v.dtype) if isinstance(a, Handle) else None for a in args]
        self.slots = inputs  # the argument that each operand is
        self.forward: Any = None
        self.kept: list[Any] = []
        self.results: list[Any] = []  # of each result that has a derivative, shape and dtype; else None
        self.places: dict[int, Any] = {}  # of those that are kept: a weak reference to the tape, and position
        self.released = False
        self.once = False
        self.moving = False  # whether an input carries a tangent
        self.legacy = False
        self.pre: dict[int, Any] = {}
        self.post: dict[int, Any] = {}
        self.metadata: dict[Any, Any] = {}
        self._sweep: Any = lambda: None
        self._pending: dict[int, Any] = {}

    # ------------------------------------------------------------ what is saved

    def unpack(self) -> tuple[Any, ...]:
        if self.released:
            raise GraphFreedError(self.freed())
        return tuple(None if kept is None else self._unpacked(kept) for kept in self.kept)

    def _unpacked(self, kept: Any) -> Any:
        if not isinstance(kept, _Kept):
            return kept()
        if kept.moving is not None and moves(kept.moving):
            return kept.moving
        original: Any = kept.original()
        if kept.index < 0:
            snapshot = kept.snapshot
            unchanged = original is not None and original._v is snapshot._v and original._at == snapshot._at
            found = original if unchanged and original._tape is snapshot._tape else snapshot
        else:
            reference, k = self.places[kept.index]
            tape = reference()
            value = None if tape is None else tape.value(k)
            if value is None:
                raise GraphFreedError(self.freed())
            place = 4 * (k + 1)
            unchanged = original is not None and original._tape is tape and original._at == place
            found = original if unchanged else recall(value, (tape, k))
        return wrap(found._v) if self.legacy else found

    def freed(self) -> str:
        """Say that what was saved is gone."""
        return (
            f"{self.name} needs what save_for_backward kept, and a first backward has released it; call that "
            "with retain_graph=True"
        )

    def release(self) -> None:
        """Let go of what was saved."""
        if self.kept:
            self.released, self.kept = True, []

    # ------------------------------------------------------------ the derivative

    def receive(self, index: int, ct: Any) -> Any:
        """Take the cotangent of a result; returns that of the call's own value."""
        sweep = at_work()
        if self._sweep() is not sweep:  # what is left of a sweep that failed
            self._sweep, self._pending = weakref.ref(sweep), {}
        if isinstance(ct, Handle):
            self._pending[index] = ct
            return wrap(np.float64(0.0))
        self._pending[index] = wrap(np.array(ct)[()] if ct.ndim == 0 else np.array(ct))
        return np.float64(0.0)

    def vjp(self, wanted: list[int], ct: Any) -> dict[int, Any]:
        """Cotangents of the operands named, by the user's backward."""
        recording = isinstance(ct, Handle) and is_grad_enabled()
        if self.moving and not recording and isinstance(ct, Handle):
            if self.once:
                raise _once(self.forward.name)
            if self.forward.took and not self.ctx._promised:
                raise _taken_out(self.forward.name)
        pending, self._pending = self._pending, {}
        grads: list[Any] = []
        for k, known in enumerate(self.results):
            g = pending.get(k)
            if g is None and known is not None and self.ctx._materialize:
                shape, dtype = known
                g = wrap(np.zeros(shape, dtype)[()] if shape == () else np.zeros(shape, dtype))
            grads.append(g)
        before = set_recording(recording and not self.once)
        try:
            for hook in list(self.pre.values()):
                grads = replaced(hook(tuple(grads)), grads, "a pre-hook")
            found = self.function(self.ctx, *grads)
        finally:
            restore_mode(before)
        found = self._checked(found)
        if recording:
            found = [self._refusing(g, grads) for g in found]
        inputs: list[Any] = [found[q] for q in self.slots]
        for hook in list(self.post.values()):
            inputs = replaced(hook(tuple(inputs), tuple(grads)), inputs, "a hook")
        picked = {q: inputs[q] for q in wanted if inputs[q] is not None}
        return {q: g if isinstance(ct, Handle) else np.asarray(g._v) for q, g in picked.items()}

    def vjp_of_lanes(self, n: int, wanted: list[int], ct: Any) -> dict[int, Any]:
        """As `vjp`, of n cotangents one after the other."""
        pending, self._pending = self._pending, {}
        found = []
        for lane in range(n):
            self._pending = {k: g[lane] for k, g in pending.items()}
            found.append(self.vjp(wanted, ct[lane]))
        shapes: Any = {q: self.shapes[self.slots[q]] for part in found for q in part}
        return {
            q: np.stack([part[q] if q in part else np.zeros(*known) for part in found])
            for q, known in shapes.items()
        }

    def _refusing(self, g: Any, grads: list[Any]) -> Any:
        """A gradient that refuses to be differentiated where its history is not known."""
        if g is None:
            return None
        if self.once or (g._extra is not None and g._extra.shown is True):
            why = functools.partial(_once if self.once else _taken_out, self.forward.name)
            sources = [*self.forward.befores, *[x for x in grads if x is not None]]
        elif self.forward.took and not self.ctx._promised:
            why, sources = functools.partial(_taken_out, self.forward.name), self.forward.befores
        else:
            return g
        return g + record(custom.refusal, np.zeros_like(g._v)[()], sources, {"why": why})

    def _checked(self, found: Any) -> list[Any]:
        """What backward returned, one for each argument of forward."""
        name, count = self.name, len(self.is_tensor)
        given = list(found) if isinstance(found, tuple) else [found]
        if len(given) > count and any(g is not None for g in given[count:]):
            raise GradientError(f"{name} returned {len(given)} gradients for {count} arguments of forward")
        if len(given) < count:
            raise GradientError(
                f"{name} returned {len(given)} gradients for {count} arguments of forward; one each, None "
                "where there is none"
            )
        return [self._fitting(k, g) for k, g in enumerate(given[:count])]

    def _fitting(self, k: int, g: Any) -> Any:
        if g is None:
            return None
        what = f"{self.name} returned for argument {k}"
        known = self.shapes[k]
        if known is None:
            raise GradientError(f"{what}, which is no Tensor, a gradient; it takes None")
        if isinstance(g, (np.ndarray, np.generic)) and not isinstance(g, Handle):
            g = wrap(np.array(g)[()] if np.ndim(g) == 0 else np.array(g))
            extra(g).shown = True
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
            g = _as_before(g, sum_to(g, shape))  # type: ignore[no-untyped-call]
        if g.dtype != dtype:
            if g.dtype.kind not in "fiubc":
                raise DTypeError(f"{what} a gradient of dtype {g.dtype}, and the argument has dtype {dtype}")
            part = g.real if g.dtype.kind == "c" and dtype.kind != "c" else g
            g = _as_before(g, part.astype(dtype))
        return g


def _as_before(g: Any, new: Any) -> Any:
    """`new`, marked as what came without history if `g` is."""
    if g._extra is not None and g._extra.shown is True:
        extra(new).shown = True
    return new


class FunctionMeta(type):
    """Tells Functions whose forward is a method of an instance, as before torch 0.4, from the others."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        forward = inspect.getattr_static(cls, "forward", None)
        cls._is_legacy = forward is not None and not isinstance(forward, (staticmethod, classmethod))


class Function(FunctionCtx, metaclass=FunctionMeta):
    """An operation with a derivative of its own: subclass it, define forward and backward, call `apply`.

    ``forward(ctx, *args)`` computes Tensors from any arguments; nothing in it is recorded. With a static
    method ``setup_context(ctx, inputs, output)`` it has no ctx: ``forward(*args)``. ``backward(ctx, *grads)``
    gets a gradient for each result and returns one for each argument, None where there is none. It is
    differentiable itself where it computes from ``ctx.saved_tensors`` and its arguments by recorded
    operations; what it takes from elsewhere makes a second derivative an error, never a wrong number.

    A class whose forward is no static method is of the older kind: ``F(options)(x)``, where the instance is
    the ctx, called once, with a backward that is not differentiable.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> class Cube(tg.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x**3
    ...
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         (x,) = ctx.saved_tensors
    ...         return 3 * x**2 * grad
    >>> x = tg.tensor(2.0, requires_grad=True)
    >>> (g,) = tg.grad(Cube.apply(x), x, create_graph=True)
    >>> g, tg.grad(g, x)
    (tensor(12., grad_fn=<MulBackward>), (tensor(12.),))
    """

    _is_legacy = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an instance, of the older kind only."""
        if not cls._is_legacy:
            warnings.warn(
                f"{cls.__name__} has a static forward: call {cls.__name__}.apply(...), without an instance",
                DeprecationWarning,
                stacklevel=2,
            )
        return super().__new__(cls)

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the results; to be defined."""
        raise NotImplementedError(
            "a Function defines forward(ctx, *args), or forward(*args) and setup_context"
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Save on ctx what backward needs, where forward has no ctx."""
        raise NotImplementedError("setup_context")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Compute the gradients of the arguments; to be defined, or `vjp`."""
        raise NotImplementedError(f"{type(ctx).__name__} defines neither backward nor vjp")

    vjp = backward

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Compute the tangents of the results, for forward mode."""
        raise NotImplementedError(f"{type(ctx).__name__} defines no jvp, which forward mode needs")

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """Compute over a batch, for transforms that map over one."""
        raise GradientError("the Function defines no vmap")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Call the Function: its results, with its derivative as theirs.

        Parameters
        ----------
        *args, **kwargs
            Arguments of forward. Tensors among them are tracked, those within lists are not.

        Raises
        ------
        NotImplementedError
            forward is not defined.
        GradientError
            What was marked does not fit.
        """
        if cls._is_legacy:
            raise GradientError(
                f"{cls.__name__} has a forward that is no static method: call {cls.__name__}(...)(...)"
            )
        ctx: Any = type(f"{cls.__name__}Backward", (FunctionCtx,), {})()
        split = cls.setup_context is not Function.setup_context
        if kwargs or split:
            bound = inspect.signature(cls.forward).bind(*args, **kwargs) if split else inspect.signature(
                cls.forward
            ).bind(ctx, *args, **kwargs)  # fmt: skip
            bound.apply_defaults()
            if not bound.kwargs:
                args, kwargs = (bound.args if split else bound.args[1:]), {}

        def forward(*inputs: Any) -> Any:
            if not split:
                return cls.forward(ctx, *inputs, **kwargs)
            output = cls.forward(*inputs, **kwargs)
            cls.setup_context(ctx, inputs, output)
            return output

        return _applied(cls, ctx, f"{cls.__name__}Backward", forward, _rule_of(cls), args, list(args))

    def __call__(self, *tensors: Any) -> Any:
        """Call an instance of the older kind, once."""
        if not self._is_legacy:
            raise GradientError(f"{type(self).__name__} has a static forward: call its apply")
        if self.__dict__.get("_called"):
            raise GradientError(f"an instance of {type(self).__name__} is called once; make another one")
        self._called = True
        raws = [wrap(x._v) if isinstance(x, Handle) else x for x in tensors]
        name = type(self).__name__
        return _applied(type(self), self, name, self.forward, _rule_of(type(self)), tensors, raws)


def _rule_of(cls: Any) -> Callable[..., Any]:
    """The user's backward, by either of its names."""
    own, other = cls.backward is not Function.backward, cls.vjp is not Function.vjp
    if own and other:
        raise GradientError(f"{cls.__name__} defines backward and vjp, which are two names of one thing")
    return cls.vjp if other else cls.backward  # type: ignore[no-any-return]


def _applied(
    cls: Any, ctx: Any, name: str, forward: Any, rule: Any, args: Sequence[Any], given: list[Any]
) -> Any:
    """Run forward on what is given for the arguments, and record it as a call."""
    for x in args:
        if isinstance(x, Handle) and x._tape is STALE:
            settle(x)
    levels = [x._at.level for x in args if moves(x)]
    if levels:
        return _moved(cls, ctx, name, forward, rule, args, max(levels, key=lambda level: level.serial))
    needs = tuple(requires_grad(x) for x in args)
    ctx.needs_input_grad = needs
    recording = any(needs) and is_grad_enabled()
    tensors = [x for x in given if isinstance(x, Handle)]
    if not recording:
        before = set_recording(False)
        try:
            found = forward(*given)
        finally:
            restore_mode(before)
        for out in found if isinstance(found, tuple) else (found,):
            if isinstance(out, Handle) and not any(out is x for x in tensors):
                noted(out, tensors)
        return found
    slots = [k for k, need in enumerate(needs) if need]
    befores = [same(args[k]) for k in slots]
    call = _Call(rule, ctx, name, args, slots)
    call.legacy, call.forward = cls._is_legacy, _Forward(cls.__name__, tensors, befores)
    call.once = cls._is_legacy or getattr(rule, "once_differentiable", False)
    if cls._is_legacy:
        call.function = lambda _, *grads: rule(ctx, *[None if g is None else wrap(g._v) for g in grads])
    before = change_mode(recording=False, forward=call.forward)
    try:
        found = forward(*given)
    finally:
        restore_mode(before)
    results = list(found) if isinstance(found, tuple) else [found]
    results = [_tensor(out) for out in results]
    if not any(isinstance(out, Handle) for out in results):
        raise GradientError(
            f"{cls.__name__}.forward returned no Tensor (found {type(found).__name__}), though an argument "
            "requires grad; return Tensors, several as a tuple"
        )
    outs = _recorded(cls, call, args, given, befores, results)
    return tuple(outs) if isinstance(found, tuple) else outs[0]


def _moved(cls: Any, ctx: Any, name: str, forward: Any, rule: Any, args: Sequence[Any], level: Level) -> Any:
    """Call a Function of Tensors that carry tangents: its results with theirs, by its jvp."""
    duals = [at_level(x, level) for x in args]
    primals = [x if d is None else d.primal for x, d in zip(args, duals, strict=True)]
    found = _applied(cls, ctx, name, forward, rule, primals, primals)
    if ctx._dirty:
        raise GradientError(f"{cls.__name__}: what carries a tangent cannot be marked dirty")
    tangents: list[Any] = [None if d is None else d.tangent for d in duals]
    if ctx._materialize:
        for k, x in enumerate(primals):
            if tangents[k] is None and isinstance(x, Handle):
                tangents[k] = wrap(np.zeros_like(x._v)[()])
    given = cls.jvp(ctx, *tangents)
    outs = found if isinstance(found, tuple) else (found,)
    moved = given if isinstance(given, tuple) else (given,)
    if len(moved) != len(outs):
        raise GradientError(f"{cls.__name__}.jvp returned {len(moved)} tangents for {len(outs)} results")
    results = []
    for k, (out, tangent) in enumerate(zip(outs, moved, strict=True)):
        tangent = _tensor(tangent)
        if tangent is None or not isinstance(out, Handle):
            results.append(out)
        elif not isinstance(tangent, Tensor) or tangent.shape != out._v.shape:
            raise ShapeError(
                f"{cls.__name__}.jvp returned a {type(tangent).__name__} of shape {np.shape(tangent)} as "
                f"tangent {k}, for a result of shape {out._v.shape}"
            )
        else:
            results.append(dual(level, out, tangent.astype(out._v.dtype)))
    call = None if ctx._call is None else ctx._call()
    if call is not None:
        _keep_moving(call, args, primals, results, level)
    return tuple(results) if isinstance(found, tuple) else results[0]


def _keep_moving(
    call: _Call, args: Sequence[Any], primals: list[Any], results: list[Any], level: Level
) -> None:
    """Let a sweep over what carries tangents find them at what was saved, and at the results."""
    call.moving = True
    for kept in call.kept:
        if kept is not None and kept.index >= 0:
            kept.moving = results[kept.index]
        elif kept is not None:
            original = kept.original()
            kept.moving = next((x for x, p in zip(args, primals, strict=True) if p is original), None)
    for x in results:
        base = under(x) if moves(x) else x
        if base is not x and base._tape is not None and level.notes is not None:
            level.notes[base._tape.serial, slot(base._at)] = x._at, [None]


def _tensor(out: Any) -> Any:
    """A result that NumPy made is a Tensor too."""
    if isinstance(out, (np.ndarray, np.floating, np.complexfloating)):
        return wrap(np.array(out)[()] if np.ndim(out) == 0 else np.array(out))
    return out


def _recorded(
    cls: Any, call: _Call, args: Sequence[Any], given: list[Any], befores: list[Any], results: list[Any]
) -> list[Any]:
    ctx = call.ctx
    dirty = _dirty(cls, ctx, args, given, results)
    saved = list(ctx._saved)
    ctx._saved = ()
    packing = current_mode().packing
    indices: list[int] = []
    for x in saved:
        k = next((q for q, out in enumerate(results) if out is x), -1)
        if call.legacy and x is not None and k < 0 and not any(x is raw for raw in given):
            raise GradientError(f"{call.name}: save_for_backward takes inputs and results only")
        indices.append(k)
    if local.tape is not None and local.tape.log:
        close(local.tape)  # what ctx keeps is on older tapes: no cycle
    here = record(custom.call, np.float64(0.0), befores, {"call": call})
    here._tape.calls[slot(here._at)] = call
    outs: list[Any] = []
    seen: list[Any] = []
    for k, out in enumerate(results):
        apart = not isinstance(out, Handle) or out._v.dtype.char not in abi.GRADIENT
        if apart or any(out is x for x in ctx._plain):
            if isinstance(out, Handle) and out._extra is not None:
                out._extra.call = None
            call.results.append((out._v.shape, out._v.dtype) if isinstance(out, Handle) else None)
            outs.append(out)
            continue
        call.results.append((out._v.shape, out._v.dtype))
        op = custom.kept_result if k in indices and packing is None else custom.result
        foreign = any(out is x for x in (*seen, *given)) or out._tape is not None or requires_grad(out)
        foreign = foreign or any(shares(out._v, x._v) for x in given if isinstance(x, Handle))
        foreign = foreign or (out._extra is not None and out._extra.storage is not None)
        target = dirty.get(id(out))
        value = out._v.copy() if foreign and out._v.ndim else out._v
        new = record(op, value, (here,), {"call": call, "index": k})
        if k in indices:
            call.places[k] = weakref.ref(new._tape), slot(new._at)
        if target is not None:
            write(target, Ellipsis, new, "mark_dirty", True)
            new = target
        elif not foreign:
            out._v, out._tape, out._at, out._extra = new._v, new._tape, new._at, None
            new = out
        seen.append(out)
        outs.append(new)
    for x, k in zip(saved, indices, strict=True):
        kept = outs[k] if k >= 0 else x
        call.kept.append(None if x is None else packing.keep(kept) if packing is not None else _Kept(kept, k))
    ctx._call = weakref.ref(call)
    return outs


def _dirty(cls: Any, ctx: Any, args: Sequence[Any], given: list[Any], results: list[Any]) -> dict[int, Any]:
    """The inputs that forward has written to, by what it knew them as."""
    found: dict[int, Any] = {}
    for x in ctx._dirty:
        k = next((q for q, a in enumerate(given) if a is x), -1)
        if k < 0:
            warnings.warn(f"{cls.__name__}: mark_dirty of what is no input", UserWarning, stacklevel=5)
            continue
        if not any(x is out for out in results):
            raise GradientError(f"{cls.__name__}: argument {k} is marked dirty, and forward must return it")
        if args[k]._tape is None and requires_grad(args[k]):
            raise GradientError(f"{cls.__name__}: argument {k}, marked dirty, is a leaf that requires grad")
        found[id(x)] = args[k]
    return found


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a backward that cannot be differentiated: a second derivative is an error.

    Parameters
    ----------
    backward : callable
        ``backward(ctx, *grads)``; it runs while nothing is recorded.

    Returns
    -------
    callable

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> class Sine(tg.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.cosine = np.cos(x.numpy())
    ...         return np.sin(x)
    ...
    ...     @staticmethod
    ...     @tg.autograd.once_differentiable
    ...     def backward(ctx, grad):
    ...         return grad.numpy() * ctx.cosine
    >>> x = tg.tensor(0.0, requires_grad=True)
    >>> tg.grad(Sine.apply(x), x)
    (tensor(1.),)
    """

    @functools.wraps(backward)
    def once(ctx: Any, *grads: Any) -> Any:
        before = set_recording(False)
        try:
            return backward(ctx, *grads)
        finally:
            restore_mode(before)

    once.once_differentiable = True  # type: ignore[attr-defined]
    return once
