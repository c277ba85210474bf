"""Compiled: plan the sweep of a tape, walk the records."""

from tapegrad.kernels.dialect import call, f32, f64, i64, invoke, obj, shared, u8, zero
from tapegrad.kernels.replay.functions import function, known_layouts, rule_of
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.links import hand_over, mark_link, needs_link
from tapegrad.kernels.replay.memory import release
from tapegrad.kernels.replay.reading import column, following, operands, read_record, seal
from tapegrad.kernels.replay.records import count_of, target
from tapegrad.kernels.replay.recurrences import recurrence
from tapegrad.kernels.replay.stream import add, missing
from tapegrad.kernels.replay.templates import (
    assign,
    elementwise,
    factors,
    matmul,
    put,
    reduction,
    scan,
    scatter,
    view,
)


def find_needs(state: int) -> int:
    """Flag all records that depend on a sink."""
    s = i64(state)
    n, word, flags, operations, sinks = s.records, i64(s.word), u8(s.flags), i64(s.operations), i64(s.sinks)
    known = MARK * (s.read_count != 0)
    if known == 0:
        zero(s.flags, n)
    for q in range(s.sink_count):
        flags[sinks[q]] = NEED | SINK
    for k in range(s.oldest, n):
        if known != 0:
            if flags[k] == 0:
                continue
            flags[k] = flags[k] & ~known
        w = word[k]
        form = operations[ROW * (w & 0xFFFF) + FORM]
        if form == NONE:
            if w & 0xFFFF != CONST and s.every != 0:
                flags[k] = NEED | SINK
            elif w & 0xFFFF == LINK and s.links_lead:
                flags[k] = flags[k] | NEED
            elif w & 0xFFFF == LINK and s.older_count != 0:
                flags[k] = flags[k] | needs_link(state, k)
        else:
            need = flags[((w >> 16) & 0xFFFF) - 1]
            if (form == TWO or form == CHAIN) and w >> 32 != 0:
                need = need | flags[(w >> 32) - 1]
            flags[k] = flags[k] | need & NEED
    return DONE


def begin_marks(state: int) -> int:
    """Begin to find what seeds depend on."""
    s = i64(state)
    flags, seeds = u8(s.flags), i64(s.seeds)
    zero(s.cotangents, 8 * s.records)
    zero(s.descriptors, 8 * s.records)
    for q in range(s.seed_count):
        flags[seeds[q]] = flags[seeds[q]] | MARK
    s.pending_count, s.rules, s.work, s.reached_count, s.touched = 0, 0, 0, 0, 0
    s.position, s.finish = s.records - 1, 0
    return DONE


def find_marks(state: int) -> int:
    """Flag the records that marked ones depend on, of those that depend on a sink; say how each will run.

    What stands against running the record at POSITION: KERNEL, if one is missing, FREED_RECORD, NOT_READ.
    Called again, it goes on from there.
    """
    s = i64(state)
    word, flags, operations, k = i64(s.word), u8(s.flags), i64(s.operations), s.position
    while k >= s.oldest:
        if flags[k] == 0:
            k = flagged(s.flags, k, s.oldest)
            continue
        if flags[k] & (NEED | MARK) == NEED | MARK:
            opcode, status = word[k] & 0xFFFF, DONE
            if opcode == LINK and s.links_lead:
                status = NOT_READ
            elif opcode == LINK and s.older_count != 0:
                status = mark_link(state, k)
            elif k > s.oldest and operations[ROW * opcode + TEMPLATE] != IMPORT:
                status = plan_record(state, k)
            if status != DONE:
                s.position = k
                return status
            s.reached_count += flags[k] & SINK != 0
        k -= 1
    s.position = s.records - 1
    return DONE


