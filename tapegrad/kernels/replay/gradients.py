"""Compiled: the gradients of a result on the open tape, from a Tensor to Tensors without a frame of Python.

What is out of the ordinary (several roots, older tapes, hooks, modes, results that do not depend on an input)
is left to `tapegrad.engine`, and then nothing has been done. Between the first look at a tape and the last
record swept nothing runs that could change it; but where rules in Python run in between, or Python's lock is
released, the tape is claimed before (`suspended`).
"""

from tapegrad.kernels.dialect import call, copy, i32, i64, invoke, shared, stack, u8
from tapegrad.kernels.replay.admitting import memory_like
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.loops import checksum
from tapegrad.kernels.replay.memory import reset
from tapegrad.kernels.replay.operands import (
    code_of,
    drop_position,
    extent_of,
    has,
    in_force,
    is_dense,
    same_words,
    size_of,
)
from tapegrad.kernels.replay.reading import following, operands
from tapegrad.kernels.replay.records import count_of
from tapegrad.kernels.replay.sweep import deposit, plan_open, run, run_open, spend, start_open


def gradients_of(self: int, args: int, count: int) -> int:
    """``(root, cotangent or None, inputs, whether to retain, whether older tapes are none of its)``.

    A tuple of Tensors; None: left to Python.
    """
    g, given, out = i64(shared()), i64(args), UNHANDLED
    if count == 4 or count == 5:
        inputs, held, n = given[2], stack(QUICK_INPUTS), 1
        items, kind = args + 16, i64(inputs + TYPE_AT)[0]
        if kind == g[TUPLE_TYPE]:
            items, n = inputs + TUPLE_ITEMS_AT, i64(inputs + LIST_SIZE_AT)[0]
        elif kind == g[LIST_TYPE]:
            items, n = i64(inputs + LIST_ITEMS_AT)[0], i64(inputs + LIST_SIZE_AT)[0]
        if n > 0 and n <= QUICK_INPUTS:
            for q in range(n):
                i64(held)[q] = i64(items)[q]
                invoke(g[INCREF], i64(held)[q])
            out = results(n)
            if out != 0:
                how = RETAIN * (given[3] == g[TRUE])
                if count == 5:
                    how = how | ALONE * (given[4] == g[TRUE])
                out = swept(given[0], given[1], held, n, how, out)
            release_held(held, n)
    if out == UNHANDLED:
        out = g[NONE_AT_ALL]
        invoke(g[INCREF], out)
    return out


def backward_from(self: int, args: int, count: int) -> int:
    """``(root, cotangent or None, whether to retain)``, to ``.grad`` of all leaves; None: left to Python."""
    g, given, out = i64(shared()), i64(args), UNHANDLED
    if count == 3 and i64(given[0] + TYPE_AT)[0] == g[TENSOR_TYPE]:
        tape, held = i64(given[0] + g[TAPE_AT])[0], stack(QUICK_INPUTS)
        n = leaves_of(tape, held)
        if n > 0:
            out = results(n)
            if out != 0:
                out = swept(given[0], given[1], held, n, RETAIN * (given[2] == g[TRUE]), out)
            if out != 0 and out != UNHANDLED:
                out = deposit_grads(held, n, out)
            release_held(held, n)
    if out == UNHANDLED:
        out = g[NONE_AT_ALL]
        invoke(g[INCREF], out)
    return out


def release_held(held: int, n: int) -> int:
    """Let go of Tensors held."""
    for q in range(n):
        invoke(i64(shared())[DECREF], i64(held)[q])
    return 0


def results(n: int) -> int:
    """A new tuple of Tensors without values; 0 with an error set.

    Made before anything is looked at: making objects may collect garbage, and finalizers do anything.
    """
    g = i64(shared())
    out = call(g[NEW_TUPLE], n)
    for q in range(n):
        if out != 0:
            x = call(g[ALLOCATE_OBJECT], g[TENSOR_TYPE], 0)
            if x == 0:
                invoke(g[DECREF], out)
                out = 0
            else:
                i64(out + TUPLE_ITEMS_AT)[q] = x
    return out


