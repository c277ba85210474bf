"""Numbers that emit LLVM code when they are computed with: a float64, or a dual number over such numbers.

A derivative rule of `tapegrad.ops`, run on them, is compiled where it stands: so the rules that NumPy calls
follow are those of native recording too, and of its second and higher derivatives, which are the same rules
run on dual numbers. Literals stay literals: what they alone decide costs nothing at run time.
"""

from __future__ import annotations

import functools
import math
import operator
import types as python_types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError
from numba.core.typing.templates import signature
from numba.np import ufunc_db

from tapegrad.kernels import linked
from tapegrad.kernels.emit import LIBM, VECTOR
from tapegrad.kernels.symbols import can_link
from tapegrad.kernels.vecmath import definition, is_defined, number
from tapegrad.native.emission.annotations import Builder, Context, Key, Value
from tapegrad.native.emission.gammas import polygamma
from tapegrad.ops import MEANING, REGISTRY
from tapegrad.ops.primitive import Elementwise, OfFormula, Primitive
from tapegrad.ops.rules import STEPS as FORMULAS
from tapegrad.ops.rules import Rule

F64, I64, I32, I8 = ir.DoubleType(), ir.IntType(64), ir.IntType(32), ir.IntType(8)
f8 = types.float64

# Tangents of each nested level of dual numbers, or minus the order of a series; a 0 at the end: on no tape.
Spec = tuple[int, ...]
MARKED = 1 << 30  # in the place of a number of tangents: one, and whether it is active
Activity = bool | Value  # whether a number is active: known, or an LLVM value


def components(spec: Spec) -> int:
    """Return of how many float64 a number of this kind consists."""
    return math.prod(3 if lanes == MARKED else 1 + abs(lanes) for lanes in spec)


def products(spec: Spec) -> list[tuple[int, int, int]]:
    """Which components of two factors have their product in which component."""
    if not spec or not spec[0]:
        return [(0, 0, 0)]
    step, found = components(spec[1:]), []
    for i, j, k in products(spec[1:]):
        found.append((i, j, k))
        for lane in range(step, step * (spec[0] + 1), step):
            found += [(lane + i, j, lane + k), (i, lane + j, lane + k)]
    return found


