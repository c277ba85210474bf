"""Functions of single matrices called for each of a batch, as SciPy's are."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from tapegrad.core.base import shape_of, value_of
from tapegrad.core.dispatch import tensors_in
from tapegrad.errors import ShapeError
from tapegrad.numpy_api.tables import tensor_of
from tapegrad.tensor import Operand, TensorOrArray

__all__ = ["in_batches"]

F = TypeVar("F", bound=Callable[..., Any])


def in_batches(**cores: int | str) -> Callable[[F], F]:
    """Decorate a function of arrays of so many axes ("1|2": one or two), to be called for each of a batch.

    As SciPy does: axes in front are a batch, of all arrays together by broadcasting, and results are stacked.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Operand | None, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            arrays = {k: tensor_of(bound.arguments[k]) for k in cores if bound.arguments.get(k) is not None}
            kept, fronts = {}, []
            for name, x in arrays.items():
                shape, core = shape_of(x), cores[name]
                axes = min(len(shape), 2) if isinstance(core, str) else core
                kept[name] = shape[len(shape) - min(axes, len(shape)) :]
                fronts.append(shape[: len(shape) - len(kept[name])])
            bound.arguments.update(arrays)
            if not any(fronts):
                return function(*bound.args, **bound.kwargs)
            front = np.broadcast_shapes(*fronts)
            if 0 in front:
                raise ShapeError(f"a batch of shape {front} is empty, and has no derivative here")
            results = []
            spread = {name: np.broadcast_to(x, (*front, *kept[name])) for name, x in arrays.items()}
            for k in np.ndindex(front):
                bound.arguments.update({name: x[k] for name, x in spread.items()})
                results.append(function(*bound.args, **bound.kwargs))
            if not isinstance(results[0], tuple):
                return _stacked(results, front)
            return tuple(_stacked([found[k] for found in results], front) for k in range(len(results[0])))

        return call  # type: ignore[return-value]

    return decorate


def _stacked(results: list[TensorOrArray], front: tuple[int, ...]) -> TensorOrArray:
    if results[0] is None:
        return None
    found = np.stack(results) if tensors_in(results) else np.array([value_of(x) for x in results])
    return np.reshape(found, (*front, *np.shape(found)[1:]))
