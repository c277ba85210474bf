"""Power series of elementwise ops as lists of instructions, found from the text of derivative rules.

If ``y = f(x)``, the derivative by t is ``y' = p x'`` with the partial p that the rule tells: an expression of
x, y and numbers. Sums, products, quotients and choices in it have coefficients by those of their operands.
Any other function in it is one more series, whose derivative its own rule tells; equal ones are one, so that
soon nothing is new: of the sine there are two, the sine and the cosine. `kernels.replay.series` follows the
list power by power.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tapegrad.kernels import abi
from tapegrad.kernels.replay import series_layout as layout
from tapegrad.ops.primitive import MEANING, OUT, Elementwise
from tapegrad.ops.rules import Reader, Unreadable

ADD, SUBTRACT, MULTIPLY, DIVIDE, NEGATIVE, SQUARE, POWER, WHERE = (
    MEANING[f]
    for f in (np.add, np.subtract, np.multiply, np.divide, np.negative, np.square, np.power, np.where)
)
COMPARISONS = {
    np.greater: layout.GREATER, np.less: layout.LESS, np.greater_equal: layout.AT_LEAST,
    np.less_equal: layout.AT_MOST, np.equal: layout.EQUAL, np.not_equal: layout.DIFFERENT,
}  # fmt: skip
VALUES = {
    ADD: layout.ADD_UP, SUBTRACT: layout.TAKE_OFF, MULTIPLY: layout.TIMES, DIVIDE: layout.DIVIDED,
    NEGATIVE: layout.MINUS, WHERE: layout.CHOICE,
}  # fmt: skip
FLAT = (np.sign, np.rint, np.floor, np.ceil, np.trunc)  # whose derivative is 0


class Node(NamedTuple):
    """A series among the nodes of a list: its number, and whether it has more than a first coefficient."""

    number: int
    varies: bool


def words_of(op: Elementwise, moving: tuple[bool, ...]) -> list[int] | None:
    """Return the words of an op's series for operands of which some move, as `series_layout` has them.

    Operands are the first nodes, then comes the result, whose first coefficient is known. None where there is
    no such list.
    """
    builder = _Builder(op, moving)
    try:
        builder.find_result()
    except Unreadable:
        return None
    own, lists = builder.own_value(), (builder.values, builder.coefficients)
    words = [builder.count, *map(len, lists), len(own)]
    for instruction in (*own, *lists[0], *lists[1]):
        words += [*instruction, *[0] * (layout.INSTRUCTION - len(instruction))]
    return words


class _Builder(Reader):
    """Instructions for first coefficients and for the others, each after what it needs."""

    def __init__(self, op: Elementwise, moving: tuple[bool, ...]) -> None:
        self.op, self.count = op, len(moving) + 1
        self.operands = [Node(q, varies) for q, varies in enumerate(moving)]
        self.values: list[list[int]] = []
        self.coefficients: list[list[int]] = []
        self.known: dict[Any, Node] = {}

    def find_result(self) -> None:
        """Add the instructions for the later coefficients of the result."""
        out = Node(len(self.operands), True)
        if self.op is POWER:
            if self.operands[1].varies:
                raise Unreadable
            self.coefficients.append([layout.POWER_OF, *self.numbers(out, self.operands)])
        elif self.op in VALUES or self.op is SQUARE:
            self.combine(self.op, self.operands, out)
        else:
            self.known[(self.op, *self.operands)] = out
            if self.op.kink:  # an even power of 0 is smooth, which no product of derivatives tells
                self.values.append([layout.LENGTH, out.number])
            self.integrate(self.op, self.operands, out)

    def own_value(self) -> list[list[int]]:
        """The instruction for the value of the result, if there is one."""
        out = Node(len(self.operands), True)
        op, operands = (MULTIPLY, self.operands * 2) if self.op is SQUARE else (self.op, self.operands)
        if op in VALUES:
            return [[VALUES[op], *self.numbers(out, operands)]]
        before, self.values = self.values, []
        try:
            self.call_loop(op, operands, out)
            return self.values
        except Unreadable:
            return []
        finally:
            self.values = before

    def numbers(self, out: Node, operands: list[Node]) -> list[int]:
        """The words for the nodes of an instruction."""
        return [out.number, *(x.number for x in operands), *[0] * (3 - len(operands))]

    def new(self, varies: bool) -> Node:
        if self.count == layout.NODES:
            raise Unreadable
        self.count += 1
        return Node(self.count - 1, varies)

    def number(self, value: Any) -> Node:
        """The node of a number."""
        key = ("number", repr(float(value)))
        if key not in self.known:
            found = self.known[key] = self.new(False)
            bits = int(np.float64(value).view(np.int64))
            self.values.append([layout.FILL, found.number, 0, 0, 0, 0, bits])
        return self.known[key]

    def apply(self, function: Any, operands: list[Node]) -> Node:
        """The node of what a function makes of others; a comparison has a value alone."""
        if function in COMPARISONS:
            return self.compare(COMPARISONS[function], operands)
        op = function if function in FLAT else MEANING.get(function)
        key = (op, *operands)
        if key not in self.known:
            varies = any(x.varies for x in operands) and op not in FLAT
            if op in VALUES or op is SQUARE:
                operands = operands * 2 if op is SQUARE else operands
                op = MULTIPLY if op is SQUARE else op
                out = self.new(varies)
                self.values.append([VALUES[op], *self.numbers(out, operands)])
                if varies:
                    self.combine(op, operands, out)
            else:
                out = self.known[key] = self.new(varies)
                self.call_loop(op, operands, out)
                if varies:
                    self.integrate(op, operands, out)
            self.known[key] = out
        return self.known[key]

    def compare(self, code: int, operands: list[Node]) -> Node:
        key = (code, *operands)
        if key not in self.known:
            self.known[key] = self.new(False)
            self.values.append([code, *self.numbers(self.known[key], operands)])
        return self.known[key]

    def call_loop(self, op: Any, operands: list[Node], out: Node) -> None:
        """Add the instruction for values of a ufunc."""
        ufunc = (
            op if op in FLAT else op.functions[0] if isinstance(op, Elementwise) and op.functions else None
        )
        if not isinstance(ufunc, np.ufunc) or len(operands) > 2 or ufunc.nin != len(operands):
            raise Unreadable
        loop, data = abi.inner_loop(ufunc, "d")
        if not loop:
            raise Unreadable
        self.values.append([layout.BY_LOOP, *self.numbers(out, operands), len(operands), loop, data])

    def combine(self, op: Any, operands: list[Node], out: Node) -> None:
        """Add the instruction for a sum, a product, a quotient or a choice."""
        operands = operands * 2 if op is SQUARE else operands
        a, b = (operands * 2)[:2]
        how = 0
        if op is WHERE:
            if a.varies:
                raise Unreadable
            code, how = layout.CHOSEN, b.varies | operands[2].varies << 1
        elif op is NEGATIVE:
            code = layout.OPPOSITE
        elif op in (ADD, SUBTRACT):
            code = layout.SUM_OF if op is ADD else layout.DIFFERENCE
            if not b.varies:
                code = layout.SAME
            elif not a.varies:
                code, operands = layout.SAME if op is ADD else layout.OPPOSITE, [b]
        elif op is DIVIDE:
            code, how = layout.QUOTIENT if b.varies else layout.OVER, int(a.varies)
        elif a.varies and b.varies:
            code = layout.PRODUCT_OF
        else:
            code, operands = layout.SCALED, [a, b] if a.varies else [b, a]
        self.coefficients.append([code, *self.numbers(out, operands), how])

    def integrate(self, op: Any, operands: list[Node], out: Node) -> None:
        """Add the instructions for what a rule tells the derivative of."""
        if not isinstance(op, Elementwise) or op.explicit or op.arity != len(operands) or op is POWER:
            raise Unreadable
        if op.arity > OUT or any(operands[slot].varies for slot in op.unknown):
            raise Unreadable
        slots = {name: out if slot == OUT else operands[slot] for name, slot in op.slots.items()}
        places: list[list[int]] = []
        for k, x in enumerate(operands):
            if x.varies and not op.partial(k).zero:
                places.append([layout.SLOPE, out.number, x.number, 0, 0, layout.FIRST_TERM * (not places)])
                self.coefficients.append(places[-1])
        if not places:
            raise Unreadable
        moving = [k for k, x in enumerate(operands) if x.varies and not op.partial(k).zero]
        for k, instruction in zip(moving, places, strict=True):
            partial: Node = self.read(op.partial(k), slots)
            instruction[layout.WITH_NODE] = partial.number
            instruction[layout.HOW] |= 0 if partial.varies else layout.BY_CONSTANT
