"""Rows: what compiled code runs, one after the other, to compute a program (`kernels.replay.programs`)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.kernels import abi, programs
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address
from tapegrad.ops import forward

BLOCK = layout.PROGRAM_BLOCK


class Block:
    """Elements that only the rows of a group know, anew for each block."""

    def __init__(self, dtype: np.dtype) -> None:
        self.array = np.zeros(BLOCK, dtype)


def is_dense(x: np.ndarray) -> bool:
    """Whether the elements of an array lie side by side, in C order."""
    return bool(x.flags.c_contiguous)


class Rows:
    """A table of rows that grows until it is sealed."""

    def __init__(self, silent: bool = False) -> None:
        self.silent = silent  # whether nobody is told of errors of floating-point numbers
        self.calls = False
        self.words: list[list[int]] = []
        self.functions: dict[int, Callable[[], None]] = {}  # of the rows that Python runs
        self.divisions: set[int] = set()  # rows with which a group begins
        self.kept: list[Any] = []  # what rows know by address
        self.table = np.zeros(0, np.int64)
        self.memory = np.zeros(layout.RUN_WORDS, np.int64)
        self.state = self.memory.data

    def __len__(self) -> int:
        return len(self.words)

    def divide(self) -> None:
        """Let the next row begin a group."""
        self.divisions.add(len(self.words))

    def nothing(self) -> None:
        """Add a row that does nothing."""
        self._add(layout.BY_LOOP, 0, 0, 0, [])

    def python(self, function: Callable[[], None]) -> None:
        """Add a call of a function that only Python can make."""
        self.functions[len(self.words)], self.calls = function, True
        self._add(layout.BY_PYTHON, 0, 0, 0, [])

    def call(self, function: Any, args: Sequence[Any]) -> None:
        """Add a call of a function of these objects; what it gives is dropped."""
        self.kept.append((function, tuple(args)))
        self.calls = True
        self._add(layout.BY_CALL, id(function), 0, 0, [(id(x), 0, 0) for x in args])

    def loop(self, ufunc: np.ufunc, operands: Sequence[Any], out: Any, extent: int = 0) -> bool:
        """Add a ufunc's inner loop over dense arrays, numbers and blocks; False where there is none for them.

        Of numbers and blocks alone, `extent` is how many elements the group has.
        """
        arrays = [x.array if isinstance(x, Block) else x for x in (*operands, out)]
        if not all(isinstance(x, np.ndarray) for x in arrays):
            return False
        kind = arrays[-1].dtype
        if kind.char not in "df" or any(x.dtype != kind for x in arrays):
            return False
        found = _inner_loop(ufunc, kind.char)
        extent = extent or _extent((*operands, out))
        places = [_place(x, extent) for x in (*operands, out)]
        if 0 in (found[0], extent) or None in places or 0 in forward.error_test():
            return False
        self.kept.append((ufunc, arrays))
        self._add(layout.BY_LOOP, *found, extent, places)
        return True

    def kernel(self, at: Address, operands: Sequence[Any], extent: int) -> None:
        """Add a kernel of a rule: its result, its cotangent, what it reads, all dense or blocks."""
        self.kept.append(operands)
        self._add(layout.BY_KERNEL, at, 0, extent, [_place(x, extent) for x in operands])

    def _add(self, kind: int, function: int, data: int, extent: int, operands: Sequence[Any]) -> None:
        row = [0] * layout.PROGRAM_ROW
        row[layout.ROW_KIND], row[layout.ROW_FUNCTION], row[layout.ROW_DATA] = kind, function, data
        row[layout.ROW_EXTENT], row[layout.ROW_COUNT] = extent, len(operands)
        for q, (place, step, stride) in enumerate(operands):
            row[layout.ROW_PLACES + q], row[layout.ROW_STEPS + q] = place, step
            row[layout.ROW_STRIDES + q] = stride
        self.words.append(row)

    def seal(self) -> None:
        """Find the groups, and let compiled code have the rows."""
        group = len(self.words)
        for k in range(len(self.words) - 1, -1, -1):
            row = self.words[k]
            if k + 1 == len(self.words) or k + 1 in self.divisions or not _together(row, self.words[k + 1]):
                group = k + 1
            row[layout.ROW_GROUP] = group
        self.table = np.array(self.words, np.int64).reshape(-1)
        self.state[layout.PROGRAM_ROWS] = abi.address(self.table) if self.words else 0
        for word, name in (
            (layout.CALL_FUNCTION, "PyObject_Vectorcall"),
            (layout.DROP_REFERENCE, "Py_DecRef"),
            (layout.CLEAR_ERROR, "PyErr_Clear"),
        ):
            function = getattr(ctypes.pythonapi, name)
            self.state[word] = ctypes.cast(function, ctypes.c_void_p).value or 0
        self.state[layout.TEST_FLAGS], self.state[layout.ALL_FLAGS] = forward.error_test()
        self.state[layout.CLEAR_FLAGS] = forward.clear_errors()
        self.at, self.serve = abi.address(self.memory), programs.load()

    def run(self, begin: int, end: int) -> None:
        """Run rows from `begin` to before `end`."""
        while begin < end:
            begin = self.serve(layout.RUN_ROWS, self.at, begin, end)
            if begin < end:
                begin = self.step(begin)

    def step(self, k: int) -> int:
        """Do what Python has to do at a row; the number of the next one."""
        function = self.functions.get(k) or functools.partial(self._again, k)
        if self.silent:
            with np.errstate(all="ignore"):
                function()
        else:
            function()
        return k + 1

    def _again(self, k: int) -> None:
        """Make a call that has raised an error once more, for the error."""
        row = self.words[k]
        for function, args in (x for x in self.kept if isinstance(x, tuple)):
            if (
                id(function) == row[layout.ROW_FUNCTION]
                and [id(x) for x in args] == row[layout.ROW_PLACES : layout.ROW_PLACES + len(args)]
            ):
                function(*args)


@functools.cache
def _inner_loop(ufunc: np.ufunc, char: str) -> tuple[Address, Address]:
    return (0, 0) if ufunc.signature else abi.inner_loop(ufunc, char)


def _together(row: list[int], following: list[int]) -> bool:
    """Whether two rows belong to one group."""
    stops = (layout.BY_CALL, layout.BY_PYTHON)
    kinds = row[layout.ROW_KIND], following[layout.ROW_KIND]
    return (
        kinds[0] not in stops
        and kinds[1] not in stops
        and row[layout.ROW_EXTENT] == following[layout.ROW_EXTENT]
    )


def _extent(operands: Sequence[Any]) -> int:
    """How many elements the operands have, numbers aside."""
    sizes = [x.size for x in operands if not isinstance(x, Block) and x.ndim]
    return max(sizes, default=1)


def _place(x: Any, extent: int) -> tuple[int, int, int] | None:
    """Where an operand is, by how many bytes it advances for an element, and the stride of a loop."""
    if isinstance(x, Block):
        return abi.address(x.array), 0, x.array.itemsize
    if x.ndim == 0:
        return abi.address(x), 0, 0
    if x.size != extent or not is_dense(x):
        return None
    return abi.address(x), x.itemsize, x.itemsize
