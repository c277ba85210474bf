"""Compiled: record the result of any op, whose value Python has computed by NumPy.

Where an operand or a mode is out of the ordinary the caller, `tapegrad.dispatch.record`, does it.
"""

from tapegrad.kernels.dialect import call, copy, i32, i64, invoke, shared, stack
from tapegrad.kernels.replay.committing import commit, weigh
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.operands import admit, code_of, drop, has_room, in_force, small, tape_of


def record_op(self: int, args: int, count: int) -> int:
    """``(op, value, operands, attrs)``; the Tensor, or None where Python is to record it."""
    g, given, out = i64(shared()), i64(args), UNHANDLED
    if count == 4:
        out = recorded(given[0], given[1], given[2], given[3])
    if out == UNHANDLED:
        invoke(g[INCREF], g[NONE_AT_ALL])
        return g[NONE_AT_ALL]
    return out


def recorded(op: int, value: int, operands: int, attrs: int) -> int:
    """A new reference to the result's Tensor; 0 with an error set; UNHANDLED."""
    g = i64(shared())
    kind, items, n = i64(operands + TYPE_AT)[0], operands + TUPLE_ITEMS_AT, i64(operands + LIST_SIZE_AT)[0]
    if kind == g[LIST_TYPE]:
        items = i64(operands + LIST_ITEMS_AT)[0]
    elif kind != g[TUPLE_TYPE]:
        return UNHANDLED
    if n == 0 or n > QUICK_OPERANDS:
        return UNHANDLED
    code = code_of(value) & 0xFF
    if code == 0 or code > DIFFERENTIABLE:
        return UNHANDLED
    mode = in_force()
    if mode != g[TRUE]:
        return UNHANDLED * (mode != 0)
    sheet, begin = sheet_of(op), 0
    if sheet == 0:
        return 0
    for q in range(n):
        x = i64(items)[q]
        if i64(x + TYPE_AT)[0] == g[TENSOR_TYPE]:
            if begin == 0 or has_room(x):
                begin = x
            elif i64(begin + g[TAPE_AT])[0] == g[NONE_AT_ALL]:
                begin = x  # a result, perhaps, rather than a leaf
    if begin == 0:
        return UNHANDLED
    tape = tape_of(begin)
    if tape == 0 or tape == UNHANDLED:
        return tape
    frame, largest, taken = stack(OPERAND_WORDS), 0, 0
    for q in range(n):
        if largest >= 0:
            size = admit(sheet, tape, frame, q, items, n)
            if size < 0:
                largest = size
            else:
                largest = max(largest, size)
                taken += 1
                if i64(frame)[NEW_CONST + q] != 0 and i64(value + TYPE_AT)[0] == g[NDARRAY_TYPE]:
                    if i64(value + BASE_AT)[0] != 0:
                        largest = -1  # perhaps a view of memory that others can write to
    out = UNHANDLED
    if largest >= 0:
        out = with_attributes(sheet, tape, frame, n, value, largest, attrs)
    invoke(g[DECREF], tape)
    return drop(frame, taken, out)


def sheet_of(op: int) -> int:
    """The address of an op's sheet, made when first asked for; 0 with an error set."""
    g, args = i64(shared()), stack(1)
    known = call(g[DICT_GET], g[SHEETS_BY_OP], op)
    if known != 0:
        return call(g[LONG_AS], known)
    invoke(g[ERROR_CLEAR])  # no key at all
    i64(args)[0] = op
    made = call(g[VECTORCALL], g[MAKE_SHEET], args, 1, 0)
    if made == 0:
        return 0
    sheet = call(g[LONG_AS], made)
    invoke(g[DECREF], made)
    return sheet


def with_attributes(sheet: int, tape: int, frame: int, n: int, value: int, largest: int, attrs: int) -> int:
    """As `commit`, with what follows from attributes: the number that a record holds, the window it views."""
    g, s, args = i64(shared()), i64(sheet), stack(1)
    number, words = g[ZERO], 0
    invoke(g[INCREF], number)
    if attrs == g[NONE_AT_ALL]:
        attrs = 0
    elif i64(attrs + LIST_SIZE_AT)[0] == 0:
        attrs = 0
    if s[RECORDED] == NUMBER:
        invoke(g[DECREF], number)
        i64(args)[0] = attrs
        number = call(g[VECTORCALL], s[KEY], args, 1, 0)
        if number == 0:
            return 0
    if s[WINDOW] != 0:
        if s[WINDOW] < JOINED:
            words = window_words(i64(frame)[VALUE], value, s[WINDOW] - PART)
        elif s[WINDOW] < TAKEN:
            words = joined_words(frame, n, value, attrs, s[WINDOW] - JOINED)
        elif s[WINDOW] == TAKEN:
            words = taken_words(tape, i64(frame)[VALUE], call(g[DICT_GET], attrs, g[INDEX_TEXT]))
        elif s[WINDOW] == PLACED:
            words = placed_words(tape, attrs)
        else:
            words = written_words(call(g[DICT_GET], attrs, g[WINDOW_TEXT]))
        if words == 0:
            invoke(g[DECREF], number)
            return 0
    if words == UNHANDLED:
        words = 0
    out = commit(sheet, tape, frame, n, number, value, largest, attrs, words)
    if words != 0:
        invoke(g[DECREF], words)
    invoke(g[DECREF], number)
    return out


