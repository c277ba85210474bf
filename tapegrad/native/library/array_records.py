"""Records of whole arrays on a native tape: an elementwise expression is computed and recorded in blocks.

What does not depend on the expression is here, compiled once for each kind of number: gathering operands,
writing results, the record and its adjoint. The expression itself is a function of a block of elements,
which `expressions` emits; it finds operands side by side in memory, so LLVM can use SIMD.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType

from numba.core import types
from numba.extending import intrinsic

from tapegrad.kernels import cache
from tapegrad.native.arrays.partials import giving
from tapegrad.native.emission.algebra import components
from tapegrad.native.emission.annotations import (
    Builder,
    Context,
    Emission,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.tapes.runtime import digest

SOURCE = '''"""Records of arrays of numbers with tangents {spec}. {digest}"""
import numpy as np
from numba import njit
from tapegrad.native.arrays.argument_arrays import COUNT as SIZE
from tapegrad.native.arrays.argument_arrays import DATA
from tapegrad.native.arrays.argument_arrays import FIRST as START
from tapegrad.native.arrays.argument_arrays import TAPE as OWNER
from tapegrad.native.arrays.array_layout import (
    ADDRESS, AS_FLOATS, AS_NUMBERS, AXES, BEGIN, BLOCK, COMMON, COUNTED, FACTOR, FIRST, FORM, HOME, INNER,
    KIND, LEAF, LEAVES, NUMBERED, OPERANDS, OWN, RESULT, ROW, SHAPE, SINGLE, STEPS, STORED, STRIDES, SUMMED,
    SUMS, TAPE, TOTAL,
)
from tapegrad.native.library.array_records import call_row
from tapegrad.native.tapes.blocks import FULL, inner_njit
from tapegrad.native.library.matrices import array_at
from tapegrad.native.tapes.memory import free, get, malloc, put, read, room, write
from tapegrad.native.arrays.partials import add, at_full_width, plus, times
from tapegrad.native.tapes.record import TABLE
from tapegrad.native.tapes.tape import COUNT, NUMBERS, TOP

COMPONENTS = {components}
WIDTH = COMPONENTS + 2  # words of a number: its components, its statement and its tape
STEP = 8 * WIDTH
# How the numbers of a block's statements go on: one by one and again from the first, all are one, ...
REPEATED, SINGLY, ONE_BY_ONE, LISTED = range(4)
summing = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, fastmath={{"reassoc"}})  # as NumPy does


@inner_njit
def operand(known, axes, k):
    """The address of the words of an operand."""
    return known + 8 * (SHAPE + axes + k * (STRIDES + axes))


@inner_njit
def place(known, x, at):
    """The address of an element, and how many there are from it to the end of its row."""
    axes, address, left = get(known, AXES), get(x, ADDRESS), 1
    for d in range(axes - 1, -1, -1):
        extent = get(known, SHAPE + d)
        i = at % extent
        at //= extent
        address += i * get(x, STRIDES + d)
        if d == axes - 1:
            left = extent - i
    return address, left


@inner_njit
def period(known, x, axes):
    """After how many floats that lie side by side an operand begins again; 0 if it does not."""
    many, again = 1, False
    for d in range(axes - 1, -1, -1):
        extent, stride = get(known, SHAPE + d), get(x, STRIDES + d)
        if extent == 1:
            continue
        if stride == 0:
            again = True
        elif again or stride != 8 * many:
            return 0
        else:
            many *= extent
    return many


@inner_njit
def repeated(address, many, at, count, to):
    """Copy a block of floats that are so many, again and again."""
    begin, end = at, 0
    while end < count:
        start, end = end, min(end + many - begin, count)
        moved(address + 8 * begin, to + 8 * start, end - start)
        begin = 0


@inner_njit
def first_tape(x):
    """The tape that an operand's first element is on; 0 if it is on none."""
    if get(x, LEAF) == NUMBERED:
        return get(get(x, ADDRESS), COMPONENTS + 1)
    return get(x, TAPE)


@inner_njit
def later_tape(known, axes, x, total):
    """The tape that any of an operand's elements is on."""
    at = 0
    while get(x, LEAF) == NUMBERED and get(x, STEPS) != SINGLE and at < total:
        address, left = place(known, x, at)
        stride = get(x, STRIDES + axes - 1)
        for i in range(left):
            tape = get(address + i * stride, COMPONENTS + 1)
            if tape:
                return tape
        at += left
    return 0


