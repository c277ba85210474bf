"""Compiled: the operands of an op that is recorded: where they are on the open tape, or come on it.

The shared words (see `layout`) hold addresses: of functions of Python's C API, of types and singletons, and
where the slots of a Tensor and a Tape lie in the object.
"""

from tapegrad.kernels.dialect import call, f32, f64, i32, i64, invoke, obj, shared, stack, zero
from tapegrad.kernels.replay.layout import *


def in_force() -> int:
    """The mode, borrowed from the context; 0 with an error set on failure."""
    g, mode = i64(shared()), stack(1)
    i64(mode)[0] = 0
    if call(g.context_get, g.mode, 0, mode) & 0xFFFFFFFF:
        return 0
    if i64(mode)[0] != 0:
        invoke(g.decref, i64(mode)[0])
    return i64(mode)[0]


def room(tape: int) -> int:
    """Whether a tape takes another record."""
    return call(i64(shared()).long_as, obj(tape).limit) > obj(obj(tape).log).size


def is_own(tape: int) -> int:
    """Whether a tape is this thread's: only then may it be recorded on."""
    return f64(obj(tape).owner + SCALAR_AT)[0] == float(call(i64(shared()).thread))


def open_tape(x: int) -> int:
    """The tape that an operand is on, borrowed, if it is this thread's and takes another record; else 0."""
    g = i64(shared())
    if obj(x).type != g.tensor_type:
        return 0
    tape = obj(x).tape
    if tape == 0 or tape == g.none_at_all:
        return 0
    if room(tape) and is_own(tape):
        return tape
    return 0


def position(tape: int, x: int) -> int:
    """The position of an operand on the open tape, where it is imported if need be: a new reference; or 0."""
    g, kind, found = i64(shared()), obj(x).type, 0
    if kind == g.tensor_type:
        own, at = obj(x).tape, obj(x).at
        if own == 0 or at == 0:
            return 0
        if own == tape:
            found = at
        elif own == g.none_at_all:
            if at != g.none_at_all:
                found = call(g.dict_get, obj(tape).leaves, at)
                if found == 0:
                    found = call(g.dict_get, obj(tape).constants, at)
                if found == 0 and is_leaf(x):
                    found = import_leaf(tape, at, obj(x).v)
        elif precedes(own, tape) == 0:
            return 0
        else:
            found = import_result(tape, own, at, obj(x).v)
            if found != 0:
                return found
    elif kind == g.float_type or kind == g.int_type:
        found = call(g.dict_get, obj(tape).numbers, x)
        if found == 0:
            found = import_number(tape, x)
            if found != 0:
                return found
    else:
        return 0
    if found != 0:
        invoke(g.incref, found)
        return found
    if kind == g.tensor_type:
        if obj(x).tape == g.none_at_all and is_plain(x) == 0:
            return 0
    args = stack(2)
    i64(args)[0], i64(args)[1] = tape, x
    found = call(g.vectorcall, g.load, args, 2, 0)
    if found == 0:
        clear_exception()
    return found


def clear_exception() -> int:
    """Clear an error of importing an operand: Python will do it again, and say it; an interrupt stays set."""
    g = i64(shared())
    if call(g.error_matches, g.exception) & 0xFFFFFFFF != 0:
        invoke(g.error_clear)
    return 0


def left() -> int:
    """What is returned where operands are left to Python: UNHANDLED; 0 if an interrupt came meanwhile."""
    if call(i64(shared()).error_occurred) != 0:
        return 0
    return UNHANDLED


def precedes(own: int, tape: int) -> int:
    """Whether an operand's tape is older than the one that is recorded on; no placeholder for one."""
    g = i64(shared())
    if obj(own).type != g.tape_type or own == g.stale_tape or own == g.dual_tape:
        return 0
    if call(g.long_as, obj(own).serial) < call(g.long_as, obj(tape).serial):
        return 1
    return 0


def is_plain(x: int) -> int:
    """Whether a Tensor without history is a constant in memory of its own, of no mode's making."""
    g, state = i64(shared()), obj(x).extra
    if state == g.none_at_all:
        return 1
    if has(state, g.shown_text, g.none_at_all) == 0 or has(state, g.inference_text, g.false) == 0:
        return 0
    return has(state, g.volatile_text, g.false)


def is_leaf(x: int) -> int:
    """Whether a Tensor without history requires grad, nobody else can write to it, and it may be recorded."""
    g = i64(shared())
    if may_be_recorded(x) == 0:
        return 0
    return has(obj(x).extra, g.shown_text, g.none_at_all)


def may_be_recorded(x: int) -> int:
    """Whether a Tensor without history requires grad, and may be recorded."""
    g, state = i64(shared()), obj(x).extra
    if state == 0 or state == g.none_at_all:
        return 0
    return has(state, g.requires_grad_text, g.true) & has(state, g.inference_text, g.false)


