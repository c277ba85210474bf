"""Bessel functions, their scaled, modified and spherical forms, Airy, Struve, Kelvin and parabolic functions.

Derivatives are by the argument; none is known by the order.
"""

import numpy as np

from tapegrad.ops.primitive import Real
from tapegrad.ops.rules import formula
from tapegrad.ops.special.declare import declare, special

LINE, POSITIVE = (-np.inf, np.inf), (0.0, np.inf)
OF_POSITIVE = Real(LINE, POSITIVE)

# ---------------------------------------------------------------- of orders 0 and 1


@declare()
def j0(x):
    """Bessel function of the first kind, order 0."""
    return -special.j1(x)


@declare()
def j1(x):
    """Bessel function of the first kind, order 1."""
    return 0.5 * (special.j0(x) - special.jv(2, x))


@declare(domain=Real(POSITIVE))
def y0(x):
    """Bessel function of the second kind, order 0."""
    return -special.y1(x)


@declare(domain=Real(POSITIVE))
def y1(x):
    """Bessel function of the second kind, order 1."""
    return np.where(x == 0, np.inf, 0.5 * (special.y0(x) - special.yv(2, np.where(x == 0, 1, x))))


@declare()
def i0(x):
    """Modified Bessel function of the first kind, order 0."""
    return special.i1(x)


@declare()
def i1(x):
    """Modified Bessel function of the first kind, order 1; SciPy's of order 2 is nan at subnormal numbers."""
    tiny = np.where(np.abs(x) < 1e-100, 1, 0)
    square = np.square(np.where(tiny == 1, x, 0))
    second = np.where(tiny == 1, square * (0.125 + square / 96), special.iv(2, np.where(tiny == 1, 1, x)))
    return 0.5 * (special.i0(x) + second)


@declare(domain=Real(POSITIVE))
def k0(x):
    """Modified Bessel function of the second kind, order 0."""
    return -special.k1(x)


@declare(domain=Real(POSITIVE))
def k1(x, out):
    """Modified Bessel function of the second kind, order 1; SciPy's `kv` is 0 before it is."""
    return -special.k0(x) - out / x


# ---------------------------------------------------------------- of any order


@declare(unknown=("v",), domain=OF_POSITIVE)
def jv(v, z):
    """Bessel function of the first kind."""
    return None, 0.5 * (special.jv(v - 1, z) - special.jv(v + 1, z))


@declare(unknown=("v",), domain=OF_POSITIVE)
def yv(v, z, out):
    """Bessel function of the second kind; where it is infinite its slope is with the other sign."""
    pole = np.where(np.abs(out) == np.inf, 1, 0)
    y = np.where(pole == 1, 1, z)
    return None, np.where(pole == 1, -out, 0.5 * (special.yv(v - 1, y) - special.yv(v + 1, y)))


@declare(unknown=("n",), domain=OF_POSITIVE)
def yn(n, x, out):
    """Bessel function of the second kind and a whole order."""
    pole = np.where(np.abs(out) == np.inf, 1, 0)
    y = np.where(pole == 1, 1, x)
    return None, np.where(pole == 1, -out, 0.5 * (special.yv(n - 1, y) - special.yv(n + 1, y)))


@declare(unknown=("v",), domain=OF_POSITIVE)
def iv(v, z):
    """Modified Bessel function of the first kind."""
    return None, 0.5 * (special.iv(v - 1, z) + special.iv(v + 1, z))


@declare(unknown=("v",), domain=OF_POSITIVE)
def kv(v, z):
    """Modified Bessel function of the second kind."""
    return None, -0.5 * (special.kv(v - 1, z) + special.kv(v + 1, z))


@declare(unknown=("n",), domain=OF_POSITIVE)
def kn(n, x):
    """Modified Bessel function of the second kind and a whole order."""
    return None, -0.5 * (special.kv(n - 1, x) + special.kv(n + 1, x))


@declare(unknown=("v",), domain=OF_POSITIVE)
def hankel1(v, z):
    """Hankel function of the first kind."""
    return None, 0.5 * (special.hankel1(v - 1, z) - special.hankel1(v + 1, z))


@declare(unknown=("v",), domain=OF_POSITIVE)
def hankel2(v, z):
    """Hankel function of the second kind."""
    return None, 0.5 * (special.hankel2(v - 1, z) - special.hankel2(v + 1, z))


# ---------------------------------------------------------------- scaled by exponentials


