"""Compiled: read an open tape into columns, and find what may be dropped from a sealed one.

Columns of a sealed tape, n words each, then the shapes:

word
    opcode | first << 16 | second << 32; operands are record number + 1, 0 for none. Of a link: the older
    tape's number, 0 where that was freed, and the record there + 1.
meta
    dtype code | dense << 8 | bytes per element << 9 | ndim << 16 | place of the shape << 32; 0: no value.
address
    of the value's data.
shapes
    extents, followed by strides in bytes where the value is not dense in C order.
"""

from tapegrad.kernels.dialect import i32, i64, obj, u8
from tapegrad.kernels.replay.layout import *


def seal(state: int) -> int:
    """Fill the columns from OLDEST on; how many words shapes take, or -1 - k when record k is malformed."""
    s = i64(state)
    s.shape_words, s.last_shape, s.last_axes = 0, 0, -1
    for k in range(s.oldest, s.records):
        if read_record(state, k) == 0:
            return -1 - k
        if s.shape_words > s.capacity:
            return s.shape_words + 2 * MAXDIM * (s.records - k)
    return s.shape_words


def read_record(state: int, k: int) -> int:
    """Fill the columns of record k; 0 if it is malformed. SHAPE_WORDS exceeds CAPACITY without room."""
    s = i64(state)
    items, meta = i64(s.items), i64(s.meta)
    op = i32(items[ENTRIES * k + OPCODE_ENTRY] + DIGIT_AT)[0]
    first = i32(items[ENTRIES * k + FIRST_ENTRY] + DIGIT_AT)[0]
    second = i32(items[ENTRIES * k + SECOND_ENTRY] + DIGIT_AT)[0]
    value = items[ENTRIES * k + VALUE_ENTRY]
    if op < 0 or op >= s.opcodes:
        return 0
    form = i64(s.operations)[ROW * op + FORM]
    a, b = first >> 2, second >> 2
    if form == NUMBER:
        b = second
    elif form == NONE:
        a, b = 0, 0
        if op == LINK:
            a, b = first, second >> 2
    if operands_exist(form, a, b, k) == 0:
        return 0
    i64(s.word)[k] = op | a << 16 | b << 32
    meta[k], i64(s.address)[k] = 0, 0
    if value == s.none_object:
        return 1
    code = dtype_of(state, value)
    if code == 0:
        return 0
    size = code >> 8
    code = (code & 0xFF) | size << 9
    if obj(value).type != s.array_type:
        meta[k], i64(s.address)[k] = code | 0x100, value + SCALAR_AT
        return 1
    i64(s.address)[k] = obj(value).data
    ndim, dense, last = obj(value).ndim, dense_in_order(value, size), s.shapes + 8 * s.last_shape
    if dense == 0 or ndim != s.last_axes or same_numbers(last, obj(value).dims, ndim) == 0:
        add_shape(state, value, ndim, dense)
    meta[k] = code | dense << 8 | ndim << 16 | s.last_shape << 32
    return 1


def dense_in_order(value: int, size: int) -> int:
    """Whether an array of elements of so many bytes lies in memory in C order, without gaps."""
    dims, strides, step = i64(obj(value).dims), i64(obj(value).strides), size
    for d in range(obj(value).ndim - 1, -1, -1):
        if dims[d] != 1 and strides[d] != step:
            return 0
        step *= dims[d]
    return 1


def add_shape(state: int, value: int, ndim: int, dense: int) -> int:
    """Note an array's extents, and its strides if it is not dense, at LAST_SHAPE.

    Without room it is said to have those that come first: so nobody looks behind what there is, and what was
    read is of no use.
    """
    s = i64(state)
    shapes, used = i64(s.shapes), s.shape_words
    s.shape_words = used + ndim * (2 - dense)
    s.last_shape, s.last_axes = used, ndim
    if dense == 0:
        s.last_axes = -1
    if s.shape_words <= s.capacity:
        for d in range(ndim):
            shapes[used + d] = i64(obj(value).dims)[d]
            if dense == 0:
                shapes[used + ndim + d] = i64(obj(value).strides)[d]
    else:
        s.last_shape, s.last_axes = 0, -1
    return 0


def same_numbers(a: int, b: int, n: int) -> int:
    """Whether n words at two addresses are the same."""
    for d in range(n):
        if i64(a)[d] != i64(b)[d]:
            return 0
    return 1


