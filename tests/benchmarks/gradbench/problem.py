"""What a module of this package tells of its problem, and how ways to compute it are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..rounds import difference

DIFFERENCES = 1e-6  # what central differences may be off


def as_they_are(variables, data):
    """For a problem whose derivative is by its variables as they are."""
    return variables, data


def only(gradients):
    """For a problem of one number: its gradient."""
    return tuple(gradients[0])


def total(derivative, direction, data):
    """The derivative of a number along a direction."""
    return sum((g * d).sum() for g, d in zip(derivative, direction, strict=True))


@dataclass(frozen=True)
class Problem:
    """A problem in the forms that the tools take.

    Its variables are the arrays that it is differentiated by; its data, arrays and numbers, are constant. A
    form takes the ones, then the others.

    Attributes
    ----------
    sizes
        Numbers by the size's name; "tiny" is for tests.
    inputs
        Of these numbers and a seed: variables and data.
    value
        Array code; its first argument is a namespace of NumPy's names. It gives a number, or a tuple of
        arrays, of which an element depends only on the same place of variables, along their last axis.
    compiled
        The same for `tapegrad.njit`, compiled: of whole arrays, or in loops where those are short.
    scanned
        The same for JAX, the package first, where `value` is a loop of many steps.
    spread
        Of variables and data: those that `value` and the others take.
    joined
        Of the gradients, a list for each result of `value`: the derivative, a tuple of arrays.
    along
        Of the derivative, a direction and the data: the derivative of the results along it.
    rtol
        What an element may be off in two ways.
    """

    sizes: dict[str, tuple[int, ...]]
    inputs: Callable[..., Any]
    value: Callable[..., Any]
    compiled: Callable[..., Any]
    scanned: Callable[..., Any] | None = None
    spread: Callable[..., Any] = as_they_are
    joined: Callable[..., Any] = only
    along: Callable[..., Any] = total
    rtol: float = 1e-9


def along_by_differences(value, variables, direction, data, step=1e-3):
    """The derivative of the results along a direction: central differences for two steps, extrapolated."""

    def central(h):
        pairs = list(zip(variables, direction, strict=True))
        high, low = (np.array(value([v + t * d for v, d in pairs], data)) for t in (h, -h))
        return (high - low) / (2 * h)

    return (4 * central(step / 2) - central(step)) / 3


def compare(problem, results, value, variables, data):
    """Raise AssertionError unless all ways agree, and with differences; return the worst relative difference.

    Parameters
    ----------
    results : dict
        By "value" and "derivative": by the way's name what it gives.
    value : callable
        Of variables and data: the value, of which differences are taken.
    """
    worst = 0.0
    for what, ways in results.items():
        first, *others = ways
        for other in others:
            for found, expected in zip(ways[other], ways[first], strict=True):
                tiny = 1e-12 * np.max(np.abs(expected))
                np.testing.assert_allclose(
                    found, expected, problem.rtol, tiny, err_msg=f"{what} by {other} and {first}"
                )
                worst = max(worst, difference(found, expected))
    random = np.random.default_rng(1)
    direction = [v * random.uniform(-1, 1, v.shape) for v in variables]
    expected = along_by_differences(value, variables, direction, data)
    wrong = difference(problem.along(results["derivative"][first], direction, data), expected)
    if not wrong < DIFFERENCES:
        raise AssertionError(f"the derivative by {first} differs from central differences by {wrong:.1e}")
    return worst
