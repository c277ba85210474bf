"""Tiers: what a person waits for, what CI runs besides (``-m full``), what takes hours (``-m slow``)."""

import itertools

import numpy as np
import pytest

# What the package has is compared with what NumPy has: names and parameters that came or went before are not
NEWEST_NUMPY = np.lib.NumpyVersion(np.__version__) >= "2.4.0"
NUMPY_2_5 = np.lib.NumpyVersion(np.__version__) >= "2.5.0"
with_newest_numpy = pytest.mark.skipif(not NEWEST_NUMPY, reason="an older NumPy has other names")


def thinned(rows, quick):
    """Parameters, several of them in tuples: those for which ``quick(*row)`` is false are left to `full`."""
    rows = [row if isinstance(row, tuple) else (row,) for row in rows]
    return [pytest.param(*row, marks=() if quick(*row) else pytest.mark.full) for row in rows]


def every(rows, n):
    """As `thinned`, with one of n rows in the quick tier."""
    turn = itertools.count()
    return thinned(rows, lambda *_: next(turn) % n == 0)


DOUBLES_FIRST = thinned([np.float64, np.float32], lambda kind: kind is np.float64)
