"""Compiled: run a kernel over an index space, whatever the layout of its operands."""

from tapegrad.kernels.dialect import call, f32, f64, i64, within, zero
from tapegrad.kernels.replay.layout import *


def add(code: int, out: int, source: int, n: int, store: int) -> int:
    """out (+)= source, dense, both of a dtype that is swept."""
    if code >= COMPLEX:
        n = 2 * n
    if code & 1:
        a, b = f64(out), f64(source)
        if store:
            for i in range(n):
                a[i] = b[i]
        else:
            for i in range(n):
                a[i] = a[i] + b[i]
    else:
        c, d = f32(out), f32(source)
        if store:
            for i in range(n):
                c[i] = d[i]
        else:
            for i in range(n):
                c[i] = c[i] + d[i]
    return 0


def missing(code: int, block: int, n: int) -> int:
    """Whether one of n dense values is no number."""
    found = 0
    if code >= COMPLEX:
        n = 2 * n
    if code & 1:
        a = f64(block)
        for i in range(n):
            found = found | (a[i] != a[i])
    else:
        b = f32(block)
        for i in range(n):
            found = found | (b[i] != b[i])
    return found


def add_scaled(walk: int, code: int, out: int, source: int, n: int, store: int) -> int:
    """out (+)= FACTOR * source, dense, both of a dtype that is swept."""
    factor = f64(walk + 8 * (HEAD + FACTOR))[0]
    if factor == 1.0:
        return add(code, out, source, n, store)
    if code >= COMPLEX:
        n = 2 * n
    if code & 1:
        a, b = f64(out), f64(source)
        if store:
            for i in range(n):
                a[i] = b[i] * factor
        else:
            for i in range(n):
                a[i] = a[i] + b[i] * factor
    else:
        c, d = f32(out), f32(source)
        if store:
            for i in range(n):
                c[i] = d[i] * factor
        else:
            for i in range(n):
                c[i] = c[i] + d[i] * factor
    return 0


def add_total(walk: int, code: int, out_code: int, out: int, source: int, n: int) -> int:
    """out[0] += FACTOR * the sum of a block, by eight partial sums in double precision.

    Of complex numbers the real parts are in every second sum, and the imaginary parts in the others.
    """
    t0, t1, t2, t3, t4, t5, t6, t7 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    pairs = code >= COMPLEX
    if pairs:
        n = 2 * n
    body = n & ~7
    if code & 1:
        a = f64(source)
        for i in range(0, body, 8):
            t0 += a[i]
            t1 += a[i + 1]
            t2 += a[i + 2]
            t3 += a[i + 3]
            t4 += a[i + 4]
            t5 += a[i + 5]
            t6 += a[i + 6]
            t7 += a[i + 7]
        for i in range(body, n):
            if pairs & i:
                t1 += a[i]
            else:
                t0 += a[i]
    else:
        b = f32(source)
        for i in range(0, body, 8):
            t0 += b[i]
            t1 += b[i + 1]
            t2 += b[i + 2]
            t3 += b[i + 3]
            t4 += b[i + 4]
            t5 += b[i + 5]
            t6 += b[i + 6]
            t7 += b[i + 7]
        for i in range(body, n):
            if pairs & i:
                t1 += b[i]
            else:
                t0 += b[i]
    factor = f64(walk + 8 * (HEAD + FACTOR))[0]
    total, imaginary = ((t0 + t1) + (t2 + t3)) + ((t4 + t5) + (t6 + t7)), 0.0
    if pairs:
        total, imaginary = (t0 + t4) + (t2 + t6), (t1 + t5) + (t3 + t7)
    if out_code & 1:
        f64(out)[0] = f64(out)[0] + total * factor
    else:
        f32(out)[0] = f32(out)[0] + total * factor
    if pairs and out_code >= COMPLEX:
        if out_code & 1:
            f64(out)[1] = f64(out)[1] + imaginary * factor
        else:
            f32(out)[1] = f32(out)[1] + imaginary * factor
    return 0


