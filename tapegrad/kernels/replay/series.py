"""Compiled: power series of results on an open tape, of elementwise ops by the programs of `ops.series`.

Coefficients of a value are one behind the other, each of as many numbers as the value has. Nothing is
compiled for an op or an order: a program is a list of instructions, followed once for each power.
"""

from __future__ import annotations

from tapegrad.kernels.dialect import copy, f64, i32, i64, invoke, stack, u8, zero
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.series_layout import *


def expand(what: int, state: int, extra: int, more: int) -> int:
    """Find the series of a record from that of another one; it is copied to the beginning of the memory."""
    s = i64(state)
    size, records = 8 * s.elements * (s.highest + 1), s.looked_for - s.moved + 1
    s.suspect = 0
    if i64(s.log_at + SIZE_AT)[0] <= ENTRIES * s.looked_for:
        return REFUSED  # the tape was sealed meanwhile
    s.series_at = s.space + size
    s.nodes_at = s.series_at + 16 * records + size * records
    if s.nodes_at + NODES * size > s.space + s.space_bytes:
        return NO_ROOM
    places, items = i64(s.series_at), i64(s.log_at + ITEMS_AT)[0]
    first = s.series_at + 16 * records
    places[0], places[1] = first, s.elements
    zero(first, size)
    if read_value(state, i64(items)[ENTRIES * s.moved + VALUE_ENTRY], first, s.elements) == 0:
        return REFUSED
    copy(first + 8 * s.elements, s.direction, 8 * s.elements)
    for k in range(1, records):
        places[2 * k], places[2 * k + 1] = 0, 0
        status = expand_record(state, items + 32 * (s.moved + k), k)
        if status != EXPANDED:
            return status
    found = 2 * (records - 1)
    if places[found] <= 0:
        return REFUSED
    s.found_count = places[found + 1]
    copy(s.space, places[found], 8 * s.found_count * (s.highest + 1))
    if suspect_series(s.space, s.found_count * (s.highest + 1)):
        s.suspect = 1
    return EXPANDED


def suspect_series(numbers: int, n: int) -> int:
    """Whether one of n numbers is infinite or no number."""
    found, x = 0, f64(numbers)
    for i in range(n):
        found = found | (x[i] - x[i] != 0.0)
    return found


def read_value(state: int, value: int, target: int, n: int) -> int:
    """Copy n numbers: a number for each, or a dense array shaped as the argument; 0 for any other value.

    NOT_KEPT if it is the shadow of such an array.
    """
    s, kind, numbers = i64(state), i64(value + TYPE_AT)[0], f64(target)
    if kind == s.number_kind:
        number = f64(value + SCALAR_AT)[0]
        for i in range(n):
            numbers[i] = number
        return 1
    if kind == s.truth_kind:
        for i in range(n):
            numbers[i] = float(u8(value + SCALAR_AT)[0])
        return 1
    if kind != s.array_kind or s.is_number or n != s.elements:
        return 0
    dtype, like = i64(value + DESCR_AT)[0], i64(i64(s.log_at + ITEMS_AT)[0])[ENTRIES * s.moved + VALUE_ENTRY]
    ndim, varies = i32(like + NDIM_AT)[0], 0
    if (dtype != s.dtype_kind and dtype != s.truths_kind) or i32(value + NDIM_AT)[0] != ndim:
        return 0
    for d in range(ndim):
        if i64(i64(value + DIMS_AT)[0])[d] != i64(i64(like + DIMS_AT)[0])[d]:
            return 0
        varies = varies | i64(i64(value + STRIDES_AT)[0])[d]
    data = i64(value + DATA_AT)[0]
    if i32(value + FLAGS_AT)[0] & C_CONTIGUOUS == 0:
        return NOT_KEPT * (varies == 0)
    if dtype == s.dtype_kind:
        copy(target, data, 8 * n)
    else:
        for i in range(n):
            numbers[i] = float(u8(data)[i])
    return 1


