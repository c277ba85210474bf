"""Euclidean length."""

import numpy as np

from tapegrad.ops.primitive import reduction


@reduction(forward=lambda x, axis, keepdims: np.sqrt(np.add.reduce(x * x, axis=axis, keepdims=keepdims)))
def norm(x, out):
    """Euclidean length over axes; first derivative 0 where it is 0, second derivative nan there."""
    return np.where(out == 0, 0, x / out)
