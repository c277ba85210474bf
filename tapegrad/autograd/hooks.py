"""Hooks: functions of the user's that a sweep calls on its way."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.core.base import previous_cells, refresh_history, strip_tangents
from tapegrad.core.grad_mode import is_grad_enabled, within
from tapegrad.core.nodes import Hook, RemovableHandle, callable_hook
from tapegrad.core.storage import STALE
from tapegrad.engine.plan import AtWork, sweeps
from tapegrad.engine.watched import number_attached
from tapegrad.errors import DTypeError, GradientError, ShapeError
from tapegrad.tape.record import slot
from tapegrad.tensor import Operand, Tensor, TensorOrArray, wrap

__all__ = ["RemovableHandle"]


class Hooks:
    """What a user attached to one record or leaf; see `tapegrad.engine.watched`.

    Attributes
    ----------
    tensor, pre, post
        Hooks of the Tensor, and of its node before and after it runs, in order of registration.
    accumulated
        Hooks of a leaf, for when its ``.grad`` has been updated.
    metadata
        Of the node, the user's.
    retained
        The result, and the sweeps that had been at work when its gradient was asked for.
    """

    __slots__ = ("__weakref__", "accumulated", "metadata", "post", "pre", "retained", "tensor")

    def __init__(self) -> None:
        self.tensor: dict[int, Hook] = {}
        self.pre: dict[int, Hook] = {}
        self.post: dict[int, Hook] = {}
        self.accumulated: dict[int, Hook] = {}
        self.metadata: dict[Any, Any] = {}
        self.retained: tuple[weakref.ref[Tensor], list[weakref.ref[AtWork]]] | None = None

    def before(self, ct: TensorOrArray) -> TensorOrArray:
        """Return the cotangent as the Tensor's hooks leave it: an array, or when recording a Tensor."""
        found = self._through(self.tensor, ct, _of_tensor)
        if self.retained is not None:
            x, asked = self.retained
            working = _working()
            if any(working[-1] is other for other in asked):
                place = threading.get_ident(), number_attached(), len(working)
                late.append(Late(*place, x, _copied(found)))
        return found

    def entering(self, ct: TensorOrArray) -> TensorOrArray:
        """Return the cotangent as the node's pre-hooks leave it."""
        return self._through(self.pre, ct, _of_node)

    def _through(
        self, hooks: dict[int, Hook], ct: TensorOrArray, check: Callable[[Hook, Tensor], Tensor]
    ) -> TensorOrArray:
        if not hooks:
            return ct
        recording = isinstance(ct, Tensor)
        # a copy: a hook may write to what it gets
        g = _copied(ct)
        for hook in list(hooks.values()):
            g = within({"recording": recording and is_grad_enabled()}, check, hook, g)
        return g if recording else g._v

    def after(
        self, parts: dict[int, TensorOrArray], ct: TensorOrArray, operands: int
    ) -> dict[int, TensorOrArray]:
        """Return what a record's rule gave its operands as hooks leave it."""
        if not self.post:
            return parts
        recording = isinstance(ct, Tensor)
        given = ct if isinstance(ct, Tensor) else from_array(ct)
        inputs: list[Tensor | None] = [None] * operands
        for k, part in parts.items():
            inputs[k] = part if isinstance(part, Tensor) else from_array(part)
        for hook in list(self.post.values()):
            found = within({"recording": recording and is_grad_enabled()}, hook, tuple(inputs), (given,))
            inputs = replaced(found, inputs, "a hook")
        return {k: g if recording else g._v for k, g in enumerate(inputs) if g is not None and k in parts}

    def after_accumulation(self, leaf: Tensor) -> None:
        """Call what waits for the ``.grad`` of a leaf."""
        for hook in list(self.accumulated.values()):
            found = hook(leaf)
            if found is not None:
                raise TypeError(
                    f"a hook after accumulation returns None, found {type(found).__name__}; it may change "
                    "the .grad of the Tensor it is given"
                )


class Late(NamedTuple):
    """A gradient that was asked for while the sweep was at work that has found it.

    `number` tells the time, as those of hooks do, `depth` how many sweeps were at work in the thread.
    """

    thread: int
    number: int
    depth: int
    result: weakref.ref[Tensor]
    gradient: Tensor


late: list[Late] = []  # of sweeps at work, and of those that were to add nothing or failed, for a while


def ask_late(x: Tensor) -> None:
    """Let sweeps at work find the gradient of a result, if they have not come to it yet."""
    working = _working()
    if working:
        hooks_of(x).retained = weakref.ref(x), working
        number_attached()


