"""The subset that `tapegrad.kernels.lowering` translates, as plain Python: for reading and debugging."""

from __future__ import annotations

import ctypes
from typing import Any

from tapegrad.kernels.replay import layout

HALF_WORDS = {"ndim", "flags", "refcount", "digit"}  # fields of objects that have 32 bits
_WORD = ctypes.c_int64
_shared = (_WORD * 256)()
_kept: list[Any] = []


class _View:
    """Numbers at an address, by place or, where a constant names the place, by that name."""

    def __init__(self, kind: type[ctypes._SimpleCData], address: int) -> None:
        object.__setattr__(self, "_at", ctypes.cast(ctypes.c_void_p(address), ctypes.POINTER(kind)))

    def __getitem__(self, place: int) -> Any:
        return self._at[place]

    def __setitem__(self, place: int, value: Any) -> None:
        self._at[place] = value

    def __getattr__(self, name: str) -> Any:
        return self._at[getattr(layout, name.upper())]

    def __setattr__(self, name: str, value: Any) -> None:
        self._at[getattr(layout, name.upper())] = value


class obj:
    """The fields of a Python object at an address, by name."""

    def __init__(self, address: int) -> None:
        object.__setattr__(self, "_address", address)

    def _field(self, name: str) -> _View:
        slot = getattr(layout, f"{name.upper()}_SLOT", None)
        at = getattr(layout, f"{name.upper()}_AT") if slot is None else _shared[slot]
        return (i32 if name in HALF_WORDS else i64)(self._address + at)

    def __getattr__(self, name: str) -> Any:
        return self._field(name)[0]

    def __setattr__(self, name: str, value: Any) -> None:
        self._field(name)[0] = value


def _view(kind: type[ctypes._SimpleCData], address: int) -> _View:
    return _View(kind, address)


def i64(address: int) -> _View:
    """64-bit integers at an address."""
    return _view(ctypes.c_int64, address)


def i32(address: int) -> _View:
    """32-bit integers at an address."""
    return _view(ctypes.c_int32, address)


def u8(address: int) -> _View:
    """Bytes at an address."""
    return _view(ctypes.c_uint8, address)


def f64(address: int) -> _View:
    """Doubles at an address."""
    return _view(ctypes.c_double, address)


def f32(address: int) -> _View:
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


def prefetch(address: int) -> None:
    """Say that bytes there, if there are any, will be read soon."""


def within(target: int, count: int) -> None:
    """Say that bytes are about to be read or written by others; checked in a checked build."""


def stack(words: int) -> int:
    """Return the address of some words."""
    _kept.append((_WORD * words)())
    return ctypes.addressof(_kept[-1])


def shared() -> int:
    """Return the address of the words that all functions share."""
    return ctypes.addressof(_shared)


def share(words: int) -> None:
    """Say where the words are of the program that functions are borrowed of; here there is one of all."""


def address(function: Any) -> int:
    """Return the address of a function of integers."""
    kind = ctypes.CFUNCTYPE(_WORD, *[_WORD] * function.__code__.co_argcount)
    _kept.append(kind(function))
    return ctypes.cast(_kept[-1], ctypes.c_void_p).value or 0