@formula
def of_large(m, u):
    """The sum of (k + 1/2) t(k), terms t(k) of the asymptotic series of the modified functions.

    By u = 1/(8 x), of those of the first kind -1/(8 x), and four times the square of the order, m.
    """
    p = u * (m - 361) / 10 * 10.5
    p = u * (m - 289) / 9 * (9.5 + p)
    p = u * (m - 225) / 8 * (8.5 + p)
    p = u * (m - 169) / 7 * (7.5 + p)
    p = u * (m - 121) / 6 * (6.5 + p)
    p = u * (m - 81) / 5 * (5.5 + p)
    p = u * (m - 49) / 4 * (4.5 + p)
    p = u * (m - 25) / 3 * (3.5 + p)
    p = u * (m - 9) / 2 * (2.5 + p)
    return 0.5 + u * (m - 1) * (1.5 + p)


@formula
def slope_of_first(m, x):
    """The derivative of exp(-x) I(x) for a large x; the factor is 1/sqrt(2 pi)."""
    series = of_large(m, -0.125 / x)
    return -0.3989422804014327 * series / x / np.sqrt(x)


@formula
def slope_of_second(m, x):
    """The derivative of exp(x) K(x) for a large x; the factor is sqrt(pi/2)."""
    series = of_large(m, 0.125 / x)
    return -1.2533141373155003 * series / x / np.sqrt(x)


@declare()
def i0e(x, out):
    """exp(-abs(x)) I0(x); the two terms of the derivative cancel where x is large, as in the others."""
    size = np.abs(x)
    far = np.where(size > 50, 1, 0)
    series = slope_of_first(0, np.where(far == 1, size, 50))
    near = special.i1e(np.where(far == 1, 0, x)) - np.sign(x) * out
    return np.where(far == 1, np.sign(x) * series, near)


@declare()
def i1e(x, out):
    """exp(-abs(x)) I1(x)."""
    size = np.abs(x)
    far = np.where(size > 50, 1, 0)
    series = slope_of_first(4, np.where(far == 1, size, 50))
    y = np.where(far == 1, 0, x)
    return np.where(far == 1, series, 0.5 * (special.i0e(y) + special.ive(2, y)) - np.sign(x) * out)


@declare(domain=Real(POSITIVE))
def k0e(x):
    """exp(x) K0(x)."""
    far = np.where(x > 50, 1, 0)
    series = slope_of_second(0, np.where(far == 1, x, 50))
    y = np.where(x == 0, 1, x)
    return np.where(far == 1, series, np.where(x == 0, -np.inf, special.k0e(y) - special.k1e(y)))


@declare(domain=Real(POSITIVE))
def k1e(x):
    """exp(x) K1(x)."""
    far = np.where(x > 50, 1, 0)
    series = slope_of_second(4, np.where(far == 1, x, 50))
    y = np.where(x == 0, 1, x)
    near = special.k1e(y) * (1 - 1 / y) - special.k0e(y)
    return np.where(far == 1, series, np.where(x == 0, -np.inf, near))


@declare(unknown=("v",), domain=OF_POSITIVE, holomorphic=False)
def ive(v, z, out):
    """exp(-abs(z)) times the modified function of the first kind."""
    size = np.abs(z)
    far = np.where(size > 50 + 10 * v * v, 1, 0)
    series = slope_of_first(4.0 * v * v, np.where(far == 1, size, 50))
    near = 0.5 * (special.ive(v - 1, z) + special.ive(v + 1, z)) - np.sign(z) * out
    sign = np.where(z > 0, 1, np.sign(z) * np.sign(out))  # SciPy's value of a large z is nan
    return None, np.where(far == 1, sign * series, near)


def _slope_of_kve(v, z, out):
    return None, out - 0.5 * (special.kve(v - 1, z) + special.kve(v + 1, z))


@declare(unknown=("v",), domain=OF_POSITIVE, of_complex=_slope_of_kve)
def kve(v, z, out):
    """exp(z) times the modified function of the second kind."""
    far = np.where(z > 50 + 10 * v * v, 1, 0)
    series = slope_of_second(4.0 * v * v, np.where(far == 1, z, 50))
    pole = np.where(out == np.inf, 1, 0)
    y = np.where(pole == 1, 1, z)
    near = special.kve(v, y) - 0.5 * (special.kve(v - 1, y) + special.kve(v + 1, y))
    return None, np.where(far == 1, series, np.where(pole == 1, -out, near))


@declare(unknown=("v",), domain=OF_POSITIVE, holomorphic=False)
def jve(v, z):
    """exp(-abs(imag(z))) times the function of the first kind."""
    return None, 0.5 * (special.jve(v - 1, z) - special.jve(v + 1, z))


@declare(unknown=("v",), domain=OF_POSITIVE, holomorphic=False)
def yve(v, z, out):
    """exp(-abs(imag(z))) times the function of the second kind."""
    pole = np.where(np.abs(out) == np.inf, 1, 0)
    y = np.where(pole == 1, 1, z)
    return None, np.where(pole == 1, -out, 0.5 * (special.yve(v - 1, y) - special.yve(v + 1, y)))


