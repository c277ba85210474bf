"""Compiled: a sweep that Python may interrupt, so the open tape is left, claimed and planned again before it.

In between run rules in Python and hooks, and other threads where Python's lock is released.
"""

from tapegrad.kernels.dialect import call, copy, i64, invoke, obj, shared, stack, u8
from tapegrad.kernels.replay.adopting import take_part
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.loops import checksum
from tapegrad.kernels.replay.operands import code_of, drop_position, extent_of, has, size_of
from tapegrad.kernels.replay.reading import following, operands
from tapegrad.kernels.replay.records import count_of
from tapegrad.kernels.replay.sweep import (
    place_columns,
    plan_read,
    read_log,
    read_reached,
    run,
    spend,
    start_open,
    way_of,
)


def plan_whole(state: int, tape: int, log: int) -> int:
    """Read and plan a tape, as `plan_read` does, where what others can write to is what it was."""
    g, s, at, pair, status = i64(shared()), i64(state), stack(1), stack(2), PYTHON
    guards, freed = obj(tape).guards, obj(tape).freed
    s.freed, s.guarded = s.unfreed, obj(guards).size
    if freed != g.none_at_all:
        if extent_of(freed, 0, 1) < s.records:
            return PYTHON
        s.freed = obj(freed).data
    s.described = obj(tape).described
    if s.width == 1:
        s.oldest, s.read_count = 0, 0  # nothing is left to be read
        place_columns(state, obj(obj(obj(tape).columns).columns_words).data, s.records)
        status = plan_read(state)
    elif s.read_count != 0:
        if read_reached(state, log):
            status = plan_read(state)
    elif read_log(state, log):
        status = plan_read(state)
    i64(at)[0] = 0
    while status == DONE and call(g.dict_next, guards, at, pair, pair + 8) & 0xFFFFFFFF != 0:
        k = call(g.long_as, i64(pair)[0])
        if k < s.records:
            if u8(s.flags)[k] & READ:
                m = i64(s.meta)[k]
                size = ((m >> 9) & 0x7F) * count_of(s.shapes, m)
                if checksum(i64(s.address)[k], size) != call(g.long_as, i64(pair)[1]):
                    status = UNHANDLED  # Python says what was written to
    if status == DONE:
        mark_hooked(state, obj(tape).hooks, s.oldest)
    return status


def mark_hooked(state: int, hooks: int, oldest: int) -> int:
    """Let a sweep that is planned come to Python at the records that have hooks, from the oldest one on."""
    g, s, at, pair = i64(shared()), i64(state), stack(1), stack(2)
    flags = u8(s.flags)
    i64(at)[0] = 0
    while call(g.dict_next, hooks, at, pair, pair + 8) & 0xFFFFFFFF != 0:
        k = call(g.long_as, i64(pair)[0])
        if k >= oldest and k < s.records:
            if flags[k] & (NEED | MARK) == NEED | MARK:
                flags[k] = flags[k] | RULE
    return 0


def suspended(state: int, tape: int, log: int, marks: int) -> int:
    """As `run_open`, where Python may run in between: the tape is left, claimed and planned again first."""
    g, error, again, begun, done = i64(shared()), stack(3), is_left(tape), 0, 1
    note, claim = 0, new_claim(state, tape, 1 * (marks != 0))
    if claim != 0:
        note = call(g.refer_weakly, claim, 0)
    status = MEMORY
    if note != 0:
        status = claim_tape(state, tape, log, note)
    if status == DONE:
        status = plan_whole(state, tape, log)
        if status == DONE:
            begun = 1
            start_open(state)
            status = run_watched(state, tape, log)
        if status == ANOMALY:
            begun, status = 0, UNHANDLED  # a sweep in parts says what is nan
        if begun and status != DONE and status != RAISED:
            status = tell_failure(state, tape, status)
        if status == RAISED:
            invoke(g.error_take, error, error + 8, error + 16)
        unclaim_tape(tape, note)
        if begun and status == DONE and marks != 0:
            done = mark_swept(state, tape, marks)
        if again and done:
            done = shrink_spent(tape)
        if status == RAISED:
            if done == 0:
                invoke(g.error_clear)
            invoke(g.error_give, i64(error)[0], i64(error)[1], i64(error)[2])
            status = MEMORY
        elif done == 0:
            status = MEMORY
        elif begun == 0:
            status = UNHANDLED
    drop_position(note, 0)
    return drop_position(claim, status)


