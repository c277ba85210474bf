"""Plots by matplotlib: how large gradients are, and where a matrix has elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from tapegrad.core.base import Handle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from tapegrad.tensor import Tensor

__all__ = ["plot_gradient_flow", "plot_sparsity"]

CELLS = 400  # a side of a picture of a matrix that has more rows or columns
BLUE, ORANGE, RED, GREY = "#2f6db3", "#c86400", "#c62828", "#7b8794"


def _axes(what: str, ax: Axes | None, width: float, height: float) -> Axes:
    """The axes given, or new ones."""
    if ax is not None:
        return ax
    try:
        pyplot = import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ImportError(f"{what} draws with matplotlib; install matplotlib") from error
    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]  # type: ignore[no-any-return]


def _gradient(name: str, x: Tensor | ArrayLike) -> np.ndarray:
    """The elements of a gradient: of a leaf its ``.grad``."""
    if isinstance(x, Handle) and x.requires_grad:
        if not x.is_leaf or x.grad is None:
            raise ValueError(f"plot_gradient_flow: {name} has no .grad; call backward() or give gradients")
        x = x.grad
    found: np.ndarray = np.abs(np.asarray(getattr(x, "_v", x))).ravel()
    return found


def plot_gradient_flow(
    gradients: Mapping[str, Tensor | ArrayLike] | Sequence[Tensor | ArrayLike], ax: Axes | None = None
) -> Axes:
    """Plot how large the elements of gradients are: root of the mean square, and the largest.

    Gradients that vanish or grow from layer to layer lie on a slope; those that are 0, nan or infinite are
    named.

    Parameters
    ----------
    gradients : mapping of str to Tensor or array, or sequence
        Gradients, or leaves, of which ``.grad`` is meant.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError
        There is no matplotlib.
    ValueError
        A leaf has no gradient, or nothing was given.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> w = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> np.sum(w**3).backward()
    >>> ax = tg.diagnostics.plot_gradient_flow({"w": w})  # doctest: +SKIP
    """
    named = gradients if isinstance(gradients, Mapping) else {str(k): g for k, g in enumerate(gradients)}
    found = {str(name): _gradient(name, g) for name, g in named.items()}
    if not found:
        raise ValueError("plot_gradient_flow takes one gradient or more, found none")
    ax = _axes("plot_gradient_flow", ax, 7.0, 1.2 + 0.3 * len(found))
    low = np.array([np.sqrt(np.mean(g * g)) if g.size else 0.0 for g in found.values()])
    high = np.array([g.max() if g.size else 0.0 for g in found.values()])
    places = np.arange(len(found))
    drawn = np.isfinite(high) & (high > 0) & (low > 0)
    ax.hlines(places[drawn], low[drawn], high[drawn], color=GREY, linewidth=2, zorder=1)
    ax.scatter(low[drawn], places[drawn], color=BLUE, zorder=2, label="root mean square")
    ax.scatter(high[drawn], places[drawn], color=ORANGE, marker="D", s=26, zorder=2, label="largest")
    ax.set_xscale("log")
    for place in places[~drawn]:
        text = "zero" if high[place] == 0 else "nan" if np.isnan(high[place]) else "infinite"
        ax.text(0.02, place, text, color=RED, va="center", transform=ax.get_yaxis_transform())
    ax.set_yticks(places, list(found))
    ax.set_ylim(len(found) - 0.5, -0.5)
    ax.set_xlabel("absolute value of the gradient's elements")
    ax.grid(axis="x", alpha=0.25)
    if drawn.any():
        ax.legend(loc="best", frameon=False)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def plot_sparsity(matrix: Any, ax: Axes | None = None) -> Axes:
    """Plot where a matrix has elements that are not 0.

    Parameters
    ----------
    matrix : array, Tensor, sparse matrix, SparseJacobian or SparseHessian
        A plan of `tapegrad.func.sparse_jacobian` once it was called: then with the number of products that a
        matrix takes. Of more than 400 rows or columns cells show how full they are.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError
        There is no matplotlib.
    ValueError
        It is no matrix, or a plan that does not know its pattern yet.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> ax = tg.diagnostics.plot_sparsity(np.eye(3))  # doctest: +SKIP
    """
    lanes = getattr(matrix, "lanes", None)
    if hasattr(matrix, "pattern"):
        matrix = matrix.pattern
        if matrix is None:
            raise ValueError("plot_sparsity: the pattern is not known yet; call the function once before")
    matrix = getattr(matrix, "_v", matrix)
    if np.ndim(matrix) != 2 and len(getattr(matrix, "shape", ())) != 2:
        raise ValueError(f"plot_sparsity takes a matrix, found shape {np.shape(matrix)}")
    rows, columns = matrix.nonzero() if hasattr(matrix, "nonzero") else np.nonzero(matrix)
    m, n = np.shape(matrix) if not hasattr(matrix, "shape") else matrix.shape
    side = 5.0
    ax = _axes("plot_sparsity", ax, side * min(max(n / max(m, 1), 0.5), 2.0), side)
    cells = min(m, CELLS), min(n, CELLS)
    counts, _, _ = np.histogram2d(rows, columns, cells, ((0, m), (0, n)))
    full = counts / np.maximum(m * n / max(cells[0] * cells[1], 1), 1.0)
    image = np.ma.masked_equal(np.sqrt(full), 0.0)  # so that a few elements in a cell are seen
    ax.imshow(
        image, cmap="Blues", vmin=-0.6, vmax=1.0, extent=(0, n, m, 0), interpolation="nearest", aspect="auto"
    )
    ax.set_facecolor("white")
    share = len(rows) / (m * n) if m * n else 0.0
    products = f", {lanes} products" if lanes is not None else ""
    ax.set_title(f"{m:,} by {n:,}, {len(rows):,} elements ({share:.2%}){products}", fontsize=10)
    ax.set_xlabel("column")
    ax.set_ylabel("row")
    return ax
