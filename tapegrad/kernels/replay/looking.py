"""Compiled: numbers that Python looks at: of Tensors, and of those for which a program at work computes them.

All else is left to the methods in Python.
"""

from tapegrad.kernels.dialect import call, copy, f32, f64, i64, invoke, obj, shared, stack, u8
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.matching import (
    compute_expected,
    expected_number,
    is_followed,
    latest_event,
    matched_flat,
)
from tapegrad.kernels.replay.operands import code_of, in_force, is_deferred, left
from tapegrad.kernels.replay.unrecorded import without_history


def see_number(x: int, told: int, with_history: int) -> int:
    """Write where the number of a Tensor is, and the code of its dtype; 0 where Python is to look at it.

    One with a history, or more than a value, that no program computes is Python's unless that may be. Where
    it is, an error may be set: see `by_twin`.
    """
    g, mode = i64(shared()), in_force()
    if mode == 0:
        return 0
    if obj(x).type != g.tensor_type:
        return 0
    if obj(x).v == 0:
        return see_expected(x, told, mode)
    if mode != g.true and mode != g.false:
        if g.matching == 0:
            return 0
        if mode != i64(g.matching).matching_mode and mode != i64(g.matching).matching_off:
            return 0
    if with_history == 0 and (obj(x).tape != g.none_at_all or obj(x).extra != g.none_at_all):
        return 0
    value = obj(x).v
    if obj(value).type == g.ndarray_type:
        return 0
    i64(told)[0], i64(told)[1] = value + SCALAR_AT, code_of(value) & 0xFF
    return is_known(i64(told)[1])


def see_expected(x: int, told: int, mode: int) -> int:
    """As `see_number`, of a Tensor that stands for what a program at work computes."""
    g = i64(shared())
    if g.matching == 0 or is_followed(mode) <= 0:
        return 0
    event = expected_number(x)
    if event == 0 or compute_expected(event) == 0:
        return 0
    i64(told)[0], i64(told)[1] = i64(event).event_number, i64(i64(event).event_alike).alike_code & 0xFF
    return is_known(i64(told)[1])


def is_known(kind: int) -> int:
    """Whether numbers of a dtype are looked at here."""
    return kind == DOUBLE_CODE or kind == SINGLE_CODE or kind == INTEGER_CODE or kind == BOOLEAN


def by_twin(twin: int, args: int, count: int) -> int:
    """What a method in Python gives, unless an error is set."""
    g = i64(shared())
    if call(g.error_occurred) != 0:
        return 0
    return call(g.vectorcall, twin, args, count, 0)


def truth_seen(x: int) -> int:
    """The truth of a Tensor's number, or -1, perhaps with an error set."""
    told = stack(2)
    if see_number(x, told, 1) == 0:
        return 0 - 1
    at, kind = i64(told)[0], i64(told)[1]
    if kind == DOUBLE_CODE:
        return f64(at)[0] != 0.0
    if kind == SINGLE_CODE:
        return f32(at)[0] != 0.0
    return whole_at(at, kind) != 0


def whole_at(at: int, kind: int) -> int:
    """A truth value or a whole number."""
    if kind == BOOLEAN:
        return u8(at)[0]
    return i64(at)[0]


def new_float(at: int, kind: int) -> int:
    """A number as a new float of Python's; 0 with an error set."""
    g = i64(shared())
    out = call(g.allocate_object, g.float_type, 0)
    if out == 0:
        return 0
    if kind == DOUBLE_CODE:
        f64(out + SCALAR_AT)[0] = f64(at)[0]
    elif kind == SINGLE_CODE:
        f64(out + SCALAR_AT)[0] = f32(at)[0]
    else:
        f64(out + SCALAR_AT)[0] = float(whole_at(at, kind))
    return out


def tensor_item(self: int, args: int, count: int) -> int:
    """``item(*args)``."""
    g, told, everything = i64(shared()), stack(2), stack(8)
    if count == 0:
        if see_number(self, told, 1) != 0:
            at, kind = i64(told)[0], i64(told)[1]
            if kind == INTEGER_CODE:
                return call(g.long_from, i64(at)[0])
            if kind != BOOLEAN:
                return new_float(at, kind)
            out = g.false
            if u8(at)[0]:
                out = g.true
            invoke(g.incref, out)
            return out
    given = min(count, 7)
    i64(everything)[0] = self
    for q in range(given):
        i64(everything)[q + 1] = i64(args)[q]
    return by_twin(g.item, everything, given + 1)


def tensor_float(self: int, nothing: int) -> int:
    """``__float__()``, where no derivative is dropped for sure."""
    g, told, args = i64(shared()), stack(2), stack(1)
    if see_number(self, told, 0) != 0:
        kind = i64(told)[1]
        if obj(self).v != 0 or kind == INTEGER_CODE or kind == BOOLEAN or is_flat(self):
            return new_float(i64(told)[0], kind)
    i64(args)[0] = self
    return by_twin(g.as_float, args, 1)


def is_flat(x: int) -> int:
    """Whether a Tensor that a program at work computes has no derivative."""
    event = latest_event(x)
    if event == 0:
        return 0
    return i64(i64(event).event_alike).alike_recorded != RECORDED_ON


def tensor_int(self: int, nothing: int) -> int:
    """``__int__()``, of a truth value or a whole number."""
    g, told, args = i64(shared()), stack(2), stack(1)
    if see_number(self, told, 0) != 0:
        kind = i64(told)[1]
        if kind == INTEGER_CODE or kind == BOOLEAN:
            return call(g.long_from, whole_at(i64(told)[0], kind))
    i64(args)[0] = self
    return by_twin(g.as_int, args, 1)


