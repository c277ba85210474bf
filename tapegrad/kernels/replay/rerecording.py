"""Compiled: a sweep that is recorded itself: cotangents are Tensors, and rules the ops they apply.

Records come on the tape that is swept, so that what is differentiated again lies there alone. The rule of an
elementwise op of real numbers is a program (`tapegrad.ops.programs`); all others run in Python, on Tensors.
The words of a program: at the mask of the operands that want a part, where it begins; there the number of
steps, what two operands get, and for each step a sheet and what it takes: CT, RESULT, FIRST and a slot, STEPS
and the number of a step, the address of a number, or NOTHING_THERE.
"""

from tapegrad.kernels.dialect import call, i64, invoke, obj, shared, stack, u8
from tapegrad.kernels.replay.gradients import (
    hold,
    hold_roots,
    none_for,
    parts_by_rule,
    planned,
    release_held,
    value_of_record,
    workspace,
)
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.operands import drop_position, has, in_force, same_words
from tapegrad.kernels.replay.reading import following, operands
from tapegrad.kernels.replay.recording import operate


def rerecord(self: int, args: int, count: int) -> int:
    """``(roots, cotangents, inputs)``: a tuple of Tensors with a history; None: left to Python."""
    g, given, held, out = i64(shared()), i64(args), stack(HELD_WORDS), UNHANDLED
    m, n = hold_roots(given[0], given[1], held), 0
    if m > 0:
        n = hold(given[2], held)
    if n > 0:
        mode = in_force()
        if mode == 0:
            out = 0
        elif mode == g.true:
            out = rerecorded(held, m, n)
    release_held(held, m, n)
    return none_for(out)


def rerecorded(held: int, m: int, n: int) -> int:
    """The gradients of n inputs; UNHANDLED with nothing done; 0 with an error set."""
    g, state, out = i64(shared()), workspace(i64(held)[ROOT]), UNHANDLED
    if state == 0 or state == UNHANDLED:
        return state
    i64(state).seed_count = m
    if to_record(state, held, n):
        tape = obj(i64(held)[ROOT]).tape
        log = obj(tape).log
        invoke(g.incref, tape)
        invoke(g.incref, log)
        failed = walk_back(state, tape, log, held, m) == 0
        out = take_cotangents(state, n, failed)
        if out != 0 and obj(tape).log == log and obj(log).size > 4 * RECORDED_ON:
            out = leave_tape(tape, out)
        invoke(g.decref, log)
        invoke(g.decref, tape)
    i64(state).next_state = g.idle_state
    g.idle_state = state
    return out


def walk_back(state: int, tape: int, log: int, held: int, m: int) -> int:
    """Give m roots their cotangents, and follow the rules of all records planned; 0 with an error set.

    The log is held: what Python does in between may seal the tape.
    """
    g, s, out = i64(shared()), i64(state), 1
    cotangents, flags, whole = i64(s.cotangents), u8(s.flags), NEED | MARK | ACTIVE
    for q in range(m):
        ct = i64(held)[COTANGENT + q]
        if out != 0:
            invoke(g.incref, ct)
            out = add_cotangent(state, log, i64(s.seeds)[q], ct)
    for k in range(s.records - 1, s.oldest - 1, -1):
        if out != 0 and cotangents[k] != 0 and flags[k] & whole == whole:
            ct = cotangents[k]
            cotangents[k] = 0
            out = record_parts(state, tape, log, k, ct)
            invoke(g.decref, ct)
    return out


def take_cotangents(state: int, n: int, failed: int) -> int:
    """A new tuple of what came to n inputs, None where nothing did, and let go of the rest; 0 if `failed`."""
    g, s, out = i64(shared()), i64(state), 0
    cotangents = i64(s.cotangents)
    if failed == 0:
        out = call(g.new_tuple, n)
    for q in range(n):
        x = cotangents[i64(s.sinks)[q]]
        if x == 0:
            x = g.none_at_all
        if out != 0:
            invoke(g.incref, x)
            i64(out + TUPLE_ITEMS_AT)[q] = x
    for k in range(s.records):
        if cotangents[k] != 0:
            invoke(g.decref, cotangents[k])
    return out


