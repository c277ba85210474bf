"""Interpolants of `scipy.interpolate` on Tensors and arrays; all its other names are its own.

They are differentiated by the data, of which all but `PchipInterpolator` and `Akima1DInterpolator` are linear
functions, and by the places where they are evaluated; not by the places of the data. At a place where two
pieces meet the piece to the right is meant, at the last one that to the left. Those on grids are in `grids`,
of data at scattered places in `scattered` and `radial`, cubics through data in `piecewise`.
"""

from __future__ import annotations

from typing import Any

import scipy.interpolate as _scipy

from tapegrad.scipy.calls import fall_through
from tapegrad.scipy.interpolate.grids import RectBivariateSpline, RegularGridInterpolator, interpn
from tapegrad.scipy.interpolate.piecewise import (
    Akima1DInterpolator,
    CubicHermiteSpline,
    PchipInterpolator,
    PPoly,
)
from tapegrad.scipy.interpolate.radial import RBFInterpolator
from tapegrad.scipy.interpolate.scattered import LinearNDInterpolator, NearestNDInterpolator, griddata
from tapegrad.scipy.interpolate.splines import BSpline, CubicSpline, interp1d, make_interp_spline

__all__ = [
    "Akima1DInterpolator", "BSpline", "CubicHermiteSpline", "CubicSpline", "LinearNDInterpolator",
    "NearestNDInterpolator", "PPoly", "PchipInterpolator", "RBFInterpolator", "RectBivariateSpline",
    "RegularGridInterpolator", "griddata", "interp1d", "interpn", "make_interp_spline",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return fall_through(_scipy, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})
