"""Selections, order statistics and sums of products of arrays of active numbers, told again as loops."""

from __future__ import annotations

import numpy as np
from numba import njit
from numba.core import types

from tapegrad.native.arrays import is_active_array, is_recorded_array
from tapegrad.native.functions import INSTEAD, _any_active, _none, dtype_of, held, instead
from tapegrad.native.operators import value_of


@instead(njit(lambda a, dtype: a.astype(dtype)), method="astype")
def astype(a, dtype):
    stub = INSTEAD[np.array]
    return (lambda a, dtype: stub(a, dtype)) if is_recorded_array(a) and held(dtype, a) else None


@instead(np.append)
def append(arr, values):
    if not _any_active(arr, values):
        return None
    if not isinstance(values, types.Array):

        def one(arr, values):
            flat = arr.ravel()
            out = np.empty(flat.size + 1, dtype_of(arr, values))
            for k in range(flat.size):
                out[k] = flat[k]
            out[flat.size] = values
            return out

        return one

    def several(arr, values):
        a, b = arr.ravel(), values.ravel()
        out = np.empty(a.size + b.size, dtype_of(arr, values))
        for k in range(a.size):
            out[k] = a[k]
        for k in range(b.size):
            out[a.size + k] = b[k]
        return out

    return several


@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _order(a):
    """Which elements come in which place."""
    plain = np.empty(a.size)
    for k in range(a.size):
        plain[k] = value_of(a[k])
    return np.argsort(plain, kind="mergesort")


@instead(np.quantile)
def quantile(a, q):
    if not is_active_array(a) or not isinstance(q, (types.Float, types.Integer)):
        return None

    return lambda a, q: _quantile(a, q)


@instead(np.percentile)
def percentile(a, q):
    if not is_active_array(a) or not isinstance(q, (types.Float, types.Integer)):
        return None
    return lambda a, q: _quantile(a, q / 100.0)


@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _quantile(a, q):
    if not 0.0 <= q <= 1.0:
        raise ValueError("quantiles are from 0 to 1, percentiles from 0 to 100")
    flat = a.ravel()
    order, place = _order(flat), q * (flat.size - 1)
    low = min(int(place), flat.size - 1)
    high, part = min(low + 1, flat.size - 1), place - low
    if part == 0.0:
        return flat[order[low]] + 0.0
    return flat[order[low]] * (1.0 - part) + flat[order[high]] * part


@instead(np.median)
def median(a):
    return (lambda a: _quantile(a, 0.5)) if is_active_array(a) else None


@instead(np.average)
def average(a, axis=None, weights=None):
    if not _any_active(a, weights) or not _none(axis):
        return None
    if _none(weights):
        stub = INSTEAD[np.mean]
        return lambda a, axis=None, weights=None: stub(a)

    def weighted(a, axis=None, weights=None):
        if a.shape != weights.shape:
            raise ValueError("weights of another shape than the array's")
        s, total = 0.0, 0.0
        for v, w in zip(a.flat, weights.flat):  # noqa: B905 (Numba knows no strict)
            s = s + v * w
            total = total + w
        return s / total

    return weighted


@instead(np.nansum)
def nansum(a):
    if not is_active_array(a):
        return None

    def told(a):
        s = 0.0
        for v in a.flat:
            if not np.isnan(v):
                s = s + v
        return s

    return told


@instead(np.nanmean)
def nanmean(a):
    if not is_active_array(a):
        return None

    def told(a):
        s, count = 0.0, 0
        for v in a.flat:
            if not np.isnan(v):
                s = s + v
                count += 1
        return s / count if count else s + np.nan

    return told


@instead(np.convolve)
def convolve(a, v):
    if not _any_active(a, v):
        return None

    def told(a, v):
        if a.size == 0 or v.size == 0:
            raise ValueError("convolve takes arrays that are not empty")
        out = np.zeros(a.size + v.size - 1, dtype_of(a, v))
        for i in range(out.size):
            s = 0.0
            for k in range(max(0, i - v.size + 1), min(i + 1, a.size)):
                s = s + a[k] * v[i - k]
            out[i] = s
        return out

    return told


@instead(np.correlate)
def correlate(a, v):
    if not _any_active(a, v):
        return None

    def told(a, v):
        if v.size == 0 or a.size < v.size:
            raise ValueError("correlate is recorded where the first array is not the shorter one")
        out = np.zeros(a.size - v.size + 1, dtype_of(a, v))
        for i in range(out.size):
            s = 0.0
            for k in range(v.size):
                s = s + a[i + k] * np.conj(v[k])
            out[i] = s
        return out

    return told


@instead(np.cross)
def cross(a, b):
    if not _any_active(a, b) or a.ndim != 1 or b.ndim != 1:
        return None

    def told(a, b):
        if a.size != 3 or b.size != 3:
            raise ValueError("cross is recorded of vectors of three elements")
        out = np.empty(3, dtype_of(a, b))
        for k in range(3):
            i, j = (k + 1) % 3, (k + 2) % 3
            out[k] = a[i] * b[j] - a[j] * b[i]
        return out

    return told


@instead(np.bincount)
def bincount(a, weights=None, minlength=0):
    if _none(weights) or not is_active_array(weights):
        return None

    def told(a, weights=None, minlength=0):
        if a.size != weights.size:
            raise ValueError("bincount(): weights and list don't have the same length.")
        size = minlength
        for k in a:
            if k < 0:
                raise ValueError("bincount(): first argument must be non-negative")
            size = max(size, k + 1)
        out = np.zeros(size, dtype_of(weights))
        for i in range(a.size):
            out[a[i]] = out[a[i]] + weights[i]
        return out

    return told


@instead(np.searchsorted)
def searchsorted(a, v):
    if not _any_active(a, v) or isinstance(v, types.Array):
        return None

    def told(a, v):
        low, high = 0, a.size
        while low < high:
            middle = (low + high) // 2
            if a[middle] < v:
                low = middle + 1
            else:
                high = middle
        return low

    return told


def _triangle(name: str, kept: str) -> None:
    space = {"np": np, "dtype_of": dtype_of}
    exec(
        "def told(m, k=0):\n    out = np.zeros(m.shape, dtype_of(m))\n    for i in range(m.shape[0]):\n"
        f"        for j in range(m.shape[1]):\n            if j - i {kept} k:\n"
        "                out[i, j] = m[i, j]\n    return out\n",
        space,
    )

    def choose(m, k=0):
        return space["told"] if is_recorded_array(m) and m.ndim == 2 else None

    choose.__name__ = name
    instead(getattr(np, name))(choose)


_triangle("triu", ">=")
_triangle("tril", "<=")


@instead(np.extract)
def extract(condition, arr):
    return (lambda condition, arr: arr[condition]) if is_recorded_array(arr) else None
