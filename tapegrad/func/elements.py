"""A graph of elements: which of them others are computed from, and which inputs they come from at last."""

from __future__ import annotations

import functools
import inspect
import os
import textwrap
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

import numpy as np

from tapegrad.errors import GradientError
from tapegrad.kernels import cache


def compiled(name: str, functions: dict[Callable[..., Any], str]) -> ModuleType:
    """Return a module with compiled forms of Python functions, each with the types of its arguments."""
    parts = ["from __future__ import annotations\nfrom numba import njit\nimport numpy as np\n"]
    for function, arguments in functions.items():
        text = textwrap.dedent(inspect.getsource(function))
        parts.append(f'@njit("({arguments})", cache=CACHE, boundscheck=BOUNDS, nogil=True)\n{text}')
    return cache.load(name, "\n\n".join(parts))


def leading(starts: np.ndarray, sources: np.ndarray, wanted: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Marks of the nodes that any of those wanted is computed from, these among them."""
    needed = np.zeros(inputs + starts.size, np.uint8)
    for k in range(wanted.size):
        needed[wanted[k]] = 1
    for node in range(needed.size - 1, inputs, -1):
        if needed[node]:
            for e in range(starts[node - inputs - 1], starts[node - inputs]):
                needed[sources[e]] = 1
    return needed


def following(starts: np.ndarray, sources: np.ndarray, needed: np.ndarray, inputs: np.ndarray) -> Any:
    """The needed nodes that are computed from each: where its own begin, and all of them."""
    nodes = needed.size
    after = np.zeros(nodes + 1, np.int64)
    for node in range(inputs + 1, nodes):
        if needed[node]:
            for e in range(starts[node - inputs - 1], starts[node - inputs]):
                after[sources[e] + 1] += 1
    for node in range(nodes):
        after[node + 1] += after[node]
    targets = np.empty(after[nodes], np.int64)
    cursor = after[:nodes].copy()
    for node in range(inputs + 1, nodes):
        if needed[node]:
            for e in range(starts[node - inputs - 1], starts[node - inputs]):
                targets[cursor[sources[e]]] = node
                cursor[sources[e]] += 1
    return after, targets


def listed(
    first: Any, after: Any, targets: Any, seen: Any, cursor: Any, path: Any, order: Any, count: Any
) -> Any:
    """List the nodes computed from the one that `path` begins with, each after all that follow it.

    Those that have been `seen` since the input `first` are listed already; returns how many there are.
    """
    depth = 1
    seen[path[0]] = first
    cursor[path[0]] = after[path[0]]
    while depth:
        node = path[depth - 1]
        if cursor[node] == after[node + 1]:
            order[count] = node
            count += 1
            depth -= 1
            continue
        other = targets[cursor[node]]
        cursor[node] += 1
        if seen[other] != first:
            seen[other] = first
            cursor[other] = after[other]
            path[depth] = other
            depth += 1
    return count


def reach(starts: np.ndarray, sources: np.ndarray, wanted: np.ndarray, inputs: Any, most: np.ndarray) -> Any:
    """The inputs that nodes come from, as pairs of a place among those wanted and an input.

    Node 0 comes from nothing, nodes 1 to `inputs` are the inputs, each later one has sources of its own
    before it. Of 64 inputs at a time the nodes computed from them are listed, and a word of 64 bits is handed
    on in this order; nodes that nothing wanted is computed from are left out. It ends when there are more
    pairs than the `most`.
    """
    needed = leading(starts, sources, wanted, inputs)
    after, targets = following(starts, sources, needed, inputs)
    nodes = needed.size
    row = np.full(nodes, -1, np.int64)
    for k in range(wanted.size):
        row[wanted[k]] = k
    seen, bits = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    cursor, order, path = np.empty(nodes, np.int64), np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    rows, columns = np.empty(1024, np.int64), np.empty(1024, np.int64)
    found = 0
    for first in range(1, inputs + 1, 64):
        if found > most:
            break
        count = 0
        for b in range(min(64, inputs + 1 - first)):
            if needed[first + b]:
                bits[first + b] = np.int64(1) << b
                path[0] = first + b
                count = listed(first, after, targets, seen, cursor, path, order, count)
        for q in range(count - 1, -1, -1):
            node = order[q]
            word = bits[node]
            bits[node] = 0
            for e in range(after[node], after[node + 1]):
                bits[targets[e]] |= word
            if row[node] < 0:
                continue
            for b in range(64):
                if word >> b & 1:
                    if found == rows.size:
                        rows = np.concatenate((rows, rows))
                        columns = np.concatenate((columns, columns))
                    rows[found] = row[node]
                    columns[found] = first + b - 1
                    found += 1
    return rows[:found].copy(), columns[:found].copy()


@functools.cache
def _kernels() -> ModuleType:
    whole, graph = "int64[::1]", "int64[::1], int64[::1], int64[::1], int64"
    return compiled(
        "elements",
        {
            leading: graph,
            following: f"{whole}, {whole}, uint8[::1], int64",
            listed: f"int64, {', '.join([whole] * 6)}, int64",
            reach: f"{graph}, int64",
        },
    )


def room() -> int:
    """How many elements of a matrix memory has room for, with all that it takes to find them."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 64


def check_room(count: int, most: int) -> None:
    """Raise an error if a matrix has more elements than there is room for."""
    if count > most:
        raise GradientError(
            f"the matrix is not sparse: more than {most} of its elements depend on the argument, for which "
            "there is no memory; use products with it: tg.autograd.functional.hvp, jvp or vjp"
        )


def leading_to(last: int, sources: np.ndarray) -> np.ndarray:
    """Marks of the rows, counted from 1, that the last one comes from; each has its sources, 0 for none."""
    starts = np.arange(0, sources.size + 1, sources.shape[1])
    wanted = np.full(1, last, np.int64)
    mark = _kernels().leading(starts, np.ascontiguousarray(sources).reshape(-1), wanted, 0)
    mark[0] = 0
    return mark[1:].astype(bool)


class Elements:
    """Nodes for elements of arrays, from those that are differentiated by; 0 is one that depends on nothing.

    An element that depends on what another one does has its node: only where several come together there
    is a new one, and where a second derivative is not 0: such a node has pairs of nodes by which it is
    taken.
    """

    def __init__(self, inputs: int) -> None:
        self.inputs, self.next = inputs, inputs + 1
        self._counts: list[np.ndarray] = []
        self._sources: list[np.ndarray] = []
        self._few_counts: list[int] = []  # of nodes made one by one, not yet among the arrays
        self._few_sources: list[int] = []
        self._pairs: list[np.ndarray] = []
        self._few_pairs: list[tuple[int, int, int]] = []

    def one(self, sources: set[int]) -> int:
        """Return the node of what is computed from some nodes."""
        sources.discard(0)
        if len(sources) < 2:
            return sources.pop() if sources else 0
        return self.new(sources)

    def new(self, different: Collection[int]) -> int:
        """Return a new node of different nodes, none of them 0."""
        self._few_counts.append(len(different))
        self._few_sources += different
        self.next += 1
        return self.next - 1

    def many(self, counts: np.ndarray, sources: np.ndarray) -> np.ndarray:
        """Return new nodes, each of so many of the sources, which come one after the other."""
        self._gather()
        self._counts.append(counts)
        self._sources.append(sources)
        self.next += counts.size
        return np.arange(self.next - counts.size, self.next)

    def bend(self, node: int, first: int, second: int) -> None:
        """Note that a node's second derivative by two nodes is not 0."""
        self._few_pairs.append((node, first, second))

    def bend_many(self, nodes: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
        """As `bend`, for arrays, in which 0 is nothing."""
        parts = [x.reshape(-1) for x in np.broadcast_arrays(nodes, first, second)]
        there = (parts[1] != 0) & (parts[2] != 0)
        self._pairs.append(np.stack([x[there] for x in parts]))

    def _gather(self) -> None:
        if self._few_counts:
            self._counts.append(np.array(self._few_counts))
            self._sources.append(np.array(self._few_sources))
            self._few_counts, self._few_sources = [], []

    def joined(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return the nodes of what is computed of two arrays element by element."""
        a, b = np.broadcast_arrays(a, b)
        out = np.where(b == 0, a, b)
        both = (a != 0) & (b != 0) & (a != b)
        if both.any():
            pairs = np.stack([a[both], b[both]], axis=-1)
            out[both] = self.many(np.full(len(pairs), 2), pairs.reshape(-1))
        return out

    def collected(self, sources: np.ndarray, targets: np.ndarray, size: int) -> np.ndarray:
        """Return nodes of `size` elements, each computed of the sources for which it is the target."""
        sources, targets = sources.reshape(-1), targets.reshape(-1)
        kept = sources != 0
        sources, targets = sources[kept], targets[kept]
        order = np.lexsort((sources, targets))
        sources, targets = sources[order], targets[order]
        new = np.ones(sources.size, bool)
        new[1:] = (sources[1:] != sources[:-1]) | (targets[1:] != targets[:-1])
        sources, targets = sources[new], targets[new]
        counts = np.bincount(targets, minlength=size)
        out = np.zeros(size, np.int64)
        alone = counts[targets] == 1
        out[targets[alone]] = sources[alone]
        several = counts > 1
        if several.any():
            out[several] = self.many(counts[several], sources[~alone])
        return out

    def _graph(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the sources of each node that is no input begin, and all sources."""
        self._gather()
        counts = np.concatenate([np.zeros(1, np.int64), *self._counts])
        return np.cumsum(counts), np.concatenate([np.zeros(0, np.int64), *self._sources])

    def pairs_of(self, wanted: np.ndarray) -> np.ndarray:
        """Return the pairs of all nodes that nodes are computed from, each once, as two rows."""
        few = np.array(self._few_pairs, np.int64).reshape(-1, 3).T
        nodes, first, second = np.concatenate([few, *self._pairs], axis=1)
        alive = _kernels().leading(*self._graph(), wanted[wanted != 0], self.inputs)[nodes] != 0
        low, high = np.minimum(first, second)[alive], np.maximum(first, second)[alive]
        order = np.lexsort((high, low))
        low, high = low[order], high[order]
        new = np.ones(low.size, bool)
        new[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
        return np.stack([low[new], high[new]])

    def inputs_of(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs that nodes depend on: pairs of a place in `wanted` and an input."""
        starts, sources = self._graph()
        mark = np.zeros(self.next, bool)
        mark[wanted] = True
        mark[0] = False
        different = np.flatnonzero(mark)
        most = room()
        rows, columns = _kernels().reach(starts, sources, different, self.inputs, most)
        check_room(rows.size, most)
        order = np.lexsort((columns, rows))
        rows, columns = rows[order], columns[order]
        begin = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=different.size)), [0]])
        number = np.cumsum(mark) - 1
        at = np.where(mark[wanted], number[wanted], different.size)
        lengths = np.where(mark[wanted], begin[at + 1] - begin[at], 0)
        first = np.repeat(begin[at] - (np.cumsum(lengths) - lengths), lengths)
        places = np.repeat(np.arange(wanted.size), lengths)
        return places, columns[first + np.arange(places.size)]