def is_left(tape: int) -> int:
    """Whether a tape takes no more records."""
    return call(i64(shared()).long_as, obj(tape).limit) < 0


def new_claim(state: int, tape: int, frees: int) -> int:
    """A new sweep's hold on a tape, that nothing knows yet; 0 with an error set."""
    g, s = i64(shared()), i64(state)
    claim = call(g.allocate_object, g.claim_type, 0)
    if claim == 0:
        return 0
    obj(claim).claim_flags, obj(claim).claim_seen = call(g.bytes_from, s.flags, s.records), call(g.new_dict)
    obj(claim).claim_thread = call(g.long_from, call(g.thread))
    obj(claim).claim_forks = call(g.long_from, obj(g.forks).size)
    obj(claim).claim_state = call(g.long_from, state)
    obj(claim).claim_tape, obj(claim).claim_frees = tape, g.false
    if frees:
        obj(claim).claim_frees = g.true
    invoke(g.incref, tape)
    invoke(g.incref, obj(claim).claim_frees)
    missing = 1 * (obj(claim).claim_flags == 0 or obj(claim).claim_seen == 0 or obj(claim).claim_state == 0)
    if missing or obj(claim).claim_thread == 0 or obj(claim).claim_forks == 0:
        return drop_position(claim, 0)
    return claim


def claim_tape(state: int, tape: int, log: int, note: int) -> int:
    """Leave a tape and claim it, by a weak reference to a hold: DONE; MEMORY with an error set.

    UNHANDLED if another sweep is at work there, if calls lack what was released, or where garbage that was
    collected as this was made ready has sealed the tape or recorded there.
    """
    g, s, args = i64(shared()), i64(state), stack(1)
    if is_left(tape) == 0:
        i64(args)[0] = tape
        left = call(g.vectorcall, g.leave, args, 1, 0)
        if left == 0:
            return MEMORY
        invoke(g.decref, left)
    if s.width != 1 and (obj(tape).log != log or obj(log).size != 4 * s.records):
        return UNHANDLED
    if obj(obj(tape).claims).size != 0 or lacks_released(tape):
        return UNHANDLED
    if call(g.dict_set, obj(tape).claims, note, g.none_at_all) & 0xFFFFFFFF:
        return MEMORY
    sweeps = call(g.get_attribute, g.sweeps, g.sweeps_text)
    failed = 1 * (sweeps == 0)
    if failed == 0:
        failed = call(g.append, sweeps, note) & 0xFFFFFFFF
    if failed:
        invoke(g.dict_delete, obj(tape).claims, note)
    return drop_position(sweeps, DONE * (failed == 0) + MEMORY * (failed != 0))


def unclaim_tape(tape: int, note: int) -> int:
    """End a claim; the sweep before this one is at work again."""
    g = i64(shared())
    if call(g.dict_delete, obj(tape).claims, note) & 0xFFFFFFFF:
        invoke(g.error_clear)
    sweeps = call(g.get_attribute, g.sweeps, g.sweeps_text)
    if sweeps == 0:
        invoke(g.error_clear)
        return 0
    for q in range(obj(sweeps).size - 1, -1, -1):
        if i64(obj(sweeps).items)[q] == note:
            invoke(g.cut, sweeps, q, q + 1, 0)
    return drop_position(sweeps, 0)


def lacks_released(tape: int) -> int:
    """Whether a call on a tape lacks what another sweep has released."""
    g, at, pair, calls = i64(shared()), stack(1), stack(2), obj(tape).calls
    i64(at)[0] = 0
    while call(g.dict_next, calls, at, pair, pair + 8) & 0xFFFFFFFF != 0:
        if has(i64(pair)[1], g.released_text, g.false) == 0:
            return 1
    return 0


