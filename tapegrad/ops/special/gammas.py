"""The gamma and beta functions, their logarithms and incomplete forms, and the distributions made of them."""

import math
from typing import Any

import numpy as np

from tapegrad.ops.primitive import Real, elementwise
from tapegrad.ops.rules import formula
from tapegrad.ops.special.declare import declare, plain, special

BERNOULLI = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330
)  # fmt: skip
STEPS = 100_000  # of series and fractions, as for a of some 1e8
POSITIVE, UNIT = (0.0, np.inf), (0.0, 1.0)


@formula
def slope_of_gammaln(x):
    """psi(x); left of 0 by reflection at the nearest whole number, as SciPy's loses digits right of poles."""
    low = np.where(x < 0, 1, 0)
    angle = np.pi * np.where(low == 1, x - np.rint(x), 0.25)
    turn = np.where(angle == 0, np.nan, np.pi / np.tan(angle))
    return special.psi(np.where(low == 1, 1 - x, x)) - np.where(low == 1, turn, 0)


def _slope_of_gamma(x, out):
    return out * special.psi(x)


@declare(domain=Real(POSITIVE), of_complex=_slope_of_gamma)
def gamma(x, out):
    """Gamma function."""
    slope = slope_of_gammaln(x)
    return out * slope


@declare(domain=Real(POSITIVE))
def gammaln(x):
    """Logarithm of the absolute value of the gamma function."""
    slope = slope_of_gammaln(x)
    return slope


@declare(domain=Real(POSITIVE))
def loggamma(x):
    """Principal branch of the logarithm of the gamma function."""
    return special.psi(x)


@formula
def slope_of_rgamma(x):
    """The derivative of 1/gamma(x); left of 1/2 by reflection, so that it is there at the poles too."""
    low = np.where(x < 0.5, 1, 0)
    y, z = np.where(low == 1, x, 0.25), np.where(low == 1, 1, x)
    left = special.cospi(y) - special.psi(1 - y) * special.sinpi(y) * 0.3183098861837907
    return np.where(low == 1, special.gamma(1 - y) * left, -special.psi(z) * special.rgamma(z))


def _slope_of_rgamma(x):
    return -special.psi(x) * special.rgamma(x)


@declare(of_complex=_slope_of_rgamma)
def rgamma(x):
    """1/gamma(x)."""
    slope = slope_of_rgamma(x)
    return slope


def _sum_of_powers(s: Any, z: Any) -> Any:
    """Hurwitz' zeta function of a whole s and complex z: steps upwards, then the asymptotic series."""
    s, z = float(s), np.asarray(z, complex)
    steps = 15 + np.ceil(np.max(-z.real, initial=0))
    if not steps < 1e5:
        return np.full(z.shape, np.nan, complex)
    found = np.zeros(z.shape, complex)
    for _ in range(int(steps)):
        found, z = found + z**-s, z + 1
    term = z**-s
    found = found + term * (z / (s - 1) + 0.5)
    for k, number in enumerate(BERNOULLI, 1):
        term = term * ((s + 2 * k - 2) * (s + 2 * k - 3) if k > 1 else s) / z ** (2 if k > 1 else 1)
        found = found + term * number / math.factorial(2 * k)
    return found


@plain(_sum_of_powers, "scipy.special.zeta of complex numbers", unknown=("s",))
def hurwitz(s, z):
    """The same for complex z, which SciPy does not have."""
    return None, -s * special.hurwitz(s + 1, z)


def _slope_of_psi(x):
    return special.hurwitz(2, x)


@declare(domain=Real(POSITIVE), of_complex=_slope_of_psi)
def psi(x):
    """Digamma function, the derivative of the logarithm of the gamma function."""
    return special.zeta(2, x)


@declare("_zeta", unknown=("x",), domain=Real((1.0, np.inf), POSITIVE))
def zeta(x, q):
    """Hurwitz' zeta function."""
    return None, -x * special.zeta(x + 1, q)


@declare("_riemann_zeta", unknown=("x",))
def riemann_zeta(x):
    """Riemann's zeta function."""
    return None


@formula
def steps_up(x, y, step):
    """psi(y) - psi(x) less psi(y + 12) - psi(x + 12), by y = x + step."""
    p = step / y / x + step / (y + 1) / (x + 1) + step / (y + 2) / (x + 2) + step / (y + 3) / (x + 3)
    p = p + step / (y + 4) / (x + 4) + step / (y + 5) / (x + 5) + step / (y + 6) / (x + 6)
    p = p + step / (y + 7) / (x + 7) + step / (y + 8) / (x + 8) + step / (y + 9) / (x + 9)
    return p + step / (y + 10) / (x + 10) + step / (y + 11) / (x + 11)


