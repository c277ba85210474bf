"""Linear algebra of matrices of active numbers: values by BLAS and LAPACK, a block of the tape each.

A matrix is taken apart into arrays of float64, one for each component of its numbers. Dual numbers are a
commutative algebra, so what is true of matrices of floats is true of theirs: a product is a sum of products
of components, and what LAPACK finds for the values is corrected as often as there are levels of tangents,
each time to one order more.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np import arrayobj

from tapegrad.kernels import cache
from tapegrad.native import matrix_sources
from tapegrad.native.algebra import I64, MARKED, Spec, components
from tapegrad.native.annotations import (
    Builder,
    Compiled,
    Context,
    Emission,
    Intrinsic,
    Namespace,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.arrays import Token, is_active_array
from tapegrad.native.blocks import inner_njit
from tapegrad.native.deferred import Deferred, caller
from tapegrad.native.runtime import digest
from tapegrad.native.scalar import Active

DESCRIBED = types.UniTuple(types.int64, 6)  # address, whether it is active, rows, columns, and both strides


def spec_of_matrices(*kinds: Type) -> Spec | None:
    """Return the kind of numbers of matrices and vectors that the functions here take; None of others.

    They take floats and dual numbers, neither series nor such as know whether they move.
    """
    spec = next((kind.dtype.spec for kind in kinds if is_active_array(kind)), None)
    fits = all(is_active_array(kind) or kind.dtype == types.float64 for kind in kinds)
    if spec is None or not fits or MARKED in spec or min(spec, default=0) < 0:
        return None
    return spec


def _products(spec: Spec) -> list[tuple[int, int, int]]:
    """Which components of two factors have their product in which component."""
    if not spec or not spec[0]:
        return [(0, 0, 0)]
    step, found = components(spec[1:]), []
    for i, j, k in _products(spec[1:]):
        found.append((i, j, k))
        for lane in range(step, step * (spec[0] + 1), step):
            found += [(lane + i, j, lane + k), (i, lane + j, lane + k)]
    return found


@functools.cache
def compiled(name: str, *spec: int) -> ModuleType:
    """Return the module of a function of matrices of such numbers."""
    known = {"name": name, "spec": spec, "components": components(spec), "products": _products(spec)}
    levels = sum(lanes > 0 for lanes in spec)
    text = getattr(matrix_sources, name.upper()).format(**known, levels=levels, digest=digest())
    return cache.load(f"matrix_{name}", text)


PLANES = types.Array(types.float64, 3, "C")
ASSEMBLE = types.void(PLANES, types.int64, types.int64, types.int64)
RESULT = types.Tuple((PLANES, types.int64, types.int64))  # components, the number of the first, the tape


def described(as_row: bool) -> Intrinsic:
    """Return ``describe(x)``: what the functions of matrices are given; a vector is a row, or a column."""

    @intrinsic
    def describe(typingctx: TypingContext, x: Type) -> Emission:
        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            array = arrayobj.make_array(x)(context, builder, args[0])
            shape, strides = (
                cgutils.unpack_tuple(builder, part, x.ndim) for part in (array.shape, array.strides)
            )
            if x.ndim == 1:
                one, none = ir.Constant(I64, 1), ir.Constant(I64, 0)
                shape, strides = (
                    ([one, *shape], [none, *strides]) if as_row else ([*shape, one], [*strides, none])
                )
            words = [
                builder.ptrtoint(array.data, I64),
                ir.Constant(I64, int(is_active_array(x))),
                *shape,
                *strides,
            ]
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


@functools.cache
def function(name: str, spec: Spec, operands: int) -> Compiled:
    """Return ``run(shape, *operands)`` for arrays of such numbers, and plain ones."""
    args, describe = (name, *spec), [as_row, as_column][:operands]
    space: Namespace = {
        "np": np,
        "dtype": Token(Active(spec)),
        "compute": caller(Deferred("matrices", args, name), RESULT(*[DESCRIBED] * operands)),
        "assemble": caller(Deferred("matrices", args, "assemble"), ASSEMBLE),
        "address_of": address_of,
        **{f"describe{k}": one for k, one in enumerate(describe)},
    }
    names = [f"x{k}" for k in range(operands)]
    exec(
        f"def run(shape, {', '.join(names)}):\n"
        f"    found, first, tape = compute({', '.join(f'describe{k}(x{k})' for k in range(operands))})\n"
        "    out = np.empty(shape, dtype)\n"
        "    assemble(found, first, tape, address_of(out))\n"
        "    return out\n",
        space,
    )
    return inner_njit(space["run"])
