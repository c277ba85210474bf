"""A graph as boxes and edges: what repeats once, the rest as one box; as SVG, and for Graphviz."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tapegrad.diagnostics.layers import layout
from tapegrad.diagnostics.page import Picture, escape, several, shortened, svg, time_text

if TYPE_CHECKING:
    from tapegrad.diagnostics.records import Entry, Snapshot

__all__ = ["Scheme", "boxes", "drawn", "in_dot", "repeats", "runs_of"]

LONGEST = 200  # operations in what is noticed to repeat
TIMES = 3  # how often at least
CHARACTERS = 34  # of a line in a box
MARGIN, PAD, LINE_HEIGHT = 18.0, 12.0, 16.0
FILLS = {"op": "#e7f0fb", "leaf": "#e4f4e8", "data": "#eef0f3", "call": "#f1eafb", "out": "#fdeedd"}


class Box(NamedTuple):
    """A box: its kind, lines of text, the first its name, what is shown when one points at it."""

    kind: str
    lines: tuple[str, ...]
    title: str = ""


class Loop(NamedTuple):
    """Boxes that stand for what was recorded several times in a row."""

    times: int
    members: list[int]


class Scheme(NamedTuple):
    """What is to be drawn. Edges are (read, reader), `carried` those to the next time of a loop."""

    boxes: list[Box]
    edges: list[tuple[int, int]]
    carried: list[tuple[int, int]]
    loops: list[Loop]


class Run(NamedTuple):
    """Where something repeats: its first operation, how many it has, how often."""

    first: int
    period: int
    times: int


def repeats(exact: Sequence[object], coarse: Sequence[object], cut: bool = False) -> list[Run]:
    """Find what comes at least three times in a row, in order.

    Parameters
    ----------
    exact
        What tells an operation from others, its operands' distances too.
    coarse
        The same without operands: the first time around may read others, those that a loop starts with.
    cut
        Whether something came before the first operation, so that what repeats there may begin with a part.
    """
    n = len(exact)
    numbers: dict[object, int] = {}
    keys = np.array([numbers.setdefault(key, len(numbers)) for key in exact], np.int64)
    found = []
    for period in range(1, min(LONGEST, n // TIMES) + 1):
        same = np.flatnonzero(np.diff(np.r_[0, keys[period:] == keys[:-period], 0]))
        for first, end in same.reshape(-1, 2).tolist():
            while first and coarse[first - 1] == coarse[first - 1 + period]:
                first -= 1
            times = (end - first) // period + 1
            if cut and not first:
                first = (end - first) % period
            if times >= TIMES:
                found.append(Run(first, period, times))
    taken = bytearray(n)
    chosen = []
    for run in sorted(found, key=lambda run: (-run.period * (run.times - 1), run.period, run.first)):
        span = slice(run.first, run.first + run.period * run.times)
        if not any(taken[span]):
            taken[span] = bytes([1]) * (span.stop - span.start)
            chosen.append(run)
    return sorted(chosen)


def boxes(graph: Snapshot, group: str | None, limit: int) -> Scheme:
    """Put a graph's records into boxes; see `Graph.draw`."""
    if group not in ("repeats", "lines", None):
        raise ValueError(f"draw: group takes 'repeats', 'lines' or None, found {group!r}")
    if type(limit) is not int or limit < 1:
        raise ValueError(f"draw: limit is a whole number from 1, found {limit!r}")
    operations = _operations(graph)
    if group == "lines":
        parts, runs = _by_lines(graph.records, operations), []
    else:
        runs = runs_of(graph) if group else []
        parts = _by_runs(operations, runs)
        if runs and not graph.complete and runs[0].first < runs[0].period:  # the end of one time around
            parts = parts[runs[0].first :]
    return _Boxing(graph, parts, runs, limit).scheme()


def _operations(graph: Snapshot) -> list[int]:
    return [k for k, entry in enumerate(graph.records) if entry.kind in ("operation", "call")]


