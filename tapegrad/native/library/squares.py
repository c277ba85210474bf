"""Squares of absolute values and norms, which are smooth where those have a kink.

Second derivatives of ``norm(x)**2`` at 0 cannot be had from those of the norm. So beside an absolute value or
a norm whose square is asked for somewhere, its square is computed from the operands themselves.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba.core import ir, types
from numba.extending import overload

from tapegrad.native.arrays.arrays import is_active_array, is_complex, is_complex_array
from tapegrad.native.emission.annotations import Block, Key, RightSide, Statement, Type, Variable
from tapegrad.native.library.complex_arrays import imag_view, real_view
from tapegrad.native.library.functions import INSTEAD
from tapegrad.native.numbers.complexes import squared
from tapegrad.native.numbers.operators import statement_of
from tapegrad.native.numbers.scalar import is_active
from tapegrad.native.tapes.blocks import inner_njit

OPERANDS = {  # what has a kink at 0
    abs: 1, np.absolute: 1, np.fabs: 1, math.fabs: 1, np.hypot: 2, math.hypot: 2, np.linalg.norm: 1,
}  # fmt: skip
INNER = (operator.matmul, np.dot, np.vdot)
TIMES, OVER, POWERS = (operator.mul, np.multiply), (operator.truediv, np.divide), (operator.pow, np.power)
COMPUTING = (
    np.sum, np.dot, np.vdot, np.mean, np.exp, np.log, np.sqrt, np.sin, np.cos, np.square,
    *TIMES, *OVER, *POWERS, *OPERANDS,
)  # fmt: skip
READING = ("size", "shape", "ndim")  # attributes that are no views
COUNTS = {**OPERANDS, np.square: 1, np.multiply: 2, np.divide: 2, np.power: 2, np.dot: 2, np.vdot: 2}


class Square(NamedTuple):
    """A product in which what has a kink is a factor twice: its call, and by what else one multiplies."""

    root: Variable
    call: RightSide
    others: list[tuple[Key, Variable | None]]  # operators, and operands on the right
    exposed: bool  # whether what has the kink may be written to before it is multiplied, if it is an array
    inner: bool = False  # whether it is the product of an array with itself, a sum of squares

    def variables(self) -> list[Variable]:
        """What is used again where the square is made."""
        return [*self.call.args, self.root, *(x for _, x in self.others if x is not None)]


def squares_in(
    blocks: dict[int, Block],
    definition: Callable[[Variable], RightSide | None],
    resolve: Callable[[Any], Any],
    kinds: Sequence[Type],
) -> dict[int, Square]:
    """Return the products that are squares of what has a kink, by their ids; `kinds` are the arguments'."""
    found: dict[int, Square] = {}
    exposed = _exposed(blocks, definition, resolve)
    for block in blocks.values():
        reader = _Reader(block, definition, resolve, found, exposed, kinds)
        for at, line in enumerate(block.body):
            if isinstance(line, ir.Assign):
                square = reader.square(line.value, at)
                if square is not None:
                    found[id(line.value)] = square._replace(exposed=square.root.name in exposed)
    return found


def _exposed(
    blocks: dict[int, Block],
    definition: Callable[[Variable], RightSide | None],
    resolve: Callable[[Any], Any],
) -> set[str]:
    """Names of what may be written to, if it is an array: of all that is not used in arithmetic alone."""
    found: set[str] = set()
    copies: list[tuple[str, str]] = []
    for line in (line for block in blocks.values() for line in block.body):
        if isinstance(line, ir.Assign):
            value = line.value
            if isinstance(value, ir.Var):
                copies.append((value.name, line.target.name))
            elif isinstance(value, ir.Expr) and value.op == "inplace_binop":
                found.add(value.lhs.name)
            elif isinstance(value, ir.Expr) and not _computes(value, definition, resolve):
                found.update(x.name for x in value.list_vars())
        elif not isinstance(line, (ir.Del, ir.Return, ir.Branch, ir.Print)):
            found.update(x.name for x in line.list_vars())
    while names := {name for pair in copies if not found.isdisjoint(pair) for name in pair} - found:
        found |= names  # of what has two
    return found


def _computes(
    value: RightSide, definition: Callable[[Variable], RightSide | None], resolve: Callable[[Any], Any]
) -> bool:
    """Whether an expression gives numbers that it has computed, and keeps nothing."""
    if value.op == "call" and not (value.kws or value.vararg):
        function = resolve(value.func)
        if function is None:
            method = definition(value.func)
            return isinstance(method, ir.Expr) and method.op == "getattr" and _is_computing(method.attr)
        return any(function is f for f in COMPUTING)
    if value.op == "getattr":
        return value.attr in READING or _is_computing(value.attr)
    return value.op in ("binop", "unary")


def _is_computing(method: str) -> bool:
    """Whether a method of arrays does what one of the functions does that compute."""
    return any(getattr(np, method, None) is f for f in COMPUTING)


