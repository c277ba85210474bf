"""Which elements of a result depend on which of an input, whatever the values are; read off tapes.

A value is an array of numbers of nodes (`Elements`). An op that moves elements moves these as well: it is run
on them. One that adds up elements is known by its transpose, which moves. Of the others the kind tells what
comes together: elementwise ops, reductions, scans, products. Where nothing is known, in decompositions,
calls of a Function and of compiled functions, each element of the result depends on all of the operands.
"""

from __future__ import annotations

import functools
import itertools
import math
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tapegrad.autograd.backward import grad
from tapegrad.autograd.steps import leave_tape
from tapegrad.core.base import shape_of
from tapegrad.errors import is_from_signal
from tapegrad.func import elements
from tapegrad.func.elements import Elements
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.ops.custom import Custom
from tapegrad.ops.primitive import BY_OPCODE, OUT, Attributes, Elementwise, Linear, Primitive, Reduction
from tapegrad.tape.columns import Columns
from tapegrad.tape.record import CONST, LEAF, LINK, Record, Template, slot
from tapegrad.tape.tape import Tape, current
from tapegrad.tensor import Tensor, tensor

Nodes: TypeAlias = "np.ndarray | int | None"  # of a value's elements; None for all 0
Shape: TypeAlias = tuple[int, ...]
Shown: TypeAlias = "Callable[[Iterable[Any]], Iterable[Any]]"
COMPLEX = {abi.CODES[c] for c in "FDG"}


def tapes_of(result: Tensor, since: int) -> list[Tape]:
    """The tapes that lead to a result, the oldest first, but none older than a serial number."""
    found: dict[int, Tape] = {}
    waiting: list[Tape] = [] if result._tape is None else [result._tape]
    while waiting:
        tape = waiting.pop()
        if tape.serial >= since and tape.serial not in found:
            found[tape.serial] = tape
            waiting += [older for older in tape.older if older is not None]
    return [found[serial] for serial in sorted(found)]


def dependencies(result: Tensor, x: Tensor, since: int, shown: Shown = iter) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of an element of a result and an element of the leaf it depends on, in C order.

    Parameters
    ----------
    result, x
        What was computed, and the leaf.
    since
        The serial number of a tape; what stands on older ones does not depend on the leaf.
    shown
        Given the tapes as they are read, so that it can show how many are.
    """
    reading = _Reading(tapes_of(result, since), x, False)
    nodes = np.broadcast_to(reading.nodes(result, shown), shape_of(result)).reshape(-1)
    return reading.elements.inputs_of(nodes)


def interactions(result: Tensor, x: Tensor, since: int, shown: Shown = iter) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of elements of the leaf by which a second derivative of a number is not 0.

    The parameters are those of `dependencies`. Each pair is there in both orders, once.
    """
    from scipy import sparse

    reading = _Reading(tapes_of(result, since), x, True)
    nodes = reading.nodes(result, shown).reshape(-1)
    pairs = reading.elements.pairs_of(nodes)
    rows, columns = reading.elements.inputs_of(pairs.reshape(-1))
    shape = (2 * pairs.shape[1], reading.elements.inputs)
    reached = sparse.csr_array((np.ones(rows.size), (rows, columns)), shape)
    first, second = reached[: pairs.shape[1]], reached[pairs.shape[1] :]
    each = np.diff(first.indptr).astype(np.int64) * np.diff(second.indptr)
    elements.check_room(int(each.max(initial=0)), elements.room())
    found = (first.T @ second).tocsr()
    found = (found + found.T).tocoo()
    return found.coords[0], found.coords[1]


