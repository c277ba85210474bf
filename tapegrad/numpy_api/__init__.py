"""What NumPy's functions do on Tensors: each normalises its arguments and applies an op.

`UFUNCS` and `FUNCTIONS` are looked up by Tensor's two protocol methods.
"""

from tapegrad.core.conversion import astype, copy
from tapegrad.core.indices import plain_index
from tapegrad.core.operators import FAST, OPERANDS, REFLECTED
from tapegrad.numpy_api import (  # noqa: F401 - what they define is reached through the table
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
from tapegrad.numpy_api.building import full, full_like
from tapegrad.numpy_api.complexes import conj, imag, real
from tapegrad.numpy_api.indexing import clip, getitem, take
from tapegrad.numpy_api.products import dot, matmul
from tapegrad.numpy_api.protocol import call_function, call_ufunc
from tapegrad.numpy_api.reductions import cumsum, logsumexp, max_, mean, min_, prod, std, sum_, var
from tapegrad.numpy_api.scans import cumprod
from tapegrad.numpy_api.shapes import matrix_transpose, ravel, reshape, squeeze, stack, swapaxes, transpose
from tapegrad.numpy_api.sparse import is_sparse, sparse_times, times_sparse
from tapegrad.numpy_api.tables import FUNCTIONS, UFUNCS, any_follows, tensor_of
from tapegrad.numpy_api.ufuncs import power
from tapegrad.numpy_api.writers import put

__all__ = [
    "FAST",
    "FUNCTIONS",
    "OPERANDS",
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
    "is_sparse",
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
    "sparse_times",
    "squeeze",
    "stack",
    "std",
    "sum_",
    "swapaxes",
    "take",
    "tensor_of",
    "times_sparse",
    "transpose",
    "var",
]