def expand_record(state: int, entry: int, k: int) -> int:
    """Find the series of record k, counted from the one that moves, whose four entries are given."""
    s, e, taken, nodes = i64(state), i64(entry), stack(3), stack(NODES)
    places, size, n = i64(s.series_at), 8 * s.elements * (s.highest + 1), s.elements
    op = i32(e[0] + DIGIT_AT)[0]
    row = s.ops_at + 8 * ROW * op
    if op <= CONS:
        return EXPANDED
    count, moving = operands_of(state, entry, i64(row)[FORM], taken), 0
    for q in range(min(count, OPERAND_BITS)):
        j = 2 * (i64(taken)[q] - s.moved)
        if j >= 0:
            if places[j] > 0:
                moving = moving | 1 << q
    if count > OPERAND_BITS:
        return REFUSED
    places[2 * k] = APART
    if moving == 0:
        return EXPANDED
    if i64(e[3] + TYPE_AT)[0] == s.number_kind:
        n = 1
    places[2 * k], places[2 * k + 1] = s.series_at + 16 * (s.looked_for - s.moved + 1) + size * k, n
    known = read_value(state, e[3], places[2 * k], n)
    if known == 0:
        return REFUSED
    if i64(row)[TEMPLATE] == MATMUL and n == 1:
        return multiply_vectors(state, taken, moving, places[2 * k])
    if i64(row)[TEMPLATE] != ELEMENTWISE:
        return fold(state, entry, row, i64(taken)[0] - s.moved, places[2 * k])
    program = i64(s.programs_at)[(op << OPERAND_BITS) + moving]
    if program == 0:
        s.wanted = (op << OPERAND_BITS) + moving
        return NO_PROGRAM
    if program < 0:
        return REFUSED
    for q in range(i64(program)[0]):
        i64(nodes)[q] = s.nodes_at + size * q
    i64(nodes)[count] = places[2 * k]
    for q in range(count):
        if find_operand(state, i64(taken)[q], moving >> q & 1, nodes + 8 * q, n) == 0:
            return REFUSED
    return follow_program(state, program, nodes, known, n)


def find_operand(state: int, record: int, varies: int, node: int, n: int) -> int:
    """Let a node be the series of an operand of n numbers, or a constant; 0 for any other."""
    s, at = i64(state), i64(node)[0]
    places = i64(s.series_at)
    if varies:
        found = 2 * (record - s.moved)
        source = f64(places[found])
        if places[found + 1] == n:
            i64(node)[0] = places[found]
            return 1
        if places[found + 1] != 1:
            return 0
        for k in range(s.highest + 1):
            for i in range(n):
                f64(at)[n * k + i] = source[k]
        return 1
    entry = i64(i64(s.log_at + ITEMS_AT)[0] + 32 * record)
    if i32(entry[0] + DIGIT_AT)[0] != CONST:
        return 0
    known = read_value(state, entry[3], at, n)
    if known == NOT_KEPT:
        copy_missing(state, at, n)
    return known != 0


def fold(state: int, entry: int, row: int, record: int, out: int) -> int:
    """Find the series of a sum or a mean of all numbers, or of one of them; its value is there."""
    s, o, template, factor = i64(state), f64(out), i64(row)[TEMPLATE], 1.0
    places = i64(s.series_at)
    source, m = f64(places[2 * record]), places[2 * record + 1]
    if i64(i64(entry)[3] + TYPE_AT)[0] != s.number_kind or (template != REDUCE and template != ELEMENT):
        return REFUSED
    place = i32(i64(entry)[2] + DIGIT_AT)[0]
    if template == REDUCE:
        if i64(row)[PARTIAL] == MEAN:
            factor = 1.0 / float(m)
        elif i64(row)[PARTIAL] == CONSTANT:
            factor = f64(row)[SCALE]
        else:
            return REFUSED
    elif place >= m:
        return REFUSED
    for k in range(1, s.highest + 1):
        total = 0.0
        if template == ELEMENT:
            total = source[m * k + place]
        else:
            for i in range(m):
                total = total + source[m * k + i]
        o[k] = factor * total
    return EXPANDED


def operands_of(state: int, entry: int, form: int, taken: int) -> int:
    """Note the records that a record takes, as far as there is room; how many there are."""
    s, t = i64(state), i64(taken)
    first, second = i64(entry)[1], i64(entry)[2]
    t[0] = (i32(first + DIGIT_AT)[0] >> 2) - 1
    if form != TWO and form != CHAIN:
        return 1
    at, count = i32(second + DIGIT_AT)[0] >> 2, 1
    if form == TWO:
        t[1] = at - 1
        return 2
    while at != 0:
        cons = i64(i64(s.log_at + ITEMS_AT)[0] + 32 * (at - 1))
        if count < OPERAND_BITS:
            t[count] = (i32(cons[1] + DIGIT_AT)[0] >> 2) - 1
        count += 1
        at = i32(cons[2] + DIGIT_AT)[0] >> 2
    return count


def multiply_vectors(state: int, taken: int, moving: int, out: int) -> int:
    """Find the series of the inner product of two vectors; its value is there."""
    s, o, nodes = i64(state), f64(out), stack(2)
    m = s.elements
    for q in range(2):
        i64(nodes)[q] = s.nodes_at + 8 * m * (s.highest + 1) * q
        if find_operand(state, i64(taken)[q], moving >> q & 1, nodes + 8 * q, m) == 0:
            return REFUSED
    a, b = f64(i64(nodes)[0]), f64(i64(nodes)[1])
    for k in range(1, s.highest + 1):
        total, first, last = 0.0, 0, k
        if moving == 1:
            first = k
        if moving == 2:
            last = 0
        for j in range(first, last + 1):
            for i in range(m):
                total = total + a[m * j + i] * b[m * (k - j) + i]
        o[k] = total
    return EXPANDED


