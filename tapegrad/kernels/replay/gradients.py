"""Compiled: the gradients of results on one tape, from Tensors to Tensors without a frame of Python.

What is out of the ordinary (ways to several tapes, modes, results that do not depend on an input) is left
to `tapegrad.engine`, and then nothing has been done. Between the first look at a tape and the last record
swept nothing runs that could change it; but where rules in Python and hooks run in between, or Python's lock
is released, the tape is claimed before (`suspending`).
"""

from tapegrad.kernels.dialect import call, copy, i64, invoke, obj, shared, stack, u8
from tapegrad.kernels.replay.admitting import memory_like
from tapegrad.kernels.replay.layout import *
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
    value_at,
)
from tapegrad.kernels.replay.suspending import (
    has_items,
    is_left,
    mark_spent,
    plan_whole,
    suspended,
    watched_leaves,
)
from tapegrad.kernels.replay.sweep import run_open


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


def values_of(tape: int) -> int:
    """The list that has a tape's values, borrowed: its log, or of one that is sealed that of its columns."""
    columns = obj(tape).columns
    if columns == i64(shared()).none_at_all:
        return obj(tape).log
    return obj(columns).columns_values


def width_of(tape: int) -> int:
    """How many entries that list has for each record."""
    return 4 - 3 * (obj(tape).columns != i64(shared()).none_at_all)


def sweepable(root: int, recorded: int) -> int:
    """Whether nothing on the tape of a result, this thread's open one or one that was left, wants more.

    Hooks may be there, but if the sweep is recorded, which is on the open tape.
    """
    g, tape = i64(shared()), obj(root).tape
    if tape == 0 or tape == g.none_at_all:
        return 0
    if is_left(tape):
        if recorded:
            return 0
    elif is_own(tape) == 0:
        return 0
    if (recorded and obj(tape).freed != g.none_at_all) or obj(g.open_levels).set_size != 0:
        return 0
    for place in range(HOOKS_SLOT, CLAIMS_SLOT + 1):  # dicts that a tape of ordinary records has nothing in
        if (place != HOOKS_SLOT or recorded) and obj(i64(tape + g[place])[0]).size != 0:
            return 0
    return 1


def leaves_of(tape: int, held: int, living: int) -> int:
    """Hold the leaves of a tape, all that it imports; their number, 0 where Python is to look at them.

    Only those that there are still, if it is for the `living` alone; else one that is gone has a stand-in.
    """
    g, place, pair, n = i64(shared()), stack(1), stack(2), 0
    if tape == 0 or tape == g.none_at_all:
        return 0
    leaves, which = obj(tape).leaves, 0
    size = obj(leaves).size
    if obj(obj(tape).imports).size != size:  # some are imported as others can write to them
        leaves, which = obj(tape).imports, 1
        size = obj(leaves).size
    if size > QUICK_INPUTS and living == 0:
        return 0
    if obj(obj(tape).retained).size != 0:
        return 0
    i64(place)[0] = 0
    for _ in range(size):
        if call(g.dict_next, leaves, place, pair, pair + 8) & 0xFFFFFFFF == 0:
            return release_held(held, 0, n)
        cell = i64(pair)[which]
        if which:
            if imports_of(tape, cell) < 0:
                return release_held(held, 0, n)
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
            if x == g.none_at_all:
                invoke(g.decref, x)
                x = cell
                invoke(g.incref, x)
            i64(held)[n] = x
            n += 1
            if x != cell:
                if obj(x).tape != g.none_at_all or obj(x).at != cell:
                    return release_held(held, 0, n)
    for q in range(n):  # now, as anything may run where objects are made
        cell = i64(held)[q]
        if obj(cell).type == g.cell_type:
            x = stand_in(tape, cell)
            if x == 0:
                return release_held(held, 0, n)
            i64(held)[q] = x
            invoke(g.decref, cell)
    return n


