"""The ops of `scipy.special`, declared when a function of it is first met; imports SciPy's module."""

from tapegrad.ops.special import bessel, elementary, elliptic, errors, gammas, others
from tapegrad.ops.special.declare import RESULTS, SPECIAL

__all__ = [
    "RESULTS", "SPECIAL", "bessel", "elementary", "elliptic", "errors", "gammas", "others",
]  # fmt: skip
