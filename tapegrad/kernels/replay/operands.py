"""Compiled: the operands of an op that is recorded: where they are on the open tape, or come on it.

The shared words (see `layout`) hold addresses: of functions of Python's C API, of types and singletons, and
where the slots of a Tensor and a Tape lie in the object.
"""

from tapegrad.kernels.dialect import call, i32, i64, invoke, shared, stack
from tapegrad.kernels.replay.layout import *


def in_force() -> int:
    """The mode, borrowed from the context; 0 with an error set on failure."""
    g, mode = i64(shared()), stack(1)
    i64(mode)[0] = 0
    if call(g[CONTEXT_GET], g[MODE], 0, mode) & 0xFFFFFFFF:
        return 0
    if i64(mode)[0] != 0:
        invoke(g[DECREF], i64(mode)[0])
    return i64(mode)[0]


def room(tape: int) -> int:
    """Whether a tape of this thread takes another record."""
    g = i64(shared())
    log = i64(tape + g[LOG_AT])[0]
    if call(g[LONG_AS], i64(tape + g[LIMIT_AT])[0]) <= i64(log + LIST_SIZE_AT)[0]:
        return 0
    return call(g[LONG_AS], i64(tape + g[OWNER_AT])[0]) == call(g[THREAD])


def has_room(x: int) -> int:
    """Whether an operand is a Tensor on a tape that takes another record."""
    g = i64(shared())
    if i64(x + TYPE_AT)[0] != g[TENSOR_TYPE]:
        return 0
    tape = i64(x + g[TAPE_AT])[0]
    if tape == 0 or tape == g[NONE_AT_ALL]:
        return 0
    return room(tape)


def position(tape: int, x: int) -> int:
    """The position of an operand on the open tape, where it is imported if need be: a new reference; or 0."""
    g, kind, found = i64(shared()), i64(x + TYPE_AT)[0], 0
    if kind == g[TENSOR_TYPE]:
        own, at = i64(x + g[TAPE_AT])[0], i64(x + g[AT_AT])[0]
        if own == 0 or at == 0:
            return 0
        if own == tape:
            found = at
        elif own == g[NONE_AT_ALL]:
            if at != g[NONE_AT_ALL]:
                found = call(g[DICT_GET], i64(tape + g[LEAVES_AT])[0], at)
                if found == 0:
                    found = call(g[DICT_GET], i64(tape + g[CONSTANTS_AT])[0], at)
                if found == 0 and is_leaf(x):
                    found = import_leaf(tape, at, i64(x + g[V_AT])[0])
        elif precedes(own, tape) == 0:
            return 0
        else:
            found = import_result(tape, own, at, i64(x + g[V_AT])[0])
            if found != 0:
                return found
    elif kind == g[FLOAT_TYPE] or kind == g[INT_TYPE]:
        found = call(g[DICT_GET], i64(tape + g[NUMBERS_AT])[0], x)
    else:
        return 0
    if found != 0:
        invoke(g[INCREF], found)
        return found
    if kind == g[TENSOR_TYPE]:
        if i64(x + g[TAPE_AT])[0] == g[NONE_AT_ALL] and is_plain(x) == 0:
            return 0
    args = stack(2)
    i64(args)[0], i64(args)[1] = tape, x
    found = call(g[VECTORCALL], g[LOAD], args, 2, 0)
    if found == 0:
        forgive()
    return found


def forgive() -> int:
    """Clear an error of importing an operand: Python will do it again, and say it; an interrupt stays set."""
    g = i64(shared())
    if call(g[ERROR_MATCHES], g[EXCEPTION]) & 0xFFFFFFFF != 0:
        invoke(g[ERROR_CLEAR])
    return 0


def left() -> int:
    """What is returned where operands are left to Python: UNHANDLED; 0 if an interrupt came meanwhile."""
    if call(i64(shared())[ERROR_OCCURRED]) != 0:
        return 0
    return UNHANDLED


