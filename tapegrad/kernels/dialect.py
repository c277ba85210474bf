"""The subset that `tapegrad.kernels.lowering` translates, as plain Python: for reading and debugging."""

from __future__ import annotations

import ctypes
from typing import Any

_WORD = ctypes.c_int64
_shared = (_WORD * 256)()
_kept: list[Any] = []


def _view(kind: Any, address: int) -> Any:
    return ctypes.cast(ctypes.c_void_p(address), ctypes.POINTER(kind))


def i64(address: int) -> Any:
    """64-bit integers at an address."""
    return _view(ctypes.c_int64, address)


def i32(address: int) -> Any:
    """32-bit integers at an address."""
    return _view(ctypes.c_int32, address)


def u8(address: int) -> Any:
    """Bytes at an address."""
    return _view(ctypes.c_uint8, address)


def f64(address: int) -> Any:
    """Doubles at an address."""
    return _view(ctypes.c_double, address)


def f32(address: int) -> Any:
    """Single-precision numbers at an address."""
    return _view(ctypes.c_float, address)


def call(address: int, *args: int) -> int:
    """Call a function of integers that returns one."""
    return int(ctypes.CFUNCTYPE(_WORD, *[_WORD] * len(args))(address)(*args))


def invoke(address: int, *args: int) -> None:
    """Call a function of integers without a result."""
    ctypes.CFUNCTYPE(None, *[_WORD] * len(args))(address)(*args)


def copy(target: int, source: int, count: int) -> None:
    """Copy bytes between blocks that do not overlap."""
    ctypes.memmove(target, source, count)


def zero(target: int, count: int) -> None:
    """Set bytes to zero."""
    ctypes.memset(target, 0, count)


def within(target: int, count: int) -> None:
    """Say that bytes are about to be read or written by others; checked in a checked build."""


def stack(words: int) -> int:
    """Return the address of some words."""
    _kept.append((_WORD * words)())
    return ctypes.addressof(_kept[-1])


def shared() -> int:
    """Return the address of the words that all functions share."""
    return ctypes.addressof(_shared)


def address(function: Any) -> int:
    """Return the address of a function of integers."""
    kind = ctypes.CFUNCTYPE(_WORD, *[_WORD] * function.__code__.co_argcount)
    _kept.append(kind(function))
    return ctypes.cast(_kept[-1], ctypes.c_void_p).value or 0
