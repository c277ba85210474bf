"""Derivatives by either mode, nested in any order."""

import itertools

import numpy as np

import tapegrad as tg
from tapegrad.autograd import forward_ad as fw


def forward(f):
    """The derivative of a function by forward mode: of one element, or of the sum of all that it moves."""

    def slope(x):
        with fw.dual_level():
            return fw.unpack_dual(f(fw.make_dual(x, tg.ones(x.shape, dtype=x.dtype)))).tangent

    return slope


def reverse(f):
    """The gradient of the sum of a function's results."""

    def slope(x):
        x = x.reshape(x.shape) if x.requires_grad else x.detach().requires_grad_()
        return tg.grad(np.sum(f(x)), x, create_graph=True)[0]

    return slope


def every(f, order):
    """The derivative of an order, by each sequence of modes."""
    for modes in itertools.product((forward, reverse), repeat=order):
        found = f
        for mode in modes:
            found = mode(found)
        yield "-".join(mode.__name__ for mode in modes), found
