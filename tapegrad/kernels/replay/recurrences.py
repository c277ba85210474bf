"""Compiled: what a sweep does at running products along an axis, and at the linear recurrences they are.

Of y[i] = x[i] + a[i] y[i-1] the adjoint is l[i] = ct[i] + conj(a[i+1]) l[i+1]: l is the cotangent of x, and
l[i] conj(y[i-1]) that of a. A running product is one of a alone, from y[-1] = 1; of a product only its last
element has a cotangent.
"""

from tapegrad.kernels.dialect import copy, f32, f64, i64, zero
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.memory import allocate, release
from tapegrad.kernels.replay.records import operand, target
from tapegrad.kernels.replay.stream import extents, lay, prepare, stream


def times(code: int, out: int, a: int, b: int, n: int, store: int, conjugate: int) -> int:
    """out (+)= a * b, dense; a conjugated if so said."""
    if code == 1:
        p, x, y = f64(out), f64(a), f64(b)
        for i in range(n):
            if store:
                p[i] = x[i] * y[i]
            else:
                p[i] = p[i] + x[i] * y[i]
    elif code == 2:
        q, v, w = f32(out), f32(a), f32(b)
        for i in range(n):
            if store:
                q[i] = v[i] * w[i]
            else:
                q[i] = q[i] + v[i] * w[i]
    else:
        sign = 1.0
        if conjugate:
            sign = -1.0
        for i in range(2 * n):
            if i & 1 == 0:
                re, im, real, imag = 0.0, 0.0, 0.0, 0.0
                if code & 1:
                    re, im, real, imag = f64(a)[i], sign * f64(a)[i + 1], f64(b)[i], f64(b)[i + 1]
                else:
                    re, im, real, imag = f32(a)[i], sign * f32(a)[i + 1], f32(b)[i], f32(b)[i + 1]
                re, im = re * real - im * imag, re * imag + im * real
                if code & 1:
                    if store == 0:
                        re, im = re + f64(out)[i], im + f64(out)[i + 1]
                    f64(out)[i], f64(out)[i + 1] = re, im
                else:
                    if store == 0:
                        re, im = re + f32(out)[i], im + f32(out)[i + 1]
                    f32(out)[i], f32(out)[i + 1] = re, im
    return 0


def add_from_the_end(code: int, sums: int, a: int, n: int, rows: int) -> int:
    """x[i] += a[i + 1] x[i + 1] in rows of n real numbers, four rows at a time, as each step waits for the
    one before; how many rows that were.
    """
    for row in range(0, rows & ~3, 4):
        t0, t1, t2, t3 = 0.0, 0.0, 0.0, 0.0
        last = row * n + n - 1
        if code == 1:
            x, y = f64(sums), f64(a)
            for i in range(last, last - n, -1):
                if i < last:
                    t0, t1 = x[i] + t0, x[i + n] + t1
                    t2, t3 = x[i + 2 * n] + t2, x[i + 3 * n] + t3
                    x[i], x[i + n], x[i + 2 * n], x[i + 3 * n] = t0, t1, t2, t3
                else:
                    t0, t1, t2, t3 = x[i], x[i + n], x[i + 2 * n], x[i + 3 * n]
                t0, t1, t2, t3 = t0 * y[i], t1 * y[i + n], t2 * y[i + 2 * n], t3 * y[i + 3 * n]
        else:
            u, v = f32(sums), f32(a)
            for i in range(last, last - n, -1):
                if i < last:
                    t0, t1 = u[i] + t0, u[i + n] + t1
                    t2, t3 = u[i + 2 * n] + t2, u[i + 3 * n] + t3
                    u[i], u[i + n], u[i + 2 * n], u[i + 3 * n] = t0, t1, t2, t3
                else:
                    t0, t1, t2, t3 = u[i], u[i + n], u[i + 2 * n], u[i + 3 * n]
                t0, t1, t2, t3 = t0 * v[i], t1 * v[i + n], t2 * v[i + 2 * n], t3 * v[i + 3 * n]
    return rows & ~3


