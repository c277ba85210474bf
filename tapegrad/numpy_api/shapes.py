"""Shapes, order of axes, joining, copies and dtypes."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tapegrad.core.base import (
    Axis,
    DType,
    Shape,
    array_of,
    is_array,
    is_number_view,
    is_still,
    join,
    like_of,
    ndim_of,
    note_of_copy,
    requires_grad,
    seen_by,
    shape_of,
    value_of,
)
from tapegrad.core.conversion import astype, copy
from tapegrad.core.dispatch import expect, is_view_of, timed
from tapegrad.core.functions import implements
from tapegrad.core.indices import getitem
from tapegrad.errors import AxisError, ShapeError
from tapegrad.numpy_api.tables import axis_of, into, tensor_of
from tapegrad.ops import REGISTRY
from tapegrad.ops.buffers import reshape as reshaped
from tapegrad.tensor import Operand, Out, Tensor, TensorOrArray, apply, is_tensor, record, wrap

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

MANY = 4096  # operands of one record
NUMBERS = {float: np.dtype(float), int: np.dtype(int), np.float64: np.dtype(float)}  # operands as they are


@implements(np.reshape)
def reshape(
    a: Operand,
    /,
    shape: Shape | None = None,
    order: str = "C",
    *,
    newshape: Shape | None = None,
    copy: bool | None = None,
) -> Tensor:
    """The same elements in another shape, read and placed in the order of C or Fortran."""
    x = tensor_of(a)
    if order != "C":
        if order not in ("F", "A"):
            raise ValueError(f"reshape: order is 'C', 'F' or 'A', found {reprlib.repr(order)}")
        if order == "F" or np.isfortran(like_of(x)):
            wanted = _reshaped(like_of(x), shape if shape is not None else newshape)
            return transpose(reshape(transpose(x), wanted[::-1]))
    value = like_of(x)
    wanted = _reshaped(value, shape if shape is not None else newshape)
    if copy is False and not np.shares_memory(value, np.reshape(value, wanted)):
        raise ValueError(f"reshape of shape {np.shape(value)} to {wanted} needs a copy, and copy=False")
    if not (value.ndim or wanted) and is_tensor(x) and (is_number_view(x) or is_array(x)):
        out = getitem(x, ...)  # to what learns a program a reshape of the same shape may be a copy
    else:
        out = apply(REGISTRY["reshape"], (x,), {"shape": wanted})
    if copy:
        return _copy(out)
    return out if value.ndim else note_of_copy(out, x)


def _reshaped(value: np.ndarray, shape: Any) -> tuple[int, ...]:
    if type(shape) is int and shape in (-1, value.size):
        return (value.size,)
    if type(shape) is tuple and shape and all(type(n) is int for n in shape):
        least, given = min(shape), prod(shape)
        if least >= 0 and given == value.size:
            return shape
        if least == -1 and given < 0 and shape.count(-1) == 1 and value.size % given == 0:
            return tuple(-value.size // given if n == -1 else n for n in shape)
    try:
        dense = value.flags.c_contiguous  # else it would be copied
        found = (value if dense else np.broadcast_to(np.int8(0), np.shape(value))).reshape(shape).shape
    except (ValueError, TypeError) as error:
        kind = ShapeError if isinstance(error, ValueError) else TypeError
        raise kind(f"reshape of shape {np.shape(value)} to {reprlib.repr(shape)}: {error}") from error
    return found


@timed("reshape")
def laid(x: Operand, shape: tuple[int, ...]) -> Any:
    """As `reshape` to a shape that fits, where nobody else has x or where nobody else gets the result."""
    if shape_of(x) == shape:
        return x
    if not is_tensor(x):
        return reshaped(x, shape)
    known = expect(REGISTRY["reshape"], (x,), {"shape": shape})
    if known is not None:
        return known
    of = x._v
    out = record(REGISTRY["reshape"], reshaped(of, shape), (x,), {"shape": shape})
    return out if is_still(x, of) else laid(x, shape)


@implements(np.ravel, by_shapes=True)
def ravel(a: Operand, order: str = "C") -> TensorOrArray:
    """All elements in one dimension, without gaps: a view or, where they have such, a copy."""
    if order == "K":  # as they lie in memory
        steps = [-abs(step) for step in np.asarray(value_of(a)).strides]
        found = reshape(transpose(a, np.argsort(steps, kind="stable").tolist()), (-1,))
    else:
        found = reshape(a, (-1,), order)
    return found if like_of(found).flags.c_contiguous else _copy(found)


@implements(np.transpose, np.permute_dims, by_shapes=True)
def transpose(a: TensorOrArray, axes: Any = None) -> Tensor:
    """Axes in another order, by default reversed."""
    x = tensor_of(a)
    ndim = ndim_of(x)
    if axes is None:
        axes = tuple(range(ndim))[::-1]
    else:
        axes = tuple(axis_of(x, a, "transpose") for a in axes)
        if sorted(axes) != list(range(ndim)):
            raise ShapeError(f"transpose of shape {shape_of(x)}: axes {axes} are no permutation")
    return _permuted(x, axes)


def _permuted(x: TensorOrArray, axes: tuple[int, ...]) -> Tensor:
    return apply(REGISTRY["transpose"], (x,), {"axes": axes}) if len(axes) > 1 else reshape(x, shape_of(x))


@implements(np.swapaxes, by_shapes=True)
def swapaxes(a: Operand, axis1: int, axis2: int) -> TensorOrArray:
    """Two axes exchanged."""
    x = a
    axes = list(range(ndim_of(x)))
    p, q = axis_of(x, axis1, "swapaxes"), axis_of(x, axis2, "swapaxes")
    axes[p], axes[q] = axes[q], axes[p]
    return _permuted(tensor_of(x), tuple(axes))


@implements(np.linalg.matrix_transpose, np.matrix_transpose, by_shapes=True)
def matrix_transpose(x: Operand) -> TensorOrArray:
    """The last two axes exchanged."""
    if ndim_of(x) < 2:
        raise ShapeError(f"matrix_transpose needs two dimensions, found shape {shape_of(x)}")
    return swapaxes(x, -1, -2)


@implements(np.moveaxis, by_shapes=True)
def moveaxis(a: Operand, source: int | Sequence[int], destination: int | Sequence[int]) -> TensorOrArray:
    """Axes moved to other places."""
    x = a
    if type(source) is type(destination) is int:
        source, destination = (axis_of(x, k, "moveaxis") for k in (source, destination))
        axes = [d for d in range(ndim_of(x)) if d != source]
        axes.insert(destination, source)
        return transpose(x, axes)
    numbers = np.arange(ndim_of(x))
    label = np.broadcast_to(np.empty((), np.int8), tuple(numbers + 2))
    try:
        moved = np.moveaxis(label, source, destination).shape
    except ValueError as error:
        raise AxisError(f"moveaxis of shape {shape_of(x)}: {error}") from error
    return transpose(x, [n - 2 for n in moved])


@implements(np.expand_dims, by_shapes=True)
def expand_dims(a: Operand, axis: Axis) -> TensorOrArray:
    """New axes of one element."""
    return reshape(a, _plain_shape(a, np.expand_dims, axis))


@implements(np.squeeze, by_shapes=True)
def squeeze(a: Operand, axis: Axis = None) -> TensorOrArray:
    """Axes of one element removed."""
    return reshape(a, _plain_shape(a, np.squeeze, axis))


def _plain_shape(x: Operand, function: Any, axis: Axis) -> tuple[int, ...]:
    shape = shape_of(x)
    if axis is None and function is np.squeeze:
        return tuple([n for n in shape if n != 1])
    if function is np.expand_dims and type(axis) is int and -len(shape) - 1 <= axis <= len(shape):
        at = axis % (len(shape) + 1)
        return (*shape[:at], 1, *shape[at:])
    try:
        return tuple(function(np.broadcast_to(np.empty((), np.int8), shape), axis).shape)
    except np.exceptions.AxisError as error:
        raise AxisError(f"{function.__name__}: axis {axis} of an array of shape {shape}") from error
    except ValueError as error:
        raise ShapeError(f"{function.__name__} of shape {shape}, axis {axis}: {error}") from error


@implements(np.broadcast_to)
def broadcast_to(array: Operand, shape: int | Sequence[int], subok: bool = False) -> TensorOrArray:
    """A larger shape by repetition."""
    x = tensor_of(array)
    try:
        value = np.broadcast_to(seen_by(x) if is_tensor(x) else x, shape)
    except ValueError as error:
        raise ShapeError(f"broadcast_to of shape {shape_of(x)} to {reprlib.repr(shape)}: {error}") from error
    if value.ndim == 0:
        return x if is_tensor(x) else wrap(x)
    of: Any = array_of(x) if is_tensor(x) else x
    value = np.broadcast_to(of, shape)
    out = record(REGISTRY["broadcast_to"], value, (x,))
    return join(x, out, of) if is_tensor(x) and is_view_of(out._v, of) else out


def _members(arrays: Any, what: str) -> list[TensorOrArray]:
    if not isinstance(arrays, (list, tuple)):
        arrays = list(arrays)
    if not arrays:
        raise ShapeError(f"{what}: at least one array is needed")
    return [x if type(x) in NUMBERS else tensor_of(x) for x in arrays]


def _join(name: str, members: list[Any], axis: int) -> Tensor:
    dtypes = {NUMBERS.get(type(x)) or like_of(x).dtype for x in members}
    if len(dtypes) > 1:
        dtype = np.result_type(*dtypes)
        members = [astype(x, dtype) if is_tensor(x) and requires_grad(x) else x for x in members]
    if len(members) > MANY:
        parts = [_join(name, members[k : k + MANY], axis) for k in range(0, len(members), MANY)]
        return _join("concatenate", parts, axis)
    return apply(REGISTRY[name], members, {"axis": axis})


@implements(np.concatenate, np.concat)
def concatenate(
    arrays: Sequence[TensorOrArray], axis: int | None = 0, out: Out = None, *, dtype: DType = None,
    casting: str = "same_kind",
) -> TensorOrArray:  # fmt: skip
    """Arrays joined along an axis."""
    if out is not None:
        return into(np.concatenate, out, arrays, axis=axis, dtype=dtype, casting=casting)
    members = _members(arrays, "concatenate")
    if axis is None:
        members, axis = [laid(x, (np.size(like_of(x)),)) for x in members], 0
    result = _join("concatenate", members, axis_of(members[0], axis, "concatenate"))
    return result if dtype is None else astype(result, np.dtype(dtype))


@implements(np.stack)
def stack(arrays: Sequence[Operand], axis: int = 0, out: Out = None, *, dtype: DType = None,
          casting: str = "same_kind") -> TensorOrArray:  # fmt: skip
    """Arrays joined along a new axis."""
    if out is not None:
        return into(np.stack, out, arrays, axis=axis, dtype=dtype, casting=casting)
    members = _members(arrays, "stack")
    shapes = {shape_of(x) for x in members}
    if len(shapes) > 1:
        raise ShapeError(f"stack: arrays of different shapes {sorted(shapes)}")
    result = _join("stack", members, axis_of(members[0], axis, "stack", 1))
    return result if dtype is None else astype(result, np.dtype(dtype))


def _at_least(x: Operand, ndim: int) -> Any:
    shape = shape_of(x)
    if len(shape) >= ndim:
        return x
    return reshape(x, (1, *shape) if shape else (1,) * ndim)


def _are_vectors(members: Sequence[Operand]) -> bool:
    """Whether these are vectors of one length."""
    shapes = {*map(shape_of, members)}
    return len(shapes) == 1 and len(next(iter(shapes))) == 1


@implements(np.column_stack, by_shapes=True)
def column_stack(tup: Sequence[TensorOrArray]) -> TensorOrArray:
    """Arrays joined as columns, vectors as columns of their own."""
    members = _members(tup, "column_stack")
    if _are_vectors(members):
        return stack(members, 1)
    shapes = [shape_of(x) for x in members]
    return concatenate(
        [
            x if len(s) > 1 else reshape(x, (*s, 1) if s else (1, 1))
            for x, s in zip(members, shapes, strict=True)
        ],
        1,
    )


@implements(np.vstack, by_shapes=True)
def vstack(tup: Sequence[Operand], *, dtype: DType = None, casting: str = "same_kind") -> TensorOrArray:
    """Arrays joined as rows."""
    members = _members(tup, "vstack")
    if _are_vectors(members):
        return stack(members, 0, dtype=dtype)
    return concatenate([_at_least(x, 2) for x in members], 0, dtype=dtype)


@implements(np.hstack, by_shapes=True)
def hstack(tup: Sequence[TensorOrArray], *, dtype: DType = None, casting: str = "same_kind") -> TensorOrArray:
    """Arrays joined as columns, vectors end to end."""
    members = [_at_least(x, 1) for x in _members(tup, "hstack")]
    return concatenate(members, 0 if ndim_of(members[0]) == 1 else 1, dtype=dtype)


@implements(np.astype)
def _astype(
    x: Operand, dtype: DTypeLike, /, *, copy: bool = True, device: str | None = None
) -> TensorOrArray:
    """Another dtype; a copy also where it has that dtype."""
    out = astype(x, dtype)
    return _copy(x) if copy and out is x else out


implements(np.copy, by_shapes=True)(copy)
_copy = copy
