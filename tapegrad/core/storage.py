"""Tensors that share memory: what one writes the others see, in value and in history.

A write through one of a memory's handles is seen by all of them. Those with one history are the handles of
a `Storage`, which knows the *whole*: the value they are views of, with its history. A write gives the whole a
new history; the handles are marked stale and take theirs from the whole when they are next used. A detached
Tensor, a leaf made of a view and a view made while nothing is recorded have storages of their own.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.core.handle import Handle
from tapegrad.errors import KernelError
from tapegrad.kernels import abi
from tapegrad.tape.tape import LEFT, Tape

STALE = Tape()  # stands for the tape of a handle whose history has to be looked up
STALE.limit = LEFT
DUAL = Tape()  # stands for that of a handle that carries a tangent (see `tapegrad.core.forward_mode`)
DUAL.limit, DUAL.serial = LEFT, 1 << 62
OPEN: set[weakref.ref[Any]] = set()  # levels of forward mode that are open, in any thread
ndarray = np.ndarray
Shape = tuple[int, ...]
Window = tuple[int, Shape, Shape]


class Presence:
    """What there is as long as Tensors see a memory."""

    __slots__ = ("__weakref__",)


class Asking(weakref.ref[Presence]):
    """By which a copy of a part knows whether that is there.

    Attributes
    ----------
    held
        Whether others have the copy than a program, or what learns one, by which it was made.
    """

    __slots__ = ("held",)
    held: Callable[[], Any]


class Memory:
    """What all handles of one buffer have in common.

    Attributes
    ----------
    root
        An array that the values of all of them are views of.
    storages
        Weak references to the storages of those handles.
    writes
        The number of writes.
    latest
        The weak reference to the storage or handle that has come to it latest.
    presence
        What tells copies of its parts that it is there, if there are such.
    """

    __slots__ = ("latest", "limit", "presence", "root", "storages", "writes")

    def __init__(self, root: np.ndarray, writes: int = 0, presence: Presence | None = None) -> None:
        self.root = root
        self.storages: list[weakref.ref[Storage]] = []
        self.limit = 16
        self.writes, self.presence = writes, presence
        self.latest: weakref.ref[Any] | None = None

    def add(self, storage: Storage) -> None:
        """Take in a storage."""
        self.latest = weakref.ref(storage)
        self.storages.append(self.latest)
        if len(self.storages) > self.limit:
            self.forget_dead()

    def forget_dead(self) -> None:
        """Drop references to storages that are gone."""
        self.limit = _forget(self.storages, None)

    def others(self, storage: Storage) -> list[Storage]:
        """The storages that there are still, but one."""
        if len(self.storages) == 1:
            return []
        return [s for r in self.storages if (s := r()) is not None and s is not storage]


class Storage:
    """What handles of one memory and one history have in common.

    Attributes
    ----------
    memory
        That memory.
    whole
        A handle of its own: the value that the others are views of, and its history as of the last write.
        A leaf that requires grad is the whole of its storage.
    base
        A weak reference to the Tensor that the others are views of: the whole's history is its own.
    handles
        Weak references to the Tensors that are views of it, the whole of it included.
    detached
        Whether it was made to see a value without its history.
    origin
        The storage that it was a view of, before either changed its role or as recording was off.
    torn
        Whether a write is at work, or was cut off: values and history do not belong together.
    """

    __slots__ = ("__weakref__", "base", "detached", "handles", "limit", "memory", "origin", "torn", "whole")

    def __init__(self, base: Handle, whole: Handle, memory: Memory, detached: bool = False) -> None:
        self.base = weakref.ref(base)
        self.whole, self.memory, self.detached = whole, memory, detached
        self.handles: list[weakref.ref[Any]] = [self.base]
        self.limit = 16
        self.origin: Storage | None = None
        self.torn = False

    def add(self, handle: Handle) -> None:
        """Take in a handle."""
        self.memory.latest = reference = weakref.ref(handle)
        self.handles.append(reference)
        if len(self.handles) > self.limit:
            self.forget_dead()

    def forget_dead(self) -> None:
        """Drop references to handles that are gone."""
        self.limit = _forget(self.handles, None)

    def remove(self, handle: Handle) -> None:
        """Let go of a handle."""
        _forget(self.handles, handle)

    def alive(self) -> list[Handle]:
        """The handles that there are still."""
        return [h for r in self.handles if (h := r()) is not None]


_lock = threading.RLock()  # a finalizer may take it again


def sharing() -> threading.RLock:
    """Return the lock to hold, by `with`, while what shares a memory is looked through and replaced."""
    return _lock


def _begin_anew() -> None:
    """Let a child have a lock that no thread holds."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def _forget(references: list[weakref.ref[Any]], what: object) -> int:
    """Drop weak references to an object, or if it is None dead ones; says how many there may be next time."""
    with sharing():
        n = len(references)
        references[:n] = [r for r in references[:n] if r() is not what]  # others may add some meanwhile
    return max(16, 2 * len(references))


