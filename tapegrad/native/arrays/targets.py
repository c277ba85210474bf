"""Parts of arrays of floats that are written to."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba.core import types
from numba.core.typing.templates import signature

from tapegrad.native.arrays.argument_arrays import header_of, parts_of
from tapegrad.native.arrays.bounds import check_index
from tapegrad.native.emission.annotations import Builder, Context, Type, Value


class Target(NamedTuple):
    """Where an expression is written to: a part, in the order of C, of an array that is written to."""

    kind: types.Array
    floats: Value
    header: Value


def target_of(
    context: Context, builder: Builder, array: tuple[Type, Value], index: tuple[Type, Value], words: str
) -> Target:
    """Emit the place of an array that an index is of: a slice, a whole number, or None for all of it."""
    (kind, value), (index_kind, at) = array, index
    floats, *_ = parts_of(context, builder, kind, value)
    place = floats
    if not isinstance(index_kind, types.NoneType):
        check_index(context, builder, kind.floats, floats, index, words)

        def of_slice(x: Any, at: Any) -> Any:
            return x[at]

        def of_number(x: Any, at: Any) -> Any:
            at = at + x.shape[0] if at < 0 else at
            return x[at : at + 1]

        impl = of_slice if isinstance(index_kind, types.SliceType) else of_number
        form = signature(kind.floats, kind.floats, index_kind)
        place = context.compile_internal(builder, impl, form, [floats, at])
        context.nrt.decref(builder, kind.floats, place)  # the array itself is held
    return Target(kind.floats, place, header_of(context, builder, kind, value))
