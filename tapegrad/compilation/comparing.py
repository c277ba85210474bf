"""Whether what a function reads is as it was: names, attributes, what containers hold, elements of arrays."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.kernels import abi

MISSING: Any = object()
GLOBALS, ATTRIBUTES, ARRAYS = VOUCHED = ("globals", "attributes", "arrays")


class Entry(NamedTuple):
    """Something that is compared: ``get(of, key, MISSING)`` is to give `value` itself.

    `kind` is one of `VOUCHED`, what somebody may vouch for; `where` says what it is, and who reads it.
    """

    get: Callable[[Any, Any, Any], Any]
    of: Any
    key: Any
    value: Any
    kind: str
    where: str

    def is_same(self) -> bool:
        """Whether it is as it was."""
        return Check([self])()


class Check:
    """Entries that are compared, but for what somebody vouches for."""

    def __init__(self, entries: Sequence[Entry], vouched: Collection[str] = ()) -> None:
        found = {(entry.get, id(entry.of), id(entry.key)): entry for entry in entries}
        self._entries = [entry[:4] for entry in found.values() if entry.kind not in vouched]

    def __call__(self) -> bool:
        """Whether all is as it was."""
        try:
            for get, of, key, value in self._entries:
                if get(of, key, MISSING) is not value:
                    return False
        except ValueError:  # of a variable of an outer function that was deleted
            return False
        return True


def is_same_list(x: list[Any], items: tuple[Any, ...], _: Any) -> bool:
    """Whether a list holds the same objects."""
    return len(x) == len(items) and all(map(operator.is_, x, items))


def is_same_dict(x: Mapping[Any, Any], known: dict[Any, Any], _: Any) -> bool:
    """Whether a dict or a class has the same keys in the same order, and holds the same objects."""
    return tuple(x) == tuple(known) and all(map(operator.is_, x.values(), known.values()))


def is_same_kind(x: Any, kind: type, _: Any) -> bool:
    """Whether an object is of the same class."""
    return type(x) is kind


def is_same_array(x: np.ndarray, known: tuple[np.ndarray, tuple[int, ...]], _: Any) -> bool:
    """Whether an array has the same strides, and the same elements, bit by bit, as a copy of it."""
    copy, strides = known
    if x.shape != copy.shape or x.strides != strides or x.dtype != copy.dtype:
        return False
    if copy.strides != strides or not x.flags.forc:
        return x.tobytes() == copy.tobytes()
    return have_same_bytes(x, copy)


def have_same_bytes(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether two arrays of one size, each without gaps, have the same bytes in memory."""
    return bool(_compare(abi.location(x), abi.location(y), x.nbytes) == 0)


_compare: Any = ctypes.CDLL(None).memcmp
_compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def dict_of(x: Any, _: Any, __: Any) -> dict[str, Any]:
    """Return the dict of an object's own, whatever its class says of attributes."""
    found: dict[str, Any] = object.__getattribute__(x, "__dict__")
    return found


def is_same_argument(x: Any, known: Any) -> bool:
    """Whether an argument is the same object, or as good as that."""
    if x is known:
        return True
    kind = type(x)
    if kind is not type(known) or kind not in (int, float, str, tuple):
        return False
    if kind is tuple:
        return len(x) == len(known) and all(map(is_same_argument, x, known))
    return bool(x == known) and (kind is not float or x != 0.0 or str(x) == str(known))
