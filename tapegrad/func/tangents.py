"""Tangents of what a function computes, by sweeps over its records or, if need be, in forward mode.

A pullback is linear in the cotangent, and its derivative by that, taken backward, pushes tangents forward.
Both sweeps are compiled, where forward mode runs each operation's rule in Python. What forward mode alone is
right or cheap for goes by it: large arguments and more records than one tape takes, which need not be kept,
rules that users give, gradients without a graph, what is computed under another mode, which moves as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from tapegrad.autograd.forward_ad import dual_level, make_dual, unpack_dual
from tapegrad.autograd.functional import grad_of_active
from tapegrad.core.grad_mode import in_force, switches
from tapegrad.core.storage import OPEN
from tapegrad.errors import is_from_signal
from tapegrad.func import recorded_series
from tapegrad.func.calls import Call, tensors_of, zeros
from tapegrad.func.trees import Structure, Tree
from tapegrad.ops import BY_OPCODE
from tapegrad.ops.custom import Custom
from tapegrad.tape.record import STRIDE
from tapegrad.tape.tape import Outgrown, recorded_bytes
from tapegrad.tensor import Tensor, wrap

Push: TypeAlias = "Callable[[list[Tensor]], list[Tensor]]"  # tangents of arguments to those of results
R = TypeVar("R")
LARGE_ARGUMENTS = 1 << 15  # elements, above which values take longer than Python
LARGE_TAPE = 1 << 24  # bytes of all values, above which they are not kept


class Pushed(NamedTuple):
    """A call of a function, with tangents of what it returned.

    Attributes
    ----------
    found, aux
        What it returned.
    structure
        How that is built.
    tangents
        Of its leaves, each for itself.
    """

    found: Any
    aux: Any
    structure: Structure
    tangents: list[Tensor]


def pushforward(call: Call, ys: Sequence[Tensor], batched: bool = False) -> Push:
    """Return the function of directions that gives the tangents of results.

    `batched`: directions have an axis of lanes in front, and tangents, too.
    """
    cts = [zeros(y).requires_grad_() for y in ys]
    rows = grad_of_active(ys, call.xs, cts, without_values=True)
    call.keep_apart(rows)

    def push(vs: list[Tensor]) -> list[Tensor]:
        pairs = [(g, v) for g, v in zip(rows, vs, strict=True) if g is not None]
        found = call.pulled([g for g, _ in pairs], [v for _, v in pairs], cts, batched=batched)
        lanes = vs[0].shape[:1] if batched else ()
        return [zeros(y, lanes) if t is None else t for y, t in zip(ys, found, strict=True)]

    return push


def along(call: Call, has_aux: bool, batched: bool = False) -> Pushed:
    """Return what a function gives with its tangents along the direction that it was called with.

    `batched`: there are several, along an axis in front.
    """
    pushed = swept(call, has_aux, partial(_along, batched))
    return _forward(call, has_aux, batched) if pushed is None else pushed


def _along(batched: bool, call: Call, found: Tree, aux: Any) -> Pushed:
    (ys, structure), vs = tensors_of(call.what, found), call.direction(call.v, batched=batched)
    if batched:
        return Pushed(found, aux, structure, pushforward(call, ys, batched=True)(vs))
    if len(ys) == len(vs) == 1 and not call.outside:
        quick = recorded_series.along(call.xs[0], ys[0], vs[0], 1)
        if quick is not None:
            return Pushed(found, aux, structure, [wrap(quick[1])])
    return Pushed(found, aux, structure, pushforward(call, ys)(vs))


def _forward(call: Call, has_aux: bool, batched: bool) -> Pushed:
    xs = call.primals()
    vs = call.direction(call.v, batched=batched)
    lanes = vs[0].shape[:1] if batched else ()
    with dual_level(*lanes):
        duals = [make_dual(x, t) for x, t in zip(xs, vs, strict=True)]
        found, aux = call.apply(duals, has_aux)
        ys, structure = tensors_of(call.what, found)
        tangents = [zeros(y, lanes) if t is None else t for y, t in map(unpack_dual, ys)]
    return Pushed(found, aux, structure, tangents)


def swept(call: Call, has_aux: bool, use: Callable[[Call, Tree, Any], R]) -> R | None:
    """Return ``use(call, found, aux)`` of what a function returned and has recorded.

    None where forward mode is to be taken; the function may have been called then.
    """
    if not call.given or sum(map(np.size, call.given)) > LARGE_ARGUMENTS:
        return None
    if OPEN or in_force("packing") is not None:  # packed values are left to forward mode, see `_sweepable`
        return None
    return call.recorded(_swept, has_aux, use)


def _swept(call: Call, has_aux: bool, use: Callable[[Call, Tree, Any], R]) -> R | None:
    before = switches[0]
    try:
        found, aux = call.outputs(has_aux, alone=True)
    except Outgrown:
        return None
    return used(call, found, aux, use, before)


def used(call: Call, found: Tree, aux: Any, use: Callable[[Call, Tree, Any], R], mode: int) -> R | None:
    """As `swept`, where the function has been called; `mode` is how often modes had been switched before."""
    if not _sweepable(call, mode):
        return None
    try:
        return use(call, found, aux)
    except Exception as error:  # that of forward mode, too, or it has no need of it: values written to, say
        if is_from_signal(error):
            raise
        return None


def _sweepable(call: Call, mode: int) -> bool:
    """Whether sweeps give the tangents of all that a function has recorded from its arguments on."""
    tape, first = call.xs[0]._tape, call.xs[0]._at
    if OPEN or switches[0] != mode or tape is None or tape.calls or tape.hooks or tape.packed:
        return False
    if tape.limit < 0:  # it is full, or a sweep of the function's has ended it and gave what is no record
        return False
    opcodes = set(tape.log[first - STRIDE :: STRIDE])
    custom = any(isinstance(BY_OPCODE[op], Custom) for op in opcodes)
    return not custom and recorded_bytes(tape) <= LARGE_TAPE