def window_words(x: int, value: int, covers: int) -> int:
    """Words for `view` in `templates`, as an object of bytes, of an array that is a view of a dense one.

    They tell of places in x counted in C order, so nothing that is written or let go of later makes them
    wrong. UNHANDLED where x is not dense, or the value no view of it; 0 with an error set.
    """
    g = i64(shared())
    if i64(x + TYPE_AT)[0] != g[NDARRAY_TYPE] or i64(value + TYPE_AT)[0] != g[NDARRAY_TYPE]:
        return UNHANDLED
    if i64(x + DESCR_AT)[0] != i64(value + DESCR_AT)[0]:
        return UNHANDLED
    size = code_of(x) >> 8
    dims, strides, step = i64(i64(x + DIMS_AT)[0]), i64(i64(x + STRIDES_AT)[0]), size
    for d in range(i32(x + NDIM_AT)[0] - 1, -1, -1):
        if dims[d] != 1 and strides[d] != step:
            return UNHANDLED
        step *= dims[d]
    offset, ndim = i64(value + DATA_AT)[0] - i64(x + DATA_AT)[0], i32(value + NDIM_AT)[0]
    if offset < 0 or offset >= step:
        return UNHANDLED
    buffer = stack(WINDOW_WORDS)
    words, extents, windows, step = i64(buffer), i64(value + DIMS_AT)[0], i64(value + STRIDES_AT)[0], 1
    words[0], words[1], words[2], words[3], words[4] = 1, ndim, covers, offset // size, 0
    for d in range(ndim - 1, -1, -1):
        words[5 + d], words[5 + 2 * ndim + d] = i64(extents)[d], step
        if i64(windows)[d] < 0:
            words[5 + ndim + d] = 0 - (0 - i64(windows)[d]) // size
        else:
            words[5 + ndim + d] = i64(windows)[d] // size
        step *= i64(extents)[d]
    if step == 0:
        return UNHANDLED
    return call(g[BYTES_FROM], buffer, 8 * (5 + 3 * ndim))


def joined_words(frame: int, n: int, value: int, attrs: int, new_axis: int) -> int:
    """Words for `view` of the parts of arrays joined along an axis, as an object of bytes.

    UNHANDLED where the value is no dense array; 0 with an error set.
    """
    g, shape, steps = i64(shared()), i64(i64(value + DIMS_AT)[0]), i64(stack(MAXDIM))
    ndim, step, f = i32(value + NDIM_AT)[0], 1, i64(frame)
    key = call(g[DICT_GET], attrs, g[AXIS_TEXT])
    if key == 0 or i64(value + TYPE_AT)[0] != g[NDARRAY_TYPE]:
        return UNHANDLED
    axis, own = call(g[LONG_AS], key), ndim - new_axis  # own: axes of an operand
    for d in range(ndim - 1, -1, -1):
        steps[d] = step
        step *= shape[d]
    size = 5 + 3 * own
    words = call(g[BYTES_FROM], 0, 8 * n * size)
    if words == 0:
        return 0
    w, offset = i64(words + BYTES_AT), 0
    for q in range(n):
        at = n + q * (size - 1)
        w[q], w[at], w[at + 1], w[at + 2], w[at + 3], step = at, own, 1, 0, offset * steps[axis], 1
        for d in range(own - 1, -1, -1):
            outer = d + (new_axis != 0 and d >= axis)
            extent = shape[outer]
            if d == axis and new_axis == 0:
                extent = i64(i64(f[VALUE + q] + DIMS_AT)[0])[d]
            w[at + 4 + d], w[at + 4 + own + d], w[at + 4 + 2 * own + d] = extent, step, steps[outer]
            step *= extent
        if new_axis:
            offset += 1
        else:
            offset += i64(i64(f[VALUE + q] + DIMS_AT)[0])[axis]
    return words


def placed_words(tape: int, attrs: int) -> int:
    """Words for `scatter` and `put` in `templates`: those among the attributes, or of the places there."""
    g = i64(shared())
    words = call(g[DICT_GET], attrs, g[WORDS_TEXT])
    if words != 0:
        if i64(words + TYPE_AT)[0] == g[BYTES_TYPE]:
            invoke(g[INCREF], words)
            return words
    return taken_words(tape, 0, call(g[DICT_GET], attrs, g[PLACES_TEXT]))


