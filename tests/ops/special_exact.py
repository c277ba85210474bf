"""Functions of `scipy.special` as mpmath has them, and where they are measured.

A row is a function, its operands with X for the one that moves, the same by mpmath, and the decades in which
points are drawn: of distances from an end of the domain, to one side or to both.
"""

from typing import Any, NamedTuple

import mpmath as mp
import scipy.special as sp

X = object()
PI, ONE = mp.pi, mp.mpf(1)


class Row(NamedTuple):
    """One operand of one function.

    Attributes
    ----------
    name, args
        The function, and its operands.
    exact
        What it is, of the operand that moves.
    places
        Triples: an end, the direction from there, and the decades.
    result
        Which one, of several.
    scale
        What an error is measured by beside zeros of the derivative: its size around them.
    digits
        That mpmath computes with.
    again
        Whether the derivative can be recorded.
    """

    name: str
    args: tuple[Any, ...]
    exact: Any
    places: Any
    result: int | None = None
    scale: Any = None
    digits: int = 40
    again: bool = True


def line(low, high):
    return [(0.0, 1, (low, high)), (0.0, -1, (low, high))]


def right(low, high, end=0.0):
    return [(end, 1, (low, high))]


def unit(low=-8):
    return [(0.0, 1, (low, 0)), (1.0, -1, (low, 0))]


