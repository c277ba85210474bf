"""The ops: each declared once, with its derivative rule."""

from tapegrad.ops import (
    complexes,
    convolution,
    custom,
    decompositions,
    determinants,
    elementwise,
    fft,
    indexing,
    linalg,
    norms,
    pseudoinverse,
    reductions,
    scans,
    shapes,
    ufuncs,
    writes,
)
from tapegrad.ops.primitive import BY_OPCODE, MEANING, REGISTRY

__all__ = [
    "BY_OPCODE", "MEANING", "REGISTRY", "complexes", "convolution", "custom", "decompositions",
    "determinants", "elementwise", "fft", "indexing", "linalg", "norms", "pseudoinverse", "reductions",
    "scans", "shapes", "ufuncs", "writes",
]  # fmt: skip
