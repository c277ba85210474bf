"""Exponentials and hyperbolic functions in double precision.

x = n ln 2 + r with |r| <= ln(2)/2; ln 2 is split in two parts, the first short enough that its product with
n is exact (W. J. Cody, W. Waite, Software Manual for the Elementary Functions, 1980). Adding 1.5 * 2**52
rounds to the nearest integer and leaves n in the low bits, from which 2**n is built by a shift. With
e**r = 1 + r + r**2 q(r) and s = 2**n:
exp(x) = s e**r, where s is two factors, as it may be subnormal or beyond the largest double;
expm1(x) = (s - 1) + s expm1(r), where the leading sum keeps its rounding error;
sinh(x) = (s - 1/s)/2 cosh(r) + (s + 1/s)/2 sinh(r), and cosh(x) likewise, without a division;
tanh(x) is x + x**3 P(x**2)/Q(x**2) below 0.8 and 1 - 2/(e**(2x) + 1) above, sharing one division.
"""

from tapegrad.kernels.vecmath.coefficients import COSH, EXP, EXP2, SINH, SINH_SHORT, TANH_P, TANH_Q
from tapegrad.kernels.vecmath.number import bits, copysign, double, mad, polynomial, select

ROUND = 6755399441055744.0  # 1.5 * 2**52
LOG2_E = 1.4426950408889634
LN2_HI = 0.6931471805598903  # 42 bits: exact products with |n| < 2**11
LN2_LO = 5.497923018708371e-14
LARGEST = 710.6  # beyond it sinh and cosh overflow, and so does what they compute
STEEPEST = 350.0  # of tanh: beyond it e**(2x) is near the largest double, and is computed times FAR
FAR = 2.0**-128
TINY = 1e-17  # an odd function of a smaller argument is the argument


def within(x, low, high):
    """x, limited to an interval; NaN stays."""
    return select(x < low, low, select(x > high, high, x))


def reduced(x):
    """n + ROUND, whose low bits are n, and the remainder x - n ln 2."""
    t = mad(x, LOG2_E, ROUND)
    n = t - ROUND
    return t, mad(n, -LN2_LO, mad(n, -LN2_HI, x))


def expm1_short(r):
    """e**r - 1 for |r| <= ln(2)/2."""
    return mad(r * r, polynomial(r, EXP), r)


def power_of_two(t, offset=0):
    """2**(n + offset) for t = n + ROUND, while that is normal."""
    return double((bits(t) + (1023 + offset)) << 52)


def times_power_of_two(value, t):
    """value * 2**n for t = n + ROUND, with one rounding if it is subnormal."""
    half = mad(t - ROUND, 0.5, ROUND)
    rest = double((bits(t) - bits(half) + 1023) << 52)
    return value * power_of_two(half) * rest


def exp(x):
    t, r = reduced(within(x, -746.0, 710.0))
    return times_power_of_two(1.0 + expm1_short(r), t)


def exp2(x):
    x = within(x, -1076.0, 1025.0)
    t = x + ROUND
    r = x - (t - ROUND)
    return times_power_of_two(mad(r, polynomial(r, EXP2), 1.0), t)


def expm1(x):
    y = within(x, -50.0, 710.0)
    t = mad(y, LOG2_E, ROUND)
    n = t - ROUND
    high = mad(n, -LN2_HI, y)
    r = mad(n, -LN2_LO, high)
    c = mad(n, -LN2_LO, high - r)
    scale = power_of_two(t, -1)  # half of everything, as 2**n may be beyond the largest double
    a = scale - 0.5
    b = scale * r
    total = a + b  # |a| > |b| or a = 0, so the next line is the rounding error of the sum
    error = b - (total - a)
    value = total + (error + scale * mad(r * r, polynomial(r, EXP), c))
    return select(abs(x) < TINY, x, value + value)


def halves(t):
    """2**(n - 2) and 2**(-n - 2) for t = n + ROUND, n >= 0; zero for the second where it does not count."""
    b = double((1021 - (bits(t) & 0xFFF)) << 52)
    return power_of_two(t, -2), select(t > ROUND + 100.0, 0.0, b)


def sinh(x):
    y = within(abs(x), 0.0, LARGEST)
    # below 1.2 no reduction, for the two terms of the sum would nearly cancel
    t = select(y < 1.2, ROUND, mad(y, LOG2_E, ROUND))
    n = t - ROUND
    r = mad(n, -LN2_LO, mad(n, -LN2_HI, y))
    a, b = halves(t)
    w = r * r
    sine = mad(r * w, polynomial(w, SINH), r)
    d = a - b
    error = (a - d) - b
    value = d + mad(d, w * polynomial(w, COSH), mad(a + b, sine, error))
    return select(y < TINY, x, copysign(value + value, x))


def cosh(x):
    y = within(abs(x), 0.0, LARGEST)
    t, r = reduced(y)
    a, b = halves(t)
    w = r * r
    sine = mad(r * w, polynomial(w, SINH_SHORT), r)
    # a >= b: the larger is added last
    value = a + (b + mad(a + b, w * polynomial(w, COSH), (a - b) * sine))
    return value + value


def tanh_parts(x):
    """Limited |x|, whether it is small, and what is to be added to it, or to 1 where it is not small.

    That is too large, by 1 / FAR, beyond STEEPEST, and nothing beside 1.
    """
    y = within(abs(x), 0.0, 380.0)  # tanh(20) rounds to 1, but its slope not to 0 before 373
    small = y < 0.8
    t, r = reduced(y + y)
    scale = power_of_two(t - select(y > STEEPEST, 128.0, 0.0))
    w = y * y
    p = w * polynomial(w, TANH_P)
    q = polynomial(w, TANH_Q)
    denominator = mad(scale, expm1_short(r), scale + 1.0)
    return y, small, select(small, y * p, -2.0) / select(small, q, denominator)


def tanh(x):
    y, small, quotient = tanh_parts(x)
    return copysign(select(small, y, 1.0) + quotient, x)


def slope_of_tanh(x):
    """1 - tanh(x)**2, by the parts of tanh: beside tanh of the same number it takes next to nothing."""
    y, small, quotient = tanh_parts(x)
    t = y + quotient
    return select(small, 1.0 - t * t, -quotient * (2.0 + quotient)) * select(y > STEEPEST, FAR, 1.0)
