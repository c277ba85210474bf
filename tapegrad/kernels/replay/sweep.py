"""Compiled: plan a sweep, walk the records."""

from tapegrad.kernels.dialect import call, f32, f64, i64, invoke, shared, u8, zero
from tapegrad.kernels.replay.functions import function, known_layouts, rule_of
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.memory import release
from tapegrad.kernels.replay.reading import column, following, operands, prune, seal
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


def serve(what: int, state: int, extra: int, more: int) -> int:
    """What is done on a state."""
    if what == RUN:
        return run(state)
    if what == PLAN:
        return plan(state)
    if what == SEAL or what == PRUNE:
        # a list's items move when it grows: they are looked up in the call that reads them
        if extra != 0:
            i64(state)[ITEMS] = i64(extra + LIST_ITEMS_AT)[0]
        if what == SEAL:
            return seal(state)
        return prune(state)
    if what == CONTRIBUTE:
        return contribute(state, extra, more)
    if what == TAKE:
        return take(state, extra, more)
    if what == DEPOSIT:
        return deposit(state, extra, more)
    if what == SPEND:
        return spend(state)
    return release(state, extra)


def plan(state: int) -> int:
    """Find the records on a way from the seeds to the sinks, and what stands against running them.

    PHASE 1 finds what depends on a sink, 2 what a seed depends on, 3 does both.
    """
    s = i64(state)
    n, word, metas, flags = s[RECORDS], i64(s[WORD]), i64(s[META]), u8(s[FLAGS])
    operations, freed = i64(s[OPERATIONS]), u8(s[FREED])
    if s[PHASE] & 1:
        zero(s[FLAGS], n)
        sinks = i64(s[SINKS])
        for q in range(s[SINK_COUNT]):
            flags[sinks[q]] = NEED | SINK
        for k in range(n):
            w = word[k]
            form = operations[ROW * (w & 0xFFFF) + FORM]
            if form == NONE:
                if w & 0xFFFF != CONST and s[EVERY] != 0:
                    flags[k] = NEED | SINK
            else:
                need = flags[((w >> 16) & 0xFFFF) - 1]
                if (form == TWO or form == CHAIN) and w >> 32 != 0:
                    need = need | flags[(w >> 32) - 1]
                flags[k] = flags[k] | need & NEED
    if s[PHASE] & 2 == 0:
        return DONE
    zero(s[COTANGENTS], 8 * n)
    zero(s[DESCRIPTORS], 8 * n)
    seeds, reached, pending = i64(s[SEEDS]), i64(s[REACHED]), i64(s[PENDING])
    kernels, casts = i64(s[KERNELS]), i64(s[CASTS])
    for k in range(n):
        flags[k] = flags[k] & (NEED | SINK)
    for q in range(s[SEED_COUNT]):
        flags[seeds[q]] = flags[seeds[q]] | MARK
    found, waiting, work, marked, rules = 0, 0, 0, 0, 0
    for k in range(n - 1, -1, -1):
        if flags[k] & (NEED | MARK) != NEED | MARK:
            continue
        if flags[k] & SINK:
            reached[found] = k
            found += 1
        w = word[k]
        row = ROW * (w & 0xFFFF)
        form, template, m = operations[row + FORM], operations[row + TEMPLATE], metas[k]
        if template == IMPORT:
            continue
        s[POSITION] = k
        marked += 1
        apart = template == BY_RULE or m & 0xFF > SWEPT
        work += count_of(s[SHAPES], m)
        lacking = 0
        if template == MATMUL:
            lacking = i64(s[GEMM])[1] == 0
            if factors(state, k) == 0:
                apart = 1
        elif template == COMPILED:
            lacking, apart = rule_of(state, k) == 0, rule_of(state, k) == BY_RULE_ONLY
            if known_layouts(state, k) == 0:
                apart = 1
        elif template >= VIEW and template != BY_RULE:
            pending[waiting] = k
            waiting += 1
        kernel = operations[row + TOTAL]
        if kernel >= 0 and apart == 0:
            address = kernels[COLUMNS * kernel + column(m, m)]
            lacking, apart = address == 0, address == BY_RULE_ONLY
        reads, slot, at = 0, 0, operands(w, form)
        while at != 0:
            j = (at & 0xFFFF) - 1
            which, other = m & 0xFF, (metas[j] ^ m) & 0xFF
            if other:
                which = column(m, metas[j])
            if flags[j] & NEED:
                flags[k] = flags[k] | ACTIVE
                flags[j] = flags[j] | MARK
                kernel = operations[row + PARTIAL + min(slot, 2)]
                if kernel >= 0 and apart == 0:
                    address = kernels[COLUMNS * kernel + which]
                    if address == 0:
                        lacking = 1
                    elif address == BY_RULE_ONLY:
                        apart = 1
                reads = reads | operations[row + READS + min(slot, 2)]
            if other:
                given, compute = metas[j] & 0xFF, m & 0xFF
                if template == PUT and slot == 0:
                    apart = 1
                if which > OF_COMPLEX:
                    compute += PAIRS
                if given > SWEPT or (compute != m & 0xFF and form != ONE):
                    apart = 1
                elif template == ELEMENTWISE and apart == 0:
                    if given != compute and given != 0 and casts[8 * given + compute] == 0:
                        lacking = 1
                    if compute != m & 0xFF and casts[8 * (m & 0xFF) + compute] == 0:
                        lacking = 1
            slot += 1
            at = following(s[WORD], at, form)
        if freed[k] and flags[k] & ACTIVE:
            return FREED_RECORD
        if s[GUARDED] != 0 and reads != 0:
            slot, at = 0, operands(w, form)
            while at != 0:
                if reads & 1 << min(slot, 2):
                    flags[(at & 0xFFFF) - 1] = flags[(at & 0xFFFF) - 1] | READ
                slot += 1
                at = following(s[WORD], at, form)
        if apart:
            flags[k] = flags[k] | RULE
            rules += 1
        elif lacking:
            return KERNEL
    s[REACHED_COUNT], s[PENDING_COUNT], s[MARKED], s[RULES] = found, waiting, marked, rules
    s[WORK], s[POSITION], s[FINISH], s[TOUCHED] = work, n - 1, 0, 0
    return DONE


