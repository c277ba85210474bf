"""numpy.fft on Tensors: each transform of several axes is one of each axis in turn, as in NumPy."""

from __future__ import annotations

import functools
import operator
import reprlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.core.base import ndim_of, shape_of, value_of
from tapegrad.core.conversion import copy
from tapegrad.core.dispatch import apply
from tapegrad.errors import DTypeError, ShapeError
from tapegrad.numpy_api.shapes import concatenate
from tapegrad.numpy_api.tables import axis_of, implements, into, tensor_of
from tapegrad.ops import REGISTRY
from tapegrad.ops.fft import OPPOSITE


def _length(x: Any, n: Any, axis: int, what: str) -> int:
    extent = shape_of(x)[axis] if n is None else operator.index(n)
    if extent < 1:
        raise ShapeError(f"{what}: {extent} points; a transform takes at least one")
    return int(extent)


def _norm(norm: Any, what: str) -> str:
    if norm is None:
        return "backward"
    if norm not in OPPOSITE:
        raise ValueError(f"{what}: norm {reprlib.repr(norm)} is none of 'backward', 'ortho', 'forward'")
    return str(norm)


def _transform(x: Any, n: Any, axis: int, norm: Any, what: str, inverse: bool) -> Any:
    x = tensor_of(x)
    axis = axis_of(x, axis, what)
    attrs = {"n": _length(x, n, axis, what), "axis": axis, "norm": _norm(norm, what), "inverse": inverse}
    return apply(REGISTRY["fft"], (x,), attrs)


def _to_half(x: Any, n: Any, axis: int, norm: Any, what: str) -> Any:
    x = tensor_of(x)
    if value_of(x).dtype.kind == "c":
        raise DTypeError(f"{what} takes real numbers, found dtype {value_of(x).dtype}; take np.real, or fft")
    axis = axis_of(x, axis, what)
    attrs = {"n": _length(x, n, axis, what), "axis": axis, "norm": _norm(norm, what)}
    return apply(REGISTRY["rfft"], (x,), attrs)


def _from_half(x: Any, n: Any, axis: int, norm: Any, what: str) -> Any:
    x = tensor_of(x)
    axis = axis_of(x, axis, what)
    n = 2 * (shape_of(x)[axis] - 1) if n is None else n
    attrs = {"n": _length(x, n, axis, what), "axis": axis, "norm": _norm(norm, what)}
    return apply(REGISTRY["irfft"], (x,), attrs)


def _along_axis(function: Any, transform: Callable[..., Any]) -> Callable[..., Any]:
    """The transform of one axis under NumPy's name."""
    what = function.__name__

    @implements(function)
    def call(a: Any, n: Any = None, axis: int = -1, norm: Any = None, out: Any = None) -> Any:
        if out is not None:
            return into(function, out, a, n=n, axis=axis, norm=norm)
        return transform(a, n, axis, norm, what)

    call.__name__ = what
    return call


def _swapped(norm: Any, what: str) -> str:
    return OPPOSITE[_norm(norm, what)]


fft = _along_axis(np.fft.fft, functools.partial(_transform, inverse=False))
ifft = _along_axis(np.fft.ifft, functools.partial(_transform, inverse=True))
rfft = _along_axis(np.fft.rfft, _to_half)
irfft = _along_axis(np.fft.irfft, _from_half)
hfft = _along_axis(
    np.fft.hfft,
    lambda a, n, axis, norm, what: _from_half(np.conj(tensor_of(a)), n, axis, _swapped(norm, what), what),
)
ihfft = _along_axis(
    np.fft.ihfft,
    lambda a, n, axis, norm, what: np.conj(_to_half(a, n, axis, _swapped(norm, what), what)),
)


