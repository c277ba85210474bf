"""A short look at speed here: values by NumPy, gradients by tapegrad, and by torch if it is installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from tapegrad.autograd.backward import grad
from tapegrad.tensor import tensor

__all__ = ["bench"]

SECONDS = 0.05  # of each of the rounds
Program = Callable[[Any, Any, Any], Any]  # of the functions to use (NumPy or torch), a vector and a matrix


def _elementwise(m: Any, x: Any, a: Any) -> Any:
    return m.sum(m.sin(x) * m.exp(-x * x))


def _quadratic(m: Any, x: Any, a: Any) -> Any:
    return x @ (a @ x)


def _regression(m: Any, x: Any, a: Any) -> Any:
    return m.sum(m.log(1.0 + m.exp(-(a @ x))))


PROGRAMS: tuple[tuple[str, Program, int], ...] = (
    ("sum(sin(x) exp(-x x))", _elementwise, 10),
    ("sum(sin(x) exp(-x x))", _elementwise, 1_000),
    ("sum(sin(x) exp(-x x))", _elementwise, 100_000),
    ("x' A x", _quadratic, 10),
    ("x' A x", _quadratic, 300),
    ("sum(log(1 + exp(-A x)))", _regression, 300),
)


def bench(rounds: int = 5) -> str:
    """Return a table of times: of a value by NumPy, and of value and gradient by others.

    Results are compared first. The libraries take turns, and of each the best time counts; torch runs with as
    many threads as it takes.

    Parameters
    ----------
    rounds : int, optional
        How often each is timed, 0.05 s at a time.

    Returns
    -------
    str

    Examples
    --------
    >>> from tapegrad.bench import bench
    >>> print(bench(rounds=1))  # doctest: +SKIP
    """
    try:
        torch = import_module("torch")
    except ImportError:
        torch = None
    lines = [f"{'microseconds':26s}{'n':>8s}{'NumPy, value':>14s}{'gradient':>11s}{'torch':>11s}"]
    for name, program, n in PROGRAMS:
        best = _times(program, n, torch, rounds)
        shown = "".join(f"{t * 1e6:11.1f}" for t in best[1:]) + ("" if torch else f"{'-':>11s}")
        lines.append(f"{name:26s}{n:8d}{best[0] * 1e6:14.1f}{shown}")
    return "\n".join(lines)


def _times(program: Program, n: int, torch: Any, rounds: int) -> list[float]:
    random = np.random.default_rng(n)
    x = random.normal(size=n)
    a = random.normal(size=(n, n)) / n if program is not _elementwise else np.zeros(0)

    def ours() -> Any:
        leaf = tensor(x, requires_grad=True)
        return grad(program(np, leaf, a), leaf)[0].numpy()

    calls = [lambda: program(np, x, a), ours]
    if torch is not None:
        b = torch.from_numpy(a)

        def theirs() -> Any:
            leaf = torch.tensor(x, requires_grad=True)
            return torch.autograd.grad(program(torch, leaf, b), leaf)[0].numpy()

        np.testing.assert_allclose(ours(), theirs(), rtol=1e-10, atol=1e-12)
        calls.append(theirs)
    best = [_seconds(call) for call in calls]
    for _ in range(rounds - 1):
        best = [min(t, _seconds(call)) for t, call in zip(best, calls, strict=True)]
    return best


def _seconds(call: Callable[[], object]) -> float:
    """Seconds of a call, the best of as many as there is time for."""
    call()
    best, begin = np.inf, time.perf_counter()
    while (now := time.perf_counter()) - begin < SECONDS or best == np.inf:
        call()
        best = min(best, time.perf_counter() - now)
    return best
