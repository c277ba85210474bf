"""The rows of a program in reverse: cotangents, in the order of a sweep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from tapegrad.compilation import background
from tapegrad.compilation.events.events import (
    ARGUMENT,
    RESULT,
    Event,
    Events,
    Source,
    activity,
    is_active,
    is_without_errors,
)
from tapegrad.compilation.events.varying import REARRANGE, varying_of
from tapegrad.compilation.memory.pages import is_long
from tapegrad.compilation.programs.elementwise import NO_PART, ElementwiseCotangents, part_of, slots_of
from tapegrad.compilation.programs.program import Program, view_of
from tapegrad.compilation.programs.rules import Applied, Known, steps_of
from tapegrad.compilation.rows.computing import (
    ASSIGN,
    CONCATENATE,
    EXACTLY,
    MATMUL,
    MEAN,
    RESHAPE,
    STACK,
    SUM,
    convert,
    number_of,
    scatter_varying,
)
from tapegrad.compilation.rows.releases import forget_steps
from tapegrad.compilation.rows.rows import Kernel, is_dense
from tapegrad.compilation.rows.table import Block
from tapegrad.kernels import abi, table
from tapegrad.ops.primitive import OUT, Elementwise, Reduction, kept
from tapegrad.ops.rules import Partial
from tapegrad.ops.writes import window_of

FEW = 32  # elements of a row whose sums over rows are a product with ones


def _is_plain_product(operands: list[np.ndarray], out: np.ndarray) -> bool:
    """Whether a product of matrices is one of vectors, matrices, or stacks of as many matrices."""
    a, b = operands
    if a.dtype != out.dtype or b.dtype != out.dtype or out.dtype.kind != "f":
        return False
    plain = bool(0 < a.ndim < 3 and 0 < b.ndim < 3)
    return plain or bool(a.ndim == b.ndim and a.shape[:-2] == b.shape[:-2])


def _is_plain_array(x: np.ndarray, out: np.ndarray) -> bool:
    """Whether an array has another's dtype, and its elements lie in C order."""
    return bool(x.flags.c_contiguous and x.dtype == out.dtype)


def kernel_of(partial: Partial, names: Sequence[str], cotangent: bool, char: str) -> Kernel:
    """Return the kernel of another text of real numbers."""
    number = table.slot(partial.statements, partial.expression, names, cotangent)
    return Kernel(partial, partial, tuple(names), cotangent, table.kernel(number, abi.CODES[char]))


def read_in_reverse(events: Events, roots: Iterable[Source]) -> set[int]:
    """Events whose values are read where these results have cotangents."""
    active, read = activity(events), set()
    reached = {source.value for source in roots if source.kind == RESULT}
    for j in range(len(events) - 1, -1, -1):
        operands, masks = events[j].operands, getattr(events[j].op, "masks", ())
        for q, source in enumerate(operands):
            if j not in reached or not is_active(source, active):
                continue
            if source.kind == RESULT:
                reached.add(source.value)
            mask = masks[min(q, 2)]
            if mask >> OUT & 1:
                read.add(j)
            read |= {x.value for k, x in enumerate(operands) if x.kind == RESULT and mask >> min(k, 2) & 1}
    return read