def stand_in(tape: int, cell: int) -> int:
    """A new Tensor without extra state for a leaf that is gone: a sweep goes there, too; 0 for Python."""
    g = i64(shared())
    x = call(g.allocate_object, g.tensor_type, 0)
    if x == 0:
        invoke(g.error_clear)
        return 0
    place, value = imports_of(tape, cell), 0
    if place > 0:
        value = value_at(tape, place)
    if value == 0 or value == g.none_at_all:
        invoke(g.decref, x)
        return 0
    invoke(g.incref, value)
    invoke(g.incref, cell)
    for _ in range(2):
        invoke(g.incref, g.none_at_all)
    obj(x).v, obj(x).at = value, cell
    obj(x).tape, obj(x).extra = g.none_at_all, g.none_at_all
    return x


def sink_of(tape: int, x: int) -> int:
    """The position of an input on the tape; 0 where Python is to look at it."""
    g, place = i64(shared()), 0
    if obj(x).type != g.tensor_type:
        return 0
    at, value = obj(x).at, obj(x).v
    if has_previous_cells(x, tape):
        return 0
    if obj(x).tape != tape:
        if obj(x).tape != g.none_at_all or at == g.none_at_all or at == 0:
            return 0
        if obj(at).type != g.cell_type:
            return 0
        place = max(imports_of(tape, at), 0)
    elif at != 0:
        place = call(g.long_as, at)
    if value == 0:
        return 0
    return place * (is_number(value) or dense(value))


def imports_of(tape: int, cell: int) -> int:
    """The position of the record that imports a leaf; 0 for none; -1 for several, as others wrote to it."""
    g, place, pair, found = i64(shared()), stack(1), stack(2), 0
    imports, leaves = obj(tape).imports, obj(tape).leaves
    if obj(imports).size == obj(leaves).size:  # one for each
        found = call(g.dict_get, leaves, cell)
        if found != 0:
            found = call(g.long_as, found)
        return found
    i64(place)[0] = 0
    while call(g.dict_next, imports, place, pair, pair + 8) & 0xFFFFFFFF != 0:
        if i64(pair)[1] == cell:
            if found != 0:
                return -1
            found = 4 * (call(g.long_as, i64(pair)[0]) + 1)
    return found


def has_hooks(x: int) -> int:
    """Whether something is attached to a Tensor that is a leaf."""
    g, at = i64(shared()), obj(x).at
    if at == 0 or obj(x).tape != g.none_at_all:
        return 0
    if obj(at).type != g.cell_type:
        return 0
    return obj(at).cell_hooks != g.none_at_all


def is_waited_for(x: int) -> int:
    """Whether hooks of a leaf's node are to be called as its ``.grad`` is there, or before."""
    if has_hooks(x) == 0:
        return 0
    g, hooks = i64(shared()), obj(obj(x).at).cell_hooks
    if has_items(hooks, g.pre_text) or has_items(hooks, g.post_text):
        return 1
    return has_items(hooks, g.accumulated_text)


def has_previous_cells(x: int, tape: int) -> int:
    """Whether a tape, or any if that is 0, knows a leaf by what it was before its value or role changed."""
    g, state, args, known = i64(shared()), obj(x).extra, stack(1), 0
    if state == g.none_at_all:
        return 0
    cells = call(g.get_attribute, state, g.cells_text)
    if cells == 0:
        invoke(g.error_clear)
        return 1
    for k in range(obj(cells).size):  # weak references, in an empty tuple or a list
        cell = call(g.vectorcall, i64(obj(cells).items)[k], args, 0, 0)
        if cell == 0:
            invoke(g.error_clear)
            known = 1
        elif cell != g.none_at_all and tape == 0:
            known = 1
        elif cell != g.none_at_all and imports_of(tape, cell) != 0:
            known = 1
        drop_position(cell, 0)
    return drop_position(cells, known)


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
            for q in range(n):
                if i64(i64(state).result_arrays)[q] != 0:
                    i64(values)[q] = i64(i64(state).result_arrays)[q]  # perhaps what a rule has made
        if status == DONE:
            give_values(state, values, n, out)
            if how & ALL_LEAVES:
                sort_ripe(state, held, out)
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
    records, state = obj(values_of(tape)).size // width_of(tape), g.idle_state
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
    by_rule = s.rules + obj(obj(tape).calls).size + obj(obj(tape).hooks).size + watched_leaves(state)
    if by_rule == 0 and s.work <= s.work_limit:
        status = run_open(state)
        if call(g.error_occurred) != 0:  # in a function of SciPy's: raised by the sweep in Python
            invoke(g.error_clear)
            status = UNHANDLED
        elif status != DONE:
            status = UNHANDLED  # also without memory, where Python says what there is none for
        elif leave_swept(state, tape, marks) == 0:
            status = MEMORY
    elif by_rule and how & WATCHED:
        status = UNHANDLED  # a sweep in parts tells of rules in Python
    else:
        log = values_of(tape)
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
    mark_spent(state, tape, marks)
    i64(args)[0] = tape
    left = call(g.vectorcall, g.end_sweep, args, 1, 0)
    return drop_position(left, left)


