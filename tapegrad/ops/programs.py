"""Derivative rules as programs: the ops that a rule records, by what they take, read off its text."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.ops.primitive import MEANING, Attributes, Elementwise, Primitive
from tapegrad.ops.rules import Reader, Rule, Unreadable

MAX_OPERANDS = 3  # of a step, and of an op whose rule is a program


class Ref(NamedTuple):
    """What a step takes: ``("ct", 0)``, ``("input", k)``, ``("out", 0)``, ``("step", i)`` or an "object"."""

    kind: str
    value: Any


class Step(NamedTuple):
    """A function, the op that it means (None for one without a derivative), what it takes and attributes.

    `handed` are names of attributes that it has from the record whose rule this is; if `twins`, factors among
    them are twins of those. `like` is an array of the shape and dtype of what it gives, where they are known.
    """

    function: Any
    op: Primitive | None
    operands: tuple[Ref, ...]
    attrs: Attributes | None = None
    handed: tuple[str, ...] = ()
    twins: bool = False
    like: np.ndarray | None = None


class Program(NamedTuple):
    """The steps of a rule for some of its operands, and where what each of them gets stands.

    Equal subexpressions are one step; a partial of 1 passes the cotangent on, one of 0 has no result.

    Attributes
    ----------
    steps, results
        The steps; by the slot of an operand what it gets.
    constants
        Slots of the operands that have to be constants.
    nonzero
        Whether no element of the result may be 0.
    branched
        Whether it is for some values only, as `Primitive.branch` tells.
    """

    steps: tuple[Step, ...]
    results: dict[int, Ref]
    constants: tuple[int, ...]
    nonzero: bool = False
    branched: bool = False


def program_of(op: Elementwise, wanted: tuple[int, ...]) -> Program | None:
    """Return the program of an op's rule for real numbers; None if only Python can run it.

    Parameters
    ----------
    op
        An elementwise op.
    wanted
        Slots of the operands whose cotangents are asked for, ascending.
    """
    if op.unknown or op.arity > MAX_OPERANDS:
        return None
    rule = op.rule
    constants: tuple[int, ...] = ()
    if op.mixed is not None:
        if len(wanted) > 1:
            rule = op.mixed
        else:
            constants = tuple(k for k in range(op.arity) if k not in wanted)
    builder = _Builder(op, rule)
    try:
        results = {k: found for k in wanted if (found := builder.cotangent(k)) is not None}
    except Unreadable:
        return None
    return Program(tuple(builder.steps), results, constants, op.kink)


class _Builder(Reader):
    def __init__(self, op: Elementwise, rule: Rule) -> None:
        self.op, self.rule = op, rule
        self.steps: list[Step] = []
        self.known: dict[Any, Ref] = {}
        self.scope = {
            name: Ref("out", 0) if name == "out" else Ref("input", slot) for name, slot in op.slots.items()
        }
        self.scope["ct"] = Ref("ct", 0)

    def cotangent(self, k: int) -> Ref | None:
        """What operand k gets: the partial times the cotangent."""
        op, ct = self.op, self.scope["ct"]
        partial = self.rule.recorded[k]
        if partial.zero:
            return None
        if partial.constant is not None and not op.explicit:
            if partial.constant == 1:
                return ct
            if partial.constant == -1:
                return self.apply(operator.neg, [ct])
            return self.apply(operator.mul, [ct, self.number(partial.constant)])
        factor: Ref = self.read(partial, self.scope)
        if op.explicit and factor.kind == "object":
            raise Unreadable  # a number, which is no cotangent
        return factor if op.explicit else self.apply(operator.mul, [ct, factor])

    def number(self, value: Any) -> Ref:
        """A number itself."""
        return Ref("object", value)

    def apply(self, function: Any, operands: Sequence[Ref]) -> Ref:
        """A step, or what it gives where that is known."""
        op = MEANING.get(function)
        if op is None and getattr(np, function.__name__, None) is not function:
            raise Unreadable  # of SciPy's, which may well have a derivative
        if len(operands) > MAX_OPERANDS or not (op is None or isinstance(op, Elementwise)):
            raise Unreadable
        moving = [] if op is None else [operands[slot].kind for slot in op.unknown]
        if op is not None and (op.of_integers or any(kind != "object" for kind in moving)):
            raise Unreadable  # numbers here are floats; in Python a derivative that is unknown is refused
        if all(ref.kind == "object" for ref in operands):
            return self.number(function(*(ref.value for ref in operands)))
        key = (op or function, *((ref.kind, type(ref.value), ref.value) for ref in operands))
        if key not in self.known:
            self.known[key] = Ref("step", len(self.steps))
            self.steps.append(Step(op.forward if op else function, op, tuple(operands)))
        return self.known[key]
