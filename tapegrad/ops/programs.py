"""Derivative rules as programs: the ops that a rule records, by what they take, read off its text."""

from __future__ import annotations

import ast
import operator
from typing import Any, NamedTuple

import numpy as np

from tapegrad.ops.primitive import MEANING, OUT, Elementwise
from tapegrad.ops.rules import Partial

OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg,
}  # fmt: skip


class Ref(NamedTuple):
    """What a step takes: ``("ct", 0)``, ``("input", k)``, ``("out", 0)``, ``("step", i)`` or a number."""

    kind: str
    value: Any


class Step(NamedTuple):
    """An op, and what it takes."""

    op: Elementwise
    operands: tuple[Ref, ...]


class Program(NamedTuple):
    """The steps of a rule for some of its operands, and where what each of them gets stands.

    Equal subexpressions are one step; a partial of 1 passes the cotangent on, one of 0 has no result.
    """

    steps: tuple[Step, ...]
    results: dict[int, Ref]


class NoProgram(Exception):
    """A rule does more than apply elementwise ops to what it reads."""


def program_of(op: Elementwise, wanted: tuple[int, ...]) -> Program | None:
    """Return the program of an op's rule for real numbers; None if only Python can run it.

    Parameters
    ----------
    op
        An elementwise op.
    wanted
        Slots of the operands whose cotangents are asked for, ascending.
    """
    builder = _Builder(op)
    try:
        results = {k: found for k in wanted if (found := builder.cotangent(k)) is not None}
    except NoProgram:
        return None
    return Program(tuple(builder.steps), results)


class _Builder:
    def __init__(self, op: Elementwise) -> None:
        self.op = op
        self.steps: list[Step] = []
        self.known: dict[Any, Ref] = {}

    def cotangent(self, k: int) -> Ref | None:
        """What operand k gets: the partial times the cotangent."""
        op, ct = self.op, Ref("ct", 0)
        partial = op.partial(k)
        if op.kink or (op.mixed is not None):
            raise NoProgram
        if partial.zero:
            return None
        if partial.constant is not None and not op.explicit:
            if partial.constant == 1:
                return ct
            if partial.constant == -1:
                return self.step(operator.neg, ct)
            return self.step(operator.mul, ct, Ref("number", partial.constant))
        factor = self.partial(partial)
        return factor if op.explicit else self.step(operator.mul, ct, factor)

    def partial(self, partial: Partial) -> Ref:
        scope: dict[str, Any] = {
            name: Ref("out", 0) if slot == OUT else Ref("input", slot) for name, slot in self.op.slots.items()
        }
        scope["ct"] = Ref("ct", 0)
        for statement in partial.statements:
            (target,) = statement.targets
            if not isinstance(target, ast.Name):
                raise NoProgram
            scope[target.id] = self.expression(statement.value, scope)
        return self.expression(partial.expression, scope)

    def expression(self, node: ast.expr, scope: dict[str, Any]) -> Ref:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return Ref("number", node.value)
        if isinstance(node, ast.Name) and node.id in scope:
            found: Ref = scope[node.id]
            return found
        if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
            return self.step(OPERATORS[type(node.op)], self.expression(node.operand, scope))
        if isinstance(node, ast.BinOp):
            return self.binary(node, scope)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.keywords:
            module = node.func.value
            if isinstance(module, ast.Name) and module.id == "np":
                operands = [self.expression(argument, scope) for argument in node.args]
                return self.step(getattr(np, node.func.attr), *operands)
        raise NoProgram

    def binary(self, node: ast.BinOp, scope: dict[str, Any]) -> Ref:
        left, right = self.expression(node.left, scope), self.expression(node.right, scope)
        if isinstance(node.op, ast.Pow):
            if right == Ref("number", 2):
                return self.step(np.square, left)
            return self.step(np.power, left, right)
        if type(node.op) not in OPERATORS:
            raise NoProgram
        return self.step(OPERATORS[type(node.op)], left, right)

    def step(self, function: Any, *operands: Ref) -> Ref:
        """A step, or what it gives where that is known."""
        op = MEANING.get(function)
        if not isinstance(op, Elementwise) or op.arity != len(operands) or op.arity > 2:
            raise NoProgram
        if all(ref.kind == "number" for ref in operands):
            return Ref("number", function(*(ref.value for ref in operands)))
        key = (op, *((ref.kind, type(ref.value), ref.value) for ref in operands))
        if key not in self.known:
            self.known[key] = Ref("step", len(self.steps))
            self.steps.append(Step(op, operands))
        return self.known[key]