def taken_words(tape: int, x: int, index: int) -> int:
    """Words for `scatter` and `put` in `templates`, as an object of bytes: how many places, and which.

    Places are a dense array of integers or, of an array x, of numbers along its first axis. UNHANDLED for any
    other; 0 with an error set.
    """
    g = i64(shared())
    if i64(index + TYPE_AT)[0] != g[NDARRAY_TYPE] or i64(index + DESCR_AT)[0] != g[INTEGER]:
        return UNHANDLED
    dims, strides, count = i64(i64(index + DIMS_AT)[0]), i64(i64(index + STRIDES_AT)[0]), 1
    for d in range(i32(index + NDIM_AT)[0] - 1, -1, -1):
        if dims[d] != 1 and strides[d] != 8 * count:
            return UNHANDLED
        count *= dims[d]
    length, inner = 0, 1
    if x != 0:
        if i64(x + TYPE_AT)[0] != g[NDARRAY_TYPE]:
            return UNHANDLED
        extents = i64(i64(x + DIMS_AT)[0])
        length = extents[0]
        for d in range(1, i32(x + NDIM_AT)[0]):
            inner *= extents[d]
    size = 8 * (1 + count * inner)
    if size > g[LARGEST]:
        return UNHANDLED
    if size > g[SMALLEST]:
        if weigh(tape, size) == 0:
            return 0
    words = call(g[BYTES_FROM], 0, size)
    if words == 0:
        return 0
    w, places = i64(words + BYTES_AT), i64(i64(index + DATA_AT)[0])
    w[0] = count * inner
    if x == 0:
        copy(words + BYTES_AT + 8, i64(index + DATA_AT)[0], 8 * count)
        return words
    for i in range(count):
        place = places[i]
        if place < 0:
            place += length
        for k in range(inner):
            w[1 + i * inner + k] = place * inner + k
    return words


def written_words(window: int) -> int:
    """Words for `assign` in `templates`, as an object of bytes: the window that is written, and cleared.

    UNHANDLED for another form of a window than tuples of integers; 0 with an error set.
    """
    g, counts = i64(shared()), i64(stack(WINDOW_WORDS))
    if i64(window + TYPE_AT)[0] != g[TUPLE_TYPE]:
        return UNHANDLED
    parts = i64(window + TUPLE_ITEMS_AT)
    if i64(parts[1] + TYPE_AT)[0] != g[TUPLE_TYPE] or i64(parts[2] + TYPE_AT)[0] != g[TUPLE_TYPE]:
        return UNHANDLED
    ndim, step = i64(parts[1] + LIST_SIZE_AT)[0], 1
    if i64(parts[2] + LIST_SIZE_AT)[0] != ndim:
        return UNHANDLED
    for q in range(1 + 2 * ndim):
        number = parts[0]
        if q > ndim:
            number = i64(parts[2] + TUPLE_ITEMS_AT)[q - ndim - 1]
        elif q > 0:
            number = i64(parts[1] + TUPLE_ITEMS_AT)[q - 1]
        if i64(number + TYPE_AT)[0] != g[INT_TYPE]:
            return UNHANDLED
        counts[q] = call(g[LONG_AS], number)
    size = 4 + 3 * ndim
    words = call(g[BYTES_FROM], 0, 8 * (2 + 2 * size))
    if words == 0:
        return 0
    w = i64(words + BYTES_AT)
    w[0], w[1] = 2, 2 + size
    for part in range(2):
        at = 2 + part * size
        w[at], w[at + 1], w[at + 2], w[at + 3] = ndim, 1, part * counts[0], (1 - part) * counts[0]
        for d in range(ndim):
            w[at + 4 + d], stride = counts[1 + d], counts[1 + ndim + d]
            w[at + 4 + ndim + d], w[at + 4 + 2 * ndim + d] = stride, stride
    for d in range(ndim - 1, -1, -1):  # what was written is dense
        w[6 + ndim + d] = step
        step *= counts[1 + d]
    return words


def tensor_getitem(self: int, key: int) -> int:
    """``__getitem__``: an element or a view by a basic index, of a Tensor on the open tape."""
    g = i64(shared())
    out = part_of(self, key)
    if out != UNHANDLED:
        return out
    args = stack(2)
    i64(args)[0], i64(args)[1] = self, key
    return call(g[VECTORCALL], g[GETITEM], args, 2, 0)


