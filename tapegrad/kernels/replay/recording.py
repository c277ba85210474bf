"""Compiled: compute an op on Tensors and commit its record, where all operands are on the open tape.

Methods of the Tensor type, called by CPython. Whatever is not the common case (an operand new to the
tape, a large array, a mode, an error of shapes) is left to the method's twin in Python.

The shared words (see `layout`) hold addresses: of functions of Python's C API, of types and singletons,
and where the slots of a Tensor and a Tape lie in the object. A *sheet* is what an op needs.
"""

from tapegrad.kernels.dialect import address, call, f64, i32, i64, invoke, shared, stack
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.loops import suspect


def methods(table: int) -> int:
    """Write the addresses of the methods, in this order; returns that of the shared words."""
    t = i64(table)
    t[0], t[1] = address(tensor_add), address(tensor_radd)
    t[2], t[3] = address(tensor_subtract), address(tensor_rsubtract)
    t[4], t[5] = address(tensor_multiply), address(tensor_rmultiply)
    t[6], t[7] = address(tensor_divide), address(tensor_rdivide)
    t[8], t[9] = address(tensor_negative), address(tensor_absolute)
    t[10], t[11] = address(tensor_power), address(tensor_array_ufunc)
    return shared()


def position(tape: int, x: int) -> int:
    """The position of an operand on the open tape, borrowed; 0 if the tape does not know it."""
    g = i64(shared())
    kind = i64(x + TYPE_AT)[0]
    if kind == g[TENSOR_TYPE]:
        own, at = i64(x + g[TAPE_AT])[0], i64(x + g[AT_AT])[0]
        if own == tape:
            return at
        if own != g[NONE_AT_ALL] or at == g[NONE_AT_ALL] or at == 0:
            return 0
        found = call(g[DICT_GET], i64(tape + g[LEAVES_AT])[0], at)
        if found == 0:
            found = call(g[DICT_GET], i64(tape + g[CONSTANTS_AT])[0], at)
        return found
    if kind == g[FLOAT_TYPE] or kind == g[INT_TYPE]:
        return call(g[DICT_GET], i64(tape + g[NUMBERS_AT])[0], x)
    return 0


def small(x: int) -> int:
    """The bytes of a value, as far as it is a float64 scalar or an array, not too large; else -1."""
    g = i64(shared())
    kind = i64(x + TYPE_AT)[0]
    if kind == g[FLOAT64_TYPE] or kind == g[FLOAT_TYPE] or kind == g[INT_TYPE]:
        return 8
    if kind != g[NDARRAY_TYPE]:
        return -1
    size = 8
    dims = i64(i64(x + DIMS_AT)[0])
    for d in range(i32(x + NDIM_AT)[0]):
        size *= dims[d]
    if size > g[LARGEST]:
        return -1
    return size


def room(tape: int) -> int:
    """Whether a tape of this thread takes another record."""
    g = i64(shared())
    log = i64(tape + g[LOG_AT])[0]
    if call(g[LONG_AS], i64(tape + g[LIMIT_AT])[0]) <= i64(log + LIST_SIZE_AT)[0]:
        return 0
    return call(g[LONG_AS], i64(tape + g[OWNER_AT])[0]) == call(g[THREAD])


def operate(sheet: int, a: int, b: int) -> int:
    """A new reference to the result; 0 with an error set; UNHANDLED. `b` is 0 for an op with one operand."""
    g = i64(shared())
    tape = g[NONE_AT_ALL]
    if i64(a + TYPE_AT)[0] == g[TENSOR_TYPE]:
        tape = i64(a + g[TAPE_AT])[0]
    if tape == g[NONE_AT_ALL] and b != 0:
        if i64(b + TYPE_AT)[0] == g[TENSOR_TYPE]:
            tape = i64(b + g[TAPE_AT])[0]
    if tape == g[NONE_AT_ALL] or tape == 0:
        return UNHANDLED
    if room(tape) == 0:
        return UNHANDLED
    mode = in_force()
    if mode == 0:
        return 0
    if mode == g[TRUE]:
        return compute(sheet, tape, a, b)
    return watched(sheet, 0, 0, 0, tape, a, b, mode)


