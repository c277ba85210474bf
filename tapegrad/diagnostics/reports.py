"""A page about a run: how long what took, memory, what was logged, gradients, the graph, the environment."""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tapegrad.autograd.profiler import profile
from tapegrad.autograd.profiler_util import EventList, FunctionEventAvg
from tapegrad.core.base import Handle
from tapegrad.diagnostics.flame import events_of, flame_chart
from tapegrad.diagnostics.functions import show_config
from tapegrad.diagnostics.graph import Graph
from tapegrad.diagnostics.page import (
    bytes_text,
    details,
    display,
    escape,
    page,
    several,
    shortened,
    svg,
    table,
    time_text,
)
from tapegrad.diagnostics.records import Line, line_of
from tapegrad.tensor import Operand

if TYPE_CHECKING:
    from os import PathLike

    from tapegrad.tensor import Tensor

__all__ = ["Run", "of_events", "report"]

POINTS = 400  # of a curve
SAMPLES = 2000  # of the memory in use; when there are more, every other one is forgotten
ROWS = 40  # of a table
LENGTH = 80  # of a line of code
RECORDS = 300  # of the graph that is shown
INTERVAL = 0.02  # seconds from one look at the memory to the next, to begin with
STYLE = """<style>
.tg{overflow-wrap:anywhere}
.tg h1{font-size:22px;margin:8px 0 2px;font-weight:650}
.tg h2{font-size:15px;margin:26px 0 6px;padding-bottom:3px;border-bottom:1px solid var(--tg-line)}
.tg .tiles{display:flex;flex-wrap:wrap;gap:8px 28px;margin:12px 0}
.tg .tiles b{display:block;font-size:18px;font-weight:600}
.tg .charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(300px,100%),1fr));gap:14px 24px}
.tg .share{display:flex;height:20px;border-radius:4px;overflow:hidden;border:1px solid var(--tg-line)}
.tg .share i{display:block;min-width:1px}
.tg .bar{width:90px;height:10px;background:var(--tg-shade);display:inline-block}
.tg .bar i{display:block;height:100%;background:var(--tg-op-line)}
.tg .key{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
.tg .keys span{margin-right:16px;white-space:nowrap}
.tg .zoomed{overflow-x:auto}
.tg input[type=range]{vertical-align:middle;width:160px}
.tg .wrong{border-left:3px solid var(--tg-bad);padding-left:10px}
</style>"""


class _Watched(profile):
    """A profile that looks at the graph of the first sweep."""

    parameters: Mapping[str, Tensor] = {}
    graph: Graph | None = None

    def note_ended(
        self,
        begin: int,
        name: str,
        operands: Iterable[Any] = (),
        backward: bool = False,
        sequence: tuple[int, int] | None = None,
    ) -> None:
        """Note an event that ends now."""
        super().note_ended(begin, name, operands, backward, sequence)
        if backward and sequence is None and self.graph is None:
            roots = [x for x in operands if isinstance(x, Handle)]
            if roots:
                self.graph = Graph(roots, self.parameters, limit=RECORDS)  # type: ignore[arg-type]


class _Memory(threading.Thread):
    """Looks at the memory that the process has, as Linux tells it, until it is told to stop."""

    def __init__(self) -> None:
        super().__init__(name="tapegrad report: memory", daemon=True)
        self.samples: list[tuple[float, float]] = []
        self._stop_now = threading.Event()

    def run(self) -> None:
        """Note time and bytes."""
        interval, page_size = INTERVAL, os.sysconf("SC_PAGE_SIZE")
        with suppress(OSError), open("/proc/self/statm", "rb", buffering=0) as file:
            while True:
                file.seek(0)
                self.samples.append((time.perf_counter(), int(file.read().split()[1]) * page_size))
                if len(self.samples) > SAMPLES:
                    self.samples, interval = self.samples[::2], 2 * interval
                if self._stop_now.wait(interval):
                    break

    def stop(self) -> None:
        """End it."""
        self._stop_now.set()
        self.join()


