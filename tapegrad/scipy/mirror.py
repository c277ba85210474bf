"""How a function of SciPy's gets a derivative: by another one of the same name and arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from tapegrad.core.base import shape_of, value_of
from tapegrad.core.dispatch import tensors_in, wrap_without_history
from tapegrad.errors import BorderError, ShapeError, TapeError, UnsupportedOpError
from tapegrad.numpy_api.tables import any_follows, plainly, tensor_of

F = TypeVar("F", bound=Callable[..., Any])


def values_by(original: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Call SciPy's function where no derivative is asked for; it does not overwrite memory of Tensors."""
    if not tensors_in([*args, *kwargs.values()]):
        return original(*args, **kwargs)
    bound = inspect.signature(original).bind(*args, **kwargs)
    for name in bound.arguments:
        if name.startswith("overwrite_"):
            bound.arguments[name] = False
    return plainly(original, bound.args, bound.kwargs)


def mirrors(original: Callable[..., Any], title: str) -> Callable[[F], F]:
    """Decorate what does for Tensors what SciPy's function does, called where a derivative is asked for.

    SciPy's own answers elsewhere: of arrays as it is, of Tensors from their values. An error names the
    function by its title.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = (args, tuple(kwargs.values()))
            if not any_follows(given):
                return values_by(original, args, kwargs)
            try:
                return function(*args, **kwargs)
            except (BorderError, UnsupportedOpError):
                raise
            except TapeError as error:
                if str(error).startswith(title):
                    raise
                raise type(error)(f"{title}: {error}") from error
            except (np.linalg.LinAlgError, ValueError) as error:
                kind = np.linalg.LinAlgError if isinstance(error, np.linalg.LinAlgError) else ValueError
                raise kind(f"{title}: {error}") from error

        return call  # type: ignore[return-value]

    return decorate


def refuses(original: Callable[..., Any], title: str, why: str) -> Callable[..., Any]:
    """Return SciPy's function, which refuses Tensors by which a derivative is asked for, and says why."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if any_follows((args, tuple(kwargs.values()))):
            raise UnsupportedOpError(f"{title} has no derivative here: {why}")
        return values_by(original, args, kwargs)

    return call


def in_batches(**cores: int | str) -> Callable[[F], F]:
    """Decorate a function of arrays of so many axes ("1|2": one or two), to be called for each of a batch.

    As SciPy does: axes in front are a batch, of all arrays together by broadcasting, and results are stacked.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
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


def _stacked(results: list[Any], front: tuple[int, ...]) -> Any:
    if results[0] is None:
        return None
    found = np.stack(results) if tensors_in(results) else np.array([value_of(x) for x in results])
    return np.reshape(found, (*front, *np.shape(found)[1:]))


def constants(*arrays: Any, like: Any) -> Any:
    """Return arrays that have no derivative as SciPy's function of a Tensor gives them."""
    found = tuple(wrap_without_history(x, (like,)) for x in arrays)
    return found if len(found) > 1 else found[0]
