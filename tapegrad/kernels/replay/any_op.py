"""Compiled: record the result of any op, whose value Python has computed by NumPy.

Where an operand or a mode is out of the ordinary the caller, `tapegrad.core.dispatch.record`, does it.
"""

from tapegrad.kernels.dialect import call, i64, invoke, obj, shared, stack
from tapegrad.kernels.replay.admitting import admit
from tapegrad.kernels.replay.committing import commit_apart
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.operands import code_of, drop, in_force, is_deferred, left, open_tape, tape_of
from tapegrad.kernels.replay.watching import bytes_of, listed_result, listing
from tapegrad.kernels.replay.words import (
    along_words,
    embedded_words,
    joined_words,
    placed_words,
    scattered_words,
    taken_words,
    window_words,
    written_words,
)


def record_op(self: int, args: int, count: int) -> int:
    """``(op, value, operands, attrs, values)``; the Tensor, or None where Python is to record it.

    The last is a list of what the operands' values were, or not there.
    """
    g, given, out, values = i64(shared()), i64(args), UNHANDLED, 0
    if count == 5:
        values = obj(given[4]).items
    if count == 4 or count == 5:
        out = recorded(given[0], given[1], given[2], given[3], values)
    if out == UNHANDLED:
        invoke(g.incref, g.none_at_all)
        return g.none_at_all
    return out


def recorded(op: int, value: int, operands: int, attrs: int, values: int) -> int:
    """A new reference to the result's Tensor; 0 with an error set; UNHANDLED.

    So it is where an operand's value is not, or not any more, that in `values` if these are not 0.
    """
    g = i64(shared())
    kind, items, n = obj(operands).type, operands + TUPLE_ITEMS_AT, obj(operands).size
    if kind == g.list_type:
        items = obj(operands).items
    elif kind != g.tuple_type:
        return UNHANDLED
    if n == 0 or n > QUICK_OPERANDS:
        return UNHANDLED
    code = code_of(value) & 0xFF
    if code == 0 or code > DIFFERENTIABLE:
        return UNHANDLED
    mode, listed = in_force(), 0
    if mode == 0:
        return 0
    if mode != g.true:
        listed = listing_alone(mode, value, items, n, attrs)
        if listed == 0:
            return UNHANDLED
    sheet = sheet_of(op)
    if sheet == 0:
        return 0
    out = recorded_as(sheet, value, items, n, attrs, values)
    if listed != 0 and out != 0 and out != UNHANDLED:
        first, second = i64(items)[0], 0
        if n == 2:
            second = i64(items)[1]
        view = n == 1 and is_view_of(obj(out).v, obj(first).v)
        out = listed_result(listed, sheet, first, second, out, attrs * (n == 1), view)
    return out


def recorded_as(sheet: int, value: int, items: int, n: int, attrs: int, values: int) -> int:
    """As `recorded`, of n operands that begin at `items`."""
    g, begin = i64(shared()), 0
    for q in range(n):
        x = i64(items)[q]
        if obj(x).type == g.tensor_type:
            if begin == 0 or open_tape(x) != 0:
                begin = x
            elif obj(begin).tape == g.none_at_all:
                begin = x  # a result, perhaps, rather than a leaf
    if begin == 0:
        return UNHANDLED
    tape = tape_of(begin)
    if tape == 0 or tape == UNHANDLED:
        return tape
    frame, largest, taken, apart = stack(OPERAND_WORDS), 0, 0, 0
    for q in range(n):
        if largest >= 0:
            size = admit(sheet, tape, frame, q, items, n)
            if size < 0:
                largest = size
            else:
                largest = max(largest, size)
                taken += 1
                x = i64(items)[q]
                if values != 0 and i64(frame)[VALUE + q] != i64(values)[q]:
                    largest = -1  # written to by a finalizer
                if i64(frame)[NEW_CONST + q] != 0 and may_be_view(value, i64(frame)[VALUE + q]):
                    if obj(x).type == g.ndarray_type:
                        largest = -1  # of memory that others can write to
                    else:
                        apart = 1
    out = left()
    if largest >= 0:
        out = with_attributes(sheet, tape, frame, n, value, largest, attrs, apart)
    invoke(g.decref, tape)
    return drop(frame, taken, out)


def listing_alone(mode: int, value: int, items: int, n: int, attrs: int) -> int:
    """As `listing`, where what compiled code lists says all of an op; 0 for others.

    That is of up to two operands, with attributes of one, and a result that is not large.
    """
    g, words = i64(shared()), listing(mode)
    if words == 0 or n > 2:
        return 0
    if (n == 2 and attrs != g.none_at_all) or is_deferred(value):
        return 0
    return words * (bytes_of(value) < i64(words)[TRACE_LARGE])