@inner_njit
def tape_of(known, axes, total):
    """The tape that an operand's elements are on; 0 if none is on any."""
    for k in range(get(known, OPERANDS)):  # the first one mostly
        tape = first_tape(operand(known, axes, k))
        if tape:
            return tape
    for k in range(get(known, OPERANDS)):
        tape = later_tape(known, axes, operand(known, axes, k), total)
        if tape:
            return tape
    return 0


@inner_njit
def going_on(first, same, ordered):
    """The word of a block's statements: the first of them, and how they go on, by what differs."""
    return first << 2 | (SINGLY if same == 0 else ONE_BY_ONE if ordered == 0 else LISTED)


@inner_njit
def gathered(address, count, to):
    """Copy components of numbers that lie side by side to planes; returns how their statements go on."""
    values = array_at(address, (count, WIDTH), np.float64)
    numbers = array_at(address, (count, WIDTH), np.int64)
    planes = array_at(to, (COMPONENTS, BLOCK), np.float64)
    first, same, ordered = numbers[0, COMPONENTS], 0, 0
    for i in range(count):
        {gather}
        same |= numbers[i, COMPONENTS] ^ first
        ordered |= numbers[i, COMPONENTS] ^ (first + i)
    return going_on(first, same, ordered)


@inner_njit
def picked(address, stride, count, to, listed):
    """As `gathered` for numbers of a row with gaps, whose statements are listed."""
    planes, numbers = array_at(to, (COMPONENTS, BLOCK), np.float64), array_at(listed, (count,), np.uint32)
    for i in range(count):
        here = address + i * stride
        for q in range(COMPONENTS):
            planes[q, i] = read(here + 8 * q)
        numbers[i] = get(here, COMPONENTS)


@inner_njit
def counted(x, address, stride, count, to, listed):
    """As `picked` for floats whose statements follow each other."""
    row, numbers = array_at(to, (count,), np.float64), array_at(listed, (count,), np.uint32)
    for i in range(count):
        here = address + i * stride
        row[i] = read(here)
        numbers[i] = get(x, FIRST) + (here - get(x, ADDRESS)) // 8 if get(x, TAPE) else 0


@inner_njit
def write_order(at, count):
    """Say how the statements go on that are listed behind an address."""
    numbers = array_at(at + 8, (count,), np.uint32)
    first, same, ordered = numbers[0], np.uint32(0), np.uint32(0)
    for i in range(count):
        same |= numbers[i] ^ first
        ordered |= numbers[i] ^ (first + np.uint32(i))
    put(at, 0, going_on(np.int64(first), np.int64(same), np.int64(ordered)))


@inner_njit
def spanned(at, count):
    """The bytes of what says which statements a block's operand has."""
    how = get(at, 0) & 3
    return 8 + (4 * count + 7) // 8 * 8 if how == LISTED else 24 if how == REPEATED else 8


@inner_njit
def assembled(work, count, first, tape, address):
    """Write results to the memory of an array."""
    values = array_at(address, (count, WIDTH), np.float64)
    numbers = array_at(address, (count, WIDTH), np.int64)
    planes, mask = array_at(work, (COMPONENTS, BLOCK), np.float64), -1 if tape else 0
    for i in range(count):
        {assemble}
        numbers[i, COMPONENTS] = (first + i) & mask
        numbers[i, COMPONENTS + 1] = tape


@inner_njit
def sum_of(at, length, inner):
    """Which sum an element belongs to, and how many from it on belong to that one, or each to the next."""
    if inner == 1:
        return at // length, length - at % length
    return at // (length * inner) * inner + at % inner, inner - at % inner


@inner_njit
def add_up(work, at, count, length, inner, address, step):
    """Add a block's results to the sums that they belong to, which lie so many bytes apart."""
    done = 0
    k, many = sum_of(at, length, inner)
    while done < count:
        many = min(many, count - done)
        for q in range(COMPONENTS):
            place, values = address + step * k + 8 * q, work + 8 * (BLOCK * q + done)
            if inner == 1:
                write(place, read(place) + added_up(values, many))
            else:
                for i in range(many):
                    write(place + step * i, read(place + step * i) + read(values + 8 * i))
        done += many
        k, many = (k + 1, length) if inner == 1 else sum_of(at + done, length, inner)