class _Reading:
    """The nodes of all records that lead to a result."""

    def __init__(self, tapes: list[Tape], x: Tensor, twice: bool) -> None:
        self.twice = twice  # whether second derivatives are asked for
        self.leaf, self.shape = x._at, shape_of(x)
        self.elements = Elements(math.prod(self.shape))
        self.tapes = {tape.serial: (tape, tape.view()) for tape in tapes}
        self.found: dict[int, list[Nodes]] = {}

    def nodes(self, result: Tensor, shown: Shown) -> np.ndarray:
        """The nodes of a result's elements."""
        if result._tape is None:
            own = result._at is self.leaf
            return np.arange(1, self.elements.inputs + 1).reshape(self.shape) if own else np.zeros(1, int)
        if result._tape.serial not in self.tapes:
            return np.zeros(1, int)
        marks = self._marked(result)
        for serial, mark in shown(marks.items()):
            self._read(serial, mark)
        found = self.found[result._tape.serial][slot(result._at)]
        return np.zeros(1, int) if found is None else np.asarray(found)

    def _marked(self, result: Tensor) -> dict[int, bytearray]:
        """Marks of the records that lead to a result, by tape."""
        marks = {serial: bytearray(columns.n) for serial, (_, columns) in self.tapes.items()}
        assert result._tape is not None
        marks[result._tape.serial][slot(result._at)] = 1
        for serial in reversed(marks):
            tape, columns = self.tapes[serial]
            mark = marks[serial]
            opcodes, first, second = _operations(columns)
            for k in range(columns.n - 1, -1, -1):
                if not mark[k]:
                    continue
                opcode = opcodes[k]
                if opcode == LINK:
                    older = tape.older[first[k] - 1] if first[k] else None
                    if older is not None and older.serial in marks:
                        marks[older.serial][second[k] - 1] = 1
                elif opcode not in (CONST, LEAF):
                    op = BY_OPCODE[opcode]
                    form = layout.CHAIN if op is None else op.recorded_form
                    if first[k]:
                        mark[first[k] - 1] = 1
                    if second[k] and form != layout.NUMBER:
                        mark[second[k] - 1] = 1
        return marks

    def _read(self, serial: int, mark: bytearray) -> None:
        tape, columns = self.tapes[serial]
        found: list[Nodes] = [None] * columns.n
        self.found[serial] = found
        opcodes, first, second = _operations(columns)
        meta = columns.words[columns.n : 2 * columns.n]
        scalar, codes = (meta >> 16 & 0xFF == 0).tolist(), (meta & 0xFF).tolist()
        mixed = not COMPLEX.isdisjoint(codes)
        lists: dict[Record, list[int]] = {}
        for k in range(columns.n):
            if not mark[k]:
                continue
            op = BY_OPCODE[opcodes[k]]
            if op is None:
                found[k] = self._imported(tape, k, opcodes[k], first[k], second[k])
                continue
            form = op.recorded_form
            if form == layout.CHAIN:
                operands = columns.operands(k, form)
            else:
                operands = [first[k] - 1, second[k] - 1] if form == layout.TWO else [first[k] - 1]
            given = [found[j] for j in operands]
            if given[0] is None and all(nodes is None for nodes in given):
                continue
            complex_ = mixed and any(codes[j] in COMPLEX for j in (k, *operands))
            if op.template is Template.ELEMENT:
                (j,) = operands
                if j not in lists:
                    lists[j] = np.asarray(given[0]).reshape(-1).tolist()
                found[k] = lists[j][second[k]] or None
            elif scalar[k] and type(op) is Elementwise:
                found[k] = self._number(op, given, complex_) or None
            else:
                shapes = [columns.shape(j) for j in operands]
                attrs = tape.attrs.get(k, {})
                rule = _Rule(self.elements, op, shapes, columns.shape(k), attrs, self.twice, complex_)
                nodes = rule.nodes([_spread(x, shape) for x, shape in zip(given, shapes, strict=True)])
                found[k] = (int(nodes.reshape(-1)[0]) or None) if scalar[k] else nodes

    def _number(self, op: Elementwise, given: list[Any], complex_: bool) -> int:
        """The node of a number computed from numbers."""
        parts = {given[q] for q in moving(op)}
        parts.discard(None)
        pairs = []
        if self.twice:
            for a, b in bends(op, op.arity, complex_):
                if given[a] is not None and given[b] is not None:
                    pairs.append((given[a], given[b]))
        if not pairs:
            return self.elements.one(parts)
        node = self.elements.new(parts)
        for first, second in pairs:
            self.elements.bend(node, first, second)
        return node

    def _imported(self, tape: Tape, k: Record, opcode: int, first: int, second: int) -> Nodes:
        if opcode == LEAF and tape.imports.get(k) is self.leaf:
            return np.arange(1, self.elements.inputs + 1).reshape(self.shape) if self.shape else 1
        older = tape.older[first - 1] if opcode == LINK and first else None
        if older is None or older.serial not in self.found:
            return None
        return self.found[older.serial][second - 1]


def _operations(columns: Columns) -> tuple[list[int], list[int], list[int]]:
    words = columns.words[: columns.n]
    return (words & 0xFFFF).tolist(), (words >> 16 & 0xFFFF).tolist(), (words >> 32).tolist()


def _spread(nodes: Nodes, shape: Shape) -> np.ndarray | None:
    return None if nodes is None else np.broadcast_to(np.asarray(nodes), shape)