def runs_of(graph: Snapshot) -> list[Run]:
    """What repeats among the operations of a graph, by their number among these."""
    records, operations = graph.records, _operations(graph)

    def read(k: int, j: int) -> object:
        operand = None if j < 0 else records[j]
        if operand is None or operand.kind in ("operation", "call"):
            return k - j
        return j if operand.kind == "leaf" else operand[3:5]

    coarse = [(entry.name, entry.dtype, entry.shape) for entry in map(records.__getitem__, operations)]
    exact = [
        (*mine, *(read(k, j) for j in records[k].operands))
        for k, mine in zip(operations, coarse, strict=True)
    ]
    return repeats(exact, coarse, not graph.complete)


def _by_runs(operations: list[int], runs: list[Run]) -> list[list[int]]:
    """The records of each box: of what repeats, those of all times."""
    parts, at = [], 0
    for first, period, times in runs:
        parts += [[k] for k in operations[at:first]]
        at = first + period * times
        parts += [operations[first + q : at : period] for q in range(period)]
    return parts + [[k] for k in operations[at:]]


def _by_lines(records: list[Entry], operations: list[int]) -> list[list[int]]:
    parts: list[list[int]] = []
    for k in operations:
        line = records[k].line
        if parts and line is not None and records[parts[-1][-1]].line == line:
            parts[-1].append(k)
        else:
            parts.append([k])
    return parts


class _Boxing:
    """Boxes of the last parts of a graph, and of what they read."""

    def __init__(self, graph: Snapshot, parts: list[list[int]], runs: list[Run], limit: int) -> None:
        self.graph, self.records = graph, graph.records
        self.parts = parts[-limit:]
        self.left_out = graph.operations - sum(map(len, self.parts))
        self.part_of = {k: q for q, part in enumerate(self.parts) for k in part}
        self.runs = runs
        self.boxes: list[Box] = []
        self.box_of: dict[
            int, int
        ] = {}  # by place in the records, of what is no operation; -1 what is left out

    def scheme(self) -> Scheme:
        """What is to be drawn."""
        read = {j for part in self.parts for k in part for j in self.records[k].operands}
        read |= {j for j in self.graph.outputs if j >= 0}
        before = {j for j in read if j < 0 or (j not in self.part_of and self._is_operation(j))}
        if before:
            self.box_of.update(dict.fromkeys(before, 0))
            about = "" if self.graph.complete else "at most "
            self.boxes.append(Box("earlier", (f"{about}{several(self.left_out, 'earlier operation')}",)))
        for j in sorted(read - before):
            if not self._is_operation(j) and (not self.records[j].is_number or j in self.graph.outputs):
                self.box_of[j] = len(self.boxes)
                self.boxes.append(self._input(j))
        first = len(self.boxes)
        self.box_of |= {k: first + q for k, q in self.part_of.items()}
        self.boxes += map(self._operation, self.parts)
        edges: dict[tuple[int, int], None] = {}
        carried: dict[tuple[int, int], None] = {}
        for q, part in enumerate(self.parts):
            for k in part:
                for j in self.records[k].operands:
                    edge = self.box_of.get(j, -1), first + q
                    if 0 <= edge[0] < edge[1]:
                        edges[edge] = None
                    elif edge[0] >= 0 and self.runs:
                        carried[edge] = None
        return Scheme(self.boxes, list(edges), list(carried), self._loops(first))

    def _is_operation(self, j: int) -> bool:
        return j >= 0 and self.records[j].kind in ("operation", "call")

    def _loops(self, first: int) -> list[Loop]:
        """The boxes of each run, but of those left out."""
        start = sum(not self._is_operation(j) for j in range(len(self.records)))
        found = []
        for run in self.runs:
            parts = [self.part_of.get(start + run.first + q) for q in range(run.period)]
            members = [first + q for q in parts if q is not None]
            if members:
                found.append(Loop(run.times, members))
        return found

    def _input(self, j: int) -> Box:
        entry = self.records[j]
        if entry.kind == "leaf":
            return Box("leaf", (shortened(entry.name or "leaf", CHARACTERS), entry.described), entry.name)
        return Box("data", (entry.name or "data", entry.described))

    def _operation(self, part: list[int]) -> Box:
        entries = [self.records[k] for k in part]
        last = entries[-1]
        kind = "out" if set(part) & set(self.graph.outputs) else "call" if last.kind == "call" else "op"
        names = list(dict.fromkeys(entry.name for entry in entries))
        if len(names) > 1:  # of one line
            lines = [last.line.text if last.line else "", ", ".join(names)]
        else:
            lines = [names[0] + self._numbers(entries)]
        lines.append(last.described)
        took = [
            f"{what} {time_text(sum(times))}"
            for what, times in (
                ("forward", [e.forward for e in entries if e.forward is not None]),
                ("backward", [e.backward for e in entries if e.backward is not None]),
            )
            if times
        ]
        where = [str(last.line)] if last.line else []
        lines += [", ".join(took)] * bool(took) + where
        title = "\n".join([*lines, *([last.line.text] if last.line else [])])
        return Box(kind, tuple(shortened(line, CHARACTERS) for line in lines), title)

    def _numbers(self, entries: list[Entry]) -> str:
        """The operands of a record that are numbers, if they are the same for all that a box stands for."""
        texts = set()
        for entry in entries:
            given = [None if j < 0 else self.records[j] for j in entry.operands]
            if not any(x is not None and x.is_number for x in given) or len(given) > 3:
                return ""
            texts.add(", ".join("·" if x is None or not x.is_number else x.name for x in given))
        return f"({texts.pop()})" if len(texts) == 1 else ""