def precedes(own: int, tape: int) -> int:
    """Whether an operand's tape is older than the one that is recorded on; no placeholder for one."""
    g = i64(shared())
    if i64(own + TYPE_AT)[0] != g[TAPE_TYPE] or own == g[STALE_TAPE] or own == g[DUAL_TAPE]:
        return 0
    if call(g[LONG_AS], i64(own + g[SERIAL_AT])[0]) < call(g[LONG_AS], i64(tape + g[SERIAL_AT])[0]):
        return 1
    return 0


def is_plain(x: int) -> int:
    """Whether a Tensor without history is a constant in memory of its own, of no mode's making."""
    g, state = i64(shared()), i64(x + i64(shared())[EXTRA_AT])[0]
    if state == g[NONE_AT_ALL]:
        return 1
    if has(state, g[SHOWN_TEXT], g[NONE_AT_ALL]) == 0 or has(state, g[INFERENCE_TEXT], g[FALSE]) == 0:
        return 0
    return has(state, g[VOLATILE_TEXT], g[FALSE])


def is_leaf(x: int) -> int:
    """Whether a Tensor without history requires grad, nobody else can write to it, and it may be recorded."""
    g, state = i64(shared()), i64(x + i64(shared())[EXTRA_AT])[0]
    if state == 0 or state == g[NONE_AT_ALL]:
        return 0
    if has(state, g[REQUIRES_GRAD_TEXT], g[TRUE]) == 0:
        return 0
    return has(state, g[SHOWN_TEXT], g[NONE_AT_ALL]) & has(state, g[INFERENCE_TEXT], g[FALSE])


def has(x: int, name: int, wanted: int) -> int:
    """Whether an attribute is this object."""
    g = i64(shared())
    found = call(g[GET_ATTRIBUTE], x, name)
    if found == 0:
        invoke(g[ERROR_CLEAR])
        return 0
    invoke(g[DECREF], found)
    if found == wanted:
        return 1
    return 0


