"""Cotangents of elementwise operations without attributes, of which most are as one before."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.compilation.events.events import ARGUMENT, OPERAND_KINDS, RESULT, Source
from tapegrad.compilation.programs.cotangents import Cotangents
from tapegrad.compilation.programs.program import Program
from tapegrad.compilation.programs.row_forms import Forms
from tapegrad.compilation.rows.rows import Kernel, is_dense
from tapegrad.kernels import abi, table
from tapegrad.kernels.words import Address
from tapegrad.ops.primitive import OUT, Elementwise

NO_PART: Any = object()  # what an operand without a derivative gets
UNTRIED: Any = object()


@functools.cache
def partial_kernel(op: Elementwise, q: int, char: str) -> Kernel:
    """Return the kernel of a partial, which gives its product with the cotangent."""
    by_slot = {slot: name for name, slot in op.slots.items()}
    partial = op.partial(q)
    names = ["ct", *(by_slot[slot] for slot in op.operands(q))]
    number = table.slot(partial.statements, partial.expression, names, not op.explicit, op._complex_text(q))
    address = table.kernel(number, abi.CODES[char])
    return Kernel(partial, op.rule.recorded[q], tuple(names), not op.explicit, address)


@functools.cache
def part_of(op: Elementwise, q: int, char: str) -> Any:
    """What gives the part of a cotangent by an operand: a kernel, a factor, NO_PART; None if nothing does."""
    partial = op.partial(q)
    if partial.zero:
        return NO_PART
    if partial.constant is not None:
        return partial.constant if not op.explicit else partial_kernel(op, q, char)
    kernel = partial_kernel(op, q, char)
    return None if kernel.address < 2 else kernel


@functools.cache
def slots_of(op: Elementwise, q: int) -> tuple[int, ...]:
    """What the partial by an operand reads, by places."""
    return tuple(op.operands(q))


class Part(NamedTuple):
    """What an operand of an operation gets: the cotangent, a multiple, or what a kernel gives of it.

    A kernel reads besides what has places there, the result the one behind the operands.
    """

    operand: int
    by: Any
    reads: tuple[int, ...]


class Recipe(NamedTuple):
    """What operations do in reverse that are alike: shape, dtype and size of all that has a part in it."""

    shape: tuple[int, ...]
    dtype: np.dtype
    size: int
    parts: list[Part]


class ElementwiseCotangents(Cotangents):
    """Of operations whose operands look as the result does the rows are known by the first ones of a form."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._recipes: dict[tuple[int, ...], Recipe | None] = {}
        self._forms = Forms(self.rows)

    def _reverse_alike(self, j: int, ct: np.ndarray) -> bool:
        """Whether an operation has nothing that others had not, and its operands have got their parts."""
        events, places, active = self.program.events, self.places, self.program.active
        if events.attrs[j]:
            return False
        op, key = events.ops[j], [places.seen[RESULT][j]]
        operands, at = [], []
        for place in events.places(j):
            kind, number = place % OPERAND_KINDS, place // OPERAND_KINDS
            depends = kind == ARGUMENT or (kind == RESULT and active[number] != 0)
            key.append(2 * places.seen[kind][number] + depends)
            at.append(places.at[kind][number])
            operands.append((kind, number))
        key.append(id(op))
        recipe = self._recipes.get(tuple(key), UNTRIED)
        if recipe is UNTRIED:
            recipe = self._recipes[tuple(key)] = self._recipe(op, j, operands, [k & 1 for k in key[1:-1]])
        if recipe is None or ct.shape != recipe.shape or ct.dtype != recipe.dtype or not is_dense(ct):
            return False
        operands.append((RESULT, j))
        at.append(places.at[RESULT][j])
        is_light = key[0] < 0 and ct.base is None
        for part in recipe.parts:
            self._give_part(recipe, part, ct, operands, at, is_light)
        return True

    def _recipe(
        self, op: Any, j: int, operands: Sequence[tuple[int, int]], depend: Sequence[int]
    ) -> Recipe | None:
        """What an operation does in reverse; None where that is not but such parts."""
        shape, strides, dtype = look = self.places.look(RESULT, j)
        char = dtype.char
        if not isinstance(op, Elementwise) or char not in "df" or op.arity > OUT:
            return None
        found, plain = [], np.empty(shape, dtype)
        if plain.strides != strides:
            return None
        for q in range(len(operands)):
            if not depend[q]:
                continue
            by, reads = part_of(op, q, char), tuple[int, ...]()
            if by is NO_PART:
                continue
            if isinstance(by, Kernel):
                reads = tuple(len(operands) if slot == OUT else slot for slot in slots_of(op, q))
            elif by is None or (by != 1 and not shape):
                return None
            every = [operands[k] for k in {q, *reads} if k < len(operands)]
            if any(not self.places.seen[kind][k] or self.places.look(kind, k) != look for kind, k in every):
                return None
            found.append(Part(q, by, reads))
        return Recipe(shape, dtype, plain.size, found)

    def _give_part(
        self, recipe: Recipe, part: Part, ct: np.ndarray, operands: list[tuple[int, int]], at: list[Address],
        is_light: bool,
    ) -> None:  # fmt: skip
        """Add rows for a part; where they are `is_light`, steps need not keep the arrays, as others do."""
        source, by = Source._make(operands[part.operand]), part.by
        if not isinstance(by, Kernel) and by == 1:
            self._give(source, ct)
            return
        shape, dtype, size, _ = recipe
        before = self.found.get(source) is not None and bool(shape)
        out: Any = self._block(dtype, size) if before else self._room(shape, dtype)
        array = out.array if before else out
        arrays = self.places.arrays
        key = id(recipe), part.operand, before
        if isinstance(by, Kernel):
            words = [abi.address(array), abi.address(ct), *[at[q] for q in part.reads]]
            if not self._again(key, words, is_light, [ct], [operands[q] for q in part.reads], out):
                reads = [arrays[kind][k] for kind, k in (operands[q] for q in part.reads)]
                self.rows.kernel(by, out, [ct, *reads], size)
                self._forms.learn(key, words)
        else:
            number = self.rows.number(by, dtype)
            words = [abi.address(ct), abi.address(number), abi.address(array)]
            if not self._again(key, words, is_light, [ct, number], (), out):
                self._combined(np.multiply, ct, number, out)
                self._forms.learn(key, words)
        if not before:
            self._give(source, out)
            return
        target, _ = self._target(source)
        words = [abi.address(target), abi.address(array), abi.address(target)]
        is_light = is_light and target.base is None
        if not self._again((shape, dtype), words, is_light, [target, out], (), target):
            self.rows.loop(np.add, [target, out], target)
            self._forms.learn((shape, dtype), words)

    def _again(
        self, key: tuple[Any, ...], words: list[Address], is_light: bool, given: list[Any],
        read: Sequence[tuple[int, int]], out: Any,
    ) -> bool:  # fmt: skip
        """Whether there is a row for this already, and now one for these arrays and operands too."""
        if key not in self._forms:
            return False
        places = self.places
        more = [places.arrays[kind][k] for kind, k in read if places.seen[kind][k] > 0]
        kept = more or not is_light
        self._forms.again(key, words, (*given, *more) if kept else (), (out,) if kept else ())
        return True