# ---------------------------------------------------------------- SVG


def _width(text: str) -> float:
    """About how wide a text is, in ems of a common sans-serif."""
    narrow, wide = sum(c in " .,:;'|()[]!ijltfrI" for c in text), sum(c in "mwMW@%—" for c in text)
    capital = sum(c.isupper() for c in text)
    return 0.6 * len(text) - 0.24 * narrow + 0.4 * wide + 0.1 * capital


def _size(box: Box) -> tuple[float, float]:
    widest = max(_width(line) * (13.0 if q == 0 else 11.5) for q, line in enumerate(box.lines))
    return widest + 2 * PAD, LINE_HEIGHT * len(box.lines) + PAD


def drawn(scheme: Scheme) -> Picture:
    """The boxes as a picture."""
    sizes = [_size(box) for box in scheme.boxes]
    loops = {k: loop.members for loop in scheme.loops for k in loop.members}
    leaving = {
        (source, target) for source, target in scheme.edges if target not in loops.get(source, [target])
    }
    places = layout(sizes, scheme.edges, [(k, target) for source, target in leaving for k in loops[source]])
    sides = [_sides(centre, size) for centre, size in zip(places.centres, sizes, strict=True)]
    parts, right, lane = [], places.width, dict.fromkeys(range(len(sides)), places.width)
    for loop in scheme.loops:
        inner = [sides[k] for k in loop.members]
        x0, y0 = min(s[0] for s in inner) - 14, min(s[1] for s in inner) - 24
        x1, y1 = max(s[2] for s in inner) + 36, max(s[3] for s in inner) + 14
        right = max(right, x1)
        lane.update(dict.fromkeys(loop.members, x1 - 12))
        parts.append(
            f'<rect class="loop" x="{x0:.1f}" y="{y0:.1f}" width="{x1 - x0:.1f}" '
            f'height="{y1 - y0:.1f}" rx="8"/>'
            f'<text class="small" x="{x1 - 8:.1f}" y="{y0 + 15:.1f}" text-anchor="end">'
            f"{loop.times:,} times</text>"
        )
    for path in places.paths:
        parts.append(_edge(path))
    for source, target in scheme.carried:
        parts.append(_carried(sides[source], sides[target], lane[source]))
    for box, place in zip(scheme.boxes, sides, strict=True):
        parts.append(_box(box, place))
    width, height = right + 2 * MARGIN, places.height + 2 * MARGIN
    label = f"computational graph: {several(len(scheme.boxes), 'node')}"
    view = f"{-MARGIN:g} {-MARGIN:g} {width:.0f} {height:.0f}"
    return Picture(svg(label, f"{width:.0f}", height, view), "".join(parts))