def tell_failure(state: int, tape: int, status: int) -> int:
    """Let Python raise what a sweep has failed by: RAISED, with an error set."""
    g, args = i64(shared()), stack(3)
    i64(args)[0], i64(args)[1], i64(args)[2] = tape, call(g.long_from, state), call(g.long_from, status)
    if i64(args)[1] != 0 and i64(args)[2] != 0:
        drop_position(call(g.vectorcall, g.tell_failure, args, 3, 0), 0)
    drop_position(i64(args)[1], 0)
    return drop_position(i64(args)[2], RAISED)


def mark_swept(state: int, tape: int, marks: int) -> int:
    """Note what a claimed sweep has used, and let go of what calls kept for it; 0 with an error set."""
    if release_calls(state, tape) == 0:
        return 0
    mark_spent(state, tape, marks)
    return 1


def shrink_spent(tape: int) -> int:
    """Let go of what a sweep has used, or another one that came meanwhile, on a tape that was left before.

    0 with an error set.
    """
    g, args = i64(shared()), stack(1)
    if obj(tape).freed == g.none_at_all or obj(tape).held != g.none_at_all:
        return 1
    i64(args)[0] = tape
    done = call(g.vectorcall, g.end_sweep, args, 1, 0)
    return drop_position(done, done)


def release_calls(state: int, tape: int) -> int:
    """Let go of what calls that a sweep came to have kept for it; 0 with an error set."""
    g, s, at, pair, args, out = i64(shared()), i64(state), stack(1), stack(2), stack(1), 1
    if obj(obj(tape).calls).size == 0:
        return 1
    calls = call(g.copy_dict, obj(tape).calls)
    if calls == 0:
        return 0
    i64(at)[0] = 0
    while out != 0 and call(g.dict_next, calls, at, pair, pair + 8) & 0xFFFFFFFF != 0:
        k = call(g.long_as, i64(pair)[0])
        if k < s.records:
            if u8(s.flags)[k] & ACTIVE:
                release = call(g.get_attribute, i64(pair)[1], g.release_text)
                out = 0
                if release != 0:
                    out = call(g.vectorcall, release, args, 0, 0)
                drop_position(out, 0)
                drop_position(release, 0)
    return drop_position(calls, out)


def mark_spent(state: int, tape: int, marks: int) -> int:
    """Note on a tape what a sweep has released: in its own marks, or in those that it has."""
    g, s, known = i64(shared()), i64(state), obj(tape).freed
    if known != g.none_at_all:
        if extent_of(known, 0, 1) < s.records:
            return 0
        marks = known
    s.freed = obj(marks).data
    if spend(state) != 0:
        before = obj(tape).held
        invoke(g.incref, marks)
        invoke(g.incref, g.none_at_all)
        obj(tape).freed, obj(tape).held = marks, g.none_at_all
        invoke(g.decref, known)
        invoke(g.decref, before)
    return 0


def run_watched(state: int, tape: int, log: int) -> int:
    """Run a sweep that has begun, and leaves' hooks where gradients are whole; RAISED with an error set."""
    s, status, before, q, oldest = i64(state), NEWLY_WATCHED, 1 << 62, -1, i64(state).oldest
    while status == NEWLY_WATCHED:
        find_ripe(state)
        q = next_ripe(state, before)
        if q >= 0:
            s.oldest = max(oldest, (i64(s.ripe)[q] >> 16) - 1)
        status = run_interrupted(state, tape, log, oldest)
        if status == NEWLY_WATCHED:
            before = min(before, (s.position + 2) << 16)
        elif status == DONE and q >= 0:
            before = i64(s.ripe)[q]
            s.position = s.oldest - 1
            status = call_leaf_hooks(state, tape, log, q)
            mark_hooked(state, obj(tape).hooks, oldest)  # some may have been attached meanwhile
            watch_leaves(state, tape)
            if status == DONE:
                status = NEWLY_WATCHED
        s.oldest = oldest
    return status