class _Reader:
    """Finds squares in a block: factors of a product are looked for where nobody can have changed them."""

    def __init__(
        self,
        block: Block,
        definition: Callable[[Variable], RightSide | None],
        resolve: Any,
        found: dict[int, Square],
        exposed: set[str],
        kinds: Sequence[Type],
    ) -> None:
        self.body, self.definition, self.resolve, self.found = block.body, definition, resolve, found
        self.exposed, self.kinds = exposed, kinds
        self.places = {id(line.value): k for k, line in enumerate(self.body) if isinstance(line, ir.Assign)}

    def square(self, value: RightSide, at: int) -> Square | None:
        """Return what an expression is the square of, if it is one."""
        how, operands = self._operation(value)
        if how is np.square or (how in POWERS and self._is_two(operands[1])):
            a = b = operands[0]
        elif how in TIMES or how in INNER:
            a, b = operands
        else:
            return None
        for one, others in self._factors(a, at):
            for other, more in self._factors(b, at):
                if self._same(one, other, at):
                    return Square(one, self.definition(one), others + more, False, how in INNER)
        return None

    def _operation(self, value: RightSide) -> tuple[Key | None, list[Variable]]:
        """The operator or function of an expression, and its operands; None for any other expression."""
        if isinstance(value, ir.Expr):
            if value.op == "binop":
                return value.fn, [value.lhs, value.rhs]
            if value.op == "unary":
                return value.fn, [value.value]
            if value.op == "call" and not (value.kws or value.vararg):
                function, args = self.resolve(value.func), list(value.args)
                if function is None:
                    method = self.definition(value.func)
                    if isinstance(method, ir.Expr) and method.op == "getattr" and method.attr == "dot":
                        function, args = np.dot, [method.value, *args]
                if any(function is f and len(args) == n for f, n in COUNTS.items()):
                    return function, args
        return None, []

    def _is_two(self, var: Variable) -> bool:
        two = self.definition(var)
        return isinstance(two, ir.Const) and bool(two.value == 2)

    def _factors(
        self, var: Variable, at: int
    ) -> Iterator[tuple[Variable, list[tuple[Key, Variable | None]]]]:
        """What has a kink and is a factor of a value, each with what it is multiplied by."""
        value = self.definition(var)
        how, operands = self._operation(value)
        if how in OPERANDS:
            yield var, []
        elif how is not None and id(value) not in self.found and self._fresh(value, at):
            if how is operator.neg:
                for root, others in self._factors(operands[0], at):
                    yield root, [*others, (operator.neg, None)]
            for k, x in enumerate(operands if how in TIMES else operands[:1] if how in OVER else []):
                for root, others in self._factors(x, at):
                    yield (
                        root,
                        [*others, (operator.mul if how in TIMES else operator.truediv, operands[1 - k])],
                    )

    def _fresh(self, value: RightSide, at: int) -> bool:
        """Whether nothing can have changed since a value was computed, in this block.

        Either nothing in between writes to anything, or it is made of what nobody can write to.
        """
        first, operands = self.places.get(id(value), at), self._operation(value)[1]
        between = self.body[first + 1 : at]
        if first >= at:
            return False
        names = {x.name for x in operands} | {self.body[first].target.name}
        if any(isinstance(line, ir.Assign) and line.target.name in names for line in between):
            return False
        return all(map(self._harmless, between)) or (
            names.isdisjoint(self.exposed) and all(self._own(self.definition(x)) for x in operands)
        )

    def _harmless(self, line: Statement) -> bool:
        """Whether a line writes to nothing."""
        if not isinstance(line, ir.Assign):
            return isinstance(line, ir.Del)
        plain = not isinstance(line.value, ir.Expr) or line.value.op in (
            "getattr",
            "static_getitem",
            "getitem",
        )
        return plain or _computes(line.value, self.definition, self.resolve)

    def _own(self, value: RightSide | None) -> bool:
        """Whether a value is a number or constant, or has no memory that has another name."""
        if isinstance(value, ir.Arg):
            return isinstance(self.kinds[value.index], types.Number) or is_active(self.kinds[value.index])
        if isinstance(value, ir.Expr):
            return _computes(value, self.definition, self.resolve) and value.op != "getattr"
        return isinstance(value, (ir.Const, ir.Global, ir.FreeVar))

    def _same(self, one: Variable, other: Variable, at: int) -> bool:
        """Whether two variables are surely one value."""
        a, b = self.definition(one), self.definition(other)
        if a is b:
            return True
        (f, mine), (g, theirs) = self._operation(a), self._operation(b)
        if f is not g or not (self._fresh(a, at) and self._fresh(b, at)):
            return False
        return [x.name for x in mine] == [x.name for x in theirs]


def square_of(function: Key) -> Key:
    """Return what computes the square of a function in `OPERANDS` from its operands."""
    known: dict[Key, Key] = {
        np.hypot: square_of_hypot,
        math.hypot: square_of_hypot,
        np.linalg.norm: square_of_norm,
    }
    return known.get(function, square_of_absolute)


