"""Compiled: words that tell a sweep what a record does, noted when it is committed, as an object of bytes.

They speak of places in arrays counted in C order, so nothing that is written or let go of later makes them
wrong.
"""

from tapegrad.kernels.dialect import call, copy, i64, invoke, obj, shared, stack, u8
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.operands import code_of, extent_of, is_dense, same_words, weigh


def window_words(x: int, value: int, covers: int) -> int:
    """Words for `view` in `templates`, as an object of bytes, of an array that is a view of another.

    UNHANDLED where x has an element in two places, or the value is no view of it; 0 with an error set.
    """
    g = i64(shared())
    if obj(x).type != g.ndarray_type or obj(value).type != g.ndarray_type:
        return UNHANDLED
    if obj(x).descr != obj(value).descr:
        return UNHANDLED
    ndim, step, buffer = obj(value).ndim, 1, stack(WINDOW_WORDS)
    window, extents = i64(buffer + 8), i64(obj(value).dims)
    i64(buffer)[0] = 1
    window[WINDOW_AXES], window[WINDOW_COVERS], window[WINDOW_HERE] = ndim, covers, 0
    for d in range(ndim - 1, -1, -1):
        window[WINDOW_EXTENTS + d], window[WINDOW_EXTENTS + 2 * ndim + d] = extents[d], step
        step *= extents[d]
    if step == 0:
        return UNHANDLED
    if is_dense(x):
        found = places_in_dense(x, value, buffer + 8)
    else:
        found = places_in_strided(x, value, buffer + 8)
    if found == 0:
        return UNHANDLED
    return call(g.bytes_from, buffer, 8 * (1 + WINDOW_EXTENTS + 3 * ndim))


def places_in_dense(x: int, value: int, words: int) -> int:
    """Put the start and the steps of a view of a dense array into its window, as places in C order; or 0."""
    window, strides, size = i64(words), i64(obj(value).strides), code_of(x) >> 8
    ndim, offset = obj(value).ndim, obj(value).data - obj(x).data
    if offset < 0 or offset >= size * extent_of(x, 0, obj(x).ndim):
        return 0
    window[WINDOW_THERE] = offset // size
    for j in range(ndim):
        if strides[j] < 0:
            window[WINDOW_EXTENTS + ndim + j] = 0 - (0 - strides[j]) // size
        else:
            window[WINDOW_EXTENTS + ndim + j] = strides[j] // size
    return 1


def places_in_strided(x: int, value: int, words: int) -> int:
    """As `places_in_dense`, of an array each of whose strides is more than the smaller ones reach together.

    Then an element's address tells its place along each axis, by division by the strides, longest first. So
    does the stride of an axis of the view, if what it leads to stays within the array along each axis.
    """
    order, low, high = i64(stack(MAXDIM)), i64(stack(MAXDIM)), i64(stack(MAXDIM))
    steps, dims, strides = i64(stack(MAXDIM)), i64(obj(x).dims), i64(obj(x).strides)
    window, extents, windows = i64(words), i64(obj(value).dims), i64(obj(value).strides)
    ndim, axes, step, offset = obj(value).ndim, 0, 1, obj(value).data - obj(x).data
    for d in range(obj(x).ndim - 1, -1, -1):
        steps[d] = step
        step *= dims[d]
        if strides[d] < 0:
            offset += (0 - strides[d]) * (dims[d] - 1)  # from the lowest address
        if dims[d] > 1:
            at = axes
            while at > 0 and length(strides[order[at - 1]]) < length(strides[d]):
                order[at] = order[at - 1]
                at -= 1
            order[at] = d
            axes += 1
    reach = 0
    for k in range(axes - 1, -1, -1):
        if length(strides[order[k]]) <= reach:
            return 0
        reach += length(strides[order[k]]) * (dims[order[k]] - 1)
    if offset < 0:
        return 0
    window[WINDOW_THERE] = 0
    for k in range(axes):
        d = order[k]
        place = offset // length(strides[d])
        offset -= place * length(strides[d])
        low[d], high[d] = place, place
        if strides[d] < 0:
            place = dims[d] - 1 - place
        window[WINDOW_THERE] += place * steps[d]
    for j in range(ndim):
        window[WINDOW_EXTENTS + ndim + j], rest = 0, 0
        if extents[j] > 1:
            rest = length(windows[j])
        for k in range(axes):
            d = order[k]
            along = rest // length(strides[d])
            rest -= along * length(strides[d])
            if windows[j] < 0:
                low[d] -= along * (extents[j] - 1)
            else:
                high[d] += along * (extents[j] - 1)
            if (windows[j] < 0) != (strides[d] < 0):
                along = 0 - along
            window[WINDOW_EXTENTS + ndim + j] += along * steps[d]
        offset += rest
    for k in range(axes):
        if low[order[k]] < 0 or high[order[k]] >= dims[order[k]]:
            return 0
    return offset == 0