def plan_open(state: int, log: int) -> int:
    """Read and plan an open tape for `run_open`: DONE, UNDESCRIBED, or PYTHON.

    Of one root, named in SEEDS, with its cotangent at SEED, or of one element.
    """
    s = i64(state)
    n = s[RECORDS]
    s[ITEMS] = i64(log + LIST_ITEMS_AT)[0]
    s[WORD] = s[SEALING]
    s[META], s[ADDRESS], s[SHAPES] = s[WORD] + 8 * n, s[WORD] + 16 * n, s[WORD] + 24 * n
    s[CAPACITY] = s[SEALING_WORDS] - 3 * n
    used = seal(state)
    if used < 0 or used > s[CAPACITY]:
        return PYTHON
    s[PHASE], s[EVERY], s[SEED_COUNT] = 3, 0, 1
    if plan(state) != DONE:
        return PYTHON
    root = i64(s[SEEDS])[0]
    flags, metas = u8(s[FLAGS]), i64(s[META])
    if s[REACHED_COUNT] != s[SINK_COUNT] or flags[root] & SINK:
        return PYTHON
    if s[SEED] == 0 and (count_of(s[SHAPES], metas[root]) != 1 or metas[root] & 0xFF >= COMPLEX):
        return PYTHON
    if s[RULES] != 0:
        for k in range(n):
            if flags[k] & MARK and metas[k] & 0xFF > SWEPT:
                return PYTHON  # extended precision, in which only the sweep in parts adds up
    if s[PENDING_COUNT] != 0:
        if find_words(state) == 0:
            return UNDESCRIBED
    return DONE


def find_words(state: int) -> int:
    """Point DESCRIPTORS at what those pending have noted when they were recorded; whether all have."""
    s, g = i64(state), i64(shared())
    pending, descriptors = i64(s[PENDING]), i64(s[DESCRIPTORS])
    for q in range(s[PENDING_COUNT]):
        slot = call(g[LONG_FROM], pending[q])
        if slot == 0:
            invoke(g[ERROR_CLEAR])
            return 0
        words = call(g[DICT_GET], s[DESCRIBED], slot)
        invoke(g[DECREF], slot)
        if words == 0:
            return 0
        if i64(words + TYPE_AT)[0] == g[BYTES_TYPE]:
            descriptors[pending[q]] = words + BYTES_AT
        elif words == g[FALSE]:
            descriptors[pending[q]] = -1
            s[RULES] += 1
        else:
            descriptors[pending[q]] = i64(words + DATA_AT)[0]
    return 1


def start_open(state: int) -> int:
    """Begin the sweep of an open tape that `plan_open` has planned.

    Results go to RESULT_ARRAYS (addresses of ndarray objects), or for numbers to RESULTS.
    """
    s = i64(state)
    root = i64(s[SEEDS])[0]
    flags, cotangents, metas = u8(s[FLAGS]), i64(s[COTANGENTS]), i64(s[META])
    sinks, arrays = i64(s[SINKS]), i64(s[RESULT_ARRAYS])
    for q in range(s[SINK_COUNT]):
        k = sinks[q]
        flags[k] = flags[k] | FRESH
        cotangents[k] = s[RESULTS] + 16 * q
        if arrays[q] != 0:
            cotangents[k] = i64(arrays[q] + DATA_AT)[0]
    cotangents[root] = s[SEED]
    if s[SEED] == 0:
        one = s[RESULTS] + 16 * QUICK_INPUTS
        cotangents[root] = one
        if metas[root] & 1:
            f64(one)[0] = 1.0
        else:
            f32(one)[0] = 1.0
    flags[root] = flags[root] | FOREIGN
    return 0


