"""The words a compiled sweep works on, with their buffers; kept and used again."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from typing import Any

import numpy as np

from tapegrad.kernels import abi, bounds, machine, table
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address, Words

NOGIL_WORK = 100_000  # elements; a shorter sweep takes less time than giving up Python's lock
FEW = 256  # records there is room for from the start
KEEP_BYTES = 64 << 20  # more memory than this goes back when a sweep ends


def function_address(function: object) -> Address:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)  # type: ignore[arg-type]


class State:
    """One sweep's workspace: `view` is the shared array of words, the rest are buffers it points to."""

    def __init__(self) -> None:
        enter, enter_nogil = machine.load()
        self.words: Words = np.zeros(layout.STATE_WORDS, np.int64)
        self.view = self.words.data
        self.at = abi.address(self.words)
        self.enter, self._enter_nogil = enter, enter_nogil
        self.note = weakref.ref(self)  # what it claims tapes by
        self.buffers: dict[int, np.ndarray] = {}
        self.n = 0
        view = self.view
        view[layout.ALLOCATE] = function_address(ctypes.pythonapi.PyMem_RawMalloc)
        view[layout.FREE] = function_address(ctypes.pythonapi.PyMem_RawFree)
        view[layout.PAUSE] = 64 << 20
        self._buffer(layout.FREE_LISTS, 256)
        self._buffer(layout.SCRATCH, 2 * layout.BLOCK * layout.OPERANDS)
        self._buffer(layout.WALK, layout.WALK_WORDS)
        results = self._buffer(layout.RESULTS, 2 * (layout.QUICK_INPUTS + 1)).cast("B")
        self.numbers, self.singles = results.cast("d"), results.cast("f")
        self._buffer(layout.SEED_DATA, layout.QUICK_INPUTS)
        self._buffer(layout.RIPE, layout.QUICK_INPUTS)
        self.result_arrays = self._buffer(layout.RESULT_ARRAYS, layout.QUICK_INPUTS)
        view[layout.WORK_LIMIT] = NOGIL_WORK
        view[layout.NONE_OBJECT], view[layout.ARRAY_TYPE] = id(None), id(np.ndarray)
        view[layout.KNOWN] = abi.address(abi.known())
        self.fit(FEW)

    def _buffer(self, place: int, words: int) -> memoryview:
        array = np.zeros(words, np.int64)
        self.buffers[place] = array
        self.view[place] = abi.address(array)
        return array.data

    def fit(self, n: int) -> None:
        """Make room for tapes of n records, and take in what was compiled since."""
        if n > self.n:
            n = max(2 * self.n, n)
            self.unfreed = np.zeros(n, np.uint8)
            self.unfreed_at = abi.address(self.unfreed)
            self.flags = self._buffer(layout.FLAGS, (n + 7) // 8).cast("B")
            self.cotangents = self._buffer(layout.COTANGENTS, n)
            self.descriptors = self._buffer(layout.DESCRIPTORS, n)
            self.pending = self._buffer(layout.PENDING, n)
            self.seeds = self._buffer(layout.SEEDS, n)
            self._buffer(layout.SINKS, n)
            self.view[layout.SEALING_WORDS] = 4 * n + 4096
            self._buffer(layout.SEALING, 4 * n + 4096)
            self.n = n
        self.known = table.version[0]  # first: what is declared meanwhile is placed by the next call
        table.place(self.view)

    def look(self, *objects: Any) -> None:
        """Tell a checked build which objects compiled code reads by their structs from here on."""
        if layout.BOUNDS:
            bounds.look(self.at, objects)

    def result(self, q: int, dtype: np.dtype) -> Any:
        """Return the scalar that a sweep in one call has left at place `q`."""
        if dtype.char in "dD":
            numbers, at = self.numbers, 2 * q
        else:
            numbers, at = self.singles, 4 * q
        if dtype.char in "df":
            return dtype.type(numbers[at])
        return dtype.type(complex(numbers[at], numbers[at + 1]))

    def run(self, what: int, extra: int = 0, more: int = 0) -> int:
        return self.enter(what, self.at, extra, more)

    def run_nogil(self, what: int) -> int:
        return self._enter_nogil(what, self.at, 0, 0)

    def __del__(self, _BLOCKS: int = layout.BLOCKS, _RESET: int = layout.RESET) -> None:
        # defaults: at interpreter exit this module may be gone
        if hasattr(self, "view") and hasattr(self, "enter") and self.view[_BLOCKS]:
            self.enter(_RESET, self.at, 0, 0)


_idle: deque[State] = deque()


def take() -> State:
    """Return a workspace nobody uses; `give` it back. One lost to an interrupt is simply collected."""
    try:
        return _idle.pop()
    except IndexError:
        return State()


def give(state: State) -> None:
    if state.view[layout.HELD_BYTES] > KEEP_BYTES:
        state.run(layout.RESET)
    state.look()
    _idle.append(state)


def trim() -> None:
    """Give back what workspaces have free that nobody uses at present."""
    enter, _ = machine.load()
    enter(layout.RESET_IDLE, 0, 0, 0)
    for _ in range(len(_idle)):
        state = take()
        state.run(layout.RESET)
        state.look()
        _idle.appendleft(state)  # as the next one is taken from the other end
