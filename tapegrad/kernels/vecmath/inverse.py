"""arcsin, arccos, arctan and arctan2 in double precision.

arcsin(x) = x + x**3 P(x**2) below 1/2; above, pi/2 - 2 arcsin(s) with s**2 = (1 - |x|)/2, a difference that
is exact. arccos(x) is pi/2 - arcsin(x), or 2 arcsin(s) and pi - 2 arcsin(s). Where s counts most, its
rounding error is added.
The angle of (x, y) in the first octant is arctan(q) for q = smaller/larger; above tan(pi/8) it is
pi/4 + arctan((q - 1)/(q + 1)). One division by the denominator serves the quotient and its rounding error.
pi/2 and pi/4 are sums of two doubles.
"""

import math

from tapegrad.kernels.vecmath.coefficients import ARCSIN, ARCTAN
from tapegrad.kernels.vecmath.exponential import within
from tapegrad.kernels.vecmath.number import bits, copysign, double, fma, mad, polynomial, select, sqrt

HALF_PI = 1.5707963267948966
HALF_PI_LOW = 6.123233995736766e-17
TAN_EIGHTH = 0.41421356237309503
EXPONENT_BITS = 0x7FF0000000000000
LARGEST_SCALE = 0x7FD0000000000000  # exponent bits whose complement is a normal number's too


def _arcsin_parts(x):
    """Whether |x| < 1/2; arcsin of |x|, or of s, as z + tail."""
    y = abs(x)
    near = y < 0.5
    half = mad(y, -0.5, 0.5)
    w = select(near, y * y, half)
    s = sqrt(half)
    z = select(near, y, s)
    # of arcsin(s) the error of the root is the larger part; s = 0 has none
    low = select(near, 0.0, fma(-s, s, half) / select(s > 0.0, s + s, 1.0))
    return near, z, mad(z * w, polynomial(w, ARCSIN), low)


def arcsin(x):
    near, z, tail = _arcsin_parts(x)
    lead = HALF_PI - 2.0 * z
    rest = ((HALF_PI - lead) - 2.0 * z) + (HALF_PI_LOW - 2.0 * tail)
    return copysign(select(near, z + tail, lead + rest), x)


def arccos(x):
    near, z, tail = _arcsin_parts(x)
    # base + factor * (z + tail)
    negative = x < 0.0
    base = select(near, HALF_PI, select(negative, 2.0 * HALF_PI, 0.0))
    base_low = select(near, HALF_PI_LOW, select(negative, 2.0 * HALF_PI_LOW, 0.0))
    size = select(near, 1.0, 2.0)
    factor = select((~negative & near) | (negative & ~near), -size, size)
    z, tail = factor * z, factor * tail
    lead = base + z
    rest = ((base - lead) + z) + (base_low + tail)
    return lead + rest


def _octant(small, large):
    """arctan(small/large) for 0 <= small <= large, 0 < large, as base + (t + tail)."""
    upper = small > TAN_EIGHTH * large
    top = select(upper, small - large, small)
    bottom = select(upper, small + large, large)
    top_low = select(upper, (small - (top + large)), 0.0)
    bottom_low = select(upper, (large - bottom) + small, 0.0)
    inverse = 1.0 / bottom
    t = top * inverse
    t_low = (fma(-t, bottom, top) + mad(-t, bottom_low, top_low)) * inverse
    w = t * t
    tail = mad(t * w, polynomial(w, ARCTAN), t_low)
    return select(upper, 0.5, 0.0), t, tail


def _angle(quarters, t, tail):
    """quarters * pi/2 + t + tail, for quarters a multiple of 1/2."""
    base = quarters * HALF_PI
    lead = base + t
    return lead + (((base - lead) + t) + mad(quarters, HALF_PI_LOW, tail))


def arctan(x):
    y = within(abs(x), 0.0, 1e17)  # pi/2 from there on
    steep = y > 1.0
    quarters, t, tail = _octant(select(steep, 1.0, y), select(steep, y, 1.0))
    quarters = select(steep, 1.0 - quarters, quarters)
    value = _angle(quarters, select(steep, -t, t), select(steep, -tail, tail))
    return copysign(value, x)


def arctan2(y, x):
    a, b = abs(x), abs(y)
    steep = b > a
    large, small = select(steep, b, a), select(steep, a, b)
    exponent = bits(large) & EXPONENT_BITS
    exponent = select(exponent < LARGEST_SCALE, exponent, LARGEST_SCALE)
    scale = double(0x7FE0000000000000 - exponent)  # large becomes 1 to 4; a subnormal number 2**-51 or more
    both = small == math.inf
    none = large == 0.0
    small = select(large == math.inf, select(both, 1.0, 0.0), small * scale)
    large = select((large == math.inf) | none, 1.0, large * scale)
    quarters, t, tail = _octant(small, large)
    sign = select(steep, -1.0, 1.0)
    quarters = select(steep, 1.0 - quarters, quarters)
    left = bits(x) < 0
    quarters = select(left, 2.0 - quarters, quarters)
    sign = select(left, -sign, sign)
    value = copysign(_angle(quarters, t * sign, tail * sign), y)
    return select((x != x) | (y != y), x + y, value)
