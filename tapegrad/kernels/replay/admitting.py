"""Compiled: operands taken into a frame; arrays that others can write to, as by `dispatch.secure`."""

from tapegrad.kernels.dialect import call, i32, i64, invoke, shared, stack
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.loops import checksum, equal_bytes
from tapegrad.kernels.replay.operands import (
    drop_position,
    entry_of,
    forgive,
    has,
    position,
    room,
    same_words,
    size_of,
    weigh,
)


def admit(sheet: int, tape: int, frame: int, q: int, items: int, n: int) -> int:
    """Take operand q of n items into a frame; the bytes of its value, -1 if it is left to Python.

    PLACE: where it stands on the tape; else NEW_CONST is its value, to be recorded as a constant. That is
    SECURED where the operand is memory that others can write to.
    """
    g, f, x = i64(shared()), i64(frame), i64(items)[q]
    at, value, kind, fresh = position(tape, x), x, i64(x + TYPE_AT)[0], 0
    if kind == g[TENSOR_TYPE]:
        value = i64(x + g[V_AT])[0]
    if value == 0:
        return drop_position(at, -1)
    size = size_of(value)
    if size < 0:
        return drop_position(at, -1)
    f[VALUE + q] = value
    if at == 0 and kind == g[NDARRAY_TYPE]:
        if i32(x + NDIM_AT)[0] == 0 or i32(x + FLAGS_AT)[0] & ALIGNED == 0:
            return -1
        at, fresh = secured(sheet, tape, q, items, n, size), SECURED
        if at == 0:
            return forgive() - 1
    elif at == 0:
        if kind == g[TENSOR_TYPE] or kind == g[FLOAT_TYPE] or kind == g[INT_TYPE]:
            return -1
        fresh = value  # a scalar of NumPy's
        invoke(g[INCREF], fresh)
    invoke(g[INCREF], value)
    f[PLACE + q], f[VALUE + q], f[NEW_CONST + q] = at, value, fresh
    return size


def secured(sheet: int, tape: int, q: int, items: int, n: int, size: int) -> int:
    """Import an array that others can write to: a new reference to its position; 0, maybe with an error set.

    Recorded is a shadow where no derivative reads it, a copy, or of a large one a view, with a checksum
    unless something else is asked for. What stands on the tape unchanged is used again. The value is computed
    from the array itself, to have NumPy's bits.
    """
    g, x, setting, at = i64(shared()), i64(items)[q], stack(1), 0
    if size > g[SMALLEST] and is_read(sheet, q, items, n) == 0:
        shade = shade_for(tape, x)
        if shade != 0:
            at = constant(tape, 0, shade, 0, 0)
            invoke(g[DECREF], shade)
        return at
    kept, number = NEW_COPY, 0
    if size > g[COPIED]:
        if call(g[CONTEXT_GET], g[GUARD_SETTING], 0, setting) & 0xFFFFFFFF:
            return 0
        invoke(g[DECREF], i64(setting)[0])
        if i64(setting)[0] == g[OFF_TEXT]:
            kept = NEW_VIEW
        elif i64(setting)[0] == g[CHECKSUM_TEXT] and i32(x + FLAGS_AT)[0] & CONTIGUOUS:
            kept, number = NEW_VIEW, call(g[LONG_FROM], checksum(i64(x + DATA_AT)[0], size))
            if number == 0:
                return 0
    key = call(g[LONG_FROM], i64(x + DATA_AT)[0])
    if key != 0:
        at = unchanged(tape, x, key, number, size)
        if at == 0:
            made = call(g[kept], x, 0, 0)  # in C order; a view of the same type and dtype
            if made != 0:
                if kept == NEW_VIEW:
                    size //= LENT
                at = constant(tape, key, made, number, size)
                invoke(g[DECREF], made)
        invoke(g[DECREF], key)
    return drop_position(number, at)


def is_read(sheet: int, q: int, items: int, n: int) -> int:
    """Whether a derivative reads the value of operand q."""
    read = 0
    for p in range(n):
        if i64(sheet)[USES + min(p, 2)] >> min(q, 2) & 1:
            read = read | follows(i64(items)[p])
    return read


def follows(x: int) -> int:
    """Whether an operand requires a gradient."""
    g = i64(shared())
    if i64(x + TYPE_AT)[0] != g[TENSOR_TYPE]:
        return 0
    if i64(x + g[TAPE_AT])[0] != g[NONE_AT_ALL]:
        return 1
    state = i64(x + g[EXTRA_AT])[0]
    if state == 0 or state == g[NONE_AT_ALL]:
        return 0
    return has(state, g[REQUIRES_GRAD_TEXT], g[TRUE])


