"""What ufuncs take besides operands (``where=``, ``dtype=``, ``casting=``), and their methods.

Each is composed of calls of the ufunc on parts of its operands. NumPy computes on plain values first where
it is the one to say what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tapegrad.core.base import (
    Axis,
    DType,
    add_saved_bytes,
    is_expected,
    like_of,
    ndim_of,
    needs_derivative,
    shape_of,
    undisturbed,
    value_of,
)
from tapegrad.core.conversion import astype
from tapegrad.core.dispatch import sequence, tensors_in, with_metadata
from tapegrad.core.functions import UFUNCS
from tapegrad.core.indices import getitem, plain_index
from tapegrad.core.inplace import write
from tapegrad.core.notes import note_escape
from tapegrad.core.operators import FLAT, operand
from tapegrad.errors import AxisError, BorderError, DTypeError, ShapeError, UnsupportedOpError
from tapegrad.numpy_api.indexing import where
from tapegrad.numpy_api.reductions import accumulate, logsumexp, max_, min_, prod, sum_
from tapegrad.numpy_api.scans import cumprod, running_extreme
from tapegrad.numpy_api.shapes import broadcast_to, reshape, stack, transpose
from tapegrad.numpy_api.tables import axes_of, axis_of, of_number, plain, tensor_of
from tapegrad.ops import REGISTRY
from tapegrad.tape.tape import LARGE
from tapegrad.tensor import Operand, Tensor, TensorOrArray, apply, is_tensor, record, wrap

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

NONE = np._NoValue
EXTREMES: dict[Any, Any] = {np.maximum: (max_, -math.inf), np.minimum: (min_, math.inf),
            np.fmax: (max_, -math.inf), np.fmin: (min_, math.inf)}  # fmt: skip


def differentiable(ufunc: np.ufunc) -> bool:
    """Whether results of the methods of a ufunc of two operands can have a history."""
    flat = ufunc in FLAT and ufunc is not np.floor_divide  # what is floats gives first elements as they are
    return ufunc.nin == 2 and ufunc.nout == 1 and ufunc in UFUNCS and not (flat or ufunc.signature)


# ---------------------------------------------------------------- calls


def typed(ufunc: np.ufunc, inputs: Sequence[Operand], dtype: DType = None, casting: Any = "same_kind",
          signature: Any = None, order: str = "K", subok: bool = True) -> Tensor:  # fmt: skip
    """Call a ufunc in the dtypes that NumPy settles on; converting an operand has a derivative."""
    if dtype is not None:
        signature = (*(None,) * ufunc.nin, *(dtype_of(dtype),) * ufunc.nout)
    inputs = [operand(x) for x in inputs]
    kinds = [type(x) if type(x) in (int, float) else np.result_type(like_of(x)) for x in inputs]
    wanted = {} if signature is None else {"signature": signature}
    found = ufunc.resolve_dtypes((*kinds, *(None,) * ufunc.nout), casting=casting, **wanted)
    inputs = [_cast(x, to) for x, to in zip(inputs, found[: ufunc.nin], strict=True)]
    return UFUNCS[ufunc](*inputs) if any(is_tensor(x) for x in inputs) else ufunc(*inputs)


def dtype_of(x: Any) -> np.dtype:
    """As `np.dtype`, also of a class of those, of which that makes objects."""
    kind: Any = x
    return kind() if isinstance(x, type) and issubclass(x, np.dtype) else np.dtype(kind)


def _cast(x: Operand, dtype: DTypeLike) -> TensorOrArray:
    return astype(x, dtype) if is_tensor(x) else np.asarray(x).astype(dtype)[()]


def selected(
    ufunc: np.ufunc, inputs: Sequence[Operand], out: Tensor, condition: Operand, **rest: Any
) -> Tensor:
    """Write a ufunc's results into a Tensor where a condition holds; operands elsewhere are not looked at."""
    what = f"np.{ufunc.__name__} with where="
    condition = np.asarray(value_of(sequence(condition)), bool)
    inputs = [tensor_of(x) if is_tensor(sequence(x)) else np.asarray(x) for x in inputs]
    shape = out.shape
    try:
        holds = np.broadcast_to(condition, shape)
        parts = [getitem(broadcast_to(x, shape), holds) if is_tensor(x) and shape else
                 x if is_tensor(x) else np.broadcast_to(x, shape)[holds] for x in inputs]  # fmt: skip
    except ValueError as error:
        shapes = ", ".join(str(shape_of(x)) for x in (*inputs, condition))
        raise ShapeError(f"{what} of {shapes} into out= of shape {shape}: {error}") from error
    if shape or holds:
        write(out, holds if shape else Ellipsis, typed(ufunc, parts, **rest), what)
    return out


