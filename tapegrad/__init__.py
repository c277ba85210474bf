"""Automatic differentiation of NumPy code: a flat tape, compiled reverse sweeps, any order.

>>> import numpy as np, tapegrad as tg
>>> x = tg.tensor([0.0, 1.0], requires_grad=True)
>>> tg.grad(np.sum(np.exp(x) * x), x)
(tensor([1.0000, 5.4366]),)
"""

import typing as _typing

from tapegrad import array_api as _array_api
from tapegrad import autograd, batch, diagnostics, errors, func, interop
from tapegrad.autograd import (
    backward,
    enable_grad,
    grad,
    gradcheck,
    gradgradcheck,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from tapegrad.autograd.backward import install as _install
from tapegrad.compilation import compile
from tapegrad.core import base as _base
from tapegrad.core import callers as _callers
from tapegrad.core import compiled_methods as _compiled_methods
from tapegrad.core import other_names as _other_names
from tapegrad.core.guard import guard
from tapegrad.core.histories import take_history as _take_history
from tapegrad.creation import (
    arange,
    array,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from tapegrad.diagnostics import report, show_config
from tapegrad.diagnostics.functions import instead_of as _instead_of
from tapegrad.native import njit
from tapegrad.numpy_api import install as _answer_numpy
from tapegrad.numpy_api import logsumexp
from tapegrad.tensor import Tensor, asarray, from_numpy, tensor

__all__ = [
    "Tensor",
    "arange",
    "array",
    "asarray",
    "autograd",
    "backward",
    "batch",
    "compile",
    "diagnostics",
    "empty_like",
    "enable_grad",
    "errors",
    "eye",
    "from_numpy",
    "full",
    "full_like",
    "func",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "guard",
    "inference_mode",
    "interop",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "linspace",
    "logsumexp",
    "njit",
    "no_grad",
    "ones",
    "ones_like",
    "report",
    "set_grad_enabled",
    "show_config",
    "tensor",
    "zeros",
    "zeros_like",
]
__version__ = "0.1.0"

# What lower floors call of higher ones, which they cannot import, they are given here and nowhere else.
_base.use(Tensor, _take_history)
_answer_numpy()
_compiled_methods.install(Tensor)
_callers.offer(_instead_of)
_other_names.explain_methods(Tensor)
_install()
_array_api.install()
diagnostics.install()


def __dir__() -> list[str]:
    """Show what is exported, not the modules that it comes from."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


if not _typing.TYPE_CHECKING:  # a type checker says itself that a name is none of these

    def __getattr__(name: str) -> None:
        """Say what to write for a name of another library's."""
        raise AttributeError(_other_names.missing(name, __all__, (func, autograd)), name=name)
