"""Compiled: compute an op and commit its record to the open tape.

A *sheet* (see `layout`) is what an op needs; a frame holds its operands (`admitting.admit`).
"""

from tapegrad.kernels.dialect import call, i64, invoke, obj, shared, stack
from tapegrad.kernels.replay.admitting import admit, shade_for
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.operands import (
    code_of,
    drop,
    drop_position,
    entry_of,
    is_deferred,
    left,
    room,
    same_words,
    size_of,
    weigh,
)
from tapegrad.kernels.replay.values import computed, looped, result_memory


def compute(sheet: int, tape: int, a: int, b: int) -> int:
    """As `operate`, on the tape that is open, where all is recorded."""
    g, s, frame, n, items = i64(shared()), i64(sheet), stack(OPERAND_WORDS), 1 + (b != 0), stack(2)
    if b != 0:
        if is_large_pair(sheet, a, b):
            return UNHANDLED
    i64(items)[0], i64(items)[1] = a, b
    largest = admit(sheet, tape, frame, 0, items, n)
    if largest < 0:
        return left()
    if b != 0:
        size = admit(sheet, tape, frame, 1, items, n)
        if size < 0:
            return drop(frame, 1, left())
        largest = max(largest, size)
    x, y, into = i64(frame)[VALUE], i64(frame)[VALUE + 1], UNHANDLED
    ufunc = ufunc_for(sheet, x)
    if ufunc == 0:
        return drop(frame, n, UNHANDLED)
    invoke(g.incref, tape)  # held: what is called may run anything
    if largest >= g.pooled and s.pointwise:
        into = result_memory(tape, x, y * (n - 1))
        if into == 0:
            invoke(g.decref, tape)
            return drop(frame, n, 0)
    if into != UNHANDLED:  # memory that is used again
        i64(frame)[VALUE + n] = into
        value = asked(call(g.vectorcall, ufunc, frame + 8 * VALUE, n, g.out_names))
        invoke(g.decref, into)
    else:
        value = evaluated(sheet, ufunc, frame + 8 * VALUE, n, largest)
    out = value
    if value != 0 and value != UNHANDLED:
        out = commit(sheet, tape, frame, n, g.zero, value, largest, 0, 0)
        if out == UNHANDLED:
            out = finish(sheet, value, frame, items, n)
        invoke(g.decref, value)
    invoke(g.decref, tape)
    return drop(frame, n, out)


def ufunc_for(sheet: int, x: int) -> int:
    """The ufunc of an op for an operand of this size: a vector form of its own for large ones.

    0 where that is not there yet, or not for the dtype.
    """
    g, s = i64(shared()), i64(sheet)
    if s.vector == s.ufunc or size_of(x) <= g.smallest:
        return s.ufunc
    if s.vector == 0 or obj(x).descr != g.double:
        return 0
    return s.vector


def evaluated(sheet: int, ufunc: int, args: int, n: int, largest: int) -> int:
    """The value of an op: a new reference; 0 with an error set; UNHANDLED where operands do not fit.

    `ufunc` is that of `ufunc_for`, `args` the values of n operands, `largest` the bytes of the largest.
    """
    g, s, x, y, value = i64(shared()), i64(sheet), i64(args)[0], i64(args)[1] * (n - 1), 0
    function, loops = s.operate, sheet + 8 * LOOPS
    if ufunc != s.ufunc:
        function, loops = 0, sheet + 8 * VECTOR_LOOPS
    if obj(x).type != g.ndarray_type:
        if s.arithmetic != 0:
            value = computed(s.arithmetic, x, y)
            if s.arithmetic == PRODUCT and is_complex(x) | is_complex(y) and obj(y).type != g.ndarray_type:
                function = 0  # as for powers: NumPy's operator rounds otherwise
        elif y == 0 or obj(y).type != g.ndarray_type:
            function = 0  # powers of numbers are those of arrays, which NumPy's are not
    if value == 0 and largest < g.pooled and i64(loops)[0] != 0:
        value = looped(loops, function, x, y)
    if value != 0:
        return value
    if function != 0:
        return asked(call(function, x, y, g.none_at_all))  # one of one or two operands ignores the rest
    return asked(call(g.vectorcall, ufunc, args, n, 0))


def is_complex(x: int) -> int:
    """Whether a value has one of NumPy's complex dtypes that tapes know."""
    kind = code_of(x) & 0xFF
    return (kind >= COMPLEX) & (kind <= DIFFERENTIABLE)


def asked(value: int) -> int:
    """What NumPy gave, UNHANDLED where it raised an error of shapes or dtypes: the twin says it better.

    Or it can: ufuncs of formulas are of real numbers, their twins of complex ones too.
    """
    g = i64(shared())
    if value == 0:
        if call(g.error_matches, g.operand_errors) & 0xFFFFFFFF != 0:
            invoke(g.error_clear)
            return UNHANDLED
    return value


