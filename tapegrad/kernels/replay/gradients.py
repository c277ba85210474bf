"""Compiled: the gradients of a result on the open tape, from a Tensor to Tensors without a frame of Python.

What is out of the ordinary (several roots, older tapes, hooks, guarded arrays, rules in Python, modes) is
left to `tapegrad.engine`, and then nothing has been done.
"""

from tapegrad.kernels.dialect import call, f64, i32, i64, invoke, shared, stack
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.operands import code_of, has, in_force
from tapegrad.kernels.replay.sweep import plan_open, run_open


def gradients_of(self: int, args: int, count: int) -> int:
    """``(root, cotangent or None, inputs, whether to retain)``; a tuple of Tensors; None: left to Python."""
    g, given, out = i64(shared()), i64(args), UNHANDLED
    if count == 4 and g[OPEN_STATE] != 0:
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
                out = swept(given[0], given[1], held, n, given[3] == g[TRUE], out)
            release_held(held, n)
    if out == UNHANDLED:
        out = g[NONE_AT_ALL]
        invoke(g[INCREF], out)
    return out


def backward_from(self: int, args: int, count: int) -> int:
    """``(root, cotangent or None, whether to retain)``, to ``.grad`` of all leaves; None: left to Python."""
    g, given, out = i64(shared()), i64(args), UNHANDLED
    if count == 3 and g[OPEN_STATE] != 0 and i64(given[0] + TYPE_AT)[0] == g[TENSOR_TYPE]:
        tape, held = i64(given[0] + g[TAPE_AT])[0], stack(QUICK_INPUTS)
        n = leaves_of(tape, held)
        if n > 0:
            out = results(n)
            if out != 0:
                out = swept(given[0], given[1], held, n, given[2] == g[TRUE], out)
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


def sweepable(root: int) -> int:
    """Whether a result lies on this thread's open tape, and nothing there wants more than its records."""
    g = i64(shared())
    if BOUNDS or i64(root + TYPE_AT)[0] != g[TENSOR_TYPE]:
        return 0
    tape = i64(root + g[TAPE_AT])[0]
    if tape == 0 or tape == g[NONE_AT_ALL]:
        return 0
    if call(g[LONG_AS], i64(tape + g[LIMIT_AT])[0]) < 0:
        return 0
    if call(g[LONG_AS], i64(tape + g[OWNER_AT])[0]) != call(g[THREAD]):
        return 0
    if i64(tape + g[FREED_AT])[0] != g[NONE_AT_ALL] or i64(g[OPEN_LEVELS] + SET_SIZE_AT)[0] != 0:
        return 0
    if i64(i64(g[VERSION] + LIST_ITEMS_AT)[0])[0] != g[KNOWN_VERSION]:
        return 0
    for place in range(LINKS_AT, CLAIMS_AT + 1):  # dicts that a tape of ordinary records has nothing in
        if i64(i64(tape + g[place])[0] + LIST_SIZE_AT)[0] != 0:
            return 0
    mode = in_force()
    if mode == 0:
        invoke(g[ERROR_CLEAR])
        return 0
    return mode == g[TRUE] or mode == g[FALSE]


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
        several = i64(cells + LIST_SIZE_AT)[0]
        invoke(g[DECREF], cells)
        if several != 0:
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
    if i64(value + TYPE_AT)[0] == g[FLOAT64_TYPE]:
        return at
    return at * dense(value)


def dense(x: int) -> int:
    """Whether this is an array in C order, of a dtype that gradients have in compiled code."""
    g, code = i64(shared()), code_of(x)
    if i64(x + TYPE_AT)[0] != g[NDARRAY_TYPE] or code & 0xFF > DIFFERENTIABLE or code == 0:
        return 0
    dims, strides, step = i64(i64(x + DIMS_AT)[0]), i64(i64(x + STRIDES_AT)[0]), code >> 8
    for d in range(i32(x + NDIM_AT)[0] - 1, -1, -1):
        if dims[d] != 1 and strides[d] != step:
            return 0
        step *= dims[d]
    return step > 0


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
    if i64(seed + TYPE_AT)[0] == g[FLOAT64_TYPE]:
        return seed + SCALAR_AT
    if dense(seed) == 0 or i64(seed + DESCR_AT)[0] != i64(value + DESCR_AT)[0]:
        return UNHANDLED
    ndim = i32(value + NDIM_AT)[0]
    if i32(seed + NDIM_AT)[0] != ndim or i32(seed + FLAGS_AT)[0] & ALIGNED == 0:
        return UNHANDLED
    for d in range(ndim):
        if i64(i64(seed + DIMS_AT)[0])[d] != i64(i64(value + DIMS_AT)[0])[d]:
            return UNHANDLED
    return i64(seed + DATA_AT)[0]