def sweepable(root: int, alone: int) -> int:
    """Whether a result lies on this thread's open tape, and nothing there wants more than its records."""
    g, first = i64(shared()), LINKS_AT
    if alone:
        first = LINKS_AT + 1
    tape = i64(root + g[TAPE_AT])[0]
    if tape == 0 or tape == g[NONE_AT_ALL]:
        return 0
    if call(g[LONG_AS], i64(tape + g[LIMIT_AT])[0]) < 0:
        return 0
    if call(g[LONG_AS], i64(tape + g[OWNER_AT])[0]) != call(g[THREAD]):
        return 0
    if i64(tape + g[FREED_AT])[0] != g[NONE_AT_ALL] or i64(g[OPEN_LEVELS] + SET_SIZE_AT)[0] != 0:
        return 0
    for place in range(first, CLAIMS_AT + 1):  # dicts that a tape of ordinary records has nothing in
        if i64(i64(tape + g[place])[0] + LIST_SIZE_AT)[0] != 0:
            return 0
    return 1


def leaves_of(tape: int, held: int) -> int:
    """Hold the leaves of a tape, all that it imports; their number, 0 where Python is to look at them."""
    g, place, pair, n = i64(shared()), stack(1), stack(2), 0
    if tape == 0 or tape == g[NONE_AT_ALL]:
        return 0
    leaves = i64(tape + g[LEAVES_AT])[0]
    size = i64(leaves + LIST_SIZE_AT)[0]
    if size > QUICK_INPUTS or i64(i64(tape + g[IMPORTS_AT])[0] + LIST_SIZE_AT)[0] != size:
        return 0
    if i64(i64(tape + g[RETAINED_AT])[0] + LIST_SIZE_AT)[0] != 0:
        return 0
    i64(place)[0] = 0
    while n < size:
        if call(g[DICT_NEXT], leaves, place, pair, pair + 8) & 0xFFFFFFFF == 0:
            return release_held(held, n)
        cell = i64(pair)[0]
        x = call(g[VECTORCALL], i64(cell + g[CELL_HANDLE_AT])[0], pair, 0, 0)
        if x == 0:
            invoke(g[ERROR_CLEAR])
            return release_held(held, n)
        i64(held)[n] = x
        n += 1
        if x == g[NONE_AT_ALL]:
            return release_held(held, n)
        if i64(x + g[TAPE_AT])[0] != g[NONE_AT_ALL] or i64(x + g[AT_AT])[0] != cell:
            return release_held(held, n)
    return n


def sink_of(tape: int, x: int) -> int:
    """The position of an input on the tape, borrowed; 0 where Python is to look at it."""
    g = i64(shared())
    if i64(x + TYPE_AT)[0] != g[TENSOR_TYPE]:
        return 0
    at, value, state = i64(x + g[AT_AT])[0], i64(x + g[V_AT])[0], i64(x + g[EXTRA_AT])[0]
    if state != g[NONE_AT_ALL]:
        cells = call(g[GET_ATTRIBUTE], state, g[CELLS_TEXT])
        if cells == 0:
            invoke(g[ERROR_CLEAR])
            return 0
        known = knows_any(tape, cells)
        invoke(g[DECREF], cells)
        if known:
            return 0
    if i64(x + g[TAPE_AT])[0] != tape:
        if i64(x + g[TAPE_AT])[0] != g[NONE_AT_ALL] or at == g[NONE_AT_ALL] or at == 0:
            return 0
        if i64(at + TYPE_AT)[0] != g[CELL_TYPE]:
            return 0
        if i64(at + g[CELL_WATCH_AT])[0] != g[NONE_AT_ALL]:
            return 0
        at = call(g[DICT_GET], i64(tape + g[LEAVES_AT])[0], at)
    if at == 0 or value == 0:
        return 0
    return at * (is_number(value) or dense(value))


