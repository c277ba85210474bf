"""Compiled: what the operands of a record get of its cotangent, by ops on Tensors.

The rule of an elementwise op of real numbers is a program (`tapegrad.ops.programs`), any other has one for
each shape and dtype of operands (`tapegrad.autograd.traced_rules`); where values decide it runs in Python, on
Tensors. At the mask of the operands that want a part an op's programs say where one begins; `layout` has its
words.
"""

from tapegrad.kernels.dialect import call, f32, f64, i64, invoke, obj, shared, stack, u8
from tapegrad.kernels.replay.deferring import compute_deferred
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.operands import code_of, drop_position, is_dense, size_of
from tapegrad.kernels.replay.reading import following, operands
from tapegrad.kernels.replay.recorded_cotangents import add_cotangent, keep_program, kept_program, note_layout
from tapegrad.kernels.replay.rule_steps import begin_program, end_program, run_steps, step_operand
from tapegrad.kernels.replay.suspending import kept_value, parts_by_rule


def record_parts(state: int, tape: int, log: int, k: int, ct: int) -> int:
    """Give the operands of record k their parts of its cotangent; 0 with an error set."""
    g, s = i64(shared()), i64(state)
    program = program_for(s.word, k)
    if program == 0:
        return 0
    if program != g.false:
        begin = i64(obj(program).data)[mask_of(state, k, NEED)] * fits_program(state, log, k)
        if begin != 0:
            words = obj(program).data + 8 * begin
            if i64(words)[CONSTANTS] & 0xFF & ~mask_of(state, k, 0) == 0 and is_for(state, log, k, words):
                invoke(g.incref, program)  # a rule declared meanwhile would replace it
                like = kept_value(state, log, k)
                done = by_program(state, tape, log, k, ct, words, like)
                invoke(g.decref, program)
                return done
    return by_traced_rule(state, tape, log, k, ct)


def is_for(state: int, log: int, k: int, program: int) -> int:
    """Whether a program is for the result of record k: not where a 0 there is a kink (see `kink_value`)."""
    if i64(program)[CONSTANTS] & NONZERO == 0:
        return 1
    if has_no_zero(kept_value(state, log, k)):
        return 1
    w = i64(i64(state).word)[k]
    row = i64(i64(state).operations + 8 * ROW * (w & 0xFFFF))
    if row[READS] & 8:
        return 0
    return has_no_zero(kept_value(state, log, (operands(w, row[FORM]) & 0xFFFF) - 1))


def has_no_zero(value: int) -> int:
    """Whether a value is of dense real numbers of which none is 0."""
    g, code, n, at = i64(shared()), code_of(value) & 0xFF, 1, value + SCALAR_AT
    if code == 0 or code >= COMPLEX:
        return 0
    if obj(value).type == g.ndarray_type:
        if is_dense(value) == 0:
            return 0
        n, at = size_of(value) >> 2 + (code & 1), obj(value).data
    if code & 1:
        a = f64(at)
        for i in range(n):
            if a[i] == 0.0:
                return 0
    else:
        b = f32(at)
        for i in range(n):
            if b[i] == 0.0:
                return 0
    return 1


def mask_of(state: int, k: int, flag: int) -> int:
    """Which operands of record k, by a bit each, have a flag; without one, which are constants."""
    s, w, mask, bit = i64(state), i64(i64(state).word)[k], 0, 1
    form = i64(s.operations)[ROW * (w & 0xFFFF) + FORM]
    at = operands(w, form)
    while at != 0:
        j = (at & 0xFFFF) - 1
        if u8(s.flags)[j] & flag or (flag == 0 and i64(s.word)[j] & 0xFFFF == CONST):
            mask = mask | bit
        bit = 2 * bit
        at = following(s.word, at, form)
    return mask


def fits_program(state: int, log: int, k: int) -> int:
    """Whether record k is of real numbers of one dtype, but for numbers that are constants, and masks."""
    s, w, code, fits = i64(state), i64(i64(state).word)[k], i64(i64(state).meta)[k] & 0xFF, 1
    form = i64(s.operations)[ROW * (w & 0xFFFF) + FORM]
    at = operands(w, form)
    while at != 0:
        j = (at & 0xFFFF) - 1
        given = i64(s.meta)[j] & 0xFF
        if given != code and given != BOOLEAN:
            fits = fits & is_constant_number(state, log, j)
        at = following(s.word, at, form)
    return fits & (code < COMPLEX) & (code != 0)


