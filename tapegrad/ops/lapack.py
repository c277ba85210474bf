"""Functions of the LAPACK that NumPy calls, by address: NumPy does not give away what they leave behind.

Called as NumPy calls them they give the same values, to the last bit; besides, the LU factors of a matrix
stay for its rules. They have the threads of NumPy's products, which those of SciPy's would get in the way of.
Where they are not to be found NumPy's own functions do all, and factorise a matrix again.
"""

from __future__ import annotations

import ctypes
import functools
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tapegrad.kernels import abi
from tapegrad.tape import pool

LARGEST = 700  # logarithm of what is a finite number, and no subnormal one
SMALL = 32  # rows of matrices of which NumPy's own functions are quicker than calls by address
# Their names where NumPy has integers of 64 bits, and of 32: in its wheels, in Apple's library, in others.
WIDE = "scipy_{}_64_", "{}_64_", "{}$NEWLAPACK$ILP64", "{}_"
NARROW = "scipy_{}_", "{}$NEWLAPACK", "{}_"
LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}
# How many arguments each has, all of them addresses, and letters among them: Fortran wants their lengths.
ARGUMENTS = {"gesv": (8, 0), "getrf": (6, 0), "getrs": (9, 1), "getri": (7, 0), "trsm": (11, 4)}


class Lapack(NamedTuple):
    """The functions for one dtype, and their type of integers."""

    integer: Any
    gesv: Any
    getrf: Any
    getrs: Any
    getri: Any
    trsm: Any


@functools.cache
def functions(char: str) -> Lapack | None:
    """Return the functions for a dtype, proved by a small system; None where they are not to be found."""
    from numpy.linalg import _umath_linalg

    wide = bool(getattr(_umath_linalg, "_ilp64", False))
    beside = Path(np.__file__).parent.parent.glob("numpy.libs/*openblas*")
    for place in (_umath_linalg.__file__, *map(str, beside)):
        for name in WIDE if wide else NARROW:
            try:
                library = ctypes.CDLL(place)
                found = {key: library[name.format(LETTERS[char] + key)] for key in ARGUMENTS}
            except (AttributeError, OSError):
                continue
            for key, (count, letters) in ARGUMENTS.items():
                found[key].restype = None
                found[key].argtypes = [ctypes.c_void_p] * count + [ctypes.c_size_t] * letters
            lapack = Lapack(np.dtype(np.int64 if wide else np.int32), **found)
            return lapack if _proved(lapack, char) else None
    return None


def _proved(lapack: Lapack, char: str) -> bool:
    a, b = np.array([[1, 2], [4, 4]], char), np.array([[1, 0], [2, 4]], char)
    (_, pivots), x = _gesv(lapack, a, b, a.dtype)
    return np.array_equal(x, np.linalg.solve(a, b)) and pivots.tolist() == [2, 2]


def _columns(x: Any, dtype: Any) -> Any:
    """Copy a matrix, or vector, into memory where the columns lie one after the other."""
    found = pool.empty(x.shape[::-1], dtype).T
    found[...] = x
    return found


