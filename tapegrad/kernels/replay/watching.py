"""Compiled: what anomaly mode, the profiler and programs want to know of operations.

A mode that notes lines, takes times or lists operations, and else records as the mode True does, is *plain*
(`grad_mode.Mode`): then compiled code computes and records, or lets a twin in Python do so in the mode
True, and writes down what is asked. What is listed is listed by Python where a twin does it.
"""

from tapegrad.kernels.dialect import call, f64, i64, invoke, obj, shared, stack
from tapegrad.kernels.replay.committing import compute
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.loops import suspect
from tapegrad.kernels.replay.matching import put_in_force
from tapegrad.kernels.replay.operands import in_force


def watched(sheet: int, twin: int, args: int, count: int, tape: int, a: int, b: int, mode: int) -> int:
    """As `compute`, or as a `twin` in Python, in a mode that notes lines or takes times and else is plain."""
    g = i64(shared())
    if obj(mode).type != g.mode_type:
        return UNHANDLED
    if obj(mode).plain != g.true:
        return UNHANDLED
    lines = call(g.long_as, obj(mode).noting)
    times = call(g.long_as, obj(mode).timing)
    listed = call(g.long_as, obj(mode).tracing)
    if lines != 0 and g.frame_offset == 0:
        return UNHANDLED
    if listed != 0 and twin != 0:
        return UNHANDLED
    begin = stack(2)
    if times != 0:
        if i64(times).event > i64(times).event_end:
            return UNHANDLED  # Python makes room
    invoke(g.incref, mode)
    if times != 0:
        invoke(i64(times).event_clock, i64(times).event_clock_kind, begin)
    if twin == 0:
        out = compute(sheet, tape, a, b)
    else:
        out = plainly(twin, args, count, mode)
    if out != 0 and out != UNHANDLED:
        if obj(out).type == g.tensor_type:
            if times != 0:
                took(times, sheet, a, b, out, begin)
            if lines != 0:
                if note(lines, sheet, a, b, out) == 0:
                    invoke(g.decref, out)
                    out = 0
            if listed != 0 and out != 0:
                if trace(listed, sheet, a, b, out, 0, 0) != 0:
                    invoke(g.decref, out)
                    out = 0
    invoke(g.decref, mode)
    return out


def trace(words: int, sheet: int, a: int, b: int, out: int, attrs: int, view: int) -> int:
    """List an op with its operands and its result, while there is room; not 0 with an error set.

    One with an operand may have attributes, and a result that is a view of that.
    """
    g, w, tape = i64(shared()), i64(words), obj(out).tape
    if tape == g.none_at_all or obj(tape).type != g.tape_type:
        return 0
    row = room_of_listed(words)
    if row == 0:
        return 1
    if obj(w[TRACE_OBJECTS]).size != 0:
        latest = i64(row - 8 * LISTED_NUMBERS)
        if latest[LISTED_RESULT] == out and latest[LISTED_RESULT + 2] == call(g.long_as, obj(out).at):
            return 0  # by Python, which has recorded it
    value, how, args = obj(out).v, 1 + (b != 0) + A_VIEW * (view != 0), stack(1)
    held, shadowed = bytes_of(value), is_shadowed(words, value)
    if shadowed and held >= w[TRACE_LARGE]:
        held = held // SHADOWED
    if is_too_much(words, held):
        return 0
    if shadowed:
        i64(args)[0] = value
        value, how = call(g.vectorcall, g.shadow, args, 1, 0), how + A_SHADOW
        if value == 0:
            return 1
        row = room_of_listed(words)
        if row == 0:
            invoke(g.decref, value)
            return 1
    else:
        invoke(g.incref, value)
    # From here on nothing runs that could list another operation in between.
    objects = w[TRACE_OBJECTS]
    failed = call(g.append, objects, i64(sheet).op) | call(g.append, objects, value)
    invoke(g.decref, value)
    i64(row)[LISTED_HOW] = how
    write_history(row + 8 * LISTED_RESULT, out)
    failed = failed | list_operand(words, row + 8 * LISTED_OPERANDS, a)
    if b != 0:
        failed = failed | list_operand(words, row + 8 * (LISTED_OPERANDS + 3), b)
    else:
        if attrs == 0:
            attrs = g.none_at_all
        failed = failed | call(g.append, objects, attrs)
    return failed & 0xFFFFFFFF