@declare(unknown=("v",), domain=OF_POSITIVE)
def hankel1e(v, z, out):
    """exp(-i z) times Hankel's function of the first kind."""
    return None, 0.5 * (special.hankel1e(v - 1, z) - special.hankel1e(v + 1, z)) - 1j * out


@declare(unknown=("v",), domain=OF_POSITIVE)
def hankel2e(v, z, out):
    """exp(i z) times Hankel's function of the second kind."""
    return None, 0.5 * (special.hankel2e(v - 1, z) - special.hankel2e(v + 1, z)) + 1j * out


# ---------------------------------------------------------------- spherical


@declare("_spherical_jn", unknown=("n",), whole=True, domain=OF_POSITIVE)
def spherical_jn(n, z):
    """Spherical Bessel function of the first kind."""
    below = np.where(n == 0, 1, n) - 1
    return None, (n * special.spherical_jn(below, z) - (n + 1) * special.spherical_jn(n + 1, z)) / (2 * n + 1)


@declare("_spherical_jn_d", unknown=("n",), whole=True, domain=OF_POSITIVE)
def spherical_jn_d(n, z):
    """Its derivative."""
    below = np.where(n == 0, 1, n) - 1
    rest = (n + 1) * special.spherical_jn_d(n + 1, z)
    return None, (n * special.spherical_jn_d(below, z) - rest) / (2 * n + 1)


@declare("_spherical_yn", unknown=("n",), whole=True, domain=OF_POSITIVE)
def spherical_yn(n, z, out):
    """Spherical Bessel function of the second kind; where it is infinite as `yv`."""
    below, pole = np.where(n == 0, 1, n) - 1, np.where(np.abs(out) == np.inf, 1, 0)
    y = np.where(pole == 1, 1, z)
    slope = (n * special.spherical_yn(below, y) - (n + 1) * special.spherical_yn(n + 1, y)) / (2 * n + 1)
    return None, np.where(pole == 1, -out, slope)


@declare("_spherical_yn_d", unknown=("n",), whole=True, domain=OF_POSITIVE)
def spherical_yn_d(n, z, out):
    """Its derivative."""
    below, pole = np.where(n == 0, 1, n) - 1, np.where(np.abs(out) == np.inf, 1, 0)
    y = np.where(pole == 1, 1, z)
    rest = (n + 1) * special.spherical_yn_d(n + 1, y)
    return None, np.where(pole == 1, -out, (n * special.spherical_yn_d(below, y) - rest) / (2 * n + 1))


@declare("_spherical_in", unknown=("n",), whole=True, domain=OF_POSITIVE)
def spherical_in(n, z, out):
    """Modified spherical Bessel function of the first kind; where it is infinite its slope is, too."""
    below, pole = np.where(n == 0, 1, n) - 1, np.where(np.abs(out) == np.inf, 1, 0)
    y = np.where(pole == 1, 1, z)
    slope = (n * special.spherical_in(below, y) + (n + 1) * special.spherical_in(n + 1, y)) / (2 * n + 1)
    return None, np.where(pole == 1, out, slope)


@declare("_spherical_in_d", unknown=("n",), whole=True, domain=OF_POSITIVE)
def spherical_in_d(n, z, out):
    """Its derivative."""
    below, pole = np.where(n == 0, 1, n) - 1, np.where(np.abs(out) == np.inf, 1, 0)
    y = np.where(pole == 1, 1, z)
    rest = (n + 1) * special.spherical_in_d(n + 1, y)
    return None, np.where(pole == 1, out, (n * special.spherical_in_d(below, y) + rest) / (2 * n + 1))


@declare("_spherical_kn", unknown=("n",), whole=True, domain=OF_POSITIVE)
def spherical_kn(n, z, out):
    """Modified spherical Bessel function of the second kind."""
    below, pole = np.where(n == 0, 1, n) - 1, np.where(np.abs(out) == np.inf, 1, 0)
    y = np.where(pole == 1, 1, z)
    slope = (n * special.spherical_kn(below, y) + (n + 1) * special.spherical_kn(n + 1, y)) / (2 * n + 1)
    return None, np.where(pole == 1, -out, -slope)


@declare("_spherical_kn_d", unknown=("n",), whole=True, domain=OF_POSITIVE)
def spherical_kn_d(n, z, out):
    """Its derivative."""
    below, pole = np.where(n == 0, 1, n) - 1, np.where(np.abs(out) == np.inf, 1, 0)
    y = np.where(pole == 1, 1, z)
    rest = (n + 1) * special.spherical_kn_d(n + 1, y)
    return None, np.where(pole == 1, -out, -(n * special.spherical_kn_d(below, y) + rest) / (2 * n + 1))


