"""Exponential and trigonometric integrals, hypergeometric functions, inverses and orthogonal polynomials.

Derivatives of hypergeometric functions are by the argument, those of polynomials by x.
"""

import numpy as np

from tapegrad.ops.primitive import Real
from tapegrad.ops.rules import formula
from tapegrad.ops.special.declare import declare, special

LINE, POSITIVE, UNIT = (-np.inf, np.inf), (0.0, np.inf), (-1.0, 1.0)

# ---------------------------------------------------------------- integrals


@declare()
def expi(x):
    """Exponential integral Ei."""
    return np.exp(x) / x


@declare(domain=Real(POSITIVE))
def exp1(x):
    """Exponential integral E1."""
    return -np.exp(-x) / x


@declare(unknown=("n",), domain=Real(POSITIVE))
def expn(n, x):
    """Generalised exponential integral En; that of order 0 is exp(-x)/x."""
    first = np.where(n == 0, 1, 0)
    at_first = np.exp(-x) / x * (1 + 1 / x)
    return None, np.where(first == 1, -at_first, -special.expn(np.where(n == 0, 1, n) - 1, x))


def _slope_of_si(x):
    return special.spherical_jn(0, x)


@declare("sici", result=0, of_complex=_slope_of_si)
def sine_integral(x):
    """Integral of sin(x)/x, which is a spherical Bessel function."""
    return special.spherical_jn(0, np.abs(x))


@declare("sici", result=1, domain=Real(POSITIVE))
def cosine_integral(x):
    """Cosine integral."""
    return np.cos(x) / x


def _slope_of_shi(x):
    return special.spherical_in(0, x)


@declare("shichi", result=0, of_complex=_slope_of_shi)
def hyperbolic_sine_integral(x):
    """Integral of sinh(x)/x, a modified one."""
    return special.spherical_in(0, np.abs(x))


@declare("shichi", result=1, domain=Real(POSITIVE))
def hyperbolic_cosine_integral(x):
    """Hyperbolic cosine integral."""
    return np.cosh(x) / x


@formula
def log1p_by_itself(t):
    """log(1 + t)/t."""
    near = np.where(np.abs(t) < 0.15, 1, 0)
    u = np.where(near == 1, t, 0)
    p = 1 / 14 - u * (1 / 15 - u * (1 / 16 - u * (1 / 17 - u * (1 / 18 - u * (1 / 19 - u / 20)))))
    p = 1 / 8 - u * (1 / 9 - u * (1 / 10 - u * (1 / 11 - u * (1 / 12 - u * (1 / 13 - u * p)))))
    p = 1 - u * (1 / 2 - u * (1 / 3 - u * (1 / 4 - u * (1 / 5 - u * (1 / 6 - u * (1 / 7 - u * p))))))
    y = np.where(near == 1, 0.5, t)
    return np.where(near == 1, p, np.log1p(y) / y)


def _slope_of_spence(x):
    ratio = log1p_by_itself(x - 1)
    return -ratio


@declare(domain=Real(POSITIVE), of_complex=_slope_of_spence)
def spence(x):
    """Dilogarithm of 1 - x; near 0 log(x) itself, as x - 1 loses its digits."""
    low = np.where(x < 0.5, 1, 0)
    ratio = log1p_by_itself(np.where(low == 1, 1, x) - 1)
    y = np.where(low == 1, x, 0.25)
    return np.where(low == 1, np.log(y) / (1 - y), -ratio)


# ---------------------------------------------------------------- hypergeometric


@declare(unknown=("v",), domain=Real(POSITIVE, LINE))
def hyp0f1(v, z):
    """Confluent hypergeometric limit function."""
    return None, special.hyp0f1(v + 1, z) / v


@declare(unknown=("a", "b"), domain=Real(POSITIVE, POSITIVE, LINE))
def hyp1f1(a, b, x):
    """Confluent hypergeometric function of the first kind."""
    return None, None, a / b * special.hyp1f1(a + 1, b + 1, x)


@declare(unknown=("a", "b", "c"), domain=Real(POSITIVE, POSITIVE, POSITIVE, UNIT))
def hyp2f1(a, b, c, z):
    """Gauss' hypergeometric function."""
    return None, None, None, a * b / c * special.hyp2f1(a + 1, b + 1, c + 1, z)


@declare(unknown=("a", "b"), domain=Real(POSITIVE))
def wright_bessel(a, b, x):
    """Wright's generalised Bessel function."""
    return None, None, special.wright_bessel(a, a + b, x)


# ---------------------------------------------------------------- inverses


@declare("_lambertw", unknown=("k", "tol"))
def lambertw(z, k, tol, out):
    """Lambert's function, the inverse of w exp(w)."""
    return np.exp(-out) / (1 + out), None, None


@declare()
def wrightomega(z, out):
    """Wright's omega, the inverse of w + log(w)."""
    return out / (1 + out)


# ---------------------------------------------------------------- orthogonal polynomials


