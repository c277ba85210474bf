"""Compiled: compute an op on Tensors and commit its record, where all operands are on the open tape.

Methods of the Tensor type, called by CPython. Whatever is not the common case (an operand new to the
tape, a large array, a mode, an error of shapes) is left to the method's twin in Python.

The shared words (see `layout`) hold addresses: of functions of Python's C API, of types and singletons,
and where the slots of a Tensor and a Tape lie in the object. A *sheet* is what an op needs.
"""

from tapegrad.kernels.dialect import address, call, f64, i32, i64, invoke, shared, stack
from tapegrad.kernels.replay.any_op import tensor_getitem
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.watching import delegate, in_force, watched


def methods(table: int) -> int:
    """Write the addresses of the methods, in this order; returns that of the shared words."""
    t = i64(table)
    t[0], t[1] = address(tensor_add), address(tensor_radd)
    t[2], t[3] = address(tensor_subtract), address(tensor_rsubtract)
    t[4], t[5] = address(tensor_multiply), address(tensor_rmultiply)
    t[6], t[7] = address(tensor_divide), address(tensor_rdivide)
    t[8], t[9] = address(tensor_negative), address(tensor_absolute)
    t[10], t[11], t[12] = address(tensor_power), address(tensor_array_ufunc), address(tensor_getitem)
    t[13], t[14] = address(tensor_matmul), address(tensor_rmatmul)
    return shared()


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
        invoke(g[ERROR_CLEAR])  # the tape was closed, or there is something to be said by Python
    return found


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


def note_tape(cell: int, serial: int) -> int:
    """Note with a leaf the oldest tape that has imported it."""
    g, since = i64(shared()), i64(cell + i64(shared())[CELL_SINCE_AT])[0]
    if since == g[NONE_AT_ALL] or call(g[LONG_AS], since) > call(g[LONG_AS], serial):
        invoke(g[INCREF], serial)
        i64(cell + g[CELL_SINCE_AT])[0] = serial
        invoke(g[DECREF], since)
    return 0


def small(x: int) -> int:
    """The bytes of a value, as far as it is a number or an array, not too large; else -1."""
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
    if size > g[LARGEST]:
        return -1
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


def room(tape: int) -> int:
    """Whether a tape of this thread takes another record."""
    g = i64(shared())
    log = i64(tape + g[LOG_AT])[0]
    if call(g[LONG_AS], i64(tape + g[LIMIT_AT])[0]) <= i64(log + LIST_SIZE_AT)[0]:
        return 0
    return call(g[LONG_AS], i64(tape + g[OWNER_AT])[0]) == call(g[THREAD])


def operate(sheet: int, a: int, b: int) -> int:
    """A new reference to the result; 0 with an error set; UNHANDLED. `b` is 0 for an op with one operand."""
    g, x, out = i64(shared()), a, UNHANDLED
    if b != 0:
        if i64(a + TYPE_AT)[0] != g[TENSOR_TYPE] or has_room(b) > has_room(a):
            x = b
    if i64(x + TYPE_AT)[0] != g[TENSOR_TYPE]:
        return UNHANDLED
    mode = in_force()
    if mode == 0:
        return 0
    if mode != g[TRUE]:
        if has_room(x) == 0:
            return UNHANDLED
        return watched(sheet, 0, 0, 0, i64(x + g[TAPE_AT])[0], a, b, mode)
    tape = tape_of(x)
    if tape == UNHANDLED and b != 0 and x == a:
        if i64(b + TYPE_AT)[0] == g[TENSOR_TYPE]:
            tape = tape_of(b)
    if tape == 0 or tape == UNHANDLED:
        return tape
    out = compute(sheet, tape, a, b)
    invoke(g[DECREF], tape)
    return out


def has_room(x: int) -> int:
    """Whether an operand is a Tensor on a tape that takes another record."""
    g = i64(shared())
    if i64(x + TYPE_AT)[0] != g[TENSOR_TYPE]:
        return 0
    tape = i64(x + g[TAPE_AT])[0]
    if tape == 0 or tape == g[NONE_AT_ALL]:
        return 0
    return room(tape)


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


def compute(sheet: int, tape: int, a: int, b: int) -> int:
    """As `operate`, on the tape that is open, where all is recorded."""
    g, s, frame, n, items = i64(shared()), i64(sheet), stack(OPERAND_WORDS), 1 + (b != 0), stack(2)
    i64(items)[0], i64(items)[1] = a, b
    largest = admit(sheet, tape, frame, 0, items, n)
    if largest < 0:
        return UNHANDLED
    if b != 0:
        size = admit(sheet, tape, frame, 1, items, n)
        if size < 0:
            return drop(frame, 1, UNHANDLED)
        largest = max(largest, size)
    x, y = i64(frame)[VALUE], i64(frame)[VALUE + 1]
    function, ufunc = s[OPERATE], s[UFUNC]
    if s[VECTOR] != ufunc and small(x) > g[SMALLEST]:
        function, ufunc = 0, s[VECTOR]
        if ufunc == 0 or i64(x + DESCR_AT)[0] != g[DOUBLE]:
            return drop(frame, n, UNHANDLED)
    invoke(g[INCREF], tape)  # held: what is called may run anything
    value = 0
    if function != 0:
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


