"""Arrays that expressions and products alone read: floats, arguments as they were given.

As active numbers they would be written, and read again, with 24 bytes an element. Their statements follow
each other, so the number of the first one and the tape are all that a record has to know. Nothing writes to
them, so their rows, and slices of their first axis, are such arrays too.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from llvmlite import ir as llvm
from numba.core import cgutils, types
from numba.core.imputils import impl_ret_borrowed, lower_builtin, lower_getattr
from numba.core.typing.templates import signature
from numba.extending import intrinsic, models, register_model
from numba.np import arrayobj

from tapegrad.native.emission.algebra import I64, Emitter
from tapegrad.native.emission.annotations import (
    Builder,
    Context,
    DataModelManager,
    Emission,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.numbers.scalar import Active, struct
from tapegrad.native.tapes.buffers import empty_array

ATTRIBUTES = ("ndim", "shape", "size")
# Words of a header: the statement of the first element, its tape, its address, how many elements there are.
FIRST, TAPE, DATA, COUNT = range(4)
HEADER = 64  # bytes


class ArgumentArray(types.Array):
    """An array of active numbers that nobody writes to: values are an array of floats, in the order of C."""

    is_internal = True  # Numba looks for expressions among operands of such types alone

    how = "read"

    def __init__(self, ndim: int) -> None:
        super().__init__(Active(), ndim, "C", name=f"array({Active()}, {ndim}d, C, {self.how})")

    @property
    def floats(self) -> types.Array:
        """The type of the array of values."""
        return types.Array(types.float64, self.ndim, "C")

    def copy(  # type: ignore[override]
        self,
        dtype: Type | None = None,
        ndim: int | None = None,
        layout: str | None = None,
        readonly: bool | None = None,
    ) -> types.Array:
        """Return the type of what is made of it: of a part in the order of C it is such a one, too."""
        if dtype is None and layout == "C" and ndim is not None:
            return type(self)(ndim)
        return types.Array.copy(self, dtype, ndim, layout, readonly)


@register_model(ArgumentArray)
class _Model(models.StructModel):
    def __init__(self, manager: DataModelManager, kind: ArgumentArray) -> None:
        members = [("floats", kind.floats), ("first", types.int64), ("tape", types.int64)]
        super().__init__(manager, kind, members)


class WrittenArray(ArgumentArray):
    """One that is written to, as a whole or at slices.

    Its elements keep their statements, as memory keeps its address: what is written takes what came to an
    element, and nothing has come to it before. Before its elements stands a `HEADER`, as which statements
    those are is not known before the first number with derivatives is written.
    """

    how = "written"


@register_model(WrittenArray)
class _WrittenModel(models.StructModel):
    def __init__(self, manager: DataModelManager, kind: WrittenArray) -> None:
        super().__init__(manager, kind, [("floats", kind.floats), ("header", types.int64)])


def fits(kind: Type) -> bool:
    """Whether an argument of this type can be such an array."""
    plain = isinstance(kind, types.Array) and kind.dtype == types.float64
    return plain and kind.layout == "C" and kind.ndim > 0 and kind.aligned


def argument(
    context: Context, builder: Builder, kind: ArgumentArray, floats: Value, first: Value, tape: Value
) -> Value:
    """Emit such an array, which has the reference to that of floats."""
    made = context.make_helper(builder, kind)
    made.floats, made.first, made.tape = floats, first, tape
    return made._getvalue()


@intrinsic
def of_floats(typingctx: TypingContext, floats: Type, first: Type, tape: Type) -> Emission:
    """Return the array whose values are floats, and whose statements follow each other."""
    kind = ArgumentArray(floats.ndim)

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> llvm.Value:
        return impl_ret_borrowed(context, builder, kind, argument(context, builder, kind, *args))

    return kind(kind.floats, types.int64, types.int64), code


def parts_of(
    context: Context, builder: Builder, kind: ArgumentArray, value: Value
) -> tuple[Value, Value, Value]:
    """Emit the array of floats, the number of the first statement, and the tape."""
    found = context.make_helper(builder, kind, value=value)
    if not isinstance(kind, WrittenArray):
        return found.floats, found.first, found.tape
    first, tape, data = (builder.load(_header(builder, found.header, k)) for k in (FIRST, TAPE, DATA))
    array = arrayobj.make_array(kind.floats)(context, builder, found.floats)
    apart = builder.sub(builder.ptrtoint(array.data, I64), data)
    return found.floats, builder.add(first, builder.ashr(apart, llvm.Constant(I64, 3))), tape


def _header(builder: Builder, header: Value, k: int) -> llvm.Value:
    """A pointer to a word of a header; a variable that was not assigned has none, for which zeros stand."""
    module, name = builder.module, "no_header"
    none = module.globals.get(name)
    if none is None:
        none = llvm.GlobalVariable(module, llvm.ArrayType(I64, HEADER // 8), name)
        none.linkage, none.initializer = "internal", llvm.Constant(none.type.pointee, None)
    missing = builder.icmp_signed("==", header, llvm.Constant(I64, 0))
    header = builder.select(missing, builder.ptrtoint(none, I64), header)
    pointer = builder.inttoptr(header, I64.as_pointer())
    return builder.gep(pointer, [llvm.Constant(I64, k)], inbounds=True)


def written_array(
    context: Context, builder: Builder, kind: WrittenArray, shape: Sequence[Value]
) -> tuple[llvm.Value, Any]:
    """Emit a new array that is written to, on no tape as yet; returns it and the parts of that of floats."""
    array = empty_array(context, builder, kind.floats, shape, HEADER)
    made = context.make_helper(builder, kind)
    made.floats = array._getvalue()
    data = builder.ptrtoint(array.data, I64)
    made.header = builder.sub(data, llvm.Constant(I64, HEADER))
    none = llvm.Constant(I64, 0)
    for k, word in {FIRST: none, TAPE: none, DATA: data, COUNT: array.nitems}.items():
        builder.store(word, _header(builder, made.header, k))
    return made._getvalue(), array


def note_statements(
    context: Context, builder: Builder, kind: WrittenArray, value: Value, first: Value, tape: Value
) -> None:
    """Emit what says which statements the elements of a new array have."""
    header = header_of(context, builder, kind, value)
    builder.store(first, _header(builder, header, FIRST))
    builder.store(tape, _header(builder, header, TAPE))


def header_of(context: Context, builder: Builder, kind: WrittenArray, value: Value) -> llvm.Value:
    """Emit the address of the header."""
    return context.make_helper(builder, kind, value=value).header


@intrinsic
def floats_of(typingctx: TypingContext, x: Type) -> Emission:
    """Return the values; any other array is itself."""
    if not isinstance(x, ArgumentArray):
        return x(x), lambda cx, b, sig, args: impl_ret_borrowed(cx, b, x, args[0])

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> llvm.Value:
        floats, *_ = parts_of(context, builder, x, args[0])
        return impl_ret_borrowed(context, builder, sig.return_type, floats)

    return x.floats(x), code


def _attribute(name: str) -> None:
    @lower_getattr(ArgumentArray, name)
    def code(context: Context, builder: Builder, kind: ArgumentArray, value: Value) -> Value:
        floats, *_ = parts_of(context, builder, kind, value)
        return context.get_getattr(kind.floats, name)(context, builder, kind.floats, floats, name)


for _name in ATTRIBUTES:
    _attribute(_name)


@lower_builtin(operator.getitem, ArgumentArray, types.BaseTuple)
@lower_builtin(operator.getitem, ArgumentArray, types.Integer)
@lower_builtin(operator.getitem, ArgumentArray, types.SliceType)
def _part(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> llvm.Value:
    """One number, or a row or slice, whose first statement is told by where it lies."""
    kind, index = sig.args
    floats, first, tape = parts_of(context, builder, kind, args[0])
    array = arrayobj.make_array(kind.floats)(context, builder, floats)
    result = sig.return_type
    if isinstance(result, Active):  # of what is written to, small products read them, and record at once
        place = _place(context, builder, kind, index, array, args[1])
        value = builder.load(builder.gep(array.data, [place]))
        there_is = builder.icmp_signed("!=", tape, llvm.Constant(I64, 0))
        statement = builder.select(there_is, builder.add(first, place), llvm.Constant(I64, 0))
        return struct(Emitter(context, builder), result, [value, statement, tape])
    if not isinstance(result, ArgumentArray):
        raise NotImplementedError("tapegrad: such parts are not read of arrays that are floats")
    form = signature(result.floats, kind.floats, index)
    part = context.compile_internal(builder, lambda x, at: x[at], form, [floats, args[1]])
    if isinstance(result, WrittenArray):
        found = context.make_helper(builder, result)
        found.floats, found.header = part, header_of(context, builder, kind, args[0])
        return found._getvalue()
    data = arrayobj.make_array(result.floats)(context, builder, part).data
    apart = builder.sub(builder.ptrtoint(data, I64), builder.ptrtoint(array.data, I64))
    at = builder.add(first, builder.ashr(apart, llvm.Constant(I64, 3)))
    return argument(context, builder, result, part, at, tape)


def _place(
    context: Context, builder: Builder, kind: ArgumentArray, index: Type, array: Any, given: Value
) -> Value:
    """How many elements there are before one in the order of C."""
    kinds, parts = (
        (list(index), cgutils.unpack_tuple(builder, given)) if kind.ndim > 1 else ([index], [given])
    )
    kinds, parts = arrayobj.normalize_indices(context, builder, kinds, parts)
    shape, at = cgutils.unpack_tuple(builder, array.shape), llvm.Constant(I64, 0)
    for one, part, extent in zip(kinds, parts, shape, strict=True):
        place = arrayobj.fix_integer_index(context, builder, one, part, extent)
        at = builder.add(builder.mul(at, extent), place)
    return at
