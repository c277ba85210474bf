"""Whether operations are recorded: a mode of the current context, as threads and tasks see it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np

from tapegrad.core.context_manager import Block
from tapegrad.core.expected import Matcher
from tapegrad.ops.primitive import Primitive
from tapegrad.tape.tape import Tape

__all__ = [
    "enable_grad",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "set_grad_enabled",
]

P = ParamSpec("P")
R = TypeVar("R")


class Packing(Protocol):
    """What saved values pass through (`core.saved_values`), as what records sees it."""

    def current(self) -> Tape:
        """Return this thread's tape of packed records."""

    def close(self) -> None:
        """End recording on that tape."""

    def load(self, tape: Tape, x: Any) -> int | None:
        """Import an operand by its shape, if it is spared."""

    def save(self, op: Primitive, operands: Sequence[Any], value: Any) -> Any:
        """Pack what the derivative of a record will read."""

    def commit(
        self, tape: Tape, op: Primitive, places: Sequence[int], second: int, value: Any, packed: Any
    ) -> int:
        """As `Tape.commit`, of what `save` has packed."""

    def mark(self) -> list[int]:
        """How much is noted of what is packed."""

    def forget(self, mark: list[int]) -> None:
        """Forget what has been noted since: it is packed anew."""


class Mode:
    """A mode with more to it than whether operations are recorded; true where they are.

    Attributes
    ----------
    recording
        Whether operations are recorded.
    forward
        The `Provenance` of the Function whose forward or backward is running, or None.
    inference
        Whether results can never become part of a history.
    packing
        The functions that saved values pass through, or None.
    profile
        What takes the time of operations and sweeps, or None.
    lines
        What notes the line of the user's code that made a record, or None.
    plain
        Whether all is recorded as in the mode True, so that compiled code may do it.
    noting, timing, tracing
        For compiled code: addresses of the words of `lines` and `profile`, and of those that say where
        operations are listed, or 0.
    note
        For compiled code: what is called with each result and its operands where nothing is recorded and
        nothing but `forward` asks for more; else None.
    matcher
        The program at work that operations are compared with, or None.
    pair
        Two modes of that, this one among them, in which operations are compared or listed: by whether they
        are recorded. None in any other mode.
    """

    __slots__ = (
        "forward", "inference", "lines", "matcher", "note", "noting", "packing", "pair", "plain", "profile",
        "recording", "timing", "tracing",
    )  # fmt: skip

    def __init__(self, recording: bool) -> None:
        self.recording = recording
        self.inference = False
        self.lines: Any = None
        self.profile: Any = None
        self.forward: Any = None
        self.matcher: Matcher | None = None
        self.pair: tuple[Mode, Mode] | None = None
        self.packing: Packing | None = None
        self.plain = False
        self.note: Callable[..., None] | None = None
        self.noting = self.timing = self.tracing = 0

    def __bool__(self) -> bool:
        return self.recording

    @classmethod
    def pair_of(cls, matcher: Matcher) -> tuple[Mode, Mode]:
        """Return two modes in which operations are compared: by whether they are recorded."""
        pair = cls(False), cls(True)
        for mode in pair:
            mode.matcher, mode.pair, mode.plain = matcher, pair, mode.recording
        return pair

    def separate(self) -> None:
        """Leave the pair, whose modes own each other and what they compare with."""
        for mode in self.pair or ():
            mode.pair = None


_enabled: ContextVar[bool | Mode] = ContextVar("tapegrad_grad_enabled", default=True)
_record = partial(_enabled.set, True)
switches = [0]  # how often a mode was set: who finds it as before knows that all was recorded


def _note_hidden(note: Callable[..., None], out: Any, *operands: Any) -> None:
    note(out, operands, True)


def in_force(name: str) -> Any:
    """Return an attribute of the mode in force; None where the mode says only whether to record."""
    now = _enabled.get()
    return getattr(now, name) if type(now) is Mode else None


def change_mode(**changes: Any) -> None:
    """Change some of the mode's attributes."""
    switches[0] += 1
    before = _enabled.get()
    mode = Mode(bool(before))
    if type(before) is Mode:
        if "packing" in changes and before.packing is not None:
            before.packing.close()  # compiled recording takes it that a thread has one open tape
        for name in Mode.__slots__:
            setattr(mode, name, getattr(before, name))
        mode.pair = None
    for name, value in changes.items():
        setattr(mode, name, value)
    mode.recording = mode.recording and not mode.inference
    ordinary = not mode.inference and mode.forward is None and mode.packing is None
    mode.plain = ordinary and mode.recording
    alone = mode.forward is not None and mode.profile is None and not (mode.recording or mode.inference)
    mode.note = partial(_note_hidden, mode.forward.note) if alone else None
    mode.noting = 0 if mode.lines is None else mode.lines.address
    mode.timing = 0 if mode.profile is None else mode.profile.address
    _enabled.set(mode.recording if ordinary and mode.lines is None and mode.profile is None else mode)