def watch_leaves(state: int, tape: int) -> int:
    """Look for hooks of leaves that were attached meanwhile; whether there are any."""
    g, s, out = i64(shared()), i64(state), 0
    for q in range(s.sink_count):
        if i64(s.ripe)[q] == 0:
            cell, slot = 0, call(g.long_from, i64(s.sinks)[q])
            if slot != 0:
                cell = call(g.dict_get, obj(tape).imports, slot)
            drop_position(slot, 0)
            if cell != 0:
                if obj(cell).cell_hooks != g.none_at_all:
                    i64(s.ripe)[q], out = WATCHED_LEAF, 1
    return out


def find_ripe(state: int) -> int:
    """Find when gradients that hooks of leaves see are whole.

    One is after the rule of the oldest record that contributes; of two by one rule the first operand's is
    first.
    """
    s, missing = i64(state), 0
    word, flags, operations = i64(s.word), u8(s.flags), i64(s.operations)
    for q in range(s.sink_count):
        missing += i64(s.ripe)[q] == WATCHED_LEAF
    for k in range(s.oldest + 1, s.records):
        if missing == 0:
            break
        form, slot = operations[ROW * (word[k] & 0xFFFF) + FORM], 0
        at = operands(word[k], form) * (flags[k] & (NEED | MARK) == NEED | MARK and form != NONE)
        while at != 0:
            j = (at & 0xFFFF) - 1
            if flags[j] & SINK:
                for q in range(s.sink_count):
                    if i64(s.sinks)[q] == j and i64(s.ripe)[q] == WATCHED_LEAF:
                        i64(s.ripe)[q] = (k + 1) << 16 | (0xFFFF - slot)
                        missing -= 1
            slot += 1
            at = following(s.word, at, form)
    return 0


def watched_leaves(state: int) -> int:
    """How many gradients of a sweep are seen by hooks of leaves."""
    s, count = i64(state), 0
    for q in range(s.sink_count):
        count += i64(s.ripe)[q] != 0
    return count


def next_ripe(state: int, before: int) -> int:
    """The number of the gradient that is whole next after one at `before`; -1 for none."""
    s, found, best = i64(state), -1, WATCHED_LEAF
    for q in range(s.sink_count):
        when = i64(s.ripe)[q]
        if when > best and when < before:
            found, best = q, when
    return found


def call_leaf_hooks(state: int, tape: int, log: int, q: int) -> int:
    """Let a leaf's hooks see its gradient, of which its place then has what they leave; RAISED or DONE."""
    g, s, k, args = i64(shared()), i64(state), i64(i64(state).sinks)[q], stack(3)
    if u8(s.flags)[k] & FRESH:
        return DONE  # no cotangent came this way
    ct, slot, found = cotangent_of(state, tape, log, k), call(g.long_from, k), 0
    if ct != 0 and slot != 0:
        i64(args)[0], i64(args)[1], i64(args)[2] = tape, slot, ct
        found = call(g.vectorcall, g.call_leaf_hooks, args, 3, 0)
    if found != 0:
        put_gradient(state, k, found)
    drop_position(slot, 0)
    drop_position(ct, 0)
    return drop_position(found, DONE * (found != 0) + RAISED * (found == 0))


def put_gradient(state: int, k: int, found: int) -> int:
    """Let a gradient that the sweep is for be what hooks have left of it."""
    s = i64(state)
    if obj(found).type == i64(shared()).ndarray_type:
        copy(i64(s.cotangents)[k], obj(found).data, size_of(found))
    else:
        copy(i64(s.cotangents)[k], found + SCALAR_AT, code_of(found) >> 8)
    return 0


