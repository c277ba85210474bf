"""NumPy's inner loops, which rows call: where they are, and what was found of them by trying."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.kernels import abi
from tapegrad.kernels.words import Address
from tapegrad.ops import forward

REAL_TO_COMPLEX = {"d": "D", "f": "F"}
NOWHERE = "nowhere"
BUFFERED = 8192  # elements of NumPy's buffer
LONGEST = 50_021  # elements of which a loop is proved to give NumPy's bits
INITIAL = np.array(np.add.reduce(np.array([-0.0])))  # what sums begin with


def signature(kinds: Sequence[str]) -> str:
    """The dtypes of a loop of operands and a result, as `kernels.abi.inner_loop` has them; empty for others.

    They are numbers of one kind, real or complex; of complex ones the result may be real, and of real ones,
    or of truth values, a truth value.
    """
    *given, out = kinds
    if len(set(kinds)) == 1 and out in "dfDF":
        return out
    if given == [REAL_TO_COMPLEX.get(out)]:
        return f"{given[0]}->{out}"
    return "".join(given) + "->?" if out == "?" and len(set(given)) == 1 and given[0] in "df?" else ""


@functools.cache
def first_of(ufunc: np.ufunc, char: str, is_large: bool = False) -> Any:
    """Return the number with which reductions begin, None for the first element, NOWHERE without proof.

    Some versions of NumPy reduce large arrays by as many elements as its buffer has.
    """
    loop, data = inner_loop(ufunc, char)
    if not loop:
        return NOWHERE
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(loop)
    if is_large:
        x = np.random.default_rng(0).normal(1.0, 1 / 64, LONGEST).astype(char, copy=False)
        numbers = [x[:n] for n in (BUFFERED + 1, 9001, 20_011, LONGEST)]
    else:
        numbers = [np.random.default_rng(k).normal(size=n).astype(char) for k, n in enumerate((2, 37, 391))]
        numbers += [np.full(3, -0.0, char), numbers[-1].reshape(17, 23)]
    begin = None if ufunc.identity is None else ufunc.reduce(np.full(1, -0.0 if ufunc is np.add else 1, char))
    for x in numbers:
        skip = begin is None
        out = np.array(x.flat[0] if skip else begin, char)
        words = [abi.address(out), abi.address(x) + skip * x.itemsize, abi.address(out), x.size - skip]
        table = np.array([*words, 0, x.itemsize, 0], np.int64)
        at = abi.address(table)
        call(at, at + 24, at + 32, data)
        if out.tobytes() != np.asarray(ufunc.reduce(x, axis=None)).tobytes():
            return NOWHERE
    return begin


@functools.cache
def clears_errors(ufunc: np.ufunc, kinds: str) -> bool:
    """Whether a loop clears the flags of errors, as some of NumPy's that raise too many of them do."""
    test, flags = forward.error_test()
    chars = kinds.replace("->", "") if "->" in kinds else kinds * ufunc.nargs
    given = [np.full(3, 0.5, char) for char in chars]
    words = np.array([*map(abi.address, given), 3, *(x.itemsize for x in given)], np.int64)
    at, count = abi.address(words), len(given)
    loop, data = inner_loop(ufunc, kinds)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(loop)
    raised_among, clear, set_flags = (
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(f)
        for f in (test, forward.clear_errors(), forward.raise_errors())
    )
    before = raised_among(flags)
    set_flags(flags)
    call(at, at + 8 * count, at + 8 * (count + 1), data)
    found = raised_among(flags) != flags
    clear(flags)
    set_flags(before)
    return bool(found)


@functools.cache
def inner_loop(ufunc: np.ufunc, char: str) -> tuple[Address, Address]:
    """Where the loop of these dtypes is, and its data; zeros where there is none."""
    return (0, 0) if ufunc.signature else abi.inner_loop(ufunc, char)