class Run:
    """What a `report` is made of.

    Attributes
    ----------
    profile : profile
        The profile at work.
    """

    def __init__(self, title: str, parameters: Mapping[str, Tensor], profile: profile) -> None:
        self.title, self.parameters, self.profile = title, parameters, profile
        self.error = ""
        self._logged: dict[str, list[tuple[float, float]]] = {}
        self._memory = _Memory()
        self._begin, self._date = time.perf_counter(), datetime.now()
        self._end = self._begin

    @property
    def seconds(self) -> float:
        """How long the block took; 0 while it lasts."""
        return self._end - self._begin

    def log(self, **values: Any) -> None:
        """Note values of this step, for a chart of each.

        Parameters
        ----------
        **values
            Numbers, or Tensors and arrays, whose norms are noted; a mapping gives one chart for each of its
            items. So ``run.log(loss=loss, gradient=x.grad)``.

        Raises
        ------
        TypeError
            A value is neither.
        """
        now = time.perf_counter() - self._begin
        for name, value in values.items():
            items = value.items() if isinstance(value, Mapping) else [("", value)]
            for key, x in items:
                found, is_norm = _size(f"{name} {key}".strip(), x)
                label = f"{'norm of ' * is_norm}{name}{' ' * bool(key)}{key}"
                self._logged.setdefault(label, []).append((now, found))

    # ------------------------------------------------------------ the page

    def _page(self) -> str:
        from tapegrad.diagnostics.listing import html  # here, so that importing the library is light

        events = self.profile.function_events
        seconds = self.seconds
        parts = [STYLE, self._head(seconds, events)]
        if self._logged:
            charts = "".join(_chart(name, [y for _, y in points]) for name, points in self._logged.items())
            parts.append(_section("Logged", f"<div class=charts>{charts}</div>"))
        if events:
            parts.append(_section("Time", _shares(events, seconds) + _flame(events) + _by_name(events)))
            by_line = _by_line(events)
            if by_line:
                parts.append(_section("Time by line", by_line))
        parts.append(_section("Memory", self._memory_used(events)))
        if self.parameters:
            parts.append(_section("Gradients at the end", _gradients(self.parameters)))
        graph = getattr(self.profile, "graph", None)
        if graph is not None:
            picture = details("<b>drawing</b>", graph.draw(limit=60).inline, True)
            parts.append(_section("Graph of the first sweep", picture + html(graph, False)))
        parts.append(_section("Environment", f"<pre>{escape(_environment())}</pre>"))
        return page(self.title, "".join(parts))

    def _head(self, seconds: float, events: EventList) -> str:
        sweeps = sum(event.is_backward and event.sequence is None for event in events)
        operations = sum(not event.is_backward and event.sequence is not None for event in events)
        tiles = {
            "took": time_text(1e6 * seconds), "operations recorded": f"{operations:,}",
            "sweeps": f"{sweeps:,}", "peak memory": bytes_text(max(_peak(), *self._bytes(), 0.0)),
        }  # fmt: skip
        shown = "".join(f"<div><b>{escape(v)}</b><span class=soft>{k}</span></div>" for k, v in tiles.items())
        head = f"<h1>{escape(self.title)}</h1><div class=soft>{self._date:%Y-%m-%d %H:%M:%S}</div>"
        wrong = f"<div class=wrong><pre class=bad>{escape(self.error)}</pre></div>" if self.error else ""
        return f"{head}<div class=tiles>{shown}</div>{wrong}"

    def _bytes(self) -> list[float]:
        return [size for _, size in self._memory.samples] or [0.0]

    def _memory_used(self, events: EventList) -> str:
        found = self._bytes()
        rounded = [round(n / 2**20, 1) for n in found]  # so that a few pages make no slope
        chart = _chart("resident memory", rounded, "{:,.1f} MiB".format) if len(found) > 1 else ""
        used: dict[str, int] = {}
        for event in events:
            used[event.name] = used.get(event.name, 0) + event.cpu_memory_usage
        rows = sorted(((n, name) for name, n in used.items() if n), reverse=True)[:ROWS]
        body = table(["results of", "bytes"], [[escape(name), bytes_text(n)] for n, name in rows], [1])
        listed = details("<b>bytes of results by operation</b>", body) if rows else ""
        return f"<div class=charts>{chart}</div>{listed}"


def _size(name: str, x: Operand) -> tuple[float, bool]:
    """A number, or a norm."""
    if x is None:
        return float("nan"), False
    try:
        value = np.asarray(getattr(x, "_v", x))
        if value.ndim == 0:
            return float(value), False
        return float(np.linalg.norm(value.ravel())), True
    except (TypeError, ValueError) as error:
        kind = type(x).__name__
        raise TypeError(f"log takes numbers, arrays and Tensors, found {kind} for {name}") from error


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>"


