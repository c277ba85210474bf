"""Complex numbers in recording code: pairs of active numbers, whose operations are those of the parts."""

from __future__ import annotations

import cmath
import math
import operator
from collections.abc import Callable, Sequence

import numpy as np
from numba.core import types
from numba.core.imputils import lower_builtin, lower_cast
from numba.core.typeconv import Conversion
from numba.extending import intrinsic, models, overload, overload_attribute, overload_method, register_model

from tapegrad.native.algebra import Spec
from tapegrad.native.annotations import (
    Builder,
    Code,
    Context,
    DataModelManager,
    Emission,
    Intrinsic,
    Key,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.scalar import PASSIVE, Active, Expression, is_active

REAL = (*PASSIVE, Active, Expression)


class ActiveComplex(types.Type):
    """A complex128 whose parts have derivatives."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        super().__init__(f"active_complex128{list(spec) if spec else ''}")

    def can_convert_from(self, typingctx: TypingContext, other: Type) -> Conversion | None:
        """As complex128: from any number."""
        if isinstance(other, (*PASSIVE, types.Complex)):
            return Conversion.safe
        return Conversion.promote if is_active(other) and other.spec == self.spec else None

    def unify(self, typingctx: TypingContext, other: Type) -> Type | None:
        """Where paths of the program meet, all values become such pairs."""
        return self if isinstance(other, (*REAL, types.Complex)) else None


@register_model(ActiveComplex)
class _Model(models.StructModel):
    def __init__(self, manager: DataModelManager, kind: ActiveComplex) -> None:
        super().__init__(manager, kind, [("real", Active(kind.spec)), ("imag", Active(kind.spec))])


def _cast(context: Context, builder: Builder, source: Type, target: Type, value: Value) -> Value:
    active = Active(target.spec)
    parts = [value, context.get_constant(types.float64, 0.0)]
    kinds = [source, types.float64]
    if isinstance(source, types.Complex):
        pair = context.make_complex(builder, source, value=value)
        parts, kinds = [pair.real, pair.imag], [source.underlying_float] * 2
    return _paired(context, builder, target, [
        context.cast(builder, part, kind, active) for part, kind in zip(parts, kinds, strict=True)
    ])  # fmt: skip


def _paired(context: Context, builder: Builder, kind: Type, parts: list[Value]) -> Value:
    pair = context.make_helper(builder, kind)
    pair.real, pair.imag = parts
    return pair._getvalue()


for _kind in (*REAL, types.Complex):
    lower_cast(_kind, ActiveComplex)(_cast)


@intrinsic
def pair(typingctx: TypingContext, real: Type, imag: Type) -> Emission:
    """Return the complex number with these parts, of which one at least is active."""
    spec = next(part.spec for part in (real, imag) if is_active(part))

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        parts = [context.cast(builder, x, kind, Active(spec)) for x, kind in zip(args, sig.args, strict=True)]
        return _paired(context, builder, sig.return_type, parts)

    return ActiveComplex(spec)(real, imag), code


def _part(name: str) -> Intrinsic:
    @intrinsic
    def part(typingctx: TypingContext, z: Type) -> Emission:
        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            return getattr(context.make_helper(builder, sig.args[0], value=args[0]), name)

        return (Active(z.spec)(z), code) if isinstance(z, ActiveComplex) else None

    return part


_real, _imag = _part("real"), _part("imag")


def re(z):
    """The real part of any number."""


def im(z):
    """The imaginary part of any number."""


@overload(re)
def _re(z):
    if isinstance(z, ActiveComplex):
        return lambda z: _real(z)
    return (lambda z: z.real) if isinstance(z, types.Complex) else lambda z: z


@overload(im)
def _im(z):
    if isinstance(z, ActiveComplex):
        return lambda z: _imag(z)
    return (lambda z: z.imag) if isinstance(z, types.Complex) else lambda z: 0.0


def squared(z):
    """The square of the size of a number."""


@overload(squared)
def _squared(z):
    if isinstance(z, ActiveComplex):
        return lambda z: re(z) * re(z) + im(z) * im(z)
    return lambda z: z * z


overload_attribute(ActiveComplex, "real")(lambda z: lambda z: re(z))
overload_attribute(ActiveComplex, "imag")(lambda z: lambda z: im(z))


def _number(x: Type) -> bool:
    return isinstance(x, (*REAL, types.Complex, ActiveComplex))


def _is_ours(*kinds: Type) -> bool:
    """Whether all are numbers, one is complex, and one has a derivative."""
    return (
        all(map(_number, kinds))
        and any(isinstance(x, (types.Complex, ActiveComplex)) for x in kinds)
        and any(is_active(x) or isinstance(x, ActiveComplex) for x in kinds)
    )


OF_COMPLEX: set[Key] = {operator.pow, np.power}  # what complex numbers have


def of_one(*keys: Key) -> Callable[[Code], Code]:
    """Declare what functions of one complex number are."""
    OF_COMPLEX.update(keys)

    def declare(body: Code) -> Code:
        for key in keys:
            overload(key)(lambda z: body if isinstance(z, ActiveComplex) else None)
        return body

    return declare


def of_two(*keys: Key) -> Callable[[Code], Code]:
    """Declare what operations on two numbers are, one of them complex."""
    OF_COMPLEX.update(keys)

    def declare(body: Code) -> Code:
        for key in keys:
            overload(key)(lambda z, w: body if _is_ours(z, w) else None)
        return body

    return declare


# ---------------------------------------------------------------- making them, and taking them apart


@overload(complex)
def _complex(real, imag=0.0):
    if isinstance(real, ActiveComplex):
        return lambda real, imag=0.0: real
    return (lambda real, imag=0.0: pair(real, imag)) if is_active(real) or is_active(imag) else None


@overload(cmath.rect)
def _rect(r, phi):
    if is_active(r) or is_active(phi):
        return lambda r, phi: pair(r * math.cos(phi), r * math.sin(phi))
    return None


@of_one(abs, np.abs, np.absolute)
def absolute(z):
    """Size; derivative 0 at 0."""
    return math.hypot(re(z), im(z))


@of_one(cmath.phase, np.angle)
def phase(z):
    """Angle."""
    return math.atan2(im(z), re(z))


@of_one(cmath.polar)
def polar(z):
    """Size and angle."""
    return math.hypot(re(z), im(z)), math.atan2(im(z), re(z))


@of_one(np.conj)
def conjugate(z):
    """Complex conjugate."""
    return pair(re(z), -im(z))


overload_method(ActiveComplex, "conjugate")(lambda z: conjugate)
overload(np.conj)(lambda z: (lambda z: z) if is_active(z) else None)


@of_one(np.real)
def real(z):
    """Real part."""
    return re(z)


@of_one(np.imag)
def imag(z):
    """Imaginary part."""
    return im(z)


# ---------------------------------------------------------------- operators


@of_one(operator.neg, np.negative)
def negative(z):
    """Negative."""
    return pair(-re(z), -im(z))


@of_one(operator.pos, np.positive)
def positive(z):
    """The number itself."""
    return z


@of_two(operator.add, operator.iadd, np.add)
def add(z, w):
    """Sum."""
    return pair(re(z) + re(w), im(z) + im(w))


@of_two(operator.sub, operator.isub, np.subtract)
def subtract(z, w):
    """Difference."""
    return pair(re(z) - re(w), im(z) - im(w))


@of_two(operator.mul, operator.imul, np.multiply)
def multiply(z, w):
    """Product."""
    return pair(re(z) * re(w) - im(z) * im(w), re(z) * im(w) + im(z) * re(w))


@of_two(operator.truediv, operator.itruediv, np.divide)
def divide(z, w):
    """Quotient, as Smith has it: without overflow on the way."""
    a, b, c, d = re(z), im(z), re(w), im(w)
    if abs(c) >= abs(d):
        ratio = d / c
        size = c + d * ratio
        return pair((a + b * ratio) / size, (b - a * ratio) / size)
    ratio = c / d
    size = d + c * ratio
    return pair((a * ratio + b) / size, (b * ratio - a) / size)


@overload(operator.pow)
@overload(operator.ipow)
@overload(np.power)
@overload(pow)
def _power(z, w):
    if not _is_ours(z, w):
        return None
    if isinstance(w, types.Integer):

        def whole(z, w):
            found, base, n = pair(1.0 + 0.0 * re(z), 0.0), z, abs(w)
            while n > 0:
                if n & 1:
                    found = found * base
                n >>= 1
                if n > 0:
                    base = base * base
            return 1.0 / found if w < 0 else found

        return whole
    return lambda z, w: np.exp(w * _log(z))


@of_two(operator.eq)
def equal(z, w):
    """Whether both parts are equal."""
    return re(z) == re(w) and im(z) == im(w)


@of_two(operator.ne)
def not_equal(z, w):
    """Whether a part differs."""
    return re(z) != re(w) or im(z) != im(w)


@of_one(np.isnan, cmath.isnan)
def isnan(z):
    """Whether a part is not a number."""
    return np.isnan(re(z)) or np.isnan(im(z))


@of_one(np.isinf, cmath.isinf)
def isinf(z):
    """Whether a part is infinite."""
    return np.isinf(re(z)) or np.isinf(im(z))


@of_one(np.isfinite, cmath.isfinite)
def isfinite(z):
    """Whether both parts are finite."""
    return np.isfinite(re(z)) and np.isfinite(im(z))


@of_one(bool, operator.truth)
def truth(z):
    """Whether it is not zero."""
    return re(z) != 0.0 or im(z) != 0.0


lower_builtin(bool, ActiveComplex)(  # that of a branch is looked for here
    lambda context, builder, sig, args: context.compile_internal(builder, truth, sig, args)
)


@of_one(operator.not_)
def is_zero(z):
    """Whether it is zero."""
    return re(z) == 0.0 and im(z) == 0.0


# ---------------------------------------------------------------- functions


def _log(z):
    """The logarithm of any number, as a complex one."""


@overload(_log)
def _logarithm(z):
    if isinstance(z, ActiveComplex):
        return lambda z: pair(math.log(math.hypot(re(z), im(z))), math.atan2(im(z), re(z)))
    if is_active(z):
        return lambda z: pair(math.log(abs(z)), 0.0 if z > 0 else math.pi)
    return lambda z: np.log(complex(z))


@of_one(cmath.log, np.log)
def log(z):
    """Natural logarithm."""
    return _log(z)


@of_one(cmath.exp, np.exp)
def exp(z):
    """Exponential."""
    size = math.exp(re(z))
    return pair(size * math.cos(im(z)), size * math.sin(im(z)))


@of_one(cmath.sqrt, np.sqrt)
def sqrt(z):
    """The root in the right half plane."""
    x, y = re(z), im(z)
    size = math.hypot(x, y)
    if x >= 0.0:
        root = math.sqrt(0.5 * (size + x))
        return pair(root, 0.5 * y / root)
    root = math.sqrt(0.5 * (size - x))
    return pair(0.5 * abs(y) / root, math.copysign(root, y))


@of_one(np.square)
def square(z):
    """Square."""
    return z * z


@of_one(cmath.sinh, np.sinh)
def sinh(z):
    """Hyperbolic sine."""
    x, y = re(z), im(z)
    return pair(math.sinh(x) * math.cos(y), math.cosh(x) * math.sin(y))


@of_one(cmath.cosh, np.cosh)
def cosh(z):
    """Hyperbolic cosine."""
    x, y = re(z), im(z)
    return pair(math.cosh(x) * math.cos(y), math.sinh(x) * math.sin(y))


@of_one(cmath.sin, np.sin)
def sin(z):
    """Sine."""
    x, y = re(z), im(z)
    return pair(math.sin(x) * math.cosh(y), math.cos(x) * math.sinh(y))


@of_one(cmath.cos, np.cos)
def cos(z):
    """Cosine."""
    x, y = re(z), im(z)
    return pair(math.cos(x) * math.cosh(y), -(math.sin(x) * math.sinh(y)))


@of_one(cmath.tanh, np.tanh)
def tanh(z):
    """Hyperbolic tangent, of size 1 far from 0."""
    x, y = re(z), im(z)
    t, c = math.tanh(x), math.cos(y)
    rest = 1.0 - t * t
    size = c * c * rest + t * t
    return pair(t / size, math.sin(y) * c * rest / size)


@of_one(cmath.tan, np.tan)
def tan(z):
    """Tangent: -i tanh(iz)."""
    turned = np.tanh(pair(-im(z), re(z)))
    return pair(im(turned), -re(turned))
