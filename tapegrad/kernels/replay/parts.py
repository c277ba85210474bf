"""Compiled: parts of a Tensor by a basic index."""

from tapegrad.kernels.dialect import call, i32, i64, invoke, shared, stack
from tapegrad.kernels.replay.admitting import admit
from tapegrad.kernels.replay.committing import commit
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.operands import drop, in_force, left, size_of, tape_of
from tapegrad.kernels.replay.words import window_words


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
        return left()
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
        out = commit(
            g[GETITEM_SHEET], tape, frame, 1, g[ZERO], value, size_of(i64(frame)[VALUE]), attrs, words
        )
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