def _chart(name: str, values: Sequence[float], text: Any = "{:.4g}".format) -> str:
    """A curve with what its lowest and highest values are, by logarithms where they differ much."""
    y = np.asarray(values, float)
    wrong = int(np.sum(~np.isfinite(y)))
    kept = np.unique(np.linspace(0, len(y) - 1, min(len(y), POINTS)).astype(int))
    finite = y[np.isfinite(y)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    logarithmic = low > 0 and high > 100 * low
    scale = np.log10 if logarithmic else np.asarray
    span = float(scale(high) - scale(low)) or 1.0
    parts, pen = [], "M"
    for k in kept:
        if np.isfinite(y[k]):
            x = 300 * k / max(len(y) - 1, 1)
            parts.append(f"{pen}{x:.1f} {94 - 88 * float(scale(y[k]) - scale(low)) / span:.1f}")
            pen = "L"
        else:
            pen = "M"
    line = "".join(parts)
    facts = f"from {text(y[0])} to {text(y[-1])}" if len(y) > 1 else text(y[0])
    notes = f"between {text(low)} and {text(high)}{', logarithmic' * bool(logarithmic)}"
    bad = f" <span class=bad>{several(wrong, 'value')} not finite</span>" if wrong else ""
    return (
        f"<div><b>{escape(name)}</b> <span class=soft>{escape(facts)}</span>{bad}"
        + svg(f"{name}: {facts}", "100%", 100, "0 0 300 100", stretched=True)
        + '<path class="axis" d="M0 99.5H300M0 .5H300" vector-effect="non-scaling-stroke"/>'
        f'<path class="curve" d="{line}" vector-effect="non-scaling-stroke"/></svg>'
        f"<span class=soft>{escape(notes)}</span></div>"
    )


def _shares(events: EventList, seconds: float) -> str:
    """One bar of what the time went to."""
    took = dict.fromkeys(("operations", "derivatives", "compilation"), 0.0)
    for event in events:
        compiled = event.name.startswith("compile ")
        key = "compilation" if compiled else "derivatives" if event.is_backward else "operations"
        took[key] += event.self_cpu_time_total
    took["elsewhere"] = max(1e6 * seconds - sum(took.values()), 0.0)
    whole = sum(took.values()) or 1.0
    colours = dict(zip(took, ("op-line", "out-line", "call-line", "line"), strict=True))
    bar = "".join(
        f'<i style="width:{100 * t / whole:.2f}%;background:var(--tg-{colours[key]})"></i>'
        for key, t in took.items()
    )
    keys = "".join(
        f'<span><i class=key style="background:var(--tg-{colours[key]})"></i>{key} {time_text(t)}</span> '
        for key, t in took.items()
    )
    return f"<div class=share>{bar}</div><div class='soft keys'>{keys}</div>"


def _flame(events: EventList) -> str:
    """The flame chart, which can be made wider."""
    chart = flame_chart(events).element
    wider = "this.closest('p').nextElementSibling.firstElementChild.style.width=100*2**this.value+'%'"
    return (
        "<p><label class=soft>zoom <input type=range min=0 max=8 step=0.25 value=0 "
        f'oninput="{wider}"></label></p>'
        f"<div class=zoomed><div>{chart}</div></div>"
    )


def of_events(found: EventList | profile) -> str:
    """Events as a notebook shows them."""
    events = events_of(found)
    if not events:
        return display(f"<b>{escape(type(found).__name__)}</b> <span class=soft>no events</span>")
    averages = any(isinstance(event, FunctionEventAvg) for event in events)  # these have no place in time
    chart = "" if averages else _flame(events)
    return display(STYLE + chart + _by_name(events))


def _by_name(events: EventList) -> str:
    averages = events if isinstance(events[0], FunctionEventAvg) else events.key_averages()
    found = sorted(averages, key=lambda event: -event.self_cpu_time_total)
    whole = sum(event.self_cpu_time_total for event in found) or 1.0
    rows = [
        [
            escape(event.key), f"{event.count:,}", time_text(event.self_cpu_time_total),
            f'<span class=bar><i style="width:{100 * event.self_cpu_time_total / whole:.1f}%"></i></span>',
            time_text(event.cpu_time_total), time_text(event.cpu_time),
            f"{event.flops:,}" if event.flops else "",
        ]
        for event in found[:ROWS]
    ]  # fmt: skip
    head = ["operation", "calls", "itself", "", "with parts", "a call", "flops"]
    return details(f"<b>by operation</b> <span class=soft>{several(len(found), 'name')}</span>",
                   table(head, rows, [1, 2, 4, 5, 6]), True)  # fmt: skip


def _by_line(events: EventList) -> str:
    """Times of operations and of their derivatives by the lines that called them, if lines were noted."""
    lines = {event.sequence: event.stack[-1] for event in events if event.stack and event.sequence}
    took: dict[str, list[float]] = {}
    for event in events:
        line = event.stack[-1] if event.stack else lines.get(event.sequence)
        if line is not None:
            mine = took.setdefault(line, [0.0, 0.0])
            mine[event.is_backward] += event.self_cpu_time_total
    rows = [
        [_place(line_of(line)), time_text(forward), time_text(backward)]
        for line, (forward, backward) in sorted(took.items(), key=lambda row: -sum(row[1]))[:ROWS]
    ]
    return table(["line", "operations", "derivatives"], rows, [1, 2]) if rows else ""


def _place(line: Line) -> str:
    code = f"<code>{escape(shortened(line.text, LENGTH))}</code>"
    return f'<span class=soft title="{escape(line.file)}">{escape(line)}</span> {code}'


def _gradients(parameters: Mapping[str, Tensor]) -> str:
    rows = []
    for name, x in parameters.items():
        gradient = x.grad if x.is_leaf else None
        if gradient is None:
            rows.append([escape(name), escape(x.shape), "", "", "<span class=soft>no .grad</span>"])
            continue
        value = np.abs(np.asarray(gradient._v)).ravel()
        wrong = int(np.sum(~np.isfinite(value)))
        zeros = f"{np.mean(value == 0):.0%} zeros" if value.size and np.any(value == 0) else ""
        bad = f"<span class=bad>{wrong:,} not finite</span>" if wrong else ""
        largest = f"{value.max():.4g}" if value.size else ""
        rows.append([escape(name), escape(x.shape), f"{np.linalg.norm(value):.4g}", largest, bad or zeros])
    return table(["parameter", "shape", "norm", "largest", ""], rows, [2, 3])


def _peak() -> float:
    """The most memory that the process ever had, if the system tells."""
    try:
        import resource
    except ImportError:
        return 0.0
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (
        1 if sys.platform == "darwin" else 1024
    )


def _environment() -> str:
    rows = {"command": shlex.join(sys.argv), "processors": str(os.cpu_count())}
    rows |= {key: value for key, value in sorted(os.environ.items()) if key.startswith(("TAPEGRAD_", "OMP_"))}
    return "\n".join([show_config(), *(f"{name:14s} {value}" for name, value in rows.items())])


@contextmanager
def report(
    path: str | PathLike[str],
    parameters: Mapping[str, Tensor] | None = None,
    *,
    title: str = "",
    with_stack: bool = False,
    with_flops: bool = True,
) -> Iterator[Run]:
    """Context manager: write a page about what happens in the block, also if that raises.

    The page has where the time went, a flame chart, memory, what was logged, norms of gradients, the graph of
    the first sweep, and the environment; it needs nothing from elsewhere. The block runs under a profile,
    which keeps some 100 bytes for each operation: so it is for minutes of work, not for days.

    Parameters
    ----------
    path : path-like
        An HTML file; what is there is replaced.
    parameters : mapping of str to Tensor, optional
        Names for leaves; of these the page has the ``.grad`` at the end of the block.
    title : str, optional
        By default the name of the file.
    with_stack, with_flops : bool, optional
        As for `profile`: lines of the user's code, which take some 10 us an operation, and flops.

    Yields
    ------
    Run
        Its method `log` notes values of a step, for charts.

    Raises
    ------
    TapeError
        A profile is at work in this context already.
    FileNotFoundError
        There is no folder to write the page to.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> with tg.report("run.html", {"x": x}) as run:  # doctest: +SKIP
    ...     for _ in range(100):
    ...         loss = np.sum((x - 3.0) ** 2)
    ...         (g,) = tg.grad(loss, x)
    ...         with tg.no_grad():
    ...             x -= 0.1 * g
    ...         run.log(loss=loss, gradient=g)
    """
    path = Path(path)
    if not path.parent.is_dir():  # to be known before the work
        raise FileNotFoundError(f"report: there is no folder {path.parent} to write {path.name} to")
    watched = _Watched(profile_memory=True, with_stack=with_stack, with_flops=with_flops)
    watched.parameters = dict(parameters or {})
    run = Run(title or path.stem, watched.parameters, watched)
    run._memory.start()
    try:
        with watched:
            yield run
    except BaseException:
        run.error = traceback.format_exc()
        raise
    finally:
        run._end = time.perf_counter()
        run._memory.stop()
        path.write_text(run._page(), encoding="utf-8")
