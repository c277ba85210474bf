"""How a function of SciPy's is called where no derivative is asked for, and refused where there is none."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

import numpy as np

from tapegrad.core.base import like_of
from tapegrad.core.dispatch import tensors_in
from tapegrad.errors import BorderError, TapeError, UnsupportedOpError
from tapegrad.func.trees import Tree
from tapegrad.numpy_api.tables import any_needs_derivative, plainly, tensor_of
from tapegrad.tensor import Operand, Tensor, TensorOrArray, wrap_without_history

__all__ = [
    "Guarded", "constants", "derived", "derived_in", "doubles", "fall_through", "derivative_wanted",
    "plain_only", "refuse", "theirs",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)


def derivative_wanted(*parts: Any) -> bool:
    """Whether a derivative by a Tensor in arguments, or dicts of them, is asked for."""
    return any(any_needs_derivative(tuple(x.values()) if isinstance(x, dict) else x) for x in parts)


def theirs(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call SciPy's function on values: its own result, with Tensors where Tensors are given.

    It does not overwrite memory of Tensors, whatever it is asked to.
    """
    if not tensors_in((args, kwargs)):
        return function(*args, **kwargs)
    if isinstance(function, types.FunctionType):
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.arguments.update({name: False for name in bound.arguments if name.startswith("overwrite_")})
        args, kwargs = bound.args, bound.kwargs
    return plainly(function, args, kwargs)


class ArrayFunction(Protocol[P]):
    """A function with an array for its result: of a Tensor first a Tensor, else what SciPy makes of it."""

    @overload
    def __call__(self, x: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> Tensor: ...
    @overload
    def __call__(self, x: Operand, /, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    @overload
    def __call__(self, **kwargs: Any) -> Any: ...


class Register(Protocol):
    """What type checkers see of a registered function; of several results, arguments tell how many."""

    @overload
    def __call__(
        self, implementation: Callable[Concatenate[Operand, P], TensorOrArray], /
    ) -> ArrayFunction[P]: ...
    @overload
    def __call__(self, implementation: Callable[..., Any], /) -> Callable[..., Any]: ...


def derived(function: Callable[..., Any], title: str = "") -> Register:
    """Register what a function of SciPy's does where a derivative is asked for; else it answers itself.

    With a title errors name the function by that; without for one that calls the user's functions, whose
    errors are theirs.
    """

    def register(implementation: Callable[..., Any]) -> Any:
        @functools.wraps(implementation)
        def call(*args: Operand, **kwargs: Any) -> TensorOrArray:
            if not derivative_wanted(args, kwargs):
                return theirs(function, args, kwargs)
            if not title:
                return implementation(*args, **kwargs)
            try:
                return implementation(*args, **kwargs)
            except (BorderError, UnsupportedOpError):
                raise
            except (TapeError, np.linalg.LinAlgError, ValueError) as error:
                if str(error).startswith(title):
                    raise
                kinds = (type(error) if isinstance(error, TapeError) else np.linalg.LinAlgError, ValueError)
                raise next(k for k in kinds if isinstance(error, k))(f"{title}: {error}") from error

        return call

    return register


def derived_in(module: types.ModuleType) -> Register:
    """Register what the function of a module of SciPy's that has the same name does, as `derived`."""

    def register(implementation: Callable[..., Any]) -> Any:
        name = implementation.__name__
        return derived(getattr(module, name, implementation), f"{module.__name__}.{name}")(implementation)

    return register


def constants(*arrays: Operand, like: Operand) -> Any:
    """Return arrays that have no derivative as SciPy's function of a Tensor gives them."""
    found = tuple(wrap_without_history(x, (like,)) for x in arrays)
    return found if len(found) > 1 else found[0]


def refuse(name: str, why: str = "has no derivative here") -> UnsupportedOpError:
    """Return the error for a function that is asked for a derivative that it has not."""
    return UnsupportedOpError(
        f"{name} {why}, and a Tensor that requires grad or has a tangent was given; detach() it where it is "
        "a constant"
    )


def plain_only(
    function: Callable[..., Any], name: str, why: str = "has no derivative here"
) -> Callable[..., Any]:
    """Return a function of SciPy's that refuses Tensors by which a derivative is asked for, and says why."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if derivative_wanted(args, kwargs):
            raise refuse(name, why)
        return theirs(function, args, kwargs)

    return call


@functools.cache
def fall_through(module: types.ModuleType, name: str) -> Any:
    """Return another name of SciPy's; a function refuses Tensors by which a derivative is asked for."""
    found = getattr(module, name)
    return plain_only(found, f"{module.__name__}.{name}") if isinstance(found, FUNCTIONS) else found


class Guarded:
    """An object of SciPy's, whose methods refuse Tensors by which a derivative is asked for.

    Parameters
    ----------
    it : object
    title : str
        What it is called.
    made_of : tuple, optional
        What it was made of: if a derivative by that is asked for, only `constants` are there.
    why : str, optional
        Why there is none.
    """

    constants: tuple[str, ...] = ()

    def __init__(
        self, it: Any, title: str, made_of: tuple[Tree, ...] = (), why: str = "has no derivative here"
    ) -> None:
        self._it, self.title, self._made_of, self._why = it, title, made_of, why

    def __repr__(self) -> str:
        return f"<{self.title}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Freeze parameters, as SciPy does."""
        frozen = plain_only(self._it, self.title, self._why)(*args, **kwargs)
        return Guarded(frozen, self.title, why=self._why)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_it":
            raise AttributeError(name)
        found = getattr(self._it, name)
        if name not in self.constants and derivative_wanted(self._made_of):
            raise refuse(f"{self.title}.{name}", self._why)
        return plain_only(found, f"{self.title}.{name}", self._why) if isinstance(found, FUNCTIONS) else found


@overload
def doubles(x: Tensor) -> Tensor: ...
@overload
def doubles(x: Operand) -> TensorOrArray: ...
def doubles(x: Operand) -> TensorOrArray:
    """An argument as a Tensor or array in double precision, as SciPy computes."""
    x = tensor_of(x)
    dtype = like_of(x).dtype
    if dtype.kind == "c" or dtype == np.float64:
        return x
    return x.astype(np.float64)
