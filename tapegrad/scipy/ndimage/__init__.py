"""Filters and interpolation of `scipy.ndimage` on Tensors and arrays; all its other names are its own.

Filters are differentiated by the image and, where they take any, by the weights; `map_coordinates` by the
image and by the coordinates, at places where two pieces of the spline meet by the one to the right.
"""

from __future__ import annotations

from typing import Any

import scipy.ndimage as _scipy

from tapegrad.scipy.calls import fall_through
from tapegrad.scipy.ndimage.coordinates import affine_transform, map_coordinates, shift, zoom
from tapegrad.scipy.ndimage.derivatives import (
    gaussian_gradient_magnitude,
    gaussian_laplace,
    laplace,
    prewitt,
    sobel,
)
from tapegrad.scipy.ndimage.filters import (
    convolve,
    convolve1d,
    correlate,
    correlate1d,
    gaussian_filter,
    gaussian_filter1d,
    uniform_filter,
    uniform_filter1d,
)

__all__ = [
    "affine_transform", "convolve", "convolve1d", "correlate", "correlate1d", "gaussian_filter",
    "gaussian_filter1d", "gaussian_gradient_magnitude", "gaussian_laplace", "laplace", "map_coordinates",
    "prewitt", "shift", "sobel", "uniform_filter", "uniform_filter1d", "zoom",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return fall_through(_scipy, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})
