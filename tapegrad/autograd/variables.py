"""The names of torch 0.2 and 0.3: `Variable`, volatile values, `zero_gradients`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from tapegrad.core.base import extra
from tapegrad.core.dispatch import as_tape_value
from tapegrad.errors import GradientError
from tapegrad.tensor import Operand, Tensor

__all__ = ["Variable", "variable", "zero_gradients"]


class Variable(Tensor):
    """A leaf that wraps data, which may be volatile: then nothing computed from it has a history.

    A Variable given to `backward` or `grad` as a gradient, and not volatile, lets create_graph be True where
    it is not said.

    Parameters
    ----------
    data : array_like
        Of an ndarray and of a Tensor the memory is shared.
    requires_grad : bool, optional
        Whether operations on it are recorded.
    volatile : bool, optional
        Whether operations on it and on their results are not recorded, whatever the other operands are.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.autograd.Variable([1.0, 2.0], requires_grad=True)
    >>> v = tg.autograd.Variable([3.0, 4.0], volatile=True)
    >>> (x * v).volatile, (x * v).requires_grad
    (True, False)
    """

    __slots__ = ()

    def __new__(cls, data: Operand, requires_grad: bool = False, volatile: bool = False) -> Variable:
        """Make a leaf."""
        array = data.detach().numpy() if isinstance(data, Tensor) else np.asarray(data)
        value = as_tape_value(array, "Variable")
        out = super().__new__(cls)
        out._v, out._tape, out._at, out._extra = value, None, None, None
        if isinstance(value, np.ndarray) and isinstance(data, (Tensor, np.ndarray)):
            extra(out).shown = True
        if volatile:
            extra(out).volatile = True
        elif requires_grad is not False:
            out.requires_grad_(requires_grad)
        return out

    def __init__(self, data: Operand, requires_grad: bool = False, volatile: bool = False) -> None:
        """Leave it as it was made."""

    def __reduce_ex__(self, protocol: Any) -> tuple[type[Variable], tuple[np.ndarray, bool, bool]]:
        """Pickle value, requires_grad and volatile."""
        super().__reduce_ex__(protocol)  # refuses what has a history
        return Variable, (np.array(self._v), self.requires_grad, self.volatile)


def variable(*args: Any, **kwargs: Any) -> NoReturn:
    """Say that the name is `Variable`."""
    raise GradientError("variable() does not exist: use tapegrad.tensor, or autograd.Variable")


def zero_gradients(x: Tensor | Iterable[Tensor]) -> None:
    """Let the ``.grad`` of a Tensor, or of those that something iterates over, be zeros without history."""
    if isinstance(x, Tensor):
        if x.grad is not None:
            x.grad = x.grad.detach().clone().zero_()
    elif isinstance(x, Iterable):
        for item in x:
            zero_gradients(item)
