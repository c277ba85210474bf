"""What NumPy's functions do on Tensors: each normalises its arguments and applies an op.

`UFUNCS` and `FUNCTIONS` are looked up by Tensor's two protocol methods.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from tapegrad.dispatch import (
    apply,
    binary,
    combine,
    contains_tensor,
    is_tensor,
    normal,
    record,
    reflected,
    requires_grad,
    sequence,
    share,
    unary,
    value_of,
    wrap,
)
from tapegrad.errors import AxisError, BorderError, DTypeError, ShapeError, UnsupportedOpError
from tapegrad.ops import REGISTRY

UFUNCS: dict[Any, Callable[..., Any]] = {}
FUNCTIONS: dict[Any, Callable[..., Any]] = {}
Axis = int | Sequence[int] | None
MANY = 4096  # operands of one record


def implements(*functions: Any) -> Callable[[Any], Any]:
    """Register a function as what these NumPy functions do on Tensors."""

    def register(function: Any) -> Any:
        for f in functions:
            FUNCTIONS[f] = function
        return function

    return register


# ---------------------------------------------------------------- ufuncs

OPERATORS = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "negative": operator.neg, "absolute": operator.abs,
}  # fmt: skip
FAST: dict[str, Callable[..., Any]] = {}  # with a Tensor as the first operand
REFLECTED: dict[str, Callable[..., Any]] = {}  # with a Tensor as the last operand, given first
for _op in REGISTRY.values():
    _ufunc = _op.functions[0] if _op.functions else None
    if isinstance(_ufunc, np.ufunc) and _ufunc.nin in (1, 2) and _ufunc.nout == 1 and _op.arity < 3:
        if _op.name in ("matmul",):
            continue
        _operate = OPERATORS.get(_op.name, _ufunc)
        FAST[_op.name] = (unary if _ufunc.nin == 1 else binary)(_op, _operate)  # type: ignore[arg-type]
        if _ufunc.nin == 2:
            REFLECTED[_op.name] = reflected(_op, _operate)  # type: ignore[arg-type]


def _ufunc_of(name: str) -> Callable[..., Any]:
    op, fast = REGISTRY[name], FAST[name]
    if op.arity == 1:
        return fast

    def function(a: Any, b: Any) -> Any:
        return fast(a, b) if is_tensor(a) else combine(op, sequence(a), sequence(b))

    return function


for _name in FAST:
    for _f in REGISTRY[_name].functions:
        UFUNCS[_f] = _ufunc_of(_name)
UFUNCS[np.positive] = lambda x: apply(REGISTRY["multiply"], (x, 1.0)) if requires_grad(x) else wrap(+x._v)

# Derivative zero wherever there is one: plain values, no history.
for _f in (
    np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal, np.sign, np.floor,
    np.ceil, np.rint, np.trunc, np.isfinite, np.isnan, np.isinf, np.signbit, np.logical_and,
    np.logical_or, np.logical_not, np.logical_xor, np.floor_divide,
):  # fmt: skip

    def _flat(*args: Any, _f: Any = _f) -> Any:
        values = [value_of(sequence(a)) for a in args]
        try:
            return wrap(normal(_f(*(normal(v) for v in values)), _f.__name__))
        except ValueError as error:
            shapes = ", ".join(str(np.shape(v)) for v in values)
            raise ShapeError(f"{_f.__name__} of operands of shapes {shapes}: {error}") from error

    UFUNCS[_f] = _flat


def power(a: Any, b: Any) -> Any:
    """Power; a square has a cheaper derivative."""
    if (type(b) is int or type(b) is float) and b == 2 and is_tensor(a):
        return FAST["square"](a)
    return FAST["power"](a, b) if is_tensor(a) else combine(REGISTRY["power"], sequence(a), sequence(b))


UFUNCS[np.power] = power


def float_power(a: Any, b: Any) -> Any:
    """Power, in double precision."""
    return power(*(astype(x, np.dtype(float)) if is_tensor(x) else np.asarray(x, float) for x in (a, b)))


UFUNCS[np.float_power] = float_power


def call_ufunc(ufunc: np.ufunc, method: str, inputs: Any, kwargs: dict[str, Any]) -> Any:
    """Apply a ufunc to operands among which there is a Tensor."""
    out = kwargs.pop("out", None)
    if out is not None and any(o is not None for o in out):
        raise UnsupportedOpError(
            f"np.{ufunc.__name__} with out= would overwrite values a derivative may need; "
            "use the result it returns"
        )
    if method == "reduce" and ufunc in _REDUCES:
        return _REDUCES[ufunc](*inputs, **kwargs)
    if method == "accumulate" and ufunc is np.add:
        return _accumulate(*inputs, **kwargs)
    function = UFUNCS.get(ufunc)
    if method == "__call__" and function is not None and not kwargs:
        return function(*inputs)
    if method == "__call__" and function is not None and set(kwargs) == {"dtype"}:
        dtype = np.dtype(kwargs["dtype"])
        return function(*(astype(x, dtype) if is_tensor(x) else x for x in inputs))
    if any(requires_grad(x) for x in inputs):
        form = "" if method == "__call__" else f".{method}"
        given = "".join(f", {key}=" for key in kwargs)
        raise UnsupportedOpError(
            f"np.{ufunc.__name__}{form}{given} has no derivative here; "
            "write it with supported functions, or detach() the operands"
        )
    return _plainly(getattr(ufunc, method), inputs, kwargs)


def _plainly(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Call NumPy on plain values; arrays come back as Tensors."""

    def plain(x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return type(x)(plain(item) for item in x)
        return value_of(x)

    try:
        result = function(*plain(tuple(args)), **{k: plain(v) for k, v in kwargs.items()})
    except np.exceptions.AxisError as error:
        raise AxisError(str(error)) from error
    if isinstance(result, (np.ndarray, np.generic)):
        return share(result[()] if isinstance(result, np.ndarray) and result.ndim == 0 else result, args)
    if isinstance(result, tuple) and all(isinstance(part, np.ndarray) for part in result):
        return tuple(share(part, args) for part in result)
    return result


def call_function(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Apply one of NumPy's other functions to arguments among which there is a Tensor."""
    implementation = FUNCTIONS.get(function)
    if implementation is not None:
        if kwargs.get("out") is not None:
            raise UnsupportedOpError(f"np.{function.__name__}: out= is not supported on Tensors")
        kwargs.pop("out", None)
        return implementation(*args, **kwargs)

    def any_grad(x: Any) -> bool:
        if isinstance(x, (list, tuple)):
            return any(any_grad(item) for item in x)
        return requires_grad(x)

    if any_grad(args) or any_grad(tuple(kwargs.values())):
        raise UnsupportedOpError(
            f"{function.__module__}.{function.__name__} has no derivative here; "
            "write it with supported functions, or detach() the operands"
        )
    return _plainly(function, args, kwargs)


# ---------------------------------------------------------------- arguments


def tensor_of(x: Any) -> Any:
    """Return an argument as a Tensor or a plain array."""
    if is_tensor(x):
        return x
    return normal(sequence(x))


def axes_of(x: Any, axis: Axis, what: str) -> tuple[int, ...]:
    """Return the axes meant, ascending."""
    ndim = np.ndim(value_of(x))
    if axis is None:
        return tuple(range(ndim))
    try:
        found = normalize_axis_tuple(axis, ndim)
    except np.exceptions.AxisError as error:
        raise AxisError(f"{what}: axis {axis} of an array of shape {np.shape(value_of(x))}") from error
    except (ValueError, TypeError) as error:
        raise type(error)(f"{what}: axis {axis!r}: {error}") from error
    return tuple(sorted(found))


def axis_of(x: Any, axis: int, what: str, extra: int = 0) -> int:
    ndim = np.ndim(value_of(x)) + extra
    try:
        return int(normalize_axis_index(operator.index(axis), ndim))
    except np.exceptions.AxisError as error:
        raise AxisError(f"{what}: axis {axis} of an array of shape {np.shape(value_of(x))}") from error


def _no_out(what: str, out: Any) -> None:
    if out is not None and out is not np._NoValue:
        raise UnsupportedOpError(f"{what}: out= is not supported on Tensors; use the result it returns")


# ---------------------------------------------------------------- reductions


def _reduction(name: str) -> Callable[..., Any]:
    op = REGISTRY[name]

    def function(
        x: Any, axis: Axis = None, dtype: Any = None, out: Any = None, keepdims: Any = False, **rest: Any
    ) -> Any:
        if axis is None and dtype is None and out is None and keepdims is False and not rest and is_tensor(x):
            value = x._v
            return apply(op, (x,), {"axis": tuple(range(value.ndim)), "keepdims": False})
        _no_out(name, out)
        rest = {k: v for k, v in rest.items() if v is not np._NoValue}
        x = tensor_of(x)
        if rest:
            if requires_grad(x):
                raise UnsupportedOpError(f"{name}: {', '.join(rest)}= has no derivative here")
            return _plainly(op.functions[0], (x,), {"axis": axis, "keepdims": bool(keepdims), **rest})
        if dtype is not None:
            x = astype(x, np.dtype(dtype))
        keepdims = keepdims is not np._NoValue and bool(keepdims)
        if not requires_grad(x):
            return _plainly(op.forward, (x,), {"axis": axes_of(x, axis, name), "keepdims": keepdims})
        return apply(op, (x,), {"axis": axes_of(x, axis, name), "keepdims": keepdims})

    function.__name__ = name
    for f in op.functions:
        FUNCTIONS[f] = function
    return function


sum_, mean, max_, min_, prod = (_reduction(name) for name in ("sum", "mean", "max", "min", "prod"))


def _positional(function: Callable[..., Any]) -> Callable[..., Any]:
    """np.max and np.prod take `out` where np.sum takes `dtype`."""

    def wrapped(x: Any, axis: Axis = None, out: Any = None, keepdims: Any = False, **rest: Any) -> Any:
        return function(x, axis=axis, out=out, keepdims=keepdims, **rest)

    return wrapped


max_, min_ = _positional(max_), _positional(min_)
for _f in (np.max, np.amax):
    FUNCTIONS[_f] = max_
for _f in (np.min, np.amin):
    FUNCTIONS[_f] = min_
_REDUCES: dict[Any, Callable[..., Any]] = {
    np.add: lambda x, axis=0, dtype=None, keepdims=False, **k: sum_(x, axis, dtype, None, keepdims, **k),
    np.multiply: lambda x, axis=0, dtype=None, keepdims=False, **k: prod(x, axis, dtype, None, keepdims, **k),
    np.maximum: lambda x, axis=0, keepdims=False, **k: max_(x, axis, None, keepdims, **k),
    np.minimum: lambda x, axis=0, keepdims=False, **k: min_(x, axis, None, keepdims, **k),
}


def logsumexp(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """Logarithm of the sum of exponentials over axes, without overflow.

    Parameters
    ----------
    x : Tensor or array_like
    axis : int or tuple of int, optional
        Axes to reduce; all by default.
    keepdims : bool, optional

    Returns
    -------
    Tensor

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.logsumexp(tg.array([1000.0, 1000.0]))
    tensor(1000.6931)
    """
    x = tensor_of(x)
    if np.result_type(value_of(x)).kind != "f":
        x = astype(x, np.dtype(float)) if is_tensor(x) else x.astype(float)
    attrs = {"axis": axes_of(x, axis, "logsumexp"), "keepdims": bool(keepdims)}
    return apply(REGISTRY["logsumexp"], (x,), attrs)


@implements(np.var)
def var(x: Any, axis: Axis = None, dtype: Any = None, out: Any = None, ddof: float = 0,
        keepdims: Any = False) -> Any:  # fmt: skip
    """Variance: mean squared deviation from the mean, over n - ddof."""
    _no_out("var", out)
    x = tensor_of(x)
    axes = axes_of(x, axis, "var")
    count = math.prod([np.shape(value_of(x))[a] for a in axes])
    deviation = x - mean(x, axes, dtype, None, True)
    keepdims = keepdims is not np._NoValue and bool(keepdims)
    with np.errstate(divide="ignore", invalid="ignore"):
        divisor = deviation.dtype.type(np.maximum(count - ddof, 0))
        return sum_(deviation * deviation, axes, None, None, keepdims) / divisor


@implements(np.std)
def std(x: Any, axis: Axis = None, dtype: Any = None, out: Any = None, ddof: float = 0,
        keepdims: Any = False) -> Any:  # fmt: skip
    """Standard deviation: the root of `var`."""
    found = var(x, axis, dtype, out, ddof, keepdims)
    flat = found == 0  # where all elements are equal the derivative is taken as 0, as torch does
    return where(flat, 0.0, np.sqrt(where(flat, 1.0, found)))


def _accumulate(x: Any, axis: int = 0, dtype: Any = None) -> Any:
    """np.add.accumulate: as cumsum, but along the first axis by default."""
    return cumsum(x, axis, dtype)


@implements(np.cumsum)
def cumsum(x: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
    """Running sum along an axis, or over all elements."""
    _no_out("cumsum", out)
    x = tensor_of(x)
    if dtype is not None:
        x = astype(x, np.dtype(dtype))
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    attrs = {"axis": axis_of(x, axis, "cumsum")}
    return apply(REGISTRY["cumsum"], (x,), attrs)


# ---------------------------------------------------------------- shapes


@implements(np.reshape)
def reshape(x: Any, /, shape: Any = None, order: str = "C", *, newshape: Any = None, copy: Any = None) -> Any:
    """The same elements in another shape, in C order."""
    if order != "C":
        raise UnsupportedOpError(f"reshape: order {order!r} has no derivative here; use 'C'")
    x = tensor_of(x)
    value = value_of(x)
    try:
        wanted = np.broadcast_to(np.empty((), np.int8), np.shape(value)).reshape(
            shape if shape is not None else newshape
        )
    except (ValueError, TypeError) as error:
        kind = ShapeError if isinstance(error, ValueError) else TypeError
        raise kind(f"reshape of shape {np.shape(value)} to {shape}: {error}") from error
    return apply(REGISTRY["reshape"], (x,), {"shape": wanted.shape})


@implements(np.ravel)
def ravel(x: Any, order: str = "C") -> Any:
    """All elements in one dimension."""
    return reshape(x, (-1,), order)


@implements(np.transpose, np.permute_dims)
def transpose(x: Any, axes: Any = None) -> Any:
    """Axes in another order, by default reversed."""
    x = tensor_of(x)
    ndim = np.ndim(value_of(x))
    if axes is None:
        axes = tuple(range(ndim))[::-1]
    axes = tuple(axis_of(x, a, "transpose") for a in axes)
    if sorted(axes) != list(range(ndim)):
        raise ShapeError(f"transpose of shape {np.shape(value_of(x))}: axes {axes} are no permutation")
    return (
        apply(REGISTRY["transpose"], (x,), {"axes": axes}) if ndim > 1 else reshape(x, np.shape(value_of(x)))
    )


@implements(np.swapaxes)
def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """Two axes exchanged."""
    axes = list(range(np.ndim(value_of(x))))
    a, b = axis_of(x, axis1, "swapaxes"), axis_of(x, axis2, "swapaxes")
    axes[a], axes[b] = axes[b], axes[a]
    return transpose(x, axes)


@implements(np.linalg.matrix_transpose, np.matrix_transpose)
def matrix_transpose(x: Any) -> Any:
    """The last two axes exchanged."""
    if np.ndim(value_of(x)) < 2:
        raise ShapeError(f"matrix_transpose needs two dimensions, found shape {np.shape(value_of(x))}")
    return swapaxes(x, -1, -2)


@implements(np.moveaxis)
def moveaxis(x: Any, source: Any, destination: Any) -> Any:
    """Axes moved to other places."""
    numbers = np.arange(np.ndim(value_of(x)))
    label = np.broadcast_to(np.empty((), np.int8), tuple(numbers + 2))
    try:
        moved = np.moveaxis(label, source, destination).shape
    except ValueError as error:
        raise AxisError(f"moveaxis of shape {np.shape(value_of(x))}: {error}") from error
    return transpose(x, [n - 2 for n in moved])


@implements(np.expand_dims)
def expand_dims(x: Any, axis: Any) -> Any:
    """New axes of one element."""
    return reshape(x, _plain_shape(x, np.expand_dims, axis))


@implements(np.squeeze)
def squeeze(x: Any, axis: Any = None) -> Any:
    """Axes of one element removed."""
    return reshape(x, _plain_shape(x, np.squeeze, axis))


def _plain_shape(x: Any, function: Any, axis: Any) -> tuple[int, ...]:
    shape = np.shape(value_of(x))
    try:
        return tuple(function(np.broadcast_to(np.empty((), np.int8), shape), axis).shape)
    except np.exceptions.AxisError as error:
        raise AxisError(f"{function.__name__}: axis {axis} of an array of shape {shape}") from error
    except ValueError as error:
        raise ShapeError(f"{function.__name__} of shape {shape}, axis {axis}: {error}") from error


@implements(np.broadcast_to)
def broadcast_to(x: Any, shape: Any, subok: bool = False) -> Any:
    """A larger shape by repetition."""
    x = tensor_of(x)
    try:
        value = np.broadcast_to(value_of(x), shape)
    except ValueError as error:
        raise ShapeError(f"broadcast_to of shape {np.shape(value_of(x))} to {shape}: {error}") from error
    if value.ndim == 0:
        return x if is_tensor(x) else wrap(x)
    return record(REGISTRY["broadcast_to"], value, (x,))


def _members(arrays: Any, what: str) -> list[Any]:
    if not isinstance(arrays, (list, tuple)):
        arrays = list(arrays)
    if not arrays:
        raise ShapeError(f"{what}: at least one array is needed")
    return [tensor_of(x) for x in arrays]


def _join(name: str, members: list[Any], axis: int) -> Any:
    dtype = np.result_type(*(value_of(x) for x in members))
    if len(members) > MANY:
        parts = [_join(name, members[k : k + MANY], axis) for k in range(0, len(members), MANY)]
        return _join("concatenate", parts, axis)
    members = [astype(x, dtype) if is_tensor(x) and requires_grad(x) else x for x in members]
    return apply(REGISTRY[name], members, {"axis": axis})


@implements(np.concatenate, np.concat)
def concatenate(arrays: Any, axis: int | None = 0, out: Any = None, *, dtype: Any = None,
                casting: str = "same_kind") -> Any:  # fmt: skip
    """Arrays joined along an axis."""
    members = _members(arrays, "concatenate")
    if axis is None:
        members, axis = [reshape(x, (-1,)) for x in members], 0
    result = _join("concatenate", members, axis_of(members[0], axis, "concatenate"))
    return result if dtype is None else astype(result, np.dtype(dtype))


@implements(np.stack)
def stack(arrays: Any, axis: int = 0, out: Any = None, *, dtype: Any = None,
          casting: str = "same_kind") -> Any:  # fmt: skip
    """Arrays joined along a new axis."""
    members = _members(arrays, "stack")
    shapes = {np.shape(value_of(x)) for x in members}
    if len(shapes) > 1:
        raise ShapeError(f"stack: arrays of different shapes {sorted(shapes)}")
    result = _join("stack", members, axis_of(members[0], axis, "stack", 1))
    return result if dtype is None else astype(result, np.dtype(dtype))


def _at_least(x: Any, ndim: int) -> Any:
    shape = np.shape(value_of(x))
    if len(shape) >= ndim:
        return x
    return reshape(x, (1, *shape) if shape else (1,) * ndim)


@implements(np.vstack)
def vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """Arrays joined as rows."""
    return concatenate([_at_least(x, 2) for x in _members(tup, "vstack")], 0, dtype=dtype)


@implements(np.hstack)
def hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """Arrays joined as columns, vectors end to end."""
    members = [_at_least(x, 1) for x in _members(tup, "hstack")]
    return concatenate(members, 0 if np.ndim(value_of(members[0])) == 1 else 1, dtype=dtype)


@implements(np.flip)
def flip(m: Any, axis: Any = None) -> Any:
    """Elements in reverse order along axes."""
    axes = axes_of(m, axis, "flip")
    index = tuple(slice(None, None, -1) if d in axes else slice(None) for d in range(np.ndim(value_of(m))))
    return getitem(m, index)


@implements(np.astype)
def astype(x: Any, dtype: Any, *, copy: bool = True) -> Any:
    """Another dtype; a conversion to an integer or boolean has no derivative."""
    dtype = np.dtype(dtype)
    value = value_of(x)
    if value.dtype == dtype:
        return x
    if not requires_grad(x) or dtype.kind in "iub":
        return wrap(value.astype(dtype))
    if dtype.char not in "df":
        raise DTypeError(f"astype: dtype {dtype} has no derivative here; use float64 or float32")
    return apply(REGISTRY["astype"], (x,), {"dtype": dtype})


@implements(np.copy)
def copy(x: Any, order: str = "K", subok: bool = False) -> Any:
    """A copy with the same history."""
    if requires_grad(x):
        return apply(REGISTRY["multiply"], (x, 1.0))
    return wrap(np.array(value_of(x))[()])


# ---------------------------------------------------------------- indexing


def getitem(x: Any, index: Any) -> Any:
    """Elements of a Tensor, by any index NumPy knows."""
    value = x._v
    index = plain_index(index)
    try:
        part = value[index]
    except (IndexError, TypeError, ValueError) as error:
        kind = IndexError if isinstance(error, IndexError) else type(error)
        raise kind(f"index {index!r} of a Tensor of shape {value.shape}: {error}") from error
    if not requires_grad(x):
        return share(part[()] if isinstance(part, np.ndarray) and part.ndim == 0 else part, (x,))
    parts = index if isinstance(index, tuple) else (index,)
    basic = all(isinstance(i, (int, np.integer, slice, type(None), type(Ellipsis)))
                and not isinstance(i, (bool, np.bool_)) for i in parts)  # fmt: skip
    if isinstance(part, np.ndarray) and part.ndim == 0:
        part = part[()]
    if basic and not isinstance(part, np.ndarray):
        numbers = [i for i in parts if i is not None and i is not Ellipsis]
        place = 0
        for i, n in zip(numbers, value.shape, strict=True):
            place = place * n + (int(i) if i >= 0 else int(i) + n)
        if place < 2**29:
            return record(REGISTRY["element"], part, (x,), {"index": index, "place": place})
    if basic and isinstance(part, np.ndarray):
        return record(REGISTRY["getitem"], part, (x,), {"index": index})
    return record(REGISTRY["take"], part, (x,), {"index": _snapshot(index)})


def plain_index(index: Any) -> Any:
    """Return an index with Tensors in it replaced by their values."""
    contains_tensor(index)  # refuses endless nesting
    if isinstance(index, tuple):
        return tuple(plain_index(i) for i in index)
    if isinstance(index, slice):
        return slice(*(plain_index(i) for i in (index.start, index.stop, index.step)))
    if isinstance(index, list):
        if contains_tensor(index):
            raise BorderError("a list of Tensors is no index; use tg.array([...])")
        return np.asarray(index) if index else np.empty(0, np.intp)
    return value_of(index)


def _snapshot(index: Any) -> Any:
    """An index that later writes to its arrays do not change."""
    if isinstance(index, tuple):
        return tuple(_snapshot(i) for i in index)
    return np.array(index) if isinstance(index, np.ndarray) else index


@implements(np.take)
def take(x: Any, indices: Any, axis: int | None = None, out: Any = None, mode: str = "raise") -> Any:
    """Elements by number along an axis."""
    if mode != "raise":
        raise UnsupportedOpError(f"take: mode {mode!r} has no derivative here")
    if axis is None:
        x, axis = ravel(x), 0
    if not np.issubdtype(np.asarray(plain_index(indices)).dtype, np.integer):
        raise TypeError(f"take: indices are integers, found {indices!r}")
    before = (slice(None),) * axis_of(x, axis, "take")
    return getitem(x, (*before, indices))


@implements(np.where)
def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Choice by a condition; with one argument, where it holds."""
    condition = value_of(sequence(condition))
    if x is None and y is None:
        return tuple(wrap(found) for found in np.where(condition))
    if x is None or y is None:
        raise ValueError("where: either both or neither of x and y are needed")
    return apply(REGISTRY["where"], (np.asarray(condition), sequence(x), sequence(y)))


@implements(np.clip)
def clip(a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, *, min: Any = None,
         max: Any = None) -> Any:  # fmt: skip
    """Values limited to an interval; an end that is None does not limit."""
    low, high = (a_min if a_min is not None else min), (a_max if a_max is not None else max)
    low, high = (sequence(v) for v in (low, high))
    kind = np.result_type(*(value_of(v) for v in (tensor_of(a), low, high) if v is not None))
    if kind.kind in "iub":
        return _plainly(np.clip, (a, low, high), {})
    low = -math.inf if low is None or low is np._NoValue else low
    high = math.inf if high is None or high is np._NoValue else high
    return apply(REGISTRY["clip"], (tensor_of(a), low, high))


# ---------------------------------------------------------------- products


def matmul(a: Any, b: Any) -> Any:
    """Matrix product."""
    a, b = tensor_of(a), tensor_of(b)
    if np.ndim(value_of(a)) == 0 or np.ndim(value_of(b)) == 0:
        raise ShapeError(
            f"matmul of shapes {np.shape(value_of(a))} and {np.shape(value_of(b))}: "
            "scalars have no matrix product; use *"
        )
    return apply(REGISTRY["matmul"], (a, b))


UFUNCS[np.matmul] = matmul


@implements(np.dot)
def dot(a: Any, b: Any, out: Any = None) -> Any:
    """Product over the last axis of `a` and the last but one of `b`."""
    a, b = tensor_of(a), tensor_of(b)
    left, right = np.ndim(value_of(a)), np.ndim(value_of(b))
    if left == 0 or right == 0:
        return a * b
    if right <= 2:
        return matmul(a, b)
    letters = "abcdefghijklmnopqrstuvwxyz"
    inputs = letters[: left - 1] + "z", letters[left - 1 : left + right - 3] + "z" + letters[left + right - 3]
    return einsum(f"{inputs[0]},{inputs[1]}", a, b)


@implements(np.outer)
def outer(a: Any, b: Any, out: Any = None) -> Any:
    """All products of elements of two arrays."""
    return reshape(tensor_of(a), (-1, 1)) * reshape(tensor_of(b), (1, -1))


@implements(np.linalg.solve)
def solve(a: Any, b: Any) -> Any:
    """Solution of linear equations."""
    a, b = tensor_of(a), tensor_of(b)
    if np.ndim(value_of(a)) < 2 or np.shape(value_of(a))[-1] != np.shape(value_of(a))[-2]:
        raise ShapeError(f"solve needs square matrices, found shape {np.shape(value_of(a))}")
    return apply(REGISTRY["solve"], (a, b))


@implements(np.einsum)
def einsum(subscripts: Any, *operands: Any, optimize: Any = False, **rest: Any) -> Any:
    """Einstein summation, with subscripts as text."""
    if not isinstance(subscripts, str):
        raise UnsupportedOpError("einsum: give the subscripts as text, such as 'ij,jk->ik'")
    if any(v is not None and k in ("out", "dtype") for k, v in rest.items()):
        raise UnsupportedOpError(f"einsum: {', '.join(rest)}= is not supported on Tensors")
    operands = tuple(tensor_of(x) for x in operands)
    text = subscripts.replace(" ", "")
    given, arrow, output = text.partition("->")
    inputs = given.split(",")
    if len(inputs) != len(operands):
        raise ShapeError(f"einsum: {len(inputs)} subscripts in {subscripts!r} for {len(operands)} operands")
    if "..." in text:
        inputs, output, arrow = _without_ellipsis(inputs, operands, output, arrow)
    if not arrow:
        found = "".join(inputs)
        output = "".join(sorted(c for c in set(found) if found.count(c) == 1))
    for labels, x in zip(inputs, operands, strict=True):
        if len(labels) != np.ndim(value_of(x)):
            raise ShapeError(f"einsum: subscripts {labels!r} for an operand of shape {np.shape(value_of(x))}")
    return apply(REGISTRY["einsum"], operands, {"inputs": inputs, "output": output})


def _without_ellipsis(inputs: list[str], operands: Any, output: str, arrow: str) -> Any:
    """Give the axes that ``...`` stands for labels of their own."""
    used = set("".join(inputs) + output)
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if c not in used]
    ranks = [np.ndim(value_of(x)) - len(s.replace("...", "")) if "..." in s else 0
             for s, x in zip(inputs, operands, strict=True)]  # fmt: skip
    if min(ranks) < 0:
        raise ShapeError("einsum: an operand has fewer dimensions than subscripts")
    widest = max(ranks)
    extents = [np.shape(value_of(x)) for x in operands]
    if any(1 in shape for shape, rank in zip(extents, ranks, strict=True) if rank):
        sizes: dict[str, set[int]] = {}
        for s, shape, rank in zip(inputs, extents, ranks, strict=True):
            at = s.find("...")
            for d in range(rank):
                sizes.setdefault(free[widest - rank + d], set()).add(shape[at + d])
        if any(len(found) > 1 for found in sizes.values()):
            raise UnsupportedOpError("einsum: '...' that broadcasts has no derivative here; reshape first")
    labels = free[:widest]
    expanded = [
        s.replace("...", "".join(labels[widest - rank :])) for s, rank in zip(inputs, ranks, strict=True)
    ]
    if not arrow:
        found = "".join(inputs).replace("...", "")
        output = "..." + "".join(sorted(c for c in set(found) if found.count(c) == 1))
    return expanded, output.replace("...", "".join(labels)), "->"


# ---------------------------------------------------------------- plain answers


def _register_plain() -> None:
    def plainly(function: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: _plainly(function, args, kwargs)

    for function in (
        np.argmax, np.argmin, np.argsort, np.any, np.all, np.zeros_like, np.ones_like, np.empty_like,
        np.full_like, np.allclose, np.array_equal, np.isclose, np.result_type, np.can_cast,
        np.nonzero, np.count_nonzero, np.searchsorted, np.round, np.around, np.iscomplexobj,
        np.isrealobj, np.shares_memory, np.may_share_memory, np.array_repr, np.array_str,
        np.array2string, np.save, np.savetxt, np.savez,
    ):  # fmt: skip
        FUNCTIONS[function] = plainly(function)
    FUNCTIONS[np.shape] = lambda a: a.shape
    FUNCTIONS[np.ndim] = lambda a: a.ndim
    FUNCTIONS[np.size] = lambda a, axis=None: np.size(a._v, axis)


_register_plain()