@inner_njit
def spread(c, to, at, count, length, inner):
    """The cotangents of a block's elements, of those of their sums."""
    sums, out = array_at(c, (1, COMPONENTS), np.float64), array_at(to, (count, COMPONENTS), np.float64)
    done = 0
    k, many = sum_of(at, length, inner)
    while done < count:
        many = min(many, count - done)
        for i in range(many):
            for q in range(COMPONENTS):
                out[done + i, q] = sums[k if inner == 1 else k + i, q]
        done += many
        k, many = (k + 1, length) if inner == 1 else sum_of(at + done, length, inner)


@inner_njit
def sizes(components, length, total, form, slots):
    """How many statements there are, words of a record before its partials, and bytes for cotangents."""
    if form == STORED:
        return 0, 4, 8 * components * BLOCK * slots
    if length == 0:
        return total, 2, 0
    sums = total // length
    return sums, 4, 8 * components * min(total, BLOCK) if sums > 1 else 0


@summing
def added_up(address, count):
    """The sum of a block of numbers that lie side by side."""
    row, s = array_at(address, (count,), np.float64), 0.0
    for i in range(count):
        s += row[i]
    return s


@inner_njit
def clear(at, count):
    """Say of cotangents that nothing came to them."""
    cotangents = array_at(at, (COMPONENTS * count,), np.float64)
    for i in range(cotangents.size):
        cotangents[i] = -0.0


@inner_njit
def kept_back(known, axes, total):
    """How many blocks of results wait, as what they are written to is read by later ones; 0 if it is not."""
    found, to, header = 0, get(known, RESULT), get(known, HOME)
    begin = get(header, DATA)
    end = begin + 8 * get(header, SIZE)
    for k in range(get(known, OPERANDS)):
        x = operand(known, axes, k)
        address = get(x, ADDRESS)
        if begin <= address < end:
            apart = abs(address - to) // 8
            if get(x, STEPS) != 8 or BLOCK < apart < total:
                found = (total + BLOCK - 1) // BLOCK
            elif apart < total:
                found = max(found, 2 if apart else 1)
    return found


@inner_njit
def entered(tape, header, kind):
    """Give an array that is written to statements on a tape."""
    total = get(header, SIZE)
    if get(tape, COUNT) + total >= NUMBERS - 1:
        raise MemoryError(FULL)
    size = (4 * total + 7) // 8 * 8 + 40  # 4 bytes a statement at least: see `grow`
    start = room(tape, size)
    put(start, 0, kind)
    put(start, 1, total)
    put(start + size - 24, 0, total)
    put(start + size - 24, 1, size)
    put(start + size - 24, 2, kind)
    put(header, START, get(tape, COUNT) + 1)
    put(header, OWNER, tape)
    put(tape, TOP, start + size)
    put(tape, COUNT, get(tape, COUNT) + total)


@inner_njit
def moved(address, to, count):
    """Copy floats."""
    source, target = array_at(address, (count,), np.float64), array_at(to, (count,), np.float64)
    for i in range(count):
        target[i] = source[i]


