"""What is known of a compiled function, for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LEARNING = "being learned, by a thread beside the calls"


class Way(NamedTuple):
    """A way through a function, as far as it is of interest.

    Attributes
    ----------
    calls
        How many followed it to its end.
    operations, compared
        How many it has, and how many of these are compared in compiled code.
    by_python
        Names of operations that Python computes, and rules that it runs, each once.
    result
        Which operation gives the result.
    second
        What is known of Hessians: nothing if none was asked for.
    fused
        Whether kernels compute it, or why not.
    """

    calls: int
    operations: int
    compared: int
    by_python: tuple[str, ...]
    result: int
    second: str
    fused: tuple[str, ...]

    def __str__(self) -> str:
        parts = [
            f"{several(self.calls, 'call')}, {several(self.operations, 'operation')}",
            f"{self.compared:,} compared in compiled code",
        ]
        if self.by_python:
            parts.append(f"run by Python: {', '.join(self.by_python)}")
        return "; ".join([*parts, *self.fused, *filter(None, [self.second])])


class Calls(NamedTuple):
    """Calls with arguments of one kind.

    Attributes
    ----------
    arguments
        Dtypes and shapes of the leaves.
    total
        How many calls there were.
    ways
        Those that are known, the latest first.
    left
        How many calls were recorded that had begun on a way, by why they left it.
    not_learned
        Why the latest call that was learned from gave no way.
    learning
        Whether a way is being made.
    replayed
        At how many calls Python was skipped, where that was asked for.
    """

    arguments: str
    total: int
    ways: tuple[Way, ...]
    left: dict[str, int]
    not_learned: str
    learning: bool
    replayed: str = ""


class Explanation(str):
    """Text about a compiled function; notebooks show it as a table.

    Attributes
    ----------
    name
        Of the function.
    kinds
        Its calls, by kinds of arguments.
    forgotten
        Of how many kinds more nothing is known any longer, as calls of others have come since.
    """

    name: str
    kinds: tuple[Calls, ...]
    forgotten: int

    def __new__(cls, name: str, kinds: Sequence[Calls], forgotten: int = 0) -> Explanation:
        """Put the text together."""
        lines = [] if kinds else [f"{name}: no calls yet that a program could serve"]
        for kind in kinds:
            lines.append(f"{name}: {several(kind.total, 'call')} with {kind.arguments}")
            lines += [f"  way {k}: {way}" for k, way in enumerate(kind.ways, 1)]
            lines += [f"  left a way, {several(n, 'call')}: {why}" for why, n in kind.left.items()]
            lines += [f"  not learned: {kind.not_learned}"] if kind.not_learned else []
            lines += [f"  {LEARNING}"] if kind.learning else []
            lines += [f"  {kind.replayed}"] if kind.replayed else []
        if forgotten:
            lines.append(f"{name}: {several(forgotten, 'kind')} of arguments more, forgotten for later ones")
        made = super().__new__(cls, "\n".join(lines))
        made.name, made.kinds, made.forgotten = name, tuple(kinds), forgotten
        return made

    def __repr__(self) -> str:
        return str(self)

    def __getnewargs__(self) -> tuple[str, tuple[Calls, ...], int]:  # type: ignore[override]
        return self.name, self.kinds, self.forgotten


def several(n: int, what: str) -> str:
    """A number of things in words."""
    return f"{n:,} {what}{'s' * (n != 1)}"