def unchanged(tape: int, x: int, key: int, number: int, size: int) -> int:
    """A new reference to the position of an array that stands on the tape as it is now; 0 if none does.

    Told by its bytes, or by the checksum `number`; it is known by its address.
    """
    g, log = i64(shared()), i64(tape + i64(shared())[LOG_AT])[0]
    at = call(g[DICT_GET], i64(tape + g[SECURED_AT])[0], key)
    if at == 0 or room(tape) == 0:
        return 0
    place, same = call(g[LONG_AS], at), 0
    logged = i64(i64(log + LIST_ITEMS_AT)[0])[place - 1]
    if same_kind(logged, x) == 0 or same_words(logged, x, STRIDES_AT) == 0:
        return 0
    if size <= g[COPIED]:
        same = equal_bytes(i64(logged + DATA_AT)[0], i64(x + DATA_AT)[0], size)
    elif number != 0:
        slot = call(g[LONG_FROM], place // 4 - 1)
        if slot != 0:
            known = call(g[DICT_GET], i64(tape + g[GUARDS_AT])[0], slot)
            if known != 0:
                same = call(g[LONG_AS], known) == call(g[LONG_AS], number)
            invoke(g[DECREF], slot)
    if same == 0:
        return 0
    invoke(g[INCREF], at)
    return at


def constant(tape: int, key: int, value: int, number: int, size: int) -> int:
    """Record a constant that weighs `size`, with its checksum if it has one: a new reference to its position.

    0 with an error set and nothing recorded where memory is out; 0 where the tape takes no more. It is found
    again by its key, if that is not 0.
    """
    g, log = i64(shared()), i64(tape + i64(shared())[LOG_AT])[0]
    if room(tape) == 0:
        return 0
    length = i64(log + LIST_SIZE_AT)[0]
    slot, at, failed = call(g[LONG_FROM], length // 4), 0, 0
    if slot == 0:
        return 0
    if number != 0:
        failed = call(g[DICT_SET], i64(tape + g[GUARDS_AT])[0], slot, number) & 0xFFFFFFFF
    if failed == 0:
        at = entry_of(log, g[ZERO], g[ZERO], g[ZERO], value)
        failed = at == 0
    if failed == 0 and key != 0:
        failed = call(g[DICT_SET], i64(tape + g[SECURED_AT])[0], key, at) & 0xFFFFFFFF
    if failed == 0 and size > g[SMALLEST]:
        failed = weigh(tape, size) == 0
    if failed:
        invoke(g[CUT], log, length, i64(log + LIST_SIZE_AT)[0], 0)
        if number != 0:
            invoke(g[DICT_DELETE], i64(tape + g[GUARDS_AT])[0], slot)
        at = drop_position(at, 0)
    return drop_position(slot, at)


def memory_like(tape: int, x: int, size: int) -> int:
    """A new array like a large one, in C order, in memory of the stock (`tape.pool`); 0 with an error set."""
    g, args = i64(shared()), stack(1)
    latest = i64(tape + g[LATEST_AT])[0]
    items, n = i64(i64(latest + LIST_ITEMS_AT)[0]), i64(latest + LIST_SIZE_AT)[0]
    for q in range(n - 1, -1, -1):
        memory = items[q]
        if i32(memory + REFCOUNT_AT)[0] == 1 and i64(i64(memory + DIMS_AT)[0])[0] == size + g[ALIGNMENT]:
            for p in range(q, n - 1):
                items[p] = items[p + 1]
            items[n - 1] = memory
            return array_in(memory, x)
    i64(args)[0] = x
    return call(g[VECTORCALL], g[EMPTY_LIKE], args, 1, 0)


def array_in(memory: int, x: int) -> int:
    """A new array like another, in C order, from the first aligned byte of a buffer; 0 with an error set."""
    g, at = i64(shared()), i64(memory + DATA_AT)[0]
    at = (at + g[ALIGNMENT] - 1) // g[ALIGNMENT] * g[ALIGNMENT]
    invoke(g[INCREF], i64(x + DESCR_AT)[0])
    out = call(g[NEW_ARRAY], g[NDARRAY_TYPE], i64(x + DESCR_AT)[0], i32(x + NDIM_AT)[0], i64(x + DIMS_AT)[0],
               0, at, C_CONTIGUOUS | ALIGNED | WRITEABLE, 0)  # fmt: skip
    if out != 0:
        invoke(g[INCREF], memory)
        if call(g[SET_BASE], out, memory) & 0xFFFFFFFF:
            invoke(g[DECREF], out)
            return 0
    return out


def shade_for(tape: int, value: int) -> int:
    """A new reference to what stands on a tape for an array that is not kept; 0 with an error set."""
    g, args = i64(shared()), stack(1)
    shade = i64(tape + g[SHADE_AT])[0]
    if same_kind(shade, value):
        invoke(g[INCREF], shade)
        return shade
    i64(args)[0] = value
    shade = call(g[VECTORCALL], g[SHADOW], args, 1, 0)
    if shade != 0:
        before = i64(tape + g[SHADE_AT])[0]
        invoke(g[INCREF], shade)
        i64(tape + g[SHADE_AT])[0] = shade
        invoke(g[DECREF], before)
    return shade


def same_kind(x: int, value: int) -> int:
    """Whether an array is of the shape and dtype of another; None is not."""
    g = i64(shared())
    if x == g[NONE_AT_ALL] or i64(x + DESCR_AT)[0] != i64(value + DESCR_AT)[0]:
        return 0
    return same_words(x, value, DIMS_AT)
