"""Complex numbers in recording code: pairs of active numbers, whose operations are those of the parts."""

from __future__ import annotations

import cmath
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba.core import types
from numba.core.imputils import lower_builtin, lower_cast
from numba.core.typeconv import Conversion
from numba.core.typing.templates import signature as typed
from numba.extending import intrinsic, models, overload, overload_attribute, overload_method, register_model
from numba.np import ufunc_db

from tapegrad.native.emission.algebra import (
    Emitter,
    Number,
    Real,
    Spec,
    compare,
    components,
    evaluate,
    known_to_numba,
    paired,
    part_of,
    partial,
    row,
)
from tapegrad.native.emission.annotations import (
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
from tapegrad.native.numbers.operators import CHECKED, KEYS, template
from tapegrad.native.numbers.scalar import (
    PASSIVE,
    ZERO,
    Active,
    Expression,
    Operand,
    is_active,
    join,
    pack,
    unpack,
)
from tapegrad.native.tapes.record import leave
from tapegrad.ops.primitive import Elementwise

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
    if isinstance(z, (types.Complex, ActiveComplex)):
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


OF_COMPLEX: set[Key] = set()  # what complex numbers have


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


@of_one(operator.pos, np.positive)
def positive(z):
    """The number itself."""
    return z


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


# ---------------------------------------------------------------- functions that have a derivative


def _is_holomorphic(known: Any) -> bool:
    """Whether an op is a function of complex numbers, with complex values, in NumPy and in Numba."""
    if not isinstance(known, Elementwise) or known.explicit or not known_to_numba(known.forward):
        return False
    form = "D" * known.arity + "->D"
    return form in getattr(known.forward, "types", ()) and form in ufunc_db.get_ufunc_info(known.forward)


def _register(key: Key, name: str) -> None:
    """Let Numba compile a function of complex numbers by its rule, run on numbers with complex values."""
    known = row(name)
    count, raises = known.arity, key in CHECKED

    def generic(args: Sequence[Type]) -> Signature | None:
        if len(args) != count or not _is_ours(*args):
            return None
        return typed(ActiveComplex(next(x.spec for x in args if hasattr(x, "spec"))), *args)

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        emit, spec = Emitter(context, builder), sig.return_type.spec
        found = [_operand(emit, kind, value, spec) for kind, value in zip(sig.args, args, strict=True)]
        numbers = [x.number for x in found]
        if raises:
            with builder.if_then(compare("==", numbers[1], 0.0).value, likely=False):
                leave(builder)
                context.error_model.fp_zero_division(builder, ("division by zero",))
        out = evaluate(name, *numbers)
        rows: tuple[list[Any], list[Any]] = ([], [])
        for k, x in enumerate(found):
            d = out.lift(partial(name, k, numbers, out)) if x.leaves else None
            for statement, weight, imaginary in x.leaves:
                re, im = part_of(d, "re"), part_of(d, "im")
                for leaves, slope in zip(rows, (-im, re) if imaginary else (re, im), strict=True):
                    leaves.append((statement, weight * slope))
        tape = join(emit, [x.tape for x in found])
        return _paired(context, builder, sig.return_type, [
            pack(emit, Active(spec), Operand(part_of(out, part), tape, leaves))
            for part, leaves in zip(("re", "im"), rows, strict=True)
        ])  # fmt: skip

    template(key, generic, known.llvm == "pow")
    kinds = (ActiveComplex, types.Complex, *REAL)
    for form in itertools.product(kinds, repeat=count):
        if ActiveComplex in form or (types.Complex in form and {Active, Expression} & set(form)):
            lower_builtin(key, *form)(code)
    OF_COMPLEX.add(key)


class _Parts(NamedTuple):
    """An operand while code is emitted: as `Operand`, of each leaf also whether it is an imaginary part."""

    number: Number
    tape: Value
    leaves: list[tuple[Value, Number, bool]]


def _operand(emit: Emitter, kind: Type, value: Value, spec: Spec) -> _Parts:
    if isinstance(kind, ActiveComplex):
        pair = emit.context.make_helper(emit.builder, kind, value=value)
        re, im = (unpack(emit, Active(spec), part, spec) for part in (pair.real, pair.imag))
        leaves = [(*leaf, imaginary) for x, imaginary in ((re, False), (im, True)) for leaf in x.leaves]
        return _Parts(paired(re.number, im.number), join(emit, [re.tape, im.tape]), leaves)
    zero = emit.number(spec, [0.0] * components(spec))
    if isinstance(kind, types.Complex):
        pair = emit.context.make_complex(emit.builder, kind, value=value)
        parts = [emit.context.cast(emit.builder, v, kind.underlying_float, types.float64)
                 for v in (pair.real, pair.imag)]  # fmt: skip
        return _Parts(paired(*(zero.lift(Real(emit, v)) for v in parts)), ZERO, [])
    x = unpack(emit, kind, value, spec)
    return _Parts(paired(x.number, zero), x.tape, [(*leaf, False) for leaf in x.leaves])


for _key, _name in KEYS.items():
    if _is_holomorphic(row(_name)):
        _key = getattr(cmath, _key.__name__, None) if _key.__module__ == "math" else _key
        if _key is not None:
            _register(_key, _name)
