"""Compiled: methods of the Tensor type, called by CPython, that compute an op and record it.

What is not the common case (modes, tangents, an error of shapes) is left to the method's twin
in Python.
"""

from tapegrad.kernels.dialect import address, call, f64, i64, invoke, obj, shared, stack
from tapegrad.kernels.replay.committing import compute
from tapegrad.kernels.replay.comparing import slot_compare, slot_truth
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.looking import (
    answered,
    tensor_detach,
    tensor_float,
    tensor_index,
    tensor_int,
    tensor_item,
)
from tapegrad.kernels.replay.matching import matched, matched_call, matched_flat
from tapegrad.kernels.replay.operands import in_force, open_tape, tape_of
from tapegrad.kernels.replay.parts import tensor_getitem
from tapegrad.kernels.replay.unrecorded import unrecorded, unrecorded_and_noted
from tapegrad.kernels.replay.watching import delegate, watched


def methods(table: int) -> int:
    """Write the addresses of methods and slots, in this order; returns that of the shared words."""
    t = i64(table)
    t[0], t[1] = address(tensor_add), address(tensor_radd)
    t[2], t[3] = address(tensor_subtract), address(tensor_rsubtract)
    t[4], t[5] = address(tensor_multiply), address(tensor_rmultiply)
    t[6], t[7] = address(tensor_divide), address(tensor_rdivide)
    t[8], t[9] = address(tensor_negative), address(tensor_absolute)
    t[10], t[11], t[12] = address(tensor_power), address(tensor_array_ufunc), address(tensor_getitem)
    t[13], t[14], t[15] = address(tensor_matmul), address(tensor_rmatmul), address(tensor_array_function)
    t[16], t[17], t[18] = address(tensor_item), address(tensor_detach), address(tensor_float)
    t[19], t[20] = address(tensor_int), address(tensor_index)
    t[21], t[22], t[23] = address(slot_add), address(slot_subtract), address(slot_multiply)
    t[24], t[25], t[26] = address(slot_divide), address(slot_matmul), address(slot_power)
    t[27], t[28], t[29] = address(slot_negative), address(slot_absolute), address(tensor_getitem)
    t[30], t[31] = address(slot_compare), address(slot_truth)
    return shared()


def operate(sheet: int, a: int, b: int) -> int:
    """A new reference to the result; 0 with an error set; UNHANDLED. `b` is 0 for an op with one operand."""
    g, x = i64(shared()), a
    if g.matching != 0:
        out = matched(sheet, a, b)
        if out != UNHANDLED:
            return out
    tape = open_tape(a)
    if tape == 0 and b != 0:
        tape = open_tape(b)
        if tape != 0 or obj(a).type != g.tensor_type:
            x = b
    if obj(x).type != g.tensor_type:
        return UNHANDLED
    mode = in_force()
    if mode == 0:
        return 0
    if mode == g.false:
        return unrecorded(sheet, a, b, mode)
    if mode != g.true:
        if obj(mode).type == g.mode_type:
            if obj(mode).note != g.none_at_all:
                return unrecorded_and_noted(sheet, a, b, mode)
        if tape == 0:
            return UNHANDLED
        return watched(sheet, 0, 0, 0, tape, a, b, mode)
    if tape != 0:
        invoke(g.incref, tape)
    else:
        tape = tape_of(x)
        if tape == UNHANDLED and b != 0 and x == a:
            if obj(b).type == g.tensor_type:
                tape = tape_of(b)
        if tape == UNHANDLED:
            return unrecorded(sheet, a, b, mode)
        if tape == 0:
            return 0
    out = compute(sheet, tape, a, b)
    invoke(g.decref, tape)
    return out


def binary(q: int, a: int, b: int, reflected: int) -> int:
    """An operator's method; `reflected` says that self is `b`."""
    g = i64(shared())
    sheet = g.sheets + 8 * SHEET_WORDS * q
    out = operate(sheet, a, b)
    if out != UNHANDLED:
        return out
    args = stack(2)
    i64(args)[0], i64(args)[1] = a, b
    if reflected:
        i64(args)[0], i64(args)[1] = b, a
    return delegate(sheet, i64(sheet)[TWIN + reflected], args, 2, a, b)


def unary(q: int, a: int) -> int:
    """An operator's method without another operand."""
    g = i64(shared())
    sheet = g.sheets + 8 * SHEET_WORDS * q
    out = operate(sheet, a, 0)
    if out != UNHANDLED:
        return out
    args = stack(1)
    i64(args)[0] = a
    return delegate(sheet, i64(sheet).twin, args, 1, a, 0)


def tensor_add(self: int, other: int) -> int:
    return binary(0, self, other, 0)


def tensor_radd(self: int, other: int) -> int:
    return binary(0, other, self, 1)


def tensor_subtract(self: int, other: int) -> int:
    return binary(1, self, other, 0)


def tensor_rsubtract(self: int, other: int) -> int:
    return binary(1, other, self, 1)


def tensor_multiply(self: int, other: int) -> int:
    return binary(2, self, other, 0)


def tensor_rmultiply(self: int, other: int) -> int:
    return binary(2, other, self, 1)


