"""Context managers that an interrupt cannot leave entered.

Python calls signal handlers between bytecodes, also before the first one of an `__exit__` and after the last
but one of an `__enter__`, and then nobody undoes what was done. So a ``with`` statement here gets an object
of its own as `__exit__`, which dies with the block however that ends; what is to be undone is its `__del__`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

nothing = type(None)  # called, it returns None


class _Exit(partial[None]):
    """An `__exit__` that only a ``with`` statement holds once the block is entered."""

    __slots__ = ("__del__",)

    if TYPE_CHECKING:
        __del__: Callable[[], Any]


class _Exits:
    """Makes the `__exit__` of each ``with`` statement, which looks it up before it calls `__enter__`."""

    __slots__ = ()

    def __get__(self, block: Block | None, kind: type[Block]) -> Any:
        if block is None:
            return kind._leave
        block._exit = _Exit(kind._leave, block)  # in no variable: a debugger may hold this frame for longer
        return block._exit


class _Blocks(type):
    """The class of classes of blocks: says what is missing in ``with no_grad:``, and what a block takes."""

    if not TYPE_CHECKING:  # a type checker says itself that the class is no context manager

        def __enter__(cls) -> NoReturn:
            taken = cls.__signature__.parameters.values()
            wanted = ", ".join(p.name for p in taken if p.default is p.empty)
            raise TypeError(
                f"with {cls.__name__}: found the class itself; write with {cls.__name__}({wanted}):"
            )

        def __exit__(cls, *exception: object) -> None: ...

    @property
    def __signature__(cls) -> inspect.Signature:
        """What it is made with; `Block.__new__` takes whatever its `__init__` names."""
        made = getattr(cls, "__new__" if cls.__init__ is object.__init__ else "__init__")  # type: ignore[misc]
        _, *taken = inspect.signature(made).parameters.values()
        return inspect.Signature([] if made is Block.__new__ else taken)


class Block(metaclass=_Blocks):
    """A context manager whose `__enter__` calls `at_end` before it changes anything."""

    _exit: _Exit | None = None  # of the statement that is about to enter
    _entered: list[Callable[[], Any]]  # what undoes what the blocks did that were entered and not left

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return one that is not entered."""
        made = object.__new__(cls)
        made._entered = []
        return made

    def at_end(self, undo: Callable[[], Any]) -> None:
        """Let the end of the block call a function, perhaps twice."""
        if self._exit is not None:
            self._exit.__del__, self._exit = undo, None  # nothing is called in between, so no handler is
        self._entered.append(undo)

    def _leave(
        self,
        kind: type[BaseException] | None = None,
        value: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """End the block entered last."""
        self._exit = None
        self._entered.pop()()

    if TYPE_CHECKING:

        def __exit__(self, *exception: object) -> None: ...
    else:
        __exit__ = _Exits()
