"""How arguments of NumPy's functions are read, and which NumPy itself answers from plain values."""

from __future__ import annotations

import functools
import operator
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from tapegrad.core.base import (
    Axis,
    Handle,
    decide,
    ndim_of,
    needs_derivative,
    requires_grad,
    shape_of,
    value_of,
)
from tapegrad.core.dispatch import NESTED, as_tape_value, contains_tensor, sequence, tensors_in, with_metadata
from tapegrad.core.functions import ANSWERED, BY_SHAPES, FUNCTIONS, PLAIN
from tapegrad.core.grad_mode import in_force
from tapegrad.core.inplace import write
from tapegrad.core.notes import expect_flat, note_escape, note_flat
from tapegrad.errors import AxisError, ShapeError, TapeError, UnsupportedOpError
from tapegrad.tensor import Operand, Tensor, TensorOrArray, is_tensor, wrap_without_history


def answer(*functions: Any) -> None:
    """Let NumPy answer for these functions from plain values."""
    for f in functions:
        PLAIN.add(f)
        ANSWERED[f] = None
        FUNCTIONS[f] = lambda *args, _f=f, **kwargs: plainly(_f, args, kwargs)


def composed(*functions: Any, by_shapes: bool = False) -> Callable[[Any], Any]:
    """Register what these NumPy functions do where a derivative is asked; NumPy itself answers elsewhere."""

    def register(implementation: Any) -> Any:
        BY_SHAPES.update(functions * by_shapes)
        for f in functions:
            FUNCTIONS[f] = _composed(f, implementation)
        return implementation

    return register


def _composed(function: Callable[..., Any], implementation: Callable[..., Any]) -> Callable[..., Any]:
    name = f"np.{function.__name__}"

    @functools.wraps(implementation)
    def call(*args: Any, **kwargs: Any) -> Any:
        moving = (args and needs_derivative(args[0])) or any_needs_derivative((args, tuple(kwargs.values())))
        if not moving or kwargs.get("out") is not None:
            return plainly(function, args, kwargs)
        try:
            found = implementation(*args, **kwargs)
            return found if is_tensor(found) else _tensors(found, (), ())
        except (TapeError, np.linalg.LinAlgError):
            raise
        except np.exceptions.AxisError as error:
            raise AxisError(f"{name} of {_shapes(args)}: {error}") from error
        except (ValueError, IndexError) as error:
            kind = ShapeError if isinstance(error, ValueError) else IndexError
            raise kind(f"{name} of {_shapes(args)}: {error}") from error

    return call


def _shapes(args: Sequence[Operand]) -> str:
    """The shapes of the arrays among arguments, as an error names them."""
    found = [x if isinstance(x, (list, tuple)) else [x] for x in args]
    shapes = [str(shape_of(x)) for row in found for x in row if hasattr(x, "shape")]
    return f"shape{'s' * (len(shapes) > 1)} {', '.join(shapes)}"


@overload
def tensor_of(x: Tensor) -> Tensor: ...
@overload
def tensor_of(x: Operand) -> TensorOrArray: ...
def tensor_of(x: Operand) -> TensorOrArray:
    """Return an argument as a Tensor or a plain array."""
    return x if isinstance(x, Handle) else as_tape_value(sequence(x))


def axes_of(x: Operand, axis: Axis, what: str) -> tuple[int, ...]:
    """Return the axes meant, ascending."""
    ndim = ndim_of(x)
    if axis is None:
        return tuple(range(ndim))
    if type(axis) is int and -ndim <= axis < ndim:
        return (axis % ndim,)
    try:
        found = normalize_axis_tuple(axis, ndim)
    except np.exceptions.AxisError as error:
        raise AxisError(f"{what}: axis {axis} of an array of shape {shape_of(x)}") from error
    except (ValueError, TypeError) as error:
        raise type(error)(f"{what}: axis {reprlib.repr(axis)}: {error}") from error
    return tuple(sorted(found))


@overload
def of_number(x: Operand, axis: int | None) -> int | None: ...
@overload
def of_number(x: Operand, axis: Axis) -> Axis: ...
def of_number(x: Operand, axis: Axis) -> Axis:
    """Return the axis of a reduction or scan, None where NumPy takes a number for a vector of one."""
    number = ndim_of(x) == 0 and isinstance(axis, (int, np.integer))
    return None if number and axis in (0, -1) else axis


def axis_of(x: Operand, axis: int, what: str, extra: int = 0) -> int:
    """Return the axis meant, counted from the first."""
    ndim = ndim_of(x) + extra
    if type(axis) is int and -ndim <= axis < ndim:
        return axis % ndim
    try:
        return int(normalize_axis_index(operator.index(axis), ndim))
    except np.exceptions.AxisError as error:
        raise AxisError(f"{what}: axis {axis} of an array of shape {shape_of(x)}") from error
    except TypeError as error:
        joining = f"; arrays to be joined are in one list, np.{what}([a, b])" if is_tensor(axis) else ""
        raise TypeError(f"{what}: axis is a whole number, found {type(axis).__name__}{joining}") from error


