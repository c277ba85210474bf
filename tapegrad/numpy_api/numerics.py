"""Differences, integrals, interpolation and convolution of samples."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapegrad.core.base import Axis, DType, Shape, like_of, ndim_of, requires_grad, shape_of, value_of
from tapegrad.core.conversion import astype
from tapegrad.core.functions import of_values
from tapegrad.core.notes import is_compared, note_parts
from tapegrad.core.operators import constant_of, constant_value
from tapegrad.errors import DTypeError, ShapeError, UnsupportedOpError
from tapegrad.numpy_api.rearranging import in_order
from tapegrad.numpy_api.shapes import concatenate, reshape
from tapegrad.numpy_api.tables import axis_of, composed, plain, tensor_of
from tapegrad.ops import REGISTRY
from tapegrad.tensor import Operand, Tensor, TensorOrArray, apply, is_tensor

NOT_GIVEN = np._NoValue
DOUBLE = np.dtype(float)


def _cut(
    ndim: int, axis: int, start: int | None, stop: int | None, step: int | None = None
) -> tuple[slice, ...]:
    """An index that takes a slice along one axis."""
    return tuple(slice(start, stop, step) if d == axis else slice(None) for d in range(ndim))


# ---------------------------------------------------------------- differences and integrals


@composed(np.diff, by_shapes=True)
def diff(
    a: TensorOrArray, n: int = 1, axis: int = -1, prepend: Any = NOT_GIVEN, append: Any = NOT_GIVEN
) -> TensorOrArray:
    """Differences of neighbours along an axis, n times."""
    n = operator.index(n)
    if n < 0:
        raise ValueError(f"diff: n is not negative, found {n}")
    a = tensor_of(a)
    if n == 0:
        return a
    at = axis_of(a, axis, "diff")
    ends = []
    for x in (prepend, append):
        if x is not NOT_GIVEN:
            x = tensor_of(x)
            if ndim_of(x) == 0:
                x = np.broadcast_to(x, tuple(1 if d == at else size for d, size in enumerate(a.shape)))
            ends.append([x])
        else:
            ends.append([])
    a = concatenate([*ends[0], a, *ends[1]], at) if any(ends) else a
    for _ in range(min(n, a.shape[at])):  # then nothing is left
        a = a[_cut(a.ndim, at, 1, None)] - a[_cut(a.ndim, at, None, -1)]
    return a


@composed(np.ediff1d, by_shapes=True)
def ediff1d(
    ary: Operand, to_end: Operand | None = None, to_begin: Sequence[float] | None = None
) -> TensorOrArray:
    """Differences of neighbours, between other numbers."""
    flat = reshape(tensor_of(ary), (-1,))
    kind = like_of(flat).dtype
    parts = [None if x is None else reshape(tensor_of(x), (-1,)) for x in (to_begin, to_end)]
    for x in parts:
        if x is not None and not np.can_cast(like_of(x).dtype, kind, "same_kind"):
            raise TypeError(f"ediff1d: ends of dtype {like_of(x).dtype} do not fit an array of dtype {kind}")
    first, last = (None if x is None else astype(x, kind) if is_tensor(x) else x.astype(kind) for x in parts)
    found = flat[1:] - flat[:-1]
    if first is None and last is None:
        return found
    return concatenate([x for x in (first, found, last) if x is not None])


@composed(np.gradient, by_shapes=True)
def gradient(f: Operand, *varargs: Operand, axis: Axis = None, edge_order: int = 1) -> Any:
    """Central differences inside, differences of first or second order at the edges."""
    f = tensor_of(f)
    if like_of(f).dtype.kind not in "fc":
        f = np.asarray(f, float)
    ndim = f.ndim
    axes = (
        tuple(range(ndim)) if axis is None else tuple(axis_of(f, a, "gradient") for a in np.atleast_1d(axis))
    )
    if edge_order not in (1, 2):
        raise ValueError(f"gradient: edge_order is 1 or 2, found {reprlib.repr(edge_order)}")
    if len(varargs) not in (0, 1, len(axes)):
        raise TypeError(f"gradient: {len(varargs)} spacings for {len(axes)} axes")
    if len(varargs) == 1 and len(axes) > 1 and np.ndim(plain(varargs[0])):
        raise TypeError(f"gradient: one array of coordinates for {len(axes)} axes; give one for each")
    spacings: Sequence[Operand] = [tensor_of(v) for v in varargs] or [1.0]
    spacings = [spacings[0]] * len(axes) if len(spacings) == 1 else spacings
    found = []
    for at, h in zip(axes, spacings, strict=True):
        n = f.shape[at]
        if n < edge_order + 1:
            raise ShapeError(
                f"gradient of shape {f.shape}: axis {at} has {n} elements, and edge_order={edge_order} "
                f"needs {edge_order + 1}"
            )
        if ndim_of(h):
            if shape_of(h) != (n,):
                raise ShapeError(f"gradient: coordinates of shape {shape_of(h)} for {n} elements")
            h = np.diff(h)
            h = h[0] if np.all(value_of(h) == value_of(h)[0]) and not is_tensor(h) else h
        found.append(_slope(f, h, at, edge_order))
    return found[0] if len(axes) == 1 else tuple(found)


def _slope(f: Any, h: Any, at: int, order: int) -> TensorOrArray:
    """The derivative along one axis, for one spacing or those between neighbours."""
    lanes = f if at == f.ndim - 1 else np.moveaxis(f, at, -1)
    n = lanes.shape[-1]
    dtype = like_of(lanes).dtype
    if not ndim_of(h):
        inner = (lanes[..., 2:] - lanes[..., :-2]) / (2.0 * h)
        h = np.broadcast_to(h, (n - 1,))
    else:
        one, two = h[:-1], h[1:]
        low, high = -two / (one * (one + two)), one / (two * (one + two))
        inner = low * lanes[..., :-2] + (two - one) / (one * two) * lanes[..., 1:-1] + high * lanes[..., 2:]
    if order == 1:
        first = (lanes[..., 1:2] - lanes[..., 0:1]) / h[0]
        last = (lanes[..., -1:] - lanes[..., -2:-1]) / h[-1]
    else:
        p, q = h[0], h[1]
        first = (
            -(2 * p + q) / (p * (p + q)) * lanes[..., 0:1]
            + (p + q) / (p * q) * lanes[..., 1:2]
            - p / (q * (p + q)) * lanes[..., 2:3]
        )
        p, q = h[-2], h[-1]
        last = (
            q / (p * (p + q)) * lanes[..., -3:-2]
            - (q + p) / (p * q) * lanes[..., -2:-1]
            + (2 * q + p) / (q * (p + q)) * lanes[..., -1:]
        )
    joined = astype(concatenate([first, inner, last], -1), dtype)
    return joined if at == f.ndim - 1 else np.moveaxis(joined, -1, at)


@composed(np.trapezoid, by_shapes=True)
def trapezoid(
    y: Operand, x: Operand | None = None, dx: TensorOrArray | float = 1.0, axis: int = -1
) -> TensorOrArray:
    """Integral by the trapezoidal rule along an axis."""
    y = tensor_of(y)
    at = axis_of(y, axis, "trapezoid")
    if x is not None:
        x = tensor_of(x)
        widths = np.diff(x, axis=axis) if ndim_of(x) > 1 else np.diff(x)
        after = ndim_of(y) - at - 1
        dx = widths if ndim_of(x) > 1 or after == 0 else widths[(..., *(None,) * after)]
    total = y[_cut(y.ndim, at, 1, None)] + y[_cut(y.ndim, at, None, -1)]
    return np.sum(dx * total / 2.0, axis=at)


# ---------------------------------------------------------------- interpolation


@composed(np.interp, by_shapes=True)
def interp(
    x: TensorOrArray,
    xp: Any,
    fp: TensorOrArray,
    left: Operand | None = None,
    right: Operand | None = None,
    period: Operand | None = None,
) -> TensorOrArray:
    """Linear interpolation; the derivative at a knot is the slope to its right, at the last to its left."""
    fp = tensor_of(fp)
    kind = np.dtype(complex if np.iscomplexobj(like_of(fp)) else float)
    x, xp, fp = _double("x", x), _double("xp", xp), _double("fp", fp, kind)
    if xp.ndim != 1 or fp.ndim != 1 or xp.shape != fp.shape or xp.shape[0] == 0:
        raise ShapeError(
            f"interp: xp and fp are vectors of one length, found shapes {xp.shape} and {fp.shape}"
        )
    if period is not None or (is_tensor(fp) and not (is_tensor(x) or is_tensor(xp))):  # told by plain values
        note_parts()
    if period is not None:
        if plain(period) == 0:
            raise ValueError("interp: a period of zero")
        period = np.absolute(period) if requires_grad(period) else abs(plain(period))
        left = right = None
        x, xp = _within(x, period), _within(xp, period)
        order = np.argsort(value_of(xp))
        xp, fp = xp[order], fp[order]
        xp = concatenate([xp[-1:] - period, xp, xp[:1] + period])
        fp = concatenate([fp[-1:], fp, fp[:1]])
    places, knots = map(_constant, (x, xp))
    left = fp[0] if left is None else _double("left", left, kind)
    right = fp[-1] if right is None else _double("right", right, kind)
    below, beyond = constant_of(_is_below, places, knots), constant_of(_is_beyond, places, knots)
    if knots.size == 1:
        found = x * 0.0 + fp[0]
    else:
        k = constant_of(_interval, places, knots)
        start, end = _at(fp, k), _at(fp, k + 1)
        before, after = _at(xp, k), _at(xp, k + 1)
        width = after - before
        jump = _constant(width) == 0
        width = _chosen(jump, 1.0, width)
        slope = (end - start) * (1.0 / width) if kind.kind == "c" else (end - start) / width
        endless = np.logical_or(np.isinf(_constant(before)), np.isinf(_constant(start)))
        back = np.logical_or(np.logical_or(jump, endless), places == _at(knots, k + 1))
        missing = np.isnan(places)
        still = np.logical_or(np.logical_or(below, beyond), missing)
        x = _chosen(still, places, x)  # nan gives nan; as it is, without a derivative, where a slope is nan
        found = slope * (x - _chosen(back, after, before)) + _chosen(back, end, start)
        jump = np.logical_and(jump, np.logical_not(missing))
        found = np.where(jump, end, found) if is_tensor(jump) or np.any(jump) else found
    return _chosen(below, left, _chosen(beyond, right, found))


def _chosen(condition: Operand, x: Operand, y: TensorOrArray) -> TensorOrArray:
    """As `np.where`, which is left out where nothing is chosen, and no program asks for the same again."""
    if is_tensor(condition) or is_compared() or np.count_nonzero(condition):
        return np.where(condition, x, y)
    return y


def _double(what: str, x: Operand, kind: np.dtype = DOUBLE) -> TensorOrArray:
    x = tensor_of(x)
    if np.iscomplexobj(like_of(x)) and kind.kind != "c":
        raise DTypeError(f"interp: {what} is real, found dtype {like_of(x).dtype}; only fp may be complex")
    return astype(x, kind) if is_tensor(x) else np.asarray(x, kind)


@of_values
def _interval(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Before which of the intervals between knots there are, for each element of x, that with it."""
    return np.minimum(np.maximum(knots.searchsorted(x, "right") - 1, 0), knots.size - 2)


