"""Large matrices that are not copied, but read in place, as they are gone with the call that makes them.

The product that takes one is computed at once, as recording does, so that nothing but a derivative reads it
later; that is refused, as recording's is, if somebody has written to the matrix in between.
"""

from __future__ import annotations

import numpy as np

from tapegrad.compilation.events.events import LIVE, Event
from tapegrad.compilation.memory.pages import empty_like, give_back
from tapegrad.compilation.rows.computing import MATMUL
from tapegrad.kernels import abi
from tapegrad.kernels.words import Address
from tapegrad.tape.tape import checksum

LEAST = 1 << 22  # bytes of such a matrix: a smaller one is compared with a copy, and read once, in less time
FEWER = 8  # times as many bytes has such a matrix as the product, and as what is computed before


def matrix_of(event: Event) -> np.ndarray | None:
    """Return the large plain matrix that calls bring for a product; None if that is not what an event is."""
    brought = [source.value for source in event.operands if source.kind == LIVE]
    if event.op is not MATMUL or event.writes is not None or len(brought) != 1:
        return None
    (x,) = brought
    if type(x) is not np.ndarray or x.ndim < 2 or x.nbytes < LEAST or not x.flags.forc:
        return None
    return x if x.dtype == event.value.dtype and x.dtype.char in "df" else None


def is_worth_it(matrix: np.ndarray, product: np.ndarray, before: int) -> bool:
    """Whether a product is to be computed at once, for which so many bytes of results are computed before."""
    return FEWER * max(product.nbytes, before) <= matrix.nbytes


class InPlace:
    """An array of the call at work that is read in place, guarded as a tape guards it.

    Rows know it by a buffer of its form, in which there is something only if some are to run that cannot be
    led to the array itself.
    """

    def __init__(self, like: np.ndarray) -> None:
        self.buffer = empty_like(like)
        self.array: np.ndarray | None = None
        self.sum: int | None = None  # of the elements that the operation has read, if that is to be known
        self.is_filled = False

    @property
    def at(self) -> Address:
        """Where the elements are."""
        return abi.address(self.buffer if self.array is None else self.array)

    def written(self) -> tuple[int, int] | None:
        """The checksum, and what it was when the operation read the array; None if that is the same."""
        if self.array is None or self.sum is None:
            return None
        now = checksum(self.array)
        return None if now == self.sum else (now, self.sum)

    def fill(self) -> None:
        """Have the elements in the buffer, and let go of the array."""
        if self.array is not None:
            self.is_filled, self.buffer[...] = True, self.array
            self.array = None

    def release(self) -> None:
        """Hold nothing."""
        self.array = None
        if self.is_filled:
            give_back(self.buffer)
            self.is_filled = False