def in_force() -> int:
    """The mode, borrowed from the context; 0 with an error set on failure."""
    g, mode = i64(shared()), stack(1)
    i64(mode)[0] = 0
    if call(g[CONTEXT_GET], g[MODE], 0, mode) & 0xFFFFFFFF:
        return 0
    if i64(mode)[0] != 0:
        invoke(g[DECREF], i64(mode)[0])
    return i64(mode)[0]


def compute(sheet: int, tape: int, a: int, b: int) -> int:
    """As `operate`, on the tape that is open, where all is recorded."""
    g, s = i64(shared()), i64(sheet)
    first, second = position(tape, a), g[ZERO]
    if first == 0:
        return UNHANDLED
    values = stack(2)
    x, y = a, b
    if i64(a + TYPE_AT)[0] == g[TENSOR_TYPE]:
        x = i64(a + g[V_AT])[0]
    if x == 0:
        return UNHANDLED
    if small(x) < 0:
        return UNHANDLED
    if b != 0:
        second = position(tape, b)
        if second == 0:
            return UNHANDLED
        if i64(b + TYPE_AT)[0] == g[TENSOR_TYPE]:
            y = i64(b + g[V_AT])[0]
        if y == 0:
            return UNHANDLED
        if small(y) < 0:
            return UNHANDLED
    function, ufunc = s[OPERATE], s[UFUNC]
    if s[VECTOR] != ufunc and small(x) > g[SMALLEST]:
        function, ufunc = 0, s[VECTOR]
        if ufunc == 0 or i64(x + DESCR_AT)[0] != g[DOUBLE]:
            return UNHANDLED
    # held: what is called may run anything
    invoke(g[INCREF], x)
    if b != 0:
        invoke(g[INCREF], y)
    invoke(g[INCREF], tape)
    invoke(g[INCREF], first)
    invoke(g[INCREF], second)
    value = 0
    if function != 0:
        value = call(function, x, y, g[NONE_AT_ALL])  # a function of one or two operands ignores the rest
    else:
        i64(values)[0], i64(values)[1] = x, y
        value = call(g[VECTORCALL], ufunc, values, 1 + (b != 0), 0)
    out = UNHANDLED
    if value == 0:
        out = 0
        if call(g[ERROR_MATCHES], g[VALUE_ERROR]) & 0xFFFFFFFF != 0:
            invoke(g[ERROR_CLEAR])  # of shapes: the twin says it better
            out = UNHANDLED
    else:
        size = small(value)
        if size < 0 or room(tape) == 0:
            out = UNHANDLED
        elif size <= g[SMALLEST]:
            out = commit(tape, s[OPCODE], first, second, value, value)
        else:
            out = commit_large(sheet, tape, first, second, x, y, value, size)
        if out == UNHANDLED:
            out = finish(sheet, value, a, b)
        invoke(g[DECREF], value)
    invoke(g[DECREF], second)
    invoke(g[DECREF], first)
    invoke(g[DECREF], tape)
    if b != 0:
        invoke(g[DECREF], y)
    invoke(g[DECREF], x)
    return out


def finish(sheet: int, value: int, a: int, b: int) -> int:
    """Let Python record a value just computed."""
    g = i64(shared())
    args = stack(4)
    i64(args)[0], i64(args)[1], i64(args)[2], i64(args)[3] = i64(sheet)[OP], value, a, b
    return call(g[VECTORCALL], g[RECORD], args, 3 + (b != 0), 0)


def weigh(tape: int, size: int) -> int:
    """Add to a tape's weight; it closes soon when that grows large. 0 with an error set if memory is out."""
    g = i64(shared())
    weight = i64(tape + g[WEIGHT_AT])[0]
    total = call(g[LONG_AS], weight) + size
    heavier = call(g[LONG_FROM], total)
    if heavier == 0:
        return 0
    i64(tape + g[WEIGHT_AT])[0] = heavier
    invoke(g[DECREF], weight)
    if total > g[HEAVIEST]:
        limit = i64(tape + g[LIMIT_AT])[0]
        invoke(g[INCREF], g[ZERO])
        i64(tape + g[LIMIT_AT])[0] = g[ZERO]
        invoke(g[DECREF], limit)
    return 1


