"""Values that a recorded sweep has left out, computed where something reads them after all.

`kernels.replay.deferring` says which these are. The base of one is a list of a function, its attributes or
None, and what it takes; once it is computed, of that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.tensor import Tensor


def compute_deferred(x: Tensor) -> None:
    """Let a Tensor, and its record, have the value that was deferred."""
    tape: Any = x._tape
    x._v = value = _computed(x._v)
    tape.keep_late(x._at, value)


def _computed(value: np.ndarray) -> np.ndarray:
    """The value that stands for, and of those that it is computed from."""
    todo = [value]
    while todo:
        what: Any = todo[-1].base
        if len(what) > 1:
            function, attrs, *given = what
            waiting = [x for x in given if _is_deferred(x) and len(x.base) > 1]
            if waiting:
                todo += waiting
                continue
            what[:] = [function(*[x.base[0] if _is_deferred(x) else x for x in given], **(attrs or {}))]
        todo.pop()
    what = value.base
    found: np.ndarray = what[0]
    return found


def _is_deferred(x: Any) -> bool:
    return isinstance(x, np.ndarray) and isinstance(x.base, list)