@formula
def step_of_large(x, y, step):
    """psi(y) - psi(x) by differences of the asymptotic series, from 12 on."""
    u, v = 1 / x, 1 / y
    a, b, d = u * u, v * v, step * u * v
    fourth, tenth = (
        a * a + a * b + b * b,
        a * a * a * a + a * a * a * b + a * a * b * b + a * b * b * b + b * b * b * b,
    )
    sums = 1 / 12 - (a + b) / 120 + fourth / 252 - (a + b) * (a * a + b * b) / 240 + tenth / 132
    sums = sums - 691 / 32760 * (a + b) * fourth * (a * a - a * b + b * b)
    return np.log1p(step * u) + d * (0.5 + (u + v) * sums)


@formula
def psi_step(x, step):
    """psi(x + step) - psi(x) without the difference, of small and of large numbers; below 0 by reflection."""
    y = x + step
    low = np.where(x < 0, np.where(y < 0.5, 1, 0), 0)
    same = np.where(low == 1, 1, np.where(x > 0, np.where(y > 0, 1, 0), 0))
    p, q = np.where(low == 1, 1 - x, np.where(same == 1, x, 20)), np.where(low == 1, 1 - y, y)
    q, by = np.where(same == 1, q, 20), np.where(low == 1, -step, np.where(same == 1, step, 0))
    near = np.where(p > 12, np.where(q > 12, 0, 1), 1)
    shift = 12.0 * near
    first = steps_up(np.where(near == 1, p, 1), np.where(near == 1, q, 1), np.where(near == 1, by, 0))
    rest = step_of_large(p + shift, q + shift, by)
    turn = special.sinpi(np.where(low == 1, step, 0))
    poles = np.where(turn == 0, 1, special.sinpi(x) * special.sinpi(y))
    s, t = np.where(same == 1, 1, x), np.where(same == 1, 1, y)
    other = special.psi(t) - special.psi(s)
    return np.where(same == 1, first + rest + np.pi * turn / poles, other)


@declare(domain=Real(POSITIVE))
def beta(a, b, out):
    """Beta function."""
    by_a = psi_step(a, b)
    by_b = psi_step(b, a)
    return -out * by_a, -out * by_b


@declare(domain=Real(POSITIVE))
def betaln(a, b):
    """Logarithm of its absolute value."""
    by_a = psi_step(a, b)
    by_b = psi_step(b, a)
    return -by_a, -by_b


@declare(domain=Real((3.0, np.inf), (0.0, 3.0)))
def binom(n, k, out):
    """Binomial coefficient; where it has zeros by 1/gamma and its derivative."""
    rest = n - (k - 1)
    low = np.where(rest < 0.5, np.where(n > -0.5, 1, 0), np.where(k < -0.5, np.where(n > -0.5, 1, 0), 0))
    low = np.where(np.abs(k) < 150, np.where(n < 150, low, 0), 0)
    none = np.where(out == 0, 1, low)
    by_n = psi_step(np.where(none == 1, 1, rest), np.where(none == 1, 0, k))
    by_k = psi_step(np.where(none == 1, 1, k + 1), np.where(none == 1, 0, n - 2 * k))
    p, q, whole = np.where(none == 1, rest, 1), np.where(none == 1, k + 1, 1), np.where(none == 1, n + 1, 1)
    above = slope_of_rgamma(p)
    below = slope_of_rgamma(q)
    scale, first, other = special.gamma(whole), special.rgamma(q), special.rgamma(p)
    part = np.where(low == 1, other * special.psi(np.where(low == 1, whole, 1)), 0)
    at_n, at_k = scale * first * (above + part), scale * (below * other - first * above)
    return np.where(none == 1, at_n, out * by_n), np.where(none == 1, at_k, out * by_k)


