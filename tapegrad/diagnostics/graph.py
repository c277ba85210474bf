"""The records that Tensors were computed by: listed, and drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tapegrad.autograd.profiler_util import EventList
from tapegrad.core.base import Handle
from tapegrad.diagnostics.records import EARLIER, Snapshot, Walk, times_of

if TYPE_CHECKING:
    from tapegrad.autograd.profiler import profile as Profile
    from tapegrad.diagnostics.page import Picture
    from tapegrad.tensor import Tensor

__all__ = ["Graph"]

LIMIT = 1000  # operations that are looked at, if nothing else is said


class Graph(Snapshot):
    """The operations that Tensors were computed by: what a derivative of them would sweep.

    A snapshot: it keeps no Tensor and no tape, and what is recorded or released later does not change it.
    Printed, and shown in notebooks, it lists records in the order of the tape.

    Parameters
    ----------
    outputs : Tensor or sequence of Tensor
    names : mapping of str to Tensor, optional
        What leaves are called.
    profile : profile or EventList, optional
        The profile under which they were recorded, for times and, if it noted them, lines.
    limit : int, optional
        How many operations are looked at, the last ones; what is older is counted by tapes.

    Attributes
    ----------
    records : list of Entry
        Leaves, then constants, then operations as they stand on the tape.
    counts : dict
        How many operations of each name there are; where the graph is larger than the limit, on all tapes
        that it reaches.
    complete : bool
        Whether all is listed.

    Raises
    ------
    TypeError
        An output is no Tensor.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> print(tg.diagnostics.Graph(np.sum(np.sin(x) * 2.0), names={"x": x}))
    3 operations, 1 leaf, 1 constant
    %0  leaf x          float64 (2,)  kept
    %1  sin(%0)         float64 (2,)  kept
    %2  multiply(%1, 2) float64 (2,)  kept
    %3  sum(%2)         float64 ()    kept
    """

    def __init__(
        self,
        outputs: Tensor | Sequence[Tensor],
        names: Mapping[str, Tensor] | None = None,
        profile: Profile | EventList | None = None,
        limit: int = LIMIT,
    ) -> None:
        if not isinstance(outputs, (Handle, Iterable)):
            raise TypeError(f"Graph takes Tensors that were computed, found {type(outputs).__name__}")
        listed = [outputs] if isinstance(outputs, Handle) else list(outputs)
        if not isinstance(names, Mapping | None):
            raise TypeError(f'Graph: names are a mapping, as {{"x": x}}, found {type(names).__name__}')
        for x in (*listed, *(names or {}).values()):
            if not isinstance(x, Handle):
                raise TypeError(f"Graph takes Tensors, found {type(x).__name__}")
        if type(limit) is not int or limit < 1:
            raise ValueError(f"Graph: limit is a whole number from 1, found {limit!r}")
        walk = Walk(names or {}, {} if profile is None else times_of(profile))
        roots = [walk.root(x) for x in listed]
        self.complete = walk.back_from(roots, limit)
        self.counts = walk.counts(self.complete)
        self.records, places = walk.listed()
        self.outputs = [places.get(key, EARLIER) for key in roots]

    # ------------------------------------------------------------ what it shows

    def __repr__(self) -> str:
        from tapegrad.diagnostics.listing import text

        return text(self)

    def _repr_html_(self) -> str:
        from tapegrad.diagnostics.listing import html
        from tapegrad.diagnostics.page import display

        return display(html(self))

    def draw(self, group: str | None = "repeats", limit: int = 80) -> Picture:
        """Draw the operations as boxes, from the leaves down to the outputs.

        Parameters
        ----------
        group : {"repeats", "lines", None}
            Draw what repeats, as the steps of a loop, once; or one box for what a line of the user's code
            recorded in a row, where lines are known; or every record.
        limit : int, optional
            Boxes, those nearest to the outputs.

        Returns
        -------
        Picture

        Raises
        ------
        ValueError
            Another way to group.
        """
        from tapegrad.diagnostics.drawing import boxes, drawn

        return drawn(boxes(self, group, limit))

    def dot(self, group: str | None = "repeats", limit: int = 80) -> str:
        """Return the same drawing in the language of Graphviz.

        Parameters
        ----------
        group, limit
            As in `draw`.

        Returns
        -------
        str
        """
        from tapegrad.diagnostics.drawing import boxes, in_dot

        return in_dot(boxes(self, group, limit))
