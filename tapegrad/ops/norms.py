"""Euclidean length."""

import numpy as np

from tapegrad.ops.primitive import reduction


def _length(x, axis, keepdims):
    return np.sqrt(np.add.reduce(x * x, axis=axis, keepdims=keepdims))


@reduction(forward=_length, kink=True, flops=2)
def norm(x, out):
    """Euclidean length over axes; first derivative 0 where it is 0, second derivative nan there."""
    return np.where(out == 0, 0, x / out)