@declare(domain=Real(POSITIVE))
def poch(z, m, out):
    """Rising factorial, gamma(z + m)/gamma(z); at and near its zeros by 1/gamma and its derivative."""
    whole = z + m
    low = np.where(np.abs(z) < 0.01, np.where(np.abs(m) > 100 * np.abs(z), np.where(whole > 0, 1, 0), 0), 0)
    low = np.where(whole < 150, low, 0)
    none = np.where(out == 0, 1, low)
    by_z = psi_step(np.where(none == 1, 1, z), np.where(none == 1, 0, m))
    slope = slope_of_rgamma(np.where(none == 1, z, 1))
    scale = special.gamma(np.where(none == 1, whole, 1))
    part = special.rgamma(np.where(low == 1, z, 1)) * special.psi(np.where(low == 1, whole, 1))
    at_z = scale * (slope + np.where(low == 1, part, 0))
    by_m = slope_of_gammaln(whole)
    return np.where(none == 1, at_z, out * by_z), np.where(out == 0, 0, out * by_m)


# ---------------------------------------------------------------- incomplete gamma functions


@declare("_igam_fac", domain=Real(POSITIVE))
def igam_fac(a, x, out):
    """x**a exp(-x)/gamma(a)."""
    return out * (np.log(x) - special.psi(a)), out * (a / x - 1)


@formula
def density_of_gamma(a, x):
    """x**(a - 1) exp(-x)/gamma(a)."""
    end = np.where(x == 0, 1, 0)
    at_end = np.where(a > 1, 0, np.where(a < 1, np.inf, 1))
    return np.where(
        end == 1, at_end, special.igam_fac(a, np.where(end == 1, 1, x)) / np.where(end == 1, 1, x)
    )


@elementwise(forward=density_of_gamma)
def gamma_density(a, x, out):
    """That density; the two terms of the quotient's derivative cancel where x is small."""
    end = np.where(x == 0, 1, 0)
    y = np.where(end == 1, 1, x)
    below = np.where(a < 1, -np.inf, np.where(a == 1, -1, np.inf))
    at_end = np.where(a < 2, below, np.where(a == 2, 1, 0))
    by_a = np.where(end == 1, np.where(a > 1, 0, -np.inf), out * (np.log(y) - special.psi(a)))
    return by_a, np.where(end == 1, at_end, out * ((a - 1 - x) / y))


def _of_series(a: Any, x: Any) -> Any:
    """The derivative of `gammainc` by a, of its power series: for x below a + 1 no digits cancel."""
    term, total, weighted, weight = np.ones_like(x), np.ones_like(x), np.zeros_like(x), np.zeros_like(x)
    for n in range(1, STEPS):
        term = term * (x / (a + n))
        weight = weight + 1 / (a + n)
        total, weighted = total + term, weighted + term * weight
        if np.all(term * (1 + weight) < 1e-17 * total):
            return special.igam_fac(a, x) / a * (total * (np.log(x) - special.psi(a + 1)) - weighted)
    return np.full_like(x, np.nan)


def _of_fraction(a: Any, x: Any) -> Any:
    """The same of the continued fraction of `gammaincc`, by Lentz, for a larger x."""
    b = x + 1 - a
    d, found, inverse, slope_of_inverse = 1 / b, 1 / b, np.zeros_like(x), np.zeros_like(x)
    slope_of_d, slope = d * d, d
    for n in range(1, STEPS):
        numerator, b = -n * (n - a), b + 2
        slope_of_d = -(n * d + numerator * slope_of_d - 1)
        d = 1 / (numerator * d + b)
        slope_of_d = slope_of_d * d * d
        slope_of_c = n * inverse + numerator * slope_of_inverse - 1
        inverse = 1 / (b + numerator * inverse)
        slope_of_inverse = -slope_of_c * inverse * inverse
        factor, change = d / inverse, slope_of_d / d + slope_of_c * inverse
        found, slope = found * factor, slope + change
        if np.all(np.abs(factor - 1) + np.abs(change) < 1e-16 * (1 + np.abs(slope))):
            return -special.igam_fac(a, x) * found * (np.log(x) - special.psi(a) + slope)
    return np.full_like(x, np.nan)


def _gammainc_by_a(a: Any, x: Any) -> Any:
    """The derivative of `gammainc` by a; nan where a or x are below 0."""
    a, x = np.broadcast_arrays(np.asarray(a, float), np.asarray(x, float))
    found = np.where((a >= 0) & (x >= 0), 0.0, np.nan)
    inside = (a > 0) & (x > 0) & np.isfinite(a) & np.isfinite(x)
    for place, way in ((inside & (x < a + 1), _of_series), (inside & (x >= a + 1), _of_fraction)):
        if np.any(place):
            found[place] = way(a[place], x[place])
    none = (a == 0) & (x > 0)
    return np.where(none, -special.exp1(np.where(none, x, 1.0)), found)[()]


