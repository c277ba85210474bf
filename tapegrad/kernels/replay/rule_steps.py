"""Compiled: the steps of a rule's program, applied to Tensors in a sweep that is recorded.

A program (`tapegrad.ops.programs`) is words: each step names an op or ufunc, and as operands values of the
record, its cotangent, numbers, or what steps before have given. What has no history is computed, all else
recorded, or deferred (`deferring`).
"""

from tapegrad.kernels.dialect import call, i64, invoke, obj, shared, stack
from tapegrad.kernels.replay.any_op import recorded_result
from tapegrad.kernels.replay.deferring import compute_deferred, deferred
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.operands import code_of, drop_position, entry_of, has, room, size_of
from tapegrad.kernels.replay.reading import following, operands
from tapegrad.kernels.replay.recording import operate
from tapegrad.kernels.replay.suspending import constant_tensor, kept_value, value_of_record


def apply_op(sheet: int, a: int, b: int) -> int:
    """A new reference to the Tensor that an op makes of its operands, `b` 0 for one; 0 with an error set."""
    g, args = i64(shared()), stack(2)
    out = operate(sheet, a, b)
    if out == UNHANDLED:
        i64(args)[0], i64(args)[1] = a, b
        out = call(g.vectorcall, i64(sheet).op, args, 1 + (b != 0), 0)
    return out


def value_of_step(function: int, attrs: int, given: int) -> int:
    """A new reference to what a function makes of the values that a step takes, and of attributes, or 0.

    0 with an error set.
    """
    g, n, args = i64(shared()), 0, stack(TAKEN_AT_MOST)
    for q in range(TAKEN_AT_MOST):
        x = i64(given)[q]
        if x != 0:
            if obj(x).type == g.tensor_type:
                x = obj(x).v
            i64(args)[n] = x
            n += 1
    value = call(g.call_with, function, args, n, attrs)
    if value != 0:
        if obj(value).type == g.ndarray_type and obj(value).ndim == 0:
            return drop_position(value, call(g.get_item, value, g.empty))
    return value


def apply_to_values(like: int, function: int, attrs: int, given: int) -> int:
    """A new constant that a function makes of the values that a step takes; 0 with an error set.

    In the precision of a value that is `like` it, unless it is boolean; as it is if that is 0.
    """
    value = value_of_step(function, attrs, given)
    if value == 0:
        return 0
    code = code_of(value) & 0xFF
    if like == 0 or code == BOOLEAN or (code != 0 and code == code_of(like) & 0xFF):
        return constant_tensor(value)
    return cast_constant(value, like)


def apply_with_attributes(sheet: int, function: int, attrs: int, given: int) -> int:
    """A new reference to what an op makes of what a step takes, recorded; 0 with an error set.

    Attributes are a dict or 0.
    """
    g, n = i64(shared()), 0
    for q in range(TAKEN_AT_MOST):
        n += i64(given)[q] != 0
    value = value_of_step(function, attrs, given)
    if attrs == 0:
        attrs = g.none_at_all
    if value == 0:
        return 0
    return drop_position(value, recorded_result(i64(sheet).op, value, given, n, attrs, 1))


def cast_constant(value: int, like: int) -> int:
    """As `constant_tensor`, in the precision of a value that is `like` it."""
    g, args = i64(shared()), stack(2)
    i64(args)[0], i64(args)[1] = value, like
    x = call(g.vectorcall, g.constant_like, args, 2, 0)
    return drop_position(value, x)


def placed(tape: int, log: int, refs: int, what: int) -> int:
    """What a step takes, borrowed: a constant that the sweep has made as one on the tape that is recorded on.

    It is another Tensor, as it may be a result, which has no history. 0 with an error set.
    """
    g, r, x = i64(shared()), i64(refs), i64(refs)[what]
    if r[PROGRAM_WORDS + what] != 0:
        return r[PROGRAM_WORDS + what]
    if obj(x).tape != g.none_at_all or obj(x).at != g.none_at_all or obj(x).extra != g.none_at_all:
        return x
    if obj(tape).log != log or room(tape) == 0 or size_of(obj(x).v) > g.smallest:
        return x  # what is large is weighed
    value = obj(x).v
    invoke(g.incref, value)
    alias = constant_tensor(value)
    if alias == 0:
        return 0
    r[PROGRAM_WORDS + what] = alias
    at = entry_of(log, g.zero, g.zero, g.zero, value)
    if at == 0:
        return 0
    invoke(g.incref, tape)
    invoke(g.decref, g.none_at_all)
    invoke(g.decref, g.none_at_all)
    obj(alias).tape, obj(alias).at = tape, at
    return alias


