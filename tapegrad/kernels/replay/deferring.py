"""Compiled: products of a recorded sweep whose values are computed when something reads them, if it does.

The derivative of a product reads its operands, not its value. So where gradients are only differentiated
further, the products that end in them, with the sums, signs and moves on the way, need not be computed.
Each such record has a *deferred* value: an array of the shape and dtype, of one element in memory, nan, whose
base is a list of a function, its attributes and the values that it takes. What reads it (an op whose
derivative does, a rule in Python, an older tape) lets `autograd.deferred` compute it; the record keeps it.
"""

from tapegrad.kernels.dialect import call, i64, invoke, obj, shared, stack
from tapegrad.kernels.replay.admitting import array_at, same_kind
from tapegrad.kernels.replay.any_op import recorded_result
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.operands import code_of, drop_position, is_deferred, size_of


def deferred(sheet: int, function: int, attrs: int, like: int, given: int, reads: int) -> int:
    """A new reference to the Tensor of what an op makes of operands, whose value is not computed.

    `like` is an array of its shape and dtype, or 0; `given` has the operands; `reads` is a mask of those that
    its derivative reads, and 8 for its result. UNHANDLED where the value is to be computed, as where a
    deferred operand lies on an older tape; 0 with an error set.
    """
    g, items, n, waiting = i64(shared()), stack(TAKEN_AT_MOST), 0, 0
    for q in range(TAKEN_AT_MOST):
        x = i64(given)[q]
        if x != 0:
            waiting = waiting | is_deferred(x) << n
            i64(items)[n] = x
            n += 1
    if like == 0 and attrs == 0 and waiting and i64(sheet).pointwise:
        like = alike(items, n)
    if like == 0 or reads & (8 | waiting):
        return UNHANDLED
    if waiting == 0:
        if reads == 0 or i64(sheet).pointwise or size_of(like) <= g.smallest:
            return UNHANDLED
    if attrs == 0:
        attrs = g.none_at_all
    value = array_without_value(like, function, attrs, items, n)
    if value == 0:
        return 0
    return drop_position(value, recorded_result(i64(sheet).op, value, items, n, attrs, waiting == 0))


def alike(items: int, n: int) -> int:
    """The deferred value, of real numbers, whose shape and dtype all operands have that are arrays; or 0."""
    g, like = i64(shared()), 0
    for q in range(n):
        if is_deferred(i64(items)[q]):
            like = obj(i64(items)[q]).v
    code = code_of(like) & 0xFF
    if code >= COMPLEX:
        return 0
    for q in range(n):
        x = i64(items)[q]
        if obj(x).type == g.tensor_type:
            x = obj(x).v
        if obj(x).type == g.ndarray_type:
            if same_kind(x, like) == 0:
                return 0
    return like


def array_without_value(like: int, function: int, attrs: int, items: int, n: int) -> int:
    """A new deferred value of this shape and dtype; 0 with an error set."""
    g, steps, what, failed = i64(shared()), stack(MAXDIM), call(i64(shared()).new_list, 0), 0
    if what == 0:
        return 0
    for q in range(n + 2):
        x = function
        if q == 1:
            x = attrs
        elif q > 1:
            x = i64(items)[q - 2]
            if obj(x).type == g.tensor_type:
                x = obj(x).v
        if failed == 0:
            failed = call(g.append, what, x) & 0xFFFFFFFF
    for d in range(obj(like).ndim):
        i64(steps)[d] = 0
    out = 0
    if failed == 0:
        out = array_at(g.unknown, what, like, steps, ALIGNED)
    invoke(g.decref, what)
    return out


def compute_deferred(x: int) -> int:
    """Let an operand have its value, if that was deferred; 0 with an error set."""
    g, args = i64(shared()), stack(1)
    if is_deferred(x) == 0:
        return 1
    i64(args)[0] = x
    done = call(g.vectorcall, g.compute_deferred, args, 1, 0)
    if done == 0:
        return 0
    invoke(g.decref, done)
    return 1
