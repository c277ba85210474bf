"""Automatic differentiation of NumPy code: a flat tape, compiled reverse sweeps, any order.

>>> import numpy as np, tapegrad as tg
>>> x = tg.tensor([0.0, 1.0], requires_grad=True)
>>> tg.grad(np.sum(np.exp(x) * x), x)
(tensor([1.    , 5.4366]),)
"""

from tapegrad import autograd as autograd
from tapegrad import errors as errors
from tapegrad.autograd import (
    backward as backward,
    enable_grad as enable_grad,
    grad as grad,
    gradcheck as gradcheck,
    gradgradcheck as gradgradcheck,
    is_grad_enabled as is_grad_enabled,
    no_grad as no_grad,
    set_grad_enabled as set_grad_enabled,
)
from tapegrad.autograd.backward import install as _install
from tapegrad.config import show_config as show_config
from tapegrad.creation import (
    arange as arange,
    array as array,
    empty_like as empty_like,
    eye as eye,
    full as full,
    full_like as full_like,
    linspace as linspace,
    ones as ones,
    ones_like as ones_like,
    zeros as zeros,
    zeros_like as zeros_like,
)
from tapegrad.functions import logsumexp as logsumexp
from tapegrad.tensor import Tensor as Tensor
from tapegrad.tensor import asarray as asarray
from tapegrad.tensor import from_numpy as from_numpy
from tapegrad.tensor import tensor as tensor

__version__ = "0.1.0"

_install()