def is_passive_value(tape: int, log: int, x: int) -> int:
    """Whether what a step takes is a number, or a Tensor that is a constant on the tape or has no history."""
    g = i64(shared())
    if obj(x).type != g.tensor_type:
        return 1
    if obj(x).tape == g.none_at_all:
        if obj(x).extra == g.none_at_all:
            return 1
        return has(obj(x).extra, g.requires_grad_text, g.false)
    if obj(x).tape != tape or obj(tape).log != log:
        return 0
    return i64(obj(log).items)[call(g.long_as, obj(x).at) - ENTRIES + OPCODE_ENTRY] == g.zero


def begin_program(refs: int, program: int, ct: int) -> int:
    """Let nothing be known of what a program takes but a cotangent; how many of the words `refs` it has."""
    n = STEPS + i64(program)[STEP_COUNT]
    for i in range(n):
        i64(refs)[i], i64(refs)[PROGRAM_WORDS + i] = 0, 0
    i64(refs)[CT] = ct
    invoke(i64(shared()).incref, ct)
    return n


def end_program(refs: int, n: int, out: int) -> int:
    """Let go of what a program took and made; `out` is passed on."""
    for i in range(n):
        drop_position(i64(refs)[i], 0)
        drop_position(i64(refs)[PROGRAM_WORDS + i], 0)
    return out


def run_steps(state: int, tape: int, log: int, k: int, refs: int, program: int, like: int) -> int:
    """Follow the steps of a program; 0 with an error set."""
    begin = program + 8 * (GIVEN + i64(program)[GIVEN_COUNT])
    at, square = begin, is_square(state, k)
    for i in range(i64(program)[STEP_COUNT]):
        made = 0
        if square:
            made = made_before(refs, begin, i)
        if made == 0:
            made = run_step(state, tape, log, k, refs, at, like)
        if made == 0:
            return 0
        i64(refs)[STEPS + i] = made
        at += 8 * STEP_WORDS
    return 1


def is_square(state: int, k: int) -> int:
    """Whether record k has two operands, which are one record, as in x * x."""
    w = i64(i64(state).word)[k]
    return i64(i64(state).operations)[ROW * (w & 0xFFFF) + FORM] == TWO and (w >> 16) & 0xFFFF == w >> 32


def made_before(refs: int, steps: int, i: int) -> int:
    """A new reference to what a step before step i gives, where that does the same to one operand; or 0."""
    r, p = i64(refs), i64(steps + 8 * STEP_WORDS * i)
    for e in range(i):
        q, same = i64(steps + 8 * STEP_WORDS * e), 1
        for w in range(STEP_WORDS):
            if w < TAKEN_BY_STEP or p[w] == NOTHING_THERE or q[w] == NOTHING_THERE or p[w] >= PROGRAM_WORDS:
                same = same & (p[w] == q[w])
            elif p[w] >= STEPS and q[w] >= STEPS and q[w] < PROGRAM_WORDS:
                same = same & (r[p[w]] == r[q[w]])
            elif p[w] != q[w]:
                same = same & (min(p[w], q[w]) == FIRST) & (max(p[w], q[w]) == FIRST + 1)
        if same:
            invoke(i64(shared()).incref, r[STEPS + e])
            return r[STEPS + e]
    return 0


def run_step(state: int, tape: int, log: int, k: int, refs: int, step: int, like: int) -> int:
    """A new reference to what a step gives; 0 with an error set."""
    g, p, given, failed, passive = i64(shared()), i64(step), stack(TAKEN_AT_MOST), 0, 1
    for q in range(TAKEN_AT_MOST):
        i64(given)[q] = 0
        if p[TAKEN_BY_STEP + q] != NOTHING_THERE and failed == 0:
            i64(given)[q] = step_operand(state, tape, log, k, refs, p[TAKEN_BY_STEP + q], like)
            failed = i64(given)[q] == 0
            if failed == 0:
                passive = passive & is_passive_value(tape, log, i64(given)[q])
    if failed:
        return 0
    attrs = p[STEP_ATTRS] * (p[STEP_ATTRS] != g.none_at_all)
    if p[STEP_HANDED] != 0:
        attrs = handed_on(tape, k, attrs, p[STEP_HANDED])
        if p[STEP_TWINS] and attrs != 0:
            attrs = twins_of(attrs)
        if attrs == 0:
            return 0
    if p[STEP_SHEET] == 0 or passive or i64(state).batched:
        made = 0
        if compute_all(given):
            made = apply_to_values(like, p[STEP_FUNCTION], attrs, given)
    else:
        made = recorded_step(state, tape, log, refs, step, attrs, given)
    if p[STEP_HANDED] != 0:
        invoke(g.decref, attrs)
    return made