def add_row_totals(walk: int, out: int, down: int, source: int, rows: int, n: int) -> int:
    """out[i] += FACTOR * the sum of row i of n doubles, four rows at a time, for rows that are short."""
    a, factor, body = f64(source), f64(walk + 8 * (HEAD + FACTOR))[0], rows & ~3
    for row in range(0, body, 4):
        t0, t1, t2, t3 = 0.0, 0.0, 0.0, 0.0
        for i in range(row * n, row * n + n):
            t0 += a[i]
            t1 += a[i + n]
            t2 += a[i + 2 * n]
            t3 += a[i + 3 * n]
        place = out + row * down
        f64(place)[0] = f64(place)[0] + t0 * factor
        f64(place + down)[0] = f64(place + down)[0] + t1 * factor
        f64(place + 2 * down)[0] = f64(place + 2 * down)[0] + t2 * factor
        f64(place + 3 * down)[0] = f64(place + 3 * down)[0] + t3 * factor
    for row in range(body, rows):
        total, place = 0.0, out + row * down
        for i in range(row * n, row * n + n):
            total += a[i]
        f64(place)[0] = f64(place)[0] + total * factor
    return 0


def add_rows(code: int, sums: int, source: int, rows: int, n: int) -> int:
    """sums[i] += the sum of column i of rows of n elements, four rows at a time, all in double precision."""
    if code >= COMPLEX:
        n = 2 * n
    out, body = f64(sums), rows & ~3
    if code & 1:
        a = f64(source)
        for row in range(0, body, 4):
            for i in range(row * n, row * n + n):
                total = (a[i] + a[i + n]) + (a[i + 2 * n] + a[i + 3 * n])
                out[i - row * n] = out[i - row * n] + total
        for row in range(body, rows):
            for i in range(n):
                out[i] = out[i] + a[row * n + i]
    else:
        b = f32(source)
        for row in range(0, body, 4):
            for i in range(row * n, row * n + n):
                total = (b[i] + b[i + n]) + (b[i + 2 * n] + b[i + 3 * n])
                out[i - row * n] = out[i - row * n] + total
        for row in range(body, rows):
            for i in range(n):
                out[i] = out[i] + b[row * n + i]
    return 0


def spread(
    walk: int, code: int, out_code: int, out: int, stride: int, source: int, n: int, store: int
) -> int:
    """out[i] (+)= FACTOR * source[i] for any stride and any dtype on both sides; of complex numbers the
    real part where out is real.
    """
    factor = f64(walk + 8 * (HEAD + FACTOR))[0]
    step = 1 + (code >= COMPLEX)
    for part in range(1 + (out_code >= COMPLEX)):
        for i in range(n):
            value = 0.0
            if part < step:
                if code & 1:
                    value = f64(source)[step * i + part] * factor
                else:
                    value = f32(source)[step * i + part] * factor
            place = out + i * stride
            if out_code & 1:
                if store == 0:
                    value += f64(place)[part]
                f64(place)[part] = value
            else:
                if store == 0:
                    value += f32(place)[part]
                f32(place)[part] = value
    return 0


def add_tiles(walk_address: int, code: int, last: int, store: int) -> int:
    """out (+)= FACTOR * source along the last two axes, in squares that stay in the nearest cache.

    Row by row a cache would have few places for addresses that differ by a multiple of a power of two.
    """
    walk = i64(walk_address)
    rows, columns, factor = walk[last - 1], walk[last], f64(walk_address + 8 * (HEAD + FACTOR))[0]
    down, right = walk[STRIDE + last - 1], walk[STRIDE + last]
    source_down, source_right = walk[STRIDE + MAXDIM + last - 1], walk[STRIDE + MAXDIM + last]
    for top in range(0, rows, TILE):
        for left in range(0, columns, TILE):
            n = min(TILE, columns - left)
            for row in range(top, min(top + TILE, rows)):
                out = walk[HEAD + POINTER] + row * down + left * right
                source = walk[HEAD + POINTER + 1] + row * source_down + left * source_right
                if code & 1:
                    for i in range(n):
                        value = f64(source + i * source_right)[0] * factor
                        if store == 0:
                            value += f64(out + i * right)[0]
                        f64(out + i * right)[0] = value
                else:
                    for i in range(n):
                        single = f32(source + i * source_right)[0] * factor
                        if store == 0:
                            single += f32(out + i * right)[0]
                        f32(out + i * right)[0] = single
    return 0