class Emitter:
    """Where code goes: Numba's context, and LLVM's builder.

    In a loop that may become SIMD code, where `in_loop` says so, functions are vector forms; those that are
    right only near 0 just where it is told at `outside`, the place of a truth value, that an operand was not
    there. Literals are numbers of the type `real`.
    """

    real: Any = F64

    def __init__(
        self, context: Context, builder: Builder, in_loop: bool = False, outside: Value | None = None
    ) -> None:
        self.context, self.builder, self.in_loop, self.outside = context, builder, in_loop, outside
        self.limited = False  # whether there are forms that are right only near 0
        self.may_raise = False  # whether functions in a loop may leave an exception to what comes after it

    def constant(self, literal: float) -> Value:
        """A literal as an LLVM value."""
        return ir.Constant(self.real, literal)

    def has_form(self, name: str) -> bool:
        """Whether a function is its vector form here."""
        return self.in_loop and name in VECTOR and (name not in LIBM or self.outside is not None)

    def form(self, name: str, values: Sequence[Value]) -> Value:
        """Emit the vector form of a function."""
        numbers = [number.Number(self.builder, value) for value in values]
        if name in LIBM:
            self.limited = True
            outside = self.builder.not_(definition(f"{name}_ok")(*numbers).value)
            self.builder.store(self.builder.or_(self.builder.load(self.outside), outside), self.outside)
        made: Value = definition(name)(*numbers).value
        return made

    def call(self, function: Callable[..., float], values: Sequence[Value]) -> Value | float:
        """Emit a call of a function of floats, as Numba lowers it."""
        form = signature(f8, *[f8] * len(values))
        return self.context.get_function(function, form)(self.builder, tuple(values))

    def compiled(self, function: Callable[..., float], values: Sequence[Value]) -> Value | float:
        """Emit a call of a small Python function of floats."""
        form = signature(f8, *[f8] * len(values))
        return self.context.compile_internal(self.builder, function, form, tuple(values))

    def linked(self, name: str, values: Sequence[Value]) -> Value:
        """Emit a call of a function of SciPy's, which may raise."""
        found = linked.emit_call(self.builder, name, values)
        if self.in_loop:
            self.may_raise = True
        else:
            linked.emit_raise(self.context, self.builder)
        return found

    def intrinsic(self, name: str, value: Value) -> Value | float:
        function = self.builder.module.declare_intrinsic(f"llvm.{name}", [self.real])
        return self.builder.call(function, [value])

    def number(self, spec: Spec, values: Sequence[Value | float], active: Activity = True) -> Number:
        """Return a number whose components are these LLVM values or floats; `active` as in `Dual`."""
        if not spec or not spec[0]:
            return Real(self, values[0])
        step = components(spec[1:])
        rows = [values[k : k + step] for k in range(0, len(values), step)]
        if spec[0] > 1 and spec[-1] == 0:
            inner = spec[1:-1]
            moved = [self.vector(lane) for lane in zip(*rows[1:], strict=True)]
            return Packed(self.number(inner, rows[0]), self.number(inner, moved), spec[0])
        parts = [self.number(spec[1:], row, active) for row in rows]
        if spec[0] == MARKED:
            return Marked(parts[0], parts[1:])
        return Dual(parts[0], parts[1:], active) if spec[0] > 0 else Series(parts)

    def vector(self, values: Sequence[Value | float]) -> Value | float:
        """Return LLVM values or floats as one vector; zeros stay a float."""
        if all(value == 0.0 for value in values if not isinstance(value, ir.Value)) and not any(
            isinstance(value, ir.Value) for value in values
        ):
            return 0.0
        found = ir.Constant(ir.VectorType(F64, len(values)), ir.Undefined)
        for k, value in enumerate(values):
            value = value if isinstance(value, ir.Value) else ir.Constant(F64, value)
            found = self.builder.insert_element(found, value, ir.Constant(I32, k))
        return found

    def alike(self, a: Value, b: Value, condition: Value | None = None) -> tuple[Value, Value]:
        """Return two LLVM values as ones of one type, a vector where one of them or the condition is."""
        values = (a, b) if condition is None else (a, b, condition)
        count = next((v.type.count for v in values if isinstance(v.type, ir.VectorType)), 0)
        if not count:
            return a, b
        return self._spread(a, count), self._spread(b, count)

    def _spread(self, value: Value, count: int) -> Value:
        if isinstance(value.type, ir.VectorType):
            return value
        wide = ir.VectorType(value.type, count)
        first = self.builder.insert_element(ir.Constant(wide, ir.Undefined), value, ir.Constant(I32, 0))
        mask = ir.Constant(ir.VectorType(I32, wide.count), [0] * wide.count)
        return self.builder.shuffle_vector(first, ir.Constant(wide, ir.Undefined), mask)


class Truth:
    """The outcome of a comparison: a bool, or an LLVM value."""

    def __init__(self, emit: Emitter, value: Value | bool) -> None:
        self.emit, self.value = emit, value

    def __array_function__(
        self, function: Key, kinds: Sequence[type], args: tuple[Number | float, ...], kwargs: dict[str, Any]
    ) -> Number | float:
        return choice(*args) if function is np.where else NotImplemented


