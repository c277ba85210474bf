"""Derivatives as functions: of plain functions, and of compiled ones, compiled themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tapegrad.core.other_names import missing
from tapegrad.func.custom import custom_jvp, custom_vjp
from tapegrad.func.implicit import fixed_point, minimizer, root
from tapegrad.func.linear_systems import linear_solve
from tapegrad.func.mapping import vmap
from tapegrad.func.matrices import divergence, hessian, jacfwd, jacobian, jacrev, laplacian
from tapegrad.func.series import derivative, jet, taylor
from tapegrad.func.sparse import sparse_hessian, sparse_jacobian
from tapegrad.func.transforms import ggnvp, grad, hvp, jvp, linearize, value_and_grad, vhp, vjp
from tapegrad.func.vectors import ravel_tree
from tapegrad.native import checkpoint_loop

__all__ = [
    "checkpoint_loop", "custom_jvp", "custom_vjp", "derivative", "divergence", "fixed_point", "ggnvp", "grad",
    "hessian", "hvp", "jacfwd", "jacobian", "jacrev", "jet", "jvp", "laplacian", "linear_solve", "linearize",
    "minimizer", "ravel_tree", "root", "sparse_hessian", "sparse_jacobian", "taylor", "value_and_grad", "vhp",
    "vjp", "vmap",
]  # fmt: skip


def __dir__() -> list[str]:
    """Show what is exported, not the modules that it comes from."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> None:
        """Say what to write for a name of another library's."""
        raise AttributeError(missing(name, __all__, (), __name__), name=name)
