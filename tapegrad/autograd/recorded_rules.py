"""Rules of a sweep that is recorded in compiled code: as programs it follows, or run in Python.

The sweep is `kernels.replay.rerecording`; a program (`ops.programs`) becomes words that say which sheets it
takes, as `layout` describes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.core.compiled_methods import sheet_of
from tapegrad.errors import GradientError
from tapegrad.kernels.replay import layout
from tapegrad.ops.forward import ufunc_of
from tapegrad.ops.lanes import vjp
from tapegrad.ops.primitive import (
    BY_OPCODE,
    PROGRAMS,
    TRACED,
    Attributes,
    Elementwise,
    Primitive,
    in_dtype,
    sum_to,
)
from tapegrad.ops.programs import MAX_OPERANDS, Program, Ref, program_of
from tapegrad.tape.record import CONST, STRIDE, Record
from tapegrad.tape.tape import Tape
from tapegrad.tensor import Operand, Out, Tensor, recall, wrap

STARTS = {"ct": layout.CT, "out": layout.RESULT, "input": layout.FIRST, "step": layout.STEPS}


class Words(np.ndarray):
    """The words of a program, and what they refer to by address."""

    kept: Sequence[Any] = ()


def make_program(opcode: int) -> None:
    """Note the words of the programs of an op's rule among PROGRAMS; False where there are none.

    Among TRACED a dict, for compiled code to keep those for shapes in (`autograd.traced_rules`), or False.
    """
    op, begins = BY_OPCODE[opcode], [0] * (1 << MAX_OPERANDS)
    programs: list[Words] = []
    TRACED[opcode] = {} if op.traceable else False
    if isinstance(op, Elementwise) and op.arity <= MAX_OPERANDS:
        for mask in range(1, 1 << op.arity):
            program = program_of(op, tuple(k for k in range(op.arity) if mask >> k & 1))
            if program is not None and len(program.steps) <= layout.PROGRAM_WORDS - layout.STEPS:
                begins[mask] = len(begins) + sum(words.size for words in programs)
                programs.append(words_of(program))
    PROGRAMS[opcode] = _joined(begins, programs) if programs else False


def _joined(begins: Sequence[int], programs: Sequence[Words]) -> Words:
    words: Words = np.concatenate([np.array(begins, np.int64), *programs]).view(Words)
    words.kept = [program.kept for program in programs]
    return words


def words_of(program: Program) -> Words:
    """Return the words of a program, as `layout` describes them."""
    kept: list[Any] = []
    given = max(program.results, default=-1) + 1
    conditions = layout.NONZERO * program.nonzero | layout.BRANCHED * program.branched
    found = [len(program.steps), conditions | sum(1 << k for k in program.constants), given]
    found += [_word(program.results.get(k), kept) for k in range(given)]
    for function, op, operands, attrs, handed, twins, like in program.steps:
        kept += [function, attrs, handed, like]
        ufunc = ufunc_of(op) if isinstance(op, Elementwise) else None
        quick = ufunc is not None and attrs is None and len(operands) <= 2 and _takes(ufunc, like)
        found += [0 if op is None else sheet_of(op), id(function), 0 if quick else id(attrs)]
        found += [id(handed) if handed else 0, twins, 0 if like is None else id(like)]
        found += [_word(ref, kept) for ref in operands]
        found += [layout.NOTHING_THERE] * (layout.TAKEN_AT_MOST - len(operands))
    words = np.array(found, np.int64).view(Words)
    words.kept = kept
    return words


def _takes(ufunc: np.ufunc, like: np.ndarray | None) -> bool:
    """Whether a ufunc has a loop for numbers such as these; those of formulas are for real ones."""
    return like is None or any(types.endswith(like.dtype.char) for types in ufunc.types)


def _word(ref: Ref | None, kept: list[Any]) -> int:
    """The word for what a step takes or a program gives."""
    if ref is None:
        return layout.NOTHING_THERE
    if ref.kind == "object":
        kept.append(ref.value)
        return id(ref.value)
    return STARTS[ref.kind] + int(ref.value)


def fit_cotangent(part: Tensor, like: Any, lanes: int) -> Tensor:
    """Return a part of a cotangent with the dtype, and after axes of lanes the shape, of a value."""
    return in_dtype(sum_to(part, like.shape, lanes), like.dtype)  # type: ignore[no-any-return]


def constant_like(value: np.ndarray, like: np.ndarray) -> Tensor:
    """Return a number or an array as a constant, in the precision of another, unless it is boolean."""
    if value.dtype.kind != "b" and value.dtype != like.dtype:
        value = value.astype(like.dtype)
    return wrap(value if value.ndim else value[()])


def recall_import(tape: Tape, k: Record, value: Operand) -> Tensor:
    """Return what a sealed tape has imported: a leaf, a result on an older tape, or a constant."""
    return recall(value, tape.source(k))


def record_rule(
    op: Primitive, ct: Tensor, out: Tensor, operands: Sequence[Tensor], attrs: Attributes | None,
    wanted: Sequence[int],
) -> list[Tensor | None]:  # fmt: skip
    """Run a rule on Tensors; what it has for each operand wanted."""
    found = op.vjp(ct, out, [_without_history(x) for x in operands], attrs or {}, wanted)
    return [_as_tensor(op, k, found.get(k)) for k in wanted]


def batched_rule(
    op: Primitive, ct: Tensor, out: Out, operands: Sequence[Operand], attrs: Attributes | None,
    wanted: Sequence[int],
) -> list[Tensor | None]:  # fmt: skip
    """As `record_rule`, of a cotangent with an axis of lanes, on values alone."""
    found = vjp(op, len(ct._v), ct._v, out, operands, attrs or {}, wanted)
    return [_as_tensor(op, k, found.get(k)) for k in wanted]


def _as_tensor(op: Primitive, k: int, part: Any) -> Tensor | None:
    """What a rule has for an operand as compiled code reads it, by address; an array is a constant."""
    if part is None or isinstance(part, Tensor):
        return part
    array = np.asarray(part) if isinstance(part, (np.ndarray, np.generic)) else None
    if array is None or array.dtype.kind not in "biufc":
        raise GradientError(f"the rule of {op.name} gave {type(part).__name__} for operand {k}: no cotangent")
    return wrap(array if array.ndim else array[()])


def _without_history(x: Tensor) -> Tensor:
    """A constant of the tape as one that has nothing to do with it: what follows from it is not recorded."""
    if x._tape is None:  # of a sealed tape: it is known already
        return x
    log = x._tape.log
    return wrap(x._v) if len(log) >= x._at and log[x._at - STRIDE] == CONST else x