def _plan(a: Any, s: Any, axes: Any, what: str, half: bool = False) -> tuple[list[Any], list[int]]:
    """Numbers of points and axes; where the last axis is a half, its own number of points stays open."""
    shape = shape_of(a)
    if axes is None:
        axes = range(len(shape)) if s is None else range(len(shape) - len(s), len(shape))
    axes = [axis_of(a, k, what) for k in axes]
    if s is None:
        points: list[Any] = [shape[k] for k in axes]
        if half and points:
            points[-1] = None
    else:
        points = [shape[k] if n == -1 else n for n, k in zip(s, axes, strict=False)]
        if len(s) != len(axes):
            raise ShapeError(f"{what}: s of {len(s)} numbers for {len(axes)} axes")
    return points, axes


def _over_axes(a: Any, points: Any, axes: Any, norm: Any, what: str, inverse: bool = False) -> Any:
    """The complex transform of each of these axes, the last first."""
    for n, k in zip(reversed(points), reversed(axes), strict=True):
        a = _transform(a, n, k, norm, what, inverse)
    return a


def _over_axes_of_reals(a: Any, points: Any, axes: Any, norm: Any, what: str) -> Any:
    _some(axes, what)
    a = _to_half(a, points[-1], axes[-1], norm, what)
    return _over_axes(a, points[:-1], axes[:-1], norm, what)


def _over_axes_to_reals(a: Any, points: Any, axes: Any, norm: Any, what: str) -> Any:
    _some(axes, what)
    for n, k in zip(points[:-1], axes[:-1], strict=True):
        a = _transform(a, n, k, norm, what, True)
    return _from_half(a, points[-1], axes[-1], norm, what)


def _some(axes: list[int], what: str) -> None:
    if not axes:
        raise ShapeError(f"{what}: a real transform takes at least one axis")


def _register(several: Any, two: Any, transform: Callable[..., Any], half: bool = False) -> None:
    """The transforms of several axes under NumPy's names: of any, and of two."""

    def over(function: Any, a: Any, s: Any, axes: Any, norm: Any, out: Any) -> Any:
        if out is not None:
            return into(function, out, a, s=s, axes=axes, norm=norm)
        a, what = tensor_of(a), function.__name__
        return transform(a, *_plan(a, s, axes, what, half), norm, what)

    @implements(several)
    def over_several(a: Any, s: Any = None, axes: Any = None, norm: Any = None, out: Any = None) -> Any:
        return over(several, a, s, axes, norm, out)

    @implements(two)
    def over_two(a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None, out: Any = None) -> Any:
        return over(two, a, s, axes, norm, out)

    over_several.__name__, over_two.__name__ = several.__name__, two.__name__


_register(np.fft.fftn, np.fft.fft2, _over_axes)
_register(np.fft.ifftn, np.fft.ifft2, functools.partial(_over_axes, inverse=True))
_register(np.fft.rfftn, np.fft.rfft2, _over_axes_of_reals)
_register(np.fft.irfftn, np.fft.irfft2, _over_axes_to_reals, half=True)


def _rolled(x: Any, axes: Any, what: str, back: bool) -> Any:
    x = copy(tensor_of(x))
    ndim = ndim_of(x)
    if ndim == 0:
        raise ShapeError(f"{what} of a 0-d array: there is no axis to shift along")
    for k in range(ndim) if axes is None else (axes if np.ndim(axes) else (axes,)):
        axis = axis_of(x, k, what)
        extent = shape_of(x)[axis]
        cut = extent // 2 if back else extent - extent // 2
        before = (slice(None),) * axis
        if extent > 1:
            x = concatenate([x[(*before, slice(cut, None))], x[(*before, slice(cut))]], axis)
    return x


@implements(np.fft.fftshift)
def fftshift(x: Any, axes: Any = None) -> Any:
    """Halves of axes exchanged, so that frequency 0 comes to the middle."""
    return _rolled(x, axes, "fftshift", False)


@implements(np.fft.ifftshift)
def ifftshift(x: Any, axes: Any = None) -> Any:
    """Inverse of `fftshift`."""
    return _rolled(x, axes, "ifftshift", True)
