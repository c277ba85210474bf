"""Settings, most of them taken from the environment, and the report of `show_config`."""

from __future__ import annotations

import os
import platform
from contextlib import ContextDecorator
from contextvars import ContextVar
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from tapegrad.blocks import Block

__all__ = ["abi", "bounds", "cache_setting", "guard", "guard_setting", "show_config"]

GUARDS = ("checksum", "copy", "off")


def abi() -> str:
    """Return ``"native"`` or ``"portable"``, as ``TAPEGRAD_ABI`` asks (empty: decided by a probe)."""
    return os.environ.get("TAPEGRAD_ABI", "")


def bounds() -> bool:
    """Whether compiled code checks every address it reads or writes, as ``TAPEGRAD_BOUNDS=1`` asks."""
    return os.environ.get("TAPEGRAD_BOUNDS", "") not in ("", "0")


def cache_setting() -> str:
    """Return ``TAPEGRAD_CACHE``: a directory, ``"off"``, or empty for the user's cache directory."""
    return os.environ.get("TAPEGRAD_CACHE", "")


def _valid(mode: str, what: str) -> str:
    if mode not in GUARDS:
        raise ValueError(f"{what} takes one of {', '.join(map(repr, GUARDS))}, found {mode!r}")
    return GUARDS[GUARDS.index(mode)]  # compiled code knows the settings by their addresses


DEFAULT_GUARD = _valid(os.environ.get("TAPEGRAD_GUARD", GUARDS[0]), "TAPEGRAD_GUARD")
setting_of_guard = ContextVar("tapegrad_guard", default=DEFAULT_GUARD)
guard_setting = setting_of_guard.get


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
        self.mode = _valid(mode, "guard")

    def __enter__(self) -> None:
        self.at_end(partial(setting_of_guard.set, guard_setting()))
        setting_of_guard.set(self.mode)

    def _recreate_cm(self) -> guard:
        """Another one like this, for a call of a decorated function."""
        return guard(self.mode)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def show_config() -> str:
    """Describe versions, the kernel cache and the interface to NumPy's structs in use.

    Returns
    -------
    str
        One setting a line.

    Examples
    --------
    >>> import tapegrad as tg
    >>> "kernel cache" in tg.show_config()
    True
    """
    from tapegrad.kernels import abi as native
    from tapegrad.kernels import cache

    rows = {name: _version(name) for name in ("tapegrad", "numpy", "numba", "llvmlite", "scipy")}
    rows["python"] = platform.python_version()
    rows["machine"] = f"{platform.system()} {platform.machine()}"
    rows["kernel cache"] = cache.describe()
    rows["guard"] = guard_setting()
    rows["object layout"] = native.layout_in_use()
    rows["bounds"] = "checked (TAPEGRAD_BOUNDS)" if bounds() else "not checked"
    return "\n".join(f"{name:14s} {value}" for name, value in rows.items())
