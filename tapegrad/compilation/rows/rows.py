"""Rows: what compiled code runs, one after the other, to compute a program (`kernels.replay.programs`)."""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.compilation.memory.arena import Arena
from tapegrad.compilation.rows.loops import (
    BUFFERED,
    INITIAL,
    NOWHERE,
    clears_errors,
    first_of,
    inner_loop,
    signature,
)
from tapegrad.compilation.rows.steps import NOTHING, Step, Steps
from tapegrad.compilation.rows.table import CALLS, Block, Table, silently
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address
from tapegrad.ops import forward
from tapegrad.ops.rules import Partial

Place = tuple[Address, int, int]  # of an operand: where it is, how it advances, the stride of a loop
OFTEN = 32  # products of each element of a cotangent from which on subnormal numbers are looked for


def is_dense(x: np.ndarray) -> bool:
    """Whether the elements of an array lie side by side, in C order."""
    return bool(x.flags.c_contiguous)


def step_of(x: np.ndarray) -> int:
    """By how many bytes the elements of an array lie apart, in C order, alike for all; else 0."""
    if is_dense(x):
        return x.itemsize
    longer = [(n, s) for n, s in zip(x.shape, x.strides, strict=True) if n > 1]
    step = expected = longer[-1][1]
    for n, s in longer[::-1]:
        if s != expected:
            return 0
        expected *= n
    return max(step, 0)


class Kernel(NamedTuple):
    """A kernel of a rule: its text, names of what it reads, whether it gives a product with the cotangent.

    `partial` is the text that kernels are emitted from, `recorded` the one in which steps are calls.
    """

    partial: Partial
    recorded: Partial
    names: tuple[str, ...]
    cotangent: bool
    address: Address