def knows_any(tape: int, cells: int) -> int:
    """Whether a tape has imported a leaf by one of these cells, given as weak references."""
    g, args = i64(shared()), stack(1)
    for k in range(i64(cells + LIST_SIZE_AT)[0]):  # an empty tuple, or a list
        cell = call(g[VECTORCALL], i64(i64(cells + LIST_ITEMS_AT)[0])[k], args, 0, 0)
        if cell == 0:
            invoke(g[ERROR_CLEAR])
            return 1
        known = call(g[DICT_GET], i64(tape + g[LEAVES_AT])[0], cell)
        invoke(g[DECREF], cell)
        if known != 0:
            return 1
    return 0


def is_number(x: int) -> int:
    """Whether this is a NumPy scalar of a dtype that gradients have in compiled code."""
    code = code_of(x) & 0xFF
    return i64(x + TYPE_AT)[0] != i64(shared())[NDARRAY_TYPE] and code > 0 and code <= DIFFERENTIABLE


def dense(x: int) -> int:
    """Whether this is an array in C order, not empty, of a dtype that gradients have in compiled code."""
    g, code = i64(shared()), code_of(x)
    if i64(x + TYPE_AT)[0] != g[NDARRAY_TYPE] or code & 0xFF > DIFFERENTIABLE or code == 0:
        return 0
    if is_dense(x) == 0:
        return 0
    return extent_of(x, 0, i32(x + NDIM_AT)[0]) > 0


def seed_of(root: int, seed: int) -> int:
    """The address of a cotangent that is as the root's value; 0 if none is given, UNHANDLED for any other."""
    g, value = i64(shared()), i64(root + i64(shared())[V_AT])[0]
    if seed == g[NONE_AT_ALL]:
        return 0
    if i64(seed + TYPE_AT)[0] == g[TENSOR_TYPE]:
        seed = i64(seed + g[V_AT])[0]
    if seed == 0 or value == 0:
        return UNHANDLED
    if i64(seed + TYPE_AT)[0] != i64(value + TYPE_AT)[0]:
        return UNHANDLED
    if is_number(seed):
        return seed + SCALAR_AT
    if dense(seed) == 0 or i64(seed + DESCR_AT)[0] != i64(value + DESCR_AT)[0]:
        return UNHANDLED
    if same_words(seed, value, DIMS_AT) == 0 or i32(seed + FLAGS_AT)[0] & ALIGNED == 0:
        return UNHANDLED
    return i64(seed + DATA_AT)[0]


def swept(root: int, seed: int, held: int, n: int, how: int, out: int) -> int:
    """Fill a tuple of results, or let go of it: UNHANDLED with nothing done, 0 with an error set."""
    g, values, state, status = i64(shared()), stack(QUICK_INPUTS), workspace(root), UNHANDLED
    if state == 0:
        status = MEMORY
    for q in range(n):
        i64(values)[q] = 0
    if state > UNHANDLED:
        watch = watch_of(state)
        status = UNHANDLED * (watch == UNHANDLED) + MEMORY * (watch == 0)
        for q in range(n):
            if status == DONE:
                status = value_for(state, i64(root + g[TAPE_AT])[0], values, q, i64(held)[q])
        if status == DONE:
            status = attempt(state, root, seed, held, n, how | WATCHED * (watch != g[NONE_AT_ALL]))
        if status == DONE:
            give_values(state, values, n, out)
        if i64(state)[BLOCKS] != 0 and (status != DONE or i64(state)[HELD_BYTES] > g[KEPT_BYTES]):
            reset(state)  # blocks of cotangents on their way, or more than is kept
        if watch > UNHANDLED:
            if watch != g[NONE_AT_ALL]:
                status = end_watch(state, root, watch, status)
            invoke(g[DECREF], watch)
        i64(state)[CHECK], i64(state)[STAMPS] = 0, 0  # also where an interrupt came as they were set
        i64(state)[NEXT_STATE] = g[IDLE_STATE]
        g[IDLE_STATE] = state
    if status != DONE:
        for q in range(n):
            if i64(values)[q] != 0:
                invoke(g[DECREF], i64(values)[q])
        invoke(g[DECREF], out)
        out = UNHANDLED * (status != MEMORY)
    return out


