"""Functions made of exponentials, logarithms, powers and circular functions."""

import numpy as np

from tapegrad.ops.elementwise import slope_of_hypot
from tapegrad.ops.primitive import Real, elementwise
from tapegrad.ops.rules import formula
from tapegrad.ops.special.declare import declare, special

LINE, POSITIVE = (-np.inf, np.inf), (0.0, np.inf)

# ---------------------------------------------------------------- logistic


@formula
def slope_of_expit(x):
    """expit(x) expit(-x) by an exponential that is at most 1, as 1 - expit loses all digits."""
    e = np.exp(np.where(x > 0, -1.0, 1.0) * x)
    return e / np.square(1 + e)


@elementwise(forward=slope_of_expit)
def logistic_density(x, out):
    """The slope of the logistic function."""
    return -np.tanh(0.5 * x) * out


@declare()
def expit(x):
    """Logistic function."""
    slope = slope_of_expit(x)
    return slope


@declare()
def log_expit(x):
    """Logarithm of the logistic function."""
    e = np.exp(np.where(x > 0, -1.0, 1.0) * x)
    return np.where(x > 0, e, 1) / (1 + e)


@declare(domain=Real((0.0, 1.0)))
def logit(x):
    """Inverse of the logistic function; two terms, as derivatives of 1/(x (1 - x)) overflow."""
    return 1 / x + 1 / (1 - x)


# ---------------------------------------------------------------- entropies


@declare(domain=Real(LINE, POSITIVE))
def xlogy(x, y):
    """x log(y), 0 where x is."""
    still = np.where(x == 0, 1, 0)
    return np.log(y), np.where(still == 1, 0, x / np.where(still == 1, 1, y))


@declare(domain=Real(LINE, (-1.0, np.inf)))
def xlog1py(x, y):
    """x log(1 + y), 0 where x is."""
    still = np.where(x == 0, 1, 0)
    return np.log1p(y), np.where(still == 1, 0, x / np.where(still == 1, 1, 1 + y))


@declare(domain=Real(POSITIVE))
def entr(x):
    """-x log(x)."""
    return -np.log(x) - 1


@formula
def log_of_ratio(x, y):
    """log(x/y), near 1 by the difference, and of numbers whose ratio is none by two logarithms."""
    near = np.where(np.abs(x - y) < 0.5 * y, 1, 0)
    part = np.log1p(np.where(near == 1, x - y, 0) / np.where(near == 1, y, 1))
    p, q = np.where(near == 1, 1, x), np.where(near == 1, 1, y)
    far = np.where(np.abs(np.log(p) - np.log(q)) > 50, 1, 0)
    ratio = np.log(np.where(far == 1, 1, p) / np.where(far == 1, 1, q))
    return np.where(near == 1, part, np.where(far == 1, np.log(p) - np.log(q), ratio))


@declare(domain=Real(POSITIVE))
def rel_entr(x, y):
    """x log(x/y)."""
    ratio = log_of_ratio(x, y)
    still = np.where(x == 0, 1, 0)
    return ratio + 1, np.where(still == 1, 0, -x / np.where(still == 1, 1, y))


@declare(domain=Real(POSITIVE))
def kl_div(x, y):
    """x log(x/y) - x + y."""
    ratio = log_of_ratio(x, y)
    still = np.where(x == 0, 1, 0)
    z = np.where(still == 1, 1, y)
    return ratio, np.where(still == 1, 1, np.where(x < 0.5 * y, 1 - x / z, (y - x) / z))


@declare(domain=Real(POSITIVE, LINE))
def huber(delta, r):
    """Huber's loss."""
    size = np.abs(r)
    far = np.where(size > delta, 1, 0)
    return np.where(far == 1, size - delta, 0), np.where(far == 1, delta * np.sign(r), r)


@declare(domain=Real(POSITIVE, LINE))
def pseudo_huber(delta, r):
    """A smooth form of it, delta (radius - delta)."""
    radius = np.hypot(delta, r)
    safe = np.where(radius == 0, 1, radius)
    part = r * (r / (safe + delta))
    slope = slope_of_hypot(r, delta, safe)
    return part * (part / safe), delta * slope


# ---------------------------------------------------------------- powers


@formula
def moment(x):
    """The sum of x**k / (k! (k + 2)), the derivative of (exp(x) - 1)/x; near 0 its terms."""
    near = np.where(np.abs(x) < 1, 1, 0)
    t = np.where(near == 1, x, 0)
    p = 1 / 93405312000 + t * (1 / 1394852659200 + t * (1 / 22230464256000 + t / 376610217984000))
    p = 1 / 43545600 + t * (1 / 518918400 + t * (1 / 6706022400 + t * p))
    p = 1 / 45360 + t * (1 / 403200 + t * (1 / 3991680 + t * p))
    p = 1 / 144 + t * (1 / 840 + t * (1 / 5760 + t * p))
    p = 1 / 2 + t * (1 / 3 + t * (1 / 8 + t * (1 / 30 + t * p)))
    y = np.where(near == 1, 1, x)
    return np.where(near == 1, p, (np.exp(y) * (y - 1) + 1) / y / y)


