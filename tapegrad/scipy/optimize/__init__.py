"""Solvers of `scipy.optimize` that find derivatives themselves; all its other names are its own.

A solver has SciPy's arguments and results. Where it takes derivatives that are not given, they are those of
the function, which is written in NumPy's functions and called with Tensors, or compiled by `tapegrad.njit`.
Where the point it begins at, or the function's other arguments, hold Tensors that require grad, the solution
is differentiated by these, by the equations that it solves.
"""

from __future__ import annotations

from typing import Any

import scipy.optimize as _scipy

from tapegrad.scipy.optimize.fits import curve_fit, least_squares
from tapegrad.scipy.optimize.linear import lsq_linear, nnls
from tapegrad.scipy.optimize.minima import minimize, minimize_scalar
from tapegrad.scipy.optimize.roots import (
    bisect,
    brenth,
    brentq,
    fixed_point,
    fsolve,
    newton,
    ridder,
    root,
    root_scalar,
    toms748,
)

__all__ = [
    "bisect", "brenth", "brentq", "curve_fit", "fixed_point", "fsolve", "least_squares", "lsq_linear",
    "minimize", "minimize_scalar", "newton", "nnls", "ridder", "root", "root_scalar", "toms748",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return getattr(_scipy, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})