@of_values
def _taken(x: np.ndarray, k: np.ndarray) -> Any:
    return x[k]


def _at(x: TensorOrArray, k: TensorOrArray) -> TensorOrArray:
    """Elements of a vector, by number; a program, which computes the numbers, has them in one operand."""
    if not is_tensor(x):
        return constant_of(_taken, x, k)
    if not is_tensor(k):
        return x[k]
    return in_order(concatenate([x, constant_of(_listed, k)]), Numbered(shape_of(x)[0], shape_of(k)))


@of_values
def _listed(k: np.ndarray) -> np.ndarray:
    return np.ravel(k) * 1.0


@of_values
def _is_below(x: np.ndarray, knots: np.ndarray) -> Any:
    return x < knots[0]


@of_values
def _is_beyond(x: np.ndarray, knots: np.ndarray) -> Any:
    return x > knots[-1]


@dataclass(frozen=True)
class Numbered:
    """Places that the elements behind the first ones tell."""

    first: int
    shape: Shape

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return them."""
        return np.real(x[self.first :]).astype(np.intp).reshape(self.shape)


def _constant(x: TensorOrArray) -> TensorOrArray:
    """The value of an operand, which a program follows if it is a Tensor's."""
    return constant_value(x) if is_tensor(x) else x


def _within(x: Operand, period: Operand) -> TensorOrArray:
    """The same point in the first period."""
    value, length = value_of(x), value_of(period)
    return x - np.round((value - np.remainder(value, length)) / length) * period


