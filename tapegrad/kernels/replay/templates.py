"""Compiled: what a sweep does at a record, one function per template."""

from tapegrad.kernels.dialect import call, copy, f32, f64, i64, invoke, u8, within, zero
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.memory import allocate, release
from tapegrad.kernels.replay.reading import column
from tapegrad.kernels.replay.records import count_of, operand, same_shape, target
from tapegrad.kernels.replay.stream import (
    add,
    add_scaled,
    extents,
    launch,
    lay,
    lay_reduced,
    prepare,
    stream,
)


def elementwise(state: int, k: int, j: int, slot: int, final: int) -> int:
    """An elementwise op by one operand; also a reshape, a cast, a broadcast."""
    s = i64(state)
    word, metas, addresses, walk = i64(s.word), i64(s.meta), i64(s.address), i64(s.walk)
    operations, cotangents, flags = i64(s.operations), i64(s.cotangents), u8(s.flags)
    m, to, row = metas[k], metas[j], ROW * (word[k] & 0xFFFF)
    own, kernel, factor = m & 0xFF, 0, 1.0
    compute = own
    flat = operations[row + TEMPLATE] == RESHAPE
    partial, reads = operations[row + PARTIAL + slot], operations[row + READS + slot]
    if partial >= 0:
        which = own
        if (m ^ to) & 0xFF:
            which = column(m, to)
            if which > OF_COMPLEX:
                compute += PAIRS
        kernel = i64(s.kernels)[COLUMNS * partial + which]
    elif flat == 0:
        factor = f64(s.operations)[row + SCALE + slot]
    whole = flat or same_shape(s.shapes, m, to)
    plain = whole and own == compute and compute == to & 0xFF
    if plain and kernel == 0 and factor == 1.0 and final and cotangents[j] == 0 and flags[k] & SINK == 0:
        cotangents[j] = cotangents[k]
        flags[j] = flags[j] | flags[k] & FOREIGN
        cotangents[k] = 0
        return DONE
    out = target(state, j, whole == 0)
    if out == 0:
        return MEMORY
    f64(s.walk + 8 * (HEAD + FACTOR))[0] = factor
    n, store, count = count_of(s.shapes, m), s.store, 2
    if plain and kernel != 0:
        for bit in range(4):
            if (reads >> bit) & 1:
                source = operand(s.word, k, bit)
                if metas[source] & 0x1FF != compute | 0x100:
                    plain = 0
                elif same_shape(s.shapes, m, metas[source]) == 0:
                    plain = 0
                walk[ARGUMENT + count] = addresses[source]
                count += 1
    size = (m >> 9) & 0x7F
    if plain and kernel == 0:
        add_scaled(s.walk, compute, out, cotangents[k], n, store)
        return DONE
    if plain and (store or n <= BLOCK):
        walk[ARGUMENT], walk[ARGUMENT + 1] = out, cotangents[k]
        if store == 0:
            walk[ARGUMENT] = s.scratch
        if launch(state, kernel, count, size, n) != 1:
            return FAILED
        if store == 0:
            add(compute, out, s.scratch, n, 0)
        return DONE
    prepare(state, lay_operands(state, k, j, out, reads, flat), compute, kernel)
    if stream(state, store) != 1:
        return FAILED
    return DONE


def lay_operands(state: int, k: int, j: int, out: int, reads: int, flat: int) -> int:
    """Lay out a walk over record j's cotangent, record k's and the values read; how many operands it has."""
    s, count = i64(state), 2
    metas, addresses, walk = i64(s.meta), i64(s.address), i64(s.walk)
    m, to, ct = metas[k], metas[j], i64(s.cotangents)[k]
    if flat:
        walk[0], walk[HEAD + NDIM] = count_of(s.shapes, m), 1
        walk[STRIDE], walk[STRIDE + MAXDIM] = (to >> 9) & 0x7F, (m >> 9) & 0x7F
        walk[HEAD + POINTER], walk[HEAD + CODE] = out, to & 0xFF
        walk[HEAD + POINTER + 1], walk[HEAD + CODE + 1] = ct, m & 0xFF
        return count
    extents(state, m)
    lay(state, 0, out, to, 0)
    lay(state, 1, ct, m, 0)
    for bit in range(4):
        if (reads >> bit) & 1:
            source = operand(s.word, k, bit)
            lay(state, count, addresses[source], metas[source], 1)
            count += 1
    return count