class Number:
    """What derivative rules are run on."""

    emit: Emitter

    def lift(self, other: Number | float) -> Number:
        """Return a literal, or a plainer number, as a number like this."""
        raise NotImplementedError

    def real(self) -> Real:
        """The part without tangents, which alone decides comparisons."""
        raise NotImplementedError

    def with_value(self, value: Value | float) -> Number:
        """A number with another value, an LLVM value, and the same tangents."""
        raise NotImplementedError

    def flat(self) -> list[Value]:
        """The components as LLVM values."""
        raise NotImplementedError

    def choose(self, condition: Value, other: Number) -> Number:
        """Itself where the condition holds, else the other."""
        raise NotImplementedError

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *args: Number | float, **kwargs: Any) -> Number:
        if method != "__call__" or kwargs:
            return NotImplemented
        return evaluate(OPS[ufunc] if ufunc in OPS else MEANING[ufunc], *args)

    def __array_function__(
        self, function: Key, kinds: Sequence[type], args: tuple[Number | float, ...], kwargs: dict[str, Any]
    ) -> Number | float:
        return choice(*args) if function is np.where else NotImplemented

    def _apply(self, op: Elementwise, args: Sequence[Number | float], attrs: Any) -> Number:
        """An op that a rule calls by itself."""
        return evaluate(op, *args)

    def __add__(self, other: Number | float) -> Number:
        return evaluate("add", self, other)

    def __radd__(self, other: Number | float) -> Number:
        return evaluate("add", other, self)

    def __sub__(self, other: Number | float) -> Number:
        return evaluate("subtract", self, other)

    def __rsub__(self, other: Number | float) -> Number:
        return evaluate("subtract", other, self)

    def __mul__(self, other: Number | float) -> Number:
        return evaluate("multiply", self, other)

    def __rmul__(self, other: Number | float) -> Number:
        return evaluate("multiply", other, self)

    def __truediv__(self, other: Number | float) -> Number:
        return evaluate("divide", self, other)

    def __rtruediv__(self, other: Number | float) -> Number:
        return evaluate("divide", other, self)

    def __pow__(self, other: Number | float) -> Number:
        return evaluate("power", self, other)

    def __rpow__(self, other: Number | float) -> Number:
        return evaluate("power", other, self)

    def __neg__(self) -> Number:
        return evaluate("negative", self)

    def __lt__(self, other: Number | float) -> Truth:
        return compare("<", self, other)

    def __le__(self, other: Number | float) -> Truth:
        return compare("<=", self, other)

    def __gt__(self, other: Number | float) -> Truth:
        return compare(">", self, other)

    def __ge__(self, other: Number | float) -> Truth:
        return compare(">=", self, other)

    def __eq__(self, other: Any) -> Any:
        return compare("==", self, other)

    def __ne__(self, other: Any) -> Any:
        return compare("!=", self, other)

    __hash__ = object.__hash__


class Real(Number):
    """A float64: an LLVM value or a literal."""

    def __init__(self, emit: Emitter, value: Value | float) -> None:
        self.emit = emit
        self.literal = None if isinstance(value, ir.Value) else float(value)
        self._value = value

    @property
    def value(self) -> Value:
        return self._value if self.literal is None else self.emit.constant(self.literal)

    def lift(self, other: Number | float) -> Number:
        return other if isinstance(other, Number) else Real(self.emit, other)

    def real(self) -> Real:
        return self

    def with_value(self, value: Value | float) -> Number:
        return Real(self.emit, value)

    def flat(self) -> list[Value]:
        return [self.value]

    def choose(self, condition: Value, other: Number) -> Number:
        if self.literal is not None and self.literal == other.literal:
            return self
        a, b = self.emit.alike(self.value, other.value, condition)
        return Real(self.emit, self.emit.builder.select(condition, a, b))


class Complex(Number):
    """A complex128, of two float64: what stands in place of each float64 in numbers with complex values."""

    def __init__(self, emit: Emitter, re: Real, im: Real) -> None:
        self.emit, self.re, self.im = emit, re, im

    def lift(self, other: Number | complex) -> Number:
        if isinstance(other, Real):
            return Complex(self.emit, other, Real(self.emit, 0.0))
        if isinstance(other, Number):
            return other
        return Complex(self.emit, Real(self.emit, other.real), Real(self.emit, other.imag))

    def real(self) -> Any:
        return self

    def flat(self) -> list[Value]:
        return [self.re.value, self.im.value]

    def choose(self, condition: Value, other: Number) -> Number:
        parts: list[Number] = [a.choose(condition, b) for a, b in self.beside(other)]
        return Complex(self.emit, *parts)

    def beside(self, other: Complex) -> list[tuple[Real, Real]]:
        """The parts of two numbers, in pairs."""
        return [(self.re, other.re), (self.im, other.im)]


def paired(re: Number, im: Number) -> Number:
    """Return the number with complex values whose parts these numbers of one kind are."""
    if isinstance(re, Real):
        return Complex(re.emit, re, im)
    if isinstance(re, Series):
        return Series([paired(a, b) for a, b in zip(re.terms, im.terms, strict=True)])
    tangents = [paired(a, b) for a, b in zip(re.tangents, im.tangents, strict=True)]
    return re.made(paired(re.primal, im.primal), tangents, either(re, im))


def part_of(z: Number, name: str) -> Number:
    """Return a part, "re" or "im", of a number with complex values."""
    if isinstance(z, Complex):
        return getattr(z, name)
    if isinstance(z, Series):
        return Series([part_of(term, name) for term in z.terms])
    return z.made(part_of(z.primal, name), [part_of(t, name) for t in z.tangents], z.active)


