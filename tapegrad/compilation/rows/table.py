"""Tables of rows: words that compiled code runs, groups of rows, and rows that wait in few bytes."""

from __future__ import annotations

import ctypes
import functools
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tapegrad.compilation.rows.packing import PackedWords, pack, unpack
from tapegrad.compilation.rows.steps import Step, Steps
from tapegrad.kernels import abi, programs
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address
from tapegrad.ops import forward

BLOCK = layout.PROGRAM_BLOCK
LONG = 8192  # elements of all rows: Python's lock is released for them
WAITING = "words", "starts", "table"  # attributes of rows that are not there while words wait
CALLS = layout.BY_CALL, layout.BY_PYTHON  # kinds of rows that call Python
ALONE = layout.BY_TOTAL, layout.BY_REDUCTION, layout.BY_PRODUCT, layout.BY_SUMS, layout.BY_ROWS
STOPS = frozenset((*CALLS, *ALONE))  # all without a group


class Block:
    """Elements that only the rows of a group know, anew for each block of its so many elements."""

    def __init__(
        self, dtype: np.dtype, extent: int, made: Callable[[tuple[int], np.dtype], np.ndarray] = np.zeros
    ) -> None:
        # Of an empty array a row may have a number there.
        self.array = made((min(extent, BLOCK),), dtype) if extent else made((1,), dtype)[:0]


class Form(NamedTuple):
    """What rows have in common that do the same with other operands: words, where these lie, and a key.

    Of loops, kernels and reductions it has the ufunc or `Kernel`, and the operands' dtypes as a row has them.
    """

    words: np.ndarray
    at: Address
    key: tuple[int, ...]
    function: Any = None
    kinds: str = ""


