"""Functions of `scipy.integrate` on Tensors and arrays; all its other names are its own.

Integrals of samples are differentiated by the samples and by where they were taken, those of functions
(`quadrature`, `nested`) and solutions of differential equations (`initial_values`) by all that the
functions are computed from.
"""

from __future__ import annotations

from typing import Any

import scipy.integrate as _scipy

from tapegrad.scipy.calls import fall_through
from tapegrad.scipy.integrate.initial_values import odeint, solve_ivp
from tapegrad.scipy.integrate.nested import dblquad, nquad, tplquad
from tapegrad.scipy.integrate.quadrature import fixed_quad, quad
from tapegrad.scipy.integrate.samples import (
    cumulative_simpson,
    cumulative_trapezoid,
    romb,
    simpson,
    trapezoid,
)

__all__ = [
    "cumulative_simpson", "cumulative_trapezoid", "dblquad", "fixed_quad", "nquad", "odeint", "quad", "romb",
    "simpson", "solve_ivp", "tplquad", "trapezoid",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return fall_through(_scipy, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})