def leave_tape(tape: int, out: int) -> int:
    """End recording on a tape that has grown; `out` is passed on, 0 with an error set."""
    g, args = i64(shared()), stack(1)
    i64(args)[0] = tape
    left = call(g.vectorcall, g.leave, args, 1, 0)
    if left == 0:
        invoke(g.decref, out)
        return 0
    return drop_position(left, out)


def to_record(state: int, held: int, n: int) -> int:
    """Plan a sweep to be recorded; whether it can be."""
    s, status = i64(state), planned(state, held, n, RETAIN | RERECORDED)
    if status != DONE and status != UNDESCRIBED:
        return 0
    if obj(obj(obj(i64(held)[ROOT]).tape).calls).size != 0:
        return 0
    for q in range(n):
        if u8(s.flags)[i64(s.sinks)[q]] & ACTIVE:
            return 0
    return 1


def add_cotangent(state: int, log: int, j: int, part: int) -> int:
    """Add a Tensor, of which the reference is taken, to the cotangent of record j; 0 with an error set."""
    g, s, args = i64(shared()), i64(state), stack(2)
    value = i64(obj(log).items)[4 * j + 3]
    if is_like(part, value) == 0:
        i64(args)[0], i64(args)[1] = part, value
        fitted = call(g.vectorcall, g.fit_cotangent, args, 2, 0)
        invoke(g.decref, part)
        if fitted == 0:
            return 0
        part = fitted
    before = i64(s.cotangents)[j]
    if before != 0:
        total = apply_op(g.sheets, before, part)
        invoke(g.decref, before)
        invoke(g.decref, part)
        part = total
    i64(s.cotangents)[j] = part
    return part != 0


def is_like(x: int, value: int) -> int:
    """Whether a Tensor's value has the shape and dtype of another value."""
    g, v = i64(shared()), obj(x).v
    if obj(v).type != obj(value).type:
        return 0
    if obj(v).type != g.ndarray_type:
        return 1
    if obj(v).descr != obj(value).descr:
        return 0
    return same_words(v, value, DIMS_AT)


def apply_op(sheet: int, a: int, b: int) -> int:
    """A new reference to the Tensor that an op makes of its operands, `b` 0 for one; 0 with an error set."""
    g, args = i64(shared()), stack(2)
    out = operate(sheet, a, b)
    if out == UNHANDLED:
        i64(args)[0], i64(args)[1] = a, b
        out = call(g.vectorcall, i64(sheet).op, args, 1 + (b != 0), 0)
    return out


def apply_step(tape: int, log: int, sheet: int, a: int, b: int) -> int:
    """As `apply_op`, not recorded where all operands are constants."""
    g, args = i64(shared()), stack(3)
    if is_passive_value(tape, log, a) == 0 or (b != 0 and is_passive_value(tape, log, b) == 0):
        return apply_op(sheet, a, b)
    i64(args)[0], i64(args)[1], i64(args)[2] = i64(sheet).op, a, b
    return call(g.vectorcall, g.apply_to_constants, args, 2 + (b != 0), 0)


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
    return i64(obj(log).items)[call(g.long_as, obj(x).at) - 4] == g.zero


def record_parts(state: int, tape: int, log: int, k: int, ct: int) -> int:
    """Give the operands of record k their parts of its cotangent; 0 with an error set."""
    g, s = i64(shared()), i64(state)
    w, flags, mask, q, real = i64(s.word)[k], u8(s.flags), 0, 0, i64(s.meta)[k] & 0xFF
    form = i64(s.operations)[ROW * (w & 0xFFFF) + FORM]
    at = operands(w, form)
    while at != 0:
        j = (at & 0xFFFF) - 1
        if flags[j] & NEED:
            mask = mask | 1 << min(q, 2)
        if i64(s.meta)[j] & 0xFF != i64(s.meta)[k] & 0xFF:
            real = COMPLEX
        q += 1
        at = following(s.word, at, form)
    program = program_for(w & 0xFFFF)
    if program == 0:
        return 0
    if program != g.false and real < COMPLEX and real != 0:
        words = obj(program).data
        if i64(words)[mask] != 0:
            invoke(g.incref, program)  # a rule declared meanwhile would replace it
            done = by_program(state, tape, log, k, ct, words + 8 * i64(words)[mask])
            invoke(g.decref, program)
            return done
    return by_rule(state, tape, log, k, ct)


