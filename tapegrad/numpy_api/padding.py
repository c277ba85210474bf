"""Arrays made larger at their ends."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.core.base import like_of, requires_grad, value_of
from tapegrad.core.conversion import astype
from tapegrad.errors import ShapeError, UnsupportedOpError
from tapegrad.numpy_api.rearranging import gathered, rearranges
from tapegrad.numpy_api.shapes import concatenate, stack
from tapegrad.numpy_api.tables import any_grad, plain, plainly, tensor_of
from tapegrad.ops import REGISTRY, shapes
from tapegrad.tensor import Operand, Tensor, TensorOrArray, apply, is_tensor

steps: Any = shapes.steps

STATISTICS = {"maximum": np.max, "minimum": np.min, "mean": np.mean, "median": np.median}
COPYING = ("constant", "edge", "reflect", "symmetric", "wrap")
ARGUMENTS = {
    "constant": {"constant_values"}, "linear_ramp": {"end_values"}, "reflect": {"reflect_type"},
    "symmetric": {"reflect_type"}, "edge": set(), "wrap": set(), "empty": set(),
    **{name: {"stat_length"} for name in STATISTICS},
}  # fmt: skip


def _copies(array: Operand, pad_width: Operand, mode: str | None = "constant", **kwargs: Any) -> bool:
    """Whether all that is added are copies or zeros."""
    return mode in COPYING and not kwargs


@rearranges(np.pad, when=_copies)
def pad(array: Operand, pad_width: Operand, mode: Any = "constant", **kwargs: Any) -> TensorOrArray:
    """An array with more elements before and after along each axis."""
    x = tensor_of(array)
    if callable(mode):
        raise UnsupportedOpError(
            "pad: a function as mode writes into an array, which has no derivative; use a named mode or "
            "np.concatenate"
        )
    if mode not in ARGUMENTS:
        raise ValueError(f"pad: mode is one of {', '.join(ARGUMENTS)}, found {mode!r}")
    if unknown := set(kwargs) - ARGUMENTS[mode]:
        raise ValueError(f"pad: mode {mode!r} does not take {', '.join(sorted(unknown))}")
    widths = _widths(plain(pad_width), x.ndim)
    kind = like_of(x).dtype
    if kind.kind not in "fc":  # only the ends could have a derivative, and they become integers
        return plainly(np.pad, (array, pad_width, mode), kwargs)
    if mode == "constant":
        ends = _pairs(kwargs.get("constant_values", 0), x.ndim, kind)
        if not is_tensor(ends) and x.size and x.ndim:
            around = np.pad(
                np.broadcast_to(np.zeros((), kind), x.shape), widths, constant_values=ends.tolist()
            )
            strides = steps(around.shape)
            offset = sum(before * step for (before, _), step in zip(widths, strides, strict=True))
            return apply(REGISTRY["assign"], (x, around), {"window": (offset, x.shape, tuple(strides))})
        return gathered([x, ends], lambda n, new: np.pad(n, widths, constant_values=new.tolist()))
    if mode == "linear_ramp":
        ends = _pairs(kwargs.get("end_values", 0), x.ndim, kind)
        for axis, (before, after) in enumerate(widths):
            x = _ramps(x, axis, before, after, ends[axis])
        return x
    if mode in STATISTICS:
        lengths = kwargs.get("stat_length")
        lengths = [(None, None)] * x.ndim if lengths is None else _widths(lengths, x.ndim)
        for axis, (before, after) in enumerate(widths):
            x = _statistics(x, axis, before, after, STATISTICS[mode], lengths[axis])
        return x
    if kwargs.get("reflect_type", "even") == "odd":
        for axis, (before, after) in enumerate(widths):
            x = _reflected(x, axis, before, after, int(mode == "reflect"))
        return x
    if mode == "empty":
        return gathered([np.zeros(1, kind), x], lambda _, n: np.pad(n, widths))
    return gathered([x], lambda n: np.pad(n, widths, mode=mode, **kwargs))


def _widths(given: Any, ndim: int) -> list[tuple[int, int]]:
    """A pair for each axis."""
    if isinstance(given, dict):
        pairs = [(0, 0)] * ndim
        for axis, width in given.items():
            pairs[axis] = (width, width) if np.ndim(width) == 0 else tuple(width)
        given = pairs
    try:
        wide = np.broadcast_to(np.asarray(given), (ndim, 2)).tolist()
    except ValueError as error:
        raise ShapeError(f"pad: {given!r} is no number or pair for each of {ndim} axes") from error
    if not all(isinstance(n, int) for row in wide for n in row):
        raise TypeError(f"pad: widths are integers, found {given!r}")
    if any(n < 0 for row in wide for n in row):
        raise ValueError(f"pad: widths are not negative, found {given!r}")
    return [(a, b) for a, b in wide]


def _pairs(given: Operand, ndim: int, kind: str) -> TensorOrArray:
    """A pair of values for each axis; Tensors may be among them."""
    if any_grad(given) and not is_tensor(given):
        given = _stacked(given)
    given = tensor_of(given)
    given = astype(given, kind) if requires_grad(given) else np.asarray(value_of(given), kind)
    return np.broadcast_to(given, (ndim, 2))


def _stacked(given: Operand) -> TensorOrArray:
    return stack([_stacked(g) for g in given]) if isinstance(given, (list, tuple)) else tensor_of(given)


def _piece(x: Any, axis: int, start: int | None, stop: int | None, step: int | None = None) -> TensorOrArray:
    return x[(*(slice(None),) * axis, slice(start, stop, step))]


def _along(numbers: np.ndarray, x: Any, axis: int) -> TensorOrArray:
    """Numbers along one axis, in the dtype of x."""
    return np.reshape(numbers, tuple(-1 if d == axis else 1 for d in range(x.ndim))).astype(x.dtype)


def _ramps(x: Operand, axis: int, before: int, after: int, ends: TensorOrArray) -> Tensor:
    parts = [x]
    if before:
        way = _along(np.arange(before) / before, x, axis)
        parts.insert(0, ends[0] + (_piece(x, axis, 0, 1) - ends[0]) * way)
    if after:
        way = _along(np.arange(after)[::-1] / after, x, axis)
        parts.append(ends[1] + (_piece(x, axis, -1, None) - ends[1]) * way)
    return concatenate(parts, axis)


def _statistics(x: TensorOrArray, axis: int, before: int, after: int, function: Any, lengths: Any) -> Tensor:
    n, parts = x.shape[axis], [x]
    for k, count in enumerate((before, after)):
        if not count:
            continue
        length = n if lengths[k] is None else min(int(lengths[k]), n)
        if length == 0:
            raise ValueError("pad: stat_length is above 0")
        near = _piece(x, axis, 0, length) if k == 0 else _piece(x, axis, n - length, None)
        found = function(near, axis=axis, keepdims=True)
        found = np.broadcast_to(found, tuple(count if d == axis else s for d, s in enumerate(x.shape)))
        parts.insert(len(parts) * k, found)
    return concatenate(parts, axis)


def _reflected(x: TensorOrArray, axis: int, before: int, after: int, skip: int) -> TensorOrArray:
    """Reflected in the value at each end, as often as it takes."""
    if before + after and x.shape[axis] == 0:
        raise ShapeError(f"pad: axis {axis} of shape {x.shape} has no element to reflect")
    if x.shape[axis] == 1 and skip:  # NumPy repeats it
        return np.repeat(x, before + 1 + after, axis)
    while before or after:
        n, parts = x.shape[axis], [x]
        size = n - skip
        if before:
            count = min(before, size)
            mirror = _piece(x, axis, skip, count + skip)
            parts.insert(0, 2 * _piece(x, axis, 0, 1) - np.flip(mirror, axis))
            before -= count
        if after:
            count = min(after, size)
            mirror = _piece(x, axis, n - skip - count, n - skip)
            parts.append(2 * _piece(x, axis, -1, None) - np.flip(mirror, axis))
            after -= count
        x = concatenate(parts, axis)
    return x
