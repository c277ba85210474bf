"""Differentiation, by torch's names."""

from tapegrad.autograd import function, graph
from tapegrad.autograd.backward import backward, grad
from tapegrad.autograd.function import Function, once_differentiable
from tapegrad.autograd.gradcheck import gradcheck, gradgradcheck
from tapegrad.autograd.holomorphic import holomorphic_grad
from tapegrad.grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)

__all__ = [
    "Function",
    "backward",
    "enable_grad",
    "function",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "holomorphic_grad",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "once_differentiable",
    "set_grad_enabled",
]
