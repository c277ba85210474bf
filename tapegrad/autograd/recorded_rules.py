"""Rules of a sweep that is recorded in compiled code: as programs it follows, or run in Python.

The sweep is `kernels.replay.rerecording`; a program (`ops.programs`) becomes words that say which sheets it
takes, as `layout` describes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.core.base import wrap
from tapegrad.core.compiled_methods import sheet_of
from tapegrad.kernels.replay import layout
from tapegrad.ops.primitive import BY_OPCODE, PROGRAMS, Attributes, Elementwise, Primitive, in_dtype, sum_to
from tapegrad.ops.programs import Program, Ref, program_of
from tapegrad.tape.record import CONST, STRIDE
from tapegrad.tensor import Tensor

STARTS = {"ct": layout.CT, "out": layout.RESULT, "input": layout.FIRST, "step": layout.STEPS}
_numbers: list[Any] = []  # that programs know by address


def make_program(opcode: int) -> None:
    """Note the words of the program of an op's rule among PROGRAMS; False where there is none."""
    op, words = BY_OPCODE[opcode], [0] * 4
    if isinstance(op, Elementwise) and op.arity <= 2:
        for mask in range(1, 1 << op.arity):
            program = program_of(op, tuple(k for k in range(op.arity) if mask >> k & 1))
            if program is not None and len(program.steps) <= layout.PROGRAM_WORDS - layout.STEPS:
                words[mask] = len(words)
                words += _words(program)
    PROGRAMS[opcode] = np.array(words, np.int64) if any(words) else False


def _words(program: Program) -> Sequence[int]:
    """The words of a program: how many steps it has, what two operands get, and each step's."""
    found = [len(program.steps)]
    found += [_word(program.results[k]) if k in program.results else layout.NOTHING_THERE for k in range(2)]
    for op, operands in program.steps:
        taken = [_word(ref) for ref in operands]
        found += [sheet_of(op), *taken, *[layout.NOTHING_THERE] * (2 - len(taken))]
    return found


def _word(ref: Ref) -> int:
    """The word for what a step takes."""
    if ref.kind == "number":
        _numbers.append(ref.value)
        return id(ref.value)
    return STARTS[ref.kind] + int(ref.value)


def fit_cotangent(part: Tensor, like: Any) -> Tensor:
    """Return a part of a cotangent with the shape and the dtype of its operand's value."""
    return in_dtype(sum_to(part, like.shape), like.dtype)  # type: ignore[no-untyped-call, no-any-return]


def apply_to_constants(op: Primitive, *operands: Any) -> Tensor:
    """Return what an op makes of constants and numbers: a constant, of which nothing is recorded."""
    return wrap(op.forward(*[x._v if isinstance(x, Tensor) else x for x in operands]))


def record_rule(
    op: Primitive, ct: Tensor, out: Tensor, operands: Sequence[Tensor], attrs: Attributes | None,
    wanted: Sequence[int],
) -> list[Tensor | None]:  # fmt: skip
    """Run a rule on Tensors; what it has for each operand wanted."""
    found = op.vjp(ct, out, [_without_history(x) for x in operands], attrs or {}, wanted)  # type: ignore[no-untyped-call]
    return [found.get(k) for k in wanted]


def _without_history(x: Tensor) -> Tensor:
    """A constant of the tape as one that has nothing to do with it: what follows from it is not recorded."""
    log = x._tape.log if x._tape is not None else ()
    return wrap(x._v) if len(log) >= x._at and log[x._at - STRIDE] == CONST else x