class Dual(Number):
    """A number and its derivatives in one or more directions, each itself a number.

    What is not active, as a constant, has no part in a tangent, also where the partial by it is infinite or
    nan. A tangent of 0 does not tell: ``x**3`` at 0 is active, and its tangent times the partial of ``cbrt``
    is nan, for Tensors too. In statements factors are taken to be finite: adjoints compute products again,
    but no choices.
    """

    def __init__(self, primal: Number, tangents: Sequence[Number], active: Activity = True) -> None:
        self.emit, self.primal, self.tangents = primal.emit, primal, tuple(tangents)
        self._active, self.unguarded = active, not primal.emit.in_loop

    @property
    def active(self) -> Activity:
        """Whether it is active, as far as that is known."""
        return self._active

    def lift(self, other: Number | float) -> Number:
        if isinstance(other, Dual):
            return other
        primal = self.primal.lift(other)
        return self.made(primal, [self.primal.lift(0.0)] * len(self.tangents), False)

    def made(self, primal: Number, tangents: Sequence[Number], active: Activity) -> Dual:
        """A number of this kind."""
        return Dual(primal, tangents, active)

    def real(self) -> Real:
        return self.primal.real()

    def with_value(self, value: Value | float) -> Number:
        return self.made(self.primal.with_value(value), self.tangents, self.active)

    def flat(self) -> list[Value]:
        return [v for part in (self.primal, *self.tangents) for v in part.flat()]

    def choose(self, condition: Value, other: Number) -> Number:
        pairs = zip(self.tangents, other.tangents, strict=True)
        tangents, active, others = [a.choose(condition, b) for a, b in pairs], self.active, other.active
        if active is not others:
            both = self.emit.alike(*(bit(Truth(self.emit, x)) for x in (active, others)), condition=condition)
            active = self.emit.builder.select(condition, *both)
        return self.made(self.primal.choose(condition, other.primal), tangents, active)


class Marked(Dual):
    """A dual number that says whether it is active: beside its tangent there is a number, 0 where not."""

    def __init__(self, primal: Number, tangents: Sequence[Number]) -> None:
        super().__init__(primal, tangents)
        self.unguarded = False

    @property
    def active(self) -> Activity:
        return compare("!=", self.tangents[1], 0.0).value

    def made(self, primal: Number, tangents: Sequence[Number], active: Activity) -> Dual:
        mark = choice(Truth(self.emit, active), primal.lift(1.0), primal.lift(0.0))
        return Marked(primal, (tangents[0], mark))


class Packed(Dual):
    """A dual number whose tangents are one number of vectors, with an element for each direction."""

    def __init__(self, primal: Number, tangent: Number, lanes: int) -> None:
        super().__init__(primal, (tangent,))
        self.lanes = lanes

    def made(self, primal: Number, tangents: Sequence[Number], active: Activity) -> Dual:
        return Packed(primal, tangents[0], self.lanes)

    def flat(self) -> list[Value]:
        parts, builder = self.tangents[0].flat(), self.emit.builder
        rows = [
            builder.extract_element(v, ir.Constant(I32, q)) if isinstance(v.type, ir.VectorType) else v
            for q in range(self.lanes)
            for v in parts
        ]
        return [*self.primal.flat(), *rows]


class Series(Number):
    """A truncated power series; its coefficients are numbers."""

    def __init__(self, terms: Sequence[Number]) -> None:
        self.emit, self.terms = terms[0].emit, tuple(terms)

    def lift(self, other: Number | float) -> Number:
        if isinstance(other, Series):
            return other
        first = self.terms[0]
        return Series([first.lift(other), *[first.lift(0.0)] * (len(self.terms) - 1)])

    def real(self) -> Real:
        return self.terms[0].real()

    def with_value(self, value: Value | float) -> Number:
        return Series([self.terms[0].with_value(value), *self.terms[1:]])

    def flat(self) -> list[Value]:
        return [v for term in self.terms for v in term.flat()]

    def choose(self, condition: Value, other: Number) -> Number:
        pairs = zip(self.terms, other.terms, strict=True)
        return Series([a.choose(condition, b) for a, b in pairs])

    def shorter(self) -> Series:
        """The series without its last term."""
        return Series(self.terms[:-1])


# ---------------------------------------------------------------- comparisons and choices

_PYTHON = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
    "!=": operator.ne,
}  # fmt: skip
COMPARISONS: dict[Key, str] = {function: how for how, function in _PYTHON.items()}


