"""Compiled: the value of an elementwise op: by its ufunc's inner loop, or in memory that is used again."""

from tapegrad.kernels.dialect import call, f32, f64, i64, invoke, obj, shared, stack
from tapegrad.kernels.replay.admitting import memory_like, same_kind
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.operands import code_of, drop_position, extent_of, number_as, size_of


def looped(loops: int, function: int, x: int, y: int) -> int:
    """The value of an op by its ufunc's inner loop: a new reference, or 0, where NumPy is to be asked.

    Operands are dense arrays of one shape and dtype, or one and a number, or numbers that have no `function`
    of their own; `y` is 0 where there is one. Where the loop meets an error, NumPy warns or raises as told.
    """
    g, like, n = i64(shared()), x, 1 + (y != 0)
    args, steps, numbers, count = stack(3), stack(3), stack(2), stack(1)
    if obj(x).type != g.ndarray_type and y != 0:
        if obj(y).type == g.ndarray_type or code_of(x) == 0:
            like = y
    code, whole = code_of(like), obj(like).type == g.ndarray_type
    kind = code & 0xFF
    if kind == 0 or kind >= COMPLEX or (whole == 0 and function != 0):
        return 0
    if code & 1 == 0:
        loops += 8 * (SINGLE_LOOPS - LOOPS)
    if i64(loops)[0] == 0 or (whole and obj(like).flags & C_CONTIGUOUS == 0):
        return 0
    for q in range(n):
        z = x
        if q == 1:
            z = y
        i64(args)[q], i64(steps)[q] = numbers + 8 * q, 0
        if obj(z).type == g.ndarray_type:
            if z != like:
                if obj(z).flags & C_CONTIGUOUS == 0 or same_kind(z, like) == 0:
                    return 0
            i64(args)[q], i64(steps)[q] = obj(z).data, code >> 8
        elif number_as(code, numbers + 8 * q, z) == 0:
            return 0
    i64(count)[0] = 1
    if whole:
        i64(count)[0] = extent_of(like, 0, obj(like).ndim)
        out = call(g.new_like, like, C_ORDER, 0, 0)
    else:
        out = call(g.allocate_object, obj(like).type, 0)
    if out == 0:
        invoke(g.error_clear)  # no memory: NumPy will say so
        return 0
    i64(args)[n], i64(steps)[n] = out + SCALAR_AT, 0
    if whole:
        i64(args)[n], i64(steps)[n] = obj(out).data, code >> 8
    invoke(i64(loops)[0], args, count, steps, i64(loops)[1])
    failed = call(g.test_errors, g.errors) & 0xFFFFFFFF
    if call(g.error_occurred) != 0:  # of a function of SciPy's
        invoke(g.error_clear)
        failed = 1
    return drop_position(out * (failed != 0), out * (failed == 0))


def computed(how: int, x: int, y: int) -> int:
    """The value of an op of arithmetic on NumPy's scalars, as NumPy computes it: a new reference.

    0 where NumPy is to be asked: for other operands, and where there may be an error to tell of. `y` is 0
    where there is one operand.
    """
    g, like, numbers, r, m = i64(shared()), x, stack(2), 0.0, 0.0
    if y != 0 and code_of(x) == 0:
        like = y
    code = code_of(like)
    kind = code & 0xFF
    if kind == 0 or kind >= COMPLEX or obj(x).type == g.ndarray_type or number_as(code, numbers, x) == 0:
        return 0
    if y != 0:
        if obj(y).type == g.ndarray_type or number_as(code, numbers + 8, y) == 0:
            return 0
    a, b, least = f64(numbers)[0], f64(numbers)[1], 2.2250738585072014e-308  # the smallest that is normal
    if code & 1 == 0:
        a, b, least = f32(numbers)[0], f32(numbers)[2], 1.1754943508222875e-38
    if how == SUM:
        r = a + b
    elif how == DIFFERENCE:
        r = a - b
    elif how == PRODUCT:
        r = a * b
    elif how == QUOTIENT:
        r = a / b
    else:
        r = -a
    if code & 1 == 0:  # from doubles the rounded result is the one of single precision
        f32(numbers)[0] = r
        r = f32(numbers)[0]
    m = r
    if r < 0.0:
        m = -r
    if how != OPPOSITE and (m <= least or r - r != 0.0) and (r != 0.0 or (a != 0.0 and b != 0.0)):
        return 0
    out = call(g.allocate_object, obj(like).type, 0)
    if out == 0:
        invoke(g.error_clear)  # no memory: NumPy will say so
    elif code & 1:
        f64(out + SCALAR_AT)[0] = r
    else:
        f32(out + SCALAR_AT)[0] = r
    return out


def result_memory(tape: int, x: int, y: int) -> int:
    """Memory for the result of operands of which one is large, or none (0) and the other alone.

    A new reference; UNHANDLED where the result may be of another shape or dtype; 0 with an error set.
    """
    g, like, other = i64(shared()), x, y
    if obj(x).type != g.ndarray_type:
        like, other = y, x
    elif y != 0 and obj(x).flags & C_CONTIGUOUS == 0:
        like, other = y, x  # NumPy's result is in C order if one operand is
    if obj(like).type != g.ndarray_type:
        return UNHANDLED
    kind = obj(like).descr
    if (kind != g.double and kind != g.single) or obj(like).flags & C_CONTIGUOUS == 0:
        return UNHANDLED
    if other != 0:
        if obj(other).type == g.ndarray_type:
            if same_kind(other, like) == 0:
                return UNHANDLED
        elif obj(other).type != g.float_type:
            return UNHANDLED
    return memory_like(tape, like, size_of(like))
