"""Elementary functions of complex numbers, as pairs of doubles, from which single precision rounds.

Special values are those of C99, annex G, and so NumPy's; division is R. L. Smith's (Algorithm 116, Comm. ACM
5, 1962), as NumPy's is. Where a factor e**x would overflow though the product does not, it is taken as
e**(x - 700) e**700. Sines are limited as those of real numbers are, NAME_ok(z); NAME_far(z) calls libm.
"""

from tapegrad.kernels.vecmath import exponential, inverse, logarithm, trigonometric
from tapegrad.kernels.vecmath.number import copysign, fma, libm, rint, select
from tapegrad.kernels.vecmath.number import sqrt as root
from tapegrad.kernels.vecmath.power import hypot

LARGE = 700.0
E_LARGE = 1.0142320547350045e304  # e**700
LOG_2_200 = 138.62943611198907  # log(2**200)
INFINITY = float("inf")
NEAR = trigonometric.sin, trigonometric.cos
FAR = (lambda x: libm("sin", x)), (lambda x: libm("cos", x))


def _exp(z, sin, cos):
    x, y = z
    far = x > LARGE
    size = exponential.exp(x - select(far, LARGE, 0.0))
    scale = select(far, E_LARGE, 1.0)
    real = select((abs(x) == INFINITY) & ~(abs(y) < INFINITY), select(x > 0.0, x, 0.0), cos(y) * scale * size)
    zero = (y == 0.0) | ((x == -INFINITY) & ~(abs(y) < INFINITY))
    return real, select(zero, copysign(0.0, y), sin(y) * scale * size)


def _hyperbolic(x):
    """cosh(x), sinh(x), both divided by a number, and that number."""
    far = abs(x) > LARGE
    size = exponential.exp(abs(x) - LARGE) * 0.5
    cosh = select(far, size, exponential.cosh(x))
    sinh = select(far, copysign(size, x), exponential.sinh(x))
    return cosh, sinh, select(far, E_LARGE, 1.0)


def _sinh(z, sin, cos):
    x, y = z
    c, s, scale = _hyperbolic(x)
    edge = ((x == 0.0) | (abs(x) == INFINITY)) & ~(abs(y) < INFINITY)
    return select(edge, x, cos(y) * scale * s), select(y == 0.0, y, sin(y) * scale * c)


def _cosh(z, sin, cos):
    x, y = z
    c, s, scale = _hyperbolic(x)
    edge = (abs(x) == INFINITY) & ~(abs(y) < INFINITY)
    zero = copysign(0.0, y) * copysign(1.0, x)
    flat = (y == 0.0) | ((x == 0.0) & ~(abs(y) < INFINITY))
    return select(edge, abs(x), cos(y) * scale * c), select(flat, zero, sin(y) * scale * s)


def exp(z):
    return _exp(z, *NEAR)


def exp_far(z):
    return _exp(z, *FAR)


def sinh(z):
    return _sinh(z, *NEAR)


def sinh_far(z):
    return _sinh(z, *FAR)


def cosh(z):
    return _cosh(z, *NEAR)


def cosh_far(z):
    return _cosh(z, *FAR)


def _turned(function):
    """sin(z) = -i sinh(iz) and cos(z) = cosh(iz)."""

    def sine(z):
        real, imag = function((-z[1], z[0]))
        return imag, -real

    def cosine(z):
        return function((-z[1], z[0]))

    return sine if function in (sinh, sinh_far) else cosine


sin, sin_far, cos, cos_far = map(_turned, (sinh, sinh_far, cosh, cosh_far))


def exp_ok(z):
    return trigonometric.sin_ok(z[1])


def sin_ok(z):
    return trigonometric.sin_ok(z[0])


sinh_ok = cosh_ok = exp_ok
cos_ok = sin_ok


def sqrt(z):
    """The root in the right half plane; scaled, so that nothing overflows or is subnormal on the way."""
    x, y = z
    largest = select(abs(x) > abs(y), abs(x), abs(y))
    up, down = largest < 1e-280, largest > 1e300
    scale = select(up, 2.0**200, select(down, 2.0**-4, 1.0))
    back = select(up, 2.0**-100, select(down, 4.0, 1.0))
    x, y = x * scale, y * scale
    t = root((abs(x) + hypot(x, y)) * 0.5)
    other = y / select(t == 0.0, 1.0, t + t)
    right = ~(x < 0.0)
    real, imag = select(right, t, abs(other)) * back, select(right, other, copysign(t, y)) * back
    endless = abs(y) == INFINITY
    return select(endless, INFINITY, real), select(endless, y, imag)


