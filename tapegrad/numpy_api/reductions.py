"""Reductions over axes, and running sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.core.base import Axis, DType, Handle, NotGiven, like_of, requires_grad, shape_of, value_of
from tapegrad.core.conversion import astype
from tapegrad.core.expected import Expected, expected
from tapegrad.core.functions import FUNCTIONS, implements
from tapegrad.core.notes import is_compared, note_parts
from tapegrad.errors import DTypeError
from tapegrad.numpy_api.indexing import where as choose
from tapegrad.numpy_api.shapes import laid
from tapegrad.numpy_api.tables import axes_of, axis_of, into, of_number, plain, plainly, tensor_of
from tapegrad.ops import REGISTRY
from tapegrad.ops.primitive import MASK_BITS, Primitive, folded
from tapegrad.tensor import Operand, Out, Tensor, TensorOrArray, apply, is_tensor

MEAN = REGISTRY["mean"]
SUM = REGISTRY["sum"]
WHOLE = [
    {"axis": tuple(range(ndim)), "keepdims": False} for ndim in range(MASK_BITS + 1)
]  # not to be changed


def over(op: Primitive, x: Operand, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """Reduce over axes, which are ascending."""
    if axes and axes[-1] >= MASK_BITS:
        return folded(lambda matrix, **attrs: apply(op, (matrix,), attrs), x, axes, keepdims)
    return apply(op, (x,), {"axis": axes, "keepdims": keepdims})


def _reduction(op: Primitive) -> Callable[..., Any]:
    name = op.name

    def function(
        a: Operand,
        axis: Axis = None,
        dtype: DType = None,
        out: Any = None,
        keepdims: Any = False,
        **rest: Any,
    ) -> TensorOrArray:
        x = a
        if dtype is None and out is None and keepdims is False and not rest and isinstance(x, Handle):
            ndim = (like_of(x) if expected and type(x._at) is Expected else x._v).ndim
            if axis is None and ndim <= MASK_BITS:
                return apply(op, (x,), WHOLE[ndim])
            if type(axis) is int and -ndim <= axis < ndim <= MASK_BITS and requires_grad(x):
                return apply(op, (x,), {"axis": (axis % ndim,), "keepdims": False})
        if out is not None and out is not np._NoValue:
            dtypes = {} if dtype is None else {"dtype": dtype}
            return into(op.functions[0], out, x, axis=axis, keepdims=keepdims, **dtypes, **rest)
        rest = {k: v for k, v in rest.items() if v is not np._NoValue}
        x = tensor_of(x)
        axis = axis if op is MEAN else of_number(x, axis)
        keepdims = keepdims is not np._NoValue and bool(keepdims)
        if dtype is not None:
            x = astype(x, np.dtype(dtype))
            if x.dtype.kind not in "fc":  # without it NumPy adds small integers in larger ones
                rest["dtype"] = x.dtype
        if rest:
            if not any(requires_grad(v) for v in (x, *rest.values())):
                return plainly(op.functions[0], (x,), {"axis": axis, "keepdims": keepdims, **rest})
            return _of_some(function, op, x, axis, keepdims, **rest)
        if not is_tensor(x):
            return plainly(op.forward, (x,), {"axis": axes_of(x, axis, name), "keepdims": keepdims})
        return over(op, x, axes_of(x, axis, name), keepdims)

    function.__name__ = name
    for f in op.functions:
        FUNCTIONS[f] = function
    return function


def _of_some(
    function: Any,
    op: Any,
    x: TensorOrArray,
    axis: Axis,
    keepdims: bool,
    initial: Any = None,
    where: Operand = True,
) -> TensorOrArray:
    """A reduction of the elements where a condition holds, and of an initial value."""
    mask = np.asarray(plain(where), bool)
    kind = like_of(x).dtype.type
    of_nothing = op is MEAN or op.join.identity is not None
    if not mask.all():
        if not of_nothing and initial is None:
            raise ValueError(f"{op.name} with where= needs initial=, the result where nothing is chosen")
        x = choose(mask, x, kind(op.neutral))
    if op is MEAN:
        with np.errstate(divide="ignore", invalid="ignore"):
            count = np.sum(np.broadcast_to(mask, x.shape), axis=axes_of(x, axis, op.name), keepdims=keepdims)
            return sum_(x, axis, None, None, keepdims) / np.asarray(count, kind)[()]
    if not of_nothing and x.size == 0:
        return np.broadcast_to(initial, np.sum(value_of(x), axis=axis, keepdims=keepdims).shape)
    found = function(x, axis=axis, keepdims=keepdims)
    if initial is None:
        return found
    return astype(op.join(found, initial), kind)


sum_ = _reduction(SUM)
mean = _reduction(MEAN)
max_ = _reduction(REGISTRY["max"])
min_ = _reduction(REGISTRY["min"])
prod = _reduction(REGISTRY["prod"])


def _positional(function: Callable[..., Any]) -> Callable[..., Any]:
    """np.max and np.prod take `out` where np.sum takes `dtype`."""

    def wrapped(
        a: Operand, axis: Axis = None, out: Out = None, keepdims: bool = False, **rest: Any
    ) -> Tensor:
        return function(a, axis=axis, out=out, keepdims=keepdims, **rest)

    return wrapped


max_, min_ = _positional(max_), _positional(min_)
for _f in (np.max, np.amax):
    FUNCTIONS[_f] = max_
for _f in (np.min, np.amin):
    FUNCTIONS[_f] = min_


def logsumexp(x: Operand, axis: Axis = None, keepdims: bool = False) -> Tensor:
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
    kind = like_of(x).dtype.kind
    if kind == "c":
        raise DTypeError("logsumexp of complex numbers has several values; take np.log of np.sum of np.exp")
    if kind != "f":
        x = astype(x, np.dtype(float)) if is_tensor(x) else x.astype(float)
    return over(REGISTRY["logsumexp"], x, axes_of(x, axis, "logsumexp"), bool(keepdims))


def degrees(what: str, ddof: float, correction: Any) -> float:
    """What the number of elements is lessened by, which has two names."""
    if correction is np._NoValue:
        return ddof
    if ddof != 0:
        raise ValueError(f"{what}: ddof={ddof} and correction={correction} are names of one thing; give one")
    return correction


def _spread(
    function: Any, a: Operand, axis: Axis = None, dtype: DType = None, out: Out = None, ddof: float = 0,
    keepdims: Any = False, *, where: Operand | NotGiven = np._NoValue, mean: Operand | NotGiven = np._NoValue,
    correction: float | NotGiven = np._NoValue,
) -> TensorOrArray:  # fmt: skip
    """Variance: mean squared deviation from the mean, over n - ddof."""
    name = function.__name__
    if out is not None:
        rest = {"where": where, "mean": mean, "correction": correction}
        rest = {k: v for k, v in rest.items() if v is not np._NoValue}
        return into(function, out, a, axis=axis, dtype=dtype, ddof=ddof, keepdims=keepdims, **rest)
    ddof, x = degrees(name, ddof, correction), tensor_of(a)
    axes, shape = axes_of(x, axis, name), shape_of(x)
    keepdims = keepdims is not np._NoValue and bool(keepdims)
    count = math.prod([shape[d] for d in axes])
    plain_mean = where is np._NoValue and mean is np._NoValue and dtype is None
    if plain_mean and like_of(x).dtype.kind == "f" and count > ddof:
        deviation = x - over(MEAN, x, axes, True)
        total = over(SUM, deviation * deviation, axes, keepdims)
        return total / total.dtype.type(count - ddof)
    mask = None if where is np._NoValue else np.broadcast_to(np.asarray(plain(where), bool), shape)
    if mask is not None:
        count = np.sum(mask, axis=axes, keepdims=True)
    if mean is np._NoValue:
        rest = {} if mask is None else {"where": mask}
        mean = _mean(x, axes, dtype, None, True, **rest)
    deviation = x - mean
    if mask is not None:
        deviation = choose(mask, deviation, deviation.dtype.type(0))
    note_parts()
    with np.errstate(divide="ignore", invalid="ignore"):
        square = deviation * np.conj(deviation)
        square = np.real(square) if square.dtype.kind == "c" else deviation * deviation
        if dtype is None and like_of(x).dtype.kind in "iub":
            dtype = np.dtype(float)
        total = sum_(square, axes, dtype, None, keepdims)
        divisor = np.maximum(count - ddof, 0)
        if mask is not None:
            divisor = np.reshape(divisor, shape_of(total))
        return total / np.asarray(divisor, total.dtype)[()]


_mean = mean


def root(variance: Operand) -> TensorOrArray:
    """Square root; where the variance is 0 its derivative is taken as 0, as torch does."""
    flat = np.equal(variance if is_compared() else value_of(variance), 0)
    if not is_compared() and not np.count_nonzero(flat):
        return np.sqrt(variance)
    return choose(flat, 0.0, np.sqrt(choose(flat, 1.0, variance)))


@implements(np.var, by_shapes=True)
def var(a: Operand, *args: Any, **kwargs: Any) -> TensorOrArray:
    """Variance over axes."""
    return _spread(np.var, a, *args, **kwargs)


@implements(np.std, by_shapes=True)
def std(
    a: Operand, axis: Axis = None, dtype: DType = None, out: Out = None, *args: int, **kwargs: Any
) -> TensorOrArray:
    """Standard deviation: the root of `var`."""
    if out is not None:
        return _spread(np.std, a, axis, dtype, out, *args, **kwargs)
    return root(_spread(np.std, a, axis, dtype, None, *args, **kwargs))


def accumulate(a: Operand, axis: int = 0, dtype: DType = None) -> TensorOrArray:
    """np.add.accumulate: as cumsum, but along the first axis by default."""
    return cumsum(a, axis_of(tensor_of(a), axis, "np.add.accumulate"), dtype)


@implements(np.cumsum, by_shapes=True)
def cumsum(a: Operand, axis: int | None = None, dtype: DType = None, out: Out = None) -> TensorOrArray:
    """Running sum along an axis, or over all elements."""
    if out is not None:
        return into(np.cumsum, out, a, axis=axis, dtype=dtype)
    x = tensor_of(a)
    if dtype is not None:
        x = astype(x, np.dtype(dtype))
    axis = of_number(x, axis)
    if axis is None:
        x, axis = laid(x, (np.size(like_of(x)),)), 0
    attrs = {"axis": axis_of(x, axis, "cumsum")}
    return apply(REGISTRY["cumsum"], (x,), attrs)
