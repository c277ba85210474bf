"""Logarithms and the inverse hyperbolic functions in double precision.

x = 2**k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)). With s = f/(2 + f), by log(1 + f) = 2 artanh(s):
log(1 + f) = f - f**2/2 + s (f**2/2 + s**2 p(s**2)). log1p carries the rounding error of 1 + x along in f.
log2 and log10 multiply the logarithm of 1 + f, in two parts of which the first has 28 bits, by a constant
of 25 bits and its rest, so that the leading product is exact.
arcsinh(x) = log1p(x + x**2/(1 + sqrt(1 + x**2))); arccosh(x) = log1p(t + sqrt(2 t + t**2)) for t = x - 1.
arctanh(x) is half the logarithm of (1 + x)/(1 - x) = 2**k (1 + s)/(1 - s): artanh(s) + k ln(2)/2, where
s is a quotient of the difference and the sum of 1 + x and 2**k (1 - x), which are within a factor of two, so
that the difference is exact; one division serves it and its rounding error.
logaddexp(x, y) = m + log(1 + e**-d) for the larger m and the distance d, both logarithm and distance with
their rounding errors: where m and the logarithm cancel, the error is that of the larger of both.
"""

import math

from tapegrad.kernels.vecmath.coefficients import ARCTANH, EXP2, LOG
from tapegrad.kernels.vecmath.exponential import (
    LN2_HI,
    LN2_LO,
    ROUND,
    TINY,
    expm1_short,
    reduced,
    times_power_of_two,
    within,
)
from tapegrad.kernels.vecmath.number import bits, copysign, double, fma, mad, polynomial, select, sqrt

EXPONENT_BITS = 0x7FF0000000000000
ONE_BITS = 0x3FF0000000000000  # the bits of 1.0
LOG_OFFSET = 0x3FF0000000000000 - 0x3FE6A09E667F3BCD  # bits of 1.0 less those of sqrt(1/2)
INT_BITS = 0x4330000000000000  # the bits of 2**52, whose unit in the last place is 1
INT_BIAS = 4503599627370496.0 + 1023.0
SMALLEST_NORMAL = 2.2250738585072014e-308
HIGH_BITS = -(1 << 25)  # all but the last 25 bits
LOG2_E_HI, LOG2_E_LO = 1.4426950216293335, 1.9259629911266175e-08
LOG10_E_HI, LOG10_E_LO = 0.4342944771051407, 4.798111141615973e-09
LOG10_2_HI, LOG10_2_LO = 0.30102999566395283, 2.8363394551044964e-14
HUGE = 1e18
LN2 = 0.6931471805599453
LARGEST_F = 0.41421356237309503  # sqrt(2) - 1


def normal(x):
    """The bits of x > 0, or of 2**54 x if that is subnormal, and what is to be added to the exponent."""
    low = x < SMALLEST_NORMAL
    return bits(select(low, x * 18014398509481984.0, x)), select(low, -54.0, 0.0)


def split(word):
    """k and the bits of 2**k: the double with these bits is 2**k m with m in [sqrt(1/2), sqrt(2))."""
    exponent = (word + LOG_OFFSET) & EXPONENT_BITS
    return double((exponent >> 52) | INT_BITS) - INT_BIAS, exponent


def tail_of(f, h, low):
    """log(1 + f) - f + h for h = f**2/2, plus a small part."""
    s = f / (2.0 + f)
    w = s * s
    return mad(s, mad(w, polynomial(w, LOG), h), low)


def with_limits(value, x, border=0.0):
    """The logarithm at and below the border of its domain, at infinity and of NaN."""
    value = select(x > border, value, select(x == border, -math.inf, math.nan))
    return select(x < math.inf, value, select(x == math.inf, math.inf, x))


def log(x):
    word, more = normal(x)
    k, exponent = split(word)
    k = k + more
    f = double(word - exponent + ONE_BITS) - 1.0
    h = 0.5 * f * f
    return with_limits(mad(k, LN2_HI, f - (h - tail_of(f, h, k * LN2_LO))), x)


def _other_base(x, unit_high, unit_low, high, low):
    """The logarithm to a base from those of 2 and of e to that base."""
    word, more = normal(x)
    k, exponent = split(word)
    k = k + more
    f = double(word - exponent + ONE_BITS) - 1.0
    h = 0.5 * f * f
    tail = tail_of(f, h, 0.0)
    a = double(bits(f - h) & HIGH_BITS)
    b = ((f - a) - h) + tail
    lead = a * high
    rest = mad(a + b, low, mad(b, high, k * unit_low))
    base = k * unit_high
    total = base + lead  # |base| > |lead| or base = 0
    return with_limits(total + (((base - total) + lead) + rest), x)


def log2(x):
    return _other_base(x, 1.0, 0.0, LOG2_E_HI, LOG2_E_LO)


def log10(x):
    return _other_base(x, LOG10_2_HI, LOG10_2_LO, LOG10_E_HI, LOG10_E_LO)


