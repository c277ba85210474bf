"""Compiled: run the rows of a program (see `layout`).

Rows that follow each other over as many elements are a group: it is run block by block, so that what one row
writes the next one finds in the nearest cache.
"""

from tapegrad.kernels.dialect import address, call, copy, f32, f64, i32, i64, invoke, obj, stack
from tapegrad.kernels.replay.layout import *


def run_rows(state: int, begin: int, end: int) -> int:
    """Run rows from `begin` to before `end`: where it came to, a row for Python to run or the end.

    Errors of floating-point numbers that it meets are noted.
    """
    s = i64(state)
    if call(s.test_flags, s.all_flags) & 0xFFFFFFFF:
        invoke(s.clear_flags, s.all_flags)
    came = rows_from(state, begin, end)
    s[ERRORS_MET] = s.errors_met | call(s.test_flags, s.all_flags) & 0xFFFFFFFF
    return came


def rows_from(state: int, begin: int, end: int) -> int:
    """As `run_rows`, but for errors.

    Without Python's lock where rows run long, have no Tensors that somebody may ask for and call no Python.
    It comes to none of rows that wait.
    """
    if i64(state).program_rows == 0:
        return begin
    s, row, thread, group = i64(state), begin, 0, group_of(state, begin)
    while row < end:
        at = row_at(state, row)
        form = i64(i64(at).row_form)
        kind = form.form_kind
        if kind == BY_PYTHON or kind == BY_CALL or kind == BY_ROWS:
            take_lock(state, thread)
            thread = 0
            if kind == BY_PYTHON:
                return row
            if kind == BY_CALL:
                if call_row(state, at) == 0:
                    return row
            else:
                inner, count = form.form_function, form.form_data
                came = rows_from(inner, 0, count)
                s[ERRORS_MET] = s.errors_met | i64(inner).errors_met
                i64(inner)[ERRORS_MET] = 0
                if came < count:
                    return row
            row += 1
            group += 8 * GROUP_WORDS
            continue
        if s.runs_long != 0 and s.event_count == 0 and thread == 0:
            thread = call(s.release_lock)
        if kind >= BY_TOTAL:
            if kind == BY_TOTAL:
                add_up(at)
            elif kind == BY_REDUCTION:
                note_errors(state, at)
                reduce(at)
            elif kind == BY_SUMS:
                sum_rows(at + 8 * ROW_PLACES, form.form_data, form.form_extent)
            else:
                multiply(at)
            row += 1
        else:
            stop = min(end, i64(group).group_end)
            if run_group(state, row, stop, i64(group).group_blocks) == 0:
                s[ABANDONED] = 1
            row = stop
        group += 8 * GROUP_WORDS
    take_lock(state, thread)
    return end


def row_at(state: int, row: int) -> int:
    """Where a row is."""
    s = i64(state)
    return s.program_rows + 8 * i32(s.row_starts)[row]


def group_of(state: int, row: int) -> int:
    """Where the words of the group of a row are: the first one that ends behind it."""
    s = i64(state)
    low, high = 0, s.group_count
    while low < high:
        middle = (low + high) // 2
        if i64(s.groups)[GROUP_WORDS * middle] <= row:
            low = middle + 1
        else:
            high = middle
    return s.groups + 8 * GROUP_WORDS * low


def take_lock(state: int, thread: int) -> int:
    """Take Python's lock, where it was released by a thread, as which it goes on."""
    if thread != 0:
        invoke(i64(state).take_lock, thread)
    return thread


def note_errors(state: int, at: int) -> int:
    """Note errors of floating-point numbers before a row whose loop clears the flags of them."""
    s = i64(state)
    if i64(i64(at).row_form).form_clears:
        s[ERRORS_MET] = s.errors_met | call(s.test_flags, s.all_flags) & 0xFFFFFFFF
    return 1


def run_group(state: int, begin: int, end: int, blocks: int) -> int:
    """Run rows from `begin` to before `end` block by block; 0 where one has found that it cannot be."""
    low, k, good = 0, 0, 1
    extent = i64(i64(row_at(state, begin)).row_form).form_extent
    while low < extent:
        high = min(low + PROGRAM_BLOCK, extent)
        if blocks != 0:
            k += 1
            high = i64(blocks)[k]
        for row in range(begin, end):
            note_errors(state, row_at(state, row))
            good = min(good, run_block(row_at(state, row), low, high - low))
        low = high
    return good


def add_up(at: int) -> int:
    """Add the parts of a total, in pairs of halves as NumPy does, to what it begins with."""
    r, form = i64(at), i64(i64(at).row_form)
    parts, begin, out = r[ROW_PLACES], r[ROW_PLACES + 1], r[ROW_PLACES + 2]
    if form.form_data == 8:
        add_halves(parts, form.form_extent)
        f64(out)[0] = f64(begin)[0] + f64(parts)[0]
    else:
        add_single_halves(parts, form.form_extent)
        f32(out)[0] = f32(begin)[0] + f32(parts)[0]
    return divide(out, r[ROW_PLACES + 3], form.form_data)


