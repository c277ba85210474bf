"""`Function`: an operation whose derivative is the user's."""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.call import Call, Kept
from tapegrad.autograd.hooks import from_array
from tapegrad.autograd.provenance import Provenance
from tapegrad.dispatch import Handle, extra, noted, record, requires_grad, same, settle, shares, wrap
from tapegrad.errors import GradientError
from tapegrad.grad_mode import change_mode, is_grad_enabled, restore_mode, set_recording
from tapegrad.kernels import abi
from tapegrad.ops import custom
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
        """Promise that no gradient depends on what forward or backward took out of a Tensor.

        Values may be taken out, by ``.numpy()`` or ``.item()``; as they could take part in a gradient
        without their history, a second derivative is refused then, unless this has been called.
        """
        self._promised = True


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
            args, kwargs = bound.args if split else bound.args[1:], bound.kwargs
            for key, value in kwargs.items():
                if requires_grad(value):
                    raise GradientError(
                        f"{cls.__name__}.forward takes {key} by keyword only; a Tensor that requires grad is "
                        "tracked by its position among the arguments"
                    )

        def forward(*inputs: Any) -> Any:
            if not split:
                return cls.forward(ctx, *inputs, **kwargs)
            output = cls.forward(*inputs, **kwargs)
            output = tuple([_tensor(x) for x in output]) if isinstance(output, tuple) else _tensor(output)
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
        return _applied(type(self), self, name, self.forward, _legacy_rule, tensors, raws)


def _legacy_rule(ctx: Any, *grads: Any) -> Any:
    """The backward of an instance, which gets Tensors without history."""
    return ctx.backward(*[None if g is None else wrap(g._v) for g in grads])


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
    needs = tuple([requires_grad(x) for x in args])
    ctx.needs_input_grad = needs
    if not any(needs) or not is_grad_enabled():
        before = set_recording(False)
        try:
            found = forward(*given)
        finally:
            restore_mode(before)
        return tuple([_tensor(out) for out in found]) if isinstance(found, tuple) else _tensor(found)
    slots = [k for k, need in enumerate(needs) if need]
    befores = [same(args[k]) for k in slots]
    provenance = Provenance(cls.__name__, befores)
    raw, once = cls._is_legacy, getattr(rule, "once_differentiable", False)
    call = Call(rule, ctx, name, args, slots, provenance, once, raw)
    if raw:
        for k in slots:
            extra(given[k]).call = provenance
    versions = [_version(given[k]) for k in slots]
    before = change_mode(recording=False, forward=provenance)
    try:
        found = forward(*given)
        results = [_tensor(out) for out in (found if isinstance(found, tuple) else (found,))]
    finally:
        restore_mode(before)
    for k, version in zip(slots, versions, strict=True):
        if _version(given[k]) != version and not any(given[k] is x for x in ctx._dirty):
            raise GradientError(
                f"{cls.__name__}.forward wrote to argument {k}; say so with ctx.mark_dirty and return it, or "
                "write to a copy made by clone()"
            )
    outs = _recorded(call, args, given, befores, results)
    return tuple(outs) if isinstance(found, tuple) else outs[0]


def _version(x: Any) -> int:
    return 0 if x._extra is None or x._extra.inference else int(x._version)


def _tensor(out: Any) -> Any:
    """A result that NumPy made is a Tensor too."""
    return noted(from_array(out), ()) if isinstance(out, (np.ndarray, np.inexact)) else out


