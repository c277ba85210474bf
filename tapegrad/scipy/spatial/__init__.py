"""`scipy.spatial` with distances of Tensors in `distance`; all its other names are its own."""

from __future__ import annotations

from typing import Any

import scipy.spatial as _scipy

from tapegrad.scipy.calls import fall_through
from tapegrad.scipy.spatial import distance

__all__ = ["distance"]


def __getattr__(name: str) -> Any:
    return fall_through(_scipy, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})
