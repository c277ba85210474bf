"""Compiled: an op that a program expects: nothing is computed, its operands are noted.

The program's events (see `layout`) say which op comes next, on what. Whatever differs is left to Python
(`tapegrad.compilation.paths.matching`).
"""

from tapegrad.kernels.dialect import call, copy, i64, invoke, obj, shared, stack
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.matching_operands import (
    constant_of,
    is_same_index,
    match_operands,
    matches_operand,
)
from tapegrad.kernels.replay.operands import clear_exception, code_of, in_force, left


def matched(sheet: int, a: int, b: int) -> int:
    """A new reference to the Tensor that stands for the result; 0 with an error set; UNHANDLED."""
    event = i64(i64(shared()).matching).next_event
    if i64(i64(event).event_alike).alike_op != i64(sheet).op:
        return UNHANDLED
    return match_operands_of(event, a, b)


def matched_part(self: int, key: int) -> int:
    """As `matched`, for a part of a Tensor by a basic index."""
    event = i64(i64(shared()).matching).next_event
    words = i64(i64(event).event_alike)
    if words.alike_op <= 1 or words.alike_second != AN_INDEX:
        return UNHANDLED
    if obj(key).type == i64(shared()).tensor_type:
        return matched_element(event, self, key)
    return match_operands_of(event, self, key)


def matched_element(event: int, self: int, key: int) -> int:
    """As `matched_part`, by a Tensor that stands for an integer, which is computed."""
    e, at = i64(event), expected_number(key)
    mode = in_force()
    if mode == 0:
        return 0
    if at == 0 or is_followed(mode) <= 0 or code_of(e.event_second) & 0xFF != INTEGER_CODE:
        return left()
    if i64(i64(at).event_alike).alike_code & 0xFF != INTEGER_CODE or compute_expected(at) == 0:
        return left()
    if i64(e.event_second + SCALAR_AT)[0] != i64(i64(at).event_number)[0]:
        return UNHANDLED
    if matches_operand(i64(e.event_alike).alike_first, e.event_first, self) == 0:
        return UNHANDLED
    return pass_event(event)


def matched_comparison(a: int, b: int, which: int) -> int:
    """As `matched`, for a comparison."""
    m = i64(i64(shared()).matching)
    if i64(i64(m.next_event).event_alike).alike_op != m[COMPARISONS + which]:
        return UNHANDLED
    return match_operands_of(m.next_event, a, b)


def match_operands_of(event: int, a: int, b: int) -> int:
    """The Tensor of an event, if these are its operands, and the next event is expected."""
    e, words = i64(event), i64(i64(event).event_alike)
    if matches_operand(words.alike_first, e.event_first, constant_of(words.alike_first, a)) == 0:
        return UNHANDLED
    if matches_operand(words.alike_second, e.event_second, constant_of(words.alike_second, b)) == 0:
        return UNHANDLED
    return pass_event(event)


def match_call(module: int, args: int, count: int) -> int:
    """``match_call(method, args, kwargs)``: the Tensor that is expected, or None."""
    g, given, out = i64(shared()), i64(args), UNHANDLED
    if g.matching != 0 and count == 3:
        out = matched_call(given[0], given[1], given[2])
    if out == UNHANDLED:
        out = g.none_at_all
        invoke(g.incref, out)
    return out


def matched_call(function: int, args: int, names: int) -> int:
    """As `matched`, for a call of a method or of one of NumPy's functions."""
    g = i64(shared())
    event = i64(g.matching).next_event
    words = i64(i64(event).event_alike).alike_call
    if words == 0:
        return UNHANDLED
    w = i64(words)
    if w.call_of != function or obj(args).type != g.tuple_type or obj(names).type != g.dict_type:
        return UNHANDLED
    if obj(names).size != w.call_names:
        return UNHANDLED
    if match_operands(words, args + TUPLE_ITEMS_AT, obj(args).size) == 0:
        return UNHANDLED
    for q in range(w.call_names):
        named = CALL_ARGUMENTS + 2 * w.call_count + 3 * q
        found = call(g.dict_get, names, w[named])
        if found == 0:
            invoke(g.error_clear)
            return UNHANDLED
        if matches_operand(w[named + 1], w[named + 2], constant_of(w[named + 1], found)) == 0:
            return UNHANDLED
    if w.call_write == 0:
        return pass_call(event, words)
    to = i64(args + TUPLE_ITEMS_AT)[0]
    if are_free(event, 1) == 0 or is_written(w.call_write, to, g.ellipsis, i64(event).event_handle) == 0:
        return UNHANDLED
    return pass_events(event, 1 + i64(w.call_write).write_events, to)


