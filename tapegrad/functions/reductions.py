"""Reductions over axes, and running sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.dispatch import apply, is_tensor, requires_grad, value_of
from tapegrad.errors import DTypeError, UnsupportedOpError
from tapegrad.functions.indexing import where
from tapegrad.functions.shapes import astype, reshape, transpose
from tapegrad.functions.tables import (
    FUNCTIONS,
    Axis,
    axes_of,
    axis_of,
    implements,
    into,
    plainly,
    tensor_of,
)
from tapegrad.ops import REGISTRY

MASK_BITS = 30  # a record's number names the axes by a bit each
WHOLE = [
    {"axis": tuple(range(ndim)), "keepdims": False} for ndim in range(MASK_BITS + 1)
]  # not to be changed


def _folded(op: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    """Reduce over axes that have no bit in a record: as the second axis of a matrix."""
    shape = np.shape(value_of(x))
    kept = [d for d in range(len(shape)) if d not in axes]
    matrix = reshape(
        transpose(x, (*kept, *axes)), [math.prod(shape[d] for d in part) for part in (kept, axes)]
    )
    out = apply(op, (matrix,), {"axis": (1,), "keepdims": False})
    return reshape(out, [1 if d in axes else n for d, n in enumerate(shape) if keepdims or d not in axes])


def _reduction(name: str) -> Callable[..., Any]:
    op = REGISTRY[name]

    def function(
        x: Any, axis: Axis = None, dtype: Any = None, out: Any = None, keepdims: Any = False, **rest: Any
    ) -> Any:
        plain = axis is None and dtype is None and out is None and keepdims is False and not rest
        if plain and is_tensor(x) and x._v.ndim <= MASK_BITS:
            return apply(op, (x,), WHOLE[x._v.ndim])
        if out is not None and out is not np._NoValue:
            dtypes = {} if dtype is None else {"dtype": dtype}
            return into(op.functions[0], out, x, axis=axis, keepdims=keepdims, **dtypes, **rest)
        rest = {k: v for k, v in rest.items() if v is not np._NoValue}
        x = tensor_of(x)
        if rest:
            if requires_grad(x):
                raise UnsupportedOpError(f"{name}: {', '.join(rest)}= has no derivative here")
            return plainly(op.functions[0], (x,), {"axis": axis, "keepdims": bool(keepdims), **rest})
        if dtype is not None:
            x = astype(x, np.dtype(dtype))
        keepdims = keepdims is not np._NoValue and bool(keepdims)
        if not requires_grad(x):
            return plainly(op.forward, (x,), {"axis": axes_of(x, axis, name), "keepdims": keepdims})
        axes = axes_of(x, axis, name)
        if axes and max(axes) >= MASK_BITS:
            return _folded(op, x, axes, keepdims)
        return apply(op, (x,), {"axis": axes, "keepdims": keepdims})

    function.__name__ = name
    for f in op.functions:
        FUNCTIONS[f] = function
    return function


sum_, mean, max_, min_, prod = (_reduction(name) for name in ("sum", "mean", "max", "min", "prod"))


def _positional(function: Callable[..., Any]) -> Callable[..., Any]:
    """np.max and np.prod take `out` where np.sum takes `dtype`."""

    def wrapped(x: Any, axis: Axis = None, out: Any = None, keepdims: Any = False, **rest: Any) -> Any:
        return function(x, axis=axis, out=out, keepdims=keepdims, **rest)

    return wrapped


max_, min_ = _positional(max_), _positional(min_)
for _f in (np.max, np.amax):
    FUNCTIONS[_f] = max_
for _f in (np.min, np.amin):
    FUNCTIONS[_f] = min_


def logsumexp(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """Logarithm of the sum of exponentials over axes, without overflow.

    Parameters
    ----------
    x : Tensor or array_like
    axis : int or tuple of int, optional
        Axes to reduce; all by default.
    keepdims : bool, optional

    Returns
    -------
    Tensor

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.logsumexp(tg.array([1000.0, 1000.0]))
    tensor(1000.6931)
    """
    x = tensor_of(x)
    if np.result_type(value_of(x)).kind == "c":
        raise DTypeError("logsumexp of complex numbers has several values; take np.log of np.sum of np.exp")
    if np.result_type(value_of(x)).kind != "f":
        x = astype(x, np.dtype(float)) if is_tensor(x) else x.astype(float)
    attrs = {"axis": axes_of(x, axis, "logsumexp"), "keepdims": bool(keepdims)}
    return apply(REGISTRY["logsumexp"], (x,), attrs)


@implements(np.var)
def var(x: Any, axis: Axis = None, dtype: Any = None, out: Any = None, ddof: float = 0,
        keepdims: Any = False) -> Any:  # fmt: skip
    """Variance: mean squared deviation from the mean, over n - ddof."""
    if out is not None:
        return into(np.var, out, x, axis=axis, dtype=dtype, ddof=ddof, keepdims=keepdims)
    x = tensor_of(x)
    axes = axes_of(x, axis, "var")
    count = math.prod([np.shape(value_of(x))[a] for a in axes])
    deviation = x - mean(x, axes, dtype, None, True)
    keepdims = keepdims is not np._NoValue and bool(keepdims)
    with np.errstate(divide="ignore", invalid="ignore"):
        square = deviation * np.conj(deviation)
        square = np.real(square) if square.dtype.kind == "c" else deviation * deviation
        return sum_(square, axes, None, None, keepdims) / square.dtype.type(np.maximum(count - ddof, 0))


@implements(np.std)
def std(x: Any, axis: Axis = None, dtype: Any = None, out: Any = None, ddof: float = 0,
        keepdims: Any = False) -> Any:  # fmt: skip
    """Standard deviation: the root of `var`."""
    if out is not None:
        return into(np.std, out, x, axis=axis, dtype=dtype, ddof=ddof, keepdims=keepdims)
    found = var(x, axis, dtype, None, ddof, keepdims)
    flat = found == 0  # where all elements are equal the derivative is taken as 0, as torch does
    return where(flat, 0.0, np.sqrt(where(flat, 1.0, found)))


def accumulate(x: Any, axis: int = 0, dtype: Any = None) -> Any:
    """np.add.accumulate: as cumsum, but along the first axis by default."""
    return cumsum(x, axis, dtype)


@implements(np.cumsum)
def cumsum(x: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
    """Running sum along an axis, or over all elements."""
    if out is not None:
        return into(np.cumsum, out, x, axis=axis, dtype=dtype)
    x = tensor_of(x)
    if dtype is not None:
        x = astype(x, np.dtype(dtype))
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    attrs = {"axis": axis_of(x, axis, "cumsum")}
    return apply(REGISTRY["cumsum"], (x,), attrs)