def copy_missing(state: int, target: int, n: int) -> int:
    """Fill a node whose value no derivative reads, so that it is not there: with what would be seen."""
    missing = f64(target)
    for i in range(n):
        missing[i] = 0.0
        missing[i] = missing[i] / missing[i]
    return 1


def follow_program(state: int, program: int, nodes: int, known: int, n: int) -> int:
    """Find all nodes of a program: first coefficients, then power by power the others.

    The first instruction, if there is one for that, finds the value of the result, where it is not `known`.
    """
    s, p = i64(state), i64(program)
    at = program + 8 * PROGRAM_HEAD
    if known == NOT_KEPT and p[3] == 0:
        return REFUSED
    if p[3]:
        if known == NOT_KEPT:
            first_coefficient(at, nodes, n)
        at += 8 * INSTRUCTION
    for _ in range(p[1]):
        if first_coefficient(at, nodes, n) == 0:
            return REFUSED
        at += 8 * INSTRUCTION
    for k in range(1, s.highest + 1):
        step = at
        for _ in range(p[2]):
            if coefficient(step, nodes, n, k, s.highest) == 0:
                return REFUSED
            step += 8 * INSTRUCTION
    return EXPANDED


def first_coefficient(instruction: int, nodes: int, n: int) -> int:
    """Follow an instruction for first coefficients; 0 where a length is 0."""
    w, node = i64(instruction), i64(nodes)
    code, a, b = w[CODE_AT], node[w[FROM_NODE]], node[w[WITH_NODE]]
    target, c = node[w[TO_NODE]], node[w[AND_NODE]]
    if code == BY_LOOP:
        return call_loop(w[LOOP_AT], w[LOOP_DATA], w[HOW], target, a, b, n)
    o, x, y, z = f64(target), f64(a), f64(b), f64(c)
    for i in range(n):
        if code == FILL:
            o[i] = f64(instruction + 8 * LOOP_AT)[0]
        elif code == ADD_UP:
            o[i] = x[i] + y[i]
        elif code == TAKE_OFF:
            o[i] = x[i] - y[i]
        elif code == TIMES:
            o[i] = x[i] * y[i]
        elif code == DIVIDED:
            o[i] = x[i] / y[i]
        elif code == MINUS:
            o[i] = -x[i]
        elif code == CHOICE:
            o[i] = z[i]
            if x[i] != 0.0:
                o[i] = y[i]
        elif code == LENGTH:
            if o[i] == 0.0:
                return 0
        else:
            o[i] = float(compared(code, a + 8 * i, b + 8 * i))
    return 1


def compared(code: int, a: int, b: int) -> int:
    """Whether two numbers are as the code says."""
    x, y = f64(a)[0], f64(b)[0]
    if code == GREATER:
        return x > y
    if code == LESS:
        return x < y
    if code == AT_LEAST:
        return x >= y
    if code == AT_MOST:
        return x <= y
    if code == EQUAL:
        return x == y
    return x != y


def call_loop(function: int, data: int, inputs: int, out: int, a: int, b: int, n: int) -> int:
    """Compute values by a ufunc's inner loop."""
    args, steps, count = stack(3), stack(3), stack(1)
    i64(args)[0], i64(args)[1], i64(args)[2] = a, b, out
    i64(args)[inputs] = out
    for q in range(3):
        i64(steps)[q] = 8
    i64(count)[0] = n
    invoke(function, args, count, steps, data)
    return 1


def coefficient(instruction: int, nodes: int, n: int, k: int, order: int) -> int:
    """Follow an instruction for coefficient k; 0 where those of a power may lose digits."""
    w, node = i64(instruction), i64(nodes)
    code, how, step = w[CODE_AT], w[HOW], 8 * n * k
    out, a, b = node[w[TO_NODE]], node[w[FROM_NODE]], node[w[WITH_NODE]]
    target = out + step
    if code == SLOPE:
        if how & FIRST_TERM:
            zero(target, 8 * n)
        if how & BY_CONSTANT:
            return multiply_add(target, a + step, b, n, 1, 1)
        if n == 1:
            return add_slope(target, a, b, k)
        for j in range(1, k + 1):
            multiply_add(target, a + 8 * n * j, b + 8 * n * (k - j), n, j, k)
        return 1
    if code == PRODUCT_OF:
        zero(target, 8 * n)
        for j in range(k + 1):
            multiply_add(target, a + 8 * n * j, b + 8 * n * (k - j), n, 1, 1)
        return 1
    if code == SCALED:
        zero(target, 8 * n)
        return multiply_add(target, a + step, b, n, 1, 1)
    if code == POWER_OF:
        if k > 1:
            return 1
        return power_series(out, a, b, n, order)
    if code == QUOTIENT:
        zero(target, 8 * n)
        if how:
            copy(target, a + step, 8 * n)
        for j in range(1, k + 1):
            multiply_add(target, b + 8 * n * j, out + 8 * n * (k - j), n, -1, 1)
        return divide_by(target, target, b, n)
    if code == OVER:
        return divide_by(target, a + step, b, n)
    if code == CHOSEN:
        return choose(target, a, (b + step) * (how & 1), (node[w[AND_NODE]] + step) * (how >> 1), n)
    return combine(code, target, a + step, b + step, n)


