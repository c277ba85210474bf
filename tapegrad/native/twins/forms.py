"""What types of the user's program are in recording code: with active numbers in the place of floats."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numba import njit
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.errors import NumbaError
from numba.core.imputils import impl_ret_borrowed, lower_cast
from numba.experimental.jitclass.base import ConstructorTemplate, JitClassType
from numba.extending import intrinsic, register_model
from numba.np.numpy_support import as_dtype

from tapegrad.native.arrays.arrays import joined
from tapegrad.native.emission.algebra import Spec, components
from tapegrad.native.emission.annotations import (
    Builder,
    Compiled,
    Context,
    Emission,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.numbers.complexes import ActiveComplex
from tapegrad.native.numbers.operators import KINDS, statement
from tapegrad.native.numbers.scalar import Active, Expression
from tapegrad.native.twins.compiler import twin_of


class ActiveRecord(types.Record):
    """A record some of whose members are active numbers; `primal` is the type that it stands for."""

    def __init__(
        self, primal: types.Record, fields: list[tuple[str, dict[str, Type | int]]], size: int
    ) -> None:
        self.primal = primal
        super().__init__(fields, size, True)

    @property
    def dtype(self) -> np.dtype:
        """As NumPy sees it: bytes."""
        return np.dtype((np.void, self.size))


class ActiveNested(types.NestedArray):
    """An array of active numbers in a record."""

    def __init__(self, dtype: Type, shape: tuple[int, ...]) -> None:
        self._shape = shape
        types.Array.__init__(self, dtype, len(shape), "C", name=f"nestedarray({dtype}, {shape})")

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return _bytes(self.dtype)


register_model(ActiveRecord)(models.RecordModel)
register_model(ActiveNested)(models.NestedArrayModel)


def _bytes(kind: Type) -> int:
    """How much memory a member of a record takes."""
    if isinstance(kind, (Active, ActiveComplex)):
        return (8 * (components(kind.spec) + 2)) << isinstance(kind, ActiveComplex)
    if isinstance(kind, types.NestedArray):
        return kind.nitems * _bytes(kind.dtype)
    return kind.size if isinstance(kind, types.Record) else as_dtype(kind).itemsize


def _record(kind: types.Record, spec: Spec) -> types.Record:
    inside = {name: recorded(field.type, spec) for name, field in kind.fields.items()}
    if all(inside[name] == field.type for name, field in kind.fields.items()):
        return kind
    fields, size = [], 0
    for name, member in inside.items():
        fields.append((name, {"type": member, "offset": size}))
        size += -(-_bytes(member) // 8) * 8
    return ActiveRecord(kind, fields, size)


def _mapped(kind: Type, leaf: Callable[[Type], Type]) -> Type:
    """Return a type with others in the place of those that it is made of."""
    if isinstance(kind, types.NestedArray):
        part = leaf(kind.dtype)
        return kind if part == kind.dtype else ActiveNested(part, kind.shape)
    if isinstance(kind, types.Array):
        part = leaf(kind.dtype)
        return kind if part == kind.dtype else kind.copy(dtype=part)
    if isinstance(kind, types.BaseNamedTuple):
        return types.BaseTuple.from_types([_mapped(part, leaf) for part in kind], kind.instance_class)
    if isinstance(kind, types.BaseTuple):
        return types.Tuple([_mapped(part, leaf) for part in kind])
    if isinstance(kind, types.List):
        return types.List(_mapped(kind.dtype, leaf), kind.reflected)
    if isinstance(kind, types.ListType):
        return types.ListType(_mapped(kind.item_type, leaf))
    if isinstance(kind, types.DictType):  # a key has no derivative
        return types.DictType(kind.key_type, _mapped(kind.value_type, leaf))
    if isinstance(kind, types.Optional):
        return types.Optional(_mapped(kind.type, leaf))
    return leaf(kind)


def recorded(kind: Type, spec: Spec, floats: bool = True) -> Type:
    """Return the type that holds active numbers where a type holds float64 or complex128; else itself.

    Instances of classes have methods that record; with `floats` false that is all that is another.
    """

    def leaf(kind: Type) -> Type:
        if floats and kind == types.float64:
            return Active(spec)
        if floats and kind == types.complex128:
            return ActiveComplex(spec)
        if floats and isinstance(kind, types.Record) and not isinstance(kind, ActiveRecord):
            return _record(kind, spec)
        if isinstance(kind, types.DeferredType):
            return _deferred(kind, spec, floats)
        if isinstance(kind, types.ClassInstanceType):
            return twin_class(kind.class_type, spec, ALL if floats else NONE).instance_type
        return kind

    return _mapped(kind, leaf)


def outside(kind: Type) -> Type:
    """Return the user's type of what came from outside, where its instances have methods that record."""

    def leaf(kind: Type) -> Type:
        if isinstance(kind, types.ClassInstanceType):
            return getattr(kind.class_type, "_tapegrad_of", kind.class_type).instance_type
        return kind

    return _mapped(kind, leaf)