class Rows(Table):
    """Rows by what they do to operands."""

    def __init__(self, silent: bool = False) -> None:
        super().__init__(silent)
        self._known: dict[Any, tuple[Address, int]] = {}  # forms of loops and kernels, by how operands look
        self._numbers: dict[tuple[str, bytes], np.ndarray] = {}
        self.tables: dict[int, np.ndarray] = {}  # of the rows that are fused kernels

    def nothing(self) -> None:
        """Add a row that does nothing."""
        self._add(NOTHING, 0, 0, [])

    def python(
        self, function: Callable[[], None], reads: Sequence[Any], writes: Sequence[np.ndarray]
    ) -> None:
        """Add a call of a function that only Python can make, and say which arrays it reads and writes."""
        self.functions[len(self)], self.calls = function, True
        arrays = tuple(x for x in reads if isinstance(x, np.ndarray))
        self._add(Step(layout.BY_PYTHON, function, arrays, tuple(writes)), 0, 0, [])

    def call(
        self, function: Any, args: Sequence[Any], out: np.ndarray | None = None, anew: bool = True
    ) -> None:
        """Add a call of a function of these objects, which writes all elements of `out` `anew`, or some.

        Where that is left out, it is the array that it has by a name, else the last one.
        """
        if function is np.matmul and self.product(*args):
            return
        self.kept.append((function, tuple(args)))
        self.calls = True
        arrays = [x for arg in args for x in (arg if isinstance(arg, tuple) else (arg,))]
        arrays = [x for x in (getattr(function, "__self__", None), *arrays) if isinstance(x, np.ndarray)]
        if isinstance(function, functools.partial):
            arrays.append(function.keywords["out"])
        if out is None:
            out = arrays.pop()
        elif anew:
            arrays = [x for x in arrays if x is not out]
        step = Step(layout.BY_CALL, (function, tuple(args)), tuple(arrays), (out,))
        self._add(step, id(function), 0, [(id(x), 0, 0) for x in args])

    def describe_call(self, function: Any, args: Sequence[Any]) -> None:
        """Say that the latest call gives what another one does, as which a plan is to see it."""
        self.kept.append((function, tuple(args)))
        self.steps.replace(function=(function, tuple(args)))

    def fold(self, first: int, kept: int) -> None:
        """Let all rows from a number on be one, by what is kept from a number on; none is Python's."""
        if len(self) - first < 2:
            return
        inner, at = Rows(), self.starts[first]
        inner.words, inner.kept = self.words[at:], self.kept[kept:]
        inner.forms, inner._forms, inner._known = self.forms, self._forms, self._known
        inner.starts = array("i", (start - at for start in self.starts[first:]))
        inner.steps = Steps(self.steps.cut(first))
        del self.words[at:], self.starts[first:]
        inner.seal()
        reads = tuple(x for step in inner.steps for x in step.reads)
        writes = tuple(x for step in inner.steps for x in step.writes)
        self._add(Step(layout.BY_ROWS, inner, reads, writes), abi.address(inner.memory), len(inner), [])

    def product(
        self, a: np.ndarray, b: np.ndarray, out: np.ndarray, cotangent: np.ndarray | None = None
    ) -> bool:
        """Add a product of vectors, matrices or stacks of one dtype, by the loop of `np.matmul`.

        An operand that is said to be a cotangent of the program's own may be scaled (`subnormals`).
        """
        arrays, char = (a, b, out), out.dtype.char
        if char not in "df" or any(x.dtype.char != char or not (x.size and x.flags.aligned) for x in arrays):
            return False
        if not _are_multiplied(a, b) or any(np.may_share_memory(x, out) for x in (a, b)):
            return False
        found = abi.product_loop(char)
        if found[0] == 0 or 0 in forward.error_test():
            return False
        places = [(abi.address(x), 0, 0) for x in arrays]
        step, steps = Step(layout.BY_PRODUCT, np.matmul, (a, b), (out,)), abi.product_words(a, b, out)
        self._add(step, *found, places, more=(0, 0, 0, *steps))
        if cotangent is not None and _is_scaled(a, b, out, cotangent):
            self.write(layout.SCALED_OPERAND, int(cotangent is b), math.prod(cotangent.shape[-2:]))
        return True

    def reduce(self, ufunc: np.ufunc, x: np.ndarray, out: np.ndarray, is_mean: bool = False) -> bool:
        """Add a reduction of all elements of an array, or their mean, by a ufunc's loop."""
        char = out.dtype.char
        if x.dtype.char != char or char not in "df" or out.size != 1 or x.size < 2 or not is_dense(x):
            return False
        begin, (loop, data) = first_of(ufunc, char, x.size > BUFFERED), inner_loop(ufunc, char)
        if begin == NOWHERE or 0 in (loop, *forward.error_test()):
            return False
        divisor = self.number(x.size, out.dtype) if is_mean else None
        if begin is None:
            places = [(abi.address(x), 0, 0), (abi.address(x) + x.itemsize, 0, x.itemsize)]
        else:
            places = [(abi.address(self.number(begin, out.dtype)), 0, 0), (abi.address(x), 0, x.itemsize)]
        places.append((abi.address(out), 0, 0))
        if divisor is not None:
            places.append((abi.address(divisor), 0, 0))
        step = Step(layout.BY_REDUCTION, (ufunc, divisor), (x,), (out,), x.size - (begin is None))
        of, none = (ufunc, char * len(places)), [] if is_mean else [0]
        self._add(step, loop, data, places, clears_errors(ufunc, char), more=none, of=of)
        return True

    def sums(self, x: np.ndarray, axis: tuple[int, ...], out: np.ndarray) -> bool:
        """Add sums along the last axis where that is short, so that NumPy's loops would be many."""
        n, char = (x.shape[-1] if x.ndim else 0), x.dtype.char
        if axis != (x.ndim - 1,) or not 0 < n <= layout.PROGRAM_BLOCK or (char, out.dtype.char) != ("d", "d"):
            return False
        if not (is_dense(x) and is_dense(out)) or 0 in forward.error_test() or not sums_short_rows(n):
            return False
        places = [(abi.address(place), 0, 0) for place in (self.keep(INITIAL), x, out)]
        self._add(Step(layout.BY_SUMS, np.add, (x,), (out,), out.size), 0, n, places)
        return True

    def loop(
        self, ufunc: np.ufunc, operands: Sequence[np.ndarray | Block], out: Any, extent: int = 0
    ) -> bool:
        """Add a ufunc's inner loop over dense arrays, numbers and blocks; False where there is none for them.

        Of numbers and blocks alone, `extent` is how many elements the group has.
        """
        all_of_it = (*operands, out)
        looks, arrays = _looks(all_of_it)
        if not all(isinstance(x, np.ndarray) for x in arrays):
            return False
        key = ufunc, extent, *looks
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._loop_form(ufunc, all_of_it, arrays, extent)
        form, extent = known
        if form:
            self._append(Step(layout.BY_LOOP, ufunc, all_of_it[:-1], (out,), extent), form, arrays)
        return form != 0

    def _loop_form(
        self,
        ufunc: np.ufunc,
        operands: Sequence[np.ndarray | Block],
        arrays: Sequence[np.ndarray],
        extent: int,
    ) -> tuple[Address, int]:
        """The form of a loop over such operands, 0 where there is none, and how many elements a group has."""
        kinds = signature([x.dtype.char for x in arrays])
        if not kinds:
            return 0, 0
        found, extent = inner_loop(ufunc, kinds), extent or _extent(operands)
        places = [_place(x, extent) for x in operands]
        if 0 in (found[0], extent) or None in places or 0 in forward.error_test():
            return 0, 0
        chars = "".join(x.dtype.char for x in arrays)
        form = self._form_of(
            layout.BY_LOOP, *found, extent, places, clears_errors(ufunc, kinds), of=(ufunc, chars)
        )
        return form, extent

    def convert(self, x: np.ndarray, out: np.ndarray) -> None:
        """Add what writes truth values or integers as floating-point numbers."""
        self.call(np.add, [x, self.keep(np.zeros((), out.dtype)), out])

    def kernel(self, kernel: Kernel, out: Any, reads: Sequence[Any], extent: int) -> None:
        """Add a kernel of a rule: what it gives and what it reads, all dense or blocks."""
        operands = (out, *reads)
        looks, arrays = _looks(operands)
        key = kernel.address, extent, *looks
        known = self._known.get(key)
        if known is None:
            places = [_place(x, extent) for x in operands]
            chars = "".join(x.dtype.char for x in arrays)
            form = self._form_of(layout.BY_KERNEL, kernel.address, 0, extent, places, of=(kernel, chars))
            known = self._known[key] = form, extent
        step = Step(layout.BY_KERNEL, kernel, tuple(reads), (out,), extent)
        self._append(step, known[0], arrays)

    def repeat(self, rows: Rows, k: int, silent: bool) -> None:
        """Add a row of other rows; if `silent`, nobody is told of errors in what Python runs."""
        function = rows.functions.get(k)
        if function is not None:
            function = silently(function) if silent else function
            self.functions[len(self)] = function
        self.calls = self.calls or rows.steps[k].kind in CALLS
        end = rows.starts[k + 1] if k + 1 < len(rows) else len(rows.words)
        self.starts.append(len(self.words))
        self.words.append(self._form(rows.form(k)))
        self.words += rows.words[rows.starts[k] + 1 : end]
        self.steps.append(rows.steps[k])

    def shorten(self, k: int, extent: int) -> None:
        """Let a row go over fewer elements."""
        form = self.form_at(self.words[self.starts[k]])
        at = layout.FORM_EXTENT
        key = (*form.key[:at], extent, *form.key[at + 1 :])
        self.words[self.starts[k]] = self._form(key, (form.function, form.kinds))

    def number(self, value: Any, dtype: np.dtype) -> np.ndarray:
        """Return a constant, an array for all that read one of these bits."""
        made = np.array(value, dtype)
        return self._numbers.setdefault((dtype.char, made.tobytes()), made)

    def fused(self, at: Address, places: Sequence[tuple[Address, int, int, int]], extent: int) -> None:
        """Add a fused kernel of operands: where they are, and how they advance.

        That is by how many bytes for an element, and besides after how many elements, by how many bytes.
        """
        words = [word for part in zip(*places, strict=True) for word in part] + [0] * len(places)
        table = self.tables[len(self)] = np.array(words, np.int64)
        step, table_at = Step(layout.BY_FUSED, extent=extent), abi.address(table)
        self._add(step, at, 0, [], count=len(places), more=[table_at])

    def loop_at(self, ufunc: np.ufunc, kinds: str, places: Sequence[Place], extent: int) -> None:
        """Add a ufunc's inner loop over operands that are known by their places."""
        found = inner_loop(ufunc, kinds)
        if not found[0]:
            raise ValueError(f"there is no loop of {ufunc.__name__} for {kinds!r}")
        step = Step(layout.BY_LOOP, ufunc, extent=extent)
        self._add(step, *found, places, clears_errors(ufunc, kinds))

    def kernel_at(self, at: Address, places: Sequence[Place], extent: int) -> None:
        """Add a kernel of a rule for operands that are known by their places."""
        self._add(Step(layout.BY_KERNEL, extent=extent), at, 0, places)

    def sums_at(self, x: Place, out: Address, n: int, extent: int) -> None:
        """Add sums of short rows of n elements to a group, see `sums`."""
        places = [(abi.address(self.keep(INITIAL)), 0, 0), x, (out, 0, 0)]
        self._add(Step(layout.BY_GROUP_SUMS, extent=extent), 0, n, places)

    def total(self, places: Sequence[Address], itemsize: int, extent: int) -> None:
        """Add the sum of parts, which lie a byte for each element apart, and of what it begins with.

        It is divided by a fourth operand, if that is somewhere.
        """
        self._add(Step(layout.BY_TOTAL, extent=extent), 0, itemsize, [(at, 0, 0) for at in places])

    def addresses(self) -> Iterator[Address]:
        """Where rows read and write, in arrays that they know."""
        for k, step in enumerate(self.steps):
            count, at = self.form(k)[layout.FORM_COUNT], self.starts[k] + layout.ROW_PLACES
            if k in self.tables:
                yield from self.tables[k][:count].tolist()
            elif step.kind in CALLS:
                yield from (abi.address(x) for x in (*step.reads, *step.writes) if x.size)
            else:
                yield from self.words[at : at + count]

    def places(self) -> Iterator[tuple[Address, Address]]:
        """The words of sealed rows in which addresses are, and these."""
        for k, step in enumerate(self.steps):
            table, first = self.table, self.starts[k] + layout.ROW_PLACES
            if k in self.tables:
                table, first = self.tables[k], 0
            if step.kind != layout.BY_CALL:
                for q in range(first, first + self.form(k)[layout.FORM_COUNT]):
                    yield abi.address(table) + 8 * q, int(table[q])

    def arrays(self) -> Iterator[np.ndarray]:
        """What is known to functions of Python's, not by address."""
        for step in self.steps:
            if step.kind in (layout.BY_CALL, layout.BY_PYTHON, layout.BY_ROWS):
                yield from (*step.reads, *step.writes)

    def move(self, arena: Arena) -> None:
        """Read and write in an arena what has a place there."""
        arena.allocate(self.addresses())
        self.keep(arena)
        for k, step in enumerate(self.steps):
            form, row = self.form(k), self.starts[k]
            count = form[layout.FORM_COUNT]
            first = row + layout.ROW_PLACES
            if k in self.tables:
                self.tables[k][:count] = [arena.place(at) for at in self.tables[k][:count].tolist()]
            elif step.kind == layout.BY_CALL:
                function, args = found = arena.moved(step.function)
                if found is not step.function:
                    self.kept.append(found)
                    self.words[row] = self._form((form[0], id(function), *form[2:]))
                    self.words[first : first + len(args)] = array("q", map(id, args))
            else:
                for q in range(first, first + count):
                    self.words[q] = arena.place(self.words[q])


