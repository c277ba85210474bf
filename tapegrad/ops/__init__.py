"""The ops: each declared once, with its derivative rule."""

from tapegrad.ops import elementwise, indexing, linalg, reductions, scans, shapes, ufuncs, writes
from tapegrad.ops.primitive import BY_OPCODE, REGISTRY

__all__ = [
    "BY_OPCODE", "REGISTRY", "elementwise", "indexing", "linalg", "reductions", "scans", "shapes", "ufuncs",
    "writes",
]  # fmt: skip