def keep(tape: int, at: int, value: int) -> int:
    """Log an operand that a derivative reads where its shadow stands; 0 with an error set on failure."""
    g = i64(shared())
    log, place = i64(tape + g[LOG_AT])[0], call(g[LONG_AS], at) - 1
    if i64(value + TYPE_AT)[0] != g[NDARRAY_TYPE] or i64(i64(log + LIST_ITEMS_AT)[0])[place] == value:
        return 1
    invoke(g[INCREF], value)
    if call(g[LIST_SET], log, place, value) & 0xFFFFFFFF:
        return 0
    if call(g[DICT_DELETE], i64(tape + g[SHADOWS_AT])[0], at) & 0xFFFFFFFF:
        return 0
    return weigh(tape, small(value))


def is_const(tape: int, at: int) -> int:
    """Whether the record at a position is a constant."""
    g = i64(shared())
    items = i64(i64(i64(tape + g[LOG_AT])[0] + LIST_ITEMS_AT)[0])
    return items[call(g[LONG_AS], at) - 4] == g[ZERO]


def commit_large(
    sheet: int, tape: int, first: int, second: int, x: int, y: int, value: int, size: int
) -> int:
    """As `Tape.commit`; UNHANDLED where the last shadow is of another shape."""
    g, s = i64(shared()), i64(sheet)
    reads = 0
    if is_const(tape, first) == 0:
        reads = s[USES]
    if second != g[ZERO]:
        if is_const(tape, second) == 0:
            reads = reads | s[USES + 1]
    logged = value
    if reads & 8 == 0:
        logged = i64(tape + g[SHADE_AT])[0]
        if logged == g[NONE_AT_ALL] or i64(logged + DESCR_AT)[0] != i64(value + DESCR_AT)[0]:
            return UNHANDLED
        ndim = i32(value + NDIM_AT)[0]
        if i32(logged + NDIM_AT)[0] != ndim:
            return UNHANDLED
        dims, known = i64(i64(value + DIMS_AT)[0]), i64(i64(logged + DIMS_AT)[0])
        for d in range(ndim):
            if dims[d] != known[d]:
                return UNHANDLED
    if reads & 1:
        if keep(tape, first, x) == 0:
            return 0
    if reads & 2:
        if keep(tape, second, y) == 0:
            return 0
    if reads & 8:
        if weigh(tape, size) == 0:
            return 0
    reference = 0
    if logged != value:
        reference = call(g[REFER_WEAKLY], value, 0)  # may collect garbage, so before the record
        if reference == 0:
            return 0
    out = commit(tape, s[OPCODE], first, second, logged, value)
    if reference != 0:
        if out != 0 and out != UNHANDLED:
            shadows = i64(tape + g[SHADOWS_AT])[0]
            if call(g[DICT_SET], shadows, i64(out + g[AT_AT])[0], reference) & 0xFFFFFFFF:
                invoke(g[DECREF], out)
                out = 0
        invoke(g[DECREF], reference)
    return out


def commit(tape: int, opcode: int, first: int, second: int, logged: int, value: int) -> int:
    """Append a record and return its Tensor; 0 with an error set if memory is out, and nothing appended.

    UNHANDLED if the tape takes no more: making an object may collect garbage, and finalizers do anything.
    """
    g = i64(shared())
    out = call(g[ALLOCATE_OBJECT], g[TENSOR_TYPE], 0)  # may collect garbage: the log is read afterwards
    if out == 0:
        return 0
    if room(tape) == 0:
        invoke(g[DECREF], out)
        return UNHANDLED
    log = i64(tape + g[LOG_AT])[0]
    length = i64(log + LIST_SIZE_AT)[0]
    at, failed = call(g[LONG_FROM], length + 4), 0
    if at == 0:
        failed = 1
    if failed == 0:
        failed = call(g[APPEND], log, opcode) & 0xFFFFFFFF
    if failed == 0:
        failed = call(g[APPEND], log, first) & 0xFFFFFFFF
    if failed == 0:
        failed = call(g[APPEND], log, second) & 0xFFFFFFFF
    if failed == 0:
        failed = call(g[APPEND], log, logged) & 0xFFFFFFFF
    if failed:
        if at != 0:
            invoke(g[CUT], log, length, length + 4, 0)
            invoke(g[DECREF], at)
        invoke(g[DECREF], out)
        return 0
    invoke(g[INCREF], value)
    invoke(g[INCREF], tape)
    invoke(g[INCREF], g[NONE_AT_ALL])
    i64(out + g[V_AT])[0] = value
    i64(out + g[TAPE_AT])[0] = tape
    i64(out + g[AT_AT])[0] = at
    i64(out + g[EXTRA_AT])[0] = g[NONE_AT_ALL]
    return out