class Table:
    """Rows that grow until they are sealed.

    Then their words may wait, in few bytes, while nobody needs them: they are there again as soon as anybody
    asks for them, or runs rows.
    """

    def __init__(self, silent: bool = False) -> None:
        self.silent = silent  # whether nobody is told of errors of floating-point numbers
        self.calls = False
        self.words, self.starts = array("q"), array("i")  # of all rows, and with which of them each begins
        self._packed: PackedWords | None = None  # the same, once they have waited
        self._returned: Callable[[], None]  # is told that they wait no more
        self.steps = Steps()
        self.forms: dict[tuple[int, ...], Form] = {}
        self._forms: dict[Address, Form] = {}
        self.functions: dict[int, Callable[[], None]] = {}  # of the rows that Python runs
        self.divisions: set[int] = set()  # rows with which a group begins
        self.grouped_count = 0  # of so many rows the groups are known: where these begin
        self._begins, self._sums, self._work = array("q"), set[Address](), 0
        self._blocks: list[tuple[int, int, Address]] = []  # of rows from one to before another
        self.kept: list[Any] = []  # what rows know by address
        self.table = np.zeros(0, np.int64)
        self.memory = np.zeros(layout.RUN_WORDS, np.int64)
        self.state = self.memory.data

    def __len__(self) -> int:
        return len(self.starts)

    def word(self, k: int, which: int) -> int:
        """Return a word of a row."""
        return self.words[self.starts[k] + which]

    def form(self, k: int) -> tuple[int, ...]:
        """Return the words of the form of a row."""
        return self.form_at(self.words[self.starts[k]]).key

    def form_at(self, at: Address) -> Form:
        """Return the form that lies there."""
        return self._forms[at]

    def write(self, which: int, *words: int) -> None:
        """Write words of the latest row, from one on."""
        at = self.starts[-1] + which
        self.words[at : at + len(words)] = array("q", words)

    def divide(self) -> None:
        """Let the next row begin a group."""
        self.divisions.add(len(self))

    def keep(self, x: Any) -> Any:
        """Keep what rows know by address."""
        self.kept.append(x)
        return x

    def in_blocks(self, first: int, ends: Sequence[int]) -> None:
        """Say where blocks of the rows from `first` on begin, and where the last one ends."""
        blocks = self.keep(np.array(ends, np.int64))
        self._blocks.append((first, len(self), abi.address(blocks)))

    def _add(
        self, step: Step, function: int, data: int, operands: Sequence[Any], clears: bool = False,
        count: int | None = None, more: Sequence[int] = (), of: tuple[Any, str] = (None, ""),
    ) -> None:  # fmt: skip
        form = self._form_of(step.kind, function, data, step.extent, operands, clears, count, of)
        self._append(step, form, (), [*(place[0] for place in operands), *more])

    def _append(
        self, step: Step, form: Address, arrays: Iterable[np.ndarray], words: Sequence[int] = ()
    ) -> None:
        """Add a row whose words behind the first ones are the addresses of arrays, or others."""
        self.again(form, [*map(abi.address, arrays), *words], step)

    def again(self, form: Address, words: list[int], step: Step) -> None:
        """Add a row of a form that another one has, with words of its own."""
        self.starts.append(len(self.words))
        self.words.append(form)
        self.words.fromlist(words)
        self.steps.append(step)

    def _form_of(
        self, kind: int, function: int, data: int, extent: int, operands: Sequence[Any],
        clears: bool = False, count: int | None = None, of: tuple[Any, str] = (None, ""),
    ) -> Address:  # fmt: skip
        """Where the form of rows lies that have operands in such places, or so many elsewhere."""
        _, advances, strides = zip(*operands, strict=True) if operands else ((), (), ())
        count = len(operands) if count is None else count
        return self._form((kind, function, data, extent, count, clears, *advances, *strides), of)

    def _form(self, key: tuple[int, ...], of: tuple[Any, str] = (None, "")) -> Address:
        """Where a form lies."""
        found = self.forms.get(key)
        if found is None:
            words = np.array(key, np.int64)
            found = self.forms[key] = Form(words, abi.address(words), key, *of)
            self._forms[found.at] = found
        return found.at

    def seal(self) -> None:
        """Find the groups, and let compiled code have the rows."""
        if self.words:
            self.words, self.starts = self.words[:], self.starts[:]  # without room for more
            self._know_words()
            self.find_groups()
            groups = np.zeros((len(self._begins), layout.GROUP_WORDS), np.int64)
            groups[:, layout.GROUP_END] = self.group_ends()
            for first, end, blocks in self._blocks:
                groups[
                    bisect_left(self._begins, first) : bisect_left(self._begins, end), layout.GROUP_BLOCKS
                ] = blocks
            self.state[layout.GROUPS], self.state[layout.GROUP_COUNT] = (
                abi.address(self.keep(groups)),
                len(groups),
            )
        for word, function in _of_python():
            self.state[word] = function
        self.state[layout.TEST_FLAGS], self.state[layout.ALL_FLAGS] = forward.error_test()
        self.state[layout.CLEAR_FLAGS] = forward.clear_errors()
        self.state[layout.FIRST_ROW], self.state[layout.END_ROW] = 0, len(self)
        self.state[layout.RUNS_LONG] = self._work >= LONG
        self.state[layout.NO_AND_YES], self.state[layout.NO_AND_YES + 1] = id(False), id(True)
        self.at, self.serve = abi.address(self.memory), programs.load()

    def _know_words(self) -> None:
        """Let compiled code have the words."""
        self.table = np.frombuffer(self.words, np.int64)
        self.state[layout.ROW_STARTS] = abi.address(np.frombuffer(self.starts, np.int32))
        self.state[layout.PROGRAM_ROWS] = abi.address(self.table)

    @property
    def are_waiting(self) -> bool:
        """Whether words wait."""
        return self._packed is not None and self.state[layout.PROGRAM_ROWS] == 0

    def wait(self, returned: Callable[[], None]) -> None:
        """Let the words wait; a function is told when they do no more."""
        if self._packed is None:
            self._packed = pack(self.words, self.starts)
        self._returned = returned
        self.state[layout.PROGRAM_ROWS] = 0  # compiled code comes to no row
        for name in WAITING:
            vars(self).pop(name, None)

    def _return(self) -> None:
        """Have the words again."""
        assert self._packed is not None
        self._returned()
        self.words, self.starts = unpack(self._packed)
        self._know_words()

    if not TYPE_CHECKING:  # which would know any attribute

        def __getattr__(self, name):
            if name not in WAITING or vars(self).get("_packed") is None:
                raise AttributeError(f"rows have no attribute {name!r}", name=name, obj=self)
            self._return()
            return vars(self)[name]

    def find_groups(self) -> None:
        """Find with which rows groups begin, of those that are there; their steps are not asked again.

        A number that the rows of a group sum to is known when all blocks are; so what reads it comes behind.
        """
        sums, grouped, extent = self._sums, False, 0
        if self.grouped_count:
            grouped, extent = self._grouped(self.grouped_count - 1)
        forms, words, starts = self._forms, self.words, self.starts
        for k, step in enumerate(self.steps.latest(self.grouped_count), self.grouped_count):
            before = grouped, extent
            grouped, extent = step.kind not in STOPS, forms[words[starts[k]]].key[layout.FORM_EXTENT]
            self._work += step.extent or sum(x.size for x in step.writes if not isinstance(x, Block))
            out = step.writes[0] if step.extent > 1 and step.writes else None
            summed = abi.address(out) if isinstance(out, np.ndarray) and out.ndim == 0 else None
            together = grouped and (grouped, extent) == before and k not in self.divisions
            if not together or (sums and _reads(step, sums - {summed})):
                self._begins.append(k)
                sums.clear()
            if summed is not None:
                sums.add(summed)
        self.grouped_count = len(self)

    def group_ends(self) -> list[int]:
        """Return the rows behind the groups, in order."""
        return [*self._begins[1:], len(self)]

    def begins_group(self, k: int) -> bool:
        """Whether a group begins with a row."""
        place = bisect_left(self._begins, k)
        return place < len(self._begins) and self._begins[place] == k

    def _grouped(self, k: int) -> tuple[bool, int]:
        """Whether a row may be in a group, and over how many elements."""
        return self.steps[k].kind not in STOPS, self.form(k)[layout.FORM_EXTENT]

    def run(self, begin: int, end: int) -> None:
        """Run rows from `begin` to before `end`.

        In those that are silent no call raises an error, as one that adds in place cannot be made once more.
        """
        before = forward.error_mode.set(forward.silent()) if self.silent and self.calls else None
        try:
            while begin < end:
                begin = self.serve(layout.RUN_ROWS, self.at, begin, end)
                if begin < end:
                    begin = self.step(begin)
        finally:
            if before is not None:
                forward.error_mode.reset(before)

    def step(self, k: int) -> int:
        """Do what Python has to do at a row; the number of the next one to be run."""
        if self.are_waiting:
            self._return()
            return k
        function = self.functions.get(k) or functools.partial(self._again, k)
        if self.silent:
            function = silently(function)
        function()
        return k + 1

    def _again(self, k: int) -> None:
        """Make a call that has raised an error once more, for the error."""
        if self.steps[k].kind == layout.BY_ROWS:
            inner = self.steps[k].function
            inner.run(0, len(inner))
            inner.state[layout.ERRORS_MET] = 0
            return
        first = self.starts[k] + layout.ROW_PLACES
        for function, args in (x for x in self.kept if isinstance(x, tuple)):
            if (
                id(function) == self.form(k)[layout.FORM_FUNCTION]
                and array("q", map(id, args)) == self.words[first : first + len(args)]
            ):
                function(*args)