def found_late(since: int) -> list[tuple[Tensor, Tensor]]:
    """Take the gradients that were asked for late, and found by a sweep just ended, after a number."""
    thread, depth, found = threading.get_ident(), len(_working()) + 1, []
    for one in late.copy():
        if one.thread == thread and one.depth >= depth:
            late[:] = [other for other in late if other is not one]
            x = one.result()
            if x is not None and one.depth == depth and one.number > since:
                found.append((x, one.gradient))
    return found


def _working() -> list[weakref.ref[AtWork]]:
    """The sweeps at work in this thread, the innermost last."""
    return [note for note in sweeps.sweeps if note() is not None]


def _copied(ct: TensorOrArray) -> Tensor:
    return ct.clone() if isinstance(ct, Tensor) else from_array(ct)


def from_array(value: np.ndarray | np.generic | complex) -> Tensor:
    """Return a Tensor with a copy of an array or scalar."""
    if isinstance(value, np.generic):
        return wrap(value)
    array = np.array(value)
    return wrap(array if array.ndim else array[()])


def _of_tensor(hook: Hook, g: Tensor) -> Tensor:
    return _checked(hook(g), g)


def _of_node(hook: Hook, g: Tensor) -> Tensor:
    (new,) = replaced(hook((g,)), [g], "a pre-hook")
    return g * 0 if new is None else new


def _checked(new: Operand, old: Tensor) -> Tensor:
    """What a Tensor's hook made of a gradient."""
    if new is None:
        return old
    if not isinstance(new, Tensor):
        raise TypeError(f"a hook returns a Tensor or None, found {type(new).__name__}")
    if new.shape != old.shape:
        raise ShapeError(f"a hook returned shape {new.shape} for a gradient of shape {old.shape}")
    if new.dtype != old.dtype:
        raise DTypeError(f"a hook returned dtype {new.dtype} for a gradient of dtype {old.dtype}")
    return new


def replaced(new: Sequence[Tensor], old: list[Tensor | None], what: str) -> list[Tensor | None]:
    """What a node's hook made of several gradients."""
    if new is None:
        return old
    new = [new] if isinstance(new, Tensor) else list(new)
    if len(new) != len(old):
        raise GradientError(f"{what} of a node returned {len(new)} gradients for {len(old)}")
    both = zip(new, old, strict=True)
    return [g if g is None or before is None else _checked(g, before) for g, before in both]


def hooks_of(x: Tensor) -> Hooks:
    """Return what is attached to a Tensor's record or leaf, made when first asked for."""
    if x._tape is STALE:
        refresh_history(x)
    x = strip_tangents(x)
    if x._tape is None:
        if x._at.hooks is None:
            x._at.hooks = Hooks()
            for cell in previous_cells(x):  # of the values before it was written to
                if cell.hooks is None:
                    cell.hooks = x._at.hooks
        return x._at.hooks  # type: ignore[no-any-return]
    return x._tape.hooks.setdefault(slot(x._at), Hooks())  # type: ignore[no-any-return]


def _register_hook(self: Tensor, hook: Hook) -> RemovableHandle:
    """Call ``hook(grad)`` with this Tensor's gradient whenever one is computed; it may return another.

    Hooks run in order of registration, each on what the one before left, with the sum of all that the
    Tensor's uses contribute, before ``.grad`` or the result of `grad` is taken.

    Parameters
    ----------
    hook : callable
        Gets a Tensor; returns None, or a Tensor of the same shape and dtype.

    Returns
    -------
    RemovableHandle

    Raises
    ------
    GradientError
        The Tensor does not require grad.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> y = x * x
    >>> handle = y.register_hook(lambda grad: 10 * grad)
    >>> y.sum().backward()
    >>> x.grad
    tensor([20., 40.])
    """
    if not self.requires_grad:
        raise GradientError(f"register_hook on a Tensor (shape {self.shape}) that does not require grad")
    return RemovableHandle(hooks_of(self).tensor, callable_hook(hook))


def _register_post_accumulate_grad_hook(self: Tensor, hook: Hook) -> RemovableHandle:
    """Call ``hook(tensor)`` after `backward` has updated the ``.grad`` of this leaf; it returns None."""
    if not self.requires_grad or self._tape is not None:
        raise GradientError(
            "register_post_accumulate_grad_hook takes a leaf that requires grad, found a Tensor of shape "
            f"{self.shape} that is none"
        )
    return RemovableHandle(hooks_of(self).accumulated, callable_hook(hook))


def install() -> None:
    """Give Tensor the methods that need this floor."""
    Tensor.register_hook = _register_hook  # type: ignore[method-assign]
    Tensor.register_post_accumulate_grad_hook = _register_post_accumulate_grad_hook  # type: ignore[method-assign]
