"""All derivatives of a compiled function: recorded once, swept for several results at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.core.base import Handle, Operand
from tapegrad.native import border, explain
from tapegrad.native.function import CompiledFunction
from tapegrad.native.segment import Recording, entering, outputs_of
from tapegrad.native.tapes import runtime
from tapegrad.native.tapes.tape import BLOCKS
from tapegrad.native.twin import twin_of

SEEDS = 4  # results that one sweep goes back from


class Jacobian:
    """A function of the derivatives of all results by the first argument.

    Parameters
    ----------
    of : CompiledFunction
    of_tensors : callable, optional
        What Tensors go to.
    """

    def __init__(self, of: CompiledFunction, of_tensors: Callable[..., Any] | None = None) -> None:
        self.__wrapped__, self._of_tensors = of, of_tensors
        self.__name__ = self.__qualname__ = f"jacobian({of.__name__})"

    def __repr__(self) -> str:
        return f"<tg.func.{self.__name__}>"

    def __call__(self, x: Operand, *args: Any) -> Any:
        """Return an array of the result's shape followed by the argument's; of a tuple one for each part."""
        if self._of_tensors is not None and any(isinstance(arg, Handle) for arg in (x, *args)):
            return self._of_tensors(x, *args)
        recording, result = self._recorded(x, args)
        found: list[np.ndarray] = []
        outputs_of(result, (), found)
        statements = [part[border.STATEMENT].ravel() for part in found]
        rows = _rows(recording, np.concatenate(statements), np.size(x)) if found else np.empty((0, 0))
        starts = iter(np.cumsum([0, *map(len, statements)]))

        def built(part: Any) -> Any:
            if isinstance(part, border.Parts):
                raise self._wrong("complex numbers")
            if isinstance(part, tuple):
                return tuple(map(built, part))
            shape = (*np.shape(part), *np.shape(x))
            if not any(part is one for one in found):  # depends on nothing
                return np.zeros(shape)
            start = next(starts)
            return rows[start : start + np.size(part)].reshape(shape)

        return built(result)

    def products(self, weights: np.ndarray, x: Operand, *args: Any) -> np.ndarray:
        """Return the derivatives of sums of the results, each with weights of the result's shape."""
        recording, result = self._recorded(x, args)
        if isinstance(result, tuple):
            raise self._wrong("complex numbers" if isinstance(result, border.Parts) else "a tuple")
        found: list[np.ndarray] = []
        outputs_of(result, (), found)
        if not found:
            return np.zeros((len(weights), np.size(x)))
        statements = found[0][border.STATEMENT].ravel()
        return _products(recording, statements, weights.reshape(len(weights), -1), np.size(x))

    def _wrong(self, kind: str) -> TypeError:
        return TypeError(f"{self.__name__}: real numbers and arrays are wanted as results, found {kind}")

    def _recorded(self, x: Operand, args: tuple[Any, ...]) -> tuple[Recording, Any]:
        """Run the function; its recording, and its result as that left the recording code."""
        if any(isinstance(arg, Handle) for arg in (x, *args)):
            raise TypeError(
                f"{self.__name__} takes numbers and arrays; Tensors are differentiated by tg.grad"
            )
        of, x = self.__wrapped__, np.asarray(x, float)
        recording = Recording(x.size)
        rows = entering(x[..., None], (), recording.address, 1)
        return recording, explain.call(twin_of(of.primal, (), True), of, [rows, *args])


def _rows(recording: Recording, statements: np.ndarray, size: int) -> np.ndarray:
    """The derivatives of each statement by each input."""
    together = _prepared(recording)
    pull = runtime.sweeps((), together).pull
    out, gradient = np.empty((statements.size, size)), np.empty((size, together))
    for start in range(0, statements.size, together):
        part = np.ascontiguousarray(statements[start : start + together])
        pull(recording.address, part, np.where(np.eye(part.size, together) > 0, 1.0, -0.0), gradient)
        out[start : start + together] = gradient.T[: part.size]
    return out


def _products(recording: Recording, statements: np.ndarray, weights: np.ndarray, size: int) -> np.ndarray:
    """The derivatives of sums of all statements by each input."""
    together = _prepared(recording)
    pull = runtime.sweeps((), together).pull
    out, gradient = np.empty((len(weights), size)), np.empty((size, together))
    statements = np.ascontiguousarray(statements)
    for start in range(0, len(weights), together):
        part = weights[start : start + together]
        seeds = np.full((statements.size, together), -0.0)
        seeds[:, : len(part)] = part.T + 0.0
        pull(recording.address, statements, seeds, gradient)
        out[start : start + together] = gradient.T[: len(part)]
    return out


def _prepared(recording: Recording) -> int:
    """See that there is room for cotangents; from how many results a sweep goes back at a time."""
    together = 1 if recording.word(BLOCKS) else SEEDS  # a block has its function for one seed at a time
    if not runtime.tapes().prepare(recording.address, together):
        raise MemoryError(f"no memory for the cotangents of {recording.statements} statements")
    return together
