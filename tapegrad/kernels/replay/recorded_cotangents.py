"""Compiled: cotangents that are Tensors: fitted to the value that they belong to, and added up by records."""

from tapegrad.kernels.dialect import call, i64, invoke, obj, shared, stack
from tapegrad.kernels.replay.deferring import compute_deferred, deferred
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.operands import code_of, drop_position, is_deferred, same_words
from tapegrad.kernels.replay.rule_steps import apply_op, begin_program, end_program, run_steps, step_operand
from tapegrad.kernels.replay.suspending import constant_tensor, kept_value


def add_cotangent(state: int, tape: int, log: int, j: int, part: int) -> int:
    """Add a Tensor, of which the reference is taken, to the cotangent of record j; 0 with an error set."""
    g, s = i64(shared()), i64(state)
    value = kept_value(state, log, j)
    if is_like(part, value, s.batched) == 0:
        part = fitted(state, tape, log, part, value)
        if part == 0:
            return 0
    before = i64(s.cotangents)[j]
    if before != 0:
        if s.batched:
            total = sum_of_values(before, part)
        else:
            total = recorded_sum(before, part)
        invoke(g.decref, before)
        invoke(g.decref, part)
        part = total
    i64(s.cotangents)[j] = part
    return part != 0


def recorded_sum(a: int, b: int) -> int:
    """A new reference to the sum of two Tensors, recorded; 0 with an error set."""
    g, given = i64(shared()), stack(TAKEN_AT_MOST)
    if is_deferred(a) or is_deferred(b):
        i64(given)[0], i64(given)[1], i64(given)[2] = a, b, 0
        total = deferred(g.sheets, i64(g.sheets).ufunc, 0, 0, given, 0)
        if total != UNHANDLED:
            return total
        if compute_deferred(a) == 0 or compute_deferred(b) == 0:
            return 0
    return apply_op(g.sheets, a, b)


def fitted(state: int, tape: int, log: int, part: int, value: int) -> int:
    """A part, of which the reference is taken, in the shape and dtype of a value; 0 with an error set."""
    g, refs, out = i64(shared()), stack(REF_WORDS), 0
    program = program_to_fit(part, value, i64(state).batched)
    if program == 0:
        return drop_position(part, 0)
    words = obj(program).data
    n = begin_program(refs, words, part)
    if run_steps(state, tape, log, 0, refs, words, 0):
        out = step_operand(state, tape, log, 0, refs, i64(words)[GIVEN], 0)
        invoke(g.incref, out)
    drop_position(part, 0)
    drop_position(program, 0)
    return end_program(refs, n, out)


def program_to_fit(part: int, value: int, lanes: int) -> int:
    """A new reference to the words of the program for `fitted`; 0 with an error set."""
    g, args, buffer, program = i64(shared()), stack(3), stack(KEY_WORDS), 0
    i64(buffer)[0] = lanes
    n = note_layout(buffer, note_layout(buffer, 1, obj(part).v), value)
    if n != 0:
        program = kept_program(i64(obj(g.fits).items)[0], buffer, n)
    if program == 0:
        i64(args)[0], i64(args)[1], i64(args)[2] = part, value, g.false
        if lanes:
            i64(args)[2] = g.true
        if compute_deferred(part):
            program = call(g.vectorcall, g.trace_fit, args, 3, 0)
        if program != 0 and n != 0:
            program = keep_program(g.fits, 0, buffer, n, program)
    return program


def note_layout(buffer: int, n: int, value: int) -> int:
    """Note the dtype and the shape of a value behind n words; how many there are then, 0: no room, or n = 0.

    0 as well for a dtype that tapes do not know.
    """
    words, code, ndim = i64(buffer), code_of(value) & 0xFF, 0
    if obj(value).type == i64(shared()).ndarray_type:
        ndim = obj(value).ndim
    if n == 0 or code == 0 or n + 1 + ndim > KEY_WORDS:
        return 0
    words[n] = code | ndim << 8
    for d in range(ndim):
        words[n + 1 + d] = i64(obj(value).dims)[d]
    return n + 1 + ndim


def kept_program(programs: int, buffer: int, n: int) -> int:
    """A new reference to a program that a dict has for n words; 0 for none."""
    g = i64(shared())
    key = call(g.bytes_from, buffer, 8 * n)
    if key == 0:
        invoke(g.error_clear)
        return 0
    program = call(g.dict_get, programs, key)
    if program != 0:
        invoke(g.incref, program)
    return drop_position(key, program)


def keep_program(dicts: int, number: int, buffer: int, n: int, program: int) -> int:
    """Keep a program for n words in a dict of a list, a new one where it is full; 0 with an error set.

    The reference to the program is passed on.
    """
    g, key = i64(shared()), call(i64(shared()).bytes_from, buffer, 8 * n)
    failed = 1 * (key == 0)
    if failed == 0 and obj(i64(obj(dicts).items)[number]).size >= MOST_PROGRAMS:
        new = call(g.new_dict)
        failed = 1 * (new == 0)
        if failed == 0:
            failed = call(g.list_set, dicts, number, new) & 0xFFFFFFFF
    if failed == 0:
        failed = call(g.dict_set, i64(obj(dicts).items)[number], key, program) & 0xFFFFFFFF
    drop_position(key, 0)
    if failed:
        return drop_position(program, 0)
    return program


def is_like(x: int, value: int, lanes: int) -> int:
    """Whether a Tensor has the dtype of a value, and its shape, after an axis of lanes if so said."""
    g, v = i64(shared()), obj(x).v
    if lanes == 0:
        if obj(v).type != obj(value).type:
            return 0
        if obj(v).type != g.ndarray_type:
            return 1
        if obj(v).descr != obj(value).descr:
            return 0
        return same_words(v, value, DIMS_AT)
    ndim = 0
    if obj(value).type == g.ndarray_type:
        ndim = obj(value).ndim
    if obj(v).type != g.ndarray_type or code_of(v) != code_of(value):
        return 0
    if obj(v).ndim != ndim + 1:
        return 0
    for d in range(ndim):
        if i64(obj(v).dims)[d + 1] != i64(obj(value).dims)[d]:
            return 0
    return 1


def sum_of_values(a: int, b: int) -> int:
    """A new constant, the sum of two Tensors' values; 0 with an error set."""
    g, args = i64(shared()), stack(2)
    i64(args)[0], i64(args)[1] = obj(a).v, obj(b).v
    value = call(g.vectorcall, i64(g.sheets).ufunc, args, 2, 0)
    if value == 0:
        return 0
    return constant_tensor(value)
