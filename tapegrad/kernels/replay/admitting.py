"""Compiled: operands taken into a frame; arrays that others can write to, as by `dispatch.secure`."""

from tapegrad.kernels.dialect import call, copy, i64, invoke, obj, shared, stack
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.loops import checksum, equal_bytes
from tapegrad.kernels.replay.operands import (
    clear_exception,
    drop_position,
    entry_of,
    has,
    may_be_recorded,
    note_tape,
    position,
    room,
    same_words,
    size_of,
    weigh,
)


def admit(sheet: int, tape: int, frame: int, q: int, items: int, n: int) -> int:
    """Take operand q of n items into a frame; the bytes of its value, -1 if it is left to Python.

    PLACE: where it stands on the tape; else NEW_CONST is its value, to be recorded as a constant. That is
    SECURED where the operand is memory that others can write to, so that no view of it may be recorded.
    """
    g, x, size = i64(shared()), i64(items)[q], -1
    value = x
    if obj(x).type == g.tensor_type:
        value = obj(x).v
    if value != 0:
        invoke(g.incref, value)  # from now on, as another thread may exchange it wherever Python is called
        i64(frame)[VALUE + q] = value
        size = admitted(sheet, tape, frame, q, items, n)
        if size < 0:
            invoke(g.decref, value)
    return size


def admitted(sheet: int, tape: int, frame: int, q: int, items: int, n: int) -> int:
    """As `admit`, of an operand whose value is held in the frame."""
    g, f, x = i64(shared()), i64(frame), i64(items)[q]
    value, kind, fresh = f[VALUE + q], obj(x).type, 0
    at, size = position(tape, x), size_of(value)
    if size < 0 or (kind == g.tensor_type and obj(x).v != value):  # written to by a finalizer
        return drop_position(at, -1)
    if at == 0 and kind == g.ndarray_type:
        if obj(x).ndim == 0 or obj(x).flags & ALIGNED == 0:
            return -1
        at, fresh = secured(sheet, tape, q, items, n, x, 0), SECURED
        if at == 0:
            return clear_exception() - 1
    elif at == 0 and is_exposed(x):
        if obj(x).v != value:
            return -1  # written to by a finalizer
        cell = obj(x).at
        invoke(g.incref, cell)
        at, fresh = drop_position(cell, secured(sheet, tape, q, items, n, value, cell)), SECURED
        if at == 0:
            return clear_exception() - 1
    elif at == 0:
        if kind == g.tensor_type or kind == g.float_type or kind == g.int_type:
            return -1
        fresh = value  # a scalar of NumPy's
        invoke(g.incref, fresh)
    f[PLACE + q], f[NEW_CONST + q] = at, fresh
    return size


def is_exposed(x: int) -> int:
    """Whether an operand is a leaf to whose memory others can write."""
    g = i64(shared())
    if obj(x).type != g.tensor_type or may_be_recorded(x) == 0:
        return 0
    if has(obj(x).extra, g.exposed_text, g.true) == 0:  # asks Python, so before the others
        return 0
    if obj(x).tape != g.none_at_all or obj(x).at == 0 or obj(obj(x).v).type != g.ndarray_type:
        return 0
    return obj(obj(x).at).type == g.cell_type


def secured(sheet: int, tape: int, q: int, items: int, n: int, x: int, cell: int) -> int:
    """Import memory that others can write to: a new reference to its position; 0, maybe with an error set.

    It is operand q's value, an array `x`, and that of a leaf if there is a `cell`. Recorded is a shadow where
    no derivative reads it, a copy, or of a large one a view, with a checksum unless something else is asked
    for. What stands on the tape unchanged is used again. The value is computed from the array itself, to have
    NumPy's bits.
    """
    g, size, setting, at = i64(shared()), size_of(x), stack(1), 0
    viewed, number, way = 0, 0, latest_import(tape, x)
    if size > g.smallest and is_read(sheet, q, items, n) == 0:
        if cell != 0 and stands_at(tape, x, way, cell):
            at = i64(way).imported_at  # whatever its values were
            invoke(g.incref, at)
            return at
        shade = shade_for(tape, x)
        if shade != 0:
            at = constant(tape, shade, 0, 0, cell)
            if cell != 0 and at != 0:
                note_import(way, tape, x, at, 0)
            invoke(g.decref, shade)
        return at
    if size > g.copied:
        if call(g.context_get, g.guard_setting, 0, setting) & 0xFFFFFFFF:
            return 0
        invoke(g.decref, i64(setting)[0])
        if i64(setting)[0] == g.off_text:
            viewed = 1
        elif i64(setting)[0] == g.checksum_text and obj(x).flags & CONTIGUOUS:
            viewed, number = 1, call(g.long_from, checksum(obj(x).data, size))
            if number == 0:
                return 0
    at = unchanged(tape, x, way, number, size, cell)
    if at == 0:
        if viewed:
            made = call(g.new_view, x, 0, 0)  # of the same type and dtype
            size //= LENT
        else:
            made = copy_of(x, way, size)
        if made != 0:
            at = constant(tape, made, number, size, cell)
            if at != 0:
                note_import(way, tape, x, at, made * (viewed == 0 and size <= g.smallest))
            invoke(g.decref, made)
    return drop_position(number, at)


