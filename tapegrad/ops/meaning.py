"""Which op a function means; those of `scipy.special` are declared when the first of them is asked for."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

from tapegrad.ops.primitive import MEANING, Primitive

SPECIAL = "tapegrad.ops.special"


def op_of(function: Any) -> Primitive | None:
    """Return the op that a function means; None if there is none."""
    op = MEANING.get(function)
    if op is None and isinstance(function, np.ufunc) and "scipy.special" in sys.modules:
        importlib.import_module(SPECIAL)  # waits for a thread that does it already
        op = MEANING.get(function)
    return op


def results_of(ufunc: np.ufunc) -> list[Any]:
    """Return the ops of the results of a ufunc that has several, if `op_of` has found none."""
    module = sys.modules.get(SPECIAL)
    found = module.RESULTS.get(ufunc, []) if module is not None else []
    return found
