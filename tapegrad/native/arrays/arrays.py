"""Arrays of active numbers, real or complex: what Numba does not do for elements of a type of ours.

Indexing, slices, views, iteration, stacking of loops are Numba's. Elementwise expressions are typed here and
fused by Numba's rewriting. The rest are functions of NumPy written as loops, which record themselves.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numba.core import types
from numba.core.errors import TypingError
from numba.core.imputils import impl_ret_borrowed, impl_ret_new_ref, lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer, infer_global, signature
from numba.extending import intrinsic, typeof_impl
from numba.np import arrayobj

from tapegrad.native.emission.algebra import OPS, WHERE, row
from tapegrad.native.emission.annotations import (
    Builder,
    Context,
    Emission,
    Key,
    Namespace,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.numbers.complexes import OF_COMPLEX, ActiveComplex
from tapegrad.native.numbers.operators import VALUE_ONLY, template
from tapegrad.native.numbers.scalar import PASSIVE, Active, is_active


@lower_builtin(operator.getitem, types.Buffer, types.EllipsisType)
def _whole(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
    """``x[...]``, which Numba types and has no code for, so that ``x[...] *= 2`` stops without words."""
    kind, _ = sig.args
    if kind.ndim:
        return impl_ret_borrowed(context, builder, sig.return_type, args[0])
    array = arrayobj.make_array(kind)(context, builder, args[0])
    return arrayobj.load_item(context, builder, kind, array.data)


class Token:
    """Stands for a dtype in compiled code."""

    def __init__(self, kind: Type) -> None:
        self.kind = kind


@typeof_impl.register(Token)
def _typeof_token(value: Token, context: Any) -> Type:
    return types.DType(value.kind)


def is_active_array(kind: Type) -> bool:
    """Whether this is the type of an array of real active numbers."""
    return isinstance(kind, types.Array) and isinstance(kind.dtype, Active)


def is_complex_array(kind: Type) -> bool:
    """Whether this is the type of an array of complex active numbers."""
    return isinstance(kind, types.Array) and isinstance(kind.dtype, ActiveComplex)


def is_recorded_array(kind: Type) -> bool:
    """Whether this is the type of an array of active numbers, real or complex."""
    return is_active_array(kind) or is_complex_array(kind)


def carries(kind: Type) -> bool:
    """Whether this is the type of an active number, real or complex."""
    return is_active(kind) or isinstance(kind, ActiveComplex)


def is_complex(kind: Type) -> bool:
    """Whether this is the type of a complex number, active or not."""
    return isinstance(kind, (types.Complex, ActiveComplex))


def joined(kinds: Sequence[Type]) -> Type | None:
    """The type of an active number that all these can become, real if they are; None if none is active."""
    spec = next((k.spec for k in kinds if carries(k)), None)
    if spec is None:
        return None
    return ActiveComplex(spec) if any(map(is_complex, kinds)) else Active(spec)


def _active_in(kinds: Sequence[Type]) -> Type | None:
    """The type of the active numbers among operands that are numbers and arrays, or None."""
    numbers = [k.dtype if isinstance(k, types.Array) else k for k in kinds]
    if not all(isinstance(k, (*PASSIVE, types.Complex)) or carries(k) for k in numbers):
        return None
    return joined(numbers)


# ---------------------------------------------------------------- elementwise

_KEYS = {key: row(name).arity for key, name in OPS.items() if key is not pow}  # how many operands
_COMPARISONS = (
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
)  # fmt: skip
_KEYS |= {np.conjugate: 1, np.positive: 1, WHERE: 3}


def _elementwise(key: Key, count: int, dtype: Type | None = None) -> None:
    def generic(args: Sequence[Type]) -> Signature | None:
        ranks = [k.ndim for k in args if isinstance(k, types.Array)]
        active = _active_in(args) if ranks and len(args) == count else None
        if active is None:
            return None
        if isinstance(active, ActiveComplex):
            if key not in OF_COMPLEX:
                return None
            active = Active(active.spec) if key is np.absolute else active
        return signature(types.Array(dtype or active, max(ranks), "C"), *args)

    template(key, generic)


for _key, _count in _KEYS.items():
    if isinstance(_key, np.ufunc) or getattr(_key, "__module__", "") == "_operator":
        _elementwise(_key, _count, types.float64 if OPS.get(_key) in VALUE_ONLY else None)
for _key in (operator.floordiv, np.floor_divide):
    _elementwise(_key, 2, types.float64)
for _key in _COMPARISONS:
    _elementwise(_key, 2, types.boolean)
for _key in (np.isnan, np.isinf, np.isfinite):
    _elementwise(_key, 1, types.boolean)


def is_elementwise(key: Key) -> bool:
    """Whether an operator, or the type of a function, acts on each element of arrays."""
    keys = [key] if not isinstance(key, types.Type) else [t.key for t in getattr(key, "templates", ())]
    return any(k in _KEYS or k in _COMPARISONS for k in keys)


@intrinsic
def as_array(typingctx: TypingContext, x: Type) -> Emission:
    """Return an active number as an array of no dimension."""
    kind = types.Array(x if isinstance(x, ActiveComplex) else Active(x.spec), 0, "C")

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        value = context.cast(builder, args[0], x, kind.dtype)
        array = arrayobj._empty_nd_impl(context, builder, kind, [])
        builder.store(value, array.data)
        return impl_ret_new_ref(context, builder, kind, array._getvalue())

    return kind(x), code


# ---------------------------------------------------------------- in place


def _updating(key: Key) -> Key:
    """A function that is an in-place operator, and known to Numba before the operator's own templates.

    Of those one fails where an array's elements are of a type that NumPy does not know.
    """

    def update(a: Any, b: Any) -> Any:
        raise NotImplementedError

    update.__name__, update.operator = key.__name__, key

    def generic(self: AbstractTemplate, args: Sequence[Type], kws: Mapping[str, Type]) -> Signature | None:
        if is_recorded_array(args[0]):
            return signature(args[0], *args) if _active_in(args) is not None else None
        if isinstance(args[0], types.Array) and any(carries(getattr(k, "dtype", k)) for k in args):
            raise TypingError(f"tapegrad: No conversion from active numbers to those of {args[0]}")
        return self.context.resolve_function_type(key, args, {})

    known = type("Update", (AbstractTemplate,), {"key": update, "generic": generic})
    infer_global(update, types.Function(infer(known)))
    space: Namespace = {"as_array": as_array}
    exec(f"def of_array(a, b):\n    a[...] = a {SYMBOLS[key]} b\n    return a", space)
    exec(f"def of_number(a, b):\n    a[...] = a {SYMBOLS[key]} as_array(b)\n    return a", space)
    plain = getattr(operator, key.__name__[1:])

    @lower_builtin(update, types.Any, types.Any)
    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        if is_recorded_array(sig.args[0]):
            impl = space["of_number" if carries(sig.args[1]) else "of_array"]
            return context.compile_internal(builder, impl, sig, args)
        function = key if sig.args[0].mutable else plain
        kind = context.typing_context.resolve_value_type(function)
        form = kind.get_call_type(context.typing_context, sig.args, {})
        args = [context.cast(builder, v, a, b) for v, a, b in zip(args, sig.args, form.args, strict=True)]
        found = context.get_function(kind, form)(builder, args)
        return context.cast(builder, found, form.return_type, sig.return_type)

    return update


SYMBOLS = {
    operator.iadd: "+", operator.isub: "-", operator.imul: "*", operator.itruediv: "/", operator.ipow: "**",
    operator.ifloordiv: "//", operator.imod: "%",
}  # fmt: skip
UPDATE = {key: _updating(key) for key in SYMBOLS}
