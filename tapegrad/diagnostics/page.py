"""Pieces of HTML: the style that all displays share, escaping, tables, and pictures as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tapegrad.compilation.explanation import several as several

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["Picture"]

LIGHT = {
    "ink": "#1b2430", "soft": "#5a6675", "line": "#d5dbe3", "shade": "#f3f5f8", "paper": "#ffffff",
    "op": "#e7f0fb", "op-line": "#2f6db3", "leaf": "#e4f4e8", "leaf-line": "#2c7d45", "data": "#eef0f3",
    "data-line": "#7b8794", "call": "#f1eafb", "call-line": "#7048b6", "out": "#fdeedd",
    "out-line": "#b85c00", "bad": "#b3261e",
}  # fmt: skip
DARK = {
    "ink": "#e6ebf2", "soft": "#a3afbd", "line": "#3a4452", "shade": "#1d242d", "paper": "#14181e",
    "op": "#16304d", "op-line": "#6fb1f2", "leaf": "#153a22", "leaf-line": "#6fcf8b", "data": "#2a313a",
    "data-line": "#8b97a5", "call": "#33224f", "call-line": "#b795f5", "out": "#472b0c",
    "out-line": "#f0a552", "bad": "#ff8a80",
}  # fmt: skip
ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
# what notebooks and sites say of themselves, which counts more than what the system prefers
SAYS_LIGHT = '[data-jp-theme-light="true"], [data-theme="light"], body.vscode-light, html[theme="light"]'
SAYS_DARK = '[data-jp-theme-light="false"], [data-theme="dark"], body.vscode-dark, html[theme="dark"]'
RULES = """
.tg{color:var(--tg-ink);font:13px/1.45 system-ui,-apple-system,"Segoe UI",sans-serif;text-align:left}
.tg code,.tg pre,.tg .mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,
"DejaVu Sans Mono",monospace;font-size:12px;background:none;color:inherit;border:0;padding:0}
.tg pre{margin:4px 0;overflow:auto;max-height:24em}
.tg .scroll{overflow:auto;max-width:100%}
.tg summary{cursor:pointer;padding:2px 0}
.tg details{margin:2px 0}
.tg details>:not(summary){margin-left:14px}
.tg table{border-collapse:collapse;margin:4px 0;font-size:12px;color:inherit;border:0;width:auto}
.tg th,.tg td{text-align:left;padding:2px 14px 2px 0;border:0;border-bottom:1px solid var(--tg-line);
white-space:nowrap;background:none;color:inherit;vertical-align:top;max-width:44em}
.tg th{color:var(--tg-soft);font-weight:600}
.tg td.num,.tg th.num{text-align:right;font-variant-numeric:tabular-nums}
.tg .soft{color:var(--tg-soft)}
.tg .bad{color:var(--tg-bad);font-weight:600}
.tg svg{display:block}
.tg-svg text{fill:var(--tg-ink);font:12px system-ui,-apple-system,"Segoe UI",sans-serif}
.tg-svg .name{font-weight:600}
.tg-svg .small{font-size:11px;fill:var(--tg-soft)}
.tg-svg .bad{fill:var(--tg-bad)}
.tg-svg .op{fill:var(--tg-op);stroke:var(--tg-op-line)}
.tg-svg .leaf{fill:var(--tg-leaf);stroke:var(--tg-leaf-line)}
.tg-svg .data{fill:var(--tg-data);stroke:var(--tg-data-line)}
.tg-svg .call{fill:var(--tg-call);stroke:var(--tg-call-line)}
.tg-svg .out{fill:var(--tg-out);stroke:var(--tg-out-line)}
.tg-svg .earlier{fill:none;stroke:var(--tg-data-line);stroke-dasharray:3 3}
.tg-svg .loop{fill:none;stroke:var(--tg-soft);stroke-dasharray:6 4}
.tg-svg .edge{fill:none;stroke:var(--tg-soft);stroke-width:1.2}
.tg-svg .carried{stroke-dasharray:5 4}
.tg-svg .tip{fill:var(--tg-soft);stroke:none}
.tg-svg .axis{stroke:var(--tg-line);stroke-width:1}
.tg-svg .curve{fill:none;stroke:var(--tg-op-line);stroke-width:1.6}
"""


def _colours(colours: dict[str, str]) -> str:
    return "".join(f"--tg-{name}:{value};" for name, value in colours.items())


def style() -> str:
    """The style sheet; it colours by what the page around says, else as the system prefers."""
    light, dark = _colours(LIGHT), _colours(DARK)
    ours = ".tg,.tg-svg"
    return (
        f"{ours}{{{light}}}@media(prefers-color-scheme:dark){{{ours}{{{dark}}}}}"
        f":is({SAYS_LIGHT}) :is({ours}){{{light}}}:is({SAYS_DARK}) :is({ours}){{{dark}}}"
        + RULES.replace("\n.tg", ".tg").replace("\n", " ").strip()
    )


def escape(text: object) -> str:
    """Text for HTML, SVG and their attributes; what XML has no place for becomes U+FFFD."""
    found = str(text).translate(ESCAPED)
    return (
        found
        if found.isprintable()
        else "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in found)
    )


def shortened(text: str, length: int) -> str:
    """A text, cut to a length."""
    return text if len(text) <= length else text[: length - 1] + "…"


def bytes_text(n: float) -> str:
    """Bytes in words."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" or n >= 100 else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