def reduction(state: int, k: int, j: int) -> int:
    """Input j is walked whole; the result and its cotangent are broadcast over the reduced axes."""
    s = i64(state)
    operations, metas, kernels = i64(s.operations), i64(s.meta), i64(s.kernels)
    w, m = i64(s.word)[k], metas[j]
    row, mask, code, size = ROW * (w & 0xFFFF), w >> 32, metas[k] & 0xFF, (metas[k] >> 9) & 0x7F
    value, result = i64(s.address)[j], i64(s.address)[k]
    partial, reads, kernel, total, factor = operations[row + PARTIAL], operations[row + READS], 0, 0, 1.0
    if partial == CONSTANT:
        factor = f64(s.operations)[row + SCALE]
    elif partial == MEAN:
        factor = float(count_of(s.shapes, metas[k])) / float(count_of(s.shapes, m))
    else:
        kernel = kernels[COLUMNS * partial + code]
        if operations[row + TOTAL] >= 0:
            bytes_ = size * count_of(s.shapes, metas[k])
            total = allocate(state, bytes_)
            if total == 0:
                return MEMORY
            zero(total, bytes_)
            f64(s.walk + 8 * (HEAD + FACTOR))[0] = 1.0
            extents(state, m)
            lay_reduced(state, 0, total, metas[k], mask, 0)
            lay(state, 1, value, m, 1)
            lay_reduced(state, 2, result, metas[k], mask, 1)
            prepare(state, 3, code, kernels[COLUMNS * operations[row + TOTAL] + code])
            if stream(state, 0) != 1:
                return FAILED
    out = target(state, j, 0)
    if out == 0:
        return MEMORY
    f64(s.walk + 8 * (HEAD + FACTOR))[0] = factor
    extents(state, m)
    lay(state, 0, out, m, 0)
    lay_reduced(state, 1, i64(s.cotangents)[k], metas[k], mask, 0)
    count = 2
    if kernel != 0:
        if reads & 1:
            lay(state, count, value, m, 1)
            count += 1
        if reads & 8:
            lay_reduced(state, count, result, metas[k], mask, 1)
            count += 1
        if total != 0:
            lay_reduced(state, count, total, metas[k], mask, 0)
            count += 1
    prepare(state, count, code, kernel)
    ok = stream(state, s.store)
    if total != 0:
        release(state, total)
    if ok != 1:
        return FAILED
    return DONE


def view(state: int, k: int, j: int, slot: int) -> int:
    """A described window of input j's cotangent takes a described window of k's."""
    s = i64(state)
    metas, walk = i64(s.meta), i64(s.walk)
    described = i64(s.descriptors)[k]
    window = i64(described + 8 * i64(described)[slot])
    ndim = window[WINDOW_AXES]
    out = target(state, j, window[WINDOW_COVERS] == 0)
    if out == 0:
        return MEMORY
    size, step = (metas[j] >> 9) & 0x7F, (metas[k] >> 9) & 0x7F
    f64(s.walk + 8 * (HEAD + FACTOR))[0] = 1.0
    walk[HEAD + NDIM] = ndim
    walk[HEAD + CODE], walk[HEAD + CODE + 1] = metas[j] & 0xFF, metas[k] & 0xFF
    walk[HEAD + POINTER] = out + window[WINDOW_THERE] * size
    walk[HEAD + POINTER + 1] = i64(s.cotangents)[k] + window[WINDOW_HERE] * step
    for axis in range(ndim):
        walk[axis] = window[WINDOW_EXTENTS + axis]
        walk[STRIDE + axis] = window[WINDOW_EXTENTS + ndim + axis] * size
        walk[STRIDE + MAXDIM + axis] = window[WINDOW_EXTENTS + 2 * ndim + axis] * step
    prepare(state, 2, metas[k] & 0xFF, 0)
    if stream(state, s.store) != 1:
        return FAILED
    return DONE


def clear(state: int, cotangent: int, m: int, d: int) -> int:
    """Zeros into the window of a dense cotangent that a descriptor tells of."""
    s, window = i64(state), i64(d)
    walk, ndim, size = i64(s.walk), window[WINDOW_AXES], (m >> 9) & 0x7F
    f64(s.walk + 8 * (HEAD + FACTOR))[0] = 1.0
    walk[HEAD + NDIM] = ndim
    walk[HEAD + CODE], walk[HEAD + CODE + 1] = m & 0xFF, m & 0xFF
    walk[HEAD + POINTER] = cotangent + window[WINDOW_THERE] * size
    walk[HEAD + POINTER + 1] = state + 8 * NOTHING_AT
    for axis in range(ndim):
        walk[axis] = window[WINDOW_EXTENTS + axis]
        walk[STRIDE + axis] = window[WINDOW_EXTENTS + ndim + axis] * size
        walk[STRIDE + MAXDIM + axis] = 0
    prepare(state, 2, m & 0xFF, 0)
    return stream(state, 1)