def latest_import(tape: int, x: int) -> int:
    """Where an array's latest import is noted, or is to be: found by the address of its elements.

    Four ways are tried: that which has this address, else one that is of no use to this tape, else any.
    """
    g, data, out = i64(shared()), obj(x).data, 0
    serial = call(g.long_as, obj(tape).serial)
    ways = g.latest_imports + 8 * WAYS * WAY_WORDS * ((data >> 4) * SPREAD >> 57 & (WAY_SETS - 1))
    for q in range(WAYS):
        way = ways + 8 * WAY_WORDS * q
        if i64(way).source == data:
            return way
        if out == 0 and i64(way).importer != serial:
            out = way
    if out == 0:
        out = ways + 8 * WAY_WORDS * (obj(obj(tape).log).size >> 2 & (WAYS - 1))
    return out


def note_import(way: int, tape: int, x: int, at: int, copied: int) -> int:
    """Note where an array stands on a tape, and the copy that stands there, if it is a small one."""
    g, w = i64(shared()), i64(way)
    before, known = w.imported_at, w.imported_copy
    invoke(g.incref, at)
    if copied != 0:
        invoke(g.incref, copied)
    w.source, w.importer = obj(x).data, call(g.long_as, obj(tape).serial)
    w.imported_at, w.imported_copy = at, copied
    drop_position(before, 0)
    return drop_position(known, 0)


def copy_of(x: int, way: int, size: int) -> int:
    """A new array with the elements of another, in C order; 0 with an error set.

    It is the copy noted there, where nobody else has that any more.
    """
    g, made = i64(shared()), i64(way).imported_copy
    if obj(x).flags & C_CONTIGUOUS == 0:
        return call(g.new_copy, x, C_ORDER)
    fits = 0
    if made != 0:
        if obj(made).refcount == 1:
            fits = same_kind(made, x)
    if fits:
        invoke(g.incref, made)
    else:
        made = call(g.new_like, x, C_ORDER, 0, 0)
    if made != 0:
        copy(obj(made).data, obj(x).data, size)
    return made


def is_read(sheet: int, q: int, items: int, n: int) -> int:
    """Whether a derivative reads the value of operand q."""
    read = 0
    for p in range(n):
        if i64(sheet)[USES + min(p, 2)] >> min(q, 2) & 1:
            read = read | needs_grad(i64(items)[p])
    return read


def needs_grad(x: int) -> int:
    """Whether an operand requires a gradient."""
    g = i64(shared())
    if obj(x).type != g.tensor_type:
        return 0
    if obj(x).tape != g.none_at_all:
        return 1
    state = obj(x).extra
    if state == 0 or state == g.none_at_all:
        return 0
    return has(state, g.requires_grad_text, g.true)


