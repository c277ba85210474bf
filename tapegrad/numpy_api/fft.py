"""numpy.fft on Tensors: a transform of several axes is one record."""

from __future__ import annotations

import functools
import operator
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.core.base import Axis, Shape, like_of, ndim_of, shape_of
from tapegrad.core.conversion import copy
from tapegrad.core.functions import implements
from tapegrad.errors import DTypeError, ShapeError
from tapegrad.numpy_api.shapes import concatenate
from tapegrad.numpy_api.tables import axis_of, into, tensor_of
from tapegrad.ops import REGISTRY
from tapegrad.ops.fft import OPPOSITE
from tapegrad.ops.primitive import Attributes, Primitive
from tapegrad.tensor import Operand, Out, TensorOrArray, apply


class Kind(NamedTuple):
    """A transform: its op, its direction, whether it is one of real numbers, with a half of a spectrum."""

    op: Primitive
    inverse: bool
    real: bool


FORWARD, BACKWARD = Kind(REGISTRY["fft"], False, False), Kind(REGISTRY["fft"], True, False)
TO_HALF, FROM_HALF = Kind(REGISTRY["rfft"], False, True), Kind(REGISTRY["irfft"], True, True)


def _norm(norm: str | None, what: str) -> str:
    if norm is None:
        return "backward"
    if norm not in OPPOSITE:
        raise ValueError(f"{what}: norm {reprlib.repr(norm)} is none of 'backward', 'ortho', 'forward'")
    return str(norm)


def _swapped(norm: str | None, what: str) -> str:
    return OPPOSITE[_norm(norm, what)]


@functools.lru_cache(maxsize=256, typed=True)
def _attributes(
    kind: Kind, shape: tuple[int, ...], s: Any, axes: Any, norm: str | None, what: str, several: bool
) -> Attributes | None:
    """Attributes of the record of a transform of a kind, not to be changed; None for no axis at all.

    `s` is a number of points for each axis, or None for as many as elements, of half a spectrum for as many
    as such a half has by default. Axes, if they may be `several`, are by default as many last ones as `s`
    has numbers, or all.
    """
    like = np.broadcast_to(np.int8(0), shape)
    if not several:
        s, axes = (s,), (axis_of(like, axes, what),)
    else:
        if axes is None:
            axes = range(len(shape)) if s is None else range(len(shape) - len(s), len(shape))
        axes = tuple(axis_of(like, k, what) for k in axes)
        if s is None:
            s = (None,) * len(axes)
        if len(s) != len(axes):
            raise ShapeError(f"{what}: s of {len(s)} numbers for {len(axes)} axes")
        s = [shape[k] if n == -1 else n for n, k in zip(s, axes, strict=True)]
    if not axes:
        if kind.real:
            raise ShapeError(f"{what}: a real transform takes at least one axis")
        return None
    points: list[int] = []
    for n, k in zip(s, axes, strict=True):
        if n is None:
            half = kind is FROM_HALF and len(points) == len(axes) - 1
            n = 2 * (shape[k] - 1) if half else shape[k]
        points.append(operator.index(n))
        if points[-1] < 1:
            raise ShapeError(f"{what}: {points[-1]} points; a transform takes at least one")
    attrs: Attributes = {"n": tuple(points), "axis": axes, "norm": _norm(norm, what)}
    return attrs if kind.real else {**attrs, "inverse": kind.inverse}


def _transform(
    kind: Kind,
    a: Operand,
    s: Shape | None,
    axes: Shape | None,
    norm: str | None,
    what: str,
    several: bool = False,
) -> TensorOrArray:
    """A transform of one axis, or of several in one record."""
    x = tensor_of(a)
    if kind is TO_HALF and like_of(x).dtype.kind == "c":
        raise DTypeError(f"{what} takes real numbers, found dtype {like_of(x).dtype}; take np.real, or fft")
    attrs = _attributes(kind, shape_of(x), s, axes, norm, what, several)
    if attrs is None:
        return x
    axis = attrs["axis"]
    if len(axis) == 1 or len(set(axis)) == len(axis):
        return apply(kind.op, (x,), attrs)
    order = range(len(axis))
    for q in order if kind is FROM_HALF else reversed(order):  # an axis comes twice: one by one
        part = {**attrs, "n": attrs["n"][q : q + 1], "axis": axis[q : q + 1]}
        real = kind.real and q == order[-1]
        if not real:
            part["inverse"] = kind.inverse
        x = apply(kind.op if real else FORWARD.op, (x,), part)
    return x