def is_transposed(walk_address: int, compute: int, last: int, size: int) -> int:
    """Whether real numbers are copied with the last two axes exchanged."""
    walk = i64(walk_address)
    if last < 1 or compute >= COMPLEX:
        return 0
    if walk[HEAD + CODE] != compute or walk[HEAD + CODE + 1] != compute:
        return 0
    row = STRIDE + MAXDIM  # of the one that is strided along the last axis
    if walk[row + last] == size:
        row = STRIDE
    other = 2 * STRIDE + MAXDIM - row
    return walk[other + last] == size and walk[row + last - 1] == size


def stage(
    casts: int, staged: int, source: int, down: int, stride: int, code: int, compute: int, rows: int, n: int
) -> int:
    """Make rows of n elements of any strides and dtype a dense block; 1, or 0 when a conversion fails."""
    size, step = 1 << (WIDTHS >> 3 * compute & 7), 1 + (code >= COMPLEX)
    for row in range(rows):
        to, place = staged + row * n * size, source + row * down
        if code != compute:
            within(to, n * size)
            within(place, 1 << (WIDTHS >> 3 * code & 7))
            within(place + (n - 1) * stride, 1 << (WIDTHS >> 3 * code & 7))
            if call(i64(casts)[8 * code + compute], to, place, stride, n) != 1:
                return 0
        elif stride == 0 and step == 1 and code & 1:
            value = f64(place)[0]
            for i in range(n):
                f64(to)[i] = value
        else:
            for part in range(step):
                if code & 1:
                    for i in range(n):
                        f64(to)[step * i + part] = f64(place + i * stride)[part]
                else:
                    for i in range(n):
                        f32(to)[step * i + part] = f32(place + i * stride)[part]
    return 1


def launch(state: int, kernel: int, count: int, size: int, n: int) -> int:
    """Run a kernel on n elements of so many ARGUMENTs; 1, or something else on failure."""
    walk = i64(state).walk
    if BOUNDS:
        for q in range(count):
            within(i64(walk)[ARGUMENT + q], size * n)
    return call(kernel, walk + 8 * ARGUMENT, n)


def arrange(walk_address: int, operands: int) -> int:
    """Drop axes of one element, join those all operands walk as one; the number of the last axis.

    Where the last axis is short, the last two are walked together. A long axis goes last instead if those are
    short too, or the output lies along it alone. An empty index space gives -1.
    """
    walk = i64(walk_address)
    last, size = -1, 1 << (WIDTHS >> 3 * walk[HEAD + CODE] & 7)
    for d in range(walk[HEAD + NDIM]):
        if walk[d] == 0:
            return -1
        if walk[d] == 1:
            continue
        joined = 0
        if last >= 0:
            joined = 1
        if joined:
            for q in range(operands):
                row = STRIDE + MAXDIM * q
                if walk[row + last] != walk[row + d] * walk[d]:
                    joined = 0
        if joined:
            walk[last] = walk[last] * walk[d]
        else:
            last += 1
            walk[last] = walk[d]
        for q in range(operands):
            walk[STRIDE + MAXDIM * q + last] = walk[STRIDE + MAXDIM * q + d]
    if last < 0:
        walk[0] = 1
        for q in range(operands):
            walk[STRIDE + MAXDIM * q] = 0
        return 0
    if walk[last] < SHORT_AXIS:
        best, pair = last, walk[last]
        if last > 0:
            pair = pair * walk[last - 1]
        for d in range(last):
            alone = walk[STRIDE + last] != 0 and walk[STRIDE + d] == size
            if walk[d] > 4 * walk[best] and (pair < SHORT_AXIS or alone):
                best = d
        if best != last:
            for q in range(operands + 1):
                walk[MAXDIM * q + best], walk[MAXDIM * q + last] = (
                    walk[MAXDIM * q + last],
                    walk[MAXDIM * q + best],
                )
    return last


