"""Further ufuncs and elementwise functions: inverse functions, other bases, remainders, choices."""

import math
import operator

import numpy as np

from tapegrad.ops import loops
from tapegrad.ops.elementwise import POSITIVE
from tapegrad.ops.primitive import Real, Vector, elementwise, primitive
from tapegrad.ops.rules import formula

UNIT = (-1.0, 1.0)

# ---------------------------------------------------------------- inverse functions


@formula
def slope_of_complex_arcsin(z):
    """1/sqrt(1 - z*z) by factors, as z*z overflows and 1 - z*z loses digits; roots for its branches."""
    return (1 / np.sqrt(1 - z)) * (1 / np.sqrt(1 + z))


@elementwise(forward=slope_of_complex_arcsin)
def reciprocal_root(z, out):
    """The slope of arcsin of complex numbers; of two factors each, near 0 those of the derivative cancel."""
    return (z * out) * out * out


@formula
def slope_of_complex_arctanh(z):
    """1/(1 - z*z), likewise."""
    return (1 / (1 - z)) * (1 / (1 + z))


@elementwise(forward=slope_of_complex_arctanh)
def reciprocal_difference(z, out):
    """The slope of arctanh of complex numbers."""
    return 2 * (z * out) * out


@formula
def slope_of_complex_arccosh(z):
    """1/sqrt(z*z - 1), likewise."""
    return (1 / np.sqrt(z - 1)) * (1 / np.sqrt(z + 1))


@elementwise(forward=slope_of_complex_arccosh)
def reciprocal_root_below(z, out):
    """The slope of arccosh of complex numbers."""
    return -(z * out) * out * out


def _slope_of_arcsin(x):
    slope = slope_of_complex_arcsin(x)
    return slope


def _slope_of_arccos(x):
    slope = slope_of_complex_arcsin(x)
    return -slope


def _slope_of_arcsinh(x):
    slope = slope_of_complex_arcsin(1j * x)
    return slope


def _slope_of_arccosh(x):
    slope = slope_of_complex_arccosh(x)
    return slope


def _slope_of_arctanh(x):
    slope = slope_of_complex_arctanh(x)
    return slope


def _slope_of_arctan(x):
    slope = slope_of_complex_arctanh(1j * x)
    return slope


@elementwise(
    np.arcsin, domain=Real(UNIT), of_complex=_slope_of_arcsin, node="asin", math=math.asin, vector=Vector()
)
def arcsin(x):
    """Inverse sine; 1 - x*x loses its digits near 1, but has the derivative -2x without loss, and at 1."""
    z = x * x
    plain = np.where(z < 0.25, 1, np.where(z == 1, 1, 0))
    return 1 / np.sqrt(np.where(plain == 1, 1 - z, (1 - x) * (1 + x)))


@elementwise(
    np.arccos, domain=Real(UNIT), of_complex=_slope_of_arccos, node="acos", math=math.acos, vector=Vector()
)
def arccos(x):
    """Inverse cosine."""
    z = x * x
    plain = np.where(z < 0.25, 1, np.where(z == 1, 1, 0))
    return -1 / np.sqrt(np.where(plain == 1, 1 - z, (1 - x) * (1 + x)))


@formula
def slope_of_arctan(x):
    """1/(1 + x*x) in one step: its derivative by that of a reciprocal has a divisor of x**4."""
    return 1 / (1 + x * x)


@elementwise(forward=slope_of_arctan)
def lorentzian(x, out):
    """The slope of arctan."""
    return -2 * (np.where(out == 0, 0, x) * out) * out


@elementwise(np.arctan, of_complex=_slope_of_arctan, node="atan", math=math.atan, vector=Vector())
def arctan(x):
    """Inverse tangent."""
    slope = slope_of_arctan(x)
    return slope


@elementwise(np.arcsinh, of_complex=_slope_of_arcsinh, node="asinh", math=math.asinh, vector=Vector())
def arcsinh(x):
    """Inverse hyperbolic sine; x*x would overflow."""
    return 1 / np.hypot(1, x)


@elementwise(
    np.arccosh, domain=Real((1.0, np.inf)), of_complex=_slope_of_arccosh, node="acosh", math=math.acosh,
    vector=Vector(),
)  # fmt: skip
def arccosh(x):
    """Inverse hyperbolic cosine; x*x - 1 would lose its digits near 1, and overflow.

    Two quotients, whose derivatives have the same signs: that of a product with 0 would be nan at 1.
    """
    return (1 / np.sqrt(x - 1)) * (1 / np.sqrt(x + 1))


