"""Tensors that share memory: what one writes the others see, in value and in history.

All handles of one memory have a `Storage` in common. It knows the *whole*: the handle they are views of,
with its history. A write gives the whole a new history; the other handles are marked stale and take theirs
from the whole when they are next used.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from tapegrad.errors import KernelError
from tapegrad.kernels import abi
from tapegrad.tape.tape import LEFT, Tape

STALE = Tape()  # stands for the tape of a handle whose history has to be looked up
STALE.limit = LEFT
ndarray = np.ndarray
Window = tuple[int, tuple[int, ...], tuple[int, ...]]


class Storage:
    """What handles of one memory have in common.

    Attributes
    ----------
    whole
        A handle of its own: the memory's value and history as of the last write.
    base
        A weak reference to the Tensor that the others are views of: the whole's history is its own.
    handles
        Weak references to the Tensors that are views of it, the whole of it included.
    version
        The number of writes.
    """

    __slots__ = ("base", "handles", "limit", "version", "whole")

    def __init__(self, whole: Any, base: Any) -> None:
        self.whole = whole
        self.base = weakref.ref(base)
        self.handles: list[weakref.ref[Any]] = []
        self.limit = 16
        self.version = 0

    def add(self, handle: Any) -> None:
        """Take in a handle."""
        self.handles.append(weakref.ref(handle))
        if len(self.handles) > self.limit:
            self.handles = [r for r in self.handles if r() is not None]
            self.limit = max(16, 2 * len(self.handles))

    def remove(self, handle: Any) -> None:
        """Let go of a handle."""
        self.handles = [r for r in self.handles if r() is not handle]

    def adopt(self, leaf: Any, whole: Any) -> None:
        """Let a leaf stand for the whole, if it sees all of it and no history and no other leaf does."""
        before = self.whole
        here, there = before._v, whole._v
        if before._tape is not None or here.shape != there.shape or here.strides != there.strides:
            return
        other = before._extra is not None and before._extra.requires_grad and before._at.handle() is not leaf
        if not other and abi.address(here) == abi.address(there):
            self.whole = whole

    def alive(self) -> list[Any]:
        """The handles that there are still."""
        return [h for r in self.handles if (h := r()) is not None]


def steps(lengths: list[int], whole: Any) -> list[list[int]]:
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


def place(value: Any, whole: Any, strides: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Offset and strides of a view, for a whole that has these strides instead of its own."""
    size = whole.itemsize
    offset = (abi.address(value) - abi.address(whole)) // size if value.size else 0
    expressed = steps([offset, *(s // size for s in value.strides)], whole)
    first, *rest = [sum(n * s for n, s in zip(step, strides, strict=True)) for step in expressed]
    return first, tuple(0 if n == 1 else s for n, s in zip(value.shape, rest, strict=True))


def window(value: Any, whole: Any) -> Window | None:
    """Where a view's elements lie in the whole, counted in C order; None where they are no window there."""
    if not whole.flags.c_contiguous:
        return None
    size = whole.itemsize
    offset = (abi.address(value) - abi.address(whole)) // size if value.size else 0
    strides = tuple(0 if n == 1 else s // size for n, s in zip(value.shape, value.strides, strict=True))
    if value.size:
        reach = [s * (n - 1) for n, s in zip(value.shape, strides, strict=True)]
        low, high = (offset + sum(f(0, r) for r in reach) for f in (min, max))
        if low < 0 or high >= whole.size:
            raise KernelError(f"a view of shape {value.shape} lies outside its memory, shape {whole.shape}")
    return offset, value.shape, strides


def places(value: Any, whole: Any) -> Any:
    """The number in C order of each element that a view sees."""
    numbers = np.empty_like(whole, np.int64, order="K")
    numbers[...] = np.arange(whole.size).reshape(whole.shape)
    return moved(value, whole, numbers)


def moved(value: Any, whole: Any, onto: Any) -> Any:
    """The same view of another whole, one that fills its memory."""
    size = onto.itemsize
    offset, strides = place(value, whole, tuple(s // size for s in onto.strides))
    flat = onto.transpose(sorted(range(onto.ndim), key=lambda a: -onto.strides[a])).reshape(-1)  # a view
    seen = ndarray(value.shape, onto.dtype, flat, size * offset, tuple(size * s for s in strides))
    if not value.flags.writeable:
        seen.flags.writeable = False
    return seen