@plain(_gammainc_by_a, "the derivative of scipy.special.gammainc by a", unknown=("a",))
def gammainc_by_a(a, x):
    """The derivative of `gammainc` by a."""
    slope = density_of_gamma(a, x)
    return None, slope * (np.log(x) - special.psi(a))


@declare(domain=Real(POSITIVE))
def gammainc(a, x):
    """Lower incomplete gamma function, by the whole one."""
    slope = density_of_gamma(a, x)
    return special.gammainc_by_a(a, x), slope


@declare(domain=Real(POSITIVE))
def gammaincc(a, x):
    """Upper incomplete gamma function, by the whole one."""
    slope = density_of_gamma(a, x)
    return -special.gammainc_by_a(a, x), -slope


@declare(domain=Real(POSITIVE, UNIT))
def gammaincinv(a, y, out):
    """Inverse of the lower one."""
    slope = density_of_gamma(a, out)
    return -special.gammainc_by_a(a, out) / slope, 1 / slope


@declare(domain=Real(POSITIVE, UNIT))
def gammainccinv(a, y, out):
    """Inverse of the upper one."""
    slope = density_of_gamma(a, out)
    return -special.gammainc_by_a(a, out) / slope, -1 / slope


@declare(domain=Real(POSITIVE))
def chdtr(v, x):
    """Distribution function of chi squared."""
    slope = density_of_gamma(0.5 * v, 0.5 * x)
    return 0.5 * special.gammainc_by_a(0.5 * v, 0.5 * x), 0.5 * slope


@declare(domain=Real(POSITIVE))
def chdtrc(v, x):
    """Its complement."""
    slope = density_of_gamma(0.5 * v, 0.5 * x)
    return -0.5 * special.gammainc_by_a(0.5 * v, 0.5 * x), -0.5 * slope


@declare(domain=Real(POSITIVE, UNIT))
def chdtri(v, p, out):
    """Inverse of the complement."""
    slope = density_of_gamma(0.5 * v, 0.5 * out)
    return -special.gammainc_by_a(0.5 * v, 0.5 * out) / slope, -2 / slope


@declare(domain=Real(POSITIVE))
def gdtr(a, b, x):
    """Distribution function of the gamma distribution."""
    slope = density_of_gamma(b, a * x)
    return x * slope, special.gammainc_by_a(b, a * x), a * slope


@declare(domain=Real(POSITIVE))
def gdtrc(a, b, x):
    """Its complement."""
    slope = density_of_gamma(b, a * x)
    return -x * slope, -special.gammainc_by_a(b, a * x), -a * slope


@declare(domain=Real(POSITIVE, POSITIVE, UNIT))
def gdtrix(a, b, p, out):
    """Inverse of the distribution function."""
    slope = density_of_gamma(b, a * out)
    return -out / a, -special.gammainc_by_a(b, a * out) / (a * slope), 1 / (a * slope)


@declare(unknown=("k",), domain=Real(POSITIVE))
def pdtr(k, m):
    """Distribution function of Poisson's distribution."""
    slope = density_of_gamma(np.floor(k) + 1, m)
    return None, -slope


@declare(unknown=("k",), domain=Real(POSITIVE))
def pdtrc(k, m):
    """Its complement."""
    slope = density_of_gamma(np.floor(k) + 1, m)
    return None, slope


@declare(unknown=("k",), domain=Real(POSITIVE, UNIT))
def pdtri(k, y, out):
    """Inverse by the mean of the distribution."""
    slope = density_of_gamma(np.floor(k) + 1, out)
    return None, -1 / slope


# ---------------------------------------------------------------- incomplete beta functions


@declare("_beta_pdf", domain=Real(UNIT, POSITIVE, POSITIVE))
def beta_pdf(x, a, b, out):
    """x**(a - 1) (1 - x)**(b - 1)/beta(a, b)."""
    by_a = psi_step(a, b)
    by_b = psi_step(b, a)
    by_x = (a - 1) / x - (b - 1) / (1 - x)
    return out * by_x, out * (np.log(x) + by_a), out * (np.log1p(-x) + by_b)


