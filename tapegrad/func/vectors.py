"""Trees of numbers and arrays as vectors, and derivatives of functions of vectors in both modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.apply import as_tensor
from tapegrad.autograd.forward_ad import dual_level, make_dual, unpack_dual
from tapegrad.autograd.functional import _followed, grad_of_active
from tapegrad.core.base import value_of, wrap
from tapegrad.func.custom import replaced
from tapegrad.func.trees import map_tree
from tapegrad.kernels import abi
from tapegrad.tensor import Tensor


def pack(leaves: Sequence[Any], lanes: tuple[int, ...] = ()) -> Any:
    """One vector of all elements, real: imaginary parts come after the real ones of a leaf."""
    parts = [part for x in leaves for part in ((x.real, x.imag) if x.dtype.kind == "c" else (x,))]
    parts = [x if x.ndim == len(lanes) + 1 else x.reshape((*lanes, -1)) for x in parts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def unpack(vector: Any, likes: Sequence[Any]) -> list[Any]:
    """Undo `pack`."""
    found, at = [], 0
    for x in likes:
        parts = []
        for _ in range(1 + (x.dtype.kind == "c")):
            parts.append(vector[at : at + x.size].reshape(x.shape))
            at += x.size
        found.append((parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1]).astype(x.dtype))
    return found


def floats(x: Any) -> np.ndarray:
    """Numbers as floats."""
    array = np.asarray(x)
    return array if array.dtype.kind in "fc" else array.astype(np.float64)


def copied(tree: Any) -> Any:
    """A tree with arrays of its own, which may be written to."""
    return map_tree(lambda x: x.copy() if isinstance(x, np.ndarray) else x, tree)


def count_elements(leaves: Sequence[Any]) -> int:
    """How many real numbers there are."""
    return sum(np.size(x) * (1 + (np.asarray(value_of(x)).dtype.kind == "c")) for x in leaves)


def shapes_of(leaves: Sequence[Any]) -> str:
    """Shapes and dtypes, for an error."""
    return ", ".join(f"{np.shape(x)} {np.asarray(value_of(x)).dtype}" for x in leaves) or "nothing"


def zeros(shape: tuple[int, ...], dtype: Any) -> Tensor:
    """A constant of zeros."""
    return wrap(np.zeros(shape, dtype) if shape else np.zeros(shape, dtype)[()])


def pull(r: Tensor, xs: Sequence[Tensor], ct: Any, recorded: bool, lanes: bool = False) -> list[Tensor]:
    """Cotangents of what a Tensor was computed from, zeros where it does not depend on it."""
    found = grad_of_active([r], tuple(xs), [ct], recorded, retain_graph=True, is_grads_batched=lanes)
    front = (len(ct),) if lanes else ()
    return [zeros(front + x.shape, x.dtype) if g is None else g for x, g in zip(xs, found, strict=True)]


def push(tensors: Sequence[Tensor], tangents: Sequence[Any], of: Callable[[Sequence[Tensor]], Any]) -> Any:
    """The value of a function, and its tangent, or None."""
    with dual_level():
        duals = [
            x if t is None or x.dtype.char not in abi.GRADIENT else make_dual(x, t)
            for x, t in zip(tensors, tangents, strict=True)
        ]
        return unpack_dual(as_tensor(of(duals)))


def follow(tensors: Sequence[Tensor], needs: Sequence[bool], recorded: bool) -> tuple[list[int], list[Any]]:
    """Where Tensors are whose cotangents are needed; all, these such that they can be swept to."""
    spots = [k for k, need in enumerate(needs) if need]
    return spots, replaced(tensors, spots, _followed(tuple(tensors[k] for k in spots), recorded))