def assign(state: int, k: int, j: int, slot: int) -> int:
    """Of what was written: its window of k's cotangent. Of what was written to: k's, cleared there.

    The latter moves on where nothing else wants it, so that a row of writes costs what it writes.
    """
    if slot == 0:
        return view(state, k, j, 0)
    described = i64(i64(state).descriptors)[k]
    return pass_on(state, k, j, described + 8 * i64(described)[slot])


def pass_on(state: int, k: int, j: int, d: int) -> int:
    """Record k's cotangent for what was written to: cleared where it was, as d tells."""
    s = i64(state)
    cotangents, flags, metas = i64(s.cotangents), u8(s.flags), i64(s.meta)
    m, ct, operations = metas[k], cotangents[k], i64(s.operations)
    own = flags[k] & (SINK | FOREIGN) == 0
    if own == 0:
        bytes_ = ((m >> 9) & 0x7F) * count_of(s.shapes, m)
        ct = allocate(state, bytes_)
        if ct == 0:
            return MEMORY
        copy(ct, cotangents[k], bytes_)
    if operations[ROW * (i64(s.word)[k] & 0xFFFF) + TEMPLATE] == PUT:
        clear_places(ct, m, d)
    elif clear(state, ct, m, d) != 1:
        return FAILED
    if cotangents[j] == 0:
        cotangents[j] = ct
        if own:
            cotangents[k] = 0
        return DONE
    out = target(state, j, 0)
    if out == 0:
        return MEMORY
    add(m & 0xFF, out, ct, count_of(s.shapes, m), s.store)
    if own == 0:
        release(state, ct)
    return DONE


def scatter(state: int, k: int, j: int) -> int:
    """Elements of input j's cotangent, counted in C order, add those of k's; a number below 0 is of none."""
    s = i64(state)
    out = target(state, j, 1)
    if out == 0:
        return MEMORY
    ct, described, code = i64(s.cotangents)[k], i64(s.descriptors)[k], i64(s.meta)[k] & 0xFF
    places, step = i64(described + 8 * PLACES), 1 + (code >= COMPLEX)
    n = i64(described)[PLACE_COUNT]
    for part in range(step):
        if code & 1:
            a, b = f64(out), f64(ct)
            for i in range(n):
                at = step * places[i] + part
                if at >= 0:
                    a[at] = a[at] + b[step * i + part]
        else:
            c, d = f32(out), f32(ct)
            for i in range(n):
                at = step * places[i] + part
                if at >= 0:
                    c[at] = c[at] + d[step * i + part]
    return DONE


def clear_places(cotangent: int, m: int, d: int) -> int:
    """Zeros at places of a dense cotangent, counted in C order; those below 0 are none."""
    places, size = i64(d + 8 * PLACES), (m >> 9) & 0x7F
    for i in range(i64(d)[PLACE_COUNT]):
        if places[i] >= 0:
            zero(cotangent + places[i] * size, size)
    return 0


def put(state: int, k: int, j: int, slot: int) -> int:
    """As `assign` with places, counted in C order, instead of a window; what a place below 0 got is lost."""
    s = i64(state)
    described, m = i64(s.descriptors)[k], i64(s.meta)[k]
    if slot == 1:
        return pass_on(state, k, j, described)
    if (i64(s.meta)[j] ^ m) & 0xFF:
        return PYTHON
    out = target(state, j, 1)
    if out == 0:
        return MEMORY
    places, size, ct = i64(described + 8 * PLACES), (m >> 9) & 0x7F, i64(s.cotangents)[k]
    for i in range(i64(described)[PLACE_COUNT]):
        if places[i] >= 0:
            add(m & 0xFF, out + i * size, ct + places[i] * size, 1, 0)
    return DONE