def watched(sheet: int, twin: int, args: int, count: int, tape: int, a: int, b: int, mode: int) -> int:
    """As `compute`, or as a `twin` in Python, in a mode that notes lines or takes times and else is plain."""
    g = i64(shared())
    if i64(mode + TYPE_AT)[0] != g[MODE_TYPE]:
        return UNHANDLED
    if i64(mode + g[PLAIN_AT])[0] != g[TRUE]:
        return UNHANDLED
    lines = call(g[LONG_AS], i64(mode + g[NOTING_AT])[0])
    times = call(g[LONG_AS], i64(mode + g[TIMING_AT])[0])
    if lines != 0 and g[FRAME_OFFSET] == 0:
        return UNHANDLED
    begin = stack(2)
    if times != 0:
        if i64(times)[EVENT] > i64(times)[EVENT_END]:
            return UNHANDLED  # Python makes room
    invoke(g[INCREF], mode)
    if times != 0:
        invoke(i64(times)[EVENT_CLOCK], i64(times)[EVENT_CLOCK_KIND], begin)
    if twin == 0:
        out = compute(sheet, tape, a, b)
    else:
        out = plainly(twin, args, count, mode)
    if out != 0 and out != UNHANDLED:
        if i64(out + TYPE_AT)[0] == g[TENSOR_TYPE]:
            if times != 0:
                took(times, sheet, a, b, out, begin)
            if lines != 0:
                if note(lines, sheet, a, b, out) == 0:
                    invoke(g[DECREF], out)
                    out = 0
    invoke(g[DECREF], mode)
    return out


def plainly(twin: int, args: int, count: int, mode: int) -> int:
    """Call a function of Python in the mode True, instead of another; 0 with an error set on failure."""
    g, error = i64(shared()), stack(3)
    token = call(g[CONTEXT_SET], g[MODE], g[TRUE])
    if token == 0:
        return 0
    invoke(g[DECREF], token)
    out = call(g[VECTORCALL], twin, args, count, 0)
    if out == 0:
        invoke(g[ERROR_TAKE], error, error + 8, error + 16)
    token = call(g[CONTEXT_SET], g[MODE], mode)
    if token != 0:
        invoke(g[DECREF], token)
    if out == 0:
        invoke(g[ERROR_GIVE], i64(error)[0], i64(error)[1], i64(error)[2])
    elif token == 0:
        invoke(g[DECREF], out)
        out = 0
    return out


def delegate(sheet: int, twin: int, args: int, count: int, a: int, b: int) -> int:
    """Let an op's twin in Python do it."""
    g = i64(shared())
    mode = in_force()
    if mode == 0:
        return 0
    if mode != g[TRUE]:
        if plain(a) and (b == 0 or plain(b)):
            out = watched(sheet, twin, args, count, 0, a, b, mode)
            if out != UNHANDLED:
                return out
    return call(g[VECTORCALL], twin, args, count, 0)


def plain(x: int) -> int:
    """Whether an operand is neither dual nor stale."""
    g = i64(shared())
    if i64(x + TYPE_AT)[0] != g[TENSOR_TYPE]:
        return 1
    tape = i64(x + g[TAPE_AT])[0]
    if tape == 0 or tape == g[NONE_AT_ALL]:
        return tape
    return i64(tape + TYPE_AT)[0] == g[TAPE_TYPE]


