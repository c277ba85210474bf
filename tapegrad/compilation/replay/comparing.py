"""Whether what a function reads is as it was: names, attributes, what containers hold, elements of arrays."""

from __future__ import annotations

import functools
import gc
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from types import CellType, MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tapegrad.compilation.memory.pages import have_same_bytes
from tapegrad.config import guard_setting
from tapegrad.core.compiled_methods import METH_O, builtin
from tapegrad.kernels import abi, machine
from tapegrad.kernels.replay import layout
from tapegrad.kernels.replay.layout import SUMMED
from tapegrad.tape.tape import checksum

MISSING: Any = object()
GET_OF_CLASS: Any = MappingProxyType.get
OF_FUNCTION = ("__code__", "__defaults__", "__kwdefaults__")
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
        try:
            return self.get(self.of, self.key, MISSING) is self.value
        except ValueError:  # of a variable of an outer function that was deleted
            return False

    def words(self) -> tuple[int, int, int] | None:
        """Return words by which compiled code compares it; None where Python is to do it."""
        get, of, key, value, *_ = self
        if get is GET_OF_CLASS:
            get, of = dict.get, gc.get_referents(of)[0]
        if get is dict.get and isinstance(of, dict):
            return id(of), id(key), 0 if value is MISSING else id(value)
        if get is is_same_kind:
            return id(of) + layout.TYPE_AT, 0, id(key)
        place = _places().get((type(of), key)) if get is getattr else None
        return None if place is None else (id(of) + place, 0, 0 if value is None else id(value))


class Contents(NamedTuple):
    """What an array was when it was looked at: its elements are a copy, or a checksum."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype
    elements: np.ndarray | int


class Check:
    """Entries that are compared, but for what somebody vouches for; most of them in compiled code."""

    def __init__(self, entries: Sequence[Entry], vouched: Collection[str] = ()) -> None:
        found = {(entry.get, id(entry.of), id(entry.key)): entry for entry in entries}
        self._kept = [entry for entry in found.values() if entry.kind not in vouched]
        words = [entry.words() for entry in self._kept]
        natively = [three for three in words if three is not None]
        self._words = np.array([len(natively), *(word for three in natively for word in three)], np.int64)
        self._is_unchanged = _is_unchanged()
        self._others = [entry for entry, three in zip(self._kept, words, strict=True) if three is None]

    def holds(self) -> bool:
        """Whether all is as it was."""
        return self._is_unchanged(self._words) and all(map(Entry.is_same, self._others))


@functools.cache
def _is_unchanged() -> Callable[[np.ndarray], bool]:
    """Return the function of `kernels.replay.unchanged`."""
    at = machine.load()[0](layout.IS_UNCHANGED, 0, 0, 0)
    return builtin("is_unchanged", METH_O, at)  # type: ignore[no-any-return]


@functools.cache
def _places() -> dict[tuple[type, str], int]:
    """Where functions and variables of outer ones keep what Python calls by these names, by examples."""

    def example(first: object = 1, *, second: object = 2) -> None:
        """A function that has all of these."""

    named = [(example, name) for name in (*OF_FUNCTION, "__dict__")]
    found = {}
    for x, name in (*named, (CellType(object()), "cell_contents")):
        places = abi.places_in(x, getattr(x, name))
        if len(places) == 1:
            found[type(x), name] = places[0]
    return found


def is_same_list(x: list[Any], items: tuple[Any, ...], _: Any) -> bool:
    """Whether a list holds the same objects."""
    return len(x) == len(items) and all(map(operator.is_, x, items))


def is_same_dict(x: Mapping[Any, Any], known: dict[Any, Any], _: Any) -> bool:
    """Whether a dict or a class has the same keys in the same order, and holds the same objects."""
    return tuple(x) == tuple(known) and all(map(operator.is_, x.values(), known.values()))


def is_same_kind(x: Any, kind: type, _: Any) -> bool:
    """Whether an object is of the same class."""
    return type(x) is kind


def contents_of(x: np.ndarray) -> Contents:
    """What an array holds: a copy, of a very large one the checksum that a tape guards it by."""
    summed = x.nbytes >= SUMMED and x.flags.forc and guard_setting() != "copy"
    return Contents(x.shape, x.strides, x.dtype, checksum(x) if summed else x.copy(order="K"))


def is_same_array(x: np.ndarray, known: Contents, _: Any) -> bool:
    """Whether an array has the same strides, and the same elements, bit by bit."""
    copy = known.elements
    if (x.shape, x.strides, x.dtype) != known[:3]:
        return False
    if isinstance(copy, int):
        return guard_setting() != "copy" and checksum(x) == copy
    if copy.strides != x.strides or not x.flags.forc:
        return x.tobytes() == copy.tobytes()
    return have_same_bytes(x, copy)


def dict_of(x: Any, _: Any, __: Any) -> dict[str, Any]:
    """Return the dict of an object's own, whatever its class says of attributes."""
    found: dict[str, Any] = object.__getattribute__(x, "__dict__")
    return found