def part_of(self: int, key: int) -> int:
    """A new reference to the part's Tensor; 0 with an error set; UNHANDLED."""
    g, frame, items = i64(shared()), stack(OPERAND_WORDS), stack(1)
    x, numbers = i64(self + g[V_AT])[0], basic(key)
    if i64(self + TYPE_AT)[0] != g[TENSOR_TYPE] or x == 0 or numbers < 0:
        return UNHANDLED
    if i64(x + TYPE_AT)[0] != g[NDARRAY_TYPE]:
        return UNHANDLED
    mode = in_force()
    if mode != g[TRUE]:
        return UNHANDLED * (mode != 0)
    tape = tape_of(self)
    if tape == 0 or tape == UNHANDLED:
        return tape
    i64(items)[0] = self
    if admit(g[GETITEM_SHEET], tape, frame, 0, items, 1) < 0:
        invoke(g[DECREF], tape)
        return UNHANDLED
    out, value = UNHANDLED, call(g[GET_ITEM], x, key)
    if value == 0:
        invoke(g[ERROR_CLEAR])  # Python says it better
    else:
        if i64(value + TYPE_AT)[0] != g[NDARRAY_TYPE]:
            if numbers == i32(x + NDIM_AT)[0]:
                out = element_of(tape, frame, value, key)
        elif i32(value + NDIM_AT)[0] != 0:
            out = view_of(self, tape, frame, value, key)
        invoke(g[DECREF], value)
    invoke(g[DECREF], tape)
    return drop(frame, 1, out)


def basic(key: int) -> int:
    """How many integers an index of integers, slices, None and Ellipsis has; -1 for any other."""
    g, count, items, n = i64(shared()), 0, stack(1), 1
    i64(items)[0] = key
    if i64(key + TYPE_AT)[0] == g[TUPLE_TYPE]:
        items, n = key + TUPLE_ITEMS_AT, i64(key + LIST_SIZE_AT)[0]
    for q in range(n):
        part = i64(items)[q]
        kind = i64(part + TYPE_AT)[0]
        if kind == g[INT_TYPE]:
            count += 1
        elif kind == g[SLICE_TYPE]:
            for d in range(3):
                end = i64(part + SLICE_AT)[d]
                if end != g[NONE_AT_ALL] and i64(end + TYPE_AT)[0] != g[INT_TYPE]:
                    return -1
        elif part != g[NONE_AT_ALL] and part != g[ELLIPSIS]:
            return -1
    return count


def element_of(tape: int, frame: int, value: int, key: int) -> int:
    """Record one element, by its number in C order; UNHANDLED where the index says more than integers."""
    g, x, items, n, place = i64(shared()), i64(frame)[VALUE], stack(1), 1, 0
    i64(items)[0] = key
    if i64(key + TYPE_AT)[0] == g[TUPLE_TYPE]:
        items, n = key + TUPLE_ITEMS_AT, i64(key + LIST_SIZE_AT)[0]
    if n != i32(x + NDIM_AT)[0]:
        return UNHANDLED
    dims = i64(i64(x + DIMS_AT)[0])
    for q in range(n):
        at = call(g[LONG_AS], i64(items)[q])
        if at < 0:
            at += dims[q]
        place = place * dims[q] + at
    number = call(g[LONG_FROM], place)
    if number == 0:
        return 0
    attrs = attributes(key, number)
    if attrs == 0:
        invoke(g[DECREF], number)
        return 0
    out = commit(g[ELEMENT_SHEET], tape, frame, 1, number, value, 0, attrs, 0)
    invoke(g[DECREF], attrs)
    invoke(g[DECREF], number)
    return out


def view_of(self: int, tape: int, frame: int, value: int, key: int) -> int:
    """Record a view, which sees what is written to the Tensor, and is seen."""
    g, pair = i64(shared()), stack(2)
    words = window_words(i64(frame)[VALUE], value, 0)
    if words == 0 or words == UNHANDLED:
        return words
    attrs, out = attributes(key, 0), 0
    if attrs != 0:
        out = commit(g[GETITEM_SHEET], tape, frame, 1, g[ZERO], value, small(i64(frame)[VALUE]), attrs, words)
        invoke(g[DECREF], attrs)
    invoke(g[DECREF], words)
    if out == 0 or out == UNHANDLED:
        return out
    i64(pair)[0], i64(pair)[1] = self, out
    joined = call(g[VECTORCALL], g[JOIN], pair, 2, 0)
    invoke(g[DECREF], out)
    return joined


def attributes(key: int, place: int) -> int:
    """A new dict of an index and, if not 0, a place; 0 with an error set."""
    g = i64(shared())
    attrs = call(g[NEW_DICT])
    if attrs == 0:
        return 0
    failed = call(g[DICT_SET], attrs, g[INDEX_TEXT], key) & 0xFFFFFFFF
    if place != 0 and failed == 0:
        failed = call(g[DICT_SET], attrs, g[PLACE_TEXT], place) & 0xFFFFFFFF
    if failed:
        invoke(g[DECREF], attrs)
        return 0
    return attrs
