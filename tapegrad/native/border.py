"""Between Python and recording code: active numbers as records of NumPy's, in the memory they lie in.

An argument that is differentiated enters as an array of records (value, tangents, statement, tape), one of
no dimension for a number, and is from then on an array of active numbers. Results leave the same way.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba.core import cgutils, types
from numba.core.datamodel.models import DataModel
from numba.core.errors import TypingError
from numba.core.imputils import impl_ret_borrowed, lower_cast
from numba.core.typeconv import Conversion
from numba.extending import box, intrinsic, register_model
from numba.np import arrayobj
from numba.np.numpy_support import from_dtype

from tapegrad.native.arrays.arrays import is_active_array, is_complex_array
from tapegrad.native.emission.algebra import Spec, components
from tapegrad.native.emission.annotations import (
    Builder,
    Context,
    DataModelManager,
    Emission,
    Intrinsic,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.library.complex_arrays import view_of, view_type
from tapegrad.native.numbers.complexes import ActiveComplex
from tapegrad.native.numbers.scalar import Active, Expression, is_active
from tapegrad.native.twins import forms

if TYPE_CHECKING:
    from numba.core.pythonapi import _BoxContext as BoxContext

STATEMENT, TAPE = "tapegrad_statement", "tapegrad_tape"
REAL, IMAG = "tapegrad_real", "tapegrad_imag"


@functools.cache
def record(spec: Spec) -> np.dtype:
    """Return the dtype of an active number."""
    values = [(f"tapegrad_v{k}", np.float64) for k in range(components(spec))]
    return np.dtype([*values, (STATEMENT, np.int64), (TAPE, np.int64)])


@functools.cache
def pair(spec: Spec) -> np.dtype:
    """Return the dtype of a complex active number."""
    return np.dtype([(REAL, record(spec)), (IMAG, record(spec))])


def paired(rows: np.ndarray) -> np.ndarray:
    """Return records, two along the last axis for each complex number, as these in the same memory."""
    fields = [(REAL, rows.dtype), (IMAG, rows.dtype)]
    return rows.view(np.dtype(fields)).reshape(rows.shape[:-1])


def unpaired(rows: np.ndarray) -> np.ndarray:
    """Return the parts of complex numbers along a last axis, in the same memory; others as they are."""
    if REAL not in (rows.dtype.names or ()):
        return rows
    return rows.view(rows.dtype[REAL]).reshape((*rows.shape, 2))


@functools.cache
def _record_type(spec: Spec) -> Type:
    return from_dtype(record(spec))


def _spec_of(kind: Type) -> list[str] | None:
    """The spec of an array of records that are active numbers; None for any other type."""
    if isinstance(kind, types.Array) and isinstance(kind.dtype, types.Record):
        names = list(kind.dtype.fields)
        if names[-1] in (TAPE, IMAG):
            return names
    return None


def crosses(kind: Type) -> bool:
    """Whether a type has arrays of such records in it, or instances of classes."""
    if isinstance(kind, types.BaseTuple):
        return any(crosses(part) for part in kind)
    return _spec_of(kind) is not None or forms.recorded(kind, (), floats=False) != kind


def _specs(names: list[str], spec: Spec) -> bool:
    return len(names) == components(spec) + 2


def _like(kind: types.Array, dtype: Type) -> types.Array:
    return types.Array(dtype, kind.ndim, kind.layout, readonly=not kind.mutable)


def _cast_array(context: Context, builder: Builder, source: Type, target: Type, value: Value) -> Value:
    """The same memory with elements of another type."""
    before = arrayobj.make_array(source)(context, builder, value)
    after = arrayobj.make_array(target)(context, builder)
    for name in ("meminfo", "parent", "nitems", "itemsize", "shape", "strides"):
        setattr(after, name, getattr(before, name))
    after.data = builder.bitcast(before.data, after.data.type)
    return after._getvalue()


def _inside(kind: Type, spec: Spec) -> Type:
    """The type in recording code of an argument's type."""
    if isinstance(kind, types.BaseTuple):
        return _tuple_like(kind, [_inside(part, spec) for part in kind]) if crosses(kind) else kind
    if _spec_of(kind) is None:
        return forms.recorded(kind, spec, floats=False)
    number = Active(spec) if kind.dtype.fields.keys().isdisjoint({REAL}) else ActiveComplex(spec)
    return _like(kind, number) if kind.ndim else number


def _enter(context: Context, builder: Builder, kind: Type, inside: Type, value: Value) -> Value:
    if kind == inside:
        return value
    if isinstance(kind, types.BaseTuple):
        parts = cgutils.unpack_tuple(builder, value, len(kind))
        moved = [_enter(context, builder, a, b, p) for a, b, p in zip(kind, inside, parts, strict=True)]
        return context.make_tuple(builder, inside, moved)
    if isinstance(inside, types.Array):
        return _cast_array(context, builder, kind, inside, value)
    if _spec_of(kind) is None:  # what has instances in it: of the same members, at the same places
        return value
    whole = types.Array(inside, 0, "C")
    array = arrayobj.make_array(whole)(context, builder, _cast_array(context, builder, kind, whole, value))
    return builder.load(array.data)


