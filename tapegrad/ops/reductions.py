"""Reductions over axes, and scans along one."""

import math

import numpy as np

from tapegrad.ops import kinks, loops
from tapegrad.ops.lanes import along
from tapegrad.ops.primitive import conj, linear, primitive, reduction
from tapegrad.ops.scans import PRODUCT, along_axis
from tapegrad.tape.record import Template


def _reduce(function):
    return lambda x, axis, keepdims: function(x, axis=axis, keepdims=keepdims)


@reduction(np.sum, forward=_reduce(np.add.reduce), flops=1, join=np.add, neutral=0.0, multiple=kinks.of_total)
def sum(x):
    """Sum over axes."""
    return 1


def _mean(x, axis, keepdims):
    """As np.mean, whose own way there takes three times as long."""
    n = math.prod([x.shape[d] for d in axis])
    if n == 0 or x.dtype.char not in "fdgFDG":
        return np.mean(x, axis=axis, keepdims=keepdims)
    total = np.add.reduce(x, axis=axis, keepdims=keepdims)
    if isinstance(total, np.ndarray):
        return np.true_divide(total, np.intp(n), out=total, casting="unsafe")
    return total.dtype.type(total / np.intp(n))


@reduction(np.mean, forward=_mean, flops=1, neutral=0.0)
def mean(n):
    """Mean over axes."""
    return 1 / n


def _hits(x, out):
    return np.where(x == out, 1, 0)


@reduction(np.max, np.amax, forward=_reduce(np.max), total=_hits, join=np.maximum, neutral=-math.inf)
def max(x, out, total):
    """Largest value over axes; ties share the derivative evenly."""
    return np.where(x == out, 1 / total, 0)


@reduction(np.min, np.amin, forward=_reduce(np.min), total=_hits, join=np.minimum, neutral=math.inf)
def min(x, out, total):
    """Smallest value over axes; ties share the derivative evenly."""
    return np.where(x == out, 1 / total, 0)


def _logsumexp(x, axis, keepdims):
    """Shifted by the maximum, so that exponentials stay in range."""
    top = np.maximum.reduce(x, axis=axis, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(top), top, 0).astype(x.dtype)
    with np.errstate(divide="ignore"):
        out = np.log(np.add.reduce(np.exp(x - shift), axis=axis, keepdims=True)) + shift
    return out if keepdims else out.squeeze(axis)


@reduction(forward=_logsumexp)
def logsumexp(x, out):
    """Logarithm of a sum of exponentials over axes."""
    return np.exp(x - out)


def _others(x):
    """Products of all other elements along the last axis, by a tree: no division, so zeros do no harm."""
    n = np.shape(x)[-1]
    if n == 1:
        return np.broadcast_to(np.ones((), x.dtype), np.shape(x))
    half = (n + 1) // 2
    left, right = x[..., :half], x[..., half:]
    pairs = np.concatenate([left[..., : n - half] * right, left[..., n - half :]], axis=-1)
    above = _others(pairs)
    upper = above[..., : n - half]
    rest = above[..., n - half :]
    return np.concatenate([upper * right, rest, upper * left[..., : n - half]], axis=-1)


@primitive(
    np.prod, forward=_reduce(np.multiply.reduce), arity=1, template=Template.RECURRENCE,
    lower=along_axis(PRODUCT, 0), window="product", join=np.multiply, neutral=1.0,
)  # fmt: skip
class prod:
    """Product over axes."""

    reads = (0b1,)

    def vjp(ct, out, inputs, wanted, axis, keepdims):
        (x,) = inputs
        kept = tuple(1 if d in axis else n for d, n in enumerate(np.shape(x)))
        return {0: np.reshape(ct, kept) * conj(prod_factors(x, axis))}

    def jvp(tangents, out, inputs, axis, keepdims):
        moved = np.sum(tangents[0] * prod_factors(inputs[0], axis), axis=axis)
        return np.reshape(moved, np.shape(out))


def prod_factors(x, axis):
    """For each element the product of those it is reduced with."""
    kept = tuple(d for d in range(np.ndim(x)) if d not in axis)
    order = (*kept, *axis)
    if 0 in np.shape(x):
        return np.ones(np.shape(x), x.dtype)
    moved = np.transpose(x, order)
    flat = np.reshape(moved, (*np.shape(moved)[: len(kept)], -1))
    return np.transpose(np.reshape(_others(flat), np.shape(moved)), tuple(np.argsort(order)))


def _scan_axis(attrs):
    return attrs["axis"]


@linear(
    np.cumsum, forward=loops.running_sums, lift=along, template=Template.SCAN,
    key=_scan_axis,
)  # fmt: skip
def cumsum(ct, shapes, wanted, axis):
    """Running sum along an axis; its transpose runs from the far end."""
    return {0: np.flip(np.cumsum(np.flip(ct, axis), axis=axis), axis)}
