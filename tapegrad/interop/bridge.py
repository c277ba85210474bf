"""What bridges to other libraries have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad import func
from tapegrad.errors import BorderError
from tapegrad.func.trees import Structure
from tapegrad.tensor import Operand, Out, is_tensor

Function = Callable[..., Any]


class Spread:
    """A function of some leaves of its arguments, with the others as they were given; called with those."""

    def __init__(
        self, f: Function, leaves: Sequence[Any], structure: Structure, spots: Sequence[int]
    ) -> None:
        self.f, self.structure, self.spots = f, structure, spots
        self.leaves = [None if k in set(spots) else x for k, x in enumerate(leaves)]

    def __call__(self, *xs: Any) -> Any:
        """Call the function with these leaves."""
        return self.f(*self.build(xs))

    def build(self, xs: Sequence[Any]) -> Any:
        """The tree of arguments with these leaves."""
        leaves = self.leaves.copy()
        for k, x in zip(self.spots, xs, strict=True):
            leaves[k] = x
        return self.structure.build(leaves)


def title_of(what: str, f: Any) -> str:
    """A name for what is made of a function, for errors."""
    if not callable(f):
        raise TypeError(f"{what} takes a function, found {type(f).__name__}")
    return f"{what}({getattr(f, '__name__', type(f).__name__)})"


def named(title: str, found: Function) -> Function:
    """Give a function its name."""
    found.__name__ = found.__qualname__ = title
    return found


def plain(title: str, x: Operand) -> np.ndarray:
    """A leaf of a result as an array of its own; a Tensor whose derivative would be dropped is refused."""
    if is_tensor(x) and x.requires_grad:
        raise BorderError(
            f"{title}: the result has a derivative by a Tensor that is none of the arguments, and it would "
            "be dropped; pass that Tensor's value as an argument, or detach it"
        )
    return np.array(x)


def with_rule(
    title: str, values: Function, pull: Function, bridge: Callable[[Function], Function]
) -> Function:
    """A function of plain values whose rule is one of the other library's, that has a rule itself."""
    found = func.custom_vjp(named(title, values))

    @found.def_vjp
    def rule(out: Out, args: Any, ct: Any) -> Any:
        return bridge(named(f"pullback of {title}", pull))(args, ct)

    return found