def silently(function: Callable[[], None]) -> Callable[[], None]:
    """A function that tells nobody of errors of floating-point numbers."""

    def run() -> None:
        before = forward.error_mode.set(forward.silent())
        try:
            function()
        finally:
            forward.error_mode.reset(before)

    return run


@functools.cache
def _of_python() -> list[tuple[int, Address]]:
    """Where functions of Python's are that compiled code calls, by the words that say so."""
    found = []
    for word, name in (
        (layout.CALL_FUNCTION, "PyObject_Vectorcall"),
        (layout.ADD_REFERENCE, "Py_IncRef"),
        (layout.DROP_REFERENCE, "Py_DecRef"),
        (layout.CLEAR_ERROR, "PyErr_Clear"),
        (layout.RELEASE_LOCK, "PyEval_SaveThread"),
        (layout.TAKE_LOCK, "PyEval_RestoreThread"),
    ):
        function = getattr(ctypes.pythonapi, name)
        found.append((word, ctypes.cast(function, ctypes.c_void_p).value or 0))
    return found


def _reads(step: Step, numbers: Collection[Address]) -> bool:
    """Whether a step reads one of these numbers."""
    return any(isinstance(x, np.ndarray) and x.ndim == 0 and abi.address(x) in numbers for x in step.reads)