def sum_back(code: int, at: int, n: int) -> int:
    """Running sums of n dense values, from the last one on."""
    step = 1 + (code >= COMPLEX)
    if code & 1:
        a = f64(at)
        for i in range(step * (n - 1) - 1, -1, -1):
            a[i] = a[i] + a[i + step]
    else:
        b = f32(at)
        for i in range(step * (n - 1) - 1, -1, -1):
            b[i] = b[i] + b[i + step]
    return 0


def scan(state: int, k: int, j: int) -> int:
    """A running sum's transpose: the running sum from the far end."""
    s = i64(state)
    m, to, shapes = i64(s.meta)[k], i64(s.meta)[j], i64(s.shapes)
    axis = i64(s.word)[k] >> 32
    ndim, place, size = (m >> 16) & 0xFF, m >> 32, (m >> 9) & 0x7F
    n, length, inside = count_of(s.shapes, m), shapes[place + axis], 1
    for d in range(axis + 1, ndim):
        inside *= shapes[place + d]
    out = target(state, j, 0)
    sums = allocate(state, n * size)
    if out == 0 or sums == 0:
        return MEMORY
    store = s.store
    copy(sums, i64(s.cotangents)[k], n * size)
    if n != 0 and inside == 1:
        for outer in range(n // length):
            sum_back(m & 0xFF, sums + outer * length * size, length)
    elif n != 0:
        for outer in range(n // (length * inside)):
            for a in range(length - 2, -1, -1):
                at = sums + (outer * length + a) * inside * size
                add(m & 0xFF, at, at + inside * size, inside, 0)
    f64(s.walk + 8 * (HEAD + FACTOR))[0] = 1.0
    extents(state, m)
    lay(state, 0, out, to, 0)
    lay(state, 1, sums, m, 0)
    prepare(state, 2, m & 0xFF, 0)
    ok = stream(state, store)
    release(state, sums)
    if ok != 1:
        return FAILED
    return DONE


def leading(row: int, column: int, rows: int, columns: int, size: int, args: int) -> int:
    """Write a matrix's BLAS form, reading the other way round: letter and leading dimension."""
    if column == size or columns == 1:
        u8(args)[0] = 78  # N
        return max(row // size, max(columns, 1))
    u8(args)[0] = 84  # T
    return max(column // size, max(rows, 1))


def conjugated(state: int, code: int, source: int, row: int, column: int, rows: int, columns: int) -> int:
    """A dense copy of a complex matrix, conjugated; 0 when memory is out."""
    out = allocate(state, rows * columns << (WIDTHS >> 3 * code & 7))
    if out == 0:
        return 0
    for i in range(rows):
        for j in range(columns):
            at, place = source + i * row + j * column, 2 * (i * columns + j)
            if code & 1:
                f64(out)[place], f64(out)[place + 1] = f64(at)[0], -f64(at)[1]
            else:
                f32(out)[place], f32(out)[place + 1] = f32(at)[0], -f32(at)[1]
    return out


def gemm(state: int, code: int, rows: int, columns: int, depth: int, a: int, a_row: int, a_column: int,
         b: int, b_row: int, b_column: int, out: int, kept: int) -> int:  # fmt: skip
    """out = a @ b for a dense out, or out += a @ b if that is `kept`.

    BLAS computes the transpose in its column order. It reads integers of 64 bits, or their first 32.
    """
    s = i64(state)
    args = s.scratch
    ints, size, function = i64(args), 1 << (WIDTHS >> 3 * code & 7), i64(s.gemm)[code]
    if depth == 1 and code < COMPLEX:
        if rows == 1 and (b_column == size or columns == 1):
            return multiple(s.walk, code, a, b, columns, out, kept)
        if columns == 1 and a_row == size:
            return multiple(s.walk, code, b, a, rows, out, kept)
        if columns >= SHORT_AXIS and b_column == size:
            for row in range(rows):
                multiple(s.walk, code, a + row * a_row, b, columns, out + row * columns * size, kept)
            return 0
    if columns == 1 and i64(s.gemm)[GEMV + code] != 0:
        return gemv(state, code, rows, depth, a, a_row, a_column, b, b_row, out, kept)
    if rows == 1 and i64(s.gemm)[GEMV + code] != 0:
        return gemv(state, code, columns, depth, b, b_column, b_row, a, a_column, out, kept)
    ints[0], ints[1], ints[2], ints[3] = columns, rows, depth, columns
    ints[4] = leading(b_row, b_column, depth, columns, size, args + 48)
    ints[5] = leading(a_row, a_column, rows, depth, size, args + 49)
    one, factor = args + 56, args + 72
    within(a, (rows - 1) * a_row + (depth - 1) * a_column + size)
    within(b, (depth - 1) * b_row + (columns - 1) * b_column + size)
    within(out, rows * columns * size)
    if code & 1:
        f64(one)[0], f64(one)[1], f64(factor)[0], f64(factor)[1] = 1.0, 0.0, 0.0, 0.0
    else:
        f32(one)[0], f32(one)[1], f32(factor)[0], f32(factor)[1] = 1.0, 0.0, 0.0, 0.0
    if kept:
        factor = one
    along, copied, done = long_extent(state, code, rows, columns, depth), 0, 0
    whole = ints[along]
    part, b_step, a_step, out_step = whole, b_row, a_column, 0
    if along == 1:
        b_step, a_step, out_step = 0, a_row, columns * size
        if b_column != size and columns > 1:
            copied = by_rows(state, code, b, b_row, b_column, depth, columns)
        if copied != 0:
            b, u8(args)[48], ints[4] = copied, 78, columns
    if along != 0:
        part = max(AT_ONCE * whole // (rows * columns * depth), 1)
    while done < whole:
        ints[along] = min(part, whole - done)
        invoke(function, args + 48, args + 49, args, args + 8, args + 16, one, b + done * b_step, args + 32,
               a + done * a_step, args + 40, factor, out + done * out_step, args + 24)  # fmt: skip
        done += part
        if along != 1:
            factor = one
    if copied != 0:
        release(state, copied)
    return 0


def long_extent(state: int, code: int, rows: int, columns: int, depth: int) -> int:
    """Along what `gemm` computes a product of real matrices in parts: 1, rows; 2, the sum; 0, the whole.

    Not where OpenBLAS has threads for it, nor where it has no quick way for the layout of parts.
    """
    s = i64(state)
    threads, letters = i64(s.gemm)[THREADS], s.scratch + 48
    if code >= COMPLEX or rows * columns * depth <= AT_ONCE or threads == 0:
        return 0
    if call(threads) & 0xFFFFFFFF != 1:
        return 0
    if columns * depth <= NARROW and u8(letters)[1] == 78:
        return 1
    return 2 * (rows * columns <= NARROW and (u8(letters)[0] == 78 or u8(letters)[1] == 84))


def by_rows(state: int, code: int, source: int, row: int, column: int, rows: int, columns: int) -> int:
    """A dense copy of a real matrix; 0 when memory is out."""
    out = allocate(state, rows * columns << (WIDTHS >> 3 * code & 7))
    if out == 0:
        return 0
    for i in range(rows):
        for j in range(columns):
            if code & 1:
                f64(out)[i * columns + j] = f64(source + i * row + j * column)[0]
            else:
                f32(out)[i * columns + j] = f32(source + i * row + j * column)[0]
    return out


def gemv(state: int, code: int, rows: int, depth: int, a: int, a_row: int, a_column: int,
         x: int, x_step: int, out: int, kept: int) -> int:  # fmt: skip
    """As `gemm`, of a matrix and a vector, where BLAS copies no matrix.

    Where nothing is kept zeros are added to: what lies there, if no number, may stay when multiplied by 0.
    """
    s = i64(state)
    args = s.scratch
    ints, size, function = i64(args), 1 << (WIDTHS >> 3 * code & 7), i64(s.gemm)[GEMV + code]
    ints[0], ints[1], ints[3], ints[4] = depth, rows, max(x_step // size, 1), 1
    ints[2] = leading(a_row, a_column, rows, depth, size, args + 48)
    u8(args)[48] = 84 + 78 - u8(args)[48]  # T where it is N, as the transpose is to be multiplied
    if u8(args)[48] == 78:
        ints[0], ints[1] = rows, depth
    within(a, (rows - 1) * a_row + (depth - 1) * a_column + size)
    within(x, (depth - 1) * x_step + size)
    within(out, rows * size)
    if kept == 0:
        zero(out, rows * size)
    if code & 1:
        f64(args + 56)[0], f64(args + 56)[1] = 1.0, 0.0
    else:
        f32(args + 56)[0], f32(args + 56)[1] = 1.0, 0.0
    invoke(function, args + 48, args, args + 8, args + 56, a, args + 16, x, args + 24, args + 56,
           out, args + 32)  # fmt: skip
    return 0


def multiple(walk: int, code: int, number: int, vector: int, n: int, out: int, kept: int) -> int:
    """out = a number times a dense vector, or out += that if it is `kept`: quicker than BLAS is."""
    store = 1
    if kept:
        store = 0
    factor = f64(walk + 8 * (HEAD + FACTOR))
    if code & 1:
        factor[0] = f64(number)[0]
    else:
        factor[0] = f32(number)[0]
    return add_scaled(walk, code, out, vector, n, store)


def matrices(state: int, i: int, vector: int, batch: int, to: int) -> int:
    """Describe factor i of a product to `matmul`: whether BLAS can read its matrices.

    `vector` is the axis of length one that a vector gets. Written are from `to` on its rows and columns with
    their strides, then the strides over the batch of its values, then those of its dense cotangent, in bytes.
    """
    s, matrix = i64(state), i64(to)
    m, shapes = i64(s.meta)[i], i64(s.shapes)
    ndim, at, size = (m >> 16) & 0xFF, m >> 32, (m >> 9) & 0x7F
    dense = size
    matrix[MATRIX_ROWS], matrix[MATRIX_COLUMNS] = 1, 1
    matrix[MATRIX_ROW_STRIDE], matrix[MATRIX_COLUMN_STRIDE] = size, size
    for q in range(batch):
        matrix[MATRIX_BATCH + q], matrix[MATRIX_BATCH + batch + q] = 0, 0
    for q in range(ndim - 1, -1, -1):
        extent, stride = shapes[at + q], dense
        if (m >> 8) & 1 == 0:
            stride = shapes[at + ndim + q]
        place = q - ndim + 2  # 1: columns, 0: rows, below: the batch
        if ndim == 1:
            place = 1 - vector
        if place >= 0:
            matrix[MATRIX_ROWS + place], matrix[MATRIX_ROW_STRIDE + place] = extent, stride
        elif extent != 1:
            matrix[MATRIX_BATCH + batch + place], matrix[MATRIX_BATCH + 2 * batch + place] = stride, dense
        dense *= extent
    for place in range(2):
        if matrix[MATRIX_ROWS + place] > 1:
            if matrix[MATRIX_ROW_STRIDE + place] <= 0:
                return 0
            if matrix[MATRIX_ROW_STRIDE + place] % size != 0:
                return 0
    rows, columns = matrix[MATRIX_ROWS], matrix[MATRIX_COLUMNS]
    row, column = matrix[MATRIX_ROW_STRIDE], matrix[MATRIX_COLUMN_STRIDE]
    by_rows = (column == size or columns == 1) and row >= columns * size
    by_columns = (row == size or rows == 1) and column >= rows * size
    return by_rows or by_columns


def factors(state: int, k: int) -> int:
    """Describe both factors of a product to `matmul`; 0 where BLAS cannot read them, or would use threads."""
    s = i64(state)
    words, metas, flags = s.scratch + 8 * GEMM_WORDS, i64(s.meta), u8(s.flags)
    first, second = operand(s.word, k, 0), operand(s.word, k, 1)
    if (metas[first] ^ metas[k]) & 0xFF or (metas[second] ^ metas[k]) & 0xFF:
        return 0
    batch = max((metas[first] >> 16) & 0xFF, (metas[second] >> 16) & 0xFF) - 2
    if matrices(state, first, 0, max(batch, 0), words) == 0 and flags[second] & NEED:
        return 0
    if matrices(state, second, 1, max(batch, 0), words + 8 * MATRIX_WORDS) == 0 and flags[first] & NEED:
        return 0
    left, right = i64(words), i64(words + 8 * MATRIX_WORDS)
    count = left[MATRIX_ROWS] * left[MATRIX_COLUMNS] * right[MATRIX_COLUMNS]
    return (i64(s.gemm)[0] != 0) | (count <= THREADED)


def turned(state: int, j: int) -> int:
    """Of what record j is the transpose, each of its matrices turned, where nothing else wants its cotangent.

    The number of that record + 1; 0 if j is none, or a profile or anomaly mode looks at each record.
    """
    s, w = i64(state), i64(i64(state).word)[j]
    row, m, words = ROW * (w & 0xFFFF), i64(s.meta)[j], i64(s.descriptors)[j]
    if i64(s.operations)[row + TEMPLATE] != VIEW or i64(s.operations)[row + FORM] != ONE:
        return 0
    if u8(s.flags)[j] & (SINK | RULE) or s.check != 0 or s.stamps != 0 or words == 0 or words == -1:
        return 0
    of, ndim, window = (w >> 16) & 0xFFFF, (m >> 16) & 0xFF, i64(words + 8 * i64(words)[0])
    if (i64(s.meta)[of - 1] ^ m) & 0xFF or u8(s.flags)[of - 1] & NEED == 0:
        return 0
    if ndim < 2 or window[WINDOW_AXES] != ndim or window[WINDOW_COVERS] == 0:
        return 0
    if window[WINDOW_THERE] != 0 or window[WINDOW_HERE] != 0:
        return 0
    there, here, row, column = WINDOW_EXTENTS + ndim, WINDOW_EXTENTS + 2 * ndim, ndim - 2, ndim - 1
    for axis in range(row):
        if window[there + axis] != window[here + axis]:
            return 0
    if window[there + row] != 1 or window[there + column] != window[WINDOW_EXTENTS + row]:
        return 0
    return of


def product(state: int, code: int, rows: int, columns: int, depth: int, a: int, a_row: int, a_column: int,
            b: int, b_row: int, b_column: int, out: int, kept: int, turn: int) -> int:  # fmt: skip
    """As `gemm`, or what it gives as its transpose."""
    if turn:
        return gemm(state, code, columns, rows, depth, b, b_column, b_row, a, a_column, a_row, out, kept)
    return gemm(state, code, rows, columns, depth, a, a_row, a_column, b, b_row, b_column, out, kept)


def matmul(state: int, k: int, j: int, slot: int) -> int:
    """One factor of a (batched) matrix product; if that is a transpose, what it is one of."""
    s = i64(state)
    words = s.scratch + 8 * GEMM_WORDS
    first, second = operand(s.word, k, 0), operand(s.word, k, 1)
    metas, shapes, walk = i64(s.meta), i64(s.shapes), i64(s.walk)
    m, code, size = metas[k], metas[k] & 0xFF, (metas[k] >> 9) & 0x7F
    batch = max(max((metas[first] >> 16) & 0xFF, (metas[second] >> 16) & 0xFF) - 2, 0)
    left, right = i64(words), i64(words + 8 * MATRIX_WORDS)
    if factors(state, k) == 0:
        return PYTHON
    rows, depth, columns = left[MATRIX_ROWS], left[MATRIX_COLUMNS], right[MATRIX_COLUMNS]
    total, repeated, own, others = 1, 0, left, right
    other, of, to = i64(s.address)[second], columns, depth
    if slot:
        own, others = right, left
        other, of, to = i64(s.address)[first], depth, rows
    row, step = others[MATRIX_COLUMN_STRIDE], others[MATRIX_ROW_STRIDE]
    for axis in range(batch):
        total *= shapes[(m >> 32) + axis]
        repeated = repeated | (own[MATRIX_BATCH + batch + axis] == 0 and shapes[(m >> 32) + axis] != 1)
        walk[COUNTER + axis] = 0
    empty = rows == 0 or depth == 0 or columns == 0 or total == 0
    turn = turned(state, j)
    if turn:
        j = turn - 1
    out = target(state, j, repeated | empty)
    if out == 0:
        return MEMORY
    if empty:
        return DONE
    kept, ct = repeated | (s.store == 0), i64(s.cotangents)[k]
    for _ in range(total):
        at, along, across = other, row, step
        if code >= COMPLEX:
            at, along, across = conjugated(state, code, other, row, step, of, to), to * size, size
            if at == 0:
                return MEMORY
        if slot == 0:
            product(state, code, rows, depth, columns, ct, columns * size, size, at, along, across,
                    out, kept, turn)  # fmt: skip
        else:
            product(state, code, depth, columns, rows, at, along, across, ct, columns * size, size,
                    out, kept, turn)  # fmt: skip
        if code >= COMPLEX:
            release(state, at)
        ct += rows * columns * size
        axis = batch - 1
        while axis >= 0:
            walk[COUNTER + axis] = walk[COUNTER + axis] + 1
            extent, ahead = shapes[(m >> 32) + axis], 1
            if walk[COUNTER + axis] == extent:
                ahead = 1 - extent
            other += others[MATRIX_BATCH + axis] * ahead
            out += own[MATRIX_BATCH + batch + axis] * ahead
            if ahead == 1:
                break
            walk[COUNTER + axis] = 0
            axis -= 1
    return DONE
