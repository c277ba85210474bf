"""Compiled: a sweep that is recorded itself: cotangents are Tensors, and rules the ops they apply.

Records come on the tape that is swept, so that what is differentiated again lies there alone. The rule of an
elementwise op of real numbers is a program (`tapegrad.ops.programs`), any other has one for each shape and
dtype of operands (`tapegrad.autograd.traced_rules`); where values decide it runs in Python, on Tensors.
At the mask of the operands that want a part an op's programs say where one begins; `layout` has its words.
A sweep for gradients that are only differentiated further defers values (`deferring`).
"""

from tapegrad.kernels.dialect import address, call, f32, f64, i64, invoke, obj, share, shared, stack, u8
from tapegrad.kernels.replay.any_op import recorded_result
from tapegrad.kernels.replay.deferring import compute_deferred, deferred
from tapegrad.kernels.replay.gradients import (
    hold,
    hold_roots,
    leaves_of,
    none_for,
    planned,
    release_held,
    workspace,
)
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.operands import (
    code_of,
    drop_position,
    entry_of,
    has,
    in_force,
    is_deferred,
    is_dense,
    room,
    same_words,
    size_of,
)
from tapegrad.kernels.replay.reading import following, operands
from tapegrad.kernels.replay.recording import operate
from tapegrad.kernels.replay.suspending import (
    constant_tensor,
    kept_value,
    parts_by_rule,
    value_of_record,
)
from tapegrad.kernels.replay.sweep import flagged


def rerecording(what: int, words: int, _extra: int, _more: int) -> int:
    """The address of one of two functions, which share the words of the compiled sweep."""
    share(words)
    if what == RERECORD:
        return address(rerecord)
    return address(rerecord_sealed)


def rerecord(self: int, args: int, count: int) -> int:
    """``(roots, cotangents, inputs)``, one each or tuples or lists; cotangents may be None, as may be all.

    True behind them: values of gradients may be deferred.
    A tuple of Tensors with a history; a list where they share memory with others; None: left to Python. Where
    inputs are None it is for all leaves, which come after what they get: Tensors or None.
    """
    g, given, held, out, n = i64(shared()), i64(args), stack(HELD_WORDS), UNHANDLED, 0
    m, every = hold_roots(given[0], given[1], held), 1 * (given[2] == g.none_at_all)
    if m > 0 and every == 0:
        n = hold(given[2], held)
    elif m > 0:
        if obj(i64(held)[ROOT]).type == g.tensor_type:
            n = leaves_of(obj(i64(held)[ROOT]).tape, held, 1)
    if n > 0:
        mode = in_force()
        if mode == 0:
            out = 0
        elif mode == g.true:
            out = cotangents_as_tensors(held, m)
            if out == 1 + UNHANDLED:
                out = rerecorded(held, m, n, every, count == 4 and given[3] == g.true)
    release_held(held, m, n)
    return none_for(out)


def cotangents_as_tensors(held: int, m: int) -> int:
    """Let the cotangents of m roots be Tensors: with a history as they are, copies of others, 1 for None.

    1 + UNHANDLED if they are, UNHANDLED if Python is to look at them, 0 with an error set.
    """
    g, h = i64(shared()), i64(held)
    for q in range(m):
        root, ct = h[ROOT + q], h[COTANGENT + q]
        if obj(root).type != g.tensor_type:
            return UNHANDLED
        value = obj(root).v
        if value == 0:
            return UNHANDLED
        copied = 0
        if obj(ct).type == g.tensor_type:
            if obj(ct).v == 0:
                return UNHANDLED
            if is_like(ct, value, 0) == 0:
                return UNHANDLED
            if obj(ct).tape == g.none_at_all and obj(ct).extra == g.none_at_all:
                ct = obj(ct).v
        if obj(ct).type != g.tensor_type:
            copied = copied_cotangent(ct, value)
            if copied == 0 or copied == UNHANDLED:
                return copied
            invoke(g.decref, h[COTANGENT + q])
            h[COTANGENT + q] = copied
    return 1 + UNHANDLED


def copied_cotangent(ct: int, value: int) -> int:
    """A new constant: a copy of a cotangent, or 1 for None; UNHANDLED; 0 with an error set."""
    g, new, code = i64(shared()), 0, code_of(value)
    if obj(value).type != g.ndarray_type:
        if obj(ct).type == obj(value).type:
            invoke(g.incref, ct)
            return constant_tensor(ct)
        if ct != g.none_at_all or code & 0xFF == 0 or code & 0xFF >= COMPLEX:
            return UNHANDLED
        new = call(g.allocate_object, obj(value).type, 0)
        if new != 0:
            if code & 1:
                f64(new + SCALAR_AT)[0] = 1.0
            else:
                f32(new + SCALAR_AT)[0] = 1.0
    else:
        if obj(ct).type != g.ndarray_type:
            return UNHANDLED
        if obj(ct).descr != obj(value).descr or same_words(ct, value, DIMS_AT) == 0:
            return UNHANDLED
        new = call(g.new_copy, ct, C_ORDER)
    if new == 0:
        return 0
    return constant_tensor(new)