def tensor_divide(self: int, other: int) -> int:
    return binary(3, self, other, 0)


def tensor_rdivide(self: int, other: int) -> int:
    return binary(3, other, self, 1)


def tensor_matmul(self: int, other: int) -> int:
    return binary(8, self, other, 0)


def tensor_rmatmul(self: int, other: int) -> int:
    return binary(8, other, self, 1)


def tensor_negative(self: int, nothing: int) -> int:
    return unary(4, self)


def tensor_absolute(self: int, nothing: int) -> int:
    return unary(5, self)


def tensor_power(self: int, other: int) -> int:
    """A square has an op of its own."""
    g = i64(shared())
    kind, two = obj(other).type, 0
    if kind == g.int_type:
        two = other == g.two_object
    elif kind == g.float_type:
        two = f64(other + SCALAR_AT)[0] == 2.0
    if two:
        sheet = g.sheets + 8 * SHEET_WORDS * 7
        out = operate(sheet, self, 0)
        if out != UNHANDLED:
            return out
        args = stack(2)
        i64(args)[0], i64(args)[1] = self, other
        return delegate(sheet, i64(sheet).twin, args, 2, self, 0)
    return binary(6, self, other, 0)


def is_reflected(slot: int, own: int, a: int) -> int:
    """Whether Python calls this function, which is in a slot for an operator, for the type of `b` alone."""
    if obj(a).type == i64(shared()).tensor_type:
        return 0
    numbers = obj(obj(a).type).as_number
    if numbers == 0:
        return 1
    return i64(numbers)[slot] != own


def slot_add(a: int, b: int) -> int:
    return binary(0, a, b, is_reflected(NB_ADD, address(slot_add), a))


def slot_subtract(a: int, b: int) -> int:
    return binary(1, a, b, is_reflected(NB_SUBTRACT, address(slot_subtract), a))


def slot_multiply(a: int, b: int) -> int:
    return binary(2, a, b, is_reflected(NB_MULTIPLY, address(slot_multiply), a))


def slot_divide(a: int, b: int) -> int:
    return binary(3, a, b, is_reflected(NB_TRUE_DIVIDE, address(slot_divide), a))


def slot_matmul(a: int, b: int) -> int:
    return binary(8, a, b, is_reflected(NB_MATRIX_MULTIPLY, address(slot_matmul), a))


def slot_power(a: int, b: int, modulus: int) -> int:
    g = i64(shared())
    if modulus != g.none_at_all:
        invoke(g.incref, g.not_implemented)
        return g.not_implemented
    if is_reflected(NB_POWER, address(slot_power), a):
        return binary(6, a, b, 1)
    return tensor_power(a, b)


def slot_negative(self: int) -> int:
    return unary(4, self)


def slot_absolute(self: int) -> int:
    return unary(5, self)


def is_call(method: int) -> int:
    """Whether a ufunc's method is ``__call__``."""
    g = i64(shared())
    if method == g.call_text:
        return 1
    if obj(method).type != g.str_type:
        return 0
    return call(g.compare_ascii, method, g.call_name) & 0xFFFFFFFF == 0


def tensor_array_ufunc(self: int, args: int, count: int, names: int) -> int:
    """``__array_ufunc__(ufunc, method, *inputs)``."""
    g, given, sheet, second = i64(shared()), i64(args), 0, 0
    if names == 0 and (count == 3 or count == 4):
        known = call(g.dict_get, g.ufuncs, given[0])
        if known == 0:
            invoke(g.error_clear)  # no key at all
            if g.matching != 0 and is_call(given[1]):
                out = matched_flat(given[0], args + 16, count - 2)
                if out != UNHANDLED:
                    return out
        elif is_call(given[1]):
            sheet = obj(known).data
            if count == 4:
                second = given[3]
            if count == 2 + i64(sheet).arity:
                out = operate(sheet, given[2], second)
                if out != UNHANDLED:
                    return out
            else:
                sheet = 0
    total = count
    if names != 0:
        total += obj(names).size
    if total > 126:
        total, count, names = 0, 0, 0  # more than NumPy passes: the twin will say what is missing
    everything = stack(128)
    i64(everything)[0] = self
    for q in range(total):
        i64(everything)[q + 1] = given[q]
    if sheet != 0:
        return delegate(sheet, g.array_ufunc, everything, count + 1, given[2], second)
    return call(g.vectorcall, g.array_ufunc, everything, count + 1, names)


def tensor_array_function(self: int, args: int, count: int) -> int:
    """``__array_function__(function, types, args, kwargs)``."""
    g, given = i64(shared()), i64(args)
    if g.matching != 0 and count == 4:
        out = matched_call(given[0], given[2], given[3])
        if out == UNHANDLED and g.matching != 0:
            out = answered(given[0], given[2], given[3])
        if out != UNHANDLED:
            return out
    everything, n = stack(6), min(count, 5)
    i64(everything)[0] = self
    for q in range(n):
        i64(everything)[q + 1] = given[q]
    return call(g.vectorcall, g.array_function, everything, n + 1, 0)
