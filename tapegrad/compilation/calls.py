"""What compiled code compares operations and calls of NumPy's functions with (`kernels.replay.matching`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.compilation.events import ARGUMENT, FIXED, LIVE, POWER, WRITE, Brought, Several, Source
from tapegrad.compilation.program import Program
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address
from tapegrad.tensor import Tensor

KINDS = {"d": layout.A_NUMBER, "f": layout.A_SINGLE}
Expected = tuple[int, int]  # of an operand: what it is, and where or which


class Comparison:
    """What operands of a program's events are, by the Tensors that stand for arguments and results."""

    def __init__(self, program: Program, arguments: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        self._program, self._arguments, self._results = program, arguments, results
        self.kept: list[np.ndarray] = []  # words that others know by address

    def operand(self, k: int, q: int) -> Expected:
        """What an operand of an event is; no address where Python is to compare it."""
        event, live = self._program.events[k], self._program.live[k][q]
        source = event.operands[q]
        if source.kind == LIVE:
            usable = is_same_for_numbers(self._program, k, q) and not (q and event.op is POWER)
            return _live(live) if usable else (layout.THIS_OBJECT, 0)
        if source.kind == FIXED:
            return layout.THIS_OBJECT, id(source.value)
        return layout.THIS_OBJECT, self._handle(source)

    def call(self, k: int) -> Address:
        """Where words of the call are that an event was; 0 without one."""
        call = self._program.events[k].call
        if call is None or call.function is WRITE or not self._program.exact[k]:
            return 0
        named = [id(x) for pair in call.kwargs.items() for x in pair]
        return self._words(call.function, len(call.kwargs), [self._argument(k, x) for x in call.args], named)

    def _words(self, of: Any, names: int, arguments: Sequence[Expected], named: Sequence[int]) -> Address:
        given = [word for pair in arguments for word in pair]
        words = np.array([id(of), len(arguments), names, *given, *named], np.int64)
        self.kept.append(words)
        return abi.address(words)

    def _argument(self, k: int, x: Any) -> Expected:
        if type(x) is Source:
            return layout.THIS_OBJECT, self._handle(x)
        if type(x) is Brought:
            return self.operand(k, x.operand)
        if type(x) is Several:
            return layout.SEVERAL, self._words(x.kind, 0, [self._argument(k, y) for y in x.parts], ())
        return layout.THIS_OBJECT, id(x)

    def _handle(self, source: Source) -> Address:
        if source.kind == ARGUMENT:
            return id(self._arguments[source.value])
        return id(self._results[self._program.owners[source.value]])


def is_same_for_numbers(program: Program, k: int, q: int) -> bool:
    """Whether a double of NumPy's gives, as an operand, the dtype that a float of Python's does."""
    live, operands = program.live[k], program.events[k].operands
    if live[q].ndim or live[q].dtype.char != "d":
        return True
    return any(x.dtype.char in "dD" for source, x in zip(operands, live, strict=True) if source.kind < LIVE)


def _live(buffer: np.ndarray) -> Expected:
    """What takes a number or an array at each call; nothing where Python is to do it."""
    if buffer.ndim:
        return layout.AN_ARRAY, id(buffer)
    kind = KINDS.get(buffer.dtype.char)
    return (layout.THIS_OBJECT, 0) if kind is None else (kind, abi.address(buffer))
