"""Compiled: the gradients of a result on the open tape, from a Tensor to Tensors without a frame of Python.

What is out of the ordinary (roots on several tapes, hooks, modes, results that do not depend on an input)
is left to `tapegrad.engine`, and then nothing has been done. Between the first look at a tape and the last
record swept nothing runs that could change it; but where rules in Python run in between, or Python's lock is
released, the tape is claimed before (`suspended`).
"""

from tapegrad.kernels.dialect import call, copy, i64, invoke, obj, shared, stack, u8
from tapegrad.kernels.replay.admitting import memory_like
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.links import deposit
from tapegrad.kernels.replay.loops import checksum
from tapegrad.kernels.replay.memory import reset
from tapegrad.kernels.replay.operands import (
    code_of,
    drop_position,
    extent_of,
    has,
    in_force,
    is_dense,
    is_own,
    same_words,
    size_of,
)
from tapegrad.kernels.replay.reading import following, operands
from tapegrad.kernels.replay.records import count_of
from tapegrad.kernels.replay.sweep import plan_open, run, run_open, spend, start_open


def gradients_of(self: int, args: int, count: int) -> int:
    """``(roots, cotangents, inputs, whether to retain, whether older tapes are none of its)``.

    A tuple of Tensors; None: left to Python. Roots, cotangents and inputs are one each, or tuples or lists;
    None for the cotangents of roots of one element.
    """
    g, given, held, out = i64(shared()), i64(args), stack(HELD_WORDS), UNHANDLED
    if count == 4 or count == 5:
        m = hold_roots(given[0], given[1], held)
        n = 0
        if m > 0:
            n = hold(given[2], held)
        if n > 0:
            out = results(n)
            if out != 0:
                how = RETAIN * (given[3] == g.true)
                if count == 5:
                    how = how | ALONE * (given[4] == g.true)
                out = swept(held, m, n, how, out)
        release_held(held, m, n)
    return none_for(out)


def backward_from(self: int, args: int, count: int) -> int:
    """``(roots, cotangents, whether to retain)``, to ``.grad`` of all leaves; None: left to Python."""
    g, given, held, out = i64(shared()), i64(args), stack(HELD_WORDS), UNHANDLED
    if count == 3:
        m, n = hold_roots(given[0], given[1], held), 0
        if m > 0:
            if obj(i64(held)[ROOT]).type == g.tensor_type:
                n = leaves_of(obj(i64(held)[ROOT]).tape, held, 0)
        if n > 0:
            out = results(n)
            if out != 0:
                out = swept(held, m, n, RETAIN * (given[2] == g.true) | ALL_LEAVES, out)
            if out != 0 and out != UNHANDLED:
                out = deposit_grads(held, n, out)
        release_held(held, m, n)
    return none_for(out)


def none_for(out: int) -> int:
    """What a function gives Python: a new reference to None where it is left to that, else what was found."""
    g = i64(shared())
    if out == UNHANDLED:
        out = g.none_at_all
        invoke(g.incref, out)
    return out


def hold(x: int, held: int) -> int:
    """Hold an object, or those in a tuple or a list; how many, 0 where they are too many."""
    g, one, n = i64(shared()), stack(1), 1
    i64(one)[0] = x
    items = one
    if obj(x).type == g.tuple_type:
        items, n = x + TUPLE_ITEMS_AT, obj(x).size
    elif obj(x).type == g.list_type:
        items, n = obj(x).items, obj(x).size
    if n > QUICK_INPUTS:
        return 0
    for q in range(n):
        i64(held)[q] = i64(items)[q]
        invoke(g.incref, i64(held)[q])
    return n


def hold_roots(roots: int, cotangents: int, held: int) -> int:
    """Hold roots, and a cotangent or None for each; how many, 0 where Python is to look at them."""
    g, m = i64(shared()), hold(roots, held + 8 * ROOT)
    if cotangents == g.none_at_all:
        for q in range(m):
            i64(held)[COTANGENT + q] = cotangents
            invoke(g.incref, cotangents)
        return m
    n = hold(cotangents, held + 8 * COTANGENT)
    if n == m:
        return m
    for q in range(n):
        invoke(g.decref, i64(held)[COTANGENT + q])
    for q in range(m):
        invoke(g.decref, i64(held)[ROOT + q])
    return 0


