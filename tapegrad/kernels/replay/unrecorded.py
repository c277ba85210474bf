"""Compiled: an op whose result has no history, as nothing is recorded or no operand requires grad."""

from tapegrad.kernels.dialect import call, i64, invoke, obj, shared, stack
from tapegrad.kernels.replay.committing import evaluated, ufunc_for
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.operands import code_of, has, size_of


def unrecorded(sheet: int, a: int, b: int, mode: int) -> int:
    """A new Tensor, 0 with an error set, or UNHANDLED; `b` is 0 for an op with one operand."""
    g, args, n = i64(shared()), stack(2), 1 + (b != 0)
    if obj(g.open_levels).set_size != 0:
        return UNHANDLED
    i64(args)[0], i64(args)[1] = value_alone(a, mode), 0
    largest = size_alone(i64(args)[0])
    if b != 0 and largest >= 0:
        i64(args)[1] = value_alone(b, mode)
        other = size_alone(i64(args)[1])
        largest = max(largest, other) * (other >= 0) - (other < 0)
    if largest < 0 or largest >= g.pooled:
        return UNHANDLED
    ufunc = ufunc_for(sheet, i64(args)[0])
    if ufunc == 0:
        return UNHANDLED
    x, y = i64(args)[0], i64(args)[1]
    invoke(g.incref, x)  # held: what is called may run anything
    if n == 2:
        invoke(g.incref, y)
    value = evaluated(sheet, ufunc, args, n, largest)
    invoke(g.decref, x)
    if n == 2:
        invoke(g.decref, y)
    if value == 0 or value == UNHANDLED:
        return value
    out = UNHANDLED
    if is_plain_value(value):
        out = without_history(value)
    invoke(g.decref, value)
    return out


def without_history(value: int) -> int:
    """A new Tensor of a value; 0 with an error set."""
    g = i64(shared())
    out = call(g.allocate_object, g.tensor_type, 0)
    if out == 0:
        return 0
    invoke(g.incref, value)
    for _ in range(3):
        invoke(g.incref, g.none_at_all)
    obj(out).v = value
    obj(out).tape = g.none_at_all
    obj(out).at = g.none_at_all
    obj(out).extra = g.none_at_all
    return out


def unrecorded_and_noted(sheet: int, a: int, b: int, mode: int) -> int:
    """As `unrecorded`, in a mode that is told of results and their operands."""
    g, args = i64(shared()), stack(3)
    out = unrecorded(sheet, a, b, g.false)
    if out == 0 or out == UNHANDLED:
        return out
    i64(args)[0], i64(args)[1], i64(args)[2] = out, a, b
    invoke(g.incref, mode)
    result = call(g.vectorcall, obj(mode).note, args, 2 + (b != 0), 0)
    invoke(g.decref, mode)
    if result == 0:
        invoke(g.decref, out)
        return 0
    invoke(g.decref, result)
    return out


def value_alone(x: int, mode: int) -> int:
    """The value of an operand, borrowed; 0 where its history, or what is noted beside it, matters."""
    g, kind = i64(shared()), obj(x).type
    if kind != g.tensor_type:
        return x
    own, state = obj(x).tape, obj(x).extra
    if own == 0 or state == 0 or own == g.stale_tape or own == g.dual_tape:
        return 0
    if mode == g.true and own != g.none_at_all:
        return 0
    if state != g.none_at_all:
        if mode == g.true and has(state, g.requires_grad_text, g.false) == 0:
            return 0
        if has(state, g.volatile_text, g.false) == 0 or has(state, g.inference_text, g.false) == 0:
            return 0
    return obj(x).v


def size_alone(value: int) -> int:
    """The bytes of a value, -1 for none, and for an array that NumPy takes for a number."""
    if value == 0:
        return -1
    if obj(value).type == i64(shared()).ndarray_type:
        if obj(value).ndim == 0:
            return -1
    return size_of(value)


def is_plain_value(value: int) -> int:
    """Whether a result is a number or an array, of a dtype that Tensors have, in memory of its own."""
    g = i64(shared())
    if code_of(value) == 0:
        return 0
    if obj(value).type != g.ndarray_type:
        return 1
    return obj(value).ndim != 0
