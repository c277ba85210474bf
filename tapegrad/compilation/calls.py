"""Calls of NumPy's functions in a form that is compared in few steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.compilation.events import ARGUMENT, Brought, Called, Several, Source
from tapegrad.kernels.words import Address
from tapegrad.tensor import Tensor


class PlainCall(NamedTuple):
    """A call of a function of NumPy's of operands, and perhaps axes behind them, as it is compared with.

    Attributes
    ----------
    alone
        The address of the Tensor that is its only argument; 0 for any other call.
    kind
        Of what type the list is that the operands are in; None where they are arguments themselves.
    handles
        Addresses of the Tensors that they are; 0 for an array that the call brings.
    brought
        Where such arrays are, which operands they are, and what takes them.
    others, names
        The other arguments, and those by names.
    """

    function: Any
    alone: Address
    kind: type[list[Any]] | type[tuple[Any, ...]] | None
    handles: tuple[Address, ...]
    brought: tuple[tuple[int, int, np.ndarray], ...]
    others: tuple[Any, ...]
    names: dict[str, Any]


def plain_call(
    call: Called, live: Sequence[Any], arguments: Sequence[Tensor], results: Sequence[Tensor]
) -> PlainCall | None:
    """A call of operands and perhaps axes behind them, as it is compared with; None if it is another one."""
    kind, args = None, call.args
    if args and type(args[0]) is Several:
        kind, operands, others = args[0].kind, args[0].parts, args[1:]
    else:
        count = next((q for q, x in enumerate(args) if type(x) not in (Source, Brought)), len(args))
        operands, others = args[:count], args[count:]
    known = all(type(x) in (Source, Brought) for x in operands)
    if not operands or not known or not all(x is None or type(x) is int for x in others):
        return None
    handles = tuple(
        0 if type(x) is Brought else id((arguments if x.kind == ARGUMENT else results)[x.value])
        for x in operands
    )
    brought = tuple((q, x.operand, live[x.operand]) for q, x in enumerate(operands) if type(x) is Brought)
    single = len(args) == 1 and kind is None and not call.kwargs
    alone = handles[0] if single else 0
    return PlainCall(call.function, alone, kind, handles, brought, others, call.kwargs)
