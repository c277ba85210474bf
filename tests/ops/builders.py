"""Makers of samples of elementwise ops: operands by layout and dtype."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tapegrad as tg

from .layouts import (
    EMPTY,
    INTEGER,
    MIXED,
    SCALAR,
    SIZE1,
    Absent,
    Case,
    converted,
    drawn,
    integers,
    leaf,
    one_operand,
    repeated,
    spread,
    typed,
)

Builder = Callable[..., list[Case] | Absent]
SHAPES = {SCALAR: (), EMPTY: (0, 3)}
SIZE1_SHAPES = ((2, 1), (1, 3), (3,))


def unary(function: Any, smooth: Any = None) -> Builder:
    """Samples of a function of one operand."""

    def build(op, layout, dtype, random):
        assert op.arity == 1
        if layout == MIXED:
            return one_operand(op)
        shape = SHAPES.get(layout, (2, 3))
        if layout == INTEGER:
            narrow = op.domain.of(0)[1] <= 1
            x = tg.tensor(integers(random, shape, dtype, *((0, 1) if narrow else ())))
            return [Case((x,), function, function, smooth or function)]
        array = drawn(random, shape, op.domain.of(0), dtype)
        x = repeated(array) if layout == SIZE1 else leaf(array, layout)
        return [Case((x,), function, function, smooth or function)]

    return build


def binary(function: Any, smooth: Any = None) -> Builder:
    """Samples of a function of two operands, which have no values in common."""

    def build(op, layout, dtype, random):
        assert op.arity == 2
        shape = SHAPES.get(layout, (2, 3))
        shapes = SIZE1_SHAPES[:2] if layout == SIZE1 else (shape, shape)
        lengths = [int(np.prod(s)) for s in shapes]
        if op.domain.of(0) == op.domain.of(1):
            both = typed(random, spread(random, sum(lengths), op.domain.of(0)), dtype)
            a, b = both[: lengths[0]].reshape(shapes[0]), both[lengths[0] :].reshape(shapes[1])
        else:
            a, b = (drawn(random, s, op.domain.of(k), dtype) for k, s in enumerate(shapes))
        f, g = function, smooth or function
        if layout == MIXED:
            return [Case((leaf(a), leaf(converted(b, dtype))), f, f, g)]
        if layout == INTEGER:
            number = integers(random, shape, dtype) * 3  # beyond all of the other operand: no ties
            return [
                Case((leaf(a), number), f, f, g),
                Case((tg.tensor(number), leaf(b)), f, f, g),
                Case((leaf(a), 3), f, f, g),
                Case((3, leaf(b)), f, f, g),
            ]
        found = [Case((leaf(a, layout), leaf(b, layout)), f, f, g)]
        if layout == SIZE1:  # besides stretched extents: with an axis in front, and with one that is not
            more = np.stack([b, b * b.dtype.type(1.0625)])
            found += [Case((leaf(part), leaf(more)), f, f, g) for part in (a, a[:1])]
        return found

    return build


def three(layout: str, dtype: str, arrays: Any, numbers: Any, case: Any) -> list[Case]:
    """Samples of three operands: as arrays, or each in turn with integers in its place."""
    if layout == INTEGER:
        made = [leaf(x) for x in arrays]
        return [case(*made[:k], whole, *made[k + 1 :]) for k, whole in numbers.items()]
    if layout == MIXED:
        first, second, third = arrays
        return [case(leaf(first), leaf(converted(second, dtype)), leaf(third))]
    return [case(*(leaf(x, layout) for x in arrays))]


def complex_choice(sign: int) -> Any:
    return lambda a, b: np.where(sign * np.real(a) > sign * np.real(b), a, b)
