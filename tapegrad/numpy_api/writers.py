"""NumPy's functions that write to their first argument, as writes that a Tensor records."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.core.base import Casting, Handle, ndim_of, needs_derivative, shape_of, value_of
from tapegrad.core.dispatch import tensors_in
from tapegrad.core.functions import implements
from tapegrad.core.indices import Flat, Part, elements, getitem, plain_index
from tapegrad.core.inplace import write
from tapegrad.core.notes import note_escape
from tapegrad.errors import AxisError, BorderError, DTypeError, ShapeError
from tapegrad.numpy_api.shapes import broadcast_to, reshape
from tapegrad.numpy_api.tables import plain, tensor_of
from tapegrad.ops.shapes import steps
from tapegrad.tensor import Operand, Tensor, TensorOrArray, is_tensor


def _writer(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Register what a function does to a Tensor; an array is left to NumPy, if no derivative is lost."""
    name = f"np.{function.__name__}"

    def register(implementation: Any) -> Any:
        @implements(function)
        def call(target: Operand, *args: Operand, **kwargs: Any) -> None:
            if isinstance(target, Handle):
                implementation(target, *args, **kwargs)
                return
            if any(needs_derivative(x) for x in (*args, *kwargs.values())):
                raise BorderError(
                    f"{name}: an array cannot hold values that require grad or carry tangents; write to a "
                    "Tensor, such as tg.array(...) of it"
                )
            note_escape(*tensors_in((args, kwargs)))
            function(target, *(plain(x) for x in args), **{k: plain(v) for k, v in kwargs.items()})

        return implementation

    return register


def _cycled(values: Operand, places: np.ndarray) -> TensorOrArray:
    """Elements by their number in C order, from the start again after the last; one stands for all."""
    size = value_of(values).size
    if size == 1 and places.size:
        return _shaped(values, ())
    flat, index = _shaped(values, (size,)), places % size
    return getitem(flat, index) if is_tensor(flat) else flat[index]


def _shaped(values: Any, shape: tuple[int, ...]) -> TensorOrArray:
    if shape_of(values) == shape:
        return values
    return reshape(values, shape) if is_tensor(values) else values.reshape(shape)


def _following(values: Operand, count: int) -> Any:
    """As many elements, one after the other, from the start again after the last; one stands for all."""
    if shape_of(values) in ((), (count,)):
        return values
    return _cycled(values, np.arange(count))


def _put_flat(x: Any, places: np.ndarray, new: Operand, what: str) -> None:
    """Write to elements by their number in C order."""
    write(x, Flat(places) if x._v.ndim else Ellipsis, new, what)


@_writer(np.copyto)
def copyto(dst: Tensor, src: Operand, casting: Casting = "same_kind", where: Operand = True) -> None:
    """Write values where a condition holds."""
    what = "np.copyto"
    if not is_tensor(src):
        src = np.asarray(src)
    kind = np.result_type(value_of(src))
    if not np.can_cast(kind, dst.dtype, casting):
        raise DTypeError(f"{what}: no conversion of {kind} to {dst.dtype} under casting={casting!r}")
    if not np.can_cast(kind, dst.dtype, "same_kind"):
        src = src.astype(dst.dtype)
    condition = np.asarray(plain_index(where))
    if condition.dtype != bool:
        raise TypeError(f"{what}: where= takes booleans, found dtype {condition.dtype}")
    if condition.ndim == 0 and condition:
        write(dst, Ellipsis, src, what)
        return
    shape = dst.shape
    try:
        holds = np.broadcast_to(condition, shape)
        while ndim_of(src) > len(shape) and src.shape[0] == 1:
            src = src[0]
        src = broadcast_to(src, shape) if is_tensor(src) else np.broadcast_to(src, shape)
    except ValueError as error:
        shapes = f"{shape_of(src)} where {condition.shape}"
        raise ShapeError(f"{what} of shape {shapes} into shape {shape}: {error}") from error
    if shape:
        write(dst, holds, getitem(src, holds) if is_tensor(src) else src[holds], what)
    elif holds:
        write(dst, Ellipsis, src, what)


@_writer(np.put)
def put(a: Tensor, ind: Operand, v: Operand, mode: str = "raise") -> None:
    """Write to elements by their number in C order; values repeat."""
    what = "np.put"
    places, size, v = np.asarray(plain_index(ind)).ravel(), a._v.size, tensor_of(v)
    if places.size == 0 or value_of(v).size == 0:
        return
    if not np.can_cast(places.dtype, np.intp, "same_kind"):
        raise TypeError(f"{what}: indices are integers, found dtype {places.dtype}")
    if mode not in ("raise", "wrap", "clip"):
        raise ValueError(f"{what}: mode is 'raise', 'wrap' or 'clip', found {mode!r}")
    if mode == "raise":
        wrong = (places < -size) | (places >= size)
        if wrong.any():
            raise IndexError(f"{what}: index {places[wrong][0]} of a Tensor of shape {a.shape}")
    if size == 0:
        raise IndexError(f"{what}: a Tensor of shape {a.shape} has no element to write to")
    places = np.clip(places, 0, size - 1) if mode == "clip" else places % size
    new = _following(v, places.size)
    _put_flat(a, places, new if a.ndim or not ndim_of(new) else new[-1], what)


