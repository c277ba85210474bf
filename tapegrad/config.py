"""Settings, most of them taken from the environment, and the report of `show_config`."""

from __future__ import annotations

import os
import platform
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version

__all__ = ["abi", "bounds", "cache_setting", "guard_setting", "show_config"]

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


def valid_guard(mode: str, what: str) -> str:
    """Return a mode of `guard` as it is, or refuse it in the name of `what` it was given to."""
    if mode not in GUARDS:
        raise ValueError(f"{what} takes one of {', '.join(map(repr, GUARDS))}, found {mode!r}")
    return mode


DEFAULT_GUARD = valid_guard(os.environ.get("TAPEGRAD_GUARD", GUARDS[0]), "TAPEGRAD_GUARD")
guard_mode = ContextVar("tapegrad_guard", default=DEFAULT_GUARD)
guard_setting = guard_mode.get


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