def has(x: int, name: int, wanted: int) -> int:
    """Whether an attribute is this object."""
    g = i64(shared())
    found = call(g.get_attribute, x, name)
    if found == 0:
        invoke(g.error_clear)
        return 0
    invoke(g.decref, found)
    if found == wanted:
        return 1
    return 0


def import_leaf(tape: int, cell: int, value: int) -> int:
    """As `Tape.leaf`, for one that the tape does not know: its position, borrowed; 0 where that fails."""
    g = i64(shared())
    if value == 0 or obj(cell).type != g.cell_type or room(tape) == 0:
        return 0
    log = obj(tape).log
    length = obj(log).size
    at, slot = entry_of(log, g.leaf_opcode, g.zero, g.zero, value), call(g.long_from, length // 4)
    failed = 1
    if at != 0 and slot != 0:
        failed = call(g.dict_set, obj(tape).imports, slot, cell) & 0xFFFFFFFF
    if failed == 0:
        failed = call(g.dict_set, obj(tape).leaves, cell, at) & 0xFFFFFFFF
        if failed:
            invoke(g.dict_delete, obj(tape).imports, slot)
        else:
            note_tape(cell, obj(tape).serial)
    if failed:
        invoke(g.error_clear)  # no memory: Python will say so
        invoke(g.cut, log, length, obj(log).size, 0)
    if at != 0:
        invoke(g.decref, at)
    if slot != 0:
        invoke(g.decref, slot)
    if failed:
        return 0
    return at


def import_result(tape: int, own: int, at: int, value: int) -> int:
    """As `Tape.link`, of a value that the older tape keeps: a new reference to its position, or 0."""
    g, place = i64(shared()), call(i64(shared()).long_as, at)
    key = call(g.long_as, obj(own).serial) << LINK_KEY_BITS | place // 4
    entry = entry_of_link(tape, key)
    if entry == 0:
        return 0
    if i64(entry)[0] == key:
        return call(g.long_from, i64(entry)[1])
    if room(tape) == 0 or value_at(own, place) != value:
        return 0
    out, number = 0, number_of(tape, own)
    if number != 0:
        number = call(g.long_from, number)
    if number != 0:
        out = entry_known_by(tape, g.link_opcode, number, at, value, 0, 0)
        invoke(g.decref, number)
    if out == 0:
        invoke(g.error_clear)  # no memory: Python will say so
        return 0
    i64(entry)[1], i64(entry)[0] = call(g.long_as, out), key
    i64(obj(obj(tape).links).bytearray)[LINK_COUNT] += 1
    return out


def entry_of_link(tape: int, key: int) -> int:
    """Where the entry of a key is in a tape's table of links, or will be, for which there is room; or 0."""
    g, links, bits = i64(shared()), obj(tape).links, FEWEST_LINKS - 1
    if links != g.none_at_all:
        words = i64(obj(links).bytearray)
        if 2 * words[LINK_COUNT] < 1 << words[LINK_ROOM]:
            return place_in_table(obj(links).bytearray, key)
        bits = words[LINK_ROOM]
    size = 8 * (LINK_ENTRIES + (4 << bits))
    table = call(g.new_bytearray, 0, size)
    if table == 0:
        invoke(g.error_clear)
        return 0
    larger = i64(obj(table).bytearray)
    zero(obj(table).bytearray, size)
    larger[LINK_ROOM] = bits + 1
    if links != g.none_at_all:
        words = i64(obj(links).bytearray)
        for k in range(LINK_ENTRIES, LINK_ENTRIES + (2 << bits), 2):
            if words[k] != 0:
                to = i64(place_in_table(obj(table).bytearray, words[k]))
                to[0], to[1] = words[k], words[k + 1]
        larger[LINK_COUNT] = words[LINK_COUNT]
    obj(tape).links = table
    invoke(g.decref, links)
    return place_in_table(obj(table).bytearray, key)


def place_in_table(table: int, key: int) -> int:
    """Where the entry of a key is in a table with room, or where it would be."""
    words = i64(table)
    bits = words[LINK_ROOM]
    k = (key * SPREAD) >> (64 - bits)
    while words[LINK_ENTRIES + 2 * k] != 0 and words[LINK_ENTRIES + 2 * k] != key:
        k = (k + 1) & ((1 << bits) - 1)
    return table + 8 * (LINK_ENTRIES + 2 * k)


def entry_known_by(tape: int, opcode: int, first: int, second: int, value: int, known: int, key: int) -> int:
    """As `entry_of`, found again in a dict by a key, if that is not 0; nothing is appended where it fails."""
    g, log = i64(shared()), obj(tape).log
    length, at = obj(log).size, entry_of(log, opcode, first, second, value)
    if at != 0 and key != 0:
        if call(g.dict_set, known, key, at) & 0xFFFFFFFF:
            at = drop_position(at, 0)
    if at == 0:
        invoke(g.cut, log, length, obj(log).size, 0)
    return at


def import_number(tape: int, x: int) -> int:
    """As `Tape.number`, for one that the tape does not know: a new reference to its position, or 0."""
    g, at = i64(shared()), 0
    value = call(g.allocate_object, g.float64_type, 0)
    if value != 0:
        if number_as(1, value + SCALAR_AT, x) != 0 and room(tape) != 0:
            key = x
            if f64(value + SCALAR_AT)[0] == 0.0:
                key = 0  # zeros are not shared, as 0.0 == -0.0
            at = entry_known_by(tape, g.zero, g.zero, g.zero, value, obj(tape).numbers, key)
            if at == 0:
                invoke(g.error_clear)  # no memory: Python will say so
        invoke(g.decref, value)
    else:
        invoke(g.error_clear)
    return at


def number_as(code: int, at: int, x: int) -> int:
    """Write a number of Python's, or one of the dtype itself, as a number of a dtype; 0 for any other."""
    g, kind = i64(shared()), obj(x).type
    if kind == g.float_type:
        f64(at)[0] = f64(x + SCALAR_AT)[0]
    elif kind == g.int_type:
        number = call(g.long_as, x)
        if number > EXACT or number < -EXACT:
            return 0
        if number == -1:
            if call(g.error_occurred) != 0:
                invoke(g.error_clear)  # too large for a word
                return 0
        f64(at)[0] = float(number)
    elif code_of(x) == code:
        i32(at)[0] = i32(x + SCALAR_AT)[0]
        if code & 1:
            i64(at)[0] = i64(x + SCALAR_AT)[0]
        return 1
    else:
        return 0
    if code & 1 == 0:
        f32(at)[0] = f64(at)[0]
        return call(g.test_errors, g.errors) & 0xFFFFFFFF == 0  # asked here, as some loops clear the flags
    return 1


def value_at(tape: int, place: int) -> int:
    """The value that an older tape keeps of the record at a position, borrowed."""
    g = i64(shared())
    columns, q, values = obj(tape).columns, place - 1, obj(tape).log
    if columns != g.none_at_all:
        q, values = place // 4 - 1, obj(columns).columns_values
    if q >= obj(values).size:
        return 0
    return i64(obj(values).items)[q]


def number_of(tape: int, own: int) -> int:
    """By what number links know an older tape; 0 without memory."""
    g = i64(shared())
    older = obj(tape).older
    n = obj(older).size
    for number in range(n, 0, -1):
        if i64(obj(older).items)[number - 1] == own:
            return number
    if call(g.append, older, own) & 0xFFFFFFFF:
        return 0
    return n + 1


def note_tape(cell: int, serial: int) -> int:
    """Note with a leaf the oldest tape that has imported it."""
    g, since = i64(shared()), obj(cell).cell_since
    if since == g.none_at_all or call(g.long_as, since) > call(g.long_as, serial):
        invoke(g.incref, serial)
        obj(cell).cell_since = serial
        invoke(g.decref, since)
    return 0


def size_of(x: int) -> int:
    """The bytes of a value, as far as it is a number or an array; else -1."""
    g = i64(shared())
    kind = obj(x).type
    if kind == g.float64_type or kind == g.float_type or kind == g.int_type:
        return 8
    size = code_of(x) >> 8
    if size == 0:
        return -1
    if kind != g.ndarray_type:
        return size
    dims = i64(obj(x).dims)
    for d in range(obj(x).ndim):
        size *= dims[d]
    return size


def code_of(x: int) -> int:
    """A value's dtype code and bytes per element << 8; 0 for what tapes do not know."""
    g = i64(shared())
    known, kind = i64(g.scalars), obj(x).type
    low, high = 1, known[0] + 1
    if kind == g.ndarray_type:
        low, high, kind = high, high + known[1], obj(x).descr
    for j in range(low, high):
        if known[2 * j] == kind:
            return known[2 * j + 1]
    return 0


def is_dense(x: int) -> int:
    """Whether an array lies in memory in C order, without gaps."""
    dims, strides, step = i64(obj(x).dims), i64(obj(x).strides), code_of(x) >> 8
    for d in range(obj(x).ndim - 1, -1, -1):
        if dims[d] != 1 and strides[d] != step:
            return 0
        step *= dims[d]
    return 1


def is_deferred(x: int) -> int:
    """Whether the value of a Tensor, or an array, is one that a recorded sweep has not computed."""
    g, value = i64(shared()), x
    if obj(x).type == g.tensor_type:
        value = obj(x).v
    if value == 0:
        return 0
    if obj(value).type != g.ndarray_type or obj(value).base == 0:
        return 0
    return obj(obj(value).base).type == g.list_type


def extent_of(x: int, begin: int, end: int) -> int:
    """How many elements these axes of an array span."""
    dims, count = i64(obj(x).dims), 1
    for d in range(begin, end):
        count *= dims[d]
    return count


def same_words(x: int, value: int, which: int) -> int:
    """Whether two arrays have as many axes, and the same extents (DIMS_AT) or strides (STRIDES_AT)."""
    ndim, equal = obj(value).ndim, obj(x).ndim == obj(value).ndim
    if equal == 0:
        return 0
    mine, known = i64(i64(value + which)[0]), i64(i64(x + which)[0])
    for d in range(ndim):
        equal = equal & (mine[d] == known[d])
    return equal


def tape_of(x: int) -> int:
    """A new reference to the open tape that a Tensor is on, or is imported to; UNHANDLED; 0 for an error."""
    g, args, own = i64(shared()), stack(1), obj(x).tape
    if open_tape(x) != 0:
        invoke(g.incref, own)
        return own
    if own == 0 or own == g.stale_tape or own == g.dual_tape:
        return UNHANDLED
    if own == g.none_at_all:
        if may_be_recorded(x) == 0:
            return UNHANDLED
    tape = i64(obj(g.newest_tape).items)[0]
    if tape != g.none_at_all and room(tape) and is_own(tape):
        invoke(g.incref, tape)
        if own == g.none_at_all and obj(obj(tape).log).size > 4 * RESTARTED:
            tape = restarted(tape)
            if tape == 0:
                return 0
    else:
        tape = call(g.vectorcall, g.current_tape, args, 0, 0)
        if tape == 0:
            return 0
    if room(tape):
        if own == g.none_at_all:
            return tape
        if precedes(own, tape):
            return tape
    invoke(g.decref, tape)
    return UNHANDLED


def restarted(tape: int) -> int:
    """A new tape for one, of which the reference is taken, that nothing else refers to; 0 with an error set.

    This thread and the list of the newest tape do; a Tensor would be another.
    """
    g, args = i64(shared()), stack(1)
    if i64(tape + REFCOUNT_AT)[0] & 0xFFFFFFFF > 3:
        return tape
    i64(args)[0] = tape
    left_behind = call(g.vectorcall, g.leave, args, 1, 0)
    invoke(g.decref, tape)
    if left_behind == 0:
        return 0
    invoke(g.decref, left_behind)
    return call(g.vectorcall, g.current_tape, args, 0, 0)


def drop_position(at: int, out: int) -> int:
    """Let go of a position, if it is one; `out` is passed on."""
    if at != 0:
        invoke(i64(shared()).decref, at)
    return out


def drop(frame: int, n: int, out: int) -> int:
    """Let go of the first n operands of a frame; `out` is passed on."""
    g, f = i64(shared()), i64(frame)
    for q in range(n):
        invoke(g.decref, f[VALUE + q])
        if f[PLACE + q] != 0:
            invoke(g.decref, f[PLACE + q])
        if f[NEW_CONST + q] > SECURED:
            invoke(g.decref, f[NEW_CONST + q])
    return out


def entry_of(log: int, opcode: int, first: int, second: int, value: int) -> int:
    """Append four entries to a log; its new length as an object, 0 if memory is out."""
    g, n = i64(shared()), obj(log).size
    if n + 4 <= obj(log).allocated:
        to = i64(obj(log).items + 8 * n)
        to[0], to[1], to[2], to[3] = opcode, first, second, value
        for q in range(4):
            invoke(g.incref, to[q])
        obj(log).size = n + 4
        return call(g.long_from, n + 4)
    failed = call(g.append, log, opcode) & 0xFFFFFFFF
    if failed == 0:
        failed = call(g.append, log, first) & 0xFFFFFFFF
    if failed == 0:
        failed = call(g.append, log, second) & 0xFFFFFFFF
    if failed == 0:
        failed = call(g.append, log, value) & 0xFFFFFFFF
    if failed:
        return 0
    return call(g.long_from, n + 4)


def weigh(tape: int, size: int) -> int:
    """Add to a tape's weight; it closes soon when that grows large. 0 with an error set if memory is out."""
    g = i64(shared())
    weight = obj(tape).weight
    total = call(g.long_as, weight) + size
    heavier = call(g.long_from, total)
    if heavier == 0:
        return 0
    obj(tape).weight = heavier
    invoke(g.decref, weight)
    if total > g.heaviest:
        limit = obj(tape).limit
        invoke(g.incref, g.zero)
        obj(tape).limit = g.zero
        invoke(g.decref, limit)
    return 1