def _unify_named(self: Type, typingctx: TypingContext, other: Type) -> Type | None:
    """Return the named tuple that both can become, where that holds active numbers; Numba knows of none."""
    if getattr(other, "instance_class", None) is not self.instance_class:
        return None
    parts = [typingctx.unify_pairs(a, b) for a, b in zip(self, other, strict=True)]
    found = None if None in parts else types.BaseTuple.from_types(parts, self.instance_class)
    return found if found is not None and holds_active(found) else None


def _cast_named(context: Context, builder: Builder, source: Type, target: Type, value: Value) -> Value:
    parts = zip(cgutils.unpack_tuple(builder, value), source, target, strict=True)
    return context.make_tuple(builder, target, [context.cast(builder, v, a, b) for v, a, b in parts])


NAMED = types.NamedTuple, types.NamedUniTuple  # Numba's, which have no `unify`: other programs type as before
for _kind in NAMED:
    _kind.unify = _unify_named
    for _other in NAMED:
        lower_cast(_kind, _other)(_cast_named)


@intrinsic
def evened(typingctx: TypingContext, x: Type) -> Emission:
    """Return a tuple of floats and active numbers as one of active numbers, as if all were floats.

    So it can be iterated over and indexed. Anything else is itself.
    """
    real = isinstance(x, types.Tuple) and all(isinstance(k, (types.Float, *KINDS)) for k in x)
    active = joined(list(x)) if real else None
    out = x if active is None else types.UniTuple(active, len(x))

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        if out == x:
            return impl_ret_borrowed(context, builder, x, args[0])
        parts = cgutils.unpack_tuple(builder, args[0])
        return context.make_tuple(
            builder, out, [context.cast(builder, v, k, active) for v, k in zip(parts, x, strict=True)]
        )

    return out(x), code


@intrinsic
def promoted(typingctx: TypingContext, dtype: Type, x: Type) -> Emission:
    """Return numbers, those in tuples too, as active ones of the kind that is given."""
    spec = dtype.dtype.spec

    def leaf(kind: Type) -> Type:
        return Active(spec) if isinstance(kind, Expression) else recorded(kind, spec)

    out = _mapped(x, leaf) if _are_numbers(x) else x
    return out(dtype, x), lambda cx, b, sig, args: cx.cast(b, args[1], x, out)


def _are_numbers(kind: Type) -> bool:
    if isinstance(kind, types.BaseTuple):
        return all(map(_are_numbers, kind))
    return isinstance(kind, (types.Number, types.Boolean, *KINDS, ActiveComplex))


# ---------------------------------------------------------------- classes

NONE, NUMBERS, ALL = range(3)  # which members of a class hold active numbers: not arrays, for the second
_TWINS: dict[tuple[Type, Spec, int], Any] = {}  # of classes and deferred types
_WAITING: list[tuple[types.DeferredType, Type, Spec, bool]] = []  # deferred types, with what they shall be
_OPEN: list[types.ClassType] = []  # classes whose twin is being made


