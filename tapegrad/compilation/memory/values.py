"""Buffers for what the operations of a program give: arrays, or of long programs places in memory.

An array of NumPy's takes some 130 bytes besides its elements, and a long program has hundreds of thousands.
So small ones lie side by side in sheets there, and are arrays while they are asked for.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from tapegrad.compilation.memory.pages import Pages, empty_like, give_back, shared_pages
from tapegrad.kernels import abi

SHEET_BITS, PLACE_BITS = 20, 43  # of a place within a sheet, and of one in all of them
SHEET = 1 << SHEET_BITS  # bytes
WITHIN, SHEETS = SHEET - 1, (1 << PLACE_BITS - SHEET_BITS) - 1  # masks
PACKED = 1 << 12  # bytes of an array that has its place in a sheet, at most
SIDE_BY_SIDE = 64  # doubles of which each has a buffer
LINE = 64  # bytes of the processor's cache that are read at once


NUMBERS = np.number, np.bool_, float
GONE: Any = object()  # instead of an array that is kept no more
Form = tuple[tuple[int, ...], np.dtype]  # shape and dtype


class Values(list[Any]):
    """Arrays, one for each number."""

    pages: Pages | None = None

    def __init__(self) -> None:
        self._doubles: list[np.ndarray] = []  # buffers of `beside` that are not in use yet

    def keep(self, x: Any) -> Any:
        """Have this at the next number, as it is."""
        self.append(x)
        return x

    def await_like(self, x: Any) -> None:
        """Have this at the next number, or room for another one like it."""
        self.append(x)

    def beside(self, x: np.ndarray) -> np.ndarray:
        """A buffer at the next number, with this in it: of a double beside those of the doubles before."""
        if x.ndim or x.dtype.char != "d":
            return self.keep(x)  # type: ignore[no-any-return]
        if not self._doubles:
            row = np.zeros(SIDE_BY_SIDE)
            self._doubles = [np.ndarray((), float, row, 8 * k) for k in range(SIDE_BY_SIDE)[::-1]]
        out: np.ndarray = self.keep(self._doubles.pop())
        out[...] = x
        return out

    def room(self, k: int, like: np.ndarray) -> np.ndarray:
        """A buffer of this shape and dtype for number k."""
        self.pages = self.pages or Pages()
        self[k] = self.pages.empty_like(like)
        return self[k]  # type: ignore[no-any-return]

    def share(self, k: int, other: Values | Packed) -> None:
        """Have at a number what another one has there."""
        self[k] = other.seen(k)

    def seen(self, k: int) -> np.ndarray:
        """The array of a number, as somebody may have it who keeps it."""
        return self[k]  # type: ignore[no-any-return]

    def is_packed(self, k: int) -> bool:
        """Whether the array of a number has its place in a sheet."""
        return False

    def is_shared(self, k: int, other: Values | Packed) -> bool:
        """Whether another one has the same buffer for a number."""
        return self[k] is other[k] if type(other) is Values else other.is_shared(k, self)

    def alone(self, end: int | None = None) -> Iterable[np.ndarray]:
        """Arrays that are in no sheet, of the numbers before one."""
        return self[:end]

    def kinds(self) -> set[str]:
        """Characters of their dtypes."""
        return {x.dtype.char for x in self}

    def nbytes(self) -> int:
        """How many bytes the arrays have, views aside."""
        return sum(x.nbytes for x in self if abi.owner_of(x) is x)

    def trim(self) -> None:
        """Keep no memory in which no array lies."""

    def give_back(self) -> None:
        """Give back the pages of sheets, which are zeros then."""


class Sheet:
    """Memory of small arrays; `seen` are those that others than a program may know, by place."""

    def __init__(self) -> None:
        self.memory = shared_pages(SHEET)
        self.at = abi.address(np.frombuffer(self.memory, np.uint8))
        self.seen: WeakValueDictionary[int, np.ndarray] | None = None


class Packed:
    """As `Values`, of long programs: arrays that exist while somebody has them.

    So nothing may know them by their ids. For each number there is a word: a form and a place; or from -1 on
    downwards which of the arrays it is that are kept as they are, such as views.
    """

    def __init__(self) -> None:
        self._words = array("q")
        self._arrays: list[Any] = []  # that are kept as they are, or GONE
        self._forms: list[Form] = []
        self._known: dict[Form, int] = {}  # their numbers
        self._sheets: list[Sheet | None] = []
        self._numbers: dict[int, int] = {}  # of these, by ids
        self._free, self._end = 0, 0  # from which place on there is room, and up to which
        self._shift = 0  # where the latest sheet begins in a line
        self._latest: tuple[int, Any] = -1, None  # the array that was asked for
        self._awaited: tuple[Any, int, int, int] = GONE, 0, 0, 0  # what is; its form, alignment and bytes

    def __len__(self) -> int:
        return len(self._words)

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, k: int) -> Any:
        latest, found = self._latest
        if latest == k:
            return found
        word = self._words[k]
        if word < 0:
            return self._arrays[~word]
        sheet: Any = self._sheets[word >> SHEET_BITS & SHEETS]
        if sheet.seen is not None and (found := sheet.seen.get(word & WITHIN)) is not None:
            return found
        shape, dtype = self._forms[word >> PLACE_BITS]
        found = np.ndarray(shape, dtype, sheet.memory, word & WITHIN)
        self._latest = k, found
        return found

    def __setitem__(self, k: int, x: Any) -> None:
        if self._latest[0] == k and self._latest[1] is x:
            return
        word = self._words[k]
        if word >= 0 and type(x) is np.ndarray:
            _, sheet, at = self._place(word)
            memory: Any = sheet.memory
            if x.base is memory and abi.address(x) == sheet.at + at:
                return  # as it is there
        self._latest = -1, None
        if word < 0:
            self._arrays[~word] = x
        else:
            self._words[k] = ~len(self._arrays)
            self._arrays.append(x)

    def __copy__(self) -> Packed:
        """The same arrays; those that are added have their places elsewhere."""
        out = Packed()
        for name, value in vars(self).items():
            setattr(
                out,
                name,
                value if type(value) in (int, tuple) else value[:] if type(value) is array else value.copy(),
            )
        out._end = 0
        return out

    def append(self, x: Any) -> None:
        """Have an array or number, if it can be packed a copy."""
        if isinstance(x, NUMBERS):
            x = np.asarray(x)
        k = len(self._words)
        self.keep(x)
        if type(x) is np.ndarray and is_packable(x):
            self._find_room(k, x)
            _, sheet, at = self._place(self._words[k])
            sheet.memory[at : at + x.nbytes] = x.tobytes()

    def await_like(self, x: Any) -> None:
        """As of `Values`."""
        like, form, alignment, size = self._awaited
        if x is like:
            self._words.append(form | self._next_place(alignment, size))
            return
        k = len(self._words)
        self.keep(x)
        if type(x) is np.ndarray and is_packable(x):
            self._find_room(k, x)
            self._awaited = x, self._words[k] >> PLACE_BITS << PLACE_BITS, x.dtype.alignment, x.nbytes

    def keep(self, x: Any) -> Any:
        """As of `Values`."""
        self._words.append(~len(self._arrays))
        self._arrays.append(x)
        return x

    def beside(self, x: np.ndarray) -> np.ndarray:
        """As of `Values`."""
        if x.ndim or x.dtype.char != "d":
            return self.keep(x)  # type: ignore[no-any-return]
        self.append(x)
        return self[len(self) - 1]  # type: ignore[no-any-return]

    def room(self, k: int, like: np.ndarray) -> np.ndarray:
        """As of `Values`."""
        if like.flags.c_contiguous and _is_small(like):
            self._find_room(k, like)
        else:
            self[k] = empty_like(like)
        return self[k]  # type: ignore[no-any-return]

    def share(self, k: int, other: Values | Packed) -> None:
        """As of `Values`."""
        if type(other) is not Packed or other._words[k] < 0:
            self[k] = other[k]
            return
        form, sheet, at = other._place(other._words[k])
        number = self._numbers.get(id(sheet))
        self._put(k, form, SHEET * (self._know(sheet) if number is None else number) + at)

    def seen(self, k: int) -> np.ndarray:
        """As of `Values`: the same while somebody has it, and no other array is of the same one."""
        word = self._words[k]
        if word < 0:
            return self._arrays[~word]  # type: ignore[no-any-return]
        (shape, dtype), sheet, at = self._place(word)
        if sheet.seen is None:
            sheet.seen = WeakValueDictionary()
        found = sheet.seen.get(at)
        if found is None:
            found = np.frombuffer(sheet.memory, dtype, math.prod(shape), at).reshape(shape)
            self._latest = -1, None
            sheet.seen[at] = found
        return found

    def is_packed(self, k: int) -> bool:
        """As of `Values`."""
        return self._words[k] >= 0

    def is_shared(self, k: int, other: Values | Packed) -> bool:
        """As of `Values`."""
        if not self.is_packed(k) or (type(other) is Packed and not other.is_packed(k)):
            return self[k] is other[k]
        return abi.address(self[k]) == abi.address(other[k])

    def has(self, x: Any) -> bool:
        """Whether this is an array in one of its sheets."""
        base = x.base if type(x) is np.ndarray else None
        return base is not None and any(sheet is not None and sheet.memory is base for sheet in self._sheets)

    def places(self) -> tuple[list[Form], np.ndarray, np.ndarray]:
        """Shapes and dtypes, which of these each number has, and where it is; -1 for what is in no sheet."""
        words, none = np.array(self._words, np.int64), -1
        begins = np.array([none, *(none if sheet is None else sheet.at for sheet in self._sheets)], np.int64)
        inside = words >= 0
        at = begins[np.where(inside, 1 + (words >> SHEET_BITS & SHEETS), 0)] + (words & WITHIN)
        return self._forms, np.where(inside, words >> PLACE_BITS, none), at

    def alone(self, end: int | None = None) -> Iterable[np.ndarray]:
        """As of `Values`."""
        words = np.array(self._words[:end], np.int64)
        return [self._arrays[k] for k in (~words[words < 0]).tolist()]

    def kinds(self) -> set[str]:
        """As of `Values`."""
        return {dtype.char for _, dtype in self._forms} | {x.dtype.char for x in self.alone()}

    def nbytes(self) -> int:
        """As of `Values`."""
        places = np.array(self._words)
        counts: list[int] = np.bincount(
            places[places >= 0] >> PLACE_BITS, minlength=len(self._forms)
        ).tolist()
        sizes: list[int] = [math.prod(shape) * dtype.itemsize for shape, dtype in self._forms]
        alone: int = sum(x.nbytes for x in self.alone() if abi.owner_of(x) is x)
        return alone + sum(n * size for n, size in zip(counts, sizes, strict=True))

    def trim(self) -> None:
        """As of `Values`."""
        words = np.array(self._words)
        used = set(np.unique(words[words >= 0] >> SHEET_BITS & SHEETS).tolist())
        self._words = self._words[:]  # without room for more
        for n, sheet in enumerate(self._sheets):
            if n not in used:
                self._numbers.pop(id(sheet), None)
                self._sheets[n] = None
        self._end, self._awaited = 0, (GONE, 0, 0, 0)

    def give_back(self) -> None:
        """As of `Values`."""
        for sheet in filter(None, self._sheets):
            give_back(np.frombuffer(sheet.memory, np.uint8))

    def _find_room(self, k: int, like: np.ndarray) -> None:
        """Let number k be at the next place for such an array."""
        place = self._next_place(like.dtype.alignment, like.nbytes)
        self._put(k, (like.shape, like.dtype), place)

    def _next_place(self, alignment: int, size: int) -> int:
        """The next place of so many bytes that are aligned, in as few lines as can be."""
        at = self._free
        at += -at % alignment
        within = (self._shift + at) % LINE
        if within + size > size + -size % LINE:
            at += LINE - within
        if at + size > self._end:
            sheet = Sheet()
            at, self._shift = SHEET * self._know(sheet), sheet.at % LINE
            self._end = at + SHEET
            at += -self._shift % LINE
        self._free = at + size
        return at

    def _place(self, word: int) -> tuple[Form, Sheet, int]:
        """The form, sheet and place there that a word tells."""
        sheet = self._sheets[word >> SHEET_BITS & SHEETS]
        assert sheet is not None
        return self._forms[word >> PLACE_BITS], sheet, word & WITHIN

    def _put(self, k: int, form: Form, place: int) -> None:
        """Let number k be an array of a form at a place."""
        number = self._known.setdefault(form, len(self._forms))
        if number == len(self._forms):
            self._forms.append(form)
        before, self._words[k] = self._words[k], number << PLACE_BITS | place
        if before < 0:
            self._arrays[~before] = GONE
            if ~before == len(self._arrays) - 1:
                self._arrays.pop()
        self._latest = -1, None

    def _know(self, sheet: Sheet) -> int:
        """The number of another sheet."""
        self._numbers[id(sheet)] = len(self._sheets)
        self._sheets.append(sheet)
        return len(self._sheets) - 1


def is_packable(x: np.ndarray) -> bool:
    """Whether an array is packed: a small one of numbers, which lie in its own memory as in a sheet."""
    return x.flags.carray and x.flags.owndata and _is_small(x)


def _is_small(x: np.ndarray) -> bool:
    return 0 < x.nbytes <= PACKED and x.dtype.kind in "biufc"
