"""Functions handed over to other libraries, and taken from them, with their derivatives.

Each library is imported when it is first asked for.
"""

from __future__ import annotations

from tapegrad.interop.ipopt import IpoptProblem
from tapegrad.interop.jax import from_jax, to_jax
from tapegrad.interop.torch import from_torch, to_torch

__all__ = ["IpoptProblem", "from_jax", "from_torch", "to_jax", "to_torch"]


def __dir__() -> list[str]:
    """Show what is exported, not the modules that it comes from."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