def workspace(root: int) -> int:
    """The state for a sweep of a result's tape, its own until it is idle; UNHANDLED; 0 with an error set.

    Looked for first: where Python makes one, anything may run.
    """
    g, args = i64(shared()), stack(2)
    if i64(root + TYPE_AT)[0] != g[TENSOR_TYPE]:
        return UNHANDLED
    tape = i64(root + g[TAPE_AT])[0]
    if tape == 0 or i64(tape + TYPE_AT)[0] != g[TAPE_TYPE]:
        return UNHANDLED
    records, state = i64(i64(tape + g[LOG_AT])[0] + LIST_SIZE_AT)[0] // 4, g[IDLE_STATE]
    if state != 0:
        g[IDLE_STATE] = i64(state)[NEXT_STATE]
        i64(state)[RECORDS] = records
        if i64(state)[ROOM] >= records:
            if i64(state)[KNOWN_VERSION] == i64(i64(g[VERSION] + LIST_ITEMS_AT)[0])[0]:
                return state
    i64(args)[0], i64(args)[1] = call(g[LONG_FROM], state), call(g[LONG_FROM], records)
    made = call(g[VECTORCALL], g[WORKSPACE], args, 2, 0)
    invoke(g[DECREF], i64(args)[0])
    invoke(g[DECREF], i64(args)[1])
    if made == 0:
        return 0
    state = call(g[LONG_AS], made)
    i64(state)[RECORDS] = records
    invoke(g[DECREF], made)
    return state


def watch_of(state: int) -> int:
    """A new reference to what Python has noted of a sweep in a mode that wants to know of it, else to None.

    UNHANDLED in a mode that wants more; 0 with an error set.
    """
    g, mode, args = i64(shared()), in_force(), stack(1)
    if mode == g[TRUE] or mode == g[FALSE]:
        invoke(g[INCREF], g[NONE_AT_ALL])
        return g[NONE_AT_ALL]
    if mode == 0 or i64(mode + TYPE_AT)[0] != g[MODE_TYPE]:
        return UNHANDLED * (mode != 0)
    if i64(mode + g[PLAIN_AT])[0] != g[TRUE]:
        return UNHANDLED
    i64(args)[0] = call(g[LONG_FROM], state)
    watch = call(g[VECTORCALL], g[WATCH], args, 1, 0)
    return drop_position(i64(args)[0], watch)


def end_watch(state: int, root: int, watch: int, status: int) -> int:
    """Let Python tell of a sweep, if it is done; its status, or MEMORY with an error set."""
    g, args, error = i64(shared()), stack(4), stack(3)
    if status == MEMORY:
        invoke(g[ERROR_TAKE], error, error + 8, error + 16)
    i64(args)[0], i64(args)[1] = call(g[LONG_FROM], state), watch
    i64(args)[2], i64(args)[3] = root, call(g[LONG_FROM], status)
    done = call(g[VECTORCALL], g[END_WATCH], args, 4, 0)
    invoke(g[DECREF], i64(args)[0])
    invoke(g[DECREF], i64(args)[3])
    if status == MEMORY:
        if done == 0:
            invoke(g[ERROR_CLEAR])
        invoke(g[ERROR_GIVE], i64(error)[0], i64(error)[1], i64(error)[2])
    elif done == 0:
        status = MEMORY
    return drop_position(done, status)


