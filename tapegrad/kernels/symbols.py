"""Which of SciPy's special functions compiled code can call, and the symbols that it has for them.

A loop has an address of its own in each process, so code refers to it by a symbol, which LLVM resolves when
the code is loaded: what lies in the cache is right in every process that has announced the symbol before.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from tapegrad.kernels import abi


class Linked(NamedTuple):
    """A result of a ufunc, and whether a first operand with a whole number's value is taken for one."""

    ufunc: np.ufunc
    result: int = 0
    whole: bool = False


PREFIX = "tapegrad_linked_"  # of all symbols
FUNCTIONS: dict[str, Linked] = {}  # by the names that rules have for them


@functools.cache
def symbols_of(name: str, whole: bool) -> tuple[str, str] | None:
    """Announce a loop and what it is called with; None without proof of where they are."""
    ufunc, first = FUNCTIONS[name].ufunc, "l" if whole else "d"
    loop, data = abi.inner_loop(ufunc, first + "d" * (ufunc.nin - 1) + "->" + "d" * ufunc.nout)
    if not loop or not data:
        return None
    from llvmlite import binding

    names = f"{PREFIX}{ufunc.__name__}_{first}_loop", f"{PREFIX}{ufunc.__name__}_{first}_data"
    for symbol, address in zip(names, (loop, data), strict=True):
        binding.add_symbol(symbol, address)
    return names


def can_link(name: str) -> bool:
    """Whether a function is there for compiled code; if so its symbols are announced."""
    found = FUNCTIONS.get(name)
    if found is None:
        return False
    return all(symbols_of(name, whole) is not None for whole in ways_of(found))


def ways_of(found: Linked) -> list[bool]:
    """Which loops there are to be: for whole numbers, and for others."""
    others = any(form.startswith("d") for form in found.ufunc.types)
    return [True, False][not found.whole : 1 + (others or not found.whole)]