# ---------------------------------------------------------------- Airy


@declare("airy", result=0)
def airy_ai(z):
    """Airy function Ai."""
    return special.airy_aip(z)


@declare("airy", result=1)
def airy_aip(z):
    """Its derivative."""
    return z * special.airy_ai(z)


@declare("airy", result=2)
def airy_bi(z):
    """Airy function Bi."""
    return special.airy_bip(z)


@declare("airy", result=3)
def airy_bip(z):
    """Its derivative."""
    return z * special.airy_bi(z)


# ---------------------------------------------------------------- Struve


@declare(unknown=("v",), domain=OF_POSITIVE)
def struve(v, x):
    """Struve function; the factor is 1/sqrt(pi)."""
    part = 0.5641895835477563 * (0.5 * x) ** v * special.rgamma(v + 1.5)
    return None, 0.5 * (special.struve(v - 1, x) - special.struve(v + 1, x) + part)


@declare(unknown=("v",), domain=OF_POSITIVE)
def modstruve(v, x):
    """Modified Struve function."""
    part = 0.5641895835477563 * (0.5 * x) ** v * special.rgamma(v + 1.5)
    return None, 0.5 * (special.modstruve(v - 1, x) + special.modstruve(v + 1, x) + part)


# ---------------------------------------------------------------- Kelvin


@declare()
def ber(x):
    """Kelvin function ber."""
    return special.berp(x)


@declare()
def bei(x):
    """Kelvin function bei."""
    return special.beip(x)


@declare(domain=Real(POSITIVE))
def ker(x):
    """Kelvin function ker."""
    return special.kerp(x)


@declare(domain=Real(POSITIVE))
def kei(x):
    """Kelvin function kei."""
    return special.keip(x)


@declare()
def berp(x, out):
    """Derivative of ber; near 0 the quotient is its power series, also to those who differentiate it."""
    near = np.where(np.abs(x) < 1, 1, 0)
    t = np.where(near == 1, 0.25 * x * x, 0)
    s = t * t
    series = t * (s * (1 - s * (1 - s / 2352) / 600) / 288 - 0.25)
    return -special.bei(x) - np.where(near == 1, series, out / np.where(near == 1, 1, x))


@declare()
def beip(x, out):
    """Derivative of bei, as for ber."""
    near = np.where(np.abs(x) < 1, 1, 0)
    t = np.where(near == 1, 0.25 * x * x, 0)
    s = t * t
    series = 0.5 - s * (1 - s * (1 - s * (1 - s / 4032) / 1260) / 240) / 24
    return special.ber(x) - np.where(near == 1, series, out / np.where(near == 1, 1, x))


@declare(domain=Real(POSITIVE))
def kerp(x, out):
    """Derivative of ker."""
    return -special.kei(x) - out / x


@declare(domain=Real(POSITIVE))
def keip(x, out):
    """Derivative of kei."""
    return special.ker(x) - out / x


# ---------------------------------------------------------------- integrals from 0


@declare("itj0y0", result=0, domain=Real(POSITIVE))
def integral_of_j0(x):
    """Integral of J0."""
    return special.j0(x)


@declare("itj0y0", result=1, domain=Real(POSITIVE))
def integral_of_y0(x):
    """Integral of Y0."""
    return special.y0(x)


@declare("iti0k0", result=0, domain=Real(POSITIVE))
def integral_of_i0(x):
    """Integral of I0."""
    return special.i0(x)


@declare("iti0k0", result=1, domain=Real(POSITIVE))
def integral_of_k0(x):
    """Integral of K0."""
    return special.k0(x)


# ---------------------------------------------------------------- parabolic cylinder


@declare("pbdv", result=0, unknown=("v",))
def pbdv_d(v, x):
    """Parabolic cylinder function D."""
    return None, special.pbdv_p(v, x)


@declare("pbdv", result=1, unknown=("v",))
def pbdv_p(v, x):
    """Its derivative."""
    return None, (0.25 * x * x - v - 0.5) * special.pbdv_d(v, x)


@declare("pbvv", result=0, unknown=("v",))
def pbvv_v(v, x):
    """Parabolic cylinder function V."""
    return None, special.pbvv_p(v, x)


@declare("pbvv", result=1, unknown=("v",))
def pbvv_p(v, x):
    """Its derivative."""
    return None, (0.25 * x * x - v - 0.5) * special.pbvv_v(v, x)


@declare("pbwa", result=0, unknown=("a",))
def pbwa_w(a, x):
    """Parabolic cylinder function W."""
    return None, special.pbwa_p(a, x)


@declare("pbwa", result=1, unknown=("a",))
def pbwa_p(a, x):
    """Its derivative."""
    return None, (a - 0.25 * x * x) * special.pbwa_w(a, x)
