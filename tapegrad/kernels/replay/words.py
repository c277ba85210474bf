"""Compiled: words that tell a sweep what a record does, noted when it is committed, as an object of bytes.

They speak of places in arrays counted in C order, so nothing that is written or let go of later makes them
wrong.
"""

from tapegrad.kernels.dialect import call, copy, i32, i64, invoke, shared, stack
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.operands import code_of, weigh


def window_words(x: int, value: int, covers: int) -> int:
    """Words for `view` in `templates`, as an object of bytes, of an array that is a view of another.

    UNHANDLED where the value is no view of it, or addresses do not tell places; 0 with an error set.
    """
    g, buffer = i64(shared()), stack(WINDOW_WORDS)
    if i64(x + TYPE_AT)[0] != g[NDARRAY_TYPE] or i64(value + TYPE_AT)[0] != g[NDARRAY_TYPE]:
        return UNHANDLED
    if i64(x + DESCR_AT)[0] != i64(value + DESCR_AT)[0]:
        return UNHANDLED
    words, ndim, step = i64(buffer), i32(value + NDIM_AT)[0], 1
    words[0], words[1], words[2], words[4] = 1, ndim, covers, 0
    found = places_in_dense(x, value, buffer + 24)
    if found == UNHANDLED:
        found = places_in_strided(x, value, buffer + 24)
    for d in range(ndim - 1, -1, -1):
        extent = i64(i64(value + DIMS_AT)[0])[d]
        words[5 + d], words[5 + 2 * ndim + d] = extent, step
        step *= extent
    if found == UNHANDLED or step == 0:
        return UNHANDLED
    return call(g[BYTES_FROM], buffer, 8 * (5 + 3 * ndim))


def places_in_dense(x: int, value: int, words: int) -> int:
    """Write where a view of a dense array begins and its strides, in elements: 0; or UNHANDLED."""
    size, ndim, w = code_of(x) >> 8, i32(value + NDIM_AT)[0], i64(words)
    dims, strides, step = i64(i64(x + DIMS_AT)[0]), i64(i64(x + STRIDES_AT)[0]), size
    for d in range(i32(x + NDIM_AT)[0] - 1, -1, -1):
        if dims[d] != 1 and strides[d] != step:
            return UNHANDLED
        step *= dims[d]
    offset = i64(value + DATA_AT)[0] - i64(x + DATA_AT)[0]
    if offset < 0 or offset >= step:
        return UNHANDLED
    w[0] = offset // size
    for d in range(ndim):
        stride = i64(i64(value + STRIDES_AT)[0])[d]
        w[2 + ndim + d] = without_sign(stride) // size
        if stride < 0:
            w[2 + ndim + d] = 0 - w[2 + ndim + d]
    return 0


def places_in_strided(x: int, value: int, words: int) -> int:
    """As `places_in_dense`, of an array each of whose strides is more than the smaller ones reach together.

    Then a distance in memory has one number of steps along each axis, as digits of a number, and a view is
    one of the array if no axis is left.
    """
    own, ndim, w, count, step, reach = i32(x + NDIM_AT)[0], i32(value + NDIM_AT)[0], i64(words), 0, 1, 0
    dims, strides, rest = i64(i64(x + DIMS_AT)[0]), i64(i64(x + STRIDES_AT)[0]), i64(value + DATA_AT)[0]
    axes, steps, low, high = i64(stack(MAXDIM)), i64(stack(MAXDIM)), i64(stack(MAXDIM)), i64(stack(MAXDIM))
    for a in range(own - 1, -1, -1):
        steps[a] = step
        step *= dims[a]
        if dims[a] > 1:  # the axes, those of the smallest strides first
            q = count
            while q > 0 and without_sign(strides[axes[q - 1]]) > without_sign(strides[a]):
                axes[q] = axes[q - 1]
                q -= 1
            axes[q] = a
            count += 1
    rest -= i64(x + DATA_AT)[0]
    for q in range(count):
        unit = without_sign(strides[axes[q]])
        if unit <= reach:
            return UNHANDLED
        reach += unit * (dims[axes[q]] - 1)
        if strides[axes[q]] < 0:
            rest += unit * (dims[axes[q]] - 1)  # from the element that lies first
    if step == 0 or rest < 0:
        return UNHANDLED
    w[0] = 0
    for q in range(count - 1, -1, -1):
        a = axes[q]
        digit = rest // without_sign(strides[a])
        rest -= digit * without_sign(strides[a])
        if strides[a] < 0:
            digit = dims[a] - 1 - digit
        w[0] += digit * steps[a]
        low[a], high[a] = digit, digit
    for d in range(ndim):
        stride, along, extent = i64(i64(value + STRIDES_AT)[0])[d], 0, i64(i64(value + DIMS_AT)[0])[d]
        distance = without_sign(stride) * (extent > 1)
        for q in range(count - 1, -1, -1):
            a = axes[q]
            digit = distance // without_sign(strides[a])
            distance -= digit * without_sign(strides[a])
            if (stride < 0) != (strides[a] < 0):
                digit = 0 - digit
            along += digit * steps[a]
            low[a] += min(digit * (extent - 1), 0)
            high[a] += max(digit * (extent - 1), 0)
        w[2 + ndim + d] = along
        rest = rest | distance
    for q in range(count):
        if low[axes[q]] < 0 or high[axes[q]] >= dims[axes[q]]:
            return UNHANDLED
    return UNHANDLED * (rest != 0)


def without_sign(n: int) -> int:
    return max(n, 0 - n)


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


def along_words(x: int, axes: int, kind: int) -> int:
    """Words for `recurrence`, as an object of bytes: its kind, and how many elements lie before, along and
    after the axes of an operand. UNHANDLED where axes are not beside each other; 0 with an error set.
    """
    g, buffer, items, n = i64(shared()), stack(4), stack(1), 1
    if axes == 0 or i64(x + TYPE_AT)[0] != g[NDARRAY_TYPE]:
        return UNHANDLED
    i64(items)[0] = axes
    if i64(axes + TYPE_AT)[0] == g[TUPLE_TYPE]:
        items, n = axes + TUPLE_ITEMS_AT, i64(axes + LIST_SIZE_AT)[0]
    words, first, last = i64(buffer), MAXDIM, -1
    for q in range(n):
        if i64(i64(items)[q] + TYPE_AT)[0] != g[INT_TYPE]:
            return UNHANDLED
        axis = call(g[LONG_AS], i64(items)[q])
        first, last = min(first, axis), max(last, axis)
    if n == 0 or first < 0 or last - first + 1 != n:
        return UNHANDLED
    words[0], words[1], words[2], words[3] = kind, 1, 1, 1
    for d in range(i32(x + NDIM_AT)[0]):
        place = 1 + (d >= first) + (d > last)
        words[place] = words[place] * i64(i64(x + DIMS_AT)[0])[d]
    return call(g[BYTES_FROM], buffer, 32)


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