def run_interrupted(state: int, tape: int, log: int, oldest: int) -> int:
    """As `run`, with what Python does in between; RAISED with an error set.

    What it attaches to records counts down to the `oldest`. NEWLY_WATCHED as soon as it attaches hooks to
    more leaves: the next call goes on.
    """
    g, s, status = i64(shared()), i64(state), run_freely(state)
    while status == PYTHON or status == PAUSED:
        failed, known, newly = 0, i64(g.attached)[0], 0
        if status == PAUSED:
            failed = call(g.check_signals) & 0xFFFFFFFF
        else:
            failed = run_rule(state, tape, log) == 0
        if i64(g.attached)[0] != known:
            flags = u8(s.flags)[s.position]
            mark_hooked(state, obj(tape).hooks, oldest)
            if status == PYTHON:
                u8(s.flags)[s.position] = flags  # its hooks have run
            newly = watch_leaves(state, tape)
        if failed:
            return RAISED
        if newly:
            return NEWLY_WATCHED
        status = run_freely(state)
    return status


def run_freely(state: int) -> int:
    """As `run`, without Python's lock where that takes longer than giving it up; RAISED with an error set."""
    g, s = i64(shared()), i64(state)
    if s.work <= s.work_limit:
        status = run(state)
    else:
        thread = call(g.save_thread)
        status = run(state)
        invoke(g.restore_thread, thread)
    if call(g.error_occurred) != 0:  # in a function of SciPy's
        return RAISED
    return status


def run_rule(state: int, tape: int, log: int) -> int:
    """Run the hooks and the rule in Python that a sweep has come to; 0 with an error set.

    A rule that is compiled is left to the sweep, which goes on with it.
    """
    g, s, out = i64(shared()), i64(state), 1
    k, n, s.finish = s.position, 0, 1
    ct = cotangent_of(state, tape, log, k)
    if obj(obj(tape).hooks).size != 0 and ct != 0:
        ct = through_hooks(state, tape, k, ct)
        if ct != 0 and u8(s.flags)[k] & ACTIVE == 0:
            return drop_position(ct, 1)  # it was for the hooks alone
        if ct != 0:
            if go_on_compiled(state, tape, k, ct):
                return drop_position(ct, 1)
    found = parts_by_rule(state, tape, log, k, ct, 0, g.apply_rule)
    if obj(obj(tape).hooks).size != 0 and found != 0:
        found = through_post_hooks(state, tape, k, ct, found)
    w = i64(s.word)[k]
    form = i64(s.operations)[ROW * (w & 0xFFFF) + FORM]
    at = operands(w, form) * (found != 0)
    while at != 0 and out != 0:
        j = (at & 0xFFFF) - 1
        if u8(s.flags)[j] & NEED:
            part = i64(obj(found).items)[n]
            n += 1
            if part != g.none_at_all:
                if take_part(state, tape, j, part) != DONE:
                    out = 0
                    invoke(g.no_memory)
        at = following(s.word, at, form)
    drop_position(ct, 0)
    return drop_position(found, out * (found != 0))


def go_on_compiled(state: int, tape: int, k: int, ct: int) -> int:
    """Let record k's cotangent be what hooks have left, and its compiled rule run next, if that can be.

    Not if the memory is somebody else's, if it has a gradient that pre-hooks have left as it was, if hooks
    are to see what the rule gives, or if that is Python's.
    """
    g, s, slot = i64(shared()), i64(state), call(i64(shared()).long_from, k)
    watch = 0
    if slot != 0:
        watch = call(g.dict_get, obj(tape).hooks, slot)
    drop_position(slot, 0)
    flags = u8(s.flags)
    if watch == 0 or flags[k] & (RULE | FOREIGN) != RULE or i64(s.descriptors)[k] == -1:
        return 0
    if has_items(watch, g.post_text) or (flags[k] & SINK and has_items(watch, g.pre_text)):
        return 0
    work = s.work
    way = way_of(state, k)
    s.work = work
    if way != DONE:
        return 0
    put_gradient(state, k, ct)
    flags[k], s.finish = flags[k] - RULE, 0
    return 1


def has_items(x: int, name: int) -> int:
    """Whether there is anything in the dict that an attribute is."""
    g = i64(shared())
    found = call(g.get_attribute, x, name)
    if found == 0:
        invoke(g.error_clear)
        return 1
    return drop_position(found, 1 * (obj(found).size != 0))