def divide(out: int, divisor: int, itemsize: int) -> int:
    """Divide a number, if there is something to divide it by."""
    if divisor != 0 and itemsize == 8:
        f64(out)[0] = f64(out)[0] / f64(divisor)[0]
    elif divisor != 0:
        f32(out)[0] = f32(out)[0] / f32(divisor)[0]
    return 1


def reduce(at: int) -> int:
    """Reduce elements as NumPy does: by one loop, that begins with a number or the first element."""
    r, form, places, extent = i64(at), i64(at).row_form, stack(3), stack(1)
    strides = form + 8 * (FORM_STRIDES + i64(form).form_count)
    out, itemsize = r[ROW_PLACES + 2], i64(strides)[1]
    copy(out, r[ROW_PLACES], itemsize)
    i64(places)[0], i64(places)[1], i64(places)[2] = out, r[ROW_PLACES + 1], out
    i64(extent)[0] = i64(form).form_extent
    invoke(i64(form).form_function, places, extent, strides, i64(form).form_data)
    return divide(out, r[ROW_PLACES + 3], itemsize)


def add_halves(at: int, n: int) -> int:
    """Add the parts of so many elements, which lie a byte apart, where the first one lies."""
    if n > PROGRAM_BLOCK:
        half = n // 2 - n // 2 % 8
        add_halves(at, half)
        add_halves(at + half, n - half)
        f64(at)[0] = f64(at)[0] + f64(at + half)[0]
    return 1


def add_single_halves(at: int, n: int) -> int:
    """As `add_halves`, in single precision."""
    if n > PROGRAM_BLOCK:
        half = n // 2 - n // 2 % 8
        add_single_halves(at, half)
        add_single_halves(at + half, n - half)
        f32(at)[0] = f32(at)[0] + f32(at + half)[0]
    return 1


def call_row(state: int, at: int) -> int:
    """Call a function of Python's, whose result is dropped; 0 where it has raised an error, now cleared."""
    s, form = i64(state), i64(i64(at).row_form)
    s[ERRORS_MET] = s.errors_met | call(s.test_flags, s.all_flags) & 0xFFFFFFFF  # NumPy begins without any
    out = call(s.call_function, form.form_function, at + 8 * ROW_PLACES, form.form_count, 0)
    if out == 0:
        invoke(s.clear_error)
        return 0
    invoke(s.drop_reference, out)
    return 1


def sum_rows(places: int, n: int, count: int) -> int:
    """Sum so many rows of n doubles, each as NumPy does."""
    begin, x, out = f64(i64(places)[0])[0], i64(places)[1], i64(places)[2]
    for k in range(count):
        row, place = x + 8 * n * k, out + 8 * k
        if n <= SHORT_ROW:
            sum_row(row, n, place)
        else:
            sum_halves(row, n, place)
        f64(place)[0] = begin + f64(place)[0]
    return 1


def sum_halves(at: int, n: int, place: int) -> int:
    """Sum a row to a place: of a long one two halves."""
    if n <= SHORT_ROW:
        return sum_row(at, n, place)
    half, rest = n // 2 - n // 2 % 8, stack(1)
    sum_halves(at, half, place)
    sum_halves(at + 8 * half, n - half, rest)
    f64(place)[0] = f64(place)[0] + f64(rest)[0]
    return 1


def sum_row(at: int, n: int, place: int) -> int:
    """Sum a short row to a place: eight sums side by side."""
    row, total, done = f64(at), -0.0, 0
    if n >= 8:
        a, b, c, d = row[0], row[1], row[2], row[3]
        e, f, g, h = row[4], row[5], row[6], row[7]
        done = 8
        while done + 8 <= n:
            a, b, c, d = a + row[done], b + row[done + 1], c + row[done + 2], d + row[done + 3]
            e, f, g, h = e + row[done + 4], f + row[done + 5], g + row[done + 6], h + row[done + 7]
            done += 8
        total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    while done < n:
        total = total + row[done]
        done += 1
    f64(place)[0] = total
    return 1


def multiply(at: int) -> int:
    """Multiply matrices: one product, or as many as a stack has.

    An operand with subnormal numbers, for each of which a processor stops in every product, is multiplied by
    a power of two meanwhile, which rounds nothing.
    """
    r, steps, places, extents = i64(at), i64(at + 8 * ROW_STEPS), stack(3), stack(4)
    if r.scaled_by == 0:
        return multiply_as_it_is(at, at + 8 * ROW_PLACES, at + 8 * ROW_STEPS)
    copy(extents, at + 8 * ROW_STEPS, 32)
    i64(extents)[0] = 1
    by, n, count = r.scaled_by, r.scaled_size, steps[1] * steps[3]
    for k in range(steps[0]):
        for q in range(3):
            i64(places)[q] = r[ROW_PLACES + q] + k * steps[4 + q]
        x, out, done = i64(places)[r.scaled_operand], i64(places)[2], 0
        if has_large(by, x, n) == 0 and i64(i64(by).small_count)[0] != 0:
            scale(by, i64(by).scale_up, x, n)
            multiply_as_it_is(at, places, extents)
            scale(by, i64(by).scale_down, x, n)
            scale(by, i64(by).scale_down, out, count)
            done = 1 - has_large(by, out, count)
        if done == 0:
            multiply_as_it_is(at, places, extents)
    return 1