def _recorded(
    call: Call, args: Sequence[Any], given: list[Any], befores: list[Any], results: list[Any]
) -> list[Any]:
    """Give the results their history; returns them."""
    ctx = call.ctx
    dirty = _dirty(call, args, given, results)
    plain = [
        not isinstance(out, Handle)
        or out._v.dtype.char not in abi.GRADIENT
        or any(out is x for x in ctx._plain)
        for out in results
    ]
    if all(plain):
        return [_apart(out) for out in results]
    saved = list(ctx._saved)
    if any(x is not None and x.is_inference() for x in saved):
        raise GradientError(
            f"{call.name}: save_for_backward of a result of inference_mode, which takes no part in "
            "differentiation; save a copy made by clone()"
        )
    ctx._saved = ()
    held = {name: x for name, x in vars(ctx).items() if any(x is out for out in results)}
    indices = [_index(x, results, plain) for x in saved]
    if call.raw and any(
        x is not None and k < 0 and not any(x is other for other in (*given, *results))
        for x, k in zip(saved, indices, strict=True)
    ):
        raise GradientError(f"{call.name}: save_for_backward takes inputs and results only")
    kept_ones = {*indices, *(_index(x, results, plain) for x in held.values())}
    if local.tape is not None and local.tape.log:
        close(local.tape)  # what ctx keeps is on older tapes: no cycle
    here = record(custom.call, np.float64(0.0), befores, {"call": call})
    here._tape.calls[slot(here._at)] = call
    outs: list[Any] = []
    for k, out in enumerate(results):
        known = (out._v.shape, out._v.dtype) if isinstance(out, Handle) else None
        if plain[k]:
            call.results.append(None if call.raw else known)
            outs.append(_apart(out))
            continue
        call.results.append(known)
        outs.append(_result(call, here, k, out, dirty.get(id(out)), [*outs, *given], args, k in kept_ones))
    for x, k in zip(saved, indices, strict=True):
        call.kept.append(None if x is None else Kept(outs[k] if k >= 0 else x, k))
    for name, x in held.items():
        k = _index(x, results, plain)
        if k >= 0:
            delattr(ctx, name)
            call.attributes[name] = Kept(outs[k], k)
    ctx._call = weakref.ref(call)
    return outs


def _index(x: Any, results: list[Any], plain: list[bool]) -> int:
    """Which result with a derivative something is; -1 if none."""
    return next((k for k, out in enumerate(results) if out is x and not plain[k]), -1)


def _apart(out: Any) -> Any:
    """A result without a derivative, as the caller gets it: for backward it remains what forward computed."""
    hidden = isinstance(out, Handle) and out._extra is not None and out._extra.call is not None
    return wrap(out._v) if hidden else out


def _result(
    call: Call, here: Any, k: int, out: Any, target: Any, others: list[Any], args: Sequence[Any], kept: bool
) -> Any:
    """Record a result; it is the object forward returned unless that has another life."""
    foreign = any(out is x for x in others) or out._tape is not None or requires_grad(out)
    foreign = foreign or any(shares(out._v, x._v) for x in others if isinstance(x, Handle))
    foreign = foreign or (out._extra is not None and out._extra.storage is not None)
    value = out._v.copy() if foreign and out._v.ndim else out._v
    op = custom.kept_result if kept else custom.result
    new = record(op, value, (here,), {"call": call, "index": k})
    if kept:
        call.places[k] = weakref.ref(new._tape), slot(new._at)
    if target is not None:
        write(target, Ellipsis, new, "mark_dirty", True)
        return target
    if not foreign:
        out._v, out._tape, out._at, out._extra = new._v, new._tape, new._at, None
        new = out
    return noted(new, args)


def _dirty(call: Call, args: Sequence[Any], given: list[Any], results: list[Any]) -> dict[int, Any]:
    """The inputs that forward has written to, by what it knew them as."""
    found: dict[int, Any] = {}
    name = call.provenance.name
    for x in call.ctx._dirty:
        k = next((q for q, a in enumerate(given) if a is x), -1)
        if k < 0:
            warnings.warn(f"{name}: mark_dirty of what is no input", UserWarning, stacklevel=5)
            continue
        if not any(x is out for out in results):
            raise GradientError(f"{name}: argument {k} is marked dirty, and forward must return it")
        if args[k]._tape is None and requires_grad(args[k]):
            raise GradientError(f"{name}: argument {k}, marked dirty, is a leaf that requires grad")
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
