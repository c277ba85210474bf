"""Compiled: compute an op and commit its record to the open tape.

A *sheet* (see `layout`) is what an op needs; a frame holds its operands (`admitting.admit`).
"""

from tapegrad.kernels.dialect import call, i64, invoke, shared, stack
from tapegrad.kernels.replay.admitting import admit, shade_for
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.operands import drop, drop_position, entry_of, left, room, size_of, weigh
from tapegrad.kernels.replay.values import looped, result_memory


def compute(sheet: int, tape: int, a: int, b: int) -> int:
    """As `operate`, on the tape that is open, where all is recorded."""
    g, s, frame, n, items = i64(shared()), i64(sheet), stack(OPERAND_WORDS), 1 + (b != 0), stack(2)
    i64(items)[0], i64(items)[1] = a, b
    largest = admit(sheet, tape, frame, 0, items, n)
    if largest < 0:
        return left()
    if b != 0:
        size = admit(sheet, tape, frame, 1, items, n)
        if size < 0:
            return drop(frame, 1, left())
        largest = max(largest, size)
    x, y = i64(frame)[VALUE], i64(frame)[VALUE + 1]
    function, ufunc, into, loops = s[OPERATE], s[UFUNC], 0, sheet + 8 * LOOPS
    if s[VECTOR] != ufunc and size_of(x) > g[SMALLEST]:
        function, ufunc, loops = 0, s[VECTOR], sheet + 8 * VECTOR_LOOPS
        if ufunc == 0 or i64(x + DESCR_AT)[0] != g[DOUBLE]:
            return drop(frame, n, UNHANDLED)
    invoke(g[INCREF], tape)  # held: what is called may run anything
    value = 0
    if largest < g[POOLED] and i64(loops)[0] != 0:
        value = looped(loops, function, x, y * (n - 1))
    if value == 0 and largest >= g[POOLED] and s[POINTWISE]:
        into = result_memory(tape, x, y * (n - 1))
        if into == 0:
            invoke(g[DECREF], tape)
            return drop(frame, n, 0)
    if value != 0:
        into = UNHANDLED
    elif into > UNHANDLED:  # memory that is used again
        i64(frame)[VALUE + n] = into
        value = call(g[VECTORCALL], ufunc, frame + 8 * VALUE, n, g[OUT_NAMES])
        invoke(g[DECREF], into)
    elif function != 0:
        value = call(function, x, y, g[NONE_AT_ALL])  # a function of one or two operands ignores the rest
    else:
        value = call(g[VECTORCALL], ufunc, frame + 8 * VALUE, n, 0)
    out = UNHANDLED
    if value == 0:
        out = 0
        if call(g[ERROR_MATCHES], g[VALUE_ERROR]) & 0xFFFFFFFF != 0:
            invoke(g[ERROR_CLEAR])  # of shapes: the twin says it better
            out = UNHANDLED
    else:
        out = commit(sheet, tape, frame, n, g[ZERO], value, largest, 0, 0)
        if out == UNHANDLED:
            out = finish(sheet, value, a, b)
        invoke(g[DECREF], value)
    invoke(g[DECREF], tape)
    return drop(frame, n, out)


def finish(sheet: int, value: int, a: int, b: int) -> int:
    """Let Python record a value just computed."""
    g = i64(shared())
    args = stack(4)
    i64(args)[0], i64(args)[1], i64(args)[2], i64(args)[3] = i64(sheet)[OP], value, a, b
    return call(g[VECTORCALL], g[RECORD], args, 3 + (b != 0), 0)