Sides = tuple[float, float, float, float]


def _sides(centre: tuple[float, float], size: tuple[float, float]) -> Sides:
    (x, y), (w, h) = centre, size
    return x - w / 2, y - h / 2, x + w / 2, y + h / 2


def _edge(path: list[tuple[float, float]]) -> str:
    (x, y), text = path[0], ""
    for x1, y1 in path[1:]:
        middle = (y + y1) / 2
        text += f"C{x:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
        x, y = x1, y1
    start = f"M{path[0][0]:.1f} {path[0][1]:.1f}"
    return f'<path class="edge" d="{start}{text}"/>{_tip(x, y)}'


def _tip(x: float, y: float) -> str:
    return f'<path class="tip" d="M{x:.1f} {y:.1f}l-3.5 -7h7z"/>'


def _carried(source: Sides, target: Sides, lane: float) -> str:
    """An edge along a lane on the right, from the end of one time to the next."""
    x0, y0 = source[2], (source[1] + source[3]) / 2 + 6
    x1, y1 = target[2], (target[1] + target[3]) / 2 - 6
    lane = x1 + 20 if source == target else lane
    reach = max(x0, x1) + (lane - max(x0, x1)) / 0.75  # a curve goes three quarters of the way
    return (
        f'<path class="edge carried" d="M{x0:.1f} {y0:.1f}C{reach:.1f} {y0:.1f} {reach:.1f} {y1:.1f} '
        f'{x1 + 7:.1f} {y1:.1f}"/><path class="tip" d="M{x1:.1f} {y1:.1f}l7 -3.5v7z"/>'
    )


def _box(box: Box, sides: Sides) -> str:
    x0, y0, x1, y1 = sides
    round_ = 12 if box.kind in ("leaf", "data") else 4
    title = f"<title>{escape(box.title)}</title>" if box.title else ""
    texts = "".join(
        f'<text class="{"name" if q == 0 and box.kind != "earlier" else "small"}" x="{(x0 + x1) / 2:.1f}" '
        f'y="{y0 + PAD / 2 + LINE_HEIGHT * (q + 0.75):.1f}" text-anchor="middle">{escape(line)}</text>'
        for q, line in enumerate(box.lines)
    )
    return (
        f'<g>{title}<rect class="{box.kind}" x="{x0:.1f}" y="{y0:.1f}" width="{x1 - x0:.1f}" '
        f'height="{y1 - y0:.1f}" rx="{round_}"/>{texts}</g>'
    )


# ---------------------------------------------------------------- Graphviz


def _quoted(lines: Sequence[str]) -> str:
    """A string of Graphviz's language."""
    texts = (
        escaped.replace("\n", " ") for escaped in (t.replace("\\", "\\\\").replace('"', '\\"') for t in lines)
    )
    return '"' + "\\n".join(texts) + '"'


def in_dot(scheme: Scheme) -> str:
    """The boxes in the language of Graphviz."""
    lines = ["digraph {", '  node [shape=box style="rounded,filled" fontname="Helvetica" fontsize=11]']
    for k, box in enumerate(scheme.boxes):
        fill = f" fillcolor={_quoted([FILLS[box.kind]])}" if box.kind in FILLS else ' style="rounded,dashed"'
        lines.append(f"  b{k} [label={_quoted(box.lines)}{fill}]")
    for q, loop in enumerate(scheme.loops):
        members = "; ".join(f"b{k}" for k in loop.members)
        lines.append(f'  subgraph cluster_{q} {{ label="{loop.times} times" style=dashed; {members} }}')
    lines += [f"  b{source} -> b{target}" for source, target in scheme.edges]
    lines += [
        f"  b{source} -> b{target} [style=dashed constraint=false]" for source, target in scheme.carried
    ]
    return "\n".join([*lines, "}", ""])