@inner_njit
def waiting(record, words, at, slots):
    """Where in a record the block is that begins with an element, while it waits."""
    return record + 8 * (words + COMPONENTS * BLOCK * (at // BLOCK % slots))


@inner_njit
def released(record, words, slots, known, at):
    """Write a block that has waited."""
    moved(waiting(record, words, at, slots), get(known, RESULT) + 8 * at, min(BLOCK, get(known, TOTAL) - at))


@inner_njit
def take_cotangents(address, to, count):
    """Copy cotangents, to which nothing has come then."""
    moved(address, to, COMPONENTS * count)
    clear(address, count)


@njit("void(int64)", cache=CACHE)
def record(known):
    """Compute an expression, and record it if an operand is on a tape."""
    total, axes = get(known, TOTAL), get(known, AXES)
    length, apart = get(known, SUMMED), get(known, INNER)
    if total == 0:  # sums are 0
        return
    operands, leaves = get(known, OPERANDS), get(known, LEAVES)
    own, common = get(known, OWN), get(known, COMMON)
    tape, form, slots = tape_of(known, axes, total), get(known, FORM), 0
    if form == STORED:
        header, slots = get(known, HOME), kept_back(known, axes, total)
        if tape and get(header, OWNER) == 0:
            entered(tape, header, get(known, BEGIN))
        tape = get(header, OWNER)
    statements, words, spare = sizes(COMPONENTS, length, total, form, slots)
    # for values, partials and addresses of a block, and what is on the tape for certain
    width = 8 * BLOCK
    work = 8 * (2 * operands + 3) + width * COMPONENTS * (operands + 1)
    block = leaves * (16 + 4 * BLOCK) + width * COMPONENTS * own
    blocks = (total + BLOCK - 1) // BLOCK
    common_at = 8 * words + spare
    head = common_at + 8 * COMPONENTS * common
    if tape:
        if get(tape, COUNT) + statements >= NUMBERS - 1:
            raise MemoryError(FULL)
        most = leaves * (24 * blocks + 4 * total) + 8 * COMPONENTS * own * total
        start = room(tape, head + most + 24 + work)
        here = start + head + most + 24
        first = get(tape, COUNT) + 1
    else:
        start = malloc(head + block + work)
        if start == 0:
            raise MemoryError("no memory for the operands of an expression of arrays")
        here, first = start + head + block, 0
    put(start, 0, get(known, KIND))
    put(start, 1, total)
    if length:
        put(start, 2, length)
        put(start, 3, apart)
    results = here + 8 * (2 * operands + 3)
    values = results + width * COMPONENTS
    put(here, 0, results)
    if form == AS_FLOATS:
        put(known, BEGIN, first)
        put(known, HOME, tape)
    elif form == STORED:
        put(start, 2, get(header, START) + (get(known, RESULT) - get(header, DATA)) // 8)
        put(start, 3, slots)
    put(here, 2, start + common_at)
    for k in range(operands if COMPONENTS > 1 else 0):  # which have a part in tangents: see `algebra.Dual`
        x = operand(known, axes, k)
        put(here, 3 + operands + k, (first_tape(x) or later_tape(known, axes, x, total)) if tape else 0)
    at, to = 0, start + head
    while at < total:
        count = min(BLOCK, total - at)
        put(here, 1, to)
        if slots:
            put(here, 0, waiting(start, words, at, slots))
        elif form and length == 0:
            put(here, 0, get(known, RESULT) + 8 * at)
        to += 8 * COMPONENTS * own * count
        for k in range(operands):
            x, plane = operand(known, axes, k), values + width * COMPONENTS * k
            leaf, steps = get(x, LEAF), get(x, STEPS)
            put(here, 3 + k, plane)
            if steps == SINGLE:
                address = get(x, ADDRESS)
                if at == 0:
                    for q in range(COMPONENTS if leaf else 1):
                        write(plane + width * q, read(address + 8 * q))
                if leaf:
                    put(to, 0, get(address, COMPONENTS) << 2 | SINGLY)
                    to += 8
            elif leaf == NUMBERED and steps == STEP:
                address = get(x, ADDRESS) + at * STEP
                put(to, 0, gathered(address, count, plane))
                if get(to, 0) & 3 == LISTED:
                    picked(address, STEP, count, plane, to + 8)
                to += spanned(to, count)
            elif steps == 8:
                put(here, 3 + k, get(x, ADDRESS) + 8 * at)
                if leaf:
                    put(to, 0, get(x, FIRST) + at << 2 | ONE_BY_ONE if get(x, TAPE) else SINGLY)
                    to += 8
            elif leaf != NUMBERED and period(known, x, axes):
                many = period(known, x, axes)
                repeated(get(x, ADDRESS), many, at % many, count, plane)
                if leaf:
                    put(to, 0, get(x, FIRST) << 2 | REPEATED if get(x, TAPE) else SINGLY)
                    put(to, 1, many)
                    put(to, 2, at % many)
                    to += spanned(to, count)
            else:
                done, inner = 0, get(x, STRIDES + axes - 1)
                while done < count:
                    address, left = place(known, x, at + done)
                    left = min(left, count - done)
                    if leaf == COUNTED:
                        counted(x, address, inner, left, plane + 8 * done, to + 8 + 4 * done)
                    elif leaf:
                        picked(address, inner, left, plane + 8 * done, to + 8 + 4 * done)
                    else:
                        row = array_at(plane + 8 * done, (left,), np.float64)
                        for i in range(left):
                            row[i] = read(address + i * inner)
                    done += left
                if leaf:
                    write_order(to, count)
                    to += spanned(to, count)
        call_row(get(known, ROW), count, here)
        if length:
            add_up(results, at, count, length, apart, get(known, RESULT), 8 if form else STEP)
        elif slots:
            late = at - BLOCK * (slots - 1)
            if late >= 0:
                released(start, words, slots, known, late)
        elif form == AS_NUMBERS:
            assembled(results, count, first + at, tape, get(known, RESULT) + STEP * at)
        at += count
        if tape == 0:
            to = start + head
    for late in range(max(0, blocks - slots + 1) * BLOCK if slots else total, total, BLOCK):
        released(start, words, slots, known, late)
    if tape and length and form == AS_NUMBERS:
        for k in range(statements):
            put(get(known, RESULT) + STEP * k, COMPONENTS, first + k)
            put(get(known, RESULT) + STEP * k, COMPONENTS + 1, tape)
    if tape:
        put(to, 0, statements)
        put(to, 1, to + 24 - start)
        put(to, 2, get(known, KIND))
        put(tape, TOP, to + 24)
        put(tape, COUNT, first + statements - 1)
    else:
        free(start)


{give}
@njit("void(int64, int64, int64)", cache=CACHE, nogil=True)
def reverse(cotangents, number, at):
    """The adjoint of a record: take the cotangents of its statements to those of its leaves."""
    at_full_width()
    table, total = get(at, 0) + 8 * TABLE, get(at, 1)
    leaves, own, common, summed = get(table, 0), get(table, 1), get(table, 2), get(table, 3)
    length, inner = (get(at, 2), get(at, 3)) if summed == SUMS else (0, 1)
    place, slots = (get(at, 2), get(at, 3)) if summed == STORED else (number + 1, 0)
    sums, words, spare = sizes(COMPONENTS, length, total, summed, slots)
    common_at = at + 8 * words + spare
    to, done = common_at + 8 * COMPONENTS * common, 0
    c = whole = cotangents + 8 * COMPONENTS * place
    alone, ahead = summed == SUMS and sums == 1, 0
    while done < total:
        count = min(BLOCK, total - done)
        if slots:
            while ahead < min(total, done + BLOCK * slots):
                place = whole + 8 * COMPONENTS * ahead
                take_cotangents(place, waiting(at, words, ahead, slots), min(BLOCK, total - ahead))
                ahead += BLOCK
            c = waiting(at, words, done, slots)
        elif spare:
            c = at + 8 * words
            spread(whole, c, done, count, length, inner)
        own_partials = to
        to += 8 * COMPONENTS * own * count
        for k in range(leaves):
            code, how = get(table, 4 + k), get(to, 0)
            if how != SINGLY:  # of no tape
                if code < 0:
                    partials = common_at + 8 * COMPONENTS * (-1 - code)
                    if alone:
                        give_one_common(cotangents, to, how, count, c, partials, 1.0)
                    else:
                        give_each_common(cotangents, to, how, count, c, partials, 1.0)
                else:
                    partials = own_partials + 8 * COMPONENTS * count * (code & (1 << FACTOR) - 1)
                    factor_at = common_at + 8 * COMPONENTS * ((code >> FACTOR) - 1)
                    factor = read(factor_at) if code >> FACTOR else 1.0
                    if alone:
                        give_one_own(cotangents, to, how, count, c, partials, factor)
                    else:
                        give_each_own(cotangents, to, how, count, c, partials, factor)
            to += spanned(to, count)
        if summed != SUMS and slots == 0:
            clear(c, count)
            c += 8 * COMPONENTS * count
        done += count
    if summed == SUMS:
        clear(whole, sums)
'''


@functools.cache
def compiled(*spec: int) -> ModuleType:
    """Return the module for numbers of a kind."""
    each = range(components(spec))
    text = SOURCE.format(
        spec=spec, components=len(each), give=giving(spec), digest=digest(),
        gather="; ".join(f"planes[{q}, i] = values[i, {q}]" for q in each),
        assemble="; ".join(f"values[i, {q}] = planes[{q}, i]" for q in each),
    )  # fmt: skip
    return cache.load("array_records", text)


@intrinsic
def call_row(typingctx: TypingContext, function: Type, count: Type, places: Type) -> Emission:
    """Compute a block of an expression, by the address of its function."""
    kinds = types.int64, types.int64

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        convention = context.call_conv
        called = builder.inttoptr(args[0], convention.get_function_type(types.int64, kinds).as_pointer())
        status, _ = convention.call_function(builder, called, types.int64, kinds, args[1:])
        with builder.if_then(status.is_error, likely=False):
            convention.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), code
