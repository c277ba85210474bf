"""Linear algebra of matrices of active numbers: values by BLAS and LAPACK, a block of the tape each.

A matrix is taken apart into arrays of float64, one for each component of its numbers. Dual numbers are a
commutative algebra, so what is true of matrices of floats is true of theirs: a product is a sum of products
of components, and what LAPACK finds for the values is corrected as often as there are levels of tangents,
each time to one order more.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from types import ModuleType

import llvmlite.binding as binding
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import get_cython_function_address, intrinsic
from numba.np import arrayobj

from tapegrad.kernels import cache
from tapegrad.kernels.locks import importing
from tapegrad.native.arrays.argument_arrays import ArgumentArray, of_floats, parts_of
from tapegrad.native.arrays.array_layout import COUNTED, NUMBERED, PLAIN
from tapegrad.native.arrays.arrays import Token, is_active_array
from tapegrad.native.emission.algebra import I64, MARKED, Emitter, Spec, components, products
from tapegrad.native.emission.annotations import (
    Builder,
    Compiled,
    Context,
    Emission,
    Intrinsic,
    Namespace,
    Signature,
    TupleType,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.emission.deferred import Deferred, caller
from tapegrad.native.library import matrix_planes, matrix_sources, spectral_sources
from tapegrad.native.library.matrix_sources import Source
from tapegrad.native.numbers.scalar import Active
from tapegrad.native.tapes.blocks import inner_njit
from tapegrad.native.tapes.runtime import digest
from tapegrad.native.tapes.tape import LIMIT, make_room, word
from tapegrad.ops.triangles import kernel_of

BLAS = {"dgemm", "dtrsm"}
# Address, how its elements are numbered (`array_layout`), rows, columns, both strides; of floats whose
# statements follow each other the first one, and the tape.
DESCRIBED = types.UniTuple(types.int64, 8)


@functools.cache
def fortran(name: str) -> Intrinsic:
    """Return a function of SciPy's BLAS or LAPACK, which returns what its last argument then is: what failed.

    It is given addresses: of numbers, of the codes of letters, of what is in arrays. Integers have 64 bits,
    which is right where it reads 32, as the lower half comes first.
    """
    module = "scipy.linalg.cython_blas" if name in BLAS else "scipy.linalg.cython_lapack"
    symbol, byte = f"tapegrad_{name}", ir.IntType(8).as_pointer()
    with importing():
        binding.add_symbol(symbol, get_cython_function_address(module, name))

    @intrinsic
    def call(typingctx: TypingContext, *kinds: Type) -> Emission:
        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            places = []
            for kind, value in zip(kinds, cgutils.unpack_tuple(builder, args[0]), strict=True):
                if isinstance(kind, types.Array):
                    places.append(arrayobj.make_array(kind)(context, builder, value).data)
                else:
                    wide = types.float64 if isinstance(kind, types.Float) else types.int64
                    value = context.cast(builder, value, kind, wide)
                    places.append(cgutils.alloca_once_value(builder, value))
            form = ir.FunctionType(ir.VoidType(), [byte] * len(places))
            function = cgutils.get_or_insert_function(builder.module, form, symbol)
            builder.call(function, [builder.bitcast(place, byte) for place in places])
            return builder.load(places[-1])

        return types.int64(types.StarArgTuple(kinds)), code

    return call


@functools.cache
def by_products(name: str) -> Intrinsic | None:
    """Return a kernel of `ops.triangles`, given integers and arrays; None without NumPy's product."""
    found = kernel_of("d", name, "int64")
    if found is None:
        return None
    symbol, product, byte = f"tapegrad_{name}_by_products", "tapegrad_product_of_numpy", ir.IntType(8)
    with importing():
        binding.add_symbol(symbol, ctypes.cast(found[0], ctypes.c_void_p).value)
        binding.add_symbol(product, found[1])

    @intrinsic
    def call(typingctx: TypingContext, *kinds: Type) -> Emission:
        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            module = builder.module
            known = module.globals.get(product) or ir.GlobalVariable(module, byte, product)
            values = [known.ptrtoint(I64)]
            for kind, value in zip(kinds, cgutils.unpack_tuple(builder, args[0]), strict=True):
                if isinstance(kind, types.Array):
                    values.append(arrayobj.make_array(kind)(context, builder, value).data)
                else:
                    values.append(context.cast(builder, value, kind, types.int64))
            form = ir.FunctionType(ir.VoidType(), [value.type for value in values])
            builder.call(cgutils.get_or_insert_function(module, form, symbol), values)
            return context.get_dummy_value()

        return types.void(types.StarArgTuple(kinds)), code

    return call


@intrinsic
def array_at(typingctx: TypingContext, address: Type, shape: TupleType, dtype: Type) -> Emission:
    """Return an array in C order of what lies at an address, which belongs to somebody else."""
    kind = types.Array(dtype.dtype, len(shape), "C")

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        extents, strides = cgutils.unpack_tuple(builder, args[1]), [ir.Constant(I64, size)]
        for extent in extents[:0:-1]:
            strides.insert(0, builder.mul(strides[0], extent))
        array = arrayobj.make_array(kind)(context, builder)
        data = builder.inttoptr(args[0], context.get_data_type(kind.dtype).as_pointer())
        arrayobj.populate_array(array, data, extents, strides, ir.Constant(I64, size), None)
        return array._getvalue()

    return kind(types.int64, shape, dtype), code


