"""Derivative rules as programs: the ops that a rule records, by what they take, read off its text."""

from __future__ import annotations

import ast
import operator
from typing import Any, NamedTuple

import numpy as np

from tapegrad.ops.primitive import MEANING, OUT, Attributes, Elementwise, Primitive
from tapegrad.ops.rules import Partial, Rule

OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg, ast.Eq: np.equal, ast.NotEq: np.not_equal, ast.Lt: np.less,
    ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal,
}  # fmt: skip
MAX_OPERANDS = 3  # of a step, and of an op whose rule is a program


class Ref(NamedTuple):
    """What a step takes: ``("ct", 0)``, ``("input", k)``, ``("out", 0)``, ``("step", i)`` or an "object"."""

    kind: str
    value: Any


class Step(NamedTuple):
    """A function, the op that it means (None for one without a derivative), and what it takes.

    Where the op has attributes the function is called without.
    """

    function: Any
    op: Primitive | None
    operands: tuple[Ref, ...]
    attrs: Attributes | None = None


class Program(NamedTuple):
    """The steps of a rule for some of its operands, and where what each of them gets stands.

    Equal subexpressions are one step; a partial of 1 passes the cotangent on, one of 0 has no result.

    Attributes
    ----------
    steps, results
        The steps; by the slot of an operand what it gets.
    constants
        Slots of the operands that have to be constants.
    """

    steps: tuple[Step, ...]
    results: dict[int, Ref]
    constants: tuple[int, ...]


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
    if op.kink or op.arity > MAX_OPERANDS:
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
    except NoProgram:
        return None
    return Program(tuple(builder.steps), results, constants)


class _Builder:
    def __init__(self, op: Elementwise, rule: Rule) -> None:
        self.op, self.rule = op, rule
        self.steps: list[Step] = []
        self.known: dict[Any, Ref] = {}

    def cotangent(self, k: int) -> Ref | None:
        """What operand k gets: the partial times the cotangent."""
        op, ct = self.op, Ref("ct", 0)
        partial = self.rule.partials[k]
        if partial.zero:
            return None
        if partial.constant is not None and not op.explicit:
            if partial.constant == 1:
                return ct
            if partial.constant == -1:
                return self.step(operator.neg, ct)
            return self.step(operator.mul, ct, Ref("object", partial.constant))
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
            return Ref("object", node.value)
        if isinstance(node, ast.Name) and node.id in scope:
            found: Ref = scope[node.id]
            return found
        if isinstance(node, ast.Attribute) and isinstance(number := _of_numpy(node), float):
            return Ref("object", number)
        if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
            return self.step(OPERATORS[type(node.op)], self.expression(node.operand, scope))
        if isinstance(node, ast.BinOp):
            return self.binary(node, scope)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            both = [self.expression(side, scope) for side in (node.left, *node.comparators)]
            return self.step(OPERATORS[type(node.ops[0])], *both)
        if isinstance(node, ast.Call) and not node.keywords and callable(function := _of_numpy(node.func)):
            return self.step(function, *(self.expression(argument, scope) for argument in node.args))
        raise NoProgram

    def binary(self, node: ast.BinOp, scope: dict[str, Any]) -> Ref:
        left, right = self.expression(node.left, scope), self.expression(node.right, scope)
        if isinstance(node.op, ast.Pow):
            if right == Ref("object", 2):
                return self.step(np.square, left)
            return self.step(np.power, left, right)
        if type(node.op) not in OPERATORS:
            raise NoProgram
        return self.step(OPERATORS[type(node.op)], left, right)

    def step(self, function: Any, *operands: Ref) -> Ref:
        """A step, or what it gives where that is known."""
        op = MEANING.get(function)
        if len(operands) > MAX_OPERANDS or not (op is None or isinstance(op, Elementwise)):
            raise NoProgram
        if all(ref.kind == "object" for ref in operands):
            return Ref("object", function(*(ref.value for ref in operands)))
        key = (op or function, *((ref.kind, type(ref.value), ref.value) for ref in operands))
        if key not in self.known:
            self.known[key] = Ref("step", len(self.steps))
            self.steps.append(Step(op.forward if op else function, op, operands))
        return self.known[key]


def _of_numpy(node: ast.expr) -> Any:
    """What ``np.name`` in a rule is; None for any other expression."""
    named = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np"
    return getattr(np, node.attr) if named else None  # type: ignore[attr-defined]