def is_large_pair(sheet: int, a: int, b: int) -> int:
    """Whether two arrays, one of them large, have a result of another shape: Python has memory for it."""
    g, x, y = i64(shared()), a, b
    if obj(x).type == g.tensor_type:
        x = obj(x).v
    if obj(y).type == g.tensor_type:
        y = obj(y).v
    if x == 0 or y == 0:
        return 0
    if obj(x).type != g.ndarray_type or obj(y).type != g.ndarray_type:
        return 0
    if max(size_of(x), size_of(y)) < g.pooled:
        return 0
    return i64(sheet).pointwise == 0 or same_words(x, y, DIMS_AT) == 0


def finish(sheet: int, value: int, frame: int, items: int, n: int) -> int:
    """Let Python record a value just computed; UNHANDLED where a finalizer has written to an operand."""
    g, args, q = i64(shared()), stack(4), 0
    i64(args)[0], i64(args)[1] = i64(sheet).op, value
    i64(args)[2], i64(args)[3] = i64(items)[0], i64(items)[1]
    out = call(g.vectorcall, g.record, args, 2 + n, 0)
    while q < n and out != 0 and out != UNHANDLED:
        x = i64(items)[q]
        if obj(x).type == g.tensor_type:
            if obj(x).v != i64(frame)[VALUE + q]:
                out = drop_position(out, UNHANDLED)
        q += 1
    return out


def commit(
    sheet: int, tape: int, frame: int, n: int, number: int, value: int, largest: int, attrs: int, words: int
) -> int:
    """Record a value computed from a frame's operands, as `Tape.commit`; a new reference to its Tensor.

    `number` is the second entry of an op whose record holds a number, `largest` the bytes of the largest
    operand; `attrs` and `words`, if not 0, are noted beside the record. UNHANDLED where the tape takes no
    more; 0 with an error set.
    """
    g, size, logged, shade, reference = i64(shared()), size_of(value), value, 0, 0
    if size < 0 or room(tape) == 0:
        return UNHANDLED
    waits = is_deferred(value)
    if max(largest, size) > g.smallest or waits:
        reads = reads_of(sheet, tape, frame, n)
        if reads & 8 == 0 and (size > g.smallest or waits):
            shade = shade_for(tape, value)
            if shade == 0:
                return 0
            if room(tape) == 0:
                return drop_position(shade, UNHANDLED)  # making it may have run anything
            logged = shade
        if keep_operands(tape, frame, n, reads) == 0:
            return drop_position(shade, 0)
        if logged == value:
            if weigh(tape, size) == 0:
                return drop_position(shade, 0)
        else:
            reference = call(g.refer_weakly, value, 0)  # may collect garbage, so before the record
            if reference == 0:
                return drop_position(shade, 0)
    out = append(sheet, tape, frame, n, number, logged, value)
    if out != 0 and out != UNHANDLED:
        if note_beside(tape, obj(out).at, reference, attrs, words) == 0:
            invoke(g.decref, out)
            out = 0
    if reference != 0:
        invoke(g.decref, reference)
    return drop_position(shade, out)


def commit_apart(
    sheet: int, tape: int, frame: int, n: int, number: int, value: int, largest: int, attrs: int, words: int,
    apart: int,
) -> int:  # fmt: skip
    """As `commit`, of a copy of the value where that is to be `apart` from memory that others write to."""
    if apart == 0:
        return commit(sheet, tape, frame, n, number, value, largest, attrs, words)
    value = call(i64(shared()).new_copy, value, C_ORDER)
    if value == 0:
        return 0
    return drop_position(value, commit(sheet, tape, frame, n, number, value, largest, attrs, words))


def reads_of(sheet: int, tape: int, frame: int, n: int) -> int:
    """A mask of the operands, and 8 for the result, whose values the derivatives of an op read."""
    reads, f = 0, i64(frame)
    for q in range(n):
        if f[PLACE + q] != 0:
            if is_const(tape, f[PLACE + q]) == 0:
                reads = reads | i64(sheet)[USES + min(q, 2)]
    return reads


def keep_operands(tape: int, frame: int, n: int, reads: int) -> int:
    """Log the operands that a derivative reads, and weigh new constants; 0 with an error set on failure."""
    g, f = i64(shared()), i64(frame)
    for q in range(n):
        if f[PLACE + q] == 0:
            if size_of(f[VALUE + q]) > g.smallest:
                if weigh(tape, size_of(f[VALUE + q])) == 0:
                    return 0
        elif reads >> min(q, 2) & 1 and f[NEW_CONST + q] == 0:
            if keep(tape, f[PLACE + q], f[VALUE + q]) == 0:
                return 0
    return 1