def length(stride: int) -> int:
    """How many bytes a step goes, whichever way."""
    if stride < 0:
        return 0 - stride
    return stride


def embedded_words(whole: int, index: int) -> int:
    """Words for `view` of what lies at a basic index of a whole, as an object of bytes.

    UNHANDLED where that is nothing; 0 with an error set.
    """
    g, buffer = i64(shared()), stack(WINDOW_WORDS)
    if obj(whole).type != g.ndarray_type:
        return UNHANDLED
    window, place = i64(buffer + 8), place_of(index, whole)
    if place >= 0:
        i64(buffer)[0] = 1
        window[WINDOW_AXES], window[WINDOW_COVERS] = 0, 1
        window[WINDOW_THERE], window[WINDOW_HERE] = 0, place
        return call(g.bytes_from, buffer, 8 * (1 + WINDOW_EXTENTS))
    part = call(g.get_item, whole, index)
    if part == 0:
        return 0
    found = window_words(whole, part, 1)
    invoke(g.decref, part)
    if found != 0 and found != UNHANDLED:
        window = i64(found + BYTES_AT + 8)
        window[WINDOW_HERE], window[WINDOW_THERE] = window[WINDOW_THERE], 0
        ndim = window[WINDOW_AXES]
        there, here = WINDOW_EXTENTS + ndim, WINDOW_EXTENTS + 2 * ndim
        for d in range(ndim):
            window[there + d], window[here + d] = window[here + d], window[there + d]
    return found


def place_of(index: int, x: int) -> int:
    """The number in C order of the element at an index of integers, one for each axis; -1 for any other."""
    g, items, n, place = i64(shared()), stack(1), 1, 0
    i64(items)[0] = index
    if obj(index).type == g.tuple_type:
        items, n = index + TUPLE_ITEMS_AT, obj(index).size
    if n != obj(x).ndim:
        return -1
    for q in range(n):
        if obj(i64(items)[q]).type != g.int_type:
            return -1
        at = call(g.long_as, i64(items)[q])
        if at < 0:
            at += i64(obj(x).dims)[q]
        place = place * i64(obj(x).dims)[q] + at
    return place


def joined_words(frame: int, n: int, value: int, attrs: int, new_axis: int) -> int:
    """Words for `view` of the parts of arrays joined along an axis, as an object of bytes.

    UNHANDLED where the value is no dense array; 0 with an error set.
    """
    g, shape, steps = i64(shared()), i64(obj(value).dims), i64(stack(MAXDIM))
    ndim, step, f = obj(value).ndim, 1, i64(frame)
    key = call(g.dict_get, attrs, g.axis_text)
    if key == 0 or obj(value).type != g.ndarray_type:
        return UNHANDLED
    axis, own = call(g.long_as, key), ndim - new_axis  # own: axes of an operand
    for d in range(ndim - 1, -1, -1):
        steps[d] = step
        step *= shape[d]
    size = WINDOW_EXTENTS + 3 * own
    words = call(g.bytes_from, 0, 8 * n * (1 + size))
    if words == 0:
        return 0
    offset = 0
    for q in range(n):
        at, step = n + q * size, 1
        i64(words + BYTES_AT)[q] = at
        window = i64(words + BYTES_AT + 8 * at)
        window[WINDOW_AXES], window[WINDOW_COVERS] = own, 1
        window[WINDOW_THERE], window[WINDOW_HERE] = 0, offset * steps[axis]
        for d in range(own - 1, -1, -1):
            outer = d + (new_axis != 0 and d >= axis)
            extent = shape[outer]
            if d == axis and new_axis == 0:
                extent = i64(i64(f[VALUE + q] + DIMS_AT)[0])[d]
            window[WINDOW_EXTENTS + d], window[WINDOW_EXTENTS + own + d] = extent, step
            window[WINDOW_EXTENTS + 2 * own + d] = steps[outer]
            step *= extent
        if new_axis:
            offset += 1
        else:
            offset += i64(i64(f[VALUE + q] + DIMS_AT)[0])[axis]
    return words