def through_hooks(state: int, tape: int, k: int, ct: int) -> int:
    """Record k's cotangent as its hooks leave it, a new reference for that to `ct`; 0 with an error set.

    Where it is a gradient that the sweep is for, that is what hooks of the Tensor leave.
    """
    g, s, args, out = i64(shared()), i64(state), stack(3), 0
    i64(args)[0], i64(args)[1], i64(args)[2] = tape, call(g.long_from, k), ct
    pair = 0
    if i64(args)[1] != 0:
        pair = call(g.vectorcall, g.call_hooks, args, 3, 0)
        invoke(g.decref, i64(args)[1])
    if pair != 0:
        out = i64(pair + TUPLE_ITEMS_AT)[1]
        if u8(s.flags)[k] & (SINK | FOREIGN) == SINK:
            put_gradient(state, k, i64(pair + TUPLE_ITEMS_AT)[0])
        invoke(g.incref, out)
        invoke(g.decref, pair)
    return drop_position(ct, out)


def through_post_hooks(state: int, tape: int, k: int, ct: int, parts: int) -> int:
    """What a rule gave as hooks of its node leave it, a new reference for `parts`; 0 with an error set."""
    g, args, found = i64(shared()), stack(5), 0
    i64(args)[0], i64(args)[1], i64(args)[2] = tape, call(g.long_from, state), call(g.long_from, k)
    i64(args)[3], i64(args)[4] = ct, parts
    if i64(args)[1] != 0 and i64(args)[2] != 0:
        found = call(g.vectorcall, g.call_post_hooks, args, 5, 0)
    drop_position(i64(args)[1], 0)
    drop_position(i64(args)[2], 0)
    return drop_position(parts, found)


def parts_by_rule(state: int, tape: int, log: int, k: int, ct: int, tensors: int, function: int) -> int:
    """A new reference to what a function in Python makes of record k's rule; 0 with an error set.

    It gets the op, the cotangent, the result, the operands, attributes, and the slots wanted; result and
    operands as `tensors` if that is 1, operands that are constants if it is 2.
    """
    g, s, args, q = i64(shared()), i64(state), stack(6), 0
    w, slot, values, wanted = i64(s.word)[k], call(g.long_from, k), call(g.new_list, 0), call(g.new_list, 0)
    form = i64(s.operations)[ROW * (w & 0xFFFF) + FORM]
    out = value_of_record(state, tape, log, k, tensors == 1)
    failed = 1 * (ct == 0 or slot == 0 or values == 0 or wanted == 0 or out == 0)
    at = operands(w, form)
    while at != 0 and failed == 0:
        j = (at & 0xFFFF) - 1
        as_tensor = tensors == 1 or (tensors == 2 and i64(s.word)[j] & 0xFFFF == CONST)
        x = value_of_record(state, tape, log, j, as_tensor)
        failed = 1 * (x == 0)
        if failed == 0:
            failed = call(g.append, values, x) & 0xFFFFFFFF
            invoke(g.decref, x)
        if u8(s.flags)[j] & NEED and failed == 0:
            place = call(g.long_from, q)
            failed = 1 * (place == 0)
            if failed == 0:
                failed = call(g.append, wanted, place) & 0xFFFFFFFF
                invoke(g.decref, place)
        q += 1
        at = following(s.word, at, form)
    found = 0
    if failed == 0:
        i64(args)[0], i64(args)[1], i64(args)[2] = i64(obj(g.ops).items)[w & 0xFFFF], ct, out
        i64(args)[3], i64(args)[4], i64(args)[5] = values, g.none_at_all, wanted
        attrs = call(g.dict_get, obj(tape).attrs, slot)
        if attrs != 0:
            i64(args)[4] = attrs
        found = call(g.vectorcall, function, args, 6, 0)
    drop_position(out, 0)
    drop_position(slot, 0)
    drop_position(values, 0)
    return drop_position(wanted, found)