@declare(unknown=("n",), whole=True, domain=Real(POSITIVE, UNIT))
def eval_legendre(n, x):
    """Legendre polynomial."""
    below = np.where(n == 0, 1, n) - 1
    return None, np.where(n == 0, 0, special.eval_gegenbauer(below, 1.5, x))


@declare(unknown=("n",), whole=True, domain=Real(POSITIVE, (0.0, 1.0)))
def eval_sh_legendre(n, x):
    """Shifted Legendre polynomial."""
    below = np.where(n == 0, 1, n) - 1
    return None, np.where(n == 0, 0, 2 * special.eval_gegenbauer(below, 1.5, 2 * x - 1))


@declare(unknown=("n", "alpha"), whole=True, domain=Real(POSITIVE, POSITIVE, UNIT))
def eval_gegenbauer(n, alpha, x):
    """Gegenbauer polynomial."""
    below = np.where(n == 0, 1, n) - 1
    return None, None, np.where(n == 0, 0, 2 * alpha * special.eval_gegenbauer(below, alpha + 1.0, x))


@declare(unknown=("n",), whole=True, domain=Real(POSITIVE, UNIT))
def eval_chebyt(n, x):
    """Chebyshev polynomial of the first kind."""
    below = np.where(n == 0, 1, n) - 1
    return None, np.where(n == 0, 0, n * special.eval_chebyu(below, x))


@declare(unknown=("n",), whole=True, domain=Real(POSITIVE, UNIT))
def eval_chebyu(n, x):
    """Chebyshev polynomial of the second kind."""
    below = np.where(n == 0, 1, n) - 1
    return None, np.where(n == 0, 0, 2 * special.eval_gegenbauer(below, 2.0, x))


@declare(unknown=("n",), whole=True, domain=Real(POSITIVE, (-2.0, 2.0)))
def eval_chebyc(n, x):
    """The first kind from -2 to 2."""
    below = np.where(n == 0, 1, n) - 1
    return None, np.where(n == 0, 0, n * special.eval_chebys(below, x))


@declare(unknown=("n",), whole=True, domain=Real(POSITIVE, (-2.0, 2.0)))
def eval_chebys(n, x):
    """The second kind from -2 to 2."""
    below = np.where(n == 0, 1, n) - 1
    return None, np.where(n == 0, 0, special.eval_gegenbauer(below, 2.0, 0.5 * x))


@declare(unknown=("n",), whole=True, domain=Real(POSITIVE, (0.0, 1.0)))
def eval_sh_chebyt(n, x):
    """Shifted Chebyshev polynomial of the first kind."""
    below = np.where(n == 0, 1, n) - 1
    return None, np.where(n == 0, 0, 2 * n * special.eval_sh_chebyu(below, x))


@declare(unknown=("n",), whole=True, domain=Real(POSITIVE, (0.0, 1.0)))
def eval_sh_chebyu(n, x):
    """Shifted Chebyshev polynomial of the second kind."""
    below = np.where(n == 0, 1, n) - 1
    return None, np.where(n == 0, 0, 4 * special.eval_gegenbauer(below, 2.0, 2 * x - 1))


@declare(unknown=("n",), whole=True, domain=Real(POSITIVE, LINE))
def eval_hermite(n, x):
    """Hermite polynomial, of physicists."""
    below = np.where(n == 0, 1, n) - 1
    return None, np.where(n == 0, 0, 2 * n * special.eval_hermite(below, x))


@declare(unknown=("n",), whole=True, domain=Real(POSITIVE, LINE))
def eval_hermitenorm(n, x):
    """Hermite polynomial, of probability theory."""
    below = np.where(n == 0, 1, n) - 1
    return None, np.where(n == 0, 0, n * special.eval_hermitenorm(below, x))


@declare(unknown=("n",), whole=True, domain=Real(POSITIVE))
def eval_laguerre(n, x):
    """Laguerre polynomial."""
    below = np.where(n == 0, 1, n) - 1
    return None, np.where(n == 0, 0, -special.eval_genlaguerre(below, 1.0, x))


@declare(unknown=("n", "alpha"), whole=True, domain=Real(POSITIVE))
def eval_genlaguerre(n, alpha, x):
    """Generalised Laguerre polynomial."""
    below = np.where(n == 0, 1, n) - 1
    return None, None, np.where(n == 0, 0, -special.eval_genlaguerre(below, alpha + 1.0, x))


@declare(unknown=("n", "alpha", "beta"), whole=True, domain=Real(POSITIVE, POSITIVE, POSITIVE, UNIT))
def eval_jacobi(n, alpha, beta, x):
    """Jacobi polynomial."""
    below = np.where(n == 0, 1, n) - 1
    part = 0.5 * (n + alpha + beta + 1) * special.eval_jacobi(below, alpha + 1.0, beta + 1.0, x)
    return None, None, None, np.where(n == 0, 0, part)
