"""All functions for single precision: computed in double with some 32 bits, and rounded once.

The formulas are those of double precision without what corrects rounding errors. Every intermediate result
is far from the limits of double precision, so that overflow, underflow and subnormal results come from the
conversion at the end. Arguments and results here are doubles that hold single-precision numbers. `logaddexp`
and `logaddexp2` are those of double precision, as their sums may cancel.
"""

import math

from tapegrad.kernels.vecmath import logarithm, trigonometric
from tapegrad.kernels.vecmath.coefficients import (
    ARCSIN_SINGLE,
    ARCTAN_SINGLE,
    COS_SINGLE,
    EXP2_SINGLE,
    EXP_SINGLE,
    LOG_SINGLE,
    POW_LOG_SINGLE,
    SIN_SINGLE,
    TAN_SINGLE,
)
from tapegrad.kernels.vecmath.exponential import LN2_HI, LN2_LO, LOG2_E, ROUND, power_of_two, within
from tapegrad.kernels.vecmath.inverse import HALF_PI, TAN_EIGHTH
from tapegrad.kernels.vecmath.logarithm import LN2, ONE_BITS, split, with_limits
from tapegrad.kernels.vecmath.number import bits, copysign, double, mad, polynomial, select, sqrt
from tapegrad.kernels.vecmath.power import cube_parts, is_one, signed_power, third_order
from tapegrad.kernels.vecmath.trigonometric import HALF_PI_1, SIGN_BIT, TWO_OVER_PI

LOG10_E = 0.4342944819032518
HALF_PI_REST = 2.563344151594519e-12  # pi/2 - HALF_PI_1


def _reduced(x):
    t = mad(x, LOG2_E, ROUND)
    n = t - ROUND
    r = mad(n, -LN2_LO, mad(n, -LN2_HI, x))
    return power_of_two(t), mad(r * r, polynomial(r, EXP_SINGLE), r)


def exp(x):
    scale, p = _reduced(within(x, -110.0, 90.0))
    return mad(scale, p, scale)


def exp2(x):
    x = within(x, -160.0, 130.0)
    t = x + ROUND
    r = x - (t - ROUND)
    return mad(r, polynomial(r, EXP2_SINGLE), 1.0) * power_of_two(t)


def expm1(x):
    scale, p = _reduced(within(x, -50.0, 90.0))
    return copysign(mad(scale, p, scale - 1.0), x)


def sinh(x):
    scale, p = _reduced(within(abs(x), 0.0, 91.0))
    e = mad(scale, p, scale - 1.0)
    return copysign(0.5 * (e + e / (e + 1.0)), x)


def cosh(x):
    scale, p = _reduced(within(abs(x), 0.0, 91.0))
    e = mad(scale, p, scale)
    return 0.5 * (e + 1.0 / e)


def tanh(x):
    y = within(abs(x), 0.0, 10.0)
    scale, p = _reduced(y + y)
    e = mad(scale, p, scale - 1.0)
    return copysign(e / (e + 2.0), x)


def _log(x, low=None, coefficients=LOG_SINGLE):
    """k and log(m) for x + low = 2**k m."""
    word = bits(x)
    k, exponent = split(word)
    f = double(word - exponent + ONE_BITS) - 1.0
    if low is not None:
        f = f + low * double(0x7FE0000000000000 - exponent)
    s = f / (2.0 + f)
    w = s * s
    return k, mad(s * w, polynomial(w, coefficients), s + s)


def log(x):
    k, f = _log(x)
    return with_limits(mad(k, LN2, f), x)


def log2(x):
    k, f = _log(x)
    return with_limits(mad(f, LOG2_E, k), x)


def log10(x):
    k, f = _log(x)
    return with_limits(mad(k, LN2, f) * LOG10_E, x)


def _log1p(x):
    u = 1.0 + x
    k, f = _log(u, x - (u - 1.0))
    return mad(k, LN2, f)


def log1p(x):
    return select(x == 0.0, x, with_limits(_log1p(x), x, -1.0))


def arcsinh(x):
    y = abs(x)
    w = y * y
    value = _log1p(y + w / (1.0 + sqrt(1.0 + w)))
    return copysign(select(y < math.inf, value, y), x)


def arccosh(x):
    t = x - 1.0
    value = _log1p(t + sqrt(mad(t, t, t + t)))
    return select(x < math.inf, select(x >= 1.0, value, math.nan), select(x == math.inf, math.inf, x))


