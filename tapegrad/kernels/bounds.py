"""A build of the compiled code that checks every address, ``TAPEGRAD_BOUNDS=1``: for tests, far slower.

Whatever is about to run is given a table of the memory there is: arrays whose address Python handed out
(`tapegrad.kernels.abi.address`) and that still exist, the values and structs of the objects that it reads
by address, and the sweep's own buffers while they are in use. An address is looked up when a view is made
of it, and what is read or written through the view must lie in the memory found: an index that escapes,
memory given back, and an address that is of nothing are errors, and the compiled call ends there. What a
kernel, a conversion or BLAS is handed is checked before the call, a kernel's own indices by Numba.

Not noticed is an address that was computed wrongly and lies in other memory of the table, and what an
element-wise kernel is handed of the wrong array. Not checked are the recording of operations, the way from a
Tensor to its gradients and ufunc loops (the first texts of `machine`), whose memory is CPython's and NumPy's.
"""

from __future__ import annotations

import ast
import ctypes
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from tapegrad.errors import KernelError
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address, Words

HEAD = 6  # words of the table before the regions; see `region` in replay/memory.py
_known: dict[int, tuple[weakref.ref[Any], int, int]] = {}
_looked: dict[int, tuple[Any, ...]] = {}


def know(array: np.ndarray) -> None:
    """Let compiled code touch an array for as long as it exists."""
    key = id(array)
    found = _known.get(key)
    if found is None or found[0]() is not array:
        note = weakref.ref(array, lambda note: _forget(key, note))
        _known[key] = (note, *(byte_bounds(array) if array.size else (0, 0)))


def _forget(key: int, note: weakref.ref[Any]) -> None:
    found = _known.get(key)
    if found is not None and found[0] is note:
        del _known[key]


def look(state: Address, objects: tuple[Any, ...]) -> None:
    """Let what runs on this state read these objects, of lists and tuples the items too; () ends that."""
    if objects:
        _looked[state] = objects
    else:
        _looked.pop(state, None)


def _word(address: Address) -> int:
    return int(ctypes.c_int64.from_address(address).value)


def _regions(x: Any) -> Iterator[tuple[int, int]]:
    """Where an object's struct lies, and what compiled code follows from there."""
    at = id(x)
    yield at, at + (28 if type(x) is int else type(x).__basicsize__)
    if type(x) is list:
        items = _word(at + layout.ITEMS_AT)
        yield items, items + 8 * len(x)
    elif type(x) is np.ndarray:
        for place in (layout.DIMS_AT, layout.STRIDES_AT):
            words = _word(at + place)
            yield words, words + 8 * x.ndim
        if x.size:
            yield byte_bounds(x)


def _lists(state: Address) -> list[tuple[int, int]]:
    """Where the items of the lists looked at lie, and how many there are."""
    lists = [x for x in _looked.get(state, ()) if type(x) is list]
    return [(_word(id(x) + layout.ITEMS_AT), len(x)) for x in lists]


def table(state: Address) -> Words:
    """Return the regions there are now, those that overlap as one."""
    rows = [(low, high) for _, low, high in list(_known.values())]
    seen: set[int] = set()
    for found in _looked.get(state, ()):
        for x in (found, *found):
            if id(x) not in seen:
                seen.add(id(x))
                rows += _regions(x)
    bounds = np.array(rows, np.int64).reshape(-1, 2)
    bounds = bounds[bounds[:, 0] < bounds[:, 1]]
    low, high = bounds[np.argsort(bounds[:, 0], kind="stable")].T
    reach = np.maximum.accumulate(high)
    first = np.flatnonzero(np.r_[True, low[1:] >= reach[:-1]][: low.size])
    last = np.r_[first[1:], low.size][: first.size] - 1
    words = np.zeros(HEAD + 2 * first.size, np.int64)
    words[:2] = first.size, state
    words[HEAD::2], words[HEAD + 1 :: 2] = low[first], reach[last]
    return words


def guarded(enter: Callable[..., int], texts: Iterable[str]) -> Callable[..., int]:
    """The way into compiled code with a table at hand; an escape raises `KernelError`."""
    nodes = [node for text in texts for node in ast.parse(text).body]
    names = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]

    def checked(what: int, state: int, extra: int, more: int, free: int = layout.RESET) -> int:
        if not state or what == free:  # nothing that is checked
            return enter(what, state, extra, more)
        before, words = _lists(state), table(state)
        while before != _lists(state):  # another thread recorded meanwhile
            before, words = _lists(state), table(state)
        ctypes.c_int64.from_address(state + 8 * layout.REGIONS).value = words.ctypes.data
        found = enter(what, state, extra, more)
        if words[2]:
            number, line = divmod(int(words[2]), 1 << 32)
            raise KernelError(
                f"compiled code left its memory: {names[number]!r}, line {line} of its file, asked for an "
                "address that no array of the sweep has; nothing was read or written there. "
                "Please report this with the program that led here"
            )
        return found

    return checked