@functools.cache
def moving(op: Any) -> tuple[int, ...]:
    """The operands with which a result moves at all."""
    return tuple(q for q in range(op.arity) if not op.partial(q).zero)


@functools.cache
def bends(op: Primitive, arity: int, complex_: bool) -> frozenset[tuple[int, int]]:
    """Pairs of operands, or of elements that are reduced, by which a second derivative is not 0.

    Found out on the gradient of a few numbers, which is recorded: what it depends on.
    """
    if op.passes_on or (isinstance(op, Elementwise) and all(_is_constant(op, q) for q in range(arity))):
        return frozenset()
    found: set[tuple[int, int]] = set()
    for kind in (float, complex) if complex_ else (float,):
        x = tensor(np.linspace(0.4, 0.7, arity) + np.zeros((), kind), requires_grad=True)
        leave_tape()
        since = current().serial
        with np.errstate(all="ignore"):
            y = op(*x) if isinstance(op, Elementwise) else op(x, axis=(0,), keepdims=False)
            (g,) = grad(y, x, np.ones((), y.dtype), create_graph=True, materialize_grads=True)
        rows, columns = dependencies(g, x, since)
        found.update(zip(rows.tolist(), columns.tolist(), strict=True))
    leave_tape()
    return frozenset((min(pair), max(pair)) for pair in found)


def _is_constant(op: Any, q: int) -> bool:
    partial = op.partial(q)
    return partial.zero or (partial.constant is not None and not op.explicit)