def log_of_sum(x, low, more):
    """log(1 + x + low) + more ln 2 for x > -1."""
    u = 1.0 + x
    v = u - 1.0
    error = ((1.0 - (u - v)) + (x - v)) + low
    word = bits(u)
    k, exponent = split(word)
    m = double(word - exponent + ONE_BITS) - 1.0
    c = select(k < 100.0, error * double(0x7FE0000000000000 - exponent), 0.0)  # error * 2**-k
    f = m + c  # exactly x if k = 0
    c = c - (f - m)
    h = 0.5 * f * f
    k = k + more
    return mad(k, LN2_HI, f - (h - tail_of(f, h, mad(k, LN2_LO, c))))


def log1p(x):
    value = with_limits(log_of_sum(x, 0.0, 0.0), x, -1.0)
    return select(abs(x) < TINY, x, value)


def arcsinh(x):
    y = abs(x)
    far = y > HUGE
    w = y * y
    q = w / (1.0 + sqrt(1.0 + w))
    z = y + q
    low = (y - z) + q  # q may be the larger, but then this does not count
    value = log_of_sum(select(far, y, z), select(far, 0.0, low), select(far, 1.0, 0.0))
    value = select(y < math.inf, value, y)
    return select(y < TINY, x, copysign(value, x))


def arccosh(x):
    far = x > HUGE
    t = x - 1.0
    square = mad(t, t, t + t)
    square_low = mad(t, t, (t + t) - square)
    root = sqrt(square)
    root_low = (fma(-root, root, square) + square_low) / select(t > 0.0, root + root, 1.0)
    z = root + t
    low = ((root - z) + t) + root_low
    value = log_of_sum(select(far, x, z), select(far, 0.0, low), select(far, 1.0, 0.0))
    return select(x < math.inf, select(x >= 1.0, value, math.nan), select(x == math.inf, math.inf, x))


def arctanh(x):
    y = abs(x)
    a = 1.0 + y
    b = 1.0 - y
    a_low = y - (a - 1.0)
    b_low = (1.0 - b) - y
    # the difference of the bits is 2**52 times the logarithm of the quotient but for 0.09
    exponent = (bits(a) - bits(b) + (ONE_BITS + (1 << 51))) & EXPONENT_BITS
    scale = double(exponent)
    k = double((exponent >> 52) | INT_BITS) - INT_BIAS
    b = scale * b
    b_low = scale * b_low
    top, top_low = a - b, a_low - b_low
    bottom, bottom_low = a + b, a_low + b_low
    inverse = 1.0 / bottom
    s = (top + top_low) * inverse
    s_low = ((fma(-s, bottom, top) + top_low) - s * bottom_low) * inverse
    w = s * s
    lead = k * (0.5 * LN2_HI)
    total = lead + s  # |lead| > |s| or lead = 0
    rest = ((lead - total) + s) + mad(k, 0.5 * LN2_LO, s_low)
    value = total + mad(s * w, polynomial(w, ARCTANH), rest)
    value = select(y < 1.0, value, select(y == 1.0, math.inf, math.nan))
    return select(y < TINY, x, copysign(value, x))


def sum_of(a, b):
    """a + b and its rounding error, whichever is larger."""
    total = a + b
    rest = total - a
    return total, (a - (total - rest)) + (b - rest)


def larger_and_distance(x, y):
    """The larger operand; the other less it, within what exponentials tell from 0, and the rounding error."""
    more = x > y
    m = select(more, x, y)
    d, low = sum_of(select(more, y, x), -m)
    return m, within(d, -1076.0, 0.0), select(d > -1076.0, low, 0.0)


def log_of_one_and(p, t):
    """k, f, h, tail with log(1 + e) = k ln 2 + f - (h - tail) for e = 2**n (1 + p) <= 1, t = n + ROUND."""
    u = 1.0 + p
    e, low = times_power_of_two(u, t), times_power_of_two(p - (u - 1.0), t)
    far = e > LARGEST_F
    half = 0.5 * e
    f = select(far, half - 0.5, e)
    low = select(far, mad(low, 0.5, half - (f + 0.5)), low)
    h = 0.5 * f * f
    return select(far, 1.0, 0.0), f, h, tail_of(f, h, mad(low, -f, low))


def added(m, a, b, rest, x, y):
    """m + a + b + rest, the last being the smallest; of infinite operands and NaN too."""
    total, low = sum_of(m, a)
    total, more = sum_of(total, b)
    value = select(abs(m) == math.inf, m, total + ((low + more) + rest))
    return select((x != x) | (y != y), x + y, value)


def logaddexp(x, y):
    m, d, d_low = larger_and_distance(x, y)
    t, r = reduced(d)
    p = expm1_short(r)
    k, f, h, tail = log_of_one_and(mad(d_low, 1.0 + p, p), t)
    return added(m, k * LN2_HI, f, mad(k, LN2_LO, tail - h), x, y)


def logaddexp2(x, y):
    m, d, d_low = larger_and_distance(x, y)
    t = d + ROUND
    r = d - (t - ROUND)
    p = r * polynomial(r, EXP2)
    k, f, h, tail = log_of_one_and(mad(d_low * LN2, 1.0 + p, p), t)
    a = double(bits(f - h) & HIGH_BITS)
    b = ((f - a) - h) + tail
    return added(m, k, a * LOG2_E_HI, mad(a + b, LOG2_E_LO, b * LOG2_E_HI), x, y)
