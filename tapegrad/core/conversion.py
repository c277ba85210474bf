"""The elements of a Tensor in another dtype, or in memory of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tapegrad.core.base import Operand, as_array, is_array, is_still, like_of, requires_grad, value_of
from tapegrad.core.dispatch import apply, expect, record, timed, wrap_without_history
from tapegrad.core.notes import is_followed
from tapegrad.errors import DTypeError
from tapegrad.kernels import abi
from tapegrad.ops import REGISTRY
from tapegrad.tape import pool

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


def astype(x: Operand, dtype: DTypeLike) -> Any:
    """Another dtype; a conversion to an integer or boolean has no derivative."""
    dtype = np.dtype(dtype)
    if like_of(x).dtype == dtype:
        return x
    out = _converted(x, dtype)
    return as_array(out) if is_array(x) else out


def _converted(x: Operand, dtype: np.dtype) -> Any:
    if is_followed(x):
        return apply(REGISTRY["astype"], (x,), {"dtype": dtype})
    if not requires_grad(x) or dtype.kind in "iub":
        return wrap_without_history(value_of(x).astype(dtype), (x,))
    if dtype.char not in abi.GRADIENT:
        raise DTypeError(
            f"astype: dtype {dtype} has no derivative; use a complex dtype or a floating-point one of "
            "32 bits or more"
        )
    return apply(REGISTRY["astype"], (x,), {"dtype": dtype})


@timed("copy")
def copy(a: Any, order: str = "K", subok: bool = False) -> Any:
    """A copy with the same history."""
    like = like_of(a)
    if like.flags.c_contiguous and order != "F":
        known = expect(REGISTRY["reshape"], (a,), {"shape": like.shape}, "copied")
        if known is not None:
            return as_array(known) if is_array(a) else known
    value = value_of(a)
    pooled = value.flags.c_contiguous and order != "F"
    out = pool.empty(value.shape, value.dtype) if pooled else np.empty_like(value, order=order)  # type: ignore[call-overload]
    out[...] = value
    found = record(REGISTRY["reshape"], out[()] if out.ndim == 0 else out, (a,), {"shape": out.shape})
    if not is_still(a, value):
        return copy(a, order)
    return as_array(found) if is_array(a) else found
