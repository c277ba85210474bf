"""A second engine, for comparison: brute force in plain Python, without tape, kernels or shared memory."""

from .graph import cautious, mode, recording
from .handles import backward, grad, no_grad, tensor

__all__ = ["backward", "cautious", "grad", "mode", "no_grad", "recording", "tensor"]