def _slopes_of_fraction(a: Any, b: Any, x: Any, y: Any) -> Any:
    """Derivatives of `betainc` by a and b, of its continued fraction, by Lentz; y is 1 - x.

    For x below (a + 1)/(a + b + 2), where the fraction converges.
    """
    fraction = 1 - (a + b) * x / (a + 1)
    d, inverse, found = 1 / fraction, np.ones_like(x), 1 / fraction
    parts = (a + b) / (a + 1) ** 2 - 1 / (a + 1), -1 / (a + 1)  # of the first term by a and b, by x
    slopes_of_d = [-part * x * d * d for part in parts]
    slopes_of_inverse = [np.zeros_like(x), np.zeros_like(x)]
    slopes = [slope / d for slope in slopes_of_d]
    for n in range(1, STEPS):
        change = 0.0
        for term, by_a, by_b in _terms(n, a, b, x):
            moved = zip((by_a, by_b), slopes_of_d, slopes_of_inverse, strict=True)
            pairs = [(s * d + term * e, s * inverse + term * f) for s, e, f in moved]
            d, inverse = 1 / (1 + term * d), 1 / (1 + term * inverse)
            slopes_of_d = [-p * d * d for p, _ in pairs]
            slopes_of_inverse = [-q * inverse * inverse for _, q in pairs]
            factor = d / inverse
            steps = [-p * d + q * inverse for p, q in pairs]
            found, slopes = found * factor, [s + t for s, t in zip(slopes, steps, strict=True)]
            change = change + np.abs(factor - 1) + sum(np.abs(t) for t in steps)
        if np.all(change < 1e-16 * (1 + np.abs(slopes[0]) + np.abs(slopes[1]))):
            value = special.beta_pdf(x, a, b) * x * y * found / a
            log_x = np.where(x < 0.5, np.log(x), np.log1p(-y))
            log_y = np.where(y < 0.5, np.log(y), np.log1p(-x))
            by_a = value * (log_x + psi_step(a, b) - 1 / a + slopes[0])
            return by_a, value * (log_y + psi_step(b, a) + slopes[1])
    return np.full_like(x, np.nan), np.full_like(x, np.nan)


def _terms(n: int, a: Any, b: Any, x: Any) -> Any:
    """Two numerators of the fraction, with their derivatives by a and b."""
    p, q = a + (2 * n - 1), a + 2 * n
    term = n * (b - n) * x / (p * q)
    yield term, -term * (1 / p + 1 / q), n * x / (p * q)
    r, s, t = a + n, a + b + n, a + (2 * n + 1)
    rest = -x / (q * t)
    yield rest * r * s, rest * (r + s) - rest * r * s * (1 / q + 1 / t), rest * r


def _betainc_by(a: Any, b: Any, x: Any) -> Any:
    """The derivatives of `betainc` by a and b; nan outside of its domain."""
    a, b, x = np.broadcast_arrays(*(np.asarray(v, float) for v in (a, b, x)))
    inside = (a > 0) & (b > 0) & (x > 0) & (x < 1) & np.isfinite(a + b)
    none = np.where((a > 0) & (b > 0) & ((x == 0) | (x == 1)), 0.0, np.nan)
    found = none.copy(), none.copy()
    low = inside & (x * (a + b + 2) < a + 1)
    for place, swapped in ((low, False), (inside & ~low, True)):
        if np.any(place):
            p, q, v, w = a[place], b[place], x[place], 1 - x[place]
            if swapped:
                slopes = _slopes_of_fraction(q, p, w, v)
                found[0][place], found[1][place] = -slopes[1], -slopes[0]
            else:
                found[0][place], found[1][place] = _slopes_of_fraction(p, q, v, w)
    return found[0][()], found[1][()]


@plain(lambda *xs: _betainc_by(*xs)[0], "the derivative of scipy.special.betainc by a", unknown=("a", "b"))
def betainc_by_a(a, b, x):
    """The derivative of `betainc` by a."""
    return None, None, special.beta_pdf(x, a, b) * (np.log(x) + (special.psi(a + b) - special.psi(a)))


@plain(lambda *xs: _betainc_by(*xs)[1], "the derivative of scipy.special.betainc by b", unknown=("a", "b"))
def betainc_by_b(a, b, x):
    """The derivative of `betainc` by b."""
    return None, None, special.beta_pdf(x, a, b) * (np.log1p(-x) + (special.psi(a + b) - special.psi(b)))


@declare(domain=Real(POSITIVE, POSITIVE, UNIT))
def betainc(a, b, x):
    """Incomplete beta function, by the whole one."""
    return special.betainc_by_a(a, b, x), special.betainc_by_b(a, b, x), special.beta_pdf(x, a, b)