def _gesv(lapack: Lapack, a: Any, b: Any, dtype: Any) -> Any:
    """Return LU factors and pivots of a matrix, and a**-1 b."""
    factors, x, at = _columns(a, dtype), _columns(b, dtype), abi.location
    words = _words(lapack, len(a), b.size // len(a), 0, room=len(a))
    n, step = at(words), words.itemsize
    lapack.gesv(n, n + step, at(factors), n, n + 3 * step, at(x), n, n + 2 * step)
    _check(words[2])
    return (factors, words[3:]), x


def _getrf(lapack: Lapack, a: Any, dtype: Any) -> Any:
    """Return LU factors and pivots of a matrix."""
    factors, words = _columns(a, dtype), _words(lapack, len(a), 0, room=len(a))
    n, step = abi.location(words), words.itemsize
    lapack.getrf(n, n, abi.location(factors), n, n + 2 * step, n + step)
    _check(words[1])
    return factors, words[2:]


def _words(lapack: Lapack, *numbers: int, room: int = 0) -> Any:
    """Return integers in memory, and room for more."""
    words = np.empty(len(numbers) + room, lapack.integer)
    words[: len(numbers)] = numbers
    return words


def _check(info: Any) -> None:
    if info:
        raise np.linalg.LinAlgError("Singular matrix")


class Kept:
    """Arrays that a value was computed by, for its rule: as they are, or as a user's hooks have packed them.

    A sweep that releases the value's record releases them (`Tape.calls`).
    """

    released = False  # the record says so

    def __init__(self, arrays: Any) -> None:
        self._saved: Any = [tuple(arrays), None]

    @property
    def arrays(self) -> Any:
        """The arrays."""
        arrays, packing = self._saved
        return arrays if packing is None else tuple(map(packing.unpacked, arrays))

    def twin(self) -> Kept:
        """Return the same for another record, which releases it for itself."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def pack(self, packing: Any) -> None:
        """Keep what hooks make of the arrays in their place."""
        self._saved[:] = tuple(map(packing.packed, self._saved[0])), packing

    def release(self) -> None:
        """Let go of the arrays."""
        self._saved = [(), None]


class LU(Kept):
    """The factors of one matrix, kept with the first value that needs them, for the rules of that value.

    Calls are given the matrix for that first one; if `turned`, it is the adjoint whose factors are kept. As
    NumPy does, single precision is computed in double.
    """

    def __init__(self, dtype: Any) -> None:
        super().__init__(())
        self.own = np.dtype(dtype.char)
        self.dtype = np.result_type(self.own, np.float64)

    @staticmethod
    def of(a: Any) -> LU | None:
        """Return what will hold the factors of an array; None where it is a stack, small, or no LAPACK is."""
        if a.ndim != 2 or len(a) <= SMALL or a.dtype.char not in LETTERS or functions("d") is None:
            return None
        return LU(a.dtype)

    @property
    def lapack(self) -> Any:
        return functions(self.dtype.char)

    def _factors(self, a: Any, turned: bool = False) -> Any:
        if not self._saved[0]:
            self._saved[:] = _getrf(self.lapack, np.conj(a.T) if turned else a, self.dtype), None
        factors, pivots = self.arrays
        if self._saved[1] is not None:  # hooks give what they like
            factors = np.reshape(np.asarray(factors, self.dtype, order="F"), a.shape, order="A")
            pivots = np.reshape(np.ascontiguousarray(pivots, self.lapack.integer), len(a))
        return factors, pivots

    def solve(self, a: Any, b: Any, turned: bool = False) -> Any:
        """Return a**-1 b, of a vector or a stack of matrices."""
        alike = b.dtype is self.own or np.result_type(b, self.own) == self.own
        if not b.size or b.shape[-2:][:1] != a.shape[:1] or not alike:
            return np.linalg.solve(a, b)
        if not self._saved[0] and b.ndim <= 2 and not turned:
            factors, x = _gesv(self.lapack, a, b, self.dtype)
            self._saved[:] = factors, None
            return np.ascontiguousarray(x, self.own)
        factors, pivots = self._factors(a, turned)
        lapack, at, rows = self.lapack, abi.location, b if b.ndim == 1 else b.mT
        x, words = pool.empty(rows.shape, self.dtype), _words(lapack, len(a), b.size // len(a), 0)
        x[...] = rows
        n, step = at(words), words.itemsize
        letter = b"C" if turned else b"N"
        lapack.getrs(letter, n, n + step, at(factors), n, at(pivots), at(x), n, n + 2 * step, 1)
        x = x.astype(self.own, copy=False)
        return x if b.ndim == 1 else x.mT

    def inverse(self, a: Any) -> Any:
        """Return the inverse."""
        factors, pivots = self._factors(a)
        lapack, at = self.lapack, abi.location
        found = _columns(factors, self.dtype)
        work = np.empty(64 * len(a), self.dtype)  # LAPACK treats no more columns at once
        words = _words(lapack, len(a), work.size, 0)
        n, step = at(words), words.itemsize
        lapack.getri(n, at(found), n, at(pivots), at(work), n + step, n + 2 * step)
        _check(words[2])
        return found.astype(self.own, copy=False)

    def slogdet(self, a: Any) -> Any:
        """Return sign and logarithm of the determinant, as `numpy.linalg.slogdet`."""
        found = self._slogdet(a)
        return np.linalg.slogdet(a) if found is None else tuple(map(self.own.type, found))

    def det(self, a: Any) -> Any:
        """Return the determinant, as `numpy.linalg.det`."""
        found = self._slogdet(a)
        if found is None or not abs(found[1]) < LARGEST:  # NumPy warns of what is no finite number
            return np.linalg.det(a)
        return self.own.type(found[0] * math.exp(found[1]))

    def _slogdet(self, a: Any) -> Any:
        """Sign and logarithm in double precision, added up in NumPy's order; else None."""
        if self.dtype.kind == "c":  # NumPy multiplies signs in a way of its own
            return None
        try:
            factors, pivots = self._factors(a)
        except np.linalg.LinAlgError:
            return None
        diagonal, total = factors.diagonal(), 0.0
        for log in map(math.log, np.abs(diagonal).tolist()):
            total += log
        changes = np.count_nonzero((diagonal < 0) ^ (pivots != np.arange(1, len(a) + 1)))
        return -1.0 if changes % 2 else 1.0, total


def solve_triangle(r: Any, x: Any) -> Any:
    """Return r**-1 x of an upper triangular matrix, with zeros below, and a matrix or a stack of them."""
    lapack = functions(r.dtype.char)
    if lapack is None or r.dtype != x.dtype or not x.size or x.shape[-2] != len(r):
        return np.linalg.solve(r, x)
    if not r.flags.forc:
        r = np.ascontiguousarray(r)
    upper = r.flags.f_contiguous  # in Fortran's order; else r lies there transposed
    left = x.ndim == 2 and x.flags.f_contiguous  # else that is what x does, and r is on its right
    found = _columns(x, x.dtype) if left else pool.empty(x.shape, x.dtype)
    if not left:
        found[...] = x
    letters = b"L" if left else b"R", b"U" if upper else b"L", b"N" if left == upper else b"T", b"N"
    words = _words(lapack, *(x.shape[-2:] if left else x.shape[:-3:-1]), len(r))
    one, at, step = np.ones(1, r.dtype), abi.location, words.itemsize
    m = at(words)
    for part in found.reshape(-1, *x.shape[-2:]) if x.ndim > 2 else (found,):
        lapack.trsm(*letters, m, m + step, at(one), at(r), m + 2 * step, at(part), m, 1, 1, 1, 1)
    return found