def operands_exist(form: int, a: int, b: int, k: int) -> int:
    """Whether the operands of record k, as numbers from 1, are records before it."""
    if form == NONE:
        return 1
    if a < 1 or a > k or (form == TWO and b < 1):
        return 0
    return form == NUMBER or b <= k


def dtype_of(state: int, value: int) -> int:
    """The dtype code of a value and its bytes per element << 8; 0 for what is no value.

    KNOWN lists what a value may be: a count of scalar types and one of dtypes, then pairs of an object's
    address and its code.
    """
    s, wanted = i64(state), obj(value).type
    known = i64(s.known)
    low, high = 1, known[0] + 1
    if wanted == s.array_type:
        low, high, wanted = high, high + known[1], obj(value).descr
    for j in range(low, high):
        if known[2 * j] == wanted:
            return known[2 * j + 1]
    return 0


def column(m: int, other: int) -> int:
    """Which kernel of a partial: that for the dtypes of a result and an operand, as meta words or codes."""
    code, given = m & 0xFF, other & 0xFF
    if code < COMPLEX and (given == COMPLEX or given == COMPLEX + 1):
        return code + OF_COMPLEX
    return code


def operands(w: int, form: int) -> int:
    """A cursor at a record's first operand: its number + 1, and where the others are << 32; 0 for none."""
    at = (w >> 16) & 0xFFFF
    if form == TWO or form == CHAIN:
        at = at | w >> 32 << 32
    return at


def following(word: int, at: int, form: int) -> int:
    """The cursor at the next operand; 0 after the last one."""
    rest = at >> 32
    if rest == 0 or form != CHAIN:
        return rest
    return operands(i64(word)[rest - 1], CHAIN)


def prune(state: int) -> int:
    """Mark what a live handle reaches (1), which values stay (2) and which have a handle (4).

    Returns the number of values to drop. Handles of values that the tape does not keep are marked already.
    PENDING has the records with a handle. Behind the marks is 1 for each older tape to which a link leads
    that something reaches.

    A reference count above one says that something beside the tape holds the value: its handle. A link
    keeps its value, by which the older tape knows that it is read.
    """
    s = i64(state)
    items, n, word, operations = i64(s.items), s.records, i64(s.word), i64(s.operations)
    live, freed, held, needed = u8(s.live), u8(s.freed), i64(s.pending), u8(s.live + n)
    drop, count_held = 0, 0
    for k in range(n - 1, -1, -1):
        w = word[k]
        row = ROW * (w & 0xFFFF)
        form = operations[row + FORM]
        value = items[k]
        if value != s.none_object:
            if operations[row + TEMPLATE] != IMPORT:
                count = 0
                if s.counts != 0:
                    count = i64(s.counts)[k]
                else:
                    count = i64(value + REFCOUNT_AT)[0] & 0xFFFFFFFF
                if count > 1:
                    live[k] = 7
            if live[k] & 1 and w & 0xFFFF == LINK:
                live[k] = 3
        if live[k] & 4:
            held[count_held] = k
            count_held += 1
        if w & 0xFFFF == LINK and live[k] != 0 and w >> 16 & 0xFFFF != 0:
            needed[(w >> 16 & 0xFFFF) - 1] = 1
        if live[k] & 1 and form != NONE and freed[k] == 0:
            reads, slot, at = 0, 0, operands(w, form)
            while at != 0:
                i, rest = (at & 0xFFFF) - 1, at >> 32
                live[i] = live[i] | 1
                if rest != 0:
                    live[rest - 1] = live[rest - 1] | 1
                if word[i] & 0xFFFF != CONST and w & 0xFFFF != CONS:
                    reads = reads | operations[row + READS + min(slot, 2)]
                slot += 1
                at = following(s.word, at, form)
            slot, at = 0, operands(w, form)
            while at != 0 and reads != 0:
                i = (at & 0xFFFF) - 1
                if reads & 1 << min(slot, 2):
                    live[i] = live[i] | 2
                slot += 1
                at = following(s.word, at, form)
            if reads & 8:
                live[k] = live[k] | 2
        if value != s.none_object and live[k] & 2 == 0:
            drop += 1
    s.pending_count = count_held
    return drop


def has_lost(state: int) -> int:
    """Whether one of the values of records listed in LIVE is gone, or held by the list of values alone."""
    s = i64(state)
    items, held = i64(s.items), i64(s.live)
    for q in range(s.records):
        value = items[held[q]]
        count = i64(value + REFCOUNT_AT)[0] & 0xFFFFFFFF
        if value == s.none_object or count <= 1:
            return 1
    return 0