@functools.cache
def sums_short_rows(n: int) -> bool:
    """Whether sums of rows of so many elements have the bits of NumPy's."""
    x, out = np.random.default_rng(n).normal(size=(9, n)), np.zeros(9)
    x[0] = -0.0
    rows = Rows()
    places = [(abi.address(place), 0, 0) for place in (INITIAL, x, out)]
    rows._add(Step(layout.BY_SUMS, np.add, (x,), (out,), 9), 0, n, places)
    rows.seal()
    rows.run(0, 1)
    return bool(out.tobytes() == np.add.reduce(x, (1,)).tobytes())


def _are_multiplied(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the loop of products takes them at once: vectors, matrices, or stacks of as many matrices."""
    return max(a.ndim, b.ndim) <= 2 or (a.ndim == b.ndim == 3 and a.shape[0] == b.shape[0])


def _is_scaled(a: np.ndarray, b: np.ndarray, out: np.ndarray, ct: np.ndarray) -> bool:
    """Whether it pays to look for subnormal numbers in an operand, and it has memory of its own."""
    other, uses = (a, a.shape[-2] if a.ndim > 1 else 1) if ct is b else (b, b.shape[-1])
    if min(a.ndim, b.ndim) < 2 or uses < OFTEN or not is_dense(out) or np.may_share_memory(ct, other):
        return False
    return is_dense(ct) or is_dense(np.swapaxes(ct, -1, -2))


def _looks(operands: Sequence[np.ndarray | Block]) -> tuple[list[Any], list[Any]]:
    """What tells how operands advance, and the arrays in which they have their elements."""
    looks: list[Any] = []
    arrays: list[Any] = []
    for x in operands:
        if type(x) is Block:
            looks.append(Block)
            x = x.array
        arrays.append(x)
        if isinstance(x, np.ndarray):
            looks += (x.dtype, x.shape, x.strides)
    return looks, arrays


def _extent(operands: Sequence[np.ndarray | Block]) -> int:
    """How many elements the operands have, numbers aside."""
    sizes = [x.size for x in operands if not isinstance(x, Block) and x.ndim]
    return max(sizes, default=1)


def _place(x: Any, extent: int) -> Place | None:
    """Where an operand is, by how many bytes it advances for an element, and the stride of a loop."""
    if isinstance(x, Block):
        return abi.address(x.array), 0, x.array.itemsize
    if x.ndim == 0:
        return abi.address(x), 0, 0
    step = step_of(x) if x.size == extent else 0
    return (abi.address(x), step, step) if step else None