def note_beside(tape: int, at: int, reference: int, attrs: int, words: int) -> int:
    """Note beside a record its shadow, attributes and words, where not 0; 0 with an error set on failure."""
    g, failed = i64(shared()), 0
    if reference != 0:
        failed = call(g.dict_set, obj(tape).shadows, at, reference) & 0xFFFFFFFF
    if (attrs != 0 or words != 0) and failed == 0:
        slot = call(g.long_from, call(g.long_as, at) // 4 - 1)
        failed = slot == 0
        if attrs != 0 and failed == 0:
            failed = call(g.dict_set, obj(tape).attrs, slot, attrs) & 0xFFFFFFFF
        if words != 0 and failed == 0:
            failed = call(g.dict_set, obj(tape).described, slot, words) & 0xFFFFFFFF
        drop_position(slot, 0)
    return failed == 0


def append(sheet: int, tape: int, frame: int, n: int, number: int, logged: int, value: int) -> int:
    """Append a record with the constants it needs; 0 with an error set, and nothing appended, without memory.

    UNHANDLED if the tape takes no more: making an object may collect garbage, and finalizers do anything.
    """
    g, s, f = i64(shared()), i64(sheet), i64(frame)
    out = call(g.allocate_object, g.tensor_type, 0)  # may collect garbage: the log is read afterwards
    if out == 0:
        return 0
    if room(tape) == 0:
        invoke(g.decref, out)
        return UNHANDLED
    log = obj(tape).log
    length, failed, form = obj(log).size, 0, s.recorded
    for q in range(n):
        if f[PLACE + q] == 0 and failed == 0:
            f[PLACE + q] = entry_of(log, g.zero, g.zero, g.zero, f[NEW_CONST + q])
            failed = f[PLACE + q] == 0
    second = number
    invoke(g.incref, second)
    if form == TWO and failed == 0:
        invoke(g.decref, second)
        second = f[PLACE + 1]
        invoke(g.incref, second)
    elif form == CHAIN:
        for q in range(n - 1, 0, -1):
            if failed == 0:
                link = entry_of(log, g.cons_opcode, f[PLACE + q], second, g.none_at_all)
                failed = link == 0
                if failed == 0:
                    invoke(g.decref, second)
                    second = link
    at = 0
    if failed == 0:
        at = entry_of(log, s.opcode, f[PLACE], second, logged)
    invoke(g.decref, second)
    if at == 0:
        invoke(g.cut, log, length, obj(log).size, 0)
        invoke(g.decref, out)
        return 0
    invoke(g.incref, value)
    invoke(g.incref, tape)
    invoke(g.incref, g.none_at_all)
    obj(out).v = value
    obj(out).tape = tape
    obj(out).at = at
    obj(out).extra = g.none_at_all
    return out


def keep(tape: int, at: int, value: int) -> int:
    """Log an operand that a derivative reads where its shadow stands; 0 with an error set on failure."""
    g = i64(shared())
    log, place = obj(tape).log, call(g.long_as, at) - 1
    if obj(value).type != g.ndarray_type or i64(obj(log).items)[place] == value:
        return 1
    if call(g.dict_get, obj(tape).shadows, at) == 0:
        return 1  # another array of the same numbers is there, as hooks on saved values give
    invoke(g.incref, value)
    if call(g.list_set, log, place, value) & 0xFFFFFFFF:
        return 0
    if call(g.dict_delete, obj(tape).shadows, at) & 0xFFFFFFFF:
        return 0
    if is_of_leaf(obj(log).items, place, value):
        return 1
    return weigh(tape, size_of(value))


def is_of_leaf(items: int, place: int, value: int) -> int:
    """Whether a value logged at a place lies in the memory of a leaf, its record's first operand."""
    g, log = i64(shared()), i64(items)
    first = call(g.long_as, log[place - VALUE_ENTRY + FIRST_ENTRY])
    if first == 0:
        return 0
    opcode, known, base = (
        log[first - ENTRIES + OPCODE_ENTRY],
        log[first - ENTRIES + VALUE_ENTRY],
        obj(value).base,
    )
    if opcode != g.leaf_opcode or obj(known).type != g.ndarray_type or base == 0:
        return 0
    return base == known or base == obj(known).base


def is_const(tape: int, at: int) -> int:
    """Whether the record at a position is a constant."""
    g = i64(shared())
    items = i64(obj(obj(tape).log).items)
    return items[call(g.long_as, at) - ENTRIES + OPCODE_ENTRY] == g.zero