def sweep_row(code: int, kind: int, sums: int, a: int, before: int, n: int, shifted: int, added: int) -> int:
    """What `recurrence` does with one row of n real numbers that lie beside each other, after it was `added`
    up or not.
    """
    first = n - 2
    if added:
        first = -1
    if code == 1:
        x, y, z = f64(sums), f64(a), f64(before)
        for i in range(first, -1, -1):
            if kind == 2:
                x[i] = y[i + 1] * x[i + 1]
            else:
                x[i] = x[i] + y[i + 1] * x[i + 1]
        if kind == 2:
            z[0] = y[0]
            for i in range(1, n):
                z[i] = z[i - 1] * y[i]
        if shifted:
            for i in range(n - 1, 0, -1):
                x[i] = z[i - 1] * x[i]
    else:
        u, v, w = f32(sums), f32(a), f32(before)
        for i in range(first, -1, -1):
            if kind == 2:
                u[i] = v[i + 1] * u[i + 1]
            else:
                u[i] = u[i] + v[i + 1] * u[i + 1]
        if kind == 2:
            w[0] = v[0]
            for i in range(1, n):
                w[i] = w[i - 1] * v[i]
        if shifted:
            for i in range(n - 1, 0, -1):
                u[i] = w[i - 1] * u[i]
    return 0


def sweep_plane(
    code: int, kind: int, sums: int, a: int, before: int, n: int, inside: int, shifted: int
) -> int:
    """As `sweep_row`, of n times as many numbers as lie `inside`, or of complex ones."""
    row = inside * (1 << (WIDTHS >> 3 * code & 7))
    for i in range(n - 1, 0, -1):
        at = i * row
        times(code, sums + at - row, a + at, sums + at, inside, kind == 2, 1)
    if kind == 2:
        copy(before, a, row)
        for i in range(1, n):
            at = i * row
            times(code, before + at, before + at - row, a + at, inside, 1, 0)
    if shifted:
        for i in range(n - 1, 0, -1):
            at = i * row
            times(code, sums + at, before + at - row, sums + at, inside, 1, 1)
    return 0


def laid_out(state: int, q: int, count: int) -> int:
    """A dense copy of record q's value; 0 when memory is out."""
    s = i64(state)
    m = i64(s.meta)[q]
    block = allocate(state, ((m >> 9) & 0x7F) * count)
    if block != 0:
        f64(s.walk + 8 * (HEAD + FACTOR))[0] = 1.0
        extents(state, m)
        lay(state, 0, block, m, 0)
        lay(state, 1, i64(s.address)[q], m, 1)
        prepare(state, 2, m & 0xFF, 0)
        stream(state, 1)
    return block


def recurrence(state: int, k: int, j: int, slot: int) -> int:
    """One operand of a recurrence, of which a descriptor tells kind, count of rows, and length of an element.

    Kind 0: a recurrence; 1: a running product; 2: a product.
    """
    s = i64(state)
    metas, along = i64(s.meta), i64(i64(s.descriptors)[k])
    kind, outer = along[ALONG_KIND], along[ALONG_BEFORE]
    length, inside = along[ALONG_LENGTH], along[ALONG_AFTER]
    factor, m = operand(s.word, k, kind == 0), metas[k]
    if (metas[j] ^ m) & 0xFF or (metas[factor] ^ m) & 0xFF:
        return PYTHON
    code, full = m & 0xFF, metas[factor]
    count, size = outer * length * inside, (m >> 9) & 0x7F
    row = inside * size
    out = target(state, j, 0)
    store = s.store
    if count == 0:
        return DONE
    a, sums, before = laid_out(state, factor, count), allocate(state, count * size), 0
    if kind == 2:
        before = allocate(state, count * size)
    elif slot == 1 or kind == 1:
        before = laid_out(state, k, count)
    if out == 0 or a == 0 or sums == 0 or (before == 0 and (kind != 0 or slot == 1)):
        return MEMORY
    if kind == 2:
        for r in range(outer):
            copy(sums + (r * length + length - 1) * row, i64(s.cotangents)[k] + r * row, row)
    else:
        copy(sums, i64(s.cotangents)[k], count * size)
    rows, shifted = 0, kind != 0 or slot == 1
    if inside == 1 and code < COMPLEX and kind != 2:
        rows = add_from_the_end(code, sums, a, length, outer)
    for r in range(outer):
        first = r * length * row
        if inside == 1 and code < COMPLEX:
            sweep_row(code, kind, sums + first, a + first, before + first, length, shifted, r < rows)
        else:
            sweep_plane(code, kind, sums + first, a + first, before + first, length, inside, shifted)
        if kind == 0 and slot == 1:
            zero(sums + first, row)
    f64(s.walk + 8 * (HEAD + FACTOR))[0] = 1.0
    extents(state, full)
    lay(state, 0, out, metas[j], 0)
    lay(state, 1, sums, full, 0)
    prepare(state, 2, code, 0)
    ok = stream(state, store)
    release(state, a)
    release(state, sums)
    if before != 0:
        release(state, before)
    if ok != 1:
        return FAILED
    return DONE