@declare()
def exprel(x, out):
    """(exp(x) - 1)/x; beyond 700 the slope by the value, as of the next two: sums of no other sign."""
    far = np.where(x > 700, 1, 0)
    slope = moment(np.where(far == 1, 1, x))
    y = np.where(far == 1, x, 1)
    return np.where(far == 1, np.where(far == 1, out, 1) * (1 - 1 / y), slope)


@declare(domain=Real(POSITIVE, LINE))
def boxcox(x, lmbda, out):
    """(x**lmbda - 1)/lmbda."""
    base = np.log(x)
    far = np.where(lmbda * base > 700, 1, 0)
    slope = moment(np.where(far == 1, 1, lmbda * base))
    large = np.where(far == 1, out, 1) * (base - 1 / np.where(far == 1, lmbda, 1))
    return x ** (lmbda - 1), np.where(far == 1, large, np.square(base) * slope)


@declare(domain=Real((-1.0, np.inf), LINE))
def boxcox1p(x, lmbda, out):
    """((1 + x)**lmbda - 1)/lmbda."""
    base = np.log1p(x)
    far = np.where(lmbda * base > 700, 1, 0)
    slope = moment(np.where(far == 1, 1, lmbda * base))
    large = np.where(far == 1, out, 1) * (base - 1 / np.where(far == 1, lmbda, 1))
    return np.exp((lmbda - 1) * base), np.where(far == 1, large, np.square(base) * slope)


@formula
def slope_of_log1p(t):
    """The derivative of log(1 + t)/t."""
    near = np.where(np.abs(t) < 0.15, 1, 0)
    u = np.where(near == 1, t, 0)
    p = 14 / 15 - u * (15 / 16 - u * (16 / 17 - u * (17 / 18 - u * (18 / 19 - u * 19 / 20))))
    p = 8 / 9 - u * (9 / 10 - u * (10 / 11 - u * (11 / 12 - u * (12 / 13 - u * (13 / 14 - u * p)))))
    p = 1 / 2 - u * (2 / 3 - u * (3 / 4 - u * (4 / 5 - u * (5 / 6 - u * (6 / 7 - u * (7 / 8 - u * p))))))
    y = np.where(near == 1, 1, t)
    return np.where(near == 1, -p, (y / (1 + y) - np.log1p(y)) / y / y)


@declare(domain=Real(POSITIVE, POSITIVE))
def inv_boxcox(y, lmbda, out):
    """(1 + lmbda y)**(1/lmbda)."""
    slope = slope_of_log1p(lmbda * y)
    return out / (1 + lmbda * y), out * np.square(y) * slope


@declare(domain=Real(POSITIVE, POSITIVE))
def inv_boxcox1p(y, lmbda, out):
    """(1 + lmbda y)**(1/lmbda) - 1."""
    slope = slope_of_log1p(lmbda * y)
    return (out + 1) / (1 + lmbda * y), (out + 1) * np.square(y) * slope


@declare(domain=Real(POSITIVE, LINE))
def powm1(x, y):
    """x**y - 1."""
    return y * x ** (y - 1), x**y * np.log(x)


@declare()
def expm1(x):
    """exp(x) - 1."""
    return np.exp(x)


@declare(domain=Real((-1.0, np.inf)))
def log1p(x):
    """log(1 + x)."""
    return 1 / (1 + x)


@declare()
def exp2(x, out):
    """Power of two; the factor is log(2)."""
    return out * 0.6931471805599453


@declare()
def exp10(x, out):
    """Power of ten; the factor is log(10)."""
    return out * 2.302585092994046


@declare(domain=Real(POSITIVE))
def cbrt(x, out):
    """Cube root."""
    inverse = 1 / out
    return inverse * inverse / 3


# ---------------------------------------------------------------- circular functions


@declare()
def cosm1(x):
    """cos(x) - 1."""
    return -np.sin(x)


@declare()
def sindg(x):
    """Sine of degrees; the factor is pi/180, as of the next three."""
    return 0.017453292519943295 * special.cosdg(x)


@declare()
def cosdg(x):
    """Cosine of degrees."""
    return -0.017453292519943295 * special.sindg(x)


@declare()
def tandg(x):
    """Tangent of degrees."""
    cosine = special.cosdg(x)
    return 0.017453292519943295 / cosine / cosine


@declare()
def cotdg(x):
    """Cotangent of degrees."""
    sine = special.sindg(x)
    return -0.017453292519943295 / sine / sine


@declare()
def radian(d, m, s):
    """Degrees, minutes and seconds as radians."""
    return 0.017453292519943295, 0.0002908882086657216, 4.84813681109536e-06