def commit(
    sheet: int, tape: int, frame: int, n: int, number: int, value: int, largest: int, attrs: int, words: int
) -> int:
    """Record a value computed from a frame's operands, as `Tape.commit`; a new reference to its Tensor.

    `number` is the second entry of an op whose record holds a number, `largest` the bytes of the largest
    operand; `attrs` and `words`, if not 0, are noted beside the record. UNHANDLED where the tape takes no
    more; 0 with an error set.
    """
    g, s, f = i64(shared()), i64(sheet), i64(frame)
    size, logged, shade, reference = size_of(value), value, 0, 0
    if size < 0 or room(tape) == 0:
        return UNHANDLED
    if max(largest, size) > g[SMALLEST]:
        reads = 0
        for q in range(n):
            if f[PLACE + q] != 0:
                if is_const(tape, f[PLACE + q]) == 0:
                    reads = reads | s[USES + min(q, 2)]
        if reads & 8 == 0 and size > g[SMALLEST]:
            shade = shade_for(tape, value)
            if shade == 0:
                return 0
            if room(tape) == 0:
                return drop_position(shade, UNHANDLED)  # making it may have run anything
            logged = shade
        for q in range(n):
            if f[PLACE + q] == 0:
                if size_of(f[VALUE + q]) > g[SMALLEST]:
                    if weigh(tape, size_of(f[VALUE + q])) == 0:
                        return drop_position(shade, 0)
            elif reads >> min(q, 2) & 1 and f[NEW_CONST + q] == 0:
                if keep(tape, f[PLACE + q], f[VALUE + q]) == 0:
                    return drop_position(shade, 0)
        if logged == value:
            if weigh(tape, size) == 0:
                return drop_position(shade, 0)
        else:
            reference = call(g[REFER_WEAKLY], value, 0)  # may collect garbage, so before the record
            if reference == 0:
                return drop_position(shade, 0)
    out = append(sheet, tape, frame, n, number, logged, value)
    if out != 0 and out != UNHANDLED:
        at, failed = i64(out + g[AT_AT])[0], 0
        if reference != 0:
            failed = call(g[DICT_SET], i64(tape + g[SHADOWS_AT])[0], at, reference) & 0xFFFFFFFF
        if (attrs != 0 or words != 0) and failed == 0:
            slot = call(g[LONG_FROM], call(g[LONG_AS], at) // 4 - 1)
            failed = slot == 0
            if attrs != 0 and failed == 0:
                failed = call(g[DICT_SET], i64(tape + g[ATTRS_AT])[0], slot, attrs) & 0xFFFFFFFF
            if words != 0 and failed == 0:
                failed = call(g[DICT_SET], i64(tape + g[DESCRIBED_AT])[0], slot, words) & 0xFFFFFFFF
            if slot != 0:
                invoke(g[DECREF], slot)
        if failed:
            invoke(g[DECREF], out)
            out = 0
    if reference != 0:
        invoke(g[DECREF], reference)
    return drop_position(shade, out)


def append(sheet: int, tape: int, frame: int, n: int, number: int, logged: int, value: int) -> int:
    """Append a record with the constants it needs; 0 with an error set, and nothing appended, without memory.

    UNHANDLED if the tape takes no more: making an object may collect garbage, and finalizers do anything.
    """
    g, s, f = i64(shared()), i64(sheet), i64(frame)
    out = call(g[ALLOCATE_OBJECT], g[TENSOR_TYPE], 0)  # may collect garbage: the log is read afterwards
    if out == 0:
        return 0
    if room(tape) == 0:
        invoke(g[DECREF], out)
        return UNHANDLED
    log = i64(tape + g[LOG_AT])[0]
    length, failed, form = i64(log + LIST_SIZE_AT)[0], 0, s[RECORDED]
    for q in range(n):
        if f[PLACE + q] == 0 and failed == 0:
            f[PLACE + q] = entry_of(log, g[ZERO], g[ZERO], g[ZERO], f[NEW_CONST + q])
            failed = f[PLACE + q] == 0
    second = number
    invoke(g[INCREF], second)
    if form == TWO and failed == 0:
        invoke(g[DECREF], second)
        second = f[PLACE + 1]
        invoke(g[INCREF], second)
    elif form == CHAIN:
        for q in range(n - 1, 0, -1):
            if failed == 0:
                link = entry_of(log, g[CONS_OPCODE], f[PLACE + q], second, g[NONE_AT_ALL])
                failed = link == 0
                if failed == 0:
                    invoke(g[DECREF], second)
                    second = link
    at = 0
    if failed == 0:
        at = entry_of(log, s[OPCODE], f[PLACE], second, logged)
    invoke(g[DECREF], second)
    if at == 0:
        invoke(g[CUT], log, length, i64(log + LIST_SIZE_AT)[0], 0)
        invoke(g[DECREF], out)
        return 0
    invoke(g[INCREF], value)
    invoke(g[INCREF], tape)
    invoke(g[INCREF], g[NONE_AT_ALL])
    i64(out + g[V_AT])[0] = value
    i64(out + g[TAPE_AT])[0] = tape
    i64(out + g[AT_AT])[0] = at
    i64(out + g[EXTRA_AT])[0] = g[NONE_AT_ALL]
    return out


def keep(tape: int, at: int, value: int) -> int:
    """Log an operand that a derivative reads where its shadow stands; 0 with an error set on failure."""
    g = i64(shared())
    log, place = i64(tape + g[LOG_AT])[0], call(g[LONG_AS], at) - 1
    if i64(value + TYPE_AT)[0] != g[NDARRAY_TYPE] or i64(i64(log + LIST_ITEMS_AT)[0])[place] == value:
        return 1
    invoke(g[INCREF], value)
    if call(g[LIST_SET], log, place, value) & 0xFFFFFFFF:
        return 0
    if call(g[DICT_DELETE], i64(tape + g[SHADOWS_AT])[0], at) & 0xFFFFFFFF:
        return 0
    return weigh(tape, size_of(value))


def is_const(tape: int, at: int) -> int:
    """Whether the record at a position is a constant."""
    g = i64(shared())
    items = i64(i64(i64(tape + g[LOG_AT])[0] + LIST_ITEMS_AT)[0])
    return items[call(g[LONG_AS], at) - 4] == g[ZERO]
