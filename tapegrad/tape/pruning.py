"""What of a sealed tape is live: records that a handle reaches, values that a derivative may still read."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.kernels.state import give, take
from tapegrad.tape import pool
from tapegrad.tape.columns import Columns
from tapegrad.tape.record import STRIDE, Position, Record, Value, slot

References = dict[Position, weakref.ref[Any]]


def find_live(
    columns: Columns, references: Iterable[References], freed: np.ndarray | None, older: int
) -> tuple[np.ndarray, int, np.ndarray, list[int]]:
    """Find which records are live; no record or value changes.

    Parameters
    ----------
    columns
        The tape's.
    references
        Weak references that keep records beside their values, by position; dead ones are forgotten.
    freed
        One byte per record: whether its values were released; None if none were.
    older
        How many older tapes it reads.

    Returns
    -------
    tuple
        Flags of records, as compiled `prune` sets them, the number of values that nobody will read, the
        records with a handle, and of each older tape whether a link that is needed leads there.
    """
    values, n = columns.values, columns.n
    state = take()
    state.fit(n)
    both = np.zeros(n + older, np.uint8)
    live, needed = both[:n], both[n:]
    for kept in references:
        _mark(live, kept)
    view = state.view
    columns.place(view)
    state.look(values)
    view[layout.LIVE] = abi.address(both)
    view[layout.FREED] = abi.address(state.unfreed if freed is None else freed)
    view[layout.NONE_OBJECT] = id(None)
    if abi.native():
        view[layout.COUNTS] = 0
        lost = state.run(layout.PRUNE, id(values))
    else:
        counts = np.array([sys.getrefcount(v) - abi.IN_A_LIST + 1 for v in values], np.int64)
        items = np.array([id(v) for v in values], np.int64)
        view[layout.COUNTS], view[layout.ITEMS] = abi.address(counts), abi.address(items)
        lost = state.run(layout.PRUNE)
    held = state.buffers[layout.PENDING][: view[layout.PENDING_COUNT]].copy()
    give(state)
    return live, lost, held, needed.tolist()


def _mark(live: np.ndarray, references: References) -> None:
    """Mark the records whose weakly referenced object lives; forget the others."""
    for at, reference in references.copy().items():
        if reference() is None:
            del references[at]
        else:
            live[slot(at)] = 5


def drop(values: list[Any], live: np.ndarray, *, recycled: bool) -> None:
    """Let go of values that nobody will read, their memory for reuse where that is asked for."""
    if recycled:
        pool.recycle(values, np.flatnonzero(live & 2 == 0).tolist())
    elif abi.native():
        state = take()
        state.look(values)
        view = state.view
        view[layout.LIVE], view[layout.RECORDS] = abi.address(live), live.size
        view[layout.NONE_OBJECT] = id(None)
        state.run(layout.DROP, id(values))
        give(state)
    else:
        for k in np.flatnonzero(live & 2 == 0).tolist():
            values[k] = None


def lost_any(values: list[Value | None], held: list[Record], shadows: References) -> bool:
    """Whether one of these records' values is gone, or nothing but the tape has it."""
    for k in held:
        value = values[k]
        if value is None:
            shadow = shadows.get(STRIDE * (k + 1))
            if shadow is None or shadow() is None:
                return True
        elif sys.getrefcount(value) <= abi.IN_A_LIST:
            return True
    return False


def lost_any_of_many(values: list[Value | None], held: np.ndarray) -> bool:
    """As `lost_any`, in compiled code; values that are not kept count as lost."""
    state = take()
    state.look(values)
    state.view[layout.LIVE], state.view[layout.RECORDS] = abi.address(held), held.size
    found = state.run(layout.HAS_LOST, id(values))
    give(state)
    return bool(found)
