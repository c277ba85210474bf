"""sin, cos and tan in double precision, for |x| <= 1e5.

|x| = n pi/2 + r + c with |r| <= pi/4: Cody and Waite's reduction with three parts, the first two of 37 bits,
so that products with n < 2**16 are exact. No double up to 1e5 is so close to a multiple of pi/2 that r loses
relative accuracy; c is the rounding error of r. tan(x) is tan(r) for even n and -1/tan(r) for odd n.
"""

from tapegrad.kernels.vecmath.coefficients import COS, SIN, TAN
from tapegrad.kernels.vecmath.exponential import ROUND
from tapegrad.kernels.vecmath.number import bits, double, mad, polynomial, select

TWO_OVER_PI = 0.6366197723675814
HALF_PI_1 = 1.5707963267923333  # 37 bits
HALF_PI_2 = 2.5633441515839558e-12  # 37 bits
HALF_PI_3 = 1.0562999066987428e-23
SIGN_BIT = -0x8000000000000000
FARTHEST = 1e5


def reduced(x):
    """The bits of n + ROUND, r and c."""
    y = abs(x)
    t = mad(y, TWO_OVER_PI, ROUND)
    n = t - ROUND
    first = mad(n, -HALF_PI_1, y)
    second = mad(n, -HALF_PI_2, first)
    # the rounding error of the second difference, which is zero wherever |first| < n HALF_PI_2
    error = mad(n, -HALF_PI_2, first - second)
    low = mad(n, -HALF_PI_3, error)
    r = second + low
    return bits(t), r, (second - r) + low


def in_quadrant(quadrant, r, c):
    """sin(r + c), cos(r + c), -sin(r + c) or -cos(r + c), by the last two bits."""
    w = r * r
    sine = r + mad(r * w, polynomial(w, SIN), c)
    u = mad(w, -0.5, 1.0)
    u_low = mad(w, -0.5, 1.0 - u)  # the rounding error of u
    cosine = u + mad(w * w, polynomial(w, COS), mad(r, -c, u_low))
    value = select((quadrant & 1) == 0, sine, cosine)
    return bits(value) ^ ((quadrant & 2) << 62)


def sin(x):
    quadrant, r, c = reduced(x)
    return double(in_quadrant(quadrant, r, c) ^ (bits(x) & SIGN_BIT))


def cos(x):
    quadrant, r, c = reduced(x)
    return double(in_quadrant(quadrant + 1, r, c))


def tan(x):
    quadrant, r, c = reduced(x)
    w = r * r
    u = mad(r * w, polynomial(w, TAN), mad(c, w, c))
    tangent = r + u
    low = (r - tangent) + u
    z = -1.0 / tangent
    cotangent = mad(z * z, low, z)  # -1/(tangent + low)
    value = select((quadrant & 1) == 0, tangent, cotangent)
    return double(bits(value) ^ (bits(x) & SIGN_BIT))


def sin_ok(x):
    return ~(abs(x) > FARTHEST)  # NaN is all right


cos_ok = tan_ok = sin_ok
