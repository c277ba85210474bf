"""Scaling of cotangents with subnormal numbers, which products would stop at.

A processor takes some hundred cycles for an operation of a subnormal number, and a product of matrices uses
each element as often as the other one has columns. Multiplied by a power of two they are ordinary numbers,
none of them rounded. So are their products, which are multiplied by the inverse in the end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tapegrad.compilation.rows.fusing import emit_kernel
from tapegrad.compilation.rows.staging import Parameters, Task
from tapegrad.kernels import abi, assembly
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address

# By dtype: the power of two, and from which number on, in magnitude, none is multiplied by it.
POWERS = {"d": (512, 300), "f": (64, 40)}


class Scaling(NamedTuple):
    """Words for rows of products (`kernels.replay.layout`), and what they know by address."""

    words: np.ndarray
    numbers: np.ndarray
    counts: np.ndarray


def scaling(char: str) -> Scaling:
    """Return words by which products of a dtype are scaled."""
    power, most = POWERS[char]
    numbers = np.array([2.0**power, 2.0**-power, np.finfo(char).smallest_normal, 2.0**most], char)
    found = Scaling(np.zeros(layout.SCALING_WORDS, np.int64), numbers, np.zeros(2, np.int64))
    up, down, *limits = (abi.address(numbers) + k * numbers.itemsize for k in range(4))
    counts = [abi.address(found.counts) + 8 * k for k in range(2)]
    found.words[:] = [_counting(char), _scaling(char), up, down, *limits, 0, *counts, 0, 0]
    return found


def _counting(char: str) -> Address:
    """A kernel that counts what is below one limit and no zero, and what is not below another."""
    tiny, large, x, low, high, size, is_low, is_subnormal, is_small, is_large = range(10)
    tasks = [
        Task(np.absolute, (x,), size),
        Task(np.less, (size, tiny), is_low),
        Task(np.logical_and, (is_low, size), is_subnormal),
        Task(np.add, (is_subnormal,), low, True),
        Task(np.less, (size, large), is_small),
        Task(np.logical_not, (is_small,), is_large),
        Task(np.add, (is_large,), high, True),
    ]
    return _load(char, tasks, Parameters((), frozenset(), (tiny, large), (x,), (), (low, high), ()))


def _scaling(char: str) -> Address:
    """A kernel that multiplies by a number."""
    factor, x = range(2)
    given = Parameters((), frozenset(), (factor,), (x,), (x,), (), ())
    return _load(char, [Task(np.multiply, (x, factor), x)], given)


def _load(char: str, tasks: Any, given: Parameters) -> Address:
    found = assembly.load(emit_kernel(char, layout.PROGRAM_BLOCK, tasks, given))
    if not found:
        raise MemoryError(f"a process has {assembly.MOST_KERNELS} kernels at most")
    return found