def advance(walk_address: int, operands: int, last: int) -> int:
    """Move operands to the next place along the axes before the last one."""
    walk, d = i64(walk_address), last - 1
    while d >= 0:
        walk[COUNTER + d] = walk[COUNTER + d] + 1
        back = 0
        if walk[COUNTER + d] == walk[d]:
            back = walk[d]
        for q in range(operands):
            stride = walk[STRIDE + MAXDIM * q + d]
            walk[HEAD + POINTER + q] = walk[HEAD + POINTER + q] + stride - stride * back
        if back == 0:
            break
        walk[COUNTER + d] = 0
        d -= 1
    return 0


def deliver(state: int, out: int, down: int, stride: int, made: int, rows: int, n: int, store: int) -> int:
    """Operand 0 takes (`store`) or adds a block of rows of n elements; of stride 0, their sums."""
    s = i64(state)
    walk = i64(s.walk)
    compute, out_code = walk[HEAD + COMPUTE], walk[HEAD + CODE]
    size = 1 << (WIDTHS >> 3 * compute & 7)
    dense = out_code == compute and (stride == size or n == 1)
    summing = stride == 0 and store == 0
    if (dense and down == n * size) or (summing and down == 0):
        rows, n = 1, rows * n
    if summing and rows > 1 and compute & 1 and compute < COMPLEX and out_code == compute:
        add_row_totals(s.walk, out, down, made, rows, n)
        rows = 0
    for row in range(rows):
        to, source = out + row * down, made + row * n * size
        if summing:
            add_total(s.walk, compute, out_code, to, source, n)
        elif dense:
            add_scaled(s.walk, compute, to, source, n, store)
        else:
            spread(s.walk, compute, out_code, to, stride, source, n, store)
    return 0


def stream_block(state: int, last: int, top: int, low: int, rows: int, n: int, store: int, sums: int) -> int:
    """`stream` one block: n elements from `low` on of so many rows from `top` on; 1, or 0 on failure.

    Rows are added to `sums` where these are given.
    """
    s = i64(state)
    walk = i64(s.walk)
    operands, compute, kernel = walk[HEAD + COUNT], walk[HEAD + COMPUTE], walk[HEAD + FUNCTION]
    size, down = 1 << (WIDTHS >> 3 * compute & 7), 0
    for q in range(1, operands):
        row = STRIDE + MAXDIM * q + last
        stride, code = walk[row], walk[HEAD + CODE + q]
        if top + rows > 1:
            down = walk[row - 1]
        source = walk[HEAD + POINTER + q] + top * down + low * stride
        if code == compute and (stride == size or n == 1) and (rows == 1 or down == n * size):
            walk[ARGUMENT + q] = source
        else:
            walk[ARGUMENT + q] = s.scratch + 16 * BLOCK * q
            if (low == 0 and (top == 0 or down != 0)) or stride != 0:
                if stage(s.casts, walk[ARGUMENT + q], source, down, stride, code, compute, rows, n) != 1:
                    return 0
    stride = walk[STRIDE + last]
    if top + rows > 1:
        down = walk[STRIDE + last - 1]
    out, made, direct = walk[HEAD + POINTER] + top * down + low * stride, walk[ARGUMENT + 1], 0
    if kernel != 0:
        dense = (stride == size or n == 1) and (rows == 1 or down == n * size)
        direct = store == 1 and walk[HEAD + CODE] == compute and dense
        made = s.scratch
        if direct:
            made = out
        walk[ARGUMENT] = made
        if launch(state, kernel, operands, size, rows * n) != 1:
            return 0
    if sums:
        add_rows(compute, sums, made, rows, n)
    elif direct == 0:
        deliver(state, out, down, stride, made, rows, n, store)
    return 1


