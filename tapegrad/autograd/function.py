"""`Function`: an operation whose derivative is the user's."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tapegrad.autograd import compiled
from tapegrad.autograd.apply import applied, as_tensor
from tapegrad.autograd.call import FunctionCtx
from tapegrad.autograd.compiled import FunctionMeta
from tapegrad.autograd.graph import Node, edge_of
from tapegrad.core.base import Handle, Shape, requires_grad
from tapegrad.core.dispatch import timed
from tapegrad.core.grad_mode import within
from tapegrad.errors import GradientError
from tapegrad.tensor import Operand, Tensor, TensorOrArray, wrap

__all__ = ["Function", "FunctionCtx", "InplaceFunction", "NestedIOFunction", "once_differentiable"]


class Function(FunctionCtx, metaclass=FunctionMeta):
    """An operation with a derivative of its own: subclass it, define forward and backward, call `apply`.

    ``forward(ctx, *args)`` computes from any arguments a Tensor, or a tuple of several; nothing in it is
    recorded. Arrays and floats that it returns become Tensors, as their derivative is backward's; integers,
    truth values and other objects are handed on, lists and dicts with numbers in them refused. With a static
    method ``setup_context(ctx, inputs, output)`` it has no ctx: ``forward(*args)``. ``backward(ctx, *grads)``
    gets a gradient for each result and returns one for each argument, None where there is none. It is
    differentiable itself where it computes from ``ctx.saved_tensors`` and its arguments by recorded
    operations; what it takes from elsewhere makes a second derivative an error, never a wrong number.

    If both are compiled by `numba.njit` there is no ctx: ``forward(*args)`` takes arrays and numbers and
    returns one array or number, ``backward(grad, result, *args)`` the gradients of the arguments. Sweeps run
    it without Python where all are float64. It has no second derivative, as what is compiled has none.

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

    _is_legacy = _is_compiled = False

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
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        """Compute over a batch, for transforms that map over one."""
        raise GradientError("the Function defines no vmap")

    @classmethod
    @timed()
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
                f"{cls.__name__}.apply: its forward is no static method; write @staticmethod above "
                f"forward(ctx, ...) and backward, or, with an instance as ctx, call {cls.__name__}(...)(...)"
            )
        if cls._is_compiled:
            if kwargs:
                args = inspect.signature(cls.forward.py_func).bind(*args, **kwargs).args  # type: ignore[attr-defined]
            return compiled.applied(cls, args)
        ctx: FunctionCtx = cls._context()
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
            output = tuple([as_tensor(x) for x in output]) if isinstance(output, tuple) else as_tensor(output)
            cls.setup_context(ctx, inputs, output)
            return output

        return applied(cls, ctx, f"{cls.__name__}Backward", forward, _rule_of(cls), args, list(args))

    @property
    def previous_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """Of an instance that has been called: its node's `next_functions`."""
        call = None if self._call is None else self._call()
        tape = None if call is None else call.place[0]()
        if call is None or tape is None:
            return ()
        node, _ = edge_of(tape, call.place[1])
        return () if node is None else node.next_functions

    def __call__(self, *tensors: Operand) -> Any:
        """Call an instance of the older kind, once."""
        if not self._is_legacy:
            raise GradientError(f"{type(self).__name__} has a static forward: call its apply")
        if self.__dict__.get("_called"):
            raise GradientError(f"an instance of {type(self).__name__} is called once; make another one")
        self._called = True
        raws = [wrap(x._v) if isinstance(x, Handle) else x for x in tensors]
        name = type(self).__name__
        return applied(type(self), self, name, self.forward, _legacy_rule, tensors, raws)


def _legacy_rule(ctx: Function, *grads: Tensor | None) -> Any:
    """The backward of an instance, which gets Tensors without history."""
    return ctx.backward(*[None if g is None else wrap(g._v) for g in grads])


def _rule_of(cls: type[Function]) -> Callable[..., Any]:
    """The user's backward, by either of its names."""
    own, other = cls.backward is not Function.backward, cls.vjp is not Function.vjp
    if own and other:
        raise GradientError(f"{cls.__name__} defines backward and vjp, which are two names of one thing")
    return cls.vjp if other else cls.backward


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
    def once(ctx: FunctionCtx, *grads: Tensor | None) -> Any:
        return within({"recording": False}, backward, ctx, *grads)

    once.once_differentiable = True  # type: ignore[attr-defined]
    return once


