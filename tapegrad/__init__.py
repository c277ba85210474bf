"""Automatic differentiation of NumPy code: a flat tape, compiled reverse sweeps, any order.

>>> import numpy as np, tapegrad as tg
>>> x = tg.tensor([0.0, 1.0], requires_grad=True)
>>> tg.grad(np.sum(np.exp(x) * x), x)
(tensor([1.0000, 5.4366]),)
"""

from tapegrad import autograd as autograd
from tapegrad import errors as errors
from tapegrad import func as func
from tapegrad.autograd import (
    backward as backward,
)
from tapegrad.autograd import (
    enable_grad as enable_grad,
)
from tapegrad.autograd import (
    grad as grad,
)
from tapegrad.autograd import (
    gradcheck as gradcheck,
)
from tapegrad.autograd import (
    gradgradcheck as gradgradcheck,
)
from tapegrad.autograd import (
    inference_mode as inference_mode,
)
from tapegrad.autograd import (
    is_grad_enabled as is_grad_enabled,
)
from tapegrad.autograd import (
    is_inference_mode_enabled as is_inference_mode_enabled,
)
from tapegrad.autograd import (
    no_grad as no_grad,
)
from tapegrad.autograd import (
    set_grad_enabled as set_grad_enabled,
)
from tapegrad.autograd.backward import install as _install
from tapegrad.core import base as _base
from tapegrad.core import compiled_methods as _compiled_methods
from tapegrad.core.guard import guard as guard
from tapegrad.core.inplace import take_history as _take_history
from tapegrad.creation import (
    arange as arange,
)
from tapegrad.creation import (
    array as array,
)
from tapegrad.creation import (
    empty_like as empty_like,
)
from tapegrad.creation import (
    eye as eye,
)
from tapegrad.creation import (
    full as full,
)
from tapegrad.creation import (
    full_like as full_like,
)
from tapegrad.creation import (
    linspace as linspace,
)
from tapegrad.creation import (
    ones as ones,
)
from tapegrad.creation import (
    ones_like as ones_like,
)
from tapegrad.creation import (
    zeros as zeros,
)
from tapegrad.creation import (
    zeros_like as zeros_like,
)
from tapegrad.diagnostics import show_config as show_config
from tapegrad.native import njit as njit
from tapegrad.numpy_api import logsumexp as logsumexp
from tapegrad.tensor import Tensor as Tensor
from tapegrad.tensor import asarray as asarray
from tapegrad.tensor import from_numpy as from_numpy
from tapegrad.tensor import tensor as tensor

__version__ = "0.1.0"

# What lower floors call of higher ones, which they cannot import, they are given here and nowhere else.
_base.use(Tensor, _take_history)
_compiled_methods.install(Tensor)
_install()