def value_for(state: int, tape: int, values: int, q: int, x: int) -> int:
    """Make the array or the number of result q, of input x; MEMORY with an error set."""
    g, s, value, like = i64(shared()), i64(state), 0, 0
    i64(s[RESULT_ARRAYS])[q] = 0
    if i64(x + TYPE_AT)[0] == g[TENSOR_TYPE]:
        like = i64(x + g[V_AT])[0]
    if like == 0:
        return UNHANDLED
    if i64(like + TYPE_AT)[0] == g[NDARRAY_TYPE]:
        size = size_of(like)
        own = 0
        if size >= g[POOLED] and i64(tape + TYPE_AT)[0] == g[TAPE_TYPE]:
            own = call(g[LONG_AS], i64(tape + g[OWNER_AT])[0]) == call(g[THREAD])
        if own:
            value = memory_like(tape, like, size)
        else:
            value = call(g[NEW_LIKE], like, C_ORDER, 0, 0)
        i64(s[RESULT_ARRAYS])[q] = value
    elif is_number(like):
        value = call(g[ALLOCATE_OBJECT], i64(like + TYPE_AT)[0], 0)
    else:
        return UNHANDLED
    i64(values)[q] = value
    if value == 0:
        return MEMORY
    return DONE


def attempt(state: int, root: int, seed: int, held: int, n: int, how: int) -> int:
    """Sweep a result's tape, which is left then: DONE; MEMORY with an error set; any other: nothing done."""
    g, s, args, marks = i64(shared()), i64(state), stack(2), 0
    status = planned(state, root, seed, held, n, how)
    if status == UNDESCRIBED:
        if describe(state, root) == 0:
            return MEMORY
        status = planned(state, root, seed, held, n, how)
    if status != DONE:
        return UNHANDLED
    tape = i64(root + g[TAPE_AT])[0]
    if how & RETAIN == 0:
        i64(args)[0], i64(args)[1] = call(g[LONG_FROM], s[RECORDS]), g[BYTE_DTYPE]
        marks = call(g[VECTORCALL], g[ZEROS], args, 2, 0)
        invoke(g[DECREF], i64(args)[0])
        if marks == 0:
            return MEMORY
    by_rule = s[RULES] + i64(i64(tape + g[CALLS_AT])[0] + LIST_SIZE_AT)[0]
    if by_rule == 0 and s[WORK] <= s[WORK_LIMIT]:
        status = run_open(state)
        if status != DONE:
            status = UNHANDLED  # also without memory, where Python says what there is none for
        elif leave_swept(state, tape, marks) == 0:
            status = MEMORY
    elif how & WATCHED and by_rule:
        status = UNHANDLED  # rules in Python are seen by a sweep in parts
    else:
        log = i64(tape + g[LOG_AT])[0]
        invoke(g[INCREF], tape)
        invoke(g[INCREF], log)
        status = suspended(state, tape, log, marks)
        invoke(g[DECREF], log)
        invoke(g[DECREF], tape)
    if marks != 0:
        invoke(g[DECREF], marks)
    return status


def leave_swept(state: int, tape: int, marks: int) -> int:
    """Note on a tape what a sweep has released, and end recording there; 0 with an error set."""
    g, args, spent = i64(shared()), stack(1), 0
    if marks != 0:
        i64(state)[FREED] = i64(marks + DATA_AT)[0]
        spent = spend(state)
    if spent != 0:
        invoke(g[INCREF], marks)
        invoke(g[INCREF], g[NONE_AT_ALL])
        before = i64(tape + g[HELD_AT])[0]
        i64(tape + g[FREED_AT])[0], i64(tape + g[HELD_AT])[0] = marks, g[NONE_AT_ALL]
        invoke(g[DECREF], g[NONE_AT_ALL])  # what stood in the place of the marks
        invoke(g[DECREF], before)
    i64(args)[0] = tape
    left = call(g[VECTORCALL], g[LEAVE], args, 1, 0)
    if left != 0:
        invoke(g[DECREF], left)
    return left


