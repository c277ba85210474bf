"""What rows do, as those see it that look for plans and groups; of many rows no more than their kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

from tapegrad.kernels.replay import layout


class Step(NamedTuple):
    """What a row does: its kind, a ufunc, `Kernel` or function, and the arrays that it reads and writes."""

    kind: int
    function: Any = None
    reads: tuple[Any, ...] = ()
    writes: tuple[Any, ...] = ()
    extent: int = 0


NOTHING = Step(layout.BY_LOOP)
FORGOTTEN = {kind: Step(kind) for kind in (layout.BY_LOOP, layout.BY_KERNEL, layout.BY_REDUCTION)}


class Steps(Sequence[Step]):
    """Steps in order, of which the first ones may be forgotten: of these only the kinds are known."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self._kinds = bytearray()  # of the first ones
        self._kept: dict[int, Step] = {}  # of these that are not forgotten
        self._latest: list[Step] = [*steps]  # all behind them

    def __len__(self) -> int:
        return len(self._kinds) + len(self._latest)

    def __iter__(self) -> Iterator[Step]:
        return map(self.__getitem__, range(len(self)))

    @overload
    def __getitem__(self, k: int) -> Step: ...
    @overload
    def __getitem__(self, k: slice) -> list[Step]: ...
    def __getitem__(self, k: Any) -> Any:
        if type(k) is slice:
            return [self[q] for q in range(len(self))[k]]
        begin = len(self._kinds)
        if k >= begin:
            return self._latest[k - begin]
        return self._kept.get(k) or FORGOTTEN[self._kinds[k]]

    def latest(self, begin: int) -> Sequence[Step]:
        """Return those from one on, before which all are forgotten."""
        return self._latest[begin - len(self._kinds) :]

    def append(self, step: Step) -> None:
        """Add a step."""
        self._latest.append(step)

    def replace(self, **parts: Any) -> None:
        """Say otherwise what parts of the latest step are."""
        self._latest[-1] = self._latest[-1]._replace(**parts)

    def cut(self, first: int) -> list[Step]:
        """Take away the steps from one on, of which none is forgotten."""
        begin = first - len(self._kinds)
        found = self._latest[begin:]
        del self._latest[begin:]
        return found

    def forget(self, is_forgotten: Callable[[Step], bool]) -> None:
        """Forget those of the steps, up to the latest, that are said to be, or have no arrays."""
        begin = len(self._kinds)
        self._kept |= {
            k: step
            for k, step in enumerate(self._latest, begin)
            if step.kind not in FORGOTTEN or ((step.reads or step.writes) and not is_forgotten(step))
        }
        self._kinds += bytes(step.kind for step in self._latest)
        self._latest.clear()