def _along_axis(function: Any, transform: Callable[..., Any]) -> Callable[..., Any]:
    """The transform of one axis under NumPy's name."""
    what = function.__name__

    @implements(function)
    def call(
        a: Operand, n: Operand | None = None, axis: int = -1, norm: str | None = None, out: Out = None
    ) -> TensorOrArray:
        if out is not None:
            return into(function, out, a, n=n, axis=axis, norm=norm)
        return transform(a, n, axis, norm, what)

    call.__name__ = what
    return call


fft = _along_axis(np.fft.fft, functools.partial(_transform, FORWARD))
ifft = _along_axis(np.fft.ifft, functools.partial(_transform, BACKWARD))
rfft = _along_axis(np.fft.rfft, functools.partial(_transform, TO_HALF))
irfft = _along_axis(np.fft.irfft, functools.partial(_transform, FROM_HALF))
hfft = _along_axis(
    np.fft.hfft,
    lambda a, n, axis, norm, what: _transform(
        FROM_HALF, np.conj(tensor_of(a)), n, axis, _swapped(norm, what), what
    ),
)
ihfft = _along_axis(
    np.fft.ihfft,
    lambda a, n, axis, norm, what: np.conj(_transform(TO_HALF, a, n, axis, _swapped(norm, what), what)),
)


def _hashable(numbers: Any) -> Any:
    """Integers as a key, in which 2.0 would be 2."""
    if numbers is None:
        return None
    return tuple([n if n is None else operator.index(n) for n in numbers])


def _register(several: Any, two: Any, kind: Kind) -> None:
    """The transforms of several axes under NumPy's names: of any, and of two."""

    @implements(several)
    def over_several(
        a: Operand,
        s: Sequence[int] | None = None,
        axes: Axis = None,
        norm: str | None = None,
        out: Out = None,
    ) -> TensorOrArray:
        if out is not None:
            return into(several, out, a, s=s, axes=axes, norm=norm)
        return _transform(kind, a, _hashable(s), _hashable(axes), norm, several.__name__, True)

    @implements(two)
    def over_two(
        a: Operand,
        s: tuple[float, int] | None = None,
        axes: Axis = (-2, -1),
        norm: str | None = None,
        out: Out = None,
    ) -> TensorOrArray:
        if out is not None:
            return into(two, out, a, s=s, axes=axes, norm=norm)
        return _transform(kind, a, _hashable(s), _hashable(axes), norm, two.__name__, True)

    over_several.__name__, over_two.__name__ = several.__name__, two.__name__


_register(np.fft.fftn, np.fft.fft2, FORWARD)
_register(np.fft.ifftn, np.fft.ifft2, BACKWARD)
_register(np.fft.rfftn, np.fft.rfft2, TO_HALF)
_register(np.fft.irfftn, np.fft.irfft2, FROM_HALF)


def _rolled(x: Any, axes: Any, what: str, back: bool) -> TensorOrArray:
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


@implements(np.fft.fftshift, by_shapes=True)
def fftshift(x: Operand, axes: Axis = None) -> TensorOrArray:
    """Halves of axes exchanged, so that frequency 0 comes to the middle."""
    return _rolled(x, axes, "fftshift", False)


@implements(np.fft.ifftshift, by_shapes=True)
def ifftshift(x: Operand, axes: Axis = None) -> TensorOrArray:
    """Inverse of `fftshift`."""
    return _rolled(x, axes, "ifftshift", True)
