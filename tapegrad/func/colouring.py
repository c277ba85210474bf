"""Columns that can be computed together: colours, and where each nonzero is found in what comes of that.

`group` colours the columns of any matrix: no two of one colour have a row in common (Curtis, Powell and Reid
1974). `star` colours those of a symmetric one, and needs fewer: of each element its own place or the one
across the diagonal must be alone (Gebremedhin, Manne and Pothen 2005), so that no path over four vertices of
the graph has two colours.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from tapegrad.func.elements import compiled

if TYPE_CHECKING:
    from scipy.sparse import csr_array

FEW = 64  # columns up to which colours are looked for in any case


def group(
    row_starts: np.ndarray,
    columns: np.ndarray,
    column_starts: np.ndarray,
    rows: np.ndarray,
    order: np.ndarray,
) -> np.ndarray:
    """Colours of the columns, taken in an order."""
    n = column_starts.size - 1
    colours = np.full(n, -1, np.int64)
    forbidden = np.full(n + 1, -1, np.int64)
    for j in order:
        for e in range(column_starts[j], column_starts[j + 1]):
            i = rows[e]
            for d in range(row_starts[i], row_starts[i + 1]):
                colour = colours[columns[d]]
                if colour >= 0:
                    forbidden[colour] = j
        colour = 0
        while forbidden[colour] == j:
            colour += 1
        colours[j] = colour
    return colours


def star(starts: np.ndarray, neighbours: np.ndarray, order: np.ndarray) -> Any:
    """Colours of the vertices of a graph, taken in an order, and the neighbours of each by their colour.

    Of vertex v and colour c the table `near` has 1 + the neighbour of that colour, 0 where there is none, -1
    where there are several. Two colours make a path over four vertices where an edge has at each end several
    neighbours of the colour of the other.
    """
    n = starts.size - 1
    colours = np.full(n, -1, np.int64)
    forbidden = np.full(n + 1, -1, np.int64)
    near = np.zeros((n, 8), np.int32)
    used = 0
    for v in order:
        for e in range(starts[v], starts[v + 1]):
            w = neighbours[e]
            mine = colours[w]
            if mine < 0:
                continue
            forbidden[mine] = v
            several = near[v, mine] < 0
            for c in range(used):
                other = near[w, c]
                if other != 0 and (several or (other > 0 and near[other - 1, mine] < 0)):
                    forbidden[c] = v
        colour = 0
        while forbidden[colour] == v:
            colour += 1
        colours[v] = colour
        if colour == used:
            used += 1
            if used > near.shape[1]:
                wider = np.zeros((n, 2 * near.shape[1]), np.int32)
                wider[:, : near.shape[1]] = near
                near = wider
        for e in range(starts[v], starts[v + 1]):
            w = neighbours[e]
            near[w, colour] = v + 1 if near[w, colour] == 0 else -1
    return colours, near


@functools.cache
def _kernels() -> ModuleType:
    whole = "int64[::1]"
    return compiled("colouring", {group: ", ".join([whole] * 5), star: ", ".join([whole] * 3)})


def _orders(sizes: np.ndarray) -> list[np.ndarray]:
    """Orders to try: the columns' own, and those with most nonzeros first."""
    own = np.arange(sizes.size)
    order = np.argsort(-sizes, kind="stable")
    return [own] if np.array_equal(own, order) else [own, order]


def _words(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.int64)


def columns_of(pattern: csr_array) -> np.ndarray:
    """Return colours of the columns of a matrix in CSR form, no two of one colour with a row in common."""
    n = pattern.shape[1]
    if n > FEW and 2 * _least(pattern) >= n:  # half as many colours are needed anyway
        return np.arange(n)
    by_column = pattern.tocsc()
    given = [_words(x) for x in (pattern.indptr, pattern.indices, by_column.indptr, by_column.indices)]
    found = [_kernels().group(*given, order) for order in _orders(np.diff(given[2]))]
    return min(found, key=lambda colours: colours.max(initial=-1))


def _least(pattern: csr_array) -> int:
    """The colours that columns take at least: those of the row that has most."""
    return int(np.diff(pattern.indptr).max(initial=0))


def fewer(pattern: csr_array) -> tuple[bool, np.ndarray]:
    """Return whether to colour the columns of a matrix in CSR form, or its rows, and the fewer colours."""
    by_rows = pattern.T.tocsr()
    first, second = (by_rows, pattern) if _least(by_rows) <= _least(pattern) else (pattern, by_rows)
    colours = columns_of(first)
    if colours.max(initial=-1) >= _least(second):
        others = columns_of(second)
        if others.max(initial=-1) < colours.max(initial=-1):
            return second is pattern, others
    return first is pattern, colours


def symmetric(pattern: csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Return colours of the columns of a symmetric matrix in CSR form, and where its elements are found.

    For each element, in the order of the form: 1 where it is across the diagonal.
    """
    n = pattern.shape[1]
    rows = np.repeat(np.arange(n), np.diff(pattern.indptr))
    columns = pattern.indices.astype(np.int64)
    beside = rows != columns
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows[beside], minlength=n))])
    neighbours = _words(columns[beside])
    found = [_kernels().star(_words(starts), neighbours, order) for order in _orders(np.diff(starts))]
    colours, near = min(found, key=lambda pair: pair[0].max(initial=-1))
    across = beside & (near[rows, colours[columns]] < 0)
    return colours, across