def planned(state: int, root: int, seed: int, held: int, n: int, how: int) -> int:
    """Plan the sweep of an open tape: DONE if it can run, UNDESCRIBED if it could."""
    g, s, h = i64(shared()), i64(state), i64(held)
    if sweepable(root, how & ALONE) == 0:
        return UNHANDLED
    tape = i64(root + g[TAPE_AT])[0]
    log = i64(tape + g[LOG_AT])[0]
    records = i64(log + LIST_SIZE_AT)[0] // 4
    if records == 0 or records != s[RECORDS]:
        return UNHANDLED
    s[SEED] = seed_of(root, seed)
    if s[SEED] == UNHANDLED:
        return UNHANDLED
    for q in range(n):
        at = sink_of(tape, h[q])
        if at == 0:
            return UNHANDLED
        i64(s[SINKS])[q] = call(g[LONG_AS], at) // 4 - 1
        for p in range(q):
            if i64(s[SINKS])[p] == i64(s[SINKS])[q]:
                return UNHANDLED
    s[SINK_COUNT] = n
    i64(s[SEEDS])[0] = call(g[LONG_AS], i64(root + g[AT_AT])[0]) // 4 - 1
    return plan_whole(state, tape, log)


def plan_whole(state: int, tape: int, log: int) -> int:
    """As `plan_open`, where what others can write to is what it was."""
    g, s, at, pair = i64(shared()), i64(state), stack(1), stack(2)
    guards = i64(tape + g[GUARDS_AT])[0]
    s[FREED], s[GUARDED] = s[UNFREED], i64(guards + LIST_SIZE_AT)[0]
    s[DESCRIBED] = i64(tape + g[DESCRIBED_AT])[0]
    status = plan_open(state, log)
    i64(at)[0] = 0
    while status == DONE and call(g[DICT_NEXT], guards, at, pair, pair + 8) & 0xFFFFFFFF != 0:
        k = call(g[LONG_AS], i64(pair)[0])
        if k < s[RECORDS]:
            if u8(s[FLAGS])[k] & READ:
                m = i64(s[META])[k]
                size = ((m >> 9) & 0x7F) * count_of(s[SHAPES], m)
                if checksum(i64(s[ADDRESS])[k], size) != call(g[LONG_AS], i64(pair)[1]):
                    status = UNHANDLED  # Python says what was written to
    return status


def describe(state: int, root: int) -> int:
    """Let Python note words for the records that lack them; 0 with an error set."""
    g, args = i64(shared()), stack(2)
    i64(args)[0], i64(args)[1] = i64(root + g[TAPE_AT])[0], call(g[LONG_FROM], state)
    done = call(g[VECTORCALL], g[DESCRIBE], args, 2, 0)
    invoke(g[DECREF], i64(args)[1])
    return drop_position(done, done)


def suspended(state: int, tape: int, log: int, marks: int) -> int:
    """As `run_open`, where Python may run in between: the tape is left, claimed and planned again first."""
    g, s, args, error, status = i64(shared()), i64(state), stack(5), stack(3), UNHANDLED
    i64(args)[0], i64(args)[1], i64(args)[2] = tape, call(g[LONG_FROM], state), g[TRUE]
    if marks == 0:
        i64(args)[2] = g[FALSE]
    claim = call(g[VECTORCALL], g[CLAIM], args, 3, 0)
    if claim == 0:
        status = MEMORY
    elif claim != g[NONE_AT_ALL]:
        if i64(tape + g[FREED_AT])[0] == g[NONE_AT_ALL]:
            status = plan_whole(state, tape, log)
        failed, begun = 0, 1 * (status == DONE)
        if begun:
            start_open(state)
            status = run_freely(state)
        while begun and failed == 0 and (status == PYTHON or status == PAUSED):
            if status == PAUSED:
                failed = call(g[CHECK_SIGNALS]) & 0xFFFFFFFF
            else:
                failed = run_rule(state, tape, log) == 0
                s[FINISH] = 1
            if failed == 0:
                status = run_freely(state)
        if status == ANOMALY:
            begun, status = 0, UNHANDLED  # a sweep in parts says what is nan
        if failed:
            invoke(g[ERROR_TAKE], error, error + 8, error + 16)
        i64(args)[2], i64(args)[3], i64(args)[4] = claim, marks, call(g[LONG_FROM], status * begun)
        if marks == 0 or begun == 0 or failed:
            i64(args)[3] = g[NONE_AT_ALL]
        done = call(g[VECTORCALL], g[UNCLAIM], args, 5, 0)
        invoke(g[DECREF], i64(args)[4])
        drop_position(done, 0)
        if failed:
            if done == 0:
                invoke(g[ERROR_CLEAR])
            invoke(g[ERROR_GIVE], i64(error)[0], i64(error)[1], i64(error)[2])
        if failed or done == 0:
            status = MEMORY
    if claim != 0:
        invoke(g[DECREF], claim)
    invoke(g[DECREF], i64(args)[1])
    return status