def handed_on(tape: int, k: int, attrs: int, names: int) -> int:
    """A new dict of attributes and of those of record k that have these names; 0 with an error set."""
    g, slot, new = i64(shared()), call(i64(shared()).long_from, k), call(i64(shared()).copy_dict, attrs)
    failed = 1 * (slot == 0 or new == 0)
    if failed == 0:
        given = call(g.dict_get, obj(tape).attrs, slot)
        for q in range(obj(names).size):
            name = i64(names + TUPLE_ITEMS_AT)[q]
            if failed == 0:
                failed = call(g.dict_set, new, name, call(g.dict_get, given, name)) & 0xFFFFFFFF
    drop_position(slot, 0)
    return drop_position(new * failed, new * (failed == 0))


def twins_of(attrs: int) -> int:
    """A new reference to attributes, of which the reference is taken, with twins of factors among them.

    0 with an error set.
    """
    g, args = i64(shared()), stack(1)
    i64(args)[0] = attrs
    return drop_position(attrs, call(g.vectorcall, g.twins, args, 1, 0))


def compute_all(given: int) -> int:
    """Let what a step takes have values that were deferred; 0 with an error set."""
    done = 1
    for q in range(TAKEN_AT_MOST):
        if i64(given)[q] != 0 and done:
            done = compute_deferred(i64(given)[q])
    return done


def deferred_step(tape: int, log: int, step: int, attrs: int, given: int) -> int:
    """As `recorded_step`, without computing the value; UNHANDLED where that is to be."""
    p, n, reads = i64(step), 0, 0
    for q in range(TAKEN_AT_MOST):
        x = i64(given)[q]
        if x != 0:
            if is_passive_value(tape, log, x) == 0:
                reads = reads | i64(p[STEP_SHEET])[USES + min(n, 2)]
            n += 1
    return deferred(p[STEP_SHEET], p[STEP_FUNCTION], attrs, p[STEP_LIKE], given, reads)


def recorded_step(state: int, tape: int, log: int, refs: int, step: int, attrs: int, given: int) -> int:
    """A new reference to what a step's op makes of what it takes, recorded; 0 with an error set."""
    p, made = i64(step), UNHANDLED
    for q in range(TAKEN_AT_MOST):
        what = p[TAKEN_BY_STEP + q]
        if what == CT or (what >= STEPS and what < PROGRAM_WORDS):
            i64(given)[q] = placed(tape, log, refs, what)
            if i64(given)[q] == 0:
                return 0
    if i64(state).defers:
        made = deferred_step(tape, log, step, attrs, given)
        if made == UNHANDLED:
            if compute_all(given) == 0:
                return 0
    if made != UNHANDLED:
        return made
    if p[STEP_ATTRS] == 0:
        return apply_op(p[STEP_SHEET], i64(given)[0], i64(given)[1])
    return apply_with_attributes(p[STEP_SHEET], p[STEP_FUNCTION], attrs, given)


def step_operand(state: int, tape: int, log: int, k: int, refs: int, what: int, like: int) -> int:
    """What a step takes, borrowed; 0 with an error set."""
    r = i64(refs)
    if what >= PROGRAM_WORDS:
        return what
    if r[what] == 0:
        if what == RESULT:
            r[what] = value_of_record(state, tape, log, k, 1)
        else:
            r[what] = program_operand(state, tape, log, k, what - FIRST, like)
    return r[what]


def program_operand(state: int, tape: int, log: int, k: int, slot: int, like: int) -> int:
    """A new reference to an operand of record k, a number of another dtype as is `like`, if not 0."""
    g, s, w = i64(shared()), i64(state), i64(i64(state).word)[k]
    form = i64(s.operations)[ROW * (w & 0xFFFF) + FORM]
    at = operands(w, form)
    for _ in range(slot):
        at = following(s.word, at, form)
    j = (at & 0xFFFF) - 1
    x = value_of_record(state, tape, log, j, 1)
    given = i64(s.meta)[j] & 0xFF
    if x == 0 or like == 0 or given == i64(s.meta)[k] & 0xFF or given == BOOLEAN:
        return x
    value = kept_value(state, log, j)
    invoke(g.decref, x)
    invoke(g.incref, value)
    return cast_constant(value, kept_value(state, log, k))
