"""How arrays are kept that code outside can write to: `guard`, for a block or a function."""

from __future__ import annotations

from contextlib import ContextDecorator
from functools import partial

from tapegrad.config import setting_of_guard, valid_guard
from tapegrad.core.context_manager import Block


class guard(Block, ContextDecorator):
    """Say how arrays are kept that code outside can write to, in a ``with`` block or a decorated function.

    Such arrays are ndarrays used as operands, and the memory of Tensors from `from_numpy` or given out by
    `Tensor.numpy`. Outside of any block the mode is that of the environment variable ``TAPEGRAD_GUARD``.

    Parameters
    ----------
    mode : {"checksum", "copy", "off"}
        What happens where a derivative reads such an array of more than 16 KiB; smaller ones are copied.
        "checksum", the default: a backward that finds the array changed raises `MutationError`. "copy":
        it is copied too. "off": nothing is done, and writing to it between its use and backward makes the
        gradient silently wrong.

    Raises
    ------
    ValueError
        Another mode.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> x, a = tg.ones(10_000), np.ones(10_000)
    >>> x.requires_grad = True
    >>> with tg.guard("copy"):
    ...     y = (x * a).sum()
    >>> a[:] = 0.0
    >>> y.backward()
    >>> x.grad[0]
    tensor(1.)
    """

    def __init__(self, mode: str) -> None:
        self.mode = valid_guard(mode, "guard")

    def __enter__(self) -> None:
        self.at_end(partial(setting_of_guard.set, setting_of_guard.get()))
        setting_of_guard.set(self.mode)

    def _recreate_cm(self) -> guard:
        """Another one like this, for a call of a decorated function."""
        return guard(self.mode)