@declare(domain=Real(POSITIVE, POSITIVE, UNIT))
def betaincc(a, b, x):
    """Its complement."""
    return -special.betainc_by_a(a, b, x), -special.betainc_by_b(a, b, x), -special.beta_pdf(x, a, b)


@declare(domain=Real(POSITIVE, POSITIVE, UNIT))
def betaincinv(a, b, y, out):
    """Inverse of the incomplete beta function."""
    slope = special.beta_pdf(out, a, b)
    return -special.betainc_by_a(a, b, out) / slope, -special.betainc_by_b(a, b, out) / slope, 1 / slope


@declare(domain=Real(POSITIVE, POSITIVE, UNIT))
def betainccinv(a, b, y, out):
    """Inverse of the complement."""
    slope = special.beta_pdf(out, a, b)
    return -special.betainc_by_a(a, b, out) / slope, -special.betainc_by_b(a, b, out) / slope, -1 / slope


@formula
def density_of_bdtr(k, n, p):
    """The derivative of the complement of the binomial distribution; 0 where all of it is below k."""
    all_ = np.where(k >= n, 1, 0)
    return np.where(
        all_ == 1, 0, special.beta_pdf(p, np.floor(k) + 1, np.where(all_ == 1, 1, n - np.floor(k)))
    )


@declare(unknown=("k", "n"), domain=Real(POSITIVE, POSITIVE, UNIT))
def bdtr(k, n, p):
    """Distribution function of the binomial distribution."""
    slope = density_of_bdtr(k, n, p)
    return None, None, -slope


@declare(unknown=("k", "n"), domain=Real(POSITIVE, POSITIVE, UNIT))
def bdtrc(k, n, p):
    """Its complement."""
    slope = density_of_bdtr(k, n, p)
    return None, None, slope


@declare(unknown=("k", "n"), domain=Real(POSITIVE, POSITIVE, UNIT))
def bdtri(k, n, y, out):
    """Inverse by the probability."""
    slope = density_of_bdtr(k, n, out)
    return None, None, -1 / slope


@declare(unknown=("k", "n"), domain=Real(POSITIVE, POSITIVE, UNIT))
def nbdtr(k, n, p):
    """Distribution function of the negative binomial distribution."""
    return None, None, special.beta_pdf(p, n, np.floor(k) + 1)


@declare(unknown=("k", "n"), domain=Real(POSITIVE, POSITIVE, UNIT))
def nbdtrc(k, n, p):
    """Its complement."""
    return None, None, -special.beta_pdf(p, n, np.floor(k) + 1)


@formula
def density_of_f(n, d, x):
    """The density of the F distribution."""
    whole = d + n * x
    return special.beta_pdf(n * x / whole, 0.5 * n, 0.5 * d) * (n / whole) * (d / whole)


@declare(unknown=("dfn", "dfd"), domain=Real(POSITIVE))
def fdtr(dfn, dfd, x):
    """Distribution function of the F distribution."""
    slope = density_of_f(dfn, dfd, x)
    return None, None, slope


@declare(unknown=("dfn", "dfd"), domain=Real(POSITIVE))
def fdtrc(dfn, dfd, x):
    """Its complement."""
    slope = density_of_f(dfn, dfd, x)
    return None, None, -slope


@declare(unknown=("dfn", "dfd"), domain=Real(POSITIVE, POSITIVE, UNIT))
def fdtri(dfn, dfd, p, out):
    """Inverse of the distribution function."""
    slope = density_of_f(dfn, dfd, out)
    return None, None, 1 / slope


@formula
def density_of_t(v, t):
    """The density of Student's distribution, by that of t*t, or beyond its middle of the other part."""
    size = np.where(np.abs(t) < 1e-100, 1e-100, np.abs(t))
    square = size * size
    near, whole = np.where(square < v, 1, 0), v + square
    part = np.where(near == 1, square, v) / whole
    first, other = np.where(near == 1, 0.5, 0.5 * v), np.where(near == 1, 0.5 * v, 0.5)
    return special.beta_pdf(part, first, other) * (v / whole) * (size / whole)


@declare(unknown=("df",), domain=Real(POSITIVE, (-np.inf, np.inf)))
def stdtr(df, t):
    """Distribution function of Student's distribution."""
    slope = density_of_t(df, t)
    return None, slope


@declare(unknown=("df",), domain=Real(POSITIVE, UNIT))
def stdtrit(df, p, out):
    """Its inverse."""
    slope = density_of_t(df, out)
    return None, 1 / slope