def _deferred(kind: Type, spec: Spec, floats: bool) -> Type:
    key = kind, spec, floats
    if key not in _TWINS:
        _TWINS[key] = types.DeferredType()
        _WAITING.append((_TWINS[key], *key))
        _define()
    return _TWINS[key]


def _define() -> None:
    """Define the deferred types that wait, as soon as no class is being made."""
    while _WAITING and not _OPEN:
        twin, kind, spec, floats = _WAITING.pop()
        twin.define(recorded(kind.get(), spec, floats))


def twin_class(primal: types.ClassType, spec: Spec, which: int) -> types.ClassType:
    """Return the class whose methods record; those of its members that hold floats hold active numbers."""
    if hasattr(primal, "_tapegrad_of"):
        return primal
    if (primal, spec, which) not in _TWINS:
        struct = {}
        _OPEN.append(primal)
        try:
            for name, kind in primal.struct.items():
                plain = which == NONE or (which == NUMBERS and isinstance(kind, types.Array))
                struct[name] = recorded(kind, spec, floats=not plain)
        finally:
            _OPEN.pop()
        found = types.ClassType(
            type(primal.class_name, (), {"__doc__": primal.class_doc}),
            _Constructor,
            struct,
            {name: twin_of(method, spec) for name, method in primal.jit_methods.items()},
            {
                name: {how: _ENDED[how](twin_of(method, spec)) for how, method in methods.items()}
                for name, methods in primal.jit_props.items()
            },
            {name: twin_of(method, spec) for name, method in primal.jit_static_methods.items()},
        )
        found._tapegrad_of, found._tapegrad_spec, found._tapegrad_which = primal, spec, which
        _TWINS[primal, spec, which] = found
        _define()
    return _TWINS[primal, spec, which]


def _ended(getter: Compiled) -> Compiled:
    """A getter that returns no expression: what it returns is the type that its setter takes."""
    end: Any = statement
    return njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)(lambda self: end(getter(self)))


_ENDED = {"get": _ended, "set": lambda setter: setter}


class _Constructor(ConstructorTemplate):
    """Makes an instance whose arrays are active, or else, where it is given plain ones, its numbers only."""

    def generic(self, args: Sequence[Type], kws: Mapping[str, Type]) -> Signature:
        try:
            return super().generic(args, kws)
        except NumbaError:
            other = twin_class(self.key._tapegrad_of, self.key._tapegrad_spec, NUMBERS)
            if other.struct != self.key.struct:
                with contextlib.suppress(NumbaError):
                    return other.get_call_type(self.context, args, kws)
            raise


class Class:
    """Stands in recording code for a class of the user's."""

    def __init__(self, primal: JitClassType, spec: Spec) -> None:
        self._numba_type_ = twin_class(primal.class_type, spec, ALL)
        for name, method in self._numba_type_.jit_static_methods.items():
            setattr(self, name, method)


def named(kind: Type) -> str:
    """Say what a type is in few words."""
    if isinstance(kind, types.ClassInstanceType):
        return f"an instance of {kind.classname}"
    if isinstance(kind, types.Record):
        return f"a record of {', '.join(kind.fields)}"
    if isinstance(kind, types.Array) and isinstance(kind.dtype, types.Record):
        return f"an array, each element {named(kind.dtype)}"
    return str(kind)


def holds_active(kind: Type) -> bool:
    """Whether active numbers are in what has this type."""
    if isinstance(kind, (Active, Expression, ActiveComplex, ActiveRecord)):
        return True
    if isinstance(kind, types.ClassInstanceType):
        return getattr(kind.class_type, "_tapegrad_which", NONE) != NONE
    parts = list(kind) if isinstance(kind, types.BaseTuple) else [
        getattr(kind, name, None) for name in ("dtype", "item_type", "key_type", "value_type", "type")
    ]  # fmt: skip
    return any(isinstance(part, types.Type) and holds_active(part) for part in parts)