def combine(code: int, target: int, a: int, b: int, n: int) -> int:
    """Add n numbers, or take them off; or one of those alone."""
    o, x, y = f64(target), f64(a), f64(b)
    for i in range(n):
        if code == SAME:
            o[i] = x[i]
        elif code == OPPOSITE:
            o[i] = -x[i]
        elif code == SUM_OF:
            o[i] = x[i] + y[i]
        else:
            o[i] = x[i] - y[i]
    return 1


def divide_by(target: int, a: int, b: int, n: int) -> int:
    """Divide n numbers."""
    o, x, y = f64(target), f64(a), f64(b)
    for i in range(n):
        o[i] = x[i] / y[i]
    return 1


def choose(target: int, condition: int, a: int, b: int, n: int) -> int:
    """Take n numbers from one place or the other; of no place 0."""
    o, chosen = f64(target), f64(condition)
    for i in range(n):
        source = b
        if chosen[i] != 0.0:
            source = a
        o[i] = 0.0
        if source != 0:
            o[i] = f64(source)[i]
    return 1


def power_series(out: int, x: int, y: int, n: int, order: int) -> int:
    """All coefficients of x to a constant power; 0 where digits may be lost."""
    for i in range(n):
        exponent, whole = f64(y)[i], 0.0
        while whole < exponent and whole < 64.0:
            whole = whole + 1.0
        if whole == exponent:
            multiply_out(out + 8 * i, x + 8 * i, y + 8 * i, n, order)
        elif follow_slope(out + 8 * i, x + 8 * i, y + 8 * i, n, order) == 0:
            return 0
    return 1


def multiply_out(out: int, x: int, y: int, n: int, order: int) -> int:
    """The series of a number to a whole power, as a product; its value is there."""
    o, base, value, factors = f64(out), f64(x), f64(out)[0], 1.0
    for k in range(order + 1):
        o[n * k] = base[n * k]
        if f64(y)[0] == 0.0:
            o[n * k] = 0.0
    while factors < f64(y)[0]:
        for k in range(order, -1, -1):
            total = 0.0
            for j in range(k + 1):
                total = total + o[n * j] * base[n * (k - j)]
            o[n * k] = total
        factors = factors + 1.0
    o[0] = value
    return 1


def follow_slope(out: int, x: int, y: int, n: int, order: int) -> int:
    """The series of a number to another power, whose value is there: ``x out' = y out x'``.

    0 where the number or its power is so small or large that this may lose digits.
    """
    o, base, exponent, square = f64(out), f64(x), f64(y)[0], f64(x)[0] * f64(x)[0]
    if square < 1e-12 or square * 1e-12 > 1.0 or o[0] - o[0] != 0.0:
        return 0
    if o[0] * o[0] < 1e-80 or o[0] * 1e-80 > 1.0:
        return 0
    for k in range(1, order + 1):
        total = 0.0
        for j in range(1, k + 1):
            factor = exponent * float(j) - float(k - j)
            total = total + factor * base[n * j] * o[n * (k - j)]
        o[n * k] = total / (float(k) * base[0])
    return 1


def add_slope(target: int, x: int, p: int, k: int) -> int:
    """Add, for a number, coefficient k of what has the derivative p x'."""
    a, b, total = f64(x), f64(p), 0.0
    for j in range(1, k + 1):
        total = total + float(j) * a[j] * b[k - j]
    f64(target)[0] = f64(target)[0] + total / float(k)
    return 1


def multiply_add(target: int, a: int, b: int, n: int, j: int, k: int) -> int:
    """Add j/k times the products of n numbers."""
    o, x, y = f64(target), f64(a), f64(b)
    if j == k:
        for i in range(n):
            o[i] = o[i] + x[i] * y[i]
    else:
        factor = float(j) / float(k)
        for i in range(n):
            o[i] = o[i] + factor * x[i] * y[i]
    return 1