def is_shadowed(words: int, value: int) -> int:
    """Whether a shadow is listed instead of a value: it is found anew from what the operation is of."""
    plainly = C_CONTIGUOUS | WRITEABLE
    if obj(value).type != i64(shared()).ndarray_type or bytes_of(value) < i64(words)[TRACE_LEAST]:
        return 0
    return obj(value).flags & plainly == plainly


def is_too_much(words: int, held: int) -> int:
    """Whether there is no room for another operation whose result holds so many bytes."""
    w = i64(words)
    w[TRACE_BYTES] = w[TRACE_BYTES] - held
    if obj(w[TRACE_OBJECTS]).size >= LISTED_OBJECTS * w[TRACE_MOST]:
        w[TRACE_BYTES] = -1
    return w[TRACE_BYTES] < 0


def room_of_listed(words: int) -> int:
    """Where the numbers of the operation are that comes next, if it is not too much; 0 with an error set."""
    g, w = i64(shared()), i64(words)
    count = obj(w[TRACE_OBJECTS]).size // LISTED_OBJECTS
    while count >= w[TRACE_ROOM] and count < w[TRACE_MOST]:
        out = call(g.vectorcall, w[TRACE_GROW], 0, 0, 0)
        if out == 0:
            return 0
        invoke(g.decref, out)
        count = obj(w[TRACE_OBJECTS]).size // LISTED_OBJECTS  # another thread may have listed operations
    return w[TRACE_NUMBERS] + 8 * LISTED_NUMBERS * count


def listed_result(words: int, sheet: int, a: int, b: int, out: int, attrs: int, view: int) -> int:
    """The Tensor of a result, or why there is none; listed if there are words for that, see `trace`."""
    if words == 0 or out == 0 or out == UNHANDLED:
        return out
    if trace(words, sheet, a, b, out, attrs, view) != 0:
        invoke(i64(shared()).decref, out)
        return 0
    return out


def is_recorded(x: int) -> int:
    """Whether an object is a Tensor with a history, as what it was recorded."""
    g, tape = i64(shared()), 0
    if obj(x).type == g.tensor_type:
        tape = obj(x).tape
    if tape == 0 or tape == g.stale_tape or tape == g.dual_tape:
        return 0
    return obj(tape).type == g.tape_type


def listing(mode: int) -> int:
    """The words by which a mode wants operations listed and nothing else of them; 0 where that is not all."""
    g = i64(shared())
    if obj(mode).type != g.mode_type:
        return 0
    if obj(mode).plain != g.true:
        return 0
    if call(g.long_as, obj(mode).noting) | call(g.long_as, obj(mode).timing):
        return 0
    return call(g.long_as, obj(mode).tracing)


def trace_comparison(words: int, which: int, a: int, b: int, out: int) -> int:
    """As `trace`, of operands that have a history or are Python's numbers, and a result that has none."""
    g, w, row = i64(shared()), i64(words), room_of_listed(words)
    if row == 0:
        return 1
    if is_too_much(words, 1):
        return 0
    objects = w[TRACE_OBJECTS]
    k = obj(objects).size // LISTED_OBJECTS
    failed = call(g.append, w[TRACE_FLAT], out) | list_integer(w[TRACE_FLAT], k)
    failed = failed | call(g.append, objects, w[TRACE_COMPARISONS + which])
    failed = failed | call(g.append, objects, obj(out).v)
    i64(row)[LISTED_HOW], history = 2, i64(row + 8 * LISTED_RESULT)
    history[0], history[1], history[2] = out, FLAT, k
    failed = failed | list_operand(words, row + 8 * LISTED_OPERANDS, a)
    failed = failed | list_operand(words, row + 8 * (LISTED_OPERANDS + 3), b)
    return failed & 0xFFFFFFFF


def list_operand(words: int, at: int, x: int) -> int:
    """List an operand, and write what tells it."""
    g, w, history = i64(shared()), i64(words), i64(at)
    if obj(x).type == g.tensor_type:
        if obj(x).tape != g.none_at_all and obj(x).tape != 0:
            write_history(at, x)
            return call(g.append, w[TRACE_OBJECTS], g.none_at_all)
    history[0], history[1], history[2] = 0, 0, -1
    if obj(x).type == g.tensor_type and obj(x).extra == g.none_at_all:
        history[0], x = x, obj(x).v
    failed = call(g.append, w[TRACE_OBJECTS], x)
    if obj(x).type != g.float_type and obj(x).type != g.int_type:
        failed = failed | list_integer(w[TRACE_BROUGHT], obj(w[TRACE_OBJECTS]).size - 1)
    return failed


