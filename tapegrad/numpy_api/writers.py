"""NumPy's functions that write to their first argument, as writes that a Tensor records."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.core.base import is_tensor, ndim_of, needs_derivative, shape_of, value_of
from tapegrad.core.dispatch import note_escape, tensors_in
from tapegrad.core.indices import plain_index
from tapegrad.errors import AxisError, BorderError, DTypeError, ShapeError
from tapegrad.numpy_api.indexing import getitem
from tapegrad.numpy_api.shapes import broadcast_to, reshape
from tapegrad.numpy_api.tables import implements, plain, tensor_of


def _writer(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Register what a function does to a Tensor; an array is left to NumPy, if no derivative is lost."""
    name = f"np.{function.__name__}"

    def register(implementation: Any) -> Any:
        @implements(function)
        def call(target: Any, *args: Any, **kwargs: Any) -> None:
            if is_tensor(target):
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


def _write(x: Any, index: Any, new: Any, what: str) -> None:
    from tapegrad.core.inplace import write

    write(x, index, new, what)


def _cycled(values: Any, places: Any) -> Any:
    """Elements by their number in C order, from the start again after the last."""
    values = tensor_of(values)
    flat = reshape(values, (-1,)) if is_tensor(values) else np.ravel(values)
    if np.size(value_of(values)) == 1 and places.size:  # one element, in each place
        return broadcast_to(flat, places.shape) if is_tensor(flat) else np.broadcast_to(flat, places.shape)
    index = places % np.size(value_of(values))
    return getitem(flat, index) if is_tensor(flat) else flat[index]


def _put_flat(x: Any, places: Any, new: Any, what: str) -> None:
    """Write to elements by their number in C order."""
    _write(x, np.unravel_index(places, x.shape) if x.ndim else Ellipsis, new, what)


@_writer(np.copyto)
def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    """Write values where a condition holds."""
    what = "np.copyto"
    if not is_tensor(src):
        src = np.asarray(src)
    kind = np.result_type(value_of(src))
    if not np.can_cast(kind, dst.dtype, casting):  # type: ignore[arg-type]
        raise DTypeError(f"{what}: no conversion of {kind} to {dst.dtype} under casting={casting!r}")
    if not np.can_cast(kind, dst.dtype, "same_kind"):
        src = src.astype(dst.dtype)
    condition = np.asarray(plain_index(where))
    if condition.dtype != bool:
        raise TypeError(f"{what}: where= takes booleans, found dtype {condition.dtype}")
    if condition.ndim == 0 and condition:
        _write(dst, Ellipsis, src, what)
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
        _write(dst, holds, getitem(src, holds) if is_tensor(src) else src[holds], what)
    elif holds:
        _write(dst, Ellipsis, src, what)


@_writer(np.put)
def put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    """Write to elements by their number in C order; values repeat."""
    what = "np.put"
    places = np.ravel(np.asarray(plain_index(ind)))
    if places.size == 0 or np.size(value_of(tensor_of(v))) == 0:
        return
    if not np.can_cast(places.dtype, np.intp, "same_kind"):
        raise TypeError(f"{what}: indices are integers, found dtype {places.dtype}")
    if mode not in ("raise", "wrap", "clip"):
        raise ValueError(f"{what}: mode is 'raise', 'wrap' or 'clip', found {mode!r}")
    if mode == "raise":
        wrong = (places < -a.size) | (places >= a.size)
        if wrong.any():
            raise IndexError(f"{what}: index {places[wrong][0]} of a Tensor of shape {a.shape}")
    if a.size == 0:
        raise IndexError(f"{what}: a Tensor of shape {a.shape} has no element to write to")
    places = np.clip(places, 0, a.size - 1) if mode == "clip" else places % a.size
    new = _cycled(v, np.arange(places.size))
    _put_flat(a, places, new if a.ndim else new[-1], what)


@_writer(np.place)
def place(arr: Any, mask: Any, vals: Any) -> None:
    """Write where a mask holds; the values follow each other and repeat."""
    places = _masked(arr, mask, "np.place")
    if places.size == 0:
        return
    if np.size(value_of(tensor_of(vals))) == 0:
        raise ValueError(f"np.place: no values for {places.size} elements")
    new = _cycled(vals, np.arange(places.size))
    _put_flat(arr, places, new if arr.ndim else new[0], "np.place")


@_writer(np.putmask)
def putmask(a: Any, mask: Any, values: Any) -> None:
    """Write where a mask holds; each element takes the value of its own number, and they repeat."""
    places = _masked(a, mask, "np.putmask")
    if places.size == 0 or np.size(value_of(tensor_of(values))) == 0:
        return
    new = _cycled(values, places)
    _put_flat(a, places, new if a.ndim else new[0], "np.putmask")


def _masked(x: Any, mask: Any, what: str) -> Any:
    """Numbers in C order of the elements for which a mask of as many holds."""
    mask = np.asarray(plain_index(mask), bool)
    if mask.size != x.size:
        raise ShapeError(f"{what}: a mask of shape {mask.shape} for a Tensor of shape {x.shape}")
    return np.flatnonzero(mask)


@_writer(np.fill_diagonal)
def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    """Write to the elements whose indices are all the same; values repeat."""
    if a.ndim < 2 or (a.ndim > 2 and len(set(a.shape)) > 1):
        raise ShapeError(f"np.fill_diagonal of shape {a.shape}: two axes are needed, or more of one length")
    step = 1 + int(np.cumprod(a.shape[:0:-1]).sum())
    end = a.size if a.ndim > 2 or wrap else min(a.size, a.shape[1] * a.shape[1])
    places = np.arange(0, end, step)
    if places.size:
        if np.size(value_of(tensor_of(val))) == 0:
            raise ValueError(f"np.fill_diagonal: no values for {places.size} elements")
        _put_flat(a, places, _cycled(val, np.arange(places.size)), "np.fill_diagonal")


@_writer(np.put_along_axis)
def put_along_axis(arr: Any, indices: Any, values: Any, axis: int | None) -> None:
    """Write to elements by their number along an axis, or in C order."""
    what = "np.put_along_axis"
    indices = np.asarray(plain_index(indices))
    if not np.issubdtype(indices.dtype, np.integer):
        raise IndexError(f"{what}: indices are integers, found dtype {indices.dtype}")
    if axis is None:
        if indices.ndim != 1:
            raise ValueError(f"{what}: indices of shape {indices.shape} need an axis")
        wrong = (indices < -arr.size) | (indices >= arr.size)
        if wrong.any():
            raise IndexError(f"{what}: index {indices[wrong][0]} of a Tensor of shape {arr.shape}")
        _put_flat(arr, indices % max(arr.size, 1), values, what)
        return
    if not -arr.ndim <= operator.index(axis) < arr.ndim:
        raise AxisError(f"{what}: axis {axis} of an array of shape {arr.shape}")
    if indices.ndim != arr.ndim:
        raise ShapeError(f"{what}: indices of shape {indices.shape} for a Tensor of shape {arr.shape}")
    index = [np.arange(n).reshape([-1 if d == k else 1 for d in range(arr.ndim)])
             for k, n in enumerate(arr.shape)]  # fmt: skip
    index[operator.index(axis)] = indices
    _write(arr, tuple(index), values, what)