def admit(sheet: int, tape: int, frame: int, q: int, items: int, n: int) -> int:
    """Take operand q of n items into a frame; the bytes of its value, -1 if it is left to Python.

    PLACE: where it stands on the tape; else NEW_CONST is its value, to be recorded as a constant. What
    others can write to is copied, or where that is large made safe by Python: then NEW_CONST is SECURED.
    """
    g, f, x = i64(shared()), i64(frame), i64(items)[q]
    at, value, kind, fresh = position(tape, x), x, i64(x + TYPE_AT)[0], 0
    if kind == g[TENSOR_TYPE]:
        value = i64(x + g[V_AT])[0]
    if value == 0:
        return drop_position(at, -1)
    size = small(value)
    if size < 0:
        return drop_position(at, -1)
    f[VALUE + q] = value
    if at == 0 and kind == g[NDARRAY_TYPE]:
        if i32(x + NDIM_AT)[0] == 0 or i32(x + FLAGS_AT)[0] & ALIGNED == 0:
            return -1
        if size > g[COPIED]:
            at, fresh = secured(sheet, tape, q, items, n), SECURED
            if at == 0:
                return -1
        else:
            value = call(g[VECTORCALL], g[COPY_ARRAY], frame + 8 * (VALUE + q), 1, 0)
            if value == 0:
                invoke(g[ERROR_CLEAR])
                return -1
            fresh = value
    elif at == 0:
        if kind != g[FLOAT64_TYPE]:
            return -1
        fresh = value
    if fresh == 0 or fresh == SECURED or kind == g[FLOAT64_TYPE]:
        invoke(g[INCREF], value)
    f[PLACE + q], f[VALUE + q], f[NEW_CONST + q] = at, value, fresh
    return size


def secured(sheet: int, tape: int, q: int, items: int, n: int) -> int:
    """Let Python import an array that others can write to: a new reference to its position; 0 if it fails."""
    g, args = i64(shared()), stack(OPERAND_WORDS)
    place = call(g[LONG_FROM], q)
    i64(args)[0], i64(args)[1], i64(args)[2] = tape, i64(sheet)[OP], place
    for p in range(n):
        i64(args)[3 + p] = i64(items)[p]
    at = call(g[VECTORCALL], g[SECURE], args, 3 + n, 0)
    invoke(g[DECREF], place)
    if at == 0:
        invoke(g[ERROR_CLEAR])  # the tape was closed, or there is something to be said by Python
    return at


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
    return out


def finish(sheet: int, value: int, a: int, b: int) -> int:
    """Let Python record a value just computed."""
    g = i64(shared())
    args = stack(4)
    i64(args)[0], i64(args)[1], i64(args)[2], i64(args)[3] = i64(sheet)[OP], value, a, b
    return call(g[VECTORCALL], g[RECORD], args, 3 + (b != 0), 0)


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
    return weigh(tape, small(value))


def is_const(tape: int, at: int) -> int:
    """Whether the record at a position is a constant."""
    g = i64(shared())
    items = i64(i64(i64(tape + g[LOG_AT])[0] + LIST_ITEMS_AT)[0])
    return items[call(g[LONG_AS], at) - 4] == g[ZERO]


def commit(
    sheet: int, tape: int, frame: int, n: int, number: int, value: int, largest: int, attrs: int, words: int
) -> int:
    """Record a value computed from a frame's operands, as `Tape.commit`; a new reference to its Tensor.

    `number` is the second entry of an op whose record holds a number, `largest` the bytes of the largest
    operand; `attrs` and `words`, if not 0, are noted beside the record. UNHANDLED where the tape takes no
    more, or the last shadow is of another shape; 0 with an error set.
    """
    g, s, f = i64(shared()), i64(sheet), i64(frame)
    size, logged, reference = small(value), value, 0
    if size < 0 or room(tape) == 0:
        return UNHANDLED
    if max(largest, size) > g[SMALLEST]:
        reads = 0
        for q in range(n):
            if f[PLACE + q] != 0:
                if is_const(tape, f[PLACE + q]) == 0:
                    reads = reads | s[USES + min(q, 2)]
        if reads & 8 == 0 and size > g[SMALLEST]:
            logged = i64(tape + g[SHADE_AT])[0]
            if same_kind(logged, value) == 0:
                return UNHANDLED
        for q in range(n):
            if f[PLACE + q] == 0:
                if small(f[VALUE + q]) > g[SMALLEST]:
                    if weigh(tape, small(f[VALUE + q])) == 0:
                        return 0
            elif reads >> min(q, 2) & 1 and f[NEW_CONST + q] == 0:
                if keep(tape, f[PLACE + q], f[VALUE + q]) == 0:
                    return 0
        if logged == value:
            if weigh(tape, size) == 0:
                return 0
        else:
            reference = call(g[REFER_WEAKLY], value, 0)  # may collect garbage, so before the record
            if reference == 0:
                return 0
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
    return out