def stream(state: int, store: int) -> int:
    """Operand 0 of WALK takes (`store`) or adds what the kernel makes of the others; 1, or 0 on failure.

    Without a kernel it takes operand 1. Added to, an output of stride 0 is a sum. Operands are handed to
    the kernel in blocks, staged where their dtype or layout is not the kernel's: of the last axis, or of rows
    of a short one. Sums of such rows are added up in double precision, in two steps.
    """
    s = i64(state)
    walk = i64(s.walk)
    operands, compute, kernel = walk[HEAD + COUNT], walk[HEAD + COMPUTE], walk[HEAD + FUNCTION]
    code, double, totals = walk[HEAD + CODE], compute - 1 | 1, s.walk + 8 * (SUMS + SUMS_WORDS)
    last = arrange(s.walk, operands)
    if last < 0:
        return 1
    length, size, outer = walk[last], 1 << (WIDTHS >> 3 * compute & 7), 1
    rows, panel, short, sums = 1, 1, 0, 0
    if kernel == 0 and is_transposed(s.walk, compute, last, size):
        last, length = last - 1, 0
    elif last > 0 and length < SHORT_AXIS:
        rows, panel, short = walk[last - 1], BLOCK // length, 1
        summed = walk[STRIDE + last - 1] == 0 and walk[STRIDE + last] != 0
        if summed and store == 0 and rows >= FEW_ROWS:
            sums = s.walk + 8 * SUMS
    for d in range(last - short):
        walk[COUNTER + d] = 0
        outer *= walk[d]
    for _ in range(outer):
        if length == 0:
            add_tiles(s.walk, compute, last + 1, store)
        if sums:
            zero(sums, 16 * SUMS_WORDS)
        for part in range((rows + panel - 1) // panel):
            top = part * panel
            m = min(panel, rows - top)
            for low in range(0, length, BLOCK):
                if stream_block(state, last, top, low, m, min(BLOCK, length - low), store, sums) != 1:
                    return 0
            if sums and part & 7 == 7:  # fewer additions one after the other, so smaller errors
                add(double, totals, sums, length, 0)
                zero(sums, 16 * length)
        if sums:
            add(double, totals, sums, length, 0)
            spread(s.walk, double, code, walk[HEAD + POINTER], walk[STRIDE + last], totals, length, 0)
        advance(s.walk, operands, last - short)
    return 1


def extents(state: int, m: int) -> int:
    """Make the shape of meta word m the index space."""
    s = i64(state)
    walk, shapes = i64(s.walk), i64(s.shapes)
    ndim = (m >> 16) & 0xFF
    for d in range(ndim):
        walk[d] = shapes[(m >> 32) + d]
    walk[HEAD + NDIM] = ndim
    return 0


def lay(state: int, q: int, address: int, m: int, strided: int) -> int:
    """Make a value of meta word m operand q, broadcast to the index space; `strided`: in its own layout."""
    s = i64(state)
    walk, shapes = i64(s.walk), i64(s.shapes)
    ndim, own, place, step = walk[HEAD + NDIM], (m >> 16) & 0xFF, m >> 32, (m >> 9) & 0x7F
    walk[HEAD + POINTER + q], walk[HEAD + CODE + q] = address, m & 0xFF
    row = STRIDE + MAXDIM * q
    for d in range(ndim - own):
        walk[row + d] = 0
    for d in range(own - 1, -1, -1):
        at, extent = row + ndim - own + d, shapes[place + d]
        walk[at] = step
        if extent == 1:
            walk[at] = 0
        elif strided and m & 0x100 == 0:
            walk[at] = shapes[place + own + d]
        step *= extent
    return 0


def lay_reduced(state: int, q: int, address: int, m: int, mask: int, strided: int) -> int:
    """Make what has the result's meta word m and lacks the axes of `mask` operand q, broadcast along them."""
    s = i64(state)
    walk, shapes = i64(s.walk), i64(s.shapes)
    ndim, own, place, step = walk[HEAD + NDIM], (m >> 16) & 0xFF, m >> 32, (m >> 9) & 0x7F
    walk[HEAD + POINTER + q], walk[HEAD + CODE + q] = address, m & 0xFF
    row, axis = STRIDE + MAXDIM * q, own - 1
    for d in range(ndim - 1, -1, -1):
        if (mask >> d) & 1:
            walk[row + d] = 0
            if own == ndim:
                axis -= 1
            continue
        walk[row + d] = step
        if strided and m & 0x100 == 0:
            walk[row + d] = shapes[place + own + axis]
        step *= walk[d]
        axis -= 1
    return 0


def prepare(state: int, count: int, compute: int, kernel: int) -> int:
    """Say how many operands the index space has and what to run over it."""
    walk = i64(i64(state).walk)
    walk[HEAD + COUNT], walk[HEAD + COMPUTE], walk[HEAD + FUNCTION] = count, compute, kernel
    return 0
