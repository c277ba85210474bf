"""Programs: what a function computes on Tensors, learned from a call, run by compiled code at later ones."""

from tapegrad.compilation.function import Compiled, compile

__all__ = ["Compiled", "compile"]
