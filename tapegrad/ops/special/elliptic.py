"""Elliptic integrals, those of Legendre and of Carlson, and Jacobi's functions."""

import numpy as np

from tapegrad.ops.primitive import Real
from tapegrad.ops.rules import formula
from tapegrad.ops.special.declare import declare, special

BELOW_ONE, POSITIVE = Real((-np.inf, 1.0)), Real((0.0, np.inf))


@formula
def slope_of_ellipk(t):
    """The power series of the derivative of the complete integral of the first kind."""
    p = 0.49224946889355886 + t * (0.4927019040671743 + t * (0.49310443830252326 + t * (0.49346489476327077)))
    p = 0.49047880257883186 + t * (0.4911525371977588 + t * (0.4917372425991847 + t * p))
    p = 0.4876600206544245 + t * (0.48876833888318455 + t * (0.4896940364947057 + t * p))
    p = 0.48247253595772194 + t * (0.4846264312075332 + t * (0.48630916187144824 + t * p))
    p = 0.4697816162899776 + t * (0.47565388649360235 + t * (0.479617668881049 + t * p))
    p = 0.39269908169872414 + t * (0.44178646691106466 + t * (0.46019423636569234 + t * p))
    return p


@declare(domain=BELOW_ONE)
def ellipk(m):
    """Complete integral of the first kind; near 0 the power series of the derivative, whose terms cancel."""
    near = np.where(np.abs(m) < 0.15, 1, 0)
    p = slope_of_ellipk(np.where(near == 1, m, 0))
    y = np.where(near == 1, 0.5, np.where(m == 1, 0.5, m))
    far = (special.ellipe(y) / (1 - y) - special.ellipk(y)) / (2 * y)
    return np.where(near == 1, p, np.where(m == 1, np.inf, far))


@declare(domain=Real((0.0, np.inf)))
def ellipkm1(p):
    """The same of 1 - p."""
    near = np.where(np.abs(p - 1) < 0.15, 1, 0)
    series = slope_of_ellipk(np.where(near == 1, 1 - p, 0))
    y = np.where(near == 1, 0.5, np.where(p == 0, 0.5, p))
    far = (special.ellipkm1(y) - special.ellipe(1 - y) / y) / (2 * (1 - y))
    return np.where(near == 1, -series, np.where(p == 0, -np.inf, far))


@declare(domain=BELOW_ONE)
def ellipe(m):
    """Complete integral of the second kind; near 0 as that of the first."""
    near = np.where(np.abs(m) < 0.15, 1, 0)
    t = np.where(near == 1, m, 0)
    p = -0.015879015125598674 + t * (
        -0.014930360729308312 + t * (-0.014088698237214951 + t * (-0.013336889047655965))
    )
    p = -0.019619152103153275 + t * (-0.018190834711028104 + t * (-0.016956456641351196 + t * p))
    p = -0.025666316876548658 + t * (-0.02327468280396117 + t * (-0.021291045064987205 + t * p))
    p = -0.03711327199674784 + t * (-0.03230842874716888 + t * (-0.02860642128655578 + t * p))
    p = -0.06711165946999681 + t * (-0.05285043183262248 + t * (-0.04360160626191355 + t * p))
    p = -0.39269908169872414 + t * (-0.14726215563702155 + t * (-0.09203884727313848 + t * p))
    y = np.where(near == 1, 0.5, m)
    return np.where(near == 1, p, (special.ellipe(y) - special.ellipk(y)) / (2 * y))


@declare(domain=Real((-1.5, 1.5), (-np.inf, 0.9)))
def ellipkinc(phi, m):
    """Integral of the first kind; by m by Carlson's integrals, of whole periods the complete one."""
    turns = np.rint(phi / np.pi)
    sine, cosine = np.sin(phi), np.cos(phi)
    root = 1 - m * sine * sine
    part = (1 - 2 * np.abs(turns - 2 * np.floor(turns / 2))) * sine * sine * sine
    part = part * special.elliprd(cosine * cosine, 1, root)
    whole = special.elliprd(0, 1, np.where(turns == 0, 1, 1 - m))
    return 1 / np.sqrt(root), (part + 2 * turns * whole) / 6


@declare(domain=Real((-1.5, 1.5), (-np.inf, 0.9)))
def ellipeinc(phi, m):
    """Integral of the second kind."""
    turns = np.rint(phi / np.pi)
    sine, cosine = np.sin(phi), np.cos(phi)
    root = 1 - m * sine * sine
    part = (1 - 2 * np.abs(turns - 2 * np.floor(turns / 2))) * sine * sine * sine
    part = part * special.elliprd(cosine * cosine, root, 1)
    whole = special.elliprd(0, np.where(turns == 0, 1, 1 - m), 1)
    return np.sqrt(root), -(part + 2 * turns * whole) / 6


@declare(domain=POSITIVE)
def elliprc(x, y):
    """Carlson's degenerate integral."""
    return -special.elliprd(y, y, x) / 6, -special.elliprd(x, y, y) / 3


@declare(domain=POSITIVE)
def elliprf(x, y, z):
    """Carlson's integral of the first kind."""
    return -special.elliprd(y, z, x) / 6, -special.elliprd(x, z, y) / 6, -special.elliprd(x, y, z) / 6


@declare(domain=POSITIVE)
def elliprg(x, y, z):
    """Carlson's integral of the second kind."""
    first = 3 * special.elliprf(x, y, z)
    by_x, by_y = first - x * special.elliprd(y, z, x), first - y * special.elliprd(x, z, y)
    return by_x / 12, by_y / 12, (first - z * special.elliprd(x, y, z)) / 12


@declare(domain=POSITIVE, unknown=("x", "y", "z"))
def elliprd(x, y, z):
    """Carlson's integral of the third kind where two of its arguments are equal."""
    return None, None, None


@declare("ellipj", result=0, unknown=("m",))
def ellipj_sn(u, m):
    """Jacobi's sn."""
    return special.ellipj_cn(u, m) * special.ellipj_dn(u, m), None


@declare("ellipj", result=1, unknown=("m",))
def ellipj_cn(u, m):
    """Jacobi's cn."""
    return -special.ellipj_sn(u, m) * special.ellipj_dn(u, m), None


@declare("ellipj", result=2, unknown=("m",))
def ellipj_dn(u, m):
    """Jacobi's dn."""
    return -m * special.ellipj_sn(u, m) * special.ellipj_cn(u, m), None


@declare("ellipj", result=3, unknown=("m",))
def ellipj_ph(u, m):
    """Jacobi's amplitude."""
    return special.ellipj_dn(u, m), None