def run_freely(state: int) -> int:
    """As `run`, without Python's lock where that takes longer than giving it up."""
    g, s = i64(shared()), i64(state)
    if s[WORK] <= s[WORK_LIMIT]:
        return run(state)
    thread = call(g[SAVE_THREAD])
    status = run(state)
    invoke(g[RESTORE_THREAD], thread)
    return status


def run_rule(state: int, tape: int, log: int) -> int:
    """Run the rule in Python that a sweep has come to; 0 with an error set."""
    g, s, args, n = i64(shared()), i64(state), stack(6), 0
    k, flags, items = s[POSITION], u8(s[FLAGS]), i64(i64(log + LIST_ITEMS_AT)[0])
    word, form = i64(s[WORD])[k], i64(s[OPERATIONS])[ROW * (i64(s[WORD])[k] & 0xFFFF) + FORM]
    slot, values, wanted = call(g[LONG_FROM], k), call(g[NEW_LIST], 0), call(g[NEW_LIST], 0)
    i64(args)[0] = i64(i64(g[OPS] + LIST_ITEMS_AT)[0])[word & 0xFFFF]
    i64(args)[1], i64(args)[2] = cotangent_of(state, k, items[4 * k + 3]), items[4 * k + 3]
    i64(args)[3], i64(args)[4], i64(args)[5] = values, g[NONE_AT_ALL], wanted
    failed, at, q = i64(args)[1] == 0 or slot == 0 or values == 0 or wanted == 0, operands(word, form), 0
    while at != 0 and failed == 0:
        j = (at & 0xFFFF) - 1
        failed = call(g[APPEND], values, items[4 * j + 3]) & 0xFFFFFFFF
        if flags[j] & NEED and failed == 0:
            place = call(g[LONG_FROM], q)
            failed = place == 0
            if failed == 0:
                failed = call(g[APPEND], wanted, place) & 0xFFFFFFFF
                invoke(g[DECREF], place)
        q += 1
        at = following(s[WORD], at, form)
    found = 0
    if failed == 0:
        attrs = call(g[DICT_GET], i64(tape + g[ATTRS_AT])[0], slot)
        if attrs != 0:
            i64(args)[4] = attrs
        found = call(g[VECTORCALL], g[APPLY_RULE], args, 6, 0)
    failed, at = found == 0, operands(word, form)
    while at != 0 and failed == 0:
        j = (at & 0xFFFF) - 1
        if flags[j] & NEED:
            part = i64(i64(found + LIST_ITEMS_AT)[0])[n]
            n += 1
            if part != g[NONE_AT_ALL]:
                source = part + SCALAR_AT
                if i64(part + TYPE_AT)[0] == g[NDARRAY_TYPE]:
                    source = i64(part + DATA_AT)[0]
                if deposit(state, j, source) != DONE:
                    failed = 1
                    invoke(g[NO_MEMORY])
        at = following(s[WORD], at, form)
    drop_position(i64(args)[1], 0)
    drop_position(slot, 0)
    drop_position(values, 0)
    drop_position(wanted, 0)
    drop_position(found, 0)
    return 1 - failed