@functools.cache
def enter(spec: Spec) -> Intrinsic:
    """Return the function that takes an argument in."""

    @intrinsic
    def enter(typingctx: TypingContext, x: Type) -> Emission:
        inside = _inside(x, spec)

        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            found = _enter(context, builder, x, inside, args[0])
            return impl_ret_borrowed(context, builder, inside, found)

        return inside(x), code

    return enter


class Parts(NamedTuple):
    """A complex result."""

    real: np.ndarray
    imag: np.ndarray


def _outside(kind: Type) -> Type:
    """The type in Python's view of a result's type."""
    if isinstance(kind, ActiveComplex):
        return types.NamedTuple([_outside(Active(kind.spec))] * 2, Parts)
    if isinstance(kind, types.BaseTuple):
        return _tuple_like(kind, [_outside(part) for part in kind])
    if is_active(kind):
        return types.Array(_record_type(kind.spec), 0, "C")
    if is_active_array(kind):
        return _like(kind, _record_type(kind.dtype.spec))
    if is_complex_array(kind):
        return types.NamedTuple([_outside(view_type(kind))] * 2, Parts)
    if forms.holds_active(kind):
        found = forms.named(kind)
        raise TypingError(f"tapegrad: {found} holds numbers that carry derivatives, and is no result")
    return forms.outside(kind)


def _tuple_like(kind: Type, parts: list[Type]) -> Type:
    if isinstance(kind, types.BaseNamedTuple):
        return types.NamedTuple(parts, kind.instance_class)
    return types.Tuple(parts)


def _leave(context: Context, builder: Builder, kind: Type, outside: Type, value: Value) -> Value:
    """Turn a result into what Python can take; takes over the reference to it."""
    if not isinstance(kind, types.BaseTuple) and forms.outside(kind) == outside:
        return value
    if isinstance(kind, ActiveComplex):
        pair = context.make_helper(builder, kind, value=value)
        kind = types.UniTuple(Active(kind.spec), 2)
        value = context.make_tuple(builder, kind, [pair.real, pair.imag])
    if is_complex_array(kind):
        context.nrt.incref(builder, kind, value)  # of the two views one takes over the array's reference
        parts = [view_of(context, builder, kind, value, k) for k in (0, 1)]
        kind = types.UniTuple(view_type(kind), 2)
        value = context.make_tuple(builder, kind, parts)
    if isinstance(kind, types.BaseTuple):
        parts = cgutils.unpack_tuple(builder, value, len(kind))
        moved = [_leave(context, builder, a, b, p) for a, b, p in zip(kind, outside, parts, strict=True)]
        return context.make_tuple(builder, outside, moved)
    if isinstance(kind, types.Array):
        return _cast_array(context, builder, kind, outside, value)
    whole = types.Array(kind, 0, "C")
    array = arrayobj._empty_nd_impl(context, builder, whole, [])
    builder.store(value, array.data)
    return _cast_array(context, builder, whole, outside, array._getvalue())


class Leaving(types.Type):
    """A result on its way to Python."""

    def __init__(self, kind: Type) -> None:
        self.kind = kind
        super().__init__(f"leaving({kind})")

    @property
    def outside(self) -> Type:
        """The type that Python sees."""
        return _outside(self.kind)

    def unify(self, typingctx: TypingContext, other: Type) -> Type | None:
        """As what is on its way."""
        if not isinstance(other, Leaving):
            return None
        kind = typingctx.unify_pairs(self.kind, other.kind)
        return None if kind is None else Leaving(kind)

    def can_convert_from(self, typingctx: TypingContext, other: Type) -> Conversion | None:
        """As what is on its way."""
        return typingctx.can_convert(other.kind, self.kind) if isinstance(other, Leaving) else None


@register_model(Leaving)
def _model(manager: DataModelManager, kind: Type) -> DataModel:
    return manager.lookup(_outside(kind.kind))


@lower_cast(Leaving, Leaving)
def _cast(context: Context, builder: Builder, source: Type, target: Type, value: Value) -> Value:
    return _recast(context, builder, source.kind, target.kind, value)


def _recast(context: Context, builder: Builder, source: Type, target: Type, value: Value) -> Value:
    """One kind of result as another, both in the form that leaves."""
    if source == target:
        return value
    if isinstance(source, types.BaseTuple):
        parts = cgutils.unpack_tuple(builder, value, len(source))
        moved = [_recast(context, builder, *row) for row in zip(source, target, parts, strict=True)]
        return context.make_tuple(builder, _outside(target), moved)
    outside = _outside(target)
    return _leave(context, builder, target, outside, context.cast(builder, value, source, target))


@box(Leaving)
def _box(kind: Type, value: Value, c: BoxContext) -> Value:
    return c.box(_outside(kind.kind), value)


def _ended(kind: Type) -> Type:
    if isinstance(kind, types.BaseTuple):
        return _tuple_like(kind, [_ended(part) for part in kind])
    return Active(kind.spec) if isinstance(kind, Expression) else types.unliteral(kind)


@intrinsic
def leave(typingctx: TypingContext, x: Type) -> Emission:
    """Mark a result of what Python called; an expression ends."""
    kind = _ended(x)
    outside = _outside(kind)

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        context.nrt.incref(builder, x, args[0])
        value = context.cast(builder, args[0], x, kind)
        return _leave(context, builder, kind, outside, value)

    return Leaving(kind)(x), code
