"""The ops: each declared once, with its derivative rule."""

from tapegrad.ops import decompositions, determinants, norms  # noqa: F401  registered by being imported
from tapegrad.ops import complexes, elementwise, indexing, linalg, reductions, shapes, writes
from tapegrad.ops.primitive import BY_OPCODE, REGISTRY

__all__ = [
    "BY_OPCODE", "REGISTRY", "complexes", "elementwise", "indexing", "linalg", "reductions", "shapes",
    "writes",
]  # fmt: skip
