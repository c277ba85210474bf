"""Running products, and the linear recurrence that their derivatives are made of."""

import itertools
import math

import numpy as np

from tapegrad.ops.primitive import conj, primitive
from tapegrad.tape.record import Template

RECURRENCE, RUNNING_PRODUCT, PRODUCT = range(3)  # kinds that compiled code tells apart
FEW = 16  # lanes up to which a loop over Python numbers is faster than one over arrays


def _recurrence(x, a, axis):
    dtype = np.result_type(x, a)
    terms, factors = np.moveaxis(np.broadcast_to(x, np.shape(a)), axis, 0), np.moveaxis(a, axis, 0)
    n, shape = terms.shape[0], terms.shape[1:]
    lanes = int(np.prod(shape))
    out = np.empty(terms.shape, dtype)
    if lanes <= FEW:
        flat = out.reshape(n, lanes)
        for q in range(lanes):
            steps = zip(terms.reshape(n, lanes)[:, q].tolist(), factors.reshape(n, lanes)[:, q].tolist(),
                        strict=True)  # fmt: skip
            found = itertools.accumulate(steps, lambda y, step: (step[0] + step[1] * y[0], None))
            flat[:, q] = [y for y, _ in found]
    else:
        out[...] = terms
        for k in range(1, n):
            out[k] += factors[k] * out[k - 1]
    return np.ascontiguousarray(np.moveaxis(out, 0, axis))


def delayed(x, axis, first):
    """Elements moved one place along an axis; the first become a number."""
    before = (slice(None),) * axis
    if np.shape(x)[axis] == 0:
        return x
    shape = tuple(1 if d == axis else n for d, n in enumerate(np.shape(x)))
    return np.concatenate([np.full(shape, first, x.dtype), x[(*before, slice(None, -1))]], axis=axis)


def _from_the_end(ct, a, axis):
    """The adjoint of the recurrence by its terms: l[i] = ct[i] + conj(a[i+1]) l[i+1]."""
    reversed_ = recurrence(np.flip(ct, axis), delayed(np.flip(conj(a), axis), axis, 0), axis=axis)
    return np.flip(reversed_, axis)


def along_axis(kind, factor):
    """Words for `tapegrad.kernels.replay.recurrences`; the operand `factor` has all elements."""

    def lower(columns, k, operands, attrs):
        shape, axes = columns.shape(operands[factor]), sorted(np.ravel(attrs["axis"]).astype(int).tolist())
        first, last = (axes[0], axes[-1] + 1) if axes else (0, 0)
        if last - first != len(axes):
            return None
        return [kind, math.prod(shape[:first]), math.prod(shape[first:last]), math.prod(shape[last:])]

    return lower


@primitive(forward=_recurrence, arity=2, template=Template.RECURRENCE, lower=along_axis(RECURRENCE, 1))
class recurrence:
    """y[i] = x[i] + a[i] y[i-1] along an axis, y[-1] = 0."""

    reads = (0b10, 0b1010)

    def vjp(ct, out, inputs, wanted, axis):
        moved = _from_the_end(ct, inputs[1], axis)
        found = {0: moved, 1: moved * delayed(conj(out), axis, 0) if 1 in wanted else None}
        return {k: found[k] for k in wanted}

    def jvp(tangents, out, inputs, axis):
        u, v = tangents
        terms = [t for t in (u, None if v is None else v * delayed(out, axis, 0)) if t is not None]
        return recurrence(terms[0] if len(terms) == 1 else terms[0] + terms[1], inputs[1], axis=axis)


@primitive(
    np.cumprod, forward=lambda x, axis: np.cumprod(x, axis=axis), arity=1, template=Template.RECURRENCE,
    lower=along_axis(RUNNING_PRODUCT, 0), window="running product",
)  # fmt: skip
class cumprod:
    """Running product along an axis; no division, so zeros do no harm."""

    reads = (0b1001,)

    def vjp(ct, out, inputs, wanted, axis):
        return {0: _from_the_end(ct, inputs[0], axis) * delayed(conj(out), axis, 1)}

    def jvp(tangents, out, inputs, axis):
        return recurrence(tangents[0] * delayed(out, axis, 1), inputs[0], axis=axis)
