"""Euclidean length."""

import numpy as np

from tapegrad.ops.primitive import Reduction, looked_at, reduction
from tapegrad.tape.record import Template


def _length(x, axis, keepdims):
    return np.sqrt(np.add.reduce(x * x, axis=axis, keepdims=keepdims))


@reduction(forward=_length, kink=True, flops=2)
def norm(x, out):
    """Euclidean length over axes; first derivative 0 where it is 0, second derivative nan there."""
    size = out + (out - out)  # nan of inf: where squares overflowed or vanished nothing is known, nor is it 0
    return np.where(out == 0, np.where(x == 0, 0, np.nan), x / size)


class Rescaled(Reduction):
    """Euclidean length whose derivative is that of numbers of which the largest is 1: it is the same."""

    template = Template.PYTHON
    listed = False
    traceable = False
    kink = True
    flops = 4
    node = "norm"

    def _factor(self, x, out, axes):
        size = np.max(np.abs(looked_at(x)), axis=axes, keepdims=True, initial=0)
        x = x / np.where(size == 0, 1, size).astype(size.dtype)
        return super()._factor(x, norm(x, axes, True), axes)


rescaled_norm = Rescaled("rescaled_norm", (), _length, norm.__doc__, norm.rule.function)
