"""Calls of the elementwise functions, as in `calls`."""

import numpy as np

from .calls import POSITIVE, A, S, V

HOLDS = [True, False, False]


def parts(x):
    """Functions with two results."""
    fraction, whole = np.modf(3 * x)
    mantissa, power = np.frexp(x)
    quotient, rest = np.divmod(x, 0.3)
    return fraction * whole + mantissa * power + quotient * rest


def remainders(x, y):
    """Operators and functions."""
    q, r = divmod(x, y)
    p, s = divmod(2.0, y)
    return x % y + 3.0 % y + np.mod(x, 0.7) * np.fmod(x, y) + np.fmod(x, -0.4) + q * r + p * s


def masks(x):
    """Bits written into a Tensor or an array."""
    mask, number = x > 0, abs(x).astype(int)
    mask &= x < 1
    mask |= x == 2
    mask ^= True
    number <<= 2
    number >>= 1
    number %= 3
    return mask * number


def write(function, x, *args):
    """What a function leaves of its first argument."""
    x = x.copy()
    function(x, *args)
    return x


ROWS = [
    ("inverse circular", lambda x: np.arcsin(x / 2) + np.arccos(x / 2) * np.arctan(x) + np.asin(x / 3), [A]),
    ("inverse hyperbolic", lambda x: np.arcsinh(x) + np.arccosh(x * x + 1.2) * np.arctanh(x / 2), [A]),
    ("bases", lambda x: np.exp2(x) + np.log2(x) * np.log10(x) + np.cbrt(x), [(POSITIVE, A)]),
    ("sums of exponentials", lambda x, y: np.logaddexp(x, y) * np.logaddexp2(x, 2 * y), [A, V]),
    ("units", lambda x: np.deg2rad(x) * np.radians(x) + np.rad2deg(x) / np.degrees(x * x), [A]),
    ("remainders", remainders, [A, (POSITIVE, V)]),
    ("two results", parts, [A]),
    ("signs", lambda x, y: np.copysign(x, y) + np.copysign(2.0, x) * np.fabs(y) * np.abs(x), [A, A]),
    ("extremes of numbers", lambda x, y: np.fmax(x, y) * np.fmin(x, y + 0.1) * np.fmax(x, np.nan), [A, V]),
    ("heaviside", lambda x, y: np.heaviside(x - x.mean(), y) * x + np.heaviside([0.0, 1.0, -1.0], y), [A, V]),
    ("powers of two", lambda x: np.ldexp(x, [1, -2, 3]) + x * np.ldexp(0.5, 3), [A]),
    ("neighbours", lambda x: np.nextafter(x, 9.0) * x + np.spacing(x) * x, [A]),
    ("complex parts", lambda x: np.conj(x) * x.conj() + np.real(x) * x.real + x.imag + np.imag(x), [A]),
    ("complex forms", lambda x: np.angle(x) * x + np.angle(-x, deg=True) * x + np.real_if_close(x), [A]),
    ("sinc, i0", lambda x: np.sinc(x) * np.i0(x), [A]),
    ("nan_to_num", lambda x: np.tanh(np.nan_to_num(np.where(HOLDS, x, -np.inf))) * np.nan_to_num(x), [A]),
    ("nan_to_num, numbers",
     lambda x, y: np.nan_to_num(np.where(HOLDS, x, [1, np.nan, np.inf]), False, y, 3, -4) * y,
     [(POSITIVE, A), S]),
    ("unwrap", lambda x: np.unwrap(x * 9) * np.unwrap(x, axis=0, period=0.5) + np.unwrap(x, 0.1), [A]),
    ("unwrap, period", lambda x, p: np.unwrap(x * 9, period=p), [A, (POSITIVE, S)]),
    ("steps", lambda x: x * np.fix(x * 3) + x * np.round(x, 1) + x * np.around(x) + x * np.rint(x), [A]),
    ("float_power", lambda x, y: np.float_power(x, y) * np.pow(x, 2), [(POSITIVE, A), V]),
]  # fmt: skip

PLAIN = [
    (name, lambda x, f=getattr(np, name): f(x))
    for name in ("spacing", "fix", "isposinf", "isneginf", "isreal", "iscomplex", "real_if_close", "imag")
] + [
    (f.__name__, lambda x, f=f, args=args: write(f, x, *args)) for f, args in (
        (np.copyto, (2.0,)), (np.put, ([0, 3], [5.0, 6.0])), (np.place, ([[True, False]] * 2, [7.0])),
        (np.putmask, ([[True, False]] * 2, 8.0)), (np.fill_diagonal, (3.0,)),
        (np.put_along_axis, (np.array([[0], [1]]), 4.0, 1)),
    )
] + [
    ("cumulative", lambda x: np.cumulative_sum(x, axis=0) + np.cumulative_prod(x, axis=1)),
    ("masks", lambda x: (x > 0) & (x < 1) | ~(x < 2) ^ (x != 0.5)), ("masks in place", masks),
    ("bits", lambda x: (x.astype(int) << 3 >> 1) & 6 | (1 << x.astype(int) % 3) ^ 5),
    ("rounded", lambda x: x.round() + x.round(1) + x.clip(0, 1)),
    ("cumprod", np.cumprod), ("array_equiv", lambda x: np.array_equiv(x, x)),
    ("integers", lambda x: np.nan_to_num(x.astype(int)) + np.fabs(x.astype(int)) + np.sinc(x.astype(int))),
    ("conjugate", lambda x: np.conjugate(x.astype(int))), ("heaviside", lambda x: np.heaviside(x, 0.5)),
    ("fix, out", lambda x: np.fix(x, np.zeros((2, 2)))),
]  # fmt: skip