def write_history(at: int, x: int) -> int:
    """Write what tells a Tensor with a history; 1."""
    g, history = i64(shared()), i64(at)
    history[0], history[1] = x, call(g.long_as, obj(obj(x).tape).serial)
    history[2] = call(g.long_as, obj(x).at)
    return 1


def list_integer(found: int, x: int) -> int:
    """Append an integer to a list."""
    g = i64(shared())
    number = call(g.long_from, x)
    if number == 0:
        return -1
    failed = call(g.append, found, number)
    invoke(g.decref, number)
    return failed


def plainly(twin: int, args: int, count: int, mode: int) -> int:
    """Call a function of Python in the mode True, instead of another; 0 with an error set on failure."""
    g, error = i64(shared()), stack(3)
    if put_in_force(g.true) == 0:
        return 0
    out = call(g.vectorcall, twin, args, count, 0)
    if out == 0:
        invoke(g.error_take, error, error + 8, error + 16)
    back = put_in_force(mode)
    if out == 0:
        invoke(g.error_give, i64(error)[0], i64(error)[1], i64(error)[2])
    elif back == 0:
        invoke(g.decref, out)
        out = 0
    return out


def delegate(sheet: int, twin: int, args: int, count: int, a: int, b: int) -> int:
    """Let an op's twin in Python do it."""
    g = i64(shared())
    mode = in_force()
    if mode == 0:
        return 0
    if mode != g.true:
        if plain(a) and (b == 0 or plain(b)):
            out = watched(sheet, twin, args, count, 0, a, b, mode)
            if out != UNHANDLED:
                return out
    return call(g.vectorcall, twin, args, count, 0)


def plain(x: int) -> int:
    """Whether an operand is neither dual nor stale."""
    g = i64(shared())
    if obj(x).type != g.tensor_type:
        return 1
    tape = obj(x).tape
    if tape == 0 or tape == g.none_at_all:
        return tape
    return obj(tape).type == g.tape_type and tape != g.stale_tape and tape != g.dual_tape


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
    words[0] = obj(i64(sheet).opcode).digit | x << 16 | y << 24
    words[3], words[4], words[5], words[6] = call(g.thread), bytes_of(obj(out).v), 0, 0
    tape = obj(out).tape
    if obj(tape).type == g.tape_type:
        words[5] = call(g.long_as, obj(tape).serial)
        words[6] = call(g.long_as, obj(out).at)
    invoke(t[EVENT_CLOCK], t[EVENT_CLOCK_KIND], end)
    words[1] = i64(begin)[0] * 1000000000 + i64(begin)[1]
    words[2] = i64(end)[0] * 1000000000 + i64(end)[1]
    t[EVENT] = following
    return 1


def extents_of(x: int, place: int) -> int:
    """Write an operand's shape; returns how many axes it has, NO_SHAPE for a number of Python's."""
    g = i64(shared())
    if obj(x).type == g.tensor_type:
        x = obj(x).v
    kind = obj(x).type
    if kind == g.float_type or kind == g.int_type:
        return NO_SHAPE
    if kind != g.ndarray_type:
        return 0
    ndim = obj(x).ndim
    dims = i64(obj(x).dims)
    for d in range(ndim):
        i64(place)[d] = dims[d]
    return ndim