def rerecorded(held: int, m: int, n: int, every: int, defers: int) -> int:
    """The gradients of n inputs, or of every leaf; UNHANDLED with nothing done; 0 with an error set."""
    g, state, out = i64(shared()), workspace(i64(held)[ROOT]), UNHANDLED
    if state == 0 or state == UNHANDLED:
        return state
    i64(state).seed_count, i64(state).defers = m, defers
    if to_record(state, held, n, every):
        tape = obj(i64(held)[ROOT]).tape
        log, limit = obj(tape).log, obj(tape).limit
        invoke(g.incref, tape)
        invoke(g.incref, log)
        invoke(g.incref, limit)
        make_room(state, tape, log)
        raised = obj(tape).limit
        failed = walk_back(state, tape, log, held, m) == 0
        out = take_cotangents(state, held, m, n, failed, every)
        fits = obj(log).size < call(g.long_as, limit)
        if obj(tape).limit == raised and fits:  # and not left, or closed for its weight
            obj(tape).limit = limit
            limit = raised
        invoke(g.decref, limit)
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
    for q in range(m):
        ct = i64(held)[COTANGENT + q]
        if out != 0:
            invoke(g.incref, ct)
            out = add_cotangent(state, tape, log, i64(s.seeds)[q], ct)
    if out != 0:
        out = follow_rules(state, tape, log)
    return out


def follow_rules(state: int, tape: int, log: int) -> int:
    """Follow the rules of all records planned that have a cotangent; 0 with an error set."""
    g, s, out = i64(shared()), i64(state), 1
    cotangents, flags, whole = i64(s.cotangents), u8(s.flags), NEED | MARK | ACTIVE
    k = flagged(s.flags, s.records - 1, s.oldest)
    while k >= s.oldest:
        if out != 0 and cotangents[k] != 0 and flags[k] & whole == whole:
            ct = cotangents[k]
            cotangents[k] = 0
            out = record_parts(state, tape, log, k, ct)
            invoke(g.decref, ct)
        k = flagged(s.flags, k - 1, s.oldest)
    return out


def rerecord_sealed(self: int, args: int, count: int) -> int:
    """``(address of a state, tape, values, numbers, cotangents, whether they have lanes, whether to defer)``.

    Of a sealed tape that is planned there: a new list of numbers of records whose ops are not swept, each
    with what has come to it. With an axis of lanes nothing is recorded. What comes to imports has a value.
    """
    g, given, out = i64(shared()), i64(args), 1
    state, tape, values = call(g.long_as, given[0]), given[1], given[2]
    s = i64(state)
    s.width, s.oldest, s.batched, s.defers = 1, 0, given[5] == g.true, given[6] == g.true
    for k in range(s.records):
        i64(s.cotangents)[k] = 0
    s.recalled = call(g.new_list, s.records)
    out = 1 * (s.recalled != 0)
    for q in range(obj(given[3]).size):
        if out != 0:
            ct = i64(obj(given[4]).items)[q]
            invoke(g.incref, ct)
            out = add_cotangent(state, tape, values, call(g.long_as, i64(obj(given[3]).items)[q]), ct)
    if out != 0:
        out = follow_rules(state, tape, values)
    drop_position(s.recalled, 0)
    if out != 0:
        out = call(g.new_list, 0)
    for k in range(s.records):
        ct = i64(s.cotangents)[k]
        if ct != 0:
            opcode = i64(s.word)[k] & 0xFFFF
            if out != 0 and opcode < CONS:
                if compute_deferred(ct) == 0:
                    out = drop_position(out, 0)
            if out != 0:
                number = call(g.long_from, k)
                failed = 1 * (number == 0)
                if failed == 0:
                    failed = call(g.append, out, number) & 0xFFFFFFFF
                if failed == 0:
                    failed = call(g.append, out, ct) & 0xFFFFFFFF
                out = drop_position(number, out)
                if failed:
                    out = drop_position(out, 0)
            invoke(g.decref, ct)
    return out