@elementwise(
    np.arctanh, domain=Real(UNIT), of_complex=_slope_of_arctanh, node="atanh", math=math.atanh,
    vector=Vector(pole=True),
)  # fmt: skip
def arctanh(x):
    """Inverse hyperbolic tangent; 1 - x*x as for the inverse sine."""
    z = x * x
    plain = np.where(z < 0.25, 1, np.where(z == 1, 1, 0))
    return 1 / np.where(plain == 1, 1 - z, (1 - x) * (1 + x))


# ---------------------------------------------------------------- exponentials, logarithms, units


@elementwise(np.exp2, scalar=lambda x: 2.0**x, vector=Vector())
def exp2(x, out):
    """Power of two; the factor is log(2)."""
    return out * 0.6931471805599453


@elementwise(np.log2, domain=Real(POSITIVE), math=math.log2, vector=Vector(pole=True))
def log2(x):
    """Logarithm to base 2; the factor is 1/log(2)."""
    return 1.4426950408889634 / x


@elementwise(np.log10, domain=Real(POSITIVE), math=math.log10, vector=Vector(pole=True))
def log10(x):
    """Logarithm to base 10; the factor is 1/log(10)."""
    return 0.4342944819032518 / x


@elementwise(np.cbrt, domain=Real(POSITIVE), vector=Vector())
def cbrt(x, out):
    """Cube root; no product that is 0 where the derivative of the root is infinite."""
    inverse = 1 / out
    return inverse * inverse / 3


@formula
def slope_of_logaddexp(a, b):
    """exp(a)/(exp(a) + exp(b)) by an exponential that is at most 1, so that nothing overflows."""
    e = np.exp(np.where(a > b, b - a, a - b))
    return np.where(a > b, 1, e) / (1 + e)


@elementwise(forward=slope_of_logaddexp)
def logistic_of_difference(a, b):
    """The slope of logaddexp by its first operand."""
    e = np.exp(np.where(a > b, b - a, a - b))
    density = e / np.square(1 + e)
    return density, -density


@elementwise(np.logaddexp, vector=Vector(avx512="df"))
def logaddexp(a, b):
    """log(exp(a) + exp(b))."""
    first, second = slope_of_logaddexp(a, b), slope_of_logaddexp(b, a)
    return first, second


@elementwise(np.logaddexp2, vector=Vector(avx512="df"))
def logaddexp2(a, b):
    """log2(2**a + 2**b)."""
    e = 2.0 ** np.where(a > b, b - a, a - b)
    return np.where(a > b, 1, e) / (1 + e), np.where(a > b, e, 1) / (1 + e)


@elementwise(np.deg2rad, np.radians, aliases=(math.radians,), scalar=lambda x: x * (math.pi / 180.0))
def deg2rad(x):
    """Degrees as radians: pi/180."""
    return 0.017453292519943295


@elementwise(np.rad2deg, np.degrees, aliases=(math.degrees,), scalar=lambda x: x * (180.0 / math.pi))
def rad2deg(x):
    """Radians as degrees: 180/pi."""
    return 57.29577951308232


# ---------------------------------------------------------------- remainders and choices


@elementwise(np.remainder, domain=Real((-np.inf, np.inf), POSITIVE), aliases=(operator.mod,))
def remainder(a, b, out):
    """Remainder with the sign of the divisor; the quotient is a whole number, infinite by a divisor of 0."""
    quotient = np.where(out == b, 1, np.where(out == out, (out - a) / b, -a / b))
    return 1, np.rint(quotient)


@elementwise(np.fmod, domain=Real((-np.inf, np.inf), POSITIVE), aliases=(math.fmod,))
def fmod(a, b, out):
    """Remainder with the sign of the dividend."""
    return 1, np.rint(np.where(out == out, (out - a) / b, -a / b))


@elementwise(np.copysign, math=math.copysign)
def copysign(a, b, out):
    """The first with the sign of the second; derivative 0 where the first is 0."""
    return np.sign(a) * np.sign(out), 0