def release_held(held: int, m: int, n: int) -> int:
    """Let go of m roots with their cotangents, and of n inputs."""
    g, h = i64(shared()), i64(held)
    for q in range(n):
        invoke(g.decref, h[q])
    for q in range(m):
        invoke(g.decref, h[ROOT + q])
        invoke(g.decref, h[COTANGENT + q])
    return 0


def results(n: int) -> int:
    """A new tuple of Tensors without values; 0 with an error set.

    Made before anything is looked at: making objects may collect garbage, and finalizers do anything.
    """
    g = i64(shared())
    out = call(g.new_tuple, n)
    for q in range(n):
        if out != 0:
            x = call(g.allocate_object, g.tensor_type, 0)
            if x == 0:
                invoke(g.decref, out)
                out = 0
            else:
                i64(out + TUPLE_ITEMS_AT)[q] = x
    return out


def sweepable(root: int, alone: int, recorded: int) -> int:
    """Whether a result lies on this thread's open tape, and nothing there wants more than its records.

    Hooks may be there, but if the sweep is recorded.
    """
    g, first = i64(shared()), LINKS_SLOT
    if alone:
        first = LINKS_SLOT + 1
    tape = obj(root).tape
    if tape == 0 or tape == g.none_at_all:
        return 0
    if call(g.long_as, obj(tape).limit) < 0:
        return 0
    if is_own(tape) == 0:
        return 0
    if obj(tape).freed != g.none_at_all or obj(g.open_levels).set_size != 0:
        return 0
    for place in range(first, CLAIMS_SLOT + 1):  # dicts that a tape of ordinary records has nothing in
        if (place != HOOKS_SLOT or recorded) and obj(i64(tape + g[place])[0]).size != 0:
            return 0
    return 1


def leaves_of(tape: int, held: int, living: int) -> int:
    """Hold the leaves of a tape, all that it imports; their number, 0 where Python is to look at them.

    Only those that there are still, if it is for the `living` alone.
    """
    g, place, pair, n = i64(shared()), stack(1), stack(2), 0
    if tape == 0 or tape == g.none_at_all:
        return 0
    leaves = obj(tape).leaves
    size = obj(leaves).size
    if (size > QUICK_INPUTS and living == 0) or obj(obj(tape).imports).size != size:
        return 0
    if obj(obj(tape).retained).size != 0:
        return 0
    i64(place)[0] = 0
    for _ in range(size):
        if call(g.dict_next, leaves, place, pair, pair + 8) & 0xFFFFFFFF == 0:
            return release_held(held, 0, n)
        cell = i64(pair)[0]
        x = call(g.vectorcall, obj(cell).cell_handle, pair, 0, 0)
        if x == 0:
            invoke(g.error_clear)
            return release_held(held, 0, n)
        if x == g.none_at_all and living:
            invoke(g.decref, x)
        elif n == QUICK_INPUTS:
            invoke(g.decref, x)
            return release_held(held, 0, n)
        else:
            i64(held)[n] = x
            n += 1
            if x == g.none_at_all:
                return release_held(held, 0, n)
            if obj(x).tape != g.none_at_all or obj(x).at != cell:
                return release_held(held, 0, n)
    return n


def sink_of(tape: int, x: int) -> int:
    """The position of an input on the tape, borrowed; 0 where Python is to look at it."""
    g = i64(shared())
    if obj(x).type != g.tensor_type:
        return 0
    at, value, state = obj(x).at, obj(x).v, obj(x).extra
    if state != g.none_at_all:
        cells = call(g.get_attribute, state, g.cells_text)
        if cells == 0:
            invoke(g.error_clear)
            return 0
        known = knows_any(tape, cells)
        invoke(g.decref, cells)
        if known:
            return 0
    if obj(x).tape != tape:
        if obj(x).tape != g.none_at_all or at == g.none_at_all or at == 0:
            return 0
        if obj(at).type != g.cell_type:
            return 0
        if obj(at).cell_hooks != g.none_at_all:
            return 0
        at = call(g.dict_get, obj(tape).leaves, at)
    if at == 0 or value == 0:
        return 0
    return at * (is_number(value) or dense(value))


def knows_any(tape: int, cells: int) -> int:
    """Whether a tape has imported a leaf by one of these cells, given as weak references."""
    g, args = i64(shared()), stack(1)
    for k in range(obj(cells).size):  # an empty tuple, or a list
        cell = call(g.vectorcall, i64(obj(cells).items)[k], args, 0, 0)
        if cell == 0:
            invoke(g.error_clear)
            return 1
        known = call(g.dict_get, obj(tape).leaves, cell)
        invoke(g.decref, cell)
        if known != 0:
            return 1
    return 0


