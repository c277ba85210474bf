"""Rules of a sweep that is recorded in compiled code: as programs it follows, or run in Python.

The sweep is `kernels.replay.rerecording`; a program (`ops.programs`) becomes words that say which sheets it
takes, as `layout` describes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tapegrad.core.base import wrap
from tapegrad.core.compiled_methods import sheet_of
from tapegrad.kernels.replay import layout
from tapegrad.ops.primitive import BY_OPCODE, PROGRAMS, Attributes, Elementwise, Primitive, in_dtype, sum_to
from tapegrad.ops.programs import MAX_OPERANDS, Program, Ref, program_of
from tapegrad.tape.record import CONST, STRIDE
from tapegrad.tensor import Tensor

STARTS = {"ct": layout.CT, "out": layout.RESULT, "input": layout.FIRST, "step": layout.STEPS}
_known: list[Any] = []  # numbers and functions that programs know by address


def make_program(opcode: int) -> None:
    """Note the words of the program of an op's rule among PROGRAMS; False where there is none."""
    op, words = BY_OPCODE[opcode], [0] * (1 << MAX_OPERANDS)
    if isinstance(op, Elementwise) and op.arity <= MAX_OPERANDS:
        for mask in range(1, 1 << op.arity):
            program = program_of(op, tuple(k for k in range(op.arity) if mask >> k & 1))
            if program is not None and len(program.steps) <= layout.PROGRAM_WORDS - layout.STEPS:
                words[mask] = len(words)
                words += _words(program)
    PROGRAMS[opcode] = np.array(words, np.int64) if any(words) else False


def _words(program: Program) -> Sequence[int]:
    """The words of a program, as `layout` describes them."""
    found = [len(program.steps), sum(1 << k for k in program.constants)]
    found += _padded(program.results.get(k) for k in range(MAX_OPERANDS))
    for function, op, operands in program.steps:
        _known.append(function)
        found += [0 if op is None else sheet_of(op), id(function), *_padded(operands)]
    return found


def _padded(refs: Iterable[Ref | None]) -> list[int]:
    """Words for what a step takes, or a program gives."""
    words = [layout.NOTHING_THERE if ref is None else _word(ref) for ref in refs]
    return words + [layout.NOTHING_THERE] * (MAX_OPERANDS - len(words))


def _word(ref: Ref) -> int:
    """The word for what a step takes."""
    if ref.kind == "number":
        _known.append(ref.value)
        return id(ref.value)
    return STARTS[ref.kind] + int(ref.value)


def fit_cotangent(part: Tensor, like: Any) -> Tensor:
    """Return a part of a cotangent with the shape and the dtype of its operand's value."""
    return in_dtype(sum_to(part, like.shape), like.dtype)  # type: ignore[no-untyped-call, no-any-return]


def constant_like(value: Any, like: Any) -> Tensor:
    """Return a number or an array as a constant, in the precision of another, unless it is boolean."""
    if value.dtype.kind != "b" and value.dtype != like.dtype:
        value = value.astype(like.dtype)
    return wrap(value if value.ndim else value[()])


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
