"""Where saved values are kept: hooks that pack and unpack them, files, and computing them again."""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tapegrad.core.base import Handle, Operand, value_of
from tapegrad.core.context_manager import Block
from tapegrad.core.dispatch import alias_apart
from tapegrad.core.forward_mode import open_levels, reopened
from tapegrad.core.grad_mode import (
    Mode,
    _enabled,
    change_mode,
    enable_grad,
    in_force,
    is_grad_enabled,
    within,
)
from tapegrad.core.saved_values import Packed, Packing
from tapegrad.errors import GradientError
from tapegrad.ops.primitive import Primitive
from tapegrad.tape.tape import checksum
from tapegrad.tensor import Tensor, TensorOrArray, alias_of, wrap

if TYPE_CHECKING:
    from os import PathLike

__all__ = [
    "checkpoint",
    "disable_saved_tensors_hooks",
    "save_on_disk",
    "saved_tensors_hooks",
]

_disabled: ContextVar[str | None] = ContextVar("tapegrad_saved_tensors_hooks_disabled", default=None)


class _Packed(Block):
    """Context manager: what derivatives will read is packed."""

    def __init__(self, packing: Packing) -> None:
        self._packing = packing

    def __enter__(self) -> None:
        message = _disabled.get()
        if message is not None:
            raise GradientError(message)
        self.at_end(partial(self._restore, _enabled.get()))
        change_mode(packing=self._packing)

    def _restore(self, before: bool | Mode) -> None:
        _enabled.set(before)
        self._packing.close()


class saved_tensors_hooks(_Packed):
    """Context manager: what derivatives will read passes through two functions.

    Parameters
    ----------
    pack_hook : callable
        ``pack_hook(tensor)``, called with each value as an operation saves it; returns anything. Nothing
        in it is recorded.
    unpack_hook : callable
        Gets that, when a sweep needs the value, and returns a Tensor of the same value.

    Raises
    ------
    GradientError
        They are disabled, or pack_hook writes to the Tensor.
    TypeError
        unpack_hook returns no Tensor.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> pack = lambda saved: saved.numpy().astype(np.float32)
    >>> unpack = lambda kept: tg.tensor(kept, dtype=float)
    >>> with tg.autograd.graph.saved_tensors_hooks(pack, unpack):
    ...     y = np.sum(np.exp(x))
    >>> tg.grad(y, x)
    (tensor([2.7183, 7.3891]),)
    """

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Any]) -> None:
        # what it would record would be packed, too, without an end
        super().__init__(Packing(partial(within, {"recording": False}, pack_hook), unpack_hook))


class disable_saved_tensors_hooks(Block, contextlib.ContextDecorator):
    """Context manager or decorator: `saved_tensors_hooks` raise an error with this message.

    Parameters
    ----------
    error_message : str

    Raises
    ------
    GradientError
        Such hooks are in force already.

    Examples
    --------
    >>> import tapegrad as tg
    >>> with tg.autograd.graph.disable_saved_tensors_hooks("not here"):
    ...     with tg.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
    ...         pass
    Traceback (most recent call last):
        ...
    tapegrad.errors.GradientError: not here
    """

    def __init__(self, error_message: str) -> None:
        self._message = error_message

    def __enter__(self) -> None:
        if in_force("packing") is not None:
            raise GradientError(self._message)
        self.at_end(partial(_disabled.set, _disabled.get()))
        _disabled.set(self._message)

    def _recreate_cm(self) -> disable_saved_tensors_hooks:
        """Another one like this, for a call of a decorated function."""
        return disable_saved_tensors_hooks(self._message)


class _File:
    """A value in a file, which is removed with this."""

    def __init__(self, folder: Path, value: TensorOrArray) -> None:
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".npy", delete=False) as file:
            np.save(file, value, allow_pickle=False)
            self.path = Path(file.name)
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, maker: int) -> None:
    """Remove a file, unless this process is a fork of that which made it and may still need it."""
    if os.getpid() == maker:
        path.unlink(missing_ok=True)


class save_on_disk(saved_tensors_hooks):
    """Context manager: what derivatives will read is kept in files, and read when a sweep needs it.

    Parameters
    ----------
    directory : path-like, optional
        Of the files; by default that for temporary files. Each file is removed when its value is not needed
        any more.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> with tg.autograd.graph.save_on_disk():
    ...     y = np.sum(np.exp(x) * x)
    >>> tg.grad(y, x)
    (tensor([ 5.4366, 22.1672]),)
    """

    def __init__(self, directory: str | PathLike[str] | None = None) -> None:
        folder = Path(tempfile.gettempdir() if directory is None else directory)
        super().__init__(
            lambda x: _File(folder, x._v), lambda file: wrap(np.load(file.path, allow_pickle=False)[()])
        )


# ---------------------------------------------------------------- values computed again


class _Enough(Exception):
    """All that was asked for has been computed again."""


def _kept(x: Tensor, outer: Packing | None) -> Callable[[], Tensor]:
    """Return what gives an argument back; what an outer checkpoint can compute again is not kept."""
    if isinstance(x, Handle):
        known, _ = alias_apart(x)
        return (lambda: alias_of(known)) if outer is None else outer.keep(x)
    if type(x) is tuple:
        parts = [_kept(part, outer) for part in x]
        return lambda: tuple([part() for part in parts])
    return lambda: x