def took(times: int, sheet: int, a: int, b: int, out: int, begin: int) -> int:
    """Write an event: how long an op took, with the operands' shapes if they are wanted."""
    g, t, end = i64(shared()), i64(times), stack(2)
    if t[EVENT] > t[EVENT_END]:
        return 0  # operations of a handler of warnings have used up the room
    event, x, y = t[EVENT], NO_SHAPE, NO_SHAPE
    words, following = i64(event), event + 8 * EVENT_WORDS
    if t[EVENT_SHAPES]:
        x = extents_of(a, following)
        if x != NO_SHAPE:
            following += 8 * x
        if b != 0:
            y = extents_of(b, following)
            if y != NO_SHAPE:
                following += 8 * y
    words[0] = i32(i64(sheet)[OPCODE] + DIGIT_AT)[0] | x << 16 | y << 24
    words[3], words[4], words[5], words[6] = call(g[THREAD]), bytes_of(i64(out + g[V_AT])[0]), 0, 0
    tape = i64(out + g[TAPE_AT])[0]
    if i64(tape + TYPE_AT)[0] == g[TAPE_TYPE]:
        words[5] = call(g[LONG_AS], i64(tape + g[SERIAL_AT])[0])
        words[6] = call(g[LONG_AS], i64(out + g[AT_AT])[0])
    invoke(t[EVENT_CLOCK], t[EVENT_CLOCK_KIND], end)
    words[1] = i64(begin)[0] * 1000000000 + i64(begin)[1]
    words[2] = i64(end)[0] * 1000000000 + i64(end)[1]
    t[EVENT] = following
    return 1


def extents_of(x: int, place: int) -> int:
    """Write an operand's shape; returns how many axes it has, NO_SHAPE for a number of Python's."""
    g = i64(shared())
    if i64(x + TYPE_AT)[0] == g[TENSOR_TYPE]:
        x = i64(x + g[V_AT])[0]
    kind = i64(x + TYPE_AT)[0]
    if kind == g[FLOAT_TYPE] or kind == g[INT_TYPE]:
        return NO_SHAPE
    if kind != g[NDARRAY_TYPE]:
        return 0
    ndim = i32(x + NDIM_AT)[0]
    dims = i64(i64(x + DIMS_AT)[0])
    for d in range(ndim):
        i64(place)[d] = dims[d]
    return ndim


def bytes_of(x: int) -> int:
    """The bytes of what an op has made: a float64 scalar or an array without gaps."""
    g = i64(shared())
    kind, known = i64(x + TYPE_AT)[0], i64(g[SCALARS])
    if kind != g[NDARRAY_TYPE]:
        for j in range(1, known[0] + 1):
            if known[2 * j] == kind:
                return known[2 * j + 1] >> 8
        return 0
    size, dims, strides = 0, i64(i64(x + DIMS_AT)[0]), i64(i64(x + STRIDES_AT)[0])
    for d in range(i32(x + NDIM_AT)[0]):
        if dims[d] == 0:
            return 0
        size = max(size, dims[d] * strides[d])
    return size


