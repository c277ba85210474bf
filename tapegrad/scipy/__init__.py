"""Functions of SciPy that its own modules cannot compute on Tensors, by the same names.

Modules are imported when they are first asked for, as SciPy's own are.

>>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
>>> x = tg.tensor([0.5, 1.5], requires_grad=True)
>>> tg.grad(ts.special.logsumexp(x), x)
(tensor([0.2689, 0.7311]),)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tapegrad.scipy import (
        fft,
        integrate,
        interpolate,
        linalg,
        ndimage,
        optimize,
        signal,
        sparse,
        spatial,
        special,
        stats,
    )

__all__ = [
    "fft", "integrate", "interpolate", "linalg", "ndimage", "optimize", "signal", "sparse", "spatial",
    "special", "stats",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"tapegrad.scipy.{name}")
    raise AttributeError(f"module 'tapegrad.scipy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