@intrinsic
def look(typingctx: TypingContext, tape: Type, size: Type) -> Emission:
    """See to interrupts as often as if so many bytes had been recorded."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        limit = word(builder, args[0], LIMIT)
        builder.store(builder.sub(builder.load(limit), args[1]), limit)
        make_room(Emitter(context, builder), args[0], ir.Constant(I64, 8))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


def source_of(name: str) -> Source:
    """Return what is known of a function of matrices."""
    module = matrix_sources if hasattr(matrix_sources, name.upper()) else spectral_sources
    found: Source = getattr(module, name.upper())
    return found


@functools.cache
def compiled(name: str, *spec: int) -> ModuleType:
    """Return the module of a function of matrices of such numbers."""
    source = source_of(name)
    operands = source.operands
    text = f"{matrix_planes.PLANES}{source.text}{matrix_planes.BLOCK}".format(
        name=name,
        spec=spec,
        components=components(spec),
        levels=sum(lanes > 0 for lanes in spec),
        products=products(spec),
        rows_first=not source.by_columns,
        operands=", ".join(operands),
        signature=", ".join(["UniTuple(int64, 8)"] * len(operands)),
        digest=digest(),
        laid=", ".join(f"laid({x})" for x in operands),
        homes=" or ".join(f"home({x})" for x in operands),
        parts=", ".join(f"apart({x}, where)" for x in operands),
        planes=", ".join(f"given[{k}][0]" for k in range(len(operands))),
        statements=", ".join(f"given[{k}][1]" for k in range(len(operands))),
    )
    return cache.load(f"matrix_{name}", text)


PLANES = types.Array(types.float64, 3, "C")
ASSEMBLE = types.void(PLANES, types.int64, types.int64, types.int64)
RESULT = types.Tuple((PLANES, types.int64, types.int64))  # components, the number of the first, the tape


def described(as_row: bool) -> Intrinsic:
    """Return ``describe(x)``: what the functions of matrices are given; a vector is a row, or a column."""

    @intrinsic
    def describe(typingctx: TypingContext, x: Type) -> Emission:
        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            value, numbering = args[0], [NUMBERED if is_active_array(x) else PLAIN, 0, 0]
            if isinstance(x, ArgumentArray):
                value, first, tape = parts_of(context, builder, x, value)
                on_none = builder.icmp_signed("==", tape, ir.Constant(I64, 0))
                how = builder.select(on_none, ir.Constant(I64, PLAIN), ir.Constant(I64, COUNTED))
                numbering = [how, first, tape]
            kind = x.floats if isinstance(x, ArgumentArray) else x
            array = arrayobj.make_array(kind)(context, builder, value)
            shape, strides = (
                cgutils.unpack_tuple(builder, part, x.ndim) for part in (array.shape, array.strides)
            )
            if x.ndim == 1:
                one, none = ir.Constant(I64, 1), ir.Constant(I64, 0)
                shape, strides = (
                    ([one, *shape], [none, *strides]) if as_row else ([*shape, one], [*strides, none])
                )
            how, *counted = (w if isinstance(w, ir.Value) else ir.Constant(I64, w) for w in numbering)
            words = [builder.ptrtoint(array.data, I64), how, *shape, *strides, *counted]
            return context.make_tuple(builder, DESCRIBED, words)

        return DESCRIBED(x), code

    return describe


as_row, as_column = described(True), described(False)


@intrinsic
def address_of(typingctx: TypingContext, x: Type) -> Emission:
    """Return the address of an array's memory."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        return builder.ptrtoint(arrayobj.make_array(x)(context, builder, args[0]).data, I64)

    return types.int64(x), code


def spec_of(*kinds: Type) -> Spec | None:
    """Return the tangents of matrices and vectors of floats and active numbers; None of others.

    Neither of series nor of numbers that know whether they move.
    """
    fits = all(kind.ndim <= 2 and (is_active_array(kind) or kind.dtype == types.float64) for kind in kinds)
    found: Spec | None = next((kind.dtype.spec for kind in kinds if is_active_array(kind)), None)
    return None if not fits or found is None or MARKED in found or min(found, default=0) < 0 else found


def block_of(name: str, *kinds: Type, counted: bool = False) -> Compiled | None:
    """Return ``run(shape, *operands)`` for matrices and vectors of these types; None where there is none.

    If it is to be `counted` results are floats whose statements follow each other.
    """
    spec = spec_of(*kinds)
    return None if spec is None or (spec and source_of(name).values_only) else _run(name, spec, counted)


@functools.cache
def _run(name: str, spec: Spec, counted: bool) -> Compiled:
    names, args = source_of(name).operands, (name, *spec)
    space: Namespace = {
        "np": np,
        "dtype": Token(Active(spec)),
        "compute": caller(Deferred(__name__, args, name), RESULT(*[DESCRIBED] * len(names))),
        "assemble": caller(Deferred(__name__, args, "assemble"), ASSEMBLE),
        "address_of": address_of,
        "of_floats": of_floats,
        **{f"describe_{x}": one for x, one in zip(names, (as_row, as_column, as_column), strict=False)},
    }
    made = (
        "    return of_floats(found.reshape(shape), first, tape)\n"
        if counted
        else "    out = np.empty(shape, dtype)\n"
        "    assemble(found, first, tape, address_of(out))\n"
        "    return out\n"
    )
    exec(
        f"def run(shape, {', '.join(names)}):\n"
        f"    found, first, tape = compute({', '.join(f'describe_{x}({x})' for x in names)})\n{made}",
        space,
    )
    return inner_njit(space["run"])
