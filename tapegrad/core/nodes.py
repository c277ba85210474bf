"""What hooks are attached to, as users see it: nodes of the graph, and what takes a hook back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tapegrad.core.handle import Handle
from tapegrad.engine.watched import number_attached

Hook = Callable[..., Any]


class RemovableHandle:
    """What registering a hook returns: takes it back by `remove`, or at the end of a ``with`` block."""

    def __init__(self, hooks: dict[int, Hook], hook: Hook) -> None:
        self._hooks, self.id = hooks, number_attached()
        hooks[self.id] = hook

    def remove(self) -> None:
        """Take the hook back; again it does nothing."""
        self._hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


def callable_hook(hook: Hook) -> Hook:
    """Return a hook if it is one."""
    if not callable(hook):
        raise TypeError(f"a hook is callable, found {type(hook).__name__}")
    return hook


class Node:
    """What computes a gradient: the record of an operation, or a leaf's accumulation.

    Attributes
    ----------
    next_functions : tuple
        For each operand the node that its gradient goes to and which of that node's results the operand is;
        ``(None, 0)`` for a constant.
    metadata : dict
        The user's.
    """

    __slots__ = ("__weakref__", "_key")

    _key: Any

    def name(self) -> str:
        """The name of the operation, with "Backward" behind it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{self.name()}>"

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """Where the gradients of the operands go."""
        return ()

    def _hooks(self) -> Any:
        """What hooks and metadata are attached to."""
        raise NotImplementedError

    def handle(self, index: int = 0) -> Handle:
        """Return a Tensor with this node's history."""
        raise NotImplementedError

    @property
    def metadata(self) -> dict[Any, Any]:
        """Whatever the user wants to know of the node."""
        return self._hooks().metadata  # type: ignore[no-any-return]

    def register_prehook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before the node runs; it may return others."""
        return RemovableHandle(self._hooks().pre, callable_hook(hook))

    def register_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(grad_inputs, grad_outputs)`` after the node ran; it may return other grad_inputs."""
        return RemovableHandle(self._hooks().post, callable_hook(hook))
