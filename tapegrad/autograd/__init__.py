"""Differentiation, by torch's names."""

from typing import TYPE_CHECKING

from tapegrad.autograd import forward_ad, function, functional, graph, profiler
from tapegrad.autograd.anomaly_mode import detect_anomaly, is_anomaly_enabled, set_detect_anomaly
from tapegrad.autograd.backward import backward, grad
from tapegrad.autograd.function import Function, once_differentiable
from tapegrad.autograd.gradcheck import gradcheck, gradgradcheck
from tapegrad.autograd.holomorphic import holomorphic_grad
from tapegrad.autograd.loops import checkpoint_loop
from tapegrad.autograd.saved_tensors import checkpoint
from tapegrad.autograd.variables import Variable, variable, zero_gradients
from tapegrad.core.grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from tapegrad.core.other_names import missing

__all__ = [
    "Function",
    "Variable",
    "backward",
    "checkpoint",
    "checkpoint_loop",
    "detect_anomaly",
    "enable_grad",
    "forward_ad",
    "function",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "holomorphic_grad",
    "inference_mode",
    "is_anomaly_enabled",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "once_differentiable",
    "profiler",
    "set_detect_anomaly",
    "set_grad_enabled",
    "variable",
    "zero_gradients",
]


def __dir__() -> list[str]:
    """Show what is exported, not the modules that it comes from."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> None:
        """Say what to write for a name of another library's."""
        raise AttributeError(missing(name, __all__, (), __name__), name=name)