def import_leaf(tape: int, cell: int, value: int) -> int:
    """As `Tape.leaf`, for one that the tape does not know: its position, borrowed; 0 where that fails."""
    g = i64(shared())
    if value == 0 or i64(cell + TYPE_AT)[0] != g[CELL_TYPE] or room(tape) == 0:
        return 0
    log = i64(tape + g[LOG_AT])[0]
    length = i64(log + LIST_SIZE_AT)[0]
    at, slot = entry_of(log, g[LEAF_OPCODE], g[ZERO], g[ZERO], value), call(g[LONG_FROM], length // 4)
    failed = 1
    if at != 0 and slot != 0:
        failed = call(g[DICT_SET], i64(tape + g[IMPORTS_AT])[0], slot, cell) & 0xFFFFFFFF
    if failed == 0:
        failed = call(g[DICT_SET], i64(tape + g[LEAVES_AT])[0], cell, at) & 0xFFFFFFFF
        if failed:
            invoke(g[DICT_DELETE], i64(tape + g[IMPORTS_AT])[0], slot)
        else:
            note_tape(cell, i64(tape + g[SERIAL_AT])[0])
    if failed:
        invoke(g[ERROR_CLEAR])  # no memory: Python will say so
        invoke(g[CUT], log, length, i64(log + LIST_SIZE_AT)[0], 0)
    if at != 0:
        invoke(g[DECREF], at)
    if slot != 0:
        invoke(g[DECREF], slot)
    if failed:
        return 0
    return at


def import_result(tape: int, own: int, at: int, value: int) -> int:
    """As `Tape.link`, of a value that the older tape keeps: a new reference to its position, or 0."""
    g = i64(shared())
    known, out, place = i64(tape + g[LINKS_AT])[0], 0, call(g[LONG_AS], at)
    key = call(g[LONG_FROM], call(g[LONG_AS], i64(own + g[SERIAL_AT])[0]) << 32 | place)
    if key != 0:
        out = call(g[DICT_GET], known, key)
        if out != 0:
            invoke(g[INCREF], out)
        elif room(tape) != 0 and value_at(own, place) == value:
            log, number = i64(tape + g[LOG_AT])[0], number_of(tape, own)
            length = i64(log + LIST_SIZE_AT)[0]
            if number != 0:
                number = call(g[LONG_FROM], number)
            if number != 0:
                out = entry_of(log, g[LINK_OPCODE], number, at, value)
                invoke(g[DECREF], number)
            if out != 0:
                if call(g[DICT_SET], known, key, out) & 0xFFFFFFFF:
                    out = drop_position(out, 0)
            if out == 0:
                invoke(g[CUT], log, length, i64(log + LIST_SIZE_AT)[0], 0)
        invoke(g[DECREF], key)
    if out == 0:
        invoke(g[ERROR_CLEAR])  # no memory: Python will say so
    return out


def value_at(tape: int, place: int) -> int:
    """The value that an older tape keeps of the record at a position, borrowed."""
    g = i64(shared())
    columns, q, values = i64(tape + g[COLUMNS_AT])[0], place - 1, i64(tape + g[LOG_AT])[0]
    if columns != g[NONE_AT_ALL]:
        q, values = place // 4 - 1, i64(columns + g[COLUMNS_VALUES_AT])[0]
    if q >= i64(values + LIST_SIZE_AT)[0]:
        return 0
    return i64(i64(values + LIST_ITEMS_AT)[0])[q]


def number_of(tape: int, own: int) -> int:
    """By what number links know an older tape; 0 without memory."""
    g = i64(shared())
    older = i64(tape + g[OLDER_AT])[0]
    n = i64(older + LIST_SIZE_AT)[0]
    for number in range(n, 0, -1):
        if i64(i64(older + LIST_ITEMS_AT)[0])[number - 1] == own:
            return number
    if call(g[APPEND], older, own) & 0xFFFFFFFF:
        return 0
    return n + 1


def note_tape(cell: int, serial: int) -> int:
    """Note with a leaf the oldest tape that has imported it."""
    g, since = i64(shared()), i64(cell + i64(shared())[CELL_SINCE_AT])[0]
    if since == g[NONE_AT_ALL] or call(g[LONG_AS], since) > call(g[LONG_AS], serial):
        invoke(g[INCREF], serial)
        i64(cell + g[CELL_SINCE_AT])[0] = serial
        invoke(g[DECREF], since)
    return 0


def size_of(x: int) -> int:
    """The bytes of a value, as far as it is a number or an array; else -1."""
    g = i64(shared())
    kind = i64(x + TYPE_AT)[0]
    if kind == g[FLOAT64_TYPE] or kind == g[FLOAT_TYPE] or kind == g[INT_TYPE]:
        return 8
    size = code_of(x) >> 8
    if size == 0:
        return -1
    if kind != g[NDARRAY_TYPE]:
        return size
    dims = i64(i64(x + DIMS_AT)[0])
    for d in range(i32(x + NDIM_AT)[0]):
        size *= dims[d]
    return size


def code_of(x: int) -> int:
    """A value's dtype code and bytes per element << 8; 0 for what tapes do not know."""
    g = i64(shared())
    known, kind = i64(g[SCALARS]), i64(x + TYPE_AT)[0]
    low, high = 1, known[0] + 1
    if kind == g[NDARRAY_TYPE]:
        low, high, kind = high, high + known[1], i64(x + DESCR_AT)[0]
    for j in range(low, high):
        if known[2 * j] == kind:
            return known[2 * j + 1]
    return 0


def is_dense(x: int) -> int:
    """Whether an array lies in memory in C order, without gaps."""
    dims, strides, step = i64(i64(x + DIMS_AT)[0]), i64(i64(x + STRIDES_AT)[0]), code_of(x) >> 8
    for d in range(i32(x + NDIM_AT)[0] - 1, -1, -1):
        if dims[d] != 1 and strides[d] != step:
            return 0
        step *= dims[d]
    return 1


def extent_of(x: int, begin: int, end: int) -> int:
    """How many elements these axes of an array span."""
    dims, count = i64(i64(x + DIMS_AT)[0]), 1
    for d in range(begin, end):
        count *= dims[d]
    return count


def same_words(x: int, value: int, which: int) -> int:
    """Whether two arrays have as many axes, and the same extents (DIMS_AT) or strides (STRIDES_AT)."""
    ndim, equal = i32(value + NDIM_AT)[0], i32(x + NDIM_AT)[0] == i32(value + NDIM_AT)[0]
    if equal == 0:
        return 0
    mine, known = i64(i64(value + which)[0]), i64(i64(x + which)[0])
    for d in range(ndim):
        equal = equal & (mine[d] == known[d])
    return equal


def tape_of(x: int) -> int:
    """A new reference to the open tape that a Tensor is on, or is imported to; UNHANDLED; 0 for an error."""
    g, args, own = i64(shared()), stack(1), i64(x + i64(shared())[TAPE_AT])[0]
    if has_room(x):
        invoke(g[INCREF], own)
        return own
    if own == 0 or own == g[STALE_TAPE] or own == g[DUAL_TAPE]:
        return UNHANDLED
    if own == g[NONE_AT_ALL]:
        if is_leaf(x) == 0:
            return UNHANDLED
    tape = i64(i64(g[NEWEST_TAPE] + LIST_ITEMS_AT)[0])[0]
    if tape != g[NONE_AT_ALL] and room(tape):
        invoke(g[INCREF], tape)
    else:
        tape = call(g[VECTORCALL], g[CURRENT_TAPE], args, 0, 0)
        if tape == 0:
            return 0
    if room(tape):
        if own == g[NONE_AT_ALL]:
            return tape
        if precedes(own, tape):
            return tape
    invoke(g[DECREF], tape)
    return UNHANDLED


def drop_position(at: int, out: int) -> int:
    """Let go of a position, if it is one; `out` is passed on."""
    if at != 0:
        invoke(i64(shared())[DECREF], at)
    return out


def drop(frame: int, n: int, out: int) -> int:
    """Let go of the first n operands of a frame; `out` is passed on."""
    g, f = i64(shared()), i64(frame)
    for q in range(n):
        invoke(g[DECREF], f[VALUE + q])
        if f[PLACE + q] != 0:
            invoke(g[DECREF], f[PLACE + q])
        if f[NEW_CONST + q] > SECURED:
            invoke(g[DECREF], f[NEW_CONST + q])
    return out


def entry_of(log: int, opcode: int, first: int, second: int, value: int) -> int:
    """Append four entries to a log; its new length as an object, 0 if memory is out."""
    g = i64(shared())
    failed = call(g[APPEND], log, opcode) & 0xFFFFFFFF
    if failed == 0:
        failed = call(g[APPEND], log, first) & 0xFFFFFFFF
    if failed == 0:
        failed = call(g[APPEND], log, second) & 0xFFFFFFFF
    if failed == 0:
        failed = call(g[APPEND], log, value) & 0xFFFFFFFF
    if failed:
        return 0
    return call(g[LONG_FROM], i64(log + LIST_SIZE_AT)[0])


def weigh(tape: int, size: int) -> int:
    """Add to a tape's weight; it closes soon when that grows large. 0 with an error set if memory is out."""
    g = i64(shared())
    weight = i64(tape + g[WEIGHT_AT])[0]
    total = call(g[LONG_AS], weight) + size
    heavier = call(g[LONG_FROM], total)
    if heavier == 0:
        return 0
    i64(tape + g[WEIGHT_AT])[0] = heavier
    invoke(g[DECREF], weight)
    if total > g[HEAVIEST]:
        limit = i64(tape + g[LIMIT_AT])[0]
        invoke(g[INCREF], g[ZERO])
        i64(tape + g[LIMIT_AT])[0] = g[ZERO]
        invoke(g[DECREF], limit)
    return 1