def kept_value(state: int, log: int, j: int) -> int:
    """The value of record j, borrowed: of an open tape's log, or in a sealed tape's list of values."""
    width = i64(state).width
    return i64(obj(log).items)[width * j + width - 1]


def value_or_shape(state: int, tape: int, log: int, j: int) -> int:
    """A new reference to the value of record j, or to something of its shape where a sealed tape has none.

    0 with an error set.
    """
    g, value, args = i64(shared()), kept_value(state, log, j), stack(2)
    if value != g.none_at_all:
        invoke(g.incref, value)
        return value
    i64(args)[0], i64(args)[1], value = obj(tape).columns, call(g.long_from, j), 0
    if i64(args)[1] != 0:
        value = call(g.vectorcall, g.value_or_shape, args, 2, 0)
    return drop_position(i64(args)[1], value)


def constant_tensor(value: int) -> int:
    """A new Tensor without history of a value, of which the reference is taken; 0 with an error set."""
    g = i64(shared())
    x = call(g.allocate_object, g.tensor_type, 0)
    if x == 0:
        return drop_position(value, 0)
    for _ in range(3):
        invoke(g.incref, g.none_at_all)
    obj(x).v, obj(x).tape = value, g.none_at_all
    obj(x).at, obj(x).extra = g.none_at_all, g.none_at_all
    return x


def value_of_record(state: int, tape: int, log: int, j: int, as_tensor: int) -> int:
    """A new reference to the value of record j, or a new Tensor that goes on from it; 0 with an error set."""
    g, s, opcode = i64(shared()), i64(state), i64(i64(state).word)[j] & 0xFFFF
    if as_tensor and s.batched == 0 and s.width == 1 and opcode < CONS:
        return recalled(state, tape, j, kept_value(state, log, j))
    value = value_or_shape(state, tape, log, j)
    if value == 0 or as_tensor == 0:
        return value
    if s.batched:
        return constant_tensor(value)
    x, at = call(g.allocate_object, g.tensor_type, 0), call(g.long_from, 4 * (j + 1))
    if x == 0 or at == 0:
        drop_position(x, 0)
        drop_position(at, 0)
        return drop_position(value, 0)
    invoke(g.incref, tape)
    invoke(g.incref, g.none_at_all)
    obj(x).v, obj(x).tape = value, tape
    obj(x).at, obj(x).extra = at, g.none_at_all
    return x


def recalled(state: int, tape: int, j: int, value: int) -> int:
    """A new reference to the Tensor that a sweep to be recorded has for import j of a sealed tape.

    It is the same wherever a rule takes it, so the open tape imports it once. 0 with an error set.
    """
    g, s, args = i64(shared()), i64(state), stack(3)
    known = i64(obj(s.recalled).items)
    if known[j] == 0 and i64(s.word)[j] & 0xFFFF == CONST:
        invoke(g.incref, value)
        known[j] = constant_tensor(value)
    elif known[j] == 0:
        i64(args)[0], i64(args)[1], i64(args)[2] = tape, call(g.long_from, j), value
        known[j] = call(g.vectorcall, g.recall_import, args, 3, 0)
        drop_position(i64(args)[1], 0)
    if known[j] != 0:
        invoke(g.incref, known[j])
    return known[j]


def cotangent_of(state: int, tape: int, log: int, k: int) -> int:
    """Record k's cotangent as an array or a number like its value, to be read before the sweep goes on.

    0 with an error set.
    """
    g, at, out = i64(shared()), i64(i64(state).cotangents)[k], 0
    value = value_or_shape(state, tape, log, k)
    if value == 0:
        return 0
    if obj(value).type == g.ndarray_type:
        invoke(g.incref, obj(value).descr)
        out = call(g.new_array, g.ndarray_type, obj(value).descr, obj(value).ndim,
                   obj(value).dims, 0, at, C_CONTIGUOUS | ALIGNED, 0)  # fmt: skip
    else:
        out = call(g.allocate_object, obj(value).type, 0)
        if out != 0:
            copy(out + SCALAR_AT, at, code_of(value) >> 8)
    return drop_position(value, out)
