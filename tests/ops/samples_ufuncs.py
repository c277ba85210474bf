"""Samples of the ops of `tapegrad.ops.ufuncs`."""

import functools
import math
from typing import Any

import numpy as np

from tapegrad.core.dispatch import apply

from .builders import binary, complex_choice, unary


def complex_remainder(rounded: Any) -> Any:
    """A remainder whose quotient is a constant."""
    return lambda a, b: a - rounded(np.real(a) / np.real(b)) * b


def complex_copysign(a, b):
    return a * np.where((np.real(a) < 0) == (np.real(b) < 0), 1, -1)


def complex_sum(base: float) -> Any:
    return lambda a, b: np.log(base ** (a + 0j) + base ** (b + 0j)) / math.log(base)


def bessel(order: int) -> Any:
    """The power series, for arguments below 3."""
    return lambda x: sum(
        (x / 2) ** (2 * k + order) / (math.factorial(k) * math.factorial(k + order)) for k in range(25)
    )


def iv(op, layout, dtype, random):
    """An op that no function of NumPy's means."""
    from scipy import special

    found = []
    for order in (1, 3):
        call = functools.partial(apply, op, attrs={"order": order})
        cases = unary(lambda x, call=call: call((x,)), bessel(order))(op, layout, dtype, random)
        if not isinstance(cases, list):
            return cases
        for case in cases:
            case.reference = special.i1 if order == 1 else functools.partial(special.iv, order)
        found += cases
    return found


UFUNCS = {
    **{name: unary(getattr(np, name)) for name in (
        "arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh", "exp2", "log2", "log10", "sinc",
    )},
    "cbrt": unary(np.cbrt, lambda x: x ** (1 / 3)), "deg2rad": unary(np.deg2rad, lambda x: x * (np.pi / 180)),
    "rad2deg": unary(np.rad2deg, lambda x: x * (180 / np.pi)), "i0": unary(np.i0, bessel(0)), "iv": iv,
    "logaddexp": binary(np.logaddexp, complex_sum(math.e)),
    "logaddexp2": binary(np.logaddexp2, complex_sum(2.0)),
    "remainder": binary(np.remainder, complex_remainder(np.floor)),
    "fmod": binary(np.fmod, complex_remainder(np.trunc)), "copysign": binary(np.copysign, complex_copysign),
    "fmax": binary(np.fmax, complex_choice(1)), "fmin": binary(np.fmin, complex_choice(-1)),
}  # fmt: skip