def compare(how: str, a: Number | float, b: Number | float) -> Truth:
    """Compare by values, as IEEE has it."""
    emit = next(v.emit for v in (a, b) if isinstance(v, Number))
    x, y = _alike(emit, [v.real() if isinstance(v, Number) else v for v in (a, b)])
    if isinstance(x, Complex):
        return _compare_pairs(how, x, y)
    if x.literal is not None and y.literal is not None:
        return Truth(emit, _PYTHON[how](x.literal, y.literal))
    builder = emit.builder
    form = builder.fcmp_unordered if how == "!=" else builder.fcmp_ordered
    return Truth(emit, form(how, *emit.alike(x.value, y.value)))


def _compare_pairs(how: str, x: Complex, y: Complex) -> Truth:
    """Compare complex numbers as NumPy does: by their real parts, equal ones by the other."""
    builder = x.emit.builder

    def held(how: str, a: Real, b: Real) -> Value:
        return bit(compare(how, a, b))

    if how == "!=":
        return Truth(x.emit, builder.or_(*(held(how, a, b) for a, b in x.beside(y))))
    if how == "==":
        return Truth(x.emit, builder.and_(*(held(how, a, b) for a, b in x.beside(y))))
    first = held(how[0], x.re, y.re)
    return Truth(x.emit, builder.or_(first, builder.and_(held("==", x.re, y.re), held(how, x.im, y.im))))


def choice(condition: Truth | bool, a: Number | float, b: Number | float) -> Any:
    """Return one of two numbers, or what is each where a condition holds and where not."""
    if not isinstance(condition, Truth):  # Python itself has compared what are literals
        return a if condition else b
    if isinstance(condition.value, bool):
        return a if condition.value else b
    first, second = _alike(condition.emit, (a, b))
    return first.choose(condition.value, second)


def where(truth: Truth, a: Number, b: Number) -> Number:
    """Return one of two numbers as `choice` does; it is active where either of them is, as for Tensors."""
    first, second = _alike(truth.emit, (a, b))
    if not isinstance(first, Dual):
        return choice(truth, first, second)
    tangents = [where(truth, s, t) for s, t in zip(first.tangents, second.tangents, strict=True)]
    return first.made(where(truth, first.primal, second.primal), tangents, either(first, second))


def either(*numbers: Dual) -> Activity:
    """Whether one of several numbers is active."""
    found = {id(active): active for active in (x.active for x in numbers) if active is not False}
    if not found or any(active is True for active in found.values()):
        return bool(found)
    emit = numbers[0].emit
    return functools.reduce(lambda a, b: emit.builder.or_(*emit.alike(a, b)), found.values())


def bit(truth: Truth) -> Value:
    """The outcome of a comparison as an LLVM value."""
    return ir.Constant(ir.IntType(1), int(truth.value)) if isinstance(truth.value, bool) else truth.value


def _alike(emit: Emitter, args: Sequence[Number | float]) -> list[Number]:
    """Return operands as numbers of one kind."""
    like: Number = Real(emit, 0.0)
    for x in args:
        if isinstance(x, (Dual, Series)) or (isinstance(x, Complex) and isinstance(like, Real)):
            like = x
    return [like.lift(x) for x in args]


# ---------------------------------------------------------------- functions

UNROLLED = 64  # exponents up to which a power is a product
Partial = Callable[..., Any]


class Function(NamedTuple):
    """A function of numbers that is no op; what it says is what rows of `tapegrad.ops` say."""

    name: str
    functions: tuple[Key, ...] = ()
    partials: tuple[Partial | None, ...] = ()  # of the operands and the result; none: its derivative is zero
    math: Callable[..., float] | None = None
    llvm: str | None = None
    scalar: Callable[..., Number] | None = None
    forward: Callable[..., float] | None = None
    linked: str = ""

    @property
    def arity(self) -> int:
        """Number of operands."""
        return max(len(self.partials), 1)


def _sign(x: Real) -> Number:
    return np.where(x > 0, 1.0, np.where(x < 0, -1.0, np.where(x == x, 0.0, x)))


