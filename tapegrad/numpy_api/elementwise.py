"""Elementwise functions that are composed of others, or whose result is no array of one op."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.core.base import like_of, requires_grad, shape_of, undisturbed, value_of
from tapegrad.core.conversion import astype
from tapegrad.core.dispatch import as_tape_value
from tapegrad.core.functions import UFUNCS, implements
from tapegrad.core.inplace import write
from tapegrad.core.notes import expect_flat, is_compared, note_flat, note_parts, note_value
from tapegrad.core.operators import FAST, constant_of, operand
from tapegrad.numpy_api.indexing import where
from tapegrad.numpy_api.tables import into, plainly, tensor_of
from tapegrad.ops import REGISTRY
from tapegrad.tensor import (
    Operand,
    Out,
    Tensor,
    TensorOrArray,
    apply,
    is_tensor,
    record,
    wrap,
    wrap_without_history,
)


def _scaled(value: Operand, x: Operand, factor: Operand) -> Tensor:
    """Return a value that NumPy has computed as x times a constant."""
    if not requires_grad(x):
        return wrap_without_history(value, (x,))
    note_value()
    return record(REGISTRY["multiply"], value, (x, factor))


# ---------------------------------------------------------------- ufuncs


@implements(np.fabs)
def fabs(x: TensorOrArray) -> TensorOrArray:
    """Absolute value, as a floating-point number."""
    return FAST["absolute"](x) if x.dtype.kind == "f" else plainly(np.fabs, (x,), {})


@implements(np.heaviside)
def heaviside(x: Operand, h: Operand) -> TensorOrArray:
    """Step from 0 to 1, at 0 the second operand, which alone has a derivative."""
    x, h = operand(x), operand(h)
    if not requires_grad(h):
        known: Any = expect_flat(np.heaviside, (x, h))
        if known is not None:
            return known
    step = as_tape_value(np.heaviside(value_of(x), value_of(h)))
    if requires_grad(h):
        return where(np.equal(value_of(x), 0), h, step)
    out = wrap_without_history(step, (h,))
    return note_flat(out, np.heaviside, (x, h)) if is_compared() else out


@implements(np.modf)
@undisturbed
def modf(x: Tensor) -> tuple[TensorOrArray, TensorOrArray]:
    """Fraction, which moves with the operand, and whole number, which does not."""
    fraction, whole = np.modf(x._v)
    return _scaled(fraction, x, fraction.dtype.type(1)), wrap(whole)


@implements(np.frexp)
@undisturbed
def frexp(x: Tensor) -> tuple[TensorOrArray, TensorOrArray]:
    """Fraction in [1/2, 1), and power of two, which has no derivative."""
    fraction, power = np.frexp(x._v)
    return _scaled(fraction, x, np.ldexp(fraction.dtype.type(1), -power)), wrap(power)


@implements(np.ldexp)
@undisturbed
def ldexp(x: Operand, power: Operand) -> TensorOrArray:
    """Multiply by an integer power of two."""
    x, power = operand(x), value_of(operand(power))
    value = np.ldexp(value_of(x), power)
    return _scaled(value, x, np.ldexp(value.dtype.type(1), power))


@implements(np.nextafter)
@undisturbed
def nextafter(x: Operand, toward: Operand) -> TensorOrArray:
    """Neighbouring number, which moves with the first operand only."""
    x = operand(x)
    value = np.nextafter(value_of(x), value_of(operand(toward)))
    return _scaled(value, x, value.dtype.type(1))


# ---------------------------------------------------------------- functions


@implements(np.sinc)
def sinc(x: Operand) -> TensorOrArray:
    """sin(pi x)/(pi x)."""
    return apply(REGISTRY["sinc"], (tensor_of(x),))


@implements(np.i0)
def i0(x: Operand) -> TensorOrArray:
    """Modified Bessel function of the first kind, order 0."""
    return apply(REGISTRY["i0"], (tensor_of(x),))


@implements(np.nan_to_num, by_shapes=True)
def nan_to_num(
    x: Operand, copy: bool = True, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> TensorOrArray:
    """Numbers in the place of nan and infinities."""
    x = tensor_of(x)
    dtype = like_of(x).dtype
    if dtype.kind == "c" or not copy:
        note_parts()
    out = UFUNCS[np.positive](x) if is_tensor(x) else x
    if dtype.kind == "c" and not np.all(np.isfinite(value_of(x))):
        parts = [nan_to_num(part, True, nan, posinf, neginf) for part in (np.real(x), np.imag(x))]
        ends = np.zeros(shape_of(x), dtype)
        ends.imag = np.where(np.isfinite(value_of(parts[1])), 0, value_of(parts[1]))
        out = parts[0] + 1j * where(ends == 0, parts[1], 0) + ends  # 1j times an infinite one has a real part
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        for holds, number in (
            (constant_of(np.isnan, x), nan),
            (constant_of(np.equal, x, np.inf), limits.max if posinf is None else posinf),
            (constant_of(np.equal, x, -np.inf), limits.min if neginf is None else neginf),
        ):
            if is_tensor(holds) or np.any(holds):
                out = astype(where(holds, number, out), dtype)
    if copy or not is_tensor(x):
        return out
    write(x, Ellipsis, out, "np.nan_to_num", True)
    return x


@implements(np.real_if_close)
def real_if_close(a: Tensor, tol: float = 100) -> Tensor:
    """Real part where the imaginary one is small: real numbers as they are."""
    return np.real(a) if np.real_if_close(a._v, tol).dtype.kind != "c" else a


@implements(np.unwrap)
def unwrap(
    p: Operand, discont: float | None = None, axis: int = -1, *, period: float = 2 * np.pi
) -> TensorOrArray:
    """Remove jumps by whole periods; their number has no derivative."""
    p = tensor_of(p)
    value, length = value_of(p), value_of(period)
    smooth = np.unwrap(value, value_of(discont), axis, period=length)
    if smooth.dtype.kind in "iu":
        return wrap(smooth)
    return p + np.rint((smooth - value) / length).astype(smooth.dtype) * period


@implements(np.fix)
def fix(x: Operand, out: Out = None) -> TensorOrArray:
    """Whole number towards 0; derivative zero."""
    return UFUNCS[np.trunc](x) if out is None else into(np.trunc, out, x)