def is_number(x: int) -> int:
    """Whether this is a NumPy scalar of a dtype that gradients have in compiled code."""
    code = code_of(x) & 0xFF
    return obj(x).type != i64(shared()).ndarray_type and code > 0 and code <= DIFFERENTIABLE


def dense(x: int) -> int:
    """Whether this is an array in C order, not empty, of a dtype that gradients have in compiled code."""
    g, code = i64(shared()), code_of(x)
    if obj(x).type != g.ndarray_type or code & 0xFF > DIFFERENTIABLE or code == 0:
        return 0
    if is_dense(x) == 0:
        return 0
    return extent_of(x, 0, obj(x).ndim) > 0


def seed_of(root: int, seed: int) -> int:
    """The address of a cotangent that is as the root's value; 0 if none is given, UNHANDLED for any other."""
    g, value = i64(shared()), obj(root).v
    if seed == g.none_at_all:
        return 0
    if obj(seed).type == g.tensor_type:
        seed = obj(seed).v
    if seed == 0 or value == 0:
        return UNHANDLED
    if obj(seed).type != obj(value).type:
        return UNHANDLED
    if is_number(seed):
        return seed + SCALAR_AT
    if dense(seed) == 0 or obj(seed).descr != obj(value).descr:
        return UNHANDLED
    if same_words(seed, value, DIMS_AT) == 0 or obj(seed).flags & ALIGNED == 0:
        return UNHANDLED
    return obj(seed).data


def swept(held: int, m: int, n: int, how: int, out: int) -> int:
    """Fill a tuple of results, or let go of it: UNHANDLED with nothing done, 0 with an error set."""
    g, values, root, status = i64(shared()), stack(QUICK_INPUTS), i64(held)[ROOT], UNHANDLED
    state = workspace(root)
    if state == 0:
        status = MEMORY
    for q in range(n):
        i64(values)[q] = 0
    if state > UNHANDLED:
        i64(state).seed_count = m
        watch = watch_of(state)
        status = UNHANDLED * (watch == UNHANDLED) + MEMORY * (watch == 0)
        if m > 1 and status == DONE and watch != g.none_at_all:
            status = UNHANDLED  # it is told of one root
        for q in range(n):
            if status == DONE:
                status = value_for(state, obj(root).tape, values, q, i64(held)[q])
        if status == DONE:
            status = attempt(state, held, n, how | WATCHED * (watch != g.none_at_all))
        if status == DONE:
            give_values(state, values, n, out)
        if i64(state).blocks != 0 and (status != DONE or i64(state).held_bytes > g.kept_bytes):
            reset(state)  # blocks of cotangents on their way, or more than is kept
        if watch > UNHANDLED:
            if watch != g.none_at_all:
                status = end_watch(state, root, watch, status)
            invoke(g.decref, watch)
        i64(state).check, i64(state).stamps = 0, 0  # also where an interrupt came as they were set
        i64(state).next_state = g.idle_state
        g.idle_state = state
    if status != DONE:
        for q in range(n):
            if i64(values)[q] != 0:
                invoke(g.decref, i64(values)[q])
        invoke(g.decref, out)
        out = UNHANDLED * (status != MEMORY)
    return out


def workspace(root: int) -> int:
    """The state for a sweep of a result's tape, its own until it is idle; UNHANDLED; 0 with an error set.

    Looked for first: where Python makes one, anything may run.
    """
    g, args = i64(shared()), stack(2)
    if obj(root).type != g.tensor_type:
        return UNHANDLED
    tape = obj(root).tape
    if tape == 0 or obj(tape).type != g.tape_type:
        return UNHANDLED
    records, state = obj(obj(tape).log).size // 4, g.idle_state
    if state != 0:
        g.idle_state = i64(state).next_state
        i64(state).records = records
        if i64(state).room >= records:
            if i64(state).known_version == i64(obj(g.version).items)[0]:
                return state
    i64(args)[0], i64(args)[1] = call(g.long_from, state), call(g.long_from, records)
    made = call(g.vectorcall, g.workspace, args, 2, 0)
    invoke(g.decref, i64(args)[0])
    invoke(g.decref, i64(args)[1])
    if made == 0:
        return 0
    state = call(g.long_as, made)
    i64(state).records = records
    invoke(g.decref, made)
    return state