def time_text(us: float) -> str:
    """Microseconds in words."""
    if us >= 999.5e6:
        return f"{us / 1e6:,.0f} s"
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= 0.9995 * size:  # which three digits round up
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} µs"


def table(head: Sequence[str], rows: Iterable[Sequence[str] | str], numbers: Iterable[int] = ()) -> str:
    """A table of cells that are HTML already, or of notes over all columns; `numbers` are flush right."""
    right = set(numbers)

    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}{' class=num' * (k in right)}>{cell}</{tag}>" for k, cell in enumerate(cells))

    def whole(row: Sequence[str] | str) -> str:
        note = f"<td colspan={len(head)} class=soft>{row}</td>" if isinstance(row, str) else line(row, "td")
        return f"<tr>{note}</tr>"

    body = "".join(map(whole, rows))
    titles = f"<thead><tr>{line(head, 'th')}</tr></thead>"
    return f"<div class=scroll><table>{titles}<tbody>{body}</tbody></table></div>"


def details(summary: str, body: str, shown: bool = False) -> str:
    """A part that can be opened and closed."""
    return f"<details{' open' * shown}><summary>{summary}</summary>{body}</details>"


def display(body: str) -> str:
    """HTML for a notebook's cell."""
    return f"<div class=tg><style>{style()}</style>{body}</div>"


def page(title: str, body: str) -> str:
    """A document of its own, which needs nothing from elsewhere."""
    outer = (
        f":root{{color-scheme:light dark}}body{{margin:0;background:{LIGHT['paper']}}}"
        f"@media(prefers-color-scheme:dark){{body{{background:{DARK['paper']}}}}}"
        "main{max-width:1180px;margin:0 auto;padding:16px;box-sizing:border-box}"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{outer}{style()}</style></head>"
        f"<body><main class=tg>{body}</main></body></html>\n"
    )


class Picture:
    """A picture, which notebooks show, in the colours of light and dark pages.

    Attributes
    ----------
    svg : str
        An SVG document without anything from elsewhere.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor(2.0, requires_grad=True)
    >>> tg.diagnostics.Graph(x * x).draw().svg.startswith("<svg ")
    True
    """

    def __init__(self, head: str, body: str) -> None:
        self._body = f"{head}{body}</svg>"
        self._head = len(head)

    @property
    def svg(self) -> str:
        """The SVG document."""
        head, rest = self._body[: self._head], self._body[self._head :]
        alone = ".tg-svg:root{background:var(--tg-paper)}"
        return f"{head}<style>{escape(style() + alone)}</style>{rest}"

    @property
    def element(self) -> str:
        """The SVG element, for a page that has the style."""
        return self._body

    @property
    def inline(self) -> str:
        """The same in a frame that scrolls."""
        return f"<div class=scroll>{self._body}</div>"

    def _repr_html_(self) -> str:
        return display(self.inline)

    def __repr__(self) -> str:
        return f"<Picture: SVG, {bytes_text(len(self.svg.encode()))}>"

    def save(self, path: str | PathLike[str]) -> None:
        """Write an SVG file, or a page where the name ends in .html.

        Parameters
        ----------
        path : path-like
        """
        path = Path(path)
        html = path.suffix.lower() in (".html", ".htm")
        path.write_text(page(path.stem, self.inline) if html else self.svg, encoding="utf-8")


def svg(label: str, width: str, height: float, view: str = "", stretched: bool = False) -> str:
    """The opening of an SVG element that says what it shows."""
    box = f' viewBox="{view}"' if view else ""
    box += ' preserveAspectRatio="none"' * stretched
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tg-svg" role="img" aria-label="{escape(label)}" '
        f'width="{width}" height="{height:.0f}"{box}>'
    )
