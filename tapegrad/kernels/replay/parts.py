"""Compiled: parts of a Tensor by a basic index."""

from tapegrad.kernels.dialect import call, i64, invoke, obj, shared, stack
from tapegrad.kernels.replay.admitting import admit
from tapegrad.kernels.replay.committing import commit, commit_apart
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.matching import matched_part
from tapegrad.kernels.replay.operands import drop, in_force, left, size_of, tape_of
from tapegrad.kernels.replay.watching import is_recorded, listed_result, listing
from tapegrad.kernels.replay.words import place_of, window_words


def tensor_getitem(self: int, key: int) -> int:
    """``__getitem__``: an element or a view by a basic index, of a Tensor on the open tape."""
    g = i64(shared())
    out = part_of(self, key)
    if out != UNHANDLED:
        return out
    args = stack(2)
    i64(args)[0], i64(args)[1] = self, key
    return call(g.vectorcall, g.getitem, args, 2, 0)


def part_of(self: int, key: int) -> int:
    """A new reference to the part's Tensor; 0 with an error set; UNHANDLED."""
    g, frame, items = i64(shared()), stack(OPERAND_WORDS), stack(1)
    if g.matching != 0:
        expected = matched_part(self, key)
        if expected != UNHANDLED:
            return expected
    x, numbers = obj(self).v, basic(key)
    if obj(self).type != g.tensor_type or x == 0 or numbers < 0:
        return UNHANDLED
    if obj(x).type != g.ndarray_type:
        return UNHANDLED
    mode, listed = in_force(), 0
    if mode == 0:
        return 0
    if mode != g.true:
        if is_recorded(self):
            listed = listing(mode)
        if listed == 0:
            return UNHANDLED
    tape = tape_of(self)
    if tape == 0 or tape == UNHANDLED:
        return tape
    i64(items)[0] = self
    if admit(g.getitem_sheet, tape, frame, 0, items, 1) < 0:
        invoke(g.decref, tape)
        return left()
    x = i64(frame)[VALUE]  # another thread may have exchanged the first one, which nothing held
    out, value = UNHANDLED, call(g.get_item, x, key)
    if value == 0:
        invoke(g.error_clear)  # Python says it better
    else:
        if obj(value).type != g.ndarray_type:
            if numbers == obj(x).ndim:
                out = element_of(self, tape, frame, value, key, listed)
        elif obj(value).ndim != 0:
            out = view_of(self, tape, frame, value, key, listed)
        invoke(g.decref, value)
    invoke(g.decref, tape)
    return drop(frame, 1, out)


def basic(key: int) -> int:
    """How many integers an index of integers, slices, None and Ellipsis has; -1 for any other."""
    g, count, items, n = i64(shared()), 0, stack(1), 1
    i64(items)[0] = key
    if obj(key).type == g.tuple_type:
        items, n = key + TUPLE_ITEMS_AT, obj(key).size
    for q in range(n):
        part = i64(items)[q]
        kind = obj(part).type
        if kind == g.int_type:
            count += 1
        elif kind == g.slice_type:
            for d in range(3):
                end = i64(part + SLICE_AT)[d]
                if end != g.none_at_all and obj(end).type != g.int_type:
                    return -1
        elif part != g.none_at_all and part != g.ellipsis:
            return -1
    return count


def element_of(self: int, tape: int, frame: int, value: int, key: int, listed: int) -> int:
    """Record one element, by its number in C order; UNHANDLED where the index says more than integers."""
    g, place = i64(shared()), place_of(key, i64(frame)[VALUE])
    if place < 0:
        return UNHANDLED
    number = call(g.long_from, place)
    if number == 0:
        return 0
    attrs = attributes(key, number)
    if attrs == 0:
        invoke(g.decref, number)
        return 0
    out = commit(g.element_sheet, tape, frame, 1, number, value, 0, attrs, 0)
    out = listed_result(listed, g.element_sheet, self, 0, out, attrs, 0)
    invoke(g.decref, attrs)
    invoke(g.decref, number)
    return out


def view_of(self: int, tape: int, frame: int, value: int, key: int, listed: int) -> int:
    """Record a view, which sees what is written to the Tensor, and is seen; where others write, a copy."""
    g, args, apart, largest = i64(shared()), stack(3), i64(frame)[NEW_CONST], size_of(i64(frame)[VALUE])
    words = window_words(i64(frame)[VALUE], value, 0)
    if words == 0 or words == UNHANDLED:
        return words
    attrs, out = attributes(key, 0), 0
    if attrs != 0:
        out = commit_apart(g.getitem_sheet, tape, frame, 1, g.zero, value, largest, attrs, words, apart)
        out = listed_result(listed, g.getitem_sheet, self, 0, out, attrs, apart == 0)
        invoke(g.decref, attrs)
    invoke(g.decref, words)
    if out == 0 or out == UNHANDLED or apart != 0:
        return out
    i64(args)[0], i64(args)[1], i64(args)[2] = self, out, i64(frame)[VALUE]
    joined = call(g.vectorcall, g.join, args, 3, 0)
    invoke(g.decref, out)
    return joined


def attributes(key: int, place: int) -> int:
    """A new dict of an index and, if not 0, a place; 0 with an error set."""
    g = i64(shared())
    attrs = call(g.new_dict)
    if attrs == 0:
        return 0
    failed = call(g.dict_set, attrs, g.index_text, key) & 0xFFFFFFFF
    if place != 0 and failed == 0:
        failed = call(g.dict_set, attrs, g.place_text, place) & 0xFFFFFFFF
    if failed:
        invoke(g.decref, attrs)
        return 0
    return attrs