def note(lines: int, sheet: int, a: int, b: int, out: int) -> int:
    """Note where a result was made, and look whether it is finite; 0 with an error set on failure.

    A note is three entries of a list of the tape: the record's position, the code object of a frame, and
    the offset of its instruction with the place + 1 of the note of the frame that called it, << 32. The
    frames that called are those of the last note as far as they are the same.
    """
    g, tape, at = i64(shared()), i64(out + i64(shared())[TAPE_AT])[0], i64(out + i64(shared())[AT_AT])[0]
    if tape == g[NONE_AT_ALL] or i64(tape + TYPE_AT)[0] != g[TAPE_TYPE]:
        return 1
    notes = i64(tape + g[LINES_AT])[0]
    length, done = i64(notes + LIST_SIZE_AT)[0], 0
    items = i64(i64(notes + LIST_ITEMS_AT)[0])
    if length != 0:
        if call(g[LONG_AS], items[length - 3]) == call(g[LONG_AS], at):
            done = 1  # by Python, which has recorded it
    frames, chain = stack(80), stack(40)
    f, c = i64(frames), i64(chain)
    if done == 0:
        count, known = walk_up(lines, frames), 0
        before = length - 2
        while before > 0 and known < 40:
            c[known] = before
            known += 1
            before = call(g[LONG_AS], items[before + 1]) >> 32
        up, inner, last = 0, count - 1, known - 1
        while inner > 0 and last >= 0:
            before = c[last]
            if items[before] != f[2 * inner]:
                break
            if call(g[LONG_AS], items[before + 1]) & 0xFFFFFFFF != f[2 * inner + 1]:
                break
            up = before
            inner -= 1
            last -= 1
        for q in range(inner, -1, -1):
            up = note_frame(notes, at, f[2 * q], f[2 * q + 1] | up << 32)
            if up == 0:
                invoke(g[CUT], notes, length, i64(notes + LIST_SIZE_AT)[0], 0)
                return 0
    if i64(lines)[LOOKING] == 0:
        return 1
    if sound(out) == 1 or sound(a) == 0:
        return 1
    args = stack(4)
    i64(args)[0], i64(args)[1], i64(args)[2], i64(args)[3] = i64(sheet)[OP], out, a, b
    if b != 0:
        if sound(b) == 0:
            return 1
    told = call(g[VECTORCALL], g[LOOK], args, 3 + (b != 0), 0)
    if told == 0:
        return 0
    invoke(g[DECREF], told)
    return 1


def walk_up(lines: int, frames: int) -> int:
    """Write the code and the offset of each frame from the innermost out; returns how many there are."""
    g, w, f, count = i64(shared()), i64(lines), i64(frames), 0
    frame = call(g[FRAME])
    if frame != 0:
        invoke(g[INCREF], frame)
    while frame != 0 and count < DEPTH:
        code = call(g[FRAME_CODE], frame)
        f[2 * count], f[2 * count + 1] = code, call(g[FRAME_OFFSET], frame) & 0xFFFFFFFF
        invoke(g[DECREF], code)  # the frame, which is at work, keeps it
        count += 1
        if frame == w[BASE]:
            f[2 * count], f[2 * count + 1] = w[OUTSIDE], 0
            invoke(g[DECREF], frame)
            return count + 1
        back = call(g[FRAME_BACK], frame)
        invoke(g[DECREF], frame)
        frame = back
    if frame != 0:
        invoke(g[DECREF], frame)
    return count


def note_frame(notes: int, at: int, code: int, word: int) -> int:
    """Append a note; returns its place + 1, or 0 with an error set."""
    g = i64(shared())
    place, entry = i64(notes + LIST_SIZE_AT)[0], call(g[LONG_FROM], word)
    if entry == 0:
        return 0
    failed = call(g[APPEND], notes, at) & 0xFFFFFFFF
    if failed == 0:
        failed = call(g[APPEND], notes, code) & 0xFFFFFFFF
    if failed == 0:
        failed = call(g[APPEND], notes, entry) & 0xFFFFFFFF
    invoke(g[DECREF], entry)
    if failed:
        return 0
    return place + 1


def sound(x: int) -> int:
    """Whether an operand or a result is finite; 2 where that is left to Python."""
    g = i64(shared())
    if i64(x + TYPE_AT)[0] == g[TENSOR_TYPE]:
        x = i64(x + g[V_AT])[0]
    kind, width, n = i64(x + TYPE_AT)[0], 8, 1
    if kind == g[INT_TYPE]:
        return 1
    if kind == g[FLOAT_TYPE] or kind == g[FLOAT64_TYPE]:
        return f64(x + SCALAR_AT)[0] - f64(x + SCALAR_AT)[0] == 0.0
    if kind != g[NDARRAY_TYPE]:
        return 2
    if i64(x + DESCR_AT)[0] == g[SINGLE]:
        width = 4
    elif i64(x + DESCR_AT)[0] != g[DOUBLE]:
        return 2
    dims, strides = i64(i64(x + DIMS_AT)[0]), i64(i64(x + STRIDES_AT)[0])
    for d in range(i32(x + NDIM_AT)[0] - 1, -1, -1):
        if dims[d] != 1 and strides[d] != n * width:
            return 2
        n *= dims[d]
    return suspect(width, i64(x + DATA_AT)[0], n) == 0


