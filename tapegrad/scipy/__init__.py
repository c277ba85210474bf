"""Functions of SciPy that its own module cannot compute on Tensors, by the same names.

>>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
>>> x = tg.tensor([0.5, 1.5], requires_grad=True)
>>> tg.grad(ts.special.logsumexp(x), x)
(tensor([0.2689, 0.7311]),)
"""

from tapegrad.scipy import fft, linalg, sparse, special

__all__ = ["fft", "linalg", "sparse", "special"]
