"""Compiled: a sweep that is recorded itself: cotangents are Tensors, and rules the ops they apply.

Records come on the tape that is swept, so that what is differentiated again lies there alone. The rules are
applied by `recorded_rules`, cotangents added up by `recorded_cotangents`. A sweep for gradients that are only
differentiated further defers values (`deferring`).
"""

from tapegrad.kernels.dialect import address, call, f32, f64, i64, invoke, obj, share, shared, stack, u8
from tapegrad.kernels.replay.deferring import compute_deferred
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
from tapegrad.kernels.replay.operands import code_of, drop_position, in_force, is_dense, same_words
from tapegrad.kernels.replay.recorded_cotangents import add_cotangent, is_like
from tapegrad.kernels.replay.recorded_rules import record_parts
from tapegrad.kernels.replay.suspending import constant_tensor
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
