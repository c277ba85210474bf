"""What is known of a compiled function, as HTML."""

from __future__ import annotations

from tapegrad.compilation.explanation import LEARNING, Calls, Explanation
from tapegrad.diagnostics.page import display, escape, several, table

HEAD = (
    "way",
    "calls",
    "operations",
    "compared in compiled code",
    "run by Python",
    "kernels",
    "second derivatives",
)


def of_explanation(explanation: Explanation) -> str:
    """Return a table for each kind of arguments."""
    name = f"<p><code>{escape(explanation.name)}</code></p>"
    none = "" if explanation.kinds else "<p class=soft>no calls yet that a program could serve</p>"
    return display(name + none + "".join(map(_kind, explanation.kinds)))


def _kind(kind: Calls) -> str:
    rows: list[list[str] | str] = [
        [
            str(k), f"{way.calls:,}", f"{way.operations:,}", f"{way.compared:,}",
            escape(", ".join(way.by_python)), escape("; ".join(way.fused)), escape(way.second),
        ]
        for k, way in enumerate(kind.ways, 1)
    ]  # fmt: skip
    rows += [f"{several(n, 'call')} left a way: {escape(why)}" for why, n in kind.left.items()]
    if kind.not_learned:
        rows.append(f"not learned: {escape(kind.not_learned)}")
    if kind.learning:
        rows.append(LEARNING)
    title = f"<p>{several(kind.total, 'call')} with <code>{escape(kind.arguments)}</code></p>"
    return title + (table(HEAD, rows, (1, 2, 3)) if rows else "")