def same_kind(x: int, value: int) -> int:
    """Whether an array is of the shape and dtype of another; None is not."""
    g = i64(shared())
    if x == g[NONE_AT_ALL] or i64(x + DESCR_AT)[0] != i64(value + DESCR_AT)[0]:
        return 0
    ndim = i32(value + NDIM_AT)[0]
    if i32(x + NDIM_AT)[0] != ndim:
        return 0
    dims, known = i64(i64(value + DIMS_AT)[0]), i64(i64(x + DIMS_AT)[0])
    for d in range(ndim):
        if dims[d] != known[d]:
            return 0
    return 1


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


def binary(q: int, a: int, b: int, reflected: int) -> int:
    """An operator's method; `reflected` says that self is `b`."""
    g = i64(shared())
    sheet = g[SHEETS] + 8 * SHEET_WORDS * q
    out = operate(sheet, a, b)
    if out != UNHANDLED:
        return out
    args = stack(2)
    i64(args)[0], i64(args)[1] = a, b
    if reflected:
        i64(args)[0], i64(args)[1] = b, a
    return delegate(sheet, i64(sheet)[TWIN + reflected], args, 2, a, b)


def unary(q: int, a: int) -> int:
    """An operator's method without another operand."""
    g = i64(shared())
    sheet = g[SHEETS] + 8 * SHEET_WORDS * q
    out = operate(sheet, a, 0)
    if out != UNHANDLED:
        return out
    args = stack(1)
    i64(args)[0] = a
    return delegate(sheet, i64(sheet)[TWIN], args, 1, a, 0)


def tensor_add(self: int, other: int) -> int:
    return binary(0, self, other, 0)


def tensor_radd(self: int, other: int) -> int:
    return binary(0, other, self, 1)


def tensor_subtract(self: int, other: int) -> int:
    return binary(1, self, other, 0)


def tensor_rsubtract(self: int, other: int) -> int:
    return binary(1, other, self, 1)


def tensor_multiply(self: int, other: int) -> int:
    return binary(2, self, other, 0)


def tensor_rmultiply(self: int, other: int) -> int:
    return binary(2, other, self, 1)


def tensor_divide(self: int, other: int) -> int:
    return binary(3, self, other, 0)


def tensor_rdivide(self: int, other: int) -> int:
    return binary(3, other, self, 1)


def tensor_matmul(self: int, other: int) -> int:
    return binary(8, self, other, 0)


def tensor_rmatmul(self: int, other: int) -> int:
    return binary(8, other, self, 1)


def tensor_negative(self: int, nothing: int) -> int:
    return unary(4, self)


def tensor_absolute(self: int, nothing: int) -> int:
    return unary(5, self)


def tensor_power(self: int, other: int) -> int:
    """A square has an op of its own."""
    g = i64(shared())
    kind, two = i64(other + TYPE_AT)[0], 0
    if kind == g[INT_TYPE]:
        two = other == g[TWO_OBJECT]
    elif kind == g[FLOAT_TYPE]:
        two = f64(other + SCALAR_AT)[0] == 2.0
    if two:
        sheet = g[SHEETS] + 8 * SHEET_WORDS * 7
        out = operate(sheet, self, 0)
        if out != UNHANDLED:
            return out
        args = stack(2)
        i64(args)[0], i64(args)[1] = self, other
        return delegate(sheet, i64(sheet)[TWIN], args, 2, self, 0)
    return binary(6, self, other, 0)


def tensor_array_ufunc(self: int, args: int, count: int, names: int) -> int:
    """``__array_ufunc__(ufunc, method, *inputs)``."""
    g, given, sheet, second = i64(shared()), i64(args), 0, 0
    if names == 0 and (count == 3 or count == 4):
        known = call(g[DICT_GET], g[UFUNCS], given[0])
        if known == 0:
            invoke(g[ERROR_CLEAR])  # no key at all
        elif i64(given[1] + TYPE_AT)[0] == g[STR_TYPE]:
            if call(g[COMPARE_ASCII], given[1], g[CALL_NAME]) & 0xFFFFFFFF == 0:
                sheet = call(g[LONG_AS], known)
                if count == 4:
                    second = given[3]
                if count == 2 + i64(sheet)[ARITY]:
                    out = operate(sheet, given[2], second)
                    if out != UNHANDLED:
                        return out
                else:
                    sheet = 0
    total = count
    if names != 0:
        total += i64(names + LIST_SIZE_AT)[0]
    if total > 126:
        total, count, names = 0, 0, 0  # more than NumPy passes: the twin will say what is missing
    everything = stack(128)
    i64(everything)[0] = self
    for q in range(total):
        i64(everything)[q + 1] = given[q]
    if sheet != 0:
        return delegate(sheet, g[ARRAY_UFUNC], everything, count + 1, given[2], second)
    return call(g[VECTORCALL], g[ARRAY_UFUNC], everything, count + 1, names)
