"""Tensors from nothing: NumPy's constructors, with `requires_grad`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tapegrad.core.base import as_array, shape_of, value_of
from tapegrad.core.conversion import astype, copy
from tapegrad.core.dispatch import contains_tensor, tensors_in, with_metadata
from tapegrad.core.functions import BY_SHAPES
from tapegrad.core.notes import call_compared, expect_flat, is_compared, note_flat
from tapegrad.errors import BorderError, ShapeError
from tapegrad.numpy_api.building import full as filled
from tapegrad.numpy_api.building import full_like as filled_like
from tapegrad.numpy_api.tables import any_needs_derivative, tensor_of
from tapegrad.tensor import Operand, Tensor, is_tensor, tensor

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

__all__ = [
    "arange", "array", "empty_like", "eye", "full", "full_like", "linspace", "ones", "ones_like",
    "zeros", "zeros_like",
]  # fmt: skip

CONSTANT = {np.zeros: np.zeros_like, np.ones: np.ones_like}
SHAPED = {"zeros", "ones", "eye", "zeros_like", "ones_like", "empty_like"}  # no value depends on arguments'


def _constructor(function: Callable[..., Any], example: str, result: str) -> Callable[..., Tensor]:
    def make(*args: Any, requires_grad: bool = False, **kwargs: Any) -> Tensor:
        if any_needs_derivative((*args, *kwargs.values())):
            composed = FROM_TENSORS.get(name)
            if composed is None:
                raise BorderError(
                    f"tg.{name} of a Tensor that requires grad drops its derivative; give its value, .item()"
                )
            return composed(*args, **kwargs)  # type: ignore[no-any-return]
        if like is not None and not requires_grad and is_compared():
            return call_compared(make, given_by_shape, args, kwargs)  # type: ignore[no-any-return]
        value = computed(args, kwargs)
        made = tensor(value, requires_grad=requires_grad)
        if name not in SHAPED:
            with_metadata(made, tensors_in((args, kwargs)))
        return made

    def computed(args: Any, kwargs: Any) -> Any:
        if name in ("zeros", "ones") and len(args) > 1 and isinstance(args[1], int):
            raise TypeError(f"tg.{name} takes a shape and a dtype, as NumPy: tg.{name}({args})")
        return function(*map(value_of, args), **{k: value_of(v) for k, v in kwargs.items()})

    def given_by_shape(*args: Any, **kwargs: Any) -> Any:  # by what gives it whatever the elements
        value = computed(args, kwargs)
        known = expect_flat(like, (value,))
        found: Any = note_flat(tensor(value), like, (value,)) if known is None else known
        return found if value.ndim else as_array(found)

    name = function.__name__
    like: Any = CONSTANT.get(function)
    BY_SHAPES.update([make] * (like is not None))
    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"""As `numpy.{name}`; `requires_grad` says whether operations on it are recorded.

    Examples
    --------
    >>> import tapegrad as tg
    >>> {example}
    {result}
    """
    return make


def _arange(start: Any, stop: Operand | None = None, step: Any = 1, dtype: DTypeLike | None = None) -> Any:
    if stop is None:
        start, stop = 0, start
    whole = np.arange(*(value_of(v) for v in (start, stop, step)), dtype=dtype)
    steps = np.arange(whole.size).astype(whole.dtype)
    found = start + steps * step
    return astype(found if is_tensor(found) else tensor(found), whole.dtype)


# What of these has a derivative by an argument, or none as it takes only the shape and dtype of it.
FROM_TENSORS = {
    "arange": _arange, "full": filled, "full_like": filled_like, "linspace": np.linspace,
    "zeros_like": np.zeros_like, "ones_like": np.ones_like, "empty_like": np.empty_like,
}  # fmt: skip
zeros = _constructor(np.zeros, "tg.zeros(2)", "tensor([0., 0.])")
ones = _constructor(np.ones, "tg.ones(2)", "tensor([1., 1.])")
full = _constructor(np.full, "tg.full(2, 7.0)", "tensor([7., 7.])")
arange = _constructor(np.arange, "tg.arange(3.0)", "tensor([0., 1., 2.])")
linspace = _constructor(np.linspace, "tg.linspace(0, 1, 3)", "tensor([0.0, 0.5, 1.0])")
eye = _constructor(np.eye, "tg.eye(1)", "tensor([[1.]])")
zeros_like = _constructor(np.zeros_like, "tg.zeros_like(tg.ones(2))", "tensor([0., 0.])")
ones_like = _constructor(np.ones_like, "tg.ones_like(tg.zeros(2))", "tensor([1., 1.])")
full_like = _constructor(np.full_like, "tg.full_like(tg.ones(2), 3)", "tensor([3., 3.])")
empty_like = _constructor(np.empty_like, "tg.empty_like(tg.ones(2)).shape", "(2,)")


def array(data: Any, dtype: DTypeLike | None = None) -> Tensor:
    """Return a Tensor of nested lists of Tensors and numbers, keeping their history.

    Parameters
    ----------
    data : array_like
        Nested lists or tuples of numbers, arrays and Tensors of fitting shapes, or one of them.
    dtype : dtype, optional
        By default what NumPy makes of the parts together.

    Returns
    -------
    Tensor

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor(2.0, requires_grad=True)
    >>> y = tg.array([[x, 1.0], [0.0, x * x]])
    >>> y.sum().backward()
    >>> x.grad
    tensor(5.)
    """
    if is_tensor(data):
        return copy(data) if dtype is None else astype(copy(data), dtype)  # type: ignore[no-any-return]
    if not contains_tensor(data):
        return tensor(data, dtype)
    result: Any = np.stack([_nested(item) for item in data])
    return result if dtype is None else astype(result, dtype)  # type: ignore[no-any-return]


def _nested(data: Operand) -> Any:
    if isinstance(data, (list, tuple)) and contains_tensor(data):
        parts = [_nested(item) for item in data]
        shapes = [*map(shape_of, parts)]
        if len(set(shapes)) > 1:
            raise ShapeError(f"array: parts of different shapes {shapes}")
        return np.stack(parts)
    return tensor_of(data) if isinstance(data, (list, tuple)) else data  # as `np.stack` takes the others