def bytes_of(x: int) -> int:
    """The bytes of what an op has made: a float64 scalar or an array without gaps."""
    g = i64(shared())
    kind, known = obj(x).type, i64(g.scalars)
    if kind != g.ndarray_type:
        for j in range(1, known[0] + 1):
            if known[2 * j] == kind:
                return known[2 * j + 1] >> 8
        return 0
    size, dims, strides = 0, i64(obj(x).dims), i64(obj(x).strides)
    for d in range(obj(x).ndim):
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
    g, tape, at = i64(shared()), obj(out).tape, obj(out).at
    if tape == g.none_at_all or obj(tape).type != g.tape_type:
        return 1
    frames, chain = stack(80), stack(40)
    f, c = i64(frames), i64(chain)
    count = walk_up(lines, frames)  # may collect garbage, so before the list is read
    notes = obj(tape).lines
    length, done = obj(notes).size, 0
    items = i64(obj(notes).items)
    if length != 0:
        if call(g.long_as, items[length - 3]) == call(g.long_as, at):
            done = 1  # by Python, which has recorded it
    if done == 0:
        known, before = 0, length - 2
        while before > 0 and known < 40:
            c[known] = before
            known += 1
            before = call(g.long_as, items[before + 1]) >> 32
        up, inner, last = 0, count - 1, known - 1
        while inner > 0 and last >= 0:
            before = c[last]
            if items[before] != f[2 * inner]:
                break
            if call(g.long_as, items[before + 1]) & 0xFFFFFFFF != f[2 * inner + 1]:
                break
            up = before
            inner -= 1
            last -= 1
        for q in range(inner, -1, -1):
            up = note_frame(notes, at, f[2 * q], f[2 * q + 1] | up << 32)
            if up == 0:
                invoke(g.cut, notes, length, obj(notes).size, 0)
                return 0
    if i64(lines).looking == 0:
        return 1
    if sound(out) == 1 or sound(a) == 0:
        return 1
    args = stack(4)
    i64(args)[0], i64(args)[1], i64(args)[2], i64(args)[3] = i64(sheet).op, out, a, b
    if b != 0:
        if sound(b) == 0:
            return 1
    result = call(g.vectorcall, g.look, args, 3 + (b != 0), 0)
    if result == 0:
        return 0
    invoke(g.decref, result)
    return 1


def walk_up(lines: int, frames: int) -> int:
    """Write the code and the offset of each frame from the innermost out; returns how many there are."""
    g, w, f, count = i64(shared()), i64(lines), i64(frames), 0
    frame = call(g.frame)
    if frame != 0:
        invoke(g.incref, frame)
    while frame != 0 and count < DEPTH:
        code = call(g.frame_code, frame)
        f[2 * count], f[2 * count + 1] = code, call(g.frame_offset, frame) & 0xFFFFFFFF
        invoke(g.decref, code)  # the frame, which is at work, keeps it
        count += 1
        if frame == w[BASE]:
            f[2 * count], f[2 * count + 1] = w[OUTSIDE], 0
            invoke(g.decref, frame)
            return count + 1
        back = call(g.frame_back, frame)
        invoke(g.decref, frame)
        frame = back
    if frame != 0:
        invoke(g.decref, frame)
    return count


def note_frame(notes: int, at: int, code: int, word: int) -> int:
    """Append a note; returns its place + 1, or 0 with an error set."""
    g = i64(shared())
    place, entry = obj(notes).size, call(g.long_from, word)
    if entry == 0:
        return 0
    failed = call(g.append, notes, at) & 0xFFFFFFFF
    if failed == 0:
        failed = call(g.append, notes, code) & 0xFFFFFFFF
    if failed == 0:
        failed = call(g.append, notes, entry) & 0xFFFFFFFF
    invoke(g.decref, entry)
    if failed:
        return 0
    return place + 1


def sound(x: int) -> int:
    """Whether an operand or a result is finite; 2 where that is left to Python."""
    g = i64(shared())
    if obj(x).type == g.tensor_type:
        x = obj(x).v
    kind, width, n = obj(x).type, 8, 1
    if kind == g.int_type:
        return 1
    if kind == g.float_type or kind == g.float64_type:
        return f64(x + SCALAR_AT)[0] - f64(x + SCALAR_AT)[0] == 0.0
    if kind != g.ndarray_type:
        return 2
    if obj(x).descr == g.single:
        width = 4
    elif obj(x).descr != g.double:
        return 2
    dims, strides, low, high = i64(obj(x).dims), i64(obj(x).strides), 0, 0
    for d in range(obj(x).ndim):
        if dims[d] == 0:
            return 1
        reach = (dims[d] - 1) * strides[d]
        if reach != 0:
            n *= dims[d]
        low, high = low + min(reach, 0), high + max(reach, 0)
    span = (high - low) // width + 1  # looked at is all memory from the first element to the last
    if span > 2 * n + BLOCK:
        return 2
    if suspect(width, obj(x).data + low, span) == 0:
        return 1
    if span == n:
        return 0
    return 2