def multiply_as_it_is(at: int, places: int, extents: int) -> int:
    """Multiply matrices by NumPy's loop, which writes to the words where their places are."""
    form, moving = i64(i64(at).row_form), stack(3)
    copy(moving, places, 24)
    invoke(form.form_function, moving, extents, at + 8 * (ROW_STEPS + 4), form.form_data)
    return 1


def has_large(by: int, x: int, n: int) -> int:
    """Whether some of n elements are too large to be scaled; it is noted how many are subnormal."""
    t = i64(by)
    t[COUNTED] = x
    call(t.counting, by + 8 * COUNTED_LIMITS, n)
    return i64(t.large_count)[0] != 0


def scale(by: int, factor: int, x: int, n: int) -> int:
    """Multiply n elements by the number that lies there."""
    t = i64(by)
    t[SCALED_FACTOR], t[SCALED] = factor, x
    return call(t.scaling, by + 8 * SCALED_FACTOR, n)


def run_block(at: int, low: int, n: int) -> int:
    """Run a row for so many elements; 0 where a fused kernel has found that it cannot be."""
    r, form, places, extent = i64(at), i64(i64(at).row_form), stack(ROW_OPERANDS), stack(1)
    count = form.form_count
    if form.form_kind == BY_FUSED:
        table = r[ROW_PLACES]
        words = i64(table)
        for q in range(count):
            words[4 * count + q] = words[q] + low * words[count + q]
            if words[3 * count + q] != 0:
                whole = low // words[2 * count + q] * words[3 * count + q]
                words[4 * count + q] = words[4 * count + q] + whole
        return call(form.form_function, table + 32 * count, n)
    for q in range(count):
        i64(places)[q] = r[ROW_PLACES + q] + low * form[FORM_STRIDES + q]
    if form.form_kind == BY_KERNEL:
        return call(form.form_function, places, n)
    if form.form_kind == BY_GROUP_SUMS:
        i64(places)[2] = r[ROW_PLACES + 2] + 8 * (low // form.form_data)
        return sum_rows(places, form.form_data, n // form.form_data)
    i64(extent)[0] = n
    invoke(form.form_function, places, extent, r.row_form + 8 * (FORM_STRIDES + count), form.form_data)
    return 1


def run_program(what: int, state: int, begin: int, end: int) -> int:
    """Run rows; or all that are left, see that nobody has a Tensor of an event, and run those in reverse.

    All gives what it came to: a row before `end`, or behind it a row in reverse, where Python is to go on. Or
    move addresses that rows have: where these lie, how many there are, and by how many bytes.
    """
    if what == GIVE_FUNCTION:
        return address(run_words)
    if what == RUN_PLAN:
        return run_plan(state)
    if what == MOVE_WORDS:
        return move_words(state, begin, end)
    came = run_rows(state, begin, end)
    if what == RUN_ROWS or came < end:
        return came
    s = i64(state)
    s[HELD] = 0
    if s.skips_python == 0:
        s[HELD] = is_held(s.events_at, s.event_count, s.weak_references_at)
    if s.held or s.errors_met or s.reverse_at == 0:
        return end
    return end + rows_from(s.reverse_at, 0, s.reverse_count)


def move_words(at: int, count: int, move: int) -> int:
    """Add to so many words, whose addresses lie there."""
    for k in range(count):
        word = i64(i64(at)[k])
        word[0] = word[0] + move
    return count


def run_words(module: int, words: int) -> int:
    """A function of Python's, of an array of these words: whether all rows were run and nothing was met."""
    s = i64(obj(words).data)
    found = s[NO_AND_YES]
    if run_plan(obj(words).data):
        found = s[NO_AND_YES + 1]
    invoke(s.add_reference, found)
    return found


def run_plan(state: int) -> int:
    """Run the rows of a plan from the first one that its words say; whether all were, and nothing was met."""
    s = i64(state)
    if s.first_row == 0:
        s[ABANDONED] = 0
        s[ERRORS_MET] = 0
    s[CAME_TO] = run_program(RUN_ALL, state, s.first_row, s.end_row)
    return s.came_to == s.end_row and s.abandoned == 0 and s.held == 0 and s.errors_met & s.reported == 0


def is_held(events: int, count: int, weak: int) -> int:
    """Whether anybody has, or refers weakly to, the Tensor of one of so many events besides its maker."""
    for k in range(count):
        handle = i64(events + 8 * EVENT_SIZE * k).event_handle
        if obj(handle).refcount != 1 or i64(handle + weak)[0] != 0:
            return 1
    return 0