class InplaceFunction(Function):
    """A Function of the older kind that may write to its argument.

    Parameters
    ----------
    inplace : bool
        For forward to know, as ``self.inplace``; what it writes to it names by `mark_dirty` and returns.

    Examples
    --------
    >>> import tapegrad as tg
    >>> class Double(tg.autograd.function.InplaceFunction):
    ...     def forward(self, x):
    ...         if not self.inplace:
    ...             return 2 * x
    ...         self.mark_dirty(x)
    ...         return x.mul_(2)
    ...
    ...     def backward(self, grad):
    ...         return 2 * grad
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> y = x + 0
    >>> Double(inplace=True)(y) is y, y
    (True, tensor([2., 4.], grad_fn=<Double>))
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace


class NestedIOFunction(Function):
    """A Function of the older kind whose arguments and results are lists and tuples, nested to any depth.

    Define ``forward_extended(*args)`` and ``backward_extended(*grads)``. Arguments consist of Tensors, None,
    lists and tuples; gradients are nested as the results, and `backward_extended` returns some nested as the
    arguments. What `save_for_backward` was given comes back nested likewise.

    Raises
    ------
    ValueError
        Among arguments, results or gradients there is anything else.

    Examples
    --------
    >>> import tapegrad as tg
    >>> class Swap(tg.autograd.function.NestedIOFunction):
    ...     def forward_extended(self, pair):
    ...         return [pair[1] * 1, (pair[0] * 1,)]
    ...
    ...     def backward_extended(self, grads):
    ...         return [grads[1][0], grads[0]]
    >>> x, y = tg.tensor(2.0, requires_grad=True), tg.tensor(3.0, requires_grad=True)
    >>> first, (second,) = Swap()([x, y])
    >>> tg.grad(first * second * second, [x, y])
    (tensor(12.), tensor(4.))
    """

    def forward_extended(self, *args: Any) -> Any:
        """Compute the results; to be defined."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward_extended")

    def backward_extended(self, *grads: Any) -> Any:
        """Compute the gradients of the arguments; to be defined."""
        raise NotImplementedError(f"{type(self).__name__} does not define backward_extended")

    def __call__(self, *args: Any) -> Any:
        """Call the instance, once, on nested arguments."""
        self._arguments = _shape(args)
        flat = super().__call__(*_flat(args))
        return _nested(self._results, iter(flat))

    def forward(self, *flat: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Give `forward_extended` its arguments nested."""
        found = self.forward_extended(*_nested(self._arguments, iter(flat)))
        self._results = _shape(found)
        return tuple(_flat(found))

    def backward(self, *flat: Tensor | None) -> tuple[TensorOrArray | None, ...]:  # type: ignore[override]
        """Give `backward_extended` its gradients nested."""
        grads = _nested(self._results, iter(flat))
        found = self.backward_extended(*(grads if isinstance(self._results, tuple) else (grads,)))
        return tuple(_matched(self._arguments, found if isinstance(found, tuple) else (found,)))

    def save_for_backward(self, *nested: Any) -> None:
        """Keep what consists of Tensors, None, lists and tuples for backward."""
        super().save_for_backward(*_flat(nested))
        self._kept = _shape(nested)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What save_for_backward kept, nested as it was."""
        return _nested(self._kept, iter(super().saved_tensors))  # type: ignore[no-any-return]

    def mark_dirty(self, *args: Any, **kwargs: Any) -> None:
        """Say which inputs forward has written to, nested in any way."""
        super().mark_dirty(*_flat((args, list(kwargs.values()))))

    def mark_non_differentiable(self, *args: Any, **kwargs: Any) -> None:
        """Say which results have no derivative, nested in any way."""
        super().mark_non_differentiable(*_flat((args, list(kwargs.values()))))


def _shape(nested: Any) -> Any:
    """How lists and tuples are nested: True for a Tensor."""
    if isinstance(nested, (list, tuple)):
        return type(nested)([_shape(part) for part in nested])
    if nested is None or isinstance(nested, Tensor):
        return nested if nested is None else True
    raise ValueError(
        f"a NestedIOFunction takes Tensors, None, lists and tuples of them, found {type(nested).__name__}"
    )


def _flat(nested: Any) -> list[Tensor]:
    """The Tensors in it, in order."""
    if isinstance(nested, (list, tuple)):
        return [x for part in nested for x in _flat(part)]
    return [nested] if _shape(nested) else []


def _nested(shape: Shape, flat: Iterator[Any]) -> Any:
    """The next Tensors, nested."""
    if isinstance(shape, (list, tuple)):
        return type(shape)([_nested(part, flat) for part in shape])
    return next(flat) if shape else None


def _matched(shape: Any, grads: Operand | None) -> list[Any]:
    """A gradient, or None, for each Tensor; None stands for a whole list, too."""
    if not isinstance(shape, (list, tuple)):
        if not (_shape(grads) or grads is None) or isinstance(grads, (list, tuple)):
            raise GradientError("backward_extended returned a list where forward_extended got a Tensor")
        return [grads] if shape else []
    if grads is None:
        return [None for part in shape for _ in _matched(part, None)]
    if not isinstance(grads, (list, tuple)) or len(grads) != len(shape):
        found = f"{len(grads)} gradients" if isinstance(grads, (list, tuple)) else type(grads).__name__
        raise GradientError(f"backward_extended returned {found} for {len(shape)} arguments of one list")
    return [g for part, grad in zip(shape, grads, strict=True) for g in _matched(part, grad)]