def program_for(opcode: int) -> int:
    """The words of the program of an op's rule, or False, borrowed; 0 with an error set."""
    g, args = i64(shared()), stack(1)
    program = i64(obj(g.programs).items)[opcode]
    if program != g.none_at_all:
        return program
    i64(args)[0] = call(g.long_from, opcode)
    made = call(g.vectorcall, g.make_program, args, 1, 0)
    invoke(g.decref, i64(args)[0])
    if made == 0:
        return 0
    invoke(g.decref, made)
    return i64(obj(g.programs).items)[opcode]


def by_program(state: int, tape: int, log: int, k: int, ct: int, program: int) -> int:
    """As `record_parts`, by the steps of a program."""
    g, s, p, refs, n = i64(shared()), i64(state), i64(program), stack(PROGRAM_WORDS), i64(program)[0]
    r, failed, q = i64(refs), 0, 0
    for i in range(STEPS + n):
        r[i] = 0
    r[CT] = ct
    invoke(g.incref, ct)
    for i in range(n):
        step = 3 + 3 * i
        if failed == 0:
            a, b = step_operand(state, tape, log, k, refs, p[step + 1]), 0
            failed = a == 0
            if p[step + 2] != NOTHING_THERE and failed == 0:
                b = step_operand(state, tape, log, k, refs, p[step + 2])
                failed = b == 0
            if failed == 0:
                r[STEPS + i] = apply_step(tape, log, p[step], a, b)
                failed = r[STEPS + i] == 0
    w = i64(s.word)[k]
    at = operands(w, i64(s.operations)[ROW * (w & 0xFFFF) + FORM])
    while at != 0 and failed == 0:
        j = (at & 0xFFFF) - 1
        if u8(s.flags)[j] & NEED and p[1 + q] != NOTHING_THERE:
            part = step_operand(state, tape, log, k, refs, p[1 + q])
            failed = part == 0
            if failed == 0:
                invoke(g.incref, part)
                failed = add_cotangent(state, log, j, part) == 0
        q += 1
        at = at >> 32
    for i in range(STEPS + n):
        if r[i] != 0:
            invoke(g.decref, r[i])
    return failed == 0


def step_operand(state: int, tape: int, log: int, k: int, refs: int, what: int) -> int:
    """What a step takes, borrowed; 0 with an error set."""
    s, r = i64(state), i64(refs)
    if what >= PROGRAM_WORDS:
        return what
    if r[what] == 0:
        j = k
        if what != RESULT:
            w = i64(s.word)[k]
            j = ((w >> 16) & 0xFFFF) - 1
            if what > FIRST:
                j = (w >> 32) - 1
        r[what] = value_of_record(tape, log, j, 1)
    return r[what]


def by_rule(state: int, tape: int, log: int, k: int, ct: int) -> int:
    """As `record_parts`, by the rule in Python."""
    g, s, n, failed = i64(shared()), i64(state), 0, 0
    w = i64(s.word)[k]
    form = i64(s.operations)[ROW * (w & 0xFFFF) + FORM]
    found = parts_by_rule(state, tape, log, k, ct, 1)
    if found == 0:
        return 0
    at = operands(w, form)
    while at != 0 and failed == 0:
        j = (at & 0xFFFF) - 1
        if u8(s.flags)[j] & NEED:
            part = i64(obj(found).items)[n]
            n += 1
            if part != g.none_at_all:
                invoke(g.incref, part)
                failed = add_cotangent(state, log, j, part) == 0
        at = following(s.word, at, form)
    return drop_position(found, failed == 0)
