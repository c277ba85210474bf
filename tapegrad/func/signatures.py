"""What functions of derivatives take and give, for type checkers: the type of the first argument decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, overload

import numpy as np

from tapegrad.tensor import Tensor

__all__ = ["Function", "Gradient", "Hessian", "ValueAndGradient"]

Function = Callable[..., Any]
Argument = TypeVar("Argument")


class Gradient(Protocol):
    """Of the arguments of a function: a derivative that is built as the first argument is."""

    @overload
    def __call__(self, x: float, /, *args: Any, **kwargs: Any) -> float: ...
    @overload
    def __call__(self, x: Argument, /, *args: Any, **kwargs: Any) -> Argument: ...


class ValueAndGradient(Protocol):
    """Of the arguments of a function: its value, and its gradient by the first argument."""

    @overload
    def __call__(self, x: float, /, *args: Any, **kwargs: Any) -> tuple[float, float]: ...
    @overload
    def __call__(self, x: Tensor, /, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(self, x: Argument, /, *args: Any, **kwargs: Any) -> tuple[float, Argument]: ...


class Hessian(Protocol):
    """Of the arguments of a function: its second derivatives by the first argument."""

    @overload
    def __call__(self, x: float, /, *args: Any, **kwargs: Any) -> float: ...
    @overload
    def __call__(self, x: np.ndarray, /, *args: Any, **kwargs: Any) -> np.ndarray: ...
    @overload
    def __call__(self, x: Tensor, /, *args: Any, **kwargs: Any) -> Tensor: ...
    @overload
    def __call__(self, x: Any, /, *args: Any, **kwargs: Any) -> Any: ...