def flagged(flags: int, k: int, oldest: int) -> int:
    """The first record from k down to the oldest that has flags; one before that for none."""
    while k >= oldest:
        if i64(flags + k // 8 * 8)[0] == 0:
            k = k // 8 * 8 - 1
        elif u8(flags)[k] == 0:
            k -= 1
        else:
            return k
    return k


def list_pending(state: int) -> int:
    """List in PENDING the records of a plan whose rules need words that describe them."""
    s, found = i64(state), 0
    word, flags, operations, pending = i64(s.word), u8(s.flags), i64(s.operations), i64(s.pending)
    for k in range(s.oldest + 1, s.records):
        template = operations[ROW * (word[k] & 0xFFFF) + TEMPLATE]
        if flags[k] & (NEED | MARK) == NEED | MARK and template >= VIEW and template != BY_RULE:
            pending[found] = k
            found += 1
    s.pending_count = found
    return DONE


def plan_record(state: int, k: int) -> int:
    """Mark a record's operands, and find out how its rule runs; KERNEL if one is missing, or FREED_RECORD."""
    s = i64(state)
    flags, w = u8(s.flags), i64(s.word)[k]
    row = ROW * (w & 0xFFFF)
    template, reads = i64(s.operations)[row + TEMPLATE], mark_operands(state, k)
    if u8(s.freed)[k] and flags[k] & ACTIVE:
        return FREED_RECORD
    if s.guarded != 0 and reads != 0:
        mark_read(state, k, reads)
    s.work += count_of(s.shapes, i64(s.meta)[k])
    if template >= VIEW and template != BY_RULE:
        s.pending_count += 1
    if s.is_recorded:
        return DONE
    way = way_of(state, k)
    if way == PYTHON:
        flags[k] = flags[k] | RULE
        s.rules += 1
        return DONE
    return way


def mark_operands(state: int, k: int) -> int:
    """Mark the operands that record k gives cotangents to; which values its rule reads for that."""
    s = i64(state)
    operations, flags, w = i64(s.operations), u8(s.flags), i64(s.word)[k]
    row, reads, slot = ROW * (w & 0xFFFF), 0, 0
    form = operations[row + FORM]
    at = operands(w, form)
    while at != 0:
        j = (at & 0xFFFF) - 1
        if j < s.oldest and i64(s.meta)[j] == 0:
            if read_record(state, j) == 0:
                s.shape_words = s.capacity + 1  # left to Python, which says what is wrong
        if flags[j] & NEED:
            flags[k] = flags[k] | ACTIVE
            flags[j] = flags[j] | MARK
            reads = reads | operations[row + READS + min(slot, 2)]
        slot += 1
        at = following(s.word, at, form)
    return reads


def mark_read(state: int, k: int, reads: int) -> int:
    """Flag the operands whose values the rule of record k reads."""
    s = i64(state)
    flags, w, slot = u8(s.flags), i64(s.word)[k], 0
    form = i64(s.operations)[ROW * (w & 0xFFFF) + FORM]
    at = operands(w, form)
    while at != 0:
        if reads & 1 << min(slot, 2):
            flags[(at & 0xFFFF) - 1] = flags[(at & 0xFFFF) - 1] | READ
        slot += 1
        at = following(s.word, at, form)
    return 0


def way_of(state: int, k: int) -> int:
    """How the rule of record k runs: DONE, compiled; KERNEL, once that is; PYTHON."""
    s = i64(state)
    operations, metas, w = i64(s.operations), i64(s.meta), i64(s.word)[k]
    row, m, way, slot = ROW * (w & 0xFFFF), metas[k], DONE, 0
    form, template = operations[row + FORM], operations[row + TEMPLATE]
    if template == BY_RULE or m & 0xFF > SWEPT:
        return PYTHON
    if template == MATMUL:
        if i64(s.gemm)[1] == 0:
            way = KERNEL  # which library it is decides on the rest
        elif factors(state, k) == 0:
            return PYTHON
        else:
            s.work += count_of(s.shapes, m) * i64(s.scratch)[GEMM_WORDS + 1] // MULTIPLICATIONS
    elif template == COMPILED:
        if rule_of(state, k) == BY_RULE_ONLY or known_layouts(state, k) == 0:
            return PYTHON
        if rule_of(state, k) == 0:
            way = KERNEL
    if operations[row + TOTAL] >= 0:
        way = max(way, kernel_ready(state, operations[row + TOTAL], column(m, m)))
    at = operands(w, form)
    while at != 0 and way != PYTHON:
        way = max(way, way_to(state, k, (at & 0xFFFF) - 1, min(slot, 2), form, template))
        slot += 1
        at = following(s.word, at, form)
    return way


def way_to(state: int, k: int, j: int, slot: int, form: int, template: int) -> int:
    """As `way_of`, of the part of the rule for record j, the operand `slot` of record k."""
    s = i64(state)
    m, given, way, casts = i64(s.meta)[k], i64(s.meta)[j] & 0xFF, DONE, i64(s.casts)
    own, which = m & 0xFF, m & 0xFF
    compute = own
    if given != own:
        which = column(m, given)
        if which > OF_COMPLEX:
            compute += PAIRS
        if given > SWEPT or (compute != own and form != ONE) or (template == PUT and slot == 0):
            return PYTHON
    kernel = i64(s.operations)[ROW * (i64(s.word)[k] & 0xFFFF) + PARTIAL + slot]
    if u8(s.flags)[j] & NEED and kernel >= 0:
        way = kernel_ready(state, kernel, which)
    if given != own and template == ELEMENTWISE and way != PYTHON:
        if given != compute and given != 0 and casts[8 * given + compute] == 0:
            way = KERNEL
        if compute != own and casts[8 * own + compute] == 0:
            way = KERNEL
    return way


def kernel_ready(state: int, kernel: int, which: int) -> int:
    """Whether a kernel is there (DONE), is to be compiled (KERNEL), or cannot be (PYTHON)."""
    address = i64(i64(state).kernels)[COLUMNS * kernel + which]
    if address == 0:
        return KERNEL
    return PYTHON * (address == BY_RULE_ONLY)


def place_columns(state: int, words: int, room: int) -> int:
    """Let the columns of a tape be at an address, where there is room for so many words of shapes."""
    s, n = i64(state), i64(state).records
    s.word, s.capacity, s.shape_words = words, room, 0
    s.meta, s.address, s.shapes = words + 8 * n, words + 16 * n, words + 24 * n
    return 0


def read_log(state: int, log: int) -> int:
    """Read the log of a tape that is not sealed into columns of the state's own; whether they can be."""
    s = i64(state)
    place_columns(state, s.sealing, s.sealing_words - 3 * s.records)
    s.items, s.read_count = obj(log).items, 0
    zero(s.meta, 8 * s.oldest)
    return seal(state) >= 0 and s.shape_words <= s.capacity


def read_reached(state: int, log: int) -> int:
    """As `read_log`, only the records that seeds depend on, which are flagged; no words of others are set."""
    s = i64(state)
    flags, word, k = u8(s.flags), s.sealing, s.records - 1
    place_columns(state, s.sealing, s.sealing_words - 3 * s.records)
    s.items = obj(log).items
    s.last_shape, s.last_axes, s.read_count = 0, -1, 0
    zero(word, 16 * s.records)
    zero(s.flags, s.records)
    for q in range(s.seed_count):
        flags[i64(s.seeds)[q]] = MARK
    while k >= s.oldest:
        if flags[k] == 0:
            k = flagged(s.flags, k, s.oldest)
            continue
        if read_record(state, k) == 0:
            return 0
        w = i64(word)[k]
        form = i64(s.operations)[ROW * (w & 0xFFFF) + FORM]
        first, rest = (w >> 16) & 0xFFFF, w >> 32
        if form != NONE and first > s.oldest:
            flags[first - 1] = MARK
        if (form == TWO or form == CHAIN) and rest > s.oldest:
            flags[rest - 1] = MARK
        s.read_count += 1
        k -= 1
    return s.shape_words <= s.capacity


def plan_read(state: int) -> int:
    """Plan a tape whose columns are in place for `run_open`: DONE, UNDESCRIBED, or PYTHON.

    Of roots named in SEEDS, with the addresses of their cotangents in SEED_DATA; 0 for one of one element.
    """
    s = i64(state)
    n = s.records
    s.every = 0
    find_needs(state)
    begin_marks(state)
    if find_marks(state) != DONE or s.shape_words > s.capacity:
        return PYTHON
    flags, metas = u8(s.flags), i64(s.meta)
    if s.reached_count != s.sink_count and s.in_part == 0:
        return PYTHON
    for q in range(s.seed_count):
        m = metas[i64(s.seeds)[q]]
        if flags[i64(s.seeds)[q]] & SINK:
            return PYTHON
        if i64(s.seed_data)[q] == 0 and (count_of(s.shapes, m) != 1 or m & 0xFF >= COMPLEX):
            return PYTHON
    if s.rules != 0:
        for k in range(s.oldest, n):
            if flags[k] & MARK and metas[k] & 0xFF > SWEPT:
                return PYTHON  # extended precision, in which only the sweep in parts adds up
    if s.pending_count != 0:
        if find_words(state) == 0:
            return UNDESCRIBED
    return DONE


def find_words(state: int) -> int:
    """Point DESCRIPTORS at what those pending have noted when they were recorded; whether all have."""
    s, g = i64(state), i64(shared())
    pending, descriptors = i64(s.pending), i64(s.descriptors)
    list_pending(state)
    for q in range(s.pending_count):
        slot = call(g.long_from, pending[q])
        if slot == 0:
            invoke(g.error_clear)
            return 0
        words = call(g.dict_get, s.described, slot)
        invoke(g.decref, slot)
        if words == 0:
            return 0
        if obj(words).type == g.bytes_type:
            descriptors[pending[q]] = words + BYTES_AT
        elif words == g.false:
            descriptors[pending[q]] = -1
            s.rules += 1
        else:
            descriptors[pending[q]] = obj(words).data
    return 1


def start_open(state: int) -> int:
    """Begin the sweep of a tape that `plan_read` has planned.

    Results go to RESULT_ARRAYS (addresses of ndarray objects), or for numbers to RESULTS.
    """
    s = i64(state)
    flags, cotangents, metas = u8(s.flags), i64(s.cotangents), i64(s.meta)
    sinks, arrays, ones = i64(s.sinks), i64(s.result_arrays), s.results + 16 * QUICK_INPUTS
    for q in range(s.sink_count):
        k = sinks[q]
        flags[k] = flags[k] | FRESH
        cotangents[k] = s.results + 16 * q
        if arrays[q] != 0:
            cotangents[k] = obj(arrays[q]).data
    f64(ones)[0] = 1.0
    f32(ones + 8)[0] = 1.0
    for q in range(s.seed_count):
        root = i64(s.seeds)[q]
        cotangents[root] = i64(s.seed_data)[q]
        if i64(s.seed_data)[q] == 0:
            cotangents[root] = ones + 8 * (metas[root] & 1 == 0)
        flags[root] = flags[root] | FOREIGN
    return 0


def run_open(state: int) -> int:
    """Run the sweep of a tape that `plan_read` has planned; PYTHON where one that must be was not reached."""
    s = i64(state)
    start_open(state)
    status = run(state)
    for q in range(s.sink_count):
        if u8(s.flags)[i64(s.sinks)[q]] & FRESH and status == DONE and s.in_part == 0:
            status = PYTHON
    return status


def spend(state: int) -> int:
    """Mark in FREED the records of the plan whose rules read values; how many they are."""
    s = i64(state)
    flags, word, operations, freed = u8(s.flags), i64(s.word), i64(s.operations), u8(s.freed)
    count = 0
    for k in range(s.records):
        row = ROW * (word[k] & 0xFFFF) + READS
        if flags[k] & ACTIVE:
            if operations[row] | operations[row + 1] | operations[row + 2]:
                freed[k] = 1
                count += 1
    return count


def run(state: int) -> int:
    """Walk back from POSITION, running each marked record's rule; says what stopped it there."""
    s = i64(state)
    word, operations, metas = i64(s.word), i64(s.operations), i64(s.meta)
    flags, cotangents = u8(s.flags), i64(s.cotangents)
    k, oldest, check, stamps = s.position, s.oldest, s.check, s.stamps
    while k >= oldest:
        if flags[k] == 0:
            k = flagged(s.flags, k, oldest)
            continue
        w = word[k]
        row = ROW * (w & 0xFFFF)
        form, template = operations[row + FORM], operations[row + TEMPLATE]
        if flags[k] & (NEED | MARK | FRESH) != NEED | MARK or cotangents[k] == 0 or template == IMPORT:
            if w & 0xFFFF == LINK and s.older_count != 0 and cotangents[k] != 0:
                status = hand_over(state, k)
                if status != DONE:
                    s.position = k
                    return status
            s.finish = 0
            k -= 1
            continue
        s.position = k
        if s.finish == 0:
            if flags[k] & RULE or i64(s.descriptors)[k] == -1:
                return PYTHON
            slot, at = 0, operands(w, form)
            if template == COMPILED:
                if check != 0:
                    return PYTHON
                status = function(state, k)
                if status != DONE:
                    return status
                at = 0
            while at != 0:
                j, rest = (at & 0xFFFF) - 1, at >> 32
                if flags[j] & NEED and operations[row + PARTIAL + min(slot, 2)] != NOTHING:
                    # the cotangent moves on as it is where no other operand wants it
                    final = check == 0 and (rest == 0 or (form == TWO and flags[rest - 1] & NEED == 0))
                    status = step(state, template, k, j, slot, final)
                    if status != DONE:
                        return status
                    if check != 0:
                        if spoiled(state, template, k, j, slot):
                            s.spoiled = slot
                            return ANOMALY
                slot += 1
                at = following(s.word, at, form)
        s.finish = 0
        if stamps != 0:
            invoke(s.clock, s.clock_kind, stamps + 16 * k)
        block = cotangents[k]
        if block != 0 and flags[k] & (SINK | FOREIGN) == 0:
            release(state, block)
            cotangents[k] = 0
        s.touched += 8 * count_of(s.shapes, metas[k])
        k -= 1
        if s.touched > s.pause:
            s.touched = 0
            s.position = k
            return PAUSED
    return DONE


def step(state: int, template: int, k: int, j: int, slot: int, final: int) -> int:
    """Add record k's part to the cotangent of its operand `slot`, record j."""
    if template == ELEMENTWISE or template == RESHAPE:
        return elementwise(state, k, j, min(slot, 2), final)
    if template == REDUCE:
        return reduction(state, k, j)
    if template == VIEW:
        return view(state, k, j, slot)
    if template == ASSIGN:
        return assign(state, k, j, slot)
    if template == MATMUL:
        return matmul(state, k, j, slot)
    if template == SCAN:
        return scan(state, k, j)
    if template == SCATTER:
        return scatter(state, k, j)
    if template == PUT:
        return put(state, k, j, slot)
    if template == RECURRENCE:
        return recurrence(state, k, j, slot)
    s = i64(state)  # ELEMENT
    out = target(state, j, 1)
    if out == 0:
        return MEMORY
    m = i64(s.meta)[k]
    add(m & 0xFF, out + (i64(s.word)[k] >> 32) * ((m >> 9) & 0x7F), i64(s.cotangents)[k], 1, 0)
    return DONE


def spoiled(state: int, template: int, k: int, j: int, slot: int) -> int:
    """Whether nan is in what record k has just given record j, its operand `slot`; k's cotangent is kept.

    Looked at is what the step has touched: where a few elements move, those, and not all they move to.
    """
    s = i64(state)
    metas, seen = i64(s.meta), j
    n = count_of(s.shapes, metas[j])
    if template == VIEW or template == ELEMENT or template == SCATTER:
        own = count_of(s.shapes, metas[k])
        if own < n:
            seen, n = k, own
    if (template == ASSIGN or template == PUT) and slot != 0:
        return 0  # the cotangent moves on as it was, with zeros in it
    return missing(metas[seen] & 0xFF, i64(s.cotangents)[seen], n)