class Reverse(ElementwiseCotangents):
    """Rows that compute the gradient by arguments, once the values are there, of results with cotangents.

    Attributes
    ----------
    gradients
        A buffer for each argument; None where the result does not depend on it. One without axes stands for
        an array that is the same everywhere.
    by_python
        Names of ops whose rules Python runs.
    """

    def __init__(
        self, program: Program, cotangents: Sequence[tuple[Source, np.ndarray]], are_constant: bool = False
    ) -> None:
        super().__init__(program)
        self.constants += [root for _, root in cotangents if are_constant]
        self.by_python: list[str] = []
        self._known: Known = {}
        for source, root in cotangents:
            self._give(source, root)
        no_plan = is_long(len(program.events))
        for j in range(len(program.events) - 1, -1, -1):
            ct = self.found.pop(Source(RESULT, j), None)
            if ct is None:
                continue
            background.pause()
            if not self._reverse_alike(j, ct):
                self._reverse(j, ct)
            self._let_go(ct)
            forget_steps(self.rows, pools=self.pools.values())
            if no_plan or self.rows.grouped_count:  # in a plan they would make steps wait
                self._reuse_blocks()
        self.gradients = [self.found.get(Source(ARGUMENT, k)) for k in range(len(program.arguments))]
        forget_steps(self.rows, True, self.pools.values())
        self._clear_no_more()
        self.rows.seal()
        del self.places  # which take a part of what a long program does

    def _reverse(self, j: int, ct: np.ndarray) -> None:
        event = self.program.events[j]
        wanted = [q for q, x in enumerate(event.operands) if is_active(x, self.program.active)]
        if not wanted:
            return
        operands, out = self.program.live(j), self.program.values[j]
        if not event.attrs and self._elementwise(event, ct, operands, out, wanted):
            return
        varying = varying_of(event.attrs)
        if varying is not None:
            part = self._like(event.operands[0])
            scatter_varying(self.rows, self._whole(Source(RESULT, j), ct), varying, part)
            self._give(event.operands[0], part)
        elif self.program.views[j] and event.op is not REARRANGE:  # whose windows share elements
            self._view(event, Source(RESULT, j), ct, operands[0])
        elif event.op in (SUM, MEAN):
            self._sum(event, ct, operands[0])
        elif self._is_reduced(event, operands[0], out):
            reduction = self._reduction if out.size == 1 else self._along_axes
            reduction(event, ct, operands[0], out)
        elif event.op is MATMUL and _is_plain_product(operands, out):
            self._product(event, ct, operands, wanted)
        elif event.op is RESHAPE and ct.flags.c_contiguous and ct.shape in ((), out.shape):
            self._give(event.operands[0], ct.reshape(operands[0].shape) if ct.ndim else ct)
        elif event.op is ASSIGN and all(_is_plain_array(x, out) for x in (ct, out, *operands)):
            self._assignment(event, Source(RESULT, j), ct, wanted)
        elif event.op in (CONCATENATE, STACK) and all(np.asarray(x).dtype == out.dtype for x in operands):
            self._parts(event, self._whole(Source(RESULT, j), ct), operands, wanted)
        else:
            self._rule(event, self._whole(Source(RESULT, j), ct), operands, out, wanted)

    def _rule(
        self, event: Event, ct: np.ndarray, operands: list[np.ndarray], out: np.ndarray, wanted: list[int]
    ) -> None:
        """The op's rule: its steps by rows, else all of it by Python."""
        if self._by_steps(event, ct, operands, out, wanted):
            return
        targets = {q: self._target(event.operands[q]) for q in wanted}

        def run() -> None:
            given = [number_of(x) if isinstance(x, np.ndarray) else x for x in operands]
            found = event.op.vjp(number_of(ct), number_of(out), given, event.attrs, wanted)
            for q, (target, first) in targets.items():
                part = np.asarray(0.0 if found.get(q) is None else found[q])
                if target.dtype.kind != "c":
                    part = part.real
                if first:
                    target[...] = part
                else:
                    target += part

        self.by_python.append(event.op.name)
        added_to = [target for target, first in targets.values() if not first]
        self.rows.python(run, [ct, out, *operands, *added_to], [target for target, _ in targets.values()])

    def _assignment(self, event: Event, mine: Source, ct: np.ndarray, wanted: list[int]) -> None:
        """A part was written to a window of the whole, of which what was there before has no part."""
        window, (part, whole), ct = event.attrs["window"], event.operands, self._whole(mine, ct)
        if 0 in wanted:
            target, first = self._target(part)
            seen = window_of(ct, window)
            self.rows.call(*((np.positive, [seen, target]) if first else (np.add, [target, seen, target])))
        if 1 in wanted:
            kept = ct
            if not self._may_be_added_to(ct, mine):
                kept = self._like(whole)
                self._positive(ct, kept)
            self.rows.call(window_of(kept, window).fill, [0.0])
            self._give(whole, kept)

    def _by_steps(
        self, event: Event, ct: np.ndarray, operands: list[np.ndarray], out: np.ndarray, wanted: list[int]
    ) -> bool:
        """Whether the steps of a rule are the same for all values, and are rows now.

        Where Python has to compute several of them, it computes all, as the rule may have a kernel for that.
        """
        steps = steps_of(event.op, ct, out, operands, event.attrs, wanted, self._known)
        if steps is None or sum(x.op is not None and not is_without_errors(x.op) for x in steps.steps) > 1:
            return False
        applied, before = Applied(self.rows, self._room), len(self.rows.functions)
        for q, part in applied.run(steps, ct, out, operands).items():
            self._give(event.operands[q], part)
        for x in applied.buffers:
            if not any(x is y for y in self.free):
                self._drop(x)
        if len(self.rows.functions) > before:
            self.by_python.append(event.op.name)
        return True

    def _view(self, event: Event, mine: Source, ct: np.ndarray, operand: np.ndarray) -> None:
        source = event.operands[0]
        target, first = self._target(source)
        window = view_of(event.op, event.attrs, target)
        if window is None:  # of an array in Fortran's order
            self._rule(event, self._whole(mine, ct), [operand], self.program.at_hand(mine), [0])
            return
        if first and window.size == target.size:
            self.rows.call(np.positive, [ct, window])
            return
        if first and self._is_spread(ct, window, target):
            return
        if first:
            self.rows.call(target.fill, [0.0], target)
        if window.ndim or not self.rows.loop(np.add, [window, ct], window):
            self.rows.call(np.add, [window, ct, window])

    def _is_spread(self, ct: np.ndarray, window: np.ndarray, target: np.ndarray) -> bool:
        """Whether a window without gaps has got its cotangent, and what lies around it zeros, by loops."""
        if not (is_dense(window) and is_dense(target)):
            return False
        zero, begin = (
            self.rows.number(0, target.dtype),
            (abi.address(window) - abi.address(target)) // target.itemsize,
        )
        if not self.rows.loop(np.add, [zero, ct], window, window.size):
            return False
        around = target.reshape(-1)
        for part in (around[:begin], around[begin + window.size :]):
            if part.size:
                self.rows.loop(np.positive, [zero], part, part.size)
        return True

    def _sum(self, event: Event, ct: np.ndarray, operand: np.ndarray) -> None:
        axis, source = event.attrs.get("axis"), event.operands[0]
        axes = tuple(range(operand.ndim)) if axis is None else normalize_axis_tuple(axis, operand.ndim)
        shape = kept(operand.shape, axes)
        if event.op is MEAN:
            count = np.array(max(1, int(np.prod([operand.shape[a] for a in axes]))), ct.dtype)
            ct = self._combined(np.divide, ct, count, np.zeros_like(ct))
        if ct.ndim == 0 or ct.size == 1:
            self._give(source, ct.reshape(()))
        else:
            self._give(source, np.broadcast_to(ct.reshape(shape), operand.shape))

    def _is_reduced(self, event: Event, operand: np.ndarray, out: np.ndarray) -> bool:
        """Whether an event is a reduction of a dense array, which kernels differentiate."""
        if not isinstance(event.op, Reduction) or operand.dtype != out.dtype or out.dtype.char not in "df":
            return False
        partial = event.op.partial
        if partial.constant is not None or "n" in partial.arguments:
            return False
        return operand.size > 0 and is_dense(operand)

    def _reduction(self, event: Event, ct: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
        """By the kernel of the partial, which reads the operand, the result and a sum over the operand."""
        op, char, n = event.op, out.dtype.char, x.size
        assert isinstance(op, Reduction)
        values = {"x": x, "out": self._repeated(out, n)}
        if op.total is not None:
            total, block = self._total(char), self._block(out.dtype, n)
            summand = kernel_of(op.total.partials[0], ["x", "out"], False, char)
            self.rows.kernel(summand, block, [values["x"], values["out"]], n)
            self.rows.loop(np.add, [total, block], total, n)
            values["total"] = self._repeated(total, n, True)
        order = [name for name in ("x", "out", "total") if name in op.partial.arguments]
        kernel = kernel_of(op.partial, ["ct", *order], True, char)
        target = self._like(event.operands[0])
        given = [self._repeated(ct.reshape(()), n), *(values[name] for name in order)]
        self.rows.kernel(kernel, target, given, n)
        self._give(event.operands[0], target)

    def _along_axes(self, event: Event, ct: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
        """As `_reduction`, along some axes: what has an element for a row is spread over the rows."""
        op, char, axes = event.op, out.dtype.char, event.attrs["axis"]
        assert isinstance(op, Reduction)

        def spread(y: np.ndarray) -> np.ndarray:
            y = np.broadcast_to(y, out.shape)
            return self._dense(y if y.ndim == x.ndim else np.expand_dims(y, axes), x)

        values = {"x": x, "out": spread(out), "ct": spread(ct)}
        if op.total is not None:
            parts, total = self._room(x.shape, x.dtype), self._room(kept(x.shape, axes), x.dtype)
            summand = kernel_of(op.total.partials[0], ["x", "out"], False, char)
            self.rows.kernel(summand, parts, [x, values["out"]], x.size)
            self.rows.call(np.add.reduce, [parts, axes, None, total, True])
            self._drop(parts)
            values |= {"sum": total, "total": self._dense(total, x)}
        order = ["ct", *(name for name in ("x", "out", "total") if name in op.partial.arguments)]
        target = self._like(event.operands[0])
        self.rows.kernel(kernel_of(op.partial, order, True, char), target, [values[q] for q in order], x.size)
        for y in {id(y): y for y in values.values()}.values():
            self._drop(y)
        self._give(event.operands[0], target)

    def _repeated(self, x: np.ndarray, n: int, anew: bool = False) -> Block:
        """A block of a number; `anew`: where a group begins, as the one before it computes the number."""
        if anew:
            self.rows.divide()
        block = self._block(x.dtype, n)
        self.rows.loop(np.positive, [x.reshape(())], block, n)
        return block

    def _product(self, event: Event, ct: np.ndarray, operands: list[np.ndarray], wanted: list[int]) -> None:
        a, b = operands
        ct = np.broadcast_to(ct, event.value.shape) if np.ndim(event.value) else ct
        columns = (ct[:, None] if a.ndim == 2 else ct) if b.ndim == 1 else ct
        for q in wanted:
            if a.ndim == b.ndim == 1:
                self._multiplied(event.operands[q], np.multiply, ct, operands[1 - q])
            elif q == 0 and a.ndim >= 2:
                if b.ndim == 1:
                    self._multiplied(event.operands[0], np.multiply, columns, b[None, :])
                else:
                    self._multiplied(event.operands[0], np.matmul, ct, np.swapaxes(b, -1, -2))
            elif q == 0:
                self._multiplied(event.operands[0], np.matmul, b, ct)
            elif a.ndim == 1:
                self._multiplied(event.operands[1], np.multiply, a[:, None], ct[None, :])
            else:
                self._multiplied(event.operands[1], np.matmul, np.swapaxes(a, -1, -2), ct)

    def _is_transposed(self, source: Source) -> bool:
        """Whether an operand is a matrix, or a stack of them, of which it has the last two axes swapped."""
        if source.kind != RESULT or not self.program.views[source.value]:
            return False
        event = self.program.events[source.value]
        matrix = self.program.buffer(event.operands[0])
        seen = view_of(event.op, event.attrs, matrix) if matrix.ndim > 1 else None
        if seen is None:
            return False
        looks = [(abi.address(x), x.shape, x.strides) for x in (seen, np.swapaxes(matrix, -1, -2))]
        return looks[0] == looks[1]

    def _parts(self, event: Event, ct: np.ndarray, operands: list[np.ndarray], wanted: list[int]) -> None:
        """Give each of the arrays that were joined its part of the cotangent."""
        axis = event.attrs["axis"]
        if event.op is STACK:
            places: list[Any] = [*range(len(operands))]
        else:
            ends = np.cumsum([x.shape[axis] for x in operands]).tolist()
            places = [slice(end - x.shape[axis], end) for end, x in zip(ends, operands, strict=True)]
        for q in wanted:
            self._give(event.operands[q], ct[(slice(None),) * axis + (places[q], ...)])

    def _multiplied(self, source: Source, function: np.ufunc, x: np.ndarray, y: np.ndarray) -> None:
        """Give a product; of an operand that is a matrix transposed the matrix gets it, transposed."""
        while function is np.matmul and min(x.ndim, y.ndim) > 1 and self._is_transposed(source):
            source = self.program.events[source.value].operands[0]
            x, y = np.swapaxes(y, -1, -2), np.swapaxes(x, -1, -2)
        part = self._like(source)
        if function is np.matmul and min(x.ndim, y.ndim) > 1 and x.shape[-1] == 1:
            self.rows.call(np.multiply, [x, y, part])  # unlike a product's its zeros have signs
            done = self.rows.loop(np.add, [part, self.rows.number(0, part.dtype)], part)
        elif function is np.matmul:
            ours = next((z for z in (x, y) if id(abi.owner_of(z)) in self.holders), None)
            done = self.rows.product(x, y, part, ours)
        else:
            done = self.rows.loop(function, [x, y], part)
        if not done:
            self.rows.call(function, [x, y, part])
        self._give(source, part)

    def _elementwise(
        self,
        event: Event,
        ct: np.ndarray,
        operands: list[np.ndarray],
        out: np.ndarray,
        wanted: list[int],
    ) -> bool:
        """By the kernels of the op's partials; False where there is none for these operands."""
        op, char = event.op, out.dtype.char
        if not isinstance(op, Elementwise) or char not in "df" or op.arity > OUT:
            return False
        if not out.ndim:  # of arrays the steps for a fixed exponent are quicker
            operands = [x if isinstance(x, np.ndarray) else self.rows.number(x, out.dtype) for x in operands]
        for x in operands:
            if not isinstance(x, np.ndarray) or (x.dtype.char != char and x.dtype.char not in EXACTLY):
                return False
        parts = [part_of(op, q, char) for q in wanted]
        if None in parts:
            return False
        for q, part in zip(wanted, parts, strict=True):
            if part is NO_PART:
                continue
            if not isinstance(part, Kernel):
                self._scaled(event.operands[q], ct, part, out)
                continue
            reads = [self._dense(out if slot == OUT else operands[slot], out) for slot in slots_of(op, q)]
            self._by_kernel(event.operands[q], part, ct, reads, out)
        return True

    def _dense(self, x: np.ndarray, out: np.ndarray) -> np.ndarray:
        """An operand as a number or as a dense array of the result's shape and dtype."""
        if x.dtype != out.dtype:
            copy = self._room(x.shape if x.ndim == 0 else out.shape, out.dtype)
            convert(self.rows, np.broadcast_to(x, copy.shape), copy)
            return copy
        if x.ndim == 0 or (x.shape == out.shape and is_dense(x)):
            return x
        copy = self._room(out.shape, out.dtype)
        self.rows.call(np.positive, [np.broadcast_to(x, out.shape), copy])
        return copy

    def _scaled(self, source: Source, ct: np.ndarray, factor: float, out: np.ndarray) -> None:
        """Give a multiple of the cotangent; what is summed up is multiplied after that."""
        if factor == 1 and not out.ndim:
            self._give(source, ct)
            return
        summed, stretched = self._how_broadcast(source, out)
        if stretched and ct.ndim:
            ct = self._summed_to(np.broadcast_to(ct, out.shape), source)
        elif (summed or stretched) and ct.ndim == 0:
            factor *= out.size // self.program.at_hand(source).size
        part: Any = ct
        if factor != 1:
            if ct.ndim == 0:
                part = np.zeros((), ct.dtype)
            elif not stretched:
                part = self._part(source, out, summed, False)
            part = self._combined(np.multiply, ct, self.rows.number(factor, ct.dtype), part)
        if stretched or ct.ndim == 0:
            self._give(source, part)
        else:
            self._collect(source, part, summed, False, out)

    def _by_kernel(
        self, source: Source, kernel: Kernel, ct: np.ndarray, reads: list[np.ndarray], out: np.ndarray
    ) -> None:
        """Give the product of the cotangent and a partial that a kernel computes."""
        summed, stretched = self._how_broadcast(source, out)
        part = self._part(source, out, summed, stretched)
        given: list[Any] = []
        for x in (ct, *reads):
            if out.ndim and x.ndim == 0:
                block = self._block(x.dtype, out.size)
                self.rows.loop(np.positive, [x], block, out.size)
                given.append(block)
            else:
                given.append(x)
        self.rows.kernel(kernel, part, given, out.size)
        self._collect(source, part, summed, stretched, out)

    def _summed_to(self, part: np.ndarray, source: Source) -> np.ndarray:
        """The sum of a part over the axes along which an operand was broadcast."""
        target = self._like(source)
        shape = (1,) * (part.ndim - target.ndim) + target.shape
        axes = tuple(d for d, (n, m) in enumerate(zip(shape, part.shape, strict=True)) if n != m)
        summed = [part, axes, None, target.reshape(shape), True]
        if axes and len(axes) == axes[-1] + 1 - axes[0] and is_dense(part):
            after = math.prod(shape[axes[-1] + 1 :])
            before, count = math.prod(shape[: axes[0]]), math.prod(part.shape[a] for a in axes)
            if after < FEW < count:  # NumPy has a loop for each row
                ones, stack = np.ones((1, count), part.dtype), part.reshape(before, count, after)
                self.rows.call(np.matmul, [ones, stack, target.reshape(before, 1, after)])
                self.rows.describe_call(np.add.reduce, summed)
                return target
        self.rows.call(np.add.reduce, summed)
        return target

    def _part(self, source: Source, out: np.ndarray, summed: bool, stretched: bool) -> Any:
        """Where a part of a cotangent goes: its buffer if it is the first one, else a block."""
        if stretched:
            return self._room(out.shape, out.dtype)
        if summed or (source in self.found and out.ndim):
            return self._block(out.dtype, out.size)
        return self._like(source)

    def _how_broadcast(self, source: Source, out: np.ndarray) -> tuple[bool, bool]:
        """Whether an operand is a number and the result an array; whether it has axes and was broadcast."""
        shape = self.program.at_hand(source).shape
        return not shape and out.ndim > 0, bool(shape) and shape != out.shape

    def _collect(self, source: Source, part: Any, summed: bool, stretched: bool, out: np.ndarray) -> None:
        if summed:
            total = self._total(out.dtype.char)
            self.rows.loop(np.add, [total, part], total, out.size)
            part = total
        elif stretched:
            whole, part = part, self._summed_to(part, source)
            self._drop(whole)
        if not isinstance(part, Block):
            self._give(source, part)
            return
        target, _ = self._target(source)
        self.rows.loop(np.add, [target, part], target)
