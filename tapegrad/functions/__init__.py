"""What NumPy's functions do on Tensors: each normalises its arguments and applies an op.

`UFUNCS` and `FUNCTIONS` are looked up by Tensor's two protocol methods.
"""

from tapegrad.functions import (  # noqa: F401 - what they define is reached through the table
    building,
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
    sorting,
    splitting,
    statistics,
)
from tapegrad.functions.building import full, full_like
from tapegrad.functions.complexes import conj, imag, real
from tapegrad.functions.indexing import clip, getitem, plain_index, take
from tapegrad.functions.products import dot, matmul
from tapegrad.functions.protocol import call_function, call_ufunc
from tapegrad.functions.reductions import cumsum, logsumexp, max_, mean, min_, prod, std, sum_, var
from tapegrad.functions.scans import cumprod
from tapegrad.functions.shapes import (
    astype,
    copy,
    matrix_transpose,
    ravel,
    reshape,
    squeeze,
    stack,
    swapaxes,
    transpose,
)
from tapegrad.functions.tables import FUNCTIONS, UFUNCS, any_follows, tensor_of
from tapegrad.functions.ufuncs import FAST, REFLECTED, power
from tapegrad.functions.writers import put

__all__ = [
    "FAST",
    "FUNCTIONS",
    "REFLECTED",
    "UFUNCS",
    "any_follows",
    "astype",
    "call_function",
    "call_ufunc",
    "clip",
    "conj",
    "copy",
    "cumprod",
    "cumsum",
    "dot",
    "full",
    "full_like",
    "getitem",
    "imag",
    "logsumexp",
    "matmul",
    "matrix_transpose",
    "max_",
    "mean",
    "min_",
    "plain_index",
    "power",
    "prod",
    "put",
    "ravel",
    "real",
    "reshape",
    "squeeze",
    "stack",
    "std",
    "sum_",
    "swapaxes",
    "take",
    "tensor_of",
    "transpose",
    "var",
]