def log(z):
    """Near the unit circle log1p of the squares less 1, with their rounding errors."""
    x, y = abs(z[0]), abs(z[1])
    large, small = select(x < y, y, x), select(x < y, x, y)
    first, second = large * large, small * small
    high = first - 1.0
    total = high + second
    back = total - high
    low = (high - (total - back)) + (second - back) + fma(large, large, -first) + fma(small, small, -second)
    near = (first > 0.5) & (total < 1.0)
    up, down = large < 1e-280, large > 1e300
    scale = select(up, 2.0**200, select(down, 2.0**-200, 1.0))
    shift = select(up, LOG_2_200, select(down, -LOG_2_200, 0.0))
    far = logarithm.log(hypot(x * scale, y * scale)) - shift
    size = select(near, logarithm.log1p(total + low) * 0.5, far)
    return size, inverse.arctan2(z[1], z[0])


def _multiply(z, w):
    (a, b), (c, d) = z, w
    return a * c - b * d, a * d + b * c


def _choose(condition, z, w):
    return tuple(select(condition, a, b) for a, b in zip(z, w, strict=True))


def _pow(z, w, sin, cos):
    """As NumPy's: by products for whole numbers below 100."""
    (x, y), (c, d) = z, w
    whole = (d == 0.0) & (rint(c) == c) & (abs(c) < 100.0)
    rest = select(whole, abs(c), 0.0)
    one = select(whole, 1.0, 1.0), select(whole, 0.0, 0.0)
    product, base = one, z
    for _ in range(7):
        half = rint(rest * 0.5 - 0.25)  # without the last binary digit
        product = _choose(rest != half + half, _multiply(product, base), product)
        rest, base = half, _multiply(base, base)
    product = _choose(c < 0.0, divide(one, product), product)
    value = _choose(whole, product, _exp(_multiply(w, log(z)), sin, cos))
    lost = select(c > 0.0, 0.0, float("nan"))
    at_zero = (x == 0.0) & (y == 0.0) & ~((c == 0.0) & (d == 0.0))
    return _choose(at_zero, (lost, lost), value)


def pow(z, w):
    return _pow(z, w, *NEAR)


def pow_far(z, w):
    return _pow(z, w, *FAR)


def pow_ok(z, w):
    return trigonometric.sin_ok(_multiply(w, log(z))[1])


def divide(z, w):
    (a, b), (c, d) = z, w
    by_real = abs(c) >= abs(d)
    big, small = select(by_real, c, d), select(by_real, d, c)
    ratio = small / big
    scale = 1.0 / (big + small * ratio)
    first, second = select(by_real, a, b), select(by_real, b, a)
    real = (first + second * ratio) * scale
    imag = select(by_real, b - a * ratio, b * ratio - a) * scale
    nothing = (c == 0.0) & (d == 0.0)
    return select(nothing, a / abs(c), real), select(nothing, b / abs(d), imag)


def absolute(z):
    return hypot(*z), select(z[0] == z[0], 0.0, 0.0)


def sign(z):
    """z/abs(z), 0 at 0; of a number with an infinite part, the sign of that part."""
    x, y = z
    size = hypot(x, y)
    along = abs(x) == INFINITY
    lost = along & (abs(y) == INFINITY)
    limits = select(along, copysign(1.0, x), 0.0), select(along, 0.0, copysign(1.0, y))
    safe = select(size == 0.0, 1.0, size)

    def part(u, limit):
        limit = select(lost, float("nan"), limit)
        return select(size == 0.0, 0.0, select(size == INFINITY, limit, u / safe))

    return part(x, limits[0]), part(y, limits[1])


def greater(z, w):
    """As NumPy orders complex numbers: by real parts, then by imaginary parts."""
    (a, b), (c, d) = z, w
    return ((a > c) & (b == b) & (d == d)) | ((a == c) & (b > d))


def greater_equal(z, w):
    (a, b), (c, d) = z, w
    return ((a > c) & (b == b) & (d == d)) | ((a == c) & (b >= d))


def less(z, w):
    return greater(w, z)


def less_equal(z, w):
    return greater_equal(w, z)
