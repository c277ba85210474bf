"""Distributions with their parameters, as calling one gives them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tapegrad.scipy.calls import Guarded, plain_only
from tapegrad.tensor import Operand, TensorOrArray


class Frozen:
    """A distribution with its parameters.

    Parameters
    ----------
    it : Guarded
        A distribution.
    args, kwargs
        The parameters.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor(2.0, requires_grad=True)
    >>> tg.grad(ts.stats.gamma(a).logpdf(1.0), a)
    (tensor(-0.4228),)
    """

    def __init__(self, it: Guarded, args: tuple[Operand, ...], kwargs: dict[str, Operand]) -> None:
        self.dist: Any = it
        self.args, self.kwds = args, kwargs

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dist":
            raise AttributeError(name)
        if name in self.dist.methods:
            return functools.partial(self._called, getattr(self.dist, name))
        found = getattr(self._scipy(name), name)
        return plain_only(found, f"{self.dist.title}.{name}") if callable(found) else found

    def _called(
        self, method: Callable[..., TensorOrArray], *args: Operand, **kwargs: Operand
    ) -> TensorOrArray:
        (x,) = (*args, *kwargs.values())
        return method(x, *self.args, **{k: v for k, v in self.kwds.items() if k != "seed"})

    def _scipy(self, name: str) -> Any:
        """SciPy's frozen distribution of these parameters."""
        return plain_only(self.dist._it, f"{self.dist.title}.{name}")(*self.args, **self.kwds)