def ncdf(x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


def root(f, df, start, steps=60):
    x = mp.mpf(start)
    for _ in range(steps):
        move = f(x) / df(x)
        x -= move
        if abs(move) <= abs(x) * mp.eps * 8:
            break
    return x


def inverse(name, f, args):
    """The inverse of a function, from SciPy's value."""

    def g(y):
        start = float(getattr(sp, name)(*[float(y) if a is X else a for a in args]))
        return root(lambda x: f(x) - y, lambda x: mp.diff(f, x), start, 6)

    return g


ROWS: list[Row] = []
# Digits where the function is near a constant, or far from 1.
DIGITS = {
    "erf": 120, "gammaincc": 330, "erfc": 320,
    "powm1": 120, "inv_boxcox": 60, "inv_boxcox1p": 60, "log_ndtr": 330, "ndtr": 330,
    "expit": 330, "log_expit": 330, "expm1": 330, "ellipkm1": 330, "iti0k0": 20, "itj0y0": 20,
}  # fmt: skip
SCALES: dict[str, Any] = {
    "fresnel": lambda x: 1.0,
    "ive": lambda x: 0.1 / x**1.5,
    "sici": lambda x: 1 / max(x, 1.0),
    **dict.fromkeys(
        ("j0", "j1", "y0", "y1", "jv", "jn", "yv", "yn", "jve", "yve"), lambda x: min(1.0, abs(x) ** -0.5)
    ),
}
# Derivatives of what is all but constant far from 0, where differences cancel hundreds of digits.
SLOPES: dict[str, Any] = {
    "expit": lambda x: mp.exp(-abs(x)) / (1 + mp.exp(-abs(x))) ** 2,
    "log_expit": lambda x: mp.exp(-x) / (1 + mp.exp(-x)),
}
# Where SciPy's own value is no better: of large arguments, or by series cut short.
STATED = {"beta": 1e-9, "poch": 1e-10, "ber": 5e-9, "bei": 5e-9, "ker": 5e-9, "kei": 5e-9, "berp": 5e-9,
          "beip": 5e-9, "kerp": 5e-9, "keip": 5e-9, "fresnel": 5e-12}  # fmt: skip


def row(name, args, exact, places, result=None):
    args = args if isinstance(args, tuple) else (args,)
    by_a = name.startswith(("gammainc", "chdtr", "gdtr")) and args[name.startswith("gdtr")] is X
    by_a = by_a or (name.startswith("betainc") and args[2] is not X)
    by_m = name in ("ellipkinc", "ellipeinc") and args[1] is X
    again = not (by_a or by_m or name.startswith("ellipr"))
    ROWS.append(Row(name, args, exact, places, result, SCALES.get(name), DIGITS.get(name, 40), again))


# ---- errors
row("erf", X, mp.erf, line(-6, 1))
row("erfc", X, mp.erfc, line(-6, 1.4))
row("erfi", X, mp.erfi, line(-6, 1.4))
row("erfcx", X, lambda x: mp.exp(x * x) * mp.erfc(x), [(0.0, 1, (-6, 6)), (0.0, -1, (-6, 1.4))])
row("dawsn", X, lambda x: mp.sqrt(PI) / 2 * mp.exp(-x * x) * mp.erfi(x), line(-6, 2))
row("erfinv", X, mp.erfinv, [(0.0, 1, (-6, 0)), (1.0, -1, (-15, 0)), (-1.0, 1, (-15, 0))])
row(
    "erfcinv",
    X,
    lambda y: root(
        lambda x: mp.erfc(x) - y, lambda x: -2 / mp.sqrt(PI) * mp.exp(-x * x), sp.erfcinv(float(y))
    ),
    [(0.0, 1, (-300, -280)), (0.0, 1, (-10, 0)), (2.0, -1, (-12, 0))],
)
row("ndtr", X, ncdf, line(-6, 1.5))
row("log_ndtr", X, lambda x: mp.log(ncdf(x)), [(0.0, 1, (-6, 1.5)), (0.0, -1, (-6, 4))])
row(
    "ndtri",
    X,
    lambda y: root(lambda x: ncdf(x) - y, mp.npdf, sp.ndtri(float(y))),
    [(0.0, 1, (-300, -290)), (0.0, 1, (-12, 0)), (1.0, -1, (-12, 0))],
)
row(
    "ndtri_exp",
    X,
    lambda y: root(lambda x: mp.log(ncdf(x)) - y, lambda x: mp.npdf(x) / ncdf(x), sp.ndtri_exp(float(y))),
    [(0.0, -1, (-15, 6))],
)
row(
    "owens_t",
    (X, 0.7),
    lambda h: mp.quad(lambda t: mp.exp(-h * h * (1 + t * t) / 2) / (1 + t * t), [0, mp.mpf(0.7)]) / (2 * PI),
    line(-4, 1),
)
row(
    "owens_t",
    (0.7, X),
    lambda a: (
        mp.quad(lambda t: mp.exp(-(mp.mpf(0.7) ** 2) * (1 + t * t) / 2) / (1 + t * t), [0, a]) / (2 * PI)
    ),
    line(-4, 1),
)
row("fresnel", X, mp.fresnels, line(-4, 2), 0)
row("fresnel", X, mp.fresnelc, line(-4, 2), 1)
# ---- elementary
row("expit", X, lambda x: 1 / (1 + mp.exp(-x)), line(-6, 2.8))
row("log_expit", X, lambda x: -mp.log(1 + mp.exp(-x)), line(-6, 2.8))
row("logit", X, lambda x: mp.log(x / (1 - x)), [(0.0, 1, (-300, -295)), *unit(-15)])
row("xlogy", (X, 0.3), lambda x: x * mp.log(mp.mpf(0.3)), line(-6, 6))
row("xlogy", (0.3, X), lambda y: mp.mpf(0.3) * mp.log(y), right(-6, 6))
row("xlog1py", (X, 0.3), lambda x: x * mp.log1p(mp.mpf(0.3)), line(-6, 6))
row("xlog1py", (0.3, X), lambda y: mp.mpf(0.3) * mp.log1p(y), right(-6, 6, -1.0))
row("entr", X, lambda x: -x * mp.log(x), right(-6, 6))
row("rel_entr", (X, 0.3), lambda x: x * mp.log(x / mp.mpf(0.3)), right(-6, 6))
row("rel_entr", (0.3, X), lambda y: mp.mpf(0.3) * mp.log(mp.mpf(0.3) / y), right(-6, 6))
row(
    "kl_div",
    (X, 0.3),
    lambda x: x * mp.log(x / mp.mpf(0.3)) - x + mp.mpf(0.3),
    [*right(-6, 6), *right(-10, -1, 0.3)],
)
row(
    "kl_div",
    (0.3, X),
    lambda y: mp.mpf(0.3) * mp.log(mp.mpf(0.3) / y) + y,
    [*right(-6, 6), *right(-10, -1, 0.3)],
)
row("huber", (X, 2.0), lambda d: mp.mpf(2) if d > 2 else d * (2 - d / 2), right(-6, 6))
row("huber", (2.0, X), lambda r: 2 * (abs(r) - 1) if abs(r) > 2 else r * r / 2, line(-6, 6))
row("pseudo_huber", (X, 2.0), lambda d: d * d * (mp.sqrt(1 + (2 / d) ** 2) - 1), right(-6, 6))
row("pseudo_huber", (2.0, X), lambda r: 4 * (mp.sqrt(1 + (r / 2) ** 2) - 1), line(-6, 6))
row("exprel", X, lambda x: mp.expm1(x) / x, line(-6, 2))
row("boxcox", (X, 0.7), lambda x: (x ** mp.mpf(0.7) - 1) / mp.mpf(0.7), right(-6, 6))
row("boxcox", (2.5, X), lambda m: (mp.mpf(2.5) ** m - 1) / m, line(-6, 2))
row("boxcox1p", (X, 0.7), lambda x: ((1 + x) ** mp.mpf(0.7) - 1) / mp.mpf(0.7), right(-6, 6, -1.0))
row("boxcox1p", (1.5, X), lambda m: (mp.mpf(2.5) ** m - 1) / m, line(-6, 2))
row("inv_boxcox", (X, 0.7), lambda y: (1 + mp.mpf(0.7) * y) ** (1 / mp.mpf(0.7)), right(-6, 6))
row("inv_boxcox", (1.5, X), lambda m: (1 + m * 1.5) ** (1 / m), right(-6, 6))
row("inv_boxcox1p", (X, 0.7), lambda y: (1 + mp.mpf(0.7) * y) ** (1 / mp.mpf(0.7)) - 1, right(-6, 6))
row("inv_boxcox1p", (1.5, X), lambda m: (1 + m * 1.5) ** (1 / m) - 1, right(-6, 6))
row("powm1", (X, 0.7), lambda x: x ** mp.mpf(0.7) - 1, right(-6, 6))
row("powm1", (2.5, X), lambda y: mp.mpf(2.5) ** y - 1, line(-6, 2))
row("expm1", X, mp.expm1, line(-6, 2.8))
row("log1p", X, mp.log1p, right(-12, 6, -1.0))
row("exp2", X, lambda x: mp.mpf(2) ** x, line(-6, 2.8))
row("exp10", X, lambda x: mp.mpf(10) ** x, line(-6, 2.4))
row("cbrt", X, mp.cbrt, right(-6, 6))
row("cosm1", X, lambda x: mp.cos(x) - 1, line(-6, 2))
row("sindg", X, lambda x: mp.sin(x * PI / 180), line(-6, 2))
row("cosdg", X, lambda x: mp.cos(x * PI / 180), line(-6, 2))
row("tandg", X, lambda x: mp.tan(x * PI / 180), line(-6, 1.9))
row("cotdg", X, lambda x: mp.cot(x * PI / 180), line(-6, 1.9))
# ---- gammas
BELOW = [(0.0, -1, (-6, 1.5)), (-3.0, 1, (-12, -1))]
row("gamma", X, mp.gamma, [*right(-6, 2.2), *BELOW])
row("gammaln", X, lambda x: mp.log(abs(mp.gamma(x))), [*right(-6, 6), *BELOW])
row("loggamma", X, mp.loggamma, right(-6, 6))
row("rgamma", X, mp.rgamma, [*right(-6, 2.2), (0.0, -1, (-6, 1.5))])
row("psi", X, mp.digamma, [*right(-6, 6), (0.0, -1, (-6, 2))])
row("zeta", (3, X), lambda q: mp.zeta(3, q), right(-6, 6))
row("zeta", (1.5, X), lambda q: mp.zeta(mp.mpf(1.5), q), right(-6, 6))
row("beta", (X, 2.5), lambda a: mp.beta(a, mp.mpf(2.5)), right(-6, 6))
row("beta", (2.5, X), lambda a: mp.beta(a, mp.mpf(2.5)), right(-6, 6))
row("betaln", (X, 2.5), lambda a: mp.log(mp.beta(a, mp.mpf(2.5))), right(-6, 6))
row("betaln", (1e3, X), lambda a: mp.log(mp.beta(a, mp.mpf(1000))), right(-6, 6))
row("binom", (X, 2.0), lambda n: mp.binomial(n, 2), right(-6, 4, 2.5))
row("binom", (7.5, X), lambda k: mp.binomial(mp.mpf(7.5), k), right(-4, 0.8))
row("poch", (X, 2.5), lambda z: mp.rf(z, mp.mpf(2.5)), right(-4, 6))
row("poch", (2.5, X), lambda m: mp.rf(mp.mpf(2.5), m), right(-4, 2))
for _a in (0.3, 2.5, 1e4):
    row(
        "gammainc",
        (_a, X),
        lambda x, a=_a: mp.gammainc(a, 0, x, regularized=True),
        right(-4, 2) if _a < 1e3 else [(1e4, 1, (0, 3)), (1e4, -1, (0, 3))],
    )
row("gammaincc", (2.5, X), lambda x: mp.gammainc(mp.mpf(2.5), x, regularized=True), right(-4, 2))
row(
    "gammaincinv",
    (2.5, X),
    inverse("gammaincinv", lambda x: mp.gammainc(mp.mpf(2.5), 0, x, regularized=True), (2.5, X)),
    unit(),
)
row(
    "gammainccinv",
    (2.5, X),
    inverse("gammainccinv", lambda x: mp.gammainc(mp.mpf(2.5), x, regularized=True), (2.5, X)),
    unit(),
)
row("chdtr", (5.0, X), lambda x: mp.gammainc(mp.mpf(2.5), 0, x / 2, regularized=True), right(-4, 2))
row("chdtrc", (5.0, X), lambda x: mp.gammainc(mp.mpf(2.5), x / 2, regularized=True), right(-4, 2))
row(
    "chdtri",
    (5.0, X),
    inverse("chdtri", lambda x: mp.gammainc(mp.mpf(2.5), x / 2, regularized=True), (5.0, X)),
    unit(),
)
row("gdtr", (X, 2.5, 1.5), lambda a: mp.gammainc(mp.mpf(2.5), 0, 1.5 * a, regularized=True), right(-4, 1.5))
row("gdtr", (1.5, 2.5, X), lambda a: mp.gammainc(mp.mpf(2.5), 0, 1.5 * a, regularized=True), right(-4, 1.5))
row("gdtrc", (1.5, 2.5, X), lambda a: mp.gammainc(mp.mpf(2.5), 1.5 * a, regularized=True), right(-4, 1.5))
row(
    "gdtrix",
    (1.5, 2.5, X),
    inverse("gdtrix", lambda x: mp.gammainc(mp.mpf(2.5), 0, 1.5 * x, regularized=True), (1.5, 2.5, X)),
    unit(),
)
row("pdtr", (3, X), lambda m: mp.gammainc(4, m, regularized=True), right(-4, 2))
row("pdtrc", (3, X), lambda m: mp.gammainc(4, 0, m, regularized=True), right(-4, 2))
row("pdtri", (3, X), inverse("pdtri", lambda m: mp.gammainc(4, m, regularized=True), (3, X)), unit())


def lower(a, x):
    return mp.gammainc(a, 0, x, regularized=True)


def upper(a, x):
    return mp.gammainc(a, x, regularized=True)


for _x in (0.01, 0.7, 5.0, 40.0):
    row("gammainc", (X, _x), lambda a, x=_x: lower(a, mp.mpf(x)), right(-3, 2))
    row("gammaincc", (X, _x), lambda a, x=_x: upper(a, mp.mpf(x)), right(-3, 2))
row("gammainc", (X, 1e4), lambda a: lower(a, mp.mpf(10) ** 4), [(1e4, 1, (0, 3)), (1e4, -1, (0, 3))])
row("chdtr", (X, 5.0), lambda v: lower(v / 2, mp.mpf(2.5)), right(-2, 2))
row("chdtrc", (X, 5.0), lambda v: upper(v / 2, mp.mpf(2.5)), right(-2, 2))
row("gdtr", (1.5, X, 2.0), lambda b: lower(b, mp.mpf(3)), right(-2, 2))
row("gdtrc", (1.5, X, 2.0), lambda b: upper(b, mp.mpf(3)), right(-2, 2))


def ibeta(a, b):
    return lambda x: mp.betainc(mp.mpf(a), mp.mpf(b), 0, x, regularized=True)


row("betainc", (2.5, 1.5, X), ibeta(2.5, 1.5), unit())
row("betainc", (0.3, 0.4, X), ibeta(0.3, 0.4), unit())
row("betaincc", (2.5, 1.5, X), lambda x: 1 - ibeta(2.5, 1.5)(x), unit())
row("betaincinv", (2.5, 1.5, X), inverse("betaincinv", ibeta(2.5, 1.5), (2.5, 1.5, X)), unit(-6))
row(
    "betainccinv",
    (2.5, 1.5, X),
    inverse("betainccinv", lambda x: 1 - ibeta(2.5, 1.5)(x), (2.5, 1.5, X)),
    unit(-6),
)
row("bdtr", (3, 8, X), lambda p: ibeta(5, 4)(1 - p), unit())
row("bdtrc", (3, 8, X), lambda p: ibeta(4, 5)(p), unit())
row("bdtri", (3, 8, X), inverse("bdtri", lambda p: ibeta(5, 4)(1 - p), (3, 8, X)), unit(-6))
row("nbdtr", (3, 5, X), ibeta(5, 4), unit())
row("nbdtrc", (3, 5, X), lambda p: 1 - ibeta(5, 4)(p), unit())
row("fdtr", (3.0, 5.0, X), lambda x: ibeta(1.5, 2.5)(3 * x / (5 + 3 * x)), right(-4, 4))
row("fdtrc", (3.0, 5.0, X), lambda x: ibeta(2.5, 1.5)(5 / (5 + 3 * x)), right(-4, 4))
row(
    "fdtri",
    (3.0, 5.0, X),
    inverse("fdtri", lambda x: ibeta(1.5, 2.5)(3 * x / (5 + 3 * x)), (3.0, 5.0, X)),
    unit(-6),
)


def of_beta(a, b, x):
    return mp.betainc(a, b, 0, x, regularized=True)


for _b, _x in ((1.5, 0.3), (0.4, 0.9), (30.0, 0.05), (2.0, 1e-5)):
    row("betainc", (X, _b, _x), lambda a, b=_b, x=_x: of_beta(a, mp.mpf(b), mp.mpf(x)), right(-2, 2))
    row("betainc", (_b, X, _x), lambda b, a=_b, x=_x: of_beta(mp.mpf(a), b, mp.mpf(x)), right(-2, 2))
row("betainc", (0.5, X, 1e-3), lambda b: of_beta(mp.mpf(0.5), b, mp.mpf(1e-3)), right(1, 4))
row(
    "betainc",
    (X, 2e3, 0.3),
    lambda a: of_beta(a, mp.mpf(2000), mp.mpf(0.3)),
    [(850.0, 1, (0, 2)), (850.0, -1, (0, 2))],
)
row("betaincc", (X, 1.5, 0.3), lambda a: of_beta(mp.mpf(1.5), a, mp.mpf(0.7)), right(-2, 1))


def student(v):
    return lambda t: mp.mpf(1) / 2 + mp.sign(t) * ibeta(0.5, v / 2)(t * t / (v + t * t)) / 2


row("stdtr", (3.0, X), student(3.0), line(-6, 4))
row("stdtr", (1e5, X), student(1e5), line(-6, 1))
row("stdtrit", (3.0, X), inverse("stdtrit", student(3.0), (3.0, X)), unit(-6))


# ---- Bessel
def of_order(name, f, orders, places, **kw):
    for v in orders:
        row(name, (v, X), lambda z, v=v: f(mp.mpf(v), z), places, **kw)


row("j0", X, lambda x: mp.besselj(0, x), line(-4, 2))
row("j1", X, lambda x: mp.besselj(1, x), line(-4, 2))
row("y0", X, lambda x: mp.bessely(0, x), right(-4, 2))
row("y1", X, lambda x: mp.bessely(1, x), right(-4, 2))
row("i0", X, lambda x: mp.besseli(0, x), line(-4, 2))
row("i1", X, lambda x: mp.besseli(1, x), line(-4, 2))
row("k0", X, lambda x: mp.besselk(0, x), right(-4, 2))
row("k1", X, lambda x: mp.besselk(1, x), right(-4, 2))
row("i0e", X, lambda x: mp.besseli(0, x) * mp.exp(-abs(x)), line(-4, 4))
row("i1e", X, lambda x: mp.besseli(1, x) * mp.exp(-abs(x)), line(-4, 4))
row("k0e", X, lambda x: mp.besselk(0, x) * mp.exp(x), right(-4, 4))
row("k1e", X, lambda x: mp.besselk(1, x) * mp.exp(x), right(-4, 4))
of_order("jv", mp.besselj, (0, 1, 2.5, 10.0), right(-3, 2))
of_order("jn", mp.besselj, (3,), right(-3, 2))
of_order("yv", mp.bessely, (0, 1, 2.5, 10.0), right(-3, 2))
of_order("yn", mp.bessely, (3,), right(-3, 2))
of_order("iv", mp.besseli, (0, 1, 2.5, 10.0), right(-3, 2))
of_order("kv", mp.besselk, (0, 1, 2.5, 10.0), right(-3, 2))
of_order("kn", mp.besselk, (3,), right(-3, 2))
of_order("ive", lambda v, x: mp.besseli(v, x) * mp.exp(-x), (0, 2.5, 10.0), right(-3, 4))
of_order("kve", lambda v, x: mp.besselk(v, x) * mp.exp(x), (0, 2.5, 10.0), right(-3, 4))
of_order("jve", mp.besselj, (2.5,), right(-3, 2))
of_order("yve", mp.bessely, (2.5,), right(-3, 2))
of_order("struve", mp.struveh, (0, 1.5), right(-3, 1.5))
of_order("modstruve", mp.struvel, (0, 1.5), right(-3, 1.5))
of_order(
    "spherical_jn", lambda n, z: mp.sqrt(PI / (2 * z)) * mp.besselj(n + ONE / 2, z), (0, 1, 4), right(-3, 2)
)
of_order(
    "spherical_yn", lambda n, z: mp.sqrt(PI / (2 * z)) * mp.bessely(n + ONE / 2, z), (0, 1, 4), right(-3, 2)
)
of_order(
    "spherical_in", lambda n, z: mp.sqrt(PI / (2 * z)) * mp.besseli(n + ONE / 2, z), (0, 1, 4), right(-3, 2)
)
of_order(
    "spherical_kn", lambda n, z: mp.sqrt(PI / (2 * z)) * mp.besselk(n + ONE / 2, z), (0, 1, 4), right(-3, 2)
)
row("airy", X, mp.airyai, line(-3, 1.5), 0)
row("airy", X, lambda z: mp.airyai(z, derivative=1), line(-3, 1.5), 1)
row("airy", X, mp.airybi, line(-3, 1.5), 2)
row("airy", X, lambda z: mp.airybi(z, derivative=1), line(-3, 1.5), 3)
row("ber", X, lambda x: mp.ber(0, x), line(-2, 1.3))
row("bei", X, lambda x: mp.bei(0, x), line(-2, 1.3))
row("ker", X, lambda x: mp.ker(0, x), right(-2, 1.3))
row("kei", X, lambda x: mp.kei(0, x), right(-2, 1.3))
row("berp", X, lambda x: mp.diff(lambda t: mp.ber(0, t), x), line(-2, 1.3))
row("beip", X, lambda x: mp.diff(lambda t: mp.bei(0, t), x), line(-2, 1.3))
row("kerp", X, lambda x: mp.diff(lambda t: mp.ker(0, t), x), right(-2, 1.3))
row("keip", X, lambda x: mp.diff(lambda t: mp.kei(0, t), x), right(-2, 1.3))
row("itj0y0", X, lambda x: mp.quad(lambda t: mp.besselj(0, t), [0, x]), right(-2, 1), 0)
row("itj0y0", X, lambda x: mp.quad(lambda t: mp.bessely(0, t), [0, x]), right(-2, 1), 1)
row("iti0k0", X, lambda x: mp.quad(lambda t: mp.besseli(0, t), [0, x]), right(-2, 1), 0)
row("iti0k0", X, lambda x: mp.quad(lambda t: mp.besselk(0, t), [0, x]), right(-2, 1), 1)
row("pbdv", (1.5, X), lambda x: mp.pcfd(1.5, x), line(-2, 0.8), 0)
row("pbdv", (1.5, X), lambda x: mp.diff(lambda t: mp.pcfd(1.5, t), x), line(-2, 0.8), 1)
row("pbvv", (1.5, X), lambda x: mp.pcfv(-2, x), line(-2, 0.8), 0)
row("pbwa", (1.5, X), lambda x: mp.pcfw(1.5, x), line(-2, 0.6), 0)
# ---- elliptic
row("ellipk", X, mp.ellipk, [*line(-6, 0), (1.0, -1, (-12, 0)), (0.0, -1, (0, 6))])
row("ellipkm1", X, lambda p: mp.ellipk(1 - p), [(0.0, 1, (-300, -295)), *right(-12, 6)])
row("ellipe", X, mp.ellipe, [*line(-6, 0), (1.0, -1, (-12, 0)), (0.0, -1, (0, 6))])
for _phi in (0.01, 0.7, 1.5, 4.0):
    row("ellipkinc", (_phi, X), lambda m, p=_phi: mp.ellipf(p, m), [*line(-6, 0), (0.0, -1, (0, 4))])
    row("ellipeinc", (_phi, X), lambda m, p=_phi: mp.ellipe(p, m), [*line(-6, 0), (0.0, -1, (0, 4))])
row("ellipkinc", (X, 0.6), lambda p: mp.ellipf(p, mp.mpf(0.6)), line(-4, 1))
row("ellipeinc", (X, 0.6), lambda p: mp.ellipe(p, mp.mpf(0.6)), line(-4, 1))
row("elliprc", (X, 1.5), lambda x: mp.elliprc(x, 1.5), right(-6, 4))
row("elliprc", (1.5, X), lambda x: mp.elliprc(1.5, x), right(-6, 4))
row("elliprf", (X, 1.5, 0.3), lambda x: mp.elliprf(x, 1.5, mp.mpf(0.3)), right(-6, 4))
row("elliprf", (0.3, 1.5, X), lambda x: mp.elliprf(x, 1.5, mp.mpf(0.3)), right(-6, 4))
row("elliprg", (X, 1.5, 0.3), lambda x: mp.elliprg(x, 1.5, mp.mpf(0.3)), right(-6, 4))
row("ellipj", (X, 0.6), lambda u: mp.ellipfun("sn", u, m=mp.mpf(0.6)), line(-3, 1), 0)
row("ellipj", (X, 0.6), lambda u: mp.ellipfun("cn", u, m=mp.mpf(0.6)), line(-3, 1), 1)
row("ellipj", (X, 0.6), lambda u: mp.ellipfun("dn", u, m=mp.mpf(0.6)), line(-3, 1), 2)
# ---- others
row("expi", X, mp.ei, line(-6, 2.5))
row("exp1", X, mp.e1, right(-6, 2.5))
for _n in (0, 1, 4):
    row("expn", (_n, X), lambda x, n=_n: mp.expint(n, x), right(-4, 2))
row("sici", X, mp.si, line(-4, 2), 0)
row("sici", X, mp.ci, right(-4, 2), 1)
row("shichi", X, mp.shi, line(-4, 2), 0)
row("shichi", X, mp.chi, right(-4, 2), 1)
row(
    "spence",
    X,
    lambda x: mp.polylog(2, 1 - x).real,
    [*right(-12, 4), (1.0, 1, (-10, 0)), (1.0, -1, (-10, 0))],
)
row("hyp0f1", (2.5, X), lambda z: mp.hyp0f1(2.5, z), line(-4, 2))
row("hyp1f1", (0.7, 2.5, X), lambda z: mp.hyp1f1(mp.mpf(0.7), 2.5, z), line(-4, 2))
for _abc in ((0.7, 0.4, 1.9), (0.5, 0.5, 1.0), (1.5, -0.3, 2.5)):
    row(
        "hyp2f1",
        (*_abc, X),
        lambda z, p=_abc: mp.hyp2f1(*map(mp.mpf, p), z),
        [*line(-4, 0), (1.0, -1, (-4, 0)), (0.0, -1, (0, 2))],
    )
row(
    "wright_bessel",
    (0.5, 1.5, X),
    lambda z: mp.nsum(lambda k: z**k / mp.factorial(k) * mp.rgamma(k / mp.mpf(2) + 1.5), [0, mp.inf]),
    right(-4, 1),
)
row("lambertw", X, lambda z: mp.lambertw(z), [*right(-6, 6), (0.0, -1, (-6, -0.5))])
row("lambertw", (X, -1), lambda z: mp.lambertw(z, -1), [(0.0, -1, (-300, -290)), (0.0, -1, (-6, -0.5))])
row("wrightomega", X, lambda z: mp.lambertw(mp.exp(z)), line(-6, 2.5))
for _n in (0, 1, 2, 7, 40):
    row("eval_legendre", (_n, X), lambda x, n=_n: mp.legendre(n, x), unit(-4))
    row("eval_sh_legendre", (_n, X), lambda x, n=_n: mp.legendre(n, 2 * x - 1), unit(-4))
    row("eval_chebyt", (_n, X), lambda x, n=_n: mp.chebyt(n, x), unit(-4))
    row("eval_chebyu", (_n, X), lambda x, n=_n: mp.chebyu(n, x), unit(-4))
    row("eval_chebyc", (_n, X), lambda x, n=_n: 2 * mp.chebyt(n, x / 2), unit(-4))
    row("eval_chebys", (_n, X), lambda x, n=_n: mp.chebyu(n, x / 2), unit(-4))
    row("eval_sh_chebyt", (_n, X), lambda x, n=_n: mp.chebyt(n, 2 * x - 1), unit(-4))
    row("eval_sh_chebyu", (_n, X), lambda x, n=_n: mp.chebyu(n, 2 * x - 1), unit(-4))
    row("eval_hermite", (_n, X), lambda x, n=_n: mp.hermite(n, x), line(-4, 1))
    row(
        "eval_hermitenorm",
        (_n, X),
        lambda x, n=_n: mp.hermite(n, x / mp.sqrt(2)) / mp.sqrt(2) ** n,
        line(-4, 1),
    )
    row("eval_laguerre", (_n, X), lambda x, n=_n: mp.laguerre(n, 0, x), right(-4, 1))
    row("eval_genlaguerre", (_n, 0.5, X), lambda x, n=_n: mp.laguerre(n, 0.5, x), right(-4, 1))
    row("eval_jacobi", (_n, 0.3, 0.6, X), lambda x, n=_n: mp.jacobi(n, mp.mpf(0.3), mp.mpf(0.6), x), unit(-4))
    row("eval_gegenbauer", (_n, 0.7, X), lambda x, n=_n: mp.gegenbauer(n, mp.mpf(0.7), x), unit(-4))
