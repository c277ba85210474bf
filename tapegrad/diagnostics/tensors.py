"""A Tensor as a notebook shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tapegrad.core.base import has_tangent, strip_tangents
from tapegrad.diagnostics.graph import Graph
from tapegrad.diagnostics.listing import html
from tapegrad.diagnostics.page import bytes_text, details, display, escape, several

if TYPE_CHECKING:
    from tapegrad.tensor import Tensor

__all__ = ["of_tensor"]

HISTORY = 60  # operations that the display of a Tensor looks at
PRINTED = 1000  # elements that need no summary
LOOKED_AT = 1 << 20  # elements that a display looks at


def _statistics(value: np.ndarray) -> str:
    """What an array is like, if it is not all to be seen."""
    if value.dtype.kind not in "fc" or not 0 < value.size <= LOOKED_AT:
        return ""
    finite = np.isfinite(value)
    wrong = [
        f"<span class=bad>{several(n, what)}</span>"
        for what, n in (("nan", int(np.isnan(value).sum())), ("inf", int(np.isinf(value).sum())))
        if n
    ]
    parts = []
    if value.size > PRINTED and value.dtype.kind == "f" and finite.any():
        seen = value[finite]
        parts = [f"min {seen.min():.4g}", f"mean {seen.mean():.4g}", f"max {seen.max():.4g}"]
    return ", ".join(parts + wrong)


def of_tensor(x: Tensor) -> str:
    """A Tensor as a notebook shows it: what it is, its elements, its gradient and its history."""
    primal = strip_tangents(x)
    value = np.asarray(primal._v)
    shape = str(x.shape) if x.shape else "number"
    facts = [f"{value.dtype} {shape}", bytes_text(value.nbytes)]
    if x.requires_grad and x.is_leaf:
        facts.append("leaf, requires grad")
    elif x.requires_grad and primal._tape is not None:
        facts.append(f"from {primal._node_name()}")
    body = f"<pre>{escape(repr(x))}</pre>"
    found = _statistics(value)
    body += f"<div class=soft>{found}</div>" if found else ""
    gradient = x.grad if x.is_leaf else None
    if gradient is not None:
        norm = float(np.linalg.norm(np.asarray(gradient._v).ravel()))
        about = _statistics(np.asarray(gradient._v))
        body += details(
            f"<b>grad</b> <span class=soft>norm {norm:.4g}{', ' * bool(about)}{about}</span>",
            f"<pre>{escape(repr(gradient))}</pre>",
        )
    if x.requires_grad and not x.is_leaf and not has_tangent(x):
        body += html(Graph(x, limit=HISTORY), False)
    return display(f"<div><b>Tensor</b> <span class=soft>{escape(', '.join(facts))}</span></div>{body}")