# ---------------------------------------------------------------- reduce


def reduce(ufunc: np.ufunc, x: Operand, axis: Axis = 0, dtype: DType = None, keepdims: bool = False,
           initial: Any = NONE, where: bool = True) -> Tensor:  # fmt: skip
    """Reduce over axes. Sums, products, extremes and sums of exponentials at once, others step by step."""
    x = tensor_of(x)
    ndim = ndim_of(x)
    if (
        ufunc in REDUCED
        and dtype is None
        and initial is NONE
        and where is True
        and not keepdims
        and (axis is None or (type(axis) is int and -ndim <= axis < ndim))
        and np.size(like_of(x))
    ):
        return REDUCED[ufunc](ufunc, x, axes_of(x, axis, ""), True)
    given = {} if initial is NONE else {"initial": plain(initial)}
    condition = value_of(sequence(where))
    wanted = _by_numpy(
        ufunc, "reduce", value_of(x), axis, dtype, None, bool(keepdims), where=condition, **given
    )
    if dtype is not None:
        x = astype(x, np.dtype(dtype))
    begun = initial is not NONE and initial is not None
    if begun:
        initial = _cast(_tensor(initial), np.result_type(wanted))
    axes = axes_of(x, of_number(x, axis), f"np.{ufunc.__name__}.reduce")
    if condition is not True:
        condition = np.broadcast_to(np.asarray(condition, bool), shape_of(x))
    whole = REDUCED.get(ufunc)
    if whole is not None and (np.size(like_of(x)) or ufunc not in EXTREMES):
        found = whole(ufunc, x, axes, condition)
        if begun:
            found = UFUNCS[ufunc](initial, found)
    else:
        found = _step_by_step(ufunc, x, axes, initial, condition)
    return reshape(found, np.shape(wanted))


def _by_numpy(ufunc: np.ufunc, method: str, x: Operand, *args: Any, **kwargs: Any) -> np.ndarray:
    """What a method gives for plain values, without warnings: they come with the recorded calls."""
    what = f"np.{ufunc.__name__}.{method} of shape {np.shape(x)}"
    try:
        with np.errstate(all="ignore"):
            return getattr(ufunc, method)(x, *args, **kwargs)
    except np.exceptions.AxisError as error:
        raise AxisError(f"{what}: {error}") from error
    except ValueError as error:
        raise ShapeError(f"{what}: {error}") from error


def _tensor(x: Operand) -> TensorOrArray:
    """An operand that may be a Python number, as one that a ufunc's function takes first."""
    return x if is_tensor(x) else wrap(np.asarray(x)[()])


def _filled(x: Operand, condition: Operand, number: float) -> Tensor:
    return x if condition is True else where(condition, x, number)


def _sum(ufunc: np.ufunc, x: Operand, axes: Axis, condition: Operand) -> Tensor:
    return sum_(_filled(x, condition, 0), axes)


def _product(ufunc: np.ufunc, x: Operand, axes: Axis, condition: Operand) -> Tensor:
    return prod(_filled(x, condition, 1), axes)


def _extreme(ufunc: np.ufunc, x: TensorOrArray, axes: tuple[int, ...], condition: Operand) -> Tensor:
    """Ties share the derivative evenly; where nan does not count, -inf or inf stands for it."""
    function, outside = EXTREMES[ufunc]
    x = _filled(x, condition, outside)
    if ufunc in (np.fmax, np.fmin):
        unknown = np.isnan(value_of(x))
        x = _filled(x, ~(unknown & ~np.all(unknown, axes, keepdims=True)), outside)
    return function(x, axes)


