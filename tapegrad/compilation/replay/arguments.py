"""Arguments that a function is not differentiated by: with which others its Python may be skipped."""

from __future__ import annotations

import dataclasses
import itertools
import operator
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.compilation.replay.comparing import Contents, contents_of, is_same_array

OWNS_DATA = 4  # among NumPy's flags
MOST_WORK = 1000  # by which NumPy may look whether two arrays have elements in common


class Others(NamedTuple):
    """What a call has besides the leaves that it is differentiated by, and the arguments with these."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012, which nobody writes to
    trees: tuple[Any, ...] = ()

    def roots(self) -> Iterator[tuple[str, Any]]:
        """Give what a function may read through its arguments, with what to call it."""
        yield from (("an argument", x) for x in self.args)
        yield from ((f"argument {name}", x) for name, x in self.kwargs.items())
        for tree in self.trees:
            yield from (("a class of an argument", kind) for kind in _classes_in(tree))


def _classes_in(tree: Any) -> Iterator[type]:
    if isinstance(tree, (list, tuple, dict)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _classes_in(part)
    elif dataclasses.is_dataclass(tree):
        for field in dataclasses.fields(tree):
            yield from _classes_in(getattr(tree, field.name))
    else:
        return
    yield type(tree)


NO_OTHERS = Others()


class Elements(NamedTuple):
    """An array as it was; its elements need no comparison if it is the same object and somebody vouches."""

    contents: Contents
    flags: int
    array: Callable[[], Any]
    vouched: bool


class Items(NamedTuple):
    """What a list held, or a dict of these keys."""

    kind: type
    keys: tuple[Any, ...]
    parts: tuple[Any, ...]


class Arguments:
    """Arguments of a call that was watched; others will do if the function cannot tell them from these.

    It may write to an array, list or dict and take that back before it ends, keep it, or see that two of its
    arguments are one. So another object will do only if it is reached, as the known one was, by this argument
    alone: then whatever is done with the one is done with the other.

    Parameters
    ----------
    args, kwargs
        The arguments.
    read
        Arrays, lists and dicts that the function reads, the arguments among them.
    shared
        Addresses of those to which there are several ways.
    vouched
        Whether somebody vouches for elements of arrays.

    Attributes
    ----------
    own
        Addresses of the objects for which others will do.
    """

    def __init__(
        self,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        read: Collection[Any],
        shared: Collection[int],
        vouched: bool,
    ) -> None:
        self._vouched, self._names, given = vouched, (*kwargs,), (*args, *kwargs.values())
        self._objects: list[Callable[[], Any]] = []  # weak references, in the order of comparison
        found: list[Any] = []
        self._known = tuple(self._noted(x, shared, found) for x in given)
        own = {id(x) for x in found}
        self._elsewhere = {id(x): x for x in read if id(x) not in own}
        if not self._are_apart(found):
            self._known, self._objects, own = given, [], set()
        self.own = own

    def _noted(self, x: Any, shared: Collection[int], found: list[Any]) -> Any:
        """What is known of an argument, or of a part of one."""
        kind = type(x)
        if id(x) in shared or kind not in (tuple, list, dict, np.ndarray):
            return x
        if kind is tuple:
            return tuple(self._noted(part, shared, found) for part in x)
        found.append(x)
        if kind is np.ndarray:
            self._objects.append(array := weakref.ref(x))
            return Elements(contents_of(x), x.flags.num & ~OWNS_DATA, array, self._vouched)
        self._objects.append(_nothing)
        keys, parts = (tuple(x), x.values()) if kind is dict else ((), x)
        return Items(kind, keys, tuple(self._noted(part, shared, found) for part in parts))

    def are(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether a call with these may do what the one with the known ones has done."""
        given = (*args, *kwargs.values()) if kwargs else args
        if len(given) != len(self._known) or (*kwargs,) != self._names:
            return False
        found: list[Any] = []
        if not all(map(_is_same, given, self._known, itertools.repeat(found))):
            return False
        return all(map(operator.is_, found, [array() for array in self._objects])) or self._are_apart(found)

    def _are_apart(self, objects: list[Any]) -> bool:
        """Whether all these are different ones, without elements in common, as what else is read is."""
        ids, arrays = {id(x) for x in objects}, [x for x in objects if type(x) is np.ndarray]
        if len(ids) < len(objects) or not ids.isdisjoint(self._elsewhere):
            return False
        others = [x for x in self._elsewhere.values() if type(x) is np.ndarray]
        pairs = itertools.chain(itertools.combinations(arrays, 2), itertools.product(arrays, others))
        return not any(np.may_share_memory(x, y, MOST_WORK) for x, y in pairs)  # type: ignore[arg-type]


def _nothing() -> None:
    """Stand for a weak reference to a list or dict, of which there are none."""


def _is_same(x: Any, known: Any, found: list[Any]) -> bool:
    """Whether an argument is the same object, an equal number or text, or as an array, list or dict was."""
    if x is known:
        return True
    kind = type(x)
    if type(known) is Elements:
        if kind is not np.ndarray or x.dtype is not known.contents.dtype:
            return False
        found.append(x)
        if known.flags != x.flags.num & ~OWNS_DATA:
            return False
        return (known.vouched and x is known.array()) or is_same_array(x, known.contents, None)
    if type(known) is Items:
        if kind is not known.kind or len(x) != len(known.parts):
            return False
        found.append(x)
        if kind is dict and not _are_same(x, known.keys, found):
            return False
        return _are_same(x.values() if kind is dict else x, known.parts, found)
    if kind is not type(known):
        return False
    if kind is tuple:
        return len(x) == len(known) and _are_same(x, known, found)
    if issubclass(kind, np.generic) and kind is not np.void:
        return x.dtype == known.dtype and bool(x.tobytes() == known.tobytes())
    if kind is complex:
        return _is_same(x.real, known.real, found) and _is_same(x.imag, known.imag, found)
    if kind is float and x == 0.0 and str(x) != str(known):
        return False
    return kind in (int, float, str, bytes) and bool(x == known)


def _are_same(parts: Iterable[Any], known: tuple[Any, ...], found: list[Any]) -> bool:
    return all(_is_same(x, y, found) for x, y in zip(parts, known, strict=True))
