"""Running products, sums and extremes along an axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapegrad.core.base import DType, ndim_of, requires_grad, shape_of, undisturbed
from tapegrad.core.conversion import astype
from tapegrad.core.functions import implements
from tapegrad.errors import ShapeError
from tapegrad.numpy_api.rearranging import in_order, numbers_in
from tapegrad.numpy_api.reductions import cumsum
from tapegrad.numpy_api.shapes import concatenate, reshape
from tapegrad.numpy_api.tables import axis_of, into, of_number, plainly, tensor_of
from tapegrad.ops import REGISTRY
from tapegrad.tensor import Operand, Out, Tensor, TensorOrArray, apply, is_tensor


@implements(np.cumprod, by_shapes=True)
def cumprod(a: Operand, axis: int | None = None, dtype: DType = None, out: Out = None) -> TensorOrArray:
    """Running product along an axis, or over all elements."""
    if out is not None:
        return into(np.cumprod, out, a, axis=axis, dtype=dtype)
    a = tensor_of(a)
    if not requires_grad(a):
        return plainly(np.cumprod, (a,), {"axis": axis, "dtype": dtype})
    if dtype is not None:
        a = astype(a, np.dtype(dtype))
    axis = of_number(a, axis)
    if axis is None:
        a, axis = reshape(a, (-1,)), 0
    return apply(REGISTRY["cumprod"], (a,), {"axis": axis_of(a, axis, "cumprod")})


def _cumulative(
    scan: Callable[..., Any], name: str, identity: int, x: Operand, axis: int | None, dtype: DType,
    include_initial: bool,
) -> Tensor:  # fmt: skip
    """As the array API has it: an axis is needed for more than one dimension; the identity may lead."""
    x = tensor_of(x)
    if ndim_of(x) == 0:
        x = reshape(x, (1,))
    if axis is None:
        if ndim_of(x) > 1:
            raise ShapeError(f"{name} of shape {shape_of(x)}: give the axis to run along")
        axis = 0
    found = scan(x, axis, dtype)
    if not include_initial:
        return found
    axis = axis_of(found, axis, name)
    shape = tuple(1 if d == axis else n for d, n in enumerate(found.shape))
    return concatenate([np.full(shape, identity, found.dtype), found], axis)


@implements(np.cumulative_sum, by_shapes=True)
def cumulative_sum(x: Operand, /, *, axis: int | None = None, dtype: DType = None, out: Out = None,
                   include_initial: bool = False) -> TensorOrArray:  # fmt: skip
    """Running sum, of zero to begin with if wanted."""
    if out is not None:
        return into(np.cumulative_sum, out, x, axis=axis, dtype=dtype, include_initial=include_initial)
    return _cumulative(cumsum, "cumulative_sum", 0, x, axis, dtype, include_initial)


@implements(np.cumulative_prod, by_shapes=True)
def cumulative_prod(x: Operand, /, *, axis: int | None = None, dtype: DType = None, out: Out = None,
                    include_initial: bool = False) -> TensorOrArray:  # fmt: skip
    """Running product, of one to begin with if wanted."""
    if out is not None:
        return into(np.cumulative_prod, out, x, axis=axis, dtype=dtype, include_initial=include_initial)
    return _cumulative(cumprod, "cumulative_prod", 1, x, axis, dtype, include_initial)


@dataclass(frozen=True)
class Latest:
    """Places of the last elements that equal the largest or smallest so far along an axis."""

    ufunc: np.ufunc
    axis: int

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return them, of values."""
        found = self.ufunc.accumulate(x, self.axis)
        hits = (x == found) | (np.isnan(x) & np.isnan(found))
        places = np.ix_(*(np.arange(n) for n in x.shape))[self.axis]
        last = np.maximum.accumulate(np.where(hits, places, 0), self.axis)
        return np.take_along_axis(numbers_in(x.shape), last, self.axis)


@undisturbed
def running_extreme(ufunc: np.ufunc, x: Operand, axis: int) -> TensorOrArray:
    """Largest or smallest value so far; the derivative is that of the last element which equals it."""
    if not is_tensor(x):
        return ufunc.accumulate(x, axis)
    return in_order(x, Latest(ufunc, axis))