def _sum_of_exponentials(ufunc: np.ufunc, x: Operand, axes: tuple[int, ...], condition: Operand) -> Tensor:
    x = _filled(x, condition, -math.inf)
    base = 1.0 if ufunc is np.logaddexp else math.log(2)
    found = logsumexp(x, axes) if base == 1.0 else logsumexp(x * base, axes) / base
    if condition is True:
        return found
    return _filled(found, np.any(condition, axes), -math.inf)  # at -inf a tangent is nan


REDUCED: dict[Any, Callable[..., Any]] = {
    np.add: _sum, np.multiply: _product, np.logaddexp: _sum_of_exponentials,
    np.logaddexp2: _sum_of_exponentials, **dict.fromkeys(EXTREMES, _extreme),
}  # fmt: skip


def _step_by_step(
    ufunc: np.ufunc, x: Operand, axes: tuple[int, ...], initial: Any, condition: Operand
) -> Tensor:
    """From the first element to the last; a length by halves, of which it is the same."""
    others = tuple(d for d in range(ndim_of(x)) if d not in axes)
    order = (*axes, *others)
    rest = tuple(shape_of(x)[d] for d in others)
    count = math.prod(shape_of(x)[d] for d in axes)
    rows = reshape(transpose(x, order), (count, *rest))
    function = UFUNCS[ufunc]
    if ufunc is np.hypot:
        rows = _filled(rows, condition if condition is True else _moved(condition, order, count, rest), 0)
        if initial is NONE and count == 1:
            return function(np.zeros(rest, like_of(x).dtype), rows[0])  # a length, if of one
        while count > 1:
            half = count // 2
            pairs = function(rows[:half], rows[half : 2 * half])
            rows = pairs if count % 2 == 0 else np.concatenate([pairs, rows[2 * half :]])
            count = half + count % 2
        length: Any = rows[0] if count else _tensor(np.zeros(rest, like_of(x).dtype)[()])
        return length if initial is NONE or initial is None else function(initial, length)
    if initial is NONE or initial is None:
        found, first = rows[0], 1
    else:
        found, first = broadcast_to(initial, rest), 0
    holds: Any = True if condition is True else _moved(condition, order, count, rest)
    for k in range(first, count):
        step = function(found, rows[k])
        found = step if holds is True else where(holds[k], step, found)
    return found


def _moved(condition: Any, order: Any, count: int, rest: Any) -> Any:
    return np.transpose(condition, order).reshape(count, *rest)


# ---------------------------------------------------------------- accumulate, outer, reduceat


def accumulate_(ufunc: np.ufunc, x: TensorOrArray, axis: int = 0, dtype: DType = None) -> TensorOrArray:
    """Results of reducing ever more elements of an axis."""
    x = tensor_of(x)
    if ufunc is np.add:
        return accumulate(x, axis, dtype)
    if ufunc is np.multiply:
        return cumprod(x, axis_of(x, axis, "np.multiply.accumulate"), dtype)
    if dtype is not None:
        x = astype(x, np.dtype(dtype))
    axis = axis_of(x, axis, f"np.{ufunc.__name__}.accumulate")
    if ufunc in EXTREMES:
        return running_extreme(ufunc, x, axis)
    before = (slice(None),) * axis
    count = x.shape[axis]
    if count == 0:
        return wrap(ufunc.accumulate(value_of(x), axis))
    found = [getitem(x, (*before, 0))]
    for k in range(1, count):
        found.append(UFUNCS[ufunc](found[-1], getitem(x, (*before, k))))
    return stack(found, axis)


def outer(ufunc: np.ufunc, a: Operand, b: Operand, **rest: Any) -> Tensor:
    """Results for all pairs of elements."""
    a, b = tensor_of(a), tensor_of(b)
    ndim = ndim_of(b)
    return typed(ufunc, (reshape(a, (*shape_of(a), *(1,) * ndim)), b), **rest)