def watch_of(state: int) -> int:
    """A new reference to what Python has noted of a sweep in a mode that wants to know of it, else to None.

    UNHANDLED in a mode that wants more; 0 with an error set.
    """
    g, mode, args = i64(shared()), in_force(), stack(1)
    if mode == g.true or mode == g.false:
        invoke(g.incref, g.none_at_all)
        return g.none_at_all
    if mode == 0 or obj(mode).type != g.mode_type:
        return UNHANDLED * (mode != 0)
    if obj(mode).plain != g.true:
        return UNHANDLED
    i64(args)[0] = call(g.long_from, state)
    watch = call(g.vectorcall, g.watch, args, 1, 0)
    return drop_position(i64(args)[0], watch)


def end_watch(state: int, root: int, watch: int, status: int) -> int:
    """Let Python tell of a sweep, if it is done; its status, or MEMORY with an error set."""
    g, args, error = i64(shared()), stack(4), stack(3)
    if status == MEMORY:
        invoke(g.error_take, error, error + 8, error + 16)
    i64(args)[0], i64(args)[1] = call(g.long_from, state), watch
    i64(args)[2], i64(args)[3] = root, call(g.long_from, status)
    done = call(g.vectorcall, g.end_watch, args, 4, 0)
    invoke(g.decref, i64(args)[0])
    invoke(g.decref, i64(args)[3])
    if status == MEMORY:
        if done == 0:
            invoke(g.error_clear)
        invoke(g.error_give, i64(error)[0], i64(error)[1], i64(error)[2])
    elif done == 0:
        status = MEMORY
    return drop_position(done, status)


def value_for(state: int, tape: int, values: int, q: int, x: int) -> int:
    """Make the array or the number of result q, of input x; MEMORY with an error set."""
    g, s, value, like = i64(shared()), i64(state), 0, 0
    i64(s.result_arrays)[q] = 0
    if obj(x).type == g.tensor_type:
        like = obj(x).v
    if like == 0:
        return UNHANDLED
    if obj(like).type == g.ndarray_type:
        size = size_of(like)
        own = 0
        if size >= g.pooled and obj(tape).type == g.tape_type:
            own = is_own(tape)
        if own:
            value = memory_like(tape, like, size)
        else:
            value = call(g.new_like, like, C_ORDER, 0, 0)
        i64(s.result_arrays)[q] = value
    elif is_number(like):
        value = call(g.allocate_object, obj(like).type, 0)
    else:
        return UNHANDLED
    i64(values)[q] = value
    if value == 0:
        return MEMORY
    return DONE


def attempt(state: int, held: int, n: int, how: int) -> int:
    """Sweep the roots' tape, which is left then: DONE; MEMORY with an error set; any other: nothing done."""
    g, s, args, marks = i64(shared()), i64(state), stack(2), 0
    status = planned(state, held, n, how)
    if status == UNDESCRIBED:
        if describe(state, i64(held)[ROOT]) == 0:
            return MEMORY
        status = planned(state, held, n, how)
    if status != DONE:
        return UNHANDLED
    tape = obj(i64(held)[ROOT]).tape
    if how & RETAIN == 0:
        i64(args)[0], i64(args)[1] = call(g.long_from, s.records), g.byte_dtype
        marks = call(g.vectorcall, g.zeros, args, 2, 0)
        invoke(g.decref, i64(args)[0])
        if marks == 0:
            return MEMORY
    by_rule = s.rules + obj(obj(tape).calls).size + obj(obj(tape).hooks).size
    if by_rule == 0 and s.work <= s.work_limit:
        status = run_open(state)
        if status != DONE:
            status = UNHANDLED  # also without memory, where Python says what there is none for
        elif leave_swept(state, tape, marks) == 0:
            status = MEMORY
    elif how & WATCHED and by_rule:
        status = UNHANDLED  # rules in Python are seen by a sweep in parts
    else:
        log = obj(tape).log
        invoke(g.incref, tape)
        invoke(g.incref, log)
        status = suspended(state, tape, log, marks)
        invoke(g.decref, log)
        invoke(g.decref, tape)
    if marks != 0:
        invoke(g.decref, marks)
    return status