@elementwise(np.fmax, scalar=lambda a, b: np.where(a >= b, a, np.where(b == b, b, a)))
def fmax(a, b):
    """Larger value, a number rather than nan; a tie splits the derivative evenly."""
    first = np.where(a > b, 1, np.where(b == b, 0, 1))
    second = np.where(b > a, 1, np.where(a == a, 0, np.where(b == b, 1, 0)))
    return np.where(a == b, 0.5, first), np.where(a == b, 0.5, second)


@elementwise(np.fmin, scalar=lambda a, b: np.where(a <= b, a, np.where(b == b, b, a)))
def fmin(a, b):
    """Smaller value, a number rather than nan; a tie splits the derivative evenly."""
    first = np.where(a < b, 1, np.where(b == b, 0, 1))
    second = np.where(b < a, 1, np.where(a == a, 0, np.where(b == b, 1, 0)))
    return np.where(a == b, 0.5, first), np.where(a == b, 0.5, second)


# ---------------------------------------------------------------- functions of their own


def _slope_of_sinc(x, out):
    """As for real numbers below, by the quotients of neighbours in the power series of the derivative."""
    near = np.where(np.abs(x) < 0.5, 1, 0)
    y = np.where(near == 1, x, 0)
    z = -((np.pi * y) * (np.pi * y))
    p = 1 + z / 550
    p = 1 + z * p / 460
    p = 1 + z * p / 378
    p = 1 + z * p / 304
    p = 1 + z * p / 238
    p = 1 + z * p / 180
    p = 1 + z * p / 130
    p = 1 + z * p / 88
    p = 1 + z * p / 54
    p = 1 + z * p / 28
    p = 1 + z * p / 10
    series = -3.289868133696453 * y * p
    return np.where(near == 1, series, (np.cos(np.pi * x) - out) / np.where(near == 1, 1, x))


@elementwise(
    np.sinc, domain=Real((-1.2, 1.2)), of_complex=_slope_of_sinc,
    scalar=lambda x: np.where(x == 0, 1.0, np.sin(np.pi * x) / (np.pi * x)),
)  # fmt: skip
def sinc(x, out):
    """sin(pi x)/(pi x); the derivative is its power series where its two terms cancel.

    pi x is taken from the distance to the nearest integer, as its rounding grows with x.
    """
    whole = np.rint(x)
    odd = whole - 2 * np.floor(whole / 2)
    cosine = (1 - 2 * odd) * np.cos(np.pi * (x - whole))
    small = np.where(x < 0.5, np.where(x > -0.5, 1, 0), 0)
    y = np.where(small == 1, x, 0)
    z = y * y
    p = 2.635212528439638e-16 - z * 2.9963715631905143e-18
    p = 1.3217901389162318e-12 + z * (z * p - 2.013201508080888e-14)
    p = 3.4330769499642866e-09 + z * (z * p - 7.365893777096947e-11)
    p = 4.049947846619244e-06 + z * (z * p - 1.3148481279991994e-07)
    p = 0.001781145516372852 + z * (z * p - 9.766223126318933e-05)
    p = 0.2091827825412384 + z * (z * p - 0.023460810354558236)
    p = 3.2469697011334144 + z * (z * p - 1.1445109447325053)
    near = y * (z * p - 3.289868133696453)
    return np.where(small == 1, near, (cosine - out) / np.where(small == 1, 1, x))


def _bessel(x, order):
    """SciPy's, imported when first needed, which is nan at numbers below the normal ones."""
    from scipy import special

    return special.i1(x) if order == 1 else special.iv(order, np.where(np.abs(x) < 1e-200, 0, x))


@primitive(np.i0, forward=loops.i0, arity=1)
class i0:
    """Modified Bessel function of the first kind, order 0."""

    reads = (0b1,)

    def vjp(ct, out, inputs, wanted):
        return {0: ct * iv(*inputs, order=1)}

    def jvp(tangents, out, inputs):
        return tangents[0] * iv(*inputs, order=1)


def _slope(x, order):
    """The mean of the orders beside it: of one sign, so no digits cancel, near 0 either."""
    below = i0(x) if order == 1 else iv(x, order=order - 1)
    return 0.5 * (below + iv(x, order=order + 1))


@primitive(forward=_bessel, arity=1)
class iv:
    """Modified Bessel function of the first kind, of a whole order above 0."""

    reads = (0b1,)

    def vjp(ct, out, inputs, wanted, order):
        return {0: ct * _slope(*inputs, order)}

    def jvp(tangents, out, inputs, order):
        return tangents[0] * _slope(*inputs, order)
