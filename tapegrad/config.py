"""Settings taken from the environment, and the report of `show_config`."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

__all__ = ["abi", "bounds", "cache_setting", "show_config"]


def abi() -> str:
    """Return ``"native"`` or ``"portable"``, as ``TAPEGRAD_ABI`` asks (empty: decided by a probe)."""
    return os.environ.get("TAPEGRAD_ABI", "")


def bounds() -> bool:
    """Whether compiled code checks every address it reads or writes, as ``TAPEGRAD_BOUNDS=1`` asks."""
    return os.environ.get("TAPEGRAD_BOUNDS", "") not in ("", "0")


def cache_setting() -> str:
    """Return ``TAPEGRAD_CACHE``: a directory, ``"off"``, or empty for the user's cache directory."""
    return os.environ.get("TAPEGRAD_CACHE", "")


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
    rows["kernel cache"] = str(cache.directory() or "off (kernels are compiled in memory)")
    rows["object layout"] = native.layout_in_use()
    rows["bounds"] = "checked (TAPEGRAD_BOUNDS)" if bounds() else "not checked"
    return "\n".join(f"{name:14s} {value}" for name, value in rows.items())