def planned(state: int, held: int, n: int, how: int) -> int:
    """Plan the sweep of an open tape: DONE if it can run, UNDESCRIBED if it could."""
    g, s, h = i64(shared()), i64(state), i64(held)
    root = h[ROOT]
    s.is_recorded, s.batched = how & RERECORDED != 0, 0
    s.in_part = how & ALL_LEAVES != 0
    if obj(root).type != g.tensor_type:
        return UNHANDLED
    tape = obj(root).tape
    if tape == 0 or tape == g.none_at_all:
        return UNHANDLED
    if sweepable(root, s.is_recorded) == 0:
        return UNHANDLED
    s.links_lead = 0
    if how & ALONE == 0 and obj(obj(tape).older).size != 0:
        s.links_lead = 1 - are_young(tape, held, n) * (how & ALL_LEAVES == 0)
    log, s.width = values_of(tape), width_of(tape)
    if s.width == 1 and how & WATCHED:
        return UNHANDLED  # what tells of a sweep looks at columns of the state's own
    records = obj(log).size // s.width
    if records == 0 or records != s.records or s.seed_count > records:
        return UNHANDLED
    s.read_count = 1 * (how & WATCHED == 0)
    s.sink_count, s.oldest = n, records * (s.read_count and s.links_lead == 0)
    for q in range(n):
        at = sink_of(tape, h[q])
        if at == 0:
            return UNHANDLED
        i64(s.ripe)[q] = WATCHED_LEAF * has_hooks(h[q])
        if i64(s.ripe)[q] != 0 and s.is_recorded:
            return UNHANDLED
        i64(s.sinks)[q] = at // 4 - 1
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
            if obj(at).type != g.cell_type or has_previous_cells(x, 0):
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


def describe(state: int, root: int) -> int:
    """Let Python note words for the records that lack them; 0 with an error set."""
    g, args = i64(shared()), stack(2)
    i64(args)[0], i64(args)[1] = obj(root).tape, call(g.long_from, state)
    done = call(g.vectorcall, g.describe, args, 2, 0)
    invoke(g.decref, i64(args)[1])
    return drop_position(done, done)


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


def sort_ripe(state: int, held: int, out: int) -> int:
    """Let leaves whose gradients hooks have seen come first, with these, in the order of that."""
    s, h, items, ripe = i64(state), i64(held), i64(out + TUPLE_ITEMS_AT), i64(i64(state).ripe)
    for first in range(watched_leaves(state)):
        best = first
        for q in range(first + 1, s.sink_count):
            if ripe[q] > ripe[best]:
                best = q
        h[first], h[best] = h[best], h[first]
        items[first], items[best] = items[best], items[first]
        ripe[first], ripe[best] = ripe[best], ripe[first]
    return 0


def deposit_grads(held: int, n: int, found: int) -> int:
    """Let leaves that have no gradient have these, or Python add them: True; 0 with an error set."""
    g, h, items = i64(shared()), i64(held), i64(found + TUPLE_ITEMS_AT)
    alone, out = obj(g.turns).size == 0, g.true
    for q in range(n):
        if obj(h[q]).extra == g.none_at_all:  # a leaf that is gone
            invoke(g.decref, items[q])
            invoke(g.incref, g.none_at_all)
            items[q] = g.none_at_all
        if alone and items[q] != g.none_at_all:
            alone = has(obj(h[q]).extra, g.grad_text, g.none_at_all) * (is_waited_for(h[q]) == 0)
            if alone:  # hooks and rules may have ended that
                alone = has(obj(h[q]).extra, g.requires_grad_text, g.true)
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