class _Rule:
    """How the elements of a record depend on those of its operands."""

    def __init__(
        self, elements: Elements, op: Primitive, shapes: list[Shape], shape: Shape, attrs: Attributes,
        twice: bool, complex_: bool,
    ) -> None:  # fmt: skip
        self.elements, self.op, self.shapes, self.shape, self.attrs = elements, op, shapes, shape, attrs
        self.twice, self.complex_ = twice, complex_

    def nodes(self, given: list[np.ndarray | None]) -> np.ndarray:
        """Return the nodes of the result, from those of the operands that have some."""
        op, attrs = self.op, self.attrs
        if isinstance(op, Elementwise):
            return self._elementwise(given)
        if isinstance(op, Reduction) or "keepdims" in attrs:
            return self._reduced(self._whole(given, 0), attrs["axis"])
        if op.template in (Template.SCAN, Template.RECURRENCE):
            return self._scanned(given, attrs["axis"])
        if isinstance(op, Linear):
            found = self._moved(given)
            if found is not None:
                return found
            if "axis" in attrs:
                return self._along(self._whole(given, 0), np.atleast_1d(attrs["axis"]).tolist())
        if op.template is Template.MATMUL:
            return self._summed(given, *self._indices())
        if "inputs" in attrs and "output" in attrs:
            return self._summed(given, attrs["inputs"], attrs["output"])
        if len(given) == 1 and self.shape == self.shapes[0] and _pointwise(op, attrs):
            return self._bent(self._whole(given, 0), [(given[0], given[0])])
        found = self._arithmetic(given)
        return self._together(given) if found is None else found

    def _together(self, given: list[np.ndarray | None]) -> np.ndarray:
        """Each element of all elements; of which pairs of operands, the op says what its derivatives read."""
        op = self.op
        hubs = {
            q: self.elements.one(set(x.reshape(-1).tolist())) for q, x in enumerate(given) if x is not None
        }
        out = np.full(self.shape, self.elements.one(set(hubs.values())))
        masks, any_ = op.masks, isinstance(op, Custom)  # what users keep beside is not known
        return self._bent(
            out,
            [
                (hubs[a], hubs[b])
                for a, b in itertools.product(hubs, hubs)
                if any_ or masks[min(a, 2)] & (1 << min(b, 2) | 1 << OUT)
            ],
        )

    def _arithmetic(self, given: list[np.ndarray | None]) -> np.ndarray | None:
        """The op run on symbols; None where it does more than add and multiply."""
        if isinstance(self.op, Custom):
            return None
        one = _Symbol(self.elements, 0, self.twice)
        operands = []
        for nodes, shape in zip(given, self.shapes, strict=True):
            x = np.full(shape, one, object)
            if nodes is not None:
                x.reshape(-1)[:] = [_Symbol(self.elements, k, self.twice) for k in nodes.reshape(-1).tolist()]
            operands.append(x)
        try:
            out = np.asarray(self.op.forward(*operands, **self.attrs))
        except Exception as error:  # whatever a decomposition makes of them
            if is_from_signal(error):
                raise
            return None
        if out.shape != self.shape or not all(isinstance(x, _Symbol) for x in out.reshape(-1)):
            return None
        return np.array([x.node for x in out.reshape(-1)], np.int64).reshape(self.shape)

    def _whole(self, given: Sequence[np.ndarray | None], q: int) -> np.ndarray:
        found = given[q]
        return np.zeros(self.shapes[q], np.int64) if found is None else found

    def _bent(self, nodes: np.ndarray, pairs: Sequence[tuple[Any, Any]]) -> np.ndarray:
        """New nodes of the same, with pairs of nodes by which they have a second derivative."""
        pairs = [pair for pair in pairs if pair[0] is not None and pair[1] is not None]
        if not self.twice or not pairs:
            return nodes
        there = nodes != 0
        out = np.zeros(nodes.shape, np.int64)
        out[there] = self.elements.many(np.ones(there.sum(), np.int64), nodes[there])
        for first, second in pairs:
            self.elements.bend_many(out, first, second)
        return out

    def _elementwise(self, given: list[np.ndarray | None]) -> np.ndarray:
        op, out = self.op, np.zeros((), np.int64)
        for q in moving(op):
            part = given[q]
            if part is not None:
                out = self.elements.joined(out, part)
        pairs = bends(op, op.arity, self.complex_) if self.twice else ()
        return self._bent(np.broadcast_to(out, self.shape), [(given[a], given[b]) for a, b in pairs])

    def _united(self, nodes: np.ndarray, axes: Sequence[int]) -> np.ndarray:
        """What is computed of all elements along axes, which stay with one element."""
        shape = tuple(1 if d in axes else n for d, n in enumerate(nodes.shape))
        targets = np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), nodes.shape)
        return self.elements.collected(nodes, targets, math.prod(shape)).reshape(shape)

    def _reduced(self, nodes: np.ndarray, axes: Sequence[int]) -> np.ndarray:
        pairs = bends(self.op, 3, self.complex_) if self.twice else frozenset()
        if pairs and all(a != b for a, b in pairs):  # each comes together with what those before it made
            left = [d for d in range(nodes.ndim) if d not in axes]
            flat = nodes.transpose([*left, *axes]).reshape(math.prod(self.shape), -1)
            return (
                self._chained([flat], flat, 1)[:, -1].reshape(self.shape)
                if flat.size
                else flat.reshape(self.shape)
            )
        out = self._united(nodes, axes).reshape(self.shape)
        return self._bent(out, [(out, out)] if pairs else [])

    def _along(self, nodes: np.ndarray, axes: Sequence[int]) -> np.ndarray:
        """Each element from all along the axes, of which the result may have another number."""
        return np.broadcast_to(self._united(nodes, axes), self.shape)

    def _scanned(self, given: list[np.ndarray | None], axis: int) -> np.ndarray:
        """Each element from the operands' there, and from the one before it, times the last operand."""
        parts = [np.broadcast_to(x, self.shape) for x in given if x is not None]
        return self._chained(parts, None if isinstance(self.op, Linear) else given[-1], axis)

    def _chained(self, parts: list[np.ndarray], factor: np.ndarray | None, axis: int) -> np.ndarray:
        shape = parts[0].shape
        out = np.zeros(math.prod(shape), np.int64)
        if not out.size:
            return out.reshape(shape)
        first = self.elements.next
        numbers = np.moveaxis(np.arange(first, first + out.size).reshape(shape), axis, 0)
        before = np.concatenate([np.zeros_like(numbers[:1]), numbers[:-1]])
        before = np.moveaxis(before, 0, axis)
        sources = np.stack([x.reshape(-1) for x in (before, *parts)], axis=-1)
        there = sources != 0
        nodes = self.elements.many(there.sum(axis=1), sources[there]).reshape(shape)
        if self.twice and factor is not None:
            self.elements.bend_many(nodes, before, factor)
        return nodes

    def _moved(self, given: list[np.ndarray | None]) -> np.ndarray | None:
        """The nodes where the op moves elements or adds them up; None where it does more than that."""
        sizes = [math.prod(shape) for shape in self.shapes]
        ends = np.cumsum([1, *sizes]).tolist()
        numbers = [
            np.arange(end, end + size).reshape(shape)
            for end, size, shape in zip(ends, sizes, self.shapes, strict=False)
        ]
        attrs = self.attrs
        op: Any = self.op
        taken = _places([op.forward(*map(f, numbers), **attrs)] for f in (_itself, np.square))
        if taken is not None:
            parts = [self._whole(given, q).reshape(-1) for q in range(len(given))]
            return np.concatenate([np.zeros(1, np.int64), *parts]).take(taken[0])
        out = np.arange(1, math.prod(self.shape) + 1).reshape(self.shape)
        wanted = range(len(given))
        parted = [op.rule(f(out), self.shapes, wanted, **attrs) for f in (_itself, np.square)]
        back = _places([found[q] for q in wanted] for found in parted)
        if back is None:
            return None
        targets = np.concatenate([x.reshape(-1) for x in back])
        sources = np.concatenate([self._whole(given, q).reshape(-1) for q in wanted])
        there = targets > 0
        found = self.elements.collected(sources[there], targets[there] - 1, out.size)
        return found.reshape(self.shape)

    def _indices(self) -> tuple[list[str], str]:
        """A product of matrices as a sum over indices."""
        left, right = (len(shape) for shape in self.shapes)
        rows, columns = "i" if left > 1 else "", "k" if right > 1 else ""
        batch = string.ascii_uppercase[: max(left, right, 2) - 2]
        inputs = [batch[len(batch) - max(left - 2, 0) :] + rows + "j"]
        inputs.append(batch[len(batch) - max(right - 2, 0) :] + "j" + columns)
        return inputs, batch + rows + columns

    def _summed(self, given: list[np.ndarray | None], inputs: Sequence[str], output: str) -> np.ndarray:
        """A sum of products over indices."""
        out, factors = np.zeros((), np.int64), []
        summed = "".join(c for c in dict.fromkeys("".join(inputs)) if c not in output)
        every = output + summed
        first: Any = (..., *(0,) * len(summed))
        for nodes, labels in zip(given, inputs, strict=True):
            if nodes is None:
                continue
            once = "".join(dict.fromkeys(labels))
            part = np.einsum(f"{labels}->{once}", nodes)
            factors.append(_aligned(part, once, every))
            part = self._united(part, [d for d, c in enumerate(once) if c not in output])
            out = self.elements.joined(out, _aligned(part, once, every)[first])
        out = np.broadcast_to(out, self.shape)
        if not self.twice or len(factors) < 2:
            return out
        bent = self._bent(out, [(0, 0)])
        whole = bent.reshape(*bent.shape, *(1,) * len(summed))
        for a, b in itertools.combinations(factors, 2):
            self.elements.bend_many(whole, a, b)
        return bent