def arctanh(x):
    y = abs(x)
    value = 0.5 * _log1p((y + y) / (1.0 - y))
    return copysign(select(y < 1.0, value, select(y == 1.0, math.inf, select(y == y, math.nan, y))), x)


def _quadrant(x):
    y = abs(x)
    t = mad(y, TWO_OVER_PI, ROUND)
    n = t - ROUND
    return bits(t), mad(n, -HALF_PI_REST, mad(n, -HALF_PI_1, y))


def _in_quadrant(quadrant, r):
    w = r * r
    sine = mad(r * w, polynomial(w, SIN_SINGLE), r)
    cosine = mad(w * w, polynomial(w, COS_SINGLE), mad(w, -0.5, 1.0))
    return bits(select((quadrant & 1) == 0, sine, cosine)) ^ ((quadrant & 2) << 62)


def sin(x):
    quadrant, r = _quadrant(x)
    return double(_in_quadrant(quadrant, r) ^ (bits(x) & SIGN_BIT))


def cos(x):
    quadrant, r = _quadrant(x)
    return double(_in_quadrant(quadrant + 1, r))


def tan(x):
    quadrant, r = _quadrant(x)
    w = r * r
    tangent = mad(r * w, polynomial(w, TAN_SINGLE), r)
    even = (quadrant & 1) == 0
    value = select(even, tangent, -1.0) / select(even, 1.0, tangent)
    return double(bits(value) ^ (bits(x) & SIGN_BIT))


sin_ok, cos_ok, tan_ok = trigonometric.sin_ok, trigonometric.cos_ok, trigonometric.tan_ok


def _arcsin(y):
    """Whether y < 1/2; arcsin of y, or of the root of (1 - y)/2."""
    near = y < 0.5
    half = mad(y, -0.5, 0.5)
    w = select(near, y * y, half)
    z = select(near, y, sqrt(half))
    return near, mad(z * w, polynomial(w, ARCSIN_SINGLE), z)


def arcsin(x):
    near, z = _arcsin(abs(x))
    return copysign(select(near, z, mad(z, -2.0, HALF_PI)), x)


def arccos(x):
    near, z = _arcsin(abs(x))
    signed = copysign(z, x)
    far = select(x < 0.0, mad(z, -2.0, 2.0 * HALF_PI), z + z)
    return select(near, HALF_PI - signed, far)


def _octant(small, large):
    upper = small > TAN_EIGHTH * large
    t = select(upper, small - large, small) / select(upper, small + large, large)
    w = t * t
    return mad(t * w, polynomial(w, ARCTAN_SINGLE), t) + select(upper, 0.5 * HALF_PI, 0.0)


def arctan(x):
    y = within(abs(x), 0.0, 1e17)
    steep = y > 1.0
    angle = _octant(select(steep, 1.0, y), select(steep, y, 1.0))
    return copysign(select(steep, HALF_PI - angle, angle), x)


def arctan2(y, x):
    a, b = within(abs(x), 0.0, 1e100), within(abs(y), 0.0, 1e100)  # infinity is far from other numbers
    steep = b > a
    large, small = select(steep, b, a), select(steep, a, b)
    angle = _octant(small, select(large == 0.0, 1.0, large))
    angle = select(steep, HALF_PI - angle, angle)
    value = copysign(select(bits(x) < 0, 2.0 * HALF_PI - angle, angle), y)
    return select((x != x) | (y != y), x + y, value)


def pow(x, y):
    z = abs(x)
    k, f = _log(z, coefficients=POW_LOG_SINGLE)
    b = select(z == 0.0, -math.inf, select(z < math.inf, mad(f, LOG2_E, k), z))
    return signed_power(exp2(select(is_one(z, y), 0.0, y * b)), x, y)


def cbrt(x):
    y = abs(x)
    t, m, r = cube_parts(y)
    r = third_order(m, r)
    value = (m * r) * r * double((bits(t) + 1023) << 52)
    return select((y > 0.0) & (y < math.inf), copysign(value, x), x)


def hypot(x, y):
    value = sqrt(mad(x, x, y * y))
    return select((abs(x) == math.inf) | (abs(y) == math.inf), math.inf, value)


logaddexp, logaddexp2 = logarithm.logaddexp, logarithm.logaddexp2
