"""Complex numbers: parts, conjugate, angle and direction."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.core.base import like_of, ndim_of, note_copied, note_of_copy, requires_grad, value_of
from tapegrad.core.dispatch import as_tape_value
from tapegrad.core.functions import implements
from tapegrad.core.operators import FAST
from tapegrad.numpy_api.indexing import where
from tapegrad.numpy_api.tables import plainly, tensor_of
from tapegrad.ops import REGISTRY
from tapegrad.tensor import Operand, Tensor, TensorOrArray, apply, is_tensor, wrap


def is_complex(x: Operand) -> bool:
    """Whether an argument is complex."""
    return bool(np.result_type(like_of(x)).kind == "c")


def _part(op: str, z: Operand) -> Tensor:
    out = apply(REGISTRY[op], (z,))
    return note_copied(out, z) if ndim_of(z) else note_of_copy(out, z)


@implements(np.real)
def real(val: Operand) -> Any:
    """Real part."""
    return _part("real", val) if is_complex(val) else val


@implements(np.imag)
def imag(val: Operand) -> TensorOrArray:
    """Imaginary part; zeros of a real array."""
    if is_complex(val):
        return _part("imag", val)
    return wrap(as_tape_value(np.zeros_like(value_of(val))))


@implements(np.conjugate)
def conj(x: Operand) -> Tensor:
    """Complex conjugate, in memory of its own."""
    return apply(REGISTRY["conjugate"], (x,))


@implements(np.angle)
def angle(z: Operand, deg: bool = False) -> TensorOrArray:
    """Angle in the complex plane; derivative 0 at the origin."""
    z = tensor_of(z)
    found = np.arctan2(imag(z), real(z))
    return found * (180 / np.pi) if deg else found


@implements(np.sign)
def sign(x: Operand) -> TensorOrArray:
    """Sign; of a complex number the direction, z/|z|, and 0 at 0, as is its derivative there."""
    if not (is_tensor(x) and is_complex(x) and requires_grad(x)):
        return plainly(np.sign, (x,), {})
    size = FAST["absolute"](x)
    zero = value_of(size) == 0
    return where(zero, 0.0, x) / where(zero, 1.0, size)