def matched_flat(ufunc: int, operands: int, count: int) -> int:
    """As `matched`, for a call of a ufunc without a derivative."""
    event = i64(i64(shared()).matching).next_event
    words = i64(i64(event).event_alike).alike_call
    if words == 0:
        return UNHANDLED
    if i64(words).call_of != ufunc or match_operands(words, operands, count) == 0:
        return UNHANDLED
    return pass_call(event, words)


def pass_call(event: int, words: int) -> int:
    """As `pass_events`, of a call whose arguments have come; several results are in a new list or tuple."""
    g, w = i64(shared()), i64(words)
    if are_free(event, w.call_events) == 0:
        return UNHANDLED
    if w.call_computed != 0 and is_computed(event) == 0:
        return left()
    constants = i64(words + 8 * (CALL_ARGUMENTS + 2 * w.call_count + 3 * w.call_names))
    for q in range(w.call_constants):
        copy(constants[3 * q], constants[3 * q + 1], constants[3 * q + 2])
    if w.call_kind == 0:
        return pass_events(event, w.call_events, w.call_handle)
    out = pass_events(event, w.call_events, g.none_at_all)
    if out != g.none_at_all:
        return out
    invoke(g.decref, out)
    items = 0
    if w.call_kind == g.list_type:
        out = call(g.new_list, w.call_results)
        if out != 0:
            items = obj(out).items
    else:
        out = call(g.new_tuple, w.call_results)
        if out != 0:
            items = out + TUPLE_ITEMS_AT
    if out != 0:
        for q in range(w.call_results):
            handle = constants[3 * w.call_constants + q]
            invoke(g.incref, handle)
            i64(items)[q] = handle
    if out == 0 or w.call_kind == g.list_type or w.call_kind == g.tuple_type:
        return out
    several = stack(1)
    i64(several)[0] = out
    named = call(g.vectorcall, w.call_kind, several, 1, 0)
    invoke(g.decref, out)
    return named


