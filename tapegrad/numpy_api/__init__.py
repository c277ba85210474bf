"""What NumPy's functions do on Tensors: each normalises its arguments and applies an op.

They fill `UFUNCS` and `FUNCTIONS` (`core.functions`), where Tensor's methods and two protocols look.
"""

from tapegrad.numpy_api import (  # noqa: F401 - what they define is reached through the table
    building,
    complexes,
    contractions,
    elementwise,
    fft,
    histograms,
    linalg,
    norms,
    numerics,
    padding,
    polynomials,
    quantiles,
    scans,
    sorting,
    splitting,
    statistics,
    writers,
)
from tapegrad.numpy_api.protocol import install
from tapegrad.numpy_api.reductions import logsumexp

__all__ = ["install", "logsumexp"]
