"""Functions of the LAPACK that NumPy calls, by address: NumPy does not give away what they leave behind.

Called as NumPy calls them they give the same values, to the last bit; besides, the LU factors of a matrix
stay for its rules. They have the threads of NumPy's products, which those of SciPy's would get in the way of.
Where they are not to be found NumPy's own functions do all, and factorise a matrix again. Of small matrices
those functions take longer than what they call, NumPy's ufuncs: these are called at once.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Hashable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from tapegrad.kernels import abi, cache
from tapegrad.kernels.blas import LETTERS, numpys
from tapegrad.ops import buffers
from tapegrad.ops.triangles import inverse_of_factors, solve_factors
from tapegrad.tape import pool

LARGEST = 700  # logarithm of what is a finite number, and no subnormal one
SMALL = 32  # rows of matrices of which NumPy's own functions are quicker than calls by address
# How many arguments each has, all of them addresses, and letters among them: Fortran wants their lengths.
ARGUMENTS = {"gesv": (8, 0), "getrf": (6, 0), "getrs": (9, 1)}
OF_REFLECTORS = (8, 0), (9, 0)  # the same of the two functions for QR
# Of a matrix, and in which its factors are computed.
DTYPES = {char: (np.dtype(char), np.dtype("D" if char in "FD" else "d")) for char in LETTERS}
LOGARITHMS = '''"""A determinant's changes of sign by LU factors, and its logarithm, added as NumPy does."""
from math import log

from numba import carray, cfunc, types


@cfunc("int64(CPointer(float64), CPointer({integer}), int64, CPointer(float64))", cache=CACHE,
       boundscheck=BOUNDS)
def kernel(factors, pivots, n, out):
    diagonal, rows, found = carray(factors, n * n), carray(pivots, n), carray(out, 1)
    total, changes = 0.0, 0
    for k in range(n):
        x = diagonal[k * (n + 1)]
        total += log(abs(x))
        changes += (x < 0) != (rows[k] != k + 1)
    found[0] = total
    return changes