def leave_swept(state: int, tape: int, marks: int) -> int:
    """Note on a tape what a sweep has released, and end recording there; 0 with an error set.

    Of one that releases nothing there is nothing to note, and another sweep is likely.
    """
    g, args = i64(shared()), stack(1)
    if marks == 0:
        return 1
    i64(state).freed = obj(marks).data
    spent = spend(state)
    if spent != 0:
        invoke(g.incref, marks)
        invoke(g.incref, g.none_at_all)
        before = obj(tape).held
        obj(tape).freed, obj(tape).held = marks, g.none_at_all
        invoke(g.decref, g.none_at_all)  # what stood in the place of the marks
        invoke(g.decref, before)
    i64(args)[0] = tape
    left = call(g.vectorcall, g.leave, args, 1, 0)
    if left != 0:
        invoke(g.decref, left)
    return left


def planned(state: int, held: int, n: int, how: int) -> int:
    """Plan the sweep of an open tape: DONE if it can run, UNDESCRIBED if it could."""
    g, s, h = i64(shared()), i64(state), i64(held)
    root = h[ROOT]
    s.is_recorded, s.width, s.batched = how & RERECORDED != 0, 4, 0
    s.in_part = s.is_recorded and how & ALL_LEAVES != 0
    if obj(root).type != g.tensor_type:
        return UNHANDLED
    tape = obj(root).tape
    if tape == 0 or tape == g.none_at_all:
        return UNHANDLED
    alone = 1 * (how & ALONE != 0)
    if alone == 0 and how & ALL_LEAVES == 0 and obj(obj(tape).links).size != 0:
        alone = are_young(tape, held, n)
    if sweepable(root, alone, s.is_recorded) == 0:
        return UNHANDLED
    log = obj(tape).log
    records = obj(log).size // 4
    if records == 0 or records != s.records or s.seed_count > records:
        return UNHANDLED
    s.sink_count, s.oldest = n, records * (how & WATCHED == 0)
    for q in range(n):
        at = sink_of(tape, h[q])
        if at == 0:
            return UNHANDLED
        i64(s.sinks)[q] = call(g.long_as, at) // 4 - 1
        s.oldest = min(s.oldest, i64(s.sinks)[q])
        if is_among(s.sinks, q):
            return UNHANDLED
    for q in range(s.seed_count):
        x = h[ROOT + q]
        if obj(x).type != g.tensor_type or obj(x).tape != tape:
            return UNHANDLED
        i64(s.seed_data)[q] = x
        if how & RERECORDED == 0:
            i64(s.seed_data)[q] = seed_of(x, h[COTANGENT + q])
        i64(s.seeds)[q] = call(g.long_as, obj(x).at) // 4 - 1
        s.oldest = min(s.oldest, i64(s.seeds)[q])
        if i64(s.seed_data)[q] == UNHANDLED or is_among(s.seeds, q):
            return UNHANDLED
    return plan_whole(state, tape, log)


def are_young(tape: int, held: int, n: int) -> int:
    """Whether no tape older than this one can depend on any of n inputs."""
    g = i64(shared())
    for q in range(n):
        x = i64(held)[q]
        if obj(x).type != g.tensor_type:
            return 0
        if obj(x).tape != tape:
            at = obj(x).at
            if obj(x).tape != g.none_at_all or at == 0 or at == g.none_at_all:
                return 0
            if obj(at).type != g.cell_type:
                return 0
            if obj(at).cell_since == g.none_at_all:
                return 0
            if call(g.long_as, obj(at).cell_since) != call(g.long_as, obj(tape).serial):
                return 0
    return 1


def is_among(numbers: int, q: int) -> int:
    """Whether number q is one of those before it."""
    for p in range(q):
        if i64(numbers)[p] == i64(numbers)[q]:
            return 1
    return 0


def plan_whole(state: int, tape: int, log: int) -> int:
    """As `plan_open`, where what others can write to is what it was."""
    g, s, at, pair = i64(shared()), i64(state), stack(1), stack(2)
    guards = obj(tape).guards
    s.freed, s.guarded = s.unfreed, obj(guards).size
    s.described = obj(tape).described
    status = plan_open(state, log)
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
        mark_hooked(state, obj(tape).hooks)
    return status