class _Seen(Packing):
    """Lets a function see, of each operation, operands that it was given: leaves, constants and numbers."""

    def __init__(
        self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any], see: Callable[[str, Any], None],
        notes: Sequence[list[Any]],
    ) -> None:  # fmt: skip
        super().__init__(pack, unpack, notes)
        self._see = see

    def save(self, op: Primitive, operands: Sequence[Operand], value: Operand) -> Packed | None:
        for x in operands:
            if not isinstance(x, Handle) or x._tape is None:
                self._see(op.name, value_of(x))
        return super().save(op, operands, value)


class _Frame:
    """One call of a checkpointed function: computes what it saved again when a sweep asks for it."""

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], random: bool
    ) -> None:
        outer = in_force("packing")
        self.function, self.kwargs = function, kwargs
        self.args = [_kept(x, outer) for x in args]
        self.levels = open_levels()
        self.random = np.random.get_state() if random else None  # noqa: NPY002
        self.shapes: list[tuple[tuple[int, ...], np.dtype]] = []
        self.given: list[int] = []  # checksums
        self.found: dict[int, Tensor] = {}

    def pack(self, x: Tensor) -> int:
        self.shapes.append((x.shape, x.dtype))
        return len(self.shapes) - 1

    def see(self, name: str, value: Operand) -> None:
        self.given.append(_sum_of(value))

    def unpack(self, index: int) -> Tensor:
        value = self.found.pop(index, None)
        return self._again(index) if value is None else value

    def _again(self, index: int) -> Tensor:
        """Run the function once more, up to the last value that it saved; keep what is not asked for yet.

        Another sweep may do so at the same time, in another thread.
        """
        found: list[Tensor] = []
        given: list[int] = []

        def pack(x: Tensor) -> int:
            before = self.shapes[len(found)]
            if (x.shape, x.dtype) != before:
                raise GradientError(
                    f"a checkpointed function saved a value of shape {x.shape}, dtype {x.dtype} where its "
                    f"first run saved one of shape {before[0]}, dtype {before[1]}; "
                    "it must do the same each time"
                )
            found.append(alias_of(x))
            if len(found) == len(self.shapes):
                raise _Enough
            return len(found) - 1

        def see(name: str, value: Any) -> None:
            given.append(_sum_of(value))
            if given[-1:] != self.given[len(given) - 1 : len(given)]:
                raise GradientError(
                    f"{name} in a checkpointed function was given other numbers (shape {np.shape(value)}) "
                    "than in its first run; what the function uses besides its arguments must stay as it was "
                    "until the sweep: pass it as an argument, or a copy of it"
                )

        state = np.random.get_state() if self.random is not None else None  # noqa: NPY002
        if self.random is not None:
            np.random.set_state(self.random)  # noqa: NPY002
        packing = _Seen(pack, found.__getitem__, see, (found, given))
        before = _enabled.get()
        try:
            change_mode(packing=packing, forward=None)
            with reopened(self.levels), enable_grad(), contextlib.suppress(_Enough):
                self.function(*[arg() for arg in self.args], **self.kwargs)
        finally:
            _enabled.set(before)
            packing.close()
            if state is not None:
                np.random.set_state(state)  # noqa: NPY002
        if len(found) < len(self.shapes):
            raise GradientError(
                f"a checkpointed function saved {len(found)} values where its first run saved "
                f"{len(self.shapes)}; it must do the same each time"
            )
        self.found = dict(enumerate(found))
        return self.found.pop(index)


def _sum_of(value: Operand) -> int:
    return checksum(np.ascontiguousarray(value))


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool = False,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Call a function without keeping what its derivatives read: a sweep calls it again for that.

    Parameters
    ----------
    function : callable
        Does the same each time it is called; may use Tensors besides its arguments.
    *args, **kwargs
        Its arguments.
    use_reentrant : bool, optional
        Must be False.
    preserve_rng_state : bool, optional
        Let NumPy's global random numbers in the second call be those of the first.

    Returns
    -------
    Whatever the function returns

    Raises
    ------
    GradientError
        In a sweep: the second call saved other values than the first, or an operation in it was given a leaf,
        an array or a number that has changed.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> x = tg.tensor([0.5, 1.0], requires_grad=True)
    >>> y = tg.autograd.checkpoint(lambda x: np.sin(np.exp(x)) * x, x)
    >>> np.sum(y).backward()
    >>> x.grad
    tensor([ 0.9328, -2.0676])
    """
    if use_reentrant:
        raise ValueError("use_reentrant=True is not offered: what is not reentrant can do all that it could")
    if not callable(function):
        raise TypeError(
            f"checkpoint takes a function and arguments, checkpoint(f, x); found {type(function).__name__}"
        )
    if not is_grad_enabled():
        return function(*args, **kwargs)
    frame = _Frame(function, args, kwargs, preserve_rng_state)
    with _Packed(_Seen(frame.pack, frame.unpack, frame.see, (frame.shapes, frame.given))):
        return function(*args, **kwargs)
