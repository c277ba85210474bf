"""What functions of `scipy.linalg` make of their arguments."""

from __future__ import annotations

import numpy as np
import scipy.linalg as _scipy

from tapegrad.core.base import decide, like_of, shape_of
from tapegrad.errors import ShapeError
from tapegrad.numpy_api.tables import tensor_of
from tapegrad.scipy.calls import derived_in
from tapegrad.tensor import Operand, TensorOrArray

derived = derived_in(_scipy)


def given(x: Operand, check_finite: bool = True, axes: int = 0) -> TensorOrArray:
    """An argument as a Tensor or array of floating-point numbers of at least so many axes."""
    x = tensor_of(x)
    if check_finite and not decide(_are_finite, x):
        raise ValueError("an argument holds an infinity or nan; check_finite=False lets it pass")
    like = like_of(x)
    if np.ndim(like) < axes:
        raise ShapeError(f"an array of at least {axes} axes is needed, found shape {np.shape(like)}")
    if like.dtype.kind not in "fc":
        x = x * 1.0
    return x


def _are_finite(x: np.ndarray) -> bool:
    return bool(np.isfinite(x).all())


def square(x: Operand, check_finite: bool = True) -> TensorOrArray:
    """An argument as square matrices of floating-point numbers."""
    x = given(x, check_finite, 2)
    shape = shape_of(x)
    if shape[-1] != shape[-2]:
        raise ShapeError(f"square matrices are needed, found shape {shape}")
    return x


def adjoint(x: TensorOrArray) -> TensorOrArray:
    """The conjugate transpose."""
    x = np.swapaxes(x, -1, -2)
    return np.conj(x) if like_of(x).dtype.kind == "c" else x


def in_double(x: TensorOrArray) -> TensorOrArray:
    """Numbers in double precision."""
    return x.astype(np.complex128 if is_complex(x) else np.float64, copy=False)


def is_complex(*xs: Operand) -> bool:
    """Whether one of several has complex numbers."""
    return any(like_of(x).dtype.kind == "c" for x in xs)


def diagonals(
    c_or_cr: Operand | tuple[Operand, Operand | None], check_finite: bool
) -> tuple[TensorOrArray, TensorOrArray]:
    """First column and row of a matrix with constant diagonals."""
    c, r = c_or_cr if isinstance(c_or_cr, tuple) else (c_or_cr, None)
    c = given(c, check_finite)
    return c, np.conj(c) if r is None else given(r, check_finite)
