"""Trees of numbers and arrays as vectors, and derivatives of functions of vectors in both modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.apply import as_tensor
from tapegrad.autograd.forward_ad import dual_level, make_dual, unpack_dual
from tapegrad.autograd.functional import _followed, grad_of_active
from tapegrad.core.base import DType, value_of
from tapegrad.errors import DTypeError, ShapeError
from tapegrad.func.custom import replaced
from tapegrad.func.trees import Tree, flatten, map_tree
from tapegrad.kernels import abi
from tapegrad.ops.complexes import pair
from tapegrad.tensor import Operand, Tensor, TensorOrArray, is_tensor, wrap


def pack(leaves: Sequence[Any], lanes: tuple[int, ...] = ()) -> Any:
    """One vector of all elements, real: imaginary parts come after the real ones of a leaf."""
    parts = [part for x in leaves for part in ((x.real, x.imag) if x.dtype.kind == "c" else (x,))]
    parts = [x if x.ndim == len(lanes) + 1 else x.reshape((*lanes, -1)) for x in parts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def unpack(vector: TensorOrArray, likes: Sequence[TensorOrArray]) -> list[Any]:
    """Undo `pack`."""
    found, at = [], 0
    for x in likes:
        parts = []
        for _ in range(1 + (x.dtype.kind == "c")):
            parts.append(vector[at : at + x.size].reshape(x.shape))
            at += x.size
        found.append((parts[0] if len(parts) == 1 else pair(*parts)).astype(x.dtype))
    return found


def ravel_tree(tree: Tree) -> tuple[TensorOrArray, Callable[[Operand], Tree]]:
    """Return the numbers of a tree as one vector, and the function that builds such trees of vectors.

    Parameters
    ----------
    tree : nested dict, list, tuple, named tuple or dataclass
        Of numbers, arrays and Tensors; of a complex leaf the imaginary parts follow the real ones.

    Returns
    -------
    vector : ndarray or Tensor
        Of shape (n,) and the leaves' common dtype; with a history where a leaf has one.
    unravel : callable
        Of a vector of shape (n,), ndarray or Tensor: a tree with leaves of the same shapes and dtypes, floats
        for numbers. It is differentiated as any function.

    Raises
    ------
    DTypeError
        A leaf is no number, array or Tensor.
    ShapeError
        `unravel` is called with another shape.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> vector, unravel = tg.func.ravel_tree({"w": np.ones((2, 2)), "b": 3.0})
    >>> vector
    array([1., 1., 1., 1., 3.])
    >>> def f(v):
    ...     p = unravel(v)
    ...     return np.sum(p["w"] ** 2) * p["b"]
    >>> tg.func.grad(f)(vector)
    array([6., 6., 6., 6., 4.])
    """
    leaves, structure = flatten(tree)
    for x in leaves:
        if (dtype := np.asarray(value_of(x)).dtype).kind not in "biufc":
            raise DTypeError(f"ravel_tree: a leaf has dtype {dtype}; leaves are numbers, arrays and Tensors")
    arrays = [x if is_tensor(x) and x.dtype.kind in "fc" else floats(value_of(x)) for x in leaves]
    likes = [np.broadcast_to(np.zeros((), x.dtype), x.shape) for x in arrays]
    numbers = [not isinstance(x, (Tensor, np.ndarray)) for x in leaves]
    n = count_elements(likes)

    def unravel(vector: Operand) -> Tree:
        if np.shape(vector) != (n,):
            raise ShapeError(f"unravel takes a vector of shape ({n},), found shape {np.shape(vector)}")
        parts = unpack(vector if isinstance(vector, Tensor) else np.asarray(vector), likes)
        plain = [number and not isinstance(x, Tensor) for number, x in zip(numbers, parts, strict=True)]
        return structure.build([x.item() if p else x for p, x in zip(plain, parts, strict=True)])

    return (pack(arrays) if arrays else np.zeros(0)), unravel


def floats(x: Operand) -> np.ndarray:
    """Numbers as floats."""
    array = np.asarray(x)
    return array if array.dtype.kind in "fc" else array.astype(np.float64)


def copied(tree: Tree) -> Any:
    """A tree with arrays of its own, which may be written to."""
    return map_tree(lambda x: x.copy() if isinstance(x, np.ndarray) else x, tree)


def count_elements(leaves: Sequence[Operand]) -> int:
    """How many real numbers there are."""
    return sum(np.size(x) * (1 + (np.asarray(value_of(x)).dtype.kind == "c")) for x in leaves)


def shapes_of(leaves: Sequence[Operand]) -> str:
    """Shapes and dtypes, for an error."""
    return ", ".join(f"{np.shape(x)} {np.asarray(value_of(x)).dtype}" for x in leaves) or "nothing"


def zeros(shape: tuple[int, ...], dtype: DType) -> Tensor:
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