def placed_words(tape: int, attrs: int) -> int:
    """Words for `scatter` and `put` in `templates`: those among the attributes, or of the places there."""
    g = i64(shared())
    words = call(g.dict_get, attrs, g.words_text)
    if words != 0:
        if obj(words).type == g.bytes_type:
            invoke(g.incref, words)
            return words
    places = call(g.dict_get, attrs, g.places_text)
    count = integers(places)
    if count < 0:
        return UNHANDLED
    words = words_of_places(tape, count)
    if words != 0:
        copy(words + BYTES_AT + 8 * PLACES, obj(places).data, 8 * count)
    return words


def scattered_words(tape: int, whole: int, places: int) -> int:
    """Words for `put` in `templates` of what is written at places of a whole: of several at one the last.

    For the others -1 stands. UNHANDLED for places of another kind; 0 with an error set.
    """
    g, count = i64(shared()), integers(places)
    if count < 0 or obj(whole).type != g.ndarray_type:
        return UNHANDLED
    size = extent_of(whole, 0, obj(whole).ndim)
    written, words = call(g.bytes_from, 0, size), words_of_places(tape, count)
    if written == 0 or words == 0:
        if written != 0:
            invoke(g.decref, written)
        if words != 0:
            invoke(g.decref, words)
        return 0
    marks, w, given = u8(written + BYTES_AT), i64(words + BYTES_AT + 8 * PLACES), i64(obj(places).data)
    for i in range(count):  # no others are looked at
        marks[given[i]] = 0
    for i in range(count - 1, -1, -1):
        w[i] = given[i]
        if marks[given[i]]:
            w[i] = -1
        marks[given[i]] = 1
    invoke(g.decref, written)
    return words


def integers(x: int) -> int:
    """How many elements a dense array of integers has; -1 for anything else."""
    if obj(x).type != i64(shared()).ndarray_type:
        return -1
    if obj(x).descr != i64(shared()).integer or is_dense(x) == 0:
        return -1
    return extent_of(x, 0, obj(x).ndim)


def words_of_places(tape: int, count: int) -> int:
    """A new object of bytes that begins with how many places it is to have; 0 with an error set."""
    g, size = i64(shared()), 8 * (PLACES + count)
    if size > g.smallest:
        if weigh(tape, size) == 0:
            return 0
    words = call(g.bytes_from, 0, size)
    if words != 0:
        obj(words).bytes = count
    return words


def taken_words(tape: int, x: int, index: int) -> int:
    """Words for `scatter` in `templates`, as an object of bytes: how many places in an array x, and which.

    An index is a dense array of integers, or several of one shape for axes that follow each other, perhaps
    behind whole axes. UNHANDLED for any other; 0 with an error set.
    """
    g, items, n, lead = i64(shared()), stack(1), 1, 0
    i64(items)[0] = index
    if obj(index).type == g.tuple_type:
        items, n = index + TUPLE_ITEMS_AT, obj(index).size
    while lead < n and is_whole(i64(items)[lead]):
        lead += 1
    if lead == n or obj(x).type != g.ndarray_type:
        return UNHANDLED
    count = integers(i64(items)[lead])
    if count < 0:
        return UNHANDLED
    for q in range(lead, n):
        if integers(i64(items)[q]) != count or same_words(i64(items)[lead], i64(items)[q], DIMS_AT) == 0:
            return UNHANDLED
    dims, outer, span = i64(obj(x).dims), extent_of(x, 0, lead), extent_of(x, lead, n)
    inner = extent_of(x, n, obj(x).ndim)
    words = words_of_places(tape, outer * count * inner)
    if words == 0:
        return 0
    w = i64(words + BYTES_AT + 8 * PLACES)
    for i in range(count):
        place = 0
        for q in range(lead, n):
            at = i64(obj(i64(items)[q]).data)[i]
            if at < 0:
                at += dims[q]
            place = place * dims[q] + at
        for o in range(outer):
            if inner == 1:
                w[o * count + i] = o * span + place
            else:
                at = words + BYTES_AT + 8 * (PLACES + inner * (o * count + i))
                count_up(at, (o * span + place) * inner, inner)
    return words