def take_cotangents(state: int, held: int, m: int, n: int, failed: int, every: int) -> int:
    """A new tuple of what came to n inputs, and let go of the rest; a list where they share memory.

    Of every leaf, with the leaves behind. UNHANDLED where nothing came to an input; 0 if `failed` or with an
    error set.
    """
    g, s, out, own = i64(shared()), i64(state), 0, 1
    cotangents = i64(s.cotangents)
    for q in range(n):
        x = cotangents[i64(s.sinks)[q]]
        if x == 0:
            out = UNHANDLED * (every == 0)
        elif own and s.defers == 0:
            own = is_alone(state, held, m, q, x)
    if failed == 0 and out == 0:
        if own:
            out = call(g.new_tuple, n << every)
        else:
            out = call(g.new_list, n << every)
        for q in range(n << every):
            if q >= n:
                x = i64(held)[q - n]
            else:
                x = cotangents[i64(s.sinks)[q]]
            if x == 0:
                x = g.none_at_all
            if out != 0:
                items = out + TUPLE_ITEMS_AT
                if own == 0:
                    items = obj(out).items
                invoke(g.incref, x)
                i64(items)[q] = x
    elif failed:
        out = 0
    k = flagged(s.flags, s.records - 1, 0)
    while k >= 0:
        if cotangents[k] != 0:
            invoke(g.decref, cotangents[k])
        k = flagged(s.flags, k - 1, 0)
    return out


def is_alone(state: int, held: int, m: int, q: int, x: int) -> int:
    """Whether what came to input q lies in C order in memory that no cotangent or earlier one has."""
    g, s, h, value = i64(shared()), i64(state), i64(held), obj(x).v
    if obj(value).type == g.ndarray_type:
        if obj(value).base != 0 or is_dense(value) == 0:
            return 0
        if is_dense(obj(h[q]).v) == 0:
            return 0
    for p in range(m):
        if x == h[COTANGENT + p] or value == obj(h[COTANGENT + p]).v:
            return 0
    for p in range(q):
        other = i64(s.cotangents)[i64(s.sinks)[p]]
        if other != 0:
            if x == other or value == obj(other).v:
                return 0
    return 1


def make_room(state: int, tape: int, log: int) -> int:
    """Raise a tape's limit while most of it is swept and recorded there; nothing where memory is out.

    It stays raised where the tape has outgrown it: to seal what is asked for next takes as long as a sweep.
    """
    g, s, size = i64(shared()), i64(state), obj(log).size
    limit, more = call(g.long_as, obj(tape).limit), 4 * RECORDED_FOR_EACH * s.read_count
    wanted = min(size + more, 4 * MOST_RECORDED)
    if more > size and wanted > limit and limit > 0:
        new = call(g.long_from, wanted)
        if new != 0:
            before = obj(tape).limit
            obj(tape).limit = new
            invoke(g.decref, before)
        else:
            invoke(g.error_clear)
    return 0


def to_record(state: int, held: int, n: int, every: int) -> int:
    """Plan a sweep to be recorded; whether it can be."""
    s, status = i64(state), planned(state, held, n, RETAIN | RERECORDED | ALL_LEAVES * every)
    if status != DONE and status != UNDESCRIBED:
        return 0
    if obj(obj(obj(i64(held)[ROOT]).tape).calls).size != 0:
        return 0
    for q in range(n):
        if u8(s.flags)[i64(s.sinks)[q]] & ACTIVE:
            return 0
    return 1


def add_cotangent(state: int, tape: int, log: int, j: int, part: int) -> int:
    """Add a Tensor, of which the reference is taken, to the cotangent of record j; 0 with an error set."""
    g, s = i64(shared()), i64(state)
    value = kept_value(state, log, j)
    if is_like(part, value, s.batched) == 0:
        part = fitted(state, tape, log, part, value)
        if part == 0:
            return 0
    before = i64(s.cotangents)[j]
    if before != 0:
        if s.batched:
            total = sum_of_values(before, part)
        else:
            total = recorded_sum(before, part)
        invoke(g.decref, before)
        invoke(g.decref, part)
        part = total
    i64(s.cotangents)[j] = part
    return part != 0


def recorded_sum(a: int, b: int) -> int:
    """A new reference to the sum of two Tensors, recorded; 0 with an error set."""
    g, given = i64(shared()), stack(TAKEN_AT_MOST)
    if is_deferred(a) or is_deferred(b):
        i64(given)[0], i64(given)[1], i64(given)[2] = a, b, 0
        total = deferred(g.sheets, i64(g.sheets).ufunc, 0, 0, given, 0)
        if total != UNHANDLED:
            return total
        if compute_deferred(a) == 0 or compute_deferred(b) == 0:
            return 0
    return apply_op(g.sheets, a, b)