def is_view_of(value: int, x: int) -> int:
    """As `core.dispatch.is_view_of`."""
    g = i64(shared())
    if obj(value).type != g.ndarray_type or x == 0:
        return 0
    if obj(x).type != g.ndarray_type:
        return 0
    base = obj(value).base
    return value == x or (base != 0 and (base == x or base == obj(x).base))


def may_be_view(value: int, x: int) -> int:
    """Whether a value computed from another one may lie in its memory, as far as owners tell."""
    g = i64(shared())
    if obj(value).type != g.ndarray_type or obj(x).type != g.ndarray_type:
        return 0
    if value == x:
        return 1
    if obj(value).base == 0 or is_deferred(value):
        return 0
    owner = owner_of(value)
    return (owner == 0) | (owner == owner_of(x))


def owner_of(x: int) -> int:
    """The array whose memory an array lies in; 0 where it is that of something else."""
    while obj(x).base != 0:
        x = obj(x).base
        if obj(x).type != i64(shared()).ndarray_type:
            return 0
    return x * (obj(x).flags & OWNER != 0)


def recorded_result(op: int, value: int, items: int, n: int, attrs: int, anyhow: int) -> int:
    """As `recorded`, of n operands; by Python where it is left to that, if this is to be `anyhow`."""
    g, args, operands = i64(shared()), stack(4), call(i64(shared()).new_tuple, n)
    if operands == 0:
        return 0
    for q in range(n):
        invoke(g.incref, i64(items)[q])
        i64(operands + TUPLE_ITEMS_AT)[q] = i64(items)[q]
    out = recorded(op, value, operands, attrs, 0)
    if out == UNHANDLED and anyhow:
        i64(args)[0], i64(args)[1], i64(args)[2], i64(args)[3] = op, value, operands, attrs
        out = call(g.vectorcall, g.record_value, args, 4, 0)
    invoke(g.decref, operands)
    return out


def sheet_of(op: int) -> int:
    """The address of an op's sheet, made when first asked for; 0 with an error set."""
    g, args = i64(shared()), stack(1)
    known = call(g.dict_get, g.sheets_by_op, op)
    if known != 0:
        return call(g.long_as, known)
    invoke(g.error_clear)  # no key at all
    i64(args)[0] = op
    made = call(g.vectorcall, g.make_sheet, args, 1, 0)
    if made == 0:
        return 0
    sheet = call(g.long_as, made)
    invoke(g.decref, made)
    return sheet


def with_attributes(
    sheet: int, tape: int, frame: int, n: int, value: int, largest: int, attrs: int, apart: int
) -> int:
    """As `commit_apart`, with what follows from attributes: a record's number, the window it views."""
    g, s, args = i64(shared()), i64(sheet), stack(1)
    number, words = g.zero, 0
    invoke(g.incref, number)
    if attrs == g.none_at_all:
        attrs = 0
    elif obj(attrs).size == 0:
        attrs = 0
    if s.recorded == NUMBER:
        invoke(g.decref, number)
        i64(args)[0] = attrs
        number = call(g.vectorcall, s.key, args, 1, 0)
        if number == 0:
            return 0
    if s.window != 0 and is_deferred(value) == 0:  # which tells no strides
        if s.window < JOINED:
            words = window_words(i64(frame)[VALUE], value, s.window - PART)
        elif s.window < TAKEN:
            words = joined_words(frame, n, value, attrs, s.window - JOINED)
        elif s.window == TAKEN:
            words = taken_words(tape, i64(frame)[VALUE], call(g.dict_get, attrs, g.index_text))
        elif s.window == PLACED:
            words = placed_words(tape, attrs)
        elif s.window == WRITTEN:
            words = written_words(call(g.dict_get, attrs, g.window_text))
        elif s.window == EMBEDDED:
            words = embedded_words(value, call(g.dict_get, attrs, g.index_text))
        elif s.window == ADDED:
            words = taken_words(tape, value, call(g.dict_get, attrs, g.index_text))
        elif s.window == SCATTERED:
            words = scattered_words(tape, value, call(g.dict_get, attrs, g.places_text))
        else:
            words = along_words(i64(frame)[VALUE], call(g.dict_get, attrs, g.axis_text), s.window - ALONG)
        if words == 0:
            invoke(g.decref, number)
            return 0
    if words == UNHANDLED:
        words = 0
    out = commit_apart(sheet, tape, frame, n, number, value, largest, attrs, words, apart)
    if words != 0:
        invoke(g.decref, words)
    invoke(g.decref, number)
    return out