def is_computed(event: int) -> int:
    """Whether the event that is expected next is what is followed, and computed without errors."""
    g, mode, args = i64(shared()), in_force(), stack(1)
    if mode == 0 or is_followed(mode) <= 0:
        return 0
    m, done = i64(g.matching), 0
    if m.run_words_at == 0:
        return 0  # Python is to see what is looked at, and does all that
    if compute_expected(event) != 0:
        return 1
    i64(args)[0] = call(g.long_from, (event - m.first_event) // (8 * EVENT_SIZE) + 1)
    if i64(args)[0] != 0:
        done = call(g.vectorcall, m.computing, args, 1, 0)
        invoke(g.decref, i64(args)[0])
    if done != 0:
        invoke(g.decref, done)
    return done == g.true


def matched_write(x: int, key: int, new: int) -> int:
    """None, borrowed, where ``x[key] = new`` is what is expected; 0 with an error set; UNHANDLED."""
    g, count = i64(shared()), 0
    event = i64(g.matching).next_event
    words = i64(i64(event - 8 * EVENT_SIZE).event_alike).alike_in_vain
    if words == 0 or is_written(words, x, key, new) == 0:
        words = i64(i64(event).event_alike).alike_write
        if words == 0 or is_written(words, x, key, new) == 0:
            return UNHANDLED
        count = i64(words).write_events
    out = pass_events(event, count, g.none_at_all)
    if out == g.none_at_all:
        invoke(g.decref, out)
    return out


def is_written(words: int, x: int, key: int, new: int) -> int:
    """Whether this is a write to the Tensor that is expected there, of which no value has been seen."""
    w, m = i64(words), i64(i64(shared()).matching)
    if w.write_to != x or m.seen != 0 or is_same_index(w.write_index, key) == 0:
        return 0
    for q in range(w.write_views):
        if obj(w[WRITE_HANDLES + q]).refcount > 1:
            return 0
    return matches_operand(w[WRITE_OPERAND], w[WRITE_OPERAND + 1], constant_of(w[WRITE_OPERAND], new))


def pass_event(event: int) -> int:
    """The Tensor of an event whose operands have come, if the next event is expected."""
    if are_free(event, 1) == 0:
        return UNHANDLED
    return pass_events(event, 1, i64(event).event_handle)


def are_free(event: int, count: int) -> int:
    """Whether nobody has, or has looked at, Tensors of so many events, as they may have been for others."""
    weak = i64(i64(shared()).matching).weakly_held_at
    for q in range(count):
        x = i64(event + 8 * EVENT_SIZE * q).event_handle
        if obj(x).refcount != 1 or obj(x).v != 0 or i64(x + weak)[0] != 0:
            return 0
    return 1


def pass_events(event: int, count: int, out: int) -> int:
    """A new reference to what events give whose operands have come; what is behind them is expected."""
    g, mode = i64(shared()), in_force()
    if mode == 0:
        return 0
    followed = is_followed(mode)
    if followed < 0:
        return 0
    if followed == 0:
        return UNHANDLED
    for q in range(count):
        recorded = i64(i64(event + 8 * EVENT_SIZE * q).event_alike).alike_recorded
        if recorded != EITHER and recorded != followed:
            return UNHANDLED
    invoke(g.incref, out)
    i64(g.matching).next_event = event + 8 * EVENT_SIZE * count
    return out


def is_followed(mode: int) -> int:
    """Which events of the program at work count in this mode, RECORDED_ON or RECORDED_OFF; 0 for none.

    Less than 0 with an error set.
    """
    g, handling, recorded = i64(shared()), stack(1), RECORDED_ON
    if call(g.context_get, g.error_mode, 0, handling) & 0xFFFFFFFF:
        return -1
    if i64(handling)[0] != 0:
        invoke(g.decref, i64(handling)[0])
    m = i64(g.matching)
    if mode == m.matching_off:
        recorded = RECORDED_OFF
    elif mode != m.matching_mode:
        return 0
    if i64(handling)[0] != m.matching_errors:
        return recorded * is_handled()
    filters, first = stack(3), g.matching + 8 * FILTERS
    note_filters(filters)
    for k in range(3):
        if i64(filters)[k] != i64(first)[k]:
            return 0
    return recorded


def is_handled() -> int:
    """As `is_followed`, under another handling of errors than that at hand, which Python asks for."""
    g, args = i64(shared()), stack(1)
    found = call(g.vectorcall, i64(g.matching).handled, args, 0, 0)
    if found == 0:
        return 0 - 1
    invoke(g.decref, found)
    return found == g.true


def note_filters(at: int) -> int:
    """Write what tells Python's filters of warnings: the list, how many, and the first of them; 1."""
    g = i64(shared())
    found = call(g.dict_get, g.warnings, g.filters_text)
    i64(at)[0], i64(at)[1], i64(at)[2] = found, 0, 0
    if found == 0:
        invoke(g.error_clear)
    elif obj(found).type == g.list_type and obj(found).size != 0:
        i64(at)[1], i64(at)[2] = obj(found).size, i64(obj(found).items)[0]
    return 1


def keep_in_list(x: int, k: int, new: int) -> int:
    """Exchange an element of a list; None where there is nothing; 1."""
    g, items = i64(shared()), i64(obj(x).items)
    old = items[k]
    if new == 0:
        invoke(g.error_clear)
        new = g.none_at_all
    invoke(g.incref, new)
    items[k] = new
    invoke(g.decref, old)
    return 1


def like_expected(module: int, x: int) -> int:
    """``like(x)``: the buffer of a Tensor that a program at work expects; None where Python is to look."""
    g, out = i64(shared()), 0
    if g.matching != 0:
        m, event, of = i64(g.matching), latest_event(x), 0
        if event >= m.first_event:
            of, k = m.values_list, (event - m.first_event) // (8 * EVENT_SIZE)
        elif event != 0:
            of, k = m.arguments_list, m.argument_count - (m.first_event - event) // (8 * EVENT_SIZE)
        if of != 0:
            out = i64(obj(of).items)[k]
    if out == 0:
        out = g.none_at_all
    invoke(g.incref, out)
    return out


def expected_number(x: int) -> int:
    """As `latest_event`, if that gives a number."""
    event = latest_event(x)
    if event == 0:
        return 0
    return event * (i64(event).event_number != 0)


def latest_event(x: int) -> int:
    """The event among the latest, or the argument's row, whose result is this Tensor; 0 for none."""
    m = i64(i64(shared()).matching)
    behind = (m.next_event - m.first_event) // (8 * EVENT_SIZE)
    for q in range(min(behind, LOOK_BACK)):
        event = m.next_event - 8 * EVENT_SIZE * (q + 1)
        if i64(event).event_handle == x:
            return event
    for q in range(m.argument_count):
        event = m.first_event - 8 * EVENT_SIZE * (q + 1)
        if i64(event).event_handle == x:
            return event
    return 0


def compute_expected(event: int) -> int:
    """Compute the results up to that of an event; 0 where Python has to, perhaps with an interrupt set."""
    m = i64(i64(shared()).matching)
    k = (event - m.first_event) // (8 * EVENT_SIZE) + 1
    if m.computed < k:
        if m.run_words_at == 0:
            return 0
        came = 0
        if m.raising == 0:
            came = call(m.run_function, RUN_ROWS, m.run_words_at, m.computed, k)
        else:
            came = run_raising(k)
        if came < m.computed:
            return 0
        if i64(m.run_words_at)[ERRORS_MET] != 0:
            return 0
        m[COMPUTED] = came
        return came == k
    return 1


def run_raising(k: int) -> int:
    """Run rows before one, with calls, which raise errors of numbers.

    Returns where it came to; -1 perhaps with an interrupt set.
    """
    g = i64(shared())
    m, came = i64(g.matching), 0 - 1
    if put_in(g.error_mode, m.raising) != 0:
        came = call(m.run_function, RUN_ROWS, m.run_words_at, m.computed, k)
        if put_in(g.error_mode, m.matching_errors) == 0:
            came = 0 - 1
    if came < 0:
        clear_exception()
    return came


def follow(module: int, args: int, count: int) -> int:
    """``follow(matching, plan, f, *args)``: call a function in the mode in which operations are compared.

    If it has followed the path at hand to its end, nobody has looked at a value or keeps a Tensor, and the
    plan has computed the call, it gives the words of the plan; else what the function gives.
    """
    g, given = i64(shared()), i64(args)
    matching, plan = obj(given[0]).data, obj(given[1]).data
    m = i64(matching)
    m[NEXT_EVENT], m[COMPUTED], m[SEEN] = m.first_event, 0, 0
    m[MATCHING_ERRORS], m[CHANGES], m[MISSED] = m.errors_at_first, 0, 0
    note_filters(matching + 8 * FILTERS)
    keep_in_list(m.telling, 0, m.filters)
    keep_in_list(m.telling, 1, call(g.dict_get, g.warnings, g.show_text))
    known = holders(matching, i64(plan).weak_references_at)
    if put_in_force(m.matching_mode) == 0:
        return 0
    g[MATCHING] = matching
    found, error = call(g.vectorcall, given[2], args + 24, count - 3, 0), stack(3)
    followed = g.matching == matching  # which ends where the call has left the path
    g[MATCHING] = 0
    if found == 0:
        invoke(g.error_take, error, error + 8, error + 16)
    back = put_in_force(g.true)
    if found == 0:
        invoke(g.error_give, i64(error)[0], i64(error)[1], i64(error)[2])
        return 0
    if back == 0:
        invoke(g.decref, found)
        return 0
    if followed == 0 or m.next_event != m.last_event or found != m.result_handle:
        return found
    kept = holders(matching, i64(plan).weak_references_at)
    if m.computed != 0 or m.seen != 0 or kept == 0 or kept != known:
        return found
    invoke(g.decref, found)
    i64(plan)[REPORTED] = m.errors_reported
    if call(m.run_function, RUN_PLAN, plan, 0, 0):
        found = given[1]
    invoke(g.incref, found)
    return found


def put_in_force(mode: int) -> int:
    """Let a mode be in force; 0 with an error set."""
    return put_in(i64(shared()).mode, mode)


def put_in(variable: int, x: int) -> int:
    """Let a context variable be this; 0 with an error set."""
    g = i64(shared())
    token = call(g.context_set, variable, x)
    if token == 0:
        return 0
    invoke(g.decref, token)
    return 1


def holders(matching: int, weak: int) -> int:
    """How many refer to the Tensors of all arguments; 0 if anybody refers to one weakly."""
    m, found = i64(matching), 0
    for q in range(m.argument_count):
        handle = i64(m.first_event - 8 * EVENT_SIZE * (q + 1)).event_handle
        if i64(handle + weak)[0] != 0:
            return 0
        found += obj(handle).refcount
    return found