def is_constant_number(state: int, log: int, j: int) -> int:
    """Whether record j is a constant, a real number of another dtype."""
    g, s = i64(shared()), i64(state)
    if i64(s.word)[j] & 0xFFFF != CONST or i64(s.meta)[j] & 0xFF >= COMPLEX:
        return 0
    return obj(kept_value(state, log, j)).type != g.ndarray_type


def program_for(word: int, k: int) -> int:
    """The programs of the rule of record k's op: words, a dict or False, borrowed; 0 with an error set."""
    g, args, opcode = i64(shared()), stack(1), i64(word)[k] & 0xFFFF
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


def by_traced_rule(state: int, tape: int, log: int, k: int, ct: int) -> int:
    """As `record_parts`, by a program for operands of these shapes, or by the rule where there is none."""
    g, buffer, program = i64(shared()), stack(KEY_WORDS), 0
    opcode = i64(i64(state).word)[k] & 0xFFFF
    if i64(obj(g.traced).items)[opcode] == g.false:
        return by_rule(state, tape, log, k, ct)
    n = note_record(state, tape, log, k, ct, buffer)
    if n != 0:
        program = kept_program(i64(obj(g.traced).items)[opcode], buffer, n)
        if program != 0:
            if is_for(state, log, k, obj(program).data) == 0:
                invoke(g.decref, program)
                return by_rule(state, tape, log, k, ct)
    if program == 0:
        if compute_deferred(ct):
            program = parts_by_rule(state, tape, log, k, ct, 2, g.trace_rule)
        if program == 0:
            return 0
        if program != g.none_at_all and n != 0:
            if i64(obj(program).data)[CONSTANTS] & BRANCHED == 0:
                program = keep_program(g.traced, opcode, buffer, n, program)
    if program == 0:
        return 0
    if program == g.none_at_all:
        invoke(g.decref, program)
        return by_rule(state, tape, log, k, ct)
    return drop_position(program, by_program(state, tape, log, k, ct, obj(program).data, 0))


def note_record(state: int, tape: int, log: int, k: int, ct: int, buffer: int) -> int:
    """Note what a program for record k is kept by: how many words; 0 where those cannot say it.

    These are the operands that want a part, those that are constants, dtypes and shapes, and attributes that
    its rule looks at.
    """
    g, s, words = i64(shared()), i64(state), i64(buffer)
    w, slot, bit, opaque = i64(s.word)[k], call(g.long_from, k), 1, 0
    words[0], words[1] = 0, mask_of(state, k, 0)
    form, n = i64(s.operations)[ROW * (w & 0xFFFF) + FORM], note_layout(buffer, 2, kept_value(state, log, k))
    if s.batched:
        n = note_layout(buffer, n, obj(ct).v)
    at = operands(w, form)
    while at != 0 and n != 0:
        j = (at & 0xFFFF) - 1
        words[0] = words[0] | bit * (u8(s.flags)[j] & NEED)
        n = note_layout(buffer, n, kept_value(state, log, j))
        bit = 2 * bit
        at = following(s.word, at, form)
    if n != 0 and slot != 0:
        attrs = call(g.dict_get, obj(tape).attrs, slot)
        if attrs != 0 and s.batched == 0:
            opaque = call(g.get_attribute, i64(obj(g.ops).items)[w & 0xFFFF], g.opaque_text)
        if attrs != 0:
            n = note_attributes(buffer, n, attrs, opaque)
    drop_position(opaque, 0)
    if slot == 0:
        invoke(g.error_clear)
        return 0
    return drop_position(slot, n)


