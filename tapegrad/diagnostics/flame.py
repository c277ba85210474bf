"""What a profile found as a flame chart: time goes to the right, parts of an event lie below it."""

from __future__ import annotations

from tapegrad.autograd.profiler import profile as Profile
from tapegrad.autograd.profiler_util import EventList, FunctionEvent
from tapegrad.diagnostics.page import Picture, bytes_text, escape, several, svg, time_text

__all__ = ["events_of", "flame_chart"]

BARS = 600
HEIGHT, TOP = 20, 44  # of a row; where the first begins
TICKS = 5
ROOM = 88  # per cent of the width, up to which there is room for a label beside a line
KINDS = {"op": "operation", "out": "derivative", "call": "compilation", "data": "with parts"}


def events_of(found: Profile | EventList) -> EventList:
    """The events of a profile; events as they are."""
    if isinstance(found, EventList):
        return found
    if not isinstance(found, Profile):
        raise TypeError(f"found {type(found).__name__} for a profile, which is what `with profile()` gives")
    return found.function_events


def flame_chart(profile: Profile | EventList, limit: int = BARS) -> Picture:
    """Draw the events of a profile as bars along the time, those within others below them.

    Parameters
    ----------
    profile : profile or EventList
    limit : int, optional
        Bars, the longest events.

    Returns
    -------
    Picture
        As wide as the page it is on.

    Raises
    ------
    ValueError
        The profile has no events.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> with tg.autograd.profiler.profile() as prof:
    ...     np.sum(np.sin(x)).backward()
    >>> "SinBackward" in tg.diagnostics.flame_chart(prof).svg
    True
    """
    events = events_of(profile)
    if not events:
        raise ValueError("flame_chart: the profile has no events; put operations into its with block")
    if type(limit) is not int or limit < 1:
        raise ValueError(f"flame_chart: limit is a whole number from 1, found {limit!r}")
    begin, end = min(event.start for event in events), max(event.end for event in events)
    span = max(end - begin, 1e-3)
    drawn = sorted(events, key=lambda event: event.start - event.end)[:limit]
    depths: dict[int, int] = {}
    rows: dict[int, int] = {}  # of the threads: where each begins
    for event in events:
        above = event.cpu_parent
        depths[id(event)] = 0 if above is None else depths[id(above)] + 1
    for event in drawn:
        rows[event.thread] = max(rows.get(event.thread, 0), depths[id(event)] + 1)
    at = 0.0
    firsts: dict[int, float] = {}
    for thread in dict.fromkeys(event.thread for event in events if event.thread in rows):
        firsts[thread] = at
        at += rows[thread] + 0.5
    bottom = TOP + HEIGHT * at
    parts = [_axis(span, bottom), _legend()]
    if len(drawn) < len(events):
        left_out = several(len(events) - len(drawn), "shorter event")
        parts.append(f'<text class="small" x="3" y="{bottom + 8:.0f}">{left_out} not drawn</text>')
    for event in drawn:
        y = TOP + HEIGHT * (firsts[event.thread] + depths[id(event)])
        parts.append(
            _bar(event, 100 * (event.start - begin) / span, 100 * (event.end - event.start) / span, y)
        )
    label = f"flame chart of {several(len(events), 'event')}, {time_text(span)}"
    return Picture(svg(label, "100%", bottom + HEIGHT), "".join(parts))


def _kind(event: FunctionEvent) -> str:
    if event.is_backward:
        return "out"
    if event.name.startswith("compile "):
        return "call"
    return "data" if event.cpu_children else "op"


def _bar(event: FunctionEvent, x: float, width: float, y: float) -> str:
    """One event, its name cut off where the bar ends."""
    about = [event.name, time_text(event.cpu_time_total)]
    if event.cpu_children:
        about.append(f"itself {time_text(event.self_cpu_time_total)}")
    if event.input_shapes:
        about.append(f"shapes {', '.join(map(str, event.input_shapes))}")
    if event.cpu_memory_usage:
        about.append(bytes_text(event.cpu_memory_usage))
    if event.flops:
        about.append(f"{event.flops:,} flops")
    if event.stack:
        about.append(event.stack[-1])
    return (
        f'<svg x="{x:.3f}%" y="{y:.0f}" width="{width:.3f}%" height="{HEIGHT - 2}">'
        f"<title>{escape(', '.join(about))}</title>"
        f'<rect class="{_kind(event)}" width="100%" height="100%" rx="2"/>'
        f'<text x="4" y="13">{escape(event.name)}</text></svg>'
    )


def _axis(span: float, bottom: float) -> str:
    """Lines at round times."""
    step = 10.0 ** len(str(int(span))) / 100
    step = next(step * k for k in (1, 2, 5, 10, 20, 50, 100) if step * k * TICKS >= span)
    found, at = [], 0.0
    while at <= span:
        x = 100 * at / span
        found.append(f'<line class="axis" x1="{x:.2f}%" x2="{x:.2f}%" y1="22" y2="{bottom:.0f}"/>')
        if x <= ROOM:
            text = time_text(at) if at else "0"
            found.append(f'<text class="small" x="{x:.2f}%" y="36" dx="3">{text}</text>')
        at += step
    return "".join(found)


def _legend() -> str:
    """What the colours mean."""
    parts, x = [], 0
    for kind, name in KINDS.items():
        parts.append(
            f'<rect class="{kind}" x="{x + 1}" y="4" width="10" height="10" rx="2"/>'
            f'<text class="small" x="{x + 16}" y="13">{name}</text>'
        )
        x += 26 + 6 * len(name)
    return "".join(parts)