def count_up(out: int, first: int, n: int) -> int:
    """n words, from `first` on."""
    w = i64(out)
    for k in range(n):
        w[k] = first + k
    return 0


def is_whole(part: int) -> int:
    """Whether a part of an index is ``:``."""
    g = i64(shared())
    if obj(part).type != g.slice_type:
        return 0
    for d in range(3):
        if i64(part + SLICE_AT)[d] != g.none_at_all:
            return 0
    return 1


def along_words(x: int, axes: int, kind: int) -> int:
    """Words for `recurrence`, as an object of bytes: its kind, and how many elements lie before, along and
    after the axes of an operand. UNHANDLED where axes are not beside each other; 0 with an error set.
    """
    g, buffer, items, n = i64(shared()), stack(ALONG_WORDS), stack(1), 1
    if axes == 0 or obj(x).type != g.ndarray_type:
        return UNHANDLED
    i64(items)[0] = axes
    if obj(axes).type == g.tuple_type:
        items, n = axes + TUPLE_ITEMS_AT, obj(axes).size
    along, first, last = i64(buffer), MAXDIM, -1
    for q in range(n):
        if obj(i64(items)[q]).type != g.int_type:
            return UNHANDLED
        axis = call(g.long_as, i64(items)[q])
        first, last = min(first, axis), max(last, axis)
    if n == 0 or first < 0 or last - first + 1 != n:
        return UNHANDLED
    along[ALONG_KIND], along[ALONG_BEFORE], along[ALONG_LENGTH], along[ALONG_AFTER] = kind, 1, 1, 1
    for d in range(obj(x).ndim):
        place = ALONG_BEFORE + (d >= first) + (d > last)
        along[place] = along[place] * i64(obj(x).dims)[d]
    return call(g.bytes_from, buffer, 8 * ALONG_WORDS)


def written_words(given: int) -> int:
    """Words for `assign` in `templates`, as an object of bytes: the window that is written, and cleared.

    UNHANDLED for another form of a window than tuples of integers; 0 with an error set.
    """
    g, counts = i64(shared()), i64(stack(WINDOW_WORDS))
    if obj(given).type != g.tuple_type:
        return UNHANDLED
    parts = i64(given + TUPLE_ITEMS_AT)
    if obj(parts[1]).type != g.tuple_type or obj(parts[2]).type != g.tuple_type:
        return UNHANDLED
    ndim, step = obj(parts[1]).size, 1
    if obj(parts[2]).size != ndim:
        return UNHANDLED
    for q in range(1 + 2 * ndim):
        number = parts[0]
        if q > ndim:
            number = i64(parts[2] + TUPLE_ITEMS_AT)[q - ndim - 1]
        elif q > 0:
            number = i64(parts[1] + TUPLE_ITEMS_AT)[q - 1]
        if obj(number).type != g.int_type:
            return UNHANDLED
        counts[q] = call(g.long_as, number)
    size = WINDOW_EXTENTS + 3 * ndim
    words = call(g.bytes_from, 0, 8 * (2 + 2 * size))
    if words == 0:
        return 0
    for part in range(2):
        at = 2 + part * size
        i64(words + BYTES_AT)[part] = at
        window = i64(words + BYTES_AT + 8 * at)
        window[WINDOW_AXES], window[WINDOW_COVERS] = ndim, 1
        window[WINDOW_THERE], window[WINDOW_HERE] = part * counts[0], (1 - part) * counts[0]
        for d in range(ndim):
            window[WINDOW_EXTENTS + d], stride = counts[1 + d], counts[1 + ndim + d]
            window[WINDOW_EXTENTS + ndim + d], window[WINDOW_EXTENTS + 2 * ndim + d] = stride, stride
    window = i64(words + BYTES_AT + 8 * 2)
    for d in range(ndim - 1, -1, -1):  # what was written is dense
        window[WINDOW_EXTENTS + ndim + d] = step
        step *= counts[1 + d]
    return words