def fitted(state: int, tape: int, log: int, part: int, value: int) -> int:
    """A part, of which the reference is taken, in the shape and dtype of a value; 0 with an error set."""
    g, refs, out = i64(shared()), stack(REF_WORDS), 0
    program = program_to_fit(part, value, i64(state).batched)
    if program == 0:
        return drop_position(part, 0)
    words = obj(program).data
    n = begin_program(refs, words, part)
    if run_steps(state, tape, log, 0, refs, words, 0):
        out = step_operand(state, tape, log, 0, refs, i64(words)[GIVEN], 0)
        invoke(g.incref, out)
    drop_position(part, 0)
    drop_position(program, 0)
    return end_program(refs, n, out)


def program_to_fit(part: int, value: int, lanes: int) -> int:
    """A new reference to the words of the program for `fitted`; 0 with an error set."""
    g, args, buffer, program = i64(shared()), stack(3), stack(KEY_WORDS), 0
    i64(buffer)[0] = lanes
    n = note_layout(buffer, note_layout(buffer, 1, obj(part).v), value)
    if n != 0:
        program = kept_program(i64(obj(g.fits).items)[0], buffer, n)
    if program == 0:
        i64(args)[0], i64(args)[1], i64(args)[2] = part, value, g.false
        if lanes:
            i64(args)[2] = g.true
        if compute_deferred(part):
            program = call(g.vectorcall, g.trace_fit, args, 3, 0)
        if program != 0 and n != 0:
            program = keep_program(g.fits, 0, buffer, n, program)
    return program


def note_layout(buffer: int, n: int, value: int) -> int:
    """Note the dtype and the shape of a value behind n words; how many there are then, 0: no room, or n = 0.

    0 as well for a dtype that tapes do not know.
    """
    words, code, ndim = i64(buffer), code_of(value) & 0xFF, 0
    if obj(value).type == i64(shared()).ndarray_type:
        ndim = obj(value).ndim
    if n == 0 or code == 0 or n + 1 + ndim > KEY_WORDS:
        return 0
    words[n] = code | ndim << 8
    for d in range(ndim):
        words[n + 1 + d] = i64(obj(value).dims)[d]
    return n + 1 + ndim


def kept_program(programs: int, buffer: int, n: int) -> int:
    """A new reference to a program that a dict has for n words; 0 for none."""
    g = i64(shared())
    key = call(g.bytes_from, buffer, 8 * n)
    if key == 0:
        invoke(g.error_clear)
        return 0
    program = call(g.dict_get, programs, key)
    if program != 0:
        invoke(g.incref, program)
    return drop_position(key, program)


def keep_program(dicts: int, number: int, buffer: int, n: int, program: int) -> int:
    """Keep a program for n words in a dict of a list, a new one where it is full; 0 with an error set.

    The reference to the program is passed on.
    """
    g, key = i64(shared()), call(i64(shared()).bytes_from, buffer, 8 * n)
    failed = 1 * (key == 0)
    if failed == 0 and obj(i64(obj(dicts).items)[number]).size >= MOST_PROGRAMS:
        new = call(g.new_dict)
        failed = 1 * (new == 0)
        if failed == 0:
            failed = call(g.list_set, dicts, number, new) & 0xFFFFFFFF
    if failed == 0:
        failed = call(g.dict_set, i64(obj(dicts).items)[number], key, program) & 0xFFFFFFFF
    drop_position(key, 0)
    if failed:
        return drop_position(program, 0)
    return program


def is_like(x: int, value: int, lanes: int) -> int:
    """Whether a Tensor has the dtype of a value, and its shape, after an axis of lanes if so said."""
    g, v = i64(shared()), obj(x).v
    if lanes == 0:
        if obj(v).type != obj(value).type:
            return 0
        if obj(v).type != g.ndarray_type:
            return 1
        if obj(v).descr != obj(value).descr:
            return 0
        return same_words(v, value, DIMS_AT)
    ndim = 0
    if obj(value).type == g.ndarray_type:
        ndim = obj(value).ndim
    if obj(v).type != g.ndarray_type or code_of(v) != code_of(value):
        return 0
    if obj(v).ndim != ndim + 1:
        return 0
    for d in range(ndim):
        if i64(obj(v).dims)[d + 1] != i64(obj(value).dims)[d]:
            return 0
    return 1


def sum_of_values(a: int, b: int) -> int:
    """A new constant, the sum of two Tensors' values; 0 with an error set."""
    g, args = i64(shared()), stack(2)
    i64(args)[0], i64(args)[1] = obj(a).v, obj(b).v
    value = call(g.vectorcall, i64(g.sheets).ufunc, args, 2, 0)
    if value == 0:
        return 0
    return constant_tensor(value)


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