STEPS = (np.floor, np.ceil, np.trunc, np.rint)
OTHERS = {
    f.name: f
    for f in (
        *(Function(step.__name__, (step,), llvm=step.__name__) for step in STEPS),
        Function("sign", (np.sign,), scalar=_sign),
        Function("erf", (), (lambda x, out: 1.1283791670955126 * np.exp(-x * x),), math.erf),
        Function("erfc", (), (lambda x, out: -1.1283791670955126 * np.exp(-x * x),), math.erfc),
        Function("gamma", (), (lambda x, out: out * evaluate("polygamma", 0.0, x),), math.gamma),
        Function("lgamma", (), (lambda x, out: evaluate("polygamma", 0.0, x),), math.lgamma),
        Function(
            "polygamma", (), (None, lambda n, x, out: evaluate("polygamma", n + 1.0, x)), forward=polygamma
        ),
    )
}


def row(name: str | Elementwise) -> Any:
    """Return what is known of a function by its name: an op, which may stand for itself, or another one."""
    return (OTHERS.get(name) or REGISTRY[name]) if isinstance(name, str) else name


def _of_numbers(op: Primitive) -> bool:
    """Whether an op is a function of real numbers, which rules of compiled code can be run on."""
    if not isinstance(op, Elementwise) or op.explicit or op.linked or not op.listed:
        return False
    return any((op.math, op.llvm, op.scalar)) or isinstance(op.forward, np.ufunc)


def known_to_numba(function: Key) -> bool:
    """Whether Numba has a function: of ufuncs those of NumPy alone."""
    return not isinstance(function, np.ufunc) or function in ufunc_db.get_ufuncs()


# Names of functions of one or two numbers, by the functions of NumPy, Python and its modules that mean them.
OPS = {f: op.name for f, op in MEANING.items() if _of_numbers(op) and op.arity < 3 and known_to_numba(f)}
OPS |= {f: other.name for other in OTHERS.values() for f in (*other.functions, other.math) if f is not None}
# Functions of three numbers, as ufuncs: as such Numba finds them in expressions of arrays.
WHERE = np.frompyfunc(lambda condition, x, y: x if condition else y, 3, 1)
CLIP = np.frompyfunc(np.clip, 3, 1)
OPS[CLIP] = MEANING[np.clip].name


def evaluate(name: str | Elementwise, *args: Number | float) -> Number:
    """Return a function of numbers, some of them perhaps literals: its code, and that of its derivatives.

    The function is given by its name, or is the op itself.
    """
    emit = next(x.emit for x in args if isinstance(x, Number))
    numbers = _alike(emit, args)
    first = numbers[0]
    if isinstance(first, Series):
        return _series(name, numbers)
    if not isinstance(first, Dual):
        return _primal(name, numbers)
    inner = tuple(x.primal for x in numbers)
    out = evaluate(name, *inner)
    lanes = range(len(first.tangents))
    if is_step(name):
        return first.lift(out)
    tangents = [out.lift(0.0) for _ in lanes]
    for k, x in enumerate(numbers):
        if any(not _is_zero(t) for t in x.tangents):
            d = partial(name, k, inner, out)
            parts = [out.lift(d) * t for t in x.tangents]
            if not (isinstance(d, float) or (x.unguarded and any(d is factor for factor in inner))):
                parts = [choice(Truth(emit, x.active), part, 0.0) for part in parts]
            tangents = [t + part for t, part in zip(tangents, parts, strict=True)]
    return first.made(out, tangents, either(*numbers))


def is_step(name: str | Elementwise) -> bool:
    """Whether a function's derivative is zero."""
    return name in OTHERS and not OTHERS[name].partials


def _series(name: str | Elementwise, args: Sequence[Series]) -> Number:
    """Return a function of series, by the differential equation that it obeys."""
    first = evaluate(name, *(x.terms[0] for x in args))
    order = len(args[0].terms) - 1
    if order == 0 or is_step(name):
        return args[0].lift(first)
    if row(name).llvm == "fmul":
        a, b = (x.terms for x in args)
        return Series([_total(a[i] * b[k - i] for i in range(k + 1)) for k in range(order + 1)])
    inner = [x.shorter() for x in args]
    out = _series(name, inner)
    parts = [
        out.lift(partial(name, k, inner, out)).terms if any(not _is_zero(t) for t in x.terms[1:]) else None
        for k, x in enumerate(args)
    ]
    terms = list(out.terms)
    last = [
        float(i) * x.terms[i] * p[order - i]
        for x, p in zip(args, parts, strict=True)
        if p is not None
        for i in range(1, order + 1)
    ]
    terms.append(_total(last) / float(order) if last else first.lift(0.0))
    return Series(terms)


def _total(parts: Iterable[Number]) -> Number:
    return functools.reduce(operator.add, parts)