@undisturbed
def reduceat(
    ufunc: np.ufunc, x: TensorOrArray, indices: Operand, axis: int = 0, dtype: DType = None
) -> Tensor:
    """Reduce from each index to the next."""
    x = tensor_of(x)
    indices = np.asarray(value_of(sequence(indices)))
    wanted = _by_numpy(ufunc, "reduceat", value_of(x), indices, axis, dtype)
    axis = axis_of(x, axis, f"np.{ufunc.__name__}.reduceat")
    if dtype is not None:
        x = astype(x, np.dtype(dtype))
    ends = np.maximum(np.append(indices[1:], x.shape[axis]), indices + 1)
    before = (slice(None),) * axis
    if ufunc is np.add:
        places = np.concatenate([np.arange(a, b) for a, b in zip(indices, ends, strict=True)])
        parts = np.repeat(np.arange(indices.size), ends - indices)
        taken = getitem(x, (*before, places))
        attrs = {"shape": wanted.shape, "index": (*before, parts)}
        out = record(REGISTRY["add_at"], wanted, (taken,), attrs)
        add_saved_bytes(out, parts)
        return out
    pieces = [
        getitem(x, (*before, a)) if b == a + 1 else reduce(ufunc, getitem(x, (*before, slice(a, b))), axis)
        for a, b in zip(indices.tolist(), ends.tolist(), strict=True)
    ]
    return stack(pieces, axis)


# ---------------------------------------------------------------- at


def at(ufunc: np.ufunc, x: Any, indices: Operand, *operands: Operand) -> None:
    """Let elements of x be results for them, one index after the other, so that one may come twice."""
    what = f"np.{ufunc.__name__}.at"
    index, others = plain_index(indices), [operand(b) for b in operands]
    values = [value_of(b) for b in others]
    moving = any(needs_derivative(b) for b in others)
    if not is_tensor(x):
        if moving:
            raise BorderError(
                f"{what}: an array cannot hold values that require grad or carry tangents; write to a "
                "Tensor, such as tg.zeros(shape)"
            )
        note_escape(*tensors_in(others))
        ufunc.at(x, index, *values)
        return
    value = np.array(x._v)
    ufunc.at(value, index, *values)
    new: Any = value
    if moving or needs_derivative(x):
        if x._v.dtype.kind not in "fc":
            raise DTypeError(f"{what}: a Tensor of dtype {x._v.dtype} cannot hold values that require grad")
        if not is_expected(x) and x.requires_grad and x.is_leaf:
            write(x, Ellipsis, x, what)  # refuses
        new = _at(ufunc, x, index, others, value)
    write(x, Ellipsis, new, what, True)
    with_metadata(x, others, made=False)


def _at(
    ufunc: np.ufunc, x: Tensor, index: np.ndarray, others: Sequence[Operand], value: np.ndarray
) -> TensorOrArray:
    """What x becomes, recorded."""
    shape = x._v.shape
    places = np.arange(x._v.size).reshape(shape)[index]
    operands = [_flat(_spread(b, places.shape)) for b in others]
    if ufunc in (np.add, np.subtract):
        attrs = {"shape": shape, "places": places.ravel(), "holes": False}
        total = apply(REGISTRY["collect"], (_cast(operands[0], x._v.dtype),), attrs)
        if places.nbytes > LARGE:
            add_saved_bytes(total, attrs)
        return record(REGISTRY[ufunc.__name__], value[()], (x, total))
    if ufunc not in UFUNCS or ufunc in FLAT or ufunc.nout != 1:
        raise UnsupportedOpError(
            f"np.{ufunc.__name__}.at has no derivative here; write x[...] = values instead"
        )
    order = np.argsort(places, axis=None, kind="stable")
    sorted_ = places.ravel()[order]
    first = np.searchsorted(sorted_, sorted_)
    turn = np.empty(order.size, int)
    turn[order] = np.arange(order.size) - first
    flat = _flat(x)
    for k in range(turn.max(initial=-1) + 1):
        now = np.flatnonzero(turn == k)
        there = places.ravel()[now]
        part = UFUNCS[ufunc](
            getitem(flat, there), *(getitem(b, now) if is_tensor(b) else b[now] for b in operands)
        )
        flat = apply(REGISTRY["scatter"], (_cast(part, x.dtype), flat), {"places": there})
        add_saved_bytes(flat, there)
    return reshape(flat, shape)


def _spread(x: Operand, shape: tuple[int, ...]) -> Any:
    return x if shape_of(x) == shape else broadcast_to(x if is_tensor(x) else np.asarray(x), shape)


def _flat(x: Operand) -> Any:
    return x if ndim_of(x) == 1 else reshape(x, (-1,)) if is_tensor(x) else np.ravel(x)
