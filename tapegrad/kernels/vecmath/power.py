"""pow, cbrt and hypot in double precision.

pow: log |x| as in `logarithm`, but in double-double arithmetic (about 66 bits; T. J. Dekker, A floating-point
technique for extending the available precision, 1971); y log |x| as a double-double goes through exp.
cbrt: |x| = 8**k m with m in [1, 8). A polynomial for 1/cbrt(m) has 17 bits, one step of third order makes
them 50, and the cube's residual in double-double the last correction (Newton).
hypot: both operands are divided by the power of two in the larger; the rounding errors of the sum of squares
and of the root are added, as derivatives divide by the result more than once.
"""

import math

from tapegrad.kernels.vecmath.coefficients import CBRT, EXP, POW_LOG
from tapegrad.kernels.vecmath.exponential import (
    LN2_HI,
    LN2_LO,
    LOG2_E,
    ROUND,
    times_power_of_two,
    within,
)
from tapegrad.kernels.vecmath.inverse import EXPONENT_BITS, LARGEST_SCALE
from tapegrad.kernels.vecmath.logarithm import INT_BIAS, INT_BITS, ONE_BITS, normal, split
from tapegrad.kernels.vecmath.number import bits, copysign, double, fma, mad, polynomial, rint, select, sqrt

TWELFTH_HI = 0.08333333333333333
TWELFTH_LO = 4.625929269271485e-18


def signed_power(value, x, y):
    """x**y from |x|**y."""
    half = 0.5 * y
    whole = rint(y) == y
    odd = whole & (rint(half) != half)
    value = select(odd, copysign(value, x), value)
    return select((x < 0.0) & (x > -math.inf) & ~whole, math.nan, value)


def is_one(z, y):
    """Whether z**y is 1 even if one of them is infinite or NaN."""
    return (z == 1.0) | (y == 0.0)


def pow(x, y):
    z = abs(x)
    word, more = normal(z)
    k, exponent = split(word)
    k = k + more
    m = double(word - exponent + ONE_BITS)
    # s + s_low = 2 (m - 1)/(m + 1) = 2 f/d
    d = m + 1.0
    d_low = m - (d - 1.0)
    f = mad(m, 2.0, -2.0)
    inverse = 1.0 / d
    s = f * inverse
    s_low = fma(-s, d_low, fma(-s, d, f)) * inverse
    # c + c_low = s**3
    w = s * s
    c = s * w
    c_low = mad(s, fma(s, s, -w), fma(s, w, -c))
    c_low = mad(3.0 * w, s_low, c_low)
    # g + g_low = 1/12 + s**2/80 + ..., so that log(m) = s + s**3 g
    q = mad(w, polynomial(w, POW_LOG), TWELFTH_LO)
    g = TWELFTH_HI + q
    g_low = (TWELFTH_HI - g) + q
    # a + a_low = log(m)
    p = c * g
    p_low = mad(c, g_low, mad(c_low, g, fma(c, g, -p)))
    a = s + p
    a_low = ((s - a) + p) + (p_low + s_low)
    # b + b_low = log(z), of 0, infinity and NaN too
    b = mad(k, LN2_HI, a)
    b_low = (mad(k, LN2_HI, -b) + a) + mad(k, LN2_LO, a_low)
    b = select(z == 0.0, -math.inf, select(z < math.inf, b, z))
    # exp of v + v_low = y log(z); beyond the limits the low part does not count
    one = is_one(z, y)
    v = select(one, 0.0, y * b)
    v_low = select(~one & (abs(v) < 800.0), fma(y, b_low, fma(y, b, -v)), 0.0)
    v = within(v, -750.0, 710.0)
    t = mad(v, LOG2_E, ROUND)
    n = t - ROUND
    high = mad(n, -LN2_HI, v)
    low = mad(n, -LN2_LO, v_low)
    r = high + low
    c = (high - r) + low
    value = times_power_of_two(1.0 + mad(r * r, polynomial(r, EXP), r + c), t)
    return signed_power(value, x, y)


def cube_parts(y):
    """n + ROUND and m with y = 8**n m, and 1/cbrt(m) to 17 bits."""
    word, more = normal(y)
    exponent = word & EXPONENT_BITS
    e = (double((exponent >> 52) | INT_BITS) - INT_BIAS) + more
    t = mad(e - 1.0, 1.0 / 3.0, ROUND)
    j = mad(t - ROUND, -3.0, e)  # 0, 1 or 2
    m = double(word - exponent + ONE_BITS)
    one, two = j == 1.0, j == 2.0
    scale = select(two, 0.6299605249474366, select(one, 0.7937005259840998, 1.0))
    return t, m * select(two, 4.0, select(one, 2.0, 1.0)), polynomial(m, CBRT) * scale


def third_order(m, r):
    """1/cbrt(m) to three times the digits of r."""
    h = mad(-m * r, r * r, 1.0)
    return mad(r * h, mad(h, 2.0 / 9.0, 1.0 / 3.0), r)


def cbrt(x):
    y = abs(x)
    t, m, r = cube_parts(y)
    r = third_order(m, r)
    square = r * r
    c = m * square
    d = c * c
    d_low = fma(c, c, -d)
    residual = mad(-c, d_low, fma(-c, d, m))
    c = mad(residual, square * (1.0 / 3.0), c)
    value = c * double((bits(t) + 1023) << 52)
    return select((y > 0.0) & (y < math.inf), copysign(value, x), x)


def hypot(x, y):
    a, b = abs(x), abs(y)
    large, small = select(a > b, a, b), select(a > b, b, a)
    exponent = bits(large) & EXPONENT_BITS
    exponent = select(exponent < LARGEST_SCALE, exponent, LARGEST_SCALE)
    exponent = select(exponent > (1 << 52), exponent, 1 << 52)
    scale = double(0x7FE0000000000000 - exponent)
    p, q = large * scale, small * scale
    high, other = p * p, q * q
    square = high + other
    low = ((high - square) + other) + (fma(p, p, -high) + fma(q, q, -other))
    root = sqrt(square)
    value = root + (fma(-root, root, square) + low) / select(root > 0.0, root + root, 1.0)
    return select((a == math.inf) | (b == math.inf), math.inf, value * double(exponent))
