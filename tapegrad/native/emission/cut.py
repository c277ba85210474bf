"""Which values a record keeps, so that its adjoint can compute all partials of them: as few as will do.

That is a least cut of a graph. By Menger's theorem it has as many values as there are ways from partials to
values that cannot be computed, no two of which meet: so these are found one after the other, each of them
turning others aside where it must.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias, TypeVar

Value = TypeVar("Value", bound=Hashable)
# A value is two nodes, its entrance and its exit, between which there is room for one way.
Node: TypeAlias = tuple[Hashable, bool]
_ENTRANCE, _EXIT = False, True
_END: Node = (None, _EXIT)  # what cannot be computed leads there


def fewest(roots: Iterable[Value], parts: Mapping[Value, Sequence[Value] | None]) -> set[Value]:
    """Return the least set of values by which all roots can be computed; of several the nearest to these.

    Parameters
    ----------
    roots
        What is to be computed.
    parts
        Of each value what it is computed of; None of those that cannot be.
    """
    starts: list[Node] = [(root, _ENTRANCE) for root in roots]
    on: dict[Node, set[Node]] = {_END: set()}
    for value, operands in parts.items():
        on[value, _ENTRANCE] = {(value, _EXIT)}
        on[value, _EXIT] = {_END} if operands is None else {(part, _ENTRANCE) for part in operands}
    closed: set[Node] = set()  # from where no way leads on, now or later
    for start in starts:
        for a, b in pairwise(_way(start, on, closed)):
            if a[1] is _ENTRANCE or b == (a[0], _ENTRANCE):  # else any number of ways fit
                on[a].remove(b)
            on[b].add(a)
    reached: set[Node] = set()
    for start in starts:
        _way(start, on, reached)
    return {value for value in parts if (value, _ENTRANCE) in reached and (value, _EXIT) not in reached}


def _way(start: Node, on: Mapping[Node, Iterable[Node]], closed: set[Node]) -> list[Node]:
    """Return the nodes of a way to the end; where there is none what was reached is closed."""
    came: dict[Node, Node | None] = {start: None}
    left: list[Node] = [] if start in closed else [start]
    while left:
        here = left.pop()
        for there in on[here]:
            if there in came or there in closed:
                continue
            came[there] = here
            if there == _END:
                found = [there]
                while (before := came[found[-1]]) is not None:
                    found.append(before)
                return found[::-1]
            left.append(there)
    closed.update(came)
    return []