def binary(q: int, a: int, b: int, reflected: int) -> int:
    """An operator's method; `reflected` says that self is `b`."""
    g = i64(shared())
    sheet = g[SHEETS] + 8 * SHEET_WORDS * q
    out = operate(sheet, a, b)
    if out != UNHANDLED:
        return out
    args = stack(2)
    i64(args)[0], i64(args)[1] = a, b
    if reflected:
        i64(args)[0], i64(args)[1] = b, a
    return delegate(sheet, i64(sheet)[TWIN + reflected], args, 2, a, b)


def unary(q: int, a: int) -> int:
    """An operator's method without another operand."""
    g = i64(shared())
    sheet = g[SHEETS] + 8 * SHEET_WORDS * q
    out = operate(sheet, a, 0)
    if out != UNHANDLED:
        return out
    args = stack(1)
    i64(args)[0] = a
    return delegate(sheet, i64(sheet)[TWIN], args, 1, a, 0)


def tensor_add(self: int, other: int) -> int:
    return binary(0, self, other, 0)


def tensor_radd(self: int, other: int) -> int:
    return binary(0, other, self, 1)


def tensor_subtract(self: int, other: int) -> int:
    return binary(1, self, other, 0)


def tensor_rsubtract(self: int, other: int) -> int:
    return binary(1, other, self, 1)


def tensor_multiply(self: int, other: int) -> int:
    return binary(2, self, other, 0)


def tensor_rmultiply(self: int, other: int) -> int:
    return binary(2, other, self, 1)


def tensor_divide(self: int, other: int) -> int:
    return binary(3, self, other, 0)


def tensor_rdivide(self: int, other: int) -> int:
    return binary(3, other, self, 1)


def tensor_negative(self: int, nothing: int) -> int:
    return unary(4, self)


def tensor_absolute(self: int, nothing: int) -> int:
    return unary(5, self)


def tensor_power(self: int, other: int) -> int:
    """A square has an op of its own."""
    g = i64(shared())
    kind, two = i64(other + TYPE_AT)[0], 0
    if kind == g[INT_TYPE]:
        two = other == g[TWO_OBJECT]
    elif kind == g[FLOAT_TYPE]:
        two = f64(other + SCALAR_AT)[0] == 2.0
    if two:
        sheet = g[SHEETS] + 8 * SHEET_WORDS * 7
        out = operate(sheet, self, 0)
        if out != UNHANDLED:
            return out
        args = stack(2)
        i64(args)[0], i64(args)[1] = self, other
        return delegate(sheet, i64(sheet)[TWIN], args, 2, self, 0)
    return binary(6, self, other, 0)


def tensor_array_ufunc(self: int, args: int, count: int, names: int) -> int:
    """``__array_ufunc__(ufunc, method, *inputs)``."""
    g, given, sheet, second = i64(shared()), i64(args), 0, 0
    if names == 0 and (count == 3 or count == 4):
        known = call(g[DICT_GET], g[UFUNCS], given[0])
        if known == 0:
            invoke(g[ERROR_CLEAR])  # no key at all
        elif i64(given[1] + TYPE_AT)[0] == g[STR_TYPE]:
            if call(g[COMPARE_ASCII], given[1], g[CALL_NAME]) & 0xFFFFFFFF == 0:
                sheet = call(g[LONG_AS], known)
                if count == 4:
                    second = given[3]
                if count == 2 + i64(sheet)[ARITY]:
                    out = operate(sheet, given[2], second)
                    if out != UNHANDLED:
                        return out
                else:
                    sheet = 0
    total = count
    if names != 0:
        total += i64(names + LIST_SIZE_AT)[0]
    if total > 126:
        total, count, names = 0, 0, 0  # more than NumPy passes: the twin will say what is missing
    everything = stack(128)
    i64(everything)[0] = self
    for q in range(total):
        i64(everything)[q + 1] = given[q]
    if sheet != 0:
        return delegate(sheet, g[ARRAY_UFUNC], everything, count + 1, given[2], second)
    return call(g[VECTORCALL], g[ARRAY_UFUNC], everything, count + 1, names)
