"""Small products of a matrix and a vector of active numbers: a record each, whose operands the tape has.

The vector is copied into the record, the matrix once for all products that find it as it was. Where it is an
argument that was left as it is, floats are compared, and their statements follow each other.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from tapegrad.kernels import cache
from tapegrad.native.arrays.argument_arrays import floats_of, of_floats
from tapegrad.native.emission.algebra import I64, products
from tapegrad.native.emission.annotations import (
    Builder,
    Compiled,
    Context,
    Emission,
    Intrinsic,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.emission.deferred import Deferred, caller, emit_address, emit_adjoint
from tapegrad.native.library import matrix_planes
from tapegrad.native.library.matrices import DESCRIBED, address_of, as_column, spec_of
from tapegrad.native.tapes.blocks import inner_njit
from tapegrad.native.tapes.runtime import digest

BY_LOOPS = 4096  # products of numbers in one of a matrix and a vector that is computed without BLAS

SOURCE = '''
from tapegrad.native.tapes.blocks import FULL
from tapegrad.native.tapes.memory import free, malloc, room
from tapegrad.native.tapes.tape import COUNT, NUMBERS, TOP

# Words of a record: its kind, how many leaves it has, rows and columns of the matrix, whether the vector is
# on its left, and where the matrix is; then the vector.
KIND, LEAVES, ROWS, COLUMNS, LEFT, MATRIX, VECTOR = range(7)
summing = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, fastmath={{"reassoc"}})  # as BLAS does


@summing
def along_row(x, y):
    """The product of two vectors."""
    s = 0.0
    for j in range(x.size):
        s += x[j] * y[j]
    return s


@inner_njit
def computed(x_at, m, n, left, y_at, target):
    """Write a product to the memory of an array."""
    x, y = array_at(x_at + 8, (m, n), np.float64), array_at(y_at + 8, (m if left else n,), np.float64)
    out = array_at(target, (n if left else m,), np.float64)
    for k in range(out.size):
        if left:
            s = 0.0
            for i in range(m):
                s += y[i] * x[i, k]
        else:
            s = along_row(x[k], y)
        out[k] = s


@njit("UniTuple(int64, 2)(UniTuple(int64, 8), UniTuple(int64, 8), int64, int64, int64)", cache=CACHE)
def record(x, y, left, target, kind):
    """Compute the product of a matrix and a vector, and record it if one is on a tape.

    Returns its first statement, and the tape.
    """
    m, n = x[2], x[3]
    tape, size, count = tape_of(x), m if left else n, n if left else m
    if tape == 0:
        tape = tape_of(y)
    if tape == 0 or count == 0:
        start = malloc(16 * (m * n + size + 2))
        if start == 0:
            raise MemoryError("no memory for the operands of a product")
        y_at = start + filled(start, x)
        filled(y_at, y)
        computed(start, m, n, left, y_at, target)
        free(start)
        return 0, 0
    if get(tape, COUNT) + count >= NUMBERS - 1:
        raise MemoryError(FULL)
    x_at = imported(x, tape)
    start = room(tape, 8 * VECTOR + 16 * (size + 1) + 24)
    first, y_at = get(tape, COUNT) + 1, start + 8 * VECTOR
    put(start, KIND, kind)
    put(start, LEAVES, m * n + size)
    put(start, ROWS, m)
    put(start, COLUMNS, n)
    put(start, LEFT, left)
    put(start, MATRIX, x_at)
    to = y_at + filled(y_at, y)
    computed(x_at, m, n, left, y_at, target)
    put(to, 0, count)
    put(to, 1, to + 24 - start)
    put(to, 2, kind)
    put(tape, TOP, to + 24)
    put(tape, COUNT, first + count - 1)
    return first, tape


@inner_njit
def give_outer(cotangents, at, x, y):
    """Add the outer product of two vectors to the cotangents of a matrix."""
    m, n, how = x.size, y.size, get(at, 0)
    if how & 3 == ONE_BY_ONE:
        for i in range(m):
            row = array_at(cotangents + 8 * ((how >> 2) + i * n), (n,), np.float64)
            for j in range(n):
                row[j] += x[i] * y[j] + 0.0
    elif how & 3 == LISTED:  # what is on no tape has the first cotangent, which nobody reads
        numbers = array_at(at + 8 + 8 * m * n, (m, n), np.uint32)
        for i in range(m):
            for j in range(n):
                place = cotangents + 8 * np.int64(numbers[i, j])
                write(place, read(place) + (x[i] * y[j] + 0.0))
    else:
        for k in range(m * n):
            add(cotangents, at, m * n, k, 0, x[k // n] * y[k % n])


@inner_njit
def give_by_columns(cotangents, at, x, y):
    """Add the product of the transpose of a matrix and a vector to the cotangents of a vector."""
    m, n, how = x.shape[0], x.shape[1], get(at, 0)
    if how & 3 == ONE_BY_ONE:
        given = array_at(cotangents + 8 * (how >> 2), (n,), np.float64)
        for i in range(m):
            for j in range(n):
                given[j] += x[i, j] * y[i] + 0.0
    else:
        for j in range(n):
            s = 0.0
            for i in range(m):
                s += x[i, j] * y[i]
            add(cotangents, at, n, j, 0, s)


@njit("void(int64, int64, int64)", cache=CACHE, nogil=True)
def reverse(cotangents, number, at):
    """The adjoint of a record: take the cotangents of its statements to those of its leaves."""
    m, n, left, x_at, y_at = get(at, ROWS), get(at, COLUMNS), get(at, LEFT), get(at, MATRIX), at + 8 * VECTOR
    size, count, any_came = m if left else n, n if left else m, False
    ct_at = cotangents + 8 * (number + 1)
    bits, ct = array_at(ct_at, (count,), np.int64), array_at(ct_at, (count,), np.float64)
    for k in range(count):
        any_came |= bits[k] != NOTHING_BITS
        ct[k] += 0.0
    if any_came:
        x, y = array_at(x_at + 8, (m, n), np.float64), array_at(y_at + 8, (size,), np.float64)
        if left:
            if get(x_at, 0):
                give_outer(cotangents, x_at, y, ct)
            if get(y_at, 0):
                for k in range(m):
                    add(cotangents, y_at, m, k, 0, along_row(x[k], ct))
        else:
            if get(x_at, 0):
                give_outer(cotangents, x_at, ct, y)
            if get(y_at, 0):
                give_by_columns(cotangents, y_at, x, ct)
    for k in range(count):
        ct[k] = -0.0
'''


@functools.cache
def compiled() -> ModuleType:
    """Return `record` and `reverse`, compiled."""
    text = f"{matrix_planes.PLANES}{SOURCE}".format(
        name="products", spec=(), components=1, levels=0, products=products(()), rows_first=True,
        digest=digest(),
    )  # fmt: skip
    return cache.load("native_products", text)


def kind_of(what: Deferred) -> Intrinsic:
    """Return ``kind()``: the address of the kind of records that have this adjoint."""

    @intrinsic
    def kind(typingctx: TypingContext) -> Emission:
        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            emit_address(context, builder, what)
            name = f"kind {what!r}"
            found = builder.module.globals.get(name)
            if found is None:
                adjoint = emit_adjoint(context, builder.module, what).ptrtoint(I64)
                value = ir.Constant.literal_struct([adjoint, *(ir.Constant(I64, w) for w in (0, 0, 1))])
                found = ir.GlobalVariable(builder.module, value.type, name)
                found.linkage, found.global_constant, found.initializer = "internal", True, value
            return found.ptrtoint(I64)

        return types.int64(), code

    return kind


kind = kind_of(Deferred(__name__, (), "reverse"))
RECORD = caller(
    Deferred(__name__, (), "record"),
    types.UniTuple(types.int64, 2)(DESCRIBED, DESCRIBED, types.int64, types.int64, types.int64),
)


@inner_njit
def of_vector(a, b):
    """The product of a matrix and a vector."""
    out = np.empty(floats_of(a).shape[0])
    first, tape = RECORD(as_column(a), as_column(b), 0, address_of(out), kind())
    return of_floats(out, first, tape)


@inner_njit
def to_vector(a, b):
    """The product of a vector and a matrix."""
    out = np.empty(floats_of(b).shape[1])
    first, tape = RECORD(as_column(b), as_column(a), 1, address_of(out), kind())
    return of_floats(out, first, tape)


def product_of(a: Type, b: Type) -> Compiled | None:
    """Return the function for operands of these types, whose result is floats; None where there is none."""
    if spec_of(a, b) != ():
        return None
    return {(2, 1): of_vector, (1, 2): to_vector}.get((a.ndim, b.ndim))
