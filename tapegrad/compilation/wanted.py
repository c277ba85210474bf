"""What is asked for of a call, and how it is found where the call is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tapegrad.core.base import value_of
from tapegrad.func.calls import Call
from tapegrad.func.transforms import gradient_of, hvp_of, pull_number, pull_twice, value_and_gradient_of
from tapegrad.tensor import tensor, wrap


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """What a call is to give besides the value.

    Attributes
    ----------
    what
        The name of the method, as errors tell it.
    pull
        Whether rows run in reverse for it.
    eager
        ``eager(call)`` gives the value, if it is wanted, and what else is, as the caller is to have them, of
        a call that is recorded from its beginning: as `tapegrad.func` does, in the same time.
    recorded
        ``recorded(call, found)`` gives it, by leaves, of a call that is recorded and has returned `found`.
    directed
        Whether it is along a direction, the last argument.
    """

    what: str
    pull: bool
    eager: Callable[[Call], tuple[Any, Any]]
    recorded: Callable[[Call, Any], list[Any] | None]
    directed: bool = False


def _gradient(call: Call, found: Any) -> list[Any]:
    return call.gradients(pull_number(call, found))


def _value(call: Call) -> tuple[Any, None]:
    found = call.outputs(False)[0]
    return call.given_back(found, call.outside), None


VALUE = Wanted("compile", False, _value, lambda call, found: None)
VALUE_AND_GRADIENT = Wanted("value_and_grad", True, value_and_gradient_of, _gradient)
GRADIENT = Wanted("grad", True, lambda call: (None, gradient_of(call)), _gradient)
PRODUCT = Wanted("hvp", True, lambda call: (None, hvp_of(call)), pull_twice, True)
LEFT_PRODUCT = replace(PRODUCT, what="vhp")  # the same, as the Hessian is symmetric


def direction_of(call: Call) -> list[Any]:
    """Return values of the direction that a call has, one for each leaf."""
    call.xs = [wrap(x) if type(x) is np.ndarray else tensor(x) for x in call.given]  # which nobody writes to
    return [value_of(v) for v in call.direction(call.v, copied=False)]
