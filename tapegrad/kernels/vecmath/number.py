"""Numbers whose arithmetic emits LLVM code: a form is a plain function that is run once on them.

A form takes and returns `Number` and has neither branches nor loops over values. Comparisons give bits,
`select` chooses. Divisions follow IEEE rules whatever the error model of the kernel around.
"""

from __future__ import annotations

from llvmlite import ir

DOUBLE, SINGLE, WORD, BIT = ir.DoubleType(), ir.FloatType(), ir.IntType(64), ir.IntType(1)


class Number:
    """A double, a 64-bit integer or a bit in a function under construction."""

    __slots__ = ("builder", "value")
    __hash__ = None  # type: ignore[assignment]  # == is a comparison of what they will be

    def __init__(self, builder, value):
        self.builder, self.value = builder, value

    def like(self, other):
        """The LLVM value of a number or of a constant of this number's type."""
        return other.value if isinstance(other, Number) else self.value.type(other)

    def _made(self, real, integer, a, b):
        method = real if self.value.type == DOUBLE else integer
        return Number(self.builder, getattr(self.builder, method)(a, b))

    def __add__(self, other):
        return self._made("fadd", "add", self.value, self.like(other))

    def __radd__(self, other):
        return self._made("fadd", "add", self.like(other), self.value)

    def __sub__(self, other):
        return self._made("fsub", "sub", self.value, self.like(other))

    def __rsub__(self, other):
        return self._made("fsub", "sub", self.like(other), self.value)

    def __mul__(self, other):
        return self._made("fmul", "mul", self.value, self.like(other))

    def __rmul__(self, other):
        return self._made("fmul", "mul", self.like(other), self.value)

    def __truediv__(self, other):
        return Number(self.builder, self.builder.fdiv(self.value, self.like(other)))

    def __rtruediv__(self, other):
        return Number(self.builder, self.builder.fdiv(self.like(other), self.value))

    def __neg__(self):
        return Number(self.builder, self.builder.fneg(self.value))

    def __abs__(self):
        return _call("fabs", self)

    def __and__(self, other):
        return Number(self.builder, self.builder.and_(self.value, self.like(other)))

    def __or__(self, other):
        return Number(self.builder, self.builder.or_(self.value, self.like(other)))

    def __xor__(self, other):
        return Number(self.builder, self.builder.xor(self.value, self.like(other)))

    def __invert__(self):
        return Number(self.builder, self.builder.not_(self.value))

    def __lshift__(self, count):
        return Number(self.builder, self.builder.shl(self.value, WORD(count)))

    def __rshift__(self, count):
        """Shift in zeros."""
        return Number(self.builder, self.builder.lshr(self.value, WORD(count)))

    def _compare(self, sign, other):
        other = self.like(other)
        if self.value.type != DOUBLE:
            bit = self.builder.icmp_signed(sign, self.value, other)
        elif sign == "!=":
            bit = self.builder.fcmp_unordered(sign, self.value, other)
        else:
            bit = self.builder.fcmp_ordered(sign, self.value, other)
        return Number(self.builder, bit)

    def __lt__(self, other):
        return self._compare("<", other)

    def __le__(self, other):
        return self._compare("<=", other)

    def __gt__(self, other):
        return self._compare(">", other)

    def __ge__(self, other):
        return self._compare(">=", other)

    def __eq__(self, other):
        return self._compare("==", other)

    def __ne__(self, other):
        return self._compare("!=", other)


def _call(name, *args):
    builder = next(a.builder for a in args if isinstance(a, Number))
    kind = ir.FunctionType(DOUBLE, [DOUBLE] * len(args))
    function = builder.module.declare_intrinsic(f"llvm.{name}", [DOUBLE], kind)
    values = [a.value if isinstance(a, Number) else DOUBLE(a) for a in args]
    return Number(builder, builder.call(function, values))


def mad(x, y, z):
    """x*y + z, fused where that is fast."""
    return _call("fmuladd", x, y, z)


def fma(x, y, z):
    """x*y + z with one rounding, by a call if need be."""
    return _call("fma", x, y, z)


def sqrt(x):
    """The square root."""
    return _call("sqrt", x)


def rint(x):
    """The nearest integer, a tie to the even one."""
    return _call("rint", x)


def copysign(x, y):
    """The magnitude of x with the sign of y."""
    return _call("copysign", x, y)


def libm(name, x):
    """A function of the C library, by the name of LLVM's intrinsic for it."""
    return _call(name, x)


def select(condition, x, y):
    """x if the condition is true, else y, both being evaluated."""
    known = x if isinstance(x, Number) else y
    kind = known.value.type if isinstance(known, Number) else DOUBLE
    x, y = (v.value if isinstance(v, Number) else kind(v) for v in (x, y))
    return Number(condition.builder, condition.builder.select(condition.value, x, y))


def bits(x):
    """The bits of a double as an integer."""
    return Number(x.builder, x.builder.bitcast(x.value, WORD))


def double(word):
    """The double with the given bits."""
    return Number(word.builder, word.builder.bitcast(word.value, DOUBLE))


def polynomial(x, coefficients):
    """Horner's rule; coefficients in ascending order of degree."""
    value = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        value = mad(value, x, coefficient)
    return value