# ---------------------------------------------------------------- convolution


def _modes(mode: str | int) -> str:
    name = ("valid", "same", "full")[mode] if mode in (0, 1, 2) else mode
    if name not in ("valid", "same", "full"):
        raise ValueError(f"mode is 'full', 'same' or 'valid', found {reprlib.repr(mode)}")
    return name


def _vectors(what: str, a: Operand, v: Operand) -> tuple[TensorOrArray, TensorOrArray]:
    a, v = (reshape(x, (1,)) if ndim_of(x) == 0 else x for x in (tensor_of(a), tensor_of(v)))
    for x in (a, v):
        if x.ndim != 1 or x.shape[0] == 0:
            raise ShapeError(f"{what} of shapes {a.shape} and {v.shape}: two vectors that are not empty")
    return a, v


@composed(np.convolve, by_shapes=True)
def convolve(a: Operand, v: Operand, mode: str = "full") -> TensorOrArray:
    """Convolution of two vectors."""
    a, v = _vectors("convolve", a, v)
    if a.shape[0] < v.shape[0]:
        a, v = v, a
    mode, n, m = _modes(mode), a.shape[0], v.shape[0]
    found = apply(REGISTRY["convolve"], (a, v), {"mode": "valid" if mode == "valid" else "full"})
    return found[(m - 1) // 2 : (m - 1) // 2 + n] if mode == "same" else found


@composed(np.correlate, by_shapes=True)
def correlate(a: Operand, v: Operand, mode: str = "valid") -> TensorOrArray:
    """Correlation of two vectors."""
    a, v = _vectors("correlate", a, v)
    mode, n, m = _modes(mode), a.shape[0], v.shape[0]
    v = np.conj(np.flip(v)) if like_of(v).dtype.kind == "c" else np.flip(v)
    first, second = (a, v) if n >= m else (v, a)
    found = apply(REGISTRY["convolve"], (first, second), {"mode": "valid" if mode == "valid" else "full"})
    if mode != "same":
        return found
    start = (m - 1) // 2 if n >= m else n - 1 - (n - 1) // 2
    return found[start : start + max(n, m)]


# ---------------------------------------------------------------- equal steps


@composed(np.linspace, by_shapes=True)
def linspace(
    start: Any, stop: Tensor, num: int = 50, endpoint: bool = True, retstep: bool = False,
    dtype: DType = None, axis: int = 0, *, device: str | None = None,
) -> Any:  # fmt: skip
    """Numbers in equal steps."""
    low, high = (like_of(v).dtype.type(0) if is_tensor(v) else plain(v) for v in (start, stop))
    kind = np.linspace(low, high, 2, dtype=dtype).dtype
    num, (start, stop) = _count("linspace", num), (tensor_of(v) for v in (start, stop))
    delta = stop - start * 1.0
    parts = num - 1 if endpoint else num
    step = delta / parts if parts > 0 else delta * np.nan
    number = np.arange(float(num)).reshape((-1,) + (1,) * ndim_of(delta))
    number = number.astype(like_of(delta).dtype)
    found = astype(number * step + start if parts > 0 else number * delta + start, kind)
    if endpoint and num > 1:
        found = np.where(number == number[-1], astype(stop, kind), found)
    found = found if axis == 0 else np.moveaxis(found, 0, axis)
    return (found, step) if retstep else found


def _count(what: str, num: int) -> int:
    count = int(num.__index__())
    if count < 0:
        raise ValueError(f"{what}: a number of samples that is not negative, found {count}")
    return count


@composed(np.logspace)
def logspace(start: Operand, stop: Operand, num: int = 50, endpoint: bool = True, base: Operand = 10.0,
             dtype: DType = None, axis: int = 0) -> TensorOrArray:  # fmt: skip
    """Powers of a base, their exponents in equal steps."""
    kind = np.logspace(plain(start), plain(stop), 2, base=plain(base), dtype=dtype).dtype
    ends = [tensor_of(v) for v in (start, stop, base)]
    ndim = np.broadcast(*(value_of(v) for v in ends)).ndim
    start, stop, base = (np.reshape(v, (1,) * (ndim - ndim_of(v)) + shape_of(v)) for v in ends)
    exponents = np.linspace(start, stop, num=num, endpoint=endpoint, axis=axis)
    if ndim:
        base = np.expand_dims(base, axis)
    found = np.power(base, exponents)
    return astype(found, kind)


@composed(np.geomspace)
def geomspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: DType = None,
              axis: int = 0) -> TensorOrArray:  # fmt: skip
    """Numbers of which each is the one before times a factor."""
    ends = plain(start), plain(stop)
    num, (start, stop) = _count("geomspace", num), (tensor_of(v) for v in (start, stop))
    wide = np.result_type(value_of(start), value_of(stop), float(num), np.zeros((), dtype))
    start, stop = (np.astype(v, wide, copy=False) for v in (start, stop))
    low, high = value_of(start), value_of(stop)
    if np.any(low == 0) or np.any(high == 0):
        raise ValueError("geomspace: neither end is zero")
    complex_ = np.iscomplexobj(low) or np.iscomplexobj(high)
    if not complex_ and np.any(np.sign(low) != np.sign(high)):
        raise UnsupportedOpError("geomspace between numbers of different sign is complex; give complex ends")
    kind = np.geomspace(*ends, 2, dtype=dtype).dtype
    ratio = stop / start
    parts = num - 1 if endpoint else num
    ways = np.arange(float(num)).reshape((-1,) + (1,) * ratio.ndim) / max(parts, 1)
    found = start * np.power(ratio, ways.astype(ratio.dtype))
    if endpoint and num > 1:
        found = concatenate([found[:-1], np.broadcast_to(stop, (1, *ratio.shape))])
    return astype(found if axis == 0 else np.moveaxis(found, 0, axis), kind)