def product_with(
    root: np.ndarray | complex, product: np.ndarray | complex, smooth: np.ndarray | complex
) -> Any:
    """``product``, and where its root is 0 what is the same and smooth; elsewhere that could overflow."""


def where_zero(root: np.ndarray | complex, smooth: np.ndarray | complex) -> Any:
    """Squares where the root is 0, of an array 0 elsewhere: those of large elements overflow."""


def inner_with(root: np.ndarray, product: float, smooth: np.ndarray) -> Any:
    """``product``, and beside it the squares in it that are smooth where the root is 0, and are 0 as well."""


def inner_since(root: np.ndarray, zeros: Any, product: float, smooth: np.ndarray) -> Any:
    """`inner_with` where elements are the zeros that they were."""


def square_of_absolute(x: np.ndarray | complex) -> Any:
    """``abs(x)**2``."""


def square_of_hypot(x: np.ndarray | complex, y: np.ndarray | complex) -> Any:
    """``hypot(x, y)**2``."""


def square_of_norm(x: np.ndarray | complex) -> Any:
    """``norm(x)**2``."""


def zeros_of(root: np.ndarray | complex) -> Any:
    """Which statements zeros of an array have, 0 for all else; of a number nothing: nobody writes to it."""


def product_since(
    root: np.ndarray | complex, zeros: Any, product: np.ndarray | complex, smooth: np.ndarray | complex
) -> Any:
    """`product_with` where elements are the zeros that they were, ``product`` where one was written since."""


@overload(zeros_of)
def _zeros_of(root):
    return (lambda root: _statements(root)) if isinstance(root, types.Array) else (lambda root: None)


@overload(product_since)
def _product_since(root, zeros, product, smooth):
    if isinstance(root, types.Array):
        where = INSTEAD[np.where]
        return lambda root, zeros, product, smooth: where(_same(root, zeros), smooth, product)
    return lambda root, zeros, product, smooth: smooth if root == 0.0 else product


@overload(product_with)
def _product_with(root, product, smooth):
    if isinstance(root, types.Array):
        where = INSTEAD[np.where]
        return lambda root, product, smooth: where(_zeros(root), smooth, product)
    return lambda root, product, smooth: smooth if root == 0.0 else product


@overload(where_zero)
def _where_zero(root, smooth):
    if isinstance(root, types.Array):
        where = INSTEAD[np.where]
        return lambda root, smooth: where(_zeros(root), smooth, 0.0)
    return lambda root, smooth: smooth


@overload(inner_with)
def _inner_with(root, product, smooth):
    if isinstance(product, types.Array):  # of matrices
        return lambda root, product, smooth: product
    if isinstance(root, types.Array):
        where = INSTEAD[np.where]
        return lambda root, product, smooth: product + _total(where(_zeros(root), smooth, 0.0))
    return lambda root, product, smooth: product + _total(smooth) if root == 0.0 else product


@overload(inner_since)
def _inner_since(root, zeros, product, smooth):
    if isinstance(root, types.Array) and not isinstance(product, types.Array):
        where = INSTEAD[np.where]
        return lambda root, zeros, product, smooth: product + _total(where(_same(root, zeros), smooth, 0.0))
    return lambda root, zeros, product, smooth: inner_with(root, product, smooth)


@overload(square_of_absolute)
def _square_of_absolute(x):
    if is_complex(x):
        return lambda x: squared(x)
    if is_complex_array(x):
        return lambda x: real_view(x) * real_view(x) + imag_view(x) * imag_view(x)
    if isinstance(x, types.Array) and is_complex(x.dtype):
        return lambda x: x.real * x.real + x.imag * x.imag
    return lambda x: x * x


@overload(square_of_hypot)
def _square_of_hypot(x, y):
    return lambda x, y: x * x + y * y


@overload(square_of_norm)
def _square_of_norm(x):
    if is_complex_array(x):
        return lambda x: _sum_of_complex(x)
    return (lambda x: _sum(x)) if is_active_array(x) else (lambda x: np.linalg.norm(x) ** 2)


@inner_njit
def _zeros(x):
    found = np.empty(x.size, np.bool_)
    for k, v in enumerate(x.flat):
        found[k] = v == 0.0
    return found.reshape(x.shape)


@inner_njit
def _statements(x):
    found = np.zeros(x.size, np.int64)
    for k, v in enumerate(x.flat):
        if v == 0.0:
            found[k] = statement_of(v)
    return found


@inner_njit
def _same(x, zeros):
    found = np.empty(x.size, np.bool_)
    for k, v in enumerate(x.flat):
        found[k] = zeros[k] != 0 and statement_of(v) == zeros[k]
    return found.reshape(x.shape)


@inner_njit
def _total(x):
    s = 0.0
    for v in x.flat:
        s = s + v
    return s


@inner_njit
def _sum(x):
    s = 0.0
    for v in x.flat:
        s = s + v * v
    return s


@inner_njit
def _sum_of_complex(x):
    s = 0.0
    for v in x.flat:
        s = s + squared(v)
    return s
