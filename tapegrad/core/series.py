"""Power series: Tensors that carry coefficients of powers of t, and what an operation does to them.

A series stands on `DUAL` as a dual Tensor does, so every operation on it comes to its level's `push`. No op
has a rule for series. The derivative of a result by t is the op's own rule for tangents, run on series; its
coefficients are those of the result, one further on: ``(k + 1) y[k + 1] = y'[k]``. They are found one after
the other, so a rule may read the very result, or apply the op once more to the same operands, and is run
once. Applied to others, as ``x ** (y - 1)`` or `solve` are, it is run again, on a series that is one shorter.
Only products and quotients, with which that would not end, are sums over the coefficients of both.

Coefficients are Tensors. They have histories and tangents of other levels where what they come from has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tapegrad.core.base import Handle, Operand, has_tangent, ndim_of, value_of, wrap
from tapegrad.core.conversion import astype
from tapegrad.core.dispatch import as_tape_value, record
from tapegrad.core.forward_mode import Dual, Level
from tapegrad.core.storage import DUAL
from tapegrad.errors import GradientError
from tapegrad.ops import kinks
from tapegrad.ops.lapack import Kept
from tapegrad.ops.primitive import MEANING, OUT, Attributes, Elementwise, Primitive

if TYPE_CHECKING:
    from tapegrad.tape.tape import Cell

Coefficient: TypeAlias = Any  # a Tensor; None: 0
DIVIDE = MEANING[np.divide]


class Expansion(Level):
    """A variable t, in powers of which Tensors are series; nothing to other levels.

    Attributes
    ----------
    order
        The highest power wanted.
    results
        While a rule is run, what was computed by the rules run for the same result: the series by op,
        operands and attributes. None otherwise.
    """

    __slots__ = ("order", "results")

    def __init__(self, order: int) -> None:
        super().__init__()
        self.order = order
        self.results: dict[Any, Result] | None = None

    def push(
        self, op: Primitive, value: Operand, operands: Sequence[Operand], attrs: Attributes | None,
        mine: Sequence[Any],
    ) -> Handle:  # fmt: skip
        """Return the Tensor of a computed value with its series; what a rule computes has it when asked."""
        moving = [k for k, d in enumerate(mine) if d is not None]
        primals = [x if d is None else d.primal for x, d in zip(operands, mine, strict=True)]
        if isinstance(op, Elementwise) and all(op.rule.partials[k].zero for k in moving):
            return record(op, value, primals, attrs)
        key = None
        if self.results is not None:
            key = _name_of(op, operands, attrs)
            known = self.results.get(key)
            if known is not None:
                return known.handle()
        out = record(op, value, primals, attrs)
        found = Result(self, out, op, operands, mine, attrs, self.results)
        if self.results is not None:
            self.results[key] = found
        else:
            try:
                found.at(self.order)
            except (
                RecursionError
            ) as error:  # a rule that goes on to other series is as deep in calls as they are
                raise RecursionError(
                    f"{op.name}: its power series to order {self.order} takes more nested calls than Python "
                    "allows; ask for a lower order, or see sys.setrecursionlimit"
                ) from error
            found.let_go()
        self.note(out, found, operands)
        return found.handle()


def _name_of(op: Primitive, operands: Sequence[Operand], attrs: Attributes | None) -> Any:
    """What the result of an op on operands is known by."""
    return op, *map(_name, operands), *((name, _name(x)) for name, x in (attrs or {}).items())


def _name(x: Any) -> Any:
    """By what an operand or an attribute is known again: the series, the number, or the very object."""
    if isinstance(x, Handle) and has_tangent(x):
        return id(x._at)
    if isinstance(x, (bool, int, float, str, slice)):
        return type(x), repr(x)
    if isinstance(x, Kept):
        return x.name()
    return tuple(map(_name, x)) if type(x) is tuple else id(x)


class Series(Dual):
    """Coefficients at a level, of which the first is the primal."""

    __slots__ = ("_derivative", "known")
    level: Expansion

    def __init__(self, level: Expansion, primal: Handle, known: Sequence[Coefficient] = ()) -> None:
        self.level, self.primal, self.source = level, primal, None
        self.known: list[Coefficient] = [primal, *known]
        self._derivative: Series | None = None

    @property
    def tangent(self) -> Handle:  # type: ignore[override]
        """What asks for a tangent alone knows nothing of series."""
        raise GradientError(
            "what takes tangents alone was applied to a Tensor that carries a power series (tg.func.taylor); "
            "write it in NumPy's functions"
        )

    def handle(self) -> Handle:
        """Return a Tensor that carries this series."""
        return wrap(self.primal._v, DUAL, self)

    def at(self, k: int) -> Coefficient:
        """Return a coefficient."""
        while len(self.known) <= k:
            self.known.append(self.compute(len(self.known)))
        return self.known[k]

    def compute(self, k: int) -> Coefficient:
        """Find a coefficient from the earlier ones."""
        return None

    def derivative(self) -> Series:
        """Return the series of the derivative by t."""
        if self._derivative is None:
            self._derivative = Derivative(self)
        return self._derivative

    def rooted(self, cell: Cell, requires_grad: bool) -> Series:
        """As `Dual.rooted`."""
        return Series(self.level, self.rooted_primal(cell, requires_grad), self.known[1:])

    @property
    def parts(self) -> list[Handle]:
        """The coefficients."""
        return [c for c in self.known if c is not None]

    def mapped(self, function: Callable[[Handle], Handle]) -> Series:
        """Return the same with what a function makes of each coefficient."""
        primal, *others = (None if c is None else function(c) for c in self.known)
        return Series(self.level, primal, others)  # type: ignore[arg-type]


class Derivative(Series):
    """The derivative by t of a series: k + 1 times its next coefficient."""

    __slots__ = ("of",)

    def __init__(self, of: Series) -> None:
        first = of.at(1)
        super().__init__(of.level, wrap(np.zeros_like(of.primal._v)[()]) if first is None else first)
        self.of = of

    def compute(self, k: int) -> Coefficient:
        """Take the next one."""
        following = self.of.at(k + 1)
        return None if following is None else following * float(k + 1)


class Result(Series):
    """What an op makes of operands, of which some are series."""

    __slots__ = ("attrs", "mine", "op", "operands", "results", "same", "slope")

    def __init__(
        self, level: Expansion, primal: Handle, op: Primitive, operands: Sequence[Any],
        mine: Sequence[Series | None], attrs: Attributes | None, results: dict[Any, Result] | None,
    ) -> None:  # fmt: skip
        super().__init__(level, primal)
        self.op, self.operands, self.attrs = op, list(operands), attrs or {}
        self.mine: list[Any] = list(mine)  # those at this level as series, of others None
        self.results = results
        self.slope: Any = None  # the derivative by t, once the rule was run
        self.same: Any = None  # what has the same series
        if op.squares is not None:
            self.same = self._even_power()

    def compute(self, k: int) -> Coefficient:
        """Find a coefficient: of what is linear, of products and quotients; of anything else by its rule."""
        with np.errstate(all="ignore"):
            found = self._compute(k)
        if found is not None and found._v.dtype != self.primal._v.dtype:
            found = astype(found, self.primal._v.dtype)
        return found

    def _compute(self, k: int) -> Coefficient:
        op, mine = self.op, self.mine
        if self.same is not None:
            same: Series = self.same._at
            return same.at(k)
        moving = [q for q, d in enumerate(mine) if d is not None]
        if self._is_linear(moving):
            parts = [None if d is None else d.at(k) for d in mine]
            if all(part is None for part in parts):
                return None
            primals = [x if d is None else d.primal for x, d in zip(self.operands, mine, strict=True)]
            return _tensor(op.jvp(parts, self.primal, primals, self.attrs))
        if op.multilinear:
            product = total(op(*parts, **self.attrs) for parts in self._parts(k, mine))
            return None if product is None else _tensor(product)
        if op is DIVIDE:
            a, b = self.operands[0] if mine[0] is None else mine[0].at(k), mine[1]
            minus = total(_times(b.at(j), self.at(k - j)) for j in range(1, k + 1))
            found = None if mine[0] is None else a
            found = found if minus is None else -minus if found is None else found - minus
            return None if found is None else _tensor(found / b.primal)
        return self._by_rule(k)

    def _is_linear(self, moving: Sequence[int]) -> bool:
        """Whether the rule reads nothing that moves, so that it is right of each coefficient."""
        reads, varied = 0, 1 << OUT
        for q in moving:
            reads |= self.op.masks[min(q, 2)] if self.op.arity else self.op.masks[0]
            varied |= 1 << min(q, 2)
        return not reads & varied

    def _parts(self, k: int, mine: Sequence[Series | None]) -> Iterator[list[Any]]:
        """Operands of a product whose powers make k together."""
        if not mine:
            if k == 0:
                yield []
            return
        first, rest = mine[0], mine[1:]
        place = len(self.mine) - len(mine)
        for j in range(k + 1 if first is not None else 1):
            part = self.operands[place] if first is None else first.at(j)
            if part is not None:
                for parts in self._parts(k - j, rest):
                    yield [part, *parts]

    def _by_rule(self, k: int) -> Coefficient:
        if self.slope is None:
            with self._as_rule():
                slope = self._run_rule()
            self.slope = wrap(np.zeros_like(self.primal._v)[()]) if slope is None else _tensor(slope)
        slope = self.slope
        if slope._tape is DUAL and slope._at.level is self.level:
            found = slope._at.at(k - 1)
        else:
            found = slope if k == 1 else None
        return None if found is None else found * (1.0 / k)

    def _run_rule(self) -> Any:
        """The tangent along the derivatives of the operands by t."""
        tangents = [None if d is None else d.derivative().handle() for d in self.mine]
        try:
            return self.op.jvp(tangents, self.handle(), self.operands, self.attrs)
        except NotImplementedError as error:
            raise GradientError(
                f"{self.op.name} has no power series (tg.func.taylor), as it has no rule for tangents; "
                "write it in NumPy's functions"
            ) from error

    @contextmanager
    def _as_rule(self) -> Iterator[None]:
        """Let series computed meanwhile be found when asked for, and no two be of the same."""
        level, before = self.level, self.level.results
        if self.results is None:
            self.results = {_name_of(self.op, self.operands, self.attrs): self}
        level.results = self.results
        try:
            yield
        finally:
            level.results = before

    def let_go(self) -> None:
        """Forget, all coefficients being known, what they came from: series that refer to one another."""
        of_rules, self.results = self.results or {}, None
        for series in (self, *self.mine, *of_rules.values()):
            while series is not None:
                if isinstance(series, Result) and series is not self:
                    series.results = None
                if isinstance(series, Result):
                    series.slope = None
                series._derivative, series = None, series._derivative
        of_rules.clear()

    def _even_power(self) -> Handle | None:
        """What an even power of a length is, which is smooth where that is 0: a power of its square."""
        length = self.mine[0]
        if not isinstance(length, Result) or not length.op.kink or length.op.arity != 1:
            return None
        exponent = 2.0
        if self.op.squares == kinks.POWER:
            exponent = value_of(self.operands[1])
            if self.mine[1] is not None or np.ndim(exponent) or not (exponent >= 2 and exponent % 2 == 0):
                return None
        elif self.op.squares == kinks.PRODUCT and not length.is_like(self.mine[1]):
            return None
        if not isinstance(self.op, Elementwise) and ndim_of(length.primal) != 1:  # an inner product
            return None
        with self._as_rule():
            x = length.operands[0]
            square = np.real(np.conj(x) * x) if x.dtype.kind == "c" else x * x
            if length.attrs:
                square = np.sum(square, **length.attrs)
            if not isinstance(self.op, Elementwise):
                square = np.sum(square)
            found: Handle = square if exponent == 2 else square ** (exponent / 2)
            return found

    def is_like(self, other: Series | None) -> bool:
        """Whether two are the same function of the same operand."""
        return self is other or (
            isinstance(other, Result) and self.op is other.op and self.attrs == other.attrs
            and self.mine == other.mine
        )  # fmt: skip


def _times(a: Coefficient, b: Coefficient) -> Coefficient:
    return None if a is None or b is None else a * b


def total(terms: Iterator[Coefficient]) -> Coefficient:
    """Return the sum of what is not None; None if nothing is left."""
    found = None
    for term in terms:
        if term is not None:
            found = term if found is None else found + term
    return found


def _tensor(x: Operand) -> Handle:
    return x if isinstance(x, Handle) else wrap(as_tape_value(x))
