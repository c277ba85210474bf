"""Differentiation, by torch's names."""

from tapegrad.autograd import forward_ad, functional
from tapegrad.autograd.backward import backward, grad
from tapegrad.autograd.gradcheck import gradcheck, gradgradcheck
from tapegrad.autograd.holomorphic import holomorphic_grad
from tapegrad.grad_mode import enable_grad, is_grad_enabled, no_grad, set_grad_enabled

__all__ = [
    "backward",
    "enable_grad",
    "forward_ad",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "holomorphic_grad",
    "is_grad_enabled",
    "no_grad",
    "set_grad_enabled",
]