def is_same_part(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether two views of one memory see the same elements in the same order."""
    return x.shape == y.shape and x.strides == y.strides and abi.location(x) == abi.location(y)


def steps(lengths: list[int], whole: np.ndarray) -> list[list[int]]:
    """Express lengths in memory, in elements, as steps along each axis of an array."""
    size = whole.itemsize
    axes = [a for a in range(whole.ndim) if whole.shape[a] > 1]
    axes.sort(key=lambda a: -abs(whole.strides[a]))
    found = []
    for length in lengths:
        step = [0] * whole.ndim
        for a in axes:
            stride = whole.strides[a] // size
            if stride:
                step[a] = int(length / stride)  # toward zero
                length -= step[a] * stride
        found.append(step)
    return found


def place(value: np.ndarray, whole: np.ndarray, strides: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Offset and strides of a view, for a whole that has these strides instead of its own."""
    size = whole.itemsize
    offset = (abi.location(value) - abi.location(whole)) // size if value.size else 0
    expressed = steps([offset, *(s // size for s in value.strides)], whole)
    first, *rest = [sum(n * s for n, s in zip(step, strides, strict=True)) for step in expressed]
    return first, tuple(0 if n == 1 else s for n, s in zip(value.shape, rest, strict=True))


def window(value: np.ndarray, whole: np.ndarray) -> Window | None:
    """Where a view's elements lie in the whole, counted in C order; None where they are no window there."""
    if not whole.flags.c_contiguous:
        return _window_along(value, whole)
    size = whole.itemsize
    if value is whole:
        return 0, value.shape, tuple([s // size for s in value.strides])
    shape, strides = value.shape, [s // size for s in value.strides]
    if 1 in shape:
        strides = [0 if n == 1 else s for n, s in zip(shape, strides, strict=True)]
    offset = 0
    if value.size:
        offset = (abi.location(value) - abi.location(whole)) // size
        low = high = offset
        for n, s in zip(shape, strides, strict=True):
            reach = s * (n - 1)
            low, high = (low + reach, high) if reach < 0 else (low, high + reach)
        if low < 0 or high >= whole.size:
            raise KernelError(f"a view of shape {shape} lies outside its memory, shape {whole.shape}")
    return offset, shape, tuple(strides)


def _window_along(value: np.ndarray, whole: np.ndarray) -> Window | None:
    """As `window`, of a whole in another order than C's."""
    if value.size == 0:
        return None
    offset = abi.location(value) - abi.location(whole)
    return _along(offset, value.shape, value.strides, whole.shape, whole.strides, whole.itemsize)


@functools.lru_cache(maxsize=256)
def _along(
    offset: int, shape: Shape, strides: Shape, whole_shape: Shape, whole_strides: Shape, size: int
) -> Window | None:
    """As `window`, of a whole each of whose strides is more than the smaller ones reach together.

    Then an element's address tells its place along each axis, a stride of the view the step along each, if
    what it leads to stays within the whole.
    """
    step, reach = 1, 0
    axes = []  # stride, step in C order, extent
    for s, n in zip(reversed(whole_strides), reversed(whole_shape), strict=True):
        if n > 1:
            axes.append((s // size, step, n))
        step *= n
    axes.sort()
    for s, _, n in axes:
        if s <= reach:
            return None
        reach += s * (n - 1)
    axes.reverse()
    rest, first, ends = offset // size, 0, []
    for s, step, n in axes:
        at, rest = divmod(rest, s)
        first += at * step
        ends.append([at, at - n])
    along = []
    for stride, count in zip(strides, shape, strict=True):
        total, rest = 0, stride // size * (count > 1)
        for (s, step, _), end in zip(axes, ends, strict=True):
            taken = rest // s if rest > 0 else -(-rest // s)
            rest -= taken * s
            total += taken * step
            end[taken > 0] += taken * (count - 1)
        if rest:
            return None
        along.append(total)
    return None if any(low < 0 or high >= 0 for low, high in ends) else (first, shape, tuple(along))


def places(value: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """The number in C order of each element that a view sees."""
    kind = np.dtype(np.int64)
    if whole.itemsize == 4:  # then strides are the same, where the numbers fit
        kind = np.result_type(np.int32, np.min_scalar_type(whole.size))
    numbers = np.empty_like(whole, kind, order="K")
    numbers[...] = np.arange(whole.size).reshape(whole.shape)
    return moved(value, whole, numbers).astype(np.int64, copy=False)


def moved(
    value: np.ndarray, whole: np.ndarray, onto: np.ndarray, root: np.ndarray | None = None
) -> np.ndarray:
    """The same view of another whole, one that fills its memory or lies in a root that does."""
    if value is whole and value.flags.writeable:
        return onto
    root = onto if root is None else root
    size, begin = onto.itemsize, abi.location(onto) - abi.location(root)
    if onto.strides == whole.strides and size == whole.itemsize and root.flags.forc and value.size:
        offset = abi.location(value) - abi.location(whole)
        seen = ndarray(value.shape, onto.dtype, root, begin + offset, value.strides)
        if not value.flags.writeable:
            seen.flags.writeable = False
        return seen
    offset, strides = place(value, whole, tuple(s // size for s in onto.strides))
    flat = root.transpose(sorted(range(root.ndim), key=lambda a: -root.strides[a])).reshape(-1)  # a view
    seen = ndarray(value.shape, onto.dtype, flat, begin + size * offset, tuple(size * s for s in strides))
    if not value.flags.writeable:
        seen.flags.writeable = False
    return seen
