"""Compiled: numbers compared, and the truth of what that gives, by slots of the Tensor type.

All else is left to the slots that were there, which look for the methods in Python.
"""

from tapegrad.kernels.dialect import call, copy, f32, f64, i64, invoke, obj, shared, stack
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.looking import truth_seen
from tapegrad.kernels.replay.matching import (
    compute_expected,
    expected_number,
    is_followed,
    matched_comparison,
)
from tapegrad.kernels.replay.operands import code_of, in_force, left, number_as
from tapegrad.kernels.replay.unrecorded import without_history
from tapegrad.kernels.replay.watching import is_recorded, listing, trace_comparison


def slot_compare(a: int, b: int, which: int) -> int:
    """``a < b`` and its kin; `which` of them, as CPython counts."""
    if i64(shared()).matching != 0:
        expected = matched_comparison(a, b, which & 0xFFFFFFFF)
        if expected != UNHANDLED:
            return expected
    out = compare_numbers(a, b, which & 0xFFFFFFFF)
    if out != UNHANDLED:
        return out
    return call(i64(shared()).compare_by_method, a, b, which)


def compare_numbers(a: int, b: int, which: int) -> int:
    """A new Tensor of a truth value, 0 with an error set, or UNHANDLED."""
    g, numbers, mode, followed, listed = i64(shared()), stack(2), in_force(), 0, 0
    if mode == 0:
        return 0
    if mode != g.true and mode != g.false:
        if g.matching != 0:
            followed = is_followed(mode)
        if followed < 0:
            return 0
        if followed == 0:
            if is_listed_alike(a) and is_listed_alike(b):
                listed = listing(mode)
            if listed == 0:
                return UNHANDLED
    code = code_of_number(a, followed)
    if code == 0:
        code = code_of_number(b, followed)
    kind = code & 0xFF
    if kind == 0 or kind >= COMPLEX or write_number(numbers, a, code, followed) == 0:
        return left()
    if write_number(numbers + 8, b, code, followed) == 0:
        return left()
    p, q, found = f64(numbers)[0], f64(numbers)[1], 0
    if code & 1 == 0:
        p, q = f32(numbers)[0], f32(numbers)[2]
    if which == LESS:
        found = p < q
    elif which == AT_MOST:
        found = p <= q
    elif which == EQUAL:
        found = p == q
    elif which == OTHER:
        found = p != q
    elif which == GREATER:
        found = p > q
    else:
        found = p >= q
    value = g.numpy_false
    if found:
        value = g.numpy_true
    out = without_history(value)
    if out != 0 and listed != 0:
        if trace_comparison(listed, which, a, b, out) != 0:
            invoke(g.decref, out)
            return 0
    return out


def is_listed_alike(x: int) -> int:
    """Whether an operand is a Tensor with a history, or a number of Python's."""
    g = i64(shared())
    if obj(x).type == g.float_type or obj(x).type == g.int_type:
        return 1
    return is_recorded(x)


def number_alone(x: int) -> int:
    """The number of a Tensor, borrowed, or a number itself; 0 for an array, and where there is no value."""
    g, value = i64(shared()), x
    if obj(x).type == g.tensor_type:
        own = obj(x).tape
        if own == 0 or own == g.stale_tape or own == g.dual_tape:
            return 0
        value = obj(x).v
    if value == 0:
        return 0
    if obj(value).type == g.ndarray_type:
        return 0
    return value


def expected_event(x: int, followed: int) -> int:
    """The event of the program at work that a Tensor stands for; 0 for none."""
    if followed == 0 or obj(x).type != i64(shared()).tensor_type:
        return 0
    return expected_number(x)


def code_of_number(x: int, followed: int) -> int:
    """The dtype code of a Tensor's number, or of one of NumPy's; 0 for Python's, and for any other object."""
    value = number_alone(x)
    if value != 0:
        return code_of(value)
    event = expected_event(x, followed)
    if event == 0:
        return 0
    return i64(i64(event).event_alike).alike_code


def write_number(at: int, x: int, code: int, followed: int) -> int:
    """Write a number as one of a dtype, which its own is to be unless it is Python's; 0 where it is not."""
    value = number_alone(x)
    if value != 0:
        return number_as(code, at, value)
    event = expected_event(x, followed)
    if event == 0:
        return 0
    if i64(i64(event).event_alike).alike_code != code or compute_expected(event) == 0:
        return 0
    copy(at, i64(event).event_number, code >> 8)
    return 1


def slot_truth(self: int) -> int:
    """``bool(self)``: 1, 0, or -1 with an error set."""
    g = i64(shared())
    if obj(self).type == g.tensor_type:
        if obj(self).tape == g.none_at_all:
            if obj(self).v == g.numpy_true:
                return 1
            if obj(self).v == g.numpy_false:
                return 0
        truth = truth_seen(self)
        if truth >= 0:
            return truth
        if call(g.error_occurred) != 0:
            return 0 - 1
    return call(g.truth_by_method, self)
