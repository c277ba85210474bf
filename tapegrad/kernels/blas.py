"""Where functions of BLAS and LAPACK lie in memory: those that NumPy calls, else SciPy's.

NumPy's have the threads of NumPy's products, which those of SciPy's would get in the way of: two pools of
threads side by side cost a factor of ten.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tapegrad.kernels import abi
from tapegrad.kernels.locks import importing
from tapegrad.kernels.words import Address

# Their names where NumPy has integers of 64 bits, and of 32: in its wheels, in Apple's library, in others.
WIDE = "scipy_{}_64_", "{}_64_", "{}$NEWLAPACK$ILP64", "{}_"
NARROW = "scipy_{}_", "{}$NEWLAPACK", "{}_"
LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}

Functions = dict[str, Callable[..., None]]


class Products(NamedTuple):
    """Where the products of one dtype lie: of two matrices, and of a matrix and a vector (0: nowhere)."""

    gemm: Address
    gemv: Address


def numpys(char: str, arguments: Mapping[str, tuple[int, int]]) -> tuple[np.dtype, Functions] | None:
    """Return the functions of these names for a dtype, and their type of integers; None where there are none.

    Parameters
    ----------
    char
        The dtype's character.
    arguments
        How many arguments each has, all of them addresses, and how many letters: Fortran wants their lengths.
    """
    functions = _named(*(LETTERS[char] + key for key in arguments))
    if functions is None:
        return None
    for function, (count, letters) in zip(functions, arguments.values(), strict=True):
        function.restype = None
        function.argtypes = [ctypes.c_void_p] * count + [ctypes.c_size_t] * letters
    found = dict(zip(arguments, functions, strict=True))
    return np.dtype(np.int64 if _is_wide() else np.int32), found


def numpys_threads() -> Address:
    """Return the address of what says how many threads NumPy's OpenBLAS has; 0 if it has another library."""
    found = _named("openblas_get_num_threads")
    return ctypes.cast(found[0], ctypes.c_void_p).value or 0 if found else 0


def _is_wide() -> bool:
    """Whether NumPy's library has integers of 64 bits."""
    from numpy.linalg import _umath_linalg

    return bool(getattr(_umath_linalg, "_ilp64", False))


def _named(*names: str) -> list[Any] | None:
    """The functions of NumPy's library by names in Fortran; None if one is missing."""
    from numpy.linalg import _umath_linalg

    beside = Path(np.__file__).parent.parent.glob("numpy.libs/*openblas*")
    for place in (_umath_linalg.__file__, *map(str, beside)):
        for form in WIDE if _is_wide() else NARROW:
            try:
                library = ctypes.CDLL(place)
                return [library[form.format(name)] for name in names]
            except (AttributeError, OSError):
                continue
    return None


def numpys_products() -> dict[str, Products]:
    """Return by dtype NumPy's products, proved by small ones; none where one is not found."""
    found = {}
    for char in LETTERS:
        known = numpys(char, {"gemm": (13, 2), "gemv": (11, 1)})
        if known is None or not _proved(*known, char):
            return {}
        gemm, gemv = (ctypes.cast(known[1][name], ctypes.c_void_p).value for name in Products._fields)  # type: ignore[arg-type]
        found[char] = Products(gemm or 0, gemv or 0)
    return found


def _proved(integer: np.dtype, functions: Functions, char: str) -> bool:
    """Whether products are right where integers are given as those of 64 bits."""
    a, b = np.array([[1, 2, 3], [4, 5, 6]], char), np.array([[1, 0], [2, 4], [5, 9]], char)
    out, one, numbers = np.ones((2, 2), char), np.ones(1, char), np.array([2, 3], np.int64)
    letter = np.frombuffer(b"N", np.uint8).copy()
    n, depth, plain, unit = (abi.address(x) for x in (numbers[:1], numbers[1:], letter, one))
    b_at, a_at, out_at = (abi.address(x) for x in (b, a, out))  # which BLAS reads as their transposes
    functions["gemm"](plain, plain, n, n, depth, unit, b_at, n, a_at, depth, unit, out_at, n, 1, 1)
    sums, steps = np.ones(2, char), np.ones(1, np.int64)
    y, step = abi.address(sums), abi.address(steps)
    functions["gemv"](plain, n, depth, unit, b_at, n, a_at, step, unit, y, step, 1)  # of the first row of a
    right = np.array_equal(out, 1 + a @ b) and np.array_equal(sums, 1 + a[0] @ b)
    return right and integer.itemsize <= numbers.itemsize


def scipys_products() -> dict[str, Products]:
    """Return by dtype the matrix product in SciPy's table; that with a vector would soon use threads."""
    with importing():
        from scipy.linalg import cython_blas

    thing, text = ctypes.py_object, ctypes.c_char_p
    name = ctypes.PYFUNCTYPE(text, thing)(("PyCapsule_GetName", ctypes.pythonapi))
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, thing, text)(("PyCapsule_GetPointer", ctypes.pythonapi))
    known: Any = cython_blas.__pyx_capi__
    capsules = {char: known[f"{letter}gemm"] for char, letter in LETTERS.items()}
    return {char: Products(pointer(capsule, name(capsule)) or 0, 0) for char, capsule in capsules.items()}
