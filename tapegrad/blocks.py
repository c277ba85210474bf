"""Context managers that an interrupt cannot leave entered.

Python calls signal handlers between bytecodes, also before the first one of an `__exit__` and after the last
but one of an `__enter__`, and then nobody undoes what was done. So a ``with`` statement here gets an object
of its own as `__exit__`, which dies with the block however that ends; what is to be undone is its `__del__`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

nothing: Any = type(None)  # called, it returns None


class _Exit(functools.partial[None]):
    """An `__exit__` that only a ``with`` statement holds; it is given its `__del__` by `Block.at_end`."""

    __slots__ = ("__del__",)


class _Exits:
    """Makes the `__exit__` of each ``with`` statement, which asks for it before it calls `__enter__`."""

    def __get__(self, block: Block | None, kind: type[Block]) -> Any:
        if block is None:
            return kind._leave
        made = _Exit(kind._leave, block)
        block._exit = weakref.ref(made)
        return made


class Block:
    """A context manager whose `__enter__` calls `at_end` before it changes anything."""

    _exit: Any = nothing  # refers weakly to the `__exit__` of the statement that is about to enter

    def __init__(self) -> None:
        self._entered: list[tuple[Callable[[], Any], Any]] = []

    def at_end(self, undo: Callable[..., Any], *args: Any) -> None:
        """Let the end of the block call a function; a second call, after an interrupt, must do no harm."""
        undo, exit_ = functools.partial(undo, *args), self._exit
        if exit_() is not None:
            exit_().__del__ = undo
            self._exit = nothing
        self._entered.append((undo, exit_))

    def _leave(self, *exception: object) -> None:
        """End the block entered last."""
        undo, exit_ = self._entered.pop()
        undo()
        if exit_() is not None:
            exit_().__del__ = nothing

    if TYPE_CHECKING:

        def __exit__(self, *exception: object) -> None: ...
    else:
        __exit__ = _Exits()