'''


class Lapack(NamedTuple):
    """The functions for one dtype, and their type of integers."""

    integer: np.dtype
    gesv: Callable[..., None]
    getrf: Callable[..., None]
    getrs: Callable[..., None]


@functools.cache
def functions(char: str) -> Lapack | None:
    """Return the functions for a dtype, proved by a small system; None where they are not to be found."""
    known = numpys(char, ARGUMENTS)
    if known is None:
        return None
    integer, found = known
    lapack = Lapack(integer, **found)
    return lapack if _proved(lapack, char) else None


def _proved(lapack: Lapack, char: str) -> bool:
    a, b = np.array([[1, 2], [4, 4]], char), np.array([[1, 0], [2, 4]], char)
    (_, pivots), x = _gesv(lapack, a, b, a.dtype)
    return np.array_equal(x, np.linalg.solve(a, b)) and pivots.tolist() == [2, 2]


@functools.cache
def _logarithms(integer: np.dtype) -> Callable[..., int] | None:
    """Return the compiled function for a type of pivots; None where its logarithms are not NumPy's."""
    text = LOGARITHMS.format(integer=integer.name)
    kernel = ctypes.PYFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 2, ctypes.c_int64, ctypes.c_void_p)(
        cache.load("logarithms", text).kernel.address
    )
    diagonal = np.diag(np.geomspace(1e-3, 1e4, 64))
    pivots, total = np.arange(1, 65, dtype=integer), ctypes.c_double()
    kernel(abi.location(diagonal), abi.location(pivots), 64, ctypes.byref(total))
    return kernel if total.value == np.linalg.slogdet(diagonal)[1] else None


def _columns(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Copy a matrix, or vector, into memory where the columns lie one after the other."""
    found = pool.empty(x.shape[::-1], dtype).T
    found[...] = x
    return found


def _gesv(
    lapack: Lapack, a: np.ndarray, b: np.ndarray, dtype: np.dtype
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Return LU factors and pivots of a matrix, and a**-1 b."""
    factors, at = _columns(a, dtype), abi.location
    x = np.array(b, dtype) if b.ndim == 1 else _columns(b, dtype)
    words = _words(lapack, len(a), b.size // len(a), 0, room=len(a))
    n, step = at(words), words.itemsize
    lapack.gesv(n, n + step, at(factors), n, n + 3 * step, at(x), n, n + 2 * step)
    _check(words[2])
    return (factors, words[3:]), x


def _getrf(lapack: Lapack, a: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return LU factors and pivots of a matrix."""
    factors, words = _columns(a, dtype), _words(lapack, len(a), 0, room=len(a))
    n, step = abi.location(words), words.itemsize
    lapack.getrf(n, n, abi.location(factors), n, n + 2 * step, n + step)
    _check(words[1])
    return factors, words[2:]


def _getrs(
    lapack: Lapack, factors: np.ndarray, pivots: np.ndarray, x: np.ndarray, transposed: bool = False
) -> None:
    """Overwrite columns, of which one lies after the other, by a**-1 x as NumPy does, or by a**-T x."""
    rows, at = len(factors), abi.location
    words = _words(lapack, rows, x.size // rows, 0)
    n, step = at(words), words.itemsize
    letter = b"T" if transposed else b"N"
    lapack.getrs(letter, n, n + step, at(factors), n, at(pivots), at(x), n, n + 2 * step, 1)


def solve_square(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a**-1 b for a rule: of one large matrix in its own precision, and so not with NumPy's bits."""
    alike = type(a) is type(b) is np.ndarray and a.ndim == b.ndim == 2 and a.dtype is b.dtype
    lapack = functions(a.dtype.char) if alike and len(a) > SMALL and a.dtype.char in LETTERS else None
    if lapack is None or not b.size:
        return np.linalg.solve(a, b)
    factors, pivots = _getrf(lapack, a, a.dtype)
    x = pool.empty(b.shape, b.dtype)
    x[...] = b
    solve_factors(factors, pivots, x, False)
    return x


def _words(lapack: Lapack, *numbers: int, room: int = 0) -> np.ndarray:
    """Return integers in memory, and room for more."""
    words = np.empty(len(numbers) + room, lapack.integer)
    words[: len(numbers)] = numbers
    return words


def _check(info: int | np.integer) -> None:
    if info:
        raise np.linalg.LinAlgError("Singular matrix")


@functools.cache
def _ufuncs() -> ModuleType | None:
    """Return the module of ufuncs that NumPy's functions call, proved by small matrices; None for others."""
    from numpy.linalg import _umath_linalg

    a = np.array([[1.0, 2.0], [4.0, 4.0], [3.0, 5.0]])
    pairs: list[Any] = []
    try:
        pairs += [(_qr(_umath_linalg, a, mode), np.linalg.qr(a, mode)) for mode in ("reduced", "complete")]
        pairs += [(_eigh(_umath_linalg, a[1:], uplo), np.linalg.eigh(a[1:], uplo)) for uplo in ("L", "U")]
    except (AttributeError, TypeError, ValueError):
        return None
    alike = all(np.array_equal(x, y) for pair in pairs for x, y in zip(*pair, strict=True))
    return _umath_linalg if alike else None


def _ufuncs_for(a: np.ndarray) -> ModuleType | None:
    """Return those ufuncs for one small matrix, of which they take half of the time of NumPy's functions."""
    small = a.ndim == 2 and a.dtype.char in LETTERS and 0 < min(a.shape) <= max(a.shape) <= SMALL
    return _ufuncs() if small else None


def _qr(ufuncs: ModuleType, a: np.ndarray, mode: str) -> tuple[np.ndarray, np.ndarray]:
    (own, dtype), (rows, columns) = DTYPES[a.dtype.char], a.shape
    reflectors = a.astype(dtype)
    tau = ufuncs.qr_r_raw(reflectors)
    whole = mode == "complete" and rows > columns
    q = (ufuncs.qr_complete if whole else ufuncs.qr_reduced)(reflectors, tau)
    r = np.where(_upper(q.shape[1], columns), reflectors[: q.shape[1]], 0.0)
    return q.astype(own, copy=False), r.astype(own, copy=False)


@functools.lru_cache(maxsize=64)
def _upper(rows: int, columns: int) -> np.ndarray:
    return np.tri(columns, rows, dtype=bool).T


def _eigh(ufuncs: ModuleType, a: np.ndarray, uplo: str) -> tuple[np.ndarray, np.ndarray]:
    own, dtype = DTYPES[a.dtype.char]
    ufunc = ufuncs.eigh_lo if uplo == "L" else ufuncs.eigh_up
    w, v = ufunc(a if own is dtype else a.astype(dtype))
    return (w, v) if own is dtype else (w.astype(own.char.lower()), v.astype(own))


@functools.cache
def _reflectors(char: str) -> Any:
    """Return the type of integers and a dtype's functions for QR; None where they are not to be found."""
    names = ("geqrf", "ungqr" if char in "FD" else "orgqr")
    known = numpys(char, dict(zip(names, OF_REFLECTORS, strict=True)))
    return None if known is None else (known[0], *(known[1][name] for name in names))


@functools.cache
def _reflectors_proved(char: str) -> bool:
    """Whether these give NumPy's factors, of more columns than are treated at once."""
    a = np.cos(np.arange(45.0 * 40)).reshape(45, 40).astype(char)
    known = _reflectors(char) is not None
    return known and all(map(np.array_equal, _by_reflectors(a), np.linalg.qr(a)))


@functools.lru_cache(maxsize=64)
def _room(char: str, rows: int, columns: int) -> list[int]:
    """How many elements each of these functions wants to work in."""
    integer, *functions = _reflectors(char)
    words, x = np.array([rows, columns, min(rows, columns), -1, 0], integer), np.zeros(1, char)
    at, (m, n, k, query, info) = abi.location(x), _places(words)
    found = []
    for function, sizes in zip(functions, ((m, n), (m, k, k)), strict=True):
        function(*sizes, at, m, at, at, query, info)
        found.append(max(int(x[0].real), columns, 1))
    return found


def _places(words: np.ndarray) -> range:
    """The address of each."""
    begin = abi.location(words)
    return range(begin, begin + words.nbytes, words.itemsize)


def _factorise(a: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return reflectors of a matrix, their factors, what LAPACK wants to know of sizes, and r."""
    (rows, columns), at = a.shape, abi.location
    integer, geqrf, _ = _reflectors(dtype.char)
    room = _room(dtype.char, rows, columns)
    q, tau, work = _columns(a, dtype), np.empty(min(rows, columns), dtype), np.empty(room[0], dtype)
    words = np.array([rows, columns, len(tau), *room, 0], integer)
    m, n, _, first, _, info = _places(words)
    geqrf(m, n, at(q), m, at(tau), at(work), first, info)
    return q, tau, words, np.where(_upper(len(tau), columns), q[: len(tau)], 0.0)


def _by_reflectors(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the factors of a matrix as NumPy does, without its copies."""
    (own, dtype), at = DTYPES[a.dtype.char], abi.location
    q, tau, words, r = _factorise(a, dtype)
    work, (m, _, k, _, second, info) = np.empty(words[4], dtype), _places(words)
    _reflectors(dtype.char)[2](m, k, k, at(q), m, at(tau), at(work), second, info)
    q = q[:, : len(tau)]
    q = buffers.copied(q) if q.nbytes >= buffers.LARGE else np.ascontiguousarray(q)
    return q.astype(own, copy=False), r.astype(own, order="C", copy=False)


def triangular_factor(a: np.ndarray) -> np.ndarray:
    """Return r of QR for a rule: of a large matrix in its own precision, and so not with NumPy's bits."""
    if max(a.shape) <= SMALL or a.dtype.char not in LETTERS or _reflectors(a.dtype.char) is None:
        numpy: Any = np.linalg  # whose stubs take r for both factors
        return numpy.qr(a, mode="r")
    return _factorise(a, a.dtype)[3]


def qr(a: np.ndarray, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Return what `numpy.linalg.qr` does, to the last bit."""
    ufuncs = _ufuncs_for(a)
    if ufuncs is not None:
        return _qr(ufuncs, a, mode)
    if a.ndim == 2 and a.size and a.dtype.char in LETTERS:
        fits = mode == "reduced" or len(a) <= a.shape[1]
        if fits and _reflectors_proved(DTYPES[a.dtype.char][1].char):
            return _by_reflectors(a)
    numpy: Any = np.linalg  # whose stubs know literal modes only
    return numpy.qr(a, mode)


def eigh(a: np.ndarray, uplo: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return what `numpy.linalg.eigh` does, to the last bit, or raise what it raises."""
    ufuncs = _ufuncs_for(a) if uplo in ("L", "U") else None
    if ufuncs is not None:
        with np.errstate(all="ignore"):
            found = _eigh(ufuncs, a, uplo)
        if found[0][0] == found[0][0]:  # else it did not converge
            return found
    return np.linalg.eigh(a, uplo)


class Kept:
    """Arrays that a value was computed by, for its rule: as they are, or as a user's hooks have packed them.

    A sweep that releases the value's record releases them (`Tape.calls`).
    """

    released = False  # the record says so

    def __init__(self, arrays: Iterable[Any]) -> None:
        self._saved: Any = [tuple(arrays), None]
        self.origin = object()  # that of its twins too, and of no others

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The arrays."""
        arrays, packing = self._saved
        return arrays if packing is None else tuple(map(packing.unpacked, arrays))

    def arrays_of(self, a: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the arrays, which a matrix tells if they are not there yet."""
        return self.arrays

    def name(self) -> Hashable:
        """Return what is equal for those of the same arrays, as long as these live."""
        arrays, packing = self._saved
        return tuple(map(id, arrays)) if packing is None else id(self)

    def twin(self) -> Kept:
        """Return the same for another record, which releases it for itself."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def fresh(self) -> Kept | None:
        """Return what will keep such arrays of another matrix, if that tells them."""
        return None

    def pack(self, packing: Any) -> None:
        """Keep what hooks make of the arrays in their place."""
        self._saved[:] = tuple(map(packing.packed, self._saved[0])), packing

    def release(self) -> None:
        """Let go of the arrays."""
        self._saved = [(), None]


class Found(Kept):
    """What a function computes of a matrix, kept with the first value, or rule, that needs it.

    Where elements decide of which dtype it is, it is not `steady`.
    """

    def __init__(self, function: Callable[[np.ndarray], Iterable[np.ndarray]], steady: bool = True) -> None:
        super().__init__(())
        self.function, self.steady = function, steady

    def arrays_of(self, a: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the arrays, computed if they are not there yet."""
        if not self._saved[0]:
            self._saved[:] = tuple(self.function(a)), None
        return self.arrays

    def fresh(self) -> Found | None:
        """Return what will keep them of another matrix."""
        return Found(self.function) if self.steady else None


class LU(Kept):
    """The factors of one matrix, kept with the first value that needs them, for the rules of that value.

    Calls are given the matrix for that first one; if `turned`, it is the adjoint whose factors are kept. As
    NumPy does, single precision is computed in double.
    """

    def __init__(self, char: str, lapack: Lapack) -> None:
        super().__init__(())
        self.lapack = lapack
        self.own, self.dtype = DTYPES[char]

    def fresh(self) -> LU:
        """Return what will hold the factors of another matrix."""
        return LU(self.own.char, self.lapack)

    @staticmethod
    def of(a: np.ndarray) -> LU | None:
        """Return what will hold the factors of an array; None where it is a stack, small, or no LAPACK is."""
        if a.ndim != 2 or len(a) <= SMALL or a.dtype.char not in LETTERS:
            return None
        lapack = functions(DTYPES[a.dtype.char][1].char)
        return None if lapack is None else LU(a.dtype.char, lapack)

    def _factors(self, a: np.ndarray, turned: bool = False) -> Any:
        if not self._saved[0]:
            self._saved[:] = _getrf(self.lapack, np.conj(a.T) if turned else a, self.dtype), None
        factors, pivots = self.arrays
        if self._saved[1] is not None:  # hooks give what they like
            factors = np.reshape(np.asarray(factors, self.dtype, order="F"), a.shape, order="A")
            pivots = np.reshape(np.ascontiguousarray(pivots, self.lapack.integer), len(a))
        return factors, pivots

    def solve(self, a: np.ndarray, b: np.ndarray, turned: bool = False) -> np.ndarray:
        """Return a**-1 b, of a vector or a stack of matrices."""
        alike = b.dtype is self.own or np.result_type(b, self.own) == self.own
        if not b.size or b.shape[-2:][:1] != a.shape[:1] or not alike:
            return np.linalg.solve(a, b)
        if not self._saved[0] and not turned:  # a value, which has NumPy's bits
            if b.ndim > 2:
                x = pool.empty(b.mT.shape, self.dtype)
                x[...] = b.mT
                first = b[(0,) * (b.ndim - 2)]  # for factors as NumPy's, which by threads `getrf` has not
                known, _ = _gesv(self.lapack, a, first, self.dtype)
                self._saved[:] = known, None
                for part in x.reshape(-1, *x.shape[-2:]):  # one right side OpenBLAS treats unlike several
                    _getrs(self.lapack, *known, part)
                return x.mT.astype(self.own, copy=False)
            known, x = _gesv(self.lapack, a, b, self.dtype)
            self._saved[:] = known, None
            return x.astype(self.own, order="C", copy=False)
        rows_first = np.moveaxis(b, -2, 0) if b.ndim > 2 else b
        x = pool.empty(rows_first.shape, self.dtype)
        x[...] = rows_first
        self._overwrite(a, x, turned)
        x = x.astype(self.own, copy=False)
        return np.moveaxis(x, 0, -2) if b.ndim > 2 else x

    def inverse(self, a: np.ndarray) -> np.ndarray:
        """Return the inverse, whose transpose is in C order."""
        return inverse_of_factors(*self._factors(a)).astype(self.own, copy=False).T

    def _overwrite(self, a: np.ndarray, x: np.ndarray, turned: bool = False) -> None:
        """Overwrite right sides by solutions."""
        factors, pivots = self._factors(a, turned)
        conjugated = turned and self.dtype.kind == "c"
        if conjugated:
            np.conjugate(x, out=x)
        if x.ndim == 1:  # else LAPACK's triangular systems are the slower ones
            _getrs(self.lapack, factors, pivots, x, turned)
        else:
            solve_factors(factors, pivots, x, turned)
        if conjugated:
            np.conjugate(x, out=x)

    def slogdet(self, a: np.ndarray) -> Any:
        """Return sign and logarithm of the determinant, as `numpy.linalg.slogdet`."""
        found = self._slogdet(a)
        return np.linalg.slogdet(a) if found is None else tuple(map(self.own.type, found))

    def det(self, a: np.ndarray) -> np.ndarray:
        """Return the determinant, as `numpy.linalg.det`."""
        found = self._slogdet(a)
        if found is None or not abs(found[1]) < LARGEST:  # NumPy warns of what is no finite number
            return np.linalg.det(a)
        return self.own.type(found[0] * math.exp(found[1]))

    def _slogdet(self, a: np.ndarray) -> tuple[float, float] | None:
        """Sign and logarithm in double precision, added up in NumPy's order; else None."""
        if self.dtype.kind == "c":  # NumPy multiplies signs in a way of its own
            return None
        try:
            factors, pivots = self._factors(a)
        except np.linalg.LinAlgError:
            return None
        logarithms, total = _logarithms(self.lapack.integer), ctypes.c_double()
        if logarithms is None:
            return None
        changes = logarithms(abi.location(factors), abi.location(pivots), len(a), ctypes.byref(total))
        return -1.0 if changes & 1 else 1.0, total.value
