"""Pages of large arrays that are given back while the arrays stay, as rows know them by address.

Between calls nobody reads what a program has computed, but what users have. Where the system cannot be told
so (it is Linux's ``madvise``) nothing happens.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tapegrad.compilation.rows import Block, Rows, Step
from tapegrad.kernels import abi

LARGE = 1 << 18  # bytes of an array from which on it is given back, and none is kept of a call learned from
DONT_NEED = 4  # MADV_DONTNEED


@functools.cache
def _advise() -> Callable[[int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    function = ctypes.CDLL(None, use_errno=True).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


def give_back(x: np.ndarray) -> None:
    """Give back the pages that lie in an array as a whole: it is zeros there when it is next read."""
    advise = _advise()
    if advise is not None and x.nbytes >= LARGE:
        begin = -(-abi.address(x) // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (abi.address(x) + x.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        advise(begin, end - begin, DONT_NEED)


class Releases:
    """Which large arrays no row reads any more, after each row.

    Attributes
    ----------
    after
        By the number of the row, in order; nothing for most.
    last
        Those that are read in reverse, or by nobody.
    """

    def __init__(
        self, steps: Sequence[Step], arrays: Iterable[np.ndarray], reverse: Sequence[Step] = (),
        kept: Iterable[np.ndarray] = (),
    ) -> None:  # fmt: skip
        safe = {id(abi.owner_of(x)) for x in kept}
        large = {id(x): x for x in map(abi.owner_of, arrays) if x.nbytes >= LARGE and id(x) not in safe}
        read: dict[int, int] = {}
        for k, step in enumerate(steps):
            read.update(
                (id(abi.owner_of(x)), k) for x in (*step.reads, *step.writes) if isinstance(x, np.ndarray)
            )
        late = {id(abi.owner_of(x)) for step in reverse for x in step.reads if not isinstance(x, Block)}
        self.after: dict[int, list[np.ndarray]] = {}
        self.last: list[np.ndarray] = []
        for at, x in large.items():
            if at in late or at not in read:
                self.last.append(x)
            else:
                self.after.setdefault(read[at], []).append(x)

        self.after = dict(sorted(self.after.items()))

    def __bool__(self) -> bool:
        return bool(self.after or self.last)

    def run(self, rows: Rows) -> None:
        """Run rows, of which so many steps are, and give back what is read no more."""
        begin = 0
        for k in self.after:
            rows.run(begin, k + 1)
            begin = k + 1
            self.give_back_after(k)
        rows.run(begin, len(rows))

    def give_back_after(self, k: int) -> None:
        """Give back what is read no more after a row."""
        for x in self.after.get(k, ()):
            give_back(x)

    def end(self) -> None:
        """Give back what is left."""
        for x in self.last:
            give_back(x)