def tensor_index(self: int, nothing: int) -> int:
    """``__index__()``."""
    g, told, args = i64(shared()), stack(2), stack(1)
    if see_number(self, told, 0) != 0:
        if i64(told)[1] == INTEGER_CODE:
            return call(g.long_from, i64(i64(told)[0])[0])
    i64(args)[0] = self
    return by_twin(g.as_index, args, 1)


def number_type(kind: int) -> int:
    """The type of NumPy's numbers of a dtype."""
    known = i64(i64(shared()).scalars)
    for j in range(1, known[0] + 1):
        if known[2 * j + 1] & 0xFF == kind:
            return known[2 * j]
    return 0


def new_number(at: int, kind: int) -> int:
    """A new number of NumPy's, which is no truth value; 0 with an error set, or where it has no type."""
    out, of = 0, number_type(kind)
    if of != 0:
        out = call(i64(shared()).allocate_object, of, 0)
    if out != 0:
        copy(out + SCALAR_AT, at, 8 >> (kind == SINGLE_CODE))
    return out


def number_expected(module: int, x: int) -> int:
    """``number(x)``: that of a Tensor that a program at work computes; None where Python is to look."""
    g, told = i64(shared()), stack(2)
    if obj(x).type == g.tensor_type:
        if obj(x).v == 0 and see_number(x, told, 0) != 0 and i64(told)[1] != BOOLEAN:
            out = new_number(i64(told)[0], i64(told)[1])
            if out != 0:
                return out
    if call(g.error_occurred) != 0:
        return 0
    invoke(g.incref, g.none_at_all)
    return g.none_at_all


def tensor_detach(self: int, nothing: int) -> int:
    """``detach()``: what a program at work expects, or of a real number that it computes a copy."""
    g, told, args = i64(shared()), stack(2), stack(1)
    i64(args)[0] = self
    if g.matching != 0:
        out = matched_flat(g.detached, args, 1)
        if out != UNHANDLED:
            return out
    if obj(self).v == 0:
        if see_number(self, told, 0) != 0:
            at, kind = i64(told)[0], i64(told)[1]
            if kind == DOUBLE_CODE or kind == SINGLE_CODE:
                value, out = new_number(at, kind), 0
                if value != 0:
                    out = without_history(value)
                    invoke(g.decref, value)
                return out
    return by_twin(g.detach, args, 1)


def answered(function: int, args: int, names: int) -> int:
    """What NumPy gives for plain values that a program at work computes, as the table of functions has it.

    A new reference, 0 with an error set, or UNHANDLED, also where NumPy has raised an error, as Python has
    other words.
    """
    g, mode, values, count = i64(shared()), in_force(), stack(FEW_ARGUMENTS), 0
    if mode == 0:
        return 0
    if obj(args).type != g.tuple_type or obj(names).type != g.dict_type:
        return UNHANDLED
    count = obj(args).size
    if call(g.dict_get, g.answered, function) == 0:
        invoke(g.error_clear)
        return UNHANDLED
    if count > FEW_ARGUMENTS or are_options(names) == 0:
        return UNHANDLED
    followed = is_followed(mode)
    if followed < 0:
        return 0
    if followed == 0:
        return UNHANDLED
    for q in range(count):
        x = i64(args + TUPLE_ITEMS_AT)[q]
        if obj(x).type == g.tensor_type:
            x = array_seen(x)
        elif is_option(x) == 0 and obj(x).type != g.ndarray_type and obj(x).type != g.float64_type:
            x = 0
        if x == 0:
            return left()
        i64(values)[q] = x
    found = call(g.call_with, function, values, count, names)
    if found == 0:
        invoke(g.error_clear)
        return UNHANDLED
    for q in range(count):
        if found == i64(values)[q] and obj(found).type == g.ndarray_type:
            invoke(g.decref, found)
            return UNHANDLED
    return as_result(found)


def as_result(found: int) -> int:
    """What a function gives for this result of NumPy's, a reference that is taken, or UNHANDLED."""
    g, out, known = i64(shared()), UNHANDLED, code_of(found)
    if found == g.none_at_all or found == g.true or found == g.false or obj(found).type == g.int_type:
        return found
    if obj(found).type == g.ndarray_type:
        if obj(found).ndim == 0 or obj(found).base != 0:
            known = 0
    if known != 0:
        out = without_history(found)
    invoke(g.decref, found)
    return out


def array_seen(x: int) -> int:
    """The array of a Tensor, borrowed, that a program at work computes and Python has looked at before; or 0.

    Or that of one that is not computed by it, and has no history.
    """
    g = i64(shared())
    if obj(x).v != 0:
        if obj(x).tape != g.none_at_all or obj(x).extra != g.none_at_all or is_deferred(x):
            return 0
        return obj(x).v
    event = expected_number(x)
    if event == 0:
        return 0
    if i64(i64(event).event_alike).alike_code != 0 or compute_expected(event) == 0:
        return 0
    return i64(event).event_number


def is_option(x: int) -> int:
    """Whether this is a number, a text or None of Python's."""
    g, kind = i64(shared()), obj(x).type
    if x == g.none_at_all or x == g.true or x == g.false:
        return 1
    return kind == g.float_type or kind == g.int_type or kind == g.str_type


def are_options(names: int) -> int:
    """Whether all arguments by names are such."""
    g, place, pair = i64(shared()), stack(1), stack(2)
    i64(place)[0] = 0
    while call(g.dict_next, names, place, pair, pair + 8) & 0xFFFFFFFF != 0:
        if is_option(i64(pair)[1]) == 0:
            return 0
    return 1
