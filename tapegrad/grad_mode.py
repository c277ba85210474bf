"""Whether operations are recorded: a mode of the current context, as threads and tasks see it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["enable_grad", "is_grad_enabled", "no_grad", "set_grad_enabled"]

_enabled: ContextVar[bool] = ContextVar("tapegrad_grad_enabled", default=True)
F = TypeVar("F", bound=Callable[..., Any])


def is_grad_enabled() -> bool:
    """Return whether operations are recorded here.

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.is_grad_enabled()
    True
    """
    return _enabled.get()


class _Mode:
    """A context manager that sets the mode and restores it; also a decorator."""

    mode: bool

    def __init__(self) -> None:
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(_enabled.get())
        _enabled.set(self.mode)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _enabled.set(self._before.pop())

    def clone(self) -> _Mode:
        """Another one like this."""
        return type(self)()

    def __call__(self, function: F) -> F:
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def stepwise(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
                return (yield from _stepwise(function(*args, **kwargs), self))

            return stepwise  # type: ignore[return-value]

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self.clone():
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


def _stepwise(generator: Generator[Any, Any, Any], mode: _Mode) -> Generator[Any, Any, Any]:
    """Run a generator with the mode set while it runs, and not while its caller does."""
    advance: Callable[[], Any] = functools.partial(next, generator)
    try:
        while True:
            with mode.clone():
                try:
                    item = advance()
                except StopIteration as stop:
                    return stop.value
            try:
                sent = yield item
            except GeneratorExit:
                raise
            except BaseException as error:
                advance = functools.partial(generator.throw, error)
            else:
                advance = functools.partial(generator.send, sent)
    finally:
        with mode.clone():
            generator.close()


class no_grad(_Mode):
    """Context manager or decorator: operations are not recorded, results have no history.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor(2.0, requires_grad=True)
    >>> with tg.no_grad():
    ...     y = x * x
    >>> y.requires_grad
    False
    """

    mode = False

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        """Return the mode, or a function given directly decorated with it."""
        mode = super().__new__(cls)
        if function is None:
            return mode
        mode._before = []
        return mode(function)

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__()


class enable_grad(no_grad):
    """Context manager or decorator: operations are recorded, also inside `no_grad`.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor(2.0, requires_grad=True)
    >>> with tg.no_grad(), tg.enable_grad():
    ...     y = x * x
    >>> y.requires_grad
    True
    """

    mode = True


class set_grad_enabled(_Mode):
    """Set the mode at once; as a context manager, restore it at the end.

    Parameters
    ----------
    mode : bool

    Examples
    --------
    >>> import tapegrad as tg
    >>> with tg.set_grad_enabled(False):
    ...     tg.is_grad_enabled()
    False
    """

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self.mode = bool(mode)
        self._before.append(_enabled.get())
        _enabled.set(self.mode)

    def __enter__(self) -> None:
        if not self._before:
            super().__enter__()

    def clone(self) -> _Mode:
        """Another one like this."""
        return set_grad_enabled(self.mode)

    def __call__(self, function: F) -> F:
        """Return the function, to run in this mode."""
        if self._before:  # decorating does not set the mode where the function is defined
            _enabled.set(self._before.pop())
        return super().__call__(function)
