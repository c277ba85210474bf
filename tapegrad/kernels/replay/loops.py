"""Compiled: the inner loop of a NumPy ufunc whose elements a kernel computes; what tells arrays apart."""

from tapegrad.kernels.dialect import call, f32, f64, i64, invoke, prefetch, stack, u8
from tapegrad.kernels.replay.layout import *


def move_elements(size: int, out: int, out_stride: int, source: int, stride: int, n: int) -> int:
    """out[i] = source[i] for any strides."""
    if size == 8:
        for i in range(n):
            f64(out + i * out_stride)[0] = f64(source + i * stride)[0]
    else:
        for i in range(n):
            f32(out + i * out_stride)[0] = f32(source + i * stride)[0]
    return 0


def suspect(size: int, out: int, n: int) -> int:
    """Whether one of n dense results is infinite or no number."""
    found = 0
    if size == 8:
        a = f64(out)
        for i in range(n):
            found = found | (a[i] - a[i] != 0.0)
    else:
        b = f32(out)
        for i in range(n):
            found = found | (b[i] - b[i] != 0.0)
    return found


def errors(size: int, first: int, second: int, out: int, n: int) -> int:
    """What is wrong with n dense results of two operands.

    1: no number, though both operands are; 2: infinite, though both are finite; 4: so at 0 as the first.
    """
    found = 0
    if size == 8:
        a, b, c = f64(first), f64(second), f64(out)
        for i in range(n):
            finite = (a[i] - a[i]) + (b[i] - b[i]) == 0.0
            infinite = (c[i] == c[i]) & (c[i] - c[i] != 0.0) & finite
            found = found | (c[i] != c[i]) & (a[i] == a[i]) & (b[i] == b[i])
            found = found | (infinite & (a[i] != 0.0)) << 1 | (infinite & (a[i] == 0.0)) << 2
    else:
        d, e, f = f32(first), f32(second), f32(out)
        for i in range(n):
            finite = (d[i] - d[i]) + (e[i] - e[i]) == 0.0
            infinite = (f[i] == f[i]) & (f[i] - f[i] != 0.0) & finite
            found = found | (f[i] != f[i]) & (d[i] == d[i]) & (e[i] == e[i])
            found = found | (infinite & (d[i] != 0.0)) << 1 | (infinite & (d[i] == 0.0)) << 2
    return found


def loop(args: int, dims: int, steps: int, data: int) -> int:
    """As ``PyUFuncGenericFunction``, in blocks that stay in the nearest cache.

    `data`: kernel, number of inputs, element size, ``feclearexcept``, ``feraiseexcept``, and the errors that
    are raised for a number that is missing, an infinite result and an infinite result at 0.
    """
    given, strides, d, n = i64(args), i64(steps), i64(data), i64(dims)[0]
    kernel, inputs, size = d[0], d[1], d[2]
    pointers, staged = stack(4), stack(512)
    p, direct, block, raised = i64(pointers), 1, DIRECT, 0
    for q in range(inputs + 1):
        if strides[q] != size or (q < inputs and given[q] == given[inputs]):
            direct, block = 0, STAGED
    for part in range((n + block - 1) // block):
        low = part * block
        m = min(block, n - low)
        p[0] = staged
        if direct:
            p[0] = given[inputs] + low * size
        for q in range(inputs):
            p[q + 1] = given[q] + low * strides[q]
            if direct == 0:
                p[q + 1] = staged + 8 * STAGED * (q + 1)
                move_elements(size, p[q + 1], size, given[q] + low * strides[q], strides[q], m)
        call(kernel, pointers, m)
        if suspect(size, p[0], m):
            raised = raised | errors(size, p[1], p[inputs], p[0], m)
        if direct == 0:
            step = strides[inputs]
            move_elements(size, given[inputs] + low * step, step, staged, size, m)
    invoke(d[3], 63)  # a vector form computes both sides of a choice: what the other side raised is no error
    for q in range(3):
        if raised >> q & 1:
            invoke(d[4], d[5 + q])
    return 0


def equal_bytes(a: int, b: int, n: int) -> int:
    """Whether n bytes are the same."""
    x, y, differ = i64(a), i64(b), 0
    for i in range(n >> 3):
        differ = differ | (x[i] ^ y[i])
    for i in range(n & ~7, n):
        differ = differ | (u8(a)[i] ^ u8(b)[i])
    return differ == 0


def checksum(data: int, n: int) -> int:
    """A number that tells whether n bytes have changed, or changed places.

    Each word is keyed by its place, and its halves are multiplied: a sum that any loop order gives. The two
    halves of the memory are read side by side, as the processor fetches that more quickly.
    """
    words, total, half = i64(data), 0, n // 2048
    for turn in range(2 * half):
        block = (turn >> 1) + (turn & 1) * half
        for line in range(16):
            prefetch(data + 1024 * block + 64 * line + AHEAD)
        for i in range(128 * block, 128 * block + 128):
            keyed = words[i] ^ (i + 1) * SPREAD
            total += words[i] + (keyed & 0xFFFFFFFF) * (keyed >> 32)
    for i in range(256 * half, n >> 3):
        keyed = words[i] ^ (i + 1) * SPREAD
        total += words[i] + (keyed & 0xFFFFFFFF) * (keyed >> 32)
    for i in range(n & ~7, n):
        total = total * 0x100000001B3 + u8(data)[i]
    return total