def note_attributes(buffer: int, n: int, attrs: int, opaque: int) -> int:
    """Note attributes behind n words; of those whose names are in a tuple, if not 0, whether they are None.

    How many words there are then; 0: no room, or an attribute of another kind than those in `note_object`.
    """
    g, place, pair = i64(shared()), stack(1), stack(2)
    i64(place)[0] = 0
    while n != 0 and call(g.dict_next, attrs, place, pair, pair + 8) & 0xFFFFFFFF != 0:
        name, passed_on = i64(pair)[0], 0
        if opaque != 0:
            for q in range(obj(opaque).size):
                passed_on = passed_on | (i64(opaque + TUPLE_ITEMS_AT)[q] == name)
        if n + 2 >= KEY_WORDS:
            return 0
        i64(buffer)[n] = name
        if passed_on:
            i64(buffer)[n + 1] = i64(pair)[1] == g.none_at_all
            n += 2
        else:
            n = note_object(buffer, n + 1, i64(pair)[1])
    return n


def note_object(buffer: int, n: int, value: int) -> int:
    """As `note_attributes`, what `note_word` does, or a tuple or a list of such."""
    g, kind, items = i64(shared()), obj(value).type, value + TUPLE_ITEMS_AT
    if kind == g.list_type:
        items = obj(value).items
    elif kind != g.tuple_type:
        return note_word(buffer, n, value)
    if n + 2 > KEY_WORDS:
        return 0
    i64(buffer)[n], i64(buffer)[n + 1] = A_TUPLE, obj(value).size
    n += 2
    for q in range(obj(value).size):
        if n != 0:
            n = note_word(buffer, n, i64(items)[q])
    return n


def note_word(buffer: int, n: int, value: int) -> int:
    """As `note_attributes`, one of: an integer, a text, a truth value, None; 0 for anything else.

    Texts by address: the program that is kept for them keeps them.
    """
    g, kind = i64(shared()), obj(value).type
    if n + 2 > KEY_WORDS:
        return 0
    if kind == g.int_type:
        i64(buffer)[n], i64(buffer)[n + 1] = AN_INTEGER, call(g.long_as, value)
        if i64(buffer)[n + 1] == -1:
            if call(g.error_occurred) != 0:
                invoke(g.error_clear)
                return 0
    elif kind == g.str_type or value == g.none_at_all or value == g.true or value == g.false:
        i64(buffer)[n], i64(buffer)[n + 1] = AN_OBJECT, value
    else:
        return 0
    return n + 2


def by_program(state: int, tape: int, log: int, k: int, ct: int, program: int, like: int) -> int:
    """As `record_parts`, by the steps of a program; constants have the precision of `like`, if not 0."""
    g, s, p, refs = i64(shared()), i64(state), i64(program), stack(REF_WORDS)
    n, q = begin_program(refs, program, ct), 0
    failed = run_steps(state, tape, log, k, refs, program, like) == 0
    form = i64(s.operations)[ROW * (i64(s.word)[k] & 0xFFFF) + FORM]
    at = operands(i64(s.word)[k], form)
    while at != 0 and failed == 0:
        j = (at & 0xFFFF) - 1
        if u8(s.flags)[j] & NEED and q < p[GIVEN_COUNT]:
            if p[GIVEN + q] != NOTHING_THERE:
                part = step_operand(state, tape, log, k, refs, p[GIVEN + q], like)
                failed = part == 0
                if failed == 0:
                    invoke(g.incref, part)
                    failed = add_cotangent(state, tape, log, j, part) == 0
        q += 1
        at = following(s.word, at, form)
    return end_program(refs, n, failed == 0)


def by_rule(state: int, tape: int, log: int, k: int, ct: int) -> int:
    """As `record_parts`, by the rule in Python."""
    g, s, n, failed = i64(shared()), i64(state), 0, 0
    w = i64(s.word)[k]
    form = i64(s.operations)[ROW * (w & 0xFFFF) + FORM]
    if compute_deferred(ct) == 0:
        return 0
    if s.batched:
        found = parts_by_rule(state, tape, log, k, ct, 0, g.batched_rule)
    else:
        found = parts_by_rule(state, tape, log, k, ct, 1, g.record_rule)
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
                failed = add_cotangent(state, tape, log, j, part) == 0
        at = following(s.word, at, form)
    return drop_position(found, failed == 0)
