"""The error function and its kin, integrals of exp(x*x), and the normal distribution."""

import numpy as np

from tapegrad.ops.primitive import Real
from tapegrad.ops.rules import formula
from tapegrad.ops.special.declare import declare, special

UNIT = Real((-1.0, 1.0))


@declare()
def erf(x):
    """Error function; the factor is 2/sqrt(pi)."""
    return 1.1283791670955126 * np.exp(-x * x)


@declare()
def erfc(x):
    """Complement of the error function."""
    return -1.1283791670955126 * np.exp(-x * x)


@declare()
def erfi(x):
    """Imaginary error function."""
    return 1.1283791670955126 * np.exp(x * x)


@formula
def of_odd_factorials(z):
    """z - 3 z**2 + 15 z**3 - 105 z**4 ..."""
    p = 1 - 21 * z * (1 - 23 * z * (1 - 25 * z * (1 - 27 * z * (1 - 29 * z))))
    p = 1 - 11 * z * (1 - 13 * z * (1 - 15 * z * (1 - 17 * z * (1 - 19 * z * p))))
    return z * (1 - 3 * z * (1 - 5 * z * (1 - 7 * z * (1 - 9 * z * p))))


def _slope_of_erfcx(x, out):
    far = np.where(np.real(x) > 20, 1, 0)
    y = np.where(far == 1, x, 20)
    series = of_odd_factorials(0.5 / y / y)
    return np.where(far == 1, -1.1283791670955126 * series, 2 * x * out - 1.1283791670955126)


@declare(of_complex=_slope_of_erfcx)
def erfcx(x, out):
    """exp(x*x) erfc(x); from 10 on the asymptotic series of the derivative, whose two terms cancel."""
    far = np.where(x > 10, 1, 0)
    y = np.where(far == 1, x, 10)
    series = of_odd_factorials(0.5 / y / y)
    return np.where(far == 1, -1.1283791670955126 * series, 2 * x * out - 1.1283791670955126)


def _slope_of_dawsn(x, out):
    far = np.where(np.abs(np.real(x)) > 20, np.where(np.abs(np.imag(x)) < 10, 1, 0), 0)
    y = np.where(far == 1, x, 20)
    series = of_odd_factorials(-0.5 / y / y)
    return np.where(far == 1, series, 1 - 2 * x * out)


@declare(of_complex=_slope_of_dawsn)
def dawsn(x, out):
    """Dawson's integral; from 10 on as that of `erfcx`."""
    far = np.where(np.abs(x) > 10, 1, 0)
    y = np.where(far == 1, x, 10)
    series = of_odd_factorials(-0.5 / y / y)
    return np.where(far == 1, series, 1 - 2 * x * out)


@declare()
def wofz(x, out):
    """Faddeeva function, exp(-x*x) erfc(-i x); far above the real line as that of `erfcx`."""
    far = np.where(np.abs(x) > 20, np.where(np.imag(x) > -1, 1, 0), 0)
    y = np.where(far == 1, x, 20)
    series = of_odd_factorials(-0.5 / y / y)
    return np.where(far == 1, 1.1283791670955126j * series, 1.1283791670955126j - 2 * x * out)


@declare(domain=UNIT)
def erfinv(x, out):
    """Inverse of the error function; the factor is sqrt(pi)/2."""
    return 0.886226925452758 * np.exp(out * out)


@declare(domain=Real((0.0, 2.0)))
def erfcinv(x, out):
    """Inverse of the complement."""
    return -0.886226925452758 * np.exp(out * out)


@declare("fresnel", result=0)
def fresnel_s(x):
    """Fresnel's integral of the sine."""
    return special.sinpi(0.5 * x * x)


@declare("fresnel", result=1)
def fresnel_c(x):
    """Fresnel's integral of the cosine."""
    return special.cospi(0.5 * x * x)


@declare("_sinpi")
def sinpi(x):
    """sin(pi x)."""
    return np.pi * special.cospi(x)


@declare("_cospi")
def cospi(x):
    """cos(pi x)."""
    return -np.pi * special.sinpi(x)


# ---------------------------------------------------------------- normal distribution


@declare()
def ndtr(x):
    """Distribution function of the normal distribution; the factor is 1/sqrt(2 pi)."""
    return 0.3989422804014327 * np.exp(-0.5 * (x * x))


@formula
def hazard(x):
    """Density by distribution function; below 0 by erfcx, so that nothing underflows."""
    low = np.where(x < 0, 1, 0)
    left = 0.7978845608028654 / special.erfcx(-0.7071067811865476 * np.where(low == 1, x, 0))
    y = np.where(low == 1, 0, x)
    return np.where(low == 1, left, 0.3989422804014327 * np.exp(-0.5 * (y * y)) / special.ndtr(y))


def _slope_of_log_ndtr(x):
    return 0.3989422804014327 * np.exp(-0.5 * (x * x) - special.log_ndtr(x))


@declare(of_complex=_slope_of_log_ndtr)
def log_ndtr(x):
    """Logarithm of that."""
    ratio = hazard(x)
    return ratio


@declare(domain=Real((0.0, 1.0)))
def ndtri(x, out):
    """Inverse of the distribution function; the factor is sqrt(2 pi)."""
    return 2.5066282746310002 * np.exp(0.5 * (out * out))


@declare(domain=Real((-np.inf, 0.0)))
def ndtri_exp(x, out):
    """Inverse of its logarithm."""
    ratio = hazard(out)
    return 1 / ratio


@declare()
def owens_t(h, a):
    """Owen's function; the factors are 1/sqrt(8 pi) and 1/(2 pi)."""
    square = 1 + a * a
    by_h = -0.19947114020071635 * np.exp(-0.5 * (h * h)) * special.erf(0.7071067811865476 * a * h)
    return by_h, 0.15915494309189535 * np.exp(-0.5 * (h * h) * square) / square
