"""Elements chosen by an index, a condition or limits."""

from __future__ import annotations

import functools
import math
import reprlib
from typing import Any

import numpy as np

from tapegrad.core.base import (
    Axis,
    is_noted,
    like_of,
    ndim_of,
    value_of,
)
from tapegrad.core.dispatch import operand, sequence
from tapegrad.core.functions import implements
from tapegrad.core.indices import getitem, plain_index
from tapegrad.core.notes import is_followed
from tapegrad.numpy_api.shapes import ravel
from tapegrad.numpy_api.tables import axes_of, axis_of, into, plainly, tensor_of
from tapegrad.ops import REGISTRY
from tapegrad.tensor import (
    Operand,
    Out,
    Tensor,
    TensorOrArray,
    apply,
    is_tensor,
    wrap,
)


@implements(np.take, by_shapes=True)
def take(
    a: Operand, indices: Operand, axis: int | None = None, out: Out = None, mode: str = "raise"
) -> TensorOrArray:
    """Elements by number along an axis."""
    if out is not None:
        return into(np.take, out, a, indices, axis=axis, mode=mode)
    if mode not in ("raise", "wrap", "clip"):
        raise ValueError(f"take: mode is 'raise', 'wrap' or 'clip', found {reprlib.repr(mode)}")
    x = tensor_of(a)
    numbers = indices if type(indices) is np.ndarray else np.asarray(plain_index(indices))
    if axis is None:
        x = x if ndim_of(x) == 1 else ravel(x)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"take: indices are integers, found {indices!r}")
    at = 0 if axis is None else axis_of(x, axis, "take")
    if mode != "raise" and x.shape[at]:
        numbers = numbers % x.shape[at] if mode == "wrap" else np.clip(numbers, 0, x.shape[at] - 1)
    index = (*(slice(None),) * at, numbers) if at else numbers
    return getitem(x, index) if is_tensor(x) else wrap(x[index])


@functools.lru_cache(maxsize=256)
def _reversed(ndim: int, axes: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(None, None, -1) if d in axes else slice(None) for d in range(ndim))


@implements(np.flip, by_shapes=True)
def flip(m: Tensor, axis: Axis = None) -> Tensor:
    """Elements in reverse order along axes."""
    return m[_reversed(ndim_of(m), axes_of(m, axis, "flip"))]


@implements(np.where)
def where(condition: Operand, x: Operand | None = None, y: Operand | None = None) -> Any:
    """Choice by a condition; with one argument, where it holds."""
    condition = sequence(condition)
    if not (is_noted(condition) or is_followed(condition)):
        condition = np.asarray(value_of(condition))
    if x is None and y is None:
        return tuple(wrap(found) for found in np.where(value_of(condition)))
    if x is None or y is None:
        raise ValueError(f"where: {'xy'[y is None]} is missing; give x and y, or the condition alone")
    return apply(REGISTRY["where"], (condition, sequence(x), sequence(y)))


@implements(np.clip)
def clip(
    a: Operand, a_min: Operand | None = None, a_max: Operand | None = None, out: Out = None, *,
    min: Any = None, max: Operand | None = None,
) -> TensorOrArray:  # fmt: skip
    """Values limited to an interval; an end that is None does not limit."""
    if (a_min is not None or a_max is not None) and (min is not None or max is not None):
        raise ValueError("clip: give the ends as a_min and a_max or as min and max, not both")
    if out is not None:
        return into(np.clip, out, a, a_min if min is None else min, a_max if max is None else max)
    low, high = (a_min if a_min is not None else min), (a_max if a_max is not None else max)
    a, low, high = (operand(sequence(v), "clip") for v in (a, low, high))
    a = tensor_of(a)
    if like_of(a).dtype.kind in "iub":
        kind = np.result_type(*(like_of(v) for v in (a, low, high) if v is not None))
        if kind.kind in "iub":
            return plainly(np.clip, (a, low, high), {})
    low = -math.inf if low is None or low is np._NoValue else low
    high = math.inf if high is None or high is np._NoValue else high
    return apply(REGISTRY["clip"], (a, low, high))