def swept(root: int, seed: int, held: int, n: int, retain: int, out: int) -> int:
    """Fill a tuple of results, or let go of it: UNHANDLED with nothing done, 0 with an error set.

    Between the first look at the tape and its last record swept, nothing runs that could change it.
    """
    g, status, args, values, marks = i64(shared()), UNHANDLED, stack(2), stack(QUICK_INPUTS), 0
    state, h = g[OPEN_STATE], i64(held)
    s = i64(state)
    if sweepable(root):
        status = planned(root, seed, held, n)
    for q in range(n):
        i64(values)[q] = 0
        if status == DONE:
            status = value_for(state, values, q, i64(h[q] + g[V_AT])[0])
    if status == DONE and retain == 0:
        i64(args)[0], i64(args)[1] = call(g[LONG_FROM], s[RECORDS]), g[BYTE_DTYPE]
        marks = call(g[VECTORCALL], g[ZEROS], args, 2, 0)
        invoke(g[DECREF], i64(args)[0])
        if marks == 0:
            status = MEMORY
    if status == DONE:
        status = run_open(state, marks)
        if status == MEMORY:
            status = UNHANDLED  # no error is set: Python will say what there is no memory for
    if status == DONE:
        give_values(state, values, n, out)
        if leave_swept(i64(root + g[TAPE_AT])[0], marks, s[SPENT]) == 0:
            invoke(g[DECREF], out)
            out = 0
    else:
        for q in range(n):
            if i64(values)[q] != 0:
                invoke(g[DECREF], i64(values)[q])
        invoke(g[DECREF], out)
        out = UNHANDLED * (status != MEMORY)
    if marks != 0:
        invoke(g[DECREF], marks)
    return out


def leave_swept(tape: int, marks: int, spent: int) -> int:
    """Note on a tape what a sweep has released, and end recording there; 0 with an error set."""
    g, args = i64(shared()), stack(1)
    if marks != 0 and spent != 0:
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


def planned(root: int, seed: int, held: int, n: int) -> int:
    """Plan the sweep of an open tape; DONE if it can run."""
    g, h, tape = i64(shared()), i64(held), i64(root + i64(shared())[TAPE_AT])[0]
    state, log = g[OPEN_STATE], i64(tape + g[LOG_AT])[0]
    s, records = i64(state), i64(log + LIST_SIZE_AT)[0] // 4
    if records == 0 or records > g[OPEN_RECORDS]:
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
    s[RECORDS], s[SINK_COUNT], s[FREED] = records, n, g[OPEN_UNFREED]
    s[DESCRIBED] = i64(tape + g[DESCRIBED_AT])[0]
    i64(s[SEEDS])[0] = call(g[LONG_AS], i64(root + g[AT_AT])[0]) // 4 - 1
    if plan_open(state, log) != DONE or s[RULES] != 0:
        return UNHANDLED
    return DONE


def value_for(state: int, values: int, q: int, like: int) -> int:
    """Make the array or the number of result q, as a Tensor's value; MEMORY with an error set."""
    g, s, value = i64(shared()), i64(state), 0
    i64(s[RESULT_ARRAYS])[q] = 0
    if i64(like + TYPE_AT)[0] == g[NDARRAY_TYPE]:
        value = call(g[NEW_LIKE], like, C_ORDER, 0, 0)
        i64(s[RESULT_ARRAYS])[q] = value
    else:
        value = call(g[ALLOCATE_OBJECT], g[FLOAT64_TYPE], 0)  # no container: collects no garbage
    i64(values)[q] = value
    if value == 0:
        return MEMORY
    return DONE


def give_values(state: int, values: int, n: int, out: int) -> int:
    """Let the Tensors of a tuple have their values."""
    g, s = i64(shared()), i64(state)
    for q in range(n):
        value, x = i64(values)[q], i64(out + TUPLE_ITEMS_AT)[q]
        if i64(s[RESULT_ARRAYS])[q] == 0:
            f64(value + SCALAR_AT)[0] = f64(s[RESULTS] + 16 * q)[0]
        for _ in range(3):
            invoke(g[INCREF], g[NONE_AT_ALL])
        i64(x + g[V_AT])[0], i64(x + g[TAPE_AT])[0] = value, g[NONE_AT_ALL]
        i64(x + g[AT_AT])[0], i64(x + g[EXTRA_AT])[0] = g[NONE_AT_ALL], g[NONE_AT_ALL]
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
            if out != 0:
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