class _Symbol:
    """A number of which only the node is known."""

    __slots__ = ("_elements", "_twice", "node")

    def __init__(self, elements: Elements, node: int, twice: bool) -> None:
        self._elements, self.node, self._twice = elements, node, twice

    def __add__(self, other: _Symbol) -> _Symbol:
        return _Symbol(self._elements, self._elements.one({self.node, other.node}), self._twice)

    def __mul__(self, other: _Symbol) -> _Symbol:
        a, b = self.node, other.node
        if not (self._twice and a and b):
            return self + other
        node = self._elements.new({a, b})
        self._elements.bend(node, a, b)
        return _Symbol(self._elements, node, self._twice)


def _aligned(nodes: np.ndarray, labels: str, every: str) -> np.ndarray:
    """An array with an axis for each of all indices, of one element for those that it has not."""
    order = [labels.index(c) for c in every if c in labels]
    return nodes.transpose(order)[tuple(slice(None) if c in labels else None for c in every)]


def _itself(x: np.ndarray) -> np.ndarray:
    return x


def _places(found: Any) -> list[np.ndarray] | None:
    """Which elements arrays are made of, from what was made of their numbers and of the squares of these.

    Numbers begin at 1; 0 is none. A sum of several is found out: its square is not the sum of squares.
    """
    numbers, squares = ([np.asarray(x) for x in part] for part in found)
    for x, y in zip(numbers, squares, strict=True):
        if x.dtype.kind != "i" or y.dtype.kind != "i" or (x < 0).any() or not np.array_equal(x * x, y):
            return None
    return numbers


def _pointwise(op: Primitive, attrs: Attributes) -> bool:
    """Whether an op that keeps the shape acts on each element: then it takes a bare number."""
    try:
        return np.ndim(op.forward(np.float64(0.5), **attrs)) == 0
    except Exception as error:  # whatever a decomposition makes of it
        if is_from_signal(error):
            raise
        return False
