"""Arrays of complex active numbers: their parts as views, and functions that are of complex numbers only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import types
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic, overload
from numba.np import arrayobj

from tapegrad.native.arrays.arrays import is_active_array, is_complex_array, is_recorded_array
from tapegrad.native.emission.annotations import (
    Builder,
    Code,
    Context,
    Emission,
    Intrinsic,
    Namespace,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.library.functions import ATTRIBUTES, dtype_of, overload_recorded
from tapegrad.native.numbers.complexes import ActiveComplex
from tapegrad.native.numbers.scalar import Active, is_active


def view_type(kind: Type) -> types.Array:
    """Return the type of the view of one part of a complex array."""
    return types.Array(Active(kind.dtype.spec), kind.ndim, "A", readonly=not kind.mutable)


def view_of(context: Context, builder: Builder, kind: Type, value: Value, part: int) -> Value:
    """Make the view of one part of a complex array."""
    before, seen = arrayobj.make_array(kind)(context, builder, value), view_type(kind)
    after = arrayobj.make_array(seen)(context, builder)
    data = builder.gep(before.data, [ir.Constant(ir.IntType(32), k) for k in (0, part)], inbounds=True)
    size = context.get_abi_sizeof(context.get_data_type(seen.dtype))
    arrayobj.populate_array(
        after, data=data, shape=before.shape, strides=before.strides,
        itemsize=context.get_constant(types.intp, size), meminfo=before.meminfo, parent=before.parent,
    )  # fmt: skip
    return after._getvalue()


def _view(part: int) -> Intrinsic:
    @intrinsic
    def view(typingctx: TypingContext, a: Type) -> Emission:
        seen = view_type(a)

        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            return impl_ret_borrowed(context, builder, seen, view_of(context, builder, a, args[0], part))

        return seen(a), code

    return view


real_view, imag_view = _view(0), _view(1)


def _part(name: str, view: Intrinsic, of_number: Code, of_real: Code) -> None:
    """Declare an attribute, and the function of NumPy's that is the same."""
    space: Namespace = {"np": np}
    exec(f"def plain(val):\n    return val.{name}\ndef stub(val):\n    pass", space)
    space["stub"].__name__ = name

    def choose(val):
        if is_complex_array(val):
            return lambda val: view(val)
        if is_active(val):
            return of_number
        return of_real if is_active_array(val) else None

    choose.__name__ = name
    overload_recorded(getattr(np, name))(choose)
    overload(space["stub"])(lambda val: choose(val) or space["plain"])
    ATTRIBUTES[name] = space["stub"]


_part("real", real_view, lambda val: val, lambda val: val)
_part("imag", imag_view, lambda val: 0.0, lambda val: np.zeros(val.shape, dtype_of(val)))


@overload_recorded(np.angle)
def angle(z):
    return (lambda z: np.arctan2(imag_view(z), real_view(z))) if is_complex_array(z) else None


@overload_recorded(np.complex128)
def complex128(x):
    return (lambda x: complex(x)) if is_active(x) or isinstance(x, ActiveComplex) else None


for _name in ("conj", "conjugate"):
    _space: Namespace = {}
    exec(f"def plain(z):\n    return z.{_name}()", _space)

    def _conjugated(z):
        return (lambda z: np.conj(z)) if is_recorded_array(z) or is_active(z) else None

    _conjugated.__name__ = _name
    overload_recorded(njit(_space["plain"]), method=_name)(_conjugated)