def _is_zero(x: Number) -> bool:
    return all(isinstance(v, ir.Constant) and v.constant == 0.0 for v in x.flat())


def partial(name: str | Elementwise, k: int, args: Sequence[Number], out: Number) -> Number | float:
    """Return the derivative of a function by its operand k."""
    known = row(name)
    if isinstance(known, Function):
        own = known.partials[k]
        return 0.0 if own is None else own(*args, out)
    rule = known.rule
    if known.of_complex is not None and isinstance(args[0].real(), Complex):
        rule = known.of_complex
    if k in known.unknown:
        raise TypingError(
            f"tapegrad: {known.title}: no derivative by its argument {known.unknown[k]} is known; "
            "in compiled code that is a constant"
        )
    others = [x for j, x in enumerate(args) if j != k]
    if known.mixed is None or not any(map(_may_vary, others)):
        return _partial_by(rule, k, args, out)
    found = _partial_by(known.mixed, k, args, out)
    varying = either(*(x for x in others if isinstance(x, Dual)))
    if isinstance(varying, bool) or any(isinstance(x, Series) for x in others):
        return found
    return choice(Truth(out.emit, varying), found, _partial_by(rule, k, args, out))


def _partial_by(rule: Rule, k: int, args: Sequence[Number], out: Number) -> Number | float:
    part = rule.partials[k]
    if part.zero:
        return 0.0
    if part.constant is not None:
        return part.constant or Real(out.emit, out.emit.constant(0.0))  # a factor, see `_product`
    values = dict(zip([p for p in rule.parameters if p != "out"], args, strict=True), out=out)
    function = part.function
    if out.emit.in_loop and isinstance(out, Real):
        function = _by_forms(out.emit, rule.recorded[k].function)
    elif rule.recorded is not rule.partials and not isinstance(out, Real):
        function = _by_steps(rule.recorded[k].function)
    return function(*(values[p] for p in rule.parameters))


def _may_vary(x: Number) -> bool:
    """Whether a number may have tangents; of a series it is taken to have."""
    return x.active is not False if isinstance(x, Dual) else isinstance(x, Series)


def _by_forms(emit: Emitter, function: Callable[..., Number | float]) -> Callable[..., Number | float]:
    """A rule in which formulas are vector forms where there are such: a slope by the parts of the value."""
    forms = {
        name: (lambda x, name=name: Real(emit, emit.form(name, [x.value])))
        if is_defined(name)
        else op.forward
        for name, op in FORMULAS.items()
    }
    return python_types.FunctionType(function.__code__, function.__globals__ | forms)


def _by_steps(function: Callable[..., Number | float]) -> Callable[..., Number | float]:
    """A rule in which formulas are differentiated as the ops that are declared of them."""
    steps = {name: functools.partial(evaluate, op) for name, op in FORMULAS.items()}
    return python_types.FunctionType(function.__code__, function.__globals__ | steps)


def _primal(name: str | Elementwise, args: Sequence[Number]) -> Number:
    emit, known = args[0].emit, row(name)
    if isinstance(args[0], Complex):
        return _of_complex(known, args)
    if emit.has_form(known.name):
        return Real(emit, emit.form(known.name, [x.value for x in args]))
    if known.llvm:
        instruction = INSTRUCTIONS.get(known.llvm)
        return instruction(*args) if instruction else Real(emit, emit.intrinsic(known.llvm, args[0].value))
    if known.scalar:
        return args[0].lift(known.scalar(*args))
    values = [x.value for x in args]
    if known.linked and can_link(known.linked):
        return Real(emit, emit.linked(known.linked, values))
    if known.math:
        return Real(emit, emit.call(known.math, values))
    if not isinstance(known, Function) and known.registry is not REGISTRY:
        raise TypingError(f"tapegrad: {known.title} has no form in compiled code")
    return Real(emit, emit.compiled(_called(known.forward, len(args)), values))