def mark_hooked(state: int, hooks: int) -> int:
    """Let a sweep that is planned come to Python at the records that have hooks."""
    g, s, at, pair = i64(shared()), i64(state), stack(1), stack(2)
    flags = u8(s.flags)
    i64(at)[0] = 0
    while call(g.dict_next, hooks, at, pair, pair + 8) & 0xFFFFFFFF != 0:
        k = call(g.long_as, i64(pair)[0])
        if k >= s.oldest and k < s.records:
            if flags[k] & (NEED | MARK) == NEED | MARK:
                flags[k] = flags[k] | RULE
    return 0


def describe(state: int, root: int) -> int:
    """Let Python note words for the records that lack them; 0 with an error set."""
    g, args = i64(shared()), stack(2)
    i64(args)[0], i64(args)[1] = obj(root).tape, call(g.long_from, state)
    done = call(g.vectorcall, g.describe, args, 2, 0)
    invoke(g.decref, i64(args)[1])
    return drop_position(done, done)


def suspended(state: int, tape: int, log: int, marks: int) -> int:
    """As `run_open`, where Python may run in between: the tape is left, claimed and planned again first."""
    g, s, args, error, status = i64(shared()), i64(state), stack(5), stack(3), UNHANDLED
    i64(args)[0], i64(args)[1], i64(args)[2] = tape, call(g.long_from, state), g.true
    if marks == 0:
        i64(args)[2] = g.false
    claim = call(g.vectorcall, g.claim, args, 3, 0)
    if claim == 0:
        status = MEMORY
    elif claim != g.none_at_all:
        if obj(tape).freed == g.none_at_all:
            status = plan_whole(state, tape, log)
        failed, begun = 0, 1 * (status == DONE)
        if begun:
            start_open(state)
            status = run_freely(state)
        while begun and failed == 0 and (status == PYTHON or status == PAUSED):
            if status == PAUSED:
                failed = call(g.check_signals) & 0xFFFFFFFF
            else:
                failed = run_rule(state, tape, log) == 0
                s.finish = 1
            if failed == 0:
                status = run_freely(state)
        if status == ANOMALY:
            begun, status = 0, UNHANDLED  # a sweep in parts says what is nan
        if failed:
            invoke(g.error_take, error, error + 8, error + 16)
        i64(args)[2], i64(args)[3], i64(args)[4] = claim, marks, call(g.long_from, status * begun)
        if marks == 0 or begun == 0 or failed:
            i64(args)[3] = g.none_at_all
        done = call(g.vectorcall, g.unclaim, args, 5, 0)
        invoke(g.decref, i64(args)[4])
        drop_position(done, 0)
        if failed:
            if done == 0:
                invoke(g.error_clear)
            invoke(g.error_give, i64(error)[0], i64(error)[1], i64(error)[2])
        if failed or done == 0:
            status = MEMORY
    if claim != 0:
        invoke(g.decref, claim)
    invoke(g.decref, i64(args)[1])
    return status


def run_freely(state: int) -> int:
    """As `run`, without Python's lock where that takes longer than giving it up."""
    g, s = i64(shared()), i64(state)
    if s.work <= s.work_limit:
        return run(state)
    thread = call(g.save_thread)
    status = run(state)
    invoke(g.restore_thread, thread)
    return status


def run_rule(state: int, tape: int, log: int) -> int:
    """Run the hooks and the rule in Python that a sweep has come to; 0 with an error set."""
    g, s, out = i64(shared()), i64(state), 1
    k, n = s.position, 0
    ct = cotangent_of(state, k, i64(obj(log).items)[4 * k + 3])
    if obj(obj(tape).hooks).size != 0 and ct != 0:
        ct = through_hooks(state, tape, k, ct)
        if ct != 0 and u8(s.flags)[k] & ACTIVE == 0:
            return drop_position(ct, 1)  # it was for the hooks alone
    found = parts_by_rule(state, tape, log, k, ct, 0, g.apply_rule)
    w = i64(s.word)[k]
    form = i64(s.operations)[ROW * (w & 0xFFFF) + FORM]
    at = operands(w, form) * (found != 0)
    while at != 0 and out != 0:
        j = (at & 0xFFFF) - 1
        if u8(s.flags)[j] & NEED:
            part = i64(obj(found).items)[n]
            n += 1
            if part != g.none_at_all:
                source = part + SCALAR_AT
                if obj(part).type == g.ndarray_type:
                    source = obj(part).data
                if deposit(state, j, source) != DONE:
                    out = 0
                    invoke(g.no_memory)
        at = following(s.word, at, form)
    drop_position(ct, 0)
    return drop_position(found, out * (found != 0))


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
        gradient, out = i64(pair + TUPLE_ITEMS_AT)[0], i64(pair + TUPLE_ITEMS_AT)[1]
        if u8(s.flags)[k] & (SINK | FOREIGN) == SINK:
            if obj(gradient).type == g.ndarray_type:
                copy(i64(s.cotangents)[k], obj(gradient).data, size_of(gradient))
            else:
                copy(i64(s.cotangents)[k], gradient + SCALAR_AT, code_of(gradient) >> 8)
        invoke(g.incref, out)
        invoke(g.decref, pair)
    return drop_position(ct, out)


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
    g, s, value, args = i64(shared()), i64(state), kept_value(state, log, j), stack(3)
    opcode = i64(s.word)[j] & 0xFFFF
    if as_tensor and s.batched:
        invoke(g.incref, value)
        return constant_tensor(value)
    if as_tensor and s.width == 1 and opcode < CONS:
        i64(args)[0], i64(args)[1], i64(args)[2] = tape, call(g.long_from, j), value
        x = call(g.vectorcall, g.recall_import, args, 3, 0)
        return drop_position(i64(args)[1], x)
    invoke(g.incref, value)
    if as_tensor == 0:
        return value
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


