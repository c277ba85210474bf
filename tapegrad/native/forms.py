"""What types of the user's program are in recording code: with active numbers in the place of floats."""

from __future__ import annotations

from typing import Any

from numba.core import types

from tapegrad.native.algebra import Spec
from tapegrad.native.complexes import ActiveComplex
from tapegrad.native.scalar import Active


def recorded(kind: Any, spec: Spec) -> Any:
    """Return the type that holds active numbers where a type holds float64 or complex128; else itself."""
    if kind == types.float64:
        return Active(spec)
    if kind == types.complex128:
        return ActiveComplex(spec)
    return kind