def unchanged(tape: int, x: int, way: int, number: int, size: int, cell: int) -> int:
    """A new reference to the position of an array that stands on the tape as it is now; 0 if none does.

    Told by its bytes, or by the checksum `number`; it is a constant, or the leaf of a cell.
    """
    g, log, at, same = i64(shared()), obj(tape).log, i64(way).imported_at, 0
    if stands_at(tape, x, way, cell) == 0:
        return 0
    place = call(g.long_as, at)
    logged = i64(obj(log).items)[place - ENTRIES + VALUE_ENTRY]
    if same_kind(logged, x) == 0 or same_words(logged, x, STRIDES_AT) == 0:
        return 0
    if size <= g.copied:
        same = equal_bytes(obj(logged).data, obj(x).data, size)
    elif number != 0:
        slot = call(g.long_from, place // 4 - 1)
        if slot != 0:
            known = call(g.dict_get, obj(tape).guards, slot)
            if known != 0:
                same = call(g.long_as, known) == call(g.long_as, number)
            invoke(g.decref, slot)
    if same == 0:
        return 0
    invoke(g.incref, at)
    return at


def stands_at(tape: int, x: int, way: int, cell: int) -> int:
    """Whether an import of an array, as a constant or as the leaf of a cell, is noted there, on this tape."""
    g, found = i64(shared()), 0
    if i64(way).source != obj(x).data or room(tape) == 0:
        return 0
    if i64(way).importer != call(g.long_as, obj(tape).serial):
        return 0
    slot = call(g.long_from, call(g.long_as, i64(way).imported_at) // 4 - 1)
    if slot == 0:
        invoke(g.error_clear)
        return 0
    found = call(g.dict_get, obj(tape).imports, slot)
    return drop_position(slot, found == cell)


def constant(tape: int, value: int, number: int, size: int, cell: int) -> int:
    """Record a constant that weighs `size`, with its checksum if it has one: a new reference to its position.

    With a `cell` it is the value of a leaf. 0 with an error set and nothing recorded where memory is out; 0
    where the tape takes no more.
    """
    g, log = i64(shared()), obj(tape).log
    if room(tape) == 0:
        return 0
    length, slot, at, failed, opcode = obj(log).size, 0, 0, 0, g.zero
    if number != 0 or cell != 0:
        slot = call(g.long_from, length // 4)
        if slot == 0:
            return 0
    if number != 0:
        failed = call(g.dict_set, obj(tape).guards, slot, number) & 0xFFFFFFFF
    if cell != 0 and failed == 0:
        opcode, failed = g.leaf_opcode, call(g.dict_set, obj(tape).imports, slot, cell) & 0xFFFFFFFF
    if failed == 0:
        at = entry_of(log, opcode, g.zero, g.zero, value)
        failed = at == 0
    if failed == 0 and size > g.smallest:
        failed = weigh(tape, size) == 0
    if failed:
        invoke(g.cut, log, length, obj(log).size, 0)
        if number != 0:
            invoke(g.dict_delete, obj(tape).guards, slot)
        if cell != 0:
            invoke(g.dict_delete, obj(tape).imports, slot)
        at = drop_position(at, 0)
    elif cell != 0:
        note_tape(cell, obj(tape).serial)
        if call(g.set_attribute, cell, g.shared_text, g.true) & 0xFFFFFFFF:
            invoke(g.error_clear)
    return drop_position(slot, at)


def memory_like(tape: int, x: int, size: int) -> int:
    """A new array like a large one, in C order, in memory of the stock (`tape.pool`); 0 with an error set."""
    g, args = i64(shared()), stack(1)
    latest = obj(tape).latest
    items, n = i64(obj(latest).items), obj(latest).size
    for q in range(n - 1, -1, -1):
        memory = items[q]
        if obj(memory).refcount == 1 and i64(obj(memory).dims)[0] == size + g.alignment:
            for p in range(q, n - 1):
                items[p] = items[p + 1]
            items[n - 1] = memory
            return array_in(memory, x)
    i64(args)[0] = x
    return call(g.vectorcall, g.empty_like, args, 1, 0)


def array_in(memory: int, x: int) -> int:
    """A new array like another, in C order, from the first aligned byte of a buffer; 0 with an error set."""
    g, at = i64(shared()), obj(memory).data
    at = (at + g.alignment - 1) // g.alignment * g.alignment
    return array_at(at, memory, x, 0, C_CONTIGUOUS | ALIGNED | WRITEABLE)


def array_at(address: int, owner: int, like: int, strides: int, flags: int) -> int:
    """A new array like another, at an address in memory that another object owns; 0 with an error set."""
    g = i64(shared())
    invoke(g.incref, obj(like).descr)
    out = call(g.new_array, g.ndarray_type, obj(like).descr, obj(like).ndim, obj(like).dims,
               strides, address, flags, 0)  # fmt: skip
    if out != 0:
        invoke(g.incref, owner)
        if call(g.set_base, out, owner) & 0xFFFFFFFF:
            invoke(g.decref, out)
            return 0
    return out


def is_own_memory(tape: int, x: int, seen: int) -> int:
    """Whether an array, and so many seen, see its memory alone; that may be of the stock (`tape.pool`)."""
    g, base, latest, known = i64(shared()), obj(x).base, obj(tape).latest, 0
    if base == 0:
        return 1
    if obj(base).type != g.ndarray_type:
        return 0
    for q in range(obj(latest).size):
        known += i64(obj(latest).items)[q] == base
    return obj(base).refcount == 1 + known + seen


def shade_for(tape: int, value: int) -> int:
    """A new reference to what stands on a tape for an array that is not kept; 0 with an error set."""
    g, args = i64(shared()), stack(1)
    shade = obj(tape).placeholder
    if same_kind(shade, value):
        invoke(g.incref, shade)
        return shade
    i64(args)[0] = value
    shade = call(g.vectorcall, g.shadow, args, 1, 0)
    if shade != 0:
        before = obj(tape).placeholder
        invoke(g.incref, shade)
        obj(tape).placeholder = shade
        invoke(g.decref, before)
    return shade


def same_kind(x: int, value: int) -> int:
    """Whether an array is of the shape and dtype of another; None is not."""
    g = i64(shared())
    if x == g.none_at_all or obj(x).descr != obj(value).descr:
        return 0
    return same_words(x, value, DIMS_AT)