def plain(x: Any) -> Any:
    """Return an argument with the values of the Tensors in it."""
    if contains_tensor(x) and not is_tensor(x):
        return type(x)(plain(item) for item in x)
    return value_of(x)


def any_grad(x: Operand) -> bool:
    """Whether a Tensor in an argument requires grad."""
    return _any(requires_grad, x, 0)


def any_needs_derivative(x: Operand) -> bool:
    """Whether a derivative by a Tensor in an argument is asked for here and now."""
    return _any(needs_derivative, x, 0)


def _any(holds: Callable[[Any], bool], x: Operand, depth: int) -> bool:
    if depth > NESTED:
        raise ShapeError(f"lists nested more than {NESTED} deep are no array")
    return any(_any(holds, i, depth + 1) for i in x) if isinstance(x, (list, tuple)) else holds(x)


def into(function: Callable[..., Any], out: Any, *args: Any, **kwargs: Any) -> TensorOrArray:
    """Let NumPy compute into `out`, an array or a Tensor; returns it. Derivatives there are none."""
    name = f"{'np' if hasattr(np, function.__name__) else 'scipy.special'}.{function.__name__}"
    if any_needs_derivative(out) or any_needs_derivative(args):
        raise UnsupportedOpError(
            f"{name}: out= has no derivative, and {'out' if any_grad(out) else 'an operand'} requires grad; "
            + ("write a = a + x for a += x" if args[1:] and out is args[0] else "use the result it returns")
            + ", or write under tg.no_grad()"
        )
    if not is_tensor(out) and not isinstance(out, np.ndarray):
        raise TypeError(f"{name}: out= takes an array or a Tensor, found {type(out).__name__}")
    if not is_tensor(out):
        note_escape(*tensors_in((args, kwargs)))
    buffer = np.array(out._v) if is_tensor(out) else out
    if buffer.ndim == 0 and "cum" in name:  # running sums and products, `accumulate`: NumPy crashes
        raise ShapeError(f"{name}: out= is an array of at least one axis, found shape ()")
    try:
        function(*plain(args), out=buffer, **{k: plain(v) for k, v in kwargs.items()})
    except ValueError as error:
        shapes = ", ".join(str(np.shape(x)) for x in plain(args))
        raise ShapeError(f"{name} of {shapes} into out= of shape {buffer.shape}: {error}") from error
    if is_tensor(out):
        write(out, Ellipsis, buffer, name)
        with_metadata(out, tensors_in((args, kwargs)))
    return out


def plainly(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Call NumPy on plain values; arrays come back as Tensors."""
    if kwargs.get("out") is not None:
        return into(function, kwargs.pop("out"), *args, **kwargs)
    known = expect_flat(function, args, kwargs)
    if known is not None:
        return known
    values: list[Any] = []
    try:
        called = functools.partial(_called, function, (*kwargs,))
        result = decide(called, *args, *kwargs.values(), seen=values)
    except np.exceptions.AxisError as error:
        raise AxisError(str(error)) from error
    if in_force("forward") is None:
        found = _tensors(result, args, values)
        return note_flat(found, function, args, kwargs) if is_tensor(found) else found
    sources = tensors_in((args, kwargs))
    if not isinstance(result, (np.ndarray, np.generic, list, tuple)):
        note_escape(*sources)
    elif function is np.sign or getattr(function, "__self__", function) in PLAIN:  # its method, perhaps
        sources = [x for x in sources if x.dtype.kind == "c"]
    if isinstance(result, (np.ndarray, np.generic)) and not any(x.dtype.kind in "fc" for x in sources):
        return note_flat(_tensors(result, args, values, ()), function, args, kwargs)
    return _tensors(result, args, values, sources)


def _called(function: Callable[..., Any], names: tuple[str, ...], *values: Any) -> Any:
    """Call a function with values, of which the last ones have names."""
    values = tuple(map(plain, values))
    count = len(values) - len(names)
    return function(*values[:count], **dict(zip(names, values[count:], strict=True)))


def named_like(result: Any, *parts: Any) -> Any:
    """Return a named tuple with other parts; what SciPy's has besides these stays."""
    found = tuple.__new__(type(result), parts)
    if hasattr(result, "__dict__"):
        found.__dict__.update(result.__dict__)
    return found


def _tensors(result: Any, args: Any, values: Any, sources: Sequence[Tensor] | None = None) -> Any:
    """Return a result of NumPy's for these values of arguments, with Tensors for the arrays in it."""
    if isinstance(result, (np.ndarray, np.generic)):
        result = result[()] if isinstance(result, np.ndarray) and result.ndim == 0 else result
        return wrap_without_history(result, args, sources, values)
    if isinstance(result, (list, tuple)):
        parts = [_tensors(part, args, values, sources) for part in result]
        if hasattr(result, "_fields"):  # the named results of np.unique_all and its kin
            return named_like(result, *parts)
        return parts if isinstance(result, list) else tuple(parts)
    return result
