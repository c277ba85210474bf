"""The ops: each declared once, with its derivative rule."""

from tapegrad.ops import convolution, elementwise, indexing, linalg, reductions, shapes, writes
from tapegrad.ops.primitive import BY_OPCODE, REGISTRY

__all__ = [
    "BY_OPCODE", "REGISTRY", "convolution", "elementwise", "indexing", "linalg", "reductions", "shapes",
    "writes",
]  # fmt: skip
