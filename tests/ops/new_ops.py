"""An op of each kind, declared in a test file alone, as CONTRIBUTING.md has them; no other test sees them."""

import numpy as np
from scipy.special._ufuncs import _cosine_cdf as cosine_cdf  # a ufunc without an op of the library's own

from tapegrad.ops import REGISTRY
from tapegrad.ops.primitive import elementwise, primitive, reduction


@elementwise(forward=lambda x: x / (1 + np.abs(x)), flops=3)
def softsign(x):
    """A step from -1 to 1."""
    root = 1 + np.abs(x)
    return 1 / (root * root)


@reduction(forward=lambda x, axis, keepdims: np.log(np.sum(x * x, axis=axis, keepdims=keepdims)))
def log_of_squares(x, out):
    """Logarithm of a sum of squares over axes."""
    return 2 * x * np.exp(-out)


@primitive(forward=lambda x, a, y: x @ a @ y, arity=3, node="bilinear")
class bilinear_form:
    """x a y, of two vectors and a matrix; which values each derivative reads is a bit mask."""

    reads = (0b110, 0b101, 0b011)

    def vjp(ct, out, inputs, wanted):
        x, a, y = inputs
        return {0: ct * (a @ y), 1: ct * np.outer(x, y), 2: ct * (x @ a)}

    def jvp(tangents, out, inputs):
        (x, a, y), (dx, da, dy) = inputs, tangents
        products = ((dx, a, y), (x, da, y), (x, a, dy))
        terms = [p @ q @ r for (p, q, r), t in zip(products, tangents, strict=True) if t is not None]
        return sum(terms[1:], terms[0])


@elementwise(cosine_cdf, scalar=lambda x: (np.pi + x + np.sin(x)) / (2 * np.pi))
def cosine_distribution(x):
    """Distribution function of the cosine distribution, for x from -pi to pi."""
    return (1 + np.cos(x)) / (2 * np.pi)


for _op in (softsign, log_of_squares, bilinear_form, cosine_distribution):  # what is listed has samples
    del REGISTRY[_op.name]