def cotangent_of(state: int, k: int, value: int) -> int:
    """Record k's cotangent as an array or a number like its value, to be read before the sweep goes on."""
    g, at = i64(shared()), i64(i64(state).cotangents)[k]
    if obj(value).type == g.ndarray_type:
        invoke(g.incref, obj(value).descr)
        return call(g.new_array, g.ndarray_type, obj(value).descr, obj(value).ndim,
                    obj(value).dims, 0, at, C_CONTIGUOUS | ALIGNED, 0)  # fmt: skip
    out = call(g.allocate_object, obj(value).type, 0)
    if out != 0:
        copy(out + SCALAR_AT, at, code_of(value) >> 8)
    return out


def give_values(state: int, values: int, n: int, out: int) -> int:
    """Let the Tensors of a tuple have their values; None where no cotangent came to an input."""
    g, s = i64(shared()), i64(state)
    for q in range(n):
        value, x = i64(values)[q], i64(out + TUPLE_ITEMS_AT)[q]
        if i64(s.result_arrays)[q] == 0:
            copy(value + SCALAR_AT, s.results + 16 * q, code_of(value) >> 8)
        for _ in range(3):
            invoke(g.incref, g.none_at_all)
        obj(x).v, obj(x).tape = value, g.none_at_all
        i64(values)[q] = 0
        obj(x).at, obj(x).extra = g.none_at_all, g.none_at_all
        if u8(s.flags)[i64(s.sinks)[q]] & FRESH:
            invoke(g.incref, g.none_at_all)
            i64(out + TUPLE_ITEMS_AT)[q] = g.none_at_all
            invoke(g.decref, x)
    return 0


def deposit_grads(held: int, n: int, found: int) -> int:
    """Let leaves that have no gradient have these, or Python add them: True; 0 with an error set."""
    g, h, items = i64(shared()), i64(held), i64(found + TUPLE_ITEMS_AT)
    alone, out = obj(g.turns).size == 0, g.true
    for q in range(n):
        if alone:
            alone = has(obj(h[q]).extra, g.grad_text, g.none_at_all)
    if alone:
        for q in range(n):
            if out != 0 and items[q] != g.none_at_all:
                if call(g.set_attribute, obj(h[q]).extra, g.grad_text, items[q]) & 0xFFFFFFFF:
                    out = 0
    else:
        out = add_grads(held, n, found)
    invoke(g.decref, found)
    if out != 0:
        invoke(g.incref, out)
    return out


def add_grads(held: int, n: int, found: int) -> int:
    """Let Python add gradients to those there are: True, borrowed; 0 with an error set."""
    g, h, args, leaves = i64(shared()), i64(held), stack(2), call(i64(shared()).new_tuple, n)
    if leaves == 0:
        return 0
    for q in range(n):
        invoke(g.incref, h[q])
        i64(leaves + TUPLE_ITEMS_AT)[q] = h[q]
    i64(args)[0], i64(args)[1] = leaves, found
    done = call(g.vectorcall, g.add_grads, args, 2, 0)
    invoke(g.decref, leaves)
    if done == 0:
        return 0
    invoke(g.decref, done)
    return g.true