def run_open(state: int) -> int:
    """Run the sweep of an open tape that `plan_open` has planned; PYTHON where not all sinks were reached."""
    s = i64(state)
    start_open(state)
    status = run(state)
    for q in range(s[SINK_COUNT]):
        if u8(s[FLAGS])[i64(s[SINKS])[q]] & FRESH and status == DONE:
            status = PYTHON
    return status


def spend(state: int) -> int:
    """Mark in FREED the records of the plan whose rules read values; how many they are."""
    s = i64(state)
    flags, word, operations, freed = u8(s[FLAGS]), i64(s[WORD]), i64(s[OPERATIONS]), u8(s[FREED])
    count = 0
    for k in range(s[RECORDS]):
        row = ROW * (word[k] & 0xFFFF) + READS
        if flags[k] & ACTIVE:
            if operations[row] | operations[row + 1] | operations[row + 2]:
                freed[k] = 1
                count += 1
    return count


def run(state: int) -> int:
    """Walk back from POSITION, running each marked record's rule; says what stopped it there."""
    s = i64(state)
    word, operations, metas = i64(s[WORD]), i64(s[OPERATIONS]), i64(s[META])
    flags, cotangents = u8(s[FLAGS]), i64(s[COTANGENTS])
    k, check, stamps = s[POSITION], s[CHECK], s[STAMPS]
    while k >= 0:
        w = word[k]
        row = ROW * (w & 0xFFFF)
        form, template = operations[row + FORM], operations[row + TEMPLATE]
        if flags[k] & (NEED | MARK | FRESH) != NEED | MARK or cotangents[k] == 0 or template == IMPORT:
            s[FINISH] = 0
            k -= 1
            continue
        s[POSITION] = k
        if s[FINISH] == 0:
            if flags[k] & RULE or i64(s[DESCRIPTORS])[k] == -1:
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
                            s[SPOILED] = slot
                            return ANOMALY
                slot += 1
                at = following(s[WORD], at, form)
        s[FINISH] = 0
        if stamps != 0:
            invoke(s[CLOCK], s[CLOCK_KIND], stamps + 16 * k)
        block = cotangents[k]
        if block != 0 and flags[k] & (SINK | FOREIGN) == 0:
            release(state, block)
            cotangents[k] = 0
        s[TOUCHED] += 8 * count_of(s[SHAPES], metas[k])
        k -= 1
        if s[TOUCHED] > s[PAUSE]:
            s[TOUCHED] = 0
            s[POSITION] = k
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
    m = i64(s[META])[k]
    add(m & 0xFF, out + (i64(s[WORD])[k] >> 32) * ((m >> 9) & 0x7F), i64(s[COTANGENTS])[k], 1, 0)
    return DONE


def spoiled(state: int, template: int, k: int, j: int, slot: int) -> int:
    """Whether nan is in what record k has just given record j, its operand `slot`; k's cotangent is kept.

    Looked at is what the step has touched: where a few elements move, those, and not all they move to.
    """
    s = i64(state)
    metas, seen = i64(s[META]), j
    n = count_of(s[SHAPES], metas[j])
    if template == VIEW or template == ELEMENT or template == SCATTER:
        own = count_of(s[SHAPES], metas[k])
        if own < n:
            seen, n = k, own
    if (template == ASSIGN or template == PUT) and slot != 0:
        return 0  # the cotangent moves on as it was, with zeros in it
    return missing(metas[seen] & 0xFF, i64(s[COTANGENTS])[seen], n)


def contribute(state: int, j: int, source: int) -> int:
    """Add a dense cotangent that somebody else keeps while the sweep runs to record j's."""
    s = i64(state)
    cotangents, flags = i64(s[COTANGENTS]), u8(s[FLAGS])
    if cotangents[j] == 0:
        cotangents[j] = source
        flags[j] = flags[j] | FOREIGN
        return DONE
    return deposit(state, j, source)


def take(state: int, rows: int, count: int) -> int:
    """Add cotangents of a newer tape, given as rows of record, address, whether somebody else keeps it.

    POSITION says at which row it stopped; PYTHON: at one of extended precision to be added to another.
    """
    s = i64(state)
    cotangents, flags, metas, row = i64(s[COTANGENTS]), u8(s[FLAGS]), i64(s[META]), i64(rows)
    for q in range(count):
        s[POSITION] = q
        j, source, foreign = row[3 * q], row[3 * q + 1], row[3 * q + 2]
        if cotangents[j] == 0:
            cotangents[j] = source
            if foreign:
                flags[j] = flags[j] | FOREIGN
        else:
            if metas[j] & 0xFF > SWEPT:
                return PYTHON
            if deposit(state, j, source) != DONE:
                return MEMORY
            if foreign == 0:
                release(state, source)
    s[POSITION] = count
    return DONE


def deposit(state: int, j: int, source: int) -> int:
    """Add a dense cotangent to record j's; nothing refers to it afterwards."""
    s = i64(state)
    m = i64(s[META])[j]
    out = target(state, j, 0)
    if out == 0:
        return MEMORY
    add(m & 0xFF, out, source, count_of(s[SHAPES], m), s[STORE])
    return DONE