@_writer(np.place)
def place(arr: TensorOrArray, mask: Operand, vals: Operand) -> None:
    """Write where a mask holds; the values follow each other and repeat."""
    places, vals = _masked(arr, mask, "np.place"), _converting(vals, arr, "np.place")
    if places.size == 0:
        return
    if value_of(vals).size == 0:
        raise ValueError(f"np.place: no values for {places.size} elements")
    new = _following(vals, places.size)
    _put_flat(arr, places, new if arr.ndim or not ndim_of(new) else new[0], "np.place")


@_writer(np.putmask)
def putmask(a: TensorOrArray, mask: Operand, values: Operand) -> None:
    """Write where a mask holds; each element takes the value of its own number, and they repeat."""
    places, values = _masked(a, mask, "np.putmask"), _converting(values, a, "np.putmask")
    if places.size == 0 or value_of(values).size == 0:
        return
    new = _cycled(values, places)
    _put_flat(a, places, new if a.ndim or not ndim_of(new) else new[0], "np.putmask")


def _masked(x: Any, mask: Any, what: str) -> np.ndarray:
    """Numbers in C order of the elements for which a mask of as many holds."""
    mask = np.asarray(plain_index(mask), bool)
    if mask.size != x._v.size:
        raise ShapeError(f"{what}: a mask of shape {mask.shape} for a Tensor of shape {x.shape}")
    return mask.ravel().nonzero()[0]


def _converting(values: Operand, x: Any, what: str) -> TensorOrArray:
    """Values for a mask as a Tensor or an array; an array's dtype converts to x's by NumPy's rule "safe"."""
    array = values._v.ndim if isinstance(values, Handle) else isinstance(values, np.ndarray)
    values = tensor_of(values)
    if array:
        kind = value_of(values).dtype
        if kind is not x._v.dtype and not np.can_cast(kind, x._v.dtype, "safe"):
            raise DTypeError(
                f"{what}: an array of dtype {kind} does not fit a Tensor of dtype {x._v.dtype} without loss; "
                "convert it with astype"
            )
    return values


@_writer(np.fill_diagonal)
def fill_diagonal(a: Tensor, val: Operand, wrap: bool = False) -> None:
    """Write to the elements whose indices are all the same; values repeat."""
    shape, size = a._v.shape, a._v.size
    if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) > 1):
        raise ShapeError(f"np.fill_diagonal of shape {shape}: two axes are needed, or more of one length")
    index: Part | Flat = Part(_diagonal)
    count, val = min(shape), tensor_of(val)
    if len(shape) > 2 or (wrap and shape[0] > shape[1]):  # a wrapped one goes on below the square
        index = Flat(np.arange(0, size, sum(steps(shape))))
        count = index.places.size
    if count == 0:
        return
    if value_of(val).size == 0:
        raise ValueError(f"np.fill_diagonal: no values for {count} elements")
    write(a, index, _following(val, count), "np.fill_diagonal")


def _diagonal(x: np.ndarray) -> np.ndarray:
    found = x.diagonal()
    found.flags.writeable = x.flags.writeable  # NumPy gives it to be read only
    return found


@_writer(np.put_along_axis)
def put_along_axis(arr: Tensor, indices: Operand, values: TensorOrArray, axis: int | None) -> None:
    """Write to elements by their number along an axis, or in C order."""
    what = "np.put_along_axis"
    indices = np.asarray(plain_index(indices))
    if indices.dtype.kind not in "iu":
        raise IndexError(f"{what}: indices are integers, found dtype {indices.dtype}")
    if axis is None:
        if indices.ndim != 1:
            raise ValueError(f"{what}: indices of shape {indices.shape} need an axis")
        wrong = (indices < -arr.size) | (indices >= arr.size)
        if wrong.any():
            raise IndexError(f"{what}: index {indices[wrong][0]} of a Tensor of shape {arr.shape}")
        _put_flat(arr, indices % max(arr.size, 1), values, what)
        return
    shape = arr._v.shape
    if not -len(shape) <= operator.index(axis) < len(shape):
        raise AxisError(f"{what}: axis {axis} of an array of shape {shape}")
    if indices.ndim != len(shape):
        raise ShapeError(f"{what}: indices of shape {indices.shape} for a Tensor of shape {shape}")
    index = [np.arange(n).reshape([-1 if d == k else 1 for d in range(len(shape))])
             for k, n in enumerate(shape)]  # fmt: skip
    index[operator.index(axis)] = indices
    numbers = np.arange(arr._v.size).reshape(shape)
    _put_flat(arr, elements(numbers, tuple(index), f"{what}: "), values, what)
