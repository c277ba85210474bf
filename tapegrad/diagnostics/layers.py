"""Places for boxes and the edges between them, in layers from above to below.

After Sugiyama, Tagawa, Toda, "Methods for visual understanding of hierarchical system structures" (1981):
each box in the layer above the first one that reads it, edges over several layers by way of points in those
between, the order within a layer by means of neighbours' places; then the nearest places to these means that
keep a distance, by pooling adjacent violators.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = ["Layout", "layout"]

ROUNDS = 6
LIGHT = 0.05  # the weight of what reads nothing
GAP, ABOVE = 22.0, 38.0  # between boxes, and between layers
Point = tuple[float, float]


class Layout(NamedTuple):
    """Centres of boxes, the points that each edge goes through, and the size of it all."""

    centres: list[Point]
    paths: list[list[Point]]
    width: float
    height: float


def layout(
    sizes: Sequence[Point], edges: Sequence[tuple[int, int]], apart: Sequence[tuple[int, int]] = ()
) -> Layout:
    """Lay out boxes.

    Parameters
    ----------
    sizes
        Width and height of each box; those that are read come before those that read them.
    edges
        Which box reads which: (read, reader).
    apart
        Pairs of which the first is above the second, though that need not read it.
    """
    n = len(sizes)
    level = _levels(n, [*edges, *apart])
    above: list[list[int]] = [[] for _ in range(n)]  # neighbours, of points too
    below: list[list[int]] = [[] for _ in range(n)]
    widths = [width for width, _ in sizes]
    chains = []
    for source, target in edges:
        chain = [source]
        for between in range(level[source] - 1, level[target], -1):
            chain.append(len(level))
            level.append(between)
            widths.append(0.0)
            above.append([])
            below.append([])
        chain.append(target)
        for upper, lower in pairwise(chain):
            below[upper].append(lower)
            above[lower].append(upper)
        chains.append(chain)
    layers = _ordered(level, above, below)
    x = _placed(layers, widths, above, below)
    left = min((x[k] - widths[k] / 2 for k in range(len(x))), default=0.0)
    right = max((x[k] + widths[k] / 2 for k in range(len(x))), default=0.0)
    centres: list[Point] = [(0.0, 0.0)] * len(x)
    y = 0.0
    for layer in layers:
        height = max((sizes[k][1] for k in layer if k < n), default=0.0)
        for k in layer:
            centres[k] = x[k] - left, y + height / 2
        y += height + ABOVE
    paths = []
    for chain in chains:
        (x0, y0), (x1, y1) = centres[chain[0]], centres[chain[-1]]
        inner = [centres[k] for k in chain[1:-1]]
        paths.append(
            [(x0, y0 + sizes[chain[0]][1] / 2), *inner, (x1, y1 - sizes[chain[-1]][1] / 2)],
        )
    return Layout(centres[:n], paths, right - left, max(y - ABOVE, 0.0))


def _levels(n: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """How many layers a box is above the last."""
    found = [0] * n
    for source, target in sorted(edges, key=lambda edge: -edge[1]):
        found[source] = max(found[source], found[target] + 1)
    return found


def _ordered(level: list[int], above: list[list[int]], below: list[list[int]]) -> list[list[int]]:
    """The layers from above to below, each in an order in which few edges cross."""
    top = max(level, default=-1)
    layers: list[list[int]] = [[] for _ in range(top + 1)]
    for k, high in enumerate(level):
        layers[top - high].append(k)
    place = [0.0] * len(level)

    def number(layer: list[int]) -> None:
        for q, k in enumerate(layer):
            place[k] = q - (len(layer) - 1) / 2

    for layer in layers:
        number(layer)
    for turn in range(ROUNDS):
        neighbours = below if turn % 2 == 0 else above
        for layer in layers[::-1] if turn % 2 == 0 else layers:
            wish = {k: _mean(place, neighbours[k]) if neighbours[k] else place[k] for k in layer}
            layer.sort(key=wish.__getitem__)
            number(layer)
    return layers


def _mean(places: list[float], of: list[int]) -> float:
    return sum(places[j] for j in of) / len(of)


def _placed(
    layers: list[list[int]], widths: list[float], above: list[list[int]], below: list[list[int]]
) -> list[float]:
    """Where each box and point is across: what reads nothing makes way for the rest, which stays in line."""
    x = [0.0] * len(widths)
    weights = [1.0 if reads else LIGHT for reads in above]

    def place(layer: list[int], wish: list[float]) -> None:
        for k, at in zip(layer, _apart(wish, layer, widths, weights), strict=True):
            x[k] = at

    for layer in layers:
        place(layer, [0.0] * len(layer))
    for turn in range(ROUNDS):
        neighbours = below if turn % 2 == 0 else above
        for layer in layers[::-1] if turn % 2 == 0 else layers:
            wish = []
            for k in layer:
                near, heavy = x[k], sum(weights[j] for j in neighbours[k])
                if heavy:
                    near = sum(weights[j] * x[j] for j in neighbours[k]) / heavy
                wish.append(near)
            place(layer, wish)
    return x


def _apart(wish: list[float], layer: list[int], widths: list[float], weights: list[float]) -> list[float]:
    """The places nearest to those wished for, at which nothing overlaps."""
    offsets, at = [], 0.0
    for q, k in enumerate(layer):
        if q:
            at += (widths[layer[q - 1]] + widths[k]) / 2 + GAP
        offsets.append(at)
    blocks: list[tuple[float, float, int]] = []  # mean, weight, and of how many
    for k, want, offset in zip(layer, wish, offsets, strict=True):
        mean, weight, count = want - offset, weights[k], 1
        while blocks and blocks[-1][0] > mean:
            before, more, several = blocks.pop()
            mean = (mean * weight + before * more) / (weight + more)
            weight, count = weight + more, count + several
        blocks.append((mean, weight, count))
    means = [mean for mean, _, count in blocks for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