def within(changes: dict[str, Any], function: Callable[..., R], *args: Any) -> R:
    """Call a function with some of the mode's attributes changed."""
    before = _enabled.get()
    try:
        try:
            change_mode(**changes)
            return function(*args)
        finally:
            _enabled.set(before)
    finally:
        _enabled.set(before)  # an interrupt may have come as the other was about to be called


def is_grad_enabled() -> bool:
    """Return whether operations are recorded here.

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.is_grad_enabled()
    True
    """
    return bool(_enabled.get())


class _Mode(Block):
    """A context manager that sets the mode and restores it; also a decorator."""

    mode: bool

    def __enter__(self) -> None:
        before = _enabled.get()
        switches[0] += 1
        undo = _record if before is True else partial(_enabled.set, before)
        if self._exit is not None:  # `at_end`, written out as it costs a tenth of an empty block
            self._exit.__del__, self._exit = undo, None
        self._entered.append(undo)
        if type(before) is Mode and before.pair is not None:
            _enabled.set(before.pair[self.mode])
        elif type(before) is Mode:
            change_mode(recording=self.mode)
        else:
            _enabled.set(self.mode)

    def clone(self) -> _Mode:
        """Another one like this."""
        made: _Mode = type(self)()
        return made

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if not callable(function):
            name = type(self).__name__
            raise TypeError(
                f"{name} takes a function, found {type(function).__name__}; with {name}(): before the "
                "computation is the other use"
            )
        if inspect.isgeneratorfunction(function):

            @wraps(function)
            def stepwise(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
                return (yield from _stepwise(function(*args, **kwargs), self))

            return stepwise  # type: ignore[return-value]

        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.clone():
                return function(*args, **kwargs)

        return wrapper


def _stepwise(generator: Generator[Any, Any, Any], mode: _Mode) -> Generator[Any, Any, Any]:
    """Run a generator with the mode set while it runs, and not while its caller does."""
    advance = partial(next, generator)
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
                advance = partial(generator.throw, error)
            else:
                advance = partial(generator.send, sent)
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
        mode = object.__new__(cls)
        mode._entered = []
        return mode if function is None else mode(function)


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


def _switch(mode: Any, name: str) -> bool:
    if not isinstance(mode, (bool, np.bool_)):
        raise TypeError(f"{name} takes True or False, found {mode!r}")
    return bool(mode)


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
        self.mode = _switch(mode, "set_grad_enabled")
        self._set = True  # by this call, which the first block undoes
        super().__enter__()

    def __enter__(self) -> None:
        if self._set:
            self._set = False
            self.at_end(self._entered.pop())
        else:
            super().__enter__()

    def clone(self) -> _Mode:
        """Another one like this."""
        return set_grad_enabled(self.mode)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function, to run in this mode."""
        if self._set:  # decorating does not set the mode where the function is defined
            self._set = False
            self._leave()
        return super().__call__(function)


class inference_mode(_Mode):
    """Context manager or decorator: as `no_grad`, for results that never become part of a history.

    Parameters
    ----------
    mode : bool, optional
        False: operations are recorded, as outside of any `inference_mode` and `no_grad`.

    Raises
    ------
    GradientError
        Later, where such a result is needed by a derivative, made to require grad, or written to outside.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor(2.0, requires_grad=True)
    >>> with tg.inference_mode():
    ...     y = x * x
    >>> y.is_inference()
    True
    """

    def __new__(cls, mode: Any = True) -> Any:
        """Return the mode, or a function given directly decorated with it."""
        made = super().__new__(cls)
        if not callable(mode):
            return made
        made.mode = True
        return made(mode)

    def __init__(self, mode: bool | Callable[..., Any] = True) -> None:
        self.mode = callable(mode) or _switch(mode, "inference_mode")

    def __enter__(self) -> None:
        self.at_end(partial(_enabled.set, _enabled.get()))
        change_mode(inference=False)
        change_mode(recording=not self.mode, inference=self.mode)

    def clone(self) -> _Mode:
        """Another one like this."""
        return inference_mode(self.mode)


def is_inference_mode_enabled() -> bool:
    """Return whether results are those of `inference_mode` here.

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.is_inference_mode_enabled()
    False
    """
    return bool(in_force("inference"))