def _of_complex(known: Elementwise, args: Sequence[Complex]) -> Number:
    """Return a function of complex numbers: sums and products of parts, others as Numba has NumPy's."""
    emit, (z, w) = args[0].emit, (args[0], args[-1])
    if isinstance(known, OfFormula):
        return z.lift(known.forward(*args))
    if known.llvm in ("fadd", "fsub"):
        return Complex(emit, *(INSTRUCTIONS[known.llvm](a, b) for a, b in z.beside(w)))
    if known.llvm == "fneg":
        return Complex(emit, _negative(z.re), _negative(z.im))
    if known.llvm == "fmul":
        real = _difference(_product(z.re, w.re), _product(z.im, w.im))
        return Complex(emit, real, _sum(_product(z.re, w.im), _product(z.im, w.re)))
    values = [emit.context.make_complex(emit.builder, types.complex128) for _ in args]
    for value, x in zip(values, args, strict=True):
        value.real, value.imag = x.re.value, x.im.value
    function = power_of_complex if known.llvm == "pow" else _called(known.forward, len(args))
    form = signature(types.complex128, *[types.complex128] * len(args))
    given = [value._getvalue() for value in values]
    found = emit.context.compile_internal(emit.builder, function, form, given)
    out = emit.context.make_complex(emit.builder, types.complex128, value=found)
    return Complex(emit, Real(emit, out.real), Real(emit, out.imag))


def power_of_complex(z: complex, w: complex) -> complex:
    """A power as NumPy has it: of a small whole exponent a product."""
    n = int(w.real) if abs(w.real) < 100.0 else 0
    if w == 0.0:
        return 1.0 + 0.0j
    if z == 0.0:
        return 0.0j if w.real > 0.0 and w.imag == 0.0 else complex(np.nan, np.nan)
    if w.imag != 0.0 or n != w.real:
        return z**w
    if 0 < n < 4:  # one times infinity has nan in it
        return z if n == 1 else z * z if n == 2 else z * (z * z)
    found, base, left = 1.0 + 0.0j, z, abs(n)
    while True:
        if left & 1:
            found = found * base
        left >>= 1
        if left == 0:
            return found if n > 0 else np.divide(1.0 + 0.0j, found)
        base = base * base


@functools.cache
def _called(function: Key, count: int) -> Key:
    """A Python function that calls another, or a ufunc, as Numba compiles Python functions alone."""
    if isinstance(function, python_types.FunctionType):
        return function
    return (lambda x: function(x)) if count == 1 else lambda x, y: function(x, y)


def _computed(instruction: str, literally: Callable[[float, float], float], a: Real, b: Real) -> Real:
    if a.literal is not None and b.literal is not None and (b.literal or instruction != "fdiv"):
        return Real(a.emit, literally(a.literal, b.literal))
    return Real(a.emit, getattr(a.emit.builder, instruction)(*a.emit.alike(a.value, b.value)))


def _sum(a: Real, b: Real) -> Real:
    if a.literal == 0.0:
        return b
    if b.literal == 0.0:
        return a
    return _computed("fadd", operator.add, a, b)


def _difference(a: Real, b: Real) -> Real:
    if b.literal == 0.0:
        return a
    return _computed("fsub", operator.sub, a, b)


def _product(a: Real, b: Real) -> Real:
    if b.literal == 1.0:
        return a
    if a.literal == 1.0:
        return b
    if a.literal == 0.0 or b.literal == 0.0:  # a literal zero: nothing comes this way
        return Real(a.emit, 0.0)
    if a.literal == -1.0 or b.literal == -1.0:
        return _negative(b if a.literal == -1.0 else a)
    return _computed("fmul", operator.mul, a, b)


def _quotient(a: Real, b: Real) -> Real:
    if b.literal == 1.0:
        return a
    return _computed("fdiv", operator.truediv, a, b)


def _negative(x: Real) -> Real:
    return Real(x.emit, x.emit.builder.fneg(x.value) if x.literal is None else -x.literal)


def _power(x: Real, y: Real) -> Number:
    n = y.literal
    if n is not None and n == int(n) and abs(n) <= UNROLLED:
        return x.lift(1.0) if n == 0 else _whole_power(x, int(n)) if n > 0 else 1.0 / _whole_power(x, -int(n))
    if n == 0.5:
        return evaluate("sqrt", x)
    return Real(x.emit, x.emit.call(operator.pow, [x.value, y.value]))


# By the name that LLVM has for them; of what literals alone decide there is no code.
INSTRUCTIONS: dict[str, Callable[..., Number]] = {
    "fadd": _sum, "fsub": _difference, "fmul": _product, "fdiv": _quotient, "fneg": _negative, "pow": _power,
}  # fmt: skip


def _whole_power(x: Real, n: int) -> Any:
    found = None
    while True:
        if n & 1:
            found = x if found is None else found * x
        n >>= 1
        if not n:
            return found
        x = x * x