def cotangent_of(state: int, k: int, value: int) -> int:
    """Record k's cotangent as an array or a number like its value, to be read before the sweep goes on."""
    g, at = i64(shared()), i64(i64(state)[COTANGENTS])[k]
    if i64(value + TYPE_AT)[0] == g[NDARRAY_TYPE]:
        invoke(g[INCREF], i64(value + DESCR_AT)[0])
        return call(g[NEW_ARRAY], g[NDARRAY_TYPE], i64(value + DESCR_AT)[0], i32(value + NDIM_AT)[0],
                    i64(value + DIMS_AT)[0], 0, at, C_CONTIGUOUS | ALIGNED, 0)  # fmt: skip
    out = call(g[ALLOCATE_OBJECT], i64(value + TYPE_AT)[0], 0)
    if out != 0:
        copy(out + SCALAR_AT, at, code_of(value) >> 8)
    return out


def give_values(state: int, values: int, n: int, out: int) -> int:
    """Let the Tensors of a tuple have their values; None where no cotangent came to an input."""
    g, s = i64(shared()), i64(state)
    for q in range(n):
        value, x = i64(values)[q], i64(out + TUPLE_ITEMS_AT)[q]
        if i64(s[RESULT_ARRAYS])[q] == 0:
            copy(value + SCALAR_AT, s[RESULTS] + 16 * q, code_of(value) >> 8)
        for _ in range(3):
            invoke(g[INCREF], g[NONE_AT_ALL])
        i64(x + g[V_AT])[0], i64(x + g[TAPE_AT])[0] = value, g[NONE_AT_ALL]
        i64(values)[q] = 0
        i64(x + g[AT_AT])[0], i64(x + g[EXTRA_AT])[0] = g[NONE_AT_ALL], g[NONE_AT_ALL]
        if u8(s[FLAGS])[i64(s[SINKS])[q]] & FRESH:
            invoke(g[INCREF], g[NONE_AT_ALL])
            i64(out + TUPLE_ITEMS_AT)[q] = g[NONE_AT_ALL]
            invoke(g[DECREF], x)
    return 0


def deposit_grads(held: int, n: int, found: int) -> int:
    """Let leaves that have no gradient have these, or Python add them: True; 0 with an error set."""
    g, h, items = i64(shared()), i64(held), i64(found + TUPLE_ITEMS_AT)
    alone, out = i64(g[TURNS] + LIST_SIZE_AT)[0] == 0, g[TRUE]
    for q in range(n):
        if alone:
            alone = has(i64(h[q] + g[EXTRA_AT])[0], g[GRAD_TEXT], g[NONE_AT_ALL])
    if alone:
        for q in range(n):
            if out != 0 and items[q] != g[NONE_AT_ALL]:
                if call(g[SET_ATTRIBUTE], i64(h[q] + g[EXTRA_AT])[0], g[GRAD_TEXT], items[q]) & 0xFFFFFFFF:
                    out = 0
    else:
        out = add_grads(held, n, found)
    invoke(g[DECREF], found)
    if out != 0:
        invoke(g[INCREF], out)
    return out


def add_grads(held: int, n: int, found: int) -> int:
    """Let Python add gradients to those there are: True, borrowed; 0 with an error set."""
    g, h, args, leaves = i64(shared()), i64(held), stack(2), call(i64(shared())[NEW_TUPLE], n)
    if leaves == 0:
        return 0
    for q in range(n):
        invoke(g[INCREF], h[q])
        i64(leaves + TUPLE_ITEMS_AT)[q] = h[q]
    i64(args)[0], i64(args)[1] = leaves, found
    done = call(g[VECTORCALL], g[ADD_GRADS], args, 2, 0)
    invoke(g[DECREF], leaves)
    if done == 0:
        return 0
    invoke(g[DECREF], done)
    return g[TRUE]
