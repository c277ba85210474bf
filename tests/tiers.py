"""Tiers: what a person waits for, what CI runs besides (``-m full``), what takes hours (``-m slow``)."""

import itertools

import pytest


def thinned(rows, quick):
    """Parameters, several of them in tuples: those for which ``quick(*row)`` is false are left to `full`."""
    rows = [row if isinstance(row, tuple) else (row,) for row in rows]
    return [pytest.param(*row, marks=() if quick(*row) else pytest.mark.full) for row in rows]


def every(rows, n):
    """As `thinned`, with one of n rows in the quick tier."""
    turn = itertools.count()
    return thinned(rows, lambda *_: next(turn) % n == 0)
