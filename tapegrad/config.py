"""Settings taken from the environment; those of `guard` are of a context."""

from __future__ import annotations

import os
from contextvars import ContextVar

__all__ = ["abi", "bounds", "cache_setting", "chunk_bytes", "compiling_setting", "guard_setting"]

COMPILING = ("background", "wait", "off")
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


def compiling_setting() -> str:
    """Return who works for `tapegrad.compile`, as ``TAPEGRAD_COMPILE`` asks: one of `COMPILING`."""
    given = os.environ.get("TAPEGRAD_COMPILE", "") or COMPILING[0]
    if given not in COMPILING:
        raise ValueError(f"TAPEGRAD_COMPILE is one of {', '.join(COMPILING)}, found {given!r}")
    return given


def chunk_bytes() -> int:
    """Return how much memory directions computed together may take: ``TAPEGRAD_CHUNK_BYTES``, or 256 MiB."""
    given = os.environ.get("TAPEGRAD_CHUNK_BYTES", "")
    if not given.isdecimal() and given:
        raise ValueError(f"TAPEGRAD_CHUNK_BYTES is a whole number of bytes, found {given!r}")
    return int(given or 1 << 28)


def valid_guard(mode: str, what: str) -> str:
    """Return a mode of `guard` as it is, or refuse it in the name of `what` it was given to."""
    if mode not in GUARDS:
        raise ValueError(f"{what} takes one of {', '.join(map(repr, GUARDS))}, found {mode!r}")
    return GUARDS[GUARDS.index(mode)]  # compiled code knows the settings by their addresses


DEFAULT_GUARD = valid_guard(os.environ.get("TAPEGRAD_GUARD", GUARDS[0]), "TAPEGRAD_GUARD")
setting_of_guard = ContextVar("tapegrad_guard", default=DEFAULT_GUARD)
guard_setting = setting_of_guard.get
