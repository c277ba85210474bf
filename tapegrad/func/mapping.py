"""`vmap`: a function of slices as a function of arrays."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tapegrad.core.base import Handle
from tapegrad.errors import AxisError, ShapeError
from tapegrad.func.calls import Programmed, named, programs_of
from tapegrad.func.signatures import Function
from tapegrad.func.trees import Structure, Tree, flatten
from tapegrad.progress import progress as shown
from tapegrad.tensor import Operand, TensorOrArray

__all__ = ["vmap"]

TRIES = 8  # calls, before each of which a program of all of them is asked for
Axes = Any  # an int, None, or a tree of these


def vmap(
    f: Function, in_axes: Axes = 0, out_axes: Axes = 0, *, progress: bool = False, threads: int = 1
) -> Function:
    """Return a function that calls a function for each slice of its arguments, and stacks the results.

    The function is called once for each slice, one call after the other: no time is gained, whatever it does.
    Only of ``tg.compile(f, replay=True)``, its ``grad``, ``value_and_grad``, ``hvp``, ``vhp`` and Jacobian
    the slices of plain arrays are computed at once. Arrays of NumPy's are sliced and stacked as such,
    Tensors with their history.

    Parameters
    ----------
    f : callable
        Of arrays, numbers, Tensors, or nested containers of them.
    in_axes : int, None or nested container of these, optional
        Along which axis an argument is sliced, for each argument if it is a tuple or a list; None for what
        each call gets as it is. One for a whole container, or a container of them. Arguments by keyword are
        sliced along their first axis.
    out_axes : int, None or nested container of these, optional
        Where in the results the new axis is; None for what the last call returned.
    progress : bool, optional
        Show how many calls are done, as in `jacrev`.
    threads : int, optional
        How many threads compute blocks of slices, where they are computed at once. Results have the same bits
        for any number, once programs are fused. Calls of the function are made one after the other.

    Returns
    -------
    callable
        Of the arguments of `f`.

    Raises
    ------
    ValueError
        `threads` is less than 1.
    ShapeError
        At a call: there are not as many slices of each.
    AxisError
        An axis is none of an argument's.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> def f(x, scale):
    ...     return scale * np.sum(x**2)
    >>> x = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> tg.func.vmap(f, (0, None))(x, 10.0)
    array([ 50., 250.])
    >>> tg.func.vmap(tg.func.grad(f), (0, None))(x, 1.0)
    array([[2., 4.],
           [6., 8.]])
    """
    programmed = programs_of(f)
    if not callable(f):
        raise TypeError(f"vmap takes a function, found {type(f).__name__}: tg.func.vmap(f)(x)")
    if operator.index(threads) < 1:
        raise ValueError(f"vmap: threads is how many compute, at least 1; found {threads}")

    def mapped(*args: Any, **kwargs: Any) -> Tree:
        leaves, structure = flatten((list(args), kwargs))
        axes = _spread(
            list(in_axes) if isinstance(in_axes, (tuple, list)) else in_axes, list(args), "in_axes"
        )
        axes += _spread(0, kwargs, "in_axes")
        n = _count(leaves, axes)
        results: list[Any] = []
        tries = TRIES if programmed is not None and out_axes == 0 and not kwargs else 0
        for k in shown(range(n), "vmap", progress):
            parts, names = structure.build(
                [x if axis is None else _slice(x, axis, k) for x, axis in zip(leaves, axes, strict=True)]
            )
            if k < tries and programmed is not None:
                found = _in_lanes(programmed, parts, leaves, axes, structure, n, k, threads)
                if found is not None:
                    return found
            results.append(f(*parts, **names))
        return _stacked(results, out_axes)

    return named("vmap", f, mapped)


def _in_lanes(
    programmed: tuple[Programmed, str],
    parts: list[Any],
    leaves: list[Operand],
    axes: list[int | None],
    structure: Structure,
    n: int,
    k: int,
    threads: int,
) -> Any:
    """The results of all n calls at once, if a program gives them; `parts` are the arguments of call k."""
    if any(isinstance(x, Handle) for x in leaves):
        return None
    sliced = [any(axis is not None for axis in flatten(tree)[0]) for tree in structure.build(axes)[0]]
    wholes, _ = structure.build(
        [
            np.broadcast_to(x, (n, *np.shape(x))) if axis is None and isinstance(x, (float, np.ndarray))
            else x if axis is None
            else np.moveaxis(np.asarray(x), axis, 0)
            for x, axis in zip(leaves, axes, strict=True)
        ]
    )  # fmt: skip
    f, what = programmed
    return f.in_lanes(what, parts, wholes, sliced, k, threads)


def _spread(axes: Axes, tree: Any, what: str) -> list[int | None]:
    """An axis for each leaf of a tree."""
    if axes is None or type(axes) is int:
        return [axes] * len(flatten(tree)[0])
    parts, structure = _children(tree)
    theirs, other = _children(axes)
    if other != structure:
        raise TypeError(f"vmap: {what} is an int, None, or built as what it is for; found {axes!r}")
    return [axis for one, part in zip(theirs, parts, strict=True) for axis in _spread(one, part, what)]


def _children(tree: Any) -> tuple[list[Any], Any]:
    """What a container holds, and what it is without that."""
    if isinstance(tree, dict):
        return list(tree.values()), (dict, *tree)
    if isinstance(tree, (tuple, list)):
        return list(tree), (tuple, len(tree))
    return [], None


def _count(leaves: list[Operand], axes: list[int | None]) -> int:
    """How many slices there are."""
    found: dict[int, tuple[int, ...]] = {}
    for x, axis in zip(leaves, axes, strict=True):
        shape = np.shape(x) if axis is not None else ()
        if axis is not None:
            if not -len(shape) <= axis < len(shape):
                raise AxisError(f"vmap: axis {axis} of an argument of shape {shape}; None leaves it as it is")
            found.setdefault(shape[axis], shape)
    if len(found) != 1:
        raise ShapeError(
            "vmap: arguments are to have as many slices each, found "
            + (" and ".join(f"{n} (of shape {shape})" for n, shape in found.items()) or "none to slice")
        )
    return next(iter(found))


def _slice(x: TensorOrArray, axis: int, k: int) -> TensorOrArray:
    return x[(slice(None),) * (axis % np.ndim(x)) + (k,)]


def _stacked(results: list[Any], out_axes: Axes) -> Tree:
    if not results:
        raise ShapeError("vmap: there are no slices, so nothing tells what the function would return")
    columns = [flatten(result) for result in results]
    structure = columns[0][1]
    if any(other != structure for _, other in columns):
        raise TypeError("vmap: the function returned differently built results for different slices")
    axes = _spread(out_axes, results[0], "out_axes")
    return structure.build(
        [
            parts[-1] if axis is None else np.stack(parts, axis)
            for axis, parts in zip(axes, zip(*(leaves for leaves, _ in columns), strict=True), strict=True)
        ]
    )
